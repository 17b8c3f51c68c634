"""Sampling with guidance from t = 0.11 on: one branch outside the interval beside two branches always."""

import itertools
import sys
from pathlib import Path

import torch

from papershelf.bench import as_values, compare, markdown_table, write_results
from repack_dit import RePackDiTTransformer2DModel, euler_sample
from repack_dit.transformer import shifted_times

LOW, SCALE, CHANNELS, SHIFT = 0.11, 15.0, 3, 0.3


@torch.no_grad()
def always_two(
    model: RePackDiTTransformer2DModel, noise: torch.Tensor, labels: torch.Tensor, points: int
) -> torch.Tensor:
    """The same sampler as the release writes it: both branches at every step, the guided one taken from LOW on."""
    z, null = noise, torch.full_like(labels, model.config.num_classes)
    for now, after in itertools.pairwise(shifted_times(points, SHIFT).tolist()):
        time = torch.full((2 * len(z),), now)
        both = model(torch.cat([z, z]), time, torch.cat([labels, null]), return_dict=False)[0]
        v, unconditional = both.chunk(2)
        if now >= LOW:
            guided = unconditional + SCALE * (v - unconditional)
            v = torch.cat([guided[:, :CHANNELS], v[:, CHANNELS:]], 1)
        z = z + (after - now) * v
    return z


def main(out: Path, quick: bool) -> None:
    """Time both on the same noise, check that they give the same latents, and write the table."""
    points, side, batch = (6, 4, 4) if quick else (51, 8, 8)
    torch.manual_seed(0)
    model = RePackDiTTransformer2DModel.from_preset("Ti/1", sample_size=side, in_channels=32, num_classes=9).eval()
    torch.nn.init.normal_(model.final_layer.linear.weight, std=0.02)  # a fresh model's velocity would be zero
    noise, labels = torch.randn(batch, 32, side, side), torch.arange(batch) % 9

    def skipping() -> torch.Tensor:
        return euler_sample(
            model,
            noise,
            labels,
            points=points,
            shift=SHIFT,
            scale=SCALE,
            interval=(LOW, 1.0),
            channels=CHANNELS,
        )

    difference = float((skipping() - always_two(model, noise, labels, points)).abs().max())
    if not difference <= 1e-4:
        raise SystemExit(f"the two differ by {difference:.2g}, more than 1e-4")
    functions = {"always two branches": lambda: always_two(model, noise, labels, points), "interval skip": skipping}
    timings = compare(functions, repeat=3 if quick else 7)
    single = sum(t < LOW for t in shifted_times(points, SHIFT).tolist()[:-1])
    title = f"{points - 1} steps, shift {SHIFT}, {single} of them below t = {LOW}; largest difference {difference:.1e}"
    write_results(out / "guidance.json", {title: markdown_table(timings)}, {title: as_values(timings)})


if __name__ == "__main__":
    main(Path(sys.argv[1]), "--quick" in sys.argv)
