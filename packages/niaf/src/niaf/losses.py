"""Position, velocity, acceleration and jerk losses, and the time jitter that keeps a field from oscillating off
its grid.

    L = lambda_p mean ||Phi - a||^2 + lambda_v mean ||(2/T) Phi' - v||^2 + lambda_j mean ||(2/T)^3 Phi'''||^2

The jerk term in the paper's physical unit is of order (2/T)^6 omega^6: at omega = 30 some 10^4 times the position term.
``jerk_unit="chunk"`` (ours, the default) divides it by omega^6, so that it is below 1 at the start whatever omega is.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from niaf.field import SineField

JerkUnit = Literal["chunk", "physical"]


def not_a_knot(n: int) -> np.ndarray:
    """The cubic spline through n samples at 0, 1, ..., n-1 as a linear map of the samples.

    Returns:
        [4, n-1, n]: on interval i, the value is sum_k out[k, i] @ samples * (x - i)^k.
    """
    if n < 2:
        raise ValueError(f"a chunk needs at least 2 samples, got {n}")
    eye = np.eye(n)
    second = np.zeros((n, n))  # second derivatives at the samples
    if n > 2:
        system, right = np.zeros((n, n)), np.zeros((n, n))
        for i in range(1, n - 1):
            system[i, i - 1 : i + 2] = 1, 4, 1
            right[i, i - 1 : i + 2] = 6, -12, 6
        if n == 3:
            system[0, :2], system[2, 1:] = (1, -1), (1, -1)
        else:
            system[0, :3], system[-1, -3:] = (1, -2, 1), (1, -2, 1)
        second = np.linalg.solve(system, right)
    low, high, step = second[:-1], second[1:], eye[1:] - eye[:-1]
    return np.stack([eye[:-1], step - (2 * low + high) / 6, low / 2, (high - low) / 6])


class TimeJitter:
    """Draws training times uniformly within half a sample of each grid point and interpolates the targets (cubic).

    Without it a field of high frequency fits the K samples and oscillates between them (ours; see the README).

    Args:
        n_samples: K, the number of times a step.
        dense: samples of the recording a chunk, where it has a higher rate than K; K by default.
    """

    def __init__(self, n_samples: int, dense: int | None = None) -> None:
        self.n_samples, self.dense = n_samples, dense or n_samples
        self.coefficients = torch.as_tensor(not_a_knot(self.dense), dtype=torch.float32)
        self.grid = torch.linspace(-1, 1, n_samples)

    def times(self, batch: int, generator: torch.Generator | None = None) -> Tensor:
        """[B, K] in [-1, 1]."""
        noise = torch.rand(batch, self.n_samples, generator=generator) - 0.5
        return (self.grid + noise * 2 / (self.n_samples - 1)).clamp(-1, 1)

    def interpolate(self, samples: Tensor, tau: Tensor, order: int = 0) -> Tensor:
        """Cubic interpolant of samples [B, dense, d], or a derivative of it in tau, at tau [B, K] -> [B, K, d]."""
        if samples.shape[1] != self.dense:
            raise ValueError(f"expected {self.dense} samples a chunk, got {samples.shape[1]}")
        x = (tau.to(samples.dtype) + 1) / 2 * (self.dense - 1)
        i = x.floor().clamp(0, self.dense - 2).long()
        pieces = torch.einsum("pin,bnd->bpid", self.coefficients.to(samples), samples)
        picked = pieces.gather(2, i[:, None, :, None].expand(-1, 4, -1, samples.shape[2]))
        k = torch.arange(order, 4, device=x.device)[:, None, None]
        factor = torch.tensor([math.perm(n, order) for n in range(order, 4)], device=x.device)
        powers = factor[:, None, None] * (x - i)[:, None, :, None] ** (k - order)
        return (picked[:, order:] * powers).sum(1) * ((self.dense - 1) / 2) ** order

    def pad(self, mask: Tensor, tau: Tensor) -> Tensor:
        """Padding [B, dense] (True: no data) at tau: True where either neighbour is padded."""
        x = (tau + 1) / 2 * (self.dense - 1)
        low, high = x.floor().long().clamp(0, self.dense - 1), x.ceil().long().clamp(0, self.dense - 1)
        return mask.gather(1, low) | mask.gather(1, high)


def masked_mean(error: Tensor, mask: Tensor | None) -> Tensor:
    """Mean over batch and time of [B, K]; masked (True) entries do not count, and all masked gives 0."""
    if mask is None:
        return error.mean()
    keep = ~mask
    return torch.where(keep, error, torch.zeros_like(error)).sum() / keep.sum().clamp_min(1)


def _penalty(difference: Tensor, robust: str | None) -> Tensor:
    if robust is None:
        return difference.square()
    if robust == "l1":
        return difference.abs()
    return torch.nn.functional.huber_loss(difference, torch.zeros_like(difference), reduction="none")


@dataclass(frozen=True)
class FieldLoss:
    """Weighted losses of a field against a chunk.

    Attributes:
        lambda_pos: weight of the position.
        lambda_vel: weight of the velocity; needs recorded (or smoothed) velocities.
        lambda_acc: weight of the squared acceleration, in the unit of ``jerk_unit`` (ours).
        lambda_jerk: weight of the squared jerk (paper: 1e-4 to 1e-3, physical unit).
        jerk_unit: ``"chunk"`` or ``"physical"``, see the module.
        robust: None, ``"l1"`` or ``"huber"``, of position and velocity.
        channel_weights: one weight a channel.
        warm_up: steps over which acceleration and jerk weights grow from 0.
    """

    lambda_pos: float = 1.0
    lambda_vel: float = 0.0
    lambda_acc: float = 0.0
    lambda_jerk: float = 0.0
    jerk_unit: JerkUnit = "chunk"
    robust: Literal["l1", "huber"] | None = None
    channel_weights: Sequence[float] | None = None
    warm_up: int = 0

    def __post_init__(self) -> None:
        if min(self.lambda_pos, self.lambda_vel, self.lambda_acc, self.lambda_jerk) < 0:
            raise ValueError("weights of losses must not be negative")
        if self.jerk_unit not in ("chunk", "physical"):
            raise ValueError(f'jerk_unit must be "chunk" or "physical", got {self.jerk_unit!r}')
        if self.robust not in (None, "l1", "huber"):
            raise ValueError(f'robust must be None, "l1" or "huber", got {self.robust!r}')

    @property
    def order(self) -> int:
        """Highest derivative it needs."""
        return 3 if self.lambda_jerk else 2 if self.lambda_acc else 1 if self.lambda_vel else 0

    def scale(self, omega: float, duration: float, order: int) -> float:
        """What a squared derivative in tau of this order is multiplied by."""
        return omega ** (-2 * order) if self.jerk_unit == "chunk" else (2 / duration) ** (2 * order)

    def __call__(
        self,
        found: Sequence[Tensor],
        position: Tensor,
        duration: float,
        velocity: Tensor | None = None,
        mask: Tensor | None = None,
        omega: float = 1.0,
        step: int | None = None,
    ) -> dict[str, Tensor]:
        """Losses of derivatives in tau against targets.

        Args:
            found: Phi and its derivatives in tau up to :attr:`order`, each [B, K, d].
            position: targets [B, K, d].
            duration: T, seconds.
            velocity: targets per second, [B, K, d].
            mask: [B, K], True where there is no data.
            omega: the field's highest frequency, for the unit of acceleration and jerk.
            step: training step, for the warm-up.

        Returns:
            The terms by name, and their weighted sum ``loss``. Targets that are not finite do not count.
        """
        weights = torch.as_tensor(self.channel_weights or 1.0, dtype=position.dtype, device=position.device)
        bad = ~torch.isfinite(position).all(-1)
        if velocity is not None:
            bad = bad | ~torch.isfinite(velocity).all(-1)
        mask = bad if mask is None else mask | bad
        ramp = 1.0 if step is None or not self.warm_up else min(1.0, step / self.warm_up)

        def against(value: Tensor, target: Tensor) -> Tensor:
            target = torch.where(mask[..., None], value.detach(), target)
            return masked_mean((_penalty(value - target, self.robust) * weights).sum(-1), mask)

        terms = {"pos": against(found[0], position)}
        total = self.lambda_pos * terms["pos"]
        if self.lambda_vel:
            if velocity is None:
                raise ValueError("lambda_vel > 0 needs velocities")
            terms["vel"] = against(found[1] * (2 / duration), velocity)
            total = total + self.lambda_vel * terms["vel"]
        for name, order, weight in (("acc", 2, self.lambda_acc), ("jerk", 3, self.lambda_jerk)):
            if weight:
                squared = (found[order].square() * weights).sum(-1)
                terms[name] = masked_mean(squared, mask) * self.scale(omega, duration, order)
                total = total + weight * ramp * terms[name]
        return {"loss": total, **terms}


def field_omega(field: SineField) -> float:
    """The highest frequency of a field, the unit of its jerk."""
    return max(field.omegas)


def gripper_loss(logits: Tensor, closed: Tensor, mask: Tensor | None = None) -> Tensor:
    """Binary cross-entropy of gripper logits [B, K, G] against 0/1 targets."""
    raw = torch.nn.functional.binary_cross_entropy_with_logits(logits, closed.to(logits), reduction="none")
    return masked_mean(raw.sum(-1), mask)
