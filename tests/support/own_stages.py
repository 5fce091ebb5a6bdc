"""A stage of a world model that does not come with rollmill."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from rollmill.runs.world.stage import Stage
from rollmill.store.reader import Store


class Count(Stage):
    """Counts the episodes with latents."""

    def inputs(self) -> Mapping[str, Any]:
        with Store(self.work.place("encode")) as store:
            return {"episodes": len(store)}

    def run(self) -> Mapping[str, Any]:
        out = self.work.place(self.name)
        out.mkdir(exist_ok=True)
        found = dict(self.inputs())
        (out / "count.json").write_text(json.dumps(found))
        self.work.tell(1.0, {"episodes": float(found["episodes"])})
        return found
