"""Measures claims one after the other, keeps what is finished on disk, and survives errors and interrupts."""

from __future__ import annotations

import json
import math
import os
import platform
import sys
import time
import traceback
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from papershelf.errors import InputError
from papershelf.files import atomic_write
from papershelf.paper import SCALES, Claim, Paper, Progress, Run, Scale, silent

T = TypeVar("T")

FILE = "claims.json"
# What `--json` prints of each claim.
PRINTED = (
    "package",
    "id",
    "scale",
    "statement",
    "paper",
    "criterion",
    "holds",
    "measured",
    "values",
    "seconds",
    "seed",
    "error",
)


@dataclass(frozen=True, kw_only=True)
class Result:
    """A claim and what became of it. ``holds`` is None where nothing was measured (then see ``error`` or ``recipe``).

    ``figures`` are paths relative to the results folder.
    """

    package: str
    id: str
    scale: str
    statement: str
    paper: str
    criterion: str
    holds: bool | None = None
    measured: str = ""
    values: Mapping[str, Any] = field(default_factory=dict)
    seconds: float = 0.0
    seed: int = 0
    error: str = ""
    figures: Sequence[str] = ()
    needs: str = ""
    recipe: str = ""
    version: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def status(self) -> str:
        """``held``, ``did not hold``, ``error``, or ``not measured``."""
        if self.error:
            return "error"
        if self.holds is None:
            return "not measured"
        return "held" if self.holds else "did not hold"

    def as_json(self, names: Sequence[str] = PRINTED) -> str:
        """One line of JSON with these fields."""
        return json.dumps({name: plain(getattr(self, name)) for name in names}, ensure_ascii=False)


def plain(value: Any) -> Any:
    """The JSON form of numbers, arrays and containers; non-finite numbers become null."""
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, np.ndarray):
        return plain(value.tolist())
    if isinstance(value, (list, tuple, set)):
        return [plain(item) for item in value]
    if isinstance(value, np.generic):
        return plain(value.item())
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    return str(value)


def machine() -> dict[str, str]:
    """What the measurements ran on."""
    processor = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        names = [line for line in cpuinfo.read_text().splitlines() if line.startswith("model name")]
        processor = names[0].partition(":")[2].strip() if names else processor
    return {
        "system": platform.platform(terse=True),
        "processor": f"{processor}, {os.cpu_count()} cores",
        "python": platform.python_version(),
        "numpy": np.__version__,
    }


def distribution_version(paper: Paper) -> str:
    """Installed version of a paper's package, or ``unknown``."""
    try:
        return version(paper.distribution)
    except PackageNotFoundError:
        return "unknown"


@contextmanager
def progress_bar() -> Generator[Progress]:
    """A progress bar on standard error while somebody looks at it, nothing otherwise."""
    if not sys.stderr.isatty():
        yield silent
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
    from rich.progress import Progress as Bars

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Bars(*columns, console=Console(stderr=True), transient=True) as bars:

        def track(items: Iterable[T], *, total: int | None = None, label: str = "") -> Iterator[T]:
            if total is None and hasattr(items, "__len__"):
                total = len(items)  # ty: ignore[invalid-argument-type]
            task = bars.add_task(label or "working", total=total)
            try:
                for item in items:
                    yield item
                    bars.advance(task)
            finally:
                bars.remove_task(task)

        yield track


def load_results(folder: Path) -> list[Result]:
    """The finished claims of an earlier run.

    Raises:
        InputError: if the folder holds no readable ``claims.json``.
    """
    path = Path(folder) / FILE
    try:
        return [Result(**claim) for claim in json.loads(path.read_text())["claims"]]
    except FileNotFoundError as error:
        raise InputError(f"no {FILE} in {folder}; run reproduce first") from error
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(f"{path} is not a results file of papershelf: {error}") from error


def save_results(folder: Path, results: Sequence[Result]) -> Path:
    """Write ``claims.json`` atomically."""
    record = {
        "written": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": machine(),
        "claims": [plain(asdict(result)) for result in results],
    }
    return atomic_write(Path(folder) / FILE, json.dumps(record, indent=1, ensure_ascii=False) + "\n")


def convert_options(claim: Claim, given: Mapping[str, str]) -> dict[str, Any]:
    """The user's ``--name value`` pairs in the types that the claim declares.

    Raises:
        InputError: for an unknown name or a value that does not convert.
    """
    converted: dict[str, Any] = {}
    for name, text in given.items():
        if name not in claim.options:
            known = ", ".join(f"--{option}" for option in claim.options) or "none"
            raise InputError(f"claim {claim.id} has no option --{name}; it has {known}")
        kind = claim.options[name]
        try:
            converted[name] = kind(text)
        except ValueError as error:
            raise InputError(f"--{name} of claim {claim.id} expects {kind.__name__}, got {text!r}") from error
    return converted


def _blank(paper: Paper, claim: Claim, scale: str, seed: int, options: Mapping[str, Any]) -> Result:
    return Result(
        package=paper.slug,
        id=claim.id,
        scale=scale,
        statement=claim.statement,
        paper=claim.paper,
        criterion=claim.criterion,
        seed=seed,
        needs=claim.needs,
        recipe=claim.recipe,
        version=distribution_version(paper),
        options=dict(options),
    )


def measure(
    paper: Paper, claim: Claim, scale: Scale, seed: int, out: Path, options: Mapping[str, Any], progress: Progress
) -> Result:
    """Measure one claim; an exception in it becomes the result's ``error``."""
    blank = _blank(paper, claim, scale, seed, options)
    folder = out / paper.slug / claim.id
    folder.mkdir(parents=True, exist_ok=True)
    started = time.perf_counter()
    try:
        outcome = claim.measure(Run(seed=seed, scale=scale, out=folder, options=options, progress=progress))
    except Exception as error:
        atomic_write(folder / "error.txt", traceback.format_exc())
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
        return replace(blank, error=reason, seconds=time.perf_counter() - started)
    finally:
        if not any(folder.iterdir()):
            folder.rmdir()
    return replace(
        blank,
        holds=bool(outcome.holds),
        measured=outcome.measured,
        values=plain(outcome.values),
        seconds=time.perf_counter() - started,
        figures=[Path(figure).relative_to(out).as_posix() for figure in outcome.figures],
    )


def reproduce(
    selection: Sequence[tuple[Paper, Claim]],
    out: Path,
    *,
    scale: Scale = "quick",
    seed: int = 0,
    resume: bool = False,
    options: Mapping[str, str] | None = None,
    progress: Progress = silent,
    finished: Callable[[Result], None] = lambda result: None,
) -> list[Result]:
    """Measure claims in order; ``claims.json`` in ``out`` always holds those finished so far.

    Args:
        selection: what to measure.
        out: results folder, made where missing.
        scale: claims that need a larger scale are listed as not measured.
        seed: the seed of every claim.
        resume: keep what an earlier run with the same package version, scale, seed and options finished.
        options: ``--name value`` pairs for the claims that declare them.
        progress: given to the measurements.
        finished: called with each result as it comes.

    Returns:
        One result a claim. ``KeyboardInterrupt`` passes through; the file then holds the finished claims.
    """
    given = {id(claim): convert_options(claim, options or {}) for _, claim in selection}
    out = Path(out)
    out.mkdir(parents=True, exist_ok=True)
    earlier = load_results(out) if resume and (out / FILE).exists() else []
    kept = {_identity(result): result for result in earlier if result.holds is not None and not result.error}
    results: list[Result] = []
    save_results(out, results)
    for paper, claim in selection:
        blank = _blank(paper, claim, scale, seed, given[id(claim)])
        if SCALES.index(claim.scale) > SCALES.index(scale):
            result = _blank(paper, claim, claim.scale, seed, given[id(claim)])
        elif _identity(blank) in kept:
            result = kept[_identity(blank)]
        else:
            result = measure(paper, claim, scale, seed, out, given[id(claim)], progress)
        results.append(result)
        save_results(out, results)
        finished(result)
    return results


def _identity(result: Result) -> str:
    return json.dumps(plain([result.package, result.id, result.version, result.scale, result.seed, result.options]))
