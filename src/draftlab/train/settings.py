"""Settings of training a draft, offline and online. Free of torch: the Snakefile imports it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from pydantic import Field

from draftlab.core.settings import Count, Dataset, Device, NonNegativeInt, Settings, ShareBelow1
from draftlab.files.registries import names

LossPositions = Literal["rejected", "all", "block_end", "repository"]
if TYPE_CHECKING:
    SampleSource = str
    Loss = str
else:
    SampleSource = Literal[("none", *names("train.sources", "SOURCES"))]
    Loss = Literal[("none", *names("core.losses", "LOSSES"))]


class Training(Settings):
    """Settings that offline and online distillation share.

    ``batch``: requests per update when a draft is trained on recorded answers. ``micro_batch`` (0: all) requests of an update go through one
    forward pass, and gradients are added up. ``temperature``: at which target and draft decode; the loss is always at temperature 1.
    """

    dataset: Dataset = ""
    pair: str = Field("main", description="the pair whose target and drafts are used")
    draft: str = Field("draft", description="folder below models/")
    seed: NonNegativeInt = 0
    temperature: float = Field(0.0, ge=0)
    learning_rate: float = Field(gt=0)
    batch: int = Field(gt=0)
    micro_batch: int = Field(0, ge=0)
    draft_len: int = Field(5, gt=0)
    loss: Loss = "forward_kl"
    clip: float = Field(1.0, ge=0)
    keeps_embedding: bool = Field(
        False,
        description="keep a Llama's embedding fixed: with a large vocabulary it holds most of the weights that an update would touch",
    )
    device: Device = Field("cpu", description="the scale sets it (``compute``)")
    autocast: bool = Field(
        False,
        description="bfloat16 products over float32 weights, where the device is fast at them; the scale sets it",
    )

    @property
    def datasets(self) -> list[Dataset]:
        """The datasets whose recorded answers are read."""
        return [self.dataset]

    @property
    def drafts_opened(self) -> list[str]:
        """The drafts that are opened, as folders below ``models/``."""
        return [self.draft]


class Offline(Training):
    """How a draft is distilled offline, and how it is measured.

    It learns from ``requests`` (0: all). If the draft takes part in answering, ``sample_batch`` requests are answered at once, so the
    draft that answered is up to ``sample_batch / batch`` updates old. ``probes``: measurements in each epoch. ``live``: also decode the
    held-out requests with target and draft together, and count.
    """

    sample_source: SampleSource = "teacher"
    epochs: int = Field(ge=0)
    requests: int = Field(0, ge=0)
    sample_batch: int = Field(64, gt=0)
    probes: int = Field(0, ge=0, description="measurements per epoch while training")
    draft_lens: list[Count] = Field([], description="further draft lengths to measure")
    live: bool = False
    timed: bool = Field(False, description="add the column learning_seconds of each measurement")


class Updates(Training):
    """How a draft is updated with requests that it served: ``loss_positions`` of each; the update reaches the server ``lag`` requests later."""

    loss_positions: LossPositions = "rejected"
    lag: int = Field(0, ge=0)


class Serving(Updates):
    """How a draft learns while it serves (OSD, Algorithm 1).

    It learns from every ``update_interval`` requests and ``replay`` older ones out of the last ``buffer`` (0: all).
    """

    update_interval: int = Field(gt=0)
    replay: int = Field(0, ge=0)
    buffer: int = Field(0, ge=0)


class ReplayLog(Serving):
    """Several options to serve a log, each replayed for all ``draft_lens``.

    The draft is distilled on the stream for ``epochs`` epochs; another copy serves the stream once and learns from it. The optimum of two
    and four drafts is computed on the first ``ceiling`` requests.
    """

    draft_lens: list[Count] = Field([1, 2, 3, 4, 5, 6, 7, 8], min_length=1)
    thresholds: list[ShareBelow1] = Field(
        [0.3, 0.45, 0.6],
        description="at temperature 0 also blocks that end where the draft is less sure of its token than this",
    )
    epochs: int = Field(2, gt=0)
    ceiling: int = Field(12, ge=0)


class TimedUpdates(Updates):
    """Updates that are timed beside decoding; ``inflated_layers`` and ``inflated_ffn`` as for an ``Engine``."""

    requests: int = Field(gt=0)
    inflated_layers: int = Field(0, ge=0)
    inflated_ffn: int = Field(0, ge=0)
    temperature: float = Field(0.0, ge=0, le=0)
