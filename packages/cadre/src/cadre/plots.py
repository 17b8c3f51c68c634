"""Pictures of a fitted estimator."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from cadre.estimator import CaDReEstimator
from cadre.graph import GraphResult
from cadre.maps import draw_forecast, draw_latents, draw_weights
from papershelf.plot import figure, save


def training(path: Path, estimator: CaDReEstimator) -> Path:
    """Validation bounds of all restarts over the steps."""
    with figure(6, 3.4) as (drawing, ax):
        for i, restart in enumerate(estimator.restarts_):
            style: dict[str, Any] = {"lw": 2} if i == estimator.best_restart_ else {"lw": 0.8, "alpha": 0.6}
            ax.plot([row.step for row in restart.history], [row.elbo for row in restart.history], **style)
        ax.set_xlabel("step")
        ax.set_ylabel("validation bound, nats a step")
        ax.set_title(f"{len(estimator.restarts_)} restarts; thick: kept", fontsize=9)
        return save(drawing, path)[0]


def weights(path: Path, graph: GraphResult, true: np.ndarray | None = None) -> Path:
    """The graph's weights as a matrix, true edges circled."""
    size = max(4.5, min(12.0, 0.32 * len(graph.names)))
    with figure(size + 1, size) as (drawing, ax):
        draw_weights(ax, np.where(graph.adjacency, graph.weights, 0.0), graph.names, true)
        ax.set_title(f"{graph.method}: {int(graph.adjacency.sum())} edges", fontsize=9)
        return save(drawing, path)[0]


def latents(path: Path, time: np.ndarray, z: np.ndarray, index: np.ndarray | None = None, label: str = "") -> Path:
    """Latents over time; the title names the correlation of each with the index."""
    with figure(8, 3.2) as (drawing, ax):
        draw_latents(ax, time, z, index, label)
        if index is not None:
            r = [float(np.corrcoef(z[:, j], index)[0, 1]) for j in range(z.shape[1])]
            ax.set_title(f"correlation with {label}: " + ", ".join(f"{v:+.2f}" for v in r), fontsize=9)
        return save(drawing, path)[0]


def forecast(path: Path, past: np.ndarray, samples: np.ndarray, name: str, observed: np.ndarray | None = None) -> Path:
    """A fan of one series."""
    with figure(7, 3.2) as (drawing, ax):
        draw_forecast(ax, past, samples, observed)
        ax.set_title(name, fontsize=9)
        return save(drawing, path)[0]


def graph_map(path: Path, graph: GraphResult, land: Any = None, wind: Any = None) -> Path:
    """Edges on a map."""
    assert graph.coords is not None
    tall = np.clip(10 * np.ptp(graph.coords[:, 0]) / max(np.ptp(graph.coords[:, 1]) % 360, 1.0), 3.0, 8.0)
    with figure(10, float(tall)) as (drawing, ax):
        graph.plot_map(ax, land, wind)
        ax.set_title(f"{int(graph.adjacency.sum())} edges, red raises, blue lowers", fontsize=9)
        return save(drawing, path)[0]
