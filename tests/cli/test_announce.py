"""What a run says before it starts."""

from dataclasses import field, replace
from pathlib import Path
from typing import Any

import pytest
from running import SERIAL, Call, command_words

from rollmill.cli.announce import MOST_LINES, WIDTH, announcement, page_of
from rollmill.core.config.load import load_config
from rollmill.core.config.schema import settings
from rollmill.envs.settings import EnvSettings
from rollmill.reports.html.document import document, write_page
from rollmill.runs.settings.sizing import Machine, resolve
from rollmill.runs.settings.train import TrainConfig

FOLDER = Path("runs/x")


def test_what_differs_from_the_defaults_and_what_was_decided() -> None:
    words = ["env=CartPole-v1", "stop.frames=1000", "model.mlp=[64, 64]", "report.page=false", "env.args={a: 1}"]
    asked = load_config(TrainConfig, [], words)
    text = announcement(asked, resolve(asked, Machine(4)), FOLDER)
    assert text.splitlines() == [
        "settings  env.id=CartPole-v1 env.args.a=1 model.mlp=[64,64] stop.frames=1000 report.page=false",
        "decided   sampling.workers=4 sampling.envs_per_worker=16 sampling.groups=2 learning.threads=1",
        "          learning.batch_size=2048",
        "in full   runs/x/config.yaml",
    ]


def test_the_defaults_alone() -> None:
    asked = TrainConfig()
    assert announcement(asked, asked, FOLDER) == "settings  all at their defaults\nin full   runs/x/config.yaml"


@settings
class Wide:
    """Many settings."""

    many: dict[str, Any] = field(default_factory=dict)
    env: EnvSettings | None = None


def test_it_stays_short_whatever_there_is() -> None:
    asked = Wide(many={f"a_rather_long_name_{k}": "x" * k for k in range(100)})
    lines = announcement(asked, asked, FOLDER).splitlines()
    assert len(lines) == MOST_LINES + 1
    assert max(map(len, lines)) <= WIDTH + 20
    shown = sum(line.count("a_rather_long_name") for line in lines)
    assert lines[-2].endswith(f" ... and {100 - shown} more")


def test_a_block_that_was_switched_on_is_compared_with_its_own_defaults() -> None:
    asked = replace(Wide(), env=EnvSettings(id="toy_image"))
    assert announcement(asked, asked, FOLDER).startswith("settings  env.id=toy_image\n")


def test_the_page_of_a_run(tmp_path: Path) -> None:
    assert page_of(tmp_path, "run") is None
    (tmp_path / "report.html").write_text("somebody's own")
    written = write_page(tmp_path / "report.html", "run", document("run", "title", "body"))
    assert page_of(tmp_path, "run") == written == tmp_path / "report-run.html"


def test_a_run_announces_itself_when_nothing_can_be_refused_any_more(call: Call, tmp_path: Path) -> None:
    words = (*SERIAL, "env=toy_target", "stop.batches=2")
    done = call(*command_words(tmp_path, *words))
    assert done.out.startswith("settings  run.dir=")
    assert f"in full   {tmp_path}/x/run/config.yaml\n" in done.out
    assert done.out.endswith(f"\nreport: {tmp_path}/x/run/report.html\n")
    again = call(*command_words(tmp_path, *words))
    assert (again.code, again.out) == (2, "")
    assert again.err.count("\n") == 1
    unfit = call(*command_words(tmp_path, *words, "run.name=other", "model.encoder=convnet_simple"))
    assert (unfit.code, unfit.out) == (2, "")


def test_all_settings_without_a_run(call: Call, tmp_path: Path) -> None:
    done = call("train", "env=toy_target", "learning.gamma=0.5", "--print-config")
    assert done.code == 0
    (tmp_path / "all.yaml").write_text(done.out)
    config = load_config(TrainConfig, [tmp_path / "all.yaml"], [])
    assert config.learning.gamma == 0.5
    assert config.sampling.workers > 0  # decided for this machine
    assert not Path("runs").exists()


@pytest.mark.parametrize(
    "words",
    [
        "offline a_store --print-config",
        "world run --print-config",
        "world vae a_store --out x --print-config",
        "world dynamics a_store --out x --print-config",
        "world controller an_encoder --out x --print-config",
        "world dream an_encoder a_model --out x --print-config",
    ],
)
def test_every_verb_with_settings_prints_them(call: Call, tmp_path: Path, words: str) -> None:
    done = call(*words.split())
    assert (done.code, done.err) == (0, "")
    assert "\n" in done.out
    assert list(tmp_path.iterdir()) == []
