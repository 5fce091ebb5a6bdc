"""Programs of the system that tests need: root installs those that are missing, where that is possible."""

from __future__ import annotations

import os
import shutil
import subprocess

import pytest


def why_missing(programs: tuple[str, ...], packages: tuple[str, ...]) -> str:
    """Why these programs cannot be had here; empty where they can, after they were installed if need be."""
    if all(map(shutil.which, programs)):
        return ""
    if os.geteuid() != 0:
        return f"{programs[0]} is not installed, and installing it needs root: apt install {' '.join(packages)}"
    if shutil.which("apt-get") is None:
        return f"{programs[0]} is not installed, and there is no apt-get"
    said = _apt("install", "-y", "--no-install-recommends", *packages)
    if not all(map(shutil.which, programs)):  # the lists of packages may be old
        _apt("update")
        said = _apt("install", "-y", "--no-install-recommends", *packages)
    return "" if all(map(shutil.which, programs)) else f"{programs[0]} cannot be installed: {said[-300:]}"


def require(program: str, package: str) -> str:
    """The path of a program; the test is skipped where it cannot be had."""
    reason = why_missing((program,), (package,))
    if reason:
        pytest.skip(reason)
    return shutil.which(program) or program


def _apt(*words: str) -> str:
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    # Another test may be installing something, too.
    command = ["apt-get", "-q", "-o", "DPkg::Lock::Timeout=600", *words]
    return subprocess.run(command, env=environment, capture_output=True, text=True).stderr
