"""Pictures of clouds, and of what orders do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import colormaps

from anisonet.clouds import Cloud, load_open3d
from papershelf.plot import COLOURS, figure, save

PALETTE = np.array([colormaps["tab20"](i)[:3] for i in [*range(0, 20, 2), *range(1, 20, 2)]])


def colours_of(labels: np.ndarray) -> np.ndarray:
    """One of twenty colours a label, grey for negative ones, shape (N, 3)."""
    labels = np.asarray(labels)
    return np.where((labels < 0)[:, None], 0.6, PALETTE[labels % len(PALETTE)])


def project(xyz: np.ndarray, azimuth: float = -60.0, elevation: float = 25.0) -> tuple[np.ndarray, np.ndarray]:
    """Orthographic picture coordinates (N, 2) and depth (N,), larger is nearer; angles in degrees, z is up."""
    a, e = np.radians([azimuth, elevation])
    toward = np.array([np.cos(e) * np.cos(a), np.cos(e) * np.sin(a), np.sin(e)])
    right = np.array([-np.sin(a), np.cos(a), 0.0])
    return xyz @ np.stack([right, np.cross(toward, right)], 1), xyz @ toward


def _draw(axes: Any, xyz: np.ndarray, colour: np.ndarray, title: str) -> None:
    flat, depth = project(np.asarray(xyz, dtype=np.float64))
    order = np.argsort(depth)
    near = (depth - depth.min()) / max(float(np.ptp(depth)), 1e-12)
    shade = colour * (0.55 + 0.45 * near[:, None])
    size = float(np.clip(9000 / len(xyz), 0.5, 14))
    axes.scatter(*flat[order].T, s=size, c=shade[order], linewidths=0, rasterized=True)
    axes.set_aspect("equal")
    axes.set_axis_off()
    axes.set_title(title, fontsize=10)


def render_png(
    xyz: np.ndarray,
    labels: np.ndarray | None,
    path: Path,
    classes: Sequence[str] = (),
    truth: np.ndarray | None = None,
    values: np.ndarray | None = None,
    title: str = "",
) -> tuple[Path, Path]:
    """Picture of a cloud by label (beside the truth, where it is known) or by a value.

    Args:
        xyz: shape (N, 3), z is up.
        labels: shape (N,), or None where ``values`` are given.
        path: where to save; PNG and SVG.
        classes: names for the legend.
        truth: labels for a second panel.
        values: numbers, shape (N,), drawn in viridis.
        title: over the first panel.
    """
    panels = 1 if truth is None else 2
    with figure(5.2 * panels, 4.6, ncols=panels) as (drawing, axes):
        every = np.atleast_1d(axes)
        if values is not None:
            low, high = np.quantile(values, [0.02, 0.98])
            scaled = np.clip((values - low) / max(high - low, 1e-12), 0, 1)
            _draw(every[0], xyz, colormaps["viridis"](scaled)[:, :3], title)
            mappable = drawing.colorbar(
                _scale(float(low), float(high)), ax=every[0], shrink=0.7, label=title or "value"
            )
            mappable.outline.set_visible(False)
        else:
            assert labels is not None
            _draw(every[0], xyz, colours_of(labels), title or "predicted")
            if truth is not None:
                _draw(every[1], xyz, colours_of(truth), "labelled")
            present = np.unique(labels if truth is None else np.concatenate([labels, truth]))
            handles = [
                every[0].scatter(
                    [], [], color=colours_of(np.array([i]))[0], label=classes[i] if i < len(classes) else str(i)
                )
                for i in present[present >= 0][:20]
            ]
            drawing.legend(
                handles=handles,
                loc="lower center",
                ncols=min(5 if panels == 2 else 3, len(handles)),  # as many as the width takes
                fontsize=8,
                frameon=False,
            )
        return save(drawing, path)


def _scale(low: float, high: float) -> Any:
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import Normalize

    return ScalarMappable(Normalize(low, high), "viridis")


def leakage_picture(path: Path, rows: Mapping[str, Sequence[float]], title: str = "") -> tuple[Path, Path]:
    """Scores of training settings: one point a seed, their mean as a bar.

    Args:
        path: where to save.
        rows: name of the setting -> mean intersection over union of every seed.
        title: over the picture.
    """
    with figure(6.4, 0.5 * len(rows) + 1.4) as (drawing, axes):
        for i, (name, values) in enumerate(reversed(list(rows.items()))):
            keep = "file order" in name
            axes.barh(i, float(np.mean(values)), color=COLOURS[1] if keep else COLOURS[0], alpha=0.45, height=0.6)
            axes.plot(values, np.full(len(values), i), "o", color=COLOURS[1] if keep else COLOURS[0], markersize=4)
            axes.annotate(f"{np.mean(values):.3f}", (0.01, i), va="center", fontsize=9)
        axes.set_yticks(range(len(rows)), list(reversed(list(rows))), fontsize=9)
        axes.set_xlim(0, 1)
        axes.set_xlabel("mean intersection over union, unseen scenes")
        axes.set_title(title, fontsize=10)
        return save(drawing, path)


def show_open3d(cloud: Cloud, labels: np.ndarray | None = None, path: Path | None = None) -> Any:
    """open3d's view of a cloud, coloured by label: a window, or with ``path`` a picture without a display.

    Raises:
        ImportError: if open3d or a library it needs is missing, naming it.
    """
    o3d = load_open3d()
    shown = o3d.geometry.PointCloud(o3d.utility.Vector3dVector(cloud.xyz.astype(np.float64)))
    colour = colours_of(labels) if labels is not None else cloud.colour
    if colour is not None:
        shown.colors = o3d.utility.Vector3dVector(np.asarray(colour, dtype=np.float64))
    if path is None:
        return o3d.visualization.draw_geometries([shown])
    try:
        renderer = o3d.visualization.rendering.OffscreenRenderer(900, 700)
    except RuntimeError as error:
        raise ImportError(
            f"open3d cannot draw without a display here ({error}); on Debian: apt-get install libvulkan1 "
            "mesa-vulkan-drivers; render_png needs neither"
        ) from None
    renderer.scene.set_background([1.0, 1.0, 1.0, 1.0])
    material = o3d.visualization.rendering.MaterialRecord()
    material.point_size = 4.0
    renderer.scene.add_geometry("cloud", shown, material)
    box = shown.get_axis_aligned_bounding_box()
    extent = float(np.max(box.get_extent()))
    centre = np.asarray(box.get_center())
    eye = centre + 1.6 * extent * np.array([0.5, -0.8, 0.45])
    renderer.setup_camera(50.0, centre, eye, np.array([0.0, 0.0, 1.0]))
    o3d.io.write_image(str(path), renderer.render_to_image())
    return path
