"""The metrics of a store: what ``rollmill data report`` shows and writes as JSON.

Everything about whole episodes comes from the table and costs next to nothing. What needs rows (``contents``) is taken
from at most ``max_episodes`` episodes, spread evenly over the store. All values are plain JSON: no NaN, no numpy.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from rollmill.core.errors import ConfigError
from rollmill.core.fields import Array
from rollmill.reports.store.comparison import compare
from rollmill.reports.store.contents import Contents, Progress, find_duplicates, look_inside
from rollmill.reports.store.histograms import histogram
from rollmill.store.derive.derivation import open_quietly
from rollmill.store.played import PlayedEpisodes
from rollmill.store.reader import Store
from rollmill.store.table import EpisodeTable

Metrics = dict[str, Any]

FORMAT = 1
MAX_EPISODES = 5000
"""Episodes whose rows are read unless told otherwise."""
POINTS = 1500
"""Single episodes in the plot of returns over time, at most."""
TIME_BINS = 40
VERSION_ROWS = 40
GROUPS = 100
"""Workers (policies, ...) that are compared, at most: those with the most episodes."""

NOT_BY_CHANCE = (
    "episodes were not kept by chance: pieces of episodes, or chosen by their return. Means over them are not means "
    "over what was played"
)

MIN_EPISODES = 20
MIN_CORRELATION = 0.1
MIN_SIGMAS = 3.0
"""A trend is one of at least ``MIN_CORRELATION`` that chance makes in one of several hundred stores."""


def describe(store: Store, max_episodes: int = MAX_EPISODES, progress: Progress | None = None) -> Metrics:
    """Return all metrics of a store; ``max_episodes`` 0 reads the rows of every episode."""
    if max_episodes < 0:
        raise ConfigError(f"max_episodes {max_episodes}: 0 (all) or a positive number is expected")
    chosen = spread_evenly(len(store), max_episodes)
    inside = look_inside(store, chosen, progress)
    table = store.table
    whole = ~(table["partial_start"] | table["partial_end"])
    returns, lengths = table.return_[whole], table.length[whole]
    return {
        "format": FORMAT,
        "store": _about(store),
        "rows": _rows(store),
        "episodes": _episodes(store, whole),
        "ends": _ends(table),
        "returns": {**spread(returns), **histogram(returns)},
        "lengths": {**spread(lengths), **histogram(lengths)},
        "arrow_of_time": arrow_of_time(table["global_step_first"][whole], returns),
        "looked_at": {"episodes": len(chosen), "of": len(store), "read": inside.episodes},
        "order": {
            "episodes": inside.episodes,
            "step_goes_back": inside.step_goes_back,
            "version_goes_back": inside.version_goes_back,
        },
        "actions": inside.actions.metrics(),
        "rewards": inside.rewards.metrics(),
        "duplicates": find_duplicates(store, inside.digests),
        "versions": versions(table, whole),
        "groups": _groups(table, whole),
        "columns": _columns(store, inside),
        "shards": _shards(store),
        "selection": selection(store),
        "problems": [str(problem) for problem in (*store.problems, *inside.problems)],
    }


def selection(store: Store) -> Metrics | None:
    """Compare kept episodes with all that were played (``comparison``); None where nobody knows what was played."""
    played = PlayedEpisodes.load(store.path)
    if played is None or not played.count:
        return None
    found = compare(store.table, played)
    if found is None:
        return {"kept": 0, "all_played": played.count, "agrees": None, "sentence": NOT_BY_CHANCE}
    return found.to_json()


def spread_evenly(count: int, limit: int) -> Array:
    """Return at most ``limit`` (0: no limit) of the numbers below ``count``, evenly spread, the ends included."""
    if limit == 0 or count <= limit:
        return np.arange(count)
    return np.unique(np.linspace(0, count - 1, limit).round().astype(np.int64))


def spread(values: Array) -> Metrics:
    """Return count, mean, deviation, extremes and quartiles of the finite values; None where there are none."""
    finite = values[np.isfinite(values)].astype(np.float64)
    names = ("min", "p25", "median", "p75", "max")
    metrics: Metrics = {"count": len(finite), "non_finite": len(values) - len(finite), "mean": None, "std": None}
    if not len(finite):
        return {**metrics, **dict.fromkeys(names)}
    with np.errstate(over="ignore"):  # returns near the largest float: the number is then None
        metrics |= {"mean": _number(finite.mean()), "std": _number(finite.std())}
    quantiles = np.percentile(finite, (0, 25, 50, 75, 100))
    return {**metrics, **dict(zip(names, map(_number, quantiles)))}


def _number(value: Any) -> float | None:
    number = float(value)
    return number if math.isfinite(number) else None


# -------------------------------------------------------------------------------------------------- the arrow of time


def arrow_of_time(global_steps: Array, returns: Array) -> Metrics:
    """Judge whether returns rise with training progress; of whole episodes: ``global_steps`` at their start,
    ``returns``.

    ``verdict``: ``rising``, ``falling``, ``flat`` or ``unknown`` (too few episodes, or nothing varies), and ``reason``
    in words. ``bins``: returns over time; ``points``: some single episodes, ``[global step, return]``.
    """
    known = np.isfinite(returns) & (global_steps >= 0)
    steps, values = global_steps[known], returns[known]
    rho = rank_correlation(steps, values)
    verdict, reason = _verdict(rho, len(values))
    order = np.argsort(steps, kind="stable")
    steps, values = steps[order], values[order]
    tenth = max(1, len(values) // 10)
    picks = spread_evenly(len(values), POINTS)
    return {
        "episodes": len(values),
        "rank_correlation": rho,
        "verdict": verdict,
        "reason": reason,
        "first_tenth": _number(values[:tenth].mean()) if len(values) else None,
        "last_tenth": _number(values[-tenth:].mean()) if len(values) else None,
        "bins": _time_bins(steps, values),
        "points": [[int(step), float(value)] for step, value in zip(steps[picks], values[picks])],
    }


def rank_correlation(a: Array, b: Array) -> float | None:
    """Return Spearman's correlation, that of ranks; equal values share a mean rank. None where one does not vary."""
    if len(a) < 2:
        return None
    x, y = average_ranks(a), average_ranks(b)
    x, y = x - x.mean(), y - y.mean()
    size = math.sqrt(float((x @ x) * (y @ y)))
    return float(np.clip((x @ y) / size, -1.0, 1.0)) if size > 0 else None


def average_ranks(values: Array) -> Array:
    """Return ranks from 0, float64; equal values share the mean of theirs."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    middle: Array = (ends - counts + ends - 1) / 2
    return middle[inverse]


def _verdict(rho: float | None, episodes: int) -> tuple[str, str]:
    if episodes < MIN_EPISODES:
        return "unknown", f"{episodes} whole episodes are too few to tell ({MIN_EPISODES} are needed)"
    if rho is None:
        return "unknown", "all returns or all global steps are equal"
    sigmas = rho * math.sqrt(episodes - 1)
    said = f"rank correlation {rho:+.2f} over {episodes:,} whole episodes, {abs(sigmas):.1f} standard errors"
    if rho >= MIN_CORRELATION and sigmas >= MIN_SIGMAS:
        return "rising", f"returns rise with the global step: {said}"
    if rho <= -MIN_CORRELATION and sigmas <= -MIN_SIGMAS:
        return "falling", f"returns fall with the global step: {said}"
    return "flat", f"no clear trend of returns with the global step: {said}"


def _time_bins(steps: Array, values: Array) -> list[Metrics]:
    """Return mean and quantiles of returns over consecutive, equally long stretches of time; ``steps`` is sorted.

    The more episodes, the more stretches, so that each holds several.
    """
    if not len(steps):
        return []
    low, high = int(steps[0]), int(steps[-1])
    count = min(TIME_BINS, max(4, math.isqrt(len(steps))))
    edges = np.unique(np.linspace(low, high, count + 1).astype(np.int64)[1:-1])
    bins = []
    for some, part in zip(
        np.split(steps, np.searchsorted(steps, edges)), np.split(values, np.searchsorted(steps, edges))
    ):
        if len(part):
            p10, p50, p90 = np.percentile(part, (10, 50, 90))
            metrics = {"step": float(some.mean()), "mean": part.mean(), "p10": p10, "median": p50, "p90": p90}
            bins.append({**{name: _number(value) for name, value in metrics.items()}, "episodes": len(part)})
    return bins


# -------------------------------------------------------------------------------------------------- episodes in groups


def versions(table: EpisodeTable, whole: Array) -> list[Metrics]:
    """Group episodes by the policy version that finished them, per policy id; neighbouring versions share a row if
    there are more than ``VERSION_ROWS``.
    """
    ids = np.unique(table["policy_id"])
    rows = max(1, VERSION_ROWS // max(1, len(ids)))
    found = []
    for policy_id in ids.tolist():
        chosen = (table["policy_id"] == policy_id) & table["finished"]
        known = np.unique(table["version_max"][chosen])
        for some in np.array_split(known, min(rows, len(known))) if len(known) else []:
            inside = chosen & (table["version_max"] >= some[0]) & (table["version_max"] <= some[-1])
            row = {"policy_id": policy_id, "version_min": int(some[0]), "version_max": int(some[-1])}
            found.append(row | _group(table, inside, whole))
    return found


def _groups(table: EpisodeTable, whole: Array) -> Metrics:
    """Return the same metrics for every env, policy and worker: ``total`` groups, ``rows`` of the largest."""
    return {
        "env": _compare(table, whole, table["env_id"], str),
        "policy": _compare(table, whole, table["policy"], str),
        "policy_id": _compare(table, whole, table["policy_id"], int),
        "worker": _compare(table, whole, table["worker"], int),
    }


def _compare(table: EpisodeTable, whole: Array, keys: Array, kind: Callable[[Any], Any]) -> Metrics:
    names, inverse, counts = np.unique(keys, return_inverse=True, return_counts=True)
    rows = []
    for number in np.sort(np.argsort(-counts, kind="stable")[:GROUPS]).tolist():
        inside = inverse == number
        apart = _apart(table.return_[whole & inside], table.return_[whole & ~inside])
        rows.append({"name": kind(names[number]), **_group(table, inside, whole), "apart": apart})
    return {"total": len(names), "rows": rows}


def _group(table: EpisodeTable, inside: Array, whole: Array) -> Metrics:
    returns = spread(table.return_[inside & whole])
    first, last = table["global_step_first"][inside], table["global_step_last"][inside]
    return {
        "episodes": int(inside.sum()),
        "whole": int((inside & whole).sum()),
        "steps": int(table.length[inside].sum()),
        "return_mean": returns["mean"],
        "return_std": returns["std"],
        "return_min": returns["min"],
        "return_max": returns["max"],
        "length_mean": _number(table.length[inside & whole].mean()) if (inside & whole).any() else None,
        "global_step_first": int(first.min()) if len(first) else None,
        "global_step_last": int(last.max()) if len(last) else None,
    }


def _apart(these: Array, others: Array) -> float | None:
    """Return by how many standard errors the mean return differs from the others'; None with too few to tell."""
    these, others = these[np.isfinite(these)], others[np.isfinite(others)]
    if len(these) < 5 or len(others) < 5:
        return None
    error = math.sqrt(these.var(ddof=1) / len(these) + others.var(ddof=1) / len(others))
    return _number((these.mean() - others.mean()) / error) if error > 0 else None


# -------------------------------------------------------------------------------------------------- the store itself


def _about(store: Store) -> Metrics:
    schema, times = store.schema, store.table["time"]
    times = times[times > 0]
    return {
        "path": str(store.path),
        "name": store.path.name,
        "env_id": schema.env_id,
        "env_kwargs": dict(schema.env_kwargs),
        "created_by": schema.created_by,
        "made": dict(schema.made),
        "frames_per_step": schema.env.frames_per_step,
        "agents": schema.env.agents,
        "first_time": _number(times.min()) if len(times) else None,
        "last_time": _number(times.max()) if len(times) else None,
    }


def _rows(store: Store) -> Metrics:
    steps = store.table.steps
    return {"steps": steps, "observations": steps + len(store), "raw_row_bytes": store.schema.row_bytes}


def _episodes(store: Store, whole: Array) -> Metrics:
    table = store.table
    listed = store if store.unfinished else open_quietly(store.path, unfinished=True)
    return {
        "total": len(store),
        "whole": int(whole.sum()),
        "partial": int((~whole).sum()),
        "partial_start": int(table["partial_start"].sum()),
        "partial_end": int(table["partial_end"].sum()),
        "unfinished": int((~listed.table["finished"]).sum()),
    }


def _ends(table: EpisodeTable) -> Metrics:
    terminated, truncated = table["terminated"], table["truncated"]
    return {
        "terminated": int((terminated & ~truncated).sum()),
        "truncated": int((truncated & ~terminated).sum()),
        "both": int((terminated & truncated).sum()),
        "partial": int((~terminated & ~truncated).sum()),
    }


def _columns(store: Store, inside: Contents) -> list[Metrics]:
    found = []
    for column, stored, rows in zip(store.schema.columns, inside.column_bytes.tolist(), inside.column_rows.tolist()):
        raw = rows * column.row_bytes
        about = {"name": column.name, "dtype": column.dtype, "shape": list(column.shape), "per": column.per}
        sizes = {"codec": column.codec, "lossy": column.lossy, "rows": rows, "raw": raw, "stored": stored}
        found.append({**about, **sizes, "ratio": raw / stored if stored else None})
    return found


def _shards(store: Store) -> list[Metrics]:
    counts = np.bincount(store.table.shard, minlength=len(store.shards))
    steps = np.bincount(store.table.shard, weights=store.table.length, minlength=len(store.shards))
    return [
        {"name": ref.name, "sealed": ref.sealed, "bytes": ref.bytes, "episodes": int(counts[k]), "steps": int(steps[k])}
        for k, ref in enumerate(store.shards)
    ]
