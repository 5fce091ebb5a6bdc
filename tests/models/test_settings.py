"""Model settings: what they refuse, and that every one explains itself."""

from dataclasses import FrozenInstanceError, fields

import pytest

from rollmill.core.config.load import load_config
from rollmill.core.config.types import field_docs
from rollmill.core.errors import ConfigError
from rollmill.models.settings import ModelSettings


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"mlp": (64, 0)}, "mlp must hold positive"),
        ({"fc": (-1,)}, "fc must hold positive"),
        ({"hidden_size": 0}, "at least 1"),
        ({"memory": "gru", "memory_layers": 0}, "at least 1"),
        ({"memory_layers": 2}, "needs memory=gru"),
        ({"policy_gain": -1.0}, "must not be negative"),
        ({"value_gain": -1.0}, "must not be negative"),
        ({"initial_log_std": 3.0}, "between -5 and 2"),
        ({"custom": "my_module"}, "module:Class"),
        ({"custom": ":Class"}, "module:Class"),
        ({"custom": "my_module:"}, "module:Class"),
        ({"custom_args": {"width": 3}}, "custom is not"),
    ],
)
def test_contradictions_are_refused(values, words):
    with pytest.raises(ValueError, match=words):
        ModelSettings(**values)


def test_settings_are_frozen():
    with pytest.raises(FrozenInstanceError):
        ModelSettings().memory = "gru"


def test_every_setting_has_a_help_text():
    docs = field_docs(ModelSettings)
    assert {f.name for f in fields(ModelSettings) if not docs.get(f.name)} == set()


def test_settings_load_from_the_command_line():
    loaded = load_config(ModelSettings, [], ["mlp=[32, 16]", "memory=lstm", "memory_layers=2", "custom=a.py:B"])
    assert loaded == ModelSettings(mlp=(32, 16), memory="lstm", memory_layers=2, custom="a.py:B")


def test_a_contradiction_from_the_command_line_is_a_config_error():
    with pytest.raises(ConfigError, match="needs memory=gru"):
        load_config(ModelSettings, [], ["memory_layers=2"])
