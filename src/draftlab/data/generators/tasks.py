"""Generates rows of the other tasks: summaries and translation."""

from __future__ import annotations

from random import Random
from typing import Any

from draftlab.data.generators.prose import paragraph
from draftlab.files.yaml_files import read_yaml_of_module


def _news(draw: Random, space: str) -> tuple[str, str]:
    """Draw a news report and its one-sentence summary."""
    templates = read_yaml_of_module(__file__)
    places = templates["places"][space]
    place, event, agent, day = map(draw.choice, (places, templates["events"], templates["agents"], templates["days"]))
    count = draw.randrange(3, 900)
    facts = [
        f"A {event} in {place} on {day} affected {count} people.",
        f"{agent[0].upper()}{agent[1:]} said that the {event} was the largest for years.",
        paragraph(draw),
    ]
    summary = draw.choice((
        f"A {event} in {place} has affected {count} people, {agent} said.",
        f"{count} people were affected by a {event} in {place} on {day}.",
    ))  # fmt: skip
    return " ".join(facts), summary


def cnn_dailymail(draw: Random, space: str) -> dict[str, Any]:
    """Draw one row with the fields of ``abisee/cnn_dailymail``."""
    article, summary = _news(draw, space)
    return {"article": article, "highlights": summary, "id": f"{draw.getrandbits(160):040x}"}


def xsum(draw: Random, space: str) -> dict[str, Any]:
    """Draw one row with the fields of ``EdinburghNLP/xsum``."""
    document, summary = _news(draw, space)
    return {"document": document, "summary": summary, "id": str(draw.getrandbits(24))}


def wmt16(draw: Random, space: str) -> dict[str, Any]:
    """Draw one row with the field of ``wmt/wmt16``, configuration ``de-en``."""
    templates = read_yaml_of_module(__file__)
    (person, mensch), (thing, ding), (verb, tut), (place, ort) = map(
        draw.choice, (templates["people"][space], templates["things"], templates["verbs"], templates["where"])
    )
    count = draw.randrange(2, 100)
    german = draw.choice((f"{mensch} {tut} {ort} {count} {ding}.", f"{mensch} {tut} {count} {ding} {ort}."))
    return {"translation": {"de": german, "en": f"{person} {verb} {count} {thing} {place}."}}
