"""The ``repack-dit`` command."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import typer
from diffusers.utils import logging as diffusers_logging

from papershelf import InputError, Streams
from papershelf import cli as shelf
from papershelf.reproduce import plain, progress_bar
from repack_dit import plots, stages
from repack_dit.claims import PAPER
from repack_dit.convert import MAPS, load_official
from repack_dit.data import load_images
from repack_dit.packing import RePackAutoencoder
from repack_dit.pipeline import RePackDiTPipeline
from repack_dit.redundancy import analyze_features
from repack_dit.refiner import LatentGuidedRefiner
from repack_dit.spaces import extract_features, fit_space
from repack_dit.transformer import PRESETS, RePackDiTTransformer2DModel
from repack_dit.vision import PACKAGED, load_vfm

app = shelf.app(PAPER)
diffusers_logging.disable_progress_bar()  # one for every folder that is loaded

Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Data = Annotated[str, typer.Argument(help="photos, digits, or a folder of images (sub-folders are classes).")]
Seed = Annotated[int, typer.Option("--seed", min=0, help="Seed of all randomness.")]
Vfm = Annotated[str, typer.Option("--vfm", help=f"{PACKAGED}, random, a local folder, or a hub id.")]
Size = Annotated[int, typer.Option("--size", min=8, help="Image side in pixels, divisible by 8.")]
MaxBad = Annotated[int, typer.Option("--max-bad", min=0, help="Unreadable images that are skipped and named.")]
Out = Annotated[Path, typer.Option("--out", help="Folder for pictures.")]


def _show(found: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print(json.dumps(plain(found), ensure_ascii=False))
        return
    for name, value in found.items():
        print(f"{name}: {value:.4g}" if isinstance(value, float) else f"{name}: {value}")


@app.command()
def analyze(
    data: Data = "photos",
    vfm: Vfm = PACKAGED,
    size: Size = 32,
    max_bad: MaxBad = 0,
    out: Out = Path("repack-dit-analyze"),
    seed: Seed = 0,
    as_json: Json = False,
) -> None:
    """How redundant a vision model's features are on your pictures: spectrum, intrinsic dimension, a plot."""
    train, _ = load_images(data, size, Streams(seed).numpy("data"), max_bad=max_bad)
    features = extract_features(load_vfm(vfm, size // 8), train.signed())
    report = analyze_features([features], Streams(seed).numpy("analysis"), subsample=4000)
    out.mkdir(parents=True, exist_ok=True)
    picture, _ = plots.spectrum(out / "spectrum", report)
    _show(
        {
            "tokens": report.tokens,
            "channels": report.channels,
            "participation ratio": report.participation_ratio,
            "effective rank": report.effective_rank,
            "components for 50/80/90/95/99 %": list(report.components.values()),
            "TwoNN dimension": report.two_nn,
            "Levina-Bickel dimension": report.levina_bickel,
            "outlier ratio": report.outlier_ratio,
            "autocorrelation": report.autocorrelation,
            "skipped": list(train.skipped),
            "picture": str(picture),
        },
        as_json,
    )


@app.command()
def spaces(
    data: Data = "photos",
    vfm: Vfm = PACKAGED,
    size: Size = 32,
    channels: Annotated[int, typer.Option("--channels", min=1, help="Channels of the packed spaces.")] = 32,
    max_bad: MaxBad = 0,
    out: Out = Path("repack-dit-spaces"),
    seed: Seed = 0,
    as_json: Json = False,
) -> None:
    """Held-out reconstruction of raw, best-packed, PCA and pixel latents with linear decoders, and a sheet of them.

    The sheet's rows: real, then each space's reconstruction.
    """
    from repack_dit.metrics import peak_signal_to_noise

    train, held = load_images(data, size, Streams(seed).numpy("data"), max_bad=max_bad)
    if not len(held.labels):
        raise InputError(f"{data} holds {len(train.labels)} images; at least 6 are needed to hold one out")
    vision = load_vfm(vfm, size // 8)
    features, held_features = (extract_features(vision, part.signed()) for part in (train, held))
    found: dict[str, Any] = {}
    rows = [held.signed()[:: max(1, len(held.labels) // 12)][:12]]
    for kind in ("raw", "rrr", "pca", "pixel"):
        space = fit_space(kind, features, train.signed(), channels)
        decoded = space.decode(space.encode(held_features, held.signed()))
        found[f"{space.name} PSNR, dB"] = peak_signal_to_noise(decoded, held.signed())
        rows.append(decoded[:: max(1, len(held.labels) // 12)][:12])
    out.mkdir(parents=True, exist_ok=True)
    found["picture"] = str(plots.sheet(out / "spaces.png", rows))
    _show(found, as_json)


@app.command()
def count(
    preset: Annotated[str, typer.Option("--preset", help=f"One of {', '.join(PRESETS)}.")] = "XL/1",
    channels: Annotated[int, typer.Option("--channels", min=1, help="Latent channels.")] = 32,
    grid: Annotated[int, typer.Option("--grid", min=1, help="Side of the latent map.")] = 16,
    classes: Annotated[int, typer.Option("--classes", min=0, help="Classes; 0 is unconditional.")] = 1000,
    as_json: Json = False,
) -> None:
    """Parameters of a transformer preset and memory of its cache, without allocating the model."""
    with torch.device("meta"):
        model = RePackDiTTransformer2DModel.from_preset(
            preset, in_channels=channels, sample_size=grid, num_classes=classes
        )
    trained = sum(p.numel() for p in model.parameters() if p.requires_grad)
    _show(
        {
            "preset": preset,
            "trainable parameters": trained,
            "fixed positions": model.pos_embed.numel(),
            "tokens": int(np.prod(model.pos_embed.shape[:2])),
            "cached bytes an image and view (bf16)": 2 * channels * grid**2,
        },
        as_json,
    )


@app.command()
def convert(
    part: Annotated[str, typer.Argument(help=f"{', '.join(MAPS)}.")],
    checkpoint: Annotated[Path, typer.Argument(help="Official checkpoint (.pt, .pth, .ckpt or .safetensors).")],
    out: Annotated[Path, typer.Argument(help="Folder for the converted model; must not exist.")],
    preset: Annotated[str, typer.Option("--preset", help="Size of a transformer.")] = "XL/1",
) -> None:
    """An official checkpoint as a diffusers folder; checkpoints that hold code are refused."""
    if part not in MAPS:
        raise InputError(f"expected one of {', '.join(MAPS)}, got {part!r}")
    if out.exists():
        raise InputError(f"{out} exists already; name a new folder")
    if not checkpoint.is_file():
        raise InputError(f"no checkpoint at {checkpoint}")
    if part == "autoencoder":
        model: Any = RePackAutoencoder()
    elif part == "transformer":
        model = RePackDiTTransformer2DModel.from_preset(preset)
    else:
        model = LatentGuidedRefiner(residual=False, refiner_latents="official")
    load_official(model, checkpoint).save_pretrained(out)
    print(f"written: {out}")


@app.command()
def evaluate(
    generated: Annotated[Path, typer.Argument(help="Folder of generated images, or an .npz with arr_0.")],
    reference: Annotated[Path, typer.Argument(help="Folder of real images, or ADM's .npz (images, statistics).")],
    metrics: Annotated[
        str, typer.Option("--metrics", help="Of fd_dino,kid_dino,prc and, with Inception's weights, fid,sfid,isc.")
    ] = "",
    vfm: Vfm = PACKAGED,
    size: Annotated[int | None, typer.Option("--size", min=8, help="Crop both to this side first.")] = None,
    inception_weights: Annotated[
        Path | None, typer.Option("--inception-weights", help="torch-fidelity's Inception-v3 (.pth).")
    ] = None,
    allow_download: Annotated[
        bool, typer.Option("--allow-download", help="Let torch-fidelity fetch Inception's weights.")
    ] = False,
    resamples: Annotated[int, typer.Option("--resamples", min=1, help="Bootstrap samples.")] = 100,
    seed: Seed = 0,
    as_json: Json = False,
) -> None:
    """Distances of generated to real images, in DINOv2's features (offline) and in Inception's, with 95 % intervals."""
    from repack_dit import metrics as measures

    with_inception = inception_weights is not None or allow_download
    offline = tuple(m for m in measures.METRICS if with_inception or m not in measures.INCEPTION)
    wanted = tuple(m.strip() for m in metrics.split(",")) if metrics else offline
    unknown = [m for m in wanted if m not in measures.METRICS]
    if unknown:
        raise InputError(f"metrics are {', '.join(measures.METRICS)}, got {', '.join(unknown)}")
    needs_inception = set(wanted) & set(measures.INCEPTION)
    model = measures.load_inception(inception_weights, allow_download=allow_download) if needs_inception else None
    first, second = (measures.read_image_set(path, size) for path in (generated, reference))
    side = first.pixels.shape[1] if len(first.pixels) else 8
    vision = load_vfm(vfm, min(16, max(1, side // 8))) if set(wanted) - set(measures.INCEPTION) else None
    found: dict[str, Any] = {"generated": len(first.pixels), "reference": len(second.pixels)}
    scores = measures.evaluate(
        first,
        second,
        rng=Streams(seed).numpy("evaluate"),
        metrics=wanted,
        vision=vision,
        inception=model,
        resamples=resamples,
    )
    if vision is not None:
        found["vision model"] = vision.source
    found |= {name: value._asdict() if as_json else str(value) for name, value in scores.items()}
    if len(first.pixels) < 2048 and set(wanted) & {"fd_dino", "fid", "sfid"}:
        found["note"] = "Frechet distances of fewer than 2,048 images are biased upwards; compare at equal numbers"
    _show(found, as_json)


@app.command()
def ablate(
    data: Data = "photos",
    spaces: Annotated[
        str, typer.Option("--spaces", help="raw, rae, and pca-d, rrr-d, pixel-d, repack-d, vae-d, vavae-d.")
    ] = "raw,pca-32,repack-8,repack-32,vae-32",
    seeds: Annotated[int, typer.Option("--seeds", min=1, help="Seeds of every space.")] = 3,
    checkpoints: Annotated[str, typer.Option("--checkpoints", help="Training steps at which to measure.")] = (
        "100,200,300,500"
    ),
    samples: Annotated[int, typer.Option("--samples", min=50, help="Images a measurement.")] = 540,
    autoencoder_steps: Annotated[
        int, typer.Option("--autoencoder-steps", min=1, help="Training steps of the learned spaces.")
    ] = 300,
    vfm: Vfm = PACKAGED,
    size: Size = 32,
    max_bad: MaxBad = 0,
    jobs: Annotated[int, typer.Option("--jobs", min=1, help="Parallel workers.")] = 1,
    out: Out = Path("repack-dit-ablate"),
    seed: Seed = 0,
    as_json: Json = False,
) -> None:
    """Latent spaces under one transformer and trainer: distance of samples against images seen, as CSV and curves.

    Finished cells are kept in the folder; the same command goes on where it stopped.
    """
    import csv
    import io

    from papershelf.files import atomic_write
    from papershelf.sweep import sweep
    from repack_dit.ablation import ablation_cell
    from repack_dit.spaces import parse_space
    from repack_dit.training import TrainSettings

    names = list(dict.fromkeys(name.strip() for name in spaces.split(",")))
    for name in names:
        parse_space(name)
    words = checkpoints.split(",")
    if not all(word.strip().isdecimal() and int(word) > 0 for word in words):
        raise InputError(f"checkpoints are steps >= 1 with commas between them, got {checkpoints!r}")
    steps = tuple(sorted({int(word) for word in words}))
    shared = {
        "data": str(Path(data).resolve()) if Path(data).exists() else data,
        "vfm": vfm,
        "size": size,
        "checkpoints": steps,
        "samples": samples,
        "autoencoder_steps": autoencoder_steps,
        "max_bad": max_bad,
    }
    grid = [{"space": name, "seed": seed + i, **shared} for name in names for i in range(seeds)]
    out.mkdir(parents=True, exist_ok=True)
    with progress_bar() as progress:
        cells = sweep(ablation_cell, grid, jobs=jobs, cache=out / "cells", progress=progress)
    batch = TrainSettings().batch
    measures = ("pooled RGB", "FD-DINOv2")
    table = io.StringIO()
    writer = csv.writer(table)
    writer.writerow(["space", "channels", "seed", "step", "images_seen", "metric", "value", "psnr_db", "cka"])
    for cell in cells:
        for measure in measures:
            for step, value in zip(steps, cell.value[measure], strict=True):
                row = [cell.params["space"], cell.value["channels"], cell.params["seed"], step, step * batch, measure]
                writer.writerow([*row, value, cell.value["psnr"], cell.value["cka"]])
    atomic_write(out / "ablation.csv", table.getvalue())
    found: dict[str, Any] = {"images seen": [step * batch for step in steps]}
    for measure in measures:
        rows = {n: np.array([c.value[measure] for c in cells if c.params["space"] == n]) for n in names}
        file = out / measure.lower().replace(" ", "-")
        plots.convergence(file, [s * batch for s in steps], rows, xlabel="images seen", ylabel=f"distance, {measure}")
        found |= {f"{n}, {measure}": [float(f"{v:.4g}") for v in curve.mean(0)] for n, curve in rows.items()}
    for name in names:
        mine = [c.value for c in cells if c.params["space"] == name]
        found[f"{name}, held-out PSNR, dB"] = float(np.mean([v["psnr"] for v in mine]))
        found[f"{name}, CKA with the features"] = float(np.mean([v["cka"] for v in mine]))
    found["table"] = str(out / "ablation.csv")
    _show(found, as_json)


@app.command()
def export(
    model: Annotated[Path, typer.Argument(help="Folder of a saved transformer or pipeline.")],
    out: Annotated[Path, typer.Argument(help="Folder for the exported program; must not exist.")],
    kind: Annotated[str, typer.Option("--format", help="onnx, or torch for torch.export.")] = "onnx",
    as_json: Json = False,
) -> None:
    """The transformer as ONNX or as a torch.export program, kept only if it gives the model's numbers."""
    from repack_dit.export import FORMATS, export_transformer, read_transformer

    if kind not in FORMATS:
        raise InputError(f"expected a format of {', '.join(FORMATS)}, got {kind!r}")
    difference = export_transformer(read_transformer(model), out, kind)
    _show({"written": str(out / FORMATS[kind]), "largest relative difference": difference}, as_json)


# --- projects: pack, cache, train, refine, run, sample ------------------------------------------------------------

Folder = Annotated[Path, typer.Argument(help="Project folder, made by pack or run.")]
Home = Annotated[Path, typer.Option("--out", help="Project folder.")]
PresetName = Annotated[str, typer.Option("--preset", help=f"Settings: {', '.join(stages.PRESETS)}.")]
Config = Annotated[Path | None, typer.Option("--config", help="YAML file with settings over the preset's.")]
Device = Annotated[str, typer.Option("--device", help="cpu, cuda or mps.")]
Precision = Annotated[str, typer.Option("--precision", help="Of training: no, bf16 or fp16.")]
Resume = Annotated[bool, typer.Option("--resume", help="Go on with the project that is in the folder.")]
ProjectVfm = Annotated[
    str | None, typer.Option("--vfm", help=f"{PACKAGED}, random, a local folder, or a hub id.", show_default=False)
]
Trunk = Annotated[Path | None, typer.Option("--lpips-trunk", help="VGG-16, AlexNet or SqueezeNet weights for LPIPS.")]
Bundle = Annotated[bool, typer.Option("--bundle-vfm", help="Put the vision model into the pipeline's folder.")]
Watson = Annotated[Path | None, typer.Option("--watson", help="Trained parameters of the Watson-DFT distance.")]


def _created(
    data: str,
    out: Path,
    preset: str,
    config: Path | None,
    seed: int,
    max_bad: int,
    device: str,
    precision: str,
    resume: bool,
    **overrides: Any,
) -> stages.Project:
    chosen = {name: str(value) if isinstance(value, Path) else value for name, value in overrides.items()}
    settings = stages.load_preset(preset, config, **chosen)
    stages.accelerator(device, precision)  # a device that is not there is told before anything is written
    project = stages.create_project(out, data, settings, seed=seed, max_bad=max_bad, resume=resume)
    project.device, project.precision = device, precision
    return project


def _stage(project: stages.Project, stage: Any, as_json: bool) -> None:
    with progress_bar() as progress:
        project.progress = progress
        found = stage(project)
    _show(found, as_json)


@app.command()
def pack(
    data: Data = "photos",
    out: Home = Path("repack-dit-project"),
    preset: PresetName = "tiny",
    config: Config = None,
    vfm: ProjectVfm = None,
    lpips_trunk: Trunk = None,
    watson: Watson = None,
    max_bad: MaxBad = 0,
    seed: Seed = 0,
    device: Device = "cpu",
    precision: Precision = "no",
    no_train: Annotated[bool, typer.Option("--no-train", help="Make the project only; train by a launch.")] = False,
    resume: Resume = False,
    as_json: Json = False,
) -> None:
    """Stage 1: make a project and train its autoencoder (packing convolution and decoder).

    On several GPUs: pack --no-train, then accelerate launch -m repack_dit.training PROJECT pack --device cuda.
    """
    given = {"vfm": vfm, "lpips_trunk": lpips_trunk, "watson": watson}
    project = _created(data, out, preset, config, seed, max_bad, device, precision, resume, **given)
    if no_train:
        _show({"project": str(project.folder)}, as_json)
    else:
        _stage(project, stages.pack, as_json)


def _opened(folder: Path, device: str, precision: str = "no") -> stages.Project:
    stages.accelerator(device, precision)
    project = stages.open_project(folder)
    project.device, project.precision = device, precision
    return project


@app.command()
def cache(folder: Folder, device: Device = "cpu", resume: Resume = True, as_json: Json = False) -> None:
    """Latents of all training images and their mirror images, in shards; finished shards are kept."""
    _stage(_opened(folder, device), stages.cache, as_json)


@app.command()
def train(
    folder: Folder, device: Device = "cpu", precision: Precision = "no", resume: Resume = True, as_json: Json = False
) -> None:
    """Stage 2: train the transformer on the cache; goes on from its last checkpoint."""
    _stage(_opened(folder, device, precision), stages.train, as_json)


@app.command()
def refine(
    folder: Folder,
    device: Device = "cpu",
    precision: Precision = "no",
    bundle_vfm: Bundle = False,
    resume: Resume = True,
    as_json: Json = False,
) -> None:
    """Stage 3: train the refiner, and write the pipeline; goes on from its last checkpoint."""
    project = _opened(folder, device, precision)
    project.bundle_vfm = bundle_vfm
    _stage(project, stages.refine, as_json)


@app.command()
def run(
    data: Data = "photos",
    out: Home = Path("repack-dit-project"),
    preset: PresetName = "tiny",
    config: Config = None,
    vfm: ProjectVfm = None,
    lpips_trunk: Trunk = None,
    watson: Watson = None,
    max_bad: MaxBad = 0,
    bundle_vfm: Bundle = False,
    samples: Annotated[int, typer.Option("--samples", min=2, help="Pictures that the distances are of.")] = 540,
    seed: Seed = 0,
    device: Device = "cpu",
    precision: Precision = "no",
    resume: Resume = False,
    as_json: Json = False,
) -> None:
    """Everything: analysis, three stages, distances, and a grid of real, decoded, generated and refined pictures."""
    given = {"vfm": vfm, "lpips_trunk": lpips_trunk, "watson": watson}
    project = _created(data, out, preset, config, seed, max_bad, device, precision, resume, **given)
    project.bundle_vfm = bundle_vfm
    with progress_bar() as progress:
        project.progress = progress
        found = stages.run_all(project, samples)
    if as_json:
        _show(found, as_json)
        return
    for part, values in found.items():
        print(f"{part}: {values}" if isinstance(values, str) else f"--- {part}")
        if not isinstance(values, str):
            _show(values, as_json)


@app.command()
def sample(
    model: Annotated[Path, typer.Argument(help="Pipeline folder, or a project that holds one.")],
    classes: Annotated[str, typer.Option("--classes", help="Labels, like 0,3,5; all of them by default.")] = "",
    count: Annotated[int, typer.Option("--count", min=1, help="Pictures of each class.")] = 4,
    out: Annotated[Path, typer.Option("--out", help="Folder for the pictures.")] = Path("repack-dit-samples"),
    grid: Annotated[bool, typer.Option("--grid", help="One sheet, a row a class, instead of single files.")] = False,
    steps: Annotated[int, typer.Option("--steps", min=1, help="Evaluations of the transformer.")] = 50,
    scale: Annotated[float, typer.Option("--guidance", help="Guidance scale; 1 is none.")] = 1.5,
    interval: Annotated[tuple[float, float], typer.Option("--interval", help="Of t, 0 is noise.")] = (0.0, 1.0),
    channels: Annotated[int | None, typer.Option("--channels", help="Guide the first ones only.")] = None,
    no_refine: Annotated[bool, typer.Option("--no-refine", help="Leave the refiner out.")] = False,
    batch: Annotated[int, typer.Option("--batch", min=1, help="Pictures at a time.")] = 64,
    seed: Seed = 0,
    device: Device = "cpu",
    as_json: Json = False,
) -> None:
    """Pictures of a trained pipeline, as PNG files; class 3's second is 3-1.png."""
    folder = model / "pipeline" if (model / stages.SETTINGS).is_file() else model
    if not (folder / "model_index.json").is_file():
        raise InputError(f"{folder} holds no pipeline; run 'repack-dit run' or 'refine' first")
    pipeline = RePackDiTPipeline.from_pretrained(folder).to(device)
    known = pipeline.transformer.config.num_classes
    if classes and not known:
        raise InputError("this model is unconditional and takes no --classes")
    try:
        labels = [int(word) for word in classes.split(",")] if classes else list(range(known))
    except ValueError as error:
        raise InputError(f"--classes expects numbers like 0,3,5, got {classes!r}") from error
    if known and not all(0 <= label < known for label in labels):
        raise InputError(f"class labels must lie in [0, {known}), got {labels[:10]}")
    pipeline.set_progress_bar_config(disable=True)
    names = [f"{label}-{i}" for label in (labels or ["picture"]) for i in range(count)]
    wanted = torch.tensor(labels).repeat_interleave(count) if known else None
    generator = Streams(seed).torch("sampling", device if device == "cuda" else "cpu")
    out.mkdir(parents=True, exist_ok=True)
    kept: list[np.ndarray] = []
    files: list[Path] = []
    with progress_bar() as progress:
        for start in progress(range(0, len(names), batch), label="sampling"):
            chosen = names[start : start + batch]
            pixels = pipeline(
                None if wanted is None else wanted[start : start + batch],
                num_images=len(chosen) if wanted is None else 1,
                num_inference_steps=steps,
                guidance_scale=scale,
                guidance_interval=interval,
                guidance_channels=channels,
                refine=not no_refine,
                generator=generator,
                output_type="np",
            ).images
            signed = pixels.transpose(0, 3, 1, 2) * 2 - 1
            if grid:
                kept.extend(signed)
            else:
                files += [plots.sheet(out / f"{n}.png", [x[None]], 1) for n, x in zip(chosen, signed, strict=True)]
    if grid:
        rows = [np.stack(kept[i : i + count]) for i in range(0, len(kept), count)]
        files = [plots.sheet(out / "grid.png", rows)]
    shown = {"files": [str(path) for path in files]} if as_json or grid else {"folder": str(out)}
    _show({"pictures": len(names), **shown}, as_json)
