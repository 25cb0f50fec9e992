"""Generates rows in the raw schemas of the real datasets, and texts to pretrain a draft on, by seed.

There are two name spaces. The users of a deployed model ask about ``service``. ``public`` has other tables, names and products, and
a draft sees nothing else before distillation, so that its acceptance starts low.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from random import Random
from typing import Any

from draftlab.data import cleaners
from draftlab.data.fields import Cleaned
from draftlab.data.generators import chat, tasks
from draftlab.data.generators.code_search_net import code_search_net
from draftlab.data.generators.finance_alpaca import finance_alpaca
from draftlab.data.generators.gsm8k import gsm8k
from draftlab.data.generators.prose import paragraph
from draftlab.data.generators.spider import spider
from draftlab.errors import UserError

Generator = Callable[[Random, str], dict[str, Any]]
GENERATORS: dict[str, Generator] = {
    "spider": spider,
    "gsm8k": gsm8k,
    "code_search_net": code_search_net,
    "finance_alpaca": finance_alpaca,
    "arena": chat.arena,
    "cnn_dailymail": tasks.cnn_dailymail,
    "xsum": tasks.xsum,
    "wmt16": tasks.wmt16,
    "dolly": chat.dolly,
}
FOUR = ("spider", "gsm8k", "code_search_net", "finance_alpaca")  # the datasets of OSD's Table 1
EVAL_SHARE = 8  # one prompt in eight is reserved for evaluation
PATIENCE = 50


def _draws(dataset: str, part: str, seed: int, space: str) -> Iterator[tuple[dict[str, Any], Cleaned]]:
    """Yield rows and their prompts forever, with repeats. The checksum of a prompt decides whether it belongs to the eval split."""
    if dataset not in GENERATORS:
        raise UserError(f"no generator for {dataset!r}", remedy=f"use one of {', '.join(GENERATORS)}")
    generate, cleaner = GENERATORS[dataset], cleaners.CLEANERS[dataset]
    draw = Random(f"{seed}/{dataset}/{part}/{space}")
    while True:
        row = generate(draw, space)
        cleaned = cleaner(row)
        if (zlib.crc32(cleaned.text.encode()) % EVAL_SHARE == 0) == (part == "eval"):
            yield row, cleaned


def rows(dataset: str, split: str, *, seed: int) -> Iterator[dict[str, Any]]:
    """Yield raw rows of the service forever. No prompt occurs in both splits, and none repeats before ``PATIENCE`` draws in a row were repeats."""
    seen: set[int] = set()
    repeats = 0
    for row, cleaned in _draws(dataset, split, seed, "service"):
        key = hash(cleaned.text)
        if repeats < PATIENCE and key in seen:
            repeats += 1
            continue
        seen.add(key)
        repeats = repeats if repeats == PATIENCE else 0
        yield row


def public_documents(n: int, seed: int) -> Iterator[str]:
    """Yield ``n`` texts to pretrain a draft on: half of them prose, half answers from the ``public`` name space without their prompts."""
    draw = Random(f"{seed}/public")
    draws = [_draws(name, "public", seed, "public") for name in FOUR]
    for _ in range(n):
        if draw.random() < 0.5:
            yield paragraph(draw)
        else:
            yield next(draw.choice(draws))[1].reference or ""
