"""What an update of the draft costs against the requests between two updates (OSD, Table 9)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pydantic import Field

from draftlab.core.measure import Measure
from draftlab.latency.settings import Engine
from draftlab.stages._inputs import TargetAndDraft, reads_pair
from draftlab.stages._places import Places
from draftlab.stages._stage import Bench, Facts, Stage, column, timing

if TYPE_CHECKING:
    import pandas as pd


class Settings(Engine):
    """One update of the draft against answering the requests between two updates (OSD, Table 9); ``draft_model``: folder below models/."""

    draft_model: str = "draft"
    prompt: int = Field(gt=0, default=64)
    generated: int = Field(gt=0, default=128)
    update_interval: int = Field(gt=0, default=8)
    blocks: int = Field(gt=0)


class Row:
    """One row of the table."""

    block: int = column("")
    target_request_seconds: float = timing("")
    update_seconds: float = timing("")
    update_forward_seconds: float = timing("")
    update_backward_seconds: float = timing("")
    update_interval: int = column("")
    draft: str = column("")


MEASURES = {
    "interval_over_update": Measure(
        "interval_seconds", "update_seconds", "seconds of the target between two updates over those of an update"
    ),
    "update_seconds": Measure("update_seconds", None, "seconds of an update", "s"),
    "target_request_seconds": Measure("target_request_seconds", None, "seconds of the target for a request", "s"),
    "interval_seconds": Measure("interval_seconds", None, "seconds of the target between two updates", "s"),
}


def locate(variants: Sequence[Settings], places: Places) -> TargetAndDraft:
    """The target, and the draft that the cell names."""
    own = variants[0]
    return TargetAndDraft(target=places.model("target", own.pair), draft=places.model(own.draft_model, own.pair))


def run(settings: Settings, inputs: TargetAndDraft, bench: Bench) -> tuple[pd.DataFrame, Facts]:
    """Time updates and requests in turns."""
    from draftlab.latency.update import latency_update

    return latency_update(settings, inputs.target, inputs.draft)


def derive(rows: pd.DataFrame) -> pd.DataFrame:
    """Seconds of the target for all requests between two updates."""
    return rows.assign(interval_seconds=rows["target_request_seconds"] * rows["update_interval"])


STAGE = Stage(
    settings=Settings,
    row=Row,
    measures=MEASURES,
    run=run,
    inputs=TargetAndDraft,
    locate=locate,
    reads=reads_pair,
    derive=derive,
    exclusive=True,
    needs_gpu_build=True,
)
