"""Generates requests of many users in six languages and five topics, as rows of Chatbot Arena and of Dolly."""

from __future__ import annotations

from random import Random
from typing import Any

from draftlab.files.yaml_files import read_yaml_of_module

START, DAYS, DAY = 1_680_739_200, 125, 86_400  # 6 April 2023, the days of OSD's Arena sample
TOPICS = (
    "Business_Corporate", "Computers and Technology", "Games", "Education", "Social Networking and Messaging",
)  # fmt: skip  # the five largest classes of OSD's classifier
LANGUAGES = {"English": 10, "Chinese": 2, "Japanese": 2, "Spanish": 2, "Portuguese": 2, "Russian": 2}


def _english(draw: Random, space: str, topic: str) -> tuple[str, str]:
    """Draw an English question about a topic, and its answer."""
    templates = read_yaml_of_module(__file__)
    first, second = templates["slots"][topic][space]
    slots = {"a": draw.choice(first), "b": draw.choice(second), "n": draw.randrange(2, 100)}
    return _fill(draw, templates["english"][topic], " ", slots)


def _other(draw: Random, space: str, language: str) -> tuple[str, str]:
    """Draw a question in another language, and its answer."""
    nouns, *templates = read_yaml_of_module(__file__)["others"][language]
    slots = {"a": draw.choice(nouns[space]), "n": draw.randrange(2, 100)}
    return _fill(draw, templates, "" if language in ("Chinese", "Japanese") else " ", slots)


def _fill(draw: Random, templates: list[list[str]], gap: str, slots: dict[str, Any]) -> tuple[str, str]:
    """Draw a question, and an answer of an opening and an ending, from their templates."""
    questions, openings, endings = templates
    answer = f"{draw.choice(openings)}{gap}{draw.choice(endings)}"
    return draw.choice(questions).format(**slots), answer.format(**slots)


def _request(draw: Random, space: str) -> dict[str, Any]:
    """Draw the language, topic, time, question and answer of one request. Over time, games become rarer and business more common."""
    day = draw.randrange(DAYS)
    language = draw.choices(tuple(LANGUAGES), tuple(LANGUAGES.values()))[0]
    late = day / DAYS
    topic = draw.choices(TOPICS, (1 + 2 * late, 3, 3 - 2 * late, 2, 1))[0] if language == "English" else ""
    question, answer = _english(draw, space, topic) if topic else _other(draw, space, language)
    time = float(START + day * DAY + draw.randrange(DAY))
    return {"language": language, "topic": topic, "time": time, "question": question, "answer": answer}


def arena(draw: Random, space: str) -> dict[str, Any]:
    """Draw one row with the fields of ``lmsys/chatbot_arena_conversations``, and its ``topic``."""
    request = _request(draw, space)
    user = {"role": "user", "content": request["question"]}
    conversation = [user, {"role": "assistant", "content": request["answer"]}]
    row = {
        "question_id": f"{draw.getrandbits(64):016x}",
        "model_a": "target",
        "model_b": "other",
        "winner": draw.choice(("model_a", "model_b", "tie")),
        "judge": f"arena_user_{draw.randrange(1000)}",
        "conversation_a": conversation,
        "conversation_b": conversation,
        "turn": 1,
        "anony": True,
        "language": request["language"],
        "tstamp": request["time"],
    }
    return row | ({"topic": request["topic"]} if request["topic"] else {})


def dolly(draw: Random, space: str) -> dict[str, Any]:
    """Draw one row with the fields of ``databricks/databricks-dolly-15k``; two in five come with a context that contains the answer."""
    topic = draw.choice(TOPICS)
    question, answer = _english(draw, space, topic)
    context = draw.random() < 0.4
    return {
        "instruction": question,
        "context": f"Some people say this. {answer} Others do not agree." if context else "",
        "response": answer,
        "category": "closed_qa" if context else "open_qa",
    }
