"""Name the packages that a change touches, and those that depend on them.

Usage: tools/shelf python tools/affected.py --base main [--json]
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from workspace import ROOT, Member, git, members

# A change to one of these concerns every package.
EVERYWHERE = ("pyproject.toml", ".ci/", ".github/", "tools/")


def affected(files: list[str], known: list[Member], root: Path = ROOT) -> list[Member]:
    """Members that changed files belong to, and all that depend on those, in the order of ``known``."""
    if any(file == place or (place.endswith("/") and file.startswith(place)) for file in files for place in EVERYWHERE):
        return known
    touched = {m.distribution for m in known for f in files if (root / f).is_relative_to(m.folder)}
    while True:
        more = {m.distribution for m in known if touched & set(m.internal)} - touched
        if not more:
            return [m for m in known if m.distribution in touched]
        touched |= more


def changed_files(base: str, root: Path = ROOT) -> list[str]:
    """Files that differ from the merge base with ``base``, committed or not, and files git does not track yet."""
    start = git("merge-base", base, "HEAD", root=root).strip()
    changed = git("diff", "--name-only", start, root=root).splitlines()
    return changed + git("ls-files", "--others", "--exclude-standard", root=root).splitlines()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--base", required=True, help="revision to compare with")
    parser.add_argument("--json", action="store_true", help="print a JSON list")
    given = parser.parse_args()
    names = [m.name for m in affected(changed_files(given.base), members())]
    print(json.dumps(names) if given.json else "\n".join(names))


if __name__ == "__main__":
    main()
