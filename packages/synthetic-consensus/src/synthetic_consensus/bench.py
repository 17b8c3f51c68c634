"""Benchmarks: the fit beside the deployed optimiser, growth, final scoring, attacks."""

from __future__ import annotations

import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from papershelf.bench import as_values, compare, markdown_table, write_results
from synthetic_consensus.attack import Positions, attack, attack_all
from synthetic_consensus.data import synthetic
from synthetic_consensus.mf import BridgingMF
from synthetic_consensus.rules import StatusRules


def peers(out: Path, quick: bool = False) -> dict[str, str]:
    """Time to convergence against the loss minimised by Adam in torch with the deployed stopping rule; same ratings."""
    sizes = (600, 300, 15_000) if quick else (5000, 4000, 220_000)
    ratings = synthetic(*sizes, "dense", rng=0)[0].filter()
    losses: dict[str, float] = {}

    def fitted(name: str, **options: Any) -> Callable[[], None]:
        def call() -> None:
            losses[name] = BridgingMF(n_init=1, random_state=0, **options).fit(ratings).loss_

        return call

    timings = compare(
        {
            "Adam in torch, deployed stopping rule": fitted("Adam in torch", solver="torch"),
            "alternating least squares, 1 thread": fitted("alternating least squares", tol=1e-7),
            "alternating least squares, 2 threads": fitted("alternating least squares", tol=1e-7, n_jobs=2),
        },
        repeat=3,
    )
    tables = {
        f"{ratings.size:,} ratings of {ratings.n_raters:,} raters and {ratings.n_notes:,} notes": markdown_table(
            timings
        ),
        "Loss reached": ", ".join(f"{name} {loss:.6f}" for name, loss in losses.items()),
    }
    write_results(out / "peers.json", tables, {"times": as_values(timings), "losses": losses})
    return tables


def scaling(out: Path, quick: bool = False) -> dict[str, str]:
    """Time a sweep, whole fits, final scoring and peak memory against the number of ratings; audits."""
    rows = [
        "| ratings | fit | sweeps | a sweep | final scoring | peak of arrays |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    sizes = (10_000, 100_000) if quick else (100_000, 1_000_000, 10_000_000)
    for wanted in sizes:
        ratings = synthetic(max(wanted // 40, 50), max(wanted // 50, 50), int(1.15 * wanted), "dense", rng=0)[0]
        started = time.perf_counter()
        model = BridgingMF(n_init=1, random_state=0, tol=1e-8, n_jobs=2).fit(ratings)
        taken = time.perf_counter() - started
        started = time.perf_counter()
        model.score_notes()
        scored = time.perf_counter() - started
        tracemalloc.start()
        BridgingMF(n_init=1, random_state=0, max_iter=2, tol=0.1, n_jobs=2).fit(ratings)
        peak = tracemalloc.get_traced_memory()[1] / ratings.size
        tracemalloc.stop()
        rows.append(
            f"| {ratings.size:,} | {taken:.2f} s | {model.n_iter_} | {1e3 * taken / model.n_iter_:.1f} ms | "
            f"{1e3 * scored:.1f} ms | {peak:.0f} bytes a rating |"
        )
    ratings = synthetic(
        2000 if quick else 10_000, 800 if quick else 6000, 40_000 if quick else 270_000, "sparse", rng=0
    )[0].filter()
    model = BridgingMF(n_init=1, random_state=0, tol=1e-8).fit(ratings)
    many = Positions.of(model, np.tile(np.linspace(-1, 1, 7), 5), np.repeat(np.linspace(-0.4, 0.2, 5), 7))
    started = time.perf_counter()
    attack_all(model, many, 9, rules=StatusRules.intercept_only())
    greedy = time.perf_counter() - started
    notes = np.argsort(model.note_intercept_)[-200:-180]
    typical = Positions.named(model, "typical")
    from synthetic_consensus.marginal import model_stats

    stats = model_stats(model)
    started = time.perf_counter()
    for note in notes:
        attack(model, int(note), typical, 9, stats=stats)
    beam = (time.perf_counter() - started) / notes.size
    audits = (
        f"greedy on all {ratings.n_notes:,} notes, 105 types, 9 ratings: {greedy:.2f} s; beam of 200 states, 15 types: "
        f"{1e3 * beam:.0f} ms a note"
    )
    tables = {"Fit and final scoring, two threads": "\n".join(rows), "Attacks, one thread": audits}
    write_results(out / "scaling.json", tables, {"greedy": greedy, "beam": beam})
    return tables
