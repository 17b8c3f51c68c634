r"""RePack autoencoder: vision-model features packed by a 1x1 convolution, decoded to pixels (stage 1).

.. math:: f = \Phi(x),\quad (\mu, \log\sigma^2) = Q W f,\quad z = \mu + \sigma\epsilon,\quad \hat x = \mathrm{Dec}(P z).

``W`` (C -> 2d, no bias) packs, ``Q`` and ``P`` are 1x1 convolutions with bias, ``Dec`` is diffusers' decoder.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import torch
from diffusers.configuration_utils import ConfigMixin, register_to_config
from diffusers.models.autoencoders.vae import Decoder, DecoderOutput, DiagonalGaussianDistribution
from diffusers.models.modeling_utils import ModelMixin
from diffusers.utils import BaseOutput
from torch import Tensor, nn

STD_FLOOR = 1e-6


@dataclass
class RePackEncoderOutput(BaseOutput):
    """``latent_dist``: distribution of the packed latent, mean (B, d, h, w)."""

    latent_dist: DiagonalGaussianDistribution


class RePackAutoencoder(ModelMixin, ConfigMixin):
    """Encoder by a frozen vision model and one packing convolution; convolutional decoder.

    The vision model is no part of the weights: assign it to :attr:`vision` (any module that maps images (B, 3, H, W)
    in [-1, 1] to features (B, C, h, w)). Without it, ``pack``, ``decode`` and the normalisation still work.

    Args:
        in_features: channels C of the features.
        latent_channels: channels d of the latent.
        posterior: ``"gaussian"`` or ``"deterministic"`` (no variance, no KL).
        block_out_channels: decoder channels; each after the first doubles the resolution.
        layers_per_block: residual blocks an encoder's level would have; the decoder has one more.
        norm_num_groups: must divide every entry of ``block_out_channels``.
        grid: side h of the feature map; images have side ``grid * 2 ** (len(block_out_channels) - 1)``.
        latents_mean: per channel, d numbers; set by :meth:`set_statistics`.
        latents_std: per channel, d numbers.
        vfm: name of the vision model, for the loader.
        vfm_hash: fingerprint of its weights.

    Raises:
        ValueError: if a size does not fit, naming what was given.
    """

    config: Any  # diffusers' FrozenDict, read by attribute

    @register_to_config
    def __init__(
        self,
        in_features: int = 768,
        latent_channels: int = 32,
        posterior: str = "gaussian",
        block_out_channels: tuple[int, ...] = (128, 128, 256, 256, 512),
        layers_per_block: int = 2,
        norm_num_groups: int = 32,
        grid: int = 16,
        latents_mean: list[float] | None = None,
        latents_std: list[float] | None = None,
        vfm: str = "",
        vfm_hash: str = "",
    ) -> None:
        super().__init__()
        if posterior not in ("gaussian", "deterministic"):
            raise ValueError(f"posterior must be gaussian or deterministic, got {posterior!r}")
        if min(in_features, latent_channels, grid) < 1:
            raise ValueError(f"sizes must be >= 1, got {in_features}, {latent_channels}, {grid}")
        if any(c % norm_num_groups for c in block_out_channels):
            raise ValueError(f"{norm_num_groups} groups do not divide the channels {tuple(block_out_channels)}")
        outputs = latent_channels * (2 if posterior == "gaussian" else 1)
        self.pack_conv = nn.Conv2d(in_features, outputs, 1, bias=False)
        self.quant_conv: Any = nn.Conv2d(outputs, outputs, 1)
        self.post_quant_conv: Any = nn.Conv2d(latent_channels, latent_channels, 1)
        self.decoder = Decoder(
            in_channels=latent_channels,
            up_block_types=("AttnUpDecoderBlock2D",) + ("UpDecoderBlock2D",) * (len(block_out_channels) - 1),
            block_out_channels=tuple(block_out_channels),
            layers_per_block=layers_per_block,
            norm_num_groups=norm_num_groups,
        )
        self.__dict__["vision"] = None

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "vision":  # kept out of parameters and state dict
            self.__dict__["vision"] = value
        else:
            super().__setattr__(name, value)

    @property
    def image_size(self) -> int:
        """Side of the images in pixels."""
        return self.config.grid * 2 ** (len(self.config.block_out_channels) - 1)

    def _check_images(self, images: Tensor) -> None:
        if images.ndim != 4 or images.shape[1] != 3:
            raise ValueError(f"expected images (B, 3, H, W), got {tuple(images.shape)}")
        step = 2 ** (len(self.config.block_out_channels) - 1)
        for side in images.shape[-2:]:
            if side % step:
                raise ValueError(
                    f"image size must be divisible by {step}, got {side}; "
                    f"nearest are {max(step, side // step * step)} and {(side // step + 1) * step}"
                )
        if tuple(images.shape[-2:]) != (self.image_size,) * 2:
            size = self.image_size
            raise ValueError(f"this autoencoder takes {size} x {size} images, got {tuple(images.shape[-2:])}")

    @torch.no_grad()
    def features(self, images: Tensor) -> Tensor:
        """Frozen features of images in [-1, 1]: (B, 3, H, W) -> (B, C, h, w).

        Raises:
            RuntimeError: if no vision model is attached.
            ValueError: for images of another size, or features of another shape than the config's.
        """
        if self.vision is None:
            raise RuntimeError(f"no vision model is attached; assign .vision (trained with {self.config.vfm!r})")
        self._check_images(images)
        found = self.vision.to(images.device)(images)
        expected = (self.config.in_features, self.config.grid, self.config.grid)
        if tuple(found.shape[1:]) != expected:
            raise ValueError(f"the vision model gave features {tuple(found.shape[1:])}, expected {expected}")
        return found

    def pack(self, features: Tensor) -> DiagonalGaussianDistribution:
        """Distribution of the latent given features (B, C, h, w); log-variance clamped to [-30, 20]."""
        moments = self.quant_conv(self.pack_conv(features))
        if self.config.posterior == "deterministic":
            return DiagonalGaussianDistribution(torch.cat([moments, torch.zeros_like(moments)], 1), deterministic=True)
        return DiagonalGaussianDistribution(moments)

    def encode(self, images: Tensor) -> RePackEncoderOutput:
        """Images (B, 3, H, W) in [-1, 1] to the latent's distribution."""
        return RePackEncoderOutput(latent_dist=self.pack(self.features(images)))

    def decode(self, latents: Tensor, return_dict: bool = True) -> DecoderOutput | tuple[Tensor]:
        """Latents (B, d, h, w), not normalised, to images (B, 3, H, W); no squashing."""
        image = self.decoder(self.post_quant_conv(latents))
        return DecoderOutput(sample=image) if return_dict else (image,)

    def forward(self, images: Tensor) -> DecoderOutput:
        """Reconstruction from the latent's mean."""
        return DecoderOutput(sample=self.decode(self.encode(images).latent_dist.mode(), return_dict=False)[0])

    def set_statistics(self, mean: Tensor, std: Tensor) -> None:
        """Store the latents' mean and standard deviation per channel in the config; std is at least 1e-6."""
        d = self.config.latent_channels
        mean, std = mean.detach().flatten().double(), std.detach().flatten().double()
        if len(mean) != d or len(std) != d or not torch.isfinite(mean).all() or not torch.isfinite(std).all():
            raise ValueError(f"expected {d} finite means and deviations, got {len(mean)} and {len(std)}")
        if (std < STD_FLOOR).any():
            flat = torch.nonzero(std < STD_FLOOR).flatten().tolist()
            warnings.warn(f"latent channels {flat} do not vary; their deviation is set to {STD_FLOOR}", stacklevel=2)
        self.register_to_config(latents_mean=mean.tolist(), latents_std=std.clamp_min(STD_FLOOR).tolist())

    def _statistics(self, like: Tensor) -> tuple[Tensor, Tensor]:
        if self.config.latents_mean is None or self.config.latents_std is None:
            raise RuntimeError("latents_mean and latents_std are not set; build a latent cache or call set_statistics")
        shape = (1, -1, 1, 1)
        mean, std = (like.new_tensor(v).view(shape) for v in (self.config.latents_mean, self.config.latents_std))
        return mean, std

    def normalize(self, latents: Tensor) -> Tensor:
        """``(z - mean) / std`` per channel: what the transformer and the refiner see."""
        mean, std = self._statistics(latents)
        return (latents - mean) / std

    def denormalize(self, latents: Tensor) -> Tensor:
        """Inverse of :meth:`normalize`."""
        mean, std = self._statistics(latents)
        return latents * std + mean

    @torch.no_grad()
    def init_linear_pack(self, pack: Tensor, mean: Tensor, log_variance: float = -9.0) -> None:
        """Start from a linear pack ``z = pack (f - mean)`` (``init="rrr"``): W = pack, Q = 1 and P = 1.

        Args:
            pack: (d, C).
            mean: (C,).
            log_variance: initial log-variance of a gaussian posterior.
        """
        d = self.config.latent_channels
        if tuple(pack.shape) != (d, self.config.in_features):
            raise ValueError(f"expected a pack of shape {(d, self.config.in_features)}, got {tuple(pack.shape)}")
        self.pack_conv.weight.zero_()
        self.pack_conv.weight[:d, :, 0, 0] = pack
        self.quant_conv.weight.copy_(torch.eye(self.quant_conv.out_channels)[..., None, None])
        self.quant_conv.bias.fill_(log_variance)
        self.quant_conv.bias[:d] = -(pack @ mean)
        self.post_quant_conv.weight.copy_(torch.eye(d)[..., None, None])
        self.post_quant_conv.bias.zero_()
