"""Optional libraries, imported where they are needed."""

from __future__ import annotations

import importlib
from types import ModuleType


def optional(module: str, extra: str) -> ModuleType:
    """Import a library that an extra of the package brings.

    Raises:
        ImportError: naming the extra, if it is not installed.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise
        raise ImportError(
            f"this needs {module}, which is not installed: pip install 'papershelf-cadre[{extra}]'"
        ) from error
