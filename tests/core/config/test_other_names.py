"""The field's words for our settings."""

import pytest

from rollmill.core.config.load import load_config
from rollmill.core.config.other_names import OTHER_NAMES, keys_called
from rollmill.core.config.schema import describe
from rollmill.core.errors import ConfigError
from rollmill.runs.settings.offline import OfflineConfig
from rollmill.runs.settings.train import TrainConfig

KNOWN = {"env", *(key.key for cls in (TrainConfig, OfflineConfig) for key in describe(cls))}


def test_every_name_leads_to_a_key() -> None:
    ends = {end for ends in OTHER_NAMES.values() for end in ends}
    assert {end for end in ends if not any(key == end or key.endswith(f".{end}") for key in KNOWN)} == set()


def test_no_name_is_one_of_ours() -> None:
    assert {name for name in OTHER_NAMES if any(key.rpartition(".")[2] == name for key in KNOWN)} == set()


def test_only_keys_that_a_command_has() -> None:
    assert keys_called("LR", ["learning.learning_rate", "learning.lr_end"]) == ["learning.learning_rate"]
    assert keys_called("total-timesteps", ["fit.steps", "run.seed"]) == ["fit.steps"]
    assert keys_called("xyzzy", ["fit.steps"]) == []


@pytest.mark.parametrize(
    ("cls", "word", "key"),
    [
        (TrainConfig, "lr=1e-3", "learning.learning_rate"),
        (TrainConfig, "learning.lr=1e-3", "learning.learning_rate"),
        (TrainConfig, "ppo.ent_coef=0.1", "learning.entropy_coefficient"),
        (TrainConfig, "n_envs=8", "sampling.envs_per_worker"),
        (TrainConfig, "total_timesteps=1000", "stop.frames"),
        (OfflineConfig, "total_timesteps=1000", "fit.steps"),
        (OfflineConfig, "lr=1e-3", "fit.learning_rate"),
    ],
)
def test_an_unknown_key_is_answered_with_ours(cls: type, word: str, key: str) -> None:
    with pytest.raises(ConfigError, match=f"unknown key .*; did you mean '{key}'"):
        load_config(cls, [], [word])
