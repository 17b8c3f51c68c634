"""Chunks as functions of time in seconds: sampling, limits, slowing down, integrals, hand-over without a jump.

Every trajectory answers :meth:`Motion.derivatives`; blends, anchors and averages are trajectories again, with exact
derivatives by Leibniz' rule (ours; the paper evaluates one chunk at a time).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np

from niaf.field import MAX_ORDER, Extrapolate, ExtrapolationError, SineField, check_order

EDGE = 1e-6
NAMES = ("position", "velocity", "acceleration", "jerk", "snap")


class Curve(Protocol):
    """A function of tau in [-1, 1]."""

    def __call__(self, tau: np.ndarray, order: int) -> tuple[np.ndarray, ...]:
        """tau [K] -> derivatives 0 to order in tau, each [K, d]."""
        ...


class Violation(NamedTuple):
    """A limit that is exceeded: what, which channel, where (seconds), how much, and the limit."""

    quantity: str
    channel: int
    time: float
    value: float
    limit: float


@dataclass(frozen=True)
class Limits:
    """Bounds on |velocity|, |acceleration| and |jerk|, a number or one a channel; None is free."""

    velocity: float | Sequence[float] | None = None
    acceleration: float | Sequence[float] | None = None
    jerk: float | Sequence[float] | None = None

    def items(self) -> list[tuple[int, np.ndarray]]:
        """(order, bound) of those that are given.

        Raises:
            ValueError: for a bound that is not positive.
        """
        given = [(n, getattr(self, NAMES[n])) for n in (1, 2, 3)]
        found = [(n, np.asarray(bound, float)) for n, bound in given if bound is not None]
        for n, bound in found:
            if not (bound > 0).all():
                raise ValueError(f"a limit on {NAMES[n]} must be positive, got {bound}")
        return found


class Extreme(NamedTuple):
    """The largest absolute value of each channel and when it is reached."""

    value: np.ndarray
    time: np.ndarray


_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(16)


class Motion:
    """A function of time on [t0, t0 + duration]; what every kind of trajectory can do.

    Attributes:
        t0: start, seconds.
        duration: seconds.
        max_order: highest derivative it has.
    """

    t0: float
    duration: float
    max_order: int = MAX_ORDER

    def _derivatives(self, t: np.ndarray, order: int) -> tuple[np.ndarray, ...]:
        raise NotImplementedError

    @property
    def end(self) -> float:
        """t0 + duration."""
        return self.t0 + self.duration

    def derivatives(self, t: Any, order: int = 0, extrapolate: Extrapolate = "error") -> tuple[np.ndarray, ...]:
        """Position and derivatives.

        Args:
            t: seconds, a number or [K].
            order: highest derivative.
            extrapolate: outside of the trajectory: ``"error"``, ``"hold"`` (the last position, at rest), ``"linear"``
                (on with the last velocity) or ``"free"``.

        Returns:
            order + 1 arrays [K, d], or [d] for a number.

        Raises:
            ExtrapolationError: for times outside, in mode ``"error"``.
        """
        check_order(order)
        if order > self.max_order:
            raise ValueError(f"this trajectory has derivatives up to order {self.max_order}, got {order}")
        times = np.atleast_1d(np.asarray(t, float))
        if np.isnan(times).any():
            raise ValueError("times hold NaN")
        found = self._outside(times, order, extrapolate)
        return tuple(part[0] for part in found) if np.ndim(t) == 0 else found

    def _outside(self, t: np.ndarray, order: int, mode: Extrapolate) -> tuple[np.ndarray, ...]:
        if mode not in ("error", "hold", "linear", "free"):
            raise ValueError(f'extrapolate must be "error", "hold", "linear" or "free", got {mode!r}')
        if mode == "free":
            return self._derivatives(t, order)
        inside = np.clip(t, self.t0, self.end)
        beyond = np.abs(t - inside)
        if mode == "error":
            if beyond.size and beyond.max() > EDGE * max(self.duration, 1.0):
                raise ExtrapolationError(
                    f"the trajectory covers [{self.t0:.6g}, {self.end:.6g}] s, got "
                    f'[{t.min():.6g}, {t.max():.6g}]; extrapolate="hold", "linear" or "free" allows it'
                )
            return self._derivatives(inside, order)
        found = list(self._derivatives(inside, max(order, 1)))
        outside = (beyond > 0)[:, None]
        if mode == "linear":
            found[0] = found[0] + found[1] * (t - inside)[:, None]
        for n in range(2 if mode == "linear" else 1, order + 1):
            found[n] = np.where(outside, 0.0, found[n])
        return tuple(found[: order + 1])

    def at(self, t: Any, order: int = 0, extrapolate: Extrapolate = "error") -> np.ndarray:
        """The derivative of this order (0: position) at t; see :meth:`derivatives`."""
        return self.derivatives(t, order, extrapolate)[order]

    def times(self, rate: float) -> np.ndarray:
        """Times from the start, 1/rate seconds apart, up to the end."""
        if not rate > 0:
            raise ValueError(f"a rate must be positive, got {rate}")
        return self.t0 + np.arange(math.floor(self.duration * rate + 1e-9) + 1) / rate

    def sample(self, rate: float, order: int = 0) -> tuple[np.ndarray, ...]:
        """(times, position, ... up to this derivative) at a rate in Hz."""
        t = self.times(rate)
        return (t, *self.derivatives(t, order))

    def limits(self, points: int = 401) -> tuple[Extreme, Extreme, Extreme]:
        """Largest |velocity|, |acceleration| and |jerk| of each channel: dense sampling, then Newton steps on the
        derivative."""
        t = np.linspace(self.t0, self.end, points)
        dense = self.derivatives(t, min(3, self.max_order))
        found = []
        for n in (1, 2, 3):
            if n >= len(dense):
                raise ValueError(f"this trajectory has no {NAMES[n]}: its derivatives end at order {self.max_order}")
            best = np.abs(dense[n]).argmax(0)
            found.append(self._polish(n, t[best], np.abs(dense[n])[best, np.arange(dense[n].shape[1])], t[1] - t[0]))
        return found[0], found[1], found[2]

    def _polish(self, n: int, start: np.ndarray, value: np.ndarray, step: float) -> Extreme:
        """Three Newton steps on the derivative of order n + 1, bounded by the neighbouring samples."""
        t, channel = start.copy(), np.arange(start.size)
        if n + 1 > self.max_order:
            return Extreme(value, t)
        low, high = np.maximum(start - step, self.t0), np.minimum(start + step, self.end)
        best, when = value.copy(), start.copy()
        for _ in range(3):
            slope = self.at(t, n + 1)[channel, channel]
            if n + 2 <= self.max_order:
                curvature = self.at(t, n + 2)[channel, channel]
            else:
                h = 1e-3 * step
                a, b = np.maximum(t - h, self.t0), np.minimum(t + h, self.end)
                curvature = (self.at(b, n + 1) - self.at(a, n + 1))[channel, channel] / (b - a)
            move = np.divide(-slope, curvature, out=np.zeros_like(t), where=np.abs(curvature) > 1e-300)
            t = np.clip(t + move, low, high)
            here = np.abs(self.at(t, n)[channel, channel])
            better = here > best
            best, when = np.where(better, here, best), np.where(better, t, when)
        return Extreme(best, when)

    def check(self, limits: Limits) -> list[Violation]:
        """Every exceeded limit, worst first."""
        extremes = self.limits()
        found = []
        for n, bound in limits.items():
            value, when = extremes[n - 1]
            bound = np.broadcast_to(bound, value.shape)
            for i in np.flatnonzero(value > bound * (1 + 1e-9)):
                found.append(Violation(NAMES[n], int(i), float(when[i]), float(value[i]), float(bound[i])))
        return sorted(found, key=lambda v: -v.value / v.limit)

    def time_scale(self, v_max: Any = None, a_max: Any = None, j_max: Any = None) -> float:
        """The smallest uniform slow-down s >= 1 that respects the limits: derivatives fall by s, s^2, s^3."""
        extremes = self.limits()
        factors = [
            float(np.max(extremes[n - 1].value / bound)) ** (1 / n) for n, bound in Limits(v_max, a_max, j_max).items()
        ]
        return max(1.0, *factors) if factors else 1.0

    def slowed(self, factor: float) -> Motion:
        """The same path, ``factor`` times as long."""
        if not factor > 0:
            raise ValueError(f"a factor must be positive, got {factor}")
        return _Slowed(self, factor)

    def integral(self, t0: float | None = None, t1: float | None = None) -> np.ndarray:
        """Integral of the position over [t0, t1], [d]: 16 Gauss-Legendre nodes a quarter of the trajectory."""
        return self.integrate(lambda found: found[0], 0, t0, t1)

    def integrate(
        self,
        function: Callable[[tuple[np.ndarray, ...]], np.ndarray],
        order: int,
        t0: float | None = None,
        t1: float | None = None,
    ) -> np.ndarray:
        """Integral of a function of (position, ..., derivative of this order), each [K, d]."""
        a, b = self.t0 if t0 is None else t0, self.end if t1 is None else t1
        panels = max(1, math.ceil(4 * abs(b - a) / self.duration - 1e-9))
        edges = np.linspace(a, b, panels + 1)
        half = np.diff(edges)[:, None] / 2
        t = ((edges[:-1, None] + edges[1:, None]) / 2 + half * _NODES).ravel()
        weights = (half * _WEIGHTS).ravel()
        return np.tensordot(weights, function(self.derivatives(t, order)), axes=1)


class _Slowed(Motion):
    def __init__(self, motion: Motion, factor: float) -> None:
        self.motion, self.factor = motion, factor
        self.t0, self.duration, self.max_order = motion.t0, motion.duration * factor, motion.max_order

    def _derivatives(self, t: np.ndarray, order: int) -> tuple[np.ndarray, ...]:
        found = self.motion.derivatives(self.t0 + (t - self.t0) / self.factor, order, "free")
        return tuple(part / self.factor**n for n, part in enumerate(found))


class SineCurve:
    """A field with its modulation folded into the weights, in numpy.

    Args:
        field: the network.
        mod: its modulation, or None.
        index: which chunk of the modulation's batch.
        dtype: of the computation.
    """

    def __init__(self, field: SineField, mod: Any = None, index: int = 0, dtype: Any = np.float64) -> None:
        self.activation = field.activation
        self.layers = []
        for i, omega in enumerate(field.omegas):
            weight, bias = (_numpy(p) for p in (field.weights[i], field.biases[i]))
            if mod is not None:
                gamma, beta = _numpy(mod.gamma[i][index]), _numpy(mod.beta[i][index])
                weight = weight * (1 + (gamma[:, None] if gamma.ndim == 1 else gamma))
                bias = bias + beta
            self.layers.append(((omega * weight).T.astype(dtype).copy(), (omega * bias).astype(dtype)))
        self.out = _numpy(field.out_weight).T.astype(dtype).copy(), _numpy(field.out_bias).astype(dtype)

    def __call__(self, tau: np.ndarray, order: int) -> tuple[np.ndarray, ...]:
        """Derivatives in tau, each [K, d]."""
        weight, bias = self.layers[0]
        u = np.zeros((order + 1, len(tau), weight.shape[1]), weight.dtype)
        u[0] = tau[:, None] * weight + bias
        if order:
            u[1] = weight
        h = self._activate(u)
        for weight, bias in self.layers[1:]:
            u = (h.reshape(-1, h.shape[2]) @ weight).reshape(order + 1, len(tau), -1)
            u[0] += bias
            h = self._activate(u)
        out = h @ self.out[0]
        out[0] += self.out[1]
        return tuple(out)

    def _activate(self, u: np.ndarray) -> np.ndarray:
        if self.activation == "sine":
            return _sine_chain(u)
        import torch

        from niaf.field import _ACTIVATIONS, chain

        parts = [torch.from_numpy(part) for part in u]
        return np.stack([p.numpy() for p in chain(_ACTIVATIONS[self.activation](parts[0], len(u) - 1), [*parts])])


def _numpy(value: Any) -> np.ndarray:
    return value.detach().cpu().double().numpy()


def _sine_chain(u: np.ndarray) -> np.ndarray:
    """h = sin u and its derivatives, [order + 1, K, H]."""
    h = np.empty_like(u)
    s = np.sin(u[0], out=h[0])
    if len(u) > 1:
        c = np.cos(u[0])
        np.multiply(c, u[1], out=h[1])
    if len(u) > 2:
        squared = u[1] * u[1]
        h[2] = c * u[2] - s * squared
    if len(u) > 3:
        h[3] = c * (u[3] - squared * u[1]) - 3 * s * u[1] * u[2]
    if len(u) > 4:
        h[4] = c * (u[4] - 6 * squared * u[2]) - s * (4 * u[1] * u[3] + 3 * u[2] * u[2] - squared * squared)
    return h


class Trajectory(Motion):
    """One chunk.

    Args:
        curve: the function of tau in [-1, 1].
        duration: T, seconds.
        t0: when it starts, seconds.
        scale: standard deviation of each channel, to undo a normalisation; 1 by default.
        offset: mean of each channel; 0 by default.
    """

    def __init__(
        self,
        curve: Curve,
        duration: float,
        t0: float = 0.0,
        scale: np.ndarray | float = 1.0,
        offset: np.ndarray | float = 0.0,
        max_order: int = MAX_ORDER,
    ) -> None:
        if not (math.isfinite(duration) and duration > 0):
            raise ValueError(f"a duration must be positive, got {duration}")
        if not math.isfinite(t0):
            raise ValueError(f"a start must be finite, got {t0}")
        self.curve, self.duration, self.t0, self.max_order = curve, float(duration), float(t0), max_order
        self.scale, self.offset = np.asarray(scale, float), np.asarray(offset, float)

    @classmethod
    def from_field(
        cls, field: SineField, mod: Any, duration: float, t0: float = 0.0, index: int = 0, **keywords: Any
    ) -> Trajectory:
        """Chunk ``index`` of a modulated field."""
        return cls(SineCurve(field, mod, index), duration, t0, **keywords)

    def starting_at(self, t0: float) -> Trajectory:
        """The same chunk at another start."""
        return Trajectory(self.curve, self.duration, t0, self.scale, self.offset, self.max_order)

    def _derivatives(self, t: np.ndarray, order: int) -> tuple[np.ndarray, ...]:
        rate = 2 / self.duration
        found = self.curve((t - self.t0) * rate - 1, order)
        parts = [part * (self.scale * rate**n) for n, part in enumerate(found)]
        parts[0] = parts[0] + self.offset
        return tuple(parts)

    def compile(self, order: int = 2, dtype: Any = np.float32) -> Callable[[float], np.ndarray]:
        """A function of one time for a control loop: t -> [order + 1, d], with no checks but the clipping of t.

        A sine field is evaluated in ``dtype`` (float32 by default: positions to about 1e-6 of the scale).
        """
        check_order(order)
        t0, end, rate = self.t0, self.end, 2 / self.duration
        factors = np.stack([np.broadcast_to(self.scale * rate**n, np.shape(self.scale)) for n in range(order + 1)])
        factors = factors[:, None] if factors.ndim == 1 else factors
        curve = self.curve
        if isinstance(curve, SineCurve):
            narrow = object.__new__(SineCurve)
            narrow.activation = curve.activation
            narrow.layers = [(w.astype(dtype), b.astype(dtype)) for w, b in curve.layers]
            narrow.out = curve.out[0].astype(dtype), curve.out[1].astype(dtype)
            curve = narrow

        def query(t: float) -> np.ndarray:
            tau = (min(max(t, t0), end) - t0) * rate - 1
            found = np.stack(curve(np.array([tau], dtype), order))[:, 0] * factors
            found[0] += self.offset
            return found

        return query


def smoothstep(s: np.ndarray, order: int = 0, smoothness: int = 2) -> tuple[np.ndarray, ...]:
    """w(s) from 0 to 1 and its derivatives in s; outside of [0, 1] it is constant.

    Args:
        s: any shape.
        order: highest derivative.
        smoothness: 2 (10 s^3 - 15 s^4 + 6 s^5) or 3 (35 s^4 - 84 s^5 + 70 s^6 - 20 s^7).
    """
    polynomials = {2: (0, 0, 0, 10, -15, 6), 3: (0, 0, 0, 0, 35, -84, 70, -20)}
    if smoothness not in polynomials:
        raise ValueError(f"smoothness must be 2 or 3, got {smoothness}")
    w = np.polynomial.Polynomial(polynomials[smoothness])
    inside = np.clip(s, 0, 1)
    parts = [w(inside)]
    for n in range(1, order + 1):
        parts.append(np.where((s >= 0) & (s <= 1), w.deriv(n)(inside), 0.0))
    return tuple(parts)


class CompositeTrajectory(Motion):
    """Old until t, new from t + width, blended smoothly in between: (1 - w) old + w new.

    Derivatives by Leibniz' rule, up to the blend's smoothness + 1 (where they may jump).
    """

    def __init__(self, old: Motion, new: Motion, t: float, width: float, smoothness: int = 2) -> None:
        if not width > 0:
            raise ValueError(f"the width of a blend must be positive, got {width}")
        edge = EDGE * max(1.0, width)
        for name, motion in (("old", old), ("new", new)):
            if t < motion.t0 - edge or t + width > motion.end + edge:
                raise ExtrapolationError(
                    f"the blend needs [{t:.6g}, {t + width:.6g}] s, and the {name} trajectory covers "
                    f"[{motion.t0:.6g}, {motion.end:.6g}]"
                )
        smoothstep(np.zeros(1), 0, smoothness)
        self.old, self.new, self.t, self.width, self.smoothness = old, new, t, width, smoothness
        self.t0, self.duration = old.t0, new.end - old.t0
        self.max_order = min(old.max_order, new.max_order)

    def _derivatives(self, t: np.ndarray, order: int) -> tuple[np.ndarray, ...]:
        w = [p / self.width**n for n, p in enumerate(smoothstep((t - self.t) / self.width, order, self.smoothness))]
        old = self.old.derivatives(np.minimum(t, self.old.end), order, "free")
        new = self.new.derivatives(np.maximum(t, self.new.t0), order, "free")
        gap = [b - a for a, b in zip(old, new, strict=True)]
        before, after = (t <= self.t)[:, None], (t >= self.t + self.width)[:, None]
        parts = []
        for n in range(order + 1):
            mixed = old[n] + sum(math.comb(n, k) * w[k][:, None] * gap[n - k] for k in range(n + 1))
            parts.append(np.where(before, old[n], np.where(after, new[n], mixed)))
        return tuple(parts)


def blend(old: Motion, new: Motion, t: float, width: float, smoothness: int = 2) -> CompositeTrajectory:
    """Hand over from ``old`` to ``new`` between t and t + width seconds, twice (or 3 times) continuously."""
    return CompositeTrajectory(old, new, t, width, smoothness)


class _Anchored(Motion):
    def __init__(self, motion: Motion, gap: tuple[np.ndarray, ...], t: float, width: float) -> None:
        self.motion, self.t, self.width = motion, t, width
        self.t0, self.duration, self.max_order = t, motion.end - t, motion.max_order
        # p(s) = q(s) (1 - s)^3 with q matching value, slope and curvature at s = 0
        x, v, a = (np.asarray(g, float) * width**n for n, g in enumerate(gap))
        q = np.stack([x, v + 3 * x, a / 2 + 3 * v + 6 * x])
        cube = np.array([1.0, -3.0, 3.0, -1.0])
        self.coefficients = np.stack([sum(cube[k] * q[n - k] for k in range(4) if 0 <= n - k <= 2) for n in range(6)])

    def _derivatives(self, t: np.ndarray, order: int) -> tuple[np.ndarray, ...]:
        s = np.clip((t - self.t) / self.width, 0, 1)
        inside = (t - self.t <= self.width)[:, None]
        found = self.motion.derivatives(t, order, "free")
        parts, c = [], self.coefficients
        for n in range(order + 1):
            value = np.vander(s, len(c), increasing=True) @ c if len(c) else 0.0
            parts.append(found[n] + np.where(inside, value / self.width**n, 0.0))
            c = np.arange(1, len(c))[:, None] * c[1:]
        return tuple(parts)


def anchor(new: Motion, state: Sequence[np.ndarray], t: float, width: float) -> Motion:
    """Let ``new`` start at t from a running state: a polynomial that decays over ``width`` seconds is added.

    Args:
        new: the trajectory to follow.
        state: (position, velocity, acceleration) at t, each [d].
        t: when, inside of ``new``.
        width: seconds after which ``new`` is followed exactly.
    """
    if not width > 0:
        raise ValueError(f"the width of an anchor must be positive, got {width}")
    if len(state) != 3:
        raise ValueError(f"a state is (position, velocity, acceleration), got {len(state)} parts")
    found = new.derivatives(t, 2)
    return _Anchored(new, tuple(np.asarray(s, float) - f for s, f in zip(state, found, strict=True)), t, width)


class _Average(Motion):
    def __init__(self, motions: Sequence[Motion], weights: np.ndarray) -> None:
        self.motions, self.weights = list(motions), weights
        self.t0 = max(m.t0 for m in motions)
        self.duration = min(m.end for m in motions) - self.t0
        self.max_order = min(m.max_order for m in motions)
        if self.duration <= 0:
            raise ExtrapolationError("the trajectories have no time in common")

    def _derivatives(self, t: np.ndarray, order: int) -> tuple[np.ndarray, ...]:
        all_found = [m.derivatives(t, order, "free") for m in self.motions]
        return tuple(np.tensordot(self.weights, [f[n] for f in all_found], axes=1) for n in range(order + 1))


def ensemble(motions: Sequence[Motion], m: float = 0.01) -> Motion:
    """Temporal ensembling of functions: weights exp(-m i), oldest first (ACT), on the time they have in common."""
    if not motions:
        raise ValueError("expected at least one trajectory, got none")
    weights = np.exp(-m * np.arange(len(motions)))
    return _Average(motions, weights / weights.sum())


def check(motion: Motion, limits: Limits) -> list[Violation]:
    """Every limit on velocity, acceleration and jerk that a trajectory exceeds, worst first."""
    return motion.check(limits)
