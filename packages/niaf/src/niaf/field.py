"""A sine network of time with closed-form derivatives (SIREN; section "Field" of the paper).

    h0 = tau;   u_l = omega_l (W_l h_{l-1} + b_l);   h_l = sin u_l;   Phi = W_o h_L + b_o

with W_l and b_l modulated by the conditioning. One file: torch is all it needs.

The derivatives of h = f(u) to order four, with u', u'', ... carrying the factor omega:

    h'    = f1 u'
    h''   = f1 u'' + f2 u'^2
    h'''  = f1 u''' + 3 f2 u' u'' + f3 u'^3
    h'''' = f1 u'''' + f2 (4 u' u''' + 3 u''^2) + 6 f3 u'^2 u'' + f4 u'^4
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import Tensor, nn

Extrapolate = Literal["error", "hold", "linear", "free"]
Activation = Literal["sine", "gelu", "relu"]
MAX_ORDER = 4
PAPER_OMEGA = 30.0
EDGE = 1e-6


class ExtrapolationError(ValueError):
    """A time outside of the chunk was asked for."""


class AliasingWarning(UserWarning):
    """The field may oscillate between the samples that it was trained on."""


def auto_omega(n_samples: int) -> float:
    """Frequency that K uniform samples can pin down: a quarter of Nyquist's pi (K-1)/2, clipped to [2, 10].

    Nyquist's frequency is that of K samples on [-1, 1], in rad per unit of tau. Ours, measured; the paper uses 30.

    Args:
        n_samples: K, at least 2.
    """
    if n_samples < 2:
        raise ValueError(f"a chunk needs at least 2 samples, got {n_samples}")
    return min(max(0.25 * math.pi * (n_samples - 1) / 2, 2.0), 10.0)


def _omega(value: float | str, n_samples: int | None) -> float:
    if value == "paper":
        return PAPER_OMEGA
    if value == "auto":
        if n_samples is None:
            raise ValueError('omega="auto" needs n_samples, the number of samples a chunk is trained on')
        return auto_omega(n_samples)
    if isinstance(value, str) or not value > 0:
        raise ValueError(f'omega must be a positive number, "auto" or "paper", got {value!r}')
    return float(value)


def check_order(order: int) -> None:
    """Raise ``ValueError`` unless 0 <= order <= 4."""
    if not 0 <= order <= MAX_ORDER:
        raise ValueError(f"derivatives are available for orders 0 to {MAX_ORDER}, got {order}")


def _sine(u: Tensor, order: int) -> list[Tensor]:
    s = torch.sin(u)
    if order == 0:
        return [s]
    c = torch.cos(u)
    return [s, c, -s, -c, s][: order + 1]


def _gelu(u: Tensor, order: int) -> list[Tensor]:
    density = torch.exp(-0.5 * u * u) / math.sqrt(2 * math.pi)
    cumulative = 0.5 * (1 + torch.erf(u / math.sqrt(2)))
    u2 = u * u
    parts = [u * cumulative, cumulative + u * density, density * (2 - u2), density * u * (u2 - 4)]
    return [*parts, density * (-u2 * u2 + 7 * u2 - 4)][: order + 1]


def _relu(u: Tensor, order: int) -> list[Tensor]:
    zero = torch.zeros_like(u)
    return [torch.relu(u), (u > 0).to(u.dtype), zero, zero, zero][: order + 1]


_ACTIVATIONS: dict[str, Callable[[Tensor, int], list[Tensor]]] = {"sine": _sine, "gelu": _gelu, "relu": _relu}


def chain(f: list[Tensor], u: list[Tensor | None]) -> list[Tensor]:
    """Derivatives of f(u(tau)) by Faa di Bruno.

    Args:
        f: derivatives of f at u, orders 0 to n.
        u: u and its derivatives, orders 0 to n; None stands for zero.

    Returns:
        Derivatives of the composition, orders 0 to n.
    """
    out, order = [f[0]], len(f) - 1
    if order == 0:
        return out
    u1, u2, u3, u4 = (u[1:] + [None] * 4)[:4]
    assert u1 is not None
    out.append(f[1] * u1)
    if order >= 2:
        squared = u1 * u1
        second = f[2] * squared
        out.append(second if u2 is None else second + f[1] * u2)
    if order >= 3:
        third = f[3] * squared * u1
        if u2 is not None:
            third = third + 3 * f[2] * u1 * u2
        out.append(third if u3 is None else third + f[1] * u3)
    if order >= 4:
        fourth = f[4] * squared * squared
        if u2 is not None:
            fourth = fourth + 6 * f[3] * squared * u2 + 3 * f[2] * u2 * u2
        if u3 is not None:
            fourth = fourth + 4 * f[2] * u1 * u3
        out.append(fourth if u4 is None else fourth + f[1] * u4)
    return out


def extrapolated(
    evaluate: Callable[[Tensor, int], tuple[Tensor, ...]], tau: Tensor, order: int, mode: Extrapolate
) -> tuple[Tensor, ...]:
    """Evaluate a function of [-1, 1] outside of it.

    Args:
        evaluate: (tau, order) -> derivatives 0 to order, each [..., K, d].
        tau: [..., K].
        order: highest derivative wanted.
        mode: ``"error"`` raises beyond 1e-6; ``"hold"`` keeps the last value, at rest; ``"linear"`` goes on with
            the last
            velocity; ``"free"`` evaluates as it is.

    Raises:
        ExtrapolationError: in mode ``"error"``.
        ValueError: for an unknown mode.
    """
    if mode not in ("error", "hold", "linear", "free"):
        raise ValueError(f'extrapolate must be "error", "hold", "linear" or "free", got {mode!r}')
    if mode == "free":
        return evaluate(tau, order)
    beyond = (tau.abs() - 1).clamp_min(0)
    if bool(torch.isnan(tau).any()):
        raise ValueError("tau holds NaN")
    if mode == "error":
        if tau.numel() and float(beyond.max()) > EDGE:
            raise ExtrapolationError(
                f"tau lies in [-1, 1], got [{float(tau.min()):.6g}, {float(tau.max()):.6g}]; "
                'extrapolate="hold", "linear" or "free" allows it'
            )
        return evaluate(tau, order)
    inside = tau.clamp(-1, 1)
    outside = (beyond > 0)[..., None]
    found = list(evaluate(inside, max(order, 1) if mode == "linear" else order))
    if mode == "linear":
        found[0] = found[0] + found[1] * (tau - inside)[..., None]
    first_zero = 2 if mode == "linear" else 1
    for n in range(first_zero, order + 1):
        found[n] = torch.where(outside, torch.zeros_like(found[n]), found[n])
    return tuple(found[: order + 1])


class SineField(nn.Module):
    """Phi(tau; theta): [-1, 1] -> R^dim, a sine network whose weights a conditioner may modulate.

    Computes in float32 (float64 where its weights are) even under autocast or bf16: omega tau loses its phase in bf16.

    Args:
        dim: output channels d.
        layers: hidden sine layers L (paper: 3).
        width: hidden width H (paper: 256).
        omega_first: frequency of the first layer: a number, ``"auto"`` (:func:`auto_omega`) or ``"paper"`` (30).
        omega_hidden: the same for the other layers.
        n_samples: K; needed by ``"auto"``.
        activation: ``"sine"``; ``"gelu"`` and ``"relu"`` are the paper's ablations (their omega is 1).
        generator: source of the initial weights.
    """

    def __init__(
        self,
        dim: int,
        layers: int = 3,
        width: int = 256,
        omega_first: float | str = "auto",
        omega_hidden: float | str = "auto",
        n_samples: int | None = None,
        activation: Activation = "sine",
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        if min(dim, layers, width) < 1:
            raise ValueError(f"dim, layers and width must be at least 1, got {dim}, {layers} and {width}")
        if activation not in _ACTIVATIONS:
            raise ValueError(f"activation must be one of {', '.join(_ACTIVATIONS)}, got {activation!r}")
        self.dim, self.layers, self.width, self.activation = dim, layers, width, activation
        if activation == "sine":
            first, hidden = _omega(omega_first, n_samples), _omega(omega_hidden, n_samples)
        else:
            first = hidden = 1.0
        self.omegas = (first, *[hidden] * (layers - 1))
        self.n_samples = n_samples

        def uniform(*shape: int, bound: float) -> nn.Parameter:
            return nn.Parameter((2 * torch.rand(*shape, generator=generator) - 1) * bound)

        spread = math.sqrt(6 / width)
        turn = math.pi if activation == "sine" else 1.0
        self.weights = nn.ParameterList(
            uniform(width, 1 if i == 0 else width, bound=1.0 if i == 0 else spread / w)
            for i, w in enumerate(self.omegas)
        )
        self.biases = nn.ParameterList(uniform(width, bound=turn / w) for w in self.omegas)
        self.out_weight = uniform(dim, width, bound=spread / self.omegas[-1])
        self.out_bias = nn.Parameter(torch.zeros(dim))

    @property
    def dtype(self) -> torch.dtype:
        """What it computes in: float64 where its weights are, else float32."""
        return torch.float64 if self.out_weight.dtype == torch.float64 else torch.float32

    def is_aliased(self, n_samples: int) -> bool:
        """Whether K uniform samples leave it free to oscillate between them: a frequency of 1.1 Nyquist or more, or
        (measured) above 10."""
        nyquist = math.pi * (n_samples - 1) / 2
        return self.activation == "sine" and max(self.omegas) > min(1.1 * nyquist, 10.0 + 1e-9)

    def forward(
        self,
        tau: Tensor,
        mod: Any = None,
        order: int = 0,
        extrapolate: Extrapolate = "error",
    ) -> tuple[Tensor, ...]:
        """Value and derivatives in tau.

        Args:
            tau: [K] or [B, K], in [-1, 1].
            mod: a :class:`~niaf.modulation.Modulation` (lists ``gamma`` and ``beta``), or None for the prior.
            order: highest derivative, 0 to 4.
            extrapolate: what to do outside of [-1, 1]; see :func:`extrapolated`.

        Returns:
            order + 1 tensors [B, K, dim] ([K, dim] where neither tau nor mod has a batch).
        """
        check_order(order)
        with torch.autocast(device_type=tau.device.type, enabled=False):
            tau = torch.as_tensor(tau).to(self.dtype)
            return extrapolated(lambda t, n: self._evaluate(t, mod, n), tau, order, extrapolate)

    def physical(
        self,
        t: Tensor,
        duration: Tensor | float,
        mod: Any = None,
        order: int = 0,
        extrapolate: Extrapolate = "error",
    ) -> tuple[Tensor, ...]:
        """The same in seconds: order n is in 1/s^n, as d tau / d t = 2 / T.

        Args:
            t: [K] or [B, K] seconds from the chunk's start.
            duration: T in seconds, a number or [B].
            mod: see :meth:`forward`.
            order: highest derivative.
            extrapolate: see :func:`extrapolated`.
        """
        span = torch.as_tensor(duration, dtype=self.dtype, device=t.device)
        if not bool((span > 0).all()):
            raise ValueError(f"a duration must be positive, got {duration}")
        span = span[..., None] if span.ndim else span
        found = self.forward(2 * t.to(self.dtype) / span - 1, mod, order, extrapolate)
        rate = 2 / (span[..., None] if span.ndim else span)
        return tuple(part * rate**n for n, part in enumerate(found))

    def _evaluate(self, tau: Tensor, mod: Any, order: int) -> tuple[Tensor, ...]:
        kind = self.dtype
        if mod is not None and tau.ndim == 1:
            tau = tau[None]
        gammas = [None] * self.layers if mod is None else [g.to(kind) for g in mod.gamma]
        betas = [None] * self.layers if mod is None else [b.to(kind) for b in mod.beta]
        h: list[Tensor | None] = [tau[..., None], torch.ones_like(tau[..., None]), *[None] * (order - 1)][: order + 1]
        for omega, weight, bias, gamma, beta in zip(self.omegas, self.weights, self.biases, gammas, betas, strict=True):
            u = self._affine(h, omega, weight.to(kind), bias.to(kind), gamma, beta)
            h = [*chain(_ACTIVATIONS[self.activation](u[0], order), u)]  # ty: ignore[invalid-argument-type]
        weight = self.out_weight.to(kind)
        values = torch.stack([part for part in h if part is not None]) @ weight.T
        return (values[0] + self.out_bias.to(kind), *values[1:])

    @staticmethod
    def _affine(
        h: list[Tensor | None], omega: float, weight: Tensor, bias: Tensor, gamma: Tensor | None, beta: Tensor | None
    ) -> list[Tensor | None]:
        """u and its derivatives, all orders in one matrix product."""
        present = torch.stack([part for part in h if part is not None])
        if gamma is None or gamma.ndim == 2:
            scaled = present @ weight.T
            scale = omega if gamma is None else omega * (1 + gamma)[:, None, :]
            scaled = scaled * scale
        else:  # one weight matrix a sample
            modulated = omega * weight * (1 + gamma)
            batched = present.expand(-1, gamma.shape[0], -1, -1)
            n, b, k, width = batched.shape
            flat = batched.permute(1, 0, 2, 3).reshape(b, n * k, width)
            scaled = torch.bmm(flat, modulated.transpose(1, 2)).reshape(b, n, k, -1).permute(1, 0, 2, 3)
        shift = bias if beta is None else (bias + beta)[:, None, :]
        parts: list[Tensor | None] = [scaled[0] + omega * shift, *scaled[1:]]
        return parts + [None] * (len(h) - len(parts))
