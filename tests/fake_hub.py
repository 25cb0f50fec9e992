"""The rehearsal's hub with one repository per fault, such as ``faulty/cut``, so that one client process meets all of them."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from dataclasses import dataclass

from rehearsal import hub
from rehearsal.hub import FAULTS, Repository, Request

__all__ = ["FAULTS", "FakeHub", "Repository", "serve"]


@dataclass
class FakeHub:
    """A hub, and its requests by repository."""

    hub: hub.Hub

    @property
    def url(self) -> str:
        return self.hub.url

    @property
    def requests(self) -> list[Request]:
        return self.hub.requests

    def asked(self, name: str) -> list[Request]:
        """The requests for the repository of this name."""
        return [request for request in self.requests if re.search(rf"/faulty/{name}\b", request.path)]


@contextlib.contextmanager
def serve(files: dict[str, dict[str, bytes]], token: str = "") -> Iterator[FakeHub]:
    """Serve ``files`` in every repository ``faulty/<fault>`` until the block ends."""
    repositories = {
        f"{kind}/faulty/{fault}": Repository(content, fault=fault, branches=("main", "refs/pr/7"), moved="faulty/fine")
        for kind, content in files.items()
        for fault in FAULTS
    }
    with hub.serve(repositories, token) as served:
        yield FakeHub(served)
