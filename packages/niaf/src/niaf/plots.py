"""Pictures of chunks, their derivatives, and what a robot under impedance control makes of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from niaf.control import ImpedanceTrial
from niaf.trajectory import Motion
from papershelf.plot import COLOURS, figure, save


def derivatives(
    target: Path,
    motions: Mapping[str, Motion],
    truth: tuple[np.ndarray, np.ndarray, np.ndarray] | None,
    samples: tuple[np.ndarray, np.ndarray] | None,
    title: str,
    channel: int = 0,
    unit: str = "",
) -> Path:
    """Position, velocity and jerk of one channel over time, one line a representation.

    Args:
        target: where to save.
        motions: by name.
        truth: times, positions, velocities [N].
        samples: times and positions [K] of the training samples.
        title: over the picture.
        channel: which.
        unit: of positions.
    """
    with figure(7.2, 6.8, nrows=3, sharex=True) as (drawing, axes):
        if truth is not None:
            for axis, values in zip(axes[:2], truth[1:], strict=True):
                axis.plot(truth[0], values, color="black", linewidth=3, alpha=0.25, label="truth")
        for number, (name, motion) in enumerate(motions.items()):
            t = np.linspace(motion.t0, motion.end, 801)
            found = motion.derivatives(t, 3)
            for axis, n in zip(axes, (0, 1, 3), strict=True):
                axis.plot(t, found[n][:, channel], color=COLOURS[number], linewidth=1.3, label=name)
        if samples is not None:
            axes[0].plot(*samples, "o", color="black", markersize=4, label="samples")
        if truth is not None:
            for axis, values in zip(axes[:2], truth[1:], strict=True):
                low, high = values.min(), values.max()
                margin = 0.35 * (high - low)
                axis.set_ylim(low - margin, high + margin)
        axes[2].set_yscale("symlog", linthresh=10)
        for axis, name in zip(axes, ("position", "velocity, 1/s", "jerk, 1/s³"), strict=True):
            axis.set_ylabel(f"{name} {unit}".strip())
        axes[2].set_xlabel("seconds")
        axes[0].legend(ncols=3, fontsize=8, loc="upper left", bbox_to_anchor=(0, 1.42))
        drawing.suptitle(title, fontsize=11)
        return save(drawing, target)[0]


REFERENCES = ("analytic", "lerp+FD", "lerp, v=0", "hold+FD")


def tracking(target: Path, found: Mapping[str, Any], trial: ImpedanceTrial) -> Path:
    """First coordinate's error and effort over time, one column a reference of ``impedance_table``."""
    length, effort = trial.units
    title = f"{trial.model}, commands at {trial.command_rate:g} Hz, noise {1e3 * trial.noise:g} {length}"
    with figure(10, 4.6, nrows=2, ncols=len(REFERENCES), sharex=True, sharey="row") as (drawing, axes):
        for column, name in enumerate(REFERENCES):
            run, row = found["runs"][name], found["rows"][name]
            error = 1e3 * (run.position - found["truth"][0])[:, 0]
            axes[0, column].plot(run.t, error, color=COLOURS[0], linewidth=0.9)
            axes[1, column].plot(run.t, run.effort[:, 0], color=COLOURS[1], linewidth=0.7)
            axes[0, column].set_title(
                f"{name}\n{row['rmse']:.1f} {length}, {row['effort_rate']:.0f} {effort}/s", fontsize=9
            )
            axes[1, column].set_xlabel("seconds")
        axes[0, 0].set_ylabel(f"error, {length}")
        axes[1, 0].set_ylabel(f"effort, {effort}")
        drawing.suptitle(title, fontsize=11)
        return save(drawing, target)[0]


def pareto(target: Path, weights: Sequence[float], jerk: np.ndarray, velocity: np.ndarray, title: str) -> Path:
    """Velocity error against RMS jerk, one point a weight."""
    with figure(5.6, 4.0) as (drawing, axis):
        axis.plot(jerk, velocity, "o-", color=COLOURS[0])
        for number, (w, x, y) in enumerate(zip(weights, jerk, velocity, strict=True)):
            away = (8, -4) if number % 2 else (-44, 4)
            axis.annotate(f"λ = {w:g}", (x, y), textcoords="offset points", xytext=away, fontsize=8)
        axis.margins(x=0.25)
        axis.set_xscale("log")
        axis.set_xlabel("RMS jerk, 1/s³")
        axis.set_ylabel("relative velocity error")
        axis.set_title(title, fontsize=11)
        return save(drawing, target)[0]
