"""What is no file is refused at once and by name, instead of being waited for."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest
from unprivileged import run_unprivileged

from rollmill.core import opening
from rollmill.core.opening import (
    MOST_DEPTH,
    parse_json,
    plain_file,
    read_bytes,
    read_json,
    read_lines,
    read_text,
    why_not_readable,
)


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


def test_files_have_a_largest_size(tmp_path: Path) -> None:
    (tmp_path / "x").write_text("12345")
    assert read_bytes(tmp_path / "x", most=5) == b"12345"
    for read in (read_bytes, read_text):
        with pytest.raises(OSError, match="it has more than 4 bytes"):
            read(tmp_path / "x", most=4)
    with open(tmp_path / "sparse", "wb") as file:
        file.truncate(10**12)
    with pytest.raises(OSError, match=r"it has more than [\d,]+ bytes"):
        read_json(tmp_path / "sparse")


def test_lines_have_a_largest_length(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "x").write_bytes(b"one\n\nthree")
    assert list(read_lines(tmp_path / "x")) == [b"one\n", b"\n", b"three"]
    monkeypatch.setattr(opening, "MOST_LINE_BYTES", 4)
    with pytest.raises(OSError, match="a line has more than 4 bytes"):
        list(read_lines(tmp_path / "x"))


def test_links_may_have_to_stay_within_a_folder(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    (folder / "below").mkdir(parents=True)
    (folder / "x").write_text("1")
    (folder / "below" / "link").symlink_to("../x")
    (tmp_path / "secret").write_text("2")
    (folder / "out").symlink_to("../secret")
    (folder / "loop").symlink_to("loop")
    (tmp_path / "other").symlink_to(folder)
    assert read_json(folder / "below" / "link", within=folder) == 1
    assert read_json(tmp_path / "other" / "x", within=tmp_path / "other") == 1
    assert read_json(folder / "out") == 2
    for path in (folder / "out", folder / "below" / ".." / ".." / "secret"):
        with pytest.raises(OSError, match="it is a link that leads out of"):
            read_json(path, within=folder)
    with pytest.raises(OSError, match="Too many levels"):
        read_bytes(folder / "loop", within=folder)


@pytest.mark.parametrize("depth", [MOST_DEPTH + 1, 400, 5000, 100_000])
def test_json_has_a_largest_depth(depth: int) -> None:
    for text in ("[" * depth + "]" * depth, '{"a":' * depth + "1" + "}" * depth):
        with pytest.raises(ValueError, match="nested more than 64 deep"):
            parse_json(text)


def test_json_that_is_good_is_read(tmp_path: Path) -> None:
    deep = "[" * (MOST_DEPTH - 1) + "1" + "]" * (MOST_DEPTH - 1)
    (tmp_path / "x").write_text(f'{{"a": {deep}, "b": [{2**64 - 1}, -1.5e3, null]}}')
    assert read_json(tmp_path / "x")["b"] == [2**64 - 1, -1500.0, None]
    with pytest.raises(ValueError, match="an integer of 400 digits"):
        parse_json("1" * 400)
