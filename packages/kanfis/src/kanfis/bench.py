"""Fit time and error beside other libraries, type reduction beside pyit2fls, and prediction of a million rows."""

from __future__ import annotations

import time
import tracemalloc
import warnings
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from sklearn.base import clone
from threadpoolctl import threadpool_limits

from kanfis.claims import TABLES, numeric, ours, score, split
from kanfis.data import Table, load
from kanfis.estimators import KANFISClassifier, KANFISRegressor
from kanfis.peers import peers
from kanfis.typereduce import karnik_mendel
from papershelf.bench import as_values, compare, markdown_table, write_results

COLUMNS = ("kanfis", "paper training", "EBM", "pyGAM", "xanfis", "anfis-toolbox", "pykan")


def _models(table: Table) -> dict[str, Any]:
    kind: Any = KANFISClassifier if table.classification else KANFISRegressor
    others = peers(table.classification, pd.get_dummies(table.X).shape[1])
    if table.name == "bikeshare":  # minutes each
        others = {name: model for name, model in others.items() if name not in ("xanfis", "pykan")}
    return {"kanfis": ours(table), "paper training": numeric(table, kind.paper(random_state=0)), **others}


def bench_peers(out: Path, quick: bool = False) -> dict[str, str]:
    """Fit and predict time and error on the same splits, one process, one thread; type reduction beside pyit2fls."""
    import torch

    torch.set_num_threads(1)
    names, seeds = (("iris", "diabetes"), 1) if quick else (TABLES, 3)
    rows = [
        "| table | " + " | ".join(COLUMNS) + " |",
        "| --- |" + " --- |" * len(COLUMNS),
    ]
    values: dict[str, Any] = {}
    for name in names:
        table, cells = load(name), []
        for key in COLUMNS:
            model = _models(table).get(key)
            if model is None or (quick and key in ("paper training", "xanfis", "pyGAM")):
                cells.append("-")
                continue
            found = []
            for seed in range(1 if name == "bikeshare" else seeds):
                a, b, c, d = split(table, seed)
                with warnings.catch_warnings(), threadpool_limits(1):
                    warnings.simplefilter("ignore")
                    started = time.perf_counter()
                    try:
                        predicted = clone(model).fit(a, c).predict(b)
                        found.append((score(table, d, predicted), time.perf_counter() - started))
                    except Exception as error:  # a peer that fails is reported, not hidden
                        cells.append(f"failed ({type(error).__name__})")
                        break
            else:
                found = np.array(found)
                values[f"{name} {key}"] = found
                spread = f" ±{found[:, 0].std():.2g}" if len(found) > 1 else ""
                cells.append(f"{found[:, 0].mean():.3f}{spread}, {found[:, 1].mean():.2f} s")
        rows.append(f"| {name} | " + " | ".join(cells) + " |")
    tables = {f"Accuracy or RMSE, and time of fit and predict, {seeds} splits, one thread": "\n".join(rows)}
    tables |= _type_reduction(quick, values)
    tables |= _prediction(quick, values)
    write_results(out / "peers.json", tables, values)
    return tables


def _type_reduction(quick: bool, values: dict[str, Any]) -> dict[str, str]:
    if not find_spec("pyit2fls"):
        return {}
    from pyit2fls import EIASC_algorithm

    rng, points, rules = np.random.default_rng(0), 1_000 if quick else 10_000, 9
    c = np.sort(rng.normal(size=rules))
    upper = rng.uniform(0.2, 1, (points, rules))
    lower = upper * rng.uniform(0.2, 1, (points, rules))

    def theirs() -> np.ndarray:
        return np.array([EIASC_algorithm(np.stack([c, c, lo, up], 1)) for lo, up in zip(lower, upper, strict=True)])

    gap = np.abs(theirs() - np.stack(karnik_mendel(c, lower, upper), 1)).max()
    timings = compare({"pyit2fls EIASC": theirs, "kanfis": lambda: karnik_mendel(c, lower, upper)}, repeat=3)
    values["type reduction"] = as_values(timings)
    return {
        f"Karnik-Mendel end points of {points:,} points, {rules} rules (largest difference {gap:.0e})": markdown_table(
            timings
        )
    }


def _prediction(quick: bool, values: dict[str, Any]) -> dict[str, str]:
    rng = np.random.default_rng(0)
    rows = 50_000 if quick else 1_000_000
    X = rng.standard_normal((rows, 20))
    y = np.sin(X[:, :5]).sum(1) + 0.1 * rng.standard_normal(rows)
    model = KANFISRegressor().fit(X[:20_000], y[:20_000])
    started = time.perf_counter()
    model.predict(X)
    predicted = time.perf_counter() - started
    wide = rng.standard_normal((5_000 if quick else 100_000, 50))
    target = np.sin(wide[:, :5]).sum(1) + 0.1 * rng.standard_normal(len(wide))
    started = time.perf_counter()
    KANFISRegressor(n_memberships=5).fit(wide, target)
    fitted = time.perf_counter() - started
    tracemalloc.start()
    KANFISRegressor(n_memberships=5).fit(wide, target)
    peak = tracemalloc.get_traced_memory()[1] / 1e6
    tracemalloc.stop()
    values["large"] = {"predict": predicted, "fit": fitted, "peak_mb": peak}
    return {
        "Large tables": f"prediction of {rows:,} x 20, three terms: {predicted:.2f} s; fit of {len(wide):,} x 50, "
        f"five terms: {fitted:.1f} s, "
        f"{peak:.0f} MB of arrays"
    }
