"""Turns an agent's action into ViZDoom's buttons.

================  ==========================================================================================
``actions``       action space
================  ==========================================================================================
``single``        one choice: 0 is idle, ``i`` presses the ``i``-th button alone
``groups``        one choice per group of buttons that exclude each other, 0 is idle; a delta button is one of
                  ``delta_steps`` values, the middle one is 0
``combinations``  one choice among all combinations of the groups, in their order; 0 is idle
``continuous``    the choices of ``groups``, then a number per delta button
a list            one choice: 0 is idle, ``i`` presses the buttons of the ``i``-th entry
================  ==========================================================================================

Delta buttons (``TURN_LEFT_RIGHT_DELTA`` and its kin) take a number per tic, degrees or map units, between
``-delta_max`` and ``delta_max``.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from rollmill.core.errors import ConfigError, EnvError
from rollmill.core.fields import ActionSpec, Array
from rollmill.core.text import nearest

KINDS = ("single", "groups", "combinations", "continuous")
IDLE = "idle"
LARGEST_LIST = 4096
"""Combinations in one choice; more would be a last layer larger than the network."""

EXCLUSIVE: tuple[frozenset[str], ...] = (
    frozenset({"TURN_LEFT", "TURN_RIGHT", "TURN180"}),
    frozenset({"MOVE_FORWARD", "MOVE_BACKWARD"}),
    frozenset({"MOVE_LEFT", "MOVE_RIGHT"}),
    frozenset({"MOVE_UP", "MOVE_DOWN", "LAND"}),
    frozenset({"LOOK_UP", "LOOK_DOWN"}),
    frozenset({"JUMP", "CROUCH"}),
    frozenset({"SELECT_NEXT_WEAPON", "SELECT_PREV_WEAPON", *(f"SELECT_WEAPON{n}" for n in range(10))}),
    frozenset({"SELECT_NEXT_ITEM", "SELECT_PREV_ITEM"}),
)
"""Buttons of which at most one is pressed at a time; any other is a group of its own."""

Presses = list[float]
"""What ``DoomGame.make_action`` takes: a value for each button."""


@dataclass(frozen=True)
class Controls:
    """An action space over buttons; ``presses`` turns an action ``[1, ...]`` into the buttons' values."""

    spec: ActionSpec
    presses: Callable[[Array], Presses]
    names: tuple[str, ...] = ()
    """Of all choices, component by component: the buttons they press."""


@dataclass(frozen=True)
class _Group:
    """Indices of buttons that exclude each other, or of one delta button."""

    members: tuple[int, ...]
    delta: bool = False


def is_delta(button: str) -> bool:
    return button.endswith("_DELTA")


def make_controls(
    buttons: Sequence[str], actions: str | Sequence[Sequence[str]], delta_steps: int, delta_max: float
) -> Controls:
    """Build the action space that ``actions`` asks for; raises ConfigError if the buttons do not allow it."""
    if delta_steps < 3 or delta_steps % 2 == 0:
        raise ConfigError(f"delta_steps must be odd (the middle is 0) and at least 3, got {delta_steps}")
    if not delta_max > 0:
        raise ConfigError(f"delta_max must be positive, got {delta_max}")
    if not isinstance(actions, str):
        return _listed(buttons, _chosen(buttons, actions))
    if actions not in KINDS:
        raise ConfigError(
            f"actions={actions!r} {nearest(actions, KINDS)} (one of {', '.join(KINDS)}, or a list of lists of buttons)"
        )
    if actions == "single":
        _refuse_deltas(buttons, "actions=single")
        return _listed(buttons, [_pressed(len(buttons), [i]) for i in range(len(buttons))])
    groups = _groups(buttons)
    if actions == "continuous":
        return _continuous(buttons, groups, delta_max)
    choices = [_choices(group, len(buttons), delta_steps, delta_max) for group in groups]
    if actions == "groups":
        return _grouped(buttons, choices)
    count = int(np.prod([len(options) for options in choices]))
    if count > LARGEST_LIST:
        raise ConfigError(f"actions=combinations: {count:,} combinations of {len(buttons)} buttons; use actions=groups")
    # Idle first, then in the order in which the last group changes fastest.
    combined = [_sum(parts) for parts in itertools.product(*choices)]
    return _listed(buttons, [presses for presses in combined if any(presses)])


def _name(buttons: Sequence[str], presses: Presses) -> str:
    """Return what a choice is called: the buttons it presses, those that take a number with it."""
    pressed = [b if not is_delta(b) else f"{b}={value:g}" for b, value in zip(buttons, presses, strict=True) if value]
    return "+".join(pressed) or IDLE


def _listed(buttons: Sequence[str], entries: Sequence[Presses]) -> Controls:
    """Build one choice: idle, then the entries."""
    idle = [0.0] * len(entries[0])
    table = dict(enumerate([idle, *entries]))

    def presses(action: Array) -> Presses:
        try:
            return table[action.item()]
        except (KeyError, ValueError):
            raise EnvError(f"action {_text(action)} is not one of 0 to {len(table) - 1}") from None

    names = tuple(_name(buttons, entry) for entry in table.values())
    return Controls(ActionSpec("discrete", nvec=(len(table),), start=(0,)), presses, names)


def _grouped(buttons: Sequence[str], choices: list[list[Presses]]) -> Controls:
    """Build one choice per group; combinations are put together once."""
    nvec = tuple(len(options) for options in choices)
    known: dict[bytes, Presses] = {}

    def presses(action: Array) -> Presses:
        key = action.tobytes()
        if key not in known:
            known[key] = _sum([options[k] for options, k in zip(choices, _checked(action, nvec), strict=True)])
        return known[key]

    names = tuple(_name(buttons, entry) for options in choices for entry in options)
    return Controls(ActionSpec("multi_discrete", nvec=nvec, start=(0,) * len(nvec)), presses, names)


def _continuous(buttons: Sequence[str], groups: list[_Group], delta_max: float) -> Controls:
    """Build numbers for delta buttons, choices for the rest (``mixed``); only numbers if there is nothing else."""
    if not any(group.delta for group in groups):
        raise ConfigError(
            "actions=continuous needs delta buttons, and there are none among "
            f"{', '.join(buttons)}; add some with buttons=[TURN_LEFT_RIGHT_DELTA, ...]"
        )
    choices = [group for group in groups if not group.delta]
    deltas = [group.members[0] for group in groups if group.delta]
    nvec = tuple(1 + len(group.members) for group in choices)

    def presses(action: Array) -> Presses:
        values = [0.0] * len(buttons)
        for group, k in zip(choices, _checked(action[:, : len(nvec)], nvec), strict=True):
            if k:
                values[group.members[k - 1]] = 1.0
        for button, value in zip(deltas, action[0, len(nvec) :].tolist(), strict=True):
            values[button] = min(max(value, -delta_max), delta_max)
        return values

    high = (delta_max,) * len(deltas)
    low = (-delta_max,) * len(deltas)
    if not choices:
        return Controls(ActionSpec("continuous", shape=(len(deltas),), low=low, high=high), presses)
    start = (0,) * len(nvec)
    spec = ActionSpec("mixed", nvec=nvec, start=start, shape=(len(deltas),), low=low, high=high)
    return Controls(spec, presses)


def _groups(buttons: Sequence[str]) -> list[_Group]:
    """Group the buttons in the order of their first ones; members in the order given."""
    members: dict[object, list[int]] = {}
    for index, button in enumerate(buttons):
        members.setdefault(next((s for s in EXCLUSIVE if button in s), button), []).append(index)
    return [_Group(tuple(m), is_delta(buttons[m[0]])) for m in members.values()]


def _choices(group: _Group, buttons: int, delta_steps: int, delta_max: float) -> list[Presses]:
    if group.delta:
        values = np.linspace(-delta_max, delta_max, delta_steps).tolist()
        return [_pressed(buttons, group.members, value) for value in values]
    return [[0.0] * buttons, *(_pressed(buttons, [member]) for member in group.members)]


def _chosen(buttons: Sequence[str], actions: Sequence[Sequence[str]]) -> list[Presses]:
    """Return the entries of the user's own list."""
    if not actions:
        raise ConfigError("actions: the list is empty")
    entries = []
    for number, names in enumerate(actions, start=1):
        if isinstance(names, str):
            raise ConfigError(f"actions: entry {number} is {names!r}; each entry is a list of buttons")
        for name in names:
            if name not in buttons:
                raise ConfigError(
                    f"actions: entry {number} presses {name!r}, which is not one of the buttons {', '.join(buttons)} "
                    f"{nearest(name, buttons)}"
                )
        _refuse_deltas(names, f"actions: entry {number}")
        entries.append(_pressed(len(buttons), [buttons.index(name) for name in names]))
    return entries


def _refuse_deltas(buttons: Sequence[str], where: str) -> None:
    deltas = [button for button in buttons if is_delta(button)]
    if deltas:
        raise ConfigError(f"{where}: {', '.join(deltas)} takes a number; use actions=groups or actions=continuous")


def _pressed(buttons: int, members: Sequence[int], value: float = 1.0) -> Presses:
    return [value if index in members else 0.0 for index in range(buttons)]


def _sum(parts: Sequence[Presses]) -> Presses:
    return [sum(values) for values in zip(*parts, strict=True)]


def _checked(action: Array, nvec: tuple[int, ...]) -> list[int]:
    chosen = action[0].tolist()
    if len(chosen) != len(nvec) or not all(0 <= k < n and k == int(k) for k, n in zip(chosen, nvec)):
        raise EnvError(f"action {_text(action)} does not fit: the choices are 0 to {[n - 1 for n in nvec]}")
    return [int(k) for k in chosen]


def _text(action: Array) -> str:
    return str(action.item() if action.size == 1 else action.tolist())
