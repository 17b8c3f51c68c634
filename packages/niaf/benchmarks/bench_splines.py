"""See ``niaf bench splines``."""

import sys
from pathlib import Path

from niaf.bench import splines

splines(Path(sys.argv[1]), "--quick" in sys.argv)
