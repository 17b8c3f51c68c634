"""Official checkpoints to this package's classes: key maps of the three stages, weights-only loading."""

from __future__ import annotations

import pickle
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from papershelf import InputError
from repack_dit.losses import PerceptualDistance, WatsonDFT
from repack_dit.packing import RePackAutoencoder
from repack_dit.refiner import LatentGuidedRefiner
from repack_dit.transformer import RePackDiTTransformer2DModel

State = dict[str, Tensor]


def load_weights(path: Path) -> State:
    """Tensors of a ``.safetensors`` or PyTorch checkpoint; code in it is refused.

    Looks into ``ema``, ``state_dict``, ``model`` and ``module``, and strips ``module.`` and ``_orig_mod.`` from names.

    Raises:
        InputError: if there is no such file, it holds anything but weights, or it cannot be read.
    """
    path = Path(path)
    if not path.is_file():
        raise InputError(f"no checkpoint at {path}")
    try:
        if path.suffix == ".safetensors":
            from safetensors.torch import load_file

            found: object = load_file(path)
        else:
            found = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise InputError(f"{path} holds more than weights and is refused (it could run code)") from error
    except (RuntimeError, EOFError, OSError, ValueError, KeyError) as error:
        raise InputError(f"{path} is damaged or no checkpoint: {error}") from error
    except Exception as error:
        raise InputError(f"{path} is damaged or no checkpoint: {error}") from error
    for name in ("ema", "state_dict", "model", "module"):
        if isinstance(found, Mapping) and isinstance(found.get(name), Mapping):
            found = found[name]
            break
    if not isinstance(found, Mapping):
        raise InputError(f"{path} holds a {type(found).__name__}, expected a table of weights")
    tensors = {str(key): value for key, value in found.items() if isinstance(value, Tensor)}
    if not tensors:
        raise InputError(f"{path} holds no weights")
    return {re.sub(r"^(module\.|_orig_mod\.)+", "", key): value for key, value in tensors.items()}


def _renamed(name: str, rules: tuple[tuple[str, str | Callable[[re.Match[str]], str]], ...]) -> str:
    for pattern, new in rules:
        name = re.sub(pattern, new, name)
    return name


def decoder_keys(state: Mapping[str, Tensor]) -> State:
    """Keys of a latent-diffusion decoder (without prefix) to those of diffusers' ``Decoder``; 1x1 kernels of the
    attentions become matrices."""
    highest = max((int(m[1]) for k in state if (m := re.match(r"up\.(\d+)\.", k))), default=0)
    rules = (
        (r"^mid\.block_(\d)", lambda m: f"mid_block.resnets.{int(m[1]) - 1}"),
        (r"^mid\.attn_1", "mid_block.attentions.0"),
        (r"^up\.(\d+)\.block\.(\d+)", lambda m: f"up_blocks.{highest - int(m[1])}.resnets.{m[2]}"),
        (r"^up\.(\d+)\.attn\.(\d+)", lambda m: f"up_blocks.{highest - int(m[1])}.attentions.{m[2]}"),
        (r"^up\.(\d+)\.upsample", lambda m: f"up_blocks.{highest - int(m[1])}.upsamplers.0"),
        (r"nin_shortcut", "conv_shortcut"),
        (r"^norm_out", "conv_norm_out"),
        (r"(attentions\.\d+)\.norm\.", r"\1.group_norm."),
        (r"(attentions\.\d+)\.([qkv])\.", r"\1.to_\2."),
        (r"(attentions\.\d+)\.proj_out\.", r"\1.to_out.0."),
    )
    out = {}
    for name, value in state.items():
        new = _renamed(name, rules)
        matrix = "attentions" in new and value.ndim == 4
        out[new] = value[:, :, 0, 0] if matrix else value
    return out


def autoencoder_keys(state: Mapping[str, Tensor]) -> State:
    """Official stage-1 keys: ``decoder.*``, ``quant_conv``, ``post_quant_conv`` and the one packing convolution."""
    decoder = {k.removeprefix("decoder."): v for k, v in state.items() if k.startswith("decoder.")}
    out = {f"decoder.{k}": v for k, v in decoder_keys(decoder).items()}
    for name in ("quant_conv", "post_quant_conv"):
        out |= {k: v for k, v in state.items() if k.startswith(f"{name}.")}
    inputs = out["quant_conv.weight"].shape[1] if "quant_conv.weight" in out else -1
    packs = [
        (k, v)
        for k, v in state.items()
        if k.endswith(".weight") and k not in out and not k.startswith(("decoder.", "loss."))
        if v.ndim == 4 and v.shape[0] == inputs and v.shape[2:] == (1, 1)
    ]
    if len(packs) != 1:
        raise InputError(f"expected one 1x1 packing convolution with {inputs} outputs, found {[k for k, _ in packs]}")
    out["pack_conv.weight"] = packs[0][1]
    return out


def transformer_keys(state: Mapping[str, Tensor]) -> State:
    """Official stage-2 keys: ours but for the tables of rotary angles, which are computed."""
    return {k: v for k, v in state.items() if not k.startswith("feat_rope.")}


def refiner_keys(state: Mapping[str, Tensor]) -> State:
    """Official stage-3 keys; joint query-key-value kernels are split."""
    rules = (
        (r"^down\.(\d+)\.block\.", r"down.\1.blocks."),
        (r"^up\.(\d+)\.block\.", r"up.\1.blocks."),
        (r"^down\.(\d+)\.downsample\.", r"down.\1.shrink."),
        (r"^mid\.", "middle."),
        (r"^final_res\.", "last."),
        (r"\.in_layers\.0\.", ".norm1."),
        (r"\.in_layers\.2\.", ".conv1."),
        (r"\.out_layers\.0\.", ".norm2."),
        (r"\.out_layers\.2\.", ".conv2."),
        (r"\.skip\.", ".conv_shortcut."),
        (r"\.norm\.", ".group_norm."),
        (r"\.proj\.", ".to_out.0."),
    )
    out = {}
    for name, value in state.items():
        new = _renamed(name, rules)
        if ".qkv." in new:
            for part, piece in zip("qkv", value.chunk(3), strict=True):
                out[new.replace(".qkv.", f".to_{part}.")] = piece[:, :, 0, 0] if piece.ndim == 4 else piece
        else:
            out[new] = value[:, :, 0, 0] if ".to_out.0." in new and value.ndim == 4 else value
    return out


MAPS: dict[str, Callable[[Mapping[str, Tensor]], State]] = {
    "autoencoder": autoencoder_keys,
    "transformer": transformer_keys,
    "refiner": refiner_keys,
}


def load_official(model: Any, path: Path) -> Any:
    """Load an official checkpoint into a model of the right size.

    Raises:
        InputError: if it cannot be read, or a weight is missing, unknown or of another shape.
    """
    kinds = {
        RePackAutoencoder: "autoencoder",
        RePackDiTTransformer2DModel: "transformer",
        LatentGuidedRefiner: "refiner",
    }
    state = MAPS[kinds[type(model)]](load_weights(path))
    try:
        model.load_state_dict(state, strict=True)
    except RuntimeError as error:
        raise InputError(f"{path} does not fit: {' '.join(str(error).split())[:400]}") from error
    return model


def load_watson(path: Path | None = None) -> WatsonDFT:
    """Watson's distance with trained parameters of Czolbe et al.'s colour checkpoint, or untrained ones.

    Raises:
        InputError: if the checkpoint cannot be read, holds code or other parameters.
    """
    watson = WatsonDFT()
    if path is not None:
        try:
            watson.load_official(load_weights(path))
        except InputError:
            raise
        except ValueError as error:
            raise InputError(f"{path} holds no colour Watson-DFT: {error}") from error
    return watson


def load_perceptual(vision: Any, lpips_trunk: Path | None = None) -> PerceptualDistance:
    """LPIPS where a trunk is given, else the distance of the vision model's tokens.

    Raises:
        InputError: if the trunk cannot be read, holds code or is of another network.
    """
    if lpips_trunk is None:
        return PerceptualDistance(vision)
    try:
        return PerceptualDistance(lpips_trunk=load_weights(lpips_trunk))
    except InputError:
        raise
    except ValueError as error:
        raise InputError(f"{lpips_trunk} is no trunk of LPIPS: {error}") from error
