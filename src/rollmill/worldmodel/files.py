"""The files of a finished world model, one for each part: a path is all one needs to load it.

Each is a ``core.tree_file``: checksummed, nothing in it is ever executed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rollmill.core.checkpoints import require_version, restoring
from rollmill.core.errors import CheckpointError
from rollmill.core.shapes import Shape, check_shape
from rollmill.core.tree_file import load_tree, save_tree, stored_checksum


@dataclass(frozen=True)
class ModelFile:
    """How the file of one part is called and known."""

    format: str
    """What the file calls itself."""
    words: str
    """What people call it."""
    verb: str
    """The command that writes it."""
    name: str
    """Its name in the folder of a run."""
    version: int = 1

    def find(self, path: Path | str) -> Path:
        """Return the file that ``path`` means: itself, or the one in a folder."""
        given = Path(path)
        return given / self.name if given.is_dir() else given

    def checksum(self, path: Path | str) -> str:
        """Return the hex SHA-256 that names a file; what is made with it is marked so."""
        return stored_checksum(self.find(path))

    def save(self, path: Path, content: Mapping[str, Any]) -> None:
        """Write the file atomically."""
        save_tree(path, {"format": self.format, "version": self.version, **content})

    def load(self, path: Path | str, shape: Shape) -> tuple[Path, dict[str, Any]]:
        """Return the file that ``path`` means, and what it holds; raises CheckpointError unless that has ``shape``."""
        file = self.find(path)
        tree = load_tree(file)
        if not self.is_in(tree):
            raise CheckpointError(f"{file}: not {self.words} (`rollmill {self.verb}` writes one as {self.name})")
        require_version(file, tree, self.version)
        with restoring(file):
            check_shape(tree, shape)
        return file, tree

    def is_in(self, tree: Any) -> bool:
        """Return whether a file's content, or its header, says that it is one of these."""
        return isinstance(tree, Mapping) and tree.get("format") == self.format


ENCODER = ModelFile("image_encoder", "an encoder", "world vae", "encoder.bin")
DYNAMICS = ModelFile("dynamics", "a dynamics model", "world dynamics", "dynamics.bin")
CONTROLLER = ModelFile("controller", "a controller", "world controller", "controller.bin")
