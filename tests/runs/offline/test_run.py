"""Offline trainings from the store to the table, on toys with a known answer."""

import re
import shutil
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from offlining import hand_episode, hand_store, skilled_store
from running import train_here, unexplained

from rollmill.core import run_folder
from rollmill.core.checkpoints import Checkpoints
from rollmill.core.config.load import load_config
from rollmill.core.errors import CheckpointError, ConfigError, RunFolderLost, StoreError
from rollmill.core.run_folder import RunFolder
from rollmill.core.tree_file import load_tree, save_tree
from rollmill.launch.history import history
from rollmill.monitor.jsonl import read_jsonl
from rollmill.offline.fit import PolicyFitter
from rollmill.reports.html.document import kind_of
from rollmill.reports.run.report import write_run_report
from rollmill.reports.run.results import Results, is_monotone
from rollmill.runs.checkpoints.export import export_policy
from rollmill.runs.checkpoints.saved import export_checkpoint
from rollmill.runs.collect.options import CollectOptions
from rollmill.runs.collect.run import collect
from rollmill.runs.evaluate.options import EvalOptions
from rollmill.runs.evaluate.results import comparison
from rollmill.runs.evaluate.run import evaluate_all
from rollmill.runs.evaluate.setup import EvalSetup
from rollmill.runs.lifecycle import Request
from rollmill.runs.offline.run import OfflineOutcome, OfflineRun, train_offline
from rollmill.runs.policies.find import find_checkpoints
from rollmill.runs.policies.offline import load_network
from rollmill.runs.settings.offline import OfflineConfig
from rollmill.store.reader import Store

SMALL = (
    "model.context=4",
    "model.size=16",
    "model.layers=1",
    "model.mlp=[16]",
    "model.dropout=0.0",
    "fit.batch_size=8",
    "fit.steps=6",
    "fit.warmup_steps=1",
    "fit.threads=1",
    "evaluation.episodes=2",
    "evaluation.final_episodes=4",
    "evaluation.workers=1",
    "evaluation.envs=4",
    "report.tensorboard=false",
    "checkpoints.min_free_mb=1",
)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return skilled_store(tmp_path_factory.mktemp("skilled") / "store", 300).path


def config_of(folder: Path, store: Path, *words: str) -> OfflineConfig:
    place = [f"run.dir={folder}", "run.experiment=x", f"store={store}"]
    return load_config(OfflineConfig, [], [*place, *SMALL, *words])


def run(folder: Path, store: Path, *words: str, **request: Any) -> OfflineOutcome:
    return train_offline(config_of(folder, store, *words), Request(command=("test",), console="off", **request))


LEARN = (
    "fit.steps=300",
    "fit.batch_size=32",
    "fit.learning_rate=3e-3",
    "fit.warmup_steps=20",
    "model.size=24",
    "model.context=10",
    "evaluation.final_episodes=40",
    "evaluation.envs=40",
    "data.validation=0.1",
)


@pytest.fixture(scope="module")
def learnt(tmp_path_factory: pytest.TempPathFactory, store: Path) -> dict[str, OfflineOutcome]:
    """A Decision Transformer and a clone of the same mixed data."""
    folder = tmp_path_factory.mktemp("runs")
    dt = run(folder, store, "run.name=dt", "evaluation.targets=[1, 4, 7, 10]", *LEARN)
    bc = run(folder, store, "run.name=bc", "algorithm=bc", "evaluation.random=false", *LEARN, "fit.steps=80")
    return {"dt": dt, "bc": bc}


def test_every_metric_is_explained(learnt: dict[str, OfflineOutcome]) -> None:
    assert [unexplained(outcome.folder / "metrics.jsonl") for outcome in learnt.values()] == [set(), set()]


def rows_of(outcome: OfflineOutcome, policy: str) -> list[Any]:
    assert outcome.results is not None
    return [row for row in outcome.results.rows if row.policy == policy]


def test_asking_for_more_brings_more_and_beats_the_data_and_cloning(learnt: dict[str, OfflineOutcome]) -> None:
    """The known answer of the toy: the share of right steps is what is asked for, up to all of them."""
    dt = rows_of(learnt["dt"], "dt")
    assert [row.target for row in dt] == [1, 4, 7, 10]
    assert is_monotone(dt)
    data, bc = rows_of(learnt["dt"], "data")[0], rows_of(learnt["bc"], "bc")[0]
    assert dt[-1].mean > max(data.mean, bc.mean) + 2
    assert dt[0].mean < bc.mean < dt[-1].mean
    assert abs(bc.mean - data.mean) < 1.5  # cloning gives what is in the data


def test_the_folder_of_a_run_holds_everything(learnt: dict[str, OfflineOutcome]) -> None:
    folder = RunFolder(learnt["dt"].folder)
    state = folder.read_state()
    assert state is not None
    assert state["state"] == "finished"
    rows = read_jsonl(folder.metrics)
    assert {"learn/loss", "validation/loss", "validation/accuracy", "eval/return"} <= rows[-1].keys()
    page = (folder.path / "report.html").read_text()
    for title in ("What it is worth", "Asked for and achieved", "Curves", "Checkpoints", "Where it comes from"):
        assert f"<h2>{title}</h2>" in page
    assert re.search(r'<h3>Loss</h3><svg .*?class="line c0".*?class="line c1"', page), "training and held out"
    assert "0 episodes" not in page
    assert "training steps" not in page
    assert (folder.path / "eval" / "table.md").read_text().count("| dt |") == 4
    assert (folder.path / "eval" / "results.json").is_file()


def test_the_page_is_made_again_from_the_saved_results(learnt: dict[str, OfflineOutcome], tmp_path: Path) -> None:
    copy = Path(shutil.copytree(learnt["dt"].folder, tmp_path / learnt["dt"].folder.name))
    before = (copy / "report.html").read_text()
    (copy / "report.html").unlink()
    assert write_run_report(copy) == copy / "report.html"
    after = (copy / "report.html").read_text().replace(str(copy), str(learnt["dt"].folder))
    assert re.sub(r"Made [^<]*<", "", after) == re.sub(r"Made [^<]*<", "", before)


def test_a_run_that_was_not_evaluated_has_a_page_with_its_losses(store: Path, tmp_path: Path) -> None:
    outcome = run(tmp_path, store, "evaluation.episodes=0")
    page = (outcome.folder / "report.html").read_text()
    assert kind_of(outcome.folder / "report.html") == "offline"
    assert f"It was not evaluated in its environment; rollmill eval {outcome.folder} does that." in page
    assert "<h3>Loss</h3><svg" in page
    learnt_from = re.search(r"<b>(\d+)</b><span>episodes learnt from, ([\d,]+) steps", page)
    assert learnt_from is not None
    assert int(learnt_from[2].replace(",", "")) == 10 * int(learnt_from[1]), "episodes of ten steps"


def test_a_run_that_failed_has_a_page(store: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StoreError):
        run(tmp_path, store, "evaluation.episodes=0", "run.name=a", f"data.cache={tmp_path / 'file'}")
    assert '<span class="bad">failed</span>' in (tmp_path / "x" / "a" / "report.html").read_text()


# -------------------------------------------------------------------------------------------- held-out loss


def overfit(folder: Path, *words: str, **request: Any) -> OfflineOutcome:
    """Sixteen episodes of chance, learnt by heart: held-out loss falls a little and then rises steeply."""
    few = skilled_store(folder / "few", 16).path if not (folder / "few").exists() else folder / "few"
    more = ("data.validation=0.5", "fit.learning_rate=1e-2", "fit.batch_size=32", "model.size=32", "fit.every_steps=5")
    return run(folder, few, "fit.steps=200", *more, "evaluation.episodes=0", *words, **request)


@pytest.fixture(scope="module")
def overfitted(tmp_path_factory: pytest.TempPathFactory) -> OfflineOutcome:
    words = ("fit.patience=0", "evaluation.episodes=2", "evaluation.targets=[2, 8]")
    return overfit(tmp_path_factory.mktemp("overfitted"), *words)


def losses_of(outcome: OfflineOutcome) -> dict[int, float]:
    return {row["step"]: row["validation/loss"] for row in read_jsonl(RunFolder(outcome.folder).metrics)}


def test_the_weights_with_the_lowest_held_out_loss_act(overfitted: OfflineOutcome) -> None:
    outcome = overfitted
    losses = losses_of(outcome)
    best = min(losses, key=lambda step: losses[step])
    assert best < 100 < outcome.steps == 200, "the fit goes beyond it"
    assert outcome.weights == f"weights of update {best} of 200, where held-out loss was lowest"
    log = RunFolder(outcome.folder).log.read_text()
    assert log.count(f"held-out loss has risen since update {best} ") == 1
    page = (outcome.folder / "report.html").read_text()
    assert f"Held-out loss has risen since update {best}" in page
    loaded = Checkpoints(RunFolder(outcome.folder).checkpoints).load_newest()
    config = config_of(outcome.folder, outcome.folder, "model.size=32")
    chosen, last = (load_network(loaded, config, torch.device("cpu"), last=last) for last in (False, True))
    for name, weights in loaded.state["held_out"]["weights"].items():
        np.testing.assert_array_equal(chosen.state_dict()[name], weights)
        np.testing.assert_array_equal(last.state_dict()[name], loaded.state["fit"]["model"][name])
    assert any((chosen.state_dict()[name] != weights).any() for name, weights in last.state_dict().items())


def test_where_held_out_loss_has_risen_the_last_weights_are_evaluated_too(overfitted: OfflineOutcome) -> None:
    """The lowest loss is not always the best play; whoever reads the table can see it."""
    outcome = overfitted
    assert [row.target for row in rows_of(outcome, "dt")] == [row.target for row in rows_of(outcome, "dt, last")]
    assert rows_of(outcome, "dt") != [replace(row, policy="dt") for row in rows_of(outcome, "dt, last")]
    assert outcome.results is not None
    assert outcome.results.notes[1] == "dt, last: weights of update 200 of 200, the last"
    assert outcome.metrics["eval/return"] == max(row.mean for row in rows_of(outcome, "dt"))


def test_patience_ends_the_fit(tmp_path: Path) -> None:
    outcome = overfit(tmp_path, "fit.patience=4")
    losses = losses_of(outcome)
    best = min(losses, key=lambda step: losses[step])
    assert outcome.steps == max(losses) == best + 4 * 5
    assert outcome.state == "finished"
    assert outcome.reason.startswith("held-out loss has not fallen for 4 validations (fit.patience; lowest: ")
    again = overfit(tmp_path, "fit.patience=4", mode="resume")
    assert again.steps == outcome.steps, "a resumed run remembers"
    assert overfit(tmp_path, "fit.patience=0", "fit.steps=100", mode="resume").steps == 100, "unless told to go on"


def test_an_evaluation_takes_the_best_weights_unless_asked_for_the_last(overfitted: OfflineOutcome) -> None:
    outcome = overfitted
    played = {}
    for last in (False, True):
        results = compare([outcome.folder], EvalOptions(targets=(5.0,), episodes=20, workers=1, envs=4, last=last))
        played[last] = results
    best = min(losses_of(outcome), key=losses_of(outcome).__getitem__)
    name = outcome.folder.name
    (note,) = played[False].notes
    assert note == (
        f"{name}: weights of update {best} of 200, where held-out loss was lowest (--last plays those of the end)"
    )
    assert played[True].notes == [f"{name}: weights of update 200 of 200, the last"]
    assert played[False].rows != played[True].rows


def test_an_exported_checkpoint_has_the_weights_that_act_and_nothing_else(tmp_path: Path) -> None:
    outcome = overfit(tmp_path, "fit.patience=0", "evaluation.targets=[5]")
    file = tmp_path / "small.ckpt"
    taken = export_checkpoint(outcome.folder, file, best=False, model=None, overwrite=False)
    options = EvalOptions(targets=(5.0,), episodes=20, workers=1, envs=4)
    whole, small = compare([outcome.folder], options), compare([file], options)
    assert [replace(row, policy="") for row in small.rows] == [replace(row, policy="") for row in whole.rows]
    assert file.stat().st_size < taken.stat().st_size / 3, "neither optimizer nor two sets of weights"
    with pytest.raises(CheckpointError, match="field fit"):
        overfit(tmp_path, "run.name=again", restore=file)


def test_checkpoints_of_version_0_1_have_the_last_weights_only(store: Path, tmp_path: Path) -> None:
    outcome = run(tmp_path, store, "evaluation.episodes=0", "evaluation.targets=[5]")
    path = Checkpoints(RunFolder(outcome.folder).checkpoints).newest()
    assert path is not None
    content = load_tree(path.path)
    del content["state"]["held_out"]
    save_tree(path.path, content)
    results = compare([outcome.folder], EvalOptions(targets=(5.0,), episodes=2, workers=1, envs=2))
    assert results.notes == [f"{outcome.folder.name}: weights of update 6 of 6, the last"]
    assert run(tmp_path, store, "evaluation.episodes=0", "fit.steps=8", mode="resume").steps == 8


def test_nothing_held_out_means_the_last_weights(store: Path, tmp_path: Path) -> None:
    outcome = run(tmp_path, store, "evaluation.episodes=0", "data.validation=0.0")
    assert outcome.weights == "weights of update 6 of 6, the last"


def test_it_is_told_how_far_fit_and_evaluation_are(store: Path, tmp_path: Path) -> None:
    words = ("fit.steps=40", "fit.every_steps=1000", "report.console_seconds=0", "evaluation.targets=[2, 8]")
    config = config_of(tmp_path, store, *words)
    train_offline(config, Request(command=("test",), console="plain"))
    log = RunFolder(config.folder).log.read_text()
    told = re.findall(r" (\d+) of 40 updates \(\d+ %\)", log)
    assert [int(n) for n in told[:40]] == list(range(1, 41)), "though the only row of metrics comes at the end"
    assert re.search(r"evaluating dt: 0 of 8 episodes", log)
    assert re.search(r"evaluating random: 4 of 4 episodes", log)


def compare(runs: list[Path], options: EvalOptions) -> Results:
    return comparison(evaluate_all(runs, options))


def test_saved_policies_are_judged_side_by_side(learnt: dict[str, OfflineOutcome], tmp_path: Path) -> None:
    options = EvalOptions(targets=(2.0, 10.0), episodes=8, workers=1, envs=4, random=True)
    results = compare([learnt["dt"].folder, learnt["bc"].folder], options)
    assert [(row.policy, row.target) for row in results.rows] == [
        ("dt", 2.0),
        ("dt", 10.0),
        ("bc", None),
        ("random", None),
    ]
    assert results.rows[1].mean > results.rows[0].mean
    again = compare([learnt["dt"].folder], EvalOptions(targets=(2.0, 10.0), episodes=8, workers=1, envs=4))
    assert [row.mean for row in again.rows] == [
        row.mean for row in results.rows[:2]
    ]  # the same seed, the same episodes


def test_policies_of_different_environments_have_no_table_together(store: Path, tmp_path: Path) -> None:
    one = run(tmp_path, store, "evaluation.episodes=0", "run.name=a")
    other = run(tmp_path, store, "evaluation.episodes=0", "run.name=b", "env=CartPole-v1")
    with pytest.raises(ConfigError, match="b plays CartPole-v1, a toy_target"):
        compare([one.folder, other.folder], EvalOptions(targets=(1.0,), report=tmp_path / "page.html"))


def test_a_policy_is_judged_without_its_store(tmp_path: Path) -> None:
    gone = skilled_store(tmp_path / "store", 20).path
    outcome = run(tmp_path, gone, "evaluation.episodes=0")
    shutil.rmtree(gone)
    results = compare([outcome.folder], EvalOptions(targets=(1.0,), episodes=1, workers=1, envs=1))
    assert (results.title, results.rows[0].episodes) == ("toy_target", 1)


def test_the_run_that_made_the_data_plays_beside_it(store: Path, tmp_path: Path) -> None:
    _, maker = train_here(tmp_path, "env=toy_target", "sampling.mode=serial", "stop.batches=1", "run.name=maker")
    outcome = run(tmp_path, store, f"evaluation.behaviour={maker.path}")
    assert outcome.results is not None
    assert rows_of(outcome, "behaviour")[0].episodes == 4
    masked, _ = train_here(tmp_path, "env=toy_masked", "sampling.mode=serial", "stop.batches=1", "run.name=other")
    with pytest.raises(ConfigError, match="it cannot play in"):
        run(tmp_path, store, f"evaluation.behaviour={masked.folder}", "run.name=b")


def test_a_resumed_run_goes_on_where_it_was(store: Path, tmp_path: Path) -> None:
    words = ("evaluation.episodes=0", "fit.every_steps=1")
    straight = run(tmp_path, store, *words, "run.name=a")
    run(tmp_path, store, *words, "run.name=b", "fit.steps=6", "fit.seconds=1e-9")  # ends after one step
    resumed = run(tmp_path, store, *words, "run.name=b", "fit.steps=6", mode="resume")
    assert resumed.steps == straight.steps == 6
    folders = [RunFolder(outcome.folder) for outcome in (straight, resumed)]
    assert [row["step"] for row in read_jsonl(folders[1].metrics)] == [1, 2, 3, 4, 5, 6]
    ends = [Checkpoints(folder.checkpoints).load_newest().state["fit"] for folder in folders]
    assert [end["position"] for end in ends] == [6, 6]
    for name, weights in ends[0]["model"].items():
        np.testing.assert_array_equal(weights, ends[1]["model"][name], err_msg=name)


def test_another_network_is_refused_before_the_folder_is_touched(store: Path, tmp_path: Path) -> None:
    words = ("evaluation.episodes=0", "run.name=a")
    outcome = run(tmp_path, store, *words, "fit.steps=2")
    with pytest.raises(ConfigError, match=r"^model\.size 16 -> 32: the shape of the network cannot change"):
        run(tmp_path, store, *words, "model.size=32", "model.dropout=0.2", mode="resume")
    folder = RunFolder(outcome.folder)
    assert "size: 16" in folder.config.read_text()
    state = folder.read_state() or {}
    assert (state["state"], state["step"]) == ("finished", 2)
    assert len(history(outcome.folder)) == 1


def test_a_run_says_which_checkpoint_it_was_born_from(store: Path, tmp_path: Path) -> None:
    words = ("evaluation.episodes=0", "evaluation.targets=[3]")
    parent = Checkpoints(RunFolder(run(tmp_path, store, *words, "run.name=a").folder).checkpoints).newest()
    assert parent is not None
    child = run(tmp_path, store, *words, "run.name=b", "fit.steps=7", restore=parent.path)
    (entry,) = history(child.folder)
    assert entry.parent == f"{parent.path} (6 updates)"
    assert list(entry.changes) == ["run.name", "fit.steps"]
    state = Checkpoints(RunFolder(child.folder).checkpoints).load_newest().state
    assert state["targets"] == [3], "what was asked for is kept for a later evaluation"


def test_a_run_that_cannot_be_built_is_recorded_as_failed(store: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StoreError, match="cannot be written"):
        run(tmp_path, store, "evaluation.episodes=0", "run.name=a", f"data.cache={tmp_path / 'file'}")
    state = RunFolder(tmp_path / "x" / "a").read_state() or {}
    assert state["state"] == "failed"
    assert history(tmp_path / "x" / "a")[0].how.startswith("failed: StoreError")
    again = run(tmp_path, store, "evaluation.episodes=0", "run.name=a")  # its name is free
    assert again.state == "finished"
    text = RunFolder(again.folder).log.read_text()
    assert text.index("failed: StoreError") < text.index("left by a start that ended before its first training step")


def test_a_run_that_was_killed_early_goes_on(store: Path, tmp_path: Path) -> None:
    words = ("evaluation.episodes=0", "fit.every_steps=1")
    straight = RunFolder(run(tmp_path, store, *words, "run.name=a").folder)
    killed = RunFolder(run(tmp_path, store, *words, "run.name=b", "fit.seconds=1e-9").folder)
    untrained, last = sorted(killed.checkpoints.iterdir())
    assert untrained.name == "updates-000000000000.ckpt"
    last.unlink()
    run(tmp_path, store, *words, "run.name=b", mode="resume")
    assert [row["step"] for row in read_jsonl(killed.metrics)] == [1, 2, 3, 4, 5, 6]
    ends = [Checkpoints(folder.checkpoints).load_newest().state["fit"] for folder in (straight, killed)]
    for name, weights in ends[0]["model"].items():
        np.testing.assert_array_equal(weights, ends[1]["model"][name], err_msg=name)


@pytest.mark.parametrize("moment", ["_limit", "judge", "write_results"])
def test_a_run_whose_folder_is_removed_fails(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    plain = getattr(OfflineRun, moment)

    def removing(self: OfflineRun, *args: Any) -> Any:
        if self.step >= 2 and self.folder.path.exists():
            shutil.rmtree(self.folder.path)
        return plain(self, *args)

    monkeypatch.setattr(run_folder, "LOOK_SECONDS", 0.0)
    monkeypatch.setattr(OfflineRun, moment, removing)
    with pytest.raises(RunFolderLost, match="a: the folder of the run is lost"):
        run(tmp_path, store, "run.name=a")
    assert not list((tmp_path / "x").iterdir())


def test_a_signal_ends_the_fit_and_leaves_a_checkpoint(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = PolicyFitter.train_step

    def train_step(self: PolicyFitter) -> None:
        plain(self)
        if self.step == 2:
            signal.raise_signal(signal.SIGTERM)

    monkeypatch.setattr(PolicyFitter, "train_step", train_step)
    outcome = run(tmp_path, store, "evaluation.episodes=0")
    assert (outcome.state, outcome.steps, outcome.exit_code) == ("interrupted", 2, 143)
    assert Checkpoints(RunFolder(outcome.folder).checkpoints).load_newest().step == 2


def test_a_signal_while_it_is_judged_is_recorded(store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(EvalSetup, "play", lambda *_, **__: signal.raise_signal(signal.SIGTERM))
    outcome = run(tmp_path, store)
    assert (outcome.state, outcome.steps, outcome.exit_code) == ("interrupted", 6, 143)
    assert (RunFolder(outcome.folder).read_state() or {})["reason"] == "SIGTERM received while it was judged"


@pytest.mark.parametrize(
    ("env", "words"),
    [("toy_reach", ()), ("toy_masked", ()), ("toy_image", ("model.fc=[16]", "report.videos=2")), ("toy_agents", ())],
)
def test_every_kind_of_observation_and_action_goes_all_the_way(
    tmp_path: Path, env: str, words: tuple[str, ...]
) -> None:
    """Continuous actions, action masks, images, several agents: recorded, learnt from, judged."""
    _, maker = train_here(
        tmp_path,
        f"env={env}",
        "sampling.mode=serial",
        "stop.batches=4",
        "recording=all",
        "sampling.rollout=16",
        "learning.batch_size=64",
    )
    outcome = run(tmp_path, maker.data, "fit.steps=3", "evaluation.targets=[5]", "run.name=dt", *words)
    (row,) = rows_of(outcome, "dt")
    assert row.episodes >= 4
    videos = list(RunFolder(outcome.folder).videos.iterdir()) if "report.videos=2" in words else []
    assert [video.suffix for video in videos] == [".mp4"] * len(videos)
    assert (outcome.folder / "report.html").read_text().count("<video") == len(videos) == ("report.videos=2" in words)


# -------------------------------------------------------------------------------------- before training starts


def test_nothing_is_left_behind_by_what_is_refused(store: Path, tmp_path: Path) -> None:
    bad = hand_store(tmp_path / "nan", [hand_episode(0, [float("nan")])]).path
    for words, error, message in (
        ((str(bad),), StoreError, "rewards that are not finite"),
        ((str(tmp_path / "none"),), StoreError, "is not a store"),
        ((str(store), "env=toy_masked"), ConfigError, "has no observation 'worth'"),
        ((str(store), "env=toy_target", "env.args.choices=5"), ConfigError, "'obs' is float32"),
        ((str(store), "evaluation.behaviour=no/such/run"), CheckpointError, "neither a checkpoint nor a run folder"),
        ((str(store), "report.videos=1"), ConfigError, "renders no RGB images"),
        ((str(store), "fit.device=cuda:77"), ConfigError, "fit.device=cuda:77"),
    ):
        with pytest.raises(error, match=message):
            run(tmp_path / "runs", Path(words[0]), *words[1:])
    assert not (tmp_path / "runs").exists()


def test_a_run_does_not_delete_what_it_learns_from(tmp_path: Path) -> None:
    inside = skilled_store(tmp_path / "x" / "agent" / "data", 3).path
    (tmp_path / "x" / "agent" / "config.yaml").write_text("run: {}\n")
    with pytest.raises(ConfigError, match="lies in the folder of this run"):
        run(tmp_path, inside, "run.name=agent", "evaluation.episodes=0", mode="overwrite")
    assert len(Store(inside)) == 3


def test_a_store_of_an_unknown_environment_needs_a_name_or_no_evaluation(tmp_path: Path) -> None:
    foreign = hand_store(tmp_path / "s", [hand_episode(k, [1.0, 2.0]) for k in range(3)]).path
    with pytest.raises(ConfigError, match=r"names the environment 'hand'.*evaluation\.episodes=0"):
        run(tmp_path, foreign)
    assert run(tmp_path, foreign, "evaluation.episodes=0", "data.validation=0.0").steps == 6


def test_a_checkpoint_of_other_data_or_of_an_online_run_is_refused(store: Path, tmp_path: Path) -> None:
    outcome = run(tmp_path, store, "evaluation.episodes=0", "run.name=a")
    other = skilled_store(tmp_path / "other", 30, seed=5).path
    with pytest.raises(CheckpointError, match="was fitted to other data"):
        run(tmp_path, other, "evaluation.episodes=0", "run.name=a", mode="resume")
    with pytest.raises(ConfigError, match="give --targets"):
        compare([outcome.folder], EvalOptions())
    _, maker = train_here(tmp_path, "env=toy_target", "sampling.mode=serial", "stop.batches=1", "run.name=maker")
    with pytest.raises(CheckpointError, match="not a checkpoint of an offline training"):
        run(tmp_path, store, "run.name=b", restore=find_checkpoints(maker.path)[0])
    for options, message in (
        (EvalOptions(episodes=0), "--episodes"),
        (EvalOptions(report=Path("x.txt")), "ends in .html"),
        (EvalOptions(targets=(float("nan"),)), "finite"),
        (EvalOptions(targets=(1.0,), device="cuda:77"), "--device=cuda:77"),
    ):
        with pytest.raises(ConfigError, match=message):
            compare([outcome.folder], options)
    with pytest.raises(ConfigError, match="what is to be evaluated"):
        compare([], EvalOptions())
    with pytest.raises(ConfigError, match="none of these policies can be asked for a return"):
        compare([maker.path], EvalOptions(targets=(1.0,)))


# -- IQL and TD3+BC ---------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def pendulum(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Episodes of Pendulum at random."""
    folder = tmp_path_factory.mktemp("pendulum")
    collect(
        CollectOptions(out=folder / "store", episodes=6, seed=0), overrides=("env=Pendulum-v1", "sampling.workers=1")
    )
    return folder / "store"


@pytest.mark.parametrize("algorithm", ["iql", "td3bc"])
def test_value_based_policies_are_judged_saved_and_exported_like_others(
    tmp_path: Path, pendulum: Path, algorithm: str
) -> None:
    words = (f"algorithm={algorithm}", "run.name=it", "evaluation.every_steps=3", "evaluation.deterministic=true")
    outcome = run(tmp_path, pendulum, *words, "data.validation=0.2")
    assert outcome.results is not None
    assert [row.policy for row in outcome.results.rows][:2] == [algorithm, "random"]
    assert {"eval/return", "validation/error", "validation/td_error", "learn/critic_loss"} <= outcome.metrics.keys()
    assert "the last" in outcome.weights, "no held-out figure chooses"
    assert unexplained(outcome.folder / "metrics.jsonl") == set()
    again = evaluate_all([str(outcome.folder)], EvalOptions(episodes=4, envs=4, workers=1, seed=1))
    mean = float(np.mean([row.episode_return for row in again[0].policy.rows]))
    assert mean == pytest.approx(outcome.results.rows[0].mean, rel=1e-5)
    pytest.importorskip("safetensors")
    done = export_policy(outcome.folder, "safetensors", tmp_path / "p.safetensors")
    assert done.nbytes > 0
    longer = run(tmp_path, pendulum, *words, "data.validation=0.2", "fit.steps=8", mode="resume")
    assert longer.steps == 8


def test_value_based_policies_are_for_continuous_actions(tmp_path: Path, store: Path) -> None:
    with pytest.raises(ConfigError, match="are for continuous actions"):
        run(tmp_path, store, "algorithm=iql")


def test_a_misspelt_best_metric_is_said_once(store: Path, tmp_path: Path) -> None:
    words = ("algorithm=bc", "evaluation.episodes=0", "checkpoints.best_metric=-validation/los", "data.validation=0.2")
    outcome = run(tmp_path, store, *words)
    assert RunFolder(outcome.folder).log.read_text().count("did you mean 'validation/loss'") == 1
