"""Keeps the metrics of all episodes of a run beside those that are recorded (``store.played``)."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from rollmill.core.errors import StoreError
from rollmill.sampling.sampler import EpisodeEnd
from rollmill.store.played import PlayedEpisodes

log = logging.getLogger("rollmill")

SAVE_SECONDS = 10.0
"""A run that is killed loses the metrics of at most so long."""


class PlayedLog:
    """Takes in ended episodes, writes ``played.json`` now and then. A disk that is full costs metrics, not the run."""

    def __init__(self, store: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self._store, self._clock = store, clock
        self._saved = clock()
        self._complained = False
        try:
            self._played = PlayedEpisodes.load(store) or PlayedEpisodes()
        except StoreError as error:
            log.warning("recording: metrics of what was played before are lost: %s", error)
            self._played = PlayedEpisodes()

    def add(self, ended: Sequence[EpisodeEnd]) -> None:
        known = [episode for episode in ended if episode.first_frames >= 0]
        if known:
            rows = [(e.first_frames, e.episode_return, e.length) for e in known]
            first, returns, lengths = (np.array(column) for column in zip(*rows))
            self._played.add(first, returns, lengths)
        if self._clock() - self._saved >= SAVE_SECONDS:
            self.save()

    def save(self) -> None:
        self._saved = self._clock()
        try:
            self._played.save(self._store)
        except OSError as error:
            if not self._complained:
                log.error("recording: metrics of what was played cannot be written: %s", error)
            self._complained = True
