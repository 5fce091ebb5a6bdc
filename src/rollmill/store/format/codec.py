"""How the rows of a column become the bytes of a block, and back.

Codecs (``Column.codec``): ``raw``; ``zstd:LEVEL`` (negative levels are faster and larger); ``shuffle:LEVEL``:
the bytes of all numbers regrouped (all first bytes, all second ones, ...), then zstd, which suits counters
and floats; ``planes:LEVEL``: the channels of images ``[height, width, 2 to 4]`` one after the other, then
zstd, which reads a third faster than pixels side by side and takes between a tenth less and a quarter more room;
``jpeg:QUALITY``: lossy, for images, only when asked for.

Every buffer in a block carries the id of the codec it was really made with, so levels can change, buffers
that do not shrink are stored raw, and a block can be copied into another store as it is.

What a buffer decodes to is known beforehand from the schema and the number of rows. A buffer that says
otherwise is refused before memory is taken.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import cache
from typing import Any, TypeAlias

import numpy as np
import zstandard

from rollmill.core.fields import Array
from rollmill.store.format import jpeg
from rollmill.store.format.schema import Column

RAW, ZSTD, SHUFFLE, JPEG, PLANES = range(5)
"""Codec ids in blocks."""

SMALL_BYTES = 512
"""Buffers below this are stored raw: what zstd would save is not worth its time."""

WHOLE_SHARE = 0.9
"""From this part of a buffer on, decoding all of it at once is faster than stopping early."""

Encode: TypeAlias = Callable[[Array], tuple[int, bytes]]


class CodecError(Exception):
    """A buffer is not what the schema says it must be."""


def make_encoder(column: Column) -> Encode:
    """Return a function from C-contiguous rows ``[n, *shape]`` to (codec id, bytes)."""
    kind, _, parameter = column.codec.partition(":")
    if kind == "raw":
        return lambda rows: (RAW, rows.tobytes())
    if kind == "jpeg":
        encode = jpeg.make_encoder(int(parameter))
        return lambda rows: (JPEG, encode(rows))
    compressor = _compressor(int(parameter), planes=kind == "planes")
    used = ZSTD
    regroup: Callable[[Array], bytes | memoryview] = _as_it_is
    if kind == "shuffle" and column.numpy.itemsize > 1:
        used, regroup = SHUFFLE, _shuffled
    elif kind == "planes" and column.has_planes:
        used, regroup = PLANES, _in_planes

    def encode_zstd(rows: Array) -> tuple[int, bytes]:
        if rows.nbytes < SMALL_BYTES:
            return RAW, rows.tobytes()
        packed = compressor.compress(regroup(rows))
        if len(packed) >= rows.nbytes:
            return RAW, rows.tobytes()
        return used, packed

    return encode_zstd


def _compressor(level: int, planes: bool) -> Any:
    if planes and level == 1:
        # A small table of long matches only: a quarter faster to write, and no slower to read, than the level as it is.
        fast = zstandard.ZstdCompressionParameters.from_level(1, hash_log=11, min_match=7)
        return zstandard.ZstdCompressor(compression_params=fast)
    return zstandard.ZstdCompressor(level=level, write_checksum=False, write_content_size=True)


def decode_into(codec: int, data: memoryview, column: Column, rows: int, out: Array, skip: int = 0) -> None:
    """Decode rows ``skip`` .. ``skip + len(out)`` of a buffer's ``rows`` rows into ``out`` (C-contiguous).

    Raises CodecError if the buffer does not hold exactly that many rows of the column.
    """
    nbytes, first = rows * column.row_bytes, skip * column.row_bytes
    if codec == RAW:
        if len(data) != nbytes:
            raise CodecError(f"{len(data)} bytes where {rows} rows take {nbytes}")
        if out.nbytes:
            out[...] = np.frombuffer(data, out.dtype, count=out.size, offset=first).reshape(out.shape)
        return
    target = out.reshape(-1).view(np.uint8)
    if codec == ZSTD:
        _check_content_size(data, nbytes)
        if skip == 0:
            _inflate(data, target.data)
        else:
            target[:] = _inflated(data, first + len(target), nbytes)[first:]
    elif codec == SHUFFLE:
        _check_content_size(data, nbytes)
        width = column.numpy.itemsize
        numbers = _inflated(data, nbytes, nbytes).reshape(width, -1).T
        target.reshape(-1, width)[:] = numbers[first // width :][: len(target) // width]
    elif codec == PLANES:
        if not column.has_planes:
            raise CodecError("planes of colour in a column that is no image")
        _check_content_size(data, nbytes)
        height, width, channels = column.shape
        planes = _inflated(data, first + len(target), nbytes).reshape(-1, channels, height, width)[skip:]
        _interleave(planes, out)
    elif codec == JPEG:
        if not column.lossy:
            raise CodecError("a lossy buffer in a column that is lossless by the schema")
        try:
            jpeg.decode_into(data, rows, out, skip)
        except ValueError as error:
            raise CodecError(str(error)) from error
    else:
        raise CodecError(f"unknown codec id {codec}")


def _as_it_is(rows: Array) -> memoryview:
    return rows.data


def _shuffled(rows: Array) -> bytes:
    width = rows.dtype.itemsize
    return rows.reshape(-1).view(np.uint8).reshape(-1, width).T.tobytes()


def _in_planes(rows: Array) -> memoryview:
    return np.ascontiguousarray(np.moveaxis(rows, -1, 1)).data


def _interleave(planes: Array, out: Array) -> None:
    """Write planes ``[n, channels, height, width]`` as images ``[n, height, width, channels]`` into ``out``."""
    count, channels = planes.shape[:2]
    merge = _opencv_merge()
    if merge is not None and planes.size:
        rows = planes.reshape(count, channels, -1)  # to OpenCV, each channel of all images is one: a row per image
        merge([rows[:, channel] for channel in range(channels)], out.reshape(count, -1, channels))
        return
    for channel in range(channels):  # four times as fast as one copy of the transposed array
        out[..., channel] = planes[:, channel]


@cache
def _opencv_merge() -> Any:
    """Return OpenCV's merge where that is installed (ViZDoom needs it): windows of images come a sixth faster."""
    try:
        import cv2
    except ImportError:
        return None
    return cv2.merge


_local = threading.local()


def _decompressor() -> Any:
    """Return this thread's decompressor: zstd contexts must not be shared by threads."""
    try:
        return _local.decompressor
    except AttributeError:
        _local.decompressor = zstandard.ZstdDecompressor()
        return _local.decompressor


def _check_content_size(data: memoryview, nbytes: int) -> None:
    try:
        declared = zstandard.frame_content_size(data)
    except zstandard.ZstdError as error:
        raise CodecError(f"not a zstd frame ({error})") from error
    if declared != nbytes:
        raise CodecError(f"a zstd frame of {declared} bytes where the rows take {nbytes}")


def _inflated(data: memoryview, nbytes: int, content_bytes: int) -> Array:
    """Return the first ``nbytes`` of a zstd frame's content of ``content_bytes`` (``_check_content_size`` saw that)."""
    if nbytes > WHOLE_SHARE * content_bytes:
        try:
            return np.frombuffer(_decompressor().decompress(data), np.uint8, count=nbytes)
        except (zstandard.ZstdError, ValueError) as error:
            raise CodecError(f"zstd: {error}") from error
    content: Array = np.empty(nbytes, np.uint8)
    _inflate(data, content.data)
    return content


def _inflate(data: memoryview, target: memoryview) -> None:
    """Fill ``target`` from the start of a zstd frame; the frame may hold more, which is then not decoded."""
    done = 0
    try:
        with _decompressor().stream_reader(data) as reader:
            while done < len(target):
                count = reader.readinto(target[done:])
                if count == 0:
                    raise CodecError(f"the zstd frame ends after {done} of {len(target)} bytes")
                done += count
    except zstandard.ZstdError as error:
        raise CodecError(f"zstd: {error}") from error
