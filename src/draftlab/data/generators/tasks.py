"""Rows of the other tasks: summaries, translation, physical common sense, short programs."""

from __future__ import annotations

from random import Random
from typing import Any

from draftlab.data.generators.prose import paragraph

PLACES = {
    "service": ("Leeds", "Porto", "Graz", "Lyon", "Bergen", "Malmo", "Bari", "Ghent"),
    "public": ("Cork", "Riga", "Vigo", "Linz"),
}
EVENTS = ("flood", "fire", "strike", "festival", "storm", "power cut", "marathon", "parade")
AGENTS = ("police", "the council", "local firms", "the mayor", "teachers", "doctors")
DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")


def _news(draw: Random, space: str) -> tuple[str, str]:
    """A report, and the sentence that says what matters in it."""
    place, event, agent, day = draw.choice(PLACES[space]), draw.choice(EVENTS), draw.choice(AGENTS), draw.choice(DAYS)
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


PEOPLE = {
    "service": (("The teacher", "Der Lehrer"), ("My brother", "Mein Bruder"), ("The doctor", "Der Arzt"), ("A child", "Ein Kind"),
                ("The farmer", "Der Bauer"), ("Our neighbor", "Unser Nachbar")),
    "public": (("The king", "Der König"), ("A sailor", "Ein Matrose"), ("The judge", "Der Richter")),
}  # fmt: skip
THINGS = (("letters", "Briefe"), ("houses", "Häuser"), ("books", "Bücher"), ("apples", "Äpfel"), ("chairs", "Stühle"),
          ("pictures", "Bilder"), ("bottles", "Flaschen"), ("keys", "Schlüssel"))  # fmt: skip
VERBS = (("buys", "kauft"), ("sells", "verkauft"), ("finds", "findet"), ("looks for", "sucht"), ("paints", "malt"))
WHERE = (("in the city", "in der Stadt"), ("at the market", "auf dem Markt"), ("in the garden", "im Garten"),
         ("by the river", "am Fluss"), ("at school", "in der Schule"))  # fmt: skip


def wmt16(draw: Random, space: str) -> dict[str, Any]:
    """Draw one row with the field of ``wmt/wmt16``, configuration ``de-en``."""
    (person, mensch), (thing, ding), (verb, tut), (place, ort) = map(draw.choice, (PEOPLE[space], THINGS, VERBS, WHERE))
    count = draw.randrange(2, 100)
    german = draw.choice((f"{mensch} {tut} {ort} {count} {ding}.", f"{mensch} {tut} {count} {ding} {ort}."))
    return {"translation": {"de": german, "en": f"{person} {verb} {count} {thing} {place}."}}
