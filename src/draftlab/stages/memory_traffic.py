"""Bytes that a request moves, as printed and with every term (OSD, Table 5)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import Field

from draftlab.core.measure import Measure
from draftlab.core.settings import Count, Dataset, Share
from draftlab.core.settings import Settings as Base
from draftlab.stages._inputs import Files, TargetAndDraft
from draftlab.stages._places import Places
from draftlab.stages._stage import Bench, Facts, Stage, column

if TYPE_CHECKING:
    import pandas as pd


class Settings(Base):
    """Bytes that a request moves (OSD, Table 5): the printed formula, and every term, as printed and for the run's own pair.

    ``alphas`` of the draft before and after; ``rounded`` are the block lengths that the paper uses for them. ``dataset``: whose measured block
    lengths the run's own pair has. ``context``: tokens in the caches, on average.
    """

    target_gb: float = Field(gt=0)
    draft_gb: float = Field(gt=0)
    target_cache_gb: float = Field(ge=0)
    draft_cache_gb: float = Field(ge=0)
    dataset: Dataset
    tokens: int = Field(gt=0)
    context: int = Field(gt=0)
    draft_len: int = Field(gt=0)
    alphas: tuple[Share, Share]
    rounded: tuple[float, float]
    update_interval: list[Count] = Field(min_length=1)
    batch: list[Count] = Field(min_length=1)


class Row:
    """One row of the table."""

    inputs: str = column("")
    terms: str = column("")
    batch: int = column("")
    update_interval: int = column("")
    system: str = column("")
    block_length: float = column("")
    target_gb: float = column("")
    draft_gb: float = column("")
    cache_gb: float = column("")
    update_gb: float = column("")
    gb: float = column("")
    original_gb: float = column("")
    vsd_gb: float = column("")
    break_even: float = column("")


MEASURES = {
    "bytes": Measure("gb", "original_gb", "bytes moved, as a share of plain decoding's"),
    "bytes_over_vsd": Measure("gb", "vsd_gb", "bytes moved over those with a draft that stays as it is"),
    "gb": Measure("gb", None, "bytes moved", "GB"),
}


class Inputs(TargetAndDraft):
    """A pair, and the table of ``osd_online``: its block lengths."""

    online: Path


def locate(variants: Sequence[Settings], places: Places) -> Inputs:
    """The main pair."""
    return Inputs(target=places.model("target"), draft=places.model("draft"), online=places.table("osd_online"))


def reads(variants: Sequence[Settings], inputs: Inputs) -> Files:
    """The models and the table."""
    return {"models": [inputs.target, inputs.draft], "tables": [inputs.online]}


def run(settings: Settings, inputs: Inputs, bench: Bench) -> tuple[pd.DataFrame, Facts]:
    """Tabulate every term for the printed pair and for the run's own."""
    from draftlab.core.costs import memory_traffic

    return memory_traffic(settings, inputs.target, inputs.draft, inputs.online), {}


STAGE = Stage(
    settings=Settings,
    row=Row,
    measures=MEASURES,
    run=run,
    inputs=Inputs,
    locate=locate,
    reads=reads,
)
