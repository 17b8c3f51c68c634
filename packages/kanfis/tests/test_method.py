"""Memberships, type reduction, the paper's network and closed-form fits against enumeration, loops and other libraries."""

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional as F

from kanfis import membership as mf
from kanfis.layers import (
    MASKS,
    MEMBERSHIPS,
    KANFISLayer,
    KANFISNet,
    convert_official_state_dict,
    distinctness_penalty,
    entropy_penalty,
    inverse_softplus,
)
from kanfis.membership import Partition, Term, labels_of, weighted_quantiles
from kanfis.solve import (
    ALPHAS,
    Moments,
    choose_features,
    constrained,
    content_folds,
    group_lasso,
    leave_one_out,
    logistic,
    ridge,
    smoothness,
)
from kanfis.typereduce import interval_hull, karnik_mendel, nie_tan

number = st.floats(-5, 5)
width = st.floats(0.05, 5)

# --- memberships ---------------------------------------------------------------------------------------------------


@settings(deadline=None)
@given(number, number, width, st.floats(0, 3))
def test_lower_memberships_are_never_above_upper_ones(x, c, s, more):
    X = np.array([x])
    pairs = [
        mf.it2_gaussian(X, c, s, s + more),
        mf.it2_bell(X, c, s, s + more, 1.7),
        mf.it2_triangle(X, c, s, s + more),
        mf.it2_gaussian_mean(X, c, c + more, s),
        Term("trapezoid", c, s, s, s + more).bounds(X),
        Term("sigmoid", c, s, s, s + more).bounds(X),
    ]
    for lower, upper in pairs:
        assert 0 <= lower[0] <= upper[0] + 1e-15
        assert upper[0] <= 1


@pytest.mark.parametrize("kind", ["gaussian", "triangle", "bell", "sigmoid", "trapezoid"])
def test_uncertain_means_are_the_extremes_over_all_centres_between(kind):
    term = Term(kind, 0.3, 0.8, power=1.4, shift=0.5)
    x = np.linspace(-3, 3, 241)
    every = np.array([Term(kind, c, 0.8, power=1.4)(x) for c in np.linspace(-0.2, 0.8, 1001)])
    lower, upper = term.bounds(x)
    assert np.allclose(lower, every.min(0), atol=1e-12)
    assert np.allclose(upper, every.max(0), atol=2e-3)
    assert np.allclose(term(x), (lower + upper) / 2)
    assert term.type2
    assert [float(v[0]) for v in term.bounds(np.array([np.nan]))] == [0, 0]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (mf.gaussian(np.array(1.0), 0.0, 1.0), math.exp(-0.5)),
        (mf.triangle(np.array(0.5), 0.0, 2.0), 0.75),
        (mf.bell(np.array(3.0), 1.0, 2.0, 2.0), 0.5),
        (mf.sigmoid(np.array(2.0), 1.0, 3.0), 1 / (1 + math.exp(-3))),
        (mf.trapezoid(np.array(0.5), 0.0, 1.0, 2.0, 3.0), 0.5),
        (mf.trapezoid(np.array(2.75), 0.0, 1.0, 2.0, 3.0), 0.25),
        (mf.trapezoid(np.array(1.0), 1.0, 1.0, 1.0, 1.0), 1.0),
        (mf.trapezoid(np.array(1.1), 1.0, 1.0, 1.0, 1.0), 0.0),
        (mf.singleton(np.array(2.0), 2.0), 1.0),
    ],
)
def test_memberships_at_known_points(value, expected):
    assert float(value) == pytest.approx(expected, abs=1e-12)


def test_type2_of_equal_widths_is_type1():
    x = np.linspace(-3, 3, 50)
    assert np.array_equal(Term("gaussian", 0.3, 1.2, 1.2, 1.2)(x), Term("gaussian", 0.3, 1.2)(x))
    X = np.random.default_rng(0).normal(size=(40, 3))
    one = Partition.from_quantiles(X, 3)
    two = Partition.from_quantiles(X, 3, fuzzy_type="it2", spread=0.0)
    assert np.allclose(one.basis(X), two.basis(X), atol=1e-15)


def test_partition_of_quantiles_levels_and_missing_values():
    rng = np.random.default_rng(0)
    X = np.c_[rng.normal(size=200), rng.integers(0, 2, 200), np.full(200, 7.0), rng.normal(size=200)]
    X[::10, 3] = np.nan
    found = Partition.from_quantiles(X, 3, missing=True)
    assert found.sizes.tolist() == [3, 2, 1, 4]
    assert [t.kind for t in found.terms[1]] == ["singleton", "singleton"]
    assert found.labels()[0] == ["low", "medium", "high"]
    assert found.labels()[3][-1] == "missing"
    mu = found.basis(X)
    assert mu[0, -1] == 1  # missing
    assert mu[0, 6:9].tolist() == [0, 0, 0]
    assert mu[1, -1] == 0
    far = X[:1].copy()
    far[0, 0] = 1e9
    assert np.array_equal(found.basis(far)[0, :3], found.basis(np.array([[X[:, 0].max(), 0, 7, 0.0]]))[0, :3])
    assert found.outside(far) == 1
    assert found.relabel(0, ["cold", "mild", "hot"]).labels()[0] == ["cold", "mild", "hot"]
    with pytest.raises(ValueError, match="expected 3 words"):
        found.relabel(0, ["a"])
    for bad, message in (({"n_terms": 0}, "at least one term"), ({"kind": "cube"}, "membership of gaussian"), ({"spread": 1.0}, "spread"),
                         ({"fuzzy_type": "t3"}, "fuzzy type")):  # fmt: skip
        with pytest.raises(ValueError, match=message):
            Partition.from_quantiles(X, **{"missing": True, **bad})


def test_words_by_rank():
    assert labels_of([1, 2]) == ["low", "high"]
    assert labels_of(range(5))[0] == "very low"
    assert labels_of(range(6))[3] == "about 3"


def test_weighted_quantiles_are_those_of_repeated_rows():
    rng = np.random.default_rng(0)
    x, w = rng.normal(size=30), rng.integers(1, 4, 30)
    q = np.linspace(0.02, 0.98, 7)
    assert np.array_equal(weighted_quantiles(x, w, q), weighted_quantiles(np.repeat(x, w), np.ones(w.sum()), q))


# --- type reduction ------------------------------------------------------------------------------------------------


def test_karnik_mendel_of_the_spec():
    c, lo, up = np.array([1.0, 2, 3, 7]), np.array([0.1, 0.2, 0.3, 0.05]), np.array([0.5, 0.6, 0.9, 0.4])
    assert karnik_mendel(c, lo, up) == pytest.approx((2.0344827586, 4.2), abs=1e-9)
    assert float(nie_tan(c, lo, up)) == pytest.approx(2.9344262295, abs=1e-9)


@settings(max_examples=200, deadline=None)
@given(st.integers(1, 8), st.integers(0, 10**6))
def test_karnik_mendel_is_the_extreme_of_all_vertices(n, seed):
    rng = np.random.default_rng(seed)
    c = rng.normal(size=n).round(1)
    up = rng.uniform(0, 1, n)
    lo = up * rng.uniform(0, 1, n) * (rng.random(n) < 0.8)
    vertices = np.array([np.where(pick, up, lo) for pick in itertools.product([False, True], repeat=n)])
    total = vertices.sum(1)
    values = (vertices @ c)[total > 0] / total[total > 0]
    left, right = karnik_mendel(c, lo, up)
    assert left == pytest.approx(values.min(), abs=1e-9)
    assert right == pytest.approx(values.max(), abs=1e-9)
    assert left - 1e-9 <= nie_tan(c, lo, up) <= right + 1e-9


def test_karnik_mendel_is_that_of_pyit2fls_and_of_torch():
    pyit2fls = pytest.importorskip("pyit2fls")
    rng = np.random.default_rng(0)
    for _ in range(50):
        n = int(rng.integers(2, 9))
        c, up = np.sort(rng.normal(size=n)), rng.uniform(0.1, 1, n)
        lo = up * rng.uniform(0.1, 1, n)
        ours = karnik_mendel(c, lo, up)
        assert ours == pytest.approx(pyit2fls.EIASC_algorithm(np.stack([c, c, lo, up], 1)), abs=1e-9)
        t = karnik_mendel(*(torch.from_numpy(v) for v in (c, lo, up)))
        assert [float(v) for v in t] == pytest.approx(ours, abs=1e-12)


def test_karnik_mendel_gradient_and_batches():
    g = torch.Generator().manual_seed(0)
    c = torch.randn(3, 5, dtype=torch.float64, generator=g).requires_grad_()
    up = (0.2 + torch.rand(4, 1, 5, dtype=torch.float64, generator=g)).requires_grad_()
    assert torch.autograd.gradcheck(lambda a, b: karnik_mendel(a, 0.4 * b, b), (c, up))
    assert karnik_mendel(c, 0.4 * up, up)[0].shape == (4, 3)
    with torch.no_grad():
        one = karnik_mendel(c.numpy(), 0.4 * up.numpy(), up.numpy())
    assert np.allclose(
        one[1][2, 1],
        karnik_mendel(c[1].detach().numpy(), 0.4 * up[2, 0].detach().numpy(), up[2, 0].detach().numpy())[1],
    )


def test_nothing_fires_and_bad_firings():
    assert karnik_mendel(np.array([1.0, 3.0]), np.zeros(2), np.zeros(2)) == (2.0, 2.0)
    assert float(nie_tan(np.array([1.0, 3.0]), np.zeros(2), np.zeros(2))) == 2.0
    with pytest.raises(ValueError, match="no negative firing"):
        karnik_mendel(np.ones(2), np.array([-0.1, 0]), np.ones(2))
    with pytest.raises(ValueError, match="one shape"):
        karnik_mendel(np.ones(3), np.zeros(2), np.ones(2))


@settings(deadline=None)
@given(st.integers(0, 10**6))
def test_the_hull_is_tight(seed):
    rng = np.random.default_rng(seed)
    lower = rng.uniform(0, 0.5, (1, 6))
    upper, w = lower + rng.uniform(0, 0.5, (1, 6)), rng.normal(size=(6, 2))
    low, high = interval_hull(lower, upper, w)
    vertices = np.array([np.where(pick, upper, lower)[0] for pick in itertools.product([False, True], repeat=6)]) @ w
    assert np.allclose(low[0], vertices.min(0))
    assert np.allclose(high[0], vertices.max(0))


# --- the network ---------------------------------------------------------------------------------------------------


def layer(**changes):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        made = KANFISLayer(**{"in_features": 3, "n_rules": 2, "n_memberships": 2, **changes}).double()
        for p in made.parameters():
            p.data = p.data + 0.3 * torch.randn_like(p)
    return made.eval()


@pytest.mark.parametrize("kind", MEMBERSHIPS)
@pytest.mark.parametrize("fuzzy", ["t1", "it2"])
def test_layer_is_the_triple_loop(kind, fuzzy):
    net = layer(membership=kind, fuzzy_type=fuzzy)
    x = torch.randn(4, 3, dtype=torch.float64)
    lo, up = (w.detach().numpy() for w in net.widths())
    c, m = net.centers.detach().numpy(), net.mask.detach().numpy()
    beta = (F.softplus(net.slopes_raw) + 0.5).detach().numpy() if kind == "bell" else None

    def mu(v, i, j, k, s):
        if kind == "gaussian":
            return mf.gaussian(v, c[i, j, k], s)
        if kind == "sigmoid":
            return mf.sigmoid(v, c[i, j, k], s)
        if kind == "triangle":
            return mf.triangle(v, c[i, j, k], s)
        return mf.bell(v, c[i, j, k], s, beta[i, j, k])

    expected = np.zeros((4, 2))
    for b, j in itertools.product(range(4), range(2)):
        for i, k in itertools.product(range(3), range(2)):
            v = float(x[b, i])
            expected[b, j] += m[i, j] * (mu(v, i, j, k, lo[i, j, k]) + mu(v, i, j, k, up[i, j, k])) / 2
    assert np.allclose(net(x).detach().numpy(), expected, atol=1e-9 if kind == "bell" else 1e-12)
    low, high = (v.detach().numpy() for v in net.forward_interval(x))
    assert (low <= expected + 1e-9).all()
    assert (expected <= high + 1e-9).all()


@pytest.mark.parametrize("kind", MEMBERSHIPS)
@pytest.mark.parametrize("fuzzy", ["t1", "it2", "it2-mean"])
def test_gradients_of_every_membership(kind, fuzzy):
    net = layer(membership=kind, fuzzy_type=fuzzy)
    x = torch.randn(3, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    names = [n for n, _ in net.named_parameters()]

    def run(*values):
        return torch.func.functional_call(net, dict(zip(names, values, strict=True)), (x,))

    assert torch.autograd.gradcheck(
        run, tuple(p.detach().clone().requires_grad_() for p in net.parameters()), atol=1e-5
    )


def test_parameter_counts_and_linear_growth():
    def count(**kw):
        return sum(p.numel() for p in KANFISNet(4, 8, 3, **kw).parameters())

    assert count() == 251
    assert count(fuzzy_type="it2") == count(fuzzy_type="it2-mean") == 347


def test_entropy_and_distinctness():
    assert float(entropy_penalty(torch.ones(7, 3))) == pytest.approx(math.log(7), abs=1e-6)
    assert float(entropy_penalty(torch.eye(4))) == pytest.approx(0, abs=1e-6)
    h = torch.randn(20, 1)
    assert float(distinctness_penalty(torch.cat([h, 2 * h, -h], 1))) == pytest.approx(1, abs=1e-6)
    assert float(distinctness_penalty(torch.eye(3))) == 0
    assert float(distinctness_penalty(h)) == 0


def test_type2_of_no_difference_is_type1_and_blocks_agree(monkeypatch):
    one = layer()
    two = layer(fuzzy_type="it2")
    two.centers.data, two.mask.data = one.centers.data, one.mask.data
    two.lower_widths_raw.data = one.widths_raw.data
    two.width_differences_raw.data.fill_(-60.0)
    x = torch.randn(50, 3, dtype=torch.float64)
    assert torch.allclose(one(x), two(x), atol=1e-4)  # the floor of 1e-5 remains
    whole = one(x)
    monkeypatch.setattr("kanfis.layers.BUDGET", 100)
    assert torch.allclose(one(x), whole, atol=1e-14)


@pytest.mark.parametrize("mask", MASKS)
def test_masks(mask):
    net = layer(mask=mask)
    found = net.effective_mask()
    if mask == "softmax":
        assert torch.allclose(found.sum(0), torch.ones(2, dtype=torch.float64))
    if mask != "linear":
        assert float(found.detach().min()) >= 0
    if mask == "hard_concrete":
        net.mask.data.fill_(-10.0)
        assert float(net.effective_mask().detach().max()) == 0
        assert float(net.expected_open().detach().max()) < 1e-3
    assert float(F.softplus(torch.tensor(inverse_softplus(50.0)))) == pytest.approx(50)
    assert float(F.softplus(torch.tensor(inverse_softplus(0.3)))) == pytest.approx(0.3, rel=1e-5)


def test_karnik_mendel_network_is_between_its_consequents():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        net = KANFISNet(3, 4, 2, fuzzy_type="it2", mask="softplus", type_reduction="km").double()
    x = torch.randn(10, 3, dtype=torch.float64)
    out, firing = net(x, return_firing=True)
    c = net.final_layer.weight + net.final_layer.bias[:, None]
    assert bool((out <= c.amax(1) + 1e-9).all())
    assert bool((out >= c.amin(1) - 1e-9).all())
    assert firing.shape == (10, 4)
    with pytest.raises(ValueError, match="mask='softplus'"):
        KANFISNet(3, 4, 2, type_reduction="km")
    with pytest.raises(ValueError, match="at least 2 rules"):
        KANFISNet(3, 1, 2, n_layers=2)
    with pytest.raises(ValueError, match=r"shape \(B, 3\), got \(2, 5\)"):
        layer()(torch.zeros(2, 5, dtype=torch.float64))
    for bad, message in (({"membership": "cube"}, "membership of gaussian"), ({"fuzzy_type": "t3"}, "t1, it2, it2-mean"), ({"mask": "x"}, "mask of"),
                         ({"n_rules": 0}, "n_rules of at least 1")):  # fmt: skip
        with pytest.raises(ValueError, match=message):
            layer(**bad)


def test_official_checkpoints_load():
    net = KANFISNet(4, 8, 3, fuzzy_type="it2")
    state = {
        f"fuzzy_layer.{n.split('.', 2)[2]}" if n.startswith("layers.0.") else n: v for n, v in net.state_dict().items()
    }
    fresh = KANFISNet(4, 8, 3, fuzzy_type="it2")
    fresh.load_state_dict(convert_official_state_dict(state))
    x = torch.randn(5, 4)
    assert torch.equal(fresh(x), net(x))
    with pytest.raises(ValueError, match=r"unknown tensor 'foo\.bar'"):
        convert_official_state_dict({"foo.bar": torch.zeros(1)})
    with pytest.raises(ValueError, match="expected centres of shape"):
        convert_official_state_dict({"layer.mask": torch.zeros(4, 8), "layer.centers": torch.zeros(4, 7, 3)})


# --- closed-form fits ----------------------------------------------------------------------------------------------


def problem(seed=0, n=60, m=7, outputs=2):
    rng = np.random.default_rng(seed)
    Phi, Y, w = rng.normal(size=(n, m)), rng.normal(size=(n, outputs)), rng.uniform(0.5, 2, n)
    return Phi, Y, w, Moments.of(lambda x: x, Phi, Y, w, m)


@pytest.mark.parametrize("amount", [0.0, 3.0])
def test_ridge_is_at_the_minimum(amount):
    Phi, Y, w, moments = problem()
    penalty = smoothness([4, 3], [True, True], amount)
    fit = ridge(moments, np.arange(7), np.array([2.0]), penalty)
    residual = Y - Phi @ fit.coef - fit.intercept
    assert np.allclose(Phi.T @ (w[:, None] * residual), 2.0 * penalty @ fit.coef, atol=1e-8)
    assert np.allclose(w @ residual, 0, atol=1e-8)


def test_leave_one_out_is_brute_force():
    Phi, Y, w, moments = problem(n=25)
    columns = np.arange(7)
    fit = ridge(moments, columns, ALPHAS, None, leave_one_out(lambda x: x, Phi, Y, w, moments, columns, ALPHAS))
    variance = moments.square - moments.weight * moments.means[1] ** 2
    expected = []
    for alpha in ALPHAS:
        total = 0.0
        for i in range(25):
            rest = np.arange(25) != i
            left = ridge(Moments.of(lambda x: x, Phi[rest], Y[rest], w[rest], 7), columns, np.array([alpha]))
            total += float((w[i] * (Y[i] - Phi[i] @ left.coef - left.intercept) ** 2 / variance).sum()) / 2
        expected.append(total)
    assert np.allclose(fit.scores, expected, rtol=1e-6)
    assert fit.alpha == ALPHAS[int(np.argmin(expected))]


def test_gcv_is_its_definition_and_moments_add_up():
    Phi, Y, w, moments = problem()
    fit = ridge(moments, np.arange(7), ALPHAS)
    W = w.sum()
    centred = Phi - np.average(Phi, axis=0, weights=w)
    variance = moments.square - moments.weight * moments.means[1] ** 2
    for alpha, score in zip(ALPHAS[::6], fit.scores[::6], strict=True):
        S = centred @ np.linalg.solve(centred.T @ (w[:, None] * centred) + alpha * np.eye(7), centred.T * w)
        one = ridge(moments, np.arange(7), np.array([alpha]))
        rss = (w[:, None] * (Y - Phi @ one.coef - one.intercept) ** 2).sum(0)
        assert score == pytest.approx(float((rss / variance).mean()) / (1 - (1 + np.trace(S)) / W) ** 2, rel=1e-8)
    parts = Moments.of(lambda x: x, Phi[:20], Y[:20], w[:20], 7) + Moments.of(lambda x: x, Phi[20:], Y[20:], w[20:], 7)
    assert np.allclose(parts.gram, moments.gram)


def test_constrained_fit_meets_its_optimality_conditions():
    _Phi, _Y, _w, moments = problem(outputs=1)
    S = np.random.default_rng(1).normal(size=(5, 7))
    fit = constrained(moments, np.arange(7), 1.0, S)
    slack = S @ fit.coef[:, 0]
    assert slack.min() > -1e-7
    free = ridge(moments, np.arange(7), np.array([1.0]))
    if (S @ free.coef[:, 0]).min() < 0:
        assert slack.min() < 1e-6  # some constraint holds with equality
    gram, cross, _ = moments.centred(np.arange(7))
    gradient = (gram + np.eye(7)) @ fit.coef[:, 0] - cross[:, 0]
    active = S[slack < 1e-6]
    multipliers = np.linalg.lstsq(active.T, gradient, rcond=None)[0]
    assert np.allclose(active.T @ multipliers, gradient, atol=1e-5)
    assert multipliers.min() > -1e-6


@pytest.mark.parametrize("classes", [2, 3, 9])
def test_logistic_is_at_the_minimum(classes, monkeypatch):
    if classes == 9:
        monkeypatch.setattr("kanfis.solve.NEWTON", 10)  # L-BFGS
    rng = np.random.default_rng(0)
    Phi, codes, w = rng.normal(size=(120, 4)), rng.integers(0, classes, 120), rng.uniform(0.5, 2, 120)
    Y = np.eye(classes)[codes]
    fit = logistic(Phi, Y, w, np.arange(4), np.array([0.7]))
    logits = Phi @ fit.coef + fit.intercept
    p = np.exp(logits - logits.max(1, keepdims=True))
    p /= p.sum(1, keepdims=True)
    assert np.allclose(Phi.T @ (w[:, None] * (Y - p)), 0.7 * fit.coef, atol=1e-3 if classes == 9 else 1e-6)
    assert np.allclose(w @ (Y - p), 0, atol=1e-3 if classes == 9 else 1e-6)


def test_logistic_is_scikit_learn_s():
    from sklearn.linear_model import LogisticRegression

    rng = np.random.default_rng(0)
    Phi = rng.normal(size=(150, 5))
    y = (Phi[:, 0] + rng.normal(size=150) > 0).astype(int) + (Phi[:, 1] > 1)
    ours = logistic(Phi, np.eye(3)[y], np.ones(150), np.arange(5), np.array([2.0]))
    theirs = LogisticRegression(C=0.5, tol=1e-10, max_iter=5000).fit(Phi, y)
    assert np.allclose(ours.coef.T, theirs.coef_ - theirs.coef_.mean(0), atol=1e-4)


def test_folds_depend_on_content_only():
    rng = np.random.default_rng(0)
    Phi, codes = rng.uniform(size=(300, 6)), rng.integers(0, 3, 300)
    folds = content_folds(Phi, codes, 5)
    order = rng.permutation(300)
    assert np.array_equal(content_folds(Phi[order], codes[order], 5), folds[order])
    assert np.bincount(folds, minlength=5).min() > 30


def test_group_lasso_is_at_the_minimum():
    rng = np.random.default_rng(0)
    groups = [np.arange(3 * g, 3 * g + 3) for g in range(5)]
    Z = rng.normal(size=(200, 15))
    for g in groups:  # whitened blocks
        Z[:, g] = np.linalg.qr(Z[:, g] - Z[:, g].mean(0))[0] * np.sqrt(200)
    R = rng.normal(size=(200, 2)) + Z[:, :2]
    gram, cross, lam = Z.T @ Z / 200, Z.T @ R / 200, 0.1
    theta = group_lasso(gram, cross, groups, lam, np.zeros((15, 2)))
    gradient = gram @ theta - cross
    for g in groups:
        norm = np.linalg.norm(theta[g])
        if norm > 0:
            assert np.allclose(gradient[g], -lam * np.sqrt(3) * theta[g] / norm, atol=1e-5)
        else:
            assert np.linalg.norm(gradient[g]) <= lam * np.sqrt(3) + 1e-6


def test_group_lasso_keeps_what_matters():
    rng = np.random.default_rng(0)
    Phi = rng.normal(size=(300, 30))
    Y = (Phi[:, :3] @ [1.0, 1.0, -1.0] + 0.5 * rng.normal(size=300))[:, None]
    groups = [np.arange(3 * g, 3 * g + 3) for g in range(10)]
    kept, path = choose_features(Phi, Y, np.ones(300), groups, np.random.default_rng(1))
    assert kept.tolist() == [True] + [False] * 9
    assert path["features"][0] <= path["features"][-1]
    with pytest.raises(ValueError, match="at least 10 rows, got 5"):
        choose_features(Phi[:5], Y[:5], np.ones(5), groups, rng)
