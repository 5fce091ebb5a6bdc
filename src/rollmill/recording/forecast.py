"""How much a recording will take, said before it starts."""

from __future__ import annotations

import math
from dataclasses import dataclass

from rollmill.core.text import bytes_text
from rollmill.recording.budget import shard_size
from rollmill.recording.settings import RecordingSettings
from rollmill.recording.window import Window


@dataclass(frozen=True)
class Sample:
    """What a few random steps of the environment took in a store."""

    steps: int
    bytes_per_step: float
    episode_length: float
    """Mean length; of the steps themselves where no episode ended."""


@dataclass(frozen=True)
class RunSize:
    """The numbers of a run that its recording depends on. ``steps``: decisions in all, 0 if there is no limit."""

    steps: int
    frames_per_step: int
    segments_per_batch: int


@dataclass(frozen=True)
class Forecast:
    """What a recording will hold. ``upper``: an upper bound, because returns decide."""

    rows: int
    bytes: int
    files: int
    bytes_per_row: float
    budget: int
    upper: bool = False
    unlimited_run: bool = False
    """The run has no known end: metrics are per million frames."""

    @property
    def budget_reached_at(self) -> float:
        """Share of what is to be recorded at which the budget is full; 1 if it never is."""
        return min(1.0, self.budget / self.bytes) if self.budget and self.bytes else 1.0

    @property
    def stored_bytes(self) -> int:
        return min(self.bytes, self.budget) if self.budget else self.bytes


def kept_share(settings: RecordingSettings, segments_per_batch: int) -> float:
    """Return the share of all rows within the window that are kept."""
    if settings.keep in ("one", "rotate"):
        return 1 / segments_per_batch
    if settings.keep in ("every", "episodes", "best"):
        return 1 / settings.every
    return 1.0 if settings.on else 0.0


def forecast(settings: RecordingSettings, run: RunSize, sample: Sample) -> Forecast:
    """Multiply the rows within the window by the share kept and by the bytes per row."""
    total = run.steps or 1_000_000 // run.frames_per_step
    window = Window.parse(settings.when)
    share = window.share(run.steps * run.frames_per_step)
    rows = round(total * share * kept_share(settings, run.segments_per_batch))
    size = round(rows * sample.bytes_per_step)
    limit = settings.budget_bytes
    stored = min(size, limit) if limit else size
    files = 1 + 2 * math.ceil(stored / shard_size(limit, settings.at_budget)) if stored else 1
    return Forecast(
        rows=rows,
        bytes=size,
        files=files,
        bytes_per_row=sample.bytes_per_step,
        budget=limit,
        upper=settings.min_return is not None,
        unlimited_run=not run.steps,
    )


def describe(found: Forecast, settings: RecordingSettings) -> str:
    """Return one or two sentences for the log."""
    about = "at most" if found.upper else "about"
    per = " per million frames" if found.unlimited_run else ""
    text = (
        f"recording keep={settings.keep} when={settings.when}: {about} {found.rows:,} rows{per}, "
        f"{bytes_text(found.bytes)} ({found.bytes_per_row:,.0f} bytes per row)"
    )
    if settings.when == "spread":
        text += f", spread over the run so that {bytes_text(found.stored_bytes)} are used"
    elif found.budget_reached_at < 1 and not found.unlimited_run:
        then = {"stop": "recording stops", "thin": "it is thinned", "ring": "the oldest is dropped"}
        text += (
            f"; the budget of {settings.budget_gb:g} GB is reached after {found.budget_reached_at:.0%} of it, "
            f"then {then[settings.at_budget]}"
        )
    elif settings.budget_gb:
        text += f"; budget {settings.budget_gb:g} GB"
    else:
        text += "; no budget"
    return f"{text}; about {found.files:,} files"
