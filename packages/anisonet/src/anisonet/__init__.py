"""Linear-time point-cloud networks with ellipsoidal encoding, and an audit of label leakage through point order."""

from importlib.metadata import version

from anisonet.audit import (
    Leakage,
    Locality,
    OrderRow,
    Probe,
    label_leakage,
    leakage_probe,
    locality,
    order_bias,
)
from anisonet.baselines import BASELINES, baseline
from anisonet.batches import Augmentation
from anisonet.clouds import Cloud, PlyError, make_cloud, read_points, sample_surface, write_ply
from anisonet.curves import (
    hilbert_decode,
    hilbert_encode,
    morton_decode,
    morton_encode,
    serialize,
)
from anisonet.data import Dataset, load, mw_objects, mw_scenes
from anisonet.ellipsoid import (
    EllipsoidEncoding,
    PrecisionWarning,
    axes,
    descriptors,
    eigh3,
    export_onnx,
    knn,
    local_covariance,
)
from anisonet.estimator import PointClassifier, PointSegmenter
from anisonet.gisa import GISA, density, order_bound, suggest_mode, vector_delta
from anisonet.metrics import ConfusionMeter
from anisonet.model import (
    PRESETS,
    AnIsoNetCls,
    AnIsoNetPart,
    AnIsoNetSeg,
    Config,
    ConfigMismatch,
    count,
    export,
    network,
)
from anisonet.pyramid import Pyramid, farthest_point_sample, grid_subsample
from anisonet.scan import linear_recurrence
from anisonet.train import Recipe, Trainer, Votes, evaluate, recipe_for, vote

__version__ = version("papershelf-anisonet")

__all__ = [
    "BASELINES",
    "GISA",
    "PRESETS",
    "AnIsoNetCls",
    "AnIsoNetPart",
    "AnIsoNetSeg",
    "Augmentation",
    "Cloud",
    "Config",
    "ConfigMismatch",
    "ConfusionMeter",
    "Dataset",
    "EllipsoidEncoding",
    "Leakage",
    "Locality",
    "OrderRow",
    "PlyError",
    "PointClassifier",
    "PointSegmenter",
    "PrecisionWarning",
    "Probe",
    "Pyramid",
    "Recipe",
    "Trainer",
    "Votes",
    "__version__",
    "axes",
    "baseline",
    "count",
    "density",
    "descriptors",
    "eigh3",
    "evaluate",
    "export",
    "export_onnx",
    "farthest_point_sample",
    "grid_subsample",
    "hilbert_decode",
    "hilbert_encode",
    "knn",
    "label_leakage",
    "leakage_probe",
    "linear_recurrence",
    "load",
    "local_covariance",
    "locality",
    "make_cloud",
    "morton_decode",
    "morton_encode",
    "mw_objects",
    "mw_scenes",
    "network",
    "order_bias",
    "order_bound",
    "read_points",
    "recipe_for",
    "sample_surface",
    "serialize",
    "suggest_mode",
    "vector_delta",
    "vote",
    "write_ply",
]
