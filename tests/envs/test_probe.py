"""The probe: learning a spec without building the env in this process."""

import os
import signal
from pathlib import Path

import pytest

from rollmill.core.errors import ConfigError, EnvError
from rollmill.envs.probe import Probe, probe_here
from rollmill.envs.settings import EnvSettings

FAULTY = "faulty_envs:Misbehave"


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


@pytest.mark.parametrize(("what", "code"), [("exit", "7"), ("kill", "-9")])
def test_a_constructor_that_ends_the_process(what: str, code: str) -> None:
    with pytest.raises(EnvError, match=rf"building it ended the process \(exit code {code}\)"):
        probe(EnvSettings(id=FAULTY, args={"where": "constructor", "what": what}))


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


def test_a_probe_can_be_given_up() -> None:
    running = Probe(EnvSettings(id=FAULTY, args={"where": "constructor", "what": "hang"}), os.environ)
    running.close()
    assert running._process.poll() is not None


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
    try:
        assert probe(settings) == probe_here(EnvSettings(id="toy_target"))
    finally:
        os.kill(int(pid_file.read_text()), signal.SIGKILL)
