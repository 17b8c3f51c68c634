"""A project folder in which the stages follow each other: pack, cache, train, refine, sample, evaluate.

Every stage is skipped where it is finished and goes on where it was stopped; its result depends on the project's
settings and seed alone.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, is_dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch

from papershelf import InputError, Streams
from papershelf.files import atomic_write, load_checkpoint, save_checkpoint
from papershelf.paper import Progress, silent
from papershelf.reproduce import plain
from repack_dit import plots
from repack_dit.data import ImageFiles, Images, open_images
from repack_dit.latents import INDEX, LatentCache, aligned
from repack_dit.losses import PerceptualDistance, WatsonDFT
from repack_dit.metrics import evaluate, frechet_distance, peak_signal_to_noise, pooled_rgb
from repack_dit.packing import RePackAutoencoder
from repack_dit.pipeline import OFFICIAL_SAMPLING, RePackDiTPipeline, Sampling, make_scheduler
from repack_dit.redundancy import analyze_features
from repack_dit.refiner import LatentGuidedRefiner
from repack_dit.spaces import patches_of, tokens_of
from repack_dit.training import (
    OFFICIAL,
    AutoencoderSettings,
    AutoencoderTraining,
    DecodedImages,
    FeaturedImages,
    LinearInit,
    RefinerSettings,
    RefinerTraining,
    TrainSettings,
    TransformerTraining,
    accelerator,
    close,
)
from repack_dit.transformer import RePackDiTTransformer2DModel
from repack_dit.vision import PACKAGED, VisionFeatures, load_vfm

SETTINGS = "project.json"
STAGES = ("pack", "cache", "train", "refine")
MIN_SAMPLES = 50  # below which precision and recall by nearest neighbours say nothing
IN_MEMORY_BYTES = 2 << 30  # of pixels, and of features, that are held rather than made again


# --- settings ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class RefinerShape:
    """Of the refiner; see :class:`repack_dit.LatentGuidedRefiner`."""

    channels: tuple[int, ...] = (32, 64)
    middle_channels: int = 64
    layers_per_block: int = 1
    attention: bool = False
    norm_num_groups: int = 32
    residual: bool = True
    refiner_latents: str = "normalized"


@dataclass(frozen=True)
class Preset:
    """All settings of a project; a YAML file may override any of them by these names.

    Attributes:
        size: side of the images in pixels, ``grid * 2 ** (len(decoder) - 1)``.
        grid: side of the latent map.
        vfm: vision model, see :func:`repack_dit.vision.load_vfm`.
        channels: d of the latent.
        posterior: ``gaussian`` or ``deterministic``.
        init: ``rrr`` starts the pack at the best linear one; ``random``.
        decoder: channels of the decoder, coarse levels last.
        decoder_layers: residual blocks an encoder's level would have.
        groups: of the group norms.
        pack: stage 1.
        lpips_trunk: weights for LPIPS; else features of the vision model take its place.
        watson: trained parameters of the Watson-DFT distance; else untrained ones.
        cache_dtype: on disk.
        shard_size: images a shard.
        transformer: preset of the transformer.
        conditional: use the classes.
        train: stage 2.
        refiner: shape of the refiner.
        refine: stage 3.
        sampling: how to sample.
    """

    size: int = 32
    grid: int = 4
    vfm: str = PACKAGED
    channels: int = 32
    posterior: str = "gaussian"
    init: str = "rrr"
    decoder: tuple[int, ...] = (32, 64, 64, 128)
    decoder_layers: int = 1
    groups: int = 32
    pack: AutoencoderSettings = field(
        default_factory=lambda: AutoencoderSettings(steps=300, lr=1e-3, perceptual=0.1, gan=0, ema=0.98)
    )
    lpips_trunk: str = ""
    watson: str = ""
    cache_dtype: str = "bf16"
    shard_size: int = 10_000
    transformer: str = "Ti/1"
    conditional: bool = True
    train: TrainSettings = field(default_factory=lambda: TrainSettings(steps=800, lr=1e-3, ema=0.99))
    refiner: RefinerShape = field(default_factory=RefinerShape)
    refine: RefinerSettings = field(default_factory=lambda: RefinerSettings(steps=200, perceptual=0.1, gan=0))
    sampling: Sampling = field(default_factory=Sampling)

    def __post_init__(self) -> None:
        expected = self.grid * 2 ** (len(self.decoder) - 1)
        if self.size != expected:
            raise ValueError(
                f"a grid of {self.grid} and {len(self.decoder)} decoder levels make images of side {expected}, "
                f"got size {self.size}"
            )
        if self.init not in ("rrr", "random"):
            raise ValueError(f"init must be rrr or random, got {self.init!r}")


PRESETS: dict[str, Preset] = {
    "tiny": Preset(),
    "small": Preset(
        size=64,
        grid=8,
        decoder=(64, 128, 128, 256),
        pack=AutoencoderSettings(steps=4_000, batch=32, perceptual=0.1, lr=4e-4),
        transformer="S/1",
        train=TrainSettings(steps=20_000, batch=256, lr=4e-4, ema=0.999, lr_step=15_000, save_every=1_000),
        refiner=RefinerShape((64, 128, 256), 256, 1, True),
        refine=RefinerSettings(steps=2_000, batch=32, perceptual=0.1),
    ),
    "official": Preset(
        size=256,
        grid=16,
        vfm="facebook/dinov3-vitb16-pretrain-lvd1689m",
        init="random",
        decoder=(128, 128, 256, 256, 512),
        decoder_layers=2,
        pack=AutoencoderSettings(
            steps=99 * 40_037, batch=32, lr=1e-5, schedule="constant", reduction="official", save_every=5_000
        ),
        transformer="XL/1",
        train=OFFICIAL,
        refiner=RefinerShape((128, 256, 512), 1024, 2, True, residual=False, refiner_latents="official"),
        refine=RefinerSettings(steps=20_000, batch=64, lr=1e-4, noise=0.0, save_every=1_000),
        sampling=OFFICIAL_SAMPLING,
    ),
}


def _overridden(settings: Any, values: Mapping[str, Any], where: str = "") -> Any:
    known = {f.name: getattr(settings, f.name) for f in fields(settings)}
    found = {}
    for name, value in values.items():
        if name not in known:
            raise InputError(f"unknown setting {where}{name}; expected one of {', '.join(known)}")
        now = known[name]
        if is_dataclass(now):
            if not isinstance(value, Mapping):
                raise InputError(f"setting {where}{name} expects a table, got {value!r}")
            found[name] = _overridden(now, value, f"{where}{name}.")
        elif isinstance(now, tuple):
            if not isinstance(value, (list, tuple)):
                raise InputError(f"setting {where}{name} expects a list, got {value!r}")
            found[name] = tuple(value)
        elif isinstance(now, float) and isinstance(value, (int, float, str)) and not isinstance(value, bool):
            found[name] = _number(value, f"{where}{name}")
        elif now is not None and value is not None and type(value) is not type(now):
            raise InputError(f"setting {where}{name} expects {type(now).__name__}, got {value!r}")
        else:
            found[name] = value
    return replace(settings, **found)


def _number(value: Any, name: str) -> float:
    try:
        return float(value)  # YAML reads 1e-3 as text
    except ValueError as error:
        raise InputError(f"setting {name} expects a number, got {value!r}") from error


def load_preset(name: str = "tiny", config: Path | None = None, **overrides: Any) -> Preset:
    """A preset by name, a YAML file's settings over it, and these over both.

    Raises:
        InputError: for an unknown preset or setting, or a file that is no YAML table.
    """
    if name not in PRESETS:
        raise InputError(f"expected a preset of {', '.join(PRESETS)}, got {name!r}")
    preset = PRESETS[name]
    if config is not None:
        import yaml

        try:
            table = yaml.safe_load(Path(config).read_text())
        except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
            raise InputError(f"cannot read {config}: {' '.join(str(error).split())}") from error
        if not isinstance(table, Mapping):
            raise InputError(f"{config} holds {type(table).__name__}, expected a table of settings")
        preset = _overridden(preset, table)
    return _overridden(preset, {k: v for k, v in overrides.items() if v is not None})


# --- the project ---------------------------------------------------------------------------------------------------


@dataclass
class Project:
    """A folder with settings, data and what the stages have made.

    Attributes:
        folder: of the project.
        data: what :func:`repack_dit.data.load_images` takes.
        preset: settings.
        seed: of everything random.
        max_bad: unreadable images that are skipped.
        device: ``cpu``, ``cuda`` or ``mps``.
        precision: of training: ``no``, ``bf16`` or ``fp16``.
        bundle_vfm: put the vision model into the pipeline's folder; else its name and hash are kept.
        progress: shows long loops.
    """

    folder: Path
    data: str
    preset: Preset
    seed: int = 0
    max_bad: int = 0
    device: str = "cpu"
    precision: str = "no"
    bundle_vfm: bool = False
    progress: Progress = silent

    @cached_property
    def images(self) -> tuple[Images | ImageFiles, Images | ImageFiles]:
        """Training and held-out images; files that exceed 2 GiB of pixels are read when needed."""
        rng = Streams(self.seed).numpy("data")
        train, held_out = open_images(self.data, self.preset.size, rng, max_bad=self.max_bad, in_memory=IN_MEMORY_BYTES)
        if not len(held_out.labels):
            raise InputError(f"{self.data} holds {len(train.labels)} images; at least 6 are needed to hold one out")
        return train, held_out

    @cached_property
    def vision(self) -> VisionFeatures:
        """The vision model, on the project's device."""
        return load_vfm(self.preset.vfm, self.preset.grid).to(self.device)

    @property
    def classes(self) -> int:
        """Classes of the transformer; 0 where it is unconditional."""
        return len(self.images[0].classes) if self.preset.conditional else 0

    def featured(self, compute: bool = True) -> tuple[FeaturedImages, FeaturedImages]:
        """Training and held-out images with features: kept in a file, or made on demand where they are too many."""
        path, names = self.folder / "features.safetensors", ("train", "held_out")
        count = sum(len(part.labels) for part in self.images)
        needed = 8 * count * self.vision.channels * self.preset.grid**2
        if path.is_file():
            kept = load_checkpoint(path)
            train, held = (FeaturedImages(part, kept[n].numpy()) for part, n in zip(self.images, names, strict=True))
            return train, held
        if not compute or needed > IN_MEMORY_BYTES:
            return FeaturedImages(self.images[0]), FeaturedImages(self.images[1])
        found = {name: self._features(part) for part, name in zip(self.images, names, strict=True)}
        save_checkpoint(path, found)
        return self.featured()

    @torch.no_grad()
    def _features(self, images: Images | ImageFiles) -> torch.Tensor:
        parts = []
        rows = np.array_split(np.arange(len(images.labels)), -(-len(images.labels) // 32))
        for chunk in self.progress(rows, label="features of images and mirror images"):
            x = aligned(images.signed(chunk)).to(self.device)
            parts.append(torch.stack([self.vision(x).cpu(), self.vision(x.flip(-1)).cpu()], 1))
        return torch.cat(parts)

    def perceptual(self) -> PerceptualDistance:
        """LPIPS where a trunk is given, else the vision model's features."""
        if self.preset.lpips_trunk:
            from repack_dit.convert import load_weights

            return PerceptualDistance(lpips_trunk=load_weights(Path(self.preset.lpips_trunk))).to(self.device)
        return PerceptualDistance(self.vision)

    def new_autoencoder(self) -> RePackAutoencoder:
        """Untrained, seeded, with the vision model attached."""
        p = self.preset
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(Streams(self.seed).integer("autoencoder"))
            model = RePackAutoencoder(
                self.vision.channels,
                p.channels,
                p.posterior,
                p.decoder,
                p.decoder_layers,
                p.groups,
                p.grid,
                vfm=p.vfm,
                vfm_hash=self.vision.fingerprint(),
            )
        model.vision = self.vision
        return model

    def autoencoder(self) -> RePackAutoencoder:
        """The trained autoencoder with the cache's statistics, where there is a cache."""
        model = _load(RePackAutoencoder, self.folder / "autoencoder", "pack").to(self.device).eval()
        model.vision = self.vision
        if (self.folder / "cache" / INDEX).is_file():
            mean, std = self.cache().stats
            model.set_statistics(mean, std)
        return model

    def cache(self) -> LatentCache:
        """The latent cache."""
        return LatentCache(self.folder / "cache")

    def pipeline(self) -> Any:
        """The finished pipeline, on the project's device."""
        path = self.folder / "pipeline"
        if not path.is_dir():
            raise InputError(f"{path} does not exist yet; run 'repack-dit refine' (or run) first")
        return RePackDiTPipeline.from_pretrained(path).to(self.device)


def _load(kind: Any, folder: Path, command: str) -> Any:
    if not folder.is_dir():
        raise InputError(f"{folder} does not exist yet; run 'repack-dit {command}' first")
    return kind.from_pretrained(folder, use_safetensors=True)


def _save_folder(model: Any, folder: Path, **options: Any) -> None:
    """``save_pretrained`` into a folder that appears whole."""
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}.") as name:
        made = Path(name) / "model"
        model.save_pretrained(made, **options)
        shutil.rmtree(folder, ignore_errors=True)
        made.replace(folder)


def create_project(
    folder: Path, data: str, preset: Preset, *, seed: int = 0, max_bad: int = 0, resume: bool = False
) -> Project:
    """A new project, or with ``resume`` the one that is there, if its settings are the same.

    Raises:
        InputError: if the folder holds a project and ``resume`` is off, or one of other settings.
    """
    folder = Path(folder)
    wanted = plain({"format": 1, "data": data, "seed": seed, "max_bad": max_bad, "preset": asdict(preset)})
    path = folder / SETTINGS
    if path.is_file():
        kept = _settings(path)
        if not resume:
            raise InputError(f"{folder} holds a project already; --resume goes on with it")
        different = [k for k in wanted if kept.get(k) != wanted[k]]
        if different:
            raise InputError(f"{folder} was made with other settings ({', '.join(different)}); name another folder")
    else:
        if folder.is_dir() and any(folder.iterdir()):
            raise InputError(f"{folder} is not empty and holds no project; name another folder")
        project = Project(folder, data, preset, seed, max_bad)
        _ = project.images, project.vision  # bad data or a bad name leaves no folder
        folder.mkdir(parents=True, exist_ok=True)
        atomic_write(path, json.dumps(wanted, indent=1))
    return open_project(folder)


def _settings(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text())
        if found["format"] != 1:
            raise ValueError(f"format {found['format']}")
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"{path.parent} holds no project of this version ({error})") from error
    return found


def open_project(folder: Path) -> Project:
    """The project in a folder.

    Raises:
        InputError: if there is none.
    """
    kept = _settings(Path(folder) / SETTINGS)
    preset = _overridden(Preset(), kept["preset"])
    return Project(Path(folder), kept["data"], preset, kept["seed"], kept["max_bad"])


# --- stages --------------------------------------------------------------------------------------------------------


def _launched() -> bool:
    return "RANK" in os.environ


def _run(training: Any, progress: Progress) -> bool:
    """Train from where the folder stands to the end; whether this process is to save."""
    training.resume()
    training.run(progress=progress)
    return training.accelerator.is_main_process


def pack(project: Project) -> dict[str, Any]:
    """Stage 1: train the autoencoder."""
    out, p = project.folder / "autoencoder", project.preset
    if not out.is_dir():
        helper = accelerator(project.device, project.precision)
        train, held = project.featured(compute=not _launched())
        model = project.new_autoencoder()
        if p.init == "rrr":
            rows = torch.randperm(len(train), generator=Streams(project.seed).torch("init"))[:4096]
            x, f = train.take(rows, torch.zeros(len(rows), dtype=torch.bool), model)
            LinearInit(tokens_of(f.cpu().numpy()), patches_of(x.cpu().numpy(), p.grid)).apply(model)
        watson = WatsonDFT()
        if p.watson:
            from repack_dit.convert import load_weights

            watson.load_parameters(load_weights(Path(p.watson)))
        training = AutoencoderTraining(
            model,
            train,
            p.pack,
            perceptual=project.perceptual() if p.pack.perceptual else None,
            watson=watson,
            held_out=held,
            seed=Streams(project.seed).integer("pack"),
            folder=project.folder / "training" / "autoencoder",
            accelerator=helper,
        )
        if _run(training, project.progress):
            _save_folder(training.average.autoencoder, out)
        close()
    found = _told("pack", project.folder / "training" / "autoencoder", p.pack.batch, len(project.images[0].labels))
    distance = f"LPIPS ({p.lpips_trunk})" if p.lpips_trunk else f"features of {p.vfm}, in the place of LPIPS"
    return {
        **found,
        "perceptual distance": distance if p.pack.perceptual else "none",
        "Watson-DFT": p.watson or "untrained parameters",
    }


def cache(project: Project) -> dict[str, Any]:
    """Latents of all training images and their mirror images."""
    p = project.preset
    built = LatentCache.build(
        project.images[0],
        project.autoencoder(),
        project.folder / "cache",
        dtype=p.cache_dtype,
        shard_size=p.shard_size,
        seed=Streams(project.seed).integer("cache") % 2**32,
        device=project.device,
        progress=project.progress,
    )
    return {"stage": "cache", "latents": len(built), "shape": list(built.shape), "views": list(built.views)}


def train(project: Project) -> dict[str, Any]:
    """Stage 2: train the transformer on the cache."""
    out, p = project.folder / "transformer", project.preset
    latents = project.cache()
    if not out.is_dir():
        helper = accelerator(project.device, project.precision)
        latents.check(project.autoencoder())
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(Streams(project.seed).integer("transformer"))
            model = RePackDiTTransformer2DModel.from_preset(
                p.transformer, sample_size=p.grid, in_channels=p.channels, num_classes=project.classes
            )
        training = TransformerTraining(
            model,
            latents,
            p.train,
            seed=Streams(project.seed).integer("train"),
            folder=project.folder / "training" / "transformer",
            accelerator=helper,
        )
        if _run(training, project.progress):
            _save_folder(training.average, out)
        close()
    return _told("train", project.folder / "training" / "transformer", p.train.batch, len(latents))


def refine(project: Project) -> dict[str, Any]:
    """Stage 3: train the refiner, and put the pipeline together."""
    out, p = project.folder / "refiner", project.preset
    if not out.is_dir():
        helper = accelerator(project.device, project.precision)
        autoencoder = project.autoencoder()
        raw = p.refiner.refiner_latents == "official"
        train, held = (DecodedImages(part, autoencoder, raw) for part in project.featured(compute=not _launched()))
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(Streams(project.seed).integer("refiner"))
            model = LatentGuidedRefiner(latent_channels=p.channels, **asdict(p.refiner))
        training = RefinerTraining(
            model,
            train,
            p.refine,
            perceptual=project.perceptual() if p.refine.perceptual else None,
            held_out=held,
            seed=Streams(project.seed).integer("refine"),
            folder=project.folder / "training" / "refiner",
            accelerator=helper,
        )
        if _run(training, project.progress):
            _save_folder(training.average, out)
        close()
    if not _launched() and not (project.folder / "pipeline").is_dir():
        options = {"bundle_vfm": True} if project.bundle_vfm else {}
        _save_folder(assemble(project), project.folder / "pipeline", **options)
    return _told("refine", project.folder / "training" / "refiner", p.refine.batch, len(project.images[0].labels))


def assemble(project: Project) -> RePackDiTPipeline:
    """The pipeline of the project's trained parts."""
    return RePackDiTPipeline(
        project.autoencoder(),
        _load(RePackDiTTransformer2DModel, project.folder / "transformer", "train"),
        make_scheduler(project.preset.sampling.shift),
        _load(LatentGuidedRefiner, project.folder / "refiner", "refine"),
    )


def _told(stage: str, folder: Path, batch: int, count: int) -> dict[str, Any]:
    """Steps, images seen and epochs, which are three different things."""
    from repack_dit.training import read_metrics

    rows = read_metrics(folder)
    steps = int(rows[-1]["step"]) if rows else 0
    last = [row["loss"] for row in rows[-50:]]
    return {
        "stage": stage,
        "steps": steps,
        "images seen": steps * batch,
        "epochs": steps * batch / count,
        "loss of the last 50 steps": float(np.mean(last)) if last else None,
    }


# --- results -------------------------------------------------------------------------------------------------------


def sample(project: Project, labels: np.ndarray, *, refine: bool = True, batch: int = 128) -> np.ndarray:
    """Pictures of these classes in [-1, 1], float32, (N, 3, H, W); the same noise with and without refinement."""
    pipeline, s = project.pipeline(), project.preset.sampling
    pipeline.set_progress_bar_config(disable=True)
    generator, parts = Streams(project.seed).torch("sampling"), []
    for start in project.progress(range(0, len(labels), batch), label="sampling"):
        chosen = labels[start : start + batch]
        found = pipeline(
            torch.from_numpy(chosen) if project.classes else None,
            num_images=1 if project.classes else len(chosen),
            num_inference_steps=s.steps,
            guidance_scale=s.guidance_scale,
            guidance_interval=s.guidance_interval,
            guidance_channels=s.guidance_channels,
            refine=refine,
            generator=generator,
            output_type="pt",
        ).images
        parts.append(found.cpu().numpy() * 2 - 1)
    return np.concatenate(parts)


def _bytes(images: np.ndarray) -> np.ndarray:
    return ((images.transpose(0, 2, 3, 1).clip(-1, 1) + 1) * 127.5).round().astype(np.uint8)


def judge(project: Project, samples: int = 540) -> dict[str, Any]:
    """Distances of generated and refined pictures to training images, reconstruction of held-out ones, a grid."""
    train, held = project.images
    rows = Streams(project.seed).numpy("judge").permutation(len(train.labels))[: max(samples, 2)]
    real, labels = train.signed(np.sort(rows)), np.asarray(train.labels)[np.sort(rows)]
    generated, refined = (sample(project, labels, refine=on) for on in (False, True))
    count = min(len(held.labels), 512)
    x = torch.from_numpy(held.signed(np.arange(count))).to(project.device)
    autoencoder = project.autoencoder()
    with torch.no_grad():
        z = autoencoder.pack(autoencoder.features(x)).mode()
        decoded = autoencoder.decode(z, return_dict=False)[0]
        sharpened = project.pipeline().refiner(decoded, autoencoder.normalize(z))
    held_pixels = x.cpu().numpy()
    found: dict[str, Any] = {"samples": len(real)}
    scores = ("fd_dino", "kid_dino", "prc") if len(real) >= MIN_SAMPLES else ("fd_dino", "kid_dino")
    for name, pictures in (("generated", generated), ("refined", refined)):
        found[f"FD of pooled RGB, {name}"] = frechet_distance(pooled_rgb(pictures), pooled_rgb(real))
        rng, sets = Streams(project.seed).numpy("evaluate"), (_bytes(pictures), _bytes(real))
        for metric, interval in evaluate(*sets, rng=rng, metrics=scores, vision=project.vision).items():
            found[f"{metric}, {name}"] = list(interval)
    for name, pictures in (("decoded", decoded), ("refined", sharpened)):
        shown = pictures.cpu().numpy().clip(-1, 1)
        found[f"held-out PSNR {name}, dB"] = peak_signal_to_noise(shown, held_pixels)
        found[f"held-out L1 {name}"] = float(np.abs(shown - held_pixels).mean())
    every = max(1, count // 12)
    order = np.linspace(0, len(labels) - 1, 12).astype(int)
    shown = [held_pixels[::every][:12], decoded.cpu().numpy()[::every][:12], generated[order], refined[order]]
    scale = max(1, 64 // project.preset.size)
    found["grid"] = str(plots.labelled_sheet(project.folder / "grid.png", dict(zip(ROWS, shown, strict=True)), scale))
    panel = slice(None, None, every)
    found["latents"] = str(
        plots.triptychs(
            project.folder / "latents.png", held_pixels[panel], decoded.cpu().numpy()[panel], z.cpu().numpy()[panel]
        )
    )
    found["refinement"] = str(
        plots.differences(
            project.folder / "refinement.png", decoded.cpu().numpy()[panel], sharpened.cpu().numpy()[panel]
        )
    )
    return found


ROWS = ("held-out, real", "decoded", "generated", "generated, refined")


def run_all(project: Project, samples: int = 540) -> dict[str, Any]:
    """All stages, from the analysis of the features to the distances; writes ``results.json``."""
    featured, _ = project.featured()
    found: dict[str, Any] = {}
    if featured.features is not None:
        report = analyze_features([featured.features[:, 0]], Streams(project.seed).numpy("analysis"), subsample=2000)
        picture, _ = plots.spectrum(project.folder / "spectrum", report)
        found["analysis"] = {
            "participation ratio": report.participation_ratio,
            "components for 90 %": report.components[0.9],
            "picture": str(picture),
        }
    for stage in (pack, cache, train, refine):
        found[stage.__name__] = stage(project)
    found["pictures"] = judge(project, samples)
    found["losses"] = str(plots.losses(project.folder / "losses", project.folder / "training")[0])
    atomic_write(project.folder / "results.json", json.dumps(plain(found), indent=1))
    return found
