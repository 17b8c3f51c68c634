"""Latent spaces under one trainer: distance of decoded samples against images seen."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

import numpy as np
import torch

from papershelf import Streams
from repack_dit.data import Images, load_images
from repack_dit.metrics import (
    frechet_distance,
    frechet_from_moments,
    peak_signal_to_noise,
    pooled_rgb,
    vision_embeddings,
)
from repack_dit.redundancy import linear_cka
from repack_dit.spaces import Space, extract_features, make_space, tokens_of
from repack_dit.training import TensorLatents, TrainSettings, TransformerTraining
from repack_dit.transformer import RePackDiTTransformer2DModel, euler_sample
from repack_dit.vision import VisionFeatures, load_vfm

Distance = Callable[[np.ndarray], float]


def as_pixels(images: np.ndarray) -> np.ndarray:
    """Images (N, 3, H, W) in [-1, 1] as uint8 (N, H, W, 3)."""
    return ((images.clip(-1, 1) + 1) * 127.5).round().astype(np.uint8).transpose(0, 2, 3, 1)


def rgb_distance(reference: np.ndarray) -> Distance:
    """Frechet distance of RGB pooled to 4 x 4, to reference images (N, 3, H, W)."""
    known = pooled_rgb(reference)
    return lambda images: frechet_distance(pooled_rgb(images), known)


def vision_distance(vision: VisionFeatures, reference: np.ndarray) -> Distance:
    """Frechet distance of the vision model's embeddings (FD-DINOv2), to reference images (N, 3, H, W)."""
    known = vision_embeddings(vision, as_pixels(reference))
    mean, covariance = known.mean(0), np.cov(known.T)

    def distance(images: np.ndarray) -> float:
        found = vision_embeddings(vision, as_pixels(images))
        return frechet_from_moments(found.mean(0), np.cov(found.T), mean, covariance)

    return distance


def sample_curve(
    space: Space,
    latents: np.ndarray,
    labels: np.ndarray,
    classes: int,
    *,
    streams: Streams,
    checkpoints: tuple[int, ...],
    samples: int,
    distances: Mapping[str, Distance],
    size: tuple[int, int, int] = (2, 64, 4),
) -> tuple[dict[str, list[float]], np.ndarray]:
    """Train a small transformer on a space's latents and measure decoded samples at the checkpoints.

    Args:
        space: decodes the samples.
        latents: normalised, (N, d, h, w).
        labels: (N,).
        classes: how many.
        streams: of weights, training and noise.
        checkpoints: steps, ascending.
        samples: images a checkpoint, labels in turn, 25 Euler steps, no guidance, averaged weights.
        distances: name -> of images (N, 3, H, W).
        size: depth, width and heads.

    Returns:
        Name -> distances at the checkpoints, and the last images.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(streams.integer("weights"))
        model = RePackDiTTransformer2DModel(
            sample_size=space.grid,
            in_channels=space.channels,
            num_layers=size[0],
            hidden_size=size[1],
            num_attention_heads=size[2],
            num_classes=classes,
        )
    training = TransformerTraining(
        model,
        TensorLatents(torch.from_numpy(latents), torch.from_numpy(labels)),
        TrainSettings(steps=checkpoints[-1]),
        seed=streams.integer("training"),
    )
    found: dict[str, list[float]] = {name: [] for name in distances}
    images = np.empty(0)
    for until in checkpoints:
        training.run(until)
        noise = torch.randn((samples, space.channels, space.grid, space.grid), generator=streams.torch("noise"))
        z = euler_sample(training.average, noise, torch.arange(samples) % classes, points=26)
        images = space.decode(z.numpy())
        for name, distance in distances.items():
            found[name].append(distance(images))
    return found, images


@lru_cache(maxsize=1)
def _prepared(data: str, vfm: str, size: int, max_bad: int) -> tuple[Images, Images, Any, VisionFeatures]:
    """Training and held-out images (of seed 0, the same for every cell), features of both, the vision model."""
    train, held = load_images(data, size, Streams(0).numpy("data"), max_bad=max_bad)
    vision = load_vfm(vfm, size // 8)
    return train, held, [extract_features(vision, part.signed()) for part in (train, held)], vision


def ablation_cell(
    space: str,
    seed: int,
    data: str,
    vfm: str,
    size: int,
    checkpoints: tuple[int, ...],
    samples: int,
    autoencoder_steps: int,
    max_bad: int,
) -> dict[str, Any]:
    """One space and seed of an ablation, for :func:`papershelf.sweep.sweep`.

    Returns:
        ``pooled RGB`` and ``FD-DINOv2`` at the checkpoints; ``psnr`` of held-out reconstructions in dB; ``cka`` of
        held-out features and latents; ``channels``.
    """
    train, held, (features, held_features), vision = _prepared(data, vfm, size, max_bad)
    streams = Streams(seed).child(f"ablate {space}")
    images, held_images = train.signed(), held.signed()
    made = make_space(space, features, images, generator=streams.torch("space"), steps=autoencoder_steps)
    latents = made.encode(features, images)
    found, _ = sample_curve(
        made,
        latents,
        train.labels,
        len(train.classes),
        streams=streams,
        checkpoints=tuple(checkpoints),
        samples=samples,
        distances={"pooled RGB": rgb_distance(images), "FD-DINOv2": vision_distance(vision, images)},
    )
    z = made.encode(held_features, held_images)
    return {
        **found,
        "psnr": peak_signal_to_noise(made.decode(z), held_images),
        "cka": linear_cka(tokens_of(held_features).astype(np.float64), tokens_of(z).astype(np.float64)),
        "channels": made.channels,
    }
