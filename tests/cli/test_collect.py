"""``rollmill collect`` as a command: what it prints where, how it ends, and how to go on."""

from __future__ import annotations

import io
import json
import signal
import sys
from pathlib import Path

import pytest
from collecting import PARALLEL, SERIAL
from running import Call, Run, command_words, wait_until

from rollmill.cli.collect import CollectionLine, how_to_continue, line
from rollmill.runs.collect.options import CollectOptions
from rollmill.runs.collect.run import Collected, Metrics
from rollmill.store.reader import Store


def metrics(**changes: object) -> Metrics:
    values: dict[str, object] = {
        "episodes": 250,
        "wanted": 1000,
        "steps": 30_000,
        "wanted_steps": None,
        "bytes": 45_000_000,
        "seconds": 70.0,
        "sampling_seconds": 60.0,
        "mean_return": 1.0,
    }
    return Metrics(**{**values, **changes})  # type: ignore[arg-type]


# -- what is printed ---------------------------------------------------------------------------------------


def test_plain_output_names_store_policy_and_seed(call: Call) -> None:
    result = call("collect", "env=toy_target", *SERIAL, "--out", "s", "--episodes", "6", "--seed", "3")
    assert result.code == 0
    assert result.out.startswith("finished: 6 episodes; added 6 episodes (60 steps, ")
    assert result.out.endswith("\ns: 6 whole episodes; policy random, seed 3\n")
    again = call("collect", "env=toy_target", *SERIAL, "--out", "s", "--until", "6")
    assert again.code == 0
    assert again.out.startswith("finished: everything is there; added 0 episodes")


def test_json_is_alone_on_stdout_even_if_the_env_prints(call: Call) -> None:
    words = ("env=faulty_envs:Misbehave", "env.args={what: print}", *SERIAL, "--out", "s", "--episodes", "3")
    result = call("collect", *words, "--json", "--shard", "1/2", "--seed", "4")
    assert result.code == 0, result.err
    assert "chatter" in result.err
    value = json.loads(result.out)
    assert value["episodes"] == value["total_episodes"] == 1
    assert (value["state"], value["complete"], value["shard"], value["seed"]) == ("finished", True, "1/2", 4)
    assert value["store"] == "s"
    assert (value["steps"], value["mean_return"], value["env_faults"]) == (5, 5.0, 0)


def test_settings_come_from_files_too(call: Call, tmp_path: Path) -> None:
    """The files of a training: what they say about learning does not matter here."""
    (tmp_path / "a.yaml").write_text("env: {id: toy_target, args: {length: 3}}\nstop: {frames: 7}\n")
    words = ("--config", "a.yaml", *SERIAL, "--out", "a=b", "--episodes", "2", "--max-steps", "2")
    result = call("collect", *words)
    assert result.code == 0, result.err
    assert Store(tmp_path / "a=b").table.length.tolist() == [2, 2]


def test_an_error_says_what_was_kept(call: Call) -> None:
    words = ("env=telling_env:Telling", *SERIAL, "--policy", "collecting:fails_later", "--out", "s", "--until", "999")
    result = call("collect", *words)
    assert result.code == 1
    kept = len(Store(Path("s")))
    assert f"{kept:,} episodes had ended: they are in s\n" in result.err
    assert "rollmill collect: --policy collecting:fails_later answered 99" in result.err
    assert result.out == ""


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--out s", "how much is to be collected?"),
        ("--episodes 3", "--out"),
        ("--out s --episodes 3 --until 3", "exclude each other"),
        ("--out s --episodes 3 --policy smooth", "expected random, smoothed-random"),
        ("--out s --episodes 3 --policy random --best", "--best is for checkpoints"),
        ("--out s --episodes 3 --shard 0/4", "give all the same --seed"),
        ("--out s --episodes 3 env=toy_taget", "did you mean 'toy_target'"),
        ("--out s --episodes 3 learning.gama=1", "did you mean 'learning.gamma'"),
    ],
)
def test_a_wrong_command_line_creates_nothing(call: Call, tmp_path: Path, words: str, message: str) -> None:
    result = call("collect", "env=toy_target", *words.split())
    assert result.code == 2
    assert message in result.err
    assert "Traceback" not in result.err
    assert list(tmp_path.iterdir()) == []


def test_a_bad_callable_names_itself_before_anything_starts(call: Call, tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text("def act(obs, spec):\n    return 0\n")
    result = call("collect", "env=toy_target", *SERIAL, "--out", "s", "--episodes", "1", "--policy", "own.py:act")
    assert result.code == 2
    assert "own.py:act: it is called with one argument, the env's spec" in result.err
    assert not (tmp_path / "s").exists()


# -- progress ----------------------------------------------------------------------------------------------


def test_the_progress_line() -> None:
    assert line(metrics()) == "250 of 1,000 episodes, 500 steps/s, 45.0 MB, 3 min 00 s left"
    in_steps = metrics(wanted=None, wanted_steps=40_000)
    assert line(in_steps) == "30,000 of 40,000 steps, 500 steps/s, 45.0 MB, 20 s left"
    begun = metrics(episodes=0, steps=0, sampling_seconds=0.0, bytes=0)
    assert line(begun) == "0 of 1,000 episodes, 0 steps/s, 0 B"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(("stream", "drawn"), [(Terminal(), [0, 4, 8, 9]), (io.StringIO(), [])])
def test_a_bar_on_a_terminal_a_line_elsewhere(
    stream: io.StringIO, drawn: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stderr", stream)
    now = 0.0
    with CollectionLine(lambda: now) as progress:
        for k in range(10):
            now = 0.05 * k
            progress.show(metrics(episodes=k, wanted=9))
        live = stream.getvalue()
        now = 11.0
        progress.show(metrics(episodes=10, wanted=20))
    text = stream.getvalue()
    if drawn:
        assert [int(part.split("] ")[1].split(" of")[0]) for part in live.split("\r")[1:]] == drawn
        assert text.count("\n") == 1
        assert text.endswith("\n")
    else:
        assert live == ""
        assert text == f"{line(metrics(episodes=10, wanted=20))}\n"


def test_a_bar_is_no_wider_than_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """A line that wraps could not be drawn over."""
    screen = Terminal()
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setenv("COLUMNS", "40")
    with CollectionLine(lambda: 1.0) as progress:
        progress.show(metrics())
    assert screen.getvalue() == "\r\033[K[#####...............] 250 of 1,000 epi\n"


# -- going on ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "hint"),
    [
        ({"until": 1000, "seed": 5}, "the same command continues"),
        ({"until": 1000}, "the same command with --seed 5 (it plays again what was interrupted) continues"),
        ({"episodes": 1000, "seed": 5}, "to continue: the same command with --episodes 750"),
        (
            {"episodes": 1000},
            "to continue: the same command with --episodes 750 and --seed 5 (it plays again what was interrupted)",
        ),
        ({"steps": 40_000, "seed": 5}, "to continue: the same command with --steps 10000"),
    ],
)
def test_how_to_continue(options: dict[str, int], hint: str) -> None:
    given = CollectOptions(Path("s"), **options)  # type: ignore[arg-type]
    done = Collected("interrupted", "SIGINT", False, Path("s"), 250, "random", 5, "", metrics(), 2)
    assert how_to_continue(done, given) == hint


def test_a_second_machine_may_be_stopped_while_the_first_goes_on(tmp_path: Path, rollmill: Run) -> None:
    words = ("collect", "env=toy_target", *PARALLEL, "--out", "s", "--json")
    endless = rollmill(*words, "--episodes", "100000000")
    short = rollmill(*words, "--episodes", "50")
    assert short.wait() == 0, short.text
    wait_until(lambda: len(list((tmp_path / "s/progress").glob("*.json"))) == 2, what="the first to have begun, too")
    endless.send(signal.SIGTERM)
    assert endless.wait() == 143
    ended = [json.loads(command.text.splitlines()[-1]) for command in (short, endless)]
    assert ended[1]["state"] == "interrupted"
    assert len(Store(tmp_path / "s")) == sum(value["episodes"] for value in ended)


# -- eval --record -----------------------------------------------------------------------------------------


def test_eval_records_on_request(call: Call, tmp_path: Path) -> None:
    trained = call(*command_words(tmp_path, "sampling.mode=serial", "env=toy_target", "stop.batches=2"), "--json")
    assert trained.code == 0
    run = str(tmp_path / "x/run")
    play = ("--episodes", "3", "--workers", "1")
    default = call("eval", run, *play, "--record")
    assert default.code == 0, default.err
    folder = next((tmp_path / "x/run/eval").iterdir())
    assert default.out.endswith(f"\nepisodes in {folder}\n")
    assert len(Store(folder)) == 3
    chosen = call("eval", run, *play, "--record", "r", "--json")
    value = json.loads(chosen.out)
    assert value["record"] == "r"
    assert Store(tmp_path / "r").table.length.tolist() == value["lengths"]
    assert call("eval", run, *play, "--json").out.count('"record": null') == 1
    two = call("eval", run, *play, "--record", "r", "q")
    assert two.code == 2
    assert "--record takes one folder, not 2: r, q" in two.err
