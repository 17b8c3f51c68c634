"""Side-by-side timing: the same work by several functions, interleaved, as ratios with spread."""

from __future__ import annotations

import gc
import json
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from papershelf.files import atomic_write
from papershelf.reproduce import machine, plain


@dataclass(frozen=True)
class Timing:
    """Times of one function.

    Attributes:
        median: seconds.
        low: lower quartile of the seconds.
        high: upper quartile of the seconds.
        ratio: median over runs of (reference's seconds / this one's seconds) in the same round: above 1 is faster.
        ratio_low: lower quartile of that ratio.
        ratio_high: upper quartile of that ratio.
        peak_mb: growth of the process's resident memory during one untimed call, in MB.
    """

    name: str
    median: float
    low: float
    high: float
    ratio: float
    ratio_low: float
    ratio_high: float
    peak_mb: float


class _PeakMemory:
    """Samples the resident set size in a thread while the block runs."""

    def __enter__(self) -> _PeakMemory:
        gc.collect()
        self._process, self._stop = psutil.Process(), threading.Event()
        self._start = self._peak = self._process.memory_info().rss
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()
        return self

    def _watch(self) -> None:
        while not self._stop.wait(0.002):
            self._peak = max(self._peak, self._process.memory_info().rss)

    def __exit__(self, *_: object) -> None:
        self._peak = max(self._peak, self._process.memory_info().rss)
        self._stop.set()
        self._thread.join()

    @property
    def megabytes(self) -> float:
        return (self._peak - self._start) / 1e6


def compare(functions: Mapping[str, Callable[[], Any]], repeat: int = 7) -> list[Timing]:
    """Time functions that do the same work, in interleaved rounds (A B A B ...).

    Each is called twice untimed first: once so that compilation and caches do not count, once to watch its memory.

    Args:
        functions: name -> function of no arguments. The first is the reference of all ratios.
        repeat: timed rounds.
    """
    if repeat < 1 or not functions:
        raise ValueError(f"need at least one function and one round, got {len(functions)} and {repeat}")
    peaks: dict[str, float] = {}
    for name, function in functions.items():
        function()
        with _PeakMemory() as memory:
            function()
        peaks[name] = memory.megabytes
    seconds: dict[str, list[float]] = {name: [] for name in functions}
    for _ in range(repeat):
        for name, function in functions.items():
            started = time.perf_counter()
            function()
            seconds[name].append(time.perf_counter() - started)
    reference = np.array(seconds[next(iter(functions))])
    return [_timing(name, np.array(taken), reference, peaks[name]) for name, taken in seconds.items()]


def _timing(name: str, taken: np.ndarray, reference: np.ndarray, peak: float) -> Timing:
    low, median, high = (float(q) for q in np.quantile(taken, [0.25, 0.5, 0.75]))
    ratio_low, ratio, ratio_high = (float(q) for q in np.quantile(reference / taken, [0.25, 0.5, 0.75]))
    return Timing(name, median, low, high, ratio, ratio_low, ratio_high, peak)


def markdown_table(timings: Sequence[Timing]) -> str:
    """The timings as a Markdown table."""
    reference = timings[0].name
    rows = [
        f"| {t.name} | {_duration(t.median)} | {t.ratio:.3g}x [{t.ratio_low:.3g}, {t.ratio_high:.3g}] "
        f"| {t.peak_mb:.0f} |"
        for t in timings
    ]
    head = f"| | median time | speed against {reference} [quartiles] | peak memory, MB |"
    return "\n".join([head, "| --- | --- | --- | --- |", *rows])


def _duration(seconds: float) -> str:
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds / 1e-9:.3g} ns"


def write_results(path: Path, tables: Mapping[str, str], values: Mapping[str, Any] | None = None) -> Path:
    """Write a benchmark's tables (Markdown by title) with machine and date, for ``tools/bench.py``.

    Args:
        path: a JSON file.
        tables: title -> Markdown table.
        values: numbers for machines.
    """
    record = {
        "date": datetime.now(UTC).date().isoformat(),
        "machine": machine(),
        "tables": dict(tables),
        "values": plain(values or {}),
    }
    return atomic_write(path, json.dumps(record, indent=1, ensure_ascii=False) + "\n")


def as_values(timings: Sequence[Timing]) -> list[dict[str, Any]]:
    """The timings as plain dictionaries."""
    return [asdict(timing) for timing in timings]
