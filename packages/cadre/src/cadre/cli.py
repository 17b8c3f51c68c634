"""The ``cadre`` command."""

from cadre.claims import PAPER
from papershelf import cli

app = cli.app(PAPER)
