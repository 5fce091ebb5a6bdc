from __future__ import annotations

from pathlib import Path

import pytest

from rollmill.core.diary import Diary
from rollmill.core.errors import LaunchError
from rollmill.launch.history import history, lines


def test_every_start_is_told_with_where_it_came_from(tmp_path: Path) -> None:
    parent = tmp_path / "exp" / "parent"
    child = tmp_path / "exp" / "child"
    for folder in (parent, child):
        folder.mkdir(parents=True)
    diary = Diary.create(parent / "diary.json", ["rollmill", "train"])
    diary.begin_session(["rollmill", "train"], 0)
    diary.begin_session(["rollmill", "train", "--resume"], 500, {"stop.frames": (1000, 2000)})
    diary.end_session("finished: limit", 2000)
    born = Diary.create(child / "diary.json", ["rollmill", "train", "--restore", "x.ckpt"])
    born.set_parent(Path("x.ckpt"), 2000, "abc", {"learning.gamma": (0.9, 0.99)})
    born.begin_session(["rollmill", "train", "--restore", "x.ckpt"], 2000)

    entries = {(entry.run, entry.session): entry for entry in history(tmp_path / "exp")}
    assert len(entries) == 3
    assert entries["parent", 1].how == "killed (its end was not recorded)"
    assert entries["parent", 2].changes == {"stop.frames": [1000, 2000]}
    assert entries["parent", 2].to_step == 2000
    assert entries["child", 1].parent == "x.ckpt (2,000 frames)"
    assert entries["child", 1].changes == {"learning.gamma": [0.9, 0.99]}
    assert entries["child", 1].how == "running, or killed"
    assert set(entries["child", 1].versions) >= {"rollmill", "python", "torch"}

    text = "\n".join(lines(history(tmp_path / "exp")))
    assert "x.ckpt (2,000 frames); learning.gamma: 0.9 -> 0.99" in text
    assert "500 to 2,000" in text
    assert len(history(child)) == 1, "the folder of a run works as well"


def test_git_states_are_shortened(tmp_path: Path) -> None:
    diary = Diary.create(tmp_path / "diary.json", ["x"])
    diary.begin_session(["x"], 0)
    diary.sessions[0]["git"] = {"commit": "0123456789abcdef", "dirty": True}
    diary._write()
    assert history(tmp_path)[0].code.endswith("01234567+")


def test_a_folder_without_runs(tmp_path: Path) -> None:
    with pytest.raises(LaunchError, match="no runs in it"):
        history(tmp_path)


@pytest.mark.parametrize("content", ['{"sessions": [{}]}', '{"sessions": [3]}', '{"sessions": [{}], "parent": 4}'])
def test_a_file_that_is_no_diary_is_named(tmp_path: Path, content: str) -> None:
    (tmp_path / "diary.json").write_text(content)
    with pytest.raises(LaunchError, match=r"diary.json: not the diary of a run"):
        history(tmp_path)
