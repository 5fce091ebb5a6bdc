"""``load_policy``: one way to every policy that can play, whoever has made it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from rollmill.core.checkpoints import Loaded, load_checkpoint
from rollmill.core.errors import CheckpointError, ConfigError
from rollmill.core.text import nearest
from rollmill.envs.settings import EnvSettings
from rollmill.runs.policies.base import LoadedPolicy, LoadOptions, refuse_idle
from rollmill.runs.policies.find import exists, find_checkpoints, find_controller, find_version, shipped_policy
from rollmill.runs.policies.online import load_online
from rollmill.runs.policies.simple import BUILT_IN, load_built_in, load_scripted
from rollmill.worldmodel.files import CONTROLLER


def load_policy(
    source: str | Path,
    *,
    env: str | EnvSettings | None = None,
    overrides: Sequence[str] = (),
    best: bool = False,
    member: int | None = None,
    target: float | None = None,
    deterministic: bool | None = None,
    device: str | None = None,
    last: bool = False,
    encoder: Path | None = None,
    dynamics: Path | None = None,
    seed: int = 1,
    trust_code: bool = False,
) -> LoadedPolicy:
    """Load the policy that ``source`` means.

    ``source``: a run folder (online, offline, world model), a checkpoint or controller file, ``RUN@FRAMES`` (the run's
    newest checkpoint up to there), ``policy:NAME`` (one that comes with rollmill), ``random``, ``smoothed-random``,
    ``random-controller``, or ``module:callable``.

    ``env`` and ``overrides`` (``KEY=VALUE``) say what differs from the settings it was made with; random and own
    policies need an ``env``. ``best``: of a run, the best checkpoint, by its ``checkpoints.best_metric``.
    ``member``: of a population, which member plays; None: the best.
    ``target``: the return to ask for, where the policy can be asked. ``deterministic``: the most likely action instead
    of a sampled one; None: as the run was judged. ``device``: cpu, cuda, cuda:N or auto; None: as in training.
    ``last``: of an offline run, the last weights instead of those with the lowest held-out loss. ``encoder`` and
    ``dynamics``: the models of a controller, where they are no longer where they were. ``seed``: of ``act``.
    ``trust_code``: run the code that the file names (``runs.trust``).
    """
    named = (f"env={env}",) if isinstance(env, str) else ()
    how = LoadOptions(
        env=None if isinstance(env, str) else env,
        overrides=(*named, *overrides),
        best=best,
        member=member,
        targets=() if target is None else (target,),
        deterministic=deterministic,
        device=device,
        last=last,
        encoder=encoder,
        dynamics=dynamics,
        seed=seed,
        trust_code=trust_code,
    )
    return load_each(str(source), how)[0]


def load_each(word: str, how: LoadOptions, every: bool = False, flag: str = "") -> list[LoadedPolicy]:
    """Load the policy that a word means (``load_policy``); ``every``: of a run, one for each checkpoint.

    ``flag``: what the user has written before the word, for messages.
    """
    refuse_idle(how.overrides, "a policy that plays", also=("wandb",))
    if word in BUILT_IN:
        return [load_built_in(word, how)]
    target = shipped_policy(Path(word))
    if (file := find_controller(target)) is not None:
        from rollmill.runs.policies.controller import load_world_model

        return [load_world_model(file, how)]
    if exists(target):
        return [_load_file(path, target, how) for path in find_checkpoints(target, how.best, every)]
    if (past := re.fullmatch(r"(.+)@(\d[\d_]*)", word)) is not None:
        path = find_version(Path(past[1]), int(past[2]))
        return [_load_file(path, path, how)]
    if ":" in word:
        return [load_scripted(word, how)]
    if "/" in word and not flag:
        find_checkpoints(target)  # says that there is none
    hint = nearest(word, BUILT_IN)
    raise ConfigError(
        f"{flag}{word}: expected {', '.join(BUILT_IN)}, a run folder or checkpoint (there is no {word}), "
        f"or module:callable{f'; {hint}' if hint else ''}"
    )


def _load_file(path: Path, target: Path, how: LoadOptions) -> LoadedPolicy:
    """Load the policy of a checkpoint; ``target`` is what the user called it: the file or its run."""
    loaded = _load(path, target)
    kind = loaded.state.get("kind") if isinstance(loaded.state, Mapping) else None
    if kind == "offline":
        from rollmill.runs.policies.offline import load_offline

        return load_offline(loaded, how)
    if kind == "world controller":
        raise CheckpointError(
            f"{path}: a search for controllers goes on from here; what it has found is in "
            f"{path.parent.parent / CONTROLLER.name}"
        )
    return load_online(loaded, how)


def _load(path: Path, target: Path) -> Loaded:
    try:
        return load_checkpoint(path)
    except CheckpointError as error:
        if target.is_file():
            raise
        raise CheckpointError(f"{error}. Others in {path.parent} can be given by their path") from error
