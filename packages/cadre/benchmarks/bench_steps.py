"""See ``cadre bench steps``."""

import sys
from pathlib import Path

from cadre.bench import steps

steps(Path(sys.argv[1]), "--quick" in sys.argv)
