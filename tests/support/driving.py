"""A batch of envs over a slot of its own, driven step by step; used by tests of batches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from rollmill.core.fields import Array
from rollmill.core.protocols import Env
from rollmill.core.seeds import Seeds
from rollmill.core.slots import Arena, RowOut, SegmentLayout
from rollmill.envs.batch import BatchSetup, EnvBatch, Fault, NoWatch, random_actions
from rollmill.envs.make import EnvInstance, make_env
from rollmill.envs.settings import EnvSettings
from rollmill.envs.vector import VectorBatch, VectorLane

SEEDS = Seeds(5).branch("worker", 0)


class Drive:
    """Rows fill a poisoned slot from the top, as a worker fills them; ``row`` is the newest observation."""

    def __init__(
        self,
        env: EnvSettings | str,
        envs: range = range(2),
        steps: int = 40,
        make: Callable[[int], Env] | None = None,
        **setup: Any,
    ) -> None:
        settings = EnvSettings(id=env) if isinstance(env, str) else env
        self.faults: list[Fault] = []
        self.stats: list[tuple[int, int, dict[str, float]]] = []
        make = make or (lambda index: make_env(settings, EnvInstance(index=index)))
        first = VectorLane(settings) if settings.vector else make(envs.start)
        first.close()
        values: dict[str, Any] = {
            "seeds": SEEDS,
            "watch": NoWatch(),
            "first_episode": np.zeros(len(envs), np.int64),
            **setup,
        }
        self.batch = (VectorBatch if settings.vector else EnvBatch)(
            settings,
            BatchSetup(
                spec=first.spec,
                make=make,
                envs=envs,
                on_fault=self.faults.append,
                on_episode=lambda *told: self.stats.append(told),
                **values,
            ),
        )
        self.spec = self.batch.spec
        self.arena = Arena(SegmentLayout(self.spec, steps, self.batch.lanes), slots=1)
        self.arena.poison(0)
        self.rows = self.arena.segment(0)
        self.row = -1

    def out(self) -> RowOut:
        return RowOut(self.arena, 0, self.row)

    def reset(self) -> Drive:
        self.batch.reset(self.out())
        self.row = 0
        return self

    def step(self, actions: Any) -> Drive:
        self.rows["action"][self.row] = actions
        self.batch.step(self.rows["action"][self.row], self.out())
        self.row += 1
        return self

    def walk(self, steps: int, rng: np.random.Generator | None = None) -> Drive:
        """Random steps (allowed ones); without ``rng`` always the same."""
        rng = rng or np.random.default_rng(0)
        for _ in range(steps):
            obs = {name: array[0, self.row] for name, array in self.arena.obs.items()}
            self.step(random_actions(self.spec, rng, obs, self.batch.lanes))
        return self

    def column(self, name: str, lane: int = 0) -> list[Any]:
        """What stands in the finished rows of one lane; observations of the newest row, too."""
        ends = {"first": 1, "step": 1, "episode": 1}
        values: Array = self.rows[name][: self.row + (1 if name.startswith("obs:") else ends.get(name, 0)), lane]
        return values.tolist()
