"""What the target answered to a prompt."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Answer:
    """The target's answer to one prompt, in token ids; ``finished`` when it ends in the end-of-text token."""

    id: str
    prompt_ids: list[int]
    answer_ids: list[int]
    finished: bool
