"""Readers with their fixtures, the command line, and each claim at a small size."""

import contextlib
import csv
import io
import json
from dataclasses import dataclass

import numpy as np
import pytest

from noisy_fairdiv import DataError, Table, films, lp_bound, opt_envy, read_table
from noisy_fairdiv.claims import PAPER
from noisy_fairdiv.cli import app
from noisy_fairdiv.core import envy
from papershelf import Run


def write(path, text):
    path.write_text(text)
    return path


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


def test_long_tables_keep_repeated_answers(tmp_path):
    table = read_table(
        write(tmp_path / "t.csv", "agent,item,value\nann,car,0.5\nbob,car,1\nann,car,0.7\nann,boat,0\nbob,boat,1\n")
    )
    assert (table.agents, table.items) == (("ann", "bob"), ("car", "boat"))
    assert table.answers.counts.tolist() == [[2, 1], [1, 1]]
    np.testing.assert_allclose(table.answers.squares[0, 0], 0.74)
    np.testing.assert_allclose(table.values, [[0.6, 0], [1, 1]])
    oracle = table.oracle()
    assert oracle(0, np.array([0]), np.array([1]))[0] == 0.5


def test_wide_tables_both_ways_points_and_tabs(tmp_path):
    rows = read_table(write(tmp_path / "a.csv", "agent,car,boat\nann,0.1,0.2\nbob,0.3,0.4\n"))
    columns = read_table(write(tmp_path / "b.tsv", "item\tann\tbob\ncar\t0.1\t0.3\nboat\t0.2\t0.4\n"))
    np.testing.assert_allclose(rows.values, columns.values)
    assert rows.agents == columns.agents
    points = read_table(write(tmp_path / "p.csv", "agent,car,boat\nann,400,600\nbob,1000,0\n"))
    np.testing.assert_allclose(points.values, [[0.4, 0.6], [1, 0]])


def test_json_and_frames(tmp_path):
    table = read_table(
        write(tmp_path / "t.json", json.dumps({"agents": {"a": {"x": [1, 2], "y": 3}, "b": {"x": 0, "y": 1}}}))
    )
    np.testing.assert_allclose(table.values, [[1.5, 3], [0, 1]])

    class Frame:
        index, columns = ("a", "b"), ("x", "y")

        def __array__(self, dtype=None, copy=None):
            return np.array([[1.0, 2], [3, 4]])

    frame = Table.of_values(Frame())
    assert (frame.agents, frame.items) == (("a", "b"), ("x", "y"))


PREFLIB = """# FILE NAME: x.soc
# ALTERNATIVE NAME 1: Car
# ALTERNATIVE NAME 2: Boat
# ALTERNATIVE NAME 3: Tent
{}"""


def test_preflib_orders_become_borda_values(tmp_path):
    soc = read_table(write(tmp_path / "x.soc", PREFLIB.format("2: 1,3,2\n1: 2,1,3\n")))
    np.testing.assert_allclose(soc.values, [[1, 1 / 3, 2 / 3]] * 2 + [[2 / 3, 1, 1 / 3]])
    assert soc.items == ("Car", "Boat", "Tent")
    toi = read_table(write(tmp_path / "x.toi", PREFLIB.format("1: {1,3}\n1: 2,{1}\n")))
    np.testing.assert_allclose(toi.values, [[5 / 6, 0, 5 / 6], [2 / 3, 1, 0]])
    cat = read_table(write(tmp_path / "x.cat", PREFLIB.format("1: {1},{2,3}\n1: {},{1,2,3}\n")))
    np.testing.assert_allclose(cat.values, [[1, 0.5, 0.5], [0.5, 0.5, 0.5]])
    wmd = read_table(write(tmp_path / "x.wmd", "# ALTERNATIVE NAME 1: a\n1, 7, 0.5\n2, 7, 1\n1, 8, 1\n2, 8, 0.25\n"))
    np.testing.assert_allclose(wmd.values, [[0.5, 1], [1, 0.25]])


def test_preflib_reader_agrees_with_preflibtools(tmp_path):
    instances = pytest.importorskip("preflibtools.instances")
    header = "# FILE NAME: x.toc\n# TITLE: t\n# DATA TYPE: toc\n# NUMBER ALTERNATIVES: 3\n# NUMBER VOTERS: 3\n# NUMBER UNIQUE ORDERS: 2\n"
    path = write(tmp_path / "x.toc", header + PREFLIB.format("2: 1,{2,3}\n1: {1,2},3\n").split("\n", 1)[1])
    theirs = instances.OrdinalInstance(str(path))
    expected = []
    for order in theirs.orders:
        row = {}
        for rank, group in enumerate(order):
            above = sum(len(g) for g in order[:rank])
            row |= {a: 1 - (above + (len(group) - 1) / 2) / 3 for a in group}
        expected += [[row[a] for a in (1, 2, 3)]] * theirs.multiplicity[order]
    np.testing.assert_allclose(sorted(read_table(path).values.tolist()), sorted(expected))


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("t.csv", "", "is empty"),
        ("t.csv", "agent,item,value\nann,car,much\n", "line 2: expected a number, got 'much'"),
        ("t.csv", "agent,item,value\nann,car,nan\nbob,car,1\n", "'ann' for 'car' is nan"),
        ("t.csv", "agent,item,value\nann,car,1\n", "at least 2 agents and 1 good, got 1 and 1"),
        ("t.csv", "agent,item,value\n", "has no rows"),
        ("t.csv", "agent,car\nann,1,2\n", "line 2: expected 2 columns as in line 1, got 3"),
        ("t.csv", "agent,car,car\nann,1,2\nbob,3,4\n", "label 'car' stands twice, as number 1 and 2"),
        ("t.csv", "item,ann,bob\ncar,1,2\nboat,1,2\ncar,3,4\n", "label 'car' stands in line 2 and in line 4"),
        ("t.csv", "agent,car,boat\nann,-1,2\nbob,3,4\n", "'ann' values 'car' at -1: negative values are chores"),
        ("t.json", "[1, 2]", 'expected {"agents"'),
        ("t.json", "{", "is not JSON"),
        ("t.json", '{"agents": {"a": {"x": "1"}}}', "'a' for 'x' is '1', expected a number"),
        ("t.soc", "1: 1,2\n", "expected a PrefLib file"),
        ("t.soc", PREFLIB.format("1,2\n"), "expected 'count: order'"),
        ("t.soc", PREFLIB.format("1: 1,9\n"), "alternative 9 has no name"),
        ("t.wmd", "1, 2\n", "expected 'from, to, weight'"),
        ("t.xls", "x", "cannot read t.xls"),
    ],
)
def test_bad_files_are_refused_in_one_line(tmp_path, name, text, message):
    path = write(tmp_path / name, text)
    with pytest.raises(DataError) as caught:
        read_table(path)
    assert message in str(caught.value)
    done = command("exact", path)
    assert done.returncode == 2
    assert len(done.stderr.strip().splitlines()) == 1
    assert message in " ".join(done.stderr.split())


def test_chores_can_be_allowed(tmp_path):
    path = write(tmp_path / "t.csv", "agent,car,boat\nann,-1,2\nbob,3,4\n")
    assert read_table(path, allow_chores=True).values.min() == -1
    assert command("exact", path, "--allow-chores", "--json").returncode == 0


@pytest.mark.network
def test_film_ratings_are_those_of_the_specification():
    U, titles = films()
    assert U.shape == (2, 6054)
    assert len(titles) == 6054
    np.testing.assert_allclose(U.mean(1), [0.617, 0.588], atol=5e-4)
    assert np.corrcoef(U)[0, 1] == pytest.approx(0.910, abs=5e-4)
    assert envy(U, (U[0] <= U[1]).astype(int)) == pytest.approx(1426, abs=1)
    assert lp_bound(U)[0] == pytest.approx(285.5, abs=1.5)
    assert -opt_envy(films(500)[0], "sweep").value == pytest.approx(22.17, abs=1)
    with pytest.raises(DataError, match="between 1 and 6054 films, got 0"):
        films(0)


def noisy_table(path, seed=0, m=40, repeats=64, sigma=0.3):
    rng = np.random.default_rng(seed)
    U = rng.random((2, m))
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["agent", "item", "value"])
        for agent, name in enumerate(("ann", "bob")):
            for i in range(m):
                writer.writerows([name, f"good {i}", v] for v in U[agent, i] + sigma * rng.normal(size=repeats))
    return U


def test_allocate_certifies_checks_and_draws(tmp_path):
    U = noisy_table(tmp_path / "t.csv")
    done = command("allocate", "t.csv", "-o", "owners.csv", "--plot", "sweep.png", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "CERTIFIED: nobody envies anybody" in done.stdout
    assert (tmp_path / "sweep.png").stat().st_size > 10_000
    rows = list(csv.reader((tmp_path / "owners.csv").open()))[1:]
    owner = np.array([0 if name == "ann" else 1 for _, name in rows])
    assert envy(U, owner) < 0
    found = json.loads(command("allocate", "t.csv", "--json", "--sigma", "0.3", cwd=tmp_path).stdout)
    assert found["certified"] is True
    checked = json.loads(command("check", "t.csv", "owners.csv", "--json", cwd=tmp_path).stdout)
    assert checked["notions"]["EF"] is True
    sure = json.loads(command("check", "t.csv", "owners.csv", "--sigma", "estimate", "--json", cwd=tmp_path).stdout)
    assert sure["notions"]["EF"] > 0.95


def test_allocate_says_not_yet_and_how_many_more(tmp_path):
    noisy_table(tmp_path / "t.csv", repeats=4, sigma=1.0)
    done = command("allocate", "t.csv", cwd=tmp_path)
    assert "NOT CERTIFIED" in done.stdout
    assert "times as many answers" in done.stdout or "seems to envy" in done.stdout
    single = write(tmp_path / "s.csv", "agent,a,b,c\nx,0.1,0.5,0.9\ny,0.9,0.5,0.1\n")
    refused = command("allocate", single)
    assert refused.returncode == 2
    assert "sigma cannot be estimated from single samples" in refused.stderr
    assert command("allocate", single, "--sigma", "0.05").returncode == 0
    holes = write(tmp_path / "h.csv", "agent,a,b,c\nx,0.1,0.5,0.9\ny,0.9,,0.1\n")
    assert "1 goods lack an answer" in command("allocate", holes, "--sigma", "0.1").stdout


def test_command_line_by_example(tmp_path):
    planned = json.loads(command("plan", "-m", 1024, "--gap", 100, "--json").stdout)
    assert planned["theory"] == 1024 * 389
    table = write(tmp_path / "t.csv", "agent,car,boat,tent\nann,0.9,0.3,0.2\nbob,0.2,0.6,0.5\n")
    done = json.loads(command("exact", table, "--json", "-o", tmp_path / "o.csv").stdout)
    assert (done["envy"], done["proven"]) == (pytest.approx(-0.4), True)
    assert (tmp_path / "o.csv").read_text().splitlines() == ["item,owner", "car,ann", "boat,bob", "tent,bob"]
    rates = json.loads(command("simulate", "-m", 128, "--queries", "500,4000", "--runs", 60, "--json").stdout)
    assert rates[0]["rate"] < rates[1]["rate"]


@pytest.mark.network
def test_run_tells_the_story(tmp_path):
    done = command("run", "--films", 200, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "CERTIFIED envy-free" in done.stdout
    assert "nobody envies" in done.stdout
    assert (tmp_path / "noisy-fairdiv-run/sweep.png").is_file()
    reviews = json.loads(command("run", "--films", 200, "--yes-no", "--json", cwd=tmp_path).stdout)
    assert reviews["certified"] is True
    assert reviews["true_envy"] <= 0


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["plan", "-m", "10", "--gap", "0"], "gap=0"),
        (["plan", "-m", "10", "--gap", "5", "--mode", "x"], "mode must be practical, theory or lower, got 'x'"),
        (["exact", "nothing.csv"], "no file 'nothing.csv'"),
        (["allocate", "t.csv", "--sigma", "-1"], "positive number or 'estimate', got '-1'"),
        (["allocate", "t.csv", "--delta", "1"], "between 0 and 1, got 1"),
        (["exact", "t.csv", "--method", "enum"], "enumeration of 2 ** 40 allocations"),
        (["check", "t.csv", "t.csv"], "expected the columns item, owner"),
        (["check", "t.csv", "some.csv"], "no owner for 39 items"),
        (["check", "t.csv", "twice.csv"], "item 'good 0' stands twice"),
        (["simulate", "--queries", "many"], "whole numbers separated by commas, got 'many'"),
        (["simulate", "-m", "7"], "even m"),
        (["bench", "speed"], "expected peers or scaling, got 'speed'"),
    ],
)
def test_bad_words_get_one_line_and_code_2(tmp_path, words, message):
    noisy_table(tmp_path / "t.csv", repeats=2)
    write(tmp_path / "some.csv", "item,owner\ngood 0,ann\n")
    write(tmp_path / "twice.csv", "item,owner\ngood 0,ann\ngood 0,bob\n")
    before = sorted(tmp_path.iterdir())
    done = command(*words, cwd=tmp_path)
    assert done.returncode == 2
    assert len(done.stderr.strip().splitlines()) == 1
    assert message in " ".join(done.stderr.split())
    assert sorted(tmp_path.iterdir()) == before


@pytest.mark.parametrize("claim", PAPER.claims, ids=lambda c: c.id)
def test_claims_at_a_small_size(claim, tmp_path):
    outcome = claim.measure(Run(seed=1, scale="tiny", out=tmp_path))
    values = outcome.values
    match claim.id:
        case "C1":
            assert all(0.3 < x < 0.85 for row in values["scaled"].values() for x in row)
            assert all(figure.stat().st_size > 5000 for figure in outcome.figures)
        case "C2":
            assert -3 < values["slope"] < -1.5
        case "C4":
            assert values["shares"][0.3] < 1
        case "C5":
            assert all(abs(d) < 0.35 for d in values["differences"])
        case "C6":
            assert values["gamma_half"] < values["gamma_0"]
        case "C7":
            assert values["rates"]["scaled 8"]["plugin"] < 0.2
        case "C8":
            assert values["false"] <= 0.1 * values["runs"]
        case _:
            assert values["time_ratio"] > 20
