r"""Edge probabilities from node-level feedback: trials, likelihood, estimators, confidence ellipsoids, projection.

With :math:`\theta_e = -\ln(1 - p_e)` a trial (a set x of newly active parents of an inactive node v) activates v with
probability :math:`q = 1 - \exp(-x \cdot \theta_v)`. Given the past, trials are independent, so the likelihood of a
cascade is the product over its trials. Within a node, arrays follow the order of its in-arcs (``in_edge``).
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from numba import njit

from oim.ic import ICGraph, mix64

Estimator = Literal["mle", "pseudo", "em"]
Confidence = Literal["fisher", "theory"]
Covariance = Literal["auto", "full", "diagonal"]

METHODS = {"mle": 0, "pseudo": 1, "em": 2}
PSEUDO, EM = METHODS["pseudo"], METHODS["em"]
FLOOR = 1e-12  # of x.theta in the likelihood's derivatives
FISHER_FLOOR = 0.01  # of x.theta in the Fisher information


class FeedbackError(ValueError):
    """Activation steps that no cascade on the graph can produce.

    Attributes:
        node: label of the offending node, or None.
        step: its reported step, or None.
    """

    def __init__(self, message: str, node: Hashable | None = None, step: int | None = None) -> None:
        super().__init__(message)
        self.node, self.step = node, step


# --- trials ------------------------------------------------------------------------------------------------------


@njit(cache=True)
def _unexplained(in_ptr, in_src, times):
    """The first node active at a step > 0 without a parent active one step before, or -1."""
    for v in range(times.size):
        if times[v] > 0:
            explained = False
            for e in range(in_ptr[v], in_ptr[v + 1]):
                if times[in_src[e]] == times[v] - 1:
                    explained = True
                    break
            if not explained:
                return v
    return -1


@njit(cache=True)
def _extract(out_ptr, dst, in_position, order, times, horizon, count, start):
    """Trials of one cascade.

    ``order`` lists the active nodes by step; ``count`` (zeros) and ``start`` are scratch of length n. Returns node,
    outcome, offsets and members (positions among the node's in-arcs) of the trials.
    """
    touched = np.empty(count.size, np.int32)
    n_touched, records = 0, 0
    for u in order:
        if times[u] + 1 > horizon:
            continue
        for e in range(out_ptr[u], out_ptr[u + 1]):
            v = dst[e]
            if times[v] < 0 or times[u] < times[v]:
                if count[v] == 0:
                    touched[n_touched] = v
                    n_touched += 1
                count[v] += 1
                records += 1
    total = 0
    for i in range(n_touched):
        start[touched[i]] = total
        total += count[touched[i]]
        count[touched[i]] = 0
    members = np.empty(records, np.int32)
    steps = np.empty(records, np.int32)
    for u in order:
        if times[u] + 1 > horizon:
            continue
        for e in range(out_ptr[u], out_ptr[u + 1]):
            v = dst[e]
            if times[v] < 0 or times[u] < times[v]:
                members[start[v] + count[v]] = in_position[e]
                steps[start[v] + count[v]] = times[u]
                count[v] += 1
    node = np.empty(records, np.int32)
    outcome = np.empty(records, np.int64)
    offsets = np.zeros(records + 1, np.int64)
    trials = 0
    for i in range(n_touched):
        v = touched[i]
        j, last = start[v], start[v] + count[v]
        count[v] = 0
        while j < last:
            step = steps[j]
            while j < last and steps[j] == step:
                j += 1
            node[trials] = v
            outcome[trials] = 1 if step == times[v] - 1 else 0
            offsets[trials + 1] = j
            trials += 1
    return node[:trials], outcome[:trials], offsets[: trials + 1], members


@njit(cache=True)
def _hash_group(v, members, low, high):
    key = mix64(np.uint64(v) + np.uint64(0x9E3779B97F4A7C15))
    for i in range(low, high):
        key = mix64(key ^ np.uint64(members[i] + 1)) + np.uint64(0x9E3779B97F4A7C15)
    return key


@njit(cache=True)
def _fill_table(table, g_node, g_ptr, g_members, n_groups):
    """Enter all stored groups but forgotten ones (of node -1) into an empty hash table."""
    mask = np.uint64(table.size - 1)
    for g in range(n_groups):
        if g_node[g] < 0:
            continue
        slot = _hash_group(g_node[g], g_members, g_ptr[g], g_ptr[g + 1]) & mask
        while table[slot] >= 0:
            slot = (slot + np.uint64(1)) & mask
        table[slot] = g


@njit(cache=True)
def _insert(
    node, tries, hits, offsets, members, table, g_node, g_ptr, g_members, g_n, g_k, following, head, size, n_groups
):
    """Add trials to the store of distinct groups (open addressing); returns the new number of groups."""
    mask = np.uint64(table.size - 1)
    for t in range(node.size):
        v, low, high = node[t], offsets[t], offsets[t + 1]
        slot = _hash_group(v, members, low, high) & mask
        found = -1
        while table[slot] >= 0:
            g = table[slot]
            if g_node[g] == v and g_ptr[g + 1] - g_ptr[g] == high - low:
                same = True
                for i in range(high - low):
                    if g_members[g_ptr[g] + i] != members[low + i]:
                        same = False
                        break
                if same:
                    found = g
                    break
            slot = (slot + np.uint64(1)) & mask
        if found < 0:
            found = n_groups
            table[slot] = found
            g_node[found] = v
            for i in range(high - low):
                g_members[g_ptr[found] + i] = members[low + i]
            g_ptr[found + 1] = g_ptr[found] + high - low
            g_n[found], g_k[found] = 0, 0
            following[found] = head[v]
            head[v] = found
            size[v] += 1
            n_groups += 1
        g_n[found] += tries[t]
        g_k[found] += hits[t]
    return n_groups


@njit(cache=True)
def _forget(v, head, following, size, g_node):
    """Drop a node's groups: they stay where they are, without a node, until nobody reads them."""
    g = head[v]
    for _ in range(size[v]):
        g_node[g] = -1
        g = following[g]
    head[v], size[v] = -1, 0


@njit(cache=True)
def _gather(v, head, following, size, g_ptr, g_members, g_n, g_k):
    """The groups of one node as CSR: offsets, members, trials, successes, oldest first."""
    G = size[v]
    ptr = np.zeros(G + 1, np.int64)
    order = np.empty(G, np.int64)
    g = head[v]
    for i in range(G - 1, -1, -1):
        order[i] = g
        g = following[g]
    for i in range(G):
        ptr[i + 1] = ptr[i] + g_ptr[order[i] + 1] - g_ptr[order[i]]
    members = np.empty(ptr[G], np.int32)
    n, k = np.empty(G), np.empty(G)
    for i in range(G):
        g = order[i]
        for j in range(g_ptr[g + 1] - g_ptr[g]):
            members[ptr[i] + j] = g_members[g_ptr[g] + j]
        n[i], k[i] = g_n[g], g_k[g]
    return ptr, members, n, k


def _grown(array: np.ndarray, needed: int) -> np.ndarray:
    if needed <= array.size:
        return array
    bigger = np.zeros(max(2 * array.size, needed), array.dtype)
    bigger[: array.size] = array
    return bigger


@dataclass
class OnlineNode:
    """A node whose estimate is updated once a trial: theta, information with its inverse, trials of each in-arc."""

    theta: np.ndarray
    information: np.ndarray
    inverse: np.ndarray
    tried: np.ndarray

    def step(self, members: np.ndarray, tries: int, hits: int, cap: float) -> None:
        """One Newton step for trials of one parent set; the inverse by Sherman and Morrison, O(d^2)."""
        self.tried[members] += tries
        z = float(cautious_theta(self.theta[members], self.tried[members]).sum())
        weight = tries * fisher_weight(z)
        self.information[np.ix_(members, members)] += weight
        along = self.inverse[:, members].sum(axis=1)
        scale = 1 + weight * along[members].sum()
        self.inverse -= np.outer(along, along * (weight / scale))
        slope = (tries - hits) - hits / math.expm1(z)
        self.theta = np.clip(self.theta - slope / scale * along, 0.0, cap)


class NodeTrials:
    """All trials seen so far, as distinct (node, parent set) groups with numbers of trials and successes.

    A node with more than ``max_groups`` distinct parent sets is switched to one-step online Newton: its groups are
    discarded and every later trial updates its estimate and information once.

    Attributes:
        n_rounds: cascades added.
        n_trials: trials a node, int64 (n,).
        dirty: nodes with trials since :meth:`clean`, bool (n,).
        online: node -> :class:`OnlineNode` of the nodes that were switched.
    """

    def __init__(self, g: ICGraph, max_groups: int = 20_000, lam: float = 1e-3, p_max: float = 0.99) -> None:
        if max_groups < 1:
            raise ValueError(f"max_groups must be >= 1, got {max_groups}")
        self.g, self.max_groups, self.lam, self.p_max = g, max_groups, lam, p_max
        self._in_position = np.empty(g.m, np.int32)
        self._in_position[g.in_edge] = np.arange(g.m) - np.repeat(g.in_ptr[:-1], g.in_degree)
        self.n_rounds = 0
        self.n_trials = np.zeros(g.n, np.int64)
        self.dirty = np.zeros(g.n, bool)
        self.online: dict[int, OnlineNode] = {}
        self._reset()

    def _reset(self) -> None:
        n = self.g.n
        self._groups = 0
        self._table = np.full(64, -1, np.int32)
        self._node, self._n, self._k, self._next = (np.zeros(32, t) for t in (np.int32, np.int64, np.int64, np.int32))
        self._ptr, self._members = np.zeros(33, np.int64), np.zeros(64, np.int32)
        self._head, self._size = np.full(n, -1, np.int32), np.zeros(n, np.int64)
        self._scratch = (np.zeros(n, np.int64), np.zeros(n, np.int64))

    def check(self, times: np.ndarray, external: bool = False) -> np.ndarray:
        """Validate activation steps, int (n,), -1 for inactive.

        Raises:
            FeedbackError: for a wrong length, or a node active without a parent active one step before.
        """
        steps = np.asarray(times)
        if steps.shape != (self.g.n,):
            raise FeedbackError(f"expected the steps of {self.g.n} nodes, got shape {steps.shape}")
        whole = np.issubdtype(steps.dtype, np.integer) or (np.isfinite(steps) & (steps == np.floor(steps))).all()
        if not whole:
            raise FeedbackError("activation steps must be whole numbers, -1 for inactive")
        steps = np.where(steps < 0, -1, steps).astype(np.int32)
        v = -1 if external else int(_unexplained(self.g.in_ptr, self.g.in_src, steps))
        if v >= 0:
            name, step = self.g.names([v])[0], int(steps[v])
            raise FeedbackError(f"node {name!r} is active at step {step} but no parent was at {step - 1}", name, step)
        return steps

    def add(self, times: np.ndarray, observed_until: int | None = None, external: bool = False) -> None:
        """Add one cascade; seeds are the nodes at step 0.

        Args:
            times: activation steps, int (n,), -1 for inactive.
            observed_until: last step that was watched; later steps count neither as success nor as failure.
            external: accept nodes that no parent explains: they became active from outside, so their activation is no
                trial's success, and the trials before it failed.

        Raises:
            FeedbackError: as :meth:`check`; nothing of the cascade is stored then.
        """
        steps = self.check(times, external)
        horizon = np.iinfo(np.int32).max if observed_until is None else int(observed_until)
        if horizon < 0:
            raise FeedbackError(f"observed_until must be >= 0, got {observed_until}")
        if observed_until is not None:
            steps = np.where(steps > horizon, -1, steps).astype(np.int32)
        active = np.flatnonzero(steps >= 0)
        order = active[np.argsort(steps[active], kind="stable")]
        g = self.g
        node, hits, offsets, members = _extract(
            g.out_ptr, g.dst, self._in_position, order, steps, horizon, *self._scratch
        )
        self._store(node, np.ones(node.size, np.int64), hits, offsets, members)
        self.n_rounds += 1

    def add_many(self, times: np.ndarray, observed_until: int | None = None, external: bool = False) -> None:
        """Add the cascades in the rows of an int array (rounds, n); all are checked before any is stored."""
        rows = np.atleast_2d(times)
        for row in rows:
            self.check(row, external)
        for row in rows:
            self.add(row, observed_until, external)

    def _store(
        self, node: np.ndarray, tries: np.ndarray, hits: np.ndarray, offsets: np.ndarray, members: np.ndarray
    ) -> None:
        np.add.at(self.n_trials, node, tries)
        self.dirty[node] = True
        if self.online:
            kept = self._step_online(node, tries, hits, offsets, members)
            if not kept.any():
                return
            lengths = np.diff(offsets)
            members = members[np.repeat(kept, lengths)]
            offsets = np.concatenate([[0], np.cumsum(lengths[kept])])
            node, tries, hits = node[kept], tries[kept], hits[kept]
        most = self._groups + node.size
        for name in ("_node", "_n", "_k", "_next"):
            setattr(self, name, _grown(getattr(self, name), most))
        self._ptr = _grown(self._ptr, most + 1)
        self._members = _grown(self._members, int(self._ptr[self._groups]) + members.size)
        if 2 * most > self._table.size:
            self._rehash(most)
        store = (self._table, self._node, self._ptr, self._members, self._n, self._k, self._next)
        self._groups = int(_insert(node, tries, hits, offsets, members, *store, self._head, self._size, self._groups))
        for v in np.flatnonzero(self._size > self.max_groups):
            self._switch_online(int(v))

    def _rehash(self, groups: int) -> None:
        self._table = np.full(1 << math.ceil(math.log2(4 * groups)), -1, np.int32)
        _fill_table(self._table, self._node, self._ptr, self._members, self._groups)

    def _switch_online(self, v: int) -> None:
        warnings.warn(
            f"node {self.g.names([v])[0]!r} has more than {self.max_groups} distinct parent sets: "
            "its estimate is updated online from here on",
            stacklevel=4,
        )
        X, n, _ = self.groups(v)
        theta = np.full(self.g.m, 0.1)
        _estimate(self, np.array([v]), theta, "mle", self.lam, self.p_max)
        theta = theta[self.g.in_ptr[v] : self.g.in_ptr[v + 1]].copy()
        tries = X.T @ n
        weight = n * fisher_weight(X @ cautious_theta(theta, tries))
        information = _weighted_gram(X.astype(float), weight) + self.lam * np.eye(X.shape[1])
        _forget(v, self._head, self._next, self._size, self._node)
        self.online[v] = OnlineNode(theta, information, np.linalg.inv(information), tries)

    def _step_online(
        self, node: np.ndarray, tries: np.ndarray, hits: np.ndarray, offsets: np.ndarray, members: np.ndarray
    ) -> np.ndarray:
        """Online Newton steps for switched nodes; returns which trials belong to other nodes."""
        kept = np.ones(node.size, bool)
        cap = -math.log1p(-self.p_max)
        for t, v in enumerate(node):
            if int(v) in self.online:
                kept[t] = False
                self.online[int(v)].step(members[offsets[t] : offsets[t + 1]], int(tries[t]), int(hits[t]), cap)
        return kept

    def groups(self, v: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The distinct parent sets of node v: indicator bool (G, in-degree), trials (G,), successes (G,)."""
        ptr, members, n, k = _gather(v, *self._lists)
        X = np.zeros((n.size, int(self.g.in_degree[v])), bool)
        X[np.repeat(np.arange(n.size), np.diff(ptr)), members] = True
        return X, n, k

    @property
    def _lists(self) -> tuple[np.ndarray, ...]:
        """The groups as linked lists, one a node: what :func:`_gather` reads after the node."""
        return self._head, self._next, self._size, self._ptr, self._members, self._n, self._k

    def clean(self) -> None:
        """Forget which nodes are dirty."""
        self.dirty[:] = False

    def edge_trials(self) -> np.ndarray:
        """How many trials each edge took part in, int64 (m,) in edge-id order."""
        counts = np.zeros(self.g.m, np.int64)
        flat = self._flat()
        position = np.repeat(self.g.in_ptr[flat["node"]], np.diff(flat["offsets"])) + flat["members"]
        np.add.at(counts, self.g.in_edge[position], np.repeat(flat["n"], np.diff(flat["offsets"])))
        for v, node in self.online.items():
            counts[self.g.in_edge[self.g.in_ptr[v] : self.g.in_ptr[v + 1]]] += node.tried.astype(np.int64)
        return counts

    def _flat(self) -> dict[str, np.ndarray]:
        G = self._groups
        keep, lengths = self._node[:G] >= 0, np.diff(self._ptr[: G + 1])
        return {
            "node": self._node[:G][keep],
            "n": self._n[:G][keep],
            "k": self._k[:G][keep],
            "offsets": np.concatenate([[0], np.cumsum(lengths[keep])]),
            "members": self._members[: self._ptr[G]][np.repeat(keep, lengths)],
        }

    def merge(self, other: NodeTrials) -> None:
        """Add all trials of another store on the same graph (no node of either may be switched to online Newton)."""
        if other.g.m != self.g.m or not (other.g.src == self.g.src).all() or not (other.g.dst == self.g.dst).all():
            raise ValueError("trials can be merged only on the same graph")
        if self.online or other.online:
            raise ValueError("a node was switched to online Newton; such trials cannot be merged")
        flat = other._flat()
        self._store(flat["node"], flat["n"], flat["k"], flat["offsets"], flat["members"])
        self.n_rounds += other.n_rounds

    def state_dict(self) -> dict[str, Any]:
        """Everything as arrays and numbers."""
        state: dict[str, Any] = {"rounds": self.n_rounds, "dirty": self.dirty.copy(), "trials": self.n_trials.copy()}
        state |= self._flat()
        state["online"] = {
            str(v): {"theta": node.theta, "information": node.information, "tried": node.tried}
            for v, node in self.online.items()
        }
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what :meth:`state_dict` gave."""
        self._reset()
        self.online = {}
        self._store(*(np.asarray(state[name]) for name in ("node", "n", "k", "offsets", "members")))
        self.n_rounds = int(state["rounds"])
        self.dirty, self.n_trials = np.array(state["dirty"]), np.array(state["trials"])
        self.online = {
            int(v): OnlineNode(
                np.array(kept["theta"]),
                np.array(kept["information"]),
                np.linalg.inv(kept["information"]),
                np.array(kept["tried"]),
            )
            for v, kept in state["online"].items()
        }


def steps_array(g: ICGraph, times: np.ndarray | Mapping[Hashable, int]) -> np.ndarray:
    """Activation steps as an array, from an array or from a mapping label -> step (absent: inactive)."""
    if not isinstance(times, Mapping):
        return np.asarray(times)
    steps = np.full(g.n, -1, np.int32)
    steps[g.index(times)] = list(times.values())
    return steps


# --- likelihood --------------------------------------------------------------------------------------------------


def negative_log_likelihood(theta: np.ndarray, X: np.ndarray, n: np.ndarray, k: np.ndarray, lam: float = 0.0) -> float:
    r""":math:`\sum_g [-k_g \ln(1 - e^{-z_g}) + (n_g - k_g) z_g] + \frac{\lambda}{2} |\theta|^2` with z = X theta."""
    z = np.maximum(X @ theta, FLOOR)
    return float(np.sum(-k * np.log(-np.expm1(-z)) + (n - k) * z) + lam / 2 * theta @ theta)


def gradient(theta: np.ndarray, X: np.ndarray, n: np.ndarray, k: np.ndarray, lam: float = 0.0) -> np.ndarray:
    r""":math:`\sum_g x_g [(n_g - k_g) - k_g / (e^{z_g} - 1)] + \lambda \theta`, shape (d,)."""
    z = np.maximum(X @ theta, FLOOR)
    return X.T @ ((n - k) - k / np.expm1(z)) + lam * theta


def hessian(theta: np.ndarray, X: np.ndarray, n: np.ndarray, k: np.ndarray, lam: float = 0.0) -> np.ndarray:
    r""":math:`\sum_g k_g / (4 \sinh^2(z_g / 2)) x_g x_g^T + \lambda I`, shape (d, d)."""
    z = np.maximum(X @ theta, FLOOR)
    return _weighted_gram(X.astype(float), k / (4 * np.sinh(z / 2) ** 2)) + lam * np.eye(theta.size)


@njit(cache=True)
def fisher_weight(z):
    """Expected information of one trial along x, 1 / (e^z - 1), with z floored at 0.01."""
    return 1 / np.expm1(np.maximum(z, FISHER_FLOOR))


@njit(cache=True)
def cautious_theta(theta, tries):
    """Where the Fisher information is evaluated: at least 1 / (tries + 2), by the rule of succession.

    An arc that failed in all of its few trials is not known to be near 0. At the bare estimate its information would
    be that of hundreds of trials, and bad luck would never be corrected.
    """
    return np.maximum(theta, 1 / (tries + 2))


def log_likelihood(trials: NodeTrials, p: np.ndarray) -> float:
    """Log-likelihood of all stored trials under edge probabilities p, shape (m,)."""
    theta = -np.log1p(-np.minimum(p, 1 - 1e-15))[trials.g.in_edge]
    total = 0.0
    for v in np.flatnonzero(trials._size):
        low, high = trials.g.in_ptr[v], trials.g.in_ptr[v + 1]
        total -= negative_log_likelihood(theta[low:high], *trials.groups(int(v)))
    return total


def _weighted_gram(X: np.ndarray, weight: np.ndarray) -> np.ndarray:
    return (X * weight[:, None]).T @ X


# --- estimators --------------------------------------------------------------------------------------------------


@njit(cache=True)
def _coordinate_newton(ptr, members, n, k, theta, lam, cap, pseudo, sweeps, tol):
    """Cyclic coordinate Newton on [0, cap], in place. Returns whether the last sweep moved less than ``tol``."""
    d, G = theta.size, n.size
    column = np.zeros(d + 1, np.int64)
    for i in members:
        column[i + 1] += 1
    for i in range(d):
        column[i + 1] += column[i]
    fill = column[:-1].copy()
    rows = np.empty(members.size, np.int32)
    z = np.zeros(G)
    for g in range(G):
        for j in range(ptr[g], ptr[g + 1]):
            i = members[j]
            rows[fill[i]] = g
            fill[i] += 1
            z[g] += theta[i]
    for _ in range(sweeps):
        moved = 0.0
        for i in range(d):
            if column[i] == column[i + 1]:
                continue
            slope, curvature = lam * theta[i], lam + 1e-12
            for j in range(column[i], column[i + 1]):
                g = rows[j]
                s = max(z[g], 1e-12)
                if pseudo:
                    miss = np.exp(-s)
                    slope += n[g] * (1.0 - miss) - k[g]
                    curvature += n[g] * miss
                else:
                    grown = np.expm1(s)
                    slope += n[g] - k[g]
                    if k[g] > 0:
                        slope -= k[g] / grown
                        curvature += k[g] * (grown + 1.0) / (grown * grown)
            new = theta[i] - slope / curvature
            if new <= 0.0:
                new = 0.1 * theta[i] if theta[i] > 1e-9 and slope > 0.0 else 0.0
            new = min(new, cap)
            change = new - theta[i]
            if change != 0.0:
                theta[i] = new
                for j in range(column[i], column[i + 1]):
                    z[rows[j]] += change
                moved = max(moved, abs(change))
        if moved <= tol:
            return True
    return False


@njit(cache=True)
def _em(ptr, members, n, k, p, cap, sweeps, tol):
    """Expectation maximization on edge probabilities, in place."""
    tried = np.zeros(p.size)
    for g in range(n.size):
        for j in range(ptr[g], ptr[g + 1]):
            tried[members[j]] += n[g]
    credit = np.empty(p.size)
    for _ in range(sweeps):
        credit[:] = 0.0
        for g in range(n.size):
            if k[g] > 0:
                miss = 1.0
                for j in range(ptr[g], ptr[g + 1]):
                    miss *= 1.0 - p[members[j]]
                q = max(1.0 - miss, 1e-300)
                for j in range(ptr[g], ptr[g + 1]):
                    credit[members[j]] += k[g] * p[members[j]] / q
        moved = 0.0
        for i in range(p.size):
            if tried[i] > 0:
                new = min(credit[i] / tried[i], cap)
                moved = max(moved, abs(new - p[i]))
                p[i] = new
        if moved <= tol:
            return


def _projected_newton(
    theta: np.ndarray, X: np.ndarray, n: np.ndarray, k: np.ndarray, lam: float, cap: float, iterations: int = 50
) -> np.ndarray:
    """Newton on the free coordinates with backtracking; finishes what coordinate descent leaves on flat valleys."""
    X = X.astype(float)
    value = negative_log_likelihood(theta, X, n, k, lam)
    for _ in range(iterations):
        slope = gradient(theta, X, n, k, lam)
        free = ~(((theta <= 0) & (slope >= 0)) | ((theta >= cap) & (slope <= 0)))
        if not free.any():
            break
        curvature = hessian(theta, X, n, k, lam)[np.ix_(free, free)]
        step = np.zeros_like(theta)
        step[free] = np.linalg.solve(curvature, slope[free])
        size = 1.0
        while size > 1e-10:
            trial = np.clip(theta - size * step, 0.0, cap)
            found = negative_log_likelihood(trial, X, n, k, lam)
            if found <= value - 1e-4 * slope @ (theta - trial):
                break
            size /= 2
        else:
            break
        moved = np.abs(trial - theta).max()
        theta, value = trial, found
        if moved < 1e-10:
            break
    return theta


@njit(cache=True)
def _fit_groups(ptr, members, n, k, theta, method, lam, p_max, sweeps):
    """Estimate one node's theta in place; arcs in no group keep their value. Returns whether it converged."""
    cap = -np.log1p(-p_max)
    seen = np.zeros(theta.size, np.bool_)
    for i in members:
        seen[i] = True
    work = np.zeros(theta.size)
    for i in range(theta.size):
        theta[i] = min(max(theta[i], 0.0), cap)
        if seen[i]:
            # A coordinate at exactly 0 whose groups have successes has infinite slope: start inside.
            work[i] = min(max(-np.expm1(-theta[i]), 1e-3), p_max) if method == EM else max(theta[i], 1e-3)
    converged = True
    if method == EM:
        _em(ptr, members, n, k, work, p_max, 20_000, 1e-10)
        work = -np.log1p(-work)
    else:
        converged = _coordinate_newton(ptr, members, n, k, work, lam, cap, method == PSEUDO, sweeps, 1e-7)
    for i in range(theta.size):
        if seen[i]:
            theta[i] = work[i]
    return converged


@njit(cache=True, nogil=True)
def _fit_nodes(
    nodes, in_ptr, theta, method, lam, p_max, sweeps, head, following, size, g_ptr, g_members, g_n, g_k, converged
):
    """:func:`_fit_groups` of many nodes; theta is in in-arc order."""
    for i in range(nodes.size):
        v = nodes[i]
        ptr, members, n, k = _gather(v, head, following, size, g_ptr, g_members, g_n, g_k)
        if n.size > 0:
            low, high = in_ptr[v], in_ptr[v + 1]
            converged[i] = _fit_groups(ptr, members, n, k, theta[low:high], method, lam, p_max, sweeps)


def _estimate(
    trials: NodeTrials,
    nodes: np.ndarray,
    theta: np.ndarray,
    estimator: Estimator,
    lam: float,
    p_max: float,
    sweeps: int = 60,
) -> None:
    """Estimate theta (in-arc order, in place) of the in-arcs of some nodes, with ``theta`` as warm start."""
    in_ptr, converged = trials.g.in_ptr, np.ones(nodes.size, bool)
    _fit_nodes(nodes, in_ptr, theta, METHODS[estimator], lam, p_max, sweeps, *trials._lists, converged)
    for v in nodes[~converged] if estimator == "mle" else ():
        X, n, k = trials.groups(int(v))
        if X.size <= 20_000_000:
            part = theta[in_ptr[v] : in_ptr[v + 1]]
            seen = X.any(0)
            part[seen] = _projected_newton(part[seen], X[:, seen], n, k, lam, -math.log1p(-p_max))
    for v in set(trials.online).intersection(nodes.tolist()):
        theta[in_ptr[v] : in_ptr[v + 1]] = trials.online[v].theta


# --- confidence ellipsoids ---------------------------------------------------------------------------------------


def dense_bytes(g: ICGraph) -> int:
    """Bytes of one dense covariance matrix a node, sum of squared in-degrees times 8."""
    return int(8 * np.sum(g.in_degree.astype(np.int64) ** 2))


def diagonal_nodes(g: ICGraph, covariance: Covariance, max_dense_bytes: int) -> np.ndarray:
    """Which nodes keep only the diagonal of V so that the dense rest fits, bool (n,).

    Raises:
        ValueError: for ``"full"`` above the limit; nothing has been allocated then.
    """
    if covariance == "diagonal":
        return np.ones(g.n, bool)
    needed = dense_bytes(g)
    if needed <= max_dense_bytes:
        return np.zeros(g.n, bool)
    if covariance == "full":
        raise ValueError(f"full covariances need {needed:,} bytes, max_dense_bytes is {max_dense_bytes:,}")
    order = np.argsort(-g.in_degree, kind="stable")
    rest = needed - np.cumsum(8 * g.in_degree[order].astype(np.int64) ** 2)
    diagonal = np.zeros(g.n, bool)
    diagonal[order[: int(np.argmax(rest <= max_dense_bytes)) + 1]] = True
    warnings.warn(
        f"{diagonal.sum()} nodes of large in-degree keep only a diagonal covariance; parents of theirs that always "
        "act together are then explored as badly as by coordinate-wise bounds",
        stacklevel=3,
    )
    return diagonal


@dataclass(frozen=True)
class EdgeFit:
    r"""Estimates with confidence ellipsoids :math:`(\theta - \hat\theta)^T V_v (\theta - \hat\theta) \le \rho_v^2`.

    Attributes:
        theta: -ln(1 - p), edge-id order, (m,).
        p: probabilities, (m,).
        se: standard errors of p by the delta method, (m,).
        rho: radius of each node's ellipsoid, (n,).
        diagonal: nodes that keep only the diagonal of V, bool (n,).
        v_flat: all V one after the other (row-major, or the diagonal alone).
        l_flat: their Cholesky factors L with V = L L^T (square roots of the diagonal).
        offset: where each node's block starts, (n + 1,).
        logdet: ln det V of each node, (n,).
    """

    g: ICGraph
    theta: np.ndarray
    p: np.ndarray
    se: np.ndarray
    rho: np.ndarray
    diagonal: np.ndarray
    v_flat: np.ndarray
    l_flat: np.ndarray
    offset: np.ndarray
    logdet: np.ndarray

    @property
    def V(self) -> list[np.ndarray]:
        """One information matrix a node, (d, d), or its diagonal, (d,)."""
        return [self.block(v)[0] for v in range(self.g.n)]

    def block(self, v: int) -> tuple[np.ndarray, np.ndarray]:
        """V and L of one node, views."""
        low, high, d = self.offset[v], self.offset[v + 1], int(self.g.in_degree[v])
        shape = (d,) if self.diagonal[v] else (d, d)
        return self.v_flat[low:high].reshape(shape), self.l_flat[low:high].reshape(shape)

    def diagonal_entries(self) -> np.ndarray:
        """Where the diagonal of every V stands in ``v_flat``, in in-arc order, (m,)."""
        degree = self.g.in_degree
        position = np.arange(self.g.m) - np.repeat(self.g.in_ptr[:-1], degree)
        stride = np.where(self.diagonal, 1, degree + 1)
        return np.repeat(self.offset[:-1], degree) + position * np.repeat(stride, degree)

    def node_theta(self, v: int) -> np.ndarray:
        """theta of a node's in-arcs, (in-degree,)."""
        return self.theta[self.g.in_edge[self.g.in_ptr[v] : self.g.in_ptr[v + 1]]]


def _cholesky(V: np.ndarray) -> np.ndarray:
    """Lower Cholesky factors of a stack of matrices; one that is not numerically definite has its spectrum lifted."""
    try:
        return np.linalg.cholesky(V)
    except np.linalg.LinAlgError:
        values, vectors = np.linalg.eigh((V + V.swapaxes(-1, -2)) / 2)
        lifted = np.maximum(values, 1e-10 * np.maximum(values[..., -1:], 1.0))
        return np.linalg.cholesky((vectors * lifted[..., None, :]) @ vectors.swapaxes(-1, -2))


def _radii(
    confidence: Confidence,
    d: np.ndarray,
    trials: np.ndarray,
    widest: np.ndarray,
    delta: float,
    lam_v: float,
    cap: float,
) -> np.ndarray:
    """Radius of each ellipsoid from in-degree, number of trials and largest parent set, each (nodes,)."""
    if confidence == "fisher":
        from scipy.stats import chi2

        sizes, where = np.unique(d, return_inverse=True)
        return np.sqrt(chi2.ppf(1 - delta, sizes))[where]
    noise = 0.5 * np.sqrt(d * np.log1p(trials * d / lam_v) + 2 * math.log(1 / delta))
    return noise * np.exp(cap * widest) + math.sqrt(lam_v) * cap


def fit(
    trials: NodeTrials,
    estimator: Estimator = "mle",
    lam: float = 1e-3,
    p_max: float = 0.99,
    nodes: Sequence[int] | np.ndarray | None = None,
    *,
    previous: EdgeFit | None = None,
    confidence: Confidence = "fisher",
    delta: float = 0.05,
    lam_v: float = 1e-2,
    theta_0: float = 0.1,
    covariance: Covariance = "auto",
    max_dense_bytes: int = 1 << 30,
    refit: bool = True,
) -> EdgeFit:
    """Fit edge probabilities and their confidence ellipsoids, node by node.

    Args:
        trials: the data.
        estimator: ``"mle"``; ``"pseudo"``, the root of sum x (k - n (1 - e^-z)) = 0, the estimating equation of the
            pair-oracle theory; or ``"em"``, which must agree with the MLE at ``lam=0``.
        lam: ridge on theta of the negative log-likelihood.
        p_max: cap of the probabilities.
        nodes: fit only these (default all); the others keep ``previous``.
        previous: warm start.
        confidence: ``"fisher"``: V is the Fisher information at the estimate and rho^2 a chi-square quantile;
            ``"theory"``: V counts trials and rho is the self-normalised bound (very wide).
        delta: 1 - coverage.
        lam_v: ridge of V.
        theta_0: value of arcs that were never tried.
        covariance: ``"auto"``, ``"full"`` or ``"diagonal"``, see :func:`diagonal_nodes`.
        max_dense_bytes: memory for dense V.
        refit: False keeps theta of ``previous`` and only recomputes the ellipsoids.

    Raises:
        ValueError: for an unknown name or values out of range.
    """
    for name, value, known in (
        ("estimator", estimator, ("mle", "pseudo", "em")),
        ("confidence", confidence, ("fisher", "theory")),
        ("covariance", covariance, ("auto", "full", "diagonal")),
    ):
        if value not in known:
            raise ValueError(f"{name} must be one of {', '.join(known)}, got {value!r}")
    if not 0 < p_max < 1 or not 0 < delta < 1 or lam < 0 or lam_v <= 0:
        raise ValueError(
            f"need 0 < p_max < 1, 0 < delta < 1, lam >= 0, lam_v > 0, got {p_max}, {delta}, {lam}, {lam_v}"
        )
    g = trials.g
    if previous is None:
        previous = _blank_fit(g, theta_0, lam_v, diagonal_nodes(g, covariance, max_dense_bytes))
        nodes = np.arange(g.n) if nodes is None else nodes
    chosen = np.arange(g.n) if nodes is None else np.asarray(nodes, dtype=np.int64)
    result = replace(
        previous,
        theta=previous.theta.copy(),
        se=previous.se.copy(),
        rho=previous.rho.copy(),
        v_flat=previous.v_flat.copy(),
        l_flat=previous.l_flat.copy(),
        logdet=previous.logdet.copy(),
    )
    chosen = chosen[g.in_degree[chosen] > 0]
    theta = result.theta[g.in_edge]
    if refit:
        _estimate(trials, chosen, theta, estimator, lam, p_max)
    widest = _information(trials, chosen, theta, confidence, lam_v, result)
    result.theta[g.in_edge] = theta
    _factorise(result, chosen)
    cap = -math.log1p(-p_max)
    result.rho[chosen] = _radii(
        confidence, g.in_degree[chosen].astype(float), trials.n_trials[chosen], widest, delta, lam_v, cap
    )
    return replace(result, p=-np.expm1(-result.theta))


def _factorise(fit: EdgeFit, nodes: np.ndarray) -> None:
    """Cholesky factors, log-determinants and standard errors from V, in place: one LAPACK batch an in-degree."""
    g, degree = fit.g, fit.g.in_degree
    for d in np.unique(degree[nodes]).astype(int):
        same = nodes[degree[nodes] == d]
        size = max(1, (1 << 22) // (d * d))
        for part in (same[i : i + size] for i in range(0, same.size, size)):
            for diagonal in (False, True):
                batch = part[fit.diagonal[part] == diagonal]
                arcs = g.in_edge[g.in_ptr[batch][:, None] + np.arange(d)]
                at = fit.offset[batch][:, None] + np.arange(d if diagonal else d * d)
                if diagonal:
                    V = fit.v_flat[at]
                    fit.l_flat[at], variance, logdet = np.sqrt(V), 1 / V, np.log(V).sum(1)
                else:
                    L = _cholesky(fit.v_flat[at].reshape(-1, d, d))
                    fit.l_flat[at] = L.reshape(-1, d * d)
                    variance = np.square(np.linalg.inv(L)).sum(1)
                    logdet = 2 * np.log(np.diagonal(L, axis1=1, axis2=2)).sum(1)
                fit.logdet[batch] = logdet
                fit.se[arcs] = np.exp(-fit.theta[arcs]) * np.sqrt(variance)


def _blank_fit(g: ICGraph, theta_0: float, lam_v: float, diagonal: np.ndarray) -> EdgeFit:
    d = g.in_degree.astype(np.int64)
    offset = np.concatenate([[0], np.cumsum(np.where(diagonal, d, d * d))])
    theta = np.full(g.m, theta_0)
    v_flat = np.zeros(offset[-1])
    fit = EdgeFit(
        g=g,
        theta=theta,
        p=-np.expm1(-theta),
        se=np.full(g.m, np.inf),
        rho=np.zeros(g.n),
        diagonal=diagonal,
        v_flat=v_flat,
        l_flat=np.zeros_like(v_flat),
        offset=offset,
        logdet=d * math.log(lam_v),
    )
    at = fit.diagonal_entries()
    fit.v_flat[at], fit.l_flat[at] = lam_v, math.sqrt(lam_v)
    return fit


@njit(cache=True, nogil=True)
def _fill_information(
    nodes, in_ptr, theta, fisher, lam_v, diagonal, offset, v_flat, head, following, size, g_ptr, g_members, g_n, g_k
):
    """V = sum_g w_g x_g x_g^T + lam_v I of every node, in place; returns the size of each largest parent set."""
    widest = np.ones(nodes.size, np.int64)
    for index in range(nodes.size):
        v = nodes[index]
        low, d = in_ptr[v], in_ptr[v + 1] - in_ptr[v]
        ptr, members, n, _ = _gather(v, head, following, size, g_ptr, g_members, g_n, g_k)
        tries = np.zeros(d)
        for g in range(n.size):
            for a in range(ptr[g], ptr[g + 1]):
                tries[members[a]] += n[g]
        V = v_flat[offset[v] : offset[v + 1]]
        V[:] = 0.0
        stride = 1 if diagonal[v] else d + 1
        for i in range(d):
            V[i * stride] = lam_v
        for g in range(n.size):
            weight, z = n[g], 0.0
            if fisher:
                for a in range(ptr[g], ptr[g + 1]):
                    z += cautious_theta(theta[low + members[a]], tries[members[a]])
                weight *= fisher_weight(z)
            widest[index] = max(widest[index], ptr[g + 1] - ptr[g])
            for a in range(ptr[g], ptr[g + 1]):
                if diagonal[v]:
                    V[members[a]] += weight
                else:
                    for b in range(ptr[g], ptr[g + 1]):
                        V[members[a] * d + members[b]] += weight
    return widest


def _information(
    trials: NodeTrials, nodes: np.ndarray, theta: np.ndarray, confidence: Confidence, lam_v: float, fit: EdgeFit
) -> np.ndarray:
    """Fill V of some nodes (theta in in-arc order); returns the size of each node's largest parent set."""
    blocks = (fit.diagonal, fit.offset, fit.v_flat)
    widest = _fill_information(nodes, trials.g.in_ptr, theta, confidence == "fisher", lam_v, *blocks, *trials._lists)
    for index in np.flatnonzero(np.isin(nodes, list(trials.online))):
        v = int(nodes[index])
        information = trials.online[v].information
        V, _ = fit.block(v)
        V[:] = np.diagonal(information) + lam_v if fit.diagonal[v] else information + lam_v * np.eye(len(information))
        widest[index] = len(information)
    return widest


# --- projection --------------------------------------------------------------------------------------------------


@njit(cache=True)
def _active_set(V, y, theta):
    """Finish the minimisation exactly from a feasible start, in place (Lawson and Hanson's algorithm on V)."""
    d = y.size
    right = V @ y
    free = theta > 0.0
    for _ in range(10 * d + 20):
        while free.any():
            index = np.flatnonzero(free)
            inner = np.empty((index.size, index.size))
            for a in range(index.size):
                for b in range(index.size):
                    inner[a, b] = V[index[a], index[b]]
            solved = np.linalg.solve(inner, right[index])
            if solved.min() > 0.0:
                theta[index] = solved
                break
            step, blocking = 1.0, -1
            for a in range(index.size):
                if solved[a] <= 0.0:
                    ratio = theta[index[a]] / (theta[index[a]] - solved[a]) if theta[index[a]] > 0.0 else 0.0
                    if ratio <= step:
                        step, blocking = ratio, a
            for a in range(index.size):
                theta[index[a]] += step * (solved[a] - theta[index[a]])
            for a in range(index.size):
                if a == blocking or theta[index[a]] <= 0.0:
                    theta[index[a]] = 0.0
                    free[index[a]] = False
        ascent = right - V @ theta
        best, most = -1, 1e-10
        for i in range(d):
            if not free[i]:
                gain = ascent[i] / (np.abs(right[i]) + V[i, i])
                if gain > most:
                    best, most = i, gain
        if best < 0:
            return
        free[best] = True


@njit(cache=True)
def _project(V, y, sweeps, tol):
    """argmin over theta >= 0 of (theta - y)^T V (theta - y)."""
    d = y.size
    theta = np.maximum(y, 0.0)
    negative = False
    for i in range(d):
        if y[i] < 0.0:
            negative = True
    if not negative:
        return theta
    residual = np.zeros(d)
    for i in range(d):
        for j in range(d):
            residual[i] += V[i, j] * (theta[j] - y[j])
    for _ in range(sweeps):
        moved = 0.0
        for i in range(d):
            new = max(0.0, theta[i] - residual[i] / V[i, i])
            change = new - theta[i]
            if change != 0.0:
                theta[i] = new
                for j in range(d):
                    residual[j] += V[j, i] * change
                moved = max(moved, abs(change))
        if moved <= tol:
            return theta
    # On ill-conditioned V (parents that act together) coordinate descent crawls: finish with exact solves.
    _active_set(V, y, theta)
    return theta


def project_psd_nonneg(V: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Projection onto the non-negative orthant in the norm of V: argmin_{theta >= 0} (theta - y)^T V (theta - y).

    Cyclic coordinate descent on the residual V (theta - y), then an active-set method where that crawls. It is
    non-expansive in the V-norm; clipping coordinate by coordinate is not.

    Args:
        V: symmetric positive definite, (d, d).
        y: (d,).
    """
    V, y = np.ascontiguousarray(V, dtype=float), np.ascontiguousarray(y, dtype=float)
    if V.shape != (y.size, y.size):
        raise ValueError(f"V must be ({y.size}, {y.size}) for y of length {y.size}, got {V.shape}")
    return _project(V, y, 50, 1e-14)


@njit(cache=True)
def _perturb(in_ptr, theta, v_flat, l_flat, offset, diagonal, z, scale, out):
    """out_v = projection of theta_v + scale_v L_v^-T z_v, for every node; all arrays in in-arc order."""
    for v in range(in_ptr.size - 1):
        low, high = in_ptr[v], in_ptr[v + 1]
        d = high - low
        if d == 0:
            continue
        start = offset[v]
        if diagonal[v]:
            for i in range(d):
                out[low + i] = max(0.0, theta[low + i] + scale[v] * z[low + i] / l_flat[start + i])
            continue
        L = l_flat[start : start + d * d].reshape(d, d)
        y = z[low:high].copy()
        for i in range(d - 1, -1, -1):
            for j in range(i + 1, d):
                y[i] -= L[j, i] * y[j]
            y[i] /= L[i, i]
        for i in range(d):
            y[i] = theta[low + i] + scale[v] * y[i]
        out[low:high] = _project(v_flat[start : start + d * d].reshape(d, d), y, 50, 1e-8)


def perturbed_theta(fit: EdgeFit, z: np.ndarray, scale: np.ndarray) -> np.ndarray:
    r""":math:`\Pi_V(\hat\theta_v + s_v L_v^{-T} z_v)` of every node.

    Args:
        fit: estimates with ellipsoids.
        z: directions in in-arc order, (m,); standard normal for samples, unit vectors for vertices.
        scale: one factor a node, (n,).

    Returns:
        theta in edge-id order, (m,), non-negative.
    """
    g = fit.g
    out = np.empty(g.m)
    _perturb(g.in_ptr, fit.theta[g.in_edge], fit.v_flat, fit.l_flat, fit.offset, fit.diagonal, z, scale, out)
    theta = np.empty(g.m)
    theta[g.in_edge] = out
    return theta


# --- an estimator in scikit-learn's manner -----------------------------------------------------------------------


class ICEstimator:
    """Edge probabilities of a known graph from cascade logs.

    Args:
        estimator: ``"mle"``, ``"pseudo"`` or ``"em"``.
        lam: ridge on theta.
        p_max: cap of the probabilities.

    Attributes:
        edge_proba_: estimated probabilities in edge-id order, (m,).
        edge_se_: standard errors, (m,); infinite for arcs that were never tried.
        edge_trials_: trials that each arc took part in, (m,).
        trials_: the trials.
        fit_: the whole :class:`EdgeFit`.
    """

    def __init__(self, estimator: Estimator = "mle", lam: float = 1e-3, p_max: float = 0.99) -> None:
        self.estimator, self.lam, self.p_max = estimator, lam, p_max

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """The constructor's arguments."""
        return {"estimator": self.estimator, "lam": self.lam, "p_max": self.p_max}

    def set_params(self, **params: Any) -> ICEstimator:
        """Change constructor arguments."""
        unknown = set(params) - set(self.get_params())
        if unknown:
            raise ValueError(f"unknown parameters {sorted(unknown)}; known: {sorted(self.get_params())}")
        for name, value in params.items():
            setattr(self, name, value)
        return self

    def fit(
        self,
        graph: ICGraph,
        cascades: np.ndarray | Iterable[np.ndarray | Mapping[Hashable, int]],
        observed_until: int | None = None,
        external: bool = False,
    ) -> ICEstimator:
        """Fit to cascades: rows of steps, (rounds, n) with -1 for inactive, or mappings node label -> step.

        See :meth:`NodeTrials.add` for ``observed_until`` and ``external``.
        """
        self.trials_ = NodeTrials(graph, lam=self.lam, p_max=self.p_max)
        rows = np.array([steps_array(graph, cascade) for cascade in cascades])
        self.trials_.add_many(rows, observed_until, external)
        self.fit_ = fit(self.trials_, self.estimator, self.lam, self.p_max)
        self.edge_trials_ = self.trials_.edge_trials()
        self.edge_proba_ = self.fit_.p
        self.edge_se_ = np.where(self.edge_trials_ > 0, self.fit_.se, np.inf)
        return self

    def score(self, graph: ICGraph, cascades: np.ndarray | Iterable[np.ndarray | Mapping[Hashable, int]]) -> float:
        """Mean log-likelihood a cascade."""
        held_out = NodeTrials(graph)
        held_out.add_many(np.array([steps_array(graph, cascade) for cascade in cascades]))
        return log_likelihood(held_out, self.edge_proba_) / held_out.n_rounds
