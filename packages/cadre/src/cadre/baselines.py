"""Causal discovery without (and with) hidden variables, behind one signature: ``method(X, mask=None) -> GraphResult``.

X is one long series (T, d). Methods of other libraries need the extra ``baselines``; ``adjacency[i, j]`` means j -> i
here as everywhere.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from scipy.linalg import expm
from scipy.optimize import minimize

from cadre.extras import optional
from cadre.graph import GraphResult
from cadre.structure import break_cycles, checked_mask

EXTRA = "baselines"


def _standardised(X: Any) -> np.ndarray:
    X = np.asarray(X, dtype=float)
    if X.ndim != 2 or not np.isfinite(X).all():
        raise ValueError(f"expected a finite series (time, series), got shape {X.shape}")
    sd = X.std(0)
    if (sd <= 0).any():
        raise ValueError(f"constant series: {np.flatnonzero(sd <= 0).tolist()}")
    return (X - X.mean(0)) / sd


def _result(
    weights: np.ndarray,
    edges: np.ndarray,
    method: str,
    mask: np.ndarray | None,
    undirected: tuple[tuple[int, int], ...] = (),
) -> GraphResult:
    edges = np.asarray(edges, dtype=bool) & ~np.eye(len(edges), dtype=bool)
    if mask is not None:
        edges &= checked_mask(mask, len(edges))
        undirected = tuple((i, j) for i, j in undirected if mask[i, j] or mask[j, i])
    return GraphResult(
        np.where(edges, weights, 0.0), edges, scores=np.abs(weights), undirected=undirected, method=method
    )


# --- our own ------------------------------------------------------------------------------------------------------


def _augmented_lagrangian(
    objective: Callable[[np.ndarray], tuple[float, np.ndarray]],
    constraint: Callable[[np.ndarray], tuple[float, np.ndarray]],
    start: np.ndarray,
    bounds: list[tuple[float | None, float | None]],
    rho_max: float = 1e16,
    tolerance: float = 1e-8,
) -> np.ndarray:
    """Minimise subject to constraint(w) = 0 as in NOTEARS: L-BFGS-B inside, rho tenfold while h falls too slowly."""
    w, rho, alpha, h = start, 1.0, 0.0, np.inf
    for _ in range(100):
        while True:

            def both(w: np.ndarray, rho: float = rho, alpha: float = alpha) -> tuple[float, np.ndarray]:
                loss, gradient = objective(w)
                value, slope = constraint(w)
                return loss + 0.5 * rho * value * value + alpha * value, gradient + (rho * value + alpha) * slope

            found = minimize(both, w, method="L-BFGS-B", jac=True, bounds=bounds, options={"maxiter": 2000})
            new = constraint(found.x)[0]
            if new <= 0.25 * h or rho >= rho_max:
                break
            rho *= 10
        w, h = found.x, new
        alpha += rho * h
        if h <= tolerance or rho >= rho_max:
            break
    return w


def _trace_exponential(W: np.ndarray) -> tuple[float, np.ndarray]:
    E = expm(W * W)
    return float(np.trace(E) - len(W)), E.T * W * 2


def notears(X: Any, mask: np.ndarray | None = None, l1: float = 0.1, threshold: float = 0.3) -> GraphResult:
    """Linear NOTEARS (Zheng et al. 2018) on standardised series, written from its equations."""
    W, _ = _linear_structure(_standardised(X), 0, l1, mask)
    return _dag_result(W, threshold, "notears", mask)


def dynotears(
    X: Any, mask: np.ndarray | None = None, lags: int = 1, l1: float = 0.05, threshold: float = 0.1
) -> GraphResult:
    """DYNOTEARS (Pamfil et al. 2020): the instantaneous part of a sparse structural autoregression."""
    W, _ = _linear_structure(_standardised(X), lags, l1, mask)
    return _dag_result(W, threshold, "dynotears", mask)


def _linear_structure(X: np.ndarray, lags: int, l1: float, mask: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
    """W (d, d) and A (lags, d, d) of x_t = W x_t + sum A_l x_{t-l}, i <- j, W without cycles."""
    T, d = X.shape
    now = X[lags:]
    inputs = np.concatenate([X[lags - lag : T - lag] for lag in range(lags + 1)], axis=1)
    gram, cross, n = inputs.T @ inputs / len(now), inputs.T @ now / len(now), inputs.shape[1]
    size = d * n

    def unpack(w: np.ndarray) -> np.ndarray:
        return (w[:size] - w[size:]).reshape(n, d)  # the papers' convention: row is the cause

    def objective(w: np.ndarray) -> tuple[float, np.ndarray]:
        B = unpack(w)
        loss = 0.5 * (1.0 * d - 2 * np.sum(B * cross) + np.sum(B * (gram @ B)))
        gradient = (gram @ B - cross).ravel()
        return loss + l1 * w.sum(), np.concatenate([gradient + l1, -gradient + l1])

    def constraint(w: np.ndarray) -> tuple[float, np.ndarray]:
        B = unpack(w)
        h, slope = _trace_exponential(B[:d])
        full = np.zeros((n, d))
        full[:d] = slope
        return h, np.concatenate([full.ravel(), -full.ravel()])

    allowed = np.ones((n, d), dtype=bool)
    np.fill_diagonal(allowed[:d], False)
    if mask is not None:
        allowed[:d] &= checked_mask(mask, d).T
    bounds: list[tuple[float | None, float | None]] = [(0, None) if ok else (0, 0) for ok in allowed.ravel()] * 2
    B = unpack(_augmented_lagrangian(objective, constraint, np.zeros(2 * size), bounds))
    return B[:d].T, B[d:].reshape(lags, d, d).transpose(0, 2, 1)


def notears_mlp(
    X: Any,
    mask: np.ndarray | None = None,
    hidden: int = 10,
    l1: float = 0.01,
    l2: float = 0.01,
    threshold: float = 0.3,
    seed: int = 0,
) -> GraphResult:
    """NOTEARS-MLP (Zheng et al. 2020): a hidden layer of sigmoids a series; an edge is its first weights' norm."""
    values = torch.as_tensor(_standardised(X), dtype=torch.float64)
    n, d = values.shape
    rng = np.random.default_rng(seed)
    shapes = [(d, hidden, d), (d, hidden, d), (d, hidden), (d, hidden), (d,)]  # W+, W-, bias, out, out bias
    sizes = [int(np.prod(s)) for s in shapes]
    start = np.concatenate([0.1 * rng.random(sum(sizes[:2])), 0.1 * rng.standard_normal(sum(sizes[2:]))])

    def unpack(w: torch.Tensor) -> list[torch.Tensor]:
        return [part.view(s) for part, s in zip(torch.split(w, sizes), shapes, strict=True)]

    def with_gradient(
        function: Callable[[list[torch.Tensor]], torch.Tensor],
    ) -> Callable[[np.ndarray], tuple[float, np.ndarray]]:
        def call(w: np.ndarray) -> tuple[float, np.ndarray]:
            given = torch.tensor(w, requires_grad=True)
            value = function(unpack(given))
            value.backward()
            assert given.grad is not None
            return float(value.detach()), given.grad.numpy()

        return call

    def loss(parts: list[torch.Tensor]) -> torch.Tensor:
        up, down, bias, out, out_bias = parts
        first = up - down
        h = torch.sigmoid(torch.einsum("nj,ihj->nih", values, first) + bias)
        predicted = (h * out).sum(-1) + out_bias
        fit = 0.5 / n * (values - predicted).square().sum()
        return fit + l1 * (up + down).sum() + 0.5 * l2 * (first.square().sum() + out.square().sum())

    def cycles(parts: list[torch.Tensor]) -> torch.Tensor:
        strength = (parts[0] - parts[1]).square().sum(1)
        return torch.trace(torch.linalg.matrix_exp(strength)) - d

    allowed = np.broadcast_to(~np.eye(d, dtype=bool)[:, None, :], (d, hidden, d))
    if mask is not None:
        allowed = allowed & checked_mask(mask, d)[:, None, :]
    one = [(0, None) if ok else (0, 0) for ok in allowed.ravel()]
    bounds: list[tuple[float | None, float | None]] = [*one, *one, *[(None, None)] * sum(sizes[2:])]
    w = _augmented_lagrangian(with_gradient(loss), with_gradient(cycles), start, bounds)
    up, down, *_ = unpack(torch.tensor(w))
    return _dag_result((up - down).square().sum(1).sqrt().numpy(), threshold, "notears-mlp", mask)


def _dag_result(weights: np.ndarray, threshold: float, method: str, mask: np.ndarray | None) -> GraphResult:
    kept, removed = break_cycles(np.where(np.abs(weights) >= threshold, weights, 0.0))
    result = _result(weights, kept != 0, method, mask)
    return GraphResult(result.weights, result.adjacency, scores=result.scores, removed=tuple(removed), method=method)


def ridge_var(X: np.ndarray, lags: int, ridge: float = 1e-3) -> tuple[np.ndarray, np.ndarray]:
    """Coefficients (lags, d, d), i <- j, and residuals (T - lags, d) of a vector autoregression of centred series."""
    T, d = X.shape
    past = np.concatenate([X[lags - lag : T - lag] for lag in range(1, lags + 1)], axis=1)
    A = np.linalg.solve(past.T @ past + ridge * len(past) * np.eye(lags * d), past.T @ X[lags:])
    return A.T.reshape(d, lags, d).transpose(1, 0, 2), X[lags:] - past @ A


def var_granger(X: Any, mask: np.ndarray | None = None, lags: int = 1, threshold: float = 0.1) -> GraphResult:
    """A ridge autoregression; instantaneous edges from its residuals, by LiNGAM where installed.

    Else by a Cholesky factor in the order of variance, and ``method`` says so.
    """
    _, residual = ridge_var(_standardised(X), lags)
    try:
        B = _lingam_matrix(residual)
        name = "var-lingam residuals"
    except ImportError:
        order = np.argsort(residual.var(0))
        L = np.linalg.cholesky(np.cov(residual[:, order].T))
        inner = np.eye(len(L)) - np.diag(np.diag(L)) @ np.linalg.inv(L)
        B = np.zeros_like(L)
        B[np.ix_(order, order)] = np.tril(inner, -1)
        name = "var-cholesky (variance order)"
    scaled = B * residual.std(0)[None] / residual.std(0)[:, None]
    return _result(scaled, np.abs(scaled) > threshold, name, mask)


def correlation(X: Any, mask: np.ndarray | None = None, threshold: float = 0.3) -> GraphResult:
    """Pairs with |r| above the threshold, directed by the larger lag-1 cross-correlation."""
    X = _standardised(X)
    r = X.T @ X / len(X)
    lagged = np.abs(X[1:].T @ X[:-1]) / (len(X) - 1)  # [i, j]: x_j before x_i
    forward = (lagged > lagged.T) | ((lagged == lagged.T) & np.tri(len(r), k=-1, dtype=bool))
    return _result(r, (np.abs(r) > threshold) & forward, "correlation", mask)


def random_dag(X: Any, mask: np.ndarray | None = None, edges: int | None = None, seed: int = 0) -> GraphResult:
    """A random DAG with this many edges (default: one a series)."""
    d = np.asarray(X).shape[1]
    rng = np.random.default_rng(seed)
    order = rng.permutation(d)
    pairs = np.argwhere(np.tri(d, k=-1, dtype=bool))
    chosen = pairs[rng.permutation(len(pairs))[: min(d if edges is None else edges, len(pairs))]]
    B = np.zeros((d, d))
    B[order[chosen[:, 0]], order[chosen[:, 1]]] = 1.0
    return _result(B, B != 0, "random", mask)


# --- lingam ------------------------------------------------------------------------------------------------------


def _lingam_matrix(X: np.ndarray) -> np.ndarray:
    lingam = optional("lingam", EXTRA)
    return np.asarray(lingam.DirectLiNGAM().fit(X).adjacency_matrix_)


def direct_lingam(X: Any, mask: np.ndarray | None = None, threshold: float = 0.1) -> GraphResult:
    """DirectLiNGAM of the lingam package."""
    B = _lingam_matrix(_standardised(X))
    return _result(B, np.abs(B) > threshold, "direct-lingam", mask)


def var_lingam(X: Any, mask: np.ndarray | None = None, lags: int = 1, threshold: float = 0.1) -> GraphResult:
    """VARLiNGAM of the lingam package: its instantaneous part."""
    lingam = optional("lingam", EXTRA)
    model = lingam.VARLiNGAM(lags=lags, criterion=None).fit(_standardised(X))
    B = np.asarray(model.adjacency_matrices_[0])
    return _result(B, np.abs(B) > threshold, "var-lingam", mask)


# --- tigramite ---------------------------------------------------------------------------------------------------


def _tigramite(X: Any) -> tuple[Any, Any]:
    optional("tigramite", EXTRA)
    frames = optional("tigramite.data_processing", EXTRA)
    tests = optional("tigramite.independence_tests.parcorr", EXTRA)
    return frames.DataFrame(_standardised(X)), tests.ParCorr(significance="analytic")


def _links(found: dict[str, Any], method: str, mask: np.ndarray | None, directed: tuple[str, ...]) -> GraphResult:
    """tigramite's graph[i, j, 0] reads i -> j."""
    graph, values = found["graph"][:, :, 0], found["val_matrix"][:, :, 0]
    edges = np.isin(graph, directed).T
    open_ends = [(i, j) for i, j in np.argwhere(np.triu(graph != "", 1)) if not (edges[i, j] or edges[j, i])]
    open_ends = [(int(i), int(j)) for i, j in open_ends if graph[i, j] != "<->"]
    return _result(values.T, edges, method, mask, tuple(open_ends))


def pcmci(X: Any, mask: np.ndarray | None = None, tau_max: int = 2, alpha: float = 0.01) -> GraphResult:
    """PCMCI of tigramite (ParCorr): lagged links only, so its contemporaneous part here has no directions."""
    frame, test = _tigramite(X)
    runner = optional("tigramite.pcmci", EXTRA).PCMCI(frame, test, verbosity=0)
    found = runner.run_pcmci(tau_max=tau_max, pc_alpha=0.05, alpha_level=alpha)
    return _links(found, "pcmci", mask, ("-->",))


def pcmci_plus(X: Any, mask: np.ndarray | None = None, tau_max: int = 2, alpha: float = 0.01) -> GraphResult:
    """PCMCI+ of tigramite (ParCorr): its contemporaneous links."""
    frame, test = _tigramite(X)
    runner = optional("tigramite.pcmci", EXTRA).PCMCI(frame, test, verbosity=0)
    return _links(runner.run_pcmciplus(tau_max=tau_max, pc_alpha=alpha), "pcmci+", mask, ("-->",))


def lpcmci(X: Any, mask: np.ndarray | None = None, tau_max: int = 2, alpha: float = 0.01) -> GraphResult:
    """LPCMCI of tigramite, which allows latent confounders."""
    frame, test = _tigramite(X)
    runner = optional("tigramite.lpcmci", EXTRA).LPCMCI(frame, test, verbosity=0)
    with contextlib.redirect_stdout(io.StringIO()):
        found = runner.run_lpcmci(tau_max=tau_max, pc_alpha=alpha, n_preliminary_iterations=4)
    return _links(found, "lpcmci", mask, ("-->", "o->"))


# --- causal-learn ------------------------------------------------------------------------------------------------

_TAIL, _ARROW, _CIRCLE = -1, 1, 2


def _endpoints(graph: np.ndarray, X: np.ndarray, method: str, mask: np.ndarray | None) -> GraphResult:
    """causal-learn's graph[j, i] is the mark at j: an arrow there and no arrow at i reads i -> j."""
    d = X.shape[1]
    marks = np.asarray(graph)[:d, :d]
    edges = (marks == _ARROW) & ((marks.T == _TAIL) | (marks.T == _CIRCLE))
    open_ends = []
    for i, j in np.argwhere(np.triu(marks != 0, 1)):
        if not (edges[i, j] or edges[j, i]) and not (marks[i, j] == _ARROW and marks[j, i] == _ARROW):
            open_ends.append((int(i), int(j)))
    return _result(np.corrcoef(X.T), edges, method, mask, tuple(open_ends))


def _quiet(function: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        return function(*arguments, **options)


def fci(X: Any, mask: np.ndarray | None = None, alpha: float = 0.05, test: str = "fisherz") -> GraphResult:
    """FCI of causal-learn; ``test="kci"`` for at most 500 samples."""
    X = _standardised(X)
    run = optional("causallearn.search.ConstraintBased.FCI", EXTRA).fci
    graph, _ = _quiet(run, X[:500] if test == "kci" else X, test, alpha, verbose=False, show_progress=False)
    return _endpoints(graph.graph, X, "fci", mask)


def pc(X: Any, mask: np.ndarray | None = None, alpha: float = 0.05) -> GraphResult:
    """PC of causal-learn (Fisher z)."""
    X = _standardised(X)
    run = optional("causallearn.search.ConstraintBased.PC", EXTRA).pc
    return _endpoints(_quiet(run, X, alpha, "fisherz", show_progress=False).G.graph, X, "pc", mask)


def cd_nod(X: Any, mask: np.ndarray | None = None, alpha: float = 0.05) -> GraphResult:
    """CD-NOD of causal-learn with time as the domain index."""
    X = _standardised(X)
    run = optional("causallearn.search.ConstraintBased.CDNOD", EXTRA).cdnod
    index = np.arange(len(X), dtype=float)[:, None] / len(X)
    return _endpoints(_quiet(run, X, index, alpha, "fisherz", show_progress=False).G.graph, X, "cd-nod", mask)


def ges(X: Any, mask: np.ndarray | None = None) -> GraphResult:
    """GES of causal-learn (BIC)."""
    X = _standardised(X)
    run = optional("causallearn.search.ScoreBased.GES", EXTRA).ges
    return _endpoints(_quiet(run, X, "local_score_BIC")["G"].graph, X, "ges", mask)


BASELINES: dict[str, Callable[..., GraphResult]] = {
    "notears": notears,
    "notears-mlp": notears_mlp,
    "dynotears": dynotears,
    "var-granger": var_granger,
    "correlation": correlation,
    "random": random_dag,
    "lingam": direct_lingam,
    "var-lingam": var_lingam,
    "pcmci": pcmci,
    "pcmci+": pcmci_plus,
    "lpcmci": lpcmci,
    "fci": fci,
    "pc": pc,
    "cd-nod": cd_nod,
    "ges": ges,
}
