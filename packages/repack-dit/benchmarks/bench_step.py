"""A training step of RePack-DiT beside diffusers' DiT of the same depth, width and tokens."""

import sys
from pathlib import Path
from typing import Any

import torch
from diffusers import DiTTransformer2DModel

from papershelf.bench import as_values, compare, markdown_table, write_results
from repack_dit import RePackDiTTransformer2DModel


def main(out: Path, quick: bool) -> None:
    """Time forward and backward of both on the same latents, and write the table."""
    depth, width, heads, side, batch = (2, 64, 4, 4, 8) if quick else (4, 192, 3, 8, 32)
    shared = {"sample_size": side, "in_channels": 32, "patch_size": 1, "num_layers": depth}
    ours = RePackDiTTransformer2DModel(**shared, hidden_size=width, num_attention_heads=heads, num_classes=9)
    peer: Any = DiTTransformer2DModel(
        **shared, out_channels=32, num_attention_heads=heads, attention_head_dim=width // heads, num_embeds_ada_norm=9
    )
    z, labels = torch.randn(batch, 32, side, side), torch.arange(batch) % 9

    def step_peer() -> None:
        peer.zero_grad()
        peer(z, timestep=torch.full((batch,), 500), class_labels=labels).sample.square().mean().backward()

    def step_ours() -> None:
        ours.zero_grad()
        ours(z, torch.full((batch,), 0.5), labels).sample.square().mean().backward()

    timings = compare({"diffusers DiTTransformer2DModel": step_peer, "RePack-DiT": step_ours}, repeat=3 if quick else 7)
    title = f"forward and backward, depth {depth}, width {width}, {side * side} tokens, batch {batch}"
    write_results(out / "step.json", {title: markdown_table(timings)}, {title: as_values(timings)})


if __name__ == "__main__":
    main(Path(sys.argv[1]), "--quick" in sys.argv)
