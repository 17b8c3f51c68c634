"""The paper's full-scale settings as files and commands (tables 1 to 3: CALVIN and LIBERO)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from papershelf import InputError
from papershelf.files import atomic_write

FLORENCE = "florence-community/Florence-2-large"
SETTINGS: dict[str, dict[str, Any]] = {
    "calvin": {
        "action_dim": 7,
        "state_dim": 15,
        "horizon": 10,
        "fps": 30.0,
        "action_kind": "delta",
        "gripper": [6],
        "gripper_values": [-1.0, 1.0],
    },
    "libero": {
        "action_dim": 7,
        "state_dim": 9,
        "horizon": 10,
        "fps": 20.0,
        "action_kind": "delta",
        "gripper": [6],
        "gripper_values": [-1.0, 1.0],
        "action_scale": "quantiles",
    },
}
PAPER_RESULTS = {
    "calvin": "average length 4.47 (ABC to D), 4.66 (ABCD to D)",
    "libero": "98.7 / 100 / 97.4 / 95.5, mean 97.9 (spatial, object, goal, long)",
}
TRAINING = {
    "optimiser": "AdamW",
    "betas": [0.9, 0.95],
    "learning_rate": 2e-5,
    "batch_size": 32,
    "steps": 20_000,
    "warm_up": 500,
    "schedule": "cosine",
    "lambda_pos": 1.0,
    "lambda_vel": 0.0,
    "lambda_jerk": 0.0,
}


def commands(name: str) -> list[str]:
    """Conversion, training and evaluation of a recipe, to be run beside its files."""
    if name not in SETTINGS:
        raise InputError(f"recipe must be calvin or libero, got {name!r}")
    if name == "calvin":
        convert = "niaf convert calvin task_ABC_D/training data"
        evaluate = "python calvin/calvin_models/calvin_agent/evaluation/evaluate_policy.py --dataset_path task_ABC_D"
    else:
        convert = "niaf convert robomimic libero_spatial/*.hdf5 data"
        evaluate = "python LIBERO/libero/lifelong/evaluate.py --benchmark libero_spatial"
    train = (
        "torchrun --nproc-per-node 4 -m niaf.training --data data --config config.json --out policy "
        "--batch-size 8 --steps 20000"
    )
    return [convert, train, f"{evaluate}  # with niaf.policy.NIAFPolicy.load('policy').select_action as its policy"]


def write_recipe(name: str, folder: Path) -> list[Path]:
    """Write ``config.json``, ``training.json`` and ``run.sh``; returns them."""
    lines = commands(name)
    config = {
        **SETTINGS[name],
        "head": "field",
        "head_options": {"conditioner": "grouped", "layers": 3, "width": 256, "groups": 64},
        "backbone": "florence2",
        "vlm": FLORENCE,
        "n_action_steps": 10,
        "learning_rate": 2e-5,
        "head_multiplier": 10.0,
    }
    folder.mkdir(parents=True, exist_ok=True)
    script = f"#!/bin/sh\n# the paper: {PAPER_RESULTS[name]}\nset -e\n" + "\n".join(lines) + "\n"
    return [
        atomic_write(folder / "config.json", json.dumps(config, indent=1) + "\n"),
        atomic_write(folder / "training.json", json.dumps(TRAINING, indent=1) + "\n"),
        atomic_write(folder / "run.sh", script),
    ]
