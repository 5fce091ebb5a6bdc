"""What every batch env promises (``protocols.BatchEnv``), checked on one recorded walk of each."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest
from driving import SEEDS

from rollmill.core.fields import Array, EnvSpec, Obs
from rollmill.core.protocols import BatchEnv
from rollmill.core.seeds import Seeds
from rollmill.core.slots import OUTCOME_BYTES, RECORD, RECORD_BYTES, WORKER_FIELDS
from rollmill.envs.batch import BatchSetup, EnvBatch, Fault, NoWatch, random_actions
from rollmill.envs.make import EnvInstance, make_env
from rollmill.envs.settings import EnvSettings
from rollmill.envs.vector import VectorBatch, VectorLane

ENVS = 3
VECTOR = "vector "
"""Before the name of an env that is stepped by its own vectorised form."""
STEPS = {"Pendulum-v1": 205, "atari_breakout": 300}
"""Steps until every kind of end was seen, where 90 are not enough."""
ARGS: dict[str, dict[str, Any]] = {"car_racing": {"size": 32, "max_frames": 35}}
"""Arguments that make ends come soon."""
OUTCOME = ("reward", "terminated", "truncated", "valid", "episode_return")
OPENING = ("first", "step", "episode")

without_doom = pytest.mark.skipif(not (find_spec("vizdoom") and find_spec("cv2")), reason="needs the vizdoom extra")
without_atari = pytest.mark.skipif(not (find_spec("ale_py") and find_spec("cv2")), reason="needs the atari extra")
without_box2d = pytest.mark.skipif(not (find_spec("Box2D") and find_spec("cv2")), reason="needs the box2d extra")
without_spiel = pytest.mark.skipif(not find_spec("pyspiel"), reason="needs the openspiel extra")
IDS = [
    "toy_target",
    "toy_memory",
    "toy_masked",
    "toy_image",
    "toy_reach",
    "toy_agents",
    "kuhn_poker",
    "leduc_poker",
    "connect_four",
    "CartPole-v1",
    "Pendulum-v1",
    "faulty_envs:Zoo",
    "faulty_envs:Marker",
    "vector CartPole-v1",
    "vector vector_envs:zoo",
    "vector vector_envs:Counter",
    pytest.param("doom_basic", marks=[pytest.mark.vizdoom, without_doom]),
    pytest.param("atari_breakout", marks=without_atari),
    pytest.param("car_racing", marks=without_box2d),
    pytest.param("openspiel:leduc_poker", marks=without_spiel),
]
WITHOUT_CHANCE = ("connect_four",)
"""Where a seed changes nothing: moves alone decide."""
every_env = pytest.mark.parametrize("name", IDS)


class Guarded:
    """A ``StepOut`` whose memory lies between two guard lanes; everything is poison until it is written.

    Rows t and t + 1 share one record for each lane: they write different parts of it.
    """

    def __init__(self, spec: EnvSpec, lanes: int) -> None:
        self._whole: dict[str, Array] = {}
        self.records = memoryview(bytearray((lanes + 2) * RECORD_BYTES))
        self.outcomes_at, self.openings_at = RECORD_BYTES, RECORD_BYTES + OUTCOME_BYTES
        records = np.frombuffer(self.records, RECORD)
        for f in WORKER_FIELDS:
            self._whole[f.name] = records[f.name]
            setattr(self, f.name, records[f.name][1:-1])
        for f in spec.observation:
            self._whole[f"obs:{f.name}"] = np.empty((lanes + 2, *f.shape), f.dtype)
        self.obs = {f.name: self._whole[f"obs:{f.name}"][1:-1] for f in spec.observation}

    def obs_of(self, begin: int, end: int) -> Obs:
        return {name: array[begin:end] for name, array in self.obs.items()}

    def arrays(self) -> Guarded:
        return self

    def poison(self) -> None:
        for array in self._whole.values():
            array[:] = poison_of(array)

    def check_guards(self) -> None:
        for name, array in self._whole.items():
            np.testing.assert_array_equal(array[[0, -1]], np.full_like(array[[0, -1]], poison_of(array)), name)

    def copy(self) -> dict[str, Array]:
        return {name: array[1:-1].copy() for name, array in self._whole.items()}


def poison_of(array: Array) -> Any:
    return {"f": -7e30, "i": -99, "u": 213, "b": True}[array.dtype.kind]


@dataclass
class Walk:
    """``rows[0]`` is what reset wrote, ``rows[t]`` what the t-th step wrote; ``actions[t]`` led to ``rows[t + 1]``."""

    spec: EnvSpec
    lanes: int
    rows: list[dict[str, Array]] = field(default_factory=list)
    actions: list[Array] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)

    def column(self, name: str) -> Array:
        return np.stack([row[name] for row in self.rows])


def record(name: str, steps: int, seeds: Seeds = SEEDS) -> Walk:
    settings = EnvSettings(id=name.removeprefix(VECTOR), vector=name.startswith(VECTOR), args=ARGS.get(name, {}))
    look = VectorLane(settings) if settings.vector else make_env(settings)
    look.close()
    walk = Walk(look.spec, ENVS * look.spec.agents)
    setup = BatchSetup(
        spec=look.spec,
        make=lambda index: make_env(settings, EnvInstance(index=index)),
        envs=range(ENVS),
        seeds=seeds,
        watch=NoWatch(),
        on_fault=walk.faults.append,
        on_episode=lambda lane, episode, stats: None,
        first_episode=np.zeros(ENVS, np.int64),
    )
    batch: BatchEnv = VectorBatch(settings, setup) if settings.vector else EnvBatch(settings, setup)
    rng = np.random.default_rng(3)
    assert batch.lanes == walk.lanes
    out = Guarded(batch.spec, batch.lanes)
    out.poison()
    try:
        batch.reset(out)
        out.check_guards()
        walk.rows.append(out.copy())
        for _ in range(steps):
            actions = random_actions(batch.spec, rng, out.obs, batch.lanes)
            given = actions.copy()
            out.poison()
            batch.step(actions, out)
            out.check_guards()
            np.testing.assert_array_equal(actions, given, "an env must not change the stored action")
            walk.actions.append(actions)
            walk.rows.append(out.copy())
    finally:
        batch.close()
        batch.close()  # a second time is harmless
    return walk


@cache
def walk_of(name: str) -> Walk:
    return record(name, STEPS.get(name, 90))


@pytest.fixture(autouse=True, scope="module")
def _forget() -> Iterator[None]:
    yield
    walk_of.cache_clear()


@every_env
def test_reset_opens_every_lane(name: str) -> None:
    first = walk_of(name).rows[0]
    assert first["first"].all()
    assert (first["step"] == 0).all()
    assert (first["episode"] == 0).all()


@every_env
def test_every_row_is_written_in_full(name: str) -> None:
    """Nothing of the poison is left, in the dtypes and shapes the spec promises."""
    walk = walk_of(name)
    assert walk.faults == []
    for f in walk.spec.observation:
        seen = walk.column(f"obs:{f.name}")
        assert seen.shape[1:] == (walk.lanes, *f.shape)
        assert seen.dtype == f.dtype
        flat = seen.reshape(len(walk.rows), walk.lanes, -1)
        assert np.isfinite(flat).all()
        assert not (flat == poison_of(flat)).all(axis=-1).any()
    for f in WORKER_FIELDS:
        assert walk.column(f.name).shape == (len(walk.rows), walk.lanes)
        assert walk.column(f.name).dtype == f.dtype
    after = {name: walk.column(name)[1:] for name in (*OUTCOME, *OPENING)}
    for name in ("reward", "episode_return"):
        assert (after[name] != poison_of(after[name])).all()
    assert (after["step"] >= 0).all()
    assert (after["episode"] >= 0).all()
    for flag in ("terminated", "truncated", "valid", "first"):
        assert not after[flag].all(), "True is the poison: somewhere it must have been written over"


@every_env
def test_the_observation_changes(name: str) -> None:
    walk = walk_of(name)
    names = [f"obs:{f.name}" for f in walk.spec.observation]
    assert len({row[name].tobytes() for row in walk.rows for name in names}) > 3 * len(names)


@every_env
def test_an_end_has_its_outcome_its_final_row_and_a_new_beginning(name: str) -> None:
    """Row t ends: row t + 1 holds the final observation and does not count, row t + 2 begins the next episode."""
    walk = walk_of(name)
    agents = walk.spec.agents
    ended = walk.column("terminated")[1:] | walk.column("truncated")[1:]
    valid, first = walk.column("valid")[1:], walk.column("first")
    episode, step = walk.column("episode"), walk.column("step")
    assert ended.any(), "the walk is too short to see an end"
    assert valid[ended].all()
    for lane in range(walk.lanes):
        together = slice(lane // agents * agents, (lane // agents + 1) * agents)
        for t in np.nonzero(ended[:-1, lane])[0]:
            assert not first[t + 1, lane], "the final observation belongs to the ended episode"
            assert episode[t + 1, lane] == episode[t, lane]
            assert step[t + 1, lane] == step[t, lane] + 1
            assert not valid[t + 1, lane]
            assert walk.column("reward")[t + 2, lane] == 0
            if agents == 1 or ended[t, together].all():
                assert first[t + 2, lane]
                assert episode[t + 2, lane] == episode[t, lane] + 1
                assert step[t + 2, lane] == 0


@every_env
def test_episodes_begin_only_after_an_end(name: str) -> None:
    walk = walk_of(name)
    valid, first = walk.column("valid")[1:], walk.column("first")[1:]
    assert (valid | first | (walk.spec.agents > 1)).all(), "a row that does not count begins an episode"
    assert not (valid & first).any()
    changes = np.diff(walk.column("episode"), axis=0)
    np.testing.assert_array_equal(changes, first.astype(int))


@every_env
def test_steps_and_returns_add_up(name: str) -> None:
    walk = walk_of(name)
    total, count = np.zeros(walk.lanes), np.zeros(walk.lanes, int)
    for row in walk.rows[1:]:
        total += np.where(row["valid"], row["reward"], 0)
        count += row["valid"]
        ended = row["terminated"] | row["truncated"]
        np.testing.assert_array_equal(np.isfinite(row["episode_return"]), ended)
        np.testing.assert_allclose(row["episode_return"][ended], total[ended], rtol=1e-5, atol=1e-5)
        total[row["first"]], count[row["first"]] = 0, 0
        np.testing.assert_array_equal(row["step"], count)


@every_env
def test_the_same_seeds_give_the_same_walk(name: str) -> None:
    steps = 60
    walk, again = walk_of(name), record(name, steps)
    other = record(name, steps, SEEDS.branch("other"))
    for one, two in zip(walk.rows, again.rows):
        for field_name, array in one.items():
            np.testing.assert_array_equal(array, two[field_name], field_name)
    differs = any(
        not np.array_equal(one[f"obs:{f.name}"], two[f"obs:{f.name}"])
        for one, two in zip(walk.rows, other.rows)
        for f in walk.spec.observation
    )
    assert differs == (name not in WITHOUT_CHANCE)


@every_env
def test_lanes_are_not_copies_of_each_other(name: str) -> None:
    walk = walk_of(name)
    agents = walk.spec.agents
    assert any(
        not np.array_equal(row[f"obs:{f.name}"][0], row[f"obs:{f.name}"][agents])
        for row in walk.rows
        for f in walk.spec.observation
    )
