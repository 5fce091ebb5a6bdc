import os
from collections.abc import Callable, Iterator
from pathlib import Path

import hypothesis
import pytest

from running import Command

# How long an example takes says more about the machine than about the code.
# The same examples every time: a change is judged by what it changes. ``HYPOTHESIS_PROFILE=explore`` draws new ones.
hypothesis.settings.register_profile("rollmill", deadline=None, derandomize=True)
hypothesis.settings.register_profile("explore", deadline=None, print_blob=True)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "rollmill"))

Run = Callable[..., Command]


@pytest.fixture
def rollmill(tmp_path: Path) -> Iterator[Run]:
    """Starts ``rollmill <words>`` in the test's folder; whatever is left of it is ended after the test."""
    commands: list[Command] = []

    def start(*words: str) -> Command:
        commands.append(Command(*words, cwd=tmp_path))
        return commands[-1]

    yield start
    for command in commands:
        command.kill()
