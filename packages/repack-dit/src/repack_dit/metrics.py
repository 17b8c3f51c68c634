"""Distances between two sets of images, from their features."""

from __future__ import annotations

import numpy as np


def _symmetric_root(matrix: np.ndarray) -> np.ndarray:
    values, vectors = np.linalg.eigh(matrix)
    return (vectors * np.sqrt(np.maximum(values, 0))) @ vectors.T


def frechet_distance(a: np.ndarray, b: np.ndarray) -> float:
    """Squared Frechet distance of two normal fits to features (N, C), (M, C).

    ``|m1 - m2|^2 + tr S1 + tr S2 - 2 tr (S1^1/2 S2 S1^1/2)^1/2`` by symmetric eigen-decompositions in float64, which
    stays real where a general matrix square root turns complex.
    """
    a, b = np.asarray(a, dtype=np.float64), np.asarray(b, dtype=np.float64)
    if a.ndim != 2 or b.ndim != 2 or a.shape[1] != b.shape[1] or min(len(a), len(b)) < 2:
        raise ValueError(f"expected (N, C) and (M, C) with N, M >= 2, got {a.shape} and {b.shape}")
    return frechet_from_moments(a.mean(0), np.cov(a.T), b.mean(0), np.cov(b.T))


def frechet_from_moments(mean_a: np.ndarray, cov_a: np.ndarray, mean_b: np.ndarray, cov_b: np.ndarray) -> float:
    """The same from means (C,) and covariances (C, C)."""
    cov_a, cov_b = np.atleast_2d(cov_a), np.atleast_2d(cov_b)
    root = _symmetric_root(cov_a)
    cross = np.sqrt(np.maximum(np.linalg.eigvalsh(root @ cov_b @ root), 0)).sum()
    return float(np.sum((mean_a - mean_b) ** 2) + np.trace(cov_a) + np.trace(cov_b) - 2 * cross)


def kernel_distance(a: np.ndarray, b: np.ndarray) -> float:
    """Unbiased squared MMD with the cubic kernel ``(x y / C + 1)^3`` (KID, Binkowski et al. 2018)."""
    a, b = np.asarray(a, dtype=np.float64), np.asarray(b, dtype=np.float64)
    n, m, c = len(a), len(b), a.shape[1]
    aa, bb, ab = ((x @ y.T / c + 1) ** 3 for x, y in ((a, a), (b, b), (a, b)))
    within = (aa.sum() - np.trace(aa)) / (n * (n - 1)) + (bb.sum() - np.trace(bb)) / (m * (m - 1))
    return float(within - 2 * ab.mean())


def pooled_rgb(images: np.ndarray, side: int = 4) -> np.ndarray:
    """Images (N, 3, H, W) averaged to ``side`` x ``side``, (N, 3 * side * side)."""
    n, c, h, w = images.shape
    if h % side or w % side:
        raise ValueError(f"{side} does not divide {h} x {w}")
    return images.reshape(n, c, side, h // side, side, w // side).mean((3, 5)).reshape(n, -1)


def peak_signal_to_noise(prediction: np.ndarray, target: np.ndarray) -> float:
    """PSNR in dB of images in [-1, 1], over all images together."""
    return float(10 * np.log10(4 / np.mean((prediction - target) ** 2)))
