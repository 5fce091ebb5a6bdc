"""Which tasks there are, and which environment of a run plays which."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from rollmill.core.errors import ConfigError
from rollmill.envs.code_words import code_words
from rollmill.envs.make import EnvInstance, check_env_settings, make_env
from rollmill.envs.settings import EnvSettings
from rollmill.envs.tasks.named import ATARI, DMLAB30, SUITES
from rollmill.envs.tasks.suite import task_name, task_number, tasks_of

OWN: tuple[Any, ...] = (
    {"name": "short", "id": "toy_target", "args": {"length": 5}, "random": 1.25, "reference": 5},
    {"id": "toy_masked", "max_episode_steps": 3},
    "toy_coin",
)


def test_a_single_environment_has_no_tasks() -> None:
    assert tasks_of(EnvSettings(id="toy_target")) == ()
    assert task_name(EnvSettings(id="toy_target"), EnvInstance(index=3)) == ""


def test_a_suite_is_named_like_an_environment_or_in_a_list() -> None:
    by_id, by_list = EnvSettings(id="minigrid_five"), EnvSettings(tasks=("minigrid_five",))
    assert tasks_of(by_id) == tasks_of(by_list)
    assert by_list.id == "minigrid_five"
    assert [task.name for task in tasks_of(by_id)][:2] == ["empty", "door_key"]


def test_a_list_may_mix_suites_names_and_mappings() -> None:
    settings = EnvSettings(tasks=(*OWN, "toy_pair"), args={"seed": 1})
    tasks = tasks_of(settings)
    assert [task.name for task in tasks] == ["short", "toy_masked", "toy_coin", "small", "large"]
    assert settings.id == "tasks"
    first, second = (task.settings(settings) for task in tasks[:2])
    assert (first.id, first.args, first.tasks) == ("toy_target", {"seed": 1, "length": 5}, ())
    assert second.max_episode_steps == 3


@pytest.mark.parametrize(
    ("tasks", "words"),
    [
        (("toy_target", "toy_target"), "toy_target stands there twice"),
        (({"id": "toy_target", "arg": {}},), "no 'arg'"),
        (({"name": "x"},), "names no environment"),
        (({"id": "toy_target", "random": 1, "reference": 1},), "no score between them"),
    ],
)
def test_nonsense_is_refused(tasks: tuple[Any, ...], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        tasks_of(EnvSettings(tasks=tasks))


def test_arguments_of_every_task_are_checked() -> None:
    with pytest.raises(ConfigError, match=r"env.args.steps_each: toy_target"):
        check_env_settings(EnvSettings(tasks=({"id": "toy_target", "args": {"steps_each": 1}},)))


def test_environments_share_out_the_tasks() -> None:
    settings = EnvSettings(tasks=OWN)
    assert [task_number(settings, EnvInstance(index=i)) for i in range(7)] == [0, 1, 2, 0, 1, 2, 0]
    by_worker = replace(settings, task_spread="worker")
    assert [task_number(by_worker, EnvInstance(index=i, worker=i // 2)) for i in range(6)] == [0, 0, 1, 1, 2, 2]
    one = replace(settings, task="toy_coin")
    assert {task_name(one, EnvInstance(index=i)) for i in range(4)} == {"toy_coin"}
    with pytest.raises(ConfigError, match=r"env.task=toy_coim: no such task.*toy_coin"):
        tasks_of(replace(settings, task="toy_coim"))


@pytest.mark.parametrize("name", SUITES)
def test_named_suites_are_whole(name: str) -> None:
    settings = EnvSettings(id=name)
    tasks = tasks_of(settings)
    assert all(task.random is not None and task.reference is not None for task in tasks)
    assert code_words(settings) == {}
    check_env_settings(settings)


def test_the_tables_have_all_games_and_levels() -> None:
    assert (len(ATARI), len(DMLAB30)) == (57, 30)
    assert len(tasks_of(EnvSettings(id="dmlab30_test"))) == 30


def test_code_in_a_task_counts_as_code() -> None:
    found = code_words(EnvSettings(tasks=("toy_target", {"id": "os:system", "args": {"command": "true"}})))
    assert list(found) == [("tasks",)]
    harmless = EnvSettings(tasks=("doom_basic",), args={"scenario": "../evil.cfg"})
    assert ("args", "scenario") in code_words(harmless)


def test_the_suite_of_a_run_is_what_the_environment_is_built_from() -> None:
    env = make_env(EnvSettings(id="toy_pair"), EnvInstance(index=1))
    assert env.spec.name == "toy_pair"
    assert env.spec.tasks == 2
