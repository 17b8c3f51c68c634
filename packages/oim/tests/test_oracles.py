"""Offline solvers against exact optima, and their certificates against the truth."""

import itertools
import math

import numpy as np
import pytest

from oim import (
    ICGraph,
    budgeted_ris,
    celf,
    celf_mc,
    exact_seeds,
    exact_spread,
    imm,
    load_graph,
    opim_c,
    pagerank,
    ris_greedy,
    rr_sets,
    spread,
)
from oim.oracles import (
    ONE_MINUS_1_E,
    degree,
    degree_discount_ic,
    greedy_cover,
    make_oracle,
    rr_sets_within,
    single_discount,
)

RNG = np.random.default_rng


def small(seed):
    """7 nodes, 14 random arcs."""
    rng = RNG(seed)
    arcs = np.array([(u, v) for u in range(7) for v in range(7) if u != v])
    chosen = arcs[rng.choice(len(arcs), 14, replace=False)]
    return ICGraph(7, chosen[:, 0], chosen[:, 1], rng.uniform(0.1, 0.7, 14))


@pytest.mark.parametrize("seed", range(4))
def test_rr_sets_estimate_the_exact_spread_without_bias(seed):
    g, R = small(seed), 40_000
    sets = rr_sets(g, R, RNG(seed))
    for nodes in ([0], [1, 4], [0, 2, 5]):
        share = sets.coverage(nodes) / R
        error = 7 * math.sqrt(share * (1 - share) / R)
        assert abs(7 * share - exact_spread(g, nodes)) < 4 * error


def test_rr_sets_of_the_linear_threshold_model_match_simulation():
    g = load_graph("karate", "wc")
    sets = rr_sets(g, 40_000, RNG(0), model="lt")
    estimate = spread(g, [0, 33], 40_000, RNG(1), model="lt")
    assert abs(g.n * sets.coverage([0, 33]) / 40_000 - estimate.mean) < 4 * math.hypot(estimate.se, 0.08)


def test_rr_sets_do_not_depend_on_threads_or_on_how_often_they_are_extended():
    g = load_graph("lesmis")
    one, two = (rr_sets(g, 10_000, RNG(3), jobs) for jobs in (1, 2))
    pieces = rr_sets(g, 1000, RNG(3)).extend(4000).extend(5000)
    for other in (two, pieces):
        assert (one.data == other.data).all()
        assert (one.offsets == other.offsets).all()


def test_bounded_rr_sets_stop_at_their_budget_and_stay_unbiased():
    g = load_graph("lesmis", "uniform:0.5")
    few, all_of_them = rr_sets_within(g, 5000, RNG(0), members=60_000), rr_sets_within(g, 5000, RNG(0))
    assert 500 <= len(few) < 5000 == len(all_of_them)
    assert 60_000 <= few.data.size <= 120_000 + 500 * g.n
    share = few.coverage([0]) / len(few)
    error = g.n * math.sqrt(share * (1 - share) / len(few))
    assert abs(g.n * share - spread(g, [0], 20_000, RNG(1)).mean) < 4 * error


def test_greedy_cover_is_plain_greedy():
    sets = rr_sets(small(0), 500, RNG(0))
    members = [set(sets.data[a:b].tolist()) for a, b in itertools.pairwise(sets.offsets)]
    chosen, uncovered = [], list(members)
    for _ in range(3):
        counts = [sum(v in s for s in uncovered) if v not in chosen else -1 for v in range(7)]
        chosen.append(int(np.argmax(counts)))
        uncovered = [s for s in uncovered if chosen[-1] not in s]
    nodes, covered = greedy_cover(sets, 3)
    assert nodes.tolist() == chosen
    assert covered == 500 - len(uncovered)


@pytest.mark.parametrize("solver", [opim_c, imm])
def test_seeds_are_near_optimal_on_twenty_graphs(solver):
    for seed in range(20):
        g = small(seed)
        best = exact_seeds(g, 2)
        found = solver(g, 2, 0.2, rng=RNG(seed))
        assert exact_spread(g, found.nodes) >= (ONE_MINUS_1_E - 0.2) * best.spread


def test_the_certificate_brackets_truth_on_twenty_graphs():
    for seed in range(20):
        g = small(seed)
        found = opim_c(g, 2, 0.2, delta=0.01, rng=RNG(seed))
        assert found.lower <= exact_spread(g, found.nodes) + 1e-9
        assert found.upper >= exact_seeds(g, 2).spread - 1e-9
        assert found.ratio == pytest.approx(found.lower / found.upper)
        assert found.ratio >= ONE_MINUS_1_E - 0.2


def test_imm_draws_fresh_sets_unless_told_otherwise():
    g = load_graph("lesmis", "uniform:0.05")
    fresh, reused = imm(g, 5, 0.3, rng=RNG(0)), imm(g, 5, 0.3, rng=RNG(0), reuse=True)
    assert abs(fresh.spread - spread(g, fresh.nodes, 20_000, RNG(1)).mean) < 0.05 * fresh.spread
    assert reused.n_rr >= fresh.n_rr


def test_celf_is_plain_greedy_on_the_same_snapshots():
    g = load_graph("karate", "uniform:0.1")
    lazy, plain = celf(g, 4, 300, RNG(0)), celf(g, 4, 300, RNG(0), lazy=False)
    assert lazy.nodes.tolist() == plain.nodes.tolist()
    assert lazy.spread == plain.spread


def test_celf_with_fresh_simulations_finds_the_same_quality():
    g = load_graph("karate", "uniform:0.1")
    found = celf_mc(g, 3, 500, RNG(0))
    best = spread(g, opim_c(g, 3, rng=RNG(0)).nodes, 20_000, RNG(1)).mean
    assert spread(g, found.nodes, 20_000, RNG(1)).mean > 0.95 * best


def test_exact_seeds_is_the_maximum_over_all_sets():
    g = small(5)
    best = max(exact_spread(g, s) for s in itertools.combinations(range(7), 2))
    assert exact_seeds(g, 2).spread == best


def test_budgeted_seeds_respect_the_budget_and_beat_the_best_single_node():
    g = load_graph("karate", "uniform:0.1")
    costs = 1.0 + g.out_degree
    found = budgeted_ris(g, costs, 25.0, 20_000, RNG(0))
    assert costs[found.nodes].sum() <= 25.0
    singles = max(spread(g, [v], 5000, RNG(1)).mean for v in range(g.n) if costs[v] <= 25)
    assert found.spread > 0.98 * singles
    with pytest.raises(ValueError, match="buys no node"):
        budgeted_ris(g, costs, 0.5)


def test_heuristics_on_a_star_choose_its_centre():
    g = ICGraph(6, [0] * 5, range(1, 6), 0.5)
    for heuristic in (degree, single_discount, degree_discount_ic, pagerank):
        assert heuristic(g, 1).tolist() == [0]


def test_single_discount_is_the_best_marginal_degree():
    g = load_graph("lesmis")
    chosen = single_discount(g, 10)
    adjacency = np.zeros((g.n, g.n), bool)
    adjacency[g.src, g.dst] = True
    for i, u in enumerate(chosen):
        left = np.setdiff1d(np.arange(g.n), chosen[:i])
        marginal = adjacency[left].sum(1) - adjacency[np.ix_(left, chosen[:i])].sum(1)
        assert marginal[left == u] == marginal.max()


def test_pagerank_agrees_with_networkx():
    import networkx as nx

    g = load_graph("lesmis", "uniform:0.1")
    ranks = nx.pagerank(g.to_networkx().reverse(), tol=1e-12, max_iter=1000)
    order = sorted(ranks, key=ranks.get, reverse=True)[:10]
    assert g.names(pagerank(g, 10)) == order


def test_a_validated_oracle_claims_an_unbiased_spread():
    """Greedy's own value on few RR sets is a winner's curse; the value on fresh sets is not."""
    g = load_graph("lesmis", "uniform:0.05")
    claims = {}
    for validate in (True, False):
        choices = [make_oracle("ris", R=200, validate=validate)(g, 5, RNG(s)) for s in range(200)]
        truth = [spread(g, c.nodes, 2000, RNG(s)).mean for s, c in enumerate(choices)]
        bias = np.array([c.value for c in choices]) - truth
        claims[validate] = (bias.mean(), bias.std() / math.sqrt(len(bias)))
    assert abs(claims[True][0]) < 4 * claims[True][1]
    assert claims[False][0] > 4 * claims[False][1]


def test_limits_are_stated():
    g = load_graph("karate", "uniform:0.9")
    with pytest.raises(ValueError, match="20,000 seed sets, got 278,256"):
        exact_seeds(g, 5)
    with pytest.raises(ValueError, match="k must lie between 1 and the number of nodes 34, got 35"):
        opim_c(g, 35)
    with pytest.raises(ValueError, match="max_rr=1,000"):
        ris_greedy(g, 3, 10_000, RNG(0), max_rr=1000)
    with pytest.raises(ValueError, match="eps must lie"):
        imm(g, 3, 0.9)
    with pytest.raises(ValueError, match="unknown oracle 'best'"):
        make_oracle("best")


def test_a_graph_without_arcs_warns_and_any_nodes_do():
    g = ICGraph(4, [], [])
    with pytest.warns(UserWarning, match="no arcs"):
        found = opim_c(g, 2, rng=RNG(0))
    assert found.spread == found.lower == found.upper == 2
    assert sorted(found.nodes.tolist()) == [0, 1]
