"""The stages of a packed batch: neighbours, sub-sampling, way back and serialised order of every stage.

All of it depends on the coordinates only, so it is built once a batch, on the CPU, in the loader's workers if one
likes.
Stage sizes and rules follow DeLA (arXiv 2308.16532): survivors keep the order of the first point of their voxel.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from scipy.spatial import KDTree
from torch import Tensor

from anisonet.curves import Order, check_counts, cloud_ids, serialize
from anisonet.ellipsoid import check_points, knn

Pick = Literal["random", "first"] | int
Sampling = Literal["grid", "fps"]


def _voxel_keys(xyz: Tensor, size: float, counts: Tensor) -> Tensor:
    """One integer a voxel and cloud."""
    ids = cloud_ids(counts, len(xyz))
    points = xyz.double()
    index = ids[:, None].expand(-1, 3)
    low = points.new_zeros(len(counts), 3).scatter_reduce(0, index, points, "amin", include_self=False)
    cells = ((points - low[ids]) / size).floor().long()
    extent = cells.amax(0) + 1
    if float(extent.double().prod()) * len(counts) < 2**62:
        return ((ids * extent[0] + cells[:, 0]) * extent[1] + cells[:, 1]) * extent[2] + cells[:, 2]
    return torch.unique(torch.cat([ids[:, None], cells], 1), dim=0, return_inverse=True)[1]


def grid_subsample(
    xyz: Tensor,
    size: float,
    counts: Tensor | None = None,
    pick: Pick = "first",
    generator: torch.Generator | None = None,
) -> Tensor:
    """One point of every occupied voxel, in the order in which voxels first occur.

    Args:
        xyz: coordinates, shape (N, 3).
        size: edge of the voxels, whose corner is the cloud's minimum.
        counts: points a cloud; None for one cloud.
        pick: which point of a voxel: ``first``, ``random``, or a number p for its (p mod n)-th point (voting).
        generator: source of ``random`` (CPU).

    Returns:
        int64 indices of the chosen points.

    Raises:
        ValueError: if the size is not above 0, the pick is unknown or the counts do not fit.
    """
    if not size > 0:
        raise ValueError(f"expected a voxel size above 0, got {size}")
    counts = check_counts(counts, len(xyz)).to(xyz.device)
    keys = _voxel_keys(xyz, size, counts)
    by_voxel = torch.argsort(keys, stable=True)
    sizes = torch.unique_consecutive(keys[by_voxel], return_counts=True)[1]
    start = sizes.cumsum(0) - sizes
    first = by_voxel[start]
    if pick == "first":
        return first.sort().values
    if pick == "random":
        draw = torch.rand(len(sizes), generator=generator, dtype=torch.float64).to(xyz.device)
        offset = (draw * sizes).long().minimum(sizes - 1)
    elif isinstance(pick, int):
        offset = pick % sizes
    else:
        raise ValueError(f"expected pick random, first or a number, got {pick!r}")
    return by_voxel[start + offset][first.argsort()]


def farthest_point_sample(
    xyz: Tensor, counts: Tensor | None, sizes: Tensor, generator: torch.Generator | None = None
) -> Tensor:
    """Farthest-point samples of every cloud, from a first point drawn with the generator; indices in ascending order.

    Args:
        xyz: coordinates, shape (N, 3).
        counts: points a cloud; None for one cloud.
        sizes: points to keep in every cloud, at least 1 and at most its count, shape (B,).
        generator: source of the first points (CPU).

    Returns:
        int64 indices, shape (sum of sizes,). O(N max(sizes)) work, all clouds side by side.
    """
    counts = check_counts(counts, len(xyz)).to(xyz.device)
    sizes = torch.as_tensor(sizes, device=xyz.device).long().reshape(-1)
    if len(sizes) != len(counts) or bool((sizes < 1).any()) or bool((sizes > counts).any()):
        raise ValueError(f"expected one size from 1 to its count a cloud, got {sizes.tolist()} of {counts.tolist()}")
    clouds, longest = len(counts), int(counts.max())
    start = counts.cumsum(0) - counts
    inside = torch.arange(longest, device=xyz.device) < counts[:, None]
    rows = torch.where(inside, start[:, None] + torch.arange(longest, device=xyz.device), start[:, None])
    points = xyz[rows].float()
    distance = torch.where(inside, torch.inf, -1.0)
    draw = torch.rand(clouds, generator=generator, dtype=torch.float64).to(xyz.device)
    last = (draw * counts).long().minimum(counts - 1)
    every, chosen = torch.arange(clouds, device=xyz.device), []
    for _ in range(int(sizes.max())):
        chosen.append(last)
        gap = (points - points[every, last][:, None]).square().sum(-1)
        distance = torch.minimum(distance, gap)
        distance[every, last] = -0.5  # never again, but before the padding
        last = distance.argmax(1)
    found = torch.stack(chosen, 1)
    kept = torch.arange(found.shape[1], device=xyz.device) < sizes[:, None]
    return (start[:, None] + found)[kept].sort().values


def nearest(queries: Tensor, query_counts: Tensor, xyz: Tensor, counts: Tensor) -> Tensor:
    """Index of the nearest point of the same cloud for every query, shape (Q,)."""
    parts, start = [], 0
    for q, p in zip(queries.split(query_counts.tolist()), xyz.split(counts.tolist()), strict=True):
        if queries.device.type == "cpu":
            _, found = KDTree(p.double().numpy()).query(q.double().numpy(), workers=-1)
            parts.append(torch.from_numpy(np.asarray(found, dtype=np.int64)) + start)
        else:
            rows = max(1, 2**25 // len(p))
            parts.append(torch.cat([torch.cdist(block, p).argmin(1) for block in q.split(rows)]) + start)
        start += len(p)
    return torch.cat(parts)


@dataclass(frozen=True)
class Pyramid:
    """Indices of all stages; entry s of every tuple belongs to stage s.

    Attributes:
        xyz: coordinates, (N_s, 3).
        knn: neighbours inside the stage, (N_s, k_s).
        sub: points of stage s-1 that stage s keeps, (N_s,); empty for stage 0.
        back: nearest point of stage s for every point of stage 0, (N_0,); the identity for stage 0.
        counts: points a cloud, (B,).
        order: permutation of the recurrence, (N_s,); None for the given order.
    """

    xyz: tuple[Tensor, ...]
    knn: tuple[Tensor, ...]
    sub: tuple[Tensor, ...]
    back: tuple[Tensor, ...]
    counts: tuple[Tensor, ...]
    order: tuple[Tensor | None, ...]

    @classmethod
    def build(
        cls,
        xyz: Tensor,
        counts: Tensor | None,
        grid_sizes: Sequence[float],
        ks: int | Sequence[int],
        order: Order = "identity",
        *,
        sampling: Sampling = "grid",
        pick: Pick = "first",
        generator: torch.Generator | None = None,
        bits: int = 16,
    ) -> Pyramid:
        """Build all stages of a packed batch.

        Args:
            xyz: coordinates of stage 0, shape (N, 3), finite.
            counts: points a cloud; None for one cloud.
            grid_sizes: for every stage after the first the edge of its voxels, or with ``fps`` the factor (above 1) by
                which it has fewer points.
            ks: neighbours of every stage, or one number for all.
            order: order of the recurrence, as in ``curves.serialize``.
            sampling: ``grid`` (voxels) or ``fps`` (farthest points).
            pick: point of a voxel, as in ``grid_subsample``.
            generator: source of everything random.
            bits: bits an axis of the curves.

        Raises:
            ValueError: on bad points, counts, sizes or orders.
        """
        check_points(xyz)
        counts = check_counts(counts, len(xyz)).to(xyz.device)
        stages = len(grid_sizes) + 1
        neighbours = [ks] * stages if isinstance(ks, int) else list(ks)
        if len(neighbours) != stages:
            raise ValueError(f"expected {stages} numbers of neighbours, got {len(neighbours)}")
        if sampling not in ("grid", "fps"):
            raise ValueError(f"expected sampling grid or fps, got {sampling!r}")
        here, sizes = xyz, counts
        points, subs, backs, all_counts = [xyz], [xyz.new_zeros(0, dtype=torch.long)], [], [counts]
        backs.append(torch.arange(len(xyz), device=xyz.device))
        for size in grid_sizes:
            if sampling == "grid":
                kept = grid_subsample(here, size, sizes, pick, generator)
            else:
                if not size > 1:
                    raise ValueError(f"expected a factor above 1 for farthest points, got {size}")
                kept = farthest_point_sample(here, sizes, (sizes / size).ceil().long(), generator)
            ids = cloud_ids(sizes, len(here))[kept]
            sizes = torch.bincount(ids, minlength=len(counts))
            here = here[kept]
            points.append(here)
            subs.append(kept)
            all_counts.append(sizes)
            backs.append(nearest(xyz, counts, here, sizes))
        found = [knn(p, k, c) for p, k, c in zip(points, neighbours, all_counts, strict=True)]
        orders: list[Tensor | None] = [
            None if order == "identity" else serialize(p, c, order, bits, generator=generator)
            for p, c in zip(points, all_counts, strict=True)
        ]
        return cls(tuple(points), tuple(found), tuple(subs), tuple(backs), tuple(all_counts), tuple(orders))

    def _map(self, name: str, *args: object) -> Pyramid:
        def each(values: tuple[Tensor | None, ...]) -> tuple:
            return tuple(None if value is None else getattr(value, name)(*args) for value in values)

        return Pyramid(*(each(getattr(self, field)) for field in self.__dataclass_fields__))

    def to(self, device: torch.device | str) -> Pyramid:
        """The same pyramid on a device."""
        return self._map("to", device)

    def pin_memory(self) -> Pyramid:
        """The same pyramid in page-locked memory, for asynchronous copies to a GPU."""
        return self._map("pin_memory")

    @property
    def stages(self) -> int:
        """Number of stages."""
        return len(self.xyz)
