"""Action chunks as continuous functions of time, with exact derivatives."""

from importlib.metadata import version

from niaf.field import AliasingWarning, ExtrapolationError, SineField, auto_omega
from niaf.fit import FieldRegressor, FitOptions, fit_field, fit_fields
from niaf.heads import HEADS, ActionHead, FieldHead, make_head
from niaf.impedance import ImpedanceController
from niaf.losses import FieldLoss, TimeJitter
from niaf.metrics import offgrid_error, smoothness
from niaf.modulation import (
    FiLM,
    GroupedModulator,
    HyperNetwork,
    LatentCode,
    Modulation,
    QueryResampler,
    VectorModulator,
)
from niaf.resample import DataError, resample_actions
from niaf.trajectory import CompositeTrajectory, Limits, Trajectory, Violation, anchor, blend, check, ensemble

__version__ = version("papershelf-niaf")

__all__ = [
    "HEADS",
    "ActionHead",
    "AliasingWarning",
    "CompositeTrajectory",
    "DataError",
    "ExtrapolationError",
    "FiLM",
    "FieldHead",
    "FieldLoss",
    "FieldRegressor",
    "FitOptions",
    "GroupedModulator",
    "HyperNetwork",
    "ImpedanceController",
    "LatentCode",
    "Limits",
    "Modulation",
    "QueryResampler",
    "SineField",
    "TimeJitter",
    "Trajectory",
    "VectorModulator",
    "Violation",
    "__version__",
    "anchor",
    "auto_omega",
    "blend",
    "check",
    "ensemble",
    "fit_field",
    "fit_fields",
    "make_head",
    "offgrid_error",
    "resample_actions",
    "smoothness",
]
