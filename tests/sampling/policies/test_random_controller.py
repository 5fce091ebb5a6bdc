import numpy as np
import pytest

from rollmill.core.fields import ActionSpec, EnvSpec, Field
from rollmill.core.seeds import Seeds
from rollmill.sampling.policies.random_controller import GRID, RandomController, _look
from rollmill.sampling.schedule import EpisodeSchedule

IMAGE = Field("image", "uint8", (20, 33, 3))
CAR = ActionSpec("continuous", shape=(3,), low=(-1, 0, 0), high=(1, 1, 1))


def controller(action: ActionSpec, *fields: Field) -> RandomController:
    return RandomController(EnvSpec("e", fields, action), EpisodeSchedule(Seeds(0), 2))


def test_actions_stay_within_their_bounds_and_follow_the_scene() -> None:
    policy = controller(CAR, IMAGE)
    rng = np.random.default_rng(0)
    actions = []
    for episode in range(100):
        policy.begin(0, Seeds(episode))
        images = rng.integers(0, 256, (1, *IMAGE.shape), dtype=np.uint8)
        actions.append(policy.decide(np.array([0]), {"image": images})[0])
        again = policy.decide(np.array([0]), {"image": images})[0]
        other = policy.decide(np.array([0]), {"image": 255 - images})[0]
        assert np.array_equal(actions[-1], again)
        assert not np.array_equal(again, other) or (again[1:] == 0).all()
    found = np.stack(actions)
    assert found.dtype == np.float32
    assert (found >= [-1, 0, 0]).all()
    assert (found <= 1).all()
    assert 0.3 < (found[:, 2] == 0).mean() < 0.7  # half of them leave the brake alone
    assert found[:, 0].std() > 0.3


def test_lanes_have_controllers_of_their_own_and_seeds_repeat_them() -> None:
    images = np.full((2, *IMAGE.shape), 90, np.uint8)
    policy, twin = controller(CAR, IMAGE), controller(CAR, IMAGE)
    for lane in (0, 1):
        policy.begin(lane, Seeds(lane))
        twin.begin(1 - lane, Seeds(lane))
    both = policy.decide(np.array([0, 1]), {"image": images})
    assert not np.array_equal(both[0], both[1])
    assert np.array_equal(both, twin.decide(np.array([1, 0]), {"image": images}))


def test_choices_obey_the_mask() -> None:
    action = ActionSpec("multi_discrete", nvec=(3, 2), start=(0, 0))
    policy = controller(action, Field("v", "float32", (4,)), Field("action_mask", "int8", (5,)))
    mask = np.array([[0, 1, 0, 1, 0]], np.int8)
    for episode in range(20):
        policy.begin(0, Seeds(episode))
        chosen = policy.decide(np.array([0]), {"v": np.ones((1, 4), np.float32), "action_mask": mask})
        assert chosen.tolist() == [[1, 0]]
        assert chosen.dtype == np.int64


def test_mixed_actions_are_choices_then_numbers() -> None:
    action = ActionSpec("mixed", nvec=(4,), start=(0,), shape=(1,), low=(5.0,), high=(7.0,))
    policy = controller(action, Field("v", "float32", (2,)))
    seen = []
    for episode in range(30):
        policy.begin(0, Seeds(episode))
        seen.append(policy.decide(np.array([0]), {"v": np.zeros((1, 2), np.float32)})[0])
    found = np.stack(seen)
    assert set(found[:, 0].tolist()) == {0.0, 1.0, 2.0, 3.0}
    assert ((found[:, 1] >= 5) & (found[:, 1] <= 7)).all()


@pytest.mark.parametrize("shape", [(20, 33, 3), (5, 64, 1), (64, 64, 12)])
def test_an_image_is_looked_at_in_cells(shape: tuple[int, int, int]) -> None:
    field = Field("image", "uint8", shape)
    images = np.zeros((2, *shape), np.uint8)
    images[1] = 255
    seen = _look(field, images)
    assert seen.shape == (2, min(GRID, shape[0]) * min(GRID, shape[1]))
    assert np.allclose(seen, [[-1.0], [1.0]])
