"""See ``cadre bench readout``."""

import sys
from pathlib import Path

from cadre.bench import readout

readout(Path(sys.argv[1]), "--quick" in sys.argv)
