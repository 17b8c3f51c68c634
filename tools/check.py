"""Check packages one by one, each alone with only its declared dependencies.

Usage: tools/shelf python tools/check.py [NAME ...] [--fast] [--base REV]

Whole: lint, format, types, layers, declared dependencies, tests in an isolated environment, and the wheel installed by
pip in a fresh environment. --fast: the wheel installed by uv, import and command line; tests only for the packages that
the change against --base touches (default: the last commit).
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from affected import affected, changed_files
from workspace import ROOT, Member, chosen, fail, members, uv


def run(title: str, command: list[str], cwd: Path = ROOT) -> None:
    """Run a command; print its output and end the program when it fails."""
    started = time.perf_counter()
    environment = {k: v for k, v in os.environ.items() if k not in ("VIRTUAL_ENV", "PYTHONPATH")}
    done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, check=False)
    state = "ok" if done.returncode == 0 else "FAILED"
    print(f"  {title}: {state} ({time.perf_counter() - started:.1f} s)", flush=True)
    if done.returncode:
        print(done.stdout + done.stderr)
        fail(f"{title} failed", 1)


def source_checks(member: Member) -> None:
    """Lint, format, types, layers and declared dependencies."""
    folder = str(member.folder.relative_to(ROOT))
    run("lint", ["ruff", "check", folder])
    run("format", ["ruff", "format", "--check", folder])
    run("types", ["ty", "check", "--output-format", "concise", folder])
    run("layers", [sys.executable, str(ROOT / "tools/layers.py")])
    run("declared dependencies", ["deptry", "src"], cwd=member.folder)


def isolated_tests(member: Member) -> None:
    """The package's tests in an environment of its own."""
    folder = str(member.folder.relative_to(ROOT))
    command = [uv(), "run", "--isolated", "--quiet", "--package", member.distribution]
    run("tests alone", [*command, "python", "-m", "pytest", "-q", folder])


def build_wheels(wanted: list[Member], folder: Path) -> None:
    """Build the wheels of members into a folder."""
    for member in wanted:
        command = [uv(), "build", "--quiet", "--wheel", "--package", member.distribution, "--out-dir", str(folder)]
        run(f"wheel of {member.name}", command)


def installed_alone(member: Member, wheels: Path, with_pip: bool) -> None:
    """Install the wheel in a fresh environment in an empty folder; import it and ask its commands for help."""
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        python = str(place / "venv/bin/python")
        if with_pip:
            run("fresh environment", [sys.executable, "-m", "venv", str(place / "venv")], cwd=place)
            install = [python, "-m", "pip", "install", "--quiet", "--find-links", str(wheels)]
        else:
            run("fresh environment", [uv(), "venv", "--quiet", "--python", sys.executable, "venv"], cwd=place)
            install = [uv(), "pip", "install", "--quiet", "--python", python, "--find-links", str(wheels)]
        run("install from wheels", [*install, f"{member.distribution}=={member.version}"], cwd=place)
        run("import", [python, "-c", f"import {member.package}; {member.package}.__version__"], cwd=place)
        for command in member.commands:
            run(f"{command} --help", [str(place / "venv/bin" / command), "--help"], cwd=place)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="packages; all by default")
    parser.add_argument("--fast", action="store_true", help="see above")
    parser.add_argument("--base", default="HEAD~1", help="revision that --fast compares with")
    given = parser.parse_args()
    wanted = chosen(given.names)
    touched = affected(changed_files(given.base), members()) if given.fast else wanted
    with tempfile.TemporaryDirectory() as name:
        wheels = Path(name)
        needed = [m for m in members() if m in wanted or any(m.distribution in w.internal for w in wanted)]
        build_wheels(needed, wheels)
        for member in wanted:
            print(f"{member.name} {member.version}", flush=True)
            if not given.fast:
                source_checks(member)
            installed_alone(member, wheels, with_pip=not given.fast)
            if member in touched:
                isolated_tests(member)
    print(f"{len(wanted)} packages stand alone")


if __name__ == "__main__":
    main()
