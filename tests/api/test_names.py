"""What ``import rollmill`` offers."""

from __future__ import annotations

import ast
import inspect
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from running import ROOT

import rollmill

NAMES = {
    *(
        "train",
        "evaluate",
        "load_policy",
        "match",
        "collect",
        "sample",
        "open_store",
        "make_env",
        "Run",
        "Metrics",
        "launch_experiment",
    ),
    *("TrainConfig", "Observer", "CustomLearner", "Store", "Windows", "Transitions", "Experiment", "RollmillError"),
}


def test_all_is_what_there_is() -> None:
    assert set(rollmill.__all__) == NAMES | {"__version__"}
    assert set(rollmill.__all__) <= set(dir(rollmill))


@pytest.mark.parametrize("name", sorted(NAMES))
def test_every_name_is_there_and_says_what_it_is(name: str) -> None:
    found = getattr(rollmill, name)
    assert found.__name__ == name
    assert inspect.getdoc(found)


VERBS = {
    *("Add", "Count", "Cuts", "Describes", "Draw", "Evaluate", "Give", "Gives", "Go", "Hear", "Holds", "Improve"),
    *("Improves", "Is", "Learn", "Let", "Load", "Make", "Name", "Open", "Play", "Publish", "Put", "Read", "Reads"),
    *("Return", "Say", "Start", "Take", "Tells", "Train", "Yield"),
}
"""What docstrings of the API may begin with: what a function is asked to do, or what a class does."""


def documented() -> Iterator[tuple[str, object]]:
    """Every exported name, and every public method and property of those that are classes."""
    for name in sorted(NAMES):
        thing = getattr(rollmill, name)
        yield name, thing
        for cls in inspect.getmro(thing) if inspect.isclass(thing) else ():
            if not cls.__module__.startswith("rollmill"):
                continue
            for method, value in vars(cls).items():
                found = getattr(value, "fget", None) or getattr(value, "func", None) or value
                found = getattr(found, "__func__", found)
                if not method.startswith("_") and inspect.isfunction(found):
                    yield f"{name}.{method}", found


def test_docstrings_are_sentences_with_a_verb() -> None:
    for name, thing in documented():
        text = inspect.getdoc(thing) or ""
        first = text.partition(" ")[0]
        assert first in VERBS, f"{name}: {text[:60]!r} is to begin with a verb; if it does, add that to VERBS"
        sentence = text.partition("\n\n")[0]
        assert sentence.endswith((".", "::")), name


def test_type_checkers_see_the_same_names() -> None:
    tree = ast.parse(Path(rollmill.__file__).read_text(encoding="utf-8"))
    block = next(node for node in tree.body if isinstance(node, ast.If))
    seen = {alias.name: node.module for node in block.body if isinstance(node, ast.ImportFrom) for alias in node.names}
    assert seen == {"Any": "typing", **{name: rollmill._PLACES[name] for name in NAMES}}


def test_a_name_that_is_not_there() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'trian'"):
        _ = rollmill.trian


def test_importing_it_imports_next_to_nothing() -> None:
    code = "import sys, rollmill; print([m for m in ('torch', 'numpy', 'gymnasium', 'pydantic') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)
    assert done.stdout.strip() == "[]"


def test_every_name_is_explained() -> None:
    page = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
    assert [name for name in NAMES if f"`rollmill.{name}" not in page and f"`{name}" not in page] == []
