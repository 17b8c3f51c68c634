"""Write the shelf's table into the root README, between its markers.

Usage: tools/shelf python tools/table.py [--check]

Figures of claims come from packages/<name>/benchmarks/claims.json, which `<name> reproduce --out FOLDER` writes and
`tools/table.py --claims FOLDER` takes over.
"""

from __future__ import annotations

import argparse
import json
import re
from pathlib import Path

from workspace import ROOT, fail, members

from papershelf import papers
from papershelf.files import atomic_write
from papershelf.reproduce import distribution_version, load_results

README = ROOT / "README.md"
BLOCK = re.compile(r"(<!-- shelf -->\n).*?(<!-- /shelf -->)", re.DOTALL)


def kept_claims(name: str, root: Path = ROOT) -> Path:
    """Where a package's last measured claims are kept."""
    return root / "packages" / name / "benchmarks" / "claims.json"


def table() -> str:
    """The table in Markdown."""
    rows = ["| package | paper | what it does for you | claims held / measured | version |"]
    rows.append("| --- | --- | --- | --- | --- |")
    folders = {member.distribution: member.name for member in members()}
    for slug, paper in papers().items():
        kept = kept_claims(folders[paper.distribution])
        if kept.exists():
            claims = json.loads(kept.read_text())
            held = f"{sum(bool(c['holds']) for c in claims)} / {sum(c['holds'] is not None for c in claims)}"
        else:
            held = "not measured"
        link = f"[{slug}](packages/{folders[paper.distribution]})"
        rows.append(f"| {link} | {paper.title} | {paper.summary} | {held} | {distribution_version(paper)} |")
    return "\n".join(rows) + "\n"


def take_over(folder: Path) -> None:
    """Keep the claims of a results folder with their packages, without what changes from run to run."""
    folders = {
        paper.slug: next(m.name for m in members() if m.distribution == paper.distribution)
        for paper in papers().values()
    }
    results = load_results(folder)
    for slug in dict.fromkeys(result.package for result in results):
        kept = [
            {"id": r.id, "scale": r.scale, "holds": r.holds, "measured": r.measured, "seed": r.seed}
            for r in results
            if r.package == slug
        ]
        target = kept_claims(folders[slug])
        target.parent.mkdir(exist_ok=True)
        atomic_write(target, json.dumps(kept, indent=1, ensure_ascii=False) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="only tell whether the table is up to date")
    parser.add_argument("--claims", type=Path, help="results folder to take measured claims from")
    given = parser.parse_args()
    if given.claims:
        take_over(given.claims)
    text = README.read_text()
    if not BLOCK.search(text):
        fail("README.md has no <!-- shelf --> ... <!-- /shelf --> block")
    updated = BLOCK.sub(lambda match: match[1] + table() + match[2], text)
    if given.check and updated != text:
        fail("the table in README.md is out of date: run tools/shelf python tools/table.py", 1)
    if updated != text:
        atomic_write(README, updated)
    print("the table is up to date")


if __name__ == "__main__":
    main()
