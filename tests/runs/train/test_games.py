"""Exploitability while a policy learns, and that players who take turns learn at all."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from running import SERIAL, config_of, train_here

from rollmill.core.errors import ConfigError
from rollmill.core.fields import MASK_FIELD
from rollmill.envs.games.env import game_tree
from rollmill.envs.games.exploit import exploitability, value
from rollmill.envs.make import make_env
from rollmill.models.actor_critic import build_model
from rollmill.models.settings import ModelSettings
from rollmill.runs.train.games import policy_table
from rollmill.runs.train.run import train

OBSERVER = "observers.use=['rollmill.runs.train.games:Exploitability']"


def rows_of(folder: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def test_the_table_holds_what_the_network_does() -> None:
    config = config_of(Path("unused"), "env=leduc_poker")
    tree = game_tree("leduc_poker")
    torch.manual_seed(0)
    model = build_model(make_env(config.env).spec, ModelSettings(mlp=(16,), policy_gain=2.0))
    table = policy_table(model, tree)
    assert table.sum(axis=1) == pytest.approx(np.ones(tree.sets))
    assert not table[~tree.set_mask].any()
    generator = torch.Generator().manual_seed(1)
    counts = np.zeros_like(table)
    obs = {"obs": torch.from_numpy(tree.set_view), MASK_FIELD: torch.from_numpy(tree.set_mask.astype(np.uint8))}
    with torch.no_grad():
        params = model.step(obs, torch.ones(tree.sets, dtype=torch.bool), model.initial_state(tree.sets)).params
        for _ in range(2000):
            counts[np.arange(tree.sets), model.head.sample(params, obs[MASK_FIELD], generator).numpy()] += 1
    assert np.abs(counts / 2000 - table).max() < 0.08


def test_exploitability_is_logged_and_falls(tmp_path: Path) -> None:
    words = ("learning.entropy_coefficient=0.1", "learning.learning_rate=1e-2", "learning.gamma=1", "model.mlp=[32]")
    run = train_here(tmp_path, *SERIAL, "env=kuhn_poker", OBSERVER, "stop.batches=150", *words)[1]
    rows = rows_of(run.path)
    begun, last = rows[0]["game/exploitability"], rows[-1]["game/average_exploitability"]
    assert 0.2 < begun < 0.6
    assert last < begun - 0.05
    tree = game_tree("kuhn_poker")
    assert abs(rows[0]["game/value"] - value(tree, tree.uniform())) < 0.2
    assert rows[0]["game/exploitability"] < exploitability(tree, tree.uniform()) + 0.2


def test_the_mean_of_policies_goes_on_after_a_resume(tmp_path: Path) -> None:
    words = (*SERIAL, "env=kuhn_poker", OBSERVER, "learning.learning_rate=1e-2", "report.every_frames=64")
    whole = train_here(tmp_path / "whole", *words, "stop.batches=6")[1]
    train_here(tmp_path / "parts", *words, "stop.batches=3")
    parts = train_here(tmp_path / "parts", *words, "stop.batches=6", mode="resume")[1]
    name = "game/average_exploitability"
    one, two = rows_of(whole.path)[-1], rows_of(parts.path)[-1]
    assert one["frames"] == two["frames"]
    assert one[name] == two[name] != two["game/exploitability"]


def test_each_player_may_have_a_policy_of_its_own(tmp_path: Path) -> None:
    words = ("env=kuhn_poker", "env.policies=[0,1]", OBSERVER, "stop.batches=2", "learning.batch_size=64")
    run = train_here(tmp_path, *SERIAL, *words)[1]
    assert "game/exploitability" in rows_of(run.path)[-1]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("env=toy_agents",), "toy_agents is not small enough; it can be kuhn_poker"),
        (("env=kuhn_poker", "model.memory=gru"), "set model.memory=none"),
        (("env=kuhn_poker", "pbt.members=2"), "not a population"),
    ],
)
def test_what_cannot_be_solved_is_refused(tmp_path: Path, words: tuple[str, ...], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        train(config_of(tmp_path, *SERIAL, *words, OBSERVER, "stop.batches=1"))


@pytest.mark.parametrize("env", ["connect_four", "openspiel:tic_tac_toe"])
def test_players_who_take_turns_are_trained(tmp_path: Path, env: str) -> None:
    if env != "connect_four":
        pytest.importorskip("pyspiel")
    run = train_here(tmp_path, *SERIAL, f"env={env}", "stop.batches=4", "learning.gamma=1")[1]
    last = rows_of(run.path)[-1]
    assert last["learn/rows"] > 0
    assert last["sample/env_faults"] == 0
