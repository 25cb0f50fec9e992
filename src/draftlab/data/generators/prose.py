"""Generates plain sentences, from which a draft learns the language but no task."""

from __future__ import annotations

from random import Random

from draftlab.files.yaml_files import read_yaml_of_module


def sentence(draw: Random) -> str:
    """Draw one sentence."""
    templates = read_yaml_of_module(__file__)
    text = " ".join(draw.choice(templates[part]) for part in ("subjects", "verbs", "objects", "endings")) + "."
    return text[0].upper() + text[1:]


def paragraph(draw: Random) -> str:
    """Draw a paragraph of two to four sentences."""
    return " ".join(sentence(draw) for _ in range(draw.randrange(2, 5)))
