"""The probe: learning a spec without building the env in this process."""

import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from running import wait_until

from rollmill.core.errors import ConfigError, EnvError
from rollmill.core.janitor_main import is_alive
from rollmill.core.terminal import AT_ONCE
from rollmill.envs.probe import Probe, build_one, close_here, probe_here
from rollmill.envs.settings import EnvSettings

FAULTY = "faulty_envs:Misbehave"
SPEC = probe_here(EnvSettings(id=FAULTY, args={"where": "nowhere"}))


def probe(settings: EnvSettings, timeout: float = 300) -> object:
    return Probe(settings, os.environ).result(timeout)


@pytest.mark.parametrize(
    "settings",
    [
        EnvSettings(id="toy_masked"),
        EnvSettings(id="Pendulum-v1"),
        EnvSettings(id="faulty_envs:Zoo"),
        EnvSettings(id="toy_agents", args={"agents": 3}),
    ],
    ids=lambda settings: settings.id,
)
def test_the_spec_survives_the_way_home(settings: EnvSettings) -> None:
    assert probe(settings) == probe_here(settings)


def test_a_constructor_that_raises_comes_home_with_its_traceback() -> None:
    with pytest.raises(EnvError, match="the constructor failed with RuntimeError: told to raise") as failure:
        probe(EnvSettings(id=FAULTY, args={"where": "constructor"}))
    assert "faulty_envs.py" in str(failure.value)
    with pytest.raises(EnvError, match="told to raise"):
        probe_here(EnvSettings(id=FAULTY, args={"where": "constructor"}))


@pytest.mark.parametrize(
    ("what", "how"),
    [
        ("exit", "ended with exit code 7"),
        ("exit_0", "ended with exit code 0"),
        ("kill", "was killed by signal 9 (SIGKILL)"),
        ("segfault", "was killed by signal 11 (SIGSEGV)"),
    ],
)
def test_a_constructor_that_ends_the_process(what: str, how: str) -> None:
    with pytest.raises(EnvError, match=re.escape(f"building it ended the process, which {how}")) as failure:
        probe(EnvSettings(id=FAULTY, args={"where": "constructor", "what": what}))
    assert ("faulty_envs.py" in str(failure.value)) == (what == "segfault"), "only a crash shows its stack"


@pytest.mark.parametrize("ask", [probe, probe_here])
def test_a_constructor_that_calls_sys_exit(ask: Callable[[EnvSettings], object]) -> None:
    with pytest.raises(EnvError, match="the constructor failed with SystemExit: 0"):
        ask(EnvSettings(id=FAULTY, args={"where": "constructor", "what": "sys_exit"}))


@pytest.mark.parametrize("ask", [probe, probe_here])
def test_an_env_that_cannot_be_closed_has_answered(
    ask: Callable[[EnvSettings], object], caplog: pytest.LogCaptureFixture
) -> None:
    settings = EnvSettings(id=FAULTY, args={"where": "close"})
    assert ask(settings) == SPEC
    assert f"{FAULTY}: close() failed with RuntimeError: told to raise in close" in caplog.text


def test_an_env_whose_close_hangs_has_answered(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("rollmill.envs.probe.CLOSE_SECONDS", 0.2)
    assert probe(EnvSettings(id=FAULTY, args={"where": "close", "what": "hang"}), timeout=0) == SPEC
    assert f"{FAULTY}: close() did not return within 0.2 s; its process was ended" in caplog.text


def test_a_close_that_takes_long_in_this_process_is_told(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("rollmill.envs.probe.CLOSE_SECONDS", 0.05)
    env = build_one(EnvSettings(id="toy_target"))
    monkeypatch.setattr(env, "close", lambda: wait_until(lambda: "toy_target: close()" in caplog.text))
    close_here("toy_target", env)
    assert "close() has not returned for 0.05 s; no time-out runs in serial mode" in caplog.text
    assert all(AT_ONCE.items() <= vars(record).items() for record in caplog.records), "on the console, too"


@pytest.mark.parametrize("what", ["thread", "child", "fork"])
def test_what_goes_on_does_not_hold_it_up(
    what: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A thread, a child of ``multiprocessing`` that Python would wait for, and one that holds all its files open."""
    monkeypatch.setattr("rollmill.envs.probe.CLOSE_SECONDS", 300.0)
    assert probe(EnvSettings(id=FAULTY, args={"where": "constructor", "what": what}), timeout=0) == SPEC
    assert caplog.text == ""


def test_a_constructor_that_hangs() -> None:
    with pytest.raises(EnvError, match=f"{FAULTY}: the constructor hangs for more than 0.2 s"):
        probe(EnvSettings(id=FAULTY, args={"where": "constructor", "what": "hang"}), timeout=0.2)


def test_a_talkative_constructor_is_no_obstacle() -> None:
    settings = EnvSettings(id=FAULTY, args={"where": "constructor", "what": "print"})
    assert probe(settings) == probe_here(settings)


def test_a_wrong_config_keeps_its_exit_code() -> None:
    with pytest.raises(ConfigError, match="which is neither"):
        probe(EnvSettings(id="faulty_envs:not_an_env"))


def test_an_answer_larger_than_a_pipe() -> None:
    """Bounds of a long action vector make a spec of a few hundred kilobytes."""
    settings = EnvSettings(id="faulty_envs:LongAction")
    assert probe(settings) == probe_here(settings)


@pytest.mark.parametrize(
    ("settings", "seconds", "told"),
    [
        (EnvSettings(id="population_envs:Seen", variables={"level": 0.5}), 60.0, {"seen": False}),
        (EnvSettings(id="toy_target"), 60.0, {}),
        (EnvSettings(id="duel_envs:Shaped"), 60.0, {"points": True, "rounds": False}),
        (EnvSettings(id="toy_target"), 1e-9, None),
    ],
)
def test_what_an_environment_tells_of_an_episode(
    settings: EnvSettings, seconds: float, told: dict[str, bool] | None
) -> None:
    asked = Probe(settings, os.environ, episode_seconds=seconds)
    assert asked.result(60) == probe_here(settings)
    assert asked.statistics == told


def test_a_probe_can_be_given_up() -> None:
    running = Probe(EnvSettings(id=FAULTY, args={"where": "constructor", "what": "hang"}), os.environ)
    pid = running._errand.pid
    running.close()
    with pytest.raises(ChildProcessError):
        os.waitpid(pid, 0)


LEAVING = """
import os, subprocess, sys
from rollmill.envs.toy import Target

def make(pid_file):
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(3600)"])
    with open(pid_file, "w") as file:
        file.write(str(child.pid))
    return Target()
"""


def test_a_simulator_that_stays_behind_does_not_hold_up_the_answer(tmp_path: Path) -> None:
    """It has inherited whatever the probe complains into."""
    (tmp_path / "leaving.py").write_text(LEAVING)
    pid_file = tmp_path / "pid"
    settings = EnvSettings(id=f"{tmp_path}/leaving.py:make", args={"pid_file": str(pid_file)})
    assert probe(settings) == probe_here(EnvSettings(id="toy_target"))
    wait_until(lambda: not is_alive(int(pid_file.read_text())), what="it to be ended with its process group")
