"""The same requests by every contender on one engine: no speculation, and each draft (OSD, Table 3)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import Field

from draftlab.core.measure import Measure
from draftlab.core.settings import Dataset
from draftlab.core.settings import Settings as Base
from draftlab.latency.settings import Engine
from draftlab.stages._inputs import Files
from draftlab.stages._places import Places, recorded_name
from draftlab.stages._stage import Bench, Facts, Stage, column, timing

if TYPE_CHECKING:
    import pandas as pd


class Settings(Engine):
    """One request after another by each contender: no speculation, and each draft (OSD, Table 3)."""

    dataset: Dataset
    draft_len: int = Field(gt=0)
    requests: int = Field(gt=0)
    max_new_tokens: int = Field(gt=0)
    adaptive: bool = Field(False, description="also with a draft length that follows the acceptance")
    temperature: float = Field(default=0, ge=0, description="of the samples of target and drafts; 0: greedy")


class Row:
    """One row of the table."""

    request: str = column("")
    contender: str = column("")
    tokens: int = column("")
    seconds: float = timing("")
    blocks: int = column("")
    drafted: int = column("")
    visited: int = column("")
    accepted: int = column("")
    draft_seconds: float = timing("")
    verify_seconds: float = timing("")
    same_text: bool = column("")
    dataset: str = column("")
    draft_len: int = column("")
    temperature: float = column("")


MEASURES = {
    "speedup": Measure("plain_seconds", "seconds", "speed-up", "times plain decoding"),
    "token_ms": Measure("milliseconds", "tokens", "time per token", "ms"),
    "alpha_accepted": Measure("accepted", "visited", "accepted over visited tokens"),
}


class Inputs(Base):
    """The target, drafts by name, and the recorded answers whose requests are decoded."""

    target: Path
    drafts: dict[str, Path]
    answers: Path


def locate(variants: Sequence[Settings], places: Places) -> Inputs:
    """The draft as it comes, and the one that ``osd_offline`` distilled on this dataset."""
    own = variants[0]
    distilled = places.other_cell("osd_offline", own.dataset) / "draft"
    answers = places.recorded(own.pair) / recorded_name(own.dataset, "eval") / "answers.jsonl"
    drafts = {"before": places.model("draft", own.pair), "distilled": distilled}
    return Inputs(target=places.model("target", own.pair), drafts=drafts, answers=answers)


def reads(variants: Sequence[Settings], inputs: Inputs) -> Files:
    """The models and the answers."""
    return {"models": [inputs.target, *inputs.drafts.values()], "answers": [inputs.answers]}


def run(settings: Settings, inputs: Inputs, bench: Bench) -> tuple[pd.DataFrame, Facts]:
    """Decode the first recorded requests with every contender."""
    from draftlab.latency.requests import latency_requests

    return latency_requests(settings, inputs.target, inputs.drafts, inputs.answers)


def derive(rows: pd.DataFrame) -> pd.DataFrame:
    """Beside the seconds of each contender those of plain decoding of the same request."""

    import pandas as pd

    keys = [key for key in ("dataset", "temperature", "request") if key in rows]
    plain = rows[rows["contender"] == "none"].set_index(keys)["seconds"]
    plain_seconds = plain.reindex(pd.MultiIndex.from_frame(rows[keys])).to_numpy()
    return rows.assign(plain_seconds=plain_seconds, milliseconds=1e3 * rows["seconds"])


STAGE = Stage(
    settings=Settings,
    row=Row,
    measures=MEASURES,
    run=run,
    inputs=Inputs,
    locate=locate,
    reads=reads,
    derive=derive,
    exclusive=True,
    needs_gpu_build=True,
)
