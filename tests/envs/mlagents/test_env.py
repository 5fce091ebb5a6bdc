"""ML-Agents: the exchange of arrays, and players that are played by a small gRPC peer (``unity_player``)."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from running import SUPPORT

from rollmill.core.errors import ConfigError, MissingExtraError, RollmillError
from rollmill.core.fields import ActionSpec, Field
from rollmill.envs.make import EnvInstance
from rollmill.envs.mlagents import env as mlagents
from rollmill.envs.mlagents import install as mlagents_install
from rollmill.envs.mlagents.child import LENGTHS, MOST_BYTES, receive, send
from rollmill.envs.mlagents.env import MlAgentsEnv

# -- the exchange --------------------------------------------------------------------------------------------

ARRAYS = hnp.arrays(
    st.sampled_from([np.float32, np.int32, np.bool_, np.uint8]), hnp.array_shapes(min_dims=0, max_dims=3, min_side=0)
)


@settings(max_examples=30)
@given(st.lists(ARRAYS, max_size=4), st.dictionaries(st.text(), st.integers(), max_size=3))
def test_messages_arrive_as_they_were_sent(arrays: list[Any], header: dict[str, int]) -> None:
    header.pop("arrays", None)
    one, two = socket.socketpair()
    with one, two:
        send(one, header, arrays)
        found, values = receive(two)
    assert found == header
    for sent, came in zip(arrays, values, strict=True):
        assert came.dtype == sent.dtype
        np.testing.assert_array_equal(came, sent)


def test_nonsense_is_refused() -> None:
    for text, body, kind in (
        (b'{"arrays": [["|O", [1]]]}', b"12345678", ValueError),  # would be unpickled
        (b'{"arrays": [["<f4", [3]]]}', b"1234", ValueError),
        (b"{", b"", ValueError),
    ):
        one, two = socket.socketpair()
        with one, two:
            one.sendall(LENGTHS.pack(len(text), len(body)) + text + body)
            with pytest.raises(kind):
                receive(two)
    one, two = socket.socketpair()
    with one, two:
        one.sendall(LENGTHS.pack(MOST_BYTES, 1))
        with pytest.raises(ValueError, match="a message of"):
            receive(two)
    one, two = socket.socketpair()
    with two:
        one.sendall(LENGTHS.pack(10, 0) + b"{")
        one.close()
        with pytest.raises(EOFError):
            receive(two)


# -- what is refused before anything starts ------------------------------------------------------------------


def test_mistakes_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    player = tmp_path / "player.x86_64"
    player.touch()
    with pytest.raises(ConfigError, match=r"env.args.build=.*nowhere: there is no such file"):
        MlAgentsEnv(build=str(tmp_path / "nowhere"))
    with pytest.raises(ConfigError, match=r"env.args.python=.*: there is no such file"):
        MlAgentsEnv(build=str(tmp_path / "player"), python=str(tmp_path / "python"))
    with pytest.raises(ConfigError, match="time_out must be at least 1"):
        MlAgentsEnv(build=str(player), time_out=0)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(MissingExtraError, match=r"python -m rollmill.envs.mlagents.install"):
        MlAgentsEnv(build=str(player))


def test_a_process_that_ends_is_noticed(tmp_path: Path) -> None:
    player = tmp_path / "player.x86_64"
    player.touch()
    with pytest.raises(RollmillError, match=r"has ended|mlagents_envs"):
        MlAgentsEnv(build=str(player), python=sys.executable)
    with pytest.raises(RollmillError, match="has ended"):
        MlAgentsEnv(build=str(player), python=shutil.which("true") or "/bin/true")


def test_a_player_does_not_outlive_a_process_that_died() -> None:
    """Nobody has asked the player to end: the process that would have done so was killed."""
    with subprocess.Popen(["sleep", "1000"]) as player:
        child = mlagents._Child(shutil.which("false") or "/bin/false", {}, 1.0)
        child._player = player.pid
        child.close()
        assert player.wait() == -signal.SIGKILL


def test_no_code_of_the_current_folder_is_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commands: list[list[str]] = []
    monkeypatch.setattr(mlagents_install, "_run", commands.append)
    mlagents_install.install(tmp_path / "venv")
    assert len(commands) == 4
    assert all("-P" in command[:2] or "-I" in command[:2] for command in commands), commands


def test_an_installation_that_fails_says_what_failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mlagents_install.sys, "executable", "/bin/false")
    with pytest.raises(RollmillError, match=r"/bin/false -P -m venv .* ended with 1"):
        mlagents_install.install(tmp_path / "venv")
    assert mlagents_install.interpreter(tmp_path / "venv") is None
    assert mlagents_install.main(["a", "b"]) == 2


# -- spaces --------------------------------------------------------------------------------------------------


def test_sensors_and_actions_become_fields_and_specs() -> None:
    fields = mlagents._observation_fields([["eyes", [3, 8, 8]], ["", [4]], ["rays", [2]], ["rays", [5, 3]]])
    assert fields == (
        Field("eyes", "uint8", (3, 8, 8)),
        Field("obs_1", "float32", (4,)),
        Field("rays_2", "float32", (2,)),
        Field("rays_3", "float32", (5, 3)),
    )
    with pytest.raises(ConfigError, match="no observations"):
        mlagents._observation_fields([])
    assert mlagents._action_spec(0, [4]) == ActionSpec("discrete", nvec=(4,), start=(0,))
    assert mlagents._action_spec(0, [4, 2]).kind == "multi_discrete"
    assert mlagents._action_spec(3, []).kind == "continuous"
    for spec, rows, numbers, choices in (
        (mlagents._action_spec(0, [4]), np.array([1, 3]), [[], []], [[1], [3]]),
        (mlagents._action_spec(2, []), np.float32([[0.5, -7]]), [[0.5, -1]], [[]]),
        (mlagents._action_spec(1, [3, 2]), np.float32([[2, 1, 0.25]]), [[0.25]], [[2, 1]]),
    ):
        continuous, discrete = mlagents._split(spec, rows)
        assert (continuous.tolist(), discrete.tolist()) == (numbers, choices)
        assert (continuous.dtype, discrete.dtype) == (np.float32, np.int32)


# -- players -------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What ``mlagents_drive`` saw, inside a network namespace: mlagents-envs listens on all interfaces."""
    enter = ["unshare", "--map-root-user", "--net"]
    alone = [*enter, "ip", "link", "set", "lo", "up"]
    if not shutil.which("unshare") or not shutil.which("ip") or subprocess.run(alone, capture_output=True).returncode:
        pytest.skip("network namespaces are not permitted here")
    try:
        python = mlagents_install.install()
    except RollmillError as error:
        pytest.skip(f"mlagents-envs cannot be installed here: {error}")
    folder = tmp_path_factory.mktemp("unity")
    player = folder / "player.x86_64"
    player.write_text(f"#!{python}\n{(SUPPORT / 'unity_player.py').read_text()}")
    player.chmod(0o755)
    words = [sys.executable, str(SUPPORT / "mlagents_drive.py"), str(python), str(folder / "player"), str(folder)]
    done = subprocess.run(
        [*enter, "sh", "-c", 'ip link set lo up && exec "$@"', "sh", *words],
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    found["stderr"] = done.stderr
    found["folder"] = str(folder)
    return found


def test_agents_are_lanes_with_all_that_they_see(seen: dict[str, Any]) -> None:
    spec = seen["spec"]
    assert spec["agents"] == 2
    assert spec["observation"] == [
        ["numbers", "float32", [2]],
        ["camera", "uint8", [3, 2, 2]],
        ["action_mask", "int8", [5]],
    ]
    assert spec["action"]["kind"] == "mixed"
    assert spec["action"]["nvec"] == [3, 2]
    assert seen["first"]["numbers"] == [[3, 0], [4, 1]]
    assert np.unique(seen["first"]["camera"][0]).tolist() == [77]
    assert seen["first"]["action_mask"] == [[1, 1, 0, 1, 1]] * 2


def test_rewards_and_ends_arrive_once(seen: dict[str, Any]) -> None:
    rewards, terminated, truncated, numbers, _ = (list(column) for column in zip(*seen["steps"], strict=True))
    assert rewards == [[1.5, 1.0], [1.5, 1.0], [1.5, 1.0], [0.0, 1.0]], (
        "choice + number, clipped to -1; 0 while it waits"
    )
    assert terminated == [[False, False]] * 3 + [[False, True]]
    assert truncated == [[False, False]] * 2 + [[True, False], [False, False]]
    assert numbers == [[[2, 0], [3, 1]], [[1, 0], [2, 1]], [[0, 0], [1, 1]], [[0, 0], [0, 1]]]
    assert seen["again"] == [[3, 0], [4, 1]]


def test_instances_have_ports_ids_and_logs_of_their_own(seen: dict[str, Any]) -> None:
    assert seen["ports"] == [7500, 6501], "6500 was taken"
    words = {tuple(player["argv"][:6]): player for player in seen["said"]}
    for index, port in enumerate(seen["ports"]):
        log = f"{seen['folder']}/logs/Player-{index}.log"
        player = words["-nographics", "-batchmode", "--mlagents-port", str(port), "-logFile", log]
        assert player["argv"][-2:] == ["-job-worker-count", "1"]
        assert player["seed"] == index


def test_threads_are_shown(seen: dict[str, Any]) -> None:
    assert f"on port {seen['ports'][0]}: " in seen["stderr"]
    assert seen["steps"][2][4] > 0


def test_faults_of_a_player_are_told_and_nothing_is_left(seen: dict[str, Any]) -> None:
    assert "took too long to respond" in seen["faults"]["hang"]
    assert "return code 7" in seen["faults"]["crash"]
    assert all(text.startswith("EnvError: ML-Agents: ") for text in seen["faults"].values())
    assert seen["left"] == []
    assert "must name one of the behaviours: Countdown?team=0" in seen["behavior_error"]


def test_a_port_of_all_interfaces_is_tested_as_such() -> None:
    port = next(port for port in quiet_ports() if may_bind("127.0.0.1", port) and may_bind("", port + 1000))
    with socket.socket() as taken:
        taken.bind(("127.0.0.2", port))
        assert EnvInstance().port(port) == port, "free on loopback's first address"
        assert EnvInstance().port(port, host="") == port + 1000


def quiet_ports() -> range:
    """Below those that the system hands out by itself, so that no connection of another program gets in between."""
    return range(20_000 + os.getpid() * 37 % 9_000, 31_000)


def may_bind(host: str, port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind((host, port))
        except OSError:
            return False
    return True
