import os
import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollmill.store.format import framing as frames

PAYLOADS = [b"RMH1 header", b"RMB1" + bytes(50), b"RME1", b"RMB1 the last one"]


def file_of(path: Path, data: bytes) -> int:
    path.write_bytes(data)
    return os.open(path, os.O_RDONLY)


def shard() -> tuple[bytes, list[int]]:
    """A file of frames, and where each begins."""
    pieces = [b"".join(frames.frame([p])) for p in PAYLOADS]
    starts = [sum(map(len, pieces[:k])) for k in range(len(pieces))]
    return b"".join(pieces), starts


def test_the_frame_is_that_of_tfrecord() -> None:
    # By the TFRecord description: masked crc = ((crc >> 15) | (crc << 17)) + 0xa282ead8. crc32c("123456789") is known.
    masked = (((0xE3069283 >> 15) | (0xE3069283 << 17)) + 0xA282EAD8) & 0xFFFFFFFF
    assert frames.masked_crc(b"1234", b"56789") == masked
    data = b"".join(frames.frame([b"1234", b"56789"]))
    assert struct.unpack("<Q", data[:8])[0] == 9
    assert data[12:21] == b"123456789"
    assert struct.unpack("<I", data[21:])[0] == masked


@given(st.lists(st.binary(max_size=300), max_size=8))
def test_what_is_framed_is_walked(tmp_path_factory: pytest.TempPathFactory, payloads: list[bytes]) -> None:
    data = b"".join(piece for p in payloads for piece in frames.frame([p]))
    fd = file_of(tmp_path_factory.getbasetemp() / "walked", data)
    found = list(frames.walk(fd, len(data)))
    os.close(fd)
    assert [f.payload for f in found] == payloads
    assert [f.number for f in found] == list(range(len(payloads)))


def test_a_file_cut_anywhere_gives_its_whole_records(tmp_path: Path) -> None:
    data, starts = shard()
    for size in range(len(data)):
        fd = file_of(tmp_path / "f", data[:size])
        found = list(frames.walk(fd, size))
        os.close(fd)
        whole = sum(end <= size for end in [*starts[1:], len(data)])
        assert [f.payload for f in found if f.payload is not None] == PAYLOADS[:whole]
        broken = [f for f in found if f.payload is None]
        assert len(broken) == (size not in (0, *starts))
        assert all(f.torn for f in broken)


def test_every_flipped_bit_costs_one_record(tmp_path: Path) -> None:
    data, starts = shard()
    for bit in range(8 * len(data)):
        bad = bytearray(data)
        bad[bit // 8] ^= 1 << (bit % 8)
        hit = sum(start <= bit // 8 for start in starts) - 1
        fd = file_of(tmp_path / "f", bytes(bad))
        found = list(frames.walk(fd, len(bad)))
        os.close(fd)
        assert [f.payload for f in found if f.payload is not None] == PAYLOADS[:hit] + PAYLOADS[hit + 1 :]
        (broken,) = [f for f in found if f.payload is None]
        assert broken.offset == starts[hit]
        assert broken.number == hit
        assert not broken.torn or hit == len(PAYLOADS) - 1


def test_an_absurd_length_is_not_believed(tmp_path: Path) -> None:
    length = struct.pack("<Q", 2**62)
    fd = file_of(tmp_path / "f", length + struct.pack("<I", frames.masked_crc(length)) + b"RMB1")
    (found,) = frames.walk(fd, 16)
    assert found.torn
    with pytest.raises(frames.FrameError, match="ends before it does"):
        frames.read_frame(fd, 0, 16)
    os.close(fd)


def test_zeros_at_the_end_are_a_torn_tail(tmp_path: Path) -> None:
    # What some file systems leave after a power cut.
    data, _ = shard()
    fd = file_of(tmp_path / "f", data + bytes(5000))
    *good, last = frames.walk(fd, len(data) + 5000)
    os.close(fd)
    assert [f.payload for f in good] == PAYLOADS
    assert last.torn
    assert last.offset == len(data)


def test_a_write_that_was_cut_short_is_told_from_damage(tmp_path: Path) -> None:
    data, _ = shard()
    *_, (begin, end) = [(f.offset, f.end) for f in walk_bytes(tmp_path, data)]
    for size in range(begin + 1, end):
        *_, last = walk_bytes(tmp_path, data[:size])
        assert last.torn, "the beginning of one record"
    for byte in range(begin, end):
        for size in (end, end - 1):
            hurt = bytearray(data[:size])
            if byte >= size:
                continue
            hurt[byte] ^= 4
            *_, last = walk_bytes(tmp_path, bytes(hurt))
            assert last.offset == begin
            # Nobody can tell a flipped bit in half a payload from a true one.
            assert last.torn == (size < end and byte >= begin + 12), "no write leaves a wrong length"


def walk_bytes(folder: Path, data: bytes) -> list[frames.Frame]:
    fd = file_of(folder / "f", data)
    try:
        return list(frames.walk(fd, len(data)))
    finally:
        os.close(fd)


def test_the_next_record_is_found_behind_much_rubbish(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frames, "_SEARCH_BYTES", 64)
    data, _ = shard()
    for rubbish in range(100, 180):  # the tag lies at every place of a chunk, across two as well
        fd = file_of(tmp_path / "f", b"RMB1" + bytes(rubbish) + data)
        first, *good = frames.walk(fd, rubbish + 4 + len(data))
        os.close(fd)
        assert first.size == rubbish + 4
        assert [f.payload for f in good] == PAYLOADS


def test_reading_checks_unless_told_not_to(tmp_path: Path) -> None:
    data, starts = shard()
    bad = bytearray(data)
    bad[starts[1] + 20] ^= 1
    fd = file_of(tmp_path / "f", bytes(bad))
    with pytest.raises(frames.FrameError, match="checksum does not match"):
        frames.read_frame(fd, starts[1], len(bad))
    assert len(frames.read_frame(fd, starts[1], len(bad), verify=False)) == len(PAYLOADS[1])
    for length in (len(bad), len(bad) - starts[3] - 14):
        with pytest.raises(frames.FrameError, match="ends"):
            frames.read_payload(fd, starts[3], length)
    os.close(fd)
