"""Causal graph among observed climate series, their hidden drivers, and a forecast, from one likelihood."""

from importlib.metadata import version

from cadre.estimator import CaDReEstimator, Forecast, NotConverged
from cadre.graph import GraphResult
from cadre.metrics import compare_graphs, mean_correlation
from cadre.model import CaDRe, CaDReOutput
from cadre.structure import (
    break_cycles,
    dag_penalty,
    distance_mask,
    graph_from_mixing,
    is_dag,
    knn_mask,
    moral,
    regression_mask,
    threshold_graph,
    topological_order,
)
from cadre.windows import WindowDataset

__version__ = version("papershelf-cadre")

__all__ = [
    "CaDRe",
    "CaDReEstimator",
    "CaDReOutput",
    "Forecast",
    "GraphResult",
    "NotConverged",
    "WindowDataset",
    "__version__",
    "break_cycles",
    "compare_graphs",
    "dag_penalty",
    "distance_mask",
    "graph_from_mixing",
    "is_dag",
    "knn_mask",
    "mean_correlation",
    "moral",
    "regression_mask",
    "threshold_graph",
    "topological_order",
]
