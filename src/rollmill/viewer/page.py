"""The one HTML page of the viewer: the style of all pages, our modules, and what a browser may do with them.

Modules name each other through an import map. Served, it leads to addresses of the server; in a copy without a server,
to the modules themselves (``data:`` addresses), as browsers load no modules from files.
"""

from __future__ import annotations

import base64
import importlib.resources
import json
from functools import cache

from rollmill.reports.html.document import content_hash, content_policy, document
from rollmill.reports.html.elements import Html, element, join
from rollmill.reports.html.style import STYLE

WEB = importlib.resources.files("rollmill.viewer") / "web"
MODULE = "rollmill/"
"""What names of our modules begin with."""


@cache
def modules() -> dict[str, str]:
    """Return the text of every module by its name (``plot.js``)."""
    return {path.name: path.read_text(encoding="utf-8") for path in WEB.iterdir() if path.name.endswith(".js")}


@cache
def style() -> str:
    """Return what the viewer adds to the style of all pages."""
    return (WEB / "viewer.css").read_text(encoding="utf-8")


@cache
def _import_map(inside: bool) -> str:
    """Return the import map; ``inside``: the modules themselves instead of their addresses."""

    def address(name: str, text: str) -> str:
        return f"data:text/javascript;base64,{base64.b64encode(text.encode()).decode()}" if inside else f"/web/{name}"

    known = {MODULE + name.removesuffix(".js"): address(name, text) for name, text in sorted(modules().items())}
    return json.dumps({"imports": known}).replace("<", "\\u003c")


_START = f'import "{MODULE}app";'


@cache
def policy(inside: bool = False) -> dict[str, str]:
    """Return the words of the content policy that differ from those of all pages."""
    scripts = f"{content_hash(_import_map(inside))} {content_hash(_START)}"
    return {
        "style_src": f"{content_hash(STYLE)} {content_hash(style())}",
        "script_src": f"{scripts} data:" if inside else f"{scripts} 'self'",
        "connect_src": "'none'" if inside else "'self'",
        "img_src": "data:" if inside else "data: 'self'",
    }


def page(title: str, recorded: str = "") -> Html:
    """Return the page; ``recorded``: the answers of a server as JSON, for a copy without one."""
    inside = bool(recorded)
    head = join(
        element("style", Html(style())),
        element("script", Html(_import_map(inside)), type="importmap"),
        *([element("script", Html(recorded), type="application/json", id="recorded")] if inside else []),
        element("script", Html(_START), type="module"),
    )
    body = element("div", element("p", "loading", class_="muted"), id="view")
    noscript = element("noscript", element("p", "This page needs JavaScript."))
    return document("viewer", title, body, noscript, policy=content_policy(**policy(inside)), head=head)
