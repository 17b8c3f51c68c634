"""The sweep beside MILP and fairpyx; see ``noisy-fairdiv bench peers``."""

import sys
from pathlib import Path

from noisy_fairdiv.bench import peers

peers(Path(sys.argv[1]), "--quick" in sys.argv)
