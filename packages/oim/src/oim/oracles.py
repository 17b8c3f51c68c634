r"""Offline influence maximization: reverse reachable (RR) sets, IMM, OPIM-C with certificate, CELF, exact, heuristics.

The expected spread of S is :math:`n \cdot P(S \cap RR \neq \emptyset)` for a random RR set (Borgs et al. 2014), so a
maximum cover of sampled RR sets is a near-optimal seed set.
"""

from __future__ import annotations

import heapq
import itertools
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numba import njit

from oim.ic import (
    MAX_EXACT_SETS,
    ICGraph,
    Model,
    check_k,
    check_weights,
    draw_key,
    exact_spread,
    geometric_skip,
    ic_cascade,
    map_threads,
    mix64,
    random_bits,
    random_uniform,
    run_key,
    spread,
)

ONE_MINUS_1_E = 1 - 1 / math.e
DEFAULT_MAX_RR = 50_000_000
_CHUNK = 4096


@dataclass(frozen=True)
class SeedResult:
    """A seed set and what is known about it.

    Attributes:
        nodes: seeds as node numbers in the order chosen, int64 (k,).
        seeds: the same as labels (an int64 array where the graph has none).
        spread: estimated (or exact) expected spread.
        lower: lower confidence bound of the spread, NaN where the method gives none.
        upper: upper confidence bound of the best possible spread, NaN where the method gives none.
        ratio: ``lower / upper``, a certificate of quality.
        n_rr: RR sets (or snapshots) used.
        seconds: wall time.
    """

    nodes: np.ndarray
    seeds: np.ndarray | list
    spread: float
    lower: float = math.nan
    upper: float = math.nan
    ratio: float = math.nan
    n_rr: int = 0
    seconds: float = 0.0


def _result(g: ICGraph, nodes: np.ndarray, started: float, spread: float, **known: Any) -> SeedResult:
    nodes = np.asarray(nodes, dtype=np.int64)
    seeds = g.names(nodes) if g.labels else nodes
    return SeedResult(nodes, seeds, float(spread), seconds=time.perf_counter() - started, **known)


def _without_arcs(g: ICGraph, k: int, started: float) -> SeedResult:
    """Any k nodes are optimal: the first ones."""
    return _result(g, np.arange(k), started, k, lower=float(k), upper=float(k), ratio=1.0)


# --- reverse reachable sets --------------------------------------------------------------------------------------


@njit(nogil=True, cache=True)
def _rr_block(lt, n, in_ptr, in_src, in_thr, in_p, skip, base, low, high, limit):
    """RR sets low .. high-1: members one after the other, offsets, and whether ``limit`` members were enough."""
    data = np.empty(max(16, 4 * (high - low)), np.int32)
    offsets = np.zeros(high - low + 1, np.int64)
    seen = np.full(n, -1, np.int64)
    used = 0
    for number in range(low, high):
        key = run_key(base, number)
        start = used
        root = np.int32(((mix64(key) >> np.uint64(32)) * np.uint64(n)) >> np.uint64(32))
        if used + n > data.size:
            grown = np.empty(2 * data.size + n, np.int32)
            grown[:used] = data[:used]
            data = grown
        data[used] = root
        used += 1
        seen[root] = number
        head = start
        while head < used:
            v = data[head]
            head += 1
            first, last = in_ptr[v], in_ptr[v + 1]
            if lt:
                rest = random_uniform(key, v)
                for e in range(first, last):
                    rest -= in_p[e]
                    if rest <= 0:
                        if seen[in_src[e]] != number:
                            seen[in_src[e]] = number
                            data[used] = in_src[e]
                            used += 1
                        break
            elif skip[v] != 0.0:
                draw = first
                e = first + geometric_skip(key, draw, skip[v])
                while e < last:
                    u = in_src[e]
                    if seen[u] != number:
                        seen[u] = number
                        data[used] = u
                        used += 1
                    draw += 1
                    e += 1 + geometric_skip(key, draw, skip[v])
            else:
                for e in range(first, last):
                    if random_bits(key, e) < in_thr[e]:
                        u = in_src[e]
                        if seen[u] != number:
                            seen[u] = number
                            data[used] = u
                            used += 1
        offsets[number - low + 1] = used
        if used > limit:
            return data[:used], offsets, False
    return data[:used], offsets, True


class RRSets:
    """A growing collection of RR sets.

    Attributes:
        data: members of all sets one after the other, int32.
        offsets: set i is ``data[offsets[i]:offsets[i + 1]]``, int64.
    """

    def __init__(
        self, g: ICGraph, rng: np.random.Generator, n_jobs: int = 1, model: Model = "ic", max_rr: int = DEFAULT_MAX_RR
    ) -> None:
        if model == "lt":
            check_weights(g)
        self.g, self.n_jobs, self.model, self.max_rr = g, n_jobs, model, max_rr
        self.data, self.offsets = np.empty(0, np.int32), np.zeros(1, np.int64)
        self._base = draw_key(rng)

    def __len__(self) -> int:
        return self.offsets.size - 1

    def extend(self, more: int) -> RRSets:
        """Draw more sets; the result is the same whatever the number of threads or of calls.

        Raises:
            ValueError: if the sets would hold more than ``max_rr`` members in all.
        """
        g = self.g
        if more < 0 or g.n == 0:
            raise ValueError(f"RR sets need a node and a number >= 0, got {g.n} nodes and {more} sets")
        room = self.max_rr - self.data.size
        fixed = (self.model == "lt", g.n, g.in_ptr, g.in_src, g.thr[g.in_edge], g.p[g.in_edge], g.in_skip, self._base)
        first, last = len(self), len(self) + more
        size = _CHUNK if self.n_jobs > 1 else max(more, 1)
        blocks = [(*fixed, low, min(low + size, last), room) for low in range(first, last, size)]
        parts = map_threads(_rr_block, blocks, self.n_jobs)
        total = sum(part[0].size for part in parts)
        if total > room or not all(part[2] for part in parts):
            raise ValueError(
                f"the RR sets would hold more than max_rr={self.max_rr:,} nodes ({4 * self.max_rr / 1e9:.1f} GB); "
                "raise max_rr, loosen eps, or lower the probabilities"
            )
        offsets = [self.offsets]
        for _, local, _ in parts:
            offsets.append(offsets[-1][-1] + local[1:])
        self.data = np.concatenate([self.data, *(part[0] for part in parts)])
        self.offsets = np.concatenate(offsets)
        return self

    def coverage(self, nodes: Sequence[int] | np.ndarray) -> int:
        """How many sets hold at least one of these nodes."""
        inside = np.zeros(self.g.n, bool)
        inside[np.asarray(nodes, dtype=np.int64)] = True
        return int(_coverage(self.data, self.offsets, inside))


@njit(nogil=True, cache=True)
def _coverage(data, offsets, inside):
    covered = 0
    for i in range(offsets.size - 1):
        for j in range(offsets[i], offsets[i + 1]):
            if inside[data[j]]:
                covered += 1
                break
    return covered


def rr_sets(
    g: ICGraph,
    R: int,
    rng: np.random.Generator,
    n_jobs: int = 1,
    model: Model = "ic",
    max_rr: int = DEFAULT_MAX_RR,
) -> RRSets:
    """Draw R reverse reachable sets (a random root and all that reaches it in a random live-edge graph)."""
    return RRSets(g, rng, n_jobs, model, max_rr).extend(R)


def rr_sets_within(
    g: ICGraph, R: int, rng: np.random.Generator, members: int = 5_000_000, model: Model = "ic"
) -> RRSets:
    """R sets, or fewer once they hold ``members`` nodes: where sets are that large, few of them say enough.

    The collection doubles from 500 sets, so it can overshoot ``members`` by as much again, or by 500 large sets.
    """
    sets = RRSets(g, rng, model=model, max_rr=2 * members + 1000 * g.n)
    while len(sets) < R and sets.data.size < members:
        sets.extend(min(R - len(sets), max(len(sets), 500)))
    return sets


# --- maximum cover -----------------------------------------------------------------------------------------------


@njit(nogil=True, cache=True)
def _inverted(data, offsets, n):
    """CSR of the sets that hold each node."""
    ptr = np.zeros(n + 1, np.int64)
    for v in data:
        ptr[v + 1] += 1
    for v in range(n):
        ptr[v + 1] += ptr[v]
    fill = ptr[:-1].copy()
    sets = np.empty(data.size, np.int32)
    for i in range(offsets.size - 1):
        for j in range(offsets[i], offsets[i + 1]):
            sets[fill[data[j]]] = i
            fill[data[j]] += 1
    return ptr, sets


@njit(nogil=True, cache=True)
def _largest_sum(counts, k):
    """Sum of the k largest counts."""
    if k >= counts.size:
        return counts.sum()
    return np.partition(counts, counts.size - k)[counts.size - k :].sum()


@njit(nogil=True, cache=True)
def _greedy_cover(data, offsets, n, k, with_bound):
    """Greedy maximum cover: nodes, sets covered after each, and the bound min_i [cov(S_i) + k largest marginals]."""
    ptr, sets = _inverted(data, offsets, n)
    counts = np.diff(ptr)
    covered = np.zeros(offsets.size - 1, np.bool_)
    chosen = np.empty(k, np.int64)
    cumulative = np.empty(k, np.int64)
    total = 0
    bound = _largest_sum(counts, k) if with_bound else np.int64(0)
    taken = np.zeros(n, np.bool_)
    for i in range(k):
        best, most = -1, np.int64(-1)
        for v in range(n):
            if counts[v] > most and not taken[v]:
                best, most = v, counts[v]
        taken[best] = True
        chosen[i] = best
        total += most
        cumulative[i] = total
        for a in range(ptr[best], ptr[best + 1]):
            number = sets[a]
            if not covered[number]:
                covered[number] = True
                for j in range(offsets[number], offsets[number + 1]):
                    counts[data[j]] -= 1
        if with_bound:
            bound = min(bound, total + _largest_sum(counts, k))
    return chosen, cumulative, bound


def greedy_cover(sets: RRSets, k: int) -> tuple[np.ndarray, int]:
    """Greedy maximum cover of RR sets: k nodes, and how many sets they cover (at least 1 - 1/e of the maximum)."""
    chosen, cumulative, _ = _greedy_cover(sets.data, sets.offsets, sets.g.n, k, False)
    return chosen, int(cumulative[-1])


def default_rr_count(g: ICGraph, k: int) -> int:
    """The number of RR sets that the online learners draw an oracle call: max(2000, 40 n / k), at most 200,000."""
    return int(min(max(2000, 40 * g.n / k), 200_000))


def ris_greedy(
    g: ICGraph,
    k: int,
    R: int | None = None,
    rng: np.random.Generator | None = None,
    n_jobs: int = 1,
    model: Model = "ic",
    max_rr: int = DEFAULT_MAX_RR,
) -> SeedResult:
    """Greedy cover of a fixed number of RR sets. ``spread`` is n cov / R on the same sets, hence optimistic."""
    started, k = time.perf_counter(), check_k(g, k)
    if g.m == 0:
        return _without_arcs(g, k, started)
    rng = np.random.default_rng() if rng is None else rng
    sets = rr_sets(g, default_rr_count(g, k) if R is None else R, rng, n_jobs, model, max_rr)
    chosen, covered = greedy_cover(sets, k)
    return _result(g, chosen, started, g.n * covered / len(sets), n_rr=len(sets))


def _log_binomial(n: int, k: int) -> float:
    return math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)


def _check_eps(eps: float) -> None:
    if not 0 < eps < ONE_MINUS_1_E:
        raise ValueError(f"eps must lie between 0 and 1 - 1/e = 0.632, got {eps}")


def imm(
    g: ICGraph,
    k: int,
    eps: float = 0.1,
    ell: float = 1.0,
    rng: np.random.Generator | None = None,
    n_jobs: int = 1,
    model: Model = "ic",
    reuse: bool = False,
    max_rr: int = DEFAULT_MAX_RR,
) -> SeedResult:
    """IMM (Tang, Shi, Xiao 2015): a (1 - 1/e - eps)-optimal seed set with probability at least 1 - n**-ell.

    Args:
        g: graph.
        k: number of seeds.
        eps: loss against 1 - 1/e.
        ell: exponent of the failure probability.
        rng: source of randomness.
        n_jobs: threads that draw RR sets.
        model: ``"ic"`` or ``"lt"``.
        reuse: reuse the sampling phase's sets in the last phase, as the paper does; its proof needs fresh ones
            (Chen 2018), which is the default.
        max_rr: bound on the members held.
    """
    started, k = time.perf_counter(), check_k(g, k)
    if g.m == 0:
        return _without_arcs(g, k, started)
    _check_eps(eps)
    rng = np.random.default_rng() if rng is None else rng
    n = g.n
    ell = ell * (1 + math.log(2) / math.log(n))
    log_sets, log_n = _log_binomial(n, k), math.log(n)
    sets = RRSets(g, rng, n_jobs, model, max_rr)
    eps_first = math.sqrt(2) * eps
    rounds = max(int(math.log2(n)) - 1, 1)
    per_x = (2 + 2 / 3 * eps_first) * (log_sets + ell * log_n + math.log(max(math.log2(n), 1))) * n / eps_first**2
    lower = 1.0
    for i in range(1, rounds + 1):
        x = n / 2**i
        sets.extend(max(math.ceil(per_x / x) - len(sets), 0))
        _, covered = greedy_cover(sets, k)
        if n * covered / len(sets) >= (1 + eps_first) * x:
            lower = n * covered / len(sets) / (1 + eps_first)
            break
    a = math.sqrt(ell * log_n + math.log(2))
    b = math.sqrt(ONE_MINUS_1_E * (log_sets + ell * log_n + math.log(2)))
    needed = math.ceil(2 * n * (ONE_MINUS_1_E * a + b) ** 2 / eps**2 / max(lower, k))
    if not reuse:
        sets = RRSets(g, rng, n_jobs, model, max_rr)
    sets.extend(max(needed - len(sets), 0))
    chosen, covered = greedy_cover(sets, k)
    return _result(g, chosen, started, n * covered / len(sets), n_rr=len(sets))


def _coverage_lower(covered: float, a: float) -> float:
    """Lower bound of the expected cover (Tang et al. 2018, eq. 5), in sets."""
    return (math.sqrt(covered + 2 * a / 9) - math.sqrt(a / 2)) ** 2 - a / 18


def _coverage_upper(bound: float, a: float) -> float:
    """Upper bound of the optimum's expected cover (Tang et al. 2018, eq. 15), in sets."""
    return (math.sqrt(bound + a / 2) + math.sqrt(a / 2)) ** 2


def opim_c(
    g: ICGraph,
    k: int,
    eps: float = 0.1,
    delta: float | None = None,
    rng: np.random.Generator | None = None,
    n_jobs: int = 1,
    model: Model = "ic",
    max_rr: int = DEFAULT_MAX_RR,
) -> SeedResult:
    """OPIM-C (Tang, Tang, Xiao, Yuan 2018): stops as soon as its own bounds prove (1 - 1/e - eps)-optimality.

    Two independent collections are doubled: seeds come from the first, whose greedy run also bounds the optimum; the
    second estimates the seeds' spread without bias.

    Args:
        g: graph.
        k: number of seeds.
        eps: loss against 1 - 1/e.
        delta: failure probability, default 1/n.
        rng: source of randomness.
        n_jobs: threads that draw RR sets.
        model: ``"ic"`` or ``"lt"``.
        max_rr: bound on the members held in each collection.

    Returns:
        ``lower`` <= spread(seeds) and optimum <= ``upper``, both with probability 1 - delta; ``spread`` is the unbiased
        estimate of the second collection.
    """
    started, k = time.perf_counter(), check_k(g, k)
    if g.m == 0:
        return _without_arcs(g, k, started)
    _check_eps(eps)
    n = g.n
    delta = 1 / max(n, 2) if delta is None else delta
    if not 0 < delta < 1:
        raise ValueError(f"delta must lie between 0 and 1, got {delta}")
    rng = np.random.default_rng() if rng is None else rng
    log_6 = math.log(6 / delta)
    root = ONE_MINUS_1_E * math.sqrt(log_6) + math.sqrt(ONE_MINUS_1_E * (_log_binomial(n, k) + log_6))
    largest = 2 * n * root**2 / (eps**2 * k)
    smallest = largest * eps**2 * k / n
    doublings = max(1, math.ceil(math.log2(largest / smallest)))
    a = math.log(3 * doublings / delta)
    first, second = (RRSets(g, rng, n_jobs, model, max_rr) for _ in range(2))
    size = math.ceil(smallest)
    while True:
        first.extend(size - len(first))
        second.extend(size - len(second))
        chosen, _, bound = _greedy_cover(first.data, first.offsets, n, k, True)
        covered = second.coverage(chosen)
        # k seeds are active and n nodes exist, whatever the samples say.
        lower = max(_coverage_lower(covered, a) * n / size, float(k))
        upper = min(_coverage_upper(float(bound), a) * n / size, float(n))
        if lower / upper >= ONE_MINUS_1_E - eps or size >= largest:
            break
        size = min(2 * size, math.ceil(largest))
    return _result(
        g,
        chosen,
        started,
        n * covered / size,
        lower=lower,
        upper=upper,
        ratio=lower / upper,
        n_rr=len(first) + len(second),
    )


def budgeted_ris(
    g: ICGraph,
    costs: Sequence[float] | np.ndarray,
    budget: float,
    R: int | None = None,
    rng: np.random.Generator | None = None,
    n_jobs: int = 1,
) -> SeedResult:
    """Seeds of total cost at most ``budget``: the better of greedy by cover per cost and the best single node.

    At least half of 1 - 1/e of the best cover (Khuller, Moss, Naor 1999).

    Args:
        g: graph.
        costs: positive cost of every node, shape (n,).
        budget: total cost allowed.
        R: RR sets, default as :func:`default_rr_count` for one seed.
        rng: source of randomness.
        n_jobs: threads.

    Raises:
        ValueError: for costs that are not positive, or a budget that buys no node.
    """
    started = time.perf_counter()
    costs = np.asarray(costs, dtype=float)
    if costs.shape != (g.n,) or not (costs > 0).all():
        raise ValueError(f"costs must be positive, one for each of {g.n} nodes, got shape {costs.shape}")
    affordable = costs <= budget
    if not affordable.any():
        raise ValueError(f"the budget {budget} buys no node; the cheapest costs {costs.min()}")
    rng = np.random.default_rng() if rng is None else rng
    sets = rr_sets(g, default_rr_count(g, 1) if R is None else R, rng, n_jobs)
    ptr, member_of = _inverted(sets.data, sets.offsets, g.n)
    counts = np.diff(ptr)
    single = int(np.where(affordable, counts, -1).argmax())
    remaining, covered, total, chosen = float(budget), np.zeros(len(sets), bool), 0, []
    gains = counts.astype(float)
    open_nodes = affordable.copy()
    while open_nodes.any():
        best = int(np.where(open_nodes, gains / costs, -1).argmax())
        if gains[best] <= 0:
            break
        open_nodes[best] = False
        if costs[best] > remaining:
            continue
        chosen.append(best)
        remaining -= costs[best]
        fresh = member_of[ptr[best] : ptr[best + 1]]
        fresh = fresh[~covered[fresh]]
        covered[fresh] = True
        total += fresh.size
        for i in fresh:
            gains[sets.data[sets.offsets[i] : sets.offsets[i + 1]]] -= 1
    if counts[single] > total:
        chosen, total = [single], int(counts[single])
    return _result(g, np.array(chosen), started, g.n * total / len(sets), n_rr=len(sets))


# --- CELF --------------------------------------------------------------------------------------------------------


@njit(nogil=True, cache=True)
def _snapshot_gain(out_ptr, dst, thr, skip, base, R, v, covered, mark, queue, times, one):
    """Nodes that v adds over all snapshots; with ``mark`` they become covered."""
    gain = 0
    for r in range(R):
        if covered[r, v]:
            continue
        key = run_key(base, r)
        one[0] = v
        count = ic_cascade(out_ptr, dst, thr, skip, one, key, times, queue)
        for i in range(count):
            times[queue[i]] = -1
            if not covered[r, queue[i]]:
                gain += 1
                if mark:
                    covered[r, queue[i]] = True
    return gain


def celf(g: ICGraph, k: int, R: int = 1000, rng: np.random.Generator | None = None, lazy: bool = True) -> SeedResult:
    """Greedy on R fixed live-edge snapshots (Leskovec et al. 2007; Chen et al. 2009).

    Common random numbers make the objective truly submodular, so lazy evaluation returns exactly what plain greedy
    (``lazy=False``) does. Memory R n bytes.
    """
    started, k = time.perf_counter(), check_k(g, k)
    if g.m == 0:
        return _without_arcs(g, k, started)
    if R < 1:
        raise ValueError(f"R must be >= 1, got {R}")
    base = draw_key(np.random.default_rng() if rng is None else rng)
    covered = np.zeros((R, g.n), bool)
    work = (np.empty(g.n, np.int32), np.full(g.n, -1, np.int32), np.zeros(1, np.int64))

    def gain(v: int, mark: bool = False) -> int:
        return int(_snapshot_gain(g.out_ptr, g.dst, g.thr, g.out_skip, base, R, v, covered, mark, *work))

    chosen = _lazy_greedy(g.n, k, gain) if lazy else _plain_greedy(g.n, k, gain)
    return _result(g, np.array(chosen), started, covered.sum() / R, n_rr=R)


def _lazy_greedy(n: int, k: int, gain: Callable[..., float]) -> list[int]:
    heap = [(-gain(v), v, 0) for v in range(n)]
    heapq.heapify(heap)
    chosen: list[int] = []
    while len(chosen) < k:
        _, v, fresh_at = heapq.heappop(heap)
        if fresh_at == len(chosen):
            gain(v, True)
            chosen.append(v)
        else:
            heapq.heappush(heap, (-gain(v), v, len(chosen)))
    return chosen


def _plain_greedy(n: int, k: int, gain: Callable[..., float]) -> list[int]:
    chosen: list[int] = []
    for _ in range(k):
        best = max((v for v in range(n) if v not in chosen), key=lambda v: (gain(v), -v))
        gain(best, True)
        chosen.append(best)
    return chosen


def celf_mc(g: ICGraph, k: int, runs: int = 1000, rng: np.random.Generator | None = None) -> SeedResult:
    """CELF with fresh simulations at every evaluation, as first published; noisier than :func:`celf`."""
    started, k = time.perf_counter(), check_k(g, k)
    rng = np.random.default_rng() if rng is None else rng
    chosen: list[int] = []
    current = 0.0

    def gain(v: int, mark: bool = False) -> float:
        nonlocal current
        value = spread(g, [*chosen, v], runs, rng).mean
        if mark:
            chosen.append(v)
            current = value
        return value - current

    picked = _lazy_greedy(g.n, k, gain)
    return _result(g, np.array(picked), started, current, n_rr=runs)


# --- exact -------------------------------------------------------------------------------------------------------


def seed_sets(g: ICGraph, k: int, limit: int = MAX_EXACT_SETS) -> list[tuple[int, ...]]:
    """All seed sets of size k.

    Raises:
        ValueError: if there are more than ``limit``.
    """
    count = math.comb(g.n, check_k(g, k))
    if count > limit:
        raise ValueError(f"exact search enumerates at most {limit:,} seed sets, got {count:,}")
    return list(itertools.combinations(range(g.n), k))


def exact_seeds(g: ICGraph, k: int) -> SeedResult:
    """The best seed set by enumeration of all sets and of all live-edge graphs.

    Raises:
        ValueError: above 20,000 sets, or 24 uncertain arcs behind one of them.
    """
    started = time.perf_counter()
    values = {nodes: exact_spread(g, nodes) for nodes in seed_sets(g, k)}
    best = max(values, key=values.__getitem__)
    value = values[best]
    return _result(g, np.array(best), started, value, lower=value, upper=value, ratio=1.0)


# --- heuristics --------------------------------------------------------------------------------------------------


def _top(g: ICGraph, k: int, score: np.ndarray) -> np.ndarray:
    return np.argsort(-score, kind="stable")[: check_k(g, k)]


def degree(g: ICGraph, k: int) -> np.ndarray:
    """The k nodes of largest out-degree."""
    return _top(g, k, g.out_degree)


def random_nodes(g: ICGraph, k: int, rng: np.random.Generator) -> np.ndarray:
    """k nodes at random."""
    return rng.choice(g.n, size=check_k(g, k), replace=False)


def single_discount(g: ICGraph, k: int) -> np.ndarray:
    """Degree, less one for every seed among a node's out-neighbours (Chen, Wang, Yang 2009)."""
    score = g.out_degree.astype(float)
    return _discounted(g, k, score, lambda u, seeds_hit: score[u] - seeds_hit)


def degree_discount_ic(g: ICGraph, k: int) -> np.ndarray:
    """Degree discount for IC: d - 2t - (d - t) t p with t seeds among the in-neighbours and the mean p."""
    score = g.out_degree.astype(float)
    p = float(g.p.mean()) if g.m else 0.0
    return _discounted(g, k, score, lambda u, hit: score[u] - 2 * hit - (score[u] - hit) * hit * p, forward=True)


def _discounted(
    g: ICGraph, k: int, score: np.ndarray, value: Callable[[int, int], float], forward: bool = False
) -> np.ndarray:
    current, hit = score.copy(), np.zeros(g.n, np.int64)
    chosen: list[int] = []
    for _ in range(check_k(g, k)):
        u = int(current.argmax())
        chosen.append(u)
        current[u] = -np.inf
        if forward:
            touched = g.dst[g.out_ptr[u] : g.out_ptr[u + 1]]
        else:
            touched = g.in_src[g.in_ptr[u] : g.in_ptr[u + 1]]
        for w in touched:
            if current[w] > -np.inf:
                hit[w] += 1
                current[w] = value(int(w), int(hit[w]))
    return np.array(chosen)


def pagerank(g: ICGraph, k: int, damping: float = 0.85, tol: float = 1e-10) -> np.ndarray:
    """The k nodes of largest PageRank on the reversed graph, arcs weighted by p (uniform where all p are 0)."""
    from scipy.sparse import csr_array

    weight = g.p if g.p.any() else np.ones(g.m)
    into = np.bincount(g.dst, weights=weight, minlength=g.n)
    share = weight / np.where(into > 0, into, 1.0)[g.dst]
    flow = csr_array((share, (g.src, g.dst)), shape=(g.n, g.n))
    rank, dangling = np.full(g.n, 1 / g.n), into == 0
    for _ in range(1000):
        following = damping * (flow @ rank + rank[dangling].sum() / g.n) + (1 - damping) / g.n
        change = np.abs(following - rank).sum()
        rank = following
        if change < tol:
            break
    return _top(g, k, rank)


# --- choosing by name --------------------------------------------------------------------------------------------


class Choice(NamedTuple):
    """What an oracle hands to a learner: node numbers and the spread that it claims for them."""

    nodes: np.ndarray
    value: float


Oracle = Callable[[ICGraph, int, np.random.Generator], Choice]
ORACLES = ("ris", "opim-c", "imm", "celf", "exact")


def make_oracle(
    name: str | Oracle, eps: float = 0.1, R: int | None = None, validate: bool = True, model: Model = "ic"
) -> Oracle:
    """A standard offline oracle as a function of graph, k and generator.

    Args:
        name: ``"ris"``, ``"opim-c"``, ``"imm"``, ``"celf"``, ``"exact"``, or such a function itself.
        eps: accuracy of OPIM-C and IMM.
        R: RR sets (snapshots for CELF).
        validate: judge the chosen set on a second collection of RR sets, so that the claimed value is unbiased (the
            greedy value on the sets that it was chosen on is a winner's curse).
        model: ``"ic"`` or ``"lt"``.

    Raises:
        ValueError: for an unknown name.
    """
    if not isinstance(name, str):
        return name

    def judged(g: ICGraph, k: int, result: SeedResult, rng: np.random.Generator) -> Choice:
        if not validate:
            return Choice(result.nodes, result.spread)
        sets = rr_sets_within(g, R or default_rr_count(g, k), rng, model=model)
        return Choice(result.nodes, g.n * sets.coverage(result.nodes) / len(sets))

    def ris(g: ICGraph, k: int, rng: np.random.Generator) -> Choice:
        started = time.perf_counter()
        sets = rr_sets_within(g, R or default_rr_count(g, k), rng, model=model)
        chosen, covered = greedy_cover(sets, k)
        return judged(g, k, _result(g, chosen, started, g.n * covered / len(sets)), rng)

    match name:
        case "ris":
            return ris
        case "imm":
            return lambda g, k, rng: judged(g, k, imm(g, k, eps, rng=rng, model=model), rng)
        case "celf" if model == "ic":
            return lambda g, k, rng: judged(g, k, celf(g, k, R or 500, rng), rng)
        case "opim-c":
            return lambda g, k, rng: Choice(*_pair(opim_c(g, k, eps, rng=rng, model=model)))
        case "exact" if model == "ic":
            return lambda g, k, rng: Choice(*_pair(exact_seeds(g, k)))
    raise ValueError(f"unknown oracle {name!r} for the {model} model; known: {', '.join(ORACLES)}, or a function")


def _pair(result: SeedResult) -> tuple[np.ndarray, float]:
    return result.nodes, result.spread
