r"""Envy-free allocations for any number of agents (ours): goods go to :math:`\arg\max_i \lambda_i P_i`.

P are posterior means of the values (:func:`~noisy_fairdiv.core.posterior_means`) or exact values. The weights lambda
move towards agents who envy more, relative to what everything is worth to them.
"""

from __future__ import annotations

import math
import time

import numpy as np

from noisy_fairdiv.core import Allocation, bundle_values, check_values, off_diagonal, posterior_means

STEPS_PER_AGENT = 60
DECAY = 0.99


def weighted_allocation(P: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Owner of each good, the agent with the largest weighted value, int64 (m,); the first one wins ties."""
    return np.argmax(weights[:, None] * P, axis=0)


def balance_weights(P: np.ndarray, steps: int | None = None) -> tuple[np.ndarray, np.ndarray]:
    r"""Weights whose allocation has small worst envy, by multiplicative updates.

    :math:`\lambda_i \leftarrow \lambda_i \exp(\eta_t (r_i - \bar r))`, :math:`r_i` agent i's worst envy divided by her
    value of everything, :math:`\eta_t = 0.99^t`; the best allocation seen is kept. O(n^2 m) a step.

    Args:
        P: values, (n, m).
        steps: updates; 60 n by default.

    Returns:
        Owners (m,) and weights (n,).
    """
    n = P.shape[0]
    total = np.maximum(np.abs(P).sum(axis=1), np.finfo(float).tiny)
    weights = total.mean() / total
    best: tuple[float, np.ndarray, np.ndarray] | None = None
    for t in range(STEPS_PER_AGENT * n if steps is None else steps):
        owner = weighted_allocation(P, weights)
        worth = bundle_values(P, owner)
        worst = off_diagonal(worth - np.diagonal(worth)[:, None]).max(axis=1)
        if best is None or worst.max() < best[0]:
            best = (float(worst.max()), owner, weights)
        relative = worst / total
        weights = weights * np.exp(DECAY**t * (relative - relative.mean()))
        weights = weights / weights.mean()
    assert best is not None
    return best[1], best[2]


def balanced_allocation(V: np.ndarray, sigma_tau: float | np.ndarray = 0.0, steps: int | None = None) -> Allocation:
    """Allocate goods to n agents from measured or exact values.

    Args:
        V: values, (n, m).
        sigma_tau: standard deviation of the measured values: a number, or an array (n, m); 0 for exact ones.
        steps: weight updates; 60 n by default.
    """
    started = time.perf_counter()
    values = check_values(V)
    noise = np.asarray(sigma_tau, dtype=float) ** 2
    P = posterior_means(values, noise) if noise.any() and values.shape[1] > 1 else values
    owner, _ = balance_weights(P, steps)
    worth = bundle_values(P, owner)
    gains = -off_diagonal(worth - np.diagonal(worth)[:, None]).max(axis=1)
    return Allocation(
        owner=owner,
        w=math.nan,
        est_gain=gains,
        lower=np.full(len(values), -np.inf),
        seconds=time.perf_counter() - started,
    )
