"""Exact solvers against each other, classical rules and checkers against their definitions."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from noisy_fairdiv import (
    adjusted_winner,
    alternating_picking,
    balanced_allocation,
    envy,
    envy_cycle_elimination,
    fairness_confidence,
    is_fair,
    is_mms,
    maximin_share,
    maximum_nash_welfare,
    opt_envy,
    picking_sequence,
    round_robin,
    uniform_instance,
    utilitarian,
)
from noisy_fairdiv.core import bundle_values, worst_gains
from noisy_fairdiv.solvers import enumerate_allocations, meet_in_the_middle, milp_allocation, slack


def RNG(seed=0):
    return np.random.default_rng(seed)


@given(seed=st.integers(0, 10_000), m=st.integers(1, 14), chores=st.booleans())
@settings(max_examples=30, deadline=None)
def test_enumeration_meet_in_the_middle_and_milp_agree(seed, m, chores):
    U = RNG(seed).random((2, m)) - 0.5 * chores
    found = [enumerate_allocations(U), meet_in_the_middle(U), milp_allocation(U)]
    for optimum in found:
        assert optimum.proven
        assert optimum.value == pytest.approx(found[0].value, abs=1e-6)
        assert envy(U, optimum.owner) == pytest.approx(optimum.value, abs=1e-9)


def test_enumeration_is_the_definition():
    U = RNG(1).random((3, 5))
    best = min(envy(U, np.array(o)) for o in itertools.product(range(3), repeat=5))
    assert enumerate_allocations(U).value == pytest.approx(best)
    assert milp_allocation(U).value == pytest.approx(best, abs=1e-6)


def test_meet_in_the_middle_reaches_further_than_enumeration():
    U = RNG(2).random((2, 30))
    found = meet_in_the_middle(U)
    assert found.value <= opt_envy(U, "sweep").value + 1e-12
    assert found.value == pytest.approx(milp_allocation(U).value, abs=1e-6)
    with pytest.raises(ValueError, match=r"enumeration of 2 \*\* 30 allocations is above the limit .*milp"):
        enumerate_allocations(U)
    with pytest.raises(ValueError, match="at most 36 goods, got 40"):
        meet_in_the_middle(RNG(0).random((2, 40)))


def test_a_milp_out_of_time_gives_a_bound_and_says_that_it_is_not_proven():
    U = RNG(3).random((8, 60))
    found = milp_allocation(U, time_limit=0.05)
    assert not found.proven
    assert found.bound <= found.value
    assert envy(U, found.owner) == pytest.approx(found.value)


def test_the_sweep_method_brackets_the_optimum():
    for seed in range(10):
        U = RNG(seed).random((2, 13))
        found, best = opt_envy(U, "sweep"), opt_envy(U, "enum").value
        assert found.bound <= best + 1e-9 <= found.value + 2e-9


def test_round_robin_by_hand_and_for_any_order():
    U = np.array([[5, 4, 3, 1], [4, 5, 1, 3.0]])
    assert round_robin(U).tolist() == [0, 1, 0, 1]
    assert round_robin(U, [1, 0]).tolist() == [0, 1, 0, 1]
    assert picking_sequence(U, [0, 0, 0, 1]).tolist() == [0, 0, 0, 1]
    same = np.array([[4, 3, 2, 1], [4, 3, 2, 1.0]])
    assert alternating_picking(same).tolist() == [0, 1, 1, 0]


@given(seed=st.integers(0, 10_000), n=st.integers(2, 5), m=st.integers(1, 15))
@settings(max_examples=60, deadline=None)
def test_round_robin_and_envy_cycles_are_ef1(seed, n, m):
    U = RNG(seed).random((n, m))
    for owner in (round_robin(U), envy_cycle_elimination(U), envy_cycle_elimination(U, RNG(seed).permutation(m))):
        assert is_fair(U, owner, "EF1")


@given(seed=st.integers(0, 10_000), m=st.integers(1, 12))
@settings(max_examples=60, deadline=None)
def test_adjusted_winner_is_equitable_and_free_of_envy_and_splits_one_good(seed, m):
    U = RNG(seed).random((2, m)) + 1e-3
    found, points = adjusted_winner(U), 100 * U / U.sum(1, keepdims=True)
    share = np.stack([found.owner == 0, found.owner == 1]).astype(float)
    if found.split is not None:
        share[:, found.split] = found.share, 1 - found.share
    have = (share * points).sum(1)
    np.testing.assert_allclose(have, found.points)
    if found.split is not None:
        assert have[0] == pytest.approx(have[1])
    if found.split is not None:
        assert have.min() >= 50 - 1e-9


def test_nash_welfare_is_the_largest_product():
    for seed in range(5):
        U = RNG(seed).random((3, 6))
        products = [np.prod(np.diagonal(bundle_values(U, np.array(o)))) for o in itertools.product(range(3), repeat=6)]
        assert maximum_nash_welfare(U).value ** 3 == pytest.approx(max(products))


def test_nash_welfare_by_milp_is_enumeration_on_whole_numbers():
    from noisy_fairdiv.solvers import _nash_by_enumeration, _nash_by_milp

    for seed in range(4):
        parts = RNG(seed).multinomial(1000, RNG(seed).dirichlet(np.ones(7)), size=2).astype(float)
        owner, proven = _nash_by_milp(parts, 60)
        value, best = (np.diagonal(bundle_values(parts, o)).prod() for o in (owner, _nash_by_enumeration(parts)))
        assert proven
        assert value == pytest.approx(best, rel=1e-9)
    served = _nash_by_milp(np.array([[1.0, 0, 0] * 5, [1.0, 0, 0] * 5, [0, 1.0, 1.0] * 5]), 60)[0]
    assert set(served) == {0, 1, 2}


def test_fairness_notions_by_definition():
    U = np.array([[4.0, 1, 1, 3], [2.0, 2, 2, 2]])
    owner = np.array([0, 1, 1, 1])
    assert not is_fair(U, owner, "EF")  # 4 against 5
    assert is_fair(U, owner, "EF1")  # without the good worth 3: 2
    assert is_fair(U, owner, "EFX")  # without a good worth 1: 4
    assert not is_fair(U, owner, "PROP")  # 4 of 9
    assert is_fair(U, owner, "PROP1")
    np.testing.assert_allclose(slack(U, owner, "EF")[0], [-1])
    assert slack(U, owner, "EFX")[0, 0] == 0


def test_two_agents_envy_free_is_proportional():
    for seed in range(30):
        U, owner = RNG(seed).random((2, 6)), RNG(seed + 99).integers(2, size=6)
        assert is_fair(U, owner, "EF") == is_fair(U, owner, "PROP")


def test_maximin_share_by_enumeration():
    for n in (2, 3):
        for seed in range(4):
            row = RNG(seed).random(6)
            best = max(
                min(row[np.array(o) == j].sum() for j in range(n)) for o in itertools.product(range(n), repeat=6)
            )
            assert maximin_share(row, n) == pytest.approx(best, abs=1e-6)
    U = RNG(9).random((2, 6))
    assert is_mms(U, opt_envy(U).owner)
    assert not is_mms(U, np.zeros(6, int))


def test_confidence_of_fairness_is_valid_and_grows_with_certainty():
    rng, U = RNG(11), np.array([[1.0, 0.2, 0.5, 0.4], [0.2, 1.0, 0.3, 0.6]])
    owner = np.array([0, 1, 0, 1])
    sharp = [fairness_confidence(U, owner, s, "EF") for s in (1.0, 0.3, 0.05)]
    assert sharp == sorted(sharp)
    assert sharp[-1] > 0.999
    assert fairness_confidence(U, owner, 0.3, "EF1") <= 1
    unfair = np.array([1, 0, 1, 0])
    claimed = [fairness_confidence(U + 0.2 * rng.normal(size=U.shape), unfair, 0.2, "EF") > 0.95 for _ in range(1000)]
    assert np.mean(claimed) <= 0.05
    nearly = np.full((2, 2), 0.5)  # EF with slack exactly 0: level must hold at the boundary
    claimed = [
        fairness_confidence(nearly + 0.1 * rng.normal(size=(2, 2)), np.array([0, 1]), 0.1, "EF") > 0.95
        for _ in range(2000)
    ]
    assert np.mean(claimed) <= 0.05


def test_balanced_weights_beat_round_robin_and_near_the_optimum():
    for n, m in ((3, 60), (5, 100), (10, 200)):
        U = uniform_instance(m, RNG(n), n)
        found = balanced_allocation(U)
        assert found.envy(U) < envy(U, round_robin(U))
        np.testing.assert_allclose(found.est_gain, worst_gains(U, found.owner))
    best = milp_allocation(uniform_instance(24, RNG(5), 3), 20)
    assert (
        balanced_allocation(uniform_instance(24, RNG(5), 3)).envy(uniform_instance(24, RNG(5), 3)) <= best.value + 0.8
    )


def test_balanced_weights_find_envy_free_allocations_whatever_the_agents_scales():
    for seed in range(5):
        U = uniform_instance(200, RNG(seed), 3) * np.array([1.0, 10.0, 0.1])[:, None]
        assert balanced_allocation(U).envy(U) < 0
        np.testing.assert_array_equal(balanced_allocation(U).owner, balanced_allocation(7 * U).owner)


def test_fairpyx_picks_the_same_goods_in_turn():
    fairpyx = pytest.importorskip("fairpyx")
    from noisy_fairdiv import from_fairpyx, to_fairpyx

    U = RNG(7).random((3, 12))
    instance = to_fairpyx(U)
    bundles = fairpyx.divide(fairpyx.algorithms.round_robin, instance)
    ours = round_robin(U)
    for agent in range(3):
        assert sorted(int(g) for g in bundles[f"agent {agent}"]) == np.flatnonzero(ours == agent).tolist()
    np.testing.assert_allclose(from_fairpyx(instance).values, U)


def test_utilitarian_is_the_largest_sum():
    U = RNG(8).random((3, 5))
    best = max(np.diagonal(bundle_values(U, np.array(o))).sum() for o in itertools.product(range(3), repeat=5))
    assert np.diagonal(bundle_values(U, utilitarian(U))).sum() == pytest.approx(best)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: opt_envy(np.ones((2, 3)), "fast"), "method must be auto, enum, mitm, milp or sweep, got 'fast'"),
        (lambda: maximum_nash_welfare(-np.ones((2, 3))), "non-negative values, got -1"),
        (lambda: adjusted_winner(np.zeros((2, 3))), "positive sum"),
        (lambda: fairness_confidence(np.ones((2, 2)), np.array([0, 1]), 0.0, "EF"), "use is_fair for exact values"),
        (lambda: slack(np.ones((2, 2)), np.array([0, 1]), "EF2"), "got 'EF2'"),
        (lambda: maximin_share(np.ones(3), 0), "at least 1 bundle, got 0"),
    ],
)
def test_bad_input_is_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_identical_agents_with_an_odd_number_of_equal_goods_cannot_be_satisfied():
    U = np.ones((2, 5))
    assert opt_envy(U).value == 1
    assert math.isclose(opt_envy(U).bound, 1)
