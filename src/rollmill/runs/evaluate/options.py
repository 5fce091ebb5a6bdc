"""What ``rollmill eval`` can be told, what of it does not go together, and where it may write."""

from __future__ import annotations

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


@dataclass(frozen=True)
class EvalOptions:
    """How to evaluate, and what to keep of it."""

    episodes: int | None = None
    """Whole episodes to play; unset: 100, or as many as ``steps`` asks for."""
    steps: int | None = None
    """Play episodes 0, 1, 2 ... until they have this many steps together."""
    deterministic: bool = False
    """Take the most likely action instead of sampling."""
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
    """Episodes to show in a video, from number 0 on; unset: 3."""
    grid: str = ""
    """``ROWSxCOLUMNS``: that many episodes in one video."""
    fps: float | None = None
    """Images per second; unset: as fast as it would happen."""
    no_captions: bool = False
    """Leave out step and return below the images."""

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
    def shown_episodes(self) -> int:
        """How many episodes are shown in a video."""
        if self.video is None:
            return 0
        if self.cells is not None:
            return self.cells[0] * self.cells[1]
        most = VIDEOS if self.video_count is None else self.video_count
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


def check_targets(options: EvalOptions, targets: Sequence[Path]) -> None:
    """ConfigError where flags that choose among checkpoints are given for a single file."""
    for flag, given in (("--best", options.best), ("--all-checkpoints", options.all_checkpoints)):
        if given:
            check_chosen(flag, targets)


def check_chosen(flag: str, targets: Sequence[Path]) -> None:
    """ConfigError where ``flag``, which chooses among checkpoints, is given for a single file."""
    files = [path for path in targets if path.is_file()]
    if files:
        raise ConfigError(f"{flag} chooses among a run's checkpoints; {files[0]} is a single one")


def check_outputs(options: EvalOptions) -> None:
    """RunFolderError, now rather than after the last episode, when a file or folder cannot be written."""
    for flag, path in (("--out", options.out), ("--csv", options.csv)):
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
