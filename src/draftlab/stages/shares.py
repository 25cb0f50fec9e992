"""Share of each class of requests in equal slices of time (OSD, Figs. 2 and 10)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

from pydantic import Field

from draftlab.core.measure import Measure
from draftlab.core.settings import Dataset
from draftlab.core.settings import Settings as Base
from draftlab.data.streams import GroupBy
from draftlab.stages._places import Places
from draftlab.stages._stage import Bench, Facts, Files, NoInputs, column, stage_of

if TYPE_CHECKING:
    import pandas as pd


class Settings(Base):
    dataset: Dataset = Field(description="dataset whose requests are counted")
    group_by: GroupBy = Field(description="what makes a class: the requests' dataset, language, topic or length")
    slices: int = Field(gt=0, description="number of equal slices of time")


class Row:
    """A class of requests in a slice of time."""

    slice: int = column("number of the slice, in order of time")
    group: str = column("class of requests")
    count: int = column("requests of the class", "requests")
    total: int = column("requests of all classes", "requests")
    group_by: str = column("what the classes are: language or topic")


class Derived:
    half: str = column("half of the time that the slice lies in: first or second")
    among: int = column(
        "requests that Figure 2 of OSD counts: of every topic, of every language but English", "requests"
    )


MEASURES = {
    "share": Measure("count", "total", "share of the requests"),
    "share_among": Measure("count", "among", "share of the requests that Figure 2 counts"),
}


class Inputs(NoInputs):
    """The requests, with their classes.

    **Fields:**
    - `prompts`: file of the requests with their classes
    """

    same: ClassVar[tuple[str, ...]] = ("dataset", "group_by")
    prompts: Path

    @classmethod
    def locate(cls, variants: Sequence[Any], places: Places) -> Self:
        return cls(prompts=places.prompts(variants[0].dataset, label=variants[0].group_by))

    def reads(self, variants: Sequence[Any]) -> Files:
        return {"data": [self.prompts]}


def run(settings: Settings, inputs: Inputs, bench: Bench) -> tuple[pd.DataFrame, Facts]:
    """Count the requests of each class."""
    import pandas as pd

    from draftlab.data.prompts import Prompt
    from draftlab.data.streams import shares_over_time
    from draftlab.files.json_files import read_jsonl

    rows = shares_over_time(read_jsonl(inputs.prompts, Prompt), settings.group_by, settings.slices)
    return pd.DataFrame(rows).assign(group_by=settings.group_by), {}


def derive(rows: pd.DataFrame) -> pd.DataFrame:
    """The half of the time that a slice lies in, and the requests of a slice that OSD's Figure 2 counts."""
    half = (2 * rows["slice"] > rows["slice"].max()).map({True: "second", False: "first"})
    counted = rows["count"].where(rows["group"] != "English", 0)
    alike = [rows[name] for name in rows if name not in ("group", "count", "total")]
    return rows.assign(half=half, among=counted.groupby(alike, dropna=False).transform("sum"))


STAGE = stage_of(__name__)
