"""Bytes that a request moves, as printed and with every term (OSD, Table 5)."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

from pydantic import Field

from draftlab.core import theory
from draftlab.core.measure import Measure
from draftlab.core.settings import Count, Dataset, Distinct, Share
from draftlab.core.settings import Settings as Base
from draftlab.core.theory import ModelSize
from draftlab.errors import UserError
from draftlab.stages._inputs import TargetAndDraft
from draftlab.stages._places import Places
from draftlab.stages._stage import Bench, Facts, Files, column, stage_of

if TYPE_CHECKING:
    import pandas as pd


class Settings(Base):
    """Bytes that a request moves (OSD, Table 5) by the printed formula and with every term, for the printed pair and for the run's own."""

    target_gb: float = Field(gt=0, description="weights of the printed target, in GB")
    draft_gb: float = Field(gt=0, description="weights of the printed draft, in GB")
    target_cache_gb: float = Field(ge=0, description="a token in the printed target's cache, in GB")
    draft_cache_gb: float = Field(ge=0, description="a token in the printed draft's cache, in GB")
    dataset: Dataset = Field(description="dataset whose measured block lengths the run's own pair uses")
    tokens: int = Field(gt=0, description="tokens of an answer")
    context: int = Field(gt=0, description="average number of tokens in the caches")
    draft_len: int = Field(gt=0, description="tokens drafted per call of the target")
    alphas: tuple[Share, Share] = Field(description="acceptance of the draft before and after learning")
    rounded: tuple[float, float] = Field(
        description="the block lengths that the paper uses for these alphas, in tokens"
    )
    update_interval: Distinct[Count] = Field(
        min_length=1, description="numbers of requests from one update to the next"
    )
    batch: Distinct[Count] = Field(min_length=1, description="numbers of requests that share a load of weights")


class Row:
    """A system at one batch and update interval."""

    inputs: Literal["printed", "unrounded", "ours"] = column("where the block lengths and sizes come from")
    terms: Literal["printed", "all"] = column("printed: those of Table 5; all: every term")
    batch: int = column("requests that share a load of weights", "requests")
    update_interval: int = column("requests from one update of the draft to the next", "requests")
    system: Literal["original", "vsd", "osd"] = column(
        "original: no draft; vsd: a draft that stays as it is; osd: one that is updated"
    )
    block_length: float = column("tokens per target call", "tokens")
    target_gb: float = column("weights of the target moved for a request", "GB")
    draft_gb: float = column("weights of the draft moved for a request", "GB")
    cache_gb: float = column("entries of both caches moved for a request", "GB")
    update_gb: float = column("a request's share of what an update moves", "GB")
    gb: float = column("sum of these", "GB")
    original_gb: float = column("the same sum for original", "GB")
    vsd_gb: float = column("the same sum for vsd", "GB")
    break_even: float = column("block length above which osd moves less than vsd", "tokens")


MEASURES = {
    "bytes": Measure("gb", "original_gb", "bytes moved, as a share of plain decoding's"),
    "bytes_over_vsd": Measure("gb", "vsd_gb", "bytes moved over those with a draft that stays as it is"),
    "gb": Measure("gb", None, "bytes moved", "GB"),
}


class Inputs(TargetAndDraft):
    """The main pair, and the table of ``osd_online``, which has its block lengths.

    **Fields:**
    - `online`: table of the experiment osd_online, which has the measured block lengths
    """

    online: Path

    @classmethod
    def locate(cls, variants: Sequence[Any], places: Places) -> Self:
        return cls(target=places.model("target"), draft=places.model("draft"), online=places.table("osd_online"))

    def reads(self, variants: Sequence[Any]) -> Files:
        return {"models": [self.target, self.draft], "tables": [self.online]}


@dataclass(frozen=True)
class Case:
    """A pair, and its block lengths with the draft before and after learning; ``train_gb``: the draft's weights in float32."""

    name: str
    target: ModelSize
    draft: ModelSize
    train_gb: float
    before: float
    after: float

    @property
    def block_lengths(self) -> dict[str, float]:
        return {"original": 1.0, "vsd": self.before, "osd": self.after}


def run(settings: Settings, inputs: Inputs, bench: Bench) -> tuple[pd.DataFrame, Facts]:
    """Tabulate every term for the printed pair and for the run's own."""
    import pandas as pd

    from draftlab.models.weights import model_size

    printed = (
        ModelSize(settings.target_gb, settings.target_cache_gb),
        ModelSize(settings.draft_gb, settings.draft_cache_gb),
    )
    lengths = (theory.expected_block_length(alpha, settings.draft_len) for alpha in settings.alphas)
    target, draft = model_size(inputs.target), model_size(inputs.draft)
    cases = [
        Case("printed", *printed, 2 * settings.draft_gb, *settings.rounded),
        Case("unrounded", *printed, 2 * settings.draft_gb, *lengths),
        Case("ours", target, draft, draft.weights, *_measured(inputs.online, settings.dataset)),
    ]
    rows = [row for case in cases for row in (*_printed(case, settings), *_all_terms(case, settings))]
    return pd.DataFrame(rows), {}


def _printed(case: Case, settings: Settings) -> Iterator[dict[str, Any]]:
    """The rows of Table 5, as printed."""
    for interval in settings.update_interval:
        systems = theory.memory_traffic(
            case.target,
            case.draft,
            tokens=settings.tokens,
            block_length=case.before,
            online_block_length=case.after,
            update_interval=interval,
        )
        yield from _rows(systems, case, systems["original"]["target_gb"], "printed", 1, interval)


def _all_terms(case: Case, settings: Settings) -> Iterator[dict[str, Any]]:
    """The same with every term."""
    for batch, interval in itertools.product(settings.batch, settings.update_interval):
        systems = {
            name: theory.traffic_terms(
                case.target,
                case.draft,
                tokens=settings.tokens,
                context=settings.context,
                draft_len=0 if name == "original" else settings.draft_len,
                block_length=length,
                batch=batch,
                updates_per_request=(name == "osd") / interval,
                train_gb=case.train_gb,
            )
            for name, length in case.block_lengths.items()
        }
        yield from _rows(systems, case, sum(systems["vsd"].values()) * case.before, "all", batch, interval)


def _rows(
    systems: Mapping[str, Mapping[str, float]], case: Case, per_block: float, terms: str, batch: int, interval: int
) -> Iterator[dict[str, Any]]:
    totals = {name: sum(parts.values()) for name, parts in systems.items()}
    online_fixed, fixed = (totals[name] - per_block / case.block_lengths[name] for name in ("osd", "vsd"))
    needed = theory.break_even_block_length(per_block, fixed, online_fixed, case.before)
    for name, parts in systems.items():
        axes = {"inputs": case.name, "terms": terms, "batch": batch, "update_interval": interval, "system": name}
        sums = {"gb": totals[name], "original_gb": totals["original"], "vsd_gb": totals["vsd"]}
        yield axes | {"block_length": case.block_lengths[name], **parts, **sums, "break_even": needed}


def _measured(online: Path, dataset: str) -> tuple[float, float]:
    """The block lengths in the last fifth of the dataset's stream, of the undistilled draft and of the online draft."""
    from draftlab.files.tables import read_table

    rows = read_table(online)
    rows = rows[(rows["dataset"] == dataset) & rows["method"].isin(["static", "online"])]
    if absent := [method for method in ("static", "online") if method not in set(rows["method"])]:
        what = f"no rows of the dataset {dataset} with the method {absent[0]}"
        raise UserError(what, file=online, remedy="set dataset to one of this table, or run osd_online on it")
    last = rows["stream_index"].max()
    end = rows[rows["stream_index"] >= min(0.8 * (last + 1), last)]  # of fewer than five requests, the last one
    sums = end.groupby("method")[["emitted", "blocks"]].sum()
    lengths = sums["emitted"] / sums["blocks"]
    return float(lengths["static"]), float(lengths["online"])


STAGE = stage_of(__name__)
