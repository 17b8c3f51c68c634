"""Ridge regression mixed with its own distilled student."""

from importlib.metadata import version

from ridge_sd.core import SDPath, Spectrum, decompose, fit_rounds, sd_path, student_coef, teacher_coef
from ridge_sd.sklearn_api import (
    KernelRidgeSD,
    KernelRidgeSDCV,
    LogisticSD,
    RidgeSD,
    RidgeSDClassifier,
    RidgeSDClassifierCV,
    RidgeSDCV,
)
from ridge_sd.streaming import RowMoments, StreamingRidgeSD
from ridge_sd.theory import Population, Risks, multi_round_gram, ood_equivalents, sd_equivalents, solve_kappa

__version__ = version("papershelf-ridge-sd")

__all__ = [
    "KernelRidgeSD",
    "KernelRidgeSDCV",
    "LogisticSD",
    "Population",
    "RidgeSD",
    "RidgeSDCV",
    "RidgeSDClassifier",
    "RidgeSDClassifierCV",
    "Risks",
    "RowMoments",
    "SDPath",
    "Spectrum",
    "StreamingRidgeSD",
    "__version__",
    "decompose",
    "fit_rounds",
    "multi_round_gram",
    "ood_equivalents",
    "sd_equivalents",
    "sd_path",
    "solve_kappa",
    "student_coef",
    "teacher_coef",
]
