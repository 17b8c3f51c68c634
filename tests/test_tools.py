"""The maintainers' tools, run for real in copies of the repository."""

import json
import os
import shutil
import sys

import bench
import pytest
import release
import workspace
from affected import affected

PYTHON = sys.executable


def test_dependents_of_a_change_are_affected():
    known = workspace.members()
    names = [m.name for m in known]

    def of(*files):
        return [m.name for m in affected(list(files), known)]

    assert of("packages/oim/src/oim/ic.py") == ["oim"]
    assert of("shared/src/papershelf/files.py") == names
    assert of("tools/check.py") == names
    assert of("README.md") == []
    assert of("packages/oim-other/x.py") == []


def test_affected_reads_git(copy, call):
    (copy / "packages/oim/README.md").write_text("changed")
    assert json.loads(call(PYTHON, "tools/affected.py", "--base", "main", "--json", cwd=copy)) == ["oim"]
    call("git", "checkout", "-q", "-b", "feature", cwd=copy)
    call("git", "commit", "-qam", "x", cwd=copy)
    (copy / "packages/oim/new.txt").write_text("new")
    assert call(PYTHON, "tools/affected.py", "--base", "main", cwd=copy).split() == ["oim"]
    assert "affected.py: error" in call(PYTHON, "tools/affected.py", "--base", "nothing", cwd=copy, code=2)


@pytest.mark.workspace
@pytest.mark.network
def test_a_new_package_passes_every_check_at_once(copy, call):
    for folder in (copy / "packages").iterdir():
        if folder.name != "oim":
            shutil.rmtree(folder)
    call(PYTHON, "tools/new_package.py", "my-paper", "--title", "A New Paper", cwd=copy)
    package = copy / "packages/my-paper"
    assert 'title="A New Paper"' in (package / "src/my_paper/claims.py").read_text()
    call("ruff", "check", "packages/my-paper", cwd=copy)
    call("ruff", "format", "--check", "packages/my-paper", cwd=copy)
    call("ty", "check", "packages/my-paper", cwd=copy)
    uv = [workspace.uv(), "run", "--isolated", "--quiet", "--package", "papershelf-my-paper"]
    told = call(*uv, "python", "-m", "pytest", "-q", "packages/my-paper", cwd=copy)
    assert "5 passed" in told
    lines = call(*uv, "my-paper", "reproduce", "--json", cwd=copy).splitlines()
    assert [json.loads(line)["holds"] for line in lines] == [True, True, True]
    taken = call(PYTHON, "tools/new_package.py", "my-paper", cwd=copy, code=2)
    assert taken.strip() == "new_package.py: error: packages/my-paper exists already"
    assert "lower case" in call(PYTHON, "tools/new_package.py", "My_Paper", cwd=copy, code=2)


@pytest.mark.workspace
@pytest.mark.network
def test_a_release_bumps_dates_tags_and_builds(copy, call):
    words = [PYTHON, "tools/release.py", "oim", "--bump", "minor", "--no-check"]
    assert "no '## Unreleased' part" in call(*words, cwd=copy, code=2)
    changelog = copy / "packages/oim/CHANGELOG.md"
    changelog.write_text(changelog.read_text().replace("# Changelog\n", "# Changelog\n\n## Unreleased\n\n- More.\n", 1))
    assert "the tree is dirty" in call(*words, cwd=copy, code=2)
    call("git", "commit", "-qam", "more", cwd=copy)
    told = call(*words, cwd=copy, UV=workspace.uv())
    before = next(m.version for m in workspace.members() if m.name == "oim")
    after = release.bumped(before, "minor")
    assert f"tagged oim-v{after}; built papershelf_oim-{after}-py3-none-any.whl, papershelf_oim-{after}.tar.gz" in told
    assert call("git", "tag", cwd=copy).split() == [f"oim-v{after}"]
    assert f'version = "{after}"' in (copy / "packages/oim/pyproject.toml").read_text()
    assert f"## {after} - 20" in changelog.read_text()
    assert call("git", "status", "--porcelain", cwd=copy) == ""


def test_version_bumps():
    assert [release.bumped("1.2.3", part) for part in ("major", "minor", "patch")] == ["2.0.0", "1.3.0", "1.2.4"]


def test_benchmark_tables_go_between_their_markers():
    text = "a\n<!-- bench:x -->\nold\n<!-- /bench:x -->\nb\n"
    assert bench.put_between_markers(text, "x", "new") == "a\n<!-- bench:x -->\nnew\n<!-- /bench:x -->\nb\n"
    with pytest.raises(ValueError, match="bench:y"):
        bench.put_between_markers(text, "y", "new")
    machine = {"processor": "P", "python": "3", "numpy": "2"}
    shown = bench.rendered({"tables": {"T": "| a |"}, "machine": machine, "date": "2026-01-01"}, "cmd")
    assert shown == "T\n\n| a |\n\nP, Python 3, numpy 2, 2026-01-01: `cmd`"


def test_unknown_members_are_refused(call):
    assert "no member 'nothing'; members: shared" in call(PYTHON, "tools/check.py", "nothing", code=2)


@pytest.mark.workspace
@pytest.mark.network
def test_wheels_install_with_pip_as_the_readme_says(root, call, tmp_path):
    for name in ("papershelf", "papershelf-oim"):
        call(workspace.uv(), "build", "--quiet", "--wheel", "--package", name, "--out-dir", tmp_path / "wheels")
    line = "pip install --find-links wheels papershelf papershelf-oim"
    assert line in (root / "README.md").read_text()
    call(PYTHON, "-m", "venv", "venv", cwd=tmp_path)
    call("venv/bin/python", "-m", *line.replace("pip install", "pip install --quiet").split(), cwd=tmp_path)
    assert call("venv/bin/oim", "seeds", "karate", "-k", "2", cwd=tmp_path).startswith("seeds")
    call("venv/bin/papershelf", "vendor", "oim:ic", "mine", cwd=tmp_path)
    assert "unchanged" in call("venv/bin/papershelf", "vendor", "--check", "mine", cwd=tmp_path)


@pytest.mark.workspace
@pytest.mark.network
def test_shelf_installs_uv_where_there_is_none(copy, call, tmp_path):
    """A machine with git and a Python only: uv comes into a private environment of the checkout."""
    for folder in (copy / "packages").iterdir():
        if folder.name != "oim":
            shutil.rmtree(folder)
    tools = tmp_path / "bin"
    tools.mkdir()
    for name in ("git", "dirname", "sh", "env"):
        (tools / name).symlink_to(shutil.which(name))
    (tools / "python3").symlink_to(os.path.realpath(PYTHON))
    program = (
        (copy / "tools/shelf")
        .read_text()
        .replace('exec "$uv" run --quiet --all-packages -- "$@"', 'exec "$uv" --version')
    )
    (copy / "tools/shelf").write_text(program)
    assert call("tools/shelf", "true", cwd=copy, PATH=str(tools)).startswith("uv ")
    assert (copy / ".shelf/bin/uv").exists()
