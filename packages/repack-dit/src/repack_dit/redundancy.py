"""How redundant features are: spectrum, intrinsic dimension, and the best linear pack in closed form."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from scipy.linalg import cho_factor, cho_solve, svd

SHARES = (0.5, 0.8, 0.9, 0.95, 0.99)


@dataclass(frozen=True)
class Moments:
    """Count, mean (C,) and scatter (C, C), float64, of tokens seen so far."""

    count: int
    mean: np.ndarray
    scatter: np.ndarray

    @property
    def covariance(self) -> np.ndarray:
        """Unbiased covariance, (C, C)."""
        if self.count < 2:
            raise ValueError(f"a covariance needs at least 2 tokens, got {self.count}")
        return self.scatter / (self.count - 1)


def moments(tokens: np.ndarray) -> Moments:
    """Moments of tokens (N, C).

    Raises:
        ValueError: for another shape or numbers that are not finite.
    """
    tokens = np.asarray(tokens, dtype=np.float64)
    if tokens.ndim != 2 or len(tokens) == 0 or not np.isfinite(tokens).all():
        raise ValueError(f"expected finite tokens (N, C) with N >= 1, got shape {tokens.shape}")
    mean = tokens.mean(0)
    centred = tokens - mean
    return Moments(len(tokens), mean, centred.T @ centred)


def merge(a: Moments, b: Moments) -> Moments:
    """Moments of both samples together (Chan, Golub and LeVeque 1983)."""
    n, step = a.count + b.count, b.mean - a.mean
    scatter = a.scatter + b.scatter + np.outer(step, step) * (a.count * b.count / n)
    return Moments(n, a.mean + step * (b.count / n), scatter)


def participation_ratio(eigenvalues: np.ndarray) -> float:
    r"""``(sum l)^2 / sum l^2``: C for white features, 1 for a line."""
    return float(np.sum(eigenvalues) ** 2 / np.sum(np.square(eigenvalues)))


def effective_rank(eigenvalues: np.ndarray) -> float:
    """``exp(entropy(l / sum l))`` (Roy and Vetterli 2007)."""
    p = eigenvalues / np.sum(eigenvalues)
    p = p[p > 0]
    return float(np.exp(-np.sum(p * np.log(p))))


def components_for(eigenvalues: np.ndarray, share: float) -> int:
    """How many leading components hold this share of the variance."""
    held = np.cumsum(np.sort(eigenvalues)[::-1]) / np.sum(eigenvalues)
    return int(min(np.searchsorted(held, share - 1e-12) + 1, len(eigenvalues)))


def _neighbours(tokens: np.ndarray, k: int) -> np.ndarray:
    """Distances to the k nearest other tokens, (N, k); duplicates are dropped first."""
    tokens = np.unique(np.asarray(tokens, dtype=np.float64), axis=0)
    if len(tokens) <= k + 1:
        raise ValueError(f"expected more than {k + 1} different tokens, got {len(tokens)}")
    # products in blocks, then exact distances to the candidates: trees do not help in hundreds of dimensions
    square, found = np.einsum("ij,ij->i", tokens, tokens), []
    for low in range(0, len(tokens), 1000):
        rows = tokens[low : low + 1000]
        distance = square[None] - 2 * (rows @ tokens.T)
        distance[np.arange(len(rows)), low + np.arange(len(rows))] = np.inf
        near = np.argpartition(distance, k, axis=1)[:, :k]
        exact = np.linalg.norm(tokens[near] - rows[:, None], axis=2)
        found.append(np.sort(exact, axis=1))
    return np.concatenate(found)


def two_nn(tokens: np.ndarray, discard: float = 0.1) -> float:
    """Intrinsic dimension from the ratio of second to first neighbour's distance (Facco et al. 2017).

    Args:
        tokens: (N, C).
        discard: share of largest ratios left out of the fit through the origin.
    """
    return _two_nn_fit(_two_nn_ratios(tokens), discard)


def _two_nn_ratios(tokens: np.ndarray) -> np.ndarray:
    near = _neighbours(tokens, 2)
    return near[:, 1] / near[:, 0]


def _two_nn_fit(ratio: np.ndarray, discard: float = 0.1) -> float:
    keep = int(len(ratio) * (1 - discard))
    x = np.log(np.sort(ratio)[:keep])
    y = -np.log1p(-np.arange(1, keep + 1) / (len(ratio) + 1))
    return float(x @ y / (x @ x))


def levina_bickel(tokens: np.ndarray, k: tuple[int, int] = (10, 20)) -> float:
    """Maximum-likelihood intrinsic dimension, averaged over neighbourhoods k (inverse averages, MacKay's way)."""
    near = np.log(_neighbours(tokens, k[1]))
    inverse = [np.mean(near[:, j - 1 : j] - near[:, : j - 1]) * (j - 1) / (j - 2) for j in range(k[0], k[1] + 1)]
    return float(np.mean(1 / np.array(inverse)))


def linear_cka(a: np.ndarray, b: np.ndarray) -> float:
    """Linear centred kernel alignment of two representations (N, C1), (N, C2) of the same tokens, in [0, 1]."""
    a, b = a - a.mean(0), b - b.mean(0)
    return float(np.linalg.norm(a.T @ b) ** 2 / (np.linalg.norm(a.T @ a) * np.linalg.norm(b.T @ b)))


def spatial_autocorrelation(maps: np.ndarray) -> float:
    """Mean correlation of a position with its right and lower neighbour, channels standardised; maps (N, C, h, w)."""
    z = maps - maps.mean((0, 2, 3), keepdims=True)
    z = z / np.maximum(z.std((0, 2, 3), keepdims=True), 1e-12)
    pairs = [(z[..., :-1] * z[..., 1:]).mean(), (z[..., :-1, :] * z[..., 1:, :]).mean()]
    return float(np.mean(pairs))


@dataclass(frozen=True)
class SpectrumReport:
    """What :func:`analyze_features` finds.

    Attributes:
        tokens: number of tokens.
        channels: C.
        eigenvalues: of the covariance, descending.
        participation_ratio: see :func:`participation_ratio`.
        effective_rank: see :func:`effective_rank`.
        components: share of variance -> number of components.
        two_nn: intrinsic dimension of the subsample.
        two_nn_interval: 95 % bootstrap interval over the tokens' neighbour ratios.
        levina_bickel: intrinsic dimension by maximum likelihood.
        outlier_ratio: largest channel variance over the median one.
        autocorrelation: of neighbouring positions.
        standardised_participation_ratio: of the correlation matrix: each channel at variance one, so that the few with
            outlying variance do not decide.
        standardised_components: the same of :attr:`components`.
    """

    tokens: int
    channels: int
    eigenvalues: np.ndarray
    participation_ratio: float
    effective_rank: float
    components: dict[float, int]
    two_nn: float
    two_nn_interval: tuple[float, float]
    levina_bickel: float
    outlier_ratio: float
    autocorrelation: float
    standardised_participation_ratio: float
    standardised_components: dict[float, int]


def analyze_features(
    maps: Iterable[np.ndarray], rng: np.random.Generator, *, subsample: int = 10_000, resamples: int = 200
) -> SpectrumReport:
    """Stream feature maps (B, C, h, w) once and report their redundancy.

    Args:
        maps: batches; at least two tokens in all, grids larger than 1 x 1 for the autocorrelation.
        rng: chooses the tokens of the intrinsic dimension (one uniform key a token; the smallest are kept).
        subsample: how many.
        resamples: bootstrap samples behind the interval of TwoNN; the neighbours stay those of the subsample.
    """
    total: Moments | None = None
    kept, keys, correlations = np.empty((0, 0)), np.empty(0), []
    for batch in maps:
        tokens = np.moveaxis(batch, 1, -1).reshape(-1, batch.shape[1])
        part = moments(tokens)
        total = part if total is None else merge(total, part)
        if min(batch.shape[2:]) > 1:
            correlations.append((len(batch), spatial_autocorrelation(batch)))
        fresh = rng.random(len(tokens))
        kept = np.concatenate([kept, tokens]) if kept.size else np.array(tokens)
        keys = np.concatenate([keys, fresh])
        order = np.argsort(keys)[:subsample]
        kept, keys = kept[order], keys[order]
    if total is None:
        raise ValueError("expected at least one batch of features, got none")
    values = np.maximum(np.linalg.eigvalsh(total.covariance)[::-1], 0)
    variances = np.diag(total.covariance)
    scale = np.sqrt(np.maximum(variances, 1e-300))
    standardised = np.maximum(np.linalg.eigvalsh(total.covariance / np.outer(scale, scale))[::-1], 0)
    ratios = _two_nn_ratios(kept)
    fits = [_two_nn_fit(rng.choice(ratios, len(ratios))) for _ in range(resamples)]
    return SpectrumReport(
        tokens=total.count,
        channels=len(values),
        eigenvalues=values,
        participation_ratio=participation_ratio(values),
        effective_rank=effective_rank(values),
        components={share: components_for(values, share) for share in SHARES},
        two_nn=_two_nn_fit(ratios),
        two_nn_interval=(float(np.quantile(fits, 0.025)), float(np.quantile(fits, 0.975))),
        levina_bickel=levina_bickel(kept),
        outlier_ratio=float(variances.max() / max(np.median(variances), 1e-300)),
        autocorrelation=float(np.average([c for _, c in correlations], weights=[n for n, _ in correlations]))
        if correlations
        else float("nan"),
        standardised_participation_ratio=participation_ratio(standardised),
        standardised_components={share: components_for(standardised, share) for share in SHARES},
    )


@dataclass(frozen=True)
class LinearPack:
    """``z = pack (f - feature_mean)`` and ``patch = unpack z + patch_mean``.

    Attributes:
        pack: (d, C).
        unpack: (P, d).
        feature_mean: (C,).
        patch_mean: (P,).
    """

    pack: np.ndarray
    unpack: np.ndarray
    feature_mean: np.ndarray
    patch_mean: np.ndarray

    def encode(self, features: np.ndarray) -> np.ndarray:
        """Features (N, C) to latents (N, d)."""
        return (features - self.feature_mean) @ self.pack.T

    def decode(self, latents: np.ndarray) -> np.ndarray:
        """Latents (N, d) to patches (N, P)."""
        return latents @ self.unpack.T + self.patch_mean


def ridge_regression(x: np.ndarray, y: np.ndarray, ridge: float) -> tuple[np.ndarray, np.ndarray]:
    """Coefficients (C, P) of centred ridge regression and the Cholesky factor L of its Gram, ``L L^T``.

    Args:
        x: centred, (N, C).
        y: centred, (N, P).
        ridge: penalty over the mean eigenvalue of the Gram; > 0.
    """
    gram = x.T @ x
    gram[np.diag_indices_from(gram)] += ridge * np.trace(gram) / len(gram)
    factor = cho_factor(gram, lower=True)
    return np.asarray(cho_solve(factor, x.T @ y)), np.tril(factor[0])


def best_linear_pack(features: np.ndarray, patches: np.ndarray, d: int, ridge: float = 1e-4) -> LinearPack:
    """Reduced-rank ridge regression: the optimum of any linear pack to d channels with a linear patch decoder.

    Minimises ``||Y - F A B||^2 + lambda ||A B||^2`` over A (C, d), B (d, P): with the ridge solution ``B*`` and the
    Gram's Cholesky factor L, the d leading right singular vectors of ``L^T B*`` span the decoder's rows.

    Args:
        features: (N, C).
        patches: (N, P).
        d: 1 <= d <= min(C, P).
        ridge: penalty over the mean eigenvalue of the features' Gram.
    """
    if features.ndim != 2 or patches.ndim != 2 or len(features) != len(patches):
        raise ValueError(f"expected (N, C) and (N, P), got {features.shape} and {patches.shape}")
    if not 1 <= d <= min(features.shape[1], patches.shape[1]) or not ridge > 0:
        raise ValueError(
            f"expected 1 <= d <= {min(features.shape[1], patches.shape[1])} and ridge > 0, got {d}, {ridge}"
        )
    x, y = features.astype(np.float64), patches.astype(np.float64)
    feature_mean, patch_mean = x.mean(0), y.mean(0)
    solution, factor = ridge_regression(x - feature_mean, y - patch_mean, ridge)
    _, _, right = svd(factor.T @ solution, full_matrices=False)
    rows = right[:d]
    return LinearPack((solution @ rows.T).T, rows.T, feature_mean, patch_mean)


def principal_pack(
    features: np.ndarray, patches: np.ndarray, d: int, ridge: float = 1e-4, *, standardise: bool = True
) -> LinearPack:
    """PCA to d channels (of standardised features by default) with a ridge decoder to patches; see the best pack."""
    x, y = features.astype(np.float64), patches.astype(np.float64)
    if not 1 <= d <= x.shape[1]:
        raise ValueError(f"expected 1 <= d <= {x.shape[1]}, got {d}")
    feature_mean, patch_mean = x.mean(0), y.mean(0)
    scale = np.maximum(x.std(0), 1e-12) if standardise else np.ones(x.shape[1])
    _, vectors = np.linalg.eigh(np.cov(((x - feature_mean) / scale).T))
    pack = vectors[:, ::-1][:, :d].T / scale
    coefficients, _ = ridge_regression((x - feature_mean) @ pack.T, y - patch_mean, ridge)
    return LinearPack(pack, coefficients.T, feature_mean, patch_mean)
