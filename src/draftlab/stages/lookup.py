"""Prompt lookup, a draft, and both together along recorded answers, at every fixed draft length and at lengths that the draft chooses."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

from pydantic import Field

from draftlab.core.measure import Measure
from draftlab.core.settings import Dataset
from draftlab.core.settings import Settings as Base
from draftlab.engine.answers import recorded_name
from draftlab.progress import progress
from draftlab.stages._places import Places
from draftlab.stages._stage import Bench, Facts, Files, NoInputs, column, stage_of

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd
    from jaxtyping import Float64

    from draftlab.engine.replay_lengths import Blocks

THRESHOLDS = tuple(step / 20 for step in range(20))


class Settings(Base):
    """Prompt lookup, a distilled draft, and lookup before it, along recorded greedy answers; the target does not run.

    ``depth`` is the longest block. A block costs 1 + ``verify_cost`` target steps, and each step of the draft's model costs ``cost_ratio``.
    The best fixed length and the confidence threshold are tuned on ``tuning`` answers of the stream.
    """

    dataset: Dataset
    pair: str = "main"
    depth: int = Field(gt=0, default=8)
    ngram: int = Field(gt=0, default=2, description="number of last tokens that must have occurred before")
    tuning: int = Field(
        gt=0, default=100, description="answers of the stream on which the length and threshold are chosen"
    )
    cost_ratio: float = Field(ge=0, default=0.05, description="cost of a draft step, in target steps")
    verify_cost: list[float] = Field(
        [0.15],
        min_length=1,
        description="what 1, 2, ... drafted tokens add to the cost of a target step; each further one adds as much as the last",
    )


class Row:
    """One held-out request, as one draft serves it by one rule for the length of a block."""

    request_id: int = column("number of the held-out request")
    split: str = column("train: requests of the stream; eval: held-out requests")
    contender: Literal["lookup", "before", "distilled", "lookup_first"] = column(
        "lookup, before or distilled: the draft; lookup_first: lookup, and the distilled draft where nothing is found"
    )
    rule: Literal["fixed", "tuned", "confident", "oracle"] = column(
        "the length of a block: fixed; tuned, the fixed one that is best on the stream; confident, while the draft is sure; oracle, what stands"
    )
    draft_len: int = column("longest block", "tokens")
    threshold: float = column("confidence below which a block ends; 0: never", "probability")
    blocks: int = column("calls of the target", "calls")
    emitted: int = column("tokens of the answer", "tokens")
    drafted: int = column("drafted tokens", "tokens")
    accepted: int = column("drafted tokens that were accepted", "tokens")
    steps: int = column("steps of the draft's model", "steps")
    cost: float = column("time of the answer by the cost model", "steps")


MEASURES = {
    "block_efficiency": Measure("emitted", "blocks", "block efficiency", "tokens per target call"),
    "speedup": Measure("emitted", "cost", "speed-up by the model of costs", "times plain decoding"),
    "accepted": Measure("accepted", "drafted", "accepted over drafted tokens"),
}


class Inputs(NoInputs):
    """Drafts by name, and the recorded answers to the stream and to the held-out requests."""

    drafts: dict[str, Path]
    train: Path
    held_out: Path

    @classmethod
    def locate(cls, variants: Sequence[Any], places: Places) -> Self:
        """The undistilled draft, and the one that ``osd_offline`` distilled on this dataset."""
        own = variants[0]
        recorded = places.recorded(own.pair)
        drafts = {
            "before": places.model("draft", own.pair),
            "distilled": places.other_cell("osd_offline", own.dataset) / "draft",
        }
        train, held_out = (recorded / recorded_name(own.dataset, split) for split in ("train", "eval"))
        return cls(drafts=drafts, train=train, held_out=held_out)

    def reads(self, variants: Sequence[Any]) -> Files:
        """The drafts and the answers."""
        answers = [folder / "answers.jsonl" for folder in (self.train, self.held_out)]
        return {"models": list(self.drafts.values()), "answers": answers}


def run(settings: Settings, inputs: Inputs, bench: Bench) -> tuple[pd.DataFrame, Facts]:
    """Draft from every position, tune each rule on the stream, and count the blocks of the held-out requests."""
    import numpy as np
    import pandas as pd

    from draftlab.engine.recording import load_pass
    from draftlab.engine.replay_lengths import Drafted, cut, draft_everywhere
    from draftlab.latency.lookup import SURE
    from draftlab.models import load_model
    from draftlab.models.lookup import Lookup

    learnt, held_out = load_pass(inputs.train), load_pass(inputs.held_out)
    learnt = learnt.take(range(min(settings.tuning, len(learnt.answers))))
    models = {name: load_model(path) for name, path in inputs.drafts.items()}
    last = list(models.values())[-1]
    contenders = {
        "lookup": Lookup(last, ngram=settings.ngram),
        **models,
        "lookup_first": Lookup(last, joined=True, ngram=settings.ngram),
    }
    parts, facts = [], Facts()
    for name, draft in progress(contenders.items(), "contenders"):
        tuning, found = (draft_everywhere(draft, own, settings.depth) for own in (learnt, held_out))
        lengths, alone = range(1, settings.depth + 1), name == "lookup"

        def fixed(own: Drafted, length: int, alone: bool = alone) -> Blocks:
            # Lookup alone drafts nothing where it finds nothing, as on an engine.
            return cut(own, own.fixed(length) if not alone else np.minimum(length, own.confident(SURE)))

        def confident(own: Drafted, least: float, alone: bool = alone) -> Blocks:
            return fixed(own, settings.depth) if alone else cut(own, own.confident(least), asks=True)

        best = max(lengths, key=lambda length: speed(fixed(tuning, length), settings))
        least = max(THRESHOLDS, key=lambda least: speed(confident(tuning, least), settings))
        rules = [("fixed", length, 0.0, fixed(found, length)) for length in lengths]
        rules += [
            ("tuned", best, 0.0, fixed(found, best)),
            ("confident", settings.depth, least, confident(found, least)),
            ("oracle", settings.depth, 0.0, cut(found, found.oracle())),
        ]
        for rule, length, threshold, blocks in rules:
            counts = {key: getattr(blocks, key) for key in ("blocks", "drafted", "accepted", "steps", "emitted")}
            table = pd.DataFrame(counts).assign(cost=cost(blocks, settings), rule=rule, draft_len=length)
            parts.append(table.assign(request_id=range(len(table)), contender=name, threshold=threshold))
        facts[name] = {"tuned": best, "threshold": least}
    return pd.concat(parts, ignore_index=True), facts


def cost(blocks: Blocks, settings: Settings) -> Float64[np.ndarray, " requests"]:
    """The time of each answer in plain steps of the target, including drafting and verification."""
    import numpy as np

    added = np.array([0.0, *settings.verify_cost])
    drafted = np.arange(blocks.calls.shape[1])
    beyond = (drafted - len(added) + 1).clip(0)
    added = added[drafted.clip(max=len(added) - 1)] + beyond * (added[-1] - added[-2])
    return np.asarray(blocks.calls @ (1 + added) + settings.cost_ratio * blocks.steps)


def speed(blocks: Blocks, settings: Settings) -> float:
    """Emitted tokens per target step of time."""
    return float(blocks.emitted.sum() / cost(blocks, settings).sum())


STAGE = stage_of(__name__, split="eval")
