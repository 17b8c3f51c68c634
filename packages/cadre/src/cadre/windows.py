"""Windows of series, from memory or from arrays larger than memory (Dask, Zarr, NetCDF through xarray)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor


class Batch(NamedTuple):
    """Standardised windows (B, T, d), and domain labels (B,) and known latents (B, T, k) where there are any."""

    x: Tensor
    domain: Tensor | None = None
    latents: Tensor | None = None

    def to(self, device: str) -> Batch:
        """The same batch on a device."""
        domain = None if self.domain is None else self.domain.to(device)
        latents = None if self.latents is None else self.latents.to(device)
        return Batch(self.x.to(device), domain, latents)


class WindowSource(Protocol):
    """What training draws from: the batch of a step is a function of seed and step alone, so runs can resume."""

    mean: np.ndarray
    sd: np.ndarray

    @property
    def training_windows(self) -> int: ...

    def batch(self, step: int, seed: int, size: int) -> Batch: ...

    def validation(self) -> Batch: ...


def step_generator(seed: int, step: int, device: str = "cpu") -> torch.Generator:
    """The generator of one training step."""
    mixed = (seed * 0x9E3779B97F4A7C15 + (step + 1) * 0xBF58476D1CE4E5B9) & (2**63 - 1)
    return torch.Generator(device=device).manual_seed(mixed)


@dataclass
class MemoryWindows:
    """Windows that fit into memory; the last share of them is for validation.

    Attributes:
        x: standardised, (N, T, d) windows, or (1, T, d): one long series whose windows are cut on the fly.
        length: of the windows that are cut.
        starts: (M, 2): window's row and first step, in time order.
        held_out: number of the last windows that are only for validation.
        mean: of each series on the training part.
        sd: of each series on the training part.
        domain: labels, (N,) or, for a series, (T,).
        latents: known latents like x, or None.
    """

    x: Tensor
    length: int
    starts: Tensor
    held_out: int
    mean: np.ndarray
    sd: np.ndarray
    domain: Tensor | None = None
    latents: Tensor | None = None
    largest_validation: int = 1024

    @property
    def training_windows(self) -> int:
        """Number of windows to train on."""
        return len(self.starts) - self.held_out

    def _cut(self, chosen: Tensor) -> Batch:
        row, start = self.starts[chosen].T
        if self.x.shape[1] == self.length:
            picked = (self.x[row], None if self.latents is None else self.latents[row])
        else:
            index = start[:, None] + torch.arange(self.length, device=start.device)
            latents = None if self.latents is None else self.latents[row[:, None], index]
            picked = (self.x[row[:, None], index], latents)
        domain = None
        if self.domain is not None:
            domain = self.domain[start + self.length - 1] if len(self.x) == 1 else self.domain[row]
        return Batch(picked[0], domain, picked[1])

    def batch(self, step: int, seed: int, size: int) -> Batch:
        """Random training windows."""
        generator = step_generator(seed, step)
        chosen = torch.randint(self.training_windows, (size,), generator=generator)
        return self._cut(chosen.to(self.starts.device))

    def validation(self) -> Batch:
        """Held-out windows, evenly spread, at most ``largest_validation``."""
        first = len(self.starts) - self.held_out
        count = min(self.held_out, self.largest_validation)
        return self._cut(torch.linspace(first, len(self.starts) - 1, count).long().to(self.starts.device))

    def resampled(self, rng: np.random.Generator) -> MemoryWindows:
        """A block bootstrap of the training windows (blocks of ten windows)."""
        n = len(self.starts) - self.held_out
        block = min(10, n)
        first = rng.integers(0, n - block + 1, size=-(-n // block))
        index = (first[:, None] + np.arange(block)).ravel()[:n]
        starts = torch.cat([self.starts[torch.as_tensor(index)], self.starts[n:]])
        return MemoryWindows(self.x, self.length, starts, self.held_out, self.mean, self.sd, self.domain, self.latents)


def chunked_moments(array: Any, stop: int, rows: int) -> tuple[np.ndarray, np.ndarray]:
    """Mean and standard deviation of the first ``stop`` rows in one pass over chunks (Welford, Chan et al. 1979)."""
    count, mean, square = 0, np.zeros(array.shape[1]), np.zeros(array.shape[1])
    for start in range(0, stop, rows):
        part = read_rows(array, start, min(start + rows, stop)).astype(float)
        part_mean = part.mean(0)
        gap, total = part_mean - mean, count + len(part)
        square += np.square(part - part_mean).sum(0) + np.square(gap) * count * len(part) / total
        mean += gap * len(part) / total
        count = total
    return mean, np.sqrt(square / count)


def read_rows(array: Any, start: int, stop: int) -> np.ndarray:
    """Rows of a numpy, Dask, Zarr or xarray array as numpy."""
    part = array[start:stop]
    part = getattr(part, "values", part)  # asked once: xarray reads the file each time its values are looked at
    return np.asarray(part.compute() if hasattr(part, "compute") else part)


class WindowDataset:
    """Windows of a (T, d) array that need not fit into memory.

    Blocks of contiguous time are read in random order into a buffer of at most ``max_ram`` bytes and shuffled there;
    each window is given once an epoch.

    Args:
        array: anything with ``shape`` and slicing along time: numpy, Dask, Zarr, ``xarray.DataArray``.
        length: steps of a window.
        max_ram: bytes of the buffer.
        held_out: share of the series, at its end, for validation.
        names: of the series.
        coords: latitude, longitude, (d, 2).
    """

    def __init__(
        self,
        array: Any,
        length: int = 3,
        max_ram: int = 2**28,
        held_out: float = 0.1,
        names: tuple[str, ...] = (),
        coords: np.ndarray | None = None,
    ) -> None:
        if len(array.shape) != 2:
            raise ValueError(f"expected an array of shape (time, series), got {tuple(array.shape)}")
        self.array, self.length, self.names, self.coords = array, length, names, coords
        steps, d = array.shape
        # Four copies of a row may exist at once: as read, as float64 in the moments, in the buffer, in a batch.
        self.rows = max(length + 1, int(max_ram // (8 * d * 4 * 4)))
        self.train_stop = steps - max(length, int(held_out * steps))
        if self.train_stop < length:
            raise ValueError(f"expected at least {2 * length} time steps, got {steps}")
        self.block = max(1, self.rows // 4)
        self.mean, self.sd = chunked_moments(array, self.train_stop, self.rows)
        if not np.isfinite(self.mean).all():
            bad = np.flatnonzero(~np.isfinite(self.mean))
            raise ValueError(f"{len(bad)} series hold NaN or inf, the first is series {bad[0]}")
        if (self.sd <= 1e-12 * np.maximum(1.0, np.abs(self.mean))).any():
            raise ValueError(f"constant series: {np.flatnonzero(self.sd == 0)[:10].tolist()}")
        self._position: tuple[int, int, int] | None = None
        self._stream: Iterator[np.ndarray] | None = None

    @property
    def shape(self) -> tuple[int, int]:
        """Time steps and series."""
        return tuple(self.array.shape)

    @property
    def training_windows(self) -> int:
        """Number of windows to train on."""
        return self.train_stop - self.length + 1

    def windows(self, start: int, stop: int) -> np.ndarray:
        """Standardised windows that begin in [start, stop), float32 (n, length, d)."""
        part = read_rows(self.array, start, stop + self.length - 1)
        part = ((part - self.mean) / self.sd).astype(np.float32)
        return np.lib.stride_tricks.sliding_window_view(part, self.length, axis=0).transpose(0, 2, 1)

    def epoch(self, rng: np.random.Generator, size: int) -> Iterator[np.ndarray]:
        """Batches that give each training window once, in block-shuffled order."""
        last = self.train_stop - self.length + 1
        firsts = rng.permutation(np.arange(0, last, self.block))
        for at in range(0, len(firsts), 4):
            parts = [self.windows(int(s), min(int(s) + self.block, last)) for s in firsts[at : at + 4]]
            sizes = np.cumsum([0, *(len(part) for part in parts)])
            order = rng.permutation(sizes[-1])
            for low in range(0, len(order), size):
                chosen = order[low : low + size]
                which = np.searchsorted(sizes, chosen, side="right") - 1
                batch = np.empty((len(chosen), *parts[0].shape[1:]), dtype=np.float32)
                for p, part in enumerate(parts):
                    here = which == p
                    batch[here] = part[chosen[here] - sizes[p]]
                yield batch

    def _batches(self, seed: int, size: int) -> Iterator[np.ndarray]:
        number = 0
        while True:
            yield from self.epoch(np.random.default_rng((seed, number)), size)
            number += 1

    def batch(self, step: int, seed: int, size: int) -> Batch:
        """The batch of a step; asking in order is fast, going back starts the stream again."""
        if (
            self._stream is None
            or self._position is None
            or self._position[:2] != (seed, size)
            or self._position[2] > step
        ):
            self._stream, self._position = self._batches(seed, size), (seed, size, 0)
        for _ in range(step - self._position[2]):
            next(self._stream)
        self._position = (seed, size, step + 1)
        return Batch(torch.from_numpy(next(self._stream)))

    def validation(self) -> Batch:
        """Windows of the held-out end, at most 1,024."""
        last = self.shape[0] - self.length + 1
        stop = min(last, self.train_stop + min(1024, self.rows))
        return Batch(
            torch.from_numpy(np.ascontiguousarray(self.windows(self.train_stop, max(stop, self.train_stop + 1))))
        )
