"""The command line on files of a new user, and the claims at a small size."""

import contextlib
import functools
import io
import json
from dataclasses import dataclass

import numpy as np
import pytest

from anisonet import claims, cli, data
from anisonet.audit import leakage_probe
from anisonet.claims import PAPER
from anisonet.cli import app
from anisonet.clouds import read_ply, write_ply
from papershelf import InputError, Run


@dataclass
class Done:
    returncode: int
    stdout: str
    stderr: str


def command(*words, cwd=None):
    """Run the command line in this process."""
    out, err = io.StringIO(), io.StringIO()
    with (
        contextlib.chdir(cwd or "."),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
        pytest.raises(SystemExit) as left,
    ):
        app([str(word) for word in words])
    return Done(int(left.value.code or 0), out.getvalue(), err.getvalue())


@pytest.fixture(autouse=True, scope="module")
def few_scenes():
    """A tenth of the embedded scenes, so that the commands end soon."""
    whole = data.mw_scenes()
    few = whole._replace(train=whole.train[::10], test=whole.test[::10])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(data, "mw_scenes", lambda: few)
        patch.setattr(claims, "mw_scenes", lambda: few)
        patch.setattr(cli, "leakage_probe", functools.partial(leakage_probe, steps=20))
        views = data.mw_objects()
        views = views._replace(train=views.train[::16], test=views.test[::16])
        patch.setattr(data, "mw_objects", lambda *_: views)
        patch.setattr(claims, "mw_objects", lambda *_: views)
        yield


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A model trained for a few steps, and a file to use it on."""
    where = tmp_path_factory.mktemp("cli")
    done = command("train", "seg_tiny", "--steps", 4, "--out", where / "seg", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["file_order"] == "shuffle"
    done = command("train", "cls_tiny", "--data", "mw-objects", "--steps", 2, "--out", where / "cls")
    assert done.returncode == 0, done.stderr
    cloud = data.mw_scenes().test[0]
    write_ply(where / "scene.ply", cloud.xyz + 1000.0, {"label": cloud.labels})
    return where


def test_segment_writes_all_points_and_a_picture(folder):
    done = command(
        "segment", folder / "scene.ply", "-c", folder / "seg", "-o", folder / "out.ply", "--votes", 2, "--png"
    )
    assert done.returncode == 0, done.stderr
    out = read_ply(folder / "out.ply")
    assert np.allclose(out.xyz + out.origin, read_ply(folder / "scene.ply").xyz + read_ply(folder / "scene.ply").origin)
    assert set(np.unique(out.labels)) <= set(range(5))
    assert (out.scalars["confidence"] > 0).all()
    assert (folder / "out.png").stat().st_size > 10_000
    assert json.loads((folder / "out.json").read_text())["points"] == 1024


def test_describe_serialize_and_classify(folder):
    done = command("describe", folder / "scene.ply", "--png", "planarity", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["points"] == 1024
    shape = read_ply(folder / "scene-shape.ply")
    assert {"linearity", "planarity", "sphericity"} <= set(shape.scalars)
    assert np.allclose(np.linalg.norm(shape.normals, axis=1), 1, atol=1e-5)
    done = command("serialize", folder / "scene.ply", "--curve", "hilbert", "--bits", 8)
    assert done.returncode == 0, done.stderr
    assert (np.diff(read_ply(folder / "scene-hilbert.ply").scalars["code"]) >= 0).all()
    done = command("classify", folder / "scene.ply", "-c", folder / "cls", "--normalise", "--json")
    assert done.returncode == 0, done.stderr
    assert sum(json.loads(done.stdout)["probabilities"].values()) == pytest.approx(1)


def test_eval_and_audit(folder):
    done = command("eval", "-c", folder / "seg", "--json")
    assert done.returncode == 0, done.stderr
    assert 0 < json.loads(done.stdout)["miou"] < 1
    done = command("audit", "--no-probe", "-c", folder / "seg", "--json", "--out", folder / "audit.json")
    assert done.returncode == 0, done.stderr
    found = json.loads((folder / "audit.json").read_text())
    assert found["verdict"].startswith("the order carries the labels")
    assert [row["order"] for row in found["orders"]][:2] == ["identity", "reverse"]
    rng = np.random.default_rng(0)
    write_ply(folder / "mixed.ply", rng.uniform(size=(500, 3)), {"label": rng.integers(0, 3, 500)})
    done = command("audit", "--data", folder / "mixed.ply", "--no-probe")
    assert "no sign that the order carries the labels" in done.stdout


def test_count_and_data(folder):
    done = command("count", "seg_scannet", "--json")
    found = json.loads(done.stdout)["seg_scannet"]
    assert found["flops"] == 2 * found["macs"]
    assert "GMACs" in command("count", "seg_tiny").stdout
    assert "robot arm" in command("data", "check", "mw-scenes").stdout
    assert "metaworld" in command("data", "make-mw").stdout
    assert "steps: 160" in command("train", "seg_tiny", "--dry-run", "--network", "PTv3Like").stdout


def test_ablation_measures_every_setting_once_and_goes_on(tmp_path):
    words = ("ablate", "--steps", 1, "--ese", "none,ellipsoid", "--orders", "morton", "--readouts", "final", "--json")
    done = command(*words, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)
    assert [(r["ese"], r["gisa"]) for r in rows] == [
        ("none", False),
        ("none", True),
        ("ellipsoid", False),
        ("ellipsoid", True),
    ]
    assert rows[1]["parameters"] > rows[0]["parameters"]
    again = json.loads(command(*words, cwd=tmp_path).stdout)
    assert [r["seconds"] for r in again] == [r["seconds"] for r in rows]  # read, not measured again


def test_run_makes_everything(tmp_path):
    done = command("run", "--steps", 2, "--out", tmp_path / "r")
    assert done.returncode == 0, done.stderr
    for name in (
        "model.safetensors",
        "config.json",
        "result.json",
        "scene.png",
        "classes.json",
        "training.safetensors",
    ):
        assert (tmp_path / "r" / name).is_file(), name
    assert "audit:" in done.stdout


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("segment", "none.ply", "-c", "seg"), "no file"),
        (("segment", "scene.ply", "-c", "seg", "-o", "scene.ply"), "another file than the input"),
        (("segment", "scene.ply", "-c", "seg", "-o", "x.txt"), "end in .ply"),
        (("segment", "scene.ply", "-c", "seg", "-o", "no/x.ply"), "no folder"),
        (("segment", "scene.ply", "-c", "cls"), "expected a segmentation model"),
        (("segment", "scene.ply", "-c", "nothing"), "config.json"),
        (("classify", "scene.ply", "-c", "seg"), "expected a classification model"),
        (("segment", "scene.ply", "-c", "seg", "--device", "cuda:77"), "no device"),
        (("segment", "scene.ply", "-c", "seg", "--up", "w"), "--up x, y or z"),
        (("segment", "scene.ply", "-c", "seg", "--sample", "10"), "expected a mesh"),
        (("describe", "scene.ply", "--png", "roundness"), "--png of linearity"),
        (("serialize", "scene.ply", "--curve", "peano"), "expected an order"),
        (("train", "seg_huge"), "configuration of seg_s3dis"),
        (("train", "seg_tiny", "--data", "nowhere"), "mw-scenes, mw-objects or a folder"),
        (("train", "seg_tiny", "--file-order", "sorted"), "file_order shuffle or keep"),
        (("train", "seg_tiny", "--network", "Foo", "--dry-run"), "network of PointNet"),
        (("train", "none.json"), "no file"),
        (("eval", "-c", "seg", "--order", "zigzag"), "--order of identity"),
        (("audit", "--data", "bare.ply"), "expected labelled points"),
        (("data", "check", "."), "expected a folder of s3dis"),
        (("bench", "everything"), "peers or scaling"),
        (("ablate", "--ese", "cube"), "--ese of ellipsoid"),
        (("ablate", "--engine", "slurm"), "--engine local, ray or dask"),
    ],
)
def test_bad_input_is_one_line(folder, words, message):
    write_ply(folder / "bare.ply", np.eye(3))
    before = sorted(p.name for p in folder.iterdir())
    done = command(*words, cwd=folder)
    assert done.returncode == 2
    assert message in done.stderr
    assert done.stderr.strip().count("\n") == 0
    assert sorted(p.name for p in folder.iterdir()) == before


@pytest.mark.parametrize("claim", [c for c in PAPER.claims if c.scale == "quick"], ids=lambda c: c.id)
def test_claims_at_a_small_size(claim, tmp_path):
    found = claim.measure(Run(scale="tiny", out=tmp_path))
    assert found.measured
    if claim.id in ("C3", "C4", "C7"):  # what must be true at any size
        assert found.holds


def test_headline_recipe_starts_on_a_folder_in_the_public_layout(tmp_path):
    claim = PAPER.claim("C9")
    with pytest.raises(InputError, match="--data FOLDER"):
        claim.measure(Run(scale="full", out=tmp_path))
    rng = np.random.default_rng(0)
    for area in (1, 5):
        notes = tmp_path / "s3dis" / f"Area_{area}" / "office_1" / "Annotations"
        notes.mkdir(parents=True)
        for name in ("floor_1", "chair_1"):
            rows = np.c_[rng.uniform(0, 2, (300, 3)), rng.integers(0, 255, (300, 3))]
            np.savetxt(notes / f"{name}.txt", rows, fmt="%.3f")
    options = {"data": str(tmp_path / "s3dis"), "order": "", "file_order": "", "steps": 1}
    found = claim.measure(Run(scale="full", out=tmp_path, options=options))
    assert found.holds is False
    assert "file order shuffle" in found.measured
