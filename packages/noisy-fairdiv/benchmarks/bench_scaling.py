"""How time grows with size; see ``noisy-fairdiv bench scaling``."""

import sys
from pathlib import Path

from noisy_fairdiv.bench import scaling

scaling(Path(sys.argv[1]), "--quick" in sys.argv)
