"""What is true of the repository as a whole."""

import re
import subprocess
import sys

import layers
import pytest
import table
import yaml
from workspace import members


def tracked(root):
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=root,
        capture_output=True,
        text=True,
    )
    return [name for name in listed.stdout.split("\0") if name and (root / name).is_file()]


def text_of(path):
    try:
        return path.read_text("utf-8")
    except UnicodeDecodeError:
        return ""


def test_no_lock_file_is_committed(root):
    names = [name.rpartition("/")[2] for name in tracked(root)]
    assert not {"uv.lock", "poetry.lock", "package-lock.json"} & set(names)


def test_no_index_address_and_no_path_of_a_machine_is_committed(root):
    hosts = re.compile(
        "|".join(["py" + r"pi\.org", "python" + r"hosted\.org", r"registry\.npm" + "js", r"deb\.debian" + r"\.org"])
    )
    paths = re.compile(r"(?<![\w.])/(?:ro" + r"ot|ho" + r"me/\w+|wo" + r"rk|Us" + r"ers/\w+)/")
    for name in tracked(root):
        text = text_of(root / name)
        assert not hosts.search(text), name
        assert not paths.search(text), name


def test_no_file_is_over_one_mebibyte_except_named_data_archives(root):
    big = [name for name in tracked(root) if (root / name).stat().st_size > 1 << 20]
    assert all(re.search(r"/data/[\w.-]+\.(npz|zip|parquet|safetensors)$", name) for name in big), big
    assert all((root / name).stat().st_size < 4 << 20 for name in big), big


def test_the_shelfs_table_is_up_to_date(root):
    text = (root / "README.md").read_text()
    assert table.BLOCK.sub(lambda match: match[1] + table.table() + match[2], text) == text


def test_layers_hold(call):
    call(sys.executable, "tools/layers.py")


def test_a_forbidden_import_is_seen(tmp_path, call, copy):
    module = copy / "packages/oim/src/oim/ic.py"
    module.write_text(module.read_text() + "\nimport papershelf  # noqa\n")
    (tmp_path / "layers.ini").write_text(layers.configuration(members()))
    paths = ":".join(str(copy / m.folder.relative_to(layers.ROOT) / "src") for m in members())
    told = call("lint-imports", "--config", tmp_path / "layers.ini", "--no-cache", cwd=copy, code=1, PYTHONPATH=paths)
    assert "oim.ic -> papershelf" in told


def test_workflows_pass_actionlint(root, call):
    workflows = sorted((root / ".github/workflows").glob("*.yml"))
    assert {path.name for path in workflows} == {"ci.yml", "release.yml"}
    call("actionlint", "-shellcheck=", *workflows)
    ci, release = (yaml.safe_load(path.read_text()) for path in workflows)
    assert "concurrency" in ci
    assert release[True]["push"]["tags"] == ["*-v[0-9]*"]


def test_shelf_says_how_it_is_used(root, call):
    assert "usage: tools/shelf COMMAND" in call("tools/shelf", code=2)
    assert len((root / "tools/shelf").read_text().splitlines()) < 30


def test_the_test_command_of_the_readme_is_what_ci_runs(root):
    assert "tools/shelf pytest" in (root / "README.md").read_text()
    assert "tools/shelf pytest" in (root / ".ci/run").read_text()


@pytest.mark.parametrize("name", ["affected", "bench", "check", "layers", "new_package", "release", "table"])
def test_every_tool_explains_itself(name, call):
    assert "Usage: tools/shelf" in call(sys.executable, f"tools/{name}.py", "--help")
