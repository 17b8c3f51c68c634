"""Streaming rate and grid size; see ``ridge-sd bench streaming``."""

import sys
from pathlib import Path

from ridge_sd.bench import streaming

streaming(Path(sys.argv[1]), "--quick" in sys.argv)
