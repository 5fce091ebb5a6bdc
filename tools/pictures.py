"""Makes the images of README and docs in ``docs/images``, from what ``make demo`` has left in ``runs/demo``.

    make pictures
    python tools/pictures.py agent panel             some of them

Each is made by a command or a function that users have, too. Pages are photographed with the system's Chromium.
``dreams`` needs a world model besides: ``rollmill world run -f carracing_world --out runs/world/car --until dynamics``.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import pty
import re
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import av
import numpy as np
from diagrams import DIAGRAMS
from PIL import Image
from playwright import sync_api
from rich.ansi import AnsiDecoder
from rich.console import Console

from rollmill.envs.treasure_hunt.reference import GuidedPlayer
from rollmill.envs.treasure_hunt.render import draw
from rollmill.envs.treasure_hunt.settings import HuntSettings
from rollmill.envs.treasure_hunt.world import World
from rollmill.reports.html.style import STYLE

ROOT = Path(__file__).resolve().parent.parent
IMAGES = ROOT / "docs" / "images"
DEMO = ROOT / "runs" / "demo"
WORLD = ROOT / "runs" / "world" / "car"
FOUR = ROOT / "runs" / "pictures" / "four"
CHROMIUM_FLAGS = (
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
)
WIDTH, HEIGHT = 1100, 820
COLUMNS = 100
COLOURS = 128
"""Of the picture of a page."""
SHORT_PATHS = "([long, short]) => { document.body.innerHTML = document.body.innerHTML.replaceAll(long, short) }"
"""An image is not to show where it was made."""


def rollmill(*words: str) -> None:
    subprocess.run([sys.executable, "-m", "rollmill.cli.main", *words], cwd=ROOT, check=True)


# -- moving images ---------------------------------------------------------------------------------------


def save_gif(path: Path, frames: Sequence[np.ndarray], fps: float, width: int) -> None:
    """Frames RGB uint8, scaled to a width, with one palette for all."""
    images = [Image.fromarray(frame) for frame in frames]
    size = (width, round(images[0].height * width / images[0].width))
    images = [image.resize(size, Image.Resampling.LANCZOS) for image in images]
    shown = images[:: max(1, len(images) // 4)]
    together = Image.new("RGB", (size[0], size[1] * len(shown)))
    for k, image in enumerate(shown):
        together.paste(image, (0, k * size[1]))
    palette = together.quantize(160)
    first, *others = (image.quantize(palette=palette, dither=Image.Dither.NONE) for image in images)
    first.save(path, save_all=True, append_images=others, duration=round(1000 / fps), loop=0, optimize=True)


def agent() -> None:
    """The demo's agent: nine episodes beside each other."""
    with tempfile.TemporaryDirectory() as folder:
        words = ("--episodes", "9", "--grid", "3x3", "--no-captions")
        rollmill("eval", str(DEMO / "agent"), "--best", "--deterministic", *words, "--videos", folder)
        (video,) = Path(folder).glob("*.mp4")
        with av.open(str(video)) as container:
            frames = [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]
    save_gif(IMAGES / "doom_basic.gif", frames[:60], fps=6, width=400)


def hunt() -> None:
    """The treasure hunt, by the player that knows the shortest route."""
    world = World(HuntSettings(), 1)
    rng = np.random.default_rng(0)
    world.reset(np.arange(1), rng, progress=1.0)
    player, frames, over = GuidedPlayer(world, "oracle"), [], False
    while not over:
        moved = world.step(player.act(), rng)
        over = bool((moved.at_end | moved.timed_out)[0])
        if over or world.step_no[0] % 8 == 0:
            frames.append(draw(world, 0))
    save_gif(IMAGES / "treasure_hunt.gif", frames, fps=8, width=480)


# -- the console -------------------------------------------------------------------------------------------


def panel() -> None:
    """The live panel of a training, as a terminal shows it in the end."""
    with tempfile.TemporaryDirectory() as folder:
        words = ("train", "-f", "cartpole", "stop.frames=60_000", "stop.mean_return=null")
        shown = _in_terminal([sys.executable, "-m", "rollmill.cli.main", *words], folder)
    last = (shown[shown.rindex("╭") :].partition("╯")[0] + "╯").replace("\r", "")
    console = Console(record=True, width=COLUMNS, file=io.StringIO())
    for line in AnsiDecoder().decode(last):
        console.print(line)
    console.save_svg(str(IMAGES / "panel.svg"), title="rollmill train -f cartpole")


def _in_terminal(command: list[str], folder: str) -> str:
    """What a command writes when it has a terminal, with ``folder`` as its current one."""
    master, slave = pty.openpty()
    environment = os.environ | {"COLUMNS": str(COLUMNS), "LINES": "40", "TERM": "xterm-256color"}
    process = subprocess.Popen(command, stdin=slave, stdout=slave, stderr=slave, cwd=folder, env=environment)
    os.close(slave)
    written = bytearray()
    while True:
        try:
            piece = os.read(master, 65536)
        except OSError:  # Linux says so when the other side is closed
            break
        if not piece:
            break
        written += piece
    os.close(master)
    if process.wait():
        raise SystemExit(f"{' '.join(command)} ended with {process.returncode}")
    return written.decode(errors="replace")


# -- pages -------------------------------------------------------------------------------------------------


@contextmanager
def _browser() -> Iterator[Any]:
    path = shutil.which("chromium") or shutil.which("chromium-browser")
    if path is None:
        raise SystemExit("there is no Chromium: apt install chromium")
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=list(CHROMIUM_FLAGS))
        yield browser
        browser.close()


def pages() -> None:
    """The pages that the demo has written, as far as a screen shows them."""
    shots = {
        "run_report": DEMO / "agent" / "report.html",
        "data_report": DEMO / "agent" / "data_report.html",
        "comparison": DEMO / "comparison.html",
    }
    with _browser() as browser:
        for name, path in shots.items():
            if not path.is_file():
                raise SystemExit(f"{path} is missing: run `make demo` first")
            _photograph(browser, path, name, (str(DEMO.resolve()), "runs/demo"))


def save_page(path: Path, screenshot: bytes) -> None:
    """Few colours make a small file. Those of the style sheet stay what they are: a ground that covers the page, thin
    lines that cover little of it. All others become the nearest of what is left.
    """
    shot = Image.open(io.BytesIO(screenshot)).convert("RGB")
    seen, place = np.unique(np.asarray(shot).reshape(-1, 3), axis=0, return_inverse=True)
    styled = {bytes.fromhex(colour) for colour in re.findall(r"#([0-9a-f]{6})\b", STYLE)} & set(map(bytes, seen))
    others = shot.quantize(COLOURS - len(styled)).getpalette() or []
    palette = np.array([*b"".join(sorted(styled)), *others], np.uint8).reshape(-1, 3)
    distances = [((seen.astype(int) - colour) ** 2).sum(1) for colour in palette.astype(int)]
    numbers = np.argmin(distances, axis=0).astype(np.uint8)[place.ravel()]
    small = Image.fromarray(numbers.reshape(shot.height, shot.width))
    small.putpalette(palette.tobytes())
    small.save(path, optimize=True)


def _photograph(browser: Any, path: Path, name: str, shorter: tuple[str, str], part: str = "") -> None:
    """The top of a page, or a part of it, as ``docs/images/NAME.png``; ``shorter``: (a path, what is shown for it)."""
    page = browser.new_page(viewport={"width": WIDTH, "height": HEIGHT}, bypass_csp=True)
    page.goto(path.as_uri())
    page.evaluate(SHORT_PATHS, list(shorter))
    save_page(IMAGES / f"{name}.png", page.locator(part).screenshot() if part else page.screenshot())
    page.close()


def match() -> None:
    """All past selves of a player of connect four against each other."""
    if not FOUR.is_dir():
        place = (f"run.dir={ROOT / 'runs'}", "run.experiment=pictures", "run.name=four")
        rollmill("train", "-f", "connect_four", *place, "checkpoints.keep_last=0", "checkpoints.every_seconds=60")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "match.html"
        others = ("random", "benchmarks/game_players.py:win_or_block")
        rollmill("match", str(FOUR), *others, "--all-checkpoints", "--envs", "128", "--report", str(path))
        with _browser() as browser:
            _photograph(browser, path, "match", (str(ROOT), ""), part="section:last-of-type")


# -- the viewer --------------------------------------------------------------------------------------------

POLES = (
    *("train", "-f", "cartpole", "stop.frames=30_000", "stop.mean_return=null", "run.experiment=poles"),
    *("recording.keep=all", "report.every_frames=600"),
)
MEMBERS = (
    *("train", "env=CartPole-v1", "run.experiment=tuned", "run.name=population", "pbt.members=6", "pbt.period=5000"),
    *("pbt.min_episodes=10", "stop.frames=180_000"),
)
NODES = (
    *("train", "env=CartPole-v1", "run.experiment=nodes", "run.name=two_nodes", "cluster=local", "cluster.nodes=2"),
    *("sampling.workers=1", "stop.frames=150_000", "report.every_frames=5000"),
)
GRID = """experiment: grid
config: [cartpole_fast]
settings: {stop.frames: 30_000, stop.mean_return: null, sampling.workers: 1}
params:
  - grid: {learning.gamma: [0.9, 0.98], learning.learning_rate: [3e-4, 3e-3]}
seeds: 2
launch: {local: {parallel: 2}}
"""
DOOM = (
    *("train", "-f", "doom_basic", "run.experiment=doom", "run.name=basic", "stop.frames=20_000"),
    *("recording.keep=all", "recording.columns=[log_prob,value]"),
)
RENAME = """([long, short]) => {
  const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (texts.nextNode()) texts.currentNode.data = texts.currentNode.data.replaceAll(long, short);
}"""

DRAWN = (
    "[...document.querySelectorAll('.plot canvas:not(.over), .track canvas')].every((canvas) => canvas.width !== 300)"
)


def viewer() -> None:
    """The pages of the viewer, light and dark, over short runs of every kind, a grid of them among them."""
    with tempfile.TemporaryDirectory() as folder:

        def run(*words: str) -> None:
            subprocess.run([sys.executable, "-m", "rollmill.cli.main", *words], cwd=folder, check=True)

        (Path(folder) / "grid.yaml").write_text(GRID)
        run("launch", "run", "grid.yaml")
        run(*MEMBERS)
        run(*NODES)
        run(*DOOM)
        for gamma in (0.9, 0.99):
            for seed in range(3):
                run(*POLES, f"run.seed={seed}", f"learning.gamma={gamma}", f"run.name=gamma-{gamma}-s{seed}")
        shoot_viewer(Path(folder) / "runs")


def shoot_viewer(runs: Path) -> None:
    """The pages of the viewer over a folder of runs, each as ``viewer_<page>_<scheme>.png``."""
    command = [sys.executable, "-m", "rollmill.cli.main", "view", str(runs), "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server, _browser() as browser:
        assert server.stdout is not None
        link = json.loads(server.stdout.readline())["url"]
        for scheme in ("light", "dark"):
            page = browser.new_page(viewport={"width": WIDTH, "height": HEIGHT}, color_scheme=scheme, bypass_csp=True)
            page.goto(link)
            for name, (address, ready) in _views(page, link).items():
                page.evaluate("address => { location.hash = address; }", address)
                page.locator(ready).first.wait_for()
                page.wait_for_function(DRAWN)
                page.evaluate(RENAME, [socket.gethostname(), "node7"])
                save_page(IMAGES / f"viewer_{name}_{scheme}.png", page.screenshot())
            page.close()
        server.terminate()


def _views(page: Any, link: str) -> dict[str, tuple[str, str]]:
    """Page -> its address and what is there when it is drawn."""
    known = page.request.get(link.partition("?")[0] + "api/runs").json()
    poles = [run["id"] for run in known["runs"] if run["experiment"] == "poles"]
    store, doom = (
        next(own["id"] for own in known["stores"] if own["name"].startswith(name)) for name in ("poles", "doom")
    )
    numbers = page.request.get(f"{link.partition('?')[0]}api/episodes?store={doom}&sort=-return").json()["numbers"]
    return {
        "runs": ("runs?sort=-return", "table.runs a"),
        "curves": ("curves?metrics=episode/return,learn/entropy&single=1&filter=experiment=poles", ".chart .entry"),
        "compare": (f"compare?runs={poles[0]},{poles[-1]}", "section td"),
        "data": (f"data?store={store}", "table.episodes td"),
        "episodes": (f"play?e={doom}:{numbers[0]},{doom}:{numbers[-1]}&t=5", "canvas[data-step='5']"),
        "experiments": ("experiments", ".chart"),
        "populations": ("populations", ".chart"),
        "clusters": ("clusters", ".chart .entry"),
    }


def targets() -> None:
    """What a Decision Transformer was asked for and what it achieved: one plot of the comparison."""
    with _browser() as browser:
        page = browser.new_page(viewport={"width": WIDTH, "height": HEIGHT}, bypass_csp=True)
        page.goto((DEMO / "comparison.html").as_uri())
        plot = page.locator("h2", has_text="Asked for and achieved").locator("xpath=following::*[name()='svg'][1]")
        save_page(IMAGES / "targets.png", plot.screenshot())


def drawings() -> None:
    """The diagrams, which are drawn by ``tools/diagrams.py``."""
    for name, draw_it in DIAGRAMS.items():
        (IMAGES / f"{name}.svg").write_text(draw_it(), encoding="utf-8")


def dreams() -> None:
    """What was seen, what the encoder makes of it, what the model dreams: some moments of one video."""
    with tempfile.TemporaryDirectory() as folder:
        video = Path(folder) / "dreams.mp4"
        parts = (str(WORLD / "latents"), str(WORLD / "vae"), str(WORLD / "dynamics"), "--raw", str(WORLD / "raw"))
        rollmill("world", "video", *parts, "--out", str(video), "episodes=2", "shown=20")
        with av.open(str(video)) as container:
            frames = [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]
    save_gif(IMAGES / "dreams.gif", frames[10:70:3], fps=4, width=360)


MAKERS: dict[str, Callable[[], None]] = {
    "agent": agent,
    "hunt": hunt,
    "panel": panel,
    "pages": pages,
    "match": match,
    "viewer": viewer,
    "targets": targets,
    "drawings": drawings,
    "dreams": dreams,
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", default=list(MAKERS), choices=[*MAKERS, []], metavar="NAME")
    options = parser.parse_args()
    IMAGES.mkdir(exist_ok=True)
    for name in options.names:
        MAKERS[name]()
    for path in sorted(IMAGES.iterdir()):
        print(f"{path.relative_to(ROOT)}: {path.stat().st_size / 1000:.0f} kB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
