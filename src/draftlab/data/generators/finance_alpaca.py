"""Questions about money with short advice, as finance-alpaca's rows: the answer takes up who asks and what for."""

from __future__ import annotations

from random import Random
from typing import Any

PRODUCTS = {
    "service": ("an index fund", "a savings account", "a Roth IRA", "a 401k plan", "a bond fund", "a money market fund",
                "a fixed mortgage", "a credit card", "a car loan", "term life insurance", "a dividend stock", "a CD ladder"),
    "public": ("a gold coin", "a rental flat", "a municipal bond", "a student loan", "an annuity", "a brokerage account",
               "a health plan", "a business loan", "a currency fund", "a pension plan", "a growth stock", "a trust fund"),
}  # fmt: skip
GOALS = ("retirement", "a first house", "a new car", "college costs", "an emergency fund", "a wedding", "lower taxes",
         "a small business")  # fmt: skip
JOBS = {
    "service": ("nurse", "teacher", "driver", "engineer", "cook", "student", "farmer", "clerk", "painter", "lawyer"),
    "public": ("pilot", "writer", "baker", "doctor", "singer", "guard", "plumber", "miner", "tailor", "judge"),
}
QUESTIONS = (
    "Should I use {product} for {goal}?",
    "How does {product} help me with {goal}?",
    "What are the risks of {product} when I save for {goal}?",
    "Is {product} better than cash for {goal}?",
    "When is it too late to start {product} for {goal}?",
)
OPENINGS = (
    ("Yes, {product} can work well for {goal}.", "It depends, but {product} is often a good fit for {goal}."),
    ("In short, {product} lets your money grow until you need it for {goal}.",
     "Over time {product} builds up what you need for {goal}."),
    ("The main risk of {product} is that it loses value before you pay for {goal}.",
     "With {product} you may have to sell at a bad time when {goal} is due."),
    ("Usually {product} beats cash for {goal}.", "For {goal} cash is safer, but {product} earns more."),
    ("It is not too late to start {product} for {goal}.", "Start {product} now, because {goal} will not wait."),
)  # fmt: skip
PERSONAS = (
    "As a {age} year old {job} you still have time to wait.",
    "A {job} at {age} should keep some cash as well.",
    "At {age} a {job} can take a little more risk.",
)
ADVICE = (
    "Check the fees before you sign.", "Put in the same amount each month.", "Keep three months of income aside.",
    "Talk to an adviser about the taxes.", "Pay back high interest debt first.", "Do not put in more than you can lose.",
)  # fmt: skip


def finance_alpaca(draw: Random, space: str) -> dict[str, Any]:
    """Draw one row with the fields of ``gbharti/finance-alpaca``; the persona stands in ``input`` one time in four."""
    product, goal, job = draw.choice(PRODUCTS[space]), draw.choice(GOALS), draw.choice(JOBS[space])
    age, kind = draw.randrange(21, 66), draw.randrange(len(QUESTIONS))
    question, persona = QUESTIONS[kind].format(product=product, goal=goal), f"I am a {age} year old {job}."
    opening = draw.choice(OPENINGS[kind]).format(product=product, goal=goal)
    middle = draw.choice(PERSONAS).format(age=age, job=job)
    answer = f"{opening} {middle} {draw.choice(ADVICE)}"
    inside = draw.random() < 0.75
    return {
        "instruction": f"{persona} {question}" if inside else question,
        "input": "" if inside else persona,
        "output": answer,
        "text": "",
    }
