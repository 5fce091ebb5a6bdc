"""Reads and writes YAML, without YAML's traps.

What differs from plain PyYAML:

- ``1e-3`` and ``1e6`` are floats (PyYAML reads strings); ``1_000_000`` is an integer.
- only ``true`` and ``false`` are booleans: ``on``, ``off``, ``yes``, ``no`` stay text, so do dates.
- a key that stands twice in one mapping is an error that names both lines.
- keys are always text; tags, merge keys and values that contain themselves are errors.
- size and depth are bounded, and so is what aliases make of a small file: settings are written by hand.
- the line of every key is kept, for error messages.

What ``to_yaml`` writes, ``parse_mapping`` reads back as the same values.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from rollmill.core.config.shipped import is_plain_name, shipped_names
from rollmill.core.errors import ConfigError
from rollmill.core.opening import MOST_DEPTH, read_text
from rollmill.core.text import closest, did_you_mean

KeyPath = tuple[str, ...]

MOST_CHARACTERS = 1_000_000
"""Of a file, and of all values with their keys when every alias is written out."""

_TAG = "tag:yaml.org,2002:"
_BOOL = re.compile(r"^(?:true|True|TRUE|false|False|FALSE)$")
_NULL = re.compile(r"^(?:~|null|Null|NULL|)$")
# Groups of three, so that a name such as 2026_11_15 stays text.
_INT = re.compile(r"^(?:[-+]?[0-9]+|[-+]?[0-9]{1,3}(?:_[0-9]{3})+|0o[0-7]+|0x[0-9a-fA-F]+)$")
_FLOAT = re.compile(
    r"^(?:[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?"
    r"|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN))$"
)
_SURROGATE = re.compile("[\ud800-\udfff]")
_HALF = "holds half of a surrogate pair, which is no character"
_RESOLVERS: list[tuple[str, re.Pattern[str], list[str]]] = [
    ("bool", _BOOL, list("tTfF")),
    ("null", _NULL, ["~", "n", "N", ""]),
    ("int", _INT, list("-+0123456789")),
    ("float", _FLOAT, list("-+.0123456789")),
]


class _Composer(yaml.composer.Composer):
    """Makes the node tree, as deep as we allow and with our idea of what a plain scalar means."""

    yaml_implicit_resolvers: dict[str, Any] = {}
    depth = 0

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        self.depth += 1
        if self.depth > MOST_DEPTH:
            mark = self.peek_event().start_mark  # type: ignore[attr-defined]
            raise yaml.composer.ComposerError(problem=f"nested more than {MOST_DEPTH} deep", problem_mark=mark)
        node = super().compose_node(parent, index)
        self.depth -= 1
        return node


class _Loader(_Composer, yaml.SafeLoader):
    """PyYAML's parser, whose errors say best what is wrong; used for its node tree only."""


class _Dumper(yaml.SafeDumper):
    """Quotes whatever PyYAML *or* our loader would not read back as text."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _list(dumper: yaml.SafeDumper, data: list[Any]) -> yaml.Node:
    return dumper.represent_sequence(_TAG + "seq", data, flow_style=True)


def _text(dumper: yaml.SafeDumper, data: str) -> yaml.Node:
    # PyYAML's other styles lose U+0085 and its kin: they count as line breaks and are folded to a space
    return dumper.represent_scalar(_TAG + "str", data, style=None if data.isprintable() else '"')


for _name, _pattern, _first in _RESOLVERS:
    for _class in (_Loader, _Dumper):
        _class.add_implicit_resolver(_TAG + _name, _pattern, _first)


def _fast_loader() -> type | None:
    """Make the same loader on libyaml's parser, which takes an eighth of the time; None where PyYAML has none."""
    if not yaml.__with_libyaml__:
        return None

    class FastLoader(_Composer, yaml.cyaml.CParser, yaml.resolver.Resolver):  # type: ignore[misc, name-defined]
        yaml_implicit_resolvers = _Loader.yaml_implicit_resolvers

        def __init__(self, text: str) -> None:
            yaml.cyaml.CParser.__init__(self, text)  # type: ignore[attr-defined]
            yaml.composer.Composer.__init__(self)
            yaml.resolver.Resolver.__init__(self)

    return FastLoader


_FAST = _fast_loader()
_Dumper.add_representer(list, _list)
_Dumper.add_representer(str, _text)


@dataclass(frozen=True)
class YamlMapping:
    """The settings of one file; ``lines`` holds the line (from 1) of every key by its path."""

    data: dict[str, Any] = field(default_factory=dict)
    lines: dict[KeyPath, int] = field(default_factory=dict)


def read_mapping(path: Path, ours: bool = False) -> YamlMapping:
    """Read a YAML file whose top level is a mapping; an empty file holds no settings.

    ``ours``: ``to_yaml`` wrote it, so that libyaml may read it: in an eighth of the time, but by other rules for tabs
    and marks that only people write.
    """
    try:
        text = read_text(path, most=MOST_CHARACTERS)
    except FileNotFoundError:
        raise ConfigError(f"{path}: no such file; {_files_near(path)}") from None
    except UnicodeDecodeError as exc:
        raise ConfigError(f"{path}: not a UTF-8 text file ({exc.reason} at byte {exc.start})") from None
    except OSError as exc:
        raise ConfigError(f"{path}: cannot be read ({exc.strerror})") from None
    return parse_mapping(text, str(path), ours)


def parse_mapping(text: str, source: str, ours: bool = False) -> YamlMapping:
    """Parse text as ``read_mapping`` reads a file; ``source`` names it in errors."""
    node = _compose(text, source, ours)
    if node is None or node.tag == _TAG + "null":  # nothing at all, or nothing but '---'
        return YamlMapping()
    if not isinstance(node, yaml.MappingNode):
        raise ConfigError(f"{source}, line {_line(node)}: expected settings as 'key: value' lines, found {_kind(node)}")
    reader = _Reader(source)
    data = reader.value(node, ())
    if reader.problems:
        raise ConfigError("\n".join(reader.problems))
    return YamlMapping(data, reader.lines)


def parse_value(text: str, source: str) -> Any:
    """Parse one value as written after ``=`` on the command line; blank text is an empty string."""
    if not text.strip():
        return ""
    node = _compose(text, source)
    if node is None:
        raise ConfigError(f"{source}: the value reads as a YAML comment; put quotes around it")
    reader = _Reader(source)
    value = reader.value(node, ())
    if reader.problems:
        raise ConfigError("\n".join(reader.problems))
    return value


def to_yaml(data: Mapping[str, Any]) -> str:
    """Return YAML text of nested plain values, keys in the given order, lists on one line."""
    # A line limit would fold long strings; unfolded ones can be searched for.
    text: str = yaml.dump(dict(data), Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=2**31)
    return text


class _Reader:
    """Turns the node tree of one document into plain values, noting lines and problems."""

    def __init__(self, source: str) -> None:
        self.source = source
        self.lines: dict[KeyPath, int] = {}
        self.problems: list[str] = []
        self._open: set[int] = set()  # nodes being read: meeting one again is a loop of aliases
        self._characters = 0

    def value(self, node: yaml.Node, path: KeyPath) -> Any:
        self._count(node)
        if isinstance(node, yaml.ScalarNode):
            return self._scalar(node, path)
        if id(node) in self._open:
            return self._problem(node, path, "contains itself through an alias")
        self._open.add(id(node))
        try:
            if isinstance(node, yaml.MappingNode) and node.tag == _TAG + "map":
                return self._mapping(node, path)
            if isinstance(node, yaml.SequenceNode) and node.tag == _TAG + "seq":
                return [self.value(item, (*path, str(i))) for i, item in enumerate(node.value)]
        finally:
            self._open.discard(id(node))
        return self._problem(node, path, f"the tag {_short_tag(node)} is not supported")

    def _count(self, node: yaml.Node) -> None:
        self._characters += len(node.value) + 1 if isinstance(node, yaml.ScalarNode) else 1
        if self._characters > MOST_CHARACTERS:
            raise ConfigError(f"{self.source}: more than {MOST_CHARACTERS:,} characters, with aliases written out")

    def _mapping(self, node: yaml.MappingNode, path: KeyPath) -> dict[str, Any]:
        result: dict[str, Any] = {}
        for key_node, value_node in node.value:
            if not isinstance(key_node, yaml.ScalarNode):
                self._problem(key_node, path, f"a key must be a word, found {_kind(key_node)}")
                continue
            name: str = key_node.value
            self._count(key_node)
            here = (*path, name)
            if name == "<<" and key_node.style is None:
                self._problem(key_node, here, "merge keys are not supported; stack several files instead")
            elif _SURROGATE.search(name):
                self._problem(key_node, path, f"a key {_HALF}")
            elif name in result:
                # not by _problem: one line of text cannot point at two places
                self.problems.append(
                    f"{self.source}: key '{'.'.join(here)}' is set twice, in line {self.lines[here]} "
                    f"and in line {_line(key_node)}; keep one of them"
                )
            else:
                self.lines[here] = _line(key_node)
                result[name] = self.value(value_node, here)
        return result

    def _scalar(self, node: yaml.ScalarNode, path: KeyPath) -> Any:
        text: str = node.value
        tag = node.tag.removeprefix(_TAG)
        if _SURROGATE.search(text):
            return self._problem(node, path, _HALF)
        if tag == "str":
            return text
        if tag == "null" and _NULL.match(text):
            return None
        if tag == "bool" and _BOOL.match(text):
            return text.lower() == "true"
        try:
            if tag == "int" and _INT.match(text):
                return _integer(text)
            if tag == "float" and (_FLOAT.match(text) or _INT.match(text)):
                return _float(text)
        except ValueError as exc:  # Python refuses integers of more than a few thousand digits
            return self._problem(node, path, str(exc))
        if tag in ("null", "bool", "int", "float"):
            return self._problem(node, path, f"{text!r} is not a value for the tag !!{tag}")
        return self._problem(node, path, f"the tag {_short_tag(node)} is not supported")

    def _problem(self, node: yaml.Node, path: KeyPath, text: str) -> None:
        where = f"{self.source}, line {_line(node)}"
        self.problems.append(f"{where}: {'.'.join(path)}: {text}" if path else f"{where}: {text}")


def _compose(text: str, source: str, ours: bool = False) -> yaml.Node | None:
    """Return the node tree of the single document in ``text``; None when there is nothing but comments."""
    if len(text) > MOST_CHARACTERS:
        raise ConfigError(f"{source[:100]}: more than {MOST_CHARACTERS:,} characters")
    if ours and _FAST is not None:
        # What it refuses, PyYAML's own parser looks at, which says in the same words everywhere what is wrong.
        with contextlib.suppress(yaml.YAMLError, UnicodeError):
            quick: yaml.Node | None = _FAST(text).get_single_node()
            return quick
    try:
        node: yaml.Node | None = yaml.compose(text, Loader=_Loader)
    except yaml.MarkedYAMLError as exc:
        mark = exc.problem_mark or exc.context_mark
        where = f", line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        reason = " ".join(part for part in (exc.context, exc.problem) if part)
        raise ConfigError(f"{source}{where}: not valid YAML: {reason}") from None
    except yaml.YAMLError as exc:
        raise ConfigError(f"{source}: not valid YAML: {' '.join(str(exc).split())}") from None
    return node


def _integer(text: str) -> int:
    base = {"0x": 16, "0o": 8}.get(text[:2], 10)
    return int(text.replace("_", ""), base)


def _float(text: str) -> float:
    # YAML writes .inf and .nan where Python writes inf and nan
    special = re.fullmatch(r"([-+]?)\.(inf|nan)", text.lower())
    return float("".join(special.groups()) if special else text)


def _files_near(path: Path) -> str:
    """Name files of its folder and of the package that are called like the missing one, or else its YAML files."""
    folder = path.parent
    if not folder.is_dir():
        return f"the folder {folder} does not exist either"
    names = sorted(entry.name for entry in folder.iterdir() if entry.is_file())
    shipped = closest(path.name.removesuffix(".yaml"), shipped_names()) if is_plain_name(path) else []
    near = did_you_mean([*(str(folder / name) for name in closest(path.name, names)), *shipped])
    if near:
        return near
    found = [name for name in names if name.endswith((".yaml", ".yml"))]
    listed = ", ".join(found[:10]) + (", ..." if len(found) > 10 else "")
    return f"YAML files in {folder}: {listed}" if found else f"there are no YAML files in {folder}"


def _line(node: yaml.Node) -> int:
    line: int = node.start_mark.line
    return line + 1


def _kind(node: yaml.Node) -> str:
    if isinstance(node, yaml.ScalarNode):
        return "a single value"
    return "a list" if isinstance(node, yaml.SequenceNode) else "a mapping"


def _short_tag(node: yaml.Node) -> str:
    tag: str = node.tag
    return "!!" + tag.removeprefix(_TAG) if tag.startswith(_TAG) else tag
