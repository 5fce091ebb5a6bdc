"""Loading, asking and evaluating policies from Python, and what else is done with them."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from own_envs import corridor_class
from running import ROOT

import rollmill
from rollmill.core.errors import ConfigError, UntrustedCodeError

TARGET = ROOT / "tests" / "written_by_0_1" / "online" / "target"
SMALL = {"mode": "serial", "workers": 1, "envs_per_worker": 4, "groups": 2, "rollout": 8}


def right(spec: Any) -> Any:
    return lambda obs: 1


@pytest.fixture(scope="module")
def corridor() -> Any:
    return corridor_class()


@pytest.fixture(scope="module")
def run(corridor: Any, tmp_path_factory: pytest.TempPathFactory) -> rollmill.Run:
    """A run whose environment no module has."""
    return rollmill.train(
        {"id": corridor, "max_episode_steps": 20},
        frames=2000,
        progress=False,
        run={"dir": str(tmp_path_factory.mktemp("runs"))},
        sampling=SMALL,
        learning={"batch_size": 64, "learning_rate": 3e-3},
        report={"tensorboard": False, "page": False},
        checkpoints={"min_free_mb": 1},
    )


def test_asking_a_policy_step_by_step() -> None:
    agent = rollmill.load_policy(TARGET, deterministic=True)
    one = agent.act(np.zeros(agent.spec.observation[0].shape, np.float32))
    assert one.shape == ()
    agent.reset()
    assert agent.frames == rollmill.Run(TARGET).frames


def test_an_own_run_is_trusted_and_others_are_named(run: rollmill.Run, corridor: Any) -> None:
    result = rollmill.evaluate(run, episodes=5, workers=1, envs=4)
    assert result.mean_return > 0.5
    assert len(result.returns) == 5
    assert repr(result) == f"<Corridor-s0: return {result.mean_return:.4g} +- 0 over 5 episodes>" or "+-" in repr(
        result
    )
    assert rollmill.evaluate(run.policy(), episodes=5, workers=1, envs=4).returns == result.returns
    stranger = rollmill.Run(run.path)
    with pytest.raises(UntrustedCodeError, match=r"env\.id=__main__:Corridor"):
        stranger.policy()
    again = rollmill.evaluate(
        stranger.policy(env={"id": corridor, "max_episode_steps": 20}), episodes=5, workers=1, envs=4
    )
    assert again.returns == result.returns


def test_random_play_beside_it_and_a_function_of_ones_own(corridor: Any) -> None:
    result = rollmill.evaluate(right, env=corridor, episodes=4, random=True, workers=1)
    assert result.returns == [1.0] * 4
    assert result.random is not None
    assert "random play" in repr(result)
    other = rollmill.evaluate(rollmill.load_policy("random"), env=lambda: corridor(2), episodes=4, workers=1)
    assert other.policy.lengths[0] >= 2


def test_an_evaluation_leaves_torch_as_it_was(run: rollmill.Run) -> None:
    torch.set_num_threads(2)
    random = torch.random.get_rng_state()
    rollmill.evaluate(run, episodes=2, workers=1)
    assert torch.get_num_threads() == 2
    assert torch.equal(torch.random.get_rng_state(), random)


def test_segments_and_episodes_of_a_trained_policy(run: rollmill.Run, tmp_path: Path) -> None:
    segments = list(itertools.islice(rollmill.sample(policy=run, sampling=SMALL), 20))
    assert np.mean([segment.actions[segment.valid].mean() for segment in segments]) > 0.6, "it has learnt to go right"
    assert all(np.isfinite(segment.log_probs).all() and segment.log_probs.min() < 0 for segment in segments)
    assert segments[0].values.std() > 0
    named = rollmill.collect(policy=run, out=tmp_path / "a", episodes=3, seed=1, sampling={"mode": "serial"})
    assert len(named) == 3
    agent = rollmill.load_policy(TARGET)
    assert len(rollmill.collect(policy=agent, out=tmp_path / "b", episodes=3, sampling={"mode": "serial"})) == 3


def test_options_of_the_command_are_options_here(tmp_path: Path) -> None:
    rollmill.evaluate(str(TARGET), episodes=3, workers=1, csv=str(tmp_path / "rows.csv"), out=tmp_path / "result.json")
    assert (tmp_path / "rows.csv").read_text().count("\n") == 4
    assert (tmp_path / "result.json").exists()
    with pytest.raises(TypeError, match="episods"):
        rollmill.evaluate(TARGET, episods=3)
    with pytest.raises(ConfigError, match="which environment"):
        rollmill.evaluate("random", episodes=1)


def test_a_match_of_functions() -> None:
    def bets(spec: Any) -> Any:
        return lambda obs: int(np.flatnonzero(obs["action_mask"])[-1])

    def passes(spec: Any) -> Any:
        return lambda obs: 0

    found = rollmill.match(bets, passes, env="kuhn_poker", games=10, workers=1)
    assert found.games == 10
    assert "bets" in found.best
    assert repr(found).startswith("<match of 2 in kuhn_poker: 10 games, best is ")
    careful = rollmill.load_policy(passes, env="kuhn_poker")
    again = rollmill.match(careful, "random", games=2, workers=1)
    assert again.env == "kuhn_poker"


def test_a_loaded_policy_collects_as_it_was_loaded(tmp_path: Path) -> None:
    """Its environment, its settings and whether it samples; the store calls it what it is."""
    offline, serial = ROOT / "tests" / "written_by_0_1" / "offline" / "dt", {"mode": "serial"}
    asked = rollmill.load_policy(offline, target=3.0, last=True, overrides={"env.max_episode_steps": 4})
    store = rollmill.collect(policy=asked, out=tmp_path / "asked", episodes=2, seed=0, sampling=serial)
    assert set(store.table["policy"].tolist()) == {f"{asked.name}, asked for 3"}
    assert set(store.table.length.tolist()) == {4}
    told = rollmill.collect(policy=asked, out=tmp_path / "told", episodes=2, seed=0, sampling=serial, target=5.0)
    assert set(told.table["policy"].tolist()) == {f"{asked.name}, asked for 5"}
    word = rollmill.collect(policy=offline, out=tmp_path / "word", episodes=2, seed=0, sampling=serial, target=5.0)
    assert set(word.table["policy"].tolist()) == set(told.table["policy"].tolist())
    for words, why in (({"best": True}, "best: the policy is loaded"), ({"model": {"mlp": [8]}}, r"model\.mlp")):
        with pytest.raises(ConfigError, match=why):
            rollmill.collect(policy=asked, out=tmp_path / "x", episodes=2, **words)
    with pytest.raises(ConfigError, match="cannot be asked for a return"):
        rollmill.collect(policy=rollmill.load_policy(TARGET), out=tmp_path / "x", episodes=2, target=1.0)


def test_info_and_a_budget_are_options_of_a_collection(tmp_path: Path) -> None:
    words = {"out": tmp_path / "s", "until": 5, "seed": 0, "sampling": {"mode": "serial"}}
    store = rollmill.collect("rooms_env:Rooms", **words, save_info=["lives"])
    assert [name for name in store.schema.names if name.startswith("info:")] == ["info:lives"]
    whole = rollmill.collect("rooms_env:Rooms", **{**words, "out": tmp_path / "t"}, save_info=True)
    assert len([name for name in whole.schema.names if name.startswith("info:")]) == 3
    assert len(rollmill.collect("toy_target", **{**words, "out": tmp_path / "u"}, budget_gb=1e-9)) < 5
