r"""Closed-form fits of additive models on a basis of memberships: moments, ridge with GCV or exact leave-one-out,
logistic.

All works on weighted moments of the centred basis, :math:`G = \Phi^T W \Phi` and :math:`b = \Phi^T W Y`, gathered
in one pass of chunks, so memory is one chunk and M x M numbers (section M7).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from scipy.linalg import cholesky, solve_triangular
from scipy.optimize import minimize, nnls
from scipy.special import logsumexp, softmax

CHUNK = 2**22  # numbers of the basis held at a time
ALPHAS = np.logspace(-3, 3, 25)
LOG_ALPHAS = np.logspace(-2, 2, 9)
NEWTON = 500  # unknowns up to which the logistic fit takes Newton steps
GROUP_LAMBDAS = np.geomspace(0.4, 0.005, 18)
Basis = Callable[[np.ndarray], np.ndarray]


def chunks(n: int, width: int) -> Iterator[slice]:
    """Slices of rows of at most ``CHUNK`` numbers."""
    rows = max(1, CHUNK // max(1, width))
    for start in range(0, n, rows):
        yield slice(start, start + rows)


@dataclass(frozen=True)
class Moments:
    """Weighted first and second moments of a basis (n, M) and targets (n, O)."""

    weight: float
    basis: np.ndarray
    target: np.ndarray
    gram: np.ndarray
    cross: np.ndarray
    square: np.ndarray

    @classmethod
    def of(cls, basis: Basis, X: np.ndarray, Y: np.ndarray, weight: np.ndarray, width: int) -> Moments:
        """Gathered in chunks from rows of X, Y and weights."""
        total = cls(
            0.0,
            np.zeros(width),
            np.zeros(Y.shape[1]),
            np.zeros((width, width)),
            np.zeros((width, Y.shape[1])),
            np.zeros(Y.shape[1]),
        )
        for rows in chunks(len(X), width):
            phi, y, w = basis(X[rows]), Y[rows], weight[rows, None]
            total = total + cls(
                float(w.sum()), (w * phi).sum(0), (w * y).sum(0), phi.T @ (w * phi), phi.T @ (w * y), (w * y * y).sum(0)
            )
        return total

    def __add__(self, other: Moments) -> Moments:
        return Moments(
            self.weight + other.weight,
            self.basis + other.basis,
            self.target + other.target,
            self.gram + other.gram,
            self.cross + other.cross,
            self.square + other.square,
        )

    @property
    def means(self) -> tuple[np.ndarray, np.ndarray]:
        """Of the basis and of the targets."""
        return self.basis / self.weight, self.target / self.weight

    def centred(self, columns: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Gram, cross moments and squares about the means, of some columns of the basis."""
        phi, y = self.means
        gram = self.gram[np.ix_(columns, columns)] - self.weight * np.outer(phi[columns], phi[columns])
        cross = self.cross[columns] - self.weight * np.outer(phi[columns], y)
        return gram, cross, np.maximum(self.square - self.weight * y * y, 0.0)


class Fit(NamedTuple):
    """Coefficients (M, O) of the uncentred basis, intercept (O,), penalty, and the score that chose it, for every
    penalty."""

    coef: np.ndarray
    intercept: np.ndarray
    alpha: float
    scores: np.ndarray


def smoothness(sizes: Sequence[int], ordered: Sequence[bool], amount: float) -> np.ndarray:
    """I + amount D'D, D the second differences of every ordered feature's coefficients, shape (M, M)."""
    width = int(np.sum(sizes))
    penalty, start = np.eye(width), 0
    for size, is_ordered in zip(sizes, ordered, strict=True):
        if is_ordered and size > 2:
            D = np.diff(np.eye(size), n=2, axis=0)
            penalty[start : start + size, start : start + size] += amount * D.T @ D
        start += size
    return penalty


def ridge(
    moments: Moments,
    columns: np.ndarray,
    alphas: np.ndarray,
    penalty: np.ndarray | None = None,
    leverage: Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray] | None = None,
) -> Fit:
    r"""Minimise :math:`\sum_i w_i \|y_i - b - \theta^T\phi_i\|^2 + \alpha\, \theta^T P \theta`, alpha by GCV or
    leave-one-out.

    GCV is :math:`(RSS/W) / (1 - df/W)^2` with df = 1 + trace of the smoother, each output on the scale of its variance.

    Args:
        moments: of basis and targets.
        columns: columns of the basis that take part; the coefficients of the others are 0.
        alphas: candidates.
        penalty: P on those columns; None for the identity.
        leverage: (directions, eigenvalues, alphas) -> leave-one-out errors, one an alpha; None for GCV.
    """
    width, outputs = len(moments.basis), len(moments.target)
    coef = np.zeros((width, outputs))
    phi, y = moments.means
    if len(columns) == 0:
        return Fit(coef, y.copy(), float(alphas[0]), np.zeros(len(alphas)))
    gram, cross, square = moments.centred(columns)
    root = None if penalty is None else cholesky(penalty, lower=False)
    if root is not None:  # theta = R^-1 psi
        gram = solve_triangular(root, solve_triangular(root, gram, trans="T").T, trans="T").T
        cross = solve_triangular(root, cross, trans="T")
    values, vectors = np.linalg.eigh(gram)
    values = np.maximum(values, 0.0)
    rotated = vectors.T @ cross
    shrunk = [rotated / (values + a)[:, None] for a in alphas]
    if leverage is None:
        scale = np.where(square > 0, square, 1.0)
        scores = []
        for a, s in zip(alphas, shrunk, strict=True):
            rss = square - 2 * (s * rotated).sum(0) + (values[:, None] * s * s).sum(0)
            free = 1 - (1 + float((values / (values + a)).sum())) / moments.weight
            scores.append(float((np.maximum(rss, 0) / scale).mean()) / max(free, 1e-12) ** 2)
        scores = np.array(scores)
    else:
        directions = vectors if root is None else solve_triangular(root, vectors)
        scores = leverage(directions, values, rotated)
    best = int(np.argmin(scores))
    psi = vectors @ shrunk[best]
    coef[columns] = psi if root is None else solve_triangular(root, psi)
    return Fit(coef, y - phi @ coef, float(alphas[best]), scores)


def leave_one_out(
    basis: Basis,
    X: np.ndarray,
    Y: np.ndarray,
    weight: np.ndarray,
    moments: Moments,
    columns: np.ndarray,
    alphas: np.ndarray,
) -> Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray]:
    """The exact leave-one-out error of every alpha, from the diagonals of the smoothers, for ``ridge(leverage=)``."""
    phi, y = moments.means

    def errors(directions: np.ndarray, values: np.ndarray, rotated: np.ndarray) -> np.ndarray:
        total = np.zeros(len(alphas))
        variance = np.where(moments.square > 0, moments.square - moments.weight * y * y, 1.0)
        variance = np.where(variance > 0, variance, 1.0)
        for rows in chunks(len(X), len(phi)):
            scores = (basis(X[rows])[:, columns] - phi[columns]) @ directions
            w, target = weight[rows], Y[rows] - y
            for i, a in enumerate(alphas):
                h = w * (1 / moments.weight + np.square(scores) @ (1 / (values + a)))
                residual = target - scores @ (rotated / (values + a)[:, None])
                left_out = residual / np.maximum(1 - h, 1e-12)[:, None]
                total[i] += float((w[:, None] * left_out**2 / variance).sum())
        return total / Y.shape[1]

    return errors


def constrained(
    moments: Moments, columns: np.ndarray, alpha: float, slopes: np.ndarray, penalty: np.ndarray | None = None
) -> Fit:
    r"""The ridge fit with :math:`S\theta \ge 0` (monotone shape functions), exactly, through its dual.

    With H = G + alpha P = L L^T, the dual of the quadratic program is the non-negative least squares problem
    :math:`\min_{\lambda\ge0} \|L^{-1}S^T\lambda + L^{-1}b\|^2`, and :math:`\theta = H^{-1}(b + S^T\lambda)`.

    Args:
        moments, columns, penalty: as in ``ridge``; one output.
        alpha: penalty.
        slopes: S, derivatives of the shape functions on a grid (times the wanted sign), shape (g, number of columns).
    """
    gram, cross, _ = moments.centred(columns)
    P = np.eye(len(columns)) if penalty is None else penalty
    root = cholesky(gram + alpha * P + 1e-10 * np.trace(gram) / max(1, len(gram)) * np.eye(len(gram)), lower=True)
    S = slopes / np.maximum(np.linalg.norm(slopes, axis=1, keepdims=True), 1e-300)
    phi, y = moments.means
    coef = np.zeros((len(moments.basis), len(moments.target)))
    for o in range(cross.shape[1]):
        half = solve_triangular(root, cross[:, o], lower=True)
        A = solve_triangular(root, S.T, lower=True)
        multipliers, _ = nnls(A, -half, maxiter=50 * A.shape[1])
        coef[columns, o] = solve_triangular(root, half + A @ multipliers, lower=True, trans="T")
    return Fit(coef, y - phi @ coef, alpha, np.array([]))


class _Softmax:
    """Penalised multinomial deviance in coordinates in which its Hessian is near the identity."""

    def __init__(
        self,
        Z: np.ndarray,
        onehot: np.ndarray,
        weight: np.ndarray,
        alpha: float,
        precondition: np.ndarray,
        tolerance: float,
    ) -> None:
        self.Z, self.Y, self.w, self.alpha, self.T, self.tolerance = Z, onehot, weight, alpha, precondition, tolerance
        self.m, self.c = Z.shape[1], onehot.shape[1]

    def split(self, flat: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Coefficients (M, C) and intercept (C,)."""
        u = flat.reshape(self.m + 1, self.c)
        return self.T @ u[:-1], u[-1]

    def __call__(self, flat: np.ndarray) -> tuple[float, np.ndarray]:
        theta, b = self.split(flat)
        logits = self.Z @ theta + b
        norm = logsumexp(logits, axis=1)
        loss = float((self.w * (norm - (logits * self.Y).sum(1))).sum()) + 0.5 * self.alpha * float(
            np.square(theta).sum()
        )
        error = self.w[:, None] * (np.exp(logits - norm[:, None]) - self.Y)
        grad = self.T.T @ (self.Z.T @ error + self.alpha * theta)
        return loss, np.concatenate([grad, error.sum(0, keepdims=True)]).ravel()

    def minimise(self, theta: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Coefficients and intercept at the minimum, from a start: Newton where that is small, else L-BFGS."""
        if self.c * (self.m + 1) <= NEWTON:
            return self._newton(theta, b)
        u = np.linalg.lstsq(self.T, theta, rcond=None)[0] if theta.any() else theta
        start = np.concatenate([u, b[None]]).ravel()
        options = {"maxiter": 1000, "gtol": 1e-6, "ftol": 1e-13}
        return self.split(minimize(self, start, jac=True, method="L-BFGS-B", options=options).x)

    def _value(self, theta: np.ndarray, b: np.ndarray) -> float:
        logits = self.Z @ theta + b
        fit = float((self.w * (logsumexp(logits, axis=1) - (logits * self.Y).sum(1))).sum())
        return fit + 0.5 * self.alpha * float(np.square(theta).sum())

    def _newton(self, theta: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Damped Newton steps; the sum of the intercepts, which the softmax does not see, stays 0.

        Two classes have opposite coefficients, so one of them is the whole problem.
        """
        A = np.concatenate([self.Z, np.ones((len(self.Z), 1))], 1)
        size, pair = self.m + 1, self.c == 2
        shrink = np.full(size, self.alpha)
        shrink[-1] = 0.0
        if pair:
            half = (theta[:, 1] - theta[:, 0]) / 2, (b[1] - b[0]) / 2
            theta, b = np.stack([-half[0], half[0]], 1), np.array([-half[1], half[1]])
        u, value = np.concatenate([theta, b[None]]), self._value(theta, b)
        for _ in range(100):
            p = softmax(A @ u, axis=1)
            grad = A.T @ (self.w[:, None] * (p - self.Y)) + shrink[:, None] * u
            if pair:
                v = self.w * p[:, 1] * p[:, 0]
                H = 2 * (A.T @ (v[:, None] * A)) + np.diag(shrink)
                H[np.diag_indices(size)] += 1e-12 * np.trace(H) / size
                one = np.linalg.solve(H, grad[:, 1])
                step = np.stack([-one, one], 1)
            else:
                step = self._step(A, p, grad, shrink)
            slope, t = float((grad * step).sum()), 1.0
            found = value
            while t > 1e-8:
                new = u - t * step
                found = self._value(new[:-1], new[-1])
                if found <= value - 1e-4 * t * slope:
                    break
                t /= 2
            else:
                break
            u, gain, value = new, value - found, found
            if gain <= self.tolerance * max(1.0, abs(value)):
                break
        return u[:-1], u[-1]

    def _step(self, A: np.ndarray, p: np.ndarray, grad: np.ndarray, shrink: np.ndarray) -> np.ndarray:
        size = A.shape[1]
        H = np.zeros((self.c, size, self.c, size))
        for k in range(self.c):
            for j in range(k, self.c):
                v = self.w * p[:, k] * ((k == j) - p[:, j])
                block = A.T @ (v[:, None] * A)
                H[k, :, j, :], H[j, :, k, :] = block, block.T
            H[k, :, k, :] += np.diag(shrink)
        H = H.reshape(self.c * size, -1)
        last = np.arange(size - 1, self.c * size, size)
        H[np.ix_(last, last)] += max(float(self.w.sum()), 1.0)
        H[np.diag_indices_from(H)] += 1e-12 * np.trace(H) / len(H)
        return np.linalg.solve(H, grad.T.ravel()).reshape(self.c, size).T


def content_folds(Phi: np.ndarray, codes: np.ndarray, folds: int) -> np.ndarray:
    """A fold of every row that depends on its memberships and class only.

    Equal rows share a fold, so a row of weight 2 is the same as two rows; order and units of the features do not
    matter.
    """
    direction = np.sin(1.0 + np.arange(Phi.shape[1]) * 1.6180339887)
    mixed = 997.0 * (Phi @ direction) + 0.6180339887 * codes
    return np.floor(folds * (mixed - np.floor(mixed))).astype(int) % folds


def _held_out_deviance(
    Z: np.ndarray, onehot: np.ndarray, weight: np.ndarray, fold: np.ndarray, alphas: np.ndarray
) -> np.ndarray:
    """Mean deviance of held-out rows for decreasing alphas; infinite after two rises in a row."""
    total = np.zeros(len(alphas))
    live = [k for k in np.unique(fold) if (onehot[fold != k].sum(0) > 0).sum() > 1]
    states: dict[int, Any] = {}
    for i, alpha in enumerate(alphas):
        for k in live:
            train, test = fold != k, fold == k
            if k not in states:
                share = np.clip((weight[train, None] * onehot[train]).sum(0) / weight[train].sum(), 1e-9, None)
                scale = np.linalg.eigh(Z[train].T @ (weight[train, None] * Z[train])) if Z.shape[1] else None
                states[k] = [np.zeros((Z.shape[1], onehot.shape[1])), np.log(share) - np.log(share).mean(), scale]
            theta, b, scale = states[k]
            T = scale[1] / np.sqrt(0.2 * np.maximum(scale[0], 0) + alpha) if scale is not None else np.zeros((0, 0))
            problem = _Softmax(Z[train], onehot[train], weight[train], float(alpha), T, 1e-6)
            theta, b = problem.minimise(theta, b)
            states[k][:2] = theta, b
            logits = Z[test] @ theta + b
            total[i] += float((weight[test] * (logsumexp(logits, axis=1) - (logits * onehot[test]).sum(1))).sum())
        if i > 1 and total[i] > total[i - 1] > total[i - 2]:
            total[i + 1 :] = np.inf
            break
    return total / weight.sum()


def logistic(
    Phi: np.ndarray,
    onehot: np.ndarray,
    weight: np.ndarray,
    columns: np.ndarray,
    alphas: np.ndarray,
    penalty: np.ndarray | None = None,
) -> Fit:
    r"""Penalised multinomial logistic regression, alpha by five-fold cross-validation of the deviance.

    Minimises :math:`\sum_i w_i(-\log p_{y_i}) + \frac\alpha2 \theta^T P \theta`. Folds depend on the rows' content
    (``content_folds``), so nothing is random.

    Args:
        Phi: basis, shape (n, M).
        onehot: classes, shape (n, C).
        weight: of the rows.
        columns: columns that take part.
        alphas: candidates, tried from the largest down with warm starts, until the deviance has risen twice.
        penalty: P on those columns.
    """
    classes, total = onehot.shape[1], float(weight.sum())
    centre = (weight[:, None] * Phi).sum(0) / total
    Z = (Phi - centre)[:, columns]
    root = None if penalty is None else cholesky(penalty, lower=False)
    if root is not None:
        Z = solve_triangular(root, Z.T, trans="T").T
    decreasing = np.sort(alphas)[::-1]
    scores = np.zeros(1)
    if len(decreasing) > 1:
        scores = _held_out_deviance(Z, onehot, weight, content_folds(Phi, onehot.argmax(1), 5), decreasing)
    alpha = float(decreasing[int(np.argmin(scores))])
    values, vectors = np.linalg.eigh(Z.T @ (weight[:, None] * Z)) if len(columns) else (np.zeros(0), np.zeros((0, 0)))
    share = np.clip((weight[:, None] * onehot).sum(0) / total, 1e-9, None)
    problem = _Softmax(Z, onehot, weight, alpha, vectors / np.sqrt(0.2 * np.maximum(values, 0) + alpha), 1e-15)
    theta, b = problem.minimise(np.zeros((len(columns), classes)), np.log(share) - np.log(share).mean())
    coef = np.zeros((Phi.shape[1], classes))
    coef[columns] = theta if root is None else solve_triangular(root, theta)
    b = b - b.mean()
    coef = coef - coef.mean(1, keepdims=True)
    return Fit(coef, b - centre @ coef, alpha, scores)


# --- sparse choice of features -------------------------------------------------------------------------------------


def group_lasso(
    gram: np.ndarray, cross: np.ndarray, groups: Sequence[np.ndarray], lam: float, start: np.ndarray
) -> np.ndarray:
    r"""Minimise :math:`\frac12 tr(\theta^T G\theta) - tr(\theta^T b) + \lambda\sum_g \sqrt{|g|}\,\|\theta_g\|_F`.

    Exact block coordinate descent: the blocks are whitened (G is the identity inside each, or 0 in directions without
    variance), so the minimum over one block is a shrinkage in closed form. Blocks that are 0 are looked at once a
    round only.

    Args:
        gram: G, shape (M, M).
        cross: b, shape (M, O).
        groups: columns of every block.
        lam: penalty.
        start: warm start, shape (M, O).
    """
    theta = start.copy()
    residual = cross - gram @ theta
    sizes = np.sqrt([len(g) for g in groups])

    def sweep(members: Sequence[int]) -> float:
        largest = 0.0
        for n in members:
            g = groups[n]
            pulled = residual[g] + theta[g]
            norm = float(np.linalg.norm(pulled))
            limit = lam * sizes[n]
            new = pulled * (1 - limit / norm) if norm > limit else np.zeros_like(pulled)
            step = new - theta[g]
            change = float(np.abs(step).max(initial=0))
            if change > 0:
                residual[:] -= gram[:, g] @ step
                theta[g] = new
                largest = max(largest, change)
        return largest

    every = range(len(groups))
    for _ in range(200):
        if sweep(every) < 1e-6:
            break
        active = [n for n in every if theta[groups[n]].any()]
        for _ in range(100):
            if sweep(active) < 1e-6:
                break
    return theta


def _whitener(gram: np.ndarray, groups: Sequence[np.ndarray]) -> np.ndarray:
    T = np.zeros_like(gram)
    for g in groups:
        values, vectors = np.linalg.eigh(gram[np.ix_(g, g)])
        floor = max(float(values[-1]), 1e-300) * 1e-8
        scale = np.where(values > floor, 1 / np.sqrt(np.maximum(values, floor)), 0.0)
        T[np.ix_(g, g)] = vectors * scale
    return T


def choose_features(
    Phi: np.ndarray,
    Y: np.ndarray,
    weight: np.ndarray,
    groups: Sequence[np.ndarray],
    rng: np.random.Generator,
    lambdas: np.ndarray = GROUP_LAMBDAS,
    folds: int = 5,
) -> tuple[np.ndarray, dict[str, Any]]:
    """Features that a group lasso keeps at the one-standard-error rule of a cross-validation.

    Blocks of terms are centred and whitened, outputs standardised, and the penalty of a block is sqrt(size).

    Args:
        Phi: basis, shape (n, M).
        Y: targets, shape (n, O).
        weight: of the rows.
        groups: columns of every feature.
        rng: of the folds.
        lambdas: decreasing.
        folds: of the cross-validation.

    Returns:
        Booleans, one a feature, and the path (lambda, error, standard error, number of features).
    """
    n = len(Phi)
    if n < 2 * folds:
        raise ValueError(f"choosing features needs at least {2 * folds} rows, got {n}")
    Y = (Y - np.average(Y, axis=0, weights=weight)) / np.maximum(Y.std(axis=0), 1e-12)
    fold = rng.permutation(n) % min(folds, n)

    def path(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, list[np.ndarray]]:
        w = weight[rows, None]
        centre, mean = (
            np.average(Phi[rows], axis=0, weights=weight[rows]),
            np.average(Y[rows], axis=0, weights=weight[rows]),
        )
        Z, R = Phi[rows] - centre, Y[rows] - mean
        gram, cross = Z.T @ (w * Z) / w.sum(), Z.T @ (w * R) / w.sum()
        T = _whitener(gram, groups)
        gram, cross = T.T @ gram @ T, T.T @ cross
        theta, found = np.zeros_like(cross), []
        for lam in lambdas:
            theta = group_lasso(gram, cross, groups, float(lam), theta)
            found.append(theta)
        return centre, mean, T, found

    errors = np.zeros((int(fold.max()) + 1, len(lambdas)))
    for k in range(len(errors)):
        centre, mean, T, found = path(fold != k)
        Z, R, w = (Phi[fold == k] - centre) @ T, Y[fold == k] - mean, weight[fold == k]
        errors[k] = [np.average(np.square(R - Z @ theta).mean(1), weights=w) for theta in found]
    mean, error = errors.mean(0), errors.std(0, ddof=1) / np.sqrt(len(errors))
    best = int(np.argmin(mean))
    chosen = int(np.flatnonzero(mean <= mean[best] + error[best])[0])
    _, _, _, found = path(np.ones(n, dtype=bool))
    kept = np.array([bool(np.abs(found[chosen][g]).max(initial=0) > 0) for g in groups])
    sizes = [int(sum(np.abs(theta[g]).max(initial=0) > 0 for g in groups)) for theta in found]
    return kept, {"lambda": lambdas, "error": mean, "standard_error": error, "features": sizes, "chosen": chosen}


# --- pairs ---------------------------------------------------------------------------------------------------------


def pair_block(one: np.ndarray, two: np.ndarray, tnorm: str) -> np.ndarray:
    """Memberships of all pairs of terms, (n, K1 K2), product or minimum."""
    a, b = one[:, :, None], two[:, None, :]
    return (a * b if tnorm == "product" else np.minimum(a, b)).reshape(len(one), -1)


def choose_pairs(
    Phi: np.ndarray, groups: Sequence[np.ndarray], residual: np.ndarray, weight: np.ndarray, number: int, tnorm: str
) -> list[tuple[int, int]]:
    """Pairs of features whose product terms explain most of the residual, by GCV of a ridge fit of the block alone."""
    found = []
    total = float(weight.sum())
    R = residual - np.average(residual, axis=0, weights=weight)
    whole = float((weight[:, None] * R * R).sum())
    for i in range(len(groups)):
        for j in range(i + 1, len(groups)):
            block = pair_block(Phi[:, groups[i]], Phi[:, groups[j]], tnorm)
            block = block - np.average(block, axis=0, weights=weight)
            gram, cross = block.T @ (weight[:, None] * block), block.T @ (weight[:, None] * R)
            values, vectors = np.linalg.eigh(gram)
            values, rotated = np.maximum(values, 0), vectors.T @ cross
            shrink = 1 / (values + 1.0)
            gain = float(((2 * shrink - values * shrink**2)[:, None] * rotated**2).sum())
            df = 1 + float((values * shrink).sum())
            found.append(((whole - gain) / total / max(1 - df / total, 1e-9) ** 2, i, j))
    return [(i, j) for _, i, j in sorted(found)[:number]]
