"""The command: verbs, words, exit codes, and what goes to stdout."""

import contextlib
import inspect
import json
import os
import pty
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from running import SERIAL, SUPPORT, Call, Result, Run, command_words, wait_until

from rollmill import __version__
from rollmill.cli import main as cli
from rollmill.cli.arguments import arguments_of
from rollmill.cli.tree import MOVED, VERBS, Verb, all_verbs
from rollmill.core.config.schema import describe
from rollmill.runs.bench import run as bench
from rollmill.runs.settings.train import TrainConfig

TINY = (*SERIAL, "env=toy_target", "stop.batches=2")


def files_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


# -- what is wrong is refused before anything happens ------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        ("env=doom_bsic", "did you mean 'doom_basic'?"),
        ("learning.gama=0.9", "did you mean 'learning.gamma'?"),
        ("sampling.mode=asynch", "did you mean 'async'?"),
        ("env=toy_target env.args.lenth=3", "did you mean 'length'?"),
        (
            "env=toy_target learning.batch_size=200",
            "near: 192, 224",
        ),
        ("stop.frames=-1", "limits must be 0 (off) or positive"),
        ("--config missing.yaml", "missing.yaml"),
        ("--resume --overwrite", "--resume and --overwrite exclude each other"),
        ("--resume", "nothing to resume"),
        ("env=toy_target --restore missing.ckpt", "missing.ckpt"),
        ("", "which environment? For example `rollmill train env=CartPole-v1`"),
        ("stop.frames=1000", "which environment?"),
        ("env=toy_target lr=1e-3", "did you mean 'learning.learning_rate'?"),
        ("CartPole-v1", "settings are words of the form KEY=VALUE: rollmill train env=CartPole-v1"),
        ("--env CartPole-v1", "settings are words without dashes: rollmill train env=CartPole-v1"),
    ],
)
def test_a_wrong_command_line_creates_nothing(call: Call, tmp_path: Path, words: str, hint: str) -> None:
    result = call("train", *words.split())
    assert hint in result.err
    assert result.code == (1 if "--restore" in words else 2)
    assert result.err.count("\n") == 1  # an error is one line
    assert files_in(tmp_path) == []
    assert result.out == ""


@pytest.mark.parametrize("words", ["train --resum", "train stray", "eval", "envs key=value", "data info", "collect"])
def test_words_that_do_not_fit_the_verb(call: Call, tmp_path: Path, words: str) -> None:
    result = call(*words.split())
    assert result.code == 2
    assert "--help" in result.err
    assert files_in(tmp_path) == []


@pytest.mark.parametrize(
    ("words", "answer"),
    [
        ("trian", "rollmill: no verb 'trian'; did you mean 'train'? `rollmill --help` lists them"),
        ("xyzzy", "rollmill: no verb 'xyzzy'; `rollmill --help` lists them"),
        ("env=toy_target", "rollmill: no verb 'env=toy_target'; did you mean `rollmill train`?"),
        ("data verfy x", "rollmill data: no verb 'verfy'; did you mean 'verify'? `rollmill data --help` lists them"),
        ("help worl", "rollmill: no verb 'worl'; did you mean 'world'?"),
        ("envs chek toy_target", "rollmill envs: 'toy_target' is a word too many"),
        ("envs chek toy_target", "did you mean 'check'?"),
    ],
)
def test_an_unknown_verb_names_the_nearest(call: Call, words: str, answer: str) -> None:
    result = call(*words.split())
    assert (result.code, result.out) == (2, "")
    assert answer in result.err
    assert result.err.count("\n") == 1


def test_a_verb_that_has_moved_answers_with_the_new_command(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(MOVED, ("data", "look"), "data info")
    result = call("data", "look", "a b", "--json")
    assert result == Result(2, "", "rollmill data: 'look' is now `rollmill data info 'a b' --json`\n")
    assert call("help", "data", "look").err.startswith("rollmill data: 'look' is now `rollmill data info")


def test_no_verb_has_the_name_of_one_that_has_moved() -> None:
    names = {name for name, _ in all_verbs()}
    assert names.isdisjoint(MOVED)
    assert {" ".join(name) for name in names}.issuperset(MOVED.values())


@pytest.mark.parametrize("name", ["", *(verb for verb in VERBS if not VERBS[verb].target)])
def test_without_a_verb_the_usage_is_shown(call: Call, name: str) -> None:
    words = name.split()
    nothing, asked = call(*words), call(*words, "--help")
    assert (nothing.code, asked.code) == (2, 0)
    assert nothing.out == asked.out == call(*words, "-h").out == call("help", *words).out
    lines = {line.split()[0]: line for line in asked.out.splitlines() if line.startswith("  ")}
    verbs = VERBS[name].verbs if name else VERBS
    assert list(lines) == list(verbs)
    assert len({lines[one].index(verb.summary) for one, verb in verbs.items()}) == 1  # one below the other
    assert max(map(len, asked.out.splitlines())) <= 80


def test_the_version(call: Call) -> None:
    assert call("--version") == Result(0, f"rollmill {__version__}\n", "")


# -- verbs and flags ---------------------------------------------------------------------------------------


CALLABLE = [(name, verb) for name, verb in all_verbs() if verb.target]


@pytest.mark.parametrize(("name", "verb"), CALLABLE, ids=[" ".join(name) for name, _ in CALLABLE])
def test_every_verb_resolves_and_explains_itself(
    call: Call, monkeypatch: pytest.MonkeyPatch, name: tuple[str, ...], verb: Verb
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    function = verb.load()
    result = call(*name, "--help")
    assert result.code == 0
    assert result.out.startswith(f"usage: rollmill {' '.join(name)} ")
    assert (inspect.getdoc(function) or "").split(":")[0].replace("``", "`")[:40] in result.out
    assert [argument.name for argument in arguments_of(function) if not argument.about] == []
    without_figures = (("tb",), ("join-learner",), ("completion",), ("launch", "cancel"), ("world", "video"))
    assert "--json" in result.out or name in without_figures
    assert max(map(len, result.out.splitlines())) <= 80
    assert call("help", *name).out == result.out


def test_files_and_words_around_each_other(call: Call, tmp_path: Path) -> None:
    """Files from left to right, then the words, wherever those stand."""
    (tmp_path / "one.yaml").write_text("learning: {gamma: 0.5, gae_lambda: 0.5}\nrun: {seed: 5}")
    (tmp_path / "two.yaml").write_text("learning: {gae_lambda: 0.6}")
    head, *rest = command_words(tmp_path, *TINY)
    result = call(head, "run.seed=7", "-f", "one.yaml", *rest[:5], "--config", "two.yaml", *rest[5:], "--json")
    assert result.code == 0, result.err
    saved = (tmp_path / "x/run/config.yaml").read_text()
    for line in ("gamma: 0.5", "gae_lambda: 0.6", "seed: 7"):
        assert f"  {line}\n" in saved


def test_a_training_that_has_not_learnt_says_so(call: Call, tmp_path: Path) -> None:
    words = (*SERIAL, "env=toy_target", "stop.frames=1")
    result = call(*command_words(tmp_path, *words, "learning.batch_size=640"))
    assert "no training step was done: a batch has 640 rows (learning.batch_size)" in result.out
    assert "no training step" not in call(*command_words(tmp_path, *TINY), "--overwrite").out


# -- JSON --------------------------------------------------------------------------------------------------


def test_json_of_train_and_eval(call: Call, tmp_path: Path) -> None:
    trained = call(*command_words(tmp_path, *TINY), "--json")
    assert trained.code == 0
    outcome = json.loads(trained.out)
    folder = tmp_path / "x/run"
    assert outcome.keys() == {"state", "reason", "frames", "mean_return", "folder", "page"}
    assert outcome["page"] == str(tmp_path / "x/run/report.html")
    assert outcome["state"] == "finished"
    assert outcome["reason"] == "reached stop.batches=2"
    assert outcome["frames"] > 0
    assert outcome["folder"] == str(folder)

    played = call("eval", str(folder), "--json", "env.args.length=3", "--episodes", "4", "--workers", "1", "--random")
    assert played.code == 0
    metrics = json.loads(played.out)
    assert metrics["lengths"] == [3, 3, 3, 3]
    assert metrics["random"]["episodes"] == 4
    assert metrics["options"]["overrides"] == ["env.args.length=3"]
    plain = call("eval", str(folder), "--episodes", "1", "--workers", "1")
    assert plain.code == 0
    assert plain.out.startswith("toy_target, ")


CHATTER = ("env=faulty_envs:Misbehave", "env.args={what: print}")


def test_json_is_alone_on_stdout_even_if_an_env_prints(call: Call, tmp_path: Path) -> None:
    """In serial mode the env prints inside this very process; in an evaluation it does so in a worker."""
    trained = call(*command_words(tmp_path, *SERIAL, *CHATTER, "stop.batches=2"), "--json")
    assert json.loads(trained.out)["state"] == "finished"
    assert "chatter" in trained.err
    played = call("eval", str(tmp_path / "x/run"), "--json", "--episodes", "2", "--workers", "1", "--trust-code")
    assert json.loads(played.out)["episodes"] == 2


@dataclass(frozen=True)
class Shown:
    """What a command has left on a terminal, stderr included."""

    returncode: int
    text: str

    @property
    def lines(self) -> list[str]:
        return [line.strip() for line in self.text.splitlines() if line.strip()]


def on_a_terminal(*words: str, stderr: int | None = None) -> Shown:
    """``rollmill <words>`` with a terminal as its stdout; ``stderr`` None: and as its stderr."""
    master, slave = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "OMP_NUM_THREADS": "1", "COLUMNS": "300", "PYTHONPATH": str(SUPPORT)}
    command = [sys.executable, "-m", "rollmill.cli.main", *words]
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=slave, stderr=stderr or slave, env=environment
    ) as run:
        os.close(slave)
        text = b""
        with contextlib.suppress(OSError):  # how a terminal says that nobody writes to it any more
            while part := os.read(master, 1 << 16):
                text += part
    os.close(master)
    return Shown(run.returncode, text.decode())


def test_json_is_alone_on_a_terminal_too(tmp_path: Path) -> None:
    """No live panel there: a script that asks for JSON may well run in a terminal."""
    with open(tmp_path / "noise", "wb") as noise:
        shown = on_a_terminal(*command_words(tmp_path, *TINY), "--json", stderr=noise.fileno())
    assert shown.returncode == 0
    assert json.loads(shown.text)["state"] == "finished"
    assert "run folder" in (tmp_path / "noise").read_text()


def test_json_of_bench(call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "WARM_UP_SECONDS", 0.02)
    monkeypatch.setattr("rollmill.cli.bench.load_of_others", lambda: bench.load_of_others(0.05))
    words = command_words(tmp_path, *SERIAL, *CHATTER)[1:]
    result = call("bench", "sample", *words, "--seconds", "0.05", "--json")
    assert result.code == 0, result.err
    metrics = json.loads(result.out)
    assert metrics["env"] == "faulty_envs:Misbehave"
    assert metrics["busy_cores_before"] >= 0
    assert metrics["sample"]["frames_per_s"] > 0
    assert files_in(tmp_path) == []


def test_the_table_of_bench_shows_shares(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    metrics = {
        "sim": bench.Measurement("sim", 2000.0, 1000.0),
        "policy": bench.Measurement("policy", 900.0, 450.0, {"main rounds": 1912.6}),
        "train": bench.Measurement("train", 500.0, 250.0, {"main learn": 0.25}),
        "bound": bench.Measurement("bound", 800.0, 400.0, {"env ms/step": 0.0123}),
        "cluster": bench.Measurement("cluster", 9.0, 9.0, {"received MB/s": 12.34, "gateway segments": 5.0}),
    }
    monkeypatch.setattr("rollmill.cli.bench.run_bench", lambda *_: metrics)
    monkeypatch.setattr("rollmill.cli.bench.load_of_others", lambda: 0.5)
    result = call("bench", "all", "--seconds", "0.1")
    assert "loaded by others (0.5 cores busy" in result.out
    assert "25 % of sim, 62 % of bound\n" in result.out
    assert "45 % of sim\n" in result.out  # nothing is learnt there: the bound means something else
    assert "main learn         25.0 % of the time\n" in result.out
    assert "main rounds        1,913 per second\n" in result.out
    assert "env                0.012 ms per step\n" in result.out
    assert "\nbound    what these cores would reach in training" in result.out
    assert "received           12.3 MB/s\n" in result.out
    assert "gateway segments   5 per second\n" in result.out
    assert call("bench", "--seconds", "0").code == 2
    for words in (("train", "--fake-nodes", "2"), ("cluster", "--fake-nodes", "0")):
        assert "--fake-nodes is for `rollmill bench cluster`" in call("bench", *words).err


def test_json_of_config(call: Call) -> None:
    rows = json.loads(call("config", "--json").out)
    assert [row["key"] for row in rows] == [key.key for key in describe(TrainConfig)]
    assert json.loads(call("config", "learning.gamma", "--json").out) == [
        row for row in rows if row["key"] == "learning.gamma"
    ]


# -- rollmill config ---------------------------------------------------------------------------------------


def test_config_explains_a_block(call: Call) -> None:
    text = call("config", "learning").out
    keys = [line.split(" = ")[0] for line in text.splitlines() if not line.startswith(" ")]
    assert keys == [key.key for key in describe(TrainConfig) if key.key.startswith("learning.")]
    assert "learning.gamma = 0.99   (float)\n    Discount per step." in text


def test_words_that_may_be_several_are_named_by_one(call: Call) -> None:
    assert call("eval", "--help").out.startswith("usage: rollmill eval [OPTIONS] [POLICY ...] [KEY=VALUE ...]\n")
    assert call("world", "eval").err == "rollmill world: 'eval' is now `rollmill eval`\n"


@pytest.mark.parametrize(
    ("prefix", "hint"),
    [
        ("lerning", "did you mean 'learning'?"),
        ("learn", "did you mean 'learning'?"),  # half a name is not a prefix
        ("learning.gama", "did you mean 'learning.gamma'"),
        ("gamma", "did you mean 'learning.gamma'"),
        ("lr", "did you mean 'learning.learning_rate'"),
        ("xyzzy", "`rollmill config` lists them all"),
    ],
)
def test_config_of_a_wrong_prefix(call: Call, prefix: str, hint: str) -> None:
    result = call("config", prefix)
    assert result.code == 2
    assert result.err.startswith(f"rollmill config: no key '{prefix}'; ")
    assert hint in result.err


# -- starting up -------------------------------------------------------------------------------------------


def test_help_and_typing_errors_do_not_wait_for_torch(tmp_path: Path) -> None:
    script = """
import sys
from rollmill.cli.main import main
from rollmill.cli.tree import all_verbs

main(["--help"])
for name, _ in all_verbs():
    main([*name, "--help"])
main(["train", "env=doom_bsic"])
main(["train", "learning.gama=1"])
main(["config"])
print([name for name in ("torch", "tensorboardX") if name in sys.modules], file=sys.stderr)
"""
    done = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stderr.splitlines()[-1] == "[]"


def test_the_list_of_verbs_imports_nothing_that_takes_long(tmp_path: Path) -> None:
    script = """
import sys
before = set(sys.modules)
from rollmill.cli.main import main

main(["--help"])
slow = {"ast", "dataclasses", "difflib", "inspect", "logging", "pathlib", "shutil", "typing"} - before
print(sorted(slow & set(sys.modules)), file=sys.stderr)
"""
    done = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stderr.splitlines()[-1] == "[]"


@pytest.mark.parametrize(
    ("words", "unbuffered"), [(["envs"], ""), (["envs"], "1"), (["--help"], ""), (["train", "--help"], "")]
)
def test_a_reader_that_goes_away_is_no_error(words: list[str], unbuffered: str) -> None:
    """As in ``rollmill config | head -1``: quiet, with the exit code of a program that SIGPIPE has ended."""
    read, write = os.pipe()
    os.close(read)
    environment = {**os.environ, "PYTHONUNBUFFERED": unbuffered}
    command = [sys.executable, "-m", "rollmill.cli.main", *words]
    done = subprocess.run(command, stdout=write, stderr=subprocess.PIPE, env=environment)
    os.close(write)
    assert done.stderr == b""
    assert done.returncode == 128 + signal.SIGPIPE


def test_another_broken_pipe_is_an_error(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> int:
        raise BrokenPipeError("a worker has gone")

    monkeypatch.setattr(cli, "_dispatch", fail)
    with pytest.raises(BrokenPipeError, match="a worker has gone"):
        call("train")


@pytest.mark.parametrize("swallow", [True, False])
def test_ctrl_c_while_modules_are_imported(
    tmp_path: Path, rollmill: Run, monkeypatch: pytest.MonkeyPatch, swallow: bool
) -> None:
    """Some of them catch whatever is raised while they try this and that."""
    path = tmp_path / "shadow"
    path.mkdir()
    handler = "pass" if swallow else "raise"
    (path / "rich.py").write_text(
        f"import time\nopen({str(tmp_path / 'begun')!r}, 'w').close()\n"
        f"try:\n    time.sleep(3600)\nexcept BaseException:\n    {handler}\n"
    )
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(path), os.environ.get("PYTHONPATH", "")]))
    command = rollmill("train", "env=toy_target")
    wait_until((tmp_path / "begun").exists, what="modules to be imported")
    command.press_ctrl_c()
    assert command.wait() == 130
    assert command.text == "rollmill train: interrupted\n"


# -- how it ends -------------------------------------------------------------------------------------------


def test_a_failing_run(call: Call, tmp_path: Path) -> None:
    faulty = ("env=faulty_envs:Misbehave", "env.args={env: 3, at_step: 20}", "env.fault_limit=0")
    result = call(*command_words(tmp_path, *SERIAL, *faulty), "--json")
    assert result.code == 1
    assert "\nrollmill train: env 3 (faulty_envs:Misbehave) failed in step" in result.err
    assert result.out == ""


def test_a_start_that_fails_prints_its_error_only(call: Call, tmp_path: Path) -> None:
    (tmp_path / "bad.py").write_text("class E:\n    def __init__(self):\n        raise ValueError('no scene')\n")
    result = call(*command_words(tmp_path, *TINY, "env=bad.py:E"))
    assert (result.code, result.out) == (1, "")
    first, second, *trace = result.err.splitlines()
    assert first == "rollmill train: bad.py:E: the constructor failed with ValueError: no scene"
    assert second == "`rollmill envs check bad.py:E` looks for what is wrong with it"
    assert (trace[0], trace[-1]) == ("Traceback (most recent call last):", "ValueError: no scene")
    assert "run folder" in (tmp_path / "x/run/log.txt").read_text()


def test_what_the_system_refuses_is_one_line(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    for error, message in (
        (PermissionError(13, "Permission denied", "some/file"), "some/file: Permission denied"),
        (OSError(24, "Too many open files"), "Too many open files"),
        (MemoryError("Unable to allocate 1 TiB"), "out of memory: Unable to allocate 1 TiB"),
    ):
        monkeypatch.setattr(Verb, "load", lambda _: fail)
        monkeypatch.setattr(sys.modules[__name__], "RAISED", error)
        result = call("doctor")
        assert (result.code, result.err) == (1, f"rollmill doctor: {message}\n")
    for bug in (OSError(22, "Invalid argument"), RuntimeError("a bug")):
        monkeypatch.setattr(sys.modules[__name__], "RAISED", bug)
        with pytest.raises(type(bug)):
            call("doctor")


RAISED: Exception = Exception()


def fail() -> int:
    raise RAISED


def test_escape_sequences_of_others_are_shown(call: Call, tmp_path: Path) -> None:
    says, raises = r"print('\x1b[2J printed')", r"raise ValueError('\x1b]0;t\x07')"
    (tmp_path / "loud.py").write_text(f"class E:\n    def __init__(self):\n        {says}\n        {raises}\n")
    result = call(*command_words(tmp_path, *TINY, f"env={tmp_path}/loud.py:E"))
    assert result.code == 1
    assert "ValueError: \\x1b]0;t\\x07" in result.err
    assert "\\x1b[2J printed" in result.out
    for text in (result.out, result.err, *(path.read_text() for path in tmp_path.rglob("log.txt"))):
        assert "\x1b" not in text
        assert "\x07" not in text


def test_a_fault_of_an_environment_is_told_once_with_what_to_do(call: Call, tmp_path: Path) -> None:
    faulty = ("env=faulty_envs:Misbehave", "env.args={env: 3, at_step: 20}", "env.fault_limit=0")
    said = call(*command_words(tmp_path, *SERIAL, *faulty)).err
    assert said.count("Traceback") == 1  # the log has shown it
    *_, first, second, last = said.splitlines()
    assert first.startswith("rollmill train: env 3 (faulty_envs:Misbehave) failed in step")
    assert second.startswith("That is fault 1")
    check = "rollmill envs check faulty_envs:Misbehave env.args.env=3 env.args.at_step=20"
    assert last == f"`{check}` looks for what is wrong with it"


def test_on_a_terminal_the_end_names_the_page(tmp_path: Path) -> None:
    """There the log goes into the panel: nobody else would say where the page is."""
    shown = on_a_terminal(*command_words(tmp_path, *TINY))
    assert shown.returncode == 0
    assert shown.lines[-1] == f"report: {tmp_path}/x/run/report.html"
    faulty = ("env=faulty_envs:Misbehave", "env.args={env: 3, at_step: 20}", "env.fault_limit=0", "run.name=faulty")
    failed = on_a_terminal(*command_words(tmp_path, *SERIAL, *faulty))
    assert failed.returncode == 1
    assert f"report: {tmp_path}/x/faulty/report.html\r\n" in failed.text
    assert failed.lines[-1] == "RuntimeError: told to raise in step"  # the traceback: no log was on this console


QUITTER = """
import sys
from rollmill.runs.train.observers import Observer

class Quitter(Observer):
    def on_training_step(self, run, iteration):
        sys.exit(0)
"""


def test_user_code_that_exits_is_a_failure(call: Call, tmp_path: Path) -> None:
    """Whatever code it gives: what was asked for was not done."""
    (tmp_path / "quitter.py").write_text(QUITTER)
    result = call(*command_words(tmp_path, *TINY, "observers=[quitter.py:Quitter]"))
    assert result.code == 1
    assert f"broken off: SystemExit(0) was raised in {tmp_path}/quitter.py, line 7" in result.err


def test_exit_codes_of_signals(tmp_path: Path, rollmill: Run) -> None:
    """Both at once: most of the time goes into starting them."""
    words = (*SERIAL, "env=toy_target", "stop.frames=100000000", "report.console_seconds=0")
    stopped = {
        number: rollmill(*command_words(tmp_path / number.name, *words), "--json")
        for number in (signal.SIGINT, signal.SIGTERM)
    }
    for number, command in stopped.items():
        command.wait_for_text("frames/s")
        command.send(number)
    for number, command in stopped.items():
        assert command.wait() == 128 + number
        outcome = json.loads(command.text.splitlines()[-1])
        assert outcome["state"] == "interrupted"
        assert outcome["reason"] == f"{number.name} received"
        command.assert_nothing_left()


def test_a_signal_during_an_evaluation(tmp_path: Path, call: Call, rollmill: Run) -> None:
    trained = call(*command_words(tmp_path, *TINY), "--json")
    assert trained.code == 0
    command = rollmill("eval", str(tmp_path / "x/run"), "--episodes", "100000000", "--workers", "1")
    wait_until(command.workers, what="workers")
    command.send(signal.SIGINT)
    assert command.wait() == 130
    assert command.text.endswith("rollmill eval: interrupted\n")
    assert "Traceback" not in command.text
    command.assert_nothing_left()
