"""What the target answered to a prompt, and the name under which answers are recorded."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Answer:
    """The target's answer to one prompt, in token ids; ``finished`` when it ends in the end-of-text token."""

    id: str
    prompt_ids: list[int]
    answer_ids: list[int]
    finished: bool


def recorded_name(dataset: str, split: str, temperature: float = 0.0) -> str:
    """The folder of recorded answers below ``answers/``: one per dataset, split and temperature."""
    return f"{dataset}.{split}" + (f".t{temperature:g}" if temperature else "")
