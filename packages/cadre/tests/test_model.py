"""Densities, Jacobians, inverses and bounds of the networks against autograd, scipy and quadrature."""

import numpy as np
import pytest
import torch
from scipy.stats import kstest, multivariate_normal, norm

from cadre.model import CaDRe, LatentDynamics, MonotoneSpline, ObservedFlow, ParallelMLP
from cadre.simulate import er_graph

G = torch.Generator


def seeded(seed=0):
    return G().manual_seed(seed)


def randomised(module, scale=0.5, seed=1):
    with torch.no_grad():
        for p in module.parameters():
            p.add_(scale * torch.randn(p.shape, generator=seeded(seed)).to(p.dtype))
    return module


@pytest.mark.parametrize(("layers", "out"), [(1, 1), (2, 1), (3, 2)])
def test_the_sweep_is_autograds_jacobian(layers, out):
    mask = torch.rand(4, 6, generator=seeded()) < 0.7
    nets = randomised(ParallelMLP(4, 6, 8, layers, out, mask, seeded())).double()
    u = torch.randn(5, 6, dtype=torch.float64, generator=seeded(2))
    values, J = nets.with_jacobian(u)
    torch.testing.assert_close(values, nets(u))
    exact = torch.stack([torch.autograd.functional.jacobian(lambda x: nets(x[None])[0], row) for row in u])
    torch.testing.assert_close(J, exact, atol=1e-6, rtol=1e-6)
    step = 1e-6 * torch.eye(6, dtype=torch.float64)[3]
    slope = (nets(u + step) - nets(u - step)) / 2e-6
    torch.testing.assert_close(J[..., 3], slope, atol=1e-6, rtol=1e-5)
    assert (J[:, :, 0][:, ~mask] == 0).all()


def test_flow_likelihood_is_scipys_for_a_linear_gaussian_model():
    rng = np.random.default_rng(0)
    B = er_graph(5, rng)
    for matrix in (B, 0.3 * rng.normal(size=(5, 5)) * (1 - np.eye(5))):  # also with cycles
        flow = ObservedFlow(5, 0, 8, 2, torch.as_tensor(matrix != 0), mixture=1).double()
        with torch.no_grad():
            for p in flow.parameters():
                p.zero_()
            flow.nets.linear[:, 0] = torch.as_tensor(matrix)
            flow.log_scale.copy_(torch.as_tensor(np.log([0.5, 1, 2, 1, 0.7])))
        x = torch.as_tensor(rng.normal(size=(50, 5)))
        M = np.linalg.inv(np.eye(5) - matrix)
        exact = multivariate_normal(np.zeros(5), M @ np.diag(np.exp(2 * flow.log_scale.detach().numpy())) @ M.T)
        log_p, J = flow(x, x[:, :0])
        np.testing.assert_allclose(log_p.detach().numpy(), exact.logpdf(x.numpy()), atol=1e-10)
        np.testing.assert_allclose(J.detach().numpy(), np.broadcast_to(matrix, (50, 5, 5)), atol=1e-14)


def test_flow_density_integrates_to_one():
    """d = 2, nonlinear, with splines, a mixture and latents."""
    mask = torch.tensor([[0, 0], [1, 0]], dtype=torch.bool)
    flow = randomised(ObservedFlow(2, 1, 4, 1, mask, post_nonlinear=True, generator=seeded()), 0.2).double()
    grid = torch.linspace(-30, 30, 501, dtype=torch.float64)
    x = torch.cartesian_prod(grid, grid)
    with torch.no_grad():
        log_p, _ = flow(x, torch.full((len(x), 1), 0.4, dtype=torch.float64))
    mass = float(torch.exp(log_p).sum() * (grid[1] - grid[0]) ** 2)
    assert mass == pytest.approx(1, abs=5e-3)


@pytest.mark.parametrize("instant", ["none", "lower", "learned"])
def test_prior_density_integrates_to_one(instant):
    prior = randomised(LatentDynamics(2, 1, 8, 2, instant, 0, seeded()), 0.2).double().eval()
    if instant == "learned":
        with torch.no_grad():
            prior.mask_logits.copy_(torch.tensor([[-1.0, -1.0], [1.0, -1.0]]))
    grid = torch.linspace(-15, 15, 301, dtype=torch.float64)
    now = torch.cartesian_prod(grid, grid)
    z = torch.stack([torch.tensor([0.3, -1.0], dtype=torch.float64).expand(len(now), 2), now], dim=1)
    with torch.no_grad():
        log_p = prior(z).log_p[:, 1].sum(-1)
    assert float(torch.exp(log_p).sum() * (grid[1] - grid[0]) ** 2) == pytest.approx(1, abs=2e-3)


def test_prior_is_a_gaussian_autoregression_when_linear():
    prior = LatentDynamics(1, 1, 4, 1)
    with torch.no_grad():
        for p in prior.parameters():
            p.zero_()
        prior.nets.linear[0, 0, 0] = 0.8
        prior.nets.last_bias[0, 1] = np.log(0.6)
    z = torch.tensor([[[0.5], [1.0], [-0.3]]])
    found = prior(z, None, True)
    expected = [norm.logpdf(0.5), norm.logpdf(1.0, 0.4, 0.6), norm.logpdf(-0.3, 0.8, 0.6)]
    np.testing.assert_allclose(found.log_p[0, :, 0].detach().numpy(), expected, rtol=1e-5)
    np.testing.assert_allclose(found.lagged.detach().numpy(), 0.8, rtol=1e-6)


@pytest.mark.parametrize("instant", ["none", "lower"])
def test_latent_steps_invert_the_noise_and_their_jacobian_is_that_of_f(instant):
    prior = randomised(LatentDynamics(3, 2, 8, 2, instant, 2, seeded()), 0.3).double()
    z = torch.randn(6, 4, 3, dtype=torch.float64, generator=seeded(3))
    domain = torch.tensor([0, 1, 0, 1, 0, 1])
    with torch.no_grad():
        found = prior(z, domain, True)
        past = torch.stack([z[:, 2], z[:, 1]], dim=1)
        again = prior.step(past, found.eps[:, 3], domain)
    torch.testing.assert_close(again, z[:, 3], atol=1e-6, rtol=1e-6)

    def f(past):
        return prior.step(past[None], found.eps[:1, 3], domain[:1])[0]

    J = torch.autograd.functional.jacobian(f, past[0])  # (k, L, k), total derivative
    instant_part = found.instant.view(6, 2, 3, 3)[0, 1]
    direct = found.lagged.view(6, 2, 3, 2, 3)[0, 1]
    total = torch.linalg.solve(torch.eye(3, dtype=torch.float64) - instant_part, direct.reshape(3, -1)).view(3, 2, 3)
    torch.testing.assert_close(J, total.detach(), atol=1e-8, rtol=1e-6)


def test_splines_are_monotone_invertible_and_know_their_slope():
    spline = randomised(MonotoneSpline(3), 1.0).double()
    x = torch.linspace(-7, 7, 500, dtype=torch.float64)[:, None].repeat(1, 3)
    y, log_slope = spline(x)
    assert (torch.diff(y, dim=0) > 0).all()
    torch.testing.assert_close(spline.inverse(y), x, atol=1e-8, rtol=1e-8)
    h = 1e-6
    slope = (spline(x + h)[0] - spline(x - h)[0]) / (2 * h)
    assert float((torch.exp(log_slope) - slope).detach().abs().median()) < 1e-6


def test_sampling_then_encoding_gives_the_noise_back():
    mask = torch.as_tensor(er_graph(4, np.random.default_rng(1)) != 0)
    flow = randomised(ObservedFlow(4, 1, 8, 2, mask, post_nonlinear=True, generator=seeded()), 0.2).double()
    z = torch.randn(2000, 1, dtype=torch.float64, generator=seeded(2))
    with torch.no_grad():
        eps = flow.sample_noise(2000, seeded(4)).double()
        x = flow.generate(z, eps)
        torch.testing.assert_close(flow.residual(x, z), eps, atol=1e-6, rtol=1e-6)
    gaussian = ObservedFlow(4, 1, 8, 2, mask, mixture=1, generator=seeded())
    with torch.no_grad():
        again = gaussian.residual(gaussian.generate(z.float(), gaussian.sample_noise(2000, seeded(5))), z.float())
    assert kstest(again[:, 0].numpy(), "norm").pvalue > 1e-3


def test_masked_edges_have_no_derivative_at_all():
    mask = torch.zeros(5, 5, dtype=torch.bool)
    mask[2, 1] = True
    model = randomised(CaDRe(5, 1, mask=mask, generator=seeded()))
    J = model.jacobian(torch.randn(20, 5, generator=seeded()), torch.randn(20, 1, generator=seeded()))
    assert (J[:, ~mask] == 0).all()
    assert (J[:, mask] != 0).any()


def test_cycles_cannot_be_propagated_through():
    flow = ObservedFlow(3, 0, 4, 1, ~torch.eye(3, dtype=torch.bool), generator=seeded())
    with pytest.raises(ValueError, match="graph with a cycle"):
        flow.generate(torch.zeros(2, 0), torch.zeros(2, 3))


def test_post_nonlinear_jacobian_is_on_the_scale_of_x():
    mask = torch.tensor([[0, 0], [1, 0]], dtype=torch.bool)
    model = randomised(CaDRe(2, 1, mask=mask, post_nonlinear=True, generator=seeded()), 0.3).double()
    x, z = torch.randn(1, 2, dtype=torch.float64, generator=seeded()), torch.zeros(1, 1, dtype=torch.float64)
    with torch.no_grad():
        eps = model.observed.residual(x, z)
        J = model.jacobian(x, z)[0, 1, 0]
        h = 1e-6
        moved = []
        for sign in (1, -1):
            # x_1 as a function of x_0 with its own noise held: shift x_0 through its own noise.
            other = x + torch.tensor([[sign * h, 0.0]])
            shifted = model.observed.residual(other, z)
            moved.append(model.observed.generate(z, torch.stack([shifted[:, 0], eps[:, 1]], dim=1))[0, 1])
    assert float((moved[0] - moved[1]) / (2 * h)) == pytest.approx(float(J), rel=1e-4)


def test_vae_graph_is_read_by_the_corollary():
    model = randomised(CaDRe(3, 1, mode="vae", generator=seeded()), 0.1).double()
    x, z = torch.randn(4, 3, dtype=torch.float64, generator=seeded()), torch.zeros(4, 1, dtype=torch.float64)
    J_m = model.mixing_jacobian(x, z)
    J = model.jacobian(x, z)
    torch.testing.assert_close(J @ J_m, J_m - torch.diag_embed(torch.diagonal(J_m, dim1=1, dim2=2)))
    output = model(torch.randn(8, 3, 3, dtype=torch.float64, generator=seeded()), generator=seeded())
    assert torch.isfinite(output.loss)


def test_importance_weighting_tightens_the_bound():
    model = randomised(CaDRe(4, 2, generator=seeded()), 0.1)
    x = torch.randn(400, 3, 4, generator=seeded(1))
    with torch.no_grad():
        bounds = [float(model(x, importance=k, generator=seeded(2)).elbo) for k in (1, 8, 64)]
    assert bounds[0] < bounds[1] < bounds[2]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"k": 4}, "between 1 and 3 latents"),
        ({"k": 0, "mode": "vae"}, "between 1 and 3 latents"),
        ({"k": 1, "mode": "x"}, "flow or vae, got 'x'"),
        ({"k": 1, "window": 2}, "odd and positive, got 2"),
        ({"k": 1, "instant": "x"}, "none, lower, learned, got 'x'"),
    ],
)
def test_bad_models_are_refused(words, message):
    with pytest.raises(ValueError, match=message):
        CaDRe(3, **words)
