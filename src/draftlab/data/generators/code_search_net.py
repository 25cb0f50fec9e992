"""Generates documented Python functions over lists of records, as rows of CodeSearchNet on the hub."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

from draftlab.files.yaml_files import read_yaml_of_module

Slots = dict[str, Any]


def _filter(draw: Random, attributes: Sequence[str]) -> Slots:
    sign, phrase = draw.choice((("<", "below"), (">", "above"), (">=", "at least"), ("<=", "at most")))
    return {"sign": sign, "words": phrase}


def _sort(draw: Random, attributes: Sequence[str]) -> Slots:
    down = draw.random() < 0.5
    orders = ("in descending order", "from high to low") if down else ("in ascending order", "from low to high")
    return {"order": draw.choice(orders), "reverse": ", reverse=True" if down else ""}


def _sum(draw: Random, attributes: Sequence[str]) -> Slots:
    start = draw.choice((0, 0, 1, 10, 100))
    return {"start": start, "extra": f" plus {start}" if start else "", "tail": f" + {start}\n" if start else "\n"}


def _best(draw: Random, attributes: Sequence[str]) -> Slots:
    function, phrase = draw.choice((("max", "largest"), ("min", "smallest")))
    return {"function": function, "words": phrase, "other": draw.choice(attributes)}


def _other(draw: Random, attributes: Sequence[str]) -> Slots:
    return {"other": draw.choice(attributes)}


FAMILIES: dict[str, Callable[[Random, Sequence[str]], Slots]] = {
    "filter": _filter,
    "sort": _sort,
    "sum": _sum,
    "best": _best,
    "group": _other,
    "count": lambda draw, attributes: {},
    "index": _other,
    "average": lambda draw, attributes: {"empty": draw.choice(("None", "0", "0.0", "-1"))},
    "first": lambda draw, attributes: {"count": draw.choice((2, 3, 5, 10, 20, 50))},
}
TOKEN = re.compile(r"\"\"\".*?\"\"\"|\w+|[^\w\s]", re.DOTALL)


def code_search_net(draw: Random, space: str) -> dict[str, Any]:
    """Draw one row with the fields of ``code-search-net/code_search_net``, configuration ``python``."""
    templates = read_yaml_of_module(__file__)
    noun, attribute = draw.choice(templates["nouns"][space]), draw.choice(templates["attributes"])
    rows, row = draw.choice((f"{noun}s", "items", "rows")), draw.choice((noun, "item", "x"))
    family, draw_slots = draw.choice(list(FAMILIES.items()))
    function = templates["functions"][family]
    slots = {"noun": noun, "attribute": attribute, "rows": rows, "row": row} | draw_slots(draw, templates["attributes"])
    parts = draw.choice(function["docs"]), function["name"], function["arguments"], draw.choice(function["bodies"])
    doc, name, arguments, body = (part.format(**slots) for part in parts)
    docstring = f'    """{doc}"""\n' if draw.random() < 0.5 else ""
    code = f"def {name}({arguments}):\n{docstring}{body}".rstrip()
    repository, path = f"{space}/{noun}s", f"{noun}s/{attribute}.py"
    return {
        "repository_name": repository,
        "func_path_in_repository": path,
        "func_name": name,
        "whole_func_string": code,
        "language": "python",
        "func_code_string": code,
        "func_code_tokens": TOKEN.findall(code),
        "func_documentation_string": doc,
        "func_documentation_tokens": TOKEN.findall(doc),
        "split_name": "",
        "func_code_url": f"https://example.org/{repository}/blob/main/{path}",
    }
