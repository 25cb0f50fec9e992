"""Serve a stream with a draft that learns from it, and with drafts that stay as they are (OSD, Fig. 3).

``_serve_stream`` follows the path of a request.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, model_validator

from draftlab.core.measure import Measure
from draftlab.core.settings import Dataset
from draftlab.data.classify import Method
from draftlab.data.streams import Stream
from draftlab.stages._counts import Counts
from draftlab.stages._inputs import AS_JSON, Distillation
from draftlab.stages._measures import ALPHAS
from draftlab.stages._places import Places
from draftlab.stages._stage import Bench, Facts, Files, column, stage_of, timing
from draftlab.train.settings import Parallel, ReadsTarget, Serving

if TYPE_CHECKING:
    import pandas as pd

Part = Literal["stream", "aside", "held_out"]


class Settings(Serving):
    """Serve the stream in order; a request's alpha is measured before the update that learns from it (OSD, Algorithm 1).

    Give either a ``dataset``, whose requests arrive in their own order, or a ``stream`` of several. The ``warm`` settings distil the draft before
    it serves.
    """

    learns: bool = Field(True, description="whether the draft learns from what it serves, or stays as it is")
    stream: Annotated[Stream | None, AS_JSON] = Field(
        None, description="the groups of requests and the order in which they arrive"
    )
    of: list[Dataset] = Field([], description="the datasets of the stream")
    aside: int = Field(
        0, ge=0, description="requests of each group that are set aside; they come after those of the stream"
    )
    warm_on: Literal["nothing", "stream", "aside"] = Field(
        "nothing",
        description="what the draft is distilled on before it serves. nothing: no requests; stream: the first of the stream; aside: those set aside",
    )
    warm_share: float = Field(
        1.0,
        gt=0,
        le=1,
        description="share of these requests that it is distilled on: the first ones; of those set aside, the first of each group",
    )
    warm_epochs: int = Field(1, gt=0, description="epochs of this distillation")
    warm_fair: bool = Field(
        False, description="instead of warm_epochs, make as many updates as serving does, each of as many requests"
    )
    drafts: Literal["shared", "by_group", "by_route"] = Field(
        "shared",
        description="shared: one draft for all requests; by_group: one for each true class; by_route: one for each class that the router names",
    )
    route_errors: float = Field(
        0.0, ge=0, le=1, description="share of requests that are deliberately sent to a wrong draft"
    )
    measured_on: Literal["stream", "held_out"] = Field(
        "stream",
        description="whose acceptance is measured. stream: that of the stream's requests; held_out: that of held-out ones",
    )
    probes: int = Field(0, ge=0, description="number of measurements on the held-out requests along the stream")
    bin: int = Field(
        1,
        gt=0,
        description="number of neighbouring requests of one class in a unit of the bootstrap, and of places of the stream in a row",
    )
    timed: bool = Field(False, description="add the columns cpu_seconds and peak_mb of each run")
    reads_target: ReadsTarget = False
    parallel: Parallel = False
    live: bool = Field(False, description="decode with the target instead of replaying its recorded answers")
    save: str = Field("", description="the method whose draft is saved at the end of the stream; empty: none")

    @property
    def datasets(self) -> list[Dataset]:
        return self.of or [self.dataset]

    @model_validator(mode="after")
    def _check(self) -> Settings:
        if (self.stream is not None) == bool(self.dataset) or (self.stream is not None) != bool(self.of):
            raise ValueError("give either a dataset, or a stream and the datasets that it is made of")
        if self.warm_on == "aside" and not (self.stream and self.stream.per_group and self.aside):
            raise ValueError(
                "warm_on aside needs a stream of per_group requests, and those after them: set per_group and aside"
            )
        if self.learns and self.measured_on == "held_out":
            raise ValueError("a draft that learns is measured on its stream: set learns to false, or use probes")
        if self.live and not self.learns:
            raise ValueError("a draft that learns decodes live, others are replayed: leave live out")
        if self.probes and self.drafts != "shared":
            raise ValueError("probes measure one draft: drafts must be shared")
        return self

    @property
    def is_trained(self) -> bool:
        return self.learns or self.warm_on != "nothing"

    @property
    def needs_held_out(self) -> bool:
        """Whether held-out requests are measured, or train the router."""
        return bool(self.probes) or self.measured_on == "held_out" or self.drafts == "by_route"

    def part(self, name: Part) -> Stream:
        """The order of a part of the stream: the stream itself, the requests set ``aside``, or the ``held_out`` requests."""
        assert self.stream is not None
        parts = {"stream": self.stream, "aside": self.stream.aside(self.aside), "held_out": self.stream.held_out()}
        return parts[name]


class Row(Counts):
    """One request, or ``bin`` neighbours of one class, as one variant and seed served them."""

    stream_index: int = column(
        "position in the stream (for a bin, of its first request); for held-out requests, the position among them"
    )
    request_id: int = column(
        "number among the recorded requests of its split, the same for every seed; for a bin, that of its first request"
    )
    group: str = column("class of the request", optional=True)
    segment: int = column("block of the stream that it belongs to", optional=True)
    requests: int = column("requests in the row", "requests", optional=True)
    split: str = column("train: requests of the stream; eval: held-out requests")
    after: int = column("requests that were served before a measurement on held-out ones", "requests", optional=True)
    updates: int = column("updates made after the request", "updates", optional=True)
    update_loss: float = column("loss of the update made after the request", "nats", optional=True)
    misrouted: float = column("requests that the draft of another class served", "requests", optional=True)
    seed: int = column("seed of the random order and draws")
    cpu_seconds: float = timing("CPU time of the whole run", optional=True)
    peak_mb: float = column("peak memory of the process", "MB", timed=True, optional=True)


class Derived:
    served: int = column("requests of the stream", "requests", optional=True)
    request_ms: float = column("CPU time per request", "ms", timed=True, optional=True)
    added_ms: float = column(
        "CPU time per request beyond those of the next shorter stream", "ms", timed=True, optional=True
    )
    setting: str = column("what is varied besides the interval, in words", optional=True)
    rate: float = column("requests sent to another draft on purpose", "%", optional=True)
    drafts: str = column("whether one draft served all (shared) or each group its own (separate)", optional=True)
    stream: str = column("the class whose requests ``stream_index`` counts", optional=True)


MEASURES = ALPHAS | {
    "request_ms": Measure("request_ms", None, "CPU time per request", "ms"),
    "added_ms": Measure("added_ms", None, "CPU time per further request", "ms"),
    "update_loss": Measure("update_loss", "updates", "loss of an update", "nats"),
    "misrouted": Measure("misrouted", "requests", "share of requests sent to the draft of another class"),
    "peak_mb": Measure("peak_mb", None, "peak memory", "MB"),
}


class Inputs(Distillation):
    """Recorded answers and models; for a stream also its requests, and how their classes are found."""

    same: ClassVar[tuple[str, ...]] = ("pair", "stream", "of")
    requests: list[Path] = Field([], description="files of the requests of a stream, one for each dataset")
    held_out: list[Path] = Field([], description="files of the held-out requests, one for each dataset")
    router: Method = Field(
        "naive_bayes",
        description="how the class of a request is found if drafts is by_route; hub: by a classifier from the hub",
    )
    classifier: str = Field("", description="the classifier from the hub, OWNER/NAME@REVISION")

    @classmethod
    def locate(cls, variants: Sequence[Any], places: Places) -> Self:
        pair = Distillation.locate(variants, places).model_dump()
        stream, datasets = variants[0].stream, variants[0].datasets
        if stream is None:
            return cls(**pair)
        label = stream.group_by
        needs_held_out = any(variant.needs_held_out for variant in variants)
        return cls(
            **pair,
            requests=[places.prompts(dataset, "train", label) for dataset in datasets],
            held_out=[places.prompts(dataset, "eval", label) for dataset in datasets] if needs_held_out else [],
            router=places.routers.get(label, "naive_bayes"),
            classifier=places.classifier,
        )

    def reads(self, variants: Sequence[Any]) -> Files:
        data = {"data": [*self.requests, *self.held_out]} if self.requests else {}
        return super().reads(variants) | data


def run(settings: Settings, inputs: Inputs, bench: Bench) -> tuple[pd.DataFrame, Facts]:
    """Serve the stream once, with one draft for all requests or with one for each class."""
    from draftlab.stages._serve_stream import Run

    return Run(settings, inputs, bench).table()


def update_interval(rows: pd.DataFrame) -> pd.DataFrame:
    """What each of the two sweeps varies beside the interval, in words."""
    rate = "learning rate " + rows["learning_rate"].map("{:g}".format)
    replay = "replay of " + rows["replay"].map("{:g}".format)
    replay = replay.where(rows["replay"] != 0, "no replay")
    return rows.assign(setting=rate.where(rows["sweep"] == "learning_rate", replay))


def routing_errors(rows: pd.DataFrame) -> pd.DataFrame:
    """Whether ``drafts`` were shared or separate, and the ``rate`` of requests sent to another draft on purpose, in percent."""
    is_shared = rows["method"] == "shared"
    rate = rows["method"].str.removeprefix("errors_").mask(is_shared, "0").astype(float)
    return rows.assign(rate=rate, drafts=rows["method"].where(is_shared, "separate"))


def stream_length(rows: pd.DataFrame) -> pd.DataFrame:
    """Requests of each stream, CPU milliseconds per request, and per request beyond the next shorter stream."""
    rows = rows.assign(served=rows.groupby("length")["stream_index"].transform("max") + 1)
    runs = rows.groupby("served")["cpu_seconds"].mean()
    added = runs.diff() / runs.index.to_series().diff()
    return rows.assign(request_ms=1e3 * rows["cpu_seconds"] / rows["served"], added_ms=1e3 * rows["served"].map(added))


def by_class(rows: pd.DataFrame) -> pd.DataFrame:
    """The requests of each class as a ``stream`` of their own, which ``stream_index`` counts (OSD, Fig. 5)."""
    requests = rows.sort_values("stream_index", kind="stable")["requests"]
    before = requests.groupby([rows[key] for key in ("group", "method", "seed")]).cumsum() - requests
    return rows.assign(stream=rows["group"], stream_index=before)


STAGE = stage_of(
    __name__,
    views={
        "update_interval": update_interval,
        "stream_length": stream_length,
        "routing_errors": routing_errors,
        "by_class": by_class,
    },
)
