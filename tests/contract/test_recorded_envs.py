"""What ``env`` adds to an environment is there again when a policy that was fitted to its recording is judged."""

from dataclasses import replace
from pathlib import Path

import pytest
from collecting import collect_here
from running import SERIAL, train_here

from rollmill.core.config.load import load_config
from rollmill.core.errors import ConfigError
from rollmill.runs.evaluate.options import EvalOptions
from rollmill.runs.evaluate.run import evaluate_all
from rollmill.runs.lifecycle import Request
from rollmill.runs.offline.run import OfflineOutcome, train_offline
from rollmill.runs.policies.load import load_policy
from rollmill.runs.settings.offline import OfflineConfig
from rollmill.store.format.schema import STORE_FILE, load_schema, schema_text

ADDED = {
    "nothing": ("env=toy_target",),
    "previous action": ("env=toy_target", "env.previous_action=true"),
    "previous reward": ("env=toy_target", "env.previous_reward=true"),
    "memory": ("env=toy_memory", "model.memory=gru"),
    "tasks": ("env.tasks=[toy_target, toy_memory]",),
    "one task": ("env.tasks=[toy_target, toy_memory]", "env.task=toy_target"),
    "max_episode_steps": ("env=toy_target", "env.max_episode_steps=3"),
    "variables": ("env=variable_env:VariableEnv", "env.variables.level=0.5"),
    "own process": ("env=toy_target", "env.own_process=true"),
    "all": (
        "env.tasks=[toy_target, toy_memory]",
        "env.previous_action=true",
        "env.previous_reward=true",
        "env.max_episode_steps=3",
        "model.memory=gru",
    ),
}
SMALL = (
    "run.name=offline",
    "model.context=4",
    "model.size=8",
    "model.layers=1",
    "model.mlp=[8]",
    "fit.batch_size=4",
    "fit.steps=2",
    "fit.warmup_steps=1",
    "fit.threads=1",
    "evaluation.episodes=2",
    "evaluation.final_episodes=2",
    "evaluation.workers=1",
    "evaluation.envs=2",
    "report.tensorboard=false",
    "checkpoints.min_free_mb=1",
)


def fit(folder: Path, store: Path, *words: str) -> OfflineOutcome:
    place = (f"run.dir={folder}", "run.experiment=x", f"store={store}")
    config = load_config(OfflineConfig, [], [*place, *SMALL, *words])
    return train_offline(config, Request(command=("test",), console="off", trust_code=True))


@pytest.mark.parametrize(("added", "algorithm"), [*((name, "bc") for name in ADDED), ("tasks", "dt"), ("all", "dt")])
def test_a_recording_is_learnt_from_and_judged_in_the_environment_it_was_made_in(
    added: str, algorithm: str, tmp_path: Path
) -> None:
    words = ADDED[added]
    _, run = train_here(tmp_path, "recording=all", "stop.frames=256", *SERIAL, *words)
    outcome = fit(tmp_path, run.path, f"algorithm={algorithm}")
    assert outcome.results is not None
    (result, *_) = evaluate_all([outcome.folder], EvalOptions(episodes=2, workers=1, trust_code=True))
    env = load_policy(outcome.folder, trust_code=True).require_env()
    made = load_policy(run.path, trust_code=True).require_env()
    assert env == made
    lengths = {row.length for row in result.policy.rows}
    assert lengths == {3} if env.max_episode_steps else lengths


def test_a_collection_and_a_recorded_evaluation_say_how_their_environment_is_made_again(tmp_path: Path) -> None:
    words = ("env.previous_action=true", "env.max_episode_steps=3")
    collect_here(tmp_path / "collected", *words, env="toy_target", episodes=4, seed=0)
    _, run = train_here(tmp_path, "stop.frames=64", *SERIAL, "env=toy_target", *words)
    evaluate_all([run.path], EvalOptions(episodes=4, workers=1, record=True, record_dir=tmp_path / "played"))
    for name in ("collected", "played"):
        outcome = fit(tmp_path, tmp_path / name, f"run.name={name}")
        env = load_policy(outcome.folder).require_env()
        assert (env.previous_action, env.max_episode_steps) == (True, 3)


@pytest.fixture
def shown_before(tmp_path: Path) -> Path:
    """Data of an environment that showed the last action and its reward."""
    words = ("env.previous_action=true", "env.previous_reward=true")
    collect_here(tmp_path / "data", *words, env="toy_target", episodes=4, seed=0)
    return tmp_path / "data"


def test_of_stores_of_version_0_1_the_fields_tell_that_they_show_what_was_done_before(
    shown_before: Path, tmp_path: Path
) -> None:
    old = schema_text(replace(load_schema(shown_before), env_settings=None))
    (shown_before / STORE_FILE).write_text(old)
    env = load_policy(fit(tmp_path, shown_before, "algorithm=bc").folder).require_env()
    assert (env.previous_action, env.previous_reward) == (True, True)


def test_another_environment_shows_what_was_done_before_like_that_of_the_data(
    shown_before: Path, tmp_path: Path
) -> None:
    words = ("algorithm=bc", "env=toy_target", "env.max_episode_steps=2")
    outcome = fit(tmp_path, shown_before, *words)
    (result,) = evaluate_all([outcome.folder], EvalOptions(episodes=2, workers=1))
    assert {row.length for row in result.policy.rows} == {2}
    one_line = r"has an observation 'previous_action', which toy_target does not show; set env.previous_action=true"
    with pytest.raises(ConfigError, match=one_line):
        evaluate_all([outcome.folder], EvalOptions(episodes=2, workers=1, overrides=("env.previous_action=false",)))
