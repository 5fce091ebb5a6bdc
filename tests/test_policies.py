"""The trained policies that come with the package still play as well as their cards say."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
from running import load_tool

from rollmill.core.checkpoints import load_checkpoint
from rollmill.core.errors import ConfigError
from rollmill.core.fields import Array
from rollmill.runs.checkpoints.export import export_policy
from rollmill.runs.checkpoints.saved import export_checkpoint
from rollmill.runs.evaluate.options import EvalOptions
from rollmill.runs.evaluate.run import evaluate
from rollmill.runs.policies.find import TRAINED, find_checkpoints, shipped_policy
from rollmill.runs.policies.load import load_policy
from rollmill.store.episode import Episode
from rollmill.store.reader import Store

NAMES = sorted(path.stem for path in TRAINED.glob("*.ckpt"))
REQUIRED = {"cartpole", "car_racing", "crazy_climber", "doom_basic", "doom_basic_dt", "doom_health_gathering_supreme"}
REQUIRED |= {"lunar_lander", "minigrid_memory", "pendulum", "toy_memory"}
"""Kinds of policies that a user must be able to try: with and without memory, continuous, pixels, asked for returns."""
EPISODES = {"pendulum": 40, "lunar_lander": 10, "minigrid_memory": 20, "doom_basic": 20, "doom_basic_dt": 20}


def test_every_policy_has_a_card_and_all_are_small() -> None:
    assert set(NAMES) >= REQUIRED
    assert sorted(path.name for path in TRAINED.iterdir()) == sorted(
        f"{n}.{e}" for n in NAMES for e in ("ckpt", "json")
    )
    assert sum(path.stat().st_size for path in TRAINED.iterdir()) < 20_000_000
    for name in NAMES:
        text = (TRAINED / f"{name}.json").read_text()
        card = json.loads(text)
        assert card["command"] == load_tool("trained_policies").command(name)
        assert card["evaluation"].startswith(f"rollmill eval policy:{name} ")
        assert {"environment", "training_seed", "mean_return", "standard_error"} < set(card)
        assert card["licence"] == "MIT"
        assert "/tmp" not in text
        assert b"/tmp" not in (TRAINED / f"{name}.ckpt").read_bytes(), "the machine it was trained on shows"


@pytest.mark.parametrize("name", NAMES)
def test_it_reaches_the_score_of_its_card(name: str) -> None:
    card = json.loads((TRAINED / f"{name}.json").read_text())
    count = EPISODES.get(name, 5)
    asked = re.search(r"--targets (\S+)", card["evaluation"])
    targets = (float(asked[1]),) if asked else ()
    options = EvalOptions(episodes=count, workers=1, deterministic=True, seed=7, targets=targets)
    found = evaluate(f"policy:{name}", options).policy.summary()
    error = card["standard_error"] * (1 + 100 / count) ** 0.5  # of the difference: both are samples
    assert found["mean"] == pytest.approx(card["mean_return"], abs=2 * error + 1e-6)


def test_names_stand_for_policies_wherever_one_is_expected(tmp_path: Path) -> None:
    policy = load_policy("policy:cartpole", deterministic=True)
    assert policy.act([0.0, 0.0, 0.1, 0.0]).shape == ()
    assert find_checkpoints(Path("policy:cartpole")) == [TRAINED / "cartpole.ckpt"]
    pytest.importorskip("safetensors")
    assert export_policy(Path("policy:toy_memory"), "safetensors", tmp_path / "p.safetensors").nbytes > 1000
    with pytest.raises(ConfigError, match="no policy of this name comes with rollmill; did you mean 'cartpole'"):
        shipped_policy(Path("policy:cartpol"))
    with pytest.raises(ConfigError, match=f"there are {', '.join(NAMES)}"):
        load_policy("policy:xyz")


@pytest.mark.parametrize("name", ["doom_basic", "minigrid_memory"])
def test_half_the_bytes_play_nearly_the_same(name: str, tmp_path: Path) -> None:
    """Weights in float16, of which a convnet, a GRU and heads in float32 are made again."""
    whole, half = TRAINED / f"{name}.ckpt", tmp_path / "half.ckpt"
    export_checkpoint(whole, half, best=False, model=None, overwrite=False, half=True)
    assert half.stat().st_size < 0.52 * whole.stat().st_size
    saved, rounded = (load_checkpoint(path).state["learners"][0]["model"] for path in (whole, half))
    assert {key for key in saved if rounded[key].dtype != saved[key].dtype} == {key for key in saved if "weight" in key}
    played = tmp_path / "played"
    evaluate(whole, EvalOptions(episodes=10, workers=1, deterministic=True, seed=7, record=True, record_dir=played))
    store = Store(played)
    agree = [same_actions(half, store.episode(i)) for i in range(len(store))]
    assert np.mean(np.concatenate(agree)) > 0.97


def same_actions(path: Path, episode: Episode) -> Array:
    """At which steps of an episode a policy would have done the same."""
    policy = load_policy(path, deterministic=True)
    steps = zip(*(rows[:-1] for rows in episode.obs.values()))
    return np.array([policy.act(dict(zip(episode.obs, step))) for step in steps]) == episode.actions
