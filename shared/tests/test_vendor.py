"""Vendored files run alone; drift is told apart; nothing is half-written."""

import shutil
import subprocess
import sys

import pytest

from papershelf import InputError, vendor
from papershelf import paper as papers_module
from papershelf.cli import vendor_command


@pytest.fixture
def shelf(paper, monkeypatch):
    monkeypatch.setattr(papers_module, "papers", lambda: {"made-up": paper})
    return paper


def test_vendored_files_run_where_the_package_cannot_be_imported(shelf, tmp_path):
    written = vendor.vendor(shelf, shelf.method("streams"), tmp_path / "mine")
    assert [path.name for path in written] == ["random.py", "LICENSE.papershelf"]
    shutil.move(tmp_path / "mine/random.py", tmp_path / "mine/named_streams.py")
    program = (
        "import sys\nclass Block:\n def find_spec(self, name, *a):\n"
        "  if name.split('.')[0] == 'papershelf': raise ImportError(name)\n"
        "sys.meta_path.insert(0, Block())\nimport named_streams\nprint(named_streams.Streams(0).integer('a'))"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path / "mine", capture_output=True, text=True)
    from papershelf import Streams

    assert done.stdout.strip() == str(Streams(0).integer("a")), done.stderr


def test_the_header_has_package_version_licence_and_hash(shelf, tmp_path):
    vendor.vendor(shelf, shelf.method("stats"), tmp_path)
    record, body = vendor._parse((tmp_path / "stats.py").read_text())
    assert record["sha256"] == vendor._digest(body)
    assert (record["package"], record["licence"], record["file"]) == ("made-up", "MIT", "stats.py")
    assert "MIT License" in (tmp_path / "LICENSE.papershelf").read_text()


def test_check_tells_unchanged_modified_and_outdated_apart(shelf, tmp_path, monkeypatch, capsys):
    vendor.vendor(shelf, shelf.method("stats"), tmp_path)
    assert [s.state for s in vendor.check(tmp_path)] == ["unchanged"]
    path = tmp_path / "stats.py"
    path.write_text(path.read_text() + "# mine\n")
    assert [s.state for s in vendor.check(tmp_path)] == ["modified here"]
    with pytest.raises(InputError, match="was edited here; --force"):
        vendor.update(tmp_path)
    assert path.read_text().endswith("# mine\n")
    original = vendor.rewrite_imports
    monkeypatch.setattr(vendor, "rewrite_imports", lambda source, *rest: original(source, *rest) + "# newer\n")
    assert [s.state for s in vendor.check(tmp_path)] == ["modified here, outdated upstream"]
    vendor.update(tmp_path, force=True)
    assert path.read_text().endswith("# newer\n")
    monkeypatch.setattr(vendor, "rewrite_imports", original)
    assert [s.state for s in vendor.check(tmp_path)] == ["outdated upstream"]
    assert vendor_command(str(tmp_path), None, True, False, False) == 1
    assert "outdated upstream" in capsys.readouterr().out
    vendor.update(tmp_path)
    assert vendor_command(str(tmp_path), None, True, False, False) == 0


def test_foreign_and_edited_files_are_not_overwritten(shelf, tmp_path):
    (tmp_path / "stats.py").write_text("mine = 1\n")
    with pytest.raises(InputError, match="was not put there by papershelf"):
        vendor.vendor(shelf, shelf.method("stats"), tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["stats.py"]
    vendor.vendor(shelf, shelf.method("stats"), tmp_path, force=True)
    assert "mine" not in (tmp_path / "stats.py").read_text()


def test_upstream_that_is_not_installed_is_said(shelf, tmp_path, monkeypatch):
    vendor.vendor(shelf, shelf.method("stats"), tmp_path)
    monkeypatch.setattr(papers_module, "papers", dict)
    assert [s.state for s in vendor.check(tmp_path)] == ["upstream not installed"]
    with pytest.raises(InputError, match="which is not installed"):
        vendor.update(tmp_path)


def test_bad_requests_say_what_was_expected(shelf, tmp_path):
    with pytest.raises(InputError, match="expected package:method, got 'made-up'; made-up has made-up:streams"):
        vendor.find_method("made-up")
    with pytest.raises(InputError, match="no method 'x'; it has streams, stats"):
        vendor.find_method("made-up:x")
    with pytest.raises(InputError, match="no paper 'other' is installed; installed: made-up"):
        vendor.find_method("other:x")
    with pytest.raises(InputError, match="holds no files vendored"):
        vendor.check(tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="is a file"):
        vendor.vendor(shelf, shelf.method("stats"), tmp_path / "file")
    with pytest.raises(InputError, match="expected a method and a folder"):
        vendor_command(None, None, False, False, False)


@pytest.mark.parametrize(
    ("line", "flat", "relative"),
    [
        ("from pack.a import x, y", "from a import x, y", "from .a import x, y"),
        ("from pack.sub.b import (\n    x,\n)", "from b import (\n    x,\n)", "from .b import (\n    x,\n)"),
        ("from .a import x", "from a import x", "from .a import x"),
        ("from pack import a", "import a", "from . import a"),
        ("import numpy as np", "import numpy as np", "import numpy as np"),
        ("from packing import a", "from packing import a", "from packing import a"),
    ],
)
def test_sibling_imports_are_rewritten(line, flat, relative):
    for expected, is_relative in ((flat, False), (relative, True)):
        source = f"if True:\n    z = 1\n{line}\n"
        assert (
            vendor.rewrite_imports(source, "pack", ["a", "sub.b"], is_relative) == f"if True:\n    z = 1\n{expected}\n"
        )


def test_a_method_that_does_not_list_what_it_imports_is_refused():
    with pytest.raises(ValueError, match=r"imports pack\.c, which its method does not list"):
        vendor.rewrite_imports("from pack.c import x\n", "pack", ["a"], False)
    with pytest.raises(ValueError, match="instead of"):
        vendor.rewrite_imports("import pack.a\n", "pack", ["a"], False)
