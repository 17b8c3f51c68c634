"""Trajectories, bases, metrics, resampling, fits and the impedance law against closed forms and scipy."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.fft import dct, idct
from scipy.integrate import quad
from scipy.interpolate import BSpline
from scipy.spatial.transform import Rotation

from niaf import bases, fit_field
from niaf.data import lasa_chunks
from niaf.field import ExtrapolationError, SineField
from niaf.fit import FieldRegressor, FitOptions, fit_fields
from niaf.impedance import (
    EffortLimits,
    ImpedanceController,
    Reference,
    cartesian_torque,
    matrix_to_rot6d,
    quaternion_log_error,
    rot6d_to_matrix,
    step_response,
    unit_quaternions,
    unwrap_angles,
    watched,
    wrapped_channels,
)
from niaf.metrics import dimensionless_jerk, offgrid_error, smoothness, spectral_arc_length, splice_jump, velocity_peaks
from niaf.policy import ActionQueue
from niaf.resample import DataError, check_times, displacement, resample_actions
from niaf.study import basis_trajectories, represented
from niaf.trajectory import Limits, Trajectory, anchor, blend, ensemble


class Polynomial:
    """Polynomials of tau, one a channel."""

    def __init__(self, *rows):
        self.parts = [np.polynomial.Polynomial(row) for row in rows]

    def __call__(self, tau, order):
        return tuple(np.stack([p.deriv(n)(tau) if n else p(tau) for p in self.parts], 1) for n in range(order + 1))


def minimum_jerk(distance=0.3, duration=0.8):
    s = np.polynomial.Polynomial([0.5, 0.5])  # (tau + 1) / 2
    return Trajectory(Polynomial((distance * (10 * s**3 - 15 * s**4 + 6 * s**5)).coef), duration)


def wave(seed, t0=0.0, duration=1.0):
    rng = np.random.default_rng(seed)
    return Trajectory(Polynomial(*rng.standard_normal((2, 5))), duration, t0)


def differences(motion, t, n, h=1e-5):
    return (motion.at(t + h, n) - motion.at(t - h, n)) / (2 * h)


def test_minimum_jerk_reach_has_dimensionless_jerk_720():
    assert dimensionless_jerk(minimum_jerk()) == pytest.approx(720, rel=1e-9)
    reach, t = minimum_jerk(), np.linspace(0, 0.8, 41)
    fitted = fit_field(t, reach.at(t), reach.at(t, 1), steps=200, polish=300)
    assert dimensionless_jerk(fitted) == pytest.approx(720, rel=0.02)  # a third derivative, squared, from 41 samples
    assert smoothness(reach)["velocity_peaks"] == 1


def test_limits_of_a_reach_are_its_closed_form():
    """Peak speed 15/8 D/T, acceleration 10/sqrt 3 D/T^2, jerk 60 D/T^3."""
    v, a, j = minimum_jerk().limits(points=37)
    d, T = 0.3, 0.8
    assert v.value[0] == pytest.approx(15 / 8 * d / T, rel=1e-10)
    assert a.value[0] == pytest.approx(10 / np.sqrt(3) * d / T**2, rel=1e-9)
    assert j.value[0] == pytest.approx(60 * d / T**3, rel=1e-9)
    assert v.time[0] == pytest.approx(T / 2, abs=1e-6)


def test_slowing_down_scales_derivatives():
    reach = minimum_jerk()
    v, a, _ = reach.limits()
    s = reach.time_scale(v_max=v.value[0] / 2, a_max=a.value[0] / 9)
    assert s == pytest.approx(3)
    slow = reach.slowed(s)
    for n, (before, after) in enumerate(zip(reach.limits(), slow.limits(), strict=True), 1):
        np.testing.assert_allclose(after.value, before.value / s**n, rtol=1e-8)
    assert slow.check(Limits(v.value[0] / 2, a.value[0] / 9 * 1.0001)) == []
    found = reach.check(Limits(velocity=v.value[0] / 2, jerk=1e9))
    assert [(x.quantity, x.channel) for x in found] == [("velocity", 0)]
    assert reach.time_scale(v_max=1e9) == 1.0


def test_integral_against_quadrature():
    found = wave(0, 2.0, 0.7)
    for a, b in ((2.0, 2.7), (2.1, 2.33)):
        expected = [quad(lambda t, c=c: found.at(t)[c], a, b)[0] for c in range(2)]
        np.testing.assert_allclose(found.integral(a, b), expected, atol=1e-12)


def test_numpy_curve_and_compiled_query_equal_the_network():
    field = SineField(3, width=32, n_samples=20, generator=torch.Generator().manual_seed(0)).double()
    from niaf.modulation import Modulation

    g = torch.Generator().manual_seed(1)
    mod = Modulation(*[[0.1 * torch.randn(2, 32, generator=g).double() for _ in range(3)] for _ in range(2)])
    made = Trajectory.from_field(field, mod, 0.7, 2.0, index=1, scale=np.array([2.0, 3, 4]), offset=1.0)
    t = np.linspace(2, 2.7, 15)
    expected = field.physical(torch.as_tensor(t - 2), 0.7, mod, 4)
    for n, part in enumerate(made.derivatives(t, 4)):
        np.testing.assert_allclose(part, expected[n][1].detach().numpy() * [2.0, 3, 4] + (n == 0), rtol=1e-9, atol=1e-9)
    query = made.compile(2)
    np.testing.assert_allclose(query(2.3), np.stack(made.derivatives(2.3, 2)), rtol=1e-3, atol=1e-3)
    np.testing.assert_allclose(query(9.0)[0], made.at(2.7), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("smoothness_order", "orders"), [(2, 3), (3, 4)])
def test_a_blend_is_smooth_and_its_derivatives_are_exact(smoothness_order, orders):
    old, new = wave(0), wave(1, 0.3)
    made = blend(old, new, 0.5, 0.3, smoothness_order)
    inner = np.linspace(0.55, 0.75, 7)
    for n in range(3):
        np.testing.assert_allclose(made.at(inner, n + 1), differences(made, inner, n), rtol=1e-5, atol=1e-4)
    for edge, motion in ((0.5, old), (0.8, new)):
        for n in range(orders):
            jump = made.at(edge + 1e-9, n) - made.at(edge - 1e-9, n)
            assert np.abs(jump).max() < 1e-3 * (1 + np.abs(made.at(edge, n)).max()) * 10**n
        for a, b in zip(made.derivatives(edge, 2), motion.derivatives(edge, 2), strict=True):
            np.testing.assert_allclose(a, b, atol=1e-9)
    t = np.linspace(0, 1, 11)
    same = blend(old, wave(0), 0.5, 0.3)
    for n in range(3):
        np.testing.assert_allclose(same.at(t, n), old.at(t, n), atol=1e-12)


def test_an_anchor_starts_from_the_running_state_and_fades():
    new, state = wave(3, 0.2), [np.array([1.0, 2]), np.array([-1.0, 0.5]), np.array([3.0, -4])]
    made = anchor(new, state, 0.4, 0.2)
    for a, b in zip(made.derivatives(0.4, 2), state, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-9)
    late = np.array([0.6, 0.7, 1.1])
    for n in range(3):
        np.testing.assert_allclose(made.at(late, n), new.at(late, n), atol=1e-9)
    t = np.linspace(0.42, 0.58, 5)
    for n in range(3):
        np.testing.assert_allclose(made.at(t, n + 1), differences(made, t, n), rtol=1e-4, atol=1e-2)


def test_an_ensemble_of_equal_chunks_is_a_no_op_and_weights_are_acts():
    one, other = wave(0), wave(1, 0.4)
    t = np.linspace(0, 1, 5)
    np.testing.assert_allclose(ensemble([one, one, one]).at(t, 3), one.at(t, 3))
    w = np.exp(-0.5 * np.arange(2))
    both, t = ensemble([one, other], 0.5), np.linspace(0.4, 1, 5)
    np.testing.assert_allclose(both.at(t, 1), (w[0] * one.at(t, 1) + w[1] * other.at(t, 1)) / w.sum())
    with pytest.raises(ExtrapolationError, match="no time in common"):
        ensemble([one, wave(2, 5.0)])


@given(
    st.lists(st.floats(0.01, 0.35), min_size=2, max_size=8), st.sampled_from(["anchor", "blend"]), st.integers(0, 99)
)
@settings(max_examples=25, deadline=None)
def test_a_queue_never_jumps_whatever_the_latency(latencies, mode, seed):
    queue, now = ActionQueue(width=0.1, mode=mode), 0.0
    queue.push(wave(seed), 0.0)
    for number, latency in enumerate(latencies):
        inferred = now
        now += latency
        before = queue.reference(now - 1e-7)
        assert queue.push(wave(seed + number + 1, inferred), now)
        after = queue.reference(now + 1e-7)
        scale = 1 + max(np.abs(part).max() for part in before)
        for n, (a, b) in enumerate(zip(before, after, strict=True)):
            assert np.abs(a - b).max() <= 1e-3 * scale * 10**n
    assert not queue.stale


def test_a_queue_drops_what_was_consumed_and_holds_when_stale():
    queue = ActionQueue()
    with pytest.raises(RuntimeError, match="no chunk"):
        queue.reference(0.0)
    chunk = wave(0, 1.0)
    assert queue.push(chunk, 1.25)
    np.testing.assert_allclose(queue.reference(1.25).position, chunk.at(1.25))
    assert not queue.push(wave(1, 0.0), 1.3)  # over already
    held = queue.reference(9.0)
    assert queue.stale
    np.testing.assert_allclose(held.position, chunk.at(2.0))
    assert not held.velocity.any()
    reference, stale = watched(chunk, 9.0)
    assert stale
    assert not reference.velocity.any()
    assert not watched(chunk, 1.5)[1]


def test_splice_jump_is_the_difference_of_two_motions():
    a, b = wave(0), wave(1)
    found = splice_jump(a, b, 0.5)
    assert found["velocity"] == pytest.approx(np.linalg.norm(a.at(0.5, 1) - b.at(0.5, 1)))


@pytest.mark.parametrize("mode", ["hold", "linear"])
def test_trajectories_outside_of_their_time(mode):
    made = wave(0)
    with pytest.raises(ExtrapolationError, match=r"covers \[0, 1\] s, got \[-1, 2\]"):
        made.at(np.array([-1.0, 2.0]))
    moving = mode == "linear"
    np.testing.assert_allclose(made.at(2.0, 0, mode), made.at(1.0) + moving * made.at(1.0, 1))
    np.testing.assert_allclose(made.at(2.0, 1, mode), moving * made.at(1.0, 1))


@pytest.mark.parametrize(
    ("action", "message"),
    [
        (lambda: Trajectory(Polynomial([0.0]), 0.0), "duration must be positive, got 0.0"),
        (lambda: wave(0).at(0.5, 5), "orders 0 to 4, got 5"),
        (lambda: wave(0).sample(0), "rate must be positive, got 0"),
        (lambda: Limits(velocity=-1).items(), "limit on velocity must be positive"),
        (lambda: blend(wave(0), wave(1), 0.9, 0.3), "old trajectory covers"),
        (lambda: anchor(wave(0), [1], 0.5, 0.1), "a state is"),
        (lambda: bases.BSplineBasis(4, 4), "more than 4 control points, got 4"),
        (lambda: resample_actions(np.zeros((3, 1)), 0, 10), "fps must be positive, got 0"),
        (lambda: resample_actions(np.zeros((3, 1)), 10, 10, "relative"), 'must be "absolute" or "delta"'),
        (lambda: resample_actions(np.array([[0.0], [np.nan]]), 10, 20), "row 1: an action is not finite"),
        (lambda: ImpedanceController(-1.0), "stiffness must be positive"),
        (lambda: fit_fields(np.zeros((1, 1, 1)), 1.0), "at least 2 samples"),
        (lambda: fit_fields(np.full((1, 3, 1), np.nan), 1.0), "not finite"),
        (lambda: unit_quaternions(np.zeros((2, 4))), "zero quaternion"),
    ],
)
def test_bad_values_are_refused(action, message):
    with pytest.raises(ValueError, match=message):
        action()


# --- bases ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("n", "degree"), [(10, 4), (5, 4), (7, 3), (4, 1)])
def test_bsplines_are_scipys(n, degree):
    basis, tau = bases.BSplineBasis(n, degree), np.linspace(-1, 1, 33)
    c = np.random.default_rng(0).standard_normal(n)
    spline = BSpline(basis.knots, c, degree)
    for order, matrix in enumerate(basis(tau, min(3, degree))):
        inside = slice(1, -1)
        np.testing.assert_allclose((matrix @ c)[inside], spline(tau, order)[inside], atol=1e-10, rtol=1e-11)
    np.testing.assert_allclose(basis(tau, 0)[0] @ c, spline(tau), atol=1e-12)


def test_cosines_are_scipys_orthonormal_dct():
    x = np.random.default_rng(0).standard_normal(12)
    basis, tau = bases.CosineBasis(12, 12), np.linspace(-1, 1, 12)
    np.testing.assert_allclose(bases.encode(basis, tau, x[:, None], 0.0)[:, 0], dct(x, norm="ortho"), atol=1e-12)
    np.testing.assert_allclose(basis(tau, 0)[0] @ dct(x, norm="ortho"), x, atol=1e-12)
    np.testing.assert_allclose(
        basis(tau, 0)[0][:, :5] @ dct(x, norm="ortho")[:5],
        idct(np.r_[dct(x, norm="ortho")[:5], np.zeros(7)], norm="ortho"),
    )


@pytest.mark.parametrize(
    "basis",
    [
        bases.CosineBasis(6, 12),
        bases.FourierBasis(11, 4),
        bases.HermiteBasis(6),
        bases.ProDMPBasis(6),
        bases.BSplineBasis(9),
    ],
    ids=lambda b: type(b).__name__,
)
def test_derivatives_of_bases_by_differences(basis):
    tau, h = np.linspace(-0.93, 0.91, 14), 1e-5
    exact = basis(tau, 3)
    for n in range(2 if isinstance(basis, bases.HermiteBasis) else 3):
        slope = (basis(tau + h, n)[n] - basis(tau - h, n)[n]) / (2 * h)
        np.testing.assert_allclose(slope, exact[n + 1], rtol=1e-5, atol=2e-4 * max(1.0, np.abs(exact[n + 1]).max()))


def test_prodmp_starts_where_it_is_told_and_reaches_its_goal():
    basis = bases.ProDMPBasis(8)
    c = np.zeros(11)
    c[:2] = 1.5, -0.7
    c[-1] = 3.0
    value, slope = (m @ c for m in basis(np.array([-1.0, 1.0]), 1))
    assert value[0] == pytest.approx(1.5, abs=1e-12)
    assert slope[0] == pytest.approx(-0.7, abs=1e-12)
    assert value[1] == pytest.approx(3.0, abs=1e-3)  # without forcing: critically damped, e^-12.5 (1 + 12.5) away


def test_hermite_reproduces_cubics_and_waypoints_lines():
    tau, knots = np.linspace(-1, 1, 41), np.linspace(-1, 1, 5)
    p = np.polynomial.Polynomial([1.0, -2, 0.5, 3])
    c = np.concatenate([p(knots), p.deriv()(knots)])
    for n, matrix in enumerate(bases.HermiteBasis(5)(tau, 3)):
        np.testing.assert_allclose(matrix @ c, p.deriv(n)(tau) if n else p(tau), atol=1e-9)
    line = bases.WaypointBasis(5)(tau, 1)
    np.testing.assert_allclose(line[0] @ (2 * knots), 2 * tau, atol=1e-12)
    np.testing.assert_allclose(line[1] @ (2 * knots), 2, atol=1e-12)


@given(st.integers(2, 512), st.integers(0, 99))
@settings(max_examples=20, deadline=None)
def test_quantised_coefficients_are_half_a_step_off_at_most(bins, seed):
    c = np.random.default_rng(seed).uniform(-3, 3, 30)
    back = bases.dequantise(bases.quantise(c, -3, 3, bins), -3, 3, bins)
    assert np.abs(back - c).max() <= 3 / (bins - 1) + 1e-12
    if bins > 30:  # the spline itself is off by no more: its basis sums to one
        tau = np.linspace(-1, 1, 50)
        matrix = bases.BSplineBasis(30)(tau, 0)[0]
        assert np.abs(matrix @ (back - c)).max() <= 3 / (bins - 1) + 1e-9


# --- fits on real data -----------------------------------------------------------------------------------------------


def test_off_the_grid_the_field_beats_every_baseline_and_the_papers_preset_fails():
    chunks = lasa_chunks(24, 11)
    with pytest.warns(UserWarning, match="oscillates"):
        found = represented(chunks, 0.0, np.random.default_rng(0), FitOptions(steps=400))
    errors = {n: offgrid_error(m, chunks.dense, chunks.dense_velocity)["velocity"] for n, m in found.items()}
    assert errors["field"] <= 0.05
    assert min(errors, key=errors.get) == "field"
    assert errors["field, paper preset on the grid"] >= 1.0


def test_regressor_predicts_derivatives_like_an_estimator():
    from sklearn.base import clone

    t = np.linspace(0, 1, 21)
    model = clone(FieldRegressor(steps=400)).fit(t[:, None], np.sin(4 * t), 4 * np.cos(4 * t))
    fine = np.linspace(0, 1, 101)
    assert np.abs(model.predict(fine) - np.sin(4 * fine)).max() < 0.01
    assert np.abs(model.predict(fine, order=1) - 4 * np.cos(4 * fine)).max() < 0.3
    assert model.score(t[:, None], np.sin(4 * t)) > 0.999


def test_fits_take_a_constant_channel_and_uneven_times():
    t = np.linspace(0, 1, 21)
    x = np.stack([np.sin(3 * t), np.full(21, 5.0)], 1)
    found = fit_field(t, x, steps=150)
    assert np.abs(found.at(t)[:, 1] - 5).max() < 0.3
    assert np.isfinite(found.at(t, 3)).all()
    with pytest.warns(UserWarning, match="not uniform.*mean rate 20 Hz"):
        fit_field(t + 0.01 * np.sin(7 * t) * t * (1 - t) * 4, x, steps=1)


@pytest.mark.parametrize(
    ("times", "message"),
    [
        ([0, 0.1, 0.1, 0.2], "row 2: the timestamp 0.1 repeats"),
        ([0, 0.2, 0.1], "row 2: the timestamp 0.1 is earlier"),
        ([0, np.nan], "row 1: the timestamp is not finite"),
        ([0], "at least 2 timestamps"),
    ],
)
def test_timestamps_are_checked(times, message):
    with pytest.raises(DataError, match=message):
        check_times(np.array(times, float))


# --- resampling ------------------------------------------------------------------------------------------------------


@given(st.integers(1, 60), st.integers(1, 6), st.integers(0, 99))
@settings(max_examples=40, deadline=None)
def test_increments_survive_a_change_of_rate_and_back(n, factor, seed):
    x = np.random.default_rng(seed).standard_normal((n, 3))
    x[:, 2] = np.sign(x[:, 2])
    fast = resample_actions(x, 20, 20 * factor, "delta", gripper=[2])
    assert len(fast) == n * factor
    np.testing.assert_allclose(fast[:, :2].sum(0), x[:, :2].sum(0), atol=1e-9)
    assert set(np.unique(fast[:, 2])) <= set(np.unique(x[:, 2]))
    np.testing.assert_array_equal(fast[::factor, 2], x[:, 2])
    back = resample_actions(fast, 20 * factor, 20, "delta", gripper=[2])
    np.testing.assert_allclose(back, x, atol=1e-6)


@given(st.integers(2, 60), st.floats(5, 100))
@settings(max_examples=40, deadline=None)
def test_increments_keep_their_sum_at_any_rate_and_absolutes_their_values(n, rate):
    x = np.random.default_rng(n).standard_normal((n, 2))
    np.testing.assert_allclose(resample_actions(x, 20, rate, "delta").sum(0), x.sum(0), atol=1e-9)
    fast = resample_actions(x, 20, 60, "absolute")
    np.testing.assert_allclose(fast[::3], x, atol=1e-9)
    assert len(fast) == 3 * (n - 1) + 1  # (n - 1) / f seconds, not n / f
    np.testing.assert_allclose(displacement(x)[-1], x.sum(0))


# --- metrics and control ---------------------------------------------------------------------------------------------


def test_spectral_arc_length_prefers_the_smoother_speed():
    t = np.linspace(0, 1, 201)
    bell, rough = np.sin(np.pi * t) ** 2, np.sin(np.pi * t) ** 2 * (1 + 0.5 * np.sin(40 * t))
    assert spectral_arc_length(bell, 200) > spectral_arc_length(rough, 200)
    assert velocity_peaks(bell) == 1
    assert velocity_peaks(rough) > 3
    assert spectral_arc_length(np.zeros(10), 10) == 0


def test_step_response_of_the_law_is_the_second_order_one():
    from niaf.control import POINT_XML, MujocoRunner

    runner = MujocoRunner(POINT_XML, ImpedanceController(400.0, 1.0, 0.7))
    zero, target = np.zeros(2), np.array([0.1, -0.05])
    done = runner.run(lambda t: Reference(target, zero, zero), 0.6, Reference(zero, zero, zero))
    expected = step_response(done.t, 400.0, 1.0, 0.7)[:, None] * target
    assert np.abs(done.position - expected).max() < 1e-3 * 0.1 * 10
    assert np.abs(done.position[-1] / target - 1).max() < 1e-3


def test_limits_of_effort_and_its_rate():
    controller = ImpedanceController(100.0, limits=EffortLimits(5.0, 100.0))
    at = Reference(np.array([1.0]), np.zeros(1), np.zeros(1))
    assert controller.effort(at, np.zeros(1), np.zeros(1), 0.001)[0] == 5.0
    back = Reference(np.array([-1.0]), np.zeros(1), np.zeros(1))
    assert controller.effort(back, np.zeros(1), np.zeros(1), 0.001)[0] == pytest.approx(4.9)
    matrix = ImpedanceController(1.0, np.diag([2.0, 3.0]))
    feed = matrix.effort(Reference(np.zeros(2), np.zeros(2), np.ones(2)), np.zeros(2), np.zeros(2))
    np.testing.assert_allclose(feed, [2, 3])


def test_rotations_against_scipy():
    rng = np.random.default_rng(0)
    a, b = Rotation.random(rng=rng), Rotation.random(rng=rng)
    np.testing.assert_allclose(rot6d_to_matrix(3 * matrix_to_rot6d(a.as_matrix())), a.as_matrix(), atol=1e-12)
    wxyz = [np.roll(r.as_quat(), 1) for r in (a, b)]
    np.testing.assert_allclose(quaternion_log_error(*wxyz), (a * b.inv()).as_rotvec(), atol=1e-9)
    np.testing.assert_allclose(quaternion_log_error(wxyz[0], -wxyz[0]), 0, atol=1e-7)
    q = np.stack([2 * wxyz[0], -wxyz[0], wxyz[0]])
    np.testing.assert_allclose(unit_quaternions(q), np.tile(wxyz[0], (3, 1)))
    angles = np.array([[3.0, 0], [-3.0, 0], [-2.9, 0]])
    assert wrapped_channels(angles) == [0]
    assert unwrap_angles(angles, [0])[1, 0] == pytest.approx(2 * np.pi - 3)
    J = rng.standard_normal((3, 7))
    qvel = np.linalg.svd(J)[2][-1]  # in the null space
    np.testing.assert_allclose(cartesian_torque(J, np.zeros(3), qvel, 2.0), -2 * qvel, atol=1e-10)


def test_basis_trajectories_pass_through_noise_free_samples():
    chunks = lasa_chunks(3, 11)
    for name in ("waypoints", "cubic"):
        found = basis_trajectories(name, chunks.action, 1.0)
        np.testing.assert_allclose(found[0].at(np.linspace(0, 1, 11)), chunks.action[0], atol=1e-6)
