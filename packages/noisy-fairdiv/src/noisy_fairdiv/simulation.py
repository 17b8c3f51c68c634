"""Success rates and the number of questions needed, in batches of runs: two agents, Gaussian noise.

A batch holds (runs, m) arrays of sample means, drawn as one normal each, never the single answers.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Literal

import numpy as np

from noisy_fairdiv.core import SELECTS, check_values, choose_threshold, envy, query_counts
from noisy_fairdiv.instances import Instance
from noisy_fairdiv.oracles import GaussianOracle
from noisy_fairdiv.questions import adaptive_allocation
from noisy_fairdiv.solvers import milp_allocation

Rule = Literal["plugin", "stein", "eb", "split", "c1", "milp", "adaptive"]
RULES: tuple[Rule, ...] = (*SELECTS, "milp", "adaptive")
BATCH_VALUES = 1 << 20
MILP_SECONDS = 20.0
MILP_SECONDS = 20.0


@dataclass(frozen=True)
class Estimate:
    """A success rate.

    Attributes:
        successes: runs whose allocation is envy-free.
        runs: all runs.
        mean_envy: mean envy of the allocations.
    """

    successes: int
    runs: int
    mean_envy: float

    @property
    def rate(self) -> float:
        """Share of successes."""
        return self.successes / self.runs


def _queried(m: int, q: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    counts = query_counts(m, q, rng)
    items = np.flatnonzero(counts)
    return items, counts[items]


def _batch_envies(U: np.ndarray, q: int, rule: Rule, sigma: float, rng: np.random.Generator) -> np.ndarray:
    """Envy of each run's allocation; U is (runs, 2, m). Goods that are not asked about are split by fair coins."""
    runs, _, m = U.shape
    signs = np.where(rng.random((runs, m)) < 0.5, -1, 1).astype(np.int8)
    drawn = [_queried(m, q, rng) for _ in range(runs)]
    items, counts = (np.stack(x) for x in zip(*drawn, strict=True))
    values = np.take_along_axis(U, items[:, None, :], axis=2)
    means = values + sigma / np.sqrt(counts)[:, None, :] * rng.standard_normal(values.shape)
    even = counts.min() == counts.max()
    noise = sigma**2 / counts[0, 0] if even else np.broadcast_to(sigma**2 / counts, (2, *counts.shape))
    if rule == "milp":
        chosen = np.stack([1 - 2 * milp_allocation(V, MILP_SECONDS).owner for V in means])
    else:
        chosen = choose_threshold(means[:, 0], means[:, 1], noise, rule, rng).signs  # ty: ignore[invalid-argument-type]
    np.put_along_axis(signs, items, chosen.astype(np.int8), axis=1)
    return np.maximum(-np.sum(signs * U[:, 0], axis=1), np.sum(signs * U[:, 1], axis=1))


def _drawn(instance: np.ndarray | Instance) -> Instance:
    if isinstance(instance, np.ndarray):
        values = check_values(instance, 2)
        return lambda rng: values
    return instance


def success_rate(
    instance: np.ndarray | Instance,
    q: int,
    method: Rule = "stein",
    runs: int = 200,
    sigma: float = 1.0,
    rng: np.random.Generator | int | None = None,
    n_jobs: int = 1,
) -> Estimate:
    """How often q questions for each agent give an envy-free allocation.

    Args:
        instance: values (2, m), or a function of a generator that draws them anew for every run.
        q: questions for each agent.
        method: a selection rule, ``"milp"`` (least envy on the measured values, the paper's theorem 1) or
            ``"adaptive"``.
        runs: independent runs.
        sigma: standard deviation of one answer.
        rng: randomness; rules other than ``"adaptive"`` with the same seed meet the same instances and noise.
        n_jobs: threads; the result does not depend on it.
    """
    if method not in RULES:
        raise ValueError(f"method must be one of {', '.join(RULES)}, got {method!r}")
    if runs < 1 or q < 1 or not sigma > 0:
        raise ValueError(f"need runs >= 1, at least 1 question for each agent and sigma > 0, got {runs}, {q}, {sigma}")
    source = np.random.default_rng(rng)
    draw = _drawn(instance)
    m = draw(np.random.default_rng(0)).shape[1]
    size = max(1, min(runs, BATCH_VALUES // m))
    starts = range(0, runs, size)

    def batch(start: int, own: np.random.Generator) -> np.ndarray:
        U = np.stack([draw(own) for _ in range(min(size, runs - start))])
        if method == "adaptive":
            return np.array(
                [envy(V, adaptive_allocation(GaussianOracle(V, sigma, own), q, sigma, own).owner) for V in U]
            )
        return _batch_envies(U, q, method, sigma, own)

    with ThreadPoolExecutor(n_jobs) as pool:
        envies = np.concatenate(list(pool.map(batch, starts, source.spawn(len(starts)))))
    return Estimate(int((envies <= 0).sum()), runs, float(envies.mean()))


def required_queries(
    instance: np.ndarray | Instance,
    gap: float,
    method: Rule = "plugin",
    target: float = 0.9,
    runs: int = 200,
    steps: int = 9,
    sigma: float = 1.0,
    bracket: tuple[float, float] = (0.05, 20.0),
    rng: np.random.Generator | int | None = None,
    n_jobs: int = 1,
    callback: Callable[[int, float], None] | None = None,
) -> float:
    r"""Questions for each agent at which ``method`` succeeds with rate ``target``, by bisection of ln q.

    Args:
        instance: see :func:`success_rate`.
        gap: Delta, which sets the bracket around :math:`\sigma^2 m^{2.5} / \Delta^2`.
        method: rule.
        target: success rate.
        runs: runs a step.
        steps: bisection steps.
        sigma: standard deviation of one answer.
        bracket: factors of :math:`\sigma^2 m^{2.5} / \Delta^2` between which the answer is sought.
        rng: randomness.
        n_jobs: threads.
        callback: called with q and the rate after each step.

    Returns:
        The geometric middle of the last bracket.
    """
    source = np.random.default_rng(rng)
    draw = _drawn(instance)
    m = draw(np.random.default_rng(0)).shape[1]
    least = m if method == "adaptive" else 1
    low, high = (np.log(max(least, factor * sigma**2 * m**2.5 / gap**2)) for factor in bracket)
    for _ in range(steps):
        middle = (low + high) / 2
        q = max(least, round(float(np.exp(middle))))
        rate = success_rate(instance, q, method, runs, sigma, source.spawn(1)[0], n_jobs).rate
        if callback is not None:
            callback(q, rate)
        low, high = (middle, high) if rate < target else (low, middle)
    return float(np.exp((low + high) / 2))
