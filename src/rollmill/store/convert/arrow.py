"""What the formats made of Parquet files share: pyarrow, files in row groups, episodes in pieces, images as PNG."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rollmill.core.errors import MissingExtraError
from rollmill.core.fields import Array
from rollmill.store.convert.png import encode_png
from rollmill.store.episode import EpisodeEnd
from rollmill.store.format.schema import StoreSchema

_GROUP_BYTES = 32 << 20
_PIECE_BYTES = 4 << 20


def arrow() -> tuple[Any, Any]:
    """Import and return ``pyarrow`` and ``pyarrow.parquet``."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ModuleNotFoundError as error:
        raise MissingExtraError('Parquet files need pyarrow: pip install "rollmill[parquet]"') from error
    return pyarrow, pyarrow.parquet


def spans(end: EpisodeEnd, schema: StoreSchema) -> Iterator[tuple[int, int]]:
    """Cut an episode's steps into (start, stop): whole blocks, a few megabytes at a time whatever its length."""
    size = end.block * max(1, _PIECE_BYTES // (end.block * max(1, schema.row_bytes)))
    return ((start, min(start + size, end.length)) for start in range(0, end.length, size))


def png_type() -> Any:
    """Return the type of images as Hugging Face datasets have them in a table."""
    pa, _ = arrow()
    return pa.struct([("bytes", pa.binary()), ("path", pa.string())])


def png_array(images: Array, nulls: int = 0) -> Any:
    """Turn images ``[n, height, width, 1 or 3]`` into PNG files, with as many ``nulls`` after them."""
    files = [{"bytes": encode_png(image), "path": None} for image in images]
    return arrow()[0].array(files + [None] * nulls, type=png_type())


class GroupWriter:
    """A Parquet file in row groups of about 32 MB: what is held in memory."""

    def __init__(self, path: Path, schema: Any) -> None:
        self._arrow, parquet = arrow()
        self._file = open(path, "wb")  # noqa: SIM115 - closed in close
        self._writer = parquet.ParquetWriter(self._file, schema, compression="zstd")
        self._held: list[Any] = []
        self._held_bytes = 0

    @property
    def bytes(self) -> int:
        """Bytes in the file, and about what is held back will add."""
        return int(self._file.tell()) + self._held_bytes // 2

    def write(self, batch: Any) -> None:
        self._held.append(batch)
        self._held_bytes += batch.nbytes
        if self._held_bytes >= _GROUP_BYTES:
            self._flush()

    def _flush(self) -> None:
        if self._held:
            group = self._arrow.Table.from_batches(self._held)
            self._writer.write_table(group, row_group_size=max(1, len(group)))
        self._held, self._held_bytes = [], 0

    def close(self) -> None:
        try:
            self._flush()
            self._writer.close()
        finally:
            self._file.close()
