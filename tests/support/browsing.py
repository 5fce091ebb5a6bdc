"""Pages in a real browser: the system's Chromium, and what a page complains about."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from installing import require
from running import LIMIT_SECONDS

FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


def find_chromium() -> str:
    """The system's Chromium, as playwright's own downloads may not be there."""
    return shutil.which("chromium-browser") or require("chromium", "chromium")


@contextmanager
def opened(browser: Any, url: str, **context: Any) -> Iterator[tuple[Any, list[str]]]:
    """(page, what it complained about); nothing outside this machine is asked for."""
    page = browser.new_page(**{"viewport": {"width": 1200, "height": 900}, **context})
    page.set_default_timeout(1000 * LIMIT_SECONDS)
    complaints: list[str] = []
    page.on("console", lambda message: complaints.append(message.text) if message.type == "error" else None)
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("requestfailed", lambda request: complaints.extend(failure_of(request)))
    page.goto(url)
    try:
        yield page, complaints
    finally:
        page.close()


def failure_of(request: Any) -> list[str]:
    """Nothing for what the page itself has given up: it was no longer needed before it came."""
    return [] if request.failure == "net::ERR_ABORTED" else [f"failed: {request.url}: {request.failure}"]
