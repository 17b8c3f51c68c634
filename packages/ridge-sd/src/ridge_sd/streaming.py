"""Self-distilled ridge from blocks of rows: second moments are all that generalised cross-validation needs.

Memory is p^2 + p q numbers whatever the number of rows. Moments are centred and merged pairwise (Chan, Golub and
LeVeque), so large means lose nothing; merging is associative, so blocks may be summed in any order, on several cores
or machines.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar
from zipfile import BadZipFile

import numpy as np
from sklearn.base import BaseEstimator, MultiOutputMixin, RegressorMixin
from sklearn.utils._param_validation import StrOptions
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, validate_data

from ridge_sd.core import (
    Moments,
    PrimalMap,
    SDPath,
    Spectrum,
    kept_eigenpairs,
    loo_moments,
    sd_path,
    student_coef,
    teacher_coef,
)

DEFAULT_LAMS = np.logspace(-3, np.log10(50), 100)


@dataclass(frozen=True)
class RowMoments:
    """Weighted second moments of rows about their means.

    Attributes:
        total: sum of weights.
        rows: number of rows of positive weight.
        x_mean: (p,).
        y_mean: (q,).
        Sxx: (p, p).
        Sxy: (p, q).
        Syy: sums of squares of the targets, (q,).
    """

    total: float
    rows: int
    x_mean: np.ndarray
    y_mean: np.ndarray
    Sxx: np.ndarray
    Sxy: np.ndarray
    Syy: np.ndarray

    @staticmethod
    def of(X: np.ndarray, Y: np.ndarray, weights: np.ndarray | None = None) -> RowMoments:
        """Moments of one block, in float64 also for float32 rows; X (n, p), Y (n, q)."""
        X, Y = np.asarray(X, dtype=float), np.asarray(Y, dtype=float)
        if weights is None:
            x_mean, y_mean, total = X.mean(0), Y.mean(0), float(len(X))
            Xc, Yc = X - x_mean, Y - y_mean
            return RowMoments(total, len(X), x_mean, y_mean, Xc.T @ Xc, Xc.T @ Yc, np.square(Yc).sum(0))._finite()
        total = float(weights.sum())
        x_mean, y_mean = weights @ X / total, weights @ Y / total
        Xc, Yc = X - x_mean, Y - y_mean
        Xw = weights[:, None] * Xc
        rows = int((weights > 0).sum())
        return RowMoments(total, rows, x_mean, y_mean, Xc.T @ Xw, Xw.T @ Yc, weights @ np.square(Yc))._finite()

    def _finite(self) -> RowMoments:
        if not (np.isfinite(self.Sxx).all() and np.isfinite(self.Sxy).all() and np.isfinite(self.Syy).all()):
            raise ValueError("a block holds NaN or infinite values")
        return self

    def __add__(self, other: RowMoments) -> RowMoments:
        """Moments of both sets of rows: S = S_a + S_b + (w_a w_b / (w_a + w_b)) d d'."""
        if self.Sxy.shape != other.Sxy.shape:
            raise ValueError(f"blocks must agree in (features, targets), got {self.Sxy.shape} and {other.Sxy.shape}")
        total = self.total + other.total
        share, cross = other.total / total, self.total * other.total / total
        dx, dy = other.x_mean - self.x_mean, other.y_mean - self.y_mean
        return RowMoments(
            total,
            self.rows + other.rows,
            self.x_mean + share * dx,
            self.y_mean + share * dy,
            self.Sxx + other.Sxx + cross * np.outer(dx, dx),
            self.Sxy + other.Sxy + cross * np.outer(dx, dy),
            self.Syy + other.Syy + cross * np.square(dy),
        )

    def spectrum(self, fit_intercept: bool = True) -> Spectrum:
        """The decomposition that risks and coefficients are computed from; it has no rows, so no leave-one-out."""
        Sxx, Sxy, Syy = self.Sxx, self.Sxy, self.Syy
        x_mean, y_mean = self.x_mean, self.y_mean
        if not fit_intercept:
            Sxx = Sxx + self.total * np.outer(x_mean, x_mean)
            Sxy = Sxy + self.total * np.outer(x_mean, y_mean)
            Syy = Syy + self.total * np.square(y_mean)
            x_mean, y_mean = np.zeros_like(x_mean), np.zeros_like(y_mean)
        s2, V = kept_eigenpairs(Sxx, max(self.rows, len(Sxx)))
        Uty = (V.T @ Sxy) / np.sqrt(s2)[:, None]
        return Spectrum(
            s2=s2,
            Uty=Uty,
            rho2=np.maximum(Syy - np.square(Uty).sum(0), 0.0),
            target=np.empty((0, Sxy.shape[1])),
            weights=np.empty(0),
            total_weight=self.total,
            n_eff=self.total,
            removed=np.empty(0),
            intercept=fit_intercept,
            x_mean=x_mean,
            y_mean=y_mean,
            U=np.empty((0, s2.size)),
            to_coef=PrimalMap(V, np.sqrt(s2)),
        )


def second_pass(spectrum: Spectrum, alphas: np.ndarray, blocks: Iterable[tuple[np.ndarray, np.ndarray]]) -> Moments:
    """Exact leave-one-out moments from another pass over unweighted rows, block by block, (L, q) each."""
    assert isinstance(spectrum.to_coef, PrimalMap)
    scaled = spectrum.to_coef.V / spectrum.to_coef.s
    total, sums = 0.0, None
    for X, Y in blocks:
        X, Y = np.asarray(X, dtype=float), np.asarray(Y, dtype=float).reshape(len(X), -1)
        ones = np.ones(len(X))
        part = Spectrum(
            s2=spectrum.s2,
            Uty=spectrum.Uty,
            rho2=spectrum.rho2,
            target=Y - spectrum.y_mean,
            weights=ones,
            total_weight=spectrum.total_weight,
            n_eff=spectrum.n_eff,
            removed=ones,
            intercept=spectrum.intercept,
            x_mean=spectrum.x_mean,
            y_mean=spectrum.y_mean,
            U=(X - spectrum.x_mean) @ scaled,
            to_coef=spectrum.to_coef,
        )
        found = loo_moments(part, alphas)
        block = len(X) * np.stack([found.R, found.gap, found.D])
        total, sums = total + len(X), block if sums is None else sums + block
    if sums is None or total != spectrum.total_weight:
        raise ValueError(f"the second pass saw {total:g} rows, the first one {spectrum.total_weight:g}")
    R, gap, D = sums / total
    return Moments(R, gap, D, np.full(R.shape, np.nan))


class StreamingRidgeSD(MultiOutputMixin, RegressorMixin, BaseEstimator):
    """Self-distilled ridge for more rows than memory holds, tuned by generalised cross-validation.

    Args:
        alphas: penalties; default n times 100 values from 1e-3 to 50.
        select: ``"joint"`` or ``"teacher"``, as in :class:`~ridge_sd.sklearn_api.RidgeSDCV`.
        xi_mode: ``"shared"`` or ``"per_target"``.
        xi_bounds: bounds of xi.
        fit_intercept: fit an intercept.

    Attributes:
        moments_: accumulated :class:`RowMoments`.
        coef_: (p,) or (q, p), after :meth:`finalize`.
        intercept_: its intercept.
        alpha_: chosen penalty.
        xi_: chosen mixing weight.
        path_: the :class:`~ridge_sd.core.SDPath`.
        n_samples_seen_: rows so far.
    """

    coef_: Any
    intercept_: Any
    xi_mode: Any
    select: Any

    _parameter_constraints: ClassVar[dict[str, Any]] = {
        "alphas": ["array-like", None],
        "select": [StrOptions({"joint", "teacher"})],
        "xi_mode": [StrOptions({"shared", "per_target"})],
        "xi_bounds": [tuple, list, None],
        "fit_intercept": ["boolean"],
    }

    def __init__(self, alphas=None, *, select="joint", xi_mode="shared", xi_bounds=(-10, 10), fit_intercept=True):
        self.alphas = alphas
        self.select = select
        self.xi_mode = xi_mode
        self.xi_bounds = xi_bounds
        self.fit_intercept = fit_intercept

    def fit(self, X, y, sample_weight=None):
        """Forget what was seen, take these rows and finalize."""
        for name in ("moments_", "_many"):
            if hasattr(self, name):
                delattr(self, name)
        return self.partial_fit(X, y, sample_weight).finalize()

    def partial_fit(self, X, y, sample_weight=None):
        """Add a block of rows; a block that is refused leaves the state as it was."""
        self._validate_params()
        first = not hasattr(self, "moments_")
        X, y = validate_data(
            self,
            X,
            y,
            dtype=[np.float64, np.float32],
            multi_output=True,
            y_numeric=True,
            reset=first,
            ensure_min_samples=2 if first else 1,
        )
        weights = None
        if sample_weight is not None:
            weights = _check_sample_weight(sample_weight, X, dtype=np.float64, ensure_non_negative=True)
            if not weights.any():
                raise ValueError("all sample weights of the block are zero, expected a positive one")
        many = y.ndim == 2
        if not first and many != self._many:
            raise ValueError(
                f"the block's y has shape {y.shape}, earlier ones had {'2' if self._many else '1'} dimensions"
            )
        block = RowMoments.of(X, y.reshape(len(y), -1), weights)
        self.moments_ = block if first else self.moments_ + block
        self._many, self._dtype, self._stale = many, X.dtype, True
        self.n_samples_seen_ = self.moments_.rows
        return self

    def merge(self, other: StreamingRidgeSD) -> StreamingRidgeSD:
        """Add the rows that another instance has seen."""
        check_is_fitted(self, "moments_")
        check_is_fitted(other, "moments_")
        if self._many != other._many:
            raise ValueError("one of the two was fitted to y of 1 dimension, the other to y of 2")
        self.moments_ = self.moments_ + other.moments_
        self._stale, self.n_samples_seen_ = True, self.moments_.rows
        return self

    def finalize(self, blocks: Iterable[tuple[np.ndarray, np.ndarray]] | None = None) -> StreamingRidgeSD:
        """Choose penalty and mixing weight and set the coefficients; more blocks may follow.

        Args:
            blocks: all rows once more, unweighted: then exact leave-one-out is the criterion instead.
        """
        check_is_fitted(self, "moments_")
        spectrum = self.moments_.spectrum(self.fit_intercept)
        grid = self.moments_.total * DEFAULT_LAMS if self.alphas is None else np.asarray(self.alphas, dtype=float)
        moments = None if blocks is None else second_pass(spectrum, grid, blocks)
        self.path_: SDPath = sd_path(
            spectrum,
            grid,
            criterion="gcv" if moments is None else "loo",
            xi_mode=self.xi_mode,
            xi_bounds=self.xi_bounds,
            moments=moments,
        )
        chosen = self.path_.best(self.select, guard_se=0)
        self.alpha_ = float(grid[chosen.index])
        self.xi_ = float(chosen.xi[0]) if self.xi_mode == "shared" else chosen.xi
        for name, coef in (
            ("", student_coef(spectrum, self.alpha_, -chosen.xi[None])),
            ("teacher_", teacher_coef(spectrum, self.alpha_)),
        ):
            offset = spectrum.y_mean - spectrum.x_mean @ coef
            setattr(self, f"{name}coef_", (coef.T if self._many else coef[:, 0]).astype(self._dtype))
            setattr(self, f"{name}intercept_", offset if self._many else float(offset[0]))
        self._stale = False
        return self

    def predict(self, X):
        """Predictions, (n,) or (n, q); finalizes first when blocks came in since."""
        check_is_fitted(self, "moments_")
        if self._stale:
            self.finalize()
        X = validate_data(self, X, dtype=[np.float64, np.float32], reset=False)
        return X @ self.coef_.T + self.intercept_

    def save(self, path: Path | str) -> Path:
        """Write what was seen to an .npz file, atomically."""
        check_is_fitted(self, "moments_")
        target = Path(path)
        arrays = {name: np.asarray(getattr(self.moments_, name)) for name in RowMoments.__dataclass_fields__}
        handle, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
        try:
            with os.fdopen(handle, "wb") as file:
                write: Any = np.savez
                write(file, **{**arrays, "many": np.asarray(self._many), "dtype": np.asarray(str(self._dtype))})
                file.flush()
                os.fsync(file.fileno())
            Path(name).replace(target)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise
        return target

    def load(self, path: Path | str) -> StreamingRidgeSD:
        """Restore what :meth:`save` wrote; settings are those of this instance.

        Raises:
            ValueError: if the file is not such a file.
        """
        try:
            with np.load(path, allow_pickle=False) as file:
                fields = {name: file[name] for name in RowMoments.__dataclass_fields__}
                many, dtype = bool(file["many"]), np.dtype(str(file["dtype"]))
        except (KeyError, ValueError, OSError, EOFError, BadZipFile) as error:
            raise ValueError(f"{path} holds no moments of StreamingRidgeSD: {error}") from None
        fields["total"], fields["rows"] = float(fields["total"]), int(fields["rows"])
        return self.restore(RowMoments(**fields), many, str(dtype))

    @property
    def many(self) -> bool:
        """Whether targets came with two dimensions."""
        return self._many

    @property
    def dtype(self) -> str:
        """Type of the features seen."""
        return str(self._dtype)

    def restore(self, moments: RowMoments, many: bool, dtype: str) -> StreamingRidgeSD:
        """Go on from moments kept elsewhere, with :attr:`many` and :attr:`dtype` as they were."""
        self.moments_ = moments
        self._many, self._dtype, self._stale = many, np.dtype(dtype), True
        self.n_samples_seen_, self.n_features_in_ = moments.rows, moments.x_mean.size
        return self

    def from_blocks(self, blocks: Iterable[tuple[Any, Any]], n_jobs: int = 1) -> StreamingRidgeSD:
        """Take blocks (X, y) of rows, several at a time on ``n_jobs`` threads, and finalize."""
        from joblib import Parallel, delayed

        def moments(X: Any, y: Any) -> tuple[RowMoments, bool, Any]:
            y = np.asarray(y)
            X = np.asarray(X)
            return RowMoments.of(X, y.reshape(len(y), -1)), y.ndim == 2, X.dtype

        total: RowMoments | None = None
        lazily = Parallel(n_jobs=n_jobs, prefer="threads", return_as="generator")(
            delayed(moments)(X, y) for X, y in blocks
        )
        for part, many, dtype in lazily:
            total = part if total is None else total + part
            self._many, self._dtype = many, dtype
        if total is None:
            raise ValueError("expected at least one block, got none")
        self.moments_, self.n_samples_seen_, self.n_features_in_ = total, total.rows, total.x_mean.size
        return self.finalize()

    def from_dask(self, X: Any, y: Any) -> StreamingRidgeSD:
        """Take Dask arrays X (n, p) and y, one task a block of rows and a tree of merges, and finalize.

        Columns are brought into one chunk first; y takes the row chunks of X.
        """
        import dask

        X = X.rechunk({1: -1})
        y = y.rechunk({0: X.chunks[0], **({1: -1} if y.ndim == 2 else {})})
        many = y.ndim == 2
        of = dask.delayed(lambda a, b: RowMoments.of(a, np.asarray(b).reshape(len(b), -1)))
        parts = [of(a, b) for a, b in zip(X.to_delayed().ravel(), y.to_delayed().ravel(), strict=True)]
        add = dask.delayed(lambda a, b: a + b)
        while len(parts) > 1:
            parts = [
                add(*pair) if len(pair) == 2 else pair[0]
                for pair in (parts[i : i + 2] for i in range(0, len(parts), 2))
            ]
        (self.moments_,) = dask.compute(parts[0])
        self._many, self._dtype = many, X.dtype
        self.n_samples_seen_, self.n_features_in_ = self.moments_.rows, self.moments_.x_mean.size
        return self.finalize()
