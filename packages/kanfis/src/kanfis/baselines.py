"""What a user would compare with: ANFIS and its kin, an MLP, a small spline network (KAN), a spline GAM. numpy and
scikit-learn.

``TSKRegressor`` and ``TSKClassifier`` cover first-order Takagi-Sugeno-Kang systems: on a grid of terms (ANFIS,
whose rules grow
as M^D), on k-means or subtractive clusters, with product firing or HTSK's geometric mean (which does not underflow
in many
dimensions), Type-1 or interval Type-2 with Karnik-Mendel or Nie-Tan. Consequents are a ridge least squares problem;
``epochs`` of gradient descent on the premises alternate with it (Jang's hybrid learning, 1993).
"""

from __future__ import annotations

import itertools
from typing import Any, Self

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.cluster import KMeans
from sklearn.linear_model import LogisticRegressionCV, RidgeCV
from sklearn.neural_network import MLPClassifier, MLPRegressor
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import SplineTransformer, StandardScaler
from sklearn.utils.validation import check_is_fitted, validate_data

from kanfis.membership import weighted_quantiles
from kanfis.typereduce import karnik_mendel

MAX_RULES = 20_000


def subtractive_centres(Z: np.ndarray, radius: float = 0.5, limit: int = 30) -> np.ndarray:
    """Chiu's subtractive clustering of points scaled to the unit cube: centres by decreasing potential."""
    low, span = Z.min(0), np.maximum(np.ptp(Z, axis=0), 1e-12)
    U = (Z - low) / span
    if len(U) > 2000:
        U = U[:: -(-len(U) // 2000)]
    square = np.square(U[:, None] - U[None]).sum(-1)
    potential = np.exp(-4 * square / radius**2).sum(1)
    first, found = potential.max(), []
    while len(found) < limit:
        best = int(potential.argmax())
        if found and potential[best] < 0.15 * first:
            break
        found.append(best)
        potential = potential - potential[best] * np.exp(-4 * square[best] / (1.25 * radius) ** 2)
    return U[found] * span + low


class _TSK(BaseEstimator):
    def __init__(
        self,
        structure: str = "grid",
        n_memberships: int = 2,
        n_rules: int = 8,
        order: int = 1,
        firing: str = "product",
        fuzzy_type: str = "t1",
        type_reduction: str = "km",
        spread: float = 0.15,
        alpha: float = 1e-3,
        epochs: int = 0,
        learning_rate: float = 1e-2,
        random_state: int = 0,
    ) -> None:
        self.structure = structure
        self.n_memberships = n_memberships
        self.n_rules = n_rules
        self.order = order
        self.firing = firing
        self.fuzzy_type = fuzzy_type
        self.type_reduction = type_reduction
        self.spread = spread
        self.alpha = alpha
        self.epochs = epochs
        self.learning_rate = learning_rate
        self.random_state = random_state

    def _start(self, Z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Centres and widths of every rule, (R, D) each."""
        D = Z.shape[1]
        if self.structure == "grid":
            rules = self.n_memberships**D
            if rules > MAX_RULES:
                raise ValueError(
                    f"a grid of {self.n_memberships} memberships on {D} features has {rules} rules, more than "
                    f"{MAX_RULES}; "
                    "use structure='kmeans' or KANFIS"
                )
            q = np.linspace(0.02, 0.98, self.n_memberships) if self.n_memberships > 1 else np.array([0.5])
            centres = [weighted_quantiles(Z[:, i], np.ones(len(Z)), q) for i in range(D)]
            widths = [
                np.maximum(0.85 * np.gradient(c) if len(c) > 1 else Z[:, i].std(), 1e-2) for i, c in enumerate(centres)
            ]
            every = list(itertools.product(range(self.n_memberships), repeat=D))
            where = np.array(every)
            return (
                np.stack([centres[i][where[:, i]] for i in range(D)], 1),
                np.stack([np.broadcast_to(widths[i], (self.n_memberships,))[where[:, i]] for i in range(D)], 1),
            )
        if self.structure == "kmeans":
            found = KMeans(min(self.n_rules, len(Z)), n_init=3, random_state=self.random_state).fit(Z)
            centres = found.cluster_centers_
            widths = np.stack(
                [
                    Z[found.labels_ == r].std(0) if (found.labels_ == r).sum() > 1 else np.ones(D)
                    for r in range(len(centres))
                ]
            )
            return centres, np.maximum(widths, 0.3)
        if self.structure == "subtractive":
            centres = subtractive_centres(Z)
            return centres, np.full_like(centres, 0.5 * 3 / 8**0.5)
        raise ValueError(f"expected a structure of grid, kmeans or subtractive, got {self.structure!r}")

    def _log_firing(self, Z: np.ndarray, scale: float = 1.0) -> np.ndarray:
        d = ((Z[:, None] - self.centres_) / (self.widths_ * scale)) ** 2
        return -0.5 * (d.sum(-1) if self.firing == "product" else d.mean(-1))

    def _bounds(self, Z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        if self.fuzzy_type == "t1":
            f = np.exp(self._log_firing(Z))
            return f, f
        return np.exp(self._log_firing(Z, 1 - self.spread)), np.exp(self._log_firing(Z, 1 + self.spread))

    def _weights(self, Z: np.ndarray) -> np.ndarray:
        """Normalised firings (mean of both for Type-2), (n, R)."""
        if self.fuzzy_type == "t1":
            log = self._log_firing(Z)
            f = np.exp(log - log.max(1, keepdims=True))
        else:
            lower, upper = self._bounds(Z)
            f = lower + upper
        total = f.sum(1, keepdims=True)
        return np.where(total > 0, f / np.where(total > 0, total, 1.0), 1 / f.shape[1])

    def _design(self, Z: np.ndarray, weights: np.ndarray) -> np.ndarray:
        if self.order == 0:
            return weights
        one = np.concatenate([np.ones((len(Z), 1)), Z], 1)
        return (weights[:, :, None] * one[:, None]).reshape(len(Z), -1)

    def _solve(self, Z: np.ndarray, T: np.ndarray) -> None:
        A = self._design(Z, self._weights(Z))
        if A.shape[1] <= len(A):
            G = A.T @ A
            self.consequents_ = np.linalg.solve(G + self.alpha * np.eye(len(G)), A.T @ T)
        else:
            K = A @ A.T
            self.consequents_ = A.T @ np.linalg.solve(K + self.alpha * np.eye(len(K)), T)

    def _fit(self, X: np.ndarray, T: np.ndarray) -> None:
        self.mean_, self.scale_ = X.mean(0), np.where(X.std(0) > 0, X.std(0), 1.0)
        Z = (X - self.mean_) / self.scale_
        self.shift_ = T.mean(0)
        self.centres_, self.widths_ = self._start(Z)
        if self.firing not in ("product", "htsk"):
            raise ValueError(f"expected a firing of product or htsk, got {self.firing!r}")
        self._solve(Z, T - self.shift_)
        for _ in range(self.epochs):
            self._descend(Z, T - self.shift_)
            self._solve(Z, T - self.shift_)

    def _descend(self, Z: np.ndarray, T: np.ndarray) -> None:
        """One normalised gradient step on centres and widths of the squared error (analytic)."""
        W = self._weights(Z)
        one = np.concatenate([np.ones((len(Z), 1)), Z], 1)
        R, outputs = len(self.centres_), T.shape[1]
        local = (
            np.einsum("nd,rdo->nro", one, self.consequents_.reshape(R, -1, outputs))
            if self.order
            else np.broadcast_to(self.consequents_[None], (len(Z), R, outputs))
        )
        out = np.einsum("nr,nro->no", W, local)
        pull = W * np.einsum("no,nro->nr", out - T, local - out[:, None])  # d loss / d log firing
        share = 1.0 if self.firing == "product" else 1 / Z.shape[1]
        d = (Z[:, None] - self.centres_) / self.widths_**2 * share
        to_centre = np.einsum("nr,nrd->rd", pull, d)
        to_width = np.einsum("nr,nrd->rd", pull, d * (Z[:, None] - self.centres_) / self.widths_)
        for name, grad in (("centres_", to_centre), ("widths_", to_width)):
            size = np.abs(grad).max()
            if size > 0:
                setattr(self, name, getattr(self, name) - self.learning_rate * grad / size)
        self.widths_ = np.maximum(self.widths_, 0.05)

    def _outputs(self, X: np.ndarray) -> np.ndarray:
        check_is_fitted(self, "consequents_")
        Z = (validate_data(self, X, reset=False, dtype=np.float64) - self.mean_) / self.scale_
        rows = max(1, 2**22 // (len(self.centres_) * (Z.shape[1] + 1)))
        return np.concatenate([self._block(Z[i : i + rows]) for i in range(0, len(Z), rows)]) + self.shift_

    def _block(self, Z: np.ndarray) -> np.ndarray:
        if self.fuzzy_type == "t1" or self.type_reduction == "nie_tan":
            return self._design(Z, self._weights(Z)) @ self.consequents_
        lower, upper = self._bounds(Z)
        one = np.concatenate([np.ones((len(Z), 1)), Z], 1)
        R = len(self.centres_)
        found = []
        for o in range(self.consequents_.shape[1]):
            c = (
                one @ self.consequents_[:, o].reshape(R, -1).T
                if self.order
                else np.broadcast_to(self.consequents_[:, o], lower.shape)
            )
            left, right = karnik_mendel(c, lower, upper)
            found.append((left + right) / 2)
        return np.stack(found, 1)


class TSKRegressor(RegressorMixin, _TSK):
    """First-order TSK regression; see the module."""

    def fit(self, X: Any, y: Any) -> Self:
        """Fit on (n, D) and (n,)."""
        X, y = validate_data(self, X, y, dtype=np.float64, y_numeric=True)
        self._fit(X, np.asarray(y, dtype=float)[:, None])
        return self

    def predict(self, X: Any) -> np.ndarray:
        """(n,)."""
        return self._outputs(X)[:, 0]


class TSKClassifier(ClassifierMixin, _TSK):
    """First-order TSK classification by one-hot least squares; see the module."""

    def fit(self, X: Any, y: Any) -> Self:
        """Fit on (n, D) and classes (n,)."""
        X, y = validate_data(self, X, y, dtype=np.float64)
        self.classes_, codes = np.unique(y, return_inverse=True)
        self._fit(X, np.eye(len(self.classes_))[codes])
        return self

    def predict(self, X: Any) -> np.ndarray:
        """(n,)."""
        found = self._outputs(X)
        return self.classes_[found.argmax(1)]


# --- a small KAN ---------------------------------------------------------------------------------------------------


class _KAN(BaseEstimator):
    def __init__(
        self, hidden: int = 5, grid: int = 5, epochs: int = 150, learning_rate: float = 2e-2, random_state: int = 0
    ) -> None:
        self.hidden = hidden
        self.grid = grid
        self.epochs = epochs
        self.learning_rate = learning_rate
        self.random_state = random_state

    def _fit(self, X: np.ndarray, T: np.ndarray, classifier: bool) -> None:
        import torch
        from torch import nn
        from torch.nn import functional as F

        self.mean_, self.scale_ = X.mean(0), np.where(X.std(0) > 0, X.std(0), 1.0)
        self.shift_, self.spread_ = (0.0, 1.0) if classifier else (T.mean(0), np.where(T.std(0) > 0, T.std(0), 1.0))
        x = torch.from_numpy((X - self.mean_) / self.scale_)
        t = torch.from_numpy((T - self.shift_) / self.spread_)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.random_state)
            self.network_ = nn.Sequential(
                spline_layer(X.shape[1], self.hidden, self.grid), spline_layer(self.hidden, T.shape[1], self.grid)
            ).double()
        optimizer = torch.optim.AdamW(self.network_.parameters(), lr=self.learning_rate, weight_decay=1e-3)
        for _ in range(self.epochs):
            out = self.network_(x)
            loss = -(t * F.log_softmax(out, 1)).sum(1).mean() if classifier else F.mse_loss(out, t)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    def _outputs(self, X: Any) -> np.ndarray:
        import torch

        check_is_fitted(self, "network_")
        X = validate_data(self, X, reset=False, dtype=np.float64)
        with torch.no_grad():
            return self.network_(torch.from_numpy((X - self.mean_) / self.scale_)).numpy() * self.spread_ + self.shift_


def spline_layer(n: int, m: int, grid: int = 5, order: int = 3) -> Any:
    """A KAN layer: SiLU and cubic B-splines on [-3, 3] on every edge, as in efficient-KAN (needs torch)."""
    import torch
    from torch import nn
    from torch.nn import functional as F

    class SplineLayer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            step = 6 / grid
            self.knots: torch.Tensor
            self.register_buffer("knots", torch.arange(-order, grid + order + 1) * step - 3)
            self.base = nn.Linear(n, m)
            self.spline = nn.Parameter(0.05 * torch.randn(n, grid + order, m))

        def forward(self, x: Any) -> Any:
            knots = self.knots.to(x.dtype)
            z = x[..., None]
            bases = ((z >= knots[:-1]) & (z < knots[1:])).to(x.dtype)
            for k in range(1, order + 1):
                left = (z - knots[: -(k + 1)]) / (knots[k:-1] - knots[: -(k + 1)]) * bases[..., :-1]
                right = (knots[k + 1 :] - z) / (knots[k + 1 :] - knots[1:-k]) * bases[..., 1:]
                bases = left + right
            return self.base(F.silu(x)) + torch.einsum("bik,iko->bo", bases, self.spline)

    return SplineLayer()


class KANRegressor(RegressorMixin, _KAN):
    """A [D, hidden, 1] spline network (torch)."""

    def fit(self, X: Any, y: Any) -> Self:
        """Fit on (n, D) and (n,)."""
        X, y = validate_data(self, X, y, dtype=np.float64, y_numeric=True)
        self._fit(X, np.asarray(y, dtype=float)[:, None], classifier=False)
        return self

    def predict(self, X: Any) -> np.ndarray:
        """(n,)."""
        return self._outputs(X)[:, 0]


class KANClassifier(ClassifierMixin, _KAN):
    """A [D, hidden, C] spline network (torch)."""

    def fit(self, X: Any, y: Any) -> Self:
        """Fit on (n, D) and classes (n,)."""
        X, y = validate_data(self, X, y, dtype=np.float64)
        self.classes_, codes = np.unique(y, return_inverse=True)
        self._fit(X, np.eye(len(self.classes_))[codes], classifier=True)
        return self

    def predict(self, X: Any) -> np.ndarray:
        """(n,)."""
        found = self._outputs(X)
        return self.classes_[found.argmax(1)]


def spline_gam(classifier: bool) -> Pipeline:
    """Cubic splines on quantile knots and a ridge (or logistic) fit."""
    head: Any = (
        LogisticRegressionCV(Cs=8, max_iter=500, scoring="neg_log_loss", l1_ratios=(0,), use_legacy_attributes=False)
        if classifier
        else RidgeCV(alphas=np.logspace(-3, 3, 13))
    )
    return make_pipeline(StandardScaler(), SplineTransformer(5, knots="quantile", extrapolation="constant"), head)


def mlp(classifier: bool, random_state: int = 0) -> Pipeline:
    """scikit-learn's MLP with one hidden layer of 64 on standardised inputs."""
    kind: Any = MLPClassifier if classifier else MLPRegressor
    return make_pipeline(
        StandardScaler(), kind(hidden_layer_sizes=(64,), max_iter=400, early_stopping=False, random_state=random_state)
    )


def baselines(classifier: bool, features: int, random_state: int = 0) -> dict[str, Any]:
    """All baselines that fit a number of features, by name; grids only where they stay below 300 rules."""
    tsk: Any = TSKClassifier if classifier else TSKRegressor
    found: dict[str, Any] = {
        "TSK, k-means": tsk(structure="kmeans", random_state=random_state),
        "TSK, subtractive": tsk(structure="subtractive", random_state=random_state),
        "HTSK": tsk(structure="kmeans", n_rules=15, firing="htsk", random_state=random_state),
        "IT2 TSK, Karnik-Mendel": tsk(structure="kmeans", firing="htsk", fuzzy_type="it2", random_state=random_state),
        "MLP": mlp(classifier, random_state),
        "spline GAM": spline_gam(classifier),
        "KAN": (KANClassifier if classifier else KANRegressor)(random_state=random_state),
    }
    if 2**features <= 300:
        found = {"ANFIS grid": tsk(structure="grid", epochs=10), **found}
    return found
