"""Drafts with and without a model, and both together, along recorded answers, at every fixed draft length and at lengths that the draft chooses."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

from pydantic import Field

from draftlab.core.measure import Measure
from draftlab.core.settings import Dataset, Distinct, NonNegativeInt, PairName
from draftlab.core.settings import Settings as Base
from draftlab.engine.answers import recorded_name
from draftlab.files.registries import choice, is_own, names, own
from draftlab.progress import progress
from draftlab.stages._measures import BLOCK_EFFICIENCY
from draftlab.stages._places import Places
from draftlab.stages._stage import Bench, Facts, Files, NoInputs, column, stage_of

SCHEDULE = "schedule"
EVERY = (*names("engine.length_rules", "RULES"), SCHEDULE)
"""The rules for the length of a block, beside those that every table has."""

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd
    from jaxtyping import Float64, Int64

    from draftlab.engine.answers import Answer
    from draftlab.engine.recording import TargetPass
    from draftlab.engine.replay_lengths import BlockCounts, Drafted

    LengthRule = str
    Drafter = str
    Rule = str
    Blocks = tuple[str, int, float, BlockCounts]  # rule, longest block, threshold
else:
    LengthRule = choice(EVERY, ["stream", "drafted"])
    Drafter = choice([], ["text", "most"])
    Rule = Literal["fixed", "tuned", *EVERY, "oracle"]

WITHOUT_MODEL = ("lookup", "suffix", "suffix_part")
"""Contenders that search texts alone."""
THRESHOLDS = tuple(step / 20 for step in range(20))
FIRST = 5
"""Drafted tokens of the first block of ``schedule``."""


class Settings(Base):
    """Prompt lookup, a distilled draft, and lookup before it, along recorded greedy answers; the target does not run."""

    dataset: Dataset = Field(description="dataset whose recorded answers are used")
    pair: PairName = "main"
    depth: int = Field(gt=0, default=8, description="drafted tokens of the longest block")
    tuning: int = Field(
        gt=0, default=100, description="answers of the stream on which the length and threshold are chosen"
    )
    length_rules: Distinct[LengthRule] = Field(
        ["confident"], description="rules for the length of a block, with thresholds that are chosen on the stream"
    )
    suffixes: bool = Field(False, description="also suffix decoding, which remembers the answers of the stream")
    remembers: Distinct[NonNegativeInt] = Field(
        [],
        description="also suffix decoding that remembers only so many answers of the stream, the first ones; numbers above those of the stream are left out",
    )
    drafters: Distinct[Drafter] = Field(
        [],
        description="also ways to draft of your own, FILE.py:OBJECT: a function of the text so far, as token ids, and of the most tokens that it may propose, which returns them",
    )
    cost_ratio: float = Field(ge=0, default=0.05, description="cost of a draft step, in target steps")
    verify_cost: list[float] = Field(
        [0.15],
        min_length=1,
        description="what 1, 2, ... drafted tokens add to the cost of a target step, in target steps; each further one adds as much as the last",
    )


class Row:
    """One held-out request, as one draft serves it by one rule for the length of a block."""

    request_id: int = column("number of the held-out request")
    contender: Literal["lookup", "suffix", "suffix_part", "before", "distilled", "lookup_first", "suffix_first"] = (
        column(
            "lookup, suffix (decoding), before or distilled: the draft; suffix_part: suffix decoding that remembers some answers of the stream, suffix: all of them; lookup_first: lookup, and the distilled draft where nothing is found; suffix_first: suffix decoding where it is sure of its first token, else the distilled draft"
        )
    )
    rule: Rule = column(
        "the length of a block: fixed; tuned, the fixed one that is best on the stream; schedule, as transformers' heuristic has it; oracle, what stands; each other, while the score of that name is high enough"
    )
    draft_len: int = column(
        "longest block; suffix decoding chooses its tokens for the longest of all, and a shorter block has the first of them",
        "tokens",
    )
    threshold: float = column("score below which a block ends; 0: never", "probability")
    blocks: int = column("calls of the target", "calls")
    emitted: int = column("tokens of the answer", "tokens")
    drafted: int = column("drafted tokens", "tokens")
    accepted: int = column("drafted tokens that were accepted", "tokens")
    steps: int = column("steps of the draft's model", "steps")
    cost: float = column("time of the answer by the cost model", "steps")
    answers: int = column(
        "answers of the stream that it remembers, or that its draft was distilled on", "answers", optional=True
    )


MEASURES = {
    "block_efficiency": BLOCK_EFFICIENCY,
    "speedup": Measure("emitted", "cost", "speed-up by the model of costs", "times plain decoding"),
    "accepted": Measure("accepted", "drafted", "accepted over drafted tokens"),
}


class Inputs(NoInputs):
    """Drafts by name, and the recorded answers to the stream and to the held-out requests.

    **Fields:**
    - `drafts`: each draft's name, then its folder
    - `train`: folder of the target's recorded answers to the stream
    - `held_out`: folder of its recorded answers to the held-out requests
    """

    same: ClassVar[tuple[str, ...]] = ("pair", "dataset")
    drafts: dict[str, Path]
    train: Path
    held_out: Path

    @classmethod
    def locate(cls, variants: Sequence[Any], places: Places) -> Self:
        """The undistilled draft, and the one that ``osd_offline`` distilled on this dataset."""
        pair, dataset = variants[0].pair, variants[0].dataset
        distilled = places.other_cell("osd_offline", dataset) / "draft"
        train, held_out = (places.recorded(pair) / recorded_name(dataset, split) for split in ("train", "eval"))
        return cls(
            drafts={"before": places.model("draft", pair), "distilled": distilled}, train=train, held_out=held_out
        )

    def reads(self, variants: Sequence[Any]) -> Files:
        answers = [folder / "answers.jsonl" for folder in (self.train, self.held_out)]
        return {"models": list(self.drafts.values()), "answers": answers}


def run(settings: Settings, inputs: Inputs, bench: Bench) -> tuple[pd.DataFrame, Facts]:
    """Draft from every position, tune each rule on the stream, and count the blocks of the held-out requests."""
    import pandas as pd

    from draftlab.engine.recording import load_pass
    from draftlab.engine.replay_lengths import draft_everywhere, proposed_everywhere
    from draftlab.engine.replay_suffixes import continue_everywhere
    from draftlab.models import load_model
    from draftlab.models.lookup import Lookup

    stream, held_out = load_pass(inputs.train), load_pass(inputs.held_out)
    both = stream.take(range(min(settings.tuning, len(stream.answers)))), held_out
    models = {name: load_model(path) for name, path in inputs.drafts.items()}
    last = list(models.values())[-1]
    contenders = {"lookup": Lookup(last), **models, "lookup_first": Lookup(last, joined=True)}
    drafted = {
        name: [draft_everywhere(draft, answers, settings.depth) for answers in both]
        for name, draft in progress(contenders.items(), "contenders")
    }
    for name in settings.drafters:
        propose = own(name, ("text", "most"))
        drafted[name] = [proposed_everywhere(name, propose, answers, settings.depth) for answers in both]
    if settings.suffixes:
        drafted |= _with_suffixes(both, stream.answers, drafted["distilled"], settings.depth)
    distilled_on = _distilled_on(inputs.drafts["distilled"], len(stream.answers))
    learnt = {"lookup": 0, "before": 0, "distilled": distilled_on, "lookup_first": distilled_on}
    frames, facts = [], Facts()
    for name, (tuning, measured) in drafted.items():
        rows, facts[name] = _replay(name, tuning, measured, settings)
        frames.append(rows.assign(answers=learnt.get(name, len(stream.answers))))
    for count in settings.remembers:
        if count <= len(stream.answers):
            some = continue_everywhere(held_out, stream.answers[:count], settings.depth)
            frames.append(_rows("suffix_part", _fixed("suffix_part", some), settings).assign(answers=count))
    return pd.concat(frames, ignore_index=True), facts


def _distilled_on(draft: Path, answers: int) -> int:
    """How many of the stream's answers a draft was distilled on, by the record of its cell; without a record, all."""
    from draftlab.files.json_files import read_object

    record = draft.parent / "run.json"
    requests = read_object(record).get("settings", {}).get("requests", 0) if record.is_file() else 0
    return min(requests or answers, answers)


def _with_suffixes(
    both: Sequence[TargetPass], remembered: Sequence[Answer], distilled: Sequence[Drafted], depth: int
) -> dict[str, list[Drafted]]:
    """What suffix decoding drafts, alone and before the distilled draft."""
    from draftlab.engine.replay_suffixes import continue_everywhere, first_or_else
    from draftlab.latency.lookup import SURE

    alone = [continue_everywhere(answers, remembered, depth) for answers in progress(both, "suffix decoding")]
    joined = [
        first_or_else(found, other, found.found[:, 0] & (found.confidence[:, 0] >= SURE))
        for found, other in zip(alone, distilled, strict=True)
    ]
    return {"suffix": alone, "suffix_first": joined}


def _replay(name: str, tuning: Drafted, measured: Drafted, settings: Settings) -> tuple[pd.DataFrame, Facts]:
    """The rows of a contender by every rule, and the fixed length and the thresholds that are best on the stream's answers."""
    from draftlab.engine.length_rules import schedule, scores_of
    from draftlab.engine.replay_lengths import cut, while_at_least

    def by_score(rule: str) -> Blocks:
        on_stream, on_measured = scores_of(rule, tuning, tuning), scores_of(rule, tuning, measured)

        def speed_on_stream(threshold: float) -> float:
            return speed(_cut(name, tuning, while_at_least(on_stream, threshold), asks=True), settings)

        least = max(THRESHOLDS, key=speed_on_stream)
        return rule, settings.depth, least, _cut(name, measured, while_at_least(on_measured, least), asks=True)

    fixed, on_stream = _fixed(name, measured), _fixed(name, tuning)
    best = max(range(settings.depth), key=lambda number: speed(on_stream[number][-1], settings))
    scored = [by_score(rule) for rule in settings.length_rules if rule != SCHEDULE]
    rules = [*fixed, ("tuned", *fixed[best][1:]), *scored]
    if SCHEDULE in settings.length_rules and not is_without_model(name):
        # Lookup drafts all that it finds, in transformers too.
        choose = schedule(min(FIRST, settings.depth), settings.depth)
        rules.append((SCHEDULE, settings.depth, 0.0, cut(measured, choose)))
    rules.append(("oracle", settings.depth, 0.0, cut(measured, measured.accepted)))
    facts = {"tuned": best + 1} | {rule: least for rule, _, least, _ in scored}
    return _rows(name, rules, settings), facts


def is_without_model(contender: str) -> bool:
    """Whether a contender drafts without a model, as the user's own ways to draft do."""
    return contender in WITHOUT_MODEL or is_own(contender)


def _fixed(name: str, drafted: Drafted) -> list[Blocks]:
    """The blocks of each fixed length."""
    lengths = range(1, drafted.depth + 1)
    return [("fixed", length, 0.0, _cut(name, drafted, drafted.fixed(length))) for length in lengths]


def _cut(name: str, drafted: Drafted, lengths: Int64[np.ndarray, " positions"], asks: bool = False) -> BlockCounts:
    """Blocks of these lengths; without a model, nothing is drafted where nothing is found, as on an engine."""
    import numpy as np

    from draftlab.engine.replay_lengths import cut

    if is_without_model(name):
        return cut(drafted, np.minimum(lengths, drafted.without_model()))
    return cut(drafted, lengths, asks)


def _rows(name: str, rules: Sequence[Blocks], settings: Settings) -> pd.DataFrame:
    """One row per request and rule."""
    import pandas as pd

    frames = []
    for rule, length, threshold, blocks in rules:
        counts = {key: getattr(blocks, key) for key in ("blocks", "drafted", "accepted", "steps", "emitted")}
        rows = pd.DataFrame(counts).assign(cost=cost(blocks, settings), rule=rule, draft_len=length)
        frames.append(rows.assign(request_id=range(len(rows)), contender=name, threshold=threshold))
    return pd.concat(frames, ignore_index=True)


def cost(blocks: BlockCounts, settings: Settings) -> Float64[np.ndarray, " requests"]:
    """The time of each answer in plain steps of the target, including drafting and verification."""
    import numpy as np

    added = np.array([0.0, *settings.verify_cost])
    drafted = np.arange(blocks.calls.shape[1])
    beyond = (drafted - len(added) + 1).clip(0)
    added = added[drafted.clip(max=len(added) - 1)] + beyond * (added[-1] - added[-2])
    return np.asarray(blocks.calls @ (1 + added) + settings.cost_ratio * blocks.steps)


def speed(blocks: BlockCounts, settings: Settings) -> float:
    """Emitted tokens per target step of time."""
    return float(blocks.emitted.sum() / cost(blocks, settings).sum())


STAGE = stage_of(__name__, split="eval")
