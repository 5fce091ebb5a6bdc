"""The last action and reward as fields, and what ``info`` says: in every row, as it happened."""

import numpy as np
import pytest

from rollmill.core.errors import ConfigError
from rollmill.core.fields import ActionSpec, EnvSpec, Field
from rollmill.envs.around import PreviousEnv, previous_field, shown_action, without_around
from rollmill.envs.make import make_env
from rollmill.envs.settings import EnvSettings

BOTH = {"previous_action": True, "previous_reward": True}


def arrays(env):
    return {f.name: np.full((env.spec.agents, *f.shape), 9, f.dtype) for f in env.spec.written}


def test_the_fields_show_what_was_done_and_what_came_of_it():
    env = make_env(EnvSettings(id="rooms_env:Rooms", info=("lives", "room:text", "player/at:2"), **BOTH))
    assert [f.name for f in env.spec.observation] == ["obs", "previous_action", "previous_reward"]
    assert [f.name for f in env.spec.inputs] == ["obs", "previous_action", "previous_reward"]
    obs = arrays(env)
    for _ in range(2):  # the second episode knows nothing of the first
        env.reset(0, obs)
        assert not obs["previous_action"].any()
        assert obs["previous_reward"].tolist() == [[0.0]]
        assert obs["info:lives"].tolist() == [3.0]
        assert np.isnan(obs["info:player/at"]).all()
        for step, action in enumerate((2, 0), 1):
            env.step(np.array([action]), obs)
            assert obs["previous_action"].tolist() == [[k == action for k in range(3)]]
            assert obs["previous_reward"].tolist() == [[action + 0.5]]
            assert obs["info:player/at"].tolist() == [[step, action]]
    env.close()


def test_whoever_has_no_room_for_info_gets_none():
    env = make_env(EnvSettings(id="rooms_env:Rooms", info=("lives",)))
    obs = {f.name: np.zeros((1, *f.shape), f.dtype) for f in env.spec.observation}
    env.reset(0, obs)
    assert list(obs) == ["obs"]


@pytest.mark.parametrize(
    ("action", "given", "shown"),
    [
        (ActionSpec("discrete", nvec=(3,)), [1, 2], [[0, 1, 0], [0, 0, 1]]),
        (ActionSpec("multi_discrete", nvec=(2, 3)), [[1, 0], [0, 2]], [[0, 1, 1, 0, 0], [1, 0, 0, 0, 1]]),
        (ActionSpec("continuous", shape=(2,), low=(-1, -1), high=(1, 1)), [[0.5, -1], [0, 1]], [[0.5, -1], [0, 1]]),
        (ActionSpec("mixed", nvec=(2,), shape=(1,), low=(0,), high=(9,)), [[1, 7], [0, 3]], [[0, 1, 7], [1, 0, 3]]),
    ],
)
def test_actions_of_every_kind_are_shown(action, given, shown):
    field = previous_field("previous_action", action)
    out = np.full((2, *field.shape), 5, field.dtype)
    shown_action(action, np.array(given, action.field.dtype), out)
    assert out.tolist() == shown


def test_agents_see_their_own():
    env = make_env(EnvSettings(id="toy_agents", **BOTH))
    obs = arrays(env)
    env.reset(0, obs)
    reward = env.step(np.array([0, 1]), obs)[0]
    assert obs["previous_action"].argmax(axis=1).tolist() == [0, 1]
    assert obs["previous_reward"][:, 0].tolist() == np.broadcast_to(reward, 2).tolist()


def test_a_suite_shows_actions_of_the_union():
    suite = EnvSettings(tasks=({"id": "toy_target", "name": "a"}, {"id": "toy_target", "name": "b"}), **BOTH)
    env = make_env(suite)
    assert make_env(suite, spec=env.spec).spec == env.spec
    assert {"task", "previous_action"} <= {f.name for f in env.spec.observation}
    alone = without_around(env.spec, suite)
    assert "previous_action" not in {f.name for f in alone.observation}


def test_a_field_of_that_name_is_not_replaced():
    class Taken:
        spec = EnvSpec("t", (Field("previous_reward", "float32", (1,)),), ActionSpec("discrete", nvec=(2,)))

    with pytest.raises(ConfigError, match="has a field 'previous_reward' of its own"):
        PreviousEnv(Taken(), EnvSettings(id="t", previous_reward=True))
