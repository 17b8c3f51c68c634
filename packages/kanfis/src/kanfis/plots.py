"""Pictures: terms, shape functions with the footprint of uncertainty, and what one row's prediction is made of."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from papershelf.plot import COLOURS, figure, save


def _chosen(model: Any, features: Sequence[Any] | None, number: int) -> list[int]:
    if features is not None:
        return [model._index(f) for f in features]
    order = np.argsort(-model.feature_importances_)
    return [int(i) for i in order[:number]]


def _panels(number: int, width: float = 3.4, height: float = 2.5) -> Any:
    columns = min(3, number)
    rows = -(-number // columns)
    return figure(width * columns, height * rows, nrows=rows, ncols=columns, squeeze=False)


def memberships(model: Any, path: Path, features: Sequence[Any] | None = None, number: int = 6) -> tuple[Path, Path]:
    """Terms of the most important features; for Type-2 the footprint of uncertainty is shaded.

    Args:
        model: fitted estimator.
        path: where to save.
        features: names or numbers; None for the most important ones.
        number: of panels.
    """
    chosen = _chosen(model, features, number)
    names, part = model._names(), model.partition_
    with _panels(len(chosen)) as (drawing, axes):
        for axis, i in zip(axes.flat, chosen, strict=False):
            terms = part.terms[i]
            singles = [t for t in terms if t.kind in ("singleton", "missing")]
            if singles:
                axis.bar([t.label for t in singles], [1.0] * len(singles), color=COLOURS[0], width=0.4)
            else:
                low, high = float(part.low[i]), float(part.high[i])
                if not np.isfinite(low):
                    low = min(t.centre - 2 * t.width for t in terms)
                    high = max(t.centre + 2 * t.width for t in terms)
                x = np.linspace(low, high, 300)
                last, raised = None, False
                for n, t in enumerate(terms[:12]):
                    lower, upper = t.bounds(x)
                    colour = COLOURS[n % len(COLOURS)]
                    if t.type2:
                        axis.fill_between(x, lower, upper, color=colour, alpha=0.3, linewidth=0)
                    axis.plot(x, (lower + upper) / 2, color=colour, linewidth=1.4)
                    if len(terms) <= 7:
                        at = float(x[int(np.argmax((lower + upper) / 2))])
                        level = 1.09 if last is not None and at - last < 0.13 * (high - low) and not raised else 1.03
                        raised, last = level > 1.05, at
                        axis.annotate(t.label, (at, level), ha="center", fontsize=7, color=colour)
            axis.set_title(names[i], fontsize=9, pad=14)
            axis.set_ylim(0, 1.17)
        for axis in axes.flat[len(chosen) :]:
            axis.set_axis_off()
        axes[0, 0].set_ylabel("membership")
        return save(drawing, path)


def shapes(
    model: Any,
    path: Path,
    X: np.ndarray | None = None,
    features: Sequence[Any] | None = None,
    number: int = 6,
    output: int = -1,
) -> tuple[Path, Path]:
    """What the most important features add to an output, with the hull of a Type-2 model and ticks at the data.

    Args:
        model: fitted estimator.
        path: where to save.
        X: rows for the ticks.
        features: names or numbers; None for the most important ones.
        number: of panels.
        output: of which the functions are drawn; the last one unless said otherwise.
    """
    chosen = _chosen(model, features, number)
    names, base = model._names(), model.rulebase_
    label = base.outputs[output]
    unit = f"adds to log-odds of {label}" if base.link == "softmax" else f"adds to {label}"
    with _panels(len(chosen)) as (drawing, axes):
        for axis, i in zip(axes.flat, chosen, strict=False):
            grid, values = model.shape(i)
            terms = base.partition.terms[i]
            if all(t.kind in ("singleton", "missing") for t in terms):
                words = [t.label for t in terms if t.kind != "missing"]
                axis.bar(words, values[:, output], color=COLOURS[0], width=0.5)
                axis.tick_params(axis="x", labelsize=7)
            else:
                axis.plot(grid, values[:, output], color=COLOURS[0], linewidth=1.6)
                if any(t.type2 for t in terms):
                    low, high = _hull(base, i, grid, output)
                    axis.fill_between(grid, low, high, color=COLOURS[0], alpha=0.2, linewidth=0)
                if X is not None:
                    ticks = X[:, i][~np.isnan(X[:, i])][:400]
                    axis.plot(ticks, np.full(len(ticks), axis.get_ylim()[0]), "|", color="0.4", markersize=5, alpha=0.3)
            axis.axhline(0, color="0.7", linewidth=0.8, zorder=0)
            axis.set_title(names[i], fontsize=9)
        for axis in axes.flat[len(chosen) :]:
            axis.set_axis_off()
        for row in axes:
            row[0].set_ylabel(unit, fontsize=8)
        return save(drawing, path)


def _hull(base: Any, feature: int, grid: np.ndarray, output: int) -> tuple[np.ndarray, np.ndarray]:
    X = np.tile([t[0].centre if t else 0.0 for t in base.partition.terms], (len(grid), 1)).astype(float)
    X[:, feature] = grid
    lower, upper = base.bounds(X)
    rules = [r for r, pairs in enumerate(base.antecedents) if len(pairs) == 1 and pairs[0][0] == feature]
    w = base.coef[rules, output]
    shift = base.centre[rules] @ w
    one, two = lower[:, rules] * w, upper[:, rules] * w
    return np.minimum(one, two).sum(1) - shift, np.maximum(one, two).sum(1) - shift


def waterfall(model: Any, row: Any, path: Path, output: int = -1, top: int = 10) -> tuple[Path, Path]:
    """What moves one row's output from the average to its value, feature by feature.

    Args:
        model: fitted estimator.
        row: shape (1, D), as the model takes it.
        path: where to save.
        output: which one.
        top: features shown; the others are summed.
    """
    X = model._checked(row) if hasattr(row, "columns") else np.asarray(row, dtype=float)
    parts = model.rulebase_.contributions(X)[0, :, output]
    base = float(model.rulebase_.base[output])
    order = np.argsort(-np.abs(parts))
    shown = [(model.component_names_[i], float(parts[i])) for i in order[:top] if parts[i] != 0]
    rest = float(parts[order[top:]].sum())
    if abs(rest) > 1e-12:
        shown.append((f"{len(parts) - top} others", rest))
    label = model.rulebase_.outputs[output]
    unit = f"log-odds of {label}" if model.rulebase_.link == "softmax" else label
    with figure(6.4, 0.34 * len(shown) + 1.6) as (drawing, axes):
        at = base
        for n, (_, value) in enumerate(shown):
            axes.barh(n, value, left=at, color=COLOURS[2] if value > 0 else COLOURS[1], height=0.62)
            axes.annotate(
                f"{value:+.3g}",
                (at + value, n),
                xytext=(4 if value > 0 else -4, 0),
                textcoords="offset points",
                ha="left" if value > 0 else "right",
                va="center",
                fontsize=8,
            )
            at += value
        axes.set_yticks(range(len(shown)), [n for n, _ in shown], fontsize=8)
        axes.invert_yaxis()
        axes.axvline(base, color="0.6", linewidth=0.8, linestyle=":")
        axes.axvline(at, color="0.2", linewidth=1.0)
        path_ = base + np.cumsum([0.0, *(v for _, v in shown)])
        pad = 0.14 * max(float(np.ptp(path_)), 1e-9)
        axes.set_xlim(path_.min() - pad, path_.max() + pad)
        axes.set_xlabel(f"{unit}: {base:.3g} on average, {at:.3g} here")
        return save(drawing, path)


def curves(
    path: Path, x: np.ndarray, lines: dict[str, np.ndarray], xlabel: str, ylabel: str, log: bool = False
) -> tuple[Path, Path]:
    """Labelled lines over a common axis."""
    with figure(6.0, 3.8) as (drawing, axes):
        for n, (name, values) in enumerate(lines.items()):
            axes.plot(x[: len(values)], values, "o-", color=COLOURS[n % len(COLOURS)], label=name, markersize=4)
        axes.set_xlabel(xlabel)
        axes.set_ylabel(ylabel)
        if log:
            axes.set_xscale("log", base=2)
            axes.set_yscale("log")
        axes.legend(fontsize=8, frameon=False)
        return save(drawing, path)
