"""What ``import rollmill`` offers."""

from __future__ import annotations

import ast
import inspect
import subprocess
import sys
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
