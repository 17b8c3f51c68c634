r"""The cheapest coordinated ratings that would change a note's status: an auditor's search on a frozen snapshot.

Accounts sit at *positions* (f_a, i_a) of the latent space. A rating *type* is a position and a level; one more
rating of a type adds a fixed vector to the note's statistics, so a state is a sum and nothing is ever refitted.
Every search takes the status rules that it must pass; :class:`AttackResult` tells the least number of ratings found,
or that none was found.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np

from synthetic_consensus.marginal import LEVELS, NoteStats, Shrinkage, solve_notes
from synthetic_consensus.mf import BridgingMF
from synthetic_consensus.rules import CRH, CRNH, StatusRules, decide

Objective = Literal["crh", "crnh", "max", "min"]
Search = Literal["greedy", "beam", "exact"]
MAX_EXACT_TYPES = 12
FACTOR_WEIGHT, DEFICIT_WEIGHT = 10.0, 0.02


@dataclass(frozen=True)
class Positions:
    """Where coordinated accounts sit.

    Attributes:
        factor: f_a, (P,).
        intercept: i_a, (P,).
        accounts: how many sit there; each rates a note once, (P,).
        extrapolated: positions outside the range of the fitted raters, bool (P,).
    """

    factor: np.ndarray
    intercept: np.ndarray
    accounts: np.ndarray
    extrapolated: np.ndarray

    @staticmethod
    def of(model: BridgingMF, factor: np.ndarray, intercept: np.ndarray, accounts: int | np.ndarray = 99) -> Positions:
        """Positions by value; those outside the observed range are marked."""
        f, i = np.broadcast_arrays(np.asarray(factor, dtype=float), np.asarray(intercept, dtype=float))
        if f.ndim != 1 or f.size == 0 or not np.isfinite(f).all() or not np.isfinite(i).all():
            raise ValueError(
                f"expected at least one finite position (factor, intercept), got shapes {f.shape}, {i.shape}"
            )
        own_f, own_i = model.rater_factor_[:, 0], model.rater_intercept_
        outside = (f < own_f.min()) | (f > own_f.max()) | (i < own_i.min()) | (i > own_i.max())
        return Positions(f.copy(), i.copy(), np.broadcast_to(np.asarray(accounts), f.shape).astype(int), outside)

    @staticmethod
    def named(model: BridgingMF, name: Literal["typical", "harsh", "extreme"], accounts: int = 99) -> Positions:
        """Sets of positions from the quantiles of the fitted raters.

        ``typical``: factors at 5, 25, 75, 95 % and 0, median intercept; ``harsh``: 1, 25, 75, 99 % and 0, lowest 1 %
        of the intercepts; ``extreme``: .1, 5, 95, 99.9 %, -.2, 0, .2, lowest .1 %.
        """
        f, i = model.rater_factor_[:, 0], model.rater_intercept_
        sets = {
            "typical": ([5, 25, 75, 95], [0.0], 50),
            "harsh": ([1, 25, 75, 99], [0.0], 1),
            "extreme": ([0.1, 5, 95, 99.9], [-0.2, 0.0, 0.2], 0.1),
        }
        if name not in sets:
            raise ValueError(f"positions must be typical, harsh or extreme, got {name!r}")
        quantiles, more, at = sets[name]
        return Positions.of(model, np.append(np.percentile(f, quantiles), more), np.percentile(i, at), accounts)


@dataclass(frozen=True)
class Types:
    """Rating types: each position with each level. ``vector`` is what one rating adds to S, (T, 5)."""

    position: np.ndarray
    value: np.ndarray
    vector: np.ndarray
    side: np.ndarray
    level: np.ndarray

    @staticmethod
    def of(positions: Positions, mu: float, levels: np.ndarray = LEVELS) -> Types:
        """All types of some positions under a global mean."""
        position = np.repeat(np.arange(positions.factor.size), levels.size)
        value = np.tile(levels, positions.factor.size)
        f, e = positions.factor[position], value - mu - positions.intercept[position]
        vector = np.stack([np.ones_like(f), f, f * f, e, f * e], axis=1)
        level = np.where(value == 0, 0, np.where(value == 1, 2, 1))
        return Types(position, value, vector, (f >= 0).astype(int), level)

    def counts(self, numbers: np.ndarray) -> np.ndarray:
        """Ratings by side and level of multisets of types, (..., T) -> (..., 2, 3)."""
        found = np.zeros((*numbers.shape[:-1], 2, 3), np.int64)
        for t in range(self.value.size):
            found[..., self.side[t], self.level[t]] += numbers[..., t]
        return found


@dataclass(frozen=True)
class AttackResult:
    """What a search found.

    Attributes:
        k: least number of ratings found, None if none up to the limit.
        ratings: (factor, intercept, value) of each, in order.
        intercept_path: of the note before and after each rating.
        factor_path: the same of its factor.
        status_path: the same of its status (0 NMR, 1 CRH, 2 CRNH).
        exact: whether no smaller number is possible with these positions.
    """

    k: int | None
    ratings: list[tuple[float, float, float]]
    intercept_path: np.ndarray
    factor_path: np.ndarray
    status_path: np.ndarray
    exact: bool = False


@dataclass(frozen=True)
class _Target:
    """A note under attack: statistics, pseudo-counts, rules, what counts as success."""

    stats: NoteStats
    shrink: Shrinkage
    rules: StatusRules
    objective: Objective

    def solve(self, S: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return solve_notes(S, self.shrink)

    def statuses(self, S: np.ndarray, counts: np.ndarray) -> np.ndarray:
        return decide(NoteStats(S, counts), self.shrink, self.rules).status

    def reached(self, S: np.ndarray, counts: np.ndarray) -> np.ndarray:
        if self.objective in ("max", "min"):
            return np.zeros(len(S), bool)
        return self.statuses(S, counts) == (CRH if self.objective == "crh" else CRNH)

    def score(self, S: np.ndarray, counts: np.ndarray) -> np.ndarray:
        """Larger is nearer: the intercept in the wanted direction, less what the rules still miss."""
        i, f = self.solve(S)
        if self.objective in ("crnh", "min"):
            slope = 0.0 if self.rules.crnh is None else self.rules.crnh[1]
            return -(i + (slope * np.abs(f) if self.objective == "crnh" else 0.0))
        deficit = np.zeros_like(i)
        sides = counts[..., 2] - counts[..., 0]
        if self.rules.net_helpful is not None:
            deficit += np.maximum(self.rules.net_helpful - sides, 0).sum(-1)
        if self.rules.side_volume is not None:
            deficit += np.maximum(self.rules.side_volume - counts[..., 2], 0).sum(-1)
        if self.rules.max_factor is not None:
            deficit += FACTOR_WEIGHT * np.maximum(np.abs(f) - self.rules.max_factor, 0)
        return i - DEFICIT_WEIGHT * deficit


def _check(K: int, objective: str) -> None:
    if K < 1:
        raise ValueError(f"K must be >= 1, got {K}")
    if objective not in ("crh", "crnh", "max", "min"):
        raise ValueError(f"objective must be crh, crnh, max or min, got {objective!r}")


def attack(
    model: BridgingMF,
    note: int,
    positions: Positions,
    K: int = 9,
    objective: Objective = "crh",
    *,
    rules: StatusRules | None = None,
    search: Search = "beam",
    width: int = 200,
    stats: NoteStats | None = None,
) -> AttackResult:
    """The least number of ratings from given positions that carries a note over the rules, and which.

    Args:
        model: fitted, one factor; frozen.
        note: position of the note.
        positions: where accounts sit.
        K: ratings at most.
        objective: ``"crh"`` or ``"crnh"``: reach that status; ``"max"`` or ``"min"``: move the intercept with K
            ratings.
        rules: status rules, default the deployed ones.
        search: ``"greedy"``: best intercept at each step; ``"beam"``: the best ``width`` states by intercept less
            what the rules still miss; ``"exact"``: all multisets (at most 12 types).
        width: states kept by ``"beam"``.
        stats: statistics of all notes, to spare their computation.

    Raises:
        ValueError: for arguments out of range.
        KeyError: for an unknown note.
    """
    from synthetic_consensus.marginal import model_stats

    _check(K, objective)
    everything = model_stats(model) if stats is None else stats
    if not 0 <= note < len(everything.S):
        raise KeyError(f"no note {note}; notes are numbered 0 to {len(everything.S) - 1}")
    target = _Target(
        NoteStats(everything.S[note : note + 1], everything.counts[note : note + 1]),
        Shrinkage.of(model),
        StatusRules.default() if rules is None else rules,
        objective,
    )
    types = Types.of(positions, model.mu_)
    if objective not in ("max", "min") and target.reached(target.stats.S, target.stats.counts)[0]:
        return _result(target, types, positions, [], True)
    match search:
        case "greedy":
            return _result(target, types, positions, _beam(target, types, positions, K, 1, greedy=True), False)
        case "beam":
            return _result(target, types, positions, _beam(target, types, positions, K, width, greedy=False), False)
        case "exact":
            return _result(target, types, positions, _enumerate(target, types, positions, K), True)
    raise ValueError(f"search must be greedy, beam or exact, got {search!r}")


def _result(target: _Target, types: Types, positions: Positions, found: list[int] | None, exact: bool) -> AttackResult:
    chosen = [] if found is None else found
    S = target.stats.S[0] + np.concatenate([np.zeros((1, 5)), np.cumsum(types.vector[chosen], axis=0)])
    numbers = np.zeros((len(chosen) + 1, types.value.size), np.int64)
    for step, t in enumerate(chosen, 1):
        numbers[step:, t] += 1
    counts = target.stats.counts[0] + types.counts(numbers)
    i, f = target.solve(S)
    where = types.position[chosen].astype(int)
    triples = zip(positions.factor[where], positions.intercept[where], types.value[chosen], strict=True)
    return AttackResult(
        None if found is None else len(found),
        [(float(a), float(b), float(v)) for a, b, v in triples],
        i,
        f,
        target.statuses(S, counts),
        exact,
    )


def _beam(target: _Target, types: Types, positions: Positions, K: int, width: int, greedy: bool) -> list[int] | None:
    """Types in order, or None; for max and min always K of them."""
    T = types.value.size
    numbers, paths = np.zeros((1, T), np.int64), np.zeros((1, 0), np.int64)
    for _ in range(K):
        grown = np.repeat(numbers, T, axis=0) + np.tile(np.eye(T, dtype=np.int64), (len(numbers), 1))
        steps = np.concatenate([np.repeat(paths, T, axis=0), np.tile(np.arange(T), len(paths))[:, None]], axis=1)
        used = np.stack([grown[:, types.position == p].sum(1) for p in range(positions.factor.size)], axis=1)
        allowed = (used <= positions.accounts).all(axis=1)
        grown, steps = grown[allowed], steps[allowed]
        if len(grown) == 0:
            return None
        S = target.stats.S + grown @ types.vector
        counts = target.stats.counts + types.counts(grown)
        reached = np.flatnonzero(target.reached(S, counts))
        if not greedy and reached.size:
            return steps[reached[np.argmax(target.score(S[reached], counts[reached]))]].tolist()
        sign = -1.0 if target.objective in ("crnh", "min") else 1.0
        score = sign * target.solve(S)[0] if greedy else target.score(S, counts)
        order = np.argsort(-score, kind="stable")
        _, first = np.unique(np.round(S[order], 9), axis=0, return_index=True)
        kept = order[np.sort(first)[:width]]
        numbers, paths = grown[kept], steps[kept]
        if greedy and reached.size and kept[0] in reached:
            return paths[0].tolist()
    return paths[0].tolist() if target.objective in ("max", "min") else None


def _enumerate(target: _Target, types: Types, positions: Positions, K: int) -> list[int] | None:
    T = types.value.size
    if T > MAX_EXACT_TYPES:
        raise ValueError(f"exact search takes at most {MAX_EXACT_TYPES} types (3 a position), got {T}; use 'beam'")
    best: list[int] | None = None
    for k in range(1, K + 1) if target.objective in ("crh", "crnh") else [K]:
        sets = np.array(list(itertools.combinations_with_replacement(range(T), k)))
        numbers = np.stack([(sets == t).sum(1) for t in range(T)], axis=1)
        used = np.stack([numbers[:, types.position == p].sum(1) for p in range(positions.factor.size)], axis=1)
        keep = (used <= positions.accounts).all(axis=1)
        sets, numbers = sets[keep], numbers[keep]
        if len(sets) == 0:
            break
        S, counts = target.stats.S + numbers @ types.vector, target.stats.counts + types.counts(numbers)
        if target.objective in ("max", "min"):
            i = target.solve(S)[0]
            return sets[int(np.argmax(i) if target.objective == "max" else np.argmin(i))].tolist()
        reached = np.flatnonzero(target.reached(S, counts))
        if reached.size:
            return sets[reached[0]].tolist()
    return best


def attack_all(
    model: BridgingMF,
    positions: Positions,
    K: int = 9,
    objective: Objective = "crh",
    *,
    rules: StatusRules | None = None,
    notes: np.ndarray | None = None,
    stats: NoteStats | None = None,
    levels: np.ndarray = LEVELS,
    choose: Callable[[int], np.ndarray] | None = None,
) -> np.ndarray:
    """Greedy search on many notes at once; the least number of ratings found for each, 0 where none was found.

    Args:
        model: fitted, one factor; frozen.
        positions: where accounts sit.
        K: ratings at most.
        objective: ``"crh"`` or ``"crnh"``.
        rules: status rules, default the deployed ones.
        notes: which notes, default all.
        stats: statistics of all notes.
        levels: levels that the accounts may give; ``np.array([1.0])`` is Helpful only.
        choose: fixed schedule instead of the greedy choice: step -> the types allowed at it.

    Returns:
        int (len(notes),); a note that has the status already counts as not attacked, -1.
    """
    from synthetic_consensus.marginal import model_stats

    _check(K, objective)
    everything = model_stats(model) if stats is None else stats
    chosen = np.arange(len(everything.S)) if notes is None else np.asarray(notes)
    types, rules = Types.of(positions, model.mu_, levels), StatusRules.default() if rules is None else rules
    shrink = Shrinkage.of(model)
    S, counts = everything.S[chosen].copy(), everything.counts[chosen].copy()
    used = np.zeros((chosen.size, positions.factor.size), np.int64)
    wanted, sign = (CRH, 1.0) if objective == "crh" else (CRNH, -1.0)
    least = np.where(decide(NoteStats(S, counts), shrink, rules).status == wanted, -1, 0)
    for step in range(1, K + 1):
        open_notes = np.flatnonzero(least == 0)
        if open_notes.size == 0:
            break
        i, f = solve_notes(S[open_notes, None, :] + types.vector, shrink)
        score = sign * i - (0.0 if objective == "crh" or rules.crnh is None else rules.crnh[1]) * np.abs(f)
        free = used[open_notes][:, types.position] < positions.accounts[types.position]
        if choose is not None:
            free = free & np.isin(np.arange(types.value.size), choose(step))
        best = np.where(free, score, -np.inf).argmax(axis=1)
        ok = free[np.arange(open_notes.size), best]
        rows, best = open_notes[ok], best[ok]
        S[rows] += types.vector[best]
        np.add.at(counts, (rows, types.side[best], types.level[best]), 1)
        used[rows, types.position[best]] += 1
        done = decide(NoteStats(S[rows], counts[rows]), shrink, rules).status == wanted
        least[rows[done]] = step
    return least


def beam_all(
    model: BridgingMF,
    positions: Positions,
    notes: np.ndarray,
    K: int = 9,
    *,
    rules: StatusRules | None = None,
    width: int = 50,
) -> np.ndarray:
    """Beam search note by note, as :func:`attack_all` returns it: it knows the counting rules, greedy does not."""
    from synthetic_consensus.marginal import model_stats

    stats = model_stats(model)
    found = [attack(model, int(n), positions, K, rules=rules, width=width, stats=stats) for n in notes]
    return np.array([(-1 if r.k == 0 else 0 if r.k is None else r.k) for r in found])


def lower_bound(shrink: Shrinkage, best_residual: float, crh: float = 0.4) -> float:
    """Ratings that even an empty note needs for the threshold: crh Lambda_i / (e_max - crh); infinite if e_max <=
    crh."""
    return math.inf if best_residual <= crh else math.ceil(crh * shrink.intercept / (best_residual - crh))


def brigade(model: BridgingMF, side: Literal[-1, 1], accounts: int = 99) -> Positions:
    """A one-sided brigade's position: the 5 % or 95 % quantile of the factors, median intercept."""
    f = np.percentile(model.rater_factor_[:, 0], 5 if side < 0 else 95)
    return Positions.of(model, np.array([f]), np.array([np.median(model.rater_intercept_)]), accounts)


def one_sided(model: BridgingMF, K: int = 9, **options: object) -> np.ndarray:
    """Helpful only, all from one side: the better of the two sides for each note, as :func:`attack_all` returns it."""
    both = [attack_all(model, brigade(model, side), K, levels=np.array([1.0]), **options) for side in (-1, 1)]  # ty: ignore
    stacked = np.stack(both)
    return np.where(stacked[0] < 0, -1, np.where(stacked > 0, stacked, K + 1).min(0) % (K + 1))


def two_sided_naive(model: BridgingMF, K: int = 9, **options: object) -> np.ndarray:
    """Helpful from both sides in turn, at the quartiles of the factors and the median intercept."""
    f = np.percentile(model.rater_factor_[:, 0], [25, 75])
    at = Positions.of(model, f, np.median(model.rater_intercept_))
    return attack_all(model, at, K, levels=np.array([1.0]), choose=lambda step: np.array([step % 2]), **options)  # ty: ignore
