"""What ``rollmill eval`` can be told, what of it does not go together, and where it may write."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from rollmill.core.errors import ConfigError, RunFolderError

EPISODES = 100
ENVS = 16
VIDEOS = 3
MAX_CELLS = 64
TYPICAL_OF = 8
"""Episodes of which a video shows the one whose return is nearest to their median."""

_NO_OPTION = {"option": False}
"""Of fields that ``rollmill eval`` works out: ``--record`` may be given with a folder and without one."""


@dataclass(frozen=True)
class EvalOptions:
    """How to evaluate, and what to keep of it."""

    episodes: int | None = None
    """How many episodes to play, for every policy and target (unset: 100)."""
    steps: int | None = None
    """Instead of --episodes: play episodes 0, 1, 2 ... until they have so many steps together."""
    deterministic: bool = False
    """Take the most likely action instead of sampling one."""
    seed: int = 1
    """Seed of environments and actions; the same seed gives the same metrics, with any number of workers."""
    seeds: tuple[int, ...] = ()
    """Instead of --seed: play the episodes of each of these seeds, and say how far their means lie apart."""
    workers: int = 0
    """Worker processes; 0 takes one per core."""
    serial: bool = False
    """Play in this very process: breakpoints in environment and policy stop, and no time-out runs."""
    envs: int = ENVS
    """Environments that play side by side; sampled actions depend on it."""
    best: bool = False
    """Take a run's best checkpoint instead of the newest: by its checkpoints.best_metric."""
    member: int | None = None
    """Of a population: the member that plays; unset: the best."""
    all_checkpoints: bool = False
    """Evaluate every checkpoint of a run."""
    random: bool = False
    """Evaluate a random policy beside it, on the same episodes."""
    behaviour: str | None = None
    """The policy that made the data, or any other that shall count as 100 %: it plays beside them."""
    targets: tuple[float, ...] = ()
    """Returns to ask Decision Transformers for; none: those of each run."""
    last: bool = False
    """Of offline runs, take the last weights instead of those with the lowest held-out loss."""
    device: str | None = None
    """cpu, cuda, cuda:N or auto (unset: as each was trained; offline runs take a GPU where there is one)."""
    encoder: Path | None = None
    """The encoder of a controller, where it is no longer where it was."""
    dynamics: Path | None = None
    """The dynamics model of a controller, where it is no longer where it was."""
    overrides: tuple[str, ...] = ()
    """Settings that differ from the run's own."""
    trust_code: bool = False
    """Run the code that checkpoints name; else your own words have to name it (env=my_env.py:MyEnv)."""
    record: bool = field(default=False, metadata=_NO_OPTION)
    """Write the episodes into a store."""
    record_dir: Path | None = field(default=None, metadata=_NO_OPTION)
    """The store; None: ``eval/<checkpoint>`` in the run's folder."""
    save_info: tuple[str, ...] | None = None
    """With --record: keep what the environment's info says with every row: these names, or without one all that
    occur."""
    out: Path | None = None
    """Write the result as JSON into this file."""
    csv: Path | None = None
    """Write a row for each episode into this file, as they end."""
    video: Path | None = None
    """Make videos of episodes in this folder (mp4), from the environment's RGB render."""
    video_count: int | None = None
    """How many episodes to show, each in a video of its own (unset: 3; for a report a typical one)."""
    grid: str = ""
    """ROWSxCOLUMNS: as many episodes in one video, for example 3x3."""
    fps: float | None = None
    """Images per second (unset: the simulator's own speed, frame skip included)."""
    no_captions: bool = False
    """Leave out the line with step and return."""
    report: Path | None = None
    """Write a page with table, plot and videos here; another kind of page of that name stays, this one gets a name
    beside it."""

    wandb: bool = False
    """Send a table of the episodes, and the videos, to the W&B run of each policy's training (wandb.mode=offline and
    other words change where to)."""

    @property
    def wanted(self) -> int | None:
        """Episodes to play; None: by steps."""
        return None if self.steps is not None else self.episodes or EPISODES

    @property
    def all_seeds(self) -> tuple[int, ...]:
        return self.seeds or (self.seed,)

    @property
    def cells(self) -> tuple[int, int] | None:
        """(rows, columns) of the grid."""
        match = re.fullmatch(r"(\d+)x(\d+)", self.grid)
        return (int(match.group(1)), int(match.group(2))) if match else None

    @property
    def typical(self) -> bool:
        """Whether one episode is shown in a video that is as they usually are."""
        return self.report is not None and self.video_count is None and not self.grid

    @property
    def shown_episodes(self) -> int:
        """How many episodes may be shown in videos (for every return that is asked for)."""
        if self.video is None:
            return 0
        if self.cells is not None:
            return self.cells[0] * self.cells[1]
        most = TYPICAL_OF if self.typical else VIDEOS if self.video_count is None else self.video_count
        return most if self.wanted is None else min(most, self.wanted)

    def check(self) -> None:
        """Raise ConfigError for what is wrong in itself or contradicts something else."""
        for is_wrong, reason in (*WRONG, *CONTRADICTIONS):
            if is_wrong(self):
                raise ConfigError(reason(self) if callable(reason) else reason)

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


Rule = tuple[Callable[[EvalOptions], bool], str | Callable[[EvalOptions], str]]

WRONG: tuple[Rule, ...] = (
    (lambda o: o.episodes is not None and o.episodes < 1, "--episodes must be at least 1"),
    (lambda o: o.steps is not None and o.steps < 1, "--steps must be at least 1"),
    (lambda o: o.envs < 1, "--envs must be at least 1"),
    (lambda o: o.workers < 0, "--workers must be 0 (one per core) or positive"),
    (lambda o: min((o.seed, *o.seeds)) < 0, "--seed must not be negative"),
    (lambda o: len(set(o.seeds)) < len(o.seeds), "--seeds: one is given twice"),
    (lambda o: any(not math.isfinite(target) for target in o.targets), "--targets must be finite numbers"),
    (lambda o: len(set(o.targets)) < len(o.targets), "--targets: one is given twice"),
    (
        lambda o: o.report is not None and o.report.suffix != ".html",
        lambda o: f"--report {o.report}: the page needs a name that ends in .html",
    ),
    (lambda o: o.video_count is not None and o.video_count < 1, "--video-count must be at least 1"),
    (lambda o: o.fps is not None and not 0 < o.fps <= 1000, "--fps must be above 0 and at most 1000"),
    (
        lambda o: bool(o.grid) and (o.cells is None or not 1 <= o.cells[0] * o.cells[1] <= MAX_CELLS),
        lambda o: f"--grid {o.grid}: expected ROWSxCOLUMNS with at most {MAX_CELLS} cells, for example 3x3",
    ),
)
"""What is wrong by itself."""

CONTRADICTIONS: tuple[Rule, ...] = (
    (
        lambda o: o.episodes is not None and o.steps is not None,
        "--episodes and --steps exclude each other: both say when to stop; give one of them",
    ),
    (
        lambda o: o.best and o.all_checkpoints,
        "--best and --all-checkpoints exclude each other: one checkpoint of a run, or every one",
    ),
    (
        lambda o: bool(o.seeds) and o.seed != 1,
        "--seed and --seeds exclude each other: give all of them with --seeds",
    ),
    (
        lambda o: len(o.seeds) > 1 and o.video is not None,
        "--seeds and --video: videos are of the episodes of one seed; give --seed",
    ),
    (
        lambda o: o.serial and o.workers > 1,
        lambda o: f"--serial and --workers {o.workers}: everything is in one process, there are no workers",
    ),
    (
        lambda o: o.workers > o.envs,
        lambda o: f"--workers {o.workers} and --envs {o.envs}: a worker needs an environment; raise --envs",
    ),
    (
        lambda o: o.record and o.steps is not None,
        "--record and --steps: what is recorded is settled when an episode begins, what --steps counts when all "
        "before it have ended; give --episodes",
    ),
    (
        lambda o: o.save_info is not None and not o.record,
        "--save-info: rows are kept in a store: add --record",
    ),
    (
        lambda o: len(o.targets) > 1 and o.steps is not None,
        "--targets and --steps: every target is played for as many episodes; give --episodes",
    ),
    (
        lambda o: len(o.targets) > 1 and o.record,
        "--targets and --record: a store holds the episodes of one target; give them one by one",
    ),
    (lambda o: o.video is None and bool(o.grid), "--grid is for videos: add --video FOLDER"),
    (lambda o: o.video is None and o.video_count is not None, "--video-count is for videos: add --video FOLDER"),
    (lambda o: o.video is None and o.fps is not None, "--fps is for videos: add --video FOLDER"),
    (lambda o: o.video is None and o.no_captions, "--no-captions is for videos: add --video FOLDER"),
    (
        lambda o: bool(o.grid) and o.video_count is not None,
        "--grid and --video-count exclude each other: a grid shows as many episodes as it has cells",
    ),
    (
        lambda o: o.wanted is not None and (o.video_count or 0) > o.wanted,
        lambda o: f"--video-count {o.video_count}: only {o.wanted} episodes are played; raise --episodes",
    ),
    (
        lambda o: o.cells is not None and o.wanted is not None and o.cells[0] * o.cells[1] > o.wanted,
        lambda o: f"--grid {o.grid}: has more cells than the {o.wanted} episodes that are played; raise --episodes",
    ),
    (
        lambda o: o.csv is not None and o.out is not None and _same(o.csv, o.out),
        lambda o: f"--csv and --out name the same file: {o.out}",
    ),
)
"""What does not go together."""


def _same(one: Path, two: Path) -> bool:
    return os.path.abspath(one) == os.path.abspath(two)


def check_targets(options: EvalOptions, words: Sequence[str | Path]) -> None:
    """Raise ConfigError where flags that choose among checkpoints are given for a single file."""
    for flag, given in (("--best", options.best), ("--all-checkpoints", options.all_checkpoints)):
        if given:
            check_chosen(flag, words)


def check_chosen(flag: str, words: Sequence[str | Path]) -> None:
    """Raise ConfigError where ``flag``, which chooses among checkpoints, is given for a single file."""
    files = [word for word in words if Path(word).is_file()]
    if files:
        raise ConfigError(f"{flag} chooses among a run's checkpoints; {files[0]} is a single one")


def check_outputs(options: EvalOptions) -> None:
    """Raise RunFolderError, now rather than after the last episode, when a file or folder cannot be written."""
    for flag, path in (("--out", options.out), ("--csv", options.csv), ("--report", options.report)):
        if path is not None:
            check_file(flag, path)
    if options.video is not None:
        _check_folder("--video", options.video)


def check_file(flag: str, path: Path) -> None:
    """Raise RunFolderError unless this file can be written."""
    _check_folder(flag, path.parent)
    try:
        if path.is_dir():
            raise RunFolderError(f"{flag} {path}: is a folder; a file is expected")
        if path.exists() and not os.access(path, os.W_OK):
            raise RunFolderError(f"{flag} {path}: cannot be written: no permission")
    except OSError as error:  # such as a name that is too long
        raise RunFolderError(f"{flag} {path}: {error.strerror or error}") from error


def _check_folder(flag: str, folder: Path) -> None:
    probe = folder / f".probe-{os.getpid()}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe.write_bytes(bytes(4096))
        probe.unlink()
    except OSError as error:
        raise RunFolderError(f"{flag}: nothing can be written in {folder}: {error.strerror or error}") from error
