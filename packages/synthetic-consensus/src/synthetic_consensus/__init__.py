"""Audit bridging-based fact-checking: exact scores, what ratings would move, what it costs, what stops it."""

from importlib.metadata import version

from synthetic_consensus.attack import AttackResult, Positions, attack, attack_all, lower_bound
from synthetic_consensus.audit import AuditReport, audit, fragility
from synthetic_consensus.cost import CostModel, plan_position, price
from synthetic_consensus.data import house84, movielens100k, senate109, synthetic
from synthetic_consensus.load import (
    SchemaError,
    load_community_notes,
    load_model,
    load_polis,
    load_ratings,
    load_triples,
    save_model,
)
from synthetic_consensus.marginal import (
    NoteStats,
    Shrinkage,
    add_effect,
    effect,
    flip_point,
    influence,
    model_stats,
    paradox_table,
    remove_effect,
    solve_notes,
)
from synthetic_consensus.mf import BridgingMF, DegenerateFactorWarning, DuplicateRatingError, EmptyDataError, Ratings
from synthetic_consensus.mitigate import (
    coordinated_groups,
    expanded_consensus,
    gaussian_bridging,
    group_informed_consensus,
    merged_groups,
    quality_sensitive,
    robust_intercept,
    robust_intercepts,
)
from synthetic_consensus.rules import StatusRules, apply, decide, two_stage_scoring

__version__ = version("papershelf-synthetic-consensus")

__all__ = [
    "AttackResult",
    "AuditReport",
    "BridgingMF",
    "CostModel",
    "DegenerateFactorWarning",
    "DuplicateRatingError",
    "EmptyDataError",
    "NoteStats",
    "Positions",
    "Ratings",
    "SchemaError",
    "Shrinkage",
    "StatusRules",
    "__version__",
    "add_effect",
    "apply",
    "attack",
    "attack_all",
    "audit",
    "coordinated_groups",
    "decide",
    "effect",
    "expanded_consensus",
    "flip_point",
    "fragility",
    "gaussian_bridging",
    "group_informed_consensus",
    "house84",
    "influence",
    "load_community_notes",
    "load_model",
    "load_polis",
    "load_ratings",
    "load_triples",
    "lower_bound",
    "merged_groups",
    "model_stats",
    "movielens100k",
    "paradox_table",
    "plan_position",
    "price",
    "quality_sensitive",
    "remove_effect",
    "robust_intercept",
    "robust_intercepts",
    "save_model",
    "senate109",
    "solve_notes",
    "synthetic",
    "two_stage_scoring",
]
