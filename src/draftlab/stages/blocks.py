"""Blocks of several drafted sequences along the target's own texts, computed exactly, without sampling a draft."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from pydantic import Field, field_validator, model_validator

from draftlab.core.measure import Measure
from draftlab.core.settings import NonNegativeInt
from draftlab.errors import UserError
from draftlab.files.registries import is_own
from draftlab.progress import progress
from draftlab.stages._batches import by_batch
from draftlab.stages._decoding import Inputs
from draftlab.stages._measures import BLOCK_EFFICIENCY
from draftlab.stages._stage import Bench, Facts, column, stage_of, timing
from draftlab.stages.live import PARTS, PLAIN, Contender, Contest, Contested, contenders, decode, rows_of, truncation

if TYPE_CHECKING:
    import pandas as pd

    from draftlab.engine.held_out import Request
    from draftlab.engine.replay_drafts import Blocks, Texts


CEILING = "ceiling"
"""The name, among the schemes, of a bound for all of them."""


class Settings(Contest):
    """Blocks of several drafted sequences along texts of the target, each text written once and shared by all contenders."""

    past_end: bool = Field(
        False, description="continue texts past their end to max_new_tokens, as serving benchmarks do"
    )
    by_depth: bool = Field(False, description="write one row for each number of drafted tokens that a block may keep")
    timed: NonNegativeInt = Field(
        0, description="requests of each batch that every contender also decodes live, to time its selection"
    )
    ceiling: bool = Field(
        False,
        description="also compute a bound for every verifier of as many i.i.d. sequences, at the blocks of optimal_block",
    )

    @field_validator("schemes")
    @classmethod
    def _drafted(cls, schemes: list[str]) -> list[str]:
        if PLAIN in schemes:
            raise ValueError("plain drafts nothing: leave it out, or decode live")
        return schemes

    @model_validator(mode="after")
    def _has_whole_blocks(self) -> Settings:
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
    identical: bool = column("whether all its drafts have the same temperature")
    size: str = column("tokens in the linear program, in words", optional=True)
    quantity: str = column("what ``above`` over ``below`` is", optional=True)
    above: float = column("numerator of the quantity", optional=True)
    below: float = column("denominator of the quantity", optional=True)
    select_ms: float = column("time of verification", "ms", timed=True, optional=True)


MEASURES = {
    "block_efficiency": BLOCK_EFFICIENCY,
    "acceptance": Measure("accepted", "judged", "acceptance at a judged depth", "probability"),
    "share": Measure("blocks", "all_blocks", "share of the target calls", "probability"),
    "quantity": Measure("above", "below", "acceptance [probability], tokens per target call, selection [ms]"),
}


def run(settings: Settings, inputs: Inputs, bench: Bench) -> tuple[pd.DataFrame, Facts]:
    """Let the target write texts, and count the blocks of every contender along them; contenders that cannot be replayed decode live."""
    import pandas as pd
    import torch

    from draftlab.engine.held_out import write_texts

    every = contenders(settings)
    if live := [contender.scheme for contender in every if settings.by_depth and not is_counted(contender)]:
        raise UserError(f"{live[0]} is decoded live, which has no counts by depth", remedy="leave one of the two out")
    work = inputs.open(settings)
    of_texts, of_decoding = (torch.Generator(work.target.device).manual_seed(settings.seed) for _ in range(2))
    eos_ids = [] if settings.past_end else work.tokenizer.eos_ids

    def decode_live(contender: Contender, batch: Sequence[Request]) -> pd.DataFrame:
        return pd.DataFrame(rows_of(decode(contender, batch, settings, work, eos_ids, of_decoding), batch, None))

    def tables(group: Sequence[Contender], batch: Sequence[Request]) -> Iterator[tuple[Contender, pd.DataFrame]]:
        """The rows of contenders that share a target, by replay of one text where that is possible, else by decoding."""
        sampling = settings.sampling(group[0].target_temperature, group[0].top_k)
        texts = write_texts(work, batch, sampling, settings.max_new_tokens, eos_ids, of_texts)
        for contender, blocks in _count(filter(is_counted, group), texts, settings):
            yield contender, _replayed_rows(blocks, batch, settings.by_depth)
        for contender in itertools.filterfalse(is_counted, group):
            decoded = decode_live(contender, batch)
            rows = decoded[["request_id", "blocks", "emitted", "accepted"]]
            yield contender, rows.assign(depth=-1, all_blocks=rows["blocks"], judged=decoded["visited"])

    def rows_of_batch(_: int, dataset: str, batch: Sequence[Request]) -> pd.DataFrame:
        frames = []
        for group in _grouped(every, lambda contender: (contender.target_temperature, contender.top_k)):
            bounds = sum(contender.scheme == "optimal_block" for contender in group) if settings.ceiling else 0
            compared = progress(tables(group, batch), f"{dataset} contenders", total=len(group) + bounds)
            for contender, rows in compared:
                if settings.timed and contender.scheme != CEILING:
                    timed = decode_live(contender, batch[: settings.timed])
                    costs = timed[["request_id", *PARTS]]
                    costs = costs.assign(timed_blocks=timed["blocks"], timed_emitted=timed["emitted"])
                    rows = rows.merge(costs, how="left", on="request_id")
                frames.append(rows.assign(dataset=dataset, **vars(contender)))
        return pd.concat(frames, ignore_index=True)

    rows = by_batch(work, bench, [of_texts, of_decoding], rows_of_batch)
    return rows.assign(draft_len=settings.draft_len, top_p=settings.top_p, seed=settings.seed), {}


def _grouped(every: Iterable[Contender], key: Callable[[Contender], tuple[float, ...]]) -> Iterator[list[Contender]]:
    for _, group in itertools.groupby(sorted(every, key=key), key):
        yield list(group)


def _count(group: Iterable[Contender], texts: Texts, settings: Settings) -> Iterator[tuple[Contender, Blocks]]:
    """Count the blocks of contenders that share a target; contenders with the same draft distributions are computed together."""
    from draftlab.core.sampling import restrict_pair, to_probs
    from draftlab.core.verify.optimum import optimum_iid
    from draftlab.engine.replay_drafts import blocks, ceiling, survival

    def distributions(contender: Contender) -> tuple[float, ...]:
        """What determines the draft distributions. Distinct drafts depend on their number; of other drafts every smaller number is a state."""
        is_distinct = getattr(contender.verifier, "is_distinct", False)
        return (*dict.fromkeys(contender.draft_temperatures), contender.num_drafts if is_distinct else 0)

    def key(contender: Contender) -> tuple[str, int, int]:
        return contender.verifier.name, contender.lp_threshold, contender.alphabet

    for alike in _grouped(group, distributions):
        verifiers = {key(contender): contender.verifier for contender in alike}
        samplings = [settings.sampling(temperature, alike[0].top_k) for temperature in distributions(alike[0])[:-1]]
        most = tuple(map(max, zip(*map(_sizes, alike), strict=True)))
        survivals = dict(zip(verifiers, survival(list(verifiers.values()), texts, samplings, most), strict=True))
        for contender in alike:
            survived = survivals[key(contender)]
            yield contender, blocks(survived, texts.lengths, _sizes(contender), settings.draft_len, contender.tail)
            if settings.ceiling and contender.scheme == "optimal_block":
                both = restrict_pair(texts.target_probs, to_probs(texts.draft_logits, samplings[0]))
                best = optimum_iid(*both, contender.num_drafts).cpu().numpy()
                bound = ceiling(survived, best, texts.lengths, contender.num_drafts, settings.draft_len)
                yield replace(contender, scheme=CEILING), bound


def is_counted(contender: Contender) -> bool:
    """Whether the verifier depends on the block so far only by the number of surviving drafts, and replay knows its tail.

    One of the user's own without ``survivors`` is decoded live, because its drafts may be too many to enumerate.
    """
    from draftlab.engine.replay_drafts import is_replayed

    verifier = contender.verifier
    if is_own(verifier.name) and getattr(verifier, "survivors", None) is None and not hasattr(verifier, "stops"):
        return False
    by_survivors = getattr(verifier, "stops", None) is None or getattr(verifier, "selected", None) is not None
    return by_survivors and is_replayed(contender.tail)


def _sizes(contender: Contender) -> tuple[int, ...]:
    """The number of drafts with each distribution."""
    is_same = len(set(contender.draft_temperatures)) == 1
    return (contender.num_drafts,) if is_same else (1, contender.num_drafts - 1)


def _replayed_rows(blocks: Blocks, batch: Sequence[Request], by_depth: bool) -> pd.DataFrame:
    import numpy as np
    import pandas as pd

    counts = {
        "blocks": blocks.stopped,
        "emitted": blocks.emitted,
        "judged": blocks.judged,
        "accepted": blocks.accepted,
    }
    numbers, total, depths = [request.number for request in batch], blocks.stopped.sum(1), blocks.stopped.shape[1]
    if by_depth:
        places = {"request_id": np.repeat(numbers, depths), "depth": np.tile(range(depths), len(batch))}
        columns = {name: values.ravel() for name, values in counts.items()}
        return pd.DataFrame(places | columns | {"all_blocks": total.repeat(depths)})
    sums = {name: values.sum(1) for name, values in counts.items()}
    return pd.DataFrame({"request_id": numbers, "depth": -1, **sums, "all_blocks": total})


def quantities(rows: pd.DataFrame) -> pd.DataFrame:
    """Acceptance, block efficiency and, where requests were timed, the cost of selection, each in a separate row."""
    import pandas as pd

    parts = {
        "acceptance": (rows["accepted"], rows["judged"]),
        "tokens per call": (rows["emitted"], rows["blocks"]),
    }
    if "select_seconds" in rows:  # requests were timed
        rows = rows.assign(select_ms=1000 * rows["select_seconds"])
        parts["selection, ms"] = (rows["select_ms"], rows["timed_blocks"])
    frames = [rows.assign(quantity=name, above=above, below=below) for name, (above, below) in parts.items()]
    return pd.concat(frames, ignore_index=True).query("below > 0")


def derive(rows: pd.DataFrame) -> pd.DataFrame:
    """Whether all drafts of a contender had the same temperature."""
    return rows.assign(identical=rows["first_temperature"] == rows["draft_temperature"])


STAGE = stage_of(__name__, split="eval", views={"truncation": truncation, "quantities": quantities})
