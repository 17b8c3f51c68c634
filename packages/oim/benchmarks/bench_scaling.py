"""How time grows with size; see ``oim bench scaling``."""

import sys
from pathlib import Path

from oim.bench import scaling

scaling(Path(sys.argv[1]), "--quick" in sys.argv)
