"""The ``cadre`` command."""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from cadre import bench as benchmarks
from cadre import plots
from cadre.baselines import BASELINES
from cadre.claims import PAPER
from cadre.data import NAMED, coads_winds, coastline, load
from cadre.estimator import CaDReEstimator, NotConverged
from cadre.graph import GraphResult
from cadre.maps import draw_graph_map
from cadre.simulate import confounded_er, nonparametric_ts, regimes
from cadre.structure import distance_mask, threshold_graph
from cadre.training import EVALUATE_EVERY
from papershelf import InputError
from papershelf import cli as shelf
from papershelf.files import atomic_path, atomic_write
from papershelf.plot import figure, save
from papershelf.reproduce import plain, progress_bar

app = shelf.app(PAPER)

Data = Annotated[
    str,
    typer.Option("--data", help=f"A NetCDF, Zarr, GRIB or CSV file, a simulated .npz, or one of {', '.join(NAMED)}."),
]
Var = Annotated[str | None, typer.Option("--var", help="Variable of the file.")]
Preset = Annotated[
    str | None,
    typer.Option("--preset", help="weatherbench, weatherbench2, cesm2, ersst_v5, era5, jena or causalrivers."),
]
Box = Annotated[str | None, typer.Option("--box", help="SOUTH,NORTH,WEST,EAST in degrees.")]
Coarsen = Annotated[str | None, typer.Option("--coarsen", help="ROWS,COLUMNS of boxes to average over.")]
Season = Annotated[str, typer.Option("--season", help="What to take away: none, monthly, daily or harmonics.")]
Latents = Annotated[int, typer.Option("--latents", min=1, help="Number of hidden drivers.")]
Steps = Annotated[
    int, typer.Option("--steps", min=1, help="Training steps a restart; below 3,000 a graph may be noise.")
]
Restarts = Annotated[
    int, typer.Option("--restarts", min=1, help="Independent starts; the best validation bound is kept.")
]
Mode = Annotated[str, typer.Option("--mode", help="flow (exact likelihood) or vae (the paper's).")]
MaxKm = Annotated[float | None, typer.Option("--max-km", min=0, help="Allow only edges between places this near.")]
Seed = Annotated[int, typer.Option("--seed", min=0, help="Seed of all randomness.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Out = Annotated[Path, typer.Option("--out", help="Folder for results.")]
Device = Annotated[str, typer.Option("--device", help="auto, cpu or cuda.")]
Month = Annotated[bool, typer.Option("--by-month", help="Let the latents' dynamics depend on the month.")]


@dataclass(frozen=True)
class Loaded:
    """Series for the command line: values as the estimator takes them, and what else is known."""

    name: str
    values: Any
    names: tuple[str, ...]
    coords: np.ndarray | None
    month: np.ndarray | None
    true: np.ndarray | None


def _numbers(text: str | None, count: int, option: str) -> tuple[float, ...] | None:
    if text is None:
        return None
    try:
        found = tuple(float(word) for word in text.split(","))
    except ValueError:
        found = ()
    if len(found) != count:
        raise InputError(f"{option} expects {count} numbers separated by commas, got {text!r}")
    return found


def _load(
    data: str,
    var: str | None = None,
    preset: str | None = None,
    box: str | None = None,
    coarsen: str | None = None,
    season: str = "none",
) -> Loaded:
    corners, boxes = _numbers(box, 4, "--box"), _numbers(coarsen, 2, "--coarsen")
    if data.endswith(".npz"):
        return _load_simulated(Path(data))
    if data in NAMED:
        if any(option is not None for option in (var, preset, box, coarsen)):
            raise InputError(f"--var, --preset, --box and --coarsen are for files, {data!r} is built in")
        climate = load(data)
    else:
        grid = None if boxes is None else (int(boxes[0]), int(boxes[1]))
        climate = load(data, var=var, preset=preset, box=corners, coarsen=grid, season=season)
    return Loaded(climate.name, climate.array(), climate.names, climate.coords, climate.month, None)


def _load_simulated(path: Path) -> Loaded:
    try:
        with np.load(path, allow_pickle=False) as file:
            if "x" not in file.files:
                raise InputError(
                    f"{path}: expected an array x as 'cadre simulate' writes it, got {', '.join(file.files)}"
                )
            x, true = file["x"], file["B"] if "B" in file.files else None
    except (OSError, ValueError, EOFError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"{path} cannot be read: {error}") from error
    values = x[0] if x.ndim == 3 and len(x) == 1 else x
    return Loaded(path.stem, values, tuple(f"x{i}" for i in range(x.shape[-1])), None, None, true)


@contextmanager
def _told() -> Generator[list[str]]:
    """Warnings of the block as one line each on standard error, and as a list."""
    found: list[str] = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("ignore")
        warnings.simplefilter("always", UserWarning)
        warnings.simplefilter("always", NotConverged)
        yield found
    found += [str(w.message) for w in caught if issubclass(w.category, UserWarning)]
    for message in dict.fromkeys(found):
        print(f"warning: {message}", file=sys.stderr)


def _fit(loaded: Loaded, by_month: bool, max_km: float | None, **settings: Any) -> CaDReEstimator:
    mask = None
    if max_km is not None:
        if loaded.coords is None:
            raise InputError(f"--max-km needs places, and {loaded.name} has none")
        mask = distance_mask(loaded.coords, max_km)
    if by_month and loaded.month is None:
        raise InputError(f"--by-month needs times with a calendar, and {loaded.name} has none")
    estimator = CaDReEstimator(mask=mask, **settings)
    with progress_bar() as progress, _told():
        bar = iter(
            progress(range(estimator.n_restarts * (estimator.steps // EVALUATE_EVERY + 1) + 1), label="training")
        )

        def watch(step: int, evaluation: Any) -> None:
            if evaluation is not None:
                next(bar, None)

        estimator.fit(loaded.values, domain=loaded.month if by_month else None, watch=watch)
        for _ in bar:
            pass
    estimator.graph_ = estimator.graph_.named(loaded.names, loaded.coords)
    return estimator


def _edge_table(graph: GraphResult, limit: int = 40) -> str:
    rows = graph.edges()
    lines = [f"{'cause':>24}   {'effect':<24} {'weight':>8}  {'stability':>9}  {'sign':>5}"]
    for row in rows[:limit]:
        stability = f"{row['stability']:9.2f}" if "stability" in row else f"{'-':>9}"
        sign = f"{row['sign_consistency']:5.2f}" if "sign_consistency" in row else f"{'-':>5}"
        lines.append(f"{row['cause']:>24} > {row['effect']:<24} {row['weight']:+8.3f}  {stability}  {sign}")
    if len(rows) > limit:
        lines.append(f"... and {len(rows) - limit} more")
    return "\n".join(lines) if rows else "no edges"


def _summary(estimator: CaDReEstimator, loaded: Loaded) -> dict[str, Any]:
    graph = estimator.graph_
    found: dict[str, Any] = {
        "data": loaded.name,
        "series": len(graph.names),
        "edges": graph.edges(),
        "bound": estimator.elbo_,
        "restart_bounds": estimator.restart_bounds_,
        "active_latents": estimator.active_latents_,
        "converged": estimator.converged_,
        "restart_disagreement": estimator.restart_disagreement_,
        "removed_for_cycles": [list(edge) for edge in graph.removed],
        "latent_lagged": estimator.latent_lagged_,
        "latent_instant": estimator.latent_instant_,
    }
    if loaded.true is not None:
        found["against_truth"] = graph.compare(loaded.true)._asdict()
    return found


def _print_summary(estimator: CaDReEstimator, loaded: Loaded, found: dict[str, Any]) -> None:
    print(f"{loaded.name}: {found['series']} series, {estimator.n_latents} latents ({found['active_latents']} active)")
    print(_edge_table(estimator.graph_))
    print(
        f"bound {found['bound']:.4f} nats a step; restarts {', '.join(f'{b:.4f}' for b in estimator.restart_bounds_)}"
    )
    if estimator.graph_.removed:
        print(f"{len(estimator.graph_.removed)} edges were removed to break cycles")
    if "against_truth" in found:
        scores = found["against_truth"]
        print(
            f"against the true graph: SHD {scores['shd']}, TPR {scores['tpr']:.2f}, precision {scores['precision']:.2f}"
        )


def _print_json(value: Any) -> None:
    print(json.dumps(plain(value), ensure_ascii=False))


@app.command()
def run(
    data: Data = "cmip6",
    var: Var = None,
    preset: Preset = None,
    box: Box = None,
    coarsen: Coarsen = None,
    season: Season = "harmonics",
    latents: Latents = 3,
    steps: Steps = 3000,
    restarts: Restarts = 3,
    mode: Mode = "flow",
    max_km: MaxKm = None,
    by_month: Month = False,
    horizon: Annotated[int, typer.Option("--horizon", min=1, help="Steps of the forecast's picture.")] = 24,
    seed: Seed = 0,
    device: Device = "cpu",
    out: Out = Path("cadre-run"),
    as_json: Json = False,
) -> None:
    """From a file to the graph, the hidden drivers, a forecast, and pictures of all of them.

    Writes edges.csv, model.safetensors and pictures. Interrupted, it goes on from its checkpoints when called again.

    The built-in data carry their own treatment of the season; --season is for files.
    """
    loaded = _load(data, var, preset, box, coarsen, season)
    estimator = _fit(
        loaded,
        by_month,
        max_km,
        n_latents=latents,
        steps=steps,
        n_restarts=restarts,
        mode=mode,
        random_state=seed,
        device=device,
        checkpoint=out / "checkpoints",
    )
    found = _summary(estimator, loaded)
    atomic_write(out / "edges.csv", estimator.graph_.to_csv())
    estimator.save(out / "model.safetensors")
    found["pictures"] = [str(path) for path in _pictures(estimator, loaded, out, horizon)]
    if as_json:
        _print_json(found)
        return
    _print_summary(estimator, loaded, found)
    print(f"written: {out / 'edges.csv'}, {out / 'model.safetensors'}, {', '.join(found['pictures'])}")


def _pictures(estimator: CaDReEstimator, loaded: Loaded, out: Path, horizon: int) -> list[Path]:
    graph = estimator.graph_
    found = [plots.training(out / "training", estimator), plots.weights(out / "weights", graph, loaded.true)]
    series = loaded.values if loaded.values.ndim == 2 else loaded.values[0]
    if len(series) > 20:
        z = estimator.transform(series)
        found.append(plots.latents(out / "latents", np.arange(len(z)), z, *_index(loaded)))
    if len(series) > 60 + horizon:
        past = series[:-horizon]
        if estimator.n_domains_ == 0:
            samples = estimator.forecast(past, horizon, 200).samples
            found.append(
                plots.forecast(out / "forecast", past[-60:, 0], samples[..., 0], graph.names[0], series[-horizon:, 0])
            )
    if graph.coords is not None:
        found.append(plots.graph_map(out / "map", graph, _land()))
    return found


def _index(loaded: Loaded) -> tuple[np.ndarray | None, str]:
    """The mean of the central Pacific (170W to 120W) as an index of El Nino, where the data cover it."""
    if loaded.coords is None or loaded.values.ndim != 2:
        return None, ""
    lat, lon = loaded.coords.T
    inside = (np.abs(lat) <= 6) & (lon >= -170) & (lon <= -120)
    if not inside.any():
        return None, ""
    index = loaded.values[:, inside].mean(1)
    return (index - index.mean()) / index.std(), "the mean of 170W to 120W"


def _land() -> Any:
    try:
        return coastline()
    except (InputError, ImportError):
        return None


@app.command()
def simulate(
    regime: Annotated[
        str, typer.Option("--regime", help="confounded, independent, sparse, dense or nonparametric.")
    ] = "confounded",
    dx: Annotated[int, typer.Option("--dx", min=2, help="Observed series.")] = 6,
    dz: Annotated[int, typer.Option("--dz", min=1, help="Latents.")] = 2,
    n: Annotated[int, typer.Option("--n", min=1, help="Windows, or time steps with --series.")] = 8000,
    series: Annotated[bool, typer.Option("--series", help="One long series instead of windows.")] = False,
    seed: Seed = 0,
    out: Annotated[Path, typer.Option("--out", help="File to write.")] = Path("simulated.npz"),
) -> None:
    """Data with a known graph: x, z, s, B (i <- j), the latents' graphs, in an .npz file."""
    count, T = (1, n) if series else (n, 3)
    match regime:
        case "confounded":
            made = confounded_er(count, dx, dz, T, seed)
        case "independent" | "sparse" | "dense":
            made = regimes(regime, count, dx, dz, T, seed)
        case "nonparametric":
            made = nonparametric_ts(count, dx, dz, max(T, 4), seed=seed)
        case _:
            raise InputError(
                f"--regime must be confounded, independent, sparse, dense or nonparametric, got {regime!r}"
            )
    arrays = {name: value for name, value in vars(made).items() if value is not None}
    if out.suffix != ".npz":
        raise InputError(f"--out expects a name ending in .npz, got {out}")
    out.parent.mkdir(parents=True, exist_ok=True)
    with atomic_path(out) as temporary, temporary.open("wb") as file:
        np.savez(file, **arrays)
    print(
        f"{out}: {made.x.shape[0]} x {made.x.shape[1]} steps of {dx} series, {int((made.B != 0).sum())} edges, "
        f"{dz} latents"
    )


@app.command()
def fit(
    data: Data,
    var: Var = None,
    preset: Preset = None,
    box: Box = None,
    coarsen: Coarsen = None,
    season: Season = "none",
    latents: Latents = 3,
    steps: Steps = 3000,
    restarts: Restarts = 3,
    mode: Mode = "flow",
    max_km: MaxKm = None,
    by_month: Month = False,
    threshold: Annotated[
        str, typer.Option("--threshold", help="fixed, gap or bootstrap (edge stability over refits).")
    ] = "fixed",
    seed: Seed = 0,
    device: Device = "cpu",
    out: Annotated[Path, typer.Option("--out", help="Model file to write.")] = Path("cadre.safetensors"),
    as_json: Json = False,
) -> None:
    """Fit and keep the model; 'graph' and 'forecast' read it."""
    loaded = _load(data, var, preset, box, coarsen, season)
    settings = {"n_latents": latents, "steps": steps, "n_restarts": restarts, "mode": mode, "random_state": seed}
    estimator = _fit(loaded, by_month, max_km, threshold=threshold, device=device, **settings)
    found = _summary(estimator, loaded)
    out.parent.mkdir(parents=True, exist_ok=True)
    estimator.save(out)
    if as_json:
        _print_json(found)
        return
    _print_summary(estimator, loaded, found)
    print(f"written: {out}")


@app.command()
def graph(
    model: Annotated[Path, typer.Argument(help="Model of 'fit' or 'run'.")],
    threshold: Annotated[
        float, typer.Option("--threshold", min=0, help="Least strength of an edge, on standardised series.")
    ] = 0.1,
    map_file: Annotated[Path | None, typer.Option("--map", help="Picture of the edges on a map.")] = None,
    wind: Annotated[bool, typer.Option("--wind", help="Draw the COADS wind on the map.")] = False,
    form: Annotated[str, typer.Option("--format", help="table, csv, graphml or nc.")] = "table",
    out: Annotated[Path | None, typer.Option("--out", help="File to write; csv goes to the screen without it.")] = None,
) -> None:
    """The graph of a fitted model as a table, file or map, at a threshold of your choice."""
    if form not in ("table", "csv", "graphml", "nc"):
        raise InputError(f"--format must be table, csv, graphml or nc, got {form!r}")
    if form in ("graphml", "nc") and out is None:
        raise InputError(f"--format {form} needs --out")
    estimator = CaDReEstimator.load(model)
    found = _rethresholded(estimator, threshold)
    if map_file is not None and found.coords is None:
        raise InputError(f"{model} has no places to draw a map of")
    target = Path("-") if out is None else out
    match form:
        case "table":
            print(_edge_table(found, 1000))
        case "csv" if out is None:
            print(found.to_csv(), end="")
        case "csv":
            atomic_write(target, found.to_csv())
        case "graphml":
            import networkx as nx

            atomic_write(target, "\n".join(nx.generate_graphml(found.to_networkx())) + "\n")
        case "nc":
            with atomic_path(target) as temporary:
                found.to_xarray().to_netcdf(temporary)
    if map_file is not None:
        assert found.coords is not None
        with figure(10, 4.5) as (drawing, ax):
            weights = np.where(found.adjacency, found.weights, 0.0)
            draw_graph_map(ax, found.coords, weights, _land(), coads_winds(found.coords) if wind else None)
            png, svg = save(drawing, map_file)
        print(f"written: {png}, {svg}", file=sys.stderr)
    if out is not None:
        print(f"written: {out}", file=sys.stderr)


def _rethresholded(estimator: CaDReEstimator, threshold: float) -> GraphResult:
    """At most the edges that the model was polished on; a lower threshold than its own adds none."""
    kept = estimator.graph_
    scores = kept.scores if kept.scores is not None else np.abs(kept.weights)
    edges = kept.adjacency & threshold_graph(scores, threshold=threshold)
    fields = {
        name: getattr(kept, name) for name in ("names", "coords", "scores", "stability", "sign_consistency", "removed")
    }
    return GraphResult(kept.weights, edges, **fields)


@app.command()
def forecast(
    data: Data = "cmip6",
    model: Annotated[
        Path | None, typer.Option("--model", help="Model of 'fit' or 'run'; fitted now without it.")
    ] = None,
    horizon: Annotated[int, typer.Option("--horizon", min=1, help="Steps ahead.")] = 24,
    samples: Annotated[int, typer.Option("--samples", min=2, help="Samples of the future.")] = 200,
    var: Var = None,
    preset: Preset = None,
    box: Box = None,
    coarsen: Coarsen = None,
    season: Season = "harmonics",
    latents: Latents = 3,
    steps: Steps = 3000,
    restarts: Restarts = 1,
    seed: Seed = 0,
    out: Out = Path("cadre-forecast"),
    as_json: Json = False,
) -> None:
    """Forecast after the end of the series: mean and quantiles in forecast.csv, and a fan of the first series."""
    loaded = _load(data, var, preset, box, coarsen, season)
    if loaded.values.ndim != 2:
        raise InputError(f"{data} holds many short windows; a forecast needs one series (cadre simulate --series)")
    if model is None:
        estimator = _fit(loaded, False, None, n_latents=latents, steps=steps, n_restarts=restarts, random_state=seed)
    else:
        estimator = CaDReEstimator.load(model)
    found = estimator.forecast(loaded.values, horizon, samples)
    quantiles = np.quantile(found.samples, [0.05, 0.25, 0.5, 0.75, 0.95], axis=0)
    lines = ["step,series,mean,q05,q25,q50,q75,q95"]
    for step in range(horizon):
        for j, name in enumerate(loaded.names):
            row = [found.mean[step, j], *quantiles[:, step, j]]
            lines.append(f'{step + 1},"{name}",' + ",".join(f"{v:.6g}" for v in row))
    out.mkdir(parents=True, exist_ok=True)
    atomic_write(out / "forecast.csv", "\n".join(lines) + "\n")
    picture = plots.forecast(out / "forecast", loaded.values[-60:, 0], found.samples[..., 0], loaded.names[0])
    if as_json:
        _print_json(
            {"mean": found.mean, "quantiles": quantiles, "levels": [0.05, 0.25, 0.5, 0.75, 0.95], "names": loaded.names}
        )
        return
    for j, name in enumerate(loaded.names[:20]):
        ends = f"[{quantiles[0, -1, j]:+.3f}, {quantiles[-1, -1, j]:+.3f}]"
        print(f"{name:>24}  step 1 {found.mean[0, j]:+.3f}  step {horizon} {found.mean[-1, j]:+.3f} {ends}")
    print(f"written: {out / 'forecast.csv'}, {picture}")


@app.command()
def baselines(
    data: Data = "cmip6",
    methods: Annotated[
        str, typer.Option("--methods", help=f"Names with commas: {', '.join(BASELINES)}.")
    ] = "lingam,pcmci+,notears,correlation",
    var: Var = None,
    preset: Preset = None,
    box: Box = None,
    coarsen: Coarsen = None,
    season: Season = "harmonics",
    as_json: Json = False,
) -> None:
    """What other methods of causal discovery find in the same series (most know no latents)."""
    names = [name.strip() for name in methods.split(",")]
    unknown = [name for name in names if name not in BASELINES]
    if unknown:
        raise InputError(f"no method {unknown[0]!r}; there are {', '.join(BASELINES)}")
    loaded = _load(data, var, preset, box, coarsen, season)
    series = loaded.values if loaded.values.ndim == 2 else loaded.values[:, 0]
    results = {}
    with progress_bar() as progress, _told():
        for name in progress(names, label="methods"):
            results[name] = BASELINES[name](series).named(loaded.names, loaded.coords)
    if as_json:
        _print_json({name: {"edges": r.edges(), "undirected": r.undirected} for name, r in results.items()})
        return
    for name, result in results.items():
        line = f"{name}: {int(result.adjacency.sum())} edges, {len(result.undirected)} without direction"
        if loaded.true is not None:
            scores = result.compare(loaded.true)
            line += f"; SHD {scores.shd}, TPR {scores.tpr:.2f}, precision {scores.precision:.2f}"
        print(line)
        print(_edge_table(result, 10))


@app.command()
def bench(
    topic: Annotated[str, typer.Argument(help=", ".join(benchmarks.TOPICS))] = "jacobian",
    out: Out = Path("cadre-bench"),
    quick: Annotated[bool, typer.Option("--quick", help="Small sizes.")] = False,
) -> None:
    """Time the Jacobian sweep, training steps, the graph's read-out beside PCMCI, or windows from NetCDF."""
    if topic not in benchmarks.TOPICS:
        raise InputError(f"expected one of {', '.join(benchmarks.TOPICS)}, got {topic!r}")
    out.mkdir(parents=True, exist_ok=True)
    for title, table in benchmarks.TOPICS[topic](out, quick).items():
        print(f"{title}\n\n{table}\n")
