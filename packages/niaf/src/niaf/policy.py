"""A policy of backbone and head on plain batches, in lerobot's terms, and the robot-side loop that joins its chunks.

``lerobot_policy()`` registers the same policy with lerobot where that is installed.
"""

from __future__ import annotations

import json
import math
import threading
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from niaf.backbones import ACTEncoder, Florence2Backbone, StateEncoder, VLMBackbone, with_lora
from niaf.heads import ActionHead, FieldHead, make_head
from niaf.impedance import Reference
from niaf.trajectory import Motion, anchor, blend
from papershelf import InputError, require
from papershelf.files import atomic_path, atomic_write


@dataclass(frozen=True)
class NIAFConfig:
    """What a policy is made of; kept as ``config.json``.

    Attributes:
        action_dim: channels of an action.
        state_dim: length of ``observation.state``.
        horizon: K.
        fps: of the data, Hz.
        action_kind: ``"absolute"`` or ``"delta"``.
        gripper: channels with two states.
        gripper_values: (open, closed).
        head: of :data:`niaf.heads.HEADS`.
        head_options: of the head.
        backbone: ``"state"``, ``"act"``, ``"vlm"`` or ``"florence2"``.
        image_keys: cameras of ``"act"``.
        d_model: size of the conditioning (of ``"vlm"``: the model's own).
        n_action_steps: actions that ``select_action`` plays before it asks again.
        vlm: folder or hub id, or a configuration as a dictionary with ``model_type``, of ``"vlm"``.
        lora_rank: rank of the low-rank updates that are trained in place of the VLM's weights; 0 trains all of them.
        learning_rate: of the backbone.
        head_multiplier: of the head's learning rate (ours: 10 to 50 where a VLM is tuned).
        weight_decay: never on the field's weights.
        action_scale: ``"deviation"`` or ``"quantiles"`` (1st and 99th percentile to -1 and 1, as for LIBERO).
    """

    action_dim: int
    state_dim: int
    horizon: int = 10
    fps: float = 20.0
    action_kind: str = "absolute"
    gripper: tuple[int, ...] = ()
    gripper_values: tuple[float, float] = (-1.0, 1.0)
    head: str = "field"
    head_options: dict[str, Any] = field(default_factory=dict)
    backbone: str = "state"
    image_keys: tuple[str, ...] = ()
    d_model: int = 128
    n_action_steps: int = 10
    vlm: Any = None
    lora_rank: int = 0
    learning_rate: float = 1e-4
    head_multiplier: float = 1.0
    weight_decay: float = 0.0
    action_scale: str = "deviation"

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> NIAFConfig:
        """From a dictionary with lists for tuples.

        Raises:
            InputError: for unknown or missing fields.
        """
        fixed: dict[str, Any] = {
            k: tuple(v) if k in ("gripper", "gripper_values", "image_keys") else v for k, v in content.items()
        }
        try:
            return cls(**fixed)
        except TypeError as error:
            raise InputError(f"not a policy's configuration: {error}") from None


class NIAFPolicy(nn.Module):
    """Backbone, head, and normalisation of states.

    Batches are dictionaries: ``observation.state`` [B, (n,) s], ``observation.images.*`` [B, 3, H, W], ``task``
    (strings),
    and for training ``action`` [B, K, d], ``action_is_pad`` [B, K], ``action.velocity`` [B, K, d] where recorded. The
    ``"vlm"`` backbone takes its processor's keys.

    Args:
        config: see :class:`NIAFConfig`.
    """

    state_mean: Tensor
    state_std: Tensor

    def __init__(self, config: NIAFConfig) -> None:
        super().__init__()
        self.config = config
        options = dict(config.head_options)
        if config.backbone == "state":
            self.backbone: Any = StateEncoder(config.state_dim, config.d_model)
        elif config.backbone == "act":
            self.backbone = ACTEncoder(config.state_dim, config.image_keys, config.d_model)
            if config.head.startswith("field"):
                options.setdefault("conditioner", "resampler")
        elif config.backbone in ("vlm", "florence2"):
            self.backbone = self._vlm(options)
        else:
            raise InputError(f"backbone must be state, act, vlm or florence2, got {config.backbone!r}")
        width: Any = self.backbone.out_dim
        self.head: ActionHead = make_head(
            config.head,
            width,
            config.action_dim,
            config.horizon,
            config.fps,
            config.action_kind,  # ty: ignore[invalid-argument-type]
            config.gripper,
            config.gripper_values,
            **options,
        )
        self.register_buffer("state_mean", torch.zeros(config.state_dim))
        self.register_buffer("state_std", torch.ones(config.state_dim))
        self.reset()

    def _vlm(self, options: dict[str, Any]) -> nn.Module:
        options.setdefault("conditioner", "grouped")
        queries = 8
        if self.config.head.startswith("field") and options["conditioner"] == "grouped":
            queries = int(options.get("layers", 3)) * (int(options.get("groups", 64)) + 1)
        if not self.config.head.startswith("field"):
            options.pop("conditioner")
        source = self.config.vlm
        kind = Florence2Backbone if self.config.backbone == "florence2" else VLMBackbone
        if isinstance(source, Mapping):
            transformers = require("transformers", "papershelf-niaf[vlm]")
            rest = {k: v for k, v in source.items() if k != "model_type"}
            backbone = kind.from_config(transformers.AutoConfig.for_model(source["model_type"], **rest), queries)
        elif not source:
            raise InputError(f'backbone "{self.config.backbone}" needs vlm, a folder, hub id or configuration')
        else:
            backbone = kind.from_pretrained(str(source), queries)
        if self.config.lora_rank:
            backbone.model = with_lora(backbone.model, self.config.lora_rank)
        return backbone

    def set_statistics(self, actions: np.ndarray, states: np.ndarray) -> None:
        """Take scales from chunks [N, K, d] and states [N, s]; constant channels keep scale 1."""
        self.head.set_statistics(actions, self.config.action_scale)
        mean, std = states.mean(0), states.std(0)
        self.state_mean.copy_(torch.as_tensor(mean, dtype=torch.float32))
        self.state_std.copy_(torch.as_tensor(np.where(std > 1e-8, std, 1.0), dtype=torch.float32))

    def _cond(self, batch: Mapping[str, Any]) -> Tensor:
        if "observation.state" in batch:
            state = (batch["observation.state"].float() - self.state_mean) / self.state_std
            batch = {**batch, "observation.state": state}
        return self.backbone(batch)

    def forward(self, batch: Mapping[str, Any]) -> tuple[Tensor, dict[str, float]]:
        """Training loss and its terms."""
        terms = self.head.loss(
            self._cond(batch), batch["action"].float(), batch.get("action.velocity"), batch.get("action_is_pad")
        )
        return terms["loss"], {k: float(v.detach()) for k, v in terms.items()}

    def predict(self, batch: Mapping[str, Any]) -> Any:
        """A :class:`~niaf.heads.Prediction`: chunks as functions of time."""
        return self.head(self._cond(batch))

    @torch.no_grad()
    def predict_action_chunk(self, batch: Mapping[str, Any], fps: float | None = None) -> Tensor:
        """[B, n, d] at the data's rate, or another."""
        return self.predict(batch).actions(fps)

    @torch.no_grad()
    def select_action(self, batch: Mapping[str, Any]) -> Tensor:
        """The next action [B, d]; asks for a new chunk where the last is played."""
        if not self._queue:
            self._queue = list(self.predict_action_chunk(batch)[:, : self.config.n_action_steps].unbind(1))
        return self._queue.pop(0)

    def reset(self) -> None:
        """Forget the chunk that is played: a new episode begins."""
        self._queue: list[Tensor] = []

    def get_optim_params(self) -> list[dict[str, Any]]:
        """Parameter groups: the head at ``head_multiplier`` times the rate, no decay on the field."""
        c = self.config
        backbone = {"params": list(self.backbone.parameters()), "lr": c.learning_rate, "weight_decay": c.weight_decay}
        return [backbone, *self.head.parameter_groups(c.learning_rate * c.head_multiplier, c.weight_decay)]

    def save(self, folder: Path | str) -> Path:
        """``config.json`` and ``model.safetensors`` in a folder; each is written atomically."""
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        tensors, seen = {}, {}
        for k, v in self.state_dict().items():
            shared = v.untyped_storage().data_ptr(), v.shape
            tensors[k] = v.detach().cpu().clone() if shared in seen else v.detach().cpu().contiguous()
            seen[shared] = k
        with atomic_path(folder / "model.safetensors") as temporary:
            save_file(tensors, temporary)
        atomic_write(folder / "config.json", json.dumps(asdict(self.config), indent=1) + "\n")
        return folder

    @classmethod
    def load(cls, folder: Path | str) -> NIAFPolicy:
        """What :meth:`save` wrote."""
        folder = Path(folder)
        try:
            content = json.loads((folder / "config.json").read_text())
        except (OSError, ValueError) as error:
            raise InputError(f"{folder} holds no policy: {error}") from None
        policy = cls(NIAFConfig.from_json(content))
        try:
            policy.load_state_dict(load_file(folder / "model.safetensors"))
        except Exception as error:
            raise InputError(f"{folder / 'model.safetensors'} does not fit its config.json: {error}") from None
        return policy.eval()

    @property
    def is_field(self) -> bool:
        """Whether the head is a field."""
        return isinstance(self.head, FieldHead)


def _transition(state: Sequence[np.ndarray], new: Motion, now: float, width: float) -> Motion:
    return anchor(new, state, now, min(width, 0.999 * (new.end - now)))


class ActionQueue:
    """The robot's side: plays one continuous reference while new chunks arrive late.

    A chunk starts at the time of the observation that it was computed from and is entered at the present, so
    exactly what
    was consumed is dropped. It takes over from the running reference without a jump of value, velocity or acceleration.

    Args:
        rate: of control, Hz.
        width: seconds over which a hand-over is spread.
        mode: ``"anchor"`` follows the new chunk as soon as possible; ``"blend"`` mixes old and new while both last.
    """

    def __init__(self, rate: float = 1000.0, width: float = 0.1, mode: str = "anchor") -> None:
        if not rate > 0 or not width > 0:
            raise ValueError(f"rate and width must be positive, got {rate} and {width}")
        if mode not in ("anchor", "blend"):
            raise ValueError(f'mode must be "anchor" or "blend", got {mode!r}')
        self.rate, self.width, self.mode = rate, width, mode
        self.motion: Motion | None = None
        self.stale = False
        self._lock = threading.Lock()

    def push(self, chunk: Motion, now: float) -> bool:
        """Enter a chunk whose ``t0`` is the time of its observation; False where it is over already (or starts
        later)."""
        with self._lock:
            if now >= chunk.end or now < chunk.t0:
                return False
            if self.motion is None:
                self.motion = chunk
                return True
            old = self.motion
            if self.mode == "blend" and min(old.end, chunk.end) - now > 1e-3:
                width = min(self.width, 0.999 * (min(old.end, chunk.end) - now))
                self.motion = blend(old, chunk, now, width)
                self._forget(now)
            else:
                self.motion = _transition(self._state(now), chunk, now, self.width)
            return True

    def _forget(self, now: float) -> None:
        """Chains of blends do not grow: below what is played only two chunks are kept."""
        motion: Any = self.motion
        old = getattr(motion, "old", None)
        if old is not None and getattr(old, "t", math.inf) + getattr(old, "width", 0) <= now and hasattr(old, "new"):
            motion.old = old.new
            motion.t0 = old.new.t0
            motion.duration = motion.new.end - motion.t0

    def _state(self, now: float) -> tuple[np.ndarray, ...]:
        assert self.motion is not None
        return self.motion.derivatives(max(now, self.motion.t0), 2, "hold")

    def reference(self, now: float) -> Reference:
        """What to follow now. Past the last chunk the position is held and :attr:`stale` is set.

        Raises:
            RuntimeError: before the first chunk.
        """
        with self._lock:
            if self.motion is None:
                raise RuntimeError("no chunk was pushed yet")
            self.stale = now > self.motion.end
            return Reference(*self._state(now))


def lerobot_policy() -> Any:
    """Register ``niaf`` with lerobot and return its policy class (lerobot must be installed)."""
    configs = require("lerobot.configs.policies", "lerobot")
    types = require("lerobot.configs.types", "lerobot")
    optim = require("lerobot.optim.optimizers", "lerobot")
    base = require("lerobot.policies.pretrained", "lerobot")

    @configs.PreTrainedConfig.register_subclass("niaf")
    @dataclass
    class LeRobotNIAFConfig(configs.PreTrainedConfig):
        n_obs_steps: int = 1
        chunk_size: int = 10
        n_action_steps: int = 10
        fps: float = 20.0
        action_kind: str = "absolute"
        gripper: tuple[int, ...] = ()
        head: str = "field"
        backbone: str = "state"
        optimizer_lr: float = 1e-4
        normalization_mapping: dict[str, Any] = field(
            default_factory=lambda: dict.fromkeys(("VISUAL", "STATE", "ACTION"), types.NormalizationMode.IDENTITY)
        )

        @property
        def observation_delta_indices(self) -> None:
            return None

        @property
        def action_delta_indices(self) -> list[int]:
            return list(range(self.chunk_size))

        @property
        def reward_delta_indices(self) -> None:
            return None

        def get_optimizer_preset(self) -> Any:
            return optim.AdamWConfig(lr=self.optimizer_lr, betas=(0.9, 0.95))

        def get_scheduler_preset(self) -> None:
            return None

        def validate_features(self) -> None:
            if "action" not in self.output_features or "observation.state" not in self.input_features:
                raise ValueError("niaf needs 'observation.state' and 'action'")

    class LeRobotNIAFPolicy(base.PreTrainedPolicy):
        config_class = LeRobotNIAFConfig
        name = "niaf"

        def __init__(self, config: Any, **_: Any) -> None:
            super().__init__(config)
            images = tuple(config.image_features) if config.backbone == "act" else ()
            self.inner = NIAFPolicy(
                NIAFConfig(
                    config.output_features["action"].shape[0],
                    config.input_features["observation.state"].shape[0],
                    config.chunk_size,
                    config.fps,
                    config.action_kind,
                    tuple(config.gripper),
                    head=config.head,
                    backbone=config.backbone,
                    image_keys=images,
                    n_action_steps=config.n_action_steps,
                    learning_rate=config.optimizer_lr,
                )
            )

        def get_optim_params(self) -> Any:
            return self.inner.get_optim_params()

        def reset(self) -> None:
            self.inner.reset()

        def forward(self, batch: Any) -> Any:
            return self.inner(batch)

        def predict_action_chunk(self, batch: Any, **_: Any) -> Tensor:
            return self.inner.predict_action_chunk(batch)

        def select_action(self, batch: Any, **_: Any) -> Tensor:
            return self.inner.select_action(batch)

    return LeRobotNIAFPolicy
