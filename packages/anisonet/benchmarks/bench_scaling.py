"""Growth with the number of points; see ``anisonet bench scaling``."""

import sys
from pathlib import Path

from anisonet.bench import scaling

scaling(Path(sys.argv[1]), "--quick" in sys.argv)
