"""See ``niaf bench sampling``."""

import sys
from pathlib import Path

from niaf.bench import sampling

sampling(Path(sys.argv[1]), "--quick" in sys.argv)
