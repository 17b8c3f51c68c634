r"""Type reduction of interval Type-2 systems: Karnik-Mendel end points, Nie-Tan, and the interval hull of additive
models.

With rule consequents c and firing intervals :math:`f_j \in [f^{lo}_j, f^{up}_j]`, the weighted average
:math:`y = \sum f_j c_j / \sum f_j` takes its extremes where f switches once from one bound to the other along
sorted c. All switch points are evaluated at once by cumulative sums, which gives the same end points as the iterative
Karnik-Mendel and EIASC procedures without iterating (J. M. Mendel, D. Wu, "Enhanced Karnik-Mendel algorithms", 2009).
"""

from __future__ import annotations

from typing import Any

import numpy as np


def _is_torch(x: Any) -> bool:
    return type(x).__module__.startswith("torch")


def _check(c: np.ndarray, f_lo: np.ndarray, f_up: np.ndarray) -> None:
    if f_lo.shape != f_up.shape or c.shape[-1] != f_lo.shape[-1]:
        raise ValueError(
            f"expected c of shape (..., R) and f_lo, f_up of one shape, got {c.shape}, {f_lo.shape}, {f_up.shape}"
        )
    if c.shape[-1] == 0:
        raise ValueError("expected at least one rule, got none")
    if bool((f_lo < 0).any()) or bool((f_lo > f_up).any()):
        raise ValueError("expected 0 <= f_lo <= f_up; Karnik-Mendel knows no negative firing (use a softplus mask)")


def karnik_mendel(c: Any, f_lo: Any, f_up: Any) -> tuple[Any, Any]:
    """End points of the type-reduced interval.

    Args:
        c: consequents, shape (..., R), numpy or torch.
        f_lo, f_up: bounds of the firing, shape (..., R), 0 <= f_lo <= f_up; leading axes broadcast with those of c.

    Returns:
        y_l, y_r of the broadcast leading shape. Where all firing is 0 both are the mean consequent. In torch the
        gradient is that at the switch points found.

    Raises:
        ValueError: on other shapes or bounds.
    """
    if _is_torch(c) or _is_torch(f_lo):
        return _karnik_mendel_torch(c, f_lo, f_up)
    c, f_lo, f_up = (np.asarray(x, dtype=float) for x in (c, f_lo, f_up))
    _check(c, f_lo, f_up)
    if c.ndim == 1:  # one set of consequents for all: sorted once
        order = np.argsort(c, kind="stable")
        s, lo, up = c[order], f_lo[..., order], f_up[..., order]
    else:
        shape = np.broadcast_shapes(c.shape, f_lo.shape)
        c, f_lo, f_up = (np.broadcast_to(x, shape) for x in (c, f_lo, f_up))
        order = np.argsort(c, axis=-1, kind="stable")
        s, lo, up = (np.take_along_axis(x, order, -1) for x in (c, f_lo, f_up))
    gap = up - lo
    # weights and weighted sums with the first k rules at one bound, k = 0 .. R
    base, base_c = lo.sum(-1, keepdims=True), (lo * s).sum(-1, keepdims=True)
    head, head_c = np.cumsum(gap, -1), np.cumsum(gap * s, -1)
    zero = np.zeros_like(base)
    left_w = base + np.concatenate([zero, head], -1)
    left = base_c + np.concatenate([zero, head_c], -1)
    right_w = left_w[..., -1:] - np.concatenate([zero, head], -1)
    right = left[..., -1:] - np.concatenate([zero, head_c], -1)
    usual = bool((left_w[..., 0] > 0).all())
    middle = s.mean(-1)
    with np.errstate(invalid="ignore", divide="ignore"):
        low, high = left / left_w, right / right_w
    if usual:
        return low.min(-1), high.max(-1)
    # with no firing at the lower bound some quotients are 0 / 0: those switch points do not count
    low = np.where(left_w > 0, low, np.inf).min(-1)
    high = np.where(right_w > 1e-300, high, -np.inf).max(-1)
    dead = left_w[..., -1] <= 0
    return np.where(dead, middle, low), np.where(dead, middle, high)


def _karnik_mendel_torch(c: Any, f_lo: Any, f_up: Any) -> tuple[Any, Any]:
    import torch

    _check(c, f_lo, f_up)
    shape = torch.broadcast_shapes(c.shape, f_lo.shape)
    c, f_lo, f_up = (x.expand(shape) for x in (c, f_lo, f_up))
    order = torch.argsort(c.detach(), dim=-1, stable=True)
    s, lo, up = (x.gather(-1, order) for x in (c, f_lo, f_up))
    rules = torch.arange(shape[-1], device=c.device)
    with torch.no_grad():
        gap, zero = up - lo, torch.zeros_like(lo[..., :1])
        head, head_c = torch.cat([zero, gap.cumsum(-1)], -1), torch.cat([zero, (gap * s).cumsum(-1)], -1)
        base, base_c = lo.sum(-1, keepdim=True), (lo * s).sum(-1, keepdim=True)
        total, total_c = base + head[..., -1:], base_c + head_c[..., -1:]
        low_w, high_w = base + head, total - head
        low = torch.where(low_w > 0, (base_c + head_c) / low_w.clamp_min(1e-300), torch.inf)
        high = torch.where(high_w > 0, (total_c - head_c) / high_w.clamp_min(1e-300), -torch.inf)
        left, right = low.argmin(-1, keepdim=True), high.argmax(-1, keepdim=True)
    ends = []
    for weights in (torch.where(rules < left, up, lo), torch.where(rules < right, lo, up)):
        weight = weights.sum(-1)
        safe = torch.where(weight > 0, weight, torch.ones_like(weight))
        ends.append(torch.where(weight > 0, (weights * s).sum(-1) / safe, s.mean(-1)))
    return ends[0], ends[1]


def nie_tan(c: Any, f_lo: Any, f_up: Any) -> Any:
    """Weighted average with the mean of both firings: a closed form near the middle of the Karnik-Mendel interval.

    Args and shapes as in ``karnik_mendel``; where all firing is 0 the mean consequent.
    """
    f = (f_lo + f_up) / 2
    total = f.sum(-1)
    if _is_torch(f):
        import torch

        safe = torch.where(total > 0, total, torch.ones_like(total))
        return torch.where(total > 0, (f * c).sum(-1) / safe, (c + 0 * f).mean(-1))
    safe = np.where(total > 0, total, 1.0)
    return np.where(total > 0, (f * c).sum(-1) / safe, np.mean(c + 0 * f, axis=-1))


def interval_hull(lower: np.ndarray, upper: np.ndarray, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Exact range of sum_m w_m mu_m over all mu_m in [lower_m, upper_m], one degree of freedom a membership.

    Args:
        lower, upper: memberships, shape (n, M).
        weights: shape (M, O).

    Returns:
        Lower and upper ends, shape (n, O).
    """
    positive, negative = np.maximum(weights, 0), np.minimum(weights, 0)
    return lower @ positive + upper @ negative, upper @ positive + lower @ negative
