"""Blocks of several drafted sequences along the target's own texts, computed exactly, without sampling a draft."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from pydantic import Field, field_validator, model_validator

from draftlab.core.measure import Measure
from draftlab.core.settings import Whole
from draftlab.errors import UserError
from draftlab.stages._stage import Bench, Facts, column, stage_of, timing
from draftlab.stages.live import (
    PARTS,
    PLAIN,
    Contender,
    Contest,
    Contested,
    Inputs,
    Request,
    batches,
    contenders,
    decode,
    rows_of,
    truncation,
)

if TYPE_CHECKING:
    import pandas as pd
    from torch import Generator

    from draftlab.core.sampling import Sampling
    from draftlab.engine.replay_drafts import Blocks, Texts
    from draftlab.models import LanguageModel


CEILING = "ceiling"
"""Stands among the schemes for what none of them exceeds."""


class Settings(Contest):
    """Blocks of several drafted sequences along texts of the target, each text written once and shared by all contenders."""

    past_end: bool = Field(
        False, description="continue texts past their end to max_new_tokens, as serving benchmarks do"
    )
    by_depth: bool = Field(False, description="one row for each number of drafted tokens that a block may keep")
    timed: Whole = Field(
        0, description="requests of each batch that every contender also decodes live, to time its selection"
    )
    ceiling: bool = Field(
        False, description="also a bound for every verifier of as many i.i.d. sequences, at the blocks of optimal_block"
    )

    @field_validator("schemes")
    @classmethod
    def _drafted(cls, schemes: list[str]) -> list[str]:
        if PLAIN in schemes:
            raise ValueError("plain drafts nothing: leave it out, or decode live")
        return schemes

    @model_validator(mode="after")
    def _has_whole_blocks(self) -> Settings:
        """Check that costs and the ceiling are asked for only with whole blocks."""
        if self.by_depth and (self.timed or self.ceiling):
            raise ValueError("by_depth cannot be combined with timed or ceiling")
        return self


class Row(Contested):
    """A request under a contender: expected counts, given its text."""

    depth: int = column(
        "number of drafted tokens that these blocks keep, and the depth of those judged; -1: all together"
    )
    blocks: float = column("target calls")
    all_blocks: float = column("all target calls of the request")
    emitted: float = column("tokens that these blocks emit", "tokens")
    judged: float = column("blocks whose drafted tokens were judged at this depth")
    accepted: float = column("of these, those whose token was accepted")
    timed_blocks: float = column("target calls of the request when it was decoded live", optional=True)
    timed_emitted: float = column("tokens emitted in these calls", "tokens", optional=True)
    draft_seconds: float = timing("share of its batch's time in the draft; CPU time on a CPU", optional=True)
    target_seconds: float = timing("the same in the target", optional=True)
    transform_seconds: float = timing("the same for turning the target's logits into distributions", optional=True)
    select_seconds: float = timing("the same in verification", optional=True)


class Derived:
    """What follows from the rows."""

    identical: bool = column("whether all its drafts have the same temperature")
    size: str = column("tokens in the linear program, in words", optional=True)
    quantity: str = column("what ``above`` over ``below`` is", optional=True)
    above: float = column("numerator of the quantity", optional=True)
    below: float = column("denominator of the quantity", optional=True)
    select_ms: float = column("time of verification", "ms", timed=True, optional=True)


MEASURES = {
    "block_efficiency": Measure("emitted", "blocks", "block efficiency", "tokens per target call"),
    "acceptance": Measure("accepted", "judged", "acceptance at a judged depth", "probability"),
    "share": Measure("blocks", "all_blocks", "share of the target calls", "probability"),
    "quantity": Measure("above", "below", "acceptance [probability], tokens per target call, selection [ms]"),
}


def run(settings: Settings, inputs: Inputs, bench: Bench) -> tuple[pd.DataFrame, Facts]:
    """Let the target write, and count the blocks of every contender along its texts; contenders that replay cannot handle decode live."""
    import pandas as pd
    import torch

    from draftlab.models import load_pair
    from draftlab.progress import progress

    answers = inputs.answers
    target, draft, tokenizer = load_pair(inputs.target, inputs.draft, answers.dtype, answers.device)
    room = target.context_len - settings.max_new_tokens - 2 * settings.draft_len
    every = contenders(settings)
    if whole := [own.scheme for own in every if settings.by_depth and not _is_replayed(own)]:
        raise UserError(f"{whole[0]} is decoded live, which has no counts by depth", remedy="leave out it or by_depth")
    work = [
        (dataset, batch)
        for dataset, file in inputs.prompts.items()
        for batch in batches(file, settings.requests, settings.batch, tokenizer, answers.template, room)
    ]
    generator, live = (torch.Generator(target.device).manual_seed(settings.seed) for _ in range(2))
    frames, eos_ids = [], [] if settings.past_end else tokenizer.eos_ids

    def answer(own: Contender, batch: Sequence[Request]) -> pd.DataFrame:
        prompts = [request.prompt_ids for request in batch]
        decoded = decode(own, prompts, settings, target, draft, eos_ids, live)
        return pd.DataFrame(rows_of(decoded, batch, None))

    for number in progress(range(len(work)), "blocks"):
        dataset, batch = work[number]
        for same in _grouped(every, lambda own: (own.target_temperature, own.top_k)):
            sampling = _sampling(settings, same[0].target_temperature, same[0].top_k)
            texts = write(target, draft, batch, sampling, settings.max_new_tokens, eos_ids, generator)
            counted = _count([own for own in same if _is_replayed(own)], texts, settings)
            decoded = (own for own in same if not _is_replayed(own))
            for own, rows in itertools.chain(
                ((own, _rows(found, batch, settings.by_depth)) for own, found in counted),
                ((own, _live_rows(answer(own, batch))) for own in decoded),
            ):
                if settings.timed and own.scheme != CEILING:
                    rows = rows.merge(_costs(answer(own, batch[: settings.timed])), how="left", on="request_id")
                frames.append(rows.assign(dataset=dataset, **vars(own)))
    rows = pd.concat(frames, ignore_index=True)
    return rows.assign(draft_len=settings.draft_len, top_p=settings.top_p, seed=settings.seed), {}


def _sampling(settings: Settings, temperature: float, top_k: int) -> Sampling:
    from draftlab.core.sampling import Sampling

    return Sampling(temperature, top_k or None, settings.top_p)


def _grouped(every: Sequence[Contender], key: Callable[[Contender], tuple[float, ...]]) -> Iterator[list[Contender]]:
    for _, group in itertools.groupby(sorted(every, key=key), key):
        yield list(group)


def write(
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
    """Count the blocks of contenders that share a target; those with the same draft distributions are computed together."""
    from draftlab.core.sampling import to_probs
    from draftlab.core.verify.bound import optimum_iid
    from draftlab.core.verify.exact import on_support
    from draftlab.engine.replay_drafts import blocks, ceiling, survival

    def kind(own: Contender) -> tuple[float, ...]:
        """The number of distinct drafts counts from the start; of others every smaller number is a state."""
        return (*dict.fromkeys(own.draft_temperatures), own.num_drafts if _is_distinct(own) else 0)

    for alike in _grouped(same, kind):
        verifiers = {(own.verifier.name, own.lp_threshold, own.alphabet): own.verifier for own in alike}
        samplings = [_sampling(settings, temperature, alike[0].top_k) for temperature in kind(alike[0])[:-1]]
        most = tuple(map(max, zip(*map(_groups, alike), strict=True)))
        survivals = survival(list(verifiers.values()), texts, samplings, most)
        found = dict(zip(verifiers, survivals, strict=True))
        for own in alike:
            survived = found[own.verifier.name, own.lp_threshold, own.alphabet]
            yield own, blocks(survived, texts.lengths, _groups(own), settings.draft_len, own.tail)
            if settings.ceiling and own.scheme == "optimal_block":
                both = on_support(texts.target_probs, to_probs(texts.draft_logits, samplings[0]))
                best = optimum_iid(*both, own.num_drafts).cpu().numpy()
                most_of = ceiling(survived, best, texts.lengths, own.num_drafts, settings.draft_len)
                yield replace(own, scheme=CEILING), most_of


def _is_replayed(own: Contender) -> bool:
    """Whether the verifier needs to know only the number of survivors of a block so far."""
    return getattr(own.verifier, "stops", None) is None or getattr(own.verifier, "selected", None) is not None


def _is_distinct(own: Contender) -> bool:
    return bool(getattr(own.verifier, "is_distinct", False))


def _groups(own: Contender) -> tuple[int, ...]:
    """The numbers of drafts that share a distribution."""
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


def _live_rows(decoded: pd.DataFrame) -> pd.DataFrame:
    rows = decoded[["request_id", "blocks", "emitted", "accepted"]]
    return rows.assign(depth=-1, all_blocks=rows["blocks"], judged=decoded["visited"])


def _costs(decoded: pd.DataFrame) -> pd.DataFrame:
    return decoded[["request_id", *PARTS]].assign(timed_blocks=decoded["blocks"], timed_emitted=decoded["emitted"])


def quantities(rows: pd.DataFrame) -> pd.DataFrame:
    """Acceptance, block efficiency and the cost of selection of each row, each as a row of its own."""
    import pandas as pd

    rows = rows.assign(select_ms=1000 * rows["select_seconds"])
    parts = {
        "acceptance": (rows["accepted"], rows["judged"]),
        "tokens per call": (rows["emitted"], rows["blocks"]),
        "selection, ms": (rows["select_ms"], rows["timed_blocks"]),
    }
    every = [rows.assign(quantity=name, above=above, below=below) for name, (above, below) in parts.items()]
    return pd.concat(every, ignore_index=True).query("below > 0")


def derive(rows: pd.DataFrame) -> pd.DataFrame:
    """Whether all drafts of a contender had the same temperature."""
    return rows.assign(identical=rows["first_temperature"] == rows["draft_temperature"])


STAGE = stage_of(__name__, split="eval", views={"truncation": truncation, "quantities": quantities})
