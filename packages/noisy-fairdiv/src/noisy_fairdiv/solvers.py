"""Exact solvers for known values, classical rules of fair division, and checkers of fairness notions.

Values are (n, m), owners int64 (m,). Classical rules suppose non-negative values.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from noisy_fairdiv.core import (
    bundle_values,
    check_owner,
    check_values,
    envy,
    lp_bound,
    off_diagonal,
    sweep,
    threshold_allocation,
)
from noisy_fairdiv.multi import balance_weights

ENUMERATION_LIMIT = 1 << 22
MITM_GOODS = 36
NASH_UNITS = 1000

Notion = Literal["EF", "EF1", "EFX", "PROP", "PROP1"]


@dataclass(frozen=True)
class Optimum:
    """An allocation of least envy.

    Attributes:
        owner: agent of each good, (m,).
        value: its envy; the negative envy Delta is ``-value``.
        bound: proven lower bound on the envy of every allocation.
        proven: whether ``value`` is the optimum.
    """

    owner: np.ndarray
    value: float
    bound: float
    proven: bool


# --- least envy --------------------------------------------------------------------------------------------------


def _owners_of_codes(codes: np.ndarray, n: int, m: int) -> np.ndarray:
    """Digits of numbers to base n, (len(codes), m)."""
    return codes[:, None] // n ** np.arange(m, dtype=np.int64) % n


def enumerate_allocations(U: np.ndarray, limit: int = ENUMERATION_LIMIT) -> Optimum:
    """Least envy by trying every allocation, in blocks.

    Raises:
        ValueError: for more than ``limit`` allocations.
    """
    values = check_values(U)
    n, m = values.shape
    if n**m > limit:
        raise ValueError(
            f"enumeration of {n} ** {m} allocations is above the limit of {limit:,}; use method='milp' (or 'mitm' "
            "for 2 "
            f"agents and at most {MITM_GOODS} goods)"
        )
    best, code = math.inf, 0
    block = 1 << 15
    for low in range(0, n**m, block):
        owners = _owners_of_codes(np.arange(low, min(low + block, n**m), dtype=np.int64), n, m)
        worth = np.stack([(owners == j) @ values.T for j in range(n)], axis=-1)
        gap = worth - np.diagonal(worth, axis1=1, axis2=2)[:, :, None]
        gap[:, np.arange(n), np.arange(n)] = -np.inf
        worst = gap.max(axis=(1, 2))
        i = int(np.argmin(worst))
        if worst[i] < best:
            best, code = float(worst[i]), low + i
    owner = _owners_of_codes(np.array([code]), n, m)[0]
    return Optimum(owner, best, best, True)


def _half_sums(values: np.ndarray) -> np.ndarray:
    """Gains of both agents over all sign patterns of some goods, (2, 2**k); bit i of the index gives good i to a."""
    sums = np.zeros((2, 1))
    for pair in values.T:
        step = np.array([[pair[0]], [-pair[1]]])
        sums = np.concatenate([sums - step, sums + step], axis=1)
    return sums


def _pareto(sums: np.ndarray) -> np.ndarray:
    """Indices of the sums that no other one beats in both gains, first gain ascending."""
    order = np.lexsort((sums[1], sums[0]))[::-1]
    best = np.maximum.accumulate(sums[1, order])
    keep = np.concatenate([[True], sums[1, order[1:]] > best[:-1]])
    return order[keep][::-1]


def meet_in_the_middle(U: np.ndarray) -> Optimum:
    """Least envy of two agents: Pareto-optimal partial allocations of both halves, matched by binary search.

    2 ** (m / 2) partial allocations a half, so m = 36 takes 2 x 262,144.

    Raises:
        ValueError: for more than 36 goods.
    """
    values = check_values(U, 2)
    m = values.shape[1]
    if m > MITM_GOODS:
        raise ValueError(f"meet in the middle takes at most {MITM_GOODS} goods, got {m}; use method='milp'")
    half = m // 2
    left, right = _half_sums(values[:, :half]), _half_sums(values[:, half:])
    front_l, front_r = _pareto(left), _pareto(right)
    x, y = left[:, front_l], right[:, front_r]
    # Along the right front the first gain rises and the second falls: the best partner sits where they cross.
    at = np.searchsorted(y[0] - y[1], x[1] - x[0])
    best, pair = -math.inf, (0, 0)
    for shift in (-1, 0):
        j = np.clip(at + shift, 0, y.shape[1] - 1)
        least = np.minimum(x[0] + y[0, j], x[1] + y[1, j])
        i = int(np.argmax(least))
        if least[i] > best:
            best, pair = float(least[i]), (int(front_l[i]), int(front_r[j[i]]))
    bits = np.concatenate([pair[0] >> np.arange(half) & 1, pair[1] >> np.arange(m - half) & 1])
    owner = (1 - bits).astype(np.int64)
    return Optimum(owner, envy(values, owner), envy(values, owner), True)


def milp_allocation(U: np.ndarray, time_limit: float = 60.0) -> Optimum:
    """Least envy as a mixed-integer program (HiGHS): max t, t <= u_i(A_i) - u_i(A_j) for all i != j.

    Two agents: one binary a good. After ``time_limit`` seconds the best allocation so far is returned with ``proven``
    False and the bound that was reached.
    """
    from scipy.optimize import Bounds, LinearConstraint, milp
    from scipy.sparse import csr_matrix, hstack, lil_matrix

    values = check_values(U)
    n, m = values.shape
    if n == 2:
        # t - sum u_a (2x - 1) <= 0 and t - sum u_b (1 - 2x) <= 0
        rows = np.stack([-2 * values[0], 2 * values[1]])
        matrix = hstack([csr_matrix(rows), csr_matrix(np.ones((2, 1)))])
        constraints = [LinearConstraint(matrix, ub=np.array([-values[0].sum(), values[1].sum()]))]
        binaries = m
    else:
        pairs = [(i, j) for i in range(n) for j in range(n) if i != j]
        rows = lil_matrix((len(pairs), n * m + 1))
        for row, (i, j) in enumerate(pairs):
            rows[row, i * m : (i + 1) * m] = -values[i]
            rows[row, j * m : (j + 1) * m] = values[i]
        rows[:, -1] = 1.0
        each = hstack([csr_matrix(np.eye(m))] * n + [csr_matrix((m, 1))])
        constraints = [LinearConstraint(rows.tocsr(), ub=np.zeros(len(pairs))), LinearConstraint(each, 1, 1)]
        binaries = n * m
    total = float(np.abs(values).sum(axis=1).max())
    found = milp(
        c=np.append(np.zeros(binaries), -1.0),
        integrality=np.append(np.ones(binaries), 0),
        bounds=Bounds(np.append(np.zeros(binaries), -total), np.append(np.ones(binaries), total)),
        constraints=constraints,
        options={"time_limit": time_limit, "mip_rel_gap": 0.0},
    )
    bound = -total if found.mip_dual_bound is None else float(found.mip_dual_bound)
    start = threshold_allocation(values).owner if n == 2 else balance_weights(values)[0]
    if found.x is None:
        return Optimum(start, envy(values, start), bound, False)
    x = found.x[:binaries].round()
    owner = (1 - x).astype(np.int64) if n == 2 else np.argmax(x.reshape(n, m), axis=0)
    value = envy(values, owner)
    if found.status == 0:
        return Optimum(owner, value, value, True)
    if envy(values, start) < value:
        owner, value = start, envy(values, start)
    return Optimum(owner, value, min(bound, value), False)


def opt_envy(
    U: np.ndarray, method: Literal["auto", "enum", "mitm", "milp", "sweep"] = "auto", time_limit: float = 60.0
) -> Optimum:
    """The allocation of least envy for exact values.

    Args:
        U: exact values, (n, m).
        method: ``"enum"``, ``"mitm"`` (two agents, m <= 36) and ``"milp"`` are exact; ``"sweep"`` is the threshold rule
            with local search, within 2 max u of the optimum, with the bound of the linear relaxation (for more than two
            agents: balanced weights, with no useful bound); ``"auto"`` takes the first of enumeration, meet in the
                middle
            and MILP that is small enough (MILP up to 400 binaries), else the sweep.
        time_limit: seconds for the MILP.

    Raises:
        ValueError: for an unknown method, or one that the instance is too large for.
    """
    values = check_values(U)
    n, m = values.shape
    if method == "auto":
        small = n**m <= 1 << 14
        binaries = m if n == 2 else n * m
        method = "enum" if small else "mitm" if n == 2 and m <= 30 else "milp" if binaries <= 400 else "sweep"
    match method:
        case "enum":
            return enumerate_allocations(values)
        case "mitm":
            return meet_in_the_middle(values)
        case "milp":
            return milp_allocation(values, time_limit)
        case "sweep" if n == 2:
            owner, bound = threshold_allocation(values).owner, -lp_bound(values)[0]
            value = envy(values, owner)
            return Optimum(owner, value, min(bound, value), value <= bound + 1e-9)
        case "sweep":
            owner, _ = balance_weights(values)
            value = envy(values, owner)
            # Dropping integrality, nobody can be better off than with everything.
            return Optimum(owner, value, -float(values.clip(min=0).sum(axis=1).min()), False)
    raise ValueError(f"method must be auto, enum, mitm, milp or sweep, got {method!r}")


# --- classical rules ---------------------------------------------------------------------------------------------


def picking_sequence(U: np.ndarray, order: Sequence[int] | np.ndarray) -> np.ndarray:
    """Agents take their best remaining good in turn.

    Args:
        U: values, (n, m).
        order: who picks at each turn, (m,). Ties go to the good with the smaller index.
    """
    values = check_values(U)
    n, m = values.shape
    turns = check_owner(np.asarray(order), n, m)
    wishes = np.argsort(-values, axis=1, kind="stable")
    taken, at = np.zeros(m, bool), np.zeros(n, np.int64)
    owner = np.empty(m, np.int64)
    for agent in turns:
        row, i = wishes[agent], at[agent]
        while taken[row[i]]:
            i += 1
        at[agent] = i + 1
        taken[row[i]] = True
        owner[row[i]] = agent
    return owner


def round_robin(U: np.ndarray, order: Sequence[int] | None = None) -> np.ndarray:
    """Agents pick in a fixed cyclic order (default 0, 1, ..., n - 1); the result is EF1."""
    n, m = np.shape(U)
    return picking_sequence(U, np.resize(np.arange(n) if order is None else np.asarray(order), m))


def alternating_picking(U: np.ndarray) -> np.ndarray:
    """Agents pick forwards, then backwards, and so on (balanced alternation)."""
    n, m = np.shape(U)
    return picking_sequence(U, np.resize(np.concatenate([np.arange(n), np.arange(n)[::-1]]), m))


def envy_cycle_elimination(U: np.ndarray, order: Sequence[int] | None = None) -> np.ndarray:
    """Lipton et al. (2004): give each good to an agent nobody envies; rotate bundles along cycles of envy. EF1.

    Args:
        U: non-negative values, (n, m).
        order: in which order goods are handed out; default 0, 1, ....
    """
    values = check_values(U)
    n, m = values.shape
    worth = np.zeros((n, n))  # worth[i, j]: what i thinks of the bundle in slot j
    slot = np.arange(n)  # slot[i]: the bundle that i holds
    held = np.full(m, -1)
    for good in range(m) if order is None else order:
        free = _unenvied(worth, slot)
        while free is None:
            slot = _rotate(worth, slot)
            free = _unenvied(worth, slot)
        held[good] = slot[free]
        worth[:, slot[free]] += values[:, good]
    return np.argsort(slot)[held]


def _envies(worth: np.ndarray, slot: np.ndarray) -> np.ndarray:
    seen = worth[:, slot]
    return seen > np.diagonal(seen)[:, None] + 1e-12


def _unenvied(worth: np.ndarray, slot: np.ndarray) -> int | None:
    free = np.flatnonzero(~_envies(worth, slot).any(axis=0))
    return int(free[0]) if free.size else None


def _rotate(worth: np.ndarray, slot: np.ndarray) -> np.ndarray:
    """Everybody on one cycle of envy takes the bundle that they envy."""
    graph = _envies(worth, slot)
    path = [0]
    while True:
        # Every agent is envied here, so walking backwards from envied to envier must close a cycle.
        envier = int(np.argmax(graph[:, path[-1]]))
        if envier in path:
            cycle = path[path.index(envier) :]
            break
        path.append(envier)
    new = slot.copy()
    for envied, envier in zip(cycle, [*cycle[1:], cycle[0]], strict=True):
        new[envier] = slot[envied]
    return new


@dataclass(frozen=True)
class AdjustedWinner:
    """Result of the adjusted winner procedure.

    Attributes:
        owner: agent of each good; a split good stands with the agent of the larger part.
        split: the good that is divided, or None.
        share: part of it that agent 0 gets.
        points: what each agent gets in points of 100, equal for both.
    """

    owner: np.ndarray
    split: int | None
    share: float
    points: tuple[float, float]


def adjusted_winner(U: np.ndarray) -> AdjustedWinner:
    """Brams and Taylor (1996), two agents: equitable, envy-free and efficient, dividing at most one good.

    Args:
        U: non-negative values, (2, m); each agent's are scaled to 100 points.
    """
    values = check_values(U, 2)
    if values.min() < 0 or (values.sum(axis=1) <= 0).any():
        raise ValueError("adjusted winner needs non-negative values with a positive sum for each agent")
    points = 100 * values / values.sum(axis=1, keepdims=True)
    path = sweep(*points)
    owner = path.allocation(0)
    for good in path.order[path.moves[path.order]]:
        owner[good] = 1
    have = np.array([points[0, owner == 0].sum(), points[1, owner == 1].sum()])
    for good in path.order[path.moves[path.order]]:
        if have[0] >= have[1]:
            break
        a, b = points[:, good]
        if have[0] + a >= have[1] - b:
            share = float((have[1] - have[0]) / (a + b))
            owner[good] = 0 if share >= 0.5 else 1
            return AdjustedWinner(owner, int(good), share, (float(have[0] + share * a), float(have[1] - share * b)))
        owner[good] = 0
        have = have + np.array([a, -b])
    return AdjustedWinner(owner, None, math.nan, (float(have[0]), float(have[1])))


def utilitarian(U: np.ndarray) -> np.ndarray:
    """Each good to whoever values it most."""
    return np.argmax(check_values(U), axis=0)


def maximum_nash_welfare(U: np.ndarray, time_limit: float = 60.0) -> Optimum:
    """The allocation of largest product of bundle values (EF1 and efficient).

    At most 4,194,304 allocations (12 goods for 3 agents): enumeration. Otherwise a mixed-integer program on values
    scaled to integers with a sum of 1,000 an agent, with the tangents of the logarithm at neighbouring integers,
    which is exact for those (Caragiannis et al. 2019). Where some agent must stay without value, the largest set of
    agents that need not is served first.

    Returns:
        ``value`` is the geometric mean of the bundle values as given, ``bound`` the same for every allocation where
        ``proven``, else infinity.
    """
    values = check_values(U)
    if values.min() < 0:
        raise ValueError(f"Nash welfare needs non-negative values, got {values.min()}")
    n, m = values.shape
    if n**m <= ENUMERATION_LIMIT and m <= 12:
        owner, proven = _nash_by_enumeration(values), True
    else:
        owner, proven = _nash_by_milp(values, time_limit)
    own = np.diagonal(bundle_values(values, owner))
    value = float(np.exp(np.mean(np.log(np.maximum(own, np.finfo(float).tiny))))) if (own > 0).all() else 0.0
    return Optimum(owner, value, value if proven else math.inf, proven)


def _nash_by_enumeration(values: np.ndarray) -> np.ndarray:
    n, m = values.shape
    best, chosen = (-1, -math.inf), np.zeros(m, np.int64)
    block = 1 << 15
    for low in range(0, n**m, block):
        owners = _owners_of_codes(np.arange(low, min(low + block, n**m), dtype=np.int64), n, m)
        own = np.stack([(owners == i) @ values[i] for i in range(n)], axis=1)
        served = (own > 0).sum(axis=1)
        logs = np.log(own, out=np.zeros_like(own), where=own > 0).sum(axis=1)
        i = int(np.lexsort((logs, served))[-1])
        if (served[i], logs[i]) > best:
            best, chosen = (int(served[i]), float(logs[i])), owners[i]
    return chosen


def _nash_by_milp(values: np.ndarray, time_limit: float) -> tuple[np.ndarray, bool]:
    from scipy.optimize import Bounds, LinearConstraint, milp
    from scipy.sparse import csr_matrix, hstack, lil_matrix
    from scipy.sparse.csgraph import maximum_bipartite_matching

    served = np.flatnonzero(maximum_bipartite_matching(csr_matrix(values > 0), perm_type="column") >= 0)
    kept = values[served]
    n, m = kept.shape
    units = np.rint(NASH_UNITS * kept / kept.sum(axis=1, keepdims=True))
    knots = np.arange(1, NASH_UNITS + 1, 2)
    slope = np.log(knots + 1) - np.log(knots)
    # W_i <= ln k + slope_k (v_i - k) for every odd k: the chords between neighbouring integers.
    rows = lil_matrix((n * knots.size, n * m + n))
    upper = np.tile(np.log(knots) - slope * knots, n)
    for i in range(n):
        block = slice(i * knots.size, (i + 1) * knots.size)
        rows[block, i * m : (i + 1) * m] = -slope[:, None] * units[i]
        rows[block, n * m + i] = 1.0
    each = hstack([csr_matrix(np.eye(m))] * n + [csr_matrix((m, n))])
    at_least_one = lil_matrix((n, n * m + n))
    for i in range(n):
        at_least_one[i, i * m : (i + 1) * m] = units[i]
    found = milp(
        c=np.concatenate([np.zeros(n * m), -np.ones(n)]),
        integrality=np.concatenate([np.ones(n * m), np.zeros(n)]),
        bounds=Bounds(np.zeros(n * m + n), np.concatenate([np.ones(n * m), np.full(n, math.log(2 * NASH_UNITS))])),
        constraints=[
            LinearConstraint(rows.tocsr(), ub=upper),
            LinearConstraint(each, 1, 1),
            LinearConstraint(at_least_one.tocsr(), lb=np.ones(n)),
        ],
        options={"time_limit": time_limit},
    )
    if found.x is None:
        return served[round_robin(kept)], False
    return served[np.argmax(found.x[: n * m].reshape(n, m), axis=0)], found.status == 0


# --- checkers ----------------------------------------------------------------------------------------------------


def slack(U: np.ndarray, owner: np.ndarray, notion: Notion) -> np.ndarray:
    """By how much each comparison of a fairness notion is met; all >= 0 means that the notion holds.

    Args:
        U: values, (n, m).
        owner: agent of each good, (m,).
        notion: ``"EF"``, ``"EF1"`` (after removing the best good of the other bundle), ``"EFX"`` (after removing any
            good of it that the agent values positively), ``"PROP"`` (a 1/n share of everything), ``"PROP1"`` (with
            one more good of the others).

    Returns:
        (n, n - 1) for the envy notions, (n, 1) for the proportional ones.
    """
    values = check_values(U)
    n, m = values.shape
    owner = check_owner(owner, n, m)
    worth = bundle_values(values, owner)
    own = np.diagonal(worth)
    if notion in ("PROP", "PROP1"):
        others = np.where(owner[None, :] == np.arange(n)[:, None], 0.0, values).max(axis=1)
        extra = np.maximum(others, 0.0) if notion == "PROP1" else 0.0
        return (own + extra - values.sum(axis=1) / n)[:, None]
    removed = np.zeros((n, n))
    for j in range(n):
        bundle = values[:, owner == j]
        if bundle.size and notion == "EF1":
            removed[:, j] = np.maximum(bundle.max(axis=1), 0.0)
        elif bundle.size and notion == "EFX":
            least = np.where(bundle > 0, bundle, np.inf).min(axis=1)
            removed[:, j] = np.where(np.isfinite(least), least, 0.0)
        elif notion not in ("EF", "EF1", "EFX"):
            raise ValueError(f"notion must be EF, EF1, EFX, PROP or PROP1, got {notion!r}")
    return off_diagonal(own[:, None] - worth + removed)


def is_fair(U: np.ndarray, owner: np.ndarray, notion: Notion) -> bool:
    """Whether a fairness notion holds for exact values, to a relative 1e-12."""
    return bool((slack(U, owner, notion) >= -1e-12 * max(1.0, float(np.abs(U).sum()))).all())


def maximin_share(values: np.ndarray, n: int) -> float:
    """The most that an agent can secure by cutting the goods into n bundles and taking the worst, exactly.

    Two bundles: meet in the middle up to 36 goods. Otherwise a mixed-integer program.

    Args:
        values: non-negative values of one agent, (m,).
        n: number of bundles.
    """
    row = check_values(np.stack([values, values]), 2)[0]
    if n < 1:
        raise ValueError(f"expected at least 1 bundle, got {n}")
    if n == 1:
        return float(row.sum())
    if n == 2 and row.size <= MITM_GOODS:
        return float((row.sum() - max(0.0, meet_in_the_middle(np.stack([row, row])).value)) / 2)
    from scipy.optimize import Bounds, LinearConstraint, milp
    from scipy.sparse import csr_matrix, hstack, kron

    m = row.size
    bundles = hstack([kron(csr_matrix(np.eye(n)), csr_matrix(-row)), csr_matrix(np.ones((n, 1)))])
    each = hstack([csr_matrix(np.eye(m))] * n + [csr_matrix((m, 1))])
    found = milp(
        c=np.append(np.zeros(n * m), -1.0),
        integrality=np.append(np.ones(n * m), 0),
        bounds=Bounds(np.zeros(n * m + 1), np.append(np.ones(n * m), row.sum() / n)),
        constraints=[LinearConstraint(bundles, ub=np.zeros(n)), LinearConstraint(each, 1, 1)],
    )
    if found.status != 0:
        raise ValueError(f"the maximin share of {m} goods in {n} bundles was not found: {found.message}")
    return float(-found.fun)


def is_mms(U: np.ndarray, owner: np.ndarray) -> bool:
    """Whether every agent gets her maximin share."""
    values = check_values(U)
    own = np.diagonal(bundle_values(values, check_owner(owner, *values.shape)))
    shares = [maximin_share(row, len(values)) for row in values]
    return bool((own >= np.array(shares) - 1e-7 * np.abs(values).sum(axis=1)).all())


def fairness_confidence(V: np.ndarray, owner: np.ndarray, sigma_tau: float, notion: Notion) -> float:
    """Confidence that a notion holds, from measured values that had no part in choosing the allocation.

    One minus the sum over all comparisons of the normal tail of slack / standard error; where the notion may remove the
    best good of a bundle, that good was picked on the same values, so the tail counts once for each good of the bundle.

    Args:
        V: measured values, (n, m).
        owner: agent of each good, (m,).
        sigma_tau: standard deviation of each measured value.
        notion: see :func:`slack`.

    Returns:
        A lower bound in [0, 1]: "EF1 with confidence at least ...".
    """
    from scipy.stats import norm

    if not sigma_tau > 0:
        raise ValueError(f"sigma_tau must be > 0, got {sigma_tau}; use is_fair for exact values")
    values = check_values(V)
    n, m = values.shape
    sizes = np.bincount(check_owner(owner, n, m), minlength=n)
    margin = slack(values, owner, notion)
    if notion in ("PROP", "PROP1"):
        # own bundle minus 1/n of everything: own goods weigh 1 - 1/n, the others 1/n
        variance = sizes * (1 - 1 / n) ** 2 + (m - sizes) / n**2 + (1 - 2 / n if notion == "PROP1" else 0)
        choices = np.where(notion == "PROP1", np.maximum(m - sizes, 1), 1)[:, None]
        error = sigma_tau * np.sqrt(variance)[:, None]
    else:
        others = off_diagonal(np.broadcast_to(sizes, (n, n)).copy())
        error = sigma_tau * np.sqrt(np.maximum(sizes[:, None] + others, 1))
        choices = np.ones_like(others) if notion == "EF" else np.maximum(others, 1)
    return float(max(0.0, 1.0 - np.sum(choices * norm.sf(margin / error))))
