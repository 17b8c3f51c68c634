"""One self-contained HTML page of measured claims; opens without a server or a network."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from pathlib import Path

from papershelf.files import atomic_write
from papershelf.paper import papers
from papershelf.reproduce import Result, load_results, machine

FILE = "report.html"


def _inline(path: Path) -> str:
    return "data:image/png;base64," + base64.b64encode(path.read_bytes()).decode()


def _card(result: Result, folder: Path) -> dict:
    figures = [folder / name for name in result.figures if name.endswith(".png")]
    return {
        "result": result,
        "mark": {"held": "✓", "did not hold": "✗", "error": "!", "not measured": "○"}[result.status],
        "kind": result.status.replace(" ", "-"),
        "figures": [
            {"data": _inline(path), "alt": f"{result.id}: {result.measured or result.statement}"}
            for path in figures
            if path.is_file()
        ],
    }


def render(results: Sequence[Result], folder: Path) -> str:
    """The page's HTML.

    Args:
        results: claims in the order in which they are shown, grouped by package.
        folder: where their figures are.
    """
    from jinja2 import Environment, PackageLoader

    shelf = papers()
    groups: dict[str, list[Result]] = {}
    for result in results:
        groups.setdefault(result.package, []).append(result)
    sections = [
        {
            "slug": slug,
            "paper": shelf.get(slug),
            "version": claims[0].version,
            "cards": [_card(claim, Path(folder)) for claim in claims],
            "held": sum(claim.status == "held" for claim in claims),
            "measured": sum(claim.holds is not None for claim in claims),
        }
        for slug, claims in groups.items()
    ]
    environment = Environment(loader=PackageLoader("papershelf"), autoescape=True, trim_blocks=True, lstrip_blocks=True)
    return environment.get_template("report.html").render(sections=sections, machine=machine())


def write_report(folder: Path) -> Path:
    """Write ``report.html`` beside the ``claims.json`` of a results folder."""
    return atomic_write(Path(folder) / FILE, render(load_results(folder), folder))
