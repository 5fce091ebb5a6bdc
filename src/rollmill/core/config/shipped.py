"""The settings files that come with the package, found by their names from anywhere: ``-f doom_basic``."""

from __future__ import annotations

from pathlib import Path

FOLDER = Path(__file__).parents[2] / "configs"


def shipped_names() -> list[str]:
    """Return the names of the settings files that come with the package, without their ending."""
    return sorted(path.stem for path in FOLDER.glob("*.yaml"))


def is_plain_name(path: Path) -> bool:
    return len(path.parts) == 1


def find_file(path: Path) -> Path:
    """Return the file that is meant: the one at ``path``, or the shipped one of that name where there is none."""
    shipped = FOLDER / f"{path.name.removesuffix('.yaml')}.yaml"
    return shipped if is_plain_name(path) and not path.exists() and shipped.is_file() else path
