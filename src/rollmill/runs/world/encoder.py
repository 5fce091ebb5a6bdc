"""``rollmill world vae``: learn an image encoder from the images of a store.

``train_vae`` shows everything in the order it happens: look at the store, take the folder, build, load a checkpoint if
asked, fit, write the encoder and the page.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch

from rollmill.core.checkpoints import Checkpoints, Loaded, require_version, restoring
from rollmill.core.config.plain import to_dict
from rollmill.core.errors import CheckpointError, ConfigError, StoreError
from rollmill.core.fields import Array
from rollmill.core.run_folder import RunFolder, open_log
from rollmill.core.seeds import Seeds
from rollmill.core.shapes import MAPPING, check_shape
from rollmill.monitor.console import Row, count_text, live_panel
from rollmill.optim.device import choose_device, matmul_dtype
from rollmill.reports.run.report import write_run_report
from rollmill.reports.video.images import contact_sheet
from rollmill.runs.lifecycle import Request, ending, find_checkpoint, open_diary, write_config
from rollmill.runs.stopping import Interrupt
from rollmill.runs.world.reporting import StageReporter
from rollmill.runs.world.settings import VaeConfig
from rollmill.runs.world.stage import Progress
from rollmill.store.format.schema import Column
from rollmill.store.reader import Store
from rollmill.store.split import Split
from rollmill.worldmodel.encoder.file import ENCODER_FILE, build_encoder, save_encoder
from rollmill.worldmodel.encoder.fit import FIT_SHAPE, EncoderFitter
from rollmill.worldmodel.encoder.images import ImageBatches, held_out_images, image_column

log = logging.getLogger("rollmill")

KIND = "world vae"
CHECKPOINT_FORMAT = 1
VALIDATION_IMAGES = 256
SHOWN = 8
"""Images on a sheet of reconstructions."""
ROWS = (
    Row("loss", "learn/loss"),
    Row("reconstruction", "learn/reconstruction"),
    Row("KL", "learn/kl"),
    Row("active latents", "learn/active", lambda n: f"{n:.0f}"),
    Row("held-out loss", "validation/loss"),
    Row("pixel error", "validation/pixel_error"),
    Row("images/s", "time/images_per_s", count_text),
    Row("waits for data", "data/wait_share", lambda share: f"{share:.1%}"),
    Row("learning rate", "learn/learning_rate"),
)


@dataclass(frozen=True)
class VaeOutcome:
    """How the training of an encoder ended."""

    state: Literal["finished", "interrupted"]
    reason: str
    steps: int
    folder: Path
    encoder: Path | None
    """The encoder's file; None before it is finished."""
    metrics: Mapping[str, float]
    signal: int = 0

    @property
    def exit_code(self) -> int:
        return 128 + self.signal if self.signal else 0

    def to_dict(self) -> dict[str, Any]:
        return {
            "state": self.state,
            "reason": self.reason,
            "steps": self.steps,
            "folder": str(self.folder),
            "encoder": None if self.encoder is None else str(self.encoder),
            "metrics": dict(self.metrics),
        }


def train_vae(
    config: VaeConfig,
    store_path: Path,
    out: Path,
    request: Request | None = None,
    progress: Progress | None = None,
    on_ready: Callable[[], None] | None = None,
) -> VaeOutcome:
    """Train an encoder in the folder ``out``. Raises RollmillError when it fails; the folder says why, too.

    ``on_ready`` is called when everything is built: nothing can be refused any more.
    """
    request = request or Request()
    if request.restore is not None:
        raise ConfigError("an encoder's training goes on with --resume; --restore means nothing to it")
    device = choose_device(config.fit.device)
    matmul_dtype(config.fit.precision, device)  # a wish this machine cannot grant is refused before anything is there
    with contextlib.ExitStack() as stack:
        store = stack.enter_context(Store(store_path))
        column = image_column(store.schema, config.images.field, str(store_path))
        if not len(store):
            raise StoreError(f"{store_path} has no episodes; fill it with `rollmill collect --out {store_path}`")
        loaded = find_checkpoint(out, request.mode, None, _require_vae)
        folder = stack.enter_context(RunFolder.create(out, request.mode))
        folder.set_state("running", "starting", loaded.frames if loaded else 0)
        handle = open_log(folder, to_console=request.console != "off" and not live_panel(request.console))
        stack.callback(handle.close)
        diary = open_diary(folder, config, request.mode, request.command, loaded)
        with ending(folder, diary, loaded.frames if loaded else 0) as life, folder.guarded():
            run = life.run = VaeRun(config, store, column, folder, device, request, progress)
            if loaded is not None:
                run.load_state(loaded)
                write_config(folder, config)  # only now: settings that fail must not stay
            if on_ready is not None:
                on_ready()
            run.loop()
            run.save()
            if not run.interrupt.signal:
                run.finish()
        log.info("report %s", write_run_report(out))  # when its folder says how it ended
    return run.outcome()


class VaeRun:
    """A training in progress."""

    def __init__(
        self,
        config: VaeConfig,
        store: Store,
        column: Column,
        folder: RunFolder,
        device: torch.device,
        request: Request,
        progress: Progress | None = None,
    ) -> None:
        self.config, self.store, self.folder, self._progress = config, store, folder, progress
        self.interrupt = Interrupt()
        self.metrics: dict[str, float] = {}
        self.stop_reason = ""
        self.encoder_path: Path | None = None
        seeds = Seeds(config.seed)
        if device.type == "cpu":
            torch.set_num_threads(1)  # threads take whole pieces of a batch; see ``optim.replicas``
        torch.manual_seed(seeds.branch("weights").integer())
        height, width, depth = column.shape
        encoder = build_encoder(config.encoder.kind, (height, width, depth), **config.encoder.arguments()).to(device)
        training, held_out = Split(config.images.validation, config.seed)(store.table)
        data = seeds.branch("data").integer()
        batches = ImageBatches(store, column.name, training, config.images, config.fit.batch_size, data)
        images = held_out_images(store, column.name, held_out, VALIDATION_IMAGES, data)
        self._shown = _spread(images if len(images) else batches.pool(0))
        self.fitter = EncoderFitter(encoder, batches, images, config.fit, seeds.branch("fit").integer())
        self._checkpoints = Checkpoints(folder.checkpoints, keep_last=2, keep_best=0)
        self._reporter = StageReporter(folder, request.console, ROWS, f"{config.encoder.kind}: {folder.path}")
        log.info(
            "%s: %s episodes to learn from, %s held out; images %dx%dx%d, latents of %d numbers, on %s",
            *(store.path, f"{len(training):,}", f"{len(held_out):,}", height, width, depth, encoder.size, device),
        )

    @property
    def steps(self) -> int:
        """Optimizer steps so far."""
        return self.fitter.step

    def loop(self) -> None:
        """Fit until the last step, or a signal."""
        fit, config = self.config.fit, self.config
        self._reporter.open(self.steps, fit.steps, self.fitter.seconds, config.tensorboard, config.console_seconds)
        if not self.steps:
            self._save_or_complain()  # one that is killed early can be resumed, too
        with self.interrupt:
            while not self._over():
                self.fitter.train_step()
                self._reporter.refresh()
                if self.steps % fit.every_steps == 0:
                    self._report()
                if self.steps % fit.save_steps == 0 and self.steps < fit.steps:
                    self._save_or_complain()
                    self.draw()
        if self.fitter.fresh:
            self._report()

    def _over(self) -> bool:
        self.folder.watch()
        if self.interrupt.signal is not None:
            self.stop_reason = f"{self.interrupt.signal.name} received"
        elif self.steps >= self.config.fit.steps:
            self.stop_reason = f"reached fit.steps={self.config.fit.steps:_}"
        return bool(self.stop_reason)

    def _report(self) -> None:
        self.metrics |= {**self.fitter.metrics(), **self.fitter.validate()}
        self._reporter.write(self.steps, self.metrics)
        if self._progress is not None:
            self._progress(self.steps / self.config.fit.steps, self.metrics)

    def draw(self) -> None:
        """A sheet: images above, what is left of them after encoding and decoding below."""
        self._reporter.image(
            self.steps, "reconstructions", contact_sheet([self._shown, self.fitter.reconstructions(self._shown)])
        )

    def finish(self) -> None:
        """Write the encoder."""
        self.draw()
        metadata = {
            "store": str(self.store.path),
            "steps": self.steps,
            "seconds": round(self.fitter.seconds, 1),
            "metrics": dict(self.metrics),
            "config": to_dict(self.config),
        }
        self.encoder_path = self.folder.path / ENCODER_FILE
        save_encoder(self.encoder_path, self.fitter.model, metadata)
        log.info("encoder %s", self.encoder_path)

    # -- checkpoints ---------------------------------------------------------------------------

    def save(self) -> Path:
        """Write a checkpoint now; CheckpointError when it cannot be written (older ones are safe)."""
        self.folder.require()
        path = self._checkpoints.save(self.state(), self.steps, None)
        log.info("checkpoint %s", path)
        return path

    def _save_or_complain(self) -> None:
        try:
            self.save()
        except CheckpointError as error:
            log.error("no checkpoint was written, training goes on: %s", error)

    def state(self) -> dict[str, Any]:
        return {
            "format": CHECKPOINT_FORMAT,
            "kind": KIND,
            "config": to_dict(self.config),
            "store": str(self.store.path),
            "fit": self.fitter.state(),
        }

    def load_state(self, loaded: Loaded) -> None:
        with restoring(loaded.path, "fit"):
            self.fitter.load_state(loaded.state["fit"])
        self._checkpoints.set_aside_after(self.steps)
        log.info("continuing from %s (%s optimizer steps)", loaded.path, f"{self.steps:,}")

    def outcome(self) -> VaeOutcome:
        number = self.interrupt.signal
        state: Literal["finished", "interrupted"] = "interrupted" if number else "finished"
        return VaeOutcome(
            state,
            self.stop_reason,
            self.steps,
            self.folder.path,
            self.encoder_path,
            self.metrics,
            int(number) if number else 0,
        )

    def close(self) -> None:
        self.fitter.close()
        self._reporter.close()


def _spread(images: Array) -> Array:
    """``SHOWN`` of the images, from all over."""
    return images[:: max(1, len(images) // SHOWN)][:SHOWN]


def _require_vae(loaded: Loaded) -> Loaded:
    if not isinstance(loaded.state, Mapping) or loaded.state.get("kind") != KIND:
        raise CheckpointError(f"{loaded.path}: not a checkpoint of an encoder's training")
    require_version(loaded.path, loaded.state, CHECKPOINT_FORMAT, "format")
    with restoring(loaded.path):
        check_shape(loaded.state, {"config": MAPPING, "fit": FIT_SHAPE})
    return loaded
