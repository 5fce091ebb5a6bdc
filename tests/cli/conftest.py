from pathlib import Path

import pytest
from running import Call, Result

from rollmill.cli.main import main


@pytest.fixture
def call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Call:
    """``rollmill <words>`` in this process, in the test's folder; output of child processes is captured, too."""
    monkeypatch.chdir(tmp_path)

    def run(*words: str) -> Result:
        capfd.readouterr()
        code = main(words)
        return Result(code, *capfd.readouterr())

    return run
