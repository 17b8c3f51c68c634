"""scikit-learn style estimators on lists of clouds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Self, cast

import numpy as np
import torch
from scipy.special import softmax
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted

from anisonet.batches import Augmentation
from anisonet.clouds import Cloud, make_cloud
from anisonet.ellipsoid import knn
from anisonet.metrics import ConfusionMeter
from anisonet.model import Config, PointNetwork, network
from anisonet.train import Recipe, Trainer, seeded, vote
from papershelf.reproduce import progress_bar


def spacing(clouds: Sequence[Cloud]) -> float:
    """Median distance to the nearest neighbour, over at most 20 clouds."""
    found = []
    for cloud in clouds[:20]:
        xyz = torch.from_numpy(cloud.xyz)
        if len(xyz) > 1:
            near = (xyz[knn(xyz, 2)[:, 1]] - xyz).norm(dim=1)
            found.append(float(near[near > 0].median()) if bool((near > 0).any()) else 0.0)
    return max(float(np.median(found)), 1e-9) if found else 1.0


class _PointEstimator(BaseEstimator):
    classes_: np.ndarray

    def __init__(
        self,
        config: str | Config = "seg_tiny",
        *,
        order: str | None = None,
        file_order: str = "shuffle",
        steps: int = 160,
        batch: int = 6,
        learning_rate: float = 4e-3,
        points: int = 512,
        rotate: bool = True,
        n_votes: int = 1,
        batch_points: int = 2**18,
        device: str = "cpu",
        random_state: int = 0,
        verbose: bool = False,
    ) -> None:
        self.config = config
        self.order = order
        self.file_order = file_order
        self.steps = steps
        self.batch = batch
        self.learning_rate = learning_rate
        self.points = points
        self.rotate = rotate
        self.n_votes = n_votes
        self.batch_points = batch_points
        self.device = device
        self.random_state = random_state
        self.verbose = verbose

    def _clouds(self, given: Sequence[Any]) -> list[Cloud]:
        if isinstance(given, np.ndarray) and given.ndim == 2:
            raise ValueError("expected a list of clouds, got one array; pass [array]")
        found = []
        for i, one in enumerate(given):
            if isinstance(one, Cloud):
                found.append(one)
                continue
            table = np.asarray(one, dtype=np.float64)
            if table.ndim != 2 or table.shape[1] < 3:
                raise ValueError(f"expected clouds of shape (N, 3 + features), got {table.shape} for cloud {i}")
            extra = {f"f{j}": table[:, 3 + j].astype(np.float32) for j in range(table.shape[1] - 3)}
            found.append(make_cloud(table[:, :3], scalars=extra, name=f"cloud {i}"))
        if not found:
            raise ValueError("expected at least one cloud, got none")
        return found

    def _configured(self, clouds: Sequence[Cloud], classes: int) -> Config:
        base = Config.of(self.config)
        changes: dict[str, Any] = {"classes": max(2, classes)}
        if self.order is not None:
            changes["order"] = self.order
        if isinstance(self.config, str) and self.config.endswith("_tiny"):
            extra = tuple(n for n in clouds[0].scalars if n.startswith("f") and n[1:].isdigit())
            changes |= {"features": ("height", *extra), "in_dim": 1 + len(extra)}
            g = 1.5 * spacing(clouds)
            changes["coord_scale"] = 1 / g
            if base.task == "classification":
                changes["points"] = self.points
            if base.sampling == "grid":
                changes["grid_sizes"] = tuple(g * 2 ** (s + 1) for s in range(len(base.grid_sizes)))
        return Config.of(base, **changes)

    def _fit(self, clouds: list[Cloud], classes: int) -> None:
        cfg = self._configured(clouds, classes)
        with seeded(self.random_state, torch.device("cpu")):
            model = network(cfg)
        recipe = Recipe(
            steps=self.steps,
            batch=min(self.batch, max(2, len(clouds))),
            lr=self.learning_rate,
            thin=0 if cfg.task == "classification" else self.points,
            file_order=cast(Any, self.file_order),
            seed=self.random_state,
            augmentation=Augmentation(rotate=self.rotate, scale=(0.9, 1.1)),
        )
        trainer = Trainer(model, clouds, recipe, device=self.device)
        if self.verbose:
            with progress_bar() as progress:
                self.history_ = trainer.run(progress)
        else:
            self.history_ = trainer.run()
        self.model_: PointNetwork = trainer.model
        self.n_features_in_ = 3 + len([n for n in clouds[0].scalars if n.startswith("f")])

    def _logits(self, clouds: Sequence[Any]) -> list[np.ndarray]:
        check_is_fitted(self, "model_")
        return [
            vote(self.model_, c, self.n_votes, seed=self.random_state, max_points=self.batch_points)
            for c in self._clouds(clouds)
        ]

    def save(self, folder: str | Path) -> None:
        """Write the network as ``save_pretrained`` does, with the classes in its metadata."""
        check_is_fitted(self, "model_")
        self.model_.save_pretrained(folder, {"classes": "\n".join(map(str, self.classes_))})


class PointSegmenter(_PointEstimator):
    """Label every point of clouds.

    Args:
        config: preset or ``Config``; the tiny presets take their grid from the clouds' spacing.
        order: order of the recurrence; None for the configuration's (``identity``: as given).
        file_order: ``shuffle`` while training, so that the order of the points cannot leak labels; ``keep`` to
            allow it.
        steps, batch, learning_rate: of the training.
        points: points drawn of a cloud in training; 0 for all.
        rotate: turn clouds about z at random while training.
        n_votes: turned versions averaged in prediction.
        batch_points: largest cloud run at once.
        device: ``cpu``, ``cuda``, ...
        random_state: of everything random.
        verbose: show a bar.

    Attributes:
        model_: the network.
        classes_: labels, sorted.
        history_: loss of every step.
    """

    def fit(self, X: Sequence[Any], y: Sequence[Any]) -> Self:
        """Train on a list of clouds, arrays (N, 3 + features) or ``Cloud``, and one array of labels each.

        Raises:
            ValueError: if clouds and labels do not fit.
        """
        clouds = self._clouds(X)
        if len(y) != len(clouds):
            raise ValueError(f"expected labels of {len(clouds)} clouds, got {len(y)}")
        labels = [np.asarray(one).reshape(-1) for one in y]
        for i, (cloud, one) in enumerate(zip(clouds, labels, strict=True)):
            if len(cloud) != len(one):
                raise ValueError(f"expected {len(cloud)} labels for cloud {i}, got {len(one)}")
        self.classes_, flat = np.unique(np.concatenate(labels), return_inverse=True)
        parts = np.split(flat, np.cumsum([len(x) for x in labels])[:-1])
        self._fit(
            [replace(c, labels=part.astype(np.int64)) for c, part in zip(clouds, parts, strict=True)],
            len(self.classes_),
        )
        return self

    def predict_proba(self, X: Sequence[Any]) -> list[np.ndarray]:
        """Probabilities of the classes, (N, C) a cloud."""
        return [softmax(x, axis=1)[:, : len(self.classes_)] for x in self._logits(X)]

    def predict(self, X: Sequence[Any]) -> list[np.ndarray]:
        """Labels, (N,) a cloud."""
        return [self.classes_[p.argmax(1)] for p in self.predict_proba(X)]

    def score(self, X: Sequence[Any], y: Sequence[Any]) -> float:
        """Mean intersection over union of all points."""
        meter = ConfusionMeter(len(self.classes_))
        for found, truth in zip(self.predict(X), y, strict=True):
            meter.update(np.searchsorted(self.classes_, found), np.searchsorted(self.classes_, np.asarray(truth)))
        return meter.miou


class PointClassifier(_PointEstimator):
    """Label whole clouds; arguments and attributes as in ``PointSegmenter``."""

    def __init__(
        self,
        config: str | Config = "cls_tiny",
        *,
        order: str | None = None,
        file_order: str = "shuffle",
        steps: int = 220,
        batch: int = 12,
        learning_rate: float = 3e-3,
        points: int = 256,
        rotate: bool = True,
        n_votes: int = 1,
        batch_points: int = 2**18,
        device: str = "cpu",
        random_state: int = 0,
        verbose: bool = False,
    ) -> None:
        super().__init__(
            config,
            order=order,
            file_order=file_order,
            steps=steps,
            batch=batch,
            learning_rate=learning_rate,
            points=points,
            rotate=rotate,
            n_votes=n_votes,
            batch_points=batch_points,
            device=device,
            random_state=random_state,
            verbose=verbose,
        )

    def fit(self, X: Sequence[Any], y: Sequence[Any]) -> Self:
        """Train on a list of clouds and one label each."""
        clouds = self._clouds(X)
        if len(y) != len(clouds):
            raise ValueError(f"expected labels of {len(clouds)} clouds, got {len(y)}")
        if len(clouds) < 2:
            raise ValueError("expected at least two clouds, got one")
        self.classes_, flat = np.unique(np.asarray(y), return_inverse=True)
        self._fit([replace(c, label=int(label)) for c, label in zip(clouds, flat, strict=True)], len(self.classes_))
        return self

    def predict_proba(self, X: Sequence[Any]) -> np.ndarray:
        """Probabilities of the classes, (B, C)."""
        return np.concatenate([softmax(x, axis=1) for x in self._logits(X)])[:, : len(self.classes_)]

    def predict(self, X: Sequence[Any]) -> np.ndarray:
        """Labels, (B,)."""
        return self.classes_[self.predict_proba(X).argmax(1)]

    def score(self, X: Sequence[Any], y: Sequence[Any]) -> float:
        """Share of right labels."""
        return float((self.predict(X) == np.asarray(y)).mean())
