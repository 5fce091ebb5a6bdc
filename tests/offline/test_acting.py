"""Acting step by step with a memory, for many lanes, against the network over whole episodes."""

import numpy as np
import pytest
import torch

from rollmill.core.fields import ActionSpec, Array, EnvSpec, Field
from rollmill.offline.acting import TargetPolicy
from rollmill.offline.model import Scales, SequencePolicy
from rollmill.offline.settings import SequenceSettings
from rollmill.offline.tokens import Inputs

SPEC = EnvSpec("x", (Field("vector", "float32", (3,)),), ActionSpec("discrete", nvec=(4,), start=(0,)))


def policy_for(mixer: str, context: int, conditioned: bool = True) -> SequencePolicy:
    torch.manual_seed(0)
    settings = SequenceSettings(
        context=context, size=16, layers=2, heads=2, mlp=(8,), dropout=0.0, mixer=mixer, filter_tokens=4
    )
    model = SequencePolicy(SPEC, settings, Scales(3.0, 4.0, 5), conditioned).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return model


@pytest.mark.parametrize("mixer", ["attention", "convolution"])
@pytest.mark.parametrize("context", [1, 3, 20])
@pytest.mark.parametrize("conditioned", [True, False])
def test_acting_equals_reading_the_whole_episode(mixer: str, context: int, conditioned: bool) -> None:
    """The values the policy conditions on, and its log-probabilities, at every step of two episodes of two lanes."""
    model = policy_for(mixer, context, conditioned)
    rng = np.random.default_rng(0)
    policy = TargetPolicy(model, [10.0, -5.0], seed=0)
    lengths = (7, 12)  # lane 1 goes on while lane 0 begins a second episode
    rows: list[dict[str, Array]] = []
    reward = np.zeros(2, np.float32)
    for turn in range(12):
        obs = rng.normal(size=(2, 3)).astype(np.float32)
        first = np.array([turn in (0, lengths[0]), turn == 0])
        answer = policy.decide({"vector": obs}, first, np.arange(2), reward)
        rows.append({"obs": obs, "first": first, "reward": reward, **vars(answer)})
        reward = rng.normal(size=2).astype(np.float32)
    for lane, spans in ((0, ((0, 7), (7, 12))), (1, ((0, 12),))):
        for begin, end in spans:
            check_episode(model, rows[begin:end], lane, (10.0, -5.0)[lane])


@pytest.mark.parametrize(("dtype", "asked"), [(None, []), (torch.bfloat16, [torch.bfloat16] * 2)])
def test_matrices_are_multiplied_as_asked(
    monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype | None, asked: list[torch.dtype]
) -> None:
    """Not in the type of the actions."""
    policy = TargetPolicy(policy_for("attention", 3), [1.0], seed=0, dtype=dtype)
    seen: list[torch.dtype] = []
    usual = torch.autocast
    monkeypatch.setattr(torch, "autocast", lambda *how, **more: seen.append(how[1]) or usual(*how, **more))
    for _ in range(2):
        policy.decide(
            {"vector": np.zeros((1, 3), np.float32)}, np.array([False]), np.arange(1), np.zeros(1, np.float32)
        )
    assert seen == asked


def check_episode(model: SequencePolicy, rows: list[dict[str, Array]], lane: int, target: float) -> None:
    rewards = [float(row["reward"][lane]) for row in rows]
    asked = target - np.concatenate([[0.0], np.cumsum(rewards[1:])])  # reward t came before row t + 1
    np.testing.assert_allclose([row["value"][lane] for row in rows], asked, rtol=1e-5, atol=1e-5)
    data = Inputs(
        {"vector": torch.as_tensor(np.stack([row["obs"][lane] for row in rows]))[None]},
        torch.as_tensor(np.stack([row["action"][lane] for row in rows]))[None],
        torch.as_tensor(asked, dtype=torch.float32)[None],
        torch.arange(len(rows))[None],
        torch.ones(1, len(rows), dtype=torch.bool),
    )
    with torch.no_grad():
        expected = -model.loss(data, model(data))[0]
    found = [row["log_prob"][lane] for row in rows]
    np.testing.assert_allclose(found, expected.numpy(), rtol=1e-3, atol=1e-3)


def test_deterministic_acting_takes_the_mode() -> None:
    model = policy_for("attention", 4)
    obs = np.random.default_rng(1).normal(size=(8, 3)).astype(np.float32)

    def actions(seed: int, deterministic: bool) -> list[int]:
        policy = TargetPolicy(model, [5.0] * 8, seed, deterministic)
        answer = policy.decide({"vector": obs}, np.ones(8, bool), np.arange(8), np.zeros(8, np.float32))
        found: list[int] = answer.action.tolist()
        return found

    assert actions(0, True) == actions(1, True)
    assert actions(0, False) == actions(0, False)
    assert any(actions(0, False) != actions(seed, False) for seed in range(1, 5))
