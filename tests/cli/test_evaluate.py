"""``rollmill eval``: files, videos and exit codes, through the command."""

from __future__ import annotations

import csv
import json
import re
import shutil
from pathlib import Path

import pytest
from running import SERIAL, Call, train_here


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    words = ("env=showing_envs:Shown", "stop.batches=1", "model.encoder=mlp")
    return train_here(tmp_path_factory.mktemp("run"), *SERIAL, *words)[1].path


def test_everything_at_once(call: Call, tmp_path: Path, run: Path) -> None:
    pytest.importorskip("av")
    words = ("--episodes", "4", "--workers", "1", "--random", "--json", "--trust-code")
    files = ("--csv", "e=1.csv", "--out", "e.json", "--video", "videos", "--grid", "1x2")
    played = call("eval", str(run), *words, *files)
    assert played.code == 0, played.err
    value = json.loads(played.out)
    assert json.loads((tmp_path / "e.json").read_text()) == value
    with open(tmp_path / "e=1.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [float(row["episode_return"]) for row in rows if row["policy"] == "policy"] == value["returns"]
    assert [row["policy"] for row in rows] == ["policy"] * 4 + ["random"] * 4
    assert [Path(video["file"]).is_file() for video in value["videos"]] == [True, True]
    assert call("eval", str(run), *words).json["returns"] == value["returns"]


def test_a_video_that_could_not_be_made_shows_in_the_exit_code(call: Call, run: Path) -> None:
    pytest.importorskip("av")
    words = ("--episodes", "1", "--workers", "1", "--video", "videos", "env.args.drift=true", "env=showing_envs:Shown")
    played = call("eval", str(run), *words)
    assert played.code == 1
    assert "no video videos/" in played.out
    assert "does not repeat from its seed and actions" in played.out


def test_several_targets_and_patterns(call: Call, run: Path, tmp_path: Path) -> None:
    """Runs of one name: each has videos of its own."""
    shutil.copytree(run, tmp_path / "other" / run.name)
    words = ("--episodes", "2", "--workers", "1", "--trust-code")
    value = call("eval", str(run), "oth*/*", *words, "--video", "videos", "--video-count", "1", "--json").json
    assert isinstance(value["results"], list)
    assert len(value["results"]) == 2
    videos = [video["file"] for result in value["results"] for video in result["videos"]]
    assert len(set(videos)) == len(list((tmp_path / "videos").glob("*.mp4"))) == 2
    assert call("eval", str(run), "oth*/*", *words).out.startswith("showing_envs:Shown\npolicy ")


def test_policies_side_by_side_on_a_page(call: Call, run: Path, tmp_path: Path) -> None:
    """A past version and random play beside the run, which counts as 100 %, each with a typical episode."""
    pytest.importorskip("av")
    words = ("--behaviour", str(run), "--random", "--report-videos", "--report", "page.html", "--episodes", "4")
    said = call("eval", f"{run}@0", "random", *words, "--workers", "1", "--trust-code", "--json")
    assert said.code == 0, said.err
    value = said.json
    past = "run/frames-000000000000"
    assert [row["policy"] for row in value["rows"]] == [past, "random", "behaviour"]  # type: ignore[attr-defined]
    assert value["page"] == "page.html"
    shown = re.findall("<figcaption>(.*?)</figcaption>", (tmp_path / "page.html").read_text())
    assert sorted(shown) == ["behaviour", "random", "random", past]
    assert len(list((tmp_path / "page").glob("*.mp4"))) == 4
    other = call("eval", str(run), "--report-videos", "--trust-code")
    assert (other.code, other.out) == (2, "")
    assert "--report-videos: which page? give --report" in other.err


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ((), "what is to be evaluated?"),
        (("RUN", "--episodes", "3", "--steps", "3"), "--episodes and --steps exclude each other"),
        (("RUN", "--grid", "2x2"), "--grid is for videos: add --video FOLDER"),
        (("RUN", "--trust-code", "--out", "/dev/null/x"), "--out: nothing can be written in /dev/null"),
        (("RUN", "--trust-code", "--video", "videos", "env.args.broken=none"), "renders no RGB images"),
        (("nothing/*",), "nothing/*: matches nothing"),
    ],
)
def test_refused(call: Call, run: Path, words: tuple[str, ...], reason: str) -> None:
    refused = call("eval", *(str(run) if word == "RUN" else word for word in words))
    assert refused.code == 2
    assert reason in refused.err


# -- temporary files -----------------------------------------------------------------------------------

KEPT = """
import tempfile
from pathlib import Path

from rollmill.envs.toy import Target


class Kept(Target):
    def __init__(self) -> None:
        super().__init__()
        Path("where.txt").write_text(tempfile.gettempdir())
"""


@pytest.mark.parametrize(
    "words",
    [
        ("collect", "--out", "data", "--episodes", "1", "--policy", "random", "env=kept.py:Kept"),
        ("eval", "random", "--episodes", "1", "env=kept.py:Kept"),
    ],
)
def test_temporary_files_lie_where_a_command_is_told(call: Call, words: tuple[str, ...]) -> None:
    Path("kept.py").write_text(KEPT)
    assert call(*words, "run.temp_dir=scratch").code == 0
    assert Path("where.txt").read_text().startswith(str(Path("scratch").absolute()))


@pytest.mark.parametrize(
    "verb",
    [
        ("eval", "random", "env=toy_target"),
        ("collect", "env=toy_target", "--out", "data", "--episodes", "1"),
        ("world", "vae", "store", "--out", "vae"),
        ("world", "encode", "store", "vae", "--out", "latents"),
        ("world", "dynamics", "latents", "--out", "dynamics"),
        ("world", "controller", "vae", "--out", "controller"),
        ("world", "run", "--out", "world"),
        ("offline", "data"),
        ("train", "env=toy_target"),
    ],
)
def test_every_command_that_plays_or_fits_takes_the_folder_of_temporary_files(
    call: Call, verb: tuple[str, ...]
) -> None:
    Path("file").touch()
    told = call(*verb, "run.temp_dir=file/below")
    assert told.code == 2
    assert "run.temp_dir=" in told.err
    assert "nothing can be written there" in told.err


@pytest.mark.parametrize("word", ["stop.frames=3", "checkpoints.keep_last=1", "run.seed=3"])
def test_settings_that_no_evaluation_reads_are_refused(call: Call, word: str) -> None:
    told = call("eval", "random", "env=toy_target", word)
    assert told.code == 2
    assert f"{word}: settings of {word.partition('.')[0]!r} mean nothing to a policy that plays" in told.err
