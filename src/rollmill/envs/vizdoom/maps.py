"""Files of maps (WAD): where they are, and which maps they have. An engine asked for another ends with its process."""

from __future__ import annotations

import struct
from itertools import pairwise
from pathlib import Path

from rollmill.core.errors import ConfigError

HEADER, ENTRY = struct.Struct("<4sii"), struct.Struct("<ii8s")
FIRST_OF_A_MAP = ("TEXTMAP", "THINGS")
"""What follows the name of a map in a file's list, in either format of maps."""


def find_wad(wad: str, scenarios: Path) -> Path:
    """A file of the user's, or one of ViZDoom's own."""
    for path in (Path(wad).expanduser(), scenarios / wad):
        if path.is_file():
            return path.resolve()
    raise ConfigError(f"wad: there is no file {Path(wad).absolute()}, and none of that name among ViZDoom's own")


def check_map(wad: Path, name: str) -> None:
    """ConfigError unless the file has that map."""
    known = maps_of(wad)
    if name.lower() not in known:
        raise ConfigError(f"map: {wad.name} has no {name} (there are: {', '.join(known) or 'none'})")


def maps_of(wad: Path) -> list[str]:
    """Names of the maps in a file, in lower case."""
    data = wad.read_bytes()
    try:
        kind, count, offset = HEADER.unpack_from(data)
        if kind not in (b"IWAD", b"PWAD"):
            raise ConfigError(f"wad: {wad} is no file of maps (it begins with {kind!r}, not with PWAD)")
        entries = [ENTRY.unpack_from(data, offset + ENTRY.size * k)[2] for k in range(count)]
    except struct.error as error:
        raise ConfigError(f"wad: {wad} is damaged: {error}") from error
    names = [entry.rstrip(b"\0").decode(errors="replace") for entry in entries]
    return [name.lower() for name, after in pairwise(names) if after in FIRST_OF_A_MAP]
