r"""Ellipsoids of neighbourhoods: k nearest neighbours, covariances, their axes, shape descriptors and the edge
encoding.

Section "LAGM" of the paper: ellipsoidal spectral encoding. For a point i with neighbours j, offsets
:math:`r_j = p_j - p_i`, centred :math:`q_j = r_j - \bar r` and :math:`C_i = \frac1k \sum_j q_j q_j^T = U \Lambda U^T`,
the ellipsoid coordinates are :math:`u_j = U^T r_j / a` with semi-axes :math:`a_m = \sqrt{\lambda_m +
\varepsilon\,tr C}`. Only :math:`|u_j|` enters the features, since eigenvectors have no sign.
"""

from __future__ import annotations

import math
import warnings
from typing import Any, Literal, NamedTuple, cast

import numpy as np
import torch
from scipy.spatial import KDTree
from torch import Tensor, nn
from torch.nn import functional as F

AXIS_FLOOR = 1e-3  # epsilon: share of the trace added to every eigenvalue, keeps planes and lines finite
BLOCK = 8192  # points whose neighbours are gathered at a time
Mode = Literal["ellipsoid", "sphere", "none"]
MODES = ("ellipsoid", "sphere", "none")


class PrecisionWarning(UserWarning):
    """Coordinates are so far from the origin that float32 loses their shape."""


class FewPointsWarning(UserWarning):
    """A cloud has fewer points than neighbours were asked for."""


def check_points(xyz: Tensor) -> None:
    """Refuse coordinates that are not (N, 3) or not finite; warn where float32 is too coarse.

    Raises:
        ValueError: with the shape, or the number of bad points and the first of them.
    """
    if xyz.ndim != 2 or xyz.shape[1] != 3:
        raise ValueError(f"expected coordinates of shape (N, 3), got {tuple(xyz.shape)}")
    if not xyz.dtype.is_floating_point:
        raise ValueError(f"expected floating-point coordinates, got {xyz.dtype}")
    finite = torch.isfinite(xyz).all(1)
    if not bool(finite.all()):
        bad = (~finite).nonzero()[:, 0]
        raise ValueError(
            f"expected finite coordinates, got {len(bad)} points with NaN or inf, the first at index {bad[0]}"
        )
    if xyz.dtype == torch.float32 and len(xyz) > 1:
        extent = float((xyz.amax(0) - xyz.amin(0)).max())
        unit = float(np.spacing(np.float32(xyz.abs().max().item())))
        if 0 < extent < 1e4 * unit:
            warnings.warn(
                f"float32 steps of {unit:.2g} at these coordinates are coarse for an extent of {extent:.3g}: "
                "subtract the minimum in float64 first (shift_to_origin)",
                PrecisionWarning,
                stacklevel=3,
            )


def shift_to_origin(xyz: Tensor | np.ndarray) -> tuple[Tensor, np.ndarray]:
    """Coordinates minus their minimum (taken in float64) as float32, and that minimum."""
    points = np.asarray(xyz, dtype=np.float64)
    low = points.min(0) if len(points) else np.zeros(3)
    return torch.from_numpy((points - low).astype(np.float32)), low


# --- neighbours ----------------------------------------------------------------------------------------------------

_warned: set[str] = set()


def _warn_once(kind: str, message: str) -> None:
    if kind not in _warned:
        _warned.add(kind)
        warnings.warn(message, FewPointsWarning, stacklevel=4)


def _self_first(found: Tensor, start: int = 0) -> Tensor:
    """Rows with their own point in front (duplicates of a point may have taken its place)."""
    own = torch.arange(start, start + len(found), device=found.device)
    wrong = (found[:, 0] != own).nonzero()[:, 0]
    if len(wrong):
        rows, mine = found[wrong], own[wrong]
        place = torch.where(rows == mine[:, None], torch.arange(rows.shape[1], device=found.device), rows.shape[1] - 1)
        at = place.amin(1)  # where it stands, or the last column
        first = rows[:, 0].clone()
        rows[torch.arange(len(rows), device=found.device), at] = first
        rows[:, 0] = mine
        found[wrong] = rows
    return found


def _knn_tree(xyz: Tensor, k: int) -> Tensor:
    points = xyz.detach().cpu().double().numpy()
    _, found = KDTree(points).query(points, k=k, workers=-1)
    return torch.from_numpy(np.asarray(found, dtype=np.int64).reshape(len(points), k)).to(xyz.device)


def _knn_brute(xyz: Tensor, k: int) -> Tensor:
    points = xyz.detach()
    rows = max(1, 2**25 // max(1, len(points)))
    parts = [torch.cdist(part, points).topk(k, largest=False, sorted=True).indices for part in points.split(rows)]
    return torch.cat(parts)


def knn(
    xyz: Tensor, k: int, counts: Tensor | None = None, backend: Literal["auto", "tree", "torch"] = "auto"
) -> Tensor:
    """Indices of the k nearest points of every point in its own cloud, itself first, then by distance.

    Args:
        xyz: coordinates, shape (N, 3).
        k: neighbours, itself included.
        counts: points a cloud; None for one cloud.
        backend: ``tree`` (scipy's k-d tree on all cores, O(N log N)), ``torch`` (all distances, in blocks of 2**25) or
            ``auto`` (the tree on a CPU, torch on an accelerator).

    Returns:
        int64 indices into the packed points, shape (N, k). Where a cloud has fewer points the last one is repeated,
        with one warning a process.

    Raises:
        ValueError: if k < 1 or counts do not fit.
    """
    if k < 1:
        raise ValueError(f"expected k of at least 1, got {k}")
    if backend not in ("auto", "tree", "torch"):
        raise ValueError(f"expected a backend of auto, tree or torch, got {backend!r}")
    brute = backend == "torch" or (backend == "auto" and xyz.device.type != "cpu")
    sizes = [len(xyz)] if counts is None else torch.as_tensor(counts).tolist()
    if sum(sizes) != len(xyz):
        raise ValueError(f"expected counts that add up to the {len(xyz)} points, got a sum of {sum(sizes)}")
    parts, start = [], 0
    for part in xyz.split(sizes):
        size = len(part)
        found = _self_first((_knn_brute if brute else _knn_tree)(part, min(k, size)))
        if size < k:
            _warn_once("k", f"a cloud of {size} points has fewer than k = {k} neighbours: the last one is repeated")
            found = torch.cat([found, found[:, -1:].expand(-1, k - size)], 1)
        parts.append(found + start)
        start += size
    return torch.cat(parts)


# --- covariance and its axes ---------------------------------------------------------------------------------------


def local_covariance(xyz: Tensor, idx: Tensor) -> Tensor:
    """Covariance of every neighbourhood (divided by k), float64, shape (N, 3, 3).

    Args:
        xyz: coordinates, shape (N, 3).
        idx: neighbours, shape (N, k).
    """
    blocks = []
    for rows, own in zip(idx.split(BLOCK), xyz.split(BLOCK), strict=True):
        offsets = (xyz[rows] - own[:, None]).double()
        centred = offsets - offsets.mean(1, keepdim=True)
        blocks.append(centred.transpose(1, 2) @ centred / idx.shape[1])
    return torch.cat(blocks)


def _wide(x: Tensor) -> Tensor:
    """float64, but for ONNX, whose runtimes have no trigonometry in float64."""
    return x.float() if torch.onnx.is_in_onnx_export() else x.double()


def eigh3(matrices: Tensor) -> tuple[Tensor, Tensor]:
    r"""Eigenvalues and eigenvectors of symmetric 3x3 matrices in closed form, no iteration.

    The best separated eigenvalue comes from the trigonometric formula and its eigenvector from the longest cross
    product of two rows of :math:`A - \lambda I`; the other pair is the exact solution of the 2x2 problem in the plane
    orthogonal to
    it. So equal or nearly equal eigenvalues cost no accuracy (the trigonometric formula alone loses half the digits).

    Args:
        matrices: symmetric, shape (N, 3, 3); computed in float64.

    Returns:
        Eigenvalues in ascending order, shape (N, 3), and eigenvectors in columns, shape (N, 3, 3), right-handed up
        to sign. Error at most about 1e-14 times the largest absolute eigenvalue.
    """
    if matrices.shape[-2:] != (3, 3):
        raise ValueError(f"expected matrices of shape (N, 3, 3), got {tuple(matrices.shape)}")
    flat = _wide(matrices).reshape(-1, 3, 3)
    if torch.compiler.is_compiling():
        return _eigh3_block(flat)
    parts = [_eigh3_block(part) for part in flat.split(BLOCK)] or [(flat[..., 0], flat)]
    lam, U = torch.cat([p[0] for p in parts]), torch.cat([p[1] for p in parts])
    return lam.reshape(matrices.shape[:-1]), U.reshape(matrices.shape)


def _cross(a: tuple[Tensor, ...], b: tuple[Tensor, ...]) -> tuple[Tensor, Tensor, Tensor]:
    return a[1] * b[2] - a[2] * b[1], a[2] * b[0] - a[0] * b[2], a[0] * b[1] - a[1] * b[0]


def _dot(a: tuple[Tensor, ...], b: tuple[Tensor, ...]) -> Tensor:
    return a[0] * b[0] + a[1] * b[1] + a[2] * b[2]


def _eigh3_block(A: Tensor) -> tuple[Tensor, Tensor]:
    scale = A.abs().amax((1, 2))
    safe = torch.where(scale > 0, scale, torch.ones_like(scale))
    a00, a01, a02 = A[:, 0, 0] / safe, A[:, 0, 1] / safe, A[:, 0, 2] / safe
    a11, a12, a22 = A[:, 1, 1] / safe, A[:, 1, 2] / safe, A[:, 2, 2] / safe
    q = (a00 + a11 + a22) / 3
    b00, b11, b22 = a00 - q, a11 - q, a22 - q
    off = a01 * a01 + a02 * a02 + a12 * a12
    p = ((b00 * b00 + b11 * b11 + b22 * b22 + 2 * off) / 6).sqrt()
    inverse = 1 / torch.where(p > 0, p, torch.ones_like(p))
    c00 = b11 * b22 - a12 * a12
    c01 = a01 * b22 - a12 * a02
    c02 = a01 * a12 - b11 * a02
    half = (b00 * c00 - a01 * c01 + a02 * c02) * inverse * inverse * inverse / 2
    half = half.clamp(-1, 1)
    # the eigenvalue that stands apart: the largest where half >= 0, else the smallest
    top = half >= 0
    angle = torch.acos(half.abs()) / 3
    apart = torch.where(top, 1.0, -1.0) * 2 * p * angle.cos()
    rows = (
        (b00 - apart, a01, a02),
        (a01, b11 - apart, a12),
        (a02, a12, b22 - apart),
    )
    best, length = None, None
    for i, j in ((0, 1), (0, 2), (1, 2)):
        normal = _cross(rows[i], rows[j])
        size = _dot(normal, normal)
        if best is None or length is None:
            best, length = normal, size
        else:
            longer = size > length
            best = tuple(torch.where(longer, n, o) for n, o in zip(normal, best, strict=True))
            length = torch.where(longer, size, length)
    assert best is not None
    assert length is not None
    round_ = (length <= 0) | (p <= 1e-15)  # a multiple of the identity: any axes will do
    root = torch.where(round_, torch.ones_like(length), length).sqrt()
    one, zero = torch.ones_like(root), torch.zeros_like(root)
    w = tuple(torch.where(round_, flat, part / root) for flat, part in zip((one, zero, zero), best, strict=True))
    # an orthonormal pair u, v in the plane across w
    flip = w[0].abs() > w[1].abs()
    norm = torch.where(flip, w[0] * w[0] + w[2] * w[2], w[1] * w[1] + w[2] * w[2]).rsqrt()
    u = (
        torch.where(flip, -w[2] * norm, zero),
        torch.where(flip, zero, w[2] * norm),
        torch.where(flip, w[0] * norm, -w[1] * norm),
    )
    v = _cross(w, u)

    def times(x: tuple[Tensor, ...]) -> tuple[Tensor, Tensor, Tensor]:
        return (
            b00 * x[0] + a01 * x[1] + a02 * x[2],
            a01 * x[0] + b11 * x[1] + a12 * x[2],
            a02 * x[0] + a12 * x[1] + b22 * x[2],
        )

    Bu, Bv, Bw = times(u), times(v), times(w)
    m00, m01, m11, apart = _dot(u, Bu), _dot(u, Bv), _dot(v, Bv), _dot(w, Bw)
    middle, radius = (m00 + m11) / 2, (((m00 - m11) / 2).square() + m01.square()).sqrt()
    low, high = middle - radius, middle + radius
    # the eigenvector of the 2x2 problem, from its row with the larger pivot
    half_angle = torch.atan2(m01, (m00 - m11) / 2) / 2
    cos, sin = half_angle.cos(), half_angle.sin()
    big = tuple(cos * a + sin * b for a, b in zip(u, v, strict=True))
    small = tuple(cos * b - sin * a for a, b in zip(u, v, strict=True))
    lam = torch.stack([torch.where(top, low, apart), torch.where(top, high, low), torch.where(top, apart, high)], -1)
    order = (
        tuple(torch.where(top, s, x) for s, x in zip(small, w, strict=True)),
        tuple(torch.where(top, g, s) for g, s in zip(big, small, strict=True)),
        tuple(torch.where(top, x, g) for x, g in zip(w, big, strict=True)),
    )
    U = torch.stack([torch.stack(column, -1) for column in order], -1)
    lam = (lam + q[:, None]) * scale[:, None]
    return lam.sort(-1).values, U


class _SmoothEigh(torch.autograd.Function):
    """Eigen-decomposition whose gradient stays finite where eigenvalues meet."""

    @staticmethod
    def forward(ctx: Any, C: Tensor) -> tuple[Tensor, Tensor]:
        lam, U = eigh3(C)
        ctx.save_for_backward(lam, U)
        return lam, U

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        g_lam, g_U = grads
        lam, U = ctx.saved_tensors
        gap = lam[:, None, :] - lam[:, :, None]  # gap[a, b] = lam_b - lam_a
        delta = 1e-4 * lam.sum(-1).clamp_min(1e-300)[:, None, None]
        factor = gap / (gap * gap + delta * delta)
        inner = factor * (U.transpose(1, 2) @ g_U)
        inner = inner + torch.diag_embed(g_lam)
        grad = U @ inner @ U.transpose(1, 2)
        return (grad + grad.transpose(1, 2)) / 2


def axes(xyz: Tensor, idx: Tensor, differentiable: bool = False) -> tuple[Tensor, Tensor]:
    """Eigenvalues (ascending, >= 0) and axes of every neighbourhood's covariance, float64.

    Args:
        xyz: coordinates, shape (N, 3).
        idx: neighbours, shape (N, k).
        differentiable: let gradients flow to the coordinates. The factor 1/g of a gap g between eigenvalues is
            replaced by
            g / (g^2 + (1e-4 tr C)^2): finite at equal eigenvalues, the true one where they are well apart.

    Returns:
        lam, shape (N, 3), and U, shape (N, 3, 3), eigenvectors in columns; U[:, :, 0] is the normal.
    """
    if differentiable:
        lam, U = cast(tuple[Tensor, Tensor], _SmoothEigh.apply(local_covariance(xyz, idx)))
        return lam.clamp_min(0), U
    with torch.no_grad():
        lam, U = eigh3(local_covariance(xyz.detach(), idx))
    return lam.clamp_min(0), U


class Shape(NamedTuple):
    """Descriptors of eigenvalues, each of shape (N,)."""

    linearity: Tensor
    planarity: Tensor
    sphericity: Tensor
    surface_variation: Tensor
    anisotropy: Tensor


def shape_of(lam: Tensor) -> Shape:
    """(l3-l2)/l3, (l2-l1)/l3, l1/l3, l1/sum, (l3-l1)/l3 of ascending eigenvalues; 0 where their sum is below 1e-20."""
    l1, l2, l3 = lam.unbind(-1)
    total = lam.sum(-1)
    empty = total < 1e-20
    top = torch.where(empty, torch.ones_like(l3), l3)
    total = torch.where(empty, torch.ones_like(total), total)
    found = ((l3 - l2) / top, (l2 - l1) / top, l1 / top, l1 / total, (l3 - l1) / top)
    return Shape(*(torch.where(empty, torch.zeros_like(x), x) for x in found))


def descriptors(xyz: Tensor, k: int = 24, counts: Tensor | None = None) -> dict[str, Tensor]:
    """Shape of the neighbourhood of every point, without any model.

    Args:
        xyz: coordinates, shape (N, 3).
        k: neighbours, itself included.
        counts: points a cloud; None for one cloud.

    Returns:
        ``linearity``, ``planarity``, ``sphericity``, ``surface_variation``, ``anisotropy`` of shape (N,) and
        ``normals`` of shape (N, 3) (of undetermined sign; the z axis where all neighbours coincide), float64.

    Raises:
        ValueError: on coordinates that are not (N, 3) or not finite.
    """
    check_points(xyz)
    lam, U = axes(xyz, knn(xyz, k, counts))
    normals = U[:, :, 0].clone()
    normals[lam.sum(-1) < 1e-20] = torch.tensor([0.0, 0.0, 1.0], dtype=normals.dtype, device=normals.device)
    return {**shape_of(lam)._asdict(), "normals": normals}


# --- the encoding --------------------------------------------------------------------------------------------------


def edge_features(
    xyz: Tensor,
    idx: Tensor,
    mode: Mode = "ellipsoid",
    freqs: int = 4,
    rotation_invariant: bool = False,
    differentiable: bool = False,
    centre: Tensor | None = None,
) -> Tensor:
    r"""Features of every edge: offsets, :math:`\cos(f_m|u|), \sin(f_m|u|)` at :math:`f_m = \pi 2^{m-1}/3`, and the
    shape.

    Args:
        xyz: coordinates, shape (N, 3).
        idx: neighbours, shape (M, k).
        mode: ``ellipsoid``; ``sphere`` (u = r / sqrt(tr C / 3), equal eigenvalues); ``none`` (offsets only).
        freqs: octaves M of the spectral features.
        rotation_invariant: drop the offsets and add :math:`|U \cdot \hat z|`.
        differentiable: let gradients reach the coordinates through the axes.
        centre: the M points whose edges these are; None for the first M = N points.

    Returns:
        Shape (M, k, width) with width 3, or 3 + 6 freqs + 4 (sphere and ellipsoid alike), in the dtype of xyz.
    """
    own = xyz if centre is None else centre
    offsets = xyz[idx] - own[:, None]
    if mode == "none":
        return offsets
    if mode not in MODES:
        raise ValueError(f"expected a mode of {', '.join(MODES)}, got {mode!r}")
    with torch.set_grad_enabled(torch.is_grad_enabled() and differentiable):
        C = _covariance_of(offsets)
        if differentiable:
            lam, U = cast(tuple[Tensor, Tensor], _SmoothEigh.apply(C))
        else:
            lam, U = eigh3(C.detach())
        lam = lam.clamp_min(0)
        trace = lam.sum(-1, keepdim=True)
        if mode == "ellipsoid":
            semi = (lam + AXIS_FLOOR * trace + 1e-12).sqrt().to(xyz.dtype)
            u = offsets @ U.to(xyz.dtype) / semi[:, None]
            shares = lam / (trace + 1e-20)
        else:
            semi = (trace / 3 + 1e-12).sqrt().to(xyz.dtype)
            u = offsets / semi[:, None]
            shares = torch.full_like(lam, 1 / 3)
        frequency = math.pi / 3 * 2.0 ** (torch.arange(freqs, device=xyz.device, dtype=xyz.dtype) - 1)
        phase = (u.abs()[..., None] * frequency).flatten(-2)
        shape = torch.cat([shares, (trace + 1e-20).sqrt()], -1).to(xyz.dtype)
        k = idx.shape[1]
        parts = [phase.cos(), phase.sin(), shape[:, None].expand(-1, k, -1)]
        if rotation_invariant:
            upright = U[:, 2].abs() if mode == "ellipsoid" else torch.zeros_like(lam)
            parts.append(upright.to(xyz.dtype)[:, None].expand(-1, k, -1))
    return torch.cat(parts if rotation_invariant else [offsets, *parts], -1)


def _covariance_of(offsets: Tensor) -> Tensor:
    centred = _wide(offsets)
    centred = centred - centred.mean(1, keepdim=True)
    return centred.transpose(1, 2) @ centred / offsets.shape[1]


def edge_width(mode: Mode, freqs: int = 4) -> int:
    """Number of features of an edge (with or without offsets: ``rotation_invariant`` exchanges three for three)."""
    return 3 if mode == "none" else 3 + 6 * freqs + 4


class EllipsoidEncoding(nn.Module):
    """Edges to features of points: an MLP on every edge, the maximum over the neighbours, a batch norm.

    Args:
        in_dim: features of the points that join the edges (stage 0); 0 for coordinates only.
        out_dim: features of the result.
        mode: ``ellipsoid``, ``sphere`` or ``none``.
        freqs: octaves of the spectral features.
        hidden: width before the maximum; the MLP is width -> hidden/2 -> hidden -> out.
        project: end the MLP at ``hidden`` and go to ``out_dim`` after the maximum (stages > 0).
        bn_init: initial weight of the last batch norm.
        momentum: of the batch norms.
        rotation_invariant, differentiable: as in ``edge_features``.
    """

    def __init__(
        self,
        in_dim: int,
        out_dim: int,
        mode: Mode = "ellipsoid",
        freqs: int = 4,
        hidden: int = 32,
        project: bool = False,
        bn_init: float = 0.8,
        momentum: float = 0.1,
        rotation_invariant: bool = False,
        differentiable: bool = False,
    ) -> None:
        super().__init__()
        if mode not in MODES:
            raise ValueError(f"expected a mode of {', '.join(MODES)}, got {mode!r}")
        if mode == "none" and rotation_invariant:
            raise ValueError("mode 'none' has only offsets, so it cannot be rotation invariant")
        self.mode, self.freqs, self.in_dim = mode, freqs, in_dim
        self.rotation_invariant, self.differentiable = rotation_invariant, differentiable
        inner = hidden if project else out_dim
        self.mlp = nn.Sequential(
            nn.Linear(edge_width(mode, freqs) + in_dim, hidden // 2, bias=False),
            nn.BatchNorm1d(hidden // 2, momentum=momentum),
            nn.GELU(),
            nn.Linear(hidden // 2, hidden, bias=False),
            nn.BatchNorm1d(hidden, momentum=momentum),
            nn.GELU(),
            nn.Linear(hidden, inner, bias=False),
        )
        self.project = nn.Linear(hidden, out_dim, bias=False) if project else nn.Identity()
        self.norm = nn.BatchNorm1d(out_dim, momentum=momentum)
        nn.init.constant_(self.norm.weight, bn_init)

    def _edges(self, xyz: Tensor, idx: Tensor, feats: Tensor | None, centre: Tensor) -> Tensor:
        edges = edge_features(xyz, idx, self.mode, self.freqs, self.rotation_invariant, self.differentiable, centre)
        if feats is not None:
            edges = torch.cat([edges, feats[idx].to(edges.dtype)], -1)
        out = self.mlp(edges.flatten(0, 1).to(self.norm.weight.dtype)).view(*idx.shape, -1)
        return out.amax(1)

    def forward(self, xyz: Tensor, idx: Tensor, feats: Tensor | None = None) -> Tensor:
        """Features of the points, (N, out_dim), of coordinates (N, 3), neighbours (N, k) and features (N, in_dim)."""
        width = 0 if feats is None else feats.shape[1]
        if width != self.in_dim:
            raise ValueError(f"expected {self.in_dim} features a point, got {width}")
        if self.training or torch.compiler.is_compiling():
            out = self._edges(xyz, idx, feats, xyz)
        else:  # in blocks: memory stays at BLOCK x k edges
            out = torch.cat(
                [self._edges(xyz, i, feats, c) for i, c in zip(idx.split(BLOCK), xyz.split(BLOCK), strict=True)]
            )
        return self.norm(self.project(out))


def export_onnx(encoder: EllipsoidEncoding, path: str, xyz: Tensor, idx: Tensor, feats: Tensor | None = None) -> None:
    """Write an encoder as ONNX with inputs ``xyz``, ``neighbours`` (and ``features``) of any number of points.

    The axes are computed in float32 there, since ONNX runtimes have no trigonometric functions in float64.

    Args:
        encoder: in evaluation mode.
        path: target, ``.onnx``.
        xyz, idx, feats: example inputs.

    Raises:
        ImportError: without onnx and onnxscript (extra ``onnx``).
    """
    from torch.export import Dim

    inputs = (xyz, idx) if feats is None else (xyz, idx, feats)
    points = Dim("points", min=2)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*The axis name: points will not be used")
        program = torch.onnx.export(
            encoder.eval(),
            inputs,
            dynamo=True,
            dynamic_shapes=tuple({0: points} for _ in inputs),
            input_names=["xyz", "neighbours", "features"][: len(inputs)],
            output_names=["encoded"],
            verbose=False,
        )
    assert program is not None
    program.save(path)


class _NeighbourMax(torch.autograd.Function):
    """max over neighbours that keeps only which one it was: memory N d, not N k d."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, idx: Tensor) -> Tensor:
        rows = max(1, min(BLOCK, 2**22 // max(1, idx.shape[1] * x.shape[1])))
        values, sources = [], []
        for part in idx.split(rows):
            best = x[part].max(1)
            values.append(best.values)
            sources.append(part.gather(1, best.indices).int())
        ctx.save_for_backward(torch.cat(sources))
        ctx.n = len(x)
        return torch.cat(values)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        (source,) = ctx.saved_tensors
        out = grads[0].new_zeros(ctx.n, grads[0].shape[1])
        return out.scatter_add_(0, source.long(), grads[0]), None


def neighbour_max(x: Tensor, idx: Tensor) -> Tensor:
    """Maximum of x over the neighbours of every point: (N, d) and (M, k) to (M, d). Ties pass their gradient to one."""
    if torch.compiler.is_compiling():
        return x[idx].amax(1)
    if x.requires_grad and torch.is_grad_enabled():
        return cast(Tensor, _NeighbourMax.apply(x, idx))
    rows = max(1, min(BLOCK, 2**22 // max(1, idx.shape[1] * x.shape[1])))
    return torch.cat([x[part].amax(1) for part in idx.split(rows)])


def normalised_spacing(xyz: Tensor, idx: Tensor) -> Tensor:
    """Mean distance to the neighbours of one cloud divided by the diagonal of its bounding box."""
    diagonal = F.pairwise_distance(xyz.amax(0), xyz.amin(0), eps=0.0)
    own = torch.arange(len(xyz), device=xyz.device)[:, None]
    others = idx != own
    distance = (xyz[idx] - xyz[:, None]).norm(dim=-1)
    mean = (distance * others).sum(1) / others.sum(1).clamp_min(1)
    return torch.where(diagonal > 0, mean.mean() / diagonal.clamp_min(1e-30), torch.zeros_like(diagonal))
