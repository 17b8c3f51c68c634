"""Latent-variable methods without an observed graph, in small: TDRL, IDOL, CDSD, iVAE, SlowVAE, PCL, TCL, PCA + VAR.

Each ``fit`` takes windows (N, T, d) and gives the latents (N, T, k) and their lagged graph (k, k) where it has one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from cadre.baselines import pcmci
from cadre.graph import GraphResult
from cadre.model import LatentDynamics, gaussian_log_density, mlp
from cadre.windows import step_generator


class LatentResult(NamedTuple):
    """Latents (N, T, k) and the strengths of their lag-1 graph, (k, k) i <- j, or None."""

    z: np.ndarray
    lagged: np.ndarray | None


def _windows(X: np.ndarray) -> np.ndarray:
    X = np.asarray(X, dtype=float)
    if X.ndim != 3 or not np.isfinite(X).all():
        raise ValueError(f"expected finite windows (N, T, d), got shape {X.shape}")
    flat = X.reshape(-1, X.shape[-1])
    return (X - flat.mean(0)) / flat.std(0)


class LatentVAE(nn.Module):
    """Encoder x_t -> z_t, decoder z_t -> x_t, and a prior over the latents' past.

    Args:
        d: observed series.
        k: latents.
        prior: ``flow`` (TDRL), ``instant`` (IDOL), ``laplace`` (SlowVAE), ``label`` (iVAE).
        single_parent: each series has one latent parent (CDSD).
        labels: number of labels for ``label``.
        generator: source of the initial weights.
    """

    def __init__(
        self, d: int, k: int, prior: str, single_parent: bool, labels: int, generator: torch.Generator
    ) -> None:
        super().__init__()
        self.k, self.prior, self.single_parent = k, prior, single_parent
        self.encoder = mlp(d, 64, 2 * k, 2, generator)
        self.decoder = mlp(k, 64, d, 2, generator)
        self.parent = nn.Parameter(0.1 * torch.randn(d, k, generator=generator))
        self.log_noise = nn.Parameter(torch.zeros(d))
        instant = "lower" if prior == "instant" else "none"
        self.dynamics = LatentDynamics(k, 1, 32, 2, instant, 0, generator)
        self.rate = nn.Parameter(torch.zeros(k))
        self.label = nn.Parameter(torch.zeros(max(labels, 1), 2, k))

    def weights(self) -> Tensor:
        """CDSD's decoder: each series' weights over the latents, sharpened to one parent."""
        return torch.softmax(self.parent.abs() / 0.1, dim=-1) * self.parent

    def decode(self, z: Tensor) -> Tensor:
        """x from z."""
        return z @ self.weights().mT if self.single_parent else self.decoder(z)

    def log_prior(self, z: Tensor, label: Tensor | None) -> Tensor:
        """log p(z) by latent, (B, T, k)."""
        if self.prior == "label" and label is not None:
            mean, log_sd = self.label[label].unbind(1)
            return gaussian_log_density(z, mean[:, None], log_sd[:, None])
        if self.prior == "laplace":
            step = z[:, 1:] - z[:, :-1]
            return torch.cat(
                [gaussian_log_density(z[:, :1]), self.rate - torch.exp(self.rate) * step.abs() - np.log(2)], 1
            )
        return self.dynamics(z).log_p


def fit_vae(
    X: np.ndarray,
    k: int,
    prior: str = "flow",
    *,
    single_parent: bool = False,
    labels: np.ndarray | None = None,
    steps: int = 1500,
    l1: float = 0.0,
    weights: tuple[float, float] = (0.0025, 0.0075),
    seed: int = 0,
) -> LatentResult:
    """Train a :class:`LatentVAE` (batch 128, Adam 1e-3).

    Args:
        X: windows (N, T, d).
        k: latents.
        prior: see :class:`LatentVAE`.
        single_parent: CDSD's decoder, with orthogonal columns by a quadratic penalty that grows (augmented Lagrangian).
        labels: for ``prior="label"``, (N,).
        steps: of training.
        l1: weight of the l1 norm of the latents' Jacobians (IDOL, CDSD).
        weights: of the KL of the first step and of the later ones (official defaults .0025, .0075).
        seed: of everything.
    """
    x = torch.as_tensor(_windows(X), dtype=torch.float32)
    label = None if labels is None else torch.as_tensor(np.asarray(labels), dtype=torch.long)
    count = 0 if label is None else int(label.max()) + 1
    model = LatentVAE(x.shape[-1], k, prior, single_parent, count, torch.Generator().manual_seed(seed))
    optimiser = torch.optim.Adam(model.parameters(), lr=1e-3, fused=True)
    multiplier, rho = 0.0, 0.1
    for step in range(steps):
        generator = step_generator(seed, step)
        rows = torch.randint(len(x), (128,), generator=generator)
        mean, log_var = model.encoder(x[rows]).chunk(2, dim=-1)
        noise = torch.randn(mean.shape, generator=generator)
        z = mean + noise * torch.exp(log_var.clamp(-8, 4) / 2)
        kl = (
            gaussian_log_density(noise)
            - log_var.clamp(-8, 4) / 2
            - model.log_prior(z, None if label is None else label[rows])
        )
        recon = -gaussian_log_density(x[rows], model.decode(z), model.log_noise.clamp(-3, 3)).mean((0, 1)).sum()
        loss = recon + weights[0] * kl[:, 0].mean(0).sum() + weights[1] * kl[:, 1:].mean((0, 1)).sum()
        if l1:
            density = model.dynamics(z, None, True)
            loss = loss + l1 * (density.lagged.abs().mean(0).sum() + density.instant.abs().mean(0).sum())
        if single_parent:
            W = model.weights()
            gap = (
                (nn.functional.normalize(W, dim=0).mT @ nn.functional.normalize(W, dim=0) - torch.eye(k)).square().sum()
            )
            loss = loss + multiplier * gap + 0.5 * rho * gap.square()
            if (step + 1) % 250 == 0:
                multiplier, rho = multiplier + rho * float(gap.detach()), min(10 * rho, 1e3)
        optimiser.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        optimiser.step()
    model.eval()
    with torch.no_grad():
        z = model.encoder(x).chunk(2, dim=-1)[0]
        rows = model.dynamics(z, None, True).lagged
        lagged = None if rows is None or prior in ("laplace", "label") else rows[:, :, 0].abs().mean(0).numpy()
    return LatentResult(z.numpy(), lagged)


def tdrl(X: np.ndarray, k: int, **options: Any) -> LatentResult:
    """TDRL (Yao et al. 2022): conditionally independent latents, no observed graph."""
    return fit_vae(X, k, "flow", **options)


def idol(X: np.ndarray, k: int, **options: Any) -> LatentResult:
    """IDOL (Li et al. 2025): with instantaneous effects and sparse Jacobians."""
    return fit_vae(X, k, "instant", l1=1e-3, **options)


def cdsd(X: np.ndarray, k: int, **options: Any) -> LatentResult:
    """CDSD (Brouillard et al. 2024): each series has one latent parent."""
    return fit_vae(X, k, "flow", single_parent=True, l1=1e-3, **options)


def slow_vae(X: np.ndarray, k: int, **options: Any) -> LatentResult:
    """SlowVAE (Klindt et al. 2021): Laplace transitions."""
    return fit_vae(X, k, "laplace", **options)


def ivae(X: np.ndarray, k: int, labels: np.ndarray | None = None, **options: Any) -> LatentResult:
    """iVAE (Khemakhem et al. 2020): the label is, for example, the month; needs one label a window."""
    if labels is None:
        raise ValueError("ivae expects labels, one a window, got None")
    return fit_vae(X, k, "label", labels=labels, weights=(0.0025, 0.0025), **options)


def _contrastive(
    features: nn.Module,
    score: Callable[[Tensor], Tensor],
    parameters: list[nn.Parameter],
    draw: Callable[[int], tuple[Tensor, Tensor]],
    steps: int,
) -> None:
    optimiser = torch.optim.Adam([*features.parameters(), *parameters], lr=2e-3, fused=True)
    for step in range(steps):
        inputs, target = draw(step)
        logits = score(inputs)
        if logits.ndim == 1:
            loss = nn.functional.binary_cross_entropy_with_logits(logits, target.to(logits.dtype))
        else:
            loss = nn.functional.cross_entropy(logits, target)
        optimiser.zero_grad(set_to_none=True)
        loss.backward()
        optimiser.step()


def pcl(X: np.ndarray, k: int, steps: int = 1500, seed: int = 0) -> LatentResult:
    """PCL (Hyvärinen and Morioka 2017): tell real pairs (x_t, x_{t-1}) from permuted ones."""
    x = torch.as_tensor(_windows(X), dtype=torch.float32)
    generator = torch.Generator().manual_seed(seed)
    features = mlp(x.shape[-1], 64, k, 2, generator)
    slope, shift = (nn.Parameter(0.1 * torch.randn(k, generator=generator)) for _ in range(2))
    bias = nn.Parameter(torch.zeros(()))

    def score(pairs: Tensor) -> Tensor:
        now, before = features(pairs[:, 0]), features(pairs[:, 1])
        return -((slope * now + shift * before).abs()).sum(-1) + (now.square() + before.square()).sum(-1) * 0.1 + bias

    def draw(step: int) -> tuple[Tensor, Tensor]:
        g = step_generator(seed, step)
        rows, other = torch.randint(len(x), (2, 128), generator=g)
        t = torch.randint(1, x.shape[1], (128,), generator=g)
        real = torch.stack([x[rows, t], x[rows, t - 1]], 1)
        fake = torch.stack([x[rows, t], x[other, t - 1]], 1)
        return torch.cat([real, fake]), torch.cat([torch.ones(128), torch.zeros(128)])

    _contrastive(features, score, [slope, shift, bias], draw, steps)
    with torch.no_grad():
        return LatentResult(features(x).numpy(), None)


def tcl(X: np.ndarray, k: int, segments: int = 10, steps: int = 1500, seed: int = 0) -> LatentResult:
    """TCL (Hyvärinen and Morioka 2016): classify the time segment, then linear ICA of the absolute features."""
    from sklearn.decomposition import FastICA

    x = torch.as_tensor(_windows(X), dtype=torch.float32)
    generator = torch.Generator().manual_seed(seed)
    features = mlp(x.shape[-1], 64, k, 2, generator)
    head = mlp(k, 1, segments, 0, generator)
    label = torch.arange(len(x)) * segments // len(x)

    def draw(step: int) -> tuple[Tensor, Tensor]:
        rows = torch.randint(len(x), (256,), generator=step_generator(seed, step))
        return x[rows, 0], label[rows]

    _contrastive(features, lambda inputs: head(features(inputs).abs()), list(head.parameters()), draw, steps)
    with torch.no_grad():
        found = features(x).abs().numpy().astype(float)
    flat = found.reshape(-1, k)
    z = FastICA(k, random_state=seed, whiten="unit-variance", max_iter=1000, tol=1e-3).fit_transform(flat)
    return LatentResult(z.reshape(found.shape), None)


def pca_var(X: np.ndarray, k: int) -> LatentResult:
    """Principal components and a vector autoregression of them."""
    x = _windows(X)
    _, _, V = np.linalg.svd(x.reshape(-1, x.shape[-1]), full_matrices=False)
    z = x @ V[:k].T
    z = z / z.reshape(-1, k).std(0)
    past, now = z[:, :-1].reshape(-1, k), z[:, 1:].reshape(-1, k)
    A = np.linalg.lstsq(past, now, rcond=None)[0].T
    return LatentResult(z, np.abs(A))


def varimax(loadings: np.ndarray, rounds: int = 200) -> np.ndarray:
    """The rotation (k, k) that makes loadings (d, k) simple (Kaiser 1958)."""
    d, k = loadings.shape
    R, last = np.eye(k), 0.0
    for _ in range(rounds):
        L = loadings @ R
        U, s, Vt = np.linalg.svd(loadings.T @ (L**3 - L * (L**2).sum(0) / d))
        R = U @ Vt
        if s.sum() <= last * (1 + 1e-8):
            break
        last = s.sum()
    return R


def varimax_pcmci(X: np.ndarray, k: int, tau_max: int = 2, alpha: float = 0.01) -> tuple[np.ndarray, GraphResult]:
    """Varimax components (T, k) of one series (T, d), and PCMCI among them (Nowack et al. 2020)."""
    x = _windows(np.asarray(X, dtype=float)[None])[0]
    _, s, V = np.linalg.svd(x, full_matrices=False)
    R = varimax(V[:k].T * s[:k] / np.sqrt(len(x)))
    z = x @ V[:k].T / s[:k] * np.sqrt(len(x)) @ R
    return z, pcmci(z, tau_max=tau_max, alpha=alpha)


LATENT_BASELINES: dict[str, Callable[..., LatentResult]] = {
    "tdrl": tdrl,
    "idol": idol,
    "cdsd": cdsd,
    "slowvae": slow_vae,
    "ivae": ivae,
    "pcl": pcl,
    "tcl": tcl,
    "pca": pca_var,
}

__all__ = ["LATENT_BASELINES", "LatentResult", "LatentVAE", "fit_vae", "varimax", "varimax_pcmci"]
