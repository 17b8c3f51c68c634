"""Benchmarks: derivatives beside autodiff, B-splines beside scipy, chunk sampling beside datasets, movement
primitives."""

from __future__ import annotations

import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.interpolate import BSpline

from niaf import bases
from niaf.claims import derivative_problem, nested_jvp
from niaf.data import LeRobotReader, lasa_chunks, write_lerobot
from niaf.field import SineField
from niaf.modulation import GroupedModulator
from niaf.trajectory import Trajectory
from papershelf import Streams, require
from papershelf.bench import as_values, compare, markdown_table, write_results

EXTRA = "papershelf-niaf[bench]"


def derivatives(out: Path, quick: bool = False) -> dict[str, str]:
    """Order-3 evaluation beside nested autodiff, its cost over order 0, one query of a compiled chunk, parameters."""
    torch.set_num_threads(1)
    field, mod, tau = derivative_problem(4 if quick else 32, 50, 64 if quick else 256, 0, torch.float32)

    def value(t: torch.Tensor) -> torch.Tensor:
        return field(t, mod, 0, "free")[0]

    def nested_reverse() -> list[torch.Tensor]:
        t = tau.clone().requires_grad_(True)
        found = [value(t)]
        slopes = []
        for channel in range(field.dim):
            part = found[0][..., channel].sum()
            for order in range(3):
                (g,) = torch.autograd.grad(part, t, create_graph=order < 2, retain_graph=True)
                part = g.sum()
                slopes.append(g.detach())
        return slopes

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        with torch.no_grad():
            forward = compare(
                {
                    "nested torch.func.jvp": lambda: nested_jvp(value, tau, 3),
                    "niaf, closed form": lambda: field(tau, mod, 3, "free"),
                    "niaf, value only": lambda: value(tau),
                },
                repeat=2 if quick else 7,
            )
        reverse = compare(
            {"nested torch.autograd.grad": nested_reverse, "niaf, closed form": lambda: field(tau, mod, 3, "free")},
            repeat=1 if quick else 3,
        )
    query = Trajectory.from_field(SineField(7, n_samples=50), None, 1.0).compile(3)
    query(0.3)
    taken = []
    for t in np.linspace(0, 1, 200 if quick else 2000):
        started = time.perf_counter()
        query(t)
        taken.append(time.perf_counter() - started)
    middle, high = np.quantile(taken, [0.5, 0.99])
    wide = SineField(7, width=256, n_samples=50)
    rows = []
    for kind in ("row", "full"):
        with torch.device("meta"):
            count = sum(p.numel() for p in GroupedModulator(1024, wide, 64, kind).parameters())
        rows.append(f"| {kind} | {count / 1e6:.1f} M |")
    tables = {
        "Value, velocity, acceleration and jerk: batch 32, K = 50, 7 channels, width 256": markdown_table(forward),
        "The same, with a graph for training": markdown_table(reverse),
        "One query of a compiled 7-channel chunk, width 256, up to the jerk": (
            f"| median | 99 % |\n| --- | --- |\n| {1e3 * middle:.3f} ms | {1e3 * high:.3f} ms |"
        ),
        "Parameters of the modulator, d_model 1024, G = 64, H = 256": "\n".join(
            ["| granularity | parameters |", "| --- | --- |", *rows]
        ),
    }
    values = {"forward": as_values(forward), "reverse": as_values(reverse), "query": [middle, high]}
    write_results(out / "derivatives.json", tables, values)
    return tables


def splines(out: Path, quick: bool = False) -> dict[str, str]:
    """A batch of B-spline chunks with three derivatives beside a loop over scipy's BSpline; results are compared
    first."""
    batch, samples, n = 16 if quick else 256, 50, 10
    basis, rng = bases.BSplineBasis(n, 4), Streams(0).numpy("splines")
    coefficients, tau = rng.standard_normal((batch, n, 7)), np.linspace(-1, 1, samples)

    def ours() -> list[np.ndarray]:
        return [m @ coefficients for m in basis(tau, 3)]

    def theirs() -> list[np.ndarray]:
        found = []
        for c in coefficients:
            spline = BSpline(basis.knots, c, 4)
            found.append([spline(tau, nu) for nu in range(4)])
        return [np.stack(p) for p in zip(*found, strict=True)]

    gap = max(float(np.abs(a - b).max()) for a, b in zip(ours(), theirs(), strict=True))
    timings = compare({"scipy BSpline, one by one": theirs, "niaf, one basis for the batch": ours}, 3 if quick else 9)
    title = f"B-splines: batch {batch}, K = {samples}, 7 channels, orders 0 to 3"
    tables = {title: markdown_table(timings), "Largest difference": f"{gap:.1g}"}
    write_results(out / "splines.json", tables, {"times": as_values(timings), "gap": gap})
    return tables


def sampling(out: Path, quick: bool = False) -> dict[str, str]:
    """Random chunks of a LeRobot v3 folder beside row access through datasets."""
    datasets = require("datasets", EXTRA)
    episodes, frames, count, horizon = (4, 200, 50, 50) if quick else (50, 400, 10_000, 50)
    rng = Streams(0).numpy("sampling")
    data = [
        {
            "action": rng.standard_normal((frames, 7)).astype(np.float32),
            "observation.state": rng.standard_normal((frames, 8)),
            "task": "pick",
        }
        for _ in range(episodes)
    ]
    with tempfile.TemporaryDirectory() as name:
        folder = write_lerobot(Path(name) / "set", data, 50)
        reader = LeRobotReader(folder)
        table = datasets.Dataset.from_parquet([str(f) for f in reader.files], cache_dir=name + "/cache").with_format(
            "numpy"
        )
        rows = rng.integers(0, episodes * frames - horizon, count)
        few = rows[: max(10, count // 50)]

        def theirs() -> list[Any]:
            return [table[int(r) : int(r) + horizon]["action"] for r in few]

        def ours() -> Any:
            return LeRobotReader(folder).chunks(horizon, rows=rows)

        timings = compare(
            {f"datasets, {len(few):,} chunks": theirs, f"niaf, {count:,} chunks": ours}, 2 if quick else 5
        )
    each = timings[0].median / len(few), timings[1].median / count
    shown = "\n".join(
        [
            "| | a chunk | chunks a second | ratio [quartiles] |",
            "| --- | --- | --- | --- |",
            f"| datasets, row slices | {1e6 * each[0]:.1f} µs | {1 / each[0]:,.0f} | 1x |",
            f"| niaf, opening the folder included | {1e6 * each[1]:.1f} µs | {1 / each[1]:,.0f} | "
            f"{each[0] / each[1]:.0f}x [{timings[1].ratio_low * count / len(few):.0f}, "
            f"{timings[1].ratio_high * count / len(few):.0f}] |",
        ]
    )
    tables = {f"Random chunks of {horizon} from {episodes} episodes of {frames} frames": shown}
    write_results(out / "sampling.json", tables, {"times": as_values(timings)})
    return tables


def _best(errors: dict[int, float], target: float) -> int:
    enough = [n for n, e in sorted(errors.items()) if e <= target]
    return enough[0] if enough else max(errors)


def primitives(out: Path, quick: bool = False) -> dict[str, str]:
    """LASA chunks imitated and rolled out beside movement_primitives' DMP, at equal accuracy."""
    dmp_module = require("movement_primitives.dmp", EXTRA)
    chunks = lasa_chunks(4 if quick else 24, 51)
    assert chunks.dense is not None
    t, tau = np.linspace(0, 1, 201), np.linspace(-1, 1, 201)
    counts = (5, 10, 20) if quick else (4, 6, 8, 10, 15, 20, 30, 50)

    def their_models(n: int) -> list[Any]:
        models = []
        for x in chunks.dense:  # ty: ignore[not-iterable]
            dmp = dmp_module.DMP(n_dims=2, execution_time=1.0, dt=0.005, n_weights_per_dim=n)
            dmp.imitate(t, x)
            dmp.configure(start_y=x[0], goal_y=x[-1])
            models.append(dmp)
        return models

    def error(found: Callable[[], Any]) -> float:
        return float(np.sqrt(np.square(np.stack(found()) - chunks.dense).mean()))

    def rolled(models: list[Any]) -> list[np.ndarray]:
        return [m.open_loop()[1][:201] for m in models]

    their = {n: their_models(n) for n in counts}
    their_errors = {n: error(lambda m=m: rolled(m)) for n, m in their.items()}

    def ours(n: int) -> tuple[bases.ProDMPBasis, np.ndarray]:
        basis = bases.ProDMPBasis(n)
        return basis, bases.encode(basis, tau, chunks.dense)  # ty: ignore[invalid-argument-type]

    our = {n: ours(n) for n in counts}
    our_errors = {n: error(lambda p=p: p[0](tau, 0)[0] @ p[1]) for n, p in our.items()}
    target = max(min(their_errors.values()), min(our_errors.values()))
    a, b = _best(their_errors, target), _best(our_errors, target)
    basis, coefficients = our[b]
    models = their[a]
    precomputed = basis(tau, 3)

    def roll_out() -> list[Any]:
        return [m @ coefficients for m in precomputed]

    timings = compare(
        {
            f"movement_primitives DMP, {a} weights": lambda: rolled(models),
            f"niaf ProDMP, {b} weights, basis made anew, orders 0 to 3": lambda: [
                m @ coefficients for m in basis(tau, 3)
            ],
            f"niaf ProDMP, {b} weights, basis kept, orders 0 to 3": roll_out,
        },
        3 if quick else 7,
    )
    tables = {
        f"Roll-outs of {len(models)} LASA chunks of 201 steps": markdown_table(timings),
        "RMSE of the roll-outs": f"movement_primitives {their_errors[a]:.2g}, niaf {our_errors[b]:.2g} (deviation of "
        "the data 0.55)",
    }
    write_results(out / "primitives.json", tables, {"times": as_values(timings), "errors": [their_errors, our_errors]})
    return tables


TOPICS = {"derivatives": derivatives, "splines": splines, "sampling": sampling, "primitives": primitives}
