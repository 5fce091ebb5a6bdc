"""Gymnasium spaces as fields: how observations are laid out in a row, how actions go back.

Every supported space maps to named fields; anything else is an error that names the space.

================  =====================================================================
space             field(s)
================  =====================================================================
Box               ``obs``; uint8 and other integers kept, floats stored as float32
Discrete          ``obs`` one-hot uint8 ``(n,)``
MultiDiscrete     ``obs`` one-hot uint8 ``(sum(nvec),)``
MultiBinary       ``obs`` uint8
Dict, Tuple       one field per entry, nested names joined by dots: ``camera.left``, ``0.1``
================  =====================================================================

Actions are one row of choices, of numbers, or of both (``ActionSpec``). A MultiBinary is choices of two.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from gymnasium import spaces

from rollmill.core.errors import ConfigError
from rollmill.core.fields import MASK_FIELD, ActionSpec, Array, Field, Obs

Space = spaces.Space[Any]

Lane = int | slice
ALL = slice(None)

Writer = Callable[[Any, Obs, Lane], None]
"""Writes one agent's observation into lane ``i`` of the arrays; raises ValueError on nonsense.

Those of ``batch_writer`` take the observations of all lanes at once, and ``ALL``.
"""


def observation_layout(space: Space) -> tuple[tuple[Field, ...], Writer]:
    """Return the fields of an observation space and the function that writes an observation into them."""
    leaves = _leaves(space)
    write = _nested_writer([(path, _leaf_writer(leaf, field)) for field, path, leaf in leaves])
    return tuple(field for field, _, _ in leaves), write


def batch_writer(space: Space, lanes: int) -> Writer:
    """Return a function that writes what a vector env shows, ``space`` batched as Gymnasium does it, into all lanes."""
    return _nested_writer([(path, _batch_leaf_writer(leaf, field, lanes)) for field, path, leaf in _leaves(space)])


def _leaves(space: Space) -> list[tuple[Field, tuple[Any, ...], Space]]:
    leaves: list[tuple[Field, tuple[Any, ...], Space]] = []
    _collect(space, "", (), leaves)
    _check_fields(space, [field for field, _, _ in leaves])
    return leaves


def _nested_writer(parts: list[tuple[tuple[Any, ...], Writer]]) -> Writer:
    """Make one writer of several, each for the part of the observation that lies under its path."""
    if len(parts) == 1 and not parts[0][0]:
        return parts[0][1]

    def write(value: Any, obs: Obs, lane: Lane) -> None:
        for path, writer in parts:
            part = value
            for key in path:
                try:
                    part = part[key]
                except (KeyError, IndexError, TypeError) as error:
                    raise ValueError(f"observation lacks entry {key!r}: {_short(value)}") from error
            writer(part, obs, lane)

    return write


def _collect(space: Space, name: str, path: tuple[Any, ...], leaves: list[Any]) -> None:
    children: list[tuple[Any, Space]] | None = None
    if isinstance(space, spaces.Dict):
        children = list(space.spaces.items())
    elif isinstance(space, spaces.Tuple):
        children = list(enumerate(space.spaces))
    if children is None:
        leaves.append((_leaf_field(space, name or "obs"), path, space))
        return
    for key, child in children:
        _collect(child, f"{name}.{key}" if name else str(key), (*path, key), leaves)


def _check_fields(space: Space, fields: list[Field]) -> None:
    if not fields:
        raise ConfigError(f"observation space {space} is empty")
    for field in fields:
        if 0 in field.shape:
            raise ConfigError(
                f"observation space {space}: {field.name!r} has shape {field.shape}, there is nothing in it; leave it "
                "out, or give an environment that shows nothing a Box(0, 1, (1,)) of zeros"
            )
    names = [field.name for field in fields]
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(f"observation space {space} has several entries that are called {name!r} when nested")


def _leaf_field(space: Space, name: str) -> Field:
    if isinstance(space, spaces.Box):
        dtype = "float32" if space.dtype.kind == "f" else space.dtype.name
        return Field(name, dtype, tuple(int(n) for n in space.shape))
    if isinstance(space, spaces.Discrete):
        return Field(name, "uint8", (int(space.n),))
    if isinstance(space, spaces.MultiDiscrete):
        return Field(name, "uint8", (int(np.sum(space.nvec)),))
    if isinstance(space, spaces.MultiBinary):
        return Field(name, "uint8", tuple(np.atleast_1d(space.n).tolist()))
    raise ConfigError(
        f"observation space {space} ({name}) is not supported; "
        "supported are Box, Discrete, MultiDiscrete, MultiBinary, Dict and Tuple of these"
    )


def _leaf_writer(space: Space, field: Field) -> Writer:
    if isinstance(space, spaces.Discrete):
        return _one_hot_writer(field, np.array([int(space.n)]), np.array([int(space.start)]))
    if isinstance(space, spaces.MultiDiscrete):
        return _one_hot_writer(field, np.ravel(space.nvec), np.ravel(space.start))
    if isinstance(space, spaces.MultiBinary):
        return _binary_writer(field)
    return box_writer(field)


def _batch_leaf_writer(space: Space, field: Field, lanes: int) -> Writer:
    if isinstance(space, spaces.Discrete):
        return _batch_one_hot_writer(field, np.array([int(space.n)]), np.array([int(space.start)]), (lanes,))
    if isinstance(space, spaces.MultiDiscrete):
        return _batch_one_hot_writer(field, np.ravel(space.nvec), np.ravel(space.start), (lanes, *space.nvec.shape))
    batch = Field(field.name, field.dtype, (lanes, *field.shape))
    return _binary_writer(batch) if isinstance(space, spaces.MultiBinary) else box_writer(batch)


def box_writer(field: Field) -> Writer:
    """Return a function that writes arrays of the field's shape; dtypes of the same kind are converted."""
    name, shape, dtype = field.name, field.shape, np.dtype(field.dtype)

    def write(value: Any, obs: Obs, lane: Lane) -> None:
        if type(value) is not np.ndarray or value.shape != shape or value.dtype is not dtype:
            value = _checked(value, field, dtype)
        obs[name][lane] = value

    return write


def _checked(value: Any, field: Field, dtype: np.dtype[Any]) -> Array:
    """Convert what is harmless in a Box, and refuse the rest by name: the slow path of writing it."""
    if value is None:
        raise ValueError(f"observation {field.name!r} is None")
    array = np.asarray(value)
    if array.shape != field.shape:
        raise ValueError(f"observation {field.name!r} has shape {array.shape}, the space says {field.shape}")
    if array.dtype == dtype:
        return array
    if not np.can_cast(array.dtype, dtype, "same_kind"):
        raise ValueError(f"observation {field.name!r} has dtype {array.dtype}, the space says {dtype}")
    converted: Array = array.astype(dtype)
    if dtype.kind in "iu" and (converted != array).any():
        raise ValueError(f"observation {field.name!r} is {_short(value)}, which does not fit into {dtype}")
    return converted


def _binary_writer(field: Field) -> Writer:
    """Return a function that writes zeros and ones of any integer type, or booleans: Gymnasium itself gives int8."""
    name = field.name

    def write(value: Any, obs: Obs, lane: Lane) -> None:
        array = np.asarray(value)
        if array.shape != field.shape or array.dtype.kind not in "iub" or not ((array == 0) | (array == 1)).all():
            raise ValueError(f"observation {name!r} is {_short(value)}, expected zeros and ones of shape {field.shape}")
        obs[name][lane] = array

    return write


def _one_hot_writer(field: Field, nvec: Array, start: Array) -> Writer:
    name = field.name
    offsets = np.concatenate([[0], np.cumsum(nvec)[:-1]])

    def write(value: Any, obs: Obs, lane: Lane) -> None:
        number = np.ravel(np.asarray(value))
        known = number.shape == nvec.shape and number.dtype.kind in "iub"
        choice = number.astype(np.int64) - start if known else number
        if not known or (choice < 0).any() or (choice >= nvec).any():
            raise ValueError(f"observation {name!r} is {_short(value)}, outside its space of {nvec.tolist()} choices")
        row = obs[name][lane]
        row[:] = 0
        row[offsets + choice] = 1

    return write


def _batch_one_hot_writer(field: Field, nvec: Array, start: Array, shape: tuple[int, ...]) -> Writer:
    name = field.name
    offsets = np.cumsum(nvec) - nvec - start

    def write(value: Any, obs: Obs, lane: Lane) -> None:
        number = np.asarray(value)
        if number.shape != shape or number.dtype.kind not in "iub":
            raise ValueError(
                f"observation {name!r} has shape {number.shape} and dtype {number.dtype}, expected integers {shape}"
            )
        number = number.reshape(len(number), -1).astype(np.int64)
        if (number < start).any() or (number >= start + nvec).any():
            raise ValueError(f"observation {name!r} is {_short(value)}, outside its space of {nvec.tolist()} choices")
        rows = obs[name][lane]
        rows[:] = 0
        np.put_along_axis(rows, number + offsets, 1, axis=1)

    return write


def action_layout(space: Space) -> tuple[ActionSpec, Callable[[Array], Any]]:
    """Return the action spec of a space and the function that turns one stored action into the env's own.

    Nested spaces become one flat row: all choices of all entries first, then all numbers.
    """
    if isinstance(space, spaces.Discrete):
        start = int(space.start)
        spec = ActionSpec("discrete", nvec=(int(space.n),), start=(start,))
        return spec, (lambda a: int(a) + start) if start else int
    parts = _action_parts(space)
    spec = _joined(space, parts)
    if not parts[0].path:
        return spec, parts[0].to_env
    take = _action_taker(space, parts)
    return spec, lambda action: take(action, False)


def batch_actions(single: Space, batch: Space) -> Callable[[Array], Any]:
    """Return a function that turns stored actions ``[lanes, ...]`` into what a vector env takes: always a copy."""
    if isinstance(single, spaces.Discrete):
        start, dtype = single.start, batch.dtype
        return lambda actions: (actions + start).astype(dtype, copy=False)
    parts = _action_parts(single)
    if not parts[0].path:
        return parts[0].to_env
    take = _action_taker(single, parts)
    return lambda actions: take(actions, True)


@dataclass(frozen=True)
class _ActionPart:
    """One entry of an action space: where it belongs, and what it takes up of a stored row."""

    path: tuple[Any, ...]
    to_env: Callable[[Array], Array]
    """Stored ``[..., width]`` to the env's own ``[..., *shape]``: always a copy."""
    nvec: tuple[int, ...] = ()
    start: tuple[int, ...] = ()
    low: tuple[float, ...] = ()
    high: tuple[float, ...] = ()
    number: bool = False
    """A Discrete: a single env wants a plain int."""


def _action_parts(space: Space, path: tuple[Any, ...] = ()) -> list[_ActionPart]:
    if isinstance(space, spaces.Dict):
        return [part for key, child in space.spaces.items() for part in _action_parts(child, (*path, key))]
    if isinstance(space, spaces.Tuple):
        return [part for key, child in enumerate(space.spaces) for part in _action_parts(child, (*path, key))]
    if isinstance(space, spaces.Discrete):
        return [_choice_part(path, [int(space.n)], [int(space.start)], (), space.dtype)]
    if isinstance(space, spaces.MultiDiscrete):
        return [_choice_part(path, np.ravel(space.nvec), np.ravel(space.start), space.nvec.shape, space.dtype)]
    if isinstance(space, spaces.MultiBinary):
        size = int(np.prod(space.shape))
        return [_choice_part(path, [2] * size, [0] * size, space.shape, space.dtype)]
    if isinstance(space, spaces.Box) and space.dtype.kind == "f":
        return [_number_part(path, space)]
    where = f" ({'.'.join(map(str, path))})" if path else ""
    raise ConfigError(
        f"action space {space}{where} is not supported; supported are Discrete, MultiDiscrete, MultiBinary, float Box, "
        "and Dict and Tuple of these"
    )


def _choice_part(path: tuple[Any, ...], nvec: Any, start: Any, shape: tuple[int, ...], dtype: Any) -> _ActionPart:
    first = np.asarray(start, np.int64)

    def to_env(stored: Array) -> Array:
        return (stored + first).astype(dtype, copy=False).reshape((*stored.shape[:-1], *shape))

    counts, starts = tuple(int(n) for n in nvec), tuple(int(n) for n in first)
    return _ActionPart(path, to_env, nvec=counts, start=starts, number=not shape)


def _number_part(path: tuple[Any, ...], space: spaces.Box) -> _ActionPart:
    low, high, shape, dtype = np.ravel(space.low), np.ravel(space.high), space.shape, space.dtype

    def to_env(stored: Array) -> Array:
        # The policy's Gaussian is unbounded; the stored action keeps what was sampled, so that its
        # log-probability stays right, and only the simulator sees the clipped one.
        return np.clip(stored, low, high).astype(dtype, copy=False).reshape((*stored.shape[:-1], *shape))

    return _ActionPart(path, to_env, low=tuple(float(x) for x in low), high=tuple(float(x) for x in high))


def _joined(space: Space, parts: list[_ActionPart]) -> ActionSpec:
    """Join all parts in one spec, choices before numbers."""
    nvec, start = (tuple(n for part in parts for n in getattr(part, name)) for name in ("nvec", "start"))
    low, high = (tuple(x for part in parts for x in getattr(part, name)) for name in ("low", "high"))
    if not nvec and not low:
        raise ConfigError(f"action space {space} is empty")
    if not low:
        return ActionSpec("multi_discrete", nvec=nvec, start=start)
    if not nvec:
        return ActionSpec("continuous", shape=(len(low),), low=low, high=high)
    return ActionSpec("mixed", nvec=nvec, start=start, shape=(len(low),), low=low, high=high)


def _action_taker(space: Space, parts: list[_ActionPart]) -> Callable[[Array, bool], Any]:
    """Return a function that nests stored rows ``[..., width]`` again; True is for rows of several lanes."""
    places, choice, number = [], 0, sum(len(part.nvec) for part in parts)
    for part in parts:
        if part.nvec:
            places.append(slice(choice, choice := choice + len(part.nvec)))
        else:
            places.append(slice(number, number := number + len(part.low)))
    place_of = {part.path: (part, place) for part, place in zip(parts, places, strict=True)}

    def take(stored: Array, lanes: bool, space: Space = space, path: tuple[Any, ...] = ()) -> Any:
        if isinstance(space, spaces.Dict):
            return {key: take(stored, lanes, child, (*path, key)) for key, child in space.spaces.items()}
        if isinstance(space, spaces.Tuple):
            return tuple(take(stored, lanes, child, (*path, key)) for key, child in enumerate(space.spaces))
        part, place = place_of[path]
        value = part.to_env(stored[..., place])
        return int(value) if part.number and not lanes else value

    return take


def mask_field(spec: ActionSpec) -> Field:
    """Return the field of an action mask for this action space."""
    if spec.kind == "continuous":
        raise ConfigError("action masks need an action space with choices (Discrete, MultiDiscrete, MultiBinary)")
    return Field(MASK_FIELD, "int8", (spec.mask_size,))


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 120 else text[:117] + "..."
