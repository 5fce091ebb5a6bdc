"""The cards of repositories on the Hugging Face Hub: what it is, what it reaches, how to fetch and play it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import yaml

from rollmill.runs.evaluate.results import EvalResult
from rollmill.store.info import StoreInfo


def policy_card(
    repo: str, frames: int, result: EvalResult | None, settings: Mapping[str, Any], licence: str, video: bool
) -> str:
    """The card of a policy; its score stands in the head, too, where the Hub reads it."""
    name = repo.rpartition("/")[2]
    env = result.env if result is not None else str(settings.get("env.id", ""))
    head: dict[str, Any] = {
        "library_name": "rollmill",
        "tags": ["reinforcement-learning", "deep-reinforcement-learning"],
    }
    head["tags"] += [env] if env else []
    head |= {"license": licence} if licence else {}
    if result is not None:
        head["model-index"] = [{"name": name, "results": [_score(result, env)]}]
    lines = [f"# {name}", "", f"A policy for `{env or 'its environment'}`, trained for {frames:,} frames.", ""]
    if result is not None:
        summary = result.policy.summary()
        error = summary["standard_error"]
        lines += [
            f"Mean return **{summary['mean']:.2f}**{f' (standard error {error:.2f})' if error is not None else ''} "
            f"over {summary['episodes']} episodes; `results.json` has all of them."
            + (" `replay.mp4` shows one." if video else ""),
            "",
        ]
    lines += [
        "## Play it",
        "",
        "```bash",
        'pip install "rollmill[hub]"',
        f"rollmill hub pull {repo} --out {name}",
        f"rollmill eval {name}/policy.ckpt",
        f"rollmill watch {name}/policy.ckpt",
        "```",
        "",
    ]
    if settings:
        lines += ["## Settings that are not the defaults", "", "```yaml"]
        lines += [f"{key}: {_inline(value)}" for key, value in sorted(settings.items())]
        lines += ["```", ""]
    return _page(head, lines)


def _score(result: EvalResult, env: str) -> dict[str, Any]:
    returns = np.asarray(result.returns)
    return {
        "task": {"type": "reinforcement-learning", "name": "reinforcement-learning"},
        "dataset": {"name": env, "type": env},
        "metrics": [
            {
                "type": "mean_reward",
                "name": "mean_reward",
                "value": f"{returns.mean():.2f} +/- {returns.std():.2f}",
                "verified": False,
            }
        ],
    }


def store_card(info: StoreInfo, repo: str, licence: str) -> str:
    """The card of a store."""
    name = repo.rpartition("/")[2]
    head: dict[str, Any] = {"tags": ["reinforcement-learning", "rollmill", info.env_id]}
    head |= {"license": licence} if licence else {}
    mean = "" if info.returns.mean is None else f", mean return {info.returns.mean:.2f}"
    lines = [
        f"# {name}",
        "",
        f"Episodes of `{info.env_id}`: {info.episodes:,} episodes, {info.rows:,} steps{mean}, "
        f"{info.bytes / 1e6:,.1f} MB.",
        "",
        "```bash",
        'pip install "rollmill[hub]"',
        f"rollmill hub pull {repo} --data --out {name}",
        f"rollmill data info {name}",
        f"rollmill offline {name} -f offline_dt",
        "```",
        "",
        "| column | dtype | shape |",
        "|---|---|---|",
        *(
            f"| `{c['name']}` | {c['dtype']} | {'x'.join(map(str, c.get('shape', ()))) or 'scalar'} |"
            for c in info.columns
        ),
        "",
    ]
    return _page(head, lines)


def _page(head: Mapping[str, Any], lines: list[str]) -> str:
    return f"---\n{yaml.safe_dump(dict(head), sort_keys=False, allow_unicode=True)}---\n\n" + "\n".join(lines)


def _inline(value: Any) -> str:
    return yaml.safe_dump(value, default_flow_style=True, width=10**6).removesuffix("...\n").strip()
