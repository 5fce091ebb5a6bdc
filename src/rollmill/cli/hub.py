"""``rollmill hub`` takes policies and stores to the Hugging Face Hub, and fetches them."""

from __future__ import annotations

import json
import logging
from dataclasses import asdict
from pathlib import Path

from rollmill.cli.options import Json, keep_stdout
from rollmill.cli.progress import EvaluationLine
from rollmill.core.text import bytes_text, counted
from rollmill.runs.checkpoints.hub import Moved, PushOptions
from rollmill.runs.checkpoints.hub import pull as pull_repo
from rollmill.runs.checkpoints.hub import push as push_repo


def push(
    overrides: tuple[str, ...],
    target: str,
    repo: str,
    /,
    options: PushOptions,
    data: bool = False,
    json_: Json = False,
) -> int:
    """Push a policy or a store: ``rollmill hub push runs/default/pole me/pole``.

    A policy is evaluated first: its card says what it reaches, and the Hub shows a video of an episode. Log in with
    ``hf auth login``, or set HF_TOKEN; HF_ENDPOINT names another Hub.

    Args:
        overrides: Settings that differ from the policy's own, for its evaluation.
        target: A run folder, a checkpoint, policy:NAME, or a store.
        repo: USER/NAME; made where there is none.
        data: Of a run, push its recording instead of its policy.
        json_: Print JSON.
    """
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    with keep_stdout(json_), EvaluationLine() as line:
        done = push_repo(target, repo, options, data=data, overrides=overrides, progress=line.show)
    _say(done, json_)
    return 0


def pull(
    repo: str,
    /,
    out: Path | None = None,
    data: bool = False,
    revision: str | None = None,
    json_: Json = False,
) -> int:
    """Fetch a policy or a store from the Hub: ``rollmill hub pull me/pole``.

    Nothing of it is run. Code that a policy names is only run by eval and others if you name it, too.

    Args:
        repo: USER/NAME.
        out: The new folder; unset: NAME in the current one.
        data: Fetch a store instead of a policy.
        revision: A branch, a tag or a commit (unset: main).
        json_: Print JSON.
    """
    done = pull_repo(repo, out or Path(repo.rpartition("/")[2]), data=data, revision=revision)
    _say(done, json_)
    if not json_:
        print(
            f"rollmill eval {done.place}/policy.ckpt" if done.kind == "policy" else f"rollmill data info {done.place}"
        )
    return 0


def _say(done: Moved, as_json: bool) -> None:
    size = f"{counted(len(done.files), 'file')}, {bytes_text(done.bytes)}"
    print(json.dumps(asdict(done)) if as_json else f"{done.place}: a {done.kind}, {size}")
