"""The simulator beside CyNetDiff and NDlib; see ``oim bench peers``."""

import sys
from pathlib import Path

from oim.bench import peers

peers(Path(sys.argv[1]), "--quick" in sys.argv)
