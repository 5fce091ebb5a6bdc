from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from storing import small_schema, write_episodes

from rollmill.cli.main import main
from rollmill.core.errors import BadBlock, ConfigError, StoreError
from rollmill.core.fields import ActionSpec, EnvSpec, Field
from rollmill.reports.video import panel
from rollmill.reports.video.panel import HEIGHT, Panel, draw_text, text_mask, text_width
from rollmill.reports.video.stored_episodes import VideoOptions, choose_episodes, write_videos
from rollmill.store.episode import Episode, EpisodeInfo
from rollmill.store.format.schema import Column, StoreSchema
from rollmill.store.images import choose_image, image_of, images, read_image, read_images
from rollmill.store.reader import Store
from rollmill.store.writer import StoreWriter

av = pytest.importorskip("av")

DISCRETE = ActionSpec("discrete", nvec=(4,), start=(0,))


def schema_of(*fields: Field, action: ActionSpec = DISCRETE, extra: tuple[Column, ...] = ()) -> StoreSchema:
    return StoreSchema.for_env(EnvSpec("view", fields, action), extra=extra)


def episode_of(schema: StoreSchema, steps: int, k: int = 0, **options: Any) -> Episode:
    """Every value of image t is 20 t + k."""
    columns = {}
    for column in schema.columns:
        rows = steps + (column.per == "obs")
        values = (20 * np.arange(rows) + k).reshape(rows, *[1] * len(column.shape))
        columns[column.name] = np.broadcast_to(values, (rows, *column.shape)).astype(column.numpy)
    columns["reward"] = np.full(steps, k, np.float32)
    columns["action"] = columns["action"] % 4
    return Episode(columns, EpisodeInfo(uid=k, **options), terminated=True)


def write(path: Path, schema: StoreSchema, lengths: list[int], **options: Any) -> Store:
    with StoreWriter(path, schema, block=4) as writer:
        for k, steps in enumerate(lengths):
            writer.add_episode(episode_of(schema, steps, k, **options))
    return Store(path)


def frames_of(path: Path) -> list[np.ndarray[Any, Any]]:
    with av.open(str(path)) as container:
        return [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]


VIEW = schema_of(Field("screen", "uint8", (24, 32, 3)))


def test_a_video_has_an_image_per_observation(tmp_path: Path) -> None:
    store = write(tmp_path / "data", VIEW, [10, 6])
    files = write_videos(store, [0, 1], tmp_path / "videos")
    assert [file.name for file in files] == [
        "episode-000000-0000000000000000.mp4",
        "episode-000001-0000000000000001.mp4",
    ]
    for file, steps in zip(files, (10, 6)):
        frames = frames_of(file)
        assert len(frames) == steps + 1
        assert frames[0].shape[1] == 320
        for t, frame in enumerate(frames):
            assert abs(frame[:240].mean() - (20 * t + int(file.name[8:14]))) < 3
            assert frame[240:].std() > 5  # the panel
    assert sorted(path.name for path in (tmp_path / "videos").iterdir()) == [file.name for file in files]


def test_speed_scale_and_panel_are_knobs(tmp_path: Path) -> None:
    store = write(tmp_path / "data", schema_of(Field("screen", "uint8", (21, 33, 3))), [5])
    (file,) = write_videos(store, [0], tmp_path, VideoOptions(fps=7.5, scale=3, plain=True))
    with av.open(str(file)) as container:
        stream = container.streams.video[0]
        assert float(stream.average_rate) == 7.5
        assert (stream.width, stream.height) == (100, 64)  # 99 x 63, made even
        assert stream.frames == 6


def test_videos_are_replaced_and_nothing_half_done_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = write(tmp_path / "data", VIEW, [5])
    out = tmp_path / "videos"
    (file,) = write_videos(store, [0], out)
    before = file.read_bytes()
    write_videos(store, [0], out)
    assert file.read_bytes() == before
    (shard,) = (tmp_path / "data" / "shards").iterdir()
    data = bytearray(shard.read_bytes())
    offset, length, _ = store._indexes[0].places[-1].item()
    data[offset + 12 + length // 2] ^= 1
    shard.write_bytes(data)
    with pytest.raises(BadBlock):
        write_videos(Store(tmp_path / "data"), [0], out)
    assert [path.name for path in out.iterdir()] == [file.name]
    assert file.read_bytes() == before


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    store = write(tmp_path / "data", VIEW, [5])
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="cannot be written"):
        write_videos(store, [0], tmp_path / "file")


def test_progress_is_told_between_episodes(tmp_path: Path) -> None:
    store = write(tmp_path / "data", VIEW, [5, 3])
    seen: list[tuple[int, int]] = []
    write_videos(store, [1, 0], tmp_path, progress=lambda done, total: seen.append((done, total)))
    assert seen == [(0, 8), (3, 8), (8, 8)]


# ------------------------------------------------------------------------------------------- which image


def test_colours_come_before_grey(tmp_path: Path) -> None:
    schema = schema_of(
        Field("grey", "uint8", (20, 20)), Field("colour", "uint8", (20, 20, 3)), Field("x", "float32", (3,))
    )
    assert [image.name for image in images(schema)] == ["grey", "colour"]
    assert choose_image(schema, None).name == "colour"
    assert choose_image(schema, "grey").name == "grey"
    assert choose_image(schema, "obs:grey").name == "grey"
    assert choose_image(schema_of(Field("grey", "uint8", (20, 20))), None).name == "grey"


def test_depth_and_stacks_are_shown_only_when_asked_for(tmp_path: Path) -> None:
    schema = schema_of(Field("stack", "uint8", (20, 20, 4)), Field("depth_buffer", "uint8", (20, 20, 1)))
    with pytest.raises(StoreError, match=r"stack: 4 channels are .* stacked.*depth_buffer: .*--field"):
        choose_image(schema, None)
    assert choose_image(schema, "depth_buffer").name == "depth_buffer"
    stack = choose_image(schema, "stack")
    assert stack.note == "the last channel of 4"
    rows = np.arange(2 * 20 * 20 * 4, dtype=np.uint8).reshape(2, 20, 20, 4)
    assert np.array_equal(stack.rgb(rows), np.repeat(rows[..., 3:], 3, axis=-1))
    (file,) = write_videos(write(tmp_path / "data", schema, [4]), [0], tmp_path, VideoOptions(field="stack"))
    assert len(frames_of(file)) == 5


def test_stacks_of_colours_show_the_newest() -> None:
    image = image_of(Column("obs:frames", "uint8", (12, 20, 24), per="obs"))
    assert image is not None
    assert (image.channel_first, image.channels) == (True, 12)
    assert image.why_not
    rows = np.arange(12 * 20 * 24, dtype=np.uint8).reshape(1, 12, 20, 24)
    assert np.array_equal(image.rgb(rows)[0], rows[0, 9:].transpose(1, 2, 0))


def test_several_views_must_be_told_apart() -> None:
    schema = schema_of(Field("left", "uint8", (20, 20, 3)), Field("right", "uint8", (20, 20, 3)))
    with pytest.raises(StoreError, match="--field: left, right"):
        choose_image(schema, None)
    with pytest.raises(StoreError, match=r"no image 'top'.*left, right"):
        choose_image(schema, "top")


@pytest.mark.parametrize("shape", [(), (5,), (7, 7, 3), (2, 3, 4, 5)])
def test_small_grids_and_vectors_are_no_images(shape: tuple[int, ...]) -> None:
    assert image_of(Column("obs:x", "uint8", shape, per="obs")) is None
    assert image_of(Column("obs:x", "float32", (20, 20, 3), per="obs")) is None


def test_a_store_of_vectors_cannot_be_shown(tmp_path: Path) -> None:
    store = write(tmp_path, schema_of(Field("x", "float32", (4,))), [4])
    with pytest.raises(StoreError, match=r"holds no images \(observations: x\)"):
        write_videos(store, [0], tmp_path / "videos")


def test_images_of_an_episode_by_row_and_in_pieces(tmp_path: Path) -> None:
    schema = schema_of(Field("screen", "uint8", (24, 32, 3)), extra=(Column("render", "uint8", (24, 32, 3)),))
    store = write(tmp_path, schema, [9])
    screen, drawn = (choose_image(schema, name) for name in ("screen", "render"))
    assert [int(read_image(store, 0, row, screen)[0, 0, 0]) for row in (0, 5, 8, 9)] == [0, 100, 160, 180]
    assert [int(p[0, 0, 0]) for part in read_images(store, 0, screen) for p in part] == list(range(0, 200, 20))
    assert len([p for part in read_images(store, 0, drawn) for p in part]) == 9
    assert int(read_image(store, 0, 8, drawn)[0, 0, 0]) == 160


# ------------------------------------------------------------------------------------------- which episodes


def test_words_choose_episodes(tmp_path: Path) -> None:
    store = write(tmp_path, VIEW, [2, 5, 3, 4, 1])  # returns 0, 5, 6, 12, 4
    for words, wanted in (
        (["3"], [3]),
        (["-1", "1..2"], [4, 1, 2]),
        (["best"], [3]),
        (["best:2", "worst:2"], [3, 2, 0, 4]),
        (["best", "3", "2..3"], [3, 2]),
        (["random:99"], None),
    ):
        chosen = choose_episodes(store, words)
        assert sorted(chosen) == [0, 1, 2, 3, 4] if wanted is None else chosen == wanted
    assert choose_episodes(store, ["random:3"], seed=1) == choose_episodes(store, ["random:3"], seed=1)
    assert len({tuple(choose_episodes(store, ["random:3"], seed=seed)) for seed in range(9)}) > 1
    assert choose_episodes(store, ["best", "0"], among=np.array([1, 4])) == [1, 0]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["first"], "a number, FIRST..LAST, best"),
        (["5"], "no episode 5 .* it has 2"),
        (["-3"], "no episode -3"),
        (["1..0"], "the last one comes before the first"),
        ([], "no episode was chosen"),
        (["best:0"], "no episode was chosen"),
        (["bestest"], "bestest"),
    ],
)
def test_words_that_choose_nothing_are_refused(tmp_path: Path, words: list[str], said: str) -> None:
    store = write(tmp_path, VIEW, [2, 5])
    with pytest.raises(ConfigError, match=said):
        choose_episodes(store, words)


def test_there_must_be_something_to_rank(tmp_path: Path) -> None:
    with StoreWriter(tmp_path, VIEW) as writer:
        episode = episode_of(VIEW, 3)
        episode.columns["reward"] = np.full(3, np.nan, np.float32)
        writer.add_episode(episode)
    with pytest.raises(ConfigError, match="no episode has a return"):
        choose_episodes(Store(tmp_path), ["best"])
    with pytest.raises(ConfigError, match="there is no episode to choose the random of"):
        choose_episodes(Store(tmp_path), ["random"], among=np.array([], np.int64))


@pytest.mark.parametrize("options", [{"scale": -1}, {"scale": 99}, {"fps": 0}, {"fps": float("nan")}])
def test_wrong_knobs_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(options))):
        VideoOptions(**options)


# ------------------------------------------------------------------------------------------- drawing


def test_letters_are_different_and_fit() -> None:
    letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789+-.,/:%()=_# ?"
    masks = {letter: text_mask(letter) for letter in letters}
    assert {mask.shape for mask in masks.values()} == {(7, 5)}
    assert len({mask.tobytes() for mask in masks.values()}) == len(letters)
    assert np.array_equal(text_mask("a"), text_mask("A"))
    assert text_mask("ab", 3).shape == (HEIGHT * 3, text_width("ab", 3))
    assert text_mask("ß").shape == (7, 5)  # two capital letters; there is room for one


def test_text_is_cut_at_the_edges() -> None:
    for x, y in ((0, 0), (-3, -2), (18, 5), (90, 90), (-90, -90)):
        image = np.zeros((8, 20, 3), np.uint8)
        draw_text(image, x, y, "W8", (9, 9, 9))
        large = np.zeros((300, 300, 3), np.uint8)
        draw_text(large, x + 100, y + 100, "W8", (9, 9, 9))
        assert np.array_equal(image, large[100:108, 100:120])


def said_on(monkeypatch: pytest.MonkeyPatch, store: Store, row: int, width: int = 640) -> list[str]:
    texts: list[str] = []
    monkeypatch.setattr(panel, "draw_text", lambda image, x, y, text, ink, scale: texts.append(text))
    Panel(store, 0, width).draw(row)
    return [text for text in texts if text]


def test_the_panel_tells_step_action_reward_and_return(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    schema = schema_of(Field("screen", "uint8", (24, 32, 3)), action=ActionSpec("discrete", nvec=(4,), start=(5,)))
    with StoreWriter(tmp_path, schema) as writer:
        episode = episode_of(schema, 3, 1, first_step=10)
        episode.columns["reward"] = np.array([1.0, -2.5, 0.0], np.float32)
        episode.columns["action"] = np.array([0, 3, 1])
        writer.add_episode(episode)
    store = Store(tmp_path)
    assert said_on(monkeypatch, store, 0) == ["STEP 10/13", "RETURN +1", "ACTION 5", "REWARD +1"]
    assert said_on(monkeypatch, store, 1) == ["STEP 11/13", "RETURN -1.5", "ACTION 8", "REWARD -2.5"]
    assert said_on(monkeypatch, store, 3) == ["STEP 13/13", "RETURN -1.5", "END: TERMINATED"]


def test_the_chosen_box_is_filled(tmp_path: Path) -> None:
    with StoreWriter(tmp_path, VIEW) as writer:
        episode = episode_of(VIEW, 4)
        episode.columns["action"] = np.array([0, 3, 1, 0])
        writer.add_episode(episode)
    drawn = Panel(Store(tmp_path), 0, 320)
    assert drawn.draw(0).shape == (drawn.height, 320, 3)
    assert drawn.height % 2 == 0
    starts = []
    for row in range(5):
        boxes = (drawn.draw(row)[: drawn.height - panel.CURVE - 8] == panel.ACCENT).all(axis=-1)
        starts.append(int(boxes[-panel.CURVE // 2 :].any(axis=0).argmax()) if row < 4 else -1)
    assert starts[0] == starts[3] < starts[2] < starts[1]


def test_bars_stand_for_vectors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    action = ActionSpec("continuous", shape=(2,), low=(-1.0, -np.inf), high=(1.0, np.inf))
    schema = schema_of(Field("screen", "uint8", (24, 32, 3)), action=action)
    with StoreWriter(tmp_path, schema) as writer:
        episode = episode_of(schema, 2)
        episode.columns["action"] = np.array([[1.0, -9.0], [0.0, 0.0]], np.float32)
        writer.add_episode(episode)
    store = Store(tmp_path)
    drawn = Panel(store, 0, 320)
    accents = [(drawn.draw(t)[: drawn.height - 40] == panel.ACCENT).all(axis=-1).sum() for t in (0, 1)]
    assert accents[0] > accents[1]
    assert said_on(monkeypatch, store, 0)[2] == "ACTION +1.00 -9.00"


def test_a_nan_among_actions_is_seen_and_leaves_the_other_bars(tmp_path: Path) -> None:
    action = ActionSpec("continuous", shape=(2,), low=(-1.0, -1.0), high=(1.0, 1.0))
    schema = schema_of(Field("screen", "uint8", (24, 32, 3)), action=action)
    with StoreWriter(tmp_path, schema) as writer:
        episode = episode_of(schema, 2)
        episode.columns["action"] = np.array([[1.0, np.nan], [1.0, -np.inf]], np.float32)
        writer.add_episode(episode)
    drawn = [Panel(Store(tmp_path), 0, 320).draw(row) for row in (0, 1)]
    with_nan, without = ((image == panel.BAD).all(axis=-1).sum() for image in drawn)
    assert with_nan > without == 0
    assert all((image[:-40] == panel.ACCENT).all(axis=-1).any() for image in drawn)


def test_words_that_do_not_fit_are_left_out_whole() -> None:
    assert panel._fitting("ACTION 1 2 3", 1000, 1) == "ACTION 1 2 3"
    assert panel._fitting("ACTION +0.11 +0.22 +0.33", text_width("ACTION +0.11 ..", 2), 2) == "ACTION +0.11 .."


def test_many_choices_and_strange_returns_are_drawn(tmp_path: Path) -> None:
    schema = schema_of(Field("screen", "uint8", (24, 32, 3)), action=ActionSpec("discrete", nvec=(500,), start=(0,)))
    with StoreWriter(tmp_path, schema) as writer:
        episode = episode_of(schema, 3)
        episode.columns["reward"] = np.array([np.inf, np.nan, 1e38], np.float32)
        writer.add_episode(episode)
    for row in range(4):
        Panel(Store(tmp_path), 0, 320).draw(row)


# ------------------------------------------------------------------------------------------- the rest


def test_the_command_videos_what_passes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path / "data", VIEW, [2, 5, 3])
    words = ["data", "play", str(tmp_path / "data"), "--out", str(tmp_path / "videos")]
    assert main([*words, "--episodes", "best", "0", "--json", "length_max=4"]) == 0
    assert [row["episode"] for row in json.loads(capsys.readouterr().out)] == [2, 0]
    assert main([*words, "--plain", "--fps", "5"]) == 0
    assert "episode 2, 3 steps, return 6" in capsys.readouterr().out
    assert main([*words, "--episodes", "7"]) == 2
    assert main([*words, "--field", "depth"]) == 1


def test_the_command_refuses_what_cannot_be_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    StoreWriter(tmp_path / "empty", VIEW).close()
    assert main(["data", "play", str(tmp_path / "empty"), "--out", str(tmp_path)]) == 2
    assert "no episodes" in capsys.readouterr().err
    write_episodes(tmp_path / "small", small_schema(), [3])
    assert main(["data", "play", str(tmp_path / "small"), "--out", str(tmp_path)]) == 1
    assert "no images" in capsys.readouterr().err
