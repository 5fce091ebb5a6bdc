"""What is uploaded works without the checkout: built, checked, installed into a venv of its own, quick start run."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from pathlib import Path

import pytest
from running import ROOT, load_tool

import rollmill

SOURCE = ("src", "pyproject.toml", "README.md", "LICENSE")


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """(sdist, wheel), built from a copy: building leaves folders behind. The wheel is built from the sdist."""
    pytest.importorskip("build")
    copy, out = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("dist")
    leave_out = shutil.ignore_patterns("__pycache__", "*.egg-info")
    for name in SOURCE:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, copy / name, ignore=leave_out)
        else:
            shutil.copy(ROOT / name, copy / name)
    command("-m", "build", "--no-isolation", "--outdir", str(out), str(copy), cwd=copy)
    return next(out.glob("*.tar.gz")), next(out.glob("*.whl"))


@pytest.fixture(scope="module")
def venv(built: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A venv that holds the wheel; everything else comes from where these tests run, which saves the downloads."""
    folder = tmp_path_factory.mktemp("venv")
    command("-m", "venv", "--without-pip", str(folder), cwd=folder)
    python = folder / "bin" / "python"
    install = ("-m", "pip", "--python", str(python), "install", "--no-deps", "--no-index", "--quiet", str(built[1]))
    command(*install, cwd=folder)
    own = next((folder / "lib").glob("python*/site-packages"))
    # A line of a .pth file is only a folder to look into: the editable rollmill of that folder is not found by it.
    (own / "others.pth").write_text(f"{sysconfig.get_path('purelib')}\n", encoding="utf-8")
    return folder


def command(*words: str, cwd: Path, program: str = sys.executable) -> str:
    """What a program prints, without the checkout on its path."""
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME")}
    done = subprocess.run([program, *words], cwd=cwd, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_a_release_is_described_as_the_index_wants_it(built: tuple[Path, Path]) -> None:
    pytest.importorskip("twine")
    assert command("-m", "twine", "check", "--strict", *map(str, built), cwd=built[0].parent).count("PASSED") == 2


def test_the_wheel_holds_what_is_needed_and_no_more(built: tuple[Path, Path]) -> None:
    names = zipfile.ZipFile(built[1]).namelist()
    assert {name.split("/")[0] for name in names} == {"rollmill", f"rollmill-{rollmill.__version__}.dist-info"}
    shipped = {f"rollmill/configs/{path.name}" for path in (ROOT / "src/rollmill/configs").glob("*.yaml")}
    shipped |= {f"rollmill/trained/{path.name}" for path in (ROOT / "src/rollmill/trained").iterdir()}
    assert shipped <= set(names)
    assert "rollmill/py.typed" in names
    modules = {str(path.relative_to(ROOT / "src")) for path in (ROOT / "src/rollmill").rglob("*.py")}
    assert modules <= set(names)
    with tarfile.open(built[0]) as archive:
        assert any(name.endswith("/pyproject.toml") for name in archive.getnames())


def test_the_quick_start_runs_outside_the_checkout(venv: Path, tmp_path: Path) -> None:
    program = str(venv / "bin" / "rollmill")
    where = "import rollmill; print(rollmill.__file__)"
    assert command("-c", where, cwd=tmp_path, program=str(venv / "bin" / "python")).startswith(str(venv))
    assert command("--version", cwd=tmp_path, program=program) == f"rollmill {rollmill.__version__}\n"
    command("train", "-f", "cartpole", "run.name=tuned", "stop.frames=4000", cwd=tmp_path, program=program)
    words = ("eval", "runs/default/tuned", "--episodes", "4", "--random", "--json")
    played = json.loads(command(*words, cwd=tmp_path, program=program))
    assert len(played["returns"]) == 4
    assert "CartPole-v1" in command("report", "default", cwd=tmp_path, program=program)


def test_the_lowest_versions_are_those_that_are_claimed() -> None:
    """What ``make versions-lowest`` installs: every lower bound, and nothing that the project refuses."""
    requirements = pytest.importorskip("packaging.requirements")
    tool = load_tool("lowest_versions")
    given = ["numpy>=1.26,<3", "a_b[x,y]>=4", "a-b>=4.2.1,<5", "mujoco<5", "mkdocs==1.6", "pillow"]
    assert tool.lowest(given) == ["a-b==4.2.1.*", "numpy==1.26.*"]
    claimed = tool.requirements((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    held = dict(line.split("==") for line in tool.lowest(claimed))
    assert len(held) > 40
    bounded = 0
    for one in map(requirements.Requirement, claimed):
        name = re.sub(r"[-_.]+", "-", one.name).lower()
        if any(bound.operator == ">=" for bound in one.specifier):
            assert one.specifier.contains(held[name].removesuffix(".*")), str(one)
            bounded += 1
    assert bounded >= len(held)


def test_the_version_is_the_same_everywhere() -> None:
    """``rollmill.__version__`` is its source; what cannot read it repeats it."""
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert re.search(r"^version: (.*)$", citation, re.MULTILINE)[1] == rollmill.__version__  # type: ignore[index]
    changes = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert re.search(rf"^## \[{re.escape(rollmill.__version__)}\]", changes, re.MULTILINE), "no section of this version"
