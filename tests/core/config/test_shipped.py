from __future__ import annotations

from pathlib import Path

import pytest

from rollmill.core.config.load import load_config
from rollmill.core.config.shipped import FOLDER, find_file, shipped_names
from rollmill.core.errors import ConfigError
from rollmill.runs.settings.train import TrainConfig


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("name", ["doom_basic", "doom_basic.yaml"])
def test_shipped_settings_are_found_by_name(name: str) -> None:
    assert load_config(TrainConfig, [Path(name)], []) == load_config(TrainConfig, [FOLDER / "doom_basic.yaml"], [])


def test_a_file_of_ones_own_goes_first() -> None:
    Path("doom_basic").write_text("env: CartPole-v1")
    assert load_config(TrainConfig, [Path("doom_basic")], []).env.id == "CartPole-v1"


def test_a_path_is_never_a_name() -> None:
    assert find_file(Path("here/doom_basic")) == Path("here/doom_basic")
    with pytest.raises(ConfigError, match="the folder here does not exist"):
        load_config(TrainConfig, [Path("here/doom_basic")], [])


def test_a_typing_error_is_answered_with_the_name() -> None:
    with pytest.raises(ConfigError, match=r"doom_basik: no such file; did you mean 'doom_basic'"):
        load_config(TrainConfig, [Path("doom_basik")], [])


def test_the_names_are_those_of_the_files() -> None:
    assert {"cartpole", "doom_basic", "offline_dt"} <= set(shipped_names())
