"""Settings that contradict each other, the environment or the machine are refused, with what to do."""

import sys
from pathlib import Path

import pytest
import torch
from running import SERIAL, config_of, train_here

from rollmill.core.errors import ConfigError, MissingExtraError
from rollmill.core.fields import EnvSpec
from rollmill.envs.make import make_env
from rollmill.envs.settings import EnvSettings
from rollmill.optim.device import choose_device
from rollmill.runs.settings.train import TrainConfig, check, segments_per_batch


def spec_of(name: str) -> EnvSpec:
    return make_env(EnvSettings(id=name)).spec


def config(*overrides: str) -> TrainConfig:
    """8 steps of 2 lanes: a segment has 16 rows."""
    return config_of(Path("nowhere"), *overrides)


# -- batches and segments ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("overrides", "env", "segments"),
    [
        ("learning.batch_size=16", "toy_target", 1),
        ("learning.batch_size=96", "toy_target", 6),
        ("learning.batch_size=96", "toy_agents", 3),
        ("learning.batch_size=96 sampling.groups=4", "toy_target", 12),
    ],
)
def test_segments_of_a_batch(overrides: str, env: str, segments: int) -> None:
    settings = config(*overrides.split())
    check(settings)
    assert segments_per_batch(settings, spec_of(env)) == segments


@pytest.mark.parametrize(("size", "near"), [(33, "32, 48"), (17, "16, 32"), (15, "16"), (1, "16"), (1000, "992, 1008")])
def test_a_batch_that_is_no_whole_number_of_segments(size: int, near: str) -> None:
    """Refused before anything starts; the sizes that are named are good ones."""
    message = rf"batch_size={size} is not a multiple of a segment's 16 rows .*rollout=8 x 2 lanes.*; near: {near}$"
    with pytest.raises(ConfigError, match=message):
        check(config(f"learning.batch_size={size}"))
    for good in near.split(", "):
        check(config(f"learning.batch_size={good}"))


def test_several_agents_make_larger_segments() -> None:
    settings = config("learning.batch_size=48")
    check(settings)
    with pytest.raises(ConfigError, match=r"a segment's 32 rows .*8 x 4 lanes.*; near: 32, 64$"):
        segments_per_batch(settings, spec_of("toy_agents"))


def test_a_batch_that_does_not_fit_creates_no_folder(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="near: 32, 48"):
        train_here(tmp_path, *SERIAL, "env=toy_target", "learning.batch_size=33")
    assert list(tmp_path.iterdir()) == []


# -- recurrence --------------------------------------------------------------------------------------------


def test_recurrence_must_divide_the_rollout() -> None:
    with pytest.raises(ConfigError, match=r"learning\.recurrence=3 must divide sampling\.rollout=8"):
        check(config("learning.recurrence=3", "model.memory=gru"))
    check(config("learning.recurrence=4", "model.memory=gru"))


def test_recurrence_needs_something_that_remembers() -> None:
    with pytest.raises(ConfigError, match=r"model\.memory=none has nothing to recur"):
        check(config("learning.recurrence=4"))
    check(config("learning.recurrence=4", "model.custom=some.module:Net"))  # may well remember


def test_vtrace_reads_whole_segments() -> None:
    with pytest.raises(ConfigError, match="recurrence shorter than the rollout needs targets=gae"):
        config("learning.recurrence=4", "model.memory=gru", "learning.targets=vtrace")


# -- actions -----------------------------------------------------------------------------------------------


def test_symmetric_kl_needs_discrete_actions() -> None:
    settings = config("learning.exploration=symmetric_kl")
    check(settings)
    with pytest.raises(ConfigError, match=r"symmetric_kl needs discrete actions; use learning\.exploration=entropy"):
        segments_per_batch(settings, spec_of("toy_reach"))
    assert segments_per_batch(settings, spec_of("toy_target")) == 2
    assert segments_per_batch(config(), spec_of("toy_reach")) == 2


# -- environment -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("overrides", "hint"),
    [
        ("env=toy_taget", "did you mean 'toy_target'"),
        ("env=CartPole-v11", "CartPole-v1"),
        ("env=toy_target env.args.chioces=3", "did you mean 'choices'"),
        ("env=no_such_module:Env", "no_such_module"),
        ("env=faulty_envs:NoSuch", "NoSuch"),
    ],
)
def test_environments_that_do_not_exist(overrides: str, hint: str) -> None:
    with pytest.raises(ConfigError, match=hint):
        check(config(*overrides.split()))


# -- names and numbers -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [".hidden", "a/b", ".."])
@pytest.mark.parametrize("key", ["name", "experiment"])
def test_names_that_are_no_folder_names(key: str, name: str) -> None:
    with pytest.raises(ConfigError, match="cannot be a folder name"):
        config(f'run.{key}="{name}"')


@pytest.mark.parametrize(
    "override",
    [
        "run.seed=-1",
        "checkpoints.every_seconds=-1",
        "checkpoints.keep_last=-1",
        "checkpoints.keep_best=-1",
        "checkpoints.milestone_frames=-1",
        "checkpoints.min_free_mb=-1",
        "report.every_frames=-1",
        "report.console_seconds=-0.5",
        "report.window=0",
    ],
)
def test_numbers_that_make_no_sense(override: str) -> None:
    with pytest.raises(ConfigError, match=override.split(".")[0]):
        config(override)


@pytest.mark.parametrize(
    ("env", "name"), [("toy_target", "toy_target-s0"), ("ALE/Pong-v5", "ALE-Pong-v5-s0"), ("my.envs:Make", None)]
)
def test_the_folder_of_a_run_without_a_name(env: str, name: str | None) -> None:
    folder = config(f"env={env}", "run.name=null").folder
    assert folder.parent == Path("nowhere/x")
    assert folder.name == (name or "my.envs-Make-s0")


# -- device ------------------------------------------------------------------------------------------------


def test_a_device_that_is_there() -> None:
    assert choose_device("cpu") == torch.device("cpu")
    assert choose_device("auto").type == ("cuda" if torch.cuda.is_available() else "cpu")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("cuda:99", "usable GPUs; use learning.device=cpu"),
        ("mps", "only cpu, cuda and cuda:N are supported"),
        ("gpu", "learning.device=gpu: "),
        ("", "learning.device=: "),
        ("cuda:x", "learning.device=cuda:x: "),
    ],
)
def test_a_device_that_is_not_there(name: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        choose_device(name)


def test_a_missing_gpu_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert choose_device("cuda:1") == torch.device("cuda:1")
    with pytest.raises(ConfigError, match="this machine has 2 usable GPUs"):
        choose_device("cuda:2")


def test_a_wrong_name_of_a_network_is_refused_before_there_is_a_folder(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"model\.custom=marking:NoSuchNet: marking has no 'NoSuchNet'"):
        train_here(tmp_path, *SERIAL, "model.custom=marking:NoSuchNet")
    assert not list(tmp_path.iterdir())


def test_threads_without_end_are_refused() -> None:
    with pytest.raises(ConfigError, match="threads=1000000: 1024 are the most"):
        config("learning.threads=1000000")


@pytest.mark.parametrize("name", ["a/b", "..", "", "a\\nb", "a\\x1b[2J", "a\\\\b"])
def test_names_that_no_folder_should_have(name: str) -> None:
    for key in ("run.name", "run.experiment"):
        with pytest.raises(ConfigError, match="cannot be a folder name"):
            config(f'{key}="{name}"')


# -- recording ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("codec", ["jpeg:900", "jpeg:0", "planes:99", "zstd:999", "nonsense", "jpeg", "raw:1"])
def test_codecs_that_cannot_be_are_refused_when_the_configuration_is_read(codec: str) -> None:
    with pytest.raises(ConfigError, match=rf"recording: image_codec: .*{codec}.*command line 'recording.image_codec"):
        config(f"recording.image_codec={codec}")


@pytest.mark.parametrize("word", ["recording.budget_gb=1e30", "recording.block=10_000_000"])
def test_sizes_that_no_disk_has_are_refused(word: str) -> None:
    with pytest.raises(ConfigError, match="budget_gb goes up to 1e"):
        config(word)


def test_policies_are_counted_without_counting_to_a_billion() -> None:
    with pytest.raises(ConfigError, match="policies must number from 0 without gaps"):
        config("env.policies=[0, 1000000000000]")


def test_jpeg_needs_opencv_before_anything_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cv2", None)
    check(config("recording.image_codec=jpeg:90"))  # nothing is recorded
    with pytest.raises(MissingExtraError, match="jpeg columns need OpenCV"):
        check(config("recording=all", "recording.image_codec=jpeg:90"))
