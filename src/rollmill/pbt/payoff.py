"""The payoff table of self-play: who has played whom, and how it ended.

Two things are kept for every pair of a learning policy and an opponent: the games since the last model was published,
which are written down then and say what *that* model could do, and a win rate in which earlier games count less and
less, which the choice of opponents looks at. Numbers of opponents are ``policy_id``s (``matchmaking.Numbers``).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from rollmill.core.errors import ConfigError
from rollmill.core.shapes import Shape
from rollmill.core.text import nearest
from rollmill.pbt.matchmaking import Numbers
from rollmill.pbt.selfplay_settings import HIGHER, POSITIVE

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
        """Return the counts and the mean return, as they are written down."""
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
    """The results between every policy and each of its opponents, of a whole run."""

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
        """Return whether there are enough games for a win rate."""
        pair = self._pairs.get((policy, opponent))
        # Decayed games never come near a larger minimum than 1 / (1 - decay).
        enough = min(self._min_games, 0.9 / (1 - self._decay)) if self._decay < 1 else self._min_games
        return pair is not None and pair.recent >= enough

    def win_rate(self, policy: int, opponent: int) -> float:
        """Return the share of the recent games that ``policy`` has won, draws half; 1/2 while there are too few."""
        pair = self._pairs.get((policy, opponent))
        return pair.score / pair.recent if pair is not None and self.known(policy, opponent) else LEVEL

    def close(self) -> list[dict[str, Any]]:
        """Return the games since the last call, pair by pair; counting begins anew."""
        found = []
        for (policy, opponent), pair in sorted(self._pairs.items()):
            if pair.now.games:
                found.append({"policy": policy, "opponent": opponent, **pair.now.entry()})
                pair.now = PairCounts()
        return found

    def forget(self, kept: Collection[int]) -> None:
        """Forget opponents that are not among ``kept``; what is known of them was written down (``close``)."""
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
    """Puts the episodes of all agents of an environment together into one result.

    Where a statistic of the episode decides, a game counts when that is known of every agent as well: it may be told
    before the episode's end is, or after it.
    """

    MOST_OPEN = 10_000
    """Environments that fail leave episodes behind of which some agents never tell the end."""

    def __init__(self, sides: Iterable[int], numbers: Numbers, result: str = HIGHER) -> None:
        """Begin without games; ``sides``: of every agent; ``result``: see ``SelfPlaySettings``."""
        self._sides, self._result = tuple(sides), result
        self._by_return = result in (HIGHER, POSITIVE)
        self.numbers = numbers
        self._open: dict[tuple[int, int], dict[int, tuple[int, float]]] = {}
        """(environment, episode) -> agent -> (who played it, its return)."""
        self._told: dict[tuple[int, int], dict[int, float]] = {}
        """(environment, episode) -> agent -> the statistic that decides."""
        self.decided = 0
        """Games of this session that have counted."""

    @property
    def statistic(self) -> str:
        """The statistic that decides games, by its name; empty: returns do."""
        return "" if self._by_return else self._result.removeprefix("-")

    @property
    def undecided(self) -> int:
        """Games that are over, and of which nobody has told who won."""
        return sum(len(agents) == len(self._sides) for agents in self._open.values())

    def add(self, lane: int, episode: int, policy_id: int, episode_return: float) -> list[Result]:
        """Note that one agent's episode has ended; return the results of its game if that was all that was missing."""
        game, agent = self._place(lane, episode)
        _slot(self._open, game, self.MOST_OPEN)[agent] = (policy_id, episode_return)
        return self._close(game)

    def add_statistic(self, lane: int, episode: int, value: float) -> list[Result]:
        """Note the statistic that decides about one agent; return results as ``add`` does."""
        game, agent = self._place(lane, episode)
        _slot(self._told, game, self.MOST_OPEN)[agent] = -value if self._result.startswith("-") else value
        return self._close(game)

    def _place(self, lane: int, episode: int) -> tuple[tuple[int, int], int]:
        env, agent = divmod(lane, len(self._sides))
        return (env, episode), agent

    def _close(self, game: tuple[int, int]) -> list[Result]:
        agents, told = self._open.get(game, {}), self._told.get(game, {})
        if len(agents) < len(self._sides) or not (self._by_return or len(told) == len(self._sides)):
            return []
        del self._open[game]
        self._told.pop(game, None)
        self.decided += 1
        return self._results(agents, told)

    def _results(self, agents: Mapping[int, tuple[int, float]], told: Mapping[int, float]) -> list[Result]:
        by_side: dict[int, list[int]] = {}
        for agent in sorted(agents):
            by_side.setdefault(self._sides[agent], []).append(agent)
        returns = {agent: own for agent, (_, own) in agents.items()}
        scores = returns if self._by_return else told
        found = []
        for side, own in by_side.items():
            others = [agent for number, those in by_side.items() if number != side for agent in those]
            policy, opponent = agents[own[0]][0], self.numbers.opponent_of(agents[others[0]][0])
            # Against itself every policy wins half of its games.
            if policy < self.numbers.policies and opponent != policy:
                gap = _mean(scores, own) - (0.0 if self._result == POSITIVE else _mean(scores, others))
                found.append(Result(policy, opponent, _mean(returns, own), LEVEL if gap == 0 else float(gap > 0)))
        return found

    def state(self) -> dict[str, list[list[float]]]:
        """Return, of games that are not decided, what has ended (``open``) and the statistics so far (``told``)."""
        ended = [[*game, agent, *played] for game, agents in self._open.items() for agent, played in agents.items()]
        told = [[*game, agent, value] for game, agents in self._told.items() for agent, value in agents.items()]
        return {"open": ended, "told": told}

    def load_state(self, state: Mapping[str, Iterable[Iterable[float]]]) -> None:
        self._open, self._told = {}, {}
        for env, episode, agent, who, own in state["open"]:
            self._open.setdefault((int(env), int(episode)), {})[int(agent)] = (int(who), float(own))
        for env, episode, agent, value in state.get("told", ()):
            self._told.setdefault((int(env), int(episode)), {})[int(agent)] = float(value)


def require_statistic(setting: str, told: Mapping[str, bool]) -> None:
    """Raise ConfigError unless games can be decided by ``setting`` (``selfplay.result=frags``).

    ``told``: names of what the environment tells of an episode, and whether it does so of every agent.
    """
    name = setting.replace("=", " ").split()[-1].removeprefix("-")
    if told.get(name):
        return
    if name in told:
        raise ConfigError(f"{setting}: the environment tells one number of an episode, and not one of every agent")
    there = [own for own, by_agent in told.items() if by_agent]
    hint = nearest(name, there)
    known = f"{f'; {hint}' if hint else ''} (there are: {', '.join(there)})" if there else ""
    raise ConfigError(
        f"{setting}: the environment tells no {'such statistic' if there else 'statistics'} of every agent{known}"
    )


def _slot(games: dict[tuple[int, int], dict[int, Any]], game: tuple[int, int], most: int) -> dict[int, Any]:
    """Return what is known of a game; the oldest of too many is forgotten."""
    found = games.setdefault(game, {})
    if len(games) > most:
        del games[next(iter(games))]
    return found


def _mean(values: Mapping[int, float], agents: Sequence[int]) -> float:
    return sum(values[agent] for agent in agents) / len(agents)
