"""Where the members of a population of separate runs meet: a folder that all of them see::

    population.json         who takes part, what is tuned, how, and from which seed; written before anybody begins
    reports/N/K.json        written by member K when it is as far as round N asks: its frames and its objective
    reports/N/K.ckpt        its checkpoint of that moment, until nobody can need it any more
    lost/N/K.json           round N is not to wait for member K: it failed for good, or was cancelled
    rounds/N.json           what was decided, and the rules' state after it

Nobody has to stay alive for it. A round is a pure function of the reports, so whoever sees the last one decides; its
file is created, never replaced, and of several who decide at the same moment the first one's is everybody's. Who is at
work is told by the lock of its run folder, which goes with its holder: no clocks have to agree.
"""

from __future__ import annotations

import errno
import json
import math
import os
import shutil
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rollmill.core import atomic
from rollmill.core.config.load import load_config
from rollmill.core.config.plain import to_dict
from rollmill.core.errors import RunFolderError
from rollmill.core.opening import read_json
from rollmill.core.run_folder import holder
from rollmill.core.seeds import Seeds
from rollmill.core.shapes import MAPPING, Shape, check_shape
from rollmill.pbt.evidence import Evidence
from rollmill.pbt.ledger import NAME, Entry, Ledger, read_ledger
from rollmill.pbt.population import STATE_SHAPE, Population, Values, plain
from rollmill.pbt.settings import PbtSettings
from rollmill.pbt.space import parse_space

ABOUT_SHAPE: Shape = {"pbt": MAPPING, "configured": {str: float}, "period": int, "seed": int, "runs": [str]}
REPORT_SHAPE: Shape = {"frames": int, "mean": (float, None), "error": (float, None), "episodes": int}
LOST_SHAPE: Shape = {"frames": int, "again": bool, "why": str}
ROUND_SHAPE: Shape = {"entry": {"round": int, "members": [MAPPING], "moves": [MAPPING]}, "rules": STATE_SHAPE}
KEPT_ROUNDS = 3
"""Newest rounds whose donors' checkpoints stay: a member that died may come back after one more round."""


@dataclass(frozen=True)
class About:
    """What ``population.json`` says."""

    pbt: PbtSettings
    configured: Mapping[str, float]
    """What the runs' own settings say of every tuned one."""
    period: int
    """Frames of a member between two rounds."""
    seed: int
    runs: Sequence[str]
    """The folder of every member's run, from the folder of the experiment."""

    def to_dict(self) -> dict[str, Any]:
        plain = {"configured": dict(self.configured), "period": self.period, "seed": self.seed}
        return {"pbt": to_dict(self.pbt), **plain, "runs": list(self.runs)}

    @classmethod
    def from_dict(cls, value: Mapping[str, Any]) -> About:
        check_shape(value, ABOUT_SHAPE)
        pbt = load_config(PbtSettings, [], [], base=value["pbt"])
        return cls(pbt, value["configured"], value["period"], value["seed"], value["runs"])

    def population(self) -> Population:
        """Return the rules as they stand before the first round."""
        seeds = Seeds(self.seed).branch("pbt")
        return Population(self.pbt, parse_space(self.pbt.tuned), self.configured, seeds, self.period)


@dataclass(frozen=True)
class Decided:
    """One round, and what came of it for every member."""

    number: int
    settings: Sequence[Values]
    """Of every member from now on."""
    next_at: int
    """Frames of each member at which the next round is due."""
    donors: Mapping[int, int] = field(default_factory=dict)
    """Whose weights a member goes on from, of those that do not keep their own."""
    frames: Sequence[int] = ()
    """Of every member at this round."""
    lost: Collection[int] = ()
    """Members that the round did not wait for."""


class Exchange:
    """The folder, below that of an experiment (where the members' runs are, and the ledger)."""

    def __init__(self, experiment: Path) -> None:
        self.experiment, self.folder = experiment, experiment / "launch" / "population"
        self._about: About | None = None

    # -- what it is about --------------------------------------------------------------------------

    @property
    def exists(self) -> bool:
        return (self.folder / "population.json").is_file()

    def create(self, about: About) -> None:
        """Write down who takes part and how; raises RunFolderError if one with other settings has begun."""
        if self.exists and self.about().to_dict() != about.to_dict() and (self.folder / "reports").exists():
            raise RunFolderError(f"{self.folder}: this population has begun with other settings: choose another name")
        _write(self.folder / "population.json", about.to_dict())
        self._about = about

    def about(self) -> About:
        if self._about is None:
            value = _read(self.folder / "population.json", ABOUT_SHAPE)
            if value is None:
                raise RunFolderError(
                    f"{self.folder}: there is no population; `rollmill launch run` makes one from a description"
                )
            self._about = About.from_dict(value)
        return self._about

    # -- rounds ------------------------------------------------------------------------------------

    @property
    def newest(self) -> int:
        """Number of the newest round that was decided; 0 before the first."""
        names = os.listdir(self.folder / "rounds") if (self.folder / "rounds").is_dir() else []
        return max((int(name.removesuffix(".json")) for name in names if name[0] != "."), default=0)

    def decided(self, number: int) -> Decided | None:
        """Return what a round has decided; 0: what everybody begins with. None if it is still to come."""
        if number == 0:
            begun = self.about().population()
            return Decided(0, begun.settings, begun.next_at)
        value = self._round(number)
        if value is None:
            return None
        entry, rules = value["entry"], value["rules"]
        donors = {move["member"]: move["from"] for move in entry["moves"] if move["from"] is not None}
        frames = [own["frames"] for own in entry["members"]]
        return Decided(
            number, rules["settings"], rules["next_at"], donors, frames, set(map(int, entry.get("lost", {})))
        )

    def report(self, number: int, member: int, frames: int, evidence: Evidence, checkpoint: Path) -> None:
        """Report that ``member`` is as far as round ``number`` asks, with this checkpoint."""
        place = self.folder / "reports" / str(number)
        try:
            place.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise _unwritable(place, error) from error
        _link(checkpoint, self.checkpoint(number, member))
        # The report comes last: who has one has the checkpoint.
        known = {"mean": plain(evidence.mean), "error": plain(evidence.error), "episodes": evidence.episodes}
        _write(place / f"{member}.json", {"frames": frames, **known})

    def reported(self, number: int, member: int) -> bool:
        return (self.folder / "reports" / str(number) / f"{member}.json").is_file()

    def checkpoint(self, number: int, member: int) -> Path:
        """Return the path of a member's checkpoint, of the moment of its report for a round."""
        return self.folder / "reports" / str(number) / f"{member}.ckpt"

    def lose(self, number: int, member: int, frames: int, why: str, again: bool) -> None:
        """Say that round ``number`` need not wait for this member; ``again``: it comes back with another's weights."""
        _write(self.folder / "lost" / str(number) / f"{member}.json", {"frames": frames, "again": again, "why": why})

    def is_lost(self, number: int, member: int) -> bool:
        return (self.folder / "lost" / str(number) / f"{member}.json").is_file()

    def found(self, number: int, member: int) -> None:
        """Say that a member that round ``number`` did not wait for was started again."""
        (self.folder / "lost" / str(number) / f"{member}.json").unlink(missing_ok=True)

    def decide(self) -> int:
        """Decide the next round, if nobody is missing; returns the number of the newest."""
        number, about = self.newest + 1, self.about()
        frames: list[int] = []
        evidence: list[Evidence] = []
        lost: dict[int, Mapping[str, Any]] = {}
        for member in range(len(about.runs)):
            found = _read(self.folder / "reports" / str(number) / f"{member}.json", REPORT_SHAPE)
            if found is None:
                gone = _read(self.folder / "lost" / str(number) / f"{member}.json", LOST_SHAPE)
                if gone is None:
                    return number - 1
                lost[member] = gone
            frames.append((found or lost[member])["frames"])
            evidence.append(_evidence(found) if found else Evidence.of([]))
        if len(lost) == len(frames):
            return number - 1
        rules = self._rules(number - 1)
        done = rules.decide(frames, evidence, [k for k, mark in lost.items() if mark["again"]])
        entry = done.entry()
        if lost:
            entry["lost"] = {str(member): mark["why"] for member, mark in lost.items()}
        content = json.dumps({"entry": entry, "rules": rules.state()}, indent=2, allow_nan=False)
        try:
            (self.folder / "rounds").mkdir(exist_ok=True)
            atomic.create_bytes(self.folder / "rounds" / f"{number}.json", [content.encode()])
        except OSError as error:
            raise _unwritable(self.folder, error) from error
        return number

    def missing(self, member: int) -> list[int]:
        """Return the members that the next round waits for and that nobody trains now: they need a place to go on."""
        number, runs = self.newest + 1, self.about().runs
        waited = [k for k in range(len(runs)) if k != member and not self.reported(number, k)]
        here = [k for k in waited if not self.is_lost(number, k)]
        return [k for k in here if not holder(self.experiment / runs[k])]

    def _round(self, number: int) -> dict[str, Any] | None:
        return _read(self.folder / "rounds" / f"{number}.json", ROUND_SHAPE)

    def _rules(self, number: int) -> Population:
        """Return the rules as they stand after a round."""
        rules = self.about().population()
        if number:
            value = self._round(number)
            assert value is not None, "rounds are decided one after the other"
            rules.load_state(value["rules"])
        return rules

    # -- what people read ----------------------------------------------------------------------------

    def entries(self) -> list[Entry]:
        """Return the entries of the ledger: how it began, and every round."""
        about = self.about()
        begin = [dict(own) for own in about.population().settings]
        head = {"begin": begin, "method": about.pbt.method, "objective": about.pbt.objective, "seed": about.seed}
        rounds = [self._round(number) for number in range(1, self.newest + 1)]
        return [head, *(value["entry"] for value in rounds if value is not None)]

    def write_ledger(self) -> None:
        """Write ``population.jsonl`` of the experiment, where it is not up to date."""
        entries = self.entries()
        path = self.experiment / NAME
        if not path.is_file() or len(read_ledger(path)) != len(entries):
            Ledger(self.experiment).begin(entries)

    def tidy(self) -> None:
        """Remove checkpoints that nobody can need any more: all but those of donors, and theirs after some rounds."""
        newest = self.newest
        for place in (self.folder / "reports").glob("*"):
            number = int(place.name)
            if number > newest:
                continue
            found = self.decided(number)
            donors = set(found.donors.values()) if found and number > newest - KEPT_ROUNDS else set()
            for path in place.glob("*.ckpt"):
                if path.stem not in {str(donor) for donor in donors}:
                    path.unlink(missing_ok=True)


def _evidence(report: Mapping[str, Any]) -> Evidence:
    mean, error = report["mean"], report["error"]
    return Evidence(math.nan if mean is None else mean, math.inf if error is None else error, report["episodes"])


def _link(source: Path, target: Path) -> None:
    """Give the same file another name; where the disk has no hard links, copy it."""
    try:
        target.unlink(missing_ok=True)
        os.link(source, target)
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.EXDEV, errno.ENOTSUP, errno.ENOSYS):
            raise _unwritable(target, error) from error
        shutil.copyfile(source, target)


def _read(path: Path, shape: Shape) -> dict[str, Any] | None:
    try:
        value = read_json(path)
        check_shape(value, shape)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError) as error:
        raise RunFolderError(f"{path}: cannot be read: {error}") from error
    found: dict[str, Any] = value
    return found


def _write(path: Path, value: Mapping[str, Any]) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        atomic.write_json(path, value)
    except OSError as error:
        raise _unwritable(path, error) from error


def _unwritable(path: Path, error: OSError) -> RunFolderError:
    return RunFolderError(f"{path}: cannot be written: {error.strerror or error}")
