"""scikit-learn estimators: closed-form additive rules (``structure="term"``) and the paper's network
(``structure="paper"``)."""

from __future__ import annotations

import copy
import json
import math
import os
import tempfile
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self, cast

import numpy as np
from scipy.special import softmax
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.utils.metaestimators import available_if
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, check_random_state, validate_data

from kanfis.membership import FUZZY_TYPES, KINDS, Partition, overlap
from kanfis.rules import Rule, RuleBase, render
from kanfis.solve import (
    ALPHAS,
    LOG_ALPHAS,
    Fit,
    Moments,
    choose_features,
    choose_pairs,
    constrained,
    leave_one_out,
    logistic,
    ridge,
    smoothness,
)

SUFFIXES = {
    ".txt": "text", ".md": "md", ".tex": "tex", ".json": "json", ".pmml": "pmml", ".fcl": "fcl", ".fis": "fis",
    ".py": "python", ".c": "c",
}  # fmt: skip
AUTO_TERMS = (3, 5, 7)
CHOOSING_ROWS = 20_000


@dataclass(frozen=True)
class PruneReport:
    """What pruning did.

    Attributes:
        rules_before, rules_after: rules whose coefficients are not 0.
        antecedents_before, antecedents_after: conditions in them.
        merged: pairs of terms that became one, (feature, label, label).
        score_before, score_after: R2 or accuracy on the data given, NaN without.
        model: the pruned estimator.
    """

    rules_before: int
    rules_after: int
    antecedents_before: int
    antecedents_after: int
    merged: tuple[tuple[str, str, str], ...]
    score_before: float
    score_after: float
    model: Any


def _is_frame(X: Any) -> bool:
    return hasattr(X, "dtypes") and hasattr(X, "columns")


class _KANFIS(BaseEstimator):
    _classifier = False
    n_features_in_: int
    feature_names_in_: np.ndarray
    rulebase_: RuleBase
    exact_rules_: bool
    surrogate_fidelity_: float
    moments_: Moments

    def __init__(
        self,
        *,
        structure: str = "term",
        fuzzy_type: str = "t1",
        n_memberships: Any = 3,
        n_rules: int = 8,
        n_layers: int = 1,
        membership: str = "gaussian",
        fit_mode: str = "hybrid",
        type_reduction: str = "nie_tan",
        alphas: Any = None,
        alpha_selection: str = "gcv",
        smooth: float = 0.0,
        monotone: Any = None,
        missing: str = "error",
        n_interactions: int = 0,
        tnorm: str = "product",
        select_features: bool = False,
        fine_tune: bool = False,
        mask: str = "linear",
        lambda_entropy: float = 0.0,
        lambda_distinct: float = 0.0,
        learning_rate: float | None = None,
        weight_decay: float = 1e-2,
        batch_size: int = 32,
        max_epochs: int = 100,
        patience: int = 20,
        min_delta: float = 1e-4,
        validation_fraction: float = 0.2,
        calibration_fraction: float = 0.0,
        spread: float = 0.15,
        extrapolation: str = "clip",
        term_labels: Any = None,
        device: str = "cpu",
        random_state: Any = None,
        verbose: int = 0,
    ) -> None:
        self.structure = structure
        self.fuzzy_type = fuzzy_type
        self.n_memberships = n_memberships
        self.n_rules = n_rules
        self.n_layers = n_layers
        self.membership = membership
        self.fit_mode = fit_mode
        self.type_reduction = type_reduction
        self.alphas = alphas
        self.alpha_selection = alpha_selection
        self.smooth = smooth
        self.monotone = monotone
        self.missing = missing
        self.n_interactions = n_interactions
        self.tnorm = tnorm
        self.select_features = select_features
        self.fine_tune = fine_tune
        self.mask = mask
        self.lambda_entropy = lambda_entropy
        self.lambda_distinct = lambda_distinct
        self.learning_rate = learning_rate
        self.weight_decay = weight_decay
        self.batch_size = batch_size
        self.max_epochs = max_epochs
        self.patience = patience
        self.min_delta = min_delta
        self.validation_fraction = validation_fraction
        self.calibration_fraction = calibration_fraction
        self.spread = spread
        self.extrapolation = extrapolation
        self.term_labels = term_labels
        self.device = device
        self.random_state = random_state
        self.verbose = verbose

    # --- presets ---

    @classmethod
    def paper(cls, **changes: Any) -> Self:
        """The official code's model and training: 8 rules, 3 memberships an edge, AdamW."""
        given: dict[str, Any] = {
            "structure": "paper",
            "fit_mode": "paper",
            "lambda_entropy": 0.01,
            "lambda_distinct": 0.01,
        }
        return cls(**{**given, **changes})

    @classmethod
    def fast(cls, **changes: Any) -> Self:
        """The default: one rule a term, closed form."""
        return cls(**changes)

    # --- checks ---

    def _check_parameters(self) -> None:
        for name, value, known in (
            ("structure", self.structure, ("term", "paper")),
            ("fuzzy_type", self.fuzzy_type, FUZZY_TYPES),
            ("fit_mode", self.fit_mode, ("hybrid", "paper")),
            ("membership", self.membership, KINDS[:5]),
            ("type_reduction", self.type_reduction, ("nie_tan", "km")),
            ("alpha_selection", self.alpha_selection, ("gcv", "loo")),
            ("missing", self.missing, ("error", "term")),
            ("tnorm", self.tnorm, ("product", "min")),
            ("extrapolation", self.extrapolation, ("clip", "none")),
        ):
            if value not in known:
                raise ValueError(f"expected {name} of {', '.join(known)}, got {value!r}")
        if self.n_rules < 1:
            raise ValueError(f"expected n_rules of at least 1, got {self.n_rules}")
        if self.n_layers < 1:
            raise ValueError(f"expected n_layers of at least 1, got {self.n_layers}")
        if self.n_layers > 1 and self.n_rules < 2:
            raise ValueError("n_layers > 1 needs n_rules of at least 2: LayerNorm of one number is 0")
        if self.structure == "term" and self.n_layers > 1:
            raise ValueError("n_layers > 1 needs structure='paper'")
        if self.structure == "term" and self.type_reduction == "km":
            raise ValueError(
                "type_reduction='km' needs normalised firings: use structure='paper', fuzzy_type='it2', mask='softplus'"
            )
        if self.structure == "paper" and self.type_reduction == "km" and self.mask == "linear":
            raise ValueError("type_reduction='km' needs masks that are never negative: use mask='softplus'")
        if self.structure == "paper" and self.fit_mode == "paper" and self.membership == "trapezoid":
            raise ValueError("the paper's structure has no trapezoids: use gaussian, sigmoid, triangle or bell")
        if self.structure == "paper" and self.missing == "term":
            raise ValueError("missing='term' needs structure='term'")
        if isinstance(self.n_memberships, str) and self.n_memberships != "auto":
            raise ValueError(f"expected n_memberships as a number, a dict or 'auto', got {self.n_memberships!r}")
        values = self.n_memberships.values() if isinstance(self.n_memberships, Mapping) else [self.n_memberships]
        for value in values:
            if not isinstance(value, str) and value < 1:
                raise ValueError(f"expected n_memberships of at least 1, got {value}")
        if not 0 <= self.calibration_fraction < 1:
            raise ValueError(f"expected calibration_fraction from 0 to below 1, got {self.calibration_fraction}")
        if self.smooth < 0:
            raise ValueError(f"expected smooth of at least 0, got {self.smooth}")

    def _encoded(self, X: Any, fitting: bool) -> Any:
        """Frames with categories, words or booleans as numbers; everything else as it is."""
        if not _is_frame(X):
            return X
        import pandas as pd

        found: dict[int, dict[Any, int]] = {} if fitting else getattr(self, "levels_", {})
        changed = {}
        for i, name in enumerate(X.columns):
            kind = X.dtypes.iloc[i]
            if fitting:
                if pd.api.types.is_numeric_dtype(kind) and not pd.api.types.is_bool_dtype(kind):
                    continue
                column = X[name]
                known = (
                    list(column.cat.categories) if hasattr(column, "cat") else sorted(column.dropna().unique(), key=str)
                )
                found[i] = {level: code for code, level in enumerate(known)}
            if i in found:
                changed[name] = (
                    X[name].map(lambda v, table=found[i]: math.nan if pd.isna(v) else table.get(v, -1)).astype(float)
                )
        if fitting:
            self.levels_ = found
        return X.assign(**changed) if changed else X

    def _validated(self, X: Any, y: Any = None, reset: bool = True) -> Any:
        finite: Any = "allow-nan" if self.missing == "term" else True
        common: dict[str, Any] = {"reset": reset, "dtype": np.float64, "ensure_all_finite": finite}
        if reset:
            self.levels_ = {}
        encoded = self._encoded(X, reset)
        if y is None:
            return validate_data(self, encoded, **common)
        common["multi_output"] = not self._classifier
        if self._classifier:
            return validate_data(self, encoded, y, **{**common, "multi_output": True})
        return validate_data(self, encoded, y, y_numeric=True, **common)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = self.missing == "term"
        return tags

    def _names(self) -> list[str]:
        given = getattr(self, "feature_names_in_", None)
        return list(map(str, given)) if given is not None else [f"x{i}" for i in range(self.n_features_in_)]

    def _index(self, feature: Any) -> int:
        names = self._names()
        if isinstance(feature, str):
            if feature not in names:
                raise ValueError(f"no feature {feature!r}; there are {', '.join(names[:10])}")
            return names.index(feature)
        if not 0 <= int(feature) < len(names):
            raise ValueError(f"expected a feature from 0 to {len(names) - 1}, got {feature}")
        return int(feature)

    # --- fitting ---

    def _split(self, n: int, fraction: float, stratify: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
        rng = check_random_state(self.random_state)
        if stratify is None:
            order = rng.permutation(n)
            held = round(fraction * n)
            return np.sort(order[held:]), np.sort(order[:held])
        held_rows: list[int] = []
        for value in np.unique(stratify):
            rows = rng.permutation(np.flatnonzero(stratify == value))
            held_rows += rows[: round(fraction * len(rows))].tolist()
        held_set = np.array(sorted(held_rows), dtype=int)
        return np.setdiff1d(np.arange(n), held_set), held_set

    def _fit_rows(
        self, X: np.ndarray, Y: np.ndarray, weight: np.ndarray, codes: np.ndarray | None, validation: Any
    ) -> None:
        """Fit on rows; Y is (n, O), one-hot for classes."""
        keep = weight > 0
        if self.calibration_fraction > 0:
            kept, held = self._split(len(X), self.calibration_fraction, codes)
            if len(held) < 2 or len(kept) < 2:
                raise ValueError(
                    f"calibration_fraction {self.calibration_fraction} leaves {len(held)} of {len(X)} rows to calibrate"
                )
            calibration = (X[held], Y[held], None if codes is None else codes[held])
            X, Y, weight, keep = X[kept], Y[kept], weight[kept], keep[kept]
            codes = None if codes is None else codes[kept]
        else:
            calibration = None
        X, Y, weight = X[keep], Y[keep], weight[keep]
        codes = None if codes is None else codes[keep]
        self.converged_, self.history_ = True, {}
        for stale in ("scores_", "residuals_", "network_", "moments_", "sparsity_path_"):
            if hasattr(self, stale):
                delattr(self, stale)
        if self.structure == "term":
            self._fit_terms(X, Y, weight, codes)
        else:
            from kanfis.training import fit_network

            fit_network(cast(Any, self), X, Y, weight, codes, validation)
        self._finish()
        if calibration is not None:
            self._calibrate(*calibration)

    def _finish(self) -> None:
        self.partition_ = self.rulebase_.partition
        self.coef_, self.intercept_ = self.rulebase_.coef, self.rulebase_.intercept

    def _counts(self, k: int) -> list[int]:
        given = self.n_memberships
        if not isinstance(given, Mapping):
            return [k] * self.n_features_in_
        counts = [3] * self.n_features_in_
        for name, value in given.items():
            counts[self._index(name)] = int(value)
        return counts

    def _partition(self, X: np.ndarray, weight: np.ndarray, k: int) -> Partition:
        levels = getattr(self, "levels_", {})
        words = [
            {float(code): str(level) for level, code in levels[i].items()} if i in levels else None
            for i in range(X.shape[1])
        ]
        found = Partition.from_quantiles(
            X,
            self._counts(k),
            kind=cast(Any, self.membership),
            fuzzy_type=cast(Any, self.fuzzy_type),
            spread=self.spread,
            categorical=[i in levels for i in range(X.shape[1])],
            missing=self.missing == "term",
            clip=self.extrapolation == "clip",
            names=words,
            weight=weight,
        )
        for feature, labels in (self.term_labels or {}).items():
            found = found.relabel(self._index(feature), labels)
        return found

    def _fit_terms(self, X: np.ndarray, Y: np.ndarray, weight: np.ndarray, codes: np.ndarray | None) -> None:
        candidates = (
            AUTO_TERMS
            if self.n_memberships == "auto"
            else (0 if isinstance(self.n_memberships, Mapping) else self.n_memberships,)
        )
        best: tuple[float, Any, Any] | None = None
        for k in candidates:
            partition = self._partition(X, weight, int(k))
            found = self._solve_terms(partition, X, Y, weight)
            score = float(np.min(found[1].scores)) if len(found[1].scores) else 0.0
            if best is None or score < best[0]:
                best = (score, found, getattr(self, "moments_", None))
        assert best is not None
        base, fit = best[1]
        if best[2] is not None:
            self.moments_ = best[2]
        self.alpha_ = fit.alpha
        self._store(base, X, weight)
        if self.fine_tune:
            from kanfis.training import fine_tune

            fine_tune(cast(Any, self), X, Y, weight, codes)

    def _groups(self, partition: Partition) -> list[np.ndarray]:
        ends = np.cumsum(partition.sizes)
        return [np.arange(e - s, e) for e, s in zip(ends, partition.sizes, strict=True)]

    def _sampled(self, n: int) -> np.ndarray:
        """All rows, or 20,000 of them at random: enough to choose features and pairs by."""
        if n <= CHOOSING_ROWS:
            return np.arange(n)
        return check_random_state(self.random_state).choice(n, CHOOSING_ROWS, replace=False)

    def _solve_terms(
        self, partition: Partition, X: np.ndarray, Y: np.ndarray, weight: np.ndarray
    ) -> tuple[RuleBase, Fit]:
        groups = self._groups(partition)
        columns = np.concatenate(groups) if groups else np.zeros(0, dtype=int)
        if self.select_features:
            rows = self._sampled(len(X))
            seed = check_random_state(self.random_state).randint(2**31 - 1)
            kept, self.sparsity_path_ = choose_features(
                partition.basis(X[rows]), Y[rows], weight[rows], groups, np.random.default_rng(seed)
            )
            columns = np.concatenate([g for g, k in zip(groups, kept, strict=True) if k] or [np.zeros(0, dtype=int)])
        antecedents: list[tuple[tuple[int, int], ...]] = [((i, k),) for i, k in partition.columns]
        base = self._empty(partition, tuple(antecedents), Y.shape[1])
        fit = self._solve(base, X, Y, weight, columns)
        if self.n_interactions > 0:
            rows = self._sampled(len(X))
            first = replace(base, coef=fit.coef, intercept=fit.intercept)
            residual = self._residual(first, X[rows], Y[rows])
            used = [g if np.isin(g, columns).all() and len(g) else np.zeros(0, dtype=int) for g in groups]
            live = [i for i, g in enumerate(used) if len(g)]
            pairs = choose_pairs(
                partition.basis(X[rows]),
                [used[i] for i in live],
                residual,
                weight[rows],
                self.n_interactions,
                self.tnorm,
            )
            ends = np.cumsum([0, *partition.sizes])
            for a, b in pairs:
                i, j = live[a], live[b]
                antecedents += [((i, int(m - ends[i])), (j, int(n - ends[j]))) for m in groups[i] for n in groups[j]]
            base = self._empty(partition, tuple(antecedents), Y.shape[1])
            columns = np.concatenate([columns, np.arange(int(ends[-1]), len(antecedents))])
            fit = self._solve(base, X, Y, weight, columns)
        return replace(base, coef=fit.coef, intercept=fit.intercept), fit

    def _penalty(self, base: RuleBase, columns: np.ndarray) -> np.ndarray | None:
        if self.smooth == 0:
            return None
        ordered = [all(t.kind not in ("singleton", "missing") for t in terms) for terms in base.partition.terms]
        whole = np.eye(len(base.antecedents))
        singles = int(base.partition.sizes.sum())
        whole[:singles, :singles] = smoothness(base.partition.sizes.tolist(), ordered, self.smooth)
        return whole[np.ix_(columns, columns)]

    def _alphas(self, default: np.ndarray) -> np.ndarray:
        if self.alphas is None:
            return default
        given = np.atleast_1d(np.asarray(self.alphas, dtype=float))
        if given.size == 0 or not (given > 0).all() or not np.isfinite(given).all():
            raise ValueError(f"expected alphas above 0, got {self.alphas!r}")
        return given

    def _store(self, base: RuleBase, X: np.ndarray, weight: np.ndarray) -> None:
        self.rulebase_ = base.weighed(X, weight)
        total = np.zeros((len(self.rulebase_.components()), base.coef.shape[1]))
        rows = max(1, 2**22 // max(1, len(base.antecedents)))
        for i in range(0, len(X), rows):
            total += (weight[i : i + rows, None, None] * np.square(self.rulebase_.contributions(X[i : i + rows]))).sum(
                0
            )
        self.component_importances_ = np.sqrt(total / weight.sum()).mean(1)
        self.feature_importances_ = self.component_importances_[: self.n_features_in_]

    # --- using ---

    def _checked(self, X: Any) -> np.ndarray:
        check_is_fitted(self, "rulebase_")
        X = self._validated(X, reset=False)
        if self.verbose and self.extrapolation == "clip" and (outside := self.partition_.outside(X)):
            warnings.warn(
                f"{outside} of {len(X)} rows lie outside the training range and were clipped to it", stacklevel=3
            )
        return X

    def _scores(self, X: np.ndarray) -> np.ndarray:
        if getattr(self, "network_", None) is not None and not self.exact_rules_:
            from kanfis.training import network_scores

            return network_scores(cast(Any, self), X)
        return self.rulebase_.scores(X)

    def firing(self, X: Any) -> np.ndarray:
        """Memberships of the rules, (n, R)."""
        return self.rulebase_.basis(self._checked(X))

    def contributions(self, X: Any) -> np.ndarray:
        """Centred contribution of every feature (and pair), (n, D + pairs, O).

        With ``rulebase_.base`` (the mean output) they add up to the prediction, or the logits; for an additive
        model they are its Shapley values. ``component_names_`` names them.

        Raises:
            ValueError: for a network of more than one layer, which is not additive.
        """
        X = self._checked(X)
        self._need_exact("contributions")
        return self.rulebase_.contributions(X)

    def _need_exact(self, what: str) -> None:
        if not getattr(self, "exact_rules_", True):
            raise ValueError(
                f"{what}: this network is not additive (n_layers > 1 or Karnik-Mendel); rules() gives surrogate "
                f"rules of its "
                f"predictions, with R2 {self.surrogate_fidelity_:.3f}"
            )

    @property
    def component_names_(self) -> list[str]:
        """Names of the contributions: features, then pairs."""
        names = self._names()
        return [" x ".join(names[i] for i in c) for c in self.rulebase_.components()]

    def shape(self, feature: Any, grid: Any = None) -> tuple[np.ndarray, np.ndarray]:
        """Shape function of a feature, centred over the training data: grid (g,) and values (g, O)."""
        check_is_fitted(self, "rulebase_")
        self._need_exact("shape")
        i = self._index(feature)
        if grid is None:
            low, high = float(self.partition_.low[i]), float(self.partition_.high[i])
            terms = self.partition_.terms[i]
            if not np.isfinite(low):
                grid = np.array([t.centre for t in terms if t.kind != "missing"])
            else:
                grid = np.linspace(low, high, 200)
        grid = np.asarray(grid, dtype=float).reshape(-1)
        X = np.tile([t[0].centre if t else 0.0 for t in self.partition_.terms], (len(grid), 1)).astype(float)
        X[:, i] = grid
        values = np.zeros((len(grid), self.coef_.shape[1]))
        terms = self.rulebase_.basis(X) - self.rulebase_.centre
        members = [r for r, pairs in enumerate(self.rulebase_.antecedents) if len(pairs) == 1 and pairs[0][0] == i]
        values += terms[:, members] @ self.coef_[members]
        return grid, values

    def rules(self, minimum_share: float = 0.0) -> list[Rule]:
        """Rules in order of their share of the contributions.

        In the paper's structure a rule adds masked memberships of several features, which is a sum and no AND; more
        than one
        layer gives surrogate rules, fitted to the network's predictions (``surrogate_fidelity_`` is their R2).
        """
        check_is_fitted(self, "rulebase_")
        if getattr(self, "network_", None) is not None and self.exact_rules_:
            from kanfis.training import paper_rules

            return [r for r in paper_rules(cast(Any, self)) if r.share >= minimum_share]
        return self.rulebase_.rules(minimum_share)

    def report(self, top: int | None = 20, form: str = "text") -> str:
        """The rules in words: ``text``, ``md`` or ``tex``."""
        from kanfis.rules import report

        note = (
            ""
            if getattr(self, "exact_rules_", True)
            else f"Surrogate rules (R2 of the network's predictions {self.surrogate_fidelity_:.3f}).\n"
        )
        return note + report(self.rulebase_, self.rules(), top, form)

    def export_code(self, language: str = "c") -> str:
        """A standalone function in C or Python that computes the outputs (log-odds for classification)."""
        check_is_fitted(self, "rulebase_")
        self._need_exact("export_code")
        return render(self.rulebase_, language)

    def export(self, path: str | os.PathLike[str], form: str | None = None) -> Path:
        """Write the rules; the format is that of the suffix (.txt .md .tex .json .pmml .fcl .fis .py .c).

        Raises:
            ValueError: on an unknown suffix, before anything is written.
        """
        target = Path(path)
        chosen = form or SUFFIXES.get(target.suffix.lower())
        if chosen is None:
            raise ValueError(f"expected a file that ends in {', '.join(SUFFIXES)}, got {target.name!r}")
        check_is_fitted(self, "rulebase_")
        if chosen not in ("text", "md", "tex"):
            self._need_exact(f"export to {target.suffix}")
            content = render(self.rulebase_, chosen)
        else:
            content = self.report(None, chosen)
        handle, temporary = tempfile.mkstemp(dir=target.resolve().parent, prefix=f".{target.name}.")
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                file.write(content)
            Path(temporary).replace(target)
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise
        return target

    @classmethod
    def from_rules(cls, source: Any) -> Self:
        """A fitted estimator from exported (and perhaps edited) rules: a path, JSON text, a dict or a ``RuleBase``.

        Raises:
            ValueError: naming the line of broken JSON, or the feature or rule that does not fit.
        """
        if not isinstance(source, RuleBase):
            if isinstance(source, (str, os.PathLike)):
                text = str(source) if str(source).lstrip().startswith("{") else Path(source).read_text(encoding="utf-8")
                try:
                    source = json.loads(text)
                except json.JSONDecodeError as error:
                    raise ValueError(f"line {error.lineno}, column {error.colno}: {error.msg}") from None
            source = RuleBase.from_dict(source)
        if (source.task == "classification") != cls._classifier:
            raise ValueError(
                f"expected rules of {'classification' if cls._classifier else 'regression'}, got {source.task}"
            )
        model = cls()
        model.n_features_in_ = len(source.features)
        model.feature_names_in_ = np.array(source.features, dtype=object)
        model.rulebase_, model.exact_rules_, model.converged_ = source, True, True
        model.levels_, model.history_, model.alpha_ = {}, {}, float("nan")
        if any(t.kind == "missing" for terms in source.partition.terms for t in terms):
            model.missing = "term"
        if source.classes is not None:
            cast(Any, model).classes_ = np.array(source.classes)
        size = np.abs(source.coef).mean(1) * np.maximum(source.support, 1e-12)
        model.feature_importances_ = np.array(
            [
                sum(size[r] for r, p in enumerate(source.antecedents) if len(p) == 1 and p[0][0] == i)
                for i in range(len(source.features))
            ]
        )
        model._finish()
        return model

    def prune(
        self,
        threshold: float = 0.05,
        relative: bool = True,
        X: Any = None,
        y: Any = None,
        inplace: bool = False,
        similar: float = 0.9,
    ) -> PruneReport:
        """Drop rules of little effect and merge terms that overlap almost wholly, then fit the head again where
        data is given.

        A rule's effect is its largest absolute coefficient; it goes where that is below ``threshold`` times the
        largest of all
        (``relative``) or below ``threshold``. In the paper's structure the masks are cut the same way, column by
        column.

        Args:
            threshold: 0 leaves everything as it is.
            relative: threshold as a share.
            X, y: data for fitting again and for the scores; without them the kept coefficients stay.
            inplace: change this estimator (else a copy).
            similar: Jaccard overlap above which neighbouring terms become one (only with data and a threshold above 0).

        Returns:
            A report with the pruned model.
        """
        check_is_fitted(self, "rulebase_")
        model = self if inplace else copy.deepcopy(self)
        before = self.rulebase_
        score = float("nan") if X is None else float(cast(Any, self).score(X, y))
        merged: list[tuple[str, str, str]] = []
        if threshold > 0:
            if getattr(model, "network_", None) is not None:
                from kanfis.training import prune_network

                prune_network(cast(Any, model), threshold, relative, X, y)
            else:
                model._prune_terms(threshold, relative, X, y, similar, merged)
        after = model.rulebase_

        def counts(base: RuleBase) -> tuple[int, int]:
            used = [p for p, c in zip(base.antecedents, base.coef, strict=True) if c.any()]
            return len(used), sum(len(p) for p in used)

        return PruneReport(
            counts(before)[0], counts(after)[0], counts(before)[1], counts(after)[1], tuple(merged), score,
            float("nan") if X is None else float(cast(Any, model).score(X, y)), model,
        )  # fmt: skip

    def _prune_terms(
        self, threshold: float, relative: bool, X: Any, y: Any, similar: float, merged: list[tuple[str, str, str]]
    ) -> None:
        base = self.rulebase_
        effect = np.abs(base.coef).max(1)
        limit = threshold * (effect.max() if relative else 1.0)
        keep = effect >= limit
        names = self._names()
        start = np.concatenate([[0], np.cumsum(base.partition.sizes)])
        dropped = ~keep
        if X is not None:
            for i, terms in enumerate(base.partition.terms):
                low, high = base.partition.low[i], base.partition.high[i]
                if not np.isfinite(low):
                    continue
                grid = np.linspace(low, high, 201)
                for k in range(len(terms) - 1):
                    if not dropped[start[i] + k] and overlap(terms[k], terms[k + 1], grid) > similar:
                        dropped[start[i] + k] = True
                        merged.append((names[i], terms[k].label, terms[k + 1].label))
        columns = np.flatnonzero(~dropped)
        if X is None:
            coef = base.coef * (~dropped)[:, None]
            # the mean output stays: what dropped rules added on average moves to the intercept
            intercept = base.intercept + base.centre @ (base.coef - coef)
            self.rulebase_ = replace(base, coef=coef, intercept=intercept)
        else:
            rows, targets, weight, _ = self._targets(X, y, None, reset=False)
            fit = self._solve(base, rows, targets, weight, columns)
            self._store(replace(base, coef=fit.coef, intercept=fit.intercept), rows, weight)
        self._finish()

    # supplied by the two kinds

    def _empty(self, partition: Partition, antecedents: Any, outputs: int) -> RuleBase:
        raise NotImplementedError

    def _solve(self, base: RuleBase, X: np.ndarray, Y: np.ndarray, weight: np.ndarray, columns: np.ndarray) -> Fit:
        raise NotImplementedError

    def _residual(self, base: RuleBase, X: np.ndarray, Y: np.ndarray) -> np.ndarray:
        raise NotImplementedError

    def _targets(
        self, X: Any, y: Any, sample_weight: Any, reset: bool
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray | None]:
        raise NotImplementedError

    def _calibrate(self, X: np.ndarray, Y: np.ndarray, codes: np.ndarray | None) -> None:
        raise NotImplementedError

    def _least_squares(
        self, base: RuleBase, X: np.ndarray, Y: np.ndarray, weight: np.ndarray, columns: np.ndarray
    ) -> Fit:
        moments = Moments.of(base.basis, X, Y, weight, len(base.antecedents))
        leverage = None
        if self.alpha_selection == "loo":
            leverage = leave_one_out(base.basis, X, Y, weight, moments, columns, self._alphas(ALPHAS))
        return self._from_moments(base, moments, columns, leverage)

    def _from_moments(self, base: RuleBase, moments: Moments, columns: np.ndarray, leverage: Any = None) -> Fit:
        penalty = self._penalty(base, columns)
        fit = ridge(moments, columns, self._alphas(ALPHAS), penalty, leverage)
        self.moments_ = moments
        if self.monotone:
            slopes = self._slopes(base, columns)
            fit = constrained(moments, columns, fit.alpha, slopes, penalty)._replace(scores=fit.scores)
        return fit

    def _add_rows(self, X: np.ndarray, Y: np.ndarray, weight: np.ndarray) -> Self:
        """Fit again as if these rows had been there from the start, on the partition that is there."""
        base = self.rulebase_
        total = self.moments_ + Moments.of(base.basis, X, Y, weight, len(base.antecedents))
        fit = self._from_moments(base, total, np.arange(len(base.antecedents)))
        self.alpha_ = fit.alpha
        self.rulebase_ = replace(base, coef=fit.coef, intercept=fit.intercept, centre=total.means[0])
        self._finish()
        return self

    def _slopes(self, base: RuleBase, columns: np.ndarray) -> np.ndarray:
        """Rows of differences of the basis along constrained features, times the wanted sign."""
        rows = []
        start = np.concatenate([[0], np.cumsum(base.partition.sizes)])
        for feature, sign in self.monotone.items():
            i = self._index(feature)
            if sign not in (-1, 1):
                raise ValueError(f"monotone: expected +1 or -1 for {feature!r}, got {sign!r}")
            if any(len(p) > 1 and i in {j for j, _ in p} for p in base.antecedents):
                raise ValueError(f"monotone: {feature!r} is in a pair rule; use n_interactions=0")
            terms = base.partition.terms[i]
            low, high = base.partition.low[i], base.partition.high[i]
            if any(t.kind == "singleton" for t in terms):
                grid = np.array([t.centre for t in terms if t.kind == "singleton"])
            else:
                ends = (
                    (low, high)
                    if np.isfinite(low)
                    else (terms[0].centre - 3 * terms[0].width, terms[-1].centre + 3 * terms[-1].width)
                )
                grid = np.linspace(*ends, 401)
            block = np.stack([t(grid) for t in terms], 1)
            part = np.zeros((len(grid) - 1, len(base.antecedents)))
            part[:, start[i] : start[i + 1]] = sign * np.diff(block, axis=0)
            rows.append(part)
        S = np.concatenate(rows)[:, columns]
        return S[np.abs(S).max(1) > 1e-12]


def _streams(self: Any) -> bool:
    """Whether the fit depends on moments only, so that rows may come in parts."""
    if (
        self.structure != "term"
        or self.select_features
        or self.n_interactions
        or self.fine_tune
        or self.alpha_selection == "loo"
    ):
        raise AttributeError(
            "partial_fit needs structure='term' without select_features, n_interactions, fine_tune and 'loo'"
        )
    if self.calibration_fraction:
        raise AttributeError("partial_fit needs calibration_fraction=0")
    if self._classifier and (self.loss != "squared" or self.monotone):
        raise AttributeError("partial_fit of classes needs loss='squared' and no monotone")
    return True


class KANFISRegressor(RegressorMixin, _KANFIS):
    """Additive fuzzy regression.

    Args:
        structure: ``term`` (one rule a linguistic term, closed form) or ``paper`` (masked rules with memberships of
            their own).
        fuzzy_type: ``t1``, ``it2`` (widths between (1 - spread) and (1 + spread) sigma) or ``it2-mean``
            (centres between c - spread sigma and c + spread sigma).
        n_memberships: terms a feature: a number, a dict {feature: number}, or ``auto`` (3, 5 or 7 by GCV).
        n_rules, n_layers, mask: of the paper's structure.
        membership: ``gaussian``, ``triangle``, ``bell``, ``sigmoid`` or ``trapezoid``.
        fit_mode: ``hybrid`` (closed form; for the paper's structure quantile start, ridge head, Adam) or ``paper``.
        type_reduction: ``nie_tan``, or ``km`` for the paper's structure with normalised firings.
        alphas: ridge penalties to choose from; None for 25 from 1e-3 to 1e3.
        alpha_selection: ``gcv`` or ``loo`` (exact leave-one-out).
        smooth: weight of squared second differences of a feature's coefficients.
        monotone: {feature: +1 or -1}; the shape function rises or falls over the training range.
        missing: ``error``, or ``term`` for a term "is missing" of its own.
        n_interactions: pair rules to add, the pairs that explain most of the residual.
        tnorm: ``product`` or ``min``, of pair rules.
        select_features: drop features by a group lasso at the one-standard-error rule.
        fine_tune: tune centres and widths by AdamW, coefficients solved again every epoch (torch).
        lambda_entropy, lambda_distinct, learning_rate, weight_decay, batch_size, max_epochs, patience, min_delta,
            validation_fraction: of gradient training.
        calibration_fraction: share of the rows kept for conformal intervals (0.25 is usual).
        spread: of Type-2 widths or centres.
        extrapolation: ``clip`` inputs to the training range, or ``none``.
        term_labels: {feature: words}.
        device: of gradient training.
        random_state: of folds, splits and starts.
        verbose: warn of clipped rows; print epochs.

    Attributes:
        rulebase_: the rules; partition_, coef_, intercept_ are parts of it.
        alpha_: penalty chosen.
        feature_importances_: standard deviation of every shape function over the training data.
        network_: the paper's network, where there is one.
        history_: losses of gradient training.
        converged_: False where training stopped at ``max_epochs`` or at a loss that was not finite.
    """

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags

    def _empty(self, partition: Partition, antecedents: Any, outputs: int) -> RuleBase:
        names = getattr(self, "output_names_", ("y",))
        return RuleBase(
            "regression", tuple(self._names()), partition, antecedents, np.zeros((len(antecedents), outputs)),
            np.zeros(outputs), tuple(names), tnorm=self.tnorm,
        )  # fmt: skip

    def _solve(self, base: RuleBase, X: np.ndarray, Y: np.ndarray, weight: np.ndarray, columns: np.ndarray) -> Fit:
        return self._least_squares(base, X, Y, weight, columns)

    def _residual(self, base: RuleBase, X: np.ndarray, Y: np.ndarray) -> np.ndarray:
        return Y - base.scores(X)

    def _targets(
        self, X: Any, y: Any, sample_weight: Any, reset: bool
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray | None]:
        if y is None:
            raise ValueError("This estimator requires y to be passed, but the target y is None.")
        if reset:
            name = getattr(y, "name", None)
            columns = list(y.columns) if _is_frame(y) else None
            rows, target = self._validated(X, y)
            outputs = 1 if target.ndim == 1 else target.shape[1]
            default = [str(name) if name is not None else "y"] if outputs == 1 else [f"y{o}" for o in range(outputs)]
            self.output_names_ = tuple(
                map(str, columns if columns is not None and len(columns) == outputs else default)
            )
            self.flat_output_ = target.ndim == 1
        else:
            rows, target = self._validated(X, reset=False), np.asarray(y, dtype=float)
        weight = _check_sample_weight(sample_weight, rows, dtype=np.float64, ensure_non_negative=True)
        return rows, np.asarray(target, dtype=float).reshape(len(rows), -1), weight, None

    def fit(self, X: Any, y: Any, sample_weight: Any = None, X_val: Any = None, y_val: Any = None) -> Self:
        """Fit on rows X (n, D) and targets y (n,) or (n, O); a validation set serves gradient training."""
        self._check_parameters()
        self.exact_rules_ = True
        rows, target, weight, _ = self._targets(X, y, sample_weight, reset=True)
        if not (weight > 0).any():
            raise ValueError("expected at least one weight above 0")
        validation = None
        if X_val is not None:
            validation = (
                self._validated(X_val, reset=False),
                np.asarray(y_val, dtype=float).reshape(-1, target.shape[1]),
            )
        self._fit_rows(rows, target, weight, None, validation)
        return self

    @available_if(_streams)
    def partial_fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Go on with more rows, exactly as if all had come at once, on the partition of the first ones (structure
        ``term``)."""
        self._check_parameters()
        if not hasattr(self, "moments_"):
            return self.fit(X, y, sample_weight)
        return self._add_rows(*self._targets(X, y, sample_weight, reset=False)[:3])

    def predict(self, X: Any) -> np.ndarray:
        """Predictions, (n,) or (n, O)."""
        found = self._scores(self._checked(X))
        return found[:, 0] if getattr(self, "flat_output_", found.shape[1] == 1) else found

    # --- intervals ---

    def _half_width(self, X: np.ndarray) -> np.ndarray:
        low, high = self.rulebase_.hull(X)
        return (high - low) / 2

    def _calibrate(self, X: np.ndarray, Y: np.ndarray, codes: np.ndarray | None) -> None:
        self.residuals_ = np.abs(Y - self._scores(X))
        half = self._half_width(X)
        self.half_floor_ = np.maximum(half.mean(0), 0.0)
        self.scaled_residuals_ = self.residuals_ / np.where(self.half_floor_ > 0, half + self.half_floor_, 1.0)

    def calibrate(self, X: Any, y: Any) -> Self:
        """Take conformal scores from rows that were not used in fitting."""
        rows = self._checked(X)
        self._calibrate(rows, np.asarray(y, dtype=float).reshape(len(rows), -1), None)
        return self

    def predict_interval(self, X: Any, alpha: float = 0.1, method: str = "conformal") -> tuple[np.ndarray, np.ndarray]:
        """Lower and upper ends, (n,) or (n, O) each.

        Args:
            X: rows.
            alpha: share of values that may lie outside.
            method: ``conformal`` (constant width; covers at least 1 - alpha of exchangeable rows),
                ``conformal_it2`` (width
                follows the footprint of uncertainty; the same guarantee) or ``hull`` (range of the Type-2 model:
                ambiguity, no coverage).

        Raises:
            ValueError: if no calibration rows were kept, or too few for alpha.
        """
        if not 0 < alpha < 1:
            raise ValueError(f"expected alpha between 0 and 1, got {alpha}")
        if method not in ("conformal", "conformal_it2", "hull"):
            raise ValueError(f"expected a method of conformal, conformal_it2 or hull, got {method!r}")
        rows = self._checked(X)
        if method == "hull":
            self._need_exact("hull")
            low, high = self.rulebase_.hull(rows)
        else:
            if not hasattr(self, "residuals_"):
                raise ValueError(
                    "conformal intervals need calibration rows: set calibration_fraction=0.25 or call calibrate(X, y)"
                )
            centre = self._scores(rows)
            if method == "conformal":
                width = np.tile(conformal_quantile(self.residuals_, alpha), (len(rows), 1))
            else:
                factor = np.where(self.half_floor_ > 0, self._half_width(rows) + self.half_floor_, 1.0)
                width = factor * conformal_quantile(self.scaled_residuals_, alpha)
            low, high = centre - width, centre + width
        flat = getattr(self, "flat_output_", low.shape[1] == 1)
        return (low[:, 0], high[:, 0]) if flat else (low, high)


def conformal_quantile(scores: np.ndarray, alpha: float) -> np.ndarray:
    """The ceil((n+1)(1-alpha))-th smallest score of every column.

    Raises:
        ValueError: where n is too small for alpha.
    """
    n = len(scores)
    rank = math.ceil((n + 1) * (1 - alpha) - 1e-12)
    if rank > n:
        raise ValueError(f"alpha {alpha} needs at least {math.ceil(1 / alpha) - 1} calibration rows, got {n}")
    return np.sort(scores, axis=0)[rank - 1]


class KANFISClassifier(ClassifierMixin, _KANFIS):
    """Additive fuzzy classification: penalised multinomial logistic regression on memberships.

    Args and attributes as in ``KANFISRegressor``, and

    Args:
        loss: ``log`` (softmax probabilities) or ``squared`` (one-hot ridge; one linear solve).
    """

    _classifier = True

    def __init__(
        self,
        *,
        structure: str = "term",
        fuzzy_type: str = "t1",
        n_memberships: Any = 3,
        n_rules: int = 8,
        n_layers: int = 1,
        membership: str = "gaussian",
        fit_mode: str = "hybrid",
        type_reduction: str = "nie_tan",
        alphas: Any = None,
        alpha_selection: str = "gcv",
        smooth: float = 0.0,
        monotone: Any = None,
        missing: str = "error",
        n_interactions: int = 0,
        tnorm: str = "product",
        select_features: bool = False,
        fine_tune: bool = False,
        mask: str = "linear",
        lambda_entropy: float = 0.0,
        lambda_distinct: float = 0.0,
        learning_rate: float | None = None,
        weight_decay: float = 1e-2,
        batch_size: int = 32,
        max_epochs: int = 100,
        patience: int = 20,
        min_delta: float = 1e-4,
        validation_fraction: float = 0.2,
        calibration_fraction: float = 0.0,
        spread: float = 0.15,
        extrapolation: str = "clip",
        term_labels: Any = None,
        device: str = "cpu",
        random_state: Any = None,
        verbose: int = 0,
        loss: str = "log",
    ) -> None:
        super().__init__(
            structure=structure,
            fuzzy_type=fuzzy_type,
            n_memberships=n_memberships,
            n_rules=n_rules,
            n_layers=n_layers,
            membership=membership,
            fit_mode=fit_mode,
            type_reduction=type_reduction,
            alphas=alphas,
            alpha_selection=alpha_selection,
            smooth=smooth,
            monotone=monotone,
            missing=missing,
            n_interactions=n_interactions,
            tnorm=tnorm,
            select_features=select_features,
            fine_tune=fine_tune,
            mask=mask,
            lambda_entropy=lambda_entropy,
            lambda_distinct=lambda_distinct,
            learning_rate=learning_rate,
            weight_decay=weight_decay,
            batch_size=batch_size,
            max_epochs=max_epochs,
            patience=patience,
            min_delta=min_delta,
            validation_fraction=validation_fraction,
            calibration_fraction=calibration_fraction,
            spread=spread,
            extrapolation=extrapolation,
            term_labels=term_labels,
            device=device,
            random_state=random_state,
            verbose=verbose,
        )
        self.loss = loss

    def _check_parameters(self) -> None:
        super()._check_parameters()
        if self.loss not in ("log", "squared"):
            raise ValueError(f"expected a loss of log or squared, got {self.loss!r}")
        if self.monotone and self.loss == "log":
            raise ValueError("monotone needs loss='squared' (a constrained least squares problem)")
        if self.monotone and len(self.classes_) > 2:
            raise ValueError(f"monotone needs two classes, got {len(self.classes_)}")
        if self.alpha_selection == "loo" and self.loss == "log":
            raise ValueError("alpha_selection='loo' needs loss='squared'; the logistic fit uses a generalised deviance")

    def _empty(self, partition: Partition, antecedents: Any, outputs: int) -> RuleBase:
        link = "softmax" if self.loss == "log" or self.structure == "paper" else "argmax"
        return RuleBase(
            "classification", tuple(self._names()), partition, antecedents, np.zeros((len(antecedents), outputs)),
            np.zeros(outputs), tuple(f"{c}" for c in self.classes_), tuple(self.classes_.tolist()), link, self.tnorm,
        )  # fmt: skip

    def _solve(self, base: RuleBase, X: np.ndarray, Y: np.ndarray, weight: np.ndarray, columns: np.ndarray) -> Fit:
        if self.loss == "squared":
            if self.monotone:  # the second class rises, the first falls: one problem, mirrored
                fit = self._least_squares(base, X, Y[:, 1:], weight, columns)
                coef = np.concatenate([-fit.coef, fit.coef], 1)
                return fit._replace(coef=coef, intercept=np.array([1 - fit.intercept[0], fit.intercept[0]]))
            return self._least_squares(base, X, Y, weight, columns)
        return logistic(base.basis(X), Y, weight, columns, self._alphas(LOG_ALPHAS), self._penalty(base, columns))

    def _residual(self, base: RuleBase, X: np.ndarray, Y: np.ndarray) -> np.ndarray:
        scores = base.scores(X)
        return Y - (softmax(scores, axis=1) if base.link == "softmax" else scores)

    def _targets(
        self, X: Any, y: Any, sample_weight: Any, reset: bool
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray | None]:
        if y is None:
            raise ValueError("This estimator requires y to be passed, but the target y is None.")
        if reset:
            rows, target = self._validated(X, y)
            if target.ndim == 2 and target.shape[1] == 1:
                from sklearn.utils.validation import column_or_1d

                target = column_or_1d(target, warn=True)
            if target.ndim != 1:
                raise ValueError(f"expected one column of classes, got y of shape {target.shape}")
            check_classification_targets(target)
            self.classes_, codes = np.unique(target, return_inverse=True)
            if len(self.classes_) < 2:
                raise ValueError(f"Classifier can't train when only one class is present: {self.classes_[0]!r}")
        else:
            rows, target = self._validated(X, reset=False), np.asarray(y).reshape(-1)
            unknown = np.setdiff1d(target, self.classes_)
            if len(unknown):
                raise ValueError(f"expected classes {', '.join(map(str, self.classes_))}, got {unknown[0]!r}")
            codes = np.searchsorted(self.classes_, target)
        weight = _check_sample_weight(sample_weight, rows, dtype=np.float64, ensure_non_negative=True)
        return rows, np.eye(len(self.classes_))[codes], weight, codes

    def fit(self, X: Any, y: Any, sample_weight: Any = None, X_val: Any = None, y_val: Any = None) -> Self:
        """Fit on rows X (n, D) and classes y (n,); a validation set serves gradient training."""
        self.exact_rules_ = True
        rows, onehot, weight, codes = self._targets(X, y, sample_weight, reset=True)
        self._check_parameters()
        assert codes is not None
        if len(np.unique(codes[weight > 0])) < 2:
            raise ValueError("Classifier can't train when only one class is present after removing rows of weight 0")
        validation = None
        if X_val is not None:
            codes_val = np.searchsorted(self.classes_, np.asarray(y_val))
            validation = (self._validated(X_val, reset=False), np.eye(len(self.classes_))[codes_val])
        self._fit_rows(rows, onehot, weight, codes, validation)
        return self

    @available_if(_streams)
    def partial_fit(self, X: Any, y: Any, classes: Any = None, sample_weight: Any = None) -> Self:
        """Go on with more rows, exactly as if all had come at once (``loss="squared"``, structure ``term``)."""
        if not hasattr(self, "moments_"):
            if classes is None:
                return self.fit(X, y, sample_weight)
            self._validated(X, reset=True)
            self.classes_ = np.unique(classes)
            self._check_parameters()
            self.exact_rules_ = True
            rows, onehot, weight, codes = self._targets(X, y, sample_weight, reset=False)
            self._fit_rows(rows, onehot, weight, codes, None)
            return self
        return self._add_rows(*self._targets(X, y, sample_weight, reset=False)[:3])

    def decision_function(self, X: Any) -> np.ndarray:
        """Scores: log-odds of the second class for two classes, (n,); else (n, C)."""
        scores = self._scores(self._checked(X))
        return scores[:, 1] - scores[:, 0] if scores.shape[1] == 2 else scores

    def predict_proba(self, X: Any) -> np.ndarray:
        """Probabilities, (n, C). With ``loss="squared"`` scores clipped to [0, 1] and divided by their sum."""
        return self._proba(self._checked(X))

    def _proba(self, X: np.ndarray) -> np.ndarray:
        scores = self._scores(X)
        if self.rulebase_.link == "softmax":
            return softmax(scores, axis=1)
        clipped = np.clip(scores, 1e-12, 1.0)
        return clipped / clipped.sum(1, keepdims=True)

    def predict(self, X: Any) -> np.ndarray:
        """Classes, (n,)."""
        scores = self._scores(self._checked(X))
        return self.classes_[scores.argmax(1)]

    # --- sets ---

    def _calibrate(self, X: np.ndarray, Y: np.ndarray, codes: np.ndarray | None) -> None:
        p = self._proba(X)
        assert codes is not None
        self.scores_ = {"lac": 1 - p[np.arange(len(p)), codes], "aps": _aps(p)[np.arange(len(p)), codes]}

    def calibrate(self, X: Any, y: Any) -> Self:
        """Take conformal scores from rows that were not used in fitting."""
        rows = self._checked(X)
        self._calibrate(rows, np.zeros((0, 0)), np.searchsorted(self.classes_, np.asarray(y)))
        return self

    def predict_set(self, X: Any, alpha: float = 0.1, method: str = "lac") -> np.ndarray:
        """Conformal sets, booleans (n, C): they hold the class of at least 1 - alpha of exchangeable rows.

        Args:
            X: rows.
            alpha: share of rows whose set may miss.
            method: ``lac`` (smallest sets) or ``aps`` (more even over hard and easy rows; never empty).
        """
        if method not in ("lac", "aps"):
            raise ValueError(f"expected a method of lac or aps, got {method!r}")
        if not 0 < alpha < 1:
            raise ValueError(f"expected alpha between 0 and 1, got {alpha}")
        rows = self._checked(X)
        if not hasattr(self, "scores_"):
            raise ValueError(
                "conformal sets need calibration rows: set calibration_fraction=0.25 or call calibrate(X, y)"
            )
        limit = float(conformal_quantile(self.scores_[method][:, None], alpha)[0])
        p = self._proba(rows)
        return (1 - p <= limit + 1e-12) if method == "lac" else (_aps(p) <= limit + 1e-12)

    def predict_proba_interval(self, X: Any) -> tuple[np.ndarray, np.ndarray]:
        """Bounds of the probabilities over the Type-2 model's hull of logits, (n, C) each: ambiguity, no coverage."""
        rows = self._checked(X)
        self._need_exact("predict_proba_interval")
        if self.rulebase_.link != "softmax":
            raise ValueError("probability intervals need loss='log'")
        low, high = self.rulebase_.hull(rows)
        lower, upper = np.empty_like(low), np.empty_like(high)
        for c in range(low.shape[1]):
            worst, best = high.copy(), low.copy()
            worst[:, c], best[:, c] = low[:, c], high[:, c]
            lower[:, c], upper[:, c] = softmax(worst, axis=1)[:, c], softmax(best, axis=1)[:, c]
        return lower, upper


def _aps(p: np.ndarray) -> np.ndarray:
    """Probability of the classes that are likelier, and of the class itself."""
    order = np.argsort(-p, axis=1, kind="stable")
    total = np.cumsum(np.take_along_axis(p, order, 1), axis=1)
    out = np.empty_like(p)
    np.put_along_axis(out, order, total, 1)
    return out
