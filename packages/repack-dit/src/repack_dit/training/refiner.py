"""Stage 3: the refiner on triplets of image, decoded image and latent."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from repack_dit.losses import hinge_discriminator_loss, hinge_generator_loss, patch_discriminator
from repack_dit.refiner import LatentGuidedRefiner
from repack_dit.training.autoencoder import FeaturedImages, Perceptual
from repack_dit.training.loop import Training, epoch_indices


@dataclass(frozen=True)
class RefinerSettings:
    """Of stage 3.

    Attributes:
        steps: optimiser steps.
        batch: images a step, over all processes.
        lr: of Adam.
        betas: of Adam.
        ema: decay of the averaged weights.
        noise: deviation of the noise on normalised latents, so that generated ones are met well.
        perceptual: weight of the perceptual term.
        gan: weight of the adversarial term; 0 trains no discriminator.
        gan_channels: of the discriminator's first layer.
        save_every: steps between checkpoints.
        keep_every: steps between averaged weights that stay; 0 keeps none.
    """

    steps: int = 300
    batch: int = 16
    lr: float = 1e-3
    betas: tuple[float, float] = (0.5, 0.9)
    ema: float = 0.99
    noise: float = 0.1
    perceptual: float = 1.0
    gan: float = 0.5
    gan_channels: int = 128
    save_every: int = 100
    keep_every: int = 0

    def __post_init__(self) -> None:
        if self.batch < 1 or not self.lr > 0 or min(self.noise, self.perceptual, self.gan) < 0:
            raise ValueError(f"batch and lr must be positive, noise and weights >= 0, got {self}")


class Triplets(Protocol):
    """Images, their decoded selves and the latents between, read in batches."""

    def __len__(self) -> int: ...

    def take(self, indices: Tensor) -> tuple[Tensor, Tensor, Tensor]: ...


@dataclass
class TensorTriplets:
    """In memory: images and decoded images (N, 3, H, W), normalised latents (N, d, h, w)."""

    images: Tensor
    decoded: Tensor
    latents: Tensor

    def __len__(self) -> int:
        return len(self.images)

    def take(self, indices: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Of these indices."""
        return self.images[indices], self.decoded[indices], self.latents[indices]


@dataclass
class DecodedImages:
    """Images decoded from the posterior's mean when asked for.

    Attributes:
        data: images, with or without features.
        autoencoder: with latent statistics.
        raw: give latents that are not normalised, as the paper's code trains.
    """

    data: FeaturedImages
    autoencoder: Any
    raw: bool = False

    def __len__(self) -> int:
        return len(self.data)

    @torch.no_grad()
    def take(self, indices: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Of these indices."""
        x, features = self.data.take(indices, torch.zeros(len(indices), dtype=torch.bool), self.autoencoder)
        z = self.autoencoder.pack(features).mode()
        decoded = self.autoencoder.decode(z, return_dict=False)[0]
        return x, decoded, z if self.raw else self.autoencoder.normalize(z)


class RefinerTraining(Training):
    """Trains :class:`LatentGuidedRefiner` in place; ``average`` is what to keep.

    Args:
        refiner: see there.
        data: training triplets.
        settings: see :class:`RefinerSettings`.
        perceptual: distance of two batches of images, a mean; None leaves the term out.
        held_out: for :meth:`validate`.
        seed, folder, accelerator: see :class:`Training`.
    """

    def __init__(
        self,
        refiner: LatentGuidedRefiner,
        data: Triplets,
        settings: RefinerSettings,
        *,
        perceptual: Perceptual | None = None,
        held_out: Triplets | None = None,
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
        self.data, self.settings, self.perceptual, self.held_out = data, s, perceptual, held_out
        modules: dict[str, nn.Module] = {"refiner": refiner}
        if s.gan:
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(self.streams.integer("discriminator"))
                modules["discriminator"] = patch_discriminator(s.gan_channels)
        self.prepare(
            modules,
            {
                name: torch.optim.Adam(m.parameters(), lr=s.lr, betas=s.betas, foreach=False)
                for name, m in modules.items()
            },
        )

    def update(self) -> dict[str, float]:
        s, device = self.settings, self.accelerator.device
        indices = self.mine(epoch_indices(self.step, s.batch, len(self.data), self.streams))
        target, decoded, z = (part.to(device) for part in self.data.take(indices))
        z = z + s.noise * torch.randn(z.shape, generator=self.generator("latents")).to(z)
        with self.accelerator.autocast():
            image = self.wrapped["refiner"](decoded, z)
        image = image.float()
        terms = {"pixel": F.l1_loss(image, target)}
        if self.perceptual is not None and s.perceptual:
            terms["perceptual"] = s.perceptual * self.perceptual(image, target)
        if s.gan:
            judge = self.modules["discriminator"].requires_grad_(False)
            terms["gan"] = s.gan * hinge_generator_loss(judge(image))
            judge.requires_grad_(True)
        loss = torch.stack(list(terms.values())).sum()
        told = {"loss": self.checked(loss, indices), **{k: float(v.detach()) for k, v in terms.items()}}
        self.descend("refiner", loss)
        if s.gan:
            real, fake = self.wrapped["discriminator"](torch.cat([target, image.detach()])).chunk(2)
            judged = hinge_discriminator_loss(real, fake)
            told["discriminator"] = self.checked(judged, indices)
            self.descend("discriminator", judged)
        return told

    @torch.no_grad()
    def validate(self) -> float | None:
        """Mean absolute error of the averaged weights on held-out triplets."""
        if self.held_out is None or not len(self.held_out):
            return None
        total, count, device = 0.0, 0, self.accelerator.device
        for rows in torch.arange(len(self.held_out)).split(self.settings.batch):
            target, decoded, z = (part.to(device) for part in self.held_out.take(rows))
            total += float((self.average(decoded, z) - target).abs().sum())
            count += target.numel()
        return total / count
