"""A training step of RePack-DiT beside diffusers' DiT and a plain writing of the official blocks, of the same size."""

import sys
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from diffusers import DiTTransformer2DModel
from torch import Tensor, nn

from papershelf.bench import as_values, compare, markdown_table, write_results
from repack_dit import RePackDiTTransformer2DModel
from repack_dit.transformer import axial_rotation, time_frequencies


class OfficialBlock(nn.Module):
    """The release's block, line by line: three chunks of qkv, rotary angles on each head, SwiGLU, adaLN."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads, hidden = heads, int(2 / 3 * 4 * width)
        self.norm1, self.norm2 = nn.RMSNorm(width, eps=1e-6), nn.RMSNorm(width, eps=1e-6)
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.w12, self.w3 = nn.Linear(width, 2 * hidden), nn.Linear(hidden, width)
        self.adaln = nn.Sequential(nn.SiLU(), nn.Linear(width, 6 * width))

    def rope(self, x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
        """Interleaved pairs."""
        first, second = x.view(*x.shape[:-1], -1, 2).unbind(-1)
        return x * cosine + torch.stack((-second, first), -1).view(x.shape) * sine

    def forward(self, x: Tensor, c: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
        """Tokens (B, N, width) and condition (B, width)."""
        shift1, scale1, gate1, shift2, scale2, gate2 = self.adaln(c).chunk(6, 1)
        h = self.norm1(x) * (1 + scale1.unsqueeze(1)) + shift1.unsqueeze(1)
        b, n, width = h.shape
        q, k, v = self.qkv(h).reshape(b, n, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4).unbind(0)
        q, k = self.rope(q, cosine, sine), self.rope(k, cosine, sine)
        h = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, n, width)
        x = x + gate1.unsqueeze(1) * self.proj(h)
        h = self.norm2(x) * (1 + scale2.unsqueeze(1)) + shift2.unsqueeze(1)
        first, second = self.w12(h).chunk(2, -1)
        return x + gate2.unsqueeze(1) * self.w3(F.silu(first) * second)


class OfficialDiT(nn.Module):
    """Embedding, blocks and final layer, patch 1."""

    def __init__(self, side: int, channels: int, depth: int, width: int, heads: int, classes: int) -> None:
        super().__init__()
        self.embed, self.labels = nn.Conv2d(channels, width, 1), nn.Embedding(classes + 1, width)
        self.positions = nn.Parameter(torch.zeros(1, side * side, width), requires_grad=False)
        self.time = nn.Sequential(nn.Linear(256, width), nn.SiLU(), nn.Linear(width, width))
        self.blocks = nn.ModuleList(OfficialBlock(width, heads) for _ in range(depth))
        self.norm, self.out = nn.RMSNorm(width, eps=1e-6), nn.Linear(width, channels)
        self.adaln = nn.Sequential(nn.SiLU(), nn.Linear(width, 2 * width))
        cosine, sine = axial_rotation(width // heads, side)
        self.register_buffer("cosine", cosine)
        self.register_buffer("sine", sine)

    def forward(self, z: Tensor, t: Tensor, y: Tensor) -> Tensor:
        """Velocity of z (B, C, side, side)."""
        x = self.embed(z).flatten(2).transpose(1, 2) + self.positions
        c = self.time(time_frequencies(t)) + self.labels(y)
        for block in self.blocks:
            x = block(x, c, self.cosine, self.sine)
        shift, scale = self.adaln(c).chunk(2, 1)
        x = self.out(self.norm(x) * (1 + scale.unsqueeze(1)) + shift.unsqueeze(1))
        return x.transpose(1, 2).reshape(z.shape)


def same_weights(ours: Any, official: OfficialDiT) -> None:
    """Random weights for both, so that they must give the same velocity."""
    names = {"x_embedder.proj": "embed", "y_embedder.embedding_table": "labels", "t_embedder.mlp": "time"}
    names |= {"pos_embed": "positions", "final_layer.norm_final": "norm", "final_layer.linear": "out"}
    names |= {"final_layer.adaLN_modulation": "adaln", "adaLN_modulation": "adaln", "attn.": "", "mlp.w": "w"}
    with torch.no_grad():
        for parameter in ours.parameters():
            parameter.normal_(std=0.05)
    state = {}
    for key, value in ours.state_dict().items():
        name = key
        for old, new in names.items():
            name = name.replace(old, new)
        state[name] = value
    official.load_state_dict(state | {"cosine": official.cosine, "sine": official.sine})


def main(out: Path, quick: bool) -> None:
    """Time forward and backward of all three on the same latents, and write the tables."""
    depth, width, heads, side, batch = (2, 64, 4, 4, 8) if quick else (4, 192, 3, 8, 32)
    shared = {"sample_size": side, "in_channels": 32, "patch_size": 1, "num_layers": depth}
    ours = RePackDiTTransformer2DModel(**shared, hidden_size=width, num_attention_heads=heads, num_classes=9)
    peer: Any = DiTTransformer2DModel(
        **shared, out_channels=32, num_attention_heads=heads, attention_head_dim=width // heads, num_embeds_ada_norm=9
    )
    official = OfficialDiT(side, 32, depth, width, heads, 9)
    same_weights(ours, official)
    z, labels = torch.randn(batch, 32, side, side), torch.arange(batch) % 9
    half = torch.full((batch,), 0.5)
    difference = float((ours(z, half, labels).sample - official(z, half, labels)).abs().max().detach())
    if not difference <= 1e-4:
        raise SystemExit(f"ours and the official blocks differ by {difference:.2g}, more than 1e-4")

    def step_peer() -> None:
        peer.zero_grad()
        peer(z, timestep=torch.full((batch,), 500), class_labels=labels).sample.square().mean().backward()

    def step_official() -> None:
        official.zero_grad()
        official(z, half, labels).square().mean().backward()

    def step_ours() -> None:
        ours.zero_grad()
        ours(z, half, labels).sample.square().mean().backward()

    tables, values = {}, {}
    size = f"forward and backward, depth {depth}, width {width}, {side * side} tokens, batch {batch}"
    for name, step in (
        ("diffusers DiTTransformer2DModel", step_peer),
        ("the official blocks, rewritten", step_official),
    ):
        timings = compare({name: step, "RePack-DiT": step_ours}, repeat=3 if quick else 7)
        tables[f"{size}, beside {name}"] = markdown_table(timings)
        values[name] = as_values(timings)
    write_results(out / "step.json", tables, values)


if __name__ == "__main__":
    main(Path(sys.argv[1]), "--quick" in sys.argv)
