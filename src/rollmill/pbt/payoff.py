"""The payoff table of self-play: who has played whom, and how it ended.

Two things are kept for every pair of a learning policy and an opponent: the games since the last model was published,
which are written down then and say what *that* model could do, and a win rate in which earlier games count less and
less, which the choice of opponents looks at. Numbers of opponents are ``policy_id``s (``matchmaking.Numbers``).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from rollmill.core.shapes import Shape
from rollmill.pbt.matchmaking import Numbers

_TALLY: Shape = {"games": int, "wins": int, "draws": int, "losses": int, "total": float}
PAYOFF_SHAPE: Shape = {
    "games": int,
    "pairs": [{"policy": int, "opponent": int, "recent": float, "score": float, "now": _TALLY}],
}
PAYOFF_FILE = "payoff.jsonl"
"""In the run's folder: what each model could do, line by line (``ledger``)."""
LEVEL = 0.5
"""Win rate against whom was never met."""


@dataclass(frozen=True)
class Result:
    """One game, as the learning side sees it."""

    policy: int
    opponent: int
    own: float
    """Mean return of its agents."""
    score: float
    """1: won, 0.5: drawn, 0: lost."""


@dataclass
class PairCounts:
    """Games of one pair."""

    games: int = 0
    wins: int = 0
    draws: int = 0
    losses: int = 0
    total: float = 0.0
    """Sum of the learning side's returns."""

    def add(self, result: Result) -> None:
        self.games += 1
        self.wins += result.score == 1
        self.draws += result.score == LEVEL
        self.losses += result.score == 0
        self.total += result.own

    def entry(self) -> dict[str, Any]:
        """As it is written down: counts, and the mean return."""
        return {
            "games": self.games,
            "wins": self.wins,
            "draws": self.draws,
            "losses": self.losses,
            "return": self.total / self.games,
        }


@dataclass
class _Pair:
    recent: float = 0.0
    """Games, earlier ones with less weight."""
    score: float = 0.0
    """What they have brought, weighed alike."""
    now: PairCounts = field(default_factory=PairCounts)
    """Games since the last model."""


class Payoff:
    """All pairs of a run."""

    def __init__(self, decay: float, min_games: int) -> None:
        self._decay, self._min_games = decay, min_games
        self._pairs: dict[tuple[int, int], _Pair] = {}
        self.games = 0
        """Of the whole run."""

    def add(self, result: Result) -> None:
        pair = self._pairs.setdefault((result.policy, result.opponent), _Pair())
        pair.recent = pair.recent * self._decay + 1
        pair.score = pair.score * self._decay + result.score
        pair.now.add(result)
        self.games += 1

    def known(self, policy: int, opponent: int) -> bool:
        """Whether there are enough games for a win rate."""
        pair = self._pairs.get((policy, opponent))
        # Decayed games never come near a larger minimum than 1 / (1 - decay).
        enough = min(self._min_games, 0.9 / (1 - self._decay)) if self._decay < 1 else self._min_games
        return pair is not None and pair.recent >= enough

    def win_rate(self, policy: int, opponent: int) -> float:
        """Share of the recent games that ``policy`` has won, draws half; 1/2 while there are too few."""
        pair = self._pairs.get((policy, opponent))
        return pair.score / pair.recent if pair is not None and self.known(policy, opponent) else LEVEL

    def close(self) -> list[dict[str, Any]]:
        """The games since the last call, pair by pair; counting begins anew."""
        found = []
        for (policy, opponent), pair in sorted(self._pairs.items()):
            if pair.now.games:
                found.append({"policy": policy, "opponent": opponent, **pair.now.entry()})
                pair.now = PairCounts()
        return found

    def forget(self, kept: Collection[int]) -> None:
        """Opponents that are not among ``kept`` have left; what is known of them was written down (``close``)."""
        self._pairs = {pair: own for pair, own in self._pairs.items() if pair[1] in kept}

    def state(self) -> dict[str, Any]:
        pairs = [
            {"policy": k, "opponent": o, "recent": own.recent, "score": own.score, "now": asdict(own.now)}
            for (k, o), own in self._pairs.items()
        ]
        return {"games": self.games, "pairs": pairs}

    def load_state(self, state: Mapping[str, Any]) -> None:
        self.games = state["games"]
        self._pairs = {
            (row["policy"], row["opponent"]): _Pair(row["recent"], row["score"], PairCounts(**row["now"]))
            for row in state["pairs"]
        }


class Games:
    """Puts the episodes of all agents of an environment together into one result."""

    MOST_OPEN = 10_000
    """Environments that fail leave episodes behind of which some agents never tell the end."""

    def __init__(self, sides: Iterable[int], numbers: Numbers, positive: bool) -> None:
        """``sides``: of every agent; ``positive``: see ``SelfPlaySettings.result``."""
        self._sides, self._positive = tuple(sides), positive
        self.numbers = numbers
        self._open: dict[tuple[int, int], dict[int, tuple[int, float]]] = {}
        """(environment, episode) -> agent -> (who played it, its return)."""

    def add(self, lane: int, episode: int, policy_id: int, episode_return: float) -> list[Result]:
        """One agent's episode has ended; the results of a game when it was the last agent's."""
        env, agent = divmod(lane, len(self._sides))
        agents = self._open.setdefault((env, episode), {})
        agents[agent] = (policy_id, episode_return)
        if len(agents) < len(self._sides):
            if len(self._open) > self.MOST_OPEN:
                del self._open[next(iter(self._open))]
            return []
        del self._open[env, episode]
        return self._results(agents)

    def _results(self, agents: Mapping[int, tuple[int, float]]) -> list[Result]:
        by_side: dict[int, list[tuple[int, float]]] = {}
        for agent, played in sorted(agents.items()):
            by_side.setdefault(self._sides[agent], []).append(played)
        found = []
        for side, own in by_side.items():
            others = [played for number, those in by_side.items() if number != side for played in those]
            policy, opponent = own[0][0], self.numbers.opponent_of(others[0][0])
            # Against itself every policy wins half of its games.
            if policy < self.numbers.policies and opponent != policy:
                mine, theirs = _mean(own), _mean(others)
                gap = mine if self._positive else mine - theirs
                found.append(Result(policy, opponent, mine, LEVEL if gap == 0 else float(gap > 0)))
        return found

    def state(self) -> list[list[float]]:
        return [
            [env, episode, agent, who, own]
            for (env, episode), agents in self._open.items()
            for agent, (who, own) in agents.items()
        ]

    def load_state(self, state: Iterable[Iterable[float]]) -> None:
        self._open = {}
        for env, episode, agent, who, own in state:
            self._open.setdefault((int(env), int(episode)), {})[int(agent)] = (int(who), float(own))


def _mean(played: Iterable[tuple[int, float]]) -> float:
    returns = [own for _, own in played]
    return sum(returns) / len(returns)
