"""One policy acts until the other has learnt something."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from rollmill.core.fields import ActionSpec, EnvSpec, Field
from rollmill.sampling.policies.random import RandomPolicy
from rollmill.sampling.policies.warmup import WarmupPolicy

SPEC = EnvSpec("e", (Field("x", "float32", (1,)),), ActionSpec("continuous", shape=(2,), low=(-1, 0), high=(1, 4)))


@dataclass
class Said:
    """As much of an output as counts here."""

    by: str
    state: str


@dataclass
class Told:
    """A policy that notes what it is told; ``newest`` is the version it would find published."""

    name: str = "one"
    newest: int = 0
    version: int = -1
    state_size: int = 5
    calls: list[str] = field(default_factory=list)

    def attach(self, _arena: Any) -> None:
        self.calls.append("attach")

    def detach(self) -> None:
        self.calls.append("detach")

    def act(self, request: Any) -> Any:
        self.calls.append("act")
        return Said(self.name, f"state of {self.name} after {request}")

    def refresh(self) -> int:
        self.version = self.newest
        return self.version

    def state(self) -> dict[str, Any]:
        return {"calls": list(self.calls)}

    def load_state(self, state: Any) -> None:
        self.calls = list(state["calls"])


def test_the_first_policy_acts_until_the_other_has_a_version() -> None:
    first, then = Told("first"), Told("then")
    policy = WarmupPolicy(first, then)  # type: ignore[arg-type]
    assert policy.state_size == 5
    assert policy.version == 0, "before the first decision, too"
    policy.attach(None)  # type: ignore[arg-type]
    # The second policy has memory: it sees what happens, and its state is the one that is kept.
    acted = policy.act("a")  # type: ignore[arg-type]
    assert acted == Said("first", "state of then after a")  # type: ignore[comparison-overlap]
    assert (first.calls, then.calls) == (["attach", "act"], ["attach", "act"])
    then.newest = 1
    assert policy.act("b") == Said("then", "state of then after b")  # type: ignore[arg-type,comparison-overlap]
    assert policy.version == policy.refresh() == 1
    policy.detach()
    assert first.calls == ["attach", "act", "detach"]
    assert then.calls == ["attach", "act", "act", "detach"]


def test_both_survive_in_a_checkpoint() -> None:
    one = WarmupPolicy(Told(calls=["x"]), Told(calls=["y"]))
    first, then = Told(), Told()
    WarmupPolicy(first, then).load_state(one.state())
    assert (first.calls, then.calls) == (["x"], ["y"])


@dataclass
class Request:
    lanes: Any
    obs: Any = field(default_factory=dict)


def test_a_random_policy_goes_on_alike_from_its_state() -> None:
    one, two = RandomPolicy(SPEC, 1), RandomPolicy(SPEC, 2)
    request: Any = Request(np.arange(4))
    one.act(request)
    two.load_state(one.state())
    assert np.array_equal(one.act(request).action, two.act(request).action)
