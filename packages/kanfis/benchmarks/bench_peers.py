"""Beside paper training, EBM, pyGAM, xanfis, anfis-toolbox, pykan and pyit2fls; see ``kanfis bench``."""

import sys
from pathlib import Path

from kanfis.bench import bench_peers

bench_peers(Path(sys.argv[1]), "--quick" in sys.argv)
