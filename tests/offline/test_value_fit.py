"""IQL and TD3+BC: their losses by hand, their fit on a task with a known answer."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from offlining import HAND_SPEC, write_store

from rollmill.core.errors import ConfigError, NonFiniteError
from rollmill.core.fields import ActionSpec, EnvSpec, Field
from rollmill.models.heads.numbers import BoundedGaussianHead, GaussianHead
from rollmill.offline.actor_critic import Iql, Steps, Td3Bc, ValuePolicy, build_value_policy, expectile_loss
from rollmill.offline.data import fit_normaliser, select
from rollmill.offline.settings import DataSettings, FitSettings, SequenceSettings, ValueSettings
from rollmill.offline.value_fit import IN_MEMORY, TransitionLoader, ValueFitter
from rollmill.optim import device
from rollmill.optim.device import Precision
from rollmill.store.episode import Episode, EpisodeInfo
from rollmill.store.format.schema import StoreSchema
from rollmill.store.reader import Store

ACTION = ActionSpec("continuous", shape=(1,), low=(-2.0,), high=(2.0,))
SPEC = EnvSpec("bandit", (Field("obs", "float32", (1,)),), ACTION)
MODEL = SequenceSettings(mlp=(32, 32))
ALGORITHMS = ("iql", "td3bc")


@pytest.fixture(autouse=True, scope="module")
def _one_thread() -> Iterator[None]:
    """As a run has it: threads of an operator wait for each other on a busy machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def bandit(path: Path, episodes: int = 60, length: int = 10) -> Store:
    """One number x from -1 to 1 is shown; actions are drawn from -2 to 2, and the best one is x: reward -(a - x)²."""
    rng = np.random.default_rng(0)
    made = []
    for number in range(episodes):
        seen = rng.uniform(-1, 1, (length + 1, 1)).astype(np.float32)
        action = rng.uniform(-2, 2, (length, 1)).astype(np.float32)
        reward = -np.square(action - seen[:-1])[:, 0]
        columns = {"obs:obs": seen, "action": action, "reward": reward}
        columns |= {"version": np.zeros(length, np.int64), "global_step": np.arange(length)}
        made.append(Episode(columns, EpisodeInfo(uid=number), terminated=True))
    return write_store(path, StoreSchema.for_env(SPEC), made)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    return bandit(tmp_path_factory.mktemp("values") / "store")


def fitter_for(store: Store, algorithm: str, steps: int = 400, **values: float) -> ValueFitter:
    chosen = select(store, DataSettings(validation=0.1), "iql", 0)
    torch.manual_seed(1)
    model = build_value_policy(algorithm, SPEC, MODEL, ValueSettings(**{"gamma": 0.5, **values}))  # type: ignore[arg-type]
    fit_normaliser(model.normaliser, store, chosen.training, 0)
    settings = FitSettings(
        steps=steps, batch_size=128, learning_rate=3e-3, warmup_steps=0, end_rate=1.0, max_grad_norm=0
    )
    return ValueFitter(model, TransitionLoader(store, chosen, SPEC, 128, 2), settings, 3)


def actions(model: ValuePolicy, seen: list[float]) -> list[float]:
    with torch.no_grad():
        output = model.evaluate(model.policy.eval(), {"obs": torch.tensor(seen)[:, None]})
        found: list[float] = model.policy.head.sample(output.params, deterministic=True)[:, 0].tolist()
    return found


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_the_best_action_is_found_although_the_data_act_at_random(store: Store, algorithm: str) -> None:
    fitter = fitter_for(store, algorithm, alpha=20.0)
    for _ in range(400):
        fitter.train_step()
    assert actions(fitter.model, [-0.8, 0.0, 0.8]) == pytest.approx([-0.8, 0.0, 0.8], abs=0.35)
    metrics = fitter.metrics()
    assert {"learn/loss", "learn/critic_loss", "learn/policy_loss", "learn/q_mean"} <= metrics.keys()
    held_out = fitter.validate()
    assert held_out["validation/error"] > 0.2, "what was done was random: a good policy is far from it"
    assert "validation/loss" not in held_out, "no figure here says which weights play best"
    fitter.close()


@pytest.mark.parametrize(("algorithm", "word"), [("iql", "temperature"), ("td3bc", "alpha")])
def test_without_their_pull_they_are_behaviour_cloning(store: Store, algorithm: str, word: str) -> None:
    fitter = fitter_for(store, algorithm, **{word: 0.0})
    for _ in range(300):
        fitter.train_step()
    assert actions(fitter.model, [-0.8, 0.8]) == pytest.approx([0.0, 0.0], abs=0.35), "the mean of what was done"
    fitter.close()


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_resumed_fit_is_the_same_bit_for_bit(store: Store, algorithm: str) -> None:
    straight = fitter_for(store, algorithm)
    for _ in range(7):
        straight.train_step()
    halfway = fitter_for(store, algorithm)
    for _ in range(3):
        halfway.train_step()
    saved = halfway.state()  # the random numbers of the process among it, which a new fit sets anew
    resumed = fitter_for(store, algorithm)
    resumed.load_state(saved)
    for _ in range(4):
        resumed.train_step()
    for (name, one), two in zip(straight.model.state_dict().items(), resumed.model.state_dict().values()):
        assert torch.equal(one, two), name


def test_transitions_are_those_of_the_store_from_memory_or_not(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = select(store, DataSettings(validation=0.0), "iql", 0)
    kept = next(iter(TransitionLoader(store, chosen, SPEC, 64, 2)))
    monkeypatch.setattr("rollmill.offline.value_fit.IN_MEMORY", 0)
    read = next(iter(TransitionLoader(store, chosen, SPEC, 64, 2)))
    assert IN_MEMORY > 0
    for name in ("action", "reward", "terminated"):
        assert torch.equal(getattr(kept, name), getattr(read, name))
    assert torch.equal(kept.next_obs["obs"], read.next_obs["obs"])
    torch.testing.assert_close(kept.reward, -(kept.action - kept.obs["obs"]).square()[:, 0])
    assert 0 < kept.terminated.sum() < 64 / 2, "one step of ten ends its episode"


def test_a_nan_names_its_place(tmp_path: Path) -> None:
    fitter = fitter_for(bandit(tmp_path / "store"), "iql")
    with torch.no_grad():
        next(iter(fitter.model.critics.parameters())).fill_(torch.nan)
    with pytest.raises(NonFiniteError, match="optimizer step 1: first seen in"):
        fitter.train_step()


# -- by hand ---------------------------------------------------------------------------------------------------


def some_steps(model: ValuePolicy) -> Steps:
    generator = torch.Generator().manual_seed(0)
    obs, led_to = (torch.randn(8, 1, generator=generator) for _ in range(2))
    action = torch.rand(8, 1, generator=generator) * 4 - 2
    ended = torch.tensor([True] + [False] * 7)
    return Steps({"obs": obs}, action, torch.randn(8, generator=generator), ended, {"obs": led_to})


def test_expectiles_by_hand() -> None:
    assert expectile_loss(torch.tensor([2.0, -2.0]), 0.7).tolist() == pytest.approx([2.8, 1.2])
    draws = torch.randn(20_000, generator=torch.Generator().manual_seed(0))
    grid = torch.linspace(-1, 1, 201)
    losses = torch.stack([expectile_loss(draws - value, 0.5).mean() for value in grid])
    assert float(grid[losses.argmin()]) == pytest.approx(0.0, abs=0.02), "one half is the mean"
    losses = torch.stack([expectile_loss(draws - value, 0.9).mean() for value in grid])
    assert float(grid[losses.argmin()]) == pytest.approx(0.861, abs=0.03), "the 0.9 expectile of a standard normal"


def test_iql_by_hand() -> None:
    torch.manual_seed(0)
    model = Iql(SPEC, MODEL, ValueSettings(gamma=0.9, expectile=0.8, temperature=2.0, weight_limit=1.5))
    steps = some_steps(model)
    loss, parts = model.loss(steps, 0)
    with torch.no_grad():
        v, v_next = (model.evaluate(model.policy, part).value for part in (steps.obs, steps.next_obs))
        q = model.critics(steps.obs, steps.action / 2)
        target = steps.reward + 0.9 * torch.where(steps.terminated, 0.0, v_next)
        advantage = model.target_critics(steps.obs, steps.action / 2).amin(0) - v
        weight = (2 * advantage).exp().clamp(max=1.5)
        params = model.evaluate(model.policy, steps.obs).params
        log_prob = model.policy.head.log_prob(params, steps.action)
    expected = ((q[0] - target).square() + (q[1] - target).square()).mean()
    expected += (torch.where(advantage > 0, 0.8, 0.2) * advantage.square()).mean() - (weight * log_prob).mean()
    torch.testing.assert_close(loss.detach(), expected)
    assert float(parts["weight_mean"]) == pytest.approx(float(weight.mean()))


def test_each_part_of_iql_learns_from_its_own_loss_alone() -> None:
    model = Iql(SPEC, MODEL, ValueSettings())
    steps = some_steps(model)
    _, parts = model.loss(steps, 0)
    groups = {
        "critic_loss": set(model.critics.parameters()),
        "value_loss": {*model.policy.critic_trunk.parameters(), *model.policy.value_head.parameters()},  # type: ignore[union-attr]
        "policy_loss": {*model.policy.trunk.parameters(), *model.policy.head.parameters()},
    }
    learnt = [p for p in model.parameters() if p.requires_grad]
    for name, own in groups.items():
        found = torch.autograd.grad(parts[name], learnt, retain_graph=True, allow_unused=True)
        assert {p for p, g in zip(learnt, found) if g is not None} == own, name


def test_the_policy_of_td3bc_learns_in_every_second_step_and_changes_no_critic() -> None:
    model = Td3Bc(SPEC, MODEL, ValueSettings())
    steps = some_steps(model)
    critics = set(model.critics.parameters())
    policy = {*model.policy.trunk.parameters()}
    learnt = [*critics, *policy]
    first, second = (model.loss(steps, update)[0] for update in (0, 1))
    found = torch.autograd.grad(second, learnt, allow_unused=True)
    assert {p for p, g in zip(learnt, found) if g is not None} == critics
    both = torch.autograd.grad(first, list(critics))
    alone = torch.autograd.grad(model.critic_loss(steps, model.target(steps).detach())[0], list(critics))
    assert all(a.shape == b.shape for a, b in zip(both, alone))
    slow = [p.clone() for p in model.target_policy.parameters()]
    with torch.no_grad():
        for p in model.policy.parameters():
            p.add_(1.0)
    model.follow(1)
    assert all(torch.equal(a, b) for a, b in zip(slow, model.target_policy.parameters()))
    model.follow(2)
    for before, now in zip(slow, model.target_policy.parameters()):
        torch.testing.assert_close(now, before + 0.005)


def test_the_policy_of_iql_keeps_its_mean_within_bounds_that_there_are() -> None:
    assert type(Iql(SPEC, MODEL, ValueSettings()).policy.head) is BoundedGaussianHead
    free = replace(SPEC, action=replace(ACTION, low=(-math.inf,), high=(math.inf,)))
    assert type(Iql(free, MODEL, ValueSettings()).policy.head) is GaussianHead
    with pytest.raises(ConfigError, match="needs actions with finite bounds"):
        Td3Bc(free, MODEL, ValueSettings())


@pytest.mark.parametrize(("wished", "reduced"), [("auto", False), ("bfloat16", True)])
def test_values_are_computed_in_float32_unless_asked_otherwise(
    store: Store, monkeypatch: pytest.MonkeyPatch, wished: Precision, reduced: bool
) -> None:
    monkeypatch.setattr(device, "has_fast_bfloat16", lambda: True)
    chosen = select(store, DataSettings(validation=0.1), "iql", 0)
    loader = TransitionLoader(store, chosen, SPEC, 8, 0)
    fitter = ValueFitter(Iql(SPEC, MODEL, ValueSettings()), loader, FitSettings(precision=wished), 0)
    with fitter.precision():
        assert torch.is_autocast_enabled("cpu") == reduced


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_first_weights_are_small(algorithm: str) -> None:
    """Those of PyTorch's layers are evenly spread below the root of 1 / inputs."""
    model = build_value_policy(algorithm, SPEC, MODEL, ValueSettings())
    layers = [layer for layer in model.modules() if isinstance(layer, torch.nn.Linear)]
    assert len(layers) > 8
    for layer in layers:
        assert float(layer.weight.detach().abs().max()) <= layer.in_features**-0.5


def test_other_actions_are_refused() -> None:
    with pytest.raises(ConfigError, match="continuous actions; hand has discrete ones"):
        build_value_policy("iql", HAND_SPEC, MODEL, ValueSettings())


@pytest.mark.parametrize(
    "words", [{"gamma": 1.0}, {"expectile": 1.0}, {"policy_every": 0}, {"alpha": -1.0}, {"target_rate": 0.0}]
)
def test_settings_that_mean_nothing_are_refused(words: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=r"must|lies"):
        ValueSettings(**words)  # type: ignore[arg-type]
