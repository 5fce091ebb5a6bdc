"""Links with a token, as browsers use them."""

from __future__ import annotations

import urllib.request


def cookie_of(link: str) -> str:
    """What the link is exchanged for, as a Cookie header."""
    with urllib.request.urlopen(link) as answer:
        return str(answer.headers["Set-Cookie"]).partition(";")[0]
