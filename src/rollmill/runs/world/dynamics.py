"""``rollmill world dynamics``: learn from a store of latents what happens next."""

from __future__ import annotations

import logging
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from rollmill.core.checkpoints import restoring
from rollmill.core.errors import CheckpointError, ConfigError, StoreError
from rollmill.core.seeds import Seeds
from rollmill.optim.device import choose_device
from rollmill.runs.world.stage import Progress, Stage, open_stage
from rollmill.store.cache import DecodedCache
from rollmill.store.reader import Store
from rollmill.worldmodel.dynamics.fit import COLUMNS, FIT_SHAPE, DynamicsFitter, LatentData, check_latents
from rollmill.worldmodel.dynamics.model import DYNAMICS_FILE, Dynamics, save_dynamics
from rollmill.worldmodel.dynamics.settings import DynamicsSettings

log = logging.getLogger("rollmill")

KIND = "world dynamics"
CACHE = "cache"
FREE = ("steps", "seconds", "report_steps", "save_seconds", "device", "threads", "batch_size")
"""Settings that may change when a fit goes on."""


@dataclass(frozen=True)
class DynamicsOutcome:
    """How the stage ended."""

    folder: Path
    model: Path
    steps: int
    interrupted: bool
    metrics: dict[str, float]

    def to_dict(self) -> dict[str, Any]:
        return {
            "folder": str(self.folder),
            "model": str(self.model),
            "steps": self.steps,
            "interrupted": self.interrupted,
            "metrics": self.metrics,
        }


def train_dynamics(
    settings: DynamicsSettings,
    encoded_store: Path,
    out: Path,
    progress: Progress | None = None,
    on_ready: Callable[[], None] | None = None,
) -> DynamicsOutcome:
    """Fit a model to a store of latents, or go on with it; ``out/dynamics.bin`` is the model.

    ``on_ready`` is called when everything is built: nothing can be refused any more. Raises RollmillError when it
    fails; a killed or interrupted fit continues when called again.
    """
    devices = choose_devices(settings.device)
    torch.set_num_threads(1)  # threads take whole pieces of a batch
    with Store(encoded_store) as store:
        check_latents(store)
        if not len(store):
            raise StoreError(f"{encoded_store}: the store holds no finished episode")
        inputs = {"latent size": int(store.schema["obs:mean"].shape[0]), "environment": store.schema.env_id}
        with open_stage(out, KIND, settings, inputs, FREE, {"fit": FIT_SHAPE}) as stage:
            source = DecodedCache(store, out / CACHE, columns=COLUMNS)
            run = _Fit(settings, LatentData(source, settings), devices, stage, progress)
            try:
                if on_ready is not None:
                    on_ready()
                run.loop()
            finally:
                run.fitter.close()
            shutil.rmtree(out / CACHE, ignore_errors=True)  # a copy of the store, made again when needed
        return DynamicsOutcome(out, out / DYNAMICS_FILE, run.fitter.step, stage.stopped, stage.metrics)


def choose_devices(names: str) -> list[torch.device]:
    """The devices that share the work; all CPU or all GPUs."""
    devices = [choose_device(name.strip()) for name in names.split(",")]
    if len({device.type for device in devices}) > 1:
        raise ConfigError(f"device={names}: either CPUs or GPUs")
    return devices


class _Fit:
    """A fit under way."""

    def __init__(
        self,
        settings: DynamicsSettings,
        data: LatentData,
        devices: list[torch.device],
        stage: Stage,
        progress: Progress | None,
    ) -> None:
        self.settings, self.stage, self._progress = settings, stage, progress
        torch.manual_seed(Seeds(settings.seed).branch("weights").integer())
        self.model = Dynamics(settings, data.origin()).to(devices[0])
        self.model.starts = data.starts()
        self.fitter = DynamicsFitter(self.model, data, devices)
        if stage.loaded is not None:
            with restoring(stage.loaded.path, "fit"):
                self.fitter.load_state(stage.loaded.state["fit"])

    def loop(self) -> None:
        s, fitter = self.settings, self.fitter
        saved = time.monotonic()
        while not self._over():
            fitter.train_step()
            if fitter.step % s.report_steps == 0:
                self._report()
            if time.monotonic() - saved >= s.save_seconds:
                self._save_or_complain()
                saved = time.monotonic()
        if fitter.fresh:
            self._report()
        self.model.axes = fitter.axes()
        self._save()

    def _over(self) -> bool:
        s, fitter = self.settings, self.fitter
        self.stage.folder.watch()
        late = bool(s.seconds) and fitter.seconds >= s.seconds
        return self.stage.stopped or fitter.step >= s.steps or late

    def _report(self) -> None:
        metrics = {**self.fitter.metrics(), **self.fitter.validate()}
        self.stage.report(self.fitter.step, metrics)
        if self._progress is not None:
            self._progress(self.fitter.step / max(1, self.settings.steps), metrics)

    def _save_or_complain(self) -> None:
        try:
            self._save()
        except CheckpointError as error:
            log.error("no checkpoint was written, the fit goes on: %s", error)

    def _save(self) -> None:
        self.stage.save(self.fitter.step, {"fit": self.fitter.state()})
        metrics = {name: value for name, value in self.stage.metrics.items() if value == value}
        save_dynamics(self.stage.folder.path / DYNAMICS_FILE, self.model, {"steps": self.fitter.step, **metrics})
