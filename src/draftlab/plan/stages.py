"""What an experiment may say of each stage: one frozen model, whose fields are the stage's command line."""

from __future__ import annotations

import dataclasses
import json
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, TypeAdapter, ValidationError, model_validator

from draftlab.data import streams
from draftlab.plan import registries
from draftlab.plan.scales import Count, Dataset, Settings, Whole

LossPositions = Literal["rejected", "all", "block_end", "repository"]
if TYPE_CHECKING:
    SampleSource = str
    Loss = str
    Verifier = str
    Scheme = str
    LiveScheme = str
else:
    SampleSource = Literal[registries.SOURCES]
    Loss = Literal[registries.LOSSES]
    Verifier = Literal[registries.VERIFIERS]
    Scheme = Literal[registries.VERIFIERS + registries.PATHS]
    WITH_TAIL = (f"{name}+block" for name in registries.VERIFIERS if name != "block")
    LiveScheme = Literal["plain", *registries.VERIFIERS, *WITH_TAIL]

Share = Annotated[float, Field(ge=0, le=1)]
Under1 = Annotated[float, Field(ge=0, lt=1)]
NotNegative = Annotated[float, Field(ge=0)]
TopP = Annotated[float, Field(gt=0, le=1)]


def _axis(value: Any) -> Any:
    named = value.values() if isinstance(value, dict) else []
    if not value or not isinstance(value, list | dict) or not all(isinstance(settings, dict) for settings in named):
        raise ValueError("an axis is a list of values or a mapping from names to settings, with at least one entry")
    return value


Axis = Annotated[list[Any] | dict[str, dict[str, Any]], BeforeValidator(_axis)]
"""Values of a setting; or names, each of which stands for several settings."""


def _as_word(value: Any) -> Any:
    return value if isinstance(value, str) else json.dumps(value, default=str)


def _mapping(word: str) -> str:
    try:
        found = json.loads(word or "{}")
    except json.JSONDecodeError:
        found = word
    if not isinstance(found, dict):
        raise ValueError("give a mapping")
    return word


def _axes(word: str) -> str:
    for values in json.loads(word or "{}").values():
        _axis(values)
    return word


Nested = Annotated[str, BeforeValidator(_as_word), AfterValidator(_mapping)]
"""A mapping of a YAML file as one word of a command line (JSON)."""


class Job(Settings):
    """A stage that runs several variants in one process.

    ``inner`` holds axes like those of an experiment, looped inside the job; ``labels`` is filled in: the cell's place on the outer
    axes. Both become columns of the table.
    """

    labels: Nested = "{}"
    inner: Annotated[Nested, AfterValidator(_axes)] = "{}"


class Training(Job):
    """Settings that offline and online distillation share.

    ``batch``: requests per update of a draft trained on recorded answers; ``micro_batch`` (0: all) of them in one forward, the
    gradients added up. ``temperature`` is that of target and draft when they decode; the loss is always at temperature 1.
    """

    dataset: Dataset = ""
    pair: Literal["", "t5"] = Field("", description="whose target and drafts: the scale's own, or its T5 models")
    draft: str = Field("draft", description="folder below models/")
    seed: Whole = 0
    temperature: float = Field(0.0, ge=0)
    learning_rate: float = Field(gt=0)
    batch: int = Field(gt=0)
    micro_batch: int = Field(0, ge=0)
    draft_len: int = Field(5, gt=0)
    loss: Loss = "forward_kl"
    schedule: Literal["cosine", "constant"] = "cosine"
    clip: float = Field(1.0, ge=0)
    device: Literal["cpu", "cuda"] = Field("cpu", description="the scale sets it (``compute``)")
    autocast: bool = Field(False, description="bfloat16 products over float32 weights; the scale sets it")

    @property
    def datasets(self) -> list[Dataset]:
        """The datasets whose recorded answers a job reads."""
        return [self.dataset]


class Offline(Training):
    """Distil a draft on answers, then measure it on the held-out requests.

    ``requests`` (0: all) bounds what it learns from. ``sample_batch`` requests are answered at once when the draft takes part: the
    draft that answered is then up to ``sample_batch / batch`` updates old. ``probes`` measures inside each epoch; ``live`` decodes
    the held-out requests as well, target and draft together, and counts. ``save`` names the ``method`` whose draft is kept (none: the
    first one).
    """

    sample_source: SampleSource = "teacher"
    epochs: int = Field(ge=0)
    requests: int = Field(0, ge=0)
    sample_batch: int = Field(64, gt=0)
    probes: int = Field(0, ge=0, description="measurements per epoch while training")
    draft_lens: list[Count] = Field([], description="further draft lengths to measure")
    live: bool = False
    save: str = ""


class Online(Training):
    """Serve the stream in order; alpha of a request is measured before the update that uses it (OSD, Algorithm 1).

    Without ``stream`` the requests of ``dataset`` come in their order, else as that stream says (``streams.Stream``), each group's next
    ``aside`` requests kept apart. Before serving the draft is distilled on the first ``warm_share`` of the stream, or of each group of
    what was kept apart (``warm_on``), ``warm_epochs`` times, or with as many updates as serving makes (``warm_fair``). While it serves
    it ``learns`` from every ``update_interval`` requests and ``replay`` older ones out of the last ``buffer`` (0: all); an update reaches the
    server ``lag`` requests later. ``drafts``: one for all, or one per true class, or per class that the router names.
    """

    stream: Nested = ""
    of: list[Dataset] = Field([], description="the datasets of the stream")
    aside: int = Field(0, ge=0)
    learns: bool = True
    update_interval: int = Field(gt=0)
    loss_positions: LossPositions = "rejected"
    lag: int = Field(0, ge=0)
    replay: int = Field(0, ge=0)
    buffer: int = Field(0, ge=0)
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
    def _check(self) -> Online:
        if bool(self.stream) == bool(self.dataset) or bool(self.stream) != bool(self.of):
            raise ValueError("give a dataset, or a stream and the datasets that it is made of")
        if self.warm_on == "aside" and not (self.stream and self.aside):
            raise ValueError("warm_on aside needs a stream and requests kept aside: set aside")
        if self.probes and self.drafts != "shared":
            raise ValueError("probes measure one draft: drafts must be shared")
        if self.stream:
            _ = self.arrangement
        return self

    @property
    def arrangement(self) -> streams.Stream:
        """The stream, checked."""
        known = {field.name for field in dataclasses.fields(streams.Stream)}
        if unknown := sorted(set(json.loads(self.stream)) - known):
            raise ValueError(f"unknown key {unknown[0]!r} of the stream; allowed: {', '.join(sorted(known))}")
        try:
            return STREAM.validate_json(self.stream)
        except ValidationError as error:
            first = error.errors()[0]
            raise ValueError(f"stream.{first['loc'][0] if first['loc'] else ''}: {first['msg']}") from None


STREAM = TypeAdapter(streams.Stream)


class Tokens(Training):
    """Which tokens a draft proposes, has accepted and lacks, before and after offline distillation (OSD, Fig. 7 and Table 6)."""

    epochs: int = Field(gt=0)
    temperature: float = Field(0.0, ge=0, le=0)


class Timed(Online):
    """Learning that is timed beside decoding; ``inflated_layers`` and ``inflated_ffn`` as for an ``Engine``."""

    requests: int = Field(gt=0)
    inflated_layers: int = Field(0, ge=0)
    inflated_ffn: int = Field(0, ge=0)
    temperature: float = Field(0.0, ge=0, le=0)


class Medusa(Timed):
    """Heads on the target against a draft, before and after both learnt from ``requests`` of the stream (OSD, Table 4).

    ``heads_learning_rate``: of the heads. They first learn the target's answers to ``warm_requests`` of each dataset of ``warm``, as released heads
    do theirs. ``widths``: guesses of each head in the tree. ``live_requests`` held-out requests are decoded, ``at_once`` by every contender in turn.
    ``verifiers`` of the tree at temperature 1. ``timed_updates``: interleaved updates that tell what an epoch takes.
    """

    warm: list[Dataset] = Field(min_length=1)
    warm_requests: int = Field(gt=0)
    heads_learning_rate: float = Field(gt=0)
    widths: list[Count] = Field(min_length=1)
    verifiers: list[Literal["rrs", "greedy", "typical"]] = ["rrs", "typical"]
    live_requests: int = Field(gt=0)
    at_once: int = Field(gt=0, default=5)
    timed_updates: int = Field(gt=0)

    @property
    def datasets(self) -> list[Dataset]:
        return [self.dataset, *self.warm]


class BreakEven(Timed):
    """What updates cost against what they save, for each of ``intervals``, and against a larger static draft at the same compute.

    The stream is the first ``requests`` of the dataset; ``larger`` is distilled beforehand on as many of the next ones as the FLOPs of the online
    draft's training buy it. ``measurements``, interleaved, of every step and update give the seconds. ``context``: tokens in the caches.
    """

    intervals: list[Count] = Field(min_length=1)
    larger: str = "draft_large"
    measurements: int = Field(gt=0)
    context: int = Field(gt=0, default=128)


class Shares(Settings):
    """Share of each class of requests in equal slices of time (OSD, Figs. 2 and 10)."""

    dataset: Dataset
    group_by: streams.GroupBy
    slices: int = Field(gt=0)


class SpeedupTheory(Settings):
    """Eq. 1 of OSD over a grid (Fig. 8)."""

    curves: list[tuple[Count, NotNegative]] = Field(min_length=1)
    alphas: list[Share] = Field(min_length=1)


class PairSizes(Settings):
    """Inputs of OSD's Table 5, as printed: GB of weights, and GB of one token of each model's cache."""

    target_gb: float = Field(gt=0)
    draft_gb: float = Field(gt=0)
    target_cache_gb: float = Field(ge=0)
    draft_cache_gb: float = Field(ge=0)


class MemoryTraffic(PairSizes):
    """Bytes that a request moves (OSD, Table 5): the printed formula, and every term, as printed and for the run's own pair.

    ``alphas`` of the draft before and after; ``rounded`` are the block lengths that the paper uses for them. ``dataset``: whose measured block
    lengths the run's own pair has. ``context``: tokens in the caches, on average.
    """

    dataset: Dataset
    tokens: int = Field(gt=0)
    context: int = Field(gt=0)
    draft_len: int = Field(gt=0)
    alphas: tuple[Share, Share]
    rounded: tuple[float, float]
    update_interval: list[Count] = Field(min_length=1)
    batch: list[Count] = Field(min_length=1)


class Utilisation(Settings):
    """Load of a request trace against hardware (OSD, App. A.4), with the draft's training, over loads from 1 to ``most`` times as large."""

    tokens_per_request: float = Field(gt=0)
    requests: float = Field(gt=0)
    days: float = Field(gt=0)
    flops_per_token: float = Field(gt=0)
    hardware_flops: float = Field(gt=0)
    draft_flops_per_token: float = Field(gt=0)
    draft_len: int = Field(gt=0)
    alpha: Share
    most: float = Field(gt=1)
    pairs: list[tuple[str, float, float, float, float]] = Field(
        description="pair, parameters of target and draft in billions, the block length that is printed, the alpha that it stands for"
    )


class Engine(Settings):
    """How a pair runs: in llama.cpp with ``weights``, ``threads`` and ``gpu_layers`` on a GPU (-1: all), or in torch on ``device``.

    ``inflated_layers`` > 0 makes a small target cost as much as a large one (``latency.inflate``), with feed-forward parts
    ``inflated_ffn`` wide on ``inflated_widths`` times as many channels.
    """

    backend: Literal["llama_cpp", "torch"] = "llama_cpp"
    device: Literal["cpu", "cuda"] = "cpu"
    inflated_layers: int = Field(0, ge=0)
    inflated_ffn: int = Field(0, ge=0)
    inflated_widths: Literal[1, 4, 16, 64] = 1
    weights: Literal["f32", "f16", "q8_0", "q4_0"] = "f32"
    threads: int = Field(gt=0, default=1)
    gpu_layers: int = Field(0, ge=-1)
    seed: Whole = 0


class LatencyAlpha(Engine):
    """Measured ms/token of llama.cpp at controlled acceptance (OSD, Tables 2 and 7)."""

    alpha: list[Under1] = Field(min_length=1)
    draft_len: list[Count] = Field(min_length=1)
    blocks: int = Field(gt=0)
    rounds: int = Field(gt=0)


class LatencyLength(Engine):
    """Speed-up at controlled acceptance against the length of the answer, after a prefix (OSD, Table 8)."""

    alpha: list[Under1] = Field(min_length=1)
    length: list[Count] = Field(min_length=1)
    prefix: int = Field(gt=0, default=512)
    draft_len: int = Field(gt=0)
    blocks: int = Field(gt=0)
    rounds: int = Field(gt=0)


class LatencyRequests(Engine):
    """One request after another by each contender: no speculation, and each draft (OSD, Table 3)."""

    dataset: Dataset
    draft_len: int = Field(gt=0)
    requests: int = Field(gt=0)
    max_new_tokens: int = Field(gt=0)
    adaptive: bool = Field(False, description="also with a draft length that follows the acceptance")
    temperature: float = Field(default=0, ge=0, description="of the samples of target and drafts; 0: greedy")


class LatencyCost(Engine):
    """Time of a draft step, a target step and of verifying several tokens, at context lengths and batch sizes."""

    context: list[Count] = Field(min_length=1)
    batch: list[Count] = Field(min_length=1)
    verified: list[Count] = Field(min_length=1)
    blocks: int = Field(gt=0)


class LatencyBranches(Engine):
    """Cost of verifying K branches in one call (multi-draft) against one branch."""

    num_drafts: list[Count] = Field(min_length=1)
    draft_len: int = Field(gt=0)
    context: int = Field(gt=0, default=128)
    blocks: int = Field(gt=0)


class LatencyUpdate(Engine):
    """One update of the draft against answering the requests between two updates (OSD, Table 9); ``draft_model``: folder below models/."""

    draft_model: str = "draft"
    prompt: int = Field(gt=0, default=64)
    generated: int = Field(gt=0, default=128)
    update_interval: int = Field(gt=0, default=8)
    blocks: int = Field(gt=0)


class LatencyNull(Engine):
    """The same contender against itself, many times: how often the comparison sees a winner where there is none."""

    repeats: int = Field(gt=0)
    pairs: int = Field(gt=1)
    steps: int = Field(gt=0)


class LatencyInterference(LatencyAlpha):
    """Serving at controlled acceptance while a draft trains on another core, and while none does."""

    update_batch: int = Field(gt=0, default=8, description="requests per update of the training process")
    update_tokens: int = Field(gt=0, default=64, description="tokens of each of them")


class Region(Settings):
    """Acceptance over the toy simplex of MDSS Fig. 2, exactly."""

    num_drafts: list[Count] = Field(min_length=1)
    points: int = Field(gt=1)


class Cone(Settings):
    """The polyhedral check of the best acceptance (MDSS App. D), and the linear program against the formula."""

    num_tokens: list[Count] = Field(min_length=1)
    num_drafts: list[Count] = Field(min_length=1)
    cases: int = Field(gt=0, description="random distributions per size, on which both are computed")
    seed: Whole = 0


class VerifierCost(Settings):
    """What a decision of each scheme costs (MDSS App. G)."""

    vocabs: list[Count] = Field(default=[32_000, 128_000], min_length=1)
    num_drafts: list[Count] = Field(default=[2, 4], min_length=1)
    batch: Count = 64
    rounds: Count = 40
    seed: Whole = 0


class OnPairs(Settings):
    """What experiments on recorded probability pairs share; ``datasets`` empty, or none of the pair's: all of the pair's.

    ``positions`` bounds how many of each dataset are used. ``top_k`` 0 keeps every token; ``synthetic`` adds the family of model-like distributions.
    """

    datasets: list[Dataset] = []
    synthetic: bool = False
    positions: int = Field(gt=0, default=1_000_000)
    top_k: int = Field(ge=0, default=0)
    top_p: TopP = 1.0


class Acceptance(OnPairs):
    """Exact acceptance of multi-draft schemes (MDSS Table 2)."""

    schemes: list[Scheme] = Field(min_length=1)
    num_drafts: list[Count] = Field(min_length=1)
    draft_temperature: list[NotNegative] = Field(min_length=1)
    target_temperature: float = Field(1.0, gt=0)
    path_len: int = Field(gt=0, default=4, description="tokens of a path, for schemes that verify one")


class Regime(OnPairs):
    """Acceptance over a grid of target and draft temperatures, by the target's entropy."""

    num_drafts: int = Field(gt=1)
    target_temperature: list[NotNegative] = Field(min_length=1)
    draft_temperature: list[NotNegative] = Field(min_length=1)


class Sinkhorn(OnPairs):
    """Entropic optimal transport instead of the linear program: acceptance and cost against iterations."""

    num_drafts: list[Count] = Field(min_length=1)
    draft_temperature: list[NotNegative] = Field(min_length=1)
    iterations: list[Whole] = Field(min_length=1)
    sharpness: list[NotNegative] = Field(min_length=1)
    rounds: int = Field(gt=0)


class Live(Settings):
    """Live decoding with several drafted sequences; ``datasets`` empty, or none of the pair's: all of the pair's.

    Every combination of the lists is a contender. A scheme ``NAME+block`` verifies by blocks once a single sequence is left.
    ``first_temperature``: of the first draft, where the drafts differ. ``top_k`` 0 keeps every token.
    """

    datasets: list[Dataset] = []
    schemes: list[LiveScheme] = Field(min_length=1)
    num_drafts: list[Count] = Field(min_length=1)
    draft_len: int = Field(gt=0)
    draft_temperature: list[NotNegative] = Field(min_length=1)
    first_temperature: NotNegative | None = None
    target_temperature: list[NotNegative] = Field([1.0], min_length=1)
    top_k: list[Whole] = Field([0], min_length=1)
    top_p: TopP = 1.0
    lp_threshold: list[Count] = Field([5], min_length=1)
    requests: int = Field(gt=0)
    batch: int = Field(gt=0)
    max_new_tokens: int = Field(gt=0)
    quality: bool = Field(False, description="also ROUGE-L and BLEU of each answer")
    seed: Whole = 0


class OnlineMultidraft(Settings):
    """Specialists of several topics, learnt online, as non-identical drafts; against routing and copies of one shared draft."""

    mixture: str = Field(description="what the table calls this set of topics")
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


STAGES: dict[str, type[Settings]] = {
    "offline": Offline,
    "online": Online,
    "tokens": Tokens,
    "medusa": Medusa,
    "break_even": BreakEven,
    "memory_traffic": MemoryTraffic,
    "utilisation": Utilisation,
    "shares": Shares,
    "speedup_theory": SpeedupTheory,
    "latency_alpha": LatencyAlpha,
    "latency_length": LatencyLength,
    "latency_requests": LatencyRequests,
    "latency_cost": LatencyCost,
    "latency_branches": LatencyBranches,
    "latency_update": LatencyUpdate,
    "latency_null": LatencyNull,
    "latency_interference": LatencyInterference,
    "region": Region,
    "cone": Cone,
    "verifier_cost": VerifierCost,
    "acceptance": Acceptance,
    "regime": Regime,
    "sinkhorn": Sinkhorn,
    "live": Live,
    "online_multidraft": OnlineMultidraft,
}
