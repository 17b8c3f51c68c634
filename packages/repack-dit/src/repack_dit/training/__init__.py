"""Training loops of the latent transformer and the refiner in one process, with exact resume."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from papershelf import InputError
from papershelf.files import load_checkpoint, save_checkpoint
from repack_dit.losses import flow_matching_loss
from repack_dit.refiner import LatentGuidedRefiner


@torch.no_grad()
def update_ema(average: nn.Module, model: nn.Module, decay: float) -> None:
    """``average <- decay average + (1 - decay) model``, parameter by parameter."""
    for a, p in zip(average.parameters(), model.parameters(), strict=True):
        a.lerp_(p.to(a.dtype), 1 - decay)


@dataclass
class TrainSettings:
    """Of the latent transformer's training.

    Attributes:
        steps: optimiser steps.
        batch: images a step.
        lr: of AdamW.
        lr_after: learning rate from ``lr_step`` on.
        lr_step: None for a constant rate.
        betas: of AdamW.
        ema: decay of the averaged weights.
        clip: gradient norm.
        cosine_weight: weight of the direction term.
        label_dropout: rate of null labels.
    """

    steps: int = 500
    batch: int = 48
    lr: float = 2e-3
    lr_after: float = 1e-4
    lr_step: int | None = None
    betas: tuple[float, float] = (0.9, 0.95)
    ema: float = 0.97
    clip: float = 1.0
    cosine_weight: float = 1.0
    label_dropout: float = 0.1


# The paper's, for 8 GPUs.
OFFICIAL = TrainSettings(steps=320_000, batch=256, lr=2e-4, lr_after=1e-4, lr_step=240_000, ema=0.9999)


@dataclass
class TransformerTraining:
    """A training that can stop after any step and go on to the same numbers.

    Attributes:
        model: trained in place.
        latents: normalised, (N, d, h, w).
        labels: (N,), or None.
        settings: see :class:`TrainSettings`.
        generator: source of batches, noise, times and dropped labels.
    """

    model: Any
    latents: Tensor
    labels: Tensor | None
    settings: TrainSettings
    generator: torch.Generator
    step: int = 0
    losses: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        classes = self.model.config.num_classes
        if (self.labels is None) != (classes == 0):
            raise ValueError(f"a model of {classes} classes needs {'no labels' if classes == 0 else 'labels'}")
        if self.labels is not None and bool(((self.labels < 0) | (self.labels >= classes)).any()):
            raise ValueError(
                f"labels must lie in [0, {classes}), got {int(self.labels.min())}..{int(self.labels.max())}"
            )
        self.average = copy.deepcopy(self.model).requires_grad_(False).eval()
        trained = [p for p in self.model.parameters() if p.requires_grad]
        self.optimizer = torch.optim.AdamW(
            trained, lr=self.settings.lr, betas=self.settings.betas, weight_decay=0, foreach=False
        )

    def run(self, until: int) -> None:
        """Train to this step.

        Raises:
            FloatingPointError: for a loss that is not finite, naming step and images; the model keeps its last state.
        """
        s, count = self.settings, len(self.latents)
        trained = [p for group in self.optimizer.param_groups for p in group["params"]]
        self.model.train()
        while self.step < min(until, s.steps):
            for group in self.optimizer.param_groups:
                group["lr"] = s.lr_after if s.lr_step is not None and self.step >= s.lr_step else s.lr
            batch = torch.randint(count, (s.batch,), generator=self.generator)
            loss = flow_matching_loss(
                self.model,
                self.latents[batch],
                None if self.labels is None else self.labels[batch],
                generator=self.generator,
                cosine_weight=s.cosine_weight,
                label_dropout=s.label_dropout,
            )
            value = float(loss.detach())
            if not math.isfinite(value):
                raise FloatingPointError(f"loss {value} at step {self.step}, images {batch.tolist()[:16]} ...")
            self.optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(trained, s.clip)
            self.optimizer.step()
            update_ema(self.average, self.model, s.ema)
            self.step += 1
            self.losses.append(value)

    def save(self, path: Path) -> None:
        """Everything the next step depends on, into one ``.safetensors`` file, atomically."""
        moments = self.optimizer.state_dict()["state"]
        save_checkpoint(
            path,
            {
                "model": {k: v.clone() for k, v in self.model.state_dict().items()},
                "average": {k: v.clone() for k, v in self.average.state_dict().items()},
                "optimizer": {str(i): {k: v.clone() for k, v in m.items()} for i, m in moments.items()},
                "generator": self.generator.get_state(),
                "step": self.step,
                "losses": self.losses,
            },
        )

    def restore(self, path: Path) -> None:
        """Go on from :meth:`save`.

        Raises:
            InputError: if the file is no such checkpoint or of another model.
        """
        kept = load_checkpoint(path)
        try:
            self.model.load_state_dict(kept["model"])
            self.average.load_state_dict(kept["average"])
            state = self.optimizer.state_dict()
            state["state"] = {int(i): m for i, m in kept["optimizer"].items()}
            self.optimizer.load_state_dict(state)
        except (KeyError, TypeError, RuntimeError) as error:
            raise InputError(f"{path} is of another model or no checkpoint of a training: {error}") from error
        self.generator.set_state(kept["generator"])
        self.step, self.losses = int(kept["step"]), list(kept["losses"])


def train_refiner(
    refiner: LatentGuidedRefiner,
    images: Tensor,
    decoded: Tensor,
    latents: Tensor,
    *,
    steps: int,
    batch: int,
    generator: torch.Generator,
    lr: float = 1e-3,
    noise: float = 0.1,
    progress: Callable[[range], Iterable[int]] = iter,
) -> list[float]:
    """Train on triplets (image, decoded image, normalised latent) by the L1 distance; returns the losses.

    Args:
        refiner: trained in place.
        images: (N, 3, H, W) in [-1, 1].
        decoded: of the same shape.
        latents: (N, d, h, w).
        steps: optimiser steps.
        batch: images a step.
        generator: source of batches and noise.
        lr: of Adam.
        noise: standard deviation of noise on the latents, so that generated ones are met well.
        progress: wraps the range of steps.
    """
    optimizer, losses = torch.optim.Adam(refiner.parameters(), lr=lr, betas=(0.5, 0.9)), []
    refiner.train()
    for step in progress(range(steps)):
        chosen = torch.randint(len(images), (batch,), generator=generator)
        z = latents[chosen]
        z = z + noise * torch.randn(z.shape, generator=generator)
        loss = F.l1_loss(refiner(decoded[chosen], z), images[chosen])
        value = float(loss.detach())
        if not math.isfinite(value):
            raise FloatingPointError(f"loss {value} at step {step}, images {chosen.tolist()[:16]} ...")
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(value)
    refiner.eval()
    return losses
