"""``rollmill world dynamics``: learn from a store of latents what happens next."""

from __future__ import annotations

import contextlib
import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from rollmill.core.checkpoints import Loaded, restoring
from rollmill.core.errors import ConfigError, StoreError
from rollmill.core.seeds import Seeds
from rollmill.monitor.console import Row, count_text
from rollmill.monitor.metrics import Progress
from rollmill.monitor.reporter import Display
from rollmill.optim.device import choose_device
from rollmill.runs.lifecycle import STAGE, Ended, Life, Request, live
from rollmill.runs.lifecycle import Progress as Tell
from rollmill.runs.resume import stage_check
from rollmill.store.cache import DecodedCache
from rollmill.store.reader import Store
from rollmill.worldmodel.dynamics.fit import COLUMNS, FIT_SHAPE, DynamicsFitter, LatentData, check_latents
from rollmill.worldmodel.dynamics.model import build_dynamics, save_dynamics
from rollmill.worldmodel.dynamics.settings import DynamicsSettings
from rollmill.worldmodel.files import DYNAMICS

CHECK = stage_check("dynamics", {"fit": FIT_SHAPE})
CACHE = "cache"
CONSOLE_SECONDS = 5.0
ROWS = (
    Row("loss", "learn/loss"),
    Row("held-out loss", "validation/loss"),
    Row("latent nats", "validation/latent"),
    Row("reward error", "validation/reward"),
    Row("updates/s", "updates_per_s", count_text),
    Row("learning rate", "learn/learning_rate"),
)


@dataclass(frozen=True)
class DynamicsOutcome(Ended):
    """How the stage ended."""

    model: Path
    steps: int
    metrics: dict[str, float]


def train_dynamics(
    settings: DynamicsSettings,
    encoded_store: Path,
    out: Path,
    request: Request | None = None,
    progress: Tell | None = None,
) -> DynamicsOutcome:
    """Fit a model to a store of latents, or go on with it; ``out/dynamics.bin`` is the model.

    Raises RollmillError when it fails; a killed or interrupted fit continues when called again.
    """
    request = request or Request("continue")
    devices = choose_devices(settings.device)
    torch.set_num_threads(1)  # threads take whole pieces of a batch
    with contextlib.ExitStack() as stack:
        store = stack.enter_context(Store(encoded_store))
        check_latents(store)
        if not len(store):
            raise StoreError(f"{encoded_store}: the store holds no finished episode")
        inputs = {"latent size": int(store.schema["obs:mean"].shape[0]), "environment": store.schema.env_id}
        keep = replace(STAGE, every_seconds=settings.save_seconds)
        living = live("dynamics", out, settings, request, CHECK, inputs=inputs, keep=keep, progress=progress)
        life = stack.enter_context(living)
        source = DecodedCache(store, out / CACHE, columns=COLUMNS)
        run = DynamicsRun(settings, LatentData(source, settings), devices, life)
        stack.callback(run.fitter.close)
        life.begin(run)
        request.on_ready()
        run.loop()
        shutil.rmtree(out / CACHE, ignore_errors=True)  # a copy of the store, made again when needed
    return DynamicsOutcome(**life.ended(), model=out / DYNAMICS.name, steps=run.step, metrics=run.metrics)


def choose_devices(names: str) -> list[torch.device]:
    """Choose the devices that share the work; all CPU or all GPUs."""
    devices = [choose_device(name.strip()) for name in names.split(",")]
    if len({device.type for device in devices}) > 1:
        raise ConfigError(f"device={names}: either CPUs or GPUs")
    return devices


class DynamicsRun:
    """A fit in progress."""

    def __init__(self, settings: DynamicsSettings, data: LatentData, devices: list[torch.device], life: Life) -> None:
        self.settings, self.life = settings, life
        self.metrics: dict[str, float] = {}
        torch.manual_seed(Seeds(settings.seed).branch("weights").integer())
        self.model = build_dynamics(settings, data.origin()).to(devices[0])
        self.model.starts = data.starts()
        if self.model.recall is not None:
            data.remember(self.model.recall, self.model.code)
        self.fitter = DynamicsFitter(self.model, data, devices)

    @property
    def step(self) -> int:
        """Optimizer steps so far."""
        return self.fitter.step

    def loop(self) -> None:
        """Fit until a limit or a signal ends it, and write the model."""
        s, fitter, life = self.settings, self.fitter, self.life
        title, progress = f"dynamics: {life.folder.path}", Progress(s.steps, s.seconds, fitter.seconds)
        life.reporter.open(self.step, Display(life.console, title, ROWS, progress, CONSOLE_SECONDS))
        if not life.can_be_resumed:
            life.try_save(self.state(), self.step)  # one that is killed early can be resumed, too
        with life.interrupt:
            while not life.over(self._limit):
                fitter.train_step()
                life.reporter.tick(self.step)
                if self.step % s.report_steps == 0:
                    self._report()
                if life.save_due(self.step) and life.try_save(self.state(), self.step):
                    self._write_model()
            if fitter.fresh:
                self._report()
            self.model.axes = fitter.axes()
            life.save(self.state(), self.step)
            self._write_model()

    def _limit(self) -> str:
        s = self.settings
        if self.step >= s.steps:
            return f"reached steps={s.steps:_}"
        return f"reached seconds={s.seconds:g}" if s.seconds and self.fitter.seconds >= s.seconds else ""

    def _report(self) -> None:
        metrics = {**self.fitter.metrics(), **self.fitter.validate()}
        self.metrics |= metrics
        self.life.report(self.step, metrics, of=max(1, self.settings.steps))

    def _write_model(self) -> None:
        metrics = {name: value for name, value in self.metrics.items() if value == value}
        save_dynamics(self.life.folder.path / DYNAMICS.name, self.model, {"steps": self.step, **metrics})

    def state(self) -> dict[str, Any]:
        return {"fit": self.fitter.state()}

    def load_state(self, loaded: Loaded) -> None:
        with restoring(loaded.path, "fit"):
            self.fitter.load_state(loaded.state["fit"])
