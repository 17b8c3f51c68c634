"""Comparisons on LASA handwriting that claims and command line share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from niaf import bases
from niaf.data import Chunks
from niaf.fit import FitOptions, fit_fields
from niaf.heads import ActionHead, make_head
from niaf.losses import FieldLoss
from niaf.trajectory import Trajectory

BASELINES = ("waypoints", "B-spline", "DCT", "Fourier", "ProDMP")
FIELD, PAPER = "field", "field, paper preset on the grid"


def linear_basis(name: str, n_samples: int) -> Any:
    """A basis by the name that tables use, of about ten coefficients."""
    match name:
        case "waypoints":
            return bases.WaypointBasis(n_samples)
        case "B-spline":
            return bases.BSplineBasis(min(10, n_samples), min(4, n_samples - 1))
        case "DCT":
            return bases.CosineBasis(min(10, n_samples), n_samples)
        case "Fourier":
            return bases.FourierBasis(n_samples, max(1, min(4, (n_samples - 2) // 2)))
        case "ProDMP":
            return bases.ProDMPBasis(max(1, min(8, n_samples - 3)))
        case "cubic":
            return bases.HermiteBasis(n_samples)
    raise ValueError(f"no representation {name!r}")


def basis_trajectories(name: str, chunks: np.ndarray, duration: float) -> list[Trajectory]:
    """Least-squares fits of chunks [B, K, d] by a linear basis."""
    k = chunks.shape[1]
    basis, tau = linear_basis(name, k), np.linspace(-1, 1, k)
    if name == "cubic":
        return [Trajectory(bases.BasisCurve(basis, basis.catmull_rom(c)), duration) for c in chunks]
    return [Trajectory(bases.BasisCurve(basis, bases.encode(basis, tau, c)), duration) for c in chunks]


def noisy(chunks: Chunks, noise: float, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Positions with noise of this deviation, and recorded velocities with noise of the same share of theirs."""
    assert chunks.velocity is not None
    x = chunks.action + noise * rng.standard_normal(chunks.action.shape)
    share = noise / chunks.action.std()
    return x, chunks.velocity + share * chunks.velocity.std() * rng.standard_normal(x.shape)


def represented(
    chunks: Chunks, noise: float, rng: np.random.Generator, options: FitOptions, paper: bool = True
) -> dict[str, list[Trajectory]]:
    """Every representation of the same noisy chunks. The field sees recorded velocities; the paper preset (30, no
    jitter,
    no velocities, as in simulation) and the others see positions."""
    x, v = noisy(chunks, noise, rng)
    found = {name: basis_trajectories(name, x, chunks.duration) for name in BASELINES}
    if paper:
        preset = FitOptions("paper", None, jitter=False, width=options.width, steps=options.steps, seed=options.seed)
        found[PAPER] = fit_fields(x, chunks.duration, None, preset)
    found[FIELD] = fit_fields(x, chunks.duration, v, options)
    return found


def velocity_errors(motions: list[Trajectory], chunks: Chunks) -> np.ndarray:
    """Squared velocity errors summed over each chunk's dense grid, [B]."""
    assert chunks.dense_velocity is not None
    t = np.linspace(0, chunks.duration, chunks.dense_velocity.shape[1])
    return np.array([np.square(m.at(t, 1) - v).sum() for m, v in zip(motions, chunks.dense_velocity, strict=True)])


def train_head(
    name: str,
    train: Chunks,
    steps: int,
    seed: int,
    width: int = 64,
    batch: int = 128,
    learning_rate: float = 1e-3,
    progress: Any = iter,
    **options: Any,
) -> ActionHead:
    """A head on conditioning vectors; the same network size, batches and rate for all."""
    assert train.cond is not None
    k, d = train.action.shape[1:]
    torch.manual_seed(seed)
    hidden = 128
    fps = (k - 1) / train.duration
    encoder = torch.nn.Sequential(
        torch.nn.Linear(train.cond.shape[1], 256),
        torch.nn.GELU(),
        torch.nn.Linear(256, 256),
        torch.nn.GELU(),
        torch.nn.Linear(256, hidden),
    )
    if name.startswith("field"):
        options = {
            "width": width,
            "groups": min(64, width),
            "seed": seed,
            "loss": FieldLoss(lambda_vel=0.05),
            **options,
        }
    head = make_head(name, hidden, d, k, fps, **options)
    head.set_statistics(train.action)
    head.add_module("encoder", encoder)
    mean, std = train.cond.mean(0), train.cond.std(0)
    head.register_buffer("cond_mean", torch.as_tensor(mean, dtype=torch.float32))
    head.register_buffer("cond_std", torch.as_tensor(np.where(std > 1e-8, std, 1), dtype=torch.float32))
    optimiser = torch.optim.AdamW(
        [*head.parameter_groups(learning_rate)], lr=learning_rate, betas=(0.9, 0.95), weight_decay=0.0
    )
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, steps)
    cond, action = (torch.as_tensor(x, dtype=torch.float32) for x in (train.cond, train.action))
    velocity = None if train.velocity is None else torch.as_tensor(train.velocity, dtype=torch.float32)
    generator = torch.Generator().manual_seed(seed)
    for step in progress(range(steps)):
        rows = torch.randint(len(cond), (batch,), generator=generator)
        v = None if velocity is None else velocity[rows]
        loss = head.loss(encoded(head, cond[rows]), action[rows], v, step=step, generator=generator)["loss"]
        optimiser.zero_grad(set_to_none=True)
        loss.backward()
        optimiser.step()
        schedule.step()
    return head.eval()


def encoded(head: Any, cond: torch.Tensor) -> torch.Tensor:
    """The conditioning of a head of :func:`train_head`."""
    return head.encoder((cond - head.cond_mean) / head.cond_std)


@torch.no_grad()
def head_errors(head: ActionHead, test: Chunks) -> Mapping[str, np.ndarray]:
    """Mean squared errors of each test chunk on the dense grid: ``position``, ``velocity``, mean square ``jerk``,
    and the
    mean square of the true velocity, ``speed``; and of the constant-velocity predictor's position, ``constant``."""
    assert test.cond is not None
    assert test.dense is not None
    assert test.dense_velocity is not None
    tau = torch.linspace(-1, 1, test.dense.shape[1])
    parts = []
    for first in range(0, len(test.cond), 256):
        cond = torch.as_tensor(test.cond[first : first + 256], dtype=torch.float32)
        parts.append([p.double().numpy() for p in head(encoded(head, cond)).at(tau, 3)])
    x, v, _, j = (np.concatenate([p[n] for p in parts]) for n in range(4))
    time = (np.linspace(0, test.duration, x.shape[1]))[None, :, None]
    constant = test.dense[:, :1] + time * test.dense_velocity[:, :1]
    return {
        "position": np.square(x - test.dense).sum(2).mean(1),
        "velocity": np.square(v - test.dense_velocity).sum(2).mean(1),
        "jerk": np.square(j).sum(2).mean(1),
        "speed": np.square(test.dense_velocity).sum(2).mean(1),
        "constant": np.square(constant - test.dense).sum(2).mean(1),
    }
