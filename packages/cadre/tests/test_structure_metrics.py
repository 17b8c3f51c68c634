"""Jacobians, acyclicity, cycles, masks and scores against closed forms, enumerations and other libraries."""

import itertools

import networkx as nx
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.linalg import expm

from cadre.claims import jacobians_of_random_sem
from cadre.graph import GraphResult
from cadre.maps import great_circle
from cadre.metrics import (
    bearings,
    block_r2,
    compare_graphs,
    crps,
    edge_auc,
    match_latents,
    mean_correlation,
    spline_correlation,
    structural_intervention_distance,
    wind_graph,
    wind_scores,
    wind_test,
)
from cadre.structure import (
    acyclicity,
    break_cycles,
    checked_mask,
    dag_penalty,
    distance_mask,
    graph_from_mixing,
    graph_from_mixing_safely,
    great_circle_km,
    is_dag,
    knn_mask,
    largest_gap,
    moral,
    regression_mask,
    threshold_graph,
    topological_order,
)

DOUBLE = torch.float64


def random_dag(d, seed):
    rng = np.random.default_rng(seed)
    order = rng.permutation(d)
    B = np.zeros((d, d))
    B[np.ix_(order, order)] = np.tril(rng.normal(size=(d, d)) * (rng.random((d, d)) < 0.5), -1)
    return B


@settings(deadline=None, max_examples=25)
@given(st.integers(2, 12), st.integers(0, 10_000))
def test_theorem_2_gives_the_structural_jacobian(d, seed):
    J_m, J_g = jacobians_of_random_sem(d, np.random.default_rng(seed))
    assert torch.allclose(graph_from_mixing(J_m), J_g, atol=1e-10)
    D = torch.diag(torch.diag(J_m))
    assert torch.allclose(J_g @ J_m, J_m - D, atol=1e-10)


@settings(deadline=None, max_examples=40)
@given(st.integers(2, 8), st.integers(0, 10_000))
def test_penalties_vanish_on_dags_alone(d, seed):
    B = torch.as_tensor(random_dag(d, seed))
    for kind in ("poly", "expm", "logdet"):
        assert abs(float(dag_penalty(B, kind))) < 1e-9
    cyclic = B.clone()
    i, j = np.random.default_rng(seed).permutation(d)[:2]
    cyclic[i, j] = cyclic[j, i] = 0.5
    for kind in ("poly", "expm", "logdet"):
        assert float(dag_penalty(cyclic, kind)) > 1e-3 or not np.isfinite(float(dag_penalty(cyclic, kind)))


def test_penalties_against_scipy_and_finite_differences():
    A = torch.tensor(np.random.default_rng(0).normal(size=(4, 4)) * 0.3)
    assert float(dag_penalty(A, "expm")) == pytest.approx(np.trace(expm(A.numpy() ** 2)) - 4)
    expected = np.trace(np.linalg.matrix_power(np.eye(4) + A.numpy() ** 2 / 4, 4)) - 4
    assert float(dag_penalty(A)) == pytest.approx(expected)
    A.requires_grad_()
    for kind in ("poly", "expm", "logdet"):
        assert torch.autograd.gradcheck(lambda a, kind=kind: dag_penalty(a, kind), (A,))
    with pytest.raises(ValueError, match="poly, expm, logdet, got 'x'"):
        acyclicity(A, "x")


def test_moral_graph_is_that_of_networkx():
    # r = (I - B) z for a linear model with instantaneous graph B: the off-diagonal of dr/dz is -B.
    for seed in range(5):
        B = random_dag(5, seed)
        found = moral(torch.as_tensor(-B)).abs().numpy() > 1e-12
        graph = nx.DiGraph()
        graph.add_nodes_from(range(5))
        graph.add_edges_from((int(j), int(i)) for i, j in zip(*np.nonzero(B), strict=True))
        expected = nx.to_numpy_array(nx.moral_graph(graph), nodelist=range(5)) > 0
        off = ~np.eye(5, dtype=bool)
        np.testing.assert_array_equal(found[off], expected[off])


def test_singular_mixings_are_told_apart():
    good, bad = torch.eye(3, dtype=DOUBLE), torch.ones(3, 3, dtype=DOUBLE)
    found = graph_from_mixing_safely(torch.stack([good, bad]))
    assert found.usable.tolist() == [True, False]
    assert found.condition > 1e12
    assert torch.isfinite(found.jacobian).all()


@settings(deadline=None, max_examples=40)
@given(st.integers(2, 8), st.integers(0, 10_000))
def test_breaking_cycles_leaves_a_dag_and_weak_edges_go(d, seed):
    weights = np.random.default_rng(seed).normal(size=(d, d))
    kept, removed = break_cycles(weights)
    assert is_dag(kept)
    assert nx.is_directed_acyclic_graph(nx.DiGraph(list(zip(*np.nonzero(kept.T), strict=True))))
    order = topological_order(kept)
    assert all(order.index(j) < order.index(i) for i, j in zip(*np.nonzero(kept), strict=True))
    assert len(removed) == int((weights != 0).sum() - np.count_nonzero(weights.diagonal()) - (kept != 0).sum())
    dag = random_dag(d, seed)
    assert break_cycles(dag).removed == []
    np.testing.assert_array_equal(break_cycles(dag).adjacency, dag)


def test_the_weakest_edge_of_a_cycle_goes():
    weights = np.array([[0, 0, 0.2], [0.9, 0, 0], [0, 0.5, 0]])
    assert break_cycles(weights).removed == [(2, 0, 0.2)]
    with pytest.raises(ValueError, match="cycle among 3 nodes"):
        topological_order(weights)


def test_thresholds():
    scores = np.array([[0, 0.5, 0.02], [0.3, 0, 0.011], [0.01, 0.4, 0]])
    assert threshold_graph(scores).sum() == 2  # 0 <-> 1 keeps its stronger direction
    assert threshold_graph(scores)[0, 1]
    assert not threshold_graph(scores)[1, 0]
    assert 0.02 < largest_gap(scores) < 0.3
    np.testing.assert_array_equal(threshold_graph(scores, "gap"), threshold_graph(scores))
    assert threshold_graph(scores, "target_edges", target_edges=1).sum() == 1
    stability = np.where(scores == 0.4, 0.9, 0.1)
    assert threshold_graph(scores, "bootstrap", stability=stability).sum() == 1
    for words, message in (({"method": "x"}, "got 'x'"), ({"method": "bootstrap"}, "expects stability")):
        with pytest.raises(ValueError, match=message):
            threshold_graph(scores, **words)


def test_distances_on_the_sphere_know_no_dateline():
    coords = np.array([[0.0, 179.0], [0.0, -179.0], [90.0, 0.0], [0.0, 0.0]])
    km = great_circle_km(coords)
    assert km[0, 1] == pytest.approx(2 * np.pi * 6371.0088 / 180)
    assert km[2, 3] == pytest.approx(np.pi / 2 * 6371.0088)
    assert distance_mask(coords, 300).sum() == 2
    assert knn_mask(coords, 1)[0].tolist() == [False, True, False, False]
    with pytest.raises(ValueError, match="latitude in"):
        great_circle_km(np.array([[91.0, 0.0]]))
    path = great_circle(coords[0], coords[1])
    assert np.abs(np.diff(path[:, 1])).max() < 1
    np.testing.assert_allclose(path[-1], [0, 181], atol=1e-9)


def test_regression_mask_is_each_series_regressed_on_the_others():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(2000, 4))
    X[:, 1] += 0.8 * X[:, 0]
    mask = regression_mask(X)
    assert mask[0, 1]
    assert mask[1, 0]
    assert mask.sum() == 2


def test_masks_are_checked():
    with pytest.raises(ValueError, match=r"bool mask of shape \(3, 3\), got float64"):
        checked_mask(np.ones((3, 3)), 3)
    with pytest.raises(ValueError, match=r"of shape \(2, 2\)"):
        checked_mask(np.ones((2, 2), dtype=bool), 3)
    with pytest.warns(UserWarning, match="diagonal is ignored"):
        assert checked_mask(np.ones((3, 3), dtype=bool), 3).sum() == 6


@settings(deadline=None, max_examples=20)
@given(st.integers(0, 1000))
def test_mcc_does_not_see_order_sign_and_scale(seed):
    rng = np.random.default_rng(seed)
    z = rng.normal(size=(300, 3))
    order, scale = rng.permutation(3), rng.choice([-2.0, 0.5], 3)
    assert mean_correlation(z[:, order] * scale + 1, z) == pytest.approx(1)
    found = match_latents(z[:, order] * scale, z)
    np.testing.assert_array_equal(order[found.order], range(3))
    assert mean_correlation(np.sinh(3 * z[:, order]), z, "spearman") == pytest.approx(1)
    assert mean_correlation(np.sinh(3 * z), z) < 1


def test_block_r2_sees_rotations_and_spline_mcc_warps():
    rng = np.random.default_rng(0)
    z = rng.uniform(-1, 1, (3000, 2))
    mixed = z @ np.array([[0.6, 0.8], [-0.8, 0.6]])
    assert block_r2(mixed, z) > 0.98
    assert mean_correlation(mixed, z) < 0.9
    assert spline_correlation(np.sinh(3 * z), z) > 0.99
    assert block_r2(rng.normal(size=(3000, 2)), z) < 0.1


def test_graph_scores_by_hand():
    true = np.zeros((3, 3))
    true[1, 0] = true[2, 1] = 1
    reverse = compare_graphs(true.T, true)
    assert (reverse.shd, reverse.tpr, reverse.precision) == (2, 0, 0)
    extra = true.copy()
    extra[2, 0] = 1
    scores = compare_graphs(extra, true)
    assert (scores.shd, scores.tpr, scores.precision) == (1, 1, pytest.approx(2 / 3))
    assert (scores.shd_pairs, scores.shd_ordered) == (pytest.approx(1 / 3), pytest.approx(1 / 6))
    assert edge_auc(true * 2 + 0.1, true) == (1.0, 1.0)
    half = GraphResult(np.zeros((3, 3)), np.zeros((3, 3), dtype=bool), undirected=((0, 1), (1, 2)))
    assert half.compare(true).shd == 1


def brute_force_sid(estimated, true):
    """SID by simulation-free truth: in a linear Gaussian model, compare the adjusted regression with the path sum."""
    d, wrong = len(true), 0
    rng = np.random.default_rng(0)
    total = []
    for _ in range(3):
        W = true * rng.uniform(0.5, 1.5, (d, d))
        inverse = np.linalg.inv(np.eye(d) - W)
        total.append((inverse, inverse @ np.diag(rng.uniform(0.5, 1.5, d)) @ inverse.T))
    for i, j in itertools.permutations(range(d), 2):
        parents = np.flatnonzero(estimated[i])
        bad = False
        for effect, S in total:
            if j in parents:
                bad |= abs(effect[j, i]) > 1e-9
            else:
                inputs = [i, *parents]
                beta = np.linalg.solve(S[np.ix_(inputs, inputs)], S[inputs, j])[0]
                bad |= abs(beta - effect[j, i]) > 1e-9
        wrong += bad
    return wrong


@settings(deadline=None, max_examples=30)
@given(st.integers(2, 5), st.integers(0, 10_000))
def test_sid_is_what_linear_adjustment_says(d, seed):
    a, b = (random_dag(d, seed + k) != 0 for k in (0, 1))
    assert structural_intervention_distance(a, b) == brute_force_sid(a.astype(float), b.astype(float))
    assert structural_intervention_distance(b, b) == 0


def test_wind_blows_from_cause_to_effect():
    coords = np.array([[0.0, 0.0], [0.0, 10.0], [10.0, 0.0]])
    assert bearings(coords)[1, 0] == pytest.approx(np.pi / 2)
    assert bearings(coords)[2, 0] == pytest.approx(0, abs=1e-12)
    wind = wind_graph(coords, np.array([5.0, 5.0, 0.0]), np.zeros(3), 2000)
    assert wind[1, 0] == pytest.approx(1)
    assert wind[0, 1] == 0
    assert wind[2, 0] == pytest.approx(0, abs=1e-12)
    edges = np.zeros((3, 3), dtype=bool)
    edges[1, 0] = True
    assert wind_scores(edges, wind)[1] > 0.5
    test = wind_test(edges, wind, np.random.default_rng(0), ~np.eye(3, dtype=bool))
    assert test.null_median <= test.value
    assert 0 < test.p_value <= 1


def test_random_graphs_of_the_null_keep_the_in_degrees():
    edges = np.array([[0, 1, 1], [0, 0, 0], [1, 0, 0]], dtype=bool)
    uniform = np.ones((3, 3)) - np.eye(3)
    test = wind_test(edges, uniform, np.random.default_rng(0), ~np.eye(3, dtype=bool))
    assert test.null_low == test.null_high == test.value == pytest.approx(0.5)


def test_crps_of_a_normal_ensemble():
    rng = np.random.default_rng(0)
    samples, y = rng.normal(size=(4000, 50)), np.linspace(-2, 2, 50)
    from scipy.stats import norm

    exact = np.mean(y * (2 * norm.cdf(y) - 1) + 2 * norm.pdf(y) - 1 / np.sqrt(np.pi))
    assert crps(samples, y) == pytest.approx(exact, abs=0.01)


def test_graphs_leave_in_every_format():
    W = np.array([[0.0, 0.0], [0.7, 0.0]])
    graph = GraphResult(W, W != 0, ("a", "b"), np.array([[0.0, 10.0], [5.0, 20.0]]), stability=W)
    assert list(graph.to_networkx().edges) == [("a", "b")]
    assert graph.to_csv().splitlines()[1].startswith("a,b,0.7")
    data = graph.to_xarray()
    assert float(data["weight"].sel(effect="b", cause="a")) == 0.7
    with pytest.raises(ValueError, match="needs coords"):
        GraphResult(W, W != 0).plot_map(None)
