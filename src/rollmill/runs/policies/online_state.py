"""What a checkpoint of an online run holds, as far as the run itself knows; its parts declare their own shapes."""

from __future__ import annotations

from typing import Any

from rollmill.core.checkpoints import Loaded, saved_spec
from rollmill.core.fields import SPEC_SHAPE
from rollmill.core.shapes import ANY, ARRAY, INTS, MAPPING, Shape
from rollmill.runs.resume import require_kind

PLAYABLE_SHAPE: Shape = {
    "config": {"env": MAPPING, "model": MAPPING},
    "spec": SPEC_SHAPE,
    "learners": [{"model": {str: ARRAY}, "version": int}],
    "population?": {"best": int},
}
"""What a policy needs to play; the policies that are shipped have no more."""

STATE_SHAPE: Shape = {
    "format": int,
    "config": {"run": {"seed": int}, "env": MAPPING, "sampling": MAPPING, "learning": {"recurrence": ANY}},
    "iteration": int,
    "seconds": float,
    "dropped_segments": int,
    "learners": [MAPPING],
    "policies": [MAPPING],
    "sampler": MAPPING,
    "ranks?": [INTS],
    "reporter": MAPPING,
    "recorder?": {str: int},
    "cluster?": {str: int},
    "observers?": [{"name": str, "saved": MAPPING}],
}
"""What going on needs besides."""


def require_online(loaded: Loaded) -> Loaded:
    """The checkpoint itself; CheckpointError unless an online run has written it."""
    require_kind(loaded, "online", PLAYABLE_SHAPE)
    saved_spec(loaded.path, loaded.state["spec"])
    return loaded


def playable_part(loaded: Loaded) -> dict[str, Any]:
    """The same, of a checkpoint that was read."""
    state = require_online(loaded).state
    learners = [{name: learner[name] for name in ("model", "version")} for learner in state["learners"]]
    kept = {name: state[name] for name in ("format", "kind", "config", "spec") if name in state}
    if "population" in state:
        kept["population"] = {"best": state["population"]["best"]}
    return {"frames": loaded.step, "metric": loaded.metric, "state": {**kept, "learners": learners}}
