r"""The two models: ``flow`` (exact likelihood of the structural equations; ours) and ``vae`` (the paper's).

Structural equations (equation 1 of the paper):
:math:`x_{t,i} = g_i(pa(x_{t,i}), z_t, s_{t,i})`, :math:`s_{t,i} = g_{s_i}(z_t, \varepsilon^x_{t,i})`,
:math:`z_{t,j} = f_j(z_{t-1}, ..., z_{t,<j}, \varepsilon^z_{t,j})`.

Shapes: B windows, T steps, d observed series, k latents, L lags, N = samples in a flat batch.
"""

from __future__ import annotations

import itertools
import math
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import leaky_relu, softplus

from cadre.structure import acyclicity, graph_from_mixing, moral

SLOPE = 0.2
LOG_2PI = math.log(2 * math.pi)
LARGEST_DETERMINANT = 128
INSTANT = ("none", "lower", "learned")


class CaDReOutput(NamedTuple):
    """What a forward pass gives; all scalars are means a time step.

    Attributes:
        loss: what is minimised, without the sparsity and acyclicity terms.
        elbo: in ``flow`` mode a lower bound of log p(x) in nats; in ``vae`` mode minus the weighted loss (no bound).
        recon: minus log p(x | z) (flow) or the squared error (vae).
        kl_z: sampled KL of each latent, (k,).
        kl_s: sampled KL of the dependent noise (vae), else 0.
        sparsity: the l1 terms: observed graph, latent graphs, (2,).
        dag: acyclicity of the observed and the instantaneous latent graph, (2,).
        J: d g_i / d x_j for each sample, (N, d, d).
        z: sampled latents, (B, T, k).
    """

    loss: Tensor
    elbo: Tensor
    recon: Tensor
    kl_z: Tensor
    kl_s: Tensor
    sparsity: Tensor
    dag: Tensor
    J: Tensor
    z: Tensor


class ParallelMLP(nn.Module):
    """m networks of one input with ``out`` outputs each, as one batched tensor, plus a linear term.

    One reverse sweep gives all Jacobian rows of all samples at the cost of one more forward pass a output.

    Args:
        m: number of networks.
        n_in: size of their common input.
        hidden: width.
        layers: hidden layers, at least 1.
        out: outputs a network.
        mask: which inputs each network may see, bool (m, n_in); all by default.
        generator: source of the initial weights.
        last_scale: shrinks the last layer's initial weights.
    """

    mask: Tensor

    def __init__(
        self,
        m: int,
        n_in: int,
        hidden: int,
        layers: int,
        out: int = 1,
        mask: Tensor | None = None,
        generator: torch.Generator | None = None,
        last_scale: float = 0.1,
    ) -> None:
        super().__init__()

        def uniform(*shape: int, fan: int, scale: float = 1.0) -> nn.Parameter:
            bound = scale / math.sqrt(max(fan, 1))
            return nn.Parameter((2 * torch.rand(*shape, generator=generator) - 1) * bound)

        self.out = out
        self.first = uniform(m, hidden, n_in, fan=n_in)
        self.first_bias = uniform(m, 1, hidden, fan=n_in)
        self.middle = nn.ParameterList([uniform(m, hidden, hidden, fan=hidden) for _ in range(layers - 1)])
        self.middle_bias = nn.ParameterList([uniform(m, 1, hidden, fan=hidden) for _ in range(layers - 1)])
        self.last = uniform(m, out, hidden, fan=hidden, scale=last_scale)
        self.last_bias = nn.Parameter(torch.zeros(m, out))
        self.linear = nn.Parameter(torch.zeros(m, out, n_in))
        self.register_buffer("mask", torch.ones(m, n_in) if mask is None else mask.to(torch.float32))

    def _hidden(self, u: Tensor, mask: Tensor) -> tuple[Tensor, list[Tensor], Tensor]:
        """Last activations (m, N, h), what each layer's leaky ReLU was applied to, and the masked first weights."""
        m, hidden, n_in = self.first.shape
        first = self.first * mask[:, None, :]
        p = (u @ first.reshape(m * hidden, n_in).mT).view(len(u), m, hidden).transpose(0, 1) + self.first_bias
        before = [p]
        for weight, bias in zip(self.middle, self.middle_bias, strict=True):
            p = torch.baddbmm(bias, leaky_relu(p, SLOPE), weight.mT)
            before.append(p)
        return leaky_relu(p, SLOPE), before, first

    def forward(self, u: Tensor, mask: Tensor | None = None) -> Tensor:
        """Values (N, m, out) at inputs (N, n_in)."""
        mask = self.mask if mask is None else mask
        a, _, _ = self._hidden(u, mask)
        return self._values(a, u, mask)

    def _values(self, a: Tensor, u: Tensor, mask: Tensor) -> Tensor:
        linear = (self.linear * mask[:, None, :]).reshape(-1, u.shape[1])
        straight = (u @ linear.mT).view(len(u), -1, self.out)
        return torch.bmm(a, self.last.mT).transpose(0, 1) + straight + self.last_bias

    def with_jacobian(self, u: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Values (N, m, out) and their Jacobian (N, m, out, n_in)."""
        mask = self.mask if mask is None else mask
        a, before, first = self._hidden(u, mask)
        rows = []
        for o in range(self.out):
            v = _times_slope(self.last[:, o : o + 1].expand_as(a), before[-1])
            for weight, p in zip(reversed(self.middle), reversed(before[:-1]), strict=True):
                v = _times_slope(torch.bmm(v, weight), p)
            rows.append(torch.bmm(v, first).transpose(0, 1) + self.linear[:, o] * mask)
        return self._values(a, u, mask), torch.stack(rows, dim=2)


def _times_slope(v: Tensor, p: Tensor) -> Tensor:
    """v times the derivative of the leaky ReLU at p, in one pass; the slope itself has no gradient."""
    return torch.ops.aten.leaky_relu_backward(v, p.detach(), SLOPE, False)


def mlp(n_in: int, hidden: int, n_out: int, layers: int, generator: torch.Generator | None) -> nn.Sequential:
    """A multilayer perceptron with leaky ReLUs of slope 0.2."""
    sizes = [n_in, *[hidden] * layers, n_out]
    parts: list[nn.Module] = []
    for i, (a, b) in enumerate(itertools.pairwise(sizes)):
        layer = nn.utils.skip_init(nn.Linear, a, b)
        with torch.no_grad():
            for tensor in (layer.weight, layer.bias):
                tensor.copy_((2 * torch.rand(tensor.shape, generator=generator) - 1) / math.sqrt(a))
        parts += [layer] if i == len(sizes) - 2 else [layer, nn.LeakyReLU(SLOPE)]
    return nn.Sequential(*parts)


def gaussian_log_density(x: Tensor, mean: Tensor | float = 0.0, log_sd: Tensor | float = 0.0) -> Tensor:
    """Log density of a normal distribution, element by element."""
    log_sd = torch.as_tensor(log_sd, dtype=x.dtype, device=x.device)
    return -0.5 * (((x - mean) * torch.exp(-log_sd)).square() + LOG_2PI) - log_sd


# --- monotone rational-quadratic spline --------------------------------------------------------------------------


class MonotoneSpline(nn.Module):
    """A strictly increasing map of each series, the identity outside [-bound, bound] (Durkan et al. 2019).

    Args:
        d: number of series.
        bins: of the spline.
        bound: of the interval.
    """

    def __init__(self, d: int, bins: int = 8, bound: float = 5.0) -> None:
        super().__init__()
        self.bins, self.bound, self.least = bins, bound, 1e-3
        self.widths = nn.Parameter(torch.zeros(d, bins))
        self.heights = nn.Parameter(torch.zeros(d, bins))
        # softplus(log(e - 1)) = 1: the spline starts as the identity.
        self.slopes = nn.Parameter(torch.full((d, bins - 1), math.log(math.e - 1)))

    def _knots(self, raw: Tensor) -> Tensor:
        share = self.least + (1 - self.least * self.bins) * torch.softmax(raw, dim=-1)
        inner = torch.cumsum(share, dim=-1)[:, :-1] * 2 * self.bound - self.bound
        edge = torch.full_like(raw[:, :1], self.bound)
        return torch.cat([-edge, inner, edge], dim=-1)

    def _pieces(self, at: Tensor, knots: Tensor) -> tuple[Tensor, ...]:
        kx, ky = self._knots(self.widths), self._knots(self.heights)
        one = torch.ones_like(self.slopes[:, :1])
        slope = torch.cat([one, self.least + softplus(self.slopes) * (1 - self.least), one], dim=-1)
        index = torch.searchsorted(knots.contiguous(), at.mT.contiguous(), right=True).clamp(1, self.bins) - 1

        def pick(values: Tensor, shift: int = 0) -> Tensor:
            return torch.gather(values, 1, index + shift).mT

        return pick(kx), pick(kx, 1), pick(ky), pick(ky, 1), pick(slope), pick(slope, 1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Mapped values and log derivatives, (N, d) each."""
        x0, x1, y0, y1, d0, d1 = self._pieces(x, self._knots(self.widths))
        inside = (x > -self.bound) & (x < self.bound)
        slope = (y1 - y0) / (x1 - x0)
        u = ((x - x0) / (x1 - x0)).clamp(0, 1)
        both = u * (1 - u)
        below = slope + (d1 + d0 - 2 * slope) * both
        y = y0 + (y1 - y0) * (slope * u.square() + d0 * both) / below
        log = 2 * torch.log(slope) + torch.log(d1 * u.square() + 2 * slope * both + d0 * (1 - u).square())
        log = log - 2 * torch.log(below)
        return torch.where(inside, y, x), torch.where(inside, log, 0.0)

    def inverse(self, y: Tensor) -> Tensor:
        """The x that is mapped to y."""
        x0, x1, y0, y1, d0, d1 = self._pieces(y, self._knots(self.heights))
        inside = (y > -self.bound) & (y < self.bound)
        slope = (y1 - y0) / (x1 - x0)
        rise = (y - y0).clamp_min(0)
        bend = d1 + d0 - 2 * slope
        a = (y1 - y0) * (slope - d0) + rise * bend
        b = (y1 - y0) * d0 - rise * bend
        c = -slope * rise
        u = 2 * c / (-b - torch.sqrt((b.square() - 4 * a * c).clamp_min(0)))
        return torch.where(inside, x0 + u * (x1 - x0), y)


# --- the latents' dynamics ---------------------------------------------------------------------------------------


class LatentDensity(NamedTuple):
    """Log densities by latent, (B, T, k), inverse noises, and the derivatives of f (None where not asked for).

    ``lagged`` is (B', k, L, k), ``instant`` (B', k, k) with B' the flattened steps after the first L.
    """

    log_p: Tensor
    eps: Tensor
    lagged: Tensor | None
    instant: Tensor | None


class LatentDynamics(nn.Module):
    r"""p(z_t | z_{t-1}, ..., z_{t-L}) as an affine flow: :math:`z_j = m_j + e^{l_j} \varepsilon_j`.

    m_j and l_j are functions of the past, of the latents that act at once, and of a domain label.

    Args:
        k: latents.
        lags: L.
        hidden: width of the networks.
        layers: their hidden layers.
        instant: ``none``, ``lower`` (each latent may act on later ones, in a fixed order) or ``learned`` (a relaxed
            mask; the acyclicity penalty orders it).
        domains: number of domain labels, 0 for none.
        generator: source of the initial weights.
    """

    def __init__(
        self,
        k: int,
        lags: int,
        hidden: int,
        layers: int,
        instant: Literal["none", "lower", "learned"] = "none",
        domains: int = 0,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        if instant not in INSTANT:
            raise ValueError(f"instant must be one of {', '.join(INSTANT)}, got {instant!r}")
        self.k, self.lags, self.instant = k, lags, instant
        self.domain = nn.Embedding(domains, 2) if domains else None
        if self.domain is not None:
            with torch.no_grad():
                self.domain.weight.copy_(torch.randn(domains, 2, generator=generator))
        n_in = lags * k + k + (2 if domains else 0)
        self.nets = ParallelMLP(k, n_in, hidden, layers, out=2, generator=generator)
        with torch.no_grad():  # start as an autoregression of coefficient 1/2
            for j in range(k):
                self.nets.linear[j, 0, j] = 0.5
        self.mask_logits = nn.Parameter(torch.zeros(k, k)) if instant == "learned" else None

    def instant_mask(self, generator: torch.Generator | None = None) -> Tensor:
        """Which latents act at once, (k, k) in [0, 1]: a Gumbel sample while training, else rounded."""
        eye = torch.eye(self.k, device=self.nets.first.device)
        if self.instant == "none":
            return torch.zeros_like(eye)
        if self.instant == "lower" or self.mask_logits is None:
            return torch.tril(torch.ones_like(eye), -1)
        if not self.training:
            return (self.mask_logits > 0).to(eye.dtype) * (1 - eye)
        u = torch.rand(self.k, self.k, generator=generator, device=eye.device).clamp(1e-6, 1 - 1e-6)
        return torch.sigmoid((self.mask_logits + torch.logit(u)) / 0.3) * (1 - eye)

    def _inputs(self, past: Tensor, now: Tensor, domain: Tensor | None) -> Tensor:
        parts = [past, now]
        if self.domain is not None:
            label = torch.zeros(len(past), dtype=torch.long, device=past.device) if domain is None else domain
            parts.append(self.domain(label))
        return torch.cat(parts, dim=-1)

    def _mask(self, generator: torch.Generator | None) -> Tensor:
        mask = self.nets.mask
        now = self.instant_mask(generator)
        start = self.lags * self.k
        return torch.cat([mask[:, :start], now, mask[:, start + self.k :]], dim=1)

    def forward(
        self, z: Tensor, domain: Tensor | None = None, jacobian: bool = False, generator: torch.Generator | None = None
    ) -> LatentDensity:
        """Log density of latents (B, T, k); the first L steps are standard normal."""
        B, T, k = z.shape
        first = gaussian_log_density(z[:, : self.lags])
        if self.lags >= T:
            return LatentDensity(first, z, None, None)
        past = torch.cat([z[:, self.lags - lag : T - lag] for lag in range(1, self.lags + 1)], dim=-1)
        now = z[:, self.lags :].reshape(-1, k)
        labels = None if domain is None else domain.repeat_interleave(T - self.lags)
        inputs = self._inputs(past.reshape(-1, self.lags * k), now, labels)
        mask = self._mask(generator)
        needs_rows = jacobian or self.instant == "learned"
        values, rows = self.nets.with_jacobian(inputs, mask) if needs_rows else (self.nets(inputs, mask), None)
        log_sd = values[..., 1].clamp(-5, 3)
        gap = now - values[..., 0]
        eps = gap * torch.exp(-log_sd)
        log_p = gaussian_log_density(eps) - log_sd
        lagged = instant = None
        if rows is not None:
            # f_j = m_j + e^{l_j} eps_j, so df_j = dm_j + (z_j - m_j) dl_j: minus d r_j divided by d r_j / d z_j.
            derivative = rows[:, :, 0] + gap[..., None] * rows[:, :, 1]
            lagged = derivative[..., : self.lags * k].view(-1, k, self.lags, k)
            instant = derivative[..., self.lags * k : self.lags * k + k]
            if self.instant == "learned":
                eye = torch.eye(k, device=z.device, dtype=z.dtype)
                log_p = log_p + torch.linalg.slogdet(eye - instant).logabsdet[:, None] / k
        log_p = torch.cat([first, log_p.view(B, T - self.lags, k)], dim=1)
        eps = torch.cat([z[:, : self.lags], eps.view(B, T - self.lags, k)], dim=1)
        return LatentDensity(log_p, eps, lagged, instant)

    def step(self, past: Tensor, eps: Tensor, domain: Tensor | None = None) -> Tensor:
        """The next latents from past (N, L, k), newest first, and noises (N, k).

        Without cycles k rounds of substitution are exact, whatever the order of the graph.
        """
        now = torch.zeros_like(eps)
        mask = self._mask(None)
        for _ in range(1 if self.instant == "none" else self.k):
            values = self.nets(self._inputs(past.flatten(1), now, domain), mask)
            now = values[..., 0] + torch.exp(values[..., 1].clamp(-5, 3)) * eps
        return now


# --- the observed equations --------------------------------------------------------------------------------------


class ObservedFlow(nn.Module):
    r"""The structural equations of the observed: :math:`\varepsilon_i = (x_i - g_i(x_{\setminus i}, z)) e^{-c_i(z)}`.

    :math:`\log p(x|z) = \sum_i [\log p_i(\varepsilon_i) - c_i(z)] + \log|\det(I - J_g)|` with p_i a mixture of
    Gaussians. The determinant keeps graphs with cycles honest; it is 1 for a DAG.

    Args:
        d: observed series.
        k: latents (may be 0).
        hidden: width.
        layers: hidden layers.
        mask: allowed edges, bool (d, d).
        mixture: components of p_i; 1 is a Gaussian.
        scale_from_latents: whether c_i depends on z (False: s is independent of z in its scale).
        post_nonlinear: put a monotone spline on each series first.
        generator: source of the initial weights.
    """

    def __init__(
        self,
        d: int,
        k: int,
        hidden: int,
        layers: int,
        mask: Tensor,
        mixture: int = 3,
        scale_from_latents: bool = True,
        post_nonlinear: bool = False,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        self.d, self.k = d, k
        allowed = mask.to(torch.float32) * (1 - torch.eye(d))
        self.nets = ParallelMLP(
            d, d + k, hidden, layers, mask=torch.cat([allowed, torch.ones(d, k)], 1), generator=generator
        )
        self.scale = mlp(k, 32, d, 1, generator) if k and scale_from_latents else None
        self.log_scale = nn.Parameter(torch.zeros(d))
        self.spline = MonotoneSpline(d) if post_nonlinear else None
        self.logits = nn.Parameter(torch.zeros(d, mixture))
        start = torch.linspace(-0.5, 0.5, mixture) if mixture > 1 else torch.zeros(1)
        self.centres = nn.Parameter(start.repeat(d, 1) * torch.tensor(0.2))
        self.log_widths = nn.Parameter((2 * start).repeat(d, 1))

    @property
    def edges(self) -> Tensor:
        """Allowed edges, float (d, d)."""
        return self.nets.mask[:, : self.d]

    def restrict(self, adjacency: Tensor) -> None:
        """From now on allow only these edges."""
        with torch.no_grad():
            self.nets.mask[:, : self.d].mul_(adjacency.to(self.nets.mask))

    def noise_log_scale(self, z: Tensor) -> Tensor:
        """c(z), (N, d), within [-5, 3]."""
        added = self.scale(z) if self.scale is not None else 0.0
        return (self.log_scale + added).expand(len(z), self.d).clamp(-5, 3)

    def mixture_log_density(self, eps: Tensor) -> Tensor:
        """log p_i(eps_i), (N, d)."""
        weights = torch.log_softmax(self.logits, dim=-1)
        return torch.logsumexp(weights + gaussian_log_density(eps[..., None], self.centres, self.log_widths), dim=-1)

    def forward(self, x: Tensor, z: Tensor) -> tuple[Tensor, Tensor]:
        """log p(x | z), (N,), and J_g, (N, d, d), on the scale of the splines' outputs where there are splines."""
        log_slope: Tensor | float = 0.0
        if self.spline is not None:
            x, slopes = self.spline(x)
            log_slope = slopes.sum(-1)
        values, rows = self.nets.with_jacobian(torch.cat([x, z], dim=-1))
        J = rows[:, :, 0, : self.d]
        c = self.noise_log_scale(z)
        eps = (x - values[..., 0]) * torch.exp(-c)
        log_p = (self.mixture_log_density(eps) - c).sum(-1) + log_slope
        if self.d <= LARGEST_DETERMINANT and bool(self.edges.any()):
            system = torch.eye(self.d, dtype=x.dtype, device=x.device) - J
            if self.d > 64:
                system = system.double()
            log_p = log_p + torch.linalg.slogdet(system).logabsdet.to(log_p.dtype)
        return log_p, J

    def residual(self, x: Tensor, z: Tensor) -> Tensor:
        """The noises eps, (N, d)."""
        if self.spline is not None:
            x, _ = self.spline(x)
        return (x - self.nets(torch.cat([x, z], -1))[..., 0]) * torch.exp(-self.noise_log_scale(z))

    def sample_noise(self, n: int, generator: torch.Generator | None = None) -> Tensor:
        """Draws of eps, (n, d)."""
        weights = torch.softmax(self.logits, dim=-1)
        device = weights.device
        part = torch.multinomial(weights, n, replacement=True, generator=generator).mT
        index = torch.arange(self.d, device=device)
        normal = torch.randn(n, self.d, generator=generator, device=device)
        return self.centres[index, part] + torch.exp(self.log_widths[index, part]) * normal

    def noise_mean(self) -> Tensor:
        """Mean of eps, (d,)."""
        return (torch.softmax(self.logits, dim=-1) * self.centres).sum(-1)

    def generate(self, z: Tensor, eps: Tensor) -> Tensor:
        """x from latents (N, k) and noises (N, d); the allowed edges must have no cycle: d rounds are then exact."""
        noise = torch.exp(self.noise_log_scale(z)) * eps
        x, order = torch.zeros_like(noise), _depth(self.edges)
        for _ in range(order):
            x = self.nets(torch.cat([x, z], -1))[..., 0] + noise
        return self.spline.inverse(x) if self.spline is not None else x


def _depth(edges: Tensor) -> int:
    """Rounds of substitution until every node is settled: length of the longest path + 1.

    Raises:
        ValueError: if there is a cycle.
    """
    reach, power = torch.eye(len(edges), device=edges.device, dtype=edges.dtype), 0
    while bool(reach.any()):
        reach = (edges @ reach).clamp(max=1)
        power += 1
        if power > len(edges):
            raise ValueError("cannot propagate through a graph with a cycle; restrict the model to a DAG first")
    return power


# --- both models -------------------------------------------------------------------------------------------------


class Penalties(NamedTuple):
    """Weights of the terms beside the likelihood: l1 on the observed, on the latent graphs, and acyclicity."""

    alpha: float
    alpha_latent: float
    beta: float


class CaDRe(nn.Module):
    """Latent drivers, their dynamics, and the graph among the observed.

    Args:
        d: observed series.
        k: latents; 0 leaves them out (``flow`` only).
        lags: L.
        mode: ``flow`` or ``vae``.
        window: steps that the encoder sees around t (odd).
        hidden: widths of encoder and observed equations.
        layers: hidden layers of the same.
        mask: allowed edges, bool (d, d), for ``flow``.
        instant: see :class:`LatentDynamics`.
        domains: number of domain labels.
        mixture: components of the noise (``flow``).
        scale_from_latents: whether the noise's scale depends on z.
        post_nonlinear: monotone splines on the series (``flow``).
        lambda_s: weight of KL(s) (``vae``).
        lambda_z: weight of KL(z) (``vae``).
        free_bits: a latent's KL below this is not pushed down further.
        generator: source of the initial weights.
    """

    allowed: Tensor

    def __init__(
        self,
        d: int,
        k: int,
        *,
        lags: int = 1,
        mode: Literal["flow", "vae"] = "flow",
        window: int = 3,
        hidden: tuple[int, int] = (64, 32),
        layers: tuple[int, int] = (2, 2),
        mask: Tensor | None = None,
        instant: Literal["none", "lower", "learned"] = "none",
        domains: int = 0,
        mixture: int = 3,
        scale_from_latents: bool = True,
        post_nonlinear: bool = False,
        lambda_s: float = 4e-3,
        lambda_z: float = 1e-2,
        free_bits: float = 0.02,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        if mode not in ("flow", "vae"):
            raise ValueError(f"mode must be flow or vae, got {mode!r}")
        if k > d or k < 0 or (k == 0 and mode == "vae"):
            raise ValueError(f"expected between 1 and {d} latents (0 leaves them out in flow mode), got {k}")
        if window < 1 or window % 2 == 0:
            raise ValueError(f"window must be odd and positive, got {window}")
        self.d, self.k, self.lags, self.mode, self.window = d, k, lags, mode, window
        self.lambda_s, self.lambda_z, self.free_bits = lambda_s, lambda_z, free_bits
        self.dynamics = LatentDynamics(k, lags, 32, 2, instant, domains, generator) if k else None
        self.encoder = mlp(window * d, hidden[0], 2 * k, layers[0], generator) if k else None
        allowed = torch.ones(d, d, dtype=torch.bool) if mask is None else mask
        self.observed: ObservedFlow | None = None
        if mode == "flow":
            self.observed = ObservedFlow(
                d, k, hidden[1], layers[1], allowed, mixture, scale_from_latents, post_nonlinear, generator
            )
        else:
            self.register_buffer("allowed", allowed.to(torch.float32))
            self.noise_encoder = mlp(d, hidden[0], 2 * d, layers[0], generator)
            self.decoder = ParallelMLP(d, k + d, hidden[1], layers[1], generator=generator)
            with torch.no_grad():  # start with x = s, so that J_m is the identity
                self.decoder.linear[:, 0, k:] = torch.eye(d)
            self.noise_prior = mlp(k, hidden[1], 2 * d, layers[1], generator)

    def context(self, x: Tensor) -> Tensor:
        """The steps around each step, (B, T, window * d); the ends repeat the first and last."""
        half = self.window // 2
        padded = torch.cat([x[:, :1].expand(-1, half, -1), x, x[:, -1:].expand(-1, half, -1)], dim=1)
        return torch.cat([padded[:, i : i + x.shape[1]] for i in range(self.window)], dim=-1)

    def encode(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and log variance (within [-8, 4]) of q(z_t | x_{t-h..t+h}), (B, T, k) each."""
        if self.encoder is None:
            empty = x[..., :0]
            return empty, empty
        mean, log_var = self.encoder(self.context(x)).chunk(2, dim=-1)
        return mean, log_var.clamp(-8, 4)

    def forward(
        self,
        x: Tensor,
        domain: Tensor | None = None,
        latents: Tensor | None = None,
        *,
        margin: int = 0,
        kl_weight: float = 1.0,
        importance: int = 1,
        latent_graphs: bool = True,
        generator: torch.Generator | None = None,
    ) -> CaDReOutput:
        """Losses of windows.

        Args:
            x: standardised, (B, T, d).
            domain: labels, long (B,).
            latents: known z, (B, T, k): nothing is inferred.
            margin: this many steps at each end are only seen by the encoder.
            kl_weight: weight of the KL terms while warming up; 1 is the ELBO.
            importance: samples of the importance-weighted bound (``flow``).
            latent_graphs: also penalise the latent graphs.
            generator: source of the samples.
        """
        mean, log_var = (latents, None) if latents is not None else self.encode(x)
        if margin:
            keep = slice(margin, x.shape[1] - margin)
            x, mean = x[:, keep], mean[:, keep]
            log_var = None if log_var is None else log_var[:, keep]
        if importance > 1 and log_var is not None:
            x, mean, log_var = (t.repeat(importance, 1, 1) for t in (x, mean, log_var))
            domain = None if domain is None else domain.repeat(importance)
        z, log_q = _sampled(mean, log_var, generator)
        density = self.dynamics(z, domain, latent_graphs, generator) if self.dynamics is not None else None
        log_pz = density.log_p if density is not None else torch.zeros_like(z)
        if self.mode == "flow":
            return self._flow(x, z, log_q, log_pz, density, kl_weight, importance if log_var is not None else 1)
        return self._vae(x, z, log_q, log_pz, density, kl_weight, generator)

    def _flow(
        self,
        x: Tensor,
        z: Tensor,
        log_q: Tensor,
        log_pz: Tensor,
        density: LatentDensity | None,
        kl_weight: float,
        importance: int,
    ) -> CaDReOutput:
        assert self.observed is not None
        B, T, _ = x.shape
        log_px, J = self.observed(x.reshape(B * T, self.d), z.reshape(B * T, self.k))
        kl = (log_q - log_pz).mean((0, 1))
        recon = -log_px.mean()
        window = log_px.view(B, T).sum(1) + kl_weight * (log_pz - log_q).sum((1, 2))
        if importance > 1:
            window = torch.logsumexp(window.view(importance, -1), dim=0) - math.log(importance)
            bound = window.mean() / T
            loss = -bound
        else:
            bound = -recon - kl.sum()
            loss = recon + kl_weight * kl.clamp_min(self.free_bits).sum()
        sparsity = torch.stack([J.abs().mean(0).sum(), _latent_sparsity(density, x)])
        square = J.square().mean(0) if bool(self.observed.edges.any()) else J.new_zeros(self.d, self.d)
        dag = torch.stack([acyclicity(square), _latent_cycles(density, self.dynamics, x)])
        return CaDReOutput(loss, bound, recon, kl, kl.new_zeros(()), sparsity, dag, J, z)

    def _vae(
        self,
        x: Tensor,
        z: Tensor,
        log_q: Tensor,
        log_pz: Tensor,
        density: LatentDensity | None,
        kl_weight: float,
        generator: torch.Generator | None,
    ) -> CaDReOutput:
        B, T, d = x.shape
        flat_x, flat_z = x.reshape(B * T, d), z.reshape(B * T, self.k)
        mean, log_var = self.noise_encoder(flat_x).chunk(2, dim=-1)
        s, log_qs = _sampled(mean, log_var.clamp(-8, 4), generator)
        centre, log_sd = self.noise_prior(flat_z).chunk(2, dim=-1)
        kl_s = (log_qs - gaussian_log_density(s, centre, log_sd.clamp(-5, 3))).sum(-1).mean()
        values, rows = self.decoder.with_jacobian(torch.cat([flat_z, s], dim=-1))
        recon = (flat_x - values[..., 0]).square().sum(-1).mean()
        J = graph_from_mixing(rows[:, :, 0, self.k :])
        kl = (log_q - log_pz).mean((0, 1))
        weighted = self.lambda_s * kl_s + self.lambda_z * kl.sum()
        free = self.lambda_s * kl_s + self.lambda_z * kl.clamp_min(self.free_bits).sum()
        latent = _latent_sparsity(density, x, markov=True)
        # Edges outside the mask are pushed to 0 tenfold: J_m cannot be masked.
        cost = 1 + 9 * (1 - self.allowed)
        sparsity = torch.stack([(J.abs() * cost).mean(0).sum(), latent])
        dag = torch.stack([acyclicity(J.square().mean(0)), _latent_cycles(density, self.dynamics, x)])
        return CaDReOutput(recon + kl_weight * free, -(recon + weighted), recon, kl, kl_s, sparsity, dag, J, z)

    def jacobian(self, x: Tensor, z: Tensor) -> Tensor:
        """J_g at observed (N, d) and latents (N, k), on the scale of x, (N, d, d)."""
        if self.observed is not None:
            if self.observed.spline is None:
                return self.observed(x, z)[1]
            log_slope = self.observed.spline(x)[1]
            ratio = torch.exp(log_slope[:, None, :] - log_slope[:, :, None])
            return self.observed(x, z)[1] * ratio
        return graph_from_mixing(self.mixing_jacobian(x, z))

    def mixing_jacobian(self, x: Tensor, z: Tensor) -> Tensor:
        """J_m = d x / d s (``vae``), (N, d, d)."""
        s = self.noise_encoder(x).chunk(2, dim=-1)[0]
        return self.decoder.with_jacobian(torch.cat([z, s], dim=-1))[1][:, :, 0, self.k :]


def _sampled(mean: Tensor, log_var: Tensor | None, generator: torch.Generator | None) -> tuple[Tensor, Tensor]:
    """Reparameterised samples and their log density; known values where there is no variance."""
    if log_var is None:
        return mean, torch.zeros_like(mean)
    noise = torch.randn(mean.shape, generator=generator, device=mean.device, dtype=mean.dtype)
    return mean + noise * torch.exp(log_var / 2), gaussian_log_density(noise) - log_var / 2


def _latent_sparsity(density: LatentDensity | None, like: Tensor, markov: bool = False) -> Tensor:
    if density is None or density.lagged is None or density.instant is None:
        return like.new_zeros(())
    if not markov:
        return density.lagged.abs().mean(0).sum() + density.instant.abs().mean(0).sum()
    blocks = moral(density.lagged.transpose(1, 2)).abs().sum((1, 2, 3))
    return (blocks + moral(density.instant).abs().sum((1, 2))).mean()


def _latent_cycles(density: LatentDensity | None, dynamics: LatentDynamics | None, like: Tensor) -> Tensor:
    if density is None or density.instant is None or dynamics is None or dynamics.instant != "learned":
        return like.new_zeros(())
    return acyclicity(density.instant.square().mean(0))


__all__ = [
    "CaDRe",
    "CaDReOutput",
    "LatentDynamics",
    "MonotoneSpline",
    "ObservedFlow",
    "ParallelMLP",
    "Penalties",
    "gaussian_log_density",
]
