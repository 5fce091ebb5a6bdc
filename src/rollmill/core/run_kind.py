"""What a run folder holds, as far as its saved settings tell: an online training, an offline one, a world model; and
what the folder of a world model holds in turn.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

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


class StagePlace(NamedTuple):
    """Where a stage of a world model is found."""

    folder: str
    """What it makes lies there, in the folder of the world model; empty where nothing has to be kept."""
    target: str
    """The class that runs it (``runs.world.stage.Stage``), imported when it is used."""


STAGES: dict[str, StagePlace] = {
    "collect": StagePlace("raw", "rollmill.runs.world.stages:Collect"),
    "vae": StagePlace("vae", "rollmill.runs.world.stages:Vae"),
    "encode": StagePlace("latents", "rollmill.runs.world.stages:Encode"),
    "dynamics": StagePlace("dynamics", "rollmill.runs.world.stages:Dynamics"),
    "controller": StagePlace("controller", "rollmill.runs.world.stages:Controller"),
    "report": StagePlace("", "rollmill.runs.world.stages:Report"),
}
"""The stages of a world model, in their order."""
FOLDERS = {name: stage.folder for name, stage in STAGES.items() if stage.folder}
"""Of the stages that leave something, in their order."""
RECORDS = "stages"
"""There, too: where each stage writes down how it was run, ``stages/<stage>.json``."""


def run_kind(settings: Mapping[str, Any]) -> RunKind:
    """Return the kind of run that saves such settings; whatever is unknown (a program of one's own) is online."""
    return next((kind for kind, keys in _KEYS.items() if keys <= settings.keys()), "online")
