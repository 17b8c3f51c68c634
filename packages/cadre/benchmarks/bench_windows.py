"""See ``cadre bench windows``."""

import sys
from pathlib import Path

from cadre.bench import windows

windows(Path(sys.argv[1]), "--quick" in sys.argv)
