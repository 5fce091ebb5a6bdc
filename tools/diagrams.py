"""Diagrams of the documentation as SVG: ``processes`` (who talks with whom), ``rows`` (what one step writes where),
``shard`` (a file of the store) and ``speed`` (bars of what ``docs/performance.md`` says).

Boxes and arrows are placed by hand, on a white ground, so that they can be read on a dark page as well.
"""

from __future__ import annotations

import re
from html import escape
from pathlib import Path
from typing import NamedTuple

PERFORMANCE = Path(__file__).resolve().parent.parent / "docs" / "performance.md"
INK, SOFT, LINE = "#1c2430", "#5b6675", "#8a94a3"
OURS, THEIRS = "#2f6fd0", "#8a94a3"
HUES = {"main": "#e8eefc", "shared": "#fdf1dc", "worker": "#e6f5ea", "file": "#f1eaf8", "plain": "#ffffff"}
LETTERS = "system-ui, -apple-system, 'Segoe UI', sans-serif"


class Diagram:
    """Collects the elements of one SVG."""

    def __init__(self, width: int, height: int, title: str) -> None:
        self.size, self.title = (width, height), title
        self.parts: list[str] = []

    def box(self, x: int, y: int, w: int, h: int, hue: str, head: str = "", *lines: str) -> None:
        """A rounded box with a heading and lines of small text from its top."""
        self.parts.append(f'<rect x="{x}" y="{y}" width="{w}" height="{h}" rx="8" fill="{HUES[hue]}" stroke="{LINE}"/>')
        if head:
            self.text(x + 12, y + 22, head, 15, bold=True)
        for k, line in enumerate(lines):
            self.text(x + 12, y + 42 + 18 * k, line, 13, INK)

    def text(self, x: int, y: int, words: str, size: int = 13, ink: str = INK, bold: bool = False) -> None:
        weight = ' font-weight="600"' if bold else ""
        self.parts.append(f'<text x="{x}" y="{y}" font-size="{size}" fill="{ink}"{weight}>{escape(words)}</text>')

    def small(self, x: int, y: int, words: str) -> None:
        self.text(x, y, words, 12, SOFT)

    def arrow(self, *points: tuple[int, int], both: bool = False) -> None:
        """A line through points with a head at its end, and at its start where ``both``."""
        path = " ".join(f"{x},{y}" for x, y in points)
        heads = 'marker-end="url(#head)"' + (' marker-start="url(#head)"' if both else "")
        self.parts.append(f'<polyline points="{path}" fill="none" stroke="{INK}" stroke-width="1.6" {heads}/>')

    def svg(self) -> str:
        width, height = self.size
        head = (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
            f'font-family="{LETTERS}" role="img" aria-label="{escape(self.title)}">\n'
            '<defs><marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" '
            f'orient="auto-start-reverse"><path d="M0,0 L8,4 L0,8 z" fill="{INK}"/></marker></defs>\n'
            f'<rect width="{width}" height="{height}" rx="10" fill="#ffffff"/>\n'
        )
        return head + "\n".join(self.parts) + "\n</svg>\n"


def processes() -> str:
    """Which processes a training has, and what passes between them."""
    d = Diagram(960, 430, "The processes of a training and what passes between them")
    d.box(20, 20, 300, 270, "main", "main process")
    d.box(40, 60, 260, 76, "plain", "inference thread", "acts for every group that is ready,", "in one forward pass")
    d.box(40, 194, 260, 76, "plain", "learner", "PPO (GAE or V-trace), SAC,", "or a class of your own")
    d.arrow((170, 194), (170, 136))
    d.small(178, 170, "weights")
    d.box(390, 20, 200, 270, "shared", "shared memory")
    d.box(405, 60, 170, 94, "plain", "arena", "observations, actions,", "rewards: written once,", "read by all")
    d.box(405, 168, 170, 58, "plain", "mailbox", "a few numbers a group")
    d.small(405, 252, "Only numbers of slots")
    d.small(405, 268, "travel between processes.")
    d.box(660, 20, 280, 270, "worker", "workers, one for each core")
    d.box(680, 60, 240, 76, "plain", "group 0", "its environments are stepped,", "observations written in place")
    d.box(680, 150, 240, 58, "plain", "group 1", "waits for its actions meanwhile")
    d.small(680, 236, "An environment that hangs or dies")
    d.small(680, 252, "is replaced; so is its worker.")
    d.arrow((300, 88), (390, 88), both=True)
    d.small(318, 80, "actions")
    d.arrow((390, 232), (300, 232))
    d.small(318, 224, "segments")
    d.arrow((590, 98), (680, 98), both=True)
    d.arrow((590, 179), (680, 179), both=True)
    d.box(20, 330, 280, 80, "file", "run folder", "checkpoints, metrics, log, diary,", "report page")
    d.arrow((110, 290), (110, 330))
    d.box(360, 330, 280, 80, "worker", "recorder process", "whole episodes, chosen", "by chance, into a store")
    d.arrow((490, 290), (490, 330))
    d.small(498, 314, "segments")
    d.box(700, 330, 240, 80, "worker", "janitor process", "removes what is left when the", "main process has ended")
    return d.svg()


def rows() -> str:
    """One row of the arena, and the two calls that fill it."""
    d = Diagram(960, 360, "One row of experience and the two calls that write it")
    names = ("obs", "action", "log_prob, value", "reward", "terminated, truncated")
    xs, widths = (150, 300, 410, 560, 660), (140, 100, 140, 90, 200)
    hues = ("worker", "main", "main", "worker", "worker")
    for x, name in zip(xs, names):
        d.text(x + 8, 132, name, 13, SOFT)
    here = ("what was seen", "what is done", "how sure, how good", "what it got", "whether that was the end")
    for y, row, values in ((144, "row t", here), (244, "row t + 1", ("what is seen next", "", "", "", ""))):
        d.text(40, y + 34, row, 15, bold=True)
        for x, w, hue, value in zip(xs, widths, hues, values):
            d.box(x, y, w, 56, hue if value else "plain")
            d.text(x + 8, y + 33, value, 12)
    d.box(300, 20, 250, 62, "main", "1. the policy acts", "reads obs, decides")
    d.arrow((220, 144), (220, 51), (300, 51))
    d.arrow((350, 82), (350, 116))
    d.arrow((480, 82), (480, 116))
    d.box(610, 20, 250, 62, "worker", "2. the environment steps", "env.step(action)")
    d.arrow((550, 51), (610, 51))
    d.arrow((640, 82), (640, 112))
    d.arrow((780, 82), (780, 116))
    d.arrow((860, 60), (915, 60), (915, 326), (220, 326), (220, 302))
    d.small(470, 344, "the next observation")
    return d.svg()


def shard() -> str:
    """A shard: frames one after the other, what a frame is, what a block of steps is, and the index beside it."""
    d = Diagram(960, 470, "A shard of the store: its frames, one frame, the payload of a block, the index")
    d.text(20, 36, "shards/<writer>-<number>.tfrecord", 15, bold=True)
    d.small(345, 36, "a sequence of TFRecord frames; episodes that are open at the same time alternate")
    frames = (
        ("main", "RMH1", "header", "schema"),
        ("worker", "RMB1", "episode a", "steps 0 to 15"),
        ("shared", "RMB1", "episode b", "steps 0 to 15"),
        ("worker", "RMB1", "episode a", "steps 16 to 31"),
        ("shared", "RMB1", "episode b", "16 to 20 + last"),
        ("shared", "RME1", "episode b", "its end"),
        ("plain", "...", "", ""),
    )
    for k, (hue, *words) in enumerate(frames):
        d.box(20 + 132 * k, 52, 126, 78, hue, *words)
    d.text(78, 190, "one frame", 15, bold=True)
    d.small(174, 190, "a kill can cut off the last one only; every reader of TFRecord can walk them")
    _parts(
        d,
        204,
        (("length", "8 bytes", 130), ("crc32c of it", "4 bytes", 130), ("payload", "", 520), ("crc32c", "", 128)),
    )
    _zoom(d, (152, 278, 130), (20, 940, 204))
    d.text(128, 316, "payload of a block", 15, bold=True)
    d.small(296, 316, "each column by itself: rewards are read without the images beside them")
    buffers = (("obs:image", "zstd, crc32c", 190), ("action", "zstd, crc32c", 118), ("reward", "zstd, crc32c", 118))
    said = (("tag", "RMB1", 70), ("size", "4 bytes", 70), ("msgpack map", "uid, steps, codecs, bytes, sums", 246))
    _parts(d, 330, (*said, *buffers, ("...", "", 66)))
    _zoom(d, (284, 804, 256), (20, 932, 330))
    d.box(20, 404, 920, 50, "file")
    d.text(32, 434, "index/<writer>-<number>.idx", 15, bold=True)
    d.small(312, 434, "one frame (RMI1): the episodes and where their blocks begin; rebuilt from the shard if missing")
    return d.svg()


def _parts(d: Diagram, y: int, parts: tuple[tuple[str, str, int], ...]) -> None:
    """Boxes beside each other: (head, small line, width)."""
    x = 20
    for head, line, width in parts:
        d.box(x, y, width, 52, "plain")
        d.text(x + 10, y + 22, head, 13, bold=True)
        d.small(x + 10, y + 40, line)
        x += width + 4


def _zoom(d: Diagram, above: tuple[int, int, int], below: tuple[int, int, int]) -> None:
    """Thin lines from a box to what it looks like inside: (left, right, y) of both."""
    for x, to in zip(above[:2], below[:2]):
        d.parts.append(
            f'<path d="M{x} {above[2]}L{to} {below[2]}" stroke="{LINE}" stroke-dasharray="4 4" fill="none"/>'
        )


class Bar(NamedTuple):
    """A row of a table that compares rollmill with Sample Factory."""

    name: str
    ours: float
    theirs: float


def measured(heading: str) -> list[Bar]:
    """The rows of frames per second and of memory in the table below a heading of ``docs/performance.md``."""
    section = PERFORMANCE.read_text(encoding="utf-8").partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in section.splitlines() if line.startswith("|")]
    ours, theirs = (
        next(k for k, cell in enumerate(rows[0]) if cell.startswith(name)) for name in ("rollmill", "Sample Factory")
    )
    return [
        Bar(row[0], _number(row[ours]), _number(row[theirs]))
        for row in rows
        if "frames/s" in row[0] or "memory" in row[0]
    ]


def _number(cell: str) -> float:
    """``4,592 (4,588 to 4,596)`` is 4592; of ``1,074 and 1,079`` the mean."""
    found = [float(text.replace(",", "")) for text in re.findall(r"[\d,.]+", cell.partition("(")[0])]
    return sum(found) / len(found)


def speed() -> str:
    """Frames per second and memory beside Sample Factory's, from the tables of ``docs/performance.md``."""
    d = Diagram(960, 330, "Frames per second and memory of rollmill and of Sample Factory, as bars")
    tables = (("Training, 2 cores, no GPU", "ViZDoom"), ("Training, 16 cores and one H200", "health gathering supreme"))
    for left, (heading, task) in zip((20, 500), tables):
        d.text(left, 36, heading.removeprefix("Training, "), 16, bold=True)
        d.small(left, 54, task)
        for k, bar in enumerate(measured(heading)):
            y = 88 + 76 * k
            d.text(left, y, bar.name, 13)
            for row, (value, hue) in enumerate(((bar.ours, OURS), (bar.theirs, THEIRS))):
                width = round(290 * value / max(bar.ours, bar.theirs))
                top = y + 8 + 22 * row
                d.parts.append(f'<rect x="{left}" y="{top}" width="{width}" height="18" rx="2" fill="{hue}"/>')
                d.text(left + width + 8, top + 14, f"{value:,.0f}", 13, bold=not row)
            d.small(left + 376, y + 32, f"{bar.ours / bar.theirs:.2f} times")
    for x, name, hue in ((20, "rollmill", OURS), (110, "Sample Factory", THEIRS)):
        d.parts.append(f'<rect x="{x}" y="308" width="12" height="12" rx="2" fill="{hue}"/>')
        d.small(x + 18, 318, name)
    return d.svg()


DIAGRAMS = {"processes": processes, "rows": rows, "shard": shard, "speed": speed}
