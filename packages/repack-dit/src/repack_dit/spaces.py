"""Latent spaces under one interface, with closed-form or trained decoders, and the default data's features."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from papershelf import InputError
from papershelf.files import cache_folder, load_checkpoint, save_checkpoint
from repack_dit.data import Images, photo_crops
from repack_dit.losses import vision_alignment_loss
from repack_dit.packing import RePackAutoencoder
from repack_dit.redundancy import LinearPack, best_linear_pack, principal_pack
from repack_dit.vision import PACKAGED, VisionFeatures, load_vfm

SPACES = ("raw", "rrr", "pca", "pixel")
LEARNED = ("repack", "vae", "vavae", "rae")
LOG_VARIANCE = -6.0


def patches_of(images: np.ndarray, grid: int) -> np.ndarray:
    """Images (N, 3, H, W) to patches, (N * grid * grid, 3 * p * p), row by row."""
    n, c, side, _ = images.shape
    p = side // grid
    if p * grid != side:
        raise ValueError(f"a grid of {grid} does not divide images of side {side}")
    cut = images.reshape(n, c, grid, p, grid, p).transpose(0, 2, 4, 1, 3, 5)
    return cut.reshape(n * grid * grid, c * p * p)


def images_of(patches: np.ndarray, grid: int) -> np.ndarray:
    """Inverse of :func:`patches_of`."""
    p = round((patches.shape[1] / 3) ** 0.5)
    cut = patches.reshape(-1, grid, grid, 3, p, p).transpose(0, 3, 1, 4, 2, 5)
    return cut.reshape(-1, 3, grid * p, grid * p)


def tokens_of(maps: np.ndarray) -> np.ndarray:
    """Maps (N, C, h, w) to tokens (N * h * w, C)."""
    return np.moveaxis(maps, 1, -1).reshape(-1, maps.shape[1])


def maps_of(tokens: np.ndarray, grid: int) -> np.ndarray:
    """Inverse of :func:`tokens_of`."""
    return np.ascontiguousarray(np.moveaxis(tokens.reshape(-1, grid, grid, tokens.shape[1]), -1, 1))


@dataclass(frozen=True)
class LatentSpace:
    """A linear latent space of one grid, normalised per channel.

    Attributes:
        name: ``raw``, ``rrr-32``, ``pca-32`` or ``pixel-32``.
        linear: pack and patch decoder; of features, or of the patches themselves for ``pixel``.
        mean: of the latents, (d,).
        std: of the latents (unbiased), (d,).
        grid: side of the map.
    """

    name: str
    linear: LinearPack
    mean: np.ndarray
    std: np.ndarray
    grid: int

    @property
    def channels(self) -> int:
        """d."""
        return len(self.mean)

    def encode(self, features: np.ndarray, images: np.ndarray) -> NDArray[np.float32]:
        """Normalised latents, (N, d, h, w), of images (N, 3, H, W) with their features (N, C, h, w)."""
        source = patches_of(images, self.grid) if self.name.startswith("pixel") else tokens_of(features)
        return maps_of((self.linear.encode(source) - self.mean) / self.std, self.grid).astype(np.float32)

    def decode(self, latents: np.ndarray) -> NDArray[np.float32]:
        """Images in [-1, 1], (N, 3, H, W), of normalised latents."""
        patches = self.linear.decode(tokens_of(latents) * self.std + self.mean)
        return images_of(patches, self.grid).clip(-1, 1).astype(np.float32)


def fit_space(kind: str, features: np.ndarray, images: np.ndarray, d: int = 32) -> LatentSpace:
    """Fit a space on training features and images.

    Args:
        kind: ``raw`` (all channels), ``rrr`` (best linear pack), ``pca`` (of standardised features) or ``pixel``
            (PCA of the patches, a linear autoencoder).
        features: (N, C, h, h).
        images: (N, 3, H, H) in [-1, 1].
        d: channels of the packed kinds.
    """
    if kind not in SPACES:
        raise ValueError(f"expected one of {', '.join(SPACES)}, got {kind!r}")
    grid = features.shape[-1]
    tokens, patches = tokens_of(features), patches_of(images, grid)
    if kind == "raw":
        full = best_linear_pack(tokens, patches, min(tokens.shape[1], patches.shape[1]))
        linear = LinearPack(np.eye(tokens.shape[1]), full.unpack @ full.pack, full.feature_mean, full.patch_mean)
    elif kind == "rrr":
        linear = best_linear_pack(tokens, patches, d)
    elif kind == "pca":
        linear = principal_pack(tokens, patches, d)
    else:
        linear = principal_pack(patches, patches, d, ridge=1e-9, standardise=False)
    latents = linear.encode(patches if kind == "pixel" else tokens)
    std = np.maximum(latents.std(0, ddof=1), 1e-6)
    return LatentSpace("raw" if kind == "raw" else f"{kind}-{d}", linear, latents.mean(0), std, grid)


# --- trained spaces ------------------------------------------------------------------------------------------------


class Space(Protocol):
    """What every latent space here has."""

    @property
    def name(self) -> str:
        """``raw``, ``pca-32``, ``vae-32``."""
        ...

    @property
    def grid(self) -> int:
        """Side of the latent map."""
        ...

    @property
    def channels(self) -> int:
        """d."""
        ...

    @property
    def mean(self) -> np.ndarray:
        """Per channel, of the latents before normalisation, (d,)."""
        ...

    @property
    def std(self) -> np.ndarray:
        """Per channel, (d,)."""
        ...

    def encode(self, features: np.ndarray, images: np.ndarray) -> NDArray[np.float32]:
        """Normalised latents (N, d, h, w)."""
        ...

    def decode(self, latents: np.ndarray) -> NDArray[np.float32]:
        """Images (N, 3, H, W) in [-1, 1]."""
        ...


@dataclass(frozen=True)
class TrainedSpace:
    """A latent space of trained networks, normalised per channel; see :class:`Space`.

    Attributes:
        name: ``repack-32``, ``vae-32``, ``vavae-32`` or ``rae``.
        encoder: (features, images) -> latents (N, d, h, w), not normalised.
        decoder: latents -> images.
        mean: (d,).
        std: (d,), unbiased.
        grid: side of the map.
    """

    name: str
    encoder: Callable[[Tensor, Tensor], Tensor]
    decoder: Callable[[Tensor], Tensor]
    mean: np.ndarray
    std: np.ndarray
    grid: int

    @property
    def channels(self) -> int:
        """d."""
        return len(self.mean)

    @torch.no_grad()
    def encode(self, features: np.ndarray, images: np.ndarray, batch: int = 64) -> NDArray[np.float32]:
        """Normalised latents, (N, d, h, w): the posterior's means where there is one."""
        z = _encoded(self.encoder, features, images, batch)
        return ((z - self.mean[:, None, None]) / self.std[:, None, None]).astype(np.float32)

    @torch.no_grad()
    def decode(self, latents: np.ndarray, batch: int = 64) -> NDArray[np.float32]:
        """Images in [-1, 1], (N, 3, H, W), of normalised latents."""
        z = torch.from_numpy((latents * self.std[:, None, None] + self.mean[:, None, None]).astype(np.float32))
        return torch.cat([self.decoder(part) for part in z.split(batch)]).clamp(-1, 1).numpy()


@torch.no_grad()
def _encoded(encoder: Callable[[Tensor, Tensor], Tensor], features: Any, images: Any, batch: int = 64) -> np.ndarray:
    f, x = torch.as_tensor(features), torch.as_tensor(images)
    return torch.cat([encoder(f[i : i + batch], x[i : i + batch]) for i in range(0, len(x), batch)]).numpy()


def _levels(images: Any, grid: int) -> tuple[int, ...]:
    """Channels of a decoder from the grid to the images' side, each level after the first doubling it."""
    doublings = math.log2(images.shape[-1] / grid)
    if doublings != int(doublings) or doublings < 0:
        raise ValueError(f"images of side {images.shape[-1]} are no power of two times a grid of {grid}")
    return ((32, 64, 64, 128) + (128,) * 4)[: int(doublings) + 1]


def train_space(
    kind: str,
    features: np.ndarray,
    images: np.ndarray,
    d: int = 32,
    *,
    generator: torch.Generator,
    steps: int = 300,
    batch: int = 32,
    lr: float = 1e-3,
    kl_weight: float = 1e-6,
    alignment_weight: float = 0.1,
    noise_tau: float = 0.1,
) -> TrainedSpace:
    """Train an autoencoder on images by L1 (plus its own terms) and wrap it as a space.

    Args:
        kind: ``repack`` (packing convolution on the frozen features), ``vae`` (diffusers' ``AutoencoderKL``, the same
            decoder behind a convolutional encoder), ``vavae`` (the same, its latent aligned with the features), or
            ``rae`` (all channels of the features, diffusers' RAE decoder, features met with noise).
        features: (N, C, h, h).
        images: (N, 3, H, H) in [-1, 1].
        d: latent channels; ``rae`` has the features'.
        generator: source of weights, batches and noise.
        steps: of Adam.
        batch: images a step.
        lr: of Adam.
        kl_weight: of the mean KL divergence per latent number.
        alignment_weight: of VA-VAE's term.
        noise_tau: largest deviation of the noise on ``rae``'s features.
    """
    if kind not in LEARNED:
        raise ValueError(f"expected one of {', '.join(LEARNED)}, got {kind!r}")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(int(torch.randint(2**62, (1,), generator=generator)))
        parts = _networks(kind, features, images, d)
    module, project = parts["module"], parts.get("project")
    f, x = torch.from_numpy(features), torch.from_numpy(images)
    trained = [p for p in (*module.parameters(), *(project.parameters() if project else ())) if p.requires_grad]
    optimizer = torch.optim.Adam(trained, lr=lr)
    for step in range(steps):
        chosen = torch.randint(len(x), (min(batch, len(x)),), generator=generator)
        z, divergence = parts["posterior"](f[chosen], x[chosen], generator)
        if kind == "rae":
            sigma = noise_tau * torch.rand((len(z), 1, 1, 1), generator=generator)
            z = z + sigma * torch.randn(z.shape, generator=generator)
        loss = F.l1_loss(parts["decode"](z), x[chosen]) + kl_weight * divergence
        if project is not None:
            loss = loss + alignment_weight * vision_alignment_loss(project(z), f[chosen])
        if not torch.isfinite(loss):
            raise FloatingPointError(f"loss {float(loss)} at step {step} of {kind}")
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    module.eval()
    z = _encoded(parts["encode"], features, images)
    mean, std = z.mean((0, 2, 3)), np.maximum(z.std((0, 2, 3), ddof=1), 1e-6)
    name = kind if kind == "rae" else f"{kind}-{d}"
    return TrainedSpace(name, parts["encode"], parts["decode"], mean, std, z.shape[-1])


def _networks(kind: str, features: np.ndarray, images: np.ndarray, d: int) -> dict[str, Any]:
    """Module, ``posterior`` (latent, divergence), ``encode`` (mean) and ``decode``; a projection for VA-VAE."""
    channels, grid = features.shape[1], features.shape[-1]
    if kind == "rae":
        return _rae_networks(channels, grid, images)
    levels = _levels(images, grid)
    if kind == "repack":
        pack = RePackAutoencoder(channels, d, "gaussian", levels, 1, 32, grid)
        return _gaussian(pack, lambda f, x: pack.pack(f), lambda z: pack.decode(z, return_dict=False)[0])
    from diffusers import AutoencoderKL

    vae: Any = AutoencoderKL(
        down_block_types=("DownEncoderBlock2D",) * len(levels),
        up_block_types=("AttnUpDecoderBlock2D",) + ("UpDecoderBlock2D",) * (len(levels) - 1),
        block_out_channels=levels,
        layers_per_block=1,
        latent_channels=d,
        sample_size=images.shape[-1],
    )
    parts = _gaussian(vae, lambda f, x: vae.encode(x).latent_dist, lambda z: vae.decode(z, return_dict=False)[0])
    return parts | ({"project": nn.Conv2d(d, channels, 1, bias=False)} if kind == "vavae" else {})


def _gaussian(module: Any, distribution: Any, decode: Callable[[Tensor], Tensor]) -> dict[str, Any]:
    # small noise at the start: at a deviation of one a short training sees little of the latent
    with torch.no_grad():
        module.quant_conv.bias[len(module.quant_conv.bias) // 2 :] = LOG_VARIANCE

    def posterior(f: Tensor, x: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        law = distribution(f, x)
        return law.sample(generator), law.kl().mean() / law.mean[0].numel()

    return {
        "module": module,
        "posterior": posterior,
        "encode": lambda f, x: distribution(f, x).mode(),
        "decode": decode,
    }


def _rae_networks(channels: int, grid: int, images: np.ndarray) -> dict[str, Any]:
    from diffusers.models.autoencoders.autoencoder_rae import RAEDecoder

    side = images.shape[-1]
    if side % grid:
        raise ValueError(f"a grid of {grid} does not divide images of side {side}")
    decoder: Any = RAEDecoder(
        hidden_size=channels,
        decoder_hidden_size=128,
        decoder_num_hidden_layers=2,
        decoder_num_attention_heads=4,
        decoder_intermediate_size=512,
        num_patches=grid**2,
        patch_size=side // grid,
        image_size=side,
    )

    def decode(z: Tensor) -> Tensor:
        return decoder.unpatchify(decoder(z.flatten(2).transpose(1, 2), return_dict=True).logits)

    return {
        "module": decoder,
        "posterior": lambda f, x, generator: (f, f.new_zeros(())),
        "encode": lambda f, x: f,
        "decode": decode,
    }


def autoencoder_space(model: Any, images: np.ndarray, name: str) -> TrainedSpace:
    """A trained diffusers autoencoder, ``AutoencoderRAE`` or ``AutoencoderKL``, as a space; images as in [-1, 1].

    Args:
        model: AutoencoderRAE takes images in [0, 1], the others in [-1, 1].
        images: (N, 3, H, W) that the statistics are taken over.
        name: of the space.
    """
    from diffusers import AutoencoderRAE

    rae = isinstance(model, AutoencoderRAE)
    model = model.eval()

    def encode(f: Tensor, x: Tensor) -> Tensor:
        return model.encode((x + 1) / 2).latent if rae else model.encode(x).latent_dist.mode()

    def decode(z: Tensor) -> Tensor:
        found = model.decode(z, return_dict=False)[0]
        return 2 * found - 1 if rae else found

    z = _encoded(encode, np.zeros((len(images), 0), np.float32), images)
    return TrainedSpace(
        name, encode, decode, z.mean((0, 2, 3)), np.maximum(z.std((0, 2, 3), ddof=1), 1e-6), z.shape[-1]
    )


def parse_space(name: str) -> tuple[str, int]:
    """``repack-8`` to its kind and channels; ``raw`` and ``rae`` have none of their own (0).

    Raises:
        InputError: for another name.
    """
    kind, dash, number = name.strip().partition("-")
    whole = kind in ("raw", "rae")
    packed = number.isdecimal() and int(number) > 0
    if kind not in (*SPACES, *LEARNED) or (bool(dash) if whole else not packed):
        others = ", ".join(f"{k}-32" for k in (*SPACES, *LEARNED) if k not in ("raw", "rae"))
        raise InputError(f"spaces are raw, rae, {others} (or another number of channels), got {name!r}")
    return kind, 0 if whole else int(number)


def make_space(
    name: str, features: np.ndarray, images: np.ndarray, *, generator: torch.Generator, steps: int = 300
) -> LatentSpace | TrainedSpace:
    """The space of this name, fitted or trained on features (N, C, h, h) and images (N, 3, H, H)."""
    kind, d = parse_space(name)
    if kind in SPACES:
        return fit_space(kind, features, images, d)
    return train_space(kind, features, images, d, generator=generator, steps=steps)


# --- features of the default data ----------------------------------------------------------------------------------


@torch.no_grad()
def extract_features(vision: VisionFeatures, images: np.ndarray, batch: int = 64) -> NDArray[np.float32]:
    """Features (N, C, h, w) of images (N, 3, H, W) in [-1, 1]."""
    parts = [vision(torch.from_numpy(images[i : i + batch])).numpy() for i in range(0, len(images), batch)]
    return np.concatenate(parts)


@dataclass(frozen=True)
class PhotoData:
    """Photo crops with their features: images (N, 3, 32, 32) in [-1, 1], features (N, C, 4, 4)."""

    train: np.ndarray
    train_features: np.ndarray
    train_labels: np.ndarray
    held_out: np.ndarray
    held_out_features: np.ndarray
    vfm: str


def photo_data(vfm: str = PACKAGED, *, train: int = 150, held_out: int = 30, seed: int = 0) -> PhotoData:
    """The default data; features of the packaged model are computed once (about half a minute) and cached."""
    first, second = photo_crops(np.random.default_rng(seed), train=train, held_out=held_out)
    path = cache_folder("repack-dit", "features") / f"photos-32-{vfm}-{train}-{held_out}-{seed}.npz"
    if vfm == PACKAGED and path.is_file():
        kept = load_checkpoint(path)
    else:
        vision = load_vfm(vfm, 4)
        kept = {"train": _features(vision, first), "held_out": _features(vision, second)}
        if vfm == PACKAGED:
            save_checkpoint(path, kept)
    return PhotoData(first.signed(), kept["train"], first.labels, second.signed(), kept["held_out"], vfm)


def _features(vision: VisionFeatures, images: Images) -> np.ndarray:
    return extract_features(vision, images.signed())
