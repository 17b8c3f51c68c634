"""Atomic writes under a real kill, hostile archives, checkpoints, and assets out of registries."""

import io
import os
import signal
import subprocess
import sys
import tarfile
import threading
import time
import zipfile
from importlib.metadata import version
from pathlib import Path

import iniconfig
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from papershelf import InputError
from papershelf.files import (
    atomic_path,
    atomic_write,
    debian_assets,
    extract_archive,
    load_checkpoint,
    registry_asset,
    save_checkpoint,
    sha256,
)

PIECE = (f"iniconfig=={version('iniconfig')}", "iniconfig/__init__.py")
INSTALLED = Path(iniconfig.__file__)


def test_a_kill_between_write_and_rename_leaves_the_old_file(tmp_path):
    target = tmp_path / "result.txt"
    target.write_text("old")
    program = (
        "import sys, time; from pathlib import Path; from papershelf.files import atomic_path\n"
        "with atomic_path(Path(sys.argv[1])) as t:\n t.write_text('new'); print('written', flush=True); time.sleep(60)"
    )
    child = subprocess.Popen([sys.executable, "-c", program, str(target)], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    assert child.stdout.readline() == "written\n"
    child.send_signal(signal.SIGKILL)
    child.wait()
    child.stdout.close()
    assert target.read_text() == "old"


def test_an_error_while_writing_leaves_nothing(tmp_path):
    def write():
        with atomic_path(tmp_path / "a.txt") as temporary:
            temporary.write_text("half")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        write()
    assert list(tmp_path.iterdir()) == []


def test_written_files_have_ordinary_permissions(tmp_path):
    umask = os.umask(0)
    os.umask(umask)
    assert atomic_write(tmp_path / "a.txt", "ü").stat().st_mode & 0o777 == 0o666 & ~umask
    assert (tmp_path / "a.txt").read_text("utf-8") == "ü"


def make_zip(path, entries, link=None):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in entries.items():
            archive.writestr(name, content)
        if link:
            info = zipfile.ZipInfo(link)
            info.external_attr = 0o120777 << 16
            archive.writestr(info, "/etc/passwd")
    return path


def make_tar(path, entries, special=None):
    with tarfile.open(path, "w:gz") as archive:
        for name, content in entries.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
        if special:
            info = tarfile.TarInfo("special")
            info.type, info.linkname = special, "/etc/passwd"
            archive.addfile(info)
    return path


@pytest.mark.parametrize("make", [make_zip, make_tar])
def test_an_honest_archive_is_unpacked_whole(make, tmp_path):
    archive = make(tmp_path / "a.bin", {"a/b.txt": b"one", "c.txt": b"two"})
    folder = extract_archive(archive, tmp_path / "out")
    assert (folder / "a/b.txt").read_bytes() == b"one"
    assert (folder / "c.txt").read_bytes() == b"two"


@pytest.mark.parametrize("make", [make_zip, make_tar])
@pytest.mark.parametrize("name", ["../evil", "a/../../evil", "/evil", "C:/evil", "..\\evil"])
def test_names_that_would_escape_are_refused(make, name, tmp_path):
    archive = make(tmp_path / "a.bin", {"good": b"1", name: b"2"})
    with pytest.raises(InputError, match="leave the target folder"):
        extract_archive(archive, tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["a.bin"]


@pytest.mark.parametrize("special", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.FIFOTYPE])
def test_links_and_devices_in_tars_are_refused(special, tmp_path):
    with pytest.raises(InputError, match="special"):
        extract_archive(make_tar(tmp_path / "a.tgz", {"good": b"1"}, special), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_links_in_zips_are_refused(tmp_path):
    with pytest.raises(InputError, match="links are refused"):
        extract_archive(make_zip(tmp_path / "a.zip", {}, link="passwd"), tmp_path / "out")


@pytest.mark.parametrize("make", [make_zip, make_tar])
def test_bombs_are_refused_while_they_unpack(make, tmp_path):
    bomb = make(tmp_path / "a.bin", {"zeros": b"\0" * 5_000_000})
    assert bomb.stat().st_size < 50_000
    with pytest.raises(InputError, match="more bytes than the limit"):
        extract_archive(bomb, tmp_path / "out", max_bytes=1_000_000)
    many = make(tmp_path / "b.bin", {f"f{i}": b"" for i in range(50)})
    with pytest.raises(InputError, match="more files than the limit"):
        extract_archive(many, tmp_path / "out", max_files=20)
    assert not (tmp_path / "out").exists()


def test_damaged_or_foreign_files_are_refused(tmp_path):
    (tmp_path / "a.zip").write_bytes(b"hello")
    with pytest.raises(InputError, match="neither a zip nor a tar"):
        extract_archive(tmp_path / "a.zip", tmp_path / "out")
    whole = make_zip(tmp_path / "b.zip", {"a": os.urandom(10_000)}).read_bytes()
    (tmp_path / "c.zip").write_bytes(whole[:200] + b"x" * 50 + whole[250:])
    with pytest.raises(InputError, match="damaged"):
        extract_archive(tmp_path / "c.zip", tmp_path / "out")
    with pytest.raises(InputError, match="is not a file"):
        extract_archive(tmp_path / "none.zip", tmp_path / "out")


trees = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**60), 2**60) | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@given(tree=trees)
@settings(max_examples=60, deadline=None)
def test_checkpoints_return_what_was_saved(tree, tmp_path_factory):
    path = tmp_path_factory.mktemp("c") / "a.npz"
    assert load_checkpoint(save_checkpoint(path, tree)) == tree


def test_checkpoints_hold_arrays_and_tensors(tmp_path):
    torch = pytest.importorskip("torch")
    arrays = {"w": np.arange(6.0).reshape(2, 3), "pair": (np.int64(3), np.array([True]))}
    found = load_checkpoint(save_checkpoint(tmp_path / "a.npz", arrays))
    assert (found["w"] == arrays["w"]).all()
    assert found["pair"][0] == 3
    tensors = {"layer": {"w": torch.arange(4.0)}, "step": 7}
    found = load_checkpoint(save_checkpoint(tmp_path / "a.safetensors", tensors))
    assert torch.equal(found["layer"]["w"], tensors["layer"]["w"])
    assert found["step"] == 7


def test_checkpoints_never_unpickle(tmp_path):
    with pytest.raises(ValueError, match="plain types"):
        save_checkpoint(tmp_path / "a.npz", {"x": np.array([object()])})
    np.savez(tmp_path / "b.npz", x=np.array([{"a": 1}], dtype=object))
    with pytest.raises(InputError, match="damaged or no checkpoint"):
        load_checkpoint(tmp_path / "b.npz")
    with pytest.raises(InputError, match="no checkpoint at"):
        load_checkpoint(tmp_path / "none.npz")
    with pytest.raises(ValueError, match="ends in"):
        save_checkpoint(tmp_path / "a.pkl", {})


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("PAPERSHELF_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("PAPERSHELF_WHEELS", raising=False)
    return tmp_path / "cache"


@pytest.mark.network
def test_an_asset_is_downloaded_once_checked_and_cached(cache, monkeypatch):
    digest = sha256(INSTALLED)
    path = registry_asset(*PIECE, digest)
    assert path.read_bytes() == INSTALLED.read_bytes()
    monkeypatch.setenv("PATH", "")
    monkeypatch.setenv("UV", "")
    assert registry_asset(*PIECE, digest) == path


@pytest.mark.network
def test_several_processes_may_ask_for_an_asset_at_once(cache):
    digest = sha256(INSTALLED)
    found: list[Path] = []
    threads = [threading.Thread(target=lambda: found.append(registry_asset(*PIECE, digest))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 4
    assert len(set(found)) == 1


@pytest.mark.network
def test_a_wrong_checksum_or_member_is_refused_and_not_cached(cache):
    with pytest.raises(InputError, match=r"has SHA-256 .* expected 0000"):
        registry_asset(*PIECE, "0" * 64)
    with pytest.raises(InputError, match=r"has no file 'seven\.py'"):
        registry_asset(PIECE[0], "seven.py", "0" * 64)
    assert not list(cache.rglob("__init__.py"))


def test_offline_gives_one_clear_line_after_its_attempts(cache, monkeypatch):
    monkeypatch.setenv("UV_OFFLINE", "1")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("UV_CACHE_DIR", str(cache / "empty"))
    started = time.perf_counter()
    with pytest.raises(InputError, match=r"could not download .* set PAPERSHELF_WHEELS") as caught:
        registry_asset("papershelf-no-such-thing==1.0", "a", "0" * 64, attempts=2, wait=0.2)
    assert "\n" not in str(caught.value)
    assert time.perf_counter() - started > 0.2


def test_a_folder_of_wheels_serves_assets_offline(cache, tmp_path, monkeypatch):
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    make_zip(wheels / "my_data-1.0-py3-none-any.whl", {"my_data/a.txt": b"content"})
    monkeypatch.setenv("PAPERSHELF_WHEELS", str(wheels))
    monkeypatch.setenv("UV_OFFLINE", "1")
    digest = "ed7002b439e9ac845f22357d822bac1444730fbdb6016d3ec9432297b9ec9f73"
    assert registry_asset("my-data==1.0", "my_data/a.txt", digest).read_bytes() == b"content"


def test_assets_must_be_pinned(cache):
    with pytest.raises(InputError, match="pinned with =="):
        registry_asset("iniconfig", "iniconfig/__init__.py", "0" * 64)


@pytest.mark.network
def test_files_come_out_of_debian_packages_without_installing(cache):
    member = "usr/share/doc/hostname/copyright"
    path = debian_assets("hostname", {member: ""})[member]
    assert "GPL" in path.read_text()
    with pytest.raises(InputError, match="could not fetch the Debian package"):
        debian_assets("no-such-package-at-all", {"a": ""})
    with pytest.raises(InputError, match="has no file"):
        debian_assets("hostname", {"usr/none": ""})
