"""The population on the page of a run: whose weights went where, and how good they were on the way."""

from __future__ import annotations

from collections.abc import Sequence

from rollmill.pbt.ledger import Entry
from rollmill.pbt.lineage import ancestors, best_member, best_so_far, last_judged, rounds_of, schedule
from rollmill.reports.html.document import card, details, grid, note, paragraph
from rollmill.reports.html.elements import NOTHING, Html, join
from rollmill.reports.html.plots import Line, Plot, curves, wide
from rollmill.reports.html.tables import NONE, number, table

MOST_ROUNDS = 200
"""Rounds in the table of decisions."""


def population(entries: Sequence[Entry]) -> Html:
    """Return tree, curve and tables; nothing for a run that is no population."""
    if not entries:
        return NOTHING
    if not rounds_of(entries):
        return join(paragraph("No round of decisions yet.", kind="muted"), _members(entries))
    member = best_member(entries)
    return join(
        _tree(entries, member),
        grid([_curve(entries, member), *_settings(entries, member)]),
        _members(entries),
        details(f"Decisions of {len(rounds_of(entries))} rounds", _decisions(entries)),
    )


def _tree(entries: Sequence[Entry], member: int) -> Html:
    """Draw every member as a line, copied weights as a step from one to another; the best member's way is bold."""
    rounds, line = rounds_of(entries), ancestors(entries, member)
    at = [0.0, *(float(min(own["frames"] for own in entry["members"])) for entry in rounds)]
    members = len(entries[0]["begin"])

    def at_height(member: int) -> float:
        return float(members - 1 - member)  # the first one on top

    def draw(size: tuple[int, int]) -> Html:
        size = size[0], max(140, 22 * members + 60)
        heights = (-0.5, members - 0.4)
        plot = Plot((0.0, at[-1] or 1.0), heights, size=size, label="Lineage", x_title="frames of a member")
        plot.axes(names=[(at_height(k), str(k)) for k in range(members)])
        for x, entry in zip(at[1:], rounds, strict=True):
            for move in entry["moves"]:
                if move["from"] is not None:
                    taker = at_height(move["member"])
                    plot.line([(x, at_height(move["from"])), (x, taker)], "mark").points([(x, taker)])
        corners = [(0.0, at_height(line[0]))]
        for x, holder in zip(at[1:], line[1:], strict=True):
            corners += [(x, corners[-1][1]), (x, at_height(holder))]
        return plot.line(corners).svg()

    words = (
        f"dashed: weights go from one member to another (a dot: to whom); bold: the way of member {member}'s weights"
    )
    return card(wide(draw), note(words), title="Lineage")


def _curve(entries: Sequence[Entry], member: int) -> Html:
    found = best_so_far(entries, member)
    if not found:
        return NOTHING
    along = Line(f"along the way of member {member}", [(float(x), own) for x, own, _ in found])
    best = Line("best of all members", [(float(x), best) for x, _, best in found])
    drawn = curves([along, best], "Objective", x_title="frames of a member")
    return card(drawn, note(f"objective: {entries[0].get('objective', 'return')}"), title="Objective along the lineage")


def _settings(entries: Sequence[Entry], member: int) -> list[Html]:
    """Draw each tuned setting on the way of the best member: in steps, for settings stand still in between."""
    stretches = schedule(entries, member)
    end = float(min(own["frames"] for own in entries[-1]["members"]))
    found = []
    for key in stretches[0].settings:
        corners: list[tuple[float, float]] = []
        for stretch in stretches:
            corners += [(float(stretch.frames), corners[-1][1])] if corners else []
            corners.append((float(stretch.frames), stretch.settings[key]))
        corners.append((max(end, corners[-1][0]), corners[-1][1]))
        found.append(card(curves([Line(key, corners)], key, x_title="frames of a member"), title=key))
    return found


def _members(entries: Sequence[Entry]) -> Html:
    """List what every member began with, and where it is."""
    rounds = rounds_of(entries)
    keys = list(entries[0]["begin"][0])
    rows = []
    for k, begun in enumerate(entries[0]["begin"]):
        own = last_judged(entries, k)
        told = NONE if own is None else f"{number(own['objective'])} ± {number(own['error'])}"
        now = schedule(entries, k)[-1].settings
        copies = sum(move["member"] == k and move["from"] is not None for entry in rounds for move in entry["moves"])
        values = [f"{number(begun[key])} → {number(now[key])}" for key in keys]
        rows.append([str(k), told, own["episodes"] if own else 0, copies, *values])
    return table(("member", "objective", "episodes", "replaced", *keys), rows, left=1)


def _decisions(entries: Sequence[Entry]) -> Html:
    rows = []
    for entry in rounds_of(entries)[-MOST_ROUNDS:]:
        for move in entry["moves"]:
            changes = ", ".join(f"{key} {number(a)} → {number(b)}" for key, (a, b) in move["settings"].items())
            source = "explores" if move["from"] is None else f"from {move['from']}"
            rows.append([str(entry["round"]), str(move["member"]), source, changes])
        rows += [[str(entry["round"]), member, "stays", why] for member, why in entry["kept"].items()]
    return table(("round", "member", "what", "settings, or why"), rows, left=4)
