"""What a stage of a world model is: settings and inputs that decide its outcome, a run, and a record of both."""

from __future__ import annotations

import signal
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rollmill.core.config.old_names import renamed
from rollmill.core.config.plain import to_dict
from rollmill.core.errors import RunFolderError
from rollmill.core.opening import read_json
from rollmill.core.run_kind import FOLDERS, RECORDS
from rollmill.runs.lifecycle import Ended, Progress
from rollmill.runs.resume import Changes, compare
from rollmill.runs.settings.world import WorldConfig
from rollmill.worldmodel.own import OwnClass, Trust


@dataclass
class Record:
    """What is known about an earlier run of a stage."""

    state: str = ""
    """begun or done; empty: never run."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    inputs: Mapping[str, Any] = field(default_factory=dict)
    result: Mapping[str, Any] = field(default_factory=dict)
    seconds: float = 0.0


def record_path(out: Path, stage: str) -> Path:
    """Return where a stage is written down in the folder of a world model."""
    return out / RECORDS / f"{stage}.json"


def read_record(out: Path, stage: str) -> Record:
    """Read the record of a stage, an empty one where it has never run. Raises RunFolderError if it is damaged."""
    path = record_path(out, stage)
    try:
        return Record(**renamed(read_json(path)))
    except FileNotFoundError:
        return Record()
    except (OSError, ValueError, TypeError) as error:
        raise RunFolderError(f"{path} cannot be read: {error}; remove it, and the stage is run again") from error


@dataclass(frozen=True)
class Work:
    """What every stage is given."""

    config: WorldConfig
    """Of all stages."""
    out: Path
    """The folder of the world model."""
    tell: Progress
    """Called with the share of the stage that is done, and its newest metrics."""
    trust_code: bool = False

    def place(self, stage: str) -> Path:
        """Return where a stage leaves what it makes."""
        return self.out / FOLDERS[stage]

    @property
    def trust(self) -> Trust:
        """The code that this configuration names: the models in the folder are made by it."""
        encoder, dynamics = self.config.vae.encoder, self.config.dynamics
        return Trust(
            encoder=OwnClass(custom=encoder.custom, custom_args=encoder.custom_args),
            dynamics=OwnClass(custom=dynamics.custom, custom_args=dynamics.custom_args),
            trust_code=self.trust_code,
        )


class Stage(ABC):
    """One stage of a world model, run by ``runs.world.run``; ``core.run_kind.STAGES`` names all of them.

    It is skipped when it was done with these settings and inputs, goes on where it was interrupted, and begins anew
    when what decides its outcome has changed. Its settings are the block of ``WorldConfig`` that has its name, if any.
    """

    def __init__(self, name: str, work: Work) -> None:
        self.name, self.work = name, work
        self._block = getattr(work.config, name, None)

    def settings(self) -> Mapping[str, Any]:
        """Return settings that decide its outcome; ``runs.resume.KINDS`` says which may change nevertheless."""
        return {} if self._block is None else to_dict(self._block)

    def defaults(self) -> object:
        """Return settings for keys that the record of an earlier version does not have."""
        return {} if self._block is None else type(self._block)()

    def inputs(self) -> Mapping[str, Any]:
        """Return what it is made from, by name: checksums and the like. With another one it begins anew."""
        return {}

    @abstractmethod
    def run(self) -> Mapping[str, Any]:
        """Do it, or go on with it, and return what it has to say. Raises StageInterrupted if a signal has ended it."""

    def changes(self, before: Record, settings: Mapping[str, Any], inputs: Mapping[str, Any]) -> Changes:
        """Return in which ways settings and inputs differ from those of the record."""
        return compare(self.name, before.settings, settings, before.inputs, inputs)


class StageInterrupted(Exception):
    """A stage was asked to stop, by a signal of this number; it can be continued."""

    def __init__(self, number: int) -> None:
        self.signal = signal.Signals(number)


def require_whole(outcome: Ended) -> None:
    """Raise StageInterrupted unless a run has come to its end."""
    if outcome.interrupted:
        raise StageInterrupted(outcome.signal)
