"""Live decoding with several drafted sequences: tokens per target call, tokens per second, and where the time goes."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd
import torch

from draftlab.core.sampling import Sampling
from draftlab.core.verify.schemes import tail_of, token_verifier
from draftlab.data.prompts import Prompt
from draftlab.engine.generate import generate
from draftlab.engine.speculate import BlockTrace, Decoded, speculate
from draftlab.errors import UserError
from draftlab.files.json_files import read_jsonl
from draftlab.models import LanguageModel, Tokenizer
from draftlab.multidraft.quality import Score
from draftlab.train.training import progress

if TYPE_CHECKING:
    from draftlab.stages.live import Settings as Live

PLAIN = "plain"
"""The target alone, one token per call."""


@dataclass(frozen=True)
class Contender:
    """One way to decode; the fields are columns of the table. ``top_k`` 0 keeps every token."""

    scheme: str
    num_drafts: int
    draft_temperature: float
    first_temperature: float
    target_temperature: float
    top_k: int
    lp_threshold: int

    @property
    def draft_temperatures(self) -> list[float]:
        """One per drafted sequence."""
        return [self.first_temperature, *[self.draft_temperature] * (self.num_drafts - 1)]


def contenders(settings: Live) -> list[Contender]:
    """Every combination of the settings' lists, each once: a single draft has one temperature, and only one scheme has a program."""
    grid = itertools.product(
        settings.schemes,
        settings.num_drafts,
        settings.draft_temperature,
        settings.target_temperature,
        settings.top_k,
        settings.lp_threshold,
    )
    found = [Contender(s, k, t, settings.first_temperature or t, target, top, lp) for s, k, t, target, top, lp in grid]
    return list(dict.fromkeys(map(_normal, found)))


def _normal(contender: Contender) -> Contender:
    if not contender.scheme.startswith("importance_truncated"):
        contender = replace(contender, lp_threshold=0)
    if contender.scheme in ("single", "block"):
        contender = replace(contender, num_drafts=1, draft_temperature=contender.first_temperature)
    if contender.scheme == PLAIN:
        contender = replace(contender, num_drafts=0, draft_temperature=0.0, first_temperature=0.0)
    return contender


def live(
    settings: Live,
    target: LanguageModel,
    draft: LanguageModel,
    tokenizer: Tokenizer,
    prompts: Mapping[str, Path],
    template: str,
) -> pd.DataFrame:
    """Decode the held-out requests of each dataset, in a chat ``template``, with every contender.

    Contenders take turns on each batch of requests, so a machine that slows down slows all of them. One row per contender and request: its
    columns, ``dataset, request, batch, drafted, visited, accepted, emitted, blocks`` (target calls), and its share of the batch's
    ``draft_seconds, target_seconds, select_seconds`` (CPU time on a CPU); with ``quality``, the scores of its answer.
    """
    every = contenders(settings)
    generators = {c: torch.Generator(target.device).manual_seed(settings.seed) for c in every}
    batches = [
        (dataset, batch)
        for dataset, file in prompts.items()
        for batch in _batches(file, settings, target, tokenizer, template)
    ]
    frames = []
    _decode(every[0], batches[0][1][:2], settings, target, draft, tokenizer, generators[every[0]])  # warm-up
    for number in progress(range(len(batches)), "live", total=len(batches)):
        dataset, batch = batches[number]
        shift = number % len(every)
        for contender in every[shift:] + every[:shift]:
            decoded = _decode(contender, batch, settings, target, draft, tokenizer, generators[contender])
            rows = pd.DataFrame(_rows(decoded, batch, tokenizer if settings.quality else None))
            frames.append(rows.assign(dataset=dataset, batch=number, **vars(contender)))
    return pd.concat(frames, ignore_index=True).assign(
        draft_len=settings.draft_len, top_p=settings.top_p, seed=settings.seed
    )


@dataclass(frozen=True)
class _Request:
    number: int
    prompt_ids: list[int]
    reference: str | None


def _batches(
    file: Path, settings: Live, target: LanguageModel, tokenizer: Tokenizer, template: str
) -> Iterator[list[_Request]]:
    """The first requests that fit the context, in batches."""
    room = target.context_len - settings.max_new_tokens - 2 * settings.draft_len
    encoded = (
        (number, tokenizer.encode_prompt(prompt.text, template), prompt.reference)
        for number, prompt in enumerate(read_jsonl(file, Prompt))
    )
    fitting = (_Request(*request) for request in encoded if len(request[1]) <= room)
    kept = list(itertools.islice(fitting, settings.requests))
    if not kept:
        raise UserError("no prompt fits the target's context", file=file, remedy="lower max_new_tokens")
    for start in range(0, len(kept), settings.batch):
        yield kept[start : start + settings.batch]


def _decode(
    contender: Contender,
    batch: Sequence[_Request],
    settings: Live,
    target: LanguageModel,
    draft: LanguageModel,
    tokenizer: Tokenizer,
    generator: torch.Generator,
) -> Decoded:
    """Decode a batch; the seconds of each part are scaled to the process's CPU time where the models run on a CPU."""

    def sampling(temperature: float) -> Sampling:
        return Sampling(temperature, contender.top_k or None, settings.top_p)

    prompts, eos_ids, room = [r.prompt_ids for r in batch], tokenizer.eos_ids, settings.max_new_tokens
    distribution = sampling(contender.target_temperature)
    wall, cpu = time.perf_counter(), time.process_time()
    if contender.scheme == PLAIN:
        answers = generate(
            target, prompts, max_new_tokens=room, eos_ids=eos_ids, sampling=distribution, generator=generator
        )
        wall = time.perf_counter() - wall
        decoded = Decoded([BlockTrace.plain(answer) for answer in answers], max(map(len, answers)), 0.0, wall, 0.0)
    else:
        name, _, tail = contender.scheme.partition("+")
        decoded = speculate(
            target,
            draft,
            prompts,
            draft_len=settings.draft_len,
            max_new_tokens=room,
            eos_ids=eos_ids,
            num_drafts=contender.num_drafts,
            verifier=name if name == "block" else token_verifier(name, contender.lp_threshold or 5),
            tail=tail_of(tail),
            sampling=distribution,
            draft_sampling=[sampling(t) for t in contender.draft_temperatures],
            generator=generator,
        )
        wall = time.perf_counter() - wall
    scale = (time.process_time() - cpu) / wall if target.device.type == "cpu" else 1.0
    parts = (decoded.draft_seconds, decoded.target_seconds, decoded.verify_seconds)
    return Decoded(decoded.traces, decoded.blocks, *(scale * seconds for seconds in parts))


def _rows(
    decoded: Decoded, batch: Sequence[_Request], tokenizer: Tokenizer | None
) -> Iterator[dict[str, float | int | None]]:
    """What each request of a decoded batch did; with a tokenizer, also how good its answer is."""
    parts = ("draft_seconds", "target_seconds", "verify_seconds")
    seconds = {name.replace("verify", "select"): getattr(decoded, name) / len(batch) for name in parts}
    for request, trace in zip(batch, decoded.traces, strict=True):
        counts = {name: sum(getattr(trace, name)) for name in ("drafted", "visited", "accepted", "emitted")}
        scores = {}
        if tokenizer is not None:
            scores = vars(Score.of(tokenizer.decode(trace.answer_ids), request.reference))
        yield {"request": request.number, **counts, "blocks": len(trace.emitted), **seconds, **scores}
