"""Train and evaluate policies on LeRobot folders; ``torchrun -m niaf.training`` uses several GPUs.

A run keeps its state in its folder and goes on from there when it is called again.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from niaf.backbones import word_buckets
from niaf.data import Chunks, LeRobotReader, _two_dimensional
from niaf.losses import TimeJitter
from niaf.policy import NIAFConfig, NIAFPolicy
from papershelf import InputError, require
from papershelf.files import load_checkpoint, save_checkpoint


@dataclass(frozen=True)
class TrainOptions:
    """How a policy is trained (the paper: AdamW, betas .9 and .95, batch 32, 20,000 steps; warm-up ours).

    Attributes:
        steps: of the optimiser.
        batch_size: a process.
        warm_up: steps of linear growth of the learning rate.
        seed: of batches and jitter.
        save_every: steps between checkpoints.
        velocity: ``"recorded"``, ``"diff"`` or None; see :meth:`niaf.data.LeRobotReader.chunks`.
        test_share: episodes at the end that are held out.
    """

    steps: int = 1000
    batch_size: int = 32
    warm_up: int = 50
    seed: int = 0
    save_every: int = 500
    velocity: Any = None
    test_share: float = 0.1


def config_for(reader: LeRobotReader, **changes: Any) -> NIAFConfig:
    """A configuration with the data set's sizes and rate."""
    sizes = {}
    for key in ("action", "observation.state"):
        if key not in reader.features:
            raise InputError(f"{reader.path}: no feature {key!r}; it has {', '.join(reader.features)}")
        sizes[key] = math.prod(reader.features[key]["shape"])
    given = {"action_dim": sizes["action"], "state_dim": sizes["observation.state"], "fps": reader.fps}
    return NIAFConfig.from_json({**given, **changes})


def split_rows(reader: LeRobotReader, test_share: float) -> tuple[np.ndarray, np.ndarray]:
    """Frames of the first episodes (training) and of the last ones (test); one episode is used for both."""
    starts = reader.starts()
    count = len(reader.episodes)
    test = min(max(1, round(test_share * count)), count - 1) if test_share > 0 and count > 1 else 0
    border = starts[count - test]
    everything = np.arange(starts[-1])
    return everything[:border], everything[border:] if test else everything


class Batches:
    """Batches of a data set in the form of :class:`~niaf.policy.NIAFPolicy`."""

    def __init__(self, policy: NIAFPolicy, reader: LeRobotReader, velocity: Any = None) -> None:
        self.policy, self.reader = policy, reader
        self.chunks: Chunks = reader.chunks(policy.config.horizon, velocity=velocity)
        self.tasks = [e.tasks[0] if e.tasks else "" for e in reader.episodes]
        self.processor = None
        source = policy.config.vlm
        if policy.config.backbone in ("vlm", "florence2") and not isinstance(source, Mapping):
            transformers = require("transformers", "papershelf-niaf[vlm]")
            self.processor = transformers.AutoProcessor.from_pretrained(source)

    def __call__(self, rows: np.ndarray) -> dict[str, Any]:
        """The batch of these frames."""
        c, config = self.chunks, self.policy.config
        device = self.policy.state_mean.device
        assert c.cond is not None

        def tensor(x: np.ndarray) -> Tensor:
            return torch.as_tensor(np.ascontiguousarray(x), dtype=torch.float32).to(device)

        batch: dict[str, Any] = {
            "observation.state": tensor(c.cond[rows]),
            "action": tensor(c.action[rows]),
            "action_is_pad": torch.as_tensor(c.mask[rows]).to(device),
            "task": [self.tasks[i] for i in c.episode[rows]],
        }
        if c.velocity is not None:
            batch["action.velocity"] = tensor(c.velocity[rows])
        images = {k: self.reader.frames(k, rows) for k in self._image_keys()}
        if config.backbone == "act":
            batch |= {k: tensor(v).permute(0, 3, 1, 2) / 255 for k, v in images.items()}
        elif config.backbone in ("vlm", "florence2"):
            batch |= self._prompt(batch["task"], images, device)
        return batch

    def _image_keys(self) -> list[str]:
        config = self.policy.config
        if config.backbone == "act":
            return list(config.image_keys)
        if self.processor is None:
            return []
        return [k for k, f in self.reader.features.items() if f.get("dtype") in ("image", "video")][:1]

    def _prompt(self, tasks: list[str], images: Mapping[str, np.ndarray], device: Any) -> dict[str, Tensor]:
        if self.processor is None:  # a model of random weights has no tokeniser of its own: words are hashed
            bags = [[1 + i for i in word_buckets(t, 64)] for t in tasks]
            width = max(len(bag) for bag in bags)
            ids = torch.tensor([bag + [0] * (width - len(bag)) for bag in bags], device=device)
            return {"input_ids": ids, "attention_mask": (ids > 0).long()}
        token = getattr(self.processor, "image_token", "") if images and self.policy.config.backbone == "vlm" else ""
        pictures = list(next(iter(images.values()))) if images else None
        found = self.processor(text=[token + t for t in tasks], images=pictures, padding=True, return_tensors="pt")
        return {k: v.to(device) for k, v in found.items()}


def train(
    policy: NIAFPolicy,
    reader: LeRobotReader,
    options: TrainOptions,
    out: Path,
    progress: Callable[..., Any] = iter,
) -> list[dict[str, float]]:
    """Train and keep the policy in ``out``; goes on from a checkpoint there.

    Returns:
        Losses every 20 steps.
    """
    rank, world = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    module: Any = policy
    if world > 1:
        torch.distributed.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
        if torch.cuda.is_available():
            policy.to(f"cuda:{os.environ.get('LOCAL_RANK', 0)}")
        module = nn.parallel.DistributedDataParallel(policy, find_unused_parameters=True)
    train_rows, _ = split_rows(reader, options.test_share)
    batches = Batches(policy, reader, options.velocity)
    real = ~batches.chunks.mask[train_rows].all(1)
    train_rows = train_rows[real]
    if not len(train_rows):
        raise InputError(f"{reader.path}: no frame with a finite action")
    whole = train_rows[~batches.chunks.mask[train_rows].any(1)]
    assert batches.chunks.cond is not None
    policy.set_statistics(batches.chunks.action[whole if len(whole) else train_rows], batches.chunks.cond[train_rows])
    optimiser = torch.optim.AdamW(policy.get_optim_params(), betas=(0.9, 0.95))

    def rate(step: int) -> float:
        rise = min(1.0, (step + 1) / max(1, options.warm_up))
        return rise * 0.5 * (1 + math.cos(math.pi * step / max(1, options.steps)))

    first, history = _resumed(out, policy, optimiser, options)
    for group in optimiser.param_groups:
        group["initial_lr"] = group.get("initial_lr", group["lr"])
    schedule = torch.optim.lr_scheduler.LambdaLR(optimiser, rate, last_epoch=first - 1)
    policy.train()
    for step in progress(range(first, options.steps)):
        rng = np.random.default_rng([options.seed, step, rank])
        torch.manual_seed(int(rng.integers(2**31)))
        rows = rng.choice(train_rows, options.batch_size)
        loss, terms = module(batches(rows))
        optimiser.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(policy.parameters(), 10.0)
        optimiser.step()
        schedule.step()
        if step % 20 == 0 or step == options.steps - 1:
            history.append({"step": float(step), **terms})
        if rank == 0 and ((step + 1) % options.save_every == 0 or step == options.steps - 1):
            _keep(out, policy, optimiser, step + 1, history, options)
    if world > 1:
        torch.distributed.destroy_process_group()
    policy.eval()
    return history


STATE = "training.safetensors"


def _keep(
    out: Path, policy: NIAFPolicy, optimiser: Any, step: int, history: list[dict[str, float]], options: TrainOptions
) -> None:
    policy.save(out)
    moments = {
        str(i): {k: torch.as_tensor(v).clone() for k, v in state.items()}
        for i, state in optimiser.state_dict()["state"].items()
    }
    weights = {k: v.detach().cpu().clone() for k, v in policy.state_dict().items()}
    kept = {"step": step, "seed": options.seed, "history": history, "moments": moments, "weights": weights}
    save_checkpoint(out / STATE, kept)


def _resumed(
    out: Path, policy: NIAFPolicy, optimiser: Any, options: TrainOptions
) -> tuple[int, list[dict[str, float]]]:
    if not (out / STATE).is_file():
        return 0, []
    kept = load_checkpoint(out / STATE)
    if kept["seed"] != options.seed:
        raise InputError(f"{out} holds a run of seed {kept['seed']}; name another folder for seed {options.seed}")
    try:
        policy.load_state_dict(kept["weights"])
    except RuntimeError as error:
        raise InputError(f"{out} holds a run of another policy: {str(error).splitlines()[0]}") from None
    state = optimiser.state_dict()
    state["state"] = {int(i): dict(m) for i, m in kept["moments"].items()}
    optimiser.load_state_dict(state)
    return int(kept["step"]), list(kept["history"])


@torch.no_grad()
def evaluate(policy: NIAFPolicy, reader: LeRobotReader, rows: np.ndarray, batch_size: int = 256) -> dict[str, float]:
    """Errors of predicted chunks at frames whose whole chunk is recorded.

    Returns:
        ``rmse`` of the actions; ``offgrid_rmse`` of positions half way between them, against the cubic interpolant
        (of the
        running sum for increments); ``hold_rmse`` and ``constant_velocity_rmse`` of the predictors that repeat the last
        action, and its change; ``rms_jerk`` per second^3; ``frames``.
    """
    batches = Batches(policy, reader)
    c, spec = batches.chunks, policy.config
    whole = rows[~c.mask[rows].any(1)]
    starts = reader.starts()
    earlier = whole[whole - starts[c.episode[whole]] >= 2]
    if not len(earlier):
        raise InputError(f"{reader.path}: no test frame has {spec.horizon} actions after it and two before")
    head = policy.head
    smooth = head.spec.smooth
    middles = (head.grid[1:] + head.grid[:-1]) / 2
    jitter = TimeJitter(head.spec.n_points)
    action = _two_dimensional(reader.column("action")).astype(float)
    sums = np.zeros(5)
    for first in range(0, len(earlier), batch_size):
        part = earlier[first : first + batch_size]
        found = policy.predict(batches(part))
        truth = torch.as_tensor(c.action[part], dtype=torch.float32, device=head.std.device)
        target, _ = head._target(truth, None)
        between = jitter.interpolate(target, middles.expand(len(part), -1))
        order = found.at(middles, 3)
        last, before = action[part - 1], action[part - 2]
        steps = np.arange(1, spec.horizon + 1)[None, :, None]
        held = np.repeat(last[:, None], spec.horizon, 1)
        moving = last[:, None] + steps * (last - before)[:, None]
        data = c.action[part][:, :, smooth]
        sums += [
            float((found.actions()[:, :, smooth] - truth[:, :, smooth]).square().sum()),
            float((order[0] - between).square().sum()),
            float(np.square(held[:, :, smooth] - data).sum()),
            float(np.square(moving[:, :, smooth] - data).sum()),
            float(order[3].square().sum()),
        ]
    size = len(earlier) * spec.horizon * len(smooth)
    between_size = len(earlier) * len(middles) * len(smooth)
    names = ("rmse", "offgrid_rmse", "hold_rmse", "constant_velocity_rmse", "rms_jerk")
    counts = np.array([size, between_size, size, size, len(earlier) * len(middles)])
    return {**dict(zip(names, np.sqrt(sums / counts).tolist(), strict=True)), "frames": float(len(earlier))}


def main(words: list[str] | None = None) -> None:
    """``python -m niaf.training --data FOLDER --config config.json --out FOLDER``: one process a GPU under torchrun."""
    import argparse

    parser = argparse.ArgumentParser(prog="python -m niaf.training", description=main.__doc__)
    parser.add_argument("--data", type=Path, required=True, help="LeRobot folder")
    parser.add_argument("--config", type=Path, required=True, help="config.json of niaf recipe")
    parser.add_argument("--out", type=Path, required=True, help="folder of the policy")
    parser.add_argument("--batch-size", type=int, default=8, help="a process")
    parser.add_argument("--steps", type=int, default=20_000)
    parser.add_argument("--warm-up", type=int, default=500)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args(words)
    reader = LeRobotReader(given.data)
    changes = json.loads(given.config.read_text())
    for key in ("action_dim", "state_dim"):
        changes.pop(key, None)
    policy = NIAFPolicy(config_for(reader, **changes))
    options = TrainOptions(given.steps, given.batch_size, given.warm_up, given.seed)
    history = train(policy, reader, options, given.out)
    print(json.dumps(history[-1]))


if __name__ == "__main__":
    main()
