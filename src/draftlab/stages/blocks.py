"""Blocks of several drafted sequences along the target's own texts: exactly, without a sampled draft."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from pydantic import Field, field_validator

from draftlab.core.measure import Measure
from draftlab.errors import UserError
from draftlab.stages._stage import Bench, Facts, Stage, column
from draftlab.stages.live import (
    PLAIN,
    Contender,
    Contest,
    Contested,
    Inputs,
    Request,
    batches,
    contenders,
    locate,
    reads,
    truncation,
)

if TYPE_CHECKING:
    import pandas as pd
    from torch import Generator

    from draftlab.core.sampling import Sampling
    from draftlab.core.verify.token import TokenVerifier
    from draftlab.engine.replay_drafts import Blocks, Texts
    from draftlab.models import LanguageModel


class Settings(Contest):
    """Blocks of several drafted sequences along texts of the target, each text written once and shared by all contenders."""

    past_end: bool = Field(
        False, description="texts go on past their end to max_new_tokens, as serving benchmarks let them"
    )
    by_depth: bool = Field(False, description="a row for each number of drafted tokens that a block may keep")

    @field_validator("schemes")
    @classmethod
    def _drafted(cls, schemes: list[str]) -> list[str]:
        if PLAIN in schemes:
            raise ValueError("plain drafts nothing: leave it out, or decode live")
        return schemes


class Row(Contested):
    """A request under a contender: expected counts, given its text."""

    depth: int = column("drafted tokens that these blocks keep, and the depth of those judged; -1: all together")
    blocks: float = column("target calls")
    all_blocks: float = column("target calls of the request, whatever they keep")
    emitted: float = column("tokens that these blocks emit", "tokens")
    judged: float = column("blocks whose drafted tokens were judged at this depth")
    accepted: float = column("of these, those where one stands")


class Derived:
    """What follows from the rows."""

    identical: bool = column("whether all its drafts are of one temperature")
    size: str = column("tokens in the linear program, in words", optional=True)


MEASURES = {
    "block_efficiency": Measure("emitted", "blocks", "block efficiency", "tokens per target call"),
    "acceptance": Measure("accepted", "judged", "acceptance at a judged depth", "probability"),
    "share": Measure("blocks", "all_blocks", "share of the target calls", "probability"),
}


def run(settings: Settings, inputs: Inputs, bench: Bench) -> tuple[pd.DataFrame, Facts]:
    """Let the target write, and count the blocks of every contender along what it wrote."""
    import pandas as pd
    import torch

    from draftlab.models import load_pair
    from draftlab.train.training import progress

    answers = inputs.answers
    target, draft, tokenizer = load_pair(inputs.target, inputs.draft, answers.dtype, answers.device)
    room = target.context_len - settings.max_new_tokens - 2 * settings.draft_len
    every = contenders(settings)
    work = [
        (dataset, batch)
        for dataset, file in inputs.prompts.items()
        for batch in batches(file, settings, tokenizer, answers.template, room)
    ]
    generator = torch.Generator(target.device).manual_seed(settings.seed)
    frames, eos_ids = [], [] if settings.past_end else tokenizer.eos_ids
    for number in progress(range(len(work)), "blocks", total=len(work)):
        dataset, batch = work[number]
        for same in _grouped(every, lambda own: (own.target_temperature, own.top_k)):
            sampling = _sampling(settings, same[0].target_temperature, same[0].top_k)
            texts = _write(target, draft, batch, sampling, settings.max_new_tokens, eos_ids, generator)
            for own, found in _count(same, texts, settings):
                frames.append(_rows(found, batch, settings.by_depth).assign(dataset=dataset, **vars(own)))
    rows = pd.concat(frames, ignore_index=True)
    return rows.assign(draft_len=settings.draft_len, top_p=settings.top_p, seed=settings.seed), {}


def _sampling(settings: Settings, temperature: float, top_k: int) -> Sampling:
    from draftlab.core.sampling import Sampling

    return Sampling(temperature, top_k or None, settings.top_p)


def _grouped(every: Sequence[Contender], key: Callable[[Contender], tuple[float, ...]]) -> Iterator[list[Contender]]:
    for _, group in itertools.groupby(sorted(every, key=key), key):
        yield list(group)


def _write(
    target: LanguageModel,
    draft: LanguageModel,
    batch: Sequence[Request],
    sampling: Sampling,
    room: int,
    eos_ids: Sequence[int],
    generator: Generator,
) -> Texts:
    """The target's texts, with the logits of both models along them."""
    import torch

    from draftlab.core.sampling import to_probs
    from draftlab.engine.generate import generate
    from draftlab.engine.replay_drafts import Texts

    prompts = [request.prompt_ids for request in batch]
    with torch.inference_mode():
        written = generate(
            target, prompts, max_new_tokens=room, eos_ids=eos_ids, sampling=sampling, generator=generator
        )
        own, drafted = (model.answer_logits(prompts, written) for model in (target, draft))
    token = torch.tensor(list(itertools.chain.from_iterable(written)), device=own.device)
    return Texts(to_probs(own, sampling), drafted, token, [len(text) for text in written])


def _count(same: Sequence[Contender], texts: Texts, settings: Settings) -> Iterator[tuple[Contender, Blocks]]:
    """The blocks of contenders that share a target; those that share their drafts' distributions are worked out together."""
    from draftlab.engine.replay_drafts import blocks, survival

    def kind(own: Contender) -> tuple[float, ...]:
        """The number of distinct drafts counts from the start; of others every smaller number is a state."""
        return (*dict.fromkeys(own.draft_temperatures), own.num_drafts if _verifier(own).is_distinct else 0)

    for alike in _grouped(same, kind):
        verifiers = {(_verifier(own).name, own.lp_threshold, own.alphabet): _verifier(own) for own in alike}
        samplings = [_sampling(settings, temperature, alike[0].top_k) for temperature in kind(alike[0])[:-1]]
        most = tuple(map(max, zip(*map(_groups, alike), strict=True)))
        survivals = survival(list(verifiers.values()), texts, samplings, most)
        found = dict(zip(verifiers, survivals, strict=True))
        for own in alike:
            survived = found[_verifier(own).name, own.lp_threshold, own.alphabet]
            yield own, blocks(survived, texts.lengths, _groups(own), settings.draft_len, own.tail)


def _verifier(own: Contender) -> TokenVerifier:
    from draftlab.core.verify.tree import TreeVerifier

    if isinstance(own.verifier, TreeVerifier):
        raise UserError(f"{own.scheme} verifies whole trees, which replay does not know", remedy="decode live")
    return own.verifier


def _groups(own: Contender) -> tuple[int, ...]:
    """How many of its drafts share a distribution."""
    return (own.num_drafts,) if len(set(own.draft_temperatures)) == 1 else (1, own.num_drafts - 1)


def _rows(found: Blocks, batch: Sequence[Request], by_depth: bool) -> pd.DataFrame:
    import numpy as np
    import pandas as pd

    names = {"blocks": found.stopped, "emitted": found.emitted, "judged": found.judged, "accepted": found.accepted}
    number = [request.number for request in batch]
    if not by_depth:
        sums = {name: values.sum(1) for name, values in names.items()}
        return pd.DataFrame({"request_id": number, "depth": -1, **sums, "all_blocks": sums["blocks"]})
    depths = found.stopped.shape[1]
    columns = {name: values.ravel() for name, values in names.items()}
    whole = found.stopped.sum(1).repeat(depths)
    return pd.DataFrame(
        {"request_id": np.repeat(number, depths), "depth": np.tile(range(depths), len(batch)), **columns}
    ).assign(all_blocks=whole)


def derive(rows: pd.DataFrame) -> pd.DataFrame:
    """Whether the drafts of a contender were of one temperature."""
    return rows.assign(identical=rows["first_temperature"] == rows["draft_temperature"])


STAGE = Stage(
    settings=Settings,
    row=Row,
    measures=MEASURES,
    run=run,
    split="eval",
    inputs=Inputs,
    locate=locate,
    reads=reads,
    derived=Derived,
    derive=derive,
    views={"truncation": truncation},
)
