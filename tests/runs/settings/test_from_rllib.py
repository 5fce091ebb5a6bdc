"""RLlib's YAML files in our words: what is translated, what is left out and why, and that the rest trains."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from running import ROOT

from rollmill.cli.main import main
from rollmill.core.config.load import load_config
from rollmill.core.config.schema import describe
from rollmill.core.errors import ConfigError
from rollmill.runs.settings.from_rllib import ALGORITHMS, BLOCKS, CHANGED, NAMES, WITHOUT, problem_of, translate
from rollmill.runs.settings.train import TrainConfig

EXAMPLE = """
cartpole-ppo:
  env: CartPole-v1
  run: PPO
  stop: {timesteps_total: 200000, episode_reward_mean: 475}
  checkpoint_freq: 10
  checkpoint_at_end: true
  config:
    framework: torch
    num_env_runners: 2
    num_envs_per_env_runner: 16
    rollout_fragment_length: 32
    train_batch_size: 1024
    sgd_minibatch_size: 128
    lr: 1e-3
    gamma: {grid_search: [0.9, 0.99]}
    entropy_coeff: tune.uniform(0, 1)
    clip_rewards: true
    num_gpus: 0
    own_key: 3
    model: {fcnet_hiddens: [64, 64], vf_share_layers: false, use_lstm: true, max_seq_len: 16,
            lstm_use_prev_action: true}
"""


def translated(tmp_path: Path, text: str = EXAMPLE):
    file = tmp_path / "file.yaml"
    file.write_text(text)
    return translate(file)


def test_what_corresponds_is_translated_and_the_rest_is_listed(tmp_path: Path) -> None:
    (made,) = translated(tmp_path)
    config = load_config(TrainConfig, [], [], base=made.tree)
    assert (config.env.id, config.env.previous_action) == ("CartPole-v1", True)
    assert (config.sampling.mode, config.sampling.workers, config.sampling.envs_per_worker) == ("sync", 2, 16)
    assert (config.learning.batch_size, config.learning.minibatches) == (1024, 8)
    assert (config.learning.learning_rate, config.learning.reward_clip, config.learning.device) == (1e-3, 1.0, "cpu")
    assert (config.model.mlp, config.model.memory, config.model.separate_critic) == ((64, 64), "lstm", True)
    assert (config.stop.frames, config.stop.mean_return) == (200_000, 475)
    assert config.checkpoints.every_updates == 10
    assert set(made.left_out) == {"checkpoint_at_end", "framework", "gamma", "entropy_coeff", "own_key"}
    assert "grid" in made.left_out["gamma"]
    assert made.left_out["own_key"] == "not known here"
    assert problem_of(made) == ""


def test_sac(tmp_path: Path) -> None:
    text = """
run: SAC
env: Pendulum-v1
config:
  num_workers: 0
  train_batch_size: 256
  rollout_fragment_length: 1
  replay_buffer_config: {capacity: 10000}
  num_steps_sampled_before_learning_starts: 256
  optimization: {actor_learning_rate: 3e-4, critic_learning_rate: 3e-4}
  initial_alpha: 0.5
"""
    (made,) = translated(tmp_path, text)
    assert made.name == "file"
    assert made.settings["sac.minibatch"] == 256
    assert made.settings["sac.capacity"] == 10000
    assert made.settings["sampling.mode"] == "serial"
    assert made.settings["model.action_distribution"] == "tanh_gaussian"
    assert "learning.batch_size" not in made.settings
    assert list(made.left_out) == ["optimization.critic_learning_rate"]
    assert problem_of(made) == ""


def test_numbers_that_do_not_divide_are_said(tmp_path: Path) -> None:
    text = "env: CartPole-v1\nconfig: {train_batch_size: 1000, minibatch_size: 300, model: {max_seq_len: 20}}\n"
    (made,) = translated(tmp_path, text)
    assert made.settings["learning.minibatches"] == 3
    assert "none of 300 rows exactly" in made.left_out["minibatch_size"]
    assert made.left_out["model.max_seq_len"] == "there is no memory (use_lstm)"


def test_what_train_would_refuse_is_said(tmp_path: Path) -> None:
    (made,) = translated(tmp_path, "env: my_registered_env\nrun: PPO\n")
    assert "my_registered_env" in problem_of(made)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "is empty"),
        ("a: 1\n", "a is no experiment of RLlib"),
        ("a: {env: CartPole-v1, run: DQN}\n", "DQN is not there; PPO, APPO, IMPALA, SAC"),
    ],
)
def test_other_files_are_refused(tmp_path: Path, text: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(reason)):
        translated(tmp_path, text)


def test_every_name_of_ours_exists() -> None:
    known = {key.key for key in describe(TrainConfig)} | {"env.args", "model.custom_args"}
    written = {*NAMES.values(), *(key for settings in ALGORITHMS.values() for key in settings)}
    assert written <= known, written - known


def test_the_page_names_every_key() -> None:
    page = (ROOT / "docs" / "from_rllib.md").read_text()
    for key in (*NAMES, *CHANGED, *WITHOUT):
        plain = key.removeprefix("stop.")
        for block in BLOCKS:
            plain = plain.removeprefix(f"{block}.") if block != "optimization" else plain
        assert re.search(rf"[`. ]{re.escape(plain)}`", page), key


def test_from_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, out = tmp_path / "theirs.yaml", tmp_path / "ours.yaml"
    file.write_text(EXAMPLE + EXAMPLE.replace("cartpole-ppo", "other"))
    assert main(["config", "from-rllib", str(file)]) == 2
    assert "choose one with --name" in capsys.readouterr().err
    assert main(["config", "from-rllib", str(file), "--name", "other", "--out", str(out)]) == 0
    said = capsys.readouterr()
    assert "left out: framework: PyTorch only" in said.err
    assert load_config(TrainConfig, [out], []).run.name == "other"
    assert main(["config", "from-rllib", str(file), "--name", "other", "--out", str(out)]) == 2
    assert "exists already" in capsys.readouterr().err
    assert main(["config", "from-rllib", str(file), "--name", "other", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["settings"]["learning.batch_size"] == 1024
