"""Names of version 0.1: saved settings are read, a user's are answered with the new name."""

from __future__ import annotations

from pathlib import Path

import pytest

from rollmill.core.config.load import load_config
from rollmill.core.config.old_names import OLD_NAMES, read_saved, renamed
from rollmill.core.config.schema import dotted_keys
from rollmill.core.errors import ConfigError
from rollmill.runs.settings.train import TrainConfig
from rollmill.runs.settings.world import VaeConfig, WorldConfig

SAVED = "learning: {lam: 0.5}\nsampling: {answer_share: 1.0}\nenv: {id: x, dials: {lam: 2.0}, args: {film: 1}}\n"


def test_no_setting_has_an_old_name() -> None:
    keys = {key.rpartition(".")[2] for cls in (TrainConfig, WorldConfig, VaeConfig) for key in dotted_keys(cls)}
    assert not keys & OLD_NAMES.keys()
    assert set(OLD_NAMES.values()) - {"failures_reset"} <= keys


@pytest.mark.parametrize("mark", ["state.json", "diary.json", "stages"])
def test_what_a_run_has_saved_is_read(tmp_path: Path, mark: str) -> None:
    saved = tmp_path / "config.yaml"
    saved.write_text(SAVED)
    (tmp_path / mark).touch()
    config = load_config(TrainConfig, [saved], [])
    assert (config.learning.gae_lambda, config.sampling.inference_batch_share) == (0.5, 1.0)
    assert config.env.args == {"film": 1}, "arguments of an environment have the names it gave them"
    assert read_saved(saved)["learning"] == {"gae_lambda": 0.5}


def test_settings_of_a_checkpoint_are_read() -> None:
    config = load_config(TrainConfig, [], [], base={"env": {"id": "x", "dials": {"level": 1.0}}})
    assert config.env.variables == {"level": 1.0}


def test_records_are_read_inside_lists() -> None:
    assert renamed({"envs": [{"dials": [1.0]}], "name": "film"}) == {"envs": [{"variables": [1.0]}], "name": "film"}


@pytest.mark.parametrize(
    ("cls", "word", "name"),
    [
        (TrainConfig, "learning.lam=0.9", "learning.gae_lambda"),
        (TrainConfig, "sampling.answer_share=1", "sampling.inference_batch_share"),
        (TrainConfig, "env.dials.level=1", "env.variables.level"),
        (VaeConfig, "pictures.validation=0.1", "images.validation"),
        (WorldConfig, "vae.pictures.validation=0.1", "vae.images.validation"),
        (WorldConfig, "film=false", "video"),
    ],
)
def test_a_user_is_told_the_new_name(tmp_path: Path, cls: type, word: str, name: str) -> None:
    with pytest.raises(ConfigError, match=f"; it is called '{name}' now"):
        load_config(cls, [], [word])


def test_a_file_of_the_user_s_is_no_saved_one(tmp_path: Path) -> None:
    own = tmp_path / "config.yaml"
    own.write_text("learning: {lam: 0.5}\n")
    with pytest.raises(ConfigError, match=r"config.yaml, line 1: unknown key 'learning.lam'; it is called"):
        load_config(TrainConfig, [own], [])
