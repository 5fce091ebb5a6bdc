"""The suites that come along, with the returns between which scores are counted.

Random and human returns of the Atari games are those of the DQN papers' tables (as in DQN Zoo), those of DMLab-30 of
IMPALA's (as in scalable_agent). Those of ViZDoom's scenarios: random actions as measured here
(``docs/environments.md``), references as published for agents that have learnt the scenario. A MiniGrid task's best
return is near 1, and random actions are measured with ``rollmill eval random``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Suite:
    """A named list of tasks."""

    summary: str
    tasks: Sequence[Mapping[str, Any]]
    """Fields of ``suite.Task``."""


def _task(name: str, env: str, random: float, reference: float, **args: Any) -> dict[str, Any]:
    return {"name": name, "id": env, "random": random, "reference": reference, "args": args}


def _doom(name: str, random: float, reference: float) -> dict[str, Any]:
    # One way of pressing buttons for all, so that what they share is one choice of the network.
    return _task(name, f"doom_{name}", random, reference, actions="groups")


def _grid(name: str, task: str, random: float, words: int = 13) -> dict[str, Any]:
    return _task(name, task, random, 1.0, mission_words=words)


def _atari(game: str) -> dict[str, Any]:
    return _task(game, "atari", *ATARI[game], game=game, full_action_set=True)


def _level(name: str, random: float, human: float) -> dict[str, Any]:
    return _task(name, f"dmlab:contributed/dmlab30/{name}", random, human, actions="extended", instructions=True)


ATARI: Mapping[str, tuple[float, float]] = {
    "alien": (227.8, 7127.7),
    "amidar": (5.8, 1719.5),
    "assault": (222.4, 742.0),
    "asterix": (210.0, 8503.3),
    "asteroids": (719.1, 47388.7),
    "atlantis": (12850.0, 29028.1),
    "bank_heist": (14.2, 753.1),
    "battle_zone": (2360.0, 37187.5),
    "beam_rider": (363.9, 16926.5),
    "berzerk": (123.7, 2630.4),
    "bowling": (23.1, 160.7),
    "boxing": (0.1, 12.1),
    "breakout": (1.7, 30.5),
    "centipede": (2090.9, 12017.0),
    "chopper_command": (811.0, 7387.8),
    "crazy_climber": (10780.5, 35829.4),
    "defender": (2874.5, 18688.9),
    "demon_attack": (152.1, 1971.0),
    "double_dunk": (-18.6, -16.4),
    "enduro": (0.0, 860.5),
    "fishing_derby": (-91.7, -38.7),
    "freeway": (0.0, 29.6),
    "frostbite": (65.2, 4334.7),
    "gopher": (257.6, 2412.5),
    "gravitar": (173.0, 3351.4),
    "hero": (1027.0, 30826.4),
    "ice_hockey": (-11.2, 0.9),
    "jamesbond": (29.0, 302.8),
    "kangaroo": (52.0, 3035.0),
    "krull": (1598.0, 2665.5),
    "kung_fu_master": (258.5, 22736.3),
    "montezuma_revenge": (0.0, 4753.3),
    "ms_pacman": (307.3, 6951.6),
    "name_this_game": (2292.3, 8049.0),
    "phoenix": (761.4, 7242.6),
    "pitfall": (-229.4, 6463.7),
    "pong": (-20.7, 14.6),
    "private_eye": (24.9, 69571.3),
    "qbert": (163.9, 13455.0),
    "riverraid": (1338.5, 17118.0),
    "road_runner": (11.5, 7845.0),
    "robotank": (2.2, 11.9),
    "seaquest": (68.4, 42054.7),
    "skiing": (-17098.1, -4336.9),
    "solaris": (1236.3, 12326.7),
    "space_invaders": (148.0, 1668.7),
    "star_gunner": (664.0, 10250.0),
    "surround": (-10.0, 6.5),
    "tennis": (-23.8, -8.3),
    "time_pilot": (3568.0, 5229.2),
    "tutankham": (11.4, 167.6),
    "up_n_down": (533.4, 11693.2),
    "venture": (0.0, 1187.5),
    "video_pinball": (16256.9, 17667.9),
    "wizard_of_wor": (563.5, 4756.5),
    "yars_revenge": (3092.9, 54576.9),
    "zaxxon": (32.5, 9173.3),
}
"""(random, human) return of 57 games."""

ATARI_100K = (
    *("alien", "amidar", "assault", "asterix", "bank_heist", "battle_zone", "boxing", "breakout", "chopper_command"),
    *("crazy_climber", "demon_attack", "freeway", "frostbite", "gopher", "hero", "jamesbond", "kangaroo", "krull"),
    *("kung_fu_master", "ms_pacman", "pong", "private_eye", "qbert", "road_runner", "seaquest", "up_n_down"),
)
ATARI_FIVE = ("battle_zone", "double_dunk", "name_this_game", "phoenix", "qbert")

DMLAB30: Mapping[str, tuple[float, float]] = {
    "rooms_collect_good_objects_train": (0.073, 10),
    "rooms_exploit_deferred_effects_train": (8.501, 85.65),
    "rooms_select_nonmatching_object": (0.312, 65.9),
    "rooms_watermaze": (4.065, 54),
    "rooms_keys_doors_puzzle": (4.135, 53.8),
    "language_select_described_object": (-0.07, 389.5),
    "language_select_located_object": (1.929, 280.7),
    "language_execute_random_task": (-5.913, 254.05),
    "language_answer_quantitative_question": (-0.33, 184.5),
    "lasertag_one_opponent_small": (-0.224, 12.65),
    "lasertag_three_opponents_small": (-0.214, 18.55),
    "lasertag_one_opponent_large": (-0.083, 18.6),
    "lasertag_three_opponents_large": (-0.102, 31.5),
    "natlab_fixed_large_map": (2.173, 36.9),
    "natlab_varying_map_regrowth": (2.989, 24.45),
    "natlab_varying_map_randomized": (7.346, 42.35),
    "skymaze_irreversible_path_hard": (0.1, 100),
    "skymaze_irreversible_path_varied": (14.4, 100),
    "psychlab_arbitrary_visuomotor_mapping": (0.163, 58.75),
    "psychlab_continuous_recognition": (0.224, 58.3),
    "psychlab_sequential_comparison": (0.129, 39.5),
    "psychlab_visual_search": (0.085, 78.5),
    "explore_object_locations_small": (3.575, 74.45),
    "explore_object_locations_large": (4.673, 65.65),
    "explore_obstructed_goals_small": (6.76, 206),
    "explore_obstructed_goals_large": (2.61, 119.5),
    "explore_goal_locations_small": (7.66, 267.5),
    "explore_goal_locations_large": (3.14, 194.5),
    "explore_object_rewards_few": (2.073, 77.7),
    "explore_object_rewards_many": (2.438, 106.7),
}
"""(random, human) return of the 30 levels as trained; two of them have test versions, whose figures these are."""

DMLAB30_TEST = {
    name: name.replace("_train", "_test")
    for name in ("rooms_collect_good_objects_train", "rooms_exploit_deferred_effects_train")
}
"""Levels that are tested in another version of theirs."""

SUITES: Mapping[str, Suite] = {
    "toy_pair": Suite(
        "two toys, the rewards of one a hundred times those of the other",
        (
            _task("small", "toy_target", 2.5, 10.0, shift=1),
            _task("large", "toy_target", 250.0, 1000.0, reward_scale=100.0),
        ),
    ),
    "minigrid_five": Suite(
        "MiniGrid: five tasks with missions, from an empty room to doors and keys",
        (
            _grid("empty", "MiniGrid-Empty-Random-6x6-v0", 0.29),
            _grid("door_key", "MiniGrid-DoorKey-5x5-v0", 0.04),
            _grid("lava_gap", "MiniGrid-LavaGapS5-v0", 0.04),
            _grid("crossing", "MiniGrid-SimpleCrossingS9N1-v0", 0.01),
            _grid("go_to_door", "MiniGrid-GoToDoor-5x5-v0", 0.05),
        ),
    ),
    "doom_six": Suite(
        "ViZDoom: the six basic scenarios, one way of pressing buttons",
        (
            _doom("basic", -168.0, 75.0),
            _doom("my_way_home", -0.12, 0.98),
            _doom("deadly_corridor", -0.25, 18.0),
            _doom("defend_the_line", 8.2, 34.7),
            # What long-trained agents of Sample Factory have, in the same currency: 0.01 per tic, 21 at most, and 1 for
            # every step after which health has risen (its ``DoomGatheringRewardShaping``, scale 1).
            _doom("health_gathering", 5.05, 66.0),
            _doom("health_gathering_supreme", 4.48, 66.0),
        ),
    ),
    "dmlab30": Suite("DeepMind Lab: DMLab-30 as trained", tuple(_level(n, *r) for n, r in DMLAB30.items())),
    "dmlab30_test": Suite(
        "DeepMind Lab: DMLab-30 as tested",
        tuple(_level(DMLAB30_TEST.get(n, n), *r) for n, r in DMLAB30.items()),
    ),
    "atari57": Suite("Atari: 57 games", tuple(map(_atari, ATARI))),
    "atari_100k": Suite("Atari: the 26 games of Atari 100k", tuple(map(_atari, ATARI_100K))),
    "atari_five": Suite(
        "Atari: five games whose scores tell most about those of all 57", tuple(map(_atari, ATARI_FIVE))
    ),
}
"""All suites by name; a test builds those whose packages are there."""
