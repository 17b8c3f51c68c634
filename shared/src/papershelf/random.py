"""One seed, many independent named streams. Nothing here reads or sets global random state."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from torch import Generator as TorchGenerator


@dataclass(frozen=True)
class Streams:
    """Independent random streams derived from one seed; the same name always gives the same stream.

    >>> Streams(0).numpy("data").integers(100) == Streams(0).numpy("data").integers(100)
    True
    """

    seed: int

    def __post_init__(self) -> None:
        if self.seed < 0:
            raise ValueError(f"seed must be >= 0, got {self.seed}")

    def _sequence(self, name: str) -> np.random.SeedSequence:
        words = np.frombuffer(hashlib.sha256(name.encode()).digest(), dtype=np.uint32)
        return np.random.SeedSequence(self.seed, spawn_key=tuple(int(word) for word in words))

    def numpy(self, name: str) -> np.random.Generator:
        """A numpy generator for this name."""
        return np.random.default_rng(self._sequence(name))

    def integer(self, name: str) -> int:
        """A seed in ``[0, 2**63)`` for libraries that take an integer."""
        return int(self._sequence(name).generate_state(1, np.uint64)[0] >> np.uint64(1))

    def torch(self, name: str, device: str = "cpu") -> TorchGenerator:
        """A torch generator for this name."""
        import torch

        return torch.Generator(device=device).manual_seed(self.integer(name))

    def child(self, name: str) -> Streams:
        """Streams of a part that draws names of its own."""
        return Streams(self.integer(name))
