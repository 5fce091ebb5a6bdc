"""The parts of the scripts in ``benchmarks/`` and ``tools/`` that figures depend on, without taking any time."""

from __future__ import annotations

import importlib
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch
from dreaming import line_model, open_line
from running import ROOT, load_tool
from storing import make_episode, small_schema

from rollmill.core.checkpoints import Checkpoints
from rollmill.store.episode import EpisodeInfo
from rollmill.store.writer import StoreWriter

Load = Callable[[str], ModuleType]


@pytest.fixture(scope="module")
def load() -> Iterator[Load]:
    """Import a script by its name, as it imports the others."""
    sys.path.insert(0, str(ROOT / "benchmarks"))
    try:
        yield importlib.import_module
    finally:
        sys.path.remove(str(ROOT / "benchmarks"))


# -- held_out.py -------------------------------------------------------------------------------------------


def test_held_out_figures_do_not_depend_on_the_objective_of_the_fit(load: Load, tmp_path: Path) -> None:
    """Weights that the objectives share say the same: nothing is hidden from a model that learnt by infilling."""
    held_out = load("held_out")
    small = {"sequence_length": 16, "batch_size": 16, "validation": 0.4}
    with open_line(tmp_path / "store") as store:
        plain, filled = (line_model(objective=objective, **small) for objective in ("autoregressive", "infilling"))
        one, two = (held_out.known(model, store, alone=4) for model in (plain, filled))
        assert one == two
        assert set(one) == {"latent", "reward", "done", "alone"}
        with torch.no_grad():
            filled.outcome_head.bias[1] += 3  # it now says that every step is the last one
        worse = held_out.known(filled, store, alone=4)
        assert worse["done"] > one["done"]
        assert {name for name in one if worse[name] != one[name]} == {"done"}
        with pytest.raises(SystemExit, match="too short"):
            held_out.known(plain, store, alone=16)


# -- games.py ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("random", "win_or_block", "past", "missed"),
    [
        (0.97, 0.7, {"model 0": 0.9, "model 1": 0.46}, ""),
        (0.96, 0.7, {"model 0": 0.9}, "random play"),
        (0.97, 0.69, {"model 0": 0.9}, "wins or blocks"),
        (0.97, 0.7, {"model 0": 0.44, "model 1": 0.9}, "hardest of 2 past selves"),
        (0.97, 0.7, {}, "hardest of 0 past selves"),
    ],
)
def test_connect_four_is_held_to_every_mark(
    load: Load, random: float, win_or_block: float, past: dict[str, float], missed: str
) -> None:
    marks, scripted = load("common").Marks(), {"random": random, "win_or_block": win_or_block, "two_plies": 0.1}
    load("games").judged("four", scripted, past, marks)
    assert len(marks.rows) == 3
    assert [missed in row["what"] for row in marks.rows if not row["met"]] == [True] * bool(missed)


def test_players_of_connect_four_win_block_and_look_ahead(load: Load) -> None:
    players, board = load("game_players"), np.zeros((6, 7, 2), bool)
    win_or_block, two_plies = players.WinOrBlock(None), players.TwoPlies(None)
    every = list(range(7))
    assert win_or_block.good(board, every) == two_plies.good(board, every) == every
    board[5, 1:4, 1] = board[4, 1:3, 0] = True  # the other one has three in the lowest row, 0 and 4 are free
    board[5, 0, 0] = True
    assert win_or_block.good(board, every) == two_plies.good(board, every) == [4]
    board[4, 3, 0] = True  # and so has the player, one row higher
    assert win_or_block.good(board, every) == two_plies.good(board, every) == [0], "to win comes first"
    board[:] = False
    board[4, 0:3, 1] = board[5, 0:3, 0] = True
    board[5, 2, :] = False, True  # who moves to 3 lets the other one complete the row above
    assert win_or_block.good(board, every) == every
    assert two_plies.good(board, every) == [0, 1, 2, 4, 5, 6]


# -- tools/house.py ----------------------------------------------------------------------------------------


def test_the_house_is_counted(tmp_path: Path) -> None:
    package = tmp_path / "src" / "rollmill"
    long = "def long():\n" + "    pass\n" * 60
    texts = {
        "__init__.py": "",
        "runs/__init__.py": "",
        "runs/one.py": "import os\nfrom rollmill.runs import (\n    two,\n)\n",
        "runs/two.py": "x = 1\n",
        "runs/three.py": "from rollmill.runs.two import x\nfrom rollmill.runs.four import long\n",
        "runs/four.py": long + "\n" * 340,
    }
    for name, text in texts.items():
        (package / name).parent.mkdir(parents=True, exist_ok=True)
        (package / name).write_text(text)
    assert list(load_tool("house").count(tmp_path).values()) == ["4", "408", "1.5", "1", "1", "1"]


# -- tools/walks.py ----------------------------------------------------------------------------------------


def test_a_walk_counts_the_files_that_a_command_enters(tmp_path: Path) -> None:
    walks = load_tool("walks")
    short, long = (walks.walk(ROOT, words, tmp_path) for words in (("envs",), ("config", "learning")))
    assert 3 < short < long
    with pytest.raises(SystemExit, match="no verb"):
        walks.walk(ROOT, ("fly",), tmp_path)


# -- soak.py -----------------------------------------------------------------------------------------------


def samples(**later: float) -> list[dict[str, float]]:
    """A hundred samples of two hours in which nothing grows, but what ``later`` names: its value at the end."""
    still = {"memory_mb": 800.0, "data_mb": 900.0, "rest_mb": 40.0, "lag": 1.0}
    counts = {"sample/dropped_segments": 0.0, "record/dropped_segments": 0.0, "sample/lost_segments": 0.0}
    found = []
    for k in range(100):
        row = {"session": 0.0, "seconds": 72.0 * k, **still, **counts}
        late = max(0.0, k / 99 - 0.5) * 2  # a count that rises late rises faster than it did
        row |= {name: row[name] + (value - row[name]) * late for name, value in later.items()}
        found.append(row)
    return found


@pytest.mark.parametrize(
    ("later", "fault"),
    [
        ({}, None),
        ({"memory_mb": 850.0}, None),
        ({"memory_mb": 1000.0}, "memory grew from 800 to"),
        ({"data_mb": 1100.0}, "the recordings took 1,100 MB of 1,000 MB"),
        ({"rest_mb": 100.0}, None),
        ({"rest_mb": 400.0}, "what is no recording grew from 40 to"),
        ({"lag": 1.5}, None),
        ({"lag": 4.0}, "the policy lag rose from 1.00 to"),
        ({"record/dropped_segments": 20.0}, None),
        ({"record/dropped_segments": 2000.0}, "record/dropped_segments rose from 0.000"),
        ({"sample/lost_segments": 3.0}, "3 lost segments"),
    ],
)
def test_a_soak_fails_by_what_has_grown(load: Load, later: dict[str, float], fault: str | None) -> None:
    found = load("soak").verdict(samples(**later), 1000.0)
    assert (found == []) if fault is None else (fault in found[0])


def test_a_soak_is_judged_by_its_longest_session(load: Load) -> None:
    soak = load("soak")
    grown = [{**row, "session": 1.0, "memory_mb": 5000.0 + row["seconds"]} for row in samples()[:30]]
    assert soak.verdict([*samples(), *grown], 1000.0) == []
    assert "too few to judge by" in soak.verdict(samples()[:5], 1000.0)[0]
    assert soak.verdict([], 1000.0) == ["there are no samples"]


def test_charts_of_a_soak(load: Load, tmp_path: Path) -> None:
    rows = samples(memory_mb=1000.0)
    paths = load("soak").draw({"samples": rows}, tmp_path)
    assert [path.name for path in paths] == [
        f"soak_{name}.svg" for name in ("memory", "disk", "lag", "drops", "frames")
    ]
    assert "memory MB" in paths[0].read_text()


def test_samples_of_a_run(load: Load, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "x").write_bytes(b"x" * 100_000)
    metrics = (
        '{"frames": 5, "learn/policy_lag": 0.5}\n{"frames": 7, "learn/policy_lag": 2.5, "record/restarts": 0}\n{"fra'
    )
    (tmp_path / "metrics.jsonl").write_text(metrics)
    seen = load("soak").sample(os.getpid(), tmp_path)
    assert (seen["frames"], seen["lag"], seen["record/restarts"]) == (7.0, 2.5, 0.0)
    assert 0.1 <= seen["data_mb"] < 0.2
    assert seen["memory_mb"] > 1
    assert "lag_max" not in seen


# -- cluster_run.py ----------------------------------------------------------------------------------------


class Watched:
    """A training whose rows of metrics the test writes."""

    def __init__(self, script: ModuleType, folder: Path) -> None:
        self.file = folder / "metrics.jsonl"
        self.run = script.Training(folder, None)

    def write(self, *times: float) -> None:
        with open(self.file, "a") as file:
            file.writelines(json.dumps({"frames": int(at), "time": at}) + "\n" for at in times)


def test_a_training_that_stands_still_has_a_gap_until_now(load: Load, tmp_path: Path) -> None:
    script = load("cluster_run")
    watched, now = Watched(script, tmp_path), time.time()
    assert watched.run.gap(now - 50) >= 50, "without a row since it was started"
    watched.write(now - 100, now - 99, now - 90, now - 88)
    assert watched.run.gap(now - 95) >= 88, "no row came after the last one"
    assert watched.run.gap(now - 50) >= 88
    watched.write(now - 60, now - 1, now)
    assert watched.run.gap(now - 95) == pytest.approx(59)
    assert watched.run.gap(now - 100.5) == pytest.approx(59)


def test_rows_are_read_once_and_anew_when_a_run_that_goes_on_has_cut_some_off(load: Load, tmp_path: Path) -> None:
    watched = Watched(load("cluster_run"), tmp_path)
    assert watched.run.rows() == []
    watched.write(1, 2)
    assert [row["frames"] for row in watched.run.rows()] == [1, 2]
    with open(watched.file, "a") as file:
        file.write('{"frames": 3, "ti')
    assert [row["frames"] for row in watched.run.rows()] == [1, 2], "the last one is being written"
    with open(watched.file, "a") as file:
        file.write('me": 3}\n')
    assert [row["frames"] for row in watched.run.rows()] == [1, 2, 3]
    watched.run._rows[0]["frames"] = 70
    assert [row["frames"] for row in watched.run.rows()] == [70, 2, 3], "those are not read again"
    (tmp_path / "new").write_text("".join(f'{{"frames": {k}, "time": 1}}\n' for k in (1, 2, 8, 9)))
    (tmp_path / "new").replace(watched.file)
    assert [row["frames"] for row in watched.run.rows()] == [1, 2, 8, 9]


def test_marks_are_met_or_missed_and_what_was_not_found_is_missed(load: Load) -> None:
    script = load("cluster_run")
    for found, most, least, near in ((9.0, True, False, True), (11.0, False, True, True), (20.0, False, True, False)):
        marks = script.Marks()
        marks.at_most("most", found, 10)
        marks.at_least("least", found, 10)
        marks.within("near", found, 10, 0.15)
        assert [row["met"] for row in marks.rows] == [most, least, near]
        assert marks.all_met == (most and least and near)
    nothing = script.Marks()
    nothing.at_most("most", None, 10)
    nothing.at_least("least", None, 10)
    nothing.within("near", None, 10, 0.15)
    assert not any(row["met"] for row in nothing.rows)
    marks = script.Marks()
    marks.equal("left", 0, 0)
    assert marks.all_met
    marks.equal("left", 1, 0)
    assert marks.table().splitlines()[-2:] == ["| left | 0 | 0 | met |", "| left | 1 | 0 | MISSED |"]


def test_growth_is_of_means_and_not_of_the_first_and_the_last_value(load: Load) -> None:
    growth = load("cluster_run").growth
    still = [500.0] * 20 + [100.0] * 80
    assert growth(still) == (100.0, 0.0)
    assert growth([*still[:-1], 140.0])[1] == pytest.approx(0.02), "one high value at the end is no growth of 40 %"
    assert growth([*still[:-20], *[150.0] * 20])[1] == pytest.approx(0.5)


def test_an_episode_that_is_recorded_twice_is_found(load: Load, tmp_path: Path) -> None:
    script, schema = load("cluster_run"), small_schema()
    played = [(0, 0, 5), (0, 0, 6), (1, 0, 5), (0, 1, 5)]
    with StoreWriter(tmp_path, schema) as writer:
        for uid, (lane, worker, seed) in enumerate(played):
            writer.add_episode(make_episode(schema, 3, info=EpisodeInfo(uid=uid, lane=lane, worker=worker, seed=seed)))
    assert script.twice(tmp_path) == 0
    with StoreWriter(tmp_path, schema) as writer:
        writer.add_episode(make_episode(schema, 3, info=EpisodeInfo(uid=9, lane=1, worker=0, seed=5)))
    assert script.twice(tmp_path) == 1


def test_rows_of_older_weights_than_before_are_counted_by_group(load: Load) -> None:
    backwards, newest = load("cluster_run").backwards, dict[int, int]()

    def segment(*versions: int) -> dict[str, np.ndarray]:
        return {"version": np.array([[v, v] for v in (*versions, 0)])}

    assert backwards([(6, segment(0, 1, 1)), (7, segment(4, 4, 4)), (6, segment(1, 2, 3))], newest) == 0
    assert newest == {6: 3, 7: 4}
    assert backwards([(7, segment(3, 4, 5)), (6, segment(3, 2, 2))], newest) == 3


# -- several_gpus.py ---------------------------------------------------------------------------------------


def test_with_one_gpu_several_are_not_measured(
    load: Load, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    script = load("several_gpus")
    monkeypatch.setattr(sys, "argv", ["several_gpus.py"])
    monkeypatch.setattr(script, "end_on_sigterm", lambda: None)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    assert script.main() == 0
    assert "skipped: 2 ranks with --device cuda, and this machine has 1 usable GPUs" in capsys.readouterr().out


# -- populations.py ----------------------------------------------------------------------------------------


def test_rates_are_compared_with_the_middle_one_of_the_best(load: Load) -> None:
    populations = load("populations")
    fixed = {"rates": [1e-5, 1e-4, 1e-3, 1e-2], "returns": [9.0, 500.0, 500.0, 500.0]}
    assert populations.rates_off([1e-3, 5e-3], fixed) == pytest.approx(5)
    assert populations.rates_off([1e-3, 2e-5], fixed) == pytest.approx(50)


@pytest.mark.parametrize(("command", "seconds", "passed"), [("true", 300.0, False), ("exec sleep 300", 0.1, True)])
def test_a_run_that_was_never_killed_proves_nothing(
    load: Load, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str, seconds: float, passed: bool
) -> None:
    populations = load("populations")
    monkeypatch.setattr(populations, "RUNS", tmp_path)
    monkeypatch.setattr(populations, "KILL_SECONDS", (seconds, seconds))
    monkeypatch.setattr(populations, "train_command", lambda *words, resume: ["sh", "-c", command])

    def train(name: str, *words: str, resume: bool = False) -> Path:
        folder: Path = tmp_path / name
        folder.mkdir()
        (folder / "ledger").write_text("same")
        Checkpoints(folder / "checkpoints").save({"learners": [], "part": 1}, 1, None)
        return folder

    monkeypatch.setattr(populations, "train", train)
    found = populations.killed_and_whole("x", 2, [], "ledger", "part")
    assert found["kills"] == (2 if passed else 0)
    assert all(found["same"].values())
    assert found["passed"] == passed


# -- tools/slow_tests.py -----------------------------------------------------------------------------------


def test_the_slowest_tests_are_those_that_take_the_share() -> None:
    lines = [
        "8.0s call     tests/a.py::test_b[1]",
        "1.0s setup    tests/a.py::test_b[2]",
        "3.0s call     tests/c.py::test_d",
    ]
    slowest = load_tool("slow_tests").slowest
    assert slowest([*lines, "not a test"], 0.6) == ["tests/a.py::test_b"]
    assert slowest(lines, 0.8) == ["tests/a.py::test_b", "tests/c.py::test_d"]


def test_every_slow_test_exists() -> None:
    """A name that is gone would leave out nothing, and nobody would know."""
    named = (ROOT / "tests" / "slow.txt").read_text().split()
    files = {name.partition("::")[0] for name in named}
    text = {file: (ROOT / file).read_text() for file in files if (ROOT / file).is_file()}
    assert [
        name for name in named if f"def {name.partition('::')[2]}(" not in text.get(name.partition("::")[0], "")
    ] == []
