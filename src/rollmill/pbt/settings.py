"""Settings of a population of policies that learn side by side and from each other."""

from __future__ import annotations

from dataclasses import field
from pathlib import Path
from typing import Any, Literal

from rollmill.core.config.schema import settings

Method = Literal["pbt", "mf", "pairwise", "pb2", "exploit", "explore", "random", "fixed"]
USUAL = {"learning.learning_rate": [1e-5, 1e-2], "learning.entropy_coefficient": [1e-4, 1e-1]}
"""What is tuned where nothing is said."""


@settings
class PbtSettings:
    """Population-based training: several policies (members) in one run, whose settings are tuned while they learn."""

    members: int = 1
    """Policies of the population; 1: no population. Each has environments, batches and episodes of its own."""

    method: Method = "pbt"
    """pbt: the worst go on from the weights and perturbed settings of the best. mf: the same in sub-populations with
    different periods, which keeps it from becoming greedy (for long runs). pairwise: in random pairs, the loser takes
    the weights and moves its settings towards the winner's. pb2: as pbt, new settings come from a model of what has
    paid so far (for small populations). exploit: copies, and changes no setting; explore: changes settings, and copies
    nothing; random: settings are drawn once (random search); fixed: those of ``begin`` stay."""

    tune: dict[str, Any] = field(default_factory=dict)
    """What is tuned, and between which bounds: ``pbt.tune.learning.gamma=[0.9,0.999]``. Numbers of ``learning`` that
    may change in a run, and any of ``env.variables``. A third entry says how steps are taken: ``log`` (factors; usual
    where the bounds are above 0 and a factor of 10 or more apart), ``linear``, ``horizon`` (factors of 1 - x; usual
    for gamma and gae_lambda), or ``integer`` (only whole numbers). ``[0, 1, 5, choice]``: only these values, steps lead
    to a neighbour. Empty: learning rate and entropy coefficient."""

    begin: Literal["spread", "sample", "config"] = "spread"
    """What the members begin with: spread evenly between the bounds, drawn at random, or as configured (all but the
    first then perturbed once)."""

    period: int = 0
    """Frames of each member between two rounds of decisions; 0: a twentieth of what each of them gets."""

    start: int = 0
    """Frames of each member before the first decision."""

    growth: Literal["fixed", "auto"] = "fixed"
    """auto: the period doubles when the best objective has not risen for ``patience`` rounds: by more than its standard
    error, and than a hundredth of its rise since the beginning. Frequent selection is greedy: it prefers what pays at
    once."""

    patience: int = 3
    """Rounds without a better best after which ``growth=auto`` doubles the period."""

    objective: str = "return"
    """What members are compared by, the higher the better: ``return``, ``length``, or one of the environment's own
    statistics (``info["episode_stats"]``) by name. With a minus before it the lowest is the best."""

    episodes: int = 100
    """Most episodes behind an objective. Only those count that began since the last round, with the member's present
    weights."""

    min_episodes: int = 10
    """Fewest episodes behind an objective, as many of each environment. Until all of them have ended, a member is
    neither replaced nor copied."""

    significance: float = 0.05
    """In at most this share of the rounds chance alone replaces anybody, where all members are equally good; 1: a
    member is replaced wherever it looks worse."""

    replace_fraction: float = 0.3
    """Share of the members that count as the best, and as the worst (rounded up)."""

    replace_gap: float = 0.0
    """The better one must be better by this share of its own objective."""

    replace_gap_absolute: float = 0.0
    """And by this much."""

    mutation_rate: float = 1.0
    """Chance of each setting to change when a member explores."""

    perturb_min: float = 1.1
    """Smallest factor by which a setting is multiplied or divided."""

    perturb_max: float = 1.5
    """Largest factor. On a linear range the step is the factor - 1 times the value (at least 7.5 % of the range, so
    that a zero can move), up or down."""

    resample_rate: float = 0.0
    """Chance of a changing setting to be drawn anew between its bounds instead."""

    sub_populations: int = 0
    """mf: parts of the population, each of a multiple of 4 members; 0: as many as there can be, 4 at most."""

    exchange: Path | None = None
    """This run is one member of a population of separate runs, which meet in this folder of an experiment. The launcher
    sets it, and ``member``: see ``population`` in a description."""

    member: int = 0
    """Which member of ``exchange`` the run is."""

    replay: Path | None = None
    """Train one policy along the way of the best member of this run's folder (its ``population.jsonl``): the settings
    that its weights were trained with, at the same frames."""

    def __post_init__(self) -> None:
        if self.members < 1:
            raise ValueError("members must be at least 1")
        if min(self.period, self.start, self.replace_gap, self.replace_gap_absolute, self.sub_populations) < 0:
            raise ValueError("period, start, replace gaps and sub_populations must not be negative")
        if min(self.patience, self.episodes, self.min_episodes) < 1:
            raise ValueError("patience, episodes and min_episodes must be at least 1")
        if self.min_episodes > self.episodes:
            raise ValueError(f"min_episodes={self.min_episodes} are more than the episodes={self.episodes} looked at")
        for name, highest in (("replace_fraction", 0.5), ("significance", 1.0)):
            if not 0 < getattr(self, name) <= highest:
                raise ValueError(f"{name} must be above 0 and at most {highest:g}")
        for name in ("mutation_rate", "resample_rate"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name} must lie between 0 and 1")
        if not 1 < self.perturb_min <= self.perturb_max:
            raise ValueError("perturb_min must be above 1 and at most perturb_max")
        if self.replay is not None and self.members > 1:
            raise ValueError("replay trains one policy: leave out members")
        if self.exchange is not None and (self.members > 1 or self.replay is not None):
            raise ValueError("exchange makes the run one member of a population: leave out members and replay")
        if self.member < 0 or (self.member and self.exchange is None):
            raise ValueError("member is a number from 0 on, and needs exchange")
        if self.members == 1 and (self.tune or self.method != "pbt"):
            raise ValueError("nothing is tuned with one member: set members")
        self._check_mf()

    def _check_mf(self) -> None:
        if self.method != "mf":
            return
        if self.sub_populations > 4:
            raise ValueError(f"sub_populations={self.sub_populations}: 4 are the most")
        unit = 4 * max(1, self.parts)
        if self.members % unit:
            raise ValueError(
                f"method=mf: {self.members} members cannot be shared out to sub-populations of a multiple of 4; "
                f"near: members={max(1, round(self.members / unit)) * unit}"
            )

    @property
    def on(self) -> bool:
        return self.members > 1

    @property
    def decides(self) -> bool:
        """Whether there are rounds of decisions at all."""
        return self.method not in ("random", "fixed")

    @property
    def parts(self) -> int:
        """Sub-populations of ``method=mf``."""
        return self.sub_populations or max((n for n in (1, 2, 3, 4) if self.members % (4 * n) == 0), default=0)

    @property
    def tuned(self) -> dict[str, Any]:
        """The bounds of every tuned setting, by its dotted name."""
        return _flat(self.tune) or dict(USUAL)


def _flat(nested: dict[str, Any], before: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in nested.items():
        found |= _flat(value, f"{before}{name}.") if isinstance(value, dict) else {f"{before}{name}": value}
    return found
