"""What ``rollmill match`` can be told."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from rollmill.core.errors import ConfigError

GAMES = 100
ENVS = 16


@dataclass(frozen=True)
class MatchOptions:
    """How matches are played, and what to keep of them."""

    games: int = GAMES
    """Games of every pair of players, half of them with seats swapped (an odd number is made even)."""
    sides: tuple[int, ...] = ()
    """Which of two players has each agent's seat, such as 0 0 1 1 (unset: as `env.policies` of the first player's run
    says, or in turn)."""
    result: str = ""
    """What decides a game: a statistic of the episode that the environment tells of every agent, such as frags (or
    -deaths, for the lower); unset: the return."""
    seed: int = 1
    """Seed of environments and actions; the same seed gives the same games, with any number of workers."""
    workers: int = 0
    """Worker processes; 0 takes one per core."""
    envs: int = ENVS
    """Environments that play side by side; sampled actions depend on it."""
    deterministic: bool = False
    """Take the most likely action instead of sampling one."""
    best: bool = False
    """Take a run's best checkpoint instead of the newest: by its checkpoints.best_metric."""
    all_checkpoints: bool = False
    """Every checkpoint of a run is a player."""
    device: str | None = None
    """cpu, cuda, cuda:N or auto (unset: as each was trained)."""
    overrides: tuple[str, ...] = ()
    """Settings that differ from those of the runs, such as env=connect_four."""
    trust_code: bool = False
    """Run the code that checkpoints name; else your own words have to name it (env=my_env.py:MyEnv)."""
    out: Path | None = None
    """Write the result as JSON into this file."""
    report: Path | None = None
    """Write a page with ratings and heat map here; another kind of page of that name stays, this one gets a name beside
    it."""

    def check(self) -> None:
        """Raise ConfigError for what is wrong in itself."""
        for is_wrong, reason in (
            (self.games < 1, "--games must be at least 1"),
            (self.envs < 1, "--envs must be at least 1"),
            (self.workers < 0, "--workers must be 0 (one per core) or positive"),
            (
                self.workers > self.envs,
                f"--workers {self.workers} and --envs {self.envs}: a worker needs an environment",
            ),
            (self.seed < 0, "--seed must not be negative"),
            (self.best and self.all_checkpoints, "--best and --all-checkpoints exclude each other"),
            (
                self.report is not None and self.report.suffix != ".html",
                f"--report {self.report}: the page needs a name that ends in .html",
            ),
        ):
            if is_wrong:
                raise ConfigError(reason)
