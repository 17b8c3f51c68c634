"""The whole path beside RidgeCV and himalaya; see ``ridge-sd bench path``."""

import sys
from pathlib import Path

from ridge_sd.bench import path

path(Path(sys.argv[1]), "--quick" in sys.argv)
