"""Figure defaults that read well in a report, and saving without a display."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from papershelf.files import atomic_path

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Okabe and Ito's palette, distinguishable with any colour vision.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#F0E442")

STYLE: dict[str, Any] = {
    "figure.dpi": 110,
    "savefig.dpi": 150,
    "figure.constrained_layout.use": True,
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.alpha": 0.25,
    "legend.frameon": False,
    "svg.hashsalt": "papershelf",
}


@contextmanager
def figure(width: float = 6.4, height: float = 4.0, **subplots: Any) -> Generator[tuple[Figure, Any]]:
    """A figure and its axes in the shelf's style, closed afterwards; needs no display.

    Args:
        width: in inches.
        height: in inches.
        subplots: passed to ``Figure.subplots`` (``nrows``, ``ncols``, ``sharex`` ...).
    """
    import matplotlib as mpl
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.rcsetup import cycler

    settings: Any = {**STYLE, "axes.prop_cycle": cycler(color=COLOURS)}
    with mpl.rc_context(settings):
        drawing = Figure(figsize=(width, height))
        FigureCanvasAgg(drawing)
        yield drawing, drawing.subplots(**subplots)


def save(drawing: Figure, path: Path) -> tuple[Path, Path]:
    """Write a figure as PNG and SVG beside each other, atomically.

    Args:
        drawing: the figure.
        path: file name; its suffix is replaced by ``.png`` and ``.svg``.

    Returns:
        The two paths, PNG first.
    """
    png, svg = path.with_suffix(".png"), path.with_suffix(".svg")
    png.parent.mkdir(parents=True, exist_ok=True)
    with atomic_path(png) as target:
        drawing.savefig(target, format="png")
    with atomic_path(svg) as target:
        drawing.savefig(target, format="svg", metadata={"Date": None})
    return png, svg
