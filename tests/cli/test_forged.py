"""What a user sees of a checkpoint that does not hold what it should."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from running import SERIAL, Call, command_words, train_here

from rollmill.core import tree_file
from rollmill.core.checkpoints import Checkpoints


def test_one_line_names_the_file_and_the_field(call: Call, tmp_path: Path) -> None:
    words = (*SERIAL, "env=toy_target", "stop.batches=1")
    _, folder = train_here(tmp_path, *words)
    newest = Checkpoints(folder.checkpoints).newest()
    assert newest is not None
    content: Any = tree_file.load_tree(newest.path)
    for name, value, command in (
        ("config", {"env": 3}, ("eval", str(folder.path))),
        ("learners", None, ("eval", str(newest.path))),
        ("iteration", "three", (*command_words(tmp_path, *words), "--resume")),
    ):
        tree_file.save_tree(newest.path, {**content, "state": {**content["state"], name: value}})
        result = call(*command)
        assert result.code == 1
        said = result.err.splitlines()[-1]
        assert f"{newest.path}: field {name}" in said
        assert "another version of rollmill has written it" in said
        assert "Traceback" not in result.err


def test_settings_that_make_no_sense(call: Call, tmp_path: Path) -> None:
    _, folder = train_here(tmp_path, *SERIAL, "env=toy_target", "stop.batches=1")
    newest = Checkpoints(folder.checkpoints).newest()
    assert newest is not None
    content: Any = tree_file.load_tree(newest.path)
    content["state"]["config"]["model"]["hidden_size"] = "many"
    tree_file.save_tree(newest.path, content)
    result = call("eval", str(newest.path))
    assert result.code == 1
    assert f"{newest.path}: the saved config: model.hidden_size: expected int, got 'many'" in result.err
    repaired = call("eval", str(newest.path), "model.hidden_size=8", "--episodes", "1", "--workers", "1")
    assert repaired.code == 0, repaired.err
