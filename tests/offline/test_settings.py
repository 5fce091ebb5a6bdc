import pytest

from rollmill.core.config.load import load_config
from rollmill.core.errors import ConfigError
from rollmill.runs.settings.offline import OfflineConfig, check_offline


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("evaluation.targets=[1, .nan]", "a finite number is expected"),
        ("evaluation.targets=[1, 1]", "a target is given twice"),
        ("evaluation.envs=0", "envs and final_episodes must be at least 1"),
        ("evaluation.seed=-1", "seed must not be negative"),
        ("model.size=30 model.heads=4", "size=30 cannot be shared out to heads=4"),
        ("model.context=0", "context must be at least 1"),
        ("model.dropout=1.0", "dropout must lie between"),
        ("model.mlp=[0]", "mlp must hold positive layer sizes"),
        ("data.validation=1.0", "validation must be 0"),
        ('data.filter=["top=110%"]', "top=1.1 must be above 0"),
        ("data.window=-1", "window must not be negative"),
        ("fit.steps=0", "steps must be at least 1"),
        ("fit.seconds=-1", "seconds must not be negative"),
        ("fit.learning_rate=0", "learning_rate must be positive"),
        ("report.videos=-1", "report settings must not be negative"),
        ("algorithm=ppo", "expected"),
    ],
)
def test_wrong_values_are_refused(words: str, message: str) -> None:
    parts = [words] if "[" in words else words.split()
    with pytest.raises(ConfigError, match=message):
        load_config(OfflineConfig, [], parts)


def test_what_contradicts_each_other_is_refused() -> None:
    with pytest.raises(ConfigError, match="which store"):
        check_offline(load_config(OfflineConfig, [], []))
    for words, message in (
        (["algorithm=bc", "evaluation.targets=[1]"], "cannot be asked for a return"),
        (["algorithm=td3bc", "evaluation.targets=[1]"], "algorithm=td3bc cannot be asked for a return"),
        (["value.alpha=1"], r"value\.\* is set, but algorithm=dt does not read it; iql and td3bc do"),
        (["fit.micro_batch=65"], r"micro_batch=65 must not be above fit\.batch_size=64"),
        (["env=no_such_env"], "no_such_env"),
    ):
        with pytest.raises(ConfigError, match=message):
            check_offline(load_config(OfflineConfig, [], ["store=x", *words]))


def test_a_run_is_named_after_its_store() -> None:
    config = load_config(OfflineConfig, [], ["store=a/my store", "algorithm=bc", "run.seed=3"])
    assert config.folder.parts == ("runs", "default", "bc-my-store-s3")


@pytest.mark.parametrize(("store", "name"), [("runs/x/agent/data", "dt-agent-s0"), ("/data", "dt-data-s0")])
def test_a_run_that_learns_from_a_recording_is_named_after_the_run_that_made_it(store: str, name: str) -> None:
    assert load_config(OfflineConfig, [], [f"store={store}"]).folder.name == name
