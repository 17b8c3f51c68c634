"""How a conditioning sets the frequencies and phases of a field (section "Modulation" of the paper).

    W_l <- W_l (1 + gamma_l),   b_l <- b_l + beta_l

``gamma_l`` has one entry a row, [B, H] (cheap: the shared product is computed once and scaled), or one a weight,
[B, H, n] ("full"). Every conditioner returns a :class:`Modulation`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from niaf.field import SineField

Granularity = Literal["row", "full"]


@dataclass(frozen=True)
class Modulation:
    """Relative changes of frequency and changes of phase, one entry of each list a layer.

    Attributes:
        gamma: L tensors [B, H] or [B, H, n].
        beta: L tensors [B, H].
    """

    gamma: list[Tensor]
    beta: list[Tensor]

    def map(self, function) -> Modulation:
        """Apply a function of tensors to every entry."""
        return Modulation([function(g) for g in self.gamma], [function(b) for b in self.beta])

    def detach(self) -> Modulation:
        """Cut off from the graph."""
        return self.map(Tensor.detach)

    def index(self, i: int | slice | Tensor) -> Modulation:
        """A part of the batch; an integer keeps a batch of one."""
        return self.map(lambda x: x[i : i + 1] if isinstance(i, int) else x[i])

    def to(self, *args, **keywords) -> Modulation:
        """As ``Tensor.to``."""
        return self.map(lambda x: x.to(*args, **keywords))


def nearest_divisors(width: int, groups: int) -> list[int]:
    """The divisors of ``width`` just below and above ``groups``."""
    divisors = [n for n in range(1, width + 1) if width % n == 0]
    below, above = [n for n in divisors if n <= groups], [n for n in divisors if n >= groups]
    return sorted({*below[-1:], *above[:1]})


def check_groups(width: int, groups: int) -> None:
    """Raise ``ValueError`` with the nearest divisors where ``groups`` does not divide ``width``."""
    if groups < 1 or width % groups:
        near = " or ".join(map(str, nearest_divisors(width, max(groups, 1))))
        raise ValueError(f"groups must divide the width {width}, got {groups}; nearest: {near}")


class _Projection(nn.Module):
    """LayerNorm and a linear map (or a two-layer GELU network) for each of n tokens, its last layer zero at first."""

    def __init__(self, tokens: int, d_in: int, d_out: int, hidden: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(d_in)
        self.hidden = None
        if hidden:
            self.hidden = nn.Parameter(torch.randn(tokens, d_in, hidden) / d_in**0.5)
            self.hidden_bias = nn.Parameter(torch.zeros(tokens, hidden))
        self.weight = nn.Parameter(torch.zeros(tokens, hidden or d_in, d_out))
        self.bias = nn.Parameter(torch.zeros(tokens, d_out))

    def forward(self, z: Tensor) -> Tensor:
        z = self.norm(z)
        if self.hidden is not None:
            z = nn.functional.gelu(torch.einsum("bti,tio->bto", z, self.hidden) + self.hidden_bias)
        return torch.einsum("bti,tio->bto", z, self.weight) + self.bias


class GroupedModulator(nn.Module):
    """Q = L (G + 1) query tokens -> modulation: per layer, G tokens for groups of H/G rows and one for the phases.

    At first it changes nothing: training starts at the shared prior (ours).

    Args:
        d_model: size of the tokens.
        field: the field to modulate.
        groups: G; must divide the width (paper: 64).
        granularity: ``"row"`` or ``"full"``.
        hidden: width of a two-layer projection; 0 is one linear map.
        gamma_bound: b bounds gamma by b tanh; None leaves it free.
    """

    def __init__(
        self,
        d_model: int,
        field: SineField,
        groups: int = 64,
        granularity: Granularity = "row",
        hidden: int = 0,
        gamma_bound: float | None = None,
    ) -> None:
        super().__init__()
        check_groups(field.width, groups)
        if granularity not in ("row", "full"):
            raise ValueError(f'granularity must be "row" or "full", got {granularity!r}')
        self.groups, self.layers, self.width = groups, field.layers, field.width
        self.granularity, self.gamma_bound, self.d_model = granularity, gamma_bound, d_model
        rows = field.width // groups
        fan_in = [1 if i == 0 or granularity == "row" else field.width for i in range(field.layers)]
        self.frequency = nn.ModuleList(_Projection(groups, d_model, rows * n, hidden) for n in fan_in)
        self.phase = nn.ModuleList(_Projection(1, d_model, field.width, hidden) for _ in range(field.layers))

    @property
    def num_queries(self) -> int:
        """Q = L (G + 1)."""
        return self.layers * (self.groups + 1)

    def forward(self, z: Tensor) -> Modulation:
        """Tokens [B, Q, d_model] -> modulation of the batch."""
        if z.ndim != 3 or z.shape[1:] != (self.num_queries, self.d_model):
            raise ValueError(f"expected tokens [B, {self.num_queries}, {self.d_model}], got {tuple(z.shape)}")
        per_layer = z.reshape(z.shape[0], self.layers, self.groups + 1, self.d_model)
        gamma, beta = [], []
        for i in range(self.layers):
            g = self.frequency[i](per_layer[:, i, :-1])
            if self.gamma_bound is not None:
                g = self.gamma_bound * torch.tanh(g)
            full = self.granularity == "full" and i > 0
            gamma.append(g.reshape(z.shape[0], self.width, -1) if full else g.reshape(z.shape[0], self.width))
            beta.append(self.phase[i](per_layer[:, i, -1:])[:, 0])
        return Modulation(gamma, beta)


class VectorModulator(nn.Module):
    """Any vector -> tokens by one linear map -> :class:`GroupedModulator`.

    Args:
        dim: length of the vector.
        field: the field to modulate.
        groups: G.
        token_dim: size of the tokens in between.
        granularity: see :class:`GroupedModulator`.
        hidden: see :class:`GroupedModulator`.
    """

    def __init__(
        self,
        dim: int,
        field: SineField,
        groups: int = 64,
        token_dim: int = 32,
        granularity: Granularity = "row",
        hidden: int = 0,
    ) -> None:
        super().__init__()
        self.grouped = GroupedModulator(token_dim, field, groups, granularity, hidden)
        self.tokens = nn.Linear(dim, self.grouped.num_queries * token_dim)
        self.token_dim = token_dim

    def forward(self, z: Tensor) -> Modulation:
        """[B, dim] -> modulation."""
        return self.grouped(self.tokens(z).reshape(z.shape[0], -1, self.token_dim))


class FiLM(nn.Module):
    """One vector sets all layers by one linear map, zero at first."""

    def __init__(self, dim: int, field: SineField) -> None:
        super().__init__()
        self.layers, self.width = field.layers, field.width
        self.map = nn.Linear(dim, 2 * field.layers * field.width)
        nn.init.zeros_(self.map.weight)
        nn.init.zeros_(self.map.bias)

    def forward(self, z: Tensor) -> Modulation:
        """[B, dim] -> modulation."""
        both = self.map(z).reshape(z.shape[0], 2, self.layers, self.width)
        return Modulation(list(both[:, 0].unbind(1)), list(both[:, 1].unbind(1)))


class HyperNetwork(nn.Module):
    """Predicts all weights relative to the prior: gamma_l = U_l V_l^T of rank r, and the phases.

    Args:
        dim: length of the conditioning vector.
        field: the field to modulate.
        rank: r.
    """

    def __init__(self, dim: int, field: SineField, rank: int = 8) -> None:
        super().__init__()
        self.fan_in = [1, *[field.width] * (field.layers - 1)]
        self.width, self.rank = field.width, rank
        sizes = [rank * (field.width + n) + field.width for n in self.fan_in]
        self.maps = nn.ModuleList(nn.Linear(dim, size) for size in sizes)
        layers: Any = self.maps
        for layer, n in zip(layers, self.fan_in, strict=True):
            nn.init.normal_(layer.weight, std=0.1 / dim**0.5)
            nn.init.zeros_(layer.bias)
            with torch.no_grad():  # U is zero at first, V is not: the prior, with a gradient
                layer.weight[: rank * field.width] = 0
                layer.bias[rank * field.width : rank * (field.width + n)].normal_(std=rank**-0.5)
                layer.weight[-field.width :] = 0

    def forward(self, z: Tensor) -> Modulation:
        """[B, dim] -> modulation of every weight."""
        gamma, beta = [], []
        for layer, n in zip(self.maps, self.fan_in, strict=True):
            u, v, phase = layer(z).split([self.rank * self.width, self.rank * n, self.width], dim=1)
            product = u.reshape(-1, self.width, self.rank) @ v.reshape(-1, self.rank, n)
            gamma.append(product)
            beta.append(phase)
        return Modulation(gamma, beta)


class LatentCode(nn.Module):
    """An auto-decoder: a free modulation for each of n chunks, found by optimisation.

    Args:
        n: number of chunks.
        field: the field to modulate.
    """

    def __init__(self, n: int, field: SineField) -> None:
        super().__init__()
        self.gamma = nn.ParameterList(nn.Parameter(torch.zeros(n, field.width)) for _ in range(field.layers))
        self.beta = nn.ParameterList(nn.Parameter(torch.zeros(n, field.width)) for _ in range(field.layers))

    def forward(self, index: Tensor | None = None) -> Modulation:
        """Codes of the chunks ``index`` [B], or of all."""
        pick = (lambda x: x) if index is None else (lambda x: x[index])
        return Modulation([pick(g) for g in self.gamma], [pick(b) for b in self.beta])


class QueryResampler(nn.Module):
    """Q learnable queries that attend to any encoder's output (perceiver): the path for encoder-only backbones.

    Args:
        d_in: size of the encoder's tokens.
        d_model: size of the queries.
        num_queries: Q.
        heads: attention heads.
        layers: rounds of attention and feed-forward.
    """

    def __init__(self, d_in: int, d_model: int, num_queries: int, heads: int = 4, layers: int = 1) -> None:
        super().__init__()
        self.queries = nn.Parameter(torch.randn(num_queries, d_model) * 0.02)
        self.read = nn.Linear(d_in, d_model)
        self.layers = nn.ModuleList(
            nn.TransformerDecoderLayer(d_model, heads, 2 * d_model, 0.0, "gelu", batch_first=True, norm_first=True)
            for _ in range(layers)
        )

    def forward(self, tokens: Tensor) -> Tensor:
        """[B, N, d_in] (or [B, d_in]) -> [B, Q, d_model]."""
        memory = self.read(tokens if tokens.ndim == 3 else tokens[:, None])
        z = self.queries.expand(memory.shape[0], -1, -1)
        for layer in self.layers:
            z = layer(z, memory)
        return z
