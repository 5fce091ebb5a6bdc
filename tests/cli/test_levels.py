"""``rollmill levels`` on real folders."""

from __future__ import annotations

from pathlib import Path

import pytest
from level_envs import id_of
from running import SUPPORT, Call

from rollmill.envs.dmlab import LabCache
from rollmill.envs.levels.store import LevelStore

ENV = id_of()


def only(folder: Path) -> LevelStore:
    (made,) = (path for path in folder.iterdir() if path.is_dir())
    return LevelStore(made)


def test_levels_are_made_once_and_the_rest_later(tmp_path: Path, call: Call) -> None:
    done = call("levels", "make", ENV, "levels", "--count", "6", "--workers", "2", "--json")
    assert done.code == 0, done.err
    assert [(row["asked"], row["there"], row["made"]) for row in done.json] == [(6, 0, 6)]  # type: ignore[union-attr]
    again = call("levels", "make", ENV, "levels", "--count", "4", "--first", "4")
    assert "2 levels made, 2 were there" in again.out
    assert only(tmp_path / "levels").seeds().tolist() == list(range(8))


def test_a_suite_has_levels_of_every_task(tmp_path: Path, call: Call) -> None:
    done = call("levels", "make", "minigrid_five", "levels", "--count", "2", "--workers", "1")
    assert done.code == 0, done.err
    assert done.out.count("2 levels made") == 5
    listed = call("levels", "info", "levels")
    assert "MiniGrid-DoorKey-5x5-v0" in listed.out
    found = call("levels", "info", "levels", "--json").json
    assert [row["levels"] for row in found] == [2] * 5  # type: ignore[index]
    assert {row["packages"]["minigrid"] for row in found}  # type: ignore[index]


def test_what_does_not_fit_is_told(tmp_path: Path, call: Call) -> None:
    done = call("levels", "make", ENV, "levels", "--count", "9", "--workers", "1", "env.levels.max_gb=1e-6")
    assert done.code == 1
    assert "WERE NOT KEPT" in done.out


def test_damage_is_named_once_and_put_aside(tmp_path: Path, call: Call) -> None:
    call("levels", "make", ENV, "levels", "--count", "5", "--workers", "1")
    assert call("levels", "verify", "levels").code == 0
    store = only(tmp_path / "levels")
    path = store.folder / store.levels()[2].place
    path.write_bytes(path.read_bytes()[:-1])
    done = call("levels", "verify", "levels", "--workers", "1")
    assert done.code == 1
    assert f"DAMAGED: {path.relative_to(tmp_path)}" in done.out
    assert "5 levels" in done.out
    later = call("levels", "verify", "levels")
    assert later.code == 1
    assert path.stem in later.out
    call("levels", "make", ENV, "levels", "--count", "5", "--workers", "1")
    assert call("levels", "info", "levels", "--json").json[0]["levels"] == 5  # type: ignore[index]


def test_a_generator_that_gives_another_level_each_time_is_noted(tmp_path: Path, call: Call) -> None:
    call("levels", "make", ENV, "levels", "--count", "1", "--workers", "1")
    only(tmp_path / "levels").put("0", 0, b"another")
    done = call("levels", "verify", "levels")
    assert done.code == 0
    assert "seed 0 has more than one level" in done.out


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    """As Sample Factory keeps DeepMind Lab's levels: three of them, and lists of seeds with a line too many each."""
    folder = tmp_path / "cache"
    lists = folder / "_contributed" / "dmlab30"
    lists.mkdir(parents=True)
    for key in ("k1", "k2", "k3"):
        (folder / key).write_bytes(key.encode() * 100)
    (tmp_path / "secret").write_bytes(b"not a level")
    (lists / "rooms_watermaze.dm_lvl_seeds").write_text("11 k1\n12 k2\n13 gone\n14 ../secret\n")
    (lists / "language_select_described_object.dm_lvl_seeds").write_text("11 k3\n\nno line\n")
    return folder


def test_a_published_cache_is_taken_over(
    cache: Path, tmp_path: Path, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = call("levels", "import", "cache", "levels")
    assert done.code == 1
    assert "contributed/dmlab30/rooms_watermaze: 2 seeds" in done.out
    assert "contributed/dmlab30/language_select_described_object: 1 seeds" in done.out
    assert "2 entries have no level" in done.out
    assert "dm_lvl_seeds, line 3: 'no line'" in done.out
    assert call("levels", "verify", "levels").code == 0
    store = next(LevelStore(path) for path in (tmp_path / "levels").iterdir() if "watermaze" in path.name)
    assert store.seeds().tolist() == [11, 12]
    assert LabCache(store).fetch("k2", str(tmp_path / "out"))
    assert (tmp_path / "out").read_bytes() == b"k2" * 100
    # A training of the same level draws from these seeds.
    monkeypatch.syspath_prepend(SUPPORT / "lab")
    level = "dmlab:contributed/dmlab30/rooms_watermaze"
    words = ("env.levels=levels", "env.levels.draw=cycle", "env.args={width: 8, height: 6}", "--episodes", "4")
    played = call("collect", "--policy", "random", f"env={level}", *words, "--out", "data", "--seed", "3")
    assert played.code == 0, played.err
    assert LevelStore(store.folder).seeds().tolist() == [11, 12], "no other level was made"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("make", "toy_target", "levels", "--count", "3"), "the levels of toy_target cannot be kept"),
        (("make", "treasure_hunter", "levels", "--count", "3"), "treasure_hunt"),
        (("make", ENV, "levels", "--count", "0"), "--count must be at least 1"),
        (("make", ENV, "levels", "--count", "3", "--first", "-1"), "seeds lie from 0"),
        (("make", ENV, "levels"), "--count"),
        (("make", ENV, "levels", "--count", "3", "--workers", "-2"), "--workers -2"),
        (("info", "nothing"), "no levels are kept here"),
        (("verify", "."), "no levels are kept here"),
        (("import", ".", "levels"), "it is no cache of DeepMind Lab's levels"),
    ],
)
def test_what_makes_no_sense_gets_one_line(words: tuple[str, ...], said: str, call: Call) -> None:
    done = call("levels", *words)
    assert done.code != 0
    assert said in done.err
    assert len(done.err.strip().splitlines()) == 1
