"""Plays an environment by the ``Env`` protocol and looks at every answer; part of ``rollmill envs check``."""

from __future__ import annotations

import hashlib
import mmap
import random
import traceback
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any

import numpy as np

from rollmill.core.child import Reply
from rollmill.core.errors import ConfigError, error_text
from rollmill.core.fields import MASK_FIELD, Array, EnvSpec, Obs
from rollmill.core.protocols import Env
from rollmill.envs.batch import CLOSE, MAKE, RESET, STEP, random_actions
from rollmill.envs.check.runner import BEAT, STAGES, make_finding, place

FLOAT_POISON = -7.25e30
INTEGER_POISON = 0x5A
SMALLEST_POISON = 8
"""Elements of an integer field below which the poison may be met by chance."""


class Broken(Exception):
    """The environment raised; it has been written down, and the stage ends."""


class Findings:
    """Writes findings down as they are met; the same rule at the same field is one finding with a count."""

    def __init__(self, write: Reply) -> None:
        self.write = write
        self._number: dict[tuple[str, str], int] = {}
        self._counts: list[int] = []
        self.errors = 0

    def add(self, rule: str, where: str, found: str, key: str = "", **values: Any) -> None:
        """Write a finding down; ``key`` (say, a field) tells those of a rule apart, ``values`` are as in the rule."""
        finding = make_finding(rule, where, found, **values)
        self.errors += finding.level == "error"
        number = self._number.get((rule, key))
        if number is not None:
            self._counts[number] += 1
            return
        self._number[rule, key] = len(self._counts)
        self._counts.append(1)
        self.write(finding=asdict(finding))

    def write_counts(self) -> None:
        self.write(counts={str(number): count for number, count in enumerate(self._counts)})


class Beat:
    """Tells the parent process which call the environment is in (a ``Watch`` of ``EnvBatch``, too)."""

    def __init__(self, memory: mmap.mmap) -> None:
        self._memory = memory
        self._count = 0
        self.stage = 0
        self.seed = 0

    def begin(self, stage: str) -> None:
        self.stage = STAGES.index(stage)
        self.leave()

    def enter(self, env: int, phase: int, episode: int, step: int) -> None:
        self._count += 1
        BEAT.pack_into(self._memory, 0, self._count, self.stage, phase, env, episode, step, self.seed)

    def leave(self) -> None:
        self.enter(0, 0, 0, 0)


class Player:
    """One environment, played by the protocol; what it answers is checked, whatever it raises is a finding."""

    def __init__(self, make: Callable[[], Env], findings: Findings, beat: Beat) -> None:
        self._findings, self._beat = findings, beat
        self._phase, self._episode, self._t, self._seed = MAKE, -1, 0, 0
        self.env: Env = self.call(MAKE, make)
        self.spec: EnvSpec = self.env.spec
        self._rows = [new_obs(self.spec), new_obs(self.spec)]
        self._kept: Obs = {}
        self.done = np.zeros(self.spec.agents, bool)
        self.returns = np.zeros(self.spec.agents)

    @property
    def obs(self) -> Obs:
        return self._rows[0]

    @property
    def steps(self) -> int:
        """Steps of the running episode."""
        return self._t

    @property
    def where(self) -> str:
        return place(self._phase, self._episode, self._t, self._seed)

    def reset(self, seed: int) -> bytes:
        """Begin an episode; gives a fingerprint of what was seen."""
        self._episode, self._t, self._seed = self._episode + 1, 0, seed
        self.done[:] = False
        self.returns[:] = 0
        obs = self._next_row()
        self.call(RESET, lambda: self.env.reset(seed, obs))
        self._look()
        return self._fingerprint()

    def step(self, action: Array) -> bytes:
        obs, given = self._next_row(), action.copy()
        answer = self.call(STEP, lambda: self.env.step(action, obs))
        if not np.array_equal(action, given):
            self._note("action-changed", "step() wrote into it")
        reward, over = self._outcome(answer)
        self.returns += np.where(self.done, 0.0, reward)
        self.done |= over
        self._look()
        self._t += 1
        return self._fingerprint() + reward.tobytes() + over.tobytes()

    def act(self, rng: np.random.Generator) -> Array:
        """Return a random action, allowed by the mask."""
        return random_actions(self.spec, rng, self.obs, self.spec.agents)

    def close(self) -> None:
        self.call(CLOSE, self.env.close)

    def call(self, phase: int, function: Callable[[], Any]) -> Any:
        """Call ``function``, which calls the environment; what it raises is a finding and ``Broken``."""
        self._phase = phase
        errors = self._findings.errors
        self._beat.seed = self._seed
        self._beat.enter(0, phase, max(self._episode, 0), self._t)
        try:
            return function()
        except ConfigError:
            raise  # there is nothing to check
        except BaseException as error:
            if self._findings.errors == errors:  # otherwise its cause is known already
                self._raised(error)
            raise Broken from error
        finally:
            self._beat.leave()

    def _raised(self, error: BaseException) -> None:
        last = traceback.extract_tb(error.__traceback__)[-1]
        said = error_text(error)
        found = f"{said} (in {last.filename}, line {last.lineno})"
        about_arguments = isinstance(error, TypeError) and any(word in said for word in ("seed", "options"))
        rule = "reset-signature" if self._phase == RESET and about_arguments else "raises"
        self._note(rule, found, key=f"{self._phase} {type(error).__name__}")

    def _next_row(self) -> Obs:
        """Return fresh memory for the next observation; what was seen before is kept, to notice who writes into it."""
        self._rows.reverse()
        self._kept = {name: array.copy() for name, array in self._rows[1].items()}
        for array in self._rows[0].values():
            array[...] = poison_of(array)
        return self._rows[0]

    # -- answers --------------------------------------------------------------------------------

    def _look(self) -> None:
        """Look at the observation just written, and at the one before."""
        for name, array in self._rows[0].items():
            self._look_at(name, array)
            same_nan = array.dtype.kind == "f"
            if self._kept and not np.array_equal(self._rows[1][name], self._kept[name], equal_nan=same_nan):
                self._note("obs-kept", "it has changed in the step after", field=name)

    def _look_at(self, name: str, array: Array) -> None:
        poisoned = array == poison_of(array)
        if poisoned.any() and (array.dtype.kind == "f" or (poisoned.all() and array.size >= SMALLEST_POISON)):
            self._note("obs-unwritten", f"{int(poisoned.sum())} of {array.size} values were not", field=name)
        elif array.dtype.kind == "f" and not np.isfinite(array).all():
            self._note("obs-nan", str(float(array[~np.isfinite(array)][0])), field=name)
        if name == MASK_FIELD and not self.done.all():
            self._look_at_mask(array)

    def _look_at_mask(self, mask: Array) -> None:
        if not np.isin(mask, (0, 1)).all():
            self._note("mask-values", str(mask.tolist()))
        begin = 0
        for component, n in enumerate(self.spec.action.nvec):
            if not mask[~self.done, begin : begin + n].any(axis=-1).all():
                self._note("mask-empty", f"all {n} choices of component {component} are forbidden", key=str(component))
            begin += n

    def _outcome(self, answer: Any) -> tuple[Array, Array]:
        """Return (rewards, whether over), each ``[agents]``; replaced by harmless values where they are nonsense."""
        agents = self.spec.agents
        if not isinstance(answer, tuple) or len(answer) != 4:
            self._note("step-return", kind_of(answer), wanted="(reward, terminated, truncated, info)")
            raise Broken
        reward, terminated, truncated, info = answer
        over = np.zeros(agents, bool)
        for name, value in (("terminated", terminated), ("truncated", truncated)):
            flags = np.asarray(value)
            fits = flags.shape in ((), (agents,))
            if flags.dtype != bool or not fits:
                self._note(f"{name}-type", kind_of(value), per_agent=_per_agent(agents))
            if fits and flags.dtype.kind in "biuf":
                over |= flags.astype(bool)
        self._check_info(info)
        return self._rewards(reward), over

    def _rewards(self, reward: Any) -> Array:
        agents, number = self.spec.agents, np.asarray(reward)
        if number.dtype.kind not in "fiub" or number.shape not in ((), (agents,)):
            self._note("reward-type", kind_of(reward), per_agent=_per_agent(agents))
            return np.zeros(agents)
        if not np.isfinite(number).all():
            self._note("reward-nan", str(reward))
            return np.zeros(agents)
        return np.broadcast_to(number, (agents,)).astype(np.float64)

    def _check_info(self, info: Any) -> None:
        if not isinstance(info, Mapping):
            self._note("info-type", kind_of(info))
            return
        for name, value in (info.get("episode_stats") or {}).items():
            try:
                one_each = np.asarray(value, np.float64).shape in ((), (self.spec.agents,))
            except (TypeError, ValueError):
                one_each = False
            if not one_each:
                self._note(
                    "info-stats", f"{name!r} is {kind_of(value)}", key=str(name), per_agent=_per_agent(self.spec.agents)
                )

    def _fingerprint(self) -> bytes:
        digest = hashlib.blake2b(digest_size=16)
        for array in self._rows[0].values():
            digest.update(array.tobytes())
        return digest.digest()

    def _note(self, rule: str, found: str, *, field: str = "", key: str = "", **values: Any) -> None:
        where = f"{self.where}, observation field {field!r}" if field else self.where
        self._findings.add(rule, where, found, key or field, **values)


def new_obs(spec: EnvSpec) -> Obs:
    return {f.name: np.zeros((spec.agents, *f.shape), f.dtype) for f in spec.observation}


def poison_of(array: Array) -> Any:
    kind = array.dtype.kind
    return {"f": FLOAT_POISON if array.dtype.itemsize > 2 else -6.0e4, "b": True}.get(kind, INTEGER_POISON)


def set_global_seeds(seed: int) -> None:
    """Seed the generators that a process shares: what depends on them does not depend on its own seed."""
    random.seed(seed)
    np.random.seed(seed)


def global_state() -> tuple[Any, ...]:
    """Return a state that changes whenever somebody draws from the shared generators, or seeds them."""
    state = np.random.get_state(legacy=False)["state"]
    return random.getstate(), state["key"].tobytes(), state["pos"]


def _per_agent(agents: int) -> str:
    return f", or an array of {agents}" if agents > 1 else ""


def kind_of(value: Any) -> str:
    """Return the type and, where short, the value."""
    if isinstance(value, np.ndarray):
        return f"an array {value.dtype} of shape {value.shape}"
    if isinstance(value, tuple):
        return f"a tuple of {len(value)}"
    text = repr(value)
    return f"{type(value).__name__}{f' {text}' if len(text) < 60 else ''}"
