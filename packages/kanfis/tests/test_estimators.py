"""The estimators: additivity, invariances, rules that compute what they say, intervals that cover, scikit-learn's own checks."""

import ctypes
import itertools
import json
import math
import shutil
import subprocess
import warnings
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.datasets import load_breast_cancer, load_diabetes, load_iris, load_wine
from sklearn.exceptions import ConvergenceWarning
from sklearn.model_selection import train_test_split
from sklearn.utils.estimator_checks import check_estimator

from kanfis import KANFISClassifier, KANFISRegressor, conformal_quantile, interpretability
from kanfis.baselines import TSKRegressor, baselines
from kanfis.rules import RuleBase, SugenoSystem, read_fcl, read_fis, to_sugeno, write_fcl, write_fis


def rng(seed=0):
    return np.random.default_rng(seed)


def diabetes():
    return load_diabetes(return_X_y=True, as_frame=True)


@pytest.mark.parametrize(
    "estimator",
    [
        KANFISRegressor(),
        KANFISRegressor(fuzzy_type="it2", n_interactions=1),
        KANFISRegressor(missing="term", n_memberships="auto"),
        KANFISClassifier(),
        KANFISClassifier(loss="squared"),
    ],
    ids=str,
)
@pytest.mark.filterwarnings("ignore")
def test_scikit_learn_s_checks(estimator):
    failed = [c for c in check_estimator(estimator, on_fail=None) if c["status"] == "failed"]
    assert not failed, [(c["check_name"], str(c["exception"])) for c in failed]


@pytest.mark.parametrize(
    ("load", "limit"), [(load_iris, 0.96), (load_wine, 0.97), (load_breast_cancer, 0.965), (load_diabetes, 56.6)]
)
def test_accuracy_of_the_spec(load, limit):
    X, y = load(return_X_y=True)
    found = []
    for seed in range(5):
        a, b, c, d = train_test_split(X, y, test_size=0.2, random_state=seed, stratify=y if limit < 1 else None)
        model = (KANFISClassifier() if limit < 1 else KANFISRegressor()).fit(a, c)
        found.append(model.score(b, d) if limit < 1 else math.sqrt(np.mean((model.predict(b) - d) ** 2)))
    assert np.mean(found) >= limit if limit < 1 else np.mean(found) <= limit


@pytest.mark.parametrize("kind", ["gaussian", "triangle", "bell", "sigmoid", "trapezoid"])
@pytest.mark.parametrize("fuzzy", ["t1", "it2", "it2-mean"])
def test_one_layer_is_additive(kind, fuzzy):
    X, y = load_diabetes(return_X_y=True)
    model = KANFISRegressor(membership=kind, fuzzy_type=fuzzy).fit(X, y)
    a, b = X[:40].copy(), X[40:80].copy()
    swapped = a.copy()
    swapped[:, 0] = b[:, 0]
    other = b.copy()
    other[:, 0] = a[:, 0]
    assert np.allclose(model.predict(a) + model.predict(b), model.predict(swapped) + model.predict(other), atol=1e-8)
    parts = model.contributions(X)
    assert np.allclose(parts.sum((1,))[:, 0] + model.rulebase_.base, model.predict(X), atol=1e-8)
    assert np.allclose(parts.mean(0), 0, atol=1e-8)
    _grid, values = model.shape(2, X[:, 2])
    assert np.allclose(values[:, 0], parts[:, 2, 0], atol=1e-8)
    assert model.feature_importances_ == pytest.approx(parts[:, :, 0].std(0), rel=1e-6)


def test_contributions_are_shapley_values():
    X = rng().normal(size=(60, 4))
    y = np.sin(X).sum(1)
    model = KANFISRegressor().fit(X, y)
    x = X[:1]

    def value(subset):
        mixed = X.copy()
        mixed[:, list(subset)] = x[0, list(subset)]
        return float(model.predict(mixed).mean())

    expected = []
    for i in range(4):
        rest = [j for j in range(4) if j != i]
        total = 0.0
        for size in range(4):
            for subset in itertools.combinations(rest, size):
                weight = math.factorial(size) * math.factorial(3 - size) / math.factorial(4)
                total += weight * (value((*subset, i)) - value(subset))
        expected.append(total)
    assert model.contributions(x)[0, :, 0] == pytest.approx(expected, abs=1e-8)


def test_units_order_and_weights_do_not_matter():
    X, y = load_diabetes(return_X_y=True)
    base = KANFISRegressor().fit(X, y).predict(X)
    scale = 10.0 ** rng().uniform(-4, 4, X.shape[1])
    assert np.allclose(KANFISRegressor().fit(X * scale + 3 * scale, y).predict(X * scale + 3 * scale), base, atol=1e-6)
    order = rng().permutation(X.shape[1])
    moved = KANFISRegressor().fit(X[:, order], y)
    assert np.allclose(moved.predict(X[:, order]), base, atol=1e-8)
    assert np.allclose(moved.feature_importances_, KANFISRegressor().fit(X, y).feature_importances_[order])
    w = rng().integers(0, 3, len(X))
    weighted, repeated = KANFISRegressor().fit(X, y, w), KANFISRegressor().fit(np.repeat(X, w, 0), np.repeat(y, w))
    assert np.allclose(weighted.predict(X), repeated.predict(X), atol=1e-8)
    classes = (y > 140).astype(int)
    scaled = KANFISClassifier().fit(X * scale, classes).predict_proba(X * scale)
    assert np.allclose(scaled, KANFISClassifier().fit(X, classes).predict_proba(X), atol=1e-6)


def test_type2_without_spread_is_type1():
    X, y = load_diabetes(return_X_y=True)
    two = KANFISRegressor(fuzzy_type="it2", spread=0.0).fit(X, y)
    assert np.allclose(two.predict(X), KANFISRegressor().fit(X, y).predict(X), atol=1e-8)
    low, high = two.predict_interval(X, method="hull")
    assert np.allclose(low, high)


def test_hull_holds_every_model_inside_the_footprint():
    X, y = load_diabetes(return_X_y=True)
    model = KANFISRegressor(fuzzy_type="it2").fit(X, y)
    low, high = model.predict_interval(X, method="hull")
    lower, upper = model.rulebase_.bounds(X)
    for seed in range(20):
        inside = lower + rng(seed).uniform(size=lower.shape) * (upper - lower)
        out = (inside @ model.coef_ + model.intercept_)[:, 0]
        assert (low - 1e-9 <= out).all()
        assert (out <= high + 1e-9).all()


# --- terms of all kinds --------------------------------------------------------------------------------------------


def test_frames_with_words_missing_values_and_booleans():
    r = rng()
    n = 400
    frame = pd.DataFrame(
        {
            "size": r.normal(size=n),
            "colour": pd.Categorical(r.choice(["red", "green", "blue"], n)),
            "word": r.choice(["a", "b"], n).astype(object),
            "flag": r.random(n) < 0.5,
        }
    )
    size = frame["size"].to_numpy().copy()
    y = size + 2.0 * (frame["colour"] == "red").to_numpy() - frame["flag"].to_numpy()
    frame.loc[::7, "size"] = np.nan
    y[::7] += 5.0 - size[::7]
    model = KANFISRegressor(missing="term").fit(frame, y)
    assert model.score(frame, y) > 0.97
    text = model.report(None)
    assert "IF size is missing THEN" in text
    assert "IF colour is red THEN" in text
    assert "flag is True" in text
    unseen = frame.assign(colour="violet")
    assert np.isfinite(model.predict(unseen)).all()
    with pytest.raises(ValueError, match="feature names"):
        model.predict(frame[["colour", "size", "word", "flag"]])
    with pytest.raises(ValueError, match="NaN"):
        KANFISRegressor().fit(frame, y)
    with pytest.raises(ValueError, match="infinity"):
        KANFISRegressor(missing="term").fit(np.array([[np.inf], [1.0], [2.0]]), [1, 2, 3])


def test_constant_and_two_valued_columns():
    X = np.c_[np.full(100, 3.0), rng().integers(0, 2, 100), rng().normal(size=100)]
    y = 4.0 * X[:, 1]
    model = KANFISRegressor().fit(X, y)
    assert model.partition_.sizes.tolist() == [1, 2, 3]
    assert model.feature_importances_[0] == pytest.approx(0, abs=1e-10)
    assert model.score(X, y) > 0.999


def test_numbers_of_terms_a_feature_and_auto():
    X, y = diabetes()
    model = KANFISRegressor(n_memberships={"bmi": 5, "s5": 2}).fit(X, y)
    assert model.partition_.sizes[X.columns.get_loc("bmi")] == 5
    assert model.partition_.sizes[X.columns.get_loc("s5")] == 2
    auto = KANFISRegressor(n_memberships="auto").fit(X, y)
    assert set(auto.partition_.sizes) <= {2, 3, 5, 7}
    words = KANFISRegressor(term_labels={"bmi": ["lean", "usual", "heavy"]}).fit(X, y)
    assert "bmi is heavy" in words.report(None)
    assert clone(model).get_params()["n_memberships"] == {"bmi": 5, "s5": 2}


def test_monotone_shapes():
    X = rng().uniform(-2, 2, (300, 2))
    y = np.sin(2 * X[:, 0]) + X[:, 1] ** 2 + 0.3 * rng(1).normal(size=300)
    for kind in ("triangle", "gaussian"):
        model = KANFISRegressor(n_memberships=7, membership=kind, monotone={0: 1, 1: -1}).fit(X, y)
        assert (np.diff(model.shape(0)[1][:, 0]) >= -1e-4).all()
        assert (np.diff(model.shape(1)[1][:, 0]) <= 1e-4).all()
    base = model.rulebase_
    coef = np.zeros_like(base.coef)
    coef[:7, 0] = [0, 0.1, 0.2, 0.3, 0.4, 0.5, 1.0]
    falling = replace(base, coef=coef).contributions(np.c_[np.linspace(-2, 2, 200), np.zeros(200)])[:, 0, 0]
    # a sum of Gaussian bumps with increasing coefficients need not increase
    assert (np.diff(falling) < 0).any()
    c = (X[:, 0] + 0.5 * rng(2).normal(size=300) > 0).astype(int)
    classifier = KANFISClassifier(loss="squared", monotone={0: 1}).fit(X, c)
    assert (np.diff(classifier.shape(0)[1][:, 1]) >= -1e-4).all()
    with pytest.raises(ValueError, match="needs loss='squared'"):
        KANFISClassifier(monotone={0: 1}).fit(X, c)
    with pytest.raises(ValueError, match=r"\+1 or -1"):
        KANFISRegressor(monotone={0: 2}).fit(X, y)


def test_noise_columns_go_and_pairs_come():
    r = rng()
    X = r.normal(size=(400, 12))
    y = X[:, 0] + np.sin(2 * X[:, 1])
    sparse = KANFISRegressor(select_features=True, random_state=0).fit(X, y + 0.2 * r.normal(size=400))
    assert (sparse.feature_importances_[2:] == 0).sum() >= 9
    assert (sparse.feature_importances_[:2] > 0.1).all()
    square = r.uniform(-1, 1, (600, 2))
    xor = (square[:, 0] * square[:, 1] > 0).astype(int)
    assert KANFISClassifier(loss="squared").fit(square[:300], xor[:300]).score(square[300:], xor[300:]) < 0.6
    joint = KANFISClassifier(loss="squared", n_interactions=1).fit(square[:300], xor[:300])
    assert joint.score(square[300:], xor[300:]) > 0.9
    assert joint.component_names_ == ["x0", "x1", "x0 x x1"]
    assert " AND " in joint.report()
    assert " AND " not in KANFISRegressor().fit(X, y).report(None)
    smallest = KANFISClassifier(loss="squared", n_interactions=1, tnorm="min").fit(square, xor)
    assert smallest.score(square, xor) > 0.9


def test_streaming_is_one_fit():
    X, y = load_diabetes(return_X_y=True)
    whole = KANFISRegressor(smooth=1.0)
    parts = KANFISRegressor(smooth=1.0).partial_fit(X[:300], y[:300]).partial_fit(X[300:], y[300:])
    whole.fit(X[:300], y[:300])
    whole.moments_ = None
    base = parts.rulebase_
    from kanfis.solve import ALPHAS, Moments, ridge, smoothness

    moments = Moments.of(base.basis, X, y[:, None], np.ones(len(X)), len(base.antecedents))
    fit = ridge(
        moments,
        np.arange(len(base.antecedents)),
        ALPHAS,
        smoothness(base.partition.sizes.tolist(), [s > 2 for s in base.partition.sizes], 1.0),
    )
    assert np.allclose(parts.coef_, fit.coef, atol=1e-6)
    classes = (y > 140).astype(int)
    streamed = (
        KANFISClassifier(loss="squared")
        .partial_fit(X[:200], classes[:200], classes=[0, 1, 2])
        .partial_fit(X[200:], classes[200:])
    )
    assert streamed.predict_proba(X).shape == (len(X), 3)
    assert streamed.score(X, classes) > 0.7
    assert not hasattr(KANFISClassifier(), "partial_fit")
    assert not hasattr(KANFISRegressor(select_features=True), "partial_fit")
    assert not hasattr(KANFISClassifier(loss="squared", monotone={0: 1}), "partial_fit")
    rising = KANFISRegressor(monotone={2: 1}).partial_fit(X[:300], y[:300]).partial_fit(X[300:], y[300:])
    assert (np.diff(rising.shape(2)[1][:, 0]) >= -1e-4 * np.ptp(y)).all()


def test_several_outputs():
    X = rng().normal(size=(200, 3))
    Y = np.c_[X[:, 0], X[:, 1] ** 2]
    model = KANFISRegressor(n_memberships=5, calibration_fraction=0.25, random_state=0).fit(
        X, pd.DataFrame(Y, columns=["a", "b"])
    )
    assert model.predict(X).shape == (200, 2)
    assert "THEN a " in model.report(3)
    low, high = model.predict_interval(X)
    assert low.shape == (200, 2)
    assert ((low <= Y) & (high >= Y)).mean() > 0.85


def test_loo_choice_and_fine_tuning():
    X, y = load_diabetes(return_X_y=True)
    assert KANFISRegressor(alpha_selection="loo").fit(X, y).alpha_ in np.logspace(-3, 3, 25)
    x = rng().uniform(-3, 3, (300, 1))
    target = np.tanh(6 * x[:, 0])
    plain = KANFISRegressor(random_state=0).fit(x, target)
    tuned = KANFISRegressor(fine_tune=True, random_state=0).fit(x, target)
    assert tuned.score(x, target) > plain.score(x, target)
    assert len(tuned.history_["fine_tune"]) == 50
    kept = KANFISRegressor(fine_tune=True, random_state=0, min_delta=1e9).fit(x, target)
    assert np.allclose(kept.predict(x), plain.predict(x))


# --- the paper's structure -----------------------------------------------------------------------------------------


def test_paper_training_learns_and_is_reproducible():
    X, y = load_iris(return_X_y=True)
    one = KANFISClassifier.paper(max_epochs=8, random_state=0, batch_size=16).fit(X, y)
    two = KANFISClassifier.paper(max_epochs=8, random_state=0, batch_size=16).fit(X, y)
    assert one.history_["train"] == two.history_["train"]
    assert one.history_["train"][-1] < one.history_["train"][0]
    parts = one.contributions(X)
    logits = parts.sum(1) + one.rulebase_.base
    assert np.array_equal(logits.argmax(1), np.searchsorted(one.classes_, one.predict(X)))
    from kanfis.training import network_scores

    assert np.allclose(one.rulebase_.scores(X), network_scores(one, X), atol=1e-8)
    text = one.report()
    assert "ADDS" in text
    assert " AND " not in text


@pytest.mark.parametrize("kind", ["gaussian", "bell", "triangle", "sigmoid"])
@pytest.mark.parametrize("fuzzy", ["t1", "it2", "it2-mean"])
def test_a_network_and_its_rules_compute_the_same(kind, fuzzy):
    X, y = load_diabetes(return_X_y=True)
    X = X[:120, :4]
    model = KANFISRegressor(
        structure="paper", membership=kind, fuzzy_type=fuzzy, max_epochs=2, n_rules=3, random_state=0
    ).fit(X, y[:120])
    from kanfis.training import network_scores

    assert np.allclose(model.rulebase_.scores(X), network_scores(model, X), atol=1e-6)


def test_mask_rate_is_ten_times_the_other_and_has_no_decay():
    from kanfis.layers import KANFISNet
    from kanfis.training import _optimizer

    net = KANFISNet(3, 2, 1)
    groups = _optimizer(net, 1e-3, 1e-2).param_groups
    assert groups[1]["params"][0] is net.layers[0].mask
    assert groups[1]["lr"] == pytest.approx(10 * groups[0]["lr"])
    assert (groups[0]["weight_decay"], groups[1]["weight_decay"]) == (1e-2, 0.0)


def test_two_layers_give_surrogate_rules_that_say_so():
    square = rng().uniform(-1, 1, (400, 2))
    xor = (square[:, 0] * square[:, 1] > 0).astype(int)
    model = KANFISClassifier(structure="paper", n_layers=2, max_epochs=40, learning_rate=1e-2, random_state=0).fit(
        square, xor
    )
    assert model.score(square, xor) > 0.85
    assert model.report().startswith("Surrogate rules")
    assert model.surrogate_fidelity_ < 0.5  # additive rules cannot follow XOR, and the report says so
    with pytest.raises(ValueError, match="not additive"):
        model.contributions(square)
    with pytest.raises(ValueError, match="not additive"):
        model.export_code("c")
    km = KANFISRegressor(
        structure="paper", fuzzy_type="it2", mask="softplus", type_reduction="km", max_epochs=3, random_state=0
    )
    assert np.isfinite(km.fit(square, square[:, 0]).predict(square)).all()


def test_entropy_sparsifies_masks_and_pruning_is_true():
    X, y = load_diabetes(return_X_y=True)
    model = KANFISRegressor(structure="paper", max_epochs=3, random_state=0).fit(X, y)
    report = model.prune(0.5, X=X, y=y)
    mask = report.model.network_.layers[0].mask.detach().abs().numpy()
    assert (mask == 0).mean() > 0.05
    assert report.antecedents_after < report.antecedents_before
    assert report.score_before == pytest.approx(model.score(X, y))
    assert model.network_.layers[0].mask.detach().abs().min() > 0  # the original is as it was
    terms = KANFISRegressor(n_memberships=7).fit(X, y)
    same = terms.prune(0.0, X=X, y=y)
    assert same.rules_after == same.rules_before
    assert np.array_equal(same.model.predict(X), terms.predict(X))
    fewer = terms.prune(0.2, X=X, y=y)
    assert fewer.rules_after < fewer.rules_before
    assert fewer.score_after == pytest.approx(fewer.model.score(X, y))
    blind = terms.prune(0.2)
    assert blind.model.predict(X).mean() == pytest.approx(terms.predict(X).mean(), abs=1e-8)


def test_a_loss_that_is_not_finite_keeps_the_best_state():
    X, y = rng().normal(size=(50, 2)), rng().normal(size=50)
    with pytest.warns(ConvergenceWarning, match="not finite"):
        model = KANFISRegressor(structure="paper", learning_rate=1e200, max_epochs=5, random_state=0).fit(X, y)
    assert np.isfinite(model.predict(X)).all()
    with pytest.warns(UserWarning, match="too few for a validation split"):
        KANFISRegressor(structure="paper", max_epochs=1).fit(X[:4], y[:4])


# --- rules and their exchange --------------------------------------------------------------------------------------


def fitted(classifier=False, **changes):
    if classifier:
        X, y = load_iris(return_X_y=True, as_frame=True)
        return KANFISClassifier(**changes).fit(X, y), X
    X, y = diabetes()
    return KANFISRegressor(**changes).fit(X, y), X


@pytest.mark.parametrize("classifier", [False, True])
@pytest.mark.parametrize(
    "changes", [{}, {"fuzzy_type": "it2", "n_interactions": 1}, {"fuzzy_type": "it2-mean"}, {"missing": "term"}]
)
def test_exported_rules_come_back_exactly(tmp_path, classifier, changes):
    model, X = fitted(classifier, **changes)
    path = model.export(tmp_path / "r.json")
    again = type(model).from_rules(path)
    frame = X.set_axis(list(map(str, X.columns)), axis=1)
    if classifier:
        assert np.allclose(again.predict_proba(frame), model.predict_proba(X), atol=1e-12)
        assert again.predict(frame).tolist() == model.predict(X).tolist()
    else:
        assert np.allclose(again.predict(frame), model.predict(X), atol=1e-10)
    content = json.loads(path.read_text())
    content["rules"][0]["then"] = [v + 1 for v in content["rules"][0]["then"]]
    edited = type(model).from_rules(content)
    change = edited.rulebase_.scores(X.to_numpy()) - model.rulebase_.scores(X.to_numpy())
    assert np.allclose(change[:, 0], model.firing(X)[:, 0])


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda c: c["rules"][2].update({"then": [1.0, 2.0]}), r"rule 2: expected 1 numbers in 'then'"),
        (lambda c: c["rules"][1]["if"][0].update({"feature": "foo"}), "rule 1: no feature 'foo'"),
        (lambda c: c["rules"][0]["if"][0].update({"term": 9}), "rule 0: age has terms 0 to 2, got 9"),
        (lambda c: c["rules"][0].update({"then": [float("nan")]}), "rule 0: expected finite numbers"),
        (lambda c: c["rules"][0].update({"if": []}), "rule 0: expected one or two conditions, got 0"),
        (lambda c: c.pop("rules"), "expected the key 'rules'"),
        (lambda c: c.update({"format": "x"}), "format 'kanfis-rules'"),
        (lambda c: c["features"][1]["terms"][0].update({"colour": 1}), "feature 1:"),
        (lambda c: c.update({"task": "classification"}), "expected rules of regression"),
    ],
)
def test_broken_rules_are_named(edit, message):
    model, _ = fitted()
    content = model.rulebase_.to_dict()
    edit(content)
    with pytest.raises(ValueError, match=message):
        KANFISRegressor.from_rules(content)


def test_broken_json_names_its_line():
    with pytest.raises(ValueError, match="line 2, column 3"):
        KANFISRegressor.from_rules('{"a": 1,\n  b}')


@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")
@pytest.mark.parametrize("kind", ["gaussian", "triangle", "bell", "sigmoid", "trapezoid"])
@pytest.mark.parametrize("fuzzy", ["it2", "it2-mean"])
def test_compiled_c_gives_the_same_numbers(tmp_path, kind, fuzzy):
    model, X = fitted(membership=kind, fuzzy_type=fuzzy, n_interactions=1)
    model.export(tmp_path / "m.c")
    library = tmp_path / "m.so"
    subprocess.run(
        [
            "cc",
            "-std=c99",
            "-O1",
            "-Wall",
            "-Werror",
            "-shared",
            "-fPIC",
            "-o",
            str(library),
            str(tmp_path / "m.c"),
            "-lm",
        ],
        check=True,
    )
    function = ctypes.CDLL(str(library)).kanfis_predict
    rows = np.concatenate([X.to_numpy()[:50], 3 * X.to_numpy()[:20]])
    found = []
    for row in rows:
        x, out = (ctypes.c_double * len(row))(*row), (ctypes.c_double * 1)()
        function(x, out)
        found.append(out[0])
    assert np.allclose(found, model.predict(pd.DataFrame(rows, columns=X.columns)), atol=1e-6)


@pytest.mark.parametrize("fuzzy", ["it2", "it2-mean"])
def test_python_code_gives_the_same_numbers(fuzzy):
    model, X = fitted(True, missing="term", fuzzy_type=fuzzy)
    scope = {}
    exec(compile(model.export_code("python"), "rules", "exec"), scope)
    found = np.array([scope["predict"](row) for row in X.to_numpy()])
    assert np.allclose(found, model.rulebase_.scores(X.to_numpy()), atol=1e-10)


def test_sugeno_files_refuse_uncertain_means():
    model, _ = fitted(fuzzy_type="it2-mean")
    with pytest.raises(ValueError, match=r"uncertain mean, which \.fis and FCL do not know"):
        to_sugeno(model.rulebase_)


@pytest.mark.parametrize("changes", [{}, {"fuzzy_type": "it2"}, {"n_interactions": 1, "membership": "triangle"}])
def test_sugeno_system_and_fis_file_compute_the_same(changes):
    model, X = fitted(**changes)
    inside = model.partition_.clipped(X.to_numpy())
    system = to_sugeno(model.rulebase_)
    assert np.allclose(system.evaluate(inside)[:, 0], model.predict(X), atol=1e-8)
    again = read_fis(write_fis(system))
    assert again.rules == system.rules
    assert np.allclose(again.evaluate(inside), system.evaluate(inside), atol=1e-10)
    if "fuzzy_type" not in changes:
        assert np.allclose(read_fcl(write_fcl(system)).evaluate(inside), system.evaluate(inside), atol=1e-10)
    else:
        with pytest.raises(ValueError, match="no Type-2 sets"):
            write_fcl(system)


MATLAB = """[System]
Name='tip'
Type='sugeno'
NumInputs=2
AndMethod='prod'
OrMethod='max'
DefuzzMethod='wtaver'

[Input1]
Name='service'
Range=[0 10]
NumMFs=2
MF1='poor':'gaussmf',[1.5 0]
MF2='good':'trimf',[0 5 10]

[Input2]
Name='food'
Range=[0 10]
NumMFs=1
MF1='rancid':'trapmf',[0 0 1 3]

[Output1]
Name='tip'
Range=[0 30]
NumMFs=2
MF1='cheap':'constant',[5]
MF2='line':'linear',[1 2 3]

[Rules]
1 1, 1 (1) : 2
2 -1, 2 (0.5) : 1
"""


def test_matlab_s_sugeno_files():
    system = read_fis(MATLAB)
    x = np.array([[2.0, 2.0]])
    poor, good, rancid = math.exp(-0.5 * (2 / 1.5) ** 2), 0.4, 0.5
    f = np.array([max(poor, rancid), 0.5 * good * (1 - rancid)])
    expected = (f @ [5, 2 + 4 + 3]) / f.sum()
    assert float(system.evaluate(x)[0, 0]) == pytest.approx(expected)
    for old, new, message in (
        ("'sugeno'", "'mamdani'", "expected a Sugeno system"),
        ("'gaussmf'", "'foomf'", "line 13: expected a membership"),
        ("1 1, 1 (1) : 2", "1 1 1, 1 (1) : 2", "line 30: expected 2 inputs"),
        ("1 1, 1 (1) : 2", "3 1, 1 (1) : 2", "line 30: input 1 has 2 terms"),
        ("[1 2 3]", "[1 2]", "line 27: expected a constant or 3"),
        ("[1.5 0]", "[1.5]", "line 13"),
        ("Range=[0 30]", "hello", "line 24: not understood"),
    ):
        with pytest.raises(ValueError, match=message):
            read_fis(MATLAB.replace(old, new))


def test_type2_sugeno_by_karnik_mendel_is_that_of_enumeration():
    text = MATLAB.replace(
        "MF1='poor':'gaussmf',[1.5 0]", "MF1U='poor':'gaussmf',[1.5 0]\nMF1L='poor':'gaussmf',[1.0 0]"
    ).replace(" : 2", " : 1")
    system = read_fis(text)
    assert isinstance(system, SugenoSystem)
    assert system.type2
    x = np.array([[2.0, 2.0]])
    lower, upper = (f[0] for f in system.firing(x))
    c = system.consequents(x, 0)[0]
    values = [np.dot(f, c) / np.sum(f) for f in itertools.product(*zip(lower, upper, strict=True))]
    assert float(system.evaluate(x)[0, 0]) == pytest.approx((min(values) + max(values)) / 2)


def test_formats_and_their_files(tmp_path):
    model, _ = fitted()
    for suffix in (".txt", ".md", ".tex", ".json", ".pmml", ".fcl", ".fis", ".py", ".c"):
        path = model.export(tmp_path / f"r{suffix}")
        assert path.stat().st_size > 300
    assert "\\begin{tabular}" in (tmp_path / "r.tex").read_text()
    assert json.loads((tmp_path / "r.pmml").read_text())["RegressionTables"][0]["target"] == "target"
    with pytest.raises(ValueError, match="ends in"):
        model.export(tmp_path / "r.xls")
    with pytest.raises(FileNotFoundError):
        model.export(tmp_path / "no" / "r.json")
    assert len(list(tmp_path.iterdir())) == 9
    numbers = interpretability(model.rulebase_, load_diabetes().data)
    assert numbers["rules"] == len(model.rules())
    assert numbers["antecedents"] == 1
    assert 0 <= numbers["coverage"] <= 1
    assert isinstance(model.rulebase_, RuleBase)


# --- intervals and sets --------------------------------------------------------------------------------------------


def test_conformal_quantile_is_the_right_order_statistic():
    scores = np.arange(1.0, 20.0)[:, None]
    assert conformal_quantile(scores, 0.1)[0] == 18  # ceil(20 * 0.9)
    assert conformal_quantile(scores, 0.05)[0] == 19
    with pytest.raises(ValueError, match="needs at least 99 calibration rows, got 19"):
        conformal_quantile(scores, 0.01)


def test_intervals_cover_exchangeable_rows():
    r, inside = rng(), []
    X = r.normal(size=(300, 2))
    model = KANFISRegressor(fuzzy_type="it2").fit(X, X[:, 0] + r.normal(size=300))
    for _ in range(2000):
        Z = r.normal(size=(25, 2))
        y = Z[:, 0] + r.normal(size=25)
        low, high = model.calibrate(Z[:24], y[:24]).predict_interval(Z[24:], 0.2, "conformal_it2")
        inside.append(low[0] <= y[24] <= high[0])
    assert 0.8 - 0.03 < np.mean(inside) < 0.8 + 1 / 25 + 0.03


def test_sets_cover_and_probability_intervals_hold_the_probability():
    X, y = load_wine(return_X_y=True)
    covered, sizes = [], []
    for seed in range(10):
        a, b, c, d = train_test_split(X, y, test_size=0.4, random_state=seed, stratify=y)
        model = KANFISClassifier(calibration_fraction=0.3, fuzzy_type="it2", random_state=seed).fit(a, c)
        for method in ("lac", "aps"):
            sets = model.predict_set(b, 0.1, method)
            covered.append(sets[np.arange(len(b)), d].mean())
            sizes.append(sets.sum(1).mean())
        if seed == 0:
            low, high = model.predict_proba_interval(b)
            p = model.predict_proba(b)
            assert (low <= p + 1e-9).all()
            assert (p <= high + 1e-9).all()
    assert np.mean(covered) > 0.87
    with pytest.raises(ValueError, match=r"calibration_fraction=0\.25"):
        KANFISClassifier().fit(X, y).predict_set(X)
    with pytest.raises(ValueError, match=r"calibration_fraction=0\.25"):
        KANFISRegressor().fit(X, y).predict_interval(X)


# --- bad input -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"n_memberships": 0}, "n_memberships of at least 1, got 0"),
        ({"n_memberships": "many"}, "a number, a dict or 'auto'"),
        ({"n_rules": 0}, "n_rules of at least 1"),
        ({"membership": "cube"}, "membership of gaussian, triangle"),
        ({"fuzzy_type": "t3"}, "fuzzy_type of t1, it2"),
        ({"structure": "tree"}, "structure of term, paper"),
        ({"type_reduction": "km"}, "mask='softplus'"),
        ({"structure": "paper", "type_reduction": "km"}, "use mask='softplus'"),
        ({"n_layers": 2}, "needs structure='paper'"),
        ({"structure": "paper", "n_layers": 2, "n_rules": 1}, "n_rules of at least 2"),
        ({"alphas": [0.0]}, "alphas above 0"),
        ({"smooth": -1}, "smooth of at least 0"),
        ({"n_memberships": {"nose": 3}}, "no feature 'nose'"),
        ({"calibration_fraction": 1.0}, "calibration_fraction from 0"),
    ],
)
def test_bad_parameters(changes, message):
    X, y = diabetes()
    with pytest.raises(ValueError, match=message):
        KANFISRegressor(**changes).fit(X, y)


def test_one_class_one_row_and_far_rows():
    X = rng().normal(size=(20, 2))
    with pytest.raises(ValueError, match="only one class"):
        KANFISClassifier().fit(X, np.zeros(20))
    assert KANFISRegressor().fit(X[:2], [1.0, 2.0]).predict(X[:2]).shape == (2,)
    model = KANFISRegressor(verbose=1).fit(X, X[:, 0])
    with pytest.warns(UserWarning, match="1 of 2 rows lie outside"):
        far = model.predict(np.array([[1e6, 0.0], [0.0, 0.0]]))
    assert abs(far[0]) < 10
    free = KANFISRegressor(extrapolation="none").fit(X, X[:, 0])
    parts = free.contributions(np.array([[1e6, X[0, 1]]]))
    centre = free.rulebase_.centre[:3] @ free.coef_[:3, 0]
    assert parts[0, 0, 0] == pytest.approx(-centre)  # all memberships 0
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        KANFISRegressor().fit(X, X[:, 0]).predict(X * 9)
    labels = KANFISClassifier().fit(X, np.where(X[:, 0] > 0, "yes", "no"))
    assert set(labels.predict(X)) <= {"yes", "no"}


def test_grids_too_large_say_how_large():
    with pytest.raises(ValueError, match="3 memberships on 12 features has 531441 rules"):
        TSKRegressor(n_memberships=3).fit(rng().normal(size=(30, 12)), np.zeros(30))


@pytest.mark.parametrize("classifier", [False, True])
def test_baselines_learn(classifier):
    X, y = (load_iris if classifier else load_diabetes)(return_X_y=True)
    X = X[:, :4]
    found = {}
    for name, model in baselines(classifier, 4).items():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            predicted = model.fit(X, y).predict(X)
        found[name] = (predicted == y).mean() if classifier else 1 - ((predicted - y) ** 2).mean() / y.var()
    assert min(found.values()) > (0.85 if classifier else 0.2), found
