"""The comparator: random, allowed, repeatable."""

from __future__ import annotations

import numpy as np
import pytest

from rollmill.core.fields import MASK_FIELD, ActionSpec, EnvSpec, Field, Obs
from rollmill.core.protocols import ActRequest
from rollmill.sampling.policies.random import RandomPolicy

MASKED = EnvSpec("x", (Field(MASK_FIELD, "int8", (5,)),), ActionSpec("multi_discrete", nvec=(3, 2), start=(0, 0)))
PLAIN = EnvSpec("x", (Field("obs", "float32"),), ActionSpec("discrete", nvec=(7,), start=(2,)))
REAL = EnvSpec("x", (Field("obs", "float32"),), ActionSpec("continuous", shape=(2,), low=(-1, 0), high=(1, 9)))


def request_of(lanes: int, obs: Obs | None = None) -> ActRequest:
    none = np.zeros(0, np.int64)
    return ActRequest(np.zeros(lanes, bool), np.arange(lanes), none, none, none, none, gather=lambda: obs or {})


@pytest.mark.parametrize("spec", [PLAIN, REAL])
def test_an_answer_fits_the_action_space(spec: EnvSpec) -> None:
    answer = RandomPolicy(spec, 0).act(request_of(50))
    assert answer.action.shape == (50, *spec.action.field.shape)
    assert answer.action.dtype == spec.action.field.dtype
    assert answer.log_prob.tolist() == answer.value.tolist() == [0.0] * 50
    assert answer.state is None


def test_stored_actions_count_from_zero() -> None:
    """The start of a Discrete space is added on the way to the env, not here."""
    assert set(RandomPolicy(PLAIN, 0).act(request_of(500)).action.tolist()) == set(range(7))


def test_it_keeps_to_the_mask() -> None:
    mask = np.array([[1, 0, 0, 0, 1], [0, 1, 1, 1, 0]] * 50, np.int8)
    action = RandomPolicy(MASKED, 0).act(request_of(100, {MASK_FIELD: mask})).action
    assert (action[::2] == [0, 1]).all()
    assert set(action[1::2, 0].tolist()) == {1, 2}
    assert set(action[1::2, 1].tolist()) == {0}


def test_the_seed_decides() -> None:
    def actions(seed: int) -> list[int]:
        policy = RandomPolicy(PLAIN, seed)
        return [*policy.act(request_of(20)).action.tolist(), *policy.act(request_of(20)).action.tolist()]

    assert actions(1) == actions(1)
    assert actions(1) != actions(2)
    assert actions(1)[:20] != actions(1)[20:]


def test_it_is_a_policy_without_memory_and_without_versions() -> None:
    policy = RandomPolicy(PLAIN, 3)
    assert policy.state_size == 0
    assert policy.refresh() == policy.version == 0
    before = policy.state()["rng"]
    policy.act(request_of(1))
    assert policy.state()["rng"] != before
