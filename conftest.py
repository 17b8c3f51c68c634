"""Python blocks in READMEs and docs are tests: each file runs top to bottom in one namespace and an empty folder."""

import os
import tempfile

from sybil import Sybil
from sybil.parsers.markdown import PythonCodeBlockParser


def enter_empty_folder(namespace):
    namespace["_before"] = os.getcwd()  # noqa: PTH109
    namespace["_folder"] = tempfile.TemporaryDirectory()
    os.chdir(namespace["_folder"].name)


def leave(namespace):
    os.chdir(namespace["_before"])
    namespace["_folder"].cleanup()


pytest_collect_file = Sybil(
    parsers=[PythonCodeBlockParser()],
    patterns=["README.md", "docs/*.md"],
    setup=enter_empty_folder,
    teardown=leave,
).pytest()
