"""Actions at another control rate, right for absolute targets and for increments (ours).

Increments must not be queried more densely: their sum is fitted, and increments at any rate are its differences.
Gripper
channels are held, never interpolated.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from typing import Literal

import numpy as np
from scipy.interpolate import CubicSpline

ActionKind = Literal["absolute", "delta"]


class DataError(ValueError):
    """Recorded data that cannot be used as they are."""


def check_kind(kind: str) -> None:
    """Raise ``ValueError`` unless the kind is "absolute" or "delta"."""
    if kind not in ("absolute", "delta"):
        raise ValueError(f'action_kind must be "absolute" or "delta", got {kind!r}')


def check_rate(rate: float, name: str = "fps") -> None:
    """Raise ``ValueError`` unless a rate in Hz is positive."""
    if not (math.isfinite(rate) and rate > 0):
        raise ValueError(f"{name} must be positive, got {rate}")


def check_times(t: np.ndarray, where: str = "the recording", tolerance: float = 0.01) -> float:
    """Check timestamps and return their mean rate in Hz.

    Warns where steps differ by more than ``tolerance`` of their median.

    Raises:
        DataError: for fewer than two, or times that are repeated, decreasing or not finite; names the row.
    """
    t = np.asarray(t, float)
    if len(t) < 2:
        raise DataError(f"{where}: expected at least 2 timestamps, got {len(t)}")
    if not np.isfinite(t).all():
        raise DataError(f"{where}, row {int(np.argmin(np.isfinite(t)))}: the timestamp is not finite")
    steps = np.diff(t)
    if (steps <= 0).any():
        row = int(np.argmax(steps <= 0)) + 1
        what = "repeats the one before" if steps[row - 1] == 0 else "is earlier than the one before"
        raise DataError(f"{where}, row {row}: the timestamp {t[row]:.6g} {what}")
    rate, median = (len(t) - 1) / (t[-1] - t[0]), float(np.median(steps))
    if np.abs(steps - median).max() > tolerance * median:
        warnings.warn(
            f"{where}: timestamps are not uniform (steps {steps.min():.4g} to {steps.max():.4g} s, mean rate "
            f"{rate:.4g} Hz)",
            stacklevel=2,
        )
    return float(rate)


def displacement(increments: np.ndarray) -> np.ndarray:
    """Increments [..., K, d] -> their running sum from 0, [..., K + 1, d]."""
    zero = np.zeros_like(increments[..., :1, :])
    return np.concatenate([zero, np.cumsum(increments, axis=-2)], axis=-2)


def interpolant(values: np.ndarray, fps: float) -> CubicSpline:
    """The cubic (not-a-knot) spline through samples [K, d] at k / fps seconds; the only sample is held."""
    if len(values) == 1:
        values = np.repeat(values, 2, axis=0)
    return CubicSpline(np.arange(len(values)) / fps, values)


def hold(values: np.ndarray, fps: float, times: np.ndarray) -> np.ndarray:
    """Zero-order hold of samples at k / fps."""
    return values[np.clip(np.floor(times * fps + 1e-6).astype(int), 0, len(values) - 1)]


def frame_times(n: int, fps: float, new_fps: float, kind: ActionKind) -> np.ndarray:
    """Times of the frames of an episode of n frames at the new rate.

    Absolute targets cover (n - 1) / fps seconds, increments n / fps (the last may be a shorter one).
    """
    if kind == "absolute":
        count = math.floor((n - 1) * new_fps / fps + 1e-6) + 1
    else:
        count = max(1, math.ceil(n * new_fps / fps - 1e-6))
    return np.arange(count) / new_fps


def resample_actions(
    actions: np.ndarray,
    fps: float,
    new_fps: float,
    kind: ActionKind = "absolute",
    gripper: Sequence[int] = (),
) -> np.ndarray:
    """Actions of one episode at another rate.

    Args:
        actions: [N, d].
        fps: their rate, Hz.
        new_fps: the wanted rate, Hz.
        kind: ``"absolute"`` targets or ``"delta"`` increments.
        gripper: channels that are held.

    Returns:
        [N', d]. Increments keep their sum; going to a multiple of the rate and back returns the input.

    Raises:
        DataError: for values that are not finite; names the row.
    """
    check_kind(kind)
    check_rate(fps)
    check_rate(new_fps, "the new rate")
    actions = np.asarray(actions)
    if actions.ndim != 2 or not len(actions):
        raise DataError(f"expected actions [N, d], got shape {actions.shape}")
    if not np.isfinite(actions).all():
        raise DataError(f"row {int(np.argmin(np.isfinite(actions).all(1)))}: an action is not finite")
    times = frame_times(len(actions), fps, new_fps, kind)
    wide = actions.astype(np.float64)
    if kind == "absolute":
        found = interpolant(wide, fps)(times)
    else:
        edges = np.append(times, len(actions) / fps)
        found = np.diff(interpolant(displacement(wide), fps)(edges), axis=0)
    if len(gripper):
        found[:, list(gripper)] = hold(wide[:, list(gripper)], fps, times)
    return found.astype(actions.dtype) if np.issubdtype(actions.dtype, np.floating) else found
