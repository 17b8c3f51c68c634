"""The ablation grid: encoding, recurrence, order and read-out, each trained alike and tested on unseen clouds."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import torch

from anisonet import data as datasets
from anisonet.model import network
from anisonet.train import Trainer, evaluate, recipe_for, seeded
from papershelf.paper import Progress, silent
from papershelf.sweep import Cell, sweep


def ablation_cell(
    ese: str, gisa: bool, order: str, readout: str, seed: int, steps: int, file_order: str, data: str
) -> dict[str, Any]:
    """Train ``seg_tiny`` in one setting and score it on the data set's test part."""
    dataset = datasets.load(data)
    layers = {} if gisa else {"gisa_full": 0, "gisa_coarse": 0}
    with seeded(seed, torch.device("cpu")):
        model = network("seg_tiny", classes=len(dataset.classes), ese=ese, order=order, readout=readout, **layers)
    recipe = recipe_for("seg_tiny", steps=steps, seed=seed, file_order=file_order)
    trainer = Trainer(model, dataset.train, recipe, up=dataset.up)
    trainer.run()
    kept: Any = file_order
    meter = evaluate(trainer.model, dataset.test, file_order=kept, up=dataset.up, seed=seed)
    return {
        "miou": meter.miou,
        "accuracy": meter.accuracy,
        "parameters": sum(p.numel() for p in model.parameters()),
    }


def ablation_grid(
    eses: Sequence[str] = ("none", "sphere", "ellipsoid"),
    orders: Sequence[str] = ("identity", "morton", "hilbert", "random"),
    readouts: Sequence[str] = ("causal", "final"),
    seeds: int = 1,
    steps: int = 160,
    file_order: str = "shuffle",
    data: str = "mw-scenes",
) -> list[dict[str, Any]]:
    """All settings; without recurrence order and read-out do nothing, so that there is one of them an encoding."""
    found = []
    for seed in range(seeds):
        common = {"seed": seed, "steps": steps, "file_order": file_order, "data": data}
        for ese in eses:
            found.append({"ese": ese, "gisa": False, "order": "identity", "readout": "causal", **common})
            found += [
                {"ese": ese, "gisa": True, "order": order, "readout": readout, **common}
                for order in orders
                for readout in readouts
            ]
    return found


def ablate(
    grid: Sequence[dict[str, Any]],
    jobs: int = 1,
    backend: Literal["local", "ray", "dask"] = "local",
    cache: Path | None = None,
    progress: Progress = silent,
) -> list[Cell]:
    """Measure the settings; finished ones are kept in ``cache``, so that an interrupted ablation goes on."""
    return sweep(ablation_cell, list(grid), jobs=jobs, backend=backend, cache=cache, progress=progress)
