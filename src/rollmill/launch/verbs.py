"""How the verbs of ``rollmill`` are told where a run lives and which seed it has; a program of one's own is told as
``rollmill train`` is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

SEED = "run.seed"


@dataclass(frozen=True)
class Verb:
    """Where a run lives is said by settings or by a flag; ``{root}``, ``{experiment}``, ``{name}`` and ``{folder}`` are
    filled in.
    """

    settings: Mapping[str, str] = field(default_factory=dict)
    out: str = ""
    """Of ``--out``, unless the description gives one itself."""
    seed: str = SEED
    """The setting or the flag that takes the seed; empty: it has none."""
    has_run_folder: bool = False
    """Whether it keeps a run's folder: its state says how it ended, and ``--resume`` goes on. Others are through when
    their command has ended with 0, and are given the same command again when it has not.
    """


TRAIN = Verb({"run.dir": "{root}", "run.experiment": "{experiment}", "run.name": "{name}"}, has_run_folder=True)
VERBS: dict[tuple[str, ...], Verb] = {
    ("train",): TRAIN,
    ("offline",): TRAIN,
    ("collect",): Verb(out="{folder}/data", seed="--seed"),
    ("eval",): Verb(out="{folder}/eval.json", seed="--seed"),
    ("match",): Verb(out="{folder}/match.json", seed="--seed"),
    ("world", "run"): Verb(out="{folder}", seed="seed"),
    ("world", "vae"): Verb(out="{folder}", seed="seed"),
    ("world", "encode"): Verb(out="{folder}/data", seed=""),
    ("world", "dynamics"): Verb(out="{folder}", seed="seed"),
    ("world", "controller"): Verb(out="{folder}", seed="controller.seed"),
    ("world", "dream"): Verb(out="{folder}", seed="controller.seed"),
}


def verb_of(program: Sequence[str]) -> tuple[str, ...] | None:
    """Return ``("world", "run")`` of ``["rollmill", "world", "run", ...]``; None for a program of one's own."""
    if not program or program[0] != "rollmill":
        return None
    return next((verb for verb in VERBS if tuple(program[1 : 1 + len(verb)]) == verb), tuple(program[1:2]))


def describe(program: Sequence[str]) -> Verb | None:
    """Return how a program is told its place; None for a verb that cannot be launched."""
    verb = verb_of(program)
    return TRAIN if verb is None else VERBS.get(verb)


def has_run_folder(command: Sequence[str]) -> bool:
    """Return whether the folder of a run says how its command has ended."""
    found = describe(command)
    return found is None or found.has_run_folder
