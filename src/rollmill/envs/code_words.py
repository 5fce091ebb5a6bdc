"""Which words of an environment's settings let it run code, start a program or read a file that can do as much.

Whoever typed such words wants that. Where they come out of a file that somebody else may have made, ``runs.trust`` asks
first. Names from ``NAMED`` and Gymnasium's ids with plain arguments are never among them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from rollmill.core.config.schema import KeyPath
from rollmill.envs.make import NAMED, Route, find_route
from rollmill.envs.settings import EnvSettings
from rollmill.envs.tasks.suite import tasks_of
from rollmill.envs.vizdoom.scenarios import SCENARIOS

Rule = Callable[[Any], bool]
"""Whether a value of an argument is harmless."""

_PLAIN = re.compile(r"(?:\w[\w,-]*)?", re.ASCII)
"""Text that names neither a path nor a module nor an option of a program."""
_ZOO = re.compile(r"(?:pettingzoo|mpe2)(?:\.\w+)+", re.ASCII)
_GAME = re.compile(r"\w+(?:\([\w=,.-]*\))?", re.ASCII)
_LEVEL = re.compile(r"\w+(?:/\w+)*", re.ASCII)


def _never(value: Any) -> bool:
    return False


def _matches(pattern: re.Pattern[str]) -> Rule:
    return lambda value: isinstance(value, str) and pattern.fullmatch(value) is not None


def _is_plain(value: Any) -> bool:
    """Return whether it holds only numbers, plain words, and lists and mappings of these."""
    if isinstance(value, list | tuple):
        return all(map(_is_plain, value))
    if isinstance(value, Mapping):
        return all(map(_is_plain, value.values()))
    return not isinstance(value, str) or _PLAIN.fullmatch(value) is not None


_RULES: Mapping[str, Mapping[str, Rule]] = {
    "rollmill.envs.mlagents.env:MlAgentsEnv": dict.fromkeys(("build", "python", "arguments", "log_folder"), _never),
    "rollmill.envs.pettingzoo:PettingZooEnv": {"env": _matches(_ZOO)},
    "rollmill.envs.open_spiel:OpenSpielEnv": {"game": _matches(_GAME)},
    # A .cfg file may hold game_args, with which the engine writes files anywhere.
    "rollmill.envs.vizdoom.env:DoomEnv": {"scenario": lambda value: isinstance(value, str) and value in SCENARIOS},
    # Levels are Lua scripts: Lab's own are fine, those of other folders are code.
    "rollmill.envs.dmlab:DmLabEnv": {"level": _matches(_LEVEL), "config": _never},
    "rollmill.envs.envpool:EnvPoolEnv": {
        "task": lambda value: True,  # one that EnvPool does not list is refused
        **dict.fromkeys(
            ("vzd_path", "cfg_path", "wad_path", "iwad_path", "game_args", "lmp_save_dir", "xml_file"), _never
        ),
    },
}
"""Arguments with a rule of their own, by the adapter that takes them; all others must be plain."""


def code_words(settings: EnvSettings) -> dict[KeyPath, Any]:
    """Return the keys below ``env`` whose values name code, a program or a file, with these values."""
    tasks = tasks_of(settings)
    if not tasks:
        return _of_single(settings)
    found = [key for task in tasks for key in _of_single(task.settings(settings))]
    words = {("args", *key[1:]): settings.args[key[1]] for key in found if key[0] == "args" and key[1] in settings.args}
    return {**words, ("tasks",): list(settings.tasks)} if found else {}


def _of_single(settings: EnvSettings) -> dict[KeyPath, Any]:
    route = None if settings.id in NAMED else find_route(settings.id)
    entry = NAMED.get(route.entry if route else settings.id)
    rules = _RULES.get(entry.target, {}) if entry else {}
    found: dict[KeyPath, Any] = {} if _id_is_harmless(settings, route, rules) else {("id",): settings.id}
    return found | odd_arguments(settings.args, ("args",), rules)


_NO_RULES: Mapping[str, Rule] = {}


def odd_arguments(args: Mapping[str, Any], path: KeyPath, rules: Mapping[str, Rule] = _NO_RULES) -> dict[KeyPath, Any]:
    """Return those keyword arguments, found at ``path``, that are not harmless: own code may do anything with them."""
    leaves = _leaves(args, path)
    return {key: value for key, value in leaves if not rules.get(key[len(path)], _is_plain)(value)}


def _id_is_harmless(settings: EnvSettings, route: Route | None, rules: Mapping[str, Rule]) -> bool:
    if route is None:
        return settings.id in NAMED or ":" not in settings.id
    rule = rules.get(route.argument, _is_plain)
    # An argument of the same name takes the place of what stands in the id.
    return route.argument in settings.args or rule(route.args(settings.id)[route.argument])


def _leaves(values: Mapping[str, Any], path: KeyPath) -> Iterator[tuple[KeyPath, Any]]:
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, (*path, name))
        else:
            yield (*path, name), value
