"""Pictures: success against questions, questions against m and Delta, gains along the sweep."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from noisy_fairdiv.core import Sweep
from papershelf.plot import COLOURS, figure, save
from papershelf.stats import Interval

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def collapse(path: Path, curves: Mapping[str, tuple[np.ndarray, list[Interval]]]) -> tuple[Path, Path]:
    r"""Success rates against q Delta^2 / m^2.5: one curve for all m where the theorem is right.

    Args:
        path: where to save.
        curves: label -> positions and success rates with intervals.
    """
    with figure(6.4, 4.2) as (drawing, axes):
        for (label, (x, rates)), marker in zip(curves.items(), "osD^vP*", strict=False):
            middle = np.array([rate.estimate for rate in rates])
            error = np.array([(rate.estimate - rate.low, rate.high - rate.estimate) for rate in rates]).T
            axes.errorbar(x, middle, error, label=label, marker=marker, markersize=4, linewidth=1.3, capsize=2)
        axes.axhline(0.9, color="black", linewidth=0.8, linestyle=":")
        axes.annotate("90 %", (axes.get_xlim()[1], 0.9), ha="right", va="bottom")
        axes.set_xlabel(r"questions per agent, in units of $\sigma^2 m^{2.5}/\Delta^2$")
        axes.set_ylabel("share of envy-free allocations")
        axes.set_title("Success depends on $q\\Delta^2/m^{2.5}$ alone (hard instance)")
        axes.legend()
        return save(drawing, path)


def required(
    path: Path, m: np.ndarray, by_eps: Mapping[float, np.ndarray], eps: np.ndarray, by_gap: np.ndarray, gap_m: int
) -> tuple[Path, Path]:
    """Questions for 90 % success: against m at fixed Delta / m (slope 1/2), and against Delta at fixed m (slope -2).

    Args:
        path: where to save.
        m: numbers of goods of the first panel.
        by_eps: eps -> questions an agent, one an entry of ``m``.
        eps: values of the second panel.
        by_gap: questions an agent there.
        gap_m: its number of goods.
    """
    with figure(9.0, 4.2, ncols=2) as (drawing, (left, right)):
        for (value, q), marker in zip(by_eps.items(), "osD^v", strict=False):
            left.loglog(m, q, marker=marker, label=rf"$\Delta = {value / 2:g}\,m$")
        first, last = next(iter(by_eps.values())), list(by_eps.values())[-1]
        left.loglog(m, 1.4 * first[0] * (m / m[0]) ** 0.5, color="black", linestyle=":", label="slope 1/2 (theorem)")
        left.set_ylim(bottom=last.min() / 6)
        left.set_xlabel("goods m")
        left.set_ylabel("questions per agent")
        left.legend(loc="lower center", ncols=2)
        left.set_title("90 % success, against m")
        gaps = eps * gap_m / 2
        right.loglog(gaps, by_gap, marker="o", label=f"m = {gap_m}")
        right.loglog(gaps, 1.4 * by_gap[0] * (gaps / gaps[0]) ** -2.0, color="black", linestyle=":", label="slope -2")
        right.set_xlabel(r"negative envy $\Delta$")
        right.set_title(r"90 % success, against $\Delta$")
        right.legend()
        _plain_ticks(left, m)
        _plain_ticks(right, gaps)
        return save(drawing, path)


def _plain_ticks(axes: Axes, at: np.ndarray) -> None:
    axes.minorticks_off()
    axes.set_xticks(at, [f"{x:.3g}" if x < 1000 else f"{x:.0f}" for x in at])


def sweep_gains(
    path: Path, sweep: Sweep, estimated: np.ndarray, w: float, names: tuple[str, str] = ("a", "b")
) -> tuple[Path, Path]:
    """Both agents' gains along the threshold sweep, and the chosen threshold.

    Args:
        path: where to save.
        sweep: the sweep of the measured values.
        estimated: the gains that were compared, (2, m + 1).
        w: chosen threshold.
        names: the agents.
    """
    with figure(10.0, 4.2, ncols=2) as (drawing, (whole, near)):
        for axes in (whole, near):
            for gains, raw, name, colour in zip(
                estimated, (sweep.gain_a, sweep.gain_b), names, COLOURS[:2], strict=True
            ):
                axes.plot(sweep.w, gains, color=colour, label=f"{name}, estimated")
                if not np.allclose(gains, raw):
                    axes.plot(sweep.w, raw, color=colour, linestyle=":", linewidth=1, label=f"{name}, as measured")
            axes.axhline(0, color="black", linewidth=0.8)
            axes.axvline(w, color=COLOURS[2], linewidth=1.5, label=f"chosen w = {w:.3f}")
            axes.set_xlabel("threshold w")
        whole.set_ylabel("gain: own bundle minus the other one")
        whole.set_title("All thresholds")
        whole.legend(loc="center left", fontsize="small")
        whole.set_xlim(0, 1)
        best = float(np.minimum(*estimated).max())
        close = np.flatnonzero(
            np.minimum(*estimated) > best - 4 * max(abs(best), 0.02 * float(np.abs(estimated).max()))
        )
        low, high = close[0], close[-1]
        near.set_xlim(sweep.w[low], sweep.w[high])
        near.set_ylim(estimated[:, low : high + 1].min(), estimated[:, low : high + 1].max())
        near.set_title("Near the choice: envy-free where both are above 0")
        drawing.suptitle(f"A good goes to {names[0]} iff w × her value > (1 − w) × {names[1]}'s value", fontsize=10)
        return save(drawing, path)
