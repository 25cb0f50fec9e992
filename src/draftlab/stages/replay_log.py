"""Replay a log with each option: prompt lookup, suffix decoding, the undistilled draft, the draft distilled on the log, one that keeps learning, lookup before a draft."""

from __future__ import annotations

from typing import TYPE_CHECKING

from draftlab.core.measure import Measure
from draftlab.stages._counts import UnroundedCounts
from draftlab.stages._inputs import Distillation
from draftlab.stages._measures import ALPHA, BLOCK_EFFICIENCY
from draftlab.stages._stage import Bench, Facts, column, stage_of
from draftlab.train.settings import ReplayLog

if TYPE_CHECKING:
    import pandas as pd


class Settings(ReplayLog):
    """Replay the requests of a log with every draft that could serve them."""


class Row(UnroundedCounts):
    """One request by one option at one draft length, in expectation over where its blocks are cut."""

    request_id: int = column("number among the recorded requests of its split, in the order of the log")
    split: str = column("train: requests of the stream; eval: held-out requests")
    option: str = column(
        "lookup: prompt lookup alone; suffix: suffix decoding, which remembers the answers of the stream; as_it_comes, distilled, kept_learning: the draft; lookup_first: lookup before the distilled draft; "
        "_confident: a block ends where the draft is unsure, or suffix decoding of the block so far; distilled_on_eighth, distilled_on_quarter: the draft, distilled on so much of the stream"
    )
    proposal: str = column("probabilistic: the draft samples; greedy: it proposes its most probable token")
    draft_len: int = column("tokens that the draft proposes per block", "tokens")
    threshold: float = column("probability of its token below which the draft ends a block; 0: never", "probability")
    drafted: float = column("tokens that were drafted", "tokens")
    empty: float = column("calls of the target for which nothing was drafted", "calls")
    steps: float = column(
        "steps of the draft model, or the tokens of its one pass; where lookup comes first and answers are sampled, as if a block went on with the answer after a rejected token",
        "steps",
    )
    whole: float = column(
        "blocks of full length whose tokens were all accepted: the draft model has to catch up", "blocks"
    )
    changes: float = column("calls of the target that read another number of tokens than the call before", "calls")
    prompt_tokens: int = column("tokens of the prompt", "tokens")
    optimum_2: float = column(
        "most that any verifier accepts of two drafts at each position, summed over all positions", "tokens"
    )
    optimum_4: float = column(
        "most that any verifier accepts of four drafts at each position, summed over all positions", "tokens"
    )


MEASURES = {
    "block_efficiency": BLOCK_EFFICIENCY,
    "alpha": ALPHA,
    "drafted_per_block": Measure("drafted", "blocks", "drafted tokens of a block", "tokens"),
}


def run(settings: Settings, inputs: Distillation, bench: Bench) -> tuple[pd.DataFrame, Facts]:
    """Replay every option; keep the distilled draft in ``out/draft``, and the one that learnt while it served in ``out/kept_learning``.

    A released head, or a draft that proposes a block in one pass, is not joined to prompt lookup, and its blocks do not end early: the engines
    that serve it do neither.
    """
    import pandas as pd

    from draftlab.engine.replay_suffixes import search_seconds
    from draftlab.files.weights import active_parameter_count
    from draftlab.models import LanguageModel
    from draftlab.models.places import ByPlace
    from draftlab.train import replay_log
    from draftlab.train.folders import Folders

    folders = Folders(inputs.answers, inputs.models, bench.kept)
    settings = replay_log.within_block(settings, inputs.models / settings.draft)
    train, held_out = (folders.recorded(settings.dataset, split, settings.temperature) for split in ("train", "eval"))

    def fresh() -> LanguageModel:
        return folders.draft_of_blocks(settings, inputs.dtype, max(settings.draft_len, *settings.draft_lens))

    def keep(model: LanguageModel, name: str) -> None:
        folders.once(("saved", name), lambda: folders.save(model, settings.draft, bench.out / name, train))

    draft, frames = fresh(), list[pd.DataFrame]()
    is_by_place = isinstance(draft, ByPlace)

    def add(split: str, *tables: pd.DataFrame) -> None:
        frames.extend(table.assign(split=split) for table in tables)

    for split, recorded in (("train", train), ("eval", held_out)):
        add(
            split,
            replay_log.lookup(recorded, settings),
            replay_log.fixed_lengths("as_it_comes", draft, recorded, settings),
        )
    add("eval", replay_log.suffixes(held_out, train, settings))
    rows, online = replay_log.keep_learning(draft, train, settings)
    add("train", rows)
    add("eval", replay_log.fixed_lengths("kept_learning", draft, held_out, settings))
    keep(draft, "kept_learning")
    draft = fresh()  # one at a time: a large draft that learns takes gigabytes
    effort, offline = replay_log.distil(draft, train, settings, bench.checkpoint())
    add("eval", replay_log.fixed_lengths("distilled", draft, held_out, settings))
    if not is_by_place:
        looked_up = replay_log.after_lookup(draft, held_out, settings)
        add("eval", replay_log.fixed_lengths("lookup_first", draft, held_out, settings, looked_up))
        if settings.thresholds and not settings.temperature:
            add("eval", replay_log.confident("distilled_confident", draft, held_out, settings))
            add("eval", replay_log.confident("lookup_first_confident", draft, held_out, settings, looked_up))
    keep(draft, "draft")
    learnt = {"as_it_comes": 0, "distilled": len(train.answers)}
    for option, share in replay_log.CURVE.items():
        if requests := range(len(train.answers) // share):
            draft = fresh()
            replay_log.distil(draft, train.take(requests), settings, bench.checkpoint())
            no_optimum = settings.model_copy(update={"ceiling": 0})
            add("eval", replay_log.fixed_lengths(option, draft, held_out, no_optimum))
            learnt[option] = len(requests)

    weights = {name: folders.parameters(name) for name in ("target", settings.draft)}
    active = {name: active_parameter_count(inputs.models / name) for name in weights}
    facts: Facts = {
        "parameters": weights,
        "active_parameters": active,
        "active_by_four_tokens": active_parameter_count(inputs.models / "target", tokens=4),
        "online": online,
        "offline": offline,
        "learnt": learnt,
    }
    middle = sorted(settings.draft_lens)[len(settings.draft_lens) // 2]
    facts |= {"search_seconds": search_seconds(held_out, train.answers, middle)}
    return pd.concat(frames, ignore_index=True), facts | folders.facts(effort)


STAGE = stage_of(__name__, inputs=Distillation)
