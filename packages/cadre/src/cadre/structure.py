r"""From Jacobians to graphs (Theorem 2 and Corollaries 2.1, 2.2 of the paper), acyclicity, thresholds, cycles.

Everywhere ``adjacency[i, j] != 0`` means j -> i, as a Jacobian :math:`\partial x_i / \partial x_j` has it.
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

ACYCLICITY = ("poly", "expm", "logdet")
Acyclicity = Literal["poly", "expm", "logdet"]


def graph_from_mixing(mixing: Tensor) -> Tensor:
    r"""The Jacobian of the structural equations from the Jacobian of the mixing, :math:`J_g = I - D_m J_m^{-1}`.

    With :math:`x = m(z, s)` and :math:`D_m = \mathrm{diag}(J_m)` (Corollary 2.2). Solved, not inverted.

    Args:
        mixing: d x / d s, shape (..., d, d).

    Raises:
        torch.linalg.LinAlgError: if a matrix is singular; see :func:`graph_from_mixing_safely`.
    """
    diagonal = torch.diag_embed(torch.diagonal(mixing, dim1=-2, dim2=-1))
    # D J^{-1} = (J^{-T} D)^T, since D is symmetric.
    scaled = torch.linalg.solve(mixing.mT, diagonal).mT
    return torch.eye(mixing.shape[-1], dtype=mixing.dtype, device=mixing.device) - scaled


class MixingGraph(NamedTuple):
    """Jacobians of the structural equations, which rows are usable, and the worst condition number.

    Attributes:
        jacobian: (n, d, d); rows of singular mixings come from the pseudo-inverse.
        usable: (n,) bool; False where the mixing was singular to working precision.
        condition: the largest condition number.
    """

    jacobian: Tensor
    usable: Tensor
    condition: float


def graph_from_mixing_safely(mixing: Tensor) -> MixingGraph:
    """:func:`graph_from_mixing` for mixings that may be singular.

    Args:
        mixing: (n, d, d).
    """
    values = torch.linalg.svdvals(mixing)
    smallest = values[:, -1]
    usable = smallest > values[:, 0] * torch.finfo(mixing.dtype).eps * mixing.shape[-1]
    condition = torch.where(smallest > 0, values[:, 0] / smallest.clamp_min(1e-300), torch.inf)
    eye = torch.eye(mixing.shape[-1], dtype=mixing.dtype, device=mixing.device)
    found = torch.empty_like(mixing)
    found[usable] = graph_from_mixing(mixing[usable])
    singular = mixing[~usable]
    if len(singular):
        diagonal = torch.diag_embed(torch.diagonal(singular, dim1=-2, dim2=-1))
        found[~usable] = eye - diagonal @ torch.linalg.pinv(singular)
    return MixingGraph(found, usable, float(condition.max()))


def acyclicity(weights: Tensor, kind: Acyclicity = "poly") -> Tensor:
    r"""How far a non-negative matrix is from the adjacency of a DAG; 0 exactly for a DAG.

    ``poly``: :math:`\mathrm{tr}[(I + W/m)^m] - m` (the paper's); ``expm``: :math:`\mathrm{tr}\, e^W - m` (NOTEARS);
    ``logdet``: :math:`-\log\det(I - W)` (DAGMA; needs a spectral radius below 1, which holds for a DAG).

    Args:
        weights: non-negative, shape (..., m, m).
        kind: which form.

    Returns:
        Shape (...).
    """
    m = weights.shape[-1]
    eye = torch.eye(m, dtype=weights.dtype, device=weights.device)
    match kind:
        case "poly":
            return _trace(torch.linalg.matrix_power(eye + weights / m, m)) - m
        case "expm":
            return _trace(torch.linalg.matrix_exp(weights)) - m
        case "logdet":
            sign, log = torch.linalg.slogdet(eye - weights)
            return torch.where(sign > 0, -log, torch.inf)
    raise ValueError(f"kind must be one of {', '.join(ACYCLICITY)}, got {kind!r}")


def dag_penalty(adjacency: Tensor, kind: Acyclicity = "poly") -> Tensor:
    r""":math:`D(A)`, the acyclicity of :math:`A \circ A`, for signed weights of shape (..., m, m)."""
    return acyclicity(adjacency.square(), kind)


def _trace(matrix: Tensor) -> Tensor:
    return torch.diagonal(matrix, dim1=-2, dim2=-1).sum(-1)


def moral(jacobian: Tensor) -> Tensor:
    r"""Weights of the Markov network, :math:`M(J) = (I + J)^T (I + J) - I`, for square J of shape (..., m, m).

    Off the diagonal its support is that of the moral graph: edges, and pairs with a common child.
    """
    eye = torch.eye(jacobian.shape[-1], dtype=jacobian.dtype, device=jacobian.device)
    return (eye + jacobian).mT @ (eye + jacobian) - eye


# --- graphs as arrays --------------------------------------------------------------------------------------------


def is_dag(adjacency: np.ndarray) -> bool:
    """Whether the directed graph of the non-zero entries has no cycle."""
    return len(_removable(np.asarray(adjacency) != 0)) == len(adjacency)


def topological_order(adjacency: np.ndarray) -> list[int]:
    """Nodes with every cause before its effects.

    Raises:
        ValueError: if there is a cycle.
    """
    order = _removable(np.asarray(adjacency) != 0)
    if len(order) < len(adjacency):
        raise ValueError(f"expected a graph without cycles, got a cycle among {len(adjacency) - len(order)} nodes")
    return order


def _removable(edges: np.ndarray) -> list[int]:
    """Kahn's algorithm: nodes in the order in which they can be taken away."""
    waiting = edges.sum(1).astype(int)
    ready, order = [int(i) for i in np.flatnonzero(waiting == 0)], []
    while ready:
        node = ready.pop(0)
        order.append(node)
        for child in np.flatnonzero(edges[:, node]):
            waiting[child] -= 1
            if waiting[child] == 0:
                ready.append(int(child))
    return order


class Acyclic(NamedTuple):
    """A graph without cycles, and the edges (cause, effect, weight) that were removed for it."""

    adjacency: np.ndarray
    removed: list[tuple[int, int, float]]


def break_cycles(weights: np.ndarray) -> Acyclic:
    """Take away the weakest edge of a cycle until there is none.

    Args:
        weights: (m, m); the strength of an edge is its absolute value, 0 is no edge.
    """
    import networkx as nx

    kept = np.array(weights, dtype=float)
    np.fill_diagonal(kept, 0.0)
    graph = nx.DiGraph([(int(j), int(i)) for i, j in zip(*np.nonzero(kept), strict=True)])
    removed = []
    while True:
        try:
            cycle = nx.find_cycle(graph)
        except nx.NetworkXNoCycle:
            return Acyclic(kept, removed)
        cause, effect = min(((u, v) for u, v, *_ in cycle), key=lambda edge: abs(kept[edge[1], edge[0]]))
        removed.append((cause, effect, float(kept[effect, cause])))
        kept[effect, cause] = 0.0
        graph.remove_edge(cause, effect)


def largest_gap(scores: np.ndarray) -> float:
    """The threshold in the middle of the largest gap between sorted log scores (positive entries, off the diagonal).

    The gap is only looked for above 1e-3 of the largest score: below that all is noise of the fit.
    """
    values = np.sort(scores[~np.eye(len(scores), dtype=bool)])
    values = values[values > 1e-3 * max(values.max(initial=0.0), 1e-300)]
    if len(values) < 2:
        return float(values[0] / 2) if len(values) else np.inf
    logs = np.log(values)
    at = int(np.argmax(np.diff(logs)))
    return float(np.exp((logs[at] + logs[at + 1]) / 2))


def threshold_graph(
    scores: np.ndarray,
    method: Literal["fixed", "gap", "target_edges", "bootstrap"] = "fixed",
    *,
    threshold: float = 0.1,
    target_edges: int | None = None,
    stability: np.ndarray | None = None,
    min_stability: float = 0.6,
) -> np.ndarray:
    """Which edges to believe.

    Args:
        scores: non-negative strengths, (m, m), i <- j.
        method: ``fixed`` (at least ``threshold``), ``gap`` (see :func:`largest_gap`), ``target_edges`` (the strongest
            so many), ``bootstrap`` (at least ``threshold`` and in at least ``min_stability`` of the refits).
        threshold: on standardised series.
        target_edges: for that method.
        stability: share of refits with each edge, (m, m), for ``bootstrap``.
        min_stability: for ``bootstrap``.

    Returns:
        bool (m, m); of a pair of opposite edges only the stronger direction is kept.

    Raises:
        ValueError: for an unknown method or one without what it needs.
    """
    scores = np.abs(np.asarray(scores, dtype=float))
    if scores.ndim != 2 or scores.shape[0] != scores.shape[1]:
        raise ValueError(f"expected a square matrix of scores, got shape {scores.shape}")
    scores = np.where(np.eye(len(scores), dtype=bool), 0.0, scores)
    scores = np.where((scores > scores.T) | ((scores == scores.T) & np.tri(len(scores), k=-1, dtype=bool)), scores, 0.0)
    match method:
        case "fixed":
            return scores >= threshold
        case "gap":
            return scores >= largest_gap(scores)
        case "target_edges":
            if target_edges is None:
                raise ValueError("method target_edges expects target_edges=, got None")
            kept = np.zeros(scores.shape, dtype=bool)
            order = np.argsort(scores, axis=None)[::-1][:target_edges]
            kept.flat[order] = True
            return kept & (scores > 0)
        case "bootstrap":
            if stability is None:
                raise ValueError("method bootstrap expects stability=, got None")
            return (scores >= threshold) & (np.asarray(stability) >= min_stability)
    raise ValueError(f"method must be fixed, gap, target_edges or bootstrap, got {method!r}")


# --- which edges are allowed -------------------------------------------------------------------------------------

EARTH_RADIUS_KM = 6371.0088


def great_circle_km(coords: np.ndarray) -> np.ndarray:
    """Pairwise haversine distances.

    Args:
        coords: latitude and longitude in degrees, (d, 2).

    Returns:
        Kilometres, (d, d).
    """
    lat, lon = np.radians(_checked_coords(coords)).T
    half_lat = np.sin((lat[:, None] - lat) / 2) ** 2
    half_lon = np.sin((lon[:, None] - lon) / 2) ** 2
    a = half_lat + np.cos(lat)[:, None] * np.cos(lat) * half_lon
    return 2 * EARTH_RADIUS_KM * np.arcsin(np.sqrt(np.clip(a, 0, 1)))


def _checked_coords(coords: np.ndarray) -> np.ndarray:
    coords = np.asarray(coords, dtype=float)
    if coords.ndim != 2 or coords.shape[1] != 2 or not np.isfinite(coords).all() or (np.abs(coords[:, 0]) > 90).any():
        raise ValueError(f"expected coordinates (d, 2) as latitude in [-90, 90], longitude, got shape {coords.shape}")
    return coords


def distance_mask(coords: np.ndarray, max_km: float) -> np.ndarray:
    """Allowed edges: pairs at most ``max_km`` apart on the sphere; the dateline is no border. bool (d, d)."""
    allowed = great_circle_km(coords) <= max_km
    np.fill_diagonal(allowed, False)
    return allowed


def knn_mask(coords: np.ndarray, k: int) -> np.ndarray:
    """Allowed edges into each place: from its k nearest neighbours. bool (d, d)."""
    distance = great_circle_km(coords)
    np.fill_diagonal(distance, np.inf)
    if not 1 <= k < len(distance):
        raise ValueError(f"k must lie in [1, {len(distance) - 1}], got {k}")
    allowed = np.zeros(distance.shape, dtype=bool)
    np.put_along_axis(allowed, np.argsort(distance, axis=1)[:, :k], True, axis=1)
    return allowed


def regression_mask(X: np.ndarray, threshold: float = 0.12) -> np.ndarray:
    """Allowed edges: at least this coefficient in the ridge regression of each standardised series on all others.

    Args:
        X: (T, d).
        threshold: 0.12 as in the official code.
    """
    X = np.asarray(X, dtype=float)
    X = (X - X.mean(0)) / X.std(0)
    # All d regressions at once: coefficients of i on the others are -P_ij / P_ii of the precision matrix.
    precision = np.linalg.inv(X.T @ X / len(X) + 1e-3 * np.eye(X.shape[1]))
    coefficients = -precision / np.diag(precision)[:, None]
    np.fill_diagonal(coefficients, 0.0)
    return np.abs(coefficients) >= threshold


def checked_mask(mask: Any, d: int) -> np.ndarray:
    """A mask of allowed edges as bool (d, d) with a False diagonal.

    Raises:
        ValueError: for another shape or type.
    """
    import warnings

    mask = np.asarray(mask)
    if mask.shape != (d, d) or mask.dtype != bool:
        raise ValueError(f"expected a bool mask of shape ({d}, {d}), got {mask.dtype} of shape {mask.shape}")
    if mask.diagonal().any():
        warnings.warn("the mask allows self-loops; its diagonal is ignored", UserWarning, stacklevel=3)
    return mask & ~np.eye(d, dtype=bool)
