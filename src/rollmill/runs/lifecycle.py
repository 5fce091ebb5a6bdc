"""The life of every run: take its folder, log, go on or begin, report, save, stop, and write down how it ended.

``live`` is the whole of it, for a training, an offline one, a stage of a world model, or all stages together. What runs
inside differs by its ``Kind`` (``runs.resume.KINDS``), by its settings, and by what it saves::

    with live("vae", out, config, request, check) as life:
        life.begin(run := Fit(life, ...))               # load the checkpoint, if there is one
        with life.interrupt:
            while not life.over(run.limit):             # a signal, a lost folder, a limit
                run.train_step()
                life.report(run.step, metrics)
                if life.save_due(run.step):
                    life.try_save(run.state(), run.step)
        life.save(run.state(), run.step)
"""

from __future__ import annotations

import contextlib
import logging
import math
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

from rollmill.core import atomic
from rollmill.core.checkpoints import Checkpoints, Loaded, restoring
from rollmill.core.config.plain import differences, dump_yaml, fields_of, to_dict
from rollmill.core.diary import Diary
from rollmill.core.errors import CheckpointError, Interrupted, RollmillError, error_text
from rollmill.core.run_folder import PAUSED, Mode, RunFolder, State
from rollmill.core.run_log import LogHandle, open_log
from rollmill.core.stopping import Interrupt
from rollmill.core.tree_file import stored_checksum
from rollmill.monitor.console import ConsoleMode, live_panel
from rollmill.monitor.reporter import Reporter
from rollmill.reports.run.report import write_run_report
from rollmill.runs.resume import CHECKPOINT_FORMAT, KINDS, find_checkpoint, refuse_changes
from rollmill.runs.settings.train import CheckpointSettings

log = logging.getLogger("rollmill")

STAGE = CheckpointSettings(keep_last=2, keep_best=0, min_free_mb=50)
"""Which checkpoints a stage of a world model keeps: none is needed once its model is written."""

Progress = Callable[[float, Mapping[str, float]], None]
"""Called with the share of a run that is done (0..1) and its newest metrics."""


@dataclass(frozen=True)
class Request:
    """What the user asked for besides the config."""

    mode: Mode | Literal["continue"] = "new"
    """``continue``: resume the run in the folder, or begin one where there is none."""
    restore: Path | None = None
    """Start from this checkpoint instead of from scratch (or, resuming, from the newest)."""
    command: Sequence[str] = field(default_factory=lambda: tuple(sys.argv))
    console: ConsoleMode = "auto"
    profile: bool = False
    """Record traces of every process into the run folder's ``profile``."""
    trust_code: bool = False
    """Offline: run the code that a store or a checkpoint names (``runs.trust``)."""
    on_ready: Callable[[], None] = lambda: None
    """Called when everything is built, and nothing can be refused any more."""


@dataclass(frozen=True)
class Ended:
    """How a run has ended; every kind adds what it has to say."""

    state: Literal["finished", "interrupted"]
    reason: str
    folder: Path
    signal: int
    """Number of the signal that ended it, or 0."""

    @property
    def interrupted(self) -> bool:
        return self.state == "interrupted"

    @property
    def exit_code(self) -> int:
        return 128 + self.signal if self.signal else PAUSED if self.interrupted else 0

    def to_dict(self) -> dict[str, Any]:
        """Return for JSON what all kinds say, and the fields of this one."""
        return {name: _json_value(value) for name, value in fields_of(self).items()} | {"interrupted": self.interrupted}


def _json_value(value: Any) -> Any:
    """Return the value of a field of ``Ended`` for JSON, which has neither paths nor NaN."""
    if isinstance(value, Mapping):
        return {str(name): _json_value(x) for name, x in value.items()}
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if hasattr(value, "to_dict"):
        return value.to_dict()
    return str(value) if isinstance(value, Path) else value


class Run(Protocol):
    """What lives the life: it counts steps, and can go on from a checkpoint."""

    @property
    def step(self) -> int: ...

    def load_state(self, loaded: Loaded) -> None: ...


class Life:
    """A run from the moment its folder is taken; by itself, without ``live``, it takes and writes nothing."""

    def __init__(
        self,
        kind: str,
        folder: RunFolder,
        config: object,
        *,
        loaded: Loaded | None = None,
        inputs: Mapping[str, Any] | None = None,
        keep: CheckpointSettings = STAGE,
        console: ConsoleMode = "off",
        progress: Progress | None = None,
    ) -> None:
        self.kind, self.folder, self.loaded, self.console = KINDS[kind], folder, loaded, console
        self.config = config
        """As saved with every checkpoint; a run that decides more about itself sets it anew."""
        self.interrupt = Interrupt()
        self.stop_reason = ""
        """Why the run is over; empty while it goes on."""
        self.paused = False
        """Whether it has ended to make room for another one, and is to go on later."""
        self.reporter = Reporter(folder, self.kind.unit)
        self.diary: Diary | None = None
        self.log: LogHandle | None = None
        self._inputs, self._keep, self._progress = inputs, keep, progress
        kept = (keep.keep_last, keep.keep_best, keep.milestone_frames, keep.min_free_mb)
        self._checkpoints = Checkpoints(folder.checkpoints, *kept, unit=self.kind.unit)
        self._saved_at = time.monotonic()
        self._run: Run | None = None

    @property
    def step(self) -> int:
        """How far the run is; one that failed early may not have loaded its checkpoint yet."""
        return max(self.loaded.step if self.loaded else 0, self._run.step if self._run else 0)

    def begin(self, run: Run) -> None:
        """Begin with a run that was built: it goes on from its checkpoint, if there is one."""
        self._run = run
        if self.log is not None:
            self.log.show()
        if self.loaded is None:
            return
        run.load_state(self.loaded)
        self._checkpoints.set_aside_after(self.loaded.step)
        log.info("continuing from %s (%s %s)", self.loaded.path, f"{self.loaded.step:,}", self.kind.unit)
        self.write_config()  # only now: settings that fail must not stay

    def write_config(self) -> None:
        """Write ``config.yaml``. The run goes on without it: its checkpoints have the settings, too."""
        try:
            atomic.write_text(self.folder.config, dump_yaml(self.config))
        except OSError as error:
            log.error("the settings could not be written: %s: %s", self.folder.config, error.strerror or error)

    # -- while it goes on ----------------------------------------------------------------------

    def over(self, limit: Callable[[], str]) -> bool:
        """Return whether a signal, or the reason that ``limit`` gives (empty: none), ends the run.

        Raises RunFolderLost if its folder is gone.
        """
        self.folder.watch()
        if self.interrupt.signal is not None:
            self.stop(f"{self.interrupt.signal.name} received")
        self.stop(limit())
        return bool(self.stop_reason)

    def stop(self, reason: str) -> None:
        """Stop the run for this reason; the first reason counts."""
        self.stop_reason = self.stop_reason or reason

    def pause(self, reason: str) -> None:
        """End the run for now: it is to be resumed (its exit code is ``PAUSED``)."""
        self.paused = not self.stop_reason
        self.stop(reason)

    @property
    def stopped(self) -> bool:
        """Whether a signal has ended it, or it has ended itself, before it was through."""
        return self.interrupt.signal is not None or self.paused

    def report(self, step: int, metrics: Mapping[str, float], of: int = 0) -> None:
        """Write a row of metrics; ``of``: the step at which the run will be over."""
        self.folder.require()
        self.reporter.write(step, metrics)
        if self._progress is not None and of:
            self._progress(step / of, metrics)

    @contextlib.contextmanager
    def afterwards(self) -> Iterator[None]:
        """Let a signal end at once what comes when everything is saved (the policy is judged), within this context."""
        interrupt = Interrupt(at_once=True)
        try:
            with interrupt:
                yield
        except KeyboardInterrupt:
            if interrupt.signal is None:
                raise
            self.interrupt = interrupt
            self.stop_reason = f"{interrupt.signal.name} received while it was judged"

    # -- checkpoints ---------------------------------------------------------------------------

    def save(self, state: Mapping[str, Any], step: int, metric: float | None = None, stays: bool = False) -> Path:
        """Write a checkpoint now. Raises CheckpointError if it cannot be written (older ones are safe).

        ``metric``: the best ones are kept. ``stays``: this one is, in any case.
        """
        self.folder.require()
        head = {"format": CHECKPOINT_FORMAT, "kind": self.kind.saved_as, "config": to_dict(self.config)}
        inputs = {} if self._inputs is None else {"inputs": dict(self._inputs)}
        path = self._checkpoints.save({**head, **inputs, **state}, step, metric, stays)
        self._saved_at = time.monotonic()
        log.info("checkpoint %s", path)
        return path

    def try_save(self, state: Mapping[str, Any], step: int, metric: float | None = None) -> bool:
        """Do what ``save`` does, or say in the log that it failed: the run goes on."""
        try:
            self.save(state, step, metric)
        except CheckpointError as error:
            self._saved_at = time.monotonic()  # try again after the usual time, not at every step
            log.error("no checkpoint was written, training goes on: %s", error)
            return False
        return True

    def save_due(self, updates: int) -> bool:
        """Return whether a checkpoint is due; asked once after each training step, ``updates`` of them so far."""
        by_steps = self._keep.every_updates > 0 and updates % self._keep.every_updates == 0
        return by_steps or time.monotonic() - self._saved_at >= self._keep.seconds

    @property
    def can_be_resumed(self) -> bool:
        """Whether it would go on from where it begins, should it be killed before it saves anything."""
        return self.loaded is not None and self._checkpoints.is_newest(self.loaded.path)

    # -- how it ends ---------------------------------------------------------------------------

    def ended(self) -> dict[str, Any]:
        """Return the fields of ``Ended``, for a run that nothing has failed in."""
        signal = self.interrupt.signal
        state = "interrupted" if self.stopped else "finished"
        return {"state": state, "reason": self.stop_reason, "folder": self.folder.path, "signal": int(signal or 0)}

    def status(self, error: BaseException | None) -> tuple[State, str]:
        """Return how the run has ended, and why."""
        if error is None:
            return "interrupted" if self.stopped else "finished", self.stop_reason
        if not isinstance(error, KeyboardInterrupt):
            return "failed", why_failed(error)
        if self.stopped:
            return "interrupted", "interrupted twice, ended at once"
        return "interrupted", f"{error.name} received" if isinstance(error, Interrupted) else "interrupted"

    def close(self, _type: object, error: BaseException | None, _trace: object) -> None:
        """Write down how it ended, as the last thing: all its processes are gone by then."""
        with Interrupt():  # a signal that comes now must not break off what is written down
            self.reporter.close()
            state, reason = self.status(error)
            level = logging.INFO if error is None else logging.ERROR
            log.log(level, "%s: %s (%s %s)", state, reason, f"{self.step:,}", self.kind.unit)
            if self.folder.lost():  # there is no place for it
                return
            try:
                self.folder.set_state(state, reason, self.step, self.kind.unit)
                if self.diary is not None:
                    self.diary.end_session(f"{state}: {reason}"[:2000], self.step)
            except RollmillError as second:  # a full disk: the first error is the one to report
                log.error("how the run ended could not be written down: %s", second)


def why_failed(error: BaseException) -> str:
    """Return the reason for ``state.json``; what user code has to say may be long, or not even be printable."""
    return f"{type(error).__name__}: {error}" if isinstance(error, RollmillError) else error_text(error)


@contextlib.contextmanager
def live(
    kind: str,
    path: Path,
    config: object,
    request: Request,
    check: Callable[[Loaded], Loaded] = lambda loaded: loaded,
    *,
    inputs: Mapping[str, Any] | None = None,
    keep: CheckpointSettings = STAGE,
    progress: Progress | None = None,
    page: bool = True,
) -> Iterator[Life]:
    """Lead a run through its life in the folder ``path``, within this context; see the top of this module.

    ``check`` gives a checkpoint of this kind back, or raises CheckpointError. ``inputs``: what the run is made from, by
    name (shapes, checksums); it does not go on with others. ``page``: write a page about it, however it ended.
    """
    mode = _mode(path, request.mode)
    loaded = find_checkpoint(path, mode, request.restore, check, must_exist=request.mode != "continue")
    if loaded is not None and mode == "resume":
        refuse_changes(kind, loaded, config, inputs or {})
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(RunFolder.create(path, mode))
        life = Life(
            *(kind, folder, config),
            loaded=loaded,
            inputs=inputs,
            keep=keep,
            console=request.console,
            progress=progress,
        )
        folder.set_state("running", "starting", life.step, life.kind.unit)  # from now on it is a run's folder
        on_console = request.console != "off" and not live_panel(request.console)
        life.log = open_log(folder, to_console=on_console)
        stack.callback(life.log.close)
        if page:
            stack.callback(_write_page, folder)
        stack.push(life.close)
        stack.enter_context(folder.guarded())
        life.diary = open_diary(life, mode, request.command)
        yield life


def _mode(path: Path, asked: Mode | Literal["continue"]) -> Mode:
    if asked != "continue":
        return asked
    return "resume" if RunFolder(path).holds_run() else "new"


def open_diary(life: Life, mode: Mode, command: Sequence[str]) -> Diary:
    """Write down config and origin, and begin a session."""
    folder, loaded = life.folder, life.loaded
    changes: dict[str, tuple[Any, Any]] = {}
    if loaded is not None:
        with restoring(loaded.path, "config"):
            changes = differences(loaded.state["config"], to_dict(life.config))
    if mode == "resume" and folder.diary.exists():
        diary = Diary.open(folder.diary)
    else:
        diary = Diary.create(folder.diary, command)
        if loaded is not None and mode != "resume":
            diary.set_parent(loaded.path, loaded.step, stored_checksum(loaded.path), changes, life.kind.unit)
    diary.begin_session(command, life.step, changes, life.kind.unit)
    if mode != "resume" or loaded is None:
        life.write_config()
    log.info("run folder %s", folder.path)
    if folder.took_over:
        log.info("it was left by a start that ended before its first training step; of that, the log is kept")
    for key, (old, new) in changes.items():
        log.info("changed since the checkpoint: %s: %s -> %s", key, old, new)
    return diary


def _write_page(folder: RunFolder) -> None:
    """Write a page about the run, however it ended; the run has not failed if this does."""
    if not folder.config.exists() or folder.lost():  # there is nothing to tell yet, or not any more
        return
    try:
        log.info("report of the run: %s", write_run_report(folder.path))
    except RollmillError as error:
        log.error("no report of the run: %s", error)
