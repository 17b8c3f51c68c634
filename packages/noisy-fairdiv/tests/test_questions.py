"""Oracles, certificates, adaptive questions and simulations."""

import numpy as np
import pytest
from scipy import stats

from noisy_fairdiv import (
    Answers,
    BernoulliOracle,
    CountingOracle,
    GaussianOracle,
    NoisyEnvyFree,
    OutOfAnswers,
    TableOracle,
    adaptive_allocation,
    beta_instance,
    certified_envy_free,
    correlated_instance,
    hard_instance,
    identical_instance,
    instance_family,
    lower_bounds,
    mallows_instance,
    required_queries,
    success_rate,
    sweep,
    threshold_allocation,
    uniform_instance,
)
from noisy_fairdiv.questions import ask, estimate_sigma, known_sigma


def RNG(seed=0):
    return np.random.default_rng(seed)


def test_sums_and_squares_have_the_law_of_single_answers():
    U = np.array([[0.3], [0.8]])
    oracle = GaussianOracle(np.tile(U, (1, 4000)), 0.5, RNG(1))
    sums, squares = oracle(1, np.arange(4000), np.full(4000, 6))
    drawn = 0.8 + 0.5 * RNG(2).normal(size=(4000, 6))
    assert stats.ks_2samp(sums, drawn.sum(1)).pvalue > 1e-3
    assert stats.ks_2samp(squares, (drawn**2).sum(1)).pvalue > 1e-3
    assert stats.ks_2samp(squares - sums**2 / 6, drawn.var(1) * 6).pvalue > 1e-3
    single = oracle(0, np.arange(10), np.ones(10, int))
    np.testing.assert_allclose(single[0] ** 2, single[1])


def test_bernoulli_answers_are_zeros_and_ones():
    oracle = BernoulliOracle(np.array([[0.0, 1.0], [0.5, 0.5]]), RNG(0))
    sums, squares = oracle(0, np.array([0, 1]), np.array([9, 9]))
    assert sums.tolist() == squares.tolist() == [0, 9]
    with pytest.raises(ValueError, match=r"must lie in \[0, 1\], got 0.0 to 2.0"):
        BernoulliOracle(np.array([[0.0, 2.0], [1, 1]]), RNG(0))


def test_a_table_gives_each_answer_once_in_order_and_loses_nothing_when_it_runs_out():
    agents, items = np.array([0, 0, 0, 1, 0, 1]), np.array([0, 0, 1, 0, 0, 1])
    oracle = TableOracle(agents, items, np.array([1.0, 2, 3, 4, 5, 6]), 2, 2)
    assert oracle(0, np.array([0]), np.array([2]))[0].tolist() == [3]
    before = oracle.left()
    with pytest.raises(OutOfAnswers, match="agent 0, good 0: 2 answers asked for, 1 left"):
        oracle(0, np.array([1, 0]), np.array([1, 2]))
    np.testing.assert_array_equal(oracle.left(), before)
    sums, squares = oracle(0, np.array([0, 1]), np.array([1, 1]))
    assert (sums.tolist(), squares.tolist()) == ([5, 3], [25, 9])


def test_a_certificate_search_on_a_table_ends_with_what_it_has():
    U, rng, repeats = uniform_instance(30, RNG(3)), RNG(4), 11
    cells = np.repeat(np.arange(60), repeats)
    agents, items = np.divmod(cells, 30)
    answers = U[agents, items] + 0.3 * rng.normal(size=cells.size)
    oracle = CountingOracle(TableOracle(agents, items, answers, 2, 30))
    found = certified_envy_free(oracle, sigma=3.0)  # a pessimistic sigma is never sure
    assert found.certified is False
    assert oracle.counts.max() <= repeats
    assert found.n_queries == 8 * 30  # 2 + 2 + 4 of 11 answers; the next doubling does not fit


def test_estimated_sigma_is_near_the_truth():
    answers = ask(GaussianOracle(uniform_instance(300, RNG(5)), 0.7, RNG(6)), np.full((2, 300), 6))
    deviation, freedom = estimate_sigma(answers)
    np.testing.assert_allclose(deviation, 0.7, rtol=0.05)
    assert freedom.tolist() == [1500, 1500]


def test_a_larger_budget_reaches_the_best_threshold_allocation():
    U = uniform_instance(50, RNG(7))
    path = sweep(*U)
    best = np.minimum(path.gain_a, path.gain_b).max()
    found = NoisyEnvyFree(budget=10**10, random_state=0).fit(GaussianOracle(U, 1.0, RNG(8)))
    assert -found.allocation_.envy(U) == pytest.approx(best, abs=1e-6)


def test_oracle_and_samples_lead_to_the_same_allocation():
    U = uniform_instance(40, RNG(9))
    oracle = GaussianOracle(U, 1.0, RNG(10))
    answers = ask(oracle, np.full((2, 40), 4))
    by_samples = NoisyEnvyFree(budget=1, sigma=1.0).fit_samples(answers.sums, answers.counts)
    direct = threshold_allocation(answers.means, 0.5)
    np.testing.assert_array_equal(by_samples.owner_, direct.owner)
    assert by_samples.n_queries_ == 160


def test_fewer_questions_than_goods_asks_about_some_and_splits_the_rest():
    U = uniform_instance(1000, RNG(11))
    counter = CountingOracle(GaussianOracle(U, 1.0, RNG(12)))
    found = NoisyEnvyFree(budget=300, unqueried="balanced", random_state=1).fit(counter)
    assert counter.counts.sum(1).tolist() == [300, 300]
    assert counter.counts.max() == 1
    np.testing.assert_array_equal(counter.counts[0], counter.counts[1])
    rest = found.owner_[counter.counts[0] == 0]
    assert found.n_unqueried_ == rest.size == 700
    assert abs((rest == 0).sum() - 350) <= 1


def test_a_gap_sets_the_budget():
    counter = CountingOracle(GaussianOracle(uniform_instance(100, RNG(13)), 1.0, RNG(14)))
    NoisyEnvyFree(gap=20, random_state=0).fit(counter)
    assert counter.counts.sum(1).tolist() == [250, 250]


@pytest.mark.parametrize("n", [2, 3])
def test_lower_bounds_cover_with_the_stated_probability(n):
    U, rng = uniform_instance(40, RNG(15), n), RNG(16)
    owner = rng.integers(n, size=40)
    truth = threshold_free_gains(U, owner)
    for sigma in (0.8, "estimate"):
        missed = 0
        for _ in range(600):
            answers = ask(GaussianOracle(U, 0.8, rng), np.full((n, 40), 3))
            missed += (lower_bounds(answers, owner, sigma, 0.1)[0] > truth).any()
        assert stats.binomtest(missed, 600, 0.1, alternative="greater").pvalue > 1e-3
        assert missed > 0  # and it is not vacuous


def threshold_free_gains(U, owner):
    n = len(U)
    worth = np.array([[U[i, owner == j].sum() for j in range(n)] for i in range(n)])
    return np.array([min(worth[i, i] - worth[i, j] for j in range(n) if j != i) for i in range(n)])


def test_certificates_are_rarely_false_and_found_where_they_can_be():
    false, certified = 0, 0
    for seed in range(60):
        rng = RNG(seed)
        U = (uniform_instance(60, rng), correlated_instance(61, rng, 0.02), identical_instance(61, rng))[seed % 3]
        found = certified_envy_free(GaussianOracle(U, 1.0, rng), delta=0.1, max_repeats=128, rng=rng)
        false += bool(found.certified) and found.envy(U) > 0
        certified += bool(found.certified) and seed % 3 == 0
        assert found.certified == bool((found.lower > 0).all())
    assert stats.binomtest(false, 60, 0.1, alternative="greater").pvalue > 1e-3
    assert certified == 20


def test_certificate_with_unknown_sigma_and_three_agents():
    U = uniform_instance(150, RNG(17), 3)
    rounds = []
    found = certified_envy_free(GaussianOracle(U, 1.0, RNG(18)), sigma="estimate", callback=rounds.append)
    assert found.certified
    assert found.envy(U) < 0
    assert [r.repeats for r in rounds] == [4 * 2**i for i in range(len(rounds))]
    with pytest.raises(ValueError, match="max_repeats must be at least 4, got 3"):
        certified_envy_free(GaussianOracle(U, 1.0, RNG(18)), sigma="estimate", max_repeats=3)


def test_adaptive_rule_spends_its_budget_on_open_goods():
    U = hard_instance(200, 0.2, 0.5, 1)
    counter = CountingOracle(GaussianOracle(U, 0.4, RNG(19)))
    found = adaptive_allocation(counter, 6000, 0.4, RNG(20))
    assert counter.counts.sum(1).tolist() == [6000, 6000]
    np.testing.assert_array_equal(counter.counts[0], counter.counts[1])
    w = found.w
    open_goods = np.abs(w * U[0] - (1 - w) * U[1]) < np.median(np.abs(w * U[0] - (1 - w) * U[1]))
    assert counter.counts[0, open_goods].mean() > 1.2 * counter.counts[0, ~open_goods].mean()


def test_a_batch_of_runs_is_what_single_runs_give():
    family = instance_family("uniform", 200)
    many = success_rate(family, 300, "stein", 400, rng=1).rate
    single = []
    for seed in range(150):
        rng = RNG(seed + 1000)
        U = family(rng)
        found = NoisyEnvyFree(budget=300, random_state=seed).fit(GaussianOracle(U, 1.0, rng))
        single.append(found.allocation_.envy(U) <= 0)
    assert abs(np.mean(single) - many) < 4 * np.sqrt(0.25 / 150 + 0.25 / 400)


def test_success_does_not_depend_on_threads_and_milp_meets_the_same_noise():
    family = instance_family("hard", 60, 0.2)
    assert success_rate(family, 120, "stein", 50, rng=3) == success_rate(family, 120, "stein", 50, rng=3, n_jobs=2)
    exact = success_rate(family, 60 * 10**6, "milp", 5, rng=4)
    assert exact.rate == 1
    assert exact.mean_envy <= success_rate(family, 60 * 10**6, "plugin", 5, rng=4).mean_envy + 1e-9


def test_required_queries_finds_the_rate_it_was_asked_for():
    family = instance_family("hard", 256, 0.1)
    q = required_queries(family, 12.8, "plugin", runs=300, rng=5)
    assert success_rate(family, round(q), "plugin", 1500, rng=6).rate == pytest.approx(0.9, abs=0.05)


def test_instances_have_the_law_that_their_names_say():
    rng = RNG(21)
    beta = beta_instance(20_000, rng)
    np.testing.assert_allclose(beta.mean(1), [0.5 / 3.5, 3 / 3.5], atol=0.01)
    alike, uniform = mallows_instance(6, rng, 400, 0.3), mallows_instance(6, rng, 400, 1.0)
    assert alike.mean(0)[0] > 0.8  # the centre's first good is nearly always first
    np.testing.assert_allclose(uniform.mean(0), 3.5 / 6, atol=0.06)
    np.testing.assert_allclose(np.sort(uniform, axis=1), np.tile(np.arange(1, 7) / 6, (400, 1)))
    with pytest.raises(ValueError, match=r"instance must be one of hard, .* got 'easy'"):
        instance_family("easy", 4)
    with pytest.raises(ValueError, match="even m"):
        hard_instance(5)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: NoisyEnvyFree().fit(GaussianOracle(np.ones((2, 3)), 1, RNG())), "either budget or gap"),
        (lambda: NoisyEnvyFree(0).fit(GaussianOracle(np.ones((2, 3)), 1, RNG())), "at least 1 question .* got 0"),
        (lambda: NoisyEnvyFree(5, select="x").fit_samples(np.ones((2, 3)), np.ones((2, 3), int)), "got 'x'"),
        (lambda: NoisyEnvyFree(5, unqueried="x").fit_samples(np.ones((2, 3)), np.ones((2, 3), int)), "got 'x'"),
        (lambda: NoisyEnvyFree(5, sigma=0).fit_samples(np.ones((2, 3)), np.ones((2, 3), int)), "positive number"),
        (lambda: NoisyEnvyFree(5).fit_samples(np.ones((2, 3)), np.zeros((2, 3), int)), "no good has an answer"),
        (lambda: NoisyEnvyFree(5).fit_samples(np.ones(3), np.ones(3, int)), r"shape \(agents >= 2, goods\)"),
        (lambda: NoisyEnvyFree(5, sigma="estimate").fit_samples(np.ones((2, 3)), np.ones((2, 3), int)), "squares"),
        (
            lambda: known_sigma("estimate", Answers(np.ones((2, 3)), np.ones((2, 3)), np.ones((2, 3), int))),
            "sigma cannot be estimated from single samples",
        ),
        (lambda: certified_envy_free(GaussianOracle(np.ones((2, 3)), 1, RNG()), delta=2), "between 0 and 1, got 2"),
        (lambda: success_rate(np.ones((2, 3)), 5, "oops"), "method must be one of .* got 'oops'"),
        (lambda: success_rate(np.ones((2, 3)), 0), "at least 1 question"),
        (
            lambda: adaptive_allocation(GaussianOracle(np.ones((2, 3)), 1, RNG()), 2, 1.0, RNG()),
            "one question a good, 3, got 2",
        ),
    ],
)
def test_bad_input_is_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_parameters_can_be_read_and_set():
    policy = NoisyEnvyFree(5).set_params(budget=7, select="eb")
    assert policy.get_params()["budget"] == 7
    with pytest.raises(ValueError, match=r"unknown parameters \['bugdet'\]"):
        policy.set_params(bugdet=1)
