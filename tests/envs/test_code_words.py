"""Which words of an environment's settings count as code."""

from __future__ import annotations

from typing import Any

import pytest

from rollmill.envs.code_words import code_words
from rollmill.envs.make import NAMED
from rollmill.envs.settings import EnvSettings

LATENT = "rollmill.worldmodel.dream_env:LatentEnv"
"""Ours, and yet it builds whatever environment it is told."""


@pytest.mark.parametrize("name", [*NAMED, "CartPole-v1", "ALE/Pong-v5", "NoSuchId-v0"])
def test_names_without_arguments_are_harmless(name: str) -> None:
    assert code_words(EnvSettings(id=name)) == {}


@pytest.mark.parametrize(
    ("name", "args"),
    [
        ("FrozenLake-v1", {"desc": ["SFFG"], "is_slippery": False, "render_mode": "rgb_array"}),
        ("doom", {"scenario": "basic", "buttons": ["ATTACK", "MOVE_LEFT"], "actions": [["ATTACK"], ["MOVE_LEFT"]]}),
        ("envpool:gfootball/11_vs_11_stochastic-v1", {"render_mode": "rgb_array"}),
        ("MiniGrid-Empty-5x5-v0", {"view": "rgb", "size": 7}),
        ("pettingzoo:mpe2.simple_spread_v3", {"N": 2, "max_cycles": 25}),
        ("pettingzoo:pettingzoo.butterfly.pistonball_v6", {}),
        ("dmlab:contributed/dmlab30/rooms_watermaze", {"width": 64}),
        ("atari", {"game": "ms_pacman", "sticky": 0.25}),
    ],
)
def test_plain_arguments_are_harmless(name: str, args: dict[str, Any]) -> None:
    assert code_words(EnvSettings(id=name, args=args)) == {}


@pytest.mark.parametrize(
    ("name", "args", "found"),
    [
        ("os:system", {"command": "touch x"}, {"id": "os:system", "args.command": "touch x"}),
        ("my_env:make", {"bonus": 0.1, "level": "easy"}, {"id": "my_env:make"}),
        ("path/to/file.py:make", {}, {"id": "path/to/file.py:make"}),
        (LATENT, {"env": "evil.py:make"}, {"id": LATENT, "args.env": "evil.py:make"}),
        ("mlagents:builds/player", {}, {"id": "mlagents:builds/player"}),
        ("mlagents", {"build": "player"}, {"args.build": "player"}),
        ("mlagents", {"python": "bin"}, {"args.python": "bin"}),
        ("pettingzoo:os", {}, {"id": "pettingzoo:os"}),
        ("pettingzoo:pettingzoo.utils.env:make", {}, {"id": "pettingzoo:pettingzoo.utils.env:make"}),
        ("pettingzoo:pettingzoo_evil.x", {}, {"id": "pettingzoo:pettingzoo_evil.x"}),
        ("pettingzoo:mpe2.simple_spread_v3", {"env": "evil"}, {"args.env": "evil"}),
        ("mpe_simple_spread", {"env": "evil:make"}, {"args.env": "evil:make"}),
        ("doom_basic", {"scenario": "mine.cfg"}, {"args.scenario": "mine.cfg"}),
        ("dmlab:../evil", {}, {"id": "dmlab:../evil"}),
        ("dmlab:lt_chasm", {"config": {"levelDirectory": "x"}}, {"args.config.levelDirectory": "x"}),
        ("envpool:D1Basic-v1", {"vzd_path": "program"}, {"args.vzd_path": "program"}),
        ("Ant-v5", {"xml_file": "./ant.xml"}, {"args.xml_file": "./ant.xml"}),
        ("GymV21Environment-v0", {"env_id": "evil:Env-v0"}, {"args.env_id": "evil:Env-v0"}),
        ("CartPole-v1", {"a": {"b": [{"c": "/x"}]}}, {"args.a.b": [{"c": "/x"}]}),
    ],
)
def test_words_that_run_something(name: str, args: dict[str, Any], found: dict[str, Any]) -> None:
    words = {".".join(key): value for key, value in code_words(EnvSettings(id=name, args=args)).items()}
    assert words == found
