"""Recording while training: what is stored is what was learnt from; whatever the recorder meets, training goes on."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import warnings
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from disks import mounted
from running import SERIAL, Run, command_words, config_of, train_here, wait_until

from recording import Final, Seen, check_stored
from rollmill.core.errors import ConfigError, StoreError
from rollmill.core.run_folder import RunFolder
from rollmill.monitor.jsonl import read_jsonl
from rollmill.recording import recorder
from rollmill.recording.budget import folder_bytes
from rollmill.recording.recorder import LocalRecorder, ProcessRecorder, spare_slots
from rollmill.recording.settings import RecordingSettings
from rollmill.runs.train import run as train_module
from rollmill.runs.train.loop import OnlineRun
from rollmill.runs.train.observers import Observer
from rollmill.store.reader import Store

MARKER = ("env=recordable_env:Recordable", "env.args.longest=29", "learning.reward_scale=1e-4")
NOISE = ("env=faulty_envs:Zoo", "env.args.length=50", "model.encoder=mlp")
"""Images that cannot be compressed: four kilobytes per row."""
PATIENT = ("learning.max_policy_lag=1000000", "recording.drain_seconds=300")
"""However long a worker is kept waiting, what it did is learnt from; however slow the recorder is, it may finish."""
ONE_WORKER = ("sampling.workers=1",)
"""Of several, one may be kept waiting while the others go on: what it began early in the run is delivered late."""
ALL = ("recording=all", "recording.queue_segments=300")


def record(folder: Path, *words: str, **request: object) -> tuple[Seen, RunFolder]:
    seen = Seen()
    observers = (seen, *request.pop("observers", ()))  # type: ignore[misc]
    _, run = train_here(folder, *MARKER, *PATIENT, *words, observers=observers, **request)
    return seen, run


# -- what is stored is what was learnt from ----------------------------------------------------------------


@pytest.mark.parametrize(("mode", "agents"), [("serial", 1), ("serial", 2), ("sync", 1), ("async", 2)])
def test_everything_is_what_was_learnt_from(tmp_path: Path, mode: str, agents: int) -> None:
    words = (f"sampling.mode={mode}", f"env.args.agents={agents}", f"learning.batch_size={64 * agents}")
    seen, run = record(tmp_path, *words, *ALL, "recording.columns=[log_prob,value]", "stop.batches=12")
    assert check_stored(run.data, seen) == set(seen.rows)
    row = seen.metrics
    assert row["record/dropped_segments"] == row["record/restarts"] == row["record/stopped"] == 0
    assert not list(run.data.rglob("*.open.tfrecord")), "all shards are sealed"
    assert row["record/rows"] == len(seen.rows)
    assert row.keys() <= read_jsonl(run.metrics)[-1].keys()


@pytest.mark.parametrize(
    ("keep", "mode"), [("one", "serial"), ("one", "async"), ("rotate", "serial"), ("every", "async")]
)
def test_pieces_are_what_was_learnt_from(tmp_path: Path, mode: str, keep: str) -> None:
    words = (f"sampling.mode={mode}", f"recording={keep}", "recording.every=3", "stop.batches=24")
    seen, run = record(tmp_path, *words, "recording.queue_segments=24")
    kept = check_stored(run.data, seen)
    share = {"one": 1 / 2, "rotate": 1 / 2, "every": 1 / 3}[keep]
    assert len(kept) == pytest.approx(share * len(seen.rows), rel=0.3)
    if keep != "one" and mode == "serial":  # elsewhere a worker may be late
        assert {env // 4 for env, *_ in kept} == {0, 1}


@pytest.mark.parametrize("mode", ["serial", "async"])
def test_one_of_four_episodes_is_whole(tmp_path: Path, mode: str) -> None:
    words = (f"sampling.mode={mode}", *ALL, "recording.keep=episodes", "recording.every=4", "stop.batches=60")
    seen, run = record(tmp_path, *words)
    kept = check_stored(run.data, seen)
    episodes = {key[:3] for key in kept}
    assert kept == {key for key in seen.rows if key[:3] in episodes}, "to the end, or as far as the run went"
    assert (Store(run.data).table["probability"] == 0.25).all()
    share = len(episodes) / len({key[:3] for key in seen.rows})
    assert 0.12 < share < 0.4


def returns_of(seen: Seen) -> dict[tuple[int, int, int], float]:
    """Of all episodes that were seen from start to end."""
    sums: dict[tuple[int, int, int], float] = {}
    for key, row in sorted(seen.rows.items()):
        sums[key[:3]] = sums.get(key[:3], 0.0) + row["reward"]
    over = {key[:3] for key, row in seen.rows.items() if row["terminated"] or row["truncated"]}
    return {key: value for key, value in sums.items() if key in over}


@pytest.mark.parametrize("mode", ["serial", "async"])
def test_experts_only(tmp_path: Path, mode: str) -> None:
    words = (f"sampling.mode={mode}", *ALL, "recording.min_return=20000", "stop.batches=24")
    seen, run = record(tmp_path, *words)
    kept = check_stored(run.data, seen, whole=True)
    expected = {key for key, value in returns_of(seen).items() if value >= 20_000}
    assert {key[:3] for key in kept} == expected
    assert expected
    assert seen.metrics["record/rejected_episodes"] > 0


def test_the_best_of_every_five(tmp_path: Path) -> None:
    seen, run = record(tmp_path, *SERIAL, *ALL, "recording.keep=best", "recording.every=5", "stop.batches=24")
    kept = {key[:3] for key in check_stored(run.data, seen, whole=True)}
    returns = returns_of(seen)
    assert len(kept) == -(-len(returns) // 5)
    assert np.mean([returns[key] for key in kept]) > np.mean(list(returns.values()))


@pytest.mark.parametrize(("when", "mode"), [("last:1000", "serial"), ("last:50%", "async"), ("after:1000", "serial")])
def test_a_part_of_the_run(tmp_path: Path, mode: str, when: str) -> None:
    words = (f"sampling.mode={mode}", *ONE_WORKER, *ALL, f"recording.when={when}", "stop.frames=2000")
    seen, run = record(tmp_path, *words, "recording.queue_segments=300")
    kept = check_stored(run.data, seen)
    left_out = [row["frames"] for key, row in seen.rows.items() if key not in kept]
    assert min(Store(run.data).table["global_step_first"]) > 700
    assert max(left_out) < 1400
    assert len(kept) > 0.3 * len(seen.rows)


def test_a_recording_that_never_began_is_no_secret(tmp_path: Path) -> None:
    """Another limit ends the run before its last frames come."""
    _, run = record(tmp_path, *SERIAL, *ALL, "recording.when=last:10%", "stop.frames=100000", "stop.batches=3")
    line = next(line for line in run.log.read_text().splitlines() if "nothing was kept" in line)
    assert "WARNING" in line
    assert "recorded 0 rows, 0 episodes, " in line
    assert " KB: " in line
    assert len(Store(run.data)) == 0


def test_spread_over_the_run(tmp_path: Path) -> None:
    # Budget for a fifth of what there is: all parts of the run appear, and no more than the budget is used.
    words = (*NOISE, "env.args.length=10", *SERIAL, *ALL, "recording.when=spread", "recording.budget_gb=0.02")
    final = Final()
    _, run = train_here(tmp_path, *words, "stop.frames=20000", observers=[final])
    assert 14_000_000 < folder_bytes(run.data) <= 20_000_000
    steps = Store(run.data).table["global_step_first"]
    counts, _ = np.histogram(steps, bins=5, range=(0, 20000))
    assert counts.min() >= 0.6 * counts.max(), counts
    assert final.metrics["record/stopped"] == 0


def test_a_page_about_the_data_stands_beside_the_metrics(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen, run = record(tmp_path, *SERIAL, *ALL, "stop.batches=12")
    metrics = json.loads((run.path / "data_report.json").read_text())
    assert metrics["rows"]["steps"] == len(seen.rows)
    assert "<html" in (run.path / "data_report.html").read_text()

    def fail(*args: object, **options: object) -> None:
        raise StoreError("no room for a page")

    monkeypatch.setattr(train_module, "write_report", fail)
    _, again = record(tmp_path, *SERIAL, *ALL, "stop.batches=12", mode="overwrite")
    assert "no report of the recorded data: no room for a page" in (again.path / "log.txt").read_text()
    assert not (again.path / "data_report.html").exists(), "the old one is gone with the old data"


def test_serial_mode_records_in_this_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from rollmill.recording.assemble import SegmentAssembler

    real, calls = SegmentAssembler.take, []
    monkeypatch.setattr(SegmentAssembler, "take", lambda *args: (calls.append(os.getpid()), real(*args))[1])
    record(tmp_path, *SERIAL, *ALL, "stop.batches=2")
    assert calls == [os.getpid()] * 4


def test_a_serial_recording_repeats(tmp_path: Path) -> None:
    rows = []
    for name in ("a", "b"):
        _, run = record(tmp_path / name, *SERIAL, *ALL, "stop.batches=6")
        store = Store(run.data)
        rows.append([store.episode(i).to_dict() for i in range(len(store))])
    assert all(np.array_equal(one[name], two[name]) for one, two in zip(*rows, strict=True) for name in one)


# -- the run's folder --------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["serial", "async"])
def test_resume_goes_on_in_the_same_store(tmp_path: Path, mode: str) -> None:
    words = (f"sampling.mode={mode}", *ALL)
    before, run = record(tmp_path, *words, "stop.batches=6")
    assert check_stored(run.data, before) == set(before.rows)
    after, _ = record(tmp_path, *words, "stop.batches=12", mode="resume")
    assert not set(before.rows) & set(after.rows)
    begun = {key[:3] for key in before.rows}
    before.rows |= after.rows
    stored = check_stored(run.data, before)
    assert {key[:3] for key in set(before.rows) - stored} <= begun, "of what went on from the session before"
    assert stored >= set(before.rows) - set(after.rows)
    assert after.metrics["record/rows"] == len(stored)


def test_overwrite_begins_a_new_store(tmp_path: Path) -> None:
    record(tmp_path, *SERIAL, *ALL, "stop.batches=6")
    seen, run = record(tmp_path, *SERIAL, *ALL, "stop.batches=3", mode="overwrite")
    assert check_stored(run.data, seen) == set(seen.rows)


def test_another_schema_is_refused_before_anything_runs(tmp_path: Path) -> None:
    record(tmp_path, *SERIAL, *ALL, "stop.batches=2")
    with pytest.raises(StoreError, match="value"):
        record(tmp_path, *SERIAL, *ALL, "recording.columns=[value]", "stop.batches=4", mode="resume")


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (("recording.when=last:100", "stop.frames=0", "stop.batches=3"), "set stop.frames"),
        (("recording.when=spread", "stop.frames=0", "stop.batches=3"), "set stop.frames"),
        (("recording.when=after:5000", "stop.frames=5000"), "begins after the end"),
        (("learning.ranks=2",), "learning.ranks=1"),
        (("recording.when=spread", "recording.budget_gb=0"), "budget_gb"),
        (("recording.when=sometimes",), "last:N"),
        (("recording.min_return=3", "recording.keep=one"), "whole episodes"),
        (("recording.image_codec=gif",), "unknown codec"),
        (("recording.every=0",), "at least 1"),
        (("recording.nice=30",), "nice"),
        (("recording.memory_mb=0",), "memory_mb"),
        (("recording.drain_seconds=-1",), "drain_seconds"),
    ],
)
def test_wrong_settings_are_refused(tmp_path: Path, words: tuple[str, ...], error: str) -> None:
    with pytest.raises(ConfigError, match=error):
        record(tmp_path, "recording=all", *words)
    assert not list(tmp_path.iterdir())


def test_how_many_spare_slots(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorder, "available_memory", lambda: 20e6)
    keep_all = RecordingSettings(keep="all")
    assert spare_slots(RecordingSettings(), 8, 100, serial=False) == 0
    assert spare_slots(keep_all, 8, 100, serial=True) == 0
    assert spare_slots(keep_all, 8, 100, serial=False) == 32, "cheap ones"
    assert spare_slots(keep_all, 8, 10_000, serial=False) == 20, "1 % of the memory"
    assert spare_slots(keep_all, 8, 100_000, serial=False) == 12, "never less than a batch and a half"
    assert spare_slots(keep_all, 64, 100, serial=False) == 96
    assert spare_slots(RecordingSettings(keep="one"), 8, 100, serial=False) == 4
    assert spare_slots(RecordingSettings(keep="one", queue_segments=9), 8, 100, serial=False) == 9
    monkeypatch.setattr(recorder, "available_memory", lambda: None)
    assert spare_slots(keep_all, 8, 100, serial=False) == 12, "memory is not known"


# -- the forecast ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("keep", "rows", "mode"), [("all", 2000, "serial"), ("one", 1000, "async"), ("every", 200, "serial")]
)
def test_the_forecast_is_near_the_truth(tmp_path: Path, mode: str, keep: str, rows: int) -> None:
    words = (*NOISE, f"sampling.mode={mode}", f"recording={keep}", "recording.queue_segments=64", "stop.frames=2000")
    _, run = train_here(tmp_path, *words)
    line = next(line for line in run.log.read_text().splitlines() if "recording keep=" in line)
    assert f"about {rows:,} rows" in line
    amount, unit = line.split(" rows, ")[1].split()[:2]
    said = float(amount) * {"KB": 1e3, "MB": 1e6}[unit]
    assert said == pytest.approx(folder_bytes(run.data), rel=0.2)


def test_a_trial_that_fails_gives_an_upper_bound(tmp_path: Path) -> None:
    once = tmp_path / "once"
    words = ("env=faulty_envs:Misbehave", "env.args.at_step=5", "env.args.what=raise", f"env.args.once={once}")
    _, run = train_here(tmp_path, *words, "sampling.mode=sync", *ALL, "stop.batches=3")
    text = run.log.read_text()
    assert "the forecast is an upper bound" in text
    assert "told to raise" in text
    assert len(Store(run.data))


# -- the recorder in trouble -------------------------------------------------------------------------------


class Trouble(Observer):
    """Sends the recorder a signal at some training steps; knows what was acknowledged before."""

    def __init__(self, number: signal.Signals, *at: int) -> None:
        self.number, self.at, self.pids = number, at, set[int]()
        self.acknowledged: set[int] = set()

    def on_training_step(self, run: OnlineRun, iteration: int) -> None:
        recorder = run.recorder
        assert isinstance(recorder, ProcessRecorder)
        pid = recorder.pid
        if iteration not in self.at or pid is None:
            return
        wait_until(lambda: recorder.counts()["episodes"], what="an episode to be recorded")
        os.kill(pid, self.number)
        self.pids.add(pid)
        if self.number == signal.SIGKILL:
            wait_until(lambda: _stat(pid) in ("Z", ""), what="the recorder to die")
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                self.acknowledged |= set(Store(run.folder.data).table.uid.tolist())


def _stat(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(") ", 1)[1][0]
    except FileNotFoundError:
        return ""


def test_kill_9_of_the_recorder_loses_nothing_acknowledged(tmp_path: Path) -> None:
    trouble = Trouble(signal.SIGKILL, 10, 20)
    words = ("sampling.mode=async", *ALL, "recording.queue_segments=300", "stop.batches=40")
    seen, run = record(tmp_path, *words, observers=[trouble])
    assert len(trouble.pids) == 2
    assert trouble.acknowledged
    assert trouble.acknowledged <= set(Store(run.data).table.uid.tolist())
    kept = check_stored(run.data, seen)
    assert len(kept) > 0.5 * len(seen.rows)
    row = seen.metrics
    assert row["record/restarts"] == 2
    assert row["record/stopped"] == 0
    assert not list(run.data.rglob("*.open.tfrecord"))
    assert "the recorder was killed by signal 9 (SIGKILL); restarting it" in run.log.read_text()


def test_a_recorder_that_dies_again_and_again_is_given_up(tmp_path: Path) -> None:
    trouble = Trouble(signal.SIGKILL, *range(5, 60))
    words = ("sampling.mode=async", *ALL, "recording.restarts=1", "stop.batches=70")
    final = Final()
    outcome, run = train_here(tmp_path, *MARKER, *PATIENT, *words, observers=[trouble, final])
    assert (outcome.exit_code, len(trouble.pids)) == (0, 2)
    assert "recording has stopped, training goes on" in run.log.read_text()
    assert final.metrics["record/stopped"] == 1
    assert trouble.acknowledged <= set(Store(run.data).table.uid.tolist())


def test_a_recorder_that_stands_still_holds_nobody_up(tmp_path: Path) -> None:
    trouble = Trouble(signal.SIGSTOP, 5)
    words = ("sampling.mode=async", "recording=all", "recording.queue_segments=4", "recording.drain_seconds=0.5")
    seen, run = record(tmp_path, *words, "stop.batches=40", observers=[trouble])
    text = run.log.read_text()
    assert "did not finish within recording.drain_seconds=0.5" in text
    assert "segments dropped (recorder too slow)" in text
    assert 0 < seen.metrics["record/dropped_segments"] < 20, "only what was under way; then nothing is chosen any more"
    assert seen.metrics["record/cut_episodes"] > 0
    (pid,) = trouble.pids
    assert _stat(pid) == "", "it is not left behind"
    check_stored(run.data, seen)


class Pause(Observer):
    """Stops the recorder for some training steps; notes what was dropped by then, and later."""

    def __init__(self, first: int, last: int) -> None:
        self.first, self.last, self.dropped, self.frames = first, last, 0, 0

    def on_training_step(self, run: OnlineRun, iteration: int) -> None:
        recorder = run.recorder
        assert isinstance(recorder, ProcessRecorder)
        if iteration not in (self.first, self.last):
            return
        assert recorder.pid is not None
        os.kill(recorder.pid, signal.SIGSTOP if iteration == self.first else signal.SIGCONT)
        self.dropped, self.frames = recorder.drops.dropped_segments, run.frames


def test_a_pause_of_the_recorder_costs_episodes_only_while_it_lasts(tmp_path: Path) -> None:
    pause = Pause(5, 30)
    words = ("sampling.mode=async", "recording=all", "recording.queue_segments=4")
    seen, run = record(tmp_path, *words, "stop.batches=400", observers=[pause])
    assert pause.dropped > 0
    table = Store(run.data).table
    assert not table["partial_start"].any()
    late = table["global_step_first"] > pause.frames
    assert len(set(table["worker"][late].tolist())) == len(set(table["worker"].tolist())), "all of them"
    check_stored(run.data, seen)


def test_the_recorder_does_not_import_torch() -> None:
    code = "import sys, rollmill.recording.process; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_a_failure_inside_comes_home_with_its_traceback(tmp_path: Path) -> None:
    class Break(Observer):
        def on_init(self, run: OnlineRun) -> None:
            assert isinstance(run.recorder, ProcessRecorder)
            run.recorder._plan = replace(run.recorder._plan, lanes=None)  # type: ignore[arg-type]

    outcome, run = train_here(tmp_path, *MARKER, *ALL, "stop.batches=3", "recording.restarts=0", observers=[Break()])
    assert outcome.exit_code == 0
    text = run.log.read_text()
    assert "the recorder failed:\nTraceback" in text
    assert "recording has stopped" in text
    assert "nothing was kept" not in text, "that is said of recordings that never began"


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 4 MB for the recording."""
    with mounted(tmp_path / "disk", "4m") as disk:
        yield disk


class Elsewhere(Observer):
    """Puts the store on another disk, once the run's folder is there."""

    def __init__(self, disk: Path) -> None:
        self.disk = disk

    def on_init(self, run: OnlineRun) -> None:
        shutil.move(run.folder.data, self.disk / "data")
        run.folder.data.symlink_to(self.disk / "data")


@pytest.mark.parametrize("mode", ["serial", "async"])
def test_a_full_disk_stops_the_recording_and_not_the_training(tmp_path: Path, small_disk: Path, mode: str) -> None:
    words = (*NOISE, *PATIENT, f"sampling.mode={mode}", *ALL, "stop.frames=3000", "recording.block=8")
    words += ("recording.queue_segments=300",)  # nothing is dropped, so the disk does fill up
    final = Final()
    outcome, run = train_here(tmp_path / "runs", *words, observers=[Elsewhere(small_disk), final])
    assert (outcome.state, outcome.exit_code) == ("finished", 0)
    text = run.log.read_text()
    assert "recording has stopped (disk full), training goes on" in text
    assert "No space left on device" in text
    assert "recording stopped before the end: disk full" in text
    assert final.metrics["record/stopped"] == 1
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the last index found no room
        store = Store(run.data)
        assert len(store) > 5
        for i in range(len(store)):
            store.episode(i)


# -- the budget --------------------------------------------------------------------------------------------


class Scales(threading.Thread):
    """Weighs a folder all the time."""

    def __init__(self, folder: Path) -> None:
        super().__init__(daemon=True)
        self.folder, self.largest = folder, 0
        self.over = threading.Event()

    def run(self) -> None:
        while not self.over.wait(0.002):
            self.weigh()

    def weigh(self) -> None:
        self.largest = max(self.largest, folder_bytes(self.folder))


class WeighAtEveryStep(Observer):
    """So that there are enough looks on a machine that has no time for a thread."""

    def __init__(self, scales: Scales) -> None:
        self._scales, self.looks = scales, 0

    def on_training_step(self, run: OnlineRun, iteration: int) -> None:
        self._scales.weigh()
        self.looks += 1


@pytest.mark.parametrize("policy", ["stop", "thin", "ring"])
def test_a_run_never_exceeds_its_budget(tmp_path: Path, policy: str) -> None:
    words = (
        *NOISE,
        *PATIENT,
        *ONE_WORKER,
        "sampling.mode=async",
        "recording=all",
        f"recording.at_budget={policy}",
        "stop.frames=10000",
        "env.args.length=20",
        "recording.queue_segments=300",
    )
    config = config_of(tmp_path, *words)
    scales = Scales(RunFolder(config.folder).data)
    scales.start()
    final, steps_weighed = Final(), WeighAtEveryStep(scales)
    observers = [final, steps_weighed]
    _, run = train_here(tmp_path, *words, "recording.budget_gb=0.006", "recording.block=8", observers=observers)
    scales.over.set()
    scales.join()
    assert steps_weighed.looks > 50
    assert 2_500_000 < max(scales.largest, folder_bytes(run.data)) <= 6_000_000
    text = run.log.read_text()
    assert "the budget of 0.006 GB is reached after" in text
    steps = Store(run.data).table["global_step_first"]
    row = final.metrics
    if policy == "stop":
        assert "recording has stopped (budget reached), training goes on" in text
        assert row["record/stopped"] == 1
        assert steps.min() < 300
    else:
        assert row["record/stopped"] == 0
        assert row["record/dropped_episodes"] > 0
        assert steps.max() > 5000
        assert policy != "ring" or steps.min() > 100, "the first ones are gone"


# -- the end -----------------------------------------------------------------------------------------------


def long_run(tmp_path: Path) -> list[str]:
    words = (*MARKER, "recording=all", "recording.queue_segments=16", "stop.frames=0", "stop.batches=1000000")
    return command_words(tmp_path, *words, "report.console_seconds=0.1")


def recorded(tmp_path: Path) -> RunFolder:
    return RunFolder(tmp_path / "x" / "run")


def wait_for_an_episode(tmp_path: Path) -> None:
    data = recorded(tmp_path).data

    def found() -> bool:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a shard may be sealed just while it is looked at
            return (data / "store.json").is_file() and len(Store(data)) > 0

    wait_until(found, what="an episode in the store")


def test_ctrl_c_seals_what_was_recorded(tmp_path: Path, rollmill: Run) -> None:
    command = rollmill(*long_run(tmp_path))
    command.wait_for_text("frames/s", times=3)
    wait_for_an_episode(tmp_path)
    (recorder,) = command.processes_of("rollmill.recording.process")
    os.kill(recorder, signal.SIGINT)  # a scheduler may signal every process of a job
    os.kill(recorder, signal.SIGTERM)
    command.press_ctrl_c()
    assert command.wait() == 130
    command.assert_nothing_left()
    run = recorded(tmp_path)
    assert "recorded " in command.text
    assert not list(run.data.rglob("*.open.tfrecord"))
    assert len(Store(run.data)) > 0


def test_kill_9_of_the_run_leaves_no_recorder_and_a_readable_store(tmp_path: Path, rollmill: Run) -> None:
    command = rollmill(*long_run(tmp_path), "checkpoints.every_seconds=0.2")
    command.wait_for_text("checkpoint ", times=2)
    wait_for_an_episode(tmp_path)
    assert command.processes_of("rollmill.recording.process")
    command.send(signal.SIGKILL)
    command.process.wait()
    command.assert_nothing_left()
    before = set(Store(recorded(tmp_path).data).table.uid.tolist())
    assert before
    again = rollmill(*long_run(tmp_path), "--resume", "stop.seconds=0.1", "stop.batches=0")
    again.wait()
    store = Store(recorded(tmp_path).data)
    assert before <= set(store.table.uid.tolist())
    assert not list(recorded(tmp_path).data.rglob("*.open.tfrecord"))


def test_the_two_kinds(tmp_path: Path) -> None:
    kinds = []

    class Kind(Observer):
        def on_init(self, run: OnlineRun) -> None:
            kinds.append(type(run.recorder))

    for mode, words in (("serial", ALL), ("sync", ALL), ("sync", ())):
        train_here(tmp_path / f"{mode}{len(words)}", *MARKER, f"sampling.mode={mode}", *words, "stop.batches=1",
                   observers=[Kind()])  # fmt: skip
    assert kinds == [LocalRecorder, ProcessRecorder, type(None)]


@pytest.mark.parametrize("mode", ["serial", "async"])
def test_what_info_says_is_recorded_across_segments(tmp_path: Path, mode: str) -> None:
    """Episodes of seven steps in segments of eight: info goes over the seam like the observation."""
    words = ("env=rooms_env:Rooms", "env.info=[lives,room:text]", f"sampling.mode={mode}", "recording.keep=all")
    _, folder = train_here(tmp_path, *words, "stop.frames=800")
    whole = 0
    with Store(folder.data) as store:
        for number in range(len(store)):
            episode = store.episode(number)
            first = episode.info.first_step
            at = range(first, first + len(episode) + 1)
            assert episode.infos["lives"].tolist() == [3 - k // 3 for k in at]
            assert episode.infos["room"].tolist() == [f"Zimmer {k} ä" if k else "hall" for k in at]
            whole += len(episode) == 7
    assert whole > 50
