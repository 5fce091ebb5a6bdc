"""Keeps ``docs/walkthrough.md`` true: the calls it lists are those of a real training step, in that order."""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, NamedTuple

import pytest
from running import ROOT

from rollmill.core.config.load import load_config
from rollmill.runs.lifecycle import Request
from rollmill.runs.settings.train import TrainConfig
from rollmill.runs.train.run import train

PACKAGE = ROOT / "src" / "rollmill"
PAGE = (ROOT / "docs" / "walkthrough.md").read_text(encoding="utf-8")
INDENT = 4

ONE_TRANSITION = (
    "env=toy_target",
    "sampling.mode=serial",
    "sampling.workers=1",
    "sampling.envs_per_worker=1",
    "sampling.groups=1",
    "sampling.rollout=1",
    "model.mlp=[4]",
    "learning.batch_size=1",
    "learning.minibatches=1",
    "learning.epochs=1",
    "learning.device=cpu",
    "stop.batches=1",
    "report.tensorboard=false",
)


Hops = dict[str, set[str]]
"""File -> its functions that were called from other files."""


class Call(NamedTuple):
    """One line of the page: how deep, which function, in which file."""

    depth: int
    name: str
    file: str


def calls_of_the_page() -> list[Call]:
    (block,) = re.findall(r"```trace\n(.*?)```", PAGE, re.DOTALL)
    calls = []
    for line in block.splitlines():
        name, file = line.split()
        indent = len(line) - len(line.lstrip())
        assert indent % INDENT == 0, f"indent of {line!r}"
        calls.append(Call(indent // INDENT, name, file))
    return calls


def as_text(calls: list[Call]) -> str:
    """The calls as on the page, so that a difference can be read."""
    return "\n".join(f"{' ' * INDENT * call.depth}{call.name}  {call.file}" for call in calls)


def functions_of(path: Path) -> set[str]:
    """Names of all functions of a file, methods as ``Class.method``."""
    found = set()
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef):
            found.add(node.name)
        elif isinstance(node, ast.ClassDef):
            found |= {f"{node.name}.{part.name}" for part in node.body if isinstance(part, ast.FunctionDef)}
    return found


class Tracer:
    """Records every call of the package's functions, with its depth, and from which file it came."""

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self.callers: list[str] = []
        self._known: dict[CodeType, tuple[str, str] | None] = {}
        self._open: list[tuple[FrameType, str]] = []

    def __call__(self, frame: FrameType, event: str, _arg: Any) -> None:
        if event == "call":
            found = self._identify(frame.f_code)
            if found is not None:
                self.calls.append(Call(len(self._open), *found))
                self.callers.append(self._open[-1][1] if self._open else "")
                self._open.append((frame, found[1]))
        elif event == "return" and self._open and self._open[-1][0] is frame:
            self._open.pop()

    def _identify(self, code: CodeType) -> tuple[str, str] | None:
        if code not in self._known:
            path = Path(code.co_filename)
            inside = path.is_relative_to(PACKAGE)
            self._known[code] = (code.co_qualname, path.relative_to(PACKAGE).as_posix()) if inside else None
        return self._known[code]

    def hops(self, first: str, end: str) -> Hops:
        """Calls from one file into another between two functions, by file in the order of the path."""
        names = [call.name for call in self.calls]
        found: Hops = {}
        for k in range(names.index(first), names.index(end)):
            call = self.calls[k]
            if self.callers[k] != call.file:
                outermost = call.name.partition(".<locals>")[0]
                found.setdefault(call.file, set()).add(outermost)
        return found

    def among(self, wanted: set[tuple[str, str]]) -> list[Call]:
        """The calls of some functions, with their depth among each other."""
        found: list[Call] = []
        above: list[int] = []
        for call in self.calls:
            if (call.name, call.file) in wanted:
                while above and above[-1] >= call.depth:
                    above.pop()
                found.append(call._replace(depth=len(above)))
                above.append(call.depth)
        return found


def hops_of_the_page() -> Hops:
    """The table of files: which of their functions other files call on the way."""
    table = PAGE.partition("## All files on the way")[2]
    rows = re.findall(r"^\| `(\S+\.py)` \| ([^|]+) \|", table, re.MULTILINE)
    return {file: set(re.findall(r"`([\w.]+)`", doors)) for file, doors in rows}


@pytest.fixture(scope="module")
def tracer(tmp_path_factory: pytest.TempPathFactory) -> Tracer:
    folder = tmp_path_factory.mktemp("runs")
    config = load_config(TrainConfig, [], [*ONE_TRANSITION, f"run.dir={folder}"])
    tracer = Tracer()
    before = sys.getprofile()
    sys.setprofile(tracer)
    try:
        train(config, Request(console="off"))
    finally:
        sys.setprofile(before)
    return tracer


def test_the_named_functions_are_in_the_named_files() -> None:
    missing = [call for call in calls_of_the_page() if call.name not in functions_of(PACKAGE / call.file)]
    assert not missing


def test_the_path_is_the_one_a_transition_takes(tracer: Tracer) -> None:
    page = calls_of_the_page()
    assert as_text(tracer.among({(call.name, call.file) for call in page})) == as_text(page)


def test_no_file_and_no_hop_is_left_out(tracer: Tracer) -> None:
    """Nothing is filtered: whoever lets the path enter another file, or another function of one, finds it here."""
    hops = tracer.hops("OnlineRun._collect", "OnlineRun._after_step")
    assert _table(hops_of_the_page()) == _table(hops)
    assert f"**{len(hops)} files**" in PAGE


def _table(hops: Hops) -> str:
    return "\n".join(f"{file}: {', '.join(sorted(doors))}" for file, doors in hops.items())


def test_the_text_names_only_what_exists() -> None:
    text = re.sub(r"```.*?```", "", PAGE, flags=re.DOTALL)
    known = set().union(*(functions_of(path) for path in PACKAGE.rglob("*.py")))
    named = set(re.findall(r"`([A-Z]\w*\.\w+)`", text))
    assert named, "the text names methods"
    assert named <= known
    files = re.findall(r"`(\w+/\w+\.py)`", text)
    assert [file for file in files if not (PACKAGE / file).is_file()] == []


def test_the_text_explains_every_function_of_the_path() -> None:
    text = PAGE.partition("## 1.")[2]
    unexplained = {call.name for call in calls_of_the_page() if f"`{call.name}`" not in text}
    assert not unexplained
