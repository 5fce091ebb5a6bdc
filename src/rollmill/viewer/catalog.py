"""All runs below a folder as the viewer shows them, kept up to date.

An *id* is made of a run's place below the root, so that a link to it stays good. Requests name runs by ids alone, and
ids are looked up here: no path from a browser ever reaches the disk.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import threading
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from rollmill.core.errors import ConfigError, RollmillError
from rollmill.core.opening import check_within
from rollmill.core.run_folder import RunFolder, is_run
from rollmill.core.run_kind import FOLDERS, RECORDS, UNITS
from rollmill.launch.compare.aggregate import POINTS, SEEDS, t975
from rollmill.launch.compare.gather import Found, in_groups
from rollmill.launch.listing import RETURNS, run_folders, standing
from rollmill.pbt.ledger import NAME as LEDGER
from rollmill.store.format.schema import STORE_FILE
from rollmill.viewer import facts
from rollmill.viewer.episodes import store_folders
from rollmill.viewer.index import Index, Stamp, stamp_of

SECONDS = 1.0
"""How old an answer may be at most."""
SHARE = 50
"""Looking takes at most one of so many parts of the time."""
_FREEDOMS = 201
"""Degrees of freedom for which browsers are told the quantile of Student's t; beyond, it changes by less than 1 %."""
_SIM_RATE = "report.sim_rate"
_LAUNCH_FILE = Path("launch") / "plan.json"


@dataclass(frozen=True)
class RunEntry:
    """One run. ``stamps``: of the files that it was read from; ``revision``: of the catalog when it last changed."""

    id: str
    name: str
    """Its folder, from the root on."""
    folder: Path
    found: Found
    state: str
    shown: Mapping[str, Any]
    """What a browser is told besides id, name, group and settings."""
    stamps: tuple[Stamp | None, ...]
    stores: tuple[Path, ...] = ()
    """What it has recorded, its evaluations, and the stages of a world model."""
    revision: int = 0

    @property
    def experiment(self) -> str:
        return self.name.rpartition("/")[0]


@dataclass(frozen=True)
class Look:
    """What a look has found."""

    revision: int = 0
    runs: Mapping[str, RunEntry] = field(default_factory=dict)
    stores: Mapping[str, Path] = field(default_factory=dict)
    """Folders of stores by id, in runs and beside them."""
    experiments: Mapping[str, Path] = field(default_factory=dict)
    """Folders of launched experiments by name."""
    refused: tuple[str, ...] = ()
    """Folders that are not shown, and why."""
    launches: tuple[tuple[Stamp | None, ...], ...] = ()
    """When anything was written down about launches."""


class Catalog:
    """Runs by id. ``refresh`` looks for what has changed; everything else answers from memory."""

    def __init__(self, root: Path, index: Index) -> None:
        if not root.is_dir():
            raise ConfigError(f"{root}: there is no such folder of runs")
        if is_run(root):
            raise ConfigError(f"{root}: is a run; show the folder that it lies in: rollmill view {root.parent}")
        self.root = root.resolve()
        self.index = index
        self.now = Look()
        """Replaced as a whole: whoever answers takes it once, and tells of one look alone."""
        self._lock = threading.Lock()
        self._due = 0.0

    def __getitem__(self, id_: str) -> RunEntry:
        return self.runs[id_]

    @property
    def runs(self) -> Mapping[str, RunEntry]:
        return self.now.runs

    @property
    def stores(self) -> Mapping[str, Path]:
        return self.now.stores

    @property
    def experiments(self) -> Mapping[str, Path]:
        return self.now.experiments

    def refresh(self) -> int:
        """Look again unless that was just done; returns the revision, which rises with every change."""
        with self._lock:
            begun = time.monotonic()
            if begun >= self._due:
                self._look()
                ended = time.monotonic()
                self._due = ended + max(SECONDS, SHARE * (ended - begun))
            return self.now.revision

    # -- looking ------------------------------------------------------------------------------------------------

    def _look(self) -> None:
        known, entries, stores, refused = self.now, {}, {}, list[str]()

        def refuse(folder: Path, words: str) -> None:
            refused.append(f"{folder.relative_to(self.root).as_posix()}: {words}")

        found = run_folders(self.root, wanted=_is_shown, refuse=refuse)
        for folder in (part for run in found for part in (run, *_stages_in(run))):
            name = folder.relative_to(self.root).as_posix()
            try:
                check_within(folder, self.root)
                if not is_run(folder):
                    stores[id_of(name)] = folder
                    continue
                entry = self._entry(folder, name, known.runs)
            except (RollmillError, OSError) as error:
                refuse(folder, words_of(error, self.root))
                continue
            entries[entry.id] = entry
            stores |= {self._store_id(folder): folder for folder in entry.stores}
        experiments = self._launched()
        launches = tuple(_launch_stamps(folder) for folder in experiments.values())
        self._publish(Look(known.revision, entries, stores, experiments, tuple(refused), launches))

    def _publish(self, found: Look) -> None:
        """Make a look the one that is told of; its revision rises where anything has changed."""
        before, entries, revision = self.now.runs, dict(found.runs), self.now.revision
        gone = before.keys() - entries.keys()
        changed = {id_ for id_, entry in entries.items() if before.get(id_) is not entry}
        if changed or gone or replace(found, runs=before) != self.now:
            revision += 1
            entries |= {id_: replace(entries[id_], revision=revision) for id_ in changed}
            if any(_settings_changed(before.get(id_), entries[id_]) for id_ in changed) or gone:
                entries = self._grouped(entries, revision)
        for id_ in gone:
            self.index.forget(before[id_].folder)
        self.index.save()
        self.now = replace(found, revision=revision, runs=entries)

    def _launched(self) -> dict[str, Path]:
        """Return launched experiments by name; those that a link leads out to are left out, as their runs are."""
        found = {}
        for plan in sorted(self.root.glob(f"*/{_LAUNCH_FILE}")):
            with contextlib.suppress(OSError):
                check_within(plan, self.root)
                found[plan.parents[1].name] = plan.parents[1]
        return found

    def _store_id(self, folder: Path) -> str:
        return id_of(folder.relative_to(self.root).as_posix())

    def _entry(self, folder: Path, name: str, before: Mapping[str, RunEntry]) -> RunEntry:
        """Return the run as it is now; the very entry from before where nothing has changed."""
        run, id_ = RunFolder(folder), id_of(name)
        files = (run.config, run.state, run.diary, run.metrics)
        stamps = (*map(stamp_of, files), stamp_of(run.data / STORE_FILE), stamp_of(folder / "eval"))
        known = before.get(id_)
        if known is not None and known.stamps == stamps and known.state != "running":
            return known
        for file, stamp in zip(files, stamps):
            if stamp is not None:
                check_within(file, self.root)
        config = self.index.recall(run.config, "settings", facts.settings_of, stamps[0]) or facts.NO_SETTINGS
        saved = self.index.recall(run.state, "state", facts.state_of, stamps[1]) or {}
        state = standing(folder, config["kind"], saved)
        if known is not None and known.stamps == stamps and known.state == state:
            return known
        origin = self.index.recall(run.diary, "origin", facts.origin_of, stamps[2]) or {}
        metrics = self.index.recall(run.metrics, "metrics", facts.metrics_of, stamps[3]) or {}
        found = known.found if known and known.stamps[0] == stamps[0] else facts.found_in(folder, config)
        shown = _shown(config, saved, origin, metrics, state, stamps)
        shown["reason"] = without(self.root, shown["reason"])
        return RunEntry(id_, name, folder, found, state, shown, stamps, tuple(store_folders(folder)))

    def _grouped(self, entries: Mapping[str, RunEntry], revision: int) -> dict[str, RunEntry]:
        """Give every run its group: that of its experiment's plan, or of what differs in settings."""
        by_experiment: dict[str, list[RunEntry]] = {}
        for entry in entries.values():
            by_experiment.setdefault(entry.experiment, []).append(entry)
        result = dict(entries)
        for experiment, members in by_experiment.items():
            found = {run.folder: run for run in self._groups([entry.found for entry in members], experiment)}
            for entry in members:
                group = found[entry.folder]
                if group.group != entry.found.group:
                    result[entry.id] = replace(entry, found=group, revision=revision)
        return result

    def _groups(self, runs: list[Found], experiment: str) -> list[Found]:
        folder = self.root / experiment
        try:
            if (folder / _LAUNCH_FILE).exists():
                check_within(folder / _LAUNCH_FILE, self.root)
            return in_groups(runs, folder)
        except (RollmillError, OSError):  # a plan that cannot be read: every run is a group of its own
            return [replace(run, group=run.name, params={}) for run in runs]

    def _stores_dict(self, now: Look) -> list[dict[str, str]]:
        """Return every store by its id and name, and the id of the run that it lies in."""
        owners = {folder: entry.id for entry in now.runs.values() for folder in entry.stores}
        names = {id_: folder.relative_to(self.root).as_posix() for id_, folder in now.stores.items()}
        return [{"id": id_, "name": names[id_], "run": owners.get(now.stores[id_], "")} for id_ in names]

    # -- answers ------------------------------------------------------------------------------------------------

    def to_dict(self, since: int = -1) -> dict[str, Any]:
        """Return what a browser is told about the runs that have changed after a revision, all of them at first.

        Settings that are the same everywhere stand there once (``common``); a run has those that are not.
        """
        now = self.now
        runs = now.runs
        common = common_settings(entry.found.settings for entry in runs.values())
        return {
            "root": self.root.name,
            "revision": now.revision,
            "common": common,
            "ids": list(runs),
            "stores": self._stores_dict(now),
            "experiments": list(now.experiments),
            "populations": [name for name, folder in now.experiments.items() if stamp_of(folder / LEDGER)],
            "refused": list(now.refused),
            "rules": {"points": POINTS, "seeds": SEEDS, "t975": [t975(k) for k in range(1, _FREEDOMS)]},
            "runs": [_to_dict(entry, common) for entry in runs.values() if entry.revision > since],
        }


def _launch_stamps(experiment: Path) -> tuple[Stamp | None, ...]:
    """Return stamps of what changes when a run of a launch is handed in, begins, ends or is cancelled."""
    launch = experiment / _LAUNCH_FILE.parent
    runs = sorted((launch / "attempts").glob("*"))
    places = (experiment / LEDGER, experiment / _LAUNCH_FILE, launch / "runs", launch / "cancelled")
    return tuple(map(stamp_of, (*places, *runs)))


def _stages_in(run: Path) -> list[Path]:
    """Return the stages of a world model that learn, as runs of their own: the whole has no curves."""
    places = [run / name for name in FOLDERS.values()] if (run / RECORDS).is_dir() else []
    return [place for place in places if is_run(place) and not (place / STORE_FILE).is_file()]


def _is_shown(folder: Path) -> bool:
    return is_run(folder) or (folder / STORE_FILE).is_file()


def words_of(error: Exception, root: Path) -> str:
    """Say what is wrong, without where the root lies: pages and copies are shown to others."""
    words = (error.strerror or "it cannot be read") if isinstance(error, OSError) else str(error)
    return without(root, words)


def without(root: Path, words: str) -> str:
    """Return a sentence whose paths begin at the root."""
    return words.replace(f"{root}{os.sep}", "").replace(str(root), root.name)


def id_of(name: str) -> str:
    """Return the id of a run or a store by its place below the root."""
    return hashlib.sha256(os.fsencode(name)).hexdigest()[:12]


def common_settings(settings: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the settings that all have, with the same value."""
    common: dict[str, Any] | None = None
    for one in settings:
        kept = one if common is None else {k: v for k, v in common.items() if k in one and _same(one[k], v)}
        common = dict(kept)
    return common or {}


def _same(one: Any, two: Any) -> bool:
    return bool(one == two) and isinstance(one, bool) == isinstance(two, bool)


def _settings_changed(before: RunEntry | None, now: RunEntry) -> bool:
    return before is None or before.stamps[0] != now.stamps[0]


def _to_dict(entry: RunEntry, common: Mapping[str, Any]) -> dict[str, Any]:
    own = {key: value for key, value in entry.found.settings.items() if key not in common}
    place = {"id": entry.id, "name": entry.name, "experiment": entry.experiment, "group": entry.found.group}
    return {**place, **entry.shown, "settings": own}


def _shown(
    config: Mapping[str, Any],
    saved: Mapping[str, Any],
    origin: Mapping[str, Any],
    metrics: Mapping[str, Any],
    state: str,
    stamps: tuple[Stamp | None, ...],
) -> dict[str, Any]:
    """Return the columns of the table of runs; None where a run does not say."""
    last = metrics.get("last", {})
    frames = [n for n in (saved.get("step"), last.get("frames", last.get("step"))) if isinstance(n, int | float)]
    rate, bare = last.get("time/frames_per_s"), config["settings"].get(_SIM_RATE)
    faults = [last[name] for name in ("sample/env_faults", "sample/worker_restarts") if last.get(name) is not None]
    return {
        "state": state,
        "reason": str(saved.get("reason") or "").partition("\n")[0] or config["problem"] or metrics.get("problem", ""),
        "kind": config["kind"],
        "env": config["env"],
        "frames": max(frames, default=None),
        "unit": metrics.get("unit") or UNITS.get(config["kind"], "frames"),
        "return": next((last[name] for name in RETURNS if last.get(name) is not None), None),
        "spark": metrics.get("spark", []),
        "frames_per_s": rate,
        "share": rate / bare if rate is not None and isinstance(bare, int | float) and bare else None,
        "seconds": last.get("time/seconds"),
        "faults": sum(faults) if faults else None,
        "host": origin.get("host", ""),
        "commit": origin.get("commit", "") + ("+" if origin.get("dirty") else ""),
        "created": origin.get("created", ""),
        "command": origin.get("command", ""),
        "parent": origin.get("parent", ""),
        "version": origin.get("version", ""),
        "libraries": origin.get("libraries", {}),
        "sessions": origin.get("sessions", []),
        "changed": max((stamp[2] for stamp in stamps[:4] if stamp is not None), default=0) / 1e9,
        "rows": metrics.get("rows", 0),
        "metrics": metrics.get("metrics", []),
    }
