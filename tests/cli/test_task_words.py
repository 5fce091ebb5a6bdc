"""Suites on the command line: evaluation, collection, the list of environments."""

from __future__ import annotations

from pathlib import Path

from running import SERIAL, Call, train_here

from rollmill.runs.evaluate.options import EvalOptions
from rollmill.runs.evaluate.run import evaluate
from rollmill.store.reader import Store


def test_an_evaluation_plays_every_task_as_often_and_says_so(tmp_path: Path, call: Call) -> None:
    _, folder = train_here(tmp_path, *SERIAL, "env=toy_pair", "stop.frames=200")
    result = evaluate(folder.path, EvalOptions(episodes=5))
    found = result.to_dict()
    assert {name: row["episodes"] for name, row in found["by_task"].items()} == {"small": 5, "large": 5}
    assert [row.task for row in result.policy.rows][:4] == ["small", "large", "small", "large"]
    document = call("eval", str(folder.path), "--episodes", "3", "--json", "env.task=large").json
    assert document["episodes"] == 3
    assert "by_task" not in document
    assert max(document["returns"]) >= 100, "the rewards of the large one"


def test_a_suite_is_collected_task_by_task(tmp_path: Path, call: Call) -> None:
    whole = call("collect", "--policy", "random", "env=toy_pair", "--episodes", "4", "--out", str(tmp_path / "a"))
    assert "collect one task at a time, with env.task=NAME (of small, large)" in whole.err
    words = ("env=toy_pair", "env.task=large", "--episodes", "4", "--out", str(tmp_path / "b"))
    assert call("collect", "--policy", "random", *words).code == 0
    with Store(tmp_path / "b") as store:
        assert set(store.table["env_id"]) == {"large"}


def test_suites_are_listed(call: Call) -> None:
    listed = call("envs").out
    assert "suite of 5 tasks: MiniGrid" in listed
    assert "suite of 57 tasks: Atari" in listed
