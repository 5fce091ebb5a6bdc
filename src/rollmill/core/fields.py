"""What a row of experience is made of: named fields with a dtype and a shape.

Words
-----
field   one named column of a row: ``Field("image", "uint8", (72, 128, 3))``.
row     one lane's values at one step.
spec    what an environment promises: its observation fields, its action space, how many agents.

Nothing here allocates memory or knows about processes; ``core.slots`` lays fields out in memory.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from rollmill.core.shapes import Shape, check_shape

Array = NDArray[Any]
Obs = dict[str, Array]
"""Observation arrays by field name; every array starts with a lane axis: ``[lanes, *shape]``."""

MASK_FIELD = "action_mask"
"""Name of the observation field that holds the action mask (1 = allowed); networks never see it as input."""
PREVIOUS_ACTION = "previous_action"
PREVIOUS_REWARD = "previous_reward"
"""Names of the observation fields that hold the last action and its reward, where ``env`` says so."""
INFO = "info:"
"""Prefix of fields for what an environment's ``info`` says, where rows and stores hold them."""
TASK_FIELD = "task"
"""Name of the observation field that says, one-hot, which task of a suite is played; only suites have it."""


@dataclass(frozen=True)
class Field:
    """Describes one named column: ``dtype`` in numpy's spelling, ``shape`` of a single row without lanes."""

    name: str
    dtype: str
    shape: tuple[int, ...] = ()

    @property
    def nbytes(self) -> int:
        """Bytes of one row."""
        return math.prod(self.shape) * np.dtype(self.dtype).itemsize

    @property
    def is_image(self) -> bool:
        """True for uint8 arrays of rank 3, the ones a convnet reads."""
        return self.dtype == "uint8" and len(self.shape) == 3

    @property
    def is_float(self) -> bool:
        return np.dtype(self.dtype).kind == "f"


ActionKind = Literal["discrete", "multi_discrete", "continuous", "mixed"]


@dataclass(frozen=True)
class ActionSpec:
    """The action space of one agent.

    - ``discrete``: one integer below ``nvec[0]``; stored as int64, shape ``()``.
    - ``multi_discrete``: integers below each of ``nvec``; stored as int64, shape ``(len(nvec),)``.
      Zeros and ones (MultiBinary) are choices of two.
    - ``continuous``: a float32 vector of ``shape`` between ``low`` and ``high``.
    - ``mixed``: choices as of ``multi_discrete``, then numbers as of ``continuous`` (``shape`` is theirs alone); stored
      as float32, shape ``(len(nvec) + len(low),)``.

    ``start`` is added to choices when they are handed to the environment. ``choices`` names them, all components side
    by side as in a mask, where tasks of a suite have different ones; else it is empty.
    """

    kind: ActionKind
    nvec: tuple[int, ...] = ()
    start: tuple[int, ...] = ()
    shape: tuple[int, ...] = ()
    low: tuple[float, ...] = ()
    high: tuple[float, ...] = ()
    choices: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name in ("low", "high"):  # a spec that went through a file must equal the one that did not
            object.__setattr__(self, name, tuple(float(bound) for bound in getattr(self, name)))

    @property
    def discrete(self) -> bool:
        """Whether all of the action is choices."""
        return self.kind not in ("continuous", "mixed")

    @property
    def agrees(self) -> bool:
        """Whether its parts fit its kind and each other; what a file holds may be anything."""
        numbers = math.prod(self.shape) if self.kind in ("continuous", "mixed") else 0
        least, most = {"discrete": (1, 1), "continuous": (0, 0)}.get(self.kind, (1, len(self.nvec)))
        return (
            self.kind in get_args(ActionKind)
            and least <= len(self.nvec) <= most
            and min(self.nvec, default=1) > 0
            and len(self.start) in (0, len(self.nvec))
            and len(self.choices) in (0, self.mask_size)
            and len(self.low) == len(self.high) == numbers
        )

    @property
    def field(self) -> Field:
        if self.kind == "continuous":
            return Field("action", "float32", self.shape)
        if self.kind == "mixed":
            return Field("action", "float32", (len(self.nvec) + len(self.low),))
        return Field("action", "int64", () if self.kind == "discrete" else (len(self.nvec),))

    @property
    def mask_size(self) -> int:
        """Length of an action mask: the choices of all components side by side."""
        return sum(self.nvec)


SPEC_SHAPE: Shape = {
    "name": str,
    "observation": [[str, str, [int]]],
    "action": {
        "kind": str,
        "nvec?": [int],
        "start?": [int],
        "shape?": [int],
        "low?": [float],
        "high?": [float],
        "choices?": [str],
    },
    "agents": int,
    "frames_per_step": int,
    "info?": [[str, str, [int]]],
}
"""The shape of ``EnvSpec.to_dict``."""


@dataclass(frozen=True)
class EnvSpec:
    """What one environment instance promises about its lanes.

    ``frames_per_step`` is the frame skip: simulator frames per decision.
    """

    name: str
    observation: tuple[Field, ...]
    action: ActionSpec
    agents: int = 1
    frames_per_step: int = 1
    info: tuple[Field, ...] = ()
    """What is kept of its ``info`` with every observation; no policy sees it (``envs.info``)."""

    def __post_init__(self) -> None:
        if self.agents < 1 or self.frames_per_step < 1:
            raise ValueError(
                f"{self.name}: agents={self.agents} and frames_per_step={self.frames_per_step} must be at least 1"
            )

    @property
    def masked(self) -> bool:
        return any(f.name == MASK_FIELD for f in self.observation)

    @property
    def tasks(self) -> int:
        """How many tasks the suite has; 0 where the environment is no suite."""
        return next((f.shape[0] for f in self.observation if f.name == TASK_FIELD and len(f.shape) == 1), 0)

    @property
    def written(self) -> tuple[Field, ...]:
        """All that the environment writes beside what came of an action: observations, and info under its prefix."""
        return (*self.observation, *(Field(INFO + f.name, f.dtype, f.shape) for f in self.info))

    @property
    def inputs(self) -> tuple[Field, ...]:
        """The observation fields a network reads: all but the action mask."""
        return tuple(f for f in self.observation if f.name != MASK_FIELD)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON (checkpoints, worker set-up); ``from_dict`` turns them back."""
        return {
            "name": self.name,
            "observation": [[f.name, f.dtype, list(f.shape)] for f in self.observation],
            "action": {
                "kind": self.action.kind,
                "nvec": list(self.action.nvec),
                "start": list(self.action.start),
                "shape": list(self.action.shape),
                "low": list(self.action.low),
                "high": list(self.action.high),
                **({"choices": list(self.action.choices)} if self.action.choices else {}),
            },
            "agents": self.agents,
            "frames_per_step": self.frames_per_step,
            **({"info": [[f.name, f.dtype, list(f.shape)] for f in self.info]} if self.info else {}),
        }

    @staticmethod
    def from_dict(data: Mapping[str, Any]) -> EnvSpec:
        """Turn ``to_dict`` back; raises TypeError or ValueError where it is something else."""
        check_shape(data, SPEC_SHAPE)
        action = dict(data["action"])
        kind = action.pop("kind")
        for _, dtype, shape in (*data["observation"], *data.get("info", ())):
            np.zeros((0, *shape), dtype)  # or it is no dtype, no shape
        return EnvSpec(
            name=data["name"],
            observation=tuple(Field(n, d, tuple(s)) for n, d, s in data["observation"]),
            action=ActionSpec(kind, **{name: tuple(value) for name, value in action.items()}),
            agents=data["agents"],
            frames_per_step=data["frames_per_step"],
            info=tuple(Field(n, d, tuple(s)) for n, d, s in data.get("info", ())),
        )
