"""Readers and writers in the exact layouts, the command line, bad input, and claims at a small size."""

import csv
import json
import shutil
import subprocess
import sys
import warnings

import numpy as np
import pytest
from typer.testing import CliRunner

from niaf import bench
from niaf.claims import PAPER
from niaf.data import (
    DatasetFormatError,
    LeRobotReader,
    lasa,
    read_calvin,
    read_csv,
    read_robomimic,
    resample_dataset,
    smoothed_velocity,
    write_lerobot,
)
from niaf.resample import DataError, displacement
from papershelf import Run

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")


def episodes(count=3, lengths=(12, 7, 9), delta=False):
    rng = np.random.default_rng(0)
    found = []
    for n in lengths[:count]:
        t = np.arange(n)[:, None] / 20
        action = np.concatenate([np.sin(3 * t + rng.uniform(0, 3, 2)), np.sign(np.sin(9 * t) + 0.01)], 1)
        if delta:
            action[:, :2] *= 0.01
        state = np.concatenate([action[:, :2], t], 1)
        found.append(
            {
                "action": action.astype(np.float32),
                "observation.state": state.astype(np.float32),
                "task": f"task {n % 2}",
            }
        )
    return found


@pytest.mark.parametrize("version", ["v2.0", "v2.1", "v3.0"])
def test_every_layout_round_trips(tmp_path, version):
    given = episodes()
    folder = write_lerobot(tmp_path / "set", given, 20, version, episodes_per_file=2)
    reader = LeRobotReader(folder)
    assert [e.length for e in reader.episodes] == [12, 7, 9]
    for i, episode in enumerate(given):
        found = reader.episode(i)
        for key in ("action", "observation.state"):
            np.testing.assert_array_equal(found[key], episode[key])
        assert found["task"] == episode["task"]
        np.testing.assert_array_equal(found["frame_index"], np.arange(len(episode["action"])))
    info = json.loads((folder / "meta/info.json").read_text())
    assert (info["total_frames"], info["total_episodes"], info["total_tasks"]) == (28, 3, 2)
    if version == "v3.0":
        assert len(reader.files) == 2  # two episodes in the first file, one in the second
        assert (folder / "data/chunk-000/file-001.parquet").is_file()
        pandas = pytest.importorskip("pandas")
        tasks = pandas.read_parquet(folder / "meta/tasks.parquet")
        assert tasks.loc["task 1"].task_index == 1
    else:
        assert (folder / "data/chunk-000/episode_000002.parquet").is_file()
        assert (folder / "meta/episodes_stats.jsonl").is_file() == (version == "v2.1")
    assert not list(tmp_path.glob(".set*"))


def test_early_v2_file_names_come_from_the_pattern(tmp_path):
    folder = write_lerobot(tmp_path / "set", episodes(), 20, "v2.0")
    for i in range(3):
        (folder / f"data/chunk-000/episode_{i:06d}.parquet").rename(folder / f"data/train-{i:05d}-of-00003.parquet")
    path = folder / "meta/info.json"
    info = json.loads(path.read_text())
    info["data_path"] = "data/train-{episode_index:05d}-of-{total_episodes:05d}.parquet"
    path.write_text(json.dumps(info))
    assert LeRobotReader(folder).episode(2)["action"].shape == (9, 3)


def test_chunks_pad_at_the_end_and_never_cross_episodes(tmp_path):
    reader = LeRobotReader(write_lerobot(tmp_path / "set", episodes(), 20, episodes_per_file=2))
    found = reader.chunks(5)
    action, starts = reader.column("action"), reader.starts()
    assert found.action.shape == (28, 5, 3)
    for row in range(28):
        stop = starts[np.searchsorted(starts, row, "right")]
        real = min(5, stop - row)
        assert found.mask[row].tolist() == [False] * real + [True] * (5 - real)
        np.testing.assert_array_equal(found.action[row, :real], action[row : row + real])
        assert (found.action[row, real:] == action[stop - 1]).all()
    short = reader.chunks(8, on_short="skip")
    assert len(short.action) == 5 + 0 + 2
    assert not short.mask.any()
    whole = reader.chunks(50)
    assert whole.mask.any(1).all()
    assert np.isfinite(whole.action).all()


def test_velocities_of_noisy_actions_are_smoothed(tmp_path):
    """Noise of a cubic 7-point derivative is sqrt(16674) / 252 of a sample's, that of a central difference 1 / sqrt 2."""
    noise = np.random.default_rng(0).standard_normal((20_000, 1))
    ratio = smoothed_velocity(noise, 20).std() / np.gradient(noise, 1 / 20, axis=0).std()
    assert ratio == pytest.approx(np.sqrt(16674) / 252 * np.sqrt(2), rel=0.02)
    t = np.arange(60)[:, None] / 20
    x, truth = t**3, 3 * t**2
    np.testing.assert_allclose(smoothed_velocity(x, 20), truth, atol=1e-9)  # exact for cubics
    folder = write_lerobot(tmp_path / "set", [{"action": x, "action.velocity": truth, "observation.state": x}], 20)
    reader = LeRobotReader(folder)
    np.testing.assert_allclose(reader.chunks(4, velocity="recorded").velocity[0], truth[:4], rtol=1e-6)
    assert reader.chunks(4, velocity="diff").velocity.shape == (60, 4, 1)


def test_images_are_embedded_and_read_back(tmp_path):
    images = np.random.default_rng(0).integers(0, 255, (4, 6, 5, 3), dtype=np.uint8)
    given = [{"action": np.zeros((4, 2)), "observation.images.top": images}]
    reader = LeRobotReader(write_lerobot(tmp_path / "set", given, 10))
    np.testing.assert_array_equal(reader.frames("observation.images.top", [2, 0]), images[[2, 0]])
    written, left_out = resample_dataset(tmp_path / "set", tmp_path / "fast", 20)
    assert left_out == ["observation.images.top"]
    assert LeRobotReader(written).features.keys() == {
        "action",
        "timestamp",
        "frame_index",
        "episode_index",
        "index",
        "task_index",
    }


@pytest.mark.parametrize("kind", ["absolute", "delta"])
def test_resampling_doubles_the_rate_and_loses_nothing(tmp_path, kind):
    given = episodes(delta=kind == "delta")
    write_lerobot(tmp_path / "slow", given, 20)
    resample_dataset(tmp_path / "slow", tmp_path / "fast", 40, kind, [2])
    resample_dataset(tmp_path / "fast", tmp_path / "back", 20, kind, [2], "v2.1")
    fast, back = LeRobotReader(tmp_path / "fast"), LeRobotReader(tmp_path / "back")
    assert fast.fps == 40
    for i, episode in enumerate(given):
        f, b, n = fast.episode(i), back.episode(i), len(episode["action"])
        assert len(f["action"]) == (2 * n if kind == "delta" else 2 * n - 1)
        np.testing.assert_allclose(b["action"], episode["action"], atol=1e-6)
        np.testing.assert_allclose(b["observation.state"], episode["observation.state"], atol=1e-5)
        np.testing.assert_allclose(f["timestamp"], np.arange(len(f["action"])) / 40, atol=1e-6)
        if kind == "delta":
            ours = displacement(f["action"].astype(float))[::2, :2]
            np.testing.assert_allclose(ours, displacement(episode["action"].astype(float))[:, :2], atol=1e-6)
        assert f["task"] == episode["task"]


def spoiled(folder, what):
    info = json.loads((folder / "meta/info.json").read_text())
    if what == "version":
        info["codebase_version"] = "v1.6"
    elif what == "feature":
        info["features"]["observation.effort"] = {"dtype": "float32", "shape": [2]}
    elif what == "shape":
        info["features"]["action"]["shape"] = [4]
    elif what == "escape":
        info["data_path"] = "../../secret-{chunk_index}.parquet"
    elif what == "pattern":
        info["data_path"] = "data/{nothing}.parquet"
    (folder / "meta/info.json").write_text(json.dumps(info))
    if what == "file":
        (folder / "data/chunk-000/file-000.parquet").unlink()
    elif what == "parquet":
        (folder / "data/chunk-000/file-000.parquet").write_bytes(b"PAR1")
    elif what == "json":
        (folder / "meta/info.json").write_text("{")
    elif what == "meta":
        shutil.rmtree(folder / "meta/episodes")


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("version", "v1.6.*expected v2.0, v2.1 or v3.0"),
        ("feature", "no column 'observation.effort'"),
        ("shape", r"action has shape \[3\], and meta/info.json says \[4\]"),
        ("escape", "leaves the folder"),
        ("pattern", "bad pattern"),
        ("file", r"file-000.parquet is missing \(pattern"),
        ("parquet", "no readable Parquet file"),
        ("json", "is not JSON"),
        ("meta", "meta/episodes/chunk-000/file-000.parquet is missing"),
    ],
)
def test_a_data_set_that_is_not_as_described_is_refused(tmp_path, what, message):
    folder = write_lerobot(tmp_path / "set", episodes(), 20)
    spoiled(folder, what)
    with pytest.raises(DatasetFormatError, match=message):
        LeRobotReader(folder).column("action")


def test_timestamps_of_a_data_set_name_episode_and_row(tmp_path):
    given = episodes()
    bad = np.arange(7) / 20
    bad[3] = bad[2]
    given[1]["timestamp"] = bad
    with pytest.raises(DataError, match="episode 1, row 3"):
        LeRobotReader(write_lerobot(tmp_path / "a", given, 20)).check_times()
    given[1]["timestamp"] = np.cumsum(np.r_[0, 0.05, 0.05, 0.06, 0.05, 0.05, 0.05])
    with pytest.warns(UserWarning, match="episode 1: timestamps are not uniform"):
        LeRobotReader(write_lerobot(tmp_path / "b", given, 20)).check_times()
    given[1]["action"][2, 0] = np.nan
    reader = LeRobotReader(write_lerobot(tmp_path / "c", given, 20))
    assert reader.chunks(3).mask.sum() == 3 * 3 + 3  # three ends of two, and three chunks with the gap
    with pytest.raises(DataError, match="episode 1, row 2: an action is not finite"):
        resample_dataset(tmp_path / "c", tmp_path / "d", 40)
    assert not (tmp_path / "d").exists()


def robomimic(path):
    h5py = pytest.importorskip("h5py")
    with h5py.File(path, "w") as file:
        file.create_group("data").attrs["problem_info"] = json.dumps({"language_instruction": "open it"})
        for i, n in ((10, 5), (2, 4)):
            demo = file["data"].create_group(f"demo_{i}")
            demo["actions"] = np.full((n, 7), i, float)
            demo["obs/ee_pos"] = np.arange(3 * n).reshape(n, 3).astype(float)
            demo["obs/agentview_rgb"] = np.zeros((n, 4, 4, 3), np.uint8)
    return path


def calvin(folder):
    (folder / "lang_annotations").mkdir(parents=True)
    for i in range(3, 9):
        np.savez(folder / f"episode_{i:07d}.npz", rel_actions=np.full(7, i / 100), actions=np.zeros(7), robot_obs=np.arange(15.0), scene_obs=np.zeros(24), rgb_static=np.zeros((4, 4, 3), np.uint8), rgb_gripper=np.zeros((2, 2, 3), np.uint8))  # fmt: skip
    content = {
        "language": {"ann": ["open drawer", "push block"], "task": ["a", "b"], "emb": np.zeros((2, 3))},
        "info": {"episodes": [], "indx": [(3, 5), (6, 8)]},
    }
    np.save(folder / "lang_annotations/auto_lang_ann.npy", content, allow_pickle=True)
    return folder


def test_robomimic_and_libero_files(tmp_path):
    found = read_robomimic(robomimic(tmp_path / "a.hdf5"))
    assert [e["action"][0, 0] for e in found] == [2, 10]  # in the order of their numbers
    assert found[1]["observation.ee_pos"].shape == (5, 3)
    assert found[0]["task"] == "open it"
    (tmp_path / "b.hdf5").write_bytes(b"no")
    with pytest.raises(DatasetFormatError, match="no readable HDF5"):
        read_robomimic(tmp_path / "b.hdf5")
    with pytest.raises(DatasetFormatError, match="has no 'x'"):
        read_robomimic(tmp_path / "a.hdf5", ["x"])


def test_calvin_folders_are_read_without_running_anything(tmp_path):
    folder = calvin(tmp_path / "training")
    found = read_calvin(folder)
    assert [e["task"] for e in found] == ["open drawer", "push block"]
    np.testing.assert_allclose(found[1]["action"][:, 0], [0.06, 0.07, 0.08])
    assert found[0]["observation.state"].shape == (3, 15)
    (folder / "episode_0000007.npz").unlink()
    with pytest.raises(DatasetFormatError, match=r"episode_0000007.npz is missing"):
        read_calvin(folder)

    class Evil:
        def __reduce__(self):
            return (print, ("run",))

    np.save(folder / "lang_annotations/auto_lang_ann.npy", np.array({"language": Evil()}), allow_pickle=True)
    with pytest.raises(DatasetFormatError, match=r"asks for builtins.print, which is refused"):
        read_calvin(folder)


def test_csv_names_the_row_that_is_wrong(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("t,x,y\n0,1,2\n0.1,2,3\n0.2,3,4\n")
    _, x, names = read_csv(path)
    assert names == ["x", "y"]
    assert x[2].tolist() == [3, 4]
    for text, message in (
        ("a,b\n1,2\n", "expected a header like t,x,y"),
        ("t,x\n0,1\n1,two\n", "row 1: could not convert"),
        ("t,x\n0,1\n1,2,3\n", "row 1: 3 cells"),
        ("t,x\n0,1\n1,nan\n", "row 1: a value is not finite"),
        ("t,x\n0,1\n", "at least 2 rows"),
        ("t,x\n0,1\n0,2\n", "row 1: the timestamp 0 repeats"),
    ):
        path.write_text(text)
        with pytest.raises(DataError, match=message):
            read_csv(path)


def test_lasa_velocities_are_the_derivative_of_positions():
    motions = lasa()
    assert len(motions) == 30
    assert all(len(d) == 7 for d in motions.values())
    d = motions["Angle"][0]
    slope = np.gradient(d.position, d.t, axis=0)
    assert np.sqrt(np.square(slope - d.velocity).mean() / np.square(slope).mean()) < 0.05


# --- command line ----------------------------------------------------------------------------------------------------


def command(*words, cwd):
    """In this process for speed; errors as the command prints them."""
    import contextlib
    import io
    import os
    from unittest import mock

    from niaf.cli import app

    out, err, before = io.StringIO(), io.StringIO(), os.getcwd()  # noqa: PTH109
    os.chdir(cwd)
    try:
        with (
            mock.patch.object(sys, "argv", ["niaf", *map(str, words)]),
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(err),
        ):
            try:
                app()
            except SystemExit as done:
                code = done.code
    finally:
        os.chdir(before)
    return subprocess.CompletedProcess(words, code or 0, out.getvalue(), err.getvalue())


def test_grippers_are_neither_summed_nor_checked(tmp_path):
    t = np.arange(41) / 20
    given = [{"action": np.stack([np.cos(t) / 20, (t > 1).astype(float)], 1), "observation.state": np.zeros((41, 2))}]
    write_lerobot(tmp_path / "set", given, 20)
    words = ("smoothness", "set", "--kind", "delta", "--json")
    with_it, without = (
        json.loads(command(*words, *more, cwd=tmp_path).stdout)[0]["rms_jerk"] for more in ((), ("--gripper", "1"))
    )
    assert without == pytest.approx(np.sqrt(0.5), rel=0.2)  # of the sine that the increments sum to
    assert with_it > 10 * without
    np.save(tmp_path / "chunk.npy", given[0]["action"])
    words = ("check", "chunk.npy", "--kind", "delta", "--vmax", "1.2")
    assert command(*words, cwd=tmp_path).returncode == 1
    assert command(*words, "--gripper", "1", cwd=tmp_path).returncode == 0
    assert "channels lie in 0 to 1" in command(*words, "--gripper", "2", cwd=tmp_path).stderr


def test_uneven_times_are_taken_as_they_are(tmp_path):
    """A parabola sampled unevenly has one acceleration, and its cubic spline keeps it."""
    t = np.sort(np.random.default_rng(0).uniform(0, 2, 30))
    (tmp_path / "a.csv").write_text("\n".join(["t,x", *(f"{float(a)!r},{float(a * a)!r}" for a in t)]))
    assert command("check", "a.csv", "--amax", "2.001", cwd=tmp_path).returncode == 0
    found = json.loads(command("check", "a.csv", "--amax", "1.9", "--json", cwd=tmp_path).stdout)
    assert found["violations"][0]["value"] == pytest.approx(2, abs=1e-3)
    assert command("fit", "a.csv", "--repr", "cubic", "--rate", "50", "-o", "b.csv", cwd=tmp_path).returncode == 0
    rows = list(csv.DictReader((tmp_path / "b.csv").open()))
    np.testing.assert_allclose([float(r["dd_x"]) for r in rows[5:-5]], 2, atol=1e-2)  # its ends are clamped


def test_fit_resample_smoothness_check_train_and_eval(tmp_path):
    t = np.arange(41) / 20
    lines = ["t,x,grip", *(f"{a},{np.sin(2 * a)},{float(a > 1)}" for a in t)]
    (tmp_path / "a.csv").write_text("\n".join(lines))
    done = command(
        "fit", "a.csv", "--rate", 100, "-o", "b.csv", "--gripper", "1", "--steps", 300, "--json", cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    rows = list(csv.DictReader((tmp_path / "b.csv").open()))
    assert len(rows) == 201
    assert list(rows[0]) == ["t", "x", "d_x", "dd_x", "grip"]
    assert max(abs(float(r["x"]) - np.sin(2 * float(r["t"]))) for r in rows) < 0.02
    assert {r["grip"] for r in rows} == {"0", "1"}
    assert json.loads(done.stdout)["residual_rmse"] < 0.01
    for name in ("bspline", "dct", "cubic", "prodmp", "Fourier", "waypoints"):
        assert command("fit", "a.csv", "--repr", name, cwd=tmp_path).returncode == 0
    given = episodes(3, (30, 25, 40))
    write_lerobot(tmp_path / "set", given, 20)
    done = command(
        "resample", "set", "--rate", 40, "-o", "fast", "--kind", "delta", "--gripper", "2", "--json", cwd=tmp_path
    )
    assert json.loads(done.stdout)["frames"] == [95, 190]
    rows = json.loads(command("smoothness", "set", "--json", cwd=tmp_path).stdout)
    assert [r["rms_jerk"] for r in rows] == sorted((r["rms_jerk"] for r in rows), reverse=True)
    np.save(tmp_path / "chunk.npy", np.sin(2 * t)[:, None])
    done = command("check", "chunk.npy", "--vmax", 1.0, "--amax", 100, "--json", cwd=tmp_path)
    assert done.returncode == 1
    found = json.loads(done.stdout)
    assert [v["quantity"] for v in found["violations"]] == ["velocity"]
    assert found["slow_down"] == pytest.approx(2.0, rel=1e-2)
    assert command("check", "chunk.npy", "--vmax", 3, cwd=tmp_path).stdout.strip() == "within every limit"
    words = ["train", "--data", "set", "--steps", 20, "--width", 16, "--groups", 4, "--gripper", "2", "--horizon", 6]
    done = command(*words, "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["test"]["frames"] > 0
    assert "RMS jerk" in command("eval", "niaf-policy", "--data", "set", cwd=tmp_path).stdout


def test_convert_recipe_and_simulate(tmp_path):
    calvin(tmp_path / "training")
    robomimic(tmp_path / "a.hdf5")
    assert "2 episodes, 6 frames at 30 Hz" in command("convert", "calvin", "training", "c", cwd=tmp_path).stdout
    assert "2 episodes, 9 frames at 20 Hz" in command("convert", "robomimic", "a.hdf5", "r", cwd=tmp_path).stdout
    assert LeRobotReader(tmp_path / "c").features["observation.images.static"]["dtype"] == "image"
    assert LeRobotReader(tmp_path / "r").episode(1)["observation.state"].shape == (5, 3)
    assert "torchrun" in command("recipe", "libero", cwd=tmp_path).stdout
    done = command("simulate", "--duration", 1, "--json", cwd=tmp_path)
    rows = json.loads(done.stdout)["rows"]
    assert rows["analytic"]["effort_rate"] < rows["lerp+FD"]["effort_rate"] / 20
    assert (tmp_path / "niaf-simulate/point.png").stat().st_size > 10_000


def test_run_prints_a_table_and_draws(tmp_path):
    done = command("run", "--steps", 20, "--no-paper", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "waypoints" in done.stdout
    assert (tmp_path / "niaf-run/chunk.png").stat().st_size > 10_000
    assert len((tmp_path / "niaf-run/table.csv").read_text().splitlines()) == 7


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["fit", "nothing.csv"], "no file nothing.csv"),
        (["fit", "x", "--repr", "wavelet"], "got 'wavelet'"),
        (["fit", "x", "--rate", "0"], "must be positive, got 0"),
        (["fit", "x", "--kind", "relative"], 'must be "absolute" or "delta", got'),
        (["train", "--data", "nothing"], "nothing is no folder"),
        (["train", "--data", "x", "--head", "mlp"], "got 'mlp'"),
        (["train", "--data", "x", "--velocity", "diff", "--kind", "delta"], "increments are velocities already"),
        (["eval", "nothing", "--data", "x"], "nothing holds no policy"),
        (["resample", "nothing", "--rate", "10", "-o", "y"], "nothing is no folder"),
        (["smoothness", "nothing"], "nothing is no folder"),
        (["check", "x.npy"], "at least one of --vmax"),
        (["check", "x.npy", "--vmax", "1"], "no array file"),
        (["check", "x.npy", "--vmax", "-1"], "limit on velocity must be positive"),
        (["check", "x.npy", "--vmax", "1", "--fps", "0"], "--fps must be positive"),
        (["simulate", "--model", "car"], "point or arm, got 'car'"),
        (["simulate", "--rate", "0"], "must be positive, got 0"),
        (["recipe", "robocasa"], "got 'robocasa'"),
        (["convert", "rlds", "a", "b"], "calvin or robomimic, got 'rlds'"),
        (["bench", "speed"], "got 'speed'"),
    ],
)
def test_bad_words_get_one_line_and_code_2(tmp_path, words, message):
    done = command(*words, cwd=tmp_path)
    assert done.returncode == 2
    assert len(done.stderr.strip().splitlines()) == 1
    assert message in " ".join(done.stderr.split())
    assert [p.name for p in tmp_path.iterdir()] == []


def test_help_teaches():
    from niaf.cli import app

    text = CliRunner().invoke(app, ["resample", "--help"]).output
    assert "increments" in text


@pytest.mark.parametrize("topic", ["derivatives", "splines", "sampling", "primitives"])
def test_benchmarks_run_at_a_small_size(tmp_path, topic):
    pytest.importorskip({"sampling": "datasets", "primitives": "movement_primitives"}.get(topic, "numpy"))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert bench.TOPICS[topic](tmp_path, quick=True)
    assert (tmp_path / f"{topic}.json").is_file()


@pytest.mark.parametrize("claim", PAPER.claims[:-1], ids=lambda c: c.id)
def test_claims_at_a_small_size(claim, tmp_path):
    outcome = claim.measure(Run(seed=1, scale="tiny", out=tmp_path))
    values = outcome.values
    match claim.id:
        case "N1":
            assert max(values["errors"]) <= 1e-12
        case "N2":
            assert values["paper_fails_in"] == 1
        case "N3":
            assert values["ratios"][0] < 1
        case "N4":
            assert values["jerk"][1] < values["jerk"][0]
        case "N5" | "N6":
            assert outcome.holds
        case _:
            assert all(np.isfinite(e).all() for e in values["errors"].values())
