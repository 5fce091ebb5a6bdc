"""Looking after folders of levels: generating many at once, taking over those of others, finding damage."""

from __future__ import annotations

import contextlib
import functools
import io
import itertools
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np

from rollmill.core.errors import ConfigError
from rollmill.core.fields import Obs
from rollmill.core.machine import available_cores
from rollmill.core.opening import read_json
from rollmill.core.protocols import Env
from rollmill.envs.levels.store import SOURCE_FILE, Level, LevelStore
from rollmill.envs.make import check_env_settings, level_store, make_env
from rollmill.envs.settings import EnvSettings
from rollmill.envs.tasks.suite import tasks_of
from rollmill.store.parallel import map_unordered

Progress = Callable[[int, int], None]
CHUNKS_PER_WORKER = 50
"""Into how many pieces the share of a process is cut: so often is progress told."""
SEED_LISTS = ".dm_lvl_seeds"
"""Files of Sample Factory's cache for DeepMind Lab: a line ``seed key`` for every level it has."""


# -- generating --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Made:
    """What came of generating the levels of one environment."""

    env: str
    folder: str
    asked: int
    there: int
    """Of these, so many had been there before."""
    made: int
    bytes: int
    """Of all levels in the folder."""

    @property
    def missing(self) -> int:
        return self.asked - self.there - self.made


def make_levels(env: EnvSettings, seeds: range, workers: int, progress: Progress) -> list[Made]:
    """Generate the levels of these seeds in several processes, those of every task of a suite; what is there is left.

    ``workers`` 0: one per core.
    """
    check_env_settings(env)
    if not seeds:
        raise ConfigError("--count must be at least 1")
    if seeds.start < 0 or seeds.stop > 2**31:
        raise ConfigError("--first and --count: seeds lie from 0 to 2**31 - 1")
    singles = [task.settings(env) for task in tasks_of(env)] or [env]
    stores = [level_store(single) for single in singles]
    wanted = np.arange(seeds.start, seeds.stop)
    before = [np.isin(wanted, store.seeds()) for store in stores]
    todo = [wanted[~there] for there in before]
    total, done = sum(map(len, todo)), 0
    count = min(workers or available_cores(), max(1, total))
    size = max(1, total // (count * CHUNKS_PER_WORKER))
    items = [
        (json.dumps(asdict(single)), [int(seed) for seed in part[at : at + size]])
        for single, part in zip(singles, todo)
        for at in range(0, len(part), size)
    ]
    progress(0, total)
    for (_, part), _ in map_unordered(_generate, items, count):
        done += len(part)
        progress(done, total)
    found = []
    for single, store, there in zip(singles, stores, before, strict=True):
        now = np.isin(wanted, store.seeds())
        counts = (len(wanted), int(there.sum()), int((now & ~there).sum()))
        found.append(Made(single.id, str(store.folder), *counts, store.total_bytes))
    return found


def _generate(item: tuple[str, list[int]]) -> None:
    """Begin an episode of each seed, in a process of its own."""
    settings, seeds = item
    with contextlib.redirect_stdout(io.StringIO()):  # BabyAI says what it rejects, a line each
        env, obs = _env_of(settings)
        for seed in seeds:
            env.reset(seed, obs)


@functools.lru_cache(maxsize=1)
def _env_of(settings: str) -> tuple[Env, Obs]:
    env = make_env(EnvSettings.of(json.loads(settings)))
    return env, {f.name: np.zeros((env.spec.agents, *f.shape), f.dtype) for f in env.spec.observation}


# -- looking at them ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Source:
    """The levels of one environment, as they lie there."""

    name: str
    env: str
    args: dict[str, object]
    packages: dict[str, str]
    levels: int
    seeds: int
    bytes: int
    damaged: int
    """Files that were put aside."""


def stores_in(folder: Path) -> list[LevelStore]:
    """Return the stores in a folder, or the one that it is. Raises ConfigError if there are none."""
    found = [folder] if (folder / SOURCE_FILE).is_file() else sorted(p.parent for p in folder.glob(f"*/{SOURCE_FILE}"))
    if not found:
        raise ConfigError(f"{folder}: no levels are kept here (rollmill levels make ENV {folder} --count 100)")
    return [LevelStore(path) for path in found]


def describe_levels(folder: Path) -> list[Source]:
    """Return what a folder holds, by environment."""
    return [_describe(store) for store in stores_in(folder)]


def _describe(store: LevelStore) -> Source:
    about = read_json(store.folder / SOURCE_FILE)
    return Source(
        store.folder.name,
        str(about["env"]),
        dict(about["args"]),
        dict(about["packages"]),
        len(store.levels()),
        len(store.seeds()),
        store.total_bytes,
        len(store.damaged()),
    )


@dataclass
class LevelCheck:
    """What a look at every level has found."""

    levels: int = 0
    bytes: int = 0
    damaged: list[str] = field(default_factory=list)
    """Files that are not what they should be, and earlier ones that were put aside."""
    doubtful: list[str] = field(default_factory=list)
    """Levels of which there are several: the generator gives another one each time."""
    removed: int = 0
    """Temporary files of writers that have died."""

    @property
    def good(self) -> bool:
        return not self.damaged


def verify_levels(folder: Path, workers: int, progress: Progress) -> LevelCheck:
    """Read every level and compare it with its name; a damaged one is put aside, so that it is made anew."""
    found = LevelCheck()
    stores = stores_in(folder)
    by_store = [(store, store.levels()) for store in stores]
    total = sum(level.size for _, levels in by_store for level in levels)
    for store, levels in by_store:
        found.damaged += map(str, store.damaged())
        found.doubtful += _doubtful(store, levels)
        for path in store.leftovers():
            path.unlink(missing_ok=True)
            found.removed += 1
        items = [(str(store.folder), level) for level in levels]
        progress(found.bytes, total)
        for (_, level), good in map_unordered(_is_good, items, workers):
            found.levels, found.bytes = found.levels + 1, found.bytes + level.size
            if not good:
                found.damaged.append(str(store.folder / level.place))
            progress(found.bytes, total)
    return found


def _is_good(item: tuple[str, Level]) -> bool:
    folder, level = item
    return LevelStore(Path(folder)).read(level) is not None


def _doubtful(store: LevelStore, levels: Sequence[Level]) -> Iterator[str]:
    for one, two in itertools.pairwise(levels):
        if one.key == two.key and one.digest != two.digest:
            yield f"{store.folder.name}: seed {one.seed} has more than one level"


# -- taking over those of others ---------------------------------------------------------------------


@dataclass
class Imported:
    """What came of a cache of DeepMind Lab's levels."""

    levels: dict[str, int] = field(default_factory=dict)
    """Seeds that are known now, by Lab's name of the level."""
    missing: int = 0
    """Entries whose level is not in the cache."""
    unreadable: list[str] = field(default_factory=list)
    """Lines that are none."""


def import_dmlab(cache: Path, folder: Path, progress: Progress) -> Imported:
    """Take over a cache as Sample Factory keeps it: levels by their keys, lists of seeds by the names of levels."""
    lists = sorted(cache.rglob(f"*{SEED_LISTS}"))
    if not lists:
        raise ConfigError(f"{cache}: no *{SEED_LISTS} in it or below: it is no cache of DeepMind Lab's levels")
    found = Imported()
    entries = [(path, number, line) for path in lists for number, line in enumerate(_lines(path), 1) if line.strip()]
    stores: dict[Path, LevelStore] = {}
    for done, (path, number, line) in enumerate(entries, 1):
        name = path.relative_to(cache).with_suffix("").as_posix().removeprefix("_")
        store = stores.setdefault(path, _lab_store(name, folder))
        entry = _parse(line)
        if entry is None:
            found.unreadable.append(f"{path}, line {number}: {line.strip()[:80]!r}")
        elif (source := _inside(cache, entry[1])) is None:
            found.missing += 1
        else:
            store.put(entry[1], entry[0], source.read_bytes())
        progress(done, len(entries))
    for path, store in stores.items():
        found.levels[path.relative_to(cache).with_suffix("").as_posix().removeprefix("_")] = len(store.seeds())
    return found


def _lab_store(name: str, folder: Path) -> LevelStore:
    return level_store(EnvSettings.of({"id": f"dmlab:{name}", "levels": {"folder": str(folder), "max_gb": 1e6}}))


def _lines(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8", errors="replace").splitlines()


def _parse(line: str) -> tuple[int, str] | None:
    """Return (seed, key) of a line ``seed key``; None for other lines."""
    seed, _, key = line.strip().partition(" ")
    return (int(seed), key.strip()) if seed.isdecimal() and key.strip() else None


def _inside(cache: Path, key: str) -> Path | None:
    """Return the file of a key, if there is one in the cache: a key of somebody else's must not lead out of it."""
    path = (cache / key).resolve()
    return path if path.is_relative_to(cache.resolve()) and path.is_file() else None
