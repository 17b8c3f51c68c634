"""Additive neuro-fuzzy models with readable rules, closed-form fits and calibrated intervals."""

from importlib.metadata import version

from kanfis.data import Table, load_table
from kanfis.estimators import KANFISClassifier, KANFISRegressor, PruneReport, conformal_quantile
from kanfis.membership import Partition, Term
from kanfis.rules import (
    FuzzySet,
    Rule,
    RuleBase,
    SugenoRule,
    SugenoSystem,
    interpretability,
    read_fcl,
    read_fis,
    rule_text,
    to_code,
    to_sugeno,
    write_fcl,
    write_fis,
)
from kanfis.typereduce import interval_hull, karnik_mendel, nie_tan

__version__ = version("papershelf-kanfis")

__all__ = [
    "FuzzySet",
    "KANFISClassifier",
    "KANFISRegressor",
    "Partition",
    "PruneReport",
    "Rule",
    "RuleBase",
    "SugenoRule",
    "SugenoSystem",
    "Table",
    "Term",
    "__version__",
    "conformal_quantile",
    "interpretability",
    "interval_hull",
    "karnik_mendel",
    "load_table",
    "nie_tan",
    "read_fcl",
    "read_fis",
    "rule_text",
    "to_code",
    "to_sugeno",
    "write_fcl",
    "write_fis",
]
