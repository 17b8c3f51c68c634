"""Graphs and cascade logs: embedded real graphs, readers of the field's public formats, edge probabilities."""

from __future__ import annotations

import csv
import gzip
import math
import os
import struct
import warnings
from collections.abc import Hashable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import networkx as nx
import numpy as np

from oim.ic import ICGraph
from papershelf import InputError
from papershelf.files import debian_assets

# networkx's own data (BSD): Zachary 1977, Knuth 1993, Davis et al. 1941, Padgett and Ansell 1993.
BUILT_IN = {
    "karate": nx.karate_club_graph,
    "lesmis": nx.les_miserables_graph,
    "davis": nx.davis_southern_women_graph,
    "florentine": nx.florentine_families_graph,
}

# Files of Debian's package python3-graph-tool (LGPL), with the SHA-256 of each. Cite the original authors listed there.
DEBIAN_PACKAGE = "python3-graph-tool"
DEBIAN_FOLDER = "usr/lib/python3/dist-packages/graph_tool/collection"
COLLECTION = {
    "adjnoun": "0bced36af281c3ef906b43b45003720765ec86c77562de348409d0f543a4b27a",
    "as-22july06": "8a19456b07c0e714c3dafdfb2677ae032030667590bd2674521bde9046ed6868",
    "astro-ph": "163b9a4a7763dab7e81b6ab71af900432a4b731408a763d3157657958ad020b1",
    "celegansneural": "0d19af87d82771b3bb02209b63b7edeab63a282769b2591a46aad9f2c9525d71",
    "cond-mat": "7624bd9dc297a740b4ced4520f280a894785a6427d2fcd83329c1a3b0c86622b",
    "cond-mat-2003": "39d72ef3ab1e51450232c362a32b19e5a50e183871c034413a05d8dfd0ca54a9",
    "cond-mat-2005": "1f25c1e57a818baa4bf2f84c9b51f20daac080fa13fa6c47ce824d4889134b08",
    "dolphins": "509d361ad162140c19059b1451a1bb7842c63971ae8c95741ec77f60842972d4",
    "email-Enron": "f7d5902ae811aedacbda9eaedbd6791bd11145a3e56c35ad0ed31daa03fade2f",
    "hep-th": "d0003c1e840cba5398c50a9c8ed3857dec74eb1c1e5427ffa85ece329e13f030",
    "netscience": "3adf158a1b7cd626a59e4790c35fbc165bb2fc5ab2eb7c969c6a88b45f5ff279",
    "pgp-strong-2009": "500baed7c6e3071c197c917f02d164ec9fe1ce5616870c34fc9173cc2da56f7b",
    "polblogs": "3e6a876e6506a1b105700186d7ac2b909fbb7b36654526f1c7b64f511b055aa6",
    "power": "2c9e1a2c22059f5a878ab0d43b4ae6a29393e37059a5691b57fa4181768c93a9",
}


class DataError(InputError):
    """A file that cannot be read as what it claims to be; the message starts with file and line."""


class Arcs(NamedTuple):
    """What a reader returns: arcs between labelled nodes, and a third column where the file has one."""

    labels: list[Hashable]
    src: np.ndarray
    dst: np.ndarray
    value: np.ndarray | None
    directed: bool


def _open_text(path: Path) -> Any:
    return gzip.open(path, "rt", encoding="utf-8-sig") if path.suffix == ".gz" else path.open(encoding="utf-8-sig")


# --- readers -----------------------------------------------------------------------------------------------------


def read_gt(path: Path) -> Arcs:
    """graph-tool's binary format (``.gt`` or ``.gt.gz``); property maps are ignored."""
    path = Path(path)
    try:
        raw = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
        if raw[:6] != b"\xe2\x9b\xbe\x20gt":
            raise DataError(f"{path}: not a graph-tool file (wrong magic bytes)")
        order = "<" if raw[7] == 0 else ">"
        (comment,) = struct.unpack_from(f"{order}Q", raw, 8)
        at = 16 + comment
        directed = bool(raw[at])
        (n,) = struct.unpack_from(f"{order}Q", raw, at + 1)
        at += 9
        width = next(w for w, top in ((1, 2**8), (2, 2**16), (4, 2**32), (8, 2**64)) if n < top)
        targets: list[np.ndarray] = []
        for _ in range(n):
            (count,) = struct.unpack_from(f"{order}Q", raw, at)
            targets.append(np.frombuffer(raw, f"{order}u{width}", count, at + 8))
            at += 8 + count * width
    except (struct.error, ValueError, EOFError, OSError, IndexError) as error:
        if isinstance(error, (DataError, FileNotFoundError)):
            raise
        raise DataError(f"{path}: damaged graph-tool file: {error}") from error
    src = np.repeat(np.arange(n), [t.size for t in targets])
    dst = np.concatenate([*targets, np.empty(0, np.int64)]).astype(np.int64)
    return Arcs(list(range(n)), src, dst, None, directed)


def _words(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Line number and fields of every line that is not blank or a comment."""
    with _open_text(path) as file:
        for number, line in enumerate(file, 1):
            text = line.strip()
            if text and text[0] not in "#%":
                yield number, text.replace(",", " ").split()


def read_edge_list(path: Path, directed: bool = True) -> Arcs:
    """A text list of arcs: SNAP, Konect ``out.*``, NetHEPT (first line ``n m``), plain or gzipped.

    Fields are separated by blanks, tabs or commas; ``#`` and ``%`` start comments. Node ids are integers or any words.
    A third column is a number; Konect's further columns are ignored, and its header says whether it is directed.

    Raises:
        DataError: for a ragged line or a third column that is no number; the message names file and line.
    """
    path = Path(path)
    konect = path.name.startswith("out.")
    rows = list(_words(path))
    if konect:
        with _open_text(path) as file:
            directed = not file.readline().lstrip("% ").startswith("sym")
    if len(rows) > 1 and len(rows[0][1]) == 2 and all(word.isdigit() for word in rows[0][1]):
        nodes, arcs = (int(word) for word in rows[0][1])
        ids = [int(word) for _, words in rows[1:] for word in words[:2] if word.isdigit()]
        if arcs == len(rows) - 1 and ids and max(ids) <= nodes:
            rows = rows[1:]
    width = len(rows[0][1]) if rows else 2
    if konect:
        width = min(width, 3)
    heads: list[str] = []
    tails: list[str] = []
    values: list[float] = []
    for number, words in rows:
        if len(words) < width or (len(words) > width and not konect) or width not in (2, 3):
            raise DataError(f"{path}:{number}: expected {min(max(width, 2), 3)} fields, got {len(words)}")
        heads.append(words[0])
        tails.append(words[1])
        if width == 3:
            try:
                values.append(float(words[2]))
            except ValueError:
                raise DataError(f"{path}:{number}: the third field must be a number, got {words[2]!r}") from None
    names = list(dict.fromkeys([*heads, *tails]))
    try:
        labels: list[Any] = sorted({int(name) for name in names})
        position = {label: i for i, label in enumerate(labels)}
        index = {name: position[int(name)] for name in names}
    except ValueError:
        labels = list(names)
        index = {name: i for i, name in enumerate(names)}
    src = np.array([index[name] for name in heads], np.int64)
    dst = np.array([index[name] for name in tails], np.int64)
    return Arcs(labels, src, dst, np.array(values) if width == 3 else None, directed)


def read_matrix_market(path: Path) -> Arcs:
    """A Matrix Market file (``.mtx`` or ``.mtx.gz``): entry (i, j) is the arc i -> j; symmetric ones give both arcs."""
    from scipy.io import mminfo, mmread

    try:
        pattern = mminfo(path)[4] == "pattern"
        matrix = mmread(path).tocoo()
    except (ValueError, OSError, AttributeError) as error:
        if isinstance(error, FileNotFoundError):
            raise
        raise DataError(f"{path}: not a sparse Matrix Market file: {error}") from error
    if matrix.shape[0] != matrix.shape[1]:
        raise DataError(f"{path}: an adjacency matrix is square, got shape {matrix.shape}")
    value = None if pattern else np.asarray(matrix.data, dtype=float)
    return Arcs(list(range(matrix.shape[0])), matrix.row.astype(int), matrix.col.astype(int), value, True)


def _from_networkx(graph: nx.Graph) -> Arcs:
    labels = list(graph.nodes)
    index = {label: i for i, label in enumerate(labels)}
    pairs = np.array([(index[u], index[v]) for u, v in graph.edges()], np.int64).reshape(-1, 2)
    values = [data.get("p") for _, _, data in graph.edges(data=True)]
    value = np.array(values, dtype=float) if values and None not in values else None
    return Arcs(labels, pairs[:, 0], pairs[:, 1], value, graph.is_directed())


def _read_networkx(path: Path) -> Arcs:
    try:
        graph = nx.read_gml(path) if ".gml" in path.suffixes else nx.read_graphml(path)
    except (nx.NetworkXError, SyntaxError, ValueError) as error:
        raise DataError(f"{path}: {error}") from error
    return _from_networkx(graph)


def collection_file(name: str, data_dir: Path | None = None) -> Path:
    """Where a graph of the Debian collection lies: ``data_dir``, ``$OIM_DATA``, the installed package, or a download.

    Raises:
        InputError: if it is none of that, and Debian's tools cannot fetch it.
    """
    file = f"{name}.gt.gz"
    folders = [data_dir, os.environ.get("OIM_DATA"), Path("/", DEBIAN_FOLDER)]
    for folder in folders:
        if folder and (Path(folder) / file).is_file():
            return Path(folder) / file
    if data_dir is not None:
        raise InputError(f"no {file} in {data_dir}")
    member = f"{DEBIAN_FOLDER}/{file}"
    return debian_assets(DEBIAN_PACKAGE, {member: COLLECTION[name]})[member]


def read_arcs(source: str | Path, data_dir: Path | None = None, directed: bool = True) -> Arcs:
    """Arcs of a named graph or of a file in any of the known formats (told apart by the file's name)."""
    name = str(source)
    if name in BUILT_IN:
        return _from_networkx(BUILT_IN[name]())
    if name in COLLECTION:
        return read_gt(collection_file(name, data_dir))
    path = Path(source)
    if not path.is_file():
        known = ", ".join([*BUILT_IN, *COLLECTION])
        raise InputError(f"no graph or file {name!r}; named graphs: {known}")
    suffixes = [s for s in path.suffixes if s != ".gz"]
    if ".gt" in suffixes:
        return read_gt(path)
    if ".mtx" in suffixes:
        return read_matrix_market(path)
    if ".gml" in suffixes or ".graphml" in suffixes:
        return _read_networkx(path)
    return read_edge_list(path, directed)


# --- probabilities -----------------------------------------------------------------------------------------------


def weighted_cascade(g: ICGraph) -> ICGraph:
    """p = 1 / in-degree of the target."""
    return g.with_p(1.0 / np.maximum(g.in_degree, 1)[g.dst])


def trivalency(g: ICGraph, rng: np.random.Generator) -> ICGraph:
    """p drawn from {0.1, 0.01, 0.001}."""
    return g.with_p(rng.choice([0.1, 0.01, 0.001], size=g.m))


def uniform(g: ICGraph, p: float) -> ICGraph:
    """The same p on every arc."""
    return g.with_p(p)


def random_p(g: ICGraph, low: float, high: float, rng: np.random.Generator) -> ICGraph:
    """p drawn uniformly from [low, high]."""
    return g.with_p(rng.uniform(low, high, size=g.m))


def with_probabilities(g: ICGraph, prob: str, rng: np.random.Generator) -> ICGraph:
    """Set probabilities by name: ``wc``, ``trivalency``, ``uniform:P``, ``random:LOW:HIGH``, ``column``.

    Raises:
        InputError: for another name or numbers that do not fit it.
    """
    name, *numbers = prob.split(":")
    try:
        match name, [float(number) for number in numbers]:
            case (("wc" | "weighted_cascade"), []):
                return weighted_cascade(g)
            case "trivalency", []:
                return trivalency(g, rng)
            case "uniform", [p]:
                return uniform(g, p)
            case "random", [low, high] if low <= high:
                return random_p(g, low, high, rng)
            case "column", []:
                return g
    except ValueError as error:
        raise InputError(f"probabilities {prob!r}: {error}") from error
    raise InputError(f"expected wc, trivalency, uniform:P, random:LOW:HIGH or column, got {prob!r}")


def load_graph(
    source: str | Path,
    prob: str = "wc",
    rng: np.random.Generator | None = None,
    data_dir: Path | None = None,
    directed: bool = True,
) -> ICGraph:
    """A graph with probabilities.

    Args:
        source: name of an embedded graph (``oim graphs`` lists them) or a file.
        prob: see :func:`with_probabilities`; ``column`` takes the file's third column.
        rng: for the random ones.
        data_dir: folder of the Debian collection's files.
        directed: for text lists that do not say it themselves; an undirected edge becomes two arcs.

    Raises:
        InputError: for an unknown name, an unreadable file, or ``column`` where there is none.
    """
    arcs = read_arcs(source, data_dir, directed)
    src, dst, value = arcs.src, arcs.dst, arcs.value
    if prob == "column" and value is None:
        raise InputError(f"{source} has no third column with probabilities")
    if not arcs.directed:
        src, dst = np.concatenate([src, dst]), np.concatenate([dst, src])
        value = None if value is None else np.concatenate([value, value])
    labels = None if arcs.labels == list(range(len(arcs.labels))) else arcs.labels
    g = ICGraph(len(arcs.labels), src, dst, value if prob == "column" else None, labels)
    if g.m == 0:
        warnings.warn(f"{source} has no arcs", stacklevel=2)
    return with_probabilities(g, prob, np.random.default_rng(0) if rng is None else rng)


# --- cascade logs ------------------------------------------------------------------------------------------------


def _as_label(g: ICGraph, word: str, where: str) -> Hashable:
    label: Hashable = word
    if g.labels is None or isinstance(g.labels[0], int):
        try:
            label = int(word)
        except ValueError:
            raise DataError(f"{where}: unknown node {word!r}; the graph's nodes are integers") from None
    try:
        g.index([label])
    except ValueError as error:
        raise DataError(f"{where}: {error}") from None
    return label


def _netinf(path: Path, lines: list[str]) -> Iterator[tuple[str, list[tuple[str, str]], int]]:
    blank = next(i for i, line in enumerate(lines) if not line.strip())
    names = dict(line.strip().split(",", 1) for line in lines[:blank])
    for number, line in enumerate(lines[blank + 1 :], blank + 2):
        if line.strip():
            cascade, semicolon, rest = line.strip().partition(";")
            words = rest.split(",")
            if not semicolon or len(words) % 2:
                raise DataError(f"{path}:{number}: expected cascade;node,time,node,time, got {line.strip()[:60]!r}")
            pairs = [(names.get(a, a), b) for a, b in zip(words[::2], words[1::2], strict=True)]
            yield cascade, pairs, number


def _cascade_csv(path: Path, lines: list[str]) -> Iterator[tuple[str, list[tuple[str, str]], int]]:
    grouped: dict[str, tuple[list[tuple[str, str]], int]] = {}
    for number, row in enumerate(csv.reader(lines), 1):
        if not row or (number == 1 and row[-1].strip() in ("step", "time")):
            continue
        if len(row) != 3:
            raise DataError(f"{path}:{number}: expected cascade,node,step, got {len(row)} fields")
        grouped.setdefault(row[0], ([], number))[0].append((row[1].strip(), row[2].strip()))
    for cascade, (pairs, number) in grouped.items():
        yield cascade, pairs, number


def read_cascades(path: Path, g: ICGraph, step: float | None = None) -> np.ndarray:
    """Cascade logs: CSV ``cascade,node,step``, or NetInf's format (``id,name`` lines, a blank line, then
    ``cascade;node,time,node,time``).

    Args:
        path: the file, plain or gzipped.
        g: the graph; nodes are its labels.
        step: length of a step for real-valued times; a cascade's first time becomes step 0. Without it times must be
            whole numbers and are steps already.

    Returns:
        int32 (cascades, n), -1 for inactive.

    Raises:
        DataError: naming file and line.
    """
    path = Path(path)
    with _open_text(path) as file:
        lines = file.read().splitlines()
    is_netinf = any(not line.strip() for line in lines[:-1]) and any(";" in line for line in lines)
    rows = []
    for cascade, pairs, number in (_netinf if is_netinf else _cascade_csv)(path, lines):
        where = f"{path}:{number}"
        times: dict[Hashable, float] = {}
        for word, text in pairs:
            try:
                time = float(text)
            except ValueError:
                raise DataError(f"{where}: a time must be a number, got {text!r}") from None
            if not math.isfinite(time):
                raise DataError(f"{where}: a time must be finite, got {text!r}")
            label = _as_label(g, word, where)
            times[label] = min(time, times.get(label, math.inf))
        first = min(times.values(), default=0.0)
        steps = np.full(g.n, -1, np.int32)
        for label, time in times.items():
            value = math.floor((time - first) / step + 1e-9) if step else time
            if value != math.floor(value) or value < 0:
                raise DataError(f"{where}: cascade {cascade!r} has the time {time}; give --step to bin real times")
            steps[g.index([label])[0]] = int(value)
        rows.append(steps)
    if not rows:
        raise DataError(f"{path}: no cascades")
    return np.array(rows)


def write_edges(path: Path, g: ICGraph) -> None:
    """Write arcs as ``source target p``, one a line, readable by :func:`read_edge_list`, atomically."""
    from papershelf.files import atomic_write

    names = g.labels or range(g.n)
    rows = [f"{names[u]}\t{names[v]}\t{p!r}" for u, v, p in zip(g.src, g.dst, g.p.tolist(), strict=True)]
    atomic_write(path, "\n".join(["# source\ttarget\tp", *rows]) + "\n")
