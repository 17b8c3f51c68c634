"""The ``ridge-sd`` command."""

from __future__ import annotations

import json
import math
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from papershelf import InputError, Streams
from papershelf import cli as shelf
from papershelf.files import atomic_write, load_checkpoint, save_checkpoint
from papershelf.reproduce import plain, progress_bar
from papershelf.sweep import sweep
from ridge_sd import bench as benchmarks
from ridge_sd import plots
from ridge_sd.claims import PAPER, heatmap_column, test_risks
from ridge_sd.core import SDPath, decompose, sd_path
from ridge_sd.data import TABLES, Table, load_table
from ridge_sd.streaming import RowMoments, StreamingRidgeSD
from ridge_sd.theory import covariance, generalised_ridge_risk, sd_equivalents, signal

app = shelf.app(PAPER)

Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Seed = Annotated[int, typer.Option("--seed", min=0, help="Seed of all randomness.")]
Target = Annotated[
    str | None, typer.Option("--target", help="Target column, or the second file of .npy and CIFAR data.")
]


def _print_json(value: Any) -> None:
    print(json.dumps(plain(value), ensure_ascii=False))


def _grid(text: str | None, n: float) -> np.ndarray:
    if text is None:
        return n * np.logspace(-3, math.log10(50), 100)
    try:
        parts = [float(word) for word in text.split(":")] if ":" in text else None
        values = np.logspace(math.log10(parts[0]), math.log10(parts[1]), int(parts[2])) if parts else None
        found = np.array([float(word) for word in text.split(",")]) if values is None else values
    except (ValueError, IndexError):
        raise InputError(f"--alphas expects numbers separated by commas, or LOW:HIGH:COUNT, got {text!r}") from None
    if found.size == 0 or not np.isfinite(found).all() or (found <= 0).any():
        raise InputError(f"--alphas expects positive numbers, got {text!r}")
    return found


@app.command()
def run(
    data: Annotated[str, typer.Option("--data", help=f"A file, or one of {', '.join(TABLES)}.")] = "diabetes",
    target: Target = None,
    train: Annotated[float, typer.Option("--train", help="Share of rows (or, from 1 on, number) to train on.")] = 0.5,
    criterion: Annotated[str, typer.Option("--criterion", help="loo, gcv or cp.")] = "loo",
    alphas: Annotated[
        str | None, typer.Option("--alphas", help="Penalties: numbers with commas, or LOW:HIGH:COUNT.")
    ] = None,
    select: Annotated[str, typer.Option("--select", help="joint or teacher.")] = "joint",
    guard_se: Annotated[
        float, typer.Option("--guard-se", min=0, help="Standard errors that a joint gain must exceed.")
    ] = 2.0,
    out: Annotated[Path, typer.Option("--out", help="Folder for the path and its picture.")] = Path("ridge-sd-run"),
    seed: Seed = 0,
    as_json: Json = False,
) -> None:
    """Ridge and its self-distilled student on a table: penalty, mixing weight, estimated and test error, and a picture.

    Features and targets are standardised by the training rows. Errors are sums over standardised targets.
    """
    if criterion not in ("loo", "gcv", "cp"):
        raise InputError(f"--criterion must be loo, gcv or cp, got {criterion!r}")
    if select not in ("joint", "teacher"):
        raise InputError(f"--select must be joint or teacher, got {select!r}")
    table = load_table(data, target).split(train, Streams(seed).numpy("split")).standardised()
    n = len(table.y)
    grid = np.sort(_grid(alphas, n))
    spectrum = decompose(table.X, table.y, alpha_min=float(grid.min()))
    with warnings.catch_warnings():  # the fall-back to GCV is told below
        warnings.simplefilter("ignore")
        path = sd_path(spectrum, grid, criterion=criterion, xi_bounds=(-10, 10))
    chosen = path.best(select, guard_se)
    test = test_risks(path, table)
    report = _report(path, chosen, test, table)
    out.mkdir(parents=True, exist_ok=True)
    atomic_write(out / "path.csv", _path_csv(path, test))
    picture = _draw(out, path, test, table, report["lam"])
    if as_json:
        _print_json(report | {"picture": picture})
        return
    print(
        f"{table.name}: {n:,} training and {len(table.test[1]) if table.test else 0:,} test rows, "
        f"{table.X.shape[1]:,} features"
    )
    if path.criterion != criterion:
        print(f"leave-one-out is not determined here: {path.criterion} instead")
    print(
        f"best ridge    λ = {report['ridge_lam']:.4g}   estimated error {report['ridge_risk']:.4f}   test "
        f"{report['ridge_test']:.4f}"
    )
    xi, error = report["xi"], report["xi_se"]
    spread = f" ± {error:.3f}" if math.isfinite(error) else ""
    note = "   (guard: the gain is within its noise, plain ridge it is)" if chosen.guarded else ""
    print(
        f"self-distilled λ = {report['lam']:.4g}   estimated error {report['risk']:.4f}   test {report['test']:.4f} "
        f"  ξ = {xi:+.3f}{spread}{note}"
    )
    print(f"written: {out / 'path.csv'}, {picture}")


def _report(path: SDPath, chosen: Any, test: list, table: Table) -> dict[str, Any]:
    i, ridge, xi = chosen.index, int(np.argmin(path.R)), float(chosen.xi[0])
    return {
        "data": table.name,
        "criterion": path.criterion,
        "lam": float(path.lam[i]),
        "alpha": float(path.alpha[i]),
        "xi": xi,
        "xi_se": float(path.xi_se[i]),
        "risk": float(path.R[i] if xi == 0 else path.R_sd[i]),
        "test": test[i].student(xi),
        "guarded": chosen.guarded,
        "ridge_lam": float(path.lam[ridge]),
        "ridge_risk": float(path.R[ridge]),
        "ridge_test": test[ridge].R,
        "test_optimal_xi": test[i].xi,
    }


def _path_csv(path: SDPath, test: list) -> str:
    names = ("alpha", "lam", "df", "df_pd", "R", "R_pd", "C", "D", "xi", "xi_se", "R_sd")
    lines = [",".join([*names, "test_ridge", "test_student", "test_optimal_xi"])]
    for i, risks in enumerate(test):
        values = [float(getattr(path, name)[i]) for name in names]
        lines.append(",".join(f"{v:.10g}" for v in [*values, risks.R, risks.student(float(path.xi[i])), risks.xi]))
    return "\n".join(lines) + "\n"


def _draw(out: Path, path: SDPath, test: list, table: Table, lam: float) -> Path:
    curves = plots.TestCurves(
        np.array([r.R for r in test]),
        np.array([r.student(float(x)) for r, x in zip(test, path.xi, strict=True)]),
        np.array([r.R_sd for r in test]),
        np.array([r.xi for r in test]),
    )
    title = f"{table.name}: {table.X.shape[0]:,} rows, {table.X.shape[1]:,} features"
    return plots.path(out / "path", path.lam, path.R, path.R_sd, path.xi, curves, lam, title, path.xi_se)[0]


@app.command()
def theory(
    gamma: Annotated[float, typer.Option("--gamma", help="p / n.")] = 0.5,
    snr: Annotated[float, typer.Option("--snr", help="Squared norm of the signal, noise variance 1.")] = 1.0,
    cov: Annotated[str, typer.Option("--cov", help="identity, ar25, ar50, spiked or equicorrelated.")] = "ar50",
    sig: Annotated[str, typer.Option("--signal", help="isotropic, top_aligned or bottom_aligned.")] = "top_aligned",
    p: Annotated[int, typer.Option("-p", min=2, help="Dimension of the spectrum.")] = 200,
    out: Annotated[Path | None, typer.Option("--out", help="Folder for a picture.")] = None,
    as_json: Json = False,
) -> None:
    """Asymptotic risks of ridge and its best student over the penalty."""
    if not gamma > 0 or not snr > 0:
        raise InputError(f"--gamma and --snr must be positive, got {gamma} and {snr}")
    Sigma = covariance(cov, p)  # ty: ignore[invalid-argument-type]
    values, vectors = np.linalg.eigh(Sigma)
    values, beta2 = np.maximum(values, 0), np.square(vectors.T @ signal(sig, Sigma, snr))  # ty: ignore[invalid-argument-type]
    lams = np.logspace(-2.5, 2, 200)
    found = [sd_equivalents(lam, values, beta2, p / gamma, 1.0) for lam in lams]
    i, j = int(np.argmin([r.R for r in found])), int(np.argmin([r.R_sd for r in found]))
    generalised = generalised_ridge_risk(values, beta2, p / gamma, 1.0)
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        risks, students, xi = (np.array([getattr(r, k) for r in found]) for k in ("R", "R_sd", "xi"))
        plots.path(
            out / "theory", lams, risks, students, xi, None, float(lams[j]), f"{cov}, {sig}, γ = {gamma:g}, SNR {snr:g}"
        )
    if as_json:
        _print_json(
            {
                "ridge": {"lam": lams[i], "risk": found[i].R},
                "student": {"lam": lams[j], "risk": found[j].R_sd, "xi": found[j].xi},
                "generalised_ridge": generalised,
            }
        )
        return
    print(f"best ridge     λ = {lams[i]:.4g}   risk {found[i].R:.4f}")
    print(
        f"best student   λ = {lams[j]:.4g}   risk {found[j].R_sd:.4f}   ξ = {found[j].xi:+.3f}   "
        f"({100 * (found[j].R_sd / found[i].R - 1):+.2f} %)"
    )
    print(f"best generalised ridge (knows the signal's shape)   risk {generalised:.4f}")


@app.command()
def heatmap(
    cov: Annotated[str, typer.Option("--cov", help="Covariance, see 'theory'.")] = "ar50",
    sig: Annotated[str, typer.Option("--signal", help="Signal, see 'theory'.")] = "top_aligned",
    size: Annotated[int, typer.Option("--size", min=2, help="Points a side; the paper has 50.")] = 20,
    out: Annotated[Path, typer.Option("--out", help="Folder for the picture and the sweep's cells.")] = Path(
        "ridge-sd-heatmap"
    ),
    engine: Annotated[str, typer.Option("--engine", help="local, dask or ray.")] = "local",
    jobs: Annotated[int, typer.Option("--jobs", min=1, help="Processes.")] = 1,
) -> None:
    """Risk saved over the best ridge, over p / n and the signal-to-noise ratio (figure 5)."""
    if engine not in ("local", "dask", "ray"):
        raise InputError(f"--engine must be local, dask or ray, got {engine!r}")
    covariance(cov, 2)  # ty: ignore[invalid-argument-type]
    axis = np.logspace(-1, 1, size)
    columns = [{"cov": cov, "sig": sig, "gamma": float(gamma), "size": size} for gamma in axis]
    with progress_bar() as progress:
        cells = sweep(heatmap_column, columns, jobs=jobs, backend=engine, cache=out / "cells", progress=progress)
    gain = np.array([cell.value for cell in cells]).T
    picture, _ = plots.heatmap(out / f"{cov}-{sig}", axis, axis, gain, f"{cov}, {sig}")
    print(f"at most {gain.max():.2f} % saved; written: {picture}")


def _blocks(files: list[Path], target: str | None, rows: int) -> Iterator[tuple[Path, int, np.ndarray, np.ndarray]]:
    """Blocks of a stream of .npz, .npy pairs or .csv files, with the file and the number of the block in it."""
    for path in files:
        table = load_table(str(path), target)
        for number, low in enumerate(range(0, table.X.shape[0], rows)):
            yield path, number, np.asarray(table.X[low : low + rows]), table.y[low : low + rows]


@app.command()
def stream(
    files: Annotated[
        list[Path], typer.Argument(help="Files of rows, in any format of 'run', read one after the other.")
    ],
    target: Target = None,
    rows: Annotated[int, typer.Option("--rows", min=2, help="Rows a block.")] = 20_000,
    state: Annotated[
        Path, typer.Option("--state", help="Where to keep the moments; an existing file is gone on from.")
    ] = Path("ridge-sd-stream.npz"),
    as_json: Json = False,
) -> None:
    """Fit to more rows than memory holds: one file at a time (each must fit), kept after each; finished files are not
    read again."""
    model, done = StreamingRidgeSD(), []
    if state.is_file():
        kept = load_checkpoint(state)
        if not isinstance(kept, dict) or {"moments", "files", "many", "dtype"} - set(kept):
            raise InputError(f"{state} is no state of 'ridge-sd stream'; name another file with --state")
        model.restore(RowMoments(**kept["moments"]), bool(kept["many"]), str(kept["dtype"]))
        done = list(kept["files"])
    with progress_bar() as progress:
        for path in progress(files, label="stream"):
            if str(path.resolve()) in done:
                print(f"{path}: already counted", file=sys.stderr)
                continue
            part, number = StreamingRidgeSD(), 1
            try:
                for _, block, X, y in _blocks([path], target, rows):
                    number = block + 1
                    part.partial_fit(X, y)
            except ValueError as error:
                raise InputError(
                    f"{path}, block {number}: {error}; what was counted before is kept in {state}"
                ) from error
            model = part if not hasattr(model, "moments_") else model.merge(part)
            done.append(str(path.resolve()))
            # One file for both: a file is either counted and named, or neither.
            save_checkpoint(
                state, {"moments": vars(model.moments_), "many": model.many, "dtype": model.dtype, "files": done}
            )
    model.finalize()
    i = int(np.argmin(np.abs(model.path_.alpha - model.alpha_)))
    found = {"rows": model.n_samples_seen_, "features": model.n_features_in_, "alpha": model.alpha_, "xi": model.xi_}
    found |= {"risk": float(model.path_.R_sd[i]), "ridge_risk": float(np.min(model.path_.R))}
    if as_json:
        _print_json(found | {"coef": model.coef_, "intercept": model.intercept_})
        return
    print(f"{found['rows']:,} rows, {found['features']:,} features: alpha = {model.alpha_:.4g}, ξ = {model.xi_:+.3f}")
    print(f"estimated error: best ridge {found['ridge_risk']:.4f}, self-distilled {found['risk']:.4f}")
    print(f"kept in {state}")


@app.command()
def bench(
    topic: Annotated[str, typer.Argument(help="path or streaming.")] = "path",
    out: Annotated[Path, typer.Option("--out", help="Folder for results.")] = Path("ridge-sd-bench"),
    quick: Annotated[bool, typer.Option("--quick", help="Small sizes.")] = False,
) -> None:
    """Time the whole path beside RidgeCV and himalaya, or the streaming rate."""
    topics = {"path": benchmarks.path, "streaming": benchmarks.streaming}
    if topic not in topics:
        raise InputError(f"expected path or streaming, got {topic!r}")
    out.mkdir(parents=True, exist_ok=True)
    for title, table in topics[topic](out, quick).items():
        print(f"{title}\n\n{table}\n")
