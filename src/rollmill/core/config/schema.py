"""Settings classes: what ``@settings`` makes of a class, the keys it has, and what help says about them."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator
from dataclasses import MISSING, dataclass
from types import NoneType
from typing import Any, TypeVar, dataclass_transform, get_args, get_origin, get_type_hints, overload

from rollmill.core.config.plain import plain
from rollmill.core.config.types import alternatives, field_docs, type_text

T = TypeVar("T")
KeyPath = tuple[str, ...]


@overload
def settings(cls: type[T], /) -> type[T]: ...
@overload
def settings(*, shorthand: str | None = None) -> Callable[[type[T]], type[T]]: ...
@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(dataclasses.field, dataclasses.Field))
def settings(cls: Any = None, /, *, shorthand: str | None = None) -> Any:
    """Make a class a settings dataclass: frozen, keyword-only, unknown keys forbidden.

    ``shorthand`` names the key that a single value stands for: with ``@settings(shorthand="id")``,
    ``env: doom_basic`` means ``env.id: doom_basic`` and leaves the other ``env.*`` keys alone.
    A ``ValueError`` in ``__post_init__`` is how a class refuses values that contradict each other.
    """

    def decorate(plain: type[T]) -> type[T]:
        made: Any = dataclass(frozen=True, kw_only=True)(plain)
        made.__pydantic_config__ = {"extra": "forbid"}
        if shorthand is not None:
            if shorthand not in made.__dataclass_fields__:
                raise TypeError(f"{plain.__qualname__}: shorthand {shorthand!r} is not one of its fields")
            made.__shorthand__ = shorthand
        return made  # type: ignore[no-any-return]

    return decorate if cls is None else decorate(cls)


def require_least(block: object, least: int, *names: str, zero: str = "") -> None:
    """Refuse settings below ``least``, and NaN; for ``__post_init__``. ``zero``: what 0 stands for."""
    rule = f"be 0 ({zero}) or positive" if zero else f"be at least {least}" if least else "not be negative"
    for name in names:
        if not getattr(block, name) >= least:
            raise ValueError(f"{name} must {rule}, not {getattr(block, name)}")


def require_positive(block: object, *names: str) -> None:
    """Refuse settings of 0 or less, and NaN; for ``__post_init__``."""
    for name in names:
        if not getattr(block, name) > 0:
            raise ValueError(f"{name} must be positive, not {getattr(block, name)}")


@dataclass(frozen=True)
class Key:
    """One field of a settings class; ``block`` is the settings class below it, if any."""

    name: str
    type: Any
    field: dataclasses.Field[Any]
    block: type | None

    @property
    def is_free(self) -> bool:
        return any(part is dict or get_origin(part) is dict for part in alternatives(self.type))

    @property
    def entry_type(self) -> Any:
        """The type of the values of a free mapping; None where the key may hold other things, too."""
        parts = [part for part in alternatives(self.type) if part is not NoneType]
        return get_args(parts[0])[1] if [get_origin(part) for part in parts] == [dict] else None

    @property
    def is_required(self) -> bool:
        return self.field.default is MISSING and self.field.default_factory is MISSING

    @property
    def is_optional(self) -> bool:
        return NoneType in alternatives(self.type)

    def default(self) -> Any:
        """Return the default value; ``MISSING`` for a required key, and for a block that starts from its class."""
        if self.field.default_factory is not MISSING and self.field.default_factory is not self.block:
            return self.field.default_factory()
        return self.field.default


@functools.cache
def keys_of(cls: type) -> dict[str, Key]:
    """Return the keys of a settings class by name, in declared order."""
    hints = get_type_hints(cls, include_extras=True)
    keys = {}
    for field in dataclasses.fields(cls):
        if not field.init:
            continue
        blocks = [part for part in alternatives(hints[field.name]) if dataclasses.is_dataclass(part)]
        if len(blocks) > 1:
            raise TypeError(f"{cls.__qualname__}.{field.name}: a key can hold one settings class, not several")
        block = blocks[0] if blocks and isinstance(blocks[0], type) else None
        keys[field.name] = Key(field.name, hints[field.name], field, block)
    return keys


def dotted_keys(cls: type, prefix: str = "") -> Iterator[str]:
    """Return all keys of the tree, blocks included."""
    for key in keys_of(cls).values():
        yield prefix + key.name
        if key.block is not None:
            yield from dotted_keys(key.block, f"{prefix}{key.name}.")


def instance_of(default: Any) -> object | None:
    """Return the settings that a block starts from; None where it starts from its class, or is not there at all."""
    return None if default is MISSING or default is None else default


@dataclass(frozen=True)
class KeyInfo:
    """What help says about one key. ``default`` is a plain value; it means nothing when ``required``."""

    key: str
    type: str
    default: Any
    required: bool
    doc: str


def describe(cls: type) -> list[KeyInfo]:
    """List every leaf of a settings class in declared order; a block that may be null is listed as well."""
    return list(_describe(cls, "", None))


def _describe(cls: type, prefix: str, instance: object | None) -> Iterator[KeyInfo]:
    docs = field_docs(cls)
    for key in keys_of(cls).values():
        default = key.default() if instance is None else getattr(instance, key.name)
        if key.block is None or key.is_optional:
            required = default is MISSING and key.is_required
            # an optional block that starts from its class is there, with nothing set
            value = {} if default is MISSING else plain(default)
            yield KeyInfo(
                key=prefix + key.name,
                type=type_text(key.type),
                default=None if required else value,
                required=required,
                doc=docs.get(key.name, ""),
            )
        if key.block is not None:
            yield from _describe(key.block, f"{prefix}{key.name}.", instance_of(default))
