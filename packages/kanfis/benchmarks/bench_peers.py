"""Beside paper training, EBM, anfis-toolbox, pykan and pyit2fls; see ``kanfis bench``."""

import sys
from pathlib import Path

from kanfis.bench import peers

peers(Path(sys.argv[1]), "--quick" in sys.argv)
