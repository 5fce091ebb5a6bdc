"""Classes of the user's own for the parts of a world model: named in settings, stored in files, run where trusted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from pathlib import Path
from typing import Any, Literal, get_args

from rollmill.core.config.schema import KeyPath, settings
from rollmill.core.errors import ConfigError
from rollmill.core.trust import refuse_code
from rollmill.envs.code_words import odd_arguments

Part = Literal["encoder", "dynamics", "controller"]
PARTS: tuple[Part, ...] = get_args(Part)


@settings
class OwnClass:
    """A class of your own that a file names; whoever names it again lets it be run."""

    custom: str | None = None
    """The class: ``module:Class`` or ``path/to/file.py:Class``, as it is called now. Unset: the file's own word, which
    ``--trust-code`` lets be run."""

    custom_args: dict[str, Any] = field(default_factory=dict)
    """Arguments that differ from those in the file."""


@settings
class Trust:
    """What of the code that files name may be run: what the user has named, too, or all of it (``trust_code``)."""

    encoder: OwnClass = field(default_factory=OwnClass)
    dynamics: OwnClass = field(default_factory=OwnClass)
    controller: OwnClass = field(default_factory=OwnClass)
    trust_code: bool = False

    def settle(self, part: Part, custom: str | None, args: Mapping[str, Any], file: Path) -> OwnClass:
        """Return the class that a part is made of by its ``file``; raises UntrustedCodeError if it is not wanted."""
        named: OwnClass = getattr(self, part)
        if custom is None:
            if named.custom is not None:
                raise ConfigError(f"{part}.custom={named.custom}: {file} is made of no class of your own")
            return OwnClass()
        if not self.trust_code:
            code: dict[KeyPath, Any] = {} if named.custom else {(part, "custom"): custom}
            left = {name: value for name, value in args.items() if name not in named.custom_args}
            refuse_code(code | odd_arguments(left, (part, "custom_args")), file)
        return OwnClass(custom=named.custom or custom, custom_args={**args, **named.custom_args})


NOBODY = Trust()
"""Files may name what comes with rollmill, and nothing else."""
