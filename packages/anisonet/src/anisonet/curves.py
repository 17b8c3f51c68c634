"""Space-filling curves: Morton and Hilbert codes of three axes, and the orders that they give to packed clouds.

A *packed* batch holds its clouds one after the other; ``counts`` says how many points each has. All codes are int64.
References: G. M. Morton (1966); J. Skilling, "Programming the Hilbert curve", AIP Conf. Proc. 707 (2004).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor

MAX_BITS = 21  # 3 x 21 bits fit the 63 bits of a positive int64
BLOCK = 1 << 15  # points a pass, so that the temporaries stay in cache

Curve = Literal["morton", "hilbert", "morton-trans", "hilbert-trans"]
Order = str | Callable[[Tensor], Tensor]
CURVES: tuple[str, ...] = ("morton", "hilbert", "morton-trans", "hilbert-trans")
ORDERS: tuple[str, ...] = ("identity", "reverse", "random", "lexicographic", *CURVES)


def _checked(ijk: Tensor, bits: int) -> Tensor:
    if not 1 <= bits <= MAX_BITS:
        raise ValueError(f"expected bits from 1 to {MAX_BITS}, got {bits}")
    if ijk.ndim == 0 or ijk.shape[-1] != 3:
        raise ValueError(f"expected cells of shape (..., 3), got {tuple(ijk.shape)}")
    if ijk.dtype.is_floating_point or ijk.dtype == torch.bool:
        raise ValueError(f"expected integer cells, got {ijk.dtype}")
    ijk = ijk.long()
    if ijk.numel() and (int(ijk.min()) < 0 or int(ijk.max()) >> bits):
        raise ValueError(f"expected cells from 0 to {2**bits - 1}, got {int(ijk.min())} to {int(ijk.max())}")
    return ijk


def _spread(x: Tensor) -> Tensor:
    """Put two zero bits between the 21 low bits of x; x is overwritten."""
    for shift, mask in (
        (32, 0x1F00000000FFFF),
        (16, 0x1F0000FF0000FF),
        (8, 0x100F00F00F00F00F),
        (4, 0x10C30C30C30C30C3),
        (2, 0x1249249249249249),
    ):
        x = x.bitwise_or_(x << shift).bitwise_and_(mask)
    return x


def _gather(x: Tensor) -> Tensor:
    """Inverse of ``_spread``."""
    x = x & 0x1249249249249249
    for shift, mask in (
        (2, 0x10C30C30C30C30C3),
        (4, 0x100F00F00F00F00F),
        (8, 0x1F0000FF0000FF),
        (16, 0x1F00000000FFFF),
        (32, 0x1FFFFF),
    ):
        x = (x | (x >> shift)) & mask
    return x


def _interleave(x: Tensor, y: Tensor, z: Tensor) -> Tensor:
    return _spread(x.clone()) | (_spread(y.clone()) << 1) | (_spread(z.clone()) << 2)


def _blocks(rows: Tensor, function: Callable[[Tensor], Tensor]) -> Tensor:
    if len(rows) <= BLOCK:
        return function(rows)
    return torch.cat([function(part) for part in rows.split(BLOCK)])


def morton_encode(ijk: Tensor) -> Tensor:
    """Morton (Z-order) codes: bit b of x, y, z becomes bit 3b, 3b+1, 3b+2.

    Args:
        ijk: integer cells, shape (..., 3), each from 0 to 2**21 - 1; narrower integers are widened.

    Returns:
        int64 codes, shape (...), from 0 to 2**63 - 1.

    Raises:
        ValueError: on other shapes, floats or cells out of range.
    """
    ijk = _checked(ijk, MAX_BITS)
    flat = ijk.reshape(-1, 3)
    return _blocks(flat, lambda rows: _interleave(rows[:, 0], rows[:, 1], rows[:, 2])).reshape(ijk.shape[:-1])


def morton_decode(codes: Tensor) -> Tensor:
    """Cells of Morton codes, shape (..., 3); inverse of ``morton_encode``."""
    codes = _checked_codes(codes, MAX_BITS)
    return torch.stack([_gather(codes), _gather(codes >> 1), _gather(codes >> 2)], dim=-1)


def _checked_codes(codes: Tensor, bits: int) -> Tensor:
    if codes.dtype.is_floating_point or codes.dtype == torch.bool:
        raise ValueError(f"expected integer codes, got {codes.dtype}")
    if not 1 <= bits <= MAX_BITS:
        raise ValueError(f"expected bits from 1 to {MAX_BITS}, got {bits}")
    codes = codes.long()
    if codes.numel() and (int(codes.min()) < 0 or int(codes.max()) >> (3 * bits)):
        raise ValueError(f"expected codes from 0 to 2**{3 * bits} - 1, got {int(codes.min())} to {int(codes.max())}")
    return codes


def _hilbert_block(rows: Tensor, bits: int) -> Tensor:
    x = [rows[:, axis].clone() for axis in range(3)]
    for level in range(bits - 1, 0, -1):  # inverse undo of excess work
        low = (1 << level) - 1
        for axis in range(3):
            high = (x[axis] >> level) & 1  # 1: invert the low bits of the first axis; 0: exchange them
            swap = (x[0] ^ x[axis]) & low & (high - 1)
            flip = (-high) & low
            x[0] ^= swap | flip
            if axis:
                x[axis] ^= swap
    x[1] ^= x[0]  # Gray encode
    x[2] ^= x[1]
    t = torch.zeros_like(x[0])
    for level in range(bits - 1, 0, -1):
        t ^= (-((x[2] >> level) & 1)) & ((1 << level) - 1)
    x = [axis ^ t for axis in x]
    return _interleave(x[2], x[1], x[0])  # the first axis holds the highest bit of each triple


def hilbert_encode(ijk: Tensor, bits: int = 16) -> Tensor:
    """Hilbert codes by Skilling's transpose algorithm; consecutive codes are neighbouring cells.

    Args:
        ijk: integer cells, shape (..., 3), each from 0 to 2**bits - 1.
        bits: bits an axis, 1 to 21.

    Returns:
        int64 codes, shape (...), from 0 to 2**(3 bits) - 1.

    Raises:
        ValueError: on other shapes, floats, cells out of range or bits out of range.
    """
    ijk = _checked(ijk, bits)
    return _blocks(ijk.reshape(-1, 3), lambda rows: _hilbert_block(rows, bits)).reshape(ijk.shape[:-1])


def hilbert_decode(codes: Tensor, bits: int = 16) -> Tensor:
    """Cells of Hilbert codes, shape (..., 3); inverse of ``hilbert_encode`` with the same bits."""
    codes = _checked_codes(codes, bits)
    x = [_gather(codes >> 2), _gather(codes >> 1), _gather(codes)]
    t = x[2] >> 1  # Gray decode
    x[2] = x[2] ^ x[1]
    x[1] = x[1] ^ x[0]
    x[0] = x[0] ^ t
    for level in range(1, bits):  # undo excess work
        low = (1 << level) - 1
        for axis in (2, 1, 0):
            high = (x[axis] >> level) & 1
            swap = (x[0] ^ x[axis]) & low & (high - 1)
            x[0] = x[0] ^ (swap | ((-high) & low))
            if axis:
                x[axis] = x[axis] ^ swap
    return torch.stack(x, dim=-1)


def check_counts(counts: Tensor | None, n: int) -> Tensor:
    """Counts as an int64 tensor of clouds that have points and add up to n.

    Raises:
        ValueError: naming the first empty or negative cloud, or both sums.
    """
    if counts is None:
        counts = torch.tensor([n])
    counts = torch.as_tensor(counts).long().reshape(-1)
    if len(counts) == 0 or int(counts.min()) <= 0:
        bad = int((counts <= 0).nonzero()[0]) if len(counts) else 0
        got = int(counts[bad]) if len(counts) else "no cloud"
        raise ValueError(f"expected at least one point in every cloud, got {got} in cloud {bad}")
    if int(counts.sum()) != n:
        raise ValueError(f"expected counts that add up to the {n} points, got a sum of {int(counts.sum())}")
    return counts


def cloud_ids(counts: Tensor, n: int | None = None) -> Tensor:
    """Number of the cloud of every point, shape (N,)."""
    return torch.repeat_interleave(torch.arange(len(counts), device=counts.device), counts, output_size=n)


def quantize(xyz: Tensor, counts: Tensor | None = None, bits: int = 16, cell: float | None = None) -> Tensor:
    """Cells floor((p - min) / cell) of every point in its own cloud, clipped to 0 .. 2**bits - 1.

    Args:
        xyz: coordinates, shape (N, 3).
        counts: points a cloud; None for one cloud.
        bits: bits an axis, 1 to 21.
        cell: edge of a cell; None for the longest extent of each cloud / 2**bits.
    """
    if not 1 <= bits <= MAX_BITS:
        raise ValueError(f"expected bits from 1 to {MAX_BITS}, got {bits}")
    if cell is not None and not cell > 0:
        raise ValueError(f"expected a cell above 0, got {cell}")
    counts = check_counts(counts, len(xyz)).to(xyz.device)
    points = xyz.double()
    if len(counts) == 1:
        low = points.amin(0, keepdim=True)
        extent = (points.amax(0, keepdim=True) - low).amax(1, keepdim=True)
    else:
        ids = cloud_ids(counts, len(xyz))
        index = ids[:, None].expand(-1, 3)
        least = points.new_zeros(len(counts), 3).scatter_reduce(0, index, points, "amin", include_self=False)
        most = points.new_zeros(len(counts), 3).scatter_reduce(0, index, points, "amax", include_self=False)
        low, extent = least[ids], (most - least).amax(1, keepdim=True)[ids]
    size = extent / 2**bits if cell is None else torch.full_like(extent, cell)
    size = torch.where(size > 0, size, torch.ones_like(size))
    return ((points - low) / size).floor().clamp_(0, 2**bits - 1).long()


def codes(xyz: Tensor, counts: Tensor | None, curve: str, bits: int = 16, cell: float | None = None) -> Tensor:
    """Codes of points along a curve; ``-trans`` curves exchange the x and y axes first."""
    ijk = quantize(xyz, counts, bits, cell)
    if curve.endswith("-trans"):
        ijk = ijk[:, [1, 0, 2]]
    return morton_encode(ijk) if curve.startswith("morton") else hilbert_encode(ijk, bits)


def _stable_by_cloud(keys: Tensor, ids: Tensor, clouds: int) -> Tensor:
    order = torch.argsort(keys, stable=True)
    return order if clouds == 1 else order[torch.argsort(ids[order], stable=True)]


def serialize(
    xyz: Tensor,
    counts: Tensor | None = None,
    order: Order = "morton",
    bits: int = 16,
    cell: float | None = None,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Permutation that puts the points of every cloud in an order; clouds stay where they are.

    Args:
        xyz: coordinates, shape (N, 3).
        counts: points a cloud; None for one cloud.
        order: one of ``ORDERS``, or a function of the coordinates of one cloud that returns one sort key a point.
        bits: bits an axis of the curves' cells.
        cell: edge of the curves' cells; None for extent / 2**bits.
        generator: source of the ``random`` order (CPU).

    Returns:
        int64 indices, shape (N,): ``xyz[serialize(xyz)]`` is in order. Ties keep the given order.

    Raises:
        ValueError: on an unknown order or counts that do not fit.
    """
    counts = check_counts(counts, len(xyz)).to(xyz.device)
    n, clouds = len(xyz), len(counts)
    ids = cloud_ids(counts, n)
    if callable(order):
        keys = torch.cat([torch.as_tensor(order(part)).reshape(-1) for part in xyz.split(counts.tolist())])
        if len(keys) != n:
            raise ValueError(f"expected one sort key a point, got {len(keys)} for {n} points")
        return _stable_by_cloud(keys, ids, clouds)
    if order == "identity":
        return torch.arange(n, device=xyz.device)
    if order == "reverse":
        start = counts.cumsum(0) - counts
        return (2 * start + counts - 1)[ids] - torch.arange(n, device=xyz.device)
    if order == "random":
        return _stable_by_cloud(torch.rand(n, generator=generator, dtype=torch.float64).to(xyz.device), ids, clouds)
    if order == "lexicographic":
        found = torch.arange(n, device=xyz.device)
        for axis in (2, 1, 0):
            found = found[torch.argsort(xyz[found, axis], stable=True)]
        return found if clouds == 1 else found[torch.argsort(ids[found], stable=True)]
    if order in CURVES:
        return _stable_by_cloud(codes(xyz, counts, order, bits, cell), ids, clouds)
    raise ValueError(f"expected an order of {', '.join(ORDERS)} or a function, got {order!r}")
