"""Routes each request to the draft of its class, with a classifier that makes mistakes (OSD, section 4.3 and Fig. 6).

Only that draft learns from the request, so the requests of each route can be served separately. A class to which no request is
routed has no draft and no rows.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from numpy.random import Generator

from draftlab.data.classify import UNKNOWN, Classifier
from draftlab.data.prompts import Prompt
from draftlab.errors import UserError


def routed(stream: Sequence[Prompt], classifier: Classifier) -> tuple[list[Prompt], dict[str, Any]]:
    """Add ``meta["route"]`` to each request of a stream: the class that the classifier predicts as it arrives.

    A server must answer every request, so one of unknown class takes the most frequent route so far; the first request takes
    its true group.

    **Returns:** the requests, and ``requests, correct, unknown, accuracy, classifier_ms`` (CPU time per request).
    """
    if not stream:
        raise UserError("the stream is empty", remedy="give it at least one request")
    begin = time.process_time()
    predicted = [classifier([prompt.text])[0] for prompt in stream]
    spent = time.process_time() - begin
    counts: Counter[str] = Counter()
    marked = []
    for prompt, name in zip(stream, predicted, strict=True):
        route = name if name != UNKNOWN else max(counts, key=lambda n: counts[n], default=str(prompt.meta["group"]))
        counts[route] += 1
        marked.append(replace(prompt, meta=prompt.meta | {"route": route}))
    correct = sum(prompt.meta["route"] == prompt.meta["group"] for prompt in marked)
    return marked, {
        "requests": len(marked),
        "correct": correct,
        "unknown": predicted.count(UNKNOWN),
        "accuracy": correct / len(marked),
        "classifier_ms": 1e3 * spent / len(marked),
    }


def misroute(routes: Sequence[str], rate: float, rng: Generator) -> list[str]:
    """The routes, each replaced with probability ``rate`` by one of the others, all equally likely."""
    names = sorted(set(routes))
    if len(names) < 2:
        return list(routes)
    wrong = rng.random(len(routes)) < rate
    shifts = rng.integers(1, len(names), len(routes))
    places = {name: place for place, name in enumerate(names)}
    return [
        names[(places[route] + shift) % len(names)] if is_wrong else route
        for route, shift, is_wrong in zip(routes, shifts, wrong, strict=True)
    ]


def by_route(routes: Iterable[str]) -> dict[str, list[int]]:
    """The positions of each route's requests, in order of arrival."""
    positions: dict[str, list[int]] = {}
    for position, route in enumerate(routes):
        positions.setdefault(route, []).append(position)
    return positions
