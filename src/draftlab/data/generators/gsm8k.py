"""Generates word problems with worked answers, as rows of GSM8K: ``<<a*b=c>>`` in each step, ``####`` before the result."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

from draftlab.files.yaml_files import read_yaml_of_module

Numbers = dict[str, Any]
"""The numbers of a problem, its two steps as text (``first`` and ``last``), and the ``result``."""


def _solved(sum1: str, value1: int, sum2: str, value2: int, unit: str = "", **numbers: Any) -> Numbers:
    """Build a problem of two steps, each an expression and its value."""
    first, last = (f"{terms}={unit}<<{terms}={value}>>{value}" for terms, value in ((sum1, value1), (sum2, value2)))
    return numbers | {"first": first, "last": last, "result": value2}


def _more_and_fewer(draw: Random) -> Numbers:
    a, b = draw.randrange(12, 60), draw.randrange(5, 40)
    c = draw.randrange(2, a + b - 1)
    return _solved(f"{a}+{b}", a + b, f"{a + b}-{c}", a + b - c, a=a, b=b, c=c)


def _change(draw: Random) -> Numbers:
    a, b = draw.randrange(2, 13), draw.randrange(2, 10)
    paid = a * b + draw.randrange(1, 30)
    return _solved(f"{a}*{b}", a * b, f"{paid}-{a * b}", paid - a * b, "$", a=a, b=b, paid=paid)


def _weeks(draw: Random) -> Numbers:
    a, b, c = draw.randrange(2, 13), draw.randrange(2, 8), draw.randrange(2, 9)
    return _solved(f"{a}*{b}", a * b, f"{a * b}*{c}", a * b * c, a=a, b=b, c=c)


def _half(draw: Random) -> Numbers:
    a = 2 * draw.randrange(6, 50)
    month, following = draw.choice((("April", "May"), ("June", "July"), ("March", "April"), ("May", "June")))
    return _solved(f"{a}/2", a // 2, f"{a}+{a // 2}", a + a // 2, a=a, month=month, following=following)


def _shared(draw: Random) -> Numbers:
    a, b = draw.randrange(3, 10), draw.randrange(4, 13)
    kept = draw.randrange(2, 20)
    total = a * b + kept
    return _solved(f"{total}-{kept}", a * b, f"{a * b}/{a}", b, a=a, kept=kept, total=total)


def _discount(draw: Random) -> Numbers:
    price, percent = 20 * draw.randrange(2, 25), draw.choice((5, 10, 20, 25, 50))
    cut = price * percent // 100
    return _solved(f"{price}*{percent}/100", cut, f"{price}-{cut}", price - cut, "$", price=price, percent=percent)


def _times(draw: Random) -> Numbers:
    a, b = draw.randrange(5, 40), draw.randrange(2, 7)
    friend = draw.choice(("brother", "sister", "cousin", "teacher", "neighbor"))
    return _solved(f"{a}*{b}", a * b, f"{a}+{a * b}", a + a * b, a=a, b=b, friend=friend)


FAMILIES: tuple[Callable[[Random], Numbers], ...] = (
    _more_and_fewer, _change, _weeks, _half, _shared, _discount, _times,
)  # fmt: skip


def gsm8k(draw: Random, space: str) -> dict[str, Any]:
    """Draw one row with the fields of ``openai/gsm8k``."""
    templates = read_yaml_of_module(__file__)
    family = draw.choice(FAMILIES)
    slots = {"name": draw.choice(templates["names"][space]), "items": draw.choice(templates["items"][space])}
    slots |= family(draw)
    question, first, last = (draw.choice(texts).format(**slots) for texts in templates["texts"][family.__name__[1:]])
    return {"question": question, "answer": f"{first}\n{last}\n#### {slots['result']}"}
