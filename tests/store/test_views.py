from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from storing import make_episode, same, small_schema, write_episodes

from rollmill.core.errors import ConfigError, StoreError
from rollmill.core.fields import Array
from rollmill.store.cache import DecodedCache
from rollmill.store.episode import Episode, EpisodeInfo
from rollmill.store.format.schema import Column
from rollmill.store.reader import Store
from rollmill.store.returns import returns_to_go
from rollmill.store.streams import Order, stream_episodes, stream_observations, stream_transitions, stream_windows
from rollmill.store.views import Episodes, Observations, Source, Transitions, Windows
from rollmill.store.writer import StoreWriter

SCHEMA = small_schema()
LENGTHS = [7, 1, 20, 33, 8, 16, 5]
ALL = ["obs:image", "obs:vector", "action", "reward", "value", "log_prob", "step", "terminated", "truncated"]


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Episode]]:
    """Episodes of LENGTHS in blocks of 4 steps; number 5 begins at step 11 of its episode, number 6 is truncated."""
    path = tmp_path_factory.mktemp("views") / "store"
    episodes = [make_episode(SCHEMA, n, k, terminated=k != 6) for k, n in enumerate(LENGTHS)]
    episodes[5].info = EpisodeInfo(first_step=11, uid=5)
    with StoreWriter(path, SCHEMA, block=4) as writer:
        for episode in episodes:
            writer.add_episode(episode)
    return path, episodes


@pytest.fixture(scope="module", params=["store", "cache"])
def source(request: pytest.FixtureRequest, written: tuple[Path, list[Episode]]) -> Source:
    store = Store(written[0])
    if request.param == "store":
        return store
    return DecodedCache(store, written[0].parent / "cache", columns=["obs:image", "reward", "value"])


def plain_returns(rewards: Array, gamma: float) -> list[float]:
    return [sum(gamma**k * float(reward) for k, reward in enumerate(rewards[start:])) for start in range(len(rewards))]


def plain_window(
    episode: Episode, start: int, length: int, pad: str, next_obs: bool, gamma: float | None
) -> dict[str, Array]:
    """By the plain definition: slice the whole episode's columns, fill up with zeros."""
    count = min(length, len(episode) - start)
    missing = length - count
    window = {}
    columns = {name: episode.column(name) for name in ALL}
    columns["mask"] = np.ones(len(episode), np.bool_)
    if gamma is not None:
        columns["returns_to_go"] = np.array(plain_returns(episode.rewards, gamma))
    for name, array in columns.items():
        more = next_obs and (name.startswith("obs:") or name == "value")
        rows = array[start : start + count + more]
        zeros = np.zeros((missing, *rows.shape[1:]), rows.dtype)
        window[name] = np.concatenate([zeros, rows] if pad == "left" else [rows, zeros])
    return window


def check_window(found: dict[str, Array], expected: dict[str, Array]) -> None:
    assert found.keys() == expected.keys()
    for name, array in expected.items():
        if name == "returns_to_go":
            assert found[name].dtype == np.float32
            assert np.allclose(found[name], array, atol=1e-5)
        else:
            assert found[name].dtype == array.dtype
            assert np.array_equal(found[name], array), name


windows_options = st.fixed_dictionaries(
    {
        "length": st.integers(1, 40),
        "stride": st.integers(1, 9),
        "overhang": st.booleans(),
        "pad": st.sampled_from(["left", "right"]),
        "next_obs": st.booleans(),
        "gamma": st.sampled_from([None, 1.0, 0.9, 0.0]),
    }
)


@given(options=windows_options, chosen=st.lists(st.integers(0, 6), max_size=5), data=st.data())
@settings(max_examples=150, deadline=None)
def test_windows_are_padded_slices_of_episodes(
    source: Source, written: tuple[Path, list[Episode]], options: dict[str, Any], chosen: list[int], data: st.DataObject
) -> None:
    length, stride, gamma = options["length"], options["stride"], options["gamma"]
    view = Windows(source, episodes=chosen, columns=ALL, **options)
    places = []
    for number in chosen:
        last = LENGTHS[number] - 1 if options["overhang"] else max(LENGTHS[number] - length, 0)
        places += [(number, start) for start in range(0, last + 1, stride)]
    assert len(view) == len(places)
    if not places:
        return
    indices = data.draw(st.lists(st.integers(0, len(places) - 1), min_size=1, max_size=6))
    out = view.empty(8)
    for array in out.values():
        array.view(np.uint8).fill(1)  # rubbish of an earlier batch
    batch = view.batch(indices, out=out)
    for row, index in enumerate(indices):
        number, start = places[index]
        expected = plain_window(written[1][number], start, length, options["pad"], options["next_obs"], gamma)
        check_window({name: array[row] for name, array in batch.items()}, expected)
        assert np.shares_memory(batch["mask"], out["mask"])
    check_window(view[indices[0]], {name: array[0] for name, array in batch.items()})
    check_window(view[indices[0] - len(view)], view[indices[0]])


@given(st.lists(st.floats(-100, 100, width=32), min_size=1, max_size=40), st.floats(0, 1))
@settings(deadline=None)
def test_returns_to_go_are_sums_of_what_follows(rewards: list[float], gamma: float) -> None:
    found = returns_to_go(rewards, gamma)
    assert found.dtype == np.float64
    assert np.allclose(found, plain_returns(np.array(rewards), gamma), atol=1e-9)
    assert np.allclose(returns_to_go(rewards)[0], sum(rewards), atol=1e-6)


def test_the_bytes_of_windows_are_those_of_their_arrays(source: Source) -> None:
    view = Windows(source, 5, next_obs=True)
    assert view.nbytes(3) == sum(array.nbytes for array in view.empty(3).values())
    assert view.nbytes(10**12) > 10**12


def test_an_episodes_rewards_are_read_once(
    written: tuple[Path, list[Episode]], monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store(written[0])
    view = Windows(store, 4, columns=["action"])
    reads: list[int] = []
    real = Store.read

    def counted(self: Store, i: int, start: int, stop: int, columns: Any = None, **more: Any) -> dict[str, Array]:
        reads.extend([i] if list(columns) == ["reward"] else [])
        return real(self, i, start, stop, columns, **more)

    monkeypatch.setattr(Store, "read", counted)
    first = view.batch(np.arange(len(view)))
    assert sorted(reads) == list(range(7))
    view.batch(np.arange(len(view)))
    assert len(reads) == 7
    again = pickle.loads(pickle.dumps(view)).batch(np.arange(len(view)))  # noqa: S301
    assert all(np.array_equal(first[name], again[name]) for name in first)


def test_rewards_of_nan_stay_nan(tmp_path: Path) -> None:
    episode = make_episode(SCHEMA, 5)
    episode.columns["reward"][2] = np.nan
    with StoreWriter(tmp_path, SCHEMA) as writer:
        writer.add_episode(episode)
    view = Windows(Store(tmp_path), 5, overhang=False)
    for _ in range(2):
        assert np.isnan(view[0]["returns_to_go"]).tolist() == [True, True, True, False, False]


def test_the_default_columns(source: Source) -> None:
    window = Windows(source, 3)[0]
    observations = {"obs:image", "obs:vector", "obs:action_mask"}
    rest = {"action", "reward", "step", "terminated", "truncated", "returns_to_go", "mask"}
    assert window.keys() == observations | rest
    assert Windows(source, 3, gamma=None)[0].keys() == (observations | rest) - {"returns_to_go"}


def test_windows_are_drawn_by_weight(source: Source) -> None:
    rng = np.random.default_rng(0)
    view = Windows(source, 8, overhang=False, stride=2)
    lengths = np.array(LENGTHS)
    counts = np.maximum(lengths - 8, 0) // 2 + 1
    assert view.counts.tolist() == counts.tolist()
    for weights, shares in (("windows", counts), ("length", lengths), ("episodes", np.ones(7))):
        drawn = view.sample(40_000, rng, weights)  # type: ignore[arg-type]
        positions, starts = view.where(drawn)
        found = np.bincount(positions, minlength=7) / len(drawn)
        assert np.allclose(found, shares / shares.sum(), atol=0.02)
        inside = starts[positions == 3] // 2
        assert np.allclose(np.bincount(inside, minlength=13) / len(inside), 1 / 13, atol=0.02)
    with pytest.raises(ConfigError, match="weights 'best'"):
        view.sample(1, rng, "best")  # type: ignore[arg-type]
    with pytest.raises(StoreError, match="no windows"):
        Windows(source, 8, episodes=[]).sample(1, rng)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"length": 0}, ConfigError, "length 0"),
        ({"length": 3, "stride": 0}, ConfigError, "stride 0"),
        ({"length": 3, "pad": "middle"}, ConfigError, "'middle'"),
        ({"length": 3, "gamma": 1.5}, ConfigError, "gamma 1.5"),
        ({"length": 3, "columns": ["speed"]}, StoreError, "no column 'speed'"),
        ({"length": 3, "columns": ["mask"]}, StoreError, "computes 'mask' itself"),
        ({"length": 3, "episodes": [7]}, StoreError, "has 7"),
        ({"length": 3, "episodes": [-1]}, StoreError, "-1"),
        ({"length": 3, "episodes": [0.5]}, StoreError, "list of numbers"),
        ({"length": 3, "episodes": [True, False]}, StoreError, "list of numbers"),
    ],
)
def test_wrong_windows_are_refused(
    source: Source, options: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        Windows(source, **options)


def test_wrong_places_and_arrays_are_named(source: Source) -> None:
    view = Windows(source, 4)
    for index in (len(view), -len(view) - 1):
        with pytest.raises(IndexError, match=f"{len(view)} windows"):
            view[index]
    for indices in ([0, len(view)], [-1]):
        with pytest.raises(IndexError, match=f"of {len(view)}"):
            view.batch(indices)
    out = view.empty(3)
    with pytest.raises(StoreError, match=r"needed is a C-contiguous uint8 \(4, 4, 4, 3, 3\)"):
        view.batch([0, 1, 2, 3], out=out)
    with pytest.raises(StoreError, match=r"out\['reward'\] is float64"):
        view.batch([0], out={**out, "reward": out["reward"].astype(np.float64)})
    with pytest.raises(StoreError, match="out lacks 'mask'"):
        view.batch([0], out={name: array for name, array in out.items() if name != "mask"})


def test_transitions_are_steps_with_what_they_led_to(source: Source, written: tuple[Path, list[Episode]]) -> None:
    view = Transitions(source)
    assert len(view) == sum(LENGTHS)
    places = [(k, t) for k, n in enumerate(LENGTHS) for t in range(n)]
    batch = view.batch(np.arange(len(view)), out=view.empty(len(view)))
    step_columns = {"action", "reward", "terminated", "truncated"}
    fields = {"image", "vector", "action_mask"}
    assert batch.keys() == step_columns | {f"{name}:{f}" for name in ("obs", "next_obs") for f in fields}
    for row, (k, t) in enumerate(places):
        episode = written[1][k]
        for name in step_columns:
            assert batch[name][row] == episode.column(name)[t]
        for field in fields:
            assert np.array_equal(batch[f"obs:{field}"][row], episode.obs[field][t])
            assert np.array_equal(batch[f"next_obs:{field}"][row], episode.obs[field][t + 1])
    for name, value in view[30].items():
        assert np.array_equal(value, batch[name][30])
    assert batch["terminated"].sum() == 6
    assert batch["truncated"].sum() == 1
    assert Transitions(source, columns=["value", "step"])[0].keys() == {"value", "next_value", "step"}


def test_whole_episodes(source: Source, written: tuple[Path, list[Episode]]) -> None:
    view = Episodes(source, episodes=[3, 0])
    assert len(view) == 2
    for episode, number in zip(view, [3, 0]):
        assert same(episode, written[1][number])
    assert Episodes(source, columns=["action"])[1].columns.keys() == {"action"}
    with pytest.raises(IndexError, match="2 episodes"):
        view[2]
    with pytest.raises(StoreError, match="no column 'speed'"):
        Episodes(source, columns=["speed"])


@given(st.integers(1, 40), st.integers(0, 99))
@settings(max_examples=30, deadline=None)
def test_random_observations_of_an_episode(
    source: Source, written: tuple[Path, list[Episode]], per_episode: int, seed: int
) -> None:
    view = Observations(source, per_episode=per_episode, columns=["obs:image", "obs:vector"])
    assert len(view) == sum(min(n + 1, per_episode) for n in LENGTHS)
    for number, episode in enumerate(written[1]):
        rows = view.read(number, np.random.default_rng(seed))
        vectors = episode.obs["vector"].tolist()
        found = [vectors.index(row) for row in rows["obs:vector"].tolist()]
        assert len(set(found)) == min(len(vectors), per_episode)
        assert np.array_equal(rows["obs:image"], episode.obs["image"][found])


def test_observations_of_a_block_are_read_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_episodes(tmp_path, SCHEMA, [8], block=4)
    spans: list[tuple[int, int]] = []
    real = Store.read

    def watched(self: Store, i: int, start: int, stop: int, columns: Any = None, **more: Any) -> dict[str, Array]:
        spans.append((start, stop))
        return real(self, i, start, stop, columns, **more)

    monkeypatch.setattr(Store, "read", watched)
    Observations(Store(tmp_path)).read(0, np.random.default_rng(0))
    assert spans == [(0, 3), (4, 8)], "the final observation lies in the last block"


def test_wrong_observations_are_refused(source: Source) -> None:
    with pytest.raises(ConfigError, match="per_episode 0"):
        Observations(source, per_episode=0)
    for name in ("reward", "step"):
        with pytest.raises(StoreError, match="a row per step"):
            Observations(source, columns=[name])


# -------------------------------------------------------------------------------------------- streams


def key(row: dict[str, Array]) -> bytes:
    return b"".join(row[name].tobytes() for name in sorted(row))


def rows(batch: dict[str, Array]) -> list[bytes]:
    count = len(next(iter(batch.values())))
    return [key({name: array[row] for name, array in batch.items()}) for row in range(count)]


@given(options=windows_options, parts=st.integers(1, 4), size=st.integers(1, 9), pool=st.sampled_from([1, 5000, 10**8]))
@settings(max_examples=80, deadline=None)
def test_a_stream_has_every_window_once(
    source: Source, options: dict[str, Any], parts: int, size: int, pool: int
) -> None:
    view = Windows(source, columns=ALL, **options)
    batches = [b for k in range(parts) for b in stream_windows(view, size, Order(3, 1, (k, parts)), pool_bytes=pool)]
    assert sum(len(b["mask"]) < size for b in batches) <= parts
    found = sorted(row for batch in batches for row in rows(batch))
    assert found == sorted(rows(view.batch(np.arange(len(view)))))


def test_long_episodes_are_streamed_in_stretches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rollmill.store.streams.STRETCH_STEPS", 10)
    write_episodes(tmp_path, SCHEMA, [57, 3, 10, 11], block=8)
    store = Store(tmp_path)
    spans: list[int] = []
    real = Store.read

    def watched(self: Store, i: int, start: int, stop: int, columns: Any = None, **more: Any) -> dict[str, Array]:
        spans.append(stop - start)
        return real(self, i, start, stop, columns, **more)

    for stride in (1, 3, 12):
        view = Windows(store, 6, stride=stride, gamma=None)
        with monkeypatch.context() as patch:
            patch.setattr(Store, "read", watched)
            found = [row for batch in stream_windows(view, 4, pool_bytes=1) for row in rows(batch)]
        assert sorted(found) == sorted(rows(view.batch(np.arange(len(view)))))
    assert max(spans) <= 10 + 5


def test_streams_follow_from_seed_epoch_and_part(source: Source) -> None:
    view = Windows(source, 5)

    def run(**order: Any) -> list[bytes]:
        return [row for batch in stream_windows(view, 8, Order(**order)) for row in rows(batch)]

    base = run(seed=1, epoch=2)
    assert base == run(seed=1, epoch=2)
    for other in (run(seed=2, epoch=2), run(seed=1, epoch=3)):
        assert base != other
        assert sorted(base) == sorted(other)
    plain = rows(view.batch(np.arange(len(view))))
    assert run(shuffle=False) == plain
    assert base != plain
    assert len(list(stream_windows(view, 8, drop_last=True))) == len(view) // 8
    out = view.empty(8)
    assert all(np.shares_memory(batch["mask"], out["mask"]) for batch in stream_windows(view, 8, out=out))


def test_a_stream_of_transitions_and_of_episodes(source: Source, written: tuple[Path, list[Episode]]) -> None:
    view = Transitions(source)
    found = [row for batch in stream_transitions(view, 16, Order(seed=4)) for row in rows(batch)]
    assert sorted(found) == sorted(rows(view.batch(np.arange(len(view)))))
    episodes = list(stream_episodes(Episodes(source), Order(seed=2)))
    assert sorted(e.info.uid for e in episodes if e.info.uid is not None) == list(range(7))
    assert [e.info.uid for e in episodes] != list(range(7))
    assert all(same(e, written[1][e.info.uid or 0]) for e in episodes)
    assert [e.info.uid for e in stream_episodes(Episodes(source))] == [
        e.info.uid for e in stream_episodes(Episodes(source), Order())
    ]


@given(st.integers(1, 60), st.integers(1, 30), st.integers(1, 3), st.integers(1, 40))
@settings(max_examples=30, deadline=None)
def test_observations_pass_a_shuffle_buffer_once(
    source: Source, buffer: int, size: int, parts: int, per_episode: int
) -> None:
    view = Observations(source, per_episode=per_episode, columns=["obs:vector"])
    batches = [
        batch for k in range(parts) for batch in stream_observations(view, size, Order(1, 0, (k, parts)), buffer=buffer)
    ]
    found = [row for batch in batches for row in rows(batch)]
    assert len(found) == len(set(found)) == len(view)
    again = [
        batch for k in range(parts) for batch in stream_observations(view, size, Order(1, 0, (k, parts)), buffer=buffer)
    ]
    assert found == [row for batch in again for row in rows(batch)]


def test_the_shuffle_buffer_mixes_episodes(tmp_path: Path) -> None:
    write_episodes(tmp_path, SCHEMA, [30] * 20)
    store = Store(tmp_path)
    whose = {row.tobytes(): k for k in range(20) for row in store.read(k, 0, 30, ["value"], next_obs=True)["value"]}
    view = Observations(store, per_episode=10, columns=["value"])
    mixed = [{whose[v.tobytes()] for v in batch["value"]} for batch in stream_observations(view, 20, buffer=100)]
    assert np.mean([len(some) for some in mixed]) > 6
    plain = stream_observations(view, 20, Order(shuffle=False))
    assert [sorted({whose[v.tobytes()] for v in batch["value"]}) for batch in plain] == [
        [k, k + 1] for k in range(0, 20, 2)
    ]
    sizes = [len(batch["value"]) for batch in stream_observations(view, 64, drop_last=True)]
    assert sizes == [64] * 3


@pytest.mark.parametrize("order", [(0, 0, (1, 1)), (0, 0, (-1, 2)), (-1, 0, (0, 1)), (0, -1, (0, 1))])
def test_wrong_orders_are_refused(order: tuple[int, int, tuple[int, int]]) -> None:
    with pytest.raises(ConfigError):
        Order(*order)


def test_wrong_streams_are_refused(source: Source) -> None:
    with pytest.raises(ConfigError, match="batch_size 0"):
        next(stream_windows(Windows(source, 2), 0))
    with pytest.raises(ConfigError, match="shuffle buffer"):
        next(stream_observations(Observations(source), 4, buffer=0))


def test_nothing_selected_is_an_empty_stream(source: Source) -> None:
    assert list(stream_windows(Windows(source, 2, episodes=[]), 4)) == []
    assert list(stream_observations(Observations(source, episodes=[]), 4)) == []
    assert list(stream_episodes(Episodes(source, episodes=[]))) == []


def test_columns_without_bytes_can_be_read(tmp_path: Path) -> None:
    schema = small_schema(extra=(Column("nothing", "float32", (0,)),))
    write_episodes(tmp_path, schema, [5])
    pads: tuple[Literal["left"], Literal["right"]] = ("left", "right")
    for pad in pads:
        assert Windows(Store(tmp_path), 8, columns=["nothing"], pad=pad)[0]["nothing"].shape == (8, 0)
