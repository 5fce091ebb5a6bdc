"""A settings class as JSON Schema: with it an editor completes and explains keys, and underlines what is wrong."""

from __future__ import annotations

from typing import Any

from rollmill.core.config.schema import Key, keys_of
from rollmill.core.config.types import field_docs

_UNDERSCORES = {"type": "string", "pattern": r"^-?\d[\d_]*$"}
"""``200_000``: a number for us, text for an editor."""


def json_schema(cls: type, title: str) -> dict[str, Any]:
    """Return the schema of the YAML files that hold such settings; every key may be left out."""
    return {"$schema": "http://json-schema.org/draft-07/schema#", "title": title, **_block(cls)}


def _block(cls: type) -> dict[str, Any]:
    docs = field_docs(cls)
    properties = {}
    for name, key in keys_of(cls).items():
        described = {"description": docs[name]} if docs.get(name) else {}
        properties[name] = {**described, **_value(key)}
    return {"type": "object", "additionalProperties": False, "properties": properties}


def _value(key: Key) -> dict[str, Any]:
    if key.block is None:
        return _leaf(key.type)
    kinds = [_block(key.block)]
    shorthand = getattr(key.block, "__shorthand__", None)
    if shorthand is not None:
        kinds.append(_leaf(keys_of(key.block)[shorthand].type))
    if key.is_optional:
        kinds.append({"type": "null"})
    return {"anyOf": kinds} if len(kinds) > 1 else kinds[0]


def _leaf(tp: Any) -> dict[str, Any]:
    from pydantic import TypeAdapter

    schema: dict[str, Any] = _with_underscores(TypeAdapter(tp).json_schema())
    return schema


def _with_underscores(schema: Any) -> Any:
    """Return the same schema, in which a number may be written with underscores."""
    if isinstance(schema, list):
        return [_with_underscores(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    if schema.get("type") in ("integer", "number"):
        return {"anyOf": [schema, _UNDERSCORES]}
    return {name: _with_underscores(part) for name, part in schema.items()}
