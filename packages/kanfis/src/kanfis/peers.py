"""Other libraries' additive and neuro-fuzzy models behind one interface, where they are installed (extra ``bench``)."""

from __future__ import annotations

import contextlib
import io
import tempfile
import warnings
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any, Self

import numpy as np
import pandas as pd
from sklearn.base import BaseEstimator


def ebm(classification: bool) -> Any:
    """interpret's Explainable Boosting Machine without interactions, one outer bag."""
    from interpret.glassbox import ExplainableBoostingClassifier, ExplainableBoostingRegressor

    kind: Any = ExplainableBoostingClassifier if classification else ExplainableBoostingRegressor
    return kind(interactions=0, outer_bags=1, n_jobs=1, random_state=0)


class _Peer(BaseEstimator):
    """Words become indicators, inputs (and a regression's target) are standardised, classes are coded 0, 1, ..."""

    def __init__(self, classification: bool) -> None:
        self.classification = classification

    def _train(self, Z: np.ndarray, t: np.ndarray) -> None:
        """Fit standardised inputs (n, D) to codes or standardised targets (n,)."""
        raise NotImplementedError

    def _predicted(self, Z: np.ndarray) -> np.ndarray:
        """Codes or standardised targets, (n,)."""
        raise NotImplementedError

    def fit(self, X: Any, y: Any) -> Self:
        """Fit a frame (or array) and a target."""
        values = pd.get_dummies(pd.DataFrame(X)).astype(float)
        self.columns_, self.mean_, self.scale_ = values.columns, values.mean(), values.std().replace(0, 1)
        if self.classification:
            self.classes_, t = np.unique(np.asarray(y), return_inverse=True)
        else:
            y = np.asarray(y, dtype=float)
            self.shift_, self.spread_ = y.mean(), y.std() or 1.0
            t = (y - self.shift_) / self.spread_
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            self._train(((values - self.mean_) / self.scale_).to_numpy(), t)
        return self

    def predict(self, X: Any) -> np.ndarray:
        """Classes or targets, (n,)."""
        values = pd.get_dummies(pd.DataFrame(X)).astype(float).reindex(columns=self.columns_, fill_value=0.0)
        found = np.asarray(self._predicted(((values - self.mean_) / self.scale_).to_numpy())).reshape(len(values))
        return self.classes_[found.astype(int)] if self.classification else found * self.spread_ + self.shift_


class PyGAM(_Peer):
    """pyGAM with its default penalised splines; several classes one against the rest."""

    def _train(self, Z: np.ndarray, t: np.ndarray) -> None:
        from pygam import LinearGAM, LogisticGAM

        if self.classification:
            binary = [t == 1] if len(self.classes_) == 2 else [t == k for k in range(len(self.classes_))]
            self.models_ = [LogisticGAM().fit(Z, b) for b in binary]
        else:
            self.models_ = [LinearGAM().fit(Z, t)]

    def _predicted(self, Z: np.ndarray) -> np.ndarray:
        if not self.classification:
            return self.models_[0].predict(Z)
        shares = np.stack([m.predict_proba(Z) for m in self.models_], 1)
        return shares[:, 0] > 0.5 if len(self.models_) == 1 else shares.argmax(1)


class Pykan(_Peer):
    """pykan's network [D, 5, O], 20 steps of LBFGS."""

    def _train(self, Z: np.ndarray, t: np.ndarray) -> None:
        import torch
        from kan import KAN

        inputs, loss, outputs = torch.tensor(Z, dtype=torch.float32), None, 1
        if self.classification:
            target, loss, outputs = torch.tensor(t), torch.nn.CrossEntropyLoss(), len(self.classes_)
        else:
            target = torch.tensor(t, dtype=torch.float32)[:, None]
        data = {"train_input": inputs, "train_label": target, "test_input": inputs, "test_label": target}
        with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stderr(io.StringIO()):
            self.model_ = KAN(width=[Z.shape[1], 5, outputs], grid=5, k=3, seed=0, auto_save=False, ckpt_path=folder)
            self.model_.fit(data, opt="LBFGS", steps=20, loss_fn=loss, update_grid=False)

    def _predicted(self, Z: np.ndarray) -> np.ndarray:
        import torch

        with torch.no_grad():
            found = self.model_(torch.tensor(Z, dtype=torch.float32)).numpy()
        return found.argmax(1) if self.classification else found[:, 0]


class Xanfis(_Peer):
    """xanfis's gradient-trained ANFIS with its own defaults (10 clustered rules, Adam, early stopping)."""

    def _train(self, Z: np.ndarray, t: np.ndarray) -> None:
        from xanfis import GdAnfisClassifier, GdAnfisRegressor

        kind: Any = GdAnfisClassifier if self.classification else GdAnfisRegressor
        self.model_ = kind(seed=0, verbose=False).fit(Z, t)

    def _predicted(self, Z: np.ndarray) -> np.ndarray:
        return self.model_.predict(Z)


class AnfisToolbox(_Peer):
    """anfis-toolbox's grid ANFIS with two memberships an input: 20 hybrid epochs, or 200 of Adam for classes."""

    def _train(self, Z: np.ndarray, t: np.ndarray) -> None:
        from anfis_toolbox import ANFISClassifier, ANFISRegressor

        model: Any = (
            ANFISClassifier(n_mfs=2, epochs=200, learning_rate=0.05, random_state=0)
            if self.classification
            else ANFISRegressor(n_mfs=2, epochs=20, random_state=0)
        )
        self.model_ = model.fit(Z, t)

    def _predicted(self, Z: np.ndarray) -> np.ndarray:
        return self.model_.predict(Z)


_PEERS: dict[str, tuple[str, Callable[[bool], Any]]] = {
    "EBM": ("interpret", ebm),
    "pyGAM": ("pygam", PyGAM),
    "xanfis": ("xanfis", Xanfis),
    "anfis-toolbox": ("anfis_toolbox", AnfisToolbox),
    "pykan": ("kan", Pykan),
}


def peers(classification: bool, features: int) -> dict[str, Any]:
    """Unfitted models of the libraries that are installed, by name.

    Args:
        classification: classes or numbers.
        features: columns after words became indicators; anfis-toolbox's grid is left out above 7.
    """
    return {
        name: make(classification)
        for name, (module, make) in _PEERS.items()
        if find_spec(module) and not (name == "anfis-toolbox" and features > 7)
    }
