"""Papers, their claims and their vendorable methods: the data that every package declares in ``claims.py``."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, Literal, Protocol, TypeVar, get_args

from papershelf.errors import InputError
from papershelf.random import Streams

Scale = Literal["tiny", "quick", "long", "full"]
SCALES: tuple[Scale, ...] = get_args(Scale)
GROUP = "papershelf.papers"

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What a claim's measurement found.

    ``holds`` is computed from ``values`` by the claim's criterion; ``figures`` are files inside ``Run.out``.
    """

    holds: bool
    measured: str
    values: Mapping[str, Any] = field(default_factory=dict)
    figures: Sequence[Path] = ()


class Progress(Protocol):
    """Shows how far a measurement is; does nothing where nobody looks."""

    def __call__(self, items: Iterable[T], *, total: int | None = None, label: str = "") -> Iterator[T]: ...


def silent(items: Iterable[T], *, total: int | None = None, label: str = "") -> Iterator[T]:
    """A :class:`Progress` that shows nothing."""
    return iter(items)


@dataclass(frozen=True, kw_only=True)
class Run:
    """What a measurement is given.

    Attributes:
        seed: the seed that the user chose; ``streams`` derives all randomness from it.
        scale: ``tiny`` (tests), ``quick``, ``long`` or ``full``.
        out: an existing folder of this claim's own, for figures and tables.
        options: values of the claim's declared options, defaults filled in.
        progress: wrap a long loop in it to show a bar.
    """

    seed: int = 0
    scale: Scale = "quick"
    out: Path
    options: Mapping[str, Any] = field(default_factory=dict)
    progress: Progress = silent

    @property
    def streams(self) -> Streams:
        """Independent named random streams of this run."""
        return Streams(self.seed)

    def size(self, **by_scale: T) -> T:
        """The value for this run's scale, or that of the nearest smaller scale given.

        >>> from pathlib import Path
        >>> Run(out=Path(), scale="long").size(tiny=10, quick=100)
        100
        """
        usable = [by_scale[s] for s in SCALES[: SCALES.index(self.scale) + 1] if s in by_scale]
        return usable[-1] if usable else next(by_scale[s] for s in SCALES if s in by_scale)


@dataclass(frozen=True, kw_only=True)
class Claim:
    """One statement of a paper and the code that measures it.

    Attributes:
        id: as in the spec's table, for example ``"C1"``.
        paper: where the paper says it and the paper's own numbers; say so when they are not available.
        criterion: in words, when the claim counts as held; fixed before measuring.
        measure: the measurement.
        scale: the smallest scale at which it can be measured.
        needs: what the full-scale run needs that a laptop lacks.
        recipe: the exact command of the full-scale run.
        options: names and defaults of options that ``reproduce`` passes on (``--name value``).
    """

    id: str
    statement: str
    paper: str
    criterion: str
    measure: Callable[[Run], Outcome]
    scale: Literal["quick", "long", "full"] = "quick"
    needs: str = ""
    recipe: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[A-Z]\d+[a-z]?", self.id):
            raise ValueError(f"a claim's id is a capital letter and a number, got {self.id!r}")
        if self.scale == "full" and not self.recipe:
            raise ValueError(f"claim {self.id} is full scale and needs a recipe")


@dataclass(frozen=True, kw_only=True)
class Method:
    """A part of the paper that can be copied into another project.

    Attributes:
        name: what the user types after ``package:``.
        files: module files relative to the package folder, in the order in which they import each other.
        requires: distributions of the registry that the files import.
    """

    name: str
    summary: str
    files: tuple[str, ...]
    requires: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Paper:
    """A paper on the shelf: citation, claims and methods.

    Attributes:
        slug: the name of the package's folder and command, for example ``"ridge-sd"``.
        package: import name, for example ``"ridge_sd"``.
        distribution: name of the installed distribution.
        summary: what the package does for its user, one line.
        note: what a reader must know beside every result, for example that this is a reconstruction.
    """

    slug: str
    package: str
    distribution: str
    title: str
    authors: tuple[str, ...]
    year: int
    venue: str
    summary: str
    arxiv: str = ""
    note: str = ""
    claims: tuple[Claim, ...]
    methods: tuple[Method, ...]

    def __post_init__(self) -> None:
        for kind, names in (("claim", [c.id for c in self.claims]), ("method", [m.name for m in self.methods])):
            if len(set(names)) != len(names):
                raise ValueError(f"{self.slug} names a {kind} twice: {names}")

    def claim(self, claim_id: str) -> Claim:
        """The claim with this id (letter case is ignored)."""
        for claim in self.claims:
            if claim.id.lower() == claim_id.lower():
                return claim
        raise InputError(f"{self.slug} has no claim {claim_id!r}; it has {', '.join(c.id for c in self.claims)}")

    def method(self, name: str) -> Method:
        """The method with this name."""
        for method in self.methods:
            if method.name == name:
                return method
        raise InputError(f"{self.slug} has no method {name!r}; it has {', '.join(m.name for m in self.methods)}")

    def bibtex(self) -> str:
        """A BibTeX entry of the paper."""
        fields = {
            "title": self.title,
            "author": " and ".join(self.authors),
            "booktitle": self.venue,
            "year": str(self.year),
            "note": f"arXiv:{self.arxiv}" if self.arxiv else "",
        }
        lines = [f"  {name} = {{{value}}}," for name, value in fields.items() if value]
        return "\n".join([f"@inproceedings{{{self.slug}{self.year},", *lines, "}"])


def papers() -> dict[str, Paper]:
    """Every installed paper by its slug, in alphabetical order."""
    found = sorted(entry_points(group=GROUP), key=lambda point: point.name)
    return {point.name: point.load() for point in found}


def find_paper(name: str) -> Paper:
    """The installed paper with this slug or import name.

    Raises:
        InputError: if no such paper is installed.
    """
    shelf = papers()
    for slug, paper in shelf.items():
        if name in (slug, paper.package):
            return paper
    raise InputError(f"no paper {name!r} is installed; installed: {', '.join(shelf) or 'none'}")
