r"""GISA: global aggregation by a gated linear recurrence with a vector state, in the given or in a serialised order.

The recurrence is DeltaNet's :math:`S_t = S_{t-1}(I - \beta k k^T) + \beta v k^T` restricted to its diagonal,

.. math:: \alpha_t = 1 - \beta_t k_t^2,\quad s_t = \alpha_t s_{t-1} + \beta_t k_t v_t,\quad y_t = q_t s_t,

channel by channel. The paper states the vector state, the gates and the read-out; the exact gates are our
reconstruction (it is the only diagonal form that reduces to DeltaNet).
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from anisonet.curves import check_counts
from anisonet.ellipsoid import knn, normalised_spacing
from anisonet.scan import linear_recurrence, resets

Readout = Literal["causal", "final"]
SPARSE_SPACING = 0.0123  # geometric mean of 0.0060 (S3DIS) and 0.0251 (ScanObjectNN), the paper's spacings
MAX_CHUNK = 30_000  # points after which the state starts anew (paper)


def _normalise_heads(x: Tensor, heads: int) -> Tensor:
    return F.normalize(x.unflatten(-1, (heads, -1)), dim=-1).flatten(-2)


def _last_of_segment(state: Tensor, reset: Tensor) -> Tensor:
    """The state at the end of every point's segment, shape (N, D)."""
    segment = reset.long().cumsum(0) - 1
    count = segment[-1] + 1
    last = torch.zeros(int(count), dtype=torch.long, device=state.device)
    last = last.scatter_reduce(
        0, segment, torch.arange(reset.shape[0], device=state.device), "amax", include_self=False
    )
    return state[last][segment]


def vector_delta(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    beta: Tensor,
    counts: Tensor | None = None,
    heads: int = 1,
    normalize: bool = True,
    readout: Readout = "causal",
    reset: Tensor | None = None,
) -> Tensor:
    """The bare recurrence with a vector state.

    Args:
        q, k, v: query, key, value, shape (N, D).
        beta: write gate in [0, 1], shape (N, D).
        counts: points a cloud; None for one cloud. The state starts at 0 in every cloud.
        heads: groups of channels over which q and k are normalised; divides D.
        normalize: divide q and k by their length in every head.
        readout: ``causal`` reads the state so far, ``final`` the state at the end of the cloud.
        reset: True where the state starts anew, shape (N,); in place of ``counts``.

    Returns:
        y, shape (N, D).

    Raises:
        ValueError: if D is no multiple of heads, the readout is unknown or the counts do not fit.
    """
    if readout not in ("causal", "final"):
        raise ValueError(f"expected a readout of causal or final, got {readout!r}")
    if q.shape[-1] % heads:
        raise ValueError(f"expected channels that are a multiple of {heads} heads, got {q.shape[-1]}")
    if normalize:
        q, k = _normalise_heads(q, heads), _normalise_heads(k, heads)
    if reset is None:
        reset = resets(check_counts(counts, len(q)).to(q.device), len(q))
    state = linear_recurrence(1 - beta * k * k, beta * k * v, reset=reset)
    return q * (state if readout == "causal" else _last_of_segment(state, reset))


class OrderBound(NamedTuple):
    """How far the last state can be from the plain sum of the writes, per channel."""

    retained: Tensor
    deviation: Tensor
    bound: Tensor


def order_bound(k: Tensor, v: Tensor, beta: Tensor) -> OrderBound:
    r"""Bound on what the order of the points can change in the last state of one cloud.

    With :math:`A = \prod_t \alpha_t`, :math:`|s_N - \sum_t \beta_t k_t v_t| \le (1 - A) \sum_t |\beta_t k_t v_t|`:
    every
    write is kept with a factor between A and 1. A and the sum are the same for every order, so two orders differ by
    at most twice the bound.

    Args:
        k, v, beta: shape (N, D), keys already normalised.

    Returns:
        A, the deviation of this order and the bound, each of shape (D,).
    """
    decay, write = 1 - beta * k * k, beta * k * v
    last = linear_recurrence(decay, write)[-1]
    kept = decay.double().log().sum(0).exp().to(decay.dtype) if bool((decay > 0).all()) else decay.prod(0)
    return OrderBound(kept, (last - write.sum(0)).abs(), (1 - kept) * write.abs().sum(0))


class GISA(nn.Module):
    """Gated delta recurrence and MLP, both residual: x + W_o(LN(y) silu(z)), then x + MLP(LN(x)).

    Args:
        dim: channels D.
        heads: groups over which queries and keys are normalised.
        mlp_ratio: hidden width of the MLP / D.
        bidirectional: mean of the recurrence in both directions.
        readout: ``causal`` or ``final``.
        max_chunk: points after which the state starts anew inside a cloud.
    """

    def __init__(
        self,
        dim: int,
        heads: int = 8,
        mlp_ratio: int = 2,
        bidirectional: bool = False,
        readout: Readout = "causal",
        max_chunk: int = MAX_CHUNK,
    ) -> None:
        super().__init__()
        if dim % heads:
            raise ValueError(f"expected channels that are a multiple of {heads} heads, got {dim}")
        if max_chunk < 1:
            raise ValueError(f"expected max_chunk of at least 1, got {max_chunk}")
        if readout not in ("causal", "final"):
            raise ValueError(f"expected a readout of causal or final, got {readout!r}")
        self.heads, self.bidirectional, self.readout, self.max_chunk = heads, bidirectional, readout, max_chunk
        self.norm = nn.LayerNorm(dim)
        self.qkv = nn.Linear(dim, 3 * dim, bias=False)
        self.gate = nn.Linear(dim, dim)
        self.z = nn.Linear(dim, dim, bias=False)
        self.out_norm = nn.LayerNorm(dim)
        self.out = nn.Linear(dim, dim, bias=False)
        self.mlp = nn.Sequential(
            nn.LayerNorm(dim), nn.Linear(dim, mlp_ratio * dim), nn.GELU(), nn.Linear(mlp_ratio * dim, dim, bias=False)
        )

    def _recur(self, h: Tensor, counts: Tensor) -> Tensor:
        q, k, v = self.qkv(h).chunk(3, -1)
        beta = torch.sigmoid(self.gate(h))
        q, k = _normalise_heads(q, self.heads), _normalise_heads(k, self.heads)
        reset = resets(counts, h.shape[0], self.max_chunk)
        readout: Readout = self.readout
        y = vector_delta(q, k, v, beta, heads=self.heads, normalize=False, readout=readout, reset=reset)
        if self.bidirectional:
            back = torch.arange(h.shape[0] - 1, -1, -1, device=h.device)
            other = vector_delta(
                q[back],
                k[back],
                v[back],
                beta[back],
                heads=self.heads,
                normalize=False,
                readout=readout,
                reset=resets(counts.flip(0), h.shape[0], self.max_chunk),
            )
            y = (y + other[back]) / 2
        return y

    def forward(self, x: Tensor, counts: Tensor | None = None, order: Tensor | None = None) -> Tensor:
        """Aggregate over every cloud.

        Args:
            x: features, shape (N, D), packed.
            counts: points a cloud; None for one cloud.
            order: permutation from ``curves.serialize`` in which the recurrence runs; None for the given order.

        Returns:
            Features in the given order, shape (N, D).
        """
        if counts is None:
            counts = torch.tensor([x.shape[0]], device=x.device)
        h = self.norm(x)
        if order is not None:
            h = h[order]
        y = self.out(self.out_norm(self._recur(h, counts)) * F.silu(self.z(h)))
        if order is not None:
            y = torch.empty_like(y).index_copy(0, order, y)
        x = x + y
        return x + self.mlp(x)


def density(xyz: Tensor, counts: Tensor | None = None, k: int = 24) -> Tensor:
    """Normalised spacing of every cloud: mean distance to its k neighbours / diagonal of its bounding box, shape (B,).

    The paper gives 0.0060 for S3DIS, 0.0042 for ScanNetV2 and 0.0251 for ScanObjectNN; the exact norm is ours.
    """
    counts = check_counts(counts, len(xyz))
    return torch.stack([normalised_spacing(part, knn(part, k)) for part in xyz.split(counts.tolist())])


def suggest_mode(xyz: Tensor, counts: Tensor | None = None, k: int = 24) -> Literal["identity", "morton"]:
    """The paper's density rule: the given order for dense clouds, Morton for sparse ones."""
    return "identity" if float(density(xyz, counts, k).mean()) < SPARSE_SPACING else "morton"
