"""The report page: figures in, HTML out. Sections in the order in which one asks: what is it, is it sound, how good is
it, what is in it, where does it come from.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from rollmill.reports.html.document import card, document, note, section, tiles
from rollmill.reports.html.svg import Plot, choices_plot, escape, histogram_plot, number
from rollmill.reports.html.tables import MAX_ROWS, NONE, Marked, size, table, value, whole
from rollmill.reports.store.checks import checks
from rollmill.reports.store.contact_sheet import Sheet, Strip
from rollmill.reports.store.selection import kept_and_played
from rollmill.reports.store.statistics import Figures

MAX_PLOTS = 24
"""Components of an action that are drawn."""
MAX_BARS = 64


def render(figures: Figures, sheets: Sequence[Sheet], json_name: str) -> str:
    """The whole page."""
    title = f"{figures['store']['env_id']}: {figures['store']['name']}"
    sections = (
        _head(figures),
        _tiles(figures),
        section("Checks", _checks(figures)),
        section("Kept and played", kept_and_played(figures["selection"])),
        section("Returns over time", _over_time(figures)),
        section("Episodes", _spreads(figures)),
        section("Actions and rewards", _decisions(figures)),
        section("Pictures", "".join(_sheet(sheet) for sheet in sheets)),
        section("Policy versions", _versions(figures["versions"])),
        section("Side by side", _comparisons(figures["groups"])),
        section("Columns", _columns(figures)),
        section("Shards", _shards(figures["shards"])),
        section("Problems", _problems(figures["problems"])),
        _foot(figures, json_name),
    )
    return document("store", title, "".join(sections))


# -------------------------------------------------------------------------------------------------- what it is


def _head(figures: Figures) -> str:
    about = figures["store"]
    facts = [f"made by {about['created_by']}"]
    if about["first_time"] is not None:
        facts.append(f"episodes from {_date(about['first_time'])} to {_date(about['last_time'])}")
    if about["env_kwargs"]:
        facts.append(f"settings {json.dumps(about['env_kwargs'], default=str)[:400]}")
    if about["agents"] > 1:
        facts.append(f"{about['agents']} agents")
    return (
        f"<header><h1>{escape(about['env_id'])}</h1>\n<p><code>{escape(about['path'])}</code></p>\n"
        f'<p class="muted">{escape("; ".join(facts))}</p></header>\n'
    )


def _date(seconds: float) -> str:
    try:
        return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M UTC")
    except (ValueError, OverflowError, OSError):  # a clock that was far off
        return f"{seconds:.0f} s"


def _tiles(figures: Figures) -> str:
    episodes, returns, lengths = figures["episodes"], figures["returns"], figures["lengths"]
    stored = sum(shard["bytes"] for shard in figures["shards"])
    steps = figures["rows"]["steps"]
    per_step = f"{size(stored / steps)} per step" if steps else "no steps"
    shown = (
        (f"{steps:,}", "steps"),
        (f"{episodes['total']:,}", f"episodes, {episodes['whole']:,} whole"),
        (value(returns["mean"]), f"mean return ± {value(returns['std'])}"),
        (value(lengths["mean"]), f"mean length ± {value(lengths['std'])}"),
        (size(stored), f"on disk, {per_step}"),
        (f"{len(figures['shards']):,}", f"shards, {sum(not s['sealed'] for s in figures['shards'])} open"),
    )
    return tiles(shown)


# -------------------------------------------------------------------------------------------------- is it sound


def _checks(figures: Figures) -> str:
    words = {"good": "good", "warn": "look", "bad": "bad", "unknown": "unknown"}
    items = "".join(
        f'<li><span class="{level}">{words[level]}</span><span>{escape(text)}</span></li>'
        for level, text in checks(figures)
    )
    return f'<div class="card"><ul class="checks">{items}</ul></div>'


# -------------------------------------------------------------------------------------------------- how good it is


def _over_time(figures: Figures) -> str:
    arrow = figures["arrow_of_time"]
    if not arrow["points"]:
        return '<p class="muted">No whole episode has a return.</p>'
    drawn = len(arrow["points"])
    some = f"{drawn:,} of {arrow['episodes']:,} episodes drawn; " if drawn < arrow["episodes"] else ""
    note = f"{some}line: mean, band: 10 % to 90 %; whole episodes, at the global step (frames) at which they began"
    ends = (
        f"Mean return of the first tenth {value(arrow['first_tenth'])}, of the last tenth "
        f"{value(arrow['last_tenth'])}. "
    )
    wide, narrow = _time_plot(arrow, 1080, 300), _time_plot(arrow, 340, 240)
    return (
        f'<div class="card"><div class="wide">{wide}</div><div class="narrow">{narrow}</div>'
        f'<p>{escape(ends)}</p><p class="note">{escape(note)}</p></div>'
    )


def _time_plot(arrow: Figures, width: int, height: int) -> str:
    steps = [step for step, _ in arrow["points"]]
    values = [value for _, value in arrow["points"]]
    bins = [one for one in arrow["bins"] if None not in one.values()]
    margin = (max(values) - min(values)) * 0.04
    plot = Plot(
        (min(steps), max(steps)),
        (min(values) - margin, max(values) + margin),
        width=width,
        height=height,
        label="returns over global step",
        x_title="global step",
        y_title="return",
    ).axes()
    plot.points(arrow["points"])
    if len(bins) > 1:
        plot.band([(b["step"], b["p10"]) for b in bins], [(b["step"], b["p90"]) for b in bins])
        plot.line([(b["step"], b["mean"]) for b in bins])
    return str(plot)


def _spreads(figures: Figures) -> str:
    cards = [_spread_card(title, figures[name]) for title, name in (("Return", "returns"), ("Length", "lengths"))]
    return f'<div class="grid3">{"".join(cards)}{_ends_card(figures)}</div>'


def _spread_card(title: str, values: Figures) -> str:
    if not values["count"]:
        return card('<p class="muted">No whole episode.</p>', title)
    plot = histogram_plot(
        values["edges"],
        values["counts"],
        label=f"histogram: {title.lower()}",
        x_title=f"{title.lower()} of whole episodes",
        mark=(values["mean"], "mean") if values["mean"] is not None else None,
    )
    names = ("min", "p25", "median", "p75", "max")
    text = ", ".join(f"{name} {value(values[name])}" for name in names)
    return card(f"{plot}{note(text)}", title)


def _ends_card(figures: Figures) -> str:
    ends = {name: count for name, count in figures["ends"].items() if count}
    total = max(1, sum(ends.values()))
    kinds = list(figures["ends"])
    bar = "".join(f'<i class="s{kinds.index(name)}" style="flex:{count}"></i>' for name, count in ends.items())
    rows = "".join(
        f'<tr><td class="l"><i class="key s{kinds.index(name)}"></i>{escape(_END_NAMES[name])}</td>'
        f"<td>{count:,}</td><td>{100 * count / total:.1f} %</td></tr>"
        for name, count in ends.items()
    )
    return card(f'<div class="share">{bar}</div><table><tbody>{rows}</tbody></table>' if ends else "<p>-</p>", "Ends")


_END_NAMES = {
    "terminated": "terminated",
    "truncated": "truncated",
    "both": "both at once",
    "partial": "no end recorded",
}


# -------------------------------------------------------------------------------------------------- what is in it


def _decisions(figures: Figures) -> str:
    actions = figures["actions"]
    if not actions["rows"]:
        return ""
    parts = actions["components"]
    draw = _floats_card if actions["kind"] == "continuous" else _choices_card
    cards = [draw(_action_title(k, len(parts)), part) for k, part in enumerate(parts[:MAX_PLOTS])]
    more = f'<p class="note">{len(parts) - MAX_PLOTS} more components are in the JSON file.</p>'
    rewards = _reward_card(figures["rewards"])
    return f'<div class="grid3">{rewards}{"".join(cards)}</div>{more if len(parts) > MAX_PLOTS else ""}'


def _action_title(k: int, count: int) -> str:
    return "Action" if count == 1 else f"Action, component {k}"


def _choices_card(title: str, part: Figures) -> str:
    counts, start = part["counts"], part["start"]
    if not sum(counts):
        return card('<p class="muted">No value lies within the action space.</p>', title)
    labels = [str(start + k) for k in range(len(counts))]
    if len(counts) > MAX_BARS:
        width = -(-len(counts) // MAX_BARS)
        groups = range(0, len(counts), width)
        labels = [f"{start + k}+" for k in groups]
        counts = [sum(counts[k : k + width]) for k in groups]
    plot = choices_plot(labels, counts, label=title, x_title="choice")
    even = "" if part["evenness"] is None else f"evenness {part['evenness']:.3f} (1: all choices equally often)"
    return card(f"{plot}{note(even)}", title)


def _floats_card(title: str, part: Figures) -> str:
    if not part["count"]:
        return card('<p class="muted">No finite value.</p>', title)
    plot = histogram_plot(part["edges"], part["counts"], label=title, x_title="value")
    text = f"mean {value(part['mean'])} ± {value(part['std'])}, {value(part['min'])} to {value(part['max'])}"
    if part["low"] is not None or part["high"] is not None:
        share = 100 * part["outside"] / max(1, part["count"])
        text += f"; {share:.1f} % outside the bounds {value(part['low'])} to {value(part['high'])}"
    return card(f"{plot}{note(text)}", title)


def _reward_card(rewards: Figures) -> str:
    if not rewards["count"]:
        return card('<p class="muted">No finite reward.</p>', "Reward per step")
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
    return card(f"{plot}{note(text)}", "Reward per step")


def _sheet(sheet: Sheet) -> str:
    note = f'<p class="note">{escape(sheet.note)}</p>' if sheet.note else ""
    return f'<div class="card"><h3>{escape(sheet.name)}</h3>{note}{"".join(map(_strip, sheet.strips))}</div>'


def _strip(strip: Strip) -> str:
    shots = "".join(
        f'<figure><img src="{escape(shot.png)}" width="{shot.width}" height="{shot.height}" alt="step {shot.step}" '
        f'class="{"small" if shot.width < 200 else "large"}"/><figcaption>step {shot.step:,}</figcaption></figure>'
        for shot in strip.shots
    )
    title = f"{strip.rank} {number(strip.return_)}: episode {strip.episode}, {strip.length:,} steps"
    return f'<div class="strip"><p>{escape(title)}</p><div class="shots">{shots}</div></div>'


# -------------------------------------------------------------------------------------------------- where it comes from


def _versions(rows: list[Figures]) -> str:
    several = len({row["policy_id"] for row in rows}) > 1
    head = (["policy id"] if several else []) + ["version", *_GROUP_HEAD, "global step"]
    cells = []
    for row in rows:
        last = row["version_max"]
        version = f"{last:,}" if row["version_min"] == last else f"{row['version_min']:,} .. {last:,}"
        progress = f"{whole(row['global_step_first'])} .. {whole(row['global_step_last'])}"
        cells.append([*([row["policy_id"]] if several else []), version, *_group_cells(row), progress])
    note = '<p class="note">By the version that finished the episode.</p>'
    return table(head, cells, left=0) + note if rows else ""


_GROUP_HEAD = ("episodes", "whole", "steps", "mean return", "± std", "min", "max", "mean length")


def _group_cells(row: Figures) -> list[str]:
    counts = [f"{row[name]:,}" for name in ("episodes", "whole", "steps")]
    names = ("return_mean", "return_std", "return_min", "return_max", "length_mean")
    return counts + [value(row[name]) for name in names]


def _comparisons(groups: Figures) -> str:
    titles = {"env": "Environment", "policy": "Policy", "policy_id": "Policy id", "worker": "Worker"}
    parts = [_comparison(titles[name], group) for name, group in groups.items() if group["total"] > 1]
    note = (
        '<p class="note">Apart: by how many standard errors the mean return differs from that of all others; '
        "beyond 4 it is marked.</p>"
    )
    return "".join(parts) + note if parts else ""


def _comparison(title: str, group: Figures) -> str:
    cells: list[list[Any]] = []
    for row in group["rows"]:
        name = "not recorded" if row["name"] in ("", -1) else row["name"]
        apart = NONE if row["apart"] is None else f"{row['apart']:+.1f}"
        cells.append([name, *_group_cells(row), Marked(apart, abs(row["apart"] or 0.0) > 4)])
    more = group["total"] - len(cells)
    return f"<h3>{escape(title)}</h3>{table([title.lower(), *_GROUP_HEAD, 'apart'], cells, left=1, more=more)}"


def _columns(figures: Figures) -> str:
    cells = []
    total = max(1, sum(column["stored"] for column in figures["columns"]))
    for column in figures["columns"]:
        shape = "x".join(map(str, column["shape"])) or "scalar"
        ratio = NONE if column["ratio"] is None else f"{column['ratio']:.2f}"
        per_row = size(column["stored"] / column["rows"]) if column["rows"] else NONE
        share = f"{100 * column['stored'] / total:.1f} %"
        codec = column["codec"] + (" (lossy)" if column["lossy"] else "")
        about = [column["name"], column["dtype"], shape, codec]
        cells.append([*about, size(column["raw"]), size(column["stored"]), ratio, per_row, share])
    head = ("column", "type", "shape", "codec", "raw", "stored", "ratio", "per row", "share")
    looked = figures["looked_at"]
    note = f'<p class="note">Sizes of the {looked["read"]:,} episodes that were read (of {looked["of"]:,}).</p>'
    return table(head, cells, left=4) + note


def _shards(shards: list[Figures]) -> str:
    head = ("shard", "state", "size", "episodes", "steps")
    cells = [
        [s["name"], "sealed" if s["sealed"] else "open", size(s["bytes"]), f"{s['episodes']:,}", f"{s['steps']:,}"]
        for s in shards
    ]
    return table(head, cells, left=2) if cells else ""


def _problems(problems: list[str]) -> str:
    if not problems:
        return ""
    items = "".join(f"<li>{escape(problem)}</li>" for problem in problems[:MAX_ROWS])
    more = len(problems) - MAX_ROWS
    rest = f'<p class="note">{more:,} more are in the JSON file.</p>' if more > 0 else ""
    return f'<div class="card"><ul>{items}</ul>{rest}</div>'


def _foot(figures: Figures, json_name: str) -> str:
    looked = figures["looked_at"]
    text = (
        f"Made {figures.get('made_at', '')}. Figures of episodes come from the whole table; actions, rewards, sizes of "
        f"columns and duplicates from {looked['read']:,} of {looked['of']:,} episodes. The same figures: {json_name}."
    )
    return f'<footer class="note"><p>{escape(text)}</p></footer>\n'
