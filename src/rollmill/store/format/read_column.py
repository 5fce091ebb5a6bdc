"""One small column of a block, without reading what lies beside it.

A frame's checksum covers all of it, so whoever wants the rewards of an episode would have to read its images too.
Here only the block's map and the column's own buffer are read, and the column's own checksum is verified.
"""

from __future__ import annotations

import os

from rollmill.core.fields import Array
from rollmill.store.format import framing as frames
from rollmill.store.format.codec import decode_into
from rollmill.store.format.records import Block, RecordError, buffer_is_good, peek_block
from rollmill.store.format.schema import Column

HEAD_BYTES = 1024
"""Read first; the map of a block with a dozen columns takes some 200 bytes."""


def read_block_column(fd: int, offset: int, length: int) -> tuple[Block, int]:
    """Read the block whose frame begins at ``offset``, without its data, and where in the file its buffers begin."""
    start = offset + frames.HEAD_BYTES
    block, begin = peek_block(os.pread(fd, min(length, HEAD_BYTES), start), length)
    return block, start + begin


def read_column(
    fd: int, block: Block, begin: int, position: int, column: Column, out: Array, *, verify: bool = True
) -> None:
    """Read the column at ``position`` of the schema, all steps of the block, into ``out`` (C-contiguous).

    Raises RecordError if it cannot be shown to be undamaged without reading the whole block.
    """
    size = block.sizes[position]
    data = os.pread(fd, size, begin + sum(block.sizes[:position]))
    if len(data) < size:
        raise RecordError("the file ends within the block")
    if verify and not buffer_is_good(block, position, data):
        raise RecordError("the column's checksum is missing or does not match")
    decode_into(block.codecs[position], memoryview(data), column, block.steps, out)
