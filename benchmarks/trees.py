"""Verifiers of trees on the same drafts: the tokens of a target call, on average over what each accepts.

    python -m benchmarks.trees --target TARGET --draft DRAFT --answers ANSWERS

Live runs differ in their texts, their drafts and what is accepted by chance. Here all verifiers judge the same sequences, drafted after the same
beginnings of recorded answers, and the average over what a verifier accepts is exact. Only the drafts are random, and the gaps are paired.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float64, Int64
from pydantic import Field
from torch import Generator, Tensor

import benchmarks
from draftlab.core import stats
from draftlab.core.sampling import Sampling, draw, to_probs
from draftlab.core.settings import Count, Flat, NonNegativeInt, Settings
from draftlab.core.verify import TREE_VERIFIERS
from draftlab.engine.answers import Answer
from draftlab.errors import UserError
from draftlab.files.json_files import read_jsonl
from draftlab.models import LanguageModel, load_pair

AGAINST = "optimal_block"
"""The verifier with which the others are compared."""


class TreeBench(Settings):
    """What is drafted, and where."""

    num_drafts: list[Count] = Field([2, 4, 8], description="numbers of sequences; fewer are the first of the most")
    draft_len: Count = Field(4, description="tokens of a sequence")
    requests: Count = Field(100, description="recorded answers")
    starts: Count = Field(4, description="places in each answer after which sequences are drafted")
    top_k: NonNegativeInt = Field(0, description="most probable tokens that are kept; 0: all")
    draft_temperature: float = Field(1.0, gt=0, description="temperature of the draft; the target's is 1")
    seed: int = Field(0, description="seed of the places and of the drafts")


Drafted = tuple[
    Float64[Tensor, "drafts positions vocab"], Float64[Tensor, "drafts path vocab"], Int64[Tensor, "drafts path"]
]
"""The target's and the draft's distributions along the sequences, and their tokens."""


@torch.inference_mode()
def draft_after(
    text: list[int], target: LanguageModel, draft: LanguageModel, settings: TreeBench, generator: Generator
) -> Drafted:
    """Draft the most sequences, and let the target read them."""
    of_target, of_draft = (
        Sampling(temperature, top_k=settings.top_k or None) for temperature in (1.0, settings.draft_temperature)
    )
    count = max(settings.num_drafts)
    cache, token = draft.decoder().prefill([text], settings.draft_len)
    cache.take([0] * count)
    last, tokens, rows = token.expand(count), list[Tensor](), list[Tensor]()
    for _ in range(settings.draft_len):
        rows.append(to_probs(cache.extend(last[:, None])[:, 0], of_draft))
        last = draw(rows[-1], 1, generator)[:, 0]
        tokens.append(last)
    read, token = target.decoder().prefill([text], settings.draft_len + 1)
    read.take([0] * count)
    drafted = torch.stack(tokens, 1)
    logits = read.extend(torch.cat([token.expand(count)[:, None], drafted], 1))
    return to_probs(logits, of_target), torch.stack(rows, 1), drafted


def on_their_support(drafted: Drafted) -> Drafted:
    """The same on the tokens that one of the distributions has anywhere, which are few after top-k."""
    target, draft, tokens = drafted
    support = (target.sum((0, 1)) + draft.sum((0, 1))).nonzero()[:, 0]
    return target[..., support], draft[..., support], torch.searchsorted(support, tokens)


def bench(target: Path, draft: Path, answers: Path, settings: TreeBench) -> pd.DataFrame:
    """A row for each number of sequences and verifier: tokens of a target call, and the gap to ``AGAINST``, with intervals over requests."""
    target_model, draft_model, _ = load_pair(target, draft)
    generator, rng = torch.Generator().manual_seed(settings.seed), np.random.default_rng(settings.seed)
    recorded = [one for one in read_jsonl(answers, Answer) if len(one.answer_ids) > settings.starts]
    if len(recorded) < 2:
        raise UserError("fewer than two answers are long enough", file=answers, remedy="lower --starts")
    found = []
    for number, answer in enumerate(recorded[: settings.requests]):
        for place in rng.choice(len(answer.answer_ids), settings.starts, replace=False):
            text = [*answer.prompt_ids, *answer.answer_ids[: int(place)]]
            given = on_their_support(draft_after(text, target_model, draft_model, settings, generator))
            for count in settings.num_drafts:
                first = [part[:count] for part in given]
                for name, verifier in TREE_VERIFIERS.items():
                    kept = sum(stop.chance * stop.length for stop in verifier.stops(*first))
                    found.append({"request": number, "num_drafts": count, "verifier": name, "tokens": kept + 1})
    rows = []
    for count in settings.num_drafts:
        of_count = [one for one in found if one["num_drafts"] == count]
        tokens = pd.DataFrame(of_count).pivot_table("tokens", "request", "verifier", aggfunc="sum").to_dict("list")
        calls = [settings.starts] * len(tokens[AGAINST])
        for name in TREE_VERIFIERS:
            each = stats.ratio(tokens[name], calls)
            gap = stats.ratio_difference(tokens[name], calls, tokens[AGAINST], calls)
            row = {"num_drafts": count, "verifier": name, "n": each.n}
            row |= {"tokens": each.estimate, "low": each.low, "high": each.high}
            rows.append(row | {"gap": gap.estimate, "gap_low": gap.low, "gap_high": gap.high})
    return pd.DataFrame(rows)


def table(frame: pd.DataFrame) -> str:
    """The rows in Markdown."""
    head = ["drafts", "verifier", "tokens per target call", f"gap to {AGAINST}"]
    return benchmarks.markdown_table(
        head,
        [
            [
                row.num_drafts,
                row.verifier,
                f"{row.tokens:.3f} [{row.low:.3f}, {row.high:.3f}]",
                "" if row.verifier == AGAINST else f"{row.gap:+.3f} [{row.gap_low:+.3f}, {row.gap_high:+.3f}]",
            ]
            for row in frame.itertuples()
        ],
    )


def main(settings: Flat[TreeBench], *, target: Path, draft: Path, answers: Path, out: Path | None = None) -> None:
    """Compare all verifiers of trees on the same drafts.

    **Arguments:**
    - `target`: the folder of the target
    - `draft`: the folder of the draft
    - `answers`: answers.jsonl of the target's recorded answers
    - `out`: also write the rows as CSV
    """
    frame = bench(target, draft, answers, settings)
    benchmarks.show(frame, table(frame), out)


if __name__ == "__main__":
    benchmarks.run(main)
