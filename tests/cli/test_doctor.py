"""``rollmill doctor``: what is printed, and the exit code."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
from disks import mounted
from running import Call

from rollmill.core import janitor_main


def test_a_fit_machine(call: Call) -> None:
    done = call("doctor")
    assert done.code == 0, done.out
    assert " faults" in done.out
    assert "run folder" in done.out


def test_faults_give_exit_code_one(call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *a: None if name == "cma" else find(name, *a))
    assert call("doctor", "--json").code == 0
    done = call("doctor", "--need", "world", "video", "--json")
    assert (done.code, done.json["fit"]) == (1, False)
    bad = [finding for finding in done.json["findings"] if finding["level"] == "bad"]  # type: ignore[attr-defined]
    assert [finding["advice"] for finding in bad] == ['pip install "rollmill[world]"']
    with mounted(tmp_path / "small", "1m") as disk:
        assert call("doctor", "--run-dir", str(disk)).code == 1


def test_leftovers_are_removed_when_asked(call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import os

    (tmp_path / "shm").mkdir()
    segment = tmp_path / "shm" / "ViZDoomSMabc"
    segment.write_bytes(b"x")
    os.utime(segment, (1, 1))
    monkeypatch.setattr(janitor_main, "SHARED_MEMORY", str(tmp_path / "shm"))
    assert "ViZDoomSMabc" in call("doctor").out
    assert segment.exists()
    assert "removed 1 leftovers: ViZDoomSMabc" in call("doctor", "--clean").out
    assert not segment.exists()


def test_an_unknown_extra(call: Call) -> None:
    done = call("doctor", "--need", "vizdom")
    assert done.code == 2
    assert "did you mean 'vizdoom'" in done.err
