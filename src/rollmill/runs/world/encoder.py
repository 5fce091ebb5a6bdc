"""``rollmill world vae``: learn an image encoder from the images of a store.

``train_vae`` shows everything in the order it happens: look at the store, take the folder, build, load a checkpoint if
asked, fit, write the encoder and the page.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from rollmill.core.checkpoints import Loaded, restoring
from rollmill.core.config.plain import to_dict
from rollmill.core.errors import StoreError
from rollmill.core.fields import Array
from rollmill.core.seeds import Seeds
from rollmill.monitor.console import Row, count_text
from rollmill.monitor.metrics import Progress
from rollmill.monitor.reporter import Display
from rollmill.optim.device import choose_device, matmul_dtype
from rollmill.reports.video.images import contact_sheet
from rollmill.runs.lifecycle import Ended, Life, Request, live
from rollmill.runs.lifecycle import Progress as Tell
from rollmill.runs.resume import stage_check
from rollmill.runs.settings.world import VaeConfig
from rollmill.store.format.schema import Column
from rollmill.store.reader import Store
from rollmill.store.split import Split
from rollmill.worldmodel.encoder.file import build_encoder, save_encoder
from rollmill.worldmodel.encoder.fit import FIT_SHAPE, EncoderFitter
from rollmill.worldmodel.encoder.images import ImageBatches, held_out_images, image_column
from rollmill.worldmodel.files import ENCODER

log = logging.getLogger("rollmill")

CHECK = stage_check("vae", {"fit": FIT_SHAPE})
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
class VaeOutcome(Ended):
    """How the training of an encoder ended."""

    steps: int
    encoder: Path | None
    """The encoder's file; None before it is finished."""
    metrics: Mapping[str, float]


def train_vae(
    config: VaeConfig,
    store_path: Path,
    out: Path,
    request: Request | None = None,
    progress: Tell | None = None,
) -> VaeOutcome:
    """Train an encoder in the folder ``out``. Raises RollmillError when it fails; the folder says why, too."""
    request = request or Request()
    device = choose_device(config.fit.device)
    matmul_dtype(config.fit.precision, device)  # a wish this machine cannot grant is refused before anything is there
    with contextlib.ExitStack() as stack:
        store = stack.enter_context(Store(store_path))
        column = image_column(store.schema, config.images.field, str(store_path))
        if not len(store):
            raise StoreError(f"{store_path} has no episodes; fill it with `rollmill collect --out {store_path}`")
        inputs = {"image shape": list(column.shape)}
        living = live("vae", out, config, request, CHECK, inputs=inputs, progress=progress)
        life = stack.enter_context(living)
        run = VaeRun(config, store, column, life, device)
        stack.callback(run.fitter.close)
        life.begin(run)
        request.on_ready()
        run.loop()
        life.save(run.state(), run.step)
        encoder = None if life.stopped else run.finish()
    return VaeOutcome(**life.ended(), steps=run.step, encoder=encoder, metrics=run.metrics)


class VaeRun:
    """A training in progress."""

    def __init__(
        self,
        config: VaeConfig,
        store: Store,
        column: Column,
        life: Life,
        device: torch.device,
    ) -> None:
        self.config, self.store, self.life = config, store, life
        self.metrics: dict[str, float] = {}
        seeds = Seeds(config.seed)
        if device.type == "cpu":
            torch.set_num_threads(1)  # threads take whole pieces of a batch; see ``optim.replicas``
        torch.manual_seed(seeds.branch("weights").integer())
        height, width, depth = column.shape
        encoder = build_encoder(config.encoder.name, (height, width, depth), **config.encoder.arguments()).to(device)
        training, held_out = Split(config.images.validation, config.seed)(store.table)
        data = seeds.branch("data").integer()
        batches = ImageBatches(store, column.name, training, config.images, config.fit.batch_size, data)
        images = held_out_images(store, column.name, held_out, VALIDATION_IMAGES, data)
        self._shown = _spread(images if len(images) else batches.pool(0))
        self.fitter = EncoderFitter(encoder, batches, images, config.fit, seeds.branch("fit").integer())
        log.info(
            "%s: %s episodes to learn from, %s held out; images %dx%dx%d, latents of %d numbers, on %s",
            *(store.path, f"{len(training):,}", f"{len(held_out):,}", height, width, depth, encoder.size, device),
        )

    @property
    def step(self) -> int:
        """Optimizer steps so far."""
        return self.fitter.step

    def loop(self) -> None:
        """Fit until the last step, or a signal."""
        life, fit, config = self.life, self.config.fit, self.config
        title, progress = f"{config.encoder.name}: {life.folder.path}", Progress(fit.steps, 0.0, self.fitter.seconds)
        display = Display(life.console, title, ROWS, progress, config.console_seconds)
        life.reporter.open(self.step, display, tensorboard=config.tensorboard)
        if not life.can_be_resumed:
            life.try_save(self.state(), self.step)  # one that is killed early can be resumed, too
        with life.interrupt:
            while not life.over(self._limit):
                self.fitter.train_step()
                life.reporter.tick(self.step)
                if self.step % fit.every_steps == 0:
                    self._report()
                if self.step % fit.save_steps == 0 and self.step < fit.steps:
                    life.try_save(self.state(), self.step)
                    self.draw()
        if self.fitter.fresh:
            self._report()

    def _limit(self) -> str:
        return f"reached fit.steps={self.config.fit.steps:_}" if self.step >= self.config.fit.steps else ""

    def _report(self) -> None:
        self.metrics |= {**self.fitter.metrics(), **self.fitter.validate()}
        self.life.report(self.step, self.metrics, of=self.config.fit.steps)

    def draw(self) -> None:
        """Draw a sheet: images above, what is left of them after encoding and decoding below."""
        sheet = contact_sheet([self._shown, self.fitter.reconstructions(self._shown)])
        self.life.reporter.image(self.step, "reconstructions", sheet)

    def finish(self) -> Path:
        """Write the encoder and return its file."""
        self.draw()
        metadata = {
            "store": str(self.store.path),
            "steps": self.step,
            "seconds": round(self.fitter.seconds, 1),
            "metrics": dict(self.metrics),
            "config": to_dict(self.config),
        }
        path = self.life.folder.path / ENCODER.name
        save_encoder(path, self.fitter.model, metadata)
        log.info("encoder %s", path)
        return path

    def state(self) -> dict[str, Any]:
        return {"fit": self.fitter.state()}

    def load_state(self, loaded: Loaded) -> None:
        with restoring(loaded.path, "fit"):
            self.fitter.load_state(loaded.state["fit"])


def _spread(images: Array) -> Array:
    """Return ``SHOWN`` of the images, from all over."""
    return images[:: max(1, len(images) // SHOWN)][:SHOWN]
