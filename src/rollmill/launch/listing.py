"""All runs below a folder: how they stand, and two of them side by side."""

from __future__ import annotations

import fnmatch
import glob
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from rollmill.core.config.old_names import read_saved
from rollmill.core.config.plain import differences
from rollmill.core.errors import ConfigError, RollmillError
from rollmill.core.run_folder import RunFolder, holder, is_run
from rollmill.core.run_kind import UNITS
from rollmill.core.steps import FRAMES, position
from rollmill.core.text import nearest
from rollmill.launch.compare.gather import look_at
from rollmill.launch.progress import folder_bytes, last_row, number_of

DEEPEST = 4
"""Folders between the root and a run, at most."""
RETURNS = ("episode/return", "eval/return")
SHOWN = (
    *("time/seconds", "time/frames_per_s", "episode/return", "episode/length", "eval/return"),
    *("validation/loss", "learn/loss"),
)
"""Metrics of a comparison, as far as one of the two runs has them."""
_PLACE = ("run.dir", "run.experiment", "run.name")
"""Settings that say where a run lives."""


@dataclass(frozen=True)
class RunRow:
    """One run, as its folder tells."""

    name: str
    """Its folder, from the root on: ``experiment/run``."""
    folder: Path
    state: str
    """running, finished, failed, interrupted, or killed: it says running, and nobody is there."""
    reason: str
    kind: str
    env: str
    frames: int | None
    mean_return: float | None
    changed: float
    """Seconds since 1970."""
    bytes: int

    @property
    def unit(self) -> str:
        return UNITS.get(self.kind, FRAMES)

    def to_dict(self) -> dict[str, Any]:
        return {
            "run": self.name,
            "folder": str(self.folder),
            "state": self.state,
            "reason": self.reason,
            "kind": self.kind,
            "env": self.env,
            self.unit: self.frames,
            "return": self.mean_return,
            "changed": self.changed,
            "bytes": self.bytes,
        }


def list_runs(root: Path, words: Sequence[str] = ()) -> list[RunRow]:
    """Return all runs below ``root`` that every word fits, the newest first."""
    if not root.is_dir():
        raise ConfigError(f"{root}: there is no such folder of runs; --root names another one")
    rows = [describe(folder, root) for folder in run_folders(root)]
    chosen = (row for row in rows if fits((row.name, row.state, row.kind, row.env), row.name, words))
    return sorted(chosen, key=lambda row: -row.changed)


Refuse = Callable[[Path, str], None]
"""Told of a folder that is not looked into, and why."""


def run_folders(
    folder: Path, deeper: int = DEEPEST, wanted: Callable[[Path], bool] = is_run, refuse: Refuse | None = None
) -> Iterator[Path]:
    """Yield the folders of runs below a folder; what lies in a run belongs to it. ``wanted``: look for others, or more.

    ``refuse``: told of what is not looked into; without it a folder that cannot be read is an ``OSError``.
    """
    try:
        paths = [path for path in sorted(folder.iterdir()) if not path.name.startswith(".")]
    except OSError as error:
        _refuse(folder, error, refuse)
        return
    for path in paths:
        try:
            is_folder = path.is_dir()
            is_wanted = is_folder and wanted(path)
        except OSError as error:
            _refuse(path, error, refuse)
            continue
        if is_wanted:
            yield path
        elif is_folder and deeper and not path.is_symlink():
            yield from run_folders(path, deeper - 1, wanted, refuse)
        elif is_folder and refuse is not None:
            words = _why_not_deeper(path)
            if words:
                refuse(path, words)


def _refuse(path: Path, error: OSError, refuse: Refuse | None) -> None:
    if refuse is None:
        raise error
    refuse(path, error.strerror or "it cannot be read")


def _why_not_deeper(path: Path) -> str:
    """Return why nobody looks into a folder; empty where nothing can be missing for it."""
    if path.is_symlink():
        return "it is a link to a folder; links are followed to runs and stores alone"
    try:
        inner = any(entry.is_dir() and not entry.name.startswith(".") for entry in path.iterdir())
    except OSError as error:
        return error.strerror or "it cannot be read"
    return f"runs more than {DEEPEST} folders down are not looked for" if inner else ""


def fits(texts: Sequence[str], name: str, words: Sequence[str]) -> bool:
    """Return whether every word is meant: a part of one of ``texts``, or a pattern of names (``doom*``)."""
    return all(
        _matches(name, word) if glob.has_magic(word) else any(word.lower() in text.lower() for text in texts)
        for word in words
    )


def _matches(name: str, mask: str) -> bool:
    """Return whether a pattern fits; it may be about ``experiment/run``, or about one of the two."""
    return any(fnmatch.fnmatchcase(part, mask) for part in (name, *name.split("/")))


def describe(folder: Path, root: Path) -> RunRow:
    """Describe one run; what cannot be read is left out."""
    run = RunFolder(folder)
    try:
        found = look_at(folder)
        kind, env = str(found.kind), found.env
    except (RollmillError, OSError):
        kind, env = "?", ""
    try:
        saved = run.read_state() or {}
    except RollmillError:
        saved = {}
    state = standing(run.path, kind, saved)
    row = last_row(run.metrics) or {}
    frames = [number for number in (position(saved), position(row)) if isinstance(number, int)]
    returns = (number_of(row, name) for name in RETURNS)
    return RunRow(
        name=str(folder.relative_to(root)),
        folder=folder,
        state=state,
        reason=str(saved.get("reason") or "").partition("\n")[0],
        kind=kind,
        env=env,
        frames=max(frames, default=None),
        mean_return=next((value for value in returns if value is not None), None),
        changed=_changed(run, saved),
        bytes=folder_bytes(folder),
    )


def standing(folder: Path, kind: str, saved: Mapping[str, Any]) -> str:
    """Return how a run stands; ``saved``: what its ``state.json`` says, empty where there is none."""
    state = str(saved.get("state", ""))
    if state not in ("", "running"):
        return state  # the lock is left alone: whoever starts the run again must find it free
    if holder(folder):
        return "running"
    if kind == "world" and not state:
        return "finished" if _is_reported(folder) else "interrupted"
    return "killed" if state else "?"


def _is_reported(folder: Path) -> bool:
    """Return whether the last stage of a world model is done."""
    try:
        record = json.loads((folder / "stages" / "report.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(record, dict) and record.get("state") == "done"


def _changed(run: RunFolder, saved: Mapping[str, Any]) -> float:
    """Return when it last said something: the end that was written down, or its newest file."""
    try:
        told = datetime.fromisoformat(str(saved["time"])).timestamp()
    except (KeyError, ValueError):
        told = 0.0
    files = (path for path in (run.metrics, run.log, run.config) if path.is_file())
    return max([told, *(path.stat().st_mtime for path in files)], default=0.0) or time.time()


# -- one run by name ------------------------------------------------------------------------------------------------


def find_all(words: Sequence[str], root: Path) -> list[Path]:
    """Find the folders of several runs, each named as for ``find_run`` or by a pattern; none of them twice."""
    found: dict[Path, None] = {}
    for word in words:
        if not glob.has_magic(word):
            found[find_run(word, root).absolute()] = None
            continue
        matching = [folder for name, folder in _by_name(root).items() if _matches(name, word)]
        if not matching:
            raise ConfigError(f"no run below {root} matches {word!r}")
        found.update(dict.fromkeys(folder.absolute() for folder in matching))
    return list(found)


def _by_name(root: Path) -> dict[str, Path]:
    return {str(folder.relative_to(root)): folder for folder in run_folders(root)} if root.is_dir() else {}


def find_run(word: str, root: Path) -> Path:
    """Find the folder of a run, given as such, as ``experiment/run`` or by its name alone where that is unique."""
    for path in (Path(word), root / word):
        if is_run(path):
            return path
    names = _by_name(root)
    same = [name for name in names if name.endswith(f"/{word}")]
    if len(same) == 1:
        return names[same[0]]
    if same:
        raise ConfigError(f"there are {len(same)} runs called {word!r}: {', '.join(same)}")
    if Path(word).is_dir():
        raise ConfigError(f"{word} is a folder, but no run (no config.yaml, diary.json or state.json)")
    hint = nearest(word, [*names, *(name.rpartition("/")[2] for name in names)])
    raise ConfigError(f"no run {word!r} here or below {root}{f'; {hint}' if hint else ''}")


# -- two runs -------------------------------------------------------------------------------------------------------

Pair = tuple[Any, Any]


@dataclass(frozen=True)
class Comparison:
    """Two runs side by side: what differs in their settings, and what came of it."""

    names: tuple[str, str]
    settings: Mapping[str, Pair]
    results: Mapping[str, Pair]

    def to_dict(self) -> dict[str, Any]:
        return {"runs": self.names, "settings": dict(self.settings), "results": dict(self.results)}


def compare(one: Path, two: Path, root: Path) -> Comparison:
    """Compare the settings and results of two runs. Raises ConfigError if the settings of a run cannot be read."""
    saved = [read_saved(RunFolder(folder).config) for folder in (one, two)]
    changed = {key: pair for key, pair in differences(*saved).items() if key not in _PLACE}
    rows = [describe(folder, root if folder.is_relative_to(root) else folder.parent) for folder in (one, two)]
    facts = [_facts(row) for row in rows]
    names = dict.fromkeys((*facts[0], *facts[1]))
    results = {name: (facts[0].get(name), facts[1].get(name)) for name in names}
    return Comparison((rows[0].name, rows[1].name), changed, results)


def _facts(row: RunRow) -> dict[str, Any]:
    """Return what came of a run: state, how far it is, and its last metrics."""
    last = last_row(RunFolder(row.folder).metrics) or {}
    metrics = {name: number_of(last, name) for name in SHOWN}
    known = {name: value for name, value in metrics.items() if value is not None}
    return {"state": row.state, "env": row.env, row.unit: row.frames, **known, "bytes": row.bytes}
