"""Images and videos inside a page, so that it is one file; what is too large for that is linked."""

from __future__ import annotations

import base64
from collections.abc import Iterable
from pathlib import Path

from rollmill.core.opening import check_within, read_bytes
from rollmill.core.text import bytes_text
from rollmill.reports.html.document import card, link, note, paragraph
from rollmill.reports.html.elements import NOTHING, Html, element

FILE_BYTES = 8_000_000
"""A file up to this size is put into the page; a larger one is linked."""
PAGE_BYTES = 16_000_000
"""All files of a page together: with what base64 adds, it can still be mailed."""
SMALL = 200
"""Pixels below which an image is shown with its pixels as squares."""
_KINDS = {".mp4": "video/mp4", ".png": "image/png"}


def data_url(data: bytes, kind: str) -> Html:
    """Return the bytes as an address for ``src``; ``kind``: their media type, ``image/png``."""
    return Html(f"data:{kind};base64,{base64.b64encode(data).decode('ascii')}")


def filmstrip(title: str, shots: Iterable[tuple[bytes, tuple[int, int], str]]) -> Html:
    """Show images beside each other: (PNG file, its width and height, words below it)."""
    figures = []
    for png, (width, height), words in shots:
        kind = "small" if width < SMALL else ""
        shown = element("img", src=data_url(png, "image/png"), width=width, height=height, alt=words, class_=kind)
        figures.append(element("figure", shown, element("figcaption", words)))
    return element("div", paragraph(title), element("div", *figures, class_="shots"), class_="strip")


class Media:
    """Puts files of one folder into one page, as long as they are small enough, all of them together.

    A link that leads out of the folder is not followed: a page may be given away.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._left = PAGE_BYTES

    def figure(self, path: Path, caption: str = "") -> Html:
        """Return a card with the video or the image and words below it; nothing where there is no such file."""
        if not path.exists():
            return NOTHING
        try:
            data = self._read(path)
            where = self._link(path)
        except OSError as error:
            return card(note(f"{path.name}: {error.strerror or error}"))
        source, words = data_url(data, _KINDS[path.suffix]), element("figcaption", caption) if caption else NOTHING
        if not data:
            return card(words, where)
        if path.suffix == ".png":
            return card(element("figure", element("img", src=source, alt=caption, class_="small"), words))
        options = {"controls": "controls", "loop": "loop", "muted": "muted", "preload": "metadata"}
        return card(element("figure", element("video", **options, src=source), words), where)

    def _read(self, path: Path) -> bytes:
        """Read the file's content; nothing where it is too large. Raises OSError unless it is a file in the folder."""
        check_within(path, self._folder)
        size = path.stat().st_size
        if size > min(FILE_BYTES, self._left):
            return b""
        self._left -= size
        return read_bytes(path)

    def _link(self, path: Path) -> Html:
        name = path.relative_to(self._folder).as_posix()
        return element("p", link(name, name), f" ({bytes_text(path.stat().st_size)})", class_="note")
