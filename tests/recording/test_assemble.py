"""Episodes rebuilt from segments: nothing lost, doubled, or joined across a hole."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recording import check_stored, key_of, lane_plan, marker_schema, marker_segments, seen_in
from rollmill.recording.assemble import SegmentAssembler
from rollmill.recording.budgeted import BudgetedWriter
from rollmill.recording.choose import draw
from rollmill.store.reader import Store

LONGEST = 29  # episodes of 1 to 29 steps across segments of 8


def assemble(folder: Path, segments: list, agents: int = 1, probability: float = 1.0, **options: object) -> Store:
    keeper = BudgetedWriter(folder, marker_schema(agents), 0, "stop", block=4)
    assembler = SegmentAssembler(marker_schema(agents), lane_plan(agents), keeper, **options)  # type: ignore[arg-type]
    for group, segment in segments:
        assembler.take(segment, group, probability)
    assembler.end_all()
    keeper.close()
    return Store(folder)


@pytest.mark.parametrize("agents", [1, 3])
@pytest.mark.parametrize("longest", [1, 5, LONGEST])
def test_everything_kept_is_everything_seen(tmp_path: Path, agents: int, longest: int) -> None:
    segments = marker_segments(24, agents, longest)
    seen = seen_in(segment for _, segment in segments)
    store = assemble(tmp_path, segments, agents)
    assert check_stored(store, seen) == set(seen.rows)
    whole = ~(store.table["partial_start"] | store.table["partial_end"])
    ends = sum(row["terminated"] or row["truncated"] for row in seen.rows.values())
    assert np.count_nonzero(whole) == ends, "every episode that ended is whole"
    assert not store.table["partial_start"].any()


SEGMENTS = marker_segments(32, longest=LONGEST)


@given(kept=st.lists(st.booleans(), min_size=len(SEGMENTS), max_size=len(SEGMENTS)), told=st.booleans())
@settings(max_examples=25, deadline=None)
def test_any_choice_of_segments_gives_pieces_without_holes(
    tmp_path_factory: pytest.TempPathFactory, kept: list[bool], told: bool
) -> None:
    folder = tmp_path_factory.mktemp("store")
    keeper = BudgetedWriter(folder, marker_schema(), 0, "stop", block=4)
    assembler = SegmentAssembler(marker_schema(), lane_plan(), keeper)
    for keep, (group, segment) in zip(kept, SEGMENTS):
        if keep:
            assembler.take(segment, group)
        elif told:
            assembler.leave(group)
    assembler.end_all()
    keeper.close()
    seen = seen_in(segment for keep, (_, segment) in zip(kept, SEGMENTS) if keep)
    store = Store(folder)
    assert check_stored(store, seen) == set(seen.rows)
    # Consecutive segments are joined: a piece begins where its episode does, or after a hole.
    for i in range(len(store)):
        obs = store.episode(i).obs
        env, agent, episode, step, seed = key_of(obs["where"][0], obs["seed"][0])
        assert step == 0 or (env, agent, episode, step - 1, seed) not in seen.rows


def test_only_wanted_episodes(tmp_path: Path) -> None:
    segments = marker_segments(16)
    seen = seen_in(segment for _, segment in segments)
    store = assemble(tmp_path, segments, whole=True, random=True, probability=0.3)
    assert (store.table["probability"] == 0.3).all()
    kept = {key[:3] for key in check_stored(store, seen)}
    envs, episodes = (np.array(column) for column in zip(*sorted({(key[0], key[2]) for key in seen.rows})))
    chosen = draw(lane_plan().key, envs, episodes) <= 0.3
    assert kept == {(env, 0, episode) for env, episode in zip(envs[chosen], episodes[chosen])}
    assert 0 < len(kept) < len(envs)


def test_the_agents_of_an_env_are_kept_together(tmp_path: Path) -> None:
    segments = marker_segments(24, agents=3)
    store = assemble(tmp_path, segments, 3, whole=True, random=True, probability=0.4)
    kept = {key[:3] for key in check_stored(store, seen_in(segment for _, segment in segments))}
    matches = {(env, episode) for env, _, episode in kept}
    assert kept == {(env, agent, episode) for env, episode in matches for agent in range(3)}


def test_whole_episodes_never_begin_in_the_middle(tmp_path: Path) -> None:
    segments = [pair for pair in marker_segments(32, longest=LONGEST) if pair[0] != 1]
    holes = [pair for k, pair in enumerate(segments) if k % 5]
    store = assemble(tmp_path, holes, whole=True)
    assert len(store)
    assert not store.table["partial_start"].any()
    assert np.isnan(store.table["probability"]).all(), "chance alone did not choose them"


def test_a_fault_ends_a_piece(tmp_path: Path) -> None:
    found = ((*pair, lane) for pair in marker_segments(32, longest=LONGEST) for lane in range(2))
    group, segment, lane = next(entry for entry in found if entry[1]["valid"][:-1, entry[2]].all())
    segment["valid"][3, lane] = False  # the env failed in step 3 and began a new episode
    segment["episode"][4:, lane] += 1
    segment["step"][4:, lane] = np.arange(5)
    store = assemble(tmp_path, [(group, segment)])
    number = group * 2 + lane
    pieces = [i for i in range(len(store)) if store.end_record(i).lane == number]
    first = int(segment["step"][0, lane])
    assert [(store.end_record(i).first_step, store.end_record(i).length) for i in pieces] == [(first, 3), (0, 4)]
    assert store.end_record(pieces[0]).partial_end
    where = segment["obs:where"][:, lane]
    assert store.episode(pieces[0]).obs["where"].tolist() == where[:4].tolist()
    assert store.episode(pieces[1]).obs["where"].tolist() == where[4:].tolist()


def test_lanes_know_their_worker(tmp_path: Path) -> None:
    store = assemble(tmp_path, marker_segments(8))
    for i in range(len(store)):
        env = int(store.episode(i).obs["where"][0][0])
        assert store.end_record(i).lane == env
        assert store.end_record(i).worker == env // 4
