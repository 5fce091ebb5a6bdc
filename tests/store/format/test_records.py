import struct
from dataclasses import replace

import msgpack
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollmill.core.errors import StoreError
from rollmill.store.episode import EpisodeEnd, EpisodeInfo
from rollmill.store.format.records import (
    Block,
    Header,
    Owner,
    RecordError,
    check_stats,
    encode_block,
    encode_end,
    encode_header,
    parse,
    parse_block,
)

END = EpisodeEnd(
    uid=2**64 - 1,
    length=33,
    block=16,
    blocks=3,
    return_=-1.5,
    terminated=True,
    truncated=False,
    first_step=7,
    seed=None,
    env_id="doom",
    policy="random",
    policy_id=2,
    version_min=-1,
    version_max=5,
    global_step_first=0,
    global_step_last=2**40,
    worker=3,
    lane=17,
    time=1.0,
    stats={"kills": 2, "name": "x", "ok": True, "hits": 0.5},
)
HEADER = Header("hash", "layout", "{}", "writer", 3, Owner("host", "boot", "pid:[1]", 12, 34), 1.0)


def test_records_survive_encoding() -> None:
    assert parse(b"".join(encode_end(END))) == END
    assert parse(b"".join(encode_header(HEADER))) == HEADER
    info = EpisodeInfo(5, 2, "env", "policy", 1, 2, 3, uid=9)
    payload = b"".join(encode_block(9, 16, 2, 3, [(0, b"abc"), (1, b""), (2, b"de")], info))
    block = parse(payload)
    assert isinstance(block, Block)
    assert block == parse_block(payload)
    assert (block.uid, block.first, block.steps, block.obs_rows, block.last) == (9, 16, 2, 3, True)
    assert (block.codecs, block.sizes, bytes(block.data)) == (b"\0\1\2", (3, 0, 2), b"abcde")
    assert block.info == info


def test_partial_ends_are_told_apart() -> None:
    assert END.partial_start
    assert not END.partial_end
    cut = replace(END, terminated=False, first_step=0)
    assert not cut.partial_start
    assert cut.partial_end
    assert cut.partial


@given(st.binary(max_size=60))
def test_rubbish_is_a_record_error(rubbish: bytes) -> None:
    for payload in (rubbish, b"RMB1" + rubbish, b"RME1" + struct.pack("<I", len(rubbish)) + rubbish):
        with pytest.raises(RecordError):
            parse(payload)


def packed(tag: bytes, header: object, data: bytes = b"") -> bytes:
    body = msgpack.packb(header)
    return tag + struct.pack("<I", len(body)) + body + data


GOOD_BLOCK = {"u": 1, "f": 0, "n": 2, "o": 2, "c": b"\0", "s": [3]}


@pytest.mark.parametrize(
    ("payload", "message"),
    [
        (packed(b"RMX1", {}), "unexpected tag"),
        (packed(b"RMB1", [1]), "not a map"),
        (packed(b"RMB1", {}), "lacks"),
        (packed(b"RMB1", {**GOOD_BLOCK, "n": -1}, b"abc"), "no sense"),
        (packed(b"RMB1", {**GOOD_BLOCK, "o": 4}, b"abc"), "do not add up"),
        (packed(b"RMB1", {**GOOD_BLOCK, "s": [2]}, b"abc"), "do not add up"),
        (packed(b"RMB1", {**GOOD_BLOCK, "i": [1]}, b"abc"), "episode makes no sense"),
        (packed(b"RMB1", {**GOOD_BLOCK, "i": [-1, None, "", "", 0, 0, 0]}, b"abc"), "episode makes no sense"),
        (packed(b"RMB1", {**GOOD_BLOCK, "i": [1, "x", "", "", 0, 0, 0]}, b"abc"), "episode makes no sense"),
        (packed(b"RME1", {"uid": 1}), "lacks"),
        (b"".join(encode_end(replace(END, length=-1))), "no sense"),
        (b"".join(encode_end(replace(END, blocks=2))), "2 blocks of 16 for 33 steps"),
        (packed(b"RMH1", {"format": 3}), "newer version"),
        (packed(b"RMH1", {"format": 1, "owner": {}}), "makes no sense"),
        (b"RMB1" + struct.pack("<I", 100), "beyond the record"),
    ],
)
def test_records_that_make_no_sense_are_named(payload: bytes, message: str) -> None:
    with pytest.raises(RecordError, match=message):
        parse(payload)


def test_a_block_is_expected_where_one_was() -> None:
    with pytest.raises(RecordError, match="where a block was expected"):
        parse_block(b"".join(encode_end(END)))


def test_statistics_become_plain_values() -> None:
    plain = check_stats({"a": np.float32(0.5), "b": np.int64(3), "c": np.bool_(True), "d": "text"})
    assert plain == {"a": 0.5, "b": 3, "c": True, "d": "text"}
    assert [type(v) for v in plain.values()] == [float, int, bool, str]
    for bad in ([1], None, np.zeros(2), 2**64):
        with pytest.raises(StoreError, match="'x'"):
            check_stats({"x": bad})  # type: ignore[dict-item]
