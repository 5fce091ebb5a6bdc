"""What the metrics of a store say about its soundness, as sentences."""

from __future__ import annotations

from rollmill.reports.store.statistics import Metrics


def checks(metrics: Metrics) -> list[tuple[str, str]]:
    """Return (``good``, ``warn``, ``bad`` or ``unknown``, a sentence) for everything that can be judged."""
    found = [_damage(metrics), _arrow(metrics), _order(metrics), _twice(metrics)]
    chosen = metrics["selection"]
    if chosen is not None:
        level = {True: "good", False: "bad", None: "warn"}[chosen["agrees"]]
        found.append((level, chosen["sentence"]))
    episodes, actions = metrics["episodes"], metrics["actions"]
    if episodes["partial"]:
        share = 100 * episodes["partial"] / episodes["total"]
        text = (
            f"{episodes['partial']:,} episodes ({share:.1f} %) are partial: {episodes['partial_start']:,} without a "
            f"beginning, {episodes['partial_end']:,} without an end; metrics of returns and lengths leave them out"
        )
        found.append(("warn", text))
    if episodes["unfinished"]:
        found.append(("warn", f"{episodes['unfinished']:,} more episodes were never finished and are not counted"))
    odd = metrics["rewards"]["non_finite"] + metrics["returns"]["non_finite"]
    if odd:
        found.append(("bad", f"{odd:,} rewards or returns are NaN or infinite"))
    other = sum(part.get("other", 0) for part in actions["components"])
    if other:
        found.append(("bad", f"{other:,} actions are outside the action space"))
    never = sum(part.get("never", 0) for part in actions["components"])
    if never and actions["rows"]:
        found.append(("warn", f"{never:,} choices of the action were never taken"))
    return found


def _damage(metrics: Metrics) -> tuple[str, str]:
    count = len(metrics["problems"])
    if count:
        return "bad", f"{count:,} problems were found, see below; `rollmill data verify` looks at every block"
    looked = metrics["looked_at"]
    return "good", f"no damage in the {looked['read']:,} episodes that were read (of {looked['of']:,})"


def _arrow(metrics: Metrics) -> tuple[str, str]:
    arrow = metrics["arrow_of_time"]
    if arrow["verdict"] == "flat" and not _learned(metrics):
        return "good", f"arrow of time: {arrow['reason']}; none is expected, the policy never changed"
    level = {"rising": "good", "falling": "bad", "flat": "warn", "unknown": "unknown"}[arrow["verdict"]]
    return level, f"arrow of time: {arrow['reason']}"


def _learned(metrics: Metrics) -> bool:
    return len({(row["version_min"], row["version_max"]) for row in metrics["versions"]}) > 1


def _order(metrics: Metrics) -> tuple[str, str]:
    order = metrics["order"]
    if order["step_goes_back"] or order["version_goes_back"]:
        return "bad", (
            f"the global step goes back within {order['step_goes_back']:,} episodes, the policy version within "
            f"{order['version_goes_back']:,}"
        )
    return "good", "global step and policy version never go back within an episode"


def _twice(metrics: Metrics) -> tuple[str, str]:
    twice = metrics["duplicates"]
    unsure = f"; {twice['not_compared']:,} more could not be compared" if twice["not_compared"] else ""
    if not twice["copies"] and not twice["same_uid"]:
        return "warn" if unsure else "good", f"no duplicates among {twice['looked_at']:,} episodes{unsure}"
    groups = "; ".join(" = ".join(map(str, group[:6])) for group in twice["groups"][:5])
    text = f"{twice['copies']:,} of {twice['looked_at']:,} episodes repeat another one"
    named = f" (numbers {groups}{', …' if twice['group_count'] > 5 else ''})" if groups else ""
    uids = f"; {twice['same_uid']:,} have the uid of another one" if twice["same_uid"] else ""
    return "warn", f"{text}{named}{uids}{unsure}"
