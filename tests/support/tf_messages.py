"""TensorFlow's messages for tests that read what we write: protobuf itself parses them, without TensorFlow."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from rollmill.store.format import framing as frames


def _messages() -> tuple[Any, Any]:
    """``Example`` and ``SequenceExample`` as protobuf knows them, from their published definition."""
    file = descriptor_pb2.FileDescriptorProto(name="example.proto", package="t", syntax="proto3")
    kinds = {"bytes": 12, "float": 2, "int64": 3, "string": 9}

    def message(name: str, *fields: tuple[str, int, str, bool]) -> Any:
        found = file.message_type.add(name=name)
        for field, number, kind, repeated in fields:
            item = found.field.add(name=field, number=number, label=3 if repeated else 1)
            if kind in kinds:
                item.type = kinds[kind]
            else:
                item.type, item.type_name = 11, f".t.{kind}"
        return found

    message("BytesList", ("value", 1, "bytes", True))
    message("FloatList", ("value", 1, "float", True))
    message("Int64List", ("value", 1, "int64", True))
    feature = message(
        "Feature",
        ("bytes_list", 1, "BytesList", False),
        ("float_list", 2, "FloatList", False),
        ("int64_list", 3, "Int64List", False),
    )
    feature.oneof_decl.add(name="kind")
    for item in feature.field:
        item.oneof_index = 0
    message("FeatureList", ("feature", 1, "Feature", True))
    for holder, field, value in (("Features", "feature", "Feature"), ("FeatureLists", "feature_list", "FeatureList")):
        entry_name = "".join(part.title() for part in field.split("_")) + "Entry"
        found = message(holder, (field, 1, f"{holder}.{entry_name}", True))
        entry = found.nested_type.add(name=entry_name)
        entry.options.map_entry = True
        entry.field.add(name="key", number=1, label=1, type=9)
        entry.field.add(name="value", number=2, label=1, type=11, type_name=f".t.{value}")
    message("Example", ("features", 1, "Features", False))
    message("SequenceExample", ("context", 1, "Features", False), ("feature_lists", 2, "FeatureLists", False))
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    found = (pool.FindMessageTypeByName(f"t.{name}") for name in ("Example", "SequenceExample"))
    example, sequence = map(message_factory.GetMessageClass, found)
    return example, sequence


Example, SequenceExample = _messages()


def records(path: Path) -> list[bytes]:
    with open(path, "rb", buffering=0) as file:
        found = list(frames.walk(file.fileno(), path.stat().st_size))
    assert all(frame.payload is not None for frame in found)
    return [frame.payload or b"" for frame in found]
