"""What a run must be like for several learners to share it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from rollmill.core.config.plain import to_dict
from rollmill.core.errors import ConfigError
from rollmill.core.given import MAIN
from rollmill.distributed.ray_place import place_of

if TYPE_CHECKING:
    from rollmill.runs.settings.train import TrainConfig


def check_ranks(config: TrainConfig) -> None:
    """Refuse what ranks cannot do, before any process starts."""
    s, ranks, meet = config.sampling, config.learning.ranks, config.learning.meet
    if ranks == 1:
        if meet:
            raise ConfigError(f"learning.meet={meet} is where several ranks meet: set learning.ranks, too")
        return
    if s.mode == "serial":
        raise ConfigError(
            f"learning.ranks={ranks}: serial mode is one process, which repeats bit for bit; "
            "use sampling.mode=sync or async"
        )
    if s.workers % ranks:
        raise ConfigError(
            f"sampling.workers={s.workers} cannot be shared out evenly to learning.ranks={ranks}; "
            f"near: {max(1, s.workers // ranks) * ranks}"
        )
    if meet:
        _check_machines(config)


def _check_machines(config: TrainConfig) -> None:
    """Several machines know of each other what is in the settings, and no more."""
    words, levels = f"learning.meet={config.learning.meet}", config.env.levels
    if place_of(config.learning.meet, "learning.meet").host in ("0.0.0.0", "::"):
        raise ConfigError(f"{words}: give one address of this machine, which the others can reach")
    if levels.on and levels.order == "once":
        raise ConfigError(
            f"{words}: machines cannot tell each other which levels were drawn; use another env.levels.draw"
        )
    if f'"{MAIN}:' in json.dumps(to_dict(config)):
        raise ConfigError(
            f"{words}: code of a notebook cell or a script ({MAIN}:...) is not sent to other machines; put it into a "
            "file that all of them have (path/to/file.py:Name)"
        )
