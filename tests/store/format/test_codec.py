import numpy as np
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from storing import make_episode, same, small_schema

from rollmill.core.errors import StoreError
from rollmill.core.fields import Array
from rollmill.store.episode import Episode
from rollmill.store.format import codec
from rollmill.store.format.blocks import decode_block, decode_column
from rollmill.store.format.codec import JPEG, PLANES, RAW, SHUFFLE, ZSTD, CodecError, decode_into, make_encoder
from rollmill.store.format.records import encode_block, parse_block
from rollmill.store.format.schema import Column

DTYPES = ["bool", "int8", "uint8", "int16", "uint32", "int64", "uint64", "float16", "float32", "float64"]


def decoded(column: Column, packed: tuple[int, bytes], rows: int, wanted: int | None = None, skip: int = 0) -> Array:
    out = np.empty((rows if wanted is None else wanted, *column.shape), column.numpy)
    decode_into(packed[0], memoryview(packed[1]), column, rows, out, skip)
    return out


@given(st.data())
def test_what_is_encoded_is_decoded_also_in_part(data: st.DataObject) -> None:
    dtype = data.draw(st.sampled_from(DTYPES))
    shape = data.draw(st.sampled_from([(), (3,), (5, 4, 3), (0,)]))
    name = data.draw(st.sampled_from(["raw", "zstd:1", "zstd:-5", "zstd:9", "shuffle:1", "planes:1"]))
    column = Column("x", dtype, shape, codec=name)
    values = data.draw(hnp.arrays(column.numpy, (data.draw(st.integers(0, 20)), *shape)))
    if data.draw(st.booleans()):
        values = np.ascontiguousarray(np.tile(values, (3, *[1] * len(shape))))
    packed = make_encoder(column)(values)
    skip = data.draw(st.integers(0, len(values)))
    wanted = data.draw(st.integers(0, len(values) - skip))
    assert decoded(column, packed, len(values)).tobytes() == values.tobytes()
    assert decoded(column, packed, len(values), wanted, skip).tobytes() == values[skip : skip + wanted].tobytes()


def test_images_are_stored_plane_by_plane() -> None:
    column = Column("x", "uint8", (24, 32, 3))
    assert column.codec == "planes:1"
    assert Column("x", "uint8", (24, 32)).codec == Column("x", "uint8", (24, 32, 1)).codec == "zstd:1"
    rng = np.random.default_rng(0)
    brightness = rng.integers(0, 3, (16, 24, 32))
    rows = np.stack([brightness, 7 * np.roll(brightness, 5), 0 * brightness], -1).astype(np.uint8)
    name, data = make_encoder(column)(rows)
    assert name == PLANES
    assert np.array_equal(decoded(column, (name, data), 16), rows)
    assert np.array_equal(decoded(column, (name, data), 16, 5, 9), rows[9:14])
    assert len(data) < len(make_encoder(Column("x", "uint8", (24, 32, 3), codec="zstd:1"))(rows)[1])
    gray = Column("x", "uint8", (24, 32), codec="planes:1")
    assert make_encoder(gray)(brightness.astype(np.uint8))[0] == ZSTD, "one plane needs no order"


def test_codecs_are_used_where_they_help() -> None:
    rng = np.random.default_rng(0)
    flat, noise = np.zeros((16, 50), np.uint8), rng.integers(0, 256, (16, 50), dtype=np.uint8)
    image = make_encoder(Column("x", "uint8", (50,)))
    assert image(flat)[0] == ZSTD
    assert image(noise) == (RAW, noise.tobytes())
    smooth = np.sin(np.arange(256) / 40)
    plain, shuffled = (make_encoder(Column("x", "float64", codec=name))(smooth) for name in ("zstd:1", "shuffle:1"))
    assert shuffled[0] == SHUFFLE
    assert len(shuffled[1]) < len(plain[1])
    small = np.zeros(8, np.int64)
    assert make_encoder(Column("x", "int64"))(small) == (RAW, small.tobytes())


@pytest.mark.parametrize("name", ["zstd", "planes", "shuffle"])
def test_levels_that_zstd_lacks_are_refused(name: str) -> None:
    rows = np.zeros((4, 4, 3), np.uint8)
    for level in (-999, 22):
        make_encoder(Column("x", "uint8", (4, 4, 3), codec=f"{name}:{level}"))(rows)
    for level in (23, 99, 999):
        with pytest.raises(StoreError, match=f"{name}:{level}: from -999 to 22 is possible"):
            Column("x", "uint8", (4, 4, 3), codec=f"{name}:{level}")


def test_a_buffer_of_another_size_is_refused_before_memory_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    column = Column("x", "uint8", (10,))
    bomb = zstandard.ZstdCompressor().compress(bytes(10**6))
    unknown = zstandard.ZstdCompressor(write_content_size=False).compress(bytes(160))
    monkeypatch.setattr(codec, "_inflate", lambda *_: pytest.fail("decoded"))
    for name, data, message in (
        (ZSTD, bomb, "1000000 bytes where the rows take 160"),
        (SHUFFLE, bomb, "1000000 bytes"),
        (PLANES, bomb, "no image"),
        (ZSTD, unknown, "where the rows take 160"),
        (ZSTD, b"no frame", "not a zstd frame"),
        (RAW, bytes(159), "159 bytes where 16 rows take 160"),
        (9, bytes(160), "unknown codec id 9"),
        (JPEG, bytes(160), "lossless by the schema"),
    ):
        with pytest.raises(CodecError, match=message):
            decoded(column, (name, data), 16)


def test_a_broken_zstd_frame_is_an_error() -> None:
    column = Column("x", "uint8", (1000,))
    rows = np.random.default_rng(0).integers(0, 4, (16, 1000), dtype=np.uint8)
    name, data = make_encoder(column)(rows)
    with pytest.raises(CodecError, match="zstd"):
        decoded(column, (name, data[: len(data) // 2]), 16)
    broken = bytearray(data)
    broken[20:60] = bytes(40)
    with pytest.raises(CodecError, match="zstd"):
        decoded(column, (name, bytes(broken)), 16)


@pytest.mark.parametrize("channels", [1, 3])
def test_jpeg_keeps_images_nearly(channels: int) -> None:
    pytest.importorskip("cv2")
    column = Column("x", "uint8", (32, 48, channels), codec="jpeg:95")
    ramp = np.linspace(0, 255, 48, dtype=np.uint8)[None, None, :, None]
    rows = np.ascontiguousarray(np.broadcast_to(ramp, (5, 32, 48, channels)).copy())
    rows[..., 0] //= 2  # red and blue must not be swapped
    packed = make_encoder(column)(rows)
    assert packed[0] == JPEG
    assert len(packed[1]) < rows.nbytes / 2
    assert np.abs(decoded(column, packed, 5).astype(int) - rows).mean() < 4
    assert np.array_equal(decoded(column, packed, 5, 2), decoded(column, packed, 5)[:2])
    assert np.array_equal(decoded(column, packed, 5, 2, 3), decoded(column, packed, 5)[3:])
    for data, message in (
        (packed[1][:10], "cannot hold"),
        (packed[1][:-1], "do not fill"),
        (packed[1][:20] + bytes(len(packed[1]) - 20), "not a JPEG"),
    ):
        with pytest.raises(CodecError, match=message):
            decoded(column, (JPEG, data), 5)


def test_jpeg_quality_is_checked() -> None:
    for quality in (-1, 0, 101, 900):
        with pytest.raises(StoreError, match=f"jpeg:{quality}: from 1 to 100 is possible"):
            Column("x", "uint8", (4, 4, 3), codec=f"jpeg:{quality}")


def test_whole_blocks_are_decoded_and_checked() -> None:
    schema = small_schema()
    written = make_episode(schema, 5, 1)
    buffers = [make_encoder(column)(written.columns[column.name]) for column in schema.columns]
    block = parse_block(b"".join(encode_block(1, 0, 5, 6, buffers)))
    assert same(Episode(decode_block(schema, block)), written)
    with pytest.raises(CodecError, match="column obs:image: 216 bytes where 5 rows take 180"):
        decode_block(schema, parse_block(b"".join(encode_block(1, 0, 5, 5, buffers))))
    with pytest.raises(CodecError, match="8 columns, the store has 9"):
        decode_block(schema, parse_block(b"".join(encode_block(1, 0, 5, 6, buffers[1:]))))
    with pytest.raises(CodecError, match="column action has 5 rows, 6 are needed"):
        decode_column(block, 3, schema["action"], np.empty(6, np.int64))


@given(hnp.arrays(np.uint8, st.tuples(st.integers(0, 3), st.integers(2, 4), st.integers(1, 6), st.integers(1, 6))))
def test_planes_come_together_with_and_without_opencv(planes: Array) -> None:
    expected = np.moveaxis(planes, 1, -1)
    for merge in (codec._opencv_merge(), None):
        out = np.full(expected.shape, 77, np.uint8)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(codec, "_opencv_merge", lambda merge=merge: merge)
            codec._interleave(planes, out)
        assert np.array_equal(out, expected)
