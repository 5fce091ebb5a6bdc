"""What ``rollmill collect`` can be told, and what of it does not go together."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rollmill.core.errors import ConfigError
from rollmill.runs.policies.base import refuse_idle
from rollmill.runs.policies.simple import BUILT_IN, RANDOM, SMOOTHED

MAX_SEED = 2**63 - 1


@dataclass(frozen=True)
class CollectOptions:
    """How much of what to collect, and where to."""

    out: Path
    """Folder of the store; made where there is none, added to where there is one."""
    policy: str = RANDOM
    """random, smoothed-random, random-controller, a run folder or checkpoint, or your own as module:callable."""
    episodes: int | None = None
    """Episodes to add."""
    until: int | None = None
    """Episodes to have in the end. Those that are there count, so the same command continues after a stop."""
    steps: int | None = None
    """Steps to add; the episodes under way are then cut and marked as partial."""
    max_steps: int = 0
    """Truncate episodes after so many steps; 0 leaves it to the environment."""
    seed: int | None = None
    """Root of all seeds: the same seed gives the same episodes. Unset: a random one, which is printed."""
    shard: str = ""
    """i/n: play every n-th episode of the seed, from the i-th on; N is then what all n play together."""
    deterministic: bool = False
    """Take a checkpoint's most likely action instead of sampling one."""
    target: float | None = None
    """Return to ask a Decision Transformer for (unset: the highest of its run's own)."""
    best: bool = False
    """Take the run's best checkpoint instead of the newest: by its checkpoints.best_metric."""
    hold: int | None = None
    """Mean number of steps that an action of smoothed-random lasts (unset: 8)."""
    save_info: tuple[str, ...] | None = None
    """Keep what the environment's info says with every row: these names, or without one all that occur."""
    budget_gb: float | None = None
    """Stop before the store is larger than so many gigabytes (10**9 bytes), all writers together."""
    trust_code: bool = False
    """Run the code that a checkpoint names; else your own words have to name it (env=my_env.py:MyEnv)."""

    def check(self, overrides: Sequence[str] = (), loaded: bool = False) -> None:
        """Raise ConfigError for what is wrong or contradicts itself; ``loaded``: the policy is there already."""
        self._check_amounts()
        if not loaded:
            self._check_policy_flags()
        refuse_idle(overrides, "a collection")
        for word in overrides:
            if loaded and word.startswith(("model", "learning")):
                raise ConfigError(f"{word}: the policy is loaded already; give it to load_policy")
            if word.startswith("env.max_episode_steps=") and self.max_steps:
                raise ConfigError(f"{word} and --max-steps {self.max_steps} say the same thing twice; give one of them")

    def _check_amounts(self) -> None:
        amounts = {"--episodes": self.episodes, "--until": self.until, "--steps": self.steps}
        given = [name for name, value in amounts.items() if value is not None]
        if len(given) != 1:
            what = f"{' and '.join(given)} exclude each other:" if given else "how much is to be collected?"
            raise ConfigError(f"{what} give one of --episodes N (to add), --until N (to have), --steps N (to add)")
        if (amounts[given[0]] or 0) < 1:
            raise ConfigError(f"{given[0]} must be at least 1")
        if self.max_steps < 0:
            raise ConfigError("--max-steps must be 0 (off) or positive")
        if self.seed is not None and not 0 <= self.seed <= MAX_SEED:
            raise ConfigError("--seed must not be negative, and must fit into 63 bits")
        if self.budget_gb is not None and self.budget_gb <= 0:
            raise ConfigError("--budget-gb must be positive")
        shard, shards = self.part
        if not 0 <= shard < shards:
            raise ConfigError(f"--shard {self.shard}: of {shards} shards the first is 0, the last {shards - 1}")
        if shards > 1 and self.seed is None:
            raise ConfigError(
                f"--shard {self.shard}: shards are parts of one set of episodes: give all the same --seed"
            )

    def _check_policy_flags(self) -> None:
        if self.hold is not None and self.policy != SMOOTHED:
            raise ConfigError(f"--hold is for --policy {SMOOTHED}, not for {self.policy}")
        if self.hold is not None and self.hold < 1:
            raise ConfigError("--hold must be at least 1 step")
        if self.policy in BUILT_IN or not (Path(self.policy).exists() or "@" in self.policy):
            flags = {"--deterministic": self.deterministic, "--best": self.best, "--target": self.target is not None}
            for flag, given in flags.items():
                if given:
                    raise ConfigError(f"{flag} is for checkpoints, not for --policy {self.policy}")
        elif self.best and not Path(self.policy).is_dir():
            raise ConfigError(f"--best chooses among a run's checkpoints; {self.policy} is a single one")

    @property
    def part(self) -> tuple[int, int]:
        """The part that is collected here, as (shard, shards)."""
        if not self.shard:
            return 0, 1
        match = re.fullmatch(r"(\d+)/(\d+)", self.shard)
        if match is None or int(match.group(2)) < 1:
            raise ConfigError(f"--shard {self.shard}: expected i/n, for example 0/4")
        return int(match.group(1)), int(match.group(2))
