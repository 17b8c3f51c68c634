"""Growth with the number of ratings; see ``synthetic-consensus bench scaling``."""

import sys
from pathlib import Path

from synthetic_consensus.bench import scaling

scaling(Path(sys.argv[1]), "--quick" in sys.argv)
