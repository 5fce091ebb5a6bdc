"""OpenSpiel's games: board games, card games, matrix games, any number of players.

Chance is drawn from the episode's seed. Whoever waits has a row with a single allowed action (``envs.turns``).
"""

from __future__ import annotations

import random
from typing import Any, Literal

import numpy as np

from rollmill.core.errors import ConfigError, EnvError, MissingExtraError
from rollmill.core.fields import MASK_FIELD, ActionSpec, Array, EnvSpec, Field, Obs
from rollmill.core.protocols import StepReturn
from rollmill.core.text import nearest
from rollmill.envs.spaces import mask_field
from rollmill.envs.turns import TURN_FIELD, waiting_mask

Observation = Literal["auto", "information_state", "observation"]


class OpenSpielEnv:
    """One game. A seed and the actions fix an episode."""

    def __init__(self, *, game: str, observation: Observation = "auto", **parameters: Any) -> None:
        """Build it.

        Args:
            game: A name from OpenSpiel, or one with parameters: ``leduc_poker(players=3)``.
            observation: ``information_state`` holds all that a player has seen so far, ``observation`` what it sees
                now; ``auto`` takes the first where the game has it.
            parameters: Those of the game.
        """
        self._game = _load(game, parameters)
        self._agents, choices = self._game.num_players(), self._game.num_distinct_actions()
        self._tensor, shape = _tensor_of(self._game, game, observation)
        action = ActionSpec("discrete", nvec=(choices,), start=(0,))
        self.spec = EnvSpec(
            name=f"openspiel:{game}",
            observation=(Field("obs", "float32", shape), Field(TURN_FIELD, "uint8", (1,)), mask_field(action)),
            action=action,
            agents=self._agents,
        )
        self._shape, self._waits = shape, waiting_mask(choices)
        self._rng = random.Random(0)
        self._state: Any = None

    def reset(self, seed: int, obs: Obs) -> None:
        self._rng.seed(seed)
        self._state = self._game.new_initial_state()
        self._let_chance_move()
        self._write(obs)

    def step(self, action: Array, obs: Obs) -> StepReturn:
        state = self._state
        if state is None or state.is_terminal():
            raise EnvError("step() without a running episode: call reset() first")
        before = np.array(state.returns())
        if state.is_simultaneous_node():
            state.apply_actions([self._allowed(player, int(action[player])) for player in range(self._agents)])
        else:
            player = state.current_player()
            state.apply_action(self._allowed(player, int(action[player])))
        self._let_chance_move()
        self._write(obs)
        reward = (np.array(state.returns()) - before).astype(np.float32)
        return reward, state.is_terminal(), False, {}

    def render(self) -> Array | None:
        return None

    def close(self) -> None:
        return None

    def _allowed(self, player: int, action: int) -> int:
        legal = self._state.legal_actions(player)
        if legal and action not in legal:  # OpenSpiel would end the process or play on
            raise ValueError(f"player {player} chose {action}, which is not allowed here")
        return action

    def _let_chance_move(self) -> None:
        while self._state.is_chance_node():
            outcomes, chances = zip(*self._state.chance_outcomes(), strict=True)
            self._state.apply_action(self._rng.choices(outcomes, chances)[0])

    def _write(self, obs: Obs) -> None:
        state = self._state
        over, at_once = state.is_terminal(), state.is_simultaneous_node()
        for player in range(self._agents):
            obs["obs"][player] = np.reshape(self._tensor(state, player), self._shape)
            moves = not over and (at_once or state.current_player() == player)
            legal = state.legal_actions(player) if moves else ()
            obs[TURN_FIELD][player] = bool(legal)
            mask = obs[MASK_FIELD][player]
            mask[:] = 0 if legal else self._waits
            mask[list(legal)] = 1


def _load(game: str, parameters: dict[str, Any]) -> Any:
    try:
        import pyspiel
    except ImportError as error:
        raise MissingExtraError(
            f'openspiel:{game} needs open_spiel ({error}): pip install "rollmill[openspiel]"'
        ) from error
    short = game.partition("(")[0]
    if short not in pyspiel.registered_names():
        hint = nearest(short, pyspiel.registered_names())
        raise ConfigError(f"env.args.game={game}: OpenSpiel has no such game{f'; {hint}' if hint else ''}")
    try:
        loaded = pyspiel.load_game(game, parameters) if parameters else pyspiel.load_game(game)
    except (pyspiel.SpielError, RuntimeError, TypeError) as error:
        raise ConfigError(f"openspiel:{game} cannot be built with {parameters}: {error}") from error
    kind = loaded.get_type()
    if kind.dynamics == kind.Dynamics.MEAN_FIELD:
        raise ConfigError(f"openspiel:{game} is a mean-field game: its players are no agents")
    if kind.chance_mode == kind.ChanceMode.SAMPLED_STOCHASTIC:
        raise ConfigError(f"openspiel:{game} draws its own chance, so no seed would repeat an episode")
    return loaded


def _tensor_of(game: Any, name: str, observation: Observation) -> tuple[Any, tuple[int, ...]]:
    """Return the function that shows a state to a player, and the shape of that."""
    kind = game.get_type()
    has = {
        "information_state": kind.provides_information_state_tensor,
        "observation": kind.provides_observation_tensor,
    }
    if observation not in ("auto", *has):
        raise ConfigError(f"env.args.observation={observation}: expected auto, {', '.join(has)}")
    wanted = [form for form, there in has.items() if there and observation in ("auto", form)]
    if not wanted:
        there = [form for form, is_there in has.items() if is_there]
        what = f"shows its {there[0]} only" if there else "has no form that a network can read"
        raise ConfigError(f"openspiel:{name} {what}")
    if wanted[0] == "observation":
        return lambda state, player: state.observation_tensor(player), tuple(game.observation_tensor_shape())
    return lambda state, player: state.information_state_tensor(player), tuple(game.information_state_tensor_shape())
