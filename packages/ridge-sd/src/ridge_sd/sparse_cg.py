"""Ridge and its distilled direction for large sparse designs: conjugate gradients, traces by random probes (ours)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

PROBES = 32
TOLERANCE = 1e-10


@dataclass(frozen=True)
class CGFit:
    """Solution at one penalty.

    Attributes:
        coef: ridge, (p, q).
        direction: beta_pd - beta, (p, q).
        df: tr S with the intercept, estimated.
        R: GCV risk of the teacher, (q,).
        gap: R - C, (q,).
        D: (q,).
        x_mean: (p,).
        y_mean: (q,).
    """

    coef: np.ndarray
    direction: np.ndarray
    df: float
    R: np.ndarray
    gap: np.ndarray
    D: np.ndarray
    x_mean: np.ndarray
    y_mean: np.ndarray


def cg_fit(
    X: Any, Y: np.ndarray, alpha: float, weights: np.ndarray | None, fit_intercept: bool, random_state: Any = None
) -> CGFit:
    r"""Two solves a target, :math:`A \beta = X'y` and :math:`A \delta = -\alpha \beta`, and one a probe.

    A = X_c'WX_c + alpha I is only applied. With Rademacher probes z, z'Sz estimates tr S and ||Sz||^2 tr S^2.

    Args:
        X: (n, p), sparse or dense; centred implicitly.
        Y: (n, q).
        alpha: penalty, > 0.
        weights: frequency weights, (n,), or None.
        fit_intercept: centre.
        random_state: seed of the probes.
    """
    from scipy.sparse.linalg import LinearOperator, cg
    from sklearn.utils import check_random_state

    n, p = X.shape
    w = np.ones(n) if weights is None else weights
    total, root = float(w.sum()), np.sqrt(w)
    x_mean = np.asarray(w @ X).ravel() / total if fit_intercept else np.zeros(p)
    y_mean = w @ Y / total if fit_intercept else np.zeros(Y.shape[1])
    target = root[:, None] * (Y - y_mean)

    def forward(b: np.ndarray) -> np.ndarray:
        return root * (X @ b - x_mean @ b)

    def backward(v: np.ndarray) -> np.ndarray:
        return X.T @ (root * v) - x_mean * (root @ v)

    squares = X.multiply(X) if hasattr(X, "multiply") else np.square(X)
    diagonal = np.asarray(w @ squares).ravel() - total * np.square(x_mean) + alpha
    operator: Any = LinearOperator  # its constructor is not described by scipy's type hints
    A = operator((p, p), matvec=lambda b: backward(forward(np.ravel(b))) + alpha * np.ravel(b), dtype=float)
    M = operator((p, p), matvec=lambda b: np.ravel(b) / diagonal, dtype=float)

    def solve(right: np.ndarray) -> np.ndarray:
        found, info = cg(A, right, rtol=TOLERANCE, atol=0.0, maxiter=20 * min(n, p) + 1000, M=M)
        if info:
            raise ValueError(f"conjugate gradients did not converge for alpha = {alpha:g}; use a larger alpha")
        return found

    coef = np.column_stack([solve(backward(t)) for t in target.T])
    direction = np.column_stack([solve(-alpha * b) for b in coef.T])
    rng = check_random_state(random_state)
    traces, squared = [], []
    for _ in range(PROBES):
        z = rng.choice([-1.0, 1.0], size=n)
        smooth = forward(solve(backward(z)))
        traces.append(z @ smooth)
        squared.append(smooth @ smooth)
    df, df_pd = float(np.mean(traces)) + fit_intercept, float(np.mean(squared)) + fit_intercept
    fitted = np.column_stack([forward(b) for b in coef.T])
    moved = np.column_stack([forward(d) for d in direction.T])
    keep, keep_pd = 1 - df / total, 1 - df_pd / total
    r = (target - fitted) / keep
    # r - r_pd = (y - Sy)(1/keep - 1/keep_pd) + (S^2 y - S y) / keep_pd
    d = (target - fitted) * ((df - df_pd) / total / (keep * keep_pd)) + moved / keep_pd
    R, gap, D = (np.square(r).sum(0) / total, (r * d).sum(0) / total, np.square(d).sum(0) / total)
    return CGFit(coef, direction, df, R, gap, D, x_mean, y_mean)
