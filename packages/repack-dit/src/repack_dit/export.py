"""The transformer as ONNX or as a ``torch.export`` program, checked against the model before it is kept."""

from __future__ import annotations

import tempfile
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from papershelf import InputError, require
from repack_dit.transformer import RePackDiTTransformer2DModel

FORMATS = {"onnx": "transformer.onnx", "torch": "transformer.pt2"}
EXTRA = "papershelf-repack-dit[export]"


class _Velocity(nn.Module):
    """Tensors in, tensor out."""

    def __init__(self, model: RePackDiTTransformer2DModel) -> None:
        super().__init__()
        self.model = model

    def forward(self, hidden_states: Tensor, timestep: Tensor, class_labels: Tensor | None = None) -> Tensor:
        return self.model(hidden_states, timestep, class_labels, return_dict=False)[0]


def _inputs(model: RePackDiTTransformer2DModel, batch: int) -> tuple[Tensor, ...]:
    c, generator = model.config, torch.Generator().manual_seed(batch)
    z = torch.randn(batch, c.in_channels, c.sample_size, c.sample_size, generator=generator)
    t = torch.rand(batch, generator=generator)
    if not c.num_classes:
        return z, t
    return z, t, torch.randint(c.num_classes + 1, (batch,), generator=generator)


def export_transformer(model: RePackDiTTransformer2DModel, out: Path, kind: str = "onnx") -> float:
    """Write a model with inputs ``hidden_states``, ``timestep`` and (conditional) ``class_labels`` of any batch size.

    Labels outside [0, K] are not noticed by the exported program.

    Args:
        model: on the CPU, float32.
        out: new folder; it appears only if the check passes.
        kind: ``onnx`` or ``torch``.

    Returns:
        Largest difference to the model on other inputs and another batch size, over the output's largest value.

    Raises:
        InputError: for another kind, a folder that exists, or a program that differs by more than 1e-4.
        MissingExtra: for ``onnx`` without onnx, onnxscript and onnxruntime.
    """
    if kind not in FORMATS:
        raise InputError(f"expected a format of {', '.join(FORMATS)}, got {kind!r}")
    if out.exists():
        raise InputError(f"{out} exists already; name a new folder")
    if kind == "onnx":
        for module in ("onnx", "onnxscript", "onnxruntime"):
            require(module, EXTRA)
    program, other = _Velocity(model.eval()), _inputs(model, 3)
    with torch.no_grad():
        expected = program(*other)  # also fills the table of rotary angles, a constant of the program
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=out.parent, prefix=f".{out.name}.") as name:
        folder = Path(name) / "export"
        folder.mkdir()
        path = folder / FORMATS[kind]
        found = (_onnx if kind == "onnx" else _torch)(program, _inputs(model, 2), other, path)
        difference = float((found.detach() - expected).abs().max() / expected.abs().max().clamp_min(1e-12))
        if not difference <= 1e-4:
            raise InputError(f"the exported program differs from the model by {difference:.2g}, more than 1e-4")
        model.save_config(folder)
        folder.replace(out)
    return difference


def _shapes(inputs: tuple[Tensor, ...]) -> tuple[dict[int, Any], ...]:
    batch = torch.export.Dim("batch", max=4096)
    return tuple({0: batch} for _ in inputs)


def _onnx(program: nn.Module, example: tuple[Tensor, ...], other: tuple[Tensor, ...], path: Path) -> Tensor:
    import onnxruntime

    names = ["hidden_states", "timestep", "class_labels"][: len(example)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found: Any = torch.onnx.export(
            program,
            example,
            dynamo=True,
            dynamic_shapes=_shapes(example),
            input_names=names,
            output_names=["velocity"],
            verbose=False,
        )
    found.save(str(path))
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    (output,) = session.run(None, {name: value.numpy() for name, value in zip(names, other, strict=True)})
    return torch.from_numpy(np.asarray(output))


def _torch(program: nn.Module, example: tuple[Tensor, ...], other: tuple[Tensor, ...], path: Path) -> Tensor:
    exported = torch.export.export(program, example, dynamic_shapes=_shapes(example))
    torch.export.save(exported, path)
    with torch.no_grad():
        return torch.export.load(path).module()(*other)


def read_transformer(folder: Path) -> RePackDiTTransformer2DModel:
    """A saved transformer, or that of a saved pipeline.

    Raises:
        InputError: if there is none.
    """
    home = folder / "transformer" if (folder / "transformer" / "config.json").is_file() else folder
    if not (home / "config.json").is_file():
        raise InputError(f"{folder} holds no saved transformer (config.json and weights)")
    try:
        return RePackDiTTransformer2DModel.from_pretrained(home, use_safetensors=True)
    except (OSError, ValueError, RuntimeError, KeyError, TypeError) as error:
        reason = " ".join(str(error).split())[:200]
        raise InputError(f"{home} cannot be loaded as a RePack-DiT transformer: {reason}") from error
