"""Benchmarks: the whole path beside RidgeCV and himalaya, memory, streaming rate."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.linear_model import RidgeCV
from threadpoolctl import threadpool_limits

from papershelf import Streams, require
from papershelf.bench import as_values, compare, markdown_table, write_results
from ridge_sd.core import decompose, sd_path
from ridge_sd.streaming import RowMoments


def _problem(n: int, p: int, q: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    X = rng.standard_normal((n, p))
    y = X @ rng.standard_normal((p, q)) / np.sqrt(p) + rng.standard_normal((n, q))
    return X, y[:, 0] if q == 1 else y


def path(out: Path, quick: bool = False) -> dict[str, str]:
    """100 penalties with exact leave-one-out, the same grid and the same chosen penalty, and himalaya on many targets.

    One thread: numpy's and scipy's wheels bring a thread pool each, and two of them on two cores measure each other.
    """
    with threadpool_limits(1):
        return _path(out, quick)


def _path(out: Path, quick: bool) -> dict[str, str]:
    rng, tables, values = Streams(0).numpy("path"), {}, {}
    shapes = ((200, 50, 1), (50, 200, 1)) if quick else ((2000, 500, 1), (500, 2000, 1), (5000, 300, 10))
    for n, p, q in shapes:
        X, y = _problem(n, p, q, rng)
        alphas = n * np.logspace(-3, np.log10(50), 100)
        chosen: dict[str, float] = {}

        def ours(
            criterion: Any, X: np.ndarray = X, y: np.ndarray = y, alphas: np.ndarray = alphas, chosen: dict = chosen
        ) -> None:
            found = sd_path(decompose(X, y), alphas, criterion=criterion)
            chosen[criterion] = float(alphas[int(np.argmin(found.R))])

        def theirs(X: np.ndarray = X, y: np.ndarray = y, alphas: np.ndarray = alphas, chosen: dict = chosen) -> None:
            chosen["RidgeCV"] = float(RidgeCV(alphas).fit(X, y).alpha_)

        timings = compare(
            {
                "RidgeCV (leave-one-out)": theirs,
                "ridge-sd, leave-one-out of both stages": lambda f=ours: f("loo"),
                "ridge-sd, GCV": lambda f=ours: f("gcv"),
            },
            repeat=3,
        )
        title = f"n={n:,}, p={p:,}, {q} target{'s' if q > 1 else ''}, 100 penalties"
        tables[title] = markdown_table(timings)
        tables[f"Chosen penalty of the plain ridge, {title}"] = ", ".join(f"{k} {v:.6g}" for k, v in chosen.items())
        values[title] = {"times": as_values(timings), "alpha": chosen}
    tables |= _many_targets(rng, quick)
    write_results(out / "path.json", tables, values)
    return tables


def _many_targets(rng: np.random.Generator, quick: bool) -> dict[str, str]:
    require("himalaya", "papershelf-ridge-sd[bench]")
    from himalaya.ridge import RidgeCV as FoldedRidgeCV

    n, p, q = (200, 50, 20) if quick else (1000, 200, 500)
    X, y = _problem(n, p, q, rng)
    lams = np.logspace(-3, np.log10(50), 100)
    folds = FoldedRidgeCV(alphas=n * lams, cv=5)
    timings = compare(
        {
            "himalaya RidgeCV, 5 folds": lambda: folds.fit(X, y),
            "ridge-sd, leave-one-out, one xi a target": lambda: sd_path(
                decompose(X, y), n * lams, xi_mode="per_target"
            ),
            "ridge-sd, GCV, one xi a target": lambda: sd_path(
                decompose(X, y), n * lams, criterion="gcv", xi_mode="per_target"
            ),
        },
        repeat=3,
    )
    return {f"n={n:,}, p={p:,}, {q} targets, 100 penalties, against himalaya": markdown_table(timings)}


def _seconds(function: Callable[[], Any], repeat: int = 5) -> float:
    function()
    taken = []
    for _ in range(repeat):
        started = time.perf_counter()
        function()
        taken.append(time.perf_counter() - started)
    return float(np.median(taken))


def streaming(out: Path, quick: bool = False) -> dict[str, str]:
    """Rate of accumulating moments against the machine's own matrix product of the same block, and grid size."""
    from scipy.linalg import get_blas_funcs

    rng, dsyrk = Streams(0).numpy("streaming"), get_blas_funcs("syrk", dtype=np.float64)
    rows, p = (2000, 100) if quick else (20_000, 1000)
    X, Y = rng.standard_normal((rows, p)), rng.standard_normal((rows, 1))
    fortran = np.asfortranarray(X)
    product, symmetric = _seconds(lambda: X.T @ X), _seconds(lambda: dsyrk(1.0, fortran, trans=1))
    ours = _seconds(lambda: RowMoments.of(X, Y))
    flops = 2 * rows * p * p / 1e9
    table = ["| | time a block | rate, GFLOP/s | share of X'X |", "| --- | --- | --- | --- |"]
    for name, taken in (("numpy X.T @ X (BLAS syrk)", product), ("scipy dsyrk", symmetric), ("centred moments", ours)):
        table.append(f"| {name} | {1e3 * taken:.1f} ms | {flops / taken:.1f} | {product / taken:.0%} |")
    n, p = (500, 100) if quick else (2000, 500)
    X, y = _problem(n, p, 1, rng)
    grid = ["| penalties | GCV path | LOO path |", "| --- | --- | --- |"]
    for size in (100, 1000):
        alphas = n * np.logspace(-3, 1.7, size)
        cells = [_seconds(lambda c=c, a=alphas: sd_path(decompose(X, y), a, criterion=c), 3) for c in ("gcv", "loo")]
        grid.append(f"| {size} | {1e3 * cells[0]:.1f} ms | {1e3 * cells[1]:.1f} ms |")
    tables = {
        f"Moments of blocks of {rows:,} rows, p={X.shape[1] if quick else 1000:,}": "\n".join(table),
        f"Grid size, n={n:,}, p={p:,}, decomposition included": "\n".join(grid),
    }
    write_results(out / "streaming.json", tables, {"product": product, "moments": ours})
    return tables
