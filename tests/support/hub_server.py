"""A small Hugging Face Hub on the loopback interface: what ``huggingface_hub`` asks of the real one, in memory.

Repositories, commits, files in a commit and large ones by LFS, listings, downloads. Whoever writes needs the token.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit

TOKEN = "hf_for_tests"
LARGE = 4096
"""Files of so many bytes go by LFS, so that tests exercise both ways."""
_REPO = r"/(?:api/)?(?P<kind>models|datasets|)/?(?P<repo>[\w.-]+/[\w.-]+)"


class Hub:
    """What the server has, and what tests may change: ``files`` of each (kind, repository) at its newest commit."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.files: dict[tuple[str, str], dict[str, bytes]] = {}
        self.private: dict[tuple[str, str], bool] = {}
        self.large: dict[str, bytes] = {}
        self.commits = 0
        self.downloads: list[str] = []
        self.refused: list[str] = []
        self.broken: set[str] = set()
        """Files whose download ends in the middle, each once."""

    @property
    def environment(self) -> dict[str, str]:
        """What a process needs to find this Hub. Without Xet: that is another protocol, to other servers."""
        return {
            "HF_ENDPOINT": self.url,
            "HF_TOKEN": TOKEN,
            "HF_HUB_DISABLE_XET": "1",
            "HF_HUB_DISABLE_TELEMETRY": "1",
            "HF_HUB_DISABLE_PROGRESS_BARS": "1",
        }

    def sha(self, key: tuple[str, str]) -> str:
        """Names the newest commit."""
        text = json.dumps([key, sorted((n, hashlib.sha1(b).hexdigest()) for n, b in self.files[key].items())])
        return hashlib.sha1(text.encode()).hexdigest()


@contextmanager
def hub_server() -> Iterator[Hub]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    server.hub = hub = Hub(f"http://127.0.0.1:{server.server_port}")  # type: ignore[attr-defined]
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: Any) -> None:
        pass

    @property
    def hub(self) -> Hub:
        return self.server.hub  # type: ignore[attr-defined,no-any-return]

    # -- answers ---------------------------------------------------------------------------------------

    def _answer(self, content: Any, status: int = 200, headers: dict[str, str] | None = None) -> None:
        body = content if isinstance(content, bytes) else json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def _refuse(self, status: int, code: str) -> None:
        self.hub.refused.append(f"{self.command} {self.path} {status}")
        self._answer({"error": code}, status, {"X-Error-Code": code, "X-Error-Message": code})

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding") == "chunked":
            pieces = []
            while size := int(self.rfile.readline(), 16):
                pieces.append(self.rfile.read(size))
                self.rfile.readline()
            self.rfile.readline()
            return b"".join(pieces)
        return self.rfile.read(int(self.headers.get("Content-Length", 0)))

    def _match(self, pattern: str) -> re.Match[str] | None:
        return re.fullmatch(pattern, unquote(urlsplit(self.path).path))

    def _key(self, match: re.Match[str]) -> tuple[str, str]:
        return match["kind"].removesuffix("s") or "model", match["repo"]

    # -- writing ---------------------------------------------------------------------------------------

    def do_POST(self) -> None:
        body = self._body()
        if self._match("/api/validate-yaml"):
            self._answer({"errors": [], "warnings": []})
        elif self.headers.get("Authorization") != f"Bearer {TOKEN}":
            self._refuse(401, "Unauthorized")
        elif self._match("/api/repos/create"):
            self._create(json.loads(body))
        elif match := self._match(f"{_REPO}/preupload/main"):
            wanted = json.loads(body)["files"]
            modes = [("lfs" if f["size"] >= LARGE else "regular", f) for f in wanted]
            self._answer({"files": [{"path": f["path"], "uploadMode": m, "shouldIgnore": False} for m, f in modes]})
        elif self._match(rf"{_REPO}\.git/info/lfs/objects/batch"):
            self._answer({"transfer": "basic", "objects": [self._object(o) for o in json.loads(body)["objects"]]})
        elif match := self._match(f"{_REPO}/commit/main"):
            self._commit(self._key(match), [json.loads(line) for line in body.splitlines()])
        else:
            self._refuse(404, "NoSuchAddress")

    def _create(self, wanted: dict[str, Any]) -> None:
        key = (wanted.get("type", "model"), f"{wanted['organization']}/{wanted['name']}")
        url = f"{self.hub.url}/{'datasets/' * (key[0] == 'dataset')}{key[1]}"
        is_new = key not in self.hub.files
        self.hub.files.setdefault(key, {})
        if is_new:
            self.hub.private[key] = wanted.get("visibility") == "private" or bool(wanted.get("private"))
        self._answer({"url": url, "id": key[1], "name": key[1]}, 200 if is_new else 409)

    def _object(self, wanted: dict[str, Any]) -> dict[str, Any]:
        upload = {"upload": {"href": f"{self.hub.url}/large/{wanted['oid']}"}}
        there = wanted["oid"] in self.hub.large
        return {"oid": wanted["oid"], "size": wanted["size"], **({} if there else {"actions": upload})}

    def _commit(self, key: tuple[str, str], lines: list[dict[str, Any]]) -> None:
        files = self.hub.files[key]
        for line in lines:
            value = line["value"]
            if line["key"] == "file":
                files[value["path"]] = base64.b64decode(value["content"])
            elif line["key"] == "lfsFile":
                files[value["path"]] = self.hub.large[value["oid"]]
        self.hub.commits += 1
        sha = self.hub.sha(key)
        self._answer({"success": True, "commitOid": sha, "commitUrl": f"{self.hub.url}/{key[1]}/commit/{sha}"})

    def do_PUT(self) -> None:
        content = self._body()
        match = self._match("/large/(?P<oid>[0-9a-f]{64})")
        if match is None or hashlib.sha256(content).hexdigest() != match["oid"]:
            self._refuse(400, "BadObject")
            return
        self.hub.large[match["oid"]] = content
        self._answer(b"")

    # -- reading ---------------------------------------------------------------------------------------

    def do_GET(self) -> None:
        match = self._match(f"{_REPO}/(?P<what>revision|tree|resolve)/(?P<revision>[^/]+)(?:/(?P<path>.*))?")
        key = self._key(match) if match else ("", "")
        if match is None or key not in self.hub.files:
            self._refuse(404, "RepoNotFound")
            return
        files, sha = self.hub.files[key], self.hub.sha(key)
        if match["revision"] not in ("main", sha):
            self._refuse(404, "RevisionNotFound")
        elif match["what"] == "revision":
            names = [{"rfilename": name} for name in files]
            self._answer({"id": key[1], "sha": sha, "private": self.hub.private[key], "siblings": names})
        elif match["what"] == "tree":
            self._answer([self._entry(name, content) for name, content in files.items()])
        elif match["path"] not in files:
            self._refuse(404, "EntryNotFound")
        else:
            self._send(match["path"], files[match["path"]], sha)

    do_HEAD = do_GET

    def _entry(self, name: str, content: bytes) -> dict[str, Any]:
        oid = hashlib.sha1(content).hexdigest()
        entry: dict[str, Any] = {"type": "file", "path": name, "size": len(content), "oid": oid}
        if len(content) >= LARGE:
            entry["lfs"] = {"oid": hashlib.sha256(content).hexdigest(), "size": len(content), "pointerSize": 130}
        return entry

    def _send(self, name: str, content: bytes, sha: str) -> None:
        headers = {"ETag": f'"{hashlib.sha256(content).hexdigest()}"', "X-Repo-Commit": sha, "Accept-Ranges": "bytes"}
        start = int(m[1]) if (m := re.match(r"bytes=(\d+)-", self.headers.get("Range", ""))) else 0
        if self.command == "GET":
            self.hub.downloads.append(name if not start else f"{name} from {start}")
        if self.command == "GET" and name in self.hub.broken:
            self.send_response(200)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content[: len(content) // 2])
            self.close_connection = True
            return
        if start:
            headers["Content-Range"] = f"bytes {start}-{len(content) - 1}/{len(content)}"
        self._answer(content[start:], 206 if start else 200, headers)
