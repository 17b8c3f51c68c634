r"""What a rating does to a note, in closed form (ours).

With raters frozen a note is a 2 x 2 ridge on the sufficient statistics :math:`S = (m, \sum f, \sum f^2, \sum e, \sum
f e)`, :math:`e = r - \mu - i_u`. One more rating :math:`x = (1, f_*)`, residual :math:`\rho = e_* - i_n - f_* f_n`,
moves the intercept by

.. math:: \Delta i_n = \frac{\sum f^2 + \Lambda_f - f_* \sum f}{\det A} \cdot \frac{\rho}{1 + x' A^{-1} x}.

So a rating below its prediction *raises* the intercept iff :math:`f_* \sum f > \sum f^2 + \Lambda_f` (the paradox):
an extreme same-side rater who rejects a note makes it look less partisan.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from synthetic_consensus.mf import BridgingMF, Fit, Parameters, Ratings, alternating_least_squares, predict

Mode = Literal["frozen", "influence", "refit"]
LEVELS = np.array([0.0, 0.5, 1.0])


@dataclass(frozen=True)
class NoteStats:
    """Sufficient statistics of notes with raters frozen, for one factor.

    Attributes:
        S: m, sum f, sum f^2, sum e, sum f e, (M, 5).
        counts: ratings by side (f < 0, f >= 0) and level (0, between, 1), int64 (M, 2, 3).
    """

    S: np.ndarray
    counts: np.ndarray

    @staticmethod
    def of(ratings: Ratings, mu: float, rater_intercept: np.ndarray, rater_factor: np.ndarray) -> NoteStats:
        """Statistics of all notes; rater_factor is (U,) or (U, 1)."""
        factor = rater_factor.reshape(-1)
        if factor.size != ratings.n_raters:
            raise ValueError(
                f"statistics are for one factor, expected {ratings.n_raters} rater factors, got {factor.size}"
            )
        f, e = factor[ratings.rater], ratings.value - mu - rater_intercept[ratings.rater]
        M = ratings.n_notes
        S = np.stack([np.bincount(ratings.note, x, M) for x in (np.ones_like(f), f, f * f, e, f * e)], axis=1)
        cell = (ratings.note * 2 + (f >= 0)) * 3 + _level(ratings.value)
        return NoteStats(S, np.bincount(cell, minlength=6 * M).reshape(M, 2, 3))

    def added(self, note: int, f: np.ndarray, e: np.ndarray, value: np.ndarray) -> NoteStats:
        """Statistics of one note with more ratings, M = 1."""
        S, counts = self.S[note].copy(), self.counts[note].copy()
        S += np.array([f.size, f.sum(), f @ f, e.sum(), f @ e])
        np.add.at(counts, ((f >= 0).astype(int), _level(value)), 1)
        return NoteStats(S[None], counts[None])


def _level(value: np.ndarray) -> np.ndarray:
    return np.where(value == 0, 0, np.where(value == 1, 2, 1))


def model_stats(model: BridgingMF, ratings: Ratings | None = None) -> NoteStats:
    """Statistics of the notes of ``ratings`` (default: the training ratings) under a fitted model of one factor."""
    data, at = model._known(ratings)
    return NoteStats.of(data, model.mu_, model.rater_intercept_[at], model.rater_factor_[at])


@dataclass(frozen=True)
class Shrinkage:
    """Pseudo-counts of a note: Lambda_i and Lambda_f."""

    intercept: float
    factor: float

    @staticmethod
    def of(model: BridgingMF, ratio: float | None = None) -> Shrinkage:
        """Of a fitted model, or at another ratio of ratings to notes."""
        k = model.ratio_ if ratio is None else ratio
        return Shrinkage(model.lam_intercept * k, model.lam_factor * k)


def solve_notes(S: np.ndarray, shrink: Shrinkage) -> tuple[np.ndarray, np.ndarray]:
    """Intercepts and factors of notes from their statistics (..., 5), exact."""
    m, f, ff, e, fe = np.moveaxis(S, -1, 0)
    a, g = m + shrink.intercept, ff + shrink.factor
    det = a * g - f * f
    return (g * e - f * fe) / det, (a * fe - f * e) / det


def add_effect(
    S: np.ndarray, f: np.ndarray | float, e: np.ndarray | float, shrink: Shrinkage
) -> tuple[np.ndarray, np.ndarray]:
    """Changes of intercept and factor by one more rating, closed form; arguments broadcast against S[..., 0].

    Args:
        S: statistics, (..., 5).
        f: rater factor of the new rating.
        e: its value less mu and the rater's intercept.
        shrink: pseudo-counts.
    """
    return _moved(S, f, e, shrink, 1.0)


def remove_effect(
    S: np.ndarray, f: np.ndarray | float, e: np.ndarray | float, shrink: Shrinkage
) -> tuple[np.ndarray, np.ndarray]:
    """Changes of intercept and factor when a rating that S contains is taken out, closed form."""
    return _moved(S, f, e, shrink, -1.0)


def _moved(
    S: np.ndarray, f: np.ndarray | float, e: np.ndarray | float, shrink: Shrinkage, sign: float
) -> tuple[np.ndarray, np.ndarray]:
    m, sf, sff = S[..., 0], S[..., 1], S[..., 2]
    a, g = m + shrink.intercept, sff + shrink.factor
    det = a * g - sf * sf
    intercept, factor = solve_notes(S, shrink)
    u, v = (g - f * sf) / det, (a * f - sf) / det  # A^-1 (1, f)
    leverage = u + f * v
    scale = sign * (e - intercept - f * factor) / (1 + sign * leverage)
    return u * scale, v * scale


def flip_point(S: np.ndarray, shrink: Shrinkage) -> np.ndarray:
    """The rater factor beyond which a rating below its prediction raises the intercept, (sum f^2 + Lambda_f) / sum f.

    Signed: raters past it on the side of its sign; infinite where the factors of the note's raters sum to 0.
    """
    with np.errstate(divide="ignore"):
        return (S[..., 2] + shrink.factor) / S[..., 1]


@dataclass(frozen=True)
class Paradox:
    """Notes that a NotHelpful rating can raise.

    Attributes:
        leverage: largest rise by a rater past the flip point, predicted above 0, (M,); 0 where there is none.
        residual: largest rise by a rater who was predicted below 0, (M,).
        rater: rater that raises most, int (M,), -1 where nobody does.
        crosses: whether such a rating alone carries the note over the threshold, bool (M,).
    """

    leverage: np.ndarray
    residual: np.ndarray
    rater: np.ndarray
    crosses: np.ndarray

    @property
    def share(self) -> float:
        """Share of notes with a raising NotHelpful."""
        return float(np.mean(self.rater >= 0))


def paradox_table(
    stats: NoteStats,
    mu: float,
    rater_intercept: np.ndarray,
    rater_factor: np.ndarray,
    shrink: Shrinkage,
    threshold: float = 0.4,
) -> Paradox:
    """For every note, what a NotHelpful rating from each of the given positions would do, in blocks of notes.

    Args:
        stats: of the notes.
        mu: global mean.
        rater_intercept: of the positions, (P,).
        rater_factor: (P,) or (P, 1).
        shrink: pseudo-counts.
        threshold: intercept of a helpful note.
    """
    f, e = rater_factor.reshape(-1), -mu - rater_intercept
    M = len(stats.S)
    leverage, residual, rater = np.zeros(M), np.zeros(M), np.full(M, -1)
    block = max(1, (1 << 21) // f.size)
    for low in range(0, M, block):
        S = stats.S[low : low + block, None, :]
        change, _ = add_effect(S, f, e, shrink)
        intercept, factor = solve_notes(S, shrink)
        below = e - intercept - f * factor < 0
        rise = np.maximum(change, 0.0)
        rows = slice(low, low + block)
        leverage[rows] = np.where(below, rise, 0.0).max(axis=1)
        residual[rows] = np.where(below, 0.0, rise).max(axis=1)
        best = rise.argmax(axis=1)
        rater[rows] = np.where(rise.max(axis=1) > 1e-12, best, -1)
    before, _ = solve_notes(stats.S, shrink)
    crosses = (before < threshold) & (before + np.maximum(leverage, residual) >= threshold)
    return Paradox(leverage, residual, rater, crosses)


# --- raters not frozen -------------------------------------------------------------------------------------------


def hessian_product(at: Parameters, ratings: Ratings, model: BridgingMF, v: Parameters) -> Parameters:
    """Hessian of N L (no diamond) times a direction, O(N d)."""
    left = ratings.value - predict(at, ratings.rater, ratings.note)
    u, n = ratings.rater, ratings.note
    along = v.mu + v.rater_intercept[u] + v.note_intercept[n]
    along = along + (v.rater_factor[u] * at.note_factor[n]).sum(1) + (at.rater_factor[u] * v.note_factor[n]).sum(1)
    raters, notes = model.penalty.counts(ratings)
    U, M, d = ratings.n_raters, ratings.n_notes, at.rater_factor.shape[1]

    def side(index: np.ndarray, size: int, mine: np.ndarray, moved: np.ndarray) -> np.ndarray:
        return np.stack([np.bincount(index, along * mine[:, k] - left * moved[:, k], size) for k in range(d)], axis=1)

    p = model.penalty
    return Parameters(
        2 * float(along.sum()) + 2 * p.mean * ratings.size * v.mu,
        2 * np.bincount(u, along, U) + 2 * p.rater[0] * raters * v.rater_intercept,
        2 * side(u, U, at.note_factor[n], v.note_factor[n]) + 2 * p.rater[1] * raters[:, None] * v.rater_factor,
        2 * np.bincount(n, along, M) + 2 * p.intercept * notes * v.note_intercept,
        2 * side(n, M, at.rater_factor[u], v.rater_factor[u]) + 2 * p.factor * notes[:, None] * v.note_factor,
    )


def influence(model: BridgingMF, rater: int, note: int, value: float) -> Parameters:
    r"""First-order change of all parameters by one more rating, pseudo-counts held (ours).

    :math:`\Delta = (H + 2 J J')^{-1} 2 \rho J` with H the Hessian of N L and J the derivative of the new prediction;
    without the :math:`2 J J'` term (the plain influence function) a rating of some leverage is overstated by 10 to
    20 %.
    """
    from scipy.sparse.linalg import LinearOperator, cg

    assert model.ratings_ is not None
    ratings, at = model.ratings_, model.parameters
    zero = at.unflat(np.zeros(at.flat().size))
    i_u, f_u, i_n, f_n = (
        x.copy() for x in (zero.rater_intercept, zero.rater_factor, zero.note_intercept, zero.note_factor)
    )
    i_u[rater], i_n[note] = 1.0, 1.0
    f_u[rater], f_n[note] = at.note_factor[note], at.rater_factor[rater]
    J = Parameters(1.0, i_u, f_u, i_n, f_n).flat()
    rho = value - float(predict(at, np.array([rater]), np.array([note]))[0])

    def product(vector: np.ndarray) -> np.ndarray:
        plain = hessian_product(at, ratings, model, at.unflat(np.ravel(vector))).flat()
        return plain + 2 * J * (J @ np.ravel(vector)) + 1e-8 * np.ravel(vector)

    operator = LinearOperator
    found, info = cg(operator((J.size, J.size), matvec=product), 2 * rho * J, rtol=1e-9, maxiter=5000)  # ty: ignore
    if info:
        raise ValueError("the influence of a rating could not be solved for")
    return at.unflat(found)


def refit(model: BridgingMF, rater: int, note: int, value: float) -> Fit:
    """Warm refit with one more rating, pseudo-counts of the old fit held: the reference of :func:`influence`."""
    assert model.ratings_ is not None
    old = model.ratings_
    grown = Ratings(
        np.append(old.rater, np.int32(rater)),
        np.append(old.note, np.int32(note)),
        np.append(old.value, value),
        old.rater_ids,
        old.note_ids,
    )
    ones = np.ones(grown.value.size)
    return alternating_least_squares(
        _Held(grown, old), model.penalty, model.parameters, weights=ones, tol=1e-13, max_iter=3000
    )


class _Held(Ratings):
    """Ratings whose pseudo-counts are those of others."""

    def __init__(self, ratings: Ratings, held: Ratings) -> None:
        for name in Ratings.__dataclass_fields__:
            object.__setattr__(self, name, getattr(ratings, name))
        object.__setattr__(self, "_held", held.size)

    @property
    def size(self) -> int:
        """N of the other ratings: it enters the loss through pseudo-counts only."""
        return self._held  # ty: ignore[missing-attribute]


def effect(
    model: BridgingMF,
    note: int,
    value: float,
    *,
    rater: int | None = None,
    factor: float | None = None,
    intercept: float = 0.0,
    mode: Mode = "frozen",
) -> tuple[float, float]:
    """Change of a note's intercept and factor by one more rating.

    Args:
        model: fitted, one factor for ``"frozen"``.
        note: position of the note.
        value: the rating.
        rater: an existing rater (needed by ``"influence"`` and ``"refit"``); or
        factor: the position of a new one, with
        intercept: its intercept.
        mode: ``"frozen"``: raters fixed, as in final scoring, closed form; ``"influence"``: first order, raters move
            too; ``"refit"``: exact, raters move too.
    """
    if (rater is None) == (factor is None):
        raise ValueError(f"give either rater or factor, got rater={rater}, factor={factor}")
    if not 0 <= value <= 1:
        raise ValueError(f"a rating must lie in [0, 1], got {value}")
    if mode == "frozen":
        if rater is not None:
            factor, intercept = float(model.rater_factor_[rater, 0]), float(model.rater_intercept_[rater])
        assert factor is not None
        S = model_stats(model).S[note]
        change = add_effect(S, factor, value - model.mu_ - intercept, Shrinkage.of(model))
        return float(change[0]), float(change[1])
    if rater is None:
        raise ValueError(f"mode={mode!r} needs an existing rater, got a position")
    if mode == "influence":
        moved = influence(model, rater, note, value)
        return float(moved.note_intercept[note]), float(moved.note_factor[note, 0])
    if mode != "refit":
        raise ValueError(f"mode must be frozen, influence or refit, got {mode!r}")
    after = refit(model, rater, note, value).parameters
    sign = np.sign(after.rater_factor[:, 0] @ model.rater_factor_[:, 0]) or 1.0
    return (
        float(after.note_intercept[note] - model.note_intercept_[note]),
        float(sign * after.note_factor[note, 0] - model.note_factor_[note, 0]),
    )
