"""Status rules of Community Notes as one object: which notes are shown, and which rule decided.

Facts about the deployed rules are those of the public scorer (July 2026). Sides: f_u < 0 is one, f_u >= 0 the other.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from synthetic_consensus.marginal import NoteStats, Shrinkage, solve_notes
from synthetic_consensus.mf import BridgingMF, Ratings

Status = Literal["NMR", "CRH", "CRNH"]
STATUSES = np.array(["NMR", "CRH", "CRNH"])  # needs more ratings, currently rated helpful, currently rated not helpful
NMR, CRH, CRNH = 0, 1, 2


@dataclass(frozen=True)
class RaterBounds:
    """Extremes of the raters, for pseudo-ratings."""

    least_intercept: float
    least_factor: float
    most_factor: float

    @staticmethod
    def of(model: BridgingMF) -> RaterBounds:
        """Of a fitted model of one factor."""
        f = model.rater_factor_[:, 0]
        return RaterBounds(float(model.rater_intercept_.min()), float(f.min()), float(f.max()))


@dataclass(frozen=True)
class StatusRules:
    """Thresholds; None switches a rule off.

    Attributes:
        min_ratings: below it a note needs more ratings.
        crh: intercept of a helpful note.
        crnh: (a, b): not helpful at an intercept of at most a - b |f_n|.
        crnh_ratio: not helpful where at least this many raters of each side rated it, each side's mean is at most
            0.4 and the mean of both at most 0.3.
        crnh_ucb: not helpful where even with one more Helpful pseudo-rating the intercept stays below this.
        inertia: how far a helpful note may fall below ``crh`` and stay so.
        max_factor: a larger |f_n| cannot be helpful.
        net_helpful: least over sides of (#Helpful - #NotHelpful) that a helpful note needs.
        balance: (limit, share): where that number is below the limit, it must be this share of all ratings.
        side_volume: Helpful ratings needed from each side (a mitigation, not deployed).
        firm_reject: intercept below which no other model may promote a note.
    """

    min_ratings: int = 5
    crh: float = 0.40
    crnh: tuple[float, float] | None = (-0.05, 0.8)
    crnh_ratio: int | None = 3
    crnh_ucb: float | None = None
    inertia: float = 0.01
    max_factor: float | None = 0.5
    net_helpful: int | None = 4
    balance: tuple[int, float] | None = (10, 0.05)
    side_volume: int | None = None
    firm_reject: float = 0.3

    @staticmethod
    def default() -> StatusRules:
        """The core model's rules as deployed."""
        return StatusRules()

    @staticmethod
    def core_2022() -> StatusRules:
        """Thresholds on intercept and factor alone, as first published."""
        return StatusRules(crnh_ratio=None, net_helpful=None, balance=None, max_factor=None)

    @staticmethod
    def core_2026() -> StatusRules:
        """The same as :meth:`default`."""
        return StatusRules()

    @staticmethod
    def intercept_only() -> StatusRules:
        """Nothing but the intercept's threshold: what an unprotected scorer would do."""
        return StatusRules(
            min_ratings=0, crnh=None, crnh_ratio=None, inertia=0.0, max_factor=None, net_helpful=None, balance=None
        )

    def without(self, *names: str) -> StatusRules:
        """The same with some rules off."""
        return replace(self, **dict.fromkeys(names))


def net_helpful(counts: np.ndarray) -> np.ndarray:
    """Least over the sides of #Helpful - #NotHelpful, not below 0; Somewhat counts nothing; counts (..., 2, 3)."""
    return np.maximum((counts[..., 2] - counts[..., 0]).min(axis=-1), 0)


@dataclass(frozen=True)
class Decisions:
    """Statuses with the rules that decided.

    Attributes:
        status: 0 NMR, 1 CRH, 2 CRNH, (M,).
        rule: name of the deciding rule, (M,).
        intercept: (M,).
        factor: (M,).
    """

    status: np.ndarray
    rule: np.ndarray
    intercept: np.ndarray
    factor: np.ndarray

    def to_frame(self, note_ids: np.ndarray | None = None) -> Any:
        """A pandas frame, one row a note."""
        import pandas as pd

        names = np.arange(self.status.size) if note_ids is None else note_ids
        columns = {"note": names, "status": STATUSES[self.status], "rule": self.rule}
        return pd.DataFrame({**columns, "intercept": self.intercept, "factor": self.factor})


def decide(
    stats: NoteStats,
    shrink: Shrinkage,
    rules: StatusRules,
    *,
    was_crh: np.ndarray | None = None,
    bounds: RaterBounds | None = None,
    mu: float = 0.0,
    scores: tuple[np.ndarray, np.ndarray] | None = None,
    vetoes: dict[str, np.ndarray] | None = None,
    lifts: dict[str, np.ndarray] | None = None,
) -> Decisions:
    """Statuses of notes from their statistics, rule by rule, later rules overriding earlier ones.

    Args:
        stats: of the notes.
        shrink: pseudo-counts.
        rules: thresholds.
        was_crh: notes that were helpful before, for the inertia, bool (M,).
        bounds: extremes of the raters, needed by ``crnh_ucb``.
        mu: global mean, for ``crnh_ucb``.
        scores: intercepts and factors, if not those of ``stats``.
        vetoes: name -> notes that may not be helpful, bool (M,), from other models (:func:`subset_vetoes`).
        lifts: name -> notes that another model (a group's) shows, bool (M,); it lifts a note that needs more ratings
            only where the core intercept is at least ``firm_reject``.
    """
    i, f = solve_notes(stats.S, shrink) if scores is None else scores
    m, counts = stats.counts.sum(axis=(1, 2)), stats.counts
    status, rule = np.full(i.size, NMR), np.full(i.size, "between the thresholds", dtype=object)

    def put(where: np.ndarray, new: int, name: str) -> None:
        status[where], rule[where] = new, name

    helpful = i >= rules.crh
    put(helpful, CRH, "helpful intercept")
    if rules.crnh is not None:
        put(i <= rules.crnh[0] - rules.crnh[1] * np.abs(f), CRNH, "not helpful: diamond")
    if rules.crnh_ucb is not None:
        put(_optimistic(stats.S, shrink, bounds, mu) < rules.crnh_ucb, CRNH, "not helpful: upper bound")
    if rules.crnh_ratio is not None:
        put(_ratio_rejected(counts, rules.crnh_ratio), CRNH, "not helpful: ratio")
    if was_crh is not None:
        put(was_crh & (i >= rules.crh - rules.inertia) & (status == NMR), CRH, "inertia")
    for name, shown in (lifts or {}).items():
        put(shown & (status == NMR) & (i >= rules.firm_reject) & (i < rules.crh), CRH, name)
    for name, refused in _refusals(i, f, m, counts, rules).items():
        put((status == CRH) & refused, NMR, name)
    for name, refused in (vetoes or {}).items():
        put((status == CRH) & refused, NMR, name)
    put(m < rules.min_ratings, NMR, "too few ratings")
    return Decisions(status, rule, i, f)


def _refusals(
    i: np.ndarray, f: np.ndarray, m: np.ndarray, counts: np.ndarray, rules: StatusRules
) -> dict[str, np.ndarray]:
    """Rules that keep a note from being helpful, by name, in order."""
    found: dict[str, np.ndarray] = {}
    net = net_helpful(counts)
    if rules.max_factor is not None:
        found["large factor"] = np.abs(f) > rules.max_factor
    if rules.net_helpful is not None:
        found["net-helpful minimum"] = net < rules.net_helpful
    if rules.balance is not None:
        limit, share = rules.balance
        found["rater balance"] = (net < limit) & (net < share * np.maximum(m, 1))
    if rules.side_volume is not None:
        found["volume of each side"] = counts[..., 2].min(axis=-1) < rules.side_volume
    return found


def _ratio_rejected(counts: np.ndarray, least: int) -> np.ndarray:
    raters = counts.sum(axis=-1)
    mean = (counts[..., 2] + 0.5 * counts[..., 1]) / np.maximum(raters, 1)
    return (raters >= least).all(axis=-1) & (mean <= 0.4).all(axis=-1) & (mean.mean(axis=-1) <= 0.3)


def _optimistic(S: np.ndarray, shrink: Shrinkage, bounds: RaterBounds | None, mu: float) -> np.ndarray:
    """Largest intercept with one Helpful rating of a pseudo-rater of least intercept at the factors' extremes or 0."""
    if bounds is None:
        raise ValueError("crnh_ucb needs the bounds of the raters")
    best = np.full(len(S), -np.inf)
    for f in (bounds.least_factor, 0.0, bounds.most_factor):
        e = 1.0 - mu - bounds.least_intercept
        best = np.maximum(best, solve_notes(S + np.array([1, f, f * f, e, f * e]), shrink)[0])
    return best


def apply(
    model: BridgingMF,
    rules: StatusRules,
    ratings: Ratings | None = None,
    *,
    ratio: float | None = None,
    was_crh: np.ndarray | None = None,
    vetoes: dict[str, np.ndarray] | None = None,
) -> Decisions:
    """Statuses of the notes of ``ratings`` (default: the training ratings) under a fitted model of one factor."""
    from synthetic_consensus.marginal import model_stats

    stats = model_stats(model, ratings)
    bounds = RaterBounds.of(model)
    return decide(stats, Shrinkage.of(model, ratio), rules, was_crh=was_crh, bounds=bounds, mu=model.mu_, vetoes=vetoes)


def subset_vetoes(
    model: BridgingMF,
    subsets: dict[str, np.ndarray],
    threshold: float = 0.37,
) -> dict[str, np.ndarray]:
    """Safeguard scores on parts of the ratings: a helpful note must keep this intercept without some raters.

    Args:
        model: fitted, one factor.
        subsets: name -> ratings to keep, bool (N,): for example without the 0.1 % most active raters
            (:func:`without_most_active`) or without groups of correlated raters.
        threshold: least intercept.

    Returns:
        name -> notes refused, bool (M,).
    """
    from synthetic_consensus.marginal import NoteStats

    assert model.ratings_ is not None
    data, found = model.ratings_, {}
    for name, keep in subsets.items():
        part = Ratings(data.rater[keep], data.note[keep], data.value[keep], data.rater_ids, data.note_ids)
        stats = NoteStats.of(part, model.mu_, model.rater_intercept_, model.rater_factor_)
        found[name] = solve_notes(stats.S, Shrinkage.of(model))[0] < threshold
    return found


def without_most_active(ratings: Ratings, share: float = 0.001) -> np.ndarray:
    """Ratings that are not by the most active raters, bool (N,); at least one rater is left out."""
    counts = np.bincount(ratings.rater, minlength=ratings.n_raters)
    out = np.argsort(-counts, kind="stable")[: max(1, round(share * ratings.n_raters))]
    return ~np.isin(ratings.rater, out)


def population_sample_veto(model: BridgingMF, ratio: float = 10.0) -> np.ndarray:
    """Notes that the population sample contradicts, bool (M,): at least 8 sampled ratings, 2 of each side, an
    intercept below 0.30 on them and 0.15 below the full one."""
    assert model.ratings_ is not None
    data = model.ratings_
    if data.source is None:
        raise ValueError("the ratings do not say which belong to the population sample")
    keep = data.source == 1
    part = Ratings(data.rater[keep], data.note[keep], data.value[keep], data.rater_ids, data.note_ids)
    stats = NoteStats.of(part, model.mu_, model.rater_intercept_, model.rater_factor_)
    sampled = solve_notes(stats.S, Shrinkage.of(model, ratio))[0]
    enough = (stats.counts.sum(axis=(1, 2)) >= 8) & (stats.counts.sum(axis=2).min(axis=1) >= 2)
    return enough & (sampled < 0.30) & (model.note_intercept_ - sampled >= 0.15)


# --- two-stage scoring -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Helpfulness:
    """What the rater filter looks at, (U,) each; NaN where there is nothing to judge.

    Attributes:
        agree: share of a rater's own 0/1 ratings on decided notes that agree with the status.
        keep: raters that stay.
    """

    agree: np.ndarray
    keep: np.ndarray


def rater_helpfulness(
    ratings: Ratings, decisions: Decisions, least: float = 0.66, authors: np.ndarray | None = None
) -> Helpfulness:
    """The deployed rater filter: agree ratio, and scores of own notes; raters without anything to judge stay.

    Args:
        ratings: the data.
        decisions: statuses of its notes.
        least: least agree ratio.
        authors: label of each note's author, (M,), on the labels of the raters; then authors also need a mean intercept
            of at least 0.05 and (helpful - 5 not helpful) >= 0 among their own notes.
    """
    decided = decisions.status[ratings.note] != NMR
    plain = np.isin(ratings.value, (0.0, 1.0))
    use = decided & plain
    agrees = use & ((ratings.value == 1) == (decisions.status[ratings.note] == CRH))
    total = np.bincount(ratings.rater, use, ratings.n_raters)
    with np.errstate(invalid="ignore", divide="ignore"):
        share = np.bincount(ratings.rater, agrees, ratings.n_raters) / total
    return Helpfulness(share, ~(share < least) & _good_authors(ratings, decisions, authors))


def _good_authors(ratings: Ratings, decisions: Decisions, authors: np.ndarray | None) -> np.ndarray:
    """Raters whose own notes speak for them, or who wrote none, bool (U,)."""
    if authors is None:
        return np.ones(ratings.n_raters, bool)
    if authors.shape != (ratings.n_notes,):
        raise ValueError(f"expected the author of each of {ratings.n_notes} notes, got shape {authors.shape}")
    at = np.searchsorted(ratings.rater_ids, authors)
    at = np.minimum(at, ratings.n_raters - 1)
    own = ratings.rater_ids[at] == authors
    written = np.bincount(at[own], minlength=ratings.n_raters)
    total = np.bincount(at[own], decisions.intercept[own], ratings.n_raters)
    status = np.where(decisions.status == CRH, 1.0, np.where(decisions.status == CRNH, -5.0, 0.0))
    balance = np.bincount(at[own], status[own], ratings.n_raters)
    return (written == 0) | ((total >= 0.05 * written) & (balance >= 0))


@dataclass(frozen=True)
class TwoStage:
    """Result of :func:`two_stage_scoring`: both models, who stayed, final decisions on all notes of helpful raters."""

    first: BridgingMF
    second: BridgingMF
    helpfulness: Helpfulness
    ratings: Ratings
    decisions: Decisions


def two_stage_scoring(
    ratings: Ratings,
    rules: StatusRules | None = None,
    *,
    min_per_note: int = 5,
    min_per_rater: int = 10,
    agree: float = 0.66,
    **options: Any,
) -> TwoStage:
    """Prescoring in two rounds with the rater filter between them, then final scoring with raters frozen.

    Args:
        ratings: everything.
        rules: status rules.
        min_per_note: training filter.
        min_per_rater: training filter.
        agree: least agree ratio.
        options: of :class:`~synthetic_consensus.mf.BridgingMF`.
    """
    rules = StatusRules.default() if rules is None else rules
    trained = ratings.filter(min_per_note, min_per_rater)
    first = BridgingMF(**options).fit(trained)
    helpful = rater_helpfulness(trained, apply(first, rules), agree)
    kept = trained.take(np.flatnonzero(helpful.keep[trained.rater]))
    second = BridgingMF(**options).fit(kept)
    final, _ = second._known(ratings)
    return TwoStage(first, second, helpful, final, apply(second, rules, final))
