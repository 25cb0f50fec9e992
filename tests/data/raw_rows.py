"""Rows in the raw schemas of the datasets that no run generates; ``rows`` draws those of any dataset."""

from __future__ import annotations

import itertools
from pathlib import Path
from random import Random
from typing import Any

from draftlab.data import generators
from draftlab.data.generators import chat
from draftlab.data.generators.code_search_net import code_search_net
from draftlab.data.generators.spider import Table, spider
from draftlab.files.yaml_files import read_yaml

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


WORDS = read_yaml(Path(generators.__file__).with_name("spider.yaml"))
SCHEMAS = {
    space: {
        name: "; ".join(
            f"{t.name}({', '.join((f'{tables[0][0]}_id', t.label, *t.texts, *t.numbers))})"
            for t in (Table(*own) for own in tables)
        )
        for name, *tables in databases
    }
    for space, databases in WORDS["databases"].items()
}


def lmsys_chat_1m(draw: Random, space: str) -> dict[str, Any]:
    """Draw one row with the fields of ``lmsys/lmsys-chat-1m``: no time in it."""
    said = chat._request(draw, space)
    return {
        "conversation_id": f"{draw.getrandbits(128):032x}",
        "model": "vicuna-7b",
        "conversation": [
            {"role": "user", "content": said["question"]},
            {"role": "assistant", "content": said["answer"]},
        ],
        "turn": 1,
        "language": said["language"],
        "openai_moderation": [],
        "redacted": False,
    }


def sharegpt(draw: Random, space: str) -> dict[str, Any]:
    """Draw one conversation of one to three exchanges in ``from``/``value`` form."""
    exchanges = [chat._english(draw, space, draw.choice(chat.TOPICS)) for _ in range(draw.randrange(1, 4))]
    said = [message for q, a in exchanges for message in ({"from": "human", "value": q}, {"from": "gpt", "value": a})]
    return {"id": f"identity_{draw.getrandbits(32)}", "conversations": said}


def mt_bench(draw: Random, space: str) -> dict[str, Any]:
    """Draw one two-turn question with the fields of ``HuggingFaceH4/mt_bench_prompts``."""
    topic = draw.choice(chat.TOPICS)
    pairs = [chat._english(draw, space, topic) for _ in range(2)]
    return {
        "category": topic,
        "prompt": [question for question, _ in pairs],
        "reference": [answer for _, answer in pairs],
        "prompt_id": draw.getrandbits(32),
    }


def spec_bench(draw: Random, space: str) -> dict[str, Any]:
    """Draw one question with the fields of Spec-Bench's ``question.jsonl``."""
    row = mt_bench(draw, space)
    return {
        "question_id": row["prompt_id"],
        "category": row["category"],
        "turns": row["prompt"],
        "reference": row["reference"],
    }


def oasst(draw: Random, space: str) -> dict[str, Any]:
    """Draw one opening message with its reply below it, as Open Assistant's message trees."""
    said = chat._request(draw, space)
    name = f"{draw.getrandbits(64):016x}"
    reply = {"message_id": f"{name}a", "parent_id": name, "text": said["answer"], "role": "assistant", "replies": []}
    return {
        "message_id": name,
        "parent_id": None,
        "text": said["question"],
        "role": "prompter",
        "lang": said["language"][:2].lower(),
        "replies": [reply],
    }


def alpaca(draw: Random, space: str) -> dict[str, Any]:
    """Draw one row with the fields of ``tatsu-lab/alpaca``."""
    question, answer = chat._english(draw, space, draw.choice(chat.TOPICS))
    text = f"Below is an instruction that describes a task.\n\n### Instruction:\n{question}\n\n### Response:\n{answer}"
    return {"instruction": question, "input": "", "output": answer, "text": text}


SCHEMAS_ONLY: dict[str, generators.Generator] = {
    "spider_schema": spider_schema,
    "piqa": piqa,
    "starcoder": starcoder,
    "lmsys_chat_1m": lmsys_chat_1m,
    "sharegpt": sharegpt,
    "humaneval": humaneval,
    "mbpp": mbpp,
    "mbpp_sanitized": mbpp_sanitized,
    "alpaca": alpaca,
    "mt_bench": mt_bench,
    "spec_bench": spec_bench,
    "oasst": oasst,
}
GENERATORS = generators.GENERATORS | SCHEMAS_ONLY


def rows(dataset: str, n: int) -> list[dict[str, Any]]:
    """The first ``n`` rows of a dataset."""
    if dataset in SCHEMAS_ONLY:
        draw = Random(dataset)
        return [SCHEMAS_ONLY[dataset](draw, "service") for _ in range(n)]
    return list(itertools.islice(generators.rows(dataset, "train", seed=0), n))
