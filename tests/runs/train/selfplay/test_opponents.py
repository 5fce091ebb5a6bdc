"""Self-play in a run: who plays whom, proved from what was recorded; and that it goes on bit for bit."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from running import SERIAL, assert_same, rows_of, saved_state, train_here

from rollmill.core.checkpoints import load_checkpoint
from rollmill.core.errors import CheckpointError, ConfigError
from rollmill.core.model_pool import ModelPool
from rollmill.core.run_folder import RunFolder
from rollmill.models.acting import frozen
from rollmill.pbt.matchmaking import TOP
from rollmill.runs.train import run
from rollmill.runs.train.loop import OnlineRun
from rollmill.runs.train.observers import Observer
from rollmill.runs.train.selfplay import opponents
from rollmill.sampling.pool import ProcessPool
from rollmill.store.reader import Store

DUEL = ("env=duel_envs:Duel", "stop.frames=0", "report.every_frames=64")
POOL = ("selfplay.rule=uniform", "pool.every_updates=2", "pool.keep=3")
GRU = ("model.memory=gru", "learning.recurrence=4")
ANCHORS = ("selfplay.anchors={random: 0.2, 'duel_envs:always_rock': 0.1, 'duel_envs:by_memory': 0.1}",)
ALL = ("recording.keep=all", "recording.budget_gb=0")


def games_of(folder: RunFolder, agents: int = 2) -> dict[tuple[int, int], dict[int, Any]]:
    """(environment, episode seed) -> agent -> the recorded episode."""
    games: dict[tuple[int, int], dict[int, Any]] = {}
    with Store(folder.data) as store:
        for number in range(len(store)):
            info = store.end_record(number)
            env, agent = divmod(info.lane, agents)
            assert info.seed is not None
            games.setdefault((env, info.seed), {})[agent] = (info, store.episode(number))
    return games


def assert_sound(folder: RunFolder, agents: int = 2, policies: int = 1) -> set[int]:
    """S5, from recorded rows: nobody changes within an episode, and both sides agree on who they are."""
    met: set[int] = set()
    for game in games_of(folder, agents).values():
        for info, episode in game.values():
            who, against = set(episode.columns["policy_id"].tolist()), set(episode.columns["opponent"].tolist())
            assert len(who) == len(against) == 1
            (player,) = who
            assert player == info.policy_id
            if player >= policies:
                assert len(set(episode.columns["version"].tolist())) == 1, "weights that do not learn have one version"
                met.add(player)
        if len(game) == agents:
            players = {agent: info.policy_id for agent, (info, _) in game.items()}
            for agent, (_, episode) in game.items():
                assert int(episode.columns["opponent"][0]) in {who for other, who in players.items() if other != agent}
            assert min(players.values()) < policies, "somebody learns"
    return met


class Checksums(Observer):
    """Of every opponent that there is, each time: weights that do not learn never change."""

    def __init__(self) -> None:
        self.seen: dict[int, str] = {}

    def on_training_step(self, run: OnlineRun, iteration: int) -> None:
        assert run.parts.matches is not None
        for number, own in run.parts.matches.networks.checksums().items():
            assert self.seen.setdefault(number, own) == own


@pytest.mark.parametrize(("mode", "memory"), [("serial", GRU), ("serial", ()), ("sync", ()), ("async", GRU)])
def test_recorded_rows_say_who_played_whom(tmp_path: Path, mode: str, memory: tuple[str, ...]) -> None:
    """Without memory, networks of both sides are asked in one pass."""
    words = (*DUEL, *POOL, *memory, *ANCHORS, *ALL, "env.args.more=5", f"sampling.mode={mode}", "stop.batches=25")
    words = (*words, *(["learning.batch_size=128"] if mode == "sync" else []))
    watch = Checksums()
    _, folder = train_here(tmp_path, *words, observers=[watch])
    met = assert_sound(folder)
    assert len(watch.seen) > 5
    assert {TOP, TOP - 1, TOP - 2} <= met, "every anchor has played"
    assert len(met & watch.seen.keys()) > 3, "and several models have"
    pool = ModelPool(folder.pool)
    for entry in pool.entries():
        weights = load_checkpoint(pool.path_of(entry)).state["learners"][0]["model"]
        if entry.id + 1 in watch.seen:
            assert watch.seen[entry.id + 1] == frozen._checksum(weights), "what plays is what was published"


def test_memory_begins_at_zero(tmp_path: Path) -> None:
    """The state that an opponent decides from, at the first row of every episode."""
    states: list[float] = []
    later: list[float] = []

    class Look(Observer):
        def on_training_step(self, run: OnlineRun, iteration: int) -> None:
            rows = run.segments
            state, first = rows["state"], rows["first"][:-1:4]
            own = rows["policy_id"][:-1:4] > 0
            states.extend(np.abs(state[first & own]).max(axis=-1).tolist())
            later.extend(np.abs(state[~first & own]).max(axis=-1).tolist())

    train_here(tmp_path, *DUEL, *POOL, *GRU, "stop.batches=12", "env.args.more=3", *SERIAL, observers=[Look()])
    assert len(states) > 5
    assert max(states) == 0
    assert min(later) > 0


def same_run(one: RunFolder, two: RunFolder) -> None:
    rows = [rows_of(one), rows_of(two)]
    for row in (row for own in rows for row in own):
        del row["pool/models"], row["pool/published"]  # more are there where more checkpoints refer to them
    assert rows[0] == rows[1]
    a, b = saved_state(one), saved_state(two)
    for state in (a, b):
        for name in ("config", "seconds"):
            del state[name]
        for model in state["selfplay"]["models"]:
            del model["entry"]["file"]  # the settings are in there, and a limit differs
        for held in state["sampler"]["held"]:  # the newest rows' outcomes are to come
            for name in ("reward", "terminated", "truncated", "valid", "episode_return"):
                held["fields"][name] = held["fields"][name][:-1]
    assert_same(a, b)


class StopAt(Observer):
    """Ends the run at a training step."""

    def __init__(self, iteration: int) -> None:
        self.iteration = iteration

    def on_training_step(self, run: OnlineRun, iteration: int) -> None:
        if iteration == self.iteration:
            run.stop("told to")


@pytest.mark.parametrize("rule", ["pfsp", "mix", "duel_envs:prefers_old"])
def test_a_resumed_run_continues_bit_for_bit(tmp_path: Path, rule: str) -> None:
    words = (*DUEL, *POOL, *GRU, *SERIAL, f"selfplay.rule={rule}", "env.args.more=3", "selfplay.live_share=0.2")
    words = (*words, "selfplay.anchors={random: 0.2, 'duel_envs:always_rock': 0.1}", "selfplay.min_games=2")
    words = (*words, "stop.batches=30", "env=duel_envs:Shaped", "selfplay.result=points")
    _, whole = train_here(tmp_path / "whole", *words)
    train_here(tmp_path / "parts", *words, observers=[StopAt(13)])
    train_here(tmp_path / "parts", *words, observers=[StopAt(14)], mode="resume")
    _, parts = train_here(tmp_path / "parts", *words, mode="resume")
    same_run(whole, parts)
    assert (whole.path / "payoff.jsonl").read_bytes() == (parts.path / "payoff.jsonl").read_bytes()


def test_a_killed_run_plays_against_the_same_again(tmp_path: Path) -> None:
    """What came after the newest checkpoint is lost, but for models in the pool: they are found there again."""
    words = (*DUEL, *POOL, *SERIAL, "selfplay.rule=pfsp", "stop.batches=40")
    often = ("checkpoints.every_seconds=0.00001", "checkpoints.keep_last=0")
    _, whole = train_here(tmp_path / "whole", *words)
    _, killed = train_here(tmp_path / "killed", *words, *often)
    for path in killed.checkpoints.glob("*.ckpt"):
        if load_checkpoint(path).state["iteration"] > 15:
            path.unlink()
    assert saved_state(killed)["iteration"] > 5
    before = ModelPool(killed.pool).entries()[-1]
    train_here(tmp_path / "killed", *words, *often, mode="resume")
    assert ModelPool(killed.pool).entries()[-1].version == before.version
    same_run(whole, killed)


def test_models_that_checkpoints_refer_to_stay(tmp_path: Path) -> None:
    words = (*DUEL, *POOL, *SERIAL, "checkpoints.milestone_frames=1", "checkpoints.every_seconds=0.0001")
    _, folder = train_here(tmp_path, *words, "stop.batches=20", "checkpoints.keep_last=1")
    there = {entry.id for entry in ModelPool(folder.pool).entries()}
    for path in folder.checkpoints.glob("*.ckpt"):
        needed = {own["entry"]["id"] for own in load_checkpoint(path).state["selfplay"]["models"]}
        assert needed <= there, path.name
    assert len(there) > 3 + 3


def test_a_run_from_the_checkpoint_of_another_brings_the_opponents_along(tmp_path: Path) -> None:
    _, old = train_here(tmp_path / "old", *DUEL, *POOL, *SERIAL, "stop.batches=9")
    newest = max(old.checkpoints.glob("*.ckpt"))
    before = saved_state(old)["selfplay"]["models"]
    _, new = train_here(tmp_path / "new", *DUEL, *POOL, *SERIAL, "stop.batches=10", restore=newest)
    after = saved_state(new)["selfplay"]["models"]
    ids = [[own["entry"]["id"] for own in models if own["opponent"]] for models in (before, after)]
    assert ids[1] == [*ids[0][1:], ids[0][-1] + 1]
    for path in old.pool.glob("*.ckpt"):
        path.unlink()
    with pytest.raises(CheckpointError, match="plays against a model that cannot be read"):
        train_here(tmp_path / "old", *DUEL, *POOL, *SERIAL, "stop.batches=12", mode="resume")


@pytest.mark.parametrize("decides", ["higher", "points"])
def test_results_are_counted_as_they_happened(tmp_path: Path, decides: str) -> None:
    """The table against the recorded episodes, game by game; the returns of opponents are nobody's training return.

    Where points decide, rewards are the opposite of them.
    """
    words = (*DUEL, *POOL, *SERIAL, *ALL, "selfplay.anchors={'duel_envs:always_rock': 0.3}", "report.window=10000")
    words = (*words, f"selfplay.result={decides}", *(["env=duel_envs:Shaped"] if decides == "points" else []))
    _, folder = train_here(tmp_path, *words, "stop.batches=24")
    lines = [json.loads(line) for line in (folder.path / "payoff.jsonl").read_text().splitlines()]
    told: dict[str, list[int]] = {}
    for row in (row for line in lines[1:] for row in line["results"]):
        counts = told.setdefault(row["opponent"], [0, 0, 0])
        counts[:] = [a + row[name] for a, name in zip(counts, ("wins", "draws", "losses"), strict=True)]
        assert row["games"] == row["wins"] + row["draws"] + row["losses"]
    found: dict[str, list[int]] = {}
    for game in games_of(folder).values():
        if not game[0][0].terminated:
            continue  # still played when the run ended
        own = [episode for info, episode in game.values() if info.policy_id == 0]
        assert len(game) == 2
        assert len(own) == 1
        opponent, total = int(own[0].columns["opponent"][0]), float(own[0].columns["reward"].sum())
        name = "duel_envs:always_rock" if opponent == TOP else f"model {opponent - 1}"
        won = total > 0 if decides == "higher" else total < 0
        found.setdefault(name, [0, 0, 0])[0 if won else 1 if total == 0 else 2] += 1
    last = rows_of(folder)[-1]
    assert last["episode/return"] != 0, "it would be 0 if opponents counted"
    for row in saved_state(folder)["selfplay"]["payoff"]["pairs"]:  # the games since the last model
        name = "duel_envs:always_rock" if row["opponent"] == TOP else f"model {row['opponent'] - 1}"
        now = [row["now"][key] for key in ("wins", "draws", "losses")]
        told[name] = [a + b for a, b in zip(told.get(name, [0, 0, 0]), now, strict=True)]
    assert told == found
    assert len(told) > 3


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_statistics_of_workers_find_their_games(tmp_path: Path, mode: str) -> None:
    """A game of one round that is won by points costs 1: rewards are the opposite."""
    words = (*DUEL, *POOL, "env=duel_envs:Shaped", "env.args.length=1", "selfplay.result=points")
    sync = ["learning.batch_size=128"] if mode == "sync" else []
    _, folder = train_here(tmp_path, *words, *sync, f"sampling.mode={mode}", "stop.batches=20")
    lines = [json.loads(line) for line in (folder.path / "payoff.jsonl").read_text().splitlines()]
    rows = [row for line in lines[1:] for row in line["results"]]
    assert sum(row["games"] for row in rows) > 50
    for row in rows:
        assert row["return"] * row["games"] == pytest.approx(row["losses"] - row["wins"])


def test_sides_teams_and_policies(tmp_path: Path) -> None:
    four = ("env.args.agents=4", "learning.batch_size=64", *DUEL, *POOL, *SERIAL, *ALL, "stop.batches=10")
    _, folder = train_here(tmp_path / "teams", *four, "selfplay.sides=[0,0,1,1]", "selfplay.learns=[1]")
    games = [game for game in games_of(folder, 4).values() if len(game) == 4]
    assert games
    for game in games:
        ids = [game[agent][0].policy_id for agent in range(4)]
        assert ids[2:] == [0, 0]
        assert ids[0] == ids[1] > 0
    _, folder = train_here(tmp_path / "roles", *four, "env.policies=[0,0,1,1]", "selfplay.live_share=0.3")
    seen = set()
    for game in games_of(folder, 4).values():
        if len(game) == 4:
            ids = tuple(game[agent][0].policy_id for agent in range(4))
            assert ids[0] == ids[1]
            assert ids[2] == ids[3]
            assert ids[0] == 0 or ids[0] % 2 == 0, "weights of policy 0 play side 0"
            assert ids[2] == 1 or ids[2] % 2 == 1
            seen.add((ids[0] < 2, ids[2] < 2))
    assert seen == {(True, True), (True, False), (False, True)}
    last = rows_of(folder)[-1]
    assert "policy1/episode/return" in last
    assert last["selfplay/models"] > 1


def test_own_rules_are_asked(tmp_path: Path) -> None:
    words = (*DUEL, *POOL, *SERIAL, *ALL, "selfplay.rule=duel_envs:prefers_old", "stop.batches=12", "pool.keep=20")
    _, folder = train_here(tmp_path, *words)
    assert assert_sound(folder) == {1}, "the oldest model is number 1"


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["selfplay.rule=uniforms"], "expected latest, uniform, newest"),
        (["selfplay.rule=uniform"], "nothing is published there: set pool.every_updates"),
        ([*POOL, "env=toy_target"], "has 1 agent, and self-play needs one for each side"),
        ([*POOL, "selfplay.rule=duel_envs:nobody"], "has no 'nobody'"),
        ([*POOL, "selfplay.anchors={rnadom: 0.5}"], "selfplay.anchors: rnadom.*did you mean .random"),
        ([*POOL, "selfplay.anchors={random: 0.7}", "selfplay.live_share=0.4"], "add up to more than 1"),
        ([*POOL, "selfplay.sides=[0,0]"], "nobody is left to play against"),
        ([*POOL, "selfplay.sides=[0,1,1]"], "names 3 agents, duel has 2"),
        ([*POOL, "selfplay.learns=[2]"], "there is no side 2, the last is 1"),
        ([*POOL, "pbt.members=2"], "one policy plays all agents"),
        ([*POOL, "env=duel_envs:Shaped", "selfplay.result=point"], "no such statistic of every .*did you mean .points"),
        ([*POOL, "env=duel_envs:Shaped", "selfplay.result=rounds"], "one number of an episode, and not one of every"),
        ([*POOL, "selfplay.result=points"], "selfplay.result=points: the environment tells no statistics"),
        ([*POOL, "selfplay.result=''"], "expected higher, positive, or a statistic of the episode"),
        ([*POOL, "learning.algorithm=sac"], "use learning.algorithm=appo"),
        ([*POOL, *SERIAL, "pool.every_seconds=3"], "serial mode repeats bit for bit, and a clock does not"),
        (["selfplay.live_share=0.5"], "without a rule"),
        ([*POOL, "env.policies=[0,1]", "learning.frozen=[1]", "selfplay.learns=[1]"], "keeps from learning"),
    ],
)
def test_bad_settings_are_refused(tmp_path: Path, words: list[str], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        train_here(tmp_path, "env=duel_envs:Duel", "stop.batches=2", *SERIAL, *words)
    assert not list(tmp_path.rglob("*.ckpt"))


@pytest.mark.parametrize("words", [("env=duel_envs:Shaped", "selfplay.result=rounds"), ("selfplay.result=points",)])
def test_where_no_episode_ends_in_time_the_first_games_find_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    monkeypatch.setattr(run, "episode_statistics", lambda *words: None)
    monkeypatch.setattr(opponents, "SILENT_SECONDS", 0.0)
    with pytest.raises(ConfigError, match=r"the environment tells no (such statistic|statistics) of every agent"):
        train_here(tmp_path, *DUEL, *POOL, *SERIAL, "stop.batches=100", *words)


def test_an_opponent_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    _, other = train_here(tmp_path / "other", "env=toy_agents", *SERIAL, "learning.batch_size=64", "stop.batches=1")
    with pytest.raises(ConfigError, match="it cannot play in duel"):
        train_here(tmp_path, *DUEL, *POOL, *SERIAL, f"selfplay.anchors={{'{other.path}': 0.5}}", "stop.batches=2")
    folder = RunFolder(tmp_path / "x" / "run")
    assert (folder.read_state() or {})["frames"] == 0, "refused before anything was played"
    assert not folder.metrics.exists()


class KillsWorkers(Observer):
    """Ends a worker's process now and then, in the middle of whatever games it plays."""

    def __init__(self, rng: np.random.Generator) -> None:
        self.rng = rng
        self.kills = 0

    def on_training_step(self, run: OnlineRun, iteration: int) -> None:
        pool = run.parts.sampler.pool
        if isinstance(pool, ProcessPool) and self.kills < 2 and self.rng.random() < 0.1:
            os.kill(int(self.rng.choice(pool.pids())), signal.SIGKILL)
            self.kills += 1


@pytest.mark.parametrize("seed", range(4))
def test_games_are_sound_through_deaths_swaps_and_resumes(tmp_path: Path, seed: int) -> None:
    """Random schedules: environments that crash, workers that are killed, models that come and go, several sessions."""
    rng = np.random.default_rng(seed)
    mode = ("async", "serial", "sync", "async")[seed]
    words = [
        *DUEL,
        *ALL,
        f"sampling.mode={mode}",
        f"run.seed={seed}",
        "learning.batch_size=128",
        "env.fault_limit=1000",
    ]
    words += [f"selfplay.rule={rng.choice(['latest', 'uniform', 'mix', 'pfsp'])}", f"pool.keep={rng.integers(1, 4)}"]
    words += [f"pool.every_updates={rng.integers(1, 4)}", f"env.args.more={rng.integers(0, 20)}", "env.args.crash=0.02"]
    words += ["env.fault_limit=1000"]
    words += [f"selfplay.live_share={rng.random() / 3}", f"selfplay.anchors={{random: {rng.random() / 3}}}"]
    watch, end = Checksums(), 0
    for session in range(3):
        end += int(rng.integers(4, 10))
        observers = [watch, KillsWorkers(rng)]
        again = {"mode": "resume"} if session else {}
        _, folder = train_here(tmp_path, *words, f"stop.batches={end}", observers=observers, **again)
    assert_sound(folder)
    assert len(Store(folder.data)) > 20
    assert rows_of(folder)[-1]["sample/env_faults"] > 0
