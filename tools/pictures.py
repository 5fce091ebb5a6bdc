"""Makes the images of README and docs in ``docs/images``, from what ``make demo`` has left in ``runs/demo``.

    make pictures
    python tools/pictures.py agent panel             some of them

Each is made by a command or a function that users have, too (``COMMANDS``). Pages are photographed with the system's
Chromium. ``dreams`` and ``world`` need a world model besides:
``rollmill world run -f carracing_world --out runs/world/car``. The plots of ``docs/figures`` are what the benchmarks
draw (``FIGURES``), into ``runs/benchmarks``.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import pty
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

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

ROOT = Path(__file__).resolve().parent.parent
IMAGES = ROOT / "docs" / "images"
DEMO = ROOT / "runs" / "demo"
WORLD = ROOT / "runs" / "world" / "car"
MODEL = "rollmill world run -f carracing_world --out runs/world/car"
FOUR = ROOT / "runs" / "pictures" / "four"
CHROMIUM_FLAGS = (
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
)
WIDTH, HEIGHT = 1100, 820
COLUMNS = 100
SECONDS = 5.5
"""Of the agent's picture."""
SHORT_PATHS = "([long, short]) => { document.body.innerHTML = document.body.innerHTML.replaceAll(long, short) }"
"""An image is not to show where it was made."""
WHOLE = """end => {
  const place = words => [...document.querySelectorAll(words)].filter(one => one.checkVisibility()).map(
    one => one.getBoundingClientRect());
  const ends = place('.card, .tiles, table, svg, figure, p, pre'), all = [...ends, ...place('h2, h3, summary')];
  const cut = y => all.some(box => box.top < y && y < box.bottom);
  const last = Math.max(...ends.map(box => box.bottom).filter(y => y <= end + 1 && !cut(y)));
  return Math.floor(Math.min(last + 16, ...all.map(box => box.top).filter(y => y >= last)));
}"""
"""How far down a page shows whole tables and plots, but no further than to ``end``."""
MARGIN = 16
FREQUENT = 64
UNSEEN = 16.0
"""How far a colour of a page may lie from what stands for it (the length of the difference, of 255 in each channel)."""

AGENT = "doom_health_gathering_supreme"
"""Who is shown at play: a policy that comes with the package."""
POPULATION = (
    *("train", "env=toy_target", "sampling.mode=serial", "run.experiment=tuned", "run.name=population"),
    *("pbt.members=8", "pbt.period=400", "pbt.min_episodes=10", "learning.batch_size=256", "stop.frames=64_000"),
    *("pbt.tune.learning.learning_rate=[1e-4,1e-2]", "pbt.tune.learning.entropy_coefficient=[1e-4,0.1]"),
)
FIT = ("stop.frames=30_000", "stop.mean_return=null")
POLES = (
    *("train", "-f", "cartpole", *FIT, "run.experiment=poles"),
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
BANDS = """experiment: bands
config: [cartpole_fast]
settings: {stop.frames: 60_000, stop.mean_return: null, sampling.workers: 1}
params:
  - grid: {learning.learning_rate: [3e-4, 1e-3, 3e-3]}
seeds: 5
launch: {local: {parallel: 2}}
"""
DOOM = (
    *("train", "-f", "doom_basic", "run.experiment=doom", "run.name=basic", "stop.frames=20_000"),
    *("recording.keep=all", "recording.columns=[log_prob,value]"),
)
DREAMT = (str(WORLD / "latents"), str(WORLD / "vae"), str(WORLD / "dynamics"), "--raw", str(WORLD / "raw"))
FILMED = (
    *("--episodes", "1", "--seed", "3", "--deterministic"),
    *("--no-captions", "--video", "videos", "--video-count", "1"),
)

COMMANDS: dict[str, tuple[tuple[str, ...], ...]] = {
    "agent": (("eval", f"policy:{AGENT}", *FILMED),),
    "panel": (("train", "-f", "cartpole_fast"),),
    "population": (POPULATION,),
    "experiment": (("launch", "run", "bands.yaml"), ("report", "bands")),
    "four": (
        (
            *("train", "-f", "connect_four", f"run.dir={ROOT / 'runs'}", "run.experiment=pictures", "run.name=four"),
            *("checkpoints.keep_last=0", "checkpoints.every_seconds=60"),
        ),
    ),
    "match": (
        (
            *("match", str(FOUR), "random", f"{ROOT / 'benchmarks' / 'game_players.py'}:win_or_block"),
            *("--all-checkpoints", "--envs", "128", "--report", "match.html"),
        ),
    ),
    "viewer": (
        *(("launch", "run", "grid.yaml"), MEMBERS, NODES, DOOM),
        *(
            (*POLES, f"run.seed={seed}", f"learning.gamma={gamma}", f"run.name=gamma-{gamma}-s{seed}")
            for gamma in (0.9, 0.99)
            for seed in range(3)
        ),
    ),
    "world": (("report", str(WORLD), "--out", "world.html"),),
    "dreams": (("world", "video", *DREAMT, "--out", "dreams.mp4", "episodes=2", "shown=20"),),
}
"""What each maker runs, in a folder of its own."""

FIGURES = {
    "curves_cartpole.svg": "curves.py --tasks cartpole --variants async sync",
    "curves_doom_basic.svg": "curves.py --tasks doom_basic --variants async sync bfloat16",
    "curves_recording.svg": "curves.py --tasks doom_basic --variants async recorded",
    "growth_*.svg": "growth.py --kinds workers envs time",
    "world_ablations.svg": "world_ablations.py",
}
"""File of ``docs/figures`` -> the benchmark that draws it."""


def rollmill(*words: str, folder: Path = ROOT) -> None:
    subprocess.run([sys.executable, "-m", "rollmill.cli.main", *words], cwd=folder, check=True)


@contextmanager
def made(name: str) -> Iterator[Path]:
    """A folder in which the commands of a maker have run, for as long as it is looked at."""
    with tempfile.TemporaryDirectory() as folder:
        for file, text in {"grid.yaml": GRID, "bands.yaml": BANDS}.items():
            (Path(folder) / file).write_text(text)
        for words in COMMANDS[name]:
            rollmill(*words, folder=Path(folder))
        yield Path(folder)


def needed(path: Path, command: str) -> Path:
    if not path.exists():
        raise SystemExit(f"{path.relative_to(ROOT)} is missing: run `{command}` first")
    return path


# -- moving images ---------------------------------------------------------------------------------------


def save_gif(path: Path, frames: Sequence[np.ndarray], fps: float, width: int) -> None:
    """Frames RGB uint8, scaled to a width, with one palette for all: for what is drawn in few colours."""
    images = _scaled(frames, width)
    shown = images[:: max(1, len(images) // 4)]
    together = Image.new("RGB", (width, images[0].height * len(shown)))
    for k, image in enumerate(shown):
        together.paste(image, (0, k * image.height))
    palette = together.quantize(160)
    first, *others = (image.quantize(palette=palette, dither=Image.Dither.NONE) for image in images)
    first.save(path, save_all=True, append_images=others, duration=round(1000 / fps), loop=0, optimize=True)


def save_webp(path: Path, frames: Sequence[np.ndarray], fps: float, width: int) -> None:
    """The same in all colours, a tenth of the size: for what a simulator renders."""
    first, *others = _scaled(frames, width)
    first.save(path, save_all=True, append_images=others, duration=round(1000 / fps), loop=0, quality=40, method=6)


def _scaled(frames: Sequence[np.ndarray], width: int) -> list[Image.Image]:
    images = [Image.fromarray(frame) for frame in frames]
    size = (width, round(images[0].height * width / images[0].width))
    return [image.resize(size, Image.Resampling.LANCZOS) for image in images]


def frames_of(video: Path) -> tuple[list[np.ndarray], float]:
    """All images of a video, and how many it shows per second."""
    with av.open(str(video)) as container:
        rate = float(container.streams.video[0].average_rate or 1)
        return [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)], rate


def agent() -> None:
    """A policy that comes with the package, at play: the beginning of an episode."""
    with made("agent") as folder:
        (video,) = folder.glob("videos/*.mp4")
        frames, fps = frames_of(video)
    save_webp(IMAGES / "agent.webp", frames[: round(SECONDS * fps)], fps, width=640)


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


def dreams() -> None:
    """What was seen, what the encoder makes of it, what the model dreams: some moments of one video."""
    needed(WORLD / "report.html", MODEL)
    with made("dreams") as folder:
        frames, _ = frames_of(folder / "dreams.mp4")
    save_gif(IMAGES / "dreams.gif", frames[10:70:3], fps=4, width=360)


# -- the console -------------------------------------------------------------------------------------------


def panel() -> None:
    """The live panel of a training, as a terminal shows it when most of it is done."""
    (words,) = COMMANDS["panel"]
    with tempfile.TemporaryDirectory() as folder:
        shown = _in_terminal([sys.executable, "-m", "rollmill.cli.main", *words], folder)
    panels = [piece.partition("╯")[0] for piece in shown.split("╭")[1:]]
    chosen = f"╭{panels[round(0.6 * len(panels))]}╯".replace("\r", "")
    console = Console(record=True, width=COLUMNS, file=io.StringIO())
    for line in AnsiDecoder().decode(chosen):
        console.print(line)
    console.save_svg(str(IMAGES / "panel.svg"), title=f"rollmill {' '.join(words)}")


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


def save_page(path: Path, screenshot: bytes) -> None:
    """With at most 256 of its colours, where none looks another for it: a quarter of the size. The most frequent stay
    what they are, then whatever lies furthest from those chosen, so that thin lines and single points keep theirs.
    """
    shot = Image.open(io.BytesIO(screenshot)).convert("RGB")
    seen, place, counts = np.unique(np.asarray(shot).reshape(-1, 3), axis=0, return_inverse=True, return_counts=True)
    colours = seen.astype(int)
    chosen = list(np.argsort(-counts)[:FREQUENT])
    distances = np.stack([((colours - colours[k]) ** 2).sum(1) for k in chosen]).min(0)
    while len(chosen) < 256 and distances.any():
        chosen.append(int(distances.argmax()))
        distances = np.minimum(distances, ((colours - colours[chosen[-1]]) ** 2).sum(1))
    if distances.max() <= UNSEEN**2:
        nearest = np.argmin([((colours - colours[k]) ** 2).sum(1) for k in chosen], axis=0).astype(np.uint8)
        shot = Image.fromarray(nearest[place.ravel()].reshape(shot.height, shot.width))
        shot.putpalette(seen[chosen].tobytes())
    shot.save(path, optimize=True)


def photograph(browser: Any, page_path: Path, name: str, part: str = "main", hidden: Path = ROOT) -> None:
    """``docs/images/NAME.png``: a page, or a ``part`` of it, from its top, as far as a screen shows tables and plots
    whole. ``hidden`` is left out of the paths on it.
    """
    page = browser.new_page(viewport={"width": WIDTH, "height": HEIGHT}, bypass_csp=True)
    page.goto(page_path.as_uri())
    page.evaluate(SHORT_PATHS, [f"{hidden.resolve()}/", ""])
    box = page.locator(part).first.bounding_box()
    top, end = max(0, box["y"] - MARGIN), box["y"] + min(box["height"], 1.25 * HEIGHT)
    clip = {"x": 0, "y": top, "width": WIDTH, "height": page.evaluate(WHOLE, end) - top}
    save_page(IMAGES / f"{name}.png", page.screenshot(clip=clip, full_page=True))
    page.close()


def pages() -> None:
    """The pages that the demo has written; the plot of targets is a part of one of them."""
    shots = {
        "run_report": (DEMO / "agent" / "report.html", "main"),
        "data_report": (DEMO / "agent" / "data_report.html", "main"),
        "offline_report": (DEMO / "dt" / "report.html", "main"),
        "comparison": (DEMO / "comparison.html", "main"),
        "targets": (DEMO / "comparison.html", "section:has(h2:text('Asked for and achieved'))"),
    }
    with _browser() as browser:
        for name, (path, part) in shots.items():
            photograph(browser, needed(path, "make demo"), name, part)


def experiment() -> None:
    """The page of three learning rates with five seeds each: from five on there are bands."""
    with made("experiment") as folder, _browser() as browser:
        photograph(browser, folder / "runs" / "bands" / "report.html", "experiment_report", hidden=folder)


def population() -> None:
    """Who went on from whom, on the page of a population."""
    with made("population") as folder, _browser() as browser:
        page = folder / "runs" / "tuned" / "population" / "report.html"
        photograph(browser, page, "population", part="section:has(h2:text('Population'))", hidden=folder)


def world() -> None:
    """The page of a world model."""
    needed(WORLD / "report.html", MODEL)
    with made("world") as folder, _browser() as browser:
        photograph(browser, folder / "world.html", "world_report")


def match() -> None:
    """All past selves of a player of connect four against each other."""
    if not FOUR.is_dir():
        rollmill(*COMMANDS["four"][0])
    with made("match") as folder, _browser() as browser:
        photograph(browser, folder / "match.html", "match", part="section:last-of-type")


# -- the viewer --------------------------------------------------------------------------------------------

RENAME = """([long, short]) => {
  const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (texts.nextNode()) texts.currentNode.data = texts.currentNode.data.replaceAll(long, short);
}"""

DRAWN = (
    "[...document.querySelectorAll('.plot canvas:not(.over), .track canvas')].every((canvas) => canvas.width !== 300)"
)


def viewer() -> None:
    """The pages of the viewer, light and dark, over short runs of every kind, a grid of them among them."""
    with made("viewer") as folder:
        shoot_viewer(folder / "runs")


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


def drawings() -> None:
    """The diagrams, which are drawn by ``tools/diagrams.py``."""
    for name, draw_it in DIAGRAMS.items():
        (IMAGES / f"{name}.svg").write_text(draw_it(), encoding="utf-8")


class Maker(NamedTuple):
    make: Callable[[], None]
    files: tuple[str, ...]
    """Of ``docs/images``; ``*`` stands for anything."""


MAKERS = {
    "agent": Maker(agent, ("agent.webp",)),
    "hunt": Maker(hunt, ("treasure_hunt.gif",)),
    "panel": Maker(panel, ("panel.svg",)),
    "pages": Maker(pages, ("run_report.png", "data_report.png", "offline_report.png", "comparison.png", "targets.png")),
    "experiment": Maker(experiment, ("experiment_report.png",)),
    "population": Maker(population, ("population.png",)),
    "match": Maker(match, ("match.png",)),
    "viewer": Maker(viewer, ("viewer_*_light.png", "viewer_*_dark.png")),
    "drawings": Maker(drawings, tuple(f"{name}.svg" for name in DIAGRAMS)),
    "world": Maker(world, ("world_report.png",)),
    "dreams": Maker(dreams, ("dreams.gif",)),
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"none: all of {', '.join(MAKERS)}")
    names = parser.parse_args().names or list(MAKERS)
    if unknown := set(names) - set(MAKERS):
        parser.error(f"unknown: {', '.join(sorted(unknown))}; there are {', '.join(MAKERS)}")
    for name in names:
        MAKERS[name].make()
    for path in sorted(IMAGES.iterdir()):
        print(f"{path.relative_to(ROOT)}: {path.stat().st_size / 1000:.0f} kB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
