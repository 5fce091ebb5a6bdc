"""What every page that a server of ours hands out has in common: who may see it, and what a browser may do with it.

Loopback is no access control on a machine that many people use, so a link holds a random token. A browser that comes
with it is given a cookie, which it shows from then on. The Host header is compared by name, not by port: through
``ssh -L`` the port is another one, while a page of somebody else, whose name points at this machine, is told by it.
"""

from __future__ import annotations

import hmac
import ipaddress
import re
import secrets
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from http.cookies import CookieError, SimpleCookie
from typing import Literal
from urllib.parse import parse_qs

from rollmill.reports.html.document import content_policy

_HOST = re.compile(r"(?:\[(?P<address>[0-9a-f:.]+)\]|(?P<name>[a-z0-9._-]+))(?::\d{1,5})?")
LOOPBACK = "127.0.0.1"
LOOPBACK_NAMES = frozenset({LOOPBACK, "localhost", "::1"})
ANYWHERE = ("0.0.0.0", "::")
"""To listen on: all addresses of the machine."""
METHODS = ("GET", "HEAD")
NO_HOST = "403: this page was asked for by a name that is not this machine's\n"
NO_TOKEN = "403: open the link that the command has printed; it holds the token that is missing here\n"


def security_headers(**policy: str) -> Mapping[str, str]:
    """Return the headers of every answer; ``policy``: words of the content policy that differ from all pages'."""
    return {
        "Content-Security-Policy": content_policy(**policy, frame_ancestors="'none'"),
        "X-Content-Type-Options": "nosniff",
        "Referrer-Policy": "no-referrer",
        "Cross-Origin-Resource-Policy": "same-origin",
        "Cross-Origin-Opener-Policy": "same-origin",
        "Cache-Control": "no-store",
    }


def place(host: str, port: int) -> str:
    """Return ``host:port`` as links have it, of what listens there."""
    host = LOOPBACK if host in ANYWHERE else host
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


@dataclass(frozen=True)
class Pass:
    """What becomes of a request: ``refused`` says why not; ``cookie``: to be set with the answer."""

    refused: Literal["", "host", "token"] = ""
    cookie: str = ""

    @property
    def words(self) -> str:
        """The answer to a request that is refused."""
        return NO_HOST if self.refused == "host" else NO_TOKEN


class Door:
    """Lets those in who were given the link. ``names``: host names besides loopback's that this machine answers to."""

    def __init__(self, names: Collection[str] = (), any_address: bool = False) -> None:
        self._names = LOOPBACK_NAMES | {name.lower() for name in names}
        self._any_address = any_address
        self._token, self._session = secrets.token_urlsafe(24), secrets.token_urlsafe(24)
        self._cookie = f"rollmill_{secrets.token_hex(4)}"
        """Cookies do not know ports: two servers on this machine must not take each other's."""

    def link(self, host: str, port: int) -> str:
        """Return the address that opens the door."""
        return f"http://{place(host, port)}/?token={self._token}"

    def ask(self, host: str, query: str, cookies: str) -> Pass:
        """Decide about a request by its Host header, the query of its address and its Cookie header."""
        if not self._knows(host):
            return Pass("host")
        if self._has_cookie(cookies):
            return Pass()
        if _same(parse_qs(query).get("token", [""])[0], self._token):
            return Pass(cookie=f"{self._cookie}={self._session}; Path=/; HttpOnly; SameSite=Strict")
        return Pass("token")

    def _knows(self, host: str) -> bool:
        name = host_name(host)
        return name in self._names or (self._any_address and _is_address(name))

    def _has_cookie(self, cookies: str) -> bool:
        try:
            found = SimpleCookie(cookies).get(self._cookie)
        except CookieError:
            return False
        return found is not None and _same(found.value, self._session)


def host_name(header: str) -> str:
    """Return the name in a Host header, without its port; empty where it is malformed."""
    found = _HOST.fullmatch(header.lower())
    return (found["address"] or found["name"]) if found else ""


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _same(one: str, two: str) -> bool:
    return hmac.compare_digest(one.encode(), two.encode())
