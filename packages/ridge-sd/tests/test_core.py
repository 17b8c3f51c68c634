"""Identities, leave-one-out by brute force, criteria and rounds of the core."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse
from sklearn.datasets import load_diabetes
from sklearn.linear_model import Ridge

from ridge_sd.core import (
    LeverageError,
    binomial_transform,
    cp_moments,
    decompose,
    estimate_sigma2,
    fit_rounds,
    gcv_moments,
    loo_moments,
    loo_series,
    residuals,
    round_weights,
    sd_path,
    student_coef,
    teacher_coef,
)


def RNG(seed=0):
    return np.random.default_rng(seed)


def problem(n, p, q=1, seed=0, offset=0.0):
    rng = RNG(seed)
    X = rng.normal(size=(n, p)) + offset
    y = X @ rng.normal(size=(p, q)) / math.sqrt(p) + rng.normal(size=(n, q)) + offset
    return X, y[:, 0] if q == 1 else y


def ridge(X, y, alpha, w, intercept):
    return Ridge(alpha=alpha, fit_intercept=intercept, solver="svd").fit(X, y, sample_weight=w)


def refit(X, y, alpha, w, intercept, xi):
    """The student for real: ridge on the mixture of labels and the teacher's fitted values."""
    teacher = ridge(X, y, alpha, w, intercept)
    return ridge(X, (1 - xi) * y + xi * teacher.predict(X), alpha, w, intercept)


@given(
    seed=st.integers(0, 10_000),
    n=st.integers(3, 25),
    p=st.integers(1, 25),
    xi=st.floats(-5, 5),
    intercept=st.booleans(),
)
@settings(max_examples=80, deadline=None)
def test_the_student_is_ridge_refitted_to_the_mixture(seed, n, p, xi, intercept):
    X, y = problem(n, p, seed=seed, offset=1.0)
    w = RNG(seed + 1).uniform(0.2, 3, n)
    spectrum = decompose(X, y, sample_weight=w, fit_intercept=intercept)
    expected = refit(X, y, 0.7, w, intercept, xi)
    coef = student_coef(spectrum, 0.7, np.array([-xi]))[:, 0]
    np.testing.assert_allclose(coef, expected.coef_, atol=1e-8)
    np.testing.assert_allclose(spectrum.y_mean[0] - spectrum.x_mean @ coef, expected.intercept_, atol=1e-8)


def test_a_small_step_is_ridge_at_a_penalty_times_exp_xi():
    X, y = problem(40, 8, seed=31)
    spectrum, alpha = decompose(X, y), 5.0
    gaps = []
    for xi in (0.1, 0.05):
        student = student_coef(spectrum, alpha, np.array([-xi]))
        gaps.append(np.abs(student - teacher_coef(spectrum, alpha * math.exp(xi))).max())
    assert gaps[0] / gaps[1] == pytest.approx(4, rel=0.1)  # they differ by second order in xi only


def brute_force_pairs(X, y, alpha, w, intercept):
    first, second = [], []
    for i in range(len(y)):
        left = w.copy()
        left[i] -= min(w[i], 1.0)
        teacher = ridge(X, y, alpha, left, intercept)
        student = ridge(X, teacher.predict(X), alpha, left, intercept)
        first.append(y[i] - teacher.predict(X[i : i + 1])[0])
        second.append(y[i] - student.predict(X[i : i + 1])[0])
    return np.array(first), np.array(second)


@pytest.mark.parametrize(
    ("n", "p", "intercept", "alpha", "weighted"),
    list(itertools.product([22], [6], [True, False], [0.01, 1, 20], [True, False]))
    + list(itertools.product([11], [25], [True, False], [0.01, 1, 20], [True])),
)
def test_leave_one_out_of_both_stages_is_refitting_both_n_times(n, p, intercept, alpha, weighted):
    X, y = problem(n, p, seed=n + p, offset=1.0)
    w = RNG(3).uniform(0.3, 3, n) if weighted else np.ones(n)
    spectrum = decompose(X, y, sample_weight=w, fit_intercept=intercept)
    loo, loo_pd = brute_force_pairs(X, y, alpha, w, intercept)
    first, direction = loo_series(spectrum, alpha, 1)
    np.testing.assert_allclose(first[:, 0], loo, atol=1e-9)
    np.testing.assert_allclose((first - direction)[:, 0], loo_pd, atol=1e-9)
    moments = loo_moments(spectrum, np.array([alpha, 3.0]))
    assert moments.R[0, 0] == pytest.approx(np.average(loo**2, weights=w), abs=1e-9)
    assert moments.gap[0, 0] == pytest.approx(np.average(loo * (loo - loo_pd), weights=w), abs=1e-9)
    assert moments.D[0, 0] == pytest.approx(np.average((loo - loo_pd) ** 2, weights=w), abs=1e-9)


def test_leave_one_out_of_two_rounds_is_refitting_three_stages():
    X, y = problem(15, 4, seed=5)
    w, alpha, weights = np.ones(15), 0.8, np.array([0.5, 1.3, -0.8])  # of y's ridge, its student, the student's student
    spectrum = decompose(X, y)
    c = binomial_transform(weights[:, None])[1:]
    first, one, two = loo_series(spectrum, alpha, 2)
    expected = []
    for i in range(15):
        left = w.copy()
        left[i] = 0
        stages = [ridge(X, y, alpha, left, True)]
        stages += [ridge(X, stages[-1].predict(X), alpha, left, True)]
        stages += [ridge(X, stages[-1].predict(X), alpha, left, True)]
        expected.append(y[i] - sum(v * s.predict(X[i : i + 1])[0] for v, s in zip(weights, stages, strict=True)))
    np.testing.assert_allclose((first + c[0] * one + c[1] * two)[:, 0], expected, atol=1e-9)


def test_multi_output_and_evaluation_weights():
    X, Y = problem(30, 5, 3, seed=6)
    spectrum = decompose(X, Y)
    alphas = np.array([0.3, 2.0])
    many = loo_moments(spectrum, alphas)
    for t in range(3):
        one = loo_moments(decompose(X, Y[:, t]), alphas)
        np.testing.assert_allclose(many.R[:, t], one.R[:, 0])
        np.testing.assert_allclose(many.D[:, t], one.D[:, 0])
    np.testing.assert_allclose(loo_moments(spectrum, alphas, np.full(30, 7.0)).gap, many.gap)
    v = RNG(7).uniform(0, 2, 30)
    first, direction = loo_series(spectrum, 0.3, 1)
    shifted = loo_moments(spectrum, alphas, v)
    np.testing.assert_allclose(shifted.R[0], v @ first**2 / v.sum())
    np.testing.assert_allclose(shifted.D[0], v @ direction**2 / v.sum())


def test_blocks_of_penalties_change_nothing(monkeypatch):
    X, Y = problem(40, 6, 2, seed=8)
    spectrum, alphas = decompose(X, Y), np.logspace(-1, 1, 17)
    whole = loo_moments(spectrum, alphas)
    monkeypatch.setattr("ridge_sd.core.CHUNK", 100)
    np.testing.assert_allclose(loo_moments(spectrum, alphas).D, whole.D, rtol=1e-12)


def test_gcv_is_its_definition_with_explicit_matrices():
    for intercept, (n, p) in itertools.product((True, False), ((20, 6), (9, 15))):
        X, y = problem(n, p, seed=9, offset=2.0)
        Xc, yc = (X - X.mean(0), y - y.mean()) if intercept else (X, y)
        S = Xc @ np.linalg.solve(Xc.T @ Xc + 1.5 * np.eye(p), Xc.T)
        df, df_pd = np.trace(S) + intercept, np.trace(S @ S) + intercept
        r, r_pd = (yc - S @ yc) / (1 - df / n), (yc - S @ S @ yc) / (1 - df_pd / n)
        spectrum = decompose(X, y, fit_intercept=intercept)
        found = gcv_moments(spectrum, np.array([1.5]))
        assert found.R[0, 0] == pytest.approx(r @ r / n)
        assert found.gap[0, 0] == pytest.approx(r @ (r - r_pd) / n)
        assert found.D[0, 0] == pytest.approx((r - r_pd) @ (r - r_pd) / n)
        path = sd_path(spectrum, np.array([1.5]), criterion="gcv")
        assert (path.df[0], path.df_pd[0]) == (pytest.approx(df), pytest.approx(df_pd))
        first, direction = residuals(spectrum, 1.5, "gcv")
        np.testing.assert_allclose(first[:, 0], r, atol=1e-10)
        np.testing.assert_allclose(direction[:, 0], r - r_pd, atol=1e-10)


def test_gcv_does_not_see_rotations_of_the_rows():
    X, y = problem(25, 7, seed=10)
    Q = np.linalg.qr(RNG(1).normal(size=(25, 25)))[0]
    a, b = (
        sd_path(decompose(A, v, fit_intercept=False), np.array([0.1, 3]), criterion="gcv")
        for A, v in ((X, y), (Q @ X, Q @ y))
    )
    np.testing.assert_allclose(a.xi, b.xi, rtol=1e-8)
    np.testing.assert_allclose(a.R_sd, b.R_sd, rtol=1e-8)


def test_cp_is_unbiased_for_the_fixed_design_risk():
    from ridge_sd.theory import Population

    rng = RNG(11)
    X, beta, lam = rng.normal(size=(40, 8)), rng.normal(size=8), 0.3
    exact = Population(np.eye(8), beta, 1.0).fixed_design(X, lam)
    found = []
    for _ in range(4000):
        y = X @ beta + rng.normal(size=40)
        m = cp_moments(decompose(X, y, fit_intercept=False), np.array([40 * lam]), np.array([1.0]))
        found.append([m.R[0, 0], m.gap[0, 0], m.D[0, 0]])
    mean, error = np.mean(found, 0), np.std(found, 0) / math.sqrt(4000)
    assert (np.abs(mean - [exact.R, exact.gap, exact.D]) < 4 * error).all()


def test_cp_rounds_minimise_the_quadratic_form():
    X, y = problem(30, 6, seed=12)
    spectrum, alpha, noise = decompose(X, y, fit_intercept=False), 2.0, np.array([0.7])
    found = fit_rounds(spectrum, alpha, "cp", 2, sigma2=noise)
    S = X @ np.linalg.solve(X.T @ X + alpha * np.eye(6), X.T)
    powers = [S, S @ S, S @ S @ S]

    def criterion(w):
        smooth = sum(v * P for v, P in zip(w, powers, strict=True))
        return (np.sum((y - smooth @ y) ** 2) + 2 * 0.7 * np.trace(smooth)) / 30

    best = found.weights[:, 0]
    assert best.sum() == pytest.approx(1)
    assert found.risk[0] == pytest.approx(criterion(best))
    for step in (np.array([1, -1, 0]), np.array([0, 1, -1])):
        assert criterion(best + 1e-3 * step) > criterion(best)
        assert criterion(best - 1e-3 * step) > criterion(best)
    one = fit_rounds(spectrum, alpha, "cp", 1, sigma2=noise)
    assert one.xi[0, 0] == pytest.approx(sd_path(spectrum, np.array([alpha]), criterion="cp", sigma2=0.7).xi[0])


def test_one_round_is_the_closed_form_and_more_rounds_lower_the_criterion():
    X, y = problem(60, 12, seed=13)
    spectrum = decompose(X, y)
    for criterion in ("loo", "gcv"):
        path = sd_path(spectrum, np.array([5.0]), criterion=criterion)
        risks = []
        for K in (1, 2, 3):
            found = fit_rounds(spectrum, 5.0, criterion, K)
            risks.append(found.risk[0])
            first, *directions = residuals(spectrum, 5.0, criterion, K)
            use = found.mix if criterion == "loo" else -found.weights[1:]
            left = first + sum(c * d for c, d in zip(use, directions, strict=True))
            assert np.mean(left**2) == pytest.approx(found.risk[0])
            if K == 1:
                assert found.xi[0, 0] == pytest.approx(path.xi[0])
                assert found.risk[0] == pytest.approx(path.R_sd[0])
        assert risks == sorted(risks, reverse=True)


@given(st.lists(st.floats(-3, 3).filter(lambda x: abs(x) > 1e-3), min_size=1, max_size=5))
def test_round_weights_invert_the_recursion(xi):
    weights = np.zeros(len(xi) + 1)
    weights[0] = 1.0
    for x in xi:  # beta_k = (1 - x) beta + x M beta_{k-1}
        weights = np.concatenate([[1 - x], x * weights[:-1]])
    np.testing.assert_allclose(round_weights(weights), xi, rtol=1e-6, atol=1e-6)


def test_round_weights_without_a_sequence_are_nan():
    assert np.isnan(round_weights(np.array([1.0, -2.0, 2.0]))).all()
    np.testing.assert_allclose(binomial_transform(binomial_transform(np.arange(5.0)[:, None])), np.arange(5.0)[:, None])


def test_acceptance_figures_of_diabetes():
    X, y = load_diabetes(return_X_y=True)
    spectrum, alpha = decompose(X, y), np.array([1.0])
    gcv, loo = (sd_path(spectrum, alpha, criterion=c) for c in ("gcv", "loo"))
    np.testing.assert_allclose([gcv.R[0], gcv.R_sd[0], gcv.xi[0]], [3328.151468, 3010.798338, -1.622687], rtol=3e-7)
    np.testing.assert_allclose(
        [loo.R[0], loo.C[0], loo.R_pd[0], loo.xi[0]], [3327.655105, 3524.63833, 3843.357456, -1.618119], rtol=3e-7
    )


def test_integer_weights_are_repeated_rows():
    X, y = problem(20, 5, seed=14)
    counts = RNG(15).integers(0, 4, 20)
    counts[0] = 2
    weighted, repeated = decompose(X, y, sample_weight=counts), decompose(np.repeat(X, counts, 0), np.repeat(y, counts))
    for criterion in ("loo", "gcv", "cp"):
        a, b = (
            sd_path(s, np.array([0.2, 4.0]), criterion=criterion, sigma2=1.0 if criterion == "cp" else None)
            for s in (weighted, repeated)
        )
        np.testing.assert_allclose(a.xi, b.xi, rtol=1e-8)
        np.testing.assert_allclose(a.R, b.R, rtol=1e-10)


def test_importance_weights_do_not_depend_on_their_scale():
    X, y = problem(25, 4, seed=16)
    w = RNG(1).uniform(0.5, 2, 25)
    a = sd_path(decompose(X, y, sample_weight=w, sample_weight_type="importance"), np.array([2.0]))
    b = sd_path(decompose(X, y, sample_weight=3 * w, sample_weight_type="importance"), np.array([6.0]))
    np.testing.assert_allclose([a.R[0], a.xi[0]], [b.R[0], b.xi[0]], rtol=1e-9)


@pytest.mark.parametrize("shape", [(40, 12), (12, 40)])
@pytest.mark.parametrize("intercept", [True, False])
def test_sparse_is_dense(shape, intercept):
    X = sparse.random_array(shape, density=0.3, rng=RNG(17), format="csr")
    y, w = RNG(18).normal(size=shape[0]), RNG(19).uniform(0.1, 2, shape[0])
    alphas = np.array([0.05, 1.0])
    a, b = (decompose(A, y, sample_weight=w, fit_intercept=intercept) for A in (X, X.toarray()))
    for criterion in ("loo", "gcv"):
        p, q = (sd_path(s, alphas, criterion=criterion) for s in (a, b))
        np.testing.assert_allclose(p.xi, q.xi, rtol=1e-7)
        np.testing.assert_allclose(p.R_sd, q.R_sd, rtol=1e-8)
    np.testing.assert_allclose(student_coef(a, 1.0, np.array([0.7])), student_coef(b, 1.0, np.array([0.7])), atol=1e-9)


def test_svd_and_eigh_agree_and_tiny_penalties_switch_to_svd():
    X, y = problem(30, 30, seed=20)
    alphas = np.array([1e-3, 1.0])
    for criterion in ("loo", "gcv"):
        a, b = (sd_path(decompose(X, y, solver=s), alphas, criterion=criterion) for s in ("svd", "eigh"))
        np.testing.assert_allclose(a.R_sd, b.R_sd, rtol=1e-5)
    X = X @ np.diag(np.logspace(0, -7, 30))
    exact = decompose(X, y, solver="svd")
    np.testing.assert_allclose(decompose(X, y, alpha_min=1e-12).s2, exact.s2)


def test_penalties_towards_zero_stay_finite_and_nonnegative():
    X, y = problem(10, 40, seed=21)
    path = sd_path(decompose(X, y), np.logspace(-12, 2, 15), criterion="gcv")
    assert np.isfinite(path.R_sd).all()
    assert (path.D >= 0).all()
    assert (path.R_sd <= path.R + 1e-12).all()


def test_constant_targets_have_no_student():
    path = sd_path(decompose(RNG(0).normal(size=(20, 3)), np.full(20, 0.1)), np.array([1.0]))
    assert path.xi[0] == 0
    assert path.R_sd[0] == pytest.approx(0, abs=1e-20)


def test_a_row_that_fits_itself_falls_back_to_gcv():
    X = np.zeros((6, 2))
    X[:5, 0], X[5, 1] = RNG(1).normal(size=5), 1.0
    spectrum = decompose(X, np.arange(6.0), fit_intercept=False)
    with pytest.raises(LeverageError, match="leverage"):
        loo_moments(spectrum, np.array([1e-13]))
    with pytest.warns(UserWarning, match="generalised cross-validation"):
        assert sd_path(spectrum, np.array([1e-13])).criterion == "gcv"


def test_holdout_moments_are_those_of_refitted_students():
    X, Y = problem(30, 6, 2, seed=22)
    V, T = problem(15, 6, 2, seed=23)
    path = sd_path(decompose(X, Y), np.array([0.5, 3.0]), criterion="holdout", validation=(V, T), xi_mode="per_target")
    for t in range(2):
        for i, alpha in enumerate((0.5, 3.0)):
            errors = []
            for xi in (0.0, 1.0, float(path.xi[i, t])):
                fitted = refit(X, Y[:, t], alpha, np.ones(30), True, xi)
                errors.append(np.mean((T[:, t] - fitted.predict(V)) ** 2))
            np.testing.assert_allclose(errors, [path.R[i, t], path.R_pd[i, t], path.R_sd[i, t]], rtol=1e-9)


def test_duplicated_targets_share_the_single_xi():
    X, y = problem(40, 8, seed=24)
    single = sd_path(decompose(X, y), np.array([1.0, 9.0]))
    double = sd_path(decompose(X, np.stack([y, y], 1)), np.array([1.0, 9.0]))
    np.testing.assert_allclose(double.xi, single.xi)
    np.testing.assert_allclose(double.R_sd, 2 * single.R_sd)


def test_bounds_are_applied_inside_the_criterion():
    X, y = problem(40, 8, seed=25)
    free, bound = (sd_path(decompose(X, y), np.array([40.0]), xi_bounds=b) for b in (None, (0, 1)))
    assert free.xi[0] < 0
    assert bound.xi[0] == 0
    assert bound.R_sd[0] == bound.R[0]


def test_derivative_of_leave_one_out_in_the_penalty_is_exact():
    X, y = problem(40, 8, seed=26)
    spectrum, a, h = decompose(X, y), 2.0, 1e-5
    R = loo_moments(spectrum, np.array([a * math.exp(-h), a, a * math.exp(h)])).R[:, 0]
    gap = loo_moments(spectrum, np.array([a])).gap[0, 0]
    assert (R[2] - R[0]) / (2 * h) == pytest.approx(-2 * gap, rel=1e-6)


def test_curvature_test_reads_the_path():
    X, y = problem(200, 20, seed=27)
    path = sd_path(decompose(X, y), 200 * np.logspace(-3, 2, 400))
    found = path.curvature_test()
    i = int(np.argmin(np.abs(path.alpha - found.alpha)))
    logs = np.log(path.alpha)
    second = np.gradient(np.gradient(path.R, logs), logs)[i]
    assert found.threshold == pytest.approx(0.5 * second, rel=0.05)
    assert found.gain == (found.threshold > found.D)
    with pytest.raises(ValueError, match="at least 5 penalties, got 2"):
        sd_path(decompose(X, y), np.array([1.0, 2.0])).curvature_test()


def test_guard_keeps_the_plain_ridge_when_the_gain_is_noise():
    rng = RNG(28)
    X, y = rng.normal(size=(25, 3)), rng.normal(size=25)
    path = sd_path(decompose(X, y), 25 * np.logspace(-4, 1, 60))
    free, guarded = path.best("joint", 0.0), path.best("joint", 2.0)
    assert guarded.guarded
    assert guarded.index == int(np.argmin(path.R))
    assert (guarded.xi == 0).all()
    assert not free.guarded
    assert free.index == int(np.argmin(path.R_sd))


def test_standard_error_of_xi_errs_on_the_wide_side_and_falls_with_n():
    spread, stated = {}, {}
    for n in (120, 480):
        estimates, errors = [], []
        for seed in range(80):
            rng = RNG(1000 + seed)
            X = rng.normal(size=(n, 10))
            y = X @ np.ones(10) / 3 + rng.normal(size=n)
            path = sd_path(decompose(X, y), np.array([float(n)]))
            estimates.append(path.xi[0])
            errors.append(path.xi_se[0])
        spread[n], stated[n] = np.std(estimates), np.mean(errors)
        assert 1 < stated[n] / spread[n] < 4
    assert stated[120] / stated[480] == pytest.approx(2, rel=0.15)


def test_frames_hold_the_path():
    pytest.importorskip("pandas")
    X, Y = problem(20, 3, 2, seed=29)
    shared, each = (
        sd_path(decompose(X, Y), np.array([1.0, 2.0]), xi_mode=m).to_frame() for m in ("shared", "per_target")
    )
    assert len(shared) == 2
    assert each["target"].tolist() == [0, 1, 0, 1]
    np.testing.assert_allclose(each.groupby("alpha")["R"].sum(), shared["R"])


def test_noise_is_estimated_from_the_least_shrunk_usable_fit():
    X, y = problem(400, 20, seed=30)
    assert estimate_sigma2(decompose(X, y), np.array([1e-6, 1.0]))[0] == pytest.approx(1.0, rel=0.2)
    with pytest.raises(ValueError, match="give sigma2"):
        estimate_sigma2(decompose(*problem(10, 40)), np.array([1e-6]))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda s: sd_path(s, np.array([])), "non-empty"),
        (lambda s: sd_path(s, np.array([1.0, -1])), "positive numbers"),
        (lambda s: sd_path(s, np.array([np.nan])), "positive numbers"),
        (lambda s: sd_path(s, np.array([1.0]), criterion="aic"), "loo, gcv, cp, holdout, got 'aic'"),
        (
            lambda s: sd_path(s, np.array([1.0]), criterion="gcv", eval_weight=np.ones(9)),
            "eval_weight needs criterion='loo', got 'gcv'",
        ),
        (lambda s: sd_path(s, np.array([1.0]), criterion="holdout"), "validation rows"),
        (lambda s: sd_path(s, np.array([1.0]), xi_bounds=(1, 0)), "low < high"),
        (lambda s: sd_path(s, np.array([1.0]), xi_mode="each"), "got 'each'"),
        (lambda s: sd_path(s, np.array([1.0])).best("best"), "got 'best'"),
        (lambda s: residuals(s, 1.0, "cp"), "no residuals of single rows"),
        (lambda s: decompose(np.ones((3, 2)), np.ones(4)), r"\(3, 2\) and \(4,\)"),
        (lambda s: decompose(np.ones((3, 2)), np.ones(3), sample_weight=np.array([1, -1, 1])), ">= 0, got -1"),
        (lambda s: decompose(np.ones((3, 2)), np.ones(3), sample_weight=np.zeros(3)), "all sample weights are zero"),
        (lambda s: decompose(np.ones((3, 2)), np.ones(3), solver="lu"), "got 'lu'"),
        (lambda s: decompose(np.ones((3, 2)), np.ones(3), sample_weight_type="x"), "got 'x'"),
    ],
)
def test_bad_input_is_named(call, message):
    with pytest.raises(ValueError, match=message):
        call(decompose(*problem(9, 3)))
