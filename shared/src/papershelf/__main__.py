"""``python -m papershelf``."""

import sys

from papershelf.cli import main

sys.argv[0] = "papershelf"
main()
