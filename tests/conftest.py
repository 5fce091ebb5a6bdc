"""What all tests share. Read before anything of rollmill or torch is imported."""

import os
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest

GPU = os.environ.get("ROLLMILL_TEST_GPU", "")
"""``make test-gpu`` sets it to ``cuda``: the tests in ``tests/gpu`` run, on that device (``cpu`` tries them out)."""

if not GPU:
    os.environ["CUDA_VISIBLE_DEVICES"] = ""  # all other tests mean the CPU, on every machine
    collect_ignore = ["gpu"]

# Started in the background (nohup, a shell's &), this process ignores Ctrl-C, and every program that it starts would
# inherit that. A handler of our own is not inherited: children get the default.
signal.signal(signal.SIGINT, signal.default_int_handler)

# How long an example takes says more about the machine than about the code.
# The same examples every time: a change is judged by what it changes. ``HYPOTHESIS_PROFILE=explore`` draws new ones.
hypothesis.settings.register_profile("rollmill", deadline=None, derandomize=True)
hypothesis.settings.register_profile("explore", deadline=None, print_blob=True)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "rollmill"))

from running import Command, Run, wait_until  # noqa: E402 - imports torch, which reads CUDA_VISIBLE_DEVICES


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--max-skips", type=int, default=None, help="fail if more tests than this were skipped")
    parser.addoption("--kills", type=int, default=3, help="how often a training with pool and replay is killed")


SLOW = set((Path(__file__).parent / "slow.txt").read_text().split())


@pytest.hookimpl(tryfirst=True)  # before tests are chosen by their marks
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what ``make test`` leaves out."""
    for item in items:
        if item.nodeid.partition("[")[0] in SLOW:
            item.add_marker("slow")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Say what was not tested, and why."""
    skipped = terminalreporter.stats.get("skipped", [])
    most = config.getoption("--max-skips")
    if skipped and most is not None:
        terminalreporter.section(f"{len(skipped)} skipped (at most {most} may be)")
        for report in skipped:
            reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
            terminalreporter.line(f"{report.nodeid}: {reason}")


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    most = session.config.getoption("--max-skips")
    if reporter is not None and most is not None and len(reporter.stats.get("skipped", [])) > most:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


@pytest.fixture(autouse=True, scope="session")
def _nothing_stays_in_the_temporary_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Everything that is started here makes its temporary files in a folder of ours, and cleans up after itself."""
    folder = tmp_path_factory.mktemp("tmp")
    before = os.environ.get("TMPDIR")
    os.environ["TMPDIR"] = str(folder)
    tempfile.tempdir = None
    yield
    os.environ.pop("TMPDIR")
    if before is not None:
        os.environ["TMPDIR"] = before
    tempfile.tempdir = None
    # Janitors of runs that a test has killed may still be at work.
    wait_until(lambda: not any(folder.glob("rollmill*")), what=f"that no rollmill* is left in {folder}")


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
