"""Plain sentences about nothing in particular, for a draft that knows the language but no task."""

from __future__ import annotations

from random import Random

SUBJECTS = ("the old harbor", "a quiet street", "the morning train", "our small garden", "the market", "a long winter",
            "the river", "an empty house", "the village school", "a gray cat", "the last bus", "my neighbor")  # fmt: skip
VERBS = (
    "waits for",
    "looks like",
    "belongs to",
    "stands near",
    "turns toward",
    "listens to",
    "moves past",
    "reminds me of",
)
OBJECTS = ("the hills", "a warm evening", "the people of the town", "a story from long ago", "the open sea", "an old song",
           "the light in the window", "the first snow", "a friend", "the road to the north")  # fmt: skip
ENDINGS = ("when the wind is low", "before the rain comes", "as it did last year", "without a sound", "on most days",
           "after the bells have stopped", "and nobody asks why", "until the lamps are lit")  # fmt: skip


def sentence(draw: Random) -> str:
    """One sentence."""
    text = f"{draw.choice(SUBJECTS)} {draw.choice(VERBS)} {draw.choice(OBJECTS)} {draw.choice(ENDINGS)}."
    return text[0].upper() + text[1:]


def paragraph(draw: Random) -> str:
    """Two to four sentences."""
    return " ".join(sentence(draw) for _ in range(draw.randrange(2, 5)))
