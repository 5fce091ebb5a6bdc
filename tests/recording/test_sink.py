"""The sink: what it counts, and that nothing but the recording ends when it cannot write."""

from __future__ import annotations

import logging
import os
import shutil
from pathlib import Path

import pytest

from recording import check_stored, lane_plan, marker_schema, marker_segments, seen_in
from rollmill.recording.settings import RecordingSettings
from rollmill.recording.sink import COUNTS, STATES, SegmentSink, SinkPlan
from rollmill.store.format import open_shard
from rollmill.store.reader import Store

SEGMENTS = marker_segments(24, longest=29)


def plan_of(folder: Path, **settings: object) -> SinkPlan:
    return SinkPlan(folder, marker_schema(), RecordingSettings(keep="all", **settings), lane_plan(), 20)  # type: ignore[arg-type]


def feed(sink: SegmentSink, segments: list) -> None:
    for group, segment in segments:
        sink.take(segment, group)


def test_counts_are_those_of_the_store(tmp_path: Path) -> None:
    sink = SegmentSink(plan_of(tmp_path))
    feed(sink, SEGMENTS)
    sink.close()
    counts, store = sink.counts(), Store(tmp_path)
    assert tuple(counts) == COUNTS
    assert (counts["rows"], counts["episodes"]) == (store.table.steps, len(store))
    assert counts["bytes"] == pytest.approx(sum(p.stat().st_size for p in tmp_path.rglob("*.*")), abs=20_000)
    assert STATES[counts["state"]] == "recording"
    sink.close()
    sink.take(SEGMENTS[0][1], 0)
    assert sink.counts() == counts, "nothing happens after the end"


def test_a_second_sink_goes_on(tmp_path: Path) -> None:
    for part in (SEGMENTS[:12], SEGMENTS[12:]):
        sink = SegmentSink(plan_of(tmp_path))
        feed(sink, part)
        sink.close()
    seen = seen_in(segment for _, segment in SEGMENTS)
    stored = check_stored(tmp_path, seen)
    assert sink.counts()["rows"] == len(stored)
    # Only what was under way between the two is not whole: its beginning is there, as a partial episode.
    assert {key[:3] for key in stored} == {key[:3] for key in seen.rows}
    missing = {key[:3] for key in set(seen.rows) - stored}
    assert 0 < len(missing) <= len({key[0] for key in seen.rows})


@pytest.mark.parametrize("call", ["writev", "fsync", "rename"])
def test_a_full_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, call: str
) -> None:
    real, calls = getattr(os, call), [0]
    sink = SegmentSink(plan_of(tmp_path))
    feed(sink, SEGMENTS[:8])

    def fail(*args):  # type: ignore[no-untyped-def]
        calls[0] += 1
        if calls[0] > 3 or call != "writev":
            raise OSError(28, "No space left on device")
        return real(*args)

    monkeypatch.setattr(open_shard.os, call, fail)
    with caplog.at_level(logging.INFO, "rollmill"):
        feed(sink, SEGMENTS[8:])
        sink.close()
    monkeypatch.undo()
    assert calls[0]
    assert any("No space left" in record.message for record in caplog.records if record.levelno >= logging.ERROR)
    if call == "writev":
        assert sink.state == "disk full"
        assert sum("training goes on" in record.message for record in caplog.records) == 1


def test_the_budget(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    sink = SegmentSink(plan_of(tmp_path, budget_gb=0.0003, block=8))
    with caplog.at_level(logging.INFO, "rollmill"):
        feed(sink, SEGMENTS * 40)
    assert sink.state == "budget reached"
    (line,) = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert "recording has stopped (budget reached), training goes on" in line.message
    assert 0 < len(Store(tmp_path)) == sink.counts()["episodes"]
    assert not list(tmp_path.rglob("*.open.tfrecord")), "what was begun is ended, and sealed"


def test_a_store_that_cannot_be_opened(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "store.json").write_text("{}")
    with caplog.at_level(logging.INFO, "rollmill"):
        sink = SegmentSink(plan_of(tmp_path))
        feed(sink, SEGMENTS[:2])
        sink.leave(0)
        sink.close()
    assert sink.state == "failed"
    assert "store.json" in caplog.text


@pytest.mark.parametrize("fed", [0, 2])
def test_a_run_folder_that_is_gone_does_not_come_back(tmp_path: Path, fed: int) -> None:
    (tmp_path / "run").mkdir()
    sink = SegmentSink(plan_of(tmp_path / "run" / "data"))
    feed(sink, SEGMENTS[:fed])
    shutil.rmtree(tmp_path / "run")
    feed(sink, SEGMENTS[fed:])
    sink.close()
    assert SegmentSink(plan_of(tmp_path / "run" / "data")).state == "failed"
    assert not (tmp_path / "run").exists()


def test_damage_is_named_and_recording_goes_on(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    sink = SegmentSink(plan_of(tmp_path))
    feed(sink, SEGMENTS[:12])
    sink.close()
    (shard,) = tmp_path.rglob("*.tfrecord")
    data = bytearray(shard.read_bytes())
    data[len(data) // 2] ^= 1
    shard.write_bytes(data)
    next(tmp_path.rglob("*.idx")).unlink()
    with caplog.at_level(logging.WARNING, "rollmill"):
        sink = SegmentSink(plan_of(tmp_path))
        feed(sink, SEGMENTS[12:])
        sink.close()
    assert "the store has damage" in caplog.text
    assert sink.state == "recording"
