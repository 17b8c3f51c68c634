"""Videos, quaternions, LoRA, the split by motions; lerobot and Meta-World in environments of their own."""

import json
import os
import shutil
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import av
import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from typer.testing import CliRunner

from niaf.backbones import VLMBackbone, with_lora
from niaf.cli import app
from niaf.data import (
    DatasetFormatError,
    LeRobotReader,
    lasa,
    lasa_split,
    lasa_task,
    resample_dataset,
    write_lerobot,
)
from niaf.impedance import unit_quaternions_in
from papershelf import InputError

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
UV = os.environ.get("UV") or shutil.which("uv") or str(ROOT / ".shelf/bin/uv")


def episodes(lengths, rng, channels=7):
    return [
        {
            "action": rng.standard_normal((n, channels)).astype(np.float32),
            "observation.state": rng.standard_normal((n, 8)).astype(np.float32),
            "task": f"task {n % 2}",
        }
        for n in lengths
    ]


def film(path, values, fps):
    """A video whose n-th frame is grey of the n-th value."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with av.open(str(path), "w") as opened:
        stream = opened.add_stream("mpeg4", rate=fps)
        stream.width, stream.height, stream.pix_fmt, stream.gop_size = 32, 32, "yuv420p", 5
        for value in values:
            image = np.full((32, 32, 3), value, np.uint8)
            opened.mux(stream.encode(av.VideoFrame.from_ndarray(image, format="rgb24")))
        opened.mux(stream.encode())


def filmed(folder, version_, lengths=(6, 9, 4), fps=20):
    """A data set with a camera; every frame's grey is its row times eight."""
    write_lerobot(folder, episodes(lengths, np.random.default_rng(0)), fps, version_, episodes_per_file=2)
    starts = np.concatenate([[0], np.cumsum(lengths)])
    pattern = (
        "videos/{video_key}/chunk-{chunk_index:03d}/file-{file_index:03d}.mp4"
        if version_ == "v3.0"
        else "videos/chunk-{episode_chunk:03d}/{video_key}/episode_{episode_index:06d}.mp4"
    )
    found = json.loads((folder / "meta/info.json").read_text())
    found["video_path"] = pattern
    found["features"]["observation.images.top"] = {"dtype": "video", "shape": [32, 32, 3], "names": None}
    (folder / "meta/info.json").write_text(json.dumps(found))
    if version_ == "v3.0":  # the first two episodes share a file
        for number, (first, last) in enumerate(((0, starts[2]), (starts[2], starts[3]))):
            file = folder / f"videos/observation.images.top/chunk-000/file-{number:03d}.mp4"
            film(file, [8 * r for r in range(first, last)], fps)
        part = folder / "meta/episodes/chunk-000/file-000.parquet"
        table = pq.read_table(part)
        for name, values in (
            ("chunk_index", [0, 0, 0]),
            ("file_index", [0, 0, 1]),
            ("from_timestamp", [0.0, lengths[0] / fps, 0.0]),
        ):
            table = table.append_column(f"videos/observation.images.top/{name}", [values])
        pq.write_table(table, part)
    else:
        for i, n in enumerate(lengths):
            file = folder / f"videos/chunk-000/observation.images.top/episode_{i:06d}.mp4"
            film(file, [8 * (starts[i] + k) for k in range(n)], fps)
    return folder


@pytest.mark.parametrize("layout", ["v2.1", "v3.0"])
def test_frames_of_videos_are_those_of_their_rows(tmp_path, layout):
    reader = LeRobotReader(filmed(tmp_path / "set", layout))
    rows = np.array([14, 0, 5, 6, 18, 9])
    images = reader.frames("observation.images.top", rows)
    assert images.shape == (6, 32, 32, 3)
    np.testing.assert_allclose(images.mean((1, 2, 3)), 8 * rows, atol=3)


def test_videos_that_are_short_missing_or_damaged_are_named(tmp_path):
    folder = filmed(tmp_path / "set", "v3.0")
    last = folder / "videos/observation.images.top/chunk-000/file-001.mp4"
    film(last, [0, 0], 20)
    reader = LeRobotReader(folder)
    with pytest.raises(DatasetFormatError, match=r"file-001\.mp4: no frame at 0\.150 s"):
        reader.frames("observation.images.top", [18])
    last.write_bytes(b"no video")
    with pytest.raises(DatasetFormatError, match=r"file-001\.mp4 is no readable video"):
        reader.frames("observation.images.top", [18])
    last.unlink()
    assert len(LeRobotReader(folder).column("action")) == 19  # numbers can be read without the videos
    with pytest.raises(DatasetFormatError, match=r"file-001\.mp4 is no readable video"):
        LeRobotReader(folder).frames("observation.images.top", [18])


# --- quaternions ---------------------------------------------------------------------------------------------------


def turning(n, rng):
    """Unit quaternions of a slow turn, and the same with flipped signs and other lengths."""
    angle = np.linspace(0, 2, n)
    clean = np.stack([np.cos(angle / 2), np.sin(angle / 2) * 0.6, np.sin(angle / 2) * 0.8, 0 * angle], 1)
    dirty = clean * rng.choice([-1.0, 1.0], n)[:, None] * rng.uniform(0.7, 1.3, n)[:, None]
    dirty[0] = clean[0]
    return clean, dirty


def test_resampled_quaternions_have_no_flips_and_length_1(tmp_path):
    rng = np.random.default_rng(0)
    clean, dirty = turning(21, rng)
    data = episodes([21], rng, 5)
    data[0]["action"][:, 1:] = dirty
    data[0]["observation.state"][:, 2:6] = dirty
    source = write_lerobot(tmp_path / "a", data, 10)
    quaternions = {"action": [1], "observation.state": [2]}
    resample_dataset(source, tmp_path / "b", 40, quaternions=quaternions)
    found = LeRobotReader(tmp_path / "b")
    fine, _ = turning(81, rng)
    for key, first in (("action", 1), ("observation.state", 2)):
        q = found.column(key)[:, first : first + 4]
        np.testing.assert_allclose(np.linalg.norm(q, axis=1), 1, atol=1e-6)
        np.testing.assert_allclose(q, fine, atol=2e-4)
    with pytest.raises(InputError, match="no four channels"):
        resample_dataset(source, tmp_path / "c", 40, quaternions={"action": [2]})
    with pytest.raises(InputError, match="increments are no unit quaternions"):
        resample_dataset(source, tmp_path / "c", 40, "delta", quaternions=quaternions)
    assert not (tmp_path / "c").exists()
    np.testing.assert_allclose(unit_quaternions_in(dirty, [0]), clean, atol=1e-12)
    with pytest.raises(ValueError, match="frame 3 holds a zero quaternion"):
        unit_quaternions_in(np.where(np.arange(21)[:, None] == 3, 0, dirty), [0])


def test_commands_take_quaternions(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    _, dirty = turning(41, rng)
    t = np.linspace(0, 2, 41)
    lines = ["t,x,w,i,j,k", *(",".join(f"{v:.9g}" for v in row) for row in np.column_stack([t, np.sin(t), dirty]))]
    Path("turn.csv").write_text("\n".join(lines) + "\n")
    words = ["fit", "turn.csv", "--repr", "B-spline", "--rate", "100", "-o", "out.csv"]
    done = CliRunner().invoke(app, [*words, "--quaternion", "1"])
    assert done.exit_code == 0
    table = np.loadtxt("out.csv", delimiter=",", skiprows=1)
    np.testing.assert_allclose(np.linalg.norm(table[:, 2:6], axis=1), 1, atol=1e-3)
    for extra, message in (
        (["--quaternion", "2"], "takes four"),
        (["--quaternion", "1", "--kind", "delta"], "increments"),
    ):
        with pytest.raises(InputError, match=message):
            CliRunner().invoke(app, [*words, *extra], catch_exceptions=False)


# --- LoRA ----------------------------------------------------------------------------------------------------------


def tiny_smolvlm():
    from transformers import AutoConfig

    text = {"model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 96,
            "num_key_value_heads": 4, "vocab_size": 100, "pad_token_id": 0}  # fmt: skip
    vision = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4, "intermediate_size": 64, "image_size": 32,
              "patch_size": 8}  # fmt: skip
    return AutoConfig.for_model(
        "smolvlm", text_config=text, vision_config=vision, image_token_id=99, scale_factor=2, pad_token_id=0
    )


def test_lora_trains_updates_and_queries_and_leaves_the_model_alone():
    torch.manual_seed(0)
    backbone = VLMBackbone.from_config(tiny_smolvlm(), 6)
    batch = {"input_ids": torch.randint(1, 90, (2, 5)), "attention_mask": torch.ones(2, 5, dtype=torch.long)}
    with torch.no_grad():
        before = backbone(batch)
    backbone.model = with_lora(backbone.model, 4)
    with torch.no_grad():
        torch.testing.assert_close(backbone(batch), before)  # an untrained update is zero
    trained = {n for n, p in backbone.named_parameters() if p.requires_grad}
    assert "queries" in trained
    assert all("lora_" in n for n in trained - {"queries"})
    frozen = {n: p.clone() for n, p in backbone.named_parameters() if not p.requires_grad}
    optimiser = torch.optim.Adam([p for p in backbone.parameters() if p.requires_grad], lr=1e-2)
    losses, target = [], torch.randn(2, 6, 64)
    for _ in range(60):
        loss = (backbone(batch) - target).square().mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < 0.5 * losses[0]
    now = dict(backbone.named_parameters())
    assert all(torch.equal(now[n], p) for n, p in frozen.items())
    with pytest.raises(InputError, match="rank of LoRA must be at least 1, got 0"):
        with_lora(torch.nn.Linear(2, 2), 0)
    with pytest.raises(InputError, match="no LoRA for Linear"):
        with_lora(torch.nn.Linear(2, 2), 2)


# --- splits --------------------------------------------------------------------------------------------------------


def test_motions_that_are_left_out_are_not_in_training_and_have_no_labels():
    seen, unseen = lasa_split("motions")
    assert set(seen["motions"]) | set(unseen["motions"]) == set(lasa())
    assert not set(seen["motions"]) & set(unseen["motions"])
    assert len(unseen["motions"]) == 6
    train, test = (lasa_task(n_samples=5, stride=1.0, dense=2, **part) for part in (seen, unseen))
    assert not set(train.episode // 7) & set(test.episode // 7)
    assert (train.cond[:, :30] == 0).all()
    demos = [lasa_task(n_samples=5, stride=1.0, dense=2, **part) for part in lasa_split()]
    assert set(demos[0].episode % 7) == {0, 1, 2, 3, 4}
    assert set(demos[1].episode % 7) == {5, 6}
    with pytest.raises(InputError, match="demonstrations or motions, got 'users'"):
        lasa_split("users")


# --- other people's software ---------------------------------------------------------------------------------------

LEROBOT = """
import sys
import torch
from lerobot.datasets.lerobot_dataset import LeRobotDataset
from lerobot.configs.types import FeatureType, PolicyFeature
from niaf.policy import lerobot_policy

for name, fps, frames in (("a", 20, 28), ("b", 40, 56)):
    data = LeRobotDataset("niaf/x", root=f"{sys.argv[1]}/{name}")
    assert (data.fps, len(data), data.num_episodes) == (fps, frames, 3)
    assert data[0]["action"].shape == (7,) and data[frames - 1]["observation.state"].shape == (8,)
first = LeRobotDataset("niaf/x", root=f"{sys.argv[1]}/a")
assert first[13]["task"] == "task 1" and first[13]["observation.images.top"].shape == (3, 24, 32)
policy_type = lerobot_policy()
features = PolicyFeature(type=FeatureType.STATE, shape=(8,)), PolicyFeature(type=FeatureType.ACTION, shape=(7,))
config = policy_type.config_class(
    input_features={"observation.state": features[0]}, output_features={"action": features[1]}, device="cpu"
)
policy = policy_type(config)
batch = {"observation.state": torch.randn(4, 8), "action": torch.randn(4, 10, 7), "task": ["a"] * 4,
         "action_is_pad": torch.zeros(4, 10, dtype=torch.bool)}
policy.forward(batch)[0].backward()
policy.save_pretrained(f"{sys.argv[1]}/policy")
again = policy_type.from_pretrained(f"{sys.argv[1]}/policy").eval()
assert torch.allclose(again.predict_action_chunk(batch), policy.eval().predict_action_chunk(batch))
print("opened")
"""


def run(*words, **more):
    done = subprocess.run([str(w) for w in words], capture_output=True, text=True, timeout=280, **more)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.network
def test_lerobot_opens_what_is_written_and_runs_the_policy(tmp_path):
    rng = np.random.default_rng(0)
    data = episodes((12, 7, 9), rng)
    for one in data:
        one["observation.images.top"] = rng.integers(0, 255, (len(one["action"]), 24, 32, 3), dtype=np.uint8)
    write_lerobot(tmp_path / "a", data, 20, episodes_per_file=2)
    resample_dataset(tmp_path / "a", tmp_path / "b", 40, "delta", [6])
    # lerobot 0.4 asks for an older torch; the reader and the policy base class work with the installed one
    (tmp_path / "overrides.txt").write_text(
        "\n".join(f"{n}=={version(n)}" for n in ("torch", "torchvision", "numpy", "pyarrow", "scipy", "scikit-learn"))
    )
    python = tmp_path / "env/bin/python"
    run(UV, "venv", "-q", "--python", sys.executable, tmp_path / "env")
    wanted = ("lerobot==0.4.4", "scipy", "scikit-learn", "typer", "rich", "platformdirs", "filelock")
    run(UV, "pip", "install", "-q", "--python", python, "--override", tmp_path / "overrides.txt", *wanted)
    (tmp_path / "check.py").write_text(LEROBOT)
    run(UV, "pip", "install", "-q", "--python", python, "--no-deps", HERE.parent, ROOT / "shared")
    environment = {**os.environ, "HF_HUB_OFFLINE": "1"}
    assert "opened" in run(python, tmp_path / "check.py", tmp_path, env=environment)


@pytest.mark.network
def test_metaworld_s_scripted_policies_become_a_data_set(tmp_path):
    script = HERE.parent / "tools/make_mw_demos.py"
    alone = (UV, "run", "-q", "--isolated", "--package", "papershelf-niaf", "--extra", "data")
    extra = ("--with", "metaworld==3.1.1", "--with", "packaging")
    given = (tmp_path / "mw", "--tasks", "reach-v3", "--episodes", "2")
    run(*alone, *extra, "python", script, *given, cwd=ROOT)
    reader = LeRobotReader(tmp_path / "mw")
    assert reader.fps == 80
    assert [e.tasks for e in reader.episodes] == [("reach",), ("reach",)]
    assert reader.column("action").shape[1] == 4
    assert np.abs(reader.column("action")).max() <= 1
    assert reader.column("observation.state").shape[1] == 39
    resample_dataset(tmp_path / "mw", tmp_path / "half", 40, "delta", [3])
    half = LeRobotReader(tmp_path / "half")
    for i in range(2):  # increments of the hand add up to the same displacement
        whole, part = (r.episode(i, ["action"])["action"][:, :3].sum(0) for r in (reader, half))
        np.testing.assert_allclose(part, whole, atol=0.05 * np.abs(whole).max() + 1e-3)
