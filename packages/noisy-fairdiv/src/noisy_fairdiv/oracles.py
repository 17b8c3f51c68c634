"""Oracles that answer questions: Gaussian and Bernoulli noise on known values, a table of recorded answers, a
counter."""

from __future__ import annotations

import numpy as np

from noisy_fairdiv.core import check_values
from noisy_fairdiv.questions import Oracle, OutOfAnswers


class GaussianOracle:
    """Answers N(u, sigma^2).

    The sum of r answers and of their squares are drawn as such (a normal and a chi-square), never r answers.

    Args:
        U: true values, (n, m).
        sigma: standard deviation of one answer, >= 0.
        rng: source of the noise.
    """

    def __init__(self, U: np.ndarray, sigma: float, rng: np.random.Generator) -> None:
        self.values, self.rng = check_values(U), rng
        if not sigma >= 0:
            raise ValueError(f"sigma must be >= 0, got {sigma}")
        self.sigma = sigma
        self.n_agents, self.n_goods = self.values.shape

    def __call__(self, agent: int, items: np.ndarray, repeats: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """See :class:`~noisy_fairdiv.questions.Oracle`."""
        means = self.values[agent, items] + self.sigma / np.sqrt(repeats) * self.rng.standard_normal(len(items))
        within = self.sigma**2 * self.rng.chisquare(np.maximum(repeats - 1, 1)) * (repeats > 1)
        return repeats * means, repeats * means**2 + within


class BernoulliOracle:
    """Answers 1 with probability u, else 0: real noise of yes/no raters.

    Args:
        U: probabilities, (n, m), in [0, 1].
        rng: source of the answers.
    """

    def __init__(self, U: np.ndarray, rng: np.random.Generator) -> None:
        self.values, self.rng = check_values(U), rng
        if self.values.min() < 0 or self.values.max() > 1:
            raise ValueError(f"probabilities must lie in [0, 1], got {self.values.min()} to {self.values.max()}")
        self.n_agents, self.n_goods = self.values.shape

    def __call__(self, agent: int, items: np.ndarray, repeats: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """See :class:`~noisy_fairdiv.questions.Oracle`."""
        sums = self.rng.binomial(repeats, self.values[agent, items]).astype(float)
        return sums, sums.copy()


class TableOracle:
    """Answers recorded beforehand, each given once, in the table's order.

    Args:
        agents: agent of each row, int (rows,).
        items: good of each row, int (rows,).
        values: the answers, (rows,).
        n_agents: number of agents.
        n_goods: number of goods.
    """

    def __init__(self, agents: np.ndarray, items: np.ndarray, values: np.ndarray, n_agents: int, n_goods: int) -> None:
        agents, items, values = np.asarray(agents), np.asarray(items), np.asarray(values, dtype=float)
        if not np.isfinite(values).all():
            row = int(np.argmin(np.isfinite(values)))
            raise ValueError(f"answer {row} is {values[row]}, expected a finite number")
        self.n_agents, self.n_goods = n_agents, n_goods
        cell = agents * n_goods + items
        order = np.argsort(cell, kind="stable")
        self._sum = np.concatenate([[0.0], np.cumsum(values[order])])
        self._square = np.concatenate([[0.0], np.cumsum(values[order] ** 2)])
        self._start = np.searchsorted(cell[order], np.arange(n_agents * n_goods + 1)).reshape(-1)
        self._used = np.zeros(n_agents * n_goods, np.int64)

    def left(self) -> np.ndarray:
        """Answers not yet given, int (n, m)."""
        return (np.diff(self._start) - self._used).reshape(self.n_agents, self.n_goods)

    def __call__(self, agent: int, items: np.ndarray, repeats: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """See :class:`~noisy_fairdiv.questions.Oracle`.

        Raises:
            OutOfAnswers: when a cell has fewer answers left; nothing is taken then.
        """
        short = np.flatnonzero(self.left()[agent, items] < repeats)
        if short.size:
            item = int(items[short[0]])
            raise OutOfAnswers(
                f"agent {agent}, good {item}: {int(repeats[short[0]])} answers asked for, "
                f"{int(self.left()[agent, item])} left in the table"
            )
        cells = agent * self.n_goods + np.asarray(items)
        low = self._start[cells] + self._used[cells]
        self._used[cells] += repeats
        return self._sum[low + repeats] - self._sum[low], self._square[low + repeats] - self._square[low]


class CountingOracle:
    """Passes questions on and counts them.

    Attributes:
        counts: questions so far, int64 (n, m).
    """

    def __init__(self, oracle: Oracle) -> None:
        self.oracle = oracle
        self.n_agents, self.n_goods = oracle.n_agents, oracle.n_goods
        self.counts = np.zeros((oracle.n_agents, oracle.n_goods), np.int64)

    def __call__(self, agent: int, items: np.ndarray, repeats: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """See :class:`~noisy_fairdiv.questions.Oracle`."""
        answer = self.oracle(agent, items, repeats)
        self.counts[agent, items] += repeats
        return answer
