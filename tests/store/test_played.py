"""Metrics of all episodes, and whether those kept are like them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from storing import make_episode, small_schema

from rollmill.core.errors import StoreError
from rollmill.core.fields import Array
from rollmill.reports.store.comparison import ALARM, ALARM_P, compare
from rollmill.store.derive.merge import merge
from rollmill.store.derive.thinning import note_share
from rollmill.store.episode import EpisodeInfo
from rollmill.store.played import NAME, PARTS, SAMPLE, PlayedEpisodes
from rollmill.store.reader import Store
from rollmill.store.views import Windows, episode_weights
from rollmill.store.writer import StoreWriter

SCHEMA = small_schema()
SHORT, LONG = 2, 20


def coins(count: int, seed: int = 0) -> tuple[Array, Array, Array]:
    """Frames at which episodes began, returns, lengths: short or long, half of them each."""
    rng = np.random.default_rng(seed)
    lengths = np.where(rng.random(count) < 0.5, LONG, SHORT)
    return np.arange(count) * 11, lengths + rng.normal(0, 0.1, count), lengths


def test_moments_are_those_of_all_episodes_however_they_come() -> None:
    first, returns, lengths = coins(5000)
    played = PlayedEpisodes()
    for part in np.array_split(np.arange(5000), 37):
        played.add(first[part], returns[part], lengths[part])
    assert played.count == 5000
    assert len(played.parts) <= PARTS
    for place, part in played.parts.items():
        mine = first // played.width == place
        assert part.moments.count == np.count_nonzero(mine)
        assert part.moments.mean == pytest.approx([returns[mine].mean(), lengths[mine].mean()])
        assert part.moments.variance == pytest.approx([returns[mine].var(), lengths[mine].var()])
        assert len(part.sample) == min(SAMPLE, np.count_nonzero(mine))
        assert set(part.sample[:, 1]) <= set(returns[mine])


def test_the_sample_is_fair_after_parts_were_joined() -> None:
    counts = np.zeros(2)
    for seed in range(200):
        played = PlayedEpisodes(seed)
        played.add(np.array([0] * 300 + [300] * 100), np.array([0.0] * 300 + [1.0] * 100), np.ones(400))
        played.add(np.array([played.width * PARTS]), np.array([5.0]), np.ones(1))  # too far: parts become wider
        values = played.parts[0].sample[:, 1]
        counts += [np.count_nonzero(values == 0), np.count_nonzero(values == 1)]
    assert counts[1] / counts.sum() == pytest.approx(0.25, abs=0.03)


def test_it_comes_back_from_disk_and_goes_on(tmp_path: Path) -> None:
    first, returns, lengths = coins(3000)
    played = PlayedEpisodes()
    played.add(first[:2000], returns[:2000], lengths[:2000])
    played.save(tmp_path)
    assert (tmp_path / NAME).stat().st_size < 64 << 10
    again = PlayedEpisodes.load(tmp_path)
    assert again is not None
    again.add(first[2000:], returns[2000:], lengths[2000:])
    assert again.count == 3000
    total = sum(part.moments.count * part.moments.mean for part in again.parts.values()) / 3000
    assert total == pytest.approx([returns.mean(), lengths.mean()])
    assert PlayedEpisodes.load(tmp_path / "nowhere") is None


@pytest.mark.parametrize(
    "text", ["{", "[]", '{"format": 9}', '{"format": 1, "width": 2, "parts": [{"part": 0}]}', "[" * 9999]
)
def test_a_file_that_makes_no_sense_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / NAME).write_text(text)
    with pytest.raises(StoreError, match=NAME):
        PlayedEpisodes.load(tmp_path)


def store_of(folder: Path, first: Array, lengths: Array, probability: Array) -> Store:
    """A store of episodes of these lengths; a reward of 1 per step."""
    with StoreWriter(folder, SCHEMA) as writer:
        for uid, (frame, length, p) in enumerate(zip(first, lengths, probability)):
            episode = make_episode(SCHEMA, int(length), uid)
            episode.columns["reward"] = np.ones(int(length), np.float32)
            episode.columns["global_step"] = int(frame) + np.arange(int(length))
            info = EpisodeInfo(uid=uid, probability=None if np.isnan(p) else float(p))
            writer.add_episode(replace(episode, info=info, terminated=True))
    return Store(folder)


def played_of(first: Array, lengths: Array) -> PlayedEpisodes:
    played = PlayedEpisodes()
    played.add(first, lengths.astype(float), lengths)
    return played


def test_all_kept_is_exactly_alike(tmp_path: Path) -> None:
    first, _, lengths = coins(300)
    found = compare(store_of(tmp_path, first, lengths, np.ones(300)).table, played_of(first, lengths))
    assert found is not None
    assert (found.kept, found.played) == (300, 300)
    assert all(d.z == 0 for d in found.differences.values())


def test_no_part_goes_on_behind_the_last_episode(tmp_path: Path) -> None:
    """An axis would end where there is nothing."""
    first, _, lengths = coins(300)
    played = played_of(first, lengths)
    found = compare(store_of(tmp_path, first, lengths, np.ones(300)).table, played)
    assert found is not None
    assert first.max() % played.width, "the last part is not full"
    assert found.parts[-1]["frames"] == [first.max() // played.width * played.width, first.max()]


def test_chance_is_told_from_survivors(tmp_path: Path) -> None:
    first, _, lengths = coins(1200)
    played, rng = played_of(first, lengths), np.random.default_rng(1)
    by_chance = rng.random(1200) < 0.4
    fair = compare(store_of(tmp_path / "fair", first[by_chance], lengths[by_chance], np.full(1200, 0.4)).table, played)
    assert fair is not None
    assert fair.agrees
    survivors = rng.random(1200) < np.where(lengths == SHORT, 0.5, 0.3)
    biased = compare(store_of(tmp_path / "b", first[survivors], lengths[survivors], np.full(1200, 0.4)).table, played)
    assert biased is not None
    assert not biased.agrees
    assert biased.differences["length"].z < -ALARM
    assert biased.differences["length"].ks_p < 0.01
    assert "kept episodes are shorter than those played" in biased.sentence()


def test_distributions_are_compared_where_means_agree(tmp_path: Path) -> None:
    """A selection that leaves out the shortest and the longest, as many of both."""
    rng = np.random.default_rng(7)
    first, lengths = np.arange(3000) * 11, rng.integers(1, 101, 3000)
    played = played_of(first, lengths)
    for name, kept, agrees in (
        ("fair", rng.random(3000) < 0.3, True),
        ("middle", (np.abs(lengths - 50.5) < 25) & (rng.random(3000) < 0.6), False),
    ):
        part = store_of(tmp_path / name, first[kept], lengths[kept], np.full(kept.sum(), 0.3))
        found = compare(part.table, played)
        assert found is not None
        assert abs(found.differences["length"].z) < ALARM, "the means tell nothing"
        assert found.agrees is agrees
        assert (found.differences["length"].ks_p < ALARM_P) is not agrees
        assert ("lengths that are spread differently from those played" in found.sentence()) is not agrees


def test_sums_in_32_bits_are_no_other_distribution(tmp_path: Path) -> None:
    first, lengths = np.arange(2000) * 11, np.full(2000, 3)
    played = PlayedEpisodes()
    played.add(first, np.full(2000, 3 * (1 + 1e-7)), lengths)
    found = compare(store_of(tmp_path, first, lengths, np.full(2000, 0.999)).table, played)
    assert found is not None
    assert found.agrees
    assert found.differences["return"].ks == 0


@pytest.mark.parametrize(
    ("probabilities", "values"),
    [((0.5,), "coin"), ((0.9, 0.1), "coin"), ((0.9, 0.1), "rare"), ((0.3, 0.01), "normal"), ((0.05,), "lognormal")],
)
def test_chance_gives_no_alarm(probabilities: tuple[float, ...], values: str) -> None:
    """However probabilities differ, and however few episodes outdo all others: 400 comparisons of 400 episodes."""
    rng = np.random.default_rng(0)
    draw = {
        "coin": lambda: np.where(rng.random(400) < 0.5, 3.0, 75.0),
        "rare": lambda: np.where(rng.random(400) < 0.01, 1000.0, 0.0),
        "normal": lambda: rng.normal(size=400),
        "lognormal": lambda: rng.lognormal(0, 1.5, 400),
    }[values]
    first, z, p = np.arange(400) * 5, [], []
    for seed in range(400):
        returns, probability = draw(), rng.choice(probabilities, 400)
        kept, played = rng.random(400) < probability, PlayedEpisodes(seed)
        played.add(first, returns, returns)
        found = compare(Told(first[kept], returns[kept], probability[kept]), played)  # type: ignore[arg-type]
        assert found is not None
        assert found.agrees
        z.append(found.differences["return"].z)
        p.append(found.differences["return"].ks_p)
    assert np.mean(np.abs(z) > 1.96) < 0.08, "and less than that is noise twice as often as it should be"
    assert np.mean(np.array(p) < 0.05) < 0.08


def test_what_a_killed_run_has_forgotten_is_no_bias() -> None:
    """Everything was to be kept; twenty episodes that were kept are not known, others are, of which none was kept."""
    rng = np.random.default_rng(1)
    lengths = np.where(rng.random(420) < 0.5, SHORT, LONG)
    first, played = np.arange(420) % 256, PlayedEpisodes()
    played.add(first[20:], lengths[20:].astype(float), lengths[20:])
    for kept in (slice(0, 400), slice(0, 420)):
        found = compare(Told(first[kept], lengths[kept].astype(float), np.ones(420)[kept]), played)  # type: ignore[arg-type]
        assert found is not None
        assert 0 < abs(found.differences["length"].z) < 2


class Told:
    """As much of a table of episodes as a comparison asks for."""

    def __init__(self, first: Array, returns: Array, probability: Array) -> None:
        no = np.zeros(len(first), bool)
        self.return_ = self.length = returns
        self._columns = {"finished": ~no, "partial_start": no, "partial_end": no}
        self._columns |= {"probability": probability, "global_step_first": first}

    def __getitem__(self, name: str) -> Array:
        return self._columns[name]


def test_weights_make_up_for_probabilities_that_depend_on_what_was_known_before(tmp_path: Path) -> None:
    first, _, lengths = coins(1500)
    probability = np.where(np.arange(1500) % 2, 0.8, 0.1)
    lengths = np.where(np.arange(1500) % 2, lengths, 2 * lengths)  # and those with 0.1 are longer
    kept = np.random.default_rng(2).random(1500) < probability
    store = store_of(tmp_path, first[kept], lengths[kept], probability[kept])
    found = compare(store.table, played_of(first, lengths))
    assert found is not None
    assert found.agrees
    assert abs(store.table.length.mean() - lengths.mean()) > 3, "without weights it would not"
    weights = episode_weights(store, np.arange(len(store)))
    assert weights.sum() == pytest.approx(1500, rel=0.1)
    windows = Windows(store, 4)
    drawn, _ = windows.where(windows.sample(20_000, np.random.default_rng(3), "episodes", as_played=True))
    drawn_lengths = store.table.length[drawn]
    assert drawn_lengths.mean() == pytest.approx(lengths.mean(), rel=0.07)


def test_there_are_no_weights_for_what_was_not_kept_by_chance(tmp_path: Path) -> None:
    first, _, lengths = coins(20)
    store = store_of(tmp_path, first, lengths, np.where(np.arange(20) < 7, np.nan, 0.5))
    with pytest.raises(StoreError, match="7 of 20 episodes were not kept by chance"):
        Windows(store, 4).sample(3, np.random.default_rng(0), as_played=True)
    assert (
        compare(store_of(tmp_path / "b", first, lengths, np.full(20, np.nan)).table, played_of(first, lengths)) is None
    )


def test_thinning_counts_and_travels_with_copies(tmp_path: Path) -> None:
    first, _, lengths = coins(6)
    store_of(tmp_path / "a", first, lengths, np.array([1.0, 0.5, 0.1, 1.0, 1.0, np.nan]))
    note_share(tmp_path / "a", 0.25)
    expected = [0.25, 0.25, 0.1, 0.25, 0.25, np.nan]
    assert Store(tmp_path / "a").table["probability"] == pytest.approx(expected, nan_ok=True)
    assert [Store(tmp_path / "a").end_record(i).probability for i in (0, 2, 5)] == [0.25, 0.1, None]
    merge([tmp_path / "a"], tmp_path / "b")
    assert Store(tmp_path / "b").table["probability"] == pytest.approx(expected, nan_ok=True)
    (tmp_path / "a" / "thinned.json").write_text('{"share": 3}')
    with pytest.raises(StoreError, match=r"thinned\.json"):
        Store(tmp_path / "a")
