"""Installs rollmill as users do, into fresh virtual environments, and says in seconds and MB what that costs.

    make install-check                               the wheel with [vizdoom,video], quick start and a batch of Doom
    python tools/install_check.py wheel demo dev     and what `make demo` and `make test` install from a fresh clone

All that is declared is downloaded from the package index anew (pip's own settings say from which one), in the versions
of ``constraints.txt``. The commands of the quick start run outside the checkout, so that only the wheel can serve them.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ("src", "pyproject.toml", "README.md", "LICENSE")
EXTRAS = "vizdoom,video"
BATCH = 4096
"""Frames of the first batch of ``doom_basic``: 1024 steps of 4 frames."""
QUICK_START = (
    ("train", "-f", "cartpole_fast"),
    ("eval", "runs/default/CartPole-v1-s0", "--random"),
    ("train", "-f", "doom_basic", f"stop.frames={BATCH}"),
)
STAMPS = {"demo": ".installed-demo", "dev": ".installed"}
"""Extra -> the file that says in the Makefile that it is installed."""


def run(*command: str | Path, cwd: Path) -> float:
    """How many seconds it takes. The checkout is not on its path, and pip keeps nothing from earlier calls."""
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME")}
    begun = time.monotonic()
    subprocess.run(command, cwd=cwd, env=environment | {"PIP_NO_CACHE_DIR": "1"}, check=True, stdout=sys.stderr)
    return time.monotonic() - begun


def megabytes(folder: Path) -> float:
    """What the files of a folder hold."""
    return sum(path.lstat().st_size for path in folder.rglob("*") if not path.is_dir()) / 1e6


def say(what: str, seconds: float, size: float | None = None) -> None:
    """A row of a table."""
    print(f"| {what} | {seconds:.0f} | {'' if size is None else f'{size:,.0f}'} |", flush=True)


def wheel(folder: Path) -> None:
    """Builds the wheel from a copy, since building leaves folders behind; installs and uses it elsewhere."""
    copy, venv, home = folder / "source", folder / "venv", folder / "home"
    for name in SOURCE:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
        else:
            shutil.copy(ROOT / name, copy / name)
    home.mkdir()
    pip = ("-m", "pip", "--quiet")
    seconds = run(sys.executable, *pip, "wheel", "--no-deps", "--wheel-dir", str(folder), str(copy), cwd=home)
    (built,) = folder.glob("rollmill-*.whl")
    say("build the wheel", seconds, built.stat().st_size / 1e6)
    run(sys.executable, "-m", "venv", venv, cwd=home)
    constraints = ("--constraint", str(ROOT / "constraints.txt"))
    seconds = run(venv / "bin" / "python", *pip, "install", *constraints, f"{built}[{EXTRAS}]", cwd=home)
    say(f"install it with [{EXTRAS}]", seconds, megabytes(venv))
    for words in QUICK_START:
        say(f"`rollmill {' '.join(words)}`", run(venv / "bin" / "rollmill", *words, cwd=home))


def clone(extra: str, folder: Path) -> None:
    """Installs what a target of the Makefile needs, from a fresh clone."""
    run("git", "clone", "--quiet", "--depth", "1", ROOT.as_uri(), folder / "clone", cwd=folder)
    venv = folder / "clone" / ".venv"
    python = f"PYTHON={sys.executable}"
    seconds = run("make", f".venv/{STAMPS[extra]}", python, cwd=folder / "clone")
    say(f'clone, `pip install -e ".[{extra}]"`', seconds, megabytes(venv))


CHECKS: dict[str, Callable[[Path], None]] = {
    "wheel": wheel,
    "demo": lambda folder: clone("demo", folder),
    "dev": lambda folder: clone("dev", folder),
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(CHECKS))
    names = parser.parse_args().names or ["wheel"]
    if unknown := set(names) - set(CHECKS):
        parser.error(f"unknown: {', '.join(sorted(unknown))}; there are {', '.join(CHECKS)}")
    print("| what | seconds | MB |\n|---|---|---|", flush=True)
    for name in names:
        with tempfile.TemporaryDirectory(prefix="install-check-") as folder:
            CHECKS[name](Path(folder))
    return 0


if __name__ == "__main__":
    sys.exit(main())
