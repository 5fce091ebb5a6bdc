"""Writes images as PNG files, lossless, with nothing but zlib."""

from __future__ import annotations

import struct
import zlib

import numpy as np

from rollmill.core.fields import Array

_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_COLOUR = {1: 0, 3: 2}
"""Channels: PNG's number for grey and RGB."""


def encode_png(image: Array, level: int = 1) -> bytes:
    """Return an image ``[height, width, 1 or 3]`` uint8 as a PNG file."""
    height, width, channels = image.shape
    # Each line as its difference to the one above (filter 2): neighbours are alike, and zlib likes zeros.
    lines = image.reshape(height, width * channels)
    filtered = np.empty((height, 1 + lines.shape[1]), np.uint8)
    filtered[:, 0] = 2
    filtered[0, 1:] = lines[0]
    np.subtract(lines[1:], lines[:-1], out=filtered[1:, 1:])
    head = struct.pack(">IIBBBBB", width, height, 8, _COLOUR[channels], 0, 0, 0)
    data = zlib.compress(filtered.tobytes(), level)
    return _SIGNATURE + _chunk(b"IHDR", head) + _chunk(b"IDAT", data) + _chunk(b"IEND", b"")


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
