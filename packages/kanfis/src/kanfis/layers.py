r"""The paper's network in torch: masked additive memberships, interval Type-2, losses (sections M1 to M4, M9).

.. math:: h_j(x) = \sum_i m_{ij} \sum_k \mu_{ijk}(x_i), \qquad \hat y = W h + b

One layer is a generalised additive model in the features; more layers (with LayerNorm between) are not.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Literal, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from kanfis.typereduce import karnik_mendel

Membership = Literal["gaussian", "sigmoid", "triangle", "bell"]
MEMBERSHIPS = ("gaussian", "sigmoid", "triangle", "bell")
FUZZY_TYPES = ("t1", "it2", "it2-mean")
MASKS = ("linear", "sigmoid", "softplus", "softmax", "hard_concrete")
WIDTH_FLOOR = 1e-5
BUDGET = 2**24  # floats of one block of memberships


def inverse_softplus(y: float) -> float:
    """x with softplus(x) = y, without overflow; y > 0."""
    return y + math.log(-math.expm1(-y)) if y < 20 else y + math.log1p(-math.exp(-y))


class KANFISLayer(nn.Module):
    """D features to R rules.

    Args:
        in_features: D.
        n_rules: R.
        n_memberships: K membership functions on every (feature, rule) edge.
        membership: ``gaussian``, ``sigmoid`` (rising; falling too with ``signed``), ``triangle`` or ``bell``.
        fuzzy_type: ``t1``, ``it2`` (uncertain width) or ``it2-mean`` (uncertain mean; the centres are the middle).
        mask: ``linear`` (as the official code), ``sigmoid``, ``softplus``, ``softmax`` (over features) or
            ``hard_concrete``.
        amplitude: one more factor a membership.
        signed: let sigmoid slopes be negative.
    """

    def __init__(
        self,
        in_features: int,
        n_rules: int,
        n_memberships: int = 3,
        membership: Membership = "gaussian",
        fuzzy_type: Literal["t1", "it2", "it2-mean"] = "t1",
        mask: str = "linear",
        amplitude: bool = False,
        signed: bool = False,
    ) -> None:
        super().__init__()
        for name, value in (("in_features", in_features), ("n_rules", n_rules), ("n_memberships", n_memberships)):
            if value < 1:
                raise ValueError(f"expected {name} of at least 1, got {value}")
        if membership not in MEMBERSHIPS:
            raise ValueError(f"expected a membership of {', '.join(MEMBERSHIPS)}, got {membership!r}")
        if fuzzy_type not in FUZZY_TYPES:
            raise ValueError(f"expected a fuzzy type of {', '.join(FUZZY_TYPES)}, got {fuzzy_type!r}")
        if mask not in MASKS:
            raise ValueError(f"expected a mask of {', '.join(MASKS)}, got {mask!r}")
        self.membership, self.fuzzy_type, self.mask_kind, self.signed = membership, fuzzy_type, mask, signed
        shape = (in_features, n_rules, n_memberships)
        self.centers = nn.Parameter(torch.empty(shape).uniform_(-1, 1))
        if fuzzy_type != "it2":
            self.widths_raw = nn.Parameter(torch.full(shape, -2.0))
            if fuzzy_type == "it2-mean":
                self.shifts_raw = nn.Parameter(torch.full(shape, -2.0))
        else:
            self.lower_widths_raw = nn.Parameter(torch.full(shape, -2.0))
            self.width_differences_raw = nn.Parameter(torch.full(shape, -2.0))
        if membership == "bell":
            self.slopes_raw = nn.Parameter(torch.full(shape, inverse_softplus(0.5)))
        self.mask = nn.Parameter(torch.ones(in_features, n_rules))
        self.amplitudes = nn.Parameter(torch.ones(shape)) if amplitude else None

    @property
    def shape(self) -> tuple[int, int, int]:
        """(D, R, K)."""
        d, r, k = self.centers.shape
        return d, r, k

    def widths(self) -> tuple[Tensor, Tensor]:
        """Lower and upper widths (slopes, for sigmoid), positive, lower <= upper; the same but for ``it2``."""
        if self.fuzzy_type != "it2":
            width = (
                self.widths_raw
                if self.signed and self.membership == "sigmoid"
                else F.softplus(self.widths_raw) + WIDTH_FLOOR
            )
            return width, width
        lower = F.softplus(self.lower_widths_raw) + WIDTH_FLOOR
        return lower, lower + F.softplus(self.width_differences_raw) + WIDTH_FLOOR

    def shifts(self) -> Tensor:
        """Half the distance between least and greatest centre, >= 0; 0 but for ``it2-mean``."""
        return F.softplus(self.shifts_raw) if self.fuzzy_type == "it2-mean" else torch.zeros_like(self.centers)

    def effective_mask(self) -> Tensor:
        """The mask that multiplies the memberships, shape (D, R)."""
        if self.mask_kind == "sigmoid":
            return torch.sigmoid(self.mask)
        if self.mask_kind == "softplus":
            return F.softplus(self.mask)
        if self.mask_kind == "softmax":
            return torch.softmax(self.mask, 0)
        if self.mask_kind == "hard_concrete":
            logit = self.mask
            if self.training:
                u = torch.rand_like(self.mask).clamp(1e-6, 1 - 1e-6)
                logit = (u.log() - (-u).log1p() + self.mask) / (2 / 3)
            return (torch.sigmoid(logit) * 1.2 - 0.1).clamp(0, 1)
        return self.mask

    def expected_open(self) -> Tensor:
        """Probability that a hard-concrete gate is not 0, shape (D, R): the L0 penalty's terms."""
        return torch.sigmoid(self.mask - (2 / 3) * math.log(0.1 / 1.1))

    def _memberships(self, x: Tensor, width: Tensor, centre: Tensor | None = None) -> Tensor:
        d = x[:, :, None, None] - (self.centers if centre is None else centre)
        if self.membership == "gaussian":
            return torch.exp(-0.5 * (d / width).square())
        if self.membership == "sigmoid":
            return torch.sigmoid(width * d)
        if self.membership == "triangle":
            return (1 - d.abs() / width).clamp_min(0)
        beta = F.softplus(self.slopes_raw) + 0.5
        return 1 / (1 + ((d / width).square() + 1e-12) ** beta)

    def membership_bounds(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Lower and upper memberships, (B, D, R, K) each."""
        lower, upper = self.widths()
        if self.fuzzy_type == "it2-mean":
            shift = self.shifts()
            one, two = (self._memberships(x, lower, self.centers + s) for s in (-shift, shift))
            outside, least = torch.maximum(one, two), torch.minimum(one, two)
            if self.membership == "sigmoid":
                return least, outside
            inside = (x[:, :, None, None] - self.centers).abs() <= shift
            return least, torch.where(inside, torch.ones_like(outside), outside)
        one = self._memberships(x, lower)
        if self.fuzzy_type == "t1":
            return one, one
        two = self._memberships(x, upper)
        return torch.minimum(one, two), torch.maximum(one, two)

    def edge_functions(self, x: Tensor) -> Tensor:
        """m_ij sum_k mu_ijk(x_i), shape (B, D, R); for Type-2 with the mean membership."""
        lower, upper = self.membership_bounds(x)
        mu = lower if lower is upper else (lower + upper) / 2
        if self.amplitudes is not None:
            mu = mu * self.amplitudes
        return mu.sum(-1) * self.effective_mask()

    def forward(self, x: Tensor) -> Tensor:
        """Firing of the rules, (B, R), of inputs (B, D), in blocks of at most 2**24 memberships."""
        if x.ndim != 2 or x.shape[1] != self.shape[0]:
            raise ValueError(f"expected inputs of shape (B, {self.shape[0]}), got {tuple(x.shape)}")
        rows = max(1, BUDGET // math.prod(self.shape))
        if len(x) <= rows:
            return self.edge_functions(x).sum(1)
        return torch.cat([self.edge_functions(part).sum(1) for part in x.split(rows)])

    def forward_interval(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Range of every rule's firing over all memberships between lower and upper, (B, R) each."""
        lower, upper = self.membership_bounds(x)
        factor = self.effective_mask()[..., None]
        if self.amplitudes is not None:
            factor = factor * self.amplitudes
        one, two = lower * factor, upper * factor
        return torch.minimum(one, two).sum((1, 3)), torch.maximum(one, two).sum((1, 3))


def entropy_penalty(mask: Tensor) -> Tensor:
    """Mean over rules of the entropy over features of p_ij = |m_ij| / sum_i |m_ij|; log D for a uniform mask."""
    p = mask.abs() / (mask.abs().sum(0, keepdim=True) + 1e-8)
    return -(p * (p + 1e-8).log()).sum(0).mean()


def distinctness_penalty(firings: Tensor) -> Tensor:
    """Mean over pairs of different rules of the squared cosine of their firings over the batch, (B, R)."""
    rules = firings.shape[1]
    if rules < 2:
        return firings.new_zeros(())
    unit = F.normalize(firings, dim=0)
    gram = (unit.T @ unit).square()
    return (gram.sum() - gram.diagonal().sum()) / (rules * (rules - 1))


class KANFISNet(nn.Module):
    """Layers of rules and a linear head.

    Args:
        in_features, n_rules, out_features: D, R, O.
        n_layers: layers of rules, LayerNorm between them; more than one needs R >= 2.
        n_memberships, membership, fuzzy_type, mask, amplitude: as in ``KANFISLayer``.
        type_reduction: ``nie_tan`` (mean membership) or ``km`` (normalised firings and Karnik-Mendel, the middle of
            its end points; needs a mask that is never negative and one layer).
    """

    def __init__(
        self,
        in_features: int,
        n_rules: int,
        out_features: int,
        n_layers: int = 1,
        n_memberships: int = 3,
        membership: Membership = "gaussian",
        fuzzy_type: Literal["t1", "it2", "it2-mean"] = "t1",
        mask: str = "linear",
        amplitude: bool = False,
        type_reduction: str = "nie_tan",
    ) -> None:
        super().__init__()
        if n_layers < 1:
            raise ValueError(f"expected at least one layer, got {n_layers}")
        if n_layers > 1 and n_rules < 2:
            raise ValueError("more than one layer needs at least 2 rules: LayerNorm of one number is 0")
        if type_reduction not in ("nie_tan", "km"):
            raise ValueError(f"expected a type reduction of nie_tan or km, got {type_reduction!r}")
        if type_reduction == "km" and mask not in ("softplus", "sigmoid", "softmax", "hard_concrete"):
            raise ValueError("Karnik-Mendel needs firings that are never negative: use mask='softplus'")
        if type_reduction == "km" and (n_layers > 1 or amplitude):
            raise ValueError("Karnik-Mendel needs one layer without amplitudes")
        self.type_reduction = type_reduction
        widths = [in_features] + [n_rules] * n_layers
        self.layers = nn.ModuleList(
            KANFISLayer(n, n_rules, n_memberships, membership, fuzzy_type, mask, amplitude) for n in widths[:-1]
        )
        self.norms = nn.ModuleList(nn.LayerNorm(n_rules) for _ in range(n_layers - 1))
        self.final_layer = nn.Linear(n_rules, out_features)

    def forward(self, x: Tensor, return_firing: bool = False) -> Tensor | tuple[Tensor, Tensor]:
        """Outputs (B, O); with ``return_firing`` also the first layer's firings (B, R)."""
        if self.type_reduction == "km":
            lower, upper = cast(KANFISLayer, self.layers[0]).forward_interval(x)
            consequents = self.final_layer.weight + self.final_layer.bias[:, None]
            left, right = karnik_mendel(consequents, lower[:, None], upper[:, None])
            out, firing = (left + right) / 2, (lower + upper) / 2
            return (out, firing) if return_firing else out
        firing = h = self.layers[0](x)
        for norm, layer in zip(self.norms, self.layers[1:], strict=True):
            h = layer(norm(h))
        out = self.final_layer(h)
        return (out, firing) if return_firing else out

    def penalty(self, lambda_entropy: float, lambda_distinct: float, firings: Tensor) -> Tensor:
        """Weighted entropy of the first layer's mask (L0 for hard-concrete gates) and overlap of its rules."""
        layer = self.layers[0]
        assert isinstance(layer, KANFISLayer)
        total = firings.new_zeros(())
        if lambda_entropy:
            sparse = (
                layer.expected_open().mean()
                if layer.mask_kind == "hard_concrete"
                else entropy_penalty(layer.effective_mask())
            )
            total = total + lambda_entropy * sparse
        return total + lambda_distinct * distinctness_penalty(firings) if lambda_distinct else total


def convert_official_state_dict(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Names of the official release's checkpoints to those of ``KANFISNet``.

    Layers may be called ``layers.N``, ``kanfis_layers.N``, ``fuzzy_layers.N`` or, with one layer, ``layer``,
    ``fuzzy_layer`` or nothing; the head ``final_layer``, ``output_layer`` or ``head``.

    Raises:
        ValueError: on a tensor that belongs nowhere, or shapes that do not fit together.
    """
    own = {"centers", "widths_raw", "shifts_raw", "lower_widths_raw", "width_differences_raw", "mask", "slopes_raw"}
    out: dict[str, Tensor] = {}
    for name, value in state.items():
        *path, last = name.removeprefix("module.").removeprefix("model.").split(".")
        number = next((p for p in path if p.isdigit()), "0")
        if last in own:
            out[f"layers.{number}.{last}"] = value
        elif path and path[0] in ("final_layer", "output_layer", "head") and last in ("weight", "bias"):
            out[f"final_layer.{last}"] = value
        elif path and "norm" in path[0] and last in ("weight", "bias"):
            out[f"norms.{number}.{last}"] = value
        else:
            raise ValueError(f"unknown tensor {name!r} of shape {tuple(value.shape)}")
    for name, value in out.items():
        if name.endswith(".mask"):
            centres = out.get(name.replace(".mask", ".centers"))
            if centres is None or centres.shape[:2] != value.shape:
                got = None if centres is None else tuple(centres.shape)
                raise ValueError(
                    f"{name}: expected centres of shape ({value.shape[0]}, {value.shape[1]}, K), got {got}"
                )
    return out
