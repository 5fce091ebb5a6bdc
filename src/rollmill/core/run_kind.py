"""What a run folder holds, as far as its saved settings tell: an online training, an offline one, a world model; and
what the folder of a world model holds in turn.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

RunKind = Literal["online", "offline", "world", "encoder", "dynamics", "controller"]

_KEYS: dict[RunKind, frozenset[str]] = {
    "offline": frozenset({"algorithm", "fit"}),
    "world": frozenset({"collect", "dynamics", "controller"}),
    "encoder": frozenset({"encoder", "images"}),
    "dynamics": frozenset({"mixtures", "sequence_length"}),
    "controller": frozenset({"population", "generations"}),
}
"""Keys at the top of a ``config.yaml`` that only this kind of run has."""

UNITS: Mapping[str, str] = {
    "online": "frames",
    "offline": "updates",
    "world": "stages",
    "encoder": "updates",
    "dynamics": "updates",
    "controller": "generations",
}
"""What each of them counts (``core.steps``)."""

StageName = Literal["collect", "vae", "encode", "dynamics", "controller", "report"]
"""The stages of a world model, in their order."""
FOLDERS = {"collect": "raw", "vae": "vae", "encode": "latents", "dynamics": "dynamics", "controller": "controller"}
"""In the folder of a world model: where each stage leaves what it makes, in the order of the stages."""
RECORDS = "stages"
"""There, too: where each stage writes down how it was run, ``stages/<stage>.json``."""


def run_kind(settings: Mapping[str, Any]) -> RunKind:
    """The kind of run that saves such settings; whatever is unknown (a program of one's own) is an online one."""
    return next((kind for kind, keys in _KEYS.items() if keys <= settings.keys()), "online")
