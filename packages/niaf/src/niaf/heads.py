"""Action heads with one interface: a conditioning goes in, a chunk that answers at any time comes out.

``FieldHead`` is the paper's. The others are what users have today, under the same data, losses and metrics:
waypoints (ACT,
OFT), B-splines (BEAST), DCT (FAST), Fourier series, cubics, ProDMP, diffusion and flow matching.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from niaf import bases
from niaf.field import Activation, SineField
from niaf.fit import warn_if_aliased
from niaf.losses import FieldLoss, TimeJitter, field_omega, gripper_loss, masked_mean
from niaf.modulation import (
    FiLM,
    GroupedModulator,
    HyperNetwork,
    LatentCode,
    Modulation,
    QueryResampler,
    VectorModulator,
)
from niaf.resample import ActionKind, check_kind, check_rate
from niaf.trajectory import SineCurve, Trajectory

SCALES = ("deviation", "quantiles")


@dataclass(frozen=True)
class ChunkSpec:
    """What a head predicts.

    Attributes:
        cond_dim: size of the conditioning vector, or of each token.
        action_dim: channels d, gripper included.
        horizon: K actions.
        fps: their rate, Hz.
        action_kind: ``"absolute"`` targets or ``"delta"`` increments; see :mod:`niaf.resample`.
        gripper: channels with two states: they get logits of their own, held between samples, and no smooth function.
        gripper_values: (open, closed) as the data have them.
    """

    cond_dim: int
    action_dim: int
    horizon: int
    fps: float
    action_kind: ActionKind = "absolute"
    gripper: Sequence[int] = ()
    gripper_values: tuple[float, float] = (-1.0, 1.0)

    def __post_init__(self) -> None:
        check_kind(self.action_kind)
        check_rate(self.fps)
        if min(self.cond_dim, self.action_dim) < 1:
            raise ValueError(f"cond_dim and action_dim must be at least 1, got {self.cond_dim}, {self.action_dim}")
        if self.horizon < 2:
            raise ValueError(f"a chunk needs at least 2 samples, got {self.horizon}")
        if any(not 0 <= g < self.action_dim for g in self.gripper) or len(self.smooth) == 0:
            raise ValueError(f"gripper channels {tuple(self.gripper)} do not fit {self.action_dim} channels")

    @property
    def smooth(self) -> list[int]:
        """Channels that are functions of time."""
        return [i for i in range(self.action_dim) if i not in self.gripper]

    @property
    def n_points(self) -> int:
        """Samples of the function: K, or K + 1 of the running sum."""
        return self.horizon + (self.action_kind == "delta")

    @property
    def duration(self) -> float:
        """(K - 1) / fps seconds, or K / fps for increments."""
        return (self.n_points - 1) / self.fps


def small_network(sizes: Sequence[int]) -> nn.Sequential:
    """Linear layers with GELU in between."""
    parts: list[nn.Module] = []
    for i, (a, b) in enumerate(itertools.pairwise(sizes)):
        parts += [nn.Linear(a, b)] + ([nn.GELU()] if i < len(sizes) - 2 else [])
    return nn.Sequential(*parts)


class Prediction:
    """A batch of chunks as functions of time.

    Args:
        head: that made it.
        params: what the head predicts.
        logits: of the gripper, [B, K, G].
    """

    def __init__(self, head: ActionHead, params: Any, logits: Tensor | None) -> None:
        self.head, self.params, self.logits = head, params, logits

    def at(self, tau: Tensor, order: int = 0) -> tuple[Tensor, ...]:
        """Smooth channels at tau [K] or [B, K] in [-1, 1], in the data's unit and seconds: order + 1 tensors [B,
        K, ds]."""
        head = self.head
        found = head.evaluate(self.params, tau, order)
        rate = 2 / head.spec.duration
        parts = [part * head.std * rate**n for n, part in enumerate(found)]
        if head.spec.action_kind == "delta":
            start = head.evaluate(self.params, tau.new_full((1,), -1.0), 0)[0] * head.std
            parts[0] = parts[0] - start
        else:
            parts[0] = parts[0] + head.mean
        return tuple(parts)

    def actions(self, fps: float | None = None) -> Tensor:
        """Action chunk [B, n, d] at a rate (the data's by default); increments are differences of the running sum."""
        spec = self.head.spec
        fps = spec.fps if fps is None else fps
        check_rate(fps)
        n = round(spec.duration * fps + 1e-9) if spec.action_kind == "delta" else int(spec.duration * fps + 1e-6) + 1
        points = n + 1 if spec.action_kind == "delta" else n
        t = torch.arange(points, device=self.head.std.device) / fps
        values = self.at((2 * t / spec.duration - 1).clamp(-1, 1))[0]
        values = values.diff(dim=1) if spec.action_kind == "delta" else values
        out = values.new_zeros(values.shape[0], n, spec.action_dim)
        out[:, :, spec.smooth] = values
        if self.logits is not None:
            index = (t[:n] * spec.fps + 1e-4).floor().long().clamp(max=spec.horizon - 1)
            low, high = spec.gripper_values
            states = torch.where(self.logits > 0, high, low)[:, index].to(out)
            out[:, :, list(spec.gripper)] = states
        return out

    def trajectory(self, i: int = 0, t0: float = 0.0) -> Trajectory:
        """Chunk i (smooth channels) on its own, in numpy."""
        head = self.head
        curve = head.curve(self.params, i)
        scale = head.std.detach().cpu().double().numpy()
        if head.spec.action_kind == "delta":
            offset = -scale * curve(np.array([-1.0]), 0)[0][0]
        else:
            offset = head.mean.detach().cpu().double().numpy()
        return Trajectory(curve, head.spec.duration, t0, scale, offset)


class ActionHead(nn.Module):
    """Normalisation, gripper, masks; the representation is the subclass's.

    Args:
        spec: what to predict.
        loss: weights of position, velocity and jerk losses.
    """

    std: Tensor
    mean: Tensor
    grid: Tensor

    def __init__(self, spec: ChunkSpec, loss: FieldLoss = FieldLoss(lambda_vel=0.05)) -> None:
        super().__init__()
        self.spec, self.field_loss = spec, loss
        ds = len(spec.smooth)
        self.register_buffer("mean", torch.zeros(ds))
        self.register_buffer("std", torch.ones(ds))
        self.register_buffer("grid", torch.linspace(-1, 1, spec.n_points))
        self.gripper = None
        if len(spec.gripper):
            self.gripper = small_network([spec.cond_dim, 128, spec.horizon * len(spec.gripper)])

    def set_statistics(self, chunks: np.ndarray | Tensor, scale: str = "deviation") -> None:
        """Take centre and scale from chunks [N, K, d]; a constant channel keeps scale 1.

        Args:
            chunks: in the data's unit.
            scale: ``deviation`` (mean and standard deviation), or ``quantiles`` (the 1st and the 99th percentile become
                -1 and 1, as is usual for LIBERO's actions). Increments keep their zero.

        Raises:
            ValueError: for another scale.
        """
        if scale not in SCALES:
            raise ValueError(f"scale must be one of {', '.join(SCALES)}, got {scale!r}")
        target, _ = self._target(torch.as_tensor(np.asarray(chunks), dtype=torch.float32), None)
        flat = target.reshape(-1, target.shape[-1])
        flat = flat[torch.isfinite(flat).all(1)]
        if scale == "deviation":
            centre, spread = flat.mean(0), flat.std(0, unbiased=False)
        else:
            ends = np.quantile(flat.numpy(), [0.01, 0.99], axis=0).astype(np.float32)
            centre, spread = torch.from_numpy(ends[0] + ends[1]) / 2, torch.from_numpy(ends[1] - ends[0]) / 2
        delta = self.spec.action_kind == "delta"
        self.mean.copy_(torch.zeros_like(spread) if delta else centre)
        self.std.copy_(torch.where(spread > 1e-8, spread, torch.ones_like(spread)))

    def _target(self, chunk: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Values of the function at its grid, in the data's unit, and their padding."""
        smooth = chunk[:, :, self.spec.smooth]
        if self.spec.action_kind == "absolute":
            return smooth, mask
        zero = torch.zeros_like(smooth[:, :1])
        total = torch.cat([zero, smooth.cumsum(1)], 1)
        return total, None if mask is None else torch.cat([torch.zeros_like(mask[:, :1]), mask], 1)

    def pooled(self, cond: Tensor) -> Tensor:
        """Tokens [B, Q, c] -> their mean; a vector is left as it is."""
        return cond.mean(1) if cond.ndim == 3 else cond

    def forward(self, cond: Tensor) -> Prediction:
        """Conditioning [B, cond_dim] (or tokens [B, Q, cond_dim]) -> a batch of chunks."""
        return Prediction(self, self.predict(cond), self._logits(cond))

    def _logits(self, cond: Tensor) -> Tensor | None:
        if self.gripper is None:
            return None
        return self.gripper(self.pooled(cond)).reshape(len(cond), self.spec.horizon, len(self.spec.gripper))

    def loss(
        self,
        cond: Tensor,
        chunk: Tensor,
        velocity: Tensor | None = None,
        mask: Tensor | None = None,
        step: int | None = None,
        generator: torch.Generator | None = None,
    ) -> dict[str, Tensor]:
        """Losses against recorded chunks; ``loss`` is their weighted sum.

        Args:
            cond: see :meth:`forward`.
            chunk: actions [B, K, d]; those that are not finite do not count.
            velocity: recorded velocities of the actions [B, K, d], per second; None: no velocity term.
            mask: [B, K], True where padded.
            step: training step, for the warm-up of the jerk.
            generator: of jitter and noise.

        Raises:
            ValueError: for velocities of increments: an increment is a velocity already, in units of its step.
        """
        spec = self.spec
        if chunk.shape[1:] != (spec.horizon, spec.action_dim):
            raise ValueError(f"expected chunks [B, {spec.horizon}, {spec.action_dim}], got {tuple(chunk.shape)}")
        if velocity is not None and spec.action_kind == "delta":
            raise ValueError(
                'a velocity loss needs action_kind="absolute": increments are velocities already (unit per 1/fps s), '
                "and the function that is fitted is their sum"
            )
        bad = ~torch.isfinite(chunk).all(-1)
        mask = bad if mask is None else mask.bool() | bad
        chunk = torch.where(bad[..., None], torch.zeros_like(chunk), chunk)
        target, points_mask = self._target(chunk, mask)
        if spec.action_kind == "delta" and points_mask is not None:  # a sum is wrong after its first gap
            points_mask = points_mask.cumsum(1) > 0
        x = (target - self.mean) / self.std
        v = None if velocity is None else velocity[:, :, spec.smooth] / self.std
        terms = self.function_loss(cond, x, v, points_mask, step, generator)
        logits = self._logits(cond)
        if logits is not None:
            middle = sum(spec.gripper_values) / 2
            closed = (chunk[:, :, list(spec.gripper)] - middle) * (spec.gripper_values[1] - middle) > 0
            terms["gripper"] = gripper_loss(logits, closed, mask)
            terms["loss"] = terms["loss"] + terms["gripper"]
        return terms

    # --- of the representation --------------------------------------------------------------------------------

    def predict(self, cond: Tensor) -> Any:
        """Parameters of the function."""
        raise NotImplementedError

    def evaluate(self, params: Any, tau: Tensor, order: int) -> tuple[Tensor, ...]:
        """Normalised function and its derivatives in tau."""
        raise NotImplementedError

    def curve(self, params: Any, i: int) -> Any:
        """The normalised function of chunk i, in numpy."""
        raise NotImplementedError

    def function_loss(
        self,
        cond: Tensor,
        x: Tensor,
        v: Tensor | None,
        mask: Tensor | None,
        step: int | None,
        generator: torch.Generator | None,
    ) -> dict[str, Tensor]:
        """Losses of normalised targets at the grid."""
        order = 3 if self.field_loss.lambda_jerk else 2 if self.field_loss.lambda_acc else int(v is not None)
        found = self.evaluate(self.predict(cond), self.grid, order)
        return _weighted(self.field_loss, found, x, self.spec.duration, v, mask, 1.0, step)

    def parameter_groups(self, learning_rate: float, weight_decay: float = 0.0) -> list[dict[str, Any]]:
        """Groups for AdamW; the weights of a field, its motion prior, never decay."""
        prior = {id(p) for m in self.modules() if isinstance(m, SineField) for p in m.parameters()}
        groups = [[p for p in self.parameters() if (id(p) in prior) == flag] for flag in (False, True)]
        return [
            {"params": group, "lr": learning_rate, "weight_decay": decay}
            for group, decay in zip(groups, (weight_decay, 0.0), strict=True)
            if group
        ]


def _weighted(
    loss: FieldLoss,
    found: Sequence[Tensor],
    x: Tensor,
    duration: float,
    v: Tensor | None,
    mask: Tensor | None,
    omega: float,
    step: int | None,
) -> dict[str, Tensor]:
    if v is None and loss.lambda_vel:
        loss = replace(loss, lambda_vel=0.0)
    return loss(found, x, duration, v, mask, omega, step)


class BasisHead(ActionHead):
    """A network predicts the coefficients of a linear basis.

    Args:
        spec: what to predict.
        basis: of :mod:`niaf.bases`.
        width: of the hidden layers.
        loss: weights.
    """

    def __init__(
        self, spec: ChunkSpec, basis: Any, width: int = 256, loss: FieldLoss = FieldLoss(lambda_vel=0.05)
    ) -> None:
        super().__init__(spec, loss)
        self.basis = basis
        self.network = small_network([spec.cond_dim, width, width, basis.n * len(spec.smooth)])
        self._cache: dict[Any, list[Tensor]] = {}

    def predict(self, cond: Tensor) -> Tensor:
        """Coefficients [B, n, ds]."""
        return self.network(self.pooled(cond)).reshape(len(cond), self.basis.n, len(self.spec.smooth))

    def evaluate(self, params: Tensor, tau: Tensor, order: int) -> tuple[Tensor, ...]:
        """See :class:`ActionHead`; tau [K] or [B, K]."""
        if tau is self.grid:
            key = (order, params.dtype, params.device)
            if key not in self._cache:
                self._cache[key] = self._matrices(tau, order, params)
            return tuple(m @ params for m in self._cache[key])
        if tau.ndim == 1:
            return tuple(m @ params for m in self._matrices(tau, order, params))
        flat = self._matrices(tau.reshape(-1), order, params)
        return tuple(m.reshape(*tau.shape, -1) @ params for m in flat)

    def _matrices(self, tau: Tensor, order: int, like: Tensor) -> list[Tensor]:
        found = self.basis(tau.detach().cpu().double().numpy(), order)
        return [torch.as_tensor(m, dtype=like.dtype, device=like.device) for m in found]

    def curve(self, params: Tensor, i: int) -> bases.BasisCurve:
        """See :class:`ActionHead`."""
        return bases.BasisCurve(self.basis, params[i].detach().cpu().double().numpy())

    def encode(self, chunk: Tensor) -> Tensor:
        """Coefficients [B, n, ds] of chunks [B, K, d] by ridge least squares."""
        target, _ = self._target(chunk, None)
        x = (target - self.mean) / self.std
        matrix = bases.encoder(self.basis, self.grid.double().cpu().numpy())
        return torch.as_tensor(matrix, dtype=x.dtype, device=x.device) @ x


class WaypointHead(BasisHead):
    """K waypoints, L1 loss (ACT, OFT). Between them: lines, and finite differences."""

    def __init__(self, spec: ChunkSpec, width: int = 256) -> None:
        super().__init__(spec, bases.WaypointBasis(spec.n_points), width, FieldLoss(robust="l1"))

    def function_loss(self, cond, x, v, mask, step, generator):
        """L1 of the waypoints; velocities have no place in this representation."""
        return super().function_loss(cond, x, None, mask, step, generator)


class BSplineHead(BasisHead):
    """B-spline control points (BEAST). ``quantize`` bins turn them into tokens with a cross-entropy (BEAST-F).

    Args:
        spec: what to predict.
        n_control: control points.
        degree: of the spline.
        quantize: bins, or None for continuous control points.
        bound: tokens cover [-bound, bound] deviations.
        width: of the network.
        loss: weights.
    """

    def __init__(
        self,
        spec: ChunkSpec,
        n_control: int = 10,
        degree: int = 4,
        quantize: int | None = None,
        bound: float = 4.0,
        width: int = 256,
        loss: FieldLoss = FieldLoss(lambda_vel=0.05),
    ) -> None:
        n_control = min(n_control, spec.n_points)
        super().__init__(spec, bases.BSplineBasis(n_control, min(degree, n_control - 1)), width, loss)
        self.quantize, self.bound = quantize, bound
        if quantize:
            outputs = self.basis.n * len(spec.smooth) * quantize
            self.network = small_network([spec.cond_dim, width, width, outputs])

    def _token_logits(self, cond: Tensor) -> Tensor:
        assert self.quantize
        return self.network(self.pooled(cond)).reshape(len(cond), self.basis.n, len(self.spec.smooth), self.quantize)

    def predict(self, cond: Tensor) -> Tensor:
        """Control points [B, n, ds]."""
        if not self.quantize:
            return super().predict(cond)
        return self.detokenise(self._token_logits(cond).argmax(-1))

    def tokenise(self, coefficients: Tensor) -> Tensor:
        """Control points -> integers."""
        step = 2 * self.bound / ((self.quantize or 256) - 1)
        return ((coefficients + self.bound) / step).round().clamp(0, (self.quantize or 256) - 1).long()

    def detokenise(self, tokens: Tensor) -> Tensor:
        """Integers -> control points."""
        return tokens * (2 * self.bound / ((self.quantize or 256) - 1)) - self.bound

    def function_loss(self, cond, x, v, mask, step, generator):
        """Cross-entropy of the tokens, or the smooth losses."""
        if not self.quantize:
            return super().function_loss(cond, x, v, mask, step, generator)
        matrix = torch.as_tensor(bases.encoder(self.basis, self.grid.double().cpu().numpy()), dtype=x.dtype)
        tokens = self.tokenise(matrix.to(x.device) @ x)
        logits = self._token_logits(cond)
        raw = nn.functional.cross_entropy(logits.flatten(0, 2), tokens.flatten(), reduction="none")
        whole = ~mask.any(1) if mask is not None else torch.ones(len(x), dtype=torch.bool, device=x.device)
        return {"loss": masked_mean(raw.reshape(len(x), -1).mean(1, keepdim=True), ~whole[:, None])}


class DCTHead(BasisHead):
    """The first DCT coefficients (FAST). ``tokenise`` scales and rounds them to integers, low frequencies first."""

    def __init__(
        self,
        spec: ChunkSpec,
        n_coefficients: int = 10,
        scale: float = 10.0,
        width: int = 256,
        loss: FieldLoss = FieldLoss(lambda_vel=0.05),
    ) -> None:
        super().__init__(spec, bases.CosineBasis(min(n_coefficients, spec.n_points), spec.n_points), width, loss)
        self.scale = scale

    def tokenise(self, coefficients: Tensor) -> Tensor:
        """Coefficients [B, n, ds] -> integers [B, n ds], low frequencies of all channels first."""
        return (coefficients * self.scale).round().long().flatten(1)

    def detokenise(self, tokens: Tensor) -> Tensor:
        """The inverse, up to rounding."""
        return tokens.reshape(len(tokens), self.basis.n, -1) / self.scale


class FourierHead(BasisHead):
    """Fixed frequencies up to half of Nyquist's: no aliasing by construction."""

    def __init__(
        self,
        spec: ChunkSpec,
        n_frequencies: int | None = None,
        width: int = 256,
        loss: FieldLoss = FieldLoss(lambda_vel=0.05),
    ) -> None:
        most = max(1, (spec.n_points - 2) // 2)
        count = min(most, 4) if n_frequencies is None else n_frequencies
        super().__init__(spec, bases.FourierBasis(spec.n_points, count), width, loss)


class CubicHead(BasisHead):
    """Values and velocities of K waypoints, cubics in between: once continuous, exact derivatives."""

    def __init__(self, spec: ChunkSpec, width: int = 256, loss: FieldLoss = FieldLoss(lambda_vel=0.05)) -> None:
        super().__init__(spec, bases.HermiteBasis(spec.n_points), width, loss)

    def predict(self, cond: Tensor) -> Tensor:
        """Values, and slopes as Catmull-Rom's plus a learned change."""
        raw = super().predict(cond)
        values, change = raw.chunk(2, 1)
        (slopes,) = torch.gradient(values, spacing=2 / (self.spec.n_points - 1), dim=1)
        return torch.cat([values, slopes + change], 1)

    def encode(self, chunk: Tensor) -> Tensor:
        """Values and Catmull-Rom slopes."""
        target, _ = self._target(chunk, None)
        values = (target - self.mean) / self.std
        (slopes,) = torch.gradient(values, spacing=2 / (self.spec.n_points - 1), dim=1)
        return torch.cat([values, slopes], 1)


class ProDMPHead(BasisHead):
    """Probabilistic dynamic movement primitives: start and start velocity are enforced where they are given.

    Coefficients are (start, start velocity in tau, weights, goal); see :meth:`from_state`.
    """

    def __init__(
        self, spec: ChunkSpec, n_weights: int = 10, width: int = 256, loss: FieldLoss = FieldLoss(lambda_vel=0.05)
    ) -> None:
        super().__init__(spec, bases.ProDMPBasis(n_weights), width, loss)

    def from_state(self, params: Tensor, position: Tensor, velocity: Tensor) -> Tensor:
        """Replace the start by a measured one: position and velocity per second, [B, ds], in the data's unit."""
        start = (position - self.mean) / self.std
        slope = velocity / self.std * self.spec.duration / 2
        return torch.cat([start[:, None], slope[:, None], params[:, 2:]], 1)


class _Denoiser(nn.Module):
    """A small 1-d U-Net over time, conditioned on a vector and a noise level."""

    def __init__(self, channels: int, cond: int, width: int) -> None:
        super().__init__()
        self.condition = small_network([cond + 32, width, 2 * width])
        self.enter = nn.Conv1d(channels, width, 3, padding=1)
        self.down = nn.Conv1d(width, 2 * width, 3, stride=2, padding=1)
        self.middle = nn.Conv1d(2 * width, 2 * width, 3, padding=1)
        self.up = nn.ConvTranspose1d(2 * width, width, 4, stride=2, padding=1)
        self.leave = nn.Conv1d(2 * width, channels, 3, padding=1)

    def forward(self, x: Tensor, level: Tensor, cond: Tensor) -> Tensor:
        frequencies = torch.exp(torch.linspace(0, 6, 16, device=x.device))
        angles = level[:, None] * frequencies
        c = self.condition(torch.cat([cond, angles.sin(), angles.cos()], 1))[..., None]
        n = x.shape[1]
        h = x.transpose(1, 2)
        h = nn.functional.pad(h, (0, n % 2))
        first = nn.functional.gelu(self.enter(h))
        h = nn.functional.gelu(self.down(first) + c)
        h = h + nn.functional.gelu(self.middle(h))
        return self.leave(torch.cat([self.up(h), first], 1)).transpose(1, 2)[:, :n]


class DiffusionHead(WaypointHead):
    """Waypoints by diffusion: noise is predicted, DDIM samples in 10 steps (Diffusion Policy)."""

    def __init__(self, spec: ChunkSpec, steps: int = 10, train_steps: int = 100, width: int = 64) -> None:
        super().__init__(spec, width)
        self.network = nn.Identity()
        self.steps, self.train_steps = steps, train_steps
        self.denoiser = _Denoiser(len(spec.smooth), spec.cond_dim, width)
        s = torch.linspace(0, 1, train_steps + 1)
        signal = torch.cos((s + 0.008) / 1.008 * torch.pi / 2) ** 2
        self.register_buffer("alphas", (signal / signal[0]).clamp(1e-4, 1.0))
        self.generator: torch.Generator | None = None

    def _noise(self, *shape: int) -> Tensor:
        return torch.randn(*shape, generator=self.generator).to(self.std)

    def predict(self, cond: Tensor) -> Tensor:
        """Waypoints [B, K, ds]; noise comes from ``self.generator``."""
        alphas: Tensor = self.get_buffer("alphas")
        cond = self.pooled(cond)
        x = self._noise(len(cond), self.spec.n_points, len(self.spec.smooth))
        levels = torch.linspace(self.train_steps, 0, self.steps + 1).round().long()
        for now, after in itertools.pairwise(levels):
            a, b = alphas[now], alphas[after]
            noise = self.denoiser(x, (now / self.train_steps).expand(len(x)).to(x), cond)
            clean = ((x - (1 - a).sqrt() * noise) / a.sqrt()).clamp(-5, 5)
            noise = (x - a.sqrt() * clean) / (1 - a).sqrt().clamp_min(1e-6)
            x = b.sqrt() * clean + (1 - b).sqrt() * noise
        return x

    def function_loss(self, cond, x, v, mask, step, generator):
        """Squared error of the predicted noise at a random level."""
        alphas: Tensor = self.get_buffer("alphas")
        level = torch.randint(1, self.train_steps + 1, (len(x),), generator=generator).to(x.device)
        noise = torch.randn(x.shape, generator=generator).to(x)
        a = alphas[level][:, None, None]
        found = self.denoiser(a.sqrt() * x + (1 - a).sqrt() * noise, level / self.train_steps, self.pooled(cond))
        return {"loss": masked_mean((found - noise).square().sum(-1), mask)}


class FlowHead(DiffusionHead):
    """Waypoints by flow matching: straight paths from noise, 10 Euler steps (pi0, SmolVLA)."""

    def predict(self, cond: Tensor) -> Tensor:
        """Waypoints [B, K, ds]."""
        cond = self.pooled(cond)
        x = self._noise(len(cond), self.spec.n_points, len(self.spec.smooth))
        for i in range(self.steps):
            level = torch.full((len(x),), i / self.steps, device=x.device)
            x = x + self.denoiser(x, level, cond) / self.steps
        return x

    def function_loss(self, cond, x, v, mask, step, generator):
        """Squared error of the predicted direction."""
        level = torch.rand(len(x), generator=generator).to(x)
        noise = torch.randn(x.shape, generator=generator).to(x)
        mixed = noise + level[:, None, None] * (x - noise)
        found = self.denoiser(mixed, level, self.pooled(cond))
        return {"loss": masked_mean((found - (x - noise)).square().sum(-1), mask)}


CONDITIONERS = ("vector", "grouped", "resampler", "film", "hyper", "code")


@dataclass(frozen=True)
class FieldOptions:
    """The field and its conditioner.

    Attributes:
        conditioner: ``"vector"``, ``"film"`` or ``"hyper"`` take a vector; ``"grouped"`` takes exactly the Q tokens of
            :class:`~niaf.modulation.GroupedModulator`; ``"resampler"`` takes any tokens; ``"code"`` takes indices.
        layers: L.
        width: H.
        groups: G.
        granularity: ``"row"`` or ``"full"``.
        hidden: width of the projections of the tokens, 0 for linear ones.
        omega_first: see :class:`~niaf.field.SineField`.
        omega_hidden: see :class:`~niaf.field.SineField`.
        jitter: train at jittered times.
        activation: of the field.
        n_codes: chunks of the ``"code"`` conditioner.
        seed: of the field's weights.
    """

    conditioner: str = "vector"
    layers: int = 3
    width: int = 256
    groups: int = 64
    granularity: Any = "row"
    hidden: int = 0
    omega_first: float | str = "auto"
    omega_hidden: float | str = "auto"
    jitter: bool = True
    activation: Activation = "sine"
    n_codes: int = 0
    seed: int = field(default=0)


class FieldHead(ActionHead):
    """The paper's head: the conditioning sets frequencies and phases of a sine network of time.

    Args:
        spec: what to predict.
        options: of field and conditioner.
        loss: weights; velocities count where they are given.
    """

    def __init__(
        self,
        spec: ChunkSpec,
        options: FieldOptions = FieldOptions(),
        loss: FieldLoss = FieldLoss(lambda_vel=0.05),
    ) -> None:
        super().__init__(spec, loss)
        o = self.options = options
        if o.conditioner not in CONDITIONERS:
            raise ValueError(f"conditioner must be one of {', '.join(CONDITIONERS)}, got {o.conditioner!r}")
        self.field = SineField(
            len(spec.smooth),
            o.layers,
            o.width,
            o.omega_first,
            o.omega_hidden,
            spec.n_points,
            o.activation,
            torch.Generator().manual_seed(o.seed),
        )
        warn_if_aliased(self.field, spec.n_points, o.jitter)
        self.jitter = TimeJitter(spec.n_points)
        self.resampler = None
        match o.conditioner:
            case "vector":
                self.conditioner = VectorModulator(spec.cond_dim, self.field, o.groups, 32, o.granularity, o.hidden)
            case "grouped" | "resampler":
                self.conditioner = GroupedModulator(spec.cond_dim, self.field, o.groups, o.granularity, o.hidden)
                if o.conditioner == "resampler":
                    heads = next(h for h in (4, 2, 1) if spec.cond_dim % h == 0)
                    self.resampler = QueryResampler(spec.cond_dim, spec.cond_dim, self.conditioner.num_queries, heads)
            case "film":
                self.conditioner = FiLM(spec.cond_dim, self.field)
            case "hyper":
                self.conditioner = HyperNetwork(spec.cond_dim, self.field)
            case _:
                self.conditioner = LatentCode(o.n_codes, self.field)

    @property
    def num_queries(self) -> int | None:
        """Q of the ``"grouped"`` conditioner."""
        return self.conditioner.num_queries if isinstance(self.conditioner, GroupedModulator) else None

    def predict(self, cond: Tensor) -> Modulation:
        """The modulation of the batch."""
        if self.resampler is not None:
            cond = self.resampler(cond)
        elif self.options.conditioner in ("vector", "film", "hyper"):
            cond = self.pooled(cond)
        return self.conditioner(cond)

    def evaluate(self, params: Modulation, tau: Tensor, order: int) -> tuple[Tensor, ...]:
        """See :class:`ActionHead`."""
        return self.field(tau, params, order, "free")

    def curve(self, params: Modulation, i: int) -> SineCurve:
        """See :class:`ActionHead`."""
        return SineCurve(self.field, params, i)

    def function_loss(self, cond, x, v, mask, step, generator):
        """Losses at jittered times (or at the grid)."""
        order = max(self.field_loss.order if v is not None or self.field_loss.order > 1 else 0, 0)
        tau = self.grid
        if self.options.jitter:
            if mask is not None:  # a padded sample must not bend the interpolant: repeat the last one that is real
                x, v = _filled(x, mask), None if v is None else _filled(v, mask)
            tau = self.jitter.times(len(x), generator).to(x.device)
            x = self.jitter.interpolate(x, tau)
            v = None if v is None else self.jitter.interpolate(v, tau)
            mask = None if mask is None else self.jitter.pad(mask, tau)
        found = self.evaluate(self.predict(cond), tau, order)
        return _weighted(self.field_loss, found, x, self.spec.duration, v, mask, field_omega(self.field), step)

    def encode(self, chunk: Tensor, steps: int = 200, learning_rate: float = 0.02) -> Modulation:
        """Modulations that fit chunks [B, K, d] under the present prior, by Adam (the field itself stays)."""
        target, _ = self._target(chunk, None)
        x = (target - self.mean) / self.std
        codes = LatentCode(len(x), self.field).to(x.device)
        optimiser = torch.optim.Adam(codes.parameters(), lr=learning_rate)
        generator = torch.Generator().manual_seed(self.options.seed)
        for _ in range(steps):
            tau = self.jitter.times(len(x), generator).to(x.device)
            error = (self.field(tau, codes(), 0, "free")[0] - self.jitter.interpolate(x, tau)).square().mean()
            for p, g in zip(codes.parameters(), torch.autograd.grad(error, list(codes.parameters())), strict=True):
                p.grad = g
            optimiser.step()
        return codes().detach()


def _filled(x: Tensor, mask: Tensor) -> Tensor:
    """Samples [B, K, d] with padded ones replaced by the last real one before them (or the first after)."""
    k = torch.arange(x.shape[1], device=x.device)
    last = torch.where(mask, -1, k).cummax(1).values
    first = torch.where(mask, x.shape[1] - 1, k).min(1, keepdim=True).values
    return x.gather(1, torch.where(last < 0, first, last)[..., None].expand_as(x))


HEADS = (
    "waypoint", "bspline", "beast-f", "dct", "fourier", "cubic", "prodmp", "diffusion", "flow",
    "field", "field-gelu", "field-relu",
)  # fmt: skip


def make_head(
    name: str,
    cond_dim: int,
    action_dim: int,
    horizon: int,
    fps: float,
    action_kind: ActionKind = "absolute",
    gripper: Sequence[int] = (),
    gripper_values: tuple[float, float] = (-1.0, 1.0),
    **options: Any,
) -> ActionHead:
    """A head by name; see :class:`ChunkSpec` for the arguments.

    Args:
        name: one of :data:`HEADS`.
        options: of the head's class; of :class:`FieldOptions` (and ``loss``) for fields.
    """
    spec = ChunkSpec(cond_dim, action_dim, horizon, fps, action_kind, tuple(gripper), gripper_values)
    plain: dict[str, Any] = {
        "waypoint": WaypointHead,
        "bspline": BSplineHead,
        "dct": DCTHead,
        "fourier": FourierHead,
        "cubic": CubicHead,
        "prodmp": ProDMPHead,
        "diffusion": DiffusionHead,
        "flow": FlowHead,
    }
    if name in plain:
        return plain[name](spec, **options)
    if name == "beast-f":
        return BSplineHead(spec, quantize=options.pop("quantize", 256), **options)
    if name in ("field", "field-gelu", "field-relu"):
        loss = options.pop("loss", FieldLoss(lambda_vel=0.05))
        activation = {"field": "sine", "field-gelu": "gelu", "field-relu": "relu"}[name]
        return FieldHead(spec, FieldOptions(activation=activation, **options), loss)
    raise ValueError(f"no head {name!r}; there are {', '.join(HEADS)}")
