"""Valuation instances: the paper's hard instance, random families, rankings."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

Instance = Callable[[np.random.Generator], np.ndarray]


def hard_instance(
    m: int, eps: float = 0.1, gamma: float = 0.5, rng: np.random.Generator | int | None = None
) -> np.ndarray:
    r"""The instance of the paper's lower bound (theorem 3), two agents.

    First half of the goods: agent a values them :math:`1/2 \pm \varepsilon` and b with the opposite sign. Second half:
    both value them :math:`1/2 \pm \gamma`. All signs are fair coins. The negative envy is eps m / 2 when m / 2 is
    even and the signs of the second half can be balanced, and less otherwise.

    Args:
        m: number of goods, even.
        eps: how much they differ on the first half, in (0, 1/2].
        gamma: how much the second half's goods differ, in [0, 1/2].
        rng: source of the signs.

    Returns:
        Values, (2, m).
    """
    if m < 2 or m % 2 or not 0 < eps <= 0.5 or not 0 <= gamma <= 0.5:
        raise ValueError(f"need an even m >= 2, 0 < eps <= 0.5, 0 <= gamma <= 0.5, got {m}, {eps}, {gamma}")
    signs = 1.0 - 2.0 * np.random.default_rng(rng).integers(2, size=m)
    half = m // 2
    a = np.concatenate([0.5 + eps * signs[:half], 0.5 + gamma * signs[half:]])
    b = np.concatenate([0.5 - eps * signs[:half], 0.5 + gamma * signs[half:]])
    return np.stack([a, b])


def uniform_instance(m: int, rng: np.random.Generator, n: int = 2) -> np.ndarray:
    """Independent U(0, 1) values, (n, m)."""
    return rng.random((n, m))


def scaled_instance(m: int, rng: np.random.Generator, scale: float = 0.25) -> np.ndarray:
    """Two agents with U(0, 1) values, those of agent a multiplied by ``scale``."""
    values = rng.random((2, m))
    values[0] *= scale
    return values


def beta_instance(m: int, rng: np.random.Generator, shape: tuple[float, float] = (0.5, 3.0)) -> np.ndarray:
    """Two agents of opposite taste: Beta(p, q) and Beta(q, p)."""
    p, q = shape
    return np.stack([rng.beta(p, q, m), rng.beta(q, p, m)])


def correlated_instance(m: int, rng: np.random.Generator, spread: float = 0.14, scale: float = 1.0) -> np.ndarray:
    """Two agents who agree but for a normal deviation: b is U(0, 1), a is b plus N(0, spread^2) in [0, 1], times
    scale."""
    b = rng.random(m)
    return np.stack([scale * np.clip(b + spread * rng.standard_normal(m), 0.0, 1.0), b])


def identical_instance(m: int, rng: np.random.Generator, n: int = 2) -> np.ndarray:
    """All agents have the same U(0, 1) values: no allocation has negative envy."""
    return np.tile(rng.random(m), (n, 1))


def borda_values(rankings: np.ndarray) -> np.ndarray:
    """Rankings to values: the best of m goods is worth 1, the next (m - 1) / m, and so on.

    Args:
        rankings: goods from best to worst, int (n, m).

    Returns:
        Values, (n, m).
    """
    n, m = rankings.shape
    values = np.empty((n, m))
    np.put_along_axis(values, rankings, np.broadcast_to(1 - np.arange(m) / m, (n, m)), axis=1)
    return values


def mallows_instance(m: int, rng: np.random.Generator, n: int = 2, dispersion: float = 0.9) -> np.ndarray:
    """Borda values of rankings from a Mallows model (repeated insertion).

    Args:
        m: goods.
        rng: source.
        n: agents.
        dispersion: 1: uniform rankings; towards 0: all agents rank alike.
    """
    if not 0 < dispersion <= 1:
        raise ValueError(f"dispersion must lie in (0, 1], got {dispersion}")
    rankings = np.empty((n, m), np.int64)
    for agent in range(n):
        ranking: list[int] = []
        for i in range(m):
            weights = dispersion ** np.arange(i, -1, -1)
            ranking.insert(int(rng.choice(i + 1, p=weights / weights.sum())), i)
        rankings[agent] = ranking
    return borda_values(rankings)


def instance_family(name: str, m: int, eps: float = 0.1, gamma: float = 0.5) -> Instance:
    """A family by name, as a function of the generator.

    Args:
        name: hard, uniform, scaled, beta, correlated, correlated-scaled, identical or mallows.
        m: goods.
        eps: of the hard instance.
        gamma: of the hard instance.
    """
    families: dict[str, Instance] = {
        "hard": lambda rng: hard_instance(m, eps, gamma, rng),
        "uniform": lambda rng: uniform_instance(m, rng),
        "scaled": lambda rng: scaled_instance(m, rng),
        "beta": lambda rng: beta_instance(m, rng),
        "correlated": lambda rng: correlated_instance(m, rng),
        "correlated-scaled": lambda rng: correlated_instance(m, rng, scale=0.3),
        "identical": lambda rng: identical_instance(m, rng),
        "mallows": lambda rng: mallows_instance(m, rng),
    }
    if name not in families:
        raise ValueError(f"instance must be one of {', '.join(families)}, got {name!r}")
    return families[name]
