"""Tells what is wrong with an environment: the contract, call by call (``rollmill envs check``).

Words
-----
finding   one broken rule: where it was seen, what was expected and found, what to do about it.
stage     one way of using the environment: playing it, repeating it from seeds, stepping it as the trainer does ...

The environment runs in a process of its own (``check_main``), which writes down findings as it meets them and which
call it is in; so one that hangs, or takes its process down, is a finding like any other.
"""

from __future__ import annotations

import mmap
import os
import signal
import struct
import tempfile
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from rollmill.core.errors import ConfigError, EnvError
from rollmill.core.janitor import TOKEN_VARIABLE, leftovers
from rollmill.core.process import Errand
from rollmill.envs.batch import MAKE, PHASES
from rollmill.envs.check.rules import RULES
from rollmill.envs.probe import CONFIG_ERRORS
from rollmill.envs.settings import EnvSettings

STAGES = ("build", "play", "seeds", "neighbours", "batch", "speed", "order")
"""In the order of the run; what may take the process down comes last."""
BEAT = struct.Struct("=7q")  # count, stage, phase, env, episode, step, seed
POLL_SECONDS = 0.02
STACK_SECONDS = 1.0
"""How long a hanging process may take to say where it hangs."""
ENDING_SECONDS = 2.0
"""How long what the environment has started may take to end by itself after the last ``close``."""


@dataclass(frozen=True)
class Finding:
    """One broken rule."""

    level: str
    """``error`` or ``warning``."""
    rule: str
    """A key of ``check_rules.RULES``."""
    where: str
    """Call, episode, step and field."""
    expected: str
    found: str
    advice: str
    count: int = 1
    """How often; ``where`` is the first time."""


def make_finding(rule: str, where: str, found: str, **values: Any) -> Finding:
    """Make a finding of a rule; ``values`` fill the names in what the rule expects."""
    said = RULES[rule]
    return Finding(said.level, rule, where, said.expected.format(**values), found, said.advice)


@dataclass(frozen=True)
class CheckOptions:
    """How much to look at."""

    steps: int = 1000
    """Steps to play; the other stages take fewer."""
    timeout: float = 60.0
    """Seconds one call into the environment may take."""
    seed: int = 1

    def __post_init__(self) -> None:
        if self.steps < 1 or not self.timeout > 0:
            raise ConfigError("--steps must be at least 1 and --timeout more than 0")
        if self.seed < 0:
            raise ConfigError("--seed must not be negative")


@dataclass(frozen=True)
class CheckReport:
    """What the checker found."""

    env: str
    findings: tuple[Finding, ...]
    spec: dict[str, Any] | None
    """``EnvSpec.to_dict``; None where it could not be built."""
    summary: dict[str, Any]
    """Speed, lengths of episodes, threads; empty where it did not come so far."""
    seconds: float

    @property
    def errors(self) -> int:
        return sum(finding.level == "error" for finding in self.findings)

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "ok": self.errors == 0}


def check_env(
    settings: EnvSettings, options: CheckOptions | None = None, environment: Mapping[str, str] = os.environ
) -> CheckReport:
    """Check one environment in a process of its own.

    ``environment``: variables for that process; with those of a ``process_scope`` nothing is left of it in the end.
    Raises ConfigError or MissingExtraError if there is nothing to check: a wrong name or argument, a missing package.
    """
    begun = time.monotonic()
    child = _Child(settings, options or CheckOptions(), environment)
    try:
        ending = child.watch()
        lines = child.lines
    finally:
        child.close()
    for line in lines:
        if "refused" in line:
            raise CONFIG_ERRORS.get(line["kind"], EnvError)(line["refused"])
    findings = [Finding(**line["finding"]) for line in lines if "finding" in line]
    counts: dict[str, int] = {}
    merged: dict[str, Any] = {}
    for line in lines:
        merged |= {key: line[key] for key in ("spec", "summary") if key in line}
        counts |= line.get("counts", {})
    found = [replace(finding, count=counts.get(str(n), 1)) for n, finding in enumerate(findings)]
    if ending is not None:
        found.append(ending)
    found.sort(key=lambda finding: finding.level)  # errors first; the rest stays in order
    seconds = time.monotonic() - begun
    return CheckReport(settings.id, tuple(found), merged.get("spec"), merged.get("summary", {}), seconds)


class _Child:
    """The process that holds the environment, seen from outside."""

    def __init__(self, settings: EnvSettings, options: CheckOptions, environment: Mapping[str, str]) -> None:
        self._timeout, self._token = options.timeout, environment.get(TOKEN_VARIABLE, "")
        with tempfile.TemporaryFile() as beat:
            beat.truncate(BEAT.size)
            self._beat = mmap.mmap(beat.fileno(), BEAT.size)
            question = {"env": asdict(settings), "options": asdict(options), "beat": beat.fileno()}
            # As in a worker: the environment does not get all cores for its own numerical libraries.
            variables = {"OMP_NUM_THREADS": "1"} | dict(environment)
            self._errand = Errand("rollmill.envs.check.main", question, variables, [beat.fileno()])

    def close(self) -> None:
        self._errand.close()
        self._beat.close()

    @property
    def lines(self) -> list[dict[str, Any]]:
        return self._errand.lines

    def watch(self) -> Finding | None:
        """Wait for its end; returns a finding if that was not of its own will, or if it has left something."""
        last, since = self._beat[:], time.monotonic()
        while not self._errand.has_ended:
            now, beat = time.monotonic(), self._beat[:]
            busy = BEAT.unpack(beat)[2] != 0
            if beat != last or not busy:
                last, since = beat, now
            elif now - since > self._timeout:
                return self._hang()
            time.sleep(POLL_SECONDS)
        # It says so when it is through: an exit code of 0 can be the environment's.
        return self._leftovers() if any("done" in line for line in self.lines) else self._crash()

    def _hang(self) -> Finding:
        before = len(self._errand.noise)
        self._errand.signal(signal.SIGUSR1)  # it answers with its stack
        deadline = time.monotonic() + STACK_SECONDS
        stack, seen = "", ""
        while (not stack or stack != seen) and time.monotonic() < deadline:  # it is written piece by piece
            time.sleep(POLL_SECONDS)
            stack, seen = self._errand.noise[before:], stack
        where = _innermost(stack)
        found = f"it had not{f'; it is at {where}' if where else ''}"
        return make_finding("hang", describe_place(self._beat[:]), found, seconds=self._timeout)

    def _crash(self) -> Finding:
        noise, place = self._errand.last_noise, describe_place(self._beat[:])
        return make_finding("crash", place, f"it {self._errand.end()}{f'; it said: {noise}' if noise else ''}")

    def _leftovers(self) -> Finding | None:
        deadline = time.monotonic() + ENDING_SECONDS
        while (left := leftovers(self._token) if self._token else {}) and time.monotonic() < deadline:
            time.sleep(POLL_SECONDS)
        if not left:
            return None
        named = ", ".join(f"{pid} ({command})" for pid, command in list(left.items())[:5])
        return make_finding("left-running", "after the last close()", f"{len(left)} of them did not: {named}")


def describe_place(beat: bytes) -> str:
    """Say where a check is: ``step() 12 of episode 0 (seed 1, env 0), stage play``."""
    _, stage, phase, env, episode, step, seed = BEAT.unpack(beat)
    if phase == 0:
        return f"outside of any call, stage {STAGES[stage]}"
    return f"{place(phase, episode, step, seed)}{f' in env {env}' if env else ''}, stage {STAGES[stage]}"


def place(phase: int, episode: int, step: int, seed: int) -> str:
    """Name a call in words."""
    if phase == MAKE:
        return "the constructor"
    what = {"reset": "reset()", "step": f"step() {step}", "close": "close()"}[PHASES[phase]]
    return what if PHASES[phase] == "close" else f"{what} of episode {episode} (seed {seed})"


def _innermost(stack: str) -> str:
    """Return the innermost line of the user's code in a stack that faulthandler wrote; its own files are left out."""
    frames = [line.strip() for line in stack.splitlines() if line.strip().startswith("File ")]
    own = str(Path(__file__).parent)
    return next((frame for frame in frames if f'"{own}' not in frame), frames[0] if frames else "")
