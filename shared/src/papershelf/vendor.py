"""Copies a method's source files into another project, and later tells whether they have drifted."""

from __future__ import annotations

import ast
import hashlib
import json
import re
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, distribution
from importlib.resources import files
from pathlib import Path, PurePosixPath

from papershelf.errors import InputError
from papershelf.files import atomic_write
from papershelf.paper import Method, Paper, find_paper
from papershelf.reproduce import distribution_version

LICENCE_FILE = "LICENSE.papershelf"
_HEADER = """\
# Vendored from {package} {version} by papershelf (method: {method}). Licence: MIT, see {licence_file} beside this file.
# papershelf-vendor: {record}
"""
_RECORD = re.compile(r"\A#[^\n]*\n# papershelf-vendor: (\{.*\})\n")

MIT = """\
MIT License

Copyright (c) 2026 Papershelf contributors

Permission is hereby granted, free of charge, to any person obtaining a copy of this software and associated
documentation files (the "Software"), to deal in the Software without restriction, including without limitation the
rights to use, copy, modify, merge, publish, distribute, sublicense, and/or sell copies of the Software, and to permit
persons to whom the Software is furnished to do so, subject to the following conditions:

The above copyright notice and this permission notice shall be included in all copies or substantial portions of the
Software.

THE SOFTWARE IS PROVIDED "AS IS", WITHOUT WARRANTY OF ANY KIND, EXPRESS OR IMPLIED, INCLUDING BUT NOT LIMITED TO THE
WARRANTIES OF MERCHANTABILITY, FITNESS FOR A PARTICULAR PURPOSE AND NONINFRINGEMENT. IN NO EVENT SHALL THE AUTHORS OR
COPYRIGHT HOLDERS BE LIABLE FOR ANY CLAIM, DAMAGES OR OTHER LIABILITY, WHETHER IN AN ACTION OF CONTRACT, TORT OR
OTHERWISE, ARISING FROM, OUT OF OR IN CONNECTION WITH THE SOFTWARE OR THE USE OR OTHER DEALINGS IN THE SOFTWARE.
"""


@dataclass(frozen=True)
class Status:
    """A vendored file against its own header and against the installed package.

    ``state`` is ``unchanged``, ``modified here``, ``outdated upstream``, both joined by a comma, or ``upstream not
    installed`` (then only local edits can be seen).
    """

    path: Path
    package: str
    method: str
    version: str
    state: str

    @property
    def modified(self) -> bool:
        return "modified here" in self.state

    @property
    def outdated(self) -> bool:
        return "outdated upstream" in self.state


def rewrite_imports(source: str, package: str, siblings: Sequence[str], relative: bool) -> str:
    """Point a module's imports of its siblings at files in one folder.

    Args:
        source: the module's source.
        package: the import name that it belongs to.
        siblings: dotted names, below ``package``, of the modules that are copied together.
        relative: ``from .ic import x`` for a destination that is a package, else ``from ic import x``.

    Raises:
        ValueError: if it imports a part of the package that is not copied.
    """
    lines = source.splitlines(keepends=True)
    dot = "." if relative else ""

    def sibling(name: str) -> str:
        if name not in siblings:
            raise ValueError(f"a vendored module imports {package}.{name}, which its method does not list")
        return name.rpartition(".")[2]

    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            own = [a.name for a in node.names if a.name == package or a.name.startswith(package + ".")]
            if own:
                raise ValueError(f"write 'from {package} import ...' instead of 'import {own[0]}' in a method module")
        if not isinstance(node, ast.ImportFrom):
            continue
        module = node.module or ""
        if node.level == 0 and module != package and not module.startswith(package + "."):
            continue
        inner = module if node.level else module[len(package) + 1 :]
        first = lines[node.lineno - 1]
        head, tail = first[: node.col_offset], first[node.col_offset :]
        if inner:
            changed = re.sub(r"from\s+[.\w]+\s+import", f"from {dot}{sibling(inner)} import", tail, count=1)
        elif relative:
            for alias in node.names:
                sibling(alias.name)
            changed = re.sub(r"from\s+[.\w]+\s+import", "from . import", tail, count=1)
        else:
            for alias in node.names:
                sibling(alias.name)
            changed = re.sub(r"from\s+[.\w]+\s+import", "import", tail, count=1)
        lines[node.lineno - 1] = head + changed
    return "".join(lines)


def _source_commit(paper: Paper, folder: Path) -> str:
    """The commit that the installed package comes from, where its installer or a checkout knows it."""
    try:
        recorded = distribution(paper.distribution).read_text("direct_url.json")
    except PackageNotFoundError:
        recorded = None
    commit = json.loads(recorded).get("vcs_info", {}).get("commit_id") if recorded else None
    if commit:
        return commit
    command = ["git", "-C", str(folder), "log", "-1", "--format=%H", "--", "."]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
    except FileNotFoundError:
        return ""
    return done.stdout.strip()


def _rendered(paper: Paper, method: Method, relative: bool) -> dict[str, str]:
    """File name -> content with its header."""
    folder = Path(str(files(paper.package)))
    siblings = [".".join(PurePosixPath(file).with_suffix("").parts) for file in method.files]
    commit = _source_commit(paper, folder)
    rendered = {}
    for file in method.files:
        body = rewrite_imports((folder / file).read_text("utf-8"), paper.package, siblings, relative)
        record = {
            "package": paper.slug,
            "version": distribution_version(paper),
            "method": method.name,
            "file": file,
            "licence": "MIT",
            "sha256": _digest(body),
            "commit": commit or None,
            "relative": relative,
        }
        header = _HEADER.format(
            package=paper.slug,
            version=record["version"],
            method=method.name,
            licence_file=LICENCE_FILE,
            record=json.dumps(record),
        )
        rendered[PurePosixPath(file).name] = header + body
    return rendered


def _digest(body: str) -> str:
    return hashlib.sha256(body.encode()).hexdigest()


def _parse(text: str) -> tuple[dict, str]:
    """The header record and the body of a vendored file's text; an empty record for any other text."""
    found = _RECORD.match(text)
    if not found:
        return {}, text
    return json.loads(found[1]), text[found.end() :]


def _read(path: Path) -> tuple[dict, str]:
    try:
        return _parse(path.read_text("utf-8", errors="replace"))
    except ValueError as error:
        raise InputError(f"{path} has a damaged papershelf header: {error}") from error


def find_method(what: str) -> tuple[Paper, Method]:
    """The paper and method behind ``package:method``."""
    package, colon, name = what.partition(":")
    if not colon:
        paper = find_paper(package)
        names = ", ".join(f"{paper.slug}:{m.name}" for m in paper.methods)
        raise InputError(f"expected package:method, got {what!r}; {paper.slug} has {names}")
    paper = find_paper(package)
    return paper, paper.method(name)


def vendor(paper: Paper, method: Method, folder: Path, force: bool = False) -> list[Path]:
    """Copy a method's files into a folder.

    The imports become relative when the folder is a package (has an ``__init__.py``), else they name the files.

    Args:
        paper: the paper.
        method: one of its methods.
        folder: destination, made where missing.
        force: overwrite files that are not ours or were edited.

    Returns:
        The files written.

    Raises:
        InputError: if a destination file exists and is not an unedited vendored copy; nothing is written then.
    """
    folder = Path(folder)
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{folder} is a file; name a folder to copy into")
    rendered = _rendered(paper, method, relative=(folder / "__init__.py").exists())
    for name in rendered:
        path = folder / name
        if path.exists() and not force:
            record, body = _read(path)
            if not record:
                raise InputError(f"{path} exists and was not put there by papershelf; --force overwrites it")
            if _digest(body) != record["sha256"]:
                raise InputError(f"{path} was edited here; --force overwrites the edits")
    folder.mkdir(parents=True, exist_ok=True)
    written = [atomic_write(folder / name, content) for name, content in rendered.items()]
    return [*written, atomic_write(folder / LICENCE_FILE, MIT)]


def check(folder: Path) -> list[Status]:
    """The state of every vendored file in a folder.

    Raises:
        InputError: if the folder holds none.
    """
    folder = Path(folder)
    statuses = []
    for path in sorted(folder.glob("*.py")) if folder.is_dir() else ():
        record, body = _read(path)
        if not record:
            continue
        states = []
        if _digest(body) != record["sha256"]:
            states.append("modified here")
        try:
            paper, method = find_method(f"{record['package']}:{record['method']}")
            upstream = _rendered(paper, method, record["relative"]).get(path.name)
        except InputError:
            states.append("upstream not installed")
        else:
            if upstream is None or _digest(_parse(upstream)[1]) != record["sha256"]:
                states.append("outdated upstream")
        statuses.append(
            Status(path, record["package"], record["method"], record["version"], ", ".join(states) or "unchanged")
        )
    if not statuses:
        raise InputError(f"{folder} holds no files vendored by papershelf")
    return statuses


def update(folder: Path, force: bool = False) -> list[Path]:
    """Bring a folder's vendored files to the installed versions.

    Raises:
        InputError: if a file was edited here and ``force`` is not set, or its package is not installed; nothing is
            written then.
    """
    statuses = check(folder)
    for status in statuses:
        if status.modified and not force:
            raise InputError(f"{status.path} was edited here; --force overwrites the edits")
        if "not installed" in status.state:
            raise InputError(f"{status.path} comes from {status.package}, which is not installed: install it to update")
    wanted = dict.fromkeys((s.package, s.method) for s in statuses if s.outdated or s.modified)
    written: list[Path] = []
    for package, name in wanted:
        written += vendor(*find_method(f"{package}:{name}"), folder, force=force)
    return list(dict.fromkeys(written))
