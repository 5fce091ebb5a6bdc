"""The contract checker against environments with one fault each."""

from __future__ import annotations

import json
import mmap
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from running import wait_until

from rollmill.core.errors import ConfigError, MissingExtraError
from rollmill.core.process_scope import process_scope
from rollmill.envs.check import main as check_main
from rollmill.envs.check import runner as check
from rollmill.envs.check.calls import Beat, Findings
from rollmill.envs.check.main import Checker
from rollmill.envs.check.rules import RULES
from rollmill.envs.check.runner import BEAT, CheckOptions, CheckReport, check_env, describe_place
from rollmill.envs.settings import EnvSettings

OPTIONS = CheckOptions(steps=40)


@pytest.fixture(autouse=True)
def keep_shared_generators(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The checker seeds them, in a process of its own; here it runs in this one."""
    monkeypatch.setattr(check_main, "SPEED_SECONDS", 0.01)
    state = np.random.get_state()
    yield
    np.random.set_state(state)


def check_here(name: str, **keys: Any) -> dict[str, dict[str, Any]]:
    """All findings by rule, without a process of its own."""
    lines: list[dict[str, Any]] = []
    settings = EnvSettings(id=name if set(name) & set(":_-") else f"broken_envs:{name}", **keys)
    Checker(settings, OPTIONS, Findings(lambda **line: lines.append(line)), Beat(mmap.mmap(-1, BEAT.size))).run()
    found = [line["finding"] for line in lines if "finding" in line]
    rules = [finding["rule"] for finding in found if finding["rule"] != "batch"]
    assert len(rules) == len(set(rules)), "these environments break a rule in one way only"
    return {finding["rule"]: finding for finding in found}


@pytest.mark.parametrize(
    "name", ["Sound", "Native", "Masked", "toy_target", "toy_masked", "toy_reach", "faulty_envs:Zoo"]
)
def test_nothing_is_found_in_a_sound_environment(name: str) -> None:
    assert set(check_here(name)) <= ({"reset-needed"} if name == "faulty_envs:Zoo" else set())


ADAPTERS = [
    ("LunarLander-v3", "Box2D"),
    ("Hopper-v5", "mujoco"),
    ("atari_breakout", "ale_py"),
    ("minigrid_memory", "minigrid"),
    ("mpe_simple_spread", "mpe2"),
    ("envpool:CartPole-v1", "envpool"),
    ("car_racing", "Box2D"),
]


@pytest.mark.parametrize(("name", "package"), ADAPTERS)
def test_one_env_of_every_adapter_keeps_its_contract(name: str, package: str) -> None:
    pytest.importorskip(package)
    findings = check_here(name)
    assert [finding for finding in findings.values() if finding["level"] == "error"] == []


FAULTS = [
    ("WrongDtype", "obs-dtype", "reset() of episode 0 (seed 1), observation field 'obs'", "int64"),
    ("Float64", "obs-float-dtype", "reset()", "float64"),
    ("WrongShape", "obs-shape", "reset()", "(2,)"),
    ("OutOfBounds", "obs-range", "step() 2 of episode 0 (seed 1), observation field 'obs'", "at [0]"),
    ("NanObservation", "obs-nan", "step() 1 of episode 0", "nan"),
    ("NoArray", "obs-type", "reset()", "list"),
    ("MissingEntry", "obs-structure", "reset()", "keys ['a']"),
    ("WrongChoice", "obs-range", "reset()", "int 3"),
    ("Reused", "obs-reused", "step() 0", "in place"),
    ("LeakingSeed", "seed-leak", "reset() of an episode with seed 1", "first touched in reset() with seed 1"),
    ("LeakingInReset", "seed-leak", "reset()", "first touched in reset()"),
    ("TouchesShared", "shared-generator", "reset() with seed 1", "drawn from or seeded"),
    ("SeedsShared", "neighbours", "of an episode with seed 1", "second environment"),
    ("Irreproducible", "irreproducible", "reset()", "same seed and actions differ"),
    ("Unseeded", "seed-ignored", "seeds 1 and 2", "to the bit"),
    ("Stale", "reset-stale", "reset() of an episode with seed 1", "used before"),
    ("NoResetNeeded", "reset-needed", "step() before the first reset()", "answered"),
    ("ForgetsEnd", "end-forgotten", "where the episode ended", "went on"),
    ("NanReward", "reward-nan", "step() 3 of episode 0 (seed 1)", "nan"),
    ("NoReward", "reward-type", "step() 0", "NoneType None"),
    ("ArrayReward", "reward-type", "step() 0", "an array float64 of shape (1,)"),
    ("IntTerminated", "terminated-type", "step() 0", "int 0"),
    ("ListInfo", "info-type", "step() 0", "list []"),
    ("TextStatistics", "info-stats", "step() 0", "'name' is str 'Ann'"),
    ("StepRaises", "raises", "step() 2 of episode 0 (seed 1)", "ZeroDivisionError: no fuel (in "),
    ("Exits", "raises", "step() 0 of episode 0 (seed 1)", "SystemExit: 0 (in "),
    ("ExitsInReset", "raises", "reset() of episode 0 (seed 1)", "SystemExit: 0 (in "),
    ("ExitsWhenBuilt", "raises", "the constructor", "SystemExit: 0 (in "),
    ("ExitsOutOfOrder", "raises", "a step() that is out of order", "SystemExit: call reset() first"),
    ("TextReward", "reward-type", "step() 0", "str '1.0'"),
    ("OldApi", "step-return", "step() 0", "a tuple of 4"),
    ("OldReset", "reset-signature", "reset()", "unexpected keyword argument 'seed'"),
    ("OnlyObservation", "reset-return", "reset()", "an array float32 of shape (3,)"),
    ("ClosesOnce", "close-twice", "close()", "OSError: already closed"),
    ("Endless", "endless", "stage play", "40 steps"),
    ("Unbounded", "action-bounds", "the action space", "inf"),
    ("EmptyMask", "mask-empty", "reset()", "all 2 choices of component 0"),
    ("OddMask", "mask-values", "reset()", "[[7, 0]]"),
    ("BuildFails", "raises", "the constructor", "ValueError: no map"),
    ("Unwritten", "obs-unwritten", "reset()", "values were not"),
    ("WritesBack", "obs-kept", "step() 0", "changed"),
    ("ChangesAction", "action-changed", "step() 0", "wrote into it"),
    ("ThreeRewards", "reward-type", "step() 0", "shape (3,)"),
    ("FloatEnds", "truncated-type", "step() 0", "float64"),
    ("FiveValues", "step-return", "step() 0", "a tuple of 5"),
]


SIDE_EFFECTS = {
    "Unwritten": {"reset-stale", "irreproducible"},
    "SeedsShared": {"shared-generator"},
    "WritesBack": {"neighbours"},
    "ForgetsEnd": {"reset-needed", "reset-stale"},
    "Endless": {"reset-needed"},
}
"""What else is wrong with some of them."""


@pytest.mark.parametrize(("name", "rule", "where", "found"), FAULTS, ids=[name for name, *_ in FAULTS])
def test_a_fault_is_named_with_its_place(name: str, rule: str, where: str, found: str) -> None:
    findings = check_here(name)
    finding = findings[rule]
    assert where in finding["where"]
    assert found in finding["found"]
    assert finding["level"] == RULES[rule].level
    assert finding["advice"]
    assert "{" not in finding["expected"]
    assert set(findings) - {rule, "batch"} <= SIDE_EFFECTS.get(name, set())


@pytest.mark.parametrize(("name", "other"), [("LeakingThenRaising", "raises"), ("LeakingOldApi", "step-return")])
def test_a_seed_that_leaks_is_found_where_episodes_break_off(name: str, other: str) -> None:
    findings = check_here(name)
    assert set(findings) - {"batch"} == {"seed-leak", other}
    assert "first touched in reset()" in findings["seed-leak"]["found"]


def test_a_step_before_any_episode_is_called_so() -> None:
    findings = check_here("OldGym")
    assert findings["reset-return"]["where"] == "reset() of episode 0 (seed 1)"
    assert findings["step-return"]["where"] == "step() 0 before the first reset()"


def test_every_rule_is_broken_by_a_test() -> None:
    in_children = {"hang", "crash", "left-running"}
    elsewhere = {"batch", "threads"}
    assert {rule for _, rule, *_ in FAULTS} | in_children | elsewhere == set(RULES)


def test_what_a_run_would_see_is_said() -> None:
    finding = check_here("StepRaises")["batch"]
    assert "failed in step" in finding["where"]
    assert "ZeroDivisionError: no fuel" in finding["found"]
    assert "batch" not in check_here("OutOfBounds")  # a run does not mind


def test_a_vector_env_is_checked_as_a_batch() -> None:
    assert check_here("vector_envs:Counter", vector=True) == {}


def test_findings_of_a_kind_are_counted() -> None:
    lines: list[dict[str, Any]] = []
    findings = Findings(lambda **line: lines.append(line))
    for key in ("a", "b", "a"):
        findings.add("obs-nan", "here", "nan", key)
    findings.write_counts()
    assert len(lines) == 3
    assert lines[2] == {"counts": {"0": 2, "1": 1}}
    assert findings.errors == 3


# -- in a process of its own ------------------------------------------------------------------------


def rules(report: CheckReport) -> list[str]:
    return [finding.rule for finding in report.findings]


def test_a_sound_environment_from_outside() -> None:
    report = check_env(EnvSettings(id="CartPole-v1"), CheckOptions(steps=60))
    assert report.findings == ()
    assert report.errors == 0
    assert report.spec is not None
    assert report.spec["name"] == "CartPole-v1"
    assert report.summary["steps"] == 60
    assert report.summary["episodes"] > 0
    assert report.summary["steps_per_second"] > 0
    assert report.summary["processes"] == 0
    assert json.loads(json.dumps(report.to_dict()))["ok"] is True


THREADS = """
import threading
from broken_envs import Sound

class Threads(Sound):
    def __init__(self):
        super().__init__()
        for _ in range(20):
            threading.Thread(target=threading.Event().wait, daemon=True).start()
"""


def test_many_threads_are_noticed(tmp_path: Path) -> None:
    """From outside: threads of the process that runs the tests come and go."""
    (tmp_path / "threads.py").write_text(THREADS)
    report = check_env(EnvSettings(id=f"{tmp_path}/threads.py:Threads"), CheckOptions(steps=5))
    (found,) = [finding.found for finding in report.findings if finding.rule == "threads"]
    assert found == "it has started 20"


def test_a_hang_is_named_with_its_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """The limit leaves a slow machine the time to import the environment, which is a call, too."""
    monkeypatch.setattr(check, "STACK_SECONDS", 60.0)
    report = check_env(EnvSettings(id="broken_envs:Hangs"), CheckOptions(steps=10, timeout=15.0))
    (finding,) = report.findings
    assert finding.rule == "hang"
    assert finding.where == "step() 1 of episode 0 (seed 1), stage play"
    assert "broken_envs.py" in finding.found
    assert "in reward" in finding.found
    assert "15 s" in finding.expected
    assert report.spec is not None  # what was known before is kept


def test_a_crash_is_named_with_its_last_words() -> None:
    report = check_env(EnvSettings(id="broken_envs:Dies"), OPTIONS)
    (finding,) = report.findings
    assert finding.rule == "crash"
    assert finding.where == "step() 0 of episode 0 (seed 1), stage play"
    assert "exit code 3" in finding.found
    assert "farewell" in finding.found
    assert report.errors == 1


def test_an_exit_code_of_0_is_no_success() -> None:
    """It is the environment's, not that of a check that is through."""
    report = check_env(EnvSettings(id="broken_envs:DiesWell"), OPTIONS)
    (finding,) = report.findings
    assert (finding.rule, finding.where) == ("crash", "step() 0 of episode 0 (seed 1), stage play")
    assert finding.found == "it ended with exit code 0"
    assert report.errors == 1


def test_a_crash_is_named_with_its_stack() -> None:
    (finding,) = check_env(EnvSettings(id="broken_envs:Crashes"), OPTIONS).findings
    assert finding.rule == "crash"
    assert "it was killed by signal 11 (SIGSEGV)" in finding.found
    assert "broken_envs.py" in finding.found


def test_what_is_left_running_is_named_and_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANNOUNCE", str(tmp_path / "pids"))
    with process_scope() as environment:
        report = check_env(EnvSettings(id="broken_envs:Leaves"), OPTIONS, environment)
        pids = [int(line) for line in (tmp_path / "pids").read_text().split()]
        assert all(map(lives, pids))
    (finding,) = report.findings
    assert (finding.level, finding.rule) == ("warning", "left-running")
    assert f"{len(pids)} of them did not: {pids[0]} (sleep 3600)" in finding.found
    wait_until(lambda: not any(map(lives, pids)), what="them to be ended")


def test_nothing_is_left_by_a_sound_environment() -> None:
    with process_scope() as environment:
        assert check_env(EnvSettings(id="broken_envs:Sound"), OPTIONS, environment).findings == ()


def test_errors_come_first_and_are_counted() -> None:
    report = check_env(EnvSettings(id="broken_envs:IntTerminated"), OPTIONS)
    assert rules(report)[0] == "terminated-type"
    assert report.findings[0].count > 10


@pytest.mark.parametrize(
    ("name", "keys", "error", "message"),
    [
        ("toy_traget", {}, ConfigError, "toy_target"),
        ("toy_target", {"args": {"lengthh": 3}}, ConfigError, "did you mean 'length'"),
        ("faulty_envs:not_an_env", {}, ConfigError, "neither a gymnasium.Env"),
        ("broken_envs:NeedsMore", {}, MissingExtraError, r'pip install "rollmill\[more\]'),
    ],
)
def test_nothing_to_check_is_a_config_error(
    name: str, keys: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        check_env(EnvSettings(id=name, **keys), OPTIONS)


def test_wrong_options_are_refused() -> None:
    with pytest.raises(ConfigError, match="--steps"):
        CheckOptions(steps=0)
    with pytest.raises(ConfigError, match="--timeout"):
        CheckOptions(timeout=0)
    with pytest.raises(ConfigError, match="--timeout"):
        CheckOptions(timeout=float("nan"))
    with pytest.raises(ConfigError, match="--seed must not be negative"):
        CheckOptions(seed=-1)


def test_what_it_leaves_behind_is_ended(tmp_path: Path) -> None:
    """A simulator that outlives its environment does not outlive the check."""
    note = tmp_path / "pid"
    module = tmp_path / "leaver.py"
    module.write_text(
        "import subprocess, pathlib\n"
        "from broken_envs import Sound\n"
        "class Leaver(Sound):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        f"        pathlib.Path({str(note)!r}).write_text(str(subprocess.Popen(['sleep', '600']).pid))\n"
    )
    check_env(EnvSettings(id=f"{module}:Leaver"), CheckOptions(steps=5))
    wait_until(lambda: not lives(int(note.read_text())), what="the simulator to end")


def lives(pid: int) -> bool:
    """Whether it runs; a zombie does not, whoever fails to bury it."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_places_in_words() -> None:
    assert describe_place(BEAT.pack(1, 0, 0, 0, 0, 0, 0)) == "outside of any call, stage build"
    assert describe_place(BEAT.pack(1, 4, 2, 1, 3, 0, 9)) == "reset() of episode 3 (seed 9) in env 1, stage batch"
    assert describe_place(BEAT.pack(1, 1, 4, 0, 3, 7, 9)) == "close(), stage play"
    assert describe_place(BEAT.pack(1, 1, 1, 0, 0, 0, 0)) == "the constructor, stage play"
    assert check._innermost("") == ""


def test_it_ends_with_whoever_started_it() -> None:
    script = (
        "from rollmill.envs.check.runner import CheckOptions, check_env\n"
        "from rollmill.envs.settings import EnvSettings\n"
        "check_env(EnvSettings(id='broken_envs:Announces'))\n"
    )
    reader, writer = os.pipe()
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "ANNOUNCE": f"/proc/{os.getpid()}/fd/{writer}"}
    parent = subprocess.Popen([sys.executable, "-c", script], env=environment)
    child = int(os.read(reader, 20))
    parent.kill()
    parent.wait()
    wait_until(lambda: not lives(child), what="the check to end")
    os.close(reader)
    os.close(writer)
