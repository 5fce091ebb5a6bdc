"""Settings say which environment is played, and with which arguments."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from dataclasses import field
from typing import Any, Literal

from rollmill.core.config.plain import to_dict
from rollmill.core.config.schema import settings
from rollmill.core.given import MAIN
from rollmill.envs.info import info_fields
from rollmill.envs.levels.settings import LevelSettings

_REBUILT = (
    *("variables", "tasks", "task", "own_process", "mask_in_info", "previous_action", "previous_reward"),
    "max_episode_steps",
)
"""What an environment needs, beside id and arguments, to show the same once more and to end episodes as it did."""


@settings(shorthand="id")
class EnvSettings:
    """The environment of a run. ``env: NAME`` is short for ``env: {id: NAME}``."""

    id: str = "toy_target"
    """Name from ``rollmill envs``, any Gymnasium id, ``module:callable`` or ``path/to/file.py:callable`` (code that is
    imported and run)."""

    args: dict[str, Any] = field(default_factory=dict)
    """Keyword arguments for the environment's constructor."""

    variables: dict[str, float] = field(default_factory=dict)
    """Numbers that change while the run goes on, by name, with the values they have elsewhere: in evaluations, for
    instance. ``progress`` follows the run by itself, from 0 to 1; others are set by observers (``run.set_variable``).
    For environments whose constructor takes ``variables``."""

    tasks: tuple[str | dict[str, Any], ...] = ()
    """Several tasks for one policy: names of suites (``rollmill envs``) or environments, or mappings with ``id`` and,
    as needed, ``name``, ``args``, ``max_episode_steps``, and the returns ``random`` and ``reference`` that scores count
    from 0 to 100. ``env: minigrid_five`` is short for ``env.tasks: [minigrid_five]``; ``env.args`` hold for all."""

    task: str = ""
    """Play this one of ``tasks`` alone; what the policy sees and does stays that of all of them."""

    task_spread: Literal["mixed", "worker"] = "mixed"
    """mixed: neighbouring environments play different tasks, and all get the same number of rows, at the pace of the
    slowest; worker: every worker plays one task, and fast ones get more."""

    levels: LevelSettings = field(default_factory=LevelSettings)
    """Levels that episodes are drawn from, and a folder that keeps them (docs/levels.md)."""

    own_process: bool = False
    """Run each environment in a process of its own: for simulators that need a process or a GL context to themselves,
    or that crash. A step costs a message there and back."""

    policies: tuple[int, ...] = ()
    """Which policy plays each agent of an environment with several, by number: ``[0, 0, 1]``. Each learns from its own
    agents only. Empty: one policy plays all."""

    mask_in_info: bool = False
    """Take the action mask from ``info["action_mask"]`` (Gymnasium environments only)."""

    previous_action: bool = False
    """Show the last action as one more field of the observation (choices as zeros and ones; zeros where an episode
    begins), so that networks with and without memory know what they have done."""

    previous_reward: bool = False
    """Show the reward of the last action as one more field of the observation."""

    info: tuple[str, ...] = ()
    """What to keep of the environment's ``info`` for every row, in recordings and for observers; no policy sees it.
    ``lives`` is a number, ``room:text`` a text of up to 64 bytes (``room:text200``: 200), ``position:3`` and
    ``map:4x5`` are arrays, ``player/health`` lies in a dict. ``map:4x5?`` makes NaN of what does not fit (of long texts
    what fits), with a warning, where it else is a fault."""

    vector: bool = False
    """Step each group of environments as one, by the vectorised form that the id itself brings (Gymnasium's
    ``vector_entry_point``); episodes are then seeded group by group, not one by one."""

    max_episode_steps: int = 0
    """Truncate episodes after this many steps; 0 leaves it to the environment."""

    fault_limit: int = 5
    """How often one env may fail (raise, return nonsense) within ``fault_window`` steps before the run stops."""

    fault_window: int = 1000
    """Good steps after which an env's earlier faults are forgotten."""

    @property
    def policy_count(self) -> int:
        return max(self.policies, default=0) + 1

    @property
    def check_hint(self) -> str:
        """What to do about an environment that fails."""
        if self.id.startswith(f"{MAIN}:"):
            return (
                f"in a file, `rollmill envs check path/to/file.py:{self.id.rpartition(':')[2]}` looks for what is wrong"
            )
        args = {name: value if isinstance(value, str) else json.dumps(value) for name, value in self.args.items()}
        words = [self.id, *(f"env.args.{name}={value}" for name, value in args.items())]
        return f"`rollmill envs check {shlex.join(words)}` looks for what is wrong with it"

    @property
    def for_store(self) -> dict[str, Any]:
        """What a store keeps of them (keywords of ``StoreSchema.for_env``), to build the same environment again."""
        default = to_dict(EnvSettings())
        values = {name: value for name, value in to_dict(self).items() if name in _REBUILT and value != default[name]}
        return {"env_id": self.id, "env_kwargs": dict(self.args), "env_settings": values}

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> EnvSettings:
        """Build them from plain values (``dataclasses.asdict``), as another process has sent them."""
        return cls(**{**values, "levels": LevelSettings(**values["levels"])} if "levels" in values else values)

    def __post_init__(self) -> None:
        if self.tasks and self.id in ("", "toy_target"):  # a name for what has none of its own
            first = self.tasks[0]
            object.__setattr__(self, "id", first if len(self.tasks) == 1 and isinstance(first, str) else "tasks")
        if self.tasks and self.vector:
            raise ValueError("tasks are single environments: set vector=false")
        if self.own_process and self.vector:
            raise ValueError("own_process is for single environments: set vector=false")
        if self.levels.on and self.vector:
            raise ValueError("levels are drawn episode by episode, a vector is seeded as one: set vector=false")
        if self.max_episode_steps < 0:
            raise ValueError("max_episode_steps must be 0 (off) or positive")
        if self.fault_limit < 0 or self.fault_window < 1:
            raise ValueError("fault_limit must be >= 0 and fault_window >= 1")
        if self.policies and {*self.policies} != {*range(len({*self.policies}))}:
            raise ValueError(f"policies must number from 0 without gaps, got {list(self.policies)}")
        info_fields(self.info)
        added = {"previous_action": self.previous_action, "previous_reward": self.previous_reward, "info": self.info}
        for name in (name for name, on in added.items() if on and self.vector):
            raise ValueError(f"{name} is for single environments: set vector=false")
        if self.vector and self.mask_in_info:
            raise ValueError("mask_in_info is for single environments; with vector the mask must be in the observation")
