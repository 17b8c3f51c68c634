"""Files, the command line as a new user types it, and the claims at a small size."""

import contextlib
import io
import json
from dataclasses import dataclass

import numpy as np
import pandas as pd
import pytest
from scipy.io import savemat

from kanfis.claims import PAPER, score, split
from kanfis.cli import app
from kanfis.data import load, load_table
from kanfis.peers import peers
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


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    where = tmp_path_factory.mktemp("cli")
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"dose": rng.uniform(0, 10, 120), "group": rng.choice(["a", "b"], 120)})
    frame["effect"] = frame["dose"] ** 2 + 5 * (frame["group"] == "a")
    frame.to_csv(where / "trial.csv", index=False)
    done = command(
        "run",
        "--data",
        where / "trial.csv",
        "--interval",
        "0.2",
        "--type",
        "it2",
        "--rules",
        where / "r.c",
        "--out",
        where / "run",
    )
    assert done.returncode == 0, done.stderr
    assert "IF dose is high" in done.stdout
    assert "spline GAM" in done.stdout
    return where


def test_run_leaves_rules_pictures_and_scores(folder):
    for name in ("rules.json", "rules.md", "memberships.png", "shapes.png", "row.png", "result.json"):
        assert (folder / "run" / name).stat().st_size > 200, name
    result = json.loads((folder / "run" / "result.json").read_text())
    assert result["intervals"]["covered"] > 0.6
    assert min(result["scores"], key=result["scores"].get) in result["scores"]
    assert "kanfis_predict" in (folder / "r.c").read_text()


def test_rules_and_explain(folder):
    rules = folder / "run" / "rules.json"
    assert "| if |" in command("rules", rules, "--format", "md").stdout
    assert command("rules", rules, "--format", "c", "--out", folder / "x.c").returncode == 0
    done = command("explain", rules, "--data", folder / "trial.csv", "--row", 3, "--json", "--plot", folder / "e.png")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["average"] + sum(found["contributions"].values()) == pytest.approx(found["value"], abs=1e-6)
    assert "rules that are true of it" in command("explain", rules, "--data", folder / "trial.csv").stdout
    assert (folder / "e.png").is_file()


def test_classification_with_sets_and_missing_values(tmp_path):
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"x": rng.normal(size=150), "z": rng.normal(size=150)})
    frame["kind"] = np.where(frame["x"] > 0, "up", "down")
    frame.loc[::9, "z"] = np.nan
    frame.to_csv(tmp_path / "t.csv", index=False)
    done = command("run", "--data", "t.csv", "--target", "kind", "--interval", "0.1", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["scores"]["kanfis"] > 0.9
    assert found["sets"]["covered"] > 0.7


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("run", "--data", "none.csv"), "no file"),
        (("run", "--data", "nothing"), "expected a table of iris"),
        (("run", "--data", "trial.csv", "--target", "foo"), "no column 'foo'"),
        (("run", "--data", "trial.csv", "--rules", "r.xls"), "--rules to end in"),
        (("run", "--data", "trial.csv", "--rules", "no/r.json"), "no folder"),
        (("run", "--data", "trial.csv", "--terms", "0"), "--terms auto or a number"),
        (("run", "--data", "trial.csv", "--type", "t9"), "fuzzy_type of t1, it2"),
        (("run", "--data", "trial.csv", "--structure", "tree"), "structure of term, paper"),
        (("run", "--data", "trial.csv", "--interval", "2"), "--interval between 0 and 1"),
        (("rules", "none.json"), "no file"),
        (("rules", "broken.json"), "line 1, column 2"),
        (("rules", "run/rules.json", "--format", "docx"), "--format of text"),
        (("explain", "run/rules.json", "--data", "trial.csv", "--row", "999"), "--row from 0 to 119"),
        (("explain", "run/rules.json", "--data", "iris"), "no column 'dose'"),
        (("explain", "run/rules.json", "--data", "trial.csv", "--output", "foo"), "--output of"),
    ],
)
def test_bad_input_is_one_line(folder, words, message):
    (folder / "broken.json").write_text("{x")
    before = sorted(p.name for p in folder.iterdir())
    done = command(*words, cwd=folder)
    assert done.returncode == 2, done.stderr
    assert message in done.stderr
    assert done.stderr.strip().count("\n") == 0
    assert sorted(p.name for p in folder.iterdir()) == before


ARFF = """@relation iris
@attribute Length real [4.3, 7.9]
@attribute Kind {a, b}
@inputs Length
@outputs Kind
@data
5.1,a
4.9,b
"""


def test_files_of_many_kinds(tmp_path):
    frame = pd.DataFrame({"a": [1.0, 2.0, 3.0], "b": [0.5, 0.25, 0.0], "y": [1.5, 2.5, 3.5]})
    frame.to_csv(tmp_path / "t.tsv", sep="\t", index=False)
    frame.to_csv(tmp_path / "s.csv", sep=";", index=False)
    frame.to_parquet(tmp_path / "t.parquet")
    frame.to_feather(tmp_path / "t.feather")
    savemat(tmp_path / "t.mat", {"data": frame.to_numpy()})
    savemat(tmp_path / "two.mat", {"X": frame[["a", "b"]].to_numpy(), "y": frame[["y"]].to_numpy()})
    for name in ("t.tsv", "s.csv", "t.parquet", "t.feather", "t.mat", "two.mat"):
        table = load_table(str(tmp_path / name))
        assert np.allclose(table.X.to_numpy(), frame[["a", "b"]].to_numpy()), name
        assert np.allclose(table.y, frame["y"]), name
        assert not table.classification
    (tmp_path / "k.arff").write_text(ARFF.replace(" [4.3, 7.9]", ""))
    table = load_table(str(tmp_path / "k.arff"))
    assert table.y.tolist() == ["a", "b"]
    assert table.classification
    (tmp_path / "bad.arff").write_text("@relation x\n@data\n1,2\n@attribute")
    with pytest.raises(InputError):
        load_table(str(tmp_path / "bad.arff"))
    (tmp_path / "one.csv").write_text("a\n1\n")
    with pytest.raises(InputError, match="at least one feature and a target"):
        load_table(str(tmp_path / "one.csv"))
    with pytest.raises(InputError, match=r"ends in \.csv"):
        load_table(str(tmp_path / "t.docx")) if (tmp_path / "t.docx").write_text("x") else None
    with pytest.raises(InputError, match="scikit-learn's cache"):
        load("california")


def test_accuracy_claim_on_files_of_one_s_own(tmp_path):
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"x": rng.uniform(-2, 2, 200), "z": rng.normal(size=200)})
    frame["y"] = np.sin(2 * frame["x"]) + 0.1 * rng.normal(size=200)
    frame.to_csv(tmp_path / "wave.csv", index=False)
    run = Run(scale="tiny", out=tmp_path, options={"data": str(tmp_path / "wave.csv")})
    found = PAPER.claim("C2").measure(run)
    assert "wave.csv" in found.measured
    assert "1 of 1" in found.measured or "0 of 1" in found.measured


def test_claims_can_run_on_another_engine(tmp_path):
    here, there = (
        PAPER.claim("C4").measure(Run(scale="tiny", out=tmp_path, options=o))
        for o in ({}, {"engine": "dask", "jobs": 2})
    )
    assert here.measured == there.measured
    left = command("reproduce", "C4", "--engine", "spark", cwd=tmp_path)
    assert left.returncode == 2
    assert "--engine of claim C4 expects joblib, dask or ray, got 'spark'" in left.stderr


@pytest.mark.parametrize(("table", "limit"), [("iris", 0.9), ("diabetes", 65)])
def test_peers_of_other_libraries_learn(table, limit):
    data = load(table)
    a, b, c, d = split(data, 0)
    models = peers(data.classification, data.X.shape[1])
    assert {"EBM", "pyGAM", "xanfis", "pykan"} <= set(models)
    for name in ("EBM", "pyGAM"):
        found = score(data, d, models[name].fit(a, c).predict(b))
        assert found >= limit if data.classification else found <= limit


def test_registry_tables():
    table = load("autompg")
    assert table.X.shape == (392, 7)
    assert load("penguins").y.nunique() == 3
    assert load("bikeshare").X.shape[0] == 8645


@pytest.mark.parametrize("claim", PAPER.claims, ids=lambda c: c.id)
@pytest.mark.filterwarnings("ignore")
def test_claims_at_a_small_size(claim, tmp_path):
    found = claim.measure(Run(scale="tiny", out=tmp_path))
    assert found.measured
    if claim.id in ("C1", "C4", "C7"):
        assert found.holds
