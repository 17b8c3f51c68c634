"""Asymptotic and exact risks against each other, simulation and finite differences."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ridge_sd.core import decompose, sd_path, student_coef
from ridge_sd.theory import (
    Population,
    best_rounds,
    covariance,
    generalised_ridge_risk,
    isotropic_kappa,
    multi_round_gram,
    ood_equivalents,
    optimal_ridge,
    sd_equivalents,
    sd_equivalents_paper,
    signal,
    solve_kappa,
)


def RNG(seed=0):
    return np.random.default_rng(seed)


@given(
    seed=st.integers(0, 10_000),
    p=st.integers(1, 60),
    n=st.integers(1, 80),
    log_lam=st.floats(-2, 2),
    sigma2=st.floats(0, 3),
)
@settings(max_examples=200, deadline=None)
def test_compact_form_is_the_paper_s(seed, p, n, log_lam, sigma2):
    s, beta2 = RNG(seed).gamma(1, 1, (2, p)) + 1e-6
    compact, paper = (f(10**log_lam, s, beta2, n, sigma2) for f in (sd_equivalents, sd_equivalents_paper))
    for name in ("R", "C", "R_pd"):
        assert getattr(compact, name) == pytest.approx(getattr(paper, name), rel=1e-11)
    kappa = solve_kappa(10**log_lam, s, n)
    assert kappa * (1 - np.sum(s / (s + kappa)) / n) == pytest.approx(10**log_lam, rel=1e-9)


def test_isotropic_closed_forms():
    s, beta2 = np.ones(200), np.full(200, 1 / 200)
    for lam, xi in ((0.25, 17 / 24), (0.5, 0.0), (1.0, -17 / 24)):
        assert sd_equivalents(lam, s, beta2, 400, 1.0).xi == pytest.approx(xi, abs=1e-12)
    assert pytest.approx(math.sqrt(2)) == sd_equivalents(0.5, s, beta2, 400, 1.0).R
    for gamma in (0.2, 1.0, 3.0):
        assert isotropic_kappa(0.4, gamma) == pytest.approx(solve_kappa(0.4, np.ones(60), 60 / gamma))
    # the sign changes at gamma sigma^2 / r^2 for other constants too
    for gamma, sigma2, r2 in ((0.3, 2.0, 0.7), (2.0, 0.5, 1.5)):
        at = gamma * sigma2 / r2
        signs = [sd_equivalents(x * at, np.ones(90), np.full(90, r2 / 90), 90 / gamma, sigma2).xi for x in (0.99, 1.01)]
        assert signs[0] > 0 > signs[1]


def test_slope_of_the_limit_is_its_derivative():
    Sigma = covariance("ar50", 60)
    s, vectors = np.linalg.eigh(Sigma)
    beta2, h = np.square(vectors.T @ signal("top_aligned", Sigma)), 1e-5
    R = [sd_equivalents(0.7 * math.exp(x), s, beta2, 90, 1.0).R for x in (-h, h)]
    assert (R[1] - R[0]) / (2 * h) == pytest.approx(-2 * sd_equivalents(0.7, s, beta2, 90, 1.0).gap, rel=1e-6)


def test_oracle_derivatives_are_finite_differences():
    rng = RNG(1)
    A, B = rng.normal(size=(2, 7, 7))
    population = Population(A @ A.T, rng.normal(size=7), 0.8, B=B @ B.T, beta0=rng.normal(size=7), sigma0_2=0.3)
    X, y = population.sample(15, rng)
    lam, h = 0.6, 1e-4
    R = [population.oracle(X, y, lam + x).risks.R for x in (-h, 0, h)]
    found = population.oracle(X, y, lam)
    assert found.slope == pytest.approx((R[2] - R[0]) / (2 * h), rel=1e-6)
    assert found.second == pytest.approx((R[2] - 2 * R[1] + R[0]) / h**2, rel=1e-4)
    assert found.half == pytest.approx(0.5 * lam**2 * found.second)


def test_optimal_xi_beats_a_grid_on_the_exact_risk():
    rng = RNG(2)
    population = Population(covariance("ar50", 12), rng.normal(size=12), 1.0)
    X, y = population.sample(20, rng)
    spectrum, lam = decompose(X, y, fit_intercept=False), 0.5
    best = population.oracle(X, y, lam).risks

    def exact(xi):
        d = student_coef(spectrum, 20 * lam, np.array([-xi]))[:, 0] - population.beta
        return d @ population.Sigma @ d + 1.0

    grid = [exact(xi) for xi in np.linspace(-5, 5, 2001)]
    assert best.R_sd <= min(grid) + 1e-12
    assert exact(best.xi) == pytest.approx(best.R_sd, rel=1e-10)
    assert best.student(0.3) == pytest.approx(exact(0.3), rel=1e-10)


def test_out_of_distribution_equivalents_by_simulation():
    rng, p, n = RNG(3), 150, 300
    A = rng.normal(size=(p, p))
    Sigma = covariance("ar50", p)
    beta = signal("isotropic", Sigma)
    population = Population(
        Sigma, beta, 1.0, B=A @ A.T / p, beta0=beta + 0.3 * rng.normal(size=p) / math.sqrt(p), sigma0_2=0.5
    )
    theory = population.asymptotics(n, 0.8)
    rows = []
    for _ in range(60):
        found = population.oracle(*population.sample(n, rng), 0.8).risks
        rows.append([found.R, found.C, found.R_pd])
    mean, error = np.mean(rows, 0), np.std(rows, 0) / math.sqrt(60)
    assert (np.abs(mean - [theory.R, theory.C, theory.R_pd]) < 4 * error + 0.003).all()
    same = ood_equivalents(0.8, Sigma, beta, n, 1.0)
    s, vectors = np.linalg.eigh(Sigma)
    plain = sd_equivalents(0.8, s, np.square(vectors.T @ beta), n, 1.0)
    assert same.R_pd == pytest.approx(plain.R_pd, rel=1e-10)


def test_rounds_by_simulation_and_consistent_with_one_round():
    p, n, lam, rng = 100, 200, 1.0, RNG(4)
    Sigma = covariance("ar50", p)
    beta = signal("isotropic", Sigma)
    s, vectors = np.linalg.eigh(Sigma)
    gram = multi_round_gram(lam, s, np.square(vectors.T @ beta), n, 1.0, 3)
    one = sd_equivalents(lam, s, np.square(vectors.T @ beta), n, 1.0)
    # v_1 = beta - beta_pd, so -x'v_1 is r - r_pd: entry (0, 1) is R - C, entry (1, 1) is D
    assert (gram[0, 0], gram[0, 1], gram[1, 1]) == (pytest.approx(one.R), pytest.approx(one.gap), pytest.approx(one.D))
    assert best_rounds(gram[:2, :2])[1] == pytest.approx(one.R_sd)
    population, rows = Population(Sigma, beta, 1.0), []
    for _ in range(60):
        X, y = population.sample(n, rng)
        omega = X.T @ X / n + lam * np.eye(p)
        v = [np.linalg.solve(omega, X.T @ y / n)]
        for _ in range(3):
            v.append(lam * np.linalg.solve(omega, v[-1]))
        r = np.stack([beta - v[0], *(-x for x in v[1:])])
        rows.append(r @ Sigma @ r.T + np.diag([1.0, 0, 0, 0]))
    mean, error = np.mean(rows, 0), np.std(rows, 0) / math.sqrt(60)
    assert (np.abs(mean - gram) < 4 * error + 0.002).all()


def test_more_rounds_never_raise_the_best_risk():
    Sigma = covariance("spiked", 80)
    s, vectors = np.linalg.eigh(Sigma)
    beta2 = np.square(vectors.T @ signal("bottom_aligned", Sigma))
    gram = multi_round_gram(1.5, s, beta2, 120, 1.0, 4)
    risks = [best_rounds(gram[: K + 1, : K + 1])[1] for K in range(1, 5)]
    assert all(b <= a + 1e-9 for a, b in itertools.pairwise(risks))


def test_fixed_design_risk_by_simulation():
    rng = RNG(5)
    X, beta, lam = rng.normal(size=(30, 6)), rng.normal(size=6), 0.4
    population = Population(np.eye(6), beta, 1.0)
    exact = population.fixed_design(X, lam)
    rows = []
    for _ in range(4000):
        y = X @ beta + rng.normal(size=30)
        spectrum = decompose(X, y, fit_intercept=False)
        teacher, student = (X @ student_coef(spectrum, 30 * lam, np.array([c]))[:, 0] - X @ beta for c in (0.0, -1.0))
        rows.append([teacher @ teacher, teacher @ student, student @ student])
    mean, error = np.mean(rows, 0) / 30 + 1, np.std(rows, 0) / 30 / math.sqrt(4000)
    assert (np.abs(mean - [exact.R, exact.C, exact.R_pd]) < 4 * error).all()
    assert exact.gap == pytest.approx(exact.R - exact.C)
    assert pytest.approx(exact.R + exact.R_pd - 2 * exact.C) == exact.D


def test_generalised_ridge_that_knows_the_signal_is_at_least_as_good_as_ridge_and_its_student():
    for cov in ("ar50", "spiked", "equicorrelated"):
        Sigma = covariance(cov, 60)
        s, vectors = np.linalg.eigh(Sigma)
        s, beta2 = np.maximum(s, 0), np.square(vectors.T @ signal("top_aligned", Sigma))
        lams = np.logspace(-2, 2, 100)
        best = generalised_ridge_risk(s, beta2, 120, 1.0)
        assert best <= optimal_ridge(s, beta2, 120, 1.0, lams)[1]
        assert best <= min(sd_equivalents(lam, s, beta2, 120, 1.0).R_sd for lam in lams)


def test_estimated_path_approaches_the_limit():
    p, n = 300, 600
    population = Population(covariance("ar50", p), signal("top_aligned", covariance("ar50", p)), 1.0)
    X, y = population.sample(n, RNG(6))
    lams = np.array([0.3, 1.0, 3.0])
    path = sd_path(decompose(X, y, fit_intercept=False), n * lams, criterion="loo")
    theory = [population.asymptotics(n, lam) for lam in lams]
    np.testing.assert_allclose(path.R_sd, [t.R_sd for t in theory], rtol=0.12)
    np.testing.assert_allclose(path.xi, [t.xi for t in theory], atol=0.5)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: solve_kappa(0, np.ones(3), 5), "lam must be a positive number, got 0"),
        (lambda: solve_kappa(1, -np.ones(3), 5), "eigenvalues"),
        (lambda: sd_equivalents(1, np.ones(3), np.ones(3), 0, 1), "n > 0"),
        (lambda: covariance("ar75", 3), "got 'ar75'"),
        (lambda: signal("random", np.eye(3)), "got 'random'"),
        (lambda: Population(np.eye(3), np.ones(2), 1.0), r"\(2, 2\)"),
        (lambda: multi_round_gram(1, np.ones(3), np.ones(3), 5, 1, 0), "got 0"),
    ],
)
def test_bad_input_is_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()
