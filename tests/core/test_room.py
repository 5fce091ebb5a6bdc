"""What this machine cannot hold is refused before anything is started."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
from running import SERIAL, config_of, train_here

from rollmill.core import room
from rollmill.core.errors import ConfigError, MemoryFull
from rollmill.core.fields import ActionSpec, EnvSpec, Field
from rollmill.core.out_of_memory import memory_is_named
from rollmill.core.room import WORKER_BYTES, check_room
from rollmill.core.seeds import Seeds
from rollmill.envs.settings import EnvSettings
from rollmill.runs.settings.train import check
from rollmill.sampling import pool
from rollmill.sampling.sampler import SamplerPlan
from rollmill.sampling.settings import SamplingSettings

SPEC = EnvSpec("images", (Field("obs", "uint8", (1000,)),), ActionSpec("discrete", (2,)))


@pytest.fixture(autouse=True)
def _machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with 2 GB of free memory, where a process may open 1000 files."""
    monkeypatch.setattr(room, "available_memory", lambda: 2e9)
    monkeypatch.setattr(room.resource, "getrlimit", lambda _: (1000, 1000))


def test_memory() -> None:
    check_room(10, 2e9 - 10 * WORKER_BYTES, "so much")
    with pytest.raises(
        ConfigError, match=r"^so much: that takes 2\.1 GB of memory at least, and 2\.0 GB are free here$"
    ):
        check_room(10, 2e9 - 5 * WORKER_BYTES, "so much")


def test_open_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "available_memory", lambda: None)
    check_room(200, 1e15, "so much")
    with pytest.raises(ConfigError, match="1,264 open files, and 1,000 are allowed"):
        check_room(300, 0, "so much")


@pytest.mark.parametrize(
    "word",
    [
        "sampling.workers=100000",
        "sampling.envs_per_worker=1000000000",
        "sampling.rollout=1000000000",
        "sampling.spare_batches=1000000000",
        "learning.batch_size=100000000000000",
    ],
)
def test_settings_are_refused_before_the_env_is_known(tmp_path: Path, word: str) -> None:
    config = config_of(tmp_path, "env=toy_target", "sampling.mode=async", word)
    with pytest.raises(ConfigError, match=rf"{word}(, .*)?: that takes [\d,.]+ GB of memory at least"):
        check(config)


def plan(**settings: int) -> SamplerPlan:
    sampling = SamplingSettings(groups=1, **{"workers": 1, "envs_per_worker": 1, **settings})  # type: ignore[arg-type]
    return SamplerPlan(sampling, EnvSettings(), SPEC, Seeds(0), segments_per_batch=1)


def test_what_an_env_shows_counts() -> None:
    plan(rollout=1000)
    with pytest.raises(ConfigError, match=r"1 workers x 1,000 environments, 3 segments of 1,000 steps: .* 3\.2 GB"):
        plan(rollout=1000, envs_per_worker=1000)


def test_no_folder_is_left(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="GB of memory at least"):
        train_here(tmp_path, *SERIAL, "env=toy_target", "learning.batch_size=1000000000000")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("error", [MemoryError("no array"), OSError(12, "Cannot allocate memory")])
def test_memory_that_runs_out_is_named(error: Exception) -> None:
    with pytest.raises(MemoryFull, match=r"out of memory: .*\. Take less"), memory_is_named("Take less"):
        raise error
    with pytest.raises(PermissionError), memory_is_named("Take less"):
        raise PermissionError(13, "Permission denied")


def test_many_workers_are_not_started_in_silence(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool, "TELL_SECONDS", -1.0)
    with caplog.at_level(logging.INFO, logger="rollmill"):
        assert list(pool._told([1, 2])) == [1, 2]  # type: ignore[list-item, comparison-overlap]
    assert "1 of 2 workers are started" in caplog.text
