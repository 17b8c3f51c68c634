"""Make a new package that passes every check at once.

Usage: tools/shelf python tools/new_package.py NAME [--title "The paper's title"]

NAME is the folder and the command (lower case, words joined by -); the distribution is papershelf-NAME.
"""

from __future__ import annotations

import argparse
import re
from pathlib import Path

from workspace import ROOT, fail

FILES = {
    "pyproject.toml": """[project]
name = "papershelf-@NAME@"
version = "0.1.0"
description = "@TITLE@"
readme = "README.md"
requires-python = ">=3.11"
license = "MIT"
license-files = ["LICENSE"]
dependencies = ["numpy>=1.26", "papershelf>=0.1,<0.2"]

[project.scripts]
@NAME@ = "@PACKAGE@.cli:app"

[project.entry-points."papershelf.papers"]
@NAME@ = "@PACKAGE@.claims:PAPER"

[dependency-groups]
dev = ["hypothesis>=6.100", "pytest>=8.3", "sybil>=9"]

[tool.uv.sources]
papershelf = { workspace = true }

[tool.uv.build-backend]
module-name = "@PACKAGE@"

[build-system]
requires = ["uv_build>=0.8,<1"]
build-backend = "uv_build"
""",
    "CHANGELOG.md": """# Changelog

## Unreleased

- First version.
""",
    "README.md": """# @NAME@

@TITLE@: say in two sentences what it does for its user.

## Install

```
pip install papershelf-@NAME@
```

## Use

```python
from @PACKAGE@ import mean

assert mean([1.0, 2.0, 3.0]) == 2.0
```

## Command line

```
@NAME@ info
@NAME@ reproduce
@NAME@ vendor method FOLDER
```

## Measured results

`@NAME@ reproduce` prints them.

## Limits

Say what it does not do.

## Citation

`@NAME@ info` prints the BibTeX entry.
""",
    "src/@PACKAGE@/py.typed": "",
    "src/@PACKAGE@/__init__.py": '''"""@TITLE@."""

from importlib.metadata import version

from @PACKAGE@.method import mean

__version__ = version("papershelf-@NAME@")

__all__ = ["__version__", "mean"]
''',
    "src/@PACKAGE@/method.py": '''"""The paper's mathematics; start here."""

from collections.abc import Sequence

import numpy as np


def mean(values: Sequence[float] | np.ndarray) -> float:
    """The arithmetic mean.

    Args:
        values: at least one number.

    Raises:
        ValueError: if there is none.
    """
    if len(values) == 0:
        raise ValueError("expected at least one value, got none")
    return float(np.mean(values))
''',
    "src/@PACKAGE@/claims.py": '''"""The paper, its claims and its methods."""

import numpy as np

from @PACKAGE@.method import mean
from papershelf import Claim, Method, Outcome, Paper, Run


def measure_bias(run: Run) -> Outcome:
    """C1: the mean of a centred sample is near 0."""
    size = run.size(tiny=1000, quick=100_000)
    value = mean(run.streams.numpy("sample").normal(size=size))
    return Outcome(holds=abs(value) < 4 / size**0.5, measured=f"{value:.2g}", values={"mean": value})


def measure_variance(run: Run) -> Outcome:
    """C2: the variance of the mean falls as 1/n."""
    rng = run.streams.numpy("sample")
    variances = [np.var([mean(rng.normal(size=n)) for _ in range(run.size(tiny=200, quick=2000))]) for n in (10, 100)]
    ratio = float(variances[0] / variances[1])
    return Outcome(holds=7 < ratio < 14, measured=f"ratio {ratio:.1f}", values={"ratio": ratio})


def measure_shift(run: Run) -> Outcome:
    """C3: the mean moves with the sample."""
    values = run.streams.numpy("sample").normal(size=100)
    gap = abs(mean(values + 3) - mean(values) - 3)
    return Outcome(holds=gap < 1e-12, measured=f"gap {gap:.1g}", values={"gap": gap})


PAPER = Paper(
    slug="@NAME@",
    package="@PACKAGE@",
    distribution="papershelf-@NAME@",
    title="@TITLE@",
    authors=("Ann Author",),
    year=2026,
    venue="International Conference on Machine Learning",
    summary="Say what it does for its user.",
    claims=(
        Claim(
            id="C1",
            statement="The mean is unbiased",
            paper="not available",
            criterion="within four standard errors of 0",
            measure=measure_bias,
        ),
        Claim(
            id="C2",
            statement="Its variance falls as 1/n",
            paper="not available",
            criterion="ratio of variances at n = 10 and 100 between 7 and 14",
            measure=measure_variance,
        ),
        Claim(
            id="C3",
            statement="It is equivariant",
            paper="not available",
            criterion="gap below 1e-12",
            measure=measure_shift,
        ),
    ),
    methods=(Method(name="method", summary="the mean", files=("method.py",), requires=("numpy",)),),
)
''',
    "src/@PACKAGE@/cli.py": '''"""The ``@NAME@`` command."""

from @PACKAGE@.claims import PAPER
from papershelf import cli

app = cli.app(PAPER)
''',
    "tests/test_@PACKAGE@.py": '''"""Facts of the method, and the claims at a small size."""

import pytest

from @PACKAGE@ import mean
from @PACKAGE@.claims import PAPER
from papershelf import Run


def test_mean_is_equivariant():
    assert mean([1.0, 2.0, 6.0]) == 3.0
    with pytest.raises(ValueError, match="got none"):
        mean([])


@pytest.mark.parametrize("claim", PAPER.claims, ids=lambda claim: claim.id)
def test_claims_hold_at_a_small_size(claim, tmp_path):
    assert claim.measure(Run(scale="tiny", out=tmp_path)).holds
''',
}


def make_package(name: str, title: str, root: Path = ROOT) -> Path:
    """Write the scaffold; returns its folder."""
    if not re.fullmatch(r"[a-z][a-z0-9]*(-[a-z0-9]+)*", name):
        fail(f"a name is lower case, its words joined by -, got {name!r}")
    folder = root / "packages" / name
    if folder.exists():
        fail(f"packages/{name} exists already")
    package = name.replace("-", "_")

    def filled(text: str) -> str:
        return text.replace("@NAME@", name).replace("@PACKAGE@", package).replace("@TITLE@", title)

    for path, content in FILES.items():
        target = folder / filled(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(filled(content))
    (folder / "LICENSE").write_text((root / "LICENSE").read_text())
    return folder


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name")
    parser.add_argument("--title", default="The paper's title")
    given = parser.parse_args()
    folder = make_package(given.name, given.title)
    print(f"made {folder.relative_to(ROOT)}; next: uv sync --all-packages, then tools/table.py for the root README")


if __name__ == "__main__":
    main()
