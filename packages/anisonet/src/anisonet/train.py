"""Training with exact resume, evaluation on all points, and voting."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from anisonet.batches import (
    AUGMENTATIONS,
    NO_AUGMENTATION,
    Augmentation,
    Batch,
    FileOrder,
    augmented,
    collate,
    crop,
    shuffled,
    subsampled,
    thinned,
    turn,
)
from anisonet.clouds import Cloud
from anisonet.curves import Order
from anisonet.metrics import ConfusionMeter, check_labels
from anisonet.model import PointNetwork
from anisonet.pyramid import Pick, Pyramid, grid_subsample, nearest
from papershelf import InputError, require
from papershelf.files import load_checkpoint, save_checkpoint
from papershelf.paper import Progress, silent


@dataclass(frozen=True)
class Recipe:
    """How to train.

    Attributes:
        steps: optimiser steps.
        batch: clouds a step.
        lr, weight_decay: of AdamW; no decay on parameters of one dimension.
        warmup: share of the steps with rising rate.
        schedule: ``cosine`` to lr / 1e4 after a linear warm-up, or ``onecycle``.
        smoothing: label smoothing.
        aux: weight of the auxiliary loss at the start; it falls to 0.003 of that.
        max_points: points of a crop.
        thin: draw that many points of a cloud at random instead of cropping; 0 for none.
        file_order: ``shuffle`` (default: the file's order cannot leak) or ``keep``.
        augmentation: random changes.
        amp: bfloat16 where the device is CUDA.
        seed: of everything random.
        save_every: steps between checkpoints.
        bn_batches: batches from which the batch norms' statistics are taken anew at the end; 0 for none.
        clip: longest gradient, 0 for no limit.
        distributed: through accelerate (``accelerate launch`` or ``torchrun``).
    """

    steps: int = 160
    batch: int = 6
    lr: float = 4e-3
    weight_decay: float = 0.05
    warmup: float = 0.1
    schedule: Literal["cosine", "onecycle"] = "onecycle"
    smoothing: float = 0.1
    aux: float = 0.25
    max_points: int = 30_000
    thin: int = 0
    file_order: FileOrder = "shuffle"
    augmentation: Augmentation = field(default_factory=Augmentation)
    amp: bool = True
    seed: int = 0
    save_every: int = 50
    bn_batches: int = 20
    clip: float = 0.0
    distributed: bool = False

    def __post_init__(self) -> None:
        if self.steps < 1 or self.batch < 1:
            raise ValueError(f"expected at least one step and one cloud, got {self.steps} steps of {self.batch}")
        if self.file_order not in ("shuffle", "keep"):
            raise ValueError(f"expected file_order shuffle or keep, got {self.file_order!r}")
        if self.schedule not in ("cosine", "onecycle"):
            raise ValueError(f"expected a schedule of cosine or onecycle, got {self.schedule!r}")


def learning_rate(recipe: Recipe, step: int) -> float:
    """Rate of a step, from 0 to steps - 1."""
    rise = max(1, round(recipe.warmup * recipe.steps))
    if recipe.schedule == "onecycle":
        rise = max(1, round(0.3 * recipe.steps))
        if step < rise:
            return recipe.lr * (0.04 + 0.96 * (1 - math.cos(math.pi * step / rise)) / 2)
        done = (step - rise) / max(1, recipe.steps - rise)
        return recipe.lr * (1e-4 + (1 - 1e-4) * (1 + math.cos(math.pi * done)) / 2)
    if step < rise:
        return recipe.lr * (step + 1) / rise
    done = (step - rise) / max(1, recipe.steps - rise)
    return recipe.lr * (1e-4 + (1 - 1e-4) * (1 + math.cos(math.pi * done)) / 2)


def optimizer_for(model: nn.Module, recipe: Recipe) -> torch.optim.AdamW:
    """AdamW without decay on parameters of one dimension (biases, norms)."""
    decayed = [p for p in model.parameters() if p.ndim > 1]
    free = [p for p in model.parameters() if p.ndim <= 1]
    return torch.optim.AdamW(
        [{"params": decayed, "weight_decay": recipe.weight_decay}, {"params": free, "weight_decay": 0.0}], lr=recipe.lr
    )


@contextmanager
def seeded(seed: int, device: torch.device) -> Generator[None]:
    """torch's global generators hold this seed inside and what they held before outside (dropout has no other)."""
    devices = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices):
        torch.random.manual_seed(seed)
        yield


def _stream(*numbers: int) -> np.random.Generator:
    return np.random.default_rng(list(numbers))


class History(NamedTuple):
    """Loss of every step that was run, and the rate."""

    step: list[int]
    loss: list[float]
    lr: list[float]


class Trainer:
    """Train a network on clouds; every step depends on the seed and its number only, so a resumed run is the same run.

    Args:
        model: a network of ``anisonet.model`` or ``anisonet.baselines``.
        clouds: training clouds with labels.
        recipe: how.
        out: folder for ``training.safetensors`` (weights, optimiser, step); None to keep nothing.
        device: where to train.
        up: the axis that points up.
    """

    def __init__(
        self,
        model: PointNetwork,
        clouds: Sequence[Cloud],
        recipe: Recipe,
        out: Path | None = None,
        device: str = "cpu",
        up: int = 2,
    ) -> None:
        if not clouds:
            raise ValueError("expected at least one training cloud, got none")
        for cloud in clouds:
            labels = np.array([cloud.label]) if model.cfg.task == "classification" else cloud.labels
            if labels is None or labels[0] is None:
                raise InputError(f"{cloud.name or 'a cloud'}: expected labels, got none")
            check_labels(np.asarray(labels), model.cfg.classes)
        self.model, self.clouds, self.recipe = model.to(device), list(clouds), recipe
        self.out, self.device, self.up = out, torch.device(device), up
        self.optimizer = optimizer_for(self.model, recipe)
        self.step, self.history = 0, History([], [], [])
        self._rank, self._world, self._forward = 0, 1, cast(Callable[..., Any], self.model)
        self._accelerator: Any = None
        if recipe.distributed:
            self._distribute()

    def _distribute(self) -> None:
        accelerate = require("accelerate", "papershelf-anisonet[accelerate]")
        self._accelerator = accelerate.Accelerator(cpu=self.device.type == "cpu")
        self._forward, self.optimizer = self._accelerator.prepare(self.model, self.optimizer)
        self.device = self._accelerator.device
        self._rank, self._world = self._accelerator.process_index, self._accelerator.num_processes

    # --- what a step sees ---

    def chosen(self, step: int) -> list[Cloud]:
        """The prepared clouds of a step (of this process)."""
        recipe, n = self.recipe, len(self.clouds)
        picked = []
        for place in range(recipe.batch):
            position = step * recipe.batch + place
            epoch, index = divmod(position, n)
            if place % self._world == self._rank:
                picked.append((position, int(_stream(recipe.seed, 1, epoch).permutation(n)[index])))
        return [self._prepared(self.clouds[i], _stream(recipe.seed, 2, position)) for position, i in picked]

    def _prepared(self, cloud: Cloud, rng: np.random.Generator) -> Cloud:
        recipe, cfg = self.recipe, self.model.cfg
        if recipe.file_order == "shuffle":
            cloud = shuffled(cloud, rng)
        cloud = augmented(cloud, recipe.augmentation, rng, self.up)
        cloud = subsampled(cloud, cfg.grid, "random", rng)
        points = recipe.thin or cfg.points
        return thinned(cloud, points, rng) if points else crop(cloud, recipe.max_points, rng)

    def batch(self, step: int) -> tuple[Batch, Pyramid]:
        """The packed batch of a step and its pyramid."""
        packed = collate(self.chosen(step), self.model.cfg, self.up)
        generator = torch.Generator().manual_seed(self.recipe.seed * 1_000_003 + step)
        pyramid = self.model.build_pyramid(packed.xyz, packed.counts, generator, pick="random")
        return packed, pyramid

    def loss(self, packed: Batch, pyramid: Pyramid) -> tuple[Tensor, Tensor]:
        """Cross-entropy and auxiliary loss."""
        device = self.device
        extra = () if packed.categories is None else (packed.categories.to(device),)
        half = torch.autocast("cuda", torch.bfloat16) if self.recipe.amp and device.type == "cuda" else nullcontext()
        with half:
            logits, aux = self._forward(pyramid.to(device), packed.feats.to(device), *extra)
        task = F.cross_entropy(
            logits.float(), packed.labels.to(device), ignore_index=-1, label_smoothing=self.recipe.smoothing
        )
        return task, aux

    def train_step(self) -> float:
        """One step; returns its loss without the auxiliary part."""
        recipe = self.recipe
        rate = learning_rate(recipe, self.step)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        packed, pyramid = self.batch(self.step)
        self.model.train()
        with seeded(recipe.seed * 7_919 + self.step * self._world + self._rank, self.device):
            task, aux = self.loss(packed, pyramid)
            weight = recipe.aux * 0.003 ** (self.step / recipe.steps)
            total = task + weight * aux
            self.optimizer.zero_grad(set_to_none=True)
            self._accelerator.backward(total) if self._accelerator else total.backward()
        if not bool(torch.isfinite(task)):
            raise FloatingPointError(
                f"the loss of step {self.step} is not finite; try a smaller rate than {recipe.lr:g}"
            )
        if recipe.clip:
            nn.utils.clip_grad_norm_(self.model.parameters(), recipe.clip)
        self.optimizer.step()
        self.step += 1
        return float(task.detach())

    # --- the run ---

    @property
    def _checkpoint(self) -> Path | None:
        return None if self.out is None else self.out / "training.safetensors"

    def save(self) -> None:
        """Write weights, optimiser and step in one file, atomically."""
        path = self._checkpoint
        if path is None or self._rank:
            return
        moments = [
            dict(self.optimizer.state[p].items()) if p in self.optimizer.state else {} for p in self.model.parameters()
        ]
        path.parent.mkdir(parents=True, exist_ok=True)
        recipe = asdict(self.recipe)
        save_checkpoint(
            path,
            {
                "step": self.step,
                "recipe": {k: recipe[k] for k in ("steps", "batch", "lr", "seed", "file_order", "schedule")},
                "model": dict(self.model.state_dict()),
                "moments": moments,
                "history": {"step": self.history.step, "loss": self.history.loss, "lr": self.history.lr},
            },
        )

    def resume(self) -> bool:
        """Go on from the folder's checkpoint; False where there is none.

        Raises:
            InputError: if it was made with another recipe.
        """
        path = self._checkpoint
        if path is None or not path.is_file():
            return False
        found = load_checkpoint(path)
        for name, value in found["recipe"].items():
            if value != getattr(self.recipe, name):
                raise InputError(
                    f"{path}: made with {name} = {value}, asked for {getattr(self.recipe, name)}; use another folder"
                )
        self.model.load_state_dict(found["model"])
        for p, state in zip(self.model.parameters(), found["moments"], strict=True):
            if state:
                self.optimizer.state[p] = {k: v.to(p.device) if k != "step" else v for k, v in state.items()}
        self.step = found["step"]
        self.history = History(*(list(found["history"][k]) for k in ("step", "loss", "lr")))
        return True

    def run(self, progress: Progress = silent, label: str = "training") -> History:
        """Train to the end (from where ``resume`` left it), then take the batch norms' statistics anew."""
        for _ in progress(range(self.step, self.recipe.steps), total=self.recipe.steps - self.step, label=label):
            rate = learning_rate(self.recipe, self.step)
            value = self.train_step()
            self.history.step.append(self.step)
            self.history.loss.append(value)
            self.history.lr.append(rate)
            if self.out is not None and self.step % self.recipe.save_every == 0:
                self.save()
        if self.recipe.bn_batches:
            self.reestimate_norms()
        self.model.eval()
        self.save()
        return self.history

    @torch.no_grad()
    def reestimate_norms(self) -> None:
        """Plain averages of the batch norms' statistics over batches, in place of running ones."""
        norms = [m for m in self.model.modules() if isinstance(m, nn.BatchNorm1d)]
        before = [m.momentum for m in norms]
        for m in norms:
            m.reset_running_stats()
            m.momentum = None  # torch's way to ask for a plain average
        self.model.train()
        for step in range(min(self.recipe.bn_batches, self.recipe.steps)):
            packed, pyramid = self.batch(self.recipe.steps + step)
            with seeded(step, self.device):
                self.loss(packed, pyramid)
        for m, momentum in zip(norms, before, strict=True):
            m.momentum = momentum


# --- evaluation ----------------------------------------------------------------------------------------------------


class Votes(NamedTuple):
    """Which versions of a cloud are averaged: all combinations of points of a voxel, turns and scales.

    Attributes:
        picks: points of a voxel of the data's own grid; of no account for networks without one.
        rotations: angles about the up axis.
        scales: factors.
    """

    picks: int = 1
    rotations: tuple[float, ...] = (0.0,)
    scales: tuple[float, ...] = (1.0,)

    @classmethod
    def of(cls, number: int, grid: float) -> Votes:
        """That many votes: points of a voxel where the data has a grid, turns by equal angles where it has none."""
        if number < 1:
            raise ValueError(f"expected at least one vote, got {number}")
        return cls(picks=number) if grid > 0 else cls(rotations=equal_turns(number))

    def versions(self, grid: float) -> list[tuple[int, float, float]]:
        """(pick, angle, scale) of every version."""
        picks = range(self.picks if grid > 0 else 1)
        return list(itertools.product(picks, self.rotations, self.scales))


def equal_turns(number: int) -> tuple[float, ...]:
    """That many angles around the circle."""
    return tuple(2 * math.pi * i / number for i in range(number))


PRESET_VOTES = {
    "seg_s3dis": Votes(picks=12),
    "seg_scannet": Votes(picks=4, rotations=equal_turns(4), scales=(0.9, 1.0, 1.1)),
}


def _logits(model: PointNetwork, packed: Batch, order: Order | None, pick: Pick, generator: torch.Generator) -> Tensor:
    device = next(model.parameters()).device
    pyramid = model.build_pyramid(packed.xyz, packed.counts, generator, pick=pick, order=order)
    extra = () if packed.categories is None else (packed.categories.to(device),)
    return cast(Tensor, model(pyramid.to(device), packed.feats.to(device), *extra)).float().cpu()


@torch.no_grad()
def vote(
    model: PointNetwork,
    cloud: Cloud,
    votes: Votes | int = 1,
    order: Order | None = None,
    up: int = 2,
    seed: int = 0,
    max_points: int = 2**18,
) -> np.ndarray:
    """Sum of the logits over versions of one cloud, at all of its points.

    Every version is sub-sampled on the data's grid with another point of each voxel, turned and scaled; each point
    of the cloud takes the logits of the nearest sub-sampled one. A cloud of more than ``max_points`` is run in random
    parts that are each spread over the whole cloud.

    Args:
        model: in evaluation mode.
        cloud: any number of points.
        votes: which versions, or how many.
        order: order of the recurrence in place of the model's.
        up: the axis that points up.
        seed: of everything random.
        max_points: largest packed cloud.

    Returns:
        float32, shape (N, classes) or, for classification, (1, classes).
    """
    cfg, total = model.cfg, None
    votes = Votes.of(votes, cfg.grid) if isinstance(votes, int) else votes
    rng = _stream(seed, 5)
    everywhere = torch.from_numpy(cloud.xyz)
    for pick, angle, scale in votes.versions(cfg.grid):
        xyz = turn(cloud.xyz, angle, up) * np.float32(scale)
        normals = None if cloud.normals is None or not angle else turn(cloud.normals, angle, up)
        changed = {} if normals is None else {"normals": normals}
        version = replace(cloud, xyz=(xyz - xyz.min(0)).astype(np.float32), **changed)
        index = _kept(version, cfg.grid, pick)
        if cfg.task == "classification" and cfg.points and len(index) > cfg.points:
            index = np.sort(rng.choice(index, cfg.points, replace=False))
        logits = _in_parts(model, version.take(index), order, up, rng, max_points)
        if cfg.task != "classification" and len(index) < len(cloud):
            counts = torch.tensor([len(index)])
            logits = logits[nearest(everywhere, torch.tensor([len(cloud)]), everywhere[index], counts)]
        total = logits if total is None else total + logits
    assert total is not None
    return total.numpy()


def _kept(cloud: Cloud, grid: float, pick: int) -> np.ndarray:
    if grid <= 0:
        return np.arange(len(cloud))
    return grid_subsample(torch.from_numpy(cloud.xyz), grid, None, pick).numpy()


def _in_parts(
    model: PointNetwork, cloud: Cloud, order: Order | None, up: int, rng: np.random.Generator, max_points: int
) -> Tensor:
    parts = -(-len(cloud) // max_points)
    if parts == 1 or model.cfg.task == "classification":
        generator = torch.Generator().manual_seed(int(rng.integers(2**62)))
        return _logits(model, collate([cloud], model.cfg, up), order, "first", generator)
    out = torch.empty(len(cloud), model.cfg.classes)
    for rows in np.array_split(rng.permutation(len(cloud)), parts):
        rows = np.sort(rows)
        generator = torch.Generator().manual_seed(int(rng.integers(2**62)))
        out[rows] = _logits(model, collate([cloud.take(rows)], model.cfg, up), order, "first", generator)
    return out


def evaluate(
    model: PointNetwork,
    clouds: Sequence[Cloud],
    votes: Votes | int = 1,
    order: Order | None = None,
    file_order: FileOrder = "shuffle",
    up: int = 2,
    seed: int = 0,
    progress: Progress = silent,
) -> ConfusionMeter:
    """Confusion of all points of all clouds (not of sub-sampled ones, which would flatter).

    Args:
        model: a network.
        clouds: with labels.
        votes, order, up, seed: as in ``vote``.
        file_order: ``shuffle`` feeds the points in random order, ``keep`` as they are stored.
    """
    was = model.training
    model.eval()
    meter = ConfusionMeter(model.cfg.classes)
    for i, cloud in enumerate(progress(clouds, total=len(clouds), label="evaluation")):
        fed = shuffled(cloud, _stream(seed, 3, i)) if file_order == "shuffle" else cloud
        found = vote(model, fed, votes, order, up, seed).argmax(1)
        truth = np.array([fed.label]) if model.cfg.task == "classification" else fed.labels
        if truth is None or truth[0] is None:
            raise InputError(f"{cloud.name or 'a cloud'}: expected labels, got none")
        meter.update(found, truth)
    model.train(was)
    return meter


# --- presets -------------------------------------------------------------------------------------------------------


def recipe_for(name: str, clouds: int = 1, **changes: Any) -> Recipe:
    """The training recipe of a preset (an epoch passes 30 times over S3DIS, 6 times over ScanNet).

    Args:
        name: of ``model.PRESETS``.
        clouds: training clouds, which fix the number of steps of the full presets.
        changes: fields of ``Recipe``.
    """
    full = {
        "seg_s3dis": {"lr": 6e-3, "batch": 8, "epochs": 100, "warm": 10, "max_points": 30_000, "loops": 30},
        "seg_scannet": {"lr": 6e-3, "batch": 8, "epochs": 100, "warm": 10, "max_points": 80_000, "loops": 6},
        "cls_scanobjectnn": {"lr": 3e-3, "batch": 32, "epochs": 250, "warm": 20, "max_points": 1024, "loops": 1},
        "part_shapenet": {"lr": 3e-3, "batch": 32, "epochs": 250, "warm": 20, "max_points": 2048, "loops": 1},
    }
    augmentation = AUGMENTATIONS.get(name, NO_AUGMENTATION)
    if name in full:
        how = full[name]
        batch, epochs = int(how["batch"]), int(how["epochs"])
        steps = max(1, epochs * int(how["loops"]) * max(1, clouds) // batch)
        base = Recipe(
            steps=steps,
            batch=batch,
            lr=float(how["lr"]),
            warmup=how["warm"] / epochs,
            schedule="cosine",
            smoothing=0.2,
            aux=0.25 if name.startswith("seg") else 1 / 3,
            max_points=int(how["max_points"]),
            augmentation=augmentation,
            save_every=500,
            bn_batches=0,
        )
    elif name == "cls_tiny":
        base = Recipe(steps=220, batch=12, lr=3e-3, smoothing=0.1, augmentation=augmentation)
    else:
        base = Recipe(thin=512, augmentation=augmentation)
    return replace(base, **changes)
