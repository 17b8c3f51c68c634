"""Latent-guided refiner (stage 3): a U-Net on the decoded image and the latent that it was decoded from."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from diffusers.configuration_utils import ConfigMixin, register_to_config
from diffusers.models.attention_processor import Attention
from diffusers.models.modeling_utils import ModelMixin
from diffusers.models.resnet import ResnetBlock2D
from torch import Tensor, nn


def _residual(inputs: int, outputs: int, groups: int) -> ResnetBlock2D:
    return ResnetBlock2D(
        in_channels=inputs,
        out_channels=outputs,
        temb_channels=None,  # ty: ignore[invalid-argument-type]
        groups=groups,
        groups_out=groups,
        eps=1e-5,
    )


def _attention(channels: int, groups: int) -> Attention:
    return Attention(
        channels,
        heads=1,
        dim_head=channels,
        norm_num_groups=groups,
        eps=1e-5,
        bias=True,
        residual_connection=True,
        _from_deprecated_attn_block=True,
    )


class LatentGuidedRefiner(ModelMixin, ConfigMixin):
    """U-Net on ``concat(image, bilinear(latent))``.

    Args:
        latent_channels: d; latents are normalised (zero mean and unit variance per channel over the data).
        channels: of the down levels; every level halves the resolution.
        middle_channels: of the middle.
        attention: attention in the last level and the middle.
        norm_num_groups: must divide all channels.
        residual: output ``clip(image + r)``, with ``r = 0`` at initialisation; else ``tanh`` as in the paper's code.
        use_latents: False feeds zeros in the latents' place, to measure what they are worth.
        refiner_latents: ``"normalized"``, or ``"official"``: trained on raw latents, used on normalised ones.
    """

    config: Any  # diffusers' FrozenDict, read by attribute

    @register_to_config
    def __init__(
        self,
        latent_channels: int = 32,
        channels: tuple[int, ...] = (128, 256, 512),
        middle_channels: int = 1024,
        layers_per_block: int = 2,
        attention: bool = True,
        norm_num_groups: int = 32,
        residual: bool = True,
        use_latents: bool = True,
        refiner_latents: str = "normalized",
    ) -> None:
        super().__init__()
        if refiner_latents not in ("normalized", "official"):
            raise ValueError(f"refiner_latents must be normalized or official, got {refiner_latents!r}")
        if any(c % norm_num_groups for c in (*channels, middle_channels)):
            raise ValueError(f"{norm_num_groups} groups do not divide {(*channels, middle_channels)}")
        g, last = norm_num_groups, len(channels) - 1
        self.conv_in = nn.Conv2d(3 + latent_channels, channels[0], 3, padding=1)
        self.down: Any = nn.ModuleList()
        self.up: Any = nn.ModuleList()
        width = channels[0]
        for level, out in enumerate(channels):
            blocks: list[nn.Module] = [_residual(width if i == 0 else out, out, g) for i in range(layers_per_block)]
            if attention and level == last:
                blocks.append(_attention(out, g))
            self.down.append(nn.ModuleDict({"blocks": nn.ModuleList(blocks), "shrink": nn.Conv2d(out, out, 3, 2, 1)}))
            width = out
        self.middle = nn.ModuleList([_residual(width, middle_channels, g)])
        if attention:
            self.middle.append(_attention(middle_channels, g))
        self.middle.append(_residual(middle_channels, width, g))
        for level, out in reversed(list(enumerate(channels))):
            with_attention = attention and level == last  # takes the place of that level's other residual blocks
            count = 1 if with_attention else layers_per_block
            blocks = [_residual(width + out if i == 0 else out, out, g) for i in range(count)]
            if with_attention:
                blocks.append(_attention(out, g))
            self.up.append(nn.ModuleDict({"blocks": nn.ModuleList(blocks)}))
            width = out
        self.last = _residual(2 * channels[0], channels[0], g)
        self.norm_out = nn.GroupNorm(g, channels[0], eps=1e-5)
        self.conv_out: Any = nn.Conv2d(channels[0], 3, 3, padding=1)
        if residual:
            nn.init.zeros_(self.conv_out.weight)
            nn.init.zeros_(self.conv_out.bias)

    def forward(self, image: Tensor, latents: Tensor) -> Tensor:
        """Refine decoded images.

        Args:
            image: (B, 3, H, W) in [-1, 1]; sides divisible by ``2 ** len(channels)``.
            latents: (B, d, h, w), normalised.

        Returns:
            Image of the same shape, in [-1, 1].

        Raises:
            ValueError: if a shape does not fit.
        """
        step = 2 ** len(self.config.channels)
        if image.ndim != 4 or image.shape[1] != 3 or image.shape[2] % step or image.shape[3] % step:
            raise ValueError(f"expected images (B, 3, H, W) with sides divisible by {step}, got {tuple(image.shape)}")
        if latents.ndim != 4 or latents.shape[:2] != (len(image), self.config.latent_channels):
            raise ValueError(
                f"expected latents ({len(image)}, {self.config.latent_channels}, h, w), got {tuple(latents.shape)}"
            )
        guide = F.interpolate(latents, size=image.shape[-2:], mode="bilinear", align_corners=False)
        first = x = self.conv_in(torch.cat([image, guide if self.config.use_latents else torch.zeros_like(guide)], 1))
        skips = []
        for level in self.down:
            x = self._through(level["blocks"], x)
            skips.append(x)
            x = level["shrink"](x)
        x = self._through(self.middle, x)
        for level in self.up:
            skip = skips.pop()
            x = F.interpolate(x, size=skip.shape[-2:], mode="bilinear", align_corners=False)
            x = self._through(level["blocks"], torch.cat([x, skip], 1))
        x = self.last(torch.cat([x, first], 1), None)
        out = self.conv_out(F.silu(self.norm_out(x)))
        return (image + out).clamp(-1, 1) if self.config.residual else out.tanh()

    @staticmethod
    def _through(blocks: nn.ModuleList, x: Tensor) -> Tensor:
        for block in blocks:
            x = block(x, None) if isinstance(block, ResnetBlock2D) else block(x)
        return x
