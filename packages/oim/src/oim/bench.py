"""Benchmarks: the simulator beside its peers, and how time grows with size."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np

from oim import plots
from oim.data import load_graph, weighted_cascade
from oim.ic import ICGraph, simulate, spread
from oim.learning import NodeTrials, fit
from oim.online import CascadeEnv, EnsembleOIM
from oim.oracles import opim_c, rr_sets
from papershelf import Streams, require
from papershelf.bench import as_values, compare, markdown_table, write_results


def barabasi_albert(n: int, degree: int = 5, p: float = 0.1) -> ICGraph:
    """Both directions of a Barabasi-Albert graph, about 2 n degree arcs."""
    return ICGraph.from_networkx(nx.barabasi_albert_graph(n, degree, seed=1), p)


def peers(out: Path, quick: bool = False) -> dict[str, str]:
    """One thread and two against CyNetDiff and NDlib: same graph, seeds and number of runs."""
    require("cynetdiff", "papershelf-oim[bench]")
    require("ndlib", "papershelf-oim[bench]")
    import ndlib.models.epidemics as epidemics
    import ndlib.models.ModelConfig as config
    from cynetdiff.utils import networkx_to_ic_model

    n, runs = (1000, 20) if quick else (10_000, 200)
    graph, chosen = nx.barabasi_albert_graph(n, 5, seed=1), [0, 1, 2, 3, 4]
    g = ICGraph.from_networkx(graph, 0.1)
    model, _ = networkx_to_ic_model(graph.to_directed(), activation_prob=0.1)
    model.set_seeds(chosen)
    rng = Streams(0).numpy("peers")

    def cynetdiff() -> np.ndarray:
        sizes = np.empty(runs)
        for i in range(runs):
            model.reset_model()
            model.advance_until_completion()
            sizes[i] = model.get_num_activated_nodes()
        return sizes

    settings = config.Configuration()
    settings.add_model_initial_configuration("Infected", chosen)
    directed = graph.to_directed()
    for edge in directed.edges():
        settings.add_edge_configuration("threshold", edge, 0.1)
    ndlib_runs = max(1, runs // 10)

    def ndlib() -> np.ndarray:
        sizes = np.empty(ndlib_runs)
        for i in range(ndlib_runs):
            slow = epidemics.IndependentCascadesModel(directed, seed=random.randrange(2**31))
            slow.set_initial_status(settings)
            counts = slow.iteration()["node_count"]
            while counts[1]:
                counts = slow.iteration()["node_count"]
            sizes[i] = counts[2]
        return sizes

    fast = compare(
        {
            "CyNetDiff": cynetdiff,
            "oim, 1 thread": lambda: spread(g, chosen, runs, rng),
            "oim, 2 threads": lambda: spread(g, chosen, runs, rng, 2),
        },
        repeat=3 if quick else 11,
    )
    slow = compare(
        {f"NDlib ({ndlib_runs} runs)": ndlib, f"oim ({ndlib_runs} runs)": lambda: spread(g, chosen, ndlib_runs, rng)},
        repeat=1 if quick else 3,
    )
    theirs, ours = cynetdiff(), spread(g, chosen, 10 * runs, rng)
    gap = abs(theirs.mean() - ours.mean) / np.hypot(theirs.std(ddof=1) / np.sqrt(runs), ours.se)
    title = f"Independent cascade, Barabási-Albert n={g.n:,}, m={g.m:,}, p=0.1, 5 seeds, {runs} runs"
    tables = {title: markdown_table(fast), "The same, against NDlib": markdown_table(slow)}
    tables["Agreement"] = (
        f"mean spread: CyNetDiff {theirs.mean():.1f}, oim {ours.mean:.1f}, {gap:.1f} standard errors apart"
    )
    write_results(out / "peers.json", tables, {"fast": as_values(fast), "slow": as_values(slow), "gap_se": gap})
    return tables


def _seconds(function: Callable[[], Any], least: float = 0.2) -> float:
    """Median time of a call, over at least three calls and ``least`` seconds, after one that does not count.

    Calls of more than ten seconds are fewer: none is begun after thirty.
    """
    function()
    taken: list[float] = []
    while (len(taken) < 3 or sum(taken) < least) and sum(taken) < 30:
        started = time.perf_counter()
        function()
        taken.append(time.perf_counter() - started)
        if len(taken) >= 50:
            break
    return float(np.median(taken))


def _operations(g: ICGraph) -> dict[str, Callable[[], Any]]:
    rng = Streams(0).numpy("scaling")
    cascades = weighted_cascade(g)
    campaign = CascadeEnv(cascades, 0)
    roots = np.argsort(-g.out_degree)[:50]
    rounds = [campaign.round(t, np.array([roots[t % 50]]))[0] for t in range(50)]
    trials = NodeTrials(g)
    trials.add_many(np.array(rounds))
    learner = EnsembleOIM(g, 10, n0=0, n_rr=2000, random_state=0)
    learner.trials = trials

    def extract() -> None:
        store = NodeTrials(g)
        for row in rounds:
            store.add(row)

    def update() -> None:
        trials.dirty[:] = trials.n_trials > 0
        learner._update()

    return {
        "simulate, 20 runs": lambda: spread(cascades, roots[:10], 20, rng),
        "2,000 RR sets": lambda: rr_sets(cascades, 2000, rng),
        "OPIM-C, k=10": lambda: opim_c(cascades, 10, 0.2, rng=rng),
        "trials of 50 cascades": extract,
        "maximum likelihood, 50 cascades": lambda: fit(trials),
        "ensemble update, M=8": update,
    }


def scaling(out: Path, quick: bool = False) -> dict[str, str]:
    """Time against arcs, in-degree, ensemble size and k, and two threads against one."""
    nodes = [100, 1000] if quick else [100, 1000, 10_000, 100_000]
    graphs = [barabasi_albert(n) for n in nodes]
    arcs = np.array([g.m for g in graphs])
    taken: dict[str, list[float]] = {}
    for g in graphs:
        for name, function in _operations(g).items():
            taken.setdefault(name, []).append(_seconds(function))
    by_size = {name: np.array(values) for name, values in taken.items()}
    rows = ["| operation | " + " | ".join(f"m={m:,}" for m in arcs) + " | log-log slope |"]
    rows.append("| --- |" + " --- |" * (len(arcs) + 1))
    for name, values in by_size.items():
        slope = np.polyfit(np.log(arcs[-3:]), np.log(values[-3:]), 1)[0]
        cells = (f"{1e3 * v:.3g} ms" for v in values)
        rows.append(f"| {name} | " + " | ".join(cells) + f" | {slope:.2f} |")
    plots.scaling(out / "scaling", arcs, by_size, "arcs")
    tables = {"Time against arcs": "\n".join(rows)}
    tables["Ensemble update against largest in-degree"] = _in_degree_table(quick)
    tables["Ensemble update against M and k (lesmis)"] = _ensemble_table(quick)
    tables["Two threads against one"] = _thread_table(graphs[-1])
    write_results(out / "scaling.json", tables, {"arcs": arcs, "seconds": by_size})
    return tables


def _star_update(degree: int) -> float:
    """Update time where one node has this many parents and 200 cascades were seen."""
    g = ICGraph(degree + 1, np.arange(degree), np.full(degree, degree), 0.1)
    rng, trials = Streams(0).numpy("star"), NodeTrials(g)
    for _ in range(200):
        trials.add(simulate(g, rng.choice(degree, size=min(3, degree), replace=False), rng))
    learner = EnsembleOIM(g, 1, n0=0, n_rr=2000, random_state=0)
    learner.trials = trials

    def update() -> None:
        trials.dirty[:] = trials.n_trials > 0
        learner._update()

    return _seconds(update)


def _in_degree_table(quick: bool) -> str:
    degrees = [4, 32] if quick else [4, 16, 64, 128, 256, 512]
    rows = ["| in-degree | update |", "| --- | --- |"]
    return "\n".join([*rows, *(f"| {d} | {1e3 * _star_update(d):.3g} ms |" for d in degrees)])


def _ensemble_table(quick: bool) -> str:
    g = weighted_cascade(load_graph("lesmis"))
    campaign = CascadeEnv(g, 0)
    rows = ["| M | k | update |", "| --- | --- | --- |"]
    for M, k in [(2, 3), (8, 3)] if quick else [(2, 3), (8, 3), (32, 3), (8, 10), (8, 30)]:
        learner = EnsembleOIM(g, k, M=M, n0=0, random_state=0)
        for t in range(200):
            learner.trials.add(campaign.round(t, np.array([t % g.n]))[0])

        def update(learner: EnsembleOIM = learner) -> None:
            learner.trials.dirty[:] = learner.trials.n_trials > 0
            learner._update()

        rows.append(f"| {M} | {k} | {1e3 * _seconds(update):.3g} ms |")
    return "\n".join(rows)


def _thread_table(g: ICGraph) -> str:
    rng, wc = Streams(0).numpy("threads"), weighted_cascade(g)
    seeds = np.argsort(-g.out_degree)[:10]
    tasks: dict[str, Callable[[int], Any]] = {
        "simulate, 500 runs": lambda jobs: spread(wc, seeds, 500, rng, jobs),
        "50,000 RR sets": lambda jobs: rr_sets(wc, 50_000, rng, jobs),
    }
    rows = ["| task | one thread | two threads | speed-up |", "| --- | --- | --- | --- |"]
    for name, task in tasks.items():
        timed = compare({"one": lambda task=task: task(1), "two": lambda task=task: task(2)}, repeat=7)
        one, two = (1e3 * t.median for t in timed)
        rows.append(f"| {name} | {one:.3g} ms | {two:.3g} ms | {timed[1].ratio:.2f}x |")
    return "\n".join(rows)
