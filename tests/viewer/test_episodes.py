"""Recorded episodes, as the server tells of them: every step, every frame, and nothing that lies elsewhere."""

from __future__ import annotations

import io
import json
import math
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from experimenting import online, write_run

pytest.importorskip("uvicorn")
from viewing import EXTRA, LAST_VALUE, Answer, Serving, counting_store, serving

from rollmill.core.config.load import load_config
from rollmill.core.errors import ConfigError
from rollmill.core.fields import ActionSpec, EnvSpec, Field
from rollmill.reports.store.report import write_report
from rollmill.runs.settings.train import TrainConfig
from rollmill.runs.train.recording import store_schema
from rollmill.store.reader import Store
from rollmill.viewer import episodes
from rollmill.viewer.episodes import MOST_FRAMES, MOST_ROWS, PIXELS, Question, words_in

LENGTHS = (5, 70, 200)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    root = tmp_path_factory.mktemp("episodes") / "runs"
    run = root / "exp" / "run"
    write_run(run, online(), [1.0] * 40)
    counting_store(run / "data", LENGTHS)
    counting_store(root / "loose" / "store", (3,))
    now = 1_790_000_000
    rows = [{"frames": 10 * k, "time": now + 100 * k, "episode/return": 1.0} for k in range(40)]
    (run / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    stamps = [time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(now + 100 * k)) for k in (0, 20, 21)]
    (run / "log.txt").write_text(
        f"{stamps[0]},1 INFO early\n{stamps[1]},1 INFO then\n  a line of it\n{stamps[2]},1 INFO late\n"
    )
    (run / "checkpoints").mkdir()
    for frames in (0, 150, 300):
        (run / "checkpoints" / f"frames-{frames:012}.ckpt").write_bytes(b"")
    with serving(root) as found:
        yield found


def store_of(server: Serving, name: str = "exp/run/data") -> str:
    stores = {store["name"]: store for store in server.ask("/api/runs").json["stores"]}
    assert bool(stores[name]["run"]) == name.startswith("exp")
    return str(stores[name]["id"])


def unpacked(answer: Answer) -> tuple[Any, np.ndarray]:
    (size,) = struct.unpack_from("<I", answer.body)
    return json.loads(answer.body[4 : 4 + size]), np.frombuffer(answer.body, "<f8", offset=4 + size)


def test_the_table_has_the_filter_of_the_store(server: Serving) -> None:
    store = store_of(server)
    found = server.ask(f"/api/episodes?store={store}&filter=length_min=10&sort=-return").json
    assert (found["episodes"], found["fitting"], found["numbers"]) == (3, 2, [2, 1])
    assert found["columns"]["return"] == [3.0, 2.0]
    assert found["columns"]["seed"] == ["2", "1"]
    assert server.ask(f"/api/episodes?store={store}&near=210").json["numbers"] == [2, 1, 0]
    assert server.ask(f"/api/episodes?store={store}&start=2").json["numbers"] == [2]
    wrong = server.ask(f"/api/episodes?store={store}&filter=return_mn=1")
    assert (wrong.code, b"did you mean 'return_min'" in wrong.body) == (422, True)
    assert server.ask(f"/api/episodes?store={store}&sort=nothing").code == 422


def test_points_of_all_episodes(server: Serving) -> None:
    head, numbers = unpacked(server.ask(f"/api/scatter?store={store_of(server)}"))
    assert head == {"names": ["number", "global_step", "return", "length", "whole"], "rows": 3, "fitting": 3}
    assert numbers.reshape(5, 3).tolist() == [[0, 1, 2], [4, 169, 399], [1, 2, 3], [5, 70, 200], [1, 1, 1]]


def test_what_happened_step_by_step(server: Serving) -> None:
    head, numbers = unpacked(server.ask(f"/api/episode?store={store_of(server)}&episode=1"))
    assert (head["length"], head["return"], head["ended"], head["seed"]) == (70, 2.0, "terminated", "1")
    tracks = dict(zip(head["tracks"], np.split(numbers, np.cumsum(head["rows"])[:-1])))
    assert tracks["value"].tolist() == [0.0] * 70 + [LAST_VALUE], "that of the final observation, too"
    assert all(len(track) == 70 for name, track in tracks.items() if name != "value")
    assert tracks["reward"].argmax() == 35
    assert set(tracks) >= {"action", "reward", "log_prob", "value", "version", "global_step"}
    assert head["image"] == {"name": "image", "note": "", "height": 12, "width": 16, "portion": 16}
    assert head["images"] == [head["image"]]


@pytest.mark.parametrize("number", [0, 1, 2])
def test_every_frame_is_that_of_its_step(server: Serving, number: int) -> None:
    """The final observation included; the pixel says which step and which episode it is."""
    image = pytest.importorskip("PIL.Image")
    store, frames, part = store_of(server), [], 0
    while len(frames) < LENGTHS[number] + 1:
        answer = server.ask(f"/api/frames?store={store}&episode={number}&part={part}")
        assert answer.headers["content-type"] == "image/png"
        pixels = np.asarray(image.open(io.BytesIO(answer.body)))
        frames += list(pixels.reshape(-1, 12, 16, 3))
        part += 1
    for step, frame in enumerate(frames):
        assert np.array_equal(np.unique(frame.reshape(-1, 3), axis=0), [[step % 256, number, 7]])
    assert server.ask(f"/api/frames?store={store}&episode={number}&part={part}").code == 422


def test_as_many_as_a_page_asks_for_and_no_more(tmp_path: Path) -> None:
    """Rows of the table, and frames of a part by their number and by their size."""
    root, side = tmp_path / "runs", math.isqrt(PIXELS // 3)
    counting_store(root / "many", (1,) * (MOST_ROWS + 3))
    counting_store(root / "long", (40,))
    counting_store(root / "large", (MOST_FRAMES,), size=(side, side))
    with serving(root) as server:
        found = server.ask(f"/api/episodes?store={store_of(server, 'many')}&count=999999").json
        assert (len(found["numbers"]), found["fitting"]) == (MOST_ROWS, MOST_ROWS + 3), "what is left out is counted"
        for name, size in (("long", (16, 12 * MOST_FRAMES)), ("large", (side, 3 * side))):
            part = server.ask(f"/api/frames?store={store_of(server, name)}&episode=0&part=1")
            assert png_size(part.body) == size


def png_size(file: bytes) -> tuple[int, int]:
    """Width and height, from the head of a PNG file."""
    width, height = struct.unpack_from(">II", file, 16)
    return width, height


@pytest.mark.parametrize(
    ("address", "code"),
    [
        ("/api/episodes?store=nobody", 404),
        ("/api/episode?store={}&episode=99", 404),
        ("/api/episode?store={}", 404),
        ("/api/frames?store={}&episode=-1&part=0", 404),
        ("/api/episode?store={}&episode=x", 400),
        ("/api/frames?store={}&episode=0&part=-1", 422),
        ("/api/frames?store={}&episode=0&part=0&image=../../secret", 422),
        ("/api/moment?run=nobody&frames=1", 404),
        ("/api/episodes?store={}&near=nan", 400),
    ],
)
def test_questions_without_an_answer(server: Serving, address: str, code: int) -> None:
    assert server.ask(address.format(store_of(server))).code == code


def test_a_moment_has_its_checkpoint_and_its_log(server: Serving) -> None:
    found = server.ask(f"/api/moment?run={server.id_of('exp/run')}&frames=200").json
    assert (found["checkpoint"], found["checkpoints"]) == (150, [0, 150, 300])
    assert [line.split()[-1] for line in found["log"]] == ["then", "it"]
    assert found["time"] == 1_790_002_000


def test_a_store_beside_runs_is_found(server: Serving) -> None:
    assert server.ask(f"/api/episodes?store={store_of(server, 'loose/store')}").json["episodes"] == 1


def test_shards_that_are_links_to_elsewhere_are_not_read(tmp_path: Path) -> None:
    counting_store(tmp_path / "secret", (3,))
    counting_store(tmp_path / "runs" / "store", (4,))
    (shard,) = (tmp_path / "runs" / "store" / "shards").iterdir()
    (other,) = (tmp_path / "secret" / "shards").iterdir()
    shard.unlink()
    shard.symlink_to(other)
    with serving(tmp_path / "runs") as server:
        answer = server.ask(f"/api/episodes?store={store_of(server, 'store')}")
        assert (answer.code, b"leads out of" in answer.body) == (422, True)


def test_damage_is_said(tmp_path: Path) -> None:
    counting_store(tmp_path / "runs" / "store", (4, 60))
    (shard,) = (tmp_path / "runs" / "store" / "shards").iterdir()
    content = bytearray(shard.read_bytes())
    content[len(content) // 2] ^= 255
    shard.write_bytes(content)
    for file in (tmp_path / "runs" / "store" / "index").iterdir():
        file.unlink()
    with serving(tmp_path / "runs") as server:
        found = server.ask(f"/api/episodes?store={store_of(server, 'store')}").json
    assert found["damaged"] >= 1
    assert found["problems"]


def test_what_a_report_says_of_a_store(tmp_path: Path) -> None:
    """Where trainings put it, and where ``rollmill data report`` does."""
    root = tmp_path / "runs"
    write_run(root / "exp" / "run", online(), [1.0])
    for place in (root / "exp" / "run" / "data", root / "loose"):
        counting_store(place, (5, 7))
    with serving(root) as server:
        ids = {store["name"]: store["id"] for store in server.ask("/api/runs").json["stores"]}
        recorded, loose = ids["exp/run/data"], ids["loose"]
        assert server.ask(f"/api/checks?store={loose}").json == {"made": "", "checks": []}
        write_report(Store(root / "loose"))
        write_report(Store(root / "exp" / "run" / "data"), root / "exp" / "run" / "data_report.html")
        for store in (recorded, loose):
            found = server.ask(f"/api/checks?store={store}").json
            assert found["made"]
            assert ["good", "no damage in the 2 episodes that were read (of 2)"] in found["checks"]
        (root / "loose" / "report.json").write_text("{}")
        assert server.ask(f"/api/checks?store={loose}").code == 422


def test_stores_of_these_tests_have_the_columns_that_trainings_record() -> None:
    config = load_config(TrainConfig, [], ["env=CartPole-v1", "recording.columns=[log_prob, value]"])
    spec = EnvSpec("x", (Field("x", "float32", (1,)),), ActionSpec("discrete", nvec=(2,), start=(0,)))
    recorded = store_schema(config, spec)
    assert [column for column in recorded.columns if column.name in ("log_prob", "value")] == list(EXTRA)


def test_more_points_than_a_page_draws_are_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first and the last, and those at even distances between them."""
    monkeypatch.setattr(episodes, "MOST_POINTS", 4)
    store = Store(counting_store(tmp_path / "store", (2,) * 10))
    head, columns = episodes.scatter(store, Question())
    assert (head["rows"], head["fitting"], columns[0].tolist()) == (4, 10, [0, 3, 6, 9])
    monkeypatch.setattr(episodes, "MOST_POINTS", 10)
    assert episodes.scatter(store, Question())[0]["rows"] == 10


def test_returns_that_are_not_known_come_last(tmp_path: Path) -> None:
    store = Store(counting_store(tmp_path / "store", (2, 3, 4)))
    returns = store.table["return"]
    returns.setflags(write=True)
    returns[1] = math.nan  # as that of an episode without an end
    assert Question(sort="-return").select(store).tolist() == [2, 0, 1]
    assert Question(sort="return").select(store).tolist() == [0, 2, 1]


def test_words_of_a_filter_may_stand_in_quotes() -> None:
    assert words_in(' a  policy="b c" "d"e ') == ["a", "policy=b c", "de"]
    assert words_in(r'x="a \" b \\" y\z ""') == ['x=a " b \\', r"y\z", ""]
    with pytest.raises(ConfigError, match="not closed"):
        words_in('policy="b')
