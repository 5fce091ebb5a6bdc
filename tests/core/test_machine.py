"""Cores, memory and accelerators, from made-up /proc, cgroup and device trees, and from the real ones."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from rollmill.core import machine
from rollmill.core.machine import (
    available_cores,
    available_memory,
    cpu_quota,
    has_fast_bfloat16,
    may_have_gpu,
    step_aside,
    wait_for_turn,
)


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    return tmp_path / "proc"


@pytest.fixture
def cgroups(tmp_path: Path) -> Path:
    (tmp_path / "cgroup").mkdir()
    return tmp_path / "cgroup"


# -- quota -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "quota"), [("max 100000\n", None), ("150000 100000\n", 1.5), ("400000 100000\n", 4.0)]
)
def test_version_2(proc: Path, cgroups: Path, text: str, quota: float | None) -> None:
    write(proc / "self/cgroup", "0::/job/step\n")
    write(cgroups / "job/step/cpu.max", text)
    assert cpu_quota(proc, cgroups) == quota


def test_a_group_may_be_limited_further_up(proc: Path, cgroups: Path) -> None:
    write(proc / "self/cgroup", "0::/job/step/task\n")
    write(cgroups / "job/step/cpu.max", "800000 100000\n")
    write(cgroups / "job/cpu.max", "200000 100000\n")
    assert cpu_quota(proc, cgroups) == 2.0


def test_a_container_that_sees_its_own_group_as_the_top(proc: Path, cgroups: Path) -> None:
    """The path in /proc is the host's, which is not mounted here."""
    write(proc / "self/cgroup", "0::/docker/0123456789\n")
    write(cgroups / "cpu.max", "300000 100000\n")
    assert cpu_quota(proc, cgroups) == 3.0


@pytest.mark.parametrize("controllers", ["cpu", "cpu,cpuacct"])
@pytest.mark.parametrize(("micros", "quota"), [(-1, None), (250_000, 2.5)])
def test_version_1(proc: Path, cgroups: Path, controllers: str, micros: int, quota: float | None) -> None:
    write(proc / "self/cgroup", f"3:cpuset:/job\n2:{controllers}:/job\n1:name=systemd:/\n0::/\n")
    write(cgroups / controllers / "job/cpu.cfs_quota_us", f"{micros}\n")
    write(cgroups / controllers / "job/cpu.cfs_period_us", "100000\n")
    assert cpu_quota(proc, cgroups) == quota


def test_other_controllers_do_not_count(proc: Path, cgroups: Path) -> None:
    write(proc / "self/cgroup", "2:cpuacct:/\n1:memory:/\n")
    write(cgroups / "cpuacct/cpu.max", "100000 100000\n")
    assert cpu_quota(proc, cgroups) is None


def test_nothing_is_mounted_or_known(proc: Path, cgroups: Path) -> None:
    assert cpu_quota(proc, cgroups) is None
    write(proc / "self/cgroup", "2:cpu:/job\n0::/job\n")
    assert cpu_quota(proc, cgroups) is None
    assert cpu_quota(proc, cgroups / "missing") is None


# -- cores -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("quota", "cores"), [(None, 8), (3.0, 3), (3.9, 3), (0.5, 1), (64.0, 8)])
def test_the_smaller_of_affinity_and_quota(monkeypatch: pytest.MonkeyPatch, quota: float | None, cores: int) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)))
    monkeypatch.setattr(machine, "cpu_quota", lambda: quota)
    assert available_cores() == cores


def test_affinity_counts_and_thread_variables_do_not() -> None:
    """``nproc`` and several libraries report OMP_NUM_THREADS as the number of cores."""
    script = "import os; os.sched_setaffinity(0, [min(os.sched_getaffinity(0))])\n" if sys.platform == "linux" else ""
    code = "from rollmill.core.machine import available_cores; print(available_cores())"
    environment = {**os.environ, "OMP_NUM_THREADS": "7"}
    for head, cores in ((script, 1), ("", available_cores())):
        done = subprocess.run([sys.executable, "-c", head + code], env=environment, capture_output=True, text=True)
        assert int(done.stdout) == cores, done.stderr


# -- accelerators ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "found"), [("nvidia0", True), ("nvidiactl", False), ("kfd", True), ("dxg", True), ("null", False)]
)
def test_device_files_of_gpus(tmp_path: Path, name: str, found: bool) -> None:
    assert not may_have_gpu(tmp_path)
    (tmp_path / name).touch()
    assert may_have_gpu(tmp_path) == found


@pytest.mark.parametrize(
    ("line", "fast"),
    [
        ("flags\t\t: fpu avx2 avx512_bf16 sse", True),
        ("flags\t\t: fpu amx_bf16", True),
        ("Features\t: fp asimd bf16", True),
        ("flags\t\t: fpu avx512f", False),
        ("model name\t: bf16", False),
    ],
)
def test_processors_with_bfloat16(proc: Path, line: str, fast: bool) -> None:
    assert not has_fast_bfloat16(proc)
    write(proc / "cpuinfo", f"processor\t: 0\n{line}\n")
    assert has_fast_bfloat16(proc) == fast


# -- memory ------------------------------------------------------------------------------------------------


def test_memory_of_the_machine_and_of_the_container(proc: Path, cgroups: Path) -> None:
    assert available_memory(proc, cgroups) is None
    write(proc / "meminfo", "MemTotal: 99 kB\nMemAvailable: 4000000 kB\n")
    assert available_memory(proc, cgroups) == 4_096_000_000
    write(cgroups / "memory.max", "500000000\n")
    write(cgroups / "memory.current", "100000000\n")
    assert available_memory(proc, cgroups) == 400_000_000
    write(cgroups / "memory.max", "max\n")
    assert available_memory(proc, cgroups) == 4_096_000_000


# -- scheduling --------------------------------------------------------------------------------------------


@pytest.mark.skipif(not hasattr(os, "SCHED_BATCH"), reason="Linux")
@pytest.mark.parametrize(("name", "policy"), [("wait_for_turn", "SCHED_BATCH"), ("step_aside", "SCHED_IDLE")])
def test_waiting_for_a_turn_is_the_batch_policy_and_stepping_aside_the_idle_one(name: str, policy: str) -> None:
    code = f"import os; from rollmill.core.machine import {name} as f; f(); print(os.sched_getscheduler(0))"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert int(done.stdout) == getattr(os, policy)


@pytest.mark.skipif(sys.platform != "linux", reason="Linux")
def test_sleeping_exactly_leaves_the_timer_no_slack() -> None:
    # A process begins with the slack of the thread that starts it; a training in this process may have set that to 1.
    code = (
        "import ctypes; from rollmill.core.machine import sleep_exactly as f; prctl = ctypes.CDLL(None).prctl; "
        "prctl(29, 50_000, 0, 0, 0); before = prctl(30, 0, 0, 0, 0); f(); print(before, prctl(30, 0, 0, 0, 0))"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    before, after = map(int, done.stdout.split())
    assert after == 1 < before


@pytest.mark.parametrize("ask", [wait_for_turn, step_aside])
def test_where_the_policy_is_forbidden_nothing_happens(
    monkeypatch: pytest.MonkeyPatch, ask: Callable[[], None]
) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "sched_setscheduler", refuse, raising=False)
    ask()


def test_the_users_cache_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert machine.cache_folder() == tmp_path / "rollmill"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert machine.cache_folder() == Path.home() / ".cache" / "rollmill"
