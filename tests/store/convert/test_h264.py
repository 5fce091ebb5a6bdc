"""Videos appear whole or not at all."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from rollmill.core.errors import MissingExtraError, StoreError
from rollmill.store.convert.h264 import VideoFile

av = pytest.importorskip("av")
IMAGE = np.full((9, 15, 3), 100, np.uint8)


def _video(path: Path, error: BaseException | None = None) -> None:
    with VideoFile(path, 10) as video:
        video.add(IMAGE)
        if error is not None:
            raise error


def test_a_video_appears_when_it_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "new" / "video.mp4"
    with VideoFile(path, 10) as video:
        video.add(IMAGE)
        assert not path.exists()
        video.add(IMAGE)
    assert [p.name for p in path.parent.iterdir()] == ["video.mp4"]
    with av.open(str(path)) as container:
        assert [(f.height, f.width) for f in container.decode(video=0)] == [(10, 16)] * 2, "sides are even"


def test_an_error_on_the_way_leaves_the_earlier_video_alone(tmp_path: Path) -> None:
    path = tmp_path / "video.mp4"
    path.write_bytes(b"earlier")
    with pytest.raises(KeyboardInterrupt):
        _video(path, KeyboardInterrupt())
    assert path.read_bytes() == b"earlier"
    assert [p.name for p in tmp_path.iterdir()] == ["video.mp4"]


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "folder.mp4").mkdir()
    for path in (tmp_path / "file" / "video.mp4", tmp_path / "folder.mp4"):
        with pytest.raises(StoreError, match=f"{path.name}: the video cannot be written"):
            _video(path)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["file", "folder.mp4"]


def test_errors_of_others_stay_what_they_are(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="another file"):
        _video(tmp_path / "video.mp4", FileNotFoundError("another file"))


def test_without_pyav_the_install_command_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "av", None)
    with pytest.raises(MissingExtraError, match=r"rollmill\[video\]"):
        VideoFile(tmp_path / "x.mp4", 30)


def test_a_video_needs_a_speed(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="fps 0"):
        VideoFile(tmp_path / "x.mp4", 0)
