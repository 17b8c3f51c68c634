r"""Independent cascade (and linear threshold) diffusion on a directed graph: the graph, simulation, exact spread.

Randomness is counter-based. A run has a 64-bit key; the coin of edge e in that run is a hash (SplitMix64) of key and e.
So a run is a live-edge graph that can be asked for any edge in any order: results do not depend on the number of
threads, and two policies that are given the same keys meet the same coins.
"""

from __future__ import annotations

import itertools
import math
import warnings
from collections.abc import Callable, Hashable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Literal, NamedTuple

import numpy as np
from numba import njit

Model = Literal["ic", "lt"]
Seeds = Sequence[int] | np.ndarray

MAX_EXACT_ARCS = 24
MAX_EXACT_SETS = 20_000
_GAMMA = np.uint64(0x9E3779B97F4A7C15)


class Estimate(NamedTuple):
    """A Monte-Carlo mean with its standard error and the number of runs."""

    mean: float
    se: float
    runs: int


# --- the graph ---------------------------------------------------------------------------------------------------


class ICGraph:
    """An immutable directed graph with an activation probability (LT: a weight) on every arc.

    Arcs are sorted by source, then target; position in that order is the *edge id* used everywhere. Loops are dropped
    and parallel arcs merged by noisy-or, :math:`1 - \\prod (1 - p)`; ``dropped_loops`` and ``merged_arcs`` count them.

    Args:
        n: number of nodes.
        src: sources, integers in [0, n), shape (m,).
        dst: targets, shape (m,).
        p: probabilities in [0, 1], shape (m,) or a scalar; 0 where they are not known.
        labels: names of the nodes, hashable and distinct, length n; default 0 .. n-1.

    Raises:
        ValueError: for indices outside [0, n), or probabilities that are not in [0, 1] (the message names the arc).
    """

    __slots__ = (
        "_index",
        "dropped_loops",
        "dst",
        "in_edge",
        "in_ptr",
        "in_skip",
        "in_src",
        "labels",
        "m",
        "merged_arcs",
        "n",
        "out_ptr",
        "out_skip",
        "p",
        "src",
        "thr",
    )

    def __init__(
        self,
        n: int,
        src: Sequence[int] | np.ndarray,
        dst: Sequence[int] | np.ndarray,
        p: Sequence[float] | np.ndarray | float | None = None,
        labels: Sequence[Hashable] | None = None,
    ) -> None:
        src, dst = np.asarray(src, dtype=np.int64).ravel(), np.asarray(dst, dtype=np.int64).ravel()
        if n < 0 or src.shape != dst.shape:
            raise ValueError(f"need n >= 0 and as many sources as targets, got n={n}, {src.size} and {dst.size}")
        if labels is not None and len(labels) != n:
            raise ValueError(f"need {n} labels, got {len(labels)}")
        self.n = int(n)
        self.labels: tuple[Hashable, ...] | None = None if labels is None else tuple(labels)
        self._index = None if self.labels is None else {label: i for i, label in enumerate(self.labels)}
        if self._index is not None and len(self._index) != n:
            raise ValueError("labels must be distinct")
        if src.size and (min(src.min(), dst.min()) < 0 or max(src.max(), dst.max()) >= n):
            raise ValueError(
                f"node indices must lie in [0, {n}), got {min(src.min(), dst.min())} to {max(src.max(), dst.max())}"
            )
        chance = np.broadcast_to(np.asarray(0.0 if p is None else p, dtype=float), src.shape)
        self._check_p(src, dst, chance)
        proper = src != dst
        key = src[proper] * max(n, 1) + dst[proper]
        arcs, group = np.unique(key, return_inverse=True)
        survival = np.ones(arcs.size)
        np.multiply.at(survival, group, 1.0 - chance[proper])
        single = np.bincount(group, minlength=arcs.size) == 1
        merged = 1.0 - survival
        merged[group[single[group]]] = chance[proper][single[group]]
        self.dropped_loops = int(src.size - proper.sum())
        self.merged_arcs = int(proper.sum() - arcs.size)
        self.m = int(arcs.size)
        self.src = (arcs // max(n, 1)).astype(np.int32)
        self.dst = (arcs % max(n, 1)).astype(np.int32)
        self.out_ptr = np.concatenate([[0], np.cumsum(np.bincount(self.src, minlength=n))]).astype(np.int64)
        self.in_ptr = np.concatenate([[0], np.cumsum(np.bincount(self.dst, minlength=n))]).astype(np.int64)
        self.in_edge = np.argsort(self.dst, kind="stable").astype(np.int32)
        self.in_src = self.src[self.in_edge]
        self._set_p(merged)

    def _check_p(self, src: np.ndarray, dst: np.ndarray, p: np.ndarray) -> None:
        bad = np.flatnonzero(~((p >= 0) & (p <= 1)))
        if bad.size:
            u, v = (self.labels[i] if self.labels else int(i) for i in (src[bad[0]], dst[bad[0]]))
            raise ValueError(f"the probability of arc {u!r} -> {v!r} must lie in [0, 1], got {p[bad[0]]}")

    def _set_p(self, p: np.ndarray) -> None:
        self.p = p
        self.thr = np.ldexp(p, 53).astype(np.uint64)
        self.out_skip = _skip_rates(self.out_ptr, p)
        self.in_skip = _skip_rates(self.in_ptr, p[self.in_edge])
        for array in (self.p, self.thr, self.src, self.dst, self.out_ptr, self.in_ptr, self.in_edge, self.in_src):
            array.setflags(write=False)

    def with_p(self, p: Sequence[float] | np.ndarray | float) -> ICGraph:
        """The same structure with other probabilities, in edge-id order; the structure's arrays are shared."""
        chance = np.array(np.broadcast_to(np.asarray(p, dtype=float), (self.m,)))
        self._check_p(self.src, self.dst, chance)
        other = object.__new__(ICGraph)
        for name in self.__slots__:
            setattr(other, name, getattr(self, name))
        other._set_p(chance)
        return other

    @classmethod
    def from_networkx(cls, graph: Any, prob: Any = "p") -> ICGraph:
        """From a networkx graph; an undirected edge becomes two arcs.

        Args:
            graph: any networkx graph; node names become labels.
            prob: an edge attribute, one number for all, or a function of (u, v, attributes).

        Raises:
            ValueError: if an edge lacks the attribute.
        """
        labels = list(graph.nodes)
        index = {label: i for i, label in enumerate(labels)}
        arcs: list[tuple[int, int, float]] = []
        for u, v, data in graph.edges(data=True):
            for a, b in ((u, v),) if graph.is_directed() else ((u, v), (v, u)):
                if isinstance(prob, str):
                    if prob not in data:
                        raise ValueError(
                            f"edge {u!r} - {v!r} has no attribute {prob!r}; give prob= a number or function"
                        )
                    chance = data[prob]
                else:
                    chance = prob(a, b, data) if callable(prob) else prob
                arcs.append((index[a], index[b], float(chance)))
        table = np.array(arcs, dtype=float).reshape(-1, 3)
        plain = labels == list(range(len(labels)))
        return cls(len(labels), table[:, 0], table[:, 1], table[:, 2], None if plain else labels)

    @classmethod
    def from_scipy(cls, matrix: Any, labels: Sequence[Hashable] | None = None) -> ICGraph:
        """From a square scipy sparse matrix: entry (u, v) is the probability of the arc u -> v."""
        entries = matrix.tocoo()
        if entries.shape[0] != entries.shape[1]:
            raise ValueError(f"an adjacency matrix is square, got shape {entries.shape}")
        return cls(entries.shape[0], entries.row, entries.col, entries.data, labels)

    @classmethod
    def from_igraph(cls, graph: Any, prob: str | float = "p") -> ICGraph:
        """From an igraph graph; the vertex attribute ``name`` gives labels, undirected edges become two arcs."""
        arcs = np.array(graph.get_edgelist(), dtype=np.int64).reshape(-1, 2)
        p = np.asarray(graph.es[prob] if isinstance(prob, str) else np.full(len(arcs), prob), dtype=float)
        if not graph.is_directed():
            arcs, p = np.concatenate([arcs, arcs[:, ::-1]]), np.concatenate([p, p])
        names = graph.vs["name"] if "name" in graph.vs.attributes() else None
        return cls(graph.vcount(), arcs[:, 0], arcs[:, 1], p, names)

    def to_networkx(self) -> Any:
        """A ``networkx.DiGraph`` with the attribute ``p``."""
        import networkx as nx

        graph = nx.DiGraph()
        names = self.labels or range(self.n)
        graph.add_nodes_from(names)
        graph.add_edges_from((names[u], names[v], {"p": p}) for u, v, p in zip(self.src, self.dst, self.p, strict=True))
        return graph

    def index(self, nodes: Iterable[Hashable]) -> np.ndarray:
        """Node numbers of labels (of numbers themselves where the graph has no labels).

        Raises:
            ValueError: for an unknown node.
        """
        found = []
        for node in nodes:
            if self._index is not None:
                if node not in self._index:
                    raise ValueError(f"unknown node {node!r}")
                found.append(self._index[node])
            elif isinstance(node, (int, np.integer)) and 0 <= node < self.n:
                found.append(int(node))
            else:
                raise ValueError(f"unknown node {node!r}; nodes are numbered 0 to {self.n - 1}")
        return np.array(found, dtype=np.int64)

    def names(self, nodes: Iterable[int]) -> list[Hashable]:
        """Labels of node numbers."""
        return [self.labels[i] if self.labels else int(i) for i in nodes]

    @property
    def in_degree(self) -> np.ndarray:
        return np.diff(self.in_ptr)

    @property
    def out_degree(self) -> np.ndarray:
        return np.diff(self.out_ptr)

    def __repr__(self) -> str:
        return f"ICGraph(n={self.n}, m={self.m})"


def _skip_rates(ptr: np.ndarray, p: np.ndarray) -> np.ndarray:
    """ln(1-p) for nodes whose arcs share one small p (then geometric skips beat a coin an arc), else 0."""
    degree = np.diff(ptr)
    filled = degree > 0
    rates = np.zeros(degree.size)
    if p.size:
        first = ptr[:-1][filled]
        low, high = np.minimum.reduceat(p, first), np.maximum.reduceat(p, first)
        usable = (low == high) & (low > 0) & (low < 1) & (low * degree[filled] + 1 < degree[filled] / 6)
        rates[np.flatnonzero(filled)[usable]] = np.log1p(-low[usable])
    return rates


def check_seeds(g: ICGraph, seeds: Seeds) -> np.ndarray:
    """Validate a seed set given by node numbers.

    Raises:
        ValueError: for a seed outside [0, n) or named twice.
    """
    chosen = np.asarray(seeds, dtype=np.int64).ravel()
    outside = chosen[(chosen < 0) | (chosen >= g.n)]
    if outside.size:
        raise ValueError(f"unknown seed {outside[0]}; nodes are numbered 0 to {g.n - 1}")
    values, counts = np.unique(chosen, return_counts=True)
    if (counts > 1).any():
        raise ValueError(f"seed {g.names(values[counts > 1])[0]!r} is named twice")
    return chosen


def check_k(g: ICGraph, k: int) -> int:
    """Validate a seed budget; warns when the graph has no arc, so that any k nodes are as good."""
    if not 1 <= k <= g.n:
        raise ValueError(f"k must lie between 1 and the number of nodes {g.n}, got {k}")
    if g.m == 0:
        warnings.warn("the graph has no arcs: the first k nodes are as good as any", stacklevel=3)
    return int(k)


def check_weights(g: ICGraph) -> None:
    """Raise ValueError if the weights into a node sum to more than 1 (not a linear threshold model)."""
    total = np.bincount(g.dst, weights=g.p, minlength=g.n)
    if g.n and total.max() > 1 + 1e-9:
        worst = int(total.argmax())
        raise ValueError(f"LT weights into node {g.names([worst])[0]!r} sum to {total[worst]:.4g}, expected at most 1")


def draw_key(rng: np.random.Generator) -> np.uint64:
    """A key from which runs derive theirs."""
    return rng.integers(0, 2**64, dtype=np.uint64)


def key_of(base: np.uint64, index: int) -> np.uint64:
    """The key of one run of a batch."""
    return np.uint64(run_key(np.uint64(base), index))


# --- kernels -----------------------------------------------------------------------------------------------------


@njit(inline="always")
def mix64(z):
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


@njit(inline="always")
def random_bits(key, counter):
    """53 random bits for this counter."""
    return mix64(key + np.uint64(counter + 1) * _GAMMA) >> np.uint64(11)


@njit(inline="always")
def random_uniform(key, counter):
    """A number in (0, 1]."""
    return (np.float64(random_bits(key, counter)) + 1.0) * 1.1102230246251565e-16


@njit(cache=True)
def run_key(base, index):
    return mix64(mix64(base) + np.uint64(index + 1) * _GAMMA)


@njit(inline="always")
def geometric_skip(key, counter, rate):
    """Failures before the next success of coins with ln(1-p) = rate, capped so that it fits an index."""
    return np.int64(min(np.log(random_uniform(key, counter)) / rate, 2147483647.0))


@njit(nogil=True, cache=True)
def ic_cascade(out_ptr, dst, thr, skip, seeds, key, times, queue):
    """One IC run; ``times`` is -1 everywhere on entry. Returns the number active; they stand first in ``queue``."""
    count = 0
    for s in seeds:
        times[s] = 0
        queue[count] = s
        count += 1
    head = 0
    while head < count:
        u = queue[head]
        head += 1
        step = times[u] + 1
        first, last = out_ptr[u], out_ptr[u + 1]
        if skip[u] != 0.0:
            draw = first
            e = first + geometric_skip(key, draw, skip[u])
            while e < last:
                v = dst[e]
                if times[v] < 0:
                    times[v] = step
                    queue[count] = v
                    count += 1
                draw += 1
                e += 1 + geometric_skip(key, draw, skip[u])
        else:
            for e in range(first, last):
                if random_bits(key, e) < thr[e]:
                    v = dst[e]
                    if times[v] < 0:
                        times[v] = step
                        queue[count] = v
                        count += 1
    return count


@njit(cache=True)
def _live_edges(out_ptr, thr, skip, nodes, key, coins):
    """The coins of all out-edges of these nodes, as :func:`ic_cascade` saw them: 1 live, 0 dead."""
    for u in nodes:
        first, last = out_ptr[u], out_ptr[u + 1]
        if skip[u] != 0.0:
            coins[first:last] = 0
            draw = first
            e = first + geometric_skip(key, draw, skip[u])
            while e < last:
                coins[e] = 1
                draw += 1
                e += 1 + geometric_skip(key, draw, skip[u])
        else:
            for e in range(first, last):
                coins[e] = 1 if random_bits(key, e) < thr[e] else 0


@njit(nogil=True, cache=True)
def lt_cascade(out_ptr, dst, p, seeds, key, times, queue, load):
    """One LT run; ``times`` is -1 and ``load`` 0 on entry, and ``load`` is 0 again on return."""
    count = 0
    for s in seeds:
        times[s] = 0
        queue[count] = s
        count += 1
    head = 0
    while head < count:
        u = queue[head]
        head += 1
        for e in range(out_ptr[u], out_ptr[u + 1]):
            v = dst[e]
            load[v] += p[e]
            if times[v] < 0 and load[v] >= random_uniform(key, v):
                times[v] = times[u] + 1
                queue[count] = v
                count += 1
    for i in range(count):
        for e in range(out_ptr[queue[i]], out_ptr[queue[i] + 1]):
            load[dst[e]] = 0.0
    return count


@njit(nogil=True, cache=True)
def _spread_block(lt, out_ptr, dst, thr, p, skip, seeds, base, low, high):
    """Sum and sum of squares of the sizes of runs low .. high-1."""
    n = out_ptr.size - 1
    times = np.full(n, -1, np.int32)
    queue = np.empty(n, np.int32)
    load = np.zeros(n if lt else 0)
    total, squares = 0.0, 0.0
    for run in range(low, high):
        key = run_key(base, run)
        if lt:
            count = lt_cascade(out_ptr, dst, p, seeds, key, times, queue, load)
        else:
            count = ic_cascade(out_ptr, dst, thr, skip, seeds, key, times, queue)
        for i in range(count):
            times[queue[i]] = -1
        total += count
        squares += np.float64(count) * count
    return total, squares


@njit(nogil=True, cache=True)
def _simulate_block(lt, out_ptr, dst, thr, p, skip, seeds, base, low, high, out):
    n = out_ptr.size - 1
    queue = np.empty(n, np.int32)
    load = np.zeros(n if lt else 0)
    for run in range(low, high):
        key = run_key(base, run)
        if lt:
            lt_cascade(out_ptr, dst, p, seeds, key, out[run], queue, load)
        else:
            ic_cascade(out_ptr, dst, thr, skip, seeds, key, out[run], queue)


# --- simulation --------------------------------------------------------------------------------------------------


def run_keyed(
    g: ICGraph, seeds: np.ndarray, key: np.uint64, model: Model = "ic", return_edges: bool = False
) -> tuple[np.ndarray, np.ndarray | None]:
    """One run with a given key: the same key gives the same coins whatever the seeds are.

    Returns:
        Activation steps, int32 (n,), -1 where never active; and with ``return_edges`` the coins (see
        :func:`simulate`), else None.
    """
    times = np.full(g.n, -1, np.int32)
    queue = np.empty(g.n, np.int32)
    key = np.uint64(key)
    if model == "lt":
        lt_cascade(g.out_ptr, g.dst, g.p, seeds, key, times, queue, np.zeros(g.n))
        return times, None
    count = ic_cascade(g.out_ptr, g.dst, g.thr, g.out_skip, seeds, key, times, queue)
    if not return_edges:
        return times, None
    coins = np.full(g.m, -1, np.int8)
    _live_edges(g.out_ptr, g.thr, g.out_skip, queue[:count], key, coins)
    return times, coins


def simulate(
    g: ICGraph, seeds: Seeds, rng: np.random.Generator, return_edges: bool = False, model: Model = "ic"
) -> Any:
    """One cascade.

    Args:
        g: graph; with ``model="lt"`` its probabilities are threshold weights, at most 1 in total into a node.
        seeds: node numbers active at step 0.
        rng: source of the run's key.
        return_edges: also return the coins (IC only).
        model: ``"ic"`` or ``"lt"``.

    Returns:
        Activation steps, int32 array (n,), -1 for nodes that stayed inactive. With ``return_edges`` a pair of them and
        an int8 array (m,): 1 live, 0 dead, -1 for edges whose source never became active.
    """
    chosen = check_seeds(g, seeds)
    if model == "lt":
        check_weights(g)
        if return_edges:
            raise ValueError("the linear threshold model has no edge coins to return")
    times, coins = run_keyed(g, chosen, draw_key(rng), model, return_edges)
    return (times, coins) if return_edges else times


def _blocks(runs: int, n_jobs: int) -> list[tuple[int, int]]:
    bounds = np.linspace(0, runs, min(n_jobs, runs) + 1).astype(int) if runs else np.zeros(1, int)
    return [(int(low), int(high)) for low, high in itertools.pairwise(bounds)]


def _check_runs(runs: int, n_jobs: int) -> None:
    if runs < 1 or n_jobs < 1:
        raise ValueError(f"runs and n_jobs must be >= 1, got {runs} and {n_jobs}")


def map_threads(function: Callable[..., Any], blocks: Sequence[tuple], n_jobs: int) -> list[Any]:
    """Call a function that releases the GIL on each block's arguments, in order of the blocks."""
    if n_jobs == 1 or len(blocks) == 1:
        return [function(*block) for block in blocks]
    with ThreadPoolExecutor(n_jobs) as pool:
        return list(pool.map(lambda block: function(*block), blocks))


def spread(
    g: ICGraph,
    seeds: Seeds,
    runs: int = 10_000,
    rng: np.random.Generator | None = None,
    n_jobs: int = 1,
    model: Model = "ic",
) -> Estimate:
    """Monte-Carlo estimate of the expected number of active nodes, seeds included.

    The result depends on ``rng`` alone, not on ``n_jobs``. Cost: the edges out of active nodes, in every run.
    """
    chosen = check_seeds(g, seeds)
    _check_runs(runs, n_jobs)
    if model == "lt":
        check_weights(g)
    base = draw_key(np.random.default_rng() if rng is None else rng)
    fixed = (model == "lt", g.out_ptr, g.dst, g.thr, g.p, g.out_skip, chosen, base)
    parts = map_threads(_spread_block, [(*fixed, low, high) for low, high in _blocks(runs, n_jobs)], n_jobs)
    mean = sum(part[0] for part in parts) / runs
    variance = max(sum(part[1] for part in parts) / runs - mean**2, 0.0)
    return Estimate(mean, math.sqrt(variance / max(runs - 1, 1)), runs)


def simulate_many(
    g: ICGraph, seeds: Seeds, runs: int, rng: np.random.Generator, n_jobs: int = 1, model: Model = "ic"
) -> np.ndarray:
    """Activation steps of many independent cascades, int32 array (runs, n)."""
    chosen = check_seeds(g, seeds)
    _check_runs(runs, n_jobs)
    if model == "lt":
        check_weights(g)
    out = np.full((runs, g.n), -1, np.int32)
    fixed = (model == "lt", g.out_ptr, g.dst, g.thr, g.p, g.out_skip, chosen, draw_key(rng))
    map_threads(_simulate_block, [(*fixed, low, high, out) for low, high in _blocks(runs, n_jobs)], n_jobs)
    return out


# --- exact spread ------------------------------------------------------------------------------------------------


def _relevant(g: ICGraph, seeds: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Nodes reachable from the seeds over arcs with p > 0, and the ids of those arcs that can matter."""
    reached = np.zeros(g.n, bool)
    reached[seeds] = True
    stack = list(seeds)
    while stack:
        u = stack.pop()
        for e in range(g.out_ptr[u], g.out_ptr[u + 1]):
            if g.p[e] > 0 and not reached[g.dst[e]]:
                reached[g.dst[e]] = True
                stack.append(g.dst[e])
    is_seed = np.zeros(g.n, bool)
    is_seed[seeds] = True
    matters = (g.p > 0) & reached[g.src] & ~is_seed[g.dst]
    return np.flatnonzero(reached), np.flatnonzero(matters)


@njit(cache=True)
def _enumerate(n, sure_src, sure_dst, src, dst, p, start):
    """Sum over live-edge graphs of probability times the number of nodes reached from the bit set ``start``."""
    total = 0.0
    m = src.size
    adjacent = np.zeros(n, np.int64)
    for mask in range(1 << m):
        weight = 1.0
        adjacent[:] = 0
        for i in range(sure_src.size):
            adjacent[sure_src[i]] |= 1 << sure_dst[i]
        for i in range(m):
            if (mask >> i) & 1:
                weight *= p[i]
                adjacent[src[i]] |= 1 << dst[i]
            else:
                weight *= 1.0 - p[i]
        reached, fresh = start, start
        while fresh:
            following = np.int64(0)
            for u in range(n):
                if (fresh >> u) & 1:
                    following |= adjacent[u]
            fresh = following & ~reached
            reached |= fresh
        size = 0
        while reached:
            reached &= reached - 1
            size += 1
        total += weight * size
    return total


def exact_spread(g: ICGraph, seeds: Seeds, p: np.ndarray | None = None) -> float:
    """Expected spread by enumeration of live-edge graphs.

    Args:
        g: graph.
        seeds: node numbers.
        p: other probabilities in edge-id order.

    Raises:
        ValueError: if more than 24 arcs with 0 < p < 1 matter for these seeds, or more than 62 nodes are reachable.
    """
    g = g if p is None else g.with_p(p)
    chosen = check_seeds(g, seeds)
    nodes, arcs = _relevant(g, chosen)
    sure, unsure = arcs[g.p[arcs] == 1], arcs[g.p[arcs] < 1]
    if unsure.size > MAX_EXACT_ARCS:
        raise ValueError(f"exact spread enumerates at most {MAX_EXACT_ARCS} uncertain arcs, got {unsure.size}")
    if nodes.size > 62:
        raise ValueError(f"exact spread handles at most 62 reachable nodes, got {nodes.size}")
    position = np.zeros(g.n, np.int64)
    position[nodes] = np.arange(nodes.size)
    start = int(np.bitwise_or.reduce(np.int64(1) << position[chosen])) if chosen.size else 0
    args = (position[g.src[sure]], position[g.dst[sure]], position[g.src[unsure]], position[g.dst[unsure]])
    return float(_enumerate(nodes.size, *args, g.p[unsure], start))
