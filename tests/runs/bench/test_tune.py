"""The search for fast settings: on made-up machines whose speed is a formula, and on this one."""

import json
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from running import SERIAL, Run, command_words, config_of

from rollmill.cli.bench import tune_table
from rollmill.cli.main import main
from rollmill.core.config.load import load_config
from rollmill.core.errors import ConfigError, EnvError, RollmillError
from rollmill.envs.make import make_env
from rollmill.envs.settings import EnvSettings
from rollmill.runs.bench.run import bench_train
from rollmill.runs.bench.tune import Knob, Search, Trial, TuneOptions, TuneResult, all_knobs, tune, with_value
from rollmill.runs.settings.sizing import FRESH_BATCHES, Machine, resolve, size
from rollmill.runs.settings.train import TrainConfig, rows_in_flight, segments_per_batch

SPEC = make_env(EnvSettings(id="toy_target")).spec
CPU, GPU = Machine(8), Machine(16, gpu=True)
Speed = Callable[[TrainConfig], float]


def config(*overrides: str) -> TrainConfig:
    return load_config(TrainConfig, [], ["env=toy_target", "learning.batch_size=8192", *overrides])


class Bench:
    """A machine on which a config has the speed a formula says, and a trial takes a second."""

    def __init__(self, speed: Speed) -> None:
        self.now, self.told, self.seen, self.speed = 0.0, [], [], speed
        self.told: list[Trial]
        self.seen: list[TrainConfig]

    def measure(self, config: TrainConfig) -> float:
        self.now += 1.0
        self.seen.append(config)
        return self.speed(config)

    def search(
        self, start: TrainConfig, machine: Machine, seconds: float = 1000.0, bfloat16: bool = True, batch: bool = False
    ) -> TuneResult:
        knobs = all_knobs(machine, bfloat16, batch)
        return Search(start, SPEC, knobs, self.measure, self.told.append, seconds, lambda: self.now).run()


def plain(config: TrainConfig) -> float:
    return 100.0


# -- finding -----------------------------------------------------------------------------------------------


def near(value: float, best: float) -> float:
    return 1 / (1 + abs(value - best) / best)


def test_it_finds_the_top_of_a_hill() -> None:
    def speed(c: TrainConfig) -> float:
        exact = 2.0 if c.learning.precision == "bfloat16" else 1.0
        threads, micro = near(c.learning.threads, 4), near(c.learning.micro_batch or 2048, 256)
        workers, envs = near(c.sampling.workers, 6), near(c.sampling.envs_per_worker, 8)
        return 1000 * exact * threads * micro * workers * envs * near(c.sampling.groups, 4)

    bench = Bench(speed)
    result = bench.search(resolve(config(), CPU, SPEC), CPU)
    best = result.best
    assert (best.sampling.workers, best.sampling.envs_per_worker, best.sampling.groups) == (6, 8, 4)
    assert (best.learning.threads, best.learning.micro_batch, best.learning.precision) == (4, 256, "bfloat16")
    assert result.best_frames_per_s == pytest.approx(2000)
    assert result.changes["sampling.workers"] == 6
    assert result.start_frames_per_s == speed(result.start)
    assert not result.out_of_time


def test_where_nothing_is_faster_the_start_stays() -> None:
    bench = Bench(plain)
    start = resolve(config(), CPU, SPEC)
    result = bench.search(start, CPU)
    assert result.best == start
    assert result.changes == {}
    assert "nothing was faster than the start: 100 frames/s" in tune_table(result)


def test_gains_within_the_noise_do_not_count() -> None:
    result = Bench(lambda c: 100.0 + 2.0 * (c.sampling.groups == 1)).search(resolve(config(), CPU, SPEC), CPU)
    assert result.changes == {}


def test_a_lucky_figure_does_not_win() -> None:
    """The first figure of another precision is too high; measured again beside the start, it is lower."""
    metrics = {"float32": [100.0, 100.0], "bfloat16": [150.0, 90.0]}

    def speed(c: TrainConfig) -> float:
        others = c.sampling, c.learning.threads, c.learning.micro_batch
        return metrics[c.learning.precision].pop(0) if others == fixed else 1.0

    start = resolve(config(), CPU, SPEC)
    fixed = start.sampling, start.learning.threads, start.learning.micro_batch
    result = Bench(speed).search(start, CPU)
    assert result.changes == {}
    assert result.best_frames_per_s == result.start_frames_per_s == 100.0
    assert not any(metrics.values())


# -- what may be changed -----------------------------------------------------------------------------------

FREE = {"workers", "envs_per_worker", "groups"}, {"threads", "micro_batch", "precision"}


@settings(deadline=None, max_examples=50)  # a loaded machine is no failure
@given(st.randoms(use_true_random=False), st.sampled_from([CPU, GPU, Machine(1), Machine(2)]), st.booleans())
def test_no_trial_changes_what_is_learnt_from(random: Any, machine: Machine, sync: bool) -> None:
    start = resolve(config(f"sampling.mode={'sync' if sync else 'async'}"), machine, SPEC)
    bench = Bench(lambda c: random.choice([1.0, 10.0, 100.0, 1000.0]))
    bench.search(start, machine)
    for seen in bench.seen:
        assert segments_per_batch(seen, SPEC) >= 1
        limit = FRESH_BATCHES[seen.sampling.mode] * seen.learning.batch_size
        assert rows_in_flight(seen) <= max(limit, rows_in_flight(start))
        assert seen.learning.threads <= max(machine.cores, start.learning.threads)
    for trial in bench.told:
        assert {key.partition(".")[2] for key in trial.changes if key.startswith("sampling.")} <= FREE[0]
        assert {key.partition(".")[2] for key in trial.changes if key.startswith("learning.")} <= FREE[1]
        assert all(key.startswith(("sampling.", "learning.")) for key in trial.changes)


def keys(machine: Machine, bfloat16: bool, batch: bool) -> set[str]:
    return {knob.key for knob in all_knobs(machine, bfloat16, batch)}


def test_knobs_follow_the_machine_and_the_options() -> None:
    assert "learning.batch_size" not in keys(CPU, True, False)
    assert "learning.batch_size" in keys(CPU, True, True) & keys(GPU, True, True)
    assert "learning.precision" not in keys(CPU, False, False)
    assert keys(GPU, True, False) == {f"sampling.{name}" for name in FREE[0]} | {"learning.precision"}


def test_the_batch_is_searched_only_when_asked_for() -> None:
    larger = Bench(lambda c: float(c.learning.batch_size))
    start = resolve(config(), CPU, SPEC)
    assert larger.search(start, CPU).changes == {}
    result = Bench(lambda c: float(min(c.learning.batch_size, 32768))).search(start, CPU, batch=True)
    assert result.changes == {"learning.batch_size": 32768}
    assert "another batch learns differently" in tune_table(result)


def test_micro_batches_go_down_to_small_ones_and_up_to_all() -> None:
    (knob,) = (knob for knob in all_knobs(CPU, False, False) if knob.key == "learning.micro_batch")
    assert knob.directions(config()) == [[1024, 512, 256, 128, 64], []]
    assert knob.directions(config("learning.micro_batch=512")) == [[256, 128, 64], [1024, 0]]
    assert knob.directions(config("learning.batch_size=32", "learning.minibatches=1")) == [[], []]


def test_ranks_keep_equal_shares() -> None:
    (knob,) = (knob for knob in all_knobs(CPU, False, False) if knob.key == "sampling.workers")
    for values in knob.directions(config("learning.ranks=2", "sampling.workers=8")):
        assert values
        assert not any(value % 2 for value in values)


def test_a_value_that_a_block_refuses() -> None:
    start = config("sampling.envs_per_worker=4", "sampling.groups=2")
    assert with_value(start, "sampling.groups", 3) is None
    changed = with_value(start, "sampling.groups", 4)
    assert changed is not None
    assert changed.sampling.groups == 4


# -- time, failures, interruptions -------------------------------------------------------------------------


@pytest.mark.parametrize("seconds", [1.0, 3.0, 6.0, 8.0])
def test_it_keeps_to_its_time(seconds: float) -> None:
    bench = Bench(lambda c: float(c.sampling.workers + 100 * (c.learning.precision == "bfloat16")))
    result = bench.search(resolve(config(), CPU, SPEC), CPU, seconds)
    assert bench.now == pytest.approx(seconds, abs=2)  # what was found is always measured again
    assert result.out_of_time
    assert "--seconds gives it more" in tune_table(result)
    if seconds > 1:
        assert bench.told[-2].changes == {}
        assert bench.told[-1].changes == result.changes != {}


def test_a_trial_that_fails_is_counted_and_shown() -> None:
    def speed(c: TrainConfig) -> float:
        if c.learning.precision == "bfloat16":
            raise EnvError("the env\nhas had enough")
        if c.sampling.groups == 1:
            raise RuntimeError("")  # as torch does for want of memory
        return 100.0 * c.sampling.workers

    bench = Bench(speed)
    result = bench.search(resolve(config("sampling.workers=4"), CPU, SPEC), CPU)
    assert result.changes == {"sampling.workers": 16}
    assert result.failures == sum(trial.frames_per_s is None for trial in bench.told) >= 2
    assert {trial.error for trial in result.trials if trial.frames_per_s is None} == {"the env", "RuntimeError"}
    text = tune_table(result)
    assert "failed  learning.precision=bfloat16: the env" in text
    assert f"{result.failures} of {len(result.trials)} trials failed" in text
    assert json.loads(json.dumps(result.to_dict()))["failures"] == result.failures


def test_a_start_that_fails_is_an_error() -> None:
    def speed(c: TrainConfig) -> float:
        raise EnvError("broken")

    with pytest.raises(EnvError, match="broken"):
        Bench(speed).search(resolve(config(), CPU, SPEC), CPU)


def test_ctrl_c_in_the_first_trial_has_nothing_to_keep() -> None:
    def speed(c: TrainConfig) -> float:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Bench(speed).search(resolve(config(), CPU, SPEC), CPU)


@pytest.mark.parametrize("after", [1, 3, 6])
def test_ctrl_c_keeps_the_best_so_far(after: int) -> None:
    def speed(c: TrainConfig) -> float:
        if bench.now > after:
            raise KeyboardInterrupt
        return 100.0 + 50.0 * (c.learning.precision == "bfloat16")

    bench = Bench(speed)
    result = bench.search(resolve(config(), CPU, SPEC), CPU)
    assert result.interrupted
    assert len(result.trials) == after
    assert "interrupted" in tune_table(result)
    assert result.best_frames_per_s == max(trial.frames_per_s or 0.0 for trial in result.trials[:after])


def test_serial_mode_is_not_for_speed() -> None:
    with pytest.raises(ConfigError, match=r"tune sampling\.mode=async or sync"):
        tune(config("sampling.mode=serial"), TuneOptions(), print)
    with pytest.raises(ConfigError, match="--seconds must be positive"):
        tune(config(), TuneOptions(seconds=0), print)


def test_a_training_that_is_too_slow_to_measure(tmp_path: Path) -> None:
    settings = config_of(tmp_path, "env=toy_target", *SERIAL)
    with pytest.raises(RollmillError, match="ended before its speed could be measured"):
        bench_train(settings, SPEC, seconds=1000.0, warm_up=0.0, limit=0.05)


# -- the real thing ----------------------------------------------------------------------------------------


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("rollmill.cli.bench.load_of_others", lambda: 0.5)
    monkeypatch.chdir(tmp_path)


def words(folder: Path, *more: str) -> list[str]:
    return ["bench", "tune", *command_words(folder, "env=toy_target", "sampling.workers=1", *more)[1:]]


@pytest.mark.usefixtures("short")
def test_what_is_found_can_be_trained_with(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One knob and very short measurements: it is over long before its time is."""
    monkeypatch.setattr("rollmill.runs.bench.tune.TRIALS_PER_BUDGET", 10_000)
    monkeypatch.setattr(
        "rollmill.runs.bench.tune.all_knobs", lambda *_: [Knob("sampling.groups", lambda c: [[1], [4]])]
    )
    assert main([*words(tmp_path), "--seconds", "500", "--out", "tuned.yaml", "--json"]) == 0
    out, err = capfd.readouterr()
    metrics = json.loads(out)
    assert "loaded by others (0.5 cores busy" in err
    assert metrics["busy_cores_before"] == 0.5
    assert metrics["env"] == "toy_target"
    assert metrics["best_frames_per_s"] >= metrics["start_frames_per_s"] > 0
    assert len(metrics["trials"]) == err.count(" frames/s  ") + err.count("failed  ") >= 2
    text = (tmp_path / "tuned.yaml").read_text()
    assert text.startswith("# Found by `rollmill bench tune`.\n# ")
    tuned = load_config(TrainConfig, [tmp_path / "tuned.yaml"], [])
    assert size(tuned) == tuned
    for key, value in metrics["changes"].items():
        block, _, name = key.partition(".")
        assert getattr(getattr(tuned, block), name) == value
    assert main(["train", "-f", "tuned.yaml", "stop.batches=1", "--json"]) == 0
    assert json.loads(capfd.readouterr().out)["state"] == "finished"


@pytest.mark.usefixtures("short")
@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("tune --out missing/tuned.yaml", "there is no folder missing"),
        ("tune --profile here", "--profile is for `rollmill bench train`"),
        ("sim --profile here", "--profile is for `rollmill bench train`"),
        ("train --out tuned.yaml", "are for `rollmill bench tune`"),
        ("train --tune-batch", "are for `rollmill bench tune`"),
        ("tune --seconds 0", "--seconds must be positive"),
    ],
)
def test_flags_that_do_not_fit_start_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], line: str, message: str
) -> None:
    assert main(["bench", "env=toy_target", *line.split()]) == 2
    assert message in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_a_real_ctrl_c_keeps_what_was_found(tmp_path: Path, rollmill: Run) -> None:
    command = rollmill(*words(tmp_path), "--seconds", "120", "--out", "tuned.yaml")
    command.wait_for_text("(start)")
    command.send(signal.SIGINT)
    assert command.wait() == 130, command.text
    assert "interrupted: the best so far is" in command.text
    load_config(TrainConfig, [tmp_path / "tuned.yaml"], [])
    command.assert_nothing_left()
