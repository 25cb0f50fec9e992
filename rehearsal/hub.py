"""A hub on the loopback interface: the part of the protocol that ``huggingface_hub`` and ``datasets`` use, with faults on request."""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote

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
    "asks": "401 without the hub's token: access has to be granted",
    "private": "401: no such repository, or no access to it",
    "moved": "the repository has another name now",
}
LARGE = 1000
"""Files of so many bytes are in large file storage: their digest is SHA-256, and they have another address."""


@dataclass(frozen=True)
class Repository:
    """The files of one ``commit``, which ``branches`` also name, and their fault; ``moved`` is the repository's new name."""

    files: Mapping[str, bytes]
    commit: str = "0123456789abcdef0123456789abcdef01234567"
    branches: tuple[str, ...] = ("main",)
    fault: str = "fine"
    moved: str = ""


@dataclass(frozen=True)
class Request:
    """A request of the client, and the status of its answer."""

    method: str
    path: str
    range: str | None
    authorization: str | None
    status: int = 0


@dataclass
class Hub:
    """Repositories by kind and name, ``models/owner/name``; the address, and the requests so far."""

    repositories: Mapping[str, Repository]
    token: str = ""
    url: str = ""
    requests: list[Request] = field(default_factory=list)
    broken: int = 0
    """Answers that stopped in their middle."""


@contextlib.contextmanager
def listening(handler: type[BaseHTTPRequestHandler]) -> Iterator[str]:
    """Answer requests at a free port of this machine until the block ends; yields the address."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


@contextlib.contextmanager
def serve(repositories: Mapping[str, Repository], token: str = "") -> Iterator[Hub]:
    """Serve ``repositories`` until the block ends; ``token`` gives access to gated ones."""
    hub = Hub(repositories, token)

    class Handler(_Handler):
        pass

    Handler.hub, Handler.seen, Handler.lock = hub, Counter(), threading.Lock()
    with listening(Handler) as hub.url:
        yield hub


class _Handler(BaseHTTPRequestHandler):
    hub: Hub
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
            self.seen[self.command + self.path] += 1
            self.first = self.seen[self.command + self.path] == 1
        path = self.path.partition("?")[0]
        match = re.fullmatch(r"(/api|/lfs)?/?(?:(models|datasets)/)?([\w.-]+/[\w.-]+)(?:/(.*))?", path)
        key = f"{match[2] or 'models'}/{match[3]}" if match else ""
        if match is None or key not in self.hub.repositories:
            return self._send(404, b"", {"X-Error-Code": "RepoNotFound"})
        repository, rest = self.hub.repositories[key], match[4] or ""
        fault = repository.fault
        if fault == "asks" and self.headers.get("Authorization") != f"Bearer {self.hub.token}":
            return self._send(401, b"{}", {"X-Error-Code": "GatedRepo"})
        if fault in ("gated", "private"):
            code = {"gated": "GatedRepo", "private": "RepoNotFound"}[fault]
            return self._send(403 if fault == "gated" else 401, b"{}", {"X-Error-Code": code})
        if fault == "moved":
            return self._send(307, b"", {"Location": self.path.replace(match[3], repository.moved)})
        if fault == "dead" or (fault == "down" and self.first):
            return self._send(500, b"{}")
        if fault == "busy" and self.first:
            return self._send(429, b"{}", {"Retry-After": "0"})
        if match[1] == "/api":
            return self._api(repository, match[3], *map(unquote, rest.split("/", 2)))
        _, revision, file = (*rest.split("/", 2), "", "")[:3]
        is_stored = match[1] == "/lfs"
        if not is_stored and not self._is_here(repository, unquote(revision)):
            return self._send(404, b"", {"X-Error-Code": "RevisionNotFound"})
        stored = f"/lfs/{key}/resolve/{repository.commit}/{file}"
        return self._file(repository, unquote(file), stored, is_stored)

    def _is_here(self, repository: Repository, revision: str) -> bool:
        return revision in (repository.commit, *repository.branches)

    def _api(self, repository: Repository, name: str, what: str = "", revision: str = "", folder: str = "") -> None:
        if revision and not self._is_here(repository, revision):
            return self._send(404, b"{}", {"X-Error-Code": "RevisionNotFound"})
        files = repository.files
        if what == "tree":
            inside = f"{folder}/" if folder else ""
            names = [file for file in files if file.startswith(inside)]
            folders = {
                file[: at.start()] for file in names for at in re.finditer("/", file) if at.start() >= len(inside)
            }
            if "recursive=true" not in self.path.lower():
                names = [name for name in names if "/" not in name.removeprefix(inside)]
                folders = {name for name in folders if "/" not in name.removeprefix(inside)}
            if inside and not names and not folders:
                return self._send(404, b"{}", {"X-Error-Code": "EntryNotFound"})
            return self._json([*map(_folder, sorted(folders)), *(_entry(file, files[file]) for file in names)])
        if what == "paths-info":
            asked = (
                re.findall(r"[^&=]+", unquote(self.posted)) if "=" in self.posted else json.loads(self.posted)["paths"]
            )
            above = [path for path in asked if any(file.startswith(f"{path}/") for file in files)]
            return self._json([*map(_folder, above), *(_entry(path, files[path]) for path in asked if path in files)])
        gated = "manual" if repository.fault == "asks" else False
        facts = {"id": name, "sha": repository.commit, "private": False, "gated": gated, "disabled": False}
        facts |= {"downloads": 0, "likes": 0, "tags": [], "siblings": [{"rfilename": file} for file in files]}
        self._json(facts)

    def _file(self, repository: Repository, name: str, stored: str, is_stored: bool) -> None:
        data, fault = repository.files.get(name), repository.fault
        if data is None:
            headers = {"X-Error-Code": "EntryNotFound", "X-Repo-Commit": repository.commit}
            return self._send(404, b"", headers)
        headers = {"ETag": f'"{_digest(data)}"', "X-Repo-Commit": repository.commit, "Accept-Ranges": "bytes"}
        if len(data) >= LARGE and not is_stored:
            headers |= {"X-Linked-ETag": f'"{_digest(data)}"', "X-Linked-Size": str(len(data))}
            return self._send(302, b"", headers | {"Location": self.hub.url + stored})
        wrong = data[:-1] + bytes(byte ^ 1 for byte in data[-1:])
        body = {"wrong": wrong, "short": data[: len(data) // 2]}.get(fault, data)
        if self.command == "HEAD":
            return self._send(200, data, headers)
        status, start = 200, 0
        if asked := re.match(r"bytes=(\d+)-", self.headers.get("Range", "")):
            status, start = 206, int(asked[1])
            headers["Content-Range"] = f"bytes {start}-{len(body) - 1}/{len(body)}"
        if fault == "torn" or (fault in ("cut", "slow") and self.first):
            body = body[start : max(start, len(body) // 2)]
            self.hub.broken += 1
            self._send(status, body, headers | {"Content-Length": str(len(data) - start)})
            time.sleep(3 if fault == "slow" else 0)
            self.close_connection = True
            return None
        return self._send(status, body[start:], headers)

    def _json(self, value: Any) -> None:
        self._send(200, json.dumps(value).encode(), {"Content-Type": "application/json"})

    def _send(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
        named = {name: self.headers.get(name) for name in ("Range", "Authorization")}
        self.hub.requests.append(Request(self.command, self.path, named["Range"], named["Authorization"], status))
        self.send_response(status)
        for name, value in ({"Content-Length": str(len(body))} | (headers or {})).items():
            self.send_header(name, value)
        self.end_headers()
        with contextlib.suppress(ConnectionError):
            if self.command != "HEAD":
                self.wfile.write(body)
                self.wfile.flush()


def _entry(name: str, data: bytes) -> dict[str, Any]:
    lfs = {"oid": hashlib.sha256(data).hexdigest(), "size": len(data), "pointerSize": 130}
    entry = {"type": "file", "path": name, "size": len(data), "oid": _git_digest(data)}
    return entry | ({"lfs": lfs} if len(data) >= LARGE else {})


def _folder(name: str) -> dict[str, Any]:
    return {"type": "directory", "path": name, "size": 0, "oid": hashlib.sha1(name.encode()).hexdigest()}


def _digest(data: bytes) -> str:
    """The digest that the hub announces: of a small file git's."""
    return _git_digest(data) if len(data) < LARGE else hashlib.sha256(data).hexdigest()


def _git_digest(data: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()
