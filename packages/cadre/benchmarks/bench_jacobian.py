"""See ``cadre bench jacobian``."""

import sys
from pathlib import Path

from cadre.bench import jacobian

jacobian(Path(sys.argv[1]), "--quick" in sys.argv)
