"""Trials, likelihood, estimators, ellipsoids and projection against slow references and independent solvers."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize, nnls

from oim import FeedbackError, ICEstimator, ICGraph, NodeTrials, fit, load_graph, log_likelihood, project_psd_nonneg
from oim.data import random_p
from oim.ic import simulate
from oim.learning import (
    OnlineNode,
    _project,
    cautious_theta,
    diagonal_nodes,
    fisher_weight,
    gradient,
    hessian,
    negative_log_likelihood,
)
from oim.online import CascadeEnv

RNG = np.random.default_rng


def karate(seed=0):
    return random_p(load_graph("karate", "uniform:0"), 0.0, 0.3, RNG(seed))


def cascades(g, rounds, seed=0, k=1):
    env, rng = CascadeEnv(g, seed), RNG(seed)
    return [env.round(t, rng.choice(g.n, k, replace=False))[0] for t in range(rounds)]


def slow_trials(g, times):
    """Trials by the definition, with dictionaries: (node, parents) -> outcomes."""
    found = {}
    for v in range(g.n):
        if times[v] == 0:
            continue
        by_step = {}
        for u in g.src[g.dst == v]:
            if times[u] >= 0 and (times[v] < 0 or times[u] < times[v]):
                by_step.setdefault(times[u], []).append(int(u))
        for step, parents in by_step.items():
            found.setdefault((v, tuple(sorted(parents))), []).append(int(step == times[v] - 1))
    return found


def test_trials_equal_the_slow_reference_on_500_cascades():
    g = karate()
    rows = cascades(g, 500, k=2)
    trials, expected = NodeTrials(g), {}
    for times in rows:
        trials.add(times)
        for key, outcomes in slow_trials(g, times).items():
            expected.setdefault(key, []).extend(outcomes)
    found = {}
    for v in range(g.n):
        X, n, k = trials.groups(v)
        parents = g.in_src[g.in_ptr[v] : g.in_ptr[v + 1]]
        for row, tries, hits in zip(X, n, k, strict=True):
            found[v, tuple(sorted(parents[row].tolist()))] = (tries, hits)
    assert found == {key: (len(o), sum(o)) for key, o in expected.items()}


def test_the_likelihood_of_trials_is_the_likelihood_of_the_cascade():
    """Enumerate all activation vectors of a small graph: exp(log-likelihood) is their distribution."""
    g = ICGraph(4, [0, 0, 1, 2, 1], [1, 2, 3, 3, 2], [0.5, 0.4, 0.3, 0.6, 0.2])
    rows = np.array([CascadeEnv(g, 1).round(t, np.array([0]))[0] for t in range(40_000)])
    outcomes, counts = np.unique(rows, axis=0, return_counts=True)
    total = 0.0
    for times, count in zip(outcomes, counts, strict=True):
        trials = NodeTrials(g)
        trials.add(times)
        chance = math.exp(log_likelihood(trials, g.p))
        total += chance
        assert abs(count / 40_000 - chance) < 5 * math.sqrt(chance * (1 - chance) / 40_000)
    assert total == pytest.approx(1.0)


def test_merging_stores_equals_adding_all():
    g, rows = karate(), cascades(karate(), 60)
    whole, first, second = NodeTrials(g), NodeTrials(g), NodeTrials(g)
    whole.add_many(np.array(rows))
    first.add_many(np.array(rows[:30]))
    second.add_many(np.array(rows[30:]))
    first.merge(second)
    assert first.n_rounds == 60
    for v in range(g.n):
        one, two = ({tuple(x): (a, b) for x, a, b in zip(*t.groups(v), strict=True)} for t in (whole, first))
        assert one == two


def random_groups(seed, d=4, G=10):
    rng = RNG(seed)
    X = rng.random((G, d)) < 0.5
    X[np.arange(G), rng.integers(d, size=G)] = True
    n = rng.integers(1, 60, G).astype(float)
    theta = rng.uniform(0.05, 0.8, d)
    k = rng.binomial(n.astype(int), 1 - np.exp(-(X @ theta))).astype(float)
    return X, n, k, theta


@pytest.mark.parametrize("seed", range(5))
def test_gradient_and_hessian_are_finite_differences(seed):
    X, n, k, theta = random_groups(seed)
    step = 1e-6
    for i in range(4):
        e = np.eye(4)[i] * step
        slope = (
            negative_log_likelihood(theta + e, X, n, k, 0.1) - negative_log_likelihood(theta - e, X, n, k, 0.1)
        ) / (2 * step)
        assert slope == pytest.approx(gradient(theta, X, n, k, 0.1)[i], rel=1e-5, abs=1e-5)
        curve = (gradient(theta + e, X, n, k, 0.1) - gradient(theta - e, X, n, k, 0.1)) / (2 * step)
        assert curve == pytest.approx(hessian(theta, X, n, k, 0.1)[i], rel=1e-4, abs=1e-4)


def test_fisher_information_is_the_expected_hessian():
    rng, X, theta = RNG(0), np.array([[1, 0], [1, 1], [0, 1]], bool), np.array([0.3, 0.7])
    n = np.array([20.0, 30.0, 25.0])
    q = 1 - np.exp(-(X @ theta))
    mean = np.mean([hessian(theta, X, n, rng.binomial(n.astype(int), q).astype(float)) for _ in range(4000)], axis=0)
    fisher = (X * (n / np.expm1(X @ theta))[:, None]).T @ X
    assert mean == pytest.approx(fisher, rel=0.02)


def star_trials(X, n, k):
    """A store whose last node has exactly these groups."""
    d = X.shape[1]
    g = ICGraph(d + 1, np.arange(d), np.full(d, d), 0.1)
    trials = NodeTrials(g)
    for row, tries, hits in zip(X, n, k, strict=True):
        times = np.where(np.r_[row, False], 0, -1)
        for i in range(int(tries)):
            trials.add(np.where(np.arange(d + 1) == d, 1 if i < hits else -1, times))
    return trials


@pytest.mark.parametrize("seed", range(12))
def test_mle_equals_a_generic_bounded_solver(seed):
    X, n, k, _ = random_groups(seed)
    theta = fit(star_trials(X, n, k), lam=1e-3).theta
    cap = -math.log1p(-0.99)
    best = minimize(
        lambda t: negative_log_likelihood(t, X, n, k, 1e-3),
        np.full(4, 0.3),
        jac=lambda t: gradient(t, X, n, k, 1e-3),
        bounds=[(0, cap)] * 4,
        method="L-BFGS-B",
        options={"ftol": 1e-15, "gtol": 1e-10, "maxiter": 5000},
    )
    assert np.abs(np.exp(-theta) - np.exp(-best.x)).max() <= 1e-6


@pytest.mark.parametrize("seed", range(4))
def test_em_reaches_the_optimum_of_the_likelihood(seed):
    X, n, k, _ = random_groups(seed)
    trials = star_trials(X, n, k)
    mle, em = fit(trials, lam=0.0), fit(trials, "em")
    values = [negative_log_likelihood(f.theta, X, n, k) for f in (mle, em)]
    assert values[1] == pytest.approx(values[0], abs=1e-5)


def test_pseudo_estimator_solves_its_estimating_equation():
    X, n, k, _ = random_groups(3)
    theta = fit(star_trials(X, n, k), "pseudo", lam=0.0).theta
    residual = X.T @ (k - n * (1 - np.exp(-(X @ theta))))
    inside = theta > 0
    assert np.abs(residual[inside]).max() < 1e-3
    assert (residual[~inside] <= 1e-3).all()


def test_only_failures_give_zero_and_only_successes_the_cap():
    X = np.array([[True, False], [False, True]])
    found = fit(star_trials(X, np.array([5, 5]), np.array([0, 5])), lam=0.0)
    assert found.p == pytest.approx([0.0, 0.99], abs=1e-6)


def test_coverage_of_the_95_percent_ellipsoid():
    X = np.array([[1, 0, 0], [0, 1, 0], [0, 0, 1], [1, 1, 0], [0, 1, 1]], bool)
    theta, rng = -np.log1p(-np.array([0.2, 0.35, 0.5])), RNG(0)
    g = ICGraph(4, [0, 1, 2], [3, 3, 3], 0.1)
    flat = star_trials(X, np.ones(5), np.zeros(5))
    inside = 0
    for _ in range(400):
        n = rng.multinomial(500, np.full(5, 0.2))
        state = flat.state_dict()
        state["n"], state["k"] = n, rng.binomial(n, 1 - np.exp(-(X @ theta)))
        trials = NodeTrials(g)
        trials.load_state_dict(state)
        found = fit(trials, lam=0.0)
        gap = found.node_theta(3) - theta
        inside += gap @ found.V[3] @ gap <= found.rho[3] ** 2
    assert 0.90 <= inside / 400 <= 0.99


def test_the_theory_ellipsoid_is_wider_than_the_fisher_one_where_it_matters():
    X, n, k, theta = random_groups(1)
    trials = star_trials(X, n, k)
    wide = fit(trials, confidence="theory")
    gap = theta - wide.node_theta(4)
    assert gap @ wide.V[4] @ gap <= wide.rho[4] ** 2
    assert wide.V[4] == pytest.approx((X * n[:, None]).T @ X + 0.01 * np.eye(4))


def test_few_failures_do_not_make_an_arc_certain():
    """Two failures leave p = 0.3 well inside the ellipsoid; the bare Fisher information would exclude it."""
    found = fit(star_trials(np.array([[True]]), np.array([2]), np.array([0])))
    theta = -math.log1p(-0.3)
    assert theta**2 * found.V[1][0, 0] < found.rho[1] ** 2
    assert theta**2 * 2 / math.expm1(0.01) > found.rho[1] ** 2


@given(seed=st.integers(0, 10_000), d=st.integers(1, 12), spread=st.floats(-4, 4))
@settings(max_examples=150, deadline=None)
def test_projection_is_nnls_on_the_cholesky_factor(seed, d, spread):
    rng = RNG(seed)
    A = rng.standard_normal((d, d)) * np.logspace(0, spread, d)
    V, y = A @ A.T + 1e-2 * np.eye(d), rng.standard_normal(d) * 3
    L = np.linalg.cholesky(V)
    best, _ = nnls(L.T, L.T @ y, maxiter=1000)

    def objective(t):
        return (t - y) @ V @ (t - y)

    for found in (project_psd_nonneg(V, y), _project(V, y, 50, 1e-8)):
        assert (found >= 0).all()
        assert objective(found) <= objective(best) * (1 + 1e-6) + 1e-8
    assert np.abs(project_psd_nonneg(V, y) - best).max() < 1e-6 * max(1, np.abs(best).max())


@given(seed=st.integers(0, 10_000))
@settings(max_examples=50, deadline=None)
def test_projection_is_non_expansive_and_clipping_is_not(seed):
    rng = RNG(seed)
    A = rng.standard_normal((4, 4))
    V, a, b = A @ A.T + 0.01 * np.eye(4), *rng.standard_normal((2, 4))
    distance = (a - b) @ V @ (a - b)
    gap = project_psd_nonneg(V, a) - project_psd_nonneg(V, b)
    assert gap @ V @ gap <= distance * (1 + 1e-6)


def test_clipping_leaves_the_ellipsoid_that_projection_stays_in():
    V = np.array([[100.0, 99.99], [99.99, 100.0]])
    y, inside = np.array([2.0, -1.8]), np.array([0.1, 0.1])
    radius = (y - inside) @ V @ (y - inside)
    clipped, projected = np.maximum(y, 0), project_psd_nonneg(V, y)
    assert (clipped - inside) @ V @ (clipped - inside) > 10 * radius
    assert (projected - inside) @ V @ (projected - inside) <= radius


def test_observed_until_hides_later_steps():
    g = ICGraph(4, [0, 1, 2], [1, 2, 3], 0.5)
    trials = NodeTrials(g)
    trials.add(np.array([0, 1, 2, 3]), observed_until=1)
    assert [trials.groups(v)[1].sum() for v in range(4)] == [0, 1, 0, 0]
    trials.add(np.array([0, 1, 2, 3]))
    assert [trials.groups(v)[1].sum() for v in range(4)] == [0, 2, 1, 1]


def test_external_adopters_count_as_failures_before_and_as_parents_after():
    g = ICGraph(4, [0, 1, 3], [1, 2, 1], 0.5)
    times = np.array([0, 2, 3, -1])
    trials = NodeTrials(g)
    with pytest.raises(FeedbackError, match="node 1 is active at step 2 but no parent was at 1") as caught:
        trials.add(times)
    assert (caught.value.node, caught.value.step) == (1, 2)
    assert trials.n_rounds == 0
    assert trials.n_trials.sum() == 0
    trials.add(times, external=True)
    assert trials.groups(1)[1:] == (pytest.approx([1.0]), pytest.approx([0.0]))
    assert trials.groups(2)[1:] == (pytest.approx([1.0]), pytest.approx([1.0]))


@pytest.mark.parametrize("times", [np.zeros(3, int), np.array([0.5, 0, 0, 0]), np.array([[0, 1, 2, 3]])])
def test_steps_of_the_wrong_shape_or_kind_are_refused(times):
    with pytest.raises(FeedbackError):
        NodeTrials(ICGraph(4, [0], [1], 0.5)).add(times)


def test_a_node_with_too_many_groups_is_learned_online_within_its_standard_errors():
    truth = ICGraph(9, np.arange(8), np.full(8, 8), np.linspace(0.1, 0.5, 8))
    online = NodeTrials(truth, max_groups=20)
    rng, env = RNG(0), CascadeEnv(truth, 0)
    rows = [env.round(t, np.flatnonzero(rng.random(8) < 0.3))[0] for t in range(4000)]
    with pytest.warns(UserWarning, match="more than 20 distinct parent sets"):
        online.add_many(np.array(rows))
    assert list(online.online) == [8]
    assert online.groups(8)[0].size == 0
    found = fit(online)
    assert np.abs(found.p - truth.p) / found.se == pytest.approx(np.zeros(8), abs=4)


def test_covariance_memory_is_bounded_before_anything_is_allocated():
    g = load_graph("lesmis")
    assert not diagonal_nodes(g, "auto", 1 << 30).any()
    with pytest.raises(ValueError, match=r"full covariances need [\d,]+ bytes"):
        diagonal_nodes(g, "full", 1000)
    with pytest.warns(UserWarning, match="diagonal covariance"):
        diagonal = diagonal_nodes(g, "auto", 20_000)
    kept = g.in_degree[~diagonal]
    assert 8 * (kept**2).sum() <= 20_000
    assert g.in_degree[diagonal].min() >= kept.max()


def test_estimator_recovers_probabilities_from_labelled_logs():
    truth = random_p(load_graph("lesmis", "uniform:0"), 0.1, 0.5, RNG(1))
    rows = cascades(truth, 3000, seed=3)
    logs = [{truth.labels[v]: int(t) for v, t in enumerate(row) if t >= 0} for row in rows]
    found = ICEstimator().fit(truth, logs)
    tried = found.edge_trials_ > 200
    z = (found.edge_proba_ - truth.p)[tried] / found.edge_se_[tried]
    assert tried.sum() > 100
    assert np.mean(np.abs(z) < 1.96) > 0.88
    assert found.score(truth, logs[:50]) > ICEstimator().fit(truth, logs[:3]).score(truth, logs[:50])


def test_online_newton_step_by_rank_one_update_is_the_direct_solve():
    rng, d = RNG(40), 7
    information = rng.normal(size=(d, d))
    information = information @ information.T + np.eye(d)
    node = OnlineNode(rng.uniform(0.05, 0.5, d), information.copy(), np.linalg.inv(information), np.full(d, 30.0))
    for _ in range(40):
        members = np.sort(rng.choice(d, size=3, replace=False))
        tries, hits = int(rng.integers(1, 4)), int(rng.integers(0, 2))
        x = np.zeros(d)
        x[members] = 1
        tried = node.tried + tries * x
        z = float(x @ cautious_theta(node.theta, tried))
        information = information + np.outer(x, x) * tries * fisher_weight(z)
        slope = x * ((tries - hits) - hits / np.expm1(z))
        expected = np.clip(node.theta - np.linalg.solve(information, slope), 0, 3)
        node.step(members, tries, hits, 3.0)
        np.testing.assert_allclose(node.theta, expected, atol=1e-9)
        np.testing.assert_allclose(node.inverse, np.linalg.inv(information), atol=1e-9)


def test_forgotten_groups_leave_the_others_as_they_were():
    g = ICGraph(6, np.array([0, 1, 2, 0, 1, 2]), np.array([3, 3, 3, 4, 4, 5]), 0.4)
    rng, small, large = RNG(41), NodeTrials(g, max_groups=3), NodeTrials(g)
    rows = np.array([simulate(g, rng.permutation(3)[: rng.integers(1, 4)], rng) for _ in range(60)])
    large.add_many(rows)
    with pytest.warns(UserWarning, match="more than 3 distinct parent sets"):
        small.add_many(rows)
    assert set(small.online) == {3}
    for v in (4, 5):
        for a, b in zip(small.groups(v), large.groups(v), strict=True):
            np.testing.assert_array_equal(a, b)
    np.testing.assert_array_equal(small.n_trials, large.n_trials)
    np.testing.assert_array_equal(small.edge_trials(), large.edge_trials())
    again = NodeTrials(g, max_groups=3)
    again.load_state_dict(small.state_dict())
    np.testing.assert_array_equal(again.edge_trials(), small.edge_trials())
    np.testing.assert_allclose(again.online[3].inverse, small.online[3].inverse, rtol=1e-8)
