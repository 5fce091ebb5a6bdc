"""Self-play in a run: which models are opponents, how games end, and what follows for the next ones.

The sampler asks ``Matches`` who plays whom. Here, in the main thread, opponents come and go as models are published,
results are counted as episodes are told of, and the odds of the next episodes follow from both. All of it is in the
checkpoint, but for the weights: those are files of the pool, which stay as long as a checkpoint refers to them.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np

from rollmill.core.checkpoints import Checkpoints, load_checkpoint
from rollmill.core.errors import CheckpointError
from rollmill.core.imports import import_object
from rollmill.core.model_pool import Entry, ModelPool
from rollmill.core.run_folder import RunFolder
from rollmill.core.shapes import MAPPING, Shape, check_shape
from rollmill.core.tree_file import read_header
from rollmill.models.acting.frozen import Weights
from rollmill.pbt.ledger import Ledger
from rollmill.pbt.matchmaking import LIVE, TOP, Candidate, Numbers, Odds, Rule, weigh
from rollmill.pbt.payoff import PAYOFF_FILE, PAYOFF_SHAPE, Games, Payoff, Result, require_statistic
from rollmill.runs.policies.base import LoadedPolicy
from rollmill.runs.settings.train import TrainConfig
from rollmill.runs.train.selfplay.matches import Matches, load_anchors
from rollmill.sampling.sampler import EpisodeEnd, Sampler

log = logging.getLogger("rollmill")

_MODEL: Shape = {"id": int, "version": int, "frames": int, "metric": (float, None), "milestone": bool, "file": str}
UNDECIDED = 2
"""Games of every environment that have ended without a word about who has won: is there ever going to be one?"""
SILENT_SECONDS = 60.0
"""How long it is waited for then: what workers tell takes another way than the rows of their games."""
STATE_SHAPE: Shape = {
    "models": [{"entry": _MODEL, "versions": [int], "opponent": bool}],
    "anchors": [str],
    "payoff": PAYOFF_SHAPE,
    "open": [[float]],
    "told?": [[float]],
    "ledger": [MAPPING],
}


class SelfPlay:
    """Opponents and results of one run."""

    def __init__(self, config: TrainConfig, matches: Matches, sampler: Sampler, folder: RunFolder) -> None:
        own = config.selfplay
        self._config, self._own, self._matches, self._sampler, self._folder = config, own, matches, sampler, folder
        self._rule: Rule | None = import_object(own.rule, "selfplay.rule") if own.own_rule else None
        self._anchors: list[str] = []
        """Names of all that the run has, or has had: their numbers stay theirs."""
        self._models: dict[int, _Model] = {}
        """Opponents by id, the oldest first, and those that have left and may still be playing."""
        self._leaving: set[int] = set()
        """Ids of models that are no opponents any more in episodes that begin now."""
        self._of_checkpoints: dict[Path, frozenset[int]] = {}
        self.payoff = Payoff(own.decay, own.min_games)
        self._games = Games(matches.draw.sides, matches.draw.numbers, own.result)
        self.ledger = Ledger(folder.path, PAYOFF_FILE)
        self._envs = len(sampler.box.next_episode)
        self._silent_since: float | None = None
        self._full = False
        self._add_anchors(load_anchors(config))

    @property
    def _numbers(self) -> Numbers:
        return self._matches.draw.numbers

    def _add_anchors(self, anchors: Mapping[str, LoadedPolicy]) -> None:
        names = [*self._anchors, *(name for name in anchors if name not in self._anchors)]
        self._anchors = names
        numbers = replace(self._numbers, anchors=len(names))
        self._matches.draw.numbers = self._games.numbers = numbers
        self._matches.anchors.clear()
        for name, policy in anchors.items():
            self._matches.add_anchor(numbers.anchor(names.index(name)), name, policy)

    # -- opponents -----------------------------------------------------------------------------

    @property
    def models(self) -> tuple[int, ...]:
        """Ids of the models that are opponents now, the oldest first."""
        return tuple(number for number in self._models if number not in self._leaving)

    def begin(self) -> None:
        """Begin, now that everything is in its place; a run that begins has no opponents from the pool yet."""
        if not self.ledger.entries:
            self.ledger.begin([{"begin": [], **self._about()}])
        if not self._own.pool_share:
            self._set_odds()

    def _about(self) -> dict[str, Any]:
        anchors = {name: self._numbers.anchor(k) for k, name in enumerate(self._anchors)}
        return {"rule": self._own.rule, "policies": self._numbers.policies, "anchors": anchors}

    def admit(self, entry: Entry, content: Mapping[str, Any]) -> None:
        """Take in a model that was published: from now on it is an opponent. ``content``: as given to the pool."""
        if not self._numbers.fits(entry.id):
            if not self._full:
                log.error("model %d and later ones are no opponents: there are no numbers left for them", entry.id)
            self._full = True
            return
        learners = content["state"]["learners"]
        own = _Model(entry, [learner["version"] for learner in learners], [learner["model"] for learner in learners])
        results = [{**row, "opponent": self.name_of(row["opponent"])} for row in self.payoff.close()]
        self.ledger.add({"model": entry.id, "version": entry.version, "frames": entry.frames, "results": results})
        self._models[entry.id] = own
        self._leave()
        self._post()

    def name_of(self, number: int) -> str:
        """Return who has this ``policy_id``: ``model 3``, an anchor's name, or ``policy 1`` of the run itself."""
        if self._numbers.is_anchor(number):
            return self._anchors[TOP - number]
        model = self._numbers.model_of(number)
        return f"policy {number}" if model is None else f"model {model}"

    def _leave(self) -> None:
        """Let models leave that the pool's rules do not keep.

        Those that may still be playing, in an episode that has begun, are kept ready.
        """
        playing = self._playing()
        gone = self._leaving - playing  # those that leave now may be seated by a draw that is under way
        self._models = {number: own for number, own in self._models.items() if number not in gone}
        self._leaving &= playing
        pool = self._pool()
        stay = {entry.id for entry in pool.kept(tuple(self._models[number].entry for number in self.models))}
        self._leaving |= {*self._models} - stay
        kept = {self._numbers.model(number) for number in self._models}
        kept |= {self._numbers.anchor(k) for k in range(len(self._anchors))} | {*range(self._numbers.policies)}
        self.payoff.forget(kept)

    def _playing(self) -> set[int]:
        found = map(self._numbers.model_of, np.unique(self._sampler.inference.policy_of_lane).tolist())
        return {number for number in found if number is not None}

    def _pool(self) -> ModelPool:
        pool, keep = self._config.pool, self._config.checkpoints
        return ModelPool(self._folder.pool, pool.keep, pool.milestone_updates, keep.min_free_mb)

    def _post(self) -> None:
        """Let the inference know: first all that can be played, then what is played."""
        weights: dict[int, Weights] = {}
        versions: dict[int, int] = {}
        for number, own in self._models.items():
            for policy, (version, saved) in enumerate(zip(own.versions, own.weights, strict=True)):
                weights[self._numbers.model(number, policy)] = saved
                versions[self._numbers.model(number, policy)] = version
        self._matches.networks.keep(weights)
        self._matches.draw.versions = versions
        self._set_odds()

    def _set_odds(self) -> None:
        self._matches.draw.odds = tuple(self._odds_of(policy) for policy in range(self._numbers.policies))

    def _odds_of(self, policy: int) -> Odds:
        own = self._own
        shares = {LIVE: own.live_share} if own.live_share else {}
        for name, share in own.anchors.items():
            shares[self._numbers.anchor(self._anchors.index(name))] = share
        if own.pool_share > 0:
            candidates = [self._candidate(policy, number) for number in self.models]
            for candidate, weight in zip(candidates, weigh(own, candidates, self._rule), strict=True):
                shares[self._numbers.model(candidate.model)] = own.pool_share * weight
        return Odds.of(shares)

    def _candidate(self, policy: int, number: int) -> Candidate:
        entry = self._models[number].entry
        win_rate = self.payoff.win_rate(policy, self._numbers.model(number))
        return Candidate(number, entry.version, entry.frames, win_rate)

    def needed(self) -> set[int]:
        """Return ids of models that must stay in the pool: it plays against them, or checkpoints go on from them."""
        found = Checkpoints(self._folder.checkpoints).list()
        known = self._of_checkpoints
        self._of_checkpoints = {c.path: known.get(c.path) or _models_of(c.path) for c in found}
        return {*self._models}.union(*self._of_checkpoints.values())

    # -- results -------------------------------------------------------------------------------

    def add(self, ended: Sequence[EpisodeEnd]) -> None:
        """Take in episodes that have ended, agent by agent."""
        results = [
            result
            for own in ended
            for result in self._games.add(own.lane, own.episode, own.policy_id, own.episode_return)
        ]
        self._count(results)
        if not self._games.decided and self._games.undecided > UNDECIDED * self._envs:
            self._silent_since = self._silent_since or time.monotonic()
            if time.monotonic() - self._silent_since >= SILENT_SECONDS:
                require_statistic(f"selfplay.result={self._own.result}", {})

    def add_statistics(self, lane: int, episode: int, stats: Mapping[str, float]) -> None:
        """Take in what an environment says of one agent's episode; it may come before or after its end."""
        if name := self._games.statistic:
            if name not in stats:
                require_statistic(f"selfplay.result={self._own.result}", dict.fromkeys(stats, True))
            self._count(self._games.add_statistic(lane, episode, stats[name]))

    def _count(self, results: Sequence[Result]) -> None:
        for result in results:
            self.payoff.add(result)
        if results and (self._rule is not None or self._own.rule == "pfsp"):
            self._set_odds()

    def metrics(self) -> dict[str, float]:
        """Return the metrics that ``docs/self_play.md`` explains."""
        found = {"selfplay/models": float(len(self.models)), "selfplay/games": float(self.payoff.games)}
        for policy in range(self._numbers.policies):
            before = "selfplay/" if policy == 0 else f"policy{policy}/selfplay/"
            met = [self._numbers.model(number) for number in self.models]
            rates = [self.payoff.win_rate(policy, number) for number in met if self.payoff.known(policy, number)]
            if rates:
                found[f"{before}win_rate"] = sum(rates) / len(rates)
                found[f"{before}win_rate_worst"] = min(rates)
            if met and self.payoff.known(policy, met[-1]):
                found[f"{before}win_rate_newest"] = self.payoff.win_rate(policy, met[-1])
            for k, name in enumerate(self._anchors):
                if self.payoff.known(policy, number := self._numbers.anchor(k)):
                    found[f"{before}win_rate_{name}"] = self.payoff.win_rate(policy, number)
        return found

    # -- checkpoints ---------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        playing = self._playing()
        models = [
            {"entry": asdict(own.entry), "versions": list(own.versions), "opponent": number not in self._leaving}
            for number, own in self._models.items()
            if number not in self._leaving or number in playing
        ]
        return {
            "models": models,
            "anchors": list(self._anchors),
            "payoff": self.payoff.state(),
            **self._games.state(),
            "ledger": [dict(entry) for entry in self.ledger.entries],
        }

    def load_state(self, state: Mapping[str, Any], checkpoint: Path) -> None:
        """Go on where ``state`` was taken, which lies in ``checkpoint``; the payoff table is written anew."""
        check_shape(state, STATE_SHAPE)
        self._anchors = list(state["anchors"])
        self._add_anchors(load_anchors(self._config))
        entries = [Entry(**saved["entry"]) for saved in state["models"]]
        pool = self._pool()
        pool.take_over(entries, RunFolder(checkpoint.parent.parent).pool)
        for saved, entry in zip(state["models"], entries, strict=True):
            learners = _load(pool.path_of(entry))
            self._models[entry.id] = _Model(entry, list(saved["versions"]), [own["model"] for own in learners])
        self._leaving = {own["entry"]["id"] for own in state["models"] if not own["opponent"]}
        self.payoff.load_state(state["payoff"])
        self._games.load_state(state)
        self.ledger.begin([{"begin": [], **self._about()}, *state["ledger"][1:]])
        self._post()


class _Model:
    """A model and its weights, of every policy."""

    def __init__(self, entry: Entry, versions: Sequence[int], weights: Sequence[Weights]) -> None:
        self.entry, self.versions, self.weights = entry, versions, weights


def _load(path: Path) -> Any:
    try:
        return load_checkpoint(path).state["learners"]
    except CheckpointError as error:
        raise CheckpointError(f"the run plays against a model that cannot be read: {error}") from error


def _models_of(checkpoint: Path) -> frozenset[int]:
    """Return ids of the models that a checkpoint goes on from."""
    try:
        content: Any = read_header(checkpoint)
        return frozenset(own["entry"]["id"] for own in content["state"]["selfplay"]["models"])
    except (CheckpointError, LookupError, TypeError):  # it is damaged, or a run without self-play has written it
        return frozenset()
