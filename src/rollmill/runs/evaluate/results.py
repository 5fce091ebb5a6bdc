"""What an evaluation has found: a row for every episode, metrics over them, and the files they go to."""

from __future__ import annotations

import contextlib
import csv
import io
import json
import math
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any

import numpy as np

from rollmill.core import atomic
from rollmill.core.errors import RunFolderError
from rollmill.core.fields import Array
from rollmill.envs.tasks.scores import suite_score, task_score
from rollmill.envs.tasks.suite import Task
from rollmill.reports.run.results import Results, Row

PROGRESS_SECONDS = 2.0


@dataclass(frozen=True)
class EpisodeRow:
    """One episode of one agent."""

    episode: int
    """Its number: with the evaluation's seed it decides the environment's seed."""
    agent: int
    seed: int | None
    """What the environment was reset with; None where it is not seeded alone (``env.vector``)."""
    episode_return: float
    length: int
    """Steps."""
    terminated: bool
    """False: truncated."""
    policy_id: int = 0
    target: float | None = None
    """The return that was asked for."""
    task: str | None = None
    """Of a suite."""


@dataclass(frozen=True)
class Score:
    """Rows of some episodes, in the order of their numbers.

    Agents of one episode are not independent: metrics are over episodes, each counted with the mean of its agents.
    """

    rows: Sequence[EpisodeRow]
    lost: int = 0
    """Episodes that an environment's fault or a worker's death has ended; they count nowhere."""
    stats: Mapping[tuple[int, int], Mapping[str, float]] = field(default_factory=dict)
    """The environment's own metrics (``info["episode_stats"]``) by the number of the episode and the agent; those of
    the episode as a whole are with the first agent."""
    tasks: tuple[Task, ...] = ()
    """Of a suite."""

    @property
    def returns(self) -> list[float]:
        return [row.episode_return for row in self.rows]

    @property
    def lengths(self) -> list[int]:
        return [row.length for row in self.rows]

    def summary(self) -> dict[str, float | None]:
        """Return mean, standard error (None for a single episode), median, extremes, lengths."""
        values = self._by_episode(self.returns)
        lengths = np.asarray(self.lengths)
        count = len(values)
        return {
            "episodes": count,
            "mean": float(values.mean()),
            "standard_error": float(values.std(ddof=1) / math.sqrt(count)) if count > 1 else None,
            "median": float(np.median(values)),
            "min": float(values.min()),
            "max": float(values.max()),
            "mean_length": float(lengths.mean()),
            "min_length": int(lengths.min()),
            "max_length": int(lengths.max()),
            "steps": int(lengths.sum()),
            "lost": self.lost,
        }

    def own_means(self) -> dict[str, float]:
        """Return the mean of each of the environment's own metrics, over the episodes and agents that have it."""
        names = dict.fromkeys(name for own in self.stats.values() for name in own)
        return {name: float(np.mean([own[name] for own in self.stats.values() if name in own])) for name in names}

    def by_agent(self) -> dict[int, float]:
        """Return the mean return of every agent; empty where there is one only."""
        found: dict[int, list[float]] = {}
        for row in self.rows:
            found.setdefault(row.agent, []).append(row.episode_return)
        return {agent: float(np.mean(values)) for agent, values in sorted(found.items())} if len(found) > 1 else {}

    def by_task(self) -> dict[str, dict[str, float | None]]:
        """Return episodes, mean return, its standard error and score of every task of a suite; empty elsewhere."""
        found: dict[str, dict[str, float | None]] = {}
        for task in self.tasks:
            own = Score([row for row in self.rows if row.task == task.name])
            if own.rows:
                summary = own.summary()
                kept = {key: summary[key] for key in ("episodes", "mean", "standard_error", "mean_length")}
                found[task.name] = {**kept, "score": task_score(task, float(kept["mean"] or 0.0))}
        return found

    @property
    def suite_score(self) -> float | None:
        """Mean capped score over all tasks of a suite; None elsewhere, or as long as one of them lacks an episode."""
        return suite_score(self.tasks, {name: float(row["mean"] or 0.0) for name, row in self.by_task().items()})

    def _by_episode(self, values: Sequence[float]) -> Array:
        groups: dict[int, list[float]] = {}
        for row, value in zip(self.rows, values, strict=True):
            groups.setdefault(row.episode, []).append(value)
        return np.array([np.mean(group) for group in groups.values()])


@dataclass(frozen=True)
class Video:
    """One video file, or why there is none."""

    file: str
    policy: str
    episodes: list[int]
    fps: float
    problem: str = ""

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class EvalResult:
    """What was found about one policy (and one return that it was asked for)."""

    checkpoint: str
    """Its file; of a policy without one, its name."""
    frames: int
    env: str
    policy: Score
    random: Score | None = None
    options: dict[str, Any] = field(default_factory=dict)
    record: str | None = None
    """The store with the episodes."""
    videos: list[Video] = field(default_factory=list)
    name: str = ""
    """What it is called in tables: its run, or a name that tells it from the others."""
    target: float | None = None
    """The return that was asked for."""
    note: str = ""
    unit: str = "frames"
    """Of ``frames``; nothing where the policy was not trained."""
    seed: int | None = None
    """Of the evaluation, where several were asked for."""

    @property
    def returns(self) -> list[float]:
        """The return of every episode."""
        return self.policy.returns

    @property
    def mean_return(self) -> float:
        return float(np.mean(self.returns))

    def __repr__(self) -> str:
        summary = self.policy.summary()
        error = "" if summary["standard_error"] is None else f" +- {summary['standard_error']:.2g}"
        beside = "" if self.random is None else f", random play {self.random.summary()['mean']:.4g}"
        return f"<{self.name}: return {summary['mean']:.4g}{error} over {summary['episodes']} episodes{beside}>"

    def to_dict(self) -> dict[str, Any]:
        return {
            "policy": self.name,
            "target": self.target,
            "checkpoint": self.checkpoint,
            "frames": self.frames,
            "env": self.env,
            **({"seed": self.seed} if self.seed is not None else {}),
            **self.policy.summary(),
            "by_agent": self.policy.by_agent(),
            **({"by_task": self.policy.by_task(), "suite_score": self.policy.suite_score} if self.policy.tasks else {}),
            "stats": self.policy.own_means(),
            "random": {**self.random.summary(), "stats": self.random.own_means()} if self.random else None,
            "returns": self.policy.returns,
            "lengths": self.policy.lengths,
            "seeds": [row.seed for row in self.policy.rows],
            "options": self.options,
            "record": self.record,
            "videos": [video.to_dict() for video in self.videos],
            "note": self.note,
        }


def document(results: Sequence[EvalResult], page: Path | None = None) -> dict[str, Any]:
    """Return the JSON of an evaluation: what was found about one policy.

    Of several it is ``{"results": [...]}`` and their table.
    """
    if len(results) == 1:
        found = results[0].to_dict()
    else:
        found = {"results": [result.to_dict() for result in results], **comparison(results).to_dict()}
        found |= {"over_seeds": [asdict(row) for row in seeds]} if (seeds := over_seeds(results)) else {}
    return {**found, "page": str(page)} if page is not None else found


def write_document(path: Path, results: Sequence[EvalResult]) -> None:
    text = json.dumps(document(results), indent=2, allow_nan=False, default=str) + "\n"
    try:
        atomic.write_text(path, text)
    except OSError as error:
        raise RunFolderError(f"{path}: the result cannot be written: {error.strerror or error}") from error


@dataclass(frozen=True)
class OverSeeds:
    """What several seeds of one policy (and one target) have in common."""

    policy: str
    target: float | None
    seeds: list[int]
    mean: float
    """Of the seeds' mean returns."""
    standard_error: float | None
    """Of that mean, over seeds; None for a single one."""
    min: float
    max: float

    def __str__(self) -> str:
        error = "" if self.standard_error is None else f" +- {self.standard_error:.2g} (standard error)"
        asked = "" if self.target is None else f", asked for {self.target:g}"
        return (
            f"{self.policy}{asked}: mean return of {len(self.seeds)} seeds {self.mean:.4g}{error}, "
            f"from {self.min:.4g} to {self.max:.4g}"
        )


def over_seeds(results: Sequence[EvalResult]) -> list[OverSeeds]:
    """Return one entry for each policy and target, where several seeds were asked for."""
    groups: dict[tuple[object, ...], list[EvalResult]] = {}
    for result in results:
        if result.seed is not None:
            groups.setdefault((result.checkpoint, result.env, result.target), []).append(result)
    found = []
    for group in groups.values():
        means = np.array([result.mean_return for result in group])
        error = float(means.std(ddof=1) / math.sqrt(len(means))) if len(means) > 1 else None
        name = group[0].name.removesuffix(f", seed {group[0].seed}")
        seeds = [result.seed for result in group if result.seed is not None]
        spread = (float(means.mean()), error, float(means.min()), float(means.max()))
        found.append(OverSeeds(name, group[0].target, seeds, *spread))
    return found


def comparison(results: Sequence[EvalResult]) -> Results:
    """Return all policies in one table, and below them random play in each of their environments."""
    envs = list(dict.fromkeys(result.env for result in results))
    frames = len({result.name for result in results}) < len({(result.name, result.frames) for result in results})
    rows = [
        row_of(_in_env(result.name, result.env, envs), result.policy, result.target, result.frames if frames else None)
        for result in results
    ]
    listed = {result.env for result in results if result.name == "random"}
    random = {
        (result.env, result.seed): result.random
        for result in results
        if result.random is not None and result.env not in listed
    }
    for (env, seed), score in random.items():
        name = "random" if seed is None else f"random, seed {seed}"
        rows.append(row_of(_in_env(name, env, envs), score))
    notes = dict.fromkeys(f"{result.name}: {result.note}" for result in results if result.note)
    return Results(", ".join(envs), rows, notes=[*map(str, over_seeds(results)), *notes])


def _in_env(name: str, env: str, envs: Sequence[str]) -> str:
    return name if len(envs) == 1 else f"{name} ({env})"


def row_of(name: str, score: Score, target: float | None = None, frames: int | None = None) -> Row:
    """Return a score as a row of a table."""
    s = score.summary()
    mean, median, low, high, length = (s[key] or 0.0 for key in ("mean", "median", "min", "max", "mean_length"))
    error, episodes = s["standard_error"], int(s["episodes"] or 0)
    own = score.own_means()
    if score.suite_score is not None:
        own = {"suite score": score.suite_score, **own}
    return Row(name, target, episodes, mean, error, median, low, high, length, frames, own)


def table(results: Sequence[EvalResult]) -> str:
    """Return the results as text: a paragraph for one policy, a table for several."""
    text = _paragraph(results[0]) if len(results) == 1 else [comparison(results).text()]
    return "\n".join([*text, *(line for result in results for line in _where(result))])


def _paragraph(result: EvalResult) -> list[str]:
    trained = f" ({result.frames:,} {result.unit})" if result.unit else ""
    lines = [f"{result.env}, {result.checkpoint}{trained}"]
    asked = "" if result.target is None else f", asked for {result.target:g}"
    lines += [_sentence(f"policy{asked}", result.policy), *_task_lines(result.policy)]
    if result.random is not None:
        lines.append(_sentence("random", result.random))
    return [*lines, *([f"{result.name}: {result.note}"] if result.note else [])]


def _sentence(name: str, score: Score) -> str:
    s = score.summary()
    error = "" if s["standard_error"] is None else f" +- {s['standard_error']:.2g} (standard error)"
    agents = "".join(f"; agent {agent} {mean:.4g}" for agent, mean in score.by_agent().items())
    own = "".join(f"; {name} {mean:.4g}" for name, mean in score.own_means().items())
    lost = f"; {score.lost} more were lost by faults" if score.lost else ""
    return (
        f"{name:8} return {s['mean']:.4g}{error}, median {s['median']:.4g}, "
        f"from {s['min']:.4g} to {s['max']:.4g}; length {s['mean_length']:.1f} steps; {s['episodes']:.0f} episodes"
        f"{own}{agents}{lost}"
    )


def _task_lines(score: Score) -> Iterator[str]:
    """Yield a line for every task of a suite, and one for all of it."""
    width = max((len(task.name) for task in score.tasks), default=0)
    for name, row in score.by_task().items():
        error = "" if row["standard_error"] is None else f" +- {row['standard_error']:.2g}"
        points = "" if row["score"] is None else f", score {row['score']:.1f}"
        yield f"  {name:{width}}  return {row['mean']:.4g}{error}{points}; {row['episodes']:.0f} episodes"
    if score.suite_score is not None:
        yield f"  suite score {score.suite_score:.1f} (mean of all tasks, each at most 100)"


def _where(result: EvalResult) -> list[str]:
    lines = [f"episodes in {result.record}"] if result.record is not None else []
    lines += [f"video {video.file}" for video in result.videos if not video.problem]
    return lines + [f"no video {video.file}: {video.problem}" for video in result.videos if video.problem]


# -- rows on disk ------------------------------------------------------------------------------------


COLUMNS = ("checkpoint", "frames", "policy", *(f.name for f in fields(EpisodeRow)))


class CsvFile(contextlib.AbstractContextManager["CsvFile"]):
    """Rows of episodes, each on disk as the episode ends; ``<file>.progress.json`` tells how far it is.

    While the evaluation runs, rows stand in the order of ending. At its end the file is replaced by one in the order of
    the episodes' numbers, which is the same for the same seed.
    """

    def __init__(self, path: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self._path, self._clock = path, clock
        self._kept: list[tuple[Any, ...]] = []
        self._due = clock()
        self._source: tuple[str, int, str] = ("", 0, "")
        try:
            self._file: IO[str] = open(path, "w", encoding="utf-8", newline="")  # noqa: SIM115 - open until __exit__
            self._write_lines([COLUMNS])
        except OSError as error:
            raise self._failed(error) from error

    def begin(self, checkpoint: str, frames: int, policy: str) -> None:
        """Say of which policy the rows to come are."""
        self._source = (checkpoint, frames, policy)

    def add(self, rows: Iterable[EpisodeRow], metrics: Mapping[str, Any]) -> None:
        fresh = [(*self._source, *asdict(row).values()) for row in rows]
        self._kept += fresh
        try:
            self._write_lines(fresh)
            if self._clock() >= self._due:
                self._due = self._clock() + PROGRESS_SECONDS
                self._progress("running", metrics)
        except OSError as error:
            raise self._failed(error) from error

    def keep(self, score: Score) -> None:
        """Keep the rows of the policy that has just been played, in the order of its score."""
        others = [row for row in self._kept if row[:3] != self._source]
        self._kept = others + [(*self._source, *asdict(row).values()) for row in score.rows]

    def _write_lines(self, lines: Iterable[Sequence[Any]]) -> None:
        csv.writer(self._file, lineterminator="\n").writerows(lines)
        self._file.flush()

    def _progress(self, state: str, metrics: Mapping[str, Any]) -> None:
        now = datetime.now(UTC).isoformat(timespec="seconds")
        value = {"state": state, "time": now, "pid": os.getpid(), "rows": len(self._kept), **metrics}
        path = self._path.with_name(self._path.name + ".progress.json")
        temporary = path.with_suffix(".tmp")  # no sync: a note for whoever looks
        temporary.write_text(json.dumps(value, indent=2, allow_nan=False) + "\n", encoding="utf-8")
        os.replace(temporary, path)

    def __exit__(self, _type: object, error: BaseException | None, _trace: object) -> None:
        self._file.close()
        state = "finished" if error is None else "interrupted" if isinstance(error, KeyboardInterrupt) else "failed"
        try:
            if error is None:
                text = io.StringIO()
                csv.writer(text, lineterminator="\n").writerows([COLUMNS, *self._kept])
                atomic.write_text(self._path, text.getvalue())
            self._progress(state, {})
        except OSError as problem:
            raise self._failed(problem) from problem

    def _failed(self, error: OSError) -> RunFolderError:
        return RunFolderError(f"{self._path}: rows cannot be written: {error.strerror or error}")
