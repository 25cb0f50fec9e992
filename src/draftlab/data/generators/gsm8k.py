"""Word problems with worked answers, as GSM8K's rows: ``<<a*b=c>>`` after each step, ``####`` before the result."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

NAMES = {
    "service": ("Anna", "Ben", "Carla", "David", "Elena", "Frank", "Grace", "Henry", "Ivy", "Jack", "Kate", "Leo"),
    "public": ("Mona", "Nils", "Olga", "Paul", "Quinn", "Rosa", "Sven", "Tara", "Uma", "Victor", "Wendy", "Yusuf"),
}
ITEMS = {
    "service": ("apples", "books", "clips", "pencils", "cards", "marbles", "stickers", "cookies", "toys", "stamps"),
    "public": ("shells", "coins", "lemons", "ribbons", "buttons", "candles", "seeds", "tickets", "plates", "keys"),
}
Problem = tuple[str, str]


def _more_and_fewer(draw: Random, name: str, items: str) -> Problem:
    a, b = draw.randrange(12, 60), draw.randrange(5, 40)
    c = draw.randrange(2, a + b - 1)
    question = draw.choice((
        f"{name} has {a} {items}. Then {name} buys {b} more {items} and gives {c} to a friend. How many {items} are left?",
        f"{name} had {a} {items}, got {b} more and lost {c}. How many {items} does {name} have now?",
    ))  # fmt: skip
    first = draw.choice((f"{name} first has {a}+{b}=<<{a}+{b}={a + b}>>{a + b} {items}.",
                         f"With the new ones there are {a}+{b}=<<{a}+{b}={a + b}>>{a + b} {items}."))  # fmt: skip
    left = a + b - c
    last = draw.choice((f"Then {a + b}-{c}=<<{a + b}-{c}={left}>>{left} {items} are left.",
                        f"After that {name} has {a + b}-{c}=<<{a + b}-{c}={left}>>{left} {items}."))  # fmt: skip
    return question, f"{first}\n{last}\n#### {left}"


def _change(draw: Random, name: str, items: str) -> Problem:
    a, b = draw.randrange(2, 13), draw.randrange(2, 10)
    paid = a * b + draw.randrange(1, 30)
    question = draw.choice((
        f"{name} buys {a} {items} for ${b} each and pays with ${paid}. How much change does {name} get?",
        f"Each of the {a} {items} costs ${b}. {name} pays ${paid} for all of them. What is the change in dollars?",
    ))  # fmt: skip
    first = draw.choice((f"The {items} cost {a}*{b}=$<<{a}*{b}={a * b}>>{a * b}.",
                         f"{name} has to pay {a}*{b}=$<<{a}*{b}={a * b}>>{a * b} for the {items}."))  # fmt: skip
    back = paid - a * b
    last = draw.choice((f"The change is {paid}-{a * b}=$<<{paid}-{a * b}={back}>>{back}.",
                        f"{name} gets {paid}-{a * b}=$<<{paid}-{a * b}={back}>>{back} back."))  # fmt: skip
    return question, f"{first}\n{last}\n#### {back}"


def _weeks(draw: Random, name: str, items: str) -> Problem:
    a, b, c = draw.randrange(2, 13), draw.randrange(2, 8), draw.randrange(2, 9)
    question = draw.choice((
        f"{name} makes {a} {items} a day and works {b} days a week. How many {items} does {name} make in {c} weeks?",
        f"For {c} weeks {name} sells {a} {items} a day, {b} days a week. How many {items} is that in all?",
    ))  # fmt: skip
    first = draw.choice((f"In a week that is {a}*{b}=<<{a}*{b}={a * b}>>{a * b} {items}.",
                         f"Each week there are {a}*{b}=<<{a}*{b}={a * b}>>{a * b} {items}."))  # fmt: skip
    total = a * b * c
    last = draw.choice((f"In {c} weeks it is {a * b}*{c}=<<{a * b}*{c}={total}>>{total} {items}.",
                        f"So {name} gets to {a * b}*{c}=<<{a * b}*{c}={total}>>{total} {items}."))  # fmt: skip
    return question, f"{first}\n{last}\n#### {total}"


def _half(draw: Random, name: str, items: str) -> Problem:
    a = 2 * draw.randrange(6, 50)
    month, following = draw.choice((("April", "May"), ("June", "July"), ("March", "April"), ("May", "June")))
    question = draw.choice((
        f"{name} sold {a} {items} in {month} and half as many in {following}. How many {items} did {name} sell altogether?",
        f"In {month} {name} found {a} {items}, in {following} only half as many. How many {items} were found in both months?",
    ))  # fmt: skip
    first = draw.choice((f"In {following} it was {a}/2=<<{a}/2={a // 2}>>{a // 2} {items}.",
                         f"Half of {a} is {a}/2=<<{a}/2={a // 2}>>{a // 2} {items} in {following}."))  # fmt: skip
    total = a + a // 2
    last = draw.choice((f"Altogether it is {a}+{a // 2}=<<{a}+{a // 2}={total}>>{total} {items}.",
                        f"In both months it is {a}+{a // 2}=<<{a}+{a // 2}={total}>>{total} {items}."))  # fmt: skip
    return question, f"{first}\n{last}\n#### {total}"


def _shared(draw: Random, name: str, items: str) -> Problem:
    a, b = draw.randrange(3, 10), draw.randrange(4, 13)
    kept = draw.randrange(2, 20)
    total = a * b + kept
    question = draw.choice((
        f"{name} has {total} {items}, keeps {kept} and shares the rest among {a} friends. How many {items} does each friend get?",
        f"Of {total} {items} {name} keeps {kept}. The others go to {a} friends in equal parts. How many are there for each?",
    ))  # fmt: skip
    first = draw.choice((f"There are {total}-{kept}=<<{total}-{kept}={a * b}>>{a * b} {items} to share.",
                         f"The rest is {total}-{kept}=<<{total}-{kept}={a * b}>>{a * b} {items}."))  # fmt: skip
    last = draw.choice((f"Each friend gets {a * b}/{a}=<<{a * b}/{a}={b}>>{b} {items}.",
                        f"For each of the {a} friends it is {a * b}/{a}=<<{a * b}/{a}={b}>>{b}."))  # fmt: skip
    return question, f"{first}\n{last}\n#### {b}"


def _discount(draw: Random, name: str, items: str) -> Problem:
    price, percent = 20 * draw.randrange(2, 25), draw.choice((5, 10, 20, 25, 50))
    cut = price * percent // 100
    left = price - cut
    question = draw.choice((
        f"A box of {items} costs ${price}. {name} gets {percent}% off. How much does {name} pay?",
        f"{name} buys a box of {items} at ${price} with a discount of {percent}%. What is the price in dollars?",
    ))  # fmt: skip
    first = draw.choice((f"The discount is {price}*{percent}/100=$<<{price}*{percent}/100={cut}>>{cut}.",
                         f"{name} saves {price}*{percent}/100=$<<{price}*{percent}/100={cut}>>{cut}."))  # fmt: skip
    last = draw.choice((f"So {name} pays {price}-{cut}=$<<{price}-{cut}={left}>>{left}.",
                        f"The price is {price}-{cut}=$<<{price}-{cut}={left}>>{left}."))  # fmt: skip
    return question, f"{first}\n{last}\n#### {left}"


def _times(draw: Random, name: str, items: str) -> Problem:
    a, b = draw.randrange(5, 40), draw.randrange(2, 7)
    friend = draw.choice(("brother", "sister", "cousin", "teacher", "neighbor"))
    question = draw.choice((
        f"{name} has {a} {items}. The {friend} of {name} has {b} times as many. How many {items} do they have together?",
        f"The {friend} of {name} owns {b} times as many {items} as {name}, who owns {a}. How many {items} do both own?",
    ))  # fmt: skip
    first = draw.choice((f"The {friend} has {a}*{b}=<<{a}*{b}={a * b}>>{a * b} {items}.",
                         f"{b} times {a} is {a}*{b}=<<{a}*{b}={a * b}>>{a * b} {items} for the {friend}."))  # fmt: skip
    total = a + a * b
    last = draw.choice((f"Together they have {a}+{a * b}=<<{a}+{a * b}={total}>>{total} {items}.",
                        f"In all that is {a}+{a * b}=<<{a}+{a * b}={total}>>{total} {items}."))  # fmt: skip
    return question, f"{first}\n{last}\n#### {total}"


Family = Callable[[Random, str, str], Problem]
FAMILIES: tuple[Family, ...] = (_more_and_fewer, _change, _weeks, _half, _shared, _discount, _times)


def gsm8k(draw: Random, space: str) -> dict[str, Any]:
    """Draw one row with the fields of ``openai/gsm8k``."""
    question, answer = draw.choice(FAMILIES)(draw, draw.choice(NAMES[space]), draw.choice(ITEMS[space]))
    return {"question": question, "answer": answer}
