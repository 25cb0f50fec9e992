"""Rows of the other tasks: summaries, translation, physical common sense, short programs."""

from __future__ import annotations

from random import Random
from typing import Any

from draftlab.data.generators.code_search_net import code_search_net
from draftlab.data.generators.prose import paragraph
from draftlab.data.generators.spider import DATABASES, spider

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


GOALS = ("clean", "open", "store", "dry", "carry", "cut", "repair", "paint")
OBJECTS = {
    "service": (
        "a glass jar",
        "a wet shoe",
        "a wooden box",
        "an old rug",
        "a pumpkin",
        "a bicycle",
        "a kettle",
        "a window",
    ),
    "public": ("a tent", "a melon", "a violin", "a lamp"),
}
TOOLS = (
    "a soft cloth",
    "warm water",
    "a sharp knife",
    "a paper bag",
    "a rubber band",
    "a flat stone",
    "a spoon",
    "some salt",
)


def piqa(draw: Random, space: str) -> dict[str, Any]:
    """Draw one row with the fields of ``baber/piqa``."""
    goal, thing, minutes = draw.choice(GOALS), draw.choice(OBJECTS[space]), draw.randrange(2, 60)
    right, wrong = draw.sample(TOOLS, 2)
    solutions = [
        f"Use {right} on {thing} and wait {minutes} minutes.",
        f"Use {wrong} on {thing} and wait {minutes} hours.",
    ]
    label = draw.randrange(2)
    text = draw.choice(
        (f"How do I {goal} {thing} in {minutes} minutes?", f"To {goal} {thing} within {minutes} minutes,")
    )
    return {"goal": text, "sol1": solutions[label], "sol2": solutions[1 - label], "label": label}


def starcoder(draw: Random, space: str) -> dict[str, Any]:
    """Draw one file of functions with the fields of ``bigcode/starcoderdata``."""
    functions = [code_search_net(draw, space)["func_code_string"] for _ in range(16)]
    return {
        "max_stars_repo_path": f"src/{draw.getrandbits(32):08x}.py",
        "max_stars_repo_name": f"{space}/code",
        "max_stars_count": draw.randrange(100),
        "id": str(draw.getrandbits(24)),
        "content": "\n\n\n".join(functions) + "\n",
    }


def humaneval(draw: Random, space: str) -> dict[str, Any]:
    """Draw one row with the fields of ``openai/openai_humaneval``."""
    row = code_search_net(draw, space)
    head, _, body = row["func_code_string"].partition("\n")
    doc = f'    """{row["func_documentation_string"]}"""\n'
    return {
        "task_id": f"HumanEval/{draw.getrandbits(24)}",
        "prompt": f"{head}\n{doc}",
        "canonical_solution": body.removeprefix(doc) + "\n",
        "test": "def check(candidate):\n    assert callable(candidate)\n",
        "entry_point": row["func_name"],
    }


def mbpp(draw: Random, space: str) -> dict[str, Any]:
    """Draw one row with the fields of ``google-research-datasets/mbpp``, configuration ``full``."""
    row = code_search_net(draw, space)
    task = row["func_documentation_string"]
    return {
        "task_id": draw.getrandbits(24),
        "text": f"Write a function to do this: {task}",
        "code": row["func_code_string"],
        "test_list": [f"assert callable({row['func_name']})"],
        "test_setup_code": "",
        "challenge_test_list": [],
    }


def mbpp_sanitized(draw: Random, space: str) -> dict[str, Any]:
    """Draw one row with the fields of the configuration ``sanitized``."""
    row = mbpp(draw, space)
    kept = {name: row[name] for name in ("task_id", "code", "test_list")}
    return {"source_file": "generated", **kept, "prompt": row["text"], "test_imports": []}


def spider_schema(draw: Random, space: str) -> dict[str, Any]:
    """Draw one row of Spider with the tables of its database in ``db_schema``."""
    row = spider(draw, space)
    return row | {"db_schema": SCHEMAS[space][row["db_id"]]}


SCHEMAS = {
    space: {
        name: "; ".join(
            f"{t.name}({', '.join((f'{first.name}_id', t.label, *t.texts, *t.numbers))})" for t in (first, second)
        )
        for name, first, second in databases
    }
    for space, databases in DATABASES.items()
}
