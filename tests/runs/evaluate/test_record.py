"""``eval --record``: the store holds exactly the episodes that were counted, each as it was played."""

from __future__ import annotations

import json
import shutil
import signal
from pathlib import Path

import numpy as np
import pytest
from collecting import all_episodes, check_telling, same_episodes
from faulty_envs import Marker
from running import SERIAL, Run, saved_state, train_here, wait_until

from rollmill.core import tree_file
from rollmill.core.errors import ConfigError, StoreError
from rollmill.core.run_folder import RunFolder
from rollmill.runs.evaluate import run as evaluation
from rollmill.runs.evaluate.options import EvalOptions
from rollmill.runs.evaluate.results import EvalResult
from rollmill.runs.evaluate.run import evaluate, evaluate_all
from rollmill.runs.policies.find import find_checkpoints, record_folder
from rollmill.store.episode import Episode
from rollmill.store.reader import Store

ENVS = 4


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    words = (*SERIAL, "env=telling_env:Telling", "stop.batches=2", "sampling.rollout=8")
    return train_here(tmp_path_factory.mktemp("run"), *words)[1]


def record(run: RunFolder, folder: Path | None, episodes: int = 11, **options: object) -> EvalResult:
    given = {"workers": 1, "envs": ENVS, "trust_code": True, **options}
    return evaluate(run.path, EvalOptions(episodes, record=True, record_dir=folder, **given))  # type: ignore[arg-type]


def in_order(episodes: dict[int, Episode]) -> list[Episode]:
    """As an evaluation lists them: by their numbers, which the lanes take in turn."""
    nth: dict[tuple[str, int], int] = {}
    numbered = []
    for episode in episodes.values():
        key = (episode.info.policy, episode.info.lane)
        nth[key] = nth.get(key, -1) + 1
        numbered.append((nth[key], episode.info.lane, len(numbered), episode))
    return [entry[-1] for entry in sorted(numbered, key=lambda entry: entry[:3])]


def test_runs_of_one_name_are_told_apart(run: RunFolder, tmp_path: Path) -> None:
    """The same names, the same frames, other weights: none of their episodes is taken for one of the others."""
    other = RunFolder(shutil.copytree(run.path, tmp_path / run.path.name))
    (checkpoint,) = find_checkpoints(other.path)
    tree = tree_file.load_tree(checkpoint)
    tree["state"]["learners"][0]["model"]["head.linear.bias"] += 1.0
    tree_file.save_tree(checkpoint, tree)
    options = EvalOptions(3, workers=1, envs=3, record=True, record_dir=tmp_path / "s", trust_code=True)
    evaluate_all([run.path, other.path], options)
    assert len(all_episodes(tmp_path / "s")) == 6


def test_the_recorded_episodes_are_the_counted_ones(run: RunFolder, tmp_path: Path) -> None:
    result = record(run, tmp_path / "s")
    plain = evaluate(run.path, EvalOptions(11, workers=2, envs=ENVS, trust_code=True))
    assert result.policy == plain.policy
    assert result.record == str(tmp_path / "s")
    recorded = in_order(all_episodes(tmp_path / "s"))
    assert [len(e) for e in recorded] == result.policy.lengths
    assert [np.float32(e.return_) for e in recorded] == [np.float32(r) for r in result.policy.returns]
    state = saved_state(run)
    for episode in recorded:
        check_telling(episode)
        assert set(episode.versions.tolist()) == {state["learners"][0]["version"]}
        assert set(episode.global_steps.tolist()) == {result.frames}
    json.dumps(result.to_dict(), allow_nan=False, default=str)


def test_faults_and_agents_do_not_mix_it_up(tmp_path: Path) -> None:
    words = ("env=faulty_envs:Marker", "env.args={agents: 2}", "learning.batch_size=64", "stop.batches=1")
    _, folder = train_here(tmp_path / "run", *SERIAL, *words)
    result = record(folder, tmp_path / "s", 13, workers=2)
    recorded = in_order(all_episodes(tmp_path / "s"))
    assert [len(e) for e in recorded] == result.policy.lengths
    for episode in recorded:
        env, agent, number = episode.obs["where"][0, :3].astype(int)
        assert len(episode) == Marker.length(env, number, agent)
        assert set(episode.obs["seed"].tolist()) == {episode.info.seed}
        assert (episode.info.lane, episode.info.worker) == (2 * env + agent, env // 2)


def test_an_episode_that_fails_is_not_recorded(run: RunFolder, tmp_path: Path) -> None:
    first = in_order(all_episodes_of(run, tmp_path / "a"))[0].info.seed
    result = record(run, tmp_path / "s", overrides=(f"env.args.fail=[{first}]",))
    recorded = {episode.info.seed: len(episode) for episode in all_episodes(tmp_path / "s").values()}
    assert recorded == {row.seed: row.length for row in result.policy.rows}
    assert first not in recorded
    assert (len(recorded), result.policy.lost) == (11, 1)


def all_episodes_of(run: RunFolder, folder: Path) -> dict[int, Episode]:
    record(run, folder)
    return all_episodes(folder)


def test_the_comparator_is_recorded_beside_it(run: RunFolder, tmp_path: Path) -> None:
    result = record(run, tmp_path / "s", random=True)
    assert result.random is not None
    by_policy: dict[str, list[Episode]] = {}
    for episode in in_order(all_episodes(tmp_path / "s")):
        by_policy.setdefault(episode.info.policy, []).append(episode)
    checkpoint, random = sorted(by_policy, key=lambda name: name == "random")
    assert checkpoint == f"run/{Path(result.checkpoint).name}"
    assert random == "random"
    for name, score in ((checkpoint, result.policy), (random, result.random)):
        assert [np.float32(e.return_) for e in by_policy[name]] == [np.float32(r) for r in score.returns]
    assert {v for e in by_policy["random"] for v in e.global_steps.tolist()} == {0}


def test_it_lies_beside_the_checkpoint_and_goes_with_the_run(run: RunFolder, tmp_path: Path) -> None:
    result = record(run, None, 2)
    stem = Path(result.checkpoint).stem
    assert result.record == str(run.path / "eval" / stem)
    progress = json.loads(next((run.path / "eval" / stem / "progress").iterdir()).read_text())
    assert (progress["state"], progress["recorded"]) == ("finished", 2)
    assert record_folder(tmp_path / "x.ckpt") == tmp_path / "eval/x"
    RunFolder.create(run.path, "resume").close()
    copy = tmp_path / "copy"
    copy.mkdir()
    for name in ("config.yaml", "eval"):
        (run.path / name).rename(copy / name) if name == "eval" else (copy / name).write_text("")
    RunFolder.create(copy, "overwrite").close()  # a recording is part of a run, not something foreign
    assert not (copy / "eval").exists()


def test_recording_again_adds_only_what_is_missing(run: RunFolder, tmp_path: Path) -> None:
    record(run, tmp_path / "s", 5)
    record(run, tmp_path / "t", 5)
    first = all_episodes(tmp_path / "s")
    assert same_episodes(first, all_episodes(tmp_path / "t"))
    record(run, tmp_path / "s", 5)
    assert same_episodes(first, all_episodes(tmp_path / "s"))
    record(run, tmp_path / "s", 5, seed=2)
    assert len(all_episodes(tmp_path / "s")) == 10


def test_a_folder_that_cannot_be_written_is_found_out_before_anything_is_played(
    run: RunFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def play(*_: object) -> None:
        raise AssertionError("played")

    monkeypatch.setattr(evaluation.EvalSetup, "play", play)
    (tmp_path / "file").touch()
    with pytest.raises(StoreError, match="episodes cannot be written here"):
        record(run, tmp_path / "file")
    with pytest.raises(StoreError, match="episodes cannot be written here"):
        record(run, tmp_path / "file/below")


def test_what_has_ended_survives_a_kill(run: RunFolder, tmp_path: Path, rollmill: Run) -> None:
    """Episodes are in the store as they end; the same command again makes it complete."""
    out, gate = tmp_path / "s", tmp_path / "gate"
    words = (str(run.path), "--episodes", "20", "--workers", "1", "--envs", "4", "--trust-code")
    command = rollmill("eval", *words, "--record", "s", "sampling.rollout=2", f"env.args.gate={gate}")
    wait_until(lambda: list((out / "progress").glob("*.json")) and len(Store(out)) >= 1, what="recorded episodes")
    command.send(signal.SIGKILL)
    command.wait()
    command.assert_nothing_left()
    there = len(Store(out))
    assert there < 20
    progress = [json.loads(file.read_text()) for file in (out / "progress").glob("*.json")]
    assert [p["state"] for p in progress] == ["running"]
    gate.touch()
    again = rollmill("eval", *words, "--record", "s", "--json", "sampling.rollout=2", f"env.args.gate={gate}")
    assert again.wait() == 0, again.text
    metrics = json.loads(again.text.splitlines()[-1])
    recorded = in_order(all_episodes(out))
    assert sorted(np.float32(e.return_) for e in recorded) == sorted(np.float32(r) for r in metrics["returns"])


def test_episodes_of_a_vector_env_have_no_seeds_of_their_own(tmp_path: Path) -> None:
    words = ("env=vector_envs:Counter", "env.vector=true", "stop.batches=2", "recording=all")
    _, folder = train_here(tmp_path / "run", *SERIAL, *words)
    result = record(folder, tmp_path / "s", 5)
    for store in (folder.data, tmp_path / "s"):
        episodes = all_episodes(store).values()
        assert {episode.info.seed for episode in episodes} == {None}
        for episode in episodes:
            np.testing.assert_array_equal(np.diff(episode.obs["obs"][:, 2]), 1, "one episode, its steps in order")
    assert [len(e) for e in in_order(all_episodes(tmp_path / "s"))] == result.policy.lengths


# -- what info says ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def rooms_run(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    words = (*SERIAL, "env=rooms_env:Rooms", "stop.batches=2", "env.previous_action=true", "env.previous_reward=true")
    return train_here(tmp_path_factory.mktemp("rooms"), *words)[1]


def check_rooms(episode: Episode) -> None:
    """Every row holds what came with its observation, the first and the final one included."""
    infos, n = episode.infos, len(episode)
    assert infos["lives"].tolist() == [3 - k // 3 for k in range(n + 1)]
    assert infos["room"].tolist() == ["hall", *(f"Zimmer {k} ä" for k in range(1, n + 1))]
    assert infos["player/at"][1:].tolist() == [[k + 1, a] for k, a in enumerate(episode.actions.tolist())]
    assert np.isnan(infos["player/at"][0]).all(), "reset has not said it"


def test_all_of_info_is_saved(rooms_run: RunFolder, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    result = record(rooms_run, tmp_path / "s", 5, save_info=())
    with Store(tmp_path / "s") as store:
        episodes = [store.episode(i) for i in range(len(store))]
    assert len(episodes) == len(result.policy.rows) == 5
    assert {name for name in store.schema.names if name.startswith("info:")} == {
        *("info:lives", "info:room:text", "info:player/at")
    }
    for episode in episodes:
        check_rooms(episode)
        assert episode.obs["previous_reward"][1:, 0].tolist() == episode.rewards.tolist()
        assert episode.obs["previous_action"].argmax(1)[1:].tolist() == episode.actions.tolist()
        assert not episode.obs["previous_action"][0].any()
    assert "odd is left out" in caplog.text


def test_named_info_alone_is_saved_and_a_name_that_never_occurs_is_said(
    rooms_run: RunFolder, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    record(rooms_run, tmp_path / "s", 2, save_info=("room", "livs"))
    with Store(tmp_path / "s") as store:
        infos = store.episode(0).infos
    assert set(infos) == {"room", "livs"}
    assert np.isnan(infos["livs"]).all()
    assert "--save-info livs: did not occur in 200 steps" in caplog.text
    with pytest.raises(ConfigError, match="--save-info odd: its values are of no kind"):
        record(rooms_run, tmp_path / "t", 2, save_info=("odd",))
    with pytest.raises(ConfigError, match="info of toy_target says nothing that can be kept"):
        evaluate(
            "random",
            EvalOptions(2, record=True, record_dir=tmp_path / "u", save_info=(), overrides=("env=toy_target",)),
        )
