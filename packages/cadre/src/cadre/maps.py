"""Matrices, maps with edges along great circles, latents over time, and forecast fans; matplotlib only."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def great_circle(start: np.ndarray, end: np.ndarray, points: int = 40) -> np.ndarray:
    """Points of the great circle from one place to another, latitude and longitude in degrees, (points, 2).

    Longitudes run on without a jump, so they may leave [-180, 180].
    """

    def vector(place: np.ndarray) -> np.ndarray:
        lat, lon = np.radians(place)
        return np.array([np.cos(lat) * np.cos(lon), np.cos(lat) * np.sin(lon), np.sin(lat)])

    a, b = vector(np.asarray(start, dtype=float)), vector(np.asarray(end, dtype=float))
    angle = np.arccos(np.clip(a @ b, -1, 1))
    share = np.linspace(0, 1, points)[:, None]
    if angle < 1e-9:
        return np.repeat(np.asarray(start, dtype=float)[None], points, 0)
    path = (np.sin((1 - share) * angle) * a + np.sin(share * angle) * b) / np.sin(angle)
    lon = np.degrees(np.unwrap(np.arctan2(path[:, 1], path[:, 0])))
    return np.stack([np.degrees(np.arcsin(np.clip(path[:, 2], -1, 1))), lon], axis=1)


def centre_longitude(lon: np.ndarray) -> float:
    """The longitude in the middle of the places: opposite the middle of the largest empty arc."""
    turned = np.sort(np.mod(lon, 360.0))
    gaps = np.diff(np.append(turned, turned[0] + 360.0))
    widest = int(np.argmax(gaps))
    return float(np.mod(turned[widest] + gaps[widest] / 2 + 180.0, 360.0))


def around(lon: np.ndarray, centre: float) -> np.ndarray:
    """Longitudes in [centre - 180, centre + 180)."""
    return np.mod(np.asarray(lon, dtype=float) - centre + 180.0, 360.0) - 180.0 + centre


def draw_weights(ax: Axes, weights: np.ndarray, names: Sequence[str], true: np.ndarray | None = None) -> None:
    """Edge weights as a matrix, causes across, effects down; circles mark the true edges."""
    top = max(float(np.abs(weights).max()), 1e-9)
    image = ax.imshow(weights, cmap="RdBu_r", vmin=-top, vmax=top)
    ax.figure.colorbar(image, ax=ax, shrink=0.8, label="effect of 1 sd, in sd")
    ax.grid(False)
    if len(names) <= 20:
        ax.set_xticks(range(len(names)), names, rotation=90)
        ax.set_yticks(range(len(names)), names)
    ax.set_xlabel("cause")
    ax.set_ylabel("effect")
    if true is not None:
        effect, cause = np.nonzero(true)
        ax.scatter(cause, effect, s=60, facecolors="none", edgecolors="black", label="true edge")


def draw_graph_map(
    ax: Axes,
    coords: np.ndarray,
    weights: np.ndarray,
    land: tuple[np.ndarray, np.ndarray, np.ndarray] | None = None,
    wind: tuple[np.ndarray, np.ndarray] | None = None,
) -> None:
    """Edges between places along great circles, arrowheads at the effects; no edge is torn at the dateline.

    Args:
        ax: axes.
        coords: latitude, longitude, (d, 2).
        weights: signed, (d, d), 0 is no edge: orange raises, blue lowers.
        land: (lat, lon, bool mask) of a grid, drawn in grey.
        wind: eastward and northward wind at the places, drawn as thin green arrows.
    """
    from matplotlib.patches import FancyArrowPatch

    centre = centre_longitude(coords[:, 1])
    lon = around(coords[:, 1], centre)
    if land is not None:
        land_lat, land_lon, mask = land
        turned = around(land_lon, centre)
        order = np.argsort(turned)
        grey = np.where(np.asarray(mask)[:, order], 0.8, np.nan)
        ax.pcolormesh(
            turned[order], land_lat, grey, cmap="Greys", vmin=0, vmax=2, zorder=0, shading="nearest", rasterized=True
        )
    if wind is not None:
        style: dict[str, Any] = {"color": "#009E73", "width": 0.0025, "alpha": 0.8, "zorder": 2}
        ax.quiver(lon, coords[:, 0], *wind, **style)
    top = max(float(np.abs(weights).max()), 1e-9)
    for i, j in zip(*np.nonzero(weights), strict=True):
        path = great_circle(coords[j], coords[i])
        along = path[:, 1] - path[0, 1] + lon[j]
        share = abs(weights[i, j]) / top
        colour = "#D55E00" if weights[i, j] > 0 else "#0072B2"
        ax.plot(along[2:-2], path[2:-2, 0], color=colour, lw=0.6 + 2 * share, alpha=0.8, zorder=3)
        ends = [(along[-8], path[-8, 0]), (along[-3], path[-3, 0])]
        head = FancyArrowPatch(*ends, arrowstyle="-|>", mutation_scale=8 + 5 * share, color=colour, lw=0, zorder=4)
        ax.add_patch(head)
    ax.scatter(lon, coords[:, 0], s=22, color="black", zorder=5)
    spread = max(np.ptp(lon), np.ptp(coords[:, 0]), 1.0)
    ax.set_xlim(lon.min() - 0.08 * spread, lon.max() + 0.08 * spread)
    ax.set_ylim(coords[:, 0].min() - 0.08 * spread, coords[:, 0].max() + 0.08 * spread)
    ax.xaxis.set_major_formatter(lambda value, _: _degrees(value, "E", "W"))
    ax.yaxis.set_major_formatter(lambda value, _: _degrees(value, "N", "S"))


def _degrees(value: float, positive: str, negative: str) -> str:
    turned = float(around(np.array(value), 0.0)) if positive == "E" else value
    return f"{abs(turned):g}°{positive if turned > 0 else negative if turned < 0 else ''}"


def draw_latents(ax: Axes, time: np.ndarray, z: np.ndarray, index: np.ndarray | None = None, label: str = "") -> None:
    """Latents over time, and a known index beside them."""
    for j in range(z.shape[1]):
        ax.plot(time, z[:, j], lw=0.9, label=f"z{j + 1}")
    if index is not None:
        ax.plot(time, index, color="black", lw=0.9, ls="--", label=label or "index")
    ax.set_ylabel("standard deviations")
    ax.legend(ncols=4, fontsize=8)


def draw_forecast(ax: Axes, past: np.ndarray, samples: np.ndarray, observed: np.ndarray | None = None) -> None:
    """One series: its past (T,), forecast samples (m, h) as a fan, and what came."""
    ahead = len(past) + np.arange(samples.shape[1])
    ax.plot(np.arange(len(past)), past, color="black", lw=0.9)
    for low, high, alpha in ((0.05, 0.95, 0.2), (0.25, 0.75, 0.35)):
        bounds = np.quantile(samples, [low, high], axis=0)
        ax.fill_between(ahead, *bounds, color="#0072B2", alpha=alpha, lw=0, label=f"{high - low:.0%}")
    ax.plot(ahead, samples.mean(0), color="#0072B2", lw=1.3, label="mean")
    if observed is not None:
        ax.plot(ahead, observed, color="#D55E00", lw=1, label="observed")
    ax.legend(ncols=4, fontsize=8)
