"""How smooth a motion is, and how far it is off between its training samples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from niaf.trajectory import Motion


def dimensionless_jerk(motion: Motion) -> float:
    """T^5 / D^2 times the integral of squared jerk, D the distance of the ends; 720 for a minimum-jerk reach.

    Source: Hogan and Sternad 2009. Infinite where the motion ends where it began.
    """
    ends = motion.derivatives(np.array([motion.t0, motion.end]), 0)[0]
    distance2 = float(np.square(ends[1] - ends[0]).sum())
    total = float(motion.integrate(lambda f: np.square(f[3]).sum(1), 3))
    return motion.duration**5 * total / distance2 if distance2 > 0 else float("inf")


def spectral_arc_length(speed: np.ndarray, rate: float, cutoff: float = 10.0, threshold: float = 0.05) -> float:
    """Length of the normalised Fourier spectrum of the speed, negated: nearer to 0 is smoother (Balasubramanian 2015).

    Args:
        speed: [N], uniformly sampled.
        rate: Hz.
        cutoff: highest frequency, Hz.
        threshold: amplitudes below it at the end do not count.
    """
    if not np.any(speed):
        return 0.0
    n = 2 ** (int(np.ceil(np.log2(len(speed)))) + 4)
    amplitude = np.abs(np.fft.rfft(speed, n))
    frequency = np.arange(len(amplitude)) * rate / n
    amplitude = amplitude / amplitude[0]
    keep = np.flatnonzero((frequency <= cutoff) & (amplitude >= threshold))
    amplitude, frequency = amplitude[: keep[-1] + 1], frequency[: keep[-1] + 1]
    span = frequency[-1] - frequency[0]
    if span == 0:
        return 0.0
    return -float(np.sqrt(np.square(np.diff(frequency) / span) + np.square(np.diff(amplitude))).sum())


def velocity_peaks(speed: np.ndarray) -> int:
    """Local maxima of the speed above 5 % of its largest."""
    inner = speed[1:-1]
    return int(np.sum((inner > speed[:-2]) & (inner >= speed[2:]) & (inner > 0.05 * speed.max(initial=0.0))))


def smoothness(motion: Motion, rate: float = 200.0) -> dict[str, float]:
    """Smoothness of a motion.

    Returns:
        ``rms_jerk`` (unit/s^3), ``dimensionless_jerk``, ``log_dimensionless_jerk`` (negative log: larger is smoother),
        ``spectral_arc_length`` and ``velocity_peaks``.
    """
    n = max(16, int(np.ceil(motion.duration * rate)) + 1)
    t = np.linspace(motion.t0, motion.end, n)
    _, velocity, _, jerk = motion.derivatives(t, 3)
    speed = np.linalg.norm(velocity, axis=1)
    scaled = dimensionless_jerk(motion)
    return {
        "rms_jerk": float(np.sqrt(np.square(jerk).sum(1).mean())),
        "dimensionless_jerk": scaled,
        "log_dimensionless_jerk": float(-np.log(scaled)) if scaled > 0 else float("inf"),
        "spectral_arc_length": spectral_arc_length(speed, (n - 1) / motion.duration),
        "velocity_peaks": float(velocity_peaks(speed)),
    }


def sampled_smoothness(actions: np.ndarray, rate: float) -> dict[str, float]:
    """The same of N samples [N, d], by finite differences. Fewer than 4 samples have no jerk: NaN."""
    actions = np.asarray(actions, float)
    n = len(actions)
    if n < 4:
        return dict.fromkeys(
            ("rms_jerk", "log_dimensionless_jerk", "spectral_arc_length", "velocity_peaks", "largest_step"),
            float("nan"),
        )
    jerk = np.diff(actions, 3, axis=0) * rate**3
    speed = np.linalg.norm(np.diff(actions, axis=0) * rate, axis=1)
    duration, peak = (n - 1) / rate, speed.max()
    scaled = np.square(jerk).sum() / rate * duration**3 / peak**2 if peak > 0 else 0.0
    return {
        "rms_jerk": float(np.sqrt(np.square(jerk).sum(1).mean())),
        "log_dimensionless_jerk": float(-np.log(scaled)) if scaled > 0 else float("inf"),
        "spectral_arc_length": spectral_arc_length(speed, rate),
        "velocity_peaks": float(velocity_peaks(speed)),
        "largest_step": float(peak / rate),
    }


def splice_jump(before: Motion, after: Motion, t: float) -> dict[str, float]:
    """Jumps of value, velocity and acceleration where one motion is replaced by another."""
    a, b = before.derivatives(t, 2), after.derivatives(t, 2)
    gaps = [float(np.linalg.norm(y - x)) for x, y in zip(a, b, strict=True)]
    return dict(zip(("value", "velocity", "acceleration"), gaps, strict=True))


def offgrid_error(
    motions: Sequence[Motion], truth: np.ndarray, velocity: np.ndarray | None = None
) -> Mapping[str, float]:
    """Errors on a dense grid that the training samples are not on.

    Args:
        motions: B motions.
        truth: positions at N uniform times of each, [B, N, d].
        velocity: velocities there.

    Returns:
        ``position`` (RMSE), ``velocity`` (RMSE divided by the RMS velocity), ``rms_jerk``.
    """
    squared, speed, jerk, size = 0.0, 0.0, 0.0, 0.0
    for i, motion in enumerate(motions):
        found = motion.derivatives(np.linspace(motion.t0, motion.end, truth.shape[1]), 3)
        squared += np.square(found[0] - truth[i]).sum()
        jerk += np.square(found[3]).sum()
        if velocity is not None:
            speed += np.square(found[1] - velocity[i]).sum()
            size += np.square(velocity[i]).sum()
    points = truth.shape[0] * truth.shape[1]
    return {
        "position": float(np.sqrt(squared / truth.size)),
        "velocity": float(np.sqrt(speed / size)) if size > 0 else float("nan"),
        "rms_jerk": float(np.sqrt(jerk / points)),
    }
