"""Rows in the raw schemas of the datasets that no run generates; ``rows`` draws rows of any dataset."""

from __future__ import annotations

import itertools
from random import Random
from typing import Any

from draftlab.data import generators
from draftlab.data.generators import chat
from draftlab.data.generators.code_search_net import code_search_net
from draftlab.data.generators.spider import spider


def question_and_answer(draw: Random, space: str) -> tuple[str, str]:
    return chat._english(draw, space, draw.choice(chat.TOPICS))


def piqa(draw: Random, space: str) -> dict[str, Any]:
    """Draw one row with the fields of ``baber/piqa``."""
    (goal, first), (_, second) = (question_and_answer(draw, space) for _ in range(2))
    return {"goal": goal, "sol1": first, "sol2": second, "label": draw.randrange(2)}


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
    return {
        "task_id": draw.getrandbits(24),
        "text": f"Write a function to do this: {row['func_documentation_string']}",
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
    return row | {"db_schema": f"{row['db_id']}(id, name); visit(id, day)"}


def lmsys_chat_1m(draw: Random, space: str) -> dict[str, Any]:
    """Draw one row with the fields of ``lmsys/lmsys-chat-1m``, which has no time."""
    request = chat._request(draw, space)
    return {
        "conversation_id": f"{draw.getrandbits(128):032x}",
        "model": "vicuna-7b",
        "conversation": [
            {"role": "user", "content": request["question"]},
            {"role": "assistant", "content": request["answer"]},
        ],
        "turn": 1,
        "language": request["language"],
        "openai_moderation": [],
        "redacted": False,
    }


def sharegpt(draw: Random, space: str) -> dict[str, Any]:
    """Draw one conversation of one to three exchanges in ``from``/``value`` form."""
    turns = [turn for _ in range(draw.randrange(1, 4)) for turn in question_and_answer(draw, space)]
    messages = [{"from": role, "value": turn} for role, turn in zip(itertools.cycle(("human", "gpt")), turns)]
    return {"id": f"identity_{draw.getrandbits(32)}", "conversations": messages}


def mt_bench(draw: Random, space: str) -> dict[str, Any]:
    """Draw one two-turn question with the fields of ``HuggingFaceH4/mt_bench_prompts``."""
    questions, answers = zip(*(question_and_answer(draw, space) for _ in range(2)), strict=True)
    return {
        "category": draw.choice(chat.TOPICS),
        "prompt": [*questions],
        "reference": [*answers],
        "prompt_id": draw.getrandbits(32),
    }


def spec_bench(draw: Random, space: str) -> dict[str, Any]:
    """Draw one question with the fields of Spec-Bench's ``question.jsonl``."""
    row = mt_bench(draw, space)
    return {"question_id": row.pop("prompt_id"), "turns": row.pop("prompt"), **row}


def oasst(draw: Random, space: str) -> dict[str, Any]:
    """Draw one opening message with its reply below it, as in Open Assistant's message trees."""
    request, name = chat._request(draw, space), f"{draw.getrandbits(64):016x}"
    reply = {"message_id": f"{name}a", "parent_id": name, "text": request["answer"], "role": "assistant", "replies": []}
    return {
        "message_id": name,
        "parent_id": None,
        "text": request["question"],
        "role": "prompter",
        "lang": request["language"][:2].lower(),
        "replies": [reply],
    }


def alpaca(draw: Random, space: str) -> dict[str, Any]:
    """Draw one row with the fields of ``tatsu-lab/alpaca``."""
    question, answer = question_and_answer(draw, space)
    text = f"Below is an instruction that describes a task.\n\n### Instruction:\n{question}\n\n### Response:\n{answer}"
    return {"instruction": question, "input": "", "output": answer, "text": text}


ONLY_HERE: dict[str, generators.Generator] = {
    draw_row.__name__: draw_row
    for draw_row in (
        spider_schema, piqa, starcoder, lmsys_chat_1m, sharegpt, humaneval, mbpp, mbpp_sanitized, alpaca, mt_bench,
        spec_bench, oasst,
    )
}  # fmt: skip
GENERATORS = generators.GENERATORS | ONLY_HERE


def rows(dataset: str, n: int) -> list[dict[str, Any]]:
    """The first ``n`` rows of a dataset."""
    if dataset in ONLY_HERE:
        draw = Random(dataset)
        return [ONLY_HERE[dataset](draw, "service") for _ in range(n)]
    return list(itertools.islice(generators.rows(dataset, "train", seed=0), n))
