"""Videos show the episodes that were counted: decoded again, image by image."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from running import SERIAL, train_here

from rollmill.core.errors import ConfigError, EnvError, StoreError
from rollmill.core.run_folder import RunFolder
from rollmill.envs.make import make_env
from rollmill.envs.settings import EnvSettings
from rollmill.runs.evaluate.options import EvalOptions
from rollmill.runs.evaluate.render_env import image, images_per_second, with_images, without_display
from rollmill.runs.evaluate.results import EvalResult
from rollmill.runs.evaluate.run import evaluate
from rollmill.runs.evaluate.video import ReplayFrame, Script, VideoPlan, _shown, make_videos, replay

av = pytest.importorskip("av")

ENV = "showing_envs:Shown"
SCRIPT = Script(0, 0, np.array([[2], [0], [1], [2]]), np.array([[2.0], [0.0], [1.0], [2.0]]))


def settings_of(name: str, args: dict[str, object] | None = None, **more: object) -> EnvSettings:
    return EnvSettings(id=name, args=args or {}, **more)  # type: ignore[arg-type]


def decoded(path: str | Path) -> tuple[list[np.ndarray], float]:
    with av.open(str(path)) as file:
        stream = file.streams.video[0]
        return [frame.to_ndarray(format="rgb24") for frame in file.decode(stream)], float(stream.average_rate)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    words = (f"env={ENV}", "env.args={agents: 2}", "learning.batch_size=64", "stop.batches=1", "model.encoder=mlp")
    return train_here(tmp_path_factory.mktemp("run"), *SERIAL, *words)[1]


def play(run: RunFolder, folder: Path, **options: object) -> EvalResult:
    given = {"episodes": 5, "workers": 1, "envs": 3, "video": folder, "trust_code": True, **options}
    return evaluate(run.path, EvalOptions(**given))  # type: ignore[arg-type]


def test_a_video_for_each_episode(run: RunFolder, tmp_path: Path) -> None:
    """One image before the first step and one after each, as bright as the simulator says, at its true rate."""
    result = play(run, tmp_path / "v", video_count=2, random=True)
    assert [Path(video.file).name for video in result.videos] == [
        f"{name}-episode-{n:04d}.mp4"
        for name in (f"run-{Path(result.checkpoint).stem}", f"run-{Path(result.checkpoint).stem}-random")
        for n in (0, 1)
    ]
    for video in result.videos[:2]:
        lengths = [row.length for row in result.policy.rows if row.episode == video.episodes[0]]
        images, fps = decoded(video.file)
        assert len(images) == 1 + max(lengths)
        assert fps == pytest.approx(30 / 4)
        middle = [int(p[100, 160, 0]) for p in images]
        np.testing.assert_allclose(middle, 10 * np.arange(len(middle)), atol=2)
        assert video.problem == ""
    assert sorted(path.suffix for path in (tmp_path / "v").iterdir()) == [".mp4"] * 4


def test_a_suite_shows_every_task(tmp_path: Path) -> None:
    tasks = f"env.tasks=[{{name: dark, id: '{ENV}'}}, {{name: bright, id: '{ENV}', args: {{shade: 100}}}}]"
    _, folder = train_here(tmp_path, *SERIAL, tasks, "stop.batches=1", "model.encoder=mlp")
    result = play(folder, tmp_path / "v", video_count=2)
    names = [Path(video.file).stem.partition("-frames-")[2].partition("-")[2] for video in result.videos]
    assert names == ["dark-episode-0000", "bright-episode-0001", "dark-episode-0002", "bright-episode-0003"]
    assert not any(video.problem for video in result.videos)
    first = [int(decoded(video.file)[0][0][100, 160, 0]) for video in result.videos]
    np.testing.assert_allclose(first, [0, 100, 0, 100], atol=2)
    by_episode = {row.episode: (row.task, row.length) for row in result.policy.rows}
    for video, name in zip(result.videos, names, strict=True):
        task, length = by_episode[video.episodes[0]]
        assert name.startswith(f"{task}-")
        assert len(decoded(video.file)[0]) == 1 + length


def test_a_grid_goes_on_until_the_last_episode_ends(run: RunFolder, tmp_path: Path) -> None:
    result = play(run, tmp_path / "v", grid="2x2", no_captions=True, fps=5.0)
    (video,) = result.videos
    assert video.episodes == [0, 1, 2, 3]
    lengths = {n: max(row.length for row in result.policy.rows if row.episode == n) for n in range(4)}
    images, fps = decoded(video.file)
    assert (len(images), fps) == (1 + max(lengths.values()), 5.0)
    height, width = images[0].shape[:2]
    for n, length in lengths.items():
        top, left = (n // 2) * height // 2 + 40, (n % 2) * width // 2 + 40
        assert int(images[-1][top, left, 0]) == pytest.approx(10 * length / 2, abs=2), "ended: darkened, and kept"


def test_what_does_not_repeat_is_not_shown(tmp_path: Path) -> None:
    settings = settings_of(ENV, {"drift": True})
    plan = VideoPlan(settings, tmp_path, range(2))
    videos = make_videos(plan, "p", {0: SCRIPT}, 30.0)
    assert [video.episodes for video in videos] == [[1], [0]]
    assert videos[0].problem == "the episode was not played to its end"
    assert "episode 0 (seed 0) does not repeat from its seed and actions: step 0: reward" in videos[1].problem
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("steps", "what"), [(3, "it went on"), (5, "it ended")])
def test_an_end_at_another_step_is_noticed(steps: int, what: str) -> None:
    script = Script(0, 0, np.zeros((steps, 1), np.int64), np.zeros((steps, 1)))
    with pytest.raises(EnvError, match=what):
        list(replay(settings_of(ENV), script))


def test_an_episode_that_was_truncated_from_outside() -> None:
    script = Script(0, 0, SCRIPT.actions[:3], SCRIPT.rewards[:3])
    frames = list(replay(settings_of(ENV, max_episode_steps=3), script, max_steps=3))
    assert [frame.so_far for frame in frames] == [0.0, 2.0, 2.0, 3.0]
    assert [frame.over for frame in frames] == [False, False, False, True]


@pytest.mark.parametrize(
    ("env", "message"),
    [
        (settings_of("toy_target"), "renders no RGB images"),
        (settings_of(ENV, {"broken": "none"}), "renders no RGB images"),
        (settings_of(ENV, {"broken": "raise"}), r"shown: render\(\) failed: RuntimeError: no screen"),
        (settings_of("showing_envs:picky"), r"cannot be told to render \(what is render_mode\?\)"),
        (settings_of(ENV, {"broken": "shape"}), r"render\(\) gave uint8 of shape \(480, 640\)"),
        (settings_of("CartPole-v1", vector=True), "env.vector: CartPole-v1 is stepped by the group"),
    ],
)
def test_what_cannot_be_shown_is_found_out_before_anything_is_played(
    env: EnvSettings, message: str, tmp_path: Path
) -> None:
    with pytest.raises((ConfigError, EnvError), match=message):
        VideoPlan(env, tmp_path, range(1)).check()


def test_a_full_disk_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StoreError, match="the video cannot be written"):
        make_videos(VideoPlan(settings_of(ENV), tmp_path / "file", range(1)), "p", {0: SCRIPT}, 30.0)


# -- which images ------------------------------------------------------------------------------------------


def test_gymnasium_is_told_to_render() -> None:
    settings = with_images(settings_of("CartPole-v1", {"sutton_barto_reward": True}))
    assert settings.args == {"sutton_barto_reward": True, "render_mode": "rgb_array"}
    env = make_env(settings)
    env.reset(0, {"obs": np.zeros((1, 4), np.float32)})
    assert image(env).shape == (400, 600, 3)
    assert images_per_second(env) == 50.0
    env.close()


@pytest.mark.parametrize(
    ("given", "size"),
    [
        ({}, (640, 480)),
        ({"render_width": 160, "render_height": 120}, (640, 480)),
        ({"render_width": 320, "render_height": 180}, (640, 360)),
        ({"render_width": 800, "render_height": 600}, (800, 600)),
        ({"render_width": 100, "render_height": 100}, (100, 100)),
    ],
)
def test_simulators_with_a_choice_render_large_images(given: dict[str, int], size: tuple[int, int]) -> None:
    for env in (ENV, "doom_basic"):
        args = with_images(settings_of(env, given)).args
        assert (args["render_width"], args["render_height"]) == size
        assert with_images(settings_of(env, given), large=False).args == given
        assert "render_mode" not in args


def test_a_wide_screen_stays_wide() -> None:
    args = with_images(settings_of("doom_basic", {"wide_aspect_ratio": True})).args
    assert args == {"wide_aspect_ratio": False, "render_width": 640, "render_height": 360}


@pytest.mark.parametrize(("display", "driver"), [("", "dummy"), (":0", None)])
def test_drawing_needs_no_display(display: str, driver: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("WAYLAND_DISPLAY", "SDL_VIDEODRIVER", "MUJOCO_GL"):
        monkeypatch.setenv(name, "x")  # noted, so that it is restored
        monkeypatch.delenv(name)
    monkeypatch.setenv("DISPLAY", display)
    without_display()
    assert os.environ.get("SDL_VIDEODRIVER") == driver
    assert os.environ.get("MUJOCO_GL") == ("egl" if driver else None)


def test_captions() -> None:
    frame = ReplayFrame(np.full((24, 16, 3), 200, np.uint8), 3, -1.5, False)
    shown = _shown(frame, 7, captions=True)
    assert shown.shape[1] == 320
    assert len(np.unique(shown[-10:])) > 1, "something is written there"
    assert np.unique(_shown(frame, 7, captions=False)).tolist() == [200]
