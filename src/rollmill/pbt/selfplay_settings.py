"""Settings of self-play: whom a policy plays against while it learns."""

from __future__ import annotations

from dataclasses import field
from typing import Literal

from rollmill.core.config.schema import settings

RULES = ("latest", "uniform", "newest", "mix", "pfsp")
HIGHER, POSITIVE = "higher", "positive"
Weighting = Literal["linear", "squared", "variance", "linear_capped"]


@settings
class SelfPlaySettings:
    """Self-play: in every episode one side learns, and plays against an opponent that does not."""

    rule: str = ""
    """Which model of the run's own pool (``pool``) is the opponent; empty: no self-play. latest: the newest. uniform:
    any. newest: any of the newest ``window``. mix: the newest in ``latest_share`` of the episodes, else any. pfsp:
    those that are hard to beat more often (``weighting``). ``module:callable`` or ``path/to/file.py:callable``: your
    own, called with a list of candidates (``rollmill.pbt.matchmaking.Candidate``) for a weight of each."""

    window: int = 10
    """newest: how many models."""

    latest_share: float = 0.8
    """mix: share of episodes against the newest model."""

    weighting: Weighting = "squared"
    """pfsp: how much a model counts that is beaten with probability x. linear: 1 - x; squared: (1 - x)^2; variance:
    x (1 - x), which prefers equals; linear_capped: min(1/2, 1 - x)."""

    live_share: float = 0.0
    """Share of episodes in which all sides are played by policies that learn: by the one against itself or, with
    ``env.policies``, by each its own side."""

    anchors: dict[str, float] = field(default_factory=dict)
    """Opponents that never change, and the share of episodes against each: ``random``, ``module:callable`` (as for
    ``rollmill eval --policy``), a checkpoint or a run. ``selfplay.anchors={random: 0.1}``."""

    sides: tuple[int, ...] = ()
    """Which side each agent of an environment is on, by number: ``[0, 0, 1, 1]``. Empty: each agent is one; with
    ``env.policies``, the agents of each policy are."""

    learns: tuple[int, ...] = ()
    """Sides that the learning policy plays, by chance in each episode. Empty: any."""

    result: str = HIGHER
    """Who has won. higher: the side with the higher mean return. positive: the learning side if its return is above 0.
    Any other name: the side with the higher mean of that statistic of the episode (``info["episode_stats"]``), which
    the environment tells of every agent: frags, or -deaths for the lower. Shaped rewards say little about who won."""

    decay: float = 0.99
    """Weight of an earlier game against each later one in a win rate: the policy that played it has changed since."""

    min_games: int = 8
    """Against whom fewer games were played, the win rate counts as 1/2."""

    def __post_init__(self) -> None:
        if self.rule not in ("", *RULES) and ":" not in self.rule:
            raise ValueError(f"rule={self.rule}: expected {', '.join(RULES)}, or module:callable")
        if min(self.window, self.min_games) < 1:
            raise ValueError("window and min_games must be at least 1")
        for name in ("latest_share", "live_share"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name} must lie between 0 and 1")
        if not 0 < self.decay <= 1:
            raise ValueError("decay must be above 0 and at most 1")
        if any(share <= 0 for share in self.anchors.values()):
            raise ValueError("the share of every anchor must be above 0")
        if self.pool_share < 0:
            raise ValueError("live_share and the shares of the anchors add up to more than 1")
        if not self.rule and (self.anchors or self.live_share or self.sides or self.learns):
            raise ValueError("nothing is played against opponents without a rule: set rule")
        if self.result in ("", "-"):
            raise ValueError(f"result: expected {HIGHER}, {POSITIVE}, or a statistic of the episode")
        if self.sides and {*self.sides} != {*range(len({*self.sides}))}:
            raise ValueError(f"sides must number from 0 without gaps, got {list(self.sides)}")
        if self.sides and len({*self.sides}) < 2:
            raise ValueError("sides: all agents are on the same one, and nobody is left to play against")

    @property
    def on(self) -> bool:
        return bool(self.rule)

    @property
    def decisive(self) -> str:
        """The statistic of the episode that decides games; empty: returns do."""
        return "" if self.result in (HIGHER, POSITIVE) else self.result

    @property
    def own_rule(self) -> bool:
        """Whether the rule is the user's code."""
        return ":" in self.rule

    @property
    def pool_share(self) -> float:
        """Share of episodes against models of the pool."""
        return round(1.0 - self.live_share - sum(self.anchors.values()), 9)
