"""The report page: metrics in, HTML out. Sections in the order in which one asks: what is it, is it sound, how good is
it, what is in it, where does it come from.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from rollmill.core.text import bytes_text
from rollmill.reports.html.document import (
    bullets,
    card,
    checklist,
    code,
    document,
    footer,
    grid,
    header,
    note,
    pair,
    paragraph,
    section,
    shares,
    subsection,
    tiles,
)
from rollmill.reports.html.elements import NOTHING, Html, join
from rollmill.reports.html.media import filmstrip
from rollmill.reports.html.plots import Plot, choices_plot, histogram_plot, spread, wide
from rollmill.reports.html.tables import MAX_ROWS, NONE, Marked, number, table, value, whole
from rollmill.reports.store.checks import checks
from rollmill.reports.store.comparison import QUANTITIES
from rollmill.reports.store.contact_sheet import ContactSheet, Strip
from rollmill.reports.store.statistics import Metrics

MAX_PLOTS = 24
"""Components of an action that are drawn."""
MAX_BARS = 64


def render(metrics: Metrics, sheets: Sequence[ContactSheet], json_name: str) -> Html:
    """Return the whole page."""
    return document(
        "store",
        f"{metrics['store']['env_id']}: {metrics['store']['name']}",
        _head(metrics),
        _tiles(metrics),
        section("Checks", _checks(metrics)),
        section("Kept and played", _kept_and_played(metrics["selection"])),
        section("Returns over time", _over_time(metrics)),
        section("Episodes", _spreads(metrics)),
        section("Actions and rewards", _decisions(metrics)),
        section("Images", *map(_sheet, sheets)),
        section("Policy versions", _versions(metrics["versions"])),
        section("Side by side", _comparisons(metrics["groups"])),
        section("Columns", _columns(metrics)),
        section("Shards", _shards(metrics["shards"])),
        section("Problems", _problems(metrics["problems"])),
        _foot(metrics, json_name),
    )


# -------------------------------------------------------------------------------------------------- what it is


def _head(metrics: Metrics) -> Html:
    about = metrics["store"]
    made = about.get("made") or {}
    facts = [f"made by {made.get('command') or about['created_by']}"]
    if about["first_time"] is not None:
        facts.append(f"episodes from {_date(about['first_time'])} to {_date(about['last_time'])}")
    if about["env_kwargs"]:
        facts.append(f"settings {json.dumps(about['env_kwargs'], default=str)[:400]}")
    if about["agents"] > 1:
        facts.append(f"{about['agents']} agents")
    return header(about["env_id"], paragraph(code(about["path"])), paragraph("; ".join(facts), kind="muted"))


def _date(seconds: float) -> str:
    try:
        return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M UTC")
    except (ValueError, OverflowError, OSError):  # a clock that was far off
        return f"{seconds:.0f} s"


def _tiles(metrics: Metrics) -> Html:
    episodes, returns, lengths = metrics["episodes"], metrics["returns"], metrics["lengths"]
    stored = sum(shard["bytes"] for shard in metrics["shards"])
    steps = metrics["rows"]["steps"]
    per_step = f"{bytes_text(stored / steps)} per step" if steps else "no steps"
    shown = (
        (f"{steps:,}", "steps"),
        (f"{episodes['total']:,}", f"episodes, {episodes['whole']:,} whole"),
        (value(returns["mean"]), f"mean return ± {value(returns['std'])}"),
        (value(lengths["mean"]), f"mean length ± {value(lengths['std'])}"),
        (bytes_text(stored), f"on disk, {per_step}"),
        (f"{len(metrics['shards']):,}", f"shards, {sum(not s['sealed'] for s in metrics['shards'])} open"),
    )
    return tiles(shown)


# -------------------------------------------------------------------------------------------------- is it sound


def _checks(metrics: Metrics) -> Html:
    words = {"good": "good", "warn": "look", "bad": "bad", "unknown": "unknown"}
    return card(checklist((level, words[level], text) for level, text in checks(metrics)))


def _kept_and_played(selection: Metrics | None) -> Html:
    """Show means of kept and of all episodes, over the run and part by part; empty if what was played is not known."""
    if selection is None:
        return NOTHING
    sentence = paragraph(f"{selection['sentence'][:1].upper()}{selection['sentence'][1:]}.")
    if selection["agrees"] is None:
        return card(sentence)
    rows = [
        (f"mean {name}", *(value(selection[name][metric]) for metric in ("kept", "played", "z", "ks", "ks_p")))
        for name in QUANTITIES
    ]
    head = ("of whole episodes", "kept, weighted", "played", "standard errors apart", "KS distance", "KS p-value")
    about = (
        "line: kept, weighted by one over the probability of having been kept; dots: all episodes that were played; "
        "by the global step (frames) at which an episode began"
    )
    plots = pair(*(part_plot(selection["parts"], name) for name in QUANTITIES))
    return join(card(sentence, plots, note(about)), table(head, rows, left=1))


def part_plot(parts: Sequence[Metrics], name: str) -> Html:
    """Draw the means of parts over where they lie; of the last parts only short episodes have ended: left out."""
    usual = statistics.median(part["played"] for part in parts)
    while parts[-1]["played"] < usual / 4:
        parts = parts[:-1]
    middles = [sum(part["frames"]) / 2 for part in parts]
    kept = [part[name]["kept"] for part in parts]
    played = [part[name]["played"] for part in parts]
    plot = Plot(
        (min(middles), max(middles)),
        spread(kept + played),
        size=(480, 240),
        label=f"mean {name} over global step, kept and played",
        x_title="global step",
        y_title=f"mean {name}",
    ).axes()
    return plot.points(list(zip(middles, played))).line(list(zip(middles, kept))).svg()


# -------------------------------------------------------------------------------------------------- how good it is


def _over_time(metrics: Metrics) -> Html:
    arrow = metrics["arrow_of_time"]
    if not arrow["points"]:
        return paragraph("No whole episode has a return.", kind="muted")
    drawn = len(arrow["points"])
    some = f"{drawn:,} of {arrow['episodes']:,} episodes drawn; " if drawn < arrow["episodes"] else ""
    about = f"{some}line: mean, band: 10 % to 90 %; whole episodes, at the global step (frames) at which they began"
    first, last = (value(arrow[name]) for name in ("first_tenth", "last_tenth"))
    ends = f"Mean return of the first tenth {first}, of the last tenth {last}."
    return card(wide(lambda size: _time_plot(arrow, size)), paragraph(ends), note(about))


def _time_plot(arrow: Metrics, size: tuple[int, int]) -> Html:
    steps, values = zip(*arrow["points"])
    bins = [one for one in arrow["bins"] if None not in one.values()]
    plot = Plot(
        (min(steps), max(steps)),
        spread(values),
        size=size,
        label="returns over global step",
        x_title="global step",
        y_title="return",
    ).axes()
    plot.points(arrow["points"])
    if len(bins) > 1:
        plot.band([(b["step"], b["p10"]) for b in bins], [(b["step"], b["p90"]) for b in bins])
        plot.line([(b["step"], b["mean"]) for b in bins])
    return plot.svg()


def _spreads(metrics: Metrics) -> Html:
    ends = shares([(_END_NAMES[name], count) for name, count in metrics["ends"].items()])
    kinds = (("Return", "returns"), ("Length", "lengths"))
    return grid([*(_spread_card(title, metrics[name]) for title, name in kinds), card(ends, title="Ends")])


def _spread_card(title: str, values: Metrics) -> Html:
    if not values["count"]:
        return card(paragraph("No whole episode.", kind="muted"), title=title)
    plot = histogram_plot(
        values["edges"],
        values["counts"],
        label=f"histogram: {title.lower()}",
        x_title=f"{title.lower()} of whole episodes",
        mark=(values["mean"], "mean") if values["mean"] is not None else None,
    )
    names = ("min", "p25", "median", "p75", "max")
    text = ", ".join(f"{name} {value(values[name])}" for name in names)
    return card(plot, note(text), title=title)


_END_NAMES = {
    "terminated": "terminated",
    "truncated": "truncated",
    "both": "both at once",
    "partial": "no end recorded",
}


# -------------------------------------------------------------------------------------------------- what is in it


def _decisions(metrics: Metrics) -> Html:
    actions = metrics["actions"]
    if not actions["rows"]:
        return NOTHING
    parts = actions["components"]
    draw = _floats_card if actions["kind"] == "continuous" else _choices_card
    cards = [draw(_action_title(k, len(parts)), part) for k, part in enumerate(parts[:MAX_PLOTS])]
    more = f"{len(parts) - MAX_PLOTS} more components are in the JSON file." if len(parts) > MAX_PLOTS else ""
    return join(grid([_reward_card(metrics["rewards"]), *cards]), note(more))


def _action_title(k: int, count: int) -> str:
    return "Action" if count == 1 else f"Action, component {k}"


def _choices_card(title: str, part: Metrics) -> Html:
    counts, start = part["counts"], part["start"]
    if not sum(counts):
        return card(paragraph("No value lies within the action space.", kind="muted"), title=title)
    labels = [str(start + k) for k in range(len(counts))]
    if len(counts) > MAX_BARS:
        width = -(-len(counts) // MAX_BARS)
        groups = range(0, len(counts), width)
        labels = [f"{start + k}+" for k in groups]
        counts = [sum(counts[k : k + width]) for k in groups]
    plot = choices_plot(labels, counts, label=title, x_title="choice")
    even = "" if part["evenness"] is None else f"evenness {part['evenness']:.3f} (1: all choices equally often)"
    return card(plot, note(even), title=title)


def _floats_card(title: str, part: Metrics) -> Html:
    if not part["count"]:
        return card(paragraph("No finite value.", kind="muted"), title=title)
    plot = histogram_plot(part["edges"], part["counts"], label=title, x_title="value")
    text = f"mean {value(part['mean'])} ± {value(part['std'])}, {value(part['min'])} to {value(part['max'])}"
    if part["low"] is not None or part["high"] is not None:
        share = 100 * part["outside"] / max(1, part["count"])
        text += f"; {share:.1f} % outside the bounds {value(part['low'])} to {value(part['high'])}"
    return card(plot, note(text), title=title)


def _reward_card(rewards: Metrics) -> Html:
    if not rewards["count"]:
        return card(paragraph("No finite reward.", kind="muted"), title="Reward per step")
    if rewards["distinct"] is not None:
        labels = [number(value) for value, _ in rewards["distinct"]]
        counts = [count for _, count in rewards["distinct"]]
        plot = choices_plot(labels, counts, label="rewards", x_title="reward")
    else:
        plot = histogram_plot(rewards["edges"], rewards["counts"], label="rewards", x_title="reward")
    share = 100 * rewards["nonzero"] / rewards["count"]
    text = (
        f"mean {value(rewards['mean'])} ± {value(rewards['std'])}, {value(rewards['min'])} to "
        f"{value(rewards['max'])}; {share:.1f} % are not 0"
    )
    return card(plot, note(text), title="Reward per step")


def _sheet(sheet: ContactSheet) -> Html:
    return card(note(sheet.note), *map(_strip, sheet.strips), title=sheet.name)


def _strip(strip: Strip) -> Html:
    title = f"{strip.rank} {number(strip.return_)}: episode {strip.episode}, {strip.length:,} steps"
    return filmstrip(title, [(shot.png, shot.size, f"step {shot.step:,}") for shot in strip.shots])


# -------------------------------------------------------------------------------------------------- where it comes from


def _versions(rows: list[Metrics]) -> Html:
    several = len({row["policy_id"] for row in rows}) > 1
    head = (["policy id"] if several else []) + ["version", *_GROUP_HEAD, "global step"]
    cells = []
    for row in rows:
        last = row["version_max"]
        version = f"{last:,}" if row["version_min"] == last else f"{row['version_min']:,} .. {last:,}"
        progress = f"{whole(row['global_step_first'])} .. {whole(row['global_step_last'])}"
        cells.append([*([row["policy_id"]] if several else []), version, *_group_cells(row), progress])
    return join(table(head, cells, left=0), note("By the version that finished the episode.")) if rows else NOTHING


_GROUP_HEAD = ("episodes", "whole", "steps", "mean return", "± std", "min", "max", "mean length")


def _group_cells(row: Metrics) -> list[str]:
    counts = [f"{row[name]:,}" for name in ("episodes", "whole", "steps")]
    names = ("return_mean", "return_std", "return_min", "return_max", "length_mean")
    return counts + [value(row[name]) for name in names]


def _comparisons(groups: Metrics) -> Html:
    titles = {"env": "Environment", "policy": "Policy", "policy_id": "Policy id", "worker": "Worker"}
    parts = [_comparison(titles[name], group) for name, group in groups.items() if group["total"] > 1]
    about = "Apart: by how many standard errors the mean return differs from that of all others; beyond 4 it is marked."
    return join(*parts, note(about)) if parts else NOTHING


def _comparison(title: str, group: Metrics) -> Html:
    cells: list[list[Any]] = []
    for row in group["rows"]:
        name = "not recorded" if row["name"] in ("", -1) else row["name"]
        apart = NONE if row["apart"] is None else f"{row['apart']:+.1f}"
        cells.append([name, *_group_cells(row), Marked(apart, abs(row["apart"] or 0.0) > 4)])
    more = group["total"] - len(cells)
    return subsection(title, table([title.lower(), *_GROUP_HEAD, "apart"], cells, left=1, more=more))


def _columns(metrics: Metrics) -> Html:
    cells = []
    total = max(1, sum(column["stored"] for column in metrics["columns"]))
    for column in metrics["columns"]:
        shape = "x".join(map(str, column["shape"])) or "scalar"
        ratio = NONE if column["ratio"] is None else f"{column['ratio']:.2f}"
        per_row = bytes_text(column["stored"] / column["rows"]) if column["rows"] else NONE
        share = f"{100 * column['stored'] / total:.1f} %"
        codec = column["codec"] + (" (lossy)" if column["lossy"] else "")
        about = [column["name"], column["dtype"], shape, codec]
        cells.append([*about, bytes_text(column["raw"]), bytes_text(column["stored"]), ratio, per_row, share])
    head = ("column", "type", "shape", "codec", "raw", "stored", "ratio", "per row", "share")
    looked = metrics["looked_at"]
    read = f"Sizes of the {looked['read']:,} episodes that were read (of {looked['of']:,})."
    return join(table(head, cells, left=4), note(read))


def _shards(shards: list[Metrics]) -> Html:
    head = ("shard", "state", "size", "episodes", "steps")
    cells = [
        [
            s["name"],
            "sealed" if s["sealed"] else "open",
            bytes_text(s["bytes"]),
            whole(s["episodes"]),
            whole(s["steps"]),
        ]
        for s in shards
    ]
    return table(head, cells, left=2) if cells else NOTHING


def _problems(problems: list[str]) -> Html:
    if not problems:
        return NOTHING
    more = len(problems) - MAX_ROWS
    return card(bullets(problems[:MAX_ROWS]), note(f"{more:,} more are in the JSON file." if more > 0 else ""))


def _foot(metrics: Metrics, json_name: str) -> Html:
    looked = metrics["looked_at"]
    return footer(
        f"Made {metrics.get('made_at', '')}. Metrics of episodes come from the whole table; actions, rewards, sizes of "
        f"columns and duplicates from {looked['read']:,} of {looked['of']:,} episodes. The same metrics: {json_name}."
    )
