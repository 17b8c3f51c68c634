"""Benchmarks: the Jacobian sweep, step times, reading a graph beside PCMCI, windows from NetCDF, SHD by generator."""

from __future__ import annotations

import tempfile
import time
import warnings
from pathlib import Path

import numpy as np
import torch
from torch.func import jacfwd, vmap
from torch.nn.functional import leaky_relu

from cadre.baselines import BASELINES, pcmci
from cadre.estimator import CaDReEstimator
from cadre.model import SLOPE, CaDRe, ParallelMLP
from cadre.simulate import confounded_er, er_graph, observe
from cadre.structure import distance_mask
from cadre.windows import WindowDataset
from papershelf import Streams, require
from papershelf.bench import as_values, compare, markdown_table, write_results


def jacobian(out: Path, quick: bool = False) -> dict[str, str]:
    """Jacobian and log-determinant of a batch: one sweep, against forward-mode autodiff a component."""
    torch.set_num_threads(1)
    tables, values = {}, {}
    for d in (4, 8) if quick else (8, 32):
        nets = ParallelMLP(d, d, 32, 2, generator=torch.Generator().manual_seed(0))
        x = torch.randn(64 if quick else 256, d, generator=torch.Generator().manual_seed(1))

        def component(u: torch.Tensor, i: int, nets: ParallelMLP = nets) -> torch.Tensor:
            """Network i alone, as a module of its own would compute it."""
            h = leaky_relu(nets.first[i] @ u + nets.first_bias[i, 0], SLOPE)
            h = leaky_relu(nets.middle[0][i] @ h + nets.middle_bias[0][i, 0], SLOPE)
            return nets.last[i, 0] @ h + nets.last_bias[i, 0] + nets.linear[i, 0] @ u

        def by_component(x: torch.Tensor = x, d: int = d, component=component) -> torch.Tensor:
            rows = [vmap(jacfwd(component), in_dims=(0, None))(x, i) for i in range(d)]
            return torch.linalg.slogdet(torch.eye(d) - torch.stack(rows, dim=1)).logabsdet

        def sweep(x: torch.Tensor = x, d: int = d, nets: ParallelMLP = nets) -> torch.Tensor:
            J = nets.with_jacobian(x)[1][:, :, 0]
            return torch.linalg.slogdet(torch.eye(d) - J).logabsdet

        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch.func speaks of its own deprecations and slow paths
            gap = float((sweep() - by_component()).abs().max())
            timings = compare(
                {"vmap(jacfwd) a component": by_component, "one sweep": sweep},
                repeat=3 if quick else 7,
            )
        tables[f"J_g and log det(I - J_g), d={d}, batch {len(x)} (largest difference {gap:.0e})"] = markdown_table(
            timings
        )
        values[f"d{d}"] = as_values(timings)
    write_results(out / "jacobian.json", tables, values)
    return tables


def steps(out: Path, quick: bool = False) -> dict[str, str]:
    """One training step at 8, 32 and 100 series, and its memory."""
    torch.set_num_threads(1)
    functions, memory = {}, {}
    for d, k in ((4, 1), (8, 2)) if quick else ((8, 2), (32, 3), (100, 5)):
        mask = ~torch.eye(d, dtype=torch.bool)
        if d == 100:
            lat, lon = (axis.ravel() for axis in np.meshgrid(np.linspace(-20, 20, 10), np.linspace(150, 240, 10)))
            mask = torch.as_tensor(distance_mask(np.stack([lat, lon], axis=1), 1800.0))
        model = CaDRe(d, k, mask=mask, generator=torch.Generator().manual_seed(0))
        optimiser = torch.optim.Adam(model.parameters(), lr=1e-3, fused=True)
        x = torch.randn(128, 3, d, generator=torch.Generator().manual_seed(1))

        def step(model: CaDRe = model, optimiser: torch.optim.Optimizer = optimiser, x: torch.Tensor = x) -> None:
            output = model(x)
            loss = output.loss + 0.02 * output.sparsity[0] + output.dag.sum()
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()

        functions[f"d={d}, {k} latents, batch 128 x 3"] = step
    timings = compare(functions, repeat=3 if quick else 7)
    rows = ["| | median time a step | 3,000 steps | peak memory above start, MB |", "| --- | --- | --- | --- |"]
    for t in timings:
        spread = f"{1e3 * t.median:.1f} ms [{1e3 * t.low:.1f}, {1e3 * t.high:.1f}]"
        rows.append(f"| {t.name} | {spread} | {3000 * t.median:.0f} s | {t.peak_mb:.0f} |")
        memory[t.name] = t.peak_mb
    tables = {"Training steps of the flow (plain bound)": "\n".join(rows)}
    write_results(out / "steps.json", tables, {"timings": as_values(timings), "memory": memory})
    return tables


def _sparse_series(d: int, T: int) -> np.ndarray:
    noise = Streams(0).numpy("series").laplace(size=(T, d))
    X = np.zeros((T, d))
    for t in range(1, T):
        X[t] = 0.5 * X[t - 1] + 0.2 * np.roll(X[t - 1], 1) + noise[t]
    return X


def readout(out: Path, quick: bool = False) -> dict[str, str]:
    """Reading the graph of one window, after training, against a run of PCMCI (ParCorr, tau_max 2)."""
    torch.set_num_threads(1)
    d, T, training = (8, 300, 20) if quick else (40, 1000, 300)
    X = _sparse_series(d, T)
    started = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        fit = CaDReEstimator(2, steps=training, n_restarts=1, importance=1, polish=0.0).fit(X)
        seconds = time.perf_counter() - started
        timings = compare({"PCMCI": lambda: pcmci(X), "cadre, one window": lambda: fit.jacobians(X[:3])}, repeat=3)
    title = f"d={d}, T={T}; training before: {training} steps in {seconds:.1f} s"
    title += f", 3,000 would take {3000 / training * seconds:.0f} s"
    tables = {title: markdown_table(timings)}
    write_results(out / "readout.json", tables, {"timings": as_values(timings), "training": seconds})
    return tables


def windows(out: Path, quick: bool = False) -> dict[str, str]:
    """Batches of windows out of a NetCDF file: blocks against one read a window."""
    xarray = require("xarray", "papershelf-cadre[data]")
    T, d, size = (500, 20, 32) if quick else (4000, 200, 64)
    values = Streams(0).numpy("windows").normal(size=(T, d)).astype("float32")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "series.nc"
        xarray.DataArray(values, dims=("time", "cell"), name="x").to_netcdf(path)
        with xarray.open_dataset(path, cache=False) as opened:
            field = opened["x"]
            dataset = WindowDataset(field, 3, max_ram=2**22)
            count = dataset.train_stop - 2

            def blocks() -> int:
                return sum(len(batch) for batch in dataset.epoch(np.random.default_rng(0), size))

            def naive() -> int:
                order = np.random.default_rng(0).permutation(count)[: count // 8]
                for low in range(0, len(order), size):
                    np.stack(
                        [field.isel(time=slice(int(s), int(s) + 3)).load().values for s in order[low : low + size]]
                    )
                return len(order)

            assert blocks() == count
            timings = compare(
                {"isel().load() a window (an eighth of the epoch)": naive, "WindowDataset (whole epoch)": blocks},
                repeat=3,
            )
    ratio = 8 * timings[1].ratio
    tables = {
        f"{count:,} windows of {d} series from NetCDF; per window {ratio:.0f} times faster": markdown_table(timings)
    }
    write_results(out / "windows.json", tables, {"timings": as_values(timings), "per_window": ratio})
    return tables


def recovery(out: Path, quick: bool = False) -> dict[str, str]:
    """SHD on generator 3: edge functions and noises, with one confounding latent."""
    torch.set_num_threads(1)
    names = ("lingam", "pcmci+", "notears", "correlation")
    kinds = (
        (("linear", "laplace"),)
        if quick
        else (("linear", "laplace"), ("tanh", "uniform"), ("mlp", "heteroscedastic"), ("gp", "gauss"))
    )
    rows = [f"| edges, noise | cadre | {' | '.join(names)} |", "| --- " * (len(names) + 2) + "|"]
    values = {}
    for edges, noise in kinds:
        shd: dict[str, list[int]] = {name: [] for name in ("cadre", *names)}
        for seed in (0,) if quick else (0, 1, 2):
            rng = np.random.default_rng(seed)
            z = confounded_er(1, 5, 1, 500 if quick else 5000, seed).z
            B = er_graph(5, rng)
            X = observe(z, B, rng, edges=edges, noise=noise)[0][0]
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                fit = CaDReEstimator(1, steps=50 if quick else 800, n_restarts=1).fit(X)
                shd["cadre"].append(fit.graph_.compare(B).shd)
                for name in names:
                    shd[name].append(BASELINES[name](X).compare(B).shd)
        rows.append(f"| {edges}, {noise} | " + " | ".join(", ".join(map(str, v)) for v in shd.values()) + " |")
        values[f"{edges} {noise}"] = shd
    size = "T = 500, 50 steps, one seed" if quick else "T = 5,000, 800 steps, three seeds"
    tables = {f"SHD of 10, d_x = 5, one latent, {size}": "\n".join(rows)}
    write_results(out / "recovery.json", tables, values)
    return tables


TOPICS = {"jacobian": jacobian, "steps": steps, "readout": readout, "windows": windows, "recovery": recovery}
