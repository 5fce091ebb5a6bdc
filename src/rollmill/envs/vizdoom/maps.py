"""Files of maps (WAD): where they are, which maps they have, and for how many players.

An engine that is asked for another map, or for more players than it has places for, ends, and takes its process along.
"""

from __future__ import annotations

import re
import struct
from itertools import pairwise
from pathlib import Path

from rollmill.core.errors import ConfigError

HEADER, ENTRY = struct.Struct("<4sii"), struct.Struct("<ii8s")
THING = struct.Struct("<5h")
PLACE = 11
"""The type of the thing that is a deathmatch player's place."""


def find_wad(wad: str, scenarios: Path) -> Path:
    """Find a file of the user's, or one of ViZDoom's own."""
    for path in (Path(wad).expanduser(), scenarios / wad):
        if path.is_file():
            return path.resolve()
    raise ConfigError(f"wad: there is no file {Path(wad).absolute()}, and none of that name among ViZDoom's own")


def check_map(wad: Path, name: str, players: int) -> None:
    """Raise ConfigError unless the file has that map, with a place for every player."""
    places = places_of(wad)
    if name.lower() not in places:
        raise ConfigError(f"map: {wad.name} has no {name} (there are: {', '.join(places) or 'none'})")
    if places[name.lower()] < players:
        raise ConfigError(
            f"map: {name} of {wad.name} has {places[name.lower()]} places for players of a deathmatch, not {players}"
        )


def places_of(wad: Path) -> dict[str, int]:
    """Return the maps of a file, in lower case, and how many places for players of a deathmatch each has."""
    data = wad.read_bytes()
    try:
        kind, count, offset = HEADER.unpack_from(data)
        if kind not in (b"IWAD", b"PWAD"):
            raise ConfigError(f"wad: {wad} is no file of maps (it begins with {kind!r}, not with PWAD)")
        entries = [ENTRY.unpack_from(data, offset + ENTRY.size * k) for k in range(count)]
    except struct.error as error:
        raise ConfigError(f"wad: {wad} is damaged: {error}") from error
    lumps = [(name.rstrip(b"\0").decode(errors="replace"), data[at : at + size]) for at, size, name in entries]
    return {name.lower(): COUNTERS[kind](things) for (name, _), (kind, things) in pairwise(lumps) if kind in COUNTERS}


def _in_text(things: bytes) -> int:
    return len(re.findall(rb"type\s*=\s*%d\s*;" % PLACE, things))


def _in_numbers(things: bytes) -> int:
    """Count the places in things of five short numbers each: x, y, angle, type and flags."""
    return sum(kind == PLACE for _, _, _, kind, _ in THING.iter_unpack(things))


COUNTERS = {"TEXTMAP": _in_text, "THINGS": _in_numbers}
"""What follows the name of a map in a file's list, in either format of maps."""
