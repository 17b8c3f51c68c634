"""Pictures: regret curves, estimated against true probabilities, scaling."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from papershelf import Streams
from papershelf.plot import figure, save

NAMES = {
    "ensemble": "Ensemble (node feedback)",
    "vertex": "Vertex (node)",
    "thompson": "Thompson (node)",
    "box": "Box UCB (node)",
    "pair": "Pair oracle (node)",
    "greedy": "Greedy MLE (node)",
    "etc": "Explore, then commit (node)",
    "eps": "ε-greedy (node)",
    "cucb": "CUCB (edge feedback)",
    "imlinucb": "IMLinUCB (edge)",
    "lt": "LT ensemble (node)",
    "known": "Known probabilities",
    "random": "Random seeds",
    "degree": "Top degree",
}


def _band(curves: np.ndarray, rng: np.random.Generator, level: float = 0.95) -> tuple[np.ndarray, np.ndarray]:
    """Pointwise bootstrap band of the mean over runs, curves (runs, points)."""
    draws = curves[rng.integers(len(curves), size=(500, len(curves)))].mean(axis=1)
    low, high = np.quantile(draws, [(1 - level) / 2, (1 + level) / 2], axis=0)
    return low, high


def regret_curves(path: Path, curves: Mapping[str, np.ndarray], title: str) -> tuple[Path, Path]:
    """Cumulative regret: mean over runs, bootstrap band, and a sqrt(T) guide through the first policy's midpoint.

    Args:
        path: where; the suffix becomes ``.png`` and ``.svg``.
        curves: policy -> cumulative regret, (runs, T).
        title: of the picture.
    """
    rng = Streams(0).numpy("band")
    with figure(7.0, 4.2) as (drawing, axes):
        for name, values in curves.items():
            T = values.shape[1]
            at = np.unique(np.linspace(0, T - 1, 300).astype(int))
            mean = values[:, at].mean(axis=0)
            (line,) = axes.plot(at + 1, mean, label=NAMES.get(name, name))
            if len(values) > 1:
                axes.fill_between(at + 1, *_band(values[:, at], rng), color=line.get_color(), alpha=0.2, lw=0)
        first = next(iter(curves.values()))
        T = first.shape[1]
        steps = np.arange(1, T + 1)
        guide = first.mean(axis=0)[T // 2 - 1] * np.sqrt(steps / (T // 2))
        axes.plot(steps, guide, color="0.5", ls=":", label="√T through the first curve's midpoint")
        axes.set(xlabel="round", ylabel="cumulative regret (nodes)", title=title)
        axes.legend(fontsize=8)
        return save(drawing, path)


def probability_scatter(path: Path, true: np.ndarray, estimate: np.ndarray, trials: np.ndarray) -> tuple[Path, Path]:
    """Estimated against true edge probabilities, coloured by how often each edge was tried."""
    with figure(4.8, 4.2) as (drawing, axes):
        top = float(max(true.max(initial=0.05), estimate.max(initial=0.05))) * 1.05
        axes.plot([0, top], [0, top], color="0.6", lw=1)
        shown = axes.scatter(true, estimate, c=np.log10(trials + 1), s=16, cmap="viridis", alpha=0.85, lw=0)
        drawing.colorbar(shown, ax=axes, label="log10(trials + 1)")
        axes.set(xlabel="true probability", ylabel="estimate", title="Edge probabilities", xlim=(0, top), ylim=(0, top))
        return save(drawing, path)


def error_against_rounds(path: Path, rounds: np.ndarray, errors: Mapping[str, np.ndarray]) -> tuple[Path, Path]:
    """Root mean squared error of the estimates against rounds, with a 1/sqrt(N) guide; values (seeds, rounds)."""
    with figure(6.0, 4.0) as (drawing, axes):
        for name, values in errors.items():
            axes.loglog(rounds, values.mean(axis=0), marker="o", label=name)
        first = next(iter(errors.values())).mean(axis=0)
        axes.loglog(rounds, first[-1] * np.sqrt(rounds[-1] / rounds), ls=":", color="0.5", label="1/√N")
        axes.set(xlabel="rounds N", ylabel="RMSE of p", title="Consistency of the estimate")
        axes.legend()
        return save(drawing, path)


def scaling(path: Path, sizes: np.ndarray, seconds: Mapping[str, np.ndarray], xlabel: str) -> tuple[Path, Path]:
    """Time against size on logarithmic axes."""
    with figure(6.4, 4.2) as (drawing, axes):
        for name, values in seconds.items():
            axes.loglog(sizes, values, marker="o", label=name)
        axes.set(xlabel=xlabel, ylabel="seconds", title="Scaling")
        axes.legend(fontsize=8)
        return save(drawing, path)
