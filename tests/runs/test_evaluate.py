"""Evaluation: which episodes count, that figures repeat, and what is refused."""

import json
import os
import shutil
from dataclasses import asdict
from pathlib import Path

import pytest

from faulty_envs import Marker
from rollmill.core import tree_file
from rollmill.core.checkpoints import Checkpoint, Checkpoints
from rollmill.core.errors import CheckpointError, ConfigError
from rollmill.core.run_folder import RunFolder
from rollmill.runs.evaluate import EvalOptions, EvalResult, Score, evaluate, find_checkpoint, table
from rollmill.runs.observers import Observer
from rollmill.runs.online import OnlineRun
from running import SERIAL, saved_state, train_here


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """A short training on toy_target, only to be looked at."""
    return train_here(tmp_path_factory.mktemp("run"), *SERIAL, "env=toy_target", "stop.frames=300")[1]


@pytest.fixture
def own_run(run: RunFolder, tmp_path: Path) -> RunFolder:
    """A copy of it, to be damaged."""
    return RunFolder(shutil.copytree(run.path, tmp_path / "copy"))


def newest(run: RunFolder) -> Checkpoint:
    found = Checkpoints(run.checkpoints).newest()
    assert found is not None
    return found


def play(run: RunFolder, episodes: int = 8, workers: int = 1, **options: object) -> EvalResult:
    return evaluate(run.path, EvalOptions(episodes=episodes, workers=workers, **options))  # type: ignore[arg-type]


# -- the same again ----------------------------------------------------------------------------------------


def test_the_same_seed_gives_the_same_figures(run: RunFolder) -> None:
    one, two = (play(run, 12, workers=2, envs_per_worker=3, random=True).to_dict() for _ in range(2))
    assert one == two
    other = play(run, 12, workers=2, envs_per_worker=3, seed=2).to_dict()
    assert other["returns"] != one["returns"]


def test_the_result_says_what_was_evaluated(run: RunFolder) -> None:
    result = play(run, 3, overrides=("env.args.length=4",))
    assert result.checkpoint == str(newest(run).path)
    assert result.frames == newest(run).frames
    assert result.env == "toy_target"
    assert result.options == asdict(EvalOptions(episodes=3, workers=1, overrides=("env.args.length=4",)))
    json.dumps(result.to_dict(), allow_nan=False)


def test_a_deterministic_policy_takes_no_chances(run: RunFolder) -> None:
    """Asked again about the same numbers it answers the same: all agents of all episodes agree on each of them."""
    one, two = (play(run, deterministic=True) for _ in range(2))
    assert one.policy == two.policy
    assert one.policy != play(run).policy


def test_a_random_policy_beside_it_changes_nothing(run: RunFolder) -> None:
    alone, both = play(run), play(run, random=True)
    assert alone.random is None
    assert both.random is not None
    assert both.policy == alone.policy
    assert both.random != both.policy
    assert both.to_dict()["random"]["episodes"] == 8  # type: ignore[index]
    assert "\nrandom   return" in table(both)


# -- which episodes count ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("agents", "episodes", "quota"),
    [
        (1, 11, [3, 3, 3, 2]),  # 2 workers with 2 envs each
        (1, 3, [1, 1, 1, 0]),  # no more lanes than needed, but workers are all alike
        (2, 7, [1, 1, 1, 1, 1, 1, 1, 0]),
    ],
)
def test_short_episodes_do_not_count_more_often(tmp_path: Path, agents: int, episodes: int, quota: list[int]) -> None:
    """Every lane plays its share from the first episode on, whoever is done first."""
    words = ("env=faulty_envs:Marker", f"env.args={{agents: {agents}}}", f"learning.batch_size={32 * agents}")
    _, folder = train_here(tmp_path, *SERIAL, *words, "stop.batches=1")
    result = play(folder, episodes, workers=2, envs_per_worker=2)
    expected = [
        Marker.length(lane // agents, episode, lane % agents) for lane, n in enumerate(quota) for episode in range(n)
    ]
    assert result.policy.lengths == expected
    assert len(set(expected)) > 2  # or the order of ending would not matter


def test_progress_is_told_up_to_the_end(run: RunFolder) -> None:
    told: list[tuple[int, int]] = []
    evaluate(run.path, EvalOptions(episodes=9, workers=1), lambda done, wanted: told.append((done, wanted)))
    assert told == sorted(set(told))
    assert told[-1] == (9, 9)


def test_a_single_episode_has_no_standard_error(run: RunFolder) -> None:
    result = play(run, 1)
    summary = result.policy.summary()
    assert summary["standard_error"] is None
    assert summary["mean"] == summary["median"] == summary["min"] == summary["max"] == result.policy.returns[0]
    assert json.loads(json.dumps(result.to_dict(), allow_nan=False))["standard_error"] is None
    assert "standard error" not in table(result)


def test_the_summary_of_known_returns() -> None:
    assert Score([1.0, 2.0, 6.0, 7.0], [2, 4, 4, 2]).summary() == {
        "episodes": 4,
        "mean": 4.0,
        "standard_error": pytest.approx((26 / 3 / 4) ** 0.5),
        "median": 4.0,
        "min": 1.0,
        "max": 7.0,
        "mean_length": 3.0,
    }


# -- other settings ----------------------------------------------------------------------------------------


def test_overrides_change_the_environment(run: RunFolder) -> None:
    assert play(run, 4, overrides=("env.args.length=3",)).policy.lengths == [3] * 4


@pytest.mark.parametrize(
    ("override", "error", "message"),
    [
        ("env=toy_taget", ConfigError, "did you mean 'toy_target'"),
        ("env.args.lenth=3", ConfigError, "did you mean 'length'"),
        ("learning.gama=1", ConfigError, "did you mean 'learning.gamma'"),
        ("learning.device=cuda:99", ConfigError, "usable GPUs"),
        ("model.mlp=[32]", CheckpointError, "do not fit this network"),
    ],
)
def test_overrides_that_are_wrong(run: RunFolder, override: str, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        play(run, overrides=(override,))


@pytest.mark.parametrize("options", [{"episodes": 0}, {"workers": -1}, {"envs_per_worker": 0}, {"seed": -1}])
def test_options_that_are_wrong(options: dict[str, int]) -> None:
    with pytest.raises(ConfigError, match=f"--{next(iter(options)).replace('_', '-')}"):
        evaluate(Path("never looked at"), EvalOptions(**options))  # type: ignore[arg-type]


# -- which checkpoint --------------------------------------------------------------------------------------


def test_a_file_is_taken_as_it_is(own_run: RunFolder) -> None:
    path = newest(own_run).path
    Checkpoints(own_run.checkpoints, keep_last=0).save(saved_state(own_run), 10_000, -5.0)
    assert find_checkpoint(own_run.path, best=False).frames == 10_000
    assert find_checkpoint(path, best=False).path == path


def test_the_best_is_not_always_the_newest(own_run: RunFolder) -> None:
    path = newest(own_run).path
    Checkpoints(own_run.checkpoints, keep_last=0).save(saved_state(own_run), 10_000, -5.0)
    assert play(own_run, 2, best=True).checkpoint == str(path)
    assert find_checkpoint(own_run.path, best=False).metric == -5.0


class StopAtOnce(Observer):
    def on_start(self, run: OnlineRun) -> None:
        run.stop("told to")


def test_no_known_best(tmp_path: Path) -> None:
    _, folder = train_here(tmp_path, *SERIAL, "env=toy_target", observers=[StopAtOnce()])
    with pytest.raises(CheckpointError, match="no checkpoint has a known return; leave out --best"):
        find_checkpoint(folder.path, best=True)
    assert find_checkpoint(folder.path, best=False).metric is None


def test_paths_that_lead_nowhere(tmp_path: Path, run: RunFolder) -> None:
    for path in (tmp_path / "missing", tmp_path, run.checkpoints):
        with pytest.raises(CheckpointError, match="neither a checkpoint nor a run folder with checkpoints") as failure:
            evaluate(path, EvalOptions())
        assert str(path) in str(failure.value)


def test_a_run_without_a_checkpoint(own_run: RunFolder) -> None:
    newest(own_run).path.unlink()
    with pytest.raises(CheckpointError, match=f"{own_run.path}: no checkpoint yet"):
        evaluate(own_run.path, EvalOptions())


def test_a_broken_checkpoint_is_named_and_no_older_one_is_taken(own_run: RunFolder) -> None:
    good = newest(own_run).path
    torn = Checkpoints(own_run.checkpoints).save(saved_state(own_run), 10_000, 1.0)
    os.truncate(torn, torn.stat().st_size // 2)
    with pytest.raises(CheckpointError) as failure:
        evaluate(own_run.path, EvalOptions())
    assert str(torn) in str(failure.value)
    assert "can be given by their path" in str(failure.value)
    assert evaluate(good, EvalOptions(episodes=1, workers=1)).checkpoint == str(good)


@pytest.mark.parametrize("state", [{"kind": "offline"}, {}, 3], ids=str)
def test_a_checkpoint_of_something_else(tmp_path: Path, state: object) -> None:
    path = tmp_path / "other.ckpt"
    tree_file.save_tree(path, {"frames": 1, "metric": None, "state": state})
    with pytest.raises(CheckpointError, match=r"other\.ckpt: not a checkpoint of an online run"):
        evaluate(path, EvalOptions())
    with pytest.raises(CheckpointError, match=r"other\.ckpt: not a checkpoint of an online run"):
        train_here(tmp_path, *SERIAL, "env=toy_target", restore=path)
    assert not (tmp_path / "x").exists()
