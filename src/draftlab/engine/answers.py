"""The target's answer to a prompt, and the name under which answers are recorded."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Answer:
    """The target's answer to one prompt, in token ids; ``finished`` if it ends with the end-of-text token."""

    id: str
    prompt_ids: list[int]
    answer_ids: list[int]
    finished: bool


def recorded_name(dataset: str, split: str, temperature: float = 0.0) -> str:
    """The folder of recorded answers below ``answers/``: one per dataset, split and temperature."""
    return f"{dataset}.{split}" + (f".t{in_full(temperature)}" if temperature else "")


def in_full(temperature: float) -> str:
    """A temperature with all its digits, as in the names of cells; six digits would be another temperature.

    >>> in_full(1.0), in_full(0.3), in_full(1 / 3), in_full(1e-5)
    ('1', '0.3', '0.3333333333333333', '1e-05')
    """
    return repr(float(temperature)).removesuffix(".0")


def loops(tokens: Sequence[int]) -> bool:
    """Whether some run of 6 tokens occurs at least 3 times. A model that repeats itself is easy to draft for.

    >>> loops([1, 2] * 8), loops(range(20))
    (True, False)
    """
    runs = Counter(zip(*(tokens[at:] for at in range(6)), strict=False))
    return max(runs.values(), default=0) >= 3
