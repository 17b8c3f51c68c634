"""A graph among named series or places, with its strengths and how sure they are."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from cadre.extras import optional
from cadre.maps import draw_graph_map, draw_weights
from cadre.metrics import GraphScores, compare_graphs

if TYPE_CHECKING:
    import networkx as nx
    from matplotlib.axes import Axes


@dataclass(frozen=True)
class GraphResult:
    """A directed graph; ``adjacency[i, j]`` means j -> i.

    Attributes:
        weights: signed strengths, (d, d); for cadre the mean d g_i / d x_j on standardised series.
        adjacency: which edges are believed, bool (d, d).
        names: of the series.
        coords: latitude and longitude, (d, 2), or None.
        scores: what was thresholded, mean absolute strengths (d, d), or None.
        stability: share of refits or restarts with each edge, (d, d), or None.
        sign_consistency: share of time steps whose derivative has the sign of the mean, (d, d), or None.
        removed: edges (cause, effect, weight) taken away to break cycles.
        undirected: pairs (i, j) that a method left without a direction.
        method: which method found it.
    """

    weights: np.ndarray
    adjacency: np.ndarray
    names: tuple[str, ...] = ()
    coords: np.ndarray | None = None
    scores: np.ndarray | None = None
    stability: np.ndarray | None = None
    sign_consistency: np.ndarray | None = None
    removed: tuple[tuple[int, int, float], ...] = ()
    undirected: tuple[tuple[int, int], ...] = ()
    method: str = "cadre"

    def __post_init__(self) -> None:
        d = len(self.weights)
        if self.weights.shape != (d, d) or self.adjacency.shape != (d, d):
            raise ValueError(f"expected two square matrices, got {self.weights.shape} and {self.adjacency.shape}")
        object.__setattr__(self, "names", tuple(self.names) or tuple(f"x{i}" for i in range(d)))
        if len(self.names) != d:
            raise ValueError(f"expected {d} names, got {len(self.names)}")

    def edges(self) -> list[dict[str, Any]]:
        """Edges by falling strength: cause, effect, weight, and stability and sign consistency where known."""
        found = []
        for i, j in zip(*np.nonzero(self.adjacency), strict=True):
            row: dict[str, Any] = {"cause": self.names[j], "effect": self.names[i], "weight": float(self.weights[i, j])}
            for name in ("stability", "sign_consistency"):
                values = getattr(self, name)
                if values is not None:
                    row[name] = float(values[i, j])
            found.append(row)
        return sorted(found, key=lambda row: -abs(row["weight"]))

    def to_networkx(self) -> nx.DiGraph:
        """Nodes are names (with lat and lon where known), edges run from cause to effect."""
        import networkx as nx

        graph = nx.DiGraph()
        for i, name in enumerate(self.names):
            place = {} if self.coords is None else {"lat": float(self.coords[i, 0]), "lon": float(self.coords[i, 1])}
            graph.add_node(name, **place)
        for row in self.edges():
            graph.add_edge(row.pop("cause"), row.pop("effect"), **row)
        return graph

    def to_xarray(self) -> Any:
        """A Dataset of weights and adjacency over (effect, cause)."""
        xarray = optional("xarray", "data")
        dims = ("effect", "cause")
        data = {"weight": (dims, self.weights), "adjacency": (dims, self.adjacency.astype("int8"))}
        for name in ("scores", "stability", "sign_consistency"):
            if getattr(self, name) is not None:
                data[name] = (dims, getattr(self, name))
        coords: dict[str, Any] = {"effect": list(self.names), "cause": list(self.names)}
        if self.coords is not None:
            coords |= {"lat": ("effect", self.coords[:, 0]), "lon": ("effect", self.coords[:, 1])}
        return xarray.Dataset(data, coords, {"method": self.method, "convention": "cause -> effect"})

    def to_csv(self) -> str:
        """The edge list as CSV text."""
        rows = self.edges()
        file = io.StringIO()
        writer = csv.DictWriter(file, list(rows[0]) if rows else ["cause", "effect", "weight"], lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
        return file.getvalue()

    def compare(self, true: np.ndarray) -> GraphScores:
        """Scores against a true graph; a pair left without direction where there is one edge counts half in ``shd``.

        A half is rounded up in the total.
        """
        scores = compare_graphs(self.adjacency, true)
        if not self.undirected:
            return scores
        truth = np.asarray(true) != 0
        d = len(truth)
        # compare_graphs sees nothing at such a pair: right edge there costs 1 (should be 1/2), none costs 0 (1).
        change = sum(-0.5 if truth[i, j] or truth[j, i] else 1.0 for i, j in self.undirected)
        shd = int(np.ceil(scores.shd + change))
        return scores._replace(shd=shd, shd_pairs=2 * shd / (d * (d - 1)), shd_ordered=shd / (d * (d - 1)))

    def named(self, names: Sequence[str], coords: np.ndarray | None = None) -> GraphResult:
        """The same graph with names and places."""
        return replace(self, names=tuple(names), coords=coords)

    def plot(self, ax: Axes, true: np.ndarray | None = None) -> None:
        """Draw the weights as a matrix; crosses mark the edges of a true graph."""
        draw_weights(ax, np.where(self.adjacency, self.weights, 0.0), self.names, true)

    def plot_map(self, ax: Axes, land: Any = None, wind: tuple[np.ndarray, np.ndarray] | None = None) -> None:
        """Draw the edges on a map along great circles; needs ``coords``.

        Args:
            ax: matplotlib axes.
            land: (lat, lon, bool mask), drawn in grey.
            wind: eastward and northward wind at the places.
        """
        if self.coords is None:
            raise ValueError("a map needs coords, got None; see GraphResult.named")
        draw_graph_map(ax, self.coords, np.where(self.adjacency, self.weights, 0.0), land, wind)
