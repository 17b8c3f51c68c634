"""The ``oim`` command."""

from __future__ import annotations

import csv
import io
import json
import math
import sys
import warnings
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from oim import oracles
from oim.claims import PAPER
from oim.data import BUILT_IN, COLLECTION, DEBIAN_PACKAGE, load_graph, read_cascades
from oim.ic import ICGraph, simulate_many, spread
from oim.learning import ICEstimator
from oim.online import POLICIES, CascadeEnv, NodeLearner, regret, tail_slope
from oim.online import run as play
from papershelf import InputError, Streams
from papershelf import cli as shelf
from papershelf.files import atomic_path, atomic_write
from papershelf.reproduce import plain, progress_bar
from papershelf.stats import bootstrap_interval
from papershelf.sweep import sweep

app = shelf.app(PAPER)

Graph = Annotated[str, typer.Argument(help="Named graph (see 'oim graphs') or a file: edge list, .mtx, .gt, .gml.")]
Prob = Annotated[str, typer.Option("--prob", help="wc, trivalency, uniform:P, random:LOW:HIGH, or column.")]
Seed = Annotated[int, typer.Option("--seed", min=0, help="Seed of all randomness.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Jobs = Annotated[int, typer.Option("--jobs", min=1, help="Threads or processes.")]
DataDir = Annotated[Path | None, typer.Option("--data-dir", help="Folder with the collection's .gt.gz files.")]
Undirected = Annotated[bool, typer.Option("--undirected", help="Every line of the edge list is two arcs.")]


def _graph(source: str, prob: str, seed: int, data_dir: Path | None, undirected: bool) -> ICGraph:
    g = load_graph(source, prob, Streams(seed).numpy("probabilities"), data_dir, not undirected)
    if g.dropped_loops or g.merged_arcs:
        print(f"{source}: dropped {g.dropped_loops} loops, merged {g.merged_arcs} parallel arcs", file=sys.stderr)
    return g


def _print_json(value: Any) -> None:
    print(json.dumps(plain(value), ensure_ascii=False))


@app.command()
def seeds(
    graph: Graph,
    k: Annotated[int, typer.Option("-k", help="Number of seeds.")] = 10,
    prob: Prob = "wc",
    oracle: Annotated[str, typer.Option("--oracle", help="opim-c, imm, ris, celf, exact, ...")] = "opim-c",
    eps: Annotated[float, typer.Option("--eps", help="Accuracy of opim-c and imm.")] = 0.1,
    model: Annotated[str, typer.Option("--model", help="ic or lt.")] = "ic",
    seed: Seed = 0,
    jobs: Jobs = 1,
    data_dir: DataDir = None,
    undirected: Undirected = False,
    as_json: Json = False,
) -> None:
    """Find k seeds for a known graph; opim-c comes with a certificate of its quality."""
    if model not in ("ic", "lt"):
        raise InputError(f"--model must be ic or lt, got {model!r}")
    g, rng = _graph(graph, prob, seed, data_dir, undirected), Streams(seed).numpy("oracle")
    found = _find(g, k, oracle, eps, model, rng, jobs)
    checked = spread(g, found.nodes, 4000, Streams(seed).numpy("check"), jobs, model)
    if as_json:
        names = ("spread", "lower", "upper", "ratio", "n_rr", "seconds")
        shown = {name: getattr(found, name) for name in names}
        _print_json({"seeds": list(found.seeds), **shown, "simulated": checked.mean, "simulated_se": checked.se})
        return
    print(f"seeds      {', '.join(str(s) for s in found.seeds)}")
    print(f"spread     {checked.mean:.1f} ± {1.96 * checked.se:.1f} of {g.n} nodes (4,000 simulations)")
    if not math.isnan(found.ratio):
        print(
            f"certified  at least {found.lower:.1f}; no {k} seeds exceed {found.upper:.1f}; "
            f"ratio {found.ratio:.3f} (needed {oracles.ONE_MINUS_1_E - eps:.3f})"
        )
    print(f"time       {found.seconds:.2f} s, {found.n_rr:,} samples")


def _find(
    g: ICGraph, k: int, oracle: str, eps: float, model: Any, rng: np.random.Generator, jobs: int
) -> oracles.SeedResult:
    match oracle:
        case "opim-c":
            return oracles.opim_c(g, k, eps, rng=rng, n_jobs=jobs, model=model)
        case "imm":
            return oracles.imm(g, k, eps, rng=rng, n_jobs=jobs, model=model)
        case "ris":
            return oracles.ris_greedy(g, k, rng=rng, n_jobs=jobs, model=model)
        case "celf" if model == "ic":
            return oracles.celf(g, k, rng=rng)
        case "exact" if model == "ic":
            return oracles.exact_seeds(g, k)
        case "degree" | "pagerank":
            nodes = {"degree": oracles.degree, "pagerank": oracles.pagerank}[oracle](g, k)
            return oracles.SeedResult(nodes, g.names(nodes), math.nan)
    raise InputError(f"--oracle must be opim-c, imm, ris, celf, exact, degree or pagerank ({model}), got {oracle!r}")


def _labels(g: ICGraph, words: str) -> list[Any]:
    numeric = g.labels is None or isinstance(g.labels[0], int)
    try:
        return [int(word) if numeric else word.strip() for word in words.split(",")]
    except ValueError:
        raise InputError(f"the graph's nodes are integers, got the seeds {words!r}") from None


@app.command()
def simulate(
    graph: Graph,
    seeds: Annotated[str, typer.Option("--seeds", help="Seed nodes, separated by commas.")],
    runs: Annotated[int, typer.Option("--runs", help="Simulations.")] = 10_000,
    prob: Prob = "wc",
    model: Annotated[str, typer.Option("--model", help="ic or lt.")] = "ic",
    out: Annotated[Path | None, typer.Option("-o", help="Write activation steps of all runs, .npz.")] = None,
    seed: Seed = 0,
    jobs: Jobs = 1,
    data_dir: DataDir = None,
    undirected: Undirected = False,
    as_json: Json = False,
) -> None:
    """Simulate cascades from given seeds."""
    if model not in ("ic", "lt"):
        raise InputError(f"--model must be ic or lt, got {model!r}")
    g = _graph(graph, prob, seed, data_dir, undirected)
    nodes = g.index(_labels(g, seeds))
    found = spread(g, nodes, runs, Streams(seed).numpy("simulate"), jobs, model)
    if out is not None:
        times = simulate_many(g, nodes, runs, Streams(seed).numpy("simulate"), jobs, model)
        with atomic_path(out) as temporary, temporary.open("wb") as file:
            np.savez_compressed(file, times=times)
    if as_json:
        _print_json({"mean": found.mean, "se": found.se, "runs": found.runs})
    else:
        print(f"spread {found.mean:.2f} ± {1.96 * found.se:.2f} of {g.n} nodes ({runs:,} runs)")


@app.command()
def learn(
    graph: Graph,
    cascades: Annotated[Path, typer.Argument(help="Cascade log: CSV cascade,node,step, or NetInf's format.")],
    out: Annotated[Path, typer.Option("-o", help="Write the estimates, CSV.")] = Path("edges.csv"),
    estimator: Annotated[str, typer.Option("--estimator", help="mle, pseudo or em.")] = "mle",
    step: Annotated[float | None, typer.Option("--step", help="Length of a step, for real-valued times.")] = None,
    external: Annotated[
        bool, typer.Option("--external", help="Accept nodes that no parent explains: they adopted on their own.")
    ] = False,
    observed_until: Annotated[int | None, typer.Option("--observed-until", help="Last step watched.")] = None,
    data_dir: DataDir = None,
    undirected: Undirected = False,
    as_json: Json = False,
) -> None:
    """Fit edge probabilities to logged cascades; writes p, theta, standard error and trials of every arc."""
    g = _graph(graph, "uniform:0", 0, data_dir, undirected)
    logs = read_cascades(cascades, g, step)
    fitted = ICEstimator(estimator).fit(g, logs, observed_until, external)  # ty: ignore[invalid-argument-type]
    table = io.StringIO()
    writer = csv.writer(table, lineterminator="\n")
    writer.writerow(["source", "target", "p", "theta", "se", "trials"])
    names = g.labels or range(g.n)
    rows = zip(g.src, g.dst, fitted.edge_proba_, fitted.fit_.theta, fitted.edge_se_, fitted.edge_trials_, strict=True)
    for u, v, p, theta, se, trials in rows:
        writer.writerow([names[u], names[v], f"{p:.6g}", f"{theta:.6g}", f"{se:.6g}", trials])
    atomic_write(out, table.getvalue())
    tried = int((fitted.edge_trials_ > 0).sum())
    if as_json:
        _print_json({"file": str(out), "cascades": len(logs), "arcs": g.m, "tried": tried})
    else:
        print(f"{len(logs)} cascades, {tried} of {g.m} arcs were tried; estimates in {out}")


def _campaign(
    graph: str, prob: str, k: int, T: int, policy: str, oracle: str, rep: int, seed: int, data_dir: str, folder: str
) -> dict[str, Any]:
    """One run of one policy; all policies of a repetition meet the same coins."""
    streams = Streams(seed).child(f"repetition {rep}")
    truth = load_graph(graph, prob, streams.numpy("probabilities"), Path(data_dir) if data_dir else None)
    options: dict[str, Any] = {"random_state": streams.integer("policy") % 2**31}
    if policy not in ("known", "random", "degree"):
        options |= {"horizon": T, "oracle": oracle}
    learner = POLICIES[policy](truth, k, **options)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="some edges succeeded in all")
        checkpoint = Path(folder) / f"{policy}-{rep}.npz"
        history = play(learner, CascadeEnv(truth, streams.integer("coins") % 2**31), T, checkpoint=checkpoint)
    curve = regret(history, truth, n_jobs=1)
    found = {"ref": curve.ref, "scaled": curve.scaled, "reward": history.reward, "seconds": history.seconds}
    if isinstance(learner, NodeLearner) and learner.fitted is not None:
        found |= {"p_true": truth.p, "p_fit": learner.fitted.p, "trials": learner.trials.edge_trials()}
    checkpoint.unlink(missing_ok=True)
    return found


@app.command()
def run(
    graph: Graph = "karate",
    k: Annotated[int, typer.Option("-k", help="Seeds a round.")] = 3,
    rounds: Annotated[int, typer.Option("-T", help="Rounds.")] = 2000,
    prob: Prob = "random:0:0.2",
    policy: Annotated[
        str, typer.Option("--policy", help=f"Comma-separated: {', '.join(POLICIES)}.")
    ] = "ensemble,cucb,etc,eps",
    oracle: Annotated[str, typer.Option("--oracle", help="ris, opim-c, imm, celf or exact.")] = "ris",
    reps: Annotated[int, typer.Option("--reps", min=1, help="Repetitions with other probabilities and coins.")] = 3,
    jobs: Jobs = 1,
    seed: Seed = 0,
    out: Annotated[Path, typer.Option("--out", help="Results folder.")] = Path("oim-run"),
    resume: Annotated[Path | None, typer.Option("--resume", help="Go on with the run of this folder.")] = None,
    data_dir: DataDir = None,
    as_json: Json = False,
) -> None:
    """Let policies learn on simulated campaigns and compare their regret; writes a table, pictures and all curves."""
    settings: dict[str, Any] = {
        "graph": graph,
        "prob": prob,
        "k": k,
        "T": rounds,
        "policy": policy,
        "oracle": oracle,
        "reps": reps,
        "seed": seed,
        "data_dir": str(data_dir.resolve()) if data_dir else "",
    }
    if resume is not None:
        try:
            settings = json.loads((resume / "settings.json").read_text())
        except (OSError, ValueError) as error:
            raise InputError(f"{resume} is no folder of an earlier run: {error}") from error
        out = resume
    names = [name.strip() for name in settings["policy"].split(",")]
    unknown = [name for name in names if name not in POLICIES]
    if unknown:
        raise InputError(f"unknown policy {unknown[0]!r}; known: {', '.join(POLICIES)}")
    if settings["T"] < 8:
        raise InputError(f"-T must be at least 8, got {settings['T']}")
    oracles.check_k(load_graph(settings["graph"], "uniform:0.1", data_dir=data_dir), settings["k"])
    oracles.make_oracle(settings["oracle"])
    cells = out / "cells"
    cells.mkdir(parents=True, exist_ok=True)
    atomic_write(out / "settings.json", json.dumps(settings, indent=1) + "\n")
    fixed = {name: settings[name] for name in ("graph", "prob", "k", "T", "oracle", "seed", "data_dir")}
    grid = [
        {**fixed, "policy": name, "rep": rep, "folder": str(cells)} for name in names for rep in range(settings["reps"])
    ]
    with progress_bar() as progress:
        done = sweep(_campaign, grid, jobs=jobs, cache=cells, progress=progress)
    _report(out, names, [cell.value for cell in done], settings["reps"], as_json)


def _report(out: Path, names: list[str], values: list[dict[str, Any]], reps: int, as_json: bool) -> None:
    from oim import plots

    by_policy = {name: values[i * reps : (i + 1) * reps] for i, name in enumerate(names)}
    curves: dict[str, Any] = {name: np.array([value["ref"] for value in runs]) for name, runs in by_policy.items()}
    picture, _ = plots.regret_curves(out / "regret", curves, f"Regret, mean of {reps} runs")
    with atomic_path(out / "curves.npz") as temporary, temporary.open("wb") as file:
        np.savez_compressed(file, **curves)
    rng, rows = Streams(0).numpy("table"), []
    for name, runs in by_policy.items():
        last = curves[name][:, -1]
        interval = bootstrap_interval(last, rng) if len(last) > 1 else (last[0], math.nan, math.nan)
        rows.append(
            {
                "policy": name,
                "regret": interval[0],
                "low": interval[1],
                "high": interval[2],
                "tail_slope": tail_slope(curves[name].mean(axis=0)),
                "reward": float(np.mean([value["reward"].mean() for value in runs])),
                "seconds": float(np.mean([value["seconds"] for value in runs])),
            }
        )
        if "p_fit" in runs[0]:
            last_run = runs[-1]
            plots.probability_scatter(out / f"p-{name}", last_run["p_true"], last_run["p_fit"], last_run["trials"])
    atomic_write(out / "table.json", json.dumps(plain(rows), indent=1) + "\n")
    if as_json:
        _print_json({"folder": str(out), "policies": rows})
        return
    print(PAPER.note)
    print(f"{'policy':10} {'regret [95 % interval]':32} {'tail slope':>10} {'adopters/round':>15} {'s/run':>7}")
    for row in rows:
        shown = f"{row['regret']:.0f} [{row['low']:.0f}, {row['high']:.0f}]"
        print(f"{row['policy']:10} {shown:32} {row['tail_slope']:>10.2f} {row['reward']:>15.2f} {row['seconds']:>7.1f}")
    print(f"curves, table and pictures in {out} ({picture})")


@app.command()
def graphs(as_json: Json = False) -> None:
    """List the named graphs, with checksums of those that Debian's package brings."""
    if as_json:
        _print_json({"built-in": list(BUILT_IN), DEBIAN_PACKAGE: COLLECTION})
        return
    for name in BUILT_IN:
        g = load_graph(name)
        print(f"{name:18} built in (networkx)  {g.n} nodes, {g.m} arcs")
    for name, digest in COLLECTION.items():
        print(f"{name:18} Debian package {DEBIAN_PACKAGE}, fetched when asked for  sha256 {digest}")


@app.command()
def bench(
    what: Annotated[str, typer.Argument(help="peers or scaling.")] = "peers",
    out: Annotated[Path, typer.Option("--out", help="Results folder.")] = Path("oim-bench"),
    quick: Annotated[bool, typer.Option("--quick", help="Small sizes.")] = False,
) -> None:
    """Time the simulator against CyNetDiff and NDlib, or how everything scales."""
    from oim import bench as benchmark

    if what not in ("peers", "scaling"):
        raise InputError(f"expected peers or scaling, got {what!r}")
    out.mkdir(parents=True, exist_ok=True)
    for title, table in getattr(benchmark, what)(out, quick).items():
        print(f"{title}\n{table}\n")
    print(f"results in {out}")
