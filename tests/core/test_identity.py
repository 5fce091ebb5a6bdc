"""Processes told apart: by more than their pids."""

import dataclasses
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from running import wait_until

from rollmill.core import identity
from rollmill.core.identity import Identity


def test_a_process_is_told_from_another_with_its_pid() -> None:
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, start_new_session=True)
    found = Identity.of(process.pid)
    assert found is not None
    assert found.alive
    assert Identity.from_dict(found.to_dict()) == found
    other = dataclasses.replace(found, started=found.started + 1)
    assert not other.alive
    assert not other.signal_group(signal.SIGKILL), "not ours: left alone"
    assert not dataclasses.replace(found, boot="before").alive
    assert not dataclasses.replace(found, host="elsewhere").signal_group(signal.SIGKILL)
    assert found.signal_group(signal.SIGKILL)
    wait_until(lambda: not found.alive, what="its end; it is a zombie now")
    process.wait()
    process.stdin.close()  # type: ignore[union-attr]
    assert Identity.of(process.pid) is None
    assert not found.signal_group(signal.SIGKILL)


def test_without_proc_no_boot_is_known(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(identity, "PROC", tmp_path)
    assert identity.boot_id() == ""
    assert Identity.of(1) is None
