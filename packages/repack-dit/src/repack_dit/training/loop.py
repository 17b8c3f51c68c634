"""What the three trainings share: a step counter, averaged weights, metrics, checkpoints, and exact resume.

All randomness of a step is a function of (seed, step, process), and so is the order of the data; what a resumed
training needs are therefore the weights, their averages and the optimisers' states.
"""

from __future__ import annotations

import copy
import csv
import json
import math
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from papershelf import InputError, Streams
from papershelf.files import atomic_path, load_checkpoint, save_checkpoint
from papershelf.paper import Progress, silent

LAST, BEST, METRICS = "last.safetensors", "best.safetensors", "metrics.jsonl"
PRECISIONS = ("no", "bf16", "fp16")


class DivergedError(FloatingPointError, InputError):
    """A loss that is not finite; the last checkpoint is kept."""


def accelerator(device: str = "cpu", precision: str = "no") -> Any:
    """A Hugging Face accelerator for this device and precision; it finds the other processes of a launch.

    Raises:
        ValueError: for an unknown precision or a device that is not there.
    """
    from accelerate import Accelerator
    from accelerate.state import AcceleratorState

    if precision not in PRECISIONS:
        raise ValueError(f"precision must be one of {', '.join(PRECISIONS)}, got {precision!r}")
    if device not in ("cpu", "cuda", "mps"):
        raise ValueError(f"device must be cpu, cuda or mps, got {device!r}")
    if device == "cuda" and not torch.cuda.is_available():
        raise ValueError("device cuda was asked for, and torch finds no such device here")
    if precision == "fp16" and device == "cpu":
        raise ValueError("fp16 has no gradient scaling on the CPU; use bf16 or no")
    AcceleratorState._reset_state()  # two trainings of one process may differ in precision
    return Accelerator(mixed_precision=precision, cpu=device == "cpu")


@torch.no_grad()
def update_ema(average: nn.Module, model: nn.Module, decay: float) -> None:
    """``average <- decay average + (1 - decay) model``, parameter by parameter; buffers are copied."""
    for a, p in zip(average.parameters(), model.parameters(), strict=True):
        a.lerp_(p.to(a.dtype), 1 - decay)
    for a, b in zip(average.buffers(), model.buffers(), strict=True):
        a.copy_(b)


def epoch_indices(
    step: int, batch: int, count: int, streams: Streams, permutation: Callable[[torch.Generator], Tensor] | None = None
) -> Tensor:
    """Indices of one step, where every epoch is a permutation of its own and nothing is left out between epochs."""
    found: list[Tensor] = []
    start, stop = step * batch, (step + 1) * batch
    for epoch in range(start // count, (stop - 1) // count + 1):
        generator = streams.torch(f"epoch {epoch}")
        order = torch.randperm(count, generator=generator) if permutation is None else permutation(generator)
        found.append(order[max(start - epoch * count, 0) : stop - epoch * count])
    return torch.cat(found)


class Training:
    """Runs :meth:`update` step by step. A subclass sets up modules and optimisers and calls :meth:`prepare`.

    Args:
        steps: optimiser steps in all.
        seed: of everything random.
        folder: for checkpoints and metrics; None keeps nothing.
        save_every: steps between checkpoints.
        keep_every: steps between averaged weights that stay; 0 keeps none.
        ema: decay of the averaged weights.
        accelerator: see :func:`accelerator`.
    """

    def __init__(
        self,
        *,
        steps: int,
        seed: int,
        folder: Path | None = None,
        save_every: int = 200,
        keep_every: int = 0,
        ema: float = 0.999,
        accelerator: Any = None,
    ) -> None:
        if steps < 1 or save_every < 1 or keep_every < 0 or not 0 <= ema < 1:
            raise ValueError(
                f"expected steps and save_every >= 1, keep_every >= 0 and ema in [0, 1), "
                f"got {steps}, {save_every}, {keep_every}, {ema}"
            )
        self.steps, self.streams, self.folder = steps, Streams(seed), Path(folder) if folder else None
        self.save_every, self.keep_every, self.ema = save_every, keep_every, ema
        self.accelerator = accelerator or globals()["accelerator"]()
        self.step, self.best = 0, math.inf
        self.losses: list[float] = []
        self.modules: dict[str, nn.Module] = {}
        self.optimizers: dict[str, torch.optim.Optimizer] = {}
        self.wrapped: dict[str, Any] = {}
        self.average: nn.Module

    # --- for subclasses ---

    def prepare(self, modules: dict[str, nn.Module], optimizers: dict[str, torch.optim.Optimizer]) -> None:
        """Take over modules and their optimisers by name; the first module is averaged."""
        self.modules = modules
        device = self.accelerator.device
        for module in modules.values():
            module.to(device)
        self.average = copy.deepcopy(next(iter(modules.values()))).requires_grad_(False).eval()
        for name, module in modules.items():
            self.wrapped[name] = self.accelerator.prepare(module)
            self.optimizers[name] = self.accelerator.prepare(optimizers[name])

    def update(self) -> dict[str, float]:
        """One optimiser step; the entry ``loss`` is recorded."""
        raise NotImplementedError

    def validate(self) -> float | None:
        """Held-out loss of the averaged weights, the smaller the better; None where nothing is held out."""
        return None

    def generator(self, name: str) -> torch.Generator:
        """Randomness of this step and process."""
        return self.streams.torch(f"{name} {self.step} {self.accelerator.process_index}")

    def mine(self, indices: Tensor) -> Tensor:
        """This process's part of a batch."""
        return indices[self.accelerator.process_index :: self.accelerator.num_processes]

    def checked(self, loss: Tensor, indices: Tensor) -> float:
        """The loss as a number.

        Raises:
            DivergedError: if it is not finite, naming step and images.
        """
        value = float(loss.detach())
        if not math.isfinite(value):
            kept = f"; the last checkpoint is {self.folder / LAST}" if self.folder else ""
            raise DivergedError(f"loss {value} at step {self.step}, images {indices.tolist()[:16]} ...{kept}")
        return value

    def descend(self, name: str, loss: Tensor, clip: float | None = None) -> None:
        """Backward, clip, step of one optimiser."""
        optimizer = self.optimizers[name]
        optimizer.zero_grad()
        self.accelerator.backward(loss)
        if clip is not None:
            self.accelerator.clip_grad_norm_(self.wrapped[name].parameters(), clip)
        optimizer.step()

    # --- running ---

    def run(self, until: int | None = None, progress: Progress = silent) -> None:
        """Train to this step, at most to the last."""
        last = self.steps if until is None else min(until, self.steps)
        for module in self.wrapped.values():
            module.train()
        name = type(self).__name__
        for _ in progress(range(self.step, last), label=name):
            values = self.update()
            self.step += 1
            self.losses.append(values["loss"])
            update_ema(self.average, next(iter(self.modules.values())), self.ema)
            self._log(values)
            kept = self.step % self.save_every == 0 or (self.keep_every and self.step % self.keep_every == 0)
            if self.folder and (kept or self.step == self.steps):
                self._keep()

    def _log(self, values: dict[str, float]) -> None:
        if self.folder and self.accelerator.is_main_process:
            self.folder.mkdir(parents=True, exist_ok=True)
            with (self.folder / METRICS).open("a") as file:
                file.write(json.dumps({"step": self.step, **values}) + "\n")

    def _keep(self) -> None:
        if self.folder and self.accelerator.is_main_process:
            held_out = self.validate()
            if held_out is not None and held_out < self.best:
                self.best = held_out
                save_checkpoint(self.folder / BEST, {"step": self.step, "average": _copied(self.average.state_dict())})
            if self.keep_every and self.step % self.keep_every == 0:
                kept = self.folder / f"step-{self.step:07d}.safetensors"
                save_checkpoint(kept, {"step": self.step, "average": _copied(self.average.state_dict())})
            self.save(self.folder / LAST)
            if self.step == self.steps:
                _write_csv(self.folder)
        self.accelerator.wait_for_everyone()

    def save(self, path: Path) -> None:
        """Everything the next step depends on, into one ``.safetensors`` file, atomically."""
        tree: dict[str, Any] = {
            "step": self.step,
            "best": self.best if math.isfinite(self.best) else None,
            "losses": self.losses,
            "average": _copied(self.average.state_dict()),
            "modules": {name: _copied(module.state_dict()) for name, module in self.modules.items()},
            "optimizers": {
                name: {str(i): _copied(state) for i, state in optimizer.state_dict()["state"].items()}
                for name, optimizer in self.optimizers.items()
            },
        }
        if self.accelerator.scaler is not None:
            tree["scaler"] = self.accelerator.scaler.state_dict()
        save_checkpoint(path, tree)

    def restore(self, path: Path) -> None:
        """Go on from :meth:`save`; metrics after that step are dropped.

        Raises:
            InputError: if the file is no such checkpoint or of another model.
        """
        kept = load_checkpoint(path)
        try:
            for name, module in self.modules.items():
                module.load_state_dict(kept["modules"][name])
                state = self.optimizers[name].state_dict()
                state["state"] = {int(i): moments for i, moments in kept["optimizers"][name].items()}
                self.optimizers[name].load_state_dict(state)
            self.average.load_state_dict(kept["average"])
            if self.accelerator.scaler is not None:
                self.accelerator.scaler.load_state_dict(kept["scaler"])
            self.step, self.losses = int(kept["step"]), list(kept["losses"])
            self.best = math.inf if kept["best"] is None else float(kept["best"])
        except (KeyError, TypeError, RuntimeError, ValueError) as error:
            told = " ".join(str(error).split())[:300]
            raise InputError(f"{path} is of another model or no checkpoint of a training: {told}") from error
        if self.folder and self.accelerator.is_main_process:
            _drop_after(self.folder / METRICS, self.step)

    def resume(self) -> None:
        """Go on from the folder's last checkpoint, if there is one."""
        if self.folder and (self.folder / LAST).is_file():
            self.restore(self.folder / LAST)
        elif self.folder and self.accelerator.is_main_process:
            _drop_after(self.folder / METRICS, 0)
        self.accelerator.wait_for_everyone()


def _copied(values: dict[str, Any]) -> dict[str, Any]:
    return {k: v.detach().cpu().clone() if isinstance(v, Tensor) else v for k, v in values.items()}


def read_metrics(folder: Path) -> list[dict[str, float]]:
    """Rows of ``metrics.jsonl``; a last line that a kill cut off is left out."""
    rows = []
    path = Path(folder) / METRICS
    for line in path.read_text().splitlines() if path.is_file() else ():
        try:
            rows.append(json.loads(line))
        except ValueError:
            break
    return rows


def _drop_after(path: Path, step: int) -> None:
    rows: Iterable[dict[str, float]] = [row for row in read_metrics(path.parent) if row["step"] <= step]
    if path.is_file():
        with atomic_path(path) as temporary:
            temporary.write_text("".join(json.dumps(row) + "\n" for row in rows))


def _write_csv(folder: Path) -> None:
    rows = read_metrics(folder)
    names = list(dict.fromkeys(name for row in rows for name in row))
    with atomic_path(folder / "metrics.csv") as temporary, temporary.open("w", newline="") as file:
        writer = csv.DictWriter(file, names)
        writer.writeheader()
        writer.writerows(rows)


def close() -> None:
    """End the process group of a launch, if there is one."""
    import torch.distributed as distributed

    if distributed.is_available() and distributed.is_initialized():
        distributed.barrier()
        distributed.destroy_process_group()
