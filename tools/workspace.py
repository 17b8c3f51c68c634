"""The members of the workspace, as the other tools see them."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


@dataclass(frozen=True)
class Member:
    """One package of the workspace.

    Attributes:
        name: folder name, which is also what the tools' users type (``shared`` for the shared package).
        distribution: name in the registry.
        package: import name.
        internal: distributions of the workspace that it depends on.
        commands: console scripts.
    """

    name: str
    folder: Path
    distribution: str
    package: str
    version: str
    internal: tuple[str, ...]
    commands: tuple[str, ...]


def fail(message: str, code: int = 2) -> None:
    """One line on standard error, and out."""
    print(f"{Path(sys.argv[0]).name}: error: {message}", file=sys.stderr)
    raise SystemExit(code)


def _names(requirements: list[str]) -> set[str]:
    found = (re.match(r"[A-Za-z0-9._-]+", requirement) for requirement in requirements)
    return {match[0].lower() for match in found if match}


def members(root: Path = ROOT) -> list[Member]:
    """Every member, the shared package first."""
    folders = [root / "shared", *sorted(path.parent for path in root.glob("packages/*/pyproject.toml"))]
    projects = [(folder, tomllib.loads((folder / "pyproject.toml").read_text())["project"]) for folder in folders]
    distributions = {project["name"].lower() for _, project in projects}
    return [_member(folder, project, distributions) for folder, project in projects]


def _member(folder: Path, project: dict, distributions: set[str]) -> Member:
    extras = [r for group in project.get("optional-dependencies", {}).values() for r in group]
    needed = (_names(project.get("dependencies", []) + extras) & distributions) - {project["name"].lower()}
    packages = [path.parent.name for path in folder.glob("src/*/__init__.py")]
    if len(packages) != 1:
        fail(f"{folder} must hold one package below src/, got {packages}")
    return Member(
        name=folder.name,
        folder=folder,
        distribution=project["name"],
        package=packages[0],
        version=project["version"],
        internal=tuple(sorted(needed)),
        commands=tuple(project.get("scripts", {})),
    )


def chosen(names: list[str], root: Path = ROOT) -> list[Member]:
    """The members with these folder or distribution names; all when none is named."""
    known = members(root)
    if not names:
        return known
    by_name = {m.name: m for m in known} | {m.distribution: m for m in known}
    unknown = [name for name in names if name not in by_name]
    if unknown:
        fail(f"no member {unknown[0]!r}; members: {', '.join(m.name for m in known)}")
    return [by_name[name] for name in names]


def uv() -> str:
    """The uv executable."""
    import os

    found = os.environ.get("UV") or shutil.which("uv") or str(ROOT / ".shelf/bin/uv")
    if not Path(found).exists():
        fail("uv was not found; run this through tools/shelf")
    return found


def git(*words: str, root: Path = ROOT) -> str:
    """Output of a git command; ends the program with git's own words when it fails."""
    done = subprocess.run(["git", "-C", str(root), *words], capture_output=True, text=True, check=False)
    if done.returncode:
        fail(f"git {' '.join(words)}: {done.stderr.strip().splitlines()[-1] if done.stderr.strip() else 'failed'}")
    return done.stdout
