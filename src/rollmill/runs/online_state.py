"""What a checkpoint of an online run holds, as far as the run itself knows; its parts declare their own shapes."""

from __future__ import annotations

from rollmill.core.fields import SPEC_SHAPE
from rollmill.core.shapes import ANY, ARRAY, INTS, MAPPING, Shape

CHECKPOINT_FORMAT = 1

PLAYABLE_SHAPE: Shape = {
    "config": {"env": MAPPING, "model": MAPPING},
    "spec": SPEC_SHAPE,
    "learners": [{"model": {str: ARRAY}, "version": int}],
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
}
"""What going on needs besides."""
