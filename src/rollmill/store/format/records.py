"""What the frames of a shard hold: a header, blocks, episode ends.

Payload: ``4-byte tag | u32 bytes of the msgpack map | msgpack map | buffers``. Tags: ``RMH1`` header, ``RMB1`` block,
``RME1`` episode end, ``RMI1`` index. No record holds an offset, so records can be copied verbatim.
"""

from __future__ import annotations

import dataclasses
import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import google_crc32c
import msgpack
import numpy as np

from rollmill.core.errors import StoreError
from rollmill.store.episode import EpisodeEnd, EpisodeInfo, Stats

HEADER, BLOCK, END, INDEX = b"RMH1", b"RMB1", b"RME1", b"RMI1"
FORMAT = 2
"""2: episodes have a probability."""

_PREFIX = struct.Struct("<4sI")
_SUM = struct.Struct("<I")
_END_KEYS = {"return_": "return"}
_END_FIELDS = [(f.name, _END_KEYS.get(f.name, f.name)) for f in dataclasses.fields(EpisodeEnd)]


_INFO_FIELDS = ("first_step", "seed", "env_id", "policy", "policy_id", "worker", "lane", "probability")


class RecordError(Exception):
    """A record with a good checksum that makes no sense: written by something else, or by a newer version."""


@dataclass(frozen=True)
class Owner:
    """Who writes a shard: enough to tell for certain that it is dead, or to admit that one cannot."""

    host: str
    boot: str
    namespace: str
    pid: int
    started: int


@dataclass(frozen=True)
class Header:
    """First record of a shard. ``schema_json`` is the whole schema: a shard explains itself without store.json."""

    schema: str
    layout: str
    schema_json: str
    writer: str
    seq: int
    owner: Owner
    created: float
    format: int = FORMAT


@dataclass(frozen=True)
class Block:
    """Steps ``first`` .. ``first + steps`` of one episode (counted from the first stored step).

    ``obs_rows`` is ``steps``, or ``steps + 1`` in an episode's last block. ``sizes`` and ``codecs`` are those of the
    column buffers, which lie side by side in ``data`` in the order of the schema. ``sums`` are their checksums (see
    ``buffer_is_good``), so that one of them can be read alone; none in blocks of version 0.1.
    """

    uid: int
    first: int
    steps: int
    obs_rows: int
    codecs: bytes
    sizes: tuple[int, ...]
    data: memoryview
    info: EpisodeInfo | None = None
    sums: bytes = b""

    @property
    def last(self) -> bool:
        return self.obs_rows > self.steps


Record: TypeAlias = Header | Block | EpisodeEnd


def encode_header(header: Header) -> list[bytes]:
    return _encode(HEADER, {**dataclasses.asdict(header)})


def encode_block(
    uid: int, first: int, steps: int, obs_rows: int, buffers: list[tuple[int, bytes]], info: EpisodeInfo | None = None
) -> list[bytes]:
    """Return the parts of a block's payload; ``buffers`` are (codec id, bytes) in the order of the schema's columns.

    An episode's first block carries its ``info``, for the case that its end record is never written.
    """
    header: dict[str, Any] = {
        "u": uid,
        "f": first,
        "n": steps,
        "o": obs_rows,
        "c": bytes([codec for codec, _ in buffers]),
        "s": [len(data) for _, data in buffers],
    }
    seed = _seed(header)
    header["k"] = b"".join(_SUM.pack(google_crc32c.extend(seed, data)) for _, data in buffers)
    if info is not None:
        header["i"] = [getattr(info, name) for name in _INFO_FIELDS]
    return _encode(BLOCK, header) + [data for _, data in buffers]


def _seed(header: Mapping[str, Any]) -> int:
    """Return what the checksum of a buffer begins with: whose it is and how it is to be read."""
    described: bytes = msgpack.packb([header[key] for key in "ufnocs"])
    return int(google_crc32c.value(described))


def buffer_is_good(block: Block, position: int, data: bytes) -> bool:
    """Return whether these are the bytes of the column at ``position`` of this very block; False if nothing says so.

    The checksum covers the parts of the block's map that a reader goes by, too: a block whose map is damaged, or that
    lies in the place of another one, does not pass.
    """
    sums = block.sums[_SUM.size * position :][: _SUM.size]
    said = {"u": block.uid, "f": block.first, "n": block.steps, "o": block.obs_rows, "c": block.codecs}
    expected = google_crc32c.extend(_seed({**said, "s": block.sizes}), data)
    return sums == _SUM.pack(expected)


def encode_end(end: EpisodeEnd) -> list[bytes]:
    values = {key: getattr(end, name) for name, key in _END_FIELDS}
    values["stats"] = dict(end.stats)
    return _encode(END, values)


def parse(payload: bytes) -> Record:
    """Return the record in a payload whose checksum was good; raises RecordError if it is none of ours."""
    tag, header, data = split(payload)
    if tag == BLOCK:
        return _block(header, data, len(data))
    if tag == END:
        return _end(header)
    if tag == HEADER:
        return _header(header)
    raise RecordError(f"unexpected tag {tag!r}")


def parse_block(payload: bytes) -> Block:
    tag, header, data = split(payload)
    if tag != BLOCK:
        raise RecordError(f"a record with tag {tag!r} where a block was expected")
    return _block(header, data, len(data))


def peek_block(head: bytes, length: int) -> tuple[Block, int]:
    """Return a block by the first bytes of its payload of ``length``; its ``data`` are what ``head`` has of them.

    Also returns where in the payload its buffers begin. Raises RecordError too if ``head`` ends within the map.
    """
    tag, header, data = split(head)
    if tag != BLOCK:
        raise RecordError(f"a record with tag {tag!r} where a block was expected")
    begin = len(head) - len(data)
    return _block(header, data, length - begin), begin


def split(payload: bytes) -> tuple[bytes, dict[str, Any], memoryview]:
    """Split a payload into its tag, its msgpack map and the bytes after it."""
    if len(payload) < _PREFIX.size:
        raise RecordError(f"{len(payload)} bytes are too few for a record")
    tag, size = _PREFIX.unpack_from(payload)
    view = memoryview(payload)
    start = _PREFIX.size
    if start + size > len(payload):
        raise RecordError("the record's header reaches beyond the record")
    try:
        header = msgpack.unpackb(view[start : start + size], strict_map_key=True)
    except (ValueError, msgpack.UnpackException, RecursionError) as error:
        raise RecordError(f"the record's header is not msgpack ({error})") from error
    if not isinstance(header, dict):
        raise RecordError("the record's header is not a map")
    return tag, header, view[start + size :]


def pack(tag: bytes, header: Mapping[str, Any]) -> list[bytes]:
    """Return a payload without buffers."""
    return _encode(tag, header)


def check_stats(stats: Stats) -> dict[str, float | int | bool | str]:
    """Return the statistics as plain Python values; ``StoreError`` for what cannot be stored."""
    plain: dict[str, float | int | bool | str] = {}
    for name, value in stats.items():
        item = value.item() if isinstance(value, np.generic) else value
        if type(name) is not str or type(item) not in (bool, int, float, str):
            raise StoreError(
                f"episode statistic {name!r}: {type(value).__name__} cannot be stored (numbers and text can)"
            )
        if type(item) is int and not -(2**63) <= item < 2**64:
            raise StoreError(f"episode statistic {name!r}: {item} needs more than 64 bits")
        plain[name] = item
    return plain


def _encode(tag: bytes, header: Mapping[str, Any]) -> list[bytes]:
    packed: bytes = msgpack.packb(header)
    return [_PREFIX.pack(tag, len(packed)) + packed]


def _block(header: dict[str, Any], data: memoryview, data_bytes: int) -> Block:
    try:
        uid, first, steps, obs_rows = header["u"], header["f"], header["n"], header["o"]
        codecs, sizes, sums = header["c"], tuple(header["s"]), header.get("k", b"")
    except (KeyError, TypeError) as error:
        raise RecordError(f"the block's header lacks {error}") from error
    numbers = (uid, first, steps, obs_rows, *sizes)
    if not all(type(n) is int and n >= 0 for n in numbers) or not type(codecs) is type(sums) is bytes:
        raise RecordError("the block's header makes no sense")
    if obs_rows not in (steps, steps + 1) or len(codecs) != len(sizes) or sum(sizes) != data_bytes:
        raise RecordError("the block's sizes do not add up")
    info = _info(uid, header["i"]) if "i" in header else None
    return Block(uid, first, steps, obs_rows, codecs, sizes, data, info, sums)


def _info(uid: int, values: Any) -> EpisodeInfo:
    if type(values) is list and len(values) == len(_INFO_FIELDS) - 1:
        values = [*values, None]  # format 1
    if type(values) is not list or len(values) != len(_INFO_FIELDS):
        raise RecordError("the block's episode makes no sense")
    first_step, seed, env_id, policy, policy_id, worker, lane, probability = values
    texts_ok = type(env_id) is str and type(policy) is str and _is_probability(probability)
    if not texts_ok or not all(type(n) is int for n in (first_step, policy_id, worker, lane)) or first_step < 0:
        raise RecordError("the block's episode makes no sense")
    if seed is not None and type(seed) is not int:
        raise RecordError("the block's episode makes no sense")
    return EpisodeInfo(first_step, seed, env_id, policy, policy_id, worker, lane, uid, probability)


def _is_probability(value: Any) -> bool:
    return value is None or (type(value) is float and 0 < value <= 1)


def _end(header: dict[str, Any]) -> EpisodeEnd:
    try:
        values = {name: header[key] for name, key in _END_FIELDS if key in header or name != "probability"}
    except KeyError as error:
        raise RecordError(f"the episode's end lacks {error}") from error
    whole = ("uid", "length", "block", "blocks", "first_step")
    signed = ("policy_id", "version_min", "version_max", "global_step_first", "global_step_last", "worker", "lane")
    sane = (
        all(type(values[name]) is int and values[name] >= 0 for name in whole)
        and all(type(values[name]) is int and -(2**63) <= values[name] < 2**63 for name in signed)
        and all(type(values[name]) is str for name in ("env_id", "policy"))
        and all(type(values[name]) is bool for name in ("terminated", "truncated"))
        and all(type(values[name]) is float for name in ("return_", "time"))
        and (values["seed"] is None or type(values["seed"]) is int)
        and type(values["stats"]) is dict
        and _is_probability(values.get("probability"))
    )
    if not sane or values["length"] < 1 or values["block"] < 1:
        raise RecordError("the episode's end makes no sense")
    # One block more than needed: it holds nothing but the final observation.
    if values["blocks"] not in (math.ceil(values["length"] / values["block"]), values["length"] // values["block"] + 1):
        raise RecordError(f"{values['blocks']} blocks of {values['block']} for {values['length']} steps")
    return EpisodeEnd(**values)


def _header(header: dict[str, Any]) -> Header:
    version = header.get("format")
    if type(version) is int and version > FORMAT:
        raise RecordError(f"written by a newer version of rollmill (shard format {version}; this one reads {FORMAT})")
    try:
        owner = Owner(**header.pop("owner"))
        return Header(owner=owner, **header)
    except (TypeError, KeyError) as error:
        raise RecordError(f"the shard's header makes no sense ({error})") from error
