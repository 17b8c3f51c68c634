"""Benchmarks: the sweep beside MILP and fairpyx on the same matrices, and how time grows with the number of goods."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from noisy_fairdiv.core import envy, threshold_allocation
from noisy_fairdiv.data import to_fairpyx
from noisy_fairdiv.instances import uniform_instance
from noisy_fairdiv.multi import balanced_allocation
from noisy_fairdiv.solvers import enumerate_allocations, milp_allocation, round_robin
from papershelf import Streams, require
from papershelf.bench import as_values, compare, markdown_table, write_results

EXTRA = "papershelf-noisy-fairdiv[fairpyx]"


def _fairpyx_owner(bundles: dict[str, list[str]], m: int) -> np.ndarray:
    owner = np.empty(m, np.int64)
    for agent, goods in bundles.items():
        owner[[int(good) for good in goods]] = int(agent.split()[-1])
    return owner


def peers(out: Path, quick: bool = False) -> dict[str, str]:
    """Same matrices: sweep, least envy by MILP, and fairpyx's rules that finish."""
    fairpyx = require("fairpyx", EXTRA)
    rng = Streams(0).numpy("peers")
    tables: dict[str, str] = {}
    values: dict[str, Any] = {}
    for m in (20, 50) if quick else (50, 100, 1000, 100_000):
        U = uniform_instance(m, rng)
        owners: dict[str, np.ndarray] = {}

        def timed(
            name: str, solve: Callable[[], np.ndarray], owners: dict[str, np.ndarray] = owners
        ) -> Callable[[], None]:
            def call() -> None:
                owners[name] = solve()

            return call

        contenders = {
            "sweep": lambda U=U: threshold_allocation(U, local_search=False).owner,
            "sweep + local search": lambda U=U: threshold_allocation(U).owner,
        }
        if m <= 1000:
            contenders["MILP (HiGHS, at most 20 s)"] = lambda U=U: milp_allocation(U, 20.0).owner
        if m <= 100:
            contenders["fairpyx almost_egalitarian"] = lambda U=U, m=m: _fairpyx_owner(
                fairpyx.divide(fairpyx.algorithms.almost_egalitarian_allocation, to_fairpyx(U)), m
            )
        if m <= 1000:
            contenders["round robin"] = lambda U=U: round_robin(U)
            contenders["fairpyx round_robin"] = lambda U=U, m=m: _fairpyx_owner(
                fairpyx.divide(fairpyx.algorithms.round_robin, to_fairpyx(U)), m
            )
        timings = compare({name: timed(name, solve) for name, solve in contenders.items()}, repeat=3)
        tables[f"Two agents, m = {m:,}, exact uniform values"] = markdown_table(timings)
        tables[f"Envy at m = {m:,} (below 0: envy-free)"] = ", ".join(
            f"{name} {envy(U, owner):.3f}" for name, owner in owners.items()
        )
        values[str(m)] = {"times": as_values(timings), "envy": {name: envy(U, owner) for name, owner in owners.items()}}
    write_results(out / "peers.json", tables, values)
    return tables


def _seconds(function: Callable[[], Any]) -> float:
    """Median of three calls; one of a call that takes more than five seconds."""
    taken: list[float] = []
    while len(taken) < 3 and sum(taken) < 5:
        started = time.perf_counter()
        function()
        taken.append(time.perf_counter() - started)
    return float(np.median(taken))


def scaling(out: Path, quick: bool = False) -> dict[str, str]:
    """Time against the number of goods and of agents."""
    rng = Streams(0).numpy("scaling")
    sizes = (100, 1000) if quick else (100, 1000, 10_000, 100_000, 1_000_000)
    rules: dict[str, tuple[int, Callable[[np.ndarray], Any]]] = {
        "sweep (plugin)": (10**7, lambda V: threshold_allocation(V, 0.5, "plugin")),
        "stein": (10**7, lambda V: threshold_allocation(V, 0.5, "stein")),
        "eb": (10**7, lambda V: threshold_allocation(V, 0.5, "eb")),
        "local search": (10**7, lambda V: threshold_allocation(np.abs(V))),
        "MILP, at most 60 s": (2000, lambda V: milp_allocation(V, 60.0)),
    }
    by_rule: dict[str, list[float]] = {name: [] for name in rules}
    for m in sizes:
        V = uniform_instance(m, rng) + 0.5 * rng.standard_normal((2, m))
        for name, (most, function) in rules.items():
            by_rule[name].append(_seconds(lambda f=function, V=V: f(V)) if m <= most else float("nan"))
    rows = ["| rule | " + " | ".join(f"m={m:,}" for m in sizes) + " |", "| --- |" + " --- |" * len(sizes)]
    for name, taken in by_rule.items():
        rows.append(
            f"| {name} | " + " | ".join("not run" if np.isnan(t) else f"{1e3 * t:.3g} ms" for t in taken) + " |"
        )
    tables = {"Time against goods, two agents": "\n".join(rows)}
    agents = (2, 3) if quick else (2, 3, 5, 10, 20)
    m = 200 if quick else 2000
    by_agents = [_seconds(lambda n=n: balanced_allocation(uniform_instance(m, rng, n))) for n in agents]
    rows = ["| agents | " + " | ".join(str(n) for n in agents) + " |", "| --- |" + " --- |" * len(agents)]
    rows.append("| time | " + " | ".join(f"{1e3 * t:.3g} ms" for t in by_agents) + " |")
    tables[f"Balanced weights, m = {m:,}"] = "\n".join(rows)
    goods = (8, 12) if quick else (12, 16, 20, 22)
    taken = [_seconds(lambda k=k: enumerate_allocations(uniform_instance(k, rng))) for k in goods]
    rows = ["| goods | " + " | ".join(str(k) for k in goods) + " |", "| --- |" + " --- |" * len(goods)]
    rows.append("| time | " + " | ".join(f"{1e3 * t:.3g} ms" for t in taken) + " |")
    tables["Enumeration, two agents"] = "\n".join(rows)
    write_results(out / "scaling.json", tables, {"goods": sizes, "seconds": by_rule, "agents": by_agents})
    return tables
