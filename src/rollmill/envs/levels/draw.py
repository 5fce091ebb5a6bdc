"""Which level each episode plays: a set of levels, divided into train and test, and the order they are drawn in.

The k-th draw from a set is a function of k alone (``LevelSet.seed``). What k an episode has is either a function of its
numbers, too, so that nothing has to be agreed on; or, where no level may be drawn twice, its place in a file that all
processes of the run append to (``Tickets``).
"""

from __future__ import annotations

import contextlib
import functools
import io
import json
import os
import struct
import zlib
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np

from rollmill.core import atomic
from rollmill.core.errors import ConfigError, EnvError
from rollmill.core.fields import Array
from rollmill.core.seeds import Seeds
from rollmill.envs.levels.settings import Part
from rollmill.envs.make import EnvInstance, level_store
from rollmill.envs.settings import EnvSettings
from rollmill.envs.tasks.suite import task_number, tasks_of

ALL_SEEDS = 2**31
SPREAD = 1327217885
"""Odd, near 2**31 / golden ratio: multiples of it modulo 2**31 lie evenly, so neighbouring seeds part evenly, too."""
UNSPREAD = pow(SPREAD, -1, ALL_SEEDS)
TICKETS = ".tickets"
"""Files that say which draws of a run were taken by which episodes."""
TRIES = 16
"""Seeds that are looked at for one new level: those that are known already are passed over."""


@dataclass(frozen=True)
class Division:
    """All seeds, divided into train and test."""

    part: Part
    test_share: float

    @property
    def places(self) -> range:
        """Where the part's seeds lie when seeds are spread out."""
        border = round(self.test_share * ALL_SEEDS)
        return {"all": range(ALL_SEEDS), "test": range(border), "train": range(border, ALL_SEEDS)}[self.part]

    def has(self, seeds: Array) -> Array:
        """Return ``[n]`` bool, whether these belong to the part."""
        spread = seeds.astype(np.int64) * SPREAD % ALL_SEEDS
        inside: Array = (spread >= self.places.start) & (spread < self.places.stop)
        return inside

    def seed(self, k: int, start: int, stride: int) -> int:
        """Return the k-th of the part's seeds, in an order that ``start`` and ``stride`` decide; none comes twice."""
        places = self.places
        return (places.start + (start + k * stride) % len(places)) * UNSPREAD % ALL_SEEDS


@dataclass(frozen=True)
class LevelSet:
    """Levels to draw from, by their seeds."""

    name: str
    """That of its files in the run's folder."""
    seeds: Array  # [n] int64, rising
    order: Literal["once", "cycle", "sample"]
    division: Division
    randomness: Seeds

    def seed(self, k: int) -> int:
        """Return the seed of the k-th draw (0, 1, 2 ...)."""
        known = len(self.seeds)
        if self.order == "sample":
            return int(self.seeds[self.randomness.branch("sample", k).integer() % known])
        if self.order == "cycle":
            return int(self.seeds[self._shuffled(k // known)[k % known]])
        return int(self.seeds[self._shuffled(0)[k]]) if k < known else self._new(k - known)

    def _shuffled(self, turn: int) -> Array:
        return _shuffled(self.randomness, turn, len(self.seeds))

    def _new(self, k: int) -> int:
        """Return the k-th level that is not among the known ones."""
        count = len(self.division.places)
        rng = self.randomness.branch("new").generator()
        start, stride = int(rng.integers(count)), int(rng.integers(count))
        while np.gcd(stride, count) != 1:  # else the seeds would come round before all had their turn
            stride = (stride + 1) % count
        for attempt in range(TRIES):
            seed = self.division.seed(k * TRIES + attempt, start, stride)
            at = int(np.searchsorted(self.seeds, seed))
            if at == len(self.seeds) or self.seeds[at] != seed:
                return seed
        raise EnvError(f"env.levels: no new level was found after {len(self.seeds) + k:,} others: raise test_share")


@functools.lru_cache(maxsize=64)
def _shuffled(randomness: Seeds, turn: int, count: int) -> Array:
    return randomness.branch("turn", turn).generator().permutation(count)


class Tickets:
    """Numbers 0, 1, 2 ... of which each is given once, to any number of processes of a machine.

    A file of records of 16 bytes (env, episode). Whoever needs a number appends a record; where the system has put it
    is the number. Nothing is locked, a process that dies takes at most its own number with it, and the file says for
    ever which episode got which.
    """

    RECORD = struct.Struct("<qq")

    def __init__(self, path: Path, again: bool) -> None:
        """Keep numbers in a file. ``again``: an episode that has one keeps it (a resumed run that replays them)."""
        self.path = path
        self._again = again
        self._file: io.FileIO | None = None
        self._given: dict[int, tuple[int, int]] = {}  # env -> (episode, number): of each env's last episode
        self._earlier: dict[tuple[int, int], int] = {}

    def number(self, env: int, episode: int) -> int:
        """Return the number of an episode, drawn at the first call."""
        last = self._given.get(env)
        if last is not None and last[0] == episode:
            return last[1]
        number = self._draw(env, episode)
        self._given[env] = (episode, number)
        return number

    def known(self, env: int, episode: int) -> int | None:
        """Return the number that an episode has got, whichever process has drawn it."""
        return self._read().get((env, episode))

    def _draw(self, env: int, episode: int) -> int:
        if self._file is None:
            self._file = open(self.path, "ab", buffering=0)  # noqa: SIM115 - until the process ends
            self._earlier = self._read() if self._again else {}
        if (env, episode) in self._earlier:
            return self._earlier[env, episode]
        size = self.RECORD.size
        if self._file.write(self.RECORD.pack(env, episode)) != size:
            raise OSError(f"{self.path}: the disk is full")
        # Appended to by others as well: the position is where this process's own record ends.
        return os.lseek(self._file.fileno(), 0, os.SEEK_CUR) // size - 1

    def _read(self) -> dict[tuple[int, int], int]:
        with contextlib.suppress(FileNotFoundError):
            data = self.path.read_bytes()
            whole = len(data) // self.RECORD.size * self.RECORD.size
            records = np.frombuffer(data[:whole], np.int64).reshape(-1, 2)
            return {(env, episode): number for number, (env, episode) in enumerate(records.tolist())}
        return {}


def mend_tickets(folder: Path) -> None:
    """Cut off what a full disk or a power cut has left of a record: the next ones must lie at whole numbers."""
    for path in folder.glob(f"*{TICKETS}"):
        os.truncate(path, path.stat().st_size // Tickets.RECORD.size * Tickets.RECORD.size)


@dataclass(frozen=True)
class Player:
    """Whose levels an environment draws."""

    policy: int = 0
    task: int = 0


class LevelDraws:
    """The seeds of all episodes of a run, by environment and episode."""

    def __init__(
        self,
        sets: tuple[LevelSet, ...],
        players: tuple[Player, ...],
        tickets: Path | None = None,
        again: bool = False,
        first_env: int = 0,
    ) -> None:
        """Draw from ``sets``, one per task, for ``players``, one per environment of the sampler. ``tickets``: a folder
        of the run; without one, draws follow from the numbers of environment and episode. ``first_env``: the number, in
        the run, of the sampler's first environment."""
        self._sets, self._players, self._again, self._first_env = sets, players, again, first_env
        self._folder = tickets
        self._tasks_played = len({player.task for player in players})  # one, where ``env.task`` names it
        self._tickets: dict[Player, Tickets] = {}
        self._ranks: dict[int, tuple[int, int]] = {}

    def seed(self, env: int, episode: int) -> int:
        """Return what the episode is reset with. ``env``: its number in the sampler."""
        player = self._players[env]
        tickets = self._tickets_of(player)
        if tickets is None:
            return self._set(player).seed(self._place(env, episode))
        return self._set(player).seed(tickets.number(self._first_env + env, episode))

    def told_seed(self, env: int, episode: int) -> int | None:
        """Return the seed of an episode for whoever only asks: None where the episode has not drawn yet."""
        player = self._players[env]
        tickets = self._tickets_of(player)
        number = self._place(env, episode) if tickets is None else tickets.known(self._first_env + env, episode)
        return None if number is None else self._set(player).seed(number)

    def numbered(self, env: int, number: int) -> int:
        """Return the seed of an episode that is numbered over the whole run (``EpisodeSchedule``)."""
        return self._set(self._players[env]).seed(number // self._tasks_played)

    def _set(self, player: Player) -> LevelSet:
        known = self._sets[player.task]
        return replace(known, randomness=known.randomness.branch("policy", player.policy))

    def _tickets_of(self, player: Player) -> Tickets | None:
        if self._folder is None or self._sets[player.task].order != "once":
            return None
        if player not in self._tickets:
            name = f"{self._sets[player.task].name}-policy_{player.policy}{TICKETS}"
            self._tickets[player] = Tickets(self._folder / name, self._again)
        return self._tickets[player]

    def _place(self, env: int, episode: int) -> int:
        """Return which draw an episode has: they are dealt out in turn to the environments of one player."""
        if env not in self._ranks:
            alike = [k for k, player in enumerate(self._players) if player == self._players[env]]
            self._ranks[env] = (alike.index(env), len(alike))
        rank, count = self._ranks[env]
        return episode * count + rank


def level_set(env: EnvSettings, number: int, randomness: Seeds, tickets: Path | None = None) -> LevelSet:
    """Return the levels of one environment, the run's ``number``-th task; raises ConfigError if there are none.

    ``tickets``: a folder that remembers which were known when the run began.
    """
    settings = env.levels
    name = f"task_{number}-{zlib.crc32(json.dumps(asdict(settings)).encode()):08x}"  # of other settings: other files
    division = Division(settings.part, settings.test_share)
    if settings.count:
        seeds = np.arange(settings.first, settings.first + settings.count, dtype=np.int64)
    else:
        known = level_store(env).seeds
        seeds = known() if tickets is None else remembered_seeds(tickets / f"{name}.seeds", known)
    seeds = seeds[division.has(seeds)]
    if not len(seeds) and settings.order != "once":
        where = f"{settings.count} seeds hold none" if settings.count else f"{settings.folder} holds none"
        part = "" if settings.part == "all" else f" of the part {settings.part}"
        raise ConfigError(
            f"env.levels.draw={settings.order} needs levels of {env.id}{part}, and {where}; "
            f"make some first: rollmill levels make {env.id} --count 1000 env.levels={settings.folder or 'FOLDER'}"
        )
    return LevelSet(name, seeds, settings.order, division, randomness)


def remembered_seeds(path: Path, known: Callable[[], Array]) -> Array:
    """Return the levels that were known when the run began: a resumed run must draw from the same ones."""
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        atomic.create_bytes(path, [known().astype("<i8").tobytes()])
    return np.frombuffer(path.read_bytes(), "<i8").astype(np.int64)


def draws_of(
    env: EnvSettings,
    players: Sequence[tuple[EnvInstance, int]],
    randomness: Seeds,
    tickets: Path | None = None,
    again: bool = False,
) -> LevelDraws | None:
    """Return what a run draws from; None if its settings name no levels. Raises ConfigError if there are none.

    ``players``: every environment of the run, and the policy that acts in it. ``tickets``: a folder of the run, which
    outlives it; see ``LevelDraws``.
    """
    if not env.levels.on:
        return None
    if tickets is not None:
        tickets.mkdir(parents=True, exist_ok=True)
        mend_tickets(tickets)
    tasks = tasks_of(env)
    sets = _sets(env, randomness, tickets)
    found = tuple(Player(policy, task_number(env, instance) if tasks else 0) for instance, policy in players)
    first = players[0][0].index if players else 0
    return LevelDraws(sets, found, tickets, again, first)


def check_levels(env: EnvSettings) -> None:
    """Refuse settings that leave nothing to draw from, before any process starts."""
    if env.levels.on:
        _sets(env, Seeds(0), None)


def _sets(env: EnvSettings, randomness: Seeds, tickets: Path | None) -> tuple[LevelSet, ...]:
    singles = [task.settings(env) for task in tasks_of(env)] or [env]
    return tuple(level_set(single, k, randomness.branch("task", k), tickets) for k, single in enumerate(singles))
