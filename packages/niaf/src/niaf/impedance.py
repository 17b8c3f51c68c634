"""Impedance control that follows a continuous reference (section "Execution" of the paper).

    u = K_p (Phi - x) + K_d (Phi' - v) + M Phi'' + bias,   K_d = 2 zeta sqrt(K_p M)

The first two terms are the paper's; inertia and bias feed-forward, limits and the watchdog are ours. numpy only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np


def critical_damping(kp: Any, mass: Any, zeta: float = 0.7) -> np.ndarray:
    """K_d = 2 zeta sqrt(K_p M), elementwise."""
    return 2 * zeta * np.sqrt(np.asarray(kp, float) * np.asarray(mass, float))


def step_response(t: np.ndarray, kp: float, mass: float, zeta: float) -> np.ndarray:
    """Position of a mass under u = K_p (1 - x) - K_d v, from rest at 0, for zeta < 1."""
    w = np.sqrt(kp / mass)
    wd = w * np.sqrt(1 - zeta**2)
    return 1 - np.exp(-zeta * w * t) * (np.cos(wd * t) + zeta * w / wd * np.sin(wd * t))


class Reference(NamedTuple):
    """What to follow now: position, velocity and acceleration, each [d]."""

    position: np.ndarray
    velocity: np.ndarray
    acceleration: np.ndarray


@dataclass(frozen=True)
class EffortLimits:
    """Bounds of the force or torque, and of its change a second; None is free."""

    effort: Any = None
    rate: Any = None


@dataclass
class ImpedanceController:
    """A spring, a damper and the feed-forward of a reference.

    Attributes:
        kp: stiffness, a number or one a coordinate.
        mass: inertia M, a number, [d] or [d, d].
        zeta: damping ratio (paper: 0.7), unless ``kd`` is given.
        kd: damping.
        limits: of the effort.
        feed_forward: whether M Phi'' is added.
    """

    kp: Any
    mass: Any = 1.0
    zeta: float = 0.7
    kd: Any = None
    limits: EffortLimits = field(default_factory=EffortLimits)
    feed_forward: bool = True

    def __post_init__(self) -> None:
        if not (np.asarray(self.kp, float) > 0).all():
            raise ValueError(f"a stiffness must be positive, got {self.kp}")
        mass = np.asarray(self.mass, float)
        diagonal = np.diag(mass) if mass.ndim == 2 else mass
        if not (diagonal > 0).all():
            raise ValueError(f"a mass must be positive, got {self.mass}")
        if self.kd is None:
            self.kd = critical_damping(self.kp, diagonal, self.zeta)
        self._last: np.ndarray | None = None

    def reset(self) -> None:
        """Forget the last effort (for the rate limit)."""
        self._last = None

    def effort(
        self, reference: Reference, x: np.ndarray, v: np.ndarray, dt: float = 0.0, bias: Any = 0.0
    ) -> np.ndarray:
        """Force or torque [d].

        Args:
            reference: what to follow.
            x: measured position.
            v: measured velocity.
            dt: seconds since the last call, for the rate limit.
            bias: gravity, Coriolis and friction to be cancelled.
        """
        u = np.asarray(self.kp) * (reference.position - x) + np.asarray(self.kd) * (reference.velocity - v) + bias
        if self.feed_forward:
            mass = np.asarray(self.mass, float)
            u = u + (mass @ reference.acceleration if mass.ndim == 2 else mass * reference.acceleration)
        if self.limits.effort is not None:
            u = np.clip(u, -np.asarray(self.limits.effort), self.limits.effort)
        if self.limits.rate is not None and self._last is not None and dt > 0:
            change = np.asarray(self.limits.rate) * dt
            u = np.clip(u, self._last - change, self._last + change)
        self._last = u
        return u


def watched(motion: Any, t: float) -> tuple[Reference, bool]:
    """The reference of a motion at t; past its end it holds the last position, at rest, and says that it is stale.

    Args:
        motion: a :class:`~niaf.trajectory.Motion`.
        t: seconds.
    """
    found = motion.derivatives(min(max(t, motion.t0), motion.end), 2)
    if t > motion.end + 1e-9:
        return Reference(found[0], np.zeros_like(found[0]), np.zeros_like(found[0])), True
    return Reference(*found), False


# --- Orientation and Cartesian space ------------------------------------------------------------------------------


def rot6d_to_matrix(r: np.ndarray) -> np.ndarray:
    """[..., 6] (two columns) -> rotation [..., 3, 3] by Gram-Schmidt (Zhou et al. 2019)."""
    a, b = r[..., :3], r[..., 3:]
    x = a / np.linalg.norm(a, axis=-1, keepdims=True)
    y = b - np.sum(x * b, -1, keepdims=True) * x
    y = y / np.linalg.norm(y, axis=-1, keepdims=True)
    return np.stack([x, y, np.cross(x, y)], -1)


def matrix_to_rot6d(rotation: np.ndarray) -> np.ndarray:
    """Rotation [..., 3, 3] -> its first two columns [..., 6]."""
    return np.concatenate([rotation[..., 0], rotation[..., 1]], -1)


def unit_quaternions(q: np.ndarray) -> np.ndarray:
    """Normalise quaternions (w, x, y, z) [N, 4] and remove sign flips from frame to frame.

    Raises:
        ValueError: for a zero quaternion.
    """
    norm = np.linalg.norm(q, axis=-1, keepdims=True)
    if not (norm > 0).all():
        raise ValueError(f"frame {int(np.argmin(norm[:, 0]))} holds a zero quaternion")
    q = q / norm
    flips = np.cumprod(np.where(np.sum(q[1:] * q[:-1], -1) < 0, -1.0, 1.0))
    return q * np.concatenate([[1.0], flips])[:, None]


def unit_quaternions_in(x: np.ndarray, first: Sequence[int]) -> np.ndarray:
    """Channels [N, d] with :func:`unit_quaternions` applied to the four from each given one on."""
    if not len(first):
        return x
    x = x.copy()
    for i in first:
        x[:, i : i + 4] = unit_quaternions(x[:, i : i + 4])
    return x


def quaternion_log_error(desired: np.ndarray, actual: np.ndarray) -> np.ndarray:
    """Rotation vector [3] that takes ``actual`` to ``desired``, in the world frame; quaternions are (w, x, y, z)."""
    w1, v1 = desired[0], desired[1:]
    w2, v2 = actual[0], -np.asarray(actual[1:])
    w, v = w1 * w2 - v1 @ v2, w1 * v2 + w2 * v1 + np.cross(v1, v2)
    if w < 0:
        w, v = -w, -v
    size = np.linalg.norm(v)
    return 2 * v if size < 1e-12 else 2 * np.arctan2(size, w) * v / size


def unwrap_angles(x: np.ndarray, channels: Any) -> np.ndarray:
    """Remove jumps of 2 pi in the given channels of [N, d]."""
    x = np.array(x, float)
    x[:, channels] = np.unwrap(x[:, channels], axis=0)
    return x


def wrapped_channels(x: np.ndarray) -> list[int]:
    """Channels of [N, d] that jump by more than pi within [-pi, pi]: angles that should be unwrapped."""
    jumps = np.abs(np.diff(x, axis=0)) > np.pi
    inside = np.abs(x).max(0, initial=0) <= np.pi + 1e-6
    return [int(i) for i in np.flatnonzero(jumps.any(0) & inside)]


def cartesian_torque(jacobian: np.ndarray, wrench: np.ndarray, qvel: np.ndarray, null_damping: float) -> np.ndarray:
    """J^T wrench, and damping of joint motion in the null space of J.

    Args:
        jacobian: [6, n] or [3, n].
        wrench: [6] or [3].
        qvel: [n].
        null_damping: Nms/rad.
    """
    null = np.eye(jacobian.shape[1]) - np.linalg.pinv(jacobian) @ jacobian
    return jacobian.T @ wrench - null @ (null_damping * qvel)
