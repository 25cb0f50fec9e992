"""Held-out requests in batches, and the texts that a target writes for them: shared by the stages that decode with several drafts."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from pydantic import Field

from draftlab.core.settings import Dataset, NonNegativeInt, TopP
from draftlab.core.settings import Settings as Base
from draftlab.engine.settings import Answers
from draftlab.errors import UserError
from draftlab.stages._inputs import TargetAndDraft
from draftlab.stages._places import Places
from draftlab.stages._stage import Files, column

if TYPE_CHECKING:
    from torch import Generator

    from draftlab.core.sampling import Sampling
    from draftlab.engine.replay_drafts import Texts
    from draftlab.models import LanguageModel, Tokenizer


class Decoding(Base):
    """Held-out requests are decoded in batches. If ``datasets`` is empty or names none of the pair's, all of the pair's are used. ``top_k`` 0 keeps
    every token."""

    pair: str = "multidraft"
    datasets: list[Dataset] = []
    draft_len: int = Field(gt=0)
    top_p: TopP = 1.0
    requests: int = Field(gt=0)
    batch: int = Field(gt=0)
    max_new_tokens: int = Field(gt=0)
    seed: NonNegativeInt = 0

    def sampling(self, temperature: float, top_k: int) -> Sampling:
        """How a model is sampled at this temperature."""
        from draftlab.core.sampling import Sampling

        return Sampling(temperature, top_k or None, self.top_p)


class DecodedRow:
    """A request, and how target and draft were sampled."""

    request_id: int = column("line of the request in its dataset's held-out file")
    dataset: str = column("dataset of the request")
    target_temperature: float = column("temperature of the target")
    top_k: int = column("most probable tokens kept; 0: all")
    top_p: float = column("probability mass kept")
    seed: int = column("seed of the sampling")


class Inputs(TargetAndDraft):
    """A pair, the held-out requests by dataset, and how its target answers."""

    prompts: dict[str, Path]
    answers: Answers

    @classmethod
    def locate(cls, variants: Sequence[Any], places: Places) -> Self:
        settings = variants[0]
        return cls(
            target=places.model("target", settings.pair),
            draft=places.model("draft", settings.pair),
            prompts={name: places.prompts(name, "eval") for name in settings.datasets},
            answers=places.answers[settings.pair],
        )

    def reads(self, variants: Sequence[Any]) -> Files:
        return {"models": [self.target, self.draft], "data": list(self.prompts.values())}


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


def open_work(settings: Decoding, inputs: Inputs) -> Work:
    """Load the pair, and encode the first requests of each dataset that leave room for an answer and two blocks."""
    from draftlab.models import load_pair

    template, pair = inputs.answers.template, (inputs.target, inputs.draft)
    target, draft, tokenizer = load_pair(*pair, inputs.answers.dtype, inputs.answers.device)
    room = target.context_len - settings.max_new_tokens - 2 * settings.draft_len
    batches = [
        (dataset, batch)
        for dataset, file in inputs.prompts.items()
        for batch in _batches(file, settings.requests, settings.batch, tokenizer, template, room)
    ]
    return Work(target, draft, tokenizer, batches)


def _batches(
    file: Path, requests: int, size: int, tokenizer: Tokenizer, template: str, room: int
) -> Iterator[list[Request]]:
    """The first requests that fit into ``room`` tokens, in batches."""
    from draftlab.data.prompts import Prompt
    from draftlab.files.json_files import read_jsonl

    encoded = (
        Request(number, tokenizer.encode_prompt(prompt.text, template), prompt.reference)
        for number, prompt in enumerate(read_jsonl(file, Prompt))
    )
    fitting = (request for request in encoded if len(request.prompt_ids) <= room)
    kept = list(itertools.islice(fitting, requests))
    if not kept:
        raise UserError("no prompt fits the target's context", file=file, remedy="lower max_new_tokens")
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
    import torch

    from draftlab.core.sampling import to_probs
    from draftlab.engine.generate import generate
    from draftlab.engine.replay_drafts import Texts

    prompts = [request.prompt_ids for request in batch]
    with torch.inference_mode():
        written = generate(
            work.target,
            prompts,
            max_new_tokens=max_new_tokens,
            eos_ids=eos_ids,
            sampling=sampling,
            generator=generator,
        )
        logits, draft_logits = (model.answer_logits(prompts, written) for model in (work.target, work.draft))
    token = torch.tensor(list(itertools.chain.from_iterable(written)), device=logits.device)
    return Texts(to_probs(logits, sampling), draft_logits, token, [len(text) for text in written])
