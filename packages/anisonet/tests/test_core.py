"""Curves, scan, ellipsoids, recurrence and pyramid against enumeration, closed forms and plain loops."""

import math
import os
import subprocess
import sys
import warnings

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from anisonet import ellipsoid, gisa, scan
from anisonet.curves import (
    ORDERS,
    hilbert_decode,
    hilbert_encode,
    morton_decode,
    morton_encode,
    quantize,
    serialize,
)
from anisonet.ellipsoid import EllipsoidEncoding, axes, descriptors, edge_features, eigh3, knn, local_covariance
from anisonet.gisa import GISA, density, order_bound, suggest_mode, vector_delta
from anisonet.pyramid import Pyramid, farthest_point_sample, grid_subsample
from anisonet.scan import linear_recurrence, sequential_scan


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def cube(bits):
    side = torch.arange(2**bits)
    return torch.stack(torch.meshgrid(side, side, side, indexing="ij"), -1).reshape(-1, 3)


# --- curves --------------------------------------------------------------------------------------------------------


def test_morton_interleaves_bits():
    assert int(morton_encode(torch.tensor([1, 2, 3]))) == 53
    assert int(morton_encode(torch.full((3,), 2**21 - 1))) == 2**63 - 1
    assert morton_encode(torch.tensor([[1, 0, 0], [0, 1, 0], [0, 0, 1]])).tolist() == [1, 2, 4]


@pytest.mark.parametrize("bits", [1, 2, 3, 4, 5])
def test_hilbert_is_a_bijection_with_unit_steps(bits):
    cells = cube(bits)
    codes = hilbert_encode(cells, bits)
    assert sorted(codes.tolist()) == list(range(8**bits))
    line = cells[codes.argsort()]
    assert bool(((line[1:] - line[:-1]).abs().sum(1) == 1).all())
    assert torch.equal(hilbert_decode(codes, bits), cells)


@pytest.mark.parametrize(("bits", "mean"), [(1, 11 / 7), (2, 117 / 63), (3, 1.9589), (4, 1.9890)])
def test_mean_step_of_morton(bits, mean):
    line = cube(bits)[morton_encode(cube(bits)).argsort()]
    assert float((line[1:] - line[:-1]).abs().sum(1).double().mean()) == pytest.approx(mean, abs=1e-4)


@pytest.mark.parametrize("bits", [7, 16, 21])
def test_round_trips_of_random_cells(bits):
    cells = torch.randint(2**bits, (100_000, 3), generator=generator())
    assert torch.equal(morton_decode(morton_encode(cells)), cells)
    assert torch.equal(hilbert_decode(hilbert_encode(cells, bits), bits), cells)
    assert torch.equal(morton_encode(cells.int()), morton_encode(cells))


def test_bad_cells_are_refused():
    with pytest.raises(ValueError, match="bits from 1 to 21, got 22"):
        hilbert_encode(torch.zeros(1, 3, dtype=torch.long), 22)
    with pytest.raises(ValueError, match="cells from 0 to 7, got 0 to 8"):
        hilbert_encode(torch.tensor([[0, 0, 8]]), 3)
    with pytest.raises(ValueError, match=r"shape \(\.\.\., 3\)"):
        morton_encode(torch.zeros(4, 2, dtype=torch.long))
    with pytest.raises(ValueError, match="integer"):
        morton_encode(torch.zeros(4, 3))
    with pytest.raises(ValueError, match="codes"):
        morton_decode(torch.tensor([-1]))


@settings(deadline=None)
@given(st.lists(st.integers(1, 30), min_size=1, max_size=5), st.sampled_from(ORDERS), st.integers(0, 100))
def test_an_order_never_leaves_its_cloud(sizes, order, seed):
    counts = torch.tensor(sizes)
    xyz = torch.rand(int(counts.sum()), 3, generator=generator(seed))
    found = serialize(xyz, counts, order, generator=generator(seed))
    assert torch.equal(found.sort().values, torch.arange(len(xyz)))
    ids = torch.repeat_interleave(torch.arange(len(counts)), counts)
    assert torch.equal(ids[found], ids)
    if order in ("morton", "hilbert"):  # a cloud's order does not depend on the others
        start = 0
        for size in sizes:
            alone = serialize(xyz[start : start + size], None, order)
            assert torch.equal(found[start : start + size] - start, alone)
            start += size


def test_orders_are_what_they_say():
    xyz = torch.tensor([[1.0, 0, 0], [0, 1, 0], [0, 0, 1], [0, 0, 0]])
    assert serialize(xyz, None, "identity").tolist() == [0, 1, 2, 3]
    assert serialize(xyz, torch.tensor([2, 2]), "reverse").tolist() == [1, 0, 3, 2]
    assert serialize(xyz, None, "lexicographic").tolist() == [3, 2, 1, 0]
    assert serialize(xyz, None, lambda p: p[:, 2]).tolist() == [0, 1, 3, 2]
    assert serialize(xyz, None, "morton", bits=1).tolist() == [3, 0, 1, 2]
    swapped = serialize(xyz[:, [1, 0, 2]], None, "hilbert", bits=4)
    assert torch.equal(serialize(xyz, None, "hilbert-trans", bits=4), swapped)
    with pytest.raises(ValueError, match="expected an order of identity"):
        serialize(xyz, None, "zigzag")
    with pytest.raises(ValueError, match="one sort key a point"):
        serialize(xyz, None, lambda p: p[:2, 2])


@pytest.mark.parametrize(
    ("counts", "message"),
    [([0, 4], "cloud 0"), ([5, -1], "cloud 1"), ([1, 2], "sum of 3"), ([], "no cloud")],
)
def test_counts_that_do_not_fit(counts, message):
    with pytest.raises(ValueError, match=message):
        serialize(torch.rand(4, 3), torch.tensor(counts))


def test_cells_of_equal_points_and_of_a_given_size():
    assert quantize(torch.ones(5, 3)).max() == 0
    xyz = torch.tensor([[0.0, 0, 0], [0.99, 0, 0], [1.0, 0, 0], [1e9, 0, 0]])
    assert quantize(xyz, None, 4, cell=0.5)[:, 0].tolist() == [0, 1, 2, 15]


# --- scan ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [1, 2, 63, 64, 65, 1000])
@pytest.mark.parametrize("chunk", [1, 2, 64, 4096])
@pytest.mark.parametrize("reverse", [False, True])
def test_scan_is_the_loop(n, chunk, reverse):
    a = torch.rand(n, 3, dtype=torch.float64, generator=generator())
    b = torch.randn(n, 3, dtype=torch.float64, generator=generator(1))
    for counts in ([n], [1] * n if n < 65 else [1, n - 1], [n // 2, n - n // 2] if n > 1 else [1]):
        kept = a.clone()
        starts = np.cumsum([0, *counts[:-1]])
        edges = [s + c - 1 for s, c in zip(starts, counts, strict=True)] if reverse else starts
        kept[torch.tensor(np.array(edges))] = 0
        expected = sequential_scan(kept, b, reverse)
        for backend in ("torch", "numba", "sequential"):
            found = linear_recurrence(a, b, torch.tensor(counts), chunk, reverse, backend)
            assert float((found - expected).abs().max()) <= 1e-12


@pytest.mark.parametrize("backend", ["torch", "numba"])
@pytest.mark.parametrize("reverse", [False, True])
def test_gradient_of_the_scan(backend, reverse):
    a = torch.rand(9, 2, dtype=torch.float64, generator=generator()).requires_grad_()
    b = torch.randn(9, 2, dtype=torch.float64, generator=generator(1)).requires_grad_()
    counts = torch.tensor([4, 1, 4])
    assert torch.autograd.gradcheck(lambda x, y: linear_recurrence(x, y, counts, 2, reverse, backend), (a, b))


def test_scan_with_nothing_and_everything_kept():
    b = torch.randn(300, 5, generator=generator())
    assert torch.equal(linear_recurrence(torch.zeros_like(b), b), b)
    total = linear_recurrence(torch.ones_like(b).double(), b.double(), backend="torch")
    assert torch.allclose(total, b.double().cumsum(0), atol=1e-12)


def test_numba_and_torch_agree_in_float32_and_are_deterministic():
    a, b = torch.rand(5000, 7, generator=generator()), torch.randn(5000, 7, generator=generator(1))
    one, two = (linear_recurrence(a, b, backend=x) for x in ("numba", "torch"))
    assert float((one - two).abs().max()) < 1e-5
    assert torch.equal(one, linear_recurrence(a, b, backend="numba"))
    assert torch.equal(two, linear_recurrence(a, b, backend="torch"))


def test_scan_does_not_underflow():
    a, b = torch.full((20_000, 1), 0.5), torch.ones(20_000, 1)
    assert float(linear_recurrence(a, b, backend="torch")[-1]) == pytest.approx(2.0)


def test_triton_kernels_in_triton_s_own_interpreter():
    pytest.importorskip("triton")
    code = """
import torch
from anisonet.scan import triton_scan, sequential_scan
g = torch.Generator().manual_seed(0)
for n, d, chunk in ((1, 3, 4), (7, 70, 4), (33, 5, 4)):
    a, b = torch.rand(n, d, generator=g), torch.randn(n, d, generator=g)
    for reverse in (False, True):
        assert (triton_scan(a, b, chunk, reverse) - sequential_scan(a, b, reverse)).abs().max() < 1e-5
print("agree")
"""
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.strip() == "agree", done.stderr[-800:]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"a": torch.ones(3, 2)}, "one shape"),
        ({"a": torch.ones(4, 2, dtype=torch.float64)}, "one dtype"),
        ({"counts": torch.tensor([1, 2])}, "add up to 4"),
        ({"counts": torch.tensor([5, -1])}, "counts >= 0"),
        ({"backend": "cuda"}, "expected a backend"),
        ({"chunk": 0}, "chunk of at least 1"),
    ],
)
def test_bad_scans(change, message):
    with pytest.raises(ValueError, match=message):
        linear_recurrence(**{"a": torch.ones(4, 2), "b": torch.ones(4, 2), **change})


def test_devices_are_named():
    with pytest.raises(ValueError, match="cpu and meta"):
        linear_recurrence(torch.ones(4, 2), torch.ones(4, 2, device="meta"))


def test_compiled_scan_stays_one_operator():
    a, b = torch.rand(50, 3), torch.randn(50, 3)
    compiled = torch.compile(lambda x, y: linear_recurrence(x, y) * 2, backend="eager", fullgraph=True)
    assert torch.allclose(compiled(a, b), 2 * sequential_scan(a, b), atol=1e-5)


# --- ellipsoids ----------------------------------------------------------------------------------------------------


def turned(values, n, seed=0):
    q, _ = torch.linalg.qr(torch.randn(n, 3, 3, dtype=torch.float64, generator=generator(seed)))
    made = q @ torch.diag(torch.tensor(values, dtype=torch.float64)) @ q.transpose(1, 2)
    return (made + made.transpose(1, 2)) / 2


@pytest.mark.parametrize(
    "values",
    [(1, 2, 3), (1, 1, 1), (0, 0, 0), (1, 1, 2), (1, 2, 2), (0, 0, 1), (0, 1, 1), (1, 1 + 1e-9, 2), (1, 1 + 1e-7, 1 + 2e-7),
     (1e-30, 1e-30, 2e-30), (0, 1e-12, 1e6), (-1, 0.5, 2)],
)  # fmt: skip
def test_closed_form_axes_at_separate_equal_and_nearly_equal_eigenvalues(values):
    matrices = turned(values, 200)
    lam, U = eigh3(matrices)
    size = max(sum(abs(v) for v in values), 1e-300)
    assert float((lam - torch.linalg.eigvalsh(matrices)).abs().max()) <= 1e-12 * size
    rebuilt = U @ torch.diag_embed(lam) @ U.transpose(1, 2)
    assert float((rebuilt - matrices).abs().max()) <= 1e-12 * size
    assert float((U.transpose(1, 2) @ U - torch.eye(3)).abs().max()) <= 1e-12


def test_closed_form_axes_of_random_matrices():
    matrices = torch.randn(20_000, 3, 3, dtype=torch.float64, generator=generator())
    matrices = matrices @ matrices.transpose(1, 2)
    error = (eigh3(matrices)[0] - torch.linalg.eigvalsh(matrices)).abs().amax(1)
    assert float((error / matrices.diagonal(dim1=1, dim2=2).sum(1)).max()) < 1e-14


def test_line_plane_and_ball():
    rng = np.random.default_rng(0)
    line = torch.from_numpy(np.linspace(0, 1, 50)[:, None] * np.array([[1.0, 2.0, 2.0]]))
    found = descriptors(line, k=10)
    assert torch.allclose(found["linearity"], torch.ones(50, dtype=torch.float64), atol=1e-9)
    assert torch.allclose(found["anisotropy"], torch.ones(50, dtype=torch.float64), atol=1e-9)
    plane = torch.from_numpy(np.c_[rng.uniform(size=(400, 2)), np.zeros(400)])
    found = descriptors(plane, k=24)
    assert float(found["sphericity"].abs().max()) < 1e-12
    assert torch.allclose(found["normals"][:, 2].abs(), torch.ones(400, dtype=torch.float64))
    assert torch.allclose(found["linearity"] + found["planarity"], torch.ones(400, dtype=torch.float64))
    corners = torch.tensor([[x, y, z] for x in (-1.0, 1) for y in (-1.0, 1) for z in (-1.0, 1)])
    lam, _ = axes(corners, torch.arange(8).repeat(8, 1))
    assert torch.allclose(lam, torch.ones(8, 3, dtype=torch.float64))


def test_covariance_is_numpy_s():
    xyz = torch.rand(60, 3, generator=generator())
    index = knn(xyz, 12)
    for i in (0, 17, 59):
        expected = np.cov(xyz[index[i]].double().numpy().T, bias=True)
        assert np.allclose(local_covariance(xyz, index)[i].numpy(), expected, atol=1e-12)


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 10_000))
def test_turning_moving_and_permuting_leave_descriptors(seed):
    xyz = torch.randn(80, 3, dtype=torch.float64, generator=generator(seed))
    q, _ = torch.linalg.qr(torch.randn(3, 3, dtype=torch.float64, generator=generator(seed + 1)))
    one, two = descriptors(xyz, 12), descriptors(xyz @ q.T + 5.0, 12)
    for name in ("linearity", "planarity", "sphericity", "surface_variation", "anisotropy"):
        assert float((one[name] - two[name]).abs().max()) < 1e-9
    index = knn(xyz, 12)
    mixed = index[:, torch.randperm(12, generator=generator(seed))]
    assert torch.allclose(axes(xyz, index)[0], axes(xyz, mixed)[0], atol=1e-12)


def test_features_do_not_see_the_sign_of_eigenvectors(monkeypatch):
    xyz = torch.rand(50, 3, generator=generator())
    index = knn(xyz, 8)
    before = edge_features(xyz, index)
    flip = torch.tensor([-1.0, 1.0, -1.0], dtype=torch.float64)
    monkeypatch.setattr(ellipsoid, "eigh3", lambda C, real=eigh3: (real(C)[0], real(C)[1] * flip))
    assert torch.equal(edge_features(xyz, index), before)


def test_rotation_invariant_features_do_not_turn():
    xyz = torch.rand(50, 3, dtype=torch.float64, generator=generator())
    index = knn(xyz, 8)
    angle = 0.7
    about_z = torch.tensor(
        [[math.cos(angle), -math.sin(angle), 0], [math.sin(angle), math.cos(angle), 0], [0, 0, 1]], dtype=torch.float64
    )
    one = edge_features(xyz, index, rotation_invariant=True)
    two = edge_features(xyz @ about_z.T, index, rotation_invariant=True)
    assert one.shape[-1] == 31
    assert torch.allclose(one, two, atol=1e-6)
    assert not torch.allclose(edge_features(xyz, index), edge_features(xyz @ about_z.T, index), atol=1e-3)


def test_sphere_and_ellipsoid_agree_on_isotropic_neighbourhoods():
    corners = torch.tensor([[x, y, z] for x in (-1.0, 1) for y in (-1.0, 1) for z in (-1.0, 1)], dtype=torch.float64)
    index = torch.arange(8).repeat(8, 1)
    one, two = edge_features(corners, index, "ellipsoid"), edge_features(corners, index, "sphere")
    assert torch.allclose(one[..., 27:], two[..., 27:], atol=1e-6)  # shares and size
    assert edge_features(corners, index, "none").shape == (8, 8, 3)


def test_gradient_of_the_axes_and_its_safety():
    xyz = torch.randn(20, 3, dtype=torch.float64, generator=generator())
    index = knn(xyz, 10)
    C = local_covariance(xyz, index).requires_grad_()

    def invariant(c):
        lam, U = ellipsoid._SmoothEigh.apply((c + c.transpose(1, 2)) / 2)
        return lam, (U[:, :, 0, None] * U[:, None, :, 0]) @ torch.tensor([1.0, 2, 3], dtype=torch.float64)

    gaps = eigh3(C.detach())[0].diff(dim=1).amin(1) / eigh3(C.detach())[0].sum(1)
    separate = C.detach()[gaps > 0.1][:4].requires_grad_()
    assert len(separate) == 4
    assert torch.autograd.gradcheck(invariant, (separate,), atol=1e-4, rtol=1e-2)
    equal = torch.eye(3, dtype=torch.float64).repeat(2, 1, 1).requires_grad_()
    lam, projector = invariant(equal)
    (lam.sum() + projector.sum()).backward()
    assert bool(torch.isfinite(equal.grad).all())
    moved = xyz.clone().requires_grad_()
    edge_features(moved, index, differentiable=True).square().sum().backward()
    assert bool(torch.isfinite(moved.grad).all())


@pytest.mark.parametrize("kind", ["equal", "line", "plane", "pair"])
def test_degenerate_clouds_have_finite_features(kind):
    n = 30
    xyz = torch.zeros(n, 3)
    if kind == "line":
        xyz[:, 0] = torch.arange(n) * 0.1
    elif kind == "plane":
        xyz[:, :2] = torch.rand(n, 2, generator=generator())
    elif kind == "pair":
        xyz[::2, 0] = 1.0
    index = knn(xyz, 8)
    for mode in ("ellipsoid", "sphere"):
        assert bool(torch.isfinite(edge_features(xyz, index, mode)).all())
    found = descriptors(xyz, 8)
    assert all(bool(torch.isfinite(v).all()) for v in found.values())
    if kind == "equal":
        assert found["normals"].tolist() == [[0.0, 0.0, 1.0]] * n
        assert len(grid_subsample(xyz, 0.1)) == 1


def test_neighbours_are_the_nearest_and_start_with_oneself():
    xyz = torch.rand(200, 3, generator=generator())
    counts = torch.tensor([120, 80])
    found = knn(xyz, 9, counts)
    for start, size in ((0, 120), (120, 80)):
        distance = torch.cdist(xyz[start : start + size], xyz[start : start + size])
        expected = distance.topk(9, largest=False).values
        own = found[start : start + size] - start
        assert torch.allclose(distance.gather(1, own), expected, atol=1e-6)
    assert torch.equal(found[:, 0], torch.arange(200))
    assert torch.allclose((xyz[knn(xyz, 9, counts, "torch")] - xyz[found]).abs().max(), torch.tensor(0.0), atol=1e-5)
    doubled = knn(torch.zeros(6, 3), 3)
    assert torch.equal(doubled[:, 0], torch.arange(6))


def test_few_points_repeat_the_last_neighbour_with_one_warning():
    ellipsoid._warned.clear()
    with pytest.warns(ellipsoid.FewPointsWarning, match="fewer than k = 5"):
        found = knn(torch.tensor([[0.0, 0, 0], [1, 0, 0], [3, 0, 0]]), 5)
    assert found[0].tolist() == [0, 1, 2, 2, 2]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        knn(torch.zeros(1, 3), 5)


def test_bad_points():
    xyz = torch.rand(10, 3)
    xyz[3, 1] = float("nan")
    xyz[7, 0] = float("inf")
    with pytest.raises(ValueError, match="2 points with NaN or inf, the first at index 3"):
        descriptors(xyz)
    with pytest.raises(ValueError, match=r"shape \(N, 3\), got \(4, 2\)"):
        descriptors(torch.rand(4, 2))
    with pytest.raises(ValueError, match="k of at least 1"):
        knn(torch.rand(4, 3), 0)
    with pytest.raises(ValueError, match="floating-point"):
        descriptors(torch.zeros(4, 3, dtype=torch.long))


def test_far_coordinates_warn_and_shift():
    far = torch.tensor([[1e6, 2e6, 0.0]]) + torch.rand(50, 3) * 10
    with pytest.warns(ellipsoid.PrecisionWarning, match="shift_to_origin"):
        descriptors(far)
    exact = np.random.default_rng(0).uniform(size=(50, 3)) + np.array([5e5, 5e6, 100.0])
    moved, low = ellipsoid.shift_to_origin(exact)
    assert np.allclose(moved.numpy() + low, exact, atol=1e-7)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        descriptors(moved)


def test_float64_points_with_half_features():
    xyz = torch.rand(40, 3, dtype=torch.float64, generator=generator())
    layer = EllipsoidEncoding(2, 8).eval()
    out = layer(xyz, knn(xyz, 6), torch.rand(40, 2, generator=generator()).half())
    assert out.shape == (40, 8)
    assert bool(torch.isfinite(out).all())
    with pytest.raises(ValueError, match="expected 2 features a point, got 3"):
        layer(xyz, knn(xyz, 6), torch.rand(40, 3))
    strided = torch.rand(3, 40, generator=generator()).T  # not contiguous
    assert torch.equal(
        layer(strided, knn(strided, 6), torch.zeros(40, 2)),
        layer(strided.contiguous(), knn(strided, 6), torch.zeros(40, 2)),
    )


def test_neighbour_max_and_its_gradient():
    x = torch.randn(30, 4, dtype=torch.float64, generator=generator()).requires_grad_()
    index = torch.randint(30, (20, 5), generator=generator())
    assert torch.equal(ellipsoid.neighbour_max(x, index), x[index].amax(1))
    assert torch.autograd.gradcheck(lambda v: ellipsoid.neighbour_max(v, index), (x,))


# --- recurrence ----------------------------------------------------------------------------------------------------


def test_vector_delta_is_deltanet_for_one_channel():
    q, k, v = torch.randn(3, 12, 1, dtype=torch.float64, generator=generator())
    beta = torch.rand(12, 1, dtype=torch.float64, generator=generator())
    k = k.tanh()
    S, expected = torch.zeros(1, 1, dtype=torch.float64), []
    for t in range(12):
        S = S @ (torch.eye(1) - beta[t] * k[t][:, None] @ k[t][None]) + beta[t] * v[t][:, None] @ k[t][None]
        expected.append(S @ q[t])
    assert torch.allclose(vector_delta(q, k, v, beta, normalize=False), torch.stack(expected), atol=1e-12)


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 200), st.integers(0, 1000))
def test_bound_on_the_last_state_is_never_broken(n, seed):
    g = generator(seed)
    k = torch.nn.functional.normalize(torch.randn(n, 8, dtype=torch.float64, generator=g), dim=-1)
    v, beta = torch.randn(n, 8, dtype=torch.float64, generator=g), torch.rand(n, 8, dtype=torch.float64, generator=g)
    one = order_bound(k, v, beta)
    assert bool((one.deviation <= one.bound + 1e-9).all())
    mixed = torch.randperm(n, generator=g)
    two = order_bound(k[mixed], v[mixed], beta[mixed])
    assert torch.allclose(one.bound, two.bound)
    assert torch.allclose(one.retained, two.retained)


def test_state_starts_anew_in_every_cloud_and_stretch():
    layer = GISA(16, heads=4, max_chunk=7).eval()
    x = torch.randn(30, 16, generator=generator())
    both = layer(x, torch.tensor([12, 18]))
    assert torch.allclose(both[:12], layer(x[:12], torch.tensor([12])), atol=1e-6)
    assert torch.allclose(both[12:], layer(x[12:], torch.tensor([18])), atol=1e-6)
    pieces = torch.cat([layer(x[12 + i : 12 + min(i + 7, 18)]) for i in (0, 7, 14)])
    assert torch.allclose(both[12:], pieces, atol=1e-6)


@pytest.mark.parametrize("readout", ["causal", "final"])
@pytest.mark.parametrize("bidirectional", [False, True])
def test_permuting_the_input_is_permuting_the_order(readout, bidirectional):
    layer = GISA(16, heads=4, readout=readout, bidirectional=bidirectional).eval()
    x = torch.randn(40, 16, generator=generator())
    mixed = torch.randperm(40, generator=generator())
    assert torch.allclose(layer(x[mixed]), layer(x, order=mixed)[mixed], atol=1e-6)


def test_final_readout_forgets_order_where_everything_is_kept():
    q, k, v = torch.randn(3, 50, 4, dtype=torch.float64, generator=generator())
    small = 1e-6 * torch.rand(50, 4, dtype=torch.float64, generator=generator())
    mixed = torch.randperm(50, generator=generator())
    one = vector_delta(q, k, v, small, readout="final")
    two = vector_delta(q[mixed], k[mixed], v[mixed], small[mixed], readout="final")
    assert float((one[mixed] - two).abs().max() / one.abs().max()) < 1e-5
    with pytest.raises(ValueError, match="readout"):
        vector_delta(q, k, v, small, readout="last")
    with pytest.raises(ValueError, match="3 heads"):
        vector_delta(q, k, v, small, heads=3)


def test_bfloat16_is_scanned():
    layer = GISA(16, heads=4).eval()
    x = torch.randn(100, 16, generator=generator())
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        half = layer(x)
    assert float((half - layer(x)).detach().abs().max()) < 0.1


def test_density_rule():
    rng = np.random.default_rng(0)
    dense = torch.from_numpy(rng.uniform(size=(20_000, 2))).float()
    dense = torch.cat([dense, torch.zeros(len(dense), 1)], 1)
    sparse = dense[:500]
    assert suggest_mode(dense) == "identity"
    assert suggest_mode(sparse) == "morton"
    grid = torch.stack(torch.meshgrid(*[torch.arange(5.0)] * 3, indexing="ij"), -1).reshape(-1, 3)
    assert float(density(grid, k=2)) == pytest.approx(1 / math.sqrt(48), rel=1e-5)
    assert pytest.approx(math.sqrt(0.0060 * 0.0251), abs=1e-4) == gisa.SPARSE_SPACING


def test_max_chunk_and_heads_are_checked():
    with pytest.raises(ValueError, match="5 heads"):
        GISA(16, heads=5)
    with pytest.raises(ValueError, match="max_chunk"):
        GISA(16, max_chunk=0)


# --- pyramid -------------------------------------------------------------------------------------------------------


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 1000), st.sampled_from([0.05, 0.2, 0.5]), st.sampled_from(["first", "random", 0, 3]))
def test_one_survivor_a_voxel_in_first_occurrence_order(seed, size, pick):
    xyz = torch.rand(150, 3, generator=generator(seed))
    counts = torch.tensor([100, 50])
    kept = grid_subsample(xyz, size, counts, pick, generator(seed))
    ids = torch.repeat_interleave(torch.arange(2), counts)
    low = torch.stack([xyz[:100].amin(0), xyz[100:].amin(0)])
    cells = ((xyz.double() - low[ids].double()) / size).floor().long()
    keys = [tuple(row) for row in torch.cat([ids[:, None], cells], 1).tolist()]
    first = list(dict.fromkeys(keys))
    assert [keys[i] for i in kept.tolist()] == first
    if pick == "first":
        assert kept.tolist() == [keys.index(key) for key in first]
    if pick == 3:
        members = {key: [i for i, other in enumerate(keys) if other == key] for key in first}
        assert kept.tolist() == [members[key][3 % len(members[key])] for key in first]


def test_way_back_is_the_nearest_survivor():
    xyz = torch.rand(300, 3, generator=generator())
    counts = torch.tensor([180, 120])
    pyramid = Pyramid.build(xyz, counts, (0.2, 0.4), 6, "morton")
    for stage in (1, 2):
        start = stage_start = 0
        for cloud in range(2):
            size, kept = int(counts[cloud]), int(pyramid.counts[stage][cloud])
            points = pyramid.xyz[stage][stage_start : stage_start + kept]
            distance = torch.cdist(xyz[start : start + size], points)
            own = pyramid.back[stage][start : start + size] - stage_start
            assert torch.allclose(distance.gather(1, own[:, None])[:, 0], distance.amin(1), atol=1e-6)
            start, stage_start = start + size, stage_start + kept
        assert torch.equal(pyramid.xyz[stage], pyramid.xyz[stage - 1][pyramid.sub[stage]])
        assert len(pyramid.order[stage]) == len(pyramid.xyz[stage])
    assert pyramid.to("cpu").stages == 3


def test_farthest_points_are_the_greedy_ones():
    xyz = torch.rand(60, 3, generator=generator())
    kept = farthest_point_sample(xyz, torch.tensor([40, 20]), torch.tensor([5, 20]), generator(3)).tolist()
    assert kept[5:] == list(range(40, 60))
    start = int(torch.rand(2, generator=generator(3), dtype=torch.float64)[0] * 40)
    chosen = [start]
    while len(chosen) < 5:
        chosen.append(int(torch.cdist(xyz[:40], xyz[chosen]).amin(1).argmax()))
    assert kept[:5] == sorted(chosen)
    with pytest.raises(ValueError, match="one size from 1"):
        farthest_point_sample(xyz, None, torch.tensor([61]))


def test_huge_grids_do_not_overflow():
    xyz = torch.rand(50, 3, generator=generator(), dtype=torch.float64) * 1e7
    kept = grid_subsample(xyz, 1e-2)
    assert torch.equal(kept, torch.arange(50))


def test_bad_pyramids():
    xyz = torch.rand(20, 3)
    with pytest.raises(ValueError, match="voxel size above 0"):
        Pyramid.build(xyz, None, (0.0,), 4)
    with pytest.raises(ValueError, match="2 numbers of neighbours, got 3"):
        Pyramid.build(xyz, None, (0.1,), (4, 4, 4))
    with pytest.raises(ValueError, match="factor above 1"):
        Pyramid.build(xyz, None, (1.0,), 4, sampling="fps")
    with pytest.raises(ValueError, match="pick random, first"):
        grid_subsample(xyz, 0.1, None, "last")
    assert scan.available("torch")
