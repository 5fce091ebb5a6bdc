"""What a checkpoint of an online run holds, as far as the run itself knows; its parts declare their own shapes."""

from __future__ import annotations

from typing import Any

from rollmill.core.checkpoints import Loaded, saved_spec
from rollmill.core.fields import SPEC_SHAPE, EnvSpec
from rollmill.core.shapes import ANY, ARRAY, INTS, MAPPING, Shape
from rollmill.runs.resume import Shapes, refuse_other_network, require_kind
from rollmill.runs.settings.train import TrainConfig

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
    """Return the checkpoint itself. Raises CheckpointError unless an online run has written it."""
    require_kind(loaded, "online", PLAYABLE_SHAPE)
    saved_spec(loaded.path, loaded.state["spec"])
    return loaded


def require_same_network(loaded: Loaded, config: TrainConfig) -> Loaded:
    """Return the checkpoint itself, of an online run.

    Raises ConfigError if a run with these settings has another network.
    """
    state = require_online(loaded).state
    spec = EnvSpec.from_dict(state["spec"])

    def shapes(config: TrainConfig) -> Shapes:
        import torch

        from rollmill.models.actor_critic import build_model

        with torch.random.fork_rng(devices=()):  # the run that follows draws what it would have drawn
            return {name: tuple(x.shape) for name, x in build_model(spec, config.model).state_dict().items()}

    for learner in state["learners"][:1]:  # all of a run have the same
        saved = {name: tuple(x.shape) for name, x in learner["model"].items()}
        refuse_other_network(loaded, saved, config, ("model",), shapes)
    return loaded


def playable_part(loaded: Loaded) -> dict[str, Any]:
    """Return what is in a checkpoint, with nothing but what playing needs."""
    state = require_online(loaded).state
    learners = [{name: learner[name] for name in ("model", "version")} for learner in state["learners"]]
    kept = {name: state[name] for name in ("format", "kind", "config", "spec") if name in state}
    if "population" in state:
        kept["population"] = {"best": state["population"]["best"]}
    return {"frames": loaded.step, "metric": loaded.metric, "state": {**kept, "learners": learners}}
