"""Intervals and paired comparisons for a handful of seeds or many trials."""

from __future__ import annotations

from collections.abc import Callable
from statistics import NormalDist
from typing import NamedTuple

import numpy as np


class Interval(NamedTuple):
    """An estimate with a confidence interval."""

    estimate: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.estimate:.3g} [{self.low:.3g}, {self.high:.3g}]"


class Paired(NamedTuple):
    """A paired comparison: mean difference with its bootstrap interval, and a sign-flip p-value (two-sided)."""

    difference: Interval
    p_value: float


def _sample(values: np.ndarray, name: str) -> np.ndarray:
    values = np.asarray(values, dtype=float)
    if values.ndim != 1 or values.size == 0 or not np.isfinite(values).all():
        raise ValueError(f"{name} must be a non-empty 1-d array of finite numbers, got shape {values.shape}")
    return values


def _check_level(level: float) -> None:
    if not 0 < level < 1:
        raise ValueError(f"level must lie between 0 and 1, got {level}")


def bootstrap_interval(
    values: np.ndarray,
    rng: np.random.Generator,
    statistic: Callable[..., np.ndarray] = np.mean,
    level: float = 0.95,
    resamples: int = 10_000,
) -> Interval:
    """Percentile bootstrap interval of a statistic (Efron 1979).

    Args:
        values: sample, shape (n,).
        rng: source of the resamples.
        statistic: takes ``axis`` and reduces it, as ``numpy.mean`` does.
        level: coverage, between 0 and 1.
        resamples: number of bootstrap samples.
    """
    values = _sample(values, "values")
    _check_level(level)
    per_chunk = max(1, 4_000_000 // values.size)
    draws = [
        statistic(values[rng.integers(values.size, size=(min(per_chunk, resamples - start), values.size))], axis=1)
        for start in range(0, resamples, per_chunk)
    ]
    low, high = np.quantile(np.concatenate(draws), [(1 - level) / 2, (1 + level) / 2])
    return Interval(float(statistic(values, axis=0)), float(low), float(high))


def wilson_interval(successes: int, trials: int, level: float = 0.95) -> Interval:
    """Wilson score interval of a proportion (Wilson 1927)."""
    if not 0 <= successes <= trials or trials < 1:
        raise ValueError(f"need 0 <= successes <= trials and trials >= 1, got {successes} of {trials}")
    _check_level(level)
    z = NormalDist().inv_cdf((1 + level) / 2)
    share = successes / trials
    scale = 1 + z * z / trials
    centre = (share + z * z / (2 * trials)) / scale
    half = z / scale * (share * (1 - share) / trials + z * z / (4 * trials * trials)) ** 0.5
    return Interval(share, min(max(0.0, centre - half), share), max(min(1.0, centre + half), share))


def paired_comparison(
    first: np.ndarray, second: np.ndarray, rng: np.random.Generator, level: float = 0.95, resamples: int = 10_000
) -> Paired:
    """Compare two methods measured on the same seeds or problems.

    The p-value is that of the sign-flip permutation test of mean difference zero: enumerated when at most 2**12 sign
    patterns exist, drawn otherwise.

    Args:
        first: measurements of one method, shape (n,).
        second: measurements of the other on the same problems, shape (n,).
        rng: source of resamples.
        level: coverage of the interval.
        resamples: bootstrap samples and, for n > 12, random sign patterns.
    """
    first, second = _sample(first, "first"), _sample(second, "second")
    if first.shape != second.shape:
        raise ValueError(f"paired samples must have one length, got {first.size} and {second.size}")
    difference = first - second
    observed = abs(difference.mean())
    if difference.size <= 12:
        patterns = np.arange(2**difference.size)[:, None] >> np.arange(difference.size)
        signs, added = 1.0 - 2.0 * (patterns & 1), 0
    else:
        signs, added = rng.choice([-1.0, 1.0], size=(resamples, difference.size)), 1
    as_extreme = np.abs(signs @ difference) / difference.size >= observed * (1 - 1e-12)
    p_value = (as_extreme.sum() + added) / (len(signs) + added)
    return Paired(bootstrap_interval(difference, rng, level=level, resamples=resamples), float(p_value))
