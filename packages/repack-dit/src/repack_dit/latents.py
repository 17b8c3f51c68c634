"""Cached latents: sharded safetensors that are written once, checked, resumed, and read without copies."""

from __future__ import annotations

import errno
import hashlib
import json
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from papershelf import InputError, Streams
from papershelf.files import atomic_path, atomic_write, sha256
from papershelf.paper import Progress, silent

INDEX = "cache.json"
VIEWS = ("plain", "flip")
DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
STATISTICS_IMAGES = 10_000


class CacheMismatchError(InputError):
    """The cache was made with another autoencoder or other images."""


class CorruptShardError(InputError):
    """A shard is missing, truncated or altered."""


class ImageSource(Protocol):
    """Labelled images, read in batches."""

    @property
    def labels(self) -> np.ndarray: ...

    @property
    def classes(self) -> tuple[str, ...]: ...

    def signed(self, indices: np.ndarray | None = None) -> np.ndarray:
        """Pixels in [-1, 1], float32, (n, 3, H, W), of these images."""
        ...


def aligned(array: np.ndarray) -> Tensor:
    """A copy in torch's own memory: numpy's lies at any offset, and the last bits of products depend on it."""
    return torch.from_numpy(array).clone()


def encoder_fingerprint(autoencoder: Any) -> str:
    """SHA-256 of all that a latent depends on: the packing weights, their configuration and the vision model's hash."""
    c = autoencoder.config
    digest = hashlib.sha256(repr((c.in_features, c.latent_channels, c.posterior, c.grid, c.vfm_hash)).encode())
    for part in (autoencoder.pack_conv, autoencoder.quant_conv):
        for name, value in sorted(part.state_dict().items()):
            digest.update(name.encode() + value.detach().float().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()


@dataclass(frozen=True)
class _Plan:
    """What a shard holds is a function of this alone, so that a rebuilt shard has the same bytes."""

    fingerprint: str
    images: int
    shard_size: int
    views: tuple[str, ...]
    dtype: str
    seed: int
    shape: tuple[int, int, int]

    @property
    def shards(self) -> int:
        return -(-self.images // self.shard_size)

    def rows(self, shard: int) -> np.ndarray:
        return np.arange(shard * self.shard_size, min((shard + 1) * self.shard_size, self.images))

    def metadata(self, shard: int) -> dict[str, str]:
        return {"plan": json.dumps([*self.__dict__.values(), shard])}

    def bytes_of(self, rows: int) -> int:
        return rows * (len(self.views) * int(np.prod(self.shape)) * DTYPES[self.dtype].itemsize + 8)


def _shard_path(folder: Path, shard: int) -> Path:
    return folder / f"latents-{shard:05d}.safetensors"


def _is_finished(path: Path, plan: _Plan, shard: int) -> bool:
    """Whether the shard is whole and of this plan; a damaged one is not, and is built again."""
    if not path.is_file():
        return False
    try:
        with safe_open(path, "pt") as opened:  # refuses a file whose length differs from its header's
            return opened.metadata() == plan.metadata(shard)
    except (SafetensorError, OSError):
        return False


@torch.no_grad()
def _encode_shard(
    images: ImageSource, autoencoder: Any, plan: _Plan, shard: int, batch: int, device: str
) -> dict[str, Tensor]:
    rows, generator = plan.rows(shard), Streams(plan.seed).torch(f"posterior {shard}")
    parts: dict[str, list[Tensor]] = {view: [] for view in plan.views}
    for start in range(0, len(rows), batch):
        pixels = aligned(images.signed(rows[start : start + batch])).to(device)
        for view in plan.views:
            found = autoencoder.encode(pixels.flip(-1) if view == "flip" else pixels).latent_dist
            noise = torch.randn(found.mean.shape, generator=generator).to(found.mean)
            z = (found.mean + found.std * noise).cpu()
            if not torch.isfinite(z).all():
                raise InputError(f"the autoencoder gives latents that are not finite for images {rows[start]} and on")
            parts[view].append(z.to(DTYPES[plan.dtype]))
    names = {"plain": "latents", "flip": "latents_flip"}
    tensors = {names[view]: torch.cat(found).contiguous() for view, found in parts.items()}
    return {**tensors, "labels": torch.from_numpy(np.asarray(images.labels[rows], dtype=np.int64))}


def _write_shard(path: Path, tensors: dict[str, Tensor], metadata: dict[str, str], missing: int) -> None:
    try:
        with atomic_path(path) as temporary:
            save_file(tensors, temporary, metadata)
    except (OSError, SafetensorError) as error:
        full = getattr(error, "errno", None) == errno.ENOSPC or "os error 28" in str(error).lower()
        if not full:
            raise
        free = shutil.disk_usage(path.parent).free
        raise InputError(
            f"disk full at {path}: {missing:,} bytes needed for what is missing, {free:,} free; "
            "finished shards are kept, --resume goes on"
        ) from error


def _moments(shards: Sequence[dict[str, Tensor]], chosen: Tensor, size: int) -> tuple[list[float], list[float]]:
    """Mean and unbiased deviation per channel of these rows' plain latents, over all positions, in float64."""
    count, total, squares = 0, torch.zeros(()), torch.zeros(())
    for i, shard in enumerate(shards):
        rows = chosen[chosen // size == i] % size
        if not len(rows):
            continue
        z = shard["latents"][rows].double().movedim(1, 0).flatten(1)
        mean = z.mean(1)
        spread = (z - mean[:, None]).square().sum(1)
        merged, gap = count + z.shape[1], mean - total
        squares = squares + spread + gap.square() * count * z.shape[1] / merged
        total = total + gap * z.shape[1] / merged
        count = merged
    std = (squares / max(count - 1, 1)).sqrt().clamp_min(1e-6)
    return total.tolist(), std.tolist()


class LatentCache:
    """Latents of images and their mirror images, memory-mapped.

    Indexing gives ``(z, label)`` with ``z`` normalised per channel, float32, (d, h, w), and the plain view.

    Args:
        folder: what :meth:`build` wrote.

    Attributes:
        labels: (N,), int64.
        classes: name of each label.
        views: ``("plain",)`` or ``("plain", "flip")``.
        fingerprint: of the encoder.

    Raises:
        InputError: if the folder holds no cache.
        CorruptShardError: naming the shard that is missing or truncated.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = Path(folder)
        try:
            self.index: dict[str, Any] = json.loads((self.folder / INDEX).read_text())
            shards, self.fingerprint = self.index["shards"], str(self.index["fingerprint"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise InputError(
                f"{self.folder} holds no finished latent cache ({error}); run 'repack-dit cache'"
            ) from error
        self.views, self.classes = tuple(self.index["views"]), tuple(self.index["classes"])
        self._size = int(self.index["shard_size"])
        self._shards = [self._open(shard) for shard in shards]
        self.labels = torch.cat([shard["labels"] for shard in self._shards])
        self._mean, self._std = (torch.tensor(self.index[k], dtype=torch.float32) for k in ("mean", "std"))

    def _open(self, entry: dict[str, Any]) -> dict[str, Tensor]:
        path = self.folder / Path(str(entry["name"])).name
        if not path.is_file():
            raise CorruptShardError(f"shard {path} is missing; 'repack-dit cache --resume' rebuilds it alone")
        if path.stat().st_size != entry["bytes"]:
            raise CorruptShardError(
                f"shard {path} has {path.stat().st_size:,} bytes, expected {entry['bytes']:,}; "
                "'repack-dit cache --resume' rebuilds it alone"
            )
        try:
            with safe_open(path, "pt") as opened:
                return {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118
        except SafetensorError as error:
            raise CorruptShardError(f"shard {path} cannot be read ({error})") from error

    def verify(self) -> None:
        """Compare every shard with its SHA-256.

        Raises:
            CorruptShardError: naming the first that differs.
        """
        for entry in self.index["shards"]:
            path = self.folder / entry["name"]
            if sha256(path) != entry["sha256"]:
                raise CorruptShardError(f"shard {path} was altered; remove it and run 'repack-dit cache --resume'")

    def check(self, autoencoder: Any) -> None:
        """Refuse a cache of another encoder.

        Raises:
            CacheMismatchError: with both fingerprints.
        """
        found = encoder_fingerprint(autoencoder)
        if found != self.fingerprint:
            raise CacheMismatchError(
                f"{self.folder} was made with the encoder {self.fingerprint[:12]}, this one is {found[:12]}; "
                "build the cache again"
            )

    @property
    def stats(self) -> tuple[Tensor, Tensor]:
        """Mean and unbiased standard deviation per channel, each (1, d, 1, 1)."""
        return self._mean.view(1, -1, 1, 1), self._std.view(1, -1, 1, 1)

    @property
    def shape(self) -> tuple[int, int, int]:
        """(d, h, w)."""
        d, h, w = self._shards[0]["latents"].shape[1:]
        return d, h, w

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, i: int) -> tuple[Tensor, int]:
        if not -len(self) <= i < len(self):
            raise IndexError(f"index {i} outside a cache of {len(self)}")
        z, label = self.take(torch.tensor([i % len(self)]))
        return z[0], int(label)

    def take(self, indices: Tensor, flips: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """A batch of normalised latents, float32, (n, d, h, w), and labels (n,).

        Args:
            indices: (n,), in [0, N).
            flips: (n,), bool: which ones are mirrored; ignored where the cache holds one view.
        """
        z = torch.empty((len(indices), *self.shape))
        mirrored = flips if flips is not None and "flip" in self.views else torch.zeros(len(indices), dtype=torch.bool)
        shards = indices // self._size
        for shard in shards.unique().tolist():
            for view, wanted in (("latents", ~mirrored), ("latents_flip", mirrored)):
                at = (shards == shard) & wanted
                if bool(at.any()):
                    z[at] = self._shards[shard][view][indices[at] - shard * self._size].float()
        mean, std = self.stats
        return z.sub_(mean).div_(std), self.labels[indices]

    def permutation(self, generator: torch.Generator, together: int = 4) -> Tensor:
        """An order of all items that keeps reading local: shards shuffled, and items among ``together`` shards."""
        order = torch.randperm(len(self._shards), generator=generator).tolist()
        parts = []
        for start in range(0, len(order), together):
            chosen = order[start : start + together]
            rows = torch.cat([torch.arange(len(self._shards[i]["labels"])) + i * self._size for i in chosen])
            parts.append(rows[torch.randperm(len(rows), generator=generator)])
        return torch.cat(parts)

    @classmethod
    def build(
        cls,
        images: ImageSource,
        autoencoder: Any,
        out: Path,
        *,
        views: Sequence[str] = VIEWS,
        dtype: str = "bf16",
        shard_size: int = 10_000,
        resume: bool = True,
        seed: int = 0,
        batch: int = 64,
        device: str = "cpu",
        progress: Progress = silent,
    ) -> LatentCache:
        """Encode all images, sampling the posterior once, and write shards, statistics and an index.

        Args:
            images: with labels.
            autoencoder: with a vision model attached.
            out: folder; made where it is missing.
            views: ``plain``, and ``flip`` for mirror images.
            dtype: ``bf16``, ``fp16`` or ``fp32`` on disk.
            shard_size: images a shard.
            resume: keep finished shards; else existing ones are built again.
            seed: of the posterior's noise; shard by shard, so a rebuilt shard equals the lost one.
            batch: images encoded at once.
            device: of the autoencoder.
            progress: wraps the loop over shards.

        Raises:
            ValueError: for unknown views or dtype, or no image.
            CacheMismatchError: if ``out`` holds shards of another encoder, other images or other options.
            InputError: if the disk has too little room, with the bytes needed; finished shards stay.
        """
        if not views or views[0] != "plain" or not set(views) <= set(VIEWS) or len(set(views)) != len(views):
            raise ValueError(f"views start with plain, then flip or nothing, got {tuple(views)}")
        if dtype not in DTYPES or shard_size < 1 or not len(images.labels):
            raise ValueError(
                f"expected a dtype of {', '.join(DTYPES)}, shards of >= 1 and >= 1 image, "
                f"got {dtype!r}, {shard_size} and {len(images.labels)}"
            )
        c = autoencoder.config
        plan = _Plan(
            encoder_fingerprint(autoencoder),
            len(images.labels),
            shard_size,
            tuple(views),
            dtype,
            seed,
            (c.latent_channels, c.grid, c.grid),
        )
        out = Path(out)
        out.mkdir(parents=True, exist_ok=True)
        _refuse_other(out, plan, resume)
        paths = [_shard_path(out, i) for i in range(plan.shards)]
        missing = [i for i, path in enumerate(paths) if not (resume and _is_finished(path, plan, i))]
        needed = sum(plan.bytes_of(len(plan.rows(i))) for i in missing)
        free = shutil.disk_usage(out).free
        if needed > free:
            raise InputError(f"the cache needs {needed:,} more bytes in {out}, {free:,} are free")
        for i in progress(missing, label="caching latents"):
            _write_shard(paths[i], _encode_shard(images, autoencoder, plan, i, batch, device), plan.metadata(i), needed)
        _write_index(out, plan, paths, images.classes)
        return cls(out)


def _refuse_other(out: Path, plan: _Plan, resume: bool) -> None:
    path = out / INDEX
    if not resume or not path.is_file():
        return
    try:
        kept = json.loads(path.read_text())["plan"]
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(f"{path} is damaged ({error}); remove the folder and build the cache again") from error
    wanted = json.loads(json.dumps(plan.__dict__))
    different = [k for k in wanted if kept.get(k) != wanted[k]]
    if different:
        raise CacheMismatchError(f"{out} holds a cache that differs in {', '.join(different)}; name another folder")


def _write_index(out: Path, plan: _Plan, paths: Sequence[Path], classes: tuple[str, ...]) -> None:
    shards = []
    for path in paths:
        with safe_open(path, "pt") as opened:
            shards.append({"latents": opened.get_tensor("latents")})
    count = min(plan.images, STATISTICS_IMAGES)
    chosen = torch.randperm(plan.images, generator=Streams(plan.seed).torch("statistics"))[:count]
    mean, std = _moments(shards, chosen, plan.shard_size)
    index = {
        "format": 1,
        "fingerprint": plan.fingerprint,
        "plan": plan.__dict__,
        "views": plan.views,
        "shard_size": plan.shard_size,
        "classes": classes,
        "mean": mean,
        "std": std,
        "shards": [{"name": p.name, "bytes": p.stat().st_size, "sha256": sha256(p)} for p in paths],
    }
    atomic_write(out / INDEX, json.dumps(index, indent=1))
