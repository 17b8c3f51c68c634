"""Fit time and error beside other libraries, type reduction beside pyit2fls, and prediction of a million rows."""

from __future__ import annotations

import time
import tracemalloc
import warnings
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from threadpoolctl import threadpool_limits

from kanfis.claims import TABLES, numeric, ours, score, split
from kanfis.data import Table, load
from kanfis.estimators import KANFISClassifier, KANFISRegressor
from kanfis.typereduce import karnik_mendel
from papershelf.bench import as_values, compare, markdown_table, write_results


def _peers(table: Table) -> dict[str, Callable[[], Any]]:
    kind: Any = KANFISClassifier if table.classification else KANFISRegressor
    found: dict[str, Callable[[], Any]] = {
        "kanfis": lambda: ours(table),
        "paper training": lambda: numeric(table, kind.paper(random_state=0)),
    }
    if find_spec("interpret"):
        from kanfis.claims import _ebm

        found["EBM"] = lambda: _ebm(table.classification)
    if find_spec("anfis_toolbox") and pd.get_dummies(table.X).shape[1] <= 7:
        found["anfis-toolbox"] = lambda: _toolbox(table)
    if find_spec("kan") and table.name != "bikeshare":
        found["pykan"] = lambda: _Pykan(table.classification)
    return found


def _toolbox(table: Table) -> Any:
    """anfis-toolbox on standardised inputs, with two memberships an input and 20 epochs."""
    from anfis_toolbox import ANFISClassifier, ANFISRegressor
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    if table.classification:
        return _Coded(make_pipeline(StandardScaler(), ANFISClassifier(n_mfs=2, epochs=20, random_state=0)))
    return make_pipeline(StandardScaler(), ANFISRegressor(n_mfs=2, epochs=20, random_state=0))


class _Coded:
    """A classifier that wants codes 0, 1, ... in place of words."""

    def __init__(self, model: Any) -> None:
        self.model = model

    def fit(self, X: pd.DataFrame, y: pd.Series) -> _Coded:
        self.classes, codes = np.unique(np.asarray(y), return_inverse=True)
        self.model.fit(X.to_numpy(), codes)
        return self

    def predict(self, X: pd.DataFrame) -> np.ndarray:
        return self.classes[np.asarray(self.model.predict(X.to_numpy())).astype(int)]


class _Pykan:
    """pykan's [D, 5, O] network, 20 steps of LBFGS on standardised inputs."""

    def __init__(self, classification: bool) -> None:
        self.classification = classification

    def fit(self, X: pd.DataFrame, y: pd.Series) -> _Pykan:
        import contextlib
        import io
        import tempfile

        import torch
        from kan import KAN

        values = pd.get_dummies(X).astype(float)
        self.columns, self.mean, self.scale = values.columns, values.mean(), values.std().replace(0, 1)
        Z = torch.tensor(((values - self.mean) / self.scale).to_numpy(), dtype=torch.float32)
        if self.classification:
            self.classes, codes = np.unique(np.asarray(y), return_inverse=True)
            T, loss = torch.tensor(codes), torch.nn.CrossEntropyLoss()
            out = len(self.classes)
        else:
            self.shift, self.spread = float(y.mean()), float(y.std())
            T, loss, out = (
                torch.tensor(((y - self.shift) / self.spread).to_numpy(), dtype=torch.float32)[:, None],
                None,
                1,
            )
        with (
            tempfile.TemporaryDirectory() as folder,
            contextlib.redirect_stdout(io.StringIO()),
            contextlib.redirect_stderr(io.StringIO()),
        ):
            self.model = KAN(width=[Z.shape[1], 5, out], grid=5, k=3, seed=0, auto_save=False, ckpt_path=folder)
            data = {"train_input": Z, "train_label": T, "test_input": Z, "test_label": T}
            self.model.fit(data, opt="LBFGS", steps=20, loss_fn=loss, update_grid=False)
        return self

    def predict(self, X: pd.DataFrame) -> np.ndarray:
        import torch

        values = pd.get_dummies(X).astype(float).reindex(columns=self.columns, fill_value=0.0)
        with torch.no_grad():
            out = self.model(torch.tensor(((values - self.mean) / self.scale).to_numpy(), dtype=torch.float32)).numpy()
        return self.classes[out.argmax(1)] if self.classification else out[:, 0] * self.spread + self.shift


def peers(out: Path, quick: bool = False) -> dict[str, str]:
    """Fit and predict time and error on the same splits, one process, one thread; type reduction beside pyit2fls."""
    import torch

    torch.set_num_threads(1)
    names, seeds = (("iris", "diabetes"), 1) if quick else (TABLES, 3)
    rows = [
        "| table | " + " | ".join(("kanfis", "paper training", "EBM", "anfis-toolbox", "pykan")) + " |",
        "| --- |" + " --- |" * 5,
    ]
    values: dict[str, Any] = {}
    for name in names:
        table, cells = load(name), []
        for key in ("kanfis", "paper training", "EBM", "anfis-toolbox", "pykan"):
            make = _peers(table).get(key)
            if make is None or (quick and key == "paper training"):
                cells.append("-")
                continue
            found = []
            for seed in range(1 if name == "bikeshare" else seeds):
                a, b, c, d = split(table, seed)
                with warnings.catch_warnings(), threadpool_limits(1):
                    warnings.simplefilter("ignore")
                    started = time.perf_counter()
                    try:
                        predicted = make().fit(a, c).predict(b)
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
