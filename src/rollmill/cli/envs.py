"""``rollmill envs``: which environments there are, and what is wrong with one."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING

from rollmill.cli.options import Json
from rollmill.core.config.load import load_config
from rollmill.core.config.schema import settings
from rollmill.core.errors import ConfigError
from rollmill.core.fields import EnvSpec, Field
from rollmill.core.imports import is_installed
from rollmill.envs.make import FAMILIES, NAMED, ROUTES, Entry, find_route
from rollmill.envs.settings import EnvSettings
from rollmill.envs.tasks.named import SUITES

if TYPE_CHECKING:
    from rollmill.envs.check.runner import CheckReport, Finding

EXAMPLES = {"Box2D": "LunarLander-v3, CarRacing-v3", "mujoco": "HalfCheetah-v5, Humanoid-v5"}
"""Ids of Gymnasium's own environments that need a package, by that package."""


# ---------------------------------------------------------------------------------------------- list


@dataclass(frozen=True)
class Row:
    """One name, or a pattern of names, that ``env=`` takes."""

    name: str
    adapter: str
    state: str
    """``ready`` or ``missing``."""
    install: str
    """What to do where it is missing."""
    summary: str


def list_envs(word: str = "", /, json_: Json = False) -> int:
    """List the environments, all of them or those with a word in name or summary: ``rollmill envs doom``.

    Args:
        word: Part of a name, an adapter or a summary.
        json_: Print JSON.
    """
    if "=" in word:
        raise ConfigError(f"{word}: a word to look for is expected, see `rollmill envs --help`")
    rows = [row for row in all_rows() if word.lower() in f"{row.name} {row.adapter} {row.summary} {row.state}".lower()]
    if json_:
        print(json.dumps([asdict(row) for row in rows]))
        return 0
    if not rows:
        raise ConfigError(f"no environment has {word!r} in its name; `rollmill envs` lists them all")
    width = max(len(row.name) for row in rows)
    for row in rows:
        print(f"{row.name:{width}}  {row.state:7}  {row.summary}")
    missing = sorted(
        {row.install: row.adapter for row in rows if row.state != "ready"}.items(), key=lambda pair: pair[1]
    )
    if missing:
        print("\nmissing:")
    for install, adapter in missing:
        print(f"  {adapter:10} {install}")
    print("\nany Gymnasium id (env=CartPole-v1) or your own code (env=module:callable) works as well")
    return 0


def all_rows() -> Iterator[Row]:
    """Yield every built-in name, and the patterns of names that adapters take. Nothing heavy is imported for it."""
    for name, entry in NAMED.items():
        yield _row(name, entry, entry.summary)
    for route in ROUTES:
        entry = NAMED[route.entry]
        yield _row(f"{route.prefix}*", entry, f"env={route.entry} with env.args.{route.argument}")
    for module, (package, extra) in FAMILIES.items():
        examples = EXAMPLES.get(package, "")
        entry = Entry(f"{module}:", "", extra=extra, package=package)
        yield _row(f"Gymnasium {extra}", entry, f"Gymnasium ids: {examples}")
    yield _row("ALE/*", NAMED["atari"], "Gymnasium ids of ALE, without preprocessing")
    for name, suite in SUITES.items():
        first = str(suite.tasks[0]["id"])
        found = find_route(first)
        summary = f"suite of {len(suite.tasks)} tasks: {suite.summary}"
        yield _row(name, NAMED[found.entry if found else first], summary)


def _row(name: str, entry: Entry, summary: str) -> Row:
    adapter = entry.target.partition(":")[0].rpartition(".")[2]
    if _is_there(entry):
        return Row(name, adapter, "ready", "", summary)
    install = entry.install or f'pip install "rollmill[{entry.extra}]"'
    return Row(name, adapter, "missing", install, summary)


def _is_there(entry: Entry) -> bool:
    if entry.package == "mlagents_envs":  # it lives in a venv of its own
        from rollmill.envs.mlagents.install import interpreter

        return interpreter() is not None
    return not entry.package or is_installed(entry.package)


# ---------------------------------------------------------------------------------------------- check


@settings
class CheckConfig:
    """The part of a run's configuration that says what to check, or to play."""

    env: EnvSettings = field(default_factory=EnvSettings)


def named_env(env: str, overrides: tuple[str, ...]) -> EnvSettings:
    """Return the settings of an environment that a word names, with KEY=VALUE words for its settings."""
    return load_config(CheckConfig, (), (f"env.id={json.dumps(env)}", *overrides)).env


def check(
    overrides: tuple[str, ...],
    env: str,
    /,
    steps: int = 1000,
    timeout: float = 60.0,
    seed: int = 1,
    json_: Json = False,
) -> int:
    """Check an environment against its contract: ``rollmill envs check doom_basic env.args.frame_skip=8``.

    Spaces, types, seeds, resets, ends, masks; alone, beside another one, and stepped as in a run. Each finding says
    where, what was expected and found, and what to do. Exit code 1 where there are errors.

    Args:
        overrides: Settings of the environment.
        env: A name from ``rollmill envs``, a Gymnasium id, or module:callable. KEY=VALUE words set env.* keys.
        steps: Steps to play.
        timeout: Seconds that one call into the environment may take.
        seed: Of the first episode.
        json_: Print JSON.
    """
    from rollmill.core.process_scope import process_scope
    from rollmill.envs.check.runner import CheckOptions, check_env

    chosen = named_env(env, overrides)
    options = CheckOptions(steps=steps, timeout=timeout, seed=seed)
    with process_scope() as environment:
        report = check_env(chosen, options, environment)
    print(json.dumps(report.to_dict()) if json_ else describe(report))
    return 1 if report.errors else 0


def describe(report: CheckReport) -> str:
    """Return the report as text."""
    lines = [describe_spec(EnvSpec.from_dict(report.spec))] if report.spec else [report.env]
    lines += [f"  {line}" for line in _metrics(report)]
    for finding in report.findings:
        lines += ["", *_finding_lines(finding)]
    warnings = len(report.findings) - report.errors
    verdict = "keeps its contract" if not report.errors else "breaks its contract"
    lines += ["", f"{report.env} {verdict}: {_count(report.errors, 'error')}, {_count(warnings, 'warning')}"]
    return "\n".join(lines)


def describe_spec(spec: EnvSpec) -> str:
    """Return what it promises, in a few lines."""
    action = spec.action
    kinds = {
        "discrete": f"one of {action.nvec[0]}" if action.nvec else "",
        "multi_discrete": f"choices of {', '.join(map(str, action.nvec))}",
        "continuous": f"{action.shape} numbers from {_bounds(action.low)} to {_bounds(action.high)}",
        "mixed": f"choices of {', '.join(map(str, action.nvec))} and {len(action.low)} numbers "
        f"from {_bounds(action.low)} to {_bounds(action.high)}",
    }
    lines = [spec.name, f"  observation  {'; '.join(map(_field_text, spec.observation))}"]
    lines.append(f"  action       {kinds[action.kind]}")
    lines.append(f"  agents       {spec.agents}, frames per step {spec.frames_per_step}")
    return "\n".join(lines)


def _metrics(report: CheckReport) -> Iterator[str]:
    metrics = report.summary
    if "steps_per_second" in metrics:
        tasks = ""
        if "threads" in metrics:
            tasks = f", {_count(metrics['threads'], 'thread')} and {_count(metrics['processes'], 'process')} of its own"
        yield f"speed        {metrics['steps_per_second']:,.0f} steps/s{tasks}"
    if metrics.get("episodes"):
        lengths = f"{metrics['length_min']} to {metrics['length_max']} long (mean {metrics['length_mean']:.1f})"
        count = f"{metrics['episodes']} in {metrics['steps']} random steps"
        yield f"episodes     {count}, {lengths}, mean return {metrics['return_mean']:.4g}"
    if not metrics.get("repeatable", True):
        yield "seeds        not checked: it says itself that they do not fix an episode (repeatable)"
    yield f"checked in   {report.seconds:.1f} s"


def _finding_lines(finding: Finding) -> Iterator[str]:
    again = f"   ({finding.count} times, first here)" if finding.count > 1 else ""
    yield f"{finding.level}: {finding.rule}{again}"
    for name in ("where", "expected", "found", "advice"):
        text = textwrap.wrap(getattr(finding, name), 100, replace_whitespace=False, break_long_words=False) or [""]
        yield f"  {'do' if name == 'advice' else name:9} {text[0]}"
        yield from (f"  {'':9} {line}" for line in text[1:])


def _field_text(field: Field) -> str:
    return f"{field.name} {field.dtype}{list(field.shape)}"


def _bounds(values: tuple[float, ...]) -> str:
    return f"{values[0]:g}" if len(set(values)) == 1 else str(list(values))


def _count(number: int, noun: str) -> str:
    ending = "" if number == 1 else "es" if noun.endswith("s") else "s"
    return f"{number or 'no'} {noun}{ending}"
