"""Latent spaces with closed-form decoders, under one interface, and the default data's features."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from papershelf.files import cache_folder, load_checkpoint, save_checkpoint
from repack_dit.data import Images, photo_crops
from repack_dit.redundancy import LinearPack, best_linear_pack, principal_pack
from repack_dit.vision import PACKAGED, VisionFeatures, load_vfm

SPACES = ("raw", "rrr", "pca", "pixel")


def patches_of(images: np.ndarray, grid: int) -> np.ndarray:
    """Images (N, 3, H, W) to patches, (N * grid * grid, 3 * p * p), row by row."""
    n, c, side, _ = images.shape
    p = side // grid
    if p * grid != side:
        raise ValueError(f"a grid of {grid} does not divide images of side {side}")
    cut = images.reshape(n, c, grid, p, grid, p).transpose(0, 2, 4, 1, 3, 5)
    return cut.reshape(n * grid * grid, c * p * p)


def images_of(patches: np.ndarray, grid: int) -> np.ndarray:
    """Inverse of :func:`patches_of`."""
    p = round((patches.shape[1] / 3) ** 0.5)
    cut = patches.reshape(-1, grid, grid, 3, p, p).transpose(0, 3, 1, 4, 2, 5)
    return cut.reshape(-1, 3, grid * p, grid * p)


def tokens_of(maps: np.ndarray) -> np.ndarray:
    """Maps (N, C, h, w) to tokens (N * h * w, C)."""
    return np.moveaxis(maps, 1, -1).reshape(-1, maps.shape[1])


def maps_of(tokens: np.ndarray, grid: int) -> np.ndarray:
    """Inverse of :func:`tokens_of`."""
    return np.ascontiguousarray(np.moveaxis(tokens.reshape(-1, grid, grid, tokens.shape[1]), -1, 1))


@dataclass(frozen=True)
class LatentSpace:
    """A linear latent space of one grid, normalised per channel.

    Attributes:
        name: ``raw``, ``rrr-32``, ``pca-32`` or ``pixel-32``.
        linear: pack and patch decoder; of features, or of the patches themselves for ``pixel``.
        mean: of the latents, (d,).
        std: of the latents (unbiased), (d,).
        grid: side of the map.
    """

    name: str
    linear: LinearPack
    mean: np.ndarray
    std: np.ndarray
    grid: int

    @property
    def channels(self) -> int:
        """d."""
        return len(self.mean)

    def encode(self, features: np.ndarray, images: np.ndarray) -> NDArray[np.float32]:
        """Normalised latents, (N, d, h, w), of images (N, 3, H, W) with their features (N, C, h, w)."""
        source = patches_of(images, self.grid) if self.name.startswith("pixel") else tokens_of(features)
        return maps_of((self.linear.encode(source) - self.mean) / self.std, self.grid).astype(np.float32)

    def decode(self, latents: np.ndarray) -> NDArray[np.float32]:
        """Images in [-1, 1], (N, 3, H, W), of normalised latents."""
        patches = self.linear.decode(tokens_of(latents) * self.std + self.mean)
        return images_of(patches, self.grid).clip(-1, 1).astype(np.float32)


def fit_space(kind: str, features: np.ndarray, images: np.ndarray, d: int = 32) -> LatentSpace:
    """Fit a space on training features and images.

    Args:
        kind: ``raw`` (all channels), ``rrr`` (best linear pack), ``pca`` (of standardised features) or ``pixel``
            (PCA of the patches, a linear autoencoder).
        features: (N, C, h, h).
        images: (N, 3, H, H) in [-1, 1].
        d: channels of the packed kinds.
    """
    if kind not in SPACES:
        raise ValueError(f"expected one of {', '.join(SPACES)}, got {kind!r}")
    grid = features.shape[-1]
    tokens, patches = tokens_of(features), patches_of(images, grid)
    if kind == "raw":
        full = best_linear_pack(tokens, patches, min(tokens.shape[1], patches.shape[1]))
        linear = LinearPack(np.eye(tokens.shape[1]), full.unpack @ full.pack, full.feature_mean, full.patch_mean)
    elif kind == "rrr":
        linear = best_linear_pack(tokens, patches, d)
    elif kind == "pca":
        linear = principal_pack(tokens, patches, d)
    else:
        linear = principal_pack(patches, patches, d, ridge=1e-9, standardise=False)
    latents = linear.encode(patches if kind == "pixel" else tokens)
    std = np.maximum(latents.std(0, ddof=1), 1e-6)
    return LatentSpace("raw" if kind == "raw" else f"{kind}-{d}", linear, latents.mean(0), std, grid)


# --- features of the default data ----------------------------------------------------------------------------------


@torch.no_grad()
def extract_features(vision: VisionFeatures, images: np.ndarray, batch: int = 64) -> NDArray[np.float32]:
    """Features (N, C, h, w) of images (N, 3, H, W) in [-1, 1]."""
    parts = [vision(torch.from_numpy(images[i : i + batch])).numpy() for i in range(0, len(images), batch)]
    return np.concatenate(parts)


@dataclass(frozen=True)
class PhotoData:
    """Photo crops with their features: images (N, 3, 32, 32) in [-1, 1], features (N, C, 4, 4)."""

    train: np.ndarray
    train_features: np.ndarray
    train_labels: np.ndarray
    held_out: np.ndarray
    held_out_features: np.ndarray
    vfm: str


def photo_data(vfm: str = PACKAGED, *, train: int = 150, held_out: int = 30, seed: int = 0) -> PhotoData:
    """The default data; features of the packaged model are computed once (about half a minute) and cached."""
    first, second = photo_crops(np.random.default_rng(seed), train=train, held_out=held_out)
    path = cache_folder("repack-dit", "features") / f"photos-32-{vfm}-{train}-{held_out}-{seed}.npz"
    if vfm == PACKAGED and path.is_file():
        kept = load_checkpoint(path)
    else:
        vision = load_vfm(vfm, 4)
        kept = {"train": _features(vision, first), "held_out": _features(vision, second)}
        if vfm == PACKAGED:
            save_checkpoint(path, kept)
    return PhotoData(first.signed(), kept["train"], first.labels, second.signed(), kept["held_out"], vfm)


def _features(vision: VisionFeatures, images: Images) -> np.ndarray:
    return extract_features(vision, images.signed())
