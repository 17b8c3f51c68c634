"""Noise and a class to pictures: the diffusers pipeline of autoencoder, transformer, scheduler and refiner."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from diffusers import FlowMatchEulerDiscreteScheduler
from diffusers.pipelines.pipeline_utils import DiffusionPipeline, ImagePipelineOutput
from diffusers.utils.torch_utils import randn_tensor
from PIL import Image
from torch import Tensor

from papershelf import InputError
from repack_dit.packing import RePackAutoencoder
from repack_dit.refiner import LatentGuidedRefiner
from repack_dit.transformer import RePackDiTTransformer2DModel, guided_velocity
from repack_dit.vision import VisionFeatures, load_vfm

OUTPUTS = ("pil", "np", "pt", "latent")
COMPONENTS = {
    "autoencoder": ("repack_dit.packing", "RePackAutoencoder"),
    "transformer": ("repack_dit.transformer", "RePackDiTTransformer2DModel"),
    "refiner": ("repack_dit.refiner", "LatentGuidedRefiner"),
    "scheduler": ("diffusers", "FlowMatchEulerDiscreteScheduler"),
}
BUNDLED = "vfm"


@dataclass(frozen=True)
class Sampling:
    """How to sample; the defaults are ours.

    Attributes:
        steps: evaluations of the transformer.
        guidance_scale: 1 is none.
        guidance_interval: of t, 0 is noise.
        guidance_channels: the first ones only; None for all.
        shift: of the times, ``t' = s t / (1 + (s - 1) t)``.
    """

    steps: int = 50
    guidance_scale: float = 1.5
    guidance_interval: tuple[float, float] = (0.0, 1.0)
    guidance_channels: int | None = None
    shift: float = 1.0


# "250 steps" of the paper's code are 250 points, hence 249 evaluations.
OFFICIAL_SAMPLING = Sampling(249, 15.0, (0.11, 1.0), 3, 0.3)


def make_scheduler(shift: float = 1.0) -> FlowMatchEulerDiscreteScheduler:
    """diffusers' Euler scheduler whose times are shifted by ``s``: its own shift is ``1 / s``.

    Raises:
        ValueError: unless the shift is positive.
    """
    if not shift > 0:
        raise ValueError(f"shift must be positive, got {shift}")
    return FlowMatchEulerDiscreteScheduler(shift=1 / shift)


class RePackDiTPipeline(DiffusionPipeline):
    """Sampling as one object: latents are normalised and denormalised inside.

    Args:
        autoencoder: with latent statistics.
        transformer: of its latents.
        scheduler: see :func:`make_scheduler`.
        refiner: None leaves pictures as decoded.
    """

    model_cpu_offload_seq = "transformer->autoencoder->refiner"
    _optional_components = ["refiner"]  # noqa: RUF012, as diffusers declares it

    def __init__(
        self,
        autoencoder: RePackAutoencoder,
        transformer: RePackDiTTransformer2DModel,
        scheduler: FlowMatchEulerDiscreteScheduler,
        refiner: LatentGuidedRefiner | None = None,
    ) -> None:
        super().__init__()
        self.register_modules(autoencoder=autoencoder, transformer=transformer, scheduler=scheduler, refiner=refiner)
        self.autoencoder: Any
        self.transformer: Any
        self.scheduler: Any
        self.refiner: Any

    # --- files ---

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path: Any, **options: Any) -> Any:
        """Load a folder or hub repository. No code of it is run: only this pipeline's own classes are accepted.

        Args:
            pretrained_model_name_or_path: as diffusers takes it.
            vfm: vision model to attach: ``"bundled"``, a folder, a hub id, or None for none (sampling needs none).
            options: passed on to diffusers; weights are read from safetensors only.

        Raises:
            InputError: if the folder names other classes or is no pipeline.
        """
        vfm = options.pop("vfm", None)
        options.pop("custom_pipeline", None)
        _check_components(pretrained_model_name_or_path, cls)
        options |= {"use_safetensors": True, "trust_remote_code": False}
        pipeline: Any = super().from_pretrained(pretrained_model_name_or_path, **options)
        if vfm is not None:
            source = str(Path(pretrained_model_name_or_path) / BUNDLED) if vfm == "bundled" else vfm
            vision = load_vfm(source, pipeline.autoencoder.config.grid)
            wanted = pipeline.autoencoder.config.vfm_hash
            if wanted and vision.fingerprint() != wanted:
                raise InputError(f"the vision model {source} is not the one that this autoencoder was trained with")
            pipeline.autoencoder.vision = vision
        return pipeline

    def save_pretrained(self, save_directory: Any, *arguments: Any, bundle_vfm: bool = False, **options: Any) -> None:
        """As diffusers does; ``bundle_vfm`` puts the attached vision model beside it (else its name and hash are kept).

        Raises:
            ValueError: if there is no vision model to bundle.
        """
        vision: VisionFeatures | None = self.autoencoder.vision
        if bundle_vfm and vision is None:
            raise ValueError("no vision model is attached to the autoencoder, so there is none to bundle")
        super().save_pretrained(save_directory, *arguments, **options)
        if bundle_vfm and vision is not None:
            model: Any = vision.model
            model.save_pretrained(Path(save_directory) / BUNDLED)

    # --- sampling ---

    def _labels(self, class_labels: int | Sequence[int] | Tensor | None, num_images: int) -> tuple[Tensor | None, int]:
        classes = self.transformer.config.num_classes
        if class_labels is None:
            if classes:
                raise ValueError(f"this model is conditional: give class labels in [0, {classes})")
            return None, num_images
        if not classes:
            raise ValueError("this model is unconditional and takes no class labels")
        labels = torch.as_tensor(class_labels, dtype=torch.long).flatten().repeat_interleave(num_images)
        if not len(labels) or bool(((labels < 0) | (labels >= classes)).any()):
            raise ValueError(f"class labels must lie in [0, {classes}), got {labels.tolist()[:10]}")
        return labels, len(labels)

    def _noise(self, latents: Tensor | None, count: int, generator: Any) -> Tensor:
        c = self.transformer.config
        shape = (count, c.in_channels, c.sample_size, c.sample_size)
        if latents is None:
            return randn_tensor(shape, generator=generator, device=self._execution_device, dtype=self.transformer.dtype)
        if tuple(latents.shape) != shape:
            raise ValueError(f"expected latents {shape}, got {tuple(latents.shape)}")
        return latents.to(self._execution_device, self.transformer.dtype)

    @torch.no_grad()
    def __call__(
        self,
        class_labels: int | Sequence[int] | Tensor | None = None,
        num_images: int = 1,
        num_inference_steps: int = 50,
        guidance_scale: float = 1.5,
        guidance_interval: tuple[float, float] = (0.0, 1.0),
        guidance_channels: int | None = None,
        refine: bool = True,
        generator: torch.Generator | list[torch.Generator] | None = None,
        latents: Tensor | None = None,
        output_type: str = "pil",
        callback_on_step_end: Callable[[Any, int, Any, dict[str, Any]], dict[str, Any]] | None = None,
        return_dict: bool = True,
    ) -> Any:
        """Sample pictures.

        Args:
            class_labels: one label, or several; None for an unconditional model.
            num_images: pictures of each label.
            num_inference_steps: evaluations of the transformer.
            guidance_scale: 1 is none.
            guidance_interval: of t (0 is noise), inside which guidance is on; one branch is computed elsewhere.
            guidance_channels: guide the first ones only; None for all.
            refine: run the refiner, where there is one.
            generator: one, or one a picture.
            latents: noise to start from, (B, d, h, w).
            output_type: ``pil``, ``np`` (B, H, W, 3) in [0, 1], ``pt`` (B, 3, H, W) in [0, 1], or ``latent``
                (normalised).
            callback_on_step_end: called with pipeline, step, timestep and ``{"latents": ...}``; may return new latents.
            return_dict: else a tuple.

        Returns:
            An output with ``images``.

        Raises:
            ValueError: for labels, steps, guidance or latents that do not fit.
            RuntimeError: if the autoencoder has no latent statistics.
        """
        if num_inference_steps < 1 or num_images < 1 or output_type not in OUTPUTS:
            raise ValueError(
                f"expected steps and images >= 1 and an output of {', '.join(OUTPUTS)}, "
                f"got {num_inference_steps}, {num_images} and {output_type!r}"
            )
        labels, count = self._labels(class_labels, num_images)
        z = self._noise(latents, count, generator)
        labels = None if labels is None else labels.to(z.device)
        self.scheduler.set_timesteps(sigmas=np.linspace(1, 0, num_inference_steps + 1)[:-1].tolist(), device=z.device)
        total = self.scheduler.config.num_train_timesteps
        for step, timestep in enumerate(self.progress_bar(self.scheduler.timesteps)):
            t = 1 - float(timestep) / total
            v = guided_velocity(
                self.transformer,
                z,
                t,
                labels,
                scale=guidance_scale,
                interval=guidance_interval,
                channels=guidance_channels,
            )
            z = self.scheduler.step(-v, timestep, z, return_dict=False)[0]
            if callback_on_step_end is not None:
                z = callback_on_step_end(self, step, timestep, {"latents": z}).get("latents", z)
        images: Any = z if output_type == "latent" else self._pictures(z, refine, output_type)
        self.maybe_free_model_hooks()
        return ImagePipelineOutput(images=images) if return_dict else (images,)

    def _pictures(self, z: Tensor, refine: bool, output_type: str) -> Any:
        image = self.autoencoder.decode(self.autoencoder.denormalize(z), return_dict=False)[0]
        if refine and self.refiner is not None:
            image = self.refiner(image, z)
        image = (image.float().clamp(-1, 1) + 1) / 2
        if output_type == "pt":
            return image
        pixels = image.permute(0, 2, 3, 1).cpu().numpy()
        if output_type == "np":
            return pixels
        return [Image.fromarray(p) for p in (pixels * 255).round().astype(np.uint8)]


def _check_components(source: Any, pipeline: type[Any]) -> None:
    try:
        index = pipeline.load_config(source)
    except (OSError, ValueError) as error:
        raise InputError(f"{source} is no pipeline folder: {' '.join(str(error).split())[:300]}") from error
    named = {name: value for name, value in index.items() if not name.startswith("_")}
    for name, value in named.items():
        empty = name == "refiner" and (value is None or list(value) == [None, None])
        if not empty and tuple(value if isinstance(value, list) else ()) != COMPONENTS.get(name):
            raise InputError(
                f"{source} names {name} = {value}; this pipeline takes only "
                + ", ".join(f"{k} = {list(v)}" for k, v in COMPONENTS.items())
            )
    if index.get("_class_name") != pipeline.__name__ or not {"autoencoder", "transformer", "scheduler"} <= set(named):
        raise InputError(f"{source} holds a {index.get('_class_name')}, expected a {pipeline.__name__} with all parts")
