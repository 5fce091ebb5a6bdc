"""Which number belongs to which token, on episodes whose every value says where it belongs."""

import numpy as np
import pytest
import torch
from offlining import HAND_SPEC, hand_episode, hand_store

from rollmill.core.errors import StoreError
from rollmill.core.fields import ActionSpec
from rollmill.offline.tokens import Inputs, check_actions, inputs, make_windows
from rollmill.store.reader import Store

REWARDS = {0: [1.0, 2.0, 4.0], 1: [8.0, 0.0, -1.0, 3.0, 5.0], 2: [7.0]}


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    folder = tmp_path_factory.mktemp("hand")
    return hand_store(
        folder / "store",
        [
            hand_episode(0, REWARDS[0]),
            hand_episode(1, REWARDS[1], terminated=False, truncated=True),
            hand_episode(2, REWARDS[2]),
            hand_episode(3, [1.0, 1.0], terminated=False),  # the end was not recorded
            hand_episode(4, [6.0, 2.0], first_step=5),  # nor was the beginning of this one
        ],
    )


def windows_of(store: Store, length: int, episodes: list[int], overhang: bool = False) -> Inputs:
    view = make_windows(store, length, episodes, HAND_SPEC, overhang=overhang)
    batch = {name: torch.as_tensor(x) for name, x in view.batch(np.arange(len(view))).items()}
    return inputs(batch, HAND_SPEC)


def check_alignment(found: Inputs) -> None:
    """Every real token is the right one; padding comes first and is zero."""
    for row in range(len(found.mask)):
        real = found.mask[row]
        count = int(real.sum())
        assert real.tolist() == [False] * (len(real) - count) + [True] * count
        number, start = (int(x) for x in found.obs["obs"][row][real][0])
        offset = 5 if number == 4 else 0
        rewards = REWARDS.get(number, [6.0, 2.0])
        for k, place in enumerate(real.nonzero().flatten().tolist()):
            t = start + k
            assert found.obs["obs"][row, place].tolist() == [number, t]  # what was seen before the action of step t
            assert int(found.action[row, place]) == 10 * number + t
            assert int(found.step[row, place]) == t
            assert float(found.returns[row, place]) == sum(rewards[t - offset :])  # reward t is still to come
        padding = ~real
        assert not found.action[row][padding].any()
        assert not found.returns[row][padding].any()


@pytest.mark.parametrize("length", [1, 2, 3, 4, 9])
@pytest.mark.parametrize("overhang", [False, True])
def test_every_token_of_every_window_is_where_it_belongs(store: Store, length: int, overhang: bool) -> None:
    """Ends by termination and by truncation, one step only, windows longer than the episode, borders."""
    found = windows_of(store, length, [0, 1, 2, 4], overhang)
    check_alignment(found)
    first = found.obs["obs"][torch.arange(len(found.mask)), found.mask.float().argmax(1)]
    assert {int(x) for x in first[:, 0]} == {0, 1, 2, 4}


def test_a_window_longer_than_the_episode_is_padded_on_the_left(store: Store) -> None:
    found = windows_of(store, 5, [0])
    assert found.mask.tolist() == [[False, False, True, True, True]]
    assert found.returns.tolist() == [[0, 0, 7, 6, 4]]
    assert found.action.tolist() == [[0, 0, 0, 1, 2]]


def test_windows_stop_at_the_border_of_an_episode(store: Store) -> None:
    found = windows_of(store, 2, [0, 1], overhang=False)
    numbers = found.obs["obs"][:, :, 0]
    assert (numbers[:, 0] == numbers[:, 1]).all()


def test_an_episode_without_a_beginning_keeps_the_numbers_of_its_steps(store: Store) -> None:
    found = windows_of(store, 3, [4])
    assert found.step[found.mask].tolist() == [5, 6]
    assert found.returns[found.mask].tolist() == [8, 2]


@pytest.mark.parametrize("part", ["obs", "action", "returns", "step"])
@pytest.mark.parametrize("by", [-1, 1])
def test_a_shift_by_one_step_is_noticed(store: Store, part: str, by: int) -> None:
    """The check above can fail: each of the four moved by one step breaks it."""
    found = windows_of(store, 3, [1])
    check_alignment(found)
    parts = {name: getattr(found, name) for name in ("action", "returns", "step", "mask")}
    obs = dict(found.obs)
    if part == "obs":
        obs["obs"] = obs["obs"].roll(by, 1)
    else:
        parts[part] = parts[part].roll(by, 1)
    with pytest.raises((AssertionError, IndexError)):
        check_alignment(Inputs(obs, **parts))


def test_an_action_that_does_not_exist_is_named() -> None:
    mask = torch.tensor([[False, True]])
    check_actions(torch.tensor([[9, 2]]), mask, ActionSpec("discrete", nvec=(3,), start=(0,)))
    with pytest.raises(StoreError, match=r"action \[3\]: component 0 must lie below 3"):
        check_actions(torch.tensor([[0, 3]]), mask, ActionSpec("discrete", nvec=(3,), start=(0,)))
    with pytest.raises(StoreError, match="component 1 must lie below 4"):
        check_actions(torch.tensor([[[0, 0], [1, -1]]]), mask, ActionSpec("multi_discrete", nvec=(2, 4), start=(0, 0)))
