"""Self-distilled ridge on torch tensors: linear probes on features that live on an accelerator.

Rows are read in blocks; moments are float64 (float32 features are converted block by block, so TF32 plays no part)
and the eigenvectors are found on the device in float64. The risks are those of :mod:`ridge_sd.core` (generalised
cross-validation).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import nn

from ridge_sd.core import PrimalMap, SDPath, Spectrum
from ridge_sd.core import sd_path as numpy_path

BLOCK = 65_536


def _moments(
    X: torch.Tensor, Y: torch.Tensor, device: torch.device, block: int, intercept: bool
) -> tuple[torch.Tensor, ...]:
    n, p = X.shape
    x_mean = torch.zeros(p, dtype=torch.float64, device=device)
    y_mean = torch.zeros(Y.shape[1], dtype=torch.float64, device=device)
    parts = [slice(low, min(low + block, n)) for low in range(0, n, block)]
    if intercept:
        for rows in parts:
            x_mean += X[rows].to(device, torch.float64).sum(0) / n
            y_mean += Y[rows].to(device, torch.float64).sum(0) / n
    Sxx = torch.zeros(p, p, dtype=torch.float64, device=device)
    Sxy = torch.zeros(p, Y.shape[1], dtype=torch.float64, device=device)
    Syy = torch.zeros(Y.shape[1], dtype=torch.float64, device=device)
    for rows in parts:
        Xc = X[rows].to(device, torch.float64) - x_mean
        Yc = Y[rows].to(device, torch.float64) - y_mean
        Sxx.addmm_(Xc.T, Xc)
        Sxy.addmm_(Xc.T, Yc)
        Syy += Yc.square().sum(0)
    return x_mean, y_mean, Sxx, Sxy, Syy


def spectrum(
    X: torch.Tensor,
    Y: torch.Tensor,
    *,
    device: torch.device | str | None = None,
    block: int = BLOCK,
    fit_intercept: bool = True,
) -> Spectrum:
    """One decomposition of features X, (n, p), and targets Y, (n,) or (n, q), on a device.

    Args:
        X: features, on any device; moved in blocks.
        Y: targets.
        device: where to compute; default that of X.
        block: rows at a time.
        fit_intercept: centre.

    Raises:
        ValueError: for shapes that do not fit, or values that are not finite.
    """
    Y = Y[:, None] if Y.ndim == 1 else Y
    if X.ndim != 2 or Y.ndim != 2 or len(X) != len(Y) or len(X) < 2:
        raise ValueError(
            f"expected X (n, p) and Y (n,) or (n, q) with n >= 2, got {tuple(X.shape)} and {tuple(Y.shape)}"
        )
    where = X.device if device is None else torch.device(device)
    x_mean, y_mean, Sxx, Sxy, Syy = _moments(X, Y, where, block, fit_intercept)
    if not bool(torch.isfinite(Sxx).all() & torch.isfinite(Sxy).all()):
        raise ValueError("features and targets must be finite")
    values, vectors = torch.linalg.eigh(Sxx)
    keep = values > values[-1].clamp(min=0) * max(X.shape) * torch.finfo(torch.float64).eps
    s2, V = values[keep].flip(0), vectors[:, keep].flip(1)
    Uty = (V.T @ Sxy) / s2.sqrt()[:, None]
    rho2 = (Syy - Uty.square().sum(0)).clamp(min=0)

    def host(x: torch.Tensor) -> np.ndarray:
        return x.cpu().numpy()

    return Spectrum(
        s2=host(s2),
        Uty=host(Uty),
        rho2=host(rho2),
        target=np.empty((0, Y.shape[1])),
        weights=np.empty(0),
        total_weight=float(len(X)),
        n_eff=float(len(X)),
        removed=np.empty(0),
        intercept=fit_intercept,
        x_mean=host(x_mean),
        y_mean=host(y_mean),
        U=np.empty((0, int(keep.sum()))),
        to_coef=PrimalMap(host(V), np.sqrt(host(s2))),
    )


def sd_path(X: torch.Tensor, Y: torch.Tensor, alphas: Any, *, xi_mode: Any = "shared", **options: Any) -> SDPath:
    """Risks of ridge and its best student over penalties (alpha = n lambda); options as in :func:`spectrum`."""
    return numpy_path(spectrum(X, Y, **options), np.asarray(alphas, dtype=float), criterion="gcv", xi_mode=xi_mode)


class LinearProbeSD(nn.Module):
    """A linear probe fitted in closed form.

    Args:
        alphas: penalties; default n times 100 values from 1e-3 to 50.
        select: ``"joint"`` or ``"teacher"``.
        xi_mode: ``"shared"`` or ``"per_target"``.
        block: rows at a time.

    Attributes:
        linear: the fitted ``nn.Linear``; usable and savable as any other.
        alpha: chosen penalty.
        xi: chosen mixing weights, (q,).
    """

    def __init__(
        self, alphas: Any = None, *, select: Any = "joint", xi_mode: Any = "shared", block: int = BLOCK
    ) -> None:
        super().__init__()
        self.alphas, self.select, self.xi_mode, self.block = alphas, select, xi_mode, block
        self.linear: nn.Linear | None = None

    @torch.no_grad()
    def fit(self, features: torch.Tensor, targets: torch.Tensor) -> LinearProbeSD:
        """Fit to features (n, p) and targets (n,) or (n, q): real values, or one-hot classes."""
        n = len(features)
        grid = n * np.logspace(-3, np.log10(50), 100) if self.alphas is None else np.asarray(self.alphas, dtype=float)
        path = sd_path(features, targets, grid, xi_mode=self.xi_mode, block=self.block)
        chosen = path.best(self.select, guard_se=0)
        coef = path.coef(chosen.index, chosen.xi)
        self.alpha, self.xi = float(grid[chosen.index]), chosen.xi
        linear = nn.Linear(*coef.shape, device=features.device, dtype=features.dtype)
        linear.weight.copy_(torch.as_tensor(coef.T))
        linear.bias.copy_(torch.as_tensor(path.spectrum.y_mean - path.spectrum.x_mean @ coef))
        self.linear = linear
        return self

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        """Predictions, (n, q)."""
        if self.linear is None:
            raise RuntimeError("LinearProbeSD is not fitted yet; call fit first")
        return self.linear(features)
