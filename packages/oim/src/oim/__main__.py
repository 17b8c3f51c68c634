"""``python -m oim``."""

import sys

from oim.cli import app

sys.argv[0] = "oim"
app()
