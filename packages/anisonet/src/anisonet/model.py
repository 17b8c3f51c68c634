"""AnIsoNet: DeLA's local aggregation with ellipsoidal encoding, and GISA at full resolution and at the coarsest stage.

Local aggregation (LFP), blocks, down-sampling and decoder follow the public DeLA code (arXiv 2308.16532); encoding and
recurrence follow the paper. Sizes: ``PRESETS``.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple, Self, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from anisonet.curves import ORDERS, cloud_ids
from anisonet.ellipsoid import MODES, EllipsoidEncoding, Mode, neighbour_max
from anisonet.gisa import GISA, Readout
from anisonet.pyramid import Pick, Pyramid, Sampling

Task = Literal["segmentation", "classification", "parts"]
TASKS = ("segmentation", "classification", "parts")


class ConfigMismatch(ValueError):
    """A checkpoint belongs to another configuration."""


@dataclass(frozen=True)
class Config:
    """Everything that fixes a network and its pyramid.

    Attributes:
        task: ``segmentation``, ``classification`` or ``parts`` (segmentation given the object's category).
        classes: labels.
        in_dim: features a point; ``features`` names them.
        features: names of the features, for messages.
        dims, depths, ks: channels, LFP layers and neighbours of every stage.
        grid: edge of the voxels of the input itself (applied by the data pipeline), 0 for none.
        points: points to which a cloud that is classified is thinned (by the data pipeline), 0 for none.
        grid_sizes: of the stages after the first, as in ``Pyramid.build``.
        sampling: ``grid`` or ``fps``.
        head_dim: channels of the decoder (segmentation) or before the classifier.
        pooled: channels that are max-pooled (classification).
        gisa_full, gisa_coarse: GISA layers at full resolution (after the decoder) and at the coarsest stage.
        heads, readout, bidirectional, max_chunk, order: of GISA.
        ese, freqs, rotation_invariant: of the ellipsoidal encoding.
        coord_scale: factor of the coordinates before the network.
        coord_std: scale of the auxiliary target in every stage, in scaled units.
        momentum: of the batch norms.
        drop_path, head_drop, dropout: stochastic depth at the end, of the decoder's stages, of the classifier.
        categories: object categories (parts).
    """

    task: Task = "segmentation"
    classes: int = 13
    in_dim: int = 4
    features: tuple[str, ...] = ("r", "g", "b", "height")
    dims: tuple[int, ...] = (64, 128, 256, 512)
    depths: tuple[int, ...] = (4, 4, 8, 4)
    ks: tuple[int, ...] = (24, 24, 24, 24)
    grid: float = 0.04
    points: int = 0
    grid_sizes: tuple[float, ...] = (0.08, 0.16, 0.32)
    sampling: Sampling = "grid"
    head_dim: int = 256
    pooled: int = 2048
    gisa_full: int = 2
    gisa_coarse: int = 1
    heads: int = 8
    readout: Readout = "causal"
    bidirectional: bool = False
    max_chunk: int = 30_000
    order: str = "identity"
    ese: Mode = "ellipsoid"
    freqs: int = 4
    rotation_invariant: bool = False
    coord_scale: float = 40.0
    coord_std: tuple[float, ...] = (1.6, 3.2, 6.4, 12.8)
    momentum: float = 0.02
    drop_path: float = 0.1
    head_drop: float = 0.15
    dropout: float = 0.5
    categories: int = 0

    def __post_init__(self) -> None:
        stages = len(self.dims)
        for name in ("depths", "ks", "coord_std"):
            if len(getattr(self, name)) != stages:
                raise ValueError(f"expected {stages} {name} for {stages} stages, got {len(getattr(self, name))}")
        if len(self.grid_sizes) != stages - 1:
            raise ValueError(f"expected {stages - 1} grid_sizes for {stages} stages, got {len(self.grid_sizes)}")
        if self.task not in TASKS:
            raise ValueError(f"expected a task of {', '.join(TASKS)}, got {self.task!r}")
        if self.ese not in MODES:
            raise ValueError(f"expected ese of {', '.join(MODES)}, got {self.ese!r}")
        if self.order not in ORDERS:
            raise ValueError(f"expected an order of {', '.join(ORDERS)}, got {self.order!r}")
        if self.classes < 2:
            raise ValueError(f"expected at least 2 classes, got {self.classes}")
        if len(self.features) != self.in_dim:
            raise ValueError(f"expected {self.in_dim} names of features, got {len(self.features)}")
        if self.task == "parts" and self.categories < 1:
            raise ValueError("parts need the number of categories")

    @classmethod
    def of(cls, given: str | Mapping[str, Any] | Config, **changes: Any) -> Config:
        """A configuration from a preset's name, a mapping of its fields or another one, with changes.

        Raises:
            ValueError: on an unknown preset or field.
        """
        if isinstance(given, Config):
            return replace(given, **changes)
        if isinstance(given, str):
            if given not in PRESETS:
                raise ValueError(f"expected a configuration of {', '.join(PRESETS)}, got {given!r}")
            return replace(PRESETS[given], **changes)
        known = {field.name for field in fields(cls)}
        if unknown := sorted(set(given) - known):
            raise ValueError(f"unknown fields of a configuration: {', '.join(unknown)}")
        values: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value for name, value in given.items()
        }
        return cls(**{**values, **changes})


_TINY = Config(
    in_dim=1,
    features=("height",),
    classes=5,
    dims=(16, 32, 64),
    depths=(2, 2, 2),
    ks=(10, 10, 10),
    grid=0.0,
    grid_sizes=(0.16, 0.32),
    head_dim=48,
    gisa_full=1,
    gisa_coarse=1,
    coord_scale=12.5,
    coord_std=(1.0, 2.0, 4.0),
    momentum=0.1,
    drop_path=0.0,
    head_drop=0.0,
)
PRESETS: dict[str, Config] = {
    "seg_s3dis": Config(),
    "seg_scannet": Config(
        classes=20,
        in_dim=7,
        features=("r", "g", "b", "height", "nx", "ny", "nz"),
        dims=(64, 96, 160, 288, 512),
        depths=(4, 4, 4, 8, 4),
        ks=(24,) * 5,
        grid=0.02,
        grid_sizes=(0.04, 0.08, 0.16, 0.32),
        head_dim=288,
        coord_scale=60.0,
        coord_std=(1.6, 2.5, 5.0, 10.0, 20.0),
        head_drop=0.2,
    ),
    "cls_scanobjectnn": Config(
        task="classification",
        classes=15,
        in_dim=1,
        features=("height",),
        dims=(96, 192, 384),
        depths=(4, 4, 4),
        ks=(24, 24, 24),
        grid=0.0,
        points=1024,
        grid_sizes=(4.0, 4.0),
        sampling="fps",
        head_dim=384,
        gisa_full=0,
        gisa_coarse=1,
        order="morton",
        coord_std=(2.2, 4.4, 8.8),
        momentum=0.1,
        head_drop=0.0,
    ),
    "seg_tiny": _TINY,
    "cls_tiny": replace(
        _TINY,
        task="classification",
        classes=4,
        grid_sizes=(4.0, 4.0),
        sampling="fps",
        gisa_full=0,
        order="morton",
        pooled=128,
        coord_scale=5.0,
        coord_std=(1.0, 2.0, 4.0),
        dropout=0.2,
    ),
    "part_shapenet": Config(
        task="parts",
        classes=50,
        categories=16,
        in_dim=4,
        features=("nx", "ny", "nz", "height"),
        dims=(96, 192, 384),
        depths=(4, 4, 4),
        ks=(24, 24, 24),
        grid=0.0,
        grid_sizes=(4.0, 4.0),
        sampling="fps",
        head_dim=320,
        gisa_full=1,
        gisa_coarse=1,
        order="morton",
        coord_std=(2.2, 4.4, 8.8),
        momentum=0.1,
    ),
}


# --- pieces --------------------------------------------------------------------------------------------------------


def _linear(n: int, m: int, bias: bool = False) -> nn.Linear:
    layer = nn.Linear(n, m, bias=bias)
    nn.init.trunc_normal_(layer.weight, std=0.02)
    if bias:
        nn.init.zeros_(layer.bias)
    return layer


def _norm(width: int, weight: float, momentum: float) -> nn.BatchNorm1d:
    norm = nn.BatchNorm1d(width, momentum=momentum)
    nn.init.constant_(norm.weight, weight)
    return norm


def drop_clouds(x: Tensor, counts: Tensor, rate: float, training: bool) -> Tensor:
    """Stochastic depth: zero whole clouds with probability ``rate`` and scale the others by 1 / (1 - rate)."""
    if rate == 0 or not training:
        return x
    kept = (torch.rand(len(counts), device=x.device) >= rate).to(x.dtype) / (1 - rate)
    return x * kept[cloud_ids(counts, x.shape[0])][:, None]


class LFP(nn.Module):
    """Local feature propagation, BN(max_j (W x)_j - (W x)_i)."""

    def __init__(self, n: int, m: int, weight: float, momentum: float) -> None:
        super().__init__()
        self.linear = _linear(n, m)
        self.norm = _norm(m, weight, momentum)

    def forward(self, x: Tensor, idx: Tensor, sub: Tensor | None = None) -> Tensor:
        """(N, n) and (N, k) to (N, m); with ``sub`` only those rows, where that changes no statistics (evaluation)."""
        h = self.linear(x)
        if sub is None:
            return self.norm(neighbour_max(h, idx) - h)
        if self.training:
            return self.norm(neighbour_max(h, idx) - h)[sub]
        return self.norm(neighbour_max(h, idx[sub]) - h[sub])


class MLP(nn.Module):
    """d -> 2d, GELU, -> d, batch norm."""

    def __init__(self, width: int, weight: float, momentum: float) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            _linear(width, 2 * width, bias=True), nn.GELU(), _linear(2 * width, width), _norm(width, weight, momentum)
        )

    def forward(self, x: Tensor) -> Tensor:
        """(N, d) to (N, d)."""
        return self.layers(x)


class Block(nn.Module):
    """x += MLP(x), then ``depth`` times x += LFP(x), with x += MLP(x) after every second one."""

    def __init__(self, width: int, depth: int, drops: list[float], momentum: float) -> None:
        super().__init__()
        self.first = MLP(width, 0.2, momentum)
        self.lfps = nn.ModuleList(LFP(width, width, 0.0, momentum) for _ in range(depth))
        self.mlps = nn.ModuleList(MLP(width, 0.0, momentum) for _ in range(depth // 2))
        self.drops = drops

    def forward(self, x: Tensor, idx: Tensor, counts: Tensor) -> Tensor:
        """(N, d) to (N, d)."""
        x = x + drop_clouds(self.first(x), counts, self.drops[0], self.training)
        for i, (lfp, rate) in enumerate(zip(self.lfps, self.drops, strict=True)):
            x = x + drop_clouds(lfp(x, idx), counts, rate, self.training)
            if i % 2:
                x = x + drop_clouds(self.mlps[i // 2](x), counts, rate, self.training)
        return x


class Stage(nn.Module):
    """Down-sampling (but for the first), encoding, block, and the auxiliary head."""

    def __init__(self, cfg: Config, index: int, drops: list[float]) -> None:
        super().__init__()
        width, first = cfg.dims[index], index == 0
        self.encode = EllipsoidEncoding(
            cfg.in_dim if first else 0,
            width,
            cfg.ese,
            cfg.freqs,
            project=not first,
            bn_init=0.8 if first else 0.2,
            momentum=cfg.momentum,
            rotation_invariant=cfg.rotation_invariant,
        )
        if not first:
            before = cfg.dims[index - 1]
            self.skip = nn.Sequential(_linear(before, width), _norm(width, 0.3, cfg.momentum))
            self.down = LFP(before, width, 0.3, cfg.momentum)
        self.block = Block(width, cfg.depths[index], drops, cfg.momentum)
        self.relation = nn.Sequential(_linear(width, 32), nn.GELU(), _linear(32, 3))
        self.std = cfg.coord_std[index]
        self.is_first = first

    def forward(self, pyramid: Pyramid, xyz: Tensor, x: Tensor, index: int) -> Tensor:
        """Features of stage ``index`` from those of the stage before (or of the input)."""
        idx, counts = pyramid.knn[index], pyramid.counts[index]
        if self.is_first:
            x = self.encode(xyz, idx, x if x.shape[1] else None)
        else:
            sub, before = pyramid.sub[index], pyramid.knn[index - 1]
            skipped = self.skip(x)[sub] if self.training else self.skip(x[sub])
            x = skipped + self.down(x, before, sub)
            x = x + self.encode(xyz, idx)
        return self.block(x, idx, counts)

    def relation_loss(self, x: Tensor, xyz: Tensor, idx: Tensor) -> Tensor:
        """Squared error of the offset to a random neighbour, predicted from the difference of features (DeLA)."""
        other = idx.gather(1, torch.randint(idx.shape[1], (len(idx), 1), device=idx.device))[:, 0]
        return F.mse_loss(self.relation(x[other] - x), (xyz[other] - xyz) / self.std)


class Trunk(nn.Module):
    """All stages; GISA after the coarsest one."""

    def __init__(self, cfg: Config) -> None:
        super().__init__()
        rates = torch.linspace(0, cfg.drop_path, sum(cfg.depths)).tolist()
        stages, used = [], 0
        for index, depth in enumerate(cfg.depths):
            stages.append(Stage(cfg, index, rates[used : used + depth]))
            used += depth
        self.stages = nn.ModuleList(stages)
        self.coarse = _gisa_layers(cfg, cfg.gisa_coarse, cfg.dims[-1])
        self.scale = cfg.coord_scale

    def forward(self, pyramid: Pyramid, feats: Tensor) -> tuple[list[Tensor], Tensor]:
        """Features of every stage and the auxiliary loss (0 in evaluation)."""
        found, x, loss = [], feats, feats.new_zeros(())
        for index, stage in enumerate(self.stages):
            xyz = pyramid.xyz[index] * self.scale
            x = stage(pyramid, xyz, x, index)
            if self.training:
                loss = loss + cast(Stage, stage).relation_loss(x, xyz, pyramid.knn[index])
            if index == len(self.stages) - 1:
                for layer in self.coarse:
                    x = layer(x, pyramid.counts[index], pyramid.order[index])
            found.append(x)
        return found, loss


def _gisa_layers(cfg: Config, number: int, width: int) -> nn.ModuleList:
    return nn.ModuleList(
        GISA(width, cfg.heads, 2, cfg.bidirectional, cfg.readout, cfg.max_chunk) for _ in range(number)
    )


class PointNetwork(nn.Module):
    """What all networks share: configuration, pyramids, checks, saving and loading."""

    cfg: Config

    def build_pyramid(
        self,
        xyz: Tensor,
        counts: Tensor | None = None,
        generator: torch.Generator | None = None,
        pick: Pick | None = None,
        order: Any = None,
    ) -> Pyramid:
        """The pyramid that this network reads; ``order`` in place of the configuration's."""
        chosen = ("random" if self.training else "first") if pick is None else pick
        return Pyramid.build(
            xyz,
            counts,
            self.cfg.grid_sizes,
            self.cfg.ks,
            self.cfg.order if order is None else order,
            sampling=self.cfg.sampling,
            pick=chosen,
            generator=generator,
        )

    def check_input(self, pyramid: Pyramid, feats: Tensor) -> None:
        """Refuse features or pyramids that do not fit.

        Raises:
            ValueError: naming what was expected and what came.
        """
        if torch.compiler.is_compiling():
            return
        if feats.ndim != 2 or len(feats) != len(pyramid.xyz[0]):
            raise ValueError(f"expected features of {len(pyramid.xyz[0])} points, got shape {tuple(feats.shape)}")
        if feats.shape[1] != self.cfg.in_dim:
            names = ",".join(self.cfg.features)
            hint = "; pass --no-colour" if {"r", "g", "b"} <= set(self.cfg.features) else ""
            raise ValueError(f"expected {self.cfg.in_dim} features ({names}), got {feats.shape[1]}{hint}")
        if pyramid.stages != len(self.cfg.dims):
            raise ValueError(f"expected a pyramid of {len(self.cfg.dims)} stages, got {pyramid.stages}")
        device = next(self.parameters()).device
        if feats.device != device or pyramid.xyz[0].device != device:
            raise ValueError(
                f"expected all on the network's device {device}, got features on {feats.device} "
                f"and points on {pyramid.xyz[0].device}"
            )
        if self.training:
            for index, xyz in enumerate(pyramid.xyz):
                if len(xyz) < 2:
                    raise ValueError(
                        f"batch norm cannot train on the single point of stage {index}: use more clouds a batch, "
                        "larger clouds or finer grids"
                    )

    @classmethod
    def from_config(cls, given: str | Mapping[str, Any] | Config, **changes: Any) -> Self:
        """A network from a preset's name, a mapping or a ``Config``, with changed fields."""
        return cls(Config.of(given, **changes))

    def save_pretrained(self, folder: str | os.PathLike[str], metadata: Mapping[str, str] | None = None) -> None:
        """Write ``config.json`` and ``model.safetensors`` into a folder, each in one step."""
        from safetensors.torch import save_file

        target = Path(folder)
        target.mkdir(parents=True, exist_ok=True)
        weights, config = target / "model.safetensors.part", target / "config.json.part"
        state = {name: value.contiguous() for name, value in self.state_dict().items()}
        save_file(state, str(weights), metadata=dict(metadata or {}))
        content = {"network": type(self).__name__, **asdict(self.cfg)}
        config.write_text(json.dumps(content, indent=1), encoding="utf-8")
        weights.replace(target / "model.safetensors")
        config.replace(target / "config.json")

    @classmethod
    def from_pretrained(
        cls, folder: str | os.PathLike[str], config: str | Mapping[str, Any] | Config | None = None
    ) -> Self:
        """Load what ``save_pretrained`` wrote.

        Args:
            folder: the folder.
            config: what the checkpoint must have been made with; None to take what it says.

        Raises:
            ValueError: if a file is missing or not one of this network.
            ConfigMismatch: naming the fields that differ.
        """
        from safetensors.torch import load_file

        source = Path(folder)
        for name in ("config.json", "model.safetensors"):
            if not (source / name).is_file():
                raise ValueError(f"expected a checkpoint folder with {name}, got {source}")
        content = json.loads((source / "config.json").read_text(encoding="utf-8"))
        network = content.pop("network", None)
        kinds = {kind.__name__: kind for kind in (cls, *_subclasses(cls))}
        if network not in kinds:
            raise ConfigMismatch(f"expected a checkpoint of {', '.join(kinds)}, got {network}")
        found = Config.of(content)
        if config is not None:
            wanted = Config.of(config)
            differing = [
                f"{f.name} ({getattr(wanted, f.name)} wanted, {getattr(found, f.name)} in the checkpoint)"
                for f in fields(Config)
                if getattr(wanted, f.name) != getattr(found, f.name)
            ]
            if differing:
                raise ConfigMismatch("the checkpoint is of another configuration: " + ", ".join(differing))
        model = kinds[network](found)
        try:
            model.load_state_dict(load_file(str(source / "model.safetensors")))
        except RuntimeError as error:
            raise ConfigMismatch(
                f"{source}: weights do not fit config.json ({str(error).splitlines()[-1].strip()})"
            ) from None
        return cast(Self, model.eval())


def _subclasses(cls: type) -> list[type]:
    return [found for child in cls.__subclasses__() for found in (child, *_subclasses(child))]


class AnIsoNetSeg(PointNetwork):
    """Label every point."""

    def __init__(self, cfg: Config) -> None:
        super().__init__()
        if cfg.task == "classification":
            raise ValueError("expected a configuration for segmentation, got one for classification")
        self.cfg = cfg
        self.trunk = Trunk(cfg)
        self.projections = nn.ModuleList(
            nn.Sequential(_norm(d, math.sqrt(cfg.dims[0] / d), cfg.momentum), _linear(d, cfg.head_dim))
            for d in cfg.dims
        )
        self.head_drops = torch.linspace(0, cfg.head_drop, len(cfg.dims)).tolist()
        self.full = _gisa_layers(cfg, cfg.gisa_full, cfg.head_dim)
        self.head = nn.Sequential(
            _norm(cfg.head_dim, 1.0, cfg.momentum), nn.GELU(), nn.Linear(cfg.head_dim, cfg.classes)
        )

    def decode(self, pyramid: Pyramid, feats: Tensor) -> tuple[Tensor, Tensor]:
        """Features of all points, (N, head_dim), and the auxiliary loss."""
        found, loss = self.trunk(pyramid, feats)
        total = None
        for index, (x, project) in enumerate(zip(found, self.projections, strict=True)):
            part = project(x)
            part = part if index == 0 else part[pyramid.back[index]]
            part = drop_clouds(part, pyramid.counts[0], self.head_drops[index], self.training)
            total = part if total is None else total + part
        assert total is not None
        for layer in self.full:
            total = layer(total, pyramid.counts[0], pyramid.order[0])
        return total, loss

    def forward(self, pyramid: Pyramid, feats: Tensor) -> Tensor | tuple[Tensor, Tensor]:
        """Logits, shape (N, classes); in training also the auxiliary loss.

        Args:
            pyramid: from ``build_pyramid``.
            feats: shape (N, in_dim).
        """
        self.check_input(pyramid, feats)
        x, loss = self.decode(pyramid, feats)
        logits = self.head(x)
        return (logits, loss) if self.training else logits


class AnIsoNetPart(AnIsoNetSeg):
    """Label the parts of objects whose category is known."""

    def __init__(self, cfg: Config) -> None:
        if cfg.task != "parts":
            raise ValueError(f"expected a configuration for parts, got one for {cfg.task}")
        super().__init__(cfg)
        self.category = nn.Embedding(cfg.categories, cfg.head_dim)
        nn.init.normal_(self.category.weight, std=0.02)

    def forward(  # the category is one more input
        self, pyramid: Pyramid, feats: Tensor, category: Tensor | None = None
    ) -> Tensor | tuple[Tensor, Tensor]:
        """Logits, shape (N, classes); ``category`` holds one object category a cloud, shape (B,)."""
        self.check_input(pyramid, feats)
        if category is None or category.shape != pyramid.counts[0].shape:
            got = None if category is None else tuple(category.shape)
            raise ValueError(f"expected one category a cloud, shape {tuple(pyramid.counts[0].shape)}, got {got}")
        x, loss = self.decode(pyramid, feats)
        logits = self.head(x + self.category(category)[cloud_ids(pyramid.counts[0], len(x))])
        return (logits, loss) if self.training else logits


class AnIsoNetCls(PointNetwork):
    """Label every cloud."""

    def __init__(self, cfg: Config) -> None:
        super().__init__()
        if cfg.task != "classification":
            raise ValueError(f"expected a configuration for classification, got one for {cfg.task}")
        self.cfg = cfg
        self.trunk = Trunk(cfg)
        m, width = cfg.momentum, min(512, cfg.pooled)
        self.project = nn.Sequential(_norm(cfg.dims[-1], 1.0, m), _linear(cfg.dims[-1], cfg.pooled))
        self.head = nn.Sequential(
            nn.BatchNorm1d(cfg.pooled, momentum=m),
            nn.Linear(cfg.pooled, width),
            nn.GELU(),
            nn.BatchNorm1d(width, momentum=m),
            nn.Dropout(cfg.dropout),
            nn.Linear(width, width // 2),
            nn.GELU(),
            nn.BatchNorm1d(width // 2, momentum=m),
            nn.Dropout(cfg.dropout),
            nn.Linear(width // 2, cfg.classes),
        )

    def forward(self, pyramid: Pyramid, feats: Tensor) -> Tensor | tuple[Tensor, Tensor]:
        """Logits, shape (B, classes); in training also the auxiliary loss."""
        self.check_input(pyramid, feats)
        counts = pyramid.counts[-1]
        if self.training and len(counts) < 2:
            raise ValueError("batch norm cannot train on one cloud: expected at least 2 clouds a batch, got 1")
        found, loss = self.trunk(pyramid, feats)
        x = self.project(found[-1])
        index = cloud_ids(counts, len(x))[:, None].expand(-1, x.shape[1])
        pooled = x.new_zeros(len(counts), x.shape[1]).scatter_reduce(0, index, x, "amax", include_self=False)
        logits = self.head(pooled)
        return (logits, loss) if self.training else logits


NETWORKS: dict[str, type[PointNetwork]] = {
    "segmentation": AnIsoNetSeg,
    "classification": AnIsoNetCls,
    "parts": AnIsoNetPart,
}


def network(given: str | Mapping[str, Any] | Config, **changes: Any) -> PointNetwork:
    """The network that a configuration's task asks for."""
    cfg = Config.of(given, **changes)
    return NETWORKS[cfg.task](cfg)


# --- budgets and export --------------------------------------------------------------------------------------------


class Budget(NamedTuple):
    """Parameters, and multiply-accumulate operations of one forward pass (a FLOP count that counts both is twice
    that)."""

    parameters: int
    macs: int
    points: int


def synthetic_pyramid(cfg: Config, points: int, ratio: float = 3.0, device: str = "cpu") -> Pyramid:
    """A pyramid of the right shapes and meaningless indices, for counting and timing."""
    sizes = [max(2, round(points / ratio**s)) for s in range(len(cfg.dims))]
    at = torch.device(device)
    zeros = [torch.zeros(n, dtype=torch.long, device=at) for n in sizes]
    return Pyramid(
        tuple(torch.zeros(n, 3, device=at) for n in sizes),
        tuple(z[:, None].expand(-1, k).contiguous() for z, k in zip(zeros, cfg.ks, strict=True)),
        tuple(z if s else z[:0] for s, z in enumerate(zeros)),
        tuple(zeros[0] for _ in sizes),
        tuple(torch.full((1,), n, dtype=torch.long, device=at) for n in sizes),
        tuple(None for _ in sizes),
    )


def count(given: str | Mapping[str, Any] | Config | PointNetwork, points: int = 15_000, ratio: float = 3.0) -> Budget:
    """Parameters and operations of a network at a number of points (torch's own flop counter, no arithmetic done).

    Args:
        given: configuration or network.
        points: points of stage 0.
        ratio: points of a stage / points of the next.
    """
    from torch.utils.flop_counter import FlopCounterMode

    model = given if isinstance(given, PointNetwork) else network(given)
    cfg = model.cfg
    parameters = sum(p.numel() for p in model.parameters())
    if cfg.sampling == "fps":
        ratio = cfg.grid_sizes[0]
    pyramid = synthetic_pyramid(cfg, points, ratio)
    was = model.training
    extra = (torch.zeros(1, dtype=torch.long),) if cfg.task == "parts" else ()
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        model.eval()(pyramid, torch.zeros(points, cfg.in_dim), *extra)
    model.train(was)
    return Budget(parameters, counter.get_total_flops() // 2, points)


class Exportable(nn.Module):
    """A segmentation network that takes tensors only, in the order of ``export_inputs``."""

    def __init__(self, model: AnIsoNetSeg) -> None:
        super().__init__()
        self.model = model.eval()

    def forward(
        self,
        feats: Tensor,
        xyz: list[Tensor],
        knn: list[Tensor],
        sub: list[Tensor],
        back: list[Tensor],
        counts: list[Tensor],
        order: list[Tensor],
    ) -> Tensor:
        """Logits, shape (N, classes)."""
        stages = len(xyz)
        pyramid = Pyramid(
            tuple(xyz),
            tuple(knn),
            (feats.new_zeros(0, dtype=torch.long), *sub),
            (back[0], *back),
            tuple(counts),
            tuple(order) if order else (None,) * stages,
        )
        return cast(Tensor, self.model(pyramid, feats))


def export_inputs(pyramid: Pyramid, feats: Tensor) -> tuple[Any, ...]:
    """Inputs of ``Exportable`` from a pyramid and features."""
    order = [] if pyramid.order[0] is None else [cast(Tensor, o) for o in pyramid.order]
    return (
        feats,
        list(pyramid.xyz),
        list(pyramid.knn),
        list(pyramid.sub[1:]),
        list(pyramid.back[1:]),
        list(pyramid.counts),
        order,
    )


def export(model: AnIsoNetSeg, pyramid: Pyramid, feats: Tensor) -> torch.export.ExportedProgram:
    """``torch.export`` of a segmentation network with free numbers of points in every stage.

    Args:
        model: the network.
        pyramid: an example, with at least two points a stage.
        feats: its features.

    Returns:
        The program; call it as ``program.module()(*export_inputs(pyramid, feats))`` with any number of points.
    """
    from torch.export import Dim

    inputs = export_inputs(pyramid, feats)
    sizes = [Dim(f"n{s}", min=2) for s in range(pyramid.stages)]
    shapes = (
        {0: sizes[0]},
        [{0: n} for n in sizes],
        [{0: n} for n in sizes],
        [{0: n} for n in sizes[1:]],
        [{0: sizes[0]} for _ in sizes[1:]],
        [None for _ in sizes],
        [{0: n} for n in sizes] if inputs[-1] else [],
    )
    return torch.export.export(Exportable(model), inputs, dynamic_shapes=shapes)
