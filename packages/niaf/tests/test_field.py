"""The field, its modulation and its losses against autodiff, hand computation and scipy."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.interpolate import CubicSpline

from niaf.claims import nested_jvp
from niaf.field import AliasingWarning, ExtrapolationError, SineField, auto_omega, chain
from niaf.losses import FieldLoss, TimeJitter, field_omega, masked_mean, not_a_knot
from niaf.modulation import (
    FiLM,
    GroupedModulator,
    HyperNetwork,
    LatentCode,
    Modulation,
    QueryResampler,
    VectorModulator,
    check_groups,
)


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def make_field(width=32, omega=30.0, dim=3, activation="sine", **keywords):
    return SineField(dim, 3, width, omega, omega, activation=activation, generator=generator(), **keywords).double()


def random_modulation(batch, width, full=False, size=0.1):
    g = generator(1)

    def normal(*shape):
        return size * torch.randn(*shape, generator=g, dtype=torch.float64)

    gamma = [normal(batch, width, 1 if i == 0 else width) if full else normal(batch, width) for i in range(3)]
    return Modulation(gamma, [normal(batch, width) for _ in range(3)])


@pytest.mark.parametrize("activation", ["sine", "gelu"])
@pytest.mark.parametrize("kind", ["none", "row", "full"])
def test_derivatives_equal_nested_forward_mode(activation, kind):
    field = make_field(activation=activation)
    mod = {"none": None, "row": random_modulation(4, 32), "full": random_modulation(4, 32, True)}[kind]
    tau = 1.9 * torch.rand(4, 7, generator=generator(), dtype=torch.float64) - 0.95
    ours = field(tau, mod, 4)
    theirs = nested_jvp(lambda t: field(t, mod, 0, "free")[0], tau, 4)
    for a, b in zip(ours, theirs, strict=True):
        assert float((a - b).abs().max().detach()) <= 1e-12 * float(b.abs().max().detach())


@pytest.mark.parametrize("conditioner", ["film", "hyper", "vector"])
def test_derivatives_hold_under_every_conditioner(conditioner):
    field = make_field(width=16, omega=5.0)
    made = {"film": FiLM(5, field), "hyper": HyperNetwork(5, field), "vector": VectorModulator(5, field, 4)}[
        conditioner
    ].double()
    with torch.no_grad():
        for p in made.parameters():
            p.add_(0.05 * torch.randn(p.shape, generator=generator(2), dtype=p.dtype))
    mod = made(torch.randn(2, 5, generator=generator(3), dtype=torch.float64))
    tau = torch.linspace(-0.9, 0.9, 9, dtype=torch.float64).repeat(2, 1)
    ours = field(tau, mod, 3)
    theirs = nested_jvp(lambda t: field(t, mod, 0, "free")[0], tau, 3)
    for a, b in zip(ours, theirs, strict=True):
        assert float((a - b).abs().max().detach()) <= 1e-12 * float(b.abs().max().detach())


def test_derivatives_equal_central_differences():
    field = make_field(omega=5.0)
    tau, h = torch.linspace(-0.9, 0.9, 11, dtype=torch.float64), 1e-4
    exact = field(tau, None, 3)
    for n in range(3):
        slope = (field(tau + h, None, n)[n] - field(tau - h, None, n)[n]) / (2 * h)
        torch.testing.assert_close(slope, exact[n + 1], rtol=1e-5, atol=1e-4)


def test_one_unit_by_hand():
    """L = 1, H = 1, omega 2, weights set: 1 + 3 sin(2 tau)."""
    field = SineField(1, 1, 1, 2.0, 2.0).double()
    with torch.no_grad():
        field.weights[0].fill_(1.0)
        field.biases[0].zero_()
        field.out_weight.fill_(3.0)
        field.out_bias.fill_(1.0)
    tau = torch.linspace(-1, 1, 9, dtype=torch.float64)
    found = torch.stack(field(tau, None, 4))[:, :, 0]
    s, c = torch.sin(2 * tau), torch.cos(2 * tau)
    expected = torch.stack([1 + 3 * s, 6 * c, -12 * s, -24 * c, 48 * s])
    torch.testing.assert_close(found, expected, rtol=1e-14, atol=1e-13)


def test_gradients_of_the_jerk_loss():
    field = SineField(2, 2, 4, 3.0, 3.0, generator=generator()).double()
    tau = torch.linspace(-0.8, 0.8, 5, dtype=torch.float64)
    gamma, beta = (0.1 * torch.randn(2, 2, 4, generator=generator(), dtype=torch.float64) for _ in range(2))
    weight, bias = (p.detach().clone() for p in (field.weights[1], field.biases[1]))

    def loss(weight, bias, gamma, beta):
        parameters = {"weights.1": weight, "biases.1": bias}
        mod = Modulation(list(gamma.unbind(0)), list(beta.unbind(0)))
        found = torch.func.functional_call(field, parameters, (tau, mod, 3, "free"))
        return FieldLoss(lambda_jerk=1.0)(found, torch.zeros(2, 5, 2, dtype=torch.float64), 1.0, omega=3.0)["loss"]

    inputs = [x.requires_grad_(True) for x in (weight, bias, gamma, beta)]
    assert torch.autograd.gradcheck(loss, inputs)


def test_row_modulation_is_full_modulation_repeated():
    field, row = make_field(), random_modulation(3, 32)
    full = Modulation([g[..., None].expand(-1, -1, 1 if i == 0 else 32) for i, g in enumerate(row.gamma)], row.beta)
    tau = torch.linspace(-1, 1, 6, dtype=torch.float64)
    for a, b in zip(field(tau, row, 3), field(tau, full, 3), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-8)


@pytest.mark.parametrize("granularity", ["row", "full"])
def test_a_new_modulator_gives_the_prior_and_a_batch_is_its_singles(granularity):
    field = SineField(2, width=16, n_samples=10)
    made = GroupedModulator(8, field, 4, granularity)
    assert made.num_queries == 3 * 5
    z, tau = torch.randn(3, 15, 8, generator=generator()), torch.linspace(-1, 1, 5)
    torch.testing.assert_close(field(tau, made(z))[0], field(tau)[0].expand(3, -1, -1))
    with torch.no_grad():
        for p in made.parameters():
            p.add_(0.1 * torch.randn(p.shape, generator=generator(1)))
    mod = made(z)
    whole = field(tau, mod, 2)
    for i in range(3):
        for a, b in zip(whole, field(tau, mod.index(i), 2), strict=True):
            torch.testing.assert_close(a[i : i + 1], b, rtol=1e-4, atol=1e-4)


def test_each_group_of_tokens_sets_its_own_rows():
    field = SineField(2, width=16, n_samples=10)
    made = GroupedModulator(8, field, 4)
    with torch.no_grad():
        made.frequency[1].weight.normal_()
    z = torch.zeros(1, 15, 8)
    z[0, 5 + 2] = torch.arange(8.0)  # layer 1, group 2
    gamma = made(z).detach().gamma
    assert set(torch.nonzero(gamma[1][0])[:, 0].tolist()) == set(range(8, 12))
    assert not gamma[0].any()
    assert float(GroupedModulator(8, field, 4, gamma_bound=0.5)(z).detach().gamma[1].abs().max()) <= 0.5


def test_resampler_takes_any_tokens_and_codes_any_index():
    resampler = QueryResampler(6, 8, 15)
    assert resampler(torch.randn(2, 9, 6)).shape == (2, 15, 8)
    field = SineField(2, width=8, n_samples=10)
    codes = LatentCode(4, field)
    assert codes(torch.tensor([1, 3])).gamma[0].shape == (2, 8)


@pytest.mark.parametrize("omega", [4.0, 10.0, 30.0])
def test_chunk_unit_keeps_the_jerk_loss_below_one_at_the_start(omega):
    field = SineField(3, width=256, omega_first=omega, omega_hidden=omega, generator=generator())
    tau = torch.linspace(-1, 1, 50).expand(8, -1)
    found = field(tau, None, 3)
    zero = torch.zeros(8, 50, 3)
    chunk = FieldLoss(0.0, lambda_jerk=1.0)(found, zero, 1.0, omega=field_omega(field))["jerk"]
    assert float(chunk.detach()) < 1
    if omega == 30:
        physical = FieldLoss(0.0, lambda_jerk=1e-4, jerk_unit="physical")(found, zero, 1.0)["loss"]
        assert float(physical.detach()) > 1000  # why the unit matters


@given(st.integers(2, 9))
@settings(max_examples=8, deadline=None)
def test_the_jitters_interpolant_is_scipys_cubic_spline(n):
    rng = np.random.default_rng(n)
    y, x = rng.standard_normal(n), np.linspace(0, n - 1, 37)
    i = np.minimum(x.astype(int), n - 2)
    c = not_a_knot(n) @ y
    ours = sum(c[k, i] * (x - i) ** k for k in range(4))
    np.testing.assert_allclose(ours, CubicSpline(np.arange(n), y)(x), atol=1e-10)
    jitter = TimeJitter(max(n, 2))
    tau = jitter.times(3, generator())
    assert float((tau - jitter.grid).abs().max()) <= 1 / (n - 1) + 1e-6
    samples = torch.as_tensor(np.broadcast_to(y[:, None], (3, n, 1)).copy(), dtype=torch.float32)
    expected = CubicSpline(np.arange(n), y)((tau.double().numpy() + 1) / 2 * (n - 1))
    np.testing.assert_allclose(jitter.interpolate(samples, tau)[..., 0], expected, atol=2e-5)
    spline = CubicSpline(np.arange(n), y)
    for order in (1, 2):
        slope = spline((tau.double().numpy() + 1) / 2 * (n - 1), order) * ((n - 1) / 2) ** order
        found = jitter.interpolate(samples.double(), tau.double(), order)[..., 0]
        np.testing.assert_allclose(found, slope, atol=1e-4 * max(1, np.abs(slope).max()))


def test_faa_di_bruno_against_a_polynomial():
    """(t^3)^2 = t^6 at t = 2."""
    t = torch.tensor(2.0)
    f = [t**6, 2 * t**3, torch.tensor(2.0), torch.tensor(0.0), torch.tensor(0.0)]
    u = [t**3, 3 * t**2, 6 * t, torch.tensor(6.0), torch.tensor(0.0)]
    assert [float(x) for x in chain(f, u)] == [64, 6 * 32, 30 * 16, 120 * 8, 360 * 4]


def test_masks_and_gaps_do_not_count():
    found = [torch.zeros(2, 4, 1)]
    target = torch.ones(2, 4, 1)
    target[0, 1] = torch.nan
    mask = torch.zeros(2, 4, dtype=torch.bool)
    mask[1] = True
    assert float(FieldLoss()(found, target, 1.0, mask=mask)["loss"]) == 1.0
    assert float(FieldLoss()(found, target, 1.0, mask=torch.ones(2, 4, dtype=torch.bool))["loss"]) == 0.0
    assert float(masked_mean(torch.ones(2, 2), torch.ones(2, 2, dtype=torch.bool))) == 0.0
    value = torch.zeros(1, 2, 1, requires_grad=True)
    FieldLoss()([value], torch.full((1, 2, 1), torch.nan), 1.0)["loss"].backward()
    assert float(value.grad.abs().sum()) == 0


def test_robust_and_weighted_losses():
    found, target = [torch.zeros(1, 1, 2)], torch.tensor([[[3.0, 0.5]]])
    assert float(FieldLoss(robust="l1")(found, target, 1.0)["loss"]) == 3.5
    assert float(FieldLoss(robust="huber")(found, target, 1.0)["loss"]) == pytest.approx(2.5 + 0.125)
    assert float(FieldLoss(channel_weights=(0.0, 4.0))(found, target, 1.0)["loss"]) == 1.0


def test_physical_units_are_the_chain_rule():
    field = make_field(omega=4.0)
    t = torch.linspace(0, 0.7, 9, dtype=torch.float64)
    inner, outer = field(2 * t / 0.7 - 1, None, 3), field.physical(t, 0.7, None, 3)
    for n in range(4):
        torch.testing.assert_close(outer[n], inner[n] * (2 / 0.7) ** n)


def test_the_field_stays_in_float32_under_autocast_and_bf16():
    """omega tau in bf16 has steps of 1/8 at 30: the phase would be lost."""
    field = SineField(2, width=32, omega_first=30.0, omega_hidden=30.0, generator=generator())
    tau = torch.linspace(-1, 1, 50)
    exact = field(tau, None, 1)
    with torch.autocast("cpu", torch.bfloat16):
        found = field(tau, None, 1)
    assert found[0].dtype == torch.float32
    torch.testing.assert_close(found[1], exact[1])
    assert field.bfloat16()(tau)[0].dtype == torch.float32
    lost = torch.sin(30 * tau) - torch.sin((30 * tau.bfloat16()).bfloat16().float())
    assert float(lost.abs().max()) > 0.05


def test_auto_frequency_is_a_quarter_of_nyquist():
    assert auto_omega(11) == pytest.approx(0.25 * np.pi * 5)
    assert (auto_omega(51), auto_omega(3)) == (10.0, 2.0)
    assert SineField(1, n_samples=11).omegas == (auto_omega(11),) * 3
    paper = SineField(1, omega_first="paper", omega_hidden="paper")
    assert paper.omegas == (30.0,) * 3
    assert paper.is_aliased(11)
    assert paper.is_aliased(51)
    assert not SineField(1, n_samples=51).is_aliased(51)


@pytest.mark.parametrize(
    ("action", "message"),
    [
        (lambda: SineField(1, n_samples=1), "at least 2 samples, got 1"),
        (lambda: SineField(1), "needs n_samples"),
        (lambda: SineField(1, omega_first=-1.0), "positive number"),
        (lambda: SineField(1, n_samples=9)(torch.zeros(1), None, 5), "orders 0 to 4, got 5"),
        (lambda: SineField(1, n_samples=9).physical(torch.zeros(1), 0.0), "duration must be positive, got 0.0"),
        (lambda: check_groups(256, 60), "nearest: 32 or 64"),
        (lambda: GroupedModulator(8, SineField(1, width=256, n_samples=9), 100), "nearest: 64 or 128"),
        (lambda: FieldLoss(lambda_vel=-1), "must not be negative"),
        (lambda: FieldLoss(lambda_vel=1)([torch.zeros(1, 1, 1)] * 2, torch.zeros(1, 1, 1), 1.0), "needs velocities"),
    ],
)
def test_bad_values_are_refused(action, message):
    with pytest.raises(ValueError, match=message):
        action()


def test_times_outside_of_the_chunk():
    field = make_field(omega=4.0)
    inside = torch.tensor([-1.0, 1.0 + 5e-7], dtype=torch.float64)
    assert len(field(inside)) == 1
    out = torch.tensor([1.5], dtype=torch.float64)
    with pytest.raises(ExtrapolationError, match=r"got \[1.5, 1.5\]"):
        field(out)
    end = field(torch.ones(1, dtype=torch.float64), None, 2)
    held, moving = field(out, None, 2, "hold"), field(out, None, 2, "linear")
    torch.testing.assert_close(held[0], end[0])
    assert not held[1].any()
    torch.testing.assert_close(moving[0], end[0] + 0.5 * end[1])
    torch.testing.assert_close(moving[1], end[1])
    assert not moving[2].any()
    with pytest.raises(ValueError, match="extrapolate must be"):
        field(out, None, 0, "never")


def test_the_papers_preset_warns_without_jitter():
    from niaf.fit import FitOptions, fit_fields

    x = np.sin(np.linspace(0, 3, 11))[None, :, None]
    with pytest.warns(AliasingWarning, match="oscillates between them"):
        fit_fields(x, 1.0, None, FitOptions("paper", jitter=False, steps=1, width=8))
