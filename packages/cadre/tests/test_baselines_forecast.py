"""Other methods find a linear chain; simulators are what they say; forecasters on series that they must predict."""

import numpy as np
import pytest

from cadre.baselines import BASELINES, notears, ridge_var
from cadre.forecast import (
    NETWORKS,
    climatology,
    fit_network,
    fit_persistence,
    fit_var,
    split_series,
    windows_of,
)
from cadre.latent_baselines import LATENT_BASELINES, varimax, varimax_pcmci
from cadre.metrics import forecast_errors, mean_correlation
from cadre.simulate import (
    EDGES,
    NOISES,
    confounded_er,
    er_graph,
    geographic,
    nonparametric_ts,
    observe,
    regimes,
    scale_free_graph,
)
from cadre.structure import is_dag

CHAIN = np.eye(4, k=-1)


@pytest.fixture(scope="module")
def chain():
    rng = np.random.default_rng(0)
    X = rng.laplace(size=(800, 4))
    for i in range(1, 4):
        X[:, i] += 0.9 * X[:, i - 1]
    return X


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", [n for n in BASELINES if n not in ("random", "correlation", "notears-mlp", "pcmci")])
def test_baselines_find_the_skeleton_of_a_chain(name, chain):
    found = BASELINES[name](chain)
    skeleton = found.adjacency | found.adjacency.T
    for i, j in found.undirected:
        skeleton[i, j] = skeleton[j, i] = True
    assert skeleton[CHAIN != 0].sum() >= 2
    assert np.triu(skeleton, 1).sum() <= 4


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["lingam", "var-lingam"])
def test_non_gaussian_methods_find_the_directions(name, chain):
    assert BASELINES[name](chain).compare(CHAIN).shd == 0


@pytest.mark.filterwarnings("ignore")
def test_methods_obey_masks_and_small_networks_train(chain):
    mask = CHAIN != 0
    for name in ("notears", "correlation", "pcmci"):
        assert not BASELINES[name](chain, mask=mask).adjacency[~mask].any()
    assert is_dag(BASELINES["notears-mlp"](chain[:200, :3]).adjacency)
    assert BASELINES["random"](chain, edges=3).adjacency.sum() == 3
    with pytest.raises(ValueError, match="constant series"):
        notears(np.ones((20, 2)))


def test_ridge_autoregression_finds_its_coefficients():
    rng = np.random.default_rng(0)
    A = np.array([[0.5, 0.3], [0.0, -0.4]])
    X = np.zeros((5000, 2))
    for t in range(1, 5000):
        X[t] = A @ X[t - 1] + rng.normal(size=2)
    np.testing.assert_allclose(ridge_var(X, 1)[0][0], A, atol=0.05)


@pytest.mark.parametrize("name", LATENT_BASELINES)
def test_latent_methods_give_as_many_latents_as_asked(name):
    D = confounded_er(300, 5, 2, 3, 0)
    options = {} if name == "pca" else {"steps": 20}
    if name == "ivae":
        with pytest.raises(ValueError, match="expects labels"):
            LATENT_BASELINES[name](D.x, 2)
        options["labels"] = np.arange(300) % 3
    found = LATENT_BASELINES[name](D.x, 2, **options)
    assert found.z.shape == (300, 3, 2)
    assert np.isfinite(found.z).all()


@pytest.mark.filterwarnings("ignore")
def test_varimax_makes_loadings_simple_again():
    rng = np.random.default_rng(0)
    simple = np.kron(np.eye(2), np.ones((4, 1))) * rng.uniform(0.8, 1.2, (8, 1))
    angle = 0.6
    turned = simple @ np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
    again = np.abs(turned @ varimax(turned))
    assert np.minimum(again[:, 0], again[:, 1]).max() < 0.05
    z, graph = varimax_pcmci(rng.normal(size=(200, 5)), 2)
    np.testing.assert_allclose(z.std(0), 1, atol=1e-6)
    assert graph.weights.shape == (2, 2)


def test_tdrl_finds_a_single_slow_driver():
    rng = np.random.default_rng(0)
    z = np.zeros((600, 3, 1))
    z[:, 0] = rng.normal(size=(600, 1))
    for t in (1, 2):
        z[:, t] = 0.9 * z[:, t - 1] + 0.4 * rng.normal(size=(600, 1))
    x = z @ np.ones((1, 4)) + 0.3 * rng.normal(size=(600, 3, 4))
    assert mean_correlation(LATENT_BASELINES["tdrl"](x, 1, steps=150).z, z) > 0.9


# --- simulators --------------------------------------------------------------------------------------------------


def test_generator_4_is_what_it_says():
    D = confounded_er(4000, 5, 2, 3, 1)
    assert is_dag(D.B)
    np.testing.assert_allclose(D.x - D.s, np.einsum("ntj,ij->nti", D.x, D.B), atol=1e-9)
    np.testing.assert_allclose(D.z.reshape(-1, 2).std(0), 1)
    weights = np.abs(D.B[D.B != 0])
    assert ((weights >= 0.6) & (weights <= 1.2)).all()
    residual = np.corrcoef(D.z[:, 0, 0], D.z[:, 0, 1])[0, 1]
    assert abs(residual) < 0.06
    assert np.corrcoef(D.z[:, 1, 0], D.z[:, 0, 0])[0, 1] > 0.5


def test_regimes_have_their_supports():
    shapes = {"independent": (3, 0), "sparse": (5, 1), "dense": (9, 3)}
    for regime, (lagged, instant) in shapes.items():
        D = regimes(regime, 50)
        assert (D.latent_lagged.sum(), D.latent_instant.sum()) == (lagged, instant)
    with pytest.raises(ValueError, match="independent, sparse, dense, got 'x'"):
        regimes("x", 5)
    with pytest.raises(ValueError, match="d_z must be at most d_x = 2, got 3"):
        confounded_er(5, 2, 3)


def test_the_official_generator_is_a_chain_with_domains():
    D = nonparametric_ts(50, domains=3)
    assert D.x.shape == (150, 4, 8)
    np.testing.assert_array_equal(D.domain, np.repeat([0, 1, 2], 50))
    np.testing.assert_allclose(D.x[..., 1:] - D.s[..., 1:], 0.2 * D.x[..., :-1], atol=1e-12)


def test_graph_families():
    rng = np.random.default_rng(0)
    mean = np.mean([(er_graph(10, rng, degree=2.0) != 0).sum() for _ in range(200)])
    assert mean == pytest.approx(20, rel=0.1)
    hubs = scale_free_graph(60, rng)
    assert is_dag(hubs)
    assert (hubs != 0).sum() == 59
    assert (hubs != 0).sum(0).max() > 5
    lat, lon = np.repeat([-10.0, 0, 10], 4), np.tile([170.0, 180, 190, 200], 3)
    D, (u, v) = geographic(20, lat, lon)
    assert is_dag(D.B)
    assert u.shape == v.shape == (12,)


@pytest.mark.parametrize("edges", EDGES)
@pytest.mark.parametrize("noise", NOISES)
def test_mechanisms_keep_to_the_graph(edges, noise):
    B = np.array([[0, 0, 0], [0.8, 0, 0], [0, 0, 0]])
    z = np.random.default_rng(0).normal(size=(2000, 1))
    x, s = observe(z, B, np.random.default_rng(1), edges=edges, noise=noise)
    np.testing.assert_array_equal(x[:, [0, 2]], s[:, [0, 2]])
    assert np.abs(x[:, 1] - s[:, 1]).max() > 0.1
    with pytest.raises(ValueError, match="got 'x'"):
        observe(z, B, np.random.default_rng(1), edges="x")


# --- forecasts ---------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def seasonal():
    rng = np.random.default_rng(0)
    t = np.arange(700)
    X = np.stack([np.sin(2 * np.pi * t / 12 + k) for k in range(2)], 1) + 0.1 * rng.normal(size=(700, 2))
    return split_series(X, 24)


@pytest.mark.parametrize("name", NETWORKS)
def test_networks_learn_a_season(name, seasonal):
    past, future = windows_of(seasonal.test, 24, 6)
    forecast = fit_network(name, seasonal, 24, 6)
    naive = forecast_errors(fit_persistence(seasonal.train, 24, 6)(past), future)[0]
    assert forecast_errors(forecast(past), future)[0] < 0.25 * naive


def test_autoregressions_and_climatologies_are_exact_where_they_can_be():
    t = np.arange(300)
    X = np.stack([np.cos(2 * np.pi * t / 12), np.sin(2 * np.pi * t / 12)], 1)
    past, future = windows_of(X, 12, 5)
    np.testing.assert_allclose(fit_var(X, 12, 5, ridge=1e-10)(past), future, atol=1e-5)
    np.testing.assert_allclose(climatology(X[:200], 12)(t), X, atol=1e-9)


def test_splits_see_the_training_part_alone():
    X = np.random.default_rng(0).normal(size=(300, 2))
    moved = X.copy()
    moved[250:] += 50
    a, b = split_series(X, 10), split_series(moved, 10)
    np.testing.assert_array_equal(a.train, b.train)
    np.testing.assert_array_equal(a.mean, b.mean)
    assert len(a.test) == 300 - 240 + 10
    with pytest.raises(ValueError, match="for lookback 96, got 100"):
        split_series(X[:100], 96)
