"""See ``niaf bench primitives``."""

import sys
from pathlib import Path

from niaf.bench import primitives

primitives(Path(sys.argv[1]), "--quick" in sys.argv)
