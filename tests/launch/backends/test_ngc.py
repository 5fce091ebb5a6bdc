"""Commands for NGC against golden files, and a stand-in for its program: the service itself is not to be had."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest
from launching import experiment, launcher, states

from rollmill.core.errors import ConfigError, LaunchError
from rollmill.launch.backends.base import JobRequest
from rollmill.launch.backends.ngc import NgcBackEnd, run_command
from rollmill.launch.records import LaunchRecords
from rollmill.launch.settings import NgcSettings

GOLDEN = Path(__file__).with_name("ngc_commands.txt")
SETTINGS = NgcSettings(instance="dgxa100.40g.1.norm", image="lab/rollmill:1", workspace="lab:/ws")
JOB = JobRequest("gamma-0.9_s0", {"cwd": "/ws/my project"})


def test_commands_are_those_of_the_golden_file() -> None:
    records = LaunchRecords(Path("/ws/runs/gammas"))
    own = "submit --as {name} -- {command}"
    made = [
        run_command(SETTINGS, records, JOB),
        run_command(NgcSettings(**{**vars(SETTINGS), "team": "rl"}), records, JOB),
        run_command(NgcSettings(**{**vars(SETTINGS), "template": own}), records, JOB),
    ]
    assert [shlex.join(command) for command in made] == GOLDEN.read_text().splitlines()
    assert shlex.split(made[0][-1])[:2] == ["bash", "-c"], "the command inside is one word of the command outside"


def test_a_template_with_an_unknown_name_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"\{machine\}; there are command, image"):
        run_command(NgcSettings(template="ngc {machine}"), LaunchRecords(Path("/x")), JOB)


@pytest.mark.parametrize("missing", ["image", "workspace"])
def test_what_must_be_set_is_asked_for(missing: str) -> None:
    with pytest.raises(ConfigError, match=f"needs ngc.{missing}"):
        NgcBackEnd(NgcSettings(**{**vars(SETTINGS), missing: ""}))


def stand_in(folder: Path, state: str) -> str:
    """A program with the answers of ``ngc``, which runs the job before it answers."""
    program = folder / "ngc"
    program.write_text(
        "#!/bin/bash\n"
        f'echo "$@" >> {folder}/calls\n'
        'if [ "$2" = run ]; then eval "${@: -1}" > /dev/null; echo \'{"id": 77}\'; fi\n'
        f'if [ "$2" = info ]; then echo \'{{"jobStatus": {{"status": "{state}"}}}}\'; fi\n'
    )
    program.chmod(0o755)
    return str(program)


def test_a_run_is_handed_in_and_seen_to_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = stand_in(tmp_path, "FINISHED_SUCCESS")
    python = tmp_path / "python"  # in the container it has another place
    python.write_text(f'#!/bin/bash\nexec {__import__("sys").executable} "$@"\n')
    python.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    words = ("backend=ngc", f"ngc.program={program}", "ngc.image=i", f"ngc.workspace=w:{tmp_path}")
    made = launcher(tmp_path, experiment(), *words)
    assert states(made.run()) == {"tests_s0": "finished"}
    calls = (tmp_path / "calls").read_text()
    assert "batch run --name tests-tests_s0" in calls
    made.backend.cancel(made.records, {"tests_s0": {"kind": "ngc", "id": "77"}})
    assert "batch kill 77" in (tmp_path / "calls").read_text()


@pytest.mark.parametrize(
    ("state", "stage", "reason"),
    [("RUNNING", "running", ""), ("QUEUED", "queued", ""), ("KILLED_BY_USER", "ended", "NGC: killed by user")],
)
def test_states_are_understood(tmp_path: Path, state: str, stage: str, reason: str) -> None:
    backend = NgcBackEnd(NgcSettings(**{**vars(SETTINGS), "program": stand_in(tmp_path, state)}))
    found = backend.status(LaunchRecords(tmp_path), {"a": {"kind": "ngc", "id": "1"}, "lost": None})
    assert (found["a"].stage, found["a"].reason) == (stage, reason)
    assert found["lost"].stage == "ended"


def test_a_program_that_fails_or_is_missing(tmp_path: Path) -> None:
    backend = NgcBackEnd(NgcSettings(**{**vars(SETTINGS), "program": "ngc-is-not-here"}))
    assert "is not installed" in backend.status(LaunchRecords(tmp_path), {"a": {"kind": "ngc", "id": "1"}})["a"].reason
    failing = NgcSettings(**{**vars(SETTINGS), "template": "false {name}"})
    with pytest.raises(LaunchError, match="exit code 1"):
        NgcBackEnd(failing).submit(LaunchRecords(tmp_path), [JOB], [])
    silent = NgcSettings(**{**vars(SETTINGS), "template": "true {name}"})
    with pytest.raises(LaunchError, match="no number of a job"):
        NgcBackEnd(silent).submit(LaunchRecords(tmp_path), [JOB], [])


@pytest.mark.parametrize("template", ["ngc {", "ngc 'x"])
def test_templates_that_cannot_be_read_are_refused(template: str) -> None:
    with pytest.raises(ValueError, match="template="):
        NgcSettings(template=template)
