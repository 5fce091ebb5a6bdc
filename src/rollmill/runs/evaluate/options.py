"""What ``rollmill eval`` can be told, what of it does not go together, and where it may write."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rollmill.core.errors import ConfigError, RunFolderError

EPISODES = 100
ENVS = 16
VIDEOS = 3
MAX_CELLS = 64
TYPICAL_OF = 8
"""Episodes of which a video shows the one whose return is nearest to their median."""


@dataclass(frozen=True)
class EvalOptions:
    """How to evaluate, and what to keep of it."""

    episodes: int | None = None
    """Whole episodes to play; unset: 100, or as many as ``steps`` asks for."""
    steps: int | None = None
    """Play episodes 0, 1, 2 ... until they have this many steps together."""
    deterministic: bool = False
    """Take the most likely action instead of sampling; else as the run itself was judged."""
    seed: int = 1
    workers: int = 0
    """Worker processes; 0 takes one per core. Metrics do not depend on it."""
    envs: int = ENVS
    """Environments that play side by side."""
    best: bool = False
    """Evaluate the checkpoint with the highest training return instead of the newest."""
    all_checkpoints: bool = False
    """Evaluate every checkpoint of a run."""
    random: bool = False
    """Evaluate a random policy in the same way, beside the trained one."""
    behaviour: str | Path | None = None
    """A policy that counts as 100 %, where random play is 0 %: the run that made the data, or any other."""
    targets: tuple[float, ...] = ()
    """Returns that Decision Transformers are asked for; none: those of each run."""
    last: bool = False
    """Of offline runs, evaluate the last weights instead of those with the lowest held-out loss."""
    device: str | None = None
    """cpu, cuda, cuda:N or auto; None: as each was trained."""
    encoder: Path | None = None
    """The encoder of a controller, where it is no longer where it was."""
    dynamics: Path | None = None
    """The dynamics model of a controller, likewise."""
    overrides: tuple[str, ...] = ()
    trust_code: bool = False
    """Run the code that a checkpoint names (``runs.trust``)."""
    record: bool = False
    """Write the episodes into a store."""
    record_dir: Path | None = None
    """The store; None: ``eval/<checkpoint>`` in the run's folder."""
    out: Path | None = None
    """JSON file for the result."""
    csv: Path | None = None
    """CSV file with a row for each episode."""
    video: Path | None = None
    """Folder for videos."""
    video_count: int | None = None
    """Episodes to show in a video, from number 0 on; unset: 3, for a report a single one as they usually are."""
    grid: str = ""
    """``ROWSxCOLUMNS``: that many episodes in one video."""
    fps: float | None = None
    """Images per second; unset: as fast as it would happen."""
    no_captions: bool = False
    """Leave out step and return below the images."""
    report: Path | None = None
    """Page with table, plot and videos."""

    @property
    def wanted(self) -> int | None:
        """Episodes to play; None: by steps."""
        return None if self.steps is not None else self.episodes or EPISODES

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
        """ConfigError for what is wrong in itself or contradicts something else."""
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
    (lambda o: o.seed < 0, "--seed must not be negative"),
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
        lambda o: o.workers > o.envs,
        lambda o: f"--workers {o.workers} and --envs {o.envs}: a worker needs an environment; raise --envs",
    ),
    (
        lambda o: o.record and o.steps is not None,
        "--record and --steps: what is recorded is settled when an episode begins, what --steps counts when all "
        "before it have ended; give --episodes",
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
    """ConfigError where flags that choose among checkpoints are given for a single file."""
    for flag, given in (("--best", options.best), ("--all-checkpoints", options.all_checkpoints)):
        if given:
            check_chosen(flag, words)


def check_chosen(flag: str, words: Sequence[str | Path]) -> None:
    """ConfigError where ``flag``, which chooses among checkpoints, is given for a single file."""
    files = [word for word in words if Path(word).is_file()]
    if files:
        raise ConfigError(f"{flag} chooses among a run's checkpoints; {files[0]} is a single one")


def check_outputs(options: EvalOptions) -> None:
    """RunFolderError, now rather than after the last episode, when a file or folder cannot be written."""
    for flag, path in (("--out", options.out), ("--csv", options.csv), ("--report", options.report)):
        if path is not None:
            _check_file(flag, path)
    if options.video is not None:
        _check_folder("--video", options.video)


def _check_file(flag: str, path: Path) -> None:
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
