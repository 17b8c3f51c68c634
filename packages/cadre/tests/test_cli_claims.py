"""The command line, and each claim at a small size."""

import contextlib
import io
import json
from dataclasses import dataclass

import numpy as np
import pytest

from cadre.claims import PAPER
from cadre.cli import app
from papershelf import Run


@dataclass
class Done:
    returncode: int
    stdout: str
    stderr: str


def command(*words, cwd):
    """Run the command line in this process."""
    out, err = io.StringIO(), io.StringIO()
    with (
        contextlib.chdir(cwd),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
        pytest.raises(SystemExit) as left,
    ):
        app([str(word) for word in words])
    return Done(int(left.value.code or 0), out.getvalue(), err.getvalue())


SHORT = ("--steps", 10, "--restarts", 1, "--latents", 1)


@pytest.fixture(scope="module")
def grid(tmp_path_factory):
    """A NetCDF file with four places, and a model of it."""
    import pandas as pd
    import xarray as xr

    folder = tmp_path_factory.mktemp("grid")
    rng = np.random.default_rng(0)
    data = rng.normal(size=(150, 2, 2))
    data[..., 1] += 0.8 * data[..., 0]
    coords = {"time": pd.date_range("2000-01-01", periods=150), "lat": [0.0, 5.0], "lon": [-170.0, -150.0]}
    xr.DataArray(data, dims=("time", "lat", "lon"), coords=coords, name="sst").to_netcdf(folder / "grid.nc")
    done = command("run", "--data", "grid.nc", "--season", "none", *SHORT, "--horizon", 5, "--out", "out", cwd=folder)
    assert done.returncode == 0, done.stderr
    return folder, done


def test_run_writes_edges_model_and_pictures(grid):
    folder, done = grid
    assert "4 series, 1 latents" in done.stdout
    assert "warning: training had not settled after 10 steps" in done.stderr
    made = {path.name for path in (folder / "out").iterdir()}
    pictures = {f"{n}.{s}" for n in ("training", "weights", "latents", "forecast", "map") for s in ("png", "svg")}
    assert made == pictures | {"edges.csv", "model.safetensors", "checkpoints"}
    assert (folder / "out/edges.csv").read_text().startswith("cause,effect,weight")


def test_graph_in_every_format(grid):
    folder, _ = grid
    model = folder / "out/model.safetensors"
    assert command("graph", model, cwd=folder).returncode == 0
    assert command("graph", model, "--format", "csv", cwd=folder).stdout.startswith("cause,effect")
    done = command("graph", model, "--format", "graphml", "--out", "g.graphml", "--map", "m.png", cwd=folder)
    assert done.returncode == 0, done.stderr
    import networkx as nx
    import xarray as xr

    assert nx.read_graphml(folder / "g.graphml").number_of_nodes() == 4
    command("graph", model, "--format", "nc", "--out", "g.nc", cwd=folder)
    with xr.open_dataset(folder / "g.nc") as opened:
        assert opened["weight"].shape == (4, 4)
    assert (folder / "m.png").stat().st_size > 5000


def test_forecast_writes_quantiles_in_order(grid):
    folder, _ = grid
    words = ("--data", "grid.nc", "--season", "none", "--model", "out/model.safetensors", "--horizon", 4)
    done = command("forecast", *words, "--out", "f", cwd=folder)
    assert done.returncode == 0, done.stderr
    rows = np.genfromtxt(folder / "f/forecast.csv", delimiter=",", skip_header=1, usecols=range(3, 8))
    assert rows.shape == (16, 5)
    assert (np.diff(rows, axis=1) >= 0).all()


def test_simulated_data_are_fitted_and_compared_with_their_truth(tmp_path):
    made = command("simulate", "--dx", 4, "--dz", 1, "--n", 300, "--series", "--out", "s.npz", cwd=tmp_path)
    assert "1 x 300 steps of 4 series" in made.stdout
    found = json.loads(
        command("fit", "--data", "s.npz", *SHORT, "--out", "m.safetensors", "--json", cwd=tmp_path).stdout
    )
    assert set(found["against_truth"]) >= {"shd", "tpr"}
    assert (tmp_path / "m.safetensors").is_file()
    other = command("baselines", "--data", "s.npz", "--methods", "notears,correlation", cwd=tmp_path)
    assert "notears: " in other.stdout
    assert "SHD" in other.stdout


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_bench_runs_small(tmp_path):
    for topic in ("jacobian", "windows"):
        done = command("bench", topic, "--quick", "--out", "b", cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        assert "speed against" in done.stdout


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["run", "--data", "nothing"], "no data or file 'nothing'"),
        (["run", "--data", "cmip6", "--var", "ta"], "are for files, 'cmip6' is built in"),
        (["fit", "--data", "x.nc", "--box", "1,2"], "--box expects 4 numbers separated by commas, got '1,2'"),
        (["fit", "--data", "x.nc", "--coarsen", "a,b"], "--coarsen expects 2 numbers"),
        (["fit", "--data", "nothing.npz"], "cannot be read"),
        (["simulate", "--regime", "x"], "got 'x'"),
        (["simulate", "--dx", "2", "--dz", "3"], "d_z must be at most d_x = 2, got 3"),
        (["simulate", "--n", "10", "--out", "x.csv"], "ending in .npz, got x.csv"),
        (["graph", "nothing.safetensors"], "no file nothing.safetensors"),
        (["graph", "m", "--format", "x"], "must be table, csv, graphml or nc, got 'x'"),
        (["graph", "m", "--format", "nc"], "needs --out"),
        (["baselines", "--methods", "magic"], "no method 'magic'"),
        (["bench", "speed"], "got 'speed'"),
        (["fit", "--data", "x.nc", "--latents", "0"], "got '0'"),
    ],
)
def test_bad_words_get_one_line_and_code_2(tmp_path, words, message):
    done = command(*words, cwd=tmp_path)
    assert done.returncode == 2
    assert len(done.stderr.strip().splitlines()) == 1
    assert message in " ".join(done.stderr.split()) or "Invalid value" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_missing_extras_are_named(monkeypatch):
    import importlib

    from cadre.extras import optional

    def absent(name):
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)

    monkeypatch.setattr(importlib, "import_module", absent)
    with pytest.raises(ImportError, match=r"needs tigramite.pcmci.*pip install 'papershelf-cadre\[baselines\]'"):
        optional("tigramite.pcmci", "baselines")


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("claim", PAPER.claims, ids=lambda claim: claim.id)
def test_claims_at_a_small_size(claim, tmp_path):
    outcome = claim.measure(Run(scale="tiny", out=tmp_path))
    values = outcome.values
    match claim.id:
        case "C1" | "C11":
            assert outcome.holds
        case "C2":
            assert values["shd"][0] <= 2
        case "C2b":
            assert 0 <= values["mcc"] <= 1
            assert values["ceiling"] > 0.5
        case "C3":
            assert set(values["shd"]) == {"cadre", "lingam", "random"}
        case "C6":
            assert values["pcmci"] > values["seconds"]
        case "C7":
            assert values["outside"] == 0
        case "C8":
            assert values["errors"]["VAR"][0] < values["errors"]["persistence"][0]
        case "C9":
            assert 0 < values["p"] <= 1
            assert (tmp_path / "ostia.png").is_file()
        case "N1":
            assert values["likelihood_gap"] < 1e-10
            assert values["bound"] < values["exact"] + 0.05
        case _:
            assert outcome.measured
