"""The parts of the scripts in ``benchmarks/`` and ``tools/`` that figures depend on, without taking any time."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest
import torch
from dreaming import line_model, open_line
from running import ROOT, load_tool

from rollmill.core.checkpoints import Checkpoints

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
