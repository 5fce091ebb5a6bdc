"""Building a run's parts from its config."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from running import SERIAL, config_of

from rollmill.core.errors import ConfigError
from rollmill.core.fields import ActionSpec, EnvSpec, Field
from rollmill.core.slots import Arena, SegmentLayout
from rollmill.envs.make import make_env
from rollmill.learning.step import learning_dtype
from rollmill.models.acting.mirror import Mirror
from rollmill.runs.settings.sizing import size
from rollmill.runs.settings.train import TrainConfig
from rollmill.runs.train.build import DeviceGather, HostGather, Parts, build_parts

SPEC = EnvSpec("x", (Field("obs", "float32", (3,)),), ActionSpec("discrete", nvec=(4,), start=(0,)))


# -- batches -----------------------------------------------------------------------------------------------


def arena_of(slots: int) -> Arena:
    arena = Arena(SegmentLayout(SPEC, steps=4, lanes=2, state_size=3, state_every=2), slots)
    for array in arena.fields.values():
        numbers = np.arange(array.size).reshape(array.shape)
        array[:] = numbers % 2 if array.dtype == bool else numbers
    return arena


def test_segments_stand_side_by_side() -> None:
    arena = arena_of(3)
    batch = HostGather(arena)([2, 0])
    for name, array in arena.fields.items():
        expected = np.concatenate([array[2], array[0]], axis=1)
        np.testing.assert_array_equal(batch[name], expected, name)
        assert batch[name].dtype == array.dtype


def test_the_same_buffers_are_filled_again() -> None:
    arena = arena_of(4)
    gather = HostGather(arena)
    first = dict(gather([0, 1]))
    second = gather([3, 2])
    for name in first:
        assert second[name] is first[name]
        np.testing.assert_array_equal(second[name], np.concatenate([arena[name][3], arena[name][2]], axis=1))
        assert not np.shares_memory(second[name], arena[name])  # the slots are given back at once


def test_segments_of_nodes_are_taken_into_the_mirror_and_no_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a GPU, own segments are in the mirror already: two groups here, groups 2 and 3 on a node."""
    arena = arena_of(4)
    mirror = Mirror(arena, torch.device("cpu"))
    monkeypatch.setattr(torch.cuda, "current_stream", lambda _device: SimpleNamespace(synchronize=lambda: None))
    plan = SimpleNamespace(remote_slots=2, groups=2)
    inference = SimpleNamespace(group_of_slot=np.array([1, 0, 2, 3]))
    batch = DeviceGather(SimpleNamespace(plan=plan, inference=inference, arena=arena), mirror)([0, 2])  # type: ignore[arg-type]
    expected = arena.gather([0, 2])
    for name in ("obs:obs", "state"):
        own, remote = np.split(batch[name].numpy(), 2, axis=1)
        assert not own.any(), "what is decided here is written into the mirror then"
        np.testing.assert_array_equal(remote, np.split(expected[name], 2, axis=1)[1], name)
    np.testing.assert_array_equal(batch["action"], expected["action"])


TWO = ("env=toy_agents", "env.policies=[0, 1]")


def test_policies_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    for words, message in (
        (("env=toy_agents", "env.policies=[0, 1, 1]"), r"env.policies names 3 agents, toy_agents has 2"),
        ((*TWO, "learning.algorithm=sac"), r"several policies .* learning.algorithm=appo"),
    ):
        with pytest.raises(ConfigError, match=message), built(config_of(tmp_path, *WORDS, *words)):
            pass
    with pytest.raises(ConfigError, match="number from 0 without gaps"):
        config_of(tmp_path, *WORDS, "env=toy_agents", "env.policies=[0, 2]")


# -- seeds -------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def built(config: TrainConfig) -> Iterator[Parts]:
    parts = build_parts(config, make_env(config.env).spec, os.environ)
    try:
        yield parts
    finally:
        parts.sampler.stop()


def weights_of(config: TrainConfig) -> list[dict[str, torch.Tensor]]:
    with built(config) as parts:
        return [{k: v.clone() for k, v in learner.model.state_dict().items()} for learner in parts.learners]


def same(one: dict[str, torch.Tensor], two: dict[str, torch.Tensor]) -> bool:
    assert one.keys() == two.keys()
    return all(torch.equal(one[name], two[name]) for name in one)


WORDS = (*SERIAL, "env=toy_memory", "model.memory=gru")


def test_the_seed_fixes_the_weights(tmp_path: Path) -> None:
    config = config_of(tmp_path, *WORDS, "run.seed=5")
    torch.manual_seed(1)
    (one,) = weights_of(config)
    torch.manual_seed(2)
    (two,) = weights_of(config)
    assert same(one, two)
    (other,) = weights_of(config_of(tmp_path, *WORDS, "run.seed=6"))
    assert not same(one, other)


def test_every_policy_has_weights_of_its_own(tmp_path: Path) -> None:
    """The first ones are those of a run with a single policy."""
    one, two = weights_of(config_of(tmp_path, *WORDS, *TWO))
    assert not same(one, two)
    assert same(one, weights_of(config_of(tmp_path, *WORDS, "env=toy_agents"))[0])


def test_policies_act_with_the_weights_of_their_learner(tmp_path: Path) -> None:
    with built(config_of(tmp_path, *WORDS, *TWO)) as parts:
        assert parts.sampler.inference.policy_of_lane.tolist() == [[0, 1, 0, 1]] * 4
        for policy, learner in zip(parts.policies, parts.learners, strict=True):
            assert policy.refresh() == learner.version == 0
            assert policy.model is not learner.model
            assert same(policy.model.state_dict(), learner.model.state_dict())
        assert [learner.policy_id for learner in parts.learners] == [0, 1]


@pytest.mark.parametrize(
    ("words", "together"), [((), True), (("model.memory=gru",), False), (("learning.eager=true",), False)]
)
def test_small_networks_are_asked_in_one_pass(tmp_path: Path, words: tuple[str, ...], together: bool) -> None:
    """Members of a population, and the two sides of self-play."""
    population = ("env=toy_target", "pbt.members=2", "stop.frames=10000", "learning.batch_size=64")
    duel = ("env=duel_envs:Duel", "selfplay.rule=uniform", "pool.every_updates=2")
    with built(size(config_of(tmp_path, *SERIAL, *population, *words))) as parts:
        assert (parts.sampler.inference._ensemble is not None) == together
        assert parts.sampler.inference.policy_of_lane[:, 0].tolist() == [0, 1] * (parts.sampler.plan.groups // 2)
    with built(size(config_of(tmp_path, *SERIAL, *duel, *words))) as parts:
        assert parts.matches is not None
        assert parts.matches.plays_all == together


def test_parts_fit_each_other(tmp_path: Path) -> None:
    config = config_of(tmp_path, *WORDS, "learning.recurrence=4", "learning.batch_size=64", "learning.threads=1")
    with built(config) as parts:
        layout = parts.sampler.arena.layout
        assert parts.segments_per_batch == 4
        assert (layout.steps, layout.lanes, layout.state_every) == (8, 2, 4)
        assert layout.state_size == parts.policies[0].state_size == 8
        assert parts.sampler.plan.segments_per_batch == 4
        assert torch.get_num_threads() == 1
        batch = parts.gather([0, 1, 2, 3])
        assert batch["reward"].shape == (9, 8)


@pytest.mark.parametrize(("precision", "dtype"), [("float32", None), ("bfloat16", torch.bfloat16)])
def test_the_precision_of_acting(tmp_path: Path, precision: str, dtype: torch.dtype | None) -> None:
    assert learning_dtype(config_of(tmp_path, f"learning.precision={precision}").learning) == dtype


def test_serial_mode_has_one_learner_thread() -> None:
    """The same config must run in one process, bit for bit; other modes take the threads they are given."""
    spec = make_env(config_of(Path(), "env=toy_target").env).spec
    for mode, threads in (("serial", 1), ("sync", 2)):
        config = config_of(Path(), "env=toy_target", "learning.threads=2", f"sampling.mode={mode}")
        assert build_parts(config, spec, {}).learners[0].settings.threads == threads


def test_slow_bfloat16_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    config = config_of(tmp_path, *SERIAL, "env=toy_target", "learning.precision=bfloat16")
    spec = make_env(config.env).spec
    for fast, lines in ((True, 0), (False, 1)):
        monkeypatch.setattr("rollmill.runs.train.build.has_fast_bfloat16", lambda fast=fast: fast)
        caplog.clear()
        build_parts(config, spec, os.environ).sampler.stop()
        assert len([r for r in caplog.records if "float32 will be much faster" in r.message]) == lines
