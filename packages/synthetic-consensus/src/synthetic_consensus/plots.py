"""Pictures for an audit: notes in the (factor, intercept) plane, effects of one rating, success and mitigations,
cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from papershelf.plot import COLOURS, figure, save
from synthetic_consensus.attack import AttackResult
from synthetic_consensus.rules import Decisions, StatusRules


def note_map(
    path: Path, decisions: Decisions, rules: StatusRules, attacks: Sequence[AttackResult] = (), title: str = ""
) -> tuple[Path, Path]:
    """Notes by polarity and helpfulness with the thresholds, and the paths that attacks would take.

    Args:
        path: where to save.
        decisions: statuses.
        rules: thresholds.
        attacks: paths to draw.
        title: over the picture.
    """
    names, colours = ("needs more ratings", "helpful", "not helpful"), ("#999999", COLOURS[2], COLOURS[1])
    with figure(7.0, 5.0) as (drawing, axes):
        for code, (name, colour) in enumerate(zip(names, colours, strict=True)):
            chosen = decisions.status == code
            axes.scatter(
                decisions.factor[chosen],
                decisions.intercept[chosen],
                s=7,
                color=colour,
                alpha=0.45,
                linewidths=0,
                label=f"{name} ({chosen.sum():,})",
                rasterized=True,
            )
        reach = max(1.05 * float(np.abs(decisions.factor).max()), 0.6)
        axes.axhline(rules.crh, color=COLOURS[2], linewidth=1.2)
        axes.annotate(
            f"helpful from {rules.crh:.2f}", (reach, rules.crh), ha="right", va="bottom", color=COLOURS[2], fontsize=8
        )
        if rules.crnh is not None:
            f = np.linspace(-reach, reach, 200)
            axes.plot(f, rules.crnh[0] - rules.crnh[1] * np.abs(f), color=COLOURS[1], linewidth=1.2)
        if rules.max_factor is not None:
            for side in (-1, 1):
                axes.axvline(side * rules.max_factor, color="black", linewidth=0.8, linestyle=":")
        for n, attack in enumerate(attacks):
            label = "coordinated ratings, one step each" if n == 0 else None
            axes.plot(
                attack.factor_path,
                attack.intercept_path,
                color=COLOURS[0],
                marker=".",
                markersize=4,
                linewidth=1,
                label=label,
            )
            axes.plot(attack.factor_path[-1:], attack.intercept_path[-1:], color=COLOURS[0], marker="*", markersize=9)
        low = float(np.percentile(decisions.intercept, 0.2))
        axes.set_ylim(min(low, -0.3) - 0.05, max(float(decisions.intercept.max()), rules.crh) + 0.1)
        axes.set_xlim(-reach, reach)
        axes.set_xlabel("note factor (polarity)")
        axes.set_ylabel("note intercept (helpfulness)")
        axes.set_title(title)
        axes.legend(fontsize="small", loc="upper right", markerscale=3)
        return save(drawing, path)


def effect_map(
    path: Path, factor: np.ndarray, changes: Mapping[str, np.ndarray], flip: float, current: float, title: str = ""
) -> tuple[Path, Path]:
    """What one more rating does to a note's intercept, over the rater's factor, one line a level.

    Args:
        path: where to save.
        factor: rater factors, (P,).
        changes: level's name -> changes of the intercept, (P,).
        flip: where a NotHelpful rating turns from lowering to raising.
        current: the note's intercept.
        title: over the picture.
    """
    with figure(6.8, 4.2) as (drawing, axes):
        for (name, change), colour in zip(changes.items(), (COLOURS[1], COLOURS[4], COLOURS[2]), strict=False):
            axes.plot(factor, change, color=colour, label=name)
        axes.axhline(0, color="black", linewidth=0.8)
        if factor.min() <= flip <= factor.max():
            axes.axvline(flip, color=COLOURS[0], linestyle=":", label=f"flip at f = {flip:.2f}")
        axes.set_xlabel("factor of the rater")
        axes.set_ylabel(f"change of the intercept (now {current:+.3f})")
        axes.set_title(title)
        axes.legend(fontsize="small")
        return save(drawing, path)


def success(path: Path, curves: Mapping[str, np.ndarray], title: str, ylabel: str) -> tuple[Path, Path]:
    """Share of notes carried over the line against the number of ratings, one line a defence.

    Args:
        path: where to save.
        curves: name -> shares for 1..K ratings, (K,).
        title: over the picture.
        ylabel: what the share is of.
    """
    with figure(6.8, 4.4) as (drawing, axes):
        for (name, share), marker in zip(curves.items(), "osD^vP*X", strict=False):
            axes.plot(np.arange(1, share.size + 1), 100 * share, marker=marker, markersize=4, label=name)
        axes.set_xlabel("coordinated ratings on the note")
        axes.set_ylabel(ylabel)
        axes.set_ylim(bottom=0)
        axes.set_title(title)
        axes.legend(fontsize="small")
        return save(drawing, path)


def mitigations(
    path: Path, names: Sequence[str], success_share: np.ndarray, collateral: np.ndarray
) -> tuple[Path, Path]:
    """Bars: what attacks still pass under each defence, and what honest helpful notes it costs; both in per cent."""
    with figure(8.4, 0.5 * len(names) + 1.4, ncols=2, sharey=True) as (drawing, (left, right)):
        at = np.arange(len(names))
        for axes, values, colour, title in (
            (left, success_share, COLOURS[1], "low notes still carried over the line, %"),
            (right, collateral, COLOURS[0], "honest helpful notes lost, %"),
        ):
            axes.barh(at, 100 * values, color=colour, height=0.6)
            for y, value in zip(at, values, strict=True):
                axes.annotate(
                    f"{100 * value:.1f}",
                    (100 * value, y),
                    xytext=(3, 0),
                    textcoords="offset points",
                    va="center",
                    fontsize=8,
                )
            axes.set_title(title, fontsize=10)
            axes.set_xlim(0, 115 * max(float(values.max()), 0.01))
            axes.grid(axis="y", visible=False)
        left.set_yticks(at, names)
        left.invert_yaxis()
        return save(drawing, path)


def cost_frontier(path: Path, curves: Mapping[str, tuple[np.ndarray, np.ndarray]]) -> tuple[Path, Path]:
    """Cost of a note against the number of notes that the same accounts attack, one line a rule set; (notes, cost)."""
    with figure(6.4, 4.0) as (drawing, axes):
        for (name, (notes, cost)), marker in zip(curves.items(), "osD^v", strict=False):
            axes.loglog(notes, cost, marker=marker, markersize=4, label=name)
        axes.set_xlabel("notes attacked by the same accounts")
        axes.set_ylabel("cost a note")
        axes.legend(fontsize="small")
        return save(drawing, path)


def raters(path: Path, factor: np.ndarray, intercept: np.ndarray) -> tuple[Path, Path]:
    """Histograms of the raters' factors and intercepts."""
    with figure(8.0, 3.2, ncols=2, sharey=True) as (drawing, (left, right)):
        left.hist(factor, 60, color=COLOURS[0])
        left.set_xlabel("rater factor")
        left.set_ylabel("raters")
        right.hist(intercept, 60, color=COLOURS[4])
        right.set_xlabel("rater intercept")
        return save(drawing, path)
