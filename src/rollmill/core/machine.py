"""What this process may use of the machine: cores, memory and accelerators, asked without importing torch."""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys
from collections.abc import Collection, Iterator
from pathlib import Path

PROC = Path("/proc")
CGROUPS = Path("/sys/fs/cgroup")
DEVICES = Path("/dev")


def cache_folder() -> Path:
    """Return the folder where this user's programs keep what they can do without."""
    own = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(own) if own.startswith("/") else Path.home() / ".cache") / "rollmill"


def usable_cores() -> list[int]:
    """Return the numbers of the cores this process may run on; none where the system does not say."""
    return sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []


_before_pinning: list[int] = []


def keep_to(cores: Collection[int]) -> None:
    """Keep the calling thread, and all that it starts, to these cores; none: leave it as it is."""
    if cores and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, cores)


def keep_threads_to(cores: Collection[int]) -> None:
    """Keep every thread of this process to these cores, as ``keep_to`` does for one; none: leave them as they are."""
    if cores and hasattr(os, "sched_setaffinity"):
        for thread in os.listdir("/proc/self/task"):
            with contextlib.suppress(ProcessLookupError):  # it has just ended
                os.sched_setaffinity(int(thread), cores)


def pin_to(core: int) -> None:
    """Keep this process, and all that it starts, to one core."""
    _before_pinning[:] = usable_cores()
    keep_to({core})


def cores_of_run() -> list[int]:
    """Return the cores this process had before ``pin_to``: for a simulator that needs several at once."""
    return _before_pinning or usable_cores()


def wait_for_turn() -> None:
    """Do not interrupt, from now on, whoever wakes this process (Linux: the batch policy of the scheduler).

    For two processes that share a core and talk through a queue: the one that is woken would run at once, find the
    queue still locked by the other, and give the core back; each hand-over would take four switches instead of two.
    """
    if hasattr(os, "sched_setscheduler"):
        _set_policy(os.SCHED_BATCH)


def step_aside() -> None:
    """Run, from now on, only while nobody else wants the core, with all that is started (Linux: the idle policy).

    Anybody of another policy who wakes up there takes the core at once.
    """
    if hasattr(os, "sched_setscheduler"):
        _set_policy(os.SCHED_IDLE)


def sleep_exactly() -> None:
    """Have the short sleeps of this thread end in time: by default Linux may add 50 microseconds to each."""
    if sys.platform == "linux":
        pr_set_timerslack, nanoseconds = 29, 1
        ctypes.CDLL(None).prctl(pr_set_timerslack, nanoseconds, 0, 0, 0)


def _set_policy(policy: int) -> None:
    with contextlib.suppress(OSError):  # some sandboxes do not allow it
        os.sched_setscheduler(0, policy, os.sched_param(0))


def available_cores() -> int:
    """Return how many cores this process can keep busy: its CPU affinity, and no more than its cgroups' time allows.

    A container often sees every core of its host and may use the time of a few.
    """
    visible = len(usable_cores()) or os.cpu_count() or 1
    return max(1, min(visible, int(cpu_quota() or visible)))


def cpu_quota(proc: Path | None = None, cgroups: Path | None = None) -> float | None:
    """Return how many cores' worth of CPU time the cgroups of this process may use; None without a limit."""
    proc, cgroups = proc or PROC, cgroups or CGROUPS
    try:
        lines = (proc / "self/cgroup").read_text().splitlines()
    except OSError:
        return None  # not Linux
    limits = [quota for line in lines for quota in _quotas(line, cgroups)]
    return min(limits, default=None)


def _quotas(line: str, cgroups: Path) -> Iterator[float]:
    """Yield the limits of one line of ``/proc/self/cgroup`` (``id:controllers:path``): its group's and all above it."""
    _, controllers, path = line.split(":", 2)
    if controllers and "cpu" not in controllers.split(","):
        return
    mounts = [cgroups / controllers, cgroups / "cpu"] if controllers else [cgroups, cgroups / "unified"]
    mount = next((mount for mount in mounts if mount.is_dir()), None)
    if mount is None:
        return
    # Inside a container the path may be the host's, which is not mounted: then the limit is at the top.
    group = mount / path.strip("/")
    for folder in (group, *group.parents):
        quota = _read_quota(folder)
        if quota is not None:
            yield quota
        if folder == mount:
            return


def _read_quota(folder: Path) -> float | None:
    """Read the limit of one cgroup: ``cpu.max`` (version 2) or ``cpu.cfs_*`` (version 1)."""
    try:
        if (folder / "cpu.max").is_file():
            quota, period = (folder / "cpu.max").read_text().split()
        else:
            quota, period = ((folder / f"cpu.cfs_{name}_us").read_text().strip() for name in ("quota", "period"))
    except OSError:
        return None
    return None if quota in ("max", "-1") else int(quota) / int(period)


def available_memory(proc: Path | None = None, cgroups: Path | None = None) -> float | None:
    """Return the bytes that can still be used: of the machine, or of the container if less; None where unknown."""
    proc, cgroups = proc or PROC, cgroups or CGROUPS
    try:
        lines = dict(line.split(":", 1) for line in (proc / "meminfo").read_text().splitlines() if ":" in line)
        free = float(lines["MemAvailable"].split()[0]) * 1024
    except (OSError, KeyError):
        return None
    try:
        limit, used = ((cgroups / name).read_text().strip() for name in ("memory.max", "memory.current"))
    except OSError:
        return free
    return free if limit == "max" else min(free, max(0.0, float(limit) - float(used)))


def may_have_gpu(devices: Path | None = None) -> bool:
    """Return whether it is worth asking torch for a GPU: importing it takes seconds, looking for devices does not."""
    devices = devices or DEVICES
    return any(devices.glob("nvidia[0-9]*")) or (devices / "kfd").exists() or (devices / "dxg").exists()


def has_fast_bfloat16(proc: Path | None = None) -> bool:
    """Return whether the CPU multiplies bfloat16 in hardware; on others it is many times slower than float32."""
    try:
        text = ((proc or PROC) / "cpuinfo").read_text()
    except OSError:
        return False
    flags = next((line for line in text.splitlines() if line.startswith(("flags", "Features"))), "")
    return not {"avx512_bf16", "amx_bf16", "bf16"}.isdisjoint(flags.split())
