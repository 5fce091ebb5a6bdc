"""Agents that are played by policies of their own: trained, saved and evaluated by the real commands."""

import json
from pathlib import Path

from running import SERIAL, Call, command_words, saved_state

from rollmill.core.run_folder import RunFolder
from rollmill.monitor.jsonl import read_jsonl


def test_two_policies_learn_and_play(tmp_path: Path, call: Call) -> None:
    words = ("env=toy_agents", "env.policies=[0, 1]", "stop.batches=3")
    done = call(*command_words(tmp_path, *SERIAL, *words))
    assert done.code == 0, done.err
    folder = tmp_path / "x" / "run"
    learners = saved_state(RunFolder(folder))["learners"]
    assert [learner["version"] for learner in learners] == [3, 3]
    last = list(read_jsonl(folder / "metrics.jsonl"))[-1]
    assert "learn/loss" in last
    assert "policy1/learn/loss" in last
    score = call("eval", str(folder), "--episodes", "4", "--json")
    assert score.code == 0, score.err
    assert json.loads(score.out)["episodes"] == 4
