"""Which rows a token gets that the draft's vocabulary does not have (``draftlab.models.transplant``), measured along a target's recorded answers.

    python -m benchmarks.transplant --draft SMALL --target LARGE --answers FOLDER

For each way to make the rows of the embeddings and of the head: how often the draft's most probable token is the recorded one, and the mean
probability that it gives the recorded one. FOLDER is what ``draftlab answer`` wrote. Nothing is trained.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.functional import embedding_bag

import benchmarks
from draftlab.engine.answers import Answer
from draftlab.errors import UserError
from draftlab.files.json_files import read_jsonl
from draftlab.models import load_model, load_tokenizer
from draftlab.models.llama import Llama
from draftlab.models.transplant import spellings
from draftlab.models.vocabulary_rows import rows_of

Weigh = Callable[[int], list[float]]
WAYS: dict[str, Weigh] = {
    "first": lambda count: [1.0, *[0.0] * (count - 1)],
    "decaying": lambda count: [0.5**place for place in range(count)],
    "mean": lambda count: [1.0] * count,
    "rising": lambda count: [0.5**place for place in range(count)][::-1],
    "last": lambda count: [*[0.0] * (count - 1), 1.0],
}
"""The weights of the tokens that spell a token, by their number."""
AT_ONCE = 256
"""Positions whose logits are computed together."""


def rows(weight: Tensor, spelled: list[tuple[int, ...]], way: str) -> Tensor:
    """The weighted means of a matrix's rows, one for each spelling."""
    each = [WAYS[way](len(ids)) for ids in spelled]
    shares = torch.tensor([share / sum(weights) for weights in each for share in weights])
    starts = torch.tensor([0, *itertools.accumulate(map(len, spelled[:-1]))])
    flat = torch.tensor([row for ids in spelled for row in ids])
    return embedding_bag(flat, weight, starts, mode="sum", per_sample_weights=shares)


@torch.inference_mode()
def main(draft: Path, target: Path, answers: Path, requests: int = 40) -> None:
    """Compare ways to make the rows of a transplanted draft; prints one line for each pair.

    **Arguments:**
    - `draft`: the draft: a folder or a GGUF file of the Llama family
    - `target`: the target, likewise
    - `answers`: the folder of the target's recorded answers
    - `requests`: how many of them to read
    """
    model = load_model(draft)
    if not isinstance(model, Llama):
        raise UserError("not a model of the Llama family", file=draft, remedy="name another draft")
    found = spellings(load_tokenizer(target), load_tokenizer(draft))
    spelled = [found.get(token) or (model.vocab_size - 1,) for token in range(rows_of(target))]
    records = list(itertools.islice(read_jsonl(answers / "answers.jsonl", Answer), requests))
    expected = torch.tensor([token for record in records for token in record.answer_ids])
    alike = torch.tensor([len(ids) == 1 for ids in spelled])
    print(f"{len(expected):,} tokens, {float(alike[expected].float().mean()):.3f} of them tokens of the draft")
    head, embeddings = model.vocab_weight.detach(), model.embed.detach()
    for reads in WAYS:
        model.embed = torch.nn.Parameter(rows(embeddings, spelled, reads))
        states = torch.cat([_states(model, record) for record in records])
        for proposes in ("first", "decaying", "mean"):
            of_head = rows(head, spelled, proposes)
            right, mass = torch.zeros(2)
            for some, tokens in zip(torch.split(states, AT_ONCE), torch.split(expected, AT_ONCE), strict=True):
                logits = some @ of_head.T
                right += (logits.argmax(-1) == tokens).sum()
                mass += logits.softmax(-1).gather(1, tokens[:, None]).sum()
            shares = " ".join(f"{float(part) / len(expected):.3f}" for part in (right, mass))
            print(f"reads {reads:<8}  proposes {proposes:<8}  right, probability: {shares}", flush=True)


def _states(model: Llama, record: Answer) -> Tensor:
    """The states that predict the tokens of an answer."""
    text = torch.tensor([*record.prompt_ids, *record.answer_ids])
    places = torch.arange(len(record.prompt_ids) - 1, len(text) - 1)
    return model.states(text[None], places)


if __name__ == "__main__":
    benchmarks.run(main)
