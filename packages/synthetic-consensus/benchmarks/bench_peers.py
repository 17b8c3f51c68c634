"""The fit beside the deployed optimiser; see ``synthetic-consensus bench peers``."""

import sys
from pathlib import Path

from synthetic_consensus.bench import peers

peers(Path(sys.argv[1]), "--quick" in sys.argv)
