"""A page as a whole: one HTML file without anything from elsewhere, and the parts that all pages are made of.

Every page says in a meta tag which kind it is. ``write_page`` replaces pages of its own kind only: a page about an
experiment never takes the place of a page about one run, nor of a file that somebody else has put there.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

from rollmill.core import atomic
from rollmill.core.errors import RunFolderError
from rollmill.core.opening import plain_file, read_bytes
from rollmill.reports.html.elements import NOTHING, Html, element, escape, join
from rollmill.reports.html.style import STYLE

Kind = Literal[
    "run",
    "offline",
    "world",
    "encoder",
    "dynamics",
    "controller",
    "experiment",
    "comparison",
    "match",
    "store",
    "watch",
    "viewer",
]
"""What a page is about; ``comparison``: policies side by side; ``match``: policies against each other."""


def content_hash(text: str) -> str:
    """Return the hash of a style or script inside a page, as a content policy names it."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode('ascii')}'"


POLICY = {
    "default-src": "'none'",
    "img-src": "data:",
    "media-src": "data:",
    "style-src": content_hash(STYLE),
    "base-uri": "'none'",
    "form-action": "'none'",
}
"""What a browser may do for a page: show what is inside it, in the style that is inside it."""
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


def content_policy(**more: str) -> str:
    """Return a page's Content-Security-Policy; ``more``: other words for some of its rules (``img_src="'self'"``)."""
    rules = {**POLICY, **{name.replace("_", "-"): words for name, words in more.items()}}
    return "; ".join(f"{name} {words}" for name, words in rules.items())


def document(kind: Kind, title: str, *body: Html, policy: str = "", script: str = "", head: Html = NOTHING) -> Html:
    """Return the whole page. ``script``: address of a script, which ``policy`` must allow; pages in files have none.

    ``head``: more styles and scripts, which ``policy`` must allow, too.
    """
    end = element("script", src=script) if script else NOTHING
    return Html(
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8"/>\n'
        f'<meta name="rollmill-page" content="{kind}"/>\n'
        f'<meta http-equiv="Content-Security-Policy" content="{escape(policy or content_policy())}"/>\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1"/>\n<link rel="icon" href="data:,"/>\n'
        f"{element('title', title)}\n<style>{STYLE}</style>\n{head}</head>\n"
        f"<body>\n<main>\n{join(*body)}</main>\n{end}</body>\n</html>\n"
    )


def data_url(path: Path, media: str, folder: Path) -> str:
    """Return a file in ``folder`` as an address for a page (``media``: ``video/mp4``); raises OSError elsewhere."""
    return f"data:{media};base64,{base64.b64encode(read_bytes(path, within=folder)).decode('ascii')}"


def kind_of(path: Path) -> str | None:
    """Return which kind of page a file is; None where it is none of ours."""
    with open(path, "rb", opener=plain_file) as file:
        head = file.read(_HEAD_BYTES)
    if found := _MARK.search(head):
        return found[1].decode()
    if old := _HEAD_0_1.match(head):
        return next(kind for kind, title in _TITLES_0_1 if title.search(old[1]))
    return None


def place_for(path: Path, kind: Kind) -> Path:
    """Return ``path``, or the next name beside it where a file lies that is not a page of this kind."""
    place, number = path, 1
    while place.is_file() and kind_of(place) != kind:
        ending = f"-{number}" if number > 1 else ""
        place, number = path.with_name(f"{path.stem}-{kind}{ending}{path.suffix}"), number + 1
    return place


def write_page(path: Path, kind: Kind, page: Html) -> Path:
    """Write a page where ``place_for`` says and return that place; raises RunFolderError where it is impossible."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        place = place_for(path, kind)
        atomic.write_text(place, page)
        return place
    except OSError as error:
        raise RunFolderError(f"{path}: the page cannot be written: {error.strerror or error}") from error


def made_at() -> str:
    """Return the present time as pages say it."""
    return datetime.now(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


# -- the frame of a page --------------------------------------------------------------------------------------


def header(title: str, *lines: Html) -> Html:
    """Return the page's title and a few lines below it."""
    return element("header", element("h1", title), *lines)


def footer(text: str) -> Html:
    return element("footer", note(text))


def section(title: str, *body: Html) -> Html:
    """Return a heading and what stands below it; nothing where that is nothing."""
    inside = join(*body)
    return element("section", element("h2", title), inside) if inside else NOTHING


def subsection(title: str, *body: Html) -> Html:
    """Return the same within a section."""
    inside = join(*body)
    return join(element("h3", title), inside) if inside else NOTHING


# -- what stands in it ----------------------------------------------------------------------------------------


def card(*body: Html, title: str = "") -> Html:
    """Return a box; nothing where there is nothing in it."""
    inside = join(*body)
    heading = element("h3", title) if title else NOTHING
    return element("div", heading, inside, class_="card") if inside else NOTHING


def grid(cards: Iterable[Html]) -> Html:
    """Put cards beside each other, as many as there is room for; empty ones are left out."""
    return _div("grid3", cards)


def pair(*cards: Html) -> Html:
    """Put wide cards or small tables beside each other, two where there is room."""
    return _div("grid2", cards)


def tiles(numbers: Sequence[tuple[str, str]]) -> Html:
    """Show (number, what it is) in large letters."""
    cells = (element("div", element("b", v), element("span", k), class_="tile") for v, k in numbers)
    return _div("tiles", cells)


def _div(kind: str, children: Iterable[Html]) -> Html:
    inside = join(*children)
    return element("div", inside, class_=kind) if inside else NOTHING


def paragraph(*text: str, kind: str = "") -> Html:
    """Return a paragraph of texts, which are escaped; ``kind``: how it looks (``muted``, ``warn``, ``bad``)."""
    return element("p", *text, class_=kind)


def note(text: str) -> Html:
    """Return a paragraph in small letters; nothing without text."""
    return paragraph(text, kind="note") if text else NOTHING


def word(text: str, kind: str) -> Html:
    """Return a few words that look different: ``good``, ``warn``, ``bad``, ``unknown``, ``muted``."""
    return element("span", text, class_=kind)


def code(text: object) -> Html:
    return element("code", str(text))


def preformatted(text: str, title: str = "") -> Html:
    """Show lines as they are, in a card."""
    return card(element("pre", text), title=title)


def details(summary: str, *body: Html) -> Html:
    """Return what is folded below its summary until that is clicked."""
    return element("details", element("summary", summary), *body)


def link(address: str, text: str) -> Html:
    return element("a", text, href=address)


def bullets(items: Iterable[str]) -> Html:
    return element("ul", *(element("li", item) for item in items))


def checklist(items: Iterable[tuple[str, str, str]]) -> Html:
    """List (``good``, ``warn``, ``bad`` or ``unknown``; a word for it; a sentence) below each other."""
    lines = (element("li", word(said, level), element("span", text)) for level, said, text in items)
    return element("ul", *lines, class_="checks")


def shares(counts: Sequence[tuple[str, int]]) -> Html:
    """Draw (what, how many) as a bar of all of them and their shares; the colour belongs to the place in the list."""
    total = sum(count for _, count in counts)
    if not total:
        return paragraph("-")
    left, parts, rows = 0.0, [], []
    for k, (name, count) in enumerate(counts):
        if count:
            width = 100 * count / total
            parts.append(element("rect", class_=f"s{k % 4}", x=f"{left:.3f}", width=f"{width:.3f}", height=4))
            left += width
            key = element("td", element("i", class_=f"key s{k % 4}"), name, class_="l")
            rows.append(element("tr", key, element("td", f"{count:,}"), element("td", f"{width:.1f} %")))
    bar = element("svg", *parts, viewBox="0 0 100 4", preserveAspectRatio="none", class_="share", role="img")
    return join(bar, element("table", element("tbody", *rows)))
