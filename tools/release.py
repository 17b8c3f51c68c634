"""Release a package: version, changelog date, commit, tag and build.

Usage: tools/shelf python tools/release.py NAME --bump patch|minor|major [--no-check]

Refuses on a dirty tree, on a changelog without an "Unreleased" part, and on a red check.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

from workspace import ROOT, Member, chosen, fail, git, uv

UNRELEASED = re.compile(r"^## Unreleased\s*$", re.MULTILINE)


def bumped(version: str, part: str) -> str:
    """The next version.

    >>> bumped("1.2.3", "minor")
    '1.3.0'
    """
    major, minor, patch = (int(number) for number in version.split("."))
    return {"major": f"{major + 1}.0.0", "minor": f"{major}.{minor + 1}.0", "patch": f"{major}.{minor}.{patch + 1}"}[
        part
    ]


def prepare(member: Member, version: str) -> None:
    """Write version and changelog date."""
    project, changelog = member.folder / "pyproject.toml", member.folder / "CHANGELOG.md"
    text = changelog.read_text()
    if not UNRELEASED.search(text):
        fail(f"{changelog.relative_to(ROOT)} has no '## Unreleased' part to release")
    changelog.write_text(UNRELEASED.sub(f"## {version} - {datetime.now(UTC).date()}", text, count=1))
    project.write_text(project.read_text().replace(f'version = "{member.version}"', f'version = "{version}"', 1))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name")
    parser.add_argument("--bump", choices=["patch", "minor", "major"], required=True)
    parser.add_argument("--no-check", action="store_true", help="the check was run already")
    given = parser.parse_args()
    (member,) = chosen([given.name])
    if git("status", "--porcelain").strip():
        fail("the tree is dirty; commit or stash first")
    if not UNRELEASED.search((member.folder / "CHANGELOG.md").read_text()):
        fail(f"{member.name}/CHANGELOG.md has no '## Unreleased' part to release")
    if not given.no_check:
        check = [sys.executable, str(ROOT / "tools/check.py"), member.name]
        if subprocess.run(check, check=False).returncode:
            fail("the check is red; nothing was released", 1)
    version = bumped(member.version, given.bump)
    prepare(member, version)
    tag = f"{'papershelf' if member.name == 'shared' else member.name}-v{version}"
    git("commit", "--all", "--message", f"{member.name} {version}")
    git("tag", tag)
    out = ROOT / "dist"
    subprocess.run([uv(), "build", "--quiet", "--package", member.distribution, "--out-dir", str(out)], check=True)
    built = sorted(path.name for path in Path(out).glob(f"{member.distribution.replace('-', '_')}-{version}*"))
    print(f"tagged {tag}; built {', '.join(built)} in dist/")


if __name__ == "__main__":
    main()
