"""Which keys do what, for people who play an environment themselves.

An environment says it as Gymnasium's own do: ``get_keys_to_action()`` gives actions by the keys that are held together
(characters, or the numbers that pygame has for keys). For others, actions have digits, then letters.
"""

from __future__ import annotations

import string
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from rollmill.core.errors import ConfigError
from rollmill.core.fields import Array
from rollmill.core.protocols import Env

CODES = {
    "right": 1073741903,
    "left": 1073741904,
    "down": 1073741905,
    "up": 1073741906,
    "ctrl": 1073742048,
    "shift": 1073742049,
    "alt": 1073742050,
    "return": 13,
    "escape": 27,
    "space": 32,
}
"""pygame's numbers of keys that are not characters."""
NAMES = {code: name for name, code in CODES.items()}
USUAL = string.digits + string.ascii_lowercase
"""Keys of actions 0, 1, 2, ... where the environment names none."""

Keys = frozenset[str]
"""Keys that are held together, by name: ``up``, ``shift``, ``space``, ``a``, ``7``."""


def key_name(key: int | str) -> str:
    """Return what we call a key that Gymnasium writes as a number or a character."""
    code = key if isinstance(key, int) else ord(key)
    return NAMES.get(code) or chr(code).lower()


class Keyboard:
    """The keys of one environment, and the action that some of them mean."""

    def __init__(self, actions: Mapping[Keys, int]) -> None:
        self.actions = dict(actions)

    @classmethod
    def of(cls, env: Env) -> Keyboard:
        """Read which keys the environment names, or use digits and letters; raises ConfigError if keys will not do."""
        spec = env.spec
        if spec.agents != 1 or spec.action.kind != "discrete":
            what = f"{spec.agents} agents" if spec.agents != 1 else f"{spec.action.kind} actions"
            raise ConfigError(f"{spec.name} has {what}: keys are for one agent that chooses one of some actions")
        said = _said(env)
        if said is not None:
            return cls({frozenset(map(key_name, keys)): int(action) for keys, action in said.items()})
        count = spec.action.nvec[0]
        if count > len(USUAL):
            raise ConfigError(
                f"{spec.name} has {count} actions and no get_keys_to_action() that says which keys they have"
            )
        actions = {frozenset(USUAL[action]): action for action in range(count)}
        if count == 2:  # as in CartPole
            actions |= {frozenset({"left"}): 0, frozenset({"right"}): 1}
        return cls(actions)

    @property
    def keys(self) -> list[str]:
        """Every key that means something."""
        return sorted({key for keys in self.actions for key in keys})

    def choose(self, held: Collection[str], mask: Array | None = None) -> int | None:
        """Return the allowed action of as many of the held keys as possible; None where they mean nothing."""
        fitting = [
            (len(keys), action)
            for keys, action in self.actions.items()
            if keys and keys <= set(held) and (mask is None or mask[action])
        ]
        return max(fitting, key=lambda pair: pair[0])[1] if fitting else None

    def text(self) -> str:
        """List all keys with their actions: ``right 0, right+up 1``."""
        order = ("shift", "ctrl", "alt")
        shown = [
            (action, "+".join(sorted(keys, key=lambda key: (key not in order, key))))
            for keys, action in self.actions.items()
            if keys
        ]
        return ", ".join(f"{keys} {action}" for action, keys in sorted(shown))


def _said(env: Env) -> Mapping[Sequence[int | str], Any] | None:
    """Return what the environment, or the Gymnasium environment inside, says of keys; None where they say nothing."""
    inner = getattr(env, "env", getattr(env, "_env", None))
    if getattr(inner, "has_wrapper_attr", lambda _: False)("get_keys_to_action"):  # wrappers hide what they wrap
        tell = inner.get_wrapper_attr("get_keys_to_action")  # type: ignore[union-attr]
    else:
        tell = getattr(env, "get_keys_to_action", None)
    said: Mapping[Sequence[int | str], Any] | None = tell() if tell is not None else None
    return said
