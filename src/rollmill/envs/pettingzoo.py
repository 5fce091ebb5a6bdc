"""PettingZoo's environments: every agent is a lane.

All agents are asked at every step; where they take turns (AEC), whoever waits has a single action (``envs.turns``). An
agent that is done before the others leaves PettingZoo's environment; its lane
waits, with blank observations in rows that do not count, until the last one is done (``envs.batch``).
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import numpy as np
from gymnasium import spaces

from rollmill.core.errors import ConfigError, EnvError, MissingExtraError
from rollmill.core.fields import MASK_FIELD, ActionSpec, Array, EnvSpec, Field, Obs
from rollmill.core.imports import import_object
from rollmill.core.protocols import StepReturn
from rollmill.envs.spaces import Space, Writer, action_layout, mask_field, observation_layout
from rollmill.envs.turns import TakingTurns

AGENT_FIELD = "agent"
"""Name of the field that says which agent sees this."""


class PettingZooEnv:
    """One environment. A seed and the actions fix an episode, if the environment keeps to its seed."""

    def __init__(self, *, env: str, agent_field: bool = False, pad: bool = False, **config: Any) -> None:
        """Build it.

        Args:
            env: A module with ``parallel_env`` (``mpe2.simple_spread_v3``) or, for players who take turns, ``env``
                (``pettingzoo.classic.connect_four_v3``), or ``module:callable``.
            agent_field: Show every agent its number, one-hot, as field ``agent``: one network can then play different
                parts.
            pad: Where agents have different spaces: fill vectors up with zeros, and forbid the actions that an agent
                does not have by a mask.
            config: Arguments of the environment itself.
        """
        self._env = _make(env, config)
        self.agents: tuple[str, ...] = tuple(self._env.possible_agents)
        lay_out = _padded if pad else _shared
        fields, self._writers, action, self._to_env = lay_out(env, self._env, self.agents)
        if agent_field:
            fields = (*fields, Field(AGENT_FIELD, "uint8", (len(self.agents),)))
        self._agent_field = agent_field
        for field in fields:
            if field.name == MASK_FIELD and field.shape != mask_field(action).shape:
                raise ConfigError(
                    f"{env}: the action mask has shape {field.shape}, the action space needs ({action.mask_size},)"
                )
        self.spec = EnvSpec(name=f"pettingzoo:{env}", observation=fields, action=action, agents=len(self.agents))
        self._gone: set[str] = set(self.agents)

    def reset(self, seed: int, obs: Obs) -> None:
        seen, _ = self._env.reset(seed=int(seed % 2**32))
        late = [agent for agent in self.agents if agent not in seen]
        if late:
            raise EnvError(f"agents that join later are not supported: reset() shows nothing to {', '.join(late)}")
        self._gone.clear()
        self._write(seen, obs)

    def step(self, action: Array, obs: Obs) -> StepReturn:
        present = [(lane, agent) for lane, agent in enumerate(self.agents) if agent not in self._gone]
        if not present:
            raise EnvError("step() without a running episode: call reset() first")
        actions = {agent: self._to_env[lane](action[lane]) for lane, agent in present}
        seen, rewards, terminations, truncations, _ = self._env.step(actions)
        count = len(self.agents)
        reward, terminated, truncated = np.zeros(count, np.float32), np.zeros(count, bool), np.zeros(count, bool)
        for lane, agent in present:
            if agent not in seen or agent not in terminations or agent not in truncations:
                raise ValueError(f"agent {agent!r} is missing in what step() returned, and its episode is not over")
            reward[lane] = rewards.get(agent, 0.0)
            terminated[lane], truncated[lane] = terminations[agent], truncations[agent]
        self._write(seen, obs)
        self._gone.update(agent for lane, agent in present if terminated[lane] or truncated[lane])
        return reward, terminated, truncated, {}

    def render(self) -> Array | None:
        image = self._env.render() if getattr(self._env, "render_mode", None) == "rgb_array" else None
        return image if isinstance(image, np.ndarray) else None

    def close(self) -> None:
        self._env.close()

    def _write(self, seen: dict[str, Any], obs: Obs) -> None:
        for lane, (agent, write) in enumerate(zip(self.agents, self._writers, strict=True)):
            if agent in self._gone:
                for field in obs.values():
                    field[lane] = 0
            else:
                write(seen[agent], obs, lane)
        if self._agent_field:
            obs[AGENT_FIELD][:] = np.eye(len(self.agents), dtype=np.uint8)


Layout = tuple[tuple[Field, ...], list[Writer], ActionSpec, list[Callable[[Array], Any]]]


def _shared(name: str, env: Any, agents: tuple[str, ...]) -> Layout:
    """Return the spaces that all agents have; raises ConfigError if they differ."""
    first = agents[0]
    for kind, space_of in (("observation", env.observation_space), ("action", env.action_space)):
        for agent in agents:
            if not _alike(space_of(agent), space_of(first)):
                raise ConfigError(
                    f"{name}: the {kind} spaces of its agents differ ({first}: {space_of(first)}, {agent}: "
                    f"{space_of(agent)}); set env.args.pad=true to fill them up"
                )
    fields, write = observation_layout(env.observation_space(first))
    action, to_env = action_layout(env.action_space(first))
    return fields, [write] * len(agents), action, [to_env] * len(agents)


def _alike(one: Space, other: Space) -> bool:
    """Return whether two spaces are alike. Bounds of observations may differ: nothing depends on them."""
    if isinstance(one, spaces.Box) and isinstance(other, spaces.Box):
        return one.shape == other.shape and one.dtype == other.dtype
    return bool(one == other)


def _padded(name: str, env: Any, agents: tuple[str, ...]) -> Layout:
    """Return vectors as long as the longest, as many actions as the agent with the most has, and a mask of them."""
    for agent in agents:
        seen, choice = env.observation_space(agent), env.action_space(agent)
        if not isinstance(seen, spaces.Box) or len(seen.shape) != 1 or not isinstance(choice, spaces.Discrete):
            raise ConfigError(
                f"{name}: env.args.pad is for observations that are vectors (Box) and Discrete actions; agent {agent} "
                f"has {seen} and {choice}"
            )
    longest = max(env.observation_space(agent).shape[0] for agent in agents)
    most = max(int(env.action_space(agent).n) for agent in agents)
    action = ActionSpec("discrete", nvec=(most,), start=(0,))
    fields = (Field("obs", "float32", (longest,)), mask_field(action))
    writers = [_padding_writer(env.observation_space(a).shape[0], int(env.action_space(a).n)) for a in agents]
    return fields, writers, action, [action_layout(env.action_space(agent))[1] for agent in agents]


def _padding_writer(size: int, choices: int) -> Writer:
    def write(value: Any, obs: Obs, lane: Any) -> None:
        vector = np.asarray(value)
        if vector.shape != (size,):
            raise ValueError(f"observation 'obs' has shape {vector.shape}, the space says {(size,)}")
        row, mask = obs["obs"][lane], obs[MASK_FIELD][lane]
        row[:size], row[size:] = vector, 0.0
        mask[:choices], mask[choices:] = 1, 0

    return write


def _make(env: str, config: dict[str, Any]) -> Any:
    try:
        import pettingzoo
    except ImportError as error:
        raise MissingExtraError(f'{env} needs pettingzoo ({error}): pip install "rollmill[pettingzoo]"') from error
    maker = _find(env)
    try:
        made = maker(**config)
    except TypeError as error:
        raise ConfigError(f"env.args={config}: {env} cannot be built with them: {error}") from error
    if not isinstance(made, pettingzoo.ParallelEnv | pettingzoo.AECEnv):
        raise ConfigError(f"{env} built a {type(made).__name__}, which is no environment of PettingZoo")
    if not getattr(made, "possible_agents", None):
        raise ConfigError(f"{env} has no possible_agents: the number of agents must be known")
    return made if isinstance(made, pettingzoo.ParallelEnv) else TakingTurns(made, env)


def _find(env: str) -> Callable[..., Any]:
    if ":" in env:
        maker: Callable[..., Any] = import_object(env, "env.args.env")
        return maker
    try:
        module = importlib.import_module(env)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{env}.".startswith(f"{error.name}."):
            raise MissingExtraError(f"{env} needs {error.name}: pip install {error.name}") from error
        raise ConfigError(f"env.args.env={env}: there is no such module") from error
    except ImportError as error:  # such as: has moved to a package of its own
        raise ConfigError(f"env.args.env={env} cannot be imported: {error}") from error
    found: Callable[..., Any] | None = getattr(module, "parallel_env", None) or getattr(module, "env", None)
    if found is None:
        raise ConfigError(f"env.args.env={env}: the module has neither parallel_env nor env")
    return found
