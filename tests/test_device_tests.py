"""The tests of the device run on another machine: here it is seen that they can be started."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_they_can_be_collected() -> None:
    words = [sys.executable, "-m", "pytest", "tests/gpu", "--collect-only", "-p", "no:cacheprovider"]
    env = {**os.environ, "ROLLMILL_TEST_GPU": "cpu"}
    found = subprocess.run(words, cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stdout + found.stderr
    assert "test_training.py" in found.stdout
