"""What is kept is like what was played: ``toy_coin`` has episodes of 3 or 75 steps, half of them each.

Serial runs repeat bit for bit, so nothing here depends on luck: the seeds were not chosen, and a bias that shows in one
of a thousand runs would have shown. Means are compared in standard errors (z), pooled over seeds: a fair coin gives
|z| above 4 once in 16,000 comparisons. ``benchmarks/unbiased.py`` does the same with many more runs.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from holding import HOLDING
from running import Run, command_words, train_here

from rollmill.core.run_folder import RunFolder
from rollmill.core.seeds import Seeds
from rollmill.envs.probe import probe_here
from rollmill.envs.settings import EnvSettings
from rollmill.recording.assemble import LanePlan
from rollmill.recording.budget import folder_bytes
from rollmill.recording.choose import ChosenLanes, EpisodeChooser, RunShape
from rollmill.recording.played_log import PlayedLog
from rollmill.recording.recorder import LocalRecorder, ProcessRecorder
from rollmill.recording.settings import RecordingSettings
from rollmill.recording.sink import SinkPlan
from rollmill.reports.store.comparison import ALARM, Comparison, compare
from rollmill.runs.train.loop import OnlineRun
from rollmill.runs.train.observers import Observer
from rollmill.sampling.policies.random import RandomPolicy
from rollmill.sampling.sampler import Sampler, SamplerPlan
from rollmill.sampling.settings import SamplingSettings
from rollmill.store.format.schema import StoreSchema
from rollmill.store.played import PlayedEpisodes
from rollmill.store.reader import Store

GROUPS, LANES = 2, 16


@dataclass
class Recorded:
    """What a recording left, and the largest it ever was."""

    store: Store
    comparison: Comparison
    largest: int
    cut: int

    @property
    def z(self) -> float:
        return self.comparison.differences["length"].z


def record_coins(folder: Path, seed: int, frames: int, **settings: object) -> Recorded:
    """Play ``toy_coin`` at random in this process and record it; no learner."""
    env = EnvSettings(id="toy_coin")
    spec, seeds = probe_here(env), Seeds(seed)
    sampling = SamplingSettings(mode="serial", workers=1, envs_per_worker=32, groups=GROUPS, rollout=32)
    plan = SamplerPlan(settings=sampling, env=env, spec=spec, seeds=seeds.branch("envs"), segments_per_batch=2)
    sampler = Sampler(plan, [RandomPolicy(spec, seed)])
    chosen = RecordingSettings(**settings)  # type: ignore[arg-type]
    lanes = LanePlan(GROUPS, LANES, 1, GROUPS, plan.seeds, key=seeds.branch("recording").integer())
    shape = RunShape(frames, 1, bytes_per_row=40.0, episode_steps=39.0)
    chooser = EpisodeChooser(chosen, shape, ChosenLanes(lanes.key, GROUPS, LANES, 1))
    sink = SinkPlan(folder, StoreSchema.for_env(spec), chosen, lanes, 40)
    recorder, largest = LocalRecorder(sink, chooser, sampler.arena), 0
    sampler.start()
    recorder.start()
    played = PlayedLog(folder)
    while sampler.frames < frames:
        slots = sampler.take(1, 0)
        if slots is None:
            sampler.round()
            continue
        groups = sampler.inference.group_of_slot[slots].tolist()
        sampler.release(recorder.offer(slots, groups, sampler.frames))
        played.add(list(sampler.episodes))
        sampler.episodes.clear()
        largest = max(largest, folder_bytes(folder))
    sampler.stop()
    recorder.stop()
    played.save()
    return read(folder, max(largest, folder_bytes(folder)), recorder.counts()["cut_episodes"])


def read(folder: Path, largest: int = 0, cut: int = 0) -> Recorded:
    store, played = Store(folder), PlayedEpisodes.load(folder)
    assert played is not None
    found = compare(store.table, played)
    assert found is not None
    return Recorded(store, found, largest, cut)


@pytest.mark.parametrize("at_budget", ["stop", "thin", "ring"])
@pytest.mark.parametrize("when", ["run", "last:50%", "after:10000", "spread"])
@pytest.mark.parametrize("keep", ["all", "episodes"])
def test_kept_episodes_are_like_those_played(tmp_path: Path, keep: str, when: str, at_budget: str) -> None:
    settings = {"keep": keep, "when": when, "at_budget": at_budget, "every": 2, "budget_gb": 0.001, "block": 16}
    runs = [record_coins(tmp_path / str(seed), seed, 30_000, **settings) for seed in range(2)]
    assert max(run.largest for run in runs) <= 1_000_000
    assert abs(sum(run.z for run in runs)) / np.sqrt(len(runs)) < ALARM
    for run in runs:
        assert run.comparison.agrees, run.comparison.sentence()
        assert 60 < run.comparison.kept < run.comparison.all_played
        assert run.cut == 0
        assert not run.store.table["partial_start"].any()


def test_everything_is_everything(tmp_path: Path) -> None:
    found = record_coins(tmp_path, 0, 20_000, keep="all").comparison
    assert found.kept == found.played == found.all_played
    assert found.agrees
    assert "like those played" in found.sentence()


def test_weights_undo_probabilities_that_differ(tmp_path: Path) -> None:
    """With a budget that is soon nearly full, early episodes are far more likely to be kept than late ones."""
    runs = [record_coins(tmp_path / str(seed), seed, 40_000, keep="all", budget_gb=0.0011) for seed in range(4)]
    for run in runs:
        probability = run.store.table["probability"]
        assert probability.max() > 4 * probability.min()
        weights = 1 / probability[~run.store.table["partial_end"]]
        assert weights.sum() == pytest.approx(run.comparison.played, rel=0.15)
    assert abs(sum(run.z for run in runs)) / 2 < ALARM


def test_the_budget_is_spread_evenly(tmp_path: Path) -> None:
    run = record_coins(tmp_path, 1, 150_000, keep="all", when="spread", budget_gb=0.002, block=16)
    table = run.store.table
    used, _ = np.histogram(table["global_step_first"], bins=6, range=(0, 150_000), weights=table["bytes"])
    assert used.min() > 0.7 * used.max()
    assert 1_600_000 < run.largest <= 2_000_000


def test_pieces_do_not_claim_to_be_like_what_was_played(tmp_path: Path) -> None:
    words = ("env=toy_coin", "sampling.mode=serial", "recording=rotate", "stop.batches=20")
    _, run = train_here(tmp_path, *words)
    assert np.isnan(Store(run.data).table["probability"]).all()
    played = PlayedEpisodes.load(run.data)
    assert played is not None
    assert compare(Store(run.data).table, played) is None
    assert "not kept by chance" in (run.path / "data_report.html").read_text()


# -- a recorder in trouble ---------------------------------------------------------------------------------

ASYNC = (
    "env=toy_coin",
    "sampling.mode=async",
    "sampling.envs_per_worker=16",
    "sampling.rollout=32",
    "recording=all",
    "learning.batch_size=1024",
)


class Brake(Observer):
    """Lets the recorder's process run for a fifth of the time only."""

    def __init__(self) -> None:
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.pid = 0

    def on_start(self, run: OnlineRun) -> None:
        assert isinstance(run.recorder, ProcessRecorder)
        assert run.recorder.pid is not None
        self.pid = run.recorder.pid
        self._thread.start()

    def _run(self) -> None:
        while not self._over.is_set():
            os.kill(self.pid, signal.SIGSTOP)
            time.sleep(0.08)
            os.kill(self.pid, signal.SIGCONT)
            time.sleep(0.02)

    def on_training_step(self, run: OnlineRun, iteration: int) -> None:
        if run.progress > 0.95 and not self._over.is_set():
            self._over.set()
            self._thread.join()


def test_a_recorder_that_cannot_keep_up_chooses_fewer(tmp_path: Path) -> None:
    _, run = train_here(tmp_path, *ASYNC, "recording.queue_segments=24", "stop.frames=250_000", observers=[Brake()])
    found = read(run.data).comparison
    assert found.agrees, found.sentence()
    assert found.kept < 0.95 * found.played, "it was too slow for all of them"
    assert found.kept > 100
    table = Store(run.data).table
    assert np.count_nonzero(table["partial_end"]) < 0.1 * len(table), "few were cut"


def test_a_killed_recorder_goes_on(tmp_path: Path) -> None:
    words = (*ASYNC, "recording.when=spread", "recording.budget_gb=0.002", "stop.frames=150_000")

    class Die(Observer):
        """The death of the recorder."""

        def on_training_step(self, run: OnlineRun, iteration: int) -> None:
            assert isinstance(run.recorder, ProcessRecorder)
            if iteration in (40, 80) and run.recorder.pid is not None:
                os.kill(run.recorder.pid, signal.SIGKILL)

    train_here(tmp_path, *words, "stop.batches=100", observers=[Die()])
    _, run = train_here(tmp_path, *words, mode="resume", observers=[Die()])
    found = read(RunFolder(run.path).data).comparison
    assert found.agrees, found.sentence()
    assert found.kept > 100


def test_killed_and_resumed(tmp_path: Path, rollmill: Run) -> None:
    """Everything of the run dies at once, some updates after its last checkpoint: those frames are played again."""
    words = [*ASYNC, "recording.when=spread", "recording.budget_gb=0.002", "checkpoints.every_updates=30"]
    command = command_words(tmp_path, *words, "stop.frames=120_000")
    assert rollmill(*command, f"observers.use=[{HOLDING}:Dies]", "observers.args.Dies.at=55").wait() == -signal.SIGKILL
    data = RunFolder(tmp_path / "x" / "run").data
    last = int(Store(data, unfinished=True).table["global_step_last"].max())
    resumed = rollmill(*command, "--resume", "observers.args.Dies.at=-1")
    assert resumed.wait() == 0, resumed.text
    found = read(data)
    assert found.comparison.agrees, found.comparison.sentence()
    assert found.comparison.kept > 100
    table = found.store.table
    assert (table["global_step_first"] > last).sum() > 100, "it went on"
