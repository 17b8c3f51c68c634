"""The estimator: what it refuses, that it resumes and repeats exactly, and that what it reports is consistent."""

import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.base import clone

from cadre import CaDReEstimator, NotConverged, WindowDataset
from cadre.estimator import interpolate_missing
from cadre.simulate import confounded_er
from cadre.training import load_state
from cadre.windows import MemoryWindows, chunked_moments

pytestmark = pytest.mark.filterwarnings("ignore::cadre.NotConverged")
D = confounded_er(400, 4, 1, 3, seed=0)
SERIES = confounded_er(1, 4, 1, 300, seed=0).x[0]
FAST = {"n_latents": 1, "steps": 20, "n_restarts": 1, "batch_size": 32, "random_state": 3}


@pytest.fixture(scope="module")
def fitted():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return CaDReEstimator(**FAST | {"steps": 60, "n_restarts": 2}).fit(SERIES)


def bad(change):
    X = SERIES.copy()
    change(X)
    return X


def test_nan_and_inf_are_counted_and_located():
    X = SERIES.copy()
    X[7, 2] = np.nan
    X[9, 1] = np.inf
    with pytest.raises(ValueError, match=r"2 values are NaN or infinite, the first at \(0, 7, 2\)"):
        CaDReEstimator(**FAST).fit(X)
    X[9, 1] = 0.0
    for missing in ("interpolate", "mask"):
        CaDReEstimator(**FAST, missing=missing).fit(X)
    source = CaDReEstimator(**FAST, missing="mask")._source(X, None, None)
    assert not ((source.starts[:, 1] <= 7) & (source.starts[:, 1] + 3 > 7)).any()
    np.testing.assert_allclose(interpolate_missing(X)[7, 2], (X[6, 2] + X[8, 2]) / 2)


def test_constant_series_are_named():
    import pandas as pd

    X = pd.DataFrame(SERIES, columns=["a", "b", "c", "d"]).assign(c=5.0)
    with pytest.raises(ValueError, match="constant series: c"):
        CaDReEstimator(**FAST).fit(X)


def test_short_series_are_told_the_needed_length():
    with pytest.raises(ValueError, match=r"at least 4 time steps \(window 3, lags 1\), got 3"):
        CaDReEstimator(**FAST).fit(SERIES[:3])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"n_latents": 5}, "at most the 4 series, got 5"),
        ({"n_latents": 0}, "n_latents must be at least 1, got 0"),
        ({"mask": np.ones((3, 3), dtype=bool)}, r"bool mask of shape \(4, 4\), got bool of shape \(3, 3\)"),
        ({"mask": np.ones((4, 4))}, r"bool mask of shape \(4, 4\), got float64"),
        ({"mode": "x"}, "flow, vae, got 'x'"),
        ({"window": 2}, "odd, got 2"),
        ({"threshold": "target_edges"}, "expects target_edges="),
        ({"threshold": "x"}, "got 'x'"),
    ],
)
def test_bad_settings_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        CaDReEstimator(**FAST | settings).fit(SERIES)


def test_a_mask_with_a_diagonal_warns_and_one_without_edges_gives_an_empty_graph():
    with pytest.warns(UserWarning, match="diagonal is ignored"):
        CaDReEstimator(**FAST, mask=np.ones((4, 4), dtype=bool)).fit(SERIES)
    empty = CaDReEstimator(**FAST, mask=np.zeros((4, 4), dtype=bool)).fit(SERIES)
    assert empty.graph_.edges() == []
    assert np.abs(empty.jacobians(SERIES)).max() == 0


def test_masks_are_obeyed_exactly():
    mask = np.zeros((4, 4), dtype=bool)
    mask[1, 0] = mask[2, 3] = True
    fit = CaDReEstimator(**FAST, mask=mask, polish=0.0).fit(SERIES)
    J = fit.jacobians(SERIES)
    assert (J[:, ~mask] == 0).all()
    assert (J[:, mask] != 0).all()


def test_wrong_shapes_labels_and_latents_are_refused():
    with pytest.raises(ValueError, match=r"got shape \(300,\)"):
        CaDReEstimator(**FAST).fit(SERIES[:, 0])
    with pytest.raises(ValueError, match=r"labels 0, 1, ... of shape \(300,\)"):
        CaDReEstimator(**FAST).fit(SERIES, domain=np.zeros(5, dtype=int))
    with pytest.raises(ValueError, match=r"latents of shape \(1, 300, 1\)"):
        CaDReEstimator(**FAST).fit(SERIES, latents=np.zeros((300, 2)))


def test_time_axes_are_checked():
    import pandas as pd
    import xarray as xr

    def series(times, dims=("time", "cell")):
        return xr.DataArray(SERIES[: len(times)], dims=dims, coords={dims[0]: times})

    days = pd.date_range("2000-01-01", periods=300)
    names = CaDReEstimator(**FAST).fit(series(days).assign_coords(cell=list("abcd"))).graph_.names
    assert names == ("a", "b", "c", "d")
    with pytest.raises(ValueError, match="a time axis named 'time', got the dimensions step, cell"):
        CaDReEstimator(**FAST).fit(series(days, ("step", "cell")))
    with pytest.raises(ValueError, match="irregular: 1 differ"):
        CaDReEstimator(**FAST).fit(series(days.delete(50)))
    with pytest.raises(ValueError, match="is a duplicate"):
        CaDReEstimator(**FAST).fit(series(days.insert(50, days[50])[:300]))
    with pytest.raises(ValueError, match="is unsorted"):
        CaDReEstimator(**FAST).fit(series(days[::-1]))


def test_divergence_names_the_last_good_checkpoint(tmp_path, monkeypatch):
    import cadre.training

    monkeypatch.setattr(cadre.training, "CHECKPOINT_EVERY", 5)
    real, calls = cadre.training.penalised, []

    def poisoned(*words):
        calls.append(1)
        return real(*words) * (float("nan") if len(calls) > 12 else 1.0)

    monkeypatch.setattr(cadre.training, "penalised", poisoned)
    with pytest.raises(
        FloatingPointError, match=r"nan at step 12; the last good checkpoint is .*restart-0.safetensors"
    ):
        CaDReEstimator(**FAST, checkpoint=tmp_path).fit(SERIES)
    assert load_state(tmp_path / "restart-0.safetensors")[1]["step"] == 10


def test_an_interrupted_run_resumes_bit_for_bit(tmp_path, monkeypatch):
    import cadre.training

    monkeypatch.setattr(cadre.training, "CHECKPOINT_EVERY", 5)
    whole = CaDReEstimator(**FAST).fit(SERIES)

    def stop(step, found):
        if step == 13:
            raise KeyboardInterrupt

    part = CaDReEstimator(**FAST, checkpoint=tmp_path)
    with pytest.raises(KeyboardInterrupt):
        part.fit(SERIES, watch=stop)
    again = CaDReEstimator(**FAST, checkpoint=tmp_path).fit(SERIES)
    for a, b in zip(whole.model_.parameters(), again.model_.parameters(), strict=True):
        assert torch.equal(a, b)
    with pytest.raises(ValueError, match="belongs to another run"):
        CaDReEstimator(**FAST | {"batch_size": 16}, checkpoint=tmp_path).fit(SERIES)
    with pytest.raises(ValueError, match="belongs to another run"):
        CaDReEstimator(**FAST, checkpoint=tmp_path).fit(SERIES + 1)
    assert [p.name for p in Path(tmp_path).iterdir()] == ["restart-0.safetensors"]


def test_the_same_seed_gives_the_same_and_another_seed_another():
    a, b = (CaDReEstimator(**FAST).fit(SERIES) for _ in range(2))
    c = CaDReEstimator(**FAST | {"random_state": 4}).fit(SERIES)
    np.testing.assert_array_equal(a.graph_.scores, b.graph_.scores)
    assert not np.array_equal(a.graph_.scores, c.graph_.scores)
    assert clone(a).get_params() == a.get_params()


def test_saved_and_loaded_estimators_agree(fitted, tmp_path):
    again = CaDReEstimator.load(fitted.save(tmp_path / "m.safetensors"))
    np.testing.assert_array_equal(again.transform(SERIES), fitted.transform(SERIES))
    np.testing.assert_array_equal(again.graph_.adjacency, fitted.graph_.adjacency)
    np.testing.assert_array_equal(again.predict(SERIES, 3), fitted.predict(SERIES, 3))
    (tmp_path / "bad.safetensors").write_bytes(b"\x80\x04not safetensors")
    with pytest.raises(ValueError, match="damaged or was not written by cadre"):
        CaDReEstimator.load(tmp_path / "bad.safetensors")
    with pytest.raises(ValueError, match="no file"):
        CaDReEstimator.load(tmp_path / "nothing.safetensors")


def test_physical_units(fitted):
    scaled = SERIES * np.array([1.0, 10.0, 0.1, 3.0])
    ratio = fitted.jacobians(SERIES, units="physical") * fitted.sd_[None, None, :] / fitted.sd_[None, :, None]
    np.testing.assert_allclose(ratio, fitted.jacobians(SERIES), rtol=1e-5, atol=1e-7)
    other = CaDReEstimator(**FAST | {"steps": 60, "n_restarts": 2}).fit(scaled)
    np.testing.assert_allclose(other.graph_.weights, fitted.graph_.weights, atol=1e-3)


def test_forecasts_and_samples_have_the_scale_of_the_data(fitted):
    found = fitted.forecast(SERIES, 400, 30)
    assert found.samples.shape == (30, 400, 4)
    np.testing.assert_allclose(found.mean, found.samples.mean(0))
    assert np.abs(found.mean[-100:].mean(0) - SERIES.mean(0)).max() < SERIES.std(0).max()
    assert 0.5 < fitted.sample(50, 30).std() / SERIES.std() < 2
    quiet = fitted.predict(SERIES, 5, n_samples=0)
    np.testing.assert_array_equal(quiet, fitted.predict(SERIES, 5, n_samples=0))
    for words in ({"horizon": 0}, {"n_samples": -1}):
        with pytest.raises(ValueError, match="horizon >= 1 and n_samples >= 0"):
            fitted.forecast(SERIES, **words)
    with pytest.raises(ValueError, match="expected 4 series, got 3"):
        fitted.transform(SERIES[:, :3])


def test_known_latents_are_not_inferred_again():
    fit = CaDReEstimator(**FAST).fit(D.x, latents=D.z)
    assert fit.jacobians(D.x, latents=D.z).shape == (400, 3, 4, 4)
    with pytest.raises(ValueError, match="cannot infer them"):
        fit.transform(D.x)


def test_early_training_warns_and_restarts_are_recorded(fitted):
    with pytest.warns(NotConverged, match="had not settled after 20 steps"):
        CaDReEstimator(**FAST).fit(SERIES)
    assert len(fitted.restart_bounds_) == 2
    assert fitted.best_restart_ == int(np.argmax(fitted.restart_bounds_))
    assert set(np.unique(fitted.graph_.stability)) <= {0.0, 0.5, 1.0}


@pytest.mark.parametrize(
    "settings",
    [
        {"mode": "vae"},
        {"dag": "alm"},
        {"instant": "learned", "lags": 2},
        {"post_nonlinear": True, "mixture": 1},
        {"use_latents": False},
        {"threshold": "bootstrap", "n_bootstrap": 2},
        {"threshold": "gap", "importance": 1},
    ],
    ids=str,
)
def test_every_variant_trains_and_gives_a_dag(settings):
    from cadre import is_dag

    fit = CaDReEstimator(**FAST | settings).fit(SERIES, domain=np.arange(300) % 12)
    assert is_dag(fit.graph_.adjacency)
    assert np.isfinite(fit.elbo_)
    assert np.isfinite(fit.sample(3, 5)).all()
    assert np.isfinite(fit.score(SERIES))


def test_singular_mixings_warn_and_are_dropped(monkeypatch):
    from cadre.model import CaDRe

    real = CaDRe.mixing_jacobian

    def broken(self, x, z):
        J = real(self, x, z).clone()
        J[0] = 1.0
        return J

    monkeypatch.setattr(CaDRe, "mixing_jacobian", broken)
    with pytest.warns(UserWarning, match="singular at 1 of .* left out"):
        fit = CaDReEstimator(**FAST, mode="vae").fit(SERIES)
    assert np.isfinite(fit.graph_.weights).all()


# --- windows -----------------------------------------------------------------------------------------------------


def test_an_epoch_gives_each_training_window_once():
    X = np.arange(500.0)[:, None] * np.ones((1, 3))
    data = WindowDataset(X, 4, max_ram=4000)
    seen = np.concatenate(list(data.epoch(np.random.default_rng(0), 16)))
    first = np.sort(np.round(seen[:, 0, 0] * data.sd[0] + data.mean[0]).astype(int))
    np.testing.assert_array_equal(first, np.arange(data.train_stop - 3))
    back = seen * data.sd + data.mean
    np.testing.assert_allclose(np.diff(back, axis=1), 1.0, atol=1e-3)
    assert data.block < 40  # more than ten blocks: the order is not that of time


def test_statistics_in_chunks_are_those_of_the_whole():
    X = np.random.default_rng(0).normal(3, 2, (1000, 5)) + 1e6
    mean, sd = chunked_moments(X, 900, 37)
    np.testing.assert_allclose(mean, X[:900].mean(0))
    np.testing.assert_allclose(sd, X[:900].std(0), rtol=1e-8)


def test_statistics_see_only_the_training_part():
    X = SERIES.copy()
    base = CaDReEstimator(**FAST)._source(X, None, None)
    X[-20:] += 100
    moved = CaDReEstimator(**FAST)._source(X, None, None)
    np.testing.assert_array_equal(base.mean, moved.mean)
    assert isinstance(base, MemoryWindows)
    assert WindowDataset(X).mean[0] == WindowDataset(SERIES).mean[0]


def test_batches_of_a_dataset_can_be_asked_again():
    data = WindowDataset(SERIES, 3)
    late = data.batch(7, 1, 16).x
    assert torch.equal(data.batch(2, 1, 16).x, WindowDataset(SERIES, 3).batch(2, 1, 16).x)
    assert torch.equal(data.batch(7, 1, 16).x, late)
    fit = CaDReEstimator(**FAST).fit(data)
    assert fit.transform(data).shape == (300, 1)


def test_datasets_refuse_what_they_cannot_use():
    with pytest.raises(ValueError, match=r"\(time, series\), got \(300,\)"):
        WindowDataset(SERIES[:, 0])
    with pytest.raises(ValueError, match="constant series"):
        WindowDataset(np.ones((100, 2)))
    with pytest.raises(ValueError, match="hold NaN"):
        WindowDataset(np.full((100, 2), np.nan))


def test_each_block_is_read_once():
    class File:
        shape = (200, 3)
        reads = 0

        def __init__(self, rows=slice(None)):
            self.rows = rows

        def __getitem__(self, rows):
            return File(rows)

        @property
        def values(self):
            File.reads += 1
            return np.random.default_rng(0).normal(size=self.shape)[self.rows]

    data = WindowDataset(File(), 3, max_ram=128 * 40 * 3)
    File.reads = 0
    assert sum(len(batch) for batch in data.epoch(np.random.default_rng(0), 16)) == data.training_windows
    assert File.reads == -(-data.training_windows // data.block)


def test_memory_stays_within_the_budget(tmp_path):
    """An array four times the budget is streamed; peak growth of the process stays below the array's size."""
    import subprocess
    import sys

    program = """
import resource, sys
import numpy as np
from cadre.windows import WindowDataset
T, d = 200_000, 40
path = sys.argv[1]
out = np.lib.format.open_memmap(path, "w+", "float32", (T, d))
for s in range(0, T, 20_000):
    out[s:s+20_000] = np.random.default_rng(s).normal(size=(20_000, d)).astype("float32")
del out
class Disk:
    shape = (T, d)
    def __getitem__(self, rows):
        return np.fromfile(path, "float32", (rows.stop - rows.start) * d, offset=128 + 4 * d * rows.start).reshape(-1, d)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
data = WindowDataset(Disk(), 3, max_ram=7 * 2**20)
count = sum(len(b) for _, b in zip(range(60), data.epoch(np.random.default_rng(0), 256)))
grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
print(grown, T * d * 4 / 2**20)
"""
    done = subprocess.run([sys.executable, "-c", program, str(tmp_path / "x.npy")], capture_output=True, text=True)
    grown, size = map(float, done.stdout.split())
    assert size > 4 * 7
    assert grown < 20, done.stdout
