"""The DeepMind Lab adapter, against a stand-in that follows its Python interface (``support/lab``)."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from running import SERIAL, SUPPORT, rows_of, train_here

from rollmill.core.errors import ConfigError, EnvError, MissingExtraError
from rollmill.core.fields import Obs
from rollmill.envs.dmlab import ACTIONS, WORDS, DmLabEnv, LabCache
from rollmill.envs.levels.settings import LevelSettings
from rollmill.envs.levels.store import LevelStore
from rollmill.envs.make import check_env_settings, level_store, make_env
from rollmill.envs.settings import EnvSettings
from rollmill.envs.tasks.named import DMLAB30
from rollmill.envs.tasks.scores import suite_score
from rollmill.envs.tasks.suite import tasks_of

WATERMAZE = "contributed/dmlab30/rooms_watermaze"
LANGUAGE = "contributed/dmlab30/language_select_described_object"


@pytest.fixture(autouse=True)
def lab(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(SUPPORT / "lab")
    monkeypatch.delitem(sys.modules, "deepmind_lab", raising=False)


def blank(env: DmLabEnv) -> Obs:
    return {field.name: np.full((1, *field.shape), 77, np.uint8) for field in env.spec.observation}


def test_an_episode() -> None:
    env = make_env(EnvSettings(id=f"dmlab:{WATERMAZE}", args={"width": 8, "height": 6}))
    assert isinstance(env, DmLabEnv)
    assert env.spec.frames_per_step == 4
    assert env.spec.action.nvec == (9,)
    assert (env._lab.level, env._lab.config) == (WATERMAZE, {"width": "8", "height": "6"})
    obs = blank(env)
    assert env.render() is None
    env.reset(2**31 + 3, obs)
    assert env._lab.seed == 3
    assert obs["obs"].max() == 10
    outcomes = [env.step(np.array([action]), obs)[:3] for action in (0, 6, 8)]
    assert outcomes == [(4.0, False, False), (4.0, False, False), (2.0, True, False)]
    assert obs["obs"].max() == 2, "Lab shows nothing after the end: the last image is kept"
    assert env._lab.taken == [([0, 0, 0, 1, 0, 0, 0], 4), ([-20, 0, 0, 1, 0, 0, 0], 4), ([0, 0, 0, 0, 1, 0, 0], 4)]
    with pytest.raises(EnvError, match="call reset"):
        env.step(np.array([0]), obs)
    env.close()
    assert env._lab.status == "closed"


def test_the_sets_of_actions_are_the_published_ones() -> None:
    basic, extended = ACTIONS["basic"], ACTIONS["extended"]
    assert [len(actions) for actions in (basic, extended)] == [9, 15]
    assert {len(set(actions)) for actions in (basic, extended)} == {9, 15}
    assert sorted({abs(action[0]) for action in basic}) == [0, 20]
    assert sorted({abs(action[0]) for action in extended}) == [0, 10, 60]
    assert sorted(action[1] for action in extended)[:1] == [-10]
    env = DmLabEnv(level="x", actions="extended", width=8, height=6)
    obs = blank(env)
    for action in range(15):
        env.reset(0, obs)
        env.step(np.array([action]), obs)  # the stand-in refuses what is out of bounds
    with pytest.raises(ConfigError, match=r"env.args.actions=all: basic and extended"):
        DmLabEnv(level="x", actions="all")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="must be positive"):
        DmLabEnv(level="x", frame_skip=0)


def test_instructions_are_words_by_their_hash_to_the_last_row() -> None:
    env = DmLabEnv(level=LANGUAGE, instructions=True, buckets=50, width=8, height=6)
    obs = blank(env)
    env.reset(0, obs)
    told = obs["instructions"][0].copy()
    assert told.shape == (WORDS, 50)
    assert told.sum(axis=1).tolist() == [1] * 5 + [0] * 11
    over = False
    while not over:
        obs["instructions"][:] = 77
        _, over, _, _ = env.step(np.array([0]), obs)
        np.testing.assert_array_equal(obs["instructions"][0], told)
    silent = DmLabEnv(level=WATERMAZE, instructions=True, buckets=50, width=8, height=6)
    obs = blank(silent)
    silent.reset(0, obs)
    assert not obs["instructions"].any()


def test_an_instruction_that_is_too_long_is_named() -> None:
    env = DmLabEnv(level=WATERMAZE, instructions=True, buckets=5)
    with pytest.raises(EnvError, match="the instruction has 17 words"):
        env._read("a " * 17)


def episode(env: DmLabEnv, seed: int) -> dict[str, Any]:
    obs = blank(env)
    env.reset(seed, obs)
    over, info = False, {}
    while not over:
        _, over, _, info = env.step(np.array([0]), obs)  # type: ignore[assignment]
    return info.get("episode_stats", {})


def test_levels_are_made_once(tmp_path: Path) -> None:
    settings = EnvSettings(id=f"dmlab:{WATERMAZE}", levels=LevelSettings(folder=str(tmp_path)))
    one, two = make_env(settings), make_env(settings)
    assert isinstance(one, DmLabEnv)
    assert isinstance(two, DmLabEnv)
    assert episode(one, 1) == {"level_kept": 0}
    made = one._lab.map
    assert episode(two, 1) == {"level_kept": 1}
    assert (two._lab.made, two._lab.map) == (0, made)
    assert level_store(settings).seeds().tolist() == [1]
    store = level_store(settings)
    (path,) = store.folder.glob("??/*.level")
    path.write_bytes(b"half")
    assert episode(two, 1) == {"level_kept": 0}
    assert (two._lab.made, two._lab.map) == (1, made)


def test_a_level_that_is_never_made_says_nothing_of_a_cache(tmp_path: Path) -> None:
    level = "dmlab:contributed/dmlab30/psychlab_visual_search"
    env = make_env(EnvSettings(id=level, levels=LevelSettings(folder=str(tmp_path))))
    assert isinstance(env, DmLabEnv)
    assert episode(env, 1) == {}


def test_a_level_that_cannot_be_kept_leaves_nothing(tmp_path: Path) -> None:
    cache = LabCache(LevelStore(tmp_path))
    with pytest.raises(FileNotFoundError):
        cache.write("a/b", str(tmp_path / "not there"))
    assert not cache.fetch("a/b", str(tmp_path / "out"))
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_an_image_of_another_size_is_noticed() -> None:
    env = DmLabEnv(level="x", width=8, height=6)
    env._lab.shape = (3, 3, 3)
    with pytest.raises(ValueError, match=r"RGB_INTERLEAVED is uint8 \(3, 3, 3\), expected uint8 \(6, 8, 3\)"):
        env.reset(0, blank(env))


def test_without_the_package_it_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "deepmind_lab", None)
    check_env_settings(EnvSettings(id="dmlab:x"))
    with pytest.raises(MissingExtraError, match="build it from source"):
        DmLabEnv(level="x")


@pytest.mark.parametrize("suite", ["dmlab30", "dmlab30_test"])
def test_all_thirty_levels_meet_one_spec(suite: str) -> None:
    settings = EnvSettings(id=suite, args={"width": 8, "height": 6, "buckets": 20})
    check_env_settings(settings)
    env = make_env(settings)
    assert env.spec.tasks == len(tasks_of(settings)) == 30
    assert env.spec.action.nvec == (15,)
    assert {field.name for field in env.spec.observation} >= {"obs", "instructions", "task"}


def test_the_score_is_that_of_the_publication() -> None:
    """Mean over the levels of the human-normalised mean return, capped at 100 each, once all have one."""
    tasks = tasks_of(EnvSettings(id="dmlab30"))
    rng = np.random.default_rng(0)
    returns = {name: float(rng.uniform(-5, 2 * human)) for name, (_, human) in DMLAB30.items()}
    scores = [(returns[name] - random) / (human - random) * 100 for name, (random, human) in DMLAB30.items()]
    assert max(scores) > 100
    assert suite_score(tasks, returns) == pytest.approx(np.mean(np.minimum(scores, 100)))
    assert suite_score(tasks, {name: human for name, (_, human) in DMLAB30.items()}) == pytest.approx(100)
    assert suite_score(tasks, {name: random for name, (random, _) in DMLAB30.items()}) == pytest.approx(0)
    returns.pop("rooms_watermaze")
    assert suite_score(tasks, returns) is None


def test_a_suite_draws_every_level_from_its_own_known_seeds(tmp_path: Path) -> None:
    names = ("rooms_watermaze", "language_select_described_object")
    tasks = ", ".join(
        f"{{name: {name}, id: 'dmlab:contributed/dmlab30/{name}', random: 0, reference: 10}}" for name in names
    )
    args = "env.args={width: 8, height: 6, frame_skip: 2, instructions: true, buckets: 10}"
    words = (
        f"env.tasks=[{tasks}]",
        args,
        f"env.levels={tmp_path}/levels",
        "stop.frames=800",
        "report.page=false",
        "model.encoder=mlp",
    )
    rows = [rows_of(train_here(tmp_path / f"{seed}", *SERIAL, *words, f"run.seed={seed}")[1])[-1] for seed in (1, 2)]
    assert [row["episode/level_kept"] for row in rows] == [0, 1]
    assert rows[1]["suite/score"] == pytest.approx(100)
