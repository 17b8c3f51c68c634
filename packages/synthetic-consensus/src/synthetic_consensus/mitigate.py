"""Scores that resist coordinated ratings, to compare with the deployed one: how many attacks pass, what honest notes
it costs.

Rules (:class:`~synthetic_consensus.rules.StatusRules`) mitigate too; here are changes of the score itself.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np

from synthetic_consensus.marginal import Shrinkage, model_stats, remove_effect, solve_notes
from synthetic_consensus.mf import BridgingMF, Penalty, Ratings, alternating_least_squares


def clipped_positions(
    rater_intercept: np.ndarray, rater_factor: np.ndarray, share: float = 0.05
) -> tuple[np.ndarray, np.ndarray]:
    """Raters' intercepts and factors winsorised at the quantiles share and 1 - share, before the final solve."""
    if not 0 <= share < 0.5:
        raise ValueError(f"share must lie in [0, 0.5), got {share}")
    low, high = np.quantile(rater_intercept, [share, 1 - share])
    flat = rater_factor.reshape(-1)
    least, most = np.quantile(flat, [share, 1 - share])
    return np.clip(rater_intercept, low, high), np.clip(flat, least, most)


def clipped_model(model: BridgingMF, share: float = 0.05) -> BridgingMF:
    """The same model with winsorised raters and notes scored again on them."""
    found = BridgingMF(**model.get_params())
    assert model.ratings_ is not None
    i_u, f_u = clipped_positions(model.rater_intercept_, model.rater_factor_, share)
    found.ratings_, found.ratio_, found.mu_ = model.ratings_, model.ratio_, model.mu_
    found.rater_intercept_, found.rater_factor_ = i_u, f_u[:, None]
    found.note_intercept_, found.note_factor_ = found.score_notes()
    return found


def leverages(f: np.ndarray, shrink: Shrinkage) -> np.ndarray:
    """Leverage x'A^-1 x of each of a note's ratings, from their rater factors (m,)."""
    a, c, g = f.size + shrink.intercept, f.sum(), f @ f + shrink.factor
    return (g - 2 * c * f + a * f * f) / (a * g - c * c)


def leverage_capped(f: np.ndarray, e: np.ndarray, shrink: Shrinkage, cap: float = 0.15) -> tuple[float, float]:
    """Intercept and factor of a note without its ratings of leverage above ``cap``."""
    keep = leverages(f, shrink) <= cap
    return _solve(f[keep], e[keep], shrink)


def _solve(f: np.ndarray, e: np.ndarray, shrink: Shrinkage) -> tuple[float, float]:
    S = np.array([f.size, f.sum(), f @ f, e.sum(), f @ e], dtype=float)
    i, g = solve_notes(S, shrink)
    return float(i), float(g)


def robust_intercept(f: np.ndarray, e: np.ndarray, shrink: Shrinkage, q: int = 1, exact: bool = False) -> float:
    """The least intercept after taking out up to q of a note's ratings, exact for q = 1.

    Args:
        f: rater factors of the ratings, (m,).
        e: values less mu and rater intercepts, (m,).
        shrink: pseudo-counts.
        q: 0 to 3.
        exact: try all sets (at most 25 ratings) instead of taking out the most lifting one at a time.
    """
    if not 0 <= q <= 3:
        raise ValueError(f"q must lie between 0 and 3, got {q}")
    if exact:
        if f.size > 25:
            raise ValueError(f"exact leave-q-out takes at most 25 ratings, got {f.size}")
        sets = (s for size in range(q + 1) for s in itertools.combinations(range(f.size), size))
        return min(_solve(np.delete(f, s), np.delete(e, s), shrink)[0] for s in sets)
    f, e = f.copy(), e.copy()
    best = _solve(f, e, shrink)[0]
    for _ in range(min(q, f.size)):
        S = np.array([f.size, f.sum(), f @ f, e.sum(), f @ e], dtype=float)
        change, _ = remove_effect(S, f, e, shrink)
        i = int(np.argmin(change))
        f, e = np.delete(f, i), np.delete(e, i)
        best = min(best, _solve(f, e, shrink)[0])
    return best


def robust_intercepts(model: BridgingMF, q: int = 1) -> np.ndarray:
    """Leave-q-out intercepts of all notes, (M,): q = 1 in closed form for all ratings at once."""
    assert model.ratings_ is not None
    data, shrink = model.ratings_, Shrinkage.of(model)
    f = model.rater_factor_[data.rater, 0]
    e = data.value - model.mu_ - model.rater_intercept_[data.rater]
    if q == 1:
        S = model_stats(model).S
        change, _ = remove_effect(S[data.note], f, e, shrink)
        worst = np.zeros(data.n_notes)
        np.minimum.at(worst, data.note, change)
        return solve_notes(S, shrink)[0] + worst
    order, ptr = data.by_note
    return np.array([robust_intercept(f[rows], e[rows], shrink, q) for rows in np.split(order, ptr[1:-1])])


def lower_confidence(model: BridgingMF, S: np.ndarray | None = None) -> np.ndarray:
    """Least intercept of every note with one NotHelpful pseudo-rating of the most generous rater, at the factors'
    extremes or 0, (M,)."""
    stats = model_stats(model).S if S is None else S
    f, e = model.rater_factor_[:, 0], -model.mu_ - model.rater_intercept_.max()
    shrink = Shrinkage.of(model)
    worst = [solve_notes(stats + np.array([1, g, g * g, e, g * e]), shrink)[0] for g in (f.min(), 0.0, f.max())]
    return np.min(worst, axis=0)


# --- other scorers -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ExpandedConsensus:
    """Two-round balanced fit: intercepts (M,) and factors (M,) of round 2, and the weights of the ratings."""

    intercept: np.ndarray
    factor: np.ndarray
    weights: np.ndarray


def expanded_consensus(ratings: Ratings, random_state: int | None = None) -> ExpandedConsensus:
    """The deployed expanded-consensus loss in two rounds, with weights that balance the sides of every note.

    Round 1 with a diamond penalty finds the sides; round 2 weighs a note's f_u >= 0 ratings by the ratio of the sides'
    numbers, and every rater by (their summed weights)^(-1/4).
    """
    lam = 0.03
    # From a random start every factor would be trapped at 0, where the diamond has its kink: begin at the plain fit.
    start = BridgingMF(n_init=1, random_state=random_state, tol=1e-7).fit(ratings).parameters
    balanced = Penalty(5 * lam, lam / 3, 5 * lam, 25 * lam, rater_intercept=30 * lam, rater_factor=lam / 4)
    first = alternating_least_squares(ratings, balanced, start, tol=1e-8).parameters
    positive = first.rater_factor[ratings.rater, 0] >= 0
    up = np.bincount(ratings.note, positive, ratings.n_notes)
    down = np.bincount(ratings.note, ~positive, ratings.n_notes)
    balance = np.where(positive, (np.maximum(down, 1) / np.maximum(up, 1))[ratings.note], 1.0)
    volume = np.bincount(ratings.rater, balance, ratings.n_raters)
    weights = balance * volume[ratings.rater] ** -0.25
    weights = weights / weights.mean()
    found = alternating_least_squares(ratings, balanced, first, weights=weights, tol=1e-8).parameters
    return ExpandedConsensus(found.note_intercept, found.note_factor[:, 0], weights)


def gaussian_bridging(
    model: BridgingMF,
    *,
    points: int = 25,
    bandwidth: float = 0.1,
    prior_weight: float = 0.4,
    prior: float = 0.35,
    not_helpful: float = 1.75,
    somewhat: float = 0.7,
) -> np.ndarray:
    """Gaussian bridging scores, (M,): at 25 points on each side a kernel-smoothed share of Helpful, and their
    geometric mean, weighted by the raters there. A note counts as helpful from 0.51 on.

    Args:
        model: fitted; its rater factors are scaled to a largest magnitude of 1.
        points: on each side.
        bandwidth: of the kernel, on that scale.
        prior_weight: weight of the prior share.
        prior: share of Helpful where nobody rated.
        not_helpful: weight of a NotHelpful rating.
        somewhat: weight of a Somewhat rating, which counts as half helpful.
    """
    assert model.ratings_ is not None
    data = model.ratings_
    f = model.rater_factor_[:, 0] / max(float(np.abs(model.rater_factor_).max()), 1e-12)
    grid = np.linspace(0, 1, points + 1)[1:]
    grid = np.concatenate([-grid[::-1], grid])
    density = np.exp(-0.5 * np.square((f[:, None] - grid) / bandwidth)).sum(0)
    weight = np.where(data.value == 0, not_helpful, np.where(data.value == 1, 1.0, somewhat))
    logs = np.zeros(data.n_notes)
    for point, share in zip(grid, density / density.sum(), strict=True):
        kernel = np.exp(-0.5 * np.square((f[data.rater] - point) / bandwidth)) * weight
        total = np.bincount(data.note, kernel, data.n_notes) + prior_weight
        rate = (np.bincount(data.note, kernel * data.value, data.n_notes) + prior_weight * prior) / total
        logs += share * np.log(np.clip(rate, 0.05, 0.8))
    return np.exp(logs)


@dataclass(frozen=True)
class QualityFit:
    """Quality-sensitive fit: note intercepts (M,) and factors (M,), raters' qualities (U,), loss."""

    intercept: np.ndarray
    factor: np.ndarray
    quality: np.ndarray
    loss: float


def quality_sensitive(
    ratings: Ratings, *, sweeps: int = 60, ridge: float = 0.3, random_state: int | None = None
) -> QualityFit:
    """Matrix factorisation with a quality of every rater (after Goyal, Arora, Goel 2026): r = mu + i_u + rho_u i_n +
    f_u f_n.

    rho_u, how far a rater follows a note's quality, is estimated with a ridge towards 1, alternating with exact
    solves of the rest.

    Args:
        ratings: the data.
        sweeps: alternations.
        ridge: pseudo-counts of rho_u = 1 per rating of an average rater.
        random_state: seed.
    """
    start = BridgingMF(n_init=1, random_state=random_state, tol=1e-7).fit(ratings).parameters
    u, n, N = ratings.rater, ratings.note, ratings.size
    U, M = ratings.n_raters, ratings.n_notes
    mu, i_u, f_u = start.mu, start.rater_intercept, start.rater_factor[:, 0]
    i_n, f_n, rho = start.note_intercept, start.note_factor[:, 0], np.ones(U)
    lam_n, lam_u = (np.array([0.15, 0.03]) * N / size for size in (M, U))
    for _ in range(sweeps):
        x, z, e = rho[u], f_u[u], ratings.value - mu - i_u[u]
        i_n, f_n = _ridge_pairs(n, M, x, z, e, lam_n)
        ones, z, e = np.ones(N), f_n[n], ratings.value - mu - rho[u] * i_n[n]
        i_u, f_u = _ridge_pairs(u, U, ones, z, e, lam_u)
        left = ratings.value - mu - i_u[u] - f_u[u] * f_n[n]
        pull = ridge * N / U * float(np.mean(np.square(i_n)))
        rho = (np.bincount(u, left * i_n[n], U) + pull) / (np.bincount(u, np.square(i_n[n]), U) + pull)
        rho = np.maximum(rho, 0.0)
        mu = float((ratings.value - i_u[u] - rho[u] * i_n[n] - f_u[u] * f_n[n]).sum()) / (N * 1.15)
    error = ratings.value - mu - i_u[u] - rho[u] * i_n[n] - f_u[u] * f_n[n]
    return QualityFit(i_n, f_n, rho, float(np.mean(np.square(error))))


def _ridge_pairs(
    index: np.ndarray, size: int, x: np.ndarray, z: np.ndarray, e: np.ndarray, lam: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Ridge of e on (x, z) within each group, closed form."""
    a = np.bincount(index, x * x, size) + lam[0]
    c = np.bincount(index, x * z, size)
    g = np.bincount(index, z * z, size) + lam[1]
    p, q = np.bincount(index, x * e, size), np.bincount(index, z * e, size)
    det = a * g - c * c
    return (g * p - c * q) / det, (a * q - c * p) / det


# --- simple scores -----------------------------------------------------------------------------------------------


def majority_share(ratings: Ratings) -> np.ndarray:
    """Mean rating of every note, (M,)."""
    return np.bincount(ratings.note, ratings.value, ratings.n_notes) / np.bincount(
        ratings.note, minlength=ratings.n_notes
    )


def smoothed_share(ratings: Ratings, prior: float = 0.35, weight: float = 5.0) -> np.ndarray:
    """Mean rating with ``weight`` pseudo-ratings of ``prior``, (M,)."""
    count = np.bincount(ratings.note, minlength=ratings.n_notes)
    return (np.bincount(ratings.note, ratings.value, ratings.n_notes) + weight * prior) / (count + weight)


def group_informed_consensus(model: BridgingMF, groups: int = 2, rng: np.random.Generator | None = None) -> np.ndarray:
    """Polis's group-informed consensus: product over k-means groups of raters of the smoothed share of agreement,
    (M,)."""
    from scipy.cluster.vq import kmeans2

    assert model.ratings_ is not None
    data = model.ratings_
    points = np.column_stack([model.rater_factor_, model.rater_intercept_])
    _, group = kmeans2(points, groups, minit="++", rng=rng or np.random.default_rng(0))
    score = np.ones(data.n_notes)
    for g in range(groups):
        member = group[data.rater] == g
        agree = np.bincount(data.note, member & (data.value == 1), data.n_notes)
        seen = np.bincount(data.note, member, data.n_notes)
        score *= (agree + 1) / (seen + 2)
    return score


def coordinated_groups(ratings: Ratings, *, least_common: int = 5, jaccard: float = 0.6, z: float = 4.0) -> np.ndarray:
    """Groups of raters who rate the same notes alike, int (U,), -1 for raters in none.

    Two raters are linked where they share at least ``least_common`` notes and ``jaccard`` of all notes of either,
    and agree more often than two raters of their habits would, by ``z`` standard deviations. Groups are the
    connected components.
    """
    from scipy.sparse import csr_matrix
    from scipy.sparse.csgraph import connected_components

    U, M = ratings.n_raters, ratings.n_notes
    seen = csr_matrix((np.ones(ratings.size), (ratings.rater, ratings.note)), shape=(U, M))
    helpful = csr_matrix(((ratings.value == 1).astype(float), (ratings.rater, ratings.note)), shape=(U, M))
    other = csr_matrix(((ratings.value != 1).astype(float), (ratings.rater, ratings.note)), shape=(U, M))
    common = (seen @ seen.T).tocoo()
    a, b, shared = common.row, common.col, common.data
    keep = (a < b) & (shared >= least_common)
    a, b, shared = a[keep], b[keep], shared[keep]
    size = np.bincount(ratings.rater, minlength=U)
    same = np.asarray((helpful @ helpful.T + other @ other.T)[a, b]).ravel()
    rate = np.bincount(ratings.rater, ratings.value == 1, U) / np.maximum(size, 1)
    expected = rate[a] * rate[b] + (1 - rate[a]) * (1 - rate[b])
    score = (same - shared * expected) / np.sqrt(np.maximum(shared * expected * (1 - expected), 1e-9))
    linked = (shared / (size[a] + size[b] - shared) >= jaccard) & (score >= z)
    graph = csr_matrix((np.ones(linked.sum()), (a[linked], b[linked])), shape=(U, U))
    _, component = connected_components(graph, directed=False)
    members = np.bincount(component)
    return np.where(members[component] > 1, component, -1)


def merged_groups(ratings: Ratings, groups: np.ndarray) -> Ratings:
    """Every group of raters as one rater with their mean rating of each note; the others unchanged."""
    label = np.where(groups >= 0, -1 - groups, np.arange(ratings.n_raters))
    key = label[ratings.rater].astype(np.int64)
    pairs, at = np.unique(np.stack([key, ratings.note.astype(np.int64)]), axis=1, return_inverse=True)
    mean = np.bincount(at.ravel(), ratings.value) / np.bincount(at.ravel())
    return Ratings.of(pairs[0], ratings.note_ids[pairs[1]], mean)
