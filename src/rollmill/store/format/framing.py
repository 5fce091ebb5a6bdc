"""TFRecord frames: how records lie in a file, and how to find the good ones.

A frame is ``u64 length | u32 masked crc32c(length) | payload | u32 masked crc32c(payload)``, little-endian.
Any TFRecord reader can walk our shards.

Our payloads begin with a tag (``TAGS``). After a damaged length nothing says where the next frame starts;
the tags make it cheap to find: search for one, then check the length before it.
"""

from __future__ import annotations

import os
import re
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import google_crc32c

TAGS = (b"RMH1", b"RMB1", b"RME1", b"RMI1")
"""Header, block, episode end, index."""

HEAD_BYTES = 12
FRAME_BYTES = HEAD_BYTES + 4
"""What a frame adds to its payload."""

_LENGTH = struct.Struct("<Q")
_HEAD = struct.Struct("<QI")
_CRC = struct.Struct("<I")
_TAG = re.compile(b"RM[HBEI]1")
_SEARCH_BYTES = 4 << 20


class FrameError(Exception):
    """A frame is damaged or cut off; ``torn``: the file ends before the frame does."""

    def __init__(self, reason: str, torn: bool = False) -> None:
        super().__init__(reason)
        self.torn = torn


@dataclass(frozen=True)
class Frame:
    """One record of a file, or the place where one is damaged (``payload`` None, ``problem`` says how).

    ``size`` is what it takes up in the file: from ``offset`` to the next frame.
    """

    number: int
    offset: int
    size: int
    payload: bytes | None
    problem: str | None = None
    torn: bool = False

    @property
    def end(self) -> int:
        return self.offset + self.size


def masked_crc(*parts: bytes) -> int:
    """Return TFRecord's checksum of the concatenated parts: crc32c, rotated and shifted."""
    crc = 0
    for part in parts:
        crc = google_crc32c.extend(crc, part)
    return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF


def frame(parts: Sequence[bytes]) -> list[bytes]:
    """Return the pieces of a frame around a payload given in parts, ready for ``os.writev``."""
    length = _LENGTH.pack(sum(map(len, parts)))
    head = length + _CRC.pack(masked_crc(length))
    return [head, *parts, _CRC.pack(masked_crc(*parts))]


def read_length(fd: int, offset: int, file_bytes: int) -> int:
    """Read the length of the payload at ``offset``; a length that reaches beyond the file is never believed."""
    head = os.pread(fd, HEAD_BYTES, offset)
    if len(head) < HEAD_BYTES:
        raise FrameError(f"the file ends {len(head)} bytes into the record's length", torn=True)
    length, crc = _HEAD.unpack(head)
    if crc != masked_crc(head[:8]):
        raise FrameError("the checksum of the record's length does not match")
    if length + FRAME_BYTES > file_bytes - offset:
        raise FrameError(f"the record has {length} bytes, the file ends before it does", torn=True)
    return int(length)


def read_frame(fd: int, offset: int, file_bytes: int, *, verify: bool = True) -> bytes:
    """Read the payload of the frame at ``offset`` of a file of ``file_bytes``; raises FrameError if it is not good."""
    length = read_length(fd, offset, file_bytes)
    return read_payload(fd, offset, length, verify=verify)


def read_payload(fd: int, offset: int, length: int, *, verify: bool = True) -> bytes:
    """Read the payload of the frame at ``offset``, whose length is known (from an index, or from its head)."""
    payload = _pread(fd, length, offset + HEAD_BYTES)
    if len(payload) < length:
        raise FrameError(f"the file ends {len(payload)} bytes into a record of {length}", torn=True)
    if verify:
        tail = _pread(fd, 4, offset + HEAD_BYTES + length)
        if len(tail) < 4:
            raise FrameError("the file ends within the record's checksum", torn=True)
        if _CRC.unpack(tail)[0] != masked_crc(payload):
            raise FrameError("the record's checksum does not match")
    return payload


def _pread(fd: int, size: int, offset: int) -> bytes:
    try:
        return os.pread(fd, size, offset)
    except OSError as error:  # a bad sector costs the record it is in
        raise FrameError(f"cannot be read: {error.strerror or error}") from error


def walk(fd: int, file_bytes: int, offset: int = 0, number: int = 0) -> Iterator[Frame]:
    """Return every record from ``offset`` on, damaged ones as frames with a problem.

    A frame with ``torn`` is the last one: the file ends within it, as it does after a kill or while the
    record is being written.
    """
    while offset < file_bytes:
        try:
            payload = read_frame(fd, offset, file_bytes)
            found = Frame(number, offset, len(payload) + FRAME_BYTES, payload)
        except FrameError as error:
            end = _next_good(fd, offset, file_bytes)
            # Nothing good after it, and what there is of it is good: this is where writing stopped. A write goes from
            # front to back, so a length that does not match its checksum is damage; but zeros, which a power cut
            # leaves where nothing was written yet.
            torn = end == file_bytes and (error.torn or _only_zeros(fd, offset, file_bytes))
            found = Frame(number, offset, end - offset, None, str(error), torn)
        yield found
        offset, number = found.end, number + 1


def _only_zeros(fd: int, offset: int, file_bytes: int) -> bool:
    while offset < file_bytes:
        chunk = os.pread(fd, _SEARCH_BYTES, offset)
        if not chunk or chunk.strip(b"\0"):
            return False
        offset += len(chunk)
    return True


def _has_length(fd: int, offset: int, file_bytes: int) -> bool:
    try:
        read_length(fd, offset, file_bytes)
    except FrameError:
        return False
    return True


def _next_good(fd: int, offset: int, file_bytes: int) -> int:
    """Return where to go on after the damaged record at ``offset``.

    If its length can be trusted, behind it; else at the next tag that has a true length before it.
    """
    try:
        return offset + FRAME_BYTES + read_length(fd, offset, file_bytes)
    except FrameError:
        pass
    position = offset + 1  # of the first byte a frame could start at
    while position + HEAD_BYTES < file_bytes:
        chunk = os.pread(fd, _SEARCH_BYTES, position + HEAD_BYTES)
        for match in _TAG.finditer(chunk):
            start = position + match.start()
            if _has_length(fd, start, file_bytes):
                return start
        if len(chunk) < _SEARCH_BYTES:
            break
        position += len(chunk) - 3  # a tag may lie across two chunks
    return file_bytes
