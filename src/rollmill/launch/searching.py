"""The launcher of a search: where there is room it chooses the settings of the next trial, and it ends poor ones."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rollmill.core import atomic
from rollmill.core.config.yaml import to_yaml
from rollmill.core.errors import ConfigError
from rollmill.core.run_folder import RunFolder
from rollmill.launch.compare.aggregate import score
from rollmill.launch.experiment import Experiment
from rollmill.launch.launcher import Launcher, run_record
from rollmill.launch.plan import CONFIG, Check, plan_trials
from rollmill.launch.progress import read_curve
from rollmill.launch.records import LaunchRecords, PlanRecord, Trial
from rollmill.launch.search import Search, best, hopeless, part_means, suggest, usable
from rollmill.launch.settings import LaunchSettings
from rollmill.launch.status import RunStatus


class SearchLauncher(Launcher):
    """Looks after the runs of a search until it has had all its trials.

    A trial is written down before its runs are planned, and its runs are planned before they are started: killed
    anywhere between, the next launcher finds what is missing.
    """

    def __init__(
        self,
        records: LaunchRecords,
        plan: PlanRecord,
        settings: LaunchSettings,
        experiment: Experiment,
        check: Check,
        **options: Any,
    ) -> None:
        super().__init__(records, plan, settings, **options)
        assert experiment.search is not None
        self.experiment, self.search, self._check = experiment, experiment.search, check
        self.trials = records.trials()
        seeds = max(1, len(experiment.seed_list()))
        self._parallel = self.search.parallel or self.backend.capacity // seeds or min(1, self.backend.capacity)
        if not self._parallel:
            raise ConfigError(
                f"search: the back end {settings.backend} takes any number of runs at once: say how many "
                "trials may run at the same time (parallel)"
            )
        self._plan([(trial.number, dict(trial.params)) for trial in self.trials])

    def tick(self) -> list[RunStatus]:
        statuses = super().tick()
        if self._judge(statuses) + self._choose():
            statuses = super().tick()
        return statuses

    def reset_failures(self) -> list[str]:
        """Let failed trials be tried again; what was ended because it was poor stays so."""
        pruned = {name for trial in self.trials if trial.state == "pruned" for name in self._runs_of(trial)}
        again = super().reset_failures()
        for name in pruned & set(again):
            self.records.set_cancelled(name, True)
        for trial in self.trials:
            if trial.state == "failed":
                self._write(replace(trial, state="running"))
        return [name for name in again if name not in pruned]

    # ------------------------------------------------------------------------------------------ choosing

    def _choose(self) -> int:
        """Choose settings for as many trials as there is room for; returns how many."""
        running = sum(trial.state == "running" for trial in self.trials)
        count = max(0, min(self._parallel - running, self.search.trials - len(self.trials)))
        for _ in range(count):
            number, setting = len(self.trials), suggest(self.search, self.trials)
            trial = Trial(number, setting)
            self.records.write_trial(trial)
            self.trials.append(trial)
            self._plan([(number, setting)])
        return count

    def _plan(self, trials: Sequence[tuple[int, Mapping[str, Any]]]) -> None:
        """Take the runs of trials into the plan, those that are not in it."""
        known = {run.name for run in self.plan.runs}
        planned = plan_trials(
            self.experiment, self.records.experiment.parent, self._check, [(n, dict(s)) for n, s in trials]
        )
        new = tuple(run_record(run) for run in planned if run.name not in known)
        if new:
            self.plan = replace(self.plan, runs=(*self.plan.runs, *new))
            self.records.write_plan(self.plan)

    # ------------------------------------------------------------------------------------------- judging

    def _judge(self, statuses: Sequence[RunStatus]) -> int:
        """Write down what running trials have reached, end those without hope; returns how many have ended."""
        by_name = {status.run.name: status for status in statuses}
        ended = 0
        for trial in [trial for trial in self.trials if trial.state == "running"]:
            runs = [by_name[name] for name in self._runs_of(trial) if name in by_name]
            if not runs:
                continue
            found = self._judged(trial, runs)
            if found != trial:
                self._write(found)
            if found.state == "running" and hopeless(self.search, self.trials, found):
                self._end(found, runs)
                ended += 1
            ended += found.state != "running"
        return ended

    def _judged(self, trial: Trial, runs: Sequence[RunStatus]) -> Trial:
        curves = [read_curve(RunFolder(Path(run.run.folder)).metrics, self.search.metric) for run in runs]
        parts = [
            part_means(curve.frames, curve.values, run.run.frames) if run.run.frames else []
            for run, curve in zip(runs, curves)
        ]
        together = tuple(_mean(values) for values in zip(*parts))
        trial = replace(trial, parts=together) if len(together) > len(trial.parts) else trial
        if not all(run.settled for run in runs):
            return trial
        scores = [score(curve, curve.frames[-1]) if curve.frames else None for curve in curves]
        if all(run.state == "finished" for run in runs) and all(map(usable, scores)):
            return replace(trial, state="finished", value=sum(s for s in scores if s is not None) / len(scores))
        return replace(trial, state="failed")

    def _end(self, trial: Trial, runs: Sequence[RunStatus]) -> None:
        self._write(replace(trial, state="pruned"))
        for run in runs:  # first the mark: a run that is about to begin must not
            self.records.set_cancelled(run.run.name, True)
        handles = {run.run.name: run.handle for run in runs if run.active and run.handle is not None}
        self.backend.cancel(self.records, handles)

    def _write(self, trial: Trial) -> None:
        self.records.write_trial(trial)
        self.trials[trial.number] = trial
        found = best(self.search, self.trials)
        if trial.state == "finished" and found is not None:
            atomic.write_text(self.records.best_settings, to_yaml(_nested(found.params)))

    def _runs_of(self, trial: Trial) -> list[str]:
        return [run.name for run in self.plan.runs if run.group == f"trial-{trial.number:03d}"]


def _nested(params: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``{"learning.gamma": 1}`` as ``{"learning": {"gamma": 1}}``, as in a file; ``config`` is left out."""
    tree: dict[str, Any] = {}
    for key, value in params.items():
        *blocks, last = key.split(".")
        place = tree
        for block in blocks:
            place = place.setdefault(block, {})
        if key != CONFIG:
            place[last] = value
    return tree


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if len(known) == len(values) else None


def told(search: Search, trials: Sequence[Trial], settings: Path) -> list[str]:
    """Say what a search has found, in a line or two."""
    counts = {
        state: sum(trial.state == state for trial in trials) for state in ("running", "finished", "pruned", "failed")
    }
    states = ", ".join(f"{count} {state}" for state, count in counts.items() if count)
    lines = [f"{len(trials)} of {search.trials} trials{f': {states}' if states else ''}"]
    if (found := best(search, trials)) is not None:
        words = " ".join(f"{key}={json.dumps(value)}" for key, value in found.params.items())
        lines.append(f"best: trial-{found.number:03d}, {search.metric} {found.value:.4g}: {words} (-f {settings})")
    return lines
