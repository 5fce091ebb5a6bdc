"""Evaluation: which episodes count, that metrics repeat, and what is refused."""

import json
import os
import shutil
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
from faulty_envs import Marker
from running import SERIAL, saved_state, train_here

from rollmill.core import tree_file
from rollmill.core.checkpoints import Checkpoint, Checkpoints
from rollmill.core.errors import CheckpointError, ConfigError
from rollmill.core.run_folder import RunFolder
from rollmill.runs.evaluate import setup
from rollmill.runs.evaluate.options import EvalOptions
from rollmill.runs.evaluate.play import Metrics, Pace
from rollmill.runs.evaluate.results import EpisodeRow, EvalResult, Score, document, table
from rollmill.runs.evaluate.run import evaluate, evaluate_all
from rollmill.runs.policies.load import load_policy
from rollmill.runs.train.loop import OnlineRun
from rollmill.runs.train.observers import Observer
from rollmill.store.reader import Store


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


def test_statistics_of_all_agents_count() -> None:
    """Two agents' points add up to nothing; what is told of the episode as a whole is there as well."""
    policy = load_policy("random", overrides=("env=duel_envs:Shaped", "env.args.more=3"))
    means = evaluate(policy, EvalOptions(episodes=9, workers=1)).policy.own_means()
    assert means["points"] == 0
    assert 4 <= means["rounds"] <= 7


# -- the same again ----------------------------------------------------------------------------------------


def test_the_same_seed_gives_the_same_metrics(run: RunFolder) -> None:
    one, two = (play(run, 12, workers=2, envs=6, random=True).to_dict() for _ in range(2))
    assert one == two
    other = play(run, 12, workers=2, envs=6, seed=2).to_dict()
    assert other["returns"] != one["returns"]
    assert len(set(one["seeds"])) == 12


def test_metrics_do_not_depend_on_the_number_of_workers(run: RunFolder) -> None:
    """Three workers for seven environments: two more are made than are asked about."""
    alone, three = (play(run, 23, workers=n, envs=7, random=True) for n in (1, 3))
    assert alone.policy == three.policy
    assert alone.random == three.random
    assert len({row.episode_return for row in alone.policy.rows}) > 1


def test_the_result_says_what_was_evaluated(run: RunFolder) -> None:
    result = play(run, 3, overrides=("env.args.length=4",))
    assert result.checkpoint == str(newest(run).path)
    assert result.frames == newest(run).step
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
    assert "\nrandom   return" in table([both])


# -- which episodes count ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("agents", "episodes", "envs"),
    [
        (1, 11, 4),  # 2 workers with 2 envs each
        (1, 3, 3),  # no more lanes than needed, but workers are all alike
        (2, 7, 4),
    ],
)
def test_short_episodes_do_not_count_more_often(tmp_path: Path, agents: int, episodes: int, envs: int) -> None:
    """Every env plays its share from the first episode on, whoever is done first."""
    words = ("env=faulty_envs:Marker", f"env.args={{agents: {agents}}}", f"learning.batch_size={32 * agents}")
    _, folder = train_here(tmp_path, *SERIAL, *words, "stop.batches=1")
    result = play(folder, episodes, workers=2, envs=4, trust_code=True)
    expected = [Marker.length(n % envs, n // envs, agent) for n in range(episodes) for agent in range(agents)]
    assert result.policy.lengths == expected
    assert [row.episode for row in result.policy.rows] == [n for n in range(episodes) for _ in range(agents)]
    assert result.policy.summary()["episodes"] == episodes
    assert len(result.policy.by_agent()) == (agents if agents > 1 else 0)
    assert len(set(expected)) > 2  # or the order of ending would not matter


def test_progress_is_told_up_to_the_end(run: RunFolder) -> None:
    told: list[tuple[int, int]] = []
    evaluate(run.path, EvalOptions(episodes=9, workers=1), lambda f: told.append((f.done, f.wanted)))
    assert told == sorted(told)
    assert told[0][0] == 0, "before the first episode has ended"
    assert told[-1] == (9, 9)


@pytest.mark.parametrize("record", [False, True])
def test_the_environments_own_metrics_are_told(tmp_path: Path, record: bool) -> None:
    """Each episode of this environment tells a figure that follows from its seed."""
    _, folder = train_here(tmp_path, *SERIAL, "env=telling_env:Telling", "stop.batches=1")
    options = EvalOptions(episodes=9, workers=2, envs=4, random=True, record=record, trust_code=True)
    result = evaluate(folder.path, options)
    assert {(row.episode, row.agent): row.seed for row in result.policy.rows} == {
        key: round(7 * own["figure"]) for key, own in result.policy.stats.items()
    }
    mean = np.mean([row.seed / 7 for row in result.policy.rows if row.seed is not None])
    found = document([result])
    assert found["stats"] == {"figure": pytest.approx(mean)}
    assert found["random"]["stats"] == found["stats"], "the same seeds"
    assert f"; figure {mean:.4g}" in table([result])
    if record:
        with Store(Path(result.record or "")) as store:
            assert len(store) == 18
            assert all(store.episode(k).stats["figure"] > 0 for k in range(18))


def test_the_rest_takes_as_long_as_the_pace_so_far_says() -> None:
    now = [100.0]
    pace = Pace(lambda: now[0])
    assert pace.left(Metrics("a", 0, 10, "episodes", None)) is None
    now[0] = 104.0
    assert pace.left(Metrics("a", 2, 10, "episodes", None)) == 16.0
    assert pace.left(Metrics("b", 0, 10, "episodes", None)) is None, "another policy begins anew"


def test_a_single_episode_has_no_standard_error(run: RunFolder) -> None:
    result = play(run, 1)
    summary = result.policy.summary()
    assert summary["standard_error"] is None
    assert summary["mean"] == summary["median"] == summary["min"] == summary["max"] == result.policy.returns[0]
    assert json.loads(json.dumps(result.to_dict(), allow_nan=False))["standard_error"] is None
    assert "standard error" not in table([result])


def test_the_summary_of_known_returns() -> None:
    assert score(*zip([1.0, 2.0, 6.0, 7.0], [2, 4, 4, 2])).summary() == {
        "episodes": 4,
        "mean": 4.0,
        "standard_error": pytest.approx((26 / 3 / 4) ** 0.5),
        "median": 4.0,
        "min": 1.0,
        "max": 7.0,
        "mean_length": 3.0,
        "min_length": 2,
        "max_length": 4,
        "steps": 12,
        "lost": 0,
    }


def score(*episodes: tuple[float, int], agents: int = 1) -> Score:
    return Score([EpisodeRow(n // agents, n % agents, 0, *pair, True) for n, pair in enumerate(episodes)])


def test_agents_of_an_episode_count_as_one() -> None:
    """They are not independent: four rows of two episodes have the standard error of two values."""
    found = score((1.0, 5), (3.0, 5), (5.0, 5), (7.0, 5), agents=2)
    summary = found.summary()
    assert (summary["episodes"], summary["mean"], summary["min"], summary["max"]) == (2, 4.0, 2.0, 6.0)
    assert summary["standard_error"] == pytest.approx(2.0)
    assert found.by_agent() == {0: 3.0, 1: 5.0}


# -- other settings ----------------------------------------------------------------------------------------


def test_overrides_change_the_environment(run: RunFolder) -> None:
    assert play(run, 4, overrides=("env.args.length=3",)).policy.lengths == [3] * 4


def test_another_environment_with_the_same_spaces_will_do(run: RunFolder) -> None:
    """The name and the frames of a step may differ."""
    result = play(run, 2, overrides=("env=rollmill.envs.toy:Target", "env.args.length=2"))
    assert (result.env, result.policy.lengths) == ("rollmill.envs.toy:Target", [2, 2])


@pytest.mark.parametrize(
    ("override", "error", "message"),
    [
        ("env=toy_taget", ConfigError, "did you mean 'toy_target'"),
        ("env.args.lenth=3", ConfigError, "did you mean 'length'"),
        ("learning.gama=1", ConfigError, "did you mean 'learning.gamma'"),
        ("learning.device=cuda:99", ConfigError, "usable GPUs"),
        ("model.mlp=[32]", CheckpointError, "do not fit this network"),
        ("env.policies=[0, 1]", ConfigError, r"env.policies=\[0, 1\] does not fit: toy_target has 1 agents"),
        ("env=toy_image", ConfigError, "trained in toy_target, .* cannot play in toy_image, whose observations differ"),
        ("env.args.agents=2", ConfigError, r"1 agent\); .* whose agents differ: .*2 agents"),
    ],
)
def test_overrides_that_are_wrong(run: RunFolder, override: str, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        play(run, overrides=(override,))


# -- by steps, several at once -----------------------------------------------------------------------------


def test_steps_take_episodes_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    """Not in the order of ending, which would prefer short ones; and the same for any number of workers."""
    _, folder = train_here(tmp_path, *SERIAL, "env=faulty_envs:Marker", "stop.batches=1")
    lengths = [Marker.length(n % 4, n // 4) for n in range(50)]
    enough = next(n for n in range(50) if sum(lengths[:n]) >= 60)
    for workers in (1, 3):
        found = evaluate(folder.path, EvalOptions(steps=60, workers=workers, envs=4, trust_code=True)).policy
        assert found.lengths == lengths[:enough]
        assert [row.episode for row in found.rows] == list(range(enough))


def test_several_checkpoints_play_the_same_episodes(own_run: RunFolder) -> None:
    untrained, first = (checkpoint.path for checkpoint in Checkpoints(own_run.checkpoints).list())
    second = Checkpoints(own_run.checkpoints, keep_last=0).save(saved_state(own_run), 10_000, -5.0)
    options = EvalOptions(episodes=4, workers=1, random=True, all_checkpoints=True)
    results = evaluate_all([own_run.path], options)
    assert [result.checkpoint for result in results] == [str(untrained), str(first), str(second)]
    assert results[1].policy == results[2].policy  # the same weights under another name
    assert results[0].random == results[1].random == results[2].random
    pattern = evaluate_all([str(own_run.checkpoints / "frames-*.ckpt")], EvalOptions(episodes=4, workers=1))
    assert [result.policy for result in pattern] == [result.policy for result in results]
    text = table(results).splitlines()
    assert len(text) == 6
    assert text[4].split()[0] == f"{own_run.path.name}/{second.stem}"
    assert text[5].split()[0] == "random"
    with pytest.raises(ConfigError, match=r"nothing\*: matches nothing"):
        evaluate_all([str(own_run.path / "nothing*")], EvalOptions())
    with pytest.raises(ConfigError, match="matches neither a checkpoint nor a run folder"):
        evaluate_all([str(own_run.path / "checkpoint[s]")], EvalOptions())


# -- which checkpoint --------------------------------------------------------------------------------------


def test_a_file_is_taken_as_it_is(own_run: RunFolder) -> None:
    path = newest(own_run).path
    Checkpoints(own_run.checkpoints, keep_last=0).save(saved_state(own_run), 10_000, -5.0)
    assert load_policy(own_run.path).frames == 10_000
    assert load_policy(path).path == path


def test_the_best_is_not_always_the_newest(own_run: RunFolder) -> None:
    path = newest(own_run).path
    Checkpoints(own_run.checkpoints, keep_last=0).save(saved_state(own_run), 10_000, -5.0)
    assert play(own_run, 2, best=True).checkpoint == str(path)
    assert load_policy(own_run.path).frames == 10_000


class StopAtOnce(Observer):
    def on_start(self, run: OnlineRun) -> None:
        run.stop("told to")


def test_no_known_best(tmp_path: Path) -> None:
    _, folder = train_here(tmp_path, *SERIAL, "env=toy_target", observers=[StopAtOnce()])
    with pytest.raises(CheckpointError, match=r"no checkpoint has a known return, or .*; leave out --best"):
        load_policy(folder.path, best=True)
    assert load_policy(folder.path).version == 0


def test_paths_that_lead_nowhere(tmp_path: Path, run: RunFolder) -> None:
    for path in (tmp_path / "missing", tmp_path, run.checkpoints):
        with pytest.raises(CheckpointError, match="neither a checkpoint nor a run folder with checkpoints") as failure:
            evaluate(path, EvalOptions())
        assert str(path) in str(failure.value)
    with pytest.raises(CheckpointError, match="File name too long"):
        evaluate(tmp_path / ("x" * 300), EvalOptions())


def test_a_run_without_a_checkpoint(own_run: RunFolder) -> None:
    for checkpoint in Checkpoints(own_run.checkpoints).list():
        checkpoint.path.unlink()
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
    with pytest.raises(CheckpointError, match=r"other\.ckpt: (not a checkpoint of an online run|.*missing)"):
        evaluate(path, EvalOptions())
    with pytest.raises(CheckpointError, match=r"other\.ckpt: not a checkpoint of an online run"):
        train_here(tmp_path, *SERIAL, "env=toy_target", restore=path)
    assert not (tmp_path / "x").exists()


# -- in this process, and with several seeds ---------------------------------------------------------------


def test_in_this_process_it_plays_the_same(run: RunFolder) -> None:
    assert play(run, serial=True, envs=4).policy == play(run, envs=4).policy


def test_in_this_process_environments_are_here(tmp_path: Path) -> None:
    """The class counts its instances in this very interpreter."""
    import rooms_env

    class Counted(rooms_env.Rooms):
        made = 0

        def __init__(self) -> None:
            Counted.made += 1

    rooms_env.Counted = Counted  # type: ignore[attr-defined]
    options = EvalOptions(3, envs=3, overrides=("env=rooms_env:Counted",))
    evaluate("random", replace(options, serial=True))
    assert Counted.made == 4, "one to look at, three to play"
    with pytest.raises(ConfigError, match="--serial and --workers 2"):
        evaluate("random", replace(options, serial=True, workers=2))


def test_episodes_of_a_vectorised_environment_need_not_fit_the_cores(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ("env=CartPole-v1", "env.vector=true", *SERIAL, "stop.frames=64")
    _, folder = train_here(tmp_path, *words)
    monkeypatch.setattr(setup, "default_workers", lambda: 2)
    assert evaluate(folder.path, EvalOptions(episodes=3)).policy.summary()["episodes"] == 3
    with pytest.raises(ConfigError, match="3 environments cannot be shared out evenly to --workers 2"):
        evaluate(folder.path, EvalOptions(episodes=3, workers=2))


def test_several_seeds_are_each_played_as_alone(run: RunFolder) -> None:
    options = EvalOptions(episodes=6, workers=1, envs=3, seeds=(3, 5), random=True)
    three, five = evaluate_all([run.path], options)
    assert (three.seed, five.seed) == (3, 5)
    for result in (three, five):
        alone = play(run, 6, envs=3, seed=result.seed, random=True)
        assert result.policy == alone.policy
        assert result.random == alone.random
    (over,) = document([three, five])["over_seeds"]
    means = [three.mean_return, five.mean_return]
    assert over["seeds"] == [3, 5]
    assert over["mean"] == pytest.approx(np.mean(means))
    assert over["standard_error"] == pytest.approx(np.std(means, ddof=1) / np.sqrt(2))
    text = table([three, five])
    assert "mean return of 2 seeds" in text
    assert "random, seed 3" in text
    assert "random, seed 5" in text


def test_rows_of_several_seeds_stand_in_one_file(run: RunFolder, tmp_path: Path) -> None:
    evaluate_all([run.path], EvalOptions(episodes=4, workers=1, envs=2, seeds=(1, 2), csv=tmp_path / "e.csv"))
    rows = [line.split(",") for line in (tmp_path / "e.csv").read_text().splitlines()[1:]]
    assert [row[2] for row in rows].count("policy-s1") == [row[2] for row in rows].count("policy-s2") > 0
    assert len({row[5] for row in rows}) == len({row[3] for row in rows}) * 2, "other seeds of the environment"


def test_recorded_seeds_are_episodes_of_their_own(run: RunFolder, tmp_path: Path) -> None:
    evaluate_all([run.path], EvalOptions(3, workers=1, envs=3, seeds=(1, 2), record=True, record_dir=tmp_path / "s"))
    with Store(tmp_path / "s") as store:
        agents = store.schema.env.agents
        assert len(store) == 6 * agents
