"""What a coordinated attack costs (ours): accounts must first earn their position, then rate.

A rater's position is the solution of a 2 x 2 ridge on the notes that they rated, so the position that a set of
ratings earns is closed form too. An account must have rated enough notes, and agree often enough with the statuses
of decided notes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from synthetic_consensus.attack import AttackResult, Positions
from synthetic_consensus.marginal import LEVELS, Shrinkage, solve_notes
from synthetic_consensus.mf import BridgingMF
from synthetic_consensus.rules import CRH, NMR, Decisions


@dataclass(frozen=True)
class CostModel:
    """Prices and conditions, in units of your own.

    Attributes:
        account: of one account.
        rating: of one rating.
        eligibility_ratings: ratings that an account needs before it counts.
        agree_ratio: least share of its 0/1 ratings on decided notes that must agree; 0 switches the rule off.
        risk: probability of losing an account in an attack, which adds this share of its price.
    """

    account: float = 10.0
    rating: float = 0.1
    eligibility_ratings: int = 10
    agree_ratio: float = 0.66
    risk: float = 0.0

    def __post_init__(self) -> None:
        if (
            min(self.account, self.rating, self.risk) < 0
            or not 0 <= self.agree_ratio <= 1
            or self.eligibility_ratings < 0
        ):
            raise ValueError(f"prices must be >= 0 and agree_ratio in [0, 1], got {self}")


@dataclass(frozen=True)
class PositionPlan:
    """How an account earns a position.

    Attributes:
        notes: which notes to rate.
        values: with what.
        factor: reached.
        intercept: reached.
        distance: to the wanted position.
        agree: share of agreement with decided statuses, NaN without such a note.
    """

    notes: np.ndarray
    values: np.ndarray
    factor: float
    intercept: float
    distance: float
    agree: float


def plan_position(
    model: BridgingMF,
    decisions: Decisions,
    factor: float,
    intercept: float,
    costs: CostModel,
    *,
    max_ratings: int = 60,
    tol: float = 0.05,
) -> PositionPlan:
    """Ratings that bring a fresh account near a position, chosen one by one.

    Each step takes the note and level that bring it nearest, among those that keep the agree ratio attainable, until
    it is within ``tol`` with enough ratings, or ``max_ratings`` are spent. A plan that misses is returned with its
    distance.
    """
    assert model.ratings_ is not None
    k = model.ratings_.size / model.ratings_.n_raters
    shrink = Shrinkage(model.lam_intercept * k, model.lam_factor * k)
    f_n, i_n = model.note_factor_[:, 0], model.note_intercept_
    M = f_n.size
    note = np.repeat(np.arange(M), LEVELS.size)
    value = np.tile(LEVELS, M)
    f, e = f_n[note], value - model.mu_ - i_n[note]
    vectors = np.stack([np.ones_like(f), f, f * f, e, f * e], axis=1)
    counts_as = (decisions.status[note] != NMR) & (value != 0.5)
    agrees = counts_as & ((value == 1) == (decisions.status[note] == CRH))
    S, free = np.zeros(5), np.ones(note.size, bool)
    chosen: list[int] = []
    judged = agreed = 0
    while len(chosen) < min(max_ratings, M):
        reached = solve_notes(S, shrink) if chosen else (np.float64(0), np.float64(0))
        near = np.hypot(reached[1] - factor, reached[0] - intercept) <= tol
        if near and len(chosen) >= costs.eligibility_ratings:
            break
        i, g = solve_notes(S + vectors, shrink)
        share = (agreed + agrees) >= costs.agree_ratio * (judged + counts_as)
        distance = np.where(free & share, np.hypot(g - factor, i - intercept), np.inf)
        best = int(np.argmin(distance))
        if not np.isfinite(distance[best]):
            break
        chosen.append(best)
        S = S + vectors[best]
        free[note == note[best]] = False
        judged, agreed = judged + int(counts_as[best]), agreed + int(agrees[best])
    i, g = solve_notes(S, shrink)
    picked = np.array(chosen, dtype=int)
    return PositionPlan(
        note[picked],
        value[picked],
        float(g),
        float(i),
        float(np.hypot(g - factor, i - intercept)),
        agreed / judged if judged else float("nan"),
    )


@dataclass(frozen=True)
class Price:
    """Cost of an attack: for one note alone, and per note when the same accounts attack many."""

    accounts: int
    position_ratings: int
    total: float
    missed: int

    def amortised(self, notes: int, costs: CostModel, k: int) -> float:
        """Cost per note when these accounts attack ``notes`` notes with ``k`` ratings each."""
        if notes < 1:
            raise ValueError(f"expected at least 1 note, got {notes}")
        return (self.total - costs.rating * k) / notes + costs.rating * k


def price(
    model: BridgingMF, decisions: Decisions, result: AttackResult, costs: CostModel, *, tol: float = 0.05
) -> Price:
    """What the ratings of an attack cost: every account earns its position first.

    ``missed`` counts positions that no plan reached within ``tol``: the attack is then out of reach at that price.
    """
    if result.k is None:
        raise ValueError("the search found no attack to price")
    plans = {at: plan_position(model, decisions, *at, costs, tol=tol) for at in {(f, i) for f, i, _ in result.ratings}}
    needed = [plans[f, i] for f, i, _ in result.ratings]
    ratings = sum(len(p.notes) for p in needed)
    accounts = len(needed)
    total = accounts * costs.account * (1 + costs.risk) + costs.rating * (ratings + accounts)
    return Price(accounts, ratings, total, sum(p.distance > tol for p in needed))


def reachable(model: BridgingMF, decisions: Decisions, positions: Positions, costs: CostModel) -> list[PositionPlan]:
    """A plan for each position."""
    spots = zip(positions.factor, positions.intercept, strict=True)
    return [plan_position(model, decisions, float(f), float(i), costs) for f, i in spots]
