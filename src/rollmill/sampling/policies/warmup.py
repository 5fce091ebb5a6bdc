"""A policy that lets another one act until it has learnt something."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from rollmill.core.protocols import ActRequest, Policy, PolicyOutput
from rollmill.core.shapes import MAPPING, check_shape
from rollmill.core.slots import Arena


class WarmupPolicy(Policy):
    """``first`` acts as long as the weights of ``then`` are those it began with (version 0), ``then`` ever after."""

    def __init__(self, first: Policy, then: Policy) -> None:
        self._first, self._then = first, then
        self.state_size = then.state_size

    @property
    def version(self) -> int:
        """The version of ``then``: who acts at version 0 makes no difference to a learner."""
        return max(0, self._then.version)

    def attach(self, arena: Arena) -> None:
        self._first.attach(arena)
        self._then.attach(arena)

    def detach(self) -> None:
        self._first.detach()
        self._then.detach()

    def act(self, request: ActRequest) -> PolicyOutput:
        if self._then.refresh():
            return self._then.act(request)
        if not self.state_size:
            return self._first.act(request)
        # It sees what happens, too: its memory must know when it takes over.
        return replace(self._first.act(request), state=self._then.act(request).state)

    def refresh(self) -> int:
        return self._then.refresh()

    def state(self) -> dict[str, Any]:
        return {"first": self._first.state(), "then": self._then.state()}

    def load_state(self, state: Mapping[str, Any]) -> None:
        check_shape(state, {"first": MAPPING, "then": MAPPING})
        self._first.load_state(state["first"])
        self._then.load_state(state["then"])
