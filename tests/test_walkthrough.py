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
from rollmill.runs.settings import TrainConfig
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
    """Records calls of the wanted functions with their depth among each other, from the first one on."""

    def __init__(self, wanted: set[tuple[str, str]]) -> None:
        self.calls: list[Call] = []
        self._wanted = wanted
        self._known: dict[CodeType, tuple[str, str] | None] = {}
        self._open: list[FrameType] = []

    def __call__(self, frame: FrameType, event: str, _arg: Any) -> None:
        if event == "call":
            found = self._identify(frame.f_code)
            if found is not None:
                self.calls.append(Call(len(self._open), *found))
                self._open.append(frame)
        elif event == "return" and self._open and self._open[-1] is frame:
            self._open.pop()

    def _identify(self, code: CodeType) -> tuple[str, str] | None:
        if code not in self._known:
            path = Path(code.co_filename)
            inside = path.is_relative_to(PACKAGE)
            function = (code.co_qualname, path.relative_to(PACKAGE).as_posix()) if inside else None
            self._known[code] = function if function in self._wanted else None
        return self._known[code]


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> list[Call]:
    folder = tmp_path_factory.mktemp("runs")
    config = load_config(TrainConfig, [], [*ONE_TRANSITION, f"run.dir={folder}"])
    tracer = Tracer({(call.name, call.file) for call in calls_of_the_page()})
    before = sys.getprofile()
    sys.setprofile(tracer)
    try:
        train(config, Request(console="off"))
    finally:
        sys.setprofile(before)
    return tracer.calls


def test_the_named_functions_are_in_the_named_files() -> None:
    missing = [call for call in calls_of_the_page() if call.name not in functions_of(PACKAGE / call.file)]
    assert not missing


def test_the_path_is_the_one_a_transition_takes(recorded: list[Call]) -> None:
    assert as_text(recorded) == as_text(calls_of_the_page())


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
