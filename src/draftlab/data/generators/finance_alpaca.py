"""Generates questions about money, as rows of finance-alpaca; the advice refers to the asker and their goal."""

from __future__ import annotations

from random import Random
from typing import Any

from draftlab.files.yaml_files import read_yaml_of_module


def finance_alpaca(draw: Random, space: str) -> dict[str, Any]:
    """Draw one row with the fields of ``gbharti/finance-alpaca``; one time in four the persona is in ``input``."""
    templates = read_yaml_of_module(__file__)
    product, goal, job = map(draw.choice, (templates["products"][space], templates["goals"], templates["jobs"][space]))
    age, kind = draw.randrange(21, 66), draw.randrange(len(templates["questions"]))
    question, persona = templates["questions"][kind].format(product=product, goal=goal), f"I am a {age} year old {job}."
    opening = draw.choice(templates["openings"][kind]).format(product=product, goal=goal)
    middle = draw.choice(templates["personas"]).format(age=age, job=job)
    answer = f"{opening} {middle} {draw.choice(templates['advice'])}"
    inside = draw.random() < 0.75
    return {
        "instruction": f"{persona} {question}" if inside else question,
        "input": "" if inside else persona,
        "output": answer,
        "text": "",
    }
