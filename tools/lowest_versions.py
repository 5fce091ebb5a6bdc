"""Prints constraints for pip that hold every package of ``pyproject.toml`` at the lowest version claimed there.

    python tools/lowest_versions.py > lowest.txt
    pip install --constraint lowest.txt --editable ".[dev]"

``>=4.9`` becomes ``==4.9.*``: pip takes the newest patch of the lowest version, as some packages have no plain 4.9.
What those packages need themselves is as new as it comes. ``make versions-lowest`` runs the tests with it.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[1] / "pyproject.toml"


def requirements(text: str) -> list[str]:
    """Of a project and all its extras."""
    project = tomllib.loads(text)["project"]
    extras = project.get("optional-dependencies", {}).values()
    return [*project["dependencies"], *(one for extra in extras for one in extra)]


def lowest(requirements: Iterable[str]) -> list[str]:
    """A constraint for each package with a lower bound; of several bounds the highest counts."""
    bounds: dict[str, tuple[int, ...]] = {}
    for requirement in requirements:
        found = re.match(r"([\w.-]+)(?:\[[^]]*\])?.*?>=\s*(\d+(?:\.\d+)*)", requirement)
        if found:
            name = re.sub(r"[-_.]+", "-", found[1]).lower()
            version = tuple(map(int, found[2].split(".")))
            version = version if len(version) > 1 else (*version, 0)  # 6 is 6.0, not any 6
            bounds[name] = max(version, bounds.get(name, version))
    return [f"{name}=={'.'.join(map(str, version))}.*" for name, version in sorted(bounds.items())]


if __name__ == "__main__":
    print("\n".join(lowest(requirements(PROJECT.read_text(encoding="utf-8")))))
