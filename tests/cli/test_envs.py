"""``rollmill envs`` and ``rollmill envs check``."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from running import Call, Run, wait_until

from rollmill.cli import envs
from rollmill.cli.envs import all_rows
from rollmill.core.janitor_main import is_alive, vizdoom_instance
from rollmill.envs.make import NAMED


@pytest.fixture
def without_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rollmill.cli.envs.is_installed", lambda name: False)


def test_every_name_is_listed_with_its_state(call: Call) -> None:
    rows = json.loads(call("envs", "--json").out)
    assert [row["name"] for row in rows][: len(NAMED)] == list(NAMED)
    assert {row["state"] for row in rows} <= {"ready", "missing"}
    assert all(row["summary"] for row in rows)
    assert all(bool(row["install"]) == (row["state"] == "missing") for row in rows)
    plain = call("envs")
    assert plain.code == 0
    for row in rows:
        assert row["name"] in plain.out


def test_a_missing_package_comes_with_its_install_line(call: Call, without_packages: None) -> None:
    rows = {row["name"]: row for row in json.loads(call("envs", "--json").out)}
    assert rows["doom_basic"]["state"] == "missing"
    assert rows["doom_basic"]["install"] == 'pip install "rollmill[vizdoom]"'
    assert rows["toy_target"]["state"] == "ready"
    plain = call("envs", "doom").out
    assert "missing  ViZDoom: shoot the monster" in plain
    assert plain.count('pip install "rollmill[vizdoom]"') == 1


def test_the_usage_line_shows_both_forms(call: Call) -> None:
    assert call("envs", "--help").out.startswith("usage: rollmill envs [OPTIONS] [WORD]\n")


def test_a_word_narrows_the_list_down(call: Call) -> None:
    names = [row["name"] for row in json.loads(call("envs", "medkits", "--json").out)]
    assert names == ["doom_health_gathering", "doom_health_gathering_supreme"]
    assert "toy_memory" not in call("envs", "DOOM").out
    nothing = call("envs", "qqqq")
    assert nothing.code == 2
    assert "no environment has 'qqqq' in its name" in nothing.err
    assert json.loads(call("envs", "qqqq", "--json").out) == []


def test_listing_imports_no_simulator() -> None:
    script = (
        "import sys; from rollmill.cli.main import main; main(['envs'])\n"
        "heavy = {'gymnasium', 'vizdoom', 'cv2', 'ale_py', 'torch', 'mujoco', 'pettingzoo', 'envpool', 'minigrid'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_names_of_rows_are_unique() -> None:
    names = [row.name for row in all_rows()]
    assert len(names) == len(set(names))


# -- check ------------------------------------------------------------------------------------------


def test_a_sound_env_passes(call: Call) -> None:
    result = call("envs", "check", "toy_agents", "env.args.length=4", "--steps", "40")
    assert result.code == 0
    assert "toy_agents keeps its contract: no errors, no warnings" in result.out
    assert "observation  obs float32[4]" in result.out
    assert "agents       2" in result.out
    assert "10 in 40 random steps, 4 to 4 long" in result.out
    assert "no threads and no processes of its own" in result.out


def test_a_broken_env_fails_with_the_fault(call: Call) -> None:
    result = call("envs", "check", "broken_envs:WrongShape", "--steps", "20")
    assert result.code == 1
    assert "error: obs-shape" in result.out
    assert "  where     reset() of episode 0 (seed 1), observation field 'obs'\n" in result.out
    assert "  expected  shape (3,)\n  found     (2,)\n  do        return the shape" in result.out
    assert "breaks its contract: 2 errors, no warnings" in result.out


@pytest.mark.parametrize("name", ["Exits", "ExitsWhenBuilt", "DiesWell", "Crashes"])
def test_an_env_that_ends_its_process_is_an_error(call: Call, name: str) -> None:
    result = call("envs", "check", f"broken_envs:{name}", "--steps", "20")
    assert result.code == 1
    assert "breaks its contract" in result.out


def test_an_env_that_shows_nothing_is_refused_as_training_does_it(call: Call, tmp_path: Path) -> None:
    refused = "'obs' has shape (0,), there is nothing in it; leave it out"
    for words in (["envs", "check", "broken_envs:ShowsNothing"], ["train", "env=broken_envs:ShowsNothing"]):
        result = call(*words)
        assert result.code == 2
        assert refused in result.err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL], ids=lambda number: number.name)
def test_whatever_ends_a_check_nothing_is_left(
    tmp_path: Path, rollmill: Run, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    scratch, pids = tmp_path / "scratch", tmp_path / "pids"
    scratch.mkdir()
    monkeypatch.setenv("TMPDIR", str(scratch))
    monkeypatch.setenv("ANNOUNCE", str(pids))
    command = rollmill("envs", "check", "broken_envs:LeavesAndHangs", "--timeout", "600")
    wait_until(lambda: pids.exists() and pids.read_text().endswith("\n"), what="the helper to be started")
    helper = int(pids.read_text())
    assert is_alive(helper)
    command.send(number)
    assert command.wait() == (-number if number == signal.SIGKILL else 128 + number)
    command.assert_nothing_left()
    wait_until(lambda: not is_alive(helper), what="the helper to be ended")
    wait_until(lambda: not list(scratch.iterdir()), what="the scratch folder to be gone")
    assert "Traceback" not in command.text


@pytest.mark.vizdoom
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL], ids=lambda number: number.name)
def test_whatever_ends_a_check_no_engine_is_left(tmp_path: Path, rollmill: Run, number: signal.Signals) -> None:
    pytest.importorskip("vizdoom")
    command = rollmill("envs", "check", "doom_basic", "--steps", "100000")
    engines = wait_until(lambda: [i for pid in command.processes() for i in vizdoom_instance(pid)], what="an engine")
    command.send(number)
    command.wait()
    command.assert_nothing_left()
    wait_until(
        lambda: not [name for name in os.listdir("/dev/shm") if any(name.endswith(i) for i in engines)],
        what="its segments to be swept",
    )


def test_the_report_as_json(call: Call) -> None:
    result = call("envs", "check", "broken_envs:ForgetsEnd", "--steps", "20", "--json", "--seed", "5")
    report = json.loads(result.out)
    assert report["env"] == "broken_envs:ForgetsEnd"
    assert report["ok"] is (result.code == 0)
    assert "end-forgotten" in [finding["rule"] for finding in report["findings"]]
    assert report["spec"]["action"]["kind"] == "discrete"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["toy_traget"], "did you mean 'toy_target'"),
        (["toy_target", "env.args.lengthh=3"], "did you mean 'length'"),
        (["toy_target", "env.agrs.length=3"], "env.args"),
        (["toy_target", "--steps", "0"], "--steps must be at least 1"),
        ([], "--help"),
    ],
)
def test_what_cannot_be_checked_is_a_usage_error(call: Call, words: list[str], message: str) -> None:
    result = call("envs", "check", *words)
    assert result.code == 2
    assert message in result.err
    assert result.out == ""


def test_counts_in_words() -> None:
    assert [envs._count(n, "process") for n in (0, 1, 2)] == ["no processes", "1 process", "2 processes"]
    assert envs._count(2, "error") == "2 errors"


@pytest.mark.parametrize(
    ("name", "text"),
    [("toy_reach", "numbers from -1 to 1"), ("faulty_envs:Zoo", "choices of 2, 3"), ("toy_target", "one of 4")],
)
def test_actions_in_words(name: str, text: str) -> None:
    from rollmill.envs.make import make_env
    from rollmill.envs.settings import EnvSettings

    assert text in envs.describe_spec(make_env(EnvSettings(id=name)).spec)
