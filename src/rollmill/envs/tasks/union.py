"""What tasks with different spaces have in common for one network: the union of their fields and choices.

- Fields of one name must agree; those of rank 1 and 2 that are no images may differ in size, and are padded. What a
  task does not show is zero. ``task`` says one-hot which one it is.
- Choices with names (``choice_names`` of an environment: ViZDoom's buttons, for instance) are joined by name, component
  by component; without names by number. A mask forbids what a task does not have.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rollmill.core.errors import ConfigError
from rollmill.core.fields import MASK_FIELD, TASK_FIELD, ActionSpec, Array, EnvSpec, Field

Components = tuple[tuple[str, ...], ...]
"""Names of the choices of each component of an action."""


@dataclass(frozen=True)
class TaskSpace:
    """What one task promises by itself."""

    name: str
    spec: EnvSpec
    choices: tuple[str, ...] = ()
    """Names of its choices, all components side by side; empty where they have none."""

    @property
    def by_name(self) -> bool:
        """Whether its components are found by the names of their choices, and not by their place."""
        return bool(self.choices) and self.spec.action.kind == "multi_discrete"

    @property
    def components(self) -> Components:
        """The choices of each component; without names their numbers stand for them."""
        names = iter(self.choices or [str(k) for n in self.spec.action.nvec for k in range(n)])
        return tuple(tuple(next(names) for _ in range(n)) for n in self.spec.action.nvec)


def union_of(name: str, spaces: Sequence[TaskSpace]) -> EnvSpec:
    """Return the spec that all tasks meet; raises ConfigError if there is none."""
    first = spaces[0]
    for other in spaces[1:]:
        for what in ("agents", "frames_per_step"):
            a, b = getattr(first.spec, what), getattr(other.spec, what)
            if a != b:
                hint = "; set env.args.frame_skip" if what == "frames_per_step" else ""
                raise ConfigError(f"env.tasks: {first.name} has {what}={a}, {other.name} has {b}{hint}")
    action, masked = _actions(spaces)
    fields = _fields(spaces)
    if masked:
        fields.append(Field(MASK_FIELD, "int8", (action.mask_size,)))
    fields.append(Field(TASK_FIELD, "uint8", (len(spaces),)))
    return EnvSpec(name, tuple(fields), action, first.spec.agents, first.spec.frames_per_step)


def _fields(spaces: Sequence[TaskSpace]) -> list[Field]:
    found: dict[str, tuple[Field, str]] = {}
    for space in spaces:
        for field in space.spec.inputs:
            if field.name == TASK_FIELD:
                raise ConfigError(f"env.tasks: {space.name} has a field {TASK_FIELD!r} of its own")
            known, owner = found.setdefault(field.name, (field, space.name))
            if known == field:
                continue
            padded = len(known.shape) == len(field.shape) and 1 <= len(field.shape) <= 2 and known.dtype == field.dtype
            if not padded:
                raise ConfigError(
                    f"env.tasks: field {field.name!r} is {known.dtype} {known.shape} in {owner} and {field.dtype} "
                    f"{field.shape} in {space.name}; one network reads one shape (env.args hold for all tasks)"
                )
            shape = tuple(map(max, known.shape, field.shape))
            found[field.name] = (Field(field.name, field.dtype, shape), owner)
    return [field for field, _ in found.values()]


def _actions(spaces: Sequence[TaskSpace]) -> tuple[ActionSpec, bool]:
    """Return the joined action space, and whether masks are needed."""
    first, masked = spaces[0].spec.action, any(space.spec.masked for space in spaces)
    alike = all(space.spec.action == first and space.choices == spaces[0].choices for space in spaces)
    if alike:
        return first, masked
    kinds = {space.spec.action.kind for space in spaces}
    if len(kinds) > 1 or not first.discrete or len({bool(space.choices) for space in spaces}) > 1:
        described = ", ".join(f"{space.name} {space.spec.action.kind}" for space in spaces)
        raise ConfigError(f"env.tasks: actions of different kinds have no union ({described})")
    joined = _join([space.components for space in spaces], spaces[0].by_name)
    nvec = tuple(len(component) for component in joined)
    names = tuple(choice for component in joined for choice in component)
    return ActionSpec(first.kind, nvec=nvec, start=(0,) * len(nvec), choices=names), True


def _join(all_components: Sequence[Components], by_name: bool) -> Components:
    """Join components that share a choice besides their first (idle); without names those of the same place."""
    joined: list[list[str]] = []
    for components in all_components:
        for place, component in enumerate(components):
            if by_name:
                home = next((known for known in joined if set(known[1:]) & set(component[1:])), None)
            else:
                home = joined[place] if place < len(joined) else None
            if home is None:
                joined.append(list(component))
            else:
                home += [choice for choice in component if choice not in home]
    return tuple(map(tuple, joined))


@dataclass(frozen=True)
class Translation:
    """From actions of the union to those of one task, and back for masks."""

    own: tuple[tuple[int, ...], ...]
    """For each component of the union: the task's choice for each of its choices, -1 where it has none."""
    places: tuple[int, ...]
    """For each component of the task: that of the union."""
    allowed: Array
    """``[mask_size]`` int8 of the union."""
    sources: Array
    """``[mask_size]``: the place of each choice in the task's own mask, -1 where it has none."""

    @staticmethod
    def of(space: TaskSpace, union: ActionSpec) -> Translation:
        names = iter(union.choices)
        joined = [tuple(next(names) for _ in range(n)) for n in union.nvec]
        components = space.components
        places = [
            place
            if not space.by_name
            else next(k for k, known in enumerate(joined) if set(known[1:]) & set(component[1:]))
            for place, component in enumerate(components)
        ]
        own, sources = [], []
        starts = np.cumsum([0, *space.spec.action.nvec])
        for place, known in enumerate(joined):
            mine = places.index(place) if place in places else None
            component = components[mine] if mine is not None else ()
            choices = tuple(component.index(choice) if choice in component else -1 for choice in known)
            if mine is None:  # nothing of this component: its first choice stands for doing nothing
                choices = (0, *choices[1:])
            own.append(choices)
            sources += [-1 if mine is None or k < 0 else int(starts[mine]) + k for k in choices]
        allowed = np.array([k >= 0 for choices in own for k in choices], np.int8)
        return Translation(tuple(own), tuple(places), allowed, np.array(sources))
