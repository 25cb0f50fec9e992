"""Settings of training a draft, offline and online. Free of torch: the Snakefile imports it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field, model_validator

from draftlab.core.settings import (
    Count,
    Dataset,
    Distinct,
    InflatedFfn,
    InflatedLayers,
    PairName,
    Seed,
    Settings,
    ShareBelow1,
    TorchDevice,
)
from draftlab.files.registries import choice, names

LossPositions = Annotated[
    Literal["rejected", "all", "block_end", "repository"],
    Field(
        description="positions of an answer to learn from: where a drafted token was rejected; all; where a block ended; the positions after those, as in OSD's repository"
    ),
]
if TYPE_CHECKING:
    SampleSource = str
    Loss = str
else:
    SampleSource = choice(["none", *names("train.sources", "SOURCES")], ["scene", "requests", "generator"])
    Loss = Annotated[
        choice(["none", *names("core.losses", "LOSSES")], ["draft_logits", "target_logits"]),
        Field(description="what training minimises (draftlab.core.losses); none: for a draft that is not trained"),
    ]


ReadsTarget = Annotated[
    bool,
    Field(
        description="the draft also reads the target's states, as EAGLE does, for which the target runs again; it learns the longest blocks that are measured"
    ),
]

Parallel = Annotated[
    bool,
    Field(
        description="the draft proposes a block in one pass, as PARD does: for each token after the first it reads a learnt vector; it learns the longest blocks that are measured"
    ),
]


class Training(Settings):
    """Settings that offline and online distillation share."""

    dataset: Dataset = Field("", description="dataset whose requests and recorded answers are used")
    pair: PairName = "main"
    draft: str = Field("draft", description="the draft: folder below models/")
    seed: Seed = Field(0, description="seed of the random order and draws")
    temperature: float = Field(
        0.0,
        ge=0,
        description="temperature at which target and draft decode; 0: greedy; the loss is always at temperature 1",
    )
    learning_rate: float = Field(
        gt=0, description="learning rate of AdamW; in a distillation the highest of its schedule"
    )
    batch: int = Field(gt=0, description="requests per update when a draft is distilled, not while it serves")
    micro_batch: int = Field(
        0,
        ge=0,
        description="requests of an update in one forward pass, whose gradients are added up; 0: all",
    )
    draft_len: int = Field(5, gt=0, description="tokens that the draft proposes per call of the target")
    loss: Loss = "forward_kl"
    clip: float = Field(1.0, ge=0, description="largest norm of the gradient; 0: not clipped")
    keeps_embedding: bool = Field(
        False,
        description="keep a Llama's embedding fixed: with a large vocabulary it holds most of the weights that an update would touch",
    )
    device: TorchDevice = "cpu"
    autocast: bool = Field(
        False,
        description="bfloat16 products over float32 weights, where the device is fast at them; in a run, the scale sets it",
    )

    @model_validator(mode="after")
    def _names_a_loss(self) -> Training:
        if self.loss == "none" and self.is_trained:
            raise ValueError("loss none is for a draft that is not trained: name a loss")
        return self

    @property
    def is_trained(self) -> bool:
        """Whether the draft learns anything."""
        return True

    @property
    def datasets(self) -> list[Dataset]:
        """The datasets whose recorded answers are read."""
        return [self.dataset]

    @property
    def drafts_opened(self) -> list[str]:
        """The drafts that are opened, as folders below ``models/``."""
        return [self.draft]


class Offline(Training):
    """How a draft is distilled offline, and how it is measured."""

    sample_source: SampleSource = Field(
        "teacher",
        description="who writes the answers to learn from. teacher: the target; student: the draft; mix_request, mix_token: one of them, drawn for each request or token; none: no training",
    )
    epochs: int = Field(ge=0, description="epochs of distillation")
    requests: int = Field(0, ge=0, description="requests of the stream to learn from; 0: all")
    sample_batch: int = Field(
        64,
        gt=0,
        description="requests answered at once if the draft takes part, which is then up to sample_batch / batch updates old",
    )
    probes: int = Field(0, ge=0, description="number of measurements per epoch while training")
    draft_lens: Distinct[Count] = Field([], description="further draft lengths to measure, in tokens")
    live: bool = Field(False, description="also decode the held-out requests with target and draft together, and count")
    reads_target: ReadsTarget = False
    parallel: Parallel = False
    timed: bool = Field(False, description="add the column learning_seconds of each measurement")

    @property
    def is_trained(self) -> bool:
        return self.sample_source != "none" and self.epochs > 0

    @property
    def longest(self) -> int:
        """The most tokens of a block that are measured."""
        return max([self.draft_len, *self.draft_lens])

    @model_validator(mode="after")
    def _writes_alone(self) -> Offline:
        if (self.reads_target or self.parallel) and self.sample_source not in ("teacher", "none"):
            raise ValueError(
                "a draft with reads_target or parallel writes no answers alone: sample_source must be teacher"
            )
        return self


class Updates(Training):
    """How a draft is updated with requests that it served."""

    loss_positions: LossPositions = "rejected"
    lag: int = Field(0, ge=0, description="requests served between an update and its arrival at the server")


class Serving(Updates):
    """How a draft learns while it serves (OSD, Algorithm 1)."""

    update_interval: int = Field(gt=0, description="requests between two updates; the second learns from all of them")
    replay: int = Field(0, ge=0, description="older requests that an update learns from again")
    buffer: int = Field(0, ge=0, description="latest requests from which the replayed ones are drawn; 0: all")


class ReplayLog(Serving):
    """Several options to serve a log, each replayed for all ``draft_lens``.

    One copy of the draft is distilled on the stream; another serves it once and learns from it.
    """

    draft_lens: Distinct[Count] = Field(
        [1, 2, 3, 4, 5, 6, 7, 8], min_length=1, description="draft lengths to compare, in tokens"
    )
    thresholds: Distinct[ShareBelow1] = Field(
        [0.3, 0.45, 0.6, 0.8],
        description="also blocks that end where suffix decoding gives all their tokens together less probability than this; at temperature 0 also where the draft gives its token less",
    )
    epochs: int = Field(2, gt=0, description="epochs of distillation")
    ceiling: int = Field(
        12, ge=0, description="first requests on which the optimum of two and four drafts is computed; 0: none"
    )


class TimedUpdates(Updates):
    """Updates that are timed beside decoding, by a target that is inflated if ``inflated_layers`` or ``inflated_ffn`` is set."""

    requests: int = Field(gt=0, description="length of the stream, in requests")
    inflated_layers: InflatedLayers = 0
    inflated_ffn: InflatedFfn = 0
    temperature: float = Field(
        0.0, ge=0, le=0, description="temperature of the answers that are learnt: only 0, greedy"
    )


class BreakEven(TimedUpdates):
    """The cost of updates against what they save, and against a larger static draft with the same compute.

    The draft ``larger`` is distilled beforehand on the requests that follow the stream, with as many
    FLOPs as the online draft's training takes.
    """

    intervals: Distinct[Count] = Field(min_length=1, description="numbers of requests between two updates to compare")
    larger: str = Field("draft_large", description="the larger static draft: folder below models/")
    measurements: int = Field(gt=0, description="times that each step and update is timed, interleaved")
    context: int = Field(gt=0, default=128, description="tokens in the caches")

    @model_validator(mode="after")
    def _updates_in_every_run(self) -> BreakEven:
        if (longest := max(self.intervals)) > self.requests:
            raise ValueError(f"an interval of {longest} in a stream of {self.requests} requests: no update is made")
        return self

    @property
    def drafts_opened(self) -> list[str]:
        return [self.draft, self.larger]
