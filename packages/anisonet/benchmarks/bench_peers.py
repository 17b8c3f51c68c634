"""Every piece beside its peer; see ``anisonet bench peers``."""

import sys
from pathlib import Path

from anisonet.bench import peers

peers(Path(sys.argv[1]), "--quick" in sys.argv)
