"""Online learners: the smoothness inequality, gradients, determinism, resume, and small versions of the claims."""

import itertools
import math

import numpy as np
import pytest

from oim import (
    CUCB,
    ETC,
    POLICIES,
    BoxUCB,
    CascadeEnv,
    EnsembleOIM,
    EpsGreedy,
    FeedbackError,
    GreedyMLE,
    ICGraph,
    IMLinUCB,
    LTLinUCB,
    PairOracleOIM,
    RandomSeeds,
    VertexOIM,
    exact_spread,
    fit,
    load_graph,
    regret,
    run,
    spread_gradient,
)
from oim.claims import PAPER, karate, twin_instance
from oim.online import _ExactSpreads, load_state, save_state, tail_slope, warmup_rounds
from papershelf import Run

pytestmark = pytest.mark.filterwarnings("ignore:some edges succeeded in all")
RNG = np.random.default_rng


def small(seed, n=5, arcs=8):
    rng = RNG(seed)
    pairs = np.array([(u, v) for u in range(n) for v in range(n) if u != v])
    chosen = pairs[rng.choice(len(pairs), arcs, replace=False)]
    return ICGraph(n, chosen[:, 0], chosen[:, 1], rng.uniform(0.1, 0.8, arcs))


def reachable(g, v, seeds):
    """How many non-seed nodes can be reached from v, v included."""
    found, stack = {v}, [v]
    while stack:
        for w in g.dst[g.src == stack.pop()]:
            if w not in found and w not in seeds:
                found.add(int(w))
                stack.append(int(w))
    return len(found)


@pytest.mark.parametrize("seed", range(8))
def test_smoothness_under_observation_by_enumeration(seed):
    """|s(S,t') - s(S,t)| <= E_t[sum over trials R_v |x.(t'_v - t_v)|], expectation over all live-edge graphs."""
    g = small(seed)
    theta, other = -np.log1p(-g.p), -np.log1p(-RNG(seed + 100).uniform(0.1, 0.8, g.m))
    left = abs(exact_spread(g, [0]) - exact_spread(g, [0], -np.expm1(-other)))
    right = 0.0
    for live in itertools.product([False, True], repeat=g.m):
        live = np.array(live)
        chance = np.prod(np.where(live, g.p, 1 - g.p))
        times = np.full(g.n, -1)
        times[0] = 0
        for step in range(g.n):
            for e in np.flatnonzero(live):
                if times[g.src[e]] == step and times[g.dst[e]] < 0:
                    times[g.dst[e]] = step + 1
        for v in range(1, g.n):
            arcs = np.flatnonzero(g.dst == v)
            parents = times[g.src[arcs]]
            for step in set(parents[parents >= 0].tolist()):
                if times[v] < 0 or step < times[v]:
                    x = parents == step
                    right += chance * reachable(g, v, {0}) * abs((other - theta)[arcs][x].sum())
    assert left <= right + 1e-12


@pytest.mark.parametrize("seed", range(4))
def test_spread_gradient_is_the_finite_difference_of_the_exact_spread(seed):
    g = small(seed)
    theta = -np.log1p(-g.p)
    estimate = spread_gradient(g, [0], 200_000, RNG(seed))
    for e in range(g.m):
        step = np.eye(g.m)[e] * 1e-5
        up, down = (exact_spread(g, [0], -np.expm1(-(theta + s * step))) for s in (1, -1))
        assert estimate[e] == pytest.approx((up - down) / 2e-5, abs=0.03)


def test_the_exact_table_gives_spreads_and_gradients():
    g = small(1)
    theta, table = -np.log1p(-g.p), _ExactSpreads(small(1), 2)
    values = table.spreads(theta)
    for index, nodes in enumerate(table.sets):
        value, slope = table.value_and_gradient(theta, index)
        assert value == pytest.approx(exact_spread(g, nodes))
        assert value == pytest.approx(values[index])
        for e in range(g.m):
            step = np.eye(g.m)[e] * 1e-6
            up, down = table.spreads(theta + step)[index], table.spreads(theta - step)[index]
            assert slope[e] == pytest.approx((up - down) / 2e-6, abs=1e-5)


def test_packed_warmup_seeds_share_no_child_and_cover_all_roots():
    g = load_graph("lesmis")
    rounds = warmup_rounds(g, 5, 2, pack=True)
    for seeds in rounds:
        reach = [{v, *g.dst[g.src == v].tolist()} for v in seeds]
        assert len(seeds) <= 5
        assert sum(map(len, reach)) == len(set().union(*reach))
    for v in np.flatnonzero(g.out_degree):
        assert sum(int(v) in seeds for seeds in rounds) == 2
    assert len(rounds) < len(warmup_rounds(g, 5, 2, pack=False))


def make(name, g, k, T, seed):
    options = {} if name in ("known", "random", "degree") else {"horizon": T, "n_rr": 300}
    return POLICIES[name](g, k, random_state=seed, **options)


@pytest.mark.parametrize("name", [name for name in POLICIES if name != "vertex"])
def test_a_resumed_run_has_the_same_history_bit_for_bit(name, tmp_path):
    truth, T = karate(1), 150
    env = CascadeEnv(truth, 4)
    whole = run(make(name, truth, 2, T, 7), env, T)
    checkpoint = tmp_path / "state.npz"

    class Stop(Exception):
        pass

    def interrupt(t, policy):
        if t == 97:
            raise Stop

    with pytest.raises(Stop):
        run(make(name, truth, 2, T, 7), env, T, callback=interrupt, checkpoint=checkpoint, checkpoint_every=30)
    resumed = make(name, truth, 2, T, 7)
    again = run(resumed, env, T, checkpoint=checkpoint)
    assert (again.seeds == whole.seeds).all()
    assert (again.reward == whole.reward).all()
    assert again.n_oracle == whole.n_oracle


def test_asking_twice_gives_the_same_seeds_and_replay_is_deterministic():
    truth = karate(0)
    env = CascadeEnv(truth, 0)
    one, two = (EnsembleOIM(truth, 2, horizon=120, n_rr=300, random_state=3) for _ in range(2))
    for t in range(120):
        assert one.ask() == one.ask() == two.ask()
        times, _ = env.round(t, truth.index(one.ask()))
        one.tell(one.ask(), times)
        two.tell(two.ask(), {v: int(step) for v, step in enumerate(times) if step >= 0})
    assert one.history == two.history


def test_policies_meet_the_same_coins_in_the_same_round():
    truth = karate(0)
    env = CascadeEnv(truth, 0)
    first, coins = env.round(5, np.array([0]), True)
    _, others = env.round(5, np.array([33]), True)
    both = (coins >= 0) & (others >= 0)
    assert (coins[both] == others[both]).all()
    assert (env.round(5, np.array([0]))[0] == first).all()


@pytest.mark.parametrize(
    ("seeds", "change", "told"),
    [
        ([0], {0: 2}, "seed 0 must be active at step 0, got 2"),
        ([0], {5: 0}, "node 5 is active at step 0 but is not a seed"),
        ([0], {33: 9}, "node 33 is active at step 9 but no parent was at 8"),
    ],
)
def test_impossible_feedback_is_refused_and_leaves_no_trace(seeds, change, told):
    policy = EnsembleOIM(karate(0), 1)
    times = np.full(34, -1)
    times[0] = 0
    for node, step in change.items():
        times[node] = step
    with pytest.raises(FeedbackError, match=told):
        policy.tell(seeds, times)
    assert policy.t == 0
    assert policy.trials.n_trials.sum() == 0


def test_bad_arguments_name_what_they_got():
    g = karate(0)
    with pytest.raises(ValueError, match="k must lie between 1 and the number of nodes 34, got 40"):
        EnsembleOIM(g, 40)
    with pytest.raises(ValueError, match="covariances need"):
        EnsembleOIM(g, 2, covariance="full", max_dense_bytes=100)
    with pytest.raises(ValueError, match="needs a horizon"):
        EnsembleOIM(g, 2, M="theory")
    with pytest.raises(ValueError, match=r"features must be \(156, d\), got \(3, 2\)"):
        IMLinUCB(g, 2, features=np.zeros((3, 2)))
    with pytest.raises(FeedbackError, match="needs the coins"):
        CUCB(g, 1).tell([0], np.r_[0, np.full(33, -1)])
    with pytest.raises(ValueError, match="state of a RandomSeeds"):
        EnsembleOIM(g, 1).load_state_dict(RandomSeeds(g, 1).state_dict())


def test_a_damaged_checkpoint_is_refused(tmp_path):
    bad = tmp_path / "state.npz"
    bad.write_bytes(b"not a checkpoint")
    with pytest.raises(ValueError, match="not a saved policy state"):
        load_state(bad)
    save_state(bad, {"a": {"b": np.arange(3)}, "c": 1, "d": "x", "e": {}})
    assert load_state(bad)["a"]["b"].tolist() == [0, 1, 2]
    assert load_state(bad)["e"] == {}


def test_theory_parameters():
    g = karate(0)
    policy = EnsembleOIM(g, 2, M="theory", horizon=1000, n0="sqrt")
    assert math.ceil(math.log(1000) / 0.172) == policy.M
    assert len(policy.warmup) == 34
    assert len(EnsembleOIM(g, 2, horizon=100, n0=5).warmup) == 20


def test_the_warmup_budget_keeps_the_nodes_of_largest_out_degree():
    g = karate(0)
    policy = EnsembleOIM(g, 2, horizon=50)
    assert [v for (v,) in policy.warmup] == np.argsort(-g.out_degree, kind="stable")[:10].tolist()


def test_ensemble_learns_and_box_does_not_on_the_twin_instance():
    truth, T, slopes = twin_instance(), 800, {}
    for cls in (EnsembleOIM, BoxUCB):
        curves = [
            regret(run(cls(truth, 1, horizon=T, random_state=s), CascadeEnv(truth, s), T), truth).ref for s in range(3)
        ]
        slopes[cls] = (tail_slope(np.mean(curves, axis=0)), np.mean([c[-1] for c in curves]))
    assert slopes[BoxUCB][0] > 0.9
    assert slopes[EnsembleOIM][0] < 0.6
    assert slopes[EnsembleOIM][1] < slopes[BoxUCB][1] / 4


def test_logdet_updates_obey_the_potential_bound_and_learn():
    truth = karate(2)
    policy = EnsembleOIM(truth, 2, horizon=400, lazy="logdet", growth=1e4, n_rr=500, random_state=0)
    prior = truth.m * math.log(0.01)
    history = run(policy, CascadeEnv(truth, 0), 400)
    updates = history.n_oracle / 8
    assert 3 <= updates <= 1 + (policy.fitted.logdet.sum() - prior) / math.log1p(1e4)
    random = run(RandomSeeds(truth, 2, random_state=0), CascadeEnv(truth, 0), 400)
    assert history.reward[200:].mean() > 1.3 * random.reward[200:].mean()


def test_vertex_policy_calls_the_oracle_twice_an_arc_and_learns():
    truth = small(0)
    history = run(VertexOIM(truth, 1, horizon=60, oracle="exact", random_state=0), CascadeEnv(truth, 0), 60)
    updates = history.n_oracle / (2 * truth.m)
    assert updates == int(updates) > 0
    assert regret(history, truth).ref[-1] < 60


def test_pair_oracle_heuristic_runs_on_larger_graphs():
    truth = karate(0)
    policy = PairOracleOIM(truth, 2, horizon=120, starts=2, alternations=2, runs=100, n_rr=300, random_state=0)
    assert policy._exact is None
    history = run(policy, CascadeEnv(truth, 0), 120)
    assert history.reward[80:].mean() > run(RandomSeeds(truth, 2), CascadeEnv(truth, 0), 120).reward.mean()


def test_exploration_baselines_follow_their_schedules():
    truth = karate(0)
    etc = run(ETC(truth, 2, horizon=216, random_state=0), CascadeEnv(truth, 0), 216)
    assert etc.n_oracle == 1
    assert (etc.seeds[:36, 1] == -1).all()
    assert (etc.seeds[36:] == etc.seeds[-1]).all()
    eps = EpsGreedy(truth, 2, horizon=200, random_state=0)
    run(eps, CascadeEnv(truth, 0), 200)
    assert eps.warmup == []


def test_imlinucb_with_one_hot_features_counts_like_a_table():
    truth = small(2)
    policy = IMLinUCB(truth, 1, random_state=0)
    run(policy, CascadeEnv(truth, 0), 100)
    bound = policy.hits / (1 + policy.tries) + 1 / np.sqrt(1 + policy.tries)
    assert policy.upper_bounds() == pytest.approx(np.clip(bound, 0, 1))


def test_lt_learner_estimates_threshold_weights():
    g = load_graph("karate", "wc")
    policy = LTLinUCB(g, 1, n0=60, n_rr=300, random_state=0)
    history = run(policy, CascadeEnv(g, 0, "lt"), 2500)
    estimate = np.empty(g.m)
    estimate[g.in_edge] = policy.estimate()
    error = np.sqrt(np.mean((estimate - g.p) ** 2))
    assert error < 0.5 * np.sqrt(np.mean(g.p**2))
    assert history.reward[2100:].mean() > history.reward[:2000].mean()


def test_regret_of_the_reference_is_zero_and_scaled_regret_is_lower():
    truth = small(3)
    history = run(make("known", truth, 2, 20, 0), CascadeEnv(truth, 0), 20)
    curve = regret(history, truth)
    assert curve.reference_spread == pytest.approx(
        max(exact_spread(truth, s) for s in itertools.combinations(range(5), 2))
    )
    assert (curve.ref >= -1e-9).all()
    assert curve.scaled[-1] == pytest.approx(curve.ref[-1] - 20 / math.e * curve.reference_spread)
    assert (regret(history, truth, reference=history.seeds[0]).ref == 0).all()


def test_tail_slope_of_known_growth():
    steps = np.arange(1, 1001.0)
    for power in (0.5, 1.0):
        assert tail_slope(steps**power) == pytest.approx(power)
    assert tail_slope(np.full(10, 3.0)) == 0


def test_greedy_warns_once_about_edges_at_the_cap():
    g = ICGraph(3, [0, 1], [1, 2], [1.0, 1.0])
    with pytest.warns(UserWarning, match="capped at 0.99") as caught:
        run(GreedyMLE(g, 1, horizon=40, random_state=0), CascadeEnv(g, 0), 40)
    assert len(caught) == 1


def test_arcs_that_were_never_tried_take_the_mean_of_the_others():
    g = ICGraph(4, [0, 1, 2, 0], [1, 2, 3, 3], [0.3, 0.5, 0.5, 0.2])
    policy = EnsembleOIM(g, 1, n0=0, random_state=0)
    for t in range(50):
        times, _ = CascadeEnv(g, 0).round(t, np.array([0]))
        policy.tell([0], times, observed_until=1)
    fitted = fit(policy.trials)
    known = policy._with_prior(fitted)
    untried = policy.trials.edge_trials() == 0
    assert untried.tolist() == [False, False, True, True]
    theta_0 = fitted.theta[~untried].mean()
    assert known.theta[untried] == pytest.approx(theta_0)
    for v in (2, 3):
        arcs = g.in_edge[g.in_ptr[v] : g.in_ptr[v + 1]]
        V, L = known.block(v)
        assert np.diag(V)[untried[arcs]] == pytest.approx(1 / theta_0**2)
        assert pytest.approx(V) == L @ L.T


def test_partial_horizon_reaches_the_learner():
    g = ICGraph(3, [0, 1], [1, 2], 0.5)
    policy = GreedyMLE(g, 1)
    policy.tell([0], np.array([0, 1, 2]), observed_until=1)
    assert policy.trials.n_trials.tolist() == [0, 1, 0]
    assert fit(policy.trials).p[0] > 0.9


@pytest.mark.parametrize("claim", PAPER.claims, ids=lambda claim: claim.id)
def test_claims_run_at_a_small_size(claim, tmp_path):
    """At tiny size each measurement runs and reports finite figures; C1, C3 and C7 must hold there already."""
    outcome = claim.measure(Run(seed=1, scale="tiny", out=tmp_path))
    assert outcome.measured
    assert all(path.is_file() for path in outcome.figures)
    if claim.id in ("C3", "C7"):
        assert outcome.holds, outcome.measured
