"""What a treasure hunt can be told: where it begins and ends, which treasures there are, how the world behaves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from rollmill.envs.draws import Described, WholeNumber

TREASURE_SITES = tuple(range(3, 16))
"""Where treasures lie in the standard task, whose start is site 2 and whose end is site 1."""
MOST_TREASURES = 13


@dataclass(frozen=True, kw_only=True)
class HuntSettings:
    """One hunt. ValueError for whatever does not go together."""

    start: int = 2
    end: int = 1
    treasure_num: Described = MOST_TREASURES
    """How many treasures: a number, a list by the progress of the run, ``uniform`` or ``normal`` (see ``draws``)."""
    treasure_random: bool = False
    """Draw their places instead of taking the first ones."""
    treasure_id: Sequence[int] | None = None
    """Exactly these sites instead of a number of them."""
    max_step: int = 2000
    map_seed: int = 0
    map_random: bool = False
    """A map of its own for every episode, by the episode's seed, instead of the one of ``map_seed``. For single hunts
    (``env.vector=false``); such maps can be kept (``env.levels``)."""
    reach: float = 500.0
    """Treasures, the buff and the end are taken within this distance, in units."""
    buff_respawn: int = 0
    """Steps after which the buff is there again; 0: never."""
    random_start: float = 0.0
    """The agent starts in any free cell while the run's progress is below this."""
    step_from: float = 0.0
    """Progress of the run from which each step costs something (the reward term ``step``)."""
    neighbourhood: bool = False
    """Repeated visits count in the 5x5 cells around the agent instead of in its own."""
    dynamic_treasures: bool = False
    """Treasures that are missed more often than others bring more."""
    reward_scale: float = 0.1
    rewards: Mapping[str, float] = field(default_factory=dict)
    """Weights of reward terms that differ from the usual ones (``rewards.TERMS``); 0 leaves a term out."""

    def __post_init__(self) -> None:
        for name in ("start", "end"):
            _check_site(name, getattr(self, name))
        if self.start == self.end:
            raise ValueError(f"start and end are both site {self.end}")
        if self.treasure_id is not None:
            self._check_treasures(self.treasure_id)
        WholeNumber("treasure_num", self.treasure_num, 0, MOST_TREASURES)
        if isinstance(self.max_step, bool) or not isinstance(self.max_step, int) or self.max_step < 1:
            raise ValueError(f"max_step={self.max_step!r}: a positive whole number is expected")
        if isinstance(self.map_seed, bool) or not isinstance(self.map_seed, int) or self.map_seed < 0:
            raise ValueError(f"map_seed={self.map_seed!r}: a whole number from 0 on is expected")
        if self.buff_respawn < 0 or not self.reach > 0 or not self.reward_scale > 0:
            raise ValueError("reach and reward_scale are positive, buff_respawn is not negative")
        if not 0 <= self.random_start <= 1 or not 0 <= self.step_from <= 1:
            raise ValueError("random_start and step_from are shares of the run, from 0 to 1")

    def _check_treasures(self, sites: Sequence[int]) -> None:
        for site in sites:
            _check_site("treasure_id", site)
        if len(set(sites)) < len(sites):
            raise ValueError(f"treasure_id={list(sites)}: a site stands there twice")
        taken = {self.start, self.end} & set(sites)
        if taken:
            raise ValueError(f"treasure_id={list(sites)}: site {min(taken)} is start or end")
        if len(sites) > MOST_TREASURES:
            raise ValueError(f"treasure_id={list(sites)}: at most {MOST_TREASURES} treasures")

    @property
    def by_progress(self) -> tuple[str, ...]:
        """Names of the settings that mean something else as the run goes on."""
        listed = not isinstance(self.treasure_num, int | str) and len(self.treasure_num) > 1
        return ("treasure_num",) * listed + tuple(n for n in ("random_start", "step_from") if getattr(self, n) > 0)

    @property
    def places(self) -> tuple[int, ...]:
        """Sites that can hold a treasure, in the order in which they are taken."""
        usual = [site for site in TREASURE_SITES if site not in (self.start, self.end)]
        others = [site for site in (2, 1) if site not in (self.start, self.end)]
        return tuple(usual + others)[:MOST_TREASURES]


def _check_site(name: str, site: object) -> None:
    if isinstance(site, bool) or not isinstance(site, int) or not 1 <= site <= 15:
        raise ValueError(f"{name}: {site!r} is not a site from 1 to 15")
