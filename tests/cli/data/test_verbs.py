"""``rollmill data``: words, exit codes, JSON, and the whole way from a damaged store to an export."""

from __future__ import annotations

import functools
import json
import os
import pty
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from converting import schema_of, write_store
from damaging import flip, only_shard, places
from running import Call, Run, wait_until
from storing import make_episode, small_schema, write_episodes

from rollmill.cli.data import check as data_check
from rollmill.cli.data import progress as data_progress
from rollmill.core.errors import Interrupted
from rollmill.core.fields import Field
from rollmill.store.care.verify import verify_store
from rollmill.store.derive.merge import merge
from rollmill.store.reader import Store

LENGTHS = [9, 4, 1, 30, 12, 7]


@pytest.fixture(name="call")
def call_data(call: Call) -> Call:
    """``rollmill data <words>``."""
    return functools.partial(call, "data")


@pytest.fixture
def store(tmp_path: Path) -> Path:
    write_store(tmp_path / "store", schema_of((Field("obs", "uint8", (36, 40, 3)),)), LENGTHS)
    return tmp_path / "store"


def test_every_verb_takes_a_run_folder_for_its_recording(call: Call, tmp_path: Path) -> None:
    run = tmp_path / "run"
    write_store(run / "data", schema_of((Field("obs", "uint8", (36, 40, 3)),)), LENGTHS)
    (run / "config.yaml").touch()
    assert call("info", str(run), "--json").json["episodes"] == len(LENGTHS)
    assert call("verify", str(run), "--json").json["episodes"] == len(LENGTHS)
    for words in (
        ("report", str(run)),
        ("merge", str(run), "--out", "merged"),
        ("split", str(run), "--out", "selected", "top=50%"),
        ("export", str(run), "--format", "npz", "--out", "exported"),
        ("repair", str(run), "--out", "repaired"),
        ("repair", str(run), "--in-place"),
    ):
        done = call(*words)
        assert done.code == 0, done.err
    assert len(Store(tmp_path / "merged")) == len(Store(tmp_path / "repaired")) == len(LENGTHS)
    assert (run / "data/report.html").is_file()


# -- words -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ("verify", "name at least one store"),
        ("verify store --workers -1", "--workers -1"),
        ("repair store", "--out, or use --in-place"),
        ("repair store --in-place --out x", "--in-place and --out exclude"),
        ("repair store --in-place --salvage", "--in-place and --salvage exclude"),
        ("repair store --in-place --resume", "--in-place and --resume exclude"),
        ("repair store --out x --force", "--force is for --in-place"),
        ("merge store --out x --shard-mb 0", "--shard-mb 0"),
        ("repair store --out x --shard-mb 0", "--shard-mb 0"),
        ("split store --out x", "say how to divide"),
        ("split store --out x --parts 2 --fractions a:0.5", "--parts and --fractions exclude"),
        ("split store --out x --parts 2 --rest y", "--rest goes with conditions alone"),
        ("split store --out x --rest y", "--rest needs conditions"),
        ("split store --out x --rest x length_min=5", "are the same folder"),
        ("split store --out x --fractions a", "NAME:SHARE is expected"),
        ("split store --out x --fractions ../a:0.5", "NAME:SHARE is expected"),
        ("split store --out x --fractions a:0.5 a:0.5", "a name is given twice"),
        ("split store --out x length_mn=5", "did you mean 'length_min'"),
        ("split store --out x length_min=500", "no episode of"),
        ("export store --out x --format npx", "did you mean 'npz'"),
        ("export store --out x --format npz --fps 3", "--fps is for lerobot, mp4, not for npz"),
        ("export store --out x --format mp4 --compress", "--compress is for npz, not for mp4"),
        ("import --out x", "name what to import"),
        ("import a.npz b.pkl --out x", "sources of several formats"),
        ("import a.npz --out x --unsafe-pickle", "--unsafe-pickle is for pickle, not for npz"),
    ],
)
def test_wrong_words_are_refused_with_a_reason(call: Call, store: Path, words: str, reason: str) -> None:
    result = call(*words.split())
    assert result.code == 2
    assert reason in result.err
    assert not Path("x").exists()


def test_what_is_no_store(call: Call, tmp_path: Path) -> None:
    for words in ("info nothing", "verify nothing", "merge nothing --out x", "repair nothing --out x"):
        result = call(*words.split())
        assert result.code == 1
        assert "nothing" in result.err


# -- info, verify, repair --------------------------------------------------------------------------------


def test_info(call: Call, store: Path) -> None:
    result = call("info", "store")
    assert result.code == 0
    for text in ("63 steps in 6 episodes", "1 sealed, 0 open", "obs:obs", "36x40x3", "max 30.00", "3 terminated"):
        assert text in result.out
    metrics = call("info", "store", "--json").json
    assert (metrics["episodes"], metrics["rows"]) == (6, 63)
    only_shard(store).index_path.unlink()
    result = call("info", "store")
    assert result.code == 1
    assert "PROBLEM" in result.out


def test_verify_names_the_place(call: Call, store: Path) -> None:
    assert "6 good episodes of 63 steps: all good" in call("verify", "store").out
    ref = only_shard(store)
    record, offset, _ = places(ref)[1003][1]
    flip(ref.path, offset + 40)
    result = call("verify", "sto*")
    assert result.code == 1
    assert f"BAD {ref.path}, record {record} at byte {offset}: " in result.out
    assert "1 damaged episodes" in result.out
    metrics = call("verify", "store", "--json", "--workers", "1").json
    assert not metrics["good"]
    problems = metrics["problems"]
    assert isinstance(problems, list)
    assert problems[0] == {
        "file": str(ref.path),
        "record": record,
        "offset": offset,
        "episode": None,
        "reason": "the record's checksum does not match",
    }
    assert problems[1]["episode"] == f"{1003:016x}"


def test_repair(call: Call, store: Path) -> None:
    ref = only_shard(store)
    flip(ref.path, places(ref)[1003][1][1] + 40)
    result = call("repair", "store", "--out", "good")
    assert result.code == 1, "something is lost"
    assert f"LOST episode {1003:016x} in shard {ref.name}: 30 steps lost" in result.out
    assert "5 whole episodes, 0 partial ones" in result.out
    assert call("verify", "good").code == 0
    metrics = call("repair", "store", "--out", "salvaged", "--salvage", "--json").json
    assert (metrics["kept"], metrics["salvaged"]) == (5, 1)
    assert call("repair", "good", "--out", "again").code == 0
    assert "exists; choose another" in call("repair", "store", "--out", "good").err


def test_repair_in_place(call: Call, store: Path) -> None:
    ref = only_shard(store)
    index = ref.index_path.read_bytes()
    ref.index_path.unlink()
    result = call("repair", "store", "--in-place")
    assert result.code == 0
    assert f"index written: {ref.name}" in result.out
    assert ref.index_path.read_bytes() == index
    assert call("repair", "store", "--in-place", "--json").json["indexed"] == []


def test_what_a_shard_has_lost_is_named_however_it_is_repaired(call: Call, store: Path) -> None:
    ref = only_shard(store)
    _, offset, length = places(ref)[1003][-1]
    os.truncate(ref.path, offset + length + 16)  # as an interrupted copy would, between two records
    for _ in range(2):
        result = call("verify", "store")
        assert result.code == 1
        for uid, steps in ((1004, 12), (1005, 7)):
            assert f"episode {uid:016x}: lost: the index lists it with {steps} steps" in result.out
        assert "4 good episodes of 44 steps: 3 bad places, 2 damaged episodes, 2 of them lost" in result.out
        result = call("repair", "store", "--in-place")
        assert result.code == 1
        assert f"{1005:016x}" in result.out
        assert "0 indexes written; 2 problems stay: repair it with --out NEW" in result.out
    assert call("verify", "store", "--json").json["lost_episodes"] == 2
    result = call("repair", "store", "--out", "good")
    assert result.code == 1
    assert f"LOST episode {1004:016x} in shard {ref.name}: 12 steps lost" in result.out
    assert "4 whole episodes, 0 partial ones; 2 losses" in result.out
    assert call("verify", "good").code == 0


# -- merge, split ----------------------------------------------------------------------------------------


def test_merge_and_split(call: Call, store: Path, tmp_path: Path) -> None:
    write_store(tmp_path / "other", Store(store).schema, LENGTHS[:2])
    result = call("merge", "store", "other", "--out", "all")
    assert result.code == 0
    assert "6 episodes copied; 2 duplicates left out" in result.out
    assert call("merge", "store", "other", "--out", "all", "--resume", "--json").json["already"] == 6
    assert call("split", "all", "--out", "parts", "--parts", "3").code == 0
    parts = sorted(Path("parts").iterdir())
    assert [path.name for path in parts] == [f"part-{k:05d}-of-00003" for k in range(3)]
    assert sum(len(Store(path)) for path in parts) == 6
    result = call("split", "all", "--out", "f", "--fractions", "validation:0.5", "train:0.5", "--json")
    assert sum(part["episodes"] for part in json.loads(result.out)) == 6
    result = call("split", "all", "length_min=5", "--out", "long", "--rest", "short")
    assert "long: 4 episodes, 58 steps" in result.out
    assert Store("short").table.length.tolist() == [4, 1]
    assert call("split", "all", "length_min=5", "--out", "long", "--rest", "short", "--resume").code == 0


def test_damage_is_not_passed_on(call: Call, store: Path) -> None:
    ref = only_shard(store)
    os.truncate(ref.path, ref.bytes - 5)
    for words in ("split store --out x --parts 2", "export store --out x --format mp4"):
        result = call(*words.split())
        assert result.code == 2
        assert "repair it first: rollmill data repair store" in result.err
    assert "Repair it first" in call("merge", "store", "--out", "x").err
    result = call("merge", "store", "--out", "x", "--skip-damaged")
    assert result.code == 1
    assert "BAD" in result.out


# -- export, import --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["npz", "tfrecord", "parquet", "mp4", "minari"])
def test_export(call: Call, store: Path, name: str) -> None:
    result = call("export", "store", "--format", name, "--out", "x-v0", "length_min=5")
    assert result.code == 0, result.err
    assert "4 episodes, 58 steps" in result.out
    assert Path("x-v0").is_dir()
    again = call("export", "store", "--format", name, "--out", "x-v0")
    assert again.code == 1
    assert "nothing is overwritten" in again.err
    metrics = call("export", "store", "--format", name, "--out", "y-v0", "--json").json
    assert metrics["episodes"] == 6
    assert isinstance(metrics["bytes"], int)


def test_there_and_back(call: Call, store: Path) -> None:
    assert call("export", "store", "--format", "npz", "--out", "x.npz", "--compress", "partial=no").code == 0
    result = call("import", "x.npz", "--out", "back", "--env", "toy", "--choices", "4")
    assert result.code == 0
    assert "note: the files have no observation after the last step" in result.out
    assert Store("back").table.length.tolist() == LENGTHS[:5]
    call("export", "store", "--format", "minari", "--out", "m-v0")
    assert call("import", "m-v0", "--out", "minari_back", "--json").json["episodes"] == 6
    call("export", "store", "--format", "tfrecord", "--out", "tf")
    assert call("import", "tf", "--out", "tf_back", "--json").json["episodes"] == 6
    words = ("--per-step", "--fields", "obs=obs:obs:uint8:36x40x3", "action=action")
    wrong = call("import", *map(str, Path("tf").glob("*.tfrecord-*")), "--out", "x", *words)
    assert "obs has 10 rows, a step has one" in wrong.err, "the options reach the importer"
    first = Store("store").episode(3).obs["obs"]
    for name in ("minari_back", "tf_back"):
        assert np.array_equal(Store(name).episode(3).obs["obs"], first)


# -- progress, signals -----------------------------------------------------------------------------------


def test_progress_is_drawn_on_a_terminal_only(store: Path, tmp_path: Path) -> None:
    words = [sys.executable, "-m", "rollmill.cli.main", "data", "verify", str(store), "--workers", "1"]
    main_end, other = pty.openpty()
    done = subprocess.run(words, stderr=other, stdout=subprocess.PIPE, timeout=600, cwd=tmp_path)
    os.close(other)
    shown = os.read(main_end, 65536).decode()
    os.close(main_end)
    assert done.returncode == 0
    assert "verify: 100% of" in shown
    plain = subprocess.run(words, capture_output=True, timeout=600, cwd=tmp_path)
    assert plain.stderr == b""


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_the_work_between_episodes(number: signal.Signals, code: int) -> None:
    with (  # noqa: PT012
        pytest.raises(Interrupted, match="interrupted; continue with") as caught,
        data_progress.progress("x", hint="continue with --resume") as tell,
    ):
        tell(1, 10)
        signal.raise_signal(number)
        tell(2, 10)
    assert caught.value.exit_code == code


def test_finished_work_is_not_called_interrupted() -> None:
    with data_progress.progress("x") as tell:
        signal.raise_signal(signal.SIGINT)
        tell(10, 10)


def test_an_interrupted_command_says_how_to_go_on(call: Call, store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def merge_and_stop(*args: object, progress: Callable[[int, int], None], **options: object) -> None:
        def tell(done: int, total: int) -> None:
            if done > 10:
                signal.raise_signal(signal.SIGTERM)
            progress(done, total)

        merge([store], "all", progress=tell)

    with monkeypatch.context() as patch:
        patch.setattr("rollmill.cli.data.make.merge_stores", merge_and_stop)
        result = call("merge", "store", "--out", "all")
    assert result.code == 143
    assert "interrupted; continue with --resume --out all" in result.err
    assert 0 < len(Store("all")) < 6
    assert call("merge", "store", "--out", "all", "--resume").code == 0
    assert len(Store("all")) == 6


def test_a_killed_merge_command_is_continued(rollmill: Run, tmp_path: Path) -> None:
    schema = small_schema()
    write_episodes(tmp_path / "a", schema, [20] * 400, block=4)
    command = rollmill("data", "merge", "a", "--out", "all")
    wait_until(lambda: list((tmp_path / "all" / "shards").glob("*")) or command.process.poll() is not None)
    command.process.send_signal(signal.SIGKILL)
    command.wait()
    again = rollmill("data", "merge", "a", "--out", "all", "--resume")
    assert again.wait() == 0, again.text
    assert verify_store(tmp_path / "all", workers=1).total("episodes") == 400
    store = Store(tmp_path / "all")
    assert np.array_equal(store.episode(5).actions, make_episode(schema, 20, 5).actions)


def test_metrics_of_empty_stores_can_be_printed(call: Call, tmp_path: Path) -> None:
    write_episodes(tmp_path / "empty", small_schema(), [])
    assert call("info", "empty").code == 0
    assert data_check._range(None, None) == "-"
    assert call("verify", "empty").code == 0
