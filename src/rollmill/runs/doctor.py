"""``rollmill doctor``: is this machine fit for a run? Every check is a small function that gives findings.

A finding is ``good``, a ``warn`` (works, but slower, smaller or not everything) or ``bad`` (a run would fail). It says
what was seen and what to do about it. Nothing is changed, but by ``clean_leftovers``, when asked for.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import fcntl
import importlib.metadata
import importlib.util
import os
import platform
import resource
import shutil
import socket
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from rollmill.core import janitor_main
from rollmill.core.errors import ConfigError
from rollmill.core.janitor import find_stale_segments, sweep_stale_segments
from rollmill.core.machine import available_cores, available_memory, cpu_quota, may_have_gpu, usable_cores
from rollmill.core.text import bytes_text, nearest
from rollmill.envs.make import NAMED
from rollmill.monitor.usage import descendants
from rollmill.runs import gl_version

Level = Literal["good", "warn", "bad"]

PACKAGES = ("torch", "numpy", "gymnasium", "pydantic", "rich", "tensorboardX", "zstandard", "msgpack")
_OF_ENVS = [(entry.extra, entry.package) for entry in NAMED.values() if entry.extra and not entry.install]
EXTRAS: dict[str, tuple[str, ...]] = {
    **{extra: tuple(dict.fromkeys(package for other, package in _OF_ENVS if other == extra)) for extra, _ in _OF_ENVS},
    "vizdoom": ("vizdoom", "cv2"),
    "classic": ("pygame",),
    "mujoco": ("mujoco",),
    "atari": ("ale_py", "cv2"),
    "wandb": ("wandb",),
    "trackio": ("trackio",),
    "ray": ("ray",),
    "world": ("cma",),
    "tensorboard": ("tensorboard",),
    "profile": ("py_spy",),
    "minari": ("minari", "h5py"),
    "parquet": ("pyarrow",),
    "video": ("av",),
    "hub": ("huggingface_hub",),
    "optuna": ("optuna",),
    "export": ("safetensors", "onnx", "onnxscript", "onnxruntime"),
    "viewer": ("starlette", "uvicorn"),
    "notebook": ("ipykernel", "matplotlib", "pandas"),
}
"""Extras of the package, with what they install by the names it is imported under; those of environments, unless they
bring more, are told by ``envs.make.NAMED``."""
PROGRAMS = {"py_spy": "py-spy"}
"""Packages that bring a program instead of a module."""
LOW_DISK, NO_DISK = 5e9, 0.2e9
SMALL_SHM, NO_SHM = 256e6, 16e6
"""Bytes. A ViZDoom engine needs some 5 MB of /dev/shm; Docker's default is 64 MB for all of them."""
LOW_MEMORY = 1e9
FEW_FILES, FEW_PROCESSES = 1024, 512


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at."""

    topic: str
    level: Level
    text: str
    advice: str = ""
    """What to do; empty where all is well."""


def check_machine(run_dir: Path, need: Sequence[str] = ()) -> list[Finding]:
    """Return all findings; ``need``: extras without which the job would fail."""
    unknown = [name for name in need if name not in EXTRAS]
    if unknown:
        hint = nearest(unknown[0], EXTRAS)
        raise ConfigError(f"--need {unknown[0]}: no such extra; {hint or 'known: ' + ', '.join(EXTRAS)}")
    checks: tuple[Callable[[], Iterator[Finding]], ...] = (
        check_versions,
        check_cores,
        check_memory,
        check_gpu,
        check_display,
        check_gl,
        check_shared_memory,
        check_leftovers,
        lambda: check_disk(run_dir),
        check_limits,
        lambda: check_extras(need),
    )
    return [finding for check in checks for finding in check()]


def is_fit(findings: Sequence[Finding]) -> bool:
    return all(finding.level != "bad" for finding in findings)


# -- software -------------------------------------------------------------------------------------------------


def check_versions() -> Iterator[Finding]:
    if sys.platform != "linux":
        text = f"{platform.system()}: made for Linux; processes of a killed run are not cleaned up here"
        yield Finding("system", "warn", text, "use Linux for anything that runs long")
    found, missing = [f"Python {platform.python_version()}"], []
    for package in PACKAGES:
        try:
            found.append(f"{package} {importlib.metadata.version(package)}")
        except importlib.metadata.PackageNotFoundError:
            missing.append(package)
    yield Finding("versions", "good", ", ".join(found))
    if missing:
        text = f"not installed: {', '.join(missing)}"
        yield Finding("versions", "bad", text, f"pip install {' '.join(missing)}")


def check_extras(need: Sequence[str] = ()) -> Iterator[Finding]:
    """Find extras that are there, those that are not, and (bad) those that are needed and not there."""
    missing = {extra: lacking for extra, modules in EXTRAS.items() if (lacking := _lacking(modules))}
    there = [extra for extra in EXTRAS if extra not in missing]
    yield Finding("extras", "good", f"ready: {', '.join(there) or 'none'}")
    for extra, lacking in missing.items():
        wanted = extra in need
        text = f"{extra} is {'needed and ' if wanted else ''}not installed (lacks {', '.join(lacking)})"
        yield Finding("extras", "bad" if wanted else "warn", text, f'pip install "rollmill[{extra}]"')


def _lacking(modules: Sequence[str]) -> list[str]:
    return [name for name in modules if not _is_there(name)]


def _is_there(name: str) -> bool:
    if name in PROGRAMS:
        beside = Path(sys.executable).parent / PROGRAMS[name]
        return beside.exists() or shutil.which(PROGRAMS[name]) is not None
    return importlib.util.find_spec(name) is not None


# -- cores, memory, GPU ---------------------------------------------------------------------------------------


def check_cores() -> Iterator[Finding]:
    visible, usable, quota = os.cpu_count() or 1, len(usable_cores()), cpu_quota()
    text = f"{available_cores()} of {visible} cores can be kept busy"
    if quota is not None and quota < usable:
        text += f" (the container's quota is {quota:g})"
    threads = os.environ.get("OMP_NUM_THREADS")
    yield Finding("cores", "good", f"{text}; OMP_NUM_THREADS is {threads or 'not set (workers get 1)'}")
    load = os.getloadavg()[0]
    if load > 1.5 * visible:
        text = f"{load:.1f} processes want to run on {visible} cores: rates measured now mean little"
        yield Finding("cores", "warn", text, "wait, or end what else runs here (`top` shows it)")


def check_memory() -> Iterator[Finding]:
    available = available_memory()
    if available is None:
        return
    if available < LOW_MEMORY:
        text = f"{bytes_text(available)} of memory are free"
        yield Finding("memory", "warn", text, "fewer workers (sampling.workers), smaller batches, or a larger machine")
    else:
        yield Finding("memory", "good", f"{bytes_text(available)} of memory are free")


def check_gpu() -> Iterator[Finding]:
    try:
        import torch
    except ImportError as error:
        yield Finding("torch", "bad", f"torch cannot be imported: {error}", "install it anew: https://pytorch.org")
        return
    build = f"torch {torch.__version__}, {'CUDA ' + torch.version.cuda if torch.version.cuda else 'built for CPUs'}"
    if torch.cuda.is_available():
        for k in range(torch.cuda.device_count()):
            free, total = torch.cuda.mem_get_info(k)
            text = f"{torch.cuda.get_device_name(k)}: {bytes_text(free)} of {bytes_text(total)} free; {build}"
            busy = free < 0.2 * total
            yield Finding("GPU", "warn" if busy else "good", text, "somebody else uses it: nvidia-smi" if busy else "")
    elif may_have_gpu():
        yield Finding(
            "GPU",
            "warn",
            f"there is a GPU, but torch cannot use it ({build})",
            "install a torch with CUDA that fits the driver (nvidia-smi shows the driver's CUDA version)",
        )
    else:
        yield Finding("GPU", "good", f"no GPU here, learning runs on the cores; {build}")


# -- images -------------------------------------------------------------------------------------------------


def check_display() -> Iterator[Finding]:
    name = os.environ.get("DISPLAY", "")
    if not name and os.environ.get("WAYLAND_DISPLAY"):
        yield Finding("display", "good", "a Wayland display")
    elif not name:
        yield Finding("display", "good", "none: training, evaluation and videos need none; windows cannot be opened")
    elif problem := _cannot_reach(name):
        yield Finding("display", "warn", f"DISPLAY={name}, but {problem}", "unset DISPLAY, or start the X server")
    else:
        yield Finding("display", "good", f"DISPLAY={name} answers")


def _cannot_reach(display: str) -> str:
    """Return why the X server behind a display's name does not answer; empty if it does."""
    host, _, rest = display.rpartition(":")
    number = rest.partition(".")[0]
    if not number.isdigit():
        return "that is not the name of a display"
    try:
        if host in ("", "unix"):
            with socket.socket(socket.AF_UNIX) as peer:
                peer.settimeout(2)
                peer.connect(f"/tmp/.X11-unix/X{number}")
        else:
            socket.create_connection((host, 6000 + int(number)), timeout=2).close()
    except OSError as error:
        return f"nothing answers there ({error.strerror or error})"
    return ""


def check_gl() -> Iterator[Finding]:
    """Look for libraries that draw without a window: MuJoCo's images need one of them."""
    found = {name: _loads(name) for name in ("EGL", "OSMesa", "GL")}
    there = [name for name, loads in found.items() if loads]
    wanted = {"egl": "EGL", "osmesa": "OSMesa", "glfw": "GL"}.get(os.environ.get("MUJOCO_GL", "").lower())
    if wanted is not None and not found[wanted]:
        text = f"MUJOCO_GL={os.environ['MUJOCO_GL']}, but lib{wanted} does not load"
        yield Finding("GL", "bad", text, f"unset MUJOCO_GL, or install it: apt install {_PACKAGE[wanted]}")
    elif there:
        yield Finding("GL", "good", f"{', '.join(f'lib{name}' for name in there)} can be loaded")
        yield from _check_gl_version(found["EGL"])
    else:
        text = "neither EGL, OSMesa nor GL: MuJoCo cannot draw images (training from states needs none)"
        yield Finding("GL", "warn", text, f"apt install {_PACKAGE['EGL']}")


def _check_gl_version(egl: bool) -> Iterator[Finding]:
    """Look which OpenGL there is; only EGL can be asked without a window.

    Simulators that draw by shaders (Unity, MuJoCo) need OpenGL 3.2.
    """
    said = gl_version.ask() if egl else ""
    version = gl_version.numbers(said)
    if version is None:
        text = "which OpenGL there is cannot be told without a display: EGL gives no context"
        yield Finding("OpenGL", "warn", text, f"for images of Unity and MuJoCo: apt install {_PACKAGE['EGL']}")
    elif version < NEEDED_GL:
        needed = ".".join(map(str, NEEDED_GL))
        text = f"OpenGL {said} is below {needed}: Unity builds and MuJoCo cannot draw"
        yield Finding("OpenGL", "warn", text, f"install the driver of the GPU, or Mesa: apt install {_PACKAGE['EGL']}")
    else:
        yield Finding("OpenGL", "good", f"OpenGL {said}")


NEEDED_GL = (3, 2)
_PACKAGE = {"EGL": "libegl1 libgl1-mesa-dri libgles2", "OSMesa": "libosmesa6", "GL": "libgl1"}


def _loads(name: str) -> bool:
    path = ctypes.util.find_library(name)
    if path is None:
        return False
    try:
        ctypes.CDLL(path)
    except OSError:
        return False
    return True


# -- shared memory and leftovers ------------------------------------------------------------------------------


def check_shared_memory() -> Iterator[Finding]:
    folder = Path(janitor_main.SHARED_MEMORY)
    try:
        usage = shutil.disk_usage(folder)
    except OSError as error:
        text = f"{folder}: {error.strerror or error}; ViZDoom cannot run without it"
        yield Finding("shared memory", "warn", text, f"mount -t tmpfs tmpfs {folder}")
        return
    text = f"{folder}: {bytes_text(usage.free)} of {bytes_text(usage.total)} free"
    advice = "in Docker: --shm-size=2g (or --ipc=host); else: mount -o remount,size=2g /dev/shm"
    level: Level = "bad" if usage.free < NO_SHM else "warn" if usage.total < SMALL_SHM else "good"
    yield Finding("shared memory", level, text, "" if level == "good" else advice)


def check_leftovers() -> Iterator[Finding]:
    stale = [segment for segment in find_stale_segments() if segment.age >= janitor_main.SEGMENT_AGE]
    if stale:
        total = bytes_text(sum(segment.nbytes for segment in stale))
        names = ", ".join(segment.name for segment in stale[:3]) + (", ..." if len(stale) > 3 else "")
        text = f"{len(stale)} ViZDoom segments that nobody uses, {total} ({names})"
        yield Finding("leftovers", "warn", text, "rollmill doctor --clean removes them")
    orphans = orphan_engines()
    if orphans:
        pids = " ".join(map(str, orphans))
        text = f"{len(orphans)} ViZDoom engines whose run is gone (pid {pids})"
        yield Finding("leftovers", "warn", text, f"if they are yours: kill -9 {pids}, then rollmill doctor --clean")
    if not stale and not orphans:
        yield Finding("leftovers", "good", "none")


def orphan_engines() -> list[int]:
    """Return this user's ViZDoom engines that no Python process has started, or no longer."""
    if not janitor_main.can_look():
        return []
    every = descendants(1)
    engines = [pid for pid in janitor_main.processes() if janitor_main.vizdoom_instance(pid)]
    return [pid for pid in engines if pid in every and _is_orphan(pid, every[pid].parent)]


def _is_orphan(pid: int, parent: int) -> bool:
    try:
        return Path(f"/proc/{pid}").stat().st_uid == os.getuid() and (parent == 1 or _is_reaper(parent))
    except OSError:  # ended meanwhile
        return False


def _is_reaper(pid: int) -> bool:
    """Return whether a process is one that takes in orphans (an init of a container or of a session)."""
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip() in ("systemd", "init", "tini", "dumb-init", "docker-init")
    except OSError:
        return False


def clean_leftovers() -> list[str]:
    """Remove ViZDoom segments that nobody uses; returns their names. Running games are not touched."""
    return sweep_stale_segments()


# -- disk and limits ------------------------------------------------------------------------------------------


def check_disk(run_dir: Path) -> Iterator[Finding]:
    """Look at space and permission where runs will lie; the nearest folder that exists stands for it."""
    there = run_dir.absolute()
    try:
        while not there.exists():
            there = there.parent
        is_folder = there.is_dir()
    except OSError as error:  # a folder above that nobody may look into, a name that is too long
        yield Finding("run folder", "bad", f"{there}: {error.strerror or error}", "choose another run.dir")
        return
    if not is_folder:
        yield Finding("run folder", "bad", f"{there} is a file", "choose another run.dir")
        return
    free = shutil.disk_usage(there).free
    level: Level = "bad" if free < NO_DISK else "warn" if free < LOW_DISK else "good"
    advice = "" if level == "good" else "make room, or choose another run.dir"
    yield Finding("disk", level, f"{there}: {bytes_text(free)} free", advice)
    yield _write_permission(there)


def _write_permission(folder: Path) -> Finding:
    """Try to write and lock a file: permissions, read-only mounts and quotas all count, and locks must work, too."""
    advice = "choose another run.dir, or change its owner or its mount"
    try:
        with tempfile.NamedTemporaryFile(dir=folder, prefix=".doctor-") as file:
            file.write(bytes(4096))
            file.flush()
            os.fsync(file.fileno())
            try:
                fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                text = f"{folder}: files cannot be locked ({error.strerror or error}), so runs cannot be protected"
                return Finding("run folder", "bad", text, advice)
    except OSError as error:
        return Finding("run folder", "bad", f"{folder}: cannot be written: {error.strerror or error}", advice)
    return Finding("run folder", "good", f"{folder}: can be written and locked")


def check_limits() -> Iterator[Finding]:
    for name, number, few, advice in (
        ("open files", resource.RLIMIT_NOFILE, FEW_FILES, "ulimit -n 65536"),
        ("processes", resource.RLIMIT_NPROC, FEW_PROCESSES, "ulimit -u 8192"),
    ):
        soft, _ = resource.getrlimit(number)
        text = f"{name}: {'no limit' if soft == resource.RLIM_INFINITY else f'{soft:,}'}"
        low = soft != resource.RLIM_INFINITY and soft < few
        yield Finding("limits", "warn" if low else "good", text, advice if low else "")
