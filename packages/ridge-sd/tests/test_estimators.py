"""Estimators: scikit-learn's own checks, agreement with scikit-learn, streaming, torch, bad input."""

import pickle

import numpy as np
import pytest
from scipy import sparse
from sklearn.datasets import load_breast_cancer, load_diabetes, load_digits, load_linnerud
from sklearn.kernel_ridge import KernelRidge
from sklearn.linear_model import Ridge, RidgeClassifier, RidgeCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import check_estimator

from ridge_sd import (
    KernelRidgeSD,
    KernelRidgeSDCV,
    LogisticSD,
    RidgeSD,
    RidgeSDClassifier,
    RidgeSDClassifierCV,
    RidgeSDCV,
    StreamingRidgeSD,
    decompose,
    sd_path,
)
from ridge_sd.core import loo_moments
from ridge_sd.sklearn_api import _best_logit_mix
from ridge_sd.streaming import RowMoments


def RNG(seed=0):
    return np.random.default_rng(seed)


def problem(n, p, q=1, seed=0):
    rng = RNG(seed)
    X = rng.normal(size=(n, p)) + 1
    y = X @ rng.normal(size=(p, q)) / p**0.5 + rng.normal(size=(n, q))
    return X, y[:, 0] if q == 1 else y


@pytest.mark.parametrize(
    "estimator",
    [
        RidgeSD(),
        RidgeSD(criterion="gcv", n_rounds=2),
        RidgeSDCV(),
        RidgeSDCV(criterion="gcv", guard_se=0, xi_bounds=None, select="teacher"),
        RidgeSDClassifier(),
        RidgeSDClassifierCV(),
        KernelRidgeSD(),
        KernelRidgeSD(kernel="rbf", center=True),
        KernelRidgeSDCV(kernel="rbf"),
        LogisticSD(),
        StreamingRidgeSD(),
    ],
    ids=lambda e: repr(e)[:60],
)
@pytest.mark.filterwarnings("ignore")
def test_scikit_learn_s_estimator_checks(estimator):
    results = check_estimator(estimator, on_fail=None, on_skip=None)
    assert [r["check_name"] for r in results if r["status"] == "failed"] == []
    assert sum(r["status"] == "passed" for r in results) > 40


@pytest.mark.parametrize("shape", [(40, 7), (15, 30)])
@pytest.mark.parametrize("intercept", [True, False])
def test_without_mixing_it_is_scikit_learn_s_ridge(shape, intercept):
    X, Y = problem(*shape, q=3)
    w = RNG(1).uniform(0.2, 2, len(Y))
    ours = RidgeSD(2.0, xi=0.0, fit_intercept=intercept).fit(X, Y, sample_weight=w)
    theirs = Ridge(2.0, fit_intercept=intercept).fit(X, Y, sample_weight=w)
    for coef, offset in ((ours.coef_, ours.intercept_), (ours.teacher_coef_, ours.teacher_intercept_)):
        np.testing.assert_allclose(coef, theirs.coef_, atol=1e-8)
        np.testing.assert_allclose(offset, theirs.intercept_, atol=1e-8)


def test_the_best_plain_penalty_is_ridgecv_s():
    for X, y in (problem(60, 10), problem(20, 50, seed=2), problem(80, 5, 4, seed=3)):
        alphas = len(X) * np.logspace(-3, 1.5, 40)
        path = sd_path(decompose(X, y), alphas)
        theirs = RidgeCV(alphas, store_cv_results=True).fit(X, y)
        assert alphas[np.argmin(path.R)] == pytest.approx(theirs.alpha_)
        errors = theirs.cv_results_.reshape(len(X), -1, alphas.size).sum(1).mean(0)
        np.testing.assert_allclose(path.R, errors, rtol=1e-7)


def test_mixing_helps_at_a_penalty_that_is_too_large():
    X, y = load_diabetes(return_X_y=True)
    train, test = slice(0, 221), slice(221, None)
    model = RidgeSD(10.0).fit(X[train], y[train])
    plain = Ridge(10.0).fit(X[train], y[train])
    assert model.xi_ < 0
    assert model.score(X[test], y[test]) > plain.score(X[test], y[test]) + 0.1
    assert model.risk_["R_sd"] < model.risk_["R"]


def test_order_of_penalties_is_kept_and_chosen_penalty_does_not_depend_on_it():
    X, y = problem(50, 8)
    alphas = 50 * np.logspace(-2, 1, 20)
    order = RNG(4).permutation(20)
    a, b = RidgeSDCV(alphas).fit(X, y), RidgeSDCV(alphas[order]).fit(X, y)
    assert a.alpha_ == b.alpha_
    np.testing.assert_array_equal(b.path_.alpha, alphas[order])
    np.testing.assert_allclose(b.path_.R_sd, a.path_.R_sd[order])


def test_zero_weights_are_removed_rows_and_weights_reach_pipelines():
    X, y = problem(40, 5)
    w = np.ones(40)
    w[::3] = 0
    a, b = RidgeSDCV().fit(X, y, sample_weight=w), RidgeSDCV().fit(X[w > 0], y[w > 0])
    np.testing.assert_allclose(a.coef_, b.coef_)
    v = RNG(5).uniform(0, 2, 40)
    shifted = RidgeSD().fit(X, y, sample_weight=w, eval_weight=v)
    np.testing.assert_allclose(shifted.xi_, RidgeSD().fit(X[w > 0], y[w > 0], eval_weight=v[w > 0]).xi_)
    piped = make_pipeline(StandardScaler(), RidgeSDCV()).fit(X, y, ridgesdcv__sample_weight=w)
    assert np.isfinite(piped.predict(X)).all()


def test_float32_stays_float32_and_models_survive_pickling():
    X, y = problem(60, 6)
    model = RidgeSDCV().fit(X.astype(np.float32), y)
    assert model.coef_.dtype == model.predict(X.astype(np.float32)).dtype == np.float32
    np.testing.assert_allclose(model.coef_, RidgeSDCV().fit(X, y).coef_, rtol=1e-4)
    again = pickle.loads(pickle.dumps(RidgeSDCV().fit(X, y)))
    np.testing.assert_array_equal(again.path_.coef(3), RidgeSDCV().fit(X, y).path_.coef(3))


def test_per_target_weights_fit_each_target_alone():
    X, Y = load_linnerud(return_X_y=True)
    together = RidgeSD(5.0, xi_mode="per_target").fit(X, Y)
    for t in range(3):
        alone = RidgeSD(5.0).fit(X, Y[:, t])
        assert together.xi_[t] == pytest.approx(alone.xi_)
        np.testing.assert_allclose(together.coef_[t], alone.coef_)


@pytest.mark.filterwarnings("ignore:no sequence of round weights")
def test_rounds_of_the_estimator_are_real_refits():
    X, y = problem(80, 6)
    for criterion in ("loo", "gcv", "cp"):
        model = RidgeSD(30.0, n_rounds=3, criterion=criterion).fit(X, y)
        stages = [Ridge(30.0).fit(X, y)]
        for _ in range(3):
            stages.append(Ridge(30.0).fit(X, stages[-1].predict(X)))
        expected = sum(w * s.coef_ for w, s in zip(model.mix_weights_, stages, strict=True))
        np.testing.assert_allclose(model.coef_, expected, atol=1e-7)
        if np.isfinite(model.xi_).all():  # the same by the recursion of rounds
            predicted = stages[0].predict(X)
            for xi in model.xi_:
                fitted = Ridge(30.0).fit(X, (1 - xi) * y + xi * predicted)
                predicted = fitted.predict(X)
            np.testing.assert_allclose(fitted.coef_, model.coef_, atol=1e-6)


def test_least_squares_is_its_own_student():
    X, y = problem(30, 5)
    model = RidgeSD(0.0).fit(X, y)
    np.testing.assert_allclose(
        model.coef_, np.linalg.lstsq(np.column_stack([X, np.ones(30)]), y, rcond=None)[0][:-1], atol=1e-6
    )
    with pytest.raises(ValueError, match="singular for this design: give alpha > 0"):
        RidgeSD(0.0).fit(*problem(5, 9))


def test_holdout_rows_choose_the_penalty():
    X, y = problem(40, 6)
    V, t = problem(30, 6, seed=9)
    model = RidgeSDCV(criterion="holdout").fit(X, y, X_val=V, y_val=t)
    assert model.best_score_ == pytest.approx(-np.mean((model.predict(V) - t) ** 2))


def test_sparse_designs_and_conjugate_gradients():
    X = sparse.random_array((300, 60), density=0.2, rng=RNG(6), format="csr")
    y = X @ RNG(7).normal(size=60) + RNG(8).normal(size=300)
    dense, thin = RidgeSDCV().fit(X.toarray(), y), RidgeSDCV().fit(X, y)
    np.testing.assert_allclose(thin.coef_, dense.coef_, atol=1e-8)
    np.testing.assert_allclose(thin.predict(X), dense.predict(X.toarray()), atol=1e-8)
    direct = RidgeSD(20.0, criterion="gcv").fit(X, y)
    iterative = RidgeSD(20.0, criterion="gcv", solver="cg", random_state=0).fit(X, y)
    np.testing.assert_allclose(iterative.teacher_coef_, direct.teacher_coef_, atol=1e-7)
    assert iterative.xi_ == pytest.approx(direct.xi_, abs=0.05)  # traces are estimated
    assert iterative.dof_ == pytest.approx(direct.dof_, rel=0.03)
    with pytest.warns(UserWarning, match="no exact leave-one-out"):
        chosen = RidgeSDCV(300 * np.array([0.01, 0.1, 1.0]), solver="cg", random_state=0).fit(X, y)
    assert chosen.alpha_ in 300 * np.array([0.01, 0.1, 1.0])


def test_a_linear_kernel_is_the_primal_model():
    for center in (True, False):
        X, Y = problem(30, 8, 2)
        w = RNG(9).uniform(0.3, 2, 30)
        primal = RidgeSDCV(fit_intercept=center).fit(X, Y, sample_weight=w)
        dual = KernelRidgeSDCV(center=center).fit(X, Y, sample_weight=w)
        np.testing.assert_allclose(dual.predict(X), primal.predict(X), atol=1e-6)
        assert dual.xi_ == pytest.approx(primal.xi_, rel=1e-4)
    theirs = KernelRidge(alpha=0.7, kernel="rbf").fit(X, Y)
    np.testing.assert_allclose(
        KernelRidgeSD(0.7, kernel="rbf", xi=0.0).fit(X, Y).predict(X[:5] + 0.1), theirs.predict(X[:5] + 0.1), atol=1e-8
    )


def test_precomputed_kernels_and_their_errors():
    X, y = problem(25, 4)
    K = X @ X.T
    np.testing.assert_allclose(
        KernelRidgeSD(kernel="precomputed").fit(K, y).predict(K), KernelRidgeSD().fit(X, y).predict(X), atol=1e-8
    )
    with pytest.raises(ValueError, match=r"must be square, got shape \(25, 20\)"):
        KernelRidgeSD(kernel="precomputed").fit(K[:, :20], y)
    with pytest.warns(UserWarning, match="not positive semidefinite"):
        KernelRidgeSD(kernel="precomputed").fit(K - 5 * np.eye(25), y)


def test_kernel_student_is_a_refit():
    X, y = problem(30, 3)
    model = KernelRidgeSD(0.5, kernel="rbf", gamma=0.3).fit(X, y)
    teacher = KernelRidge(alpha=0.5, kernel="rbf", gamma=0.3).fit(X, y)
    student = KernelRidge(alpha=0.5, kernel="rbf", gamma=0.3).fit(
        X, (1 - model.xi_) * y + model.xi_ * teacher.predict(X)
    )
    np.testing.assert_allclose(model.predict(X + 0.2), student.predict(X + 0.2), atol=1e-8)


def test_classifiers_without_mixing_are_ridge_classifiers():
    X, y = load_digits(return_X_y=True)
    ours, theirs = RidgeSDClassifier(10.0, xi=0.0).fit(X[:600], y[:600]), RidgeClassifier(10.0).fit(X[:600], y[:600])
    np.testing.assert_allclose(ours.decision_function(X[:50]), theirs.decision_function(X[:50]), atol=1e-6)
    X, y = load_breast_cancer(return_X_y=True)
    X = StandardScaler().fit_transform(X)
    signs, hot = RidgeSDClassifierCV().fit(X, y), RidgeSDClassifierCV(targets="one_hot").fit(X, y)
    np.testing.assert_array_equal(signs.predict(X), hot.predict(X))
    assert signs.score(X, y) > 0.94
    balanced = RidgeSDClassifier(class_weight="balanced").fit(X, y)
    assert (balanced.predict(X) == 0).sum() >= (RidgeSDClassifier().fit(X, y).predict(X) == 0).sum()


def test_logistic_mixing_weight_is_the_minimiser_and_leave_one_out_logits_are_near():
    rng = RNG(10)
    X = rng.normal(size=(60, 4))
    y = (X[:, 0] + 0.8 * rng.normal(size=60) > 0).astype(int)
    model = LogisticSD(alpha=2.0).fit(X, y)
    w = np.ones(60)
    design = np.column_stack([X, np.ones(60)])
    teacher = model._solve(X, y.astype(float), w)
    student = model._solve(X, 1 / (1 + np.exp(-design @ teacher)), w)
    approximate = model._leave_one_out(design, y, w, teacher, student)
    exact = []
    for i in range(60):
        keep = np.arange(60) != i
        t = model._solve(X[keep], y[keep].astype(float), w[keep])
        s = model._solve(X[keep], 1 / (1 + np.exp(-design[keep] @ t)), w[keep])
        exact.append([design[i] @ t, design[i] @ s])
    for a, b in zip(approximate, np.array(exact).T, strict=True):
        assert np.corrcoef(a, b)[0, 1] > 0.999
        assert np.abs(a - b).mean() < 0.05 * np.abs(b).mean()

    def loss(xi):
        z = approximate[0] + xi * (approximate[1] - approximate[0])
        return np.logaddexp(0, z).sum() - y @ z

    grid = np.linspace(-9, 9, 3001)
    assert model.xi_ == pytest.approx(grid[np.argmin([loss(x) for x in grid])], abs=0.01)
    assert _best_logit_mix(*approximate, y, w, (0, 0.5)) in (0, 0.5) or 0 < model.xi_ < 0.5


# --- streaming and torch ---------------------------------------------------------------------------------------------


def test_streaming_in_any_order_is_the_model_in_memory():
    X, Y = problem(300, 12, 2)
    whole = RidgeSDCV(criterion="gcv", guard_se=0).fit(X, Y)
    pieces = np.array_split(RNG(11).permutation(300), 7)
    first, second = StreamingRidgeSD(), StreamingRidgeSD()
    for i, rows in enumerate(pieces):
        (first if i % 2 else second).partial_fit(X[rows], Y[rows])
    merged = second.merge(first).finalize()
    np.testing.assert_allclose(merged.coef_, whole.coef_, atol=1e-9)
    assert (merged.alpha_, merged.n_samples_seen_) == (pytest.approx(whole.alpha_), 300)
    blocks = StreamingRidgeSD().from_blocks([(X[r], Y[r]) for r in pieces], n_jobs=2)
    np.testing.assert_allclose(blocks.predict(X), whole.predict(X), atol=1e-9)


def test_large_means_lose_nothing():
    X, y = problem(400, 6)
    near = RidgeSDCV(criterion="gcv", guard_se=0).fit(X, y)
    far = StreamingRidgeSD()
    for rows in np.array_split(np.arange(400), 9):
        far.partial_fit(X[rows] + 1e6, y[rows] + 1e6)
    np.testing.assert_allclose(far.finalize().coef_, near.coef_, atol=1e-6)


def test_a_second_pass_gives_exact_leave_one_out():
    X, y = problem(200, 9)
    alphas = 200 * np.logspace(-2, 1, 12)
    model = StreamingRidgeSD(alphas).from_blocks([(X[:90], y[:90]), (X[90:], y[90:])])
    model.finalize([(X[:50], y[:50]), (X[50:], y[50:])])
    exact = loo_moments(decompose(X, y), alphas)
    np.testing.assert_allclose(model.path_.R, exact.R[:, 0], rtol=1e-9)
    np.testing.assert_allclose(model.path_.D, exact.D[:, 0], rtol=1e-8)
    with pytest.raises(ValueError, match="second pass saw 50 rows, the first one 200"):
        model.finalize([(X[:50], y[:50])])


def test_moments_without_intercept_and_with_weights():
    X, y = problem(50, 4)
    w = RNG(12).uniform(0, 2, 50)
    for intercept in (True, False):
        a = StreamingRidgeSD(fit_intercept=intercept)
        for rows in np.array_split(np.arange(50), 3):
            a.partial_fit(X[rows], y[rows], sample_weight=w[rows])
        b = RidgeSDCV(criterion="gcv", guard_se=0, fit_intercept=intercept).fit(X, y, sample_weight=w)
        np.testing.assert_allclose(a.finalize().coef_, b.coef_, atol=1e-8)


def test_state_is_saved_restored_and_safe_from_refused_blocks(tmp_path):
    X, y = problem(60, 5)
    model = StreamingRidgeSD().partial_fit(X[:30], y[:30])
    model.save(tmp_path / "state.npz")
    before = model.moments_
    for bad in (X[30:, :4], X[30:].astype(object)):
        bad = bad.copy()
        if bad.dtype == object:
            bad[0, 0] = "x"
        with pytest.raises(ValueError, match=r"features|convert"):
            model.partial_fit(bad, y[30:])
    assert model.moments_ is before
    with pytest.raises(ValueError, match="earlier ones had 1 dimensions"):
        model.partial_fit(X[30:], np.stack([y[30:], y[30:]], 1))
    again = StreamingRidgeSD().load(tmp_path / "state.npz").partial_fit(X[30:], y[30:]).finalize()
    np.testing.assert_allclose(again.coef_, StreamingRidgeSD().fit(X, y).coef_, atol=1e-10)
    (tmp_path / "bad.npz").write_bytes((tmp_path / "state.npz").read_bytes()[:300])
    with pytest.raises(ValueError, match="holds no moments"):
        StreamingRidgeSD().load(tmp_path / "bad.npz")
    with pytest.raises(ValueError, match="at least one block"):
        StreamingRidgeSD().from_blocks([])
    with pytest.raises(ValueError, match="must agree"):
        RowMoments.of(X, y[:, None]) + RowMoments.of(X[:, :3], y[:, None])


def test_dask_blocks():
    da = pytest.importorskip("dask.array")
    X, y = problem(200, 8)
    model = StreamingRidgeSD().from_dask(da.from_array(X, chunks=(37, 3)), da.from_array(y, chunks=64))
    np.testing.assert_allclose(model.coef_, StreamingRidgeSD().fit(X, y).coef_, atol=1e-10)


def test_torch_is_numpy():
    torch = pytest.importorskip("torch")
    from ridge_sd import torch_api

    X, Y = problem(150, 10, 3)
    alphas = 150 * np.logspace(-2, 1, 20)
    theirs = sd_path(decompose(X, Y), alphas, criterion="gcv")
    ours = torch_api.sd_path(torch.tensor(X), torch.tensor(Y), alphas, block=64)
    np.testing.assert_allclose(ours.R_sd, theirs.R_sd, rtol=1e-9)
    np.testing.assert_allclose(ours.xi, theirs.xi, rtol=1e-8)
    probe = torch_api.LinearProbeSD(alphas).fit(
        torch.tensor(X, dtype=torch.float32), torch.tensor(Y, dtype=torch.float32)
    )
    expected = RidgeSDCV(alphas, criterion="gcv", guard_se=0, xi_bounds=None).fit(X, Y)
    np.testing.assert_allclose(
        probe(torch.tensor(X, dtype=torch.float32)).detach().numpy(), expected.predict(X), atol=1e-4
    )
    assert isinstance(probe.linear, torch.nn.Linear)
    with pytest.raises(RuntimeError, match="not fitted"):
        torch_api.LinearProbeSD()(torch.ones(1, 2))
    with pytest.raises(ValueError, match=r"n >= 2, got \(3, 2\) and \(4, 1\)"):
        torch_api.spectrum(torch.ones(3, 2), torch.ones(4))
    with pytest.raises(ValueError, match="finite"):
        torch_api.spectrum(torch.full((3, 2), float("nan")), torch.ones(3))


# --- bad input -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(10, 1), (2, 3), (2, 1)])
def test_tiny_and_degenerate_designs_stay_finite(shape):
    X, y = problem(*shape)
    for model in (RidgeSD(), RidgeSD(criterion="gcv"), KernelRidgeSD()):
        assert np.isfinite(model.fit(X, y).predict(X)).all()
    X = np.column_stack([X, np.ones(len(X))])
    X = np.concatenate([X, X])
    assert np.isfinite(RidgeSDCV().fit(X, np.concatenate([y, y])).coef_).all()


def test_constant_targets_are_predicted():
    model = RidgeSD().fit(RNG(0).normal(size=(20, 3)), np.full(20, 0.3))
    assert model.xi_ == 0
    np.testing.assert_allclose(model.predict(RNG(1).normal(size=(4, 3))), 0.3)


@pytest.mark.parametrize(
    ("model", "fit", "message"),
    [
        (RidgeSD(-1), {}, "'alpha' parameter"),
        (RidgeSD(float("nan")), {}, "alpha"),
        (RidgeSD("1"), {}, "'alpha' parameter"),
        (RidgeSDCV([]), {}, "alphas must be a non-empty list of positive numbers"),
        (RidgeSDCV([1.0, -1]), {}, "alphas must be a non-empty list of positive numbers"),
        (RidgeSD(xi=float("inf")), {}, "xi"),
        (RidgeSD(xi_bounds=(1, -1)), {}, "low < high"),
        (RidgeSD(n_rounds=0), {}, "'n_rounds' parameter"),
        (RidgeSD(n_rounds=6), {}, "'n_rounds' parameter"),
        (RidgeSD(n_rounds=2, xi=0.5), {}, "n_rounds > 1 needs xi='auto'"),
        (RidgeSD(criterion="gcv"), {"eval_weight": np.ones(20)}, "eval_weight needs criterion='loo', got 'gcv'"),
        (RidgeSD(criterion="holdout"), {}, "X_val and y_val go together"),
        (RidgeSD(), {"X_val": np.ones((2, 3)), "y_val": np.ones(2)}, "criterion='holdout', got criterion='loo'"),
        (RidgeSD(), {"sample_weight": -np.ones(20)}, "[Nn]egative"),
        (RidgeSD(), {"sample_weight": np.zeros(20)}, "weights are zero|at least one non-zero|all sample weights"),
        (RidgeSD(criterion="cp", solver="cg"), {}, "generalised cross-validation of one round only"),
        (KernelRidgeSD(0.0), {}, "alpha must be > 0 for kernels"),
        (KernelRidgeSD(criterion="holdout"), {}, "kernel estimators take criterion"),
    ],
    ids=lambda x: str(x)[:40],
)
def test_bad_settings_are_named(model, fit, message):
    X, y = problem(20, 3)
    with pytest.raises(ValueError, match=message):
        model.fit(X, y, **fit)


def test_logistic_needs_two_classes():
    with pytest.raises(ValueError, match="expected 2 classes, got 3"):
        LogisticSD().fit(np.ones((6, 2)), [0, 1, 2, 0, 1, 2])
    with pytest.raises(ValueError, match="1 class"):
        RidgeSDClassifier().fit(np.ones((6, 2)), np.ones(6, int))


# --- what a review found ---------------------------------------------------------------------------------------------


def test_guard_and_standard_error_do_not_see_the_scale_of_weights():
    rng = RNG(50)
    X = rng.normal(size=(60, 8))
    y = X @ rng.normal(size=8) / 2 + rng.normal(size=60)
    v = RNG(51).uniform(0.5, 2, 60)
    models = [RidgeSDCV(60 * np.logspace(-1, 2, 30)).fit(X, y, eval_weight=s * v) for s in (1.0, 7.0, 1e-3)]
    importance = [
        RidgeSDCV(s * 60 * np.logspace(-1, 2, 30), sample_weight_type="importance").fit(X, y, sample_weight=s * v)
        for s in (1.0, 1000.0, 1 / 150)
    ]
    for group in (models, importance):
        assert len({m.guard_triggered_ for m in group}) == 1
        for m in group[1:]:
            assert m.xi_ == pytest.approx(group[0].xi_)
            assert m.xi_se_ == pytest.approx(group[0].xi_se_, rel=1e-6)
    ones = RidgeSDCV().fit(X, y, eval_weight=np.ones(60))
    plain = RidgeSDCV().fit(X, y)
    assert (ones.xi_, ones.guard_triggered_) == (plain.xi_, plain.guard_triggered_)


def test_rounds_keep_to_the_bounds_of_xi_and_to_their_own_score():
    X, y = problem(80, 6)
    free = RidgeSD(30.0, n_rounds=3).fit(X, y)
    assert np.abs(free.xi_).max() > 1
    bounded = RidgeSD(30.0, n_rounds=3, xi_bounds=(-1, 1)).fit(X, y)
    assert (np.abs(np.atleast_1d(bounded.xi_)) <= 1).all()
    chosen = RidgeSDCV(n_rounds=2, guard_se=0).fit(X, y)
    assert chosen.best_score_ == pytest.approx(-chosen.risk_["R_sd"])


def test_missing_values_and_wrong_shapes_are_refused_everywhere():
    X, y = problem(20, 3)
    bad = X.copy()
    bad[3, 1] = np.nan
    with pytest.raises(ValueError, match="NaN or infinite"):
        StreamingRidgeSD().from_blocks([(X, y), (bad, y)])
    for V, t, message in ((bad, y, "NaN"), (X[:, :2], y, "3 features of X, got 2"), (X[:5], y, "inconsistent")):
        with pytest.raises(ValueError, match=message):
            RidgeSD(criterion="holdout").fit(X, y, X_val=V, y_val=t)
    with pytest.raises(ValueError, match="'criterion' parameter"):
        RidgeSDClassifier(criterion="holdout").fit(X, y > 0)
    with pytest.raises(ValueError, match="1 dimension"):
        StreamingRidgeSD().partial_fit(X, y).merge(StreamingRidgeSD().partial_fit(X, y[:, None]))


def test_weights_that_are_no_numbers_of_copies_are_named():
    X, y = problem(30, 40)
    with pytest.raises(ValueError, match="use sample_weight_type='importance'"):
        RidgeSD(criterion="gcv").fit(X, y, sample_weight=np.full(30, 0.1))


def test_kernels_keep_float32_and_must_be_symmetric_and_definite():
    X, y = problem(25, 4)
    model = KernelRidgeSD(kernel="rbf").fit(X.astype(np.float32), y)
    assert model.dual_coef_.dtype == model.predict(X.astype(np.float32)).dtype == np.float32
    K = X @ X.T
    with pytest.raises(ValueError, match="must be symmetric"):
        KernelRidgeSD(kernel="precomputed").fit(K + np.triu(np.ones((25, 25)), 1), y)
    with pytest.warns(UserWarning, match="not positive semidefinite"):
        KernelRidgeSD(kernel="sigmoid", gamma=1.0, coef0=-1).fit(X, y)


def test_a_second_pass_is_named_as_such_and_an_edge_minimum_warned_about():
    X, y = problem(60, 4)
    model = StreamingRidgeSD().fit(X, y)
    assert model.path_.criterion == "gcv"
    assert model.finalize([(X, y)]).path_.criterion == "loo"
    with pytest.warns(UserWarning, match="edge of the grid"):
        sd_path(decompose(X, y), 60 * np.logspace(1, 3, 9)).curvature_test()
