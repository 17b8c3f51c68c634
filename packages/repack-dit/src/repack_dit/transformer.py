"""RePack-DiT (stage 2): the LightningDiT backbone on packed latents.

Sin-cos positions, RMSNorm, attention with axial rotary positions, SwiGLU, adaLN-zero. Module names are those of the
official checkpoints. Time runs from 0 (noise) to 1 (data); the output is the velocity ``u = z - e``.
"""

from __future__ import annotations

import itertools
import math
from typing import Any

import torch
import torch.nn.functional as F
from diffusers.configuration_utils import ConfigMixin, register_to_config
from diffusers.models.modeling_outputs import Transformer2DModelOutput
from diffusers.models.modeling_utils import ModelMixin
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

# depth, width, heads
SIZES: dict[str, tuple[int, int, int]] = {
    "XL": (28, 1152, 16),
    "L": (24, 1024, 16),
    "B": (12, 768, 12),
    "S": (12, 384, 6),
    "1p0B": (24, 1536, 24),
    "1p6B": (28, 1792, 28),
    "Ti": (4, 192, 3),
}
PRESETS: tuple[str, ...] = ("XL/1", "XL/2", "L/2", "B/1", "B/2", "S/1", "1p0B/1", "1p6B/1", "Ti/1")


# --- positions and time --------------------------------------------------------------------------------------------


def sincos_positions(width: int, side: int) -> Tensor:
    """Fixed positions, (side * side, width): first half of the channels encodes the column, second half the row.

    Each half holds sines, then cosines, of position over 10000 ** (k / (width / 4)).
    """
    omega = 10000 ** -(torch.arange(width // 4, dtype=torch.float64) / (width / 4))
    rows, columns = torch.meshgrid(torch.arange(side).double(), torch.arange(side).double(), indexing="ij")

    def half(position: Tensor) -> Tensor:
        angle = torch.outer(position.flatten(), omega)
        return torch.cat([angle.sin(), angle.cos()], 1)

    return torch.cat([half(columns), half(rows)], 1).float()


def axial_rotation(head_dim: int, side: int) -> tuple[Tensor, Tensor]:
    """Cosines and sines of the rotary angles, each (side * side, head_dim): rows' block first, then columns'.

    Per axis, frequencies 10000 ** (-2k / (head_dim / 2)), each repeated twice for the interleaved pairs.
    """
    half = head_dim // 2
    frequency = 10000.0 ** -(torch.arange(0, half, 2, dtype=torch.float64) / half)
    angle = torch.outer(torch.arange(side).double(), frequency).repeat_interleave(2, dim=1)
    rows = angle[:, None].expand(side, side, half)
    columns = angle[None].expand(side, side, half)
    whole = torch.cat([rows, columns], -1).reshape(side * side, head_dim)
    return whole.cos().float(), whole.sin().float()


def rotate(x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """Rotate interleaved pairs (x1, x2) by the angles; x is (..., tokens, head_dim)."""
    pairs = x.unflatten(-1, (-1, 2))
    turned = torch.stack([-pairs[..., 1], pairs[..., 0]], -1).flatten(-2)
    return x * cosine.to(x.dtype) + turned * sine.to(x.dtype)


def time_frequencies(t: Tensor, size: int = 256) -> Tensor:
    """Sinusoids of time, (B, size): cosines first, frequencies 10000 ** (-k / (size / 2)); t is not rescaled."""
    frequency = torch.exp(
        -math.log(10000) * torch.arange(size // 2, device=t.device, dtype=torch.float32) / (size // 2)
    )
    angle = t.float()[:, None] * frequency
    return torch.cat([angle.cos(), angle.sin()], 1)


# --- blocks --------------------------------------------------------------------------------------------------------


class RMSNorm(nn.Module):
    """``x / rms(x) * weight`` over the last dimension, computed in float32."""

    def __init__(self, width: int, eps: float = 1e-6) -> None:
        super().__init__()
        self.eps, self.weight = eps, nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x.float(), (x.shape[-1],), eps=self.eps).type_as(x) * self.weight


class Attention(nn.Module):
    """Multi-head self-attention with bias, optional query-key norm, rotary positions."""

    def __init__(self, width: int, heads: int, qk_norm: bool) -> None:
        super().__init__()
        self.heads = heads
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.q_norm = RMSNorm(width // heads) if qk_norm else nn.Identity()
        self.k_norm = RMSNorm(width // heads) if qk_norm else nn.Identity()

    def forward(self, x: Tensor, rotation: tuple[Tensor, Tensor] | None) -> Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        q, k = self.q_norm(q), self.k_norm(k)
        if rotation is not None:
            q, k = rotate(q, *rotation), rotate(k, *rotation)
        return self.proj(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


class SwiGLU(nn.Module):
    """``w3(silu(a) * b)`` with ``(a, b) = w12(x)``."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.w12, self.w3 = nn.Linear(width, 2 * hidden), nn.Linear(hidden, width)

    def forward(self, x: Tensor) -> Tensor:
        gate, value = self.w12(x).chunk(2, -1)
        return self.w3(F.silu(gate) * value)


def _by_token(c: Tensor) -> Tensor:
    """One condition an image (B, W) holds for all its tokens; (B, N, W) is one a token."""
    return c[:, None] if c.ndim == 2 else c


def _modulate(x: Tensor, shift: Tensor, scale: Tensor) -> Tensor:
    return x * (1 + _by_token(scale)) + _by_token(shift)


class Block(nn.Module):
    """adaLN-zero block: ``x + g1 attn(mod(norm x)) + g2 mlp(mod(norm x))``; the identity at initialisation."""

    def __init__(self, width: int, heads: int, *, swiglu: bool, rms: bool, qk_norm: bool, mlp_ratio: float) -> None:
        super().__init__()
        norm = RMSNorm if rms else lambda w: nn.LayerNorm(w, eps=1e-6, elementwise_affine=False)
        self.norm1, self.norm2 = norm(width), norm(width)
        self.attn = Attention(width, heads, qk_norm)
        hidden = int(width * mlp_ratio)
        self.mlp: nn.Module = (
            SwiGLU(width, int(2 / 3 * hidden))
            if swiglu
            else nn.Sequential(nn.Linear(width, hidden), nn.GELU(approximate="tanh"), nn.Linear(hidden, width))
        )
        self.adaLN_modulation = nn.Sequential(nn.SiLU(), nn.Linear(width, 6 * width))

    def forward(self, x: Tensor, c: Tensor, rotation: tuple[Tensor, Tensor] | None) -> Tensor:
        shift1, scale1, gate1, shift2, scale2, gate2 = self.adaLN_modulation(c).chunk(6, -1)
        x = x + _by_token(gate1) * self.attn(_modulate(self.norm1(x), shift1, scale1), rotation)
        return x + _by_token(gate2) * self.mlp(_modulate(self.norm2(x), shift2, scale2))


class FinalLayer(nn.Module):
    """Norm, adaLN and a linear layer to the patch's outputs."""

    def __init__(self, width: int, outputs: int, rms: bool) -> None:
        super().__init__()
        self.norm_final = RMSNorm(width) if rms else nn.LayerNorm(width, eps=1e-6, elementwise_affine=False)
        self.linear = nn.Linear(width, outputs)
        self.adaLN_modulation = nn.Sequential(nn.SiLU(), nn.Linear(width, 2 * width))

    def forward(self, x: Tensor, c: Tensor) -> Tensor:
        return self.linear(_modulate(self.norm_final(x), *self.adaLN_modulation(c).chunk(2, -1)))


class WideHead(nn.Module):
    """DDT's head (Wang et al. 2025; RAE's DiT^DH): few wide blocks on the latent, conditioned token by token.

    The condition of a token is ``W silu(t + s)`` with the backbone's output s at that token and the time's embedding t.
    """

    def __init__(
        self, channels: int, patch: int, backbone: int, width: int, layers: int, heads: int, **kind: Any
    ) -> None:
        super().__init__()
        self.x_embedder: Any = _PatchEmbedder(channels, patch, width)
        self.condition = nn.Linear(backbone, width)
        self.blocks: Any = nn.ModuleList(Block(width, heads, **kind) for _ in range(layers))
        self.heads, self.width = heads, width

    def forward(self, z: Tensor, s: Tensor, t: Tensor, rotation: tuple[Tensor, Tensor] | None) -> tuple[Tensor, Tensor]:
        """Tokens (B, N, width) and their conditions (B, N, width), for the final layer."""
        condition = self.condition(F.silu(t[:, None] + s))
        x = self.x_embedder.proj(z).flatten(2).transpose(1, 2)
        for block in self.blocks:
            x = block(x, condition, rotation)
        return x, condition


class _TimeEmbedder(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.mlp: Any = nn.Sequential(nn.Linear(256, width), nn.SiLU(), nn.Linear(width, width))

    def forward(self, t: Tensor) -> Tensor:
        return self.mlp(time_frequencies(t).to(self.mlp[0].weight.dtype))


class _LabelEmbedder(nn.Module):
    def __init__(self, classes: int, width: int) -> None:
        super().__init__()
        self.embedding_table = nn.Embedding(classes + 1, width)


class _PatchEmbedder(nn.Module):
    def __init__(self, channels: int, patch: int, width: int) -> None:
        super().__init__()
        self.proj = nn.Conv2d(channels, width, patch, stride=patch)


# --- the model -----------------------------------------------------------------------------------------------------


class RePackDiTTransformer2DModel(ModelMixin, ConfigMixin):
    """Diffusion transformer on latents (B, d, side, side).

    Args:
        sample_size: side of the latent map.
        in_channels: channels d.
        patch_size: latent positions a side of one token.
        num_layers: blocks.
        hidden_size: width.
        num_attention_heads: heads; width / heads must be divisible by 4.
        num_classes: classes K; 0 is unconditional. The null label is K.
        mlp_ratio: hidden width of the MLP before SwiGLU's 2/3.
        use_rope, use_swiglu, use_rmsnorm: all off is the SiT block.
        qk_norm: RMSNorm of queries and keys.
        time_scale: time is multiplied by this before its sinusoids; 1 in the paper's code, 1000 in most others.
        head_width: width of a :class:`WideHead` behind the blocks; None for none.
        head_layers: its blocks.
        head_heads: its attention heads; head_width / head_heads must be divisible by 4.

    Raises:
        ValueError: if sizes do not divide.
    """

    _supports_gradient_checkpointing = True

    config: Any  # diffusers' FrozenDict, read by attribute

    @register_to_config
    def __init__(
        self,
        sample_size: int = 16,
        in_channels: int = 32,
        patch_size: int = 1,
        num_layers: int = 28,
        hidden_size: int = 1152,
        num_attention_heads: int = 16,
        num_classes: int = 1000,
        mlp_ratio: float = 4.0,
        use_rope: bool = True,
        use_swiglu: bool = True,
        use_rmsnorm: bool = True,
        qk_norm: bool = False,
        time_scale: float = 1.0,
        head_width: int | None = None,
        head_layers: int = 2,
        head_heads: int = 16,
    ) -> None:
        super().__init__()
        if sample_size % patch_size:
            raise ValueError(f"patch size {patch_size} does not divide the latent's side {sample_size}")
        if hidden_size % (4 * num_attention_heads):
            raise ValueError(f"width {hidden_size} over {num_attention_heads} heads is not divisible by 4")
        if head_width is not None and head_width % (4 * head_heads):
            raise ValueError(f"head width {head_width} over {head_heads} heads is not divisible by 4")
        side = sample_size // patch_size
        kind: dict[str, Any] = {"swiglu": use_swiglu, "rms": use_rmsnorm, "qk_norm": qk_norm, "mlp_ratio": mlp_ratio}
        self.x_embedder: Any = _PatchEmbedder(in_channels, patch_size, hidden_size)
        self.t_embedder: Any = _TimeEmbedder(hidden_size)
        self.y_embedder: Any = _LabelEmbedder(num_classes, hidden_size)
        self.pos_embed = nn.Parameter(torch.zeros(1, side * side, hidden_size), requires_grad=False)
        self.blocks: Any = nn.ModuleList(Block(hidden_size, num_attention_heads, **kind) for _ in range(num_layers))
        self.head: Any = None
        if head_width is not None:
            self.head = WideHead(in_channels, patch_size, hidden_size, head_width, head_layers, head_heads, **kind)
        self.final_layer: Any = FinalLayer(head_width or hidden_size, patch_size**2 * in_channels, use_rmsnorm)
        self.gradient_checkpointing = False
        self._rotation: dict[tuple[int, torch.device], tuple[Tensor, Tensor]] = {}
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Xavier; N(0, 0.02) for labels and time; zero for adaLN and the output: the initial velocity is 0."""
        linear: list[Any] = [module for module in self.modules() if isinstance(module, nn.Linear)]
        for layer in linear:
            nn.init.xavier_uniform_(layer.weight)
            nn.init.zeros_(layer.bias)
        with torch.no_grad():
            self.pos_embed.copy_(sincos_positions(self.config.hidden_size, self._side)[None])
        head = [] if self.head is None else [self.head]
        for part in (self, *head):
            nn.init.xavier_uniform_(part.x_embedder.proj.weight.flatten(1))
            nn.init.zeros_(part.x_embedder.proj.bias)
        for weight in (self.y_embedder.embedding_table.weight, *(self.t_embedder.mlp[i].weight for i in (0, 2))):
            nn.init.normal_(weight, std=0.02)
        zeroed = [block.adaLN_modulation[1] for part in (self, *head) for block in part.blocks]
        for layer in (*zeroed, self.final_layer.adaLN_modulation[1], self.final_layer.linear):
            nn.init.zeros_(layer.weight)
            nn.init.zeros_(layer.bias)

    @property
    def _side(self) -> int:
        return self.config.sample_size // self.config.patch_size

    @classmethod
    def from_preset(cls, name: str, **overrides: Any) -> RePackDiTTransformer2DModel:
        """A model by its published name, ``XL/1`` for example; see :data:`PRESETS`."""
        if name not in PRESETS:
            raise ValueError(f"expected one of {', '.join(PRESETS)}, got {name!r}")
        size, _, patch = name.partition("/")
        depth, width, heads = SIZES[size]
        sizes = {"num_layers": depth, "hidden_size": width, "num_attention_heads": heads, "patch_size": int(patch)}
        return cls(**{**sizes, **overrides})

    def _angles(self, device: torch.device, width: int = 0, heads: int = 0) -> tuple[Tensor, Tensor] | None:
        """Cosines and sines for the backbone, or for a head of this width."""
        if not self.config.use_rope:
            return None
        size = (width or self.config.hidden_size) // (heads or self.config.num_attention_heads)
        if (size, device) not in self._rotation:
            cosine, sine = axial_rotation(size, self._side)
            self._rotation[size, device] = cosine.to(device), sine.to(device)
        return self._rotation[size, device]

    def _labels(self, class_labels: Tensor | None, batch: int, device: torch.device) -> Tensor:
        null = self.config.num_classes
        if class_labels is None:
            if null:
                raise ValueError(f"this model is conditional: give class labels in [0, {null}), or {null} for none")
            return torch.zeros(batch, dtype=torch.long, device=device)
        if torch.compiler.is_compiling():  # a compiled or exported program cannot look at values
            return class_labels
        if class_labels.shape != (batch,) or bool(((class_labels < 0) | (class_labels > null)).any()):
            raise ValueError(
                f"expected {batch} class labels in [0, {null}) or {null} for none, got {class_labels.tolist()[:10]}"
            )
        return class_labels

    def forward(
        self,
        hidden_states: Tensor,
        timestep: Tensor,
        class_labels: Tensor | None = None,
        return_dict: bool = True,
    ) -> Transformer2DModelOutput | tuple[Tensor]:
        """Velocity ``u`` at ``z_t = t z + (1 - t) e``.

        Args:
            hidden_states: z_t, normalised, (B, d, side, side).
            timestep: t in [0, 1], 0 is noise, (B,).
            class_labels: in [0, K), K for none, (B,).
            return_dict: else a tuple.

        Raises:
            ValueError: for latents or labels that do not fit.
        """
        c, p, size = self.config.in_channels, self.config.patch_size, self.config.sample_size
        if tuple(hidden_states.shape[1:]) != (c, size, size):
            raise ValueError(f"expected latents (B, {c}, {size}, {size}), got {tuple(hidden_states.shape)}")
        batch = hidden_states.shape[0]  # len() would fix it in an exported program
        labels = self._labels(class_labels, batch, hidden_states.device)
        x = self.x_embedder.proj(hidden_states).flatten(2).transpose(1, 2) + self.pos_embed
        time = self.t_embedder(timestep * self.config.time_scale)
        condition = time + self.y_embedder.embedding_table(labels)
        rotation = self._angles(x.device)
        for block in self.blocks:
            if self.gradient_checkpointing and torch.is_grad_enabled():
                x = checkpoint(block, x, condition, rotation, use_reentrant=False)
            else:
                x = block(x, condition, rotation)
        if self.head is not None:
            x, condition = self.head(hidden_states, x, time, self._angles(x.device, self.head.width, self.head.heads))
        out = self.final_layer(x, condition).view(batch, self._side, self._side, p, p, c)
        out = out.permute(0, 5, 1, 3, 2, 4).reshape(batch, c, size, size)
        return Transformer2DModelOutput(sample=out) if return_dict else (out,)


# --- guidance and sampling -----------------------------------------------------------------------------------------


def guided_velocity(
    model: Any,
    z: Tensor,
    t: float,
    labels: Tensor | None,
    *,
    scale: float = 1.5,
    interval: tuple[float, float] = (0.0, 1.0),
    channels: int | None = None,
    weak: Any = None,
) -> Tensor:
    """Classifier-free guidance ``v_u + scale (v_c - v_u)`` on the first ``channels``, inside the interval of time.

    Outside the interval, or at scale 1, or without labels, one branch is computed and returned. With a ``weak`` model,
    AutoGuidance (Karras et al. 2024): its velocity, for the same labels, takes the place of ``v_u``.

    Args:
        model: a :class:`RePackDiTTransformer2DModel`.
        z: (B, d, h, w).
        t: in [0, 1].
        labels: (B,), or None for an unconditional model.
        scale: w; 1 is the conditional velocity.
        interval: closed, of t.
        channels: None for all; 3 in the paper's code.
        weak: a worse version of the model: smaller, or trained for less time.
    """
    if not interval[0] <= interval[1]:
        raise ValueError(f"the guidance interval must ascend, got {interval}")
    if channels is not None and not 1 <= channels <= z.shape[1]:
        raise ValueError(f"guidance takes between 1 and {z.shape[1]} channels, got {channels}")
    time = torch.full((len(z),), t, device=z.device, dtype=torch.float32)
    if (labels is None and weak is None) or scale == 1 or not interval[0] <= t <= interval[1]:
        return model(z, time, labels, return_dict=False)[0]
    if weak is not None or labels is None:
        conditional, unconditional = (m(z, time, labels, return_dict=False)[0] for m in (model, weak))
    else:
        null = torch.full_like(labels, model.config.num_classes)
        both = model(torch.cat([z, z]), torch.cat([time, time]), torch.cat([labels, null]), return_dict=False)[0]
        conditional, unconditional = both.chunk(2)
    guided = unconditional + scale * (conditional - unconditional)
    if channels is None:
        return guided
    return torch.cat([guided[:, :channels], conditional[:, channels:]], 1)


def dimension_shift(channels: int, height: int, width: int) -> float:
    """``sqrt(d h w / 4096)`` (RAE): how much more noise a latent of that many numbers needs.

    Train and sample with ``shift = 1 / dimension_shift(...)`` in :func:`shifted_times`' direction of time.
    """
    return math.sqrt(channels * height * width / 4096)


def shifted_times(points: int, shift: float = 1.0) -> Tensor:
    """``points`` times from 0 to 1, ``t' = s t / (1 + (s - 1) t)``: that many minus one Euler steps."""
    if points < 2 or not shift > 0:
        raise ValueError(f"expected >= 2 points and a positive shift, got {points} and {shift}")
    t = torch.linspace(0, 1, points, dtype=torch.float64)
    return shift * t / (1 + (shift - 1) * t)


@torch.no_grad()
def euler_sample(
    model: Any,
    noise: Tensor,
    labels: Tensor | None,
    *,
    points: int = 51,
    shift: float = 1.0,
    scale: float = 1.0,
    interval: tuple[float, float] = (0.0, 1.0),
    channels: int | None = None,
    weak: Any = None,
) -> Tensor:
    """Euler's method on ``dz/dt = v(z, t)`` from noise at 0 to data at 1; ``points - 1`` evaluations."""
    times, z = shifted_times(points, shift).tolist(), noise
    for now, after in itertools.pairwise(times):
        v = guided_velocity(model, z, now, labels, scale=scale, interval=interval, channels=channels, weak=weak)
        z = z + (after - now) * v
    return z


@torch.no_grad()
def heun_sample(
    model: Any, noise: Tensor, labels: Tensor | None, *, points: int = 26, shift: float = 1.0, **guidance: Any
) -> Tensor:
    """Heun's method on the same equation: second order, ``2 (points - 1)`` evaluations.

    Args:
        model: a :class:`RePackDiTTransformer2DModel`.
        noise: (B, d, h, w).
        labels: (B,), or None.
        points: of time, the ends included.
        shift: see :func:`shifted_times`.
        guidance: ``scale``, ``interval``, ``channels`` and ``weak`` of :func:`guided_velocity`; scale is 1 by default.
    """
    guidance = {"scale": 1.0, **guidance}
    times, z = shifted_times(points, shift).tolist(), noise
    for now, after in itertools.pairwise(times):
        first = guided_velocity(model, z, now, labels, **guidance)
        second = guided_velocity(model, z + (after - now) * first, after, labels, **guidance)
        z = z + (after - now) * (first + second) / 2
    return z


@torch.no_grad()
def sde_sample(
    model: Any,
    noise: Tensor,
    labels: Tensor | None,
    *,
    generator: torch.Generator,
    points: int = 251,
    shift: float = 1.0,
    diffusion: float = 1.0,
    **guidance: Any,
) -> Tensor:
    """Euler-Maruyama on the stochastic equation with the same marginals (Ma et al. 2024, SiT).

    ``dz = (v + w s / 2) dt + sqrt(w) dW`` with ``w = diffusion (1 - t)`` and the score ``s = -(z - t v) / (1 - t)``, so
    that ``w s / 2 = -diffusion (z - t v) / 2`` stays finite. The last step takes no noise.

    Args:
        model: a :class:`RePackDiTTransformer2DModel`.
        noise: (B, d, h, w).
        labels: (B,), or None.
        generator: source of the noise, on the CPU or on the latents' device.
        points: of time, the ends included.
        shift: see :func:`shifted_times`.
        diffusion: >= 0; 0 is :func:`euler_sample`.
        guidance: as in :func:`heun_sample`.
    """
    if not diffusion >= 0:
        raise ValueError(f"diffusion must be >= 0, got {diffusion}")
    guidance = {"scale": 1.0, **guidance}
    times, z = shifted_times(points, shift).tolist(), noise
    for i, (now, after) in enumerate(itertools.pairwise(times)):
        v = guided_velocity(model, z, now, labels, **guidance)
        z = z + (after - now) * (v - diffusion * (z - now * v) / 2)
        if i < points - 2 and diffusion:
            fresh = torch.randn(z.shape, generator=generator, device=generator.device).to(z)
            z = z + math.sqrt(diffusion * (1 - now) * (after - now)) * fresh
    return z
