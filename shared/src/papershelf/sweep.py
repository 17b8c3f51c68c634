"""Parameter sweeps that run on this machine or on a Ray or Dask cluster, and go on where they stopped."""

from __future__ import annotations

import hashlib
import inspect
import itertools
import json
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, NamedTuple

from papershelf.errors import InputError, require
from papershelf.files import load_checkpoint, save_checkpoint
from papershelf.paper import Progress, silent
from papershelf.reproduce import plain


class Cell(NamedTuple):
    """One point of a sweep: its parameters, what the function returned, and how long it took."""

    params: dict[str, Any]
    value: Any
    seconds: float


def grid_points(grid: Mapping[str, Sequence[Any]] | Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """All combinations of a mapping's lists, the last name varying fastest; a list of points stays as it is."""
    if isinstance(grid, Mapping):
        return [dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())]
    return [dict(point) for point in grid]


def _cell_path(function: Callable[..., Any], params: Mapping[str, Any], cache: Path) -> Path:
    key = json.dumps([inspect.getsource(function), plain(params)], sort_keys=True)
    return cache / f"{hashlib.sha256(key.encode()).hexdigest()[:32]}.npz"


def _evaluate(function: Callable[..., Any], index: int, params: dict[str, Any], path: Path | None) -> tuple[int, Cell]:
    started = time.perf_counter()
    cell = Cell(params, function(**params), time.perf_counter() - started)
    if path is not None and path.parent.is_dir():
        save_checkpoint(path, {"value": cell.value, "seconds": cell.seconds})
    return index, cell


@contextmanager
def _workers(backend: str, jobs: int) -> Generator[dict[str, Any]]:
    """Set the joblib backend; yields the arguments of ``joblib.Parallel``."""
    import joblib

    if backend == "local":
        yield {"n_jobs": jobs, "return_as": "generator_unordered"}
    elif backend == "ray":
        require("ray", "papershelf[ray]")
        from ray.util.joblib import register_ray

        register_ray()
        with joblib.parallel_config(backend="ray", n_jobs=jobs):
            yield {}
    elif backend == "dask":
        distributed = require("distributed", "papershelf[dask]")
        try:
            client, own = distributed.get_client(), False
        except ValueError:
            client = distributed.Client(n_workers=jobs, threads_per_worker=1, dashboard_address=None)
            own = True
        try:
            with joblib.parallel_config(backend="dask", n_jobs=jobs):
                yield {}
        finally:
            if own:
                client.close()
                client.cluster.close()
    else:
        raise InputError(f"backend must be local, ray or dask, got {backend!r}")


def sweep(
    function: Callable[..., Any],
    grid: Mapping[str, Sequence[Any]] | Sequence[Mapping[str, Any]],
    *,
    jobs: int = 1,
    backend: Literal["local", "ray", "dask"] = "local",
    cache: Path | None = None,
    progress: Progress = silent,
) -> list[Cell]:
    """Evaluate a function at every point of a grid.

    Args:
        function: a named function of the grid's parameters. It returns numbers, strings, numpy arrays, or nested dicts,
            lists and tuples of them. It must draw randomness from a ``seed`` parameter, so that cells can be repeated.
        grid: a mapping of lists (all combinations), or a list of points.
        jobs: parallel workers.
        backend: ``local`` processes, or the running Ray or Dask cluster (one is started here where none runs).
        cache: folder in which each finished cell is kept; a later call with the same function source and parameters
            reads it. On a cluster the folder is on a disk that the workers share, else the cells are kept at the end.
        progress: shows the finished cells.

    Returns:
        The cells in the grid's order, the same for every backend and number of jobs.
    """
    import joblib

    if jobs < 1:
        raise InputError(f"jobs must be >= 1, got {jobs}")
    points = grid_points(grid)
    paths: list[Path | None] = [None] * len(points)
    if cache is not None:
        cache = Path(cache).resolve()
        cache.mkdir(parents=True, exist_ok=True)
        paths = [_cell_path(function, params, cache) for params in points]
    cells: dict[int, Cell] = {}
    for index, path in enumerate(paths):
        if path is not None and path.exists():
            kept = load_checkpoint(path)
            cells[index] = Cell(points[index], kept["value"], kept["seconds"])
    waiting = [index for index in range(len(points)) if index not in cells]
    if waiting:
        with _workers(backend, jobs) as options:
            tasks = (joblib.delayed(_evaluate)(function, i, points[i], paths[i]) for i in waiting)
            finished = joblib.Parallel(**options)(tasks)
            for index, cell in progress(finished, total=len(waiting), label="sweep"):
                cells[index] = cell
                path = paths[index]
                if path is not None and not path.exists():
                    save_checkpoint(path, {"value": cell.value, "seconds": cell.seconds})
    return [cells[index] for index in range(len(points))]
