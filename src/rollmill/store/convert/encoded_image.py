"""Images that other programs have stored as PNG or JPEG files. The size is looked up before anything is unpacked.

Needs OpenCV, which is imported when it is first used.
"""

from __future__ import annotations

import struct

import numpy as np

from rollmill.core.fields import Array
from rollmill.store.format.jpeg import load_opencv

_PNG = b"\x89PNG\r\n\x1a\n"
_JPEG = b"\xff\xd8\xff"
_NO_FRAMES = (0xC4, 0xC8, 0xCC)
"""Markers among those of JPEG's frames that begin something else."""


def is_encoded(data: memoryview) -> bool:
    """Return whether these bytes begin as a PNG or JPEG file does."""
    return bytes(data[:8]) == _PNG or bytes(data[:3]) == _JPEG


def decode(data: memoryview, shape: tuple[int, ...]) -> Array:
    """Return the image ``[height, width, 1 or 3]`` or ``[height, width]``, uint8; raises ValueError at another size."""
    if len(shape) not in (2, 3) or (len(shape) == 3 and shape[2] not in (1, 3)):
        raise ValueError(f"it is an encoded image, the shape {list(shape)} is that of none")
    try:
        size = _size(bytes(data))
    except (struct.error, IndexError):
        raise ValueError("it is an encoded image that is cut short") from None
    if size != shape[:2]:
        raise ValueError(f"it is an image of {size[0]} x {size[1]}, not {shape[0]} x {shape[1]}")
    cv2 = load_opencv()
    colour = len(shape) == 3 and shape[2] == 3
    image = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR if colour else cv2.IMREAD_GRAYSCALE)
    if image is None or image.shape[:2] != size:
        raise ValueError("it is an encoded image that cannot be read")
    return np.ascontiguousarray(image[..., ::-1] if colour else image.reshape(shape))


def _size(data: bytes) -> tuple[int, int]:
    """Read (height, width) from the head of a PNG or JPEG file."""
    if data.startswith(_PNG):
        width, height = struct.unpack_from(">II", data, 16)
        return height, width
    position = 2
    while True:
        marker, length = struct.unpack_from(">xBH", data, position)
        if 0xC0 <= marker <= 0xCF and marker not in _NO_FRAMES:
            height, width = struct.unpack_from(">HH", data, position + 5)
            return height, width
        position += 2 + length
