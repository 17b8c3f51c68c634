"""Estimators in scikit-learn's manner: thin skins over :mod:`ridge_sd.core`.

``alpha`` is scikit-learn's penalty, ``||y - X b||^2 + alpha ||b||^2``: n (or the sum of weights) times the lambda of
the paper and of :mod:`ridge_sd.theory`.
"""

from __future__ import annotations

import math
import warnings
from numbers import Integral, Real
from typing import Any, ClassVar

import numpy as np
from scipy import sparse
from sklearn.base import BaseEstimator, ClassifierMixin, MultiOutputMixin, RegressorMixin
from sklearn.linear_model import LogisticRegression
from sklearn.metrics.pairwise import pairwise_kernels
from sklearn.preprocessing import LabelBinarizer
from sklearn.utils import check_X_y, compute_sample_weight
from sklearn.utils._param_validation import Interval, StrOptions
from sklearn.utils.extmath import safe_sparse_dot
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, validate_data

from ridge_sd.core import (
    MAX_ROUNDS,
    PrimalMap,
    Rounds,
    SDPath,
    Spectrum,
    _effective,
    check_bounds,
    decompose,
    estimate_sigma2,
    finish_spectrum,
    fit_rounds,
    kept_pairs,
    optimal_xi,
    sd_path,
    student_coef,
    student_risk,
    teacher_coef,
    xi_standard_error,
)
from ridge_sd.sparse_cg import cg_fit

DEFAULT_GRID = np.logspace(-3, math.log10(50), 100)  # of lambda, as in the paper's scripts
MAX_DENSE = 4000  # sparse designs with a smaller side up to this go through a dense Gram matrix

_COMMON: dict[str, Any] = {
    "criterion": [StrOptions({"loo", "gcv", "cp", "holdout"})],
    "xi_mode": [StrOptions({"shared", "per_target"})],
    "n_rounds": [Interval(Integral, 1, MAX_ROUNDS, closed="both")],
    "xi_bounds": [tuple, list, None],
    "sample_weight_type": [StrOptions({"frequency", "importance"})],
    "sigma2": [Interval(Real, 0, None, closed="left"), "array-like", None],
    "random_state": ["random_state"],
}
_LINEAR: dict[str, Any] = {
    "fit_intercept": ["boolean"],
    "solver": [StrOptions({"auto", "eigh", "svd", "cg"})],
    "copy_X": ["boolean"],
}
_ONE: dict[str, Any] = {
    "alpha": [Interval(Real, 0, None, closed="left")],
    "xi": [Interval(Real, None, None, closed="neither"), StrOptions({"auto"})],
}
_GRID: dict[str, Any] = {
    "alphas": ["array-like", None],
    "select": [StrOptions({"joint", "teacher"})],
    "guard_se": [Interval(Real, 0, None, closed="left")],
}


def _checked_weights(sample_weight: Any, X: Any) -> np.ndarray | None:
    if sample_weight is None:
        return None
    w = _check_sample_weight(sample_weight, X, dtype=np.float64, ensure_non_negative=True)
    if not w.any():
        raise ValueError("all sample weights are zero, expected a positive one")
    return w


def _full_rank_for_zero(X: Any, fit_intercept: bool) -> bool:
    n, p = X.shape
    if p > n - int(fit_intercept):
        return False
    dense = X.toarray() if sparse.issparse(X) else np.asarray(X, dtype=float)
    return bool(np.linalg.matrix_rank(dense - fit_intercept * dense.mean(0)) == p)


class _SelfDistilled(BaseEstimator):
    """What all estimators share: from a spectrum to the fitted mixture."""

    n_rounds: Any
    criterion: Any
    xi_mode: Any
    xi_bounds: Any
    sample_weight_type: Any
    sigma2: Any
    random_state: Any
    xi: Any
    select: Any
    guard_se: Any

    def _check_options(self) -> None:
        check_bounds(self.xi_bounds)
        if self.n_rounds > 1 and self.criterion == "holdout":
            raise ValueError("n_rounds > 1 needs criterion 'loo', 'gcv' or 'cp', got 'holdout'")
        if self.n_rounds > 1 and getattr(self, "xi", "auto") != "auto":
            raise ValueError(f"n_rounds > 1 needs xi='auto', got {self.xi!r}")

    def _path(self, spectrum: Spectrum, alphas: np.ndarray, extra: dict[str, Any], xi: float | None) -> SDPath:
        return sd_path(
            spectrum,
            alphas,
            criterion=self.criterion,
            xi_mode=self.xi_mode,
            xi_bounds=self.xi_bounds,
            xi=xi,
            sigma2=self.sigma2 if self.criterion == "cp" else None,
            **extra,
        )

    def _bounded_rounds(self, path: SDPath, alpha: float, noise: np.ndarray | None) -> Rounds | None:
        """The best combination of as many rounds, at least two, as keep all xi within the bounds, or None."""
        low, high = (-math.inf, math.inf) if self.xi_bounds is None else self.xi_bounds
        for K in range(self.n_rounds, 1, -1):
            found = fit_rounds(
                path.spectrum,
                alpha,
                path.criterion,
                K,
                xi_mode=self.xi_mode,
                eval_weight=path.eval_weight,
                sigma2=noise,
            )
            if self.xi_bounds is None or bool(((found.xi >= low) & (found.xi <= high)).all()):
                return found
        return None

    def _mixture(self, path: SDPath, index: int, xi: np.ndarray) -> np.ndarray:
        """Coefficients of v_1..v_K, (K, q); sets what is learned about the mixture."""
        spectrum, alpha = path.spectrum, float(path.alpha[index])
        shared = path.R.ndim == 1
        rounds = None
        if self.n_rounds > 1 and xi.any():
            noise = None
            if path.criterion == "cp":
                q = spectrum.target.shape[1]
                noise = (
                    estimate_sigma2(spectrum, path.alpha) if self.sigma2 is None else np.broadcast_to(self.sigma2, (q,))
                )
            rounds = self._bounded_rounds(path, alpha, noise)
        if rounds is not None:
            self.mix_weights_, self.xi_ = _of_targets(rounds.weights, shared), _of_targets(rounds.xi, shared)
            self.xi_se_, risk = math.nan, rounds.risk.sum() if shared else rounds.risk
            mix = rounds.mix
            if hasattr(self, "best_score_"):
                self.best_score_ = -float(np.sum(risk))
        else:
            mix = -xi[None]
            self.xi_ = float(xi[0]) if shared else xi
            self.mix_weights_ = _of_targets(np.stack([1 - xi, xi]), shared)
            risk = path.R_sd[index] if xi.any() else path.R[index]
            spread = np.full(xi.shape, np.nan)
            if path.criterion in ("loo", "gcv"):
                spread = xi_standard_error(spectrum, alpha, path.criterion, xi, shared)
            self.xi_se_ = float(spread[0]) if shared else spread
        names = ("R", "R_pd", "C", "D")
        self.risk_ = {name: getattr(path, name)[index] for name in names} | {"R_sd": risk}
        self.dof_ = float(path.df[index])
        return mix


def _of_targets(values: np.ndarray, shared: bool) -> np.ndarray:
    """(K, q) as (K,) where all targets share one mixture."""
    return values[:, 0] if shared else values


def _without_zero_rows(X: Any, weights: np.ndarray | None, values: Any) -> Any:
    return values if weights is None or values is None else values[weights > 0]


class _LinearSD(_SelfDistilled):
    """Fits a linear self-distilled model to (n, q) targets."""

    fit_intercept: Any
    solver: Any
    coef_: Any
    intercept_: Any

    def _fit_linear(
        self, X: Any, y: np.ndarray, weights: np.ndarray | None, alphas: np.ndarray | None, extra: dict[str, Any]
    ) -> None:
        self._check_options()
        many, Y = y.ndim == 2, y.reshape(len(y), -1)
        dtype = X.dtype
        total = len(y) if weights is None else float(weights.sum())
        grid = total * DEFAULT_GRID if alphas is None else alphas
        alpha_min = float(grid.min())
        if alpha_min == 0:
            kept = X if weights is None else X[weights > 0]
            if not _full_rank_for_zero(kept, self.fit_intercept):
                raise ValueError("alpha=0 is singular for this design: give alpha > 0")
        if "eval_weight" in extra:
            extra = {**extra, "eval_weight": _without_zero_rows(X, weights, extra["eval_weight"])}
        self.n_features_in_ = X.shape[1]
        too_large = sparse.issparse(X) and min(X.shape) > MAX_DENSE
        if self.solver == "cg" or (self.solver == "auto" and too_large):
            self._fit_by_cg(X, Y, weights, grid, many, dtype)
            return
        solver = "eigh" if self.solver == "auto" and sparse.issparse(X) else self.solver
        spectrum = decompose(
            X,
            Y,
            sample_weight=weights,
            fit_intercept=self.fit_intercept,
            solver=solver,
            sample_weight_type=self.sample_weight_type,
            alpha_min=alpha_min if alpha_min > 0 else np.inf,
        )
        if alpha_min == 0:
            # Least squares is its own student: every xi gives the same fit.
            grid = np.maximum(grid, 1e-12 * float(spectrum.s2[0])) if spectrum.s2.size else np.maximum(grid, 1.0)
        path = self._path(spectrum, grid, extra, self._fixed_xi(alpha_min))
        index, xi = self._choose(path, alphas)
        mix = self._mixture(path, index, xi)
        alpha = float(path.alpha[index]) if alpha_min > 0 else 0.0
        teacher = teacher_coef(spectrum, alpha)
        self._set_linear(teacher, student_coef(spectrum, alpha, mix), spectrum.x_mean, spectrum.y_mean, many, dtype)

    def _fixed_xi(self, alpha_min: float) -> float | None:
        if alpha_min == 0:
            return 0.0
        xi = getattr(self, "xi", "auto")
        return None if xi == "auto" else float(xi)

    def _choose(self, path: SDPath, alphas: np.ndarray | None) -> tuple[int, np.ndarray]:
        q = path.spectrum.target.shape[1]
        return 0, np.broadcast_to(path.xi[0], (q,)).astype(float)

    def _fit_by_cg(
        self, X: Any, Y: np.ndarray, weights: np.ndarray | None, grid: np.ndarray, many: bool, dtype: Any
    ) -> None:
        if self.n_rounds > 1 or self.criterion not in ("loo", "gcv"):
            raise ValueError("solver='cg' estimates risks by generalised cross-validation of one round only")
        if grid.min() == 0:
            raise ValueError("solver='cg' needs alpha > 0")
        if self.criterion == "loo":
            warnings.warn("solver='cg' has no exact leave-one-out: using generalised cross-validation", stacklevel=4)
        fits = [cg_fit(X, Y, float(a), weights, self.fit_intercept, self.random_state) for a in grid]
        R, gap, D = (np.stack([getattr(f, name) for f in fits]) for name in ("R", "gap", "D"))
        if self.xi_mode == "shared":
            R, gap, D = (np.broadcast_to(x.sum(1, keepdims=True), x.shape) for x in (R, gap, D))
        fixed = getattr(self, "xi", "auto")
        xi = optimal_xi(gap, D, self.xi_bounds) if fixed == "auto" else np.full(R.shape, float(fixed))
        risks = student_risk(R, gap, D, xi)
        index = int(np.argmin(risks.sum(1) if getattr(self, "select", "joint") == "joint" else R.sum(1)))
        best, shared = fits[index], self.xi_mode == "shared"
        self.xi_ = float(xi[index, 0]) if shared else xi[index]
        self.xi_se_, self.mix_weights_ = math.nan, _of_targets(np.stack([1 - xi[index], xi[index]]), shared)
        pick = (lambda x: float(x[index, 0])) if shared else (lambda x: x[index])
        self.risk_ = {
            "R": pick(R),
            "R_pd": pick(R - 2 * gap + D),
            "C": pick(R - gap),
            "D": pick(D),
            "R_sd": pick(risks),
        }
        self.dof_ = best.df
        if hasattr(self, "select"):
            self.alpha_, self.best_score_, self.path_, self.guard_triggered_ = (
                float(grid[index]),
                -self.risk_["R_sd"],
                None,
                False,
            )
        self._set_linear(best.coef, best.coef + xi[index] * best.direction, best.x_mean, best.y_mean, many, dtype)

    def _set_linear(
        self, teacher: np.ndarray, student: np.ndarray, x_mean: np.ndarray, y_mean: np.ndarray, many: bool, dtype: Any
    ) -> None:
        dtype = np.dtype(dtype if dtype in (np.float32, np.float64) else np.float64)
        for name, coef in (("", student), ("teacher_", teacher)):
            offset = (y_mean - x_mean @ coef).astype(dtype) if self.fit_intercept else np.zeros(coef.shape[1], dtype)
            setattr(self, f"{name}coef_", (coef.T if many else coef[:, 0]).astype(dtype))
            setattr(
                self,
                f"{name}intercept_",
                offset if many and self.fit_intercept else dtype.type(offset[0]) if not many else 0.0,
            )

    def _linear(self, X: Any) -> np.ndarray:
        check_is_fitted(self)
        X = validate_data(self, X, accept_sparse=["csr", "csc"], dtype=[np.float64, np.float32], reset=False)
        return safe_sparse_dot(X, self.coef_.T, dense_output=True) + self.intercept_


def _split_options(criterion: str, X: Any, eval_weight: Any, X_val: Any, y_val: Any) -> dict[str, Any]:
    extra: dict[str, Any] = {}
    if eval_weight is not None:
        if criterion != "loo":
            raise ValueError(f"eval_weight needs criterion='loo', got {criterion!r}")
        extra["eval_weight"] = _check_sample_weight(eval_weight, X, dtype=np.float64, ensure_non_negative=True)
    if (X_val is None) != (y_val is None) or (X_val is not None) != (criterion == "holdout"):
        raise ValueError(f"X_val and y_val go together and with criterion='holdout', got criterion={criterion!r}")
    if X_val is not None:
        V, t = check_X_y(
            X_val, y_val, accept_sparse=["csr", "csc"], dtype=np.float64, multi_output=True, y_numeric=True
        )
        if V.shape[1] != X.shape[1]:
            raise ValueError(f"X_val must have the {X.shape[1]} features of X, got {V.shape[1]}")
        extra["validation"] = (V, np.asarray(t, dtype=float))
    return extra


def _checked_grid(alphas: Any) -> np.ndarray | None:
    if alphas is None:
        return None
    grid = np.asarray(alphas, dtype=float)
    if grid.ndim != 1 or grid.size == 0 or not np.isfinite(grid).all() or (grid <= 0).any():
        raise ValueError(f"alphas must be a non-empty list of positive numbers, got {alphas!r}")
    return grid


class _GridChoice:
    """Choosing along the path, for the estimators with a grid."""

    select: Any
    guard_se: Any

    def _choose(self, path: SDPath, alphas: np.ndarray | None) -> tuple[int, np.ndarray]:
        chosen = path.best(self.select, self.guard_se)
        self.path_, self.alpha_, self.guard_triggered_ = path, float(path.alpha[chosen.index]), chosen.guarded
        best = path.R if chosen.guarded or not chosen.xi.any() else path.R_sd
        self.best_score_ = -float(np.sum(best[chosen.index]))
        return chosen.index, chosen.xi


class RidgeSD(MultiOutputMixin, RegressorMixin, _LinearSD):
    r"""Ridge at one penalty, mixed with its own distilled student at the best weight.

    Fits ridge, refits it to a mixture (1 - xi) y + xi y_hat of labels and its own predictions, and finds the real xi
    that minimises an estimate of the risk, all from one decomposition.

    Args:
        alpha: penalty on the scale of ``||y - X b||^2 + alpha ||b||^2`` (n times the paper's lambda). 0 only for a
            design of full column rank.
        xi: mixing weight, or ``"auto"``.
        n_rounds: rounds of distillation, 1 to 5; fewer are used where ``xi_bounds`` would be left.
        criterion: ``"loo"``, ``"gcv"``, ``"cp"`` or ``"holdout"``, see :func:`ridge_sd.core.sd_path`.
        xi_mode: one xi for all targets or ``"per_target"``.
        xi_bounds: (low, high) for xi, or None; (0, 1) is the constrained student of earlier work.
        fit_intercept: fit an intercept, not penalised.
        solver: ``"auto"``, ``"eigh"``, ``"svd"`` or ``"cg"`` (large sparse designs).
        sample_weight_type: what weights mean: ``"frequency"`` (copies) or ``"importance"``.
        sigma2: noise variance for ``"cp"``.
        copy_X: accepted as in ``Ridge``; X is never changed.
        random_state: of the probes of ``solver="cg"``.

    Attributes:
        coef_: (p,) or (q, p).
        intercept_: number or (q,).
        xi_: chosen weight, (K,) weights for K rounds, one more axis of targets with ``"per_target"``.
        xi_se_: heuristic standard error.
        mix_weights_: weights of the students M^j beta, j = 0..K.
        teacher_coef_: plain ridge.
        teacher_intercept_: its intercept.
        dof_: degrees of freedom of the teacher.
        risk_: estimated R, R_pd, C, D and R_sd (sums over targets when xi is shared).
        n_features_in_: p.
    """

    _parameter_constraints: ClassVar[dict[str, Any]] = {**_ONE, **_COMMON, **_LINEAR}

    def __init__(
        self,
        alpha=1.0,
        *,
        xi="auto",
        n_rounds=1,
        criterion="loo",
        xi_mode="shared",
        xi_bounds=None,
        fit_intercept=True,
        solver="auto",
        sample_weight_type="frequency",
        sigma2=None,
        copy_X=True,
        random_state=None,
    ):
        self.alpha = alpha
        self.xi = xi
        self.n_rounds = n_rounds
        self.criterion = criterion
        self.xi_mode = xi_mode
        self.xi_bounds = xi_bounds
        self.fit_intercept = fit_intercept
        self.solver = solver
        self.sample_weight_type = sample_weight_type
        self.sigma2 = sigma2
        self.copy_X = copy_X
        self.random_state = random_state

    def fit(self, X, y, sample_weight=None, eval_weight=None, X_val=None, y_val=None):
        """Fit.

        Args:
            X: (n, p), dense or sparse; n >= 2.
            y: (n,) or (n, q).
            sample_weight: (n,).
            eval_weight: density ratio of a target law at the rows, (n,), for ``criterion="loo"``.
            X_val: validation rows for ``criterion="holdout"``.
            y_val: their targets.
        """
        self._validate_params()
        if not math.isfinite(self.alpha):
            raise ValueError(f"alpha must be finite, got {self.alpha}")
        if self.xi != "auto" and not math.isfinite(float(self.xi)):
            raise ValueError(f"xi must be finite or 'auto', got {self.xi}")
        X, y = _validated(self, X, y)
        extra = _split_options(self.criterion, X, eval_weight, X_val, y_val)
        self._fit_linear(X, y, _checked_weights(sample_weight, X), np.array([float(self.alpha)]), extra)
        return self

    def predict(self, X):
        """Predictions, (n,) or (n, q)."""
        return self._linear(X)

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags


def _validated(estimator: BaseEstimator, X: Any, y: Any) -> tuple[Any, np.ndarray]:
    X, y = validate_data(
        estimator,
        X,
        y,
        accept_sparse=["csr", "csc"],
        dtype=[np.float64, np.float32],
        multi_output=True,
        y_numeric=True,
        ensure_min_samples=2,
    )
    return X, np.asarray(y, dtype=float)


class RidgeSDCV(_GridChoice, RidgeSD):
    """Ridge with penalty and mixing weight chosen together from one decomposition.

    Args:
        alphas: penalties to try; default n times 100 values from 1e-3 to 50.
        select: ``"joint"``: least estimated risk of the student; ``"teacher"``: the best ridge first, then xi.
        guard_se: fall back to the best plain ridge unless the student's gain exceeds this many standard errors; 0 is
            the paper's behaviour.
        xi_bounds: (-10, 10) by default; None is the paper's behaviour.
        n_rounds: as in :class:`RidgeSD`, at the chosen penalty.
        criterion: as in :class:`RidgeSD`.
        xi_mode: as in :class:`RidgeSD`.
        fit_intercept: as in :class:`RidgeSD`.
        solver: as in :class:`RidgeSD`.
        sample_weight_type: as in :class:`RidgeSD`.
        sigma2: as in :class:`RidgeSD`.
        copy_X: as in :class:`RidgeSD`.
        random_state: as in :class:`RidgeSD`.

    Attributes:
        alpha_: chosen penalty.
        path_: the whole :class:`ridge_sd.core.SDPath`, in the order of ``alphas``.
        guard_triggered_: whether the guard chose the plain ridge.
        best_score_: minus the estimated risk of the choice.
    """

    _parameter_constraints: ClassVar[dict[str, Any]] = {**_GRID, **_COMMON, **_LINEAR}

    def __init__(
        self,
        alphas=None,
        *,
        select="joint",
        guard_se=2.0,
        n_rounds=1,
        criterion="loo",
        xi_mode="shared",
        xi_bounds=(-10, 10),
        fit_intercept=True,
        solver="auto",
        sample_weight_type="frequency",
        sigma2=None,
        copy_X=True,
        random_state=None,
    ):
        self.alphas = alphas
        self.select = select
        self.guard_se = guard_se
        self.n_rounds = n_rounds
        self.criterion = criterion
        self.xi_mode = xi_mode
        self.xi_bounds = xi_bounds
        self.fit_intercept = fit_intercept
        self.solver = solver
        self.sample_weight_type = sample_weight_type
        self.sigma2 = sigma2
        self.copy_X = copy_X
        self.random_state = random_state

    def fit(self, X, y, sample_weight=None, eval_weight=None, X_val=None, y_val=None):
        """Fit; see :meth:`RidgeSD.fit`."""
        self._validate_params()
        X, y = _validated(self, X, y)
        extra = _split_options(self.criterion, X, eval_weight, X_val, y_val)
        self._fit_linear(X, y, _checked_weights(sample_weight, X), _checked_grid(self.alphas), extra)
        return self


# --- classifiers -------------------------------------------------------------------------------------------------


class _ClassifierSD(ClassifierMixin, _LinearSD):
    """Least squares on indicator targets, as RidgeClassifier does."""

    class_weight: Any
    targets: Any

    def _fit_classes(self, X: Any, y: Any, sample_weight: Any, alphas: np.ndarray | None) -> None:
        X, y = validate_data(
            self, X, y, accept_sparse=["csr", "csc"], dtype=[np.float64, np.float32], ensure_min_samples=2
        )
        check_classification_targets(y)
        weights = _checked_weights(sample_weight, X)
        if self.class_weight is not None:
            balance = compute_sample_weight(self.class_weight, y)
            weights = balance if weights is None else weights * balance
        binarizer = LabelBinarizer(pos_label=1, neg_label=-1 if self.targets == "signs" else 0)
        Y = binarizer.fit_transform(y).astype(float)
        self.classes_ = binarizer.classes_
        if self.classes_.size < 2:
            raise ValueError(f"expected at least 2 classes, got 1 class: {self.classes_[0]!r}")
        self._fit_linear(X, Y[:, 0] if Y.shape[1] == 1 else Y, weights, alphas, {})

    def decision_function(self, X):
        """Scores, (n,) for two classes, else (n, classes)."""
        scores = self._linear(X)
        return scores - (0.5 if self.targets == "one_hot" and scores.ndim == 1 else 0.0)

    def predict(self, X):
        """Classes, (n,)."""
        scores = self.decision_function(X)
        return self.classes_[(scores > 0).astype(int) if scores.ndim == 1 else scores.argmax(1)]


_CLASSES: dict[str, Any] = {
    "criterion": [StrOptions({"loo", "gcv", "cp"})],
    "class_weight": [dict, StrOptions({"balanced"}), None],
    "targets": [StrOptions({"signs", "one_hot"})],
}


class RidgeSDClassifier(_ClassifierSD):
    """Self-distilled ridge on class indicators.

    Args:
        alpha: penalty.
        xi: mixing weight or ``"auto"``.
        targets: ``"signs"``: +1 and -1 as ``RidgeClassifier``; ``"one_hot"``: 1 and 0 as in the paper's scripts.
        class_weight: dict, ``"balanced"`` or None.
        n_rounds: as in :class:`RidgeSD`.
        criterion: ``"loo"``, ``"gcv"`` or ``"cp"``.
        xi_mode: as in :class:`RidgeSD`.
        xi_bounds: as in :class:`RidgeSD`.
        fit_intercept: as in :class:`RidgeSD`.
        solver: as in :class:`RidgeSD`.
        sample_weight_type: as in :class:`RidgeSD`.
        sigma2: as in :class:`RidgeSD`.
        copy_X: as in :class:`RidgeSD`.
        random_state: as in :class:`RidgeSD`.
    """

    _parameter_constraints: ClassVar[dict[str, Any]] = {**_ONE, **_COMMON, **_LINEAR, **_CLASSES}

    def __init__(
        self,
        alpha=1.0,
        *,
        xi="auto",
        targets="signs",
        class_weight=None,
        n_rounds=1,
        criterion="loo",
        xi_mode="shared",
        xi_bounds=None,
        fit_intercept=True,
        solver="auto",
        sample_weight_type="frequency",
        sigma2=None,
        copy_X=True,
        random_state=None,
    ):
        self.alpha = alpha
        self.xi = xi
        self.targets = targets
        self.class_weight = class_weight
        self.n_rounds = n_rounds
        self.criterion = criterion
        self.xi_mode = xi_mode
        self.xi_bounds = xi_bounds
        self.fit_intercept = fit_intercept
        self.solver = solver
        self.sample_weight_type = sample_weight_type
        self.sigma2 = sigma2
        self.copy_X = copy_X
        self.random_state = random_state

    def fit(self, X, y, sample_weight=None):
        """Fit to classes y, (n,)."""
        self._validate_params()
        self._fit_classes(X, y, sample_weight, np.array([float(self.alpha)]))
        return self

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags


class RidgeSDClassifierCV(_GridChoice, RidgeSDClassifier):
    """Self-distilled ridge classifier with penalty and mixing weight chosen together; see :class:`RidgeSDCV`."""

    _parameter_constraints: ClassVar[dict[str, Any]] = {**_GRID, **_COMMON, **_LINEAR, **_CLASSES}

    def __init__(
        self,
        alphas=None,
        *,
        select="joint",
        guard_se=2.0,
        targets="signs",
        class_weight=None,
        n_rounds=1,
        criterion="loo",
        xi_mode="shared",
        xi_bounds=(-10, 10),
        fit_intercept=True,
        solver="auto",
        sample_weight_type="frequency",
        sigma2=None,
        copy_X=True,
        random_state=None,
    ):
        self.alphas = alphas
        self.select = select
        self.guard_se = guard_se
        self.targets = targets
        self.class_weight = class_weight
        self.n_rounds = n_rounds
        self.criterion = criterion
        self.xi_mode = xi_mode
        self.xi_bounds = xi_bounds
        self.fit_intercept = fit_intercept
        self.solver = solver
        self.sample_weight_type = sample_weight_type
        self.sigma2 = sigma2
        self.copy_X = copy_X
        self.random_state = random_state

    def fit(self, X, y, sample_weight=None):
        """Fit to classes y, (n,)."""
        self._validate_params()
        self._fit_classes(X, y, sample_weight, _checked_grid(self.alphas))
        return self


# --- kernels -----------------------------------------------------------------------------------------------------


class KernelRidgeSD(MultiOutputMixin, RegressorMixin, _SelfDistilled):
    """Kernel ridge with smoother K (K + alpha)^-1, mixed with its distilled student.

    Args:
        alpha: penalty, > 0.
        kernel: as in ``KernelRidge``; ``"precomputed"`` takes square kernel matrices.
        gamma: kernel parameter.
        degree: kernel parameter.
        coef0: kernel parameter.
        kernel_params: more of them for a callable kernel.
        center: centre in feature space and fit an intercept.
        xi: mixing weight or ``"auto"``.
        n_rounds: as in :class:`RidgeSD`.
        criterion: ``"loo"``, ``"gcv"`` or ``"cp"``.
        xi_mode: as in :class:`RidgeSD`.
        xi_bounds: as in :class:`RidgeSD`.
        sample_weight_type: as in :class:`RidgeSD`.
        sigma2: as in :class:`RidgeSD`.
        random_state: not used; kept beside the other estimators.

    Attributes:
        dual_coef_: (n,) or (n, q): predictions are K(x, X) dual_coef_ (plus the intercept when centred).
        teacher_dual_coef_: the same of plain kernel ridge.
        X_fit_: training rows.
    """

    _parameter_constraints: ClassVar[dict[str, Any]] = {
        **_ONE,
        **_COMMON,
        "kernel": [str, callable],
        "gamma": [Interval(Real, 0, None, closed="left"), None],
        "degree": [Interval(Real, 0, None, closed="left")],
        "coef0": [Interval(Real, None, None, closed="neither")],
        "kernel_params": [dict, None],
        "center": ["boolean"],
    }

    def __init__(
        self,
        alpha=1.0,
        *,
        kernel="linear",
        gamma=None,
        degree=3,
        coef0=1,
        kernel_params=None,
        center=False,
        xi="auto",
        n_rounds=1,
        criterion="loo",
        xi_mode="shared",
        xi_bounds=None,
        sample_weight_type="frequency",
        sigma2=None,
        random_state=None,
    ):
        self.alpha = alpha
        self.kernel = kernel
        self.gamma = gamma
        self.degree = degree
        self.coef0 = coef0
        self.kernel_params = kernel_params
        self.center = center
        self.xi = xi
        self.n_rounds = n_rounds
        self.criterion = criterion
        self.xi_mode = xi_mode
        self.xi_bounds = xi_bounds
        self.sample_weight_type = sample_weight_type
        self.sigma2 = sigma2
        self.random_state = random_state

    dual_coef_: Any

    def _kernel(self, X: Any, Y: Any = None) -> np.ndarray:
        if callable(self.kernel):
            return pairwise_kernels(X, Y, metric=self.kernel, **(self.kernel_params or {}))
        params = {"gamma": self.gamma, "degree": self.degree, "coef0": self.coef0}
        return pairwise_kernels(X, Y, metric=self.kernel, filter_params=True, **params)

    def _spectrum(self, K: np.ndarray, Y: np.ndarray, weights: np.ndarray | None) -> Spectrum:
        n = len(Y)
        w = np.ones(n) if weights is None else weights
        total, root = w.sum(), np.sqrt(w)
        y_mean = w @ Y / total if self.center else np.zeros(Y.shape[1])
        self._means, self._mean = np.zeros(n), 0.0
        if self.center:
            self._means = K @ w / total
            self._mean = float(w @ self._means / total)
            K = K - self._means - self._means[:, None] + self._mean
        Kw = root[:, None] * K * root
        values, vectors = np.linalg.eigh(Kw)
        if values[0] < -1e-8 * max(values[-1], 0.0):
            warnings.warn(
                f"the kernel is not positive semidefinite: eigenvalue {values[0]:.3g} is clipped to 0", stacklevel=4
            )
        s2, U = kept_pairs(values, vectors, n)
        n_eff, removed = _effective(w, self.sample_weight_type)
        target = root[:, None] * (Y - y_mean)
        # sqrt(W) U c with c = U'y / (s^2 + alpha) are dual coefficients.
        to_dual = PrimalMap(root[:, None] * U, np.ones(s2.size))
        frequency = self.sample_weight_type == "frequency"
        return finish_spectrum(s2, U, to_dual, target, w, n_eff, removed, self.center, np.zeros(1), y_mean, frequency)

    def _fit_kernel(self, X: Any, y: Any, sample_weight: Any, alphas: np.ndarray | None) -> None:
        self._check_options()
        X, y = _validated(self, X, y)
        if self.criterion == "holdout":
            raise ValueError("kernel estimators take criterion 'loo', 'gcv' or 'cp', got 'holdout'")
        if self.kernel == "precomputed" and X.shape[0] != X.shape[1]:
            raise ValueError(f"a precomputed kernel must be square, got shape {X.shape}")
        weights = _checked_weights(sample_weight, X)
        self.X_fit_, many = X, y.ndim == 2
        K = np.asarray(self._kernel(X), dtype=float)
        if self.kernel == "precomputed" and not np.allclose(K, K.T, rtol=1e-6, atol=1e-8 * float(np.abs(K).max())):
            raise ValueError("a precomputed kernel must be symmetric, got one that is not")
        if weights is not None and not weights.all():
            rows = np.flatnonzero(weights)
        else:
            rows = np.arange(len(y))
        Y = y.reshape(len(y), -1)[rows]
        kept = None if weights is None else weights[rows]
        total = len(rows) if kept is None else float(kept.sum())
        grid = total * DEFAULT_GRID if alphas is None else alphas
        if grid.min() <= 0:
            raise ValueError(f"alpha must be > 0 for kernels, got {grid.min()}")
        spectrum = self._spectrum(K[np.ix_(rows, rows)], Y, kept)
        xi = getattr(self, "xi", "auto")
        path = self._path(spectrum, grid, {}, None if xi == "auto" else float(xi))
        index, chosen = self._choose(path, alphas)
        mix = self._mixture(path, index, chosen)
        alpha = float(path.alpha[index])
        self._offsets = {}
        for name, dual in (("", student_coef(spectrum, alpha, mix)), ("teacher_", teacher_coef(spectrum, alpha))):
            full = np.zeros((len(y), Y.shape[1]))
            if self.center:
                dual = dual - (1 if kept is None else kept[:, None]) * dual.sum(0) / total
            full[rows] = dual
            setattr(self, f"{name}dual_coef_", (full if many else full[:, 0]).astype(X.dtype))
            self._offsets[name] = spectrum.y_mean - self._means @ dual if self.center else spectrum.y_mean
        offset = self._offsets[""]
        self.intercept_ = offset if many else float(offset[0])

    def _choose(self, path: SDPath, alphas: np.ndarray | None) -> tuple[int, np.ndarray]:
        return 0, np.broadcast_to(path.xi[0], (path.spectrum.target.shape[1],)).astype(float)

    def fit(self, X, y, sample_weight=None):
        """Fit to rows X, (n, p), or a kernel matrix, (n, n)."""
        self._validate_params()
        self._fit_kernel(X, y, sample_weight, np.array([float(self.alpha)]))
        return self

    def predict(self, X):
        """Predictions, (m,) or (m, q)."""
        check_is_fitted(self)
        X = validate_data(self, X, accept_sparse=["csr", "csc"], dtype=[np.float64, np.float32], reset=False)
        K = self._kernel(X, self.X_fit_)
        return K @ self.dual_coef_ + np.asarray(self.intercept_, dtype=self.dual_coef_.dtype)

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        tags.input_tags.pairwise = self.kernel == "precomputed"
        return tags


class KernelRidgeSDCV(_GridChoice, KernelRidgeSD):
    """Kernel ridge with penalty and mixing weight chosen together; see :class:`RidgeSDCV` and
    :class:`KernelRidgeSD`."""

    _parameter_constraints: ClassVar[dict[str, Any]] = {
        **_GRID,
        **{k: v for k, v in KernelRidgeSD._parameter_constraints.items() if k not in ("alpha", "xi")},
    }

    def __init__(
        self,
        alphas=None,
        *,
        kernel="linear",
        gamma=None,
        degree=3,
        coef0=1,
        kernel_params=None,
        center=False,
        select="joint",
        guard_se=2.0,
        n_rounds=1,
        criterion="loo",
        xi_mode="shared",
        xi_bounds=(-10, 10),
        sample_weight_type="frequency",
        sigma2=None,
        random_state=None,
    ):
        self.alphas = alphas
        self.kernel = kernel
        self.gamma = gamma
        self.degree = degree
        self.coef0 = coef0
        self.kernel_params = kernel_params
        self.center = center
        self.select = select
        self.guard_se = guard_se
        self.n_rounds = n_rounds
        self.criterion = criterion
        self.xi_mode = xi_mode
        self.xi_bounds = xi_bounds
        self.sample_weight_type = sample_weight_type
        self.sigma2 = sigma2
        self.random_state = random_state

    def fit(self, X, y, sample_weight=None):
        """Fit to rows X, (n, p), or a kernel matrix, (n, n)."""
        self._validate_params()
        self._fit_kernel(X, y, sample_weight, _checked_grid(self.alphas))
        return self


# --- logistic (experimental) -------------------------------------------------------------------------------------


class LogisticSD(ClassifierMixin, BaseEstimator):
    r"""Self-distilled logistic regression for two classes (ours, experimental: no theorem behind it).

    A teacher is fitted to the labels, a student to the teacher's probabilities; the logits are mixed with the xi that
    minimises the log-loss of approximate leave-one-out logits, a convex function of xi (Newton's method). The
    approximation is one Newton step for each removed row, and the student's includes that the removed row also
    changes the teacher's probabilities at all other rows.

    Args:
        alpha: ridge penalty, ``sum log-loss + alpha/2 ||b||^2``; > 0.
        xi: mixing weight or ``"auto"``.
        xi_bounds: (low, high) for xi.
        fit_intercept: fit an intercept, not penalised.
        max_iter: iterations of each fit.

    Attributes:
        coef_: (1, p).
        intercept_: (1,).
        teacher_coef_: (1, p).
        xi_: chosen weight.
        n_iter_: iterations of the longer fit.
        classes_: the two classes.
    """

    _parameter_constraints: ClassVar[dict[str, Any]] = {
        "alpha": [Interval(Real, 0, None, closed="neither")],
        "xi": [Interval(Real, None, None, closed="neither"), StrOptions({"auto"})],
        "xi_bounds": [tuple, list, None],
        "fit_intercept": ["boolean"],
        "max_iter": [Interval(Integral, 1, None, closed="left")],
    }

    def __init__(self, alpha=1.0, *, xi="auto", xi_bounds=(-10, 10), fit_intercept=True, max_iter=500):
        self.alpha = alpha
        self.xi = xi
        self.xi_bounds = xi_bounds
        self.fit_intercept = fit_intercept
        self.max_iter = max_iter

    def _solve(self, X: np.ndarray, probability: np.ndarray, weights: np.ndarray) -> np.ndarray:
        """Coefficients (intercept last) of a logistic fit to probabilities: each row counts as both classes."""
        model = LogisticRegression(C=1 / self.alpha, fit_intercept=self.fit_intercept, max_iter=self.max_iter, tol=1e-8)
        labels = np.repeat([1, 0], len(X))
        both = np.concatenate([weights * probability, weights * (1 - probability)])
        used = both > 0
        model.fit(np.concatenate([X, X])[used], labels[used], sample_weight=both[used])
        self._iterations.append(int(model.n_iter_[0]))
        return np.append(model.coef_[0], model.intercept_[0])

    def fit(self, X, y, sample_weight=None):
        """Fit to two classes y, (n,)."""
        self._validate_params()
        check_bounds(self.xi_bounds)
        X, y = validate_data(self, X, y, dtype=[np.float64, np.float32], ensure_min_samples=2)
        check_classification_targets(y)
        self.classes_, labels = np.unique(y, return_inverse=True)
        if self.classes_.size != 2:
            counted = f"{self.classes_.size} class" + ("" if self.classes_.size == 1 else "es")
            raise ValueError(f"Only binary classification is supported. LogisticSD expected 2 classes, got {counted}")
        w = _checked_weights(sample_weight, X)
        w = np.ones(len(X)) if w is None else w
        design = np.column_stack([X, np.ones(len(X))]).astype(float)
        self._iterations: list[int] = []
        teacher = self._solve(X, labels.astype(float), w)
        soft = _sigmoid(design @ teacher)
        student = self._solve(X, soft, w)
        logits = self._leave_one_out(design, labels, w, teacher, student)
        self.xi_ = float(self.xi) if self.xi != "auto" else _best_logit_mix(*logits, labels, w, self.xi_bounds)
        mixed = teacher + self.xi_ * (student - teacher)
        self.coef_, self.intercept_ = mixed[None, :-1], mixed[-1:]
        self.n_iter_ = max(self._iterations)
        self.teacher_coef_, self.teacher_intercept_ = teacher[None, :-1], teacher[-1:]
        return self

    def _leave_one_out(
        self, design: np.ndarray, labels: np.ndarray, w: np.ndarray, teacher: np.ndarray, student: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Approximate leave-one-out logits of teacher and student, (n,) each."""
        penalty = np.full(design.shape[1], float(self.alpha))
        penalty[-1] = 0.0 if self.fit_intercept else 1.0
        if not self.fit_intercept:
            design = design * np.append(np.ones(design.shape[1] - 1), 0.0)
        logit_t, logit_s = design @ teacher, design @ student
        p_t, p_s = _sigmoid(logit_t), _sigmoid(logit_s)
        curve_t, curve_s = p_t * (1 - p_t), p_s * (1 - p_s)
        solve_t = np.linalg.solve(design.T @ ((w * curve_t)[:, None] * design) + np.diag(penalty), design.T)
        solve_s = np.linalg.solve(design.T @ ((w * curve_s)[:, None] * design) + np.diag(penalty), design.T)
        removed = np.minimum(w, 1.0)
        own_t, own_s = (np.einsum("ij,ji->i", design, x) * removed for x in (solve_t, solve_s))
        push = (p_t - labels) / np.maximum(1 - own_t * curve_t, 1e-10)
        cross = np.einsum("ji,jk,ki->i", solve_s, design.T @ ((w * curve_t)[:, None] * design), solve_t) * removed
        loo_t = logit_t + own_t * push
        # Without row i the teacher's logits elsewhere move by x_j' H^-1 x_i push_i, and so do the student's targets.
        loo_s = logit_s + (own_s * (p_s - p_t) + cross * push) / np.maximum(1 - own_s * curve_s, 1e-10)
        return loo_t, loo_s

    def decision_function(self, X):
        """Logits of the second class, (n,)."""
        check_is_fitted(self)
        X = validate_data(self, X, dtype=[np.float64, np.float32], reset=False)
        return X @ self.coef_[0] + self.intercept_[0]

    def predict_proba(self, X):
        """Probabilities of both classes, (n, 2)."""
        p = _sigmoid(self.decision_function(X))
        return np.column_stack([1 - p, p])

    def predict(self, X):
        """Classes, (n,)."""
        logits = self.decision_function(X)
        return self.classes_[(logits > 0).astype(int)]

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_class = False
        return tags


def _sigmoid(x: np.ndarray) -> np.ndarray:
    from scipy.special import expit

    return expit(x)


def _best_logit_mix(
    teacher: np.ndarray, student: np.ndarray, labels: np.ndarray, w: np.ndarray, bounds: tuple[float, float] | None
) -> float:
    """argmin over xi of the log-loss of teacher + xi (student - teacher): Newton steps on a convex function."""
    step, xi = student - teacher, 0.0
    low, high = bounds if bounds is not None else (-math.inf, math.inf)
    for _ in range(50):
        p = _sigmoid(teacher + xi * step)
        slope, curvature = w @ ((p - labels) * step), w @ (p * (1 - p) * step * step)
        if curvature <= 1e-300:
            break
        new = min(max(xi - slope / curvature, low, xi - 2.0), high, xi + 2.0)
        if abs(new - xi) < 1e-10:
            return new
        xi = new
    return xi
