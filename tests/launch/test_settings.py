"""Settings of a launch, and the back ends that they name."""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest
from launching import experiment, launcher

from rollmill.core.config.load import load_config
from rollmill.core.errors import ConfigError, LaunchError
from rollmill.core.imports import import_object
from rollmill.launch.backends.base import BackEnd
from rollmill.launch.records import Submission
from rollmill.launch.settings import BACKENDS, LaunchSettings


def told(*words: str) -> LaunchSettings:
    return load_config(LaunchSettings, [], words)


@pytest.mark.parametrize("name", BACKENDS)
def test_every_back_end_resolves_and_is_given_the_settings_of_its_name(name: str) -> None:
    kind = import_object(BACKENDS[name], "launch.backend")
    promised = {what for what in vars(BackEnd) if not what.startswith("_")} | {"status"}
    assert promised <= set(dir(kind))
    asks = any(p.default is p.empty for p in inspect.signature(kind).parameters.values())
    assert hasattr(told(), name) == asks, "a field of LaunchSettings has the name of the line in BACKENDS"


def test_a_misspelt_back_end_gets_the_nearest_one_and_the_list() -> None:
    with pytest.raises(ConfigError, match=r"'local' \| 'slurm' .*got 'slrm'; did you mean 'slurm'"):
        told("backend=slrm")


@pytest.mark.parametrize(
    ("words", "at_once"),
    [
        ((), 1),
        (("local.gpus=[0,1]", "local.per_gpu=2"), 4),
        (("backend=slurm", "local.parallel=7"), 0),
        (("backend=slurm", "slurm.parallel=16"), 16),
        (("backend=ray", "ray.parallel=3"), 3),
        (("backend=ngc",), 0),
    ],
)
def test_runs_at_once_are_those_of_the_back_end_that_is_used(words: tuple[str, ...], at_once: int) -> None:
    assert told(*words).at_once == at_once


def test_a_run_that_was_handed_to_a_back_end_which_is_not_there_is_named(tmp_path: Path) -> None:
    made = launcher(tmp_path, experiment())
    made.records.write_submission("tests_s0", Submission(handle={"kind": "moon"}, count=1))
    with pytest.raises(LaunchError, match=r"handed to 'moon', and there is no such back end: local, slurm"):
        made.look()
