"""Simulation and exact spread against closed forms, enumeration, networkx and an independent simulator."""

import itertools
import math

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oim import ICGraph, exact_spread, simulate, simulate_many, spread
from oim.ic import _skip_rates, draw_key, run_keyed

RNG = np.random.default_rng


def path_graph(*p):
    return ICGraph(len(p) + 1, range(len(p)), range(1, len(p) + 1), p)


def random_graph(seed, n=5, density=0.4):
    rng = RNG(seed)
    arcs = [(u, v) for u in range(n) for v in range(n) if u != v and rng.random() < density]
    src, dst = (np.array(arcs, int).reshape(-1, 2)).T
    return ICGraph(n, src, dst, rng.uniform(0.05, 0.95, len(arcs)))


def test_exact_spread_of_a_path_a_star_and_a_diamond():
    assert exact_spread(path_graph(0.5, 0.4, 0.3), [0]) == pytest.approx(1 + 0.5 + 0.5 * 0.4 + 0.5 * 0.4 * 0.3)
    star = ICGraph(5, [0] * 4, [1, 2, 3, 4], [0.1, 0.2, 0.3, 0.4])
    assert exact_spread(star, [0]) == pytest.approx(2.0)
    diamond = ICGraph(4, [0, 0, 1, 2], [1, 2, 3, 3], [0.5, 0.4, 0.3, 0.2])
    assert exact_spread(diamond, [0]) == pytest.approx(1 + 0.5 + 0.4 + 1 - (1 - 0.15) * (1 - 0.08))


@pytest.mark.parametrize("seed", range(5))
def test_simulated_spread_is_within_four_standard_errors_of_exact(seed):
    g = random_graph(seed)
    estimate = spread(g, [0, 1], 20_000, RNG(seed))
    assert abs(estimate.mean - exact_spread(g, [0, 1])) < 4 * estimate.se


@pytest.mark.parametrize("seed", range(5))
def test_spread_is_monotone_and_submodular(seed):
    g = random_graph(seed)
    value = {s: exact_spread(g, s) for r in range(1, 6) for s in itertools.combinations(range(5), r)}
    for small in value:
        for big in value:
            if set(small) <= set(big):
                assert value[small] <= value[big] + 1e-12
                for v in set(range(5)) - set(big):
                    gain_small = value[tuple(sorted({*small, v}))] - value[small]
                    gain_big = value[tuple(sorted({*big, v}))] - value[big]
                    assert gain_big <= gain_small + 1e-12


@given(seed=st.integers(0, 10_000), p=st.sampled_from([0.02, 0.05, 0.5]))
@settings(max_examples=30, deadline=None)
def test_steps_are_distances_in_the_live_edge_graph(seed, p):
    """Coins and steps of a run fit together, with geometric skips (small p, many arcs) and without."""
    graph = nx.barabasi_albert_graph(60, 12, seed=seed)
    g = ICGraph.from_networkx(graph, p)
    assert (g.out_skip != 0).any() == (p < 0.1)
    times, coins = simulate(g, [0, 1], RNG(seed), return_edges=True)
    active = np.flatnonzero(times >= 0)
    assert ((coins >= 0) == np.isin(g.src, active)).all()
    live = nx.DiGraph()
    live.add_nodes_from(range(g.n))
    live.add_edges_from(zip(g.src[coins == 1].tolist(), g.dst[coins == 1].tolist(), strict=True))
    distance = nx.multi_source_dijkstra_path_length(live, {0, 1}, weight=None)
    expected = [distance.get(v, -1) for v in range(g.n)]
    assert times.tolist() == expected


def test_geometric_skips_give_every_arc_its_probability():
    g = ICGraph(101, np.zeros(100, int), np.arange(1, 101), 0.03)
    assert g.out_skip[0] == pytest.approx(math.log1p(-0.03))
    frequency = (simulate_many(g, [0], 20_000, RNG(0)) >= 0).mean(axis=0)[1:]
    assert np.abs(frequency - 0.03).max() < 5 * math.sqrt(0.03 * 0.97 / 20_000)


def test_skips_are_used_only_where_all_arcs_of_a_node_share_p():
    ptr = np.array([0, 20, 40])
    p = np.r_[np.full(20, 0.01), np.full(19, 0.01), 0.02]
    assert _skip_rates(ptr, p).tolist() == [math.log1p(-0.01), 0.0]


def test_common_random_numbers_make_runs_monotone_in_the_seed_set():
    g = random_graph(3, n=30, density=0.1)
    for t in range(50):
        key = draw_key(RNG(t))
        few, _ = run_keyed(g, np.array([0]), key)
        more, _ = run_keyed(g, np.array([0, 7]), key)
        assert (few[few >= 0] >= more[few >= 0]).all()
        assert ((more >= 0) | (few < 0)).all()


@pytest.mark.parametrize("model", ["ic", "lt"])
def test_results_do_not_depend_on_the_number_of_threads(model):
    g = random_graph(1, n=40, density=0.1)
    g = g.with_p(0.9 / np.maximum(g.in_degree, 1)[g.dst])
    one, two = (spread(g, [0, 1, 2], 3001, RNG(5), jobs, model) for jobs in (1, 2))
    assert one == two
    many = [simulate_many(g, [0, 1, 2], 501, RNG(5), jobs, model) for jobs in (1, 2)]
    assert (many[0] == many[1]).all()
    assert spread(g, [0, 1, 2], 501, RNG(5), model=model).mean == pytest.approx((many[0] >= 0).sum(1).mean())


def test_linear_threshold_spread_of_two_parents_is_the_sum_of_weights():
    g = ICGraph(3, [0, 1], [2, 2], [0.3, 0.4])
    estimate = spread(g, [0, 1], 40_000, RNG(0), model="lt")
    assert abs(estimate.mean - 2.7) < 4 * estimate.se
    with pytest.raises(ValueError, match=r"sum to 1\.3"):
        spread(g.with_p([0.8, 0.5]), [0], 10, RNG(0), model="lt")


@given(seed=st.integers(0, 1000))
@settings(max_examples=20, deadline=None)
def test_relabelling_nodes_does_not_change_the_exact_spread(seed):
    g = random_graph(seed)
    order = RNG(seed).permutation(5)
    other = ICGraph(5, order[g.src], order[g.dst], g.p)
    assert exact_spread(g, [0, 2]) == pytest.approx(exact_spread(other, order[[0, 2]]))


def test_loops_are_dropped_and_parallel_arcs_merged_by_noisy_or():
    g = ICGraph(3, [0, 0, 1, 1], [1, 1, 1, 2], [0.5, 0.2, 0.9, 1.0])
    assert (g.dropped_loops, g.merged_arcs, g.m) == (1, 1, 2)
    assert g.p.tolist() == pytest.approx([1 - 0.5 * 0.8, 1.0])


def test_round_trip_through_networkx_scipy_and_igraph():
    g = random_graph(2)
    back = ICGraph.from_networkx(g.to_networkx())
    assert (back.src == g.src).all()
    assert (back.p == g.p).all()
    from scipy.sparse import coo_array

    again = ICGraph.from_scipy(coo_array((g.p, (g.src, g.dst)), shape=(g.n, g.n)))
    assert (again.dst == g.dst).all()
    assert (again.p == g.p).all()
    igraph = pytest.importorskip("igraph")
    third = ICGraph.from_igraph(igraph.Graph(5, list(zip(g.src, g.dst, strict=True)), directed=True), 0.25)
    assert third.m == g.m
    assert (third.p == 0.25).all()


def test_p_of_one_always_succeeds_and_of_zero_never():
    g = path_graph(1.0, 1.0, 0.0)
    assert spread(g, [0], 1000, RNG(0)).mean == 3.0
    assert exact_spread(g, [0]) == 3.0


def test_arrays_of_a_graph_cannot_be_changed():
    with pytest.raises(ValueError, match="read-only"):
        path_graph(0.5).p[0] = 1.0


@pytest.mark.parametrize(
    ("p", "told"), [([0.5, -0.1], "1 -> 2.*-0.1"), ([0.5, 1.5], "1 -> 2.*1.5"), ([math.nan, 0.5], "0 -> 1.*nan")]
)
def test_a_bad_probability_is_named_with_its_arc(p, told):
    with pytest.raises(ValueError, match=told):
        ICGraph(3, [0, 1], [1, 2], p)


def test_bad_seeds_are_named():
    g = ICGraph(3, [0, 1], [1, 2], 0.5, labels=["ann", "bob", "cy"])
    with pytest.raises(ValueError, match="'bob' is named twice"):
        spread(g, [1, 1], 10)
    with pytest.raises(ValueError, match="unknown seed 3"):
        spread(g, [3], 10)
    with pytest.raises(ValueError, match="unknown node 'dan'"):
        g.index(["dan"])


def test_exact_spread_states_its_limit():
    g = ICGraph.from_networkx(nx.complete_graph(8), 0.1)
    with pytest.raises(ValueError, match="at most 24 uncertain arcs, got 49"):
        exact_spread(g, [0])
