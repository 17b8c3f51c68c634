r"""Asking the questions: plans carried out on an oracle, certified allocations, adaptive rules.

An oracle answers ``oracle(agent, items, repeats)`` with the sums of the answers and of their squares, one entry an
item: sums are all that any rule here needs, and drawing a sum costs the same for any number of repeats.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol

import numpy as np

from noisy_fairdiv.core import (
    SELECTS,
    Allocation,
    Choice,
    Select,
    choose_threshold,
    off_diagonal,
    plan,
    posterior_means,
    query_counts,
)
from noisy_fairdiv.multi import balance_weights

Unqueried = Literal["coin", "balanced"]
Sigma = float | Literal["estimate"]


class OutOfAnswers(ValueError):
    """An oracle has no answer left for a cell; nothing was taken from it."""


class Oracle(Protocol):
    """What answers questions.

    Attributes:
        n_agents: number of agents.
        n_goods: number of goods.
    """

    n_agents: int
    n_goods: int

    def __call__(self, agent: int, items: np.ndarray, repeats: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Sums of the answers and sums of their squares.

        Args:
            agent: who is asked.
            items: goods, int (k,).
            repeats: how often about each, int (k,).

        Returns:
            Two arrays (k,).
        """
        ...


@dataclass(frozen=True)
class Answers:
    """All answers so far as sums.

    Attributes:
        sums: sums of the answers, (n, m).
        squares: sums of their squares, (n, m).
        counts: how many, int64 (n, m).
    """

    sums: np.ndarray
    squares: np.ndarray
    counts: np.ndarray

    @staticmethod
    def none(n: int, m: int) -> Answers:
        """No answers yet."""
        return Answers(np.zeros((n, m)), np.zeros((n, m)), np.zeros((n, m), np.int64))

    def __add__(self, other: Answers) -> Answers:
        return Answers(self.sums + other.sums, self.squares + other.squares, self.counts + other.counts)

    @property
    def means(self) -> np.ndarray:
        """Sample means, (n, m), 0 where nobody was asked."""
        return self.sums / np.maximum(self.counts, 1)

    @property
    def known(self) -> np.ndarray:
        """Goods that every agent was asked about, bool (m,)."""
        return np.all(self.counts > 0, axis=0)

    def noise(self, sigma: np.ndarray) -> np.ndarray:
        """Variances of the means, (n, m), infinite where nobody was asked; ``sigma`` has one entry an agent."""
        with np.errstate(divide="ignore"):
            return sigma[:, None] ** 2 / self.counts


def ask(oracle: Oracle, counts: np.ndarray) -> Answers:
    """Put ``counts[agent, item]`` questions, int (n, m), to an oracle."""
    found = Answers.none(*counts.shape)
    for agent, row in enumerate(counts):
        items = np.flatnonzero(row)
        if items.size:
            found.sums[agent, items], found.squares[agent, items] = oracle(agent, items, row[items])
    found.counts[:] = counts
    return found


def estimate_sigma(answers: Answers) -> tuple[np.ndarray, np.ndarray]:
    """Pooled within-cell standard deviation of each agent's answers, and its degrees of freedom, both (n,).

    Raises:
        ValueError: when an agent's cells hold single answers only.
    """
    freedom = np.maximum(answers.counts - 1, 0).sum(axis=1)
    if (freedom == 0).any():
        agent = int(np.argmin(freedom))
        raise ValueError(
            f"sigma cannot be estimated from single samples: agent {agent} has no cell with two answers; give sigma"
        )
    spread = np.where(answers.counts > 1, answers.squares - answers.sums * answers.means, 0.0)
    return np.sqrt(np.maximum(spread.sum(axis=1), 0.0) / freedom), freedom


def known_sigma(sigma: Sigma, answers: Answers) -> np.ndarray:
    """Standard deviation of one answer of each agent, (n,): given, or estimated from ``answers``.

    Raises:
        ValueError: for a sigma that is not positive, or cannot be estimated.
    """
    if sigma == "estimate":
        return estimate_sigma(answers)[0]
    if isinstance(sigma, str) or not sigma > 0 or not math.isfinite(sigma):
        raise ValueError(f'sigma must be a positive number or "estimate", got {sigma!r}')
    return np.full(answers.sums.shape[0], float(sigma))


# --- from answers to allocations ---------------------------------------------------------------------------------


def _split_unknown(count: int, n: int, rule: Unqueried, rng: np.random.Generator) -> np.ndarray:
    if rule == "coin":
        return rng.integers(n, size=count)
    return rng.permutation(np.arange(count) % n)


def _choose_two(answers: Answers, sigma: np.ndarray, select: Select, rng: np.random.Generator) -> Choice:
    known = answers.known
    noise = answers.noise(sigma)[:, known]
    same = np.ptp(noise) == 0
    return choose_threshold(*answers.means[:, known], noise[0, 0] if same else noise, select, rng)


def allocate_answers(
    answers: Answers,
    sigma: np.ndarray,
    rng: np.random.Generator,
    select: Select = "stein",
    unqueried: Unqueried = "coin",
) -> Allocation:
    """Allocate from answers: the threshold rule for two agents, balanced weights for more.

    Args:
        answers: what was answered; goods that some agent was never asked about are split at random.
        sigma: standard deviation of one answer of each agent, (n,).
        rng: randomness of that split and of ``select="split"``.
        select: see :func:`~noisy_fairdiv.core.choose_threshold`; used for two agents.
        unqueried: ``"coin"``: each such good to a random agent (the paper's); ``"balanced"``: equal numbers.

    Raises:
        ValueError: if no good was asked of every agent.
    """
    started = time.perf_counter()
    n, m = answers.sums.shape
    known = answers.known
    if not known.any():
        raise ValueError("no good has an answer of every agent; ask each agent at least 1 question about the same good")
    owner = np.empty(m, np.int64)
    owner[~known] = _split_unknown(int((~known).sum()), n, unqueried, rng)
    w = math.nan
    if n == 2:
        choice = _choose_two(answers, sigma, select, rng)
        owner[known] = choice.signs < 0
        w, gains = float(choice.w), choice.gains
    else:
        noise = answers.noise(sigma)[:, known]
        P = posterior_means(answers.means[:, known], noise) if known.sum() > 1 else answers.means[:, known]
        owner[known], _ = balance_weights(P)
        gains = advantages(P, owner[known], np.zeros_like(P))[0].min(axis=1)
    return Allocation(
        owner=owner,
        w=w,
        est_gain=gains,
        lower=np.full(n, -np.inf),
        n_queries=float(answers.counts.sum()) / n,
        seconds=time.perf_counter() - started,
    )


class NoisyEnvyFree:
    """Ask a planned number of questions and allocate.

    Args:
        budget: questions for each agent; or give ``gap``.
        gap: negative envy Delta of the instance (see :func:`~noisy_fairdiv.core.plan`), from which the budget follows.
        sigma: standard deviation of one answer, or ``"estimate"``.
        select: how the threshold is chosen (two agents).
        unqueried: how goods that nobody was asked about are split, ``"coin"`` or ``"balanced"``.
        random_state: seed.

    Attributes:
        owner_: agent of each good, int64 (m,).
        w_: chosen threshold (two agents).
        est_gain_: estimated smallest advantage of each agent, (n,).
        n_queries_: questions asked of each agent, on average.
        sigma_: standard deviation of one answer of each agent, (n,).
        n_unqueried_: goods that were split at random.
        allocation_: all of it as an :class:`~noisy_fairdiv.core.Allocation`.
    """

    def __init__(
        self,
        budget: int | None = None,
        *,
        gap: float | None = None,
        sigma: Sigma = 1.0,
        select: Select = "stein",
        unqueried: Unqueried = "coin",
        random_state: int | None = None,
    ) -> None:
        self.budget, self.gap, self.sigma, self.select = budget, gap, sigma, select
        self.unqueried, self.random_state = unqueried, random_state

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """The constructor's arguments."""
        names = ("budget", "gap", "sigma", "select", "unqueried", "random_state")
        return {name: getattr(self, name) for name in names}

    def set_params(self, **params: Any) -> NoisyEnvyFree:
        """Change constructor arguments."""
        unknown = set(params) - set(self.get_params())
        if unknown:
            raise ValueError(f"unknown parameters {sorted(unknown)}; known: {sorted(self.get_params())}")
        for name, value in params.items():
            setattr(self, name, value)
        return self

    def _check(self) -> np.random.Generator:
        if self.select not in SELECTS:
            raise ValueError(f"select must be one of {', '.join(SELECTS)}, got {self.select!r}")
        if self.unqueried not in ("coin", "balanced"):
            raise ValueError(f"unqueried must be coin or balanced, got {self.unqueried!r}")
        return np.random.default_rng(self.random_state)

    def _questions(self, m: int) -> int:
        if (self.budget is None) == (self.gap is None):
            raise ValueError(f"give either budget or gap, got budget={self.budget}, gap={self.gap}")
        if self.budget is not None:
            return int(self.budget)
        assert self.gap is not None
        if isinstance(self.sigma, str):
            raise ValueError('a budget from gap needs a number for sigma, got "estimate"')
        return plan(m, self.gap, self.sigma).q_per_agent

    def fit(self, oracle: Oracle) -> NoisyEnvyFree:
        """Ask the planned questions (the same goods for every agent) and allocate."""
        rng = self._check()
        counts = query_counts(oracle.n_goods, self._questions(oracle.n_goods), rng)
        return self._allocate(ask(oracle, np.tile(counts, (oracle.n_agents, 1))), rng)

    def fit_samples(self, sums: np.ndarray, counts: np.ndarray, squares: np.ndarray | None = None) -> NoisyEnvyFree:
        """Allocate from answers that exist already.

        Args:
            sums: sums of the answers, (n, m).
            counts: how many answers, int (n, m); 0 for none.
            squares: sums of squares, (n, m); needed to estimate sigma.
        """
        rng = self._check()
        sums, counts = np.asarray(sums, dtype=float), np.asarray(counts)
        if sums.ndim != 2 or sums.shape != counts.shape or sums.shape[0] < 2:
            raise ValueError(
                f"expected sums and counts of shape (agents >= 2, goods), got {sums.shape}, {counts.shape}"
            )
        if squares is None and self.sigma == "estimate":
            raise ValueError("sigma cannot be estimated without sums of squares")
        second = np.zeros_like(sums) if squares is None else np.asarray(squares, dtype=float)
        if not np.isfinite(sums).all() or not np.isfinite(second).all() or (counts < 0).any():
            raise ValueError("sums and squares must be finite and counts >= 0")
        return self._allocate(Answers(sums, second, counts.astype(np.int64)), rng)

    def _allocate(self, answers: Answers, rng: np.random.Generator) -> NoisyEnvyFree:
        self.sigma_ = known_sigma(self.sigma, answers)
        self.allocation_ = allocate_answers(answers, self.sigma_, rng, self.select, self.unqueried)
        self.owner_, self.w_, self.est_gain_ = (getattr(self.allocation_, x) for x in ("owner", "w", "est_gain"))
        self.n_queries_ = self.allocation_.n_queries
        self.n_unqueried_ = int((~answers.known).sum())
        return self


# --- certificates ------------------------------------------------------------------------------------------------


def advantages(means: np.ndarray, owner: np.ndarray, noise: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Estimates of u_i(A_i) - u_i(A_j) for all j != i, and their standard errors, both (n, n - 1).

    Args:
        means: measured values, (n, m).
        owner: agent of each good, (m,).
        noise: variances of the measured values, (n, m).
    """
    n = means.shape[0]
    held = owner[:, None] == np.arange(n)
    worth, variance = means @ held, noise @ held
    difference = np.diagonal(worth)[:, None] - worth
    return off_diagonal(difference), np.sqrt(off_diagonal(variance + np.diagonal(variance)[:, None]))


def lower_bounds(answers: Answers, owner: np.ndarray, sigma: Sigma, delta: float) -> tuple[np.ndarray, np.ndarray]:
    """Lower confidence bounds of every agent's smallest advantage, valid together with probability 1 - delta.

    Args:
        answers: answers that had no part in choosing ``owner``, at least one a cell.
        owner: agent of each good, (m,).
        sigma: standard deviation of one answer (normal quantiles), or ``"estimate"`` (each agent's own pooled variance
            and Student's quantiles).
        delta: error probability, shared equally by the n (n - 1) comparisons.

    Returns:
        The bounds, (n,), and the estimates they lie below, (n,).
    """
    from scipy.stats import norm, t

    n = answers.sums.shape[0]
    if sigma == "estimate":
        deviation, freedom = estimate_sigma(answers)
        quantile = t.isf(delta / (n * (n - 1)), freedom)
    else:
        deviation, quantile = known_sigma(sigma, answers), np.full(n, norm.isf(delta / (n * (n - 1))))
    estimate, error = advantages(answers.means, owner, answers.noise(deviation))
    return (estimate - quantile[:, None] * error).min(axis=1), estimate.min(axis=1)


@dataclass(frozen=True)
class CertificateRound:
    """One round of :func:`certified_envy_free`: questions an item and agent so far, and the bounds."""

    number: int
    repeats: int
    lower: np.ndarray
    estimate: np.ndarray


def certified_envy_free(
    oracle: Oracle,
    delta: float = 0.05,
    sigma: Sigma = 1.0,
    max_repeats: int = 4096,
    select: Select = "stein",
    rng: np.random.Generator | None = None,
    callback: Callable[[CertificateRound], None] | None = None,
) -> Allocation:
    r"""Ask until the allocation is certified envy-free (ours). Needs no knowledge of Delta.

    The answers form two folds. Round r doubles both; the allocation is chosen on the first, and fold two, which had no
    part in that, gives lower bounds at level :math:`\delta_r = 6 \delta / (\pi^2 r^2)`. These sum to delta, so stopping
    whenever all bounds are positive is valid: the probability of ever certifying an allocation with envy is at most
    delta. Where no envy-free allocation exists it stops at the budget with ``certified=False``.

    Args:
        oracle: answers questions; one that runs out (:class:`OutOfAnswers`) ends the search and loses nothing.
        delta: error probability of the certificate.
        sigma: standard deviation of one answer, or ``"estimate"``.
        max_repeats: questions an item and agent, both folds together.
        select: threshold rule of two agents.
        rng: randomness of ``select="split"``.
        callback: called after every round.

    Raises:
        ValueError: for arguments out of range.
    """
    started = time.perf_counter()
    if not 0 < delta < 1:
        raise ValueError(f"delta must lie between 0 and 1, got {delta}")
    n, m = oracle.n_agents, oracle.n_goods
    first = 2 if sigma == "estimate" else 1
    if max_repeats < 2 * first:
        raise ValueError(f"max_repeats must be at least {2 * first}, got {max_repeats}")
    rng = np.random.default_rng(0) if rng is None else rng
    folds = [Answers.none(n, m), Answers.none(n, m)]
    best: Allocation | None = None
    repeats, number = 0, 0
    while True:
        more = max(first, repeats) if repeats else first
        if 2 * (repeats + more) > max_repeats:
            break
        try:
            fresh = [ask(oracle, np.full((n, m), more, np.int64)) for _ in folds]
        except OutOfAnswers:
            if best is None:
                raise
            break
        folds = [old + new for old, new in zip(folds, fresh, strict=True)]
        repeats, number = repeats + more, number + 1
        found = allocate_answers(folds[0], known_sigma(sigma, folds[0]), rng, select)
        lower, estimate = lower_bounds(folds[1], found.owner, sigma, 6 * delta / (math.pi * number) ** 2)
        if callback is not None:
            callback(CertificateRound(number, 2 * repeats, lower, estimate))
        certified = bool((lower > 0).all())
        best = replace(
            found,
            est_gain=estimate,
            certified=certified,
            lower=lower,
            n_queries=2.0 * repeats * m,
            seconds=time.perf_counter() - started,
        )
        if certified:
            return best
    assert best is not None
    return best


# --- adaptive questions ------------------------------------------------------------------------------------------


def adaptive_allocation(
    oracle: Oracle,
    budget: int,
    sigma: float,
    rng: np.random.Generator,
    select: Select = "stein",
    z: float = 2.0,
) -> Allocation:
    """Two agents: spend the questions on goods whose side is still open.

    A quarter of the budget is spread evenly. Then, until it is used up, the number of questions is doubled for every
    good whose w v_a - (1 - w) v_b lies within z standard deviations of 0 at the current threshold. The paper's lower
    bound says that no such rule improves the order of the number of questions.

    Args:
        oracle: answers questions.
        budget: questions for each agent, at least one a good.
        sigma: standard deviation of one answer.
        rng: which goods are asked about when the rest of the budget is not enough for all open ones.
        select: threshold rule.
        z: width in standard deviations.
    """
    m = oracle.n_goods
    if oracle.n_agents != 2:
        raise ValueError(f"the adaptive rule is for two agents, got {oracle.n_agents}")
    if budget < m:
        raise ValueError(f"the adaptive rule needs at least one question a good, {m}, got {budget}")
    deviation = known_sigma(sigma, Answers.none(2, m))
    counts = query_counts(m, max(m, budget // 4), rng)
    answers = ask(oracle, np.tile(counts, (2, 1)))
    left = budget - int(counts.sum())
    while left > 0:
        w = float(_choose_two(answers, deviation, select, rng).w)
        noise = answers.noise(deviation)
        margin = np.abs(w * answers.means[0] - (1 - w) * answers.means[1])
        undecided = margin < z * np.sqrt(w**2 * noise[0] + (1 - w) ** 2 * noise[1])
        items = rng.permutation(np.flatnonzero(undecided) if undecided.any() else m)
        more = answers.counts[0, items]
        more = np.minimum(more, np.maximum(left - (np.cumsum(more) - more), 0))
        step = np.zeros(m, np.int64)
        step[items] = more
        answers = answers + ask(oracle, np.tile(step, (2, 1)))
        left -= int(more.sum())
    return allocate_answers(answers, deviation, rng, select)
