r"""Self-distilled ridge regression from one matrix decomposition: all penalties, all mixing weights, honest criteria.

Ridge with total penalty alpha = n lambda gives beta; the pure-distilled student is the same ridge fitted to the
teacher's fitted values; the student is :math:`\beta_{sd} = (1 - \xi) \hat\beta + \xi \beta_{pd}` with any real xi.
Because :math:`\beta_{pd} - \hat\beta = \alpha\, d\hat\beta / d\alpha`, a squared risk of the student is
:math:`R - 2 \xi (R - C) + \xi^2 D`, and its minimiser :math:`\xi^* = (R - C) / D` is closed (proposition 2.1 of
Dang, Patil, Rinaldo, "Optimal Unconstrained Self-Distillation in Ridge Regression", ICML 2026, arXiv 2602.17565).
What that paper does not state is marked "ours".
"""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np

Criterion = Literal["loo", "gcv", "cp", "holdout"]
XiMode = Literal["shared", "per_target"]
WeightType = Literal["frequency", "importance"]
Solver = Literal["auto", "eigh", "svd"]
Select = Literal["joint", "teacher"]

CRITERIA: tuple[Criterion, ...] = ("loo", "gcv", "cp", "holdout")
SQUARED_CONDITION_GUARD = 1e-10  # below this alpha / s_max^2, squaring the design loses what the penalty keeps
LEVERAGE_GUARD = 1e-10
MAX_ROUNDS = 5
ROUND_RCOND = 1e-8
CHUNK = 1 << 20  # numbers of a temporary array


# --- one decomposition -------------------------------------------------------------------------------------------


class CoefMap(Protocol):
    """Maps right-hand sides c, (r, k), to coefficients V diag(s) c, (p, k)."""

    def __call__(self, c: np.ndarray) -> np.ndarray: ...


@dataclass(frozen=True)
class PrimalMap:
    """By right singular vectors: V (s c)."""

    V: np.ndarray
    s: np.ndarray

    def __call__(self, c: np.ndarray) -> np.ndarray:
        return self.V @ (self.s[:, None] * c)


@dataclass(frozen=True)
class DualMap:
    """By rows: X_w' U c, less the implicit centring x_mean (root' U c) of sparse rows."""

    rows: Any
    U: np.ndarray
    root: np.ndarray | None = None
    x_mean: np.ndarray | None = None

    def __call__(self, c: np.ndarray) -> np.ndarray:
        dual = self.U @ c
        coef = self.rows.T @ dual
        if self.root is None or self.x_mean is None:
            return coef
        return coef - np.outer(self.x_mean, self.root @ dual)


@dataclass(frozen=True)
class Spectrum:
    r"""The weighted, centred design :math:`\sqrt{W} X_c = U S V'` and the targets in its coordinates.

    Attributes:
        s2: squared singular values, (r,), largest first.
        Uty: U' of the weighted, centred targets, (r, q).
        rho2: squared norm of the targets outside the span of U, (q,).
        target: weighted, centred targets, (n, q).
        weights: row weights, (n,).
        total_weight: their sum W; alpha = lambda W.
        n_eff: sample size in criteria: W for frequency weights, the number of weighted rows for importance weights.
        removed: weight that leaving a row out takes away, (n,): min(w, 1) for frequency weights, w for importance.
        intercept: whether rows and targets were centred.
        x_mean: means of the features, (p,).
        y_mean: means of the targets, (q,).
        U: left singular vectors, (n, r).
        to_coef: maps right-hand sides c, (r, k), to V diag(s) c, (p, k).
        frequency: whether weights are numbers of copies.
    """

    s2: np.ndarray
    Uty: np.ndarray
    rho2: np.ndarray
    target: np.ndarray
    weights: np.ndarray
    total_weight: float
    n_eff: float
    removed: np.ndarray
    intercept: bool
    x_mean: np.ndarray
    y_mean: np.ndarray
    U: np.ndarray
    to_coef: CoefMap
    frequency: bool = True

    def effective_rows(self, eval_weight: np.ndarray | None = None) -> float:
        """Rows that weighted means of the criteria are worth (Kish): unchanged when importance or evaluation weights
        are scaled; the sum of frequency weights where there are no others."""
        v = np.ones_like(self.weights) if eval_weight is None else eval_weight
        counts, importance = (self.weights, v) if self.frequency else (np.ones_like(v), self.weights * v)
        return float(counts @ importance) ** 2 / float(counts @ np.square(importance))

    @property
    def free(self) -> float:
        """Directions of the sample that the smoother never reaches, n - r (less one for an intercept)."""
        return self.n_eff - self.intercept - self.s2.size

    def damping(self, alpha: np.ndarray) -> np.ndarray:
        """a = alpha / (s^2 + alpha) = 1 - h, never by subtraction; (L, r)."""
        alpha = np.asarray(alpha, dtype=float)[:, None]
        return alpha / (self.s2 + alpha)


def _check_data(X: Any, y: np.ndarray, weights: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
    targets = np.asarray(y, dtype=float)
    targets = targets[:, None] if targets.ndim == 1 else targets
    if targets.ndim != 2 or X.ndim != 2 or X.shape[0] != targets.shape[0]:
        raise ValueError(f"expected X (n, p) and y (n,) or (n, q), got shapes {X.shape} and {np.shape(y)}")
    if X.shape[0] < 1:
        raise ValueError("expected at least 1 row, got 0")
    w = np.ones(X.shape[0]) if weights is None else np.asarray(weights, dtype=float)
    if w.shape != (X.shape[0],):
        raise ValueError(f"expected one weight a row, {X.shape[0]}, got shape {w.shape}")
    if not np.isfinite(w).all() or (w < 0).any():
        raise ValueError(f"sample weights must be finite and >= 0, got {w.min()}")
    if not w.any():
        raise ValueError("all sample weights are zero, expected a positive one")
    return targets, w


def _effective(w: np.ndarray, kind: WeightType) -> tuple[float, np.ndarray]:
    if kind == "frequency":
        return float(w.sum()), np.minimum(w, 1.0)
    if kind == "importance":
        return float((w > 0).sum()), w
    raise ValueError(f"sample_weight_type must be frequency or importance, got {kind!r}")


def decompose(
    X: Any,
    y: np.ndarray,
    *,
    sample_weight: np.ndarray | None = None,
    fit_intercept: bool = True,
    solver: Solver = "auto",
    sample_weight_type: WeightType = "frequency",
    alpha_min: float = np.inf,
) -> Spectrum:
    """One decomposition of the centred, weighted design: eigenvectors of the smaller Gram matrix, or an SVD.

    Cost O(n p min(n, p)). Rows of weight 0 count as absent. Directions with s^2 <= s_max^2 max(n, p) eps are dropped.

    Args:
        X: design, (n, p), dense or scipy sparse (implicitly centred, never made dense).
        y: targets, (n,) or (n, q).
        sample_weight: row weights, (n,), >= 0.
        fit_intercept: centre rows and targets.
        solver: ``"eigh"``, ``"svd"`` (dense only) or ``"auto"``: eigh, unless ``alpha_min`` is so small against
            s_max^2 that squaring would lose it.
        sample_weight_type: ``"frequency"`` (w copies of a row) or ``"importance"``.
        alpha_min: smallest penalty that will be asked for.

    Raises:
        ValueError: for shapes that do not fit, or bad weights.
    """
    from scipy import sparse

    is_sparse = sparse.issparse(X)
    X = X.tocsr() if is_sparse else np.asarray(X, dtype=float)
    targets, w = _check_data(X, y, sample_weight)
    keep = w > 0
    if not keep.all():
        X, targets, w = X[keep], targets[keep], w[keep]
    total = float(w.sum())
    x_mean, y_mean = np.zeros(X.shape[1]), np.zeros(targets.shape[1])
    if fit_intercept:
        x_mean, y_mean = np.asarray(w @ X).ravel() / total, w @ targets / total
    root = np.sqrt(w)
    centred = root[:, None] * (targets - y_mean)
    centred[:, np.abs(centred).max(0) <= 1e-13 * root.max() * np.abs(y_mean)] = (
        0.0  # a constant target is rounding only
    )
    if is_sparse:
        s2, U, to_coef = _sparse_factors(X.astype(float), root, x_mean)
    else:
        Xw = X - x_mean
        if sample_weight is not None:
            Xw *= root[:, None]
        s2, U, to_coef = _dense_factors(Xw, solver, alpha_min)
    n_eff, removed = _effective(w, sample_weight_type)
    frequency = sample_weight_type == "frequency"
    return finish_spectrum(s2, U, to_coef, centred, w, n_eff, removed, fit_intercept, x_mean, y_mean, frequency)


def finish_spectrum(
    s2: np.ndarray,
    U: np.ndarray,
    to_coef: CoefMap,
    target: np.ndarray,
    weights: np.ndarray,
    n_eff: float,
    removed: np.ndarray,
    intercept: bool,
    x_mean: np.ndarray,
    y_mean: np.ndarray,
    frequency: bool,
) -> Spectrum:
    """A :class:`Spectrum` from its factors; the part of the targets outside their span is measured on the residual."""
    Uty = U.T @ target
    outside = target - U @ Uty
    return Spectrum(
        s2=s2,
        Uty=Uty,
        rho2=np.square(outside).sum(0),
        target=target,
        weights=weights,
        total_weight=float(weights.sum()),
        n_eff=n_eff,
        removed=removed,
        intercept=intercept,
        x_mean=x_mean,
        y_mean=y_mean,
        U=U,
        to_coef=to_coef,
        frequency=frequency,
    )


Factors = tuple[np.ndarray, np.ndarray, CoefMap]


def kept_eigenpairs(gram: np.ndarray, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Eigenvalues above the rounding level of a Gram matrix of a design with max(n, p) = ``size``, largest first."""
    # numpy's, not scipy's: their wheels carry a BLAS each, and the threads of two get into each other's way.
    return kept_pairs(*np.linalg.eigh(gram), size)


def kept_pairs(values: np.ndarray, vectors: np.ndarray, size: int) -> tuple[np.ndarray, np.ndarray]:
    """The same from all eigenvalues, ascending, and eigenvectors."""
    order = np.flatnonzero(values > max(values[-1], 0.0) * size * np.finfo(float).eps)[::-1]
    return values[order], vectors[:, order]


def _dense_factors(Xw: np.ndarray, solver: Solver, alpha_min: float) -> Factors:
    n, p = Xw.shape
    if solver not in ("auto", "eigh", "svd"):
        raise ValueError(f"solver must be auto, eigh or svd, got {solver!r}")
    if solver != "svd":
        gram = Xw.T @ Xw if n >= p else Xw @ Xw.T
        s2, vectors = kept_eigenpairs(gram, max(n, p))
        if solver == "eigh" or s2.size == 0 or alpha_min >= SQUARED_CONDITION_GUARD * s2[0]:
            if n >= p:
                return s2, Xw @ (vectors / np.sqrt(s2)), PrimalMap(vectors, np.sqrt(s2))
            return s2, vectors, DualMap(Xw, vectors)
    U, s, Vt = np.linalg.svd(Xw, full_matrices=False)
    r = int((s > (s[0] if s.size else 0.0) * max(n, p) * np.finfo(float).eps).sum())
    U, s, Vt = U[:, :r], s[:r], Vt[:r]
    return s**2, U, PrimalMap(Vt.T, s)


def _sparse_factors(X: Any, root: np.ndarray, x_mean: np.ndarray) -> Factors:
    """Eigenvectors of the smaller Gram matrix of diag(root) (X - 1 x_mean'), without making X dense."""
    from scipy import sparse

    n, p = X.shape
    Xw = sparse.diags_array(root) @ X
    if n >= p:
        centre = np.sqrt(np.square(root).sum()) * x_mean
        s2, V = kept_eigenpairs((Xw.T @ Xw).toarray() - np.outer(centre, centre), n)
        scaled = V / np.sqrt(s2)
        return s2, np.asarray(Xw @ scaled) - np.outer(root, x_mean @ scaled), PrimalMap(V, np.sqrt(s2))
    shift = Xw @ x_mean
    gram = (
        (Xw @ Xw.T).toarray() - np.outer(shift, root) - np.outer(root, shift) + x_mean @ x_mean * np.outer(root, root)
    )
    s2, U = kept_eigenpairs(gram, p)
    return s2, U, DualMap(Xw, U, root, x_mean)


def teacher_coef(spectrum: Spectrum, alpha: float) -> np.ndarray:
    """Ridge coefficients V s / (s^2 + alpha) U'y, (p, q)."""
    return spectrum.to_coef(spectrum.Uty / (spectrum.s2 + alpha)[:, None])


def student_coef(spectrum: Spectrum, alpha: float, mix: np.ndarray) -> np.ndarray:
    r"""Coefficients :math:`\hat\beta + \sum_{j \ge 1} c_j v_j` with :math:`v_j = (I - M)^j \hat\beta`, (p, q).

    ``mix`` is c, (K,) or (K, q); one round with weight xi is c = (-xi).
    """
    a = (alpha / (spectrum.s2 + alpha))[:, None]
    mix = np.asarray(mix, dtype=float)
    mix = mix[:, None] if mix.ndim == 1 else mix
    factor = np.ones((a.shape[0], mix.shape[1]))
    for j, c in enumerate(mix, 1):
        factor = factor + c * a**j
    return spectrum.to_coef(factor * spectrum.Uty / (spectrum.s2 + alpha)[:, None])


# --- residuals of teacher and students ---------------------------------------------------------------------------


def _powers(a: np.ndarray, rounds: int) -> list[np.ndarray]:
    """1 - h^(k+1) = a (1 + h + ... + h^k) for k = 0..rounds, from a = 1 - h."""
    h, total, power = 1 - a, np.ones_like(a), np.ones_like(a)
    found = [a]
    for _ in range(rounds):
        power = power * h
        total = total + power
        found.append(a * total)
    return found


def gcv_scales(spectrum: Spectrum, a: np.ndarray, rounds: int) -> list[np.ndarray]:
    """1 - tr(S^(k+1)) / n for k = 0..rounds with the intercept's degree of freedom, from a of shape (L, r)."""
    if spectrum.free < -1e-9:
        raise ValueError(
            f"the weights sum to {spectrum.n_eff:g}, less than the rank {spectrum.s2.size} of the design: they are no "
            "numbers of copies; use sample_weight_type='importance'"
        )
    return [(x.sum(-1) + spectrum.free) / spectrum.n_eff for x in _powers(a, rounds)]


def loo_series(spectrum: Spectrum, alpha: float, rounds: int) -> list[np.ndarray]:
    r"""Exact leave-one-out residuals as a power series in the penalty (ours), entries (n, q) for orders 0..rounds.

    The residual without row i at penalty alpha + eps is e_i / (1 - h_i) there; its Taylor coefficients c_j give every
    student, since :math:`v_j = (-\alpha)^j \hat\beta^{(j)}(\alpha) / j!` holds for the fit without row i too: the
    residual of :math:`\hat\beta + \sum_j m_j v_j` is :math:`c_0 + \sum_j m_j (-\alpha)^j c_j`. Returned are c_0 and
    (-alpha)^j c_j.
    """
    root = np.sqrt(spectrum.weights)[:, None]
    a = alpha / (spectrum.s2 + alpha)
    h = spectrum.s2 / (spectrum.s2 + alpha)
    U2 = np.square(spectrum.U)
    take = (spectrum.removed / spectrum.weights)[:, None]
    # In units of alpha: (-alpha)^j times the Taylor coefficient of order j.
    numerators = [(spectrum.target - spectrum.U @ (h[:, None] * spectrum.Uty)) / root]
    leverages = [take * (U2 @ h)[:, None]]
    if spectrum.intercept:
        leverages[0] = leverages[0] + (spectrum.removed / spectrum.total_weight)[:, None]
    for j in range(1, rounds + 1):
        numerators.append(-(spectrum.U @ ((h * a**j)[:, None] * spectrum.Uty)) / root)
        leverages.append(take * (U2 @ (h * a**j))[:, None])
    keep = 1 - leverages[0]
    if (keep < LEVERAGE_GUARD).any():
        raise LeverageError(f"a row has leverage {leverages[0].max():.12g}: leaving it out is not determined")
    series: list[np.ndarray] = []
    for j in range(rounds + 1):
        total = numerators[j]
        for i in range(1, j + 1):
            total = total + leverages[i] * series[j - i]
        series.append(total / keep)
    return series


class LeverageError(ValueError):
    """A row that alone determines its own fitted value: leave-one-out does not exist."""


def residuals(spectrum: Spectrum, alpha: float, criterion: Criterion, rounds: int = 1) -> list[np.ndarray]:
    """Residuals whose weighted mean square is the criterion: teacher first, then one direction a round, (n, q) each.

    The first direction is always r - r_pd, so a student has the residuals ``first - xi * direction``. For more
    rounds: with ``"loo"`` the directions belong to v_j, the residual is ``first + sum_j c_j direction_j``; with
        ``"gcv"`` they are r_0 - r_k,
    and it is ``first - sum_k w_k direction_k`` with w_k the weight of M^k beta.
    """
    if criterion == "loo":
        return loo_series(spectrum, alpha, rounds)
    if criterion != "gcv":
        raise ValueError(f"criterion {criterion!r} has no residuals of single rows")
    root = np.sqrt(spectrum.weights)[:, None]
    a = spectrum.damping(np.array([alpha]))
    outside = spectrum.target - spectrum.U @ spectrum.Uty
    found = [
        (outside + spectrum.U @ (x[0][:, None] * spectrum.Uty)) / (root * scale)
        for x, scale in zip(_powers(a, rounds), gcv_scales(spectrum, a, rounds), strict=True)
    ]
    return [found[0], *(found[0] - r for r in found[1:])]


# --- moments over a grid -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Moments:
    """Estimated risks over penalties, (L, q) each: R of the teacher, R - C, and D.

    ``spread`` is the standard error of xi where single residuals are at hand, else NaN.
    """

    R: np.ndarray
    gap: np.ndarray
    D: np.ndarray
    spread: np.ndarray


def gcv_moments(spectrum: Spectrum, alpha: np.ndarray) -> Moments:
    """Generalised cross-validation of teacher and pure-distilled student (equations 17 to 20 of the paper).

    R - C and D are sums of products with r - r_pd, never differences of large numbers.
    """
    a = spectrum.damping(alpha)
    one, two = _powers(a, 1)
    scale_one, scale_two = gcv_scales(spectrum, a, 1)
    r = one / scale_one[:, None]
    # 1/x - 1/y without cancellation: (y - x) / (x y), y - x = sum(a h) / n
    shift = (a * (1 - a)).sum(1) / spectrum.n_eff / (scale_one * scale_two)
    difference = (one * shift[:, None]) - (two - one) / scale_two[:, None]
    energy, n = np.square(spectrum.Uty), spectrum.total_weight
    outer = 1 / scale_one
    R = (np.square(r) @ energy + np.outer(np.square(outer), spectrum.rho2)) / n
    gap = ((r * difference) @ energy + np.outer(outer * shift, spectrum.rho2)) / n
    D = (np.square(difference) @ energy + np.outer(np.square(shift), spectrum.rho2)) / n
    return Moments(R, gap, D, np.full(R.shape, np.nan))


def cp_moments(spectrum: Spectrum, alpha: np.ndarray, sigma2: np.ndarray) -> Moments:
    """Mallows' Cp for fixed rows (ours): unbiased for the in-sample risk plus the noise variance, sigma2 of (q,)."""
    a = spectrum.damping(alpha)
    h, energy, n = 1 - a, np.square(spectrum.Uty), spectrum.total_weight
    df, df_pd = h.sum(1) + spectrum.intercept, np.square(h).sum(1) + spectrum.intercept
    R = (np.square(a) @ energy + spectrum.rho2 + 2 * np.outer(df, sigma2)) / n
    # y - S^2 y = a (1 + h) y: the difference of the residuals is -a h
    gap = (-(np.square(a) * h) @ energy + np.outer(df - df_pd, sigma2)) / n
    D = (np.square(a * h) @ energy) / n
    return Moments(R, gap, D, np.full(R.shape, np.nan))


def estimate_sigma2(spectrum: Spectrum, alpha: np.ndarray) -> np.ndarray:
    """Noise variance from the residuals at the smallest penalty that leaves a tenth of the degrees of freedom, (q,).

    Raises:
        ValueError: if no penalty does.
    """
    a = spectrum.damping(np.sort(alpha))
    left = spectrum.n_eff - spectrum.intercept - (1 - a).sum(1)
    usable = np.flatnonzero(left > 0.1 * spectrum.n_eff)
    if usable.size == 0:
        raise ValueError("every penalty of the grid uses up the degrees of freedom: give sigma2 for criterion='cp'")
    i = usable[0]
    return (np.square(a[i]) @ np.square(spectrum.Uty) + spectrum.rho2) / left[i]


def _moments_of_pairs(
    r: np.ndarray, d: np.ndarray, weights: np.ndarray, rows: float
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """R, R - C, D and the standard error of xi, (L, q), from residuals r and differences d = r - r_pd, (n, L, q)."""
    total = weights.sum()
    root = np.sqrt(weights / total)[:, None, None]
    raw, r, d = d, root * r, root * d

    def mean(x: np.ndarray, y: np.ndarray) -> np.ndarray:
        return np.einsum("nlq,nlq->lq", x, y)

    R, gap, D = mean(r, r), mean(r, d), mean(d, d)
    xi = np.divide(gap, D, out=np.zeros_like(gap), where=D > 0)
    influence = (r - xi * d) * raw
    spread = np.sqrt(mean(influence, influence) / rows)
    return R, gap, D, np.divide(spread, D, out=np.zeros_like(D), where=D > 0)


def loo_moments(spectrum: Spectrum, alpha: np.ndarray, eval_weight: np.ndarray | None = None) -> Moments:
    r"""Moments of exact leave-one-out residuals of both stages (ours), O(n r) a penalty, in blocks of penalties.

    .. math:: loo_i = e_i / (1 - h_i), \quad
              loo_{pd,i} = loo_i + \alpha [q_i - g_i m_i e_i / (1 - h_i)] / (1 - h_i)

    Args:
        spectrum: the decomposition.
        alpha: penalties, (L,).
        eval_weight: extra weight of each row in the means, (n,): density ratio of a target law.

    Raises:
        LeverageError: where leaving a row out is not determined.
    """
    n, q = spectrum.target.shape
    root = np.sqrt(spectrum.weights)
    U, U2 = spectrum.U, np.square(spectrum.U)
    take = (spectrum.removed / spectrum.weights)[:, None]
    base = (spectrum.removed / spectrum.total_weight)[:, None] * spectrum.intercept
    weights = spectrum.weights if eval_weight is None else spectrum.weights * eval_weight
    rows = spectrum.effective_rows(eval_weight)
    parts: list[tuple[np.ndarray, ...]] = []
    block = max(1, CHUNK // (n * q))
    for low in range(0, alpha.size, block):
        a = spectrum.damping(alpha[low : low + block])
        h = 1 - a
        leverage = take * (U2 @ h.T) + base
        slope = take * (U2 @ (a * h).T)
        keep = 1 - leverage
        if (keep < LEVERAGE_GUARD).any():
            raise LeverageError(f"a row has leverage {leverage.max():.12g}: leaving it out is not determined")
        size = a.shape[0]
        fitted = (U @ _columns(h, spectrum.Uty)).reshape(n, size, q)
        moved = (U @ _columns(a * h, spectrum.Uty)).reshape(n, size, q)
        loo = (spectrum.target[:, None, :] - fitted) / (root[:, None] * keep)[..., None]
        # loo - loo_pd = -alpha d loo / d alpha
        difference = (slope[..., None] * loo - moved / root[:, None, None]) / keep[..., None]
        parts.append(_moments_of_pairs(loo, difference, weights, rows))
    return Moments(*(np.concatenate(x) for x in zip(*parts, strict=True)))


def _columns(factors: np.ndarray, Uty: np.ndarray) -> np.ndarray:
    """diag(f_l) Uty side by side for all l, (r, L q)."""
    return (factors.T[:, :, None] * Uty[:, None, :]).reshape(Uty.shape[0], -1)


def holdout_moments(
    spectrum: Spectrum, alpha: np.ndarray, X_val: Any, y_val: np.ndarray, weights: np.ndarray | None = None
) -> Moments:
    """Moments on validation rows, closed form like the others.

    Args:
        spectrum: decomposition of the training rows.
        alpha: penalties, (L,).
        X_val: (m, p), dense or sparse.
        y_val: (m,) or (m, q).
        weights: row weights, (m,).
    """
    y_val = np.asarray(y_val, dtype=float)
    y_val = y_val[:, None] if y_val.ndim == 1 else y_val
    m, q = y_val.shape
    w = np.ones(m) if weights is None else weights
    parts = []
    block = max(1, CHUNK // (max(m, X_val.shape[1]) * q))
    for low in range(0, alpha.size, block):
        some = alpha[low : low + block]
        a, s2 = spectrum.damping(some), spectrum.s2
        inner = np.concatenate(
            [_columns(1 / (s2 + some[:, None]), spectrum.Uty), _columns(a / (s2 + some[:, None]), spectrum.Uty)], 1
        )
        coef = spectrum.to_coef(inner)
        outputs = np.asarray(X_val @ coef - spectrum.x_mean @ coef).reshape(m, 2, some.size, q)
        r = y_val[:, None] - spectrum.y_mean - outputs[:, 0]
        # beta_pd - beta = -v_1, so r - r_pd = x'(beta_pd - beta) = -x'v_1
        parts.append(_moments_of_pairs(r, -outputs[:, 1], w, float(m)))
    return Moments(*(np.concatenate(x) for x in zip(*parts, strict=True)))


# --- mixing weights ----------------------------------------------------------------------------------------------


def optimal_xi(gap: np.ndarray, D: np.ndarray, bounds: tuple[float, float] | None = None) -> np.ndarray:
    r""":math:`\xi^* = (R - C) / D` (proposition 2.1), 0 where D = 0, clipped to ``bounds``."""
    xi = np.divide(gap, D, out=np.zeros_like(gap), where=np.finfo(float).tiny < D)
    return xi if bounds is None else np.clip(xi, *bounds)


def student_risk(R: np.ndarray, gap: np.ndarray, D: np.ndarray, xi: np.ndarray) -> np.ndarray:
    r""":math:`R - 2 \xi (R - C) + \xi^2 D`."""
    return R - 2 * xi * gap + np.square(xi) * D


@dataclass(frozen=True)
class Rounds:
    """K-round students at one penalty.

    Attributes:
        mix: coefficients c of v_1..v_K, (K, q).
        weights: weights w of the students M^j beta, j = 0..K, (K + 1, q), which sum to 1.
        xi: mixing weight of each round, (K, q), NaN where no sequence gives these weights.
        risk: estimated risk, (q,).
    """

    mix: np.ndarray
    weights: np.ndarray
    xi: np.ndarray
    risk: np.ndarray


def binomial_transform(coefficients: np.ndarray) -> np.ndarray:
    """From coefficients of (I - M)^j beta, j = 0..K, to those of M^j beta, or back: it is its own inverse; (K + 1,
    q)."""
    size = coefficients.shape[0]
    transform = np.array([[math.comb(j, i) * (-1) ** i if i <= j else 0 for j in range(size)] for i in range(size)])
    return transform @ coefficients


def round_weights(weights: np.ndarray) -> np.ndarray:
    r"""Mixing weights :math:`\xi_1..\xi_K` of rounds that produce these weights of M^j beta, (K + 1,) -> (K,).

    From the last round back: :math:`\xi_K = 1 - w_0`, the rest divided by it, and so on. NaN where a divisor is below
    1e-12: then no sequence exists.
    """
    K = weights.size - 1
    found, rest = np.full(K, np.nan), weights.astype(float)
    for k in range(K, 0, -1):
        xi = 1 - rest[0]
        found[k - 1] = xi
        if k > 1:
            if abs(xi) < 1e-12:
                return np.full(K, np.nan)
            rest = rest[1:] / xi
    return found


def fit_rounds(
    spectrum: Spectrum,
    alpha: float,
    criterion: Criterion,
    n_rounds: int,
    *,
    xi_mode: XiMode = "shared",
    eval_weight: np.ndarray | None = None,
    sigma2: np.ndarray | None = None,
) -> Rounds:
    """Best affine combination of K rounds at one penalty, by least squares on residuals (ours).

    Args:
        spectrum: the decomposition.
        alpha: penalty.
        criterion: ``"loo"``, ``"gcv"`` or ``"cp"``.
        n_rounds: K, 1 to 5.
        xi_mode: one combination for all targets, or one a target.
        eval_weight: extra row weights of ``"loo"``.
        sigma2: noise variances of ``"cp"``, (q,).
    """
    q = spectrum.target.shape[1]
    groups = [np.arange(q)] if xi_mode == "shared" else [np.array([t]) for t in range(q)]
    if criterion == "cp":
        assert sigma2 is not None
        first, *directions = _cp_residuals(spectrum, alpha, n_rounds)
        drops = _cp_drops(spectrum, alpha, n_rounds)
        linear = np.outer(drops, sigma2) / spectrum.total_weight
    else:
        w = spectrum.weights if eval_weight is None else spectrum.weights * eval_weight
        row = np.sqrt(w / w.sum())[:, None]
        first, *directions = (row * r for r in residuals(spectrum, alpha, criterion, n_rounds))
        linear = np.zeros((n_rounds, q))
        if criterion == "loo":  # there the student's residual is first + sum mix_j direction_j
            directions = [-d for d in directions]
    found, risk = np.zeros((n_rounds, q)), np.zeros(q)
    for group in groups:
        design = np.stack([d[:, group].reshape(-1) for d in directions], axis=1)
        best = _quadratic_minimum(design, first[:, group].reshape(-1), linear[:, group].sum(1))
        found[:, group] = best[:, None]
        left = first[:, group] - sum(x * d[:, group] for x, d in zip(best, directions, strict=True))
        risk[group] = np.square(left).sum(0) - 2 * best @ linear[:, group]
    if criterion == "cp":
        df = (1 - spectrum.damping(np.array([alpha]))).sum() + spectrum.intercept
        risk = risk + 2 * df * np.asarray(sigma2) / spectrum.total_weight
    if criterion == "loo":
        mix = found
        weights = binomial_transform(np.concatenate([np.ones((1, q)), mix]))
    else:
        weights = np.concatenate([1 - found.sum(0, keepdims=True), found])
        mix = binomial_transform(weights)[1:]
    xi = np.stack([round_weights(weights[:, t]) for t in range(q)], axis=1)
    if np.isnan(xi).any():
        warnings.warn(
            "no sequence of round weights gives the best combination: xi is NaN, the mix is kept", stacklevel=3
        )
    return Rounds(mix, weights, xi, risk)


def _cp_residuals(spectrum: Spectrum, alpha: float, rounds: int) -> list[np.ndarray]:
    """y - S y in U coordinates with the part outside them as one more row, and its differences to y - S^(k+1) y."""
    powers = _powers(spectrum.damping(np.array([alpha])), rounds)
    scale = 1 / math.sqrt(spectrum.total_weight)
    first = np.concatenate([powers[0].T * spectrum.Uty, np.sqrt(spectrum.rho2)[None]])
    nothing = np.zeros((1, spectrum.rho2.size))
    return [scale * first, *(scale * np.concatenate([(powers[0] - x).T * spectrum.Uty, nothing]) for x in powers[1:])]


def _cp_drops(spectrum: Spectrum, alpha: float, rounds: int) -> np.ndarray:
    """tr S - tr S^(k+1) for k = 1..rounds."""
    powers = _powers(spectrum.damping(np.array([alpha])), rounds)
    return np.array([(x - powers[0]).sum() for x in powers[1:]])


def _quadratic_minimum(A: np.ndarray, b: np.ndarray, linear: np.ndarray) -> np.ndarray:
    """argmin |b - A x|^2 - 2 linear.x by an SVD of the scaled columns, directions below a relative 1e-8 dropped."""
    if not A.any():
        return np.zeros(A.shape[1])
    scale = np.maximum(np.linalg.norm(A, axis=0), np.finfo(float).tiny)
    U, s, Vt = np.linalg.svd(A / scale, full_matrices=False)
    keep = s > ROUND_RCOND * s[0]
    inner = (U.T @ b)[keep] / s[keep] + (Vt @ (linear / scale))[keep] / np.square(s[keep])
    return Vt[keep].T @ inner / scale


# --- the whole path ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Curvature:
    r"""The test of proposition 2.3 at the penalty lambda* of least risk: a global gain if :math:`D < \lambda^2 R'' /
    2`.

    Attributes:
        alpha: that penalty.
        D: D there.
        threshold: lambda^2 R'' / 2 there.
        gain: whether the best student beats the best ridge (sufficient, not necessary).
    """

    alpha: float
    D: float
    threshold: float
    gain: bool


@dataclass(frozen=True)
class Chosen:
    """A choice along a path.

    Attributes:
        index: position in the path.
        xi: mixing weights, (q,).
        guarded: whether the guard fell back to the plain ridge.
    """

    index: int
    xi: np.ndarray
    guarded: bool


@dataclass(frozen=True)
class SDPath:
    """Estimated risks of ridge and its students along penalties.

    With one target or ``xi_mode="shared"`` the arrays are (L,), sums over targets; with ``"per_target"`` they are
    (L, q).

    Attributes:
        alpha: penalties as given, (L,).
        lam: alpha / W.
        df: degrees of freedom of the teacher, (L,), with the intercept.
        df_pd: the same of the pure-distilled student, tr S^2 (not the square of tr S).
        R: risk of the teacher.
        R_pd: of the pure-distilled student.
        C: cross term.
        D: R + R_pd - 2 C, computed from differences.
        xi: best mixing weight within the bounds.
        xi_se: heuristic standard error of xi (sandwich of the estimating equation), NaN without residuals of rows.
        R_sd: risk of the best student.
        criterion: how risks were estimated.
    """

    alpha: np.ndarray
    lam: np.ndarray
    df: np.ndarray
    df_pd: np.ndarray
    R: np.ndarray
    R_pd: np.ndarray
    C: np.ndarray
    D: np.ndarray
    xi: np.ndarray
    xi_se: np.ndarray
    R_sd: np.ndarray
    criterion: Criterion
    spectrum: Spectrum
    eval_weight: np.ndarray | None = None

    def best(self, select: Select = "joint", guard_se: float = 2.0) -> Chosen:
        """Choose a penalty and a mixing weight.

        Args:
            select: ``"teacher"``: the penalty of least teacher risk, then xi there; ``"joint"``: least student risk.
            guard_se: keep a joint optimum only if the squared errors of single rows are smaller than those of the
                best plain ridge by this many standard errors of the paired mean difference, else return that ridge
                with xi = 0 (ours; where D is tiny the criterion picks a huge xi and overfits). 0 switches it off.
                Needs residuals of rows: with ``"cp"`` and ``"holdout"`` it does not apply.
        """
        if select not in ("joint", "teacher"):
            raise ValueError(f"select must be joint or teacher, got {select!r}")
        q = self.spectrum.target.shape[1]
        total = (lambda x: x.sum(1)) if self.R.ndim == 2 else (lambda x: x)
        ridge = int(np.argmin(total(self.R)))
        index = ridge if select == "teacher" else int(np.argmin(total(self.R_sd)))
        xi = np.broadcast_to(self.xi[index], (q,)).astype(float)
        if select == "joint" and guard_se > 0 and self.criterion in ("loo", "gcv"):
            mean, error = self._paired_gain(ridge, index, xi)
            if not mean > guard_se * error:
                return Chosen(ridge, np.zeros(q), True)
        return Chosen(index, xi, False)

    def _paired_gain(self, ridge: int, index: int, xi: np.ndarray) -> tuple[float, float]:
        """Mean and standard error of the squared errors of the plain ridge minus those of the student."""
        plain = residuals(self.spectrum, float(self.alpha[ridge]), self.criterion)[0]
        first, direction = residuals(self.spectrum, float(self.alpha[index]), self.criterion)
        student = first - xi * direction
        w = self.spectrum.weights if self.eval_weight is None else self.spectrum.weights * self.eval_weight
        gain = (np.square(plain) - np.square(student)).sum(1)
        mean = float(w @ gain / w.sum())
        variance = float(w @ np.square(gain - mean)) / float(w.sum())
        rows = self.spectrum.effective_rows(self.eval_weight)
        return mean, math.sqrt(variance / max(rows - 1, 1e-12))

    def coef(self, i: int, xi: float | np.ndarray | None = None) -> np.ndarray:
        """Coefficients at the i-th penalty, (p, q); ``xi`` defaults to the best one there."""
        q = self.spectrum.target.shape[1]
        chosen = np.broadcast_to(self.xi[i] if xi is None else xi, (q,)).astype(float)
        return student_coef(self.spectrum, float(self.alpha[i]), -chosen[None])

    def curvature_test(self) -> Curvature:
        """The curvature test on estimated risks; needs a grid of at least 5 penalties around the minimum.

        R' is not differenced: R - C = -(lambda / 2) R', so only one numerical derivative is taken, in ln lambda.
        """
        if self.alpha.size < 5:
            raise ValueError(f"the curvature test needs at least 5 penalties, got {self.alpha.size}")
        total = (lambda x: x.sum(1)) if self.R.ndim == 2 else (lambda x: x)
        order = np.argsort(self.alpha)
        log, slope = np.log(self.alpha[order]), -2 * total(self.R - self.C)[order]
        i = int(np.argmin(total(self.R)[order]))
        if i in (0, order.size - 1):
            warnings.warn("the least risk lies at the edge of the grid, where R' is not 0: widen it", stacklevel=2)
        threshold = 0.5 * float(np.gradient(slope, log)[i] - slope[i])
        D = float(total(self.D)[order][i])
        return Curvature(float(self.alpha[order][i]), D, threshold, threshold > D)

    def to_frame(self) -> Any:
        """A pandas frame with one row a penalty (and target)."""
        import pandas as pd

        names = ("R", "R_pd", "C", "D", "xi", "xi_se", "R_sd")
        if self.R.ndim == 1:
            return pd.DataFrame({n: getattr(self, n) for n in ("alpha", "lam", "df", "df_pd", *names)})
        L, q = self.R.shape
        base = {n: np.repeat(getattr(self, n), q) for n in ("alpha", "lam", "df", "df_pd")}
        return pd.DataFrame(
            {**base, "target": np.tile(np.arange(q), L), **{n: getattr(self, n).ravel() for n in names}}
        )


def check_bounds(bounds: tuple[float, float] | None) -> None:
    """Refuse bounds of xi that are not an increasing pair."""
    if bounds is None:
        return
    if len(bounds) != 2 or not bounds[0] < bounds[1]:
        raise ValueError(f"xi_bounds must be (low, high) with low < high, got {bounds}")


def sd_path(
    spectrum: Spectrum,
    alphas: np.ndarray,
    *,
    criterion: Criterion = "loo",
    xi_mode: XiMode = "shared",
    xi_bounds: tuple[float, float] | None = None,
    xi: float | None = None,
    eval_weight: np.ndarray | None = None,
    sigma2: float | np.ndarray | None = None,
    validation: tuple[Any, np.ndarray] | None = None,
    moments: Moments | None = None,
) -> SDPath:
    """Risks of ridge and its best student for every penalty, from one decomposition.

    Args:
        spectrum: see :func:`decompose`.
        alphas: penalties, (L,), on scikit-learn's scale (alpha = lambda W), in any order.
        criterion: ``"loo"``: exact leave-one-out of both stages; ``"gcv"``: the paper's one-shot estimator;
            ``"cp"``: fixed rows; ``"holdout"``: the rows of ``validation``. Leave-one-out falls back to ``"gcv"``
            with a warning where some row's leverage is 1.
        xi_mode: ``"shared"`` (sums over targets) or ``"per_target"``.
        xi_bounds: bounds of xi, applied inside the criterion.
        xi: fixed mixing weight instead of the best one.
        eval_weight: for ``"loo"``: density ratio of a target law at the rows, (n,) (rows of positive sample weight).
        sigma2: for ``"cp"``: noise variance, a number or (q,); estimated when None.
        validation: for ``"holdout"``: X and y.
        moments: estimated elsewhere, instead of those of ``criterion``.

    Raises:
        ValueError: for penalties that are not positive, or options that do not fit the criterion.
    """
    alpha = np.asarray(alphas, dtype=float)
    if alpha.ndim != 1 or alpha.size == 0 or not np.isfinite(alpha).all() or (alpha <= 0).any():
        raise ValueError(f"alphas must be a non-empty 1-d array of positive numbers, got {alphas!r}")
    if criterion not in CRITERIA:
        raise ValueError(f"criterion must be one of {', '.join(CRITERIA)}, got {criterion!r}")
    if eval_weight is not None and criterion != "loo":
        raise ValueError(f"eval_weight needs criterion='loo', got {criterion!r}")
    if (validation is not None) != (criterion == "holdout"):
        raise ValueError(f"validation rows go with criterion='holdout', got criterion {criterion!r}")
    check_bounds(xi_bounds)
    if moments is None:
        moments, criterion = _moments(spectrum, alpha, criterion, eval_weight, sigma2, validation)
    R, gap, D, spread = moments.R, moments.gap, moments.D, moments.spread
    if xi_mode == "shared":
        shared_spread = spread[:, 0] if R.shape[1] == 1 else np.full(alpha.size, np.nan)
        R, gap, D, spread = R.sum(1), gap.sum(1), D.sum(1), shared_spread
    elif xi_mode != "per_target":
        raise ValueError(f"xi_mode must be shared or per_target, got {xi_mode!r}")
    found = optimal_xi(gap, D, xi_bounds) if xi is None else np.full(R.shape, float(xi))
    h = 1 - spectrum.damping(alpha)
    return SDPath(
        alpha=alpha,
        lam=alpha / spectrum.total_weight,
        df=h.sum(1) + spectrum.intercept,
        df_pd=np.square(h).sum(1) + spectrum.intercept,
        R=R,
        R_pd=R - 2 * gap + D,
        C=R - gap,
        D=D,
        xi=found,
        xi_se=spread,
        R_sd=student_risk(R, gap, D, found),
        criterion=criterion,
        spectrum=spectrum,
        eval_weight=eval_weight,
    )


def _moments(
    spectrum: Spectrum,
    alpha: np.ndarray,
    criterion: Criterion,
    eval_weight: np.ndarray | None,
    sigma2: float | np.ndarray | None,
    validation: tuple[Any, np.ndarray] | None,
) -> tuple[Moments, Criterion]:
    match criterion:
        case "loo":
            try:
                return loo_moments(spectrum, alpha, eval_weight), "loo"
            except LeverageError as error:
                warnings.warn(f"{error}; using generalised cross-validation", stacklevel=4)
                return gcv_moments(spectrum, alpha), "gcv"
        case "cp":
            q = spectrum.target.shape[1]
            noise = estimate_sigma2(spectrum, alpha) if sigma2 is None else np.broadcast_to(sigma2, (q,)).astype(float)
            return cp_moments(spectrum, alpha, noise), "cp"
        case "holdout":
            assert validation is not None
            return holdout_moments(spectrum, alpha, *validation), "holdout"
    return gcv_moments(spectrum, alpha), "gcv"


def xi_standard_error(
    spectrum: Spectrum, alpha: float, criterion: Criterion, xi: np.ndarray, shared: bool
) -> np.ndarray:
    """Heuristic standard error of xi at one penalty (ours): sd of psi over sqrt(n) D, psi = r d - xi d^2, (q,).

    It takes residuals for independent; in simulations it was up to three times too wide.
    """
    first, direction = residuals(spectrum, alpha, criterion)
    influence, square = first * direction - xi * np.square(direction), np.square(direction)
    if shared:
        influence, square = influence.sum(1, keepdims=True), square.sum(1, keepdims=True)
    w, total = spectrum.weights[:, None], spectrum.weights.sum()
    D = (w * square).sum(0) / total
    spread = np.sqrt((w * np.square(influence)).sum(0) / total / spectrum.effective_rows())
    return np.broadcast_to(np.divide(spread, D, out=np.zeros_like(D), where=D > 0), xi.shape)
