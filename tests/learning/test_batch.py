"""From segments to pieces, minibatches and micro-batches, against plain loops."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rollmill.core.fields import Array
from rollmill.learning.batch import Batch, Pieces, cut_pieces, load_batch, micro_batches, minibatches, whole_segments
from rollmill.learning.settings import LearningSettings

CPU = torch.device("cpu")


def segments_of(steps: int = 4, lanes: int = 3, state: int = 0, every: int = 0) -> dict[str, Array]:
    """Every number tells where it comes from: 100 * row + lane."""
    rows = steps + 1
    place = 100 * np.arange(rows)[:, None] + np.arange(lanes)
    segments = {
        "obs:a": np.repeat(place[..., None], 2, axis=-1).astype(np.float32),
        "obs:action_mask": np.ones((rows, lanes, 3), np.int8),
        "first": place % 2 == 0,
        "value": place.astype(np.float32) + 0.5,
        "action": place.astype(np.int64),
        "log_prob": -place.astype(np.float32),
        "reward": place.astype(np.float32),
        "terminated": place % 3 == 0,
        "truncated": place % 5 == 0,
        "valid": place % 7 != 1,
        "version": np.full((rows, lanes), 4, np.int64),
        "policy_id": np.zeros((rows, lanes), np.int16),
    }
    if state:
        starts = np.arange(0, steps, every or steps)
        segments["state"] = np.repeat(place[starts][..., None], state, axis=-1).astype(np.float32)
    return segments


def batch_of(segments: dict[str, Array], version: int = 6, policy_id: int = 0, **settings: object) -> Batch:
    return load_batch(segments, LearningSettings(**settings), policy_id, version, CPU)  # type: ignore[arg-type]


def pieces_of(length: int, **shape: int) -> tuple[Batch, Pieces]:
    batch = batch_of(segments_of(**shape))
    return batch, cut_pieces(batch, length, batch.reward * 2, batch.reward * 3)


# -- loading ------------------------------------------------------------------------------------------------


def test_outcomes_lose_the_bootstrap_row_and_observations_keep_it() -> None:
    batch = batch_of(segments_of(4, 3))
    assert batch.reward.shape == batch.action.shape == batch.valid.shape == (4, 3)
    assert batch.value.shape == batch.first.shape == (5, 3)
    assert {name: tuple(x.shape) for name, x in batch.obs.items()} == {"a": (5, 3, 2), "action_mask": (5, 3, 3)}
    assert batch.state.shape == (1, 3, 0)
    assert (batch.lag == 2).all()


def test_rewards_are_scaled_then_clipped() -> None:
    batch = batch_of(segments_of(2, 2), reward_scale=-0.1, reward_clip=3.0)
    assert batch.reward.tolist() == [[0.0, pytest.approx(-0.1)], [-3.0, -3.0]]


def test_rows_of_other_policies_do_not_count() -> None:
    segments = segments_of(2, 3)
    segments["valid"][:] = True
    segments["policy_id"][:, 1] = 1
    assert batch_of(segments).valid.tolist() == [[True, False, True]] * 2
    assert batch_of(segments, policy_id=1).valid.tolist() == [[False, True, False]] * 2


def test_tensors_are_taken_as_they_are() -> None:
    """On a GPU observations are already there."""
    segments = segments_of()
    there = torch.from_numpy(segments["obs:a"])
    batch = batch_of({**segments, "obs:a": there})  # type: ignore[dict-item]
    assert batch.obs["a"].data_ptr() == there.data_ptr()


# -- pieces -------------------------------------------------------------------------------------------------


@given(st.integers(1, 4), st.integers(1, 4), st.integers(1, 5), st.integers(0, 2))
def test_pieces_against_a_plain_loop(length: int, count: int, lanes: int, state: int) -> None:
    steps = length * count
    batch = batch_of(segments_of(steps, lanes, state, length))
    pieces = cut_pieces(batch, length, batch.reward * 2, batch.reward * 3)
    assert pieces.reward.shape == (length, count * lanes)
    for piece in range(count):
        for lane in range(lanes):
            column = piece * lanes + lane
            for row in range(length):
                place = 100 * (piece * length + row) + lane
                assert pieces.reward[row, column] == place
                assert pieces.action[row, column] == place
                assert pieces.log_prob[row, column] == -place
                assert pieces.value[row, column] == place + 0.5
                assert pieces.obs["a"][row, column].tolist() == [place, place]
                assert pieces.first[row, column] == (place % 2 == 0)
                assert pieces.terminated[row, column] == (place % 3 == 0)
                assert pieces.valid[row, column] == (place % 7 != 1)
                assert pieces.advantage[row, column] == 2 * place
                assert pieces.target[row, column] == 3 * place
            assert pieces.state[column].tolist() == [100 * piece * length + lane] * state


def test_whole_segments_keep_the_bootstrap_row() -> None:
    batch = batch_of(segments_of(4, 3, state=2))
    pieces = whole_segments(batch)
    assert pieces.value.shape == pieces.first.shape == pieces.obs["a"].shape[:2] == (5, 3)
    assert pieces.reward.shape == pieces.advantage.shape == (4, 3)
    torch.testing.assert_close(pieces.state, batch.state[0])


def test_selected_columns_hold_together() -> None:
    _, pieces = pieces_of(2, steps=4, lanes=3)
    chosen = pieces.select(torch.tensor([4, 1]))
    assert chosen.reward.tolist() == [[201, 1], [301, 101]]
    assert chosen.obs["a"][0, :, 0].tolist() == [201, 1]
    assert chosen.state.shape == (2, 0)


def test_a_copy_has_memory_of_its_own() -> None:
    _, pieces = pieces_of(2)
    copy = pieces.clone()
    pieces.reward.zero_()
    pieces.obs["a"].zero_()
    assert copy.reward.any()
    assert copy.obs["a"].any()
    pieces.copy_(copy)
    torch.testing.assert_close(pieces.reward, copy.reward)
    torch.testing.assert_close(pieces.obs["a"], copy.obs["a"])


# -- minibatches --------------------------------------------------------------------------------------------


def columns_of(parts: list[Pieces]) -> list[float]:
    return [float(x) for part in parts for x in part.reward[0]]


@given(st.integers(1, 30), st.integers(0, 100))
def test_every_column_that_counts_is_in_exactly_one_minibatch(count: int, seed: int) -> None:
    _, pieces = pieces_of(1, steps=6, lanes=3)
    parts = list(minibatches(pieces, count, torch.Generator().manual_seed(seed)))
    wanted = [float(r) for r, valid in zip(pieces.reward[0], pieces.valid[0]) if valid]
    assert sorted(columns_of(parts)) == sorted(wanted)
    sizes = [part.reward.shape[1] for part in parts]
    assert len(parts) == min(count, len(wanted))
    assert max(sizes) - min(sizes) <= 1


def test_a_column_with_one_row_that_counts_is_kept_whole() -> None:
    _, pieces = pieces_of(4, steps=4, lanes=3)
    pieces.valid[:, 0] = False
    pieces.valid[:, 1] = torch.tensor([False, False, True, False])
    (part,) = minibatches(pieces, 1, torch.Generator())
    assert sorted(columns_of([part])) == [1, 2]


def test_without_compaction_all_columns_stay() -> None:
    _, pieces = pieces_of(1, steps=6, lanes=3)
    parts = list(minibatches(pieces, 2, torch.Generator(), compact=False))
    assert [part.reward.shape[1] for part in parts] == [9, 9]


def test_one_minibatch_of_everything_is_not_copied() -> None:
    _, pieces = pieces_of(1)
    pieces.valid[:] = True
    (part,) = minibatches(pieces, 1, torch.Generator())
    assert part is pieces


def test_nothing_that_counts_gives_no_minibatch() -> None:
    _, pieces = pieces_of(1)
    pieces.valid[:] = False
    assert list(minibatches(pieces, 3, torch.Generator())) == []


def test_the_same_seed_shuffles_the_same_way() -> None:
    _, pieces = pieces_of(1, steps=8, lanes=4)
    orders = [columns_of(list(minibatches(pieces, 4, torch.Generator().manual_seed(s)))) for s in (1, 1, 2)]
    assert orders[0] == orders[1] != orders[2]


@given(st.integers(0, 40), st.sampled_from([1, 2, 4]))
def test_micro_batches_cover_everything_in_order(rows: int, length: int) -> None:
    _, pieces = pieces_of(length, steps=8, lanes=3)
    parts = list(micro_batches(pieces, rows))
    assert columns_of(parts) == pieces.reward[0].tolist()
    if rows:
        assert all(part.reward.numel() <= max(rows, length) for part in parts)
    else:
        assert parts == [pieces]
