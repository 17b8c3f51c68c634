"""What every package of the shelf must be."""

import re
import sys
from importlib.metadata import version

import pytest
from workspace import members

from papershelf import papers
from papershelf.vendor import vendor

MEMBERS = members()
PACKAGES = MEMBERS[1:]
METHODS = [(paper, method) for paper in papers().values() for method in paper.methods]

BLOCKED = """
import sys
class Block:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {blocked!r}:
            raise ImportError(name + " is blocked")
sys.meta_path.insert(0, Block())
{imports}
"""


def by_name(member):
    return member.name


@pytest.mark.parametrize("member", MEMBERS, ids=by_name)
def test_installed_version_and_changelog_agree(member):
    assert version(member.distribution) == member.version
    text = (member.folder / "CHANGELOG.md").read_text()
    titles = re.findall(r"^## (\S+)", text, re.MULTILINE)
    assert titles[0] in (member.version, "Unreleased")
    if titles[0] == "Unreleased":
        assert len(titles) == 1 or titles[1] == member.version


@pytest.mark.parametrize("member", MEMBERS, ids=by_name)
def test_readme_has_its_sections_and_code_that_the_tests_run(member):
    text = (member.folder / "README.md").read_text()
    for section in ("Install", "Use", "Command line", "Limits"):
        assert f"\n## {section}\n" in text, section
    assert "```python\n" in text
    if member in PACKAGES:
        assert "\n## Measured results\n" in text
        assert "\n## Citation\n" in text


@pytest.mark.parametrize("member", MEMBERS, ids=by_name)
def test_it_declares_what_it_imports(member, call):
    call(sys.executable, "-m", "deptry", "src", cwd=member.folder)


@pytest.mark.parametrize("member", MEMBERS, ids=by_name)
def test_it_has_licence_types_marker_and_lean_dependencies(member):
    assert (member.folder / "LICENSE").read_text().startswith("MIT License")
    assert (member.folder / "src" / member.package / "py.typed").exists()
    assert set(member.internal) <= {"papershelf"}


@pytest.mark.parametrize("member", PACKAGES, ids=by_name)
def test_its_entry_point_gives_a_paper_with_at_least_three_claims(member):
    (paper,) = [p for p in papers().values() if p.distribution == member.distribution]
    assert paper.package == member.package
    assert len(paper.claims) >= 3
    assert paper.methods
    assert paper.slug in member.commands


@pytest.mark.parametrize("member", MEMBERS, ids=by_name)
def test_help_works_for_every_command(member, call, tmp_path):
    program = (
        "import importlib, sys, typer\nfrom typer.testing import CliRunner\n"
        "module, _, name = sys.argv[1].partition(':')\napp = getattr(importlib.import_module(module), name)\n"
        "runner, group = CliRunner(), typer.main.get_command(app)\n"
        "for words in [[], *[[c] for c in group.commands]]:\n"
        "    done = runner.invoke(app, [*words, '--help'])\n"
        "    assert done.exit_code == 0 and 'Usage' in done.output, (words, done.output)\n"
        "print(len(group.commands))"
    )
    import tomllib

    scripts = tomllib.loads((member.folder / "pyproject.toml").read_text())["project"]["scripts"]
    for target in scripts.values():
        assert int(call(sys.executable, "-c", program, target, cwd=tmp_path).split()[-1]) >= 3


@pytest.mark.parametrize(
    ("paper", "method"), METHODS, ids=lambda value: getattr(value, "slug", getattr(value, "name", ""))
)
@pytest.mark.parametrize("as_package", [False, True], ids=["flat", "package"])
def test_each_method_runs_where_the_shelf_cannot_be_imported(paper, method, as_package, tmp_path, call):
    folder = tmp_path / "mine"
    folder.mkdir()
    if as_package:
        (folder / "__init__.py").touch()
    written = [path for path in vendor(paper, method, folder) if path.suffix == ".py"]
    prefix = "mine." if as_package else ""
    blocked = ["papershelf", paper.package]
    flat_names = {path.stem for path in written}
    if not as_package and paper.package in flat_names:
        blocked.remove(paper.package)
    imports = "\n".join(f"import {prefix}{path.stem}" for path in written)
    call(sys.executable, "-c", BLOCKED.format(blocked=blocked, imports=imports), cwd=tmp_path if as_package else folder)


@pytest.mark.parametrize("member", PACKAGES, ids=by_name)
def test_importing_it_is_light(member, call):
    """No package drags torch, transformers, ray or matplotlib in when it is imported, unless it is built on torch."""
    declared = (member.folder / "pyproject.toml").read_text()
    heavy = [
        name for name in ("torch", "transformers", "ray", "dask", "open3d", "mujoco") if f'"{name}>=' not in declared
    ]
    program = f"import sys, {member.package}; print([n for n in {heavy!r} if n in sys.modules])"
    assert call(sys.executable, "-c", program).strip() == "[]"
