"""A gymnasium environment of the online problem: the action is a seed set, the observation the activation steps."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from oim.ic import ICGraph, check_k
from oim.online import CascadeEnv

if TYPE_CHECKING:
    import gymnasium


def make_env(graph: ICGraph, k: int, horizon: int = 1000) -> gymnasium.Env:
    """A ``gymnasium.Env`` of online influence maximization.

    The action is a ``MultiDiscrete`` vector of k node numbers (repeats count once), the observation the activation
    steps of the last round, int32 (n,) with -1 for inactive, the reward the number of active nodes. An episode is
    truncated after ``horizon`` rounds. Everything that a policy may know is in the observation.

    Args:
        graph: the true probabilities.
        k: seeds a round.
        horizon: rounds an episode.

    Raises:
        ImportError: without the extra ``papershelf-oim[gym]``.
    """
    try:
        import gymnasium
    except ModuleNotFoundError as error:
        raise ImportError(
            "the environment needs gymnasium, which is not installed: pip install 'papershelf-oim[gym]'"
        ) from error
    check_k(graph, k)

    class OIMEnv(gymnasium.Env):
        action_space = gymnasium.spaces.MultiDiscrete([graph.n] * k)
        observation_space = gymnasium.spaces.Box(-1, graph.n, (graph.n,), np.int32)

        def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[np.ndarray, dict]:
            super().reset(seed=seed)
            self._campaign = CascadeEnv(graph, int(self.np_random.integers(2**31)))
            self._round = 0
            return np.full(graph.n, -1, np.int32), {}

        def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict]:
            times, _ = self._campaign.round(self._round, np.unique(np.asarray(action, np.int64)))
            self._round += 1
            return times, float((times >= 0).sum()), False, self._round >= horizon, {}

    return OIMEnv()
