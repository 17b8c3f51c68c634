r"""Membership functions, Type-1 and interval Type-2, and partitions of features into linguistic terms (numpy only).

A Type-2 set is given by its lower and upper membership, :math:`\mu_{lo} \le \mu_{up}`; the area between is the
footprint of uncertainty. Every function broadcasts its arguments.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

Kind = Literal["gaussian", "triangle", "bell", "sigmoid", "trapezoid", "singleton", "missing"]
KINDS = ("gaussian", "triangle", "bell", "sigmoid", "trapezoid", "singleton", "missing")
FuzzyType = Literal["t1", "it2", "it2-mean"]
FUZZY_TYPES = ("t1", "it2", "it2-mean")
WIDTH = 0.85  # share of the distance of neighbouring centres
LABELS = {
    1: ("any",),
    2: ("low", "high"),
    3: ("low", "medium", "high"),
    4: ("low", "medium low", "medium high", "high"),
    5: ("very low", "low", "medium", "high", "very high"),
}


def gaussian(x: np.ndarray, c: Any, s: Any) -> np.ndarray:
    """exp(-(x-c)^2 / (2 s^2))."""
    return np.exp(-0.5 * np.square((x - c) / s))


def sigmoid(x: np.ndarray, c: Any, a: Any) -> np.ndarray:
    """1 / (1 + exp(-a (x-c))); a > 0 rises, a < 0 falls."""
    return 0.5 * (1 + np.tanh(0.5 * a * (x - c)))


def triangle(x: np.ndarray, c: Any, s: Any) -> np.ndarray:
    """max(0, 1 - |x-c| / s)."""
    return np.maximum(0.0, 1 - np.abs(x - c) / s)


def bell(x: np.ndarray, c: Any, s: Any, beta: Any = 1.0) -> np.ndarray:
    """1 / (1 + |(x-c)/s|^(2 beta))."""
    return 1 / (1 + np.abs((x - c) / s) ** (2 * beta))


def trapezoid(x: np.ndarray, a: Any, b: Any, c: Any, d: Any) -> np.ndarray:
    """0 up to a, rising to 1 at b, 1 up to c, falling to 0 at d; a <= b <= c <= d."""
    rise = np.where(b > a, (x - a) / np.where(b > a, b - a, 1.0), np.where(x >= a, 1.0, 0.0))
    fall = np.where(d > c, (d - x) / np.where(d > c, d - c, 1.0), np.where(x <= d, 1.0, 0.0))
    return np.clip(np.minimum(rise, fall), 0.0, 1.0)


def singleton(x: np.ndarray, level: Any) -> np.ndarray:
    """1 where x is the level, else 0."""
    return (x == level).astype(float)


def it2_gaussian(x: np.ndarray, c: Any, s_lo: Any, s_up: Any) -> tuple[np.ndarray, np.ndarray]:
    """Gaussian of uncertain width, s_lo <= s_up: (lower, upper)."""
    return gaussian(x, c, s_lo), gaussian(x, c, s_up)


def _mean_bounds(
    lower: np.ndarray, upper: np.ndarray, x: np.ndarray, c_lo: Any, c_up: Any
) -> tuple[np.ndarray, np.ndarray]:
    inside = (x >= c_lo) & (x <= c_up)
    return np.minimum(lower, upper), np.where(inside, 1.0, np.maximum(lower, upper))


def it2_gaussian_mean(x: np.ndarray, c_lo: Any, c_up: Any, s: Any) -> tuple[np.ndarray, np.ndarray]:
    """Gaussian of uncertain mean, c_lo <= c_up: the upper membership is 1 between the means."""
    return _mean_bounds(gaussian(x, c_lo, s), gaussian(x, c_up, s), x, c_lo, c_up)


def it2_bell(x: np.ndarray, c: Any, s_lo: Any, s_up: Any, beta: Any = 1.0) -> tuple[np.ndarray, np.ndarray]:
    """Bell of uncertain width, s_lo <= s_up: (lower, upper)."""
    return bell(x, c, s_lo, beta), bell(x, c, s_up, beta)


def it2_triangle(x: np.ndarray, c: Any, s_lo: Any, s_up: Any) -> tuple[np.ndarray, np.ndarray]:
    """Triangle of uncertain width, s_lo <= s_up: (lower, upper)."""
    return triangle(x, c, s_lo), triangle(x, c, s_up)


@dataclass(frozen=True)
class Term:
    """One linguistic term of one feature.

    Attributes:
        kind: of ``KINDS``; ``missing`` is 1 where the value is missing.
        centre: centre (or level of a singleton), in the feature's units.
        width: sigma, half base or scale; for ``sigmoid`` the slope, for ``trapezoid`` half the base.
        lower, upper: widths of the lower and upper membership (Type-2); None for Type-1.
        label: word for it.
        power: exponent beta of a bell.
        shift: half the distance between the least and the greatest centre (Type-2 of uncertain mean); 0 for others.
    """

    kind: Kind
    centre: float
    width: float = 1.0
    lower: float | None = None
    upper: float | None = None
    label: str = ""
    power: float = 1.0
    shift: float = 0.0

    @property
    def type2(self) -> bool:
        """Whether lower and upper membership differ."""
        return self.lower is not None or self.shift > 0

    def _at(self, x: np.ndarray, width: float) -> np.ndarray:
        if self.kind == "missing":
            return np.isnan(x).astype(float)
        if self.kind == "singleton":
            return singleton(x, self.centre)
        if self.kind == "gaussian":
            found = gaussian(x, self.centre, width)
        elif self.kind == "triangle":
            found = triangle(x, self.centre, width)
        elif self.kind == "bell":
            found = bell(x, self.centre, width, self.power)
        elif self.kind == "sigmoid":
            found = sigmoid(x, self.centre, width)
        else:
            half = 0.5 * width
            found = trapezoid(x, self.centre - width, self.centre - half, self.centre + half, self.centre + width)
        return np.where(np.isnan(x), 0.0, found)

    def bounds(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Lower and upper membership; both the same for Type-1. 0 for missing values (but for the term ``missing``)."""
        if self.shift > 0:
            one, two = self._at(x + self.shift, self.width), self._at(x - self.shift, self.width)
            inside = (np.abs(x - self.centre) <= self.shift) & (self.kind != "sigmoid")
            return np.minimum(one, two), np.where(inside, 1.0, np.maximum(one, two))
        if self.lower is None or self.upper is None:
            same = self._at(x, self.width)
            return same, same
        one, two = self._at(x, self.lower), self._at(x, self.upper)
        return np.minimum(one, two), np.maximum(one, two)

    def __call__(self, x: np.ndarray) -> np.ndarray:
        """Membership; for Type-2 the mean of both (Nie-Tan)."""
        lower, upper = self.bounds(x)
        return lower if lower is upper else 0.5 * (lower + upper)


def labels_of(centres: Sequence[float]) -> list[str]:
    """Words for centres by their rank: low, medium, high, ...; ``about 12.3`` for more than five."""
    k = len(centres)
    if k in LABELS:
        return list(LABELS[k])
    return [f"about {c:.4g}" for c in centres]


@dataclass(frozen=True)
class Partition:
    """Terms of every feature, in order.

    Attributes:
        terms: for every feature its terms.
        low, high: range of the training data, to which values are clipped; infinite where they are not.
    """

    terms: tuple[tuple[Term, ...], ...]
    low: np.ndarray
    high: np.ndarray

    @classmethod
    def from_quantiles(
        cls,
        X: np.ndarray,
        n_terms: int | Sequence[int] = 3,
        *,
        kind: Kind = "gaussian",
        fuzzy_type: FuzzyType = "t1",
        spread: float = 0.15,
        categorical: Sequence[bool] | None = None,
        missing: bool = False,
        clip: bool = True,
        names: Sequence[Mapping[float, str] | None] | None = None,
        weight: np.ndarray | None = None,
    ) -> Partition:
        """Terms at quantiles 0.02 to 0.98 of every column, as wide as 0.85 of the distance of their neighbours.

        Columns of at most as many different values as terms get one singleton a value; constant columns one term.

        Args:
            X: training data, shape (n, D); NaN only with ``missing``.
            n_terms: terms K, one number or one a column.
            kind: shape of the terms.
            fuzzy_type: ``t1``, ``it2`` with widths (1 -+ spread) sigma, or ``it2-mean`` with centres c -+ spread sigma.
            spread: of Type-2 widths or centres.
            categorical: columns of levels without order.
            missing: give columns with missing values a term ``missing``.
            clip: clip values to the range of X.
            names: words for the levels of a column.
            weight: of the rows, above 0; a row of weight 2 counts as two rows.

        Raises:
            ValueError: on a number of terms below 1 or an unknown kind or type.
        """
        X = np.asarray(X, dtype=float)
        counts = [n_terms] * X.shape[1] if isinstance(n_terms, (int, np.integer)) else [int(k) for k in n_terms]
        if min(counts, default=1) < 1:
            raise ValueError(f"expected at least one term a feature, got {min(counts)}")
        if kind not in KINDS[:4] and kind != "trapezoid":
            raise ValueError(f"expected a membership of gaussian, triangle, bell, sigmoid or trapezoid, got {kind!r}")
        if fuzzy_type not in FUZZY_TYPES:
            raise ValueError(f"expected a fuzzy type of {', '.join(FUZZY_TYPES)}, got {fuzzy_type!r}")
        if not 0 <= spread < 1:
            raise ValueError(f"expected a spread from 0 to below 1, got {spread}")
        every, low, high = [], np.full(X.shape[1], -np.inf), np.full(X.shape[1], np.inf)
        for j, k in enumerate(counts):
            known = ~np.isnan(X[:, j])
            column = X[known, j]
            mass = np.ones(len(column)) if weight is None else np.asarray(weight, dtype=float)[known]
            levels = np.unique(column)
            is_categorical = bool(categorical is not None and categorical[j])
            words = names[j] if names is not None else None
            if is_categorical or len(levels) <= k:
                found = _level_terms(levels, words, is_categorical)
            else:
                found = _quantile_terms(column, mass, k, kind)
            if fuzzy_type == "it2":
                found = [
                    t
                    if t.kind == "singleton"
                    else replace(t, lower=t.width * (1 - spread), upper=t.width * (1 + spread))
                    for t in found
                ]
            elif fuzzy_type == "it2-mean":
                found = [t if t.kind == "singleton" else replace(t, shift=t.width * spread) for t in found]
            if missing and len(column) < len(X):
                found.append(Term("missing", float("nan"), label="missing"))
            every.append(tuple(found))
            if clip and len(levels) and not is_categorical and len(levels) > k:
                low[j], high[j] = levels[0], levels[-1]
        return cls(tuple(every), low, high)

    @property
    def sizes(self) -> np.ndarray:
        """Terms of every feature."""
        return np.array([len(t) for t in self.terms])

    @property
    def columns(self) -> list[tuple[int, int]]:
        """(feature, term) of every column of the basis."""
        return [(i, k) for i, terms in enumerate(self.terms) for k in range(len(terms))]

    def clipped(self, X: np.ndarray) -> np.ndarray:
        """X within the range of the training data."""
        return np.clip(X, self.low, self.high)

    def outside(self, X: np.ndarray) -> int:
        """Number of rows with a value outside the range of the training data."""
        return int(((self.low > X) | (self.high < X)).any(axis=1).sum())

    def bounds(self, X: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Lower and upper memberships, (n, M) each, M terms in all."""
        X = self.clipped(np.asarray(X, dtype=float))
        lower = np.empty((len(X), int(self.sizes.sum())))
        upper = np.empty_like(lower)
        for m, (i, k) in enumerate(self.columns):
            lower[:, m], upper[:, m] = self.terms[i][k].bounds(X[:, i])
        return lower, upper

    def basis(self, X: np.ndarray) -> np.ndarray:
        """Memberships, (n, M); for Type-2 the mean of lower and upper."""
        X = self.clipped(np.asarray(X, dtype=float))
        out = np.empty((len(X), int(self.sizes.sum())))
        for m, (i, k) in enumerate(self.columns):
            out[:, m] = self.terms[i][k](X[:, i])
        return out

    def labels(self) -> list[list[str]]:
        """Words of every feature's terms."""
        return [[t.label for t in terms] for terms in self.terms]

    def relabel(self, feature: int, words: Sequence[str]) -> Partition:
        """The same partition with other words for one feature.

        Raises:
            ValueError: if their number is not that of its terms.
        """
        if len(words) != len(self.terms[feature]):
            raise ValueError(f"expected {len(self.terms[feature])} words for feature {feature}, got {len(words)}")
        changed = tuple(replace(t, label=w) for t, w in zip(self.terms[feature], words, strict=True))
        return replace(self, terms=(*self.terms[:feature], changed, *self.terms[feature + 1 :]))


def _level_terms(levels: np.ndarray, words: Mapping[float, str] | None, categorical: bool) -> list[Term]:
    if len(levels) == 0:
        return []
    if len(levels) == 1 and not categorical:
        return [Term("singleton", float(levels[0]), label=f"{levels[0]:.4g}")]
    return [
        Term("singleton", float(v), label=str(words[float(v)]) if words and float(v) in words else f"{v:.4g}")
        for v in levels
    ]


def weighted_quantiles(values: np.ndarray, mass: np.ndarray, q: np.ndarray) -> np.ndarray:
    """Least values whose cumulative share of the mass reaches q (inverse distribution function)."""
    order = np.argsort(values, kind="stable")
    share = np.cumsum(mass[order]) / mass.sum()
    return values[order][np.minimum(np.searchsorted(share, q - 1e-12), len(values) - 1)]


def _quantile_terms(column: np.ndarray, mass: np.ndarray, k: int, kind: Kind) -> list[Term]:
    centres = np.unique(weighted_quantiles(column, mass, np.linspace(0.02, 0.98, k) if k > 1 else np.array([0.5])))
    mean = np.average(column, weights=mass)
    sd = float(np.sqrt(np.average(np.square(column - mean), weights=mass)))
    widths = WIDTH * np.gradient(centres) if len(centres) > 1 else np.array([sd])
    widths = np.maximum(widths, 1e-2 * sd)
    if kind == "triangle":
        widths = widths * 2
    elif kind == "trapezoid":
        widths = widths * 1.5
    elif kind == "sigmoid":
        widths = 2 / widths
    words = labels_of(centres.tolist())
    return [Term(kind, float(c), float(w), label=word) for c, w, word in zip(centres, widths, words, strict=True)]


def overlap(one: Term, two: Term, points: np.ndarray) -> float:
    """Jaccard overlap of two terms on a grid: sum of minima / sum of maxima."""
    a, b = one(points), two(points)
    total = np.maximum(a, b).sum()
    return float(np.minimum(a, b).sum() / total) if total > 0 else 0.0
