"""The training loop: schedules, checkpoints that resume bit for bit, restarts, divergence."""

from __future__ import annotations

import hashlib
import json
import math
import os
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from cadre.model import CaDRe, CaDReOutput, Penalties
from cadre.windows import Batch, WindowSource, step_generator

EVALUATE_EVERY = 250
CHECKPOINT_EVERY = 500


@dataclass(frozen=True)
class Schedule:
    """How long and how hard to train.

    Attributes:
        steps: of Adam.
        batch_size: windows a step.
        lr: first learning rate; falls to 2e-5 along a cosine.
        weight_decay: above 0 AdamW is used.
        penalties: weights of the l1 and acyclicity terms.
        dag: ``penalty`` (ramped from ``ramp[0]`` to ``ramp[1]`` of the steps) or ``alm`` (augmented Lagrangian).
        ramp: see ``dag``.
        warm_up: share of the steps in which the KL's weight rises to 1.
        importance: samples of the importance-weighted bound.
        clip: largest norm of a gradient.
        patience: evaluations without a better validation bound, after the ramp, before stopping.
    """

    steps: int
    batch_size: int
    lr: float
    weight_decay: float
    penalties: Penalties
    dag: str = "penalty"
    ramp: tuple[float, float] = (0.25, 0.6)
    warm_up: float = 0.2
    importance: int = 1
    clip: float = 5.0
    patience: int = 10


class Evaluation(NamedTuple):
    """One look at the validation windows: bound a step, active latents, edges at 0.1, acyclicity, spread of scale."""

    step: int
    elbo: float
    active: int
    edges: int
    dag: float
    condition: float


class Trained(NamedTuple):
    """One restart: its history, and whether it ended before all steps."""

    history: list[Evaluation]
    stopped_early: bool


def save_state(path: Path, tensors: dict[str, Tensor], meta: dict[str, Any]) -> None:
    """Write tensors and JSON atomically; holds no code."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".part")
    os.close(handle)
    temporary = Path(name)
    try:
        # Cloned: safetensors refuses tensors that share memory.
        plain = {key: value.detach().cpu().contiguous().clone() for key, value in tensors.items()}
        save_file(plain, temporary, {"meta": json.dumps(meta)})
        with temporary.open("rb+") as file:
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def load_state(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read what :func:`save_state` wrote.

    Raises:
        ValueError: if the file is missing, damaged or of another kind.
    """
    path = Path(path)
    if not path.is_file():
        raise ValueError(f"no file {path}")
    try:
        with safe_open(path, "pt") as opened:
            return {key: opened.get_tensor(key) for key in opened.keys()}, json.loads(opened.metadata()["meta"])  # noqa: SIM118
    except Exception as error:
        raise ValueError(f"{path} is damaged or was not written by cadre: {error}") from error


def learning_rate(schedule: Schedule, step: int) -> float:
    """Cosine from ``lr`` to 2e-5."""
    low = min(2e-5, schedule.lr)
    return low + (schedule.lr - low) * 0.5 * (1 + math.cos(math.pi * step / schedule.steps))


@dataclass
class Lagrangian:
    """Multiplier and weight of the augmented Lagrangian for acyclicity."""

    multiplier: float = 0.0
    rho: float = 1.0
    last: float = math.inf

    def update(self, value: float) -> None:
        """After an evaluation: raise the multiplier; the weight tenfold where the violation fell by less than 3/4."""
        self.multiplier += self.rho * value
        if value > 0.25 * self.last and value > 1e-8:
            self.rho = min(self.rho * 10, 1e12)
        self.last = value


def penalised(output: CaDReOutput, schedule: Schedule, step: int, lagrangian: Lagrangian) -> Tensor:
    """The loss with its l1 and acyclicity terms at a step."""
    penalties = schedule.penalties
    loss = output.loss + penalties.alpha * output.sparsity[0] + penalties.alpha_latent * output.sparsity[1]
    if schedule.dag == "alm":
        cycles = output.dag.sum()
        return loss + lagrangian.multiplier * cycles + 0.5 * lagrangian.rho * cycles.square()
    start, end = schedule.ramp
    share = (step / schedule.steps - start) / max(end - start, 1e-9)
    return loss + penalties.beta * min(1.0, max(0.0, share)) * output.dag.sum()


@torch.no_grad()
def evaluate(model: CaDRe, batch: Batch, step: int, importance: int = 1) -> Evaluation:
    """The validation bound and what the model has found so far."""
    model.eval()
    generator = torch.Generator(device=batch.x.device).manual_seed(0)
    output = model(batch.x, batch.domain, batch.latents, importance=importance, latent_graphs=True, generator=generator)
    model.train()
    J = output.J.abs().mean(0)
    eye = torch.eye(model.d, device=J.device)
    system = torch.linalg.cond(eye - output.J[:: max(1, len(output.J) // 256)])
    return Evaluation(
        step,
        float(output.elbo),
        int((output.kl_z > 0.05).sum()),
        int((J * (1 - eye) >= 0.1).sum()),
        float(output.dag.sum()),
        float(system.max()),
    )


def _optimiser(model: nn.Module, schedule: Schedule) -> torch.optim.Optimizer:
    kind = torch.optim.AdamW if schedule.weight_decay else torch.optim.Adam
    return kind(model.parameters(), lr=schedule.lr, weight_decay=schedule.weight_decay, fused=True)


def _pack(model: nn.Module, optimiser: torch.optim.Optimizer) -> dict[str, Tensor]:
    state = {f"model.{key}": value for key, value in model.state_dict().items()}
    for index, slots in optimiser.state_dict()["state"].items():
        state |= {f"adam.{index}.{name}": torch.as_tensor(value) for name, value in slots.items()}
    return state


def _unpack(tensors: dict[str, Tensor], model: nn.Module, optimiser: torch.optim.Optimizer) -> None:
    model.load_state_dict({key[6:]: value for key, value in tensors.items() if key.startswith("model.")})
    slots: dict[int, dict[str, Tensor]] = {}
    for key, value in tensors.items():
        if key.startswith("adam."):
            _, index, name = key.split(".", 2)
            slots.setdefault(int(index), {})[name] = value
    groups = optimiser.state_dict()["param_groups"]
    optimiser.load_state_dict({"state": slots, "param_groups": groups})


def train(
    model: CaDRe,
    source: WindowSource,
    schedule: Schedule,
    seed: int,
    checkpoint: Path | None = None,
    device: str = "cpu",
    watch: Callable[[int, Evaluation | None], None] = lambda step, evaluation: None,
) -> Trained:
    """Train in place.

    Args:
        model: on ``device``.
        source: of windows.
        schedule: see there.
        seed: of batches and samples.
        checkpoint: file to write every 500 steps and to resume from; bit-identical on a CPU.
        device: of the computation.
        watch: called after each step, with the evaluation where there was one.

    Raises:
        FloatingPointError: if the loss is not finite; names the last good checkpoint.
    """
    optimiser = _optimiser(model, schedule)
    history: list[Evaluation] = []
    lagrangian, start = Lagrangian(), 0
    identity = _identity(model, schedule, seed, source)
    if checkpoint is not None and checkpoint.is_file():
        tensors, meta = load_state(checkpoint)
        if meta.get("identity") != identity:
            raise ValueError(f"{checkpoint} belongs to another run (other data or settings); name another folder")
        _unpack(tensors, model, optimiser)
        start, lagrangian = meta["step"], Lagrangian(*meta["lagrangian"])
        history = [Evaluation(*row) for row in meta["history"]]
    validation = source.validation().to(device)
    model.train()
    parameters = list(model.parameters())
    for step in range(start, schedule.steps):
        if stalled(history, schedule):
            return Trained(history, True)
        generator = step_generator(seed + 1, step, device)
        batch = source.batch(step, seed, schedule.batch_size).to(device)
        for group in optimiser.param_groups:
            group["lr"] = learning_rate(schedule, step)
        warm = min(1.0, (step + 1) / max(schedule.warm_up * schedule.steps, 1))
        output = model(
            batch.x,
            batch.domain,
            batch.latents,
            kl_weight=warm,
            importance=schedule.importance,
            latent_graphs=schedule.penalties.alpha_latent > 0,
            generator=generator,
        )
        loss = penalised(output, schedule, step, lagrangian)
        optimiser.zero_grad(set_to_none=True)
        loss.backward()
        norm = nn.utils.clip_grad_norm_(parameters, schedule.clip)
        if not (math.isfinite(float(loss.detach())) and math.isfinite(float(norm))):
            kept = f"the last good checkpoint is {checkpoint}" if _exists(checkpoint) else "no checkpoint was written"
            raise FloatingPointError(f"the loss became {float(loss.detach())} at step {step}; {kept}; lower lr")
        optimiser.step()
        done, found = step + 1, None
        if done % EVALUATE_EVERY == 0 or done == schedule.steps:
            found = evaluate(model, validation, done, schedule.importance)
            history.append(found)
            lagrangian.update(found.dag)
        if checkpoint is not None and (done % CHECKPOINT_EVERY == 0 or done == schedule.steps):
            meta = {
                "step": done,
                "identity": identity,
                "history": [list(row) for row in history],
                "lagrangian": [lagrangian.multiplier, lagrangian.rho, lagrangian.last],
            }
            save_state(checkpoint, _pack(model, optimiser), meta)
        watch(done, found)
    return Trained(history, False)


def stalled(history: list[Evaluation], schedule: Schedule) -> bool:
    """Whether the last ``patience`` evaluations after the ramp brought nothing."""
    after = [row.elbo for row in history if row.step >= schedule.ramp[1] * schedule.steps]
    return len(after) > schedule.patience and max(after[-schedule.patience :]) <= max(after[: -schedule.patience])


def _identity(model: CaDRe, schedule: Schedule, seed: int, source: WindowSource) -> str:
    """What must agree between a checkpoint and the run that resumes from it: settings, shapes, masks and data."""
    shapes = [list(p.shape) for p in model.parameters()]
    instant = model.dynamics.instant if model.dynamics is not None else ""
    content = hashlib.sha256()
    for array in (source.mean, source.sd, *(buffer.cpu().numpy() for buffer in model.buffers())):
        content.update(np.ascontiguousarray(array).tobytes())
    settings = [repr(schedule), seed, model.mode, model.lags, model.window, instant, source.training_windows]
    return json.dumps([settings, shapes, content.hexdigest()])


def _exists(path: Path | None) -> bool:
    return path is not None and path.is_file()


def restart_model(build: Callable[[torch.Generator], CaDRe], seed: int) -> CaDRe:
    """A fresh model from a seed."""
    return build(torch.Generator().manual_seed(int(np.random.SeedSequence(seed).generate_state(1)[0])))
