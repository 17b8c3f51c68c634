"""See ``niaf bench derivatives``."""

import sys
from pathlib import Path

from niaf.bench import derivatives

derivatives(Path(sys.argv[1]), "--quick" in sys.argv)
