"""The counts of decoding and replay for each request: columns that several stages share."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from draftlab.stages._stage import column


class Counts:
    """Counts of a request, or of the requests of one row; expected ones where the target samples."""

    accepted: float = column("drafted tokens that the target accepted", "tokens", whole=True)
    visited: float = column("drafted tokens that the target judged", "tokens", whole=True)
    overlap: float = column("sum over them of the common mass of target and draft: the numerator of alpha", whole=True)
    overlap_repo: float = column("the same as the repository of OSD estimates it", whole=True)
    blocks: float = column("calls of the target", "calls", whole=True)
    emitted: int = column("tokens of the answer", "tokens")


def _unrounded(name: str) -> Any:
    return replace(vars(Counts)[name], whole=False)


class UnroundedCounts:
    """The same, written as floating-point numbers throughout."""

    accepted: float = _unrounded("accepted")
    visited: float = _unrounded("visited")
    overlap: float = _unrounded("overlap")
    overlap_repo: float = _unrounded("overlap_repo")
    blocks: float = _unrounded("blocks")
    emitted: float = _unrounded("emitted")
