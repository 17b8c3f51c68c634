"""Reading shuffled batches from the latent cache beside opening a safetensors file for every item."""

import json
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from safetensors import safe_open

from papershelf.bench import as_values, compare, markdown_table, write_results
from repack_dit import LatentCache, RePackAutoencoder
from repack_dit.data import Images

BATCH = 256


def per_item(folder: Path, indices: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The same batch as published readers take it: the item's shard is opened, and one row of it read."""
    index = json.loads((folder / "cache.json").read_text())
    mean, std = (torch.tensor(index[k]).view(-1, 1, 1) for k in ("mean", "std"))
    found, labels = [], []
    for i in indices.tolist():
        shard, row = divmod(i, index["shard_size"])
        with safe_open(folder / index["shards"][shard]["name"], "pt") as opened:
            found.append((opened.get_slice("latents")[row : row + 1][0].float() - mean) / std)
            labels.append(opened.get_slice("labels")[row : row + 1])
    return torch.stack(found), torch.cat(labels)


def main(out: Path, quick: bool) -> None:
    """Time both on the same batches of 16 x 16 x 32 latents, check that they are equal, and write the table."""
    count, shard = (1_000, 300) if quick else (12_000, 4_000)
    model: Any = RePackAutoencoder(32, 32, "deterministic", (32,) * 5, 1, 32, 16)
    random = torch.Generator().manual_seed(0)
    model.encode = lambda x: SimpleNamespace(  # the encoder's time is not what is measured
        latent_dist=SimpleNamespace(
            mean=torch.randn(len(x), 32, 16, 16, generator=random), std=torch.zeros(len(x), 32, 16, 16)
        )
    )
    images = Images(np.zeros((count, 8, 8, 3), np.uint8), np.arange(count) % 10, tuple("0123456789"))
    with tempfile.TemporaryDirectory() as name:
        cache = LatentCache.build(images, model, Path(name), views=("plain",), shard_size=shard, batch=500)
        order = cache.permutation(torch.Generator().manual_seed(1))[: 4 * BATCH].split(BATCH)
        for a, b in zip(cache.take(order[0]), per_item(Path(name), order[0]), strict=True):
            torch.testing.assert_close(a, b)

        def ours() -> None:
            for rows in order:
                cache.take(rows)

        functions = {
            "a file opened an item": lambda: [per_item(Path(name), rows) for rows in order],
            "LatentCache": ours,
        }
        timings = compare(functions, repeat=3 if quick else 7)
    rate = 4 * BATCH / timings[1].median
    title = f"{4 * BATCH} latents of 32 x 16 x 16 in shuffled order, page cache; LatentCache reads {rate:,.0f} a second"
    write_results(out / "cache.json", {title: markdown_table(timings)}, {title: as_values(timings)})


if __name__ == "__main__":
    main(Path(sys.argv[1]), "--quick" in sys.argv)
