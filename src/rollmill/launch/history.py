"""The history of an experiment, from the diaries of its runs: one entry per start."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rollmill.core.diary import Diary
from rollmill.core.errors import LaunchError
from rollmill.core.steps import position, unit_of
from rollmill.core.text import columns, show


@dataclass(frozen=True)
class Entry:
    """One start of one run."""

    started: str
    run: str
    session: int
    host: str
    code: str
    """Version, and the commit if there is one; ``+`` behind it: with changes that are not committed."""
    from_step: int
    to_step: int | None
    unit: str
    """What the steps are."""
    how: str
    parent: str
    """The checkpoint the run was born from, in its first session."""
    changes: Mapping[str, Sequence[Any]]
    """What is different from the parent, or from the session before: key -> (old, new)."""
    command: str
    versions: Mapping[str, str | None]

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def history(experiment: Path) -> list[Entry]:
    """Return all starts of all runs of an experiment (or of one run, given its folder), oldest first."""
    own = experiment / "diary.json"
    paths = [own] if own.is_file() else sorted(experiment.glob("*/diary.json"))
    if not paths:
        raise LaunchError(f"{experiment}: no runs in it; expected folders with a diary.json each")
    entries = [entry for path in paths for entry in _entries(path)]
    return sorted(entries, key=lambda entry: (entry.started, entry.run, entry.session))


def _entries(path: Path) -> list[Entry]:
    diary = Diary.open(path)
    try:
        return _sessions(diary, path)
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise LaunchError(f"{path}: not the diary of a run: {type(error).__name__}: {error}") from error


def _sessions(diary: Diary, path: Path) -> list[Entry]:
    parent = diary.content.get("parent") or {}
    found = []
    for number, session in enumerate(diary.sessions, 1):
        first = number == 1 and parent
        found.append(
            Entry(
                started=session["started"],
                run=path.parent.name,
                session=number,
                host=session["host"],
                code=_code(session),
                from_step=session["step_at_start"],
                to_step=session["step_at_end"],
                unit=unit_of(session),
                how=session["how"] or "running, or killed",
                parent=f"{parent['checkpoint']} ({position(parent):,} {unit_of(parent)})" if first else "",
                changes=parent["difference"] if first else session["overrides"],
                command=session["command"],
                versions=diary.content.get("versions") or {},
            )
        )
    return found


def _code(session: Mapping[str, Any]) -> str:
    git = session.get("git")
    if not git:
        return str(session["version"])
    return f"{session['version']} {git['commit'][:8]}{'+' if git['dirty'] else ''}"


HEAD = ("started", "run", "start", "host", "code", "from ... to", "how it ended", "from / changed")


def cells(entry: Entry) -> tuple[str, ...]:
    """Return one row of the table."""
    end = "..." if entry.to_step is None else f"{entry.to_step:,}"
    changes = ", ".join(f"{key}: {show(old, 30)} -> {show(new, 30)}" for key, (old, new) in entry.changes.items())
    return (
        entry.started.replace("T", " ").removesuffix("+00:00"),
        entry.run,
        str(entry.session),
        entry.host,
        entry.code,
        f"{entry.from_step:,} to {end} {entry.unit}",
        entry.how.partition("\n")[0][:80],
        "; ".join(filter(None, (entry.parent, changes))),
    )


def lines(entries: Sequence[Entry]) -> list[str]:
    """Return the table as text: the head, and a line for each entry. Times are UTC."""
    return columns([HEAD, *map(cells, entries)])
