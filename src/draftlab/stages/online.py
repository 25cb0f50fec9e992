"""Serve a stream with a draft that learns from it, and with drafts that stay as they are (OSD, Fig. 3)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field, model_validator

from draftlab.core.measure import Measure
from draftlab.core.settings import Dataset
from draftlab.data.streams import Stream
from draftlab.stages._inputs import AS_JSON, Distillation, locate_distillation, reads_distillation
from draftlab.stages._places import Places
from draftlab.stages._stage import Bench, Facts, Stage, column, timing
from draftlab.train.settings import Serving

if TYPE_CHECKING:
    import pandas as pd


class Settings(Serving):
    """Serve the stream in order; alpha of a request is measured before the update that uses it (OSD, Algorithm 1).

    Without ``stream`` the requests of ``dataset`` come in their order, else as that stream says (``streams.Stream``), each group's next
    ``aside`` requests kept apart. Before serving the draft is distilled on the first ``warm_share`` of the stream, or of each group of
    what was kept apart (``warm_on``), ``warm_epochs`` times, or with as many updates as serving makes (``warm_fair``). ``drafts``: one for all, or one per true class, or per class that the router names.
    """

    stream: Annotated[Stream | None, AS_JSON] = None
    of: list[Dataset] = Field([], description="the datasets of the stream")
    aside: int = Field(0, ge=0)
    warm_on: Literal["nothing", "stream", "aside"] = "nothing"
    warm_share: float = Field(1.0, gt=0, le=1)
    warm_epochs: int = Field(1, gt=0)
    warm_fair: bool = False
    drafts: Literal["shared", "by_group", "by_route"] = "shared"
    route_errors: float = Field(0.0, ge=0, le=1, description="share of requests sent to a wrong draft on purpose")
    measured_on: Literal["stream", "held_out"] = "stream"
    probes: int = Field(0, ge=0, description="measurements on the held-out requests along the stream")
    bin: int = Field(
        1, gt=0, description="neighbours of one class that are one unit of the bootstrap, and places in one row"
    )
    timed: bool = Field(False, description="columns cpu_seconds and peak_mb of each run")
    live: bool = Field(False, description="decode with the target instead of replaying its recorded answers")

    @property
    def datasets(self) -> list[Dataset]:
        return self.of or [self.dataset]

    @model_validator(mode="after")
    def _check(self) -> Settings:
        if (self.stream is not None) == bool(self.dataset) or (self.stream is not None) != bool(self.of):
            raise ValueError("give a dataset, or a stream and the datasets that it is made of")
        if self.warm_on == "aside" and not (self.stream and self.aside):
            raise ValueError("warm_on aside needs a stream and requests kept aside: set aside")
        if self.probes and self.drafts != "shared":
            raise ValueError("probes measure one draft: drafts must be shared")
        return self

    @property
    def stream_parts(self) -> list[str]:
        """The files of the stream that it reads: the order of requests, what is aside, what is held out."""
        if self.stream is None:
            return []
        parts = {
            "routed" if self.drafts == "by_route" else "stream": True,
            "aside": self.warm_on == "aside",
            "held_out": bool(self.probes) or self.measured_on == "held_out",
        }
        return [part for part, is_read in parts.items() if is_read]

    @property
    def arrangement(self) -> Stream:
        """The stream of a cell that has one."""
        assert self.stream is not None
        return self.stream


class Row:
    """One row of the table."""

    measured_on: str = column("", optional=True)
    after: int = column("", optional=True)
    group: str = column("", optional=True)
    segment: int = column("", optional=True)
    record: int = column("")
    request: int = column("")
    accepted: float = column("")
    visited: float = column("")
    overlap: float = column("")
    overlap_repo: float = column("")
    blocks: float = column("")
    emitted: int = column("")
    requests: int = column("", optional=True)
    seed: int = column("")
    misrouted: float = column("", optional=True)
    cpu_seconds: float = timing("", optional=True)
    peak_mb: float = column("", optional=True)


MEASURES = {
    "alpha": Measure("overlap", "visited", "alpha"),
    "alpha_accepted": Measure("accepted", "visited", "accepted over visited tokens"),
    "alpha_repo": Measure("overlap_repo", "visited", "alpha by the estimator of OSD's repository"),
    "block_efficiency": Measure("emitted", "blocks", "block efficiency", "tokens per target call"),
    "request_ms": Measure("request_ms", None, "CPU time per request", "ms"),
    "added_ms": Measure("added_ms", None, "CPU time per further request", "ms"),
}


def locate(variants: Sequence[Settings], places: Places) -> Distillation:
    """The cell's pair, and its stream where it has one of its own."""
    found = locate_distillation(variants, places)
    streams = places.streams if any(own.stream is not None for own in variants) else None
    return found.model_copy(update={"streams": streams})


def run(settings: Settings, inputs: Distillation, bench: Bench) -> tuple[pd.DataFrame, Facts]:
    """One variant."""
    from draftlab.train.jobs import online

    return online(settings, inputs, bench)


def update_interval(rows: pd.DataFrame) -> pd.DataFrame:
    """What each of the two sweeps varies beside the interval, in words."""
    rate, replay = (
        words + rows[key].map("{:g}".format)
        for words, key in (("learning rate ", "learning_rate"), ("replay ", "replay"))
    )
    return rows.assign(setting=rate.where(rows["sweep"] == "learning_rate", replay))


def routing_errors(rows: pd.DataFrame) -> pd.DataFrame:
    """Whose ``drafts`` served, and the ``rate`` of requests sent to another draft on purpose, in percent."""
    is_shared = rows["method"] == "shared"
    rate = rows["method"].str.removeprefix("errors_").mask(is_shared, "0").astype(float)
    return rows.assign(rate=rate, drafts=rows["method"].where(is_shared, "separate"))


def stream_length(rows: pd.DataFrame) -> pd.DataFrame:
    """Requests of each stream, CPU milliseconds for each of them, and for each that the next shorter stream lacks."""
    rows = rows.assign(served=rows.groupby("length")["record"].transform("max") + 1)
    runs = rows.groupby("served")["cpu_seconds"].mean()
    added = runs.diff() / runs.index.to_series().diff()
    return rows.assign(request_ms=1e3 * rows["cpu_seconds"] / rows["served"], added_ms=1e3 * rows["served"].map(added))


STAGE = Stage(
    settings=Settings,
    row=Row,
    measures=MEASURES,
    run=run,
    inputs=Distillation,
    locate=locate,
    reads=reads_distillation,
    views={"update_interval": update_interval, "stream_length": stream_length, "routing_errors": routing_errors},
)
