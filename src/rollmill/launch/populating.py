"""The launcher of a population of separate runs: it starts those that may go on, and brings back those that are lost.

The members meet by themselves, in a folder (``pbt.exchange``). What only a launcher can know is who has failed for
good: the next round does not wait for such a member, and it comes back with the weights of a better one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rollmill.launch.launcher import Launcher
from rollmill.launch.records import LaunchRecords, PlanRecord, RunRecord
from rollmill.launch.settings import LaunchSettings
from rollmill.launch.status import RunStatus
from rollmill.pbt.exchange import About, Exchange
from rollmill.pbt.lineage import best_member, last_judged


class PopulationLauncher(Launcher):
    """Looks after the members until all have had their frames."""

    def __init__(self, records: LaunchRecords, plan: PlanRecord, settings: LaunchSettings, **options: Any) -> None:
        super().__init__(records, plan, settings, **options)
        assert plan.population is not None
        self.exchange = Exchange(records.experiment)
        self.exchange.create(About.from_dict(plan.population))
        members = self.exchange.about().runs
        self._members: Mapping[str, int] = {name: member for member, name in enumerate(members)}

    def tick(self) -> list[RunStatus]:
        statuses = super().tick()
        if self._follow(statuses):
            statuses = super().tick()
        return statuses

    def may_start(self, run: RunRecord) -> bool:
        """Return whether the round is decided that the run waits for."""
        return not self.exchange.reported(self.exchange.newest + 1, self._members[run.name])

    def room(self, active: int, waiting: int) -> int:
        """Return how many members may be started; arrays share one limit.

        Every array job has a limit of its own, and whoever goes on is in another one.
        """
        limit = self.settings.at_once if self.backend.batch else 0
        return max(0, limit - active) if limit else super().room(active, waiting)

    def _follow(self, statuses: Sequence[RunStatus]) -> bool:
        """Say who is lost, decide if nobody else is left to, bring the lost back; returns whether anything is new."""
        before = self.exchange.newest
        back = [status for status in statuses if self._lost(status, before)]
        now = self.exchange.decide()
        self.exchange.write_ledger()
        self.exchange.tidy()
        for status in back:
            self.retry(status)
            self.exchange.found(before, self._members[status.run.name])
        return bool(back) or now != before

    def _lost(self, status: RunStatus, newest: int) -> bool:
        """Return whether a run may be tried again, as a round gave it other weights; else tell the next it is lost."""
        member = self._members[status.run.name]
        if status.state not in ("failed", "cancelled") or self.exchange.reported(newest + 1, member):
            return False
        if status.state == "failed" and self.exchange.is_lost(newest, member):
            return True
        if not self.exchange.is_lost(newest + 1, member):
            why, again = status.reason or status.state, status.state == "failed"
            self.exchange.lose(newest + 1, member, status.frames or 0, why.partition("\n")[0], again)
        return False


def told(exchange: Exchange, experiment: Path) -> list[str]:
    """Say how a population stands, in a line or two."""
    entries, about = exchange.entries(), exchange.about()
    newest = exchange.decided(exchange.newest)
    assert newest is not None, "a round that was decided stays"
    if not about.pbt.decides:
        return [f"a population of {len(about.runs)} without rounds of decisions (method={about.pbt.method})"]
    copies = sum(move["from"] is not None for entry in entries[1:] for move in entry["moves"])
    waited = sum(exchange.reported(newest.number + 1, member) for member in range(len(about.runs)))
    waits = f", {waited} of {len(about.runs)} members are there" if waited else ""
    lines = [
        f"{newest.number} rounds of the population, weights were copied {copies} times; the next is due at "
        f"{newest.next_at:,} frames of each member{waits}"
    ]
    member = best_member(entries)
    own = last_judged(entries, member)
    if own is not None:
        error = "" if own["error"] is None else f" +- {own['error']:.2g}"
        rated = f"{about.pbt.objective} {own['objective']:.4g}{error} over {own['episodes']} episodes"
        values = " ".join(f"{key}={value:.4g}" for key, value in newest.settings[member].items())
        lines.append(f"best: member {member}, {rated}: {values} ({experiment / about.runs[member]})")
    return lines
