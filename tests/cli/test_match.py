"""``rollmill match`` as a user types it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from running import SERIAL, SUPPORT, Call, train_here

BOLD, TIMID = (f"{SUPPORT / 'game_players.py'}:{name}" for name in ("last_allowed", "first_allowed"))


def test_the_command(tmp_path: Path, call: Call) -> None:
    run = train_here(tmp_path, *SERIAL, "env=kuhn_poker", "stop.frames=300")[1]
    copy = shutil.copytree(run.path, tmp_path / "copy")
    page, out = tmp_path / "page.html", tmp_path / "out.json"
    words = ("--games", "10", "--workers", "1", "--report", str(page), "--out", str(out), "--json")
    done = call("match", str(run.path), str(copy), "random", *words)
    assert done.code == 0, done.err
    found = json.loads(done.out)
    assert found["page"] == str(page)
    assert {name: found[name] for name in json.loads(out.read_text())} == json.loads(out.read_text())
    assert found["games"] == 30
    assert len({player["name"] for player in found["players"]}) == 3, "two runs of one name are told apart"
    text = page.read_text()
    assert "Who wins against whom" in text
    assert text.count("<rect") == 6
    told = call("match", BOLD, TIMID, "env=kuhn_poker", "--games", "4")
    assert told.code == 0, told.err
    assert "Share of points, row against column" in told.out
    refused = call("match", "random", "smoothed-random", "env=toy_target")
    assert (refused.code, refused.err.count("\n")) == (2, 1)
