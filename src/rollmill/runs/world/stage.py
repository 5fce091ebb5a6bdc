"""Takes or continues the folder of one stage of a world model, and writes down how it ended.

A stage is a small run: its folder has the layout of ``core.run_folder``, and beside it the model it is there for.
Calling a stage again continues it where it stopped; there is nothing to continue in a complete one.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from rollmill.core.checkpoints import Checkpoints, Loaded, restoring, saved_settings
from rollmill.core.config.plain import differences, to_dict
from rollmill.core.errors import CheckpointError, ConfigError, RunFolderError
from rollmill.core.protocols import Sink
from rollmill.core.run_folder import RunFolder
from rollmill.core.shapes import MAPPING, Shape, check_shape
from rollmill.monitor.jsonl import JsonlSink
from rollmill.monitor.tensorboard import TensorBoardSink
from rollmill.runs.lifecycle import why_failed, write_config
from rollmill.runs.stopping import Interrupt

log = logging.getLogger("rollmill")

Progress = Callable[[float, Mapping[str, float]], None]
"""Called with the share of the stage that is done (0..1) and its newest metrics."""


class Stage:
    """One stage at work: its folder, its checkpoint, its sinks, and whether it was asked to stop."""

    def __init__(self, folder: RunFolder, kind: str, facts: Mapping[str, Any], loaded: Loaded | None) -> None:
        self.folder, self.kind, self.loaded, self._facts = folder, kind, loaded, dict(facts)
        self.interrupt = Interrupt()
        self.checkpoints = Checkpoints(folder.checkpoints, keep_last=2, keep_best=0, min_free_mb=50)
        self.metrics: dict[str, float] = {}
        self.position = loaded.frames if loaded else 0
        """How far the stage is, in its own unit (optimizer steps, generations)."""
        resumed = self.position if folder.metrics.exists() else None
        self._sinks: list[Sink] = [
            JsonlSink(folder.metrics, resumed, unit="generations" if kind == "world controller" else "updates"),
            TensorBoardSink(folder.tensorboard, resumed),
        ]

    @property
    def stopped(self) -> bool:
        return self.interrupt.signal is not None

    def report(self, position: int, metrics: Mapping[str, float]) -> None:
        """Write a row of metrics; a sink that cannot write is complained about, the stage goes on."""
        self.folder.require()
        self.position = position
        self.metrics |= metrics
        for sink in self._sinks:
            try:
                sink.write(position, metrics)
            except RunFolderError as error:
                log.error("metrics are being lost, the stage goes on: %s", error)

    def save(self, position: int, state: Mapping[str, Any]) -> None:
        """Write a checkpoint; CheckpointError when it cannot be written (older ones are safe)."""
        self.folder.require()
        self.position = position
        self.checkpoints.save({"kind": self.kind, "facts": self._facts, **state}, position, None)

    def close(self) -> None:
        for sink in self._sinks:
            try:
                sink.close()
            except RunFolderError as error:
                log.error("the last metrics could not be written: %s", error)


@contextlib.contextmanager
def open_stage(
    out: Path, kind: str, settings: object, inputs: Mapping[str, Any], free: Collection[str], shape: Mapping[str, Shape]
) -> Iterator[Stage]:
    """Take the folder ``out`` for a stage and write down how it ended.

    ``inputs``: what it is made from (checksums); a folder made from something else is refused. ``free``: settings
    that may differ from those of the checkpoint, such as limits. ``shape``: of what the stage saves.
    """
    facts = {"settings": to_dict(settings), "inputs": dict(inputs)}
    with RunFolder.create(out, "resume" if RunFolder(out).holds_run() else "new") as folder:
        loaded = _newest(folder, kind, settings, facts, free, shape)
        write_config(folder, settings)
        stage = Stage(folder, kind, facts, loaded)
        if loaded is not None:
            log.info("%s: continuing from %s", kind, loaded.path)
        state, reason = "failed", ""
        try:
            folder.set_state("running", frames=stage.position)
            with folder.guarded(), stage.interrupt:
                yield stage
            signal = stage.interrupt.signal
            state, reason = ("interrupted", f"{signal.name} received") if signal else ("finished", "")
        except BaseException as error:
            reason = why_failed(error)
            raise
        finally:
            stage.close()
            if not folder.lost():
                folder.set_state(state, reason, stage.position)  # type: ignore[arg-type]


def _newest(
    folder: RunFolder,
    kind: str,
    settings: object,
    facts: Mapping[str, Any],
    free: Collection[str],
    shape: Mapping[str, Shape],
) -> Loaded | None:
    checkpoints = Checkpoints(folder.checkpoints)
    if checkpoints.newest() is None:
        return None
    loaded = checkpoints.load_newest()
    if not isinstance(loaded.state, Mapping) or loaded.state.get("kind") != kind:
        raise CheckpointError(f"{loaded.path}: not a checkpoint of the stage {kind}; choose another folder")
    with restoring(loaded.path):
        check_shape(loaded.state, {"facts": {"settings": MAPPING, "inputs": MAPPING}, **shape})
    saved = loaded.state["facts"]
    # Through the class, so that a setting which is newer than the checkpoint has its default there.
    before = saved_settings(type(settings), saved["settings"], loaded.path)
    changed = {key: pair for key, pair in differences(before, settings).items() if key not in free}
    if changed:
        words = ", ".join(f"{key}: {old} -> {new}" for key, (old, new) in changed.items())
        raise ConfigError(
            f"{folder.path} was begun with other settings ({words}): set them back or choose another folder"
        )
    if saved["inputs"] != facts["inputs"]:
        other = [name for name, value in facts["inputs"].items() if saved["inputs"].get(name) != value]
        raise ConfigError(
            f"{folder.path} was begun with another {', '.join(other)}: choose another folder, or remove this one"
        )
    return loaded
