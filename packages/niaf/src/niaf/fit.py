"""Fit continuous functions to recorded chunks: one shared field, one code a chunk (an auto-decoder)."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from scipy.interpolate import CubicSpline
from sklearn.base import BaseEstimator, RegressorMixin

from niaf.field import Activation, AliasingWarning, SineField
from niaf.losses import FieldLoss, TimeJitter, field_omega
from niaf.modulation import LatentCode
from niaf.resample import check_times
from niaf.trajectory import Trajectory


@dataclass(frozen=True)
class FitOptions:
    """How fields are fitted.

    Attributes:
        omega: frequency of all layers: a number, ``"auto"``, or ``"paper"`` (30).
        omega_first: another frequency for the first layer.
        jitter: draw training times between the samples (:class:`~niaf.losses.TimeJitter`).
        lambda_vel: weight of velocities where they are given; the unit of time is the chunk.
        lambda_jerk: weight of the jerk, unit of :class:`~niaf.losses.FieldLoss`.
        width: of the network.
        layers: of the network.
        steps: of Adam.
        learning_rate: of Adam; falls to a tenth along a cosine.
        polish: iterations of L-BFGS afterwards, at four times as many fixed times (ours): for clean data and jerk.
        activation: of the network.
        seed: of weights and jitter.
    """

    omega: float | str = "auto"
    omega_first: float | str | None = None
    jitter: bool = True
    lambda_vel: float = 0.05
    lambda_jerk: float = 0.0
    width: int = 64
    layers: int = 3
    steps: int = 400
    learning_rate: float = 2e-3
    polish: int = 0
    activation: Activation = "sine"
    seed: int = 0


def warn_if_aliased(field: SineField, n_samples: int, jitter: bool) -> None:
    """Warn that a field may oscillate between its K training samples."""
    if not jitter and field.is_aliased(n_samples):
        warnings.warn(
            f"a field of frequency {max(field.omegas):g} trained on {n_samples} fixed times oscillates between them; "
            'use omega="auto" or time jitter',
            AliasingWarning,
            stacklevel=3,
        )


def _checked(chunks: np.ndarray, duration: float, velocity: np.ndarray | None) -> None:
    if chunks.ndim != 3 or chunks.shape[1] < 2:
        raise ValueError(f"expected chunks [B, K, d] of at least 2 samples, got shape {chunks.shape}")
    if not duration > 0:
        raise ValueError(f"a duration must be positive, got {duration}")
    if not np.isfinite(chunks).all():
        raise ValueError("chunks hold values that are not finite")
    if velocity is not None and velocity.shape != chunks.shape:
        raise ValueError(f"velocities {velocity.shape} and chunks {chunks.shape} differ in shape")


def fit_fields(
    chunks: np.ndarray,
    duration: float,
    velocity: np.ndarray | None = None,
    options: FitOptions = FitOptions(),
) -> list[Trajectory]:
    """Fit B chunks by one shared field and one modulation a chunk.

    Args:
        chunks: positions at K uniform times, [B, K, d].
        duration: T, seconds.
        velocity: recorded velocities there, per second.
        options: see :class:`FitOptions`.
    """
    chunks = np.asarray(chunks, float)
    velocity = None if velocity is None else np.asarray(velocity, float)
    _checked(chunks, duration, velocity)
    n, k, d = chunks.shape
    offset, scale = chunks.mean((0, 1)), chunks.std((0, 1))
    scale = np.where(scale > 0, scale, 1.0)
    x = torch.as_tensor((chunks - offset) / scale, dtype=torch.float32)
    v = None if velocity is None else torch.as_tensor(velocity * duration / scale, dtype=torch.float32)
    generator = torch.Generator().manual_seed(options.seed)
    first = options.omega if options.omega_first is None else options.omega_first
    field = SineField(d, options.layers, options.width, first, options.omega, k, options.activation, generator)
    warn_if_aliased(field, k, options.jitter)
    codes = LatentCode(n, field)
    loss = FieldLoss(lambda_vel=options.lambda_vel if v is not None else 0.0, lambda_jerk=options.lambda_jerk)
    parameters = [*field.parameters(), *codes.parameters()]
    optimiser = torch.optim.Adam(parameters, lr=options.learning_rate)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(
        optimiser, max(options.steps, 1), eta_min=options.learning_rate / 10
    )
    jitter = TimeJitter(k)
    for step in range(options.steps):
        if options.jitter:
            tau = jitter.times(n, generator)
            target, target_v = jitter.interpolate(x, tau), None if v is None else jitter.interpolate(v, tau)
        else:
            tau, target, target_v = jitter.grid, x, v
        found = field(tau, codes(), loss.order, "free")
        total = loss(found, target, 1.0, target_v, omega=field_omega(field), step=step)["loss"]
        optimiser.zero_grad(set_to_none=True)
        total.backward()
        optimiser.step()
        schedule.step()
    if options.polish:
        _polish(field, codes, loss, jitter, x, v, options.polish)
    mod = codes().detach()
    return [Trajectory.from_field(field, mod, duration, index=i, scale=scale, offset=offset) for i in range(n)]


def _polish(
    field: SineField,
    codes: LatentCode,
    loss: FieldLoss,
    jitter: TimeJitter,
    x: torch.Tensor,
    v: torch.Tensor | None,
    iterations: int,
) -> None:
    """L-BFGS in float64 on a fixed grid of four times as many times; targets by the cubic interpolant.

    Where velocities are given, their interpolant's derivative is a target of the acceleration too, with a tenth of
    their weight.
    """
    field.double(), codes.double()
    x, v = x.double(), None if v is None else v.double()
    tau = torch.linspace(-1, 1, 4 * (x.shape[1] - 1) + 1, dtype=x.dtype).expand(len(x), -1)
    target, target_v, target_a, order = jitter.interpolate(x, tau), None, None, 0
    if v is not None:
        target_v, target_a, order = jitter.interpolate(v, tau), 2 * jitter.interpolate(v, tau, 1), 2
    optimiser = torch.optim.LBFGS(
        [*field.parameters(), *codes.parameters()],
        max_iter=iterations,
        history_size=50,
        tolerance_change=1e-12,
        line_search_fn="strong_wolfe",
    )

    def closure() -> torch.Tensor:
        optimiser.zero_grad()
        found = field(tau, codes(), max(loss.order, order), "free")
        total = loss(found, target, 1.0, target_v, omega=field_omega(field))["loss"]
        if target_a is not None:
            total = total + 0.1 * loss.lambda_vel * (4 * found[2] - target_a).square().sum(-1).mean()
        total.backward()
        return total

    optimiser.step(closure)
    field.float(), codes.float()


def fit_field(
    t: np.ndarray, x: np.ndarray, v: np.ndarray | None = None, options: FitOptions | None = None, **changes: Any
) -> Trajectory:
    """Fit one recording by a field.

    Args:
        t: seconds, [K], increasing. Where they are not uniform (1 %) it warns and interpolates to a uniform grid first.
        x: positions, [K, d] or [K].
        v: velocities, likewise.
        options: see :class:`FitOptions`; ``changes`` are fields of it.

    Raises:
        DataError: for timestamps that are repeated or decrease.
    """
    options = replace(options or FitOptions(), **changes)
    t = np.asarray(t, float)
    x = np.asarray(x, float).reshape(len(x), -1)
    v = None if v is None else np.asarray(v, float).reshape(len(v), -1)
    if len(x) != len(t):
        raise ValueError(f"{len(t)} times and {len(x)} positions")
    check_times(t)
    uniform = np.linspace(t[0], t[-1], len(t))
    if np.abs(uniform - t).max() > 1e-9 * (t[-1] - t[0]):
        x = CubicSpline(t, x)(uniform)
        v = None if v is None else CubicSpline(t, v)(uniform)
    (found,) = fit_fields(x[None], t[-1] - t[0], None if v is None else v[None], options)
    return found.starting_at(float(t[0]))


class FieldRegressor(RegressorMixin, BaseEstimator):
    """A field of one variable in the manner of scikit-learn: ``fit(t, x)``, ``predict(t, order=1)``.

    Args:
        omega: see :class:`FitOptions`.
        jitter: see :class:`FitOptions`.
        lambda_vel: see :class:`FitOptions`.
        lambda_jerk: see :class:`FitOptions`.
        width: of the network.
        steps: of Adam.
        random_state: seed.

    Attributes:
        trajectory_: the fitted :class:`~niaf.trajectory.Trajectory`.
    """

    def __init__(
        self,
        omega: float | str = "auto",
        jitter: bool = True,
        lambda_vel: float = 0.05,
        lambda_jerk: float = 0.0,
        width: int = 64,
        steps: int = 400,
        random_state: int = 0,
    ) -> None:
        self.omega, self.jitter, self.lambda_vel, self.lambda_jerk = omega, jitter, lambda_vel, lambda_jerk
        self.width, self.steps, self.random_state = width, steps, random_state

    def fit(self, X: Any, y: Any, velocity: Any = None) -> FieldRegressor:
        """Fit positions y [n] or [n, d] at times X [n, 1] or [n]."""
        y = np.asarray(y, float)
        self.one_dimensional_ = y.ndim == 1
        options = FitOptions(
            self.omega, None, self.jitter, self.lambda_vel, self.lambda_jerk, self.width, 3, self.steps
        )
        self.n_features_in_ = 1
        self.trajectory_ = fit_field(_times(X), y, velocity, replace(options, seed=self.random_state))
        return self

    def predict(self, X: Any, order: int = 0) -> np.ndarray:
        """Position or its derivative of this order at times X."""
        found = self.trajectory_.at(_times(X), order)
        return found[:, 0] if self.one_dimensional_ else found


def _times(X: Any) -> np.ndarray:
    X = np.asarray(X, float)
    if (X.ndim == 2 and X.shape[1] != 1) or X.ndim not in (1, 2):
        raise ValueError(f"expected times [n] or [n, 1], got shape {X.shape}")
    return X.reshape(-1)
