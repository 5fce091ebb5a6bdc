"""Collections: which episodes, whole and unchanged; several at once; stopped, killed and continued."""

from __future__ import annotations

import json
import signal
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from collecting import PARALLEL, SERIAL, all_episodes, check_telling, collect_here, same_episodes
from faulty_envs import Marker
from running import SERIAL as SERIAL_RUN
from running import Run, saved_state, train_here, wait_until

from rollmill.core.checkpoints import Checkpoints
from rollmill.core.errors import ConfigError, EnvError, PolicyError, StoreError
from rollmill.core.run_folder import RunFolder
from rollmill.core.seeds import Seeds
from rollmill.runs.collect import series as series_module
from rollmill.runs.collect.run import Metrics
from rollmill.runs.collect.series import EpisodeSeries
from rollmill.store import extract
from rollmill.store.reader import Store
from rollmill.store.writer import StoreWriter


def seed_of(number: int, root: int = 0) -> int:
    return Seeds(root).branch("collect", "episode", number).integer()


def seeds_in(out: Path) -> list[int | None]:
    return sorted(episode.info.seed or 0 for episode in all_episodes(out).values())


# -- which episodes, and what is in them -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("policy", "mode"),
    [("random", SERIAL), ("random", PARALLEL), ("smoothed-random", SERIAL), ("collecting:Echo", PARALLEL)],
    ids=["random serial", "random parallel", "smoothed serial", "own parallel"],
)
def test_episodes_are_whole_and_every_row_is_right(tmp_path: Path, policy: str, mode: tuple[str, ...]) -> None:
    done = collect_here(tmp_path / "s", *mode, policy=policy, episodes=23, seed=0)
    episodes = all_episodes(tmp_path / "s")
    assert len(episodes) == done.metrics.episodes == done.total_episodes == 23
    assert done.complete
    for episode in episodes.values():
        check_telling(episode)
    assert done.metrics.steps == sum(map(len, episodes.values()))
    assert done.metrics.mean_return == pytest.approx(np.mean([e.return_ for e in episodes.values()]))
    assert seeds_in(tmp_path / "s") == sorted(seed_of(k) for k in range(23))  # not the 23 shortest
    assert {e.info.policy for e in episodes.values()} == {f"{policy}:8" if "smoothed" in policy else policy}


@pytest.mark.parametrize("policy", ["random", "collecting:Echo"])
def test_the_seed_alone_decides_the_data(tmp_path: Path, policy: str) -> None:
    """However many envs play it."""
    one, two, other = (tmp_path / name for name in ("one", "two", "other"))
    collect_here(one, policy=policy, episodes=17, seed=3)
    collect_here(two, *PARALLEL, policy=policy, episodes=17, seed=3)
    collect_here(other, policy=policy, episodes=17, seed=4)
    assert same_episodes(all_episodes(one), all_episodes(two))
    assert all_episodes(one).keys().isdisjoint(all_episodes(other).keys())
    assert seeds_in(one) != seeds_in(other)


def test_without_a_seed_every_collection_is_another_one(tmp_path: Path) -> None:
    first, second = (collect_here(tmp_path / "s", episodes=4) for _ in range(2))
    assert first.seed != second.seed
    assert second.total_episodes == 8


@pytest.mark.parametrize("mode", [SERIAL, PARALLEL], ids=["serial", "parallel"])
def test_every_agent_has_its_own_stream(tmp_path: Path, mode: tuple[str, ...]) -> None:
    words = (*mode, "env.args={agents: 3}")
    done = collect_here(tmp_path / "s", *words, env="faulty_envs:Marker", episodes=10, seed=0)
    assert done.metrics.episodes == 10
    assert done.total_episodes == 30
    seen = set()
    for episode in all_episodes(tmp_path / "s").values():
        where, n = episode.obs["where"], len(episode)
        env, agent, number = where[0, :3].astype(int)
        assert n == Marker.length(env, number, agent)
        assert np.array_equal(where[:, 3], np.arange(n + 1))
        assert np.array_equal(episode.rewards, Marker.reward_of(where[:-1], episode.actions))
        assert set(episode.obs["seed"].tolist()) == {episode.info.seed}
        assert episode.info.lane == 3 * env + agent
        seen.add((episode.info.seed, agent))
    assert seen == {(seed_of(k), agent) for k in range(10) for agent in range(3)}


def test_max_steps_truncate(tmp_path: Path) -> None:
    collect_here(tmp_path / "s", env="toy_target", episodes=3, max_steps=4)
    for episode in all_episodes(tmp_path / "s").values():
        assert (len(episode), episode.terminated, episode.truncated) == (4, False, True)


@pytest.mark.parametrize("mode", [SERIAL, PARALLEL], ids=["serial", "parallel"])
def test_steps_are_cut_where_they_are_enough(tmp_path: Path, mode: tuple[str, ...]) -> None:
    done = collect_here(tmp_path / "s", *mode, steps=101, seed=0)
    assert done.complete
    assert done.metrics.steps == 101
    with Store(tmp_path / "s") as store:
        assert store.table.steps == 101
        partial = store.table["partial_end"]
        assert partial.sum() < len(store)
        assert partial.any() or mode is PARALLEL  # there all may happen to be at an end
        assert not store.table["partial_start"].any()
        for i in range(len(store)):
            episode = store.episode(i)
            if partial[i]:
                assert np.array_equal(episode.obs["obs"][:, 1], np.arange(len(episode) + 1))
            else:
                check_telling(episode)
    assert done.total_episodes == (~partial).sum()


# -- checkpoints -------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    words = (*SERIAL_RUN, "env=toy_target", "stop.frames=300", "learning.learning_rate=0.1")
    return train_here(tmp_path_factory.mktemp("run"), *words)[1]


def test_a_checkpoint_brings_its_environment_and_its_version(run: RunFolder, tmp_path: Path) -> None:
    done = collect_here(tmp_path / "s", *SERIAL, env="", policy=str(run.path), episodes=6, seed=0)
    state, newest = saved_state(run), Checkpoints(run.checkpoints).newest()
    assert newest is not None
    assert done.policy == f"run/{newest.path.name}"
    for episode in all_episodes(tmp_path / "s").values():
        assert set(episode.versions.tolist()) == {state["learners"][0]["version"]}
        assert set(episode.global_steps.tolist()) == {newest.step}
        assert len(episode) == 10
    with Store(tmp_path / "s") as store:
        assert store.schema.env_id == "toy_target"


def test_a_checkpoint_repeats_itself_in_serial_mode(run: RunFolder, tmp_path: Path) -> None:
    for name in ("one", "two"):
        collect_here(tmp_path / name, *SERIAL, env="", policy=str(run.path), episodes=9, seed=5)
    assert same_episodes(all_episodes(tmp_path / "one"), all_episodes(tmp_path / "two"))


def test_a_trained_policy_must_fit_the_env(run: RunFolder, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="it cannot play in toy_image, whose observations differ"):
        collect_here(tmp_path / "s", *SERIAL, env="toy_image", policy=str(run.path), episodes=2, seed=0)
    assert not (tmp_path / "s").exists()


def test_a_deterministic_checkpoint_takes_no_chances(run: RunFolder, tmp_path: Path) -> None:
    """The same number shown, the same action taken: in all episodes. It is another policy for the store."""
    file = next(run.checkpoints.glob("*.ckpt"))
    done = collect_here(tmp_path / "s", *PARALLEL, env="", policy=str(file), deterministic=True, episodes=8, seed=0)
    assert done.policy.endswith(f"{file.name} (deterministic)")
    chosen: dict[int, set[int]] = {}
    for episode in all_episodes(tmp_path / "s").values():
        for shown, action in zip(episode.obs["obs"][:-1].argmax(axis=1).tolist(), episode.actions.tolist()):
            chosen.setdefault(shown, set()).add(action)
    assert len(chosen) == 4
    assert all(len(actions) == 1 for actions in chosen.values())
    again = collect_here(tmp_path / "s", env="", policy=str(file), episodes=8, seed=0)
    assert again.total_episodes == 16


# -- again and on ------------------------------------------------------------------------------------------


def test_until_counts_what_is_there(tmp_path: Path) -> None:
    out, whole = tmp_path / "s", tmp_path / "whole"
    collect_here(out, episodes=5, seed=3)
    more = collect_here(out, *PARALLEL, until=17, seed=3)
    assert (more.metrics.episodes, more.total_episodes) == (12, 17)
    enough = collect_here(out, until=17, seed=3)
    assert (enough.reason, enough.metrics.episodes, enough.complete) == ("everything is there", 0, True)
    collect_here(whole, episodes=17, seed=3)
    assert same_episodes(all_episodes(out), all_episodes(whole))


def test_until_counts_other_seeds_and_policies_too(tmp_path: Path) -> None:
    collect_here(tmp_path / "s", episodes=5, seed=1)
    done = collect_here(tmp_path / "s", until=8, seed=2, policy="smoothed-random")
    assert (done.metrics.episodes, done.total_episodes) == (3, 8)


def test_partial_episodes_do_not_count(tmp_path: Path) -> None:
    collect_here(tmp_path / "s", steps=30, seed=1)
    with Store(tmp_path / "s") as store:
        whole = int((~store.table["partial_end"]).sum())
    done = collect_here(tmp_path / "s", until=whole + 3, seed=1)
    assert done.metrics.episodes == 3
    assert len(all_episodes(tmp_path / "s")) == len(seeds_in(tmp_path / "s")) > whole + 3


def test_shards_are_parts_of_one_set(tmp_path: Path) -> None:
    out, whole = tmp_path / "s", tmp_path / "whole"
    for shard, count in (("0/3", 4), ("1/3", 3), ("2/3", 3)):
        assert collect_here(out, until=10, seed=7, shard=shard).metrics.episodes == count
    assert collect_here(out, until=10, seed=7, shard="1/3").metrics.episodes == 0
    collect_here(whole, episodes=10, seed=7)
    assert same_episodes(all_episodes(out), all_episodes(whole))
    assert collect_here(out, until=14, seed=7, shard="0/3").metrics.episodes == 1


def test_shards_share_steps_and_episodes(tmp_path: Path) -> None:
    assert collect_here(tmp_path / "a", episodes=7, seed=0, shard="1/2").metrics.episodes == 3
    assert collect_here(tmp_path / "b", steps=31, seed=0, shard="0/2").metrics.steps == 16


def test_two_processes_write_one_store(tmp_path: Path, rollmill: Run) -> None:
    words = ("env=telling_env:Telling", "--until", "400", "--seed", "2", "--out", "s", *PARALLEL, "--json")
    both = [rollmill("collect", *words, "--shard", shard) for shard in ("0/2", "1/2")]
    for command in both:
        assert command.wait() == 0, command.text
        assert json.loads(command.text.splitlines()[-1])["episodes"] == 200
        command.assert_nothing_left()
    collect_here(tmp_path / "whole", episodes=400, seed=2)
    assert same_episodes(all_episodes(tmp_path / "s"), all_episodes(tmp_path / "whole"))
    assert len(list((tmp_path / "s/progress").iterdir())) == 2


class Meanwhile:
    """A progress callback that once lets another collection happen."""

    def __init__(self, out: Path, **options: Any) -> None:
        self._out, self._options = out, options
        self.called = False

    def __call__(self, metrics: Metrics) -> None:
        if not self.called and metrics.episodes >= 3:
            self.called = True
            collect_here(self._out, **self._options)


def test_what_others_add_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What has begun is finished, so there may be a few more than asked for."""
    monkeypatch.setattr(series_module, "LOOK_SECONDS", 0.0)
    other = Meanwhile(tmp_path / "s", episodes=100, seed=9)
    done = collect_here(tmp_path / "s", until=120, seed=1, progress=other)
    assert other.called
    assert done.complete
    assert 20 <= done.metrics.episodes <= 20 + 8
    assert done.total_episodes == 100 + done.metrics.episodes
    numbers = sorted(s for s in seeds_in(tmp_path / "s") if s in {seed_of(k, 1) for k in range(120)})
    assert len(numbers) == done.metrics.episodes


def test_the_same_episodes_twice_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(series_module, "LOOK_SECONDS", 0.0)
    other = Meanwhile(tmp_path / "s", episodes=30, seed=1)
    with pytest.raises(StoreError, match=r"another instance with the same --seed .*--shard 0/2"):
        collect_here(tmp_path / "s", until=200, seed=1, progress=other)
    monkeypatch.undo()
    with pytest.raises(StoreError, match="another instance"):  # seen at the end at the latest
        collect_here(tmp_path / "t", episodes=20, seed=1, progress=Meanwhile(tmp_path / "t", episodes=20, seed=1))


# -- interrupted -------------------------------------------------------------------------------------------


def gated(tmp_path: Path) -> tuple[str, ...]:
    """Every env stops in the middle of its third episode, until the gate is opened."""
    return (*PARALLEL, f"env.args={{gate: {tmp_path / 'gate'}}}")


def listed(out: Path) -> int:
    if not (out / "store.json").is_file():
        return 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a shard may be sealed just while it is looked at
        return len(Store(out))


def test_kill_9_loses_only_what_had_not_ended(tmp_path: Path, rollmill: Run) -> None:
    out, words = tmp_path / "s", gated(tmp_path)
    # The long rows of a slot that is never full are not seen, so some of the eight episodes that ended may be missing.
    command = rollmill("collect", "env=telling_env:Telling", *words, "--out", "s", "--until", "30", "--seed", "6")
    wait_until(lambda: listed(out) >= 4, what="episodes in the store")
    command.send(signal.SIGKILL)
    command.wait()
    command.assert_nothing_left()
    there = all_episodes(out)
    assert 4 <= len(there) <= 8
    (tmp_path / "gate").touch()
    done = collect_here(out, *words, until=30, seed=6)
    assert (done.metrics.episodes, done.total_episodes) == (30 - len(there), 30)
    collect_here(tmp_path / "whole", *words, episodes=30, seed=6)
    assert same_episodes(all_episodes(out), all_episodes(tmp_path / "whole"))
    with Store(out) as store:
        assert all(shard.sealed for shard in store.shards)


def test_ctrl_c_keeps_what_has_ended(tmp_path: Path, rollmill: Run) -> None:
    out, words = tmp_path / "s", gated(tmp_path)
    command = rollmill("collect", "env=telling_env:Telling", *words, "--out", "s", "--until", "30", "--seed", "6")
    wait_until(lambda: listed(out) >= 4, what="episodes in the store")
    command.press_ctrl_c()
    assert command.wait() == 130
    assert "interrupted: SIGINT received" in command.text
    assert command.text.rstrip().endswith("the same command continues")
    assert "Traceback" not in command.text
    command.assert_nothing_left()
    there = all_episodes(out)
    for episode in there.values():
        check_telling(episode)
    progress = json.loads(next((out / "progress").iterdir()).read_text())
    assert (progress["state"], progress["episodes"]) == ("interrupted", len(there))
    (tmp_path / "gate").touch()
    assert collect_here(out, *words, until=30, seed=6).total_episodes == 30
    assert seeds_in(out) == sorted(seed_of(k, 6) for k in range(30))


def test_interrupted_steps_are_kept_as_partial_episodes(tmp_path: Path) -> None:
    def stop(metrics: Metrics) -> None:
        if metrics.steps > 20:
            signal.raise_signal(signal.SIGTERM)

    with pytest.raises(KeyboardInterrupt):  # asked twice
        collect_here(tmp_path / "t", steps=10_000, progress=lambda f: [stop(f), stop(f)])
    stopped = []
    done = collect_here(
        tmp_path / "s",
        steps=10_000,
        progress=lambda f: stopped.append(stop(f)) if f.steps > 20 and not stopped else None,
    )
    assert (done.state, done.signal, done.exit_code) == ("interrupted", signal.SIGTERM, 143)
    assert not done.complete
    with Store(tmp_path / "s") as store:
        assert store.table.steps == done.metrics.steps
        assert store.table["partial_end"].any()


# -- faults ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", [SERIAL, PARALLEL], ids=["serial", "parallel"])
def test_an_episode_that_fails_is_replaced(tmp_path: Path, mode: tuple[str, ...]) -> None:
    """By the next one that begins beyond those that were asked for."""
    bad = [seed_of(k) for k in (2, 11)]
    words = (*mode, f"env.args={{fail: {bad}}}")
    done = collect_here(tmp_path / "s", *words, episodes=12, seed=0)
    assert (done.metrics.episodes, done.metrics.env_faults, done.complete) == (12, 2, True)
    seeds = seeds_in(tmp_path / "s")
    assert {seed_of(k) for k in range(12)} - set(seeds) == set(bad)
    assert len(set(seeds) - {seed_of(k) for k in range(12)}) == 2
    for episode in all_episodes(tmp_path / "s").values():
        check_telling(episode)
    with Store(tmp_path / "s") as store:
        assert store.table.steps == done.metrics.steps


@pytest.mark.parametrize("what", ["kill", "exit"])
def test_a_worker_that_ends_is_replaced(tmp_path: Path, what: str) -> None:
    args = f"env.args={{what: {what}, env: 1, at_step: 17, once: {tmp_path / 'once'}}}"
    done = collect_here(tmp_path / "s", *PARALLEL, args, env="faulty_envs:Misbehave", episodes=40, seed=0)
    assert done.metrics.worker_restarts == 1
    episodes = all_episodes(tmp_path / "s")
    assert len(episodes) == 40
    for episode in episodes.values():
        assert np.array_equal(episode.obs["obs"][:, 1], np.arange(6))
        assert episode.terminated


def test_a_lasting_fault_ends_it_and_keeps_the_rest(tmp_path: Path) -> None:
    words = (*SERIAL, "env.args={env: 0, at_step: 30}", "env.fault_limit=1")
    with pytest.raises(EnvError, match="told to raise in step"):
        collect_here(tmp_path / "s", *words, env="faulty_envs:Misbehave", episodes=1000, seed=0)
    episodes = all_episodes(tmp_path / "s")
    assert episodes
    assert all(len(episode) == 5 for episode in episodes.values())
    assert json.loads(next((tmp_path / "s/progress").iterdir()).read_text())["state"] == "failed"


@pytest.mark.parametrize("what", ["sys_exit", "exit_0"])
@pytest.mark.parametrize("mode", [SERIAL, PARALLEL], ids=["serial", "parallel"])
def test_an_env_that_exits_does_not_end_it_in_silence(
    tmp_path: Path, rollmill: Run, mode: tuple[str, ...], what: str
) -> None:
    words = ["collect", "--out", "s", "--episodes", "100000", "env=faulty_envs:Misbehave", *mode]
    limits = ["env.fault_limit=2", "sampling.worker_restarts=1"]
    command = rollmill(*words, f"env.args={{what: {what}, env: 0, at_step: 30}}", *limits)
    assert command.wait() == 1, command.text
    in_worker = (mode, what) == (PARALLEL, "exit_0")
    assert ("ended with exit code 0 while env 0" if in_worker else "SystemExit: 0") in command.text
    assert "episodes had ended: they are in" in command.text


@pytest.mark.parametrize("mode", [SERIAL, PARALLEL], ids=["serial", "parallel"])
def test_a_policy_that_fails_ends_it_and_keeps_the_rest(tmp_path: Path, mode: tuple[str, ...]) -> None:
    with pytest.raises(PolicyError, match="--policy collecting:fails_later answered 99"):
        collect_here(tmp_path / "s", *mode, policy="collecting:fails_later", episodes=1000)
    for episode in all_episodes(tmp_path / "s").values():
        check_telling(episode)


@pytest.mark.parametrize("mode", [SERIAL, PARALLEL], ids=["serial", "parallel"])
def test_an_error_while_writing_comes_home(
    tmp_path: Path, mode: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    end = StoreWriter.end

    def fail(self: StoreWriter, *given: Any, **options: Any) -> Any:
        if self.acknowledged == 5:
            raise StoreError("the disk is full")
        return end(self, *given, **options)

    monkeypatch.setattr(StoreWriter, "end", fail)
    with pytest.raises(StoreError, match="the disk is full"):
        collect_here(tmp_path / "s", *mode, episodes=100, seed=0)
    assert len(all_episodes(tmp_path / "s")) == 5


# -- budget ------------------------------------------------------------------------------------------------


def test_a_disk_budget_ends_it_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Early enough that what has begun can end: leaving that out would leave out the long ones."""
    discarded: list[object] = []
    monkeypatch.setattr(StoreWriter, "discard", lambda self, key: discarded.append(key))
    done = collect_here(tmp_path / "s", episodes=100_000, seed=0, budget_gb=2e-4)
    assert done.reason == "the disk budget of 0.0002 GB is used up"
    assert (done.state, done.complete, done.exit_code) == ("finished", False, 0)
    size = sum(file.stat().st_size for file in (tmp_path / "s/shards").iterdir())
    assert 1.5e5 < size <= 2.1e5
    assert not discarded
    again = collect_here(tmp_path / "s", episodes=1, seed=0, budget_gb=1e-4)
    assert (again.metrics.episodes, again.complete, again.reason[:15]) == (0, False, "the disk budget")


def test_an_episode_larger_than_the_budget_is_left_out(tmp_path: Path) -> None:
    words = (*SERIAL, "env.args={length: 100000}", "sampling.envs_per_worker=1")
    done = collect_here(tmp_path / "s", *words, env="toy_image", episodes=1, budget_gb=1e-5)
    assert (done.metrics.episodes, done.metrics.steps, done.total_episodes) == (0, 0, 0)
    assert "budget" in done.reason


# -- what is refused ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "words", "message"),
    [
        ({}, (), "how much is to be collected"),
        ({"episodes": 3, "until": 3}, (), "--episodes and --until exclude each other"),
        ({"steps": 3, "until": 3}, (), "--until and --steps exclude each other"),
        ({"episodes": 0}, (), "--episodes must be at least 1"),
        ({"until": -1}, (), "--until must be at least 1"),
        ({"steps": 0}, (), "--steps must be at least 1"),
        ({"episodes": 1, "max_steps": -1}, (), "--max-steps"),
        ({"episodes": 1, "seed": -1}, (), "--seed must not be negative"),
        ({"episodes": 1, "budget_gb": 0.0}, (), "--budget-gb must be positive"),
        ({"episodes": 1, "shard": "1"}, (), "expected i/n"),
        ({"episodes": 1, "shard": "0/0", "seed": 1}, (), "expected i/n"),
        ({"episodes": 1, "shard": "2/2", "seed": 1}, (), "the first is 0, the last 1"),
        ({"episodes": 1, "shard": "0/2"}, (), "give all the same --seed"),
        ({"episodes": 1, "hold": 3}, (), "--hold is for --policy smoothed-random"),
        ({"episodes": 1, "hold": 0, "policy": "smoothed-random"}, (), "--hold must be at least 1"),
        ({"episodes": 1, "deterministic": True}, (), "--deterministic is for checkpoints"),
        ({"episodes": 1, "best": True, "policy": "collecting:Echo"}, (), "--best is for checkpoints"),
        ({"episodes": 1, "best": True, "policy": __file__}, (), "is a single one"),
        ({"episodes": 1, "policy": "smooth-random"}, (), "did you mean 'smoothed-random'"),
        ({"episodes": 1, "policy": "nowhere/run"}, (), "there is no nowhere/run"),
        ({"episodes": 1, "policy": "collecting:Ehco"}, (), "did you mean 'Echo'"),
        ({"episodes": 1, "policy": "no_such_module:x"}, (), "no module named 'no_such_module'"),
        ({"episodes": 1, "policy": "collecting:makes_a_number"}, (), "expected a callable"),
        ({"episodes": 1, "policy": "collecting:same_episodes"}, (), "one argument, the env's spec"),
        ({"episodes": 1}, ("stop.frames=3",), "mean nothing to a collection"),
        ({"episodes": 1}, ("run.seed=3",), "mean nothing to a collection"),
        ({"episodes": 1, "max_steps": 3}, ("env.max_episode_steps=3",), "the same thing twice"),
        ({"episodes": 1}, ("sampling.mode=serial", "sampling.decorrelate_steps=3"), "collected episodes are whole"),
        ({"episodes": 1}, ("env.args.gat=x",), "did you mean 'gate'"),
        ({"episodes": 1}, ("env.vector=true",), "collected episodes have a seed each.*set env.vector=false"),
    ],
)
def test_what_does_not_go_together_is_refused(
    tmp_path: Path, options: dict[str, Any], words: tuple[str, ...], message: str
) -> None:
    with pytest.raises((ConfigError, PolicyError), match=message):
        collect_here(tmp_path / "s", *words, **options)
    assert not (tmp_path / "s").exists()


def test_a_store_of_something_else_is_refused(tmp_path: Path) -> None:
    collect_here(tmp_path / "s", episodes=1)
    with pytest.raises(StoreError, match="already holds other data"):
        collect_here(tmp_path / "s", env="toy_target", episodes=1)
    with pytest.raises(StoreError, match="env_kwargs"):
        collect_here(tmp_path / "s", "env.args={gate: x}", episodes=1)


def test_a_folder_that_cannot_be_written_is_found_out_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StoreError, match="episodes cannot be written here"):
        collect_here(tmp_path / "file", episodes=1)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(extract.atomic, "write_bytes", full)
    with pytest.raises(StoreError, match="No space left on device"):
        collect_here(tmp_path / "s", episodes=1)


# -- numbers -----------------------------------------------------------------------------------------------


def test_gaps_are_found_and_played_first() -> None:
    series = EpisodeSeries(1, "p", agents=2, shard=1, shards=3)
    there = {1, 4, 10}
    present = frozenset(series.uid(k, agent) for k in there for agent in range(2)) | {series.uid(13, 0)}
    assert series.missing(present) == ((7,), 13)  # of 13 one agent is missing: it is played again
    assert series.missing(frozenset()) == ((), 1)
    assert series.share(10) == 3


def test_names_depend_on_all_that_decides_the_data() -> None:
    one = EpisodeSeries(1, "p", 5)
    others = [EpisodeSeries(2, "p", 5), EpisodeSeries(1, "q", 5), EpisodeSeries(1, "p", 6)]
    assert len({s.uid(k, agent) for s in (one, *others) for k in range(9) for agent in range(2)}) == 4 * 18
    assert EpisodeSeries(1, "p", 5, agents=2, shard=1, shards=2).uid(3) == one.uid(3)


def test_info_is_collected_with_every_row(tmp_path: Path) -> None:
    collect_here(tmp_path / "s", *PARALLEL, "env=rooms_env:Rooms", episodes=6, seed=0, save_info=("lives", "player/at"))
    for episode in all_episodes(tmp_path / "s").values():
        n = len(episode)
        assert episode.infos["lives"].tolist() == [3 - k // 3 for k in range(n + 1)]
        assert episode.infos["player/at"][1:, 1].tolist() == episode.actions.tolist()


def test_what_info_says_only_later_costs_no_episode(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    one = ("env=rooms_env:Changing", "sampling.mode=serial", "sampling.envs_per_worker=1")
    done = collect_here(tmp_path / "s", *one, episodes=60, seed=0, save_info=())
    assert (done.metrics.episodes, done.metrics.env_faults) == (60, 0)
    with Store(tmp_path / "s") as store:
        first, last = store.episode(0).infos, store.episode(len(store) - 1).infos
    assert set(first["room"]) == {"ä" * 10}
    assert (first["at"] == 1).all()
    assert set(last["room"]) == {"ä" * 32}, "cut at a letter"
    assert np.isnan(last["at"]).all()
    for text in (
        "'room'] has 400 bytes, 64 are kept",
        "'at'] has the shape (3,)",
        "info['late'] is not kept",
    ):
        assert caplog.text.count(text) == 1
    with pytest.raises(EnvError):
        collect_here(tmp_path / "t", *one, "env.info=[at:2]", "env.fault_limit=0", episodes=60, seed=0)
