"""How far a policy is from unbeatable, while it learns, in games small enough to say so exactly.

::

    env: kuhn_poker
    observers: {use: [rollmill.runs.train.games:Exploitability]}

adds ``game/exploitability``: what a best response wins against the policy. It is computed on the whole tree of the game
from the probabilities of the network, so no games are played for it and no luck is in it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from rollmill.core.errors import ConfigError
from rollmill.core.fields import MASK_FIELD, Array
from rollmill.core.shapes import ArrayOf, Shape, check_shape
from rollmill.envs.games.env import GAMES, MATRICES, TreeEnv
from rollmill.envs.games.exploit import AveragePolicy, exploitability, value
from rollmill.envs.games.tree import GameTree
from rollmill.envs.make import make_env
from rollmill.runs.train.observers import Observer

if TYPE_CHECKING:
    from rollmill.models.actor_critic import ActorCritic
    from rollmill.runs.train.loop import OnlineRun


STATE_SHAPE: Shape = {"steps": int, "average": ArrayOf("f", 2)}


class Exploitability(Observer):
    """Logs ``game/exploitability``, ``game/average_exploitability`` and ``game/value``.

    The average is over the policies after all training steps so far, the k-th with weight k: in self-play it is
    averages that settle, where the newest policy may go round in circles.
    """

    def __init__(self) -> None:
        self._steps = 0

    def on_init(self, run: OnlineRun) -> None:
        self._tree = _tree_of(run)
        self._average = AveragePolicy(self._tree)
        owners = run.config.env.policies or (0, 0)
        self._models: list[ActorCritic] = [run.parts.learners[owner].model for owner in owners]  # type: ignore[attr-defined]
        if any(model.state_size for model in self._models):
            raise ConfigError(
                "observers.use=Exploitability reads a policy from what it sees in one row, and observations of these "
                "games hold all that a player knows: set model.memory=none"
            )
        self._policy = self._read()

    def on_training_step(self, run: OnlineRun, iteration: int) -> None:
        self._policy = self._read()
        self._steps += 1
        self._average.add(self._policy, float(self._steps))

    def on_save(self, run: OnlineRun) -> dict[str, Any]:
        return {"steps": self._steps, "average": self._average.state()}

    def on_load(self, run: OnlineRun, saved: Mapping[str, Any]) -> None:
        check_shape(saved, STATE_SHAPE)
        self._steps = saved["steps"]
        self._average.load_state(saved["average"])

    def extra_summaries(self, run: OnlineRun) -> dict[str, float]:
        tree = self._tree
        found = {"exploitability": exploitability(tree, self._policy), "value": value(tree, self._policy)}
        if self._steps:
            found["average_exploitability"] = exploitability(tree, self._average.policy)
        return {f"game/{name}": number for name, number in found.items()}

    def _read(self) -> Array:
        tables = [policy_table(model, self._tree) for model in dict.fromkeys(self._models)]
        by_player = tables if len(tables) == 2 else tables * 2
        mine: Array = np.where((self._tree.set_player == 0)[:, None], by_player[0], by_player[1])
        return mine


def policy_table(model: ActorCritic, tree: GameTree) -> Array:
    """Return ``[sets, actions]``, the probabilities with which a network without memory plays a game."""
    import torch

    device = next(model.parameters()).device
    mask = torch.from_numpy(tree.set_mask.astype(np.uint8)).to(device)
    obs = {"obs": torch.from_numpy(tree.set_view).to(device), MASK_FIELD: mask}
    with torch.no_grad():
        params = model.step(obs, torch.ones(tree.sets, dtype=torch.bool, device=device), model.initial_state(tree.sets))
        chosen = (torch.full((tree.sets,), k, device=device) for k in range(tree.rules.actions))
        logs = torch.stack([model.head.log_prob(params.params.float(), action, mask) for action in chosen], dim=1)
        table: Array = logs.double().exp().cpu().numpy()
    whole: Array = table / table.sum(axis=1, keepdims=True)
    return whole


def _tree_of(run: OnlineRun) -> GameTree:
    if run.config.pbt.on:
        raise ConfigError("observers.use=Exploitability judges one policy, not a population: set pbt.members=1")
    env = make_env(run.config.env)
    try:
        if not isinstance(env, TreeEnv):
            raise ConfigError(
                f"observers.use=Exploitability goes through all of a game: {run.config.env.id} is not small enough; it "
                f"can be {', '.join((*GAMES, *MATRICES))}"
            )
        return env.tree
    finally:
        env.close()
