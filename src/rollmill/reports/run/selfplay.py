"""Self-play on the page of a run: what the policy, on its way to every model, could do against the others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rollmill.pbt.ledger import Entry
from rollmill.reports.html.document import card, note
from rollmill.reports.html.elements import NOTHING, Html, join
from rollmill.reports.html.heat_map import heat_map

MOST = 16
"""Models of a heat map; of more, every second one, or fewer, is drawn, and the newest."""


def selfplay(entries: Sequence[Entry]) -> Html:
    """Draw a heat map for each policy; nothing for a run without self-play."""
    if not entries:
        return NOTHING
    policies = range(int(entries[0].get("policies", 1)))
    return join(*(_of_policy(entries, policy, len(policies) > 1) for policy in policies))


def _of_policy(entries: Sequence[Entry], policy: int, several: bool) -> Html:
    names, shares = table_of(entries, policy)
    if not any(share is not None for row in shares for share in row):
        return NOTHING
    drawn = heat_map(names, shares, "Share of games won, row against column")
    words = (
        "A row is the policy on its way to this model, from the one before; a column is whom it has played; a draw is "
        "half a win. Pale is even. Where a row falls below one half to the left, something was forgotten."
    )
    return card(drawn, note(words), title=f"Games of policy {policy}" if several else "Games against past selves")


def table_of(entries: Sequence[Entry], policy: int = 0) -> tuple[list[str], list[list[float | None]]]:
    """Return names of anchors and models, and the share of games that each of them has won, row against column."""
    anchors = list(entries[0].get("anchors", ()))
    found = [entry for entry in entries if "model" in entry]
    stride = -(-len(found) // MOST) if found else 1
    chosen = found[::-1][::stride][::-1]  # the newest is among them
    names = [*anchors, *(f"model {entry['model']}" for entry in chosen)]
    rows: list[list[float | None]] = [[None] * len(names) for _ in anchors]
    return names, [*rows, *(_row(entry, names, policy) for entry in chosen)]


def _row(entry: Entry, names: Sequence[str], policy: int) -> list[float | None]:
    met: dict[str, Mapping[str, float]] = {
        result["opponent"]: result for result in entry["results"] if result["policy"] == policy
    }
    return [_share(met[name]) if name in met else None for name in names]


def _share(result: Mapping[str, float]) -> float:
    return (result["wins"] + result["draws"] / 2) / result["games"]
