"""The lossy image codec: one JPEG per row. Needs OpenCV, which is imported when it is first used.

Buffer: ``u32 bytes of each JPEG``, then the JPEGs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from rollmill.core.errors import MissingExtraError
from rollmill.core.fields import Array


def make_encoder(quality: int) -> Callable[[Array], bytes]:
    """Return a function from images ``[n, H, W, C]`` uint8 (RGB or grey) to a buffer."""
    cv2 = load_opencv()
    options = [cv2.IMWRITE_JPEG_QUALITY, quality]

    def encode(rows: Array) -> bytes:
        images = [cv2.imencode(".jpg", np.ascontiguousarray(row[..., ::-1]), options)[1].tobytes() for row in rows]
        return np.array([len(p) for p in images], "<u4").tobytes() + b"".join(images)

    return encode


def decode_into(data: memoryview, rows: int, out: Array, skip: int = 0) -> None:
    """Decode images ``skip`` .. ``skip + len(out)`` of a buffer of ``rows``; raises ValueError if it is not that."""
    cv2 = load_opencv()
    if len(data) < 4 * rows:
        raise ValueError(f"{len(data)} bytes cannot hold {rows} images")
    sizes = np.frombuffer(data, "<u4", count=rows).astype(np.int64)
    if 4 * rows + sizes.sum() != len(data):
        raise ValueError("the sizes of the images do not fill the buffer")
    flag = cv2.IMREAD_COLOR if out.shape[-1] == 3 else cv2.IMREAD_GRAYSCALE
    start = 4 * rows + int(sizes[:skip].sum())
    for target, size in zip(out, sizes[skip:]):
        image = cv2.imdecode(np.frombuffer(data, np.uint8, count=int(size), offset=start), flag)
        if image is None or image.shape[:2] != target.shape[:2]:
            raise ValueError("not a JPEG of the right size")
        target[...] = image.reshape(target.shape)[..., ::-1]
        start += int(size)


def load_opencv() -> Any:
    """Import and return ``cv2``; raises MissingExtraError where it is not installed."""
    try:
        import cv2
    except ImportError as error:
        raise MissingExtraError(
            'jpeg columns need OpenCV: pip install "opencv-python-headless>=4.9" (comes with rollmill[vizdoom])'
        ) from error
    return cv2
