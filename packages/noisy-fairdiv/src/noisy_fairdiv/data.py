"""Readers of rating tables and preference files, and the film ratings that ``run`` uses."""

from __future__ import annotations

import csv
import json
import re
import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from noisy_fairdiv.oracles import TableOracle
from noisy_fairdiv.questions import Answers, Sigma, ask, known_sigma
from papershelf import InputError, require
from papershelf.files import registry_asset

FILMS_PACKAGE = "bokeh-sampledata==2026.1"
FILMS_MEMBER = "bokeh_sampledata/_data/movies.db"
FILMS_SHA256 = "1d9c6a02e488d0354b2309e16130c58820a91ac2ce417e814c5964f9579a65ac"
FILMS_QUERY = """
    SELECT o.Title, t.Fresh, t.Reviews, o.Metacritic FROM omdb o JOIN tomatoes t USING (ID)
    WHERE t.Fresh IS NOT NULL AND t.Rotten IS NOT NULL AND o.Metacritic IS NOT NULL AND t.Rating IS NOT NULL
      AND t.Reviews >= 20
"""
PREFLIB = (".soc", ".soi", ".toc", ".toi", ".cat", ".wmd")
POINTS = 1000


class DataError(InputError):
    """A file that does not say what it should."""


@dataclass(frozen=True)
class Table:
    """Recorded answers, one a row; several rows of one cell are repeated questions.

    Attributes:
        agents: labels.
        items: labels.
        agent: agent of each row, int (rows,).
        item: good of each row, int (rows,).
        value: the answers, (rows,).
    """

    agents: tuple[str, ...]
    items: tuple[str, ...]
    agent: np.ndarray
    item: np.ndarray
    value: np.ndarray

    @cached_property
    def answers(self) -> Answers:
        """Sums, sums of squares and counts, (n, m)."""
        shape = (len(self.agents), len(self.items))
        found = Answers.none(*shape)
        for target, weight in ((found.sums, self.value), (found.squares, self.value**2), (found.counts, 1)):
            np.add.at(target, (self.agent, self.item), weight)
        return found

    @property
    def values(self) -> np.ndarray:
        """Mean answers, (n, m).

        Raises:
            DataError: if a cell has none.
        """
        empty = np.argwhere(self.answers.counts == 0)
        if empty.size:
            agent, item = empty[0]
            raise DataError(
                f"{len(empty)} cells have no value, the first is {self.agents[agent]!r} for {self.items[item]!r}"
            )
        return self.answers.means

    def oracle(self) -> TableOracle:
        """An oracle that gives each recorded answer once."""
        return TableOracle(self.agent, self.item, self.value, len(self.agents), len(self.items))

    def folds(self, sigma: Sigma, rng: np.random.Generator) -> tuple[Answers, Answers, Sigma]:
        """Two independent halves of the answers, and the sigma to use with them.

        The first half of each cell's answers, and the rest. Where a cell has only one, and sigma is a number, every
        mean v becomes v + x and v - x with x of the noise's law instead: independent for normal noise, each of twice
        the variance.

        Raises:
            ValueError: if sigma is to be estimated and some cell has fewer than four answers.
        """
        counts = self.answers.counts
        if sigma == "estimate" and not self.can_split_for_sigma:
            raise ValueError("a certificate with an estimated sigma needs four answers in every cell; give sigma")
        if (counts >= 2).all():
            source = self.oracle()
            return ask(source, counts // 2), ask(source, counts - counts // 2), sigma
        deviation = known_sigma(sigma, self.answers)
        noise = deviation[:, None] * np.sqrt(counts) * rng.standard_normal(counts.shape)
        first, second = (
            Answers(self.answers.sums + sign * noise, self.answers.squares, counts) for sign in (1.0, -1.0)
        )
        return first, second, float(sigma) * 2**0.5

    @property
    def can_split_for_sigma(self) -> bool:
        """Whether both halves of the answers have an estimate of sigma."""
        return bool((self.answers.counts >= 4).all())

    @staticmethod
    def of_values(values: Any, agents: Sequence[str] | None = None, items: Sequence[str] | None = None) -> Table:
        """A table of one answer a cell, from an array (n, m) or a pandas frame with agents as rows."""
        if agents is None and items is None and hasattr(values, "columns"):
            agents, items = [str(x) for x in values.index], [str(x) for x in values.columns]
        array = np.asarray(values, dtype=float)
        if array.ndim != 2:
            raise DataError(f"expected values of shape (agents, goods), got {array.shape}")
        n, m = array.shape
        names = [f"agent {i}" for i in range(n)] if agents is None else list(agents)
        goods = [str(i) for i in range(m)] if items is None else list(items)
        for what, labels, size in (("agents", names, n), ("goods", goods, m)):
            if len(labels) != size:
                raise DataError(f"expected {size} labels of {what}, got {len(labels)}")
            _refuse_duplicates(labels, what)
        agent, item = np.divmod(np.arange(n * m), m)
        return _checked(Table(tuple(names), tuple(goods), agent, item, array.reshape(-1)))


def _refuse_duplicates(labels: Sequence[str], what: str) -> None:
    seen: dict[str, int] = {}
    for i, label in enumerate(labels):
        if label in seen:
            raise DataError(f"{what}: label {label!r} stands twice, as number {seen[label] + 1} and {i + 1}")
        seen[label] = i


def _checked(table: Table, allow_chores: bool = False) -> Table:
    if len(table.agents) < 2 or not table.items:
        raise DataError(f"expected at least 2 agents and 1 good, got {len(table.agents)} and {len(table.items)}")
    bad = np.flatnonzero(~np.isfinite(table.value))
    if bad.size:
        row = int(bad[0])
        name, good = table.agents[table.agent[row]], table.items[table.item[row]]
        raise DataError(f"the value of {name!r} for {good!r} is {table.value[row]}, expected a finite number")
    low = table.answers.means.min()
    if low < 0 and not allow_chores and not _explained_by_noise(table):
        agent, item = np.argwhere(table.answers.means == low)[0]
        raise DataError(
            f"{table.agents[agent]!r} values {table.items[item]!r} at {low:.4g}: negative values are chores, "
            "expected goods (allow them with --allow-chores)"
        )
    return table


def _explained_by_noise(table: Table) -> bool:
    """Whether negative means may come from noise: some cell was asked more than once."""
    return bool((table.answers.counts > 1).any())


# --- files -------------------------------------------------------------------------------------------------------


def read_table(path: Path | str, allow_chores: bool = False) -> Table:
    """Read values or repeated answers; the format follows from the file's suffix.

    - ``.csv``, ``.tsv``: long with the columns agent, item, value (repeated rows are repeated questions); or wide with
      one row an agent (first column: names) or, where the first header is ``item`` or ``good``, one row a good. Rows of
      agents that all sum to 1000 (Spliddit's points) are divided by 1000.
    - ``.json``: ``{"agents": {"Ann": {"car": 3, "boat": [1, 2]}, ...}}``; a list is repeated answers.
    - PrefLib's ``.soc .soi .toc .toi`` (ranks to Borda values in (0, 1]), ``.cat`` (categories) and ``.wmd`` (weights).

    Raises:
        DataError: saying what is wrong and where.
    """
    path = Path(path)
    if not path.is_file():
        raise DataError(f"no file {str(path)!r}")
    suffix = path.suffix.lower()
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError(f"{path} is not UTF-8 text: {error}") from None
    if not text.strip():
        raise DataError(f"{path} is empty")
    if suffix in (".csv", ".tsv", ".txt"):
        return _checked(_read_csv(text, path), allow_chores)
    if suffix == ".json":
        return _checked(_read_json(text, path), allow_chores)
    if suffix in PREFLIB:
        return _checked(_read_preflib(text, path, suffix), allow_chores)
    raise DataError(f"cannot read {path.name}: expected .csv, .tsv, .json or PrefLib's {' '.join(PREFLIB)}")


def _number(cell: str, path: Path, line: int) -> float:
    try:
        return float(cell)
    except ValueError:
        raise DataError(f"{path}, line {line}: expected a number, got {cell!r}") from None


def _read_csv(text: str, path: Path) -> Table:
    delimiter = "\t" if path.suffix.lower() == ".tsv" or "\t" in text.splitlines()[0] else ","
    rows = [(i, row) for i, row in enumerate(csv.reader(text.splitlines(), delimiter=delimiter), 1) if any(row)]
    line, header = rows[0]
    names = [cell.strip().lower() for cell in header]
    for i, row in rows[1:]:
        if len(row) != len(header):
            raise DataError(f"{path}, line {i}: expected {len(header)} columns as in line {line}, got {len(row)}")
    if {"agent", "value"} <= set(names) and {"item", "good"} & set(names):
        columns = [names.index("agent"), names.index("item" if "item" in names else "good"), names.index("value")]
        a, g, v = columns
        return _from_triples(((row[a].strip(), row[g].strip(), _number(row[v], path, i)) for i, row in rows[1:]), path)
    if len(header) < 2 or len(rows) < 2:
        raise DataError(f"{path}: expected columns agent, item, value, or a table with names in row and column 1")
    labels = [row[0].strip() for _, row in rows[1:]]
    body = np.array([[_number(cell, path, i) if cell.strip() else np.nan for cell in row[1:]] for i, row in rows[1:]])
    by_good = names[0] in ("item", "items", "good", "goods")
    _refuse_lines(labels, [i for i, _ in rows[1:]], path)
    columns_of = [cell.strip() for cell in header[1:]]
    _refuse_duplicates(columns_of, f"{path}, line {line}")
    agents, items, values = (columns_of, labels, body.T) if by_good else (labels, columns_of, body)
    if np.allclose(np.nansum(values, axis=1), POINTS, rtol=0, atol=1e-6):
        values = values / POINTS
    agent, item = np.nonzero(~np.isnan(values))
    return Table(tuple(agents), tuple(items), agent, item, values[agent, item])


def _refuse_lines(labels: Sequence[str], lines: Sequence[int], path: Path) -> None:
    seen: dict[str, int] = {}
    for label, line in zip(labels, lines, strict=True):
        if label in seen:
            raise DataError(f"{path}: label {label!r} stands in line {seen[label]} and in line {line}")
        seen[label] = line


def _from_triples(triples: Iterable[tuple[Any, Any, float]], path: Path) -> Table:
    agents: dict[str, int] = {}
    items: dict[str, int] = {}
    rows = [(agents.setdefault(str(a), len(agents)), items.setdefault(str(g), len(items)), v) for a, g, v in triples]
    if not rows:
        raise DataError(f"{path} has no rows")
    agent, item, value = zip(*rows, strict=True)
    return Table(tuple(agents), tuple(items), np.array(agent), np.array(item), np.array(value, dtype=float))


def _read_json(text: str, path: Path) -> Table:
    try:
        content = json.loads(text)
    except json.JSONDecodeError as error:
        raise DataError(f"{path} is not JSON: {error}") from None
    people = content.get("agents") if isinstance(content, dict) else None
    if not isinstance(people, dict) or not all(isinstance(goods, dict) for goods in people.values()):
        raise DataError(f'{path}: expected {{"agents": {{name: {{good: value, ...}}, ...}}}}')
    triples = []
    for name, goods in people.items():
        for good, value in goods.items():
            for answer in value if isinstance(value, list) else [value]:
                if isinstance(answer, bool) or not isinstance(answer, int | float):
                    raise DataError(f"{path}: the value of {name!r} for {good!r} is {answer!r}, expected a number")
                triples.append((name, good, float(answer)))
    return _from_triples(triples, path)


def _read_preflib(text: str, path: Path, suffix: str) -> Table:
    lines = [line.strip() for line in text.splitlines()]
    names: dict[int, str] = {}
    for line in lines:
        found = re.match(r"# ALTERNATIVE NAME (\d+):\s*(.*)", line)
        if found:
            names[int(found[1])] = found[2]
    body = [(i, line) for i, line in enumerate(lines, 1) if line and not line.startswith("#")]
    if suffix == ".wmd":
        triples = [_weighted_arc(line, path, i) for i, line in body]
        return _from_triples(((names.get(a, str(a)), names.get(g, str(g)), v) for a, g, v in triples), path)
    if not names:
        raise DataError(f"{path}: no '# ALTERNATIVE NAME' lines, expected a PrefLib file")
    rows = []
    for i, line in body:
        count, colon, order = line.partition(":")
        if not colon or not count.strip().isdigit():
            raise DataError(f"{path}, line {i}: expected 'count: order', got {line!r}")
        values = _order_values(_groups(order, path, i), names, suffix == ".cat", path, i)
        rows += [values] * int(count)
    return Table.of_values(np.array(rows), [f"voter {i + 1}" for i in range(len(rows))], _unique_names(names))


def _unique_names(names: Mapping[int, str]) -> list[str]:
    labels = list(names.values())
    return labels if len(set(labels)) == len(labels) else [f"{i} {label}" for i, label in names.items()]


def _weighted_arc(line: str, path: Path, number: int) -> tuple[int, int, float]:
    cells = [cell.strip() for cell in line.split(",")]
    if len(cells) != 3 or not cells[0].isdigit() or not cells[1].isdigit():
        raise DataError(f"{path}, line {number}: expected 'from, to, weight', got {line!r}")
    return int(cells[0]), int(cells[1]), _number(cells[2], path, number)


def _groups(order: str, path: Path, number: int) -> list[list[int]]:
    """'1,{2,3},4' as [[1], [2, 3], [4]]."""
    groups = []
    for braced, single in re.findall(r"\{([^}]*)\}|([^,{}]+)", order):
        words = [word.strip() for word in (braced or single).split(",") if word.strip()]
        if not all(word.isdigit() for word in words):
            raise DataError(f"{path}, line {number}: expected the numbers of alternatives, got {order.strip()!r}")
        if words or not single:
            groups.append([int(word) for word in words])
    return groups


def _order_values(
    groups: list[list[int]], names: Mapping[int, str], categories: bool, path: Path, number: int
) -> np.ndarray:
    """Borda values (m - rank) / m, tied goods sharing theirs, unranked ones 0; for categories (C - c) / C."""
    column = {alternative: i for i, alternative in enumerate(names)}
    values, m, rank = np.zeros(len(names)), len(names), 0
    for c, group in enumerate(groups):
        for alternative in group:
            if alternative not in column:
                raise DataError(f"{path}, line {number}: alternative {alternative} has no name")
            values[column[alternative]] = (
                (len(groups) - c) / len(groups) if categories else 1 - (rank + (len(group) - 1) / 2) / m
            )
        rank += len(group)
    return values


# --- fairpyx -----------------------------------------------------------------------------------------------------


def to_fairpyx(U: np.ndarray, agents: Sequence[str] | None = None, items: Sequence[str] | None = None) -> Any:
    """A ``fairpyx.Instance`` with these values, (n, m)."""
    fairpyx = require("fairpyx", "papershelf-noisy-fairdiv[fairpyx]")
    table = Table.of_values(U, agents, items)
    rows = {name: dict(zip(table.items, row.tolist(), strict=True)) for name, row in zip(table.agents, U, strict=True)}
    return fairpyx.Instance(valuations=rows)


def from_fairpyx(instance: Any) -> Table:
    """Values of a ``fairpyx.Instance``."""
    agents, items = list(instance.agents), list(instance.items)
    values = np.array([[instance.agent_item_value(a, i) for i in items] for a in agents], dtype=float)
    return Table.of_values(values, [str(a) for a in agents], [str(i) for i in items])


# --- film ratings ------------------------------------------------------------------------------------------------


def films(limit: int | None = None) -> tuple[np.ndarray, tuple[str, ...]]:
    """Two critics' views of films: share of fresh reviews (agent a) and Metacritic's score / 100 (agent b).

    From ``movies.db`` of bokeh-sampledata (BSD-3), films with at least 20 reviews: 6,054.

    Args:
        limit: a random part of this size (always the same).

    Returns:
        Values (2, m) and titles.
    """
    path = registry_asset(FILMS_PACKAGE, FILMS_MEMBER, FILMS_SHA256)
    with closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)) as database:
        rows = database.execute(FILMS_QUERY).fetchall()
    chosen = np.arange(len(rows))
    if limit is not None:
        if not 1 <= limit <= len(rows):
            raise DataError(f"expected between 1 and {len(rows)} films, got {limit}")
        chosen = np.random.default_rng(0).permutation(len(rows))[:limit]
    values = np.array([[fresh / reviews, score / 100] for _, fresh, reviews, score in rows], dtype=float).T
    return values[:, chosen], tuple(str(rows[i][0]) for i in chosen)
