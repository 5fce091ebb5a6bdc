"""``rollmill hub``: policies and stores to the Hugging Face Hub and back.

A policy becomes a model repository: ``policy.ckpt`` (what plays, no optimizer), a card with its score, the evaluation
itself, a video of an episode (``replay.mp4``, which the Hub shows) and the metrics of its training. A store becomes a
dataset repository, file by file as it is. Nothing that is pulled is run: what the files name is only run where the user
says so, as with any checkpoint (``runs.trust``).
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from rollmill.core.checkpoints import load_checkpoint, saved_settings
from rollmill.core.config.plain import changed_settings
from rollmill.core.errors import ConfigError, HubError, MissingExtraError, RollmillError, StoreError
from rollmill.core.run_folder import RunFolder
from rollmill.runs.checkpoints.saved import export_checkpoint
from rollmill.runs.evaluate.options import EvalOptions
from rollmill.runs.evaluate.results import EvalResult
from rollmill.runs.evaluate.run import Progress, evaluate
from rollmill.runs.policies.find import find_checkpoints
from rollmill.runs.settings.train import TrainConfig
from rollmill.store.format.schema import is_store, store_at
from rollmill.store.info import StoreInfo, describe_store
from rollmill.store.reader import Store

POLICY, EVALUATION, REPLAY, METRICS, CARD = (
    "policy.ckpt",
    "results.json",
    "replay.mp4",
    "metrics.jsonl",
    "README.md",
)
_POLICY_FILES = [POLICY, EVALUATION, REPLAY, METRICS, CARD]
_STORE_FILES = ["store.json", "played.json", "shards/*", "index/*", CARD]


@dataclass(frozen=True)
class PushOptions:
    """How a policy is evaluated for its card, and who may see the repository."""

    episodes: int = 10
    """Episodes to play for the card; 0: no score and no video."""
    deterministic: bool = False
    """Take the most likely action instead of sampling one."""
    no_video: bool = False
    """Leave the video out."""
    best: bool = False
    """Take a run's best checkpoint instead of the newest: by its checkpoints.best_metric."""
    private: bool = False
    """Make a new repository private."""
    licence: str = ""
    """Noted in the card, for example mit."""
    revision: str | None = None
    """The branch to write to (unset: main)."""
    trust_code: bool = False
    """Run the code that the checkpoint names; else your own words have to name it (env=my_env.py:MyEnv)."""


@dataclass(frozen=True)
class Moved:
    """What was pushed or pulled."""

    kind: str
    """policy or store."""
    place: str
    """The address of the repository, or the folder."""
    files: list[str]
    bytes: int


# -------------------------------------------------------------------------------------------------- push


def push(
    target: str,
    repo: str,
    options: PushOptions | None = None,
    *,
    data: bool = False,
    overrides: tuple[str, ...] = (),
    progress: Progress | None = None,
) -> Moved:
    """Write the policy of a run or a checkpoint, or a store, into a repository, which is made where there is none.

    ``data``: of a run, its recording instead of its policy.
    """
    options = options or PushOptions()
    if options.episodes < 0:
        raise ConfigError("--episodes must not be negative; 0 leaves the score out")
    hub = _hub()
    if data or is_store(Path(target)):
        return _push_store(hub, Path(target), repo, options)
    with tempfile.TemporaryDirectory(prefix="rollmill-hub-") as folder:
        _gather_policy(target, Path(folder), repo, options, overrides, progress)
        return _upload(hub, "policy", Path(folder), repo, _POLICY_FILES, options)


def _push_store(hub: Any, target: Path, repo: str, options: PushOptions) -> Moved:
    path = store_at(target)
    info = describe_store(path)
    if info.problems:
        raise StoreError(f"{path}: {info.problems[0]}; repair it first: rollmill data repair {path} --out NEW")
    if info.shards_open:
        raise StoreError(f"{path} is being written, or its writer died: rollmill data repair {path} --in-place")
    card = store_card(info, repo, options.licence)
    return _upload(hub, "store", path, repo, _STORE_FILES, options, card)


def _gather_policy(
    target: str, folder: Path, repo: str, options: PushOptions, overrides: tuple[str, ...], progress: Progress | None
) -> None:
    """Write everything about a policy as files into one folder."""
    checkpoint = find_checkpoints(Path(target), options.best)[0]
    policy = folder / POLICY
    loaded = load_checkpoint(checkpoint)
    online = isinstance(loaded.state, Mapping) and loaded.state.get("kind") == "online"
    if online:
        export_checkpoint(checkpoint, policy, best=False, model=None, overwrite=False)
    else:
        shutil.copyfile(checkpoint, policy)
    metrics = RunFolder(checkpoint.parent.parent).metrics
    if metrics.is_file():
        shutil.copyfile(metrics, folder / METRICS)
    result = None
    if options.episodes:
        result = _evaluated(policy, folder, options, overrides, progress)
    settings: dict[str, Any] = {}
    if online:
        settings = changed_settings(saved_settings(TrainConfig, loaded.state["config"], checkpoint, (), ()))
    card = policy_card(repo, loaded.step, result, settings, options.licence, (folder / REPLAY).exists())
    (folder / CARD).write_text(card, encoding="utf-8")


def _evaluated(
    policy: Path, folder: Path, options: PushOptions, overrides: tuple[str, ...], progress: Progress | None
) -> EvalResult:
    """Play the very file that is pushed; leaves its evaluation and a video in the folder."""
    how = EvalOptions(
        episodes=options.episodes,
        deterministic=options.deterministic,
        overrides=overrides,
        trust_code=options.trust_code,
    )
    if not options.no_video:
        how = replace(how, video=folder / "videos", video_count=1)
    result = evaluate(policy, how, progress)
    for video in result.videos:
        if video.problem:
            raise ConfigError(f"there is no video: {video.problem}; --no-video leaves it out")
        os.replace(video.file, folder / REPLAY)
    found = result.to_dict()
    kept = ("env", "frames", "episodes", "mean", "standard_error", "median", "min", "max", "mean_length", "returns")
    facts = {name: found[name] for name in kept} | {"deterministic": options.deterministic, "seed": how.seed}
    (folder / EVALUATION).write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")
    return result


def _upload(
    hub: Any, kind: str, folder: Path, repo: str, patterns: list[str], options: PushOptions, card: str | None = None
) -> Moved:
    files = sorted(path for pattern in patterns for path in folder.glob(pattern) if path.is_file())
    names = [str(path.relative_to(folder)) for path in files]
    with _hub_errors(repo):
        api, repo_type = hub.HfApi(), _TYPES[kind]
        made = api.create_repo(repo, repo_type=repo_type, private=options.private or None, exist_ok=True)
        contents: dict[str, Path | bytes] = dict(zip(names, files))
        if card is not None:
            contents[CARD] = card.encode("utf-8")
        operations = [hub.CommitOperationAdd(name, content) for name, content in contents.items()]
        api.create_commit(
            made.repo_id,
            operations,
            commit_message=f"Upload a {kind} with rollmill",
            repo_type=repo_type,
            revision=options.revision,
        )
    return Moved(kind, str(made), list(contents), sum(path.stat().st_size for path in files))


# -------------------------------------------------------------------------------------------------- pull


def pull(repo: str, out: Path, *, data: bool = False, revision: str | None = None) -> Moved:
    """Fetch what ``push`` has written into a new folder. An interrupted pull goes on when it is called again.

    Nothing of it is run, and no file but those of a policy or a store is fetched.
    """
    hub = _hub()
    kind = "store" if data else "policy"
    out = out.absolute()
    if os.path.lexists(out):
        raise ConfigError(f"{out} exists; nothing is overwritten, choose another folder with --out")
    draft = out.with_name(f".{out.name}.pulling")
    with _hub_errors(repo):
        hub.snapshot_download(
            repo,
            repo_type=_TYPES[kind],
            revision=revision,
            local_dir=draft,
            allow_patterns=_STORE_FILES if data else _POLICY_FILES,
        )
    shutil.rmtree(draft / ".cache", ignore_errors=True)
    _require(kind, draft, repo)
    draft.rename(out)
    files = sorted(path for path in out.rglob("*") if path.is_file())
    return Moved(kind, str(out), [str(p.relative_to(out)) for p in files], sum(p.stat().st_size for p in files))


def _require(kind: str, folder: Path, repo: str) -> None:
    """Look whether a pulled folder holds what was asked for; else it is removed."""
    try:
        if kind == "store":
            Store(folder)
        else:
            load_checkpoint(folder / POLICY)
    except (RollmillError, OSError) as error:
        names = ", ".join(sorted(path.name for path in folder.iterdir())) or "nothing that we know"
        shutil.rmtree(folder, ignore_errors=True)
        other = "leave out --data for a policy" if kind == "store" else "--data fetches a store"
        raise HubError(f"{repo} holds no {kind} of rollmill ({names}: {error}); {other}") from error


# -------------------------------------------------------------------------------------------------- the library

_TYPES = {"policy": "model", "store": "dataset"}


def _hub() -> Any:
    try:
        import huggingface_hub
    except ModuleNotFoundError as error:
        raise MissingExtraError('the Hub needs huggingface-hub: pip install "rollmill[hub]"') from error
    return huggingface_hub


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]


@contextlib.contextmanager
def _hub_errors(repo: str) -> Iterator[None]:
    """Turn what the library raises into one line that says what to do."""
    import httpx2
    from huggingface_hub import errors

    try:
        yield
    except errors.HFValidationError as error:
        raise ConfigError(f"{repo}: a repository is called USER/NAME, in letters, digits and -_.") from error
    except (errors.RepositoryNotFoundError, errors.RevisionNotFoundError) as error:
        raise HubError(
            f"{repo}: there is no such repository or revision, or you may not see it (log in with: hf auth login; "
            "stores are fetched with --data)"
        ) from error
    except errors.LocalTokenNotFoundError as error:
        raise HubError("the Hub does not know you: log in with hf auth login, or set HF_TOKEN") from error
    except (httpx2.HTTPError, errors.HfHubHTTPError, errors.LocalEntryNotFoundError, OSError, ValueError) as error:
        raise HubError(f"{repo}: the Hub did not answer as it should: {_first_line(error)}") from error


# -- cards -------------------------------------------------------------------------------------------


def policy_card(
    repo: str, frames: int, result: EvalResult | None, settings: Mapping[str, Any], licence: str, video: bool
) -> str:
    """Return the card of a policy; its score stands in the head, too, where the Hub reads it."""
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
    """Return the card of a store."""
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
