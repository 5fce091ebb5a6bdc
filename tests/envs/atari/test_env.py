"""The Atari adapter against Gymnasium's own preprocessing, and its promises beyond that."""

import subprocess
import sys
from typing import Any

import numpy as np
import pytest

from rollmill.core.errors import ConfigError, EnvError, MissingExtraError
from rollmill.core.fields import Obs
from rollmill.envs.atari.env import FIRE, AtariEnv
from rollmill.envs.make import make_env
from rollmill.envs.settings import EnvSettings

ale_py = pytest.importorskip("ale_py")
cv2 = pytest.importorskip("cv2")
gym = pytest.importorskip("gymnasium")


def new_obs(env: AtariEnv) -> Obs:
    return {"obs": np.full((1, *env.spec.observation[0].shape), 77, np.uint8)}


def walk(env: AtariEnv, seed: int, steps: int, action: int | None = None) -> list[tuple[bytes, Any]]:
    """(observation, outcome) of the first steps of an episode, with actions that are the same every time."""
    obs, rng = new_obs(env), np.random.default_rng(3)
    env.reset(seed, obs)
    seen: list[tuple[bytes, Any]] = [(obs["obs"].tobytes(), None)]
    for _ in range(steps):
        choice = rng.integers(env.spec.action.nvec[0], size=1) if action is None else np.array([action])
        outcome = env.step(choice, obs)
        seen.append((obs["obs"].tobytes(), outcome[:3]))
        if outcome[1] or outcome[2]:
            break
    return seen


def play_until_end(env: AtariEnv, obs: Obs, limit: int = 2000, seed: int = 0) -> tuple[float, Any]:
    """Random actions to the end of the running episode: (return, last outcome)."""
    rng, total = np.random.default_rng(seed), 0.0
    for _ in range(limit):
        outcome = env.step(rng.integers(env.spec.action.nvec[0], size=1), obs)
        total += outcome[0]
        if outcome[1] or outcome[2]:
            return total, outcome
    raise AssertionError("the episode did not end")


# -- agreement with Gymnasium ------------------------------------------------------------------------


def reference(game: str, *, frame_skip: int, stack: int, noop_max: int, **kwargs: Any) -> Any:
    gym.register_envs(ale_py)
    env = gym.make(f"ALE/{game}-v5", frameskip=1, repeat_action_probability=0.0, disable_env_checker=True, **kwargs)
    env = gym.wrappers.AtariPreprocessing(env, noop_max=noop_max, frame_skip=frame_skip)
    return gym.wrappers.FrameStackObservation(env, stack)


@pytest.mark.parametrize(
    ("name", "game", "rules", "more"),
    [
        ("Pong", "pong", {}, {}),
        ("Breakout", "breakout", {"frame_skip": 3}, {}),
        ("MsPacman", "ms_pacman", {"frame_skip": 1, "stack": 1}, {}),
        ("Assault", "assault", {"noop_max": 0}, {}),  # one that keeps traces of the episode before
        ("AirRaid", "air_raid", {"frame_skip": 2, "stack": 2}, {}),  # a screen of 250 rows, another palette
        ("Breakout", "breakout", {}, {"mode": 4, "difficulty": 1}),
    ],
)
def test_images_and_rewards_are_those_of_gymnasium(
    name: str, game: str, rules: dict[str, int], more: dict[str, int]
) -> None:
    rules = {"frame_skip": 4, "stack": 4, "noop_max": 30, **rules}
    theirs, ours = reference(name, **rules, **more), AtariEnv(game=game, **rules, **more)
    obs, rng = new_obs(ours), np.random.default_rng(1)
    assert ours.spec.action.nvec == (theirs.action_space.n,)
    for seed in (11, 12):
        image, _ = theirs.reset(seed=seed)
        ours.reset(seed, obs)
        np.testing.assert_array_equal(np.moveaxis(image, 0, -1), obs["obs"][0])
        for _ in range(250):
            action = rng.integers(theirs.action_space.n, size=1)
            image, *outcome, _ = theirs.step(action[0])
            assert ours.step(action, obs)[:3] == tuple(outcome)
            if outcome[1] or outcome[2]:
                break
            np.testing.assert_array_equal(np.moveaxis(image, 0, -1), obs["obs"][0])
    theirs.close()


def test_the_last_observation_is_the_screen_at_the_end() -> None:
    """The limit falls amid a step, where no frame would have been looked at, and the screen is moving."""
    env = AtariEnv(game="pong", frame_skip=8, noop_max=0, max_frames=98)
    assert walk(env, 0, 20, action=2)[-1][1][1:] == (False, True)
    seen = np.frombuffer(walk(env, 0, 20, action=2)[-1][0], np.uint8).reshape(84, 84, 4)
    expected = cv2.resize(env._ale.getScreenGrayscale(), (84, 84), interpolation=cv2.INTER_AREA)
    np.testing.assert_array_equal(seen[..., -1], expected)
    assert (seen[..., -2] != expected).any()


# -- seeds -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("args", [{"game": "assault"}, {"game": "pong", "sticky": 0.25}])
def test_a_seed_fixes_the_episode_whatever_was_played_before(args: dict[str, Any]) -> None:
    env, other = AtariEnv(**args), AtariEnv(**args)
    first = walk(env, 5, 60)
    walk(env, 6, 90)
    assert walk(env, 5, 60) == first
    assert walk(other, 5, 60) == first
    assert any(walk(other, seed, 60) != first for seed in (6, 7))


def test_noops_come_from_the_seed_and_can_be_off() -> None:
    env = AtariEnv(game="pong")
    frames = set()
    for seed in range(30):
        env.reset(seed, new_obs(env))
        frames.add(env._ale.getEpisodeFrameNumber())
    assert min(frames) >= 1
    assert max(frames) <= 30
    assert len(frames) > 10
    still = AtariEnv(game="pong", noop_max=0)
    still.reset(1, new_obs(still))
    assert still._ale.getEpisodeFrameNumber() == 0


# -- options -----------------------------------------------------------------------------------------


def test_the_stack_begins_with_the_first_image_and_ends_with_the_newest() -> None:
    env = AtariEnv(game="pong")
    obs = new_obs(env)
    env.reset(0, obs)
    images = [obs["obs"][0, ..., -1].copy()] * 4
    assert all((obs["obs"][0, ..., k] == images[0]).all() for k in range(4))
    for t in range(6):
        env.step(np.array([2 + t % 2]), obs)
        images.append(obs["obs"][0, ..., -1].copy())
        np.testing.assert_array_equal(obs["obs"][0], np.stack(images[-4:], axis=-1))
    assert (images[-1] != images[-2]).any()


def test_sticky_actions_repeat_what_was_done() -> None:
    free, stuck = AtariEnv(game="pong"), AtariEnv(game="pong", sticky=1 - 1e-12)
    idle = walk(free, 1, 40, action=0)
    assert walk(stuck, 1, 40) == idle
    assert walk(free, 1, 40) != idle
    half = AtariEnv(game="pong", sticky=0.5)
    assert walk(half, 1, 40) not in (idle, walk(free, 1, 40))


def test_sticky_repeats_at_the_given_rate() -> None:
    env = AtariEnv(game="pong", sticky=0.25)
    env.reset(0, new_obs(env))
    pressed: list[int] = []
    real = env._ale

    class Listening:
        def act(self, action: int) -> int:
            pressed.append(action)
            return int(real.act(action))

        def __getattr__(self, name: str) -> Any:
            return getattr(real, name)

    env._ale = Listening()
    obs = new_obs(env)
    for t in range(300):  # the first frame of a step repeats the other action with this probability
        env.step(np.array([2 + t % 2]), obs)
    wanted = [env._presses[2 + t % 2] for t in range(300)]
    share = np.mean([a != b for a, b in zip(pressed[::4], wanted)])
    assert 0.17 < share < 0.33


def test_fire_is_pressed_where_the_game_knows_it() -> None:
    without, with_fire = AtariEnv(game="breakout"), AtariEnv(game="breakout", fire_reset=True)
    pressed = walk(with_fire, 1, 30, action=0)
    assert pressed != walk(without, 1, 30, action=0)
    obs = new_obs(without)
    without.reset(1, obs)
    without.step(np.array([without._presses.index(FIRE)]), obs)
    first = np.frombuffer(pressed[0][0], np.uint8).reshape(84, 84, 4)
    np.testing.assert_array_equal(first[..., 0], obs["obs"][0, ..., -1])
    no_button = AtariEnv(game="ms_pacman", fire_reset=True)
    assert walk(no_button, 1, 5, action=0) == walk(AtariEnv(game="ms_pacman"), 1, 5, action=0)


def test_a_life_is_an_episode_and_the_game_goes_on() -> None:
    env = AtariEnv(game="breakout", episodic_life=True, fire_reset=True)
    obs = new_obs(env)
    env.reset(3, obs)
    assert env._ale.lives() == 5
    total, lives = 0.0, []
    for episode in range(5):
        gained, (_, terminated, truncated, info) = play_until_end(env, obs, seed=episode)
        total += gained
        lives.append(env._ale.lives())
        assert (terminated, truncated) == (True, False)
        if episode < 4:
            assert info == {}
            env.reset(100 + episode, obs)
    assert lives == [4, 3, 2, 1, 0]
    assert info == {"episode_stats": {"game_return": total}}
    env.reset(3, obs)
    assert env._ale.lives() == 5
    assert walk(env, 3, 10) == walk(AtariEnv(game="breakout", fire_reset=True), 3, 10)
    # A running episode may be left for a new one.
    assert walk(env, 3, 10) == walk(AtariEnv(game="breakout", episodic_life=True, fire_reset=True), 3, 10)


def test_without_it_a_lost_life_ends_nothing() -> None:
    env = AtariEnv(game="breakout")
    obs = new_obs(env)
    env.reset(3, obs)
    _, outcome = play_until_end(env, obs)
    assert outcome[1:] == (True, False, {})
    assert env._ale.lives() == 0


def test_the_limit_truncates_with_the_true_last_image() -> None:
    env = AtariEnv(game="pong", max_frames=100, noop_max=0)
    seen = walk(env, 0, 100)
    assert len(seen) == 1 + 25
    assert seen[-1][1][1:] == (False, True)
    assert seen[-1][0] == walk(AtariEnv(game="pong", noop_max=0), 0, 25)[-1][0]


def test_all_actions_or_those_that_matter() -> None:
    assert AtariEnv(game="pong").spec.action.nvec == (6,)
    assert AtariEnv(game="pong", full_action_set=True).spec.action.nvec == (18,)


def test_sizes_and_frames_are_in_the_spec() -> None:
    env = AtariEnv(game="pong", width=64, height=105, stack=3, frame_skip=2)
    assert env.spec.observation[0].shape == (105, 64, 3)
    assert env.spec.frames_per_step == 2
    walk(env, 0, 3)
    image = env.render()
    assert image is not None
    assert image.shape == (210, 160, 3)


def test_named_games() -> None:
    assert make_env(EnvSettings(id="atari_breakout")).spec.name == "atari_breakout"
    assert make_env(EnvSettings(id="atari", args={"game": "freeway"})).spec.name == "atari_freeway"


# -- what is refused ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ({"game": "brakeout"}, "no Atari game 'brakeout'; did you mean 'breakout'"),
        ({"game": "MsPacman"}, "snake case"),
        ({"game": "combat"}, "not for one player"),
        ({"frame_skip": 0}, "frame_skip must be at least 1, got 0"),
        ({"stack": 0}, "stack must be at least 1"),
        ({"width": 0}, "width must be at least 1"),
        ({"height": -1}, "height must be at least 1"),
        ({"noop_max": -1}, "noop_max must be at least 0"),
        ({"max_frames": -1}, "max_frames must be at least 0"),
        ({"sticky": 1.0}, "sticky must be at least 0 and below 1"),
        ({"mode": 77}, "pong has no mode 77; it has: 0, 1"),
        ({"difficulty": 9}, "pong has no difficulty 9"),
    ],
)
def test_wrong_arguments(args: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        AtariEnv(**args)


@pytest.mark.parametrize("package", ["ale_py", "cv2"])
def test_a_missing_package_is_named(package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingExtraError, match=r'pip install "rollmill\[atari\]"'):
        AtariEnv()


def test_steps_need_a_running_episode_and_a_known_action() -> None:
    env = AtariEnv(game="pong", max_frames=40)
    obs = new_obs(env)
    with pytest.raises(EnvError, match="call reset"):
        env.step(np.array([0]), obs)
    env.reset(0, obs)
    for action in (-1, 6):
        with pytest.raises(EnvError, match=f"action {action} is not one of 0 to 5"):
            env.step(np.array([action]), obs)
    play_until_end(env, obs)
    with pytest.raises(EnvError, match="call reset"):
        env.step(np.array([0]), obs)
    env.reset(0, obs)
    env.close()
    with pytest.raises(EnvError, match="call reset"):
        env.step(np.array([0]), obs)


def test_memory_that_does_not_fit_is_refused() -> None:
    env = AtariEnv(game="pong")
    for wrong in (np.zeros((1, 84, 84, 3), np.uint8), np.zeros((1, 84, 84, 4), np.float32)):
        with pytest.raises(EnvError, match=r"expected contiguous uint8 \(84, 84, 4\)"):
            env.reset(0, {"obs": wrong})
    with pytest.raises(EnvError, match="contiguous"):
        env.reset(0, {"obs": np.zeros((1, 84, 84, 8), np.uint8)[..., ::2]})


def test_nothing_is_printed() -> None:
    code = "from rollmill.envs.atari.env import AtariEnv; AtariEnv(game='pong')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout + done.stderr == ""
