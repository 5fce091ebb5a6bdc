"""Which keys do what."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest
from showing_envs import Shown

from rollmill.core.errors import ConfigError
from rollmill.core.fields import ActionSpec
from rollmill.envs.gym_env import GymEnv
from rollmill.envs.keys import Keyboard, key_name
from rollmill.envs.make import make_env
from rollmill.envs.settings import EnvSettings
from rollmill.envs.treasure_hunt.env import TreasureHuntEnv


def keyboard(env_id: str) -> Keyboard:
    return Keyboard.of(make_env(EnvSettings(id=env_id)))


def test_arrows_walk_in_the_hunt_and_shift_flashes() -> None:
    keys = keyboard("treasure_hunt")
    assert sorted(keys.actions.values()) == list(range(16))
    assert keys.choose({"right"}) == 0
    assert keys.choose({"up", "right"}) == 1
    assert keys.choose({"up"}) == 2
    assert keys.choose({"left", "down", "shift", "q"}) == 8 + 5
    assert keys.choose({"shift"}) is None
    assert keys.keys == ["down", "left", "right", "shift", "up"]
    assert keys.text().startswith("right 0, right+up 1, up 2, ")
    assert "shift+right 8" in keys.text()


def test_a_flash_that_is_not_ready_is_a_walk() -> None:
    mask = np.array([1] * 8 + [0] * 8)
    assert keyboard("treasure_hunt").choose({"up", "shift"}, mask) == 2


def test_gymnasium_can_play_the_hunt() -> None:
    """Its own player asks for the same mapping, with sorted tuples of pygame's numbers."""
    pygame = pytest.importorskip("pygame")
    said = TreasureHuntEnv().get_keys_to_action()
    assert said[pygame.K_RIGHT,] == 0
    assert said[tuple(sorted((pygame.K_LEFT, pygame.K_UP, pygame.K_LSHIFT)))] == 8 + 3


def test_gymnasiums_own_environments_say_it() -> None:
    keys = Keyboard.of(GymEnv(gym.make("MountainCar-v0"), name="car"))
    assert set(keys.actions.values()) == {0, 1, 2}
    assert len(keys.keys) >= 2


@pytest.mark.parametrize(("key", "name"), [(1073741906, "up"), (" ", "space"), (97, "a"), ("A", "a"), (13, "return")])
def test_names_of_keys(key: int | str, name: str) -> None:
    assert key_name(key) == name


def test_without_a_word_actions_have_digits() -> None:
    keys = Keyboard.of(Shown())
    assert [keys.choose({key}) for key in "012"] == [0, 1, 2]
    assert keys.choose({"3"}) is None
    assert keys.choose(set()) is None


def test_two_actions_have_arrows_too() -> None:
    keys = Keyboard.of(GymEnv(gym.make("CartPole-v1"), name="pole"))
    assert [keys.choose({key}) for key in ("left", "right", "0", "1")] == [0, 1, 0, 1]


class Many(Shown):
    def __init__(self, action: ActionSpec) -> None:
        super().__init__()
        object.__setattr__(self.spec, "action", action)


def test_what_has_no_keys_is_refused() -> None:
    with pytest.raises(ConfigError, match="shown has 2 agents"):
        Keyboard.of(Shown(agents=2))
    with pytest.raises(ConfigError, match="continuous actions"):
        Keyboard.of(Many(ActionSpec("continuous", shape=(1,), low=(0.0,), high=(1.0,))))
    with pytest.raises(ConfigError, match="37 actions and no get_keys_to_action"):
        Keyboard.of(Many(ActionSpec("discrete", nvec=(37,), start=(0,))))
