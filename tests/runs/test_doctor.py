"""Planted faults, and whether the doctor finds them."""

from __future__ import annotations

import importlib.util
import os
import resource
import socket
import subprocess
import sys
import time
import tomllib
from collections import namedtuple
from collections.abc import Iterator
from pathlib import Path

import pytest
from disks import mounted
from running import ROOT, hostile_folder

from rollmill.core import janitor_main
from rollmill.core.errors import ConfigError
from rollmill.runs import doctor, gl_version
from rollmill.runs.doctor import EXTRAS, Finding, check_machine

Usage = namedtuple("Usage", "total used free")


def of(findings: Iterator[Finding], topic: str) -> dict[str, str]:
    """Texts by level."""
    return {finding.level: f"{finding.text} | {finding.advice}" for finding in findings if finding.topic == topic}


def test_a_whole_examination(tmp_path: Path) -> None:
    findings = check_machine(tmp_path)
    topics = {"versions", "cores", "GPU", "display", "GL", "shared memory", "leftovers", "disk", "run folder", "limits"}
    assert topics <= {finding.topic for finding in findings}
    for finding in findings:
        assert finding.text
        assert bool(finding.advice) == (finding.level != "good"), "what is not good has an advice"


def test_it_runs_no_code_of_the_current_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "_loads", lambda name: True)  # so that the driver is asked, on every machine
    marker = hostile_folder(tmp_path / "downloaded")
    monkeypatch.chdir(tmp_path / "downloaded")
    assert of(check_machine(tmp_path), "OpenGL")
    assert not marker.exists()


# -- shared memory -----------------------------------------------------------------------------------------


@pytest.fixture
def shared_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """In the place of /dev/shm, whose leftovers any run that ends may sweep away."""
    folder = tmp_path / "shm"
    folder.mkdir()
    monkeypatch.setattr(janitor_main, "SHARED_MEMORY", str(folder))
    return folder


def plant(folder: Path, name: str, age: float = 60.0) -> Path:
    path = folder / name
    path.write_bytes(bytes(5000))
    os.utime(path, (time.time() - age, time.time() - age))
    return path


def test_a_leftover_segment_is_found_and_cleaned(shared_memory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "orphan_engines", list)  # those of the machine, which others may have left meanwhile
    assert of(doctor.check_leftovers(), "leftovers").keys() == {"good"}
    old, young = plant(shared_memory, "ViZDoomSMabc"), plant(shared_memory, "ViZDoomSMdef", age=-3600)
    foreign = plant(shared_memory, "somebody_else")
    found = of(doctor.check_leftovers(), "leftovers")["warn"]
    assert "1 ViZDoom segments" in found
    assert "ViZDoomSMabc" in found
    assert "--clean" in found
    assert doctor.clean_leftovers() == ["ViZDoomSMabc"]
    assert not old.exists()
    assert young.exists()
    assert foreign.exists()


def test_an_orphaned_engine_is_found() -> None:
    """A process that looks like an engine and whose parent is gone."""
    pretend = "import os; os.read(0, 1)"
    command = [sys.executable, "-S", "-c", pretend, "+viz_instance_id", "abcdefghij"]
    read, write = os.pipe()
    middle = f"import subprocess; print(subprocess.Popen({command!r}, stdin={read}, stdout=-3, stderr=-3).pid)"
    done = subprocess.run([sys.executable, "-S", "-c", middle], pass_fds=(read,), capture_output=True, text=True)
    os.close(read)
    pid = int(done.stdout)
    try:
        if Path(f"/proc/{pid}/stat").read_text().split()[3] != "1" and pid not in doctor.orphan_engines():
            pytest.skip("orphans are taken in by a process of unknown name here")
        assert pid in doctor.orphan_engines()
        assert f"kill -9 {pid}" in of(doctor.check_leftovers(), "leftovers")["warn"] or len(doctor.orphan_engines()) > 1
    finally:
        os.close(write)


def test_an_engine_with_a_parent_is_none() -> None:
    command = [sys.executable, "-S", "-c", "import os; os.read(0, 1)", "+viz_instance_id", "abcdefghij"]
    with subprocess.Popen(command, stdin=subprocess.PIPE) as process:
        assert janitor_main.can_look()
        assert process.pid not in doctor.orphan_engines()
        process.communicate(b"")


@pytest.mark.parametrize(
    ("usage", "level"), [(Usage(64e6, 0, 64e6), "warn"), (Usage(8e9, 8e9, 1e6), "bad"), (Usage(8e9, 0, 8e9), "good")]
)
def test_little_shared_memory(monkeypatch: pytest.MonkeyPatch, usage: Usage, level: str) -> None:
    monkeypatch.setattr(doctor.shutil, "disk_usage", lambda _: usage)
    assert of(doctor.check_shared_memory(), "shared memory").keys() == {level}


def test_no_shared_memory_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(janitor_main, "SHARED_MEMORY", str(tmp_path / "none"))
    assert "mount -t tmpfs" in of(doctor.check_shared_memory(), "shared memory")["warn"]


# -- disk --------------------------------------------------------------------------------------------------


def test_a_run_folder_that_cannot_be_written(tmp_path: Path) -> None:
    with mounted(tmp_path / "disk", "1m") as disk:
        subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
        found = of(doctor.check_disk(disk / "not" / "there"), "run folder")
    assert "Read-only file system" in found["bad"]
    assert "choose another run.dir" in found["bad"]


def test_a_full_disk(tmp_path: Path) -> None:
    with mounted(tmp_path / "disk", "1m") as disk:
        assert "make room" in of(doctor.check_disk(disk), "disk")["bad"]
        (disk / "full").write_bytes(bytes(1 << 20))
        assert "No space left" in of(doctor.check_disk(disk), "run folder")["bad"]


def test_a_file_in_the_place_of_the_folder(tmp_path: Path) -> None:
    (tmp_path / "runs").write_text("")
    assert "is a file" in of(doctor.check_disk(tmp_path / "runs" / "x"), "run folder")["bad"]


def test_files_that_cannot_be_locked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(37, "No locks available")

    monkeypatch.setattr(doctor.fcntl, "flock", refuse)
    assert "No locks available" in of(doctor.check_disk(tmp_path), "run folder")["bad"]


def test_a_good_folder_is_left_as_it_was(tmp_path: Path) -> None:
    assert of(doctor.check_disk(tmp_path / "runs"), "run folder").keys() == {"good"}
    assert list(tmp_path.iterdir()) == []


# -- packages ----------------------------------------------------------------------------------------------


def without(monkeypatch: pytest.MonkeyPatch, *missing: str) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *a: None if name in missing else find(name, *a))


def test_a_missing_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    without(monkeypatch, "vizdoom")
    assert 'pip install "rollmill[vizdoom]"' in [finding.advice for finding in doctor.check_extras()]
    needed = of(doctor.check_extras(["vizdoom"]), "extras")["bad"]
    assert "needed and not installed (lacks vizdoom)" in needed


def test_an_extra_that_does_not_exist(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"--need vizdom: no such extra; did you mean 'vizdoom'"):
        check_machine(tmp_path, ["vizdom"])


def test_every_extra_is_known() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert set(EXTRAS) >= set(project["optional-dependencies"]) - {"dev", "docs", "demo"}


def test_a_missing_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "PACKAGES", ("numpy", "no-such-package"))
    assert "pip install no-such-package" in of(doctor.check_versions(), "versions")["bad"]


def test_a_torch_that_cannot_be_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    assert "cannot be imported" in of(doctor.check_gpu(), "torch")["bad"]


def test_a_gpu_that_torch_cannot_use(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(doctor, "may_have_gpu", lambda: True)
    assert "torch cannot use it" in of(doctor.check_gpu(), "GPU")["warn"]


# -- display and limits ------------------------------------------------------------------------------------


def test_displays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WAYLAND_DISPLAY", raising=False)
    monkeypatch.delenv("DISPLAY", raising=False)
    assert "none" in of(doctor.check_display(), "display")["good"]
    for name in (":473", "nonsense:x", "127.0.0.1:59000"):
        monkeypatch.setenv("DISPLAY", name)
        assert "unset DISPLAY" in of(doctor.check_display(), "display")["warn"]
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        if port > 6000:
            monkeypatch.setenv("DISPLAY", f"127.0.0.1:{port - 6000}.0")
            assert "answers" in of(doctor.check_display(), "display")["good"]


def test_a_renderer_that_is_asked_for_and_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "_loads", lambda name: name == "GL")
    monkeypatch.setenv("MUJOCO_GL", "egl")
    assert "libEGL does not load" in of(doctor.check_gl(), "GL")["bad"]
    monkeypatch.delenv("MUJOCO_GL")
    assert "libGL" in of(doctor.check_gl(), "GL")["good"]
    monkeypatch.setattr(doctor, "_loads", lambda name: False)
    assert "apt install" in of(doctor.check_gl(), "GL")["warn"]


@pytest.mark.parametrize(
    ("said", "level", "text"),
    [
        ("4.5 (Compatibility Profile) Mesa 22.3.6", "good", "OpenGL 4.5"),
        ("3.2", "good", "OpenGL 3.2"),
        ("3.1 Mesa", "warn", "3.1 Mesa is below 3.2"),
        ("2.1 INTEL", "warn", "below 3.2"),
        ("", "warn", "cannot be told"),
    ],
)
def test_opengl_must_be_new_enough(monkeypatch: pytest.MonkeyPatch, said: str, level: str, text: str) -> None:
    monkeypatch.setattr(doctor, "_loads", lambda name: True)
    monkeypatch.setattr(gl_version, "ask", lambda: said)
    monkeypatch.delenv("MUJOCO_GL", raising=False)
    assert text in of(doctor.check_gl(), "OpenGL")[level]


@pytest.mark.skipif(not doctor._loads("EGL"), reason="libEGL is not installed")
def test_the_driver_is_asked_without_a_window() -> None:
    said = gl_version.ask()
    assert gl_version.numbers(said), said
    assert gl_version.numbers("nothing") is None


def test_a_library_that_does_not_exist() -> None:
    assert not doctor._loads("no_such_library_anywhere")


def test_few_open_files(monkeypatch: pytest.MonkeyPatch) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
    try:
        assert "ulimit -n" in of(doctor.check_limits(), "limits")["warn"]
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_busy_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "getloadavg", lambda: (1000.0, 0.0, 0.0))
    assert "mean little" in of(doctor.check_cores(), "cores")["warn"]


def test_a_run_folder_that_cannot_be_looked_for() -> None:
    assert "too long" in of(doctor.check_disk(Path("x" * 300)), "run folder")["bad"]


def test_little_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "available_memory", lambda: 4e8)
    assert "400 MB" in of(doctor.check_memory(), "memory")["warn"]
