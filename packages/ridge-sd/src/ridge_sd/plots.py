"""Pictures of risks and mixing weights along the penalty."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np

from papershelf.plot import COLOURS, figure, save

PLATE = {"facecolor": "white", "alpha": 0.8, "edgecolor": "none", "pad": 1.5}


class TestCurves(NamedTuple):
    """Test risks along the same penalties: plain ridge, the student as tuned, and the best student in hindsight."""

    ridge: np.ndarray
    student: np.ndarray
    oracle: np.ndarray
    oracle_xi: np.ndarray


def path(
    target: Path,
    lam: np.ndarray,
    R: np.ndarray,
    R_sd: np.ndarray,
    xi: np.ndarray,
    test: TestCurves | None = None,
    chosen: float | None = None,
    title: str = "",
    xi_error: np.ndarray | None = None,
) -> tuple[Path, Path]:
    """Two panels over the penalty: risk of ridge and of its best student above, mixing weight below.

    Args:
        target: where to save.
        lam: penalties, (L,).
        R: estimated risk of ridge, (L,).
        R_sd: estimated risk of the best student, (L,).
        xi: its mixing weight, (L,).
        test: the same on test rows.
        chosen: penalty that was chosen.
        title: over the picture.
        xi_error: standard error of xi, (L,).
    """
    order = np.argsort(lam)
    lam, R, R_sd, xi = (np.asarray(x)[order] for x in (lam, R, R_sd, xi))
    with figure(6.6, 5.6, nrows=2, sharex=True, gridspec_kw={"height_ratios": [3, 2]}) as (drawing, (top, bottom)):
        top.semilogx(lam, R, color=COLOURS[0], linestyle="--", label="ridge, estimated")
        top.semilogx(lam, R_sd, color=COLOURS[1], linestyle="--", label="self-distilled, estimated")
        if test is not None:
            top.semilogx(lam, test.ridge[order], color=COLOURS[0], label="ridge, test")
            top.semilogx(lam, test.student[order], color=COLOURS[1], label="self-distilled, test")
            bottom.semilogx(
                lam, test.oracle_xi[order], color="black", linewidth=1, linestyle=":", label="best on the test rows"
            )
        curves = [R, R_sd] if test is None else [R, R_sd, test.ridge, test.student]
        lowest = min(float(np.min(c)) for c in curves)
        highest = min(
            max(float(np.max(c)) for c in curves), 1.1 * max(float(np.min(c)) for c in curves) + 0.35 * lowest
        )
        top.set_ylim(lowest - 0.08 * (highest - lowest), highest + 0.08 * (highest - lowest))
        top.fill_between(lam, R_sd, R, color=COLOURS[1], alpha=0.12)
        top.set_ylabel("squared error")
        top.legend(fontsize="small")
        bottom.semilogx(lam, xi, color=COLOURS[1], label="tuned on the training rows")
        if xi_error is not None and np.isfinite(xi_error).all():
            error = 2 * np.asarray(xi_error)[order]
            bottom.fill_between(lam, xi - error, xi + error, color=COLOURS[1], alpha=0.15)
        bottom.axhline(0, color="black", linewidth=0.8)
        spread = np.nanpercentile(np.abs(xi), 90)
        bottom.set_ylim(-1.6 * spread - 0.3, 1.6 * spread + 0.3)
        bottom.set_ylabel(r"mixing weight $\xi$")
        bottom.set_xlabel(r"penalty $\lambda$ = alpha / n")
        bottom.annotate(
            "ξ > 0: shrinks more than ridge", (0.01, 0.93), xycoords="axes fraction", fontsize=8, va="top", bbox=PLATE
        )
        bottom.annotate(
            "ξ < 0: undoes too much shrinkage", (0.01, 0.05), xycoords="axes fraction", fontsize=8, bbox=PLATE
        )
        bottom.legend(fontsize="small", loc="upper right")
        for axes in (top, bottom):
            if chosen is not None:
                axes.axvline(chosen, color=COLOURS[2], linewidth=1.2)
        if chosen is not None:
            top.annotate(" chosen", (chosen, 0.97), xycoords=("data", "axes fraction"), color=COLOURS[2], va="top")
        top.set_title(title)
        return save(drawing, target)


def asymptotics(
    target: Path,
    lam: np.ndarray,
    theory: Mapping[str, np.ndarray],
    measured: Mapping[str, tuple[np.ndarray, np.ndarray]],
) -> tuple[Path, Path]:
    """Deterministic equivalents as lines, simulated means with two standard errors as points.

    Args:
        target: where to save.
        lam: penalties, (L,).
        theory: name -> risks, (L,).
        measured: name -> means and standard errors, (L,).
    """
    with figure(6.4, 4.2) as (drawing, axes):
        for (name, line), colour in zip(theory.items(), COLOURS, strict=False):
            mean, error = measured[name]
            axes.semilogx(lam, line, color=colour, label=name)
            axes.errorbar(lam, mean, 2 * error, color=colour, linestyle="", marker="o", markersize=3, capsize=2)
        axes.set_xlabel(r"penalty $\lambda$")
        axes.set_ylabel("risk")
        axes.set_ylim(0.9 * min(x.min() for x in theory.values()), 1.05 * np.median([x.max() for x in theory.values()]))
        axes.legend(title="lines: theory, points: simulation")
        return save(drawing, target)


def heatmap(target: Path, gamma: np.ndarray, snr: np.ndarray, gain: np.ndarray, title: str) -> tuple[Path, Path]:
    """Gain of the best student over the best ridge in per cent, (len(snr), len(gamma))."""
    with figure(5.6, 4.4) as (drawing, axes):
        shown = axes.pcolormesh(gamma, snr, gain, shading="nearest", cmap="viridis")
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.grid(visible=False)
        axes.set_xlabel(r"$\gamma = p / n$")
        axes.set_ylabel("signal-to-noise ratio")
        axes.set_title(title)
        drawing.colorbar(shown, label="risk saved, %")
        return save(drawing, target)
