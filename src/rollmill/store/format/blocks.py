"""Turns a block record into arrays."""

from __future__ import annotations

import numpy as np

from rollmill.core.fields import Array
from rollmill.store.format.codec import CodecError, decode_into
from rollmill.store.format.records import Block
from rollmill.store.format.schema import Column, StoreSchema


def block_rows(block: Block, column: Column) -> int:
    """Return the rows of a column in a block."""
    return block.obs_rows if column.per == "obs" else block.steps


def decode_column(block: Block, position: int, column: Column, out: Array, skip: int = 0) -> None:
    """Decode rows ``skip`` .. of the column at ``position`` of the schema into ``out`` (C-contiguous).

    ``CodecError`` names the column if the block does not hold what the schema says.
    """
    rows = block_rows(block, column)
    if rows < skip + len(out):
        raise CodecError(f"column {column.name} has {rows} rows, {skip + len(out)} are needed")
    offset = sum(block.sizes[:position])
    data = block.data[offset : offset + block.sizes[position]]
    try:
        decode_into(block.codecs[position], data, column, rows, out, skip)
    except CodecError as error:
        raise CodecError(f"column {column.name}: {error}") from error


def decode_block(schema: StoreSchema, block: Block) -> dict[str, Array]:
    """Decode all columns of a block, ``[rows, ...]`` each; raises CodecError if it is not one of this schema."""
    if len(block.sizes) != len(schema.columns):
        raise CodecError(f"{len(block.sizes)} columns, the store has {len(schema.columns)}")
    arrays = {}
    for position, column in enumerate(schema.columns):
        arrays[column.name] = np.empty((block_rows(block, column), *column.shape), column.numpy)
        decode_column(block, position, column, arrays[column.name])
    return arrays
