"""Specialists of several topics, learnt online, as non-identical drafts; against routing and one shared draft."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from pydantic import Field

from draftlab.core.measure import Measure
from draftlab.core.settings import Dataset, Whole
from draftlab.core.settings import Settings as Base
from draftlab.stages._inputs import Files, TargetAndDraft
from draftlab.stages._places import Places, recorded_name
from draftlab.stages._schemes import Verifier
from draftlab.stages._stage import Bench, Facts, Stage, column
from draftlab.train.settings import Loss, LossPositions

if TYPE_CHECKING:
    import pandas as pd


class Settings(Base):
    """Specialists of several topics, learnt online, as non-identical drafts; against routing and copies of one shared draft."""

    pair: str = "main"
    topics: list[Dataset] = Field(min_length=2)
    schemes: list[Verifier] = Field(["importance_truncated", "specinfer"], min_length=1)
    stream: int = Field(gt=0, description="requests of each topic that drafts learn from")
    requests: int = Field(gt=0, description="held-out requests of each topic that are decoded")
    update_interval: int = Field(gt=0)
    learning_rate: float = Field(gt=0)
    loss: Loss = "forward_kl"
    loss_positions: LossPositions = "all"
    draft_len: int = Field(gt=0)
    max_new_tokens: int = Field(gt=0)
    temperature: float = Field(1.0, gt=0)
    device: Literal["cpu", "cuda"] = "cpu"
    seeds: list[Whole] = Field(min_length=1)


class Row:
    """One row of the table."""

    accepted: int = column("")
    visited: int = column("")
    emitted: int = column("")
    blocks: int = column("")
    request: int = column("")
    seed: int = column("")
    dataset: str = column("")
    drafts: str = column("")
    num_drafts: int = column("")
    scheme: str = column("")
    mixture: str = column("")


MEASURES = {
    "block_efficiency": Measure("emitted", "blocks", "block efficiency", "tokens per target call"),
}


class Inputs(TargetAndDraft):
    """A pair, and the folder of the target's recorded answers."""

    answers: Path


def locate(variants: Sequence[Settings], places: Places) -> Inputs:
    """The cell's pair and its answers."""
    pair = variants[0].pair
    return Inputs(target=places.model("target", pair), draft=places.model("draft", pair), answers=places.recorded(pair))


def reads(variants: Sequence[Settings], inputs: Inputs) -> Files:
    """The models, and the answers to both splits of every topic."""
    topics = dict.fromkeys(topic for own in variants for topic in own.topics)
    names = [recorded_name(topic, split) for topic in topics for split in ("train", "eval")]
    return {
        "models": [inputs.target, inputs.draft],
        "answers": [inputs.answers / name / "answers.jsonl" for name in names],
    }


def run(settings: Settings, inputs: Inputs, bench: Bench) -> tuple[pd.DataFrame, Facts]:
    """Let drafts learn, then decode with each arrangement of them."""
    from draftlab.multidraft.online_multidraft import online_multidraft

    passes = {
        topic: {split: inputs.answers / recorded_name(topic, split) for split in ("train", "eval")}
        for topic in settings.topics
    }
    return online_multidraft(settings, inputs.target, inputs.draft, passes), {}


STAGE = Stage(
    settings=Settings,
    row=Row,
    measures=MEASURES,
    run=run,
    inputs=Inputs,
    locate=locate,
    reads=reads,
)
