import json
import logging
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest
from image_stores import damage_images
from running import ROOT, Run, unexplained, wait_until
from world_stages import SMALL, world

from rollmill.core import run_kind
from rollmill.core.checkpoints import Checkpoints
from rollmill.core.config.load import load_config
from rollmill.core.config.shipped import FOLDER
from rollmill.core.errors import ConfigError, RunFolderError, RunFolderLost, StoreError
from rollmill.core.run_kind import FOLDERS, STAGES, StagePlace
from rollmill.core.tree_file import load_tree
from rollmill.reports.html.document import kind_of
from rollmill.reports.run.report import write_run_report
from rollmill.reports.run.world import read_records
from rollmill.runs.settings.world import CollectStage, WorldConfig
from rollmill.runs.world.panel import StagePanel, metrics_text
from rollmill.runs.world.stage import Record, Work
from rollmill.runs.world.stages import Collect, Dynamics
from rollmill.store.reader import Store


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which all stages have been run."""
    out = tmp_path_factory.mktemp("world") / "toy"
    outcome = world(out)
    assert outcome.state == "finished"
    assert dict(outcome.stages) == dict.fromkeys(STAGES, "done")
    return out


def test_every_metric_of_a_stage_is_explained(whole: Path) -> None:
    found = {path.parent.name: unexplained(path) for path in whole.glob("*/metrics.jsonl")}
    assert found == {"vae": set(), "dynamics": set(), "controller": set()}


def test_all_stages_leave_what_the_next_one_needs(whole: Path) -> None:
    with Store(whole / "raw") as raw, Store(whole / "latents") as latents:
        assert sorted(raw.table["policy"].tolist()) == ["random"] * 2 + ["random-controller"] * 4
        assert sorted(raw.table.uid.tolist()) == sorted(latents.table.uid.tolist())
        assert latents.schema["obs:mean"].shape == (3,)
    for file in ("vae/encoder.bin", "dynamics/dynamics.bin", "controller/controller.bin", "config.yaml", "log.txt"):
        assert (whole / file).is_file()
    page = (whole / "report.html").read_text()
    for heading in ("What it is worth", "Stages", "Reconstructions", "Dreams", "Controller", "Encoder"):
        assert f"<h2>{heading}</h2>" in page
    assert "data:video/mp4" in page
    record = json.loads((whole / "stages" / "encode.json").read_text())
    assert record["state"] == "done"
    assert record["inputs"].keys() == {"images", "encoder"}


@pytest.mark.parametrize("stage", ["", "vae", "dynamics", "controller"])
def test_its_pages_can_be_made_again(whole: Path, stage: str) -> None:
    """`rollmill report` of a world model, or of one stage, is that page and not one for an online run."""
    folder = whole / stage
    page = write_run_report(folder)
    assert page == folder / "report.html"
    text = page.read_text()
    assert kind_of(page) == {"": "world", "vae": "encoder"}.get(stage, stage)
    assert "training steps" not in text
    if not stage:
        assert "<h2>What it is worth</h2>" in text
        assert "data:video/mp4" in text, "the video is still there"
    else:
        assert f"<code>{folder}</code>" in text
        assert '<span class="good">finished</span>' in text
        assert "<summary>config.yaml</summary>" in text


def test_a_world_model_that_was_not_finished_has_a_page(tmp_path: Path) -> None:
    world(tmp_path / "w", until="collect")
    text = write_run_report(tmp_path / "w").read_text()
    assert "<h2>Stages</h2>" in text
    assert f"not done: {', '.join(name for name in FOLDERS if name != 'collect')}" in text
    assert "What it is worth" not in text


def test_a_record_that_is_damaged_costs_its_sections_only(whole: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(whole, tmp_path / "copy"))
    (folder / "stages" / "vae.json").write_text("{")
    text = write_run_report(folder).read_text()
    assert text.count("damaged or of another version") == 3, "how it stands, its worth, its stages"
    assert "<h2>Dreams</h2>" in text


def test_parts_of_ones_own_need_no_flag(tmp_path: Path) -> None:
    """The configuration is the user's, and it names them."""
    own = ROOT / "examples" / "own_world_model.py"
    words = (f"vae.encoder.custom={own}:Flat", f"dynamics.custom={own}:Gated", f"controller.custom={own}:TwoLayers")
    outcome = world(tmp_path / "w", *words, "vae.fit.steps=1", "dynamics.steps=1", "controller.generations=1")
    assert set(outcome.stages.values()) == {"done"}
    assert load_tree(tmp_path / "w" / "vae" / "encoder.bin")["kind"] == f"{own}:Flat"


def test_a_second_run_skips_everything(whole: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in whole.rglob("*.bin")}
    outcome = world(whole, "collect.workers=2", "encode.batch_size=3")  # how, not what
    assert set(outcome.stages.values()) == {"skipped"}
    assert outcome.results["collect"]["episodes"] == 6
    assert before == {path: path.stat().st_mtime_ns for path in whole.rglob("*.bin")}


def test_what_changed_is_run_again_with_all_that_depends_on_it(whole: Path, tmp_path: Path, caplog: Any) -> None:
    out = tmp_path / "copy"
    world(out, until="encode")
    caplog.set_level(logging.INFO, "rollmill")
    logging.getLogger("rollmill").addHandler(caplog.handler)
    try:
        more = ('collect.episodes={"random-controller": 5, random: 2}',)
        outcome = world(out, *more, until="encode")
        order = list(STAGES)
        assert {name for name in order if outcome.stages[name] == "done"} == {*order[: order.index("encode") + 1]}
        assert set(outcome.stages.values()) == {"done", "waiting"}
        assert "collect goes on: episodes.random-controller: 4 -> 5" in caplog.text
        assert "vae is run again: another images" in caplog.text
        with Store(out / "latents") as store:
            assert len(store) == 7
        outcome = world(out, *more, "vae.fit.learning_rate=0.002", until="encode")
        assert outcome.stages["collect"] == "skipped"
        assert "vae is run again: fit.learning_rate: 0.001 -> 0.002" in caplog.text
        assert "encode is run again: another encoder" in caplog.text
    finally:
        logging.getLogger("rollmill").removeHandler(caplog.handler)
    aside = [path.name.partition("-")[0] for path in (out / "aside").iterdir()]
    assert (aside.count("vae"), aside.count("latents"), aside.count("raw")) == (2, 2, 0), "what was made is not deleted"


@pytest.mark.parametrize("stage", ["collect", "vae", "encode", "dynamics"])
def test_a_pipeline_whose_folder_is_removed_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stage: str) -> None:
    def remove(self: StagePanel, *_: object) -> None:
        if self._stage == stage and (tmp_path / "w").exists():
            shutil.rmtree(tmp_path / "w")

    monkeypatch.setattr(StagePanel, "progress", remove)
    with pytest.raises(RunFolderLost, match="w: the folder of the run is lost"):
        world(tmp_path / "w", until="dynamics")
    assert not (tmp_path / "w").exists()


def test_a_killed_pipeline_goes_on_in_the_stage_it_was_in(tmp_path: Path, rollmill: Run) -> None:
    command = rollmill("world", "run", "--out", "w", *SMALL, "vae.fit.steps=1000000")
    checkpoints = Checkpoints(tmp_path / "w" / "vae" / "checkpoints")
    wait_until(lambda: checkpoints.newest() or command.process.poll() is not None, what="a checkpoint")
    command.send(signal.SIGKILL)
    command.wait()
    newest = checkpoints.newest()
    assert newest is not None, command.text
    record = json.loads((tmp_path / "w" / "stages" / "vae.json").read_text())
    assert record["state"] == "begun"
    outcome = world(tmp_path / "w", f"vae.fit.steps={newest.step + 2}", until="vae")
    assert (outcome.stages["collect"], outcome.stages["vae"]) == ("skipped", "done")
    assert f"({newest.step:,} updates)" in (tmp_path / "w" / "vae" / "log.txt").read_text()


def test_episodes_of_a_killed_collection_are_kept(tmp_path: Path, rollmill: Run) -> None:
    command = rollmill("world", "run", "--out", "w", *SMALL, "collect.episodes={random: 1000000}")
    wait_until(lambda: episodes(tmp_path / "w" / "raw") or command.process.poll() is not None, what="an episode")
    assert command.process.poll() is None, command.text
    command.send(signal.SIGKILL)
    command.wait()
    kept = episodes(tmp_path / "w" / "raw")
    assert kept, command.text
    outcome = world(tmp_path / "w", f"collect.episodes={{random: {len(kept) + 3}}}", until="encode")
    assert outcome.stages["collect"] == "done"
    now = episodes(tmp_path / "w" / "raw")
    assert set(kept) < set(now)
    # Episodes of a shard that was not closed are found when the store is next written to: there may be more.
    assert len(now) == len(set(now)) >= len(kept) + 3
    assert sorted(episodes(tmp_path / "w" / "latents")) == sorted(now)


def episodes(path: Path) -> list[int]:
    """Names of the whole episodes in a store; none where there is no store yet."""
    try:
        with Store(path) as store:
            return [int(uid) for uid in store.table.uid[~store.table["partial_end"]]]
    except StoreError:
        return []


@pytest.mark.parametrize(
    ("stage", "key", "more"),
    [("dynamics", "dynamics.steps", ("dynamics.save_seconds=0.01",)), ("controller", "controller.generations", ())],
)
def test_a_killed_search_or_fit_goes_on(
    tmp_path: Path, rollmill: Run, stage: str, key: str, more: tuple[str, ...]
) -> None:
    out = tmp_path / "w"
    command = rollmill("world", "run", "--out", "w", *SMALL, *more, f"{key}=1000000")
    checkpoints = Checkpoints(out / stage / "checkpoints")
    wait_until(lambda: checkpoints.newest() or command.process.poll() is not None, what="a checkpoint")
    assert command.process.poll() is None, command.text
    command.send(signal.SIGKILL)
    command.wait()
    newest = checkpoints.newest()
    assert newest is not None, command.text
    outcome = world(out, *more, f"{key}={newest.step + 2}", until=stage)
    assert {outcome.stages[name] for name in list(STAGES)[: list(STAGES).index(stage)]} == {"skipped"}
    assert outcome.stages[stage] == "done"
    assert outcome.results[stage][key.partition(".")[2]] == newest.step + 2
    assert not (out / "aside").exists()  # it did not begin anew
    assert newest.path.name in (out / "log.txt").read_text().partition("continuing from")[2]


def test_the_record_of_an_earlier_version_is_understood(whole: Path, tmp_path: Path) -> None:
    out = tmp_path / "copy"
    shutil.copytree(whole, out)
    path = out / "stages" / "controller.json"
    record = json.loads(path.read_text())
    del record["settings"]["shrink"]  # a setting that it did not know
    del record["settings"]["retrieval"]["horizon"]
    path.write_text(json.dumps(record))
    assert world(out).stages["controller"] == "skipped"


def test_shipped_configs_are_understood() -> None:
    paths = sorted(FOLDER.glob("*_world*.yaml"))
    assert paths
    for path in paths:
        config = load_config(WorldConfig, [path], ())
        assert config.controller.final_episodes >= 20


def test_a_corrupt_shard_stops_the_pipeline_and_is_named(tmp_path: Path) -> None:
    world(tmp_path / "w", until="vae")
    name = damage_images(tmp_path / "w" / "raw", 0)
    with pytest.raises(StoreError, match=name):
        world(tmp_path / "w")
    *before, stopped = read_records(tmp_path / "w").values()
    assert {record["state"] for record in before} == {"done"}
    assert stopped["state"] == "begun"


def test_a_damaged_record_is_an_error_that_says_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "w" / "stages").mkdir(parents=True)
    (tmp_path / "w" / "config.yaml").write_text("")
    (tmp_path / "w" / "stages" / "collect.json").write_text("{")
    with pytest.raises(RunFolderError, match="remove it, and the stage is run again"):
        world(tmp_path / "w")


def test_wrong_settings_are_refused_before_anything_is_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no_such_env"):
        world(tmp_path / "w", "env.id=no_such_env")
    with pytest.raises(ConfigError, match="expected random, smoothed-random, random-controller"):
        world(tmp_path / "w", "collect.episodes={magic: 3}")
    with pytest.raises(ConfigError, match="at least one policy"):
        load_config(WorldConfig, [], ["collect.episodes={random: 0}"])
    assert not (tmp_path / "w").exists()


def test_what_counts_as_a_change(tmp_path: Path) -> None:
    work = Work(WorldConfig(), tmp_path, lambda share, metrics: None)
    stage = Dynamics("dynamics", work)
    before = Record("done", {"steps": 5, "device": "cpu", "size": 3}, {"encoder": "a"})
    same = stage.changes(before, before.settings, before.inputs)
    assert not same.never
    assert not same.extends
    changed = stage.changes(before, {"steps": 9, "device": "cuda", "size": 4}, {"encoder": "b"})
    assert changed.extends == ["steps: 5 -> 9"]
    assert changed.never == ["size: 3 -> 4", "another encoder"]
    assert Collect("collect", work).changes(Record("done", {"env": {"mode": 1}}), {"env": {"mode": 2}}, {}).never


def test_a_stage_of_ones_own_is_one_class_and_one_line(
    whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(run_kind.STAGES, "count", StagePlace("counts", "own_stages:Count"))
    monkeypatch.setitem(run_kind.FOLDERS, "count", "counts")
    out = shutil.copytree(whole, tmp_path / "w")
    outcome = world(out, until="count")
    assert outcome.stages["count"] == "done"
    assert outcome.results["count"] == {"episodes": 6} == json.loads((out / "counts" / "count.json").read_text())
    assert world(out, until="count").stages["count"] == "skipped"
    assert read_records(out)["count"]["state"] == "done", "the page knows of it, too"


def test_the_panel_shows_every_stage() -> None:
    from rich.console import Console

    panel = StagePanel("world model: here", ["collect", "vae", "encode"], live=False)
    panel.end("collect", "skipped", "was done before", 12.0)
    panel.begin("vae")
    panel.progress(0.4, {"learn/loss": 12.3, "validation/pixel_error": 0.07, "time/seconds": 3.0})
    console = Console(width=100, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(panel.panel())
    text = console.export_text()
    for words in ("world model: here", "was done before", "running", "loss 12.30, pixel_error 0.0700", "waiting"):
        assert words in text
    panel.close()


def test_metrics_that_matter_come_first() -> None:
    assert metrics_text({"x/other": 1.0, "learn/loss": 2.0, "learn/kl": float("nan")}) == "loss 2"
    assert metrics_text({"x/other": 1.5}) == "other 1.500"


def test_stages_check_their_settings() -> None:
    with pytest.raises(ValueError, match="hold must be"):
        CollectStage(hold=0)
