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
