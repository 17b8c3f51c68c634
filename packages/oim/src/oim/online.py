r"""Online influence maximization from node-level feedback with a standard offline oracle, and its baselines.

This is a reconstruction: it solves the paper's problem with a guarantee of the same form, but only the paper's abstract
was available. :class:`EnsembleOIM` samples parameters inside each node's confidence ellipsoid, asks a *standard* oracle
for seeds under every sample, and plays the set with the largest claimed spread. ``docs/theory.md`` sketches the proof.
"""

from __future__ import annotations

import json
import math
import os
import tempfile
import time
import warnings
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple, Protocol

import numpy as np
from numba import njit

from oim.ic import (
    ICGraph,
    Model,
    check_k,
    check_seeds,
    draw_key,
    exact_spread,
    ic_cascade,
    key_of,
    run_key,
    run_keyed,
    spread,
)
from oim.learning import (
    Confidence,
    Covariance,
    EdgeFit,
    Estimator,
    FeedbackError,
    NodeTrials,
    diagonal_nodes,
    fit,
    perturbed_theta,
    project_psd_nonneg,
    steps_array,
)
from oim.oracles import (
    Choice,
    Oracle,
    degree,
    exact_seeds,
    make_oracle,
    opim_c,
    random_nodes,
    seed_sets,
)

# --- environments ------------------------------------------------------------------------------------------------


class Environment(Protocol):
    """What answers a seed set with feedback; ``graph`` is the truth where it is known."""

    graph: ICGraph

    def round(self, t: int, nodes: np.ndarray, edges: bool) -> tuple[np.ndarray, np.ndarray | None]:
        """Activation steps (n,) of round t, and the coins (m,) where ``edges`` asks for them."""
        ...


class CascadeEnv:
    """Simulated campaigns with common random numbers: round t has the same coins for every policy.

    Args:
        graph: the true probabilities.
        seed: seed of the coin table.
        model: ``"ic"`` or ``"lt"``.
    """

    def __init__(self, graph: ICGraph, seed: int = 0, model: Model = "ic") -> None:
        self.graph, self.model = graph, model
        self._base = draw_key(np.random.default_rng(seed))

    def round(self, t: int, nodes: np.ndarray, edges: bool = False) -> tuple[np.ndarray, np.ndarray | None]:
        return run_keyed(self.graph, nodes, key_of(self._base, t), self.model, edges)


# --- policies ----------------------------------------------------------------------------------------------------


class Round(NamedTuple):
    """One finished round: seeds as node numbers, and how many nodes became active."""

    nodes: tuple[int, ...]
    reward: int


class OnlinePolicy:
    """Ask for seeds, tell what happened. Works with a simulator and with a real campaign alike.

    Args:
        graph: the structure; its probabilities are not looked at.
        k: seeds a round.
        random_state: seed of the policy's own randomness.

    Attributes:
        history: the finished rounds.
        n_oracle: oracle calls so far.
        feedback: ``"node"`` (activation steps suffice) or ``"edge"`` (needs coins).
    """

    feedback: ClassVar[Literal["node", "edge"]] = "node"
    model: ClassVar[Model] = "ic"

    def __init__(self, graph: ICGraph, k: int, *, random_state: int | None = None) -> None:
        self.graph, self.k = graph, check_k(graph, k)
        self.rng = np.random.default_rng(random_state)
        self.history: list[Round] = []
        self.n_oracle = 0
        self._asked: np.ndarray | None = None

    @property
    def t(self) -> int:
        """Rounds finished."""
        return len(self.history)

    def ask(self) -> list[Hashable]:
        """Seeds for the next round, as labels; the same until :meth:`tell` is called."""
        if self._asked is None:
            self._asked = np.asarray(self._next_seeds(), dtype=np.int64)
        return self.graph.names(self._asked)

    def tell(
        self,
        seeds: Sequence[Hashable] | np.ndarray,
        times: np.ndarray | Mapping[Hashable, int],
        edges: np.ndarray | None = None,
        observed_until: int | None = None,
    ) -> None:
        """Feed one finished round back.

        Args:
            seeds: the seeds that were played, as labels; they need not be those asked for.
            times: activation steps: an int array (n,) with -1 for inactive, or a mapping label -> step.
            edges: coins int8 (m,) with -1 for untried edges, for policies with edge feedback.
            observed_until: last step that was watched.

        Raises:
            FeedbackError: for steps that no cascade can produce; nothing of the round is stored then.
            ValueError: for unknown or repeated seeds.
        """
        nodes = check_seeds(self.graph, self.graph.index(seeds))
        steps = steps_array(self.graph, times)
        if steps.shape != (self.graph.n,):
            raise FeedbackError(f"expected the steps of {self.graph.n} nodes, got shape {steps.shape}")
        wrong = [v for v in nodes if steps[v] != 0]
        if wrong:
            name, step = self.graph.names(wrong)[0], int(steps[wrong[0]])
            raise FeedbackError(f"seed {name!r} must be active at step 0, got {step}", name, step)
        started = np.setdiff1d(np.flatnonzero(steps == 0), nodes)
        if started.size:
            name = self.graph.names(started)[0]
            raise FeedbackError(f"node {name!r} is active at step 0 but is not a seed", name, 0)
        if self.feedback == "edge" and (edges is None or np.shape(edges) != (self.graph.m,)):
            raise FeedbackError(f"{type(self).__name__} needs the coins of all {self.graph.m} edges")
        self._learn(steps, edges, observed_until)
        self.history.append(Round(tuple(int(v) for v in nodes), int((steps >= 0).sum())))
        self._asked = None

    def _next_seeds(self) -> np.ndarray:
        raise NotImplementedError

    def _learn(self, steps: np.ndarray, edges: np.ndarray | None, observed_until: int | None) -> None:
        """Use one round's feedback; must leave no trace when it raises."""

    def state_dict(self) -> dict[str, Any]:
        """All that is needed to go on bit for bit: nested dicts of arrays, numbers and strings."""
        width = max((len(r.nodes) for r in self.history), default=0)
        seeds = np.array([[*r.nodes, *[-1] * (width - len(r.nodes))] for r in self.history], np.int64)
        return {
            "policy": type(self).__name__,
            "seeds": seeds.reshape(len(self.history), width),
            "rewards": np.array([r.reward for r in self.history], np.int64),
            "n_oracle": self.n_oracle,
            "rng": json.dumps(self.rng.bit_generator.state),
            "asked": np.empty(0, np.int64) if self._asked is None else self._asked,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what :meth:`state_dict` of an equally constructed policy gave."""
        if state["policy"] != type(self).__name__:
            raise ValueError(f"this is the state of a {state['policy']}, not of a {type(self).__name__}")
        self.history = [
            Round(tuple(int(v) for v in row if v >= 0), int(reward))
            for row, reward in zip(state["seeds"], state["rewards"], strict=True)
        ]
        self.n_oracle = int(state["n_oracle"])
        self.rng.bit_generator.state = json.loads(state["rng"])
        self._asked = np.array(state["asked"]) if len(state["asked"]) else None


def warmup_rounds(g: ICGraph, k: int, n0: int, pack: bool) -> list[tuple[int, ...]]:
    """Seed sets that give every node with out-arcs ``n0`` rounds of clean single-parent trials.

    Args:
        g: graph.
        k: most seeds a round.
        n0: rounds a node.
        pack: seed up to k nodes together that share no child and are not children of each other.
    """
    roots = np.argsort(-g.out_degree, kind="stable")
    roots = [int(v) for v in roots if g.out_degree[v]]
    if not pack:
        return [(v,) for _ in range(n0) for v in roots]
    groups: list[tuple[list[int], set[int]]] = []
    for v in roots:
        reach = {v, *g.dst[g.out_ptr[v] : g.out_ptr[v + 1]].tolist()}
        for members, taken in groups:
            if len(members) < k and not reach & taken:
                members.append(v)
                taken |= reach
                break
        else:
            groups.append(([v], set(reach)))
    return [tuple(members) for _ in range(n0) for members, _ in groups]


class NodeLearner(OnlinePolicy):
    """Warm-up, fits at lazily spaced update times, and between them the seeds of :meth:`_choose`.

    Args:
        graph: the structure.
        k: seeds a round.
        horizon: number of rounds, where it is known; the warm-up then takes at most a fifth of it.
        oracle: name (see :func:`oim.oracles.make_oracle`) or function of graph, k and generator.
        n0: warm-up rounds a node, or ``"sqrt"`` for ceil(sqrt(T) / nodes with out-arcs).
        pack_warmup: several seeds a warm-up round where that keeps trials clean.
        growth: next update at (1 + growth) times the last.
        lazy: ``"time"``, or ``"logdet"``: update when sum_v ln det V_v grew by ln(1 + growth).
        estimator: see :func:`oim.learning.fit`.
        confidence: ``"fisher"`` or ``"theory"``.
        covariance: ``"auto"``, ``"full"`` or ``"diagonal"``.
        max_dense_bytes: memory for dense covariances.
        lam: ridge of the likelihood.
        lam_v: ridge of V.
        p_max: cap of the probabilities.
        delta: 1 - coverage of the ellipsoids.
        max_groups: distinct parent sets a node before it is learned online.
        n_rr: RR sets an oracle call, default max(2000, 40 n / k) up to 200,000.
        validate: judge seeds on fresh RR sets, so that claimed spreads are unbiased.
        random_state: seed.
    """

    def __init__(
        self,
        graph: ICGraph,
        k: int,
        *,
        horizon: int | None = None,
        oracle: str | Oracle = "ris",
        n0: int | Literal["sqrt"] = 2,
        pack_warmup: bool = False,
        growth: float = 0.05,
        lazy: Literal["time", "logdet"] = "time",
        estimator: Estimator = "mle",
        confidence: Confidence = "fisher",
        covariance: Covariance = "auto",
        max_dense_bytes: int = 1 << 30,
        lam: float = 1e-3,
        lam_v: float = 1e-2,
        p_max: float = 0.99,
        delta: float = 0.05,
        max_groups: int = 20_000,
        n_rr: int | None = None,
        validate: bool = True,
        random_state: int | None = None,
    ) -> None:
        super().__init__(graph, k, random_state=random_state)
        if growth <= 0:
            raise ValueError(f"growth must be positive, got {growth}")
        if lazy not in ("time", "logdet"):
            raise ValueError(f"lazy must be 'time' or 'logdet', got {lazy!r}")
        if n0 == "sqrt" and horizon is None:
            raise ValueError("n0='sqrt' needs a horizon")
        diagonal_nodes(graph, covariance, max_dense_bytes)
        self.horizon, self.growth, self.lazy = horizon, growth, lazy
        self.oracle = make_oracle(oracle, R=n_rr, validate=validate, model=self.model)
        self.trials = NodeTrials(graph, max_groups, lam, p_max)
        self.p_max = p_max
        self._fit_options: dict[str, Any] = {
            "estimator": estimator,
            "confidence": confidence,
            "covariance": covariance,
            "max_dense_bytes": max_dense_bytes,
            "lam": lam,
            "lam_v": lam_v,
            "p_max": p_max,
            "delta": delta,
        }
        self.fitted: EdgeFit | None = None
        self.warmup = self._plan_warmup(n0, pack_warmup)
        self._current = np.empty(0, np.int64)
        self._next_update = len(self.warmup)
        self._logdet = -math.inf
        self._warned_cap = False

    def _plan_warmup(self, n0: int | Literal["sqrt"], pack: bool) -> list[tuple[int, ...]]:
        roots = max(int((self.graph.out_degree > 0).sum()), 1)
        if n0 == "sqrt":
            rounds = max(1, math.ceil(math.sqrt(self.horizon or 1) / roots))
        elif isinstance(n0, int) and n0 >= 0:
            rounds = n0
        else:
            raise ValueError(f"n0 must be a number >= 0 or 'sqrt', got {n0!r}")
        planned = warmup_rounds(self.graph, self.k, rounds, pack)
        return planned if self.horizon is None else planned[: self.horizon // 5]

    def _next_seeds(self) -> np.ndarray:
        if self.t < len(self.warmup):
            return np.array(self.warmup[self.t])
        if self._update_is_due():
            self._update()
        return self._current

    def _update_is_due(self) -> bool:
        if self._current.size == 0:
            return True
        if self.lazy == "time":
            return self.t >= self._next_update
        self._refit(estimate=False)
        assert self.fitted is not None
        return float(self.fitted.logdet.sum()) >= self._logdet + math.log1p(self.growth)

    def _refit(self, estimate: bool = True) -> None:
        dirty = np.flatnonzero(self.trials.dirty)
        self.fitted = fit(
            self.trials, nodes=dirty, previous=self.fitted, refit=estimate, theta_0=0.1, **self._fit_options
        )
        if estimate:
            self.trials.clean()

    def _update(self) -> None:
        self._refit()
        assert self.fitted is not None
        self._warn_at_cap()
        self._current = self._choose(self._with_prior(self.fitted))
        self._next_update = max(self.t + 1, math.ceil((1 + self.growth) * self.t))
        self._logdet = float(self.fitted.logdet.sum())

    def _with_prior(self, fitted: EdgeFit) -> EdgeFit:
        """Arcs that were never tried: the mean estimate of those that were, with a standard deviation as large."""
        g, untried = self.graph, self.trials.edge_trials() == 0
        if not untried.any():
            return fitted
        theta_0 = max(float(fitted.theta[~untried].mean()), 1e-3) if not untried.all() else 0.1
        theta = np.where(untried, theta_0, fitted.theta)
        # Such an arc shares no trial with another one: only its diagonal entries change.
        at = fitted.diagonal_entries()[untried[g.in_edge]]
        v_flat, l_flat = fitted.v_flat.copy(), fitted.l_flat.copy()
        v_flat[at], l_flat[at] = 1 / theta_0**2, 1 / theta_0
        se = np.where(untried, theta_0 * np.exp(-theta_0), fitted.se)
        return replace(fitted, theta=theta, p=-np.expm1(-theta), se=se, v_flat=v_flat, l_flat=l_flat)

    def _warn_at_cap(self) -> None:
        assert self.fitted is not None
        if self._warned_cap:
            return
        at_cap = self.fitted.p >= self.p_max - 1e-9
        if at_cap.any() and (self.trials.edge_trials()[at_cap] >= 20).any():
            self._warned_cap = True
            warnings.warn(
                f"some edges succeeded in all of 20 or more trials; their probability is capped at {self.p_max}",
                stacklevel=6,
            )

    def _ask_oracle(self, theta: np.ndarray) -> Choice:
        self.n_oracle += 1
        return self.oracle(self.graph.with_p(-np.expm1(-np.maximum(theta, 0.0))), self.k, self.rng)

    def _choose(self, fitted: EdgeFit) -> np.ndarray:
        raise NotImplementedError

    def _learn(self, steps: np.ndarray, edges: np.ndarray | None, observed_until: int | None) -> None:
        self.trials.add(steps, observed_until)

    def state_dict(self) -> dict[str, Any]:
        state = super().state_dict()
        state["trials"] = self.trials.state_dict()
        state["theta"] = np.empty(0) if self.fitted is None else self.fitted.theta
        state["current"], state["next_update"] = self._current, self._next_update
        state["logdet"], state["warned_cap"] = self._logdet, self._warned_cap
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        self.trials.load_state_dict(state["trials"])
        self._current, self._next_update = np.array(state["current"]), int(state["next_update"])
        self._logdet, self._warned_cap = float(state["logdet"]), bool(state["warned_cap"])
        self.fitted = None
        if len(state["theta"]):
            # Ellipsoids follow from trials and theta; nodes with newer trials are fitted again before use.
            blank = fit(self.trials, nodes=[], theta_0=0.1, **self._fit_options)
            theta = np.array(state["theta"])
            self.fitted = fit(
                self.trials,
                previous=replace(blank, theta=theta),
                nodes=np.flatnonzero(self.trials.n_trials),
                refit=False,
                **self._fit_options,
            )


class EnsembleOIM(NodeLearner):
    """Ensemble sampling inside the confidence ellipsoids, with a standard oracle.

    At an update, ``M`` parameter vectors theta_hat + s L^-T z are drawn, each projected onto theta >= 0 in the V-norm;
    the oracle is called on each and the set with the largest claimed spread is played until the next update.

    Args:
        graph: the structure.
        k: seeds a round.
        M: samples, or ``"theory"`` for ceil(ln T / 0.172).
        scale: s; with ``confidence="theory"`` it multiplies each node's radius rho.
        options: see :class:`NodeLearner`.
    """

    def __init__(
        self, graph: ICGraph, k: int, *, M: int | Literal["theory"] = 8, scale: float = 1.0, **options: Any
    ) -> None:
        super().__init__(graph, k, **options)
        if M == "theory":
            if self.horizon is None:
                raise ValueError("M='theory' needs a horizon")
            M = math.ceil(math.log(self.horizon) / 0.172)
        if not isinstance(M, int) or M < 1 or scale <= 0:
            raise ValueError(f"M must be >= 1 (or 'theory') and scale positive, got {M!r} and {scale}")
        self.M, self.scale = M, scale

    def _choose(self, fitted: EdgeFit) -> np.ndarray:
        scale = np.full(self.graph.n, self.scale)
        if self._fit_options["confidence"] == "theory":
            scale = self.scale * fitted.rho
        choices = []
        for _ in range(self.M):
            theta = perturbed_theta(fitted, self.rng.standard_normal(self.graph.m), scale)
            choices.append(self._ask_oracle(theta))
        return max(choices, key=lambda choice: choice.value).nodes


class ThompsonOIM(EnsembleOIM):
    """Thompson sampling: an ensemble of one."""

    def __init__(self, graph: ICGraph, k: int, **options: Any) -> None:
        super().__init__(graph, k, M=1, **options)


class VertexOIM(NodeLearner):
    """The deterministic twin: the 2m vertices of the cross-polytope around the ellipsoids instead of samples.

    One update costs 2m oracle calls; for small graphs.
    """

    def _choose(self, fitted: EdgeFit) -> np.ndarray:
        scale = fitted.rho * math.sqrt(self.graph.m)
        best = Choice(np.arange(self.k), -math.inf)
        for arc in range(self.graph.m):
            for sign in (1.0, -1.0):
                z = np.zeros(self.graph.m)
                z[arc] = sign
                best = max(best, self._ask_oracle(perturbed_theta(fitted, z, scale)), key=lambda choice: choice.value)
        return best.nodes


class BoxUCB(NodeLearner):
    """Coordinate-wise upper bounds. A warning example: parents that always act together make it fail for ever."""

    def __init__(self, graph: ICGraph, k: int, *, scale: float = 1.0, **options: Any) -> None:
        super().__init__(graph, k, **options)
        self.scale = scale

    def _choose(self, fitted: EdgeFit) -> np.ndarray:
        width = fitted.se / np.exp(-fitted.theta)
        width = np.where(np.isfinite(width), width, 1 / math.sqrt(self._fit_options["lam_v"]))
        bonus = self.scale * math.sqrt(2 * math.log(max(self.horizon or self.t, 2)))
        return self._ask_oracle(fitted.theta + bonus * width).nodes


class GreedyMLE(NodeLearner):
    """Plays the oracle's set for the plain estimate; can lock in on a bad set."""

    def _choose(self, fitted: EdgeFit) -> np.ndarray:
        return self._ask_oracle(fitted.theta).nodes


class ETC(NodeLearner):
    """Explore for T^(2/3) rounds spread over the nodes, then commit to one set."""

    def __init__(self, graph: ICGraph, k: int, *, horizon: int, **options: Any) -> None:
        options["n0"] = 0
        super().__init__(graph, k, horizon=horizon, **options)
        rounds = min(math.ceil(horizon ** (2 / 3)), horizon)
        cycle = warmup_rounds(graph, k, 1, pack=False) or [tuple(range(k))]
        self.warmup = [cycle[i % len(cycle)] for i in range(rounds)]

    def _update_is_due(self) -> bool:
        return self._current.size == 0

    def _choose(self, fitted: EdgeFit) -> np.ndarray:
        return self._ask_oracle(fitted.theta).nodes


class EpsGreedy(GreedyMLE):
    """Random sets with probability min(1, 5 t^(-1/3)), else the oracle's set for the estimate."""

    def __init__(self, graph: ICGraph, k: int, **options: Any) -> None:
        options["n0"] = 0
        super().__init__(graph, k, **options)

    def _next_seeds(self) -> np.ndarray:
        if self.rng.random() < min(1.0, 5 * (self.t + 1) ** (-1 / 3)):
            return random_nodes(self.graph, self.k, self.rng)
        return super()._next_seeds()


# --- the pair oracle ---------------------------------------------------------------------------------------------


@njit(cache=True)
def _pathwise_gradient(out_ptr, dst, thr, skip, base, runs, seeds, gradient):
    """d spread / d theta of every arc: expected nodes that a dead arc out of an active node would have added."""
    n = out_ptr.size - 1
    times, queue = np.full(n, -1, np.int32), np.empty(n, np.int32)
    extra_queue = np.empty(n, np.int32)
    extra_times = np.full(n, -1, np.int32)
    gain = np.zeros(n)
    one = np.zeros(1, np.int64)
    for r in range(runs):
        key = run_key(base, r)
        count = ic_cascade(out_ptr, dst, thr, skip, seeds, key, times, queue)
        for i in range(count):
            u = queue[i]
            for e in range(out_ptr[u], out_ptr[u + 1]):
                v = dst[e]
                if times[v] < 0:
                    # An arc from an active to an inactive node is dead in this run.
                    if gain[v] == 0.0:
                        one[0] = v
                        reach = ic_cascade(out_ptr, dst, thr, skip, one, key, extra_times, extra_queue)
                        for j in range(reach):
                            extra_times[extra_queue[j]] = -1
                            if times[extra_queue[j]] < 0:
                                gain[v] += 1.0
                    gradient[e] += gain[v]
        for i in range(count):
            for e in range(out_ptr[queue[i]], out_ptr[queue[i] + 1]):
                gain[dst[e]] = 0.0
        for i in range(count):
            times[queue[i]] = -1
    for e in range(gradient.size):
        gradient[e] /= runs


def spread_gradient(
    g: ICGraph, seeds: Sequence[int] | np.ndarray, runs: int = 1000, rng: np.random.Generator | None = None
) -> np.ndarray:
    r"""Monte-Carlo gradient of the spread in :math:`\theta = -\ln(1-p)`, shape (m,), non-negative.

    :math:`\partial\sigma/\partial\theta_e = E[1\{e\text{ dead, tail active, head inactive}\} \cdot \text{reach of the
    head outside the cascade}]`, since the spread is linear in each p and dp/dtheta = 1 - p.
    """
    out = np.zeros(g.m)
    chosen = check_seeds(g, seeds)
    base = draw_key(np.random.default_rng() if rng is None else rng)
    _pathwise_gradient(g.out_ptr, g.dst, g.thr, g.out_skip, base, runs, chosen, out)
    return out


class _ExactSpreads:
    """Spread and gradient of every seed set by one table over all live-edge graphs; m <= 16 arcs."""

    def __init__(self, g: ICGraph, k: int) -> None:
        self.sets = np.array(seed_sets(g, k, limit=2000))
        masks = np.arange(1 << g.m)
        self.live = (masks[:, None] >> np.arange(g.m)) & 1
        reach = np.broadcast_to(1 << np.arange(g.n), (masks.size, g.n)).copy()
        for _ in range(g.n):
            before = reach.copy()
            for e in range(g.m):
                on = self.live[:, e] == 1
                reach[on, g.src[e]] |= reach[on, g.dst[e]]
            if (reach == before).all():
                break
        union = np.bitwise_or.reduce(reach[:, self.sets], axis=2)
        self.sizes = np.ascontiguousarray(np.bitwise_count(union).T.astype(float))

    def _weights(self, theta: np.ndarray) -> np.ndarray:
        weight = np.ones(1)
        for q in np.exp(-theta):
            weight = np.concatenate([weight * q, weight * (1 - q)])
        return weight

    def spreads(self, theta: np.ndarray) -> np.ndarray:
        return self.sizes @ self._weights(theta)

    def value_and_gradient(self, theta: np.ndarray, index: int) -> tuple[float, np.ndarray]:
        weighted = self._weights(theta) * self.sizes[index]
        p = np.maximum(-np.expm1(-theta), 1e-12)
        # d/dtheta of the weight of a live arc is (1-p)/p times it, of a dead arc -1 times it.
        live = weighted @ self.live
        return float(weighted.sum()), live * (1 - p) / p - (weighted.sum() - live)


class PairOracleOIM(NodeLearner):
    """Optimism over sets and parameters together, as earlier work needs it (heuristic unless the graph is tiny).

    Alternates between the oracle's set for theta and the theta in the ellipsoid that is best for the set, from several
    starts. With at most 2,000 seed sets and 16 arcs, every set is tried and spreads are exact.

    Args:
        graph: the structure.
        k: seeds a round.
        starts: restarts of the alternation.
        alternations: steps of each.
        runs: simulations a gradient.
        options: see :class:`NodeLearner`.
    """

    def __init__(
        self, graph: ICGraph, k: int, *, starts: int = 4, alternations: int = 3, runs: int = 500, **options: Any
    ) -> None:
        super().__init__(graph, k, **options)
        self.starts, self.alternations, self.runs = starts, alternations, runs
        tiny = graph.m <= 16 and math.comb(graph.n, k) <= 2000
        self._exact = _ExactSpreads(graph, k) if tiny else None

    def _towards(self, fitted: EdgeFit, gradient: np.ndarray) -> np.ndarray:
        """argmax of gradient . theta over each node's ellipsoid (the budget rho_v is each node's own), then >= 0."""
        theta = np.empty(self.graph.m)
        for v in range(self.graph.n):
            arcs = self.graph.in_edge[self.graph.in_ptr[v] : self.graph.in_ptr[v + 1]]
            if arcs.size == 0:
                continue
            V, _ = fitted.block(v)
            V = np.diag(V) if V.ndim == 1 else V
            ascent = np.linalg.solve(V, gradient[arcs])
            norm = math.sqrt(max(float(gradient[arcs] @ ascent), 0.0))
            step = fitted.rho[v] * ascent / norm if norm > 0 else np.zeros(arcs.size)
            theta[arcs] = project_psd_nonneg(V, fitted.theta[arcs] + step)
        return theta

    def _choose(self, fitted: EdgeFit) -> np.ndarray:
        return self._choose_exact(self._exact, fitted) if self._exact else self._choose_alternating(fitted)

    def _choose_exact(self, exact: _ExactSpreads, fitted: EdgeFit) -> np.ndarray:
        best, most = 0, -math.inf
        for index in range(len(exact.sets)):
            theta = fitted.theta
            for _ in range(self.alternations + 2):
                value, slope = exact.value_and_gradient(theta, index)
                if value > most:
                    best, most = index, value
                theta = self._towards(fitted, slope)
            value = float(exact.spreads(theta)[index])
            if value > most:
                best, most = index, value
        self.n_oracle += len(exact.sets)
        return exact.sets[best]

    def _choose_alternating(self, fitted: EdgeFit) -> np.ndarray:
        best = Choice(np.arange(self.k), -math.inf)
        scale = np.ones(self.graph.n)
        for start in range(self.starts):
            theta = fitted.theta
            if start:
                theta = perturbed_theta(fitted, self.rng.standard_normal(self.graph.m), scale)
            for _ in range(self.alternations):
                choice = self._ask_oracle(theta)
                slope = spread_gradient(self.graph.with_p(-np.expm1(-theta)), choice.nodes, self.runs, self.rng)
                theta = self._towards(fitted, slope)
                under = self.graph.with_p(-np.expm1(-theta))
                best = max(
                    best,
                    Choice(choice.nodes, spread(under, choice.nodes, self.runs, self.rng).mean),
                    key=lambda found: found.value,
                )
        return best.nodes


# --- edge-level and other-model baselines ------------------------------------------------------------------------


class CUCB(OnlinePolicy):
    """Combinatorial UCB with edge-level feedback (Chen, Wang, Yuan, Wang 2016).

    Upper bounds p_hat + c sqrt(1.5 ln t / N_e), 1 for edges never tried; one oracle call a round.
    """

    feedback = "edge"

    def __init__(
        self,
        graph: ICGraph,
        k: int,
        *,
        c: float = 1.0,
        oracle: str | Oracle = "ris",
        n_rr: int | None = None,
        horizon: int | None = None,
        random_state: int | None = None,
    ) -> None:
        super().__init__(graph, k, random_state=random_state)
        self.c, self.oracle = c, make_oracle(oracle, R=n_rr, validate=False)
        self.tries, self.hits = np.zeros(graph.m, np.int64), np.zeros(graph.m, np.int64)

    def upper_bounds(self) -> np.ndarray:
        """Optimistic probabilities, (m,)."""
        tries = np.maximum(self.tries, 1)
        bound = self.hits / tries + self.c * np.sqrt(1.5 * math.log(self.t + 1) / tries)
        return np.where(self.tries > 0, np.minimum(bound, 1.0), 1.0)

    def _next_seeds(self) -> np.ndarray:
        self.n_oracle += 1
        return self.oracle(self.graph.with_p(self.upper_bounds()), self.k, self.rng).nodes

    def _learn(self, steps: np.ndarray, edges: np.ndarray | None, observed_until: int | None) -> None:
        assert edges is not None
        self.tries += edges >= 0
        self.hits += edges > 0

    def state_dict(self) -> dict[str, Any]:
        return super().state_dict() | {"tries": self.tries.copy(), "hits": self.hits.copy()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        self.tries, self.hits = np.array(state["tries"]), np.array(state["hits"])


class IMLinUCB(CUCB):
    """Linear generalisation over edge features with edge-level feedback (Wen, Kveton, Valko, Vaswani 2017).

    Args:
        graph: the structure.
        k: seeds a round.
        features: edge features, (m, d); default: one-hot (then it is tabular).
        c: width of the confidence bound.
        sigma: noise scale.
        options: see :class:`CUCB`.
    """

    def __init__(
        self,
        graph: ICGraph,
        k: int,
        *,
        features: np.ndarray | None = None,
        c: float = 1.0,
        sigma: float = 1.0,
        **options: Any,
    ) -> None:
        super().__init__(graph, k, c=c, **options)
        self.features = np.eye(graph.m) if features is None else np.asarray(features, dtype=float)
        if self.features.ndim != 2 or len(self.features) != graph.m:
            raise ValueError(f"features must be ({graph.m}, d), got {self.features.shape}")
        self.sigma = sigma

    def upper_bounds(self) -> np.ndarray:
        # The counts are sufficient: M = I + sum_e N_e x x^T / sigma^2, b = sum_e hits_e x.
        X = self.features
        M = np.eye(X.shape[1]) + (X * self.tries[:, None]).T @ X / self.sigma**2
        solved = np.linalg.solve(M, np.column_stack([X.T @ self.hits, X.T]))
        mean = X @ solved[:, 0] / self.sigma**2
        width = np.sqrt(np.maximum(np.einsum("ed,de->e", X, solved[:, 1:]), 0.0))
        return np.clip(mean + self.c * width, 0.0, 1.0)


class LTLinUCB(OnlinePolicy):
    """Linear threshold model from node-level feedback: ridge regression of weights and the same ensemble wrapper.

    A node's first trial (its parents active at the first step that has any, and whether it follows) is linear:
    P(active) = w . x, as the threshold is uniform (Li, Kong, Tang, Li, Chen 2020).

    Args:
        graph: the structure.
        k: seeds a round.
        M: samples an update.
        scale: spread of the samples in units of the ridge posterior with noise 1/2.
        growth: update spacing.
        oracle: oracle for the LT model.
        n0: warm-up rounds a node.
        horizon: number of rounds.
        n_rr: RR sets a call.
        random_state: seed.
    """

    model = "lt"

    def __init__(
        self,
        graph: ICGraph,
        k: int,
        *,
        M: int = 8,
        scale: float = 0.5,
        growth: float = 0.05,
        oracle: str | Oracle = "ris",
        n0: int = 2,
        horizon: int | None = None,
        n_rr: int | None = None,
        random_state: int | None = None,
    ) -> None:
        super().__init__(graph, k, random_state=random_state)
        self.M, self.scale, self.growth = M, scale, growth
        self.oracle = make_oracle(oracle, R=n_rr, model="lt")
        planned = warmup_rounds(graph, k, n0, pack=False)
        self.warmup = planned if horizon is None else planned[: horizon // 5]
        self.gram = [np.eye(d) for d in graph.in_degree]
        self.moment = np.zeros(graph.m)  # in-arc order
        self._current, self._next_update = np.empty(0, np.int64), len(self.warmup)

    def _learn(self, steps: np.ndarray, edges: np.ndarray | None, observed_until: int | None) -> None:
        g = self.graph
        never = np.iinfo(np.int64).max // 2
        last = never if observed_until is None else observed_until
        steps = steps.astype(np.int64)
        parent_step = np.where(steps[g.in_src] >= 0, steps[g.in_src], never)
        for v in range(g.n):
            low, high = g.in_ptr[v], g.in_ptr[v + 1]
            if high == low or steps[v] == 0:
                continue
            first = parent_step[low:high].min()
            if first + 1 > last or 0 <= steps[v] <= first:
                continue
            x = (parent_step[low:high] == first).astype(float)
            self.gram[v] += np.outer(x, x)
            self.moment[low:high] += x * (steps[v] == first + 1)

    def estimate(self) -> np.ndarray:
        """Ridge estimate of the weights in in-arc order, (m,)."""
        g = self.graph
        found = [
            np.linalg.solve(self.gram[v], self.moment[g.in_ptr[v] : g.in_ptr[v + 1]])
            for v in range(g.n)
            if g.in_degree[v]
        ]
        return np.concatenate(found) if found else np.zeros(0)

    def _sampled(self, estimate: np.ndarray) -> ICGraph:
        g, weights = self.graph, np.empty(self.graph.m)
        for v in range(g.n):
            low, high = g.in_ptr[v], g.in_ptr[v + 1]
            if high == low:
                continue
            L = np.linalg.cholesky(self.gram[v])
            noise = np.linalg.solve(L.T, self.rng.standard_normal(high - low))
            w = project_psd_nonneg(self.gram[v], estimate[low:high] + self.scale * noise)
            weights[g.in_edge[low:high]] = np.minimum(w, 1.0) / max(1.0, float(np.minimum(w, 1.0).sum()))
        return g.with_p(weights)

    def _next_seeds(self) -> np.ndarray:
        if self.t < len(self.warmup):
            return np.array(self.warmup[self.t])
        if self._current.size == 0 or self.t >= self._next_update:
            estimate = self.estimate()
            choices = [self.oracle(self._sampled(estimate), self.k, self.rng) for _ in range(self.M)]
            self.n_oracle += self.M
            self._current = max(choices, key=lambda choice: choice.value).nodes
            self._next_update = max(self.t + 1, math.ceil((1 + self.growth) * self.t))
        return self._current

    def state_dict(self) -> dict[str, Any]:
        state = super().state_dict()
        state["gram"] = {str(v): gram for v, gram in enumerate(self.gram) if gram.size}
        state |= {"moment": self.moment.copy(), "current": self._current, "next_update": self._next_update}
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        for v, gram in state["gram"].items():
            self.gram[int(v)] = np.array(gram)
        self.moment, self._current = np.array(state["moment"]), np.array(state["current"])
        self._next_update = int(state["next_update"])


# --- reference lines ---------------------------------------------------------------------------------------------


class FixedSeeds(OnlinePolicy):
    """The same seeds every round."""

    def __init__(self, graph: ICGraph, seeds: Sequence[int] | np.ndarray, *, random_state: int | None = None) -> None:
        super().__init__(graph, len(seeds), random_state=random_state)
        self.nodes = check_seeds(graph, seeds)

    def _next_seeds(self) -> np.ndarray:
        return self.nodes


class OracleKnown(FixedSeeds):
    """The best set that OPIM-C finds when it is told the true probabilities."""

    def __init__(self, graph: ICGraph, k: int, *, random_state: int | None = None, **_: Any) -> None:
        super().__init__(graph, opim_c(graph, k, 0.05, rng=np.random.default_rng(random_state)).nodes)


class TopDegree(FixedSeeds):
    """The k nodes of largest out-degree."""

    def __init__(self, graph: ICGraph, k: int, *, random_state: int | None = None, **_: Any) -> None:
        super().__init__(graph, degree(graph, k), random_state=random_state)


class RandomSeeds(OnlinePolicy):
    """k nodes at random in every round."""

    def __init__(self, graph: ICGraph, k: int, *, random_state: int | None = None, **_: Any) -> None:
        super().__init__(graph, k, random_state=random_state)

    def _next_seeds(self) -> np.ndarray:
        return random_nodes(self.graph, self.k, self.rng)


POLICIES: dict[str, type[OnlinePolicy]] = {
    "ensemble": EnsembleOIM,
    "vertex": VertexOIM,
    "thompson": ThompsonOIM,
    "box": BoxUCB,
    "pair": PairOracleOIM,
    "greedy": GreedyMLE,
    "etc": ETC,
    "eps": EpsGreedy,
    "cucb": CUCB,
    "imlinucb": IMLinUCB,
    "lt": LTLinUCB,
    "known": OracleKnown,
    "random": RandomSeeds,
    "degree": TopDegree,
}


# --- running and judging -----------------------------------------------------------------------------------------


class History(NamedTuple):
    """A finished run.

    Attributes:
        seeds: node numbers played, int64 (T, k), -1 where a round used fewer.
        reward: active nodes a round, int64 (T,).
        n_oracle: oracle calls.
        seconds: wall time of the policy and the environment, over all sessions of a resumed run.
    """

    seeds: np.ndarray
    reward: np.ndarray
    n_oracle: int
    seconds: float


def _history(policy: OnlinePolicy, seconds: float) -> History:
    width = max([policy.k, *(len(r.nodes) for r in policy.history)])
    seeds = np.full((policy.t, width), -1, np.int64)
    for row, finished in zip(seeds, policy.history, strict=True):
        row[: len(finished.nodes)] = finished.nodes
    return History(seeds, np.array([r.reward for r in policy.history], np.int64), policy.n_oracle, seconds)


def _flatten(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        if isinstance(value, Mapping):
            flat[f"{prefix}{key}/"] = np.empty(0)
            flat |= _flatten(value, f"{prefix}{key}/")
        else:
            flat[f"{prefix}{key}"] = np.asarray(value)
    return flat


def _unflatten(flat: Mapping[str, np.ndarray]) -> dict[str, Any]:
    tree: dict[str, Any] = {}
    for key, value in flat.items():
        *path, name = key.split("/")
        branch = tree
        for part in path:
            branch = branch.setdefault(part, {})
        if name:
            branch[name] = value.item() if value.ndim == 0 else value
    return tree


def save_state(path: Path, state: Mapping[str, Any]) -> None:
    """Write a policy's state as .npz without pickle, atomically."""
    path = Path(path)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            np.savez(file, **_flatten(state))
            file.flush()
            os.fsync(file.fileno())
        Path(temporary).replace(path)
    finally:
        Path(temporary).unlink(missing_ok=True)


def load_state(path: Path) -> dict[str, Any]:
    """Read what :func:`save_state` wrote; never unpickles."""
    try:
        with np.load(path, allow_pickle=False) as stored:
            return _unflatten({name: stored[name] for name in stored.files})
    except (OSError, ValueError, EOFError) as error:
        raise ValueError(f"{path} is not a saved policy state: {error}") from error


def run(
    policy: OnlinePolicy,
    env: Environment,
    T: int,
    callback: Callable[[int, OnlinePolicy], None] | None = None,
    checkpoint: Path | None = None,
    checkpoint_every: int = 200,
) -> History:
    """Play rounds until the policy has T of them.

    Args:
        policy: a fresh policy, or one to go on with.
        env: the campaign, for example :class:`CascadeEnv`.
        T: rounds in all.
        callback: called after every round with its number and the policy.
        checkpoint: an .npz file; read when it exists, written every ``checkpoint_every`` rounds and at the end. A
            resumed run has the same history as one that was never stopped.
        checkpoint_every: rounds between writes.
    """
    if T < 1:
        raise ValueError(f"T must be >= 1, got {T}")
    earlier = 0.0
    if checkpoint is not None and Path(checkpoint).exists():
        state = load_state(checkpoint)
        policy.load_state_dict(state["policy_state"])
        earlier = float(state["seconds"])
    started = time.perf_counter()

    def seconds() -> float:
        return earlier + time.perf_counter() - started

    def save() -> None:
        if checkpoint is not None:
            save_state(checkpoint, {"policy_state": policy.state_dict(), "seconds": seconds()})

    wants_edges = policy.feedback == "edge"
    while policy.t < T:
        seeds = policy.ask()
        times, coins = env.round(policy.t, policy.graph.index(seeds), wants_edges)
        policy.tell(seeds, times, coins)
        if callback is not None:
            callback(policy.t, policy)
        if policy.t % checkpoint_every == 0 and policy.t < T:
            save()
    save()
    return _history(policy, seconds())


@dataclass(frozen=True)
class RegretCurve:
    """Cumulative regret in expected spread.

    Attributes:
        ref: cumulative sum of spread(reference) - spread(played), (T,).
        scaled: cumulative sum of (1 - 1/e) spread(reference) - spread(played), (T,); soon negative.
        ci: half-width of a 95 % interval of ``ref`` from the Monte-Carlo error of the spreads, (T,).
        reference: the reference seeds as node numbers.
        reference_spread: their spread.
    """

    ref: np.ndarray
    scaled: np.ndarray
    ci: np.ndarray
    reference: np.ndarray
    reference_spread: float

    def tail_slope(self) -> float:
        """log2(R(T) / R(T/2)): 1 for linear regret, 1/2 for sqrt(T), 0 once it learned."""
        return tail_slope(self.ref)


def tail_slope(curve: np.ndarray) -> float:
    """log2(R(T) / R(T/2)) of a cumulative regret curve; 0 where the second half adds nothing."""
    half, full = float(curve[len(curve) // 2 - 1]), float(curve[-1])
    if full <= half:
        return 0.0
    return math.log2(full / half) if half > 0 else math.inf


def best_known_seeds(g: ICGraph, k: int, rng: np.random.Generator, model: Model = "ic") -> np.ndarray:
    """The best set that can be found under the true probabilities: exact where feasible, else OPIM-C at 0.05."""
    if model == "ic":
        try:
            return exact_seeds(g, k).nodes
        except ValueError:
            pass
    return opim_c(g, k, 0.05, rng=rng, model=model).nodes


def regret(
    history: History,
    g_true: ICGraph,
    reference: Literal["auto"] | Sequence[int] | np.ndarray = "auto",
    runs: int | None = None,
    rng: np.random.Generator | None = None,
    model: Model = "ic",
    n_jobs: int = 1,
) -> RegretCurve:
    """Regret of a run against the best known set under the true probabilities.

    Spreads of the distinct sets are exact on small graphs, else estimated with common random numbers. If a played set
    beats the reference beyond doubt, it becomes the reference: regret is against the best *known* set.

    Args:
        history: the run.
        g_true: the true probabilities.
        reference: seeds as node numbers, or ``"auto"``.
        runs: simulations a set; default 20,000, fewer (at least 100) for many distinct sets or large graphs.
        rng: source of randomness.
        model: ``"ic"`` or ``"lt"``.
        n_jobs: threads.
    """
    rng = np.random.default_rng(0) if rng is None else rng
    automatic = isinstance(reference, str)
    width = history.seeds.shape[1]
    best = (
        best_known_seeds(g_true, width, rng, model)
        if automatic
        else check_seeds(g_true, np.asarray(reference, dtype=np.int64))
    )
    base = int(rng.integers(2**63))
    sets, row_of = np.unique(np.sort(history.seeds, axis=1), axis=0, return_inverse=True)
    affordable = min(2_000_000 / len(sets), 2_000_000_000 / (len(sets) * max(g_true.m, 1)))
    budget = int(np.clip(affordable, 100, 20_000)) if runs is None else runs

    def value(nodes: np.ndarray) -> tuple[float, float]:
        if model == "ic" and g_true.m <= 60:
            try:
                return exact_spread(g_true, nodes), 0.0
            except ValueError:
                pass
        estimate = spread(g_true, nodes, budget, np.random.default_rng(base), n_jobs, model)
        return estimate.mean, estimate.se

    values, errors = np.array([value(nodes[nodes >= 0]) for nodes in sets]).T
    top, top_error = value(best)
    winner = int(values.argmax())
    if automatic and values[winner] > top + 3 * math.hypot(errors[winner], top_error):
        best, top, top_error = sets[winner][sets[winner] >= 0], float(values[winner]), float(errors[winner])
    played, played_error = values[row_of.ravel()], errors[row_of.ravel()]
    counts = np.arange(1, len(played) + 1)
    return RegretCurve(
        ref=np.cumsum(top - played),
        scaled=np.cumsum((1 - 1 / math.e) * top - played),
        ci=1.96 * np.hypot(top_error * counts, np.sqrt(np.cumsum(played_error**2))),
        reference=best,
        reference_spread=top,
    )
