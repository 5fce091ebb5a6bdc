"""``rollmill launch``, ``diary`` and ``report`` as a user types them."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from holding import HOLDING
from image_stores import image_store
from launching import PROGRAM, place, sessions
from running import ROOT, SMALL, Call, Command, wait_until

from rollmill.core.run_folder import RunFolder
from rollmill.launch.records import LaunchRecords, PlanRecord, RunRecord
from rollmill.store.reader import Store


def describe(folder: Path, text: str) -> str:
    path = folder / "grid.yaml"
    path.write_text(text)
    return str(path)


def toys(folder: Path, params: str, more: str = "") -> str:
    """A description whose program costs nothing."""
    program = json.dumps(list(PROGRAM))
    return describe(
        folder,
        f"experiment: toys\nprogram: {program}\nsettings: {{stop.frames: 100}}\nparams:\n  - {params}\n"
        f"launch: {{poll_seconds: 0.05, retries: 0}}\n{more}",
    )


# -- plan ------------------------------------------------------------------------------------------------


def test_sixty_runs_are_planned_without_torch(tmp_path: Path) -> None:
    code = (
        "import sys; from rollmill.cli.main import main\n"
        f"assert main(['launch', 'plan', {str(ROOT / 'examples/grid_envs.py')!r}, '--json']) == 0\n"
        "assert 'torch' not in sys.modules and 'gymnasium' not in sys.modules, 'a plan must come at once'\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    plan = json.loads(done.stdout)
    assert plan["total"]["runs"] == 60
    assert plan["total"]["groups"] == 6
    assert plan["total"]["frames"] == 60 * 200_000
    assert len({run["folder"] for run in plan["runs"]}) == 60
    assert list(tmp_path.iterdir()) == [], "nothing was started, nothing was written"


def test_a_plan_shows_commands_folders_and_what_it_will_take(call: Call, tmp_path: Path) -> None:
    grid = toys(tmp_path, "grid: {learning.gamma: [0.9, 0.99]}", "seeds: 2\n")
    done = call("launch", "plan", grid)
    assert done.code == 0
    assert "runs/toys/gamma-0.99_s1\n    " in done.out
    assert shlex.join([*PROGRAM, "stop.frames=100", "learning.gamma=0.99", "run.seed=1"]) in done.out
    assert "4 runs in 2 groups, 400 frames in all; back end local" in done.out
    assert "time: not known" in done.out
    assert call("launch", "run", grid, "local.parallel=2").code == 0
    done = call("launch", "plan", grid, "local.parallel=2")
    assert "about 0.000556 h with 2 at a time" in done.out, "400 frames at 100 a second, two at a time"
    assert "forecast from measured: runs/toys/gamma-0.9_s0 and 3 more" in done.out
    done = call("launch", "plan", grid, "--like", "runs/toys/gamma-0.9_s0", "--json")
    assert done.json["total"]["source"] == "measured: runs/toys/gamma-0.9_s0"  # type: ignore[index]
    assert call("launch", "plan", grid, "--like", "nothing").code == 2


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("experiment: x\nparams: [{grid: {learning.gama: [0.9]}}]", "did you mean 'learning.gamma'?"),
        ("experiment: x\nparams: [{grid: {learning.gamma: []}}]", "the list of values is empty"),
        ("experiment: x\nparams: [{grid: {learning.gamma: [high]}}]", "learning.gamma: expected float"),
        ("experiment: x\nparams: [{list: [{env: a}, {env: a}]}]", "2 runs would be called"),
        ("experiment: x\nparams: [{grid: {env: [toy_targt]}}]", "toy_target"),
        ("experiment: x\nparams: [{grid: {env: ['no_such_module:Env']}}]", "no module named 'no_such_module'"),
        ("experiment: x\nconfig: [missing.yaml]", "missing.yaml"),
        ("experiment: x\nlaunch: {local: {parallels: 2}}", "did you mean 'local.parallel'?"),
        ("experiment: x\nlaunch: {local: {gpus: [0], parallel: 2}}", "do not fit on 1 GPUs"),
    ],
)
@pytest.mark.parametrize("verb", ["plan", "run"])
def test_bad_descriptions_are_refused_before_anything_starts(
    call: Call, tmp_path: Path, verb: str, text: str, reason: str
) -> None:
    done = call("launch", verb, describe(tmp_path, text + "\n"))
    assert done.code == 2
    assert reason in done.err
    assert not (tmp_path / "runs").exists()


def test_a_missing_module(call: Call) -> None:
    done = call("launch", "run", "no.such.description")
    assert done.code == 2
    assert "no module named 'no.such.description'" in done.err


def test_words_that_are_no_verb(call: Call) -> None:
    assert call("launch").code == 2
    assert "plan" in call("launch", "--help").out
    done = call("launch", "state")
    assert done.code == 2
    assert "did you mean 'status'?" in done.err


# -- run, status, cancel ---------------------------------------------------------------------------------


def test_run_status_report_and_diary(call: Call, tmp_path: Path) -> None:
    bad = "sum: [{grid: {learning.gamma: [0.9, 0.99]}}, {list: [{learning.gamma: 0.5, env.args.fail: true}]}]"
    grid = toys(tmp_path, bad)
    done = call("launch", "run", grid, "local.parallel=3")
    assert done.code == 1, "one failed"
    assert "3 runs: 1 failed, 2 finished" in done.out
    assert "gamma-0.5_fail-true_s0 failed (1 attempt); the end of its output:\n    broken on purpose" in done.out

    done = call("launch", "status", "toys")
    assert "gamma-0.9_s0            finished  100 (100%)  9       100" in done.out
    assert "failed: EnvError: broken on purpose\n" in done.out, "the first line of the reason"
    assert call("launch", "status", grid).out == done.out, "the description names the experiment, too"
    found: Any = call("launch", "status", "runs/toys", "--json").json
    assert [run["state"] for run in found] == ["finished", "finished", "failed"]
    assert found[0]["return"] == pytest.approx(9)
    assert found[2]["tail"] == "broken on purpose"

    again = call("launch", "run", "runs/toys", "--json")
    assert again.code == 1
    assert [run["attempts"] for run in json.loads(again.out)] == [1, 1, 1], "nothing is repeated"
    assert [run["attempts"] for run in json.loads(call("launch", "run", grid, "--again", "--json").out)] == [1, 1, 2]

    done = call("report", "toys", "--csv", "csv")
    assert done.code == 0
    assert done.out.splitlines()[2].startswith("gamma-0.99 ")
    assert (tmp_path / "runs/toys/report.html").is_file()
    assert (tmp_path / "csv/curves.csv").is_file()
    scores: Any = call("report", "toys", "--json").json
    assert scores["families"][0]["groups"][0]["params"] == {"learning.gamma": 0.99}
    assert "did you mean 'episode/return'?" in call("report", "toys", "--metric", "episode/return_").err
    ranked: Any = call("report", "toys", "--json", "--lower-is-better").json
    assert ranked["families"][0]["groups"][0]["params"]["learning.gamma"] == 0.5
    (tmp_path / "runs/toys/report.html").write_text("something of my own")
    beside = call("report", "toys")
    assert beside.out.splitlines()[-1] == "runs/toys/report-experiment.html"
    assert "runs/toys/report.html is another page and stays as it is" in beside.err
    assert (tmp_path / "runs/toys/report.html").read_text() == "something of my own"
    assert call("report", "runs/toys/gamma-0.9_s0").out == "runs/toys/gamma-0.9_s0/report.html\n", (
        "a run has its own page"
    )
    one = call("report", "runs/toys/gamma-0.9_s0", "--csv", "csv")
    assert one.code == 2
    assert "is one run. For the whole experiment: rollmill report runs/toys" in one.err
    assert call("report", "nothing").code == 2
    assert "cannot be written" in call("report", "toys", "--out", "csv/curves.csv/x.html").err

    done = call("diary", "toys", "--commands")
    assert len(done.out.splitlines()) == 1 + 2 * 4, "four starts, each with its command"
    assert len(call("diary", "toys", "--json").json) == 4
    assert call("diary", "nothing").code == 2


def test_a_launch_can_be_left_alone_and_cancelled(call: Call, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    grid = toys(tmp_path, f"grid: {{env.args.gate: ['{gate}']}}", "seeds: 3\n")
    done = call("launch", "run", grid, "--detach")
    assert "3 runs: 1 running, 2 waiting" in done.out
    run = tmp_path / "runs/toys/toys_s0"
    wait_until(lambda: any((run / "checkpoints").glob("*.ckpt")), what="a checkpoint")
    assert "toys_s0  running" in call("launch", "status", "toys").out
    assert call("launch", "cancel", "toys", "*nothing*").code == 1
    assert "cancelled 1 run, 1 of which had been queued or running" in call("launch", "cancel", "toys", "*_s0").out
    done = call("launch", "status", "toys")
    assert "1 cancelled" in done.out
    assert "nobody launches the waiting runs; to continue: rollmill launch run" in done.out
    gate.touch()
    assert call("launch", "run", "runs/toys").code == 0
    assert "1 cancelled, 2 finished" in call("launch", "status", "toys").out
    call("launch", "run", "runs/toys", "--again")
    assert [s["step_at_start"] for s in sessions(run)] == [0, 50]
    assert "launched were: toys" in call("launch", "status", "something").err
    assert "did you mean 'toys'?" in call("launch", "status", "toyz").err


def test_the_launcher_is_interrupted_and_its_runs_go_on(tmp_path: Path, rollmill: Callable[..., Command]) -> None:
    gate = tmp_path / "gate"
    grid = toys(tmp_path, f"grid: {{env.args.gate: ['{gate}']}}")
    command = rollmill("launch", "run", grid)
    run = tmp_path / "runs/toys/toys_s0"
    wait_until(lambda: any((run / "checkpoints").glob("*.ckpt")), what="a checkpoint")
    command.press_ctrl_c()
    assert command.wait() == 130
    assert "its runs go on" in command.text
    assert Path(f"/proc/{place(run)['pid']}").exists()
    gate.touch()
    again = rollmill("launch", "run", grid)
    assert again.wait() == 0, again.text
    assert len(sessions(run)) == 1


def test_a_real_training_is_killed_and_resumed(tmp_path: Path, rollmill: Callable[..., Command]) -> None:
    gate = tmp_path / "gate"  # it waits there to be killed
    words = (*SMALL[1:], "sampling.mode=serial", "env=toy_target", "checkpoints.every_seconds=0", "stop.frames=4000")
    words += (f"observers=[{HOLDING}:Gate]", "observers.args.Gate.at=20", f"observers.args.Gate.gate={gate}")
    lines = "".join(f"  {key}: {value}\n" for key, value in (word.split("=") for word in words))
    grid = describe(tmp_path, f"experiment: real\nsettings:\n{lines}launch: {{poll_seconds: 0.1}}\n")
    command = rollmill("launch", "run", grid)
    folder = RunFolder(tmp_path / "runs/real/real_s0")
    wait_until(lambda: any(folder.checkpoints.glob("frames-*[1-9]*.ckpt")), what="a checkpoint with frames")
    state = folder.read_state()
    assert state is not None
    os.kill(state["pid"], signal.SIGKILL)
    gate.touch()
    assert command.wait() == 0, command.text
    assert "real_s0 running, attempt 2: before: killed by SIGKILL" in command.text
    assert command.text.count("1 run: 1 finished") == 1
    assert command.text.endswith("\ncompare them: rollmill report runs/real\n")
    first, second = sessions(folder.path)
    assert first["how"].startswith("killed")
    assert second["step_at_start"] > 0
    command.assert_nothing_left()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("status", "toys", "--every", "-1"), "--every"),
        (("cancel", "toys", "--grace", "-1"), "--grace"),
        (("plan", "toys.yaml", "--root", "a_file"), ""),
    ],
)
def test_odd_numbers_and_places_are_no_traceback(call: Call, words: tuple[str, ...], message: str) -> None:
    Path("a_file").touch()
    text = "experiment: toys\nsettings: {env: CartPole-v1}\n"
    Path("toys.yaml").write_text(text)
    records = LaunchRecords(Path("runs/toys"))
    records.write_plan(PlanRecord("toys", ".", (RunRecord("a", "a", {}, ("true",), "runs/toys/a", 0),), {}))
    done = call("launch", *words)
    assert message in done.err
    assert done.code == (2 if message else 0)


def test_commands_of_several_verbs_are_launched_and_not_repeated(call: Call, tmp_path: Path) -> None:
    """Episodes are collected, learnt from, and random play is judged: three verbs, two of them without a run folder."""
    text = """
experiment: chain
commands:
  - name: collect
    program: [rollmill, collect, --episodes, "8"]
    settings: {env: toy_target, sampling.workers: 1}
    seeds: [1]
  - name: clone
    program: [rollmill, offline]
    settings:
      store: runs/chain/collect_s1/data
      algorithm: bc
      fit: {steps: 2, batch_size: 4, threads: 1}
      model: {context: 2, size: 8, layers: 1}
      evaluation: {episodes: 0}
  - {name: judge, program: [rollmill, eval, random, --episodes, "3", --workers, "1"], settings: {env: toy_target}}
launch: {poll_seconds: 0.05, retries: 0}
"""
    grid = describe(tmp_path, text)
    done = call("launch", "run", grid, "local.parallel=1", "--json")
    assert done.code == 0, done.out + done.err
    assert {run["run"]: run["state"] for run in json.loads(done.out)} == {
        "collect_s1": "finished",
        "clone_s0": "finished",
        "judge_s0": "finished",
    }
    assert len(json.loads((tmp_path / "runs/chain/judge_s0/eval.json").read_text())["returns"]) == 3
    assert RunFolder(tmp_path / "runs/chain/clone_s0").read_state()["state"] == "finished"  # type: ignore[index]
    call("launch", "run", grid, "--json")
    assert len(LaunchRecords(tmp_path / "runs/chain").attempts("judge_s0")) == 1, "what is done is not repeated"


def test_words_of_other_verbs_are_checked_before_anything_starts(call: Call, tmp_path: Path) -> None:
    for program, settings, reason in (
        ("offline", "{store: x, fit.stps: 3}", "did you mean 'fit.steps'?"),
        ("offline", "{}", "which store?"),
        ("collect", "{env.ids: x}", "env.ids"),
        ("bench", "{}", "`rollmill bench` cannot be launched"),
        ('world, vae, "x"', "{fit.stps: 3}", "did you mean 'fit.steps'?"),
        ('world, dynamics, "x"', "{memory: gru}", "memory"),
        ('world, controller, "x"', "{controller.populaton: 3}", "population"),
        ('world, encode, "x", "y"', "{batch_size: 3}", "batch_size"),
        ('match, "a", "b"', "{env.ids: x}", "env.ids"),
    ):
        words = f"experiment: x\nprogram: [rollmill, {program}]\nsettings: {settings}\n"
        done = call("launch", "plan", describe(tmp_path, words))
        assert done.code == 2
        assert reason in done.err


def test_stages_of_world_models_and_matches_are_launched(call: Call, tmp_path: Path) -> None:
    """A grid over encoders, each encoded by what stands under its name, and two players."""
    image_store(tmp_path / "raw", 4)
    text = """
experiment: stages
commands:
  - name: vae
    program: [rollmill, world, vae, raw]
    params: [{grid: {encoder.size: [2, 3]}}]
    settings: {encoder.channels: [4], fit: {steps: 1, batch_size: 4, device: cpu}, tensorboard: false}
  - name: latents
    program: [rollmill, world, encode, raw, "runs/stages/vae_size-{size}_s0"]
    params: [{grid: {size: [2, 3]}}]
  - name: judge
    program: [rollmill, match, random, smoothed-random, --games, "2", --envs, "2", --workers, "1"]
    settings: {env: connect_four}
launch: {poll_seconds: 0.05, retries: 0, local: {parallel: 1}}
"""
    done = call("launch", "run", describe(tmp_path, text), "--json")
    assert done.code == 0, done.out + done.err
    runs = tmp_path / "runs" / "stages"
    names = ("vae_size-2_s0", "vae_size-3_s0", "latents_size-2_s0", "latents_size-3_s0", "judge_s0")
    assert {run["run"]: run["state"] for run in json.loads(done.out)} == dict.fromkeys(names, "finished")
    with Store(runs / "latents_size-3_s0" / "data") as store:
        assert store.schema["obs:mean"].shape == (3,)
    assert json.loads((runs / "judge_s0" / "match.json").read_text())
