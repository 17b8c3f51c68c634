"""The model against dense algebra, finite differences, another optimiser and known real data."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from synthetic_consensus import (
    BridgingMF,
    DegenerateFactorWarning,
    DuplicateRatingError,
    EmptyDataError,
    Ratings,
    synthetic,
)
from synthetic_consensus.mf import (
    Parameters,
    Penalty,
    _two_by_two,
    gradient,
    loss,
    random_start,
    solve_notes_frozen,
)


def small(seed=0, raters=40, notes=25, drawn=400):
    return synthetic(raters, notes, drawn, rng=seed)[0]


def random_point(ratings, d, seed=0):
    rng = np.random.default_rng(seed)
    return Parameters(
        0.2,
        rng.normal(size=ratings.n_raters) / 5,
        rng.normal(size=(ratings.n_raters, d)),
        rng.normal(size=ratings.n_notes) / 5,
        rng.normal(size=(ratings.n_notes, d)),
    )


def test_loss_is_its_formula_written_out():
    ratings, at = small(), random_point(small(), 2)
    total = 0.0
    for u, n, r in zip(ratings.rater, ratings.note, ratings.value, strict=True):
        total += (
            r - (0.2 + at.rater_intercept[u] + at.note_intercept[n] + at.rater_factor[u] @ at.note_factor[n])
        ) ** 2
    means = 0.15 * (np.mean(at.rater_intercept**2) + np.mean(at.note_intercept**2) + 0.2**2)
    means += 0.03 * (np.mean((at.rater_factor**2).sum(1)) + np.mean((at.note_factor**2).sum(1)))
    assert loss(at, ratings, Penalty()) == pytest.approx(total / ratings.size + means)
    guide = sum(
        0.15 * (at.rater_intercept[u] ** 2 + at.note_intercept[n] ** 2)
        + 0.03 * (at.rater_factor[u] @ at.rater_factor[u] + at.note_factor[n] @ at.note_factor[n])
        for u, n in zip(ratings.rater, ratings.note, strict=True)
    )
    assert loss(at, ratings, Penalty(loss="guide")) == pytest.approx((total + guide) / ratings.size + 0.15 * 0.2**2)


@pytest.mark.parametrize(("d", "kind", "diamond"), [(1, "deployed", 0.3), (3, "deployed", 0.0), (2, "guide", 0.0)])
def test_gradient_is_the_finite_difference(d, kind, diamond):
    ratings, penalty = small(1), Penalty(diamond=diamond, loss=kind)
    at = random_point(ratings, d, 1)
    weights = np.random.default_rng(2).uniform(0.5, 2, ratings.size)
    vector, slope = at.flat(), gradient(at, ratings, penalty, weights).flat()
    for k in np.random.default_rng(3).integers(vector.size, size=25):
        step = np.zeros_like(vector)
        step[k] = 1e-6
        both = [loss(at.unflat(vector + s * step), ratings, penalty, weights) for s in (1, -1)]
        assert (both[0] - both[1]) / 2e-6 == pytest.approx(slope[k], abs=1e-7)


@pytest.mark.parametrize("d", [1, 2, 4])
def test_frozen_notes_are_a_dense_ridge(d):
    ratings = small(4)
    at, ratio, penalty = random_point(ratings, d, 4), 7.3, Penalty()
    w = np.random.default_rng(5).uniform(0.2, 3, ratings.size)
    i, f = solve_notes_frozen(ratings, at.mu, at.rater_intercept, at.rater_factor, penalty, ratio, w)
    for n in range(ratings.n_notes):
        rows = np.flatnonzero(ratings.note == n)
        X = np.column_stack([np.ones(rows.size), at.rater_factor[ratings.rater[rows]]])
        e = ratings.value[rows] - at.mu - at.rater_intercept[ratings.rater[rows]]
        D = np.diag([0.15 * ratio] + [0.03 * ratio] * d)
        expected = np.linalg.solve(X.T @ (w[rows, None] * X) + D, X.T @ (w[rows] * e))
        np.testing.assert_allclose(np.append(i[n], f[n]), expected, atol=1e-9)


@given(
    a=st.floats(0.5, 5),
    g=st.floats(0.5, 5),
    share=st.floats(-0.95, 0.95),
    p=st.floats(-2, 2),
    q=st.floats(-2, 2),
    diamond=st.floats(0, 8),
)
@settings(max_examples=300, deadline=None)
def test_diamond_solve_is_the_minimum_on_a_grid_and_its_neighbours(a, g, share, p, q, diamond):
    c = share * np.sqrt(a * g)
    i, f = _two_by_two(a, c, g, p, q, diamond)

    def value(i, f):
        return a * i * i + 2 * c * i * f + g * f * f - 2 * p * i - 2 * q * f + diamond * np.abs(f * i)

    grid = np.linspace(-8, 8, 321)
    assert value(i, f) <= value(grid[:, None], grid[None, :]).min() + 1e-9
    for step in itertools.product((-1e-4, 0, 1e-4), repeat=2):
        assert value(i, f) <= value(i + step[0], f + step[1]) + 1e-12


def test_als_reaches_the_loss_of_lbfgs_with_a_flat_gradient():
    ratings = synthetic(150, 80, 4000, rng=6)[0].filter()
    als = BridgingMF(random_state=0, tol=1e-13, max_iter=3000).fit(ratings)
    other = BridgingMF(random_state=0, solver="lbfgs").fit(ratings)
    assert als.loss_ == pytest.approx(other.loss_, abs=1e-8)
    assert als.kkt_ < 1e-6
    np.testing.assert_allclose(als.note_intercept_, other.note_intercept_, atol=1e-4)
    assert (np.diff(als.loss_curve_) <= 1e-12).all()
    two = BridgingMF(2, random_state=0).fit(ratings)
    assert two.loss_ <= als.loss_ + 1e-9


def test_frozen_solve_at_the_optimum_returns_it_and_threads_change_nothing():
    ratings = synthetic(200, 100, 5000, rng=7)[0].filter()
    model = BridgingMF(random_state=1, tol=1e-13, max_iter=3000).fit(ratings)
    i, f = model.score_notes()
    np.testing.assert_allclose(i, model.note_intercept_, atol=1e-5)
    np.testing.assert_allclose(f, model.note_factor_, atol=1e-5)
    again = BridgingMF(random_state=1, tol=1e-13, max_iter=3000, n_jobs=2).fit(ratings)
    np.testing.assert_array_equal(again.note_intercept_, model.note_intercept_)


def test_labels_order_and_sign_do_not_matter():
    ratings, truth = synthetic(200, 100, 5000, rng=8)
    model = BridgingMF(random_state=0, tol=1e-12).fit(ratings)
    order = np.random.default_rng(9).permutation(ratings.size)
    shuffled = Ratings.of(
        -ratings.rater_ids[ratings.rater][order], ratings.note_ids[ratings.note][order], ratings.value[order]
    )
    other = BridgingMF(random_state=5, tol=1e-12).fit(shuffled)
    np.testing.assert_allclose(other.note_intercept_, model.note_intercept_, atol=2e-4)
    assert (model.rater_factor_ < 0).sum() >= (model.rater_factor_ > 0).sum()
    known = truth.rater_factor[ratings.rater_ids]
    assert abs(np.corrcoef(model.rater_factor_[:, 0], known)[0, 1]) > 0.9
    quality = truth.quality[ratings.note_ids]
    assert np.corrcoef(model.note_intercept_, quality)[0, 1] > 0.8


def test_weights_of_one_are_no_weights_and_doubling_needs_a_fixed_ratio():
    ratings = small(10, 60, 30, 900)
    plain = BridgingMF(random_state=0, n_init=1).fit(ratings)
    weighted = BridgingMF(random_state=0, n_init=1).fit(ratings, sample_weight=np.ones(ratings.size))
    np.testing.assert_allclose(weighted.note_intercept_, plain.note_intercept_)
    twice = 2 * np.ones(ratings.size)
    i, _ = plain.score_notes(weights=twice, ratio=2 * plain.ratio_)
    np.testing.assert_allclose(i, plain.note_intercept_, atol=1e-3)
    assert np.abs(plain.score_notes(weights=twice)[0] - plain.note_intercept_).max() > 0.01


@pytest.mark.filterwarnings("ignore:the loss still moved")
def test_deployed_optimiser_comes_near_and_stops_short():
    pytest.importorskip("torch")
    ratings = synthetic(300, 150, 8000, rng=11)[0].filter()
    exact = BridgingMF(random_state=0, tol=1e-12).fit(ratings)
    adam = BridgingMF(random_state=0, n_init=1, solver="torch").fit(ratings)
    assert exact.loss_ < adam.loss_ < exact.loss_ + 1e-3
    assert 1e-4 < np.abs(adam.note_intercept_ - exact.note_intercept_).max() < 0.05


def test_filter_is_one_pass_and_names_what_left_nothing():
    rater = np.repeat(np.arange(12), 6)
    note = np.tile(np.arange(6), 12)
    ratings = Ratings.of(rater, note, np.tile([0.0, 1.0], 36))
    assert ratings.filter(12, 6).size == 72
    with pytest.raises(EmptyDataError, match="no note has 13 ratings"):
        ratings.filter(13, 1)
    with pytest.raises(EmptyDataError, match="no rater has 7 ratings"):
        ratings.filter(1, 7)
    with pytest.raises(KeyError, match="no rated note 99"):
        ratings.note_index(99)


def test_degenerate_data_fit_with_a_warning():
    with pytest.warns(DegenerateFactorWarning):
        model = BridgingMF(random_state=0).fit(
            Ratings.of(np.repeat(np.arange(8), 5), np.tile(np.arange(5), 8), np.ones(40))
        )
    # the factor takes over a part of the level, since it is penalised less than the mean: a flat factor costs more
    flat = Parameters(
        model.mu_, model.rater_intercept_, 0 * model.rater_factor_, model.note_intercept_, 0 * model.note_factor_
    )
    assert loss(flat, model.ratings_, model.penalty) > model.loss_
    assert np.ptp(model.note_factor_) < 1e-4
    single = Ratings.of(np.zeros(6, int), np.arange(6), np.array([0, 1, 0.5, 1, 0, 1]))
    with pytest.warns(DegenerateFactorWarning):
        assert np.isfinite(BridgingMF(random_state=0).fit(single).note_intercept_).all()


def test_new_ratings_and_unknown_raters():
    ratings = synthetic(100, 50, 2500, rng=12)[0].filter()
    model = BridgingMF(random_state=0).fit(ratings)
    ratio, before = model.ratio_, model.note_intercept_.copy()
    note = int(np.argmin(np.bincount(ratings.note)))
    fresh = np.setdiff1d(np.arange(ratings.n_raters), ratings.rater[ratings.note == note])[:5]
    label = ratings.note_ids[note]
    model.partial_fit_notes(Ratings.of(ratings.rater_ids[fresh], np.full(5, label), np.ones(5)))
    after = model.note_intercept_[model.ratings_.note_index(label)]
    assert after > before[note]
    assert model.ratio_ == ratio
    with pytest.raises(KeyError, match="1 raters were not in the fit"):
        model.partial_fit_notes(Ratings.of([10**6], [label], [1.0]))
    with pytest.raises(EmptyDataError, match="no rater of these ratings"):
        model.score_notes(Ratings.of([10**6], [label], [1.0]))


@pytest.mark.network
def test_senate_and_films_have_the_known_fits():
    from synthetic_consensus import movielens100k, senate109

    ratings, parties = senate109()
    model = BridgingMF(random_state=0).fit(ratings)
    assert (ratings.size, ratings.n_raters, ratings.n_notes) == (62_857, 102, 645)
    assert model.loss_ == pytest.approx(0.111944, abs=2e-6)
    assert model.mu_ == pytest.approx(0.2041, abs=2e-4)
    party = np.array([parties[x] for x in ratings.rater_ids])
    side = np.where(party == "R", -1, 1)
    agree = np.mean(np.sign(model.rater_factor_[:, 0]) == side)
    assert max(agree, 1 - agree) >= 0.95
    films = movielens100k()
    assert (films.size, films.n_raters, films.n_notes) == (99_287, 943, 1349)
    assert BridgingMF(random_state=0).fit(films).loss_ == pytest.approx(0.118540, abs=2e-6)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: Ratings.of([1], [1], [2.0]), ValueError, r"row 0: a rating must lie in \[0, 1\], got 2.0"),
        (lambda: Ratings.of([1, 2], [1, 1], [0.5, np.nan]), ValueError, "row 1: .* got nan"),
        (lambda: Ratings.of([1, 1], [1, 1], [0.5, 1.0]), DuplicateRatingError, "1 ratings repeat"),
        (lambda: Ratings.of([], [], []), EmptyDataError, "at least one rating"),
        (lambda: Ratings.of([1], [1, 2], [0.5]), ValueError, "one length"),
        (lambda: BridgingMF(0), ValueError, "n_factors"),
        (lambda: BridgingMF(solver="sgd"), ValueError, "got 'sgd'"),
        (lambda: BridgingMF(lam_factor=-1), ValueError, "penalties must be finite"),
        (lambda: BridgingMF(2, lam_diamond=1), ValueError, "one factor"),
        (lambda: BridgingMF(loss="sum"), ValueError, "got 'sum'"),
        (lambda: BridgingMF(solver="lbfgs", lam_diamond=1).fit(small()), ValueError, "diamond"),
        (lambda: BridgingMF().fit(3), ValueError, "got int"),
        (lambda: BridgingMF().fit(small(), sample_weight=np.zeros(3)), ValueError, "positive weights"),
    ],
)
def test_bad_input_is_named(call, error, message):
    with pytest.raises(error, match=message):
        call()


def test_last_of_repeated_ratings_counts():
    kept = Ratings.of([1, 2, 1], [5, 5, 5], [0.0, 0.5, 1.0], duplicates="last")
    assert sorted(zip(kept.rater_ids[kept.rater], kept.value, strict=True)) == [(1, 1.0), (2, 0.5)]


def test_random_start_is_the_deployed_one():
    start = random_start(small(), 1, np.random.default_rng(0))
    assert np.abs(start.rater_factor).max() <= np.sqrt(6 / (small().n_raters + 1))
    assert start.mu == 0
    assert not start.note_factor.any()
