"""ViZDoom's scenarios, and what published results change in them.

Buttons, rewards and lengths follow Sample Factory's environments of the same names, so that results compare;
``basic``, ``predict_position`` and ``deathmatch`` keep the scenario's own rewards, ``take_cover`` those of World Models
(1 a tic, at most 2100). ``docs/environments.md`` has the table with the returns of random actions.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from rollmill.core.errors import ConfigError
from rollmill.core.text import nearest


@dataclass(frozen=True)
class Scenario:
    """What we change in one of ViZDoom's scenarios; None keeps what its config file says."""

    cfg: str
    """Config file: among ViZDoom's scenarios, or a path."""
    buttons: tuple[str, ...] = ()
    """Names of ``vizdoom.Button``, in the order of the actions; empty: those of the config file."""
    actions: str = "groups"
    """How buttons become actions, see ``actions``."""
    living_reward: float | None = None
    """Per tic."""
    death_penalty: float | None = None
    medkit_reward: float = 0.0
    """For every step after which the player has more health than before."""
    reward_scale: float = 1.0
    """Applied last, to the sum of everything."""
    timeout: int | None = None
    """Tics after which the episode is truncated; 0 for never."""
    statistics: Mapping[str, str] = field(default_factory=dict)
    """Statistics of an episode: their names and the ``vizdoom.GameVariable`` that holds them at its end."""


TURN = ("TURN_LEFT", "TURN_RIGHT")
WALK = ("MOVE_FORWARD", "MOVE_BACKWARD")
STRAFE = ("MOVE_LEFT", "MOVE_RIGHT")
WEAPONS = tuple(f"SELECT_WEAPON{n}" for n in range(1, 7))
KILLS = {"kills": "KILLCOUNT"}


def _gathering(cfg: str) -> Scenario:
    # The config files give 1 per tic and -100 for dying; published results do not count the death.
    buttons = ("MOVE_FORWARD", "MOVE_BACKWARD", "TURN_RIGHT", "TURN_LEFT")
    return Scenario(cfg, buttons, "single", living_reward=0.01, death_penalty=0.0, medkit_reward=1.0)


SCENARIOS: dict[str, Scenario] = {
    "basic": Scenario("basic.cfg", ("MOVE_LEFT", "MOVE_RIGHT", "ATTACK"), "single"),
    "health_gathering": _gathering("health_gathering.cfg"),
    "health_gathering_supreme": _gathering("health_gathering_supreme.cfg"),
    "my_way_home": Scenario("my_way_home.cfg", TURN + WALK),
    "deadly_corridor": Scenario(
        "deadly_corridor.cfg", (*TURN, *WALK, *STRAFE, "ATTACK"), reward_scale=0.01, statistics=KILLS
    ),
    "defend_the_center": Scenario("defend_the_center.cfg", (*TURN, "ATTACK"), statistics=KILLS),
    "defend_the_line": Scenario("defend_the_line.cfg", (*TURN, "ATTACK"), statistics=KILLS),
    "take_cover": Scenario("take_cover.cfg", STRAFE, "single", timeout=2100),
    "predict_position": Scenario("predict_position.cfg", (*TURN, "ATTACK")),
    "deathmatch": Scenario(
        "deathmatch.cfg",
        (*WALK, "MOVE_RIGHT", "MOVE_LEFT", *WEAPONS, "ATTACK", "SPEED", "TURN_LEFT_RIGHT_DELTA"),
        statistics=KILLS,
    ),
}


def find_scenario(name: str, scenarios_path: Path) -> tuple[str, Scenario, Path]:
    """Return (short name, rules, config file) of a scenario of the table, or of any ``.cfg``, own or ViZDoom's."""
    if name in SCENARIOS:
        rules = SCENARIOS[name]
        return name, rules, scenarios_path / rules.cfg
    if not name.endswith(".cfg"):
        known, hint = ", ".join(SCENARIOS), nearest(name, SCENARIOS)
        raise ConfigError(
            f"no ViZDoom scenario {name!r}{f'; {hint}' if hint else ''} (known: {known}; or the path of a .cfg file)"
        )
    for path in (Path(name).expanduser(), scenarios_path / name):
        if path.is_file():
            return path.stem, Scenario(name), path.resolve()
    raise ConfigError(f"scenario: there is no file {Path(name).absolute()}, and none of that name among ViZDoom's own")
