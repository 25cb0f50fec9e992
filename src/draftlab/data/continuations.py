"""Which prompts belong to one conversation: each continues the one before."""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Mapping, Sequence
from typing import Any


def requests_in(messages: Sequence[Mapping[str, Any]]) -> list[int]:
    """A digest of the conversation up to each request in it, the last for all of it.

    Two prompts belong to one conversation if the last request of one is among those of the other. Identifiers of calls, reasoning, and space
    around a message do not count: clients may change or drop them, and many chat templates remove the space.
    """
    running = hashlib.blake2b(digest_size=8)
    found = []
    for message in messages:
        calls = [call["function"] for call in message.get("tool_calls", ())]
        if message["role"] == "assistant" and not message["content"] and not calls:
            continue  # it only thought
        running.update(json.dumps([message["role"], message["content"].strip(), calls]).encode())
        if message["role"] in ("user", "tool"):
            found.append(int.from_bytes(running.digest()))
    return found


def conversation_numbers(prompts: Sequence[Sequence[Mapping[str, Any]]]) -> list[int]:
    """The number of each prompt's conversation among them: that of the conversation's first prompt.

    A prompt that several others continue, each in its own way, is a common beginning and joins none of them.

    >>> asked, answered = {"role": "user", "content": "Why?"}, {"role": "assistant", "content": "So."}
    >>> conversation_numbers([[asked], [{"role": "user", "content": "How?"}], [asked, answered, asked]])
    [0, 1, 0]
    """
    requests = [requests_in(messages) for messages in prompts]
    following: dict[int, set[int]] = {}
    for found in requests:
        for request, after in itertools.pairwise(found):
            following.setdefault(request, set()).add(after)
    begun: dict[int, int] = {}  # the conversation that each prompt belongs to, by its last request
    for found in sorted(requests, key=len):
        known = (begun[request] for request in found if request in begun and len(following.get(request, ())) < 2)
        begun[found[-1]] = next(known, begun.get(found[-1], found[-1]))
    first: dict[int, int] = {}
    return [first.setdefault(begun[found[-1]], number) for number, found in enumerate(requests)]
