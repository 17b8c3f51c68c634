"""Pictures: spectrum, convergence curves, sheets of images."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from PIL import Image

from papershelf.files import atomic_path
from papershelf.plot import figure, save
from repack_dit.redundancy import SpectrumReport


def spectrum(path: Path, report: SpectrumReport) -> tuple[Path, Path]:
    """Share of variance held by the leading components."""
    held = np.cumsum(report.eigenvalues) / report.eigenvalues.sum()
    with figure(6.4, 3.6) as (drawing, axes):
        axes.plot(np.arange(1, len(held) + 1), 100 * held)
        k90 = report.components[0.9]
        axes.plot([k90], [100 * held[k90 - 1]], "o")
        axes.annotate(f"{k90} components hold 90 %", (k90, 100 * held[k90 - 1]), (k90 * 1.3, 72))
        axes.set(xscale="log", xlabel="components", ylabel="variance held, %", ylim=(0, 102))
        axes.set_title(f"{report.channels} channels, participation ratio {report.participation_ratio:.2f}")
        return save(drawing, path)


def convergence(
    path: Path,
    steps: Sequence[int],
    curves: Mapping[str, np.ndarray],
    *,
    xlabel: str = "training steps",
    ylabel: str = "Fréchet distance, pooled RGB",
) -> tuple[Path, Path]:
    """Distance over steps: mean and range over seeds; each curve is (seeds, checkpoints)."""
    with figure(6.4, 3.6) as (drawing, axes):
        for name, rows in curves.items():
            (line,) = axes.plot(steps, rows.mean(0), "o-", label=name)
            axes.fill_between(steps, rows.min(0), rows.max(0), alpha=0.2, color=line.get_color())
        axes.set(yscale="log", xlabel=xlabel, ylabel=ylabel)
        axes.legend()
        return save(drawing, path)


def sheet(path: Path, rows: Sequence[np.ndarray], scale: int = 2) -> Path:
    """Rows of images (n, 3, H, W) in [-1, 1] as one PNG, each enlarged."""
    lines = [np.concatenate([*(image.transpose(1, 2, 0) for image in row)], axis=1) for row in rows]
    whole = np.concatenate(lines, axis=0)
    pixels = ((whole.clip(-1, 1) + 1) * 127.5).round().astype(np.uint8)
    image = Image.fromarray(pixels)
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_path(path) as target:
        image.resize((image.width * scale, image.height * scale), Image.Resampling.NEAREST).save(target, format="PNG")
    return path


def _pixels(image: np.ndarray, scale: int) -> np.ndarray:
    pixels = ((image.transpose(1, 2, 0).clip(-1, 1) + 1) * 127.5).round().astype(np.uint8)
    return pixels.repeat(scale, 0).repeat(scale, 1)


def labelled_sheet(path: Path, rows: Mapping[str, np.ndarray], scale: int = 2) -> Path:
    """Named rows of images (n, 3, H, W) in [-1, 1] as one PNG, the names at the left."""
    with figure(9, 0.1 + 0.65 * len(rows)) as (drawing, axes):
        lines = [np.concatenate([_pixels(image, scale) for image in row], axis=1) for row in rows.values()]
        widest = max(line.shape[1] for line in lines)
        lines = [np.pad(x, ((0, 0), (0, widest - x.shape[1]), (0, 0)), constant_values=255) for x in lines]
        axes.imshow(np.concatenate(lines, axis=0), interpolation="nearest")
        height = lines[0].shape[0]
        axes.set_yticks([height * (i + 0.5) for i in range(len(rows))], list(rows))
        axes.set_xticks([])
        axes.tick_params(length=0)
        axes.grid(visible=False)
        for spine in axes.spines.values():
            spine.set_visible(False)
        return save(drawing, path.with_suffix(""))[0]


def principal_colours(latents: np.ndarray, side: int) -> np.ndarray:
    """Three principal components of latents (N, d, h, w) as colours in [-1, 1], (N, 3, side, side)."""
    n, d, h, w = latents.shape
    tokens = np.moveaxis(latents, 1, -1).reshape(-1, d).astype(np.float64)
    tokens -= tokens.mean(0)
    _, _, directions = np.linalg.svd(tokens, full_matrices=False)
    found = tokens @ directions[: min(3, d)].T
    found = np.pad(found / np.maximum(np.abs(found).max(0), 1e-12), ((0, 0), (0, max(0, 3 - d))))
    maps = np.moveaxis(found.reshape(n, h, w, 3), -1, 1)
    return maps.repeat(side // h, 2).repeat(side // w, 3)


def triptychs(path: Path, images: np.ndarray, decoded: np.ndarray, latents: np.ndarray) -> Path:
    """Input, reconstruction, and the latent's three principal components as colours."""
    colours = principal_colours(latents, images.shape[-1])
    rows = {"input": images[:12], "reconstruction": decoded[:12], "latent, 3 components": colours[:12]}
    return labelled_sheet(path, rows)


def differences(path: Path, before: np.ndarray, after: np.ndarray) -> Path:
    """Decoded and refined images, and their difference five times enlarged around grey."""
    shown = {"decoded": before[:12], "refined": after[:12], "difference x 5": 5 * (after - before)[:12]}
    return labelled_sheet(path, shown)


def losses(path: Path, folder: Path) -> tuple[Path, Path]:
    """Loss of every training under the folder over the images seen, smoothed over 20 steps."""
    import json

    stages = sorted(p for p in folder.iterdir() if (p / "metrics.jsonl").is_file())
    with figure(6.4, 3.6) as (drawing, axes):
        for stage in stages:
            rows = [json.loads(line) for line in (stage / "metrics.jsonl").read_text().splitlines()]
            values = np.array([row["loss"] for row in rows])
            width = min(20, len(values))
            smooth = np.convolve(values, np.full(width, 1 / width), "valid")
            axes.plot(np.arange(len(smooth)) + width, smooth, label=stage.name)
        axes.set(yscale="log", xlabel="step", ylabel="loss")
        axes.legend()
        return save(drawing, path)
