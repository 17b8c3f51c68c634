"""Shared utilities of the Papershelf packages: claims, reports, vendoring, sweeps, safe files, benchmarks."""

from importlib.metadata import version

from papershelf.errors import InputError, MissingExtra, require
from papershelf.paper import Claim, Method, Outcome, Paper, Run, papers
from papershelf.random import Streams

__version__ = version("papershelf")

__all__ = [
    "Claim",
    "InputError",
    "Method",
    "MissingExtra",
    "Outcome",
    "Paper",
    "Run",
    "Streams",
    "__version__",
    "papers",
    "require",
]
