"""Writing an H.264 video; needs PyAV."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from fractions import Fraction
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from rollmill.core.errors import MissingExtraError, StoreError
from rollmill.core.fields import Array


class VideoFile:
    """An mp4 file that takes RGB images ``[h, w, 3]`` uint8, all of the size of the first one.

    The file appears under its name when ``with`` has ended without an error, and replaces an earlier one. StoreError
    where it cannot be written; folders on the way to it are made. ``keyframe_every``: one of so many images stands for
    itself, so that readers can begin there.
    """

    def __init__(self, path: Path, fps: float, keyframe_every: int | None = None) -> None:
        if not 0 < fps <= 1000:
            raise StoreError(f"fps {fps}: images per second must be above 0 and at most 1000")
        self._av = _av()
        self._path = path
        self._draft = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
        self._rate = Fraction(fps).limit_denominator(1000)
        self._keyframe_every = keyframe_every
        self._stream: Any = None

    @property
    def bytes(self) -> int:
        """Bytes that have been written so far."""
        return self._draft.stat().st_size

    def __enter__(self) -> VideoFile:
        with self._writing():
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._container = self._av.open(str(self._draft), "w", format="mp4", options={"movflags": "faststart"})
        return self

    def add(self, image: Array) -> None:
        image = _even(image)
        if self._stream is None:
            self._stream = self._begin(*image.shape[:2])
        frame = self._av.VideoFrame.from_ndarray(image, format="rgb24")
        with self._writing():
            self._container.mux(self._stream.encode(frame))

    def _begin(self, height: int, width: int) -> Any:
        stream = self._container.add_stream("libx264", rate=self._rate)
        stream.height, stream.width, stream.pix_fmt = height, width, "yuv420p"
        # One thread: as fast for images of this size, and the bytes do not depend on the machine.
        stream.codec_context.thread_count = 1
        stream.options = {"crf": "18", "preset": "veryfast"}
        if self._keyframe_every:
            stream.options |= {"g": str(self._keyframe_every)}
        return stream

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            with self._writing():
                try:
                    if error is None and self._stream is not None:
                        self._container.mux(self._stream.encode())
                finally:
                    self._container.close()
                if error is None:
                    os.replace(self._draft, self._path)
        finally:
            self._draft.unlink(missing_ok=True)

    @contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise StoreError(f"{self._path}: the video cannot be written: {error.strerror or error}") from error


def _even(image: Array) -> Array:
    """Give odd sides one more line: the codec halves colours in both directions."""
    odd = [(0, n % 2) for n in image.shape[:2]]
    return np.ascontiguousarray(np.pad(image, (*odd, (0, 0)), mode="edge") if any(o[1] for o in odd) else image)


def _av() -> Any:
    try:
        import av
    except ModuleNotFoundError as error:
        raise MissingExtraError('videos need PyAV: pip install "rollmill[video]"') from error
    return av
