"""The two errors a user is expected to meet; the command line prints each as one line and exits with 2."""

import importlib
from types import ModuleType


class InputError(ValueError):
    """What the user gave cannot be used; the message says what was received and what was expected."""


class MissingExtra(ImportError):
    """An optional library is absent; the message names the extra that brings it."""


def require(module: str, extra: str) -> ModuleType:
    """Import an optional module.

    Args:
        module: dotted name, for example ``"torch"``.
        extra: what to install, for example ``"papershelf[models]"``.

    Raises:
        MissingExtra: if the module is not installed.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise
        raise MissingExtra(f"this needs {module}, which is not installed: pip install '{extra}'") from error
