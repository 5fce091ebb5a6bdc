"""The page about a run: what stands on it, whatever state the run's folder is in."""

from __future__ import annotations

import json
import re
import shutil
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
from running import SERIAL, train_here

from rollmill.core.config.plain import to_dict
from rollmill.core.errors import ObserverError, RunFolderError
from rollmill.core.run_folder import RunFolder
from rollmill.core.run_kind import run_kind
from rollmill.reports.html.document import document
from rollmill.reports.html.media import FILE_BYTES
from rollmill.reports.run.facts import read_run
from rollmill.reports.run.report import write_run_report
from rollmill.reports.run.sections import thinned
from rollmill.runs.settings.offline import OfflineConfig
from rollmill.runs.settings.train import TrainConfig
from rollmill.runs.settings.world import VaeConfig, WorldConfig
from rollmill.runs.train.loop import OnlineRun
from rollmill.runs.train.observers import Observer
from rollmill.worldmodel.controller.settings import ControllerSettings
from rollmill.worldmodel.dynamics.settings import DynamicsSettings


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A recorded run; tests that change it take a copy."""
    words = (*SERIAL, "env=toy_target", "stop.frames=1200", "recording.keep=all", "report.every_frames=100")
    _, folder = train_here(tmp_path_factory.mktemp("trained"), *words)
    return folder.path


@pytest.fixture
def copy(trained: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(trained, tmp_path / "copy"))


def page_of(folder: Path) -> str:
    text = write_run_report(folder).read_text(encoding="utf-8")
    ET.fromstring(text.removeprefix("<!DOCTYPE html>"))  # well-formed: every element closed, every text escaped
    return text


def test_it_is_written_when_the_run_ends(trained: Path) -> None:
    text = (trained / "report.html").read_text(encoding="utf-8")
    for title in ("Curves", "Workers and policies", "Faults and drops", "Time and memory", "Recorded data"):
        assert f"<h2>{title}</h2>" in text, title
    for title in ("Return", "Length", "Frames per second", "Entropy", "KL", "Policy lag", "Value loss"):
        assert re.search(rf'<h3>{title}</h3><svg [^>]*aria-label="{title}">.*?class="line"', text, re.DOTALL), title
    assert '<a href="data_report.html">' in text
    assert "reached stop.frames=1_200" in text
    assert "worker 0" in text
    assert "worker 1" in text
    assert "Started from scratch" in text
    assert "torch" in text
    assert "keep: all" in text, "the configuration is there"
    assert "report of the run" in (trained / "log.txt").read_text()


def test_nothing_comes_from_elsewhere(trained: Path) -> None:
    text = (trained / "report.html").read_text(encoding="utf-8")
    assert "default-src 'none'" in text.replace("&#x27;", "'")
    assert "<script" not in text
    assert not re.search(r'(src|href)="(?!data:|data_report\.html|videos/)', text)


def test_it_can_be_left_out(tmp_path: Path) -> None:
    _, folder = train_here(tmp_path, *SERIAL, "env=toy_target", "stop.batches=1", "report.page=false")
    assert not (folder.path / "report.html").exists()


def test_a_run_that_failed_has_one_too(tmp_path: Path) -> None:
    class Fail(Observer):
        def on_training_step(self, run: OnlineRun, iteration: int) -> None:
            if iteration == 4:
                raise RuntimeError("<b>broken</b>")

    with pytest.raises(ObserverError):
        train_here(tmp_path, *SERIAL, "env=toy_target", observers=[Fail()])
    text = (tmp_path / "x" / "run" / "report.html").read_text(encoding="utf-8")
    assert '<span class="bad">failed</span>' in text
    assert "&lt;b&gt;broken&lt;/b&gt;" in text
    assert "<b>broken</b>" not in text
    assert "Warnings and errors in the log" in text


def test_a_report_that_cannot_be_written_does_not_fail_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Block(Observer):
        def on_stop(self, run: OnlineRun) -> None:
            (run.folder.path / "report.html").mkdir()

    outcome, folder = train_here(tmp_path, *SERIAL, "env=toy_target", "stop.batches=1", observers=[Block()])
    assert outcome.state == "finished"
    assert "no report of the run" in folder.log.read_text()


def test_parent_and_changes_are_named(tmp_path: Path) -> None:
    _, first = train_here(tmp_path, *SERIAL, "env=toy_target", "stop.batches=2")
    checkpoint = next(first.checkpoints.iterdir())
    words = ("env=toy_target", "stop.batches=4", "run.name=child", "learning.gamma=0.5")
    _, folder = train_here(tmp_path, *SERIAL, *words, restore=checkpoint)
    text = (folder.path / "report.html").read_text(encoding="utf-8")
    assert f"Started from <code>{checkpoint}</code>" in text
    assert re.search(r">learning\.gamma</td><td[^>]*>[^<]+</td><td[^>]*>0\.5</td>", text)


def test_evaluations_and_videos_are_shown(copy: Path) -> None:
    (copy / "eval").mkdir(exist_ok=True)
    score = {"frames": 1000, "mean": 7.25, "standard_error": 0.5, "median": 7, "episodes": 10, "random": {"mean": 2.5}}
    (copy / "eval" / "newest.json").write_text(json.dumps(score))
    rows = [{"frames": k, "eval/return": float(k)} for k in (10, 20)]
    (copy / "eval" / "training.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (copy / "videos").mkdir()
    (copy / "videos" / "small.mp4").write_bytes(b"12345")
    (copy / "videos" / "large.mp4").write_bytes(bytes(FILE_BYTES + 1))
    text = page_of(copy)
    assert ">7.25<" in text
    assert 'aria-label="Evaluation return"' in text
    assert ">2.5<" in text
    assert text.count("<video ") == 1
    assert "data:video/mp4;base64,MTIzNDU=" in text
    assert '<a href="videos/large.mp4">' in text


@pytest.mark.parametrize("name", ["videos/x.mp4", "config.yaml", "log.txt", "eval/one.json", "metrics.jsonl"])
def test_files_from_elsewhere_are_not_shown(copy: Path, name: str) -> None:
    """A run folder of somebody else's may hold links to files that are nobody's business."""
    secret = copy.parent / "secret"
    secret.write_text('{"mean": 1, "frames": 1, "x": " ERROR   the password"}\n')
    (copy / name).unlink(missing_ok=True)
    (copy / name).parent.mkdir(exist_ok=True)
    (copy / name).symlink_to(secret)
    text = page_of(copy)
    assert "it is a link that leads out of" in text
    assert "the password" not in text
    assert "data:video" not in text


def test_what_is_nested_absurdly_deep_is_named(copy: Path) -> None:
    (copy / "diary.json").write_text("[" * 5000 + "]" * 5000)
    assert "diary.json: not JSON (nested more than 64 deep)" in page_of(copy)


def test_damaged_files_are_named_and_the_rest_is_shown(copy: Path) -> None:
    (copy / "diary.json").write_text("{")
    (copy / "state.json").write_text("[]")
    with open(copy / "metrics.jsonl", "a") as file:
        file.write("nonsense\n")
    text = page_of(copy)
    assert "diary.json: not JSON" in text
    assert "metrics.jsonl, line" in text
    assert "There is no diary" in text
    assert "config.yaml" in text


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("state.json", {"state": "failed", "frames": "many"}),
        ("diary.json", {"sessions": "none"}),
        ("eval/other.json", {"mean": 1.0, "frames": 3, "random": 4}),
    ],
)
def test_files_of_another_make_cost_one_section_only(copy: Path, file: str, content: object) -> None:
    (copy / file).parent.mkdir(exist_ok=True)
    (copy / file).write_text(json.dumps(content))
    (copy / "gone.mp4").symlink_to(copy / "nowhere.mp4")
    text = page_of(copy)
    assert text.count("damaged or of another version") == 1
    assert "config.yaml" in text
    assert "gone.mp4" not in text


def test_a_run_that_has_written_nothing_yet(copy: Path) -> None:
    for name in ("metrics.jsonl", "state.json", "log.txt", "data_report.json", "data_report.html"):
        (copy / name).unlink()
    text = page_of(copy)
    assert "No episode has ended" in text
    assert '<span class="unknown">unknown</span>' in text


def test_metrics_that_are_no_numbers(copy: Path) -> None:
    rows = [{"frames": k, "time": 0.0, "episode/return": None, "learn/kl": None if k else 0.5} for k in range(3)]
    (copy / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert "No episode has ended" in page_of(copy)


def test_a_folder_that_is_no_run(tmp_path: Path) -> None:
    with pytest.raises(RunFolderError, match="not a run"):
        read_run(tmp_path)


def test_it_can_be_written_elsewhere(copy: Path, tmp_path: Path) -> None:
    assert write_run_report(copy, tmp_path / "page.html").read_text().startswith("<!DOCTYPE html>")
    with pytest.raises(RunFolderError, match="cannot be written"):
        write_run_report(copy, tmp_path / "page.html" / "page.html")


def test_a_page_of_another_kind_stays(copy: Path) -> None:
    (copy / "report.html").write_text(document("comparison", "mine"))
    assert write_run_report(copy) == copy / "report-run.html"
    assert "mine" in (copy / "report.html").read_text()
    with RunFolder.create(copy, "overwrite"):  # a page of ours is nothing foreign
        assert not (copy / "report-run.html").exists()


@pytest.mark.parametrize(
    ("settings", "kind"),
    [
        *((TrainConfig(), "online"), (OfflineConfig(), "offline"), (WorldConfig(), "world"), (VaeConfig(), "encoder")),
        *((DynamicsSettings(), "dynamics"), (ControllerSettings(), "controller")),
    ],
)
def test_saved_settings_tell_what_kind_of_run_it_is(settings: object, kind: str) -> None:
    assert run_kind(to_dict(settings)) == kind


def test_long_curves_are_thinned() -> None:
    points = [(float(k), float(k % 2)) for k in range(10_001)]
    few = thinned(points, 100)
    assert len(few) <= 101
    assert few[-1] == points[-1]
    assert all(0.4 < y < 0.6 for _, y in few[:-2])
    assert [x for x, _ in few] == sorted(x for x, _ in few)
    assert thinned(points[:50], 100) == points[:50]
