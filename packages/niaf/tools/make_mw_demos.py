"""Record Meta-World's scripted policies as a LeRobot v3.0 folder of increments (a second data set for niaf).

    uv run --isolated --package papershelf-niaf --extra data --with metaworld==3.1.1 --with packaging \\
        python packages/niaf/tools/make_mw_demos.py OUT

Meta-World (MIT licence, Farama Foundation) pins MuJoCo 3.3.0, hence the environment of its own. Actions are increments
of the hand's position (three channels, clipped to [-1, 1]) and the gripper; states are the simulator's 39 numbers. An
episode ends ten steps after success; one without success is left out, and the next goal is tried.
"""

from __future__ import annotations

import argparse
import importlib
import os
import warnings
from pathlib import Path
from typing import Any

import numpy as np

from niaf.data import write_lerobot

TASKS = (
    "reach-v3",
    "push-v3",
    "pick-place-v3",
    "door-open-v3",
    "drawer-open-v3",
    "drawer-close-v3",
    "button-press-topdown-v3",
    "window-open-v3",
    "window-close-v3",
    "peg-insert-side-v3",
)


def episode(env: Any, policy: Any, steps: int, after: int = 10) -> dict[str, np.ndarray] | None:
    """One roll-out: actions [N, 4] and states [N, 39]; None where the task was not solved."""
    observation, _ = env.reset()
    actions, states, left = [], [], None
    for _ in range(steps):
        action = np.clip(policy.get_action(observation), -1, 1).astype(np.float32)
        actions.append(action)
        states.append(np.asarray(observation, dtype=np.float32))
        observation, _, _, _, info = env.step(action)
        if left is None and info["success"]:
            left = after
        elif left is not None:
            left -= 1
        if left == 0:
            return {"action": np.array(actions), "observation.state": np.array(states)}
    return None


def record(tasks: list[str], count: int, seed: int) -> tuple[list[dict[str, Any]], float]:
    """Episodes of every task, and the rate of control in Hz."""
    metaworld = importlib.import_module("metaworld")
    policies = importlib.import_module("metaworld.policies").ENV_POLICY_MAP
    found, rate = [], 80.0
    for task in tasks:
        benchmark = metaworld.MT1(task, seed=seed)
        env = benchmark.train_classes[task]()
        rate, kept = 1 / env.dt, 0
        for goal in benchmark.train_tasks:
            env.set_task(goal)
            one = episode(env, policies[task](), env.max_path_length)
            if one is not None:
                found.append({**one, "task": task.removesuffix("-v3").replace("-", " ")})
                kept += 1
            if kept == count:
                break
        if kept < count:
            raise SystemExit(f"{task}: {kept} of {count} episodes solved among {len(benchmark.train_tasks)} goals")
        print(f"{task}: {count} episodes", flush=True)
    return found, rate


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Record Meta-World's scripted policies as a LeRobot v3.0 folder.")
    parser.add_argument("out", type=Path, help="folder to write; must not exist")
    parser.add_argument("--tasks", default=",".join(TASKS), help="names with commas")
    parser.add_argument("--episodes", type=int, default=20, help="of each task, at most 50")
    parser.add_argument("--seed", type=int, default=0, help="of the goals")
    given = parser.parse_args()
    os.environ.setdefault("MUJOCO_GL", "disable")
    warnings.filterwarnings("ignore", message="Constant")
    episodes, fps = record(given.tasks.split(","), given.episodes, given.seed)
    print(write_lerobot(given.out, episodes, round(fps), "v3.0", robot_type="sawyer"))
