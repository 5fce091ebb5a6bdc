"""What is no file is refused at once and by name, instead of being waited for."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest
from unprivileged import run_unprivileged

from rollmill.core.opening import plain_file, read_text, why_not_readable


def make_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))


ODD: dict[str, tuple[Callable[[Path], object], str]] = {
    "folder": (Path.mkdir, "it is a folder, not a file"),
    "FIFO": (os.mkfifo, "it is a FIFO, not a file"),
    "device": (lambda path: path.symlink_to("/dev/zero"), "it is a device, not a file"),
    "socket": (make_socket, "it is a socket, not a file"),
    "loop": (lambda path: path.symlink_to(path.name), "Too many levels of symbolic links"),
    "dangling": (lambda path: path.symlink_to("nowhere"), "it is a link to nowhere"),
}


@pytest.mark.parametrize("kind", ODD)
def test_what_is_no_file_is_refused_by_name(tmp_path: Path, kind: str) -> None:
    make, reason = ODD[kind]
    make(tmp_path / "x")
    assert why_not_readable(tmp_path / "x") == reason
    with pytest.raises(OSError) as caught, open(tmp_path / "x", "rb", opener=plain_file):
        pass
    if kind in ("folder", "FIFO", "device"):  # the others the system refuses itself
        assert caught.value.strerror == reason


def test_files_are_opened(tmp_path: Path) -> None:
    (tmp_path / "x").write_text("Grüße", encoding="utf-8")
    (tmp_path / "link").symlink_to("x")
    for name in ("x", "link"):
        assert why_not_readable(tmp_path / name) == ""
        assert read_text(tmp_path / name) == "Grüße"
        with open(tmp_path / name, "rb", buffering=0, opener=plain_file) as file:
            assert not os.get_inheritable(file.fileno())
    with pytest.raises(FileNotFoundError):
        why_not_readable(tmp_path / "nothing")


def test_a_file_without_permission(tmp_path: Path) -> None:
    (tmp_path / "x").write_text("secret")
    (tmp_path / "x").chmod(0)
    code = "from pathlib import Path; from rollmill.core.opening import *; print(why_not_readable(Path('x')))"
    assert run_unprivileged(["-c", code], tmp_path).stdout == "Permission denied\n"
