"""``rollmill export``: flags, files and refusals; what is in the files: ``tests/runs/checkpoints/test_export.py``."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from running import SERIAL, Call, train_here


def test_the_command(call: Call, tmp_path: Path) -> None:
    pytest.importorskip("safetensors")
    run = train_here(tmp_path, *SERIAL, "env=toy_agents", "env.policies=[0,1]", "stop.batches=2")[1].path
    done = call("export", str(run), "--to", "safetensors", "--policy", "1", "--json")
    assert done.code == 0, done.err
    assert done.json["file"] == "policy.safetensors"
    assert json.loads(Path("policy.json").read_text())["policy"] == 1
    for words, reason in (
        (("--to", "safetensors"), "policy.safetensors exists; --overwrite replaces it"),
        (("--to", "onnx", "--out", "p.pt"), "--out p.pt: files of this format end with .onnx"),
        (("--to", "onnx", "--out", "p.onnx", "--policy", "2"), "holds 2, counted from 0"),
        (("--to", "onnx", "--out", "/dev/null/p.onnx"), "cannot be written"),
    ):
        refused = call("export", str(run), *words)
        assert refused.code == 2
        assert reason in refused.err
