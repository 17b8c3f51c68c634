"""Stage 1: packing convolution and decoder by pixel, perceptual, frequency, KL and adversarial terms."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from repack_dit.latents import aligned
from repack_dit.losses import (
    WatsonDFT,
    adaptive_weight,
    hinge_discriminator_loss,
    hinge_generator_loss,
    patch_discriminator,
    reconstruction_terms,
)
from repack_dit.packing import RePackAutoencoder
from repack_dit.training.loop import Training, epoch_indices

Perceptual = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class AutoencoderSettings:
    """Of stage 1.

    Attributes:
        steps: optimiser steps.
        batch: images a step, over all processes.
        lr: of Adam.
        schedule: ``cosine`` to zero, or ``constant``.
        betas: of Adam.
        ema: decay of the averaged weights.
        reduction: ``mean`` (every term per element) or ``official`` (see :mod:`repack_dit.losses`).
        perceptual: weight of the perceptual term.
        kl: weight of the divergence of the posterior.
        gan: weight of the adversarial term before its adaptive factor; 0 trains no discriminator.
        gan_start: first step with a discriminator.
        gan_channels: of the discriminator's first layer.
        save_every: steps between checkpoints.
        keep_every: steps between averaged weights that stay; 0 keeps none.
    """

    steps: int = 400
    batch: int = 16
    lr: float = 1e-4
    schedule: str = "cosine"
    betas: tuple[float, float] = (0.5, 0.9)
    ema: float = 0.999
    reduction: str = "mean"
    perceptual: float = 1.0
    kl: float = 1e-6
    gan: float = 0.5
    gan_start: int = 1
    gan_channels: int = 128
    save_every: int = 100
    keep_every: int = 0

    def __post_init__(self) -> None:
        if self.schedule not in ("cosine", "constant") or self.reduction not in ("mean", "official"):
            raise ValueError(
                f"expected schedule cosine or constant and reduction mean or official, "
                f"got {self.schedule!r} and {self.reduction!r}"
            )
        if self.batch < 1 or not self.lr > 0 or min(self.perceptual, self.kl, self.gan) < 0:
            raise ValueError(f"batch and lr must be positive and weights >= 0, got {self}")


@dataclass(frozen=True)
class FeaturedImages:
    """Images with their features, computed before or on demand.

    Attributes:
        images: see :class:`repack_dit.latents.ImageSource`.
        features: float32, (N, 2, C, h, w), of images and mirror images; None computes them when asked for.
    """

    images: Any
    features: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.images.labels)

    def take(self, indices: Tensor, flips: Tensor, autoencoder: RePackAutoencoder) -> tuple[Tensor, Tensor]:
        """Images (n, 3, H, W), mirrored where asked for, and their features (n, C, h, w), on the model's device."""
        device = autoencoder.pack_conv.weight.device
        x = aligned(self.images.signed(indices.numpy()))
        x = torch.where(flips.view(-1, 1, 1, 1), x.flip(-1), x).to(device)
        if self.features is None:
            return x, autoencoder.features(x)
        return x, aligned(self.features[indices.numpy(), flips.long().numpy()]).to(device)


class Reconstruction(nn.Module):
    """Features and noise to the reconstruction and the posterior's divergence, as one call that DDP can wrap."""

    def __init__(self, autoencoder: RePackAutoencoder) -> None:
        super().__init__()
        self.autoencoder = autoencoder

    def forward(self, features: Tensor, noise: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """(B, C, h, w) -> images (B, 3, H, W) and the KL divergence of each, (B,); without noise, of the mean."""
        found = self.autoencoder.pack(features)
        z = found.mean if noise is None else found.mean + found.std * noise
        image = self.autoencoder.decode(z, return_dict=False)[0]
        if found.deterministic:
            return image, torch.zeros(len(z), device=z.device)
        divergence = (found.mean.square() + found.logvar.exp() - 1 - found.logvar) / 2
        return image, divergence.flatten(1).sum(1)


class AutoencoderTraining(Training):
    """Trains :class:`RePackAutoencoder` in place; ``average.autoencoder`` is what to keep.

    Args:
        autoencoder: its vision model, where attached, is used and not trained.
        data: training images.
        settings: see :class:`AutoencoderSettings`.
        perceptual: distance of two batches of images, a mean; None leaves the term out.
        watson: its parameters; untrained by default.
        held_out: for :meth:`validate`.
        seed, folder, accelerator: see :class:`Training`.
    """

    def __init__(
        self,
        autoencoder: RePackAutoencoder,
        data: FeaturedImages,
        settings: AutoencoderSettings,
        *,
        perceptual: Perceptual | None = None,
        watson: WatsonDFT | None = None,
        held_out: FeaturedImages | None = None,
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
        self.autoencoder, self.data, self.settings, self.held_out = autoencoder, data, s, held_out
        vision, autoencoder.vision = autoencoder.vision, None  # so that it is not copied with the average
        modules: dict[str, nn.Module] = {"autoencoder": Reconstruction(autoencoder)}
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
        self.average: Any
        autoencoder.vision = self.average.autoencoder.vision = vision
        self.perceptual = perceptual
        self.watson = (watson or WatsonDFT()).to(self.accelerator.device)

    def _rate(self) -> float:
        if self.settings.schedule == "constant":
            return self.settings.lr
        return self.settings.lr * (1 + math.cos(math.pi * self.step / self.settings.steps)) / 2

    def _terms(self, image: Tensor, target: Tensor, divergence: Tensor) -> dict[str, Tensor]:
        s, elements = self.settings, target[0].numel()
        terms = reconstruction_terms(image, target, self.watson, reduction=s.reduction)
        if self.perceptual is not None and s.perceptual:
            distance = s.perceptual * self.perceptual(image, target)
            terms["perceptual"] = distance if s.reduction == "mean" else distance * elements
        per_image = s.kl * divergence.mean()
        terms["kl"] = per_image / elements if s.reduction == "mean" else per_image
        return terms

    def update(self) -> dict[str, float]:
        s, streams = self.settings, self.streams
        indices = self.mine(epoch_indices(self.step, s.batch, len(self.data), streams))
        generator = self.generator("posterior")
        flips = torch.rand(len(indices), generator=generator) < 0.5
        target, features = self.data.take(indices, flips, self.autoencoder)
        c = self.autoencoder.config
        noise = torch.randn((len(indices), c.latent_channels, c.grid, c.grid), generator=generator).to(features)
        for optimizer in self.optimizers.values():
            for group in optimizer.param_groups:
                group["lr"] = self._rate()
        with self.accelerator.autocast():
            image, divergence = self.wrapped["autoencoder"](features, noise)
        image = image.float()
        terms = self._terms(image, target, divergence.float())
        loss, told = torch.stack(list(terms.values())).sum(), {k: float(v.detach()) for k, v in terms.items()}
        adversarial = bool(s.gan) and self.step >= s.gan_start
        if adversarial:
            told["gan"], generator_loss = self._fool(image, terms)
            loss = loss + generator_loss
        told = {"loss": self.checked(loss, indices), **told}
        self.descend("autoencoder", loss)
        if adversarial:
            told["discriminator"] = self._discriminate(image.detach(), target, indices)
        return told

    def _fool(self, image: Tensor, terms: dict[str, Tensor]) -> tuple[float, Tensor]:
        judge = self.modules["discriminator"].requires_grad_(False)
        fooled = hinge_generator_loss(judge(image))
        judge.requires_grad_(True)
        likelihood = terms["pixel"] + terms.get("perceptual", torch.zeros_like(terms["pixel"]))
        weight = adaptive_weight(likelihood, fooled, self.autoencoder.decoder.conv_out.weight)
        return float(fooled.detach()), self.settings.gan * weight * fooled

    def _discriminate(self, image: Tensor, target: Tensor, indices: Tensor) -> float:
        judge = self.wrapped["discriminator"]
        real, fake = judge(torch.cat([target, image])).chunk(2)
        loss = hinge_discriminator_loss(real, fake)
        value = self.checked(loss, indices)
        self.descend("discriminator", loss)
        return value

    @torch.no_grad()
    def validate(self) -> float | None:
        """Mean absolute error of the averaged weights on held-out images."""
        if self.held_out is None or not len(self.held_out):
            return None
        total, count = 0.0, 0
        for rows in torch.arange(len(self.held_out)).split(self.settings.batch):
            flips = torch.zeros(len(rows), dtype=torch.bool)
            target, features = self.held_out.take(rows, flips, self.autoencoder)
            image, _ = self.average(features)
            total, count = total + float((image - target).abs().sum()), count + target.numel()
        return total / count


@dataclass(frozen=True)
class LinearInit:
    """Features and patches of images for the closed-form start of stage 1 (``init="rrr"``).

    Attributes:
        tokens: (N h w, C).
        patches: (N h w, 3 p p).
    """

    tokens: np.ndarray
    patches: np.ndarray = field(repr=False)

    def apply(self, autoencoder: RePackAutoencoder) -> None:
        """Start the packing convolution at the best linear pack."""
        from repack_dit.redundancy import best_linear_pack

        d = autoencoder.config.latent_channels
        linear = best_linear_pack(self.tokens, self.patches, d)
        scale = np.maximum(linear.encode(self.tokens).std(0), 1e-6)  # unit variance suits decoder and KL
        pack = torch.from_numpy(linear.pack / scale[:, None]).float()
        autoencoder.init_linear_pack(pack, torch.from_numpy(linear.feature_mean).float())
