"""Readers round trip on real and made files; the command line on good and bad input."""

import gzip
import json
import struct
import subprocess
import sys

import networkx as nx
import numpy as np
import pytest

from oim import DataError, ICGraph, load_graph, read_cascades
from oim.cli import app
from oim.data import COLLECTION, read_edge_list, trivalency, with_probabilities, write_edges
from papershelf import InputError

RNG = np.random.default_rng


@pytest.fixture
def oim(tmp_path, monkeypatch, capsys):
    """The command line in an empty folder: returns what it printed, checks its exit code."""

    def call(*words, code=0):
        monkeypatch.setattr(sys, "argv", ["oim", *words])
        with pytest.raises(SystemExit) as end:
            app()
        printed = capsys.readouterr()
        assert end.value.code == code, printed
        return printed.out if code == 0 else printed.err

    monkeypatch.chdir(tmp_path)
    return call


def write_gt(path, n, targets, directed=True):
    width = next(w for w, top in ((1, 2**8), (2, 2**16), (4, 2**32)) if n < top)
    body = b"\xe2\x9b\xbe gt" + bytes([1, 0]) + struct.pack("<Q", 3) + b"hey" + bytes([directed]) + struct.pack("<Q", n)
    for v in range(n):
        near = targets.get(v, [])
        body += struct.pack("<Q", len(near)) + b"".join(int(t).to_bytes(width, "little") for t in near)
    path.write_bytes(gzip.compress(body + b"property maps"))


def test_built_in_graphs_have_their_published_sizes():
    sizes = {"karate": (34, 156), "lesmis": (77, 508), "davis": (32, 178), "florentine": (15, 40)}
    for name, size in sizes.items():
        g = load_graph(name)
        assert (g.n, g.m) == size


@pytest.mark.network
def test_polblogs_out_of_the_debian_package_has_its_published_size():
    g = load_graph("polblogs")
    assert (g.n, g.m, g.dropped_loops, g.merged_arcs) == (1490, 19022, 3, 65)


@pytest.mark.parametrize("n", [5, 300, 70_000])
def test_gt_files_of_every_id_width(n, tmp_path):
    write_gt(tmp_path / "a.gt.gz", n, {0: [1, n - 1], n - 1: [2]})
    g = load_graph(str(tmp_path / "a.gt.gz"))
    assert g.n == n
    assert list(zip(g.src.tolist(), g.dst.tolist(), strict=True)) == [(0, 1), (0, n - 1), (n - 1, 2)]


def test_undirected_gt_files_give_both_arcs(tmp_path):
    write_gt(tmp_path / "a.gt.gz", 3, {0: [1], 1: [2]}, directed=False)
    assert load_graph(str(tmp_path / "a.gt.gz")).m == 4


@pytest.mark.parametrize(
    ("name", "text", "arcs"),
    [
        ("snap.txt", "# SNAP\r\n1\t2\r\n2\t3\r\n", {(1, 2), (2, 3)}),
        ("words.txt", "ann bob\nbob cy\n", {("ann", "bob"), ("bob", "cy")}),
        ("out.konect", "% sym unweighted\n% 2 3 3\n1 2 1 99\n2 3 1 98\n", {(1, 2), (2, 1), (2, 3), (3, 2)}),
        ("nethept.txt", "3 2\n0 1\n1 2\n", {(0, 1), (1, 2)}),
        ("comma.csv", "1,2\n2,3\n", {(1, 2), (2, 3)}),
    ],
)
def test_edge_lists_of_the_field(name, text, arcs, tmp_path):
    (tmp_path / name).write_text(text)
    g = load_graph(str(tmp_path / name))
    assert set(zip(g.names(g.src), g.names(g.dst), strict=True)) == arcs


def test_gzipped_edge_list_matrix_market_gml_and_graphml(tmp_path):
    with gzip.open(tmp_path / "a.txt.gz", "wt") as file:
        file.write("5 7 0.25\n7 9 0.5\n")
    g = load_graph(str(tmp_path / "a.txt.gz"), "column")
    assert g.labels == (5, 7, 9)
    assert g.p.tolist() == [0.25, 0.5]
    (tmp_path / "m.mtx").write_text("%%MatrixMarket matrix coordinate real general\n3 3 2\n1 2 0.5\n3 1 0.25\n")
    m = load_graph(str(tmp_path / "m.mtx"), "column")
    assert list(zip(m.src.tolist(), m.dst.tolist(), m.p.tolist(), strict=True)) == [(0, 1, 0.5), (2, 0, 0.25)]
    graph = nx.DiGraph()
    graph.add_edge("a", "b", p=0.5)
    nx.write_gml(graph, tmp_path / "g.gml")
    nx.write_graphml(graph, tmp_path / "g.graphml")
    for name in ("g.gml", "g.graphml"):
        h = load_graph(str(tmp_path / name), "column")
        assert (h.labels, h.p.tolist()) == (("a", "b"), [0.5])


def test_written_edges_read_back_equal(tmp_path):
    g = load_graph("lesmis", "random:0:1", RNG(1))
    write_edges(tmp_path / "e.txt", g)
    words = read_edge_list(tmp_path / "e.txt")
    assert words.value is not None
    assert sorted(words.value.tolist()) == sorted(g.p.tolist())


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("1 2 x\n", "a.txt:1: the third field must be a number, got 'x'"),
        ("1 2\n3\n", "a.txt:2: expected 2 fields, got 1"),
        ("1 2 0.5\n2 3\n", "a.txt:2: expected 3 fields, got 2"),
        ("1 2 3 4\n", "a.txt:1: expected 3 fields, got 4"),
    ],
)
def test_bad_edge_lists_name_file_and_line(text, told, tmp_path):
    (tmp_path / "a.txt").write_text(text)
    with pytest.raises(DataError, match=told):
        load_graph(str(tmp_path / "a.txt"))


def test_damaged_binary_graphs_are_refused(tmp_path):
    (tmp_path / "a.gt").write_bytes(b"nonsense")
    (tmp_path / "b.gt.gz").write_bytes(b"nonsense")
    write_gt(tmp_path / "c.gt.gz", 5, {0: [1, 2]})
    cut = gzip.decompress((tmp_path / "c.gt.gz").read_bytes())[:35]
    (tmp_path / "c.gt").write_bytes(cut)
    for name in ("a.gt", "b.gt.gz", "c.gt"):
        with pytest.raises(DataError, match=name):
            load_graph(str(tmp_path / name))


def test_probabilities_by_name():
    g = load_graph("karate")
    assert np.bincount(g.dst, weights=g.p) == pytest.approx(np.ones(34))
    assert set(trivalency(g, RNG(0)).p) == {0.1, 0.01, 0.001}
    assert with_probabilities(g, "random:0.2:0.3", RNG(0)).p.min() >= 0.2
    for bad in ("wcc", "uniform", "uniform:x", "uniform:2", "random:1:0"):
        with pytest.raises(InputError):
            with_probabilities(g, bad, RNG(0))
    with pytest.raises(InputError, match="no third column"):
        load_graph("karate", "column")
    with pytest.raises(InputError, match="no graph or file 'karat'"):
        load_graph("karat")


def test_cascade_logs_in_both_formats(tmp_path):
    g = ICGraph(3, [0, 1], [1, 2], 0.5, labels=["ann", "bob", "cy"])
    (tmp_path / "a.csv").write_text("cascade,node,step\nx,ann,0\nx,bob,1\ny,bob,0\n")
    (tmp_path / "a.txt").write_text("1,ann\n2,bob\n3,cy\n\nx;1,10.0,2,11.2\ny;2,3.5\n")
    for found in (read_cascades(tmp_path / "a.csv", g), read_cascades(tmp_path / "a.txt", g, step=1.0)):
        assert found.tolist() == [[0, 1, -1], [-1, 0, -1]]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("x,ann\n", "a.csv:1: expected cascade,node,step, got 2 fields"),
        ("x,dan,0\n", "unknown node 'dan'"),
        ("x,ann,soon\n", "must be a number, got 'soon'"),
        ("x,ann,0.5\n", "give --step"),
        ("", "no cascades"),
    ],
)
def test_bad_cascade_logs(text, told, tmp_path):
    g = ICGraph(2, [0], [1], 0.5, labels=["ann", "bob"])
    (tmp_path / "a.csv").write_text(text)
    with pytest.raises(DataError, match=told):
        read_cascades(tmp_path / "a.csv", g)


def test_command_line_end_to_end(oim, tmp_path):
    found = json.loads(oim("seeds", "karate", "-k", "3", "--json"))
    assert found["lower"] <= found["simulated"] + 4 * found["simulated_se"]
    assert len(found["seeds"]) == 3
    assert "spread" in oim("simulate", "karate", "--seeds", "0,33", "--runs", "500", "-o", "t.npz")
    times = np.load(tmp_path / "t.npz")["times"]
    assert times.shape == (500, 34)
    lines = [f"{c},{v},{s}" for c, row in enumerate(times[:200]) for v, s in enumerate(row) if s >= 0]
    (tmp_path / "log.csv").write_text("\n".join(["cascade,node,step", *lines]))
    assert "200 cascades" in oim("learn", "karate", "log.csv", "-o", "p.csv")
    table = (tmp_path / "p.csv").read_text().splitlines()
    assert table[0] == "source,target,p,theta,se,trials"
    assert len(table) == 157
    words = ("run", "karate", "-T", "60", "-k", "2", "--policy", "ensemble,random", "--reps", "2", "--out", "r")
    oim(*words)
    first = (tmp_path / "r/table.json").read_text()
    assert {row["policy"] for row in json.loads(first)} == {"ensemble", "random"}
    oim("run", "--resume", "r")
    again = json.loads((tmp_path / "r/table.json").read_text())
    assert [row["regret"] for row in again] == [row["regret"] for row in json.loads(first)]
    assert (tmp_path / "r/regret.png").stat().st_size > 5000
    assert "polblogs" in oim("graphs")
    assert json.loads(oim("graphs", "--json"))["python3-graph-tool"] == COLLECTION


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("seeds", "karate", "-k", "99"), "k must lie between 1 and the number of nodes 34, got 99"),
        (("seeds", "nowhere.txt"), "no graph or file 'nowhere.txt'"),
        (("seeds", "karate", "--oracle", "best"), "--oracle must be"),
        (("seeds", "karate", "-k", "x"), "'x'"),
        (("simulate", "karate", "--seeds", "0,99"), "unknown node 99"),
        (("simulate", "karate", "--seeds", "0,zed"), "nodes are integers"),
        (("learn", "karate", "none.csv"), "none.csv"),
        (("run", "karate", "--policy", "best"), "unknown policy 'best'"),
        (("run", "--resume", "nothing"), "no folder of an earlier run"),
        (("reproduce", "C9"), "no claim 'C9'"),
        (("reproduce", "C1", "--graf", "x"), "no option --graf"),
        (("frobnicate",), "frobnicate"),
    ],
)
def test_bad_input_gives_one_line_and_exit_code_2(words, told, oim, tmp_path):
    error = oim(*words, code=2)
    assert told in error
    assert len(error.strip().splitlines()) == 1
    assert list(tmp_path.iterdir()) == []


def test_a_real_process_prints_its_version_and_one_line_for_a_mistake(tmp_path):
    def call(*words):
        command = [sys.executable, "-m", "oim", *words]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)

    assert call("--version").stdout.startswith("oim 0.")
    bad = call("seeds", "karate", "-k", "0")
    assert (bad.returncode, bad.stdout) == (2, "")
    assert bad.stderr == "oim: error: k must lie between 1 and the number of nodes 34, got 0\n"


def test_gymnasium_environment_passes_its_checker():
    from gymnasium.utils.env_checker import check_env

    from oim.env import make_env

    env = make_env(load_graph("karate", "uniform:0.1"), 2, horizon=5)
    check_env(env, skip_render_check=True)
    observation, _ = env.reset(seed=0)
    assert (observation == -1).all()
    _, reward, ended, truncated, _ = env.step(np.array([0, 33]))
    assert reward >= 2
    assert not ended
    assert not truncated


def test_benchmarks_run_at_a_small_size(tmp_path):
    from oim.bench import peers

    tables = peers(tmp_path, quick=True)
    gap = json.loads((tmp_path / "peers.json").read_text())["values"]["gap_se"]
    assert gap < 4
    assert "CyNetDiff" in next(iter(tables.values()))
