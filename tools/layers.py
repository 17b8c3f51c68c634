"""Check who may import whom, with import-linter, for every package of the shelf.

Usage: tools/shelf python tools/layers.py

Method modules (the files of a paper's methods) import neither papershelf, nor another package, nor the experiment layer
of their own. No package imports another one. papershelf imports none of them.
"""

from __future__ import annotations

import argparse
import subprocess
import tempfile
from pathlib import Path, PurePosixPath

from workspace import ROOT, Member, members

from papershelf import papers


def method_modules(member: Member) -> list[str]:
    """Dotted names of a package's method modules."""
    paper = next((p for p in papers().values() if p.distribution == member.distribution), None)
    files = {file for method in paper.methods for file in method.files} if paper else set()
    return sorted(f"{member.package}.{'.'.join(PurePosixPath(file).with_suffix('').parts)}" for file in files)


def other_modules(member: Member, methods: list[str]) -> list[str]:
    """Top-level modules of a package that hold no method."""
    names = {path.stem if path.suffix else path.name for path in (member.folder / "src" / member.package).iterdir()}
    names -= {"__init__", "__pycache__", "py"}
    found = [f"{member.package}.{name}" for name in sorted(names) if _is_module(member, name)]
    return [name for name in found if not any(m == name or m.startswith(name + ".") for m in methods)]


def _is_module(member: Member, name: str) -> bool:
    base = member.folder / "src" / member.package / name
    return base.with_suffix(".py").exists() or (base / "__init__.py").exists()


def configuration(known: list[Member]) -> str:
    """An import-linter configuration for these members, the shared package first."""
    shared, packages = known[0].package, [m.package for m in known[1:]]
    lines = ["[importlinter]", "root_packages =", *(f"    {m.package}" for m in known)]

    def contract(number: str, name: str, kind: str, **lists: list[str]) -> None:
        lines.extend(["", f"[importlinter:contract:{number}]", f"name = {name}", f"type = {kind}"])
        for key, values in lists.items():
            lines.extend([f"{key} =", *(f"    {value}" for value in values)])

    for member in known[1:]:
        methods = method_modules(member)
        elsewhere = [shared, *(p for p in packages if p != member.package), *other_modules(member, methods)]
        contract(
            member.name,
            f"{member.name}: method modules stand alone",
            "forbidden",
            source_modules=methods,
            forbidden_modules=elsewhere,
        )
    if len(packages) > 1:
        contract("independence", "packages do not import each other", "independence", modules=packages)
    contract(
        "shared",
        "papershelf imports no package",
        "forbidden",
        source_modules=[shared],
        forbidden_modules=packages,
    )
    return "\n".join(lines) + "\n"


def main() -> None:
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "layers.ini"
        path.write_text(configuration(members()))
        command = ["lint-imports", "--config", str(path), "--no-cache"]
        raise SystemExit(subprocess.run(command, cwd=ROOT, check=False).returncode)


if __name__ == "__main__":
    main()
