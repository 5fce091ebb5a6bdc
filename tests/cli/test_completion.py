"""Completion in the shells themselves, and schemas for editors."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from installing import require
from running import ROOT, Call

from rollmill.cli.tree import VERBS
from rollmill.core.config.shipped import FOLDER, shipped_names
from rollmill.core.config.yaml import parse_mapping, read_mapping
from rollmill.envs.make import NAMED

ASK = {
    "bash": 'source ./script; COMP_LINE=$1; COMP_POINT=${#1}; _rollmill; printf "%s\\n" "${COMPREPLY[@]}"',
    "zsh": 'source ./script; emulate sh; COMP_LINE=$1; COMP_POINT=${#1}; _rollmill; printf "%s\\n" "${COMPREPLY[@]}"',
}


@pytest.fixture(params=ASK)
def shell(request: pytest.FixtureRequest, call: Call) -> str:
    """A shell that has read its script."""
    name = str(request.param)
    require(name, name)
    Path("script").write_text(call("completion", name).out)
    return name


def complete(shell: str, line: str) -> list[str]:
    """What it offers; without a PATH, as it must be fast and starts no program at all."""
    words = [shutil.which(shell) or shell, *(["--norc"] if shell == "bash" else ["-f"]), "-c", ASK[shell], shell, line]
    done = subprocess.run(words, capture_output=True, text=True, check=True, env={"PATH": "", "HOME": str(Path.cwd())})
    assert done.stderr == ""
    return [found for found in done.stdout.split("\n") if found]


def test_verbs_options_keys_and_files(shell: str) -> None:
    assert complete(shell, "rollmill ") == [f"{verb} " for verb in [*VERBS, "help"]]
    assert complete(shell, "rollmill tr") == ["train "]
    assert complete(shell, "rollmill data ver") == ["verify "]
    assert complete(shell, "/usr/bin/rollmill data repair x --in") == ["--in-place "]
    assert complete(shell, "rollmill train --re") == ["--resume ", "--restore "]
    assert complete(shell, "rollmill train learning.batch") == ["learning.batch_size="]
    assert complete(shell, "rollmill train -f cartpole lear") == ["learning."]
    assert complete(shell, "rollmill offline data algo") == ["algorithm="]
    assert complete(shell, "rollmill train -f ") == [f"{name} " for name in shipped_names()]
    assert complete(shell, "rollmill export run --to o") == ["onnx "]
    assert complete(shell, "rollmill bench tu") == ["tune "]
    assert complete(shell, "rollmill train xyzzy") == []  # then the shell completes files


def test_values(shell: str) -> None:
    """Bash takes an equals sign for the end of a word, and what it is given for the word behind it."""
    start = "" if shell == "bash" else "sampling.mode="
    assert complete(shell, "rollmill train sampling.mode=s") == [f"{start}sync ", f"{start}serial "]
    envs = [name for name in NAMED if name.startswith("toy_m")]
    start = "" if shell == "bash" else "env="
    assert complete(shell, "rollmill train env=toy_m") == [f"{start}{name} " for name in envs]


# -- schemas -----------------------------------------------------------------------------------------------


def kind_of(name: str) -> str:
    return "offline" if name.startswith("offline_") else "world" if name.endswith("_world") else "train"


@pytest.fixture(name="schemas", scope="module")
def make_schemas() -> dict[str, Any]:
    from rollmill.core.config.json_schema import json_schema
    from rollmill.runs.settings.offline import OfflineConfig
    from rollmill.runs.settings.train import TrainConfig
    from rollmill.runs.settings.world import WorldConfig

    classes = {"train": TrainConfig, "offline": OfflineConfig, "world": WorldConfig}
    return {kind: json_schema(cls, kind) for kind, cls in classes.items()}


@pytest.mark.parametrize("name", shipped_names())
def test_every_shipped_file_fits_its_schema(schemas: dict[str, Any], name: str) -> None:
    jsonschema.validate(read_mapping(FOLDER / f"{name}.yaml").data, schemas[kind_of(name)])


@pytest.mark.parametrize(
    ("text", "fits"),
    [
        ("env: doom_basic", True),
        ("env: {id: doom_basic, args: {frame_skip: 4}}", True),
        ("stop: {frames: '200_000'}", True),  # what an editor makes of 200_000
        ("learning: {learning_rate: 5e-4}", True),
        ("lerning: {gamma: 0.9}", False),
        ("learning: {gama: 0.9}", False),
        ("learning: {gamma: much}", False),
        ("sampling: {mode: asynch}", False),
        ("learning: 3", False),
    ],
)
def test_what_fits_the_schema_of_trainings(schemas: dict[str, Any], text: str, fits: bool) -> None:
    data = parse_mapping(text, "test").data
    assert jsonschema.Draft7Validator(schemas["train"]).is_valid(data) == fits


CARTS = "experiment: carts\nsettings: {env: CartPole-v1}\n"
GAMMAS = f"{CARTS}params: [{{grid: {{learning.gamma: [0.98, 0.99]}}}}]\nseeds: 5\n"


@pytest.mark.parametrize(
    ("text", "fits"),
    [
        ((ROOT / "examples" / "grid_search.yaml").read_text(), True),
        (f"{GAMMAS}launch: {{retries: 2, slurm: {{partition: gpu}}}}", True),
        (f"{CARTS}population: {{members: 4, tune: {{learning.gamma: [0.9, 0.999]}}}}", True),
        (f"{GAMMAS}launch: {{slurm: {{partitoin: gpu}}}}", False),
        (f"{GAMMAS}sedes: 3", False),
    ],
)
def test_what_fits_the_schema_of_descriptions(call: Call, tmp_path: Path, text: str, fits: bool) -> None:
    schema = json.loads(call("config", "--schema", "--of", "launch").out)
    assert jsonschema.Draft7Validator(schema).is_valid(parse_mapping(text, "test").data) == fits
    Path("grid.yaml").write_text(text)
    assert (call("launch", "plan", "grid.yaml").code == 0) == fits  # what an editor underlines is refused, too


def test_the_verb_prints_schemas_with_explanations(call: Call) -> None:
    for kind in ("train", "offline", "world", "launch"):
        schema = json.loads(call("config", "--schema", "--of", kind).out)
        jsonschema.Draft7Validator.check_schema(schema)
        assert schema["title"].startswith("Settings of rollmill")
    trains = json.loads(call("config", "--schema").out)
    assert "Discount" in trains["properties"]["learning"]["properties"]["gamma"]["description"]
    assert call("config", "fit.steps", "--of", "offline").out.startswith("fit.steps = ")
