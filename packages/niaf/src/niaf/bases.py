"""Representations that are linear in their parameters: x(tau) = B(tau) c.

B-splines (BEAST), cosines (FAST), Fourier series, Hermite cubics, straight lines between waypoints, and ProDMP.
Each basis
gives the matrices of all derivatives in tau in [-1, 1]; fitting is ridge least squares in closed form.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from niaf.field import check_order

Basis = Callable[[np.ndarray, int], tuple[np.ndarray, ...]]


@dataclass(frozen=True)
class BSplineBasis:
    """Clamped uniform B-splines of n control points.

    Attributes:
        n: control points, more than the degree.
        degree: of the pieces (BEAST: 4).
    """

    n: int
    degree: int = 4

    def __post_init__(self) -> None:
        if not 1 <= self.degree < self.n:
            raise ValueError(
                f"a spline of degree {self.degree} needs more than {self.degree} control points, got {self.n}"
            )

    @property
    def knots(self) -> np.ndarray:
        """[n + degree + 1] in [-1, 1]."""
        inner = np.linspace(-1, 1, self.n - self.degree + 1)
        return np.concatenate([[-1.0] * self.degree, inner, [1.0] * self.degree])

    def _values(self, tau: np.ndarray, degree: int, knots: np.ndarray) -> np.ndarray:
        """Cox-de Boor, [K, len(knots) - degree - 1]."""
        last = np.flatnonzero(knots < knots[-1])[-1]
        interval = np.clip(np.searchsorted(knots, tau, "right") - 1, 0, last)
        b = (np.arange(len(knots) - 1) == interval[:, None]).astype(float)
        for k in range(1, degree + 1):
            left, right = knots[k:-1] - knots[: -k - 1], knots[k + 1 :] - knots[1:-k]
            up = np.divide(tau[:, None] - knots[: -k - 1], left, out=np.zeros((len(tau), len(left))), where=left > 0)
            down = np.divide(knots[k + 1 :] - tau[:, None], right, out=np.zeros_like(up), where=right > 0)
            b = up * b[:, :-1] + down * b[:, 1:]
        return b

    def __call__(self, tau: np.ndarray, order: int = 0) -> tuple[np.ndarray, ...]:
        """order + 1 matrices [K, n]."""
        check_order(order)
        parts, change, knots = [], np.eye(self.n), self.knots
        for n in range(order + 1):
            degree = self.degree - n
            if degree < 0:
                parts.append(np.zeros((len(tau), self.n)))
                continue
            parts.append(self._values(np.asarray(tau, float), degree, knots) @ change)
            if degree > 0:  # control points of the derivative
                span = knots[degree + 1 : -1] - knots[1 : -degree - 1]
                change = degree * np.diff(change, axis=0) / span[:, None]
                knots = knots[1:-1]
        return tuple(parts)


@dataclass(frozen=True)
class CosineBasis:
    """The first n vectors of the orthonormal DCT-II of K samples, as functions of time (FAST).

    At the samples, ``B @ c`` is scipy's ``idct(c, norm="ortho")``.
    """

    n: int
    n_samples: int

    def __post_init__(self) -> None:
        if not 1 <= self.n <= self.n_samples:
            raise ValueError(f"{self.n_samples} samples have 1 to {self.n_samples} coefficients, got {self.n}")

    def __call__(self, tau: np.ndarray, order: int = 0) -> tuple[np.ndarray, ...]:
        """order + 1 matrices [K, n]."""
        check_order(order)
        k = self.n_samples
        frequency = np.pi * np.arange(self.n) / k
        norm = np.where(np.arange(self.n) == 0, math.sqrt(1 / k), math.sqrt(2 / k))
        rate = (k - 1) / 2  # samples per tau
        phase = frequency * ((np.asarray(tau, float)[:, None] + 1) * rate + 0.5)
        return tuple(norm * (frequency * rate) ** m * np.cos(phase + m * np.pi / 2) for m in range(order + 1))


@dataclass(frozen=True)
class FourierBasis:
    """1, tau, and sines and cosines of fixed frequencies pi/2, 2 pi/2, ... up to Nyquist: no aliasing by construction.

    Attributes:
        n_samples: K.
        n_frequencies: at most (K - 1) / 2 by default.
    """

    n_samples: int
    n_frequencies: int | None = None

    @property
    def frequencies(self) -> np.ndarray:
        """rad per unit of tau; the period is twice the chunk."""
        count = (self.n_samples - 1) // 2 if self.n_frequencies is None else self.n_frequencies
        return np.arange(1, count + 1) * np.pi / 2

    @property
    def n(self) -> int:
        """Number of coefficients."""
        return 2 + 2 * len(self.frequencies)

    def __call__(self, tau: np.ndarray, order: int = 0) -> tuple[np.ndarray, ...]:
        """order + 1 matrices [K, n]."""
        check_order(order)
        tau = np.asarray(tau, float)[:, None]
        w, parts = self.frequencies, []
        line = [np.concatenate([np.ones_like(tau), tau], 1), np.concatenate([np.zeros_like(tau), np.ones_like(tau)], 1)]
        for m in range(order + 1):
            first = line[m] if m < 2 else np.zeros_like(line[0])
            turn = w * tau + m * np.pi / 2
            parts.append(np.concatenate([first, w**m * np.sin(turn), w**m * np.cos(turn)], 1))
        return tuple(parts)


@dataclass(frozen=True)
class HermiteBasis:
    """Cubics between K samples from values and velocities: once continuous. Coefficients: K values, K slopes in tau."""

    n_samples: int

    @property
    def n(self) -> int:
        """2 K."""
        return 2 * self.n_samples

    def __call__(self, tau: np.ndarray, order: int = 0) -> tuple[np.ndarray, ...]:
        """order + 1 matrices [K, 2 n_samples]."""
        check_order(order)
        k, h = self.n_samples, 2 / (self.n_samples - 1)
        x = (np.asarray(tau, float) + 1) / h
        i = np.clip(np.floor(x).astype(int), 0, k - 2)
        s, rows = x - i, np.arange(len(x))
        pieces = [(1, 0, -3, 2), (0, 0, 3, -2), (0, h, -2 * h, h), (0, 0, -h, h)]
        parts = []
        for m in range(order + 1):
            matrix = np.zeros((len(x), 2 * k))
            for piece, column in zip(pieces, (i, i + 1, k + i, k + i + 1), strict=True):
                matrix[rows, column] = np.polynomial.Polynomial(piece).deriv(m)(s) / h**m
            parts.append(matrix)
        return tuple(parts)

    def catmull_rom(self, values: np.ndarray) -> np.ndarray:
        """Coefficients from values [K, d] alone: slopes are central differences."""
        return np.concatenate([values, np.gradient(values, 2 / (self.n_samples - 1), axis=0)])


@dataclass(frozen=True)
class WaypointBasis:
    """What a list of waypoints gives: lines between the samples; derivatives are repeated central differences,
    likewise."""

    n_samples: int

    @property
    def n(self) -> int:
        """K."""
        return self.n_samples

    def __call__(self, tau: np.ndarray, order: int = 0) -> tuple[np.ndarray, ...]:
        """order + 1 matrices [K, n_samples]."""
        check_order(order)
        k, h = self.n_samples, 2 / (self.n_samples - 1)
        x = (np.asarray(tau, float) + 1) / h
        i = np.clip(np.floor(x).astype(int), 0, k - 2)
        hat = np.zeros((len(x), k))
        hat[np.arange(len(x)), i] = 1 - (x - i)
        hat[np.arange(len(x)), i + 1] += x - i
        parts, difference = [hat], np.eye(k)
        for _ in range(order):
            difference = np.gradient(difference, h, axis=0)
            parts.append(hat @ difference)
        return tuple(parts)


@dataclass(frozen=True)
class ProDMPBasis:
    """Probabilistic dynamic movement primitives with a precomputed basis (Li et al. 2023).

    y'' = alpha (beta (g - y) - y') + f(x), f a sum of n Gaussians of the phase x, y(start) and y'(start) given.
    The solution
    is linear in (y0, y0', weights, goal): coefficients [n + 3] in this order; time runs over s = (tau + 1) / 2 in
    [0, 1].

    Attributes:
        n_weights: Gaussians.
        alpha: of the (critically damped) system, per chunk; beta is alpha / 4.
        phase_decay: x(s) = exp(-phase_decay s).
    """

    n_weights: int = 10
    alpha: float = 25.0
    phase_decay: float = 3.0
    steps: int = 1000

    @property
    def n(self) -> int:
        """n_weights + 3."""
        return self.n_weights + 3

    def _forcing(self, s: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Forcing of each weight and of the goal and its first two derivatives in s, [K, n_weights + 1]."""
        centres = np.exp(-self.phase_decay * np.linspace(0, 1, self.n_weights))
        gaps = np.diff(centres) if self.n_weights > 1 else np.array([-0.5])
        width = 1 / np.square(np.append(gaps, gaps[-1]) * 1.0)
        x = np.exp(-self.phase_decay * s)[:, None]
        u = x - centres
        g = np.exp(-0.5 * width * u**2)
        g1, g2 = -width * u * g, (width**2 * u**2 - width) * g
        total, total1, total2 = (p.sum(1, keepdims=True) for p in (g, g1, g2))
        q = g / total
        q1 = (g1 - q * total1) / total
        q2 = (g2 - 2 * q1 * total1 - q * total2) / total
        a = self.phase_decay  # d/ds = -a x d/dx
        f, fx, fxx = x * q, q + x * q1, 2 * q1 + x * q2
        scale = self.alpha**2 / 4
        parts = []
        for value, goal in ((f, 1.0), (-a * x * fx, 0.0), (a**2 * x * (fx + x * fxx), 0.0)):
            parts.append(scale * np.concatenate([value, np.full((len(s), 1), goal)], 1))
        return parts[0], parts[1], parts[2]

    def _acceleration(self, y: np.ndarray, v: np.ndarray, f: np.ndarray) -> np.ndarray:
        return -(self.alpha**2) / 4 * y - self.alpha * v + f

    @cached_property
    def _solution(self) -> tuple[np.ndarray, np.ndarray]:
        """Response to each forcing from rest at 0 and its velocity, [steps + 1, n_weights + 1], by Runge-Kutta 4."""
        h = 1 / self.steps
        s = np.linspace(0, 1, 2 * self.steps + 1)
        forcing = self._forcing(s)[0]
        y, v = np.zeros(forcing.shape[1]), np.zeros(forcing.shape[1])
        ys, vs = [y], [v]
        for i in range(self.steps):
            f0, f1, f2 = forcing[2 * i : 2 * i + 3]
            a1 = self._acceleration(y, v, f0)
            v2 = v + h / 2 * a1
            a2 = self._acceleration(y + h / 2 * v, v2, f1)
            v3 = v + h / 2 * a2
            a3 = self._acceleration(y + h / 2 * v2, v3, f1)
            v4 = v + h * a3
            a4 = self._acceleration(y + h * v3, v4, f2)
            y = y + h / 6 * (v + 2 * v2 + 2 * v3 + v4)
            v = v + h / 6 * (a1 + 2 * a2 + 2 * a3 + a4)
            ys.append(y)
            vs.append(v)
        return np.array(ys), np.array(vs)

    def __call__(self, tau: np.ndarray, order: int = 0) -> tuple[np.ndarray, ...]:
        """order + 1 matrices [K, n_weights + 3]."""
        check_order(order)
        s = (np.asarray(tau, float) + 1) / 2
        f, f1, f2 = self._forcing(s)
        y, v = self._interpolated(s)
        a = self._acceleration(y, v, f)
        j = self._acceleration(v, a, f1)
        forced = [y, v, a, j, self._acceleration(a, j, f2)]
        r = self.alpha / 2
        decay = np.exp(-r * s)[:, None]
        parts = []
        for m in range(order + 1):  # (y0 + (v0 + r y0) s) e^{-r s}
            slope = decay * ((-r) ** m * s[:, None] + (m * (-r) ** (m - 1) if m else 0))
            value = (-r) ** m * decay + r * slope
            parts.append(np.concatenate([value, 2 * slope, forced[m]], 1) * 0.5**m)
        # a velocity in tau is half of one in s, so the coefficient of y0' (in tau) enters doubled
        return tuple(parts)

    def _interpolated(self, s: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Position and velocity between the steps, by quintic Hermite polynomials in (y, v, a)."""
        ys, vs = self._solution
        h = 1 / self.steps
        i = np.clip(np.floor(s * self.steps).astype(int), 0, self.steps - 1)
        u = (s * self.steps - i)[:, None]
        grid = np.arange(self.steps + 1) / self.steps
        accelerations = self._acceleration(ys, vs, self._forcing(grid)[0])
        c = (ys[i], h * vs[i], h * h * accelerations[i], ys[i + 1], h * vs[i + 1], h * h * accelerations[i + 1])
        rows = [
            (1, 0, 0, -10, 15, -6),
            (0, 1, 0, -6, 8, -3),
            (0, 0, 0.5, -1.5, 1.5, -0.5),
            (0, 0, 0, 10, -15, 6),
            (0, 0, 0, -4, 7, -3),
            (0, 0, 0, 0.5, -1, 0.5),
        ]
        polynomials = [np.polynomial.Polynomial(row) for row in rows]
        y = sum(p(u) * part for p, part in zip(polynomials, c, strict=True))
        v = sum(p.deriv()(u) * part for p, part in zip(polynomials, c, strict=True)) / h
        return np.asarray(y), np.asarray(v)


class BasisCurve:
    """A curve of tau: a basis and its coefficients [n, d]."""

    def __init__(self, basis: Basis, coefficients: np.ndarray) -> None:
        self.basis, self.coefficients = basis, np.asarray(coefficients, float)

    def __call__(self, tau: np.ndarray, order: int) -> tuple[np.ndarray, ...]:
        """Derivatives in tau, each [K, d]."""
        return tuple(part @ self.coefficients for part in self.basis(tau, order))


def encoder(basis: Basis, tau: np.ndarray, ridge: float = 1e-8) -> np.ndarray:
    """The matrix [n, K] that takes samples at tau to ridge least-squares coefficients."""
    b = basis(tau, 0)[0]
    return np.linalg.solve(b.T @ b + ridge * np.eye(b.shape[1]), b.T)


def encode(basis: Basis, tau: np.ndarray, samples: np.ndarray, ridge: float = 1e-8) -> np.ndarray:
    """Ridge least-squares coefficients [n, d] of samples [K, d] (or [B, K, d]) at tau [K]."""
    return encoder(basis, tau, ridge) @ samples


def quantise(coefficients: np.ndarray, low: float, high: float, bins: int = 256) -> np.ndarray:
    """Integers 0 to bins - 1 on a uniform grid of [low, high] (BEAST-F); what lies outside is clipped."""
    if not low < high or bins < 2:
        raise ValueError(f"need low < high and at least 2 bins, got [{low}, {high}] and {bins}")
    step = (high - low) / (bins - 1)
    return np.clip(np.rint((coefficients - low) / step), 0, bins - 1).astype(np.int64)


def dequantise(tokens: np.ndarray, low: float, high: float, bins: int = 256) -> np.ndarray:
    """The grid points of :func:`quantise`; at most half a step (high - low) / (bins - 1) off inside of [low, high]."""
    return low + tokens * (high - low) / (bins - 1)
