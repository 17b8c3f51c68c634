"""What others use, in plain torch on the same packed batches and with the same trainer: no spconv, flash-attn or
CUDA builds.

Each follows the idea of its paper at the sizes of a ``Config`` (``dims``, ``depths``, ``ks``), for segmentation and for
classification; "like" marks those whose special kernels are replaced. PointNet (arXiv 1612.00593), PointNet++
(1706.02413),
DGCNN (1801.07829), DeLA (2308.16532), Point Transformer V3 (2312.10035), PointMamba (2402.10739), Point Cloud Mamba
(2403.00762), DeltaNet (2406.06484).
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from anisonet.curves import cloud_ids, serialize
from anisonet.ellipsoid import neighbour_max
from anisonet.model import AnIsoNetCls, AnIsoNetSeg, Config, PointNetwork
from anisonet.pyramid import Pyramid, farthest_point_sample, nearest
from anisonet.scan import linear_recurrence, resets


def _mlp(*widths: int, momentum: float = 0.1) -> nn.Sequential:
    layers: list[nn.Module] = []
    for n, m in itertools.pairwise(widths):
        layers += [nn.Linear(n, m, bias=False), nn.BatchNorm1d(m, momentum=momentum), nn.ReLU()]
    return nn.Sequential(*layers)


def _pooled(x: Tensor, counts: Tensor) -> Tensor:
    index = cloud_ids(counts, len(x))[:, None].expand(-1, x.shape[1])
    return x.new_zeros(len(counts), x.shape[1]).scatter_reduce(0, index, x, "amax", include_self=False)


class Baseline(PointNetwork):
    """A network that gives features to every point; a head on each, or on their maximum."""

    width: int

    def __init__(self, cfg: Config) -> None:
        super().__init__()
        if cfg.task == "parts":
            raise ValueError("baselines know segmentation and classification, got parts")
        self.cfg = cfg

    def add_head(self, width: int) -> None:
        """The classifier after ``width`` features."""
        self.head = nn.Sequential(
            _mlp(width, max(32, width // 2), momentum=self.cfg.momentum),
            nn.Dropout(0.0 if self.cfg.task == "segmentation" else self.cfg.dropout),
            nn.Linear(max(32, width // 2), self.cfg.classes),
        )

    def encode(self, pyramid: Pyramid, xyz: Tensor, feats: Tensor) -> Tensor:
        """Features of all points of stage 0, from scaled coordinates and features."""
        raise NotImplementedError

    def forward(self, pyramid: Pyramid, feats: Tensor) -> Tensor | tuple[Tensor, Tensor]:
        """Logits (N, classes) or (B, classes); in training also an auxiliary loss of 0."""
        self.check_input(pyramid, feats)
        counts = pyramid.counts[0]
        ids = cloud_ids(counts, len(feats))
        xyz = pyramid.xyz[0] * self.cfg.coord_scale
        mean = xyz.new_zeros(len(counts), 3).index_add(0, ids, xyz) / counts[:, None]
        x = self.encode(pyramid, xyz - mean[ids], feats)
        logits = self.head(_pooled(x, counts) if self.cfg.task == "classification" else x)
        return (logits, feats.new_zeros(())) if self.training else logits


class PointNet(Baseline):
    """A shared MLP and the maximum over the cloud."""

    def __init__(self, cfg: Config) -> None:
        super().__init__(cfg)
        d, m = cfg.dims[-1], cfg.momentum
        self.local = _mlp(3 + cfg.in_dim, 64, 64, momentum=m)
        self.globally = _mlp(64, 128, 4 * d, momentum=m)
        self.add_head(64 + 4 * d)

    def encode(self, pyramid: Pyramid, xyz: Tensor, feats: Tensor) -> Tensor:
        """(N, 64 + 4 d): of the point and of its cloud."""
        x = self.local(torch.cat([xyz, feats], 1))
        counts = pyramid.counts[0]
        return torch.cat([x, _pooled(self.globally(x), counts)[cloud_ids(counts, len(x))]], 1)


def ball_query(queries: Tensor, query_counts: Tensor, xyz: Tensor, counts: Tensor, radius: float, k: int) -> Tensor:
    """k points within a radius of every query in its own cloud; the nearest one fills what is missing, (Q, k)."""
    parts, start = [], 0
    for q, p in zip(queries.split(query_counts.tolist()), xyz.split(counts.tolist()), strict=True):
        distance = torch.cdist(q, p)
        found = distance.topk(min(k, len(p)), largest=False)
        index = torch.where(found.values <= radius, found.indices, found.indices[:, :1])
        parts.append(F.pad(index, (0, k - index.shape[1]), mode="replicate") + start)
        start += len(p)
    return torch.cat(parts)


class PointNet2(Baseline):
    """PointNet++ with single-scale grouping: farthest points, ball queries, interpolation on the way back."""

    def __init__(self, cfg: Config) -> None:
        super().__init__(cfg)
        m, last = cfg.momentum, 3 + cfg.in_dim
        self.down = nn.ModuleList()
        for d in cfg.dims:
            self.down.append(_mlp(3 + last, d, d, 2 * d, momentum=m))
            last = 2 * d
        self.up = nn.ModuleList()
        widths = [3 + cfg.in_dim, *(2 * d for d in cfg.dims)]
        above = widths[-1]
        for here in reversed(widths[:-1]):
            self.up.append(_mlp(above + here, 2 * cfg.dims[0], 2 * cfg.dims[0], momentum=m))
            above = 2 * cfg.dims[0]
        self.add_head(above)

    def encode(self, pyramid: Pyramid, xyz: Tensor, feats: Tensor) -> Tensor:
        """(N, 2 d0)."""
        levels = [(xyz, pyramid.counts[0], torch.cat([xyz, feats], 1))]
        generator = torch.Generator().manual_seed(0)
        for layer, k, std in zip(self.down, self.cfg.ks, self.cfg.coord_std, strict=True):
            points, counts, x = levels[-1]
            sizes = (counts / 4).ceil().long()
            kept = farthest_point_sample(points, counts, sizes, generator)
            index = ball_query(points[kept], sizes, points, counts, 4 * std, 2 * k)
            edges = torch.cat([(points[index] - points[kept][:, None]) / std, x[index]], 2)
            levels.append((points[kept], sizes, layer(edges.flatten(0, 1)).view(*index.shape, -1).amax(1)))
        x = levels[-1][2]
        for layer, (points, counts, skip), (above, above_counts, _) in zip(
            self.up, reversed(levels[:-1]), reversed(levels[1:]), strict=True
        ):
            index = ball_query(points, counts, above, above_counts, float("inf"), 3)
            weight = 1 / ((above[index] - points[:, None]).norm(dim=2) + 1e-8)
            weight = weight / weight.sum(1, keepdim=True)
            x = layer(torch.cat([(x[index] * weight[..., None]).sum(1), skip], 1))
        return x


class DGCNN(Baseline):
    """Edge convolutions on graphs that are rebuilt in feature space."""

    def __init__(self, cfg: Config, k: int = 20) -> None:
        super().__init__(cfg)
        m, last = cfg.momentum, 3 + cfg.in_dim
        self.k = k
        self.layers = nn.ModuleList()
        for d in cfg.dims:
            self.layers.append(_mlp(2 * last, d, d, momentum=m))
            last = d
        self.globally = _mlp(sum(cfg.dims), 4 * cfg.dims[-1], momentum=m)
        self.add_head(sum(cfg.dims) + 4 * cfg.dims[-1])

    def encode(self, pyramid: Pyramid, xyz: Tensor, feats: Tensor) -> Tensor:
        """(N, sum d + 4 d)."""
        counts, x, found = pyramid.counts[0], torch.cat([xyz, feats], 1), []
        for i, layer in enumerate(self.layers):
            with torch.no_grad():
                space = xyz if i == 0 else x
                index = ball_query(space, counts, space, counts, float("inf"), self.k)
            edges = torch.cat([x[:, None].expand(-1, self.k, -1), x[index] - x[:, None]], 2)
            x = layer(edges.flatten(0, 1)).view(*index.shape, -1).amax(1)
            found.append(x)
        local = torch.cat(found, 1)
        return torch.cat([local, _pooled(self.globally(local), counts)[cloud_ids(counts, len(x))]], 1)


def patches(order: Tensor, counts: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """Runs of ``size`` points of an order that stay inside one cloud: indices (P, size) and which of them are real."""
    per_cloud = -(-counts // size)
    cloud = torch.repeat_interleave(torch.arange(len(counts), device=counts.device), per_cloud)
    number = torch.arange(len(cloud), device=counts.device) - (per_cloud.cumsum(0) - per_cloud)[cloud]
    position = number[:, None] * size + torch.arange(size, device=counts.device)
    real = position < counts[cloud][:, None]
    start = (counts.cumsum(0) - counts)[cloud][:, None]
    return order[start + torch.minimum(position, counts[cloud][:, None] - 1)], real


class PatchAttention(nn.Module):
    """Neighbourhood convolution, attention inside patches of a serialised order, MLP; all residual."""

    def __init__(self, width: int, heads: int, patch: int) -> None:
        super().__init__()
        self.heads, self.patch = heads, patch
        self.kernel = nn.Sequential(nn.Linear(3, 16), nn.GELU(), nn.Linear(16, width))
        self.mix = nn.Sequential(nn.Linear(width, width), nn.LayerNorm(width))
        self.norm = nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: Tensor, xyz: Tensor, idx: Tensor, order: Tensor, counts: Tensor) -> Tensor:
        """(N, d) to (N, d)."""
        near = idx[:, :8]
        weight = self.kernel(xyz[near] - xyz[:, None])
        x = x + self.mix((weight * x[near]).mean(1))
        index, real = patches(order, counts, self.patch)
        q, k, v = (
            t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in self.qkv(self.norm(x))[index].chunk(3, -1)
        )
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=real[:, None, None]).transpose(1, 2).flatten(2)
        spread = torch.zeros_like(x).index_copy(0, index[real], y[real].to(x.dtype))
        x = x + self.out(spread)
        return x + self.mlp(x)


CURVES = ("morton", "morton-trans", "hilbert", "hilbert-trans")


class PTv3Like(Baseline):
    """Point Transformer V3: patch attention along four space-filling curves, in shuffled turn while training."""

    def __init__(self, cfg: Config, patch: int = 128) -> None:
        super().__init__(cfg)
        self.embed = nn.Sequential(nn.Linear(3 + cfg.in_dim, cfg.dims[0]), nn.LayerNorm(cfg.dims[0]), nn.GELU())
        self.blocks = nn.ModuleList(
            nn.ModuleList(PatchAttention(d, max(1, d // 16), patch) for _ in range(depth))
            for d, depth in zip(cfg.dims, cfg.depths, strict=True)
        )
        self.pool = nn.ModuleList(nn.Linear(a, b) for a, b in zip(cfg.dims[:-1], cfg.dims[1:], strict=True))
        self.back = nn.ModuleList(nn.Sequential(nn.LayerNorm(d), nn.Linear(d, cfg.head_dim)) for d in cfg.dims)
        self.add_head(cfg.head_dim)

    def encode(self, pyramid: Pyramid, xyz: Tensor, feats: Tensor) -> Tensor:
        """(N, head_dim)."""
        x, total = self.embed(torch.cat([xyz / self.cfg.coord_std[-1], feats], 1)), None
        for stage, blocks in enumerate(self.blocks):
            points, idx, counts = pyramid.xyz[stage], pyramid.knn[stage], pyramid.counts[stage]
            if stage:
                x = neighbour_max(self.pool[stage - 1](x), pyramid.knn[stage - 1][pyramid.sub[stage]])
            turn = torch.randperm(4).tolist() if self.training else list(range(4))
            used = {CURVES[turn[i % 4]] for i in range(len(cast(nn.ModuleList, blocks)))}
            orders = {curve: serialize(points, counts, curve) for curve in used}
            offset = points * (self.cfg.coord_scale / self.cfg.coord_std[stage])
            for i, block in enumerate(cast(nn.ModuleList, blocks)):
                x = block(x, offset, idx, orders[CURVES[turn[i % 4]]], counts)
            part = self.back[stage](x)
            total = part if total is None else total + part[pyramid.back[stage]]
        assert total is not None
        return total


class SelectiveScan(nn.Module):
    r"""Mamba's S6 layer on packed sequences: :math:`h_t = e^{\Delta_t A} h_{t-1} + \Delta_t B_t x_t`, :math:`y_t =
    C_t h_t + D x_t`."""

    def __init__(self, width: int, state: int = 8) -> None:
        super().__init__()
        self.state = state
        self.norm = nn.LayerNorm(width)
        self.inner = nn.Linear(width, 2 * width, bias=False)
        self.select = nn.Linear(width, 2 * state + 1)
        self.spread = nn.Parameter(torch.zeros(width))
        self.A = nn.Parameter(torch.log(torch.arange(1, state + 1).float()).repeat(width, 1))
        self.D = nn.Parameter(torch.ones(width))
        self.out = nn.Linear(width, width, bias=False)

    def forward(self, x: Tensor, counts: Tensor, order: Tensor | None) -> Tensor:
        """(N, d) to (N, d), residual."""
        h, z = self.inner(self.norm(x)).chunk(2, -1)
        if order is not None:
            h, z = h[order], z[order]
        B, C, step = self.select(h).split([self.state, self.state, 1], -1)
        step = F.softplus(step + self.spread)
        decay = torch.exp(-step[..., None] * self.A.exp())
        write = (step * h)[..., None] * B[:, None]
        state = linear_recurrence(decay.flatten(1), write.flatten(1), reset=resets(counts, len(h)))
        y = (state.view_as(write) * C[:, None]).sum(-1) + self.D * h
        y = self.out(y * F.silu(z))
        return x + (y if order is None else torch.empty_like(y).index_copy(0, order, y))


class PointMambaLike(Baseline):
    """PointMamba: 64 groups around farthest points, in Hilbert and transposed Hilbert order, through selective
    scans."""

    def __init__(self, cfg: Config, groups: int = 64, k: int = 16) -> None:
        super().__init__(cfg)
        d, m = cfg.dims[-1], cfg.momentum
        self.groups, self.k = groups, k
        self.first = _mlp(3 + cfg.in_dim, d, momentum=m)
        self.second = _mlp(2 * d, d, momentum=m)
        self.position = nn.Sequential(nn.Linear(3, d), nn.GELU(), nn.Linear(d, d))
        self.which = nn.Parameter(torch.zeros(2, 2, d))  # scale and shift of each of the two orders
        self.layers = nn.ModuleList(SelectiveScan(d) for _ in range(sum(cfg.depths)))
        self.norm = nn.LayerNorm(d)
        self.point = _mlp(3 + cfg.in_dim, d, momentum=m)
        self.add_head(2 * d)

    def encode(self, pyramid: Pyramid, xyz: Tensor, feats: Tensor) -> Tensor:
        """(N, 2 d): of the point and of its nearest group."""
        counts = pyramid.counts[0]
        sizes = counts.clamp_max(self.groups)
        centres = farthest_point_sample(xyz, counts, sizes, torch.Generator().manual_seed(0))
        index = ball_query(xyz[centres], sizes, xyz, counts, float("inf"), self.k)
        inside = torch.cat([xyz[index] - xyz[centres][:, None], feats[index]], 2)
        first = self.first(inside.flatten(0, 1)).view(*index.shape, -1)
        both = torch.cat([first, first.amax(1, keepdim=True).expand_as(first)], 2)
        token = self.second(both.flatten(0, 1)).view(*index.shape, -1).amax(1) + self.position(xyz[centres])
        lines = []
        for i, curve in enumerate(("hilbert", "hilbert-trans")):
            order = serialize(xyz[centres], sizes, curve)
            lines.append((order, token[order] * (1 + self.which[i, 0]) + self.which[i, 1]))
        # one sequence a cloud: its groups in the first order, then in the second
        ids = [cloud_ids(sizes, len(token))] * 2
        merge = torch.argsort(torch.cat(ids), stable=True)
        x = torch.cat([line for _, line in lines])[merge]
        for layer in self.layers:
            x = layer(x, 2 * sizes, None)
        halves = torch.empty_like(x).index_copy(0, merge, self.norm(x))
        back = [torch.empty_like(token).index_copy(0, o, h) for (o, _), h in zip(lines, halves.chunk(2), strict=True)]
        token = (back[0] + back[1]) / 2
        with torch.no_grad():
            group = nearest(xyz, counts, xyz[centres], sizes)
        return torch.cat([self.point(torch.cat([xyz, feats], 1)), token[group]], 1)


def matrix_delta(q: Tensor, k: Tensor, v: Tensor, beta: Tensor, chunk: int = 64) -> Tensor:
    r"""DeltaNet with its full matrix state, chunk by chunk: :math:`S_t = S_{t-1}(I - \beta_t k_t k_t^T) + \beta_t
    v_t k_t^T`.

    Args:
        q, k, v: shape (H, N, D), keys of length 1.
        beta: shape (H, N).
        chunk: steps solved together (one triangular system of that size).

    Returns:
        :math:`y_t = S_t q_t`, shape (H, N, D).
    """
    state, out = v.new_zeros(v.shape[0], v.shape[2], k.shape[2]), []
    for i in range(0, k.shape[1], chunk):
        K, V, Q, b = k[:, i : i + chunk], v[:, i : i + chunk], q[:, i : i + chunk], beta[:, i : i + chunk, None]
        gram = K @ K.transpose(1, 2)
        system = torch.eye(K.shape[1], device=k.device, dtype=k.dtype) + (b * gram).tril(-1)
        writes = torch.linalg.solve_triangular(system, b * (V - K @ state.transpose(1, 2)), upper=False)
        out.append(Q @ state.transpose(1, 2) + (Q @ K.transpose(1, 2)).tril() @ writes)
        state = state + writes.transpose(1, 2) @ K
    return torch.cat(out, 1)


class MatrixDeltaLayer(nn.Module):
    """GISA with a matrix state in place of the vector state: what the vector saves is its cost."""

    def __init__(self, width: int, heads: int = 8) -> None:
        super().__init__()
        self.heads = heads
        self.norm, self.out_norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.gate, self.z = nn.Linear(width, heads), nn.Linear(width, width, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.mlp = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width, bias=False)
        )

    def forward(self, x: Tensor, counts: Tensor | None = None, order: Tensor | None = None) -> Tensor:
        """(N, d) to (N, d)."""
        h = self.norm(x)
        if order is not None:
            h = h[order]
        q, k, v = (t.unflatten(-1, (self.heads, -1)).transpose(0, 1) for t in self.qkv(h).chunk(3, -1))
        q, k = F.normalize(q, dim=-1), F.normalize(k, dim=-1)
        beta = torch.sigmoid(self.gate(h)).transpose(0, 1)
        sizes = [len(x)] if counts is None else counts.tolist()
        parts = zip(q.split(sizes, 1), k.split(sizes, 1), v.split(sizes, 1), beta.split(sizes, 1), strict=True)
        y = torch.cat([matrix_delta(*part) for part in parts], 1).transpose(0, 1).flatten(1)
        y = self.out(self.out_norm(y) * F.silu(self.z(h)))
        x = x + (y if order is None else torch.empty_like(y).index_copy(0, order, y))
        return x + self.mlp(x)


def _with_matrix_state(model: PointNetwork) -> PointNetwork:
    trunk = cast(Any, model).trunk
    cfg = model.cfg
    trunk.coarse = nn.ModuleList(MatrixDeltaLayer(cfg.dims[-1], cfg.heads) for _ in trunk.coarse)
    if hasattr(model, "full"):
        cast(Any, model).full = nn.ModuleList(
            MatrixDeltaLayer(cfg.head_dim, cfg.heads) for _ in cast(nn.ModuleList, model.full)
        )
    return model


class MatrixDeltaSeg(AnIsoNetSeg):
    """AnIsoNet for segmentation with DeltaNet's matrix state."""

    def __init__(self, cfg: Config) -> None:
        super().__init__(cfg)
        _with_matrix_state(self)


class MatrixDeltaCls(AnIsoNetCls):
    """AnIsoNet for classification with DeltaNet's matrix state."""

    def __init__(self, cfg: Config) -> None:
        super().__init__(cfg)
        _with_matrix_state(self)


class _ScanAfter(nn.Module):
    """A stage of DeLA and a selective scan in the pyramid's order."""

    def __init__(self, stage: nn.Module, width: int) -> None:
        super().__init__()
        self.stage, self.scan = stage, SelectiveScan(width)

    def forward(self, pyramid: Pyramid, xyz: Tensor, x: Tensor, index: int) -> Tensor:
        """Features of the stage."""
        return self.scan(self.stage(pyramid, xyz, x, index), pyramid.counts[index], pyramid.order[index])

    def relation_loss(self, x: Tensor, xyz: Tensor, idx: Tensor) -> Tensor:
        """That of the stage."""
        return cast(Any, self.stage).relation_loss(x, xyz, idx)


def _mamba_stages(model: PointNetwork) -> None:
    trunk = cast(Any, model).trunk
    trunk.stages = nn.ModuleList(
        _ScanAfter(stage, width) for stage, width in zip(trunk.stages, model.cfg.dims, strict=True)
    )


class PCMLikeSeg(AnIsoNetSeg):
    """Point Cloud Mamba: a selective scan after every stage of DeLA."""

    def __init__(self, cfg: Config) -> None:
        super().__init__(cfg)
        _mamba_stages(self)


class PCMLikeCls(AnIsoNetCls):
    """Point Cloud Mamba for classification."""

    def __init__(self, cfg: Config) -> None:
        super().__init__(cfg)
        _mamba_stages(self)


BASELINES = ("PointNet", "PointNet2", "DGCNN", "DeLA", "PTv3Like", "PointMambaLike", "MatrixDelta", "PCMLike")


def baseline(name: str, given: str | Mapping[str, Any] | Config, **changes: Any) -> PointNetwork:
    """A baseline at the sizes of a configuration.

    Args:
        name: of ``BASELINES``.
        given: preset, mapping or configuration.
        changes: of its fields.

    Raises:
        ValueError: on an unknown name.
    """
    cfg = Config.of(given, **changes)
    plain = {"PointNet": PointNet, "PointNet2": PointNet2, "DGCNN": DGCNN, "PTv3Like": PTv3Like}
    if name in plain:
        return plain[name](cfg)
    if name == "PointMambaLike":
        return PointMambaLike(cfg)
    segments = cfg.task == "segmentation"
    if name == "DeLA":
        cfg = Config.of(cfg, ese="none", gisa_full=0, gisa_coarse=0)
        return AnIsoNetSeg(cfg) if segments else AnIsoNetCls(cfg)
    if name == "MatrixDelta":
        return MatrixDeltaSeg(cfg) if segments else MatrixDeltaCls(cfg)
    if name == "PCMLike":
        cfg = Config.of(cfg, ese="none", gisa_full=0, gisa_coarse=0, order="morton")
        return PCMLikeSeg(cfg) if segments else PCMLikeCls(cfg)
    raise ValueError(f"expected a baseline of {', '.join(BASELINES)}, got {name!r}")
