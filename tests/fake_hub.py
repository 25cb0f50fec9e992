"""A hub on localhost that speaks as much of the protocol as ``huggingface_hub`` and ``datasets`` ask for, and fails on request.

A repository's name is what goes wrong with it (``FAULTS``), so one client process meets every fault: ``faulty/cut``, ``faulty/gated``.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

COMMIT = "0123456789abcdef0123456789abcdef01234567"

FAULTS = {
    "fine": "nothing",
    "busy": "429 to the first request of every address",
    "down": "500 to the first request of every address",
    "dead": "500 to every request",
    "slow": "the first answer of every file stops in the middle, longer than the client waits",
    "cut": "the first answer of every file is cut in the middle",
    "torn": "every answer is cut in the middle, with nothing new after it",
    "wrong": "bytes that are not those of the announced digest",
    "short": "fewer bytes than announced",
    "gated": "403: access has to be granted",
    "private": "401: no such repository, or no access to it",
    "moved": "the repository has another name now",
}


@dataclass(frozen=True)
class Request:
    """What the client asked."""

    method: str
    path: str
    range: str | None
    authorization: str | None


@dataclass
class FakeHub:
    """The files of every repository, by kind (``models``, ``datasets``), and the requests so far."""

    files: dict[str, dict[str, bytes]]
    url: str = ""
    requests: list[Request] = field(default_factory=list)

    def asked(self, name: str) -> list[Request]:
        """The requests for the repository of this name."""
        return [request for request in self.requests if re.search(rf"/faulty/{name}\b", request.path)]


@contextlib.contextmanager
def serve(files: dict[str, dict[str, bytes]]) -> Iterator[FakeHub]:
    """Serve ``files`` in every repository ``faulty/<fault>`` until the block ends."""
    hub = FakeHub(files)

    class Handler(_Handler):
        pass

    Handler.hub, Handler.seen, Handler.lock = hub, Counter(), threading.Lock()
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    hub.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()


class _Handler(BaseHTTPRequestHandler):
    hub: FakeHub
    seen: Counter[str]
    lock: threading.Lock
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        """Keep quiet."""

    def do_HEAD(self) -> None:
        self._answer()

    def do_GET(self) -> None:
        self._answer()

    def do_POST(self) -> None:
        self.posted = self.rfile.read(int(self.headers.get("Content-Length", 0))).decode()
        self._answer()

    def _answer(self) -> None:
        with self.lock:
            self.hub.requests.append(
                Request(self.command, self.path, self.headers.get("Range"), self.headers.get("Authorization"))
            )
            self.seen[self.command + self.path] += 1
            first = self.seen[self.command + self.path] == 1
        path = self.path.partition("?")[0]
        found = re.match(r"(?:/api)?/?(?:(models|datasets)/)?faulty/(\w+)(?:/(.*))?$", path)
        if found is None:
            return self._send(404, b"", {"X-Error-Code": "RepoNotFound"})
        kind, fault, rest = found[1] or "models", found[2], found[3] or ""
        if fault in ("gated", "private"):
            code = {"gated": "GatedRepo", "private": "RepoNotFound"}[fault]
            return self._send(403 if fault == "gated" else 401, b"{}", {"X-Error-Code": code})
        if fault == "moved":
            return self._send(307, b"", {"Location": self.path.replace("faulty/moved", "faulty/fine")})
        if fault == "dead" or (fault == "down" and first):
            return self._send(500, b"{}")
        if fault == "busy" and first:
            return self._send(429, b"{}", {"Retry-After": "0"})
        if path.startswith("/api/"):
            return self._api(kind, fault, rest)
        return self._file(kind, fault, rest.partition("/")[2].partition("/")[2], first)

    def _api(self, kind: str, fault: str, rest: str) -> None:
        if rest == "revision/absent":
            return self._send(404, b"{}", {"X-Error-Code": "RevisionNotFound"})
        files = self.hub.files[kind]
        entries = [
            {"type": "file", "path": name, "size": len(data), "oid": "0" * 40, "lfs": _lfs(data)}
            for name, data in files.items()
        ]
        if rest.startswith("tree/"):
            return self._json([entry for entry in entries if "/" not in entry["path"]])
        if rest.startswith("paths-info/"):
            return self._json([entry for entry in entries if entry["path"] in self.posted])
        self._json(
            {
                "id": f"faulty/{fault}",
                "sha": COMMIT,
                "private": False,
                "gated": False,
                "disabled": False,
                "downloads": 0,
                "likes": 0,
                "tags": [],
                "siblings": [{"rfilename": name} for name in files],
            }
        )

    def _file(self, kind: str, fault: str, name: str, first: bool) -> None:
        data = self.hub.files[kind].get(name)
        if data is None:
            return self._send(404, b"", {"X-Error-Code": "EntryNotFound", "X-Repo-Commit": COMMIT})
        headers = {"ETag": f'"{_digest(data)}"', "X-Repo-Commit": COMMIT, "Accept-Ranges": "bytes"}
        body = {"wrong": data[:-1] + bytes([data[-1] ^ 1]), "short": data[: len(data) // 2]}.get(fault, data)
        if self.command == "HEAD":
            return self._send(200, data, headers)
        status, start = 200, 0
        if asked := re.match(r"bytes=(\d+)-", self.headers.get("Range", "")):
            status, start = 206, int(asked[1])
            headers["Content-Range"] = f"bytes {start}-{len(body) - 1}/{len(body)}"
        if fault == "torn" or (fault in ("cut", "slow") and first):
            body = body[start : max(start, len(body) // 2)]
            self._send(status, body, headers | {"Content-Length": str(len(data) - start)})
            time.sleep(3 if fault == "slow" else 0)
            self.close_connection = True
            return None
        return self._send(status, body[start:], headers)

    def _json(self, value: Any) -> None:
        self._send(200, json.dumps(value).encode(), {"Content-Type": "application/json"})

    def _send(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in ({"Content-Length": str(len(body))} | (headers or {})).items():
            self.send_header(name, value)
        self.end_headers()
        with contextlib.suppress(ConnectionError):
            if self.command != "HEAD":
                self.wfile.write(body)
                self.wfile.flush()


def _digest(data: bytes) -> str:
    """Of a small file git's, as the hub says."""
    small = hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()
    return small if len(data) < 1000 else hashlib.sha256(data).hexdigest()


def _lfs(data: bytes) -> dict[str, Any]:
    return {"oid": hashlib.sha256(data).hexdigest(), "size": len(data), "pointerSize": 130}
