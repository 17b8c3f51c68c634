"""Speed beside what users would pick instead, and growth with the number of points."""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.stats import linregress
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from anisonet.baselines import baseline
from anisonet.curves import morton_encode, quantize
from anisonet.ellipsoid import eigh3, knn
from anisonet.model import Config, PointNetwork, network
from anisonet.scan import linear_recurrence, sequential_scan
from papershelf.bench import as_values, compare, markdown_table, write_results


class PeakBytes(TorchDispatchMode):
    """Largest number of bytes that tensors made inside hold at one time (CPU and CUDA alike)."""

    def __init__(self) -> None:
        super().__init__()
        self.now, self.peak, self._known = 0, 0, set[int]()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(out):
            if isinstance(leaf, torch.Tensor):
                self._add(leaf.untyped_storage())
        return out

    def _add(self, storage: torch.UntypedStorage) -> None:
        key, size = storage.data_ptr(), storage.nbytes()
        if key in self._known or size == 0:
            return
        self._known.add(key)
        self.now += size
        self.peak = max(self.peak, self.now)

        def gone() -> None:
            self._known.discard(key)
            self.now -= size

        weakref.finalize(storage, gone)


def seconds(function: Callable[[], Any], repeat: int = 5) -> float:
    """Least time of several runs: the one that nothing disturbed."""
    taken = []
    for _ in range(repeat):
        started = time.perf_counter()
        function()
        taken.append(time.perf_counter() - started)
    return min(taken)


def room(n: int, rng: np.random.Generator) -> torch.Tensor:
    """Points on the floor and walls of a room whose area grows with n, so that the spacing stays the same."""
    side = float(np.sqrt(n) * 0.04)
    u, v = rng.uniform(0, side, (2, n))
    face = rng.integers(3, size=n)
    zero = np.zeros(n)
    xyz = np.where(
        (face == 0)[:, None],
        np.stack([u, v, zero], 1),
        np.where((face == 1)[:, None], np.stack([u, zero, v], 1), np.stack([zero, u, v], 1)),
    )
    return torch.from_numpy(xyz.astype(np.float32))


def exponent(sizes: list[int], values: list[float]) -> float:
    """Slope of log value against log size."""
    return float(linregress(np.log(sizes), np.log(values)).slope)


def growth(sizes: list[int], repeat: int = 3, device: str = "cpu") -> dict[str, Any]:
    """Time and peak memory of the scan and of ``seg_tiny`` (indices included) against the number of points."""
    rng = np.random.default_rng(0)
    model = network("seg_tiny", grid_sizes=(0.08, 0.16), coord_scale=25.0).eval().to(device)
    table: dict[str, Any] = {"n": sizes, "scan": [], "scan bytes": [], "model": [], "model bytes": []}
    for n in sizes:
        a, b = torch.rand(n, 64, device=device), torch.randn(n, 64, device=device)
        xyz = room(n, rng)
        table["scan"].append(seconds(lambda a=a, b=b: linear_recurrence(a, b, backend="auto"), 2 * repeat))
        with PeakBytes() as peak:
            kept = linear_recurrence(a, b)
        table["scan bytes"].append(peak.peak)
        del kept

        def forward(xyz: torch.Tensor = xyz) -> torch.Tensor:
            pyramid = model.build_pyramid(xyz).to(device)
            with torch.no_grad():
                return model(pyramid, xyz[:, 2:].to(device))

        table["model"].append(seconds(forward, repeat))
        with PeakBytes() as peak:
            kept = forward()
        table["model bytes"].append(peak.peak)
        del kept
    return table


def _numpy_morton(ijk: np.ndarray, bits: int = 16) -> np.ndarray:
    """Morton codes bit by bit, as serialisation code without magic numbers does it."""
    code = np.zeros(len(ijk), dtype=np.int64)
    for bit in range(bits):
        for axis in range(3):
            code |= ((ijk[:, axis] >> bit) & 1) << (3 * bit + axis)
    return code


def _associative(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """The recurrence by torch's own (generic) associative scan."""
    from torch._higher_order_ops.associative_scan import associative_scan

    def combine(x: Any, y: Any) -> Any:
        return x[0] * y[0], x[1] * y[0] + y[1]

    found: Any = associative_scan(combine, (a, b), dim=0, combine_mode="generic")
    return found[1]


def _matched(name: str, parameters: int) -> PointNetwork:
    """The baseline at ``seg_tiny``'s depth whose width brings it nearest to a number of parameters."""
    best = None
    for width in range(8, 33, 4):
        cfg = Config.of("seg_tiny", dims=(width, 2 * width, 4 * width))
        model = baseline(name, cfg)
        gap = abs(sum(p.numel() for p in model.parameters()) - parameters)
        if best is None or gap < best[0]:
            best = (gap, model)
    assert best is not None
    return best[1].eval()


def peers(out: Path, quick: bool = False) -> dict[str, str]:
    """Every piece against its peer, in one run."""
    rng, repeat = np.random.default_rng(0), 3 if quick else 7
    generator = torch.Generator().manual_seed(0)
    n = 100_000 if quick else 1_000_000
    xyz = torch.rand(n, 3, generator=generator)
    ijk = quantize(xyz)
    array = ijk.numpy()
    tables, values = {}, {}

    def add(title: str, functions: dict[str, Callable[[], Any]], times: int = repeat) -> None:
        for function in functions.values():
            function()
        timings = compare(functions, repeat=times)
        tables[title], values[title] = markdown_table(timings), as_values(timings)

    add(
        f"Morton order of {n:,} points (codes and argsort)",
        {
            "numpy, bit by bit": lambda: np.argsort(_numpy_morton(array), kind="stable"),
            "anisonet": lambda: torch.argsort(morton_encode(ijk), stable=True),
        },
    )
    cloud = room(5_000 if quick else 30_000, rng)
    add(
        f"24 nearest neighbours of {len(cloud):,} points",
        {"torch, all distances": lambda: knn(cloud, 24, backend="torch"), "anisonet, tree": lambda: knn(cloud, 24)},
        3,
    )
    length = 16_384 if quick else 262_144
    a, b = torch.rand(length, 64, generator=generator), torch.randn(length, 64, generator=generator)
    add(
        f"Recurrence over {length:,} x 64 float32",
        {
            "sequential torch": lambda: sequential_scan(a, b),
            "torch.cumsum (same size)": lambda: torch.cumsum(b, 0),
            "torch's associative_scan": lambda: _associative(a, b),
            "anisonet, torch": lambda: linear_recurrence(a, b, backend="torch"),
            "anisonet, numba": lambda: linear_recurrence(a, b, backend="numba"),
        },
        3,
    )
    matrices = torch.randn(60_000, 3, 3, generator=generator, dtype=torch.float64)
    matrices = matrices @ matrices.transpose(1, 2)
    add(
        "Eigenvalues and vectors of 60,000 symmetric 3x3 matrices, float64",
        {"torch.linalg.eigh": lambda: torch.linalg.eigh(matrices), "anisonet, closed form": lambda: eigh3(matrices)},
    )
    model = network("seg_tiny", grid_sizes=(0.08, 0.16), coord_scale=25.0).eval()
    parameters = sum(p.numel() for p in model.parameters())
    ptv3, pointnet2 = _matched("PTv3Like", parameters), _matched("PointNet2", parameters)

    def forward(net: PointNetwork) -> torch.Tensor:
        with torch.no_grad():
            return net(model.build_pyramid(cloud), cloud[:, 2:])  # the same pyramid for all

    def size(net: PointNetwork) -> str:
        return f"{sum(p.numel() for p in net.parameters()) / 1000:.0f}k parameters"

    add(
        f"Forward pass of {len(cloud):,} points, indices included, one thread",
        {
            f"PTv3-like, {size(ptv3)}": lambda: forward(ptv3),
            f"PointNet++, {size(pointnet2)}": lambda: forward(pointnet2),
            f"seg_tiny, {size(model)}": lambda: forward(model),
        },
        3,
    )
    write_results(out / "peers.json", tables, values)
    return tables


def scaling(out: Path, quick: bool = False) -> dict[str, str]:
    """Growth of time and memory with the number of points."""
    sizes = [2_000, 4_000, 8_000] if quick else [4_000, 8_000, 16_000, 32_000, 64_000]
    found = growth(sizes, 1 if quick else 3)
    rows = [
        "| points | scan | its memory | seg_tiny, indices included | its memory |",
        "| --- | --- | --- | --- | --- |",
    ]
    for i, n in enumerate(sizes):
        rows.append(
            f"| {n:,} | {1e3 * found['scan'][i]:.2f} ms | {found['scan bytes'][i] / 1e6:.1f} MB | "
            f"{found['model'][i]:.2f} s | {found['model bytes'][i] / 1e6:.0f} MB |"
        )
    slopes = {key: exponent(sizes, found[key]) for key in ("scan", "scan bytes", "model", "model bytes")}
    rows.append("| exponent | " + " | ".join(f"{value:.2f}" for value in slopes.values()) + " |")
    tables = {"Growth (scan of N x 64 float32)": "\n".join(rows)}
    write_results(out / "scaling.json", tables, {**found, "slopes": slopes})
    return tables
