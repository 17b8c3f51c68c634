"""Scores of labelled points: confusion matrices and what follows from them."""

from __future__ import annotations

import numpy as np

from papershelf.stats import Interval


class ConfusionMeter:
    """Adds up confusion matrices, one a cloud, so that intervals can be taken over clouds.

    Args:
        classes: number of classes C; labels run from 0 to C - 1.
        ignore_index: label of points that do not count.
    """

    def __init__(self, classes: int, ignore_index: int = -1) -> None:
        self.classes, self.ignore_index = classes, ignore_index
        self.parts: list[np.ndarray] = []

    def update(self, predicted: np.ndarray, labels: np.ndarray) -> None:
        """Count one cloud.

        Args:
            predicted, labels: shape (N,).

        Raises:
            ValueError: on shapes that differ, or labels outside 0 .. C - 1 other than ``ignore_index``.
        """
        predicted, labels = np.asarray(predicted), np.asarray(labels)
        if predicted.shape != labels.shape or labels.ndim != 1:
            raise ValueError(
                f"expected predictions and labels of one shape (N,), got {predicted.shape}, {labels.shape}"
            )
        check_labels(labels, self.classes, self.ignore_index)
        counted = labels != self.ignore_index
        flat = labels[counted].astype(np.int64) * self.classes + predicted[counted]
        self.parts.append(np.bincount(flat, minlength=self.classes**2).reshape(self.classes, self.classes))

    @property
    def matrix(self) -> np.ndarray:
        """Counts of all clouds, rows true and columns predicted, shape (C, C)."""
        return np.sum(self.parts, 0) if self.parts else np.zeros((self.classes, self.classes), dtype=np.int64)

    def iou(self) -> np.ndarray:
        """Intersection over union of every class, NaN where a class neither occurs nor was predicted."""
        return _iou(self.matrix)

    @property
    def miou(self) -> float:
        """Mean intersection over union."""
        return float(np.nanmean(self.iou()))

    @property
    def mean_accuracy(self) -> float:
        """Mean recall of the classes that occur."""
        m = self.matrix
        total = m.sum(1)
        return float((np.diag(m)[total > 0] / total[total > 0]).mean())

    @property
    def accuracy(self) -> float:
        """Share of points with the right label."""
        return float(np.trace(self.matrix) / max(1, self.matrix.sum()))

    def interval(self, rng: np.random.Generator, level: float = 0.95, draws: int = 1000) -> Interval:
        """Bootstrap interval of the mean intersection over union, over clouds."""
        parts = np.stack(self.parts)
        chosen = rng.integers(len(parts), size=(draws, len(parts)))
        values = [float(np.nanmean(_iou(parts[rows].sum(0)))) for rows in chosen]
        low, high = np.quantile(values, [(1 - level) / 2, (1 + level) / 2])
        return Interval(self.miou, float(low), float(high))


def _iou(matrix: np.ndarray) -> np.ndarray:
    hit = np.diag(matrix).astype(float)
    union = matrix.sum(0) + matrix.sum(1) - hit
    return np.divide(hit, union, out=np.full(len(hit), np.nan), where=union > 0)


def check_labels(labels: np.ndarray, classes: int, ignore_index: int = -1) -> None:
    """Refuse labels outside 0 .. C - 1.

    Raises:
        ValueError: listing the labels that do not fit.
    """
    found = np.unique(labels)
    wrong = [int(x) for x in found if not (0 <= x < classes or x == ignore_index)]
    if wrong:
        shown = ", ".join(map(str, wrong[:8])) + (", ..." if len(wrong) > 8 else "")
        raise ValueError(f"expected labels from 0 to {classes - 1} (or {ignore_index} to ignore), got {shown}")
