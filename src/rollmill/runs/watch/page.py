"""A page in the browser that shows what an agent does: a stream of JPEG images and a line of text.

It listens on loopback only, answers GET (and HEAD) of four fixed paths, and lets only those in who were given its link
(``reports.html.serving``): on a login node, every user reaches every port. A page to play on takes which keys are held,
too, by POST: as JSON from itself only, so that a page of somebody else cannot press them.
"""

from __future__ import annotations

import io
import json
import threading
from collections.abc import Collection, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from rollmill.core.errors import ConfigError, MissingExtraError
from rollmill.core.fields import Array
from rollmill.reports.html.document import content_policy, document, header
from rollmill.reports.html.elements import Html, element
from rollmill.reports.html.serving import LOOPBACK, Door, Pass, security_headers
from rollmill.reports.video.images import enlarge
from rollmill.runs.watch.screen import Shown

VIEWERS = 8
"""Streams at the same time."""
BOUNDARY = "image"
WAIT_SECONDS = 5.0
MOST_BODY = 4096
"""Bytes of a list of keys."""

SCRIPT = """
"use strict";
if (location.search) history.replaceState(null, "", location.pathname);  // the token is a cookie now
const text = document.getElementById("text");
async function look() {
  try {
    const answer = await fetch("/status");
    const value = await answer.json();
    text.textContent = value.over ? value.text + "  (ended)" : value.text;
  } catch (error) {
    text.textContent = "ended: the command is no longer running";
    return;
  }
  setTimeout(look, 250);
}
look();
"""
KEYS_SCRIPT = """
const names = {ArrowUp: "up", ArrowDown: "down", ArrowLeft: "left", ArrowRight: "right", " ": "space",
               Enter: "return", Escape: "escape", Shift: "shift", Control: "ctrl", Alt: "alt"};
const held = new Set();
function name(event) {
  const digit = /^(?:Digit|Numpad)([0-9])$/.exec(event.code);  // with shift, its character is another one
  return digit ? digit[1] : names[event.key] || event.key.toLowerCase();
}
let sending = Promise.resolve();
function send() {
  const body = JSON.stringify({held: [...held]});
  const headers = {"Content-Type": "application/json"};
  sending = sending.then(() => fetch("/keys", {method: "POST", headers, body})).catch(() => {});
}
addEventListener("keydown", (event) => {
  if (event.ctrlKey && event.key !== "Control" || event.metaKey) return;  // the browser's own shortcuts
  if (/^(Arrow|Page| |Home|End)/.test(event.key)) event.preventDefault();  // or the page would scroll
  if (event.repeat || held.has(name(event))) return;
  held.add(name(event));
  send();
});
addEventListener("keyup", (event) => {
  held.delete(name(event));
  send();
});
addEventListener("blur", () => {
  held.clear();
  send();
});
"""
POLICY = {"img_src": "'self' data:", "script_src": "'self'", "connect_src": "'self'"}
"""What this page may do besides what all pages may."""
SECURITY = security_headers(**POLICY)


class PageScreen:
    """The server; ``show`` never waits for a viewer, and a slow one misses images."""

    closed = False

    def __init__(self, title: str, port: int = 0, keys: Sequence[str] = (), legend: str = "") -> None:
        """Begin to serve the page.

        ``keys``: those that are taken from the page, none: it is for watching; ``legend``: what they do.
        """
        self.keys = frozenset(keys)
        self._held: frozenset[str] = frozenset()
        self._tapped: frozenset[str] = frozenset()
        self._encode = JpegEncoder()
        self._news = threading.Condition()
        self._jpeg = b""
        self._count = 0
        self._ended = False
        self._viewers = threading.Semaphore(VIEWERS)
        self.status: dict[str, Any] = {"text": "waiting", "over": False}
        self.pages = {
            "/": ("text/html; charset=utf-8", _page(title, legend).encode()),
            "/page.js": ("text/javascript; charset=utf-8", (SCRIPT + KEYS_SCRIPT * bool(self.keys)).encode()),
        }
        try:
            self._server = _Server((LOOPBACK, port), _Handler, self)
        except OSError as error:
            raise ConfigError(f"--port {port}: cannot listen on {LOOPBACK}: {error.strerror or error}") from error
        self.port = int(self._server.server_address[1])
        self.door = Door()
        self.url = self.door.link(LOOPBACK, self.port)
        """Whoever has it is let in."""
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.1,), name="page", daemon=True)
        self._thread.start()

    def show(self, shown: Shown) -> None:
        jpeg = self._encode(enlarge(shown.image, fit=False))
        with self._news:
            self._jpeg, self._count = jpeg, self._count + 1
            self.status = {"text": shown.text, "over": shown.over, "count": self._count}
            self._news.notify_all()

    def next_image(self, seen: int) -> tuple[int, bytes] | None:
        """Return the newest image after number ``seen``; None when there will be no more."""
        with self._news:
            self._news.wait_for(lambda: self._count > seen or self._ended, WAIT_SECONDS)
            return None if self._ended else (self._count, self._jpeg)

    def press(self, held: Collection[str]) -> None:
        """Set the keys that are held in the browser now; those that mean nothing are forgotten."""
        with self._news:
            now = self.keys.intersection(held)
            self._tapped |= now - self._held
            self._held = now

    def pressed(self) -> frozenset[str]:
        with self._news:
            found, self._tapped = self._held | self._tapped, frozenset()
            return found

    def admit(self) -> bool:
        """Return whether one more stream may begin; ``leave`` when it ends."""
        return self._viewers.acquire(blocking=False)

    def leave(self) -> None:
        self._viewers.release()

    def close(self) -> None:
        with self._news:
            self._ended = True
            self._news.notify_all()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def _page(title: str, legend: str) -> Html:
    stream = element("img", id="image", class_="live", src="/stream", alt="what the agent does")
    text = element("p", "waiting", id="text", class_="live")
    keys = element("p", legend, class_="live")
    parts = (header(title), stream, text, *([keys] if legend else []))
    return document("watch", title, *parts, policy=content_policy(**POLICY), script="/page.js")


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    allow_reuse_address = True

    def __init__(self, address: tuple[str, int], handler: type[BaseHTTPRequestHandler], screen: PageScreen) -> None:
        self.screen = screen
        super().__init__(address, handler)


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    timeout = 30.0
    _pass = Pass()

    def do_GET(self) -> None:
        screen, path = self.server.screen, self.path.partition("?")[0]
        if self._refused():
            return
        if path in screen.pages:
            self._answer(200, *screen.pages[path])
        elif path == "/status":
            self._answer(200, "application/json", json.dumps(screen.status).encode())
        elif path == "/stream" and self.command == "GET":
            self._stream(screen)
        else:
            self._answer(404, "text/plain", b"no such page\n")

    do_HEAD = do_GET

    def do_POST(self) -> None:
        screen = self.server.screen
        if self._refused():
            return
        if not screen.keys:
            self._answer(501, "text/plain", b"this page is for watching\n")
        elif not self._is_our_page():
            self._answer(403, "text/plain", b"keys are taken from this page only\n")
        elif self.path != "/keys":
            self._answer(404, "text/plain", b"no such page\n")
        elif (held := self._held_keys()) is None:
            self._answer(400, "text/plain", b'{"held": [...]} is expected\n')
        else:
            screen.press(held)
            self._answer(204, "text/plain", b"")

    def _refused(self) -> bool:
        """Return whether the door stays closed; that is answered, too."""
        query = self.path.partition("?")[2]
        self._pass = self.server.screen.door.ask(self.headers.get("Host", ""), query, self.headers.get("Cookie", ""))
        if self._pass.refused:
            self.close_connection = True  # what else was sent is not read
            self._answer(403, "text/plain", self._pass.words.encode())
        return bool(self._pass.refused)

    def _is_our_page(self) -> bool:
        """Return whether a POST comes from our page.

        Browsers say where it comes from, and ask before they send JSON to another host.
        """
        ours = self.headers.get("Origin", "") == f"http://{self.headers.get('Host', '')}"
        return ours and self.headers.get("Content-Type", "") == "application/json"

    def _held_keys(self) -> list[str] | None:
        size = self.headers.get("Content-Length", "")
        if not size.isdecimal() or int(size) > MOST_BODY:
            self.close_connection = True  # what is not read must not be taken for the next request
            return None
        try:
            said = json.loads(self.rfile.read(int(size)))
        except ValueError:
            return None
        held = said.get("held") if isinstance(said, dict) else None
        return held if isinstance(held, list) and all(isinstance(key, str) for key in held) else None

    def _stream(self, screen: PageScreen) -> None:
        if not screen.admit():
            self._answer(503, "text/plain", f"{VIEWERS} viewers are watching already\n".encode())
            return
        try:
            self.send_response(200)
            self._headers(f"multipart/x-mixed-replace; boundary={BOUNDARY}")
            self.end_headers()
            seen = 0
            while (found := screen.next_image(seen)) is not None:
                seen, jpeg = found
                if jpeg:
                    head = f"--{BOUNDARY}\r\nContent-Type: image/jpeg\r\nContent-Length: {len(jpeg)}\r\n\r\n"
                    self.wfile.write(head.encode() + jpeg + b"\r\n")
        except OSError:
            self.close_connection = True  # the viewer has left
        finally:
            screen.leave()

    def _answer(self, code: int, kind: str, body: bytes) -> None:
        self.send_response(code)
        self._headers(kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def _headers(self, kind: str) -> None:
        self.send_header("Content-Type", kind)
        for name, value in SECURITY.items():
            self.send_header(name, value)
        if self._pass.cookie:
            self.send_header("Set-Cookie", self._pass.cookie)

    def version_string(self) -> str:
        return "rollmill"

    def log_message(self, *_: object) -> None:
        """Log nothing: requests are not worth a line each."""


class JpegEncoder:
    """RGB images to JPEG by PyAV, which videos need as well."""

    def __init__(self) -> None:
        try:
            import av
        except ModuleNotFoundError as error:
            raise MissingExtraError('watching in the browser needs PyAV: pip install "rollmill[video]"') from error
        self._av: Any = av

    def __call__(self, image: Array) -> bytes:
        file = io.BytesIO()
        with self._av.open(file, "w", format="mjpeg") as container:
            stream = container.add_stream("mjpeg", rate=1)
            stream.height, stream.width, stream.pix_fmt = image.shape[0], image.shape[1], "yuvj444p"
            stream.codec_context.thread_count = 1
            stream.codec_context.qmin = stream.codec_context.qmax = 3  # 1 is best, 31 worst
            container.mux(stream.encode(self._av.VideoFrame.from_ndarray(image, format="rgb24")))
            container.mux(stream.encode())
        return file.getvalue()
