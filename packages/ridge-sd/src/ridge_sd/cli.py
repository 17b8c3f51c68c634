"""The ``ridge-sd`` command."""

from ridge_sd.claims import PAPER
from papershelf import cli

app = cli.app(PAPER)
