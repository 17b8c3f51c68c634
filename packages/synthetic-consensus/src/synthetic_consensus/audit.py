"""An audit of a fitted scorer: vulnerable notes by number of ratings, under each defence, with the defences'
collateral."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from synthetic_consensus.attack import AttackResult, Positions, attack, attack_all, one_sided
from synthetic_consensus.marginal import NoteStats, Shrinkage, model_stats, solve_notes
from synthetic_consensus.mf import BridgingMF
from synthetic_consensus.mitigate import clipped_model, clipped_positions, lower_confidence, robust_intercept
from synthetic_consensus.rules import CRH, Decisions, StatusRules, apply, decide


@dataclass(frozen=True)
class Defence:
    """Outcome under one defence.

    Attributes:
        name: of the defence.
        shares: share of the low notes carried over the line by 1..K ratings, (K,).
        collateral: share of honestly helpful notes that it refuses.
    """

    name: str
    shares: np.ndarray
    collateral: float


@dataclass(frozen=True)
class AuditReport:
    """An audit.

    Attributes:
        low: notes below the line, positions.
        least: ratings that each of them needs without any defence, 0 where none was found up to K.
        defences: unprotected first.
        brigade: shares of a one-sided brigade from the larger camp, (K,).
        brigade_best: the better side for each note, (K,).
        decisions: honest statuses under the deployed rules.
        extrapolated: whether positions lie outside the observed range.
    """

    low: np.ndarray
    least: np.ndarray
    defences: list[Defence]
    brigade: np.ndarray
    brigade_best: np.ndarray
    decisions: Decisions
    extrapolated: bool

    def most_fragile(self, count: int) -> np.ndarray:
        """Positions of low notes that need the fewest ratings."""
        need = np.where(self.least > 0, self.least, 10**6)
        order = np.argsort(need, kind="stable")
        return self.low[order[: min(count, int((self.least > 0).sum()))]]

    def examples(self, count: int) -> np.ndarray:
        """Positions of low notes within reach, from those that need few ratings to those that need many."""
        reach = self.most_fragile(self.low.size)
        return reach[_spread(reach, count)] if reach.size else reach


def _spread(values: np.ndarray, count: int) -> np.ndarray:
    return np.unique(np.linspace(0, values.size - 1, min(count, values.size)).astype(int))


def shares(least: np.ndarray, K: int) -> np.ndarray:
    """Share of notes that 1..K ratings suffice for, (K,)."""
    return np.array([np.mean((least > 0) & (least <= k)) for k in range(1, K + 1)])


def collateral(honest: np.ndarray, kept: np.ndarray) -> float:
    """Share of honestly helpful notes that are no longer helpful; 0 where there is none."""
    return float(np.mean(~kept[honest])) if honest.any() else 0.0


def audit(model: BridgingMF, positions: Positions, K: int = 9, *, deployed: StatusRules | None = None) -> AuditReport:
    """Vulnerability of all notes below the line, and what each defence changes.

    The unprotected line is the intercept's threshold alone. Honest helpful notes are those above it. Attacks are
    greedy; the attacker under rules is judged by those rules and does not know them, under score defences neither (a
    defender's optimistic
    view: :func:`~synthetic_consensus.attack.attack` with ``search="beam"`` plans for the rules).
    """
    deployed = StatusRules.default() if deployed is None else deployed
    bare = StatusRules.intercept_only()
    stats, shrink = model_stats(model), Shrinkage.of(model)
    before = decide(stats, shrink, bare)
    low, honest = np.flatnonzero(before.status != CRH), before.status == CRH
    least = attack_all(model, positions, K, rules=bare, notes=low, stats=stats)
    found = [Defence("threshold only", shares(least, K), 0.0)]
    count = StatusRules(crnh=None, crnh_ratio=None, max_factor=None, min_ratings=0, inertia=0.0)
    for name, rules in (
        ("net-helpful and balance", count),
        ("five Helpful a side", replace(bare, side_volume=5)),
        ("all deployed rules", deployed),
        ("deployed and five a side", replace(deployed, side_volume=5)),
    ):
        under = attack_all(model, positions, K, rules=rules, notes=low, stats=stats)
        kept = decide(stats, shrink, rules).status == CRH
        found.append(Defence(name, shares(under, K), collateral(honest, kept)))
    found += _score_defences(model, positions, K, low, honest, stats)
    sides = [one_sided_shares(model, side, K, low, stats) for side in (-1, 1)]
    best = shares(one_sided(model, K, rules=bare, notes=low, stats=stats), K)
    return AuditReport(low, least, found, sides[0], best, apply(model, deployed), bool(positions.extrapolated.any()))


def one_sided_shares(model: BridgingMF, side: int, K: int, low: np.ndarray, stats: NoteStats) -> np.ndarray:
    """Shares of a Helpful-only brigade from one side."""
    from synthetic_consensus.attack import brigade

    bare = StatusRules.intercept_only()
    at = brigade(model, -1 if side < 0 else 1)
    return shares(attack_all(model, at, K, rules=bare, notes=low, stats=stats, levels=np.array([1.0])), K)


def _score_defences(
    model: BridgingMF, positions: Positions, K: int, low: np.ndarray, honest: np.ndarray, stats: NoteStats
) -> list[Defence]:
    """Defences that change the score: the same greedy ratings are judged by the changed score after each step."""
    shrink, crh = Shrinkage.of(model), StatusRules().crh
    clipped = clipped_model(model)
    i_u, f_u = clipped_positions(model.rater_intercept_, model.rater_factor_)
    bound_i, bound_f = (i_u.min(), i_u.max()), (f_u.min(), f_u.max())
    inside = Positions.of(clipped, np.clip(positions.factor, *bound_f), np.clip(positions.intercept, *bound_i))
    under = attack_all(clipped, inside, K, rules=StatusRules.intercept_only(), notes=low)
    kept = decide(model_stats(clipped), shrink, StatusRules.intercept_only()).status == CRH
    found = [Defence("raters clipped at 5 %", shares(under, K), collateral(honest, kept))]
    paths = greedy_states(model, positions, K, low, stats)
    lower = np.stack([lower_confidence(model, S) for S in paths.S])
    found.append(
        Defence(
            "one NotHelpful pseudo-rating", _crossed(lower >= crh), collateral(honest, lower_confidence(model) >= crh)
        )
    )
    return found


@dataclass(frozen=True)
class GreedyStates:
    """Statistics of the low notes after 1..K greedy ratings, (K, notes, 5), and the ratings' f and e, (K, notes)."""

    S: np.ndarray
    f: np.ndarray
    e: np.ndarray


def greedy_states(model: BridgingMF, positions: Positions, K: int, low: np.ndarray, stats: NoteStats) -> GreedyStates:
    """Greedy ratings towards the largest intercept, continued to K whatever the status."""
    from synthetic_consensus.attack import Types

    types, shrink = Types.of(positions, model.mu_), Shrinkage.of(model)
    S, states, chosen = stats.S[low].copy(), [], []
    for _ in range(K):
        i, _ = solve_notes(S[:, None, :] + types.vector, shrink)
        best = i.argmax(axis=1)
        S = S + types.vector[best]
        states.append(S)
        chosen.append(best)
    picked = np.stack(chosen)
    return GreedyStates(np.stack(states), types.vector[picked][..., 1], types.vector[picked][..., 3])


def _crossed(over: np.ndarray) -> np.ndarray:
    """Share of notes that crossed at any of the first k steps, from bool (K, notes)."""
    return np.maximum.accumulate(over, axis=0).mean(axis=1)


def robust_defence(model: BridgingMF, positions: Positions, K: int, low: np.ndarray, q: int = 1) -> Defence:
    """The leave-q-out intercept against the same greedy ratings, and its collateral; note by note."""
    assert model.ratings_ is not None
    data, shrink, crh = model.ratings_, Shrinkage.of(model), StatusRules().crh
    stats = model_stats(model)
    states = greedy_states(model, positions, K, low, stats)
    order, ptr = data.by_note
    f_all = model.rater_factor_[data.rater, 0]
    e_all = data.value - model.mu_ - model.rater_intercept_[data.rater]
    over = np.zeros((K, low.size), bool)
    for column, note in enumerate(low):
        rows = order[ptr[note] : ptr[note + 1]]
        for k in range(K):
            if solve_notes(states.S[k, column], shrink)[0] < crh:
                continue
            f = np.append(f_all[rows], states.f[: k + 1, column])
            e = np.append(e_all[rows], states.e[: k + 1, column])
            over[k, column] = robust_intercept(f, e, shrink, q) >= crh
    from synthetic_consensus.mitigate import robust_intercepts

    honest = model.note_intercept_ >= crh
    return Defence(f"leave-{q}-out", _crossed(over), collateral(honest, robust_intercepts(model, q) >= crh))


def fragility(
    model: BridgingMF, notes: np.ndarray, positions: Positions, K: int = 9, rules: StatusRules | None = None
) -> list[AttackResult]:
    """Beam searches on some notes, which know the rules."""
    stats = model_stats(model)
    return [attack(model, int(note), positions, K, rules=rules, stats=stats) for note in notes]
