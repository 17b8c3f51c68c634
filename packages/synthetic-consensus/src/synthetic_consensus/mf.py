r"""The bridging matrix factorisation of Community Notes: exact loss, alternating least squares to convergence, note
solve.

A rating r of rater u and note n in [0, 1] is predicted by :math:`\hat r = \mu + i_u + i_n + f_u \cdot f_n`. The
deployed loss is

.. math:: L = \frac1N \sum (r - \hat r)^2 + \lambda_f \overline{f_u^2} + \lambda_i \overline{i_u^2} + \lambda_f
          \overline{f_n^2} + \lambda_i \overline{i_n^2} + \lambda_\mu \mu^2 + \lambda_\diamond \overline{|f_n i_n|}

with means over *parameters*. Times N, every rater carries the pseudo-counts lambda N / U and every note lambda N /
M, whatever its own number of ratings: this is why a note of few ratings is shrunk hard. Facts about the deployed
scorer are those of the public Community Notes code; the derivations are ours.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Hashable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal

import numpy as np
from numba import njit

Loss = Literal["deployed", "guide"]
Solver = Literal["als", "lbfgs", "torch"]
LAMBDA_INTERCEPT, LAMBDA_FACTOR, LAMBDA_GLOBAL = 0.15, 0.03, 0.15


class DuplicateRatingError(ValueError):
    """The same rater rated the same note twice."""


class EmptyDataError(ValueError):
    """A filter left no ratings."""


class DegenerateFactorWarning(UserWarning):
    """The data carry no polarity: all raters have a factor of the same sign.

    Where all ratings are equal the factor is not 0: it is penalised less than the mean and takes over a part of
    the level.
    """


# --- ratings -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Ratings:
    """Ratings as triples.

    Attributes:
        rater: rater of each rating, int32 (N,).
        note: note of each rating, int32 (N,).
        value: 0 not helpful, 0.5 somewhat, 1 helpful, or anything between, (N,).
        rater_ids: labels of the raters, (U,).
        note_ids: labels of the notes, (M,).
        source: int8 (N,), 1 for ratings of the population sample, or None.
        time: milliseconds, int64 (N,), or None.
    """

    rater: np.ndarray
    note: np.ndarray
    value: np.ndarray
    rater_ids: np.ndarray
    note_ids: np.ndarray
    source: np.ndarray | None = None
    time: np.ndarray | None = None

    @staticmethod
    def of(
        raters: Sequence[Hashable] | np.ndarray,
        notes: Sequence[Hashable] | np.ndarray,
        values: Sequence[float] | np.ndarray,
        *,
        duplicates: Literal["error", "last"] = "error",
        source: np.ndarray | None = None,
        time: np.ndarray | None = None,
    ) -> Ratings:
        """Ratings from labels and values.

        Args:
            raters: labels, (N,).
            notes: labels, (N,).
            values: in [0, 1], (N,).
            duplicates: ``"last"`` keeps the last of several ratings of one note by one rater.
            source: see the class.
            time: see the class.

        Raises:
            ValueError: naming the first bad row.
            DuplicateRatingError: with the number of repeated ratings.
        """
        value = np.asarray(values, dtype=float)
        if value.ndim != 1 or len(raters) != value.size or len(notes) != value.size:
            raise ValueError(f"expected three columns of one length, got {len(raters)}, {len(notes)} and {value.shape}")
        if value.size == 0:
            raise EmptyDataError("expected at least one rating, got none")
        bad = np.flatnonzero(~((value >= 0) & (value <= 1)))
        if bad.size:
            raise ValueError(f"row {bad[0]}: a rating must lie in [0, 1], got {value[bad[0]]}")
        rater_ids, rater = np.unique(np.asarray(raters), return_inverse=True)
        note_ids, note = np.unique(np.asarray(notes), return_inverse=True)
        found = Ratings(rater.astype(np.int32), note.astype(np.int32), value, rater_ids, note_ids, source, time)
        key = found.rater.astype(np.int64) * note_ids.size + found.note
        _, last = np.unique(key[::-1], return_index=True)
        if last.size < key.size:
            if duplicates != "last":
                raise DuplicateRatingError(
                    f"{key.size - last.size} ratings repeat a rater and note; give duplicates='last' to keep "
                    "the last ones"
                )
            return found.take(np.sort(key.size - 1 - last))
        return found

    def take(self, rows: np.ndarray) -> Ratings:
        """Some ratings, with raters and notes that are left without any dropped."""
        rater_at, rater = np.unique(self.rater[rows], return_inverse=True)
        note_at, note = np.unique(self.note[rows], return_inverse=True)
        return Ratings(
            rater.astype(np.int32),
            note.astype(np.int32),
            self.value[rows],
            self.rater_ids[rater_at],
            self.note_ids[note_at],
            None if self.source is None else self.source[rows],
            None if self.time is None else self.time[rows],
        )

    @property
    def n_raters(self) -> int:
        """U."""
        return self.rater_ids.size

    @property
    def n_notes(self) -> int:
        """M."""
        return self.note_ids.size

    @property
    def size(self) -> int:
        """N."""
        return self.value.size

    @property
    def ratio(self) -> float:
        """Ratings a note, k = N / M."""
        return self.size / self.n_notes

    @cached_property
    def by_note(self) -> tuple[np.ndarray, np.ndarray]:
        """Ratings grouped by note: order (N,) and offsets (M + 1,)."""
        return _grouped(self.note, self.n_notes)

    @cached_property
    def by_rater(self) -> tuple[np.ndarray, np.ndarray]:
        """Ratings grouped by rater: order (N,) and offsets (U + 1,)."""
        return _grouped(self.rater, self.n_raters)

    def note_index(self, label: Hashable) -> int:
        """Position of a note.

        Raises:
            KeyError: if no rating of it is here.
        """
        at = np.flatnonzero(self.note_ids == label)
        if at.size == 0:
            raise KeyError(f"no rated note {label!r}; it has no ratings, or a filter dropped it")
        return int(at[0])

    def filter(self, min_per_note: int = 5, min_per_rater: int = 10) -> Ratings:
        """Notes with enough ratings, then raters with enough of what is left; one pass each, as deployed.

        Raises:
            EmptyDataError: naming the filter that left nothing.
        """
        counts = np.bincount(self.note, minlength=self.n_notes)
        rows = np.flatnonzero(counts[self.note] >= min_per_note)
        if rows.size == 0:
            raise EmptyDataError(f"no note has {min_per_note} ratings (the most is {counts.max()})")
        raters = np.bincount(self.rater[rows], minlength=self.n_raters)
        kept = rows[raters[self.rater[rows]] >= min_per_rater]
        if kept.size == 0:
            raise EmptyDataError(f"no rater has {min_per_rater} ratings of the notes kept (the most is {raters.max()})")
        return self.take(kept)

    def stats(self) -> dict[str, float]:
        """Numbers of raters, notes and ratings, ratings a note, shares of the three levels."""
        shares = {f"share of {level:g}": float(np.mean(self.value == level)) for level in (0.0, 0.5, 1.0)}
        return {
            "raters": self.n_raters,
            "notes": self.n_notes,
            "ratings": self.size,
            "ratings a note": self.ratio,
            **shares,
        }


def _grouped(index: np.ndarray, size: int) -> tuple[np.ndarray, np.ndarray]:
    offsets = np.zeros(size + 1, np.int64)
    np.cumsum(np.bincount(index, minlength=size), out=offsets[1:])
    return np.argsort(index, kind="stable"), offsets


# --- parameters and loss -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Parameters:
    """A point of the model: global mean, intercepts (U,) and (M,), factors (U, d) and (M, d)."""

    mu: float
    rater_intercept: np.ndarray
    rater_factor: np.ndarray
    note_intercept: np.ndarray
    note_factor: np.ndarray

    def flat(self) -> np.ndarray:
        """All parameters in one vector."""
        parts = (self.rater_intercept, self.rater_factor.ravel(), self.note_intercept, self.note_factor.ravel())
        return np.concatenate([[self.mu], *parts])

    def unflat(self, vector: np.ndarray) -> Parameters:
        """The point behind a vector in the order of :meth:`flat`."""
        U, d = self.rater_factor.shape
        M = self.note_intercept.size
        cuts = np.cumsum([1, U, U * d, M])
        mu, iu, fu, i_n, f_n = np.split(vector, cuts)
        return Parameters(float(mu[0]), iu, fu.reshape(U, d), i_n, f_n.reshape(M, d))


@dataclass(frozen=True)
class Penalty:
    """Strengths of the penalties; ``diamond`` is for one factor only.

    ``rater_intercept`` and ``rater_factor`` set those of the raters apart; None: the same as the notes'.
    """

    intercept: float = LAMBDA_INTERCEPT
    factor: float = LAMBDA_FACTOR
    mean: float = LAMBDA_GLOBAL
    diamond: float = 0.0
    loss: Loss = "deployed"
    rater_intercept: float | None = None
    rater_factor: float | None = None

    @property
    def rater(self) -> tuple[float, float]:
        """Strengths of the raters' intercepts and factors."""
        i = self.intercept if self.rater_intercept is None else self.rater_intercept
        return i, self.factor if self.rater_factor is None else self.rater_factor

    def __post_init__(self) -> None:
        numbers = (self.intercept, self.factor, *self.rater, self.mean, self.diamond)
        if not all(math.isfinite(x) and x >= 0 for x in numbers) or 0 in numbers[:4]:
            raise ValueError(f"penalties must be finite, intercept and factor > 0, the others >= 0, got {numbers}")
        if self.loss not in ("deployed", "guide"):
            raise ValueError(f"loss must be deployed or guide, got {self.loss!r}")

    def counts(self, ratings: Ratings) -> tuple[np.ndarray, np.ndarray]:
        """Pseudo-counts per unit of lambda of raters and notes, (U,) and (M,), on the scale of summed squares.

        Deployed: N / U and N / M for all. The public guide's formula sums the penalty per rating: the own number of
            ratings.
        """
        if self.loss == "guide":
            return (
                np.bincount(ratings.rater, minlength=ratings.n_raters).astype(float),
                np.bincount(ratings.note, minlength=ratings.n_notes).astype(float),
            )
        return (
            np.full(ratings.n_raters, ratings.size / ratings.n_raters),
            np.full(ratings.n_notes, ratings.size / ratings.n_notes),
        )


def predict(at: Parameters, rater: np.ndarray, note: np.ndarray) -> np.ndarray:
    """Predicted ratings of (rater, note) pairs, (N,)."""
    bridge = np.einsum("nd,nd->n", at.rater_factor[rater], at.note_factor[note])
    return at.mu + at.rater_intercept[rater] + at.note_intercept[note] + bridge


def loss(at: Parameters, ratings: Ratings, penalty: Penalty, weights: np.ndarray | None = None) -> float:
    """The loss L (a mean over ratings); ``weights`` multiply squared errors, (N,)."""
    squares = np.square(ratings.value - predict(at, ratings.rater, ratings.note))
    data = float(squares.sum() if weights is None else weights @ squares)
    raters, notes = penalty.counts(ratings)
    return (data + _ridge(at, penalty, raters, notes)) / ratings.size + penalty.mean * at.mu**2


def _ridge(at: Parameters, penalty: Penalty, raters: np.ndarray, notes: np.ndarray) -> float:
    """N times the penalty without that of the mean, from the pseudo-counts."""
    lam_i, lam_f = penalty.rater
    ridge = lam_i * (raters @ np.square(at.rater_intercept)) + lam_f * (raters @ np.square(at.rater_factor).sum(1))
    ridge += penalty.intercept * (notes @ np.square(at.note_intercept))
    ridge += penalty.factor * (notes @ np.square(at.note_factor).sum(1))
    ridge += penalty.diamond * (notes @ np.abs(at.note_intercept * at.note_factor[:, 0]))
    return float(ridge)


def gradient(at: Parameters, ratings: Ratings, penalty: Penalty, weights: np.ndarray | None = None) -> Parameters:
    """Gradient of the loss, in the shape of the parameters."""
    residual = ratings.value - predict(at, ratings.rater, ratings.note)
    error = -2 * (residual if weights is None else weights * residual) / ratings.size
    raters, notes = (2 * x / ratings.size for x in penalty.counts(ratings))
    d, U, M = at.rater_factor.shape[1], ratings.n_raters, ratings.n_notes

    def gathered(index: np.ndarray, size: int, other: np.ndarray) -> np.ndarray:
        return np.stack([np.bincount(index, error * other[:, k], size) for k in range(d)], axis=1)

    rater_factor = gathered(ratings.rater, U, at.note_factor[ratings.note])
    note_factor = gathered(ratings.note, M, at.rater_factor[ratings.rater])
    note_intercept = np.bincount(ratings.note, error, M) + penalty.intercept * notes * at.note_intercept
    note_factor = note_factor + penalty.factor * notes[:, None] * at.note_factor
    if penalty.diamond:
        sign = np.sign(at.note_intercept * at.note_factor[:, 0])
        note_intercept = note_intercept + penalty.diamond * notes / 2 * sign * at.note_factor[:, 0]
        note_factor[:, 0] += penalty.diamond * notes / 2 * sign * at.note_intercept
    return Parameters(
        float(error.sum()) + 2 * penalty.mean * at.mu,
        np.bincount(ratings.rater, error, U) + penalty.rater[0] * raters * at.rater_intercept,
        rater_factor + penalty.rater[1] * raters[:, None] * at.rater_factor,
        note_intercept,
        note_factor,
    )


# --- one side's exact solve --------------------------------------------------------------------------------------


@njit(cache=True, nogil=True)
def _solve_side(
    low, high, ptr, other, value, weight, mu, intercept, factor, lam_i, lam_f, diamond, out_i, out_f, left, square
):
    """Ridge of (1, factor of the other side) for entities low..high, each its own (d + 1) x (d + 1) system.

    The ratings lie entity by entity between the offsets ``ptr``; intercept and factor are the other side's; an empty
    ``weight`` means 1. ``diamond`` is the weight of |f i| for one factor, 0 otherwise. ``left`` and ``square`` get the
    sums of the residuals without mu and of their squares.
    """
    d = factor.shape[1]
    A, b, x = np.empty((d + 1, d + 1)), np.empty(d + 1), np.empty(d + 1)
    x[0] = 1.0
    for e in range(low, high):
        A[:] = 0.0
        b[:] = 0.0
        for j in range(ptr[e], ptr[e + 1]):
            o = other[j]
            w = weight[j] if weight.size else 1.0
            residual = value[j] - mu - intercept[o]
            for k in range(d):
                x[k + 1] = factor[o, k]
            for k in range(d + 1):
                b[k] += w * residual * x[k]
                for c in range(k + 1):
                    A[k, c] += w * x[k] * x[c]
        A[0, 0] += lam_i[e]
        for k in range(1, d + 1):
            A[k, k] += lam_f[e]
        if d == 1:
            out_i[e], out_f[e, 0] = _two_by_two(A[0, 0], A[1, 0], A[1, 1], b[0], b[1], diamond[e])
        else:
            _cholesky_solve(A, b)
            out_i[e] = b[0]
            for k in range(d):
                out_f[e, k] = b[k + 1]
        total, squares = 0.0, 0.0
        for j in range(ptr[e], ptr[e + 1]):
            o = other[j]
            w = weight[j] if weight.size else 1.0
            rest = value[j] - intercept[o] - out_i[e]
            for k in range(d):
                rest -= out_f[e, k] * factor[o, k]
            total += w * rest
            squares += w * rest * rest
        left[e], square[e] = total, squares


@njit(cache=True, nogil=True)
def _two_by_two(a, c, g, p, q, diamond):
    """argmin of a i^2 + 2 c i f + g f^2 - 2 p i - 2 q f + diamond |f i|: two sign cases and two axes, exact."""
    if diamond == 0.0:
        det = a * g - c * c
        return (g * p - c * q) / det, (a * q - c * p) / det
    best_i, best_f = p / a, 0.0
    best = -p * p / a
    if -q * q / g < best:
        best, best_i, best_f = -q * q / g, 0.0, q / g
    for sign in (-1.0, 1.0):
        off = c + sign * diamond / 2
        det = a * g - off * off
        if det > 0.0:
            i, f = (g * p - off * q) / det, (a * q - off * p) / det
            value = -p * i - q * f
            if sign * i * f > 0.0 and value < best:
                best, best_i, best_f = value, i, f
    return best_i, best_f


@njit(cache=True, nogil=True)
def _cholesky_solve(A, b):
    """Solve in place with the lower triangle of a positive definite matrix."""
    n = b.size
    for k in range(n):
        for c in range(k):
            A[k, k] -= A[k, c] * A[k, c]
        A[k, k] = math.sqrt(A[k, k])
        for r in range(k + 1, n):
            for c in range(k):
                A[r, k] -= A[r, c] * A[k, c]
            A[r, k] /= A[k, k]
    for k in range(n):
        for c in range(k):
            b[k] -= A[k, c] * b[c]
        b[k] /= A[k, k]
    for k in range(n - 1, -1, -1):
        for c in range(k + 1, n):
            b[k] -= A[c, k] * b[c]
        b[k] /= A[k, k]


@dataclass(frozen=True)
class _Side:
    """One side of the alternation: ratings entity by entity, pseudo-counts, spans of the threads."""

    ptr: np.ndarray
    other: np.ndarray
    value: np.ndarray
    weight: np.ndarray
    lam_i: np.ndarray
    lam_f: np.ndarray
    diamond: np.ndarray
    cuts: list[int]

    def solve(
        self, mu: float, intercept: np.ndarray, factor: np.ndarray, pool: ThreadPoolExecutor
    ) -> tuple[np.ndarray, np.ndarray, float, float]:
        """Intercepts and factors of this side, and sums of the residuals without mu and of their squares."""
        size = self.ptr.size - 1
        out_i, out_f = np.empty(size), np.empty((size, factor.shape[1]))
        left, square = np.empty(size), np.empty(size)
        common = (self.ptr, self.other, self.value, self.weight, mu, intercept, np.ascontiguousarray(factor))
        own = (self.lam_i, self.lam_f, self.diamond, out_i, out_f, left, square)
        spans = zip(self.cuts[:-1], self.cuts[1:], strict=True)
        list(pool.map(lambda span: _solve_side(*span, *common, *own), spans))
        return out_i, out_f, float(left.sum()), float(square.sum())


def _side(
    ratings: Ratings,
    of_notes: bool,
    counts: np.ndarray,
    lam: tuple[float, float],
    diamond: float,
    weights: np.ndarray | None,
    jobs: int,
) -> _Side:
    order, ptr = ratings.by_note if of_notes else ratings.by_rater
    cuts = [int(np.searchsorted(ptr, ptr[-1] * j // jobs)) for j in range(jobs)] + [ptr.size - 1]
    other = (ratings.rater if of_notes else ratings.note)[order]
    weight = np.empty(0) if weights is None else np.asarray(weights, dtype=float)[order]
    return _Side(ptr, other, ratings.value[order], weight, lam[0] * counts, lam[1] * counts, diamond * counts, cuts)


def solve_notes_frozen(
    ratings: Ratings,
    mu: float,
    rater_intercept: np.ndarray,
    rater_factor: np.ndarray,
    penalty: Penalty,
    ratio: float,
    weights: np.ndarray | None = None,
    n_jobs: int = 1,
) -> tuple[np.ndarray, np.ndarray]:
    """Final scoring: every note's intercept and factor with raters and mean frozen, exact, (M,) and (M, d).

    Args:
        ratings: all ratings of the notes.
        mu: global mean.
        rater_intercept: (U,).
        rater_factor: (U, d).
        penalty: strengths; ``loss="guide"`` uses each note's own number of ratings.
        ratio: ratings a note of the fit that the raters come from (k), not that of ``ratings``.
        weights: of ratings, (N,).
        n_jobs: threads.
    """
    counts = penalty.counts(ratings)[1] if penalty.loss == "guide" else np.full(ratings.n_notes, float(ratio))
    own = (penalty.intercept, penalty.factor)
    with ThreadPoolExecutor(n_jobs) as pool:
        side = _side(ratings, True, counts, own, penalty.diamond, weights, n_jobs)
        return side.solve(mu, rater_intercept, rater_factor, pool)[:2]


# --- alternating least squares -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Fit:
    """A fitted model: parameters, loss, its course, whether it converged, norm of the gradient."""

    parameters: Parameters
    loss: float
    curve: list[float]
    converged: bool
    kkt: float


def random_start(ratings: Ratings, n_factors: int, rng: np.random.Generator) -> Parameters:
    """Rater factors uniform in +-sqrt(6 / (U + 1)), everything else 0, as deployed."""
    bound = math.sqrt(6 / (ratings.n_raters + 1))
    return Parameters(
        0.0,
        np.zeros(ratings.n_raters),
        rng.uniform(-bound, bound, (ratings.n_raters, n_factors)),
        np.zeros(ratings.n_notes),
        np.zeros((ratings.n_notes, n_factors)),
    )


def alternating_least_squares(
    ratings: Ratings,
    penalty: Penalty,
    start: Parameters,
    *,
    weights: np.ndarray | None = None,
    tol: float = 1e-9,
    max_iter: int = 500,
    n_jobs: int = 1,
) -> Fit:
    """Alternate exact solves of notes, raters and mean until the loss moves by less than ``tol``.

    After each sweep factors are rescaled between the sides, which leaves predictions and lowers the penalty (not with a
    diamond, which sees the scale). O(N d^2) a sweep; memory: 12 bytes a rating for each side and 8 for its grouping.

    Args:
        ratings: the data.
        penalty: strengths.
        start: where to begin; only the rater side and mu are used.
        weights: multiply squared errors, (N,).
        tol: change of the loss that counts as converged.
        max_iter: sweeps at most.
        n_jobs: threads.
    """
    total = float(ratings.value.size if weights is None else np.sum(weights))
    raters, notes = penalty.counts(ratings)
    own = (penalty.intercept, penalty.factor)
    at, curve = start, [loss(start, ratings, penalty, weights)]
    with ThreadPoolExecutor(n_jobs) as pool:
        note_side = _side(ratings, True, notes, own, penalty.diamond, weights, n_jobs)
        rater_side = _side(ratings, False, raters, penalty.rater, 0.0, weights, n_jobs)
        for _ in range(max_iter):
            i_n, f_n, *_rest = note_side.solve(at.mu, at.rater_intercept, at.rater_factor, pool)
            i_u, f_u, left, square = rater_side.solve(at.mu, i_n, f_n, pool)
            if penalty.diamond == 0:
                f_u, f_n = _rescaled(f_u, f_n, penalty.rater[1] * raters, penalty.factor * notes)
            mu = left / (total + penalty.mean * ratings.size)
            at = Parameters(mu, i_u, f_u, i_n, f_n)
            data = square - 2 * mu * left + mu * mu * total
            curve.append((data + _ridge(at, penalty, raters, notes)) / ratings.size + penalty.mean * mu**2)
            if abs(curve[-2] - curve[-1]) < tol:
                break
    slope = gradient(at, ratings, penalty, weights).flat()
    exact = loss(at, ratings, penalty, weights)
    return Fit(at, exact, curve, abs(curve[-2] - curve[-1]) < tol, float(np.linalg.norm(slope)))


def _rescaled(f_u: np.ndarray, f_n: np.ndarray, raters: np.ndarray, notes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    rater_norm, note_norm = raters @ np.square(f_u).sum(1), notes @ np.square(f_n).sum(1)
    if rater_norm <= 0 or note_norm <= 0:
        return f_u, f_n
    scale = (note_norm / rater_norm) ** 0.25
    return scale * f_u, f_n / scale


def quasi_newton(
    ratings: Ratings, penalty: Penalty, start: Parameters, *, weights: np.ndarray | None = None, max_iter: int = 5000
) -> Fit:
    """Minimise the loss by L-BFGS on all parameters at once (no diamond, which is not smooth)."""
    from scipy.optimize import minimize

    if penalty.diamond:
        raise ValueError("solver='lbfgs' cannot treat the diamond penalty; use 'als'")
    curve: list[float] = []

    def both(vector: np.ndarray) -> tuple[float, np.ndarray]:
        at = start.unflat(vector)
        curve.append(loss(at, ratings, penalty, weights))
        return curve[-1], gradient(at, ratings, penalty, weights).flat()

    found = minimize(
        both, start.flat(), jac=True, method="L-BFGS-B", options={"maxiter": max_iter, "ftol": 1e-15, "gtol": 1e-9}
    )
    at = start.unflat(found.x)
    return Fit(at, float(found.fun), curve, bool(found.success), float(np.linalg.norm(found.jac)))


def deployed_optimiser(
    ratings: Ratings,
    penalty: Penalty,
    start: Parameters,
    *,
    weights: np.ndarray | None = None,
    learning_rate: float = 1.0,
    max_iter: int = 3000,
    tol: float = 1e-7,
) -> Fit:
    """The optimiser of the deployed scorer, for like-with-like comparison: Adam in float32, rate 1 (0.2 from a warm
    start), gradient norm clipped at 1, stopped when the loss moves by at most ``tol`` or rises after 100 epochs."""
    try:
        import torch
    except ImportError:
        raise ImportError("solver='torch' needs torch: pip install 'papershelf-synthetic-consensus[torch]'") from None

    def tensor(x: np.ndarray) -> torch.Tensor:
        return torch.tensor(x, dtype=torch.float32, requires_grad=True)

    mu = tensor(np.array([start.mu]))
    i_u, f_u, i_n, f_n = (
        tensor(x) for x in (start.rater_intercept, start.rater_factor, start.note_intercept, start.note_factor)
    )
    everything = [mu, i_u, f_u, i_n, f_n]
    rater, note = torch.from_numpy(ratings.rater.astype(np.int64)), torch.from_numpy(ratings.note.astype(np.int64))
    value = torch.tensor(ratings.value, dtype=torch.float32)
    scale = None if weights is None else torch.tensor(weights, dtype=torch.float32)
    adam, curve, converged = torch.optim.Adam(everything, lr=learning_rate), [], False
    counts = [torch.tensor(x / ratings.size, dtype=torch.float32) for x in penalty.counts(ratings)]
    for epoch in range(max_iter):
        adam.zero_grad()
        error = (value - mu - i_u[rater] - i_n[note] - (f_u[rater] * f_n[note]).sum(1)).square()
        total = (error if scale is None else scale * error).mean() + penalty.mean * mu.square().sum()
        own = (penalty.intercept, penalty.factor)
        for intercept, factor, count, lam in ((i_u, f_u, counts[0], penalty.rater), (i_n, f_n, counts[1], own)):
            total = total + lam[0] * (count * intercept.square()).sum()
            total = total + lam[1] * (count[:, None] * factor.square()).sum()
        total = total + penalty.diamond * (counts[1] * (i_n * f_n[:, 0]).abs()).sum()
        total.backward()
        torch.nn.utils.clip_grad_norm_(everything, 1.0)
        adam.step()
        curve.append(float(total.detach()))
        if epoch and (abs(curve[-2] - curve[-1]) <= tol or (epoch > 100 and curve[-1] > curve[-2])):
            converged = True
            break
    arrays = [x.detach().numpy().astype(float) for x in everything]
    at = Parameters(float(arrays[0][0]), *arrays[1:])
    slope = gradient(at, ratings, penalty, weights).flat()
    return Fit(at, loss(at, ratings, penalty, weights), curve, converged, float(np.linalg.norm(slope)))


# --- the estimator -----------------------------------------------------------------------------------------------


@dataclass
class BridgingMF:
    """The bridging model, fitted to convergence.

    Args:
        n_factors: d, 1 in production.
        lam_intercept: penalty of intercepts.
        lam_factor: penalty of factors.
        lam_global: penalty of the mean.
        lam_diamond: penalty of |f_n i_n| (one factor only).
        loss: ``"deployed"`` (means over parameters) or ``"guide"`` (the public guide's sum per rating).
        solver: ``"als"``, ``"lbfgs"`` or ``"torch"`` (the deployed optimiser, for comparison).
        n_init: random starts; the lowest loss is kept (the loss is not convex).
        tol: change of the loss that counts as converged.
        max_iter: sweeps, iterations or epochs at most; None: 500, 5,000, 3,000.
        random_state: seed of the starts.
        n_jobs: threads of ``"als"``.

    Attributes:
        mu_: global mean.
        rater_intercept_: (U,).
        rater_factor_: (U, d).
        note_intercept_: (M,), the notes' helpfulness scores.
        note_factor_: (M, d), their polarity.
        loss_: loss.
        loss_curve_: its course in the best start.
        losses_: final loss of every start.
        n_iter_: sweeps of the best start.
        converged_: whether it converged.
        kkt_: norm of the gradient there.
        ratio_: ratings a note of the training ratings.
        ratings_: the training ratings.
    """

    n_factors: int = 1
    lam_intercept: float = LAMBDA_INTERCEPT
    lam_factor: float = LAMBDA_FACTOR
    lam_global: float = LAMBDA_GLOBAL
    lam_diamond: float = 0.0
    loss: Loss = "deployed"
    solver: Solver = "als"
    n_init: int = 3
    tol: float = 1e-9
    max_iter: int | None = None
    random_state: int | None = None
    n_jobs: int = 1
    ratings_: Ratings | None = field(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        if not 1 <= self.n_factors <= 8 or self.n_init < 1:
            raise ValueError(f"need 1 <= n_factors <= 8 and n_init >= 1, got {self.n_factors} and {self.n_init}")
        if self.solver not in ("als", "lbfgs", "torch"):
            raise ValueError(f"solver must be als, lbfgs or torch, got {self.solver!r}")
        if self.lam_diamond and self.n_factors > 1:
            raise ValueError("the diamond penalty is defined for one factor")
        _ = self.penalty

    @property
    def penalty(self) -> Penalty:
        """Strengths of the penalties."""
        return Penalty(self.lam_intercept, self.lam_factor, self.lam_global, self.lam_diamond, self.loss)

    @property
    def parameters(self) -> Parameters:
        """Fitted parameters."""
        return Parameters(self.mu_, self.rater_intercept_, self.rater_factor_, self.note_intercept_, self.note_factor_)

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """The constructor's arguments."""
        names = [f for f in self.__dataclass_fields__ if not f.endswith("_")]
        return {name: getattr(self, name) for name in names}

    def fit(
        self,
        ratings: Ratings | Any,
        sample_weight: np.ndarray | None = None,
        start: Parameters | None = None,
    ) -> BridgingMF:
        """Fit to ratings: :class:`Ratings`, a frame with the columns rater, note and value, or a tuple of three
        columns.

        Args:
            ratings: the data; not filtered here, see :meth:`Ratings.filter`.
            sample_weight: multiply squared errors, (N,), positive.
            start: begin here instead of at random (then a single start).
        """
        data = as_ratings(ratings)
        if sample_weight is not None:
            sample_weight = np.asarray(sample_weight, dtype=float)
            if sample_weight.shape != (data.size,) or not (sample_weight > 0).all():
                raise ValueError(f"expected {data.size} positive weights, got shape {sample_weight.shape}")
        rng = np.random.default_rng(self.random_state)
        starts = [start] if start is not None else [random_start(data, self.n_factors, rng) for _ in range(self.n_init)]
        fits = [self._minimise(data, at, sample_weight, start is not None) for at in starts]
        best = min(fits, key=lambda fit: fit.loss)
        self.losses_ = [fit.loss for fit in fits]
        self._take(data, _oriented(best.parameters))
        self.loss_, self.loss_curve_, self.n_iter_ = best.loss, best.curve, len(best.curve) - 1
        self.converged_, self.kkt_ = best.converged, best.kkt
        if not best.converged:
            warnings.warn(
                f"the loss still moved by more than {self.tol:g} after {self.n_iter_} iterations", stacklevel=2
            )
        if self.n_factors == 1 and self.rater_factor_.min() * self.rater_factor_.max() >= -1e-9:
            warnings.warn(
                "the factor carries no polarity: all raters are on one side", DegenerateFactorWarning, stacklevel=2
            )
        return self

    def _minimise(self, data: Ratings, at: Parameters, weights: np.ndarray | None, warm: bool) -> Fit:
        match self.solver:
            case "als":
                return alternating_least_squares(
                    data,
                    self.penalty,
                    at,
                    weights=weights,
                    tol=self.tol,
                    max_iter=self.max_iter or 500,
                    n_jobs=self.n_jobs,
                )
            case "lbfgs":
                return quasi_newton(data, self.penalty, at, weights=weights, max_iter=self.max_iter or 5000)
        rate = 0.2 if warm else 1.0
        return deployed_optimiser(
            data, self.penalty, at, weights=weights, learning_rate=rate, max_iter=self.max_iter or 3000
        )

    def _take(self, data: Ratings, at: Parameters) -> None:
        self.ratings_, self.ratio_ = data, data.ratio
        self.mu_, self.rater_intercept_, self.rater_factor_ = at.mu, at.rater_intercept, at.rater_factor
        self.note_intercept_, self.note_factor_ = at.note_intercept, at.note_factor

    def predict(self, raters: np.ndarray, notes: np.ndarray) -> np.ndarray:
        """Predicted ratings of pairs of positions, (n,)."""
        return predict(self.parameters, np.asarray(raters), np.asarray(notes))

    def score_notes(
        self, ratings: Ratings | None = None, ratio: float | None = None, weights: np.ndarray | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Frozen final scoring of the notes in ``ratings`` (by raters of the fit): intercepts (M',) and factors (M',
        d).

        Args:
            ratings: default the training ratings; raters that the fit does not know are left out.
            ratio: pseudo-counts a note; default that of the fit.
            weights: of ratings.
        """
        data, at = self._known(self.ratings_ if ratings is None else ratings)
        return solve_notes_frozen(
            data,
            self.mu_,
            self.rater_intercept_[at],
            self.rater_factor_[at],
            self.penalty,
            self.ratio_ if ratio is None else ratio,
            weights,
            self.n_jobs,
        )

    def _known(self, ratings: Ratings | None) -> tuple[Ratings, np.ndarray]:
        """Ratings by raters of the fit, and where each rater of them stands in the fit."""
        assert self.ratings_ is not None
        if ratings is None or ratings is self.ratings_:
            return self.ratings_, np.arange(self.ratings_.n_raters)
        known = np.isin(ratings.rater_ids, self.ratings_.rater_ids)
        if not known.any():
            raise EmptyDataError("no rater of these ratings was in the fit")
        data = ratings if known.all() else ratings.take(np.flatnonzero(known[ratings.rater]))
        return data, np.searchsorted(self.ratings_.rater_ids, data.rater_ids)

    def partial_fit_notes(self, new: Ratings) -> BridgingMF:
        """Add ratings by known raters and score all notes again, raters frozen, the ratio of the fit kept."""
        assert self.ratings_ is not None
        old = self.ratings_
        joined = Ratings.of(
            np.concatenate([old.rater_ids[old.rater], new.rater_ids[new.rater]]),
            np.concatenate([old.note_ids[old.note], new.note_ids[new.note]]),
            np.concatenate([old.value, new.value]),
            duplicates="last",
        )
        unknown = np.setdiff1d(new.rater_ids, old.rater_ids)
        if unknown.size:
            raise KeyError(f"{unknown.size} raters were not in the fit, the first is {unknown[0]!r}")
        ratio = self.ratio_
        i_n, f_n = self.score_notes(joined)
        self.ratings_, self.ratio_, self.note_intercept_, self.note_factor_ = joined, ratio, i_n, f_n
        return self


def as_ratings(data: Any) -> Ratings:
    """Ratings from what :meth:`BridgingMF.fit` accepts."""
    if isinstance(data, Ratings):
        return data
    if hasattr(data, "columns"):
        missing = [name for name in ("rater", "note", "value") if name not in data.columns]
        if missing:
            raise ValueError(f"expected the columns rater, note and value, missing {', '.join(missing)}")
        return Ratings.of(data["rater"].to_numpy(), data["note"].to_numpy(), data["value"].to_numpy())
    if isinstance(data, tuple) and len(data) == 3:
        return Ratings.of(*data)
    raise ValueError(f"expected Ratings, a frame or three columns, got {type(data).__name__}")


def _oriented(at: Parameters) -> Parameters:
    """Signs so that at least half of the raters with a factor have a negative one, as deployed."""
    moved = at.rater_factor
    sign = np.where((moved > 0).sum(0) > (moved < 0).sum(0), -1.0, 1.0)
    return replace(at, rater_factor=moved * sign, note_factor=at.note_factor * sign)
