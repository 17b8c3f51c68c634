"""Stage 2: flow matching on cached latents."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from repack_dit.losses import drop_labels, flow_matching_loss
from repack_dit.training.loop import Training, epoch_indices


@dataclass(frozen=True)
class TrainSettings:
    """Of the latent transformer's training.

    Attributes:
        steps: optimiser steps.
        batch: images a step, over all processes.
        lr: of AdamW.
        lr_after: learning rate from ``lr_step`` on.
        lr_step: None for a constant rate.
        betas: of AdamW.
        ema: decay of the averaged weights.
        clip: gradient norm.
        cosine_weight: weight of the direction term.
        label_dropout: rate of null labels.
        logit_mean: of the times' logits.
        logit_std: of the times' logits.
        compile: run the transformer through ``torch.compile``.
        save_every: steps between checkpoints.
        keep_every: steps between averaged weights that stay; 0 keeps none.
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
    logit_mean: float = 0.0
    logit_std: float = 1.0
    compile: bool = False
    save_every: int = 200
    keep_every: int = 0

    def __post_init__(self) -> None:
        if self.batch < 1 or not self.lr > 0 or not self.clip > 0 or not 0 <= self.label_dropout <= 1:
            raise ValueError(f"batch, lr and clip must be positive and label_dropout in [0, 1], got {self}")


# The paper's, for 8 GPUs.
OFFICIAL = TrainSettings(
    steps=320_000, batch=256, lr=2e-4, lr_after=1e-4, lr_step=240_000, ema=0.9999, save_every=5_000, keep_every=40_000
)


class Latents(Protocol):
    """Normalised latents with labels, read in batches; a :class:`repack_dit.latents.LatentCache` is one."""

    labels: Tensor

    def __len__(self) -> int: ...

    def take(self, indices: Tensor, flips: Tensor | None = None) -> tuple[Tensor, Tensor]: ...


@dataclass
class TensorLatents:
    """Normalised latents in memory, (N, d, h, w), with labels (N,)."""

    latents: Tensor
    labels: Tensor

    def __len__(self) -> int:
        return len(self.latents)

    def take(self, indices: Tensor, flips: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Latents and labels of these indices; there is one view only."""
        return self.latents[indices], self.labels[indices]


class TransformerTraining(Training):
    """Trains a RePack-DiT in place; ``average`` is what to keep.

    Args:
        model: a :class:`repack_dit.RePackDiTTransformer2DModel`.
        data: normalised latents; labels are left unread by a model of 0 classes.
        settings: see :class:`TrainSettings`.
        held_out: for :meth:`validate`.
        seed, folder, accelerator: see :class:`Training`.

    Raises:
        ValueError: if labels lie outside the model's classes.
    """

    def __init__(
        self,
        model: Any,
        data: Latents,
        settings: TrainSettings,
        *,
        held_out: Latents | None = None,
        seed: int = 0,
        folder: Path | None = None,
        accelerator: Any = None,
    ) -> None:
        s = settings
        super().__init__(
            steps=s.steps,
            seed=seed,
            folder=folder,
            save_every=s.save_every,
            keep_every=s.keep_every,
            ema=s.ema,
            accelerator=accelerator,
        )
        self.classes, y = int(model.config.num_classes), data.labels
        if self.classes and (len(y) != len(data) or bool(((y < 0) | (y >= self.classes)).any())):
            found = f"{int(y.min())}..{int(y.max())}" if len(y) else "none"
            raise ValueError(f"labels must lie in [0, {self.classes}), got {found}")
        self.data, self.settings, self.held_out = data, s, held_out
        trained = [p for p in model.parameters() if p.requires_grad]
        optimizer = torch.optim.AdamW(trained, lr=s.lr, betas=s.betas, weight_decay=0, foreach=False)
        self.prepare({"transformer": model}, {"transformer": optimizer})
        self.forward = torch.compile(self.wrapped["transformer"]) if s.compile else self.wrapped["transformer"]

    def update(self) -> dict[str, float]:
        s = self.settings
        permutation = getattr(self.data, "permutation", None)
        indices = self.mine(epoch_indices(self.step, s.batch, len(self.data), self.streams, permutation))
        generator = self.generator("noise")
        flips = torch.rand(len(indices), generator=generator) < 0.5
        z, labels = self.data.take(indices, flips)
        dropped = drop_labels(labels, self.classes, s.label_dropout, generator) if self.classes else None
        rate = s.lr_after if s.lr_step is not None and self.step >= s.lr_step else s.lr
        for group in self.optimizers["transformer"].param_groups:
            group["lr"] = rate
        device = self.accelerator.device
        with self.accelerator.autocast():
            loss = flow_matching_loss(
                self.forward,
                z.to(device),
                None if dropped is None else dropped.to(device),
                generator=generator,
                cosine_weight=s.cosine_weight,
                logit_mean=s.logit_mean,
                logit_std=s.logit_std,
                label_dropout=0,
            )
        value = self.checked(loss, indices)
        self.descend("transformer", loss, s.clip)
        return {"loss": value, "lr": rate, "images": (self.step + 1) * s.batch}

    @torch.no_grad()
    def validate(self) -> float | None:
        """Loss of the averaged weights on held-out latents, with the same noise every time."""
        if self.held_out is None or not len(self.held_out):
            return None
        generator, losses, device = self.streams.torch("validation"), [], self.accelerator.device
        for rows in torch.arange(len(self.held_out)).split(self.settings.batch):
            z, labels = self.held_out.take(rows)
            labels = labels.to(device) if self.classes else None
            loss = flow_matching_loss(self.average, z.to(device), labels, generator=generator, label_dropout=0)
            losses.append(float(loss) * len(rows))
        return sum(losses) / len(self.held_out)
