"""A page as a whole: one HTML file without scripts and without anything from elsewhere, and the parts all pages share.

Every page says in a meta tag which kind it is. ``write_page`` replaces pages of its own kind only: a page about an
experiment never takes the place of a page about one run, nor of a file that somebody else has put there.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Literal

from rollmill.core import atomic
from rollmill.core.opening import plain_file, read_bytes
from rollmill.reports.html.style import STYLE
from rollmill.reports.html.svg import escape

Kind = Literal["run", "offline", "world", "encoder", "dynamics", "controller", "experiment", "comparison", "store"]
"""What a page is about; ``comparison``: several offline policies side by side."""

_POLICY = (
    "default-src 'none'; img-src data:; media-src data:; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
)
_MARK = re.compile(rb'<meta name="rollmill-page" content="([a-z]+)"/>')
_HEAD_BYTES = 4096
_HEAD_0_1 = re.compile(
    rb'<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8"/>\n<meta http-equiv="Content-Security-Policy" '
    rb"[^<]*\n(?:<(?!title)[^<]*\n)*<title>([^<]*)</title>"
)
_TITLES_0_1: tuple[tuple[Kind, re.Pattern[bytes]], ...] = (
    ("run", re.compile(rb": run report$")),
    ("world", re.compile(rb"^World model ")),
    ("encoder", re.compile(rb"^Encoder ")),
    ("experiment", re.compile(rb"^Experiment ")),
    ("store", re.compile(rb": ")),
    ("offline", re.compile(rb", ")),
    ("comparison", re.compile(rb"")),  # whatever the environment is called
)
"""Pages of version 0.1 have no mark, but titles that tell: the first of these that fits."""


def document(kind: Kind, title: str, body: str, style: str = "") -> str:
    """The whole page; ``style``: rules besides those that all pages share."""
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8"/>\n'
        f'<meta name="rollmill-page" content="{kind}"/>\n'
        f'<meta http-equiv="Content-Security-Policy" content="{escape(_POLICY)}"/>\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1"/>\n<link rel="icon" href="data:,"/>\n'
        f"<title>{escape(title)}</title>\n<style>{STYLE}{style}</style>\n</head>\n<body>\n<main>\n"
        f"{body}</main>\n</body>\n</html>\n"
    )


def data_url(path: Path, media: str, folder: Path) -> str:
    """A file as part of a page (``media``: ``video/mp4``); ``OSError`` unless it is a file that lies in ``folder``."""
    return f"data:{media};base64,{base64.b64encode(read_bytes(path, within=folder)).decode('ascii')}"


def kind_of(path: Path) -> str | None:
    """Which kind of page a file is; None where it is none of ours."""
    with open(path, "rb", opener=plain_file) as file:
        head = file.read(_HEAD_BYTES)
    if found := _MARK.search(head):
        return found[1].decode()
    if old := _HEAD_0_1.match(head):
        return next(kind for kind, title in _TITLES_0_1 if title.search(old[1]))
    return None


def place_for(path: Path, kind: Kind) -> Path:
    """``path``, or the next name beside it where a file lies that is not a page of this kind."""
    place, number = path, 1
    while place.is_file() and kind_of(place) != kind:
        ending = f"-{number}" if number > 1 else ""
        place, number = path.with_name(f"{path.stem}-{kind}{ending}{path.suffix}"), number + 1
    return place


def write_page(path: Path, kind: Kind, text: str) -> Path:
    """Write a page where ``place_for`` says, and return that place. Raises OSError where it is impossible."""
    place = place_for(path, kind)
    atomic.write_text(place, text)
    return place


# -- parts ----------------------------------------------------------------------------------------------------


def section(title: str, body: str) -> str:
    """A heading and what stands below it; nothing where that is nothing."""
    return f"<section>\n<h2>{escape(title)}</h2>\n{body}\n</section>\n" if body else ""


def card(body: str, title: str = "") -> str:
    heading = f"<h3>{escape(title)}</h3>" if title else ""
    return f'<div class="card">{heading}{body}</div>' if body else ""


def grid(cards: Iterable[str]) -> str:
    """Cards beside each other, as many as there is room for; empty ones are left out."""
    there = "".join(cards)
    return f'<div class="grid3">{there}</div>' if there else ""


def tiles(figures: Sequence[tuple[str, str]]) -> str:
    """(figure, what it is) in large letters."""
    cells = "".join(f'<div class="tile"><b>{escape(v)}</b><span>{escape(k)}</span></div>' for v, k in figures)
    return f'<div class="tiles">{cells}</div>\n'


def note(text: object) -> str:
    return f'<p class="note">{escape(text)}</p>' if str(text) else ""
