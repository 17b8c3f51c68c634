"""See ``cadre bench recovery``."""

import sys
from pathlib import Path

from cadre.bench import recovery

recovery(Path(sys.argv[1]), "--quick" in sys.argv)
