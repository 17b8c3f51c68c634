"""Clouds to packed batches: augmentation, features, crops, and what the network may see of the file's order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

import numpy as np
import torch
from scipy import ndimage
from torch import Tensor

from anisonet.clouds import Cloud
from anisonet.model import Config
from anisonet.pyramid import Pick, grid_subsample
from papershelf import InputError

FileOrder = Literal["shuffle", "keep"]


@dataclass(frozen=True)
class Augmentation:
    """Random changes of a training cloud.

    Attributes:
        rotate: turn about the up axis by any angle.
        scale: factor range.
        jitter: standard deviation of noise, in the data's units.
        elastic: (granularity, magnitude) pairs of elastic distortion, each applied with probability 0.95.
        colour_drop: probability that all colours become 0.
        colour_contrast: probability that colours are stretched to the full range (by a random part).
        flip: mirror along the horizontal axes with probability 1/2 each.
    """

    rotate: bool = True
    scale: tuple[float, float] = (0.8, 1.2)
    jitter: float = 0.0
    elastic: tuple[tuple[float, float], ...] = ()
    colour_drop: float = 0.0
    colour_contrast: float = 0.0
    flip: bool = False


NO_AUGMENTATION = Augmentation(rotate=False, scale=(1.0, 1.0))
AUGMENTATIONS = {
    "seg_s3dis": Augmentation(jitter=0.005, colour_drop=0.2, colour_contrast=0.2),
    "seg_scannet": Augmentation(elastic=((0.2, 0.4), (0.8, 1.6)), colour_drop=0.2, colour_contrast=0.2, flip=True),
    "cls_scanobjectnn": Augmentation(),
    "seg_tiny": Augmentation(scale=(0.9, 1.1)),
    "cls_tiny": Augmentation(),
    "part_shapenet": Augmentation(rotate=False),
}


def elastic_distortion(xyz: np.ndarray, granularity: float, magnitude: float, rng: np.random.Generator) -> np.ndarray:
    """Move points by a smooth random field: noise on a grid of that granularity, blurred, times the magnitude."""
    low = xyz.min(0)
    size = (np.ptp(xyz, axis=0) // granularity).astype(int) + 3
    field = rng.standard_normal((3, *size)).astype(np.float32)
    for _ in range(2):
        for axis in (1, 2, 3):
            field = ndimage.uniform_filter1d(field, 3, axis=axis, mode="constant")
    at = ((xyz - low) / granularity + 1).T
    moved = np.stack([ndimage.map_coordinates(part, at, order=1, mode="nearest") for part in field], 1)
    return xyz + magnitude * moved


def turn(xyz: np.ndarray, angle: float, up: int = 2) -> np.ndarray:
    """Rotate about an axis."""
    a, b = [axis for axis in range(3) if axis != up]
    out = xyz.copy()
    out[:, a] = np.cos(angle) * xyz[:, a] - np.sin(angle) * xyz[:, b]
    out[:, b] = np.sin(angle) * xyz[:, a] + np.cos(angle) * xyz[:, b]
    return out


def augmented(cloud: Cloud, how: Augmentation, rng: np.random.Generator, up: int = 2) -> Cloud:
    """One random version of a cloud."""
    xyz = cloud.xyz.astype(np.float64)
    normals, colour = cloud.normals, cloud.colour
    if how.rotate:
        angle = rng.uniform(0, 2 * np.pi)
        xyz = turn(xyz, angle, up)
        normals = None if normals is None else turn(normals, angle, up)
    if how.flip:
        for axis in (a for a in range(3) if a != up):
            if rng.random() < 0.5:
                xyz[:, axis] *= -1
                if normals is not None:
                    normals = normals * np.where(np.arange(3) == axis, -1, 1).astype(normals.dtype)
    xyz = xyz * rng.uniform(*how.scale)
    for granularity, magnitude in how.elastic:
        if rng.random() < 0.95:
            xyz = elastic_distortion(xyz, granularity, magnitude, rng)
    if how.jitter:
        xyz = xyz + np.clip(rng.normal(0, how.jitter, xyz.shape), -2 * how.jitter, 2 * how.jitter)
    if colour is not None:
        if rng.random() < how.colour_contrast:
            low, high = colour.min(0), colour.max(0)
            part = rng.random()
            colour = (1 - part) * colour + part * (colour - low) / np.maximum(high - low, 1e-6)
        if rng.random() < how.colour_drop:
            colour = np.zeros_like(colour)
    return replace(cloud, xyz=(xyz - xyz.min(0)).astype(np.float32), colour=colour, normals=normals)


def features(cloud: Cloud, names: Sequence[str], up: int = 2) -> np.ndarray:
    """Columns of named features, float32, shape (N, len(names)).

    Names: ``r``, ``g``, ``b`` (times 255/250, as in DeLA), ``height`` above the lowest point, ``nx``, ``ny``, ``nz``,
    ``one``, or any scalar of the file.

    Raises:
        InputError: if the cloud lacks one.
    """
    columns = []
    for name in names:
        if name in ("r", "g", "b"):
            if cloud.colour is None:
                raise InputError(
                    f"expected {len(names)} features ({','.join(names)}), but {cloud.name or 'the cloud'} has no "
                    f"colours; "
                    "pass --no-colour to put zeros there"
                )
            columns.append(cloud.colour[:, "rgb".index(name)] * np.float32(255 / 250))
        elif name == "height":
            columns.append(cloud.xyz[:, up] - cloud.xyz[:, up].min())
        elif name in ("nx", "ny", "nz"):
            if cloud.normals is None:
                raise InputError(
                    f"{cloud.name or 'the cloud'}: the model wants normals (nx, ny, nz), the cloud has none"
                )
            columns.append(cloud.normals[:, ("nx", "ny", "nz").index(name)])
        elif name == "one":
            columns.append(np.ones(len(cloud), dtype=np.float32))
        elif name in cloud.scalars:
            columns.append(np.asarray(cloud.scalars[name]))
        else:
            raise InputError(
                f"{cloud.name or 'the cloud'}: no feature {name!r}; it has {', '.join(cloud.scalars) or 'none'}"
            )
    return np.stack(columns, 1).astype(np.float32) if columns else np.zeros((len(cloud), 0), dtype=np.float32)


def crop(cloud: Cloud, points: int, rng: np.random.Generator) -> Cloud:
    """The points nearest to a random one, in the order of the cloud; the cloud itself where it is small enough."""
    if len(cloud) <= points:
        return cloud
    centre = cloud.xyz[rng.integers(len(cloud))]
    near = np.argpartition(np.square(cloud.xyz - centre).sum(1), points - 1)[:points]
    return cloud.take(np.sort(near))


def subsampled(cloud: Cloud, size: float, pick: Pick, rng: np.random.Generator) -> Cloud:
    """One point a voxel of the data's own grid; the cloud itself for size 0."""
    if size <= 0:
        return cloud
    generator = torch.Generator().manual_seed(int(rng.integers(2**62)))
    return cloud.take(grid_subsample(torch.from_numpy(cloud.xyz), size, None, pick, generator).numpy())


def thinned(cloud: Cloud, points: int, rng: np.random.Generator) -> Cloud:
    """At most that many points, drawn without replacement, in the order of the cloud."""
    if len(cloud) <= points:
        return cloud
    return cloud.take(np.sort(rng.choice(len(cloud), points, replace=False)))


def shuffled(cloud: Cloud, rng: np.random.Generator) -> Cloud:
    """The points in random order: what is left of the file's order is nothing."""
    return cloud.take(rng.permutation(len(cloud)))


class Batch(NamedTuple):
    """A packed batch: coordinates (N, 3), counts (B,), features (N, f), labels (N,) or (B,), categories (B,) or
    None."""

    xyz: Tensor
    counts: Tensor
    feats: Tensor
    labels: Tensor
    categories: Tensor | None


def collate(clouds: Sequence[Cloud], cfg: Config, up: int = 2) -> Batch:
    """Pack clouds for a network.

    Raises:
        InputError: if a cloud lacks the features or labels.
    """
    labels = []
    for cloud in clouds:
        if cfg.task == "classification":
            labels.append(np.array([-1 if cloud.label is None else cloud.label]))
        else:
            labels.append(np.full(len(cloud), -1) if cloud.labels is None else cloud.labels)
    categories = None
    if cfg.task == "parts":
        if any(c.label is None for c in clouds):
            raise InputError("parts need the category of every cloud (Cloud.label)")
        categories = torch.tensor([c.label for c in clouds])
    return Batch(
        torch.from_numpy(np.concatenate([c.xyz for c in clouds])),
        torch.tensor([len(c) for c in clouds]),
        torch.from_numpy(np.concatenate([features(c, cfg.features, up) for c in clouds])),
        torch.from_numpy(np.concatenate(labels).astype(np.int64)),
        categories,
    )
