"""Live decoding with several drafted sequences: tokens per target call, tokens per second."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import Field

from draftlab.core.measure import Measure
from draftlab.core.settings import Count, Dataset, NotNegative, TopP, Whole
from draftlab.core.settings import Settings as Base
from draftlab.engine.settings import Answers
from draftlab.stages._inputs import Files, TargetAndDraft
from draftlab.stages._places import Places
from draftlab.stages._schemes import LiveScheme
from draftlab.stages._stage import Bench, Facts, Stage, column, timing

if TYPE_CHECKING:
    import pandas as pd


class Settings(Base):
    """Live decoding with several drafted sequences; ``datasets`` empty, or none of the pair's: all of the pair's.

    Every combination of the lists is a contender. A scheme ``NAME+block`` verifies by blocks once a single sequence is left.
    ``first_temperature``: of the first draft, where the drafts differ. ``top_k`` 0 keeps every token.
    """

    pair: str = "multidraft"
    datasets: list[Dataset] = []
    schemes: list[LiveScheme] = Field(min_length=1)
    num_drafts: list[Count] = Field(min_length=1)
    draft_len: int = Field(gt=0)
    draft_temperature: list[NotNegative] = Field(min_length=1)
    first_temperature: NotNegative | None = None
    target_temperature: list[NotNegative] = Field([1.0], min_length=1)
    top_k: list[Whole] = Field([0], min_length=1)
    top_p: TopP = 1.0
    lp_threshold: list[Count] = Field([5], min_length=1)
    requests: int = Field(gt=0)
    batch: int = Field(gt=0)
    max_new_tokens: int = Field(gt=0)
    quality: bool = Field(False, description="also ROUGE-L and BLEU of each answer")
    seed: Whole = 0


class Row:
    """One row of the table."""

    request: int = column("")
    drafted: int = column("")
    visited: int = column("")
    accepted: int = column("")
    emitted: int = column("")
    blocks: int = column("")
    draft_seconds: float = timing("")
    target_seconds: float = timing("")
    select_seconds: float = timing("")
    dataset: str = column("")
    batch: int = column("")
    scheme: str = column("")
    num_drafts: int = column("")
    draft_temperature: float = column("")
    first_temperature: float = column("")
    target_temperature: float = column("")
    top_k: int = column("")
    lp_threshold: int = column("")
    draft_len: int = column("")
    top_p: float = column("")
    seed: int = column("")
    rouge_l: float = column("", optional=True)
    bleu: float = column("", optional=True)


MEASURES = {
    "block_efficiency": Measure("emitted", "blocks", "block efficiency", "tokens per target call"),
    "token_rate": Measure("emitted", "seconds", "token rate", "tokens per second"),
    "score": Measure("score", None, "score (ROUGE-L or BLEU, 0 to 1)"),
    "rouge_l": Measure("rouge_l", None, "ROUGE-L"),
    "bleu": Measure("bleu", None, "BLEU"),
}


class Inputs(TargetAndDraft):
    """A pair, the held-out requests by dataset, and how its target answers."""

    prompts: dict[str, Path]
    answers: Answers


def locate(variants: Sequence[Settings], places: Places) -> Inputs:
    """The cell's pair, and the held-out requests of its datasets."""
    own = variants[0]
    return Inputs(
        target=places.model("target", own.pair),
        draft=places.model("draft", own.pair),
        prompts={name: places.prompts(name, "eval") for name in own.datasets},
        answers=places.answers[own.pair],
    )


def reads(variants: Sequence[Settings], inputs: Inputs) -> Files:
    """The models and the requests."""
    return {"models": [inputs.target, inputs.draft], "data": list(inputs.prompts.values())}


def run(settings: Settings, inputs: Inputs, bench: Bench) -> tuple[pd.DataFrame, Facts]:
    """Decode the held-out requests with every contender, in turns."""
    from draftlab.multidraft.live import live
    from draftlab.multidraft.pairs import load_models

    how = inputs.answers
    models = load_models(inputs.target, inputs.draft, how.dtype, how.device)
    return live(settings, *models, inputs.prompts, how.template), {}


def derive(rows: pd.DataFrame) -> pd.DataFrame:
    """All seconds of a request, and whether its drafts were of one temperature."""
    seconds = rows["draft_seconds"] + rows["target_seconds"] + rows["select_seconds"]
    return rows.assign(seconds=seconds, identical=rows["first_temperature"] == rows["draft_temperature"])


def quality(rows: pd.DataFrame) -> pd.DataFrame:
    """The score of each answer by the metric of its task: BLEU of translations, else ROUGE-L."""
    translated = rows["dataset"] == "wmt16"
    metric = translated.map({True: "BLEU", False: "ROUGE-L"})
    return rows.assign(metric=metric, score=rows["bleu"].where(translated, rows["rouge_l"]))


def truncation(rows: pd.DataFrame) -> pd.DataFrame:
    """The ``size`` of the linear program in words."""
    return rows.assign(size=[f"s = {size}" if size else "single" for size in rows["lp_threshold"]])


STAGE = Stage(
    settings=Settings,
    row=Row,
    measures=MEASURES,
    run=run,
    inputs=Inputs,
    locate=locate,
    reads=reads,
    derive=derive,
    views={"quality": quality, "truncation": truncation},
)
