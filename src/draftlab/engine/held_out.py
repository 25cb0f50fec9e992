"""Held-out requests in batches, and the texts that a target writes for them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Generator

from draftlab.core.sampling import Sampling, to_probs
from draftlab.engine.fitting import encoded
from draftlab.engine.generate import generate
from draftlab.engine.replay_drafts import Texts
from draftlab.engine.settings import Answers
from draftlab.errors import UserError
from draftlab.models import LanguageModel, Tokenizer, load_pair


@dataclass(frozen=True)
class Request:
    """A prompt that leaves room for its answer; ``number`` is its line in the held-out file."""

    number: int
    prompt_ids: list[int]
    reference: str | None


@dataclass(frozen=True)
class Work:
    """The models of a pair, and the requests that they decode: a dataset and a batch at a time."""

    target: LanguageModel
    draft: LanguageModel
    tokenizer: Tokenizer
    batches: list[tuple[str, list[Request]]]


def open_work(
    target: Path, draft: Path, answers: Answers, files: Mapping[str, Path], requests: int, size: int, after: int
) -> Work:
    """Load a pair, and encode the first ``requests`` of each dataset that leave room for ``after`` tokens, in batches of ``size``."""
    models = load_pair(target, draft, answers.dtype, answers.device)
    room = min(model.context_length for model in models[:2]) - after
    batches = [
        (dataset, batch)
        for dataset, file in files.items()
        for batch in _batches(file, requests, size, models[2], answers.template, room)
    ]
    return Work(*models, batches)


def _batches(
    file: Path, requests: int, size: int, tokenizer: Tokenizer, template: str, room: int
) -> Iterator[list[Request]]:
    fitting = (
        Request(number, ids, prompt.reference)
        for number, (prompt, ids) in enumerate(encoded(file, tokenizer, template))
        if not isinstance(ids, str) and len(ids) <= room
    )
    kept = list(itertools.islice(fitting, requests))
    if not kept:
        raise UserError(
            "no prompt fits the pair's context",
            file=file,
            remedy="lower max_new_tokens, or use models with a longer context",
        )
    for start in range(0, len(kept), size):
        yield kept[start : start + size]


def write_texts(
    work: Work,
    batch: Sequence[Request],
    sampling: Sampling,
    max_new_tokens: int,
    eos_ids: Sequence[int],
    generator: Generator,
) -> Texts:
    """Let the target answer a batch, and compute the logits of both models along its texts."""
    prompts = [request.prompt_ids for request in batch]
    with torch.inference_mode():
        written = generate(
            work.target, prompts, max_new_tokens=max_new_tokens, eos_ids=eos_ids, sampling=sampling, generator=generator
        )
        logits, draft_logits = (model.answer_logits(prompts, written) for model in (work.target, work.draft))
    token = torch.tensor(list(itertools.chain.from_iterable(written)), device=logits.device)
    return Texts(to_probs(logits, sampling), draft_logits, token, [len(text) for text in written])
