"""The trained policies that come with the examples still play as well as their table says."""

import pytest
from running import ROOT

from rollmill.runs.evaluate.options import EvalOptions
from rollmill.runs.evaluate.run import evaluate

POLICIES = ROOT / "examples/policies"
REACHED = {"cartpole": 500.0, "memory": 1.0}


def test_every_policy_is_replayed_here() -> None:
    assert sorted(path.stem for path in POLICIES.glob("*.ckpt")) == sorted(REACHED)
    assert sum(path.stat().st_size for path in POLICIES.iterdir()) < 300_000


@pytest.mark.parametrize("name", REACHED)
def test_it_reaches_its_score(name: str) -> None:
    result = evaluate(POLICIES / f"{name}.ckpt", EvalOptions(episodes=5, workers=1, deterministic=True))
    assert result.policy.returns == [REACHED[name]] * 5
