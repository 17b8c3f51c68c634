"""Scores of latents (MCC, R2), of graphs (SHD, SID, AUROC), of winds along edges, and of forecasts (CRPS)."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy.optimize import linear_sum_assignment
from scipy.stats import rankdata

from cadre.structure import great_circle_km, is_dag, topological_order


def _columns(z: np.ndarray) -> np.ndarray:
    z = np.asarray(z, dtype=float)
    return z.reshape(-1, z.shape[-1])


class Matching(NamedTuple):
    """Mean absolute correlation of matched components, and for each true component its estimate and the sign."""

    mcc: float
    order: np.ndarray
    sign: np.ndarray


def match_latents(estimated: np.ndarray, true: np.ndarray, method: str = "pearson") -> Matching:
    """Pair estimated with true latents by the Hungarian method on absolute correlations.

    Args:
        estimated: (..., k).
        true: (..., k) on the same leading shape.
        method: ``pearson`` or ``spearman``.
    """
    a, b = _columns(estimated), _columns(true)
    if a.shape[0] != b.shape[0]:
        raise ValueError(f"expected as many samples, got {a.shape[0]} and {b.shape[0]}")
    if method == "spearman":
        a, b = rankdata(a, axis=0), rankdata(b, axis=0)
    elif method != "pearson":
        raise ValueError(f"method must be pearson or spearman, got {method!r}")
    a, b = a - a.mean(0), b - b.mean(0)
    scale = np.outer(np.linalg.norm(b, axis=0), np.linalg.norm(a, axis=0))
    correlation = (b.T @ a) / np.where(scale > 0, scale, np.inf)
    rows, columns = linear_sum_assignment(-np.abs(correlation))
    order = np.full(b.shape[1], -1)
    order[rows] = columns
    matched = correlation[rows, columns]
    return Matching(float(np.abs(matched).sum() / b.shape[1]), order, np.where(matched < 0, -1.0, 1.0))


def mean_correlation(estimated: np.ndarray, true: np.ndarray, method: str = "pearson") -> float:
    """MCC: mean absolute correlation after the best pairing of components."""
    return match_latents(estimated, true, method).mcc


def spline_correlation(estimated: np.ndarray, true: np.ndarray, knots: int = 8) -> float:
    """MCC after the best smooth map of each estimated component (cubic spline, fitted on the first half)."""
    from sklearn.linear_model import Ridge
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import SplineTransformer

    a, b = _columns(estimated), _columns(true)
    half = len(a) // 2
    k = b.shape[1]
    found = np.zeros((k, a.shape[1]))
    for j in range(a.shape[1]):
        model = make_pipeline(SplineTransformer(knots, extrapolation="linear"), Ridge(1e-3))
        predicted = model.fit(a[:half, [j]], b[:half]).predict(a[half:, [j]]).reshape(-1, k)
        for i in range(k):
            spread = predicted[:, i].std() * b[half:, i].std()
            found[i, j] = abs(np.corrcoef(predicted[:, i], b[half:, i])[0, 1]) if spread > 1e-12 else 0.0
    rows, columns = linear_sum_assignment(-found)
    return float(found[rows, columns].sum() / k)


def block_r2(estimated: np.ndarray, true: np.ndarray, samples: int = 1000, seed: int = 0) -> float:
    """R2 of kernel ridge from all estimated latents to the true ones, on held-out samples: block identifiability."""
    from sklearn.kernel_ridge import KernelRidge
    from sklearn.metrics import r2_score

    a, b = _columns(estimated), _columns(true)
    chosen = np.random.default_rng(seed).permutation(len(a))[: 2 * samples]
    a = (a - a.mean(0)) / np.where(a.std(0) > 0, a.std(0), 1)
    train, test = np.array_split(chosen, 2)
    model = KernelRidge(alpha=0.1, kernel="rbf", gamma=0.5 / a.shape[1]).fit(a[train], b[train] - b[train].mean(0))
    return float(r2_score(b[test] - b[train].mean(0), model.predict(a[test])))


class GraphScores(NamedTuple):
    """Distances and rates of an estimated graph; a reversed edge counts once in ``shd``.

    Attributes:
        shd: structural Hamming distance.
        shd_pairs: shd / (d (d-1) / 2).
        shd_ordered: shd / (d (d-1)).
        tpr: recall of directed edges.
        precision: of directed edges; 1 where none was found and none is there, 0 where none was found but some are.
        f1: harmonic mean of both.
    """

    shd: int
    shd_pairs: float
    shd_ordered: float
    tpr: float
    precision: float
    f1: float


def compare_graphs(estimated: np.ndarray, true: np.ndarray) -> GraphScores:
    """Compare directed graphs (non-zero entries, i <- j); the diagonal is ignored."""
    a, b = np.asarray(estimated) != 0, np.asarray(true) != 0
    if a.shape != b.shape or a.ndim != 2 or a.shape[0] != a.shape[1]:
        raise ValueError(f"expected two square matrices of one size, got {a.shape} and {b.shape}")
    d = len(a)
    a, b = a & ~np.eye(d, dtype=bool), b & ~np.eye(d, dtype=bool)
    wrong = (a != b) | (a.T != b.T)
    shd = int(np.triu(wrong, 1).sum())
    hits, found, real = int((a & b).sum()), int(a.sum()), int(b.sum())
    tpr = hits / real if real else 1.0
    precision = hits / found if found else float(real == 0)
    f1 = 2 * tpr * precision / (tpr + precision) if tpr + precision else 0.0
    pairs = max(d * (d - 1), 1)
    return GraphScores(shd, 2 * shd / pairs, shd / pairs, tpr, precision, f1)


def edge_auc(scores: np.ndarray, true: np.ndarray) -> tuple[float, float]:
    """AUROC and AUPRC of edge scores against the true directed edges; NaN where the truth has one class only."""
    from sklearn.metrics import average_precision_score, roc_auc_score

    off = ~np.eye(len(scores), dtype=bool)
    truth = (np.asarray(true) != 0)[off]
    if truth.all() or not truth.any():
        return float("nan"), float("nan")
    values = np.abs(np.asarray(scores, dtype=float))[off]
    return float(roc_auc_score(truth, values)), float(average_precision_score(truth, values))


def structural_intervention_distance(estimated: np.ndarray, true: np.ndarray) -> int:
    """SID (Peters and Bühlmann 2015): ordered pairs whose interventional distribution the estimated DAG gets wrong.

    For each ordered pair (i, j), the parents of i in the estimated graph are tried as adjustment set in the true graph.

    Raises:
        ValueError: if one of the graphs has a cycle or has more than 30 nodes.
    """
    a, b = (np.asarray(m) != 0 for m in (estimated, true))
    if len(a) > 30:
        raise ValueError(f"SID is meant for at most 30 nodes, got {len(a)}")
    if not is_dag(a) or not is_dag(b):
        raise ValueError("SID expects two graphs without cycles")
    d = len(a)
    below = _descendants(b)
    wrong = 0
    for i in range(d):
        parents = set(np.flatnonzero(a[i]).tolist())
        for j in range(d):
            if j == i:
                continue
            if j in parents:  # the estimate says that i does not act on j
                wrong += bool(below[j, i])
            elif not _valid_adjustment(b, below, i, j, parents):
                wrong += 1
    return wrong


def _descendants(adjacency: np.ndarray) -> np.ndarray:
    """``[i, j]``: there is a directed path of at least one edge from j to i."""
    reach = adjacency.copy()
    for node in topological_order(adjacency):
        reach[node] |= reach[adjacency[node]].any(0)
    return reach


def _valid_adjustment(graph: np.ndarray, below: np.ndarray, i: int, j: int, adjust: set[int]) -> bool:
    """The adjustment criterion of Shpitser et al. 2010 for the effect of i on j."""
    d = len(graph)
    on_path = [k for k in range(d) if below[k, i] and (k == j or below[j, k])]
    forbidden = {int(v) for k in on_path for v in [k, *np.flatnonzero(below[:, k])]}
    if adjust & forbidden:
        return False
    # Without the first edges of causal paths, i and j must be separated by the set.
    proper = graph.copy()
    for k in on_path:
        proper[k, i] = False
    return _separated(proper, i, j, adjust)


def _separated(graph: np.ndarray, i: int, j: int, given: set[int]) -> bool:
    """d-separation by reachability over (node, came from a child?)."""
    below = _descendants(graph)
    opens = {k for k in range(len(graph)) if k in given or any(below[g, k] for g in given)}
    seen, queue = set(), [(i, True)]
    while queue:
        node, from_child = queue.pop()
        if (node, from_child) in seen:
            continue
        seen.add((node, from_child))
        if node == j:
            return False
        if from_child and node not in given:
            queue += [(int(p), True) for p in np.flatnonzero(graph[node])]
            queue += [(int(c), False) for c in np.flatnonzero(graph[:, node])]
        elif not from_child:
            if node not in given:
                queue += [(int(c), False) for c in np.flatnonzero(graph[:, node])]
            if node in opens:
                queue += [(int(p), True) for p in np.flatnonzero(graph[node])]
    return True


# --- along the wind ----------------------------------------------------------------------------------------------


def bearings(coords: np.ndarray) -> np.ndarray:
    """Initial great-circle bearing from place j to place i, radians clockwise from north, at [i, j]."""
    lat, lon = np.radians(np.asarray(coords, dtype=float)).T
    turn = lon[:, None] - lon
    east = np.sin(turn) * np.cos(lat)[:, None]
    north = np.cos(lat) * np.sin(lat)[:, None] - np.sin(lat) * np.cos(lat)[:, None] * np.cos(turn)
    return np.arctan2(east, north)


def wind_graph(coords: np.ndarray, u: np.ndarray, v: np.ndarray, max_km: float) -> np.ndarray:
    r"""A surrogate of the truth: how much wind blows from place j towards place i.

    :math:`w_{ij} = \max(0, \cos\angle(\text{bearing}_{j \to i}, \text{wind}_j))\,|\text{wind}_j|`. For pairs at most
    ``max_km`` apart, divided by the largest; our own exact definition (the paper states it in words).

    Args:
        coords: latitude, longitude, (d, 2).
        u: eastward wind at each place, (d,).
        v: northward wind, (d,).
        max_km: neighbourhood.

    Returns:
        (d, d) in [0, 1], i <- j.
    """
    u, v = np.asarray(u, dtype=float), np.asarray(v, dtype=float)
    bearing = bearings(coords)
    along = np.sin(bearing) * u + np.cos(bearing) * v  # u, v belong to the source j, the column
    near = great_circle_km(coords) <= max_km
    weights = np.where(near & ~np.eye(len(near), dtype=bool), np.maximum(along, 0.0), 0.0)
    top = weights.max(initial=0.0)
    return weights / top if top > 0 else weights


def wind_scores(edges: np.ndarray, wind: np.ndarray) -> tuple[float, float]:
    """WSHD = mean over ordered pairs of |w - s|, and WTPR = sum(w s) / sum(w), for 0/1 edges s and winds w."""
    s = (np.asarray(edges) != 0).astype(float)
    off = ~np.eye(len(s), dtype=bool)
    total = wind[off].sum()
    return float(np.abs(wind - s)[off].mean()), float((wind * s)[off].sum() / total) if total > 0 else 0.0


class NullTest(NamedTuple):
    """A graph's score against random graphs: the share of those at least as good, and their quantiles."""

    value: float
    p_value: float
    null_low: float
    null_median: float
    null_high: float


def wind_test(
    edges: np.ndarray, wind: np.ndarray, rng: np.random.Generator, allowed: np.ndarray, draws: int = 1000
) -> NullTest:
    """WTPR against random graphs that give every place as many incoming edges, drawn among the allowed ones.

    Args:
        edges: bool (d, d).
        wind: of :func:`wind_graph`.
        rng: source of the random graphs.
        allowed: the mask under which the edges were found, bool (d, d).
        draws: number of random graphs.
    """
    edges = np.asarray(edges) != 0
    degrees = edges.sum(1)
    keys = np.where(allowed & ~np.eye(len(edges), dtype=bool), rng.random((draws, *edges.shape)), np.inf)
    rank = np.argsort(np.argsort(keys, axis=2), axis=2)
    random = (rank < degrees[:, None]) & np.isfinite(keys)
    total = wind.sum()
    null = (random * wind).sum((1, 2)) / total if total > 0 else np.zeros(draws)
    value = wind_scores(edges, wind)[1]
    low, middle, high = np.quantile(null, [0.025, 0.5, 0.975])
    p_value = (1 + int((null >= value - 1e-12).sum())) / (1 + draws)
    return NullTest(value, p_value, float(low), float(middle), float(high))


# --- forecasts ---------------------------------------------------------------------------------------------------


def crps(samples: np.ndarray, observed: np.ndarray) -> float:
    """Mean continuous ranked probability score of an ensemble, :math:`E|X - y| - E|X - X'| / 2` (fair form).

    Args:
        samples: (m, ...) with m >= 2.
        observed: (...).
    """
    samples = np.sort(np.asarray(samples, dtype=float), axis=0)
    m = len(samples)
    if m < 2:
        raise ValueError(f"expected at least 2 samples, got {m}")
    weight = (2 * np.arange(1, m + 1) - m - 1).reshape(-1, *[1] * (samples.ndim - 1))
    spread = (weight * samples).sum(0) / (m * (m - 1))
    return float((np.abs(samples - observed).mean(0) - spread).mean())


def forecast_errors(predicted: np.ndarray, observed: np.ndarray) -> tuple[float, float]:
    """Mean squared and mean absolute error."""
    gap = np.asarray(predicted, dtype=float) - np.asarray(observed, dtype=float)
    return float(np.square(gap).mean()), float(np.abs(gap).mean())
