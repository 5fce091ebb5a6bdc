"""HTML by type: ``Html`` is markup, every other text is escaped on its way into an element.

Pages are made of calls. A name that comes from data is a ``str`` and so cannot become markup, every element is closed
(pages are well-formed XML, too), and the type checker sees where a text was taken for markup.
"""

from __future__ import annotations

import html
import re

_CONTROL = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ufffe\uffff\ud800-\udfff]")
_VOID = frozenset({"img", "link", "meta", "path", "wbr"})
"""Elements without content, written as ``<img/>``."""


class Html(str):
    """Markup that stands on a page as it is. What ``str`` makes of it (``+``, f-strings) is a plain text again."""

    __slots__ = ()


NOTHING = Html("")


def escape(text: object) -> Html:
    """Escape text for HTML, attributes included; characters that no page may hold become a replacement character."""
    return Html(html.escape(_CONTROL.sub("\ufffd", str(text)), quote=True))


def join(*parts: str) -> Html:
    """Put parts one after the other: markup as it is, texts escaped."""
    return Html("".join(part if isinstance(part, Html) else escape(part) for part in parts))


def element(tag: str, /, *children: str, **attributes: str | float | None) -> Html:
    """Return an element: ``element("p", "a < b", class_="note")`` is ``<p class="note">a &lt; b</p>``.

    Attributes that are None or empty are left out; an underscore in their names is a hyphen, one at the end is nothing
    (``class_``). Names of elements and attributes are ours, never from data.
    """
    words = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{value if isinstance(value, Html) else escape(value)}"'
        for key, value in attributes.items()
        if value is not None and value != ""
    )
    if tag in _VOID:
        return Html(f"<{tag}{words}/>")
    return Html(f"<{tag}{words}>{join(*children)}</{tag}>")
