"""Automatic numbers: they fit the batch, the machine and what was set, and a resume keeps them."""

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from running import RunFolder, assert_same, command_words, rows_of, saved_state

from rollmill.core.config.load import load_config
from rollmill.core.config.plain import to_dict
from rollmill.core.config.shipped import FOLDER
from rollmill.core.errors import ConfigError
from rollmill.core.fields import EnvSpec, Field
from rollmill.envs.make import make_env
from rollmill.envs.settings import EnvSettings
from rollmill.runs.lifecycle import Request
from rollmill.runs.settings import sizing
from rollmill.runs.settings.sizing import ENVS, FRESH_BATCHES, Machine, is_automatic, resolve, size
from rollmill.runs.settings.train import TrainConfig, check, rows_in_flight, segments_per_batch
from rollmill.runs.train.run import train

OTHER_VERBS = ("offline_", "carracing_world", "health_gathering_world", "take_cover_world")
CONFIGS = sorted(path for path in FOLDER.glob("*.yaml") if not path.name.startswith(OTHER_VERBS))
LAPTOP = Machine(cores=2)
SERVER = Machine(cores=16, gpu=True)
VECTOR = make_env(EnvSettings(id="toy_target")).spec
AGENTS = make_env(EnvSettings(id="toy_agents")).spec
IMAGE = replace(VECTOR, observation=(Field("screen", "uint8", (3, 72, 128)),))


def config(*overrides: str) -> TrainConfig:
    return load_config(TrainConfig, [], ["env=toy_target", *overrides])


def numbers(config: TrainConfig) -> tuple[int, int, int, int]:
    s = config.sampling
    return s.workers, s.envs_per_worker, s.groups, config.learning.threads


# -- rules -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("machine", "spec", "overrides", "expected"),
    [
        (LAPTOP, VECTOR, "", (2, 16, 2, 1)),
        (LAPTOP, IMAGE, "", (2, 16, 2, 2)),
        (LAPTOP, IMAGE, "model.encoder=mlp", (2, 16, 2, 1)),
        (LAPTOP, None, "", (2, 16, 2, 1)),  # nobody knows about images yet
        (LAPTOP, None, "model.encoder=impala", (2, 16, 2, 2)),
        (Machine(1), IMAGE, "", (1, 16, 2, 1)),
        # images: simulators are slow enough to share a core with the inference thread
        (SERVER, IMAGE, "learning.batch_size=4096", (16, 16, 2, 1)),
        (SERVER, IMAGE, "learning.batch_size=4096 sampling.groups=4", (16, 16, 4, 1)),
        (SERVER, IMAGE, "learning.batch_size=16384 sampling.mode=sync", (16, 16, 4, 1)),
        (SERVER, VECTOR, "learning.batch_size=4096", (15, 16, 4, 1)),
        (SERVER, IMAGE, "learning.batch_size=4096 learning.ranks=2", (14, 16, 4, 1)),
        (SERVER, IMAGE, "sampling.mode=serial", (1, 8, 2, 1)),
        (Machine(2, gpu=True), VECTOR, "", (2, 16, 4, 1)),  # half of the cores is too much to keep free
        # minibatches of 512 rows feed two threads, micro-batches of 64 rows feed eight
        (Machine(16), IMAGE, "learning.batch_size=8192 learning.minibatches=16", (16, 16, 2, 2)),
        (
            Machine(16),
            IMAGE,
            "learning.batch_size=8192 learning.minibatches=16 learning.micro_batch=64",
            (16, 16, 2, 8),
        ),
        (Machine(4), IMAGE, "learning.batch_size=8192 learning.minibatches=1", (4, 16, 2, 4)),
    ],
)
def test_numbers_for_a_machine(
    machine: Machine, spec: EnvSpec | None, overrides: str, expected: tuple[int, ...]
) -> None:
    assert numbers(resolve(config(*overrides.split()), machine, spec)) == expected


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        ("sampling.workers=5", (5, 16, 2, 1)),
        ("sampling.envs_per_worker=6 learning.batch_size=960", (2, 6, 2, 1)),
        ("sampling.envs_per_worker=6 learning.batch_size=1024", (2, 6, 3, 1)),  # segments of 3 lanes do not fit, 2 do
        ("sampling.envs_per_worker=1", (2, 1, 1, 1)),
        ("sampling.envs_per_worker=7 learning.batch_size=896", (2, 7, 1, 1)),
        ("sampling.groups=4", (2, 16, 4, 1)),
        ("sampling.groups=1 sampling.rollout=20 learning.batch_size=300", (2, 15, 1, 1)),
        ("learning.batch_size=480", (2, 10, 2, 1)),  # 15 segments' worth of steps: 8 lanes do not divide it, 5 do
        ("learning.threads=3", (2, 16, 2, 3)),
    ],
)
def test_what_is_set_stays_and_the_rest_fits_it(overrides: str, expected: tuple[int, ...]) -> None:
    resolved = resolve(config(*overrides.split()), LAPTOP, VECTOR)
    assert numbers(resolved) == expected
    check(resolved)


@pytest.mark.parametrize(
    ("machine", "spec", "overrides", "expected"),
    [
        (Machine(2, bfloat16=True), IMAGE, "", "bfloat16"),
        (Machine(16, gpu=True, bfloat16=True), IMAGE, "", "bfloat16"),
        (Machine(2), IMAGE, "", "float32"),
        (Machine(2, bfloat16=True), VECTOR, "", "float32"),
        (Machine(2, bfloat16=True), IMAGE, "model.encoder=mlp", "float32"),
        (Machine(2, bfloat16=True), IMAGE, "sampling.mode=serial", "float32"),
        (Machine(2, bfloat16=True), IMAGE, "learning.precision=float32", "float32"),
        (Machine(2), VECTOR, "learning.precision=bfloat16", "bfloat16"),
    ],
)
def test_bfloat16_is_chosen_where_it_pays(machine: Machine, spec: EnvSpec, overrides: str, expected: str) -> None:
    asked = config("learning.precision=auto", *overrides.split())
    assert is_automatic(asked) or "precision" in overrides
    assert resolve(asked, machine, spec).learning.precision == expected
    numbers_set = config(
        *("sampling.workers=2", "sampling.envs_per_worker=16", "sampling.groups=2"),
        *("learning.threads=1", "learning.batch_size=2048"),
    )
    assert not is_automatic(numbers_set)
    assert is_automatic(replace(numbers_set, learning=replace(numbers_set.learning, precision="auto")))


@pytest.mark.parametrize("mode", ["async", "sync"])
def test_many_cores_do_not_make_experience_stale(mode: str) -> None:
    settings = config("learning.batch_size=1024", f"sampling.mode={mode}")
    envs = [resolve(settings, Machine(cores)).sampling.envs_per_worker for cores in (1, 4, 16)]
    assert envs == sorted(envs, reverse=True)
    for cores, count in zip((1, 4, 16), envs):
        assert cores * count * 32 <= FRESH_BATCHES[mode] * 1024
    assert resolve(settings, Machine(1000)).sampling.envs_per_worker == 2  # one for each group is the least


@pytest.mark.parametrize(
    ("machine", "spec", "overrides", "expected"),
    [
        (LAPTOP, VECTOR, "", 2048),
        (SERVER, VECTOR, "", 2048),
        (SERVER, IMAGE, "sampling.mode=sync", 2048),
        (LAPTOP, replace(VECTOR, agents=3), "", 2112),  # three agents: a multiple of 32 x 3
        # Many environments at once: a small batch would be a few rows of each, and most of them old.
        (LAPTOP, VECTOR, "sampling.envs_per_worker=256", 8192),
        (Machine(16), VECTOR, "sampling.envs_per_worker=256", 65536),
        (Machine(16), VECTOR, "sampling.envs_per_worker=256 sampling.mode=sync", 131072),
        (LAPTOP, VECTOR, "sampling.envs_per_worker=5 sampling.mode=sync", 1920),
        (LAPTOP, VECTOR, "sampling.envs_per_worker=256 learning.batch_size=4096", 4096),
    ],
)
def test_batches_fit_the_environments(machine: Machine, spec: EnvSpec, overrides: str, expected: int) -> None:
    resolved = resolve(config(*overrides.split()), machine, spec)
    assert resolved.learning.batch_size == expected
    assert segments_per_batch(resolved, spec) * resolved.sampling.rollout


def test_ranks_have_equal_shares() -> None:
    settings = config("learning.ranks=2", "learning.batch_size=512")
    resolved = resolve(settings, Machine(9), VECTOR)
    assert resolved.sampling.workers == 8
    check(resolved)
    assert resolve(settings, Machine(1)).sampling.workers == 2
    assert resolve(settings, Machine(16, gpu=True)).sampling.workers == 14
    images = config("learning.ranks=2", "learning.batch_size=4096", "learning.minibatches=1")
    assert resolve(images, Machine(8), IMAGE).learning.threads == 4


def test_several_agents_are_counted() -> None:
    settings = config("learning.batch_size=480")  # 15 steps' worth of lanes
    with pytest.raises(ConfigError, match="not a multiple"):
        segments_per_batch(resolve(settings, LAPTOP), replace(VECTOR, agents=5))
    several = replace(VECTOR, agents=5)
    assert segments_per_batch(resolve(settings, LAPTOP, several), several) >= 1


# -- what always holds -------------------------------------------------------------------------------------

MACHINES = st.builds(Machine, st.integers(1, 128), st.booleans())
SETTINGS = st.fixed_dictionaries(
    {"learning.batch_size": st.integers(1, 64).map(lambda n: 320 * n)},  # two agents and every rollout fit in
    optional={
        "sampling.workers": st.integers(0, 9),
        "sampling.envs_per_worker": st.integers(0, 24),
        "sampling.groups": st.integers(0, 4),
        "sampling.rollout": st.sampled_from([1, 5, 16, 32]),
        "sampling.mode": st.sampled_from(["async", "sync", "serial"]),
        "learning.minibatches": st.integers(1, 8),
        "learning.threads": st.integers(0, 4),
        "learning.micro_batch": st.sampled_from([0, 64, 1000]),
    },
)


@settings(deadline=None, max_examples=50)  # a loaded machine is no failure
@given(SETTINGS, MACHINES, st.sampled_from([None, VECTOR, IMAGE, AGENTS]))
def test_everything_is_decided_once_and_nothing_else_is_touched(
    values: dict[str, int | str], machine: Machine, spec: EnvSpec | None
) -> None:
    try:
        asked = config(*(f"{key}={value}" for key, value in values.items()))
    except ConfigError:  # envs that cannot be split into that many groups
        return
    resolved = resolve(asked, machine, spec)
    assert not is_automatic(resolved)
    assert resolve(resolved, Machine(77, gpu=True), AGENTS) == resolved
    before, after = to_dict(asked), to_dict(resolved)
    for block, name in sizing.AUTOMATIC:
        if before[block][name]:
            assert after[block][name] == before[block][name]
        before[block].pop(name), after[block].pop(name)
    assert before == after
    if not asked.sampling.envs_per_worker and not asked.sampling.groups:
        assert segments_per_batch(resolved, replace(VECTOR, agents=spec.agents if spec else 1)) >= 1
        assert resolved.sampling.envs_per_worker <= ENVS


@settings(deadline=None, max_examples=50)  # a loaded machine is no failure
@given(SETTINGS, MACHINES, MACHINES)
def test_serial_mode_is_the_same_on_all_machines(values: dict[str, int | str], one: Machine, two: Machine) -> None:
    try:
        asked = config(*(f"{key}={value}" for key, value in values.items()), "sampling.mode=serial")
    except ConfigError:
        return
    assert resolve(asked, one, IMAGE) == resolve(asked, two, IMAGE)


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
@pytest.mark.parametrize("machine", [Machine(1), LAPTOP, Machine(64), SERVER, Machine(192, gpu=True)])
def test_the_configs_run_on_every_machine(path: Path, machine: Machine) -> None:
    asked = load_config(TrainConfig, [path], [])
    resolved = resolve(asked, machine)
    check(resolved)
    assert rows_in_flight(resolved) > 0
    for _, name in sizing.AUTOMATIC[1:3]:
        assert getattr(asked.sampling, name) in (0, getattr(resolved.sampling, name))


# -- the machine -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("device", "seen", "gpu"),
    [("cpu", True, False), ("cuda:1", False, True), ("cuda", True, True), ("auto", False, False)],
)
def test_a_device_that_is_named_needs_no_look(
    monkeypatch: pytest.MonkeyPatch, device: str, seen: bool, gpu: bool
) -> None:
    monkeypatch.setattr(sizing, "may_have_gpu", lambda: seen)
    assert Machine.here(device).gpu == gpu


def test_a_gpu_that_torch_cannot_use_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    monkeypatch.setattr(sizing, "may_have_gpu", lambda: True)
    assert Machine.here().gpu == torch.cuda.is_available()


def test_a_wrong_config_is_refused_before_the_machine_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Machine, "here", lambda device: pytest.fail("looked"))
    with pytest.raises(ConfigError, match="toy_target"):
        size(config("env=toy_taget"))
    with pytest.raises(ConfigError, match="near: 128, 256"):
        size(config("learning.batch_size=200", "sampling.envs_per_worker=8", "sampling.groups=2"))
    with pytest.raises(ConfigError, match=r"settings\.sizing\.size decides them"):
        segments_per_batch(config(), VECTOR)


@pytest.mark.parametrize(
    "override", ["sampling.workers=-1", "sampling.envs_per_worker=-1", "sampling.groups=-2", "learning.threads=-1"]
)
def test_negative_numbers_mean_nothing(override: str) -> None:
    with pytest.raises(ConfigError, match=r"must be 0 \(automatic\) or positive"):
        config(override)


# -- in a run ----------------------------------------------------------------------------------------------

AUTO = ("sampling.workers=0", "sampling.envs_per_worker=0", "sampling.groups=0", "learning.threads=0")
SHORT = ("env=toy_target", "learning.batch_size=64", "sampling.affinity=false")


def auto_config(folder: Path, *overrides: str) -> TrainConfig:
    words = command_words(folder, *SHORT, *AUTO, *overrides)[1:]
    return load_config(TrainConfig, [], words)


def run_here(config: TrainConfig, **request: object) -> RunFolder:
    train(config, Request(console="off", **request))  # type: ignore[arg-type]
    return RunFolder(config.folder)


def saved_config(folder: RunFolder) -> TrainConfig:
    return load_config(TrainConfig, [folder.config], [])


def test_decided_numbers_are_saved(tmp_path: Path) -> None:
    folder = run_here(auto_config(tmp_path, "stop.batches=2"))
    saved = saved_config(folder)
    assert numbers(saved) == numbers(size(auto_config(tmp_path)))
    assert saved_state(folder)["config"]["sampling"] == to_dict(saved)["sampling"]


def test_numbers_for_several_agents_are_saved_too(tmp_path: Path) -> None:
    """A batch is 8 steps of 4 lanes: one group of 4 envs fills it, or one of 2 envs with two agents each."""
    asked = auto_config(tmp_path, "env=toy_agents", "sampling.mode=serial", "learning.batch_size=32", "stop.batches=1")
    assert size(asked).sampling.envs_per_worker == 8
    folder = run_here(asked)
    assert saved_config(folder).sampling.envs_per_worker == 4
    assert saved_state(folder)["config"]["sampling"]["envs_per_worker"] == 4
    assert "sampling.envs_per_worker: 8 -> 4" in folder.log.read_text()


def test_a_resume_keeps_the_numbers_of_another_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from rollmill.cli.main import main

    monkeypatch.chdir(tmp_path)
    words = [word for word in command_words(tmp_path, *SHORT) if not word.startswith(("sampling.", "learning.threads"))]
    monkeypatch.setattr(sizing, "available_cores", lambda: 1)
    assert main([*words, "stop.batches=2", "--json"]) == 0
    folder = RunFolder(tmp_path / "x/run")
    first = numbers(saved_config(folder))
    assert first[0] == 1
    monkeypatch.setattr(sizing, "available_cores", lambda: 3)
    assert main([*words, "stop.batches=4", "--json", "--resume"]) == 0
    assert numbers(saved_config(folder)) == first
    assert main([*words, "stop.batches=5", "--json", "--resume", "sampling.workers=0"]) == 0  # asked for by name
    assert saved_config(folder).sampling.workers == 3


def test_serial_runs_agree_bit_for_bit_whatever_the_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = ("sampling.mode=serial", "stop.frames=600")
    one = run_here(auto_config(tmp_path / "one", *words))
    monkeypatch.setattr(sizing, "available_cores", lambda: 13)
    run_here(auto_config(tmp_path / "two", *words, "stop.frames=300"))
    two = run_here(auto_config(tmp_path / "two", *words), mode="resume")
    assert_same(rows_of(one), rows_of(two))


def test_the_final_numbers_are_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from rollmill.cli.main import main

    assert main([*command_words(tmp_path, *SHORT, *AUTO, "sampling.mode=serial", "stop.batches=1")]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "decided sampling.workers=1 sampling.envs_per_worker=8 sampling.groups=2" in printed
