"""Readers with small files in the originals' layouts, the command line, and each claim at a small size."""

import contextlib
import io
import json
import pickle
from dataclasses import dataclass

import numpy as np
import pytest

from papershelf import Run
from ridge_sd.claims import PAPER
from ridge_sd.cli import app
from ridge_sd.data import DataError, Table, load_table, one_hot, pickled_labels


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


def numbers(n=30, p=4, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, p))
    return X, X @ np.ones(p) + rng.normal(size=n)


def test_files_of_every_kind(tmp_path):
    X, y = numbers()
    np.savez(tmp_path / "a.npz", X=X, y=y)
    np.save(tmp_path / "X.npy", X)
    np.save(tmp_path / "y.npy", y)
    lines = ["a,b,c,d,target", *(",".join(f"{v:.17g}" for v in [*row, t]) for row, t in zip(X, y, strict=True))]
    (tmp_path / "t.csv").write_text("\n".join(lines))
    svm = [f"{t:.17g} " + " ".join(f"{j + 1}:{v:.17g}" for j, v in enumerate(row)) for row, t in zip(X, y, strict=True)]
    (tmp_path / "t.svm").write_text("\n".join(svm))
    for source, target in (("a.npz", None), ("X.npy", str(tmp_path / "y.npy")), ("t.csv", "target"), ("t.svm", None)):
        table = load_table(str(tmp_path / source), target)
        dense = table.X.toarray() if hasattr(table.X, "toarray") else table.X
        np.testing.assert_allclose(dense, X)
        np.testing.assert_allclose(table.y, y)
    pandas = pytest.importorskip("pandas")
    pandas.DataFrame(np.column_stack([X, y]), columns=list("abcdt")).to_parquet(tmp_path / "t.parquet")
    np.testing.assert_allclose(load_table(str(tmp_path / "t.parquet"), "a").y, X[:, 0])


def test_words_become_indicators_and_incomplete_rows_go(tmp_path):
    (tmp_path / "t.csv").write_text("kind,size,price\nred,1,10\nblue,2,20\nred,NA,30\ngreen,4,40\n")
    table = load_table(str(tmp_path / "t.csv"), "price")
    np.testing.assert_allclose(table.y, [10, 20, 40])
    np.testing.assert_allclose(table.X, [[0, 1, 1], [0, 0, 2], [1, 0, 4]])


def test_uci_originals(tmp_path):
    (tmp_path / "blogData_train.csv").write_text("1,2,3\n4,5,6\n7,8,9\n")
    np.testing.assert_allclose(load_table(str(tmp_path / "blogData_train.csv")).y, [3, 6, 9])
    row = "8,?,?,Lakewoodcity,1,{},?,0.5,{}\n"
    (tmp_path / "communities.data").write_text(
        "".join(row.format(a, b) for a, b in ((0.1, 0.2), (0.3, 0.4), (0.5, 0.6)))
    )
    table = load_table(str(tmp_path / "communities.data"))
    np.testing.assert_allclose(table.X, [[0.1, 0.5], [0.3, 0.5], [0.5, 0.5]])
    np.testing.assert_allclose(table.y, [0.2, 0.4, 0.6])
    air = "Date;Time;CO(GT);T;NMHC;;\n10/03/2004;18.00.00;2,6;13,6;-200;;\n10/03/2004;19.00.00;2;13,3;-200;;\n"
    air += "10/03/2004;20.00.00;-200;11,9;-200;;\n10/03/2004;21.00.00;1,2;11,0;7;;\n;;;;;;\n"
    (tmp_path / "AirQualityUCI.csv").write_text(air)
    table = load_table(str(tmp_path / "AirQualityUCI.csv"))
    np.testing.assert_allclose(table.y, [2.6, 2, 1.2])
    np.testing.assert_allclose(table.X[:, 0], [13.6, 13.3, 11.0])


class Bomb:
    def __reduce__(self):
        return (exec, ("raise SystemExit('unpickled')",))


def test_cifar_batches_are_read_without_unpickling(tmp_path):
    labels = [3, 0, 9, 200, 1, 70_000]
    batch = {
        b"batch_label": b"1 of 5",
        b"labels": labels,
        b"data": np.zeros((6, 4), np.uint8),
        b"filenames": [b"a"] * 6,
    }
    assert pickled_labels(pickle.dumps(batch)).tolist() == labels
    assert pickled_labels(pickle.dumps({"labels": labels, "bomb": Bomb()})).tolist() == labels
    (tmp_path / "data_batch_1").write_bytes(pickle.dumps(batch))
    np.savez(tmp_path / "features.npz", X=np.arange(18.0).reshape(6, 3))
    table = load_table(str(tmp_path), str(tmp_path / "features.npz"))
    np.testing.assert_array_equal(table.y, one_hot(labels))
    with pytest.raises(DataError, match="of features"):
        load_table(str(tmp_path))


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("t.csv", "a,b\n1,2\n", "no column 'price'; it has a, b"),
        ("t.npz", None, "cannot be read|expected the arrays"),
        ("t.xyz", "1", "cannot read t.xyz"),
        ("t.svm", "not svmlight", "cannot be read"),
    ],
)
def test_bad_files_are_refused(tmp_path, name, content, message):
    path = tmp_path / name
    if content is None:
        path.write_bytes(b"PK\x03\x04 truncated")
    else:
        path.write_text(content)
    with pytest.raises(DataError, match=message):
        load_table(str(path), "price")
    np.savez(tmp_path / "nan.npz", X=np.array([[1.0, np.nan], [1, 2]]), y=np.ones(2))
    with pytest.raises(DataError, match="must be finite"):
        load_table(str(tmp_path / "nan.npz"))
    np.savez(tmp_path / "object.npz", X=np.array([[object()]], dtype=object), y=np.ones(1))
    with pytest.raises(DataError, match="cannot be read"):
        load_table(str(tmp_path / "object.npz"))


def test_splits_standardise_by_the_training_rows():
    X, y = numbers(50)
    X = np.column_stack([X, np.full(50, 3.0)])
    table = Table("t", X, y).split(0.6, np.random.default_rng(1)).standardised()
    assert (len(table.y), len(table.test[1])) == (30, 20)
    np.testing.assert_allclose(table.X.mean(0), 0, atol=1e-12)
    np.testing.assert_allclose(table.X.std(0), [1, 1, 1, 1, 0], atol=1e-12)
    with pytest.raises(DataError, match="between 2 and 49 training rows, got 50"):
        Table("t", X, y).split(1.0 * 50, np.random.default_rng(1))


@pytest.mark.network
def test_tables_out_of_registry_packages():
    assert load_table("nci60").X.shape == (64, 6830)
    khan = load_table("khan")
    assert (khan.X.shape, khan.test[0].shape, khan.y.shape[1]) == ((63, 2308), (20, 2308), 4)
    assert load_table("hitters").X.shape == (263, 19)
    assert load_table("autompg").X.shape == (392, 7)
    vader = load_table("vader-single")
    assert vader.X.shape == (7217, 384)
    np.testing.assert_allclose(np.linalg.norm(vader.X, axis=1), 1, atol=1e-5)
    assert load_table("vader").y.var() == pytest.approx(2.88, abs=0.02)


def test_run_prints_saves_and_draws(tmp_path):
    done = command("run", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "self-distilled" in done.stdout
    rows = np.genfromtxt(tmp_path / "ridge-sd-run/path.csv", delimiter=",", names=True)
    assert len(rows) == 100
    assert (rows["R_sd"] <= rows["R"] + 1e-12).all()
    assert (tmp_path / "ridge-sd-run/path.png").stat().st_size > 10_000
    found = json.loads(command("run", "--data", "linnerud", "--alphas", "0.1:100:30", "--json", cwd=tmp_path).stdout)
    assert found["risk"] <= found["ridge_risk"] + 1e-9


def test_theory_and_heatmap(tmp_path):
    found = json.loads(command("theory", "--json", "--out", tmp_path / "t").stdout)
    assert found["ridge"]["risk"] == pytest.approx(1.3038, abs=2e-4)
    assert found["student"]["risk"] == pytest.approx(1.2419, abs=2e-4)
    assert (tmp_path / "t/theory.png").is_file()
    done = command("heatmap", "--size", 3, "--out", tmp_path / "h")
    assert "saved; written" in done.stdout
    assert command("heatmap", "--size", 3, "--out", tmp_path / "h").stdout == done.stdout  # from the kept cells


def test_stream_goes_on_and_names_the_damaged_file(tmp_path):
    for i in range(3):
        X, y = numbers(40, seed=i)
        np.savez(tmp_path / f"{i}.npz", X=X, y=y)
    whole = json.loads(
        command("stream", "0.npz", "1.npz", "2.npz", "--state", "all.npz", "--json", cwd=tmp_path).stdout
    )
    content = (tmp_path / "1.npz").read_bytes()
    (tmp_path / "1.npz").write_bytes(content[: len(content) // 2])
    broken = command("stream", "0.npz", "1.npz", "2.npz", "--state", "part.npz", cwd=tmp_path)
    assert broken.returncode == 2
    assert "1.npz, block 1" in broken.stderr
    assert "kept in part.npz" in broken.stderr
    (tmp_path / "1.npz").write_bytes(content)
    again = command("stream", "0.npz", "1.npz", "2.npz", "--state", "part.npz", "--json", cwd=tmp_path)
    assert "0.npz: already counted" in again.stderr
    np.testing.assert_allclose(json.loads(again.stdout)["coef"], whole["coef"])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["run", "--data", "nothing"], "no table or file 'nothing'"),
        (["run", "--criterion", "aic"], "must be loo, gcv or cp, got 'aic'"),
        (["run", "--alphas", "a,b"], "got 'a,b'"),
        (["run", "--alphas", "1,-2"], "positive numbers, got '1,-2'"),
        (["run", "--select", "x"], "must be joint or teacher, got 'x'"),
        (["run", "--train", "442"], "between 2 and 441 training rows, got 442"),
        (["theory", "--gamma", "0"], "must be positive, got 0"),
        (["theory", "--cov", "x"], "got 'x'"),
        (["heatmap", "--engine", "spark"], "must be local, dask or ray, got 'spark'"),
        (["stream", "nothing.npz"], "no table or file 'nothing.npz'"),
        (["bench", "speed"], "expected path or streaming, got 'speed'"),
    ],
)
def test_bad_words_get_one_line_and_code_2(tmp_path, words, message):
    done = command(*words, cwd=tmp_path)
    assert done.returncode == 2
    assert len(done.stderr.strip().splitlines()) == 1
    assert message in " ".join(done.stderr.split())
    assert [p.name for p in tmp_path.iterdir()] == []


@pytest.mark.parametrize("claim", PAPER.claims, ids=lambda c: c.id)
def test_claims_at_a_small_size(claim, tmp_path):
    outcome = claim.measure(Run(seed=1, scale="tiny", out=tmp_path))
    values = outcome.values
    match claim.id:
        case "C1" | "C2":
            assert outcome.holds
        case "C4":
            assert values["gains"]["ar50 top_aligned"] > 4
            assert values["gains"]["ar50 bottom_aligned"] < 0.1
        case "C3":
            assert values["inside"] > 0.9
            assert values["ratio"] > 1.2
        case "C5":
            assert all(a > 1 and b > 1 for a, b in values["falls"].values())
        case "C6":
            assert values["saved"]["diabetes"][-1] > 0.2
            assert values["joint"]["on"] <= values["joint"]["off"] * 1.02
        case "C7":
            D, threshold, gain = values["ar50"]
            assert threshold > D
            assert gain > 0.04
        case "C8":
            assert np.isfinite(values["largest"])
        case _:
            risks = values["risks"]
            assert risks == sorted(risks, reverse=True)
