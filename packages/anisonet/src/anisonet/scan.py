r"""The linear recurrence :math:`s_t = a_t \odot s_{t-1} + b_t` on packed clouds, in O(N D) work and memory.

Chunks are scanned side by side, position by position; the states at their ends are scanned the same way; then every
position takes its carry. Nothing is divided by a cumulative product, so nothing underflows. The gradient is the
same scan
in the other direction: :math:`\bar b_t = g_t + a_{t+1} \bar b_{t+1}`, :math:`\bar a_t = \bar b_t \odot s_{t-1}`;
only a and s are kept for it.
"""

from __future__ import annotations

from functools import cache
from importlib.util import find_spec
from typing import Any, Literal

import torch
from torch import Tensor

Backend = Literal["auto", "torch", "numba", "triton", "sequential"]
BACKENDS = ("auto", "torch", "numba", "triton", "sequential")


def sequential_scan(a: Tensor, b: Tensor, reverse: bool = False) -> Tensor:
    """The definition: one step a row. Slow; what the other backends are checked against."""
    state, out = torch.zeros_like(b[0]), torch.empty_like(b)
    for t in reversed(range(len(b))) if reverse else range(len(b)):
        state = a[t] * state + b[t]
        out[t] = state
    return out


def chunked_scan(a: Tensor, b: Tensor, chunk: int = 64, reverse: bool = False) -> Tensor:
    """The scan in torch operations only, all chunks at once; a and b of shape (N, D)."""
    n, width = b.shape
    if n <= 1:
        return b.clone()
    if reverse:
        return chunked_scan(a.flip(0), b.flip(0), chunk).flip(0)
    chunk = min(chunk, n)
    if chunk == 1:  # the carries would be the whole problem again
        chunk = 2
    chunks = -(-n // chunk)
    short = chunks * chunk - n
    if short:
        a = torch.cat([a, a.new_zeros(short, width)])
        b = torch.cat([b, b.new_zeros(short, width)])
    a, b = a.view(chunks, chunk, width), b.view(chunks, chunk, width)
    decay, state = torch.empty_like(a), torch.empty_like(b)
    decay[:, 0], state[:, 0] = a[:, 0], b[:, 0]
    for position in range(1, chunk):
        torch.mul(decay[:, position - 1], a[:, position], out=decay[:, position])
        torch.addcmul(b[:, position], state[:, position - 1], a[:, position], out=state[:, position])
    if chunks > 1:
        ends = chunked_scan(decay[:, -1].contiguous(), state[:, -1].contiguous(), chunk)
        state[1:].addcmul_(decay[1:], ends[:-1, None])
    return state.view(-1, width)[:n]


@cache
def _numba_kernel() -> Any:
    import numba

    @numba.njit(nogil=True, cache=True)
    def columns(a: Any, b: Any, out: Any, first: int, last: int, reverse: bool) -> None:
        n = b.shape[0]
        if n == 0:
            return
        t = n - 1 if reverse else 0
        step = -1 if reverse else 1
        for c in range(first, last):
            out[t, c] = b[t, c]
        for _ in range(n - 1):
            before = t
            t += step
            for c in range(first, last):
                out[t, c] = a[t, c] * out[before, c] + b[t, c]

    return columns


def numba_scan(a: Tensor, b: Tensor, reverse: bool = False) -> Tensor:
    """The scan in one compiled loop that runs at the speed of memory; CPU tensors, extra ``fast``."""
    a, b = a.contiguous(), b.contiguous()
    out = torch.empty_like(b)
    _numba_kernel()(a.detach().numpy(), b.detach().numpy(), out.numpy(), 0, b.shape[1], reverse)
    return out


@cache
def _triton_kernels() -> Any:
    import triton
    import triton.language as tl

    @triton.jit
    def local(a, b, decay, state, n, width, CHUNK: tl.constexpr, BLOCK: tl.constexpr):
        row = tl.program_id(0) * CHUNK
        column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
        product = tl.full((BLOCK,), 1.0, a.dtype.element_ty)
        sum_ = tl.full((BLOCK,), 0.0, b.dtype.element_ty)
        for position in range(CHUNK):
            at = (row + position).to(tl.int64) * width + column
            mask = column < tl.where(row + position < n, width, 0)
            gate = tl.load(a + at, mask=mask, other=0.0)
            sum_ = gate * sum_ + tl.load(b + at, mask=mask, other=0.0)
            product = product * gate
            tl.store(decay + at, product, mask=mask)
            tl.store(state + at, sum_, mask=mask)

    @triton.jit
    def carry(decay, state, ends, n, width, CHUNK: tl.constexpr, BLOCK: tl.constexpr):
        row = (tl.program_id(0) + 1) * CHUNK
        column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
        came = tl.load(ends + tl.program_id(0).to(tl.int64) * width + column, mask=column < width, other=0.0)
        for position in range(CHUNK):
            at = (row + position).to(tl.int64) * width + column
            mask = column < tl.where(row + position < n, width, 0)
            here = tl.load(state + at, mask=mask, other=0.0) + tl.load(decay + at, mask=mask, other=0.0) * came
            tl.store(state + at, here, mask=mask)

    return triton, local, carry


def triton_scan(a: Tensor, b: Tensor, chunk: int = 64, reverse: bool = False) -> Tensor:
    """The scan in two Triton kernels a level (local scans, carries); CUDA tensors."""
    if reverse:
        return triton_scan(a.flip(0), b.flip(0), chunk).flip(0)
    a, b = a.contiguous(), b.contiguous()
    n, width = b.shape
    if n == 0:
        return b.clone()
    chunk = max(2, chunk)
    triton, local, carry = _triton_kernels()
    decay, state = torch.empty_like(a), torch.empty_like(b)
    block, chunks = 64, -(-n // chunk)
    columns = triton.cdiv(width, block)
    local[(chunks, columns)](a, b, decay, state, n, width, CHUNK=chunk, BLOCK=block)
    if chunks > 1:
        last = torch.arange(1, chunks, device=b.device) * chunk - 1
        ends = triton_scan(decay[last], state[last], chunk)
        carry[(chunks - 1, columns)](decay, state, ends, n, width, CHUNK=chunk, BLOCK=block)
    return state


@cache
def available(backend: str) -> bool:
    """Whether the library behind a backend is installed."""
    return backend in ("torch", "sequential") or find_spec(backend) is not None


def _choose(backend: str, device: torch.device, dtype: torch.dtype) -> str:
    if backend != "auto":
        return backend
    if device.type == "cuda" and available("triton"):
        return "triton"
    if device.type == "cpu" and available("numba") and dtype in (torch.float32, torch.float64):
        return "numba"
    return "torch"


# An operator of its own, so that torch.compile and torch.export keep the scan whole. The name carries the module's, so
# that a copied module and an installed one can live in one process.
_NAME = f"{__name__.replace('.', '_')}::scan"


@torch.library.custom_op(_NAME, mutates_args=())
def _scan(a: Tensor, b: Tensor, chunk: int, reverse: bool, backend: str) -> Tensor:
    chosen = _choose(backend, b.device, b.dtype)
    if chosen == "numba":
        return numba_scan(a, b, reverse)
    if chosen == "triton":
        return triton_scan(a, b, chunk, reverse)
    if chosen == "sequential":
        return sequential_scan(a, b, reverse)
    return chunked_scan(a, b, chunk, reverse)


@_scan.register_fake
def _(a: Tensor, b: Tensor, chunk: int, reverse: bool, backend: str) -> Tensor:
    return torch.empty_like(b)


def _setup(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    a, _, ctx.chunk, ctx.reverse, ctx.backend = inputs
    ctx.save_for_backward(a, output)


def _shifted(x: Tensor, forward: bool) -> Tensor:
    """x one row later (forward) or earlier, with zeros where nothing came."""
    zero = torch.zeros_like(x[:1])
    return torch.cat([zero, x[:-1]]) if forward else torch.cat([x[1:], zero])


def _backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None, None, None]:
    a, state = ctx.saved_tensors
    into = _scan(_shifted(a, forward=ctx.reverse), grad.contiguous(), ctx.chunk, not ctx.reverse, ctx.backend)
    return into * _shifted(state, forward=not ctx.reverse), into, None, None, None


_scan.register_autograd(_backward, setup_context=_setup)


def resets(counts: Tensor, n: int, max_chunk: int | None = None) -> Tensor:
    """True at the first point of every cloud and, with ``max_chunk``, of every stretch of that many points, shape
    (n,)."""
    starts = counts.cumsum(0) - counts
    ids = torch.repeat_interleave(torch.arange(len(counts), device=counts.device), counts, output_size=n)
    position = torch.arange(n, device=counts.device) - starts[ids]
    return position == 0 if max_chunk is None else position % max_chunk == 0


def linear_recurrence(
    a: Tensor,
    b: Tensor,
    counts: Tensor | None = None,
    chunk: int = 64,
    reverse: bool = False,
    backend: Backend = "auto",
    reset: Tensor | None = None,
) -> Tensor:
    r"""States :math:`s_t = a_t \odot s_{t-1} + b_t` with :math:`s = 0` before the first point of every cloud.

    Args:
        a: factors, shape (N, D).
        b: inputs, shape (N, D), of the same dtype and device.
        counts: points a cloud, which add up to N; None for one cloud.
        chunk: rows scanned side by side by the torch and Triton backends; any value gives the same states.
        reverse: run from the last point to the first.
        backend: ``auto`` takes Triton on CUDA, numba on a CPU where it is installed, else torch.
        reset: True where a state starts anew (the first point in the direction ``reverse=False``), shape (N,); in
            place of ``counts``.

    Returns:
        States, shape (N, D). Peak memory of torch: about four times b; of numba: b.

    Raises:
        ValueError: if the shapes, dtypes, devices, counts or the backend do not fit.
    """
    if a.shape != b.shape or b.ndim != 2:
        raise ValueError(f"expected a and b of one shape (N, D), got {tuple(a.shape)} and {tuple(b.shape)}")
    if a.device != b.device:
        raise ValueError(f"expected a and b on one device, got {a.device} and {b.device}")
    if a.dtype != b.dtype:
        raise ValueError(f"expected a and b of one dtype, got {a.dtype} and {b.dtype}")
    if backend not in BACKENDS:
        raise ValueError(f"expected a backend of {', '.join(BACKENDS)}, got {backend!r}")
    if backend != "auto" and not torch.compiler.is_compiling() and not available(backend):
        raise ImportError(f"backend {backend!r} needs {backend}, which is not installed")
    if chunk < 1:
        raise ValueError(f"expected a chunk of at least 1, got {chunk}")
    n = b.shape[0]
    if n == 0:
        return b.clone()
    if reset is None and counts is not None:
        counts = torch.as_tensor(counts, device=b.device).long()
        if int(counts.min()) < 0 or int(counts.sum()) != n:
            raise ValueError(f"expected counts >= 0 that add up to {n}, got {counts.tolist()[:8]}")
        reset = resets(counts[counts > 0], n)
    if reset is not None:
        if reverse:
            reset = torch.cat([reset[1:], reset.new_ones(1)])
        a = a.masked_fill(reset[:, None], 0.0)
    return _scan(a.contiguous(), b.contiguous(), chunk, reverse, backend)
