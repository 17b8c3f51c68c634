"""Paths and helpers of the workspace's tests."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tools"))


@pytest.fixture(scope="session")
def root():
    """The checkout."""
    return ROOT


@pytest.fixture(scope="session")
def call():
    """Run a command, check its exit code, return its output."""

    def run(*words, cwd=ROOT, code=0, **environment):
        clean = {k: v for k, v in os.environ.items() if k not in ("VIRTUAL_ENV", "PYTHONPATH")}
        done = subprocess.run(
            [str(word) for word in words], cwd=cwd, capture_output=True, text=True, env={**clean, **environment}
        )
        assert done.returncode == code, f"{words}\n{done.stdout}\n{done.stderr}"
        return done.stdout if code == 0 else done.stderr + done.stdout

    return run


@pytest.fixture
def copy(tmp_path, call):
    """A copy of the tracked and new files as a git repository of its own."""
    folder = tmp_path / "copy"
    listed = call("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard").split("\0")
    for name in filter(None, listed):
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)
    call("git", "init", "-q", "-b", "main", cwd=folder)
    call("git", "config", "user.email", "test@example.org", cwd=folder)
    call("git", "config", "user.name", "Test", cwd=folder)
    call("git", "add", "-A", cwd=folder)
    call("git", "commit", "-qm", "copy", cwd=folder)
    return folder
