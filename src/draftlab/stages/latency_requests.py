"""The same requests by every contender on one engine: no speculation, and each draft (OSD, Table 3)."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

from pydantic import Field, model_validator

from draftlab.core.confident_tree import ConfidentTree
from draftlab.core.measure import Measure
from draftlab.core.settings import Count, Dataset, Distinct, NonNegativeInt, ShareBelow1
from draftlab.engine.answers import in_full, recorded_name
from draftlab.engine.settings import Filters
from draftlab.errors import UserError
from draftlab.latency.settings import Engine
from draftlab.progress import progress
from draftlab.stages._contenders import (
    AGAIN,
    BEFORE,
    CALIBRATION_CONTEXT,
    DISTILLED,
    LONGEST,
    PLAIN,
    check_names,
    contenders_of,
    priced,
)
from draftlab.stages._costs import Probes, predict, read_costs
from draftlab.stages._places import Places
from draftlab.stages._stage import Bench, Facts, Files, NoInputs, column, columns_of, stage_of, timing

if TYPE_CHECKING:
    import pandas as pd

    from draftlab.engine.answers import Answer
    from draftlab.latency.cost import CostModel
    from draftlab.latency.drafters import Drafter
    from draftlab.latency.loop import Generation
    from draftlab.models.backend import LatencyBackend
    from draftlab.models.suffixes import Memory

PAST_END = "the last block's tokens beyond the end count too"

MOST_SEQUENCES = 256
"""As many sequences as a context of llama.cpp can have."""


class Settings(Engine, Filters):
    dataset: Dataset = Field(description="dataset whose recorded held-out requests are answered")
    draft_len: int = Field(
        gt=0, description="tokens drafted per call of the target, unless that number follows the acceptance"
    )
    requests: int = Field(gt=0, description="number of requests")
    first: int = Field(0, ge=0, description="number of the first of these requests among the recorded ones, from 0")
    max_new_tokens: int = Field(gt=0, description="most tokens of an answer")
    adaptive: bool = Field(False, description="also decode with a draft length that follows the acceptance")
    confidence: ShareBelow1 = Field(
        0,
        description="also decode with blocks that end where the draft gives its token less than this probability; 0: never",
    )
    trees: Distinct[Count] = Field(
        [],
        description="also decode with trees of at most so many drafted tokens, whose texts the draft finds most probable (EAGLE-2); llama_cpp only",
    )
    tree_depth: Count = Field(6, description="drafted tokens on the longest path of a tree")
    tree_width: Count = Field(4, description="texts that a tree extends at each depth, and tokens after each")
    tree_confidence: ShareBelow1 = Field(
        0, description="a tree has only texts that the draft gives at least this probability"
    )
    cost_aware: NonNegativeInt = Field(
        0,
        description="also decode with trees of at most so many tokens that have only what pays, by the costs of this machine and the draft's probabilities; 0: no such trees",
    )
    suffixes: bool = Field(
        False,
        description="also decode with suffix decoding, which remembers the target's greedy answers to the stream",
    )
    suffix_confidence: ShareBelow1 = Field(
        0,
        description="with suffixes, also decode with suffix decoding whose blocks end where their tokens together are less probable than this; 0: never",
    )
    temperature: float = Field(default=0, ge=0, description="temperature at which target and drafts sample; 0: greedy")
    distilled: Literal["osd_offline", "traffic_verdict", "beyond_parallel_drafts"] = Field(
        "osd_offline", description="the experiment that distilled the draft"
    )
    contenders: Distinct[str] = Field(
        [BEFORE, DISTILLED],
        min_length=1,
        description="the drafts: before (the pair's undistilled draft), distilled, or the name of another draft of the pair, used unchanged",
    )
    probe_every: int = Field(
        0,
        ge=0,
        description="requests between two probes of the costs of the last draft, which run.json records; 0: no probes",
    )
    priced_by: str = Field(
        "", description="an experiment of the stage latency_cost, whose costs predict the times; empty: none"
    )

    @property
    def shapes(self) -> dict[int, ConfidentTree]:
        """The trees that are drafted, by their most tokens."""
        sizes = [*self.trees, *[self.cost_aware] * (self.cost_aware > 0)]
        return {nodes: ConfidentTree(nodes, self.tree_depth, self.tree_width) for nodes in sizes}

    @model_validator(mode="after")
    def _can_draft_all_of_it(self) -> Settings:
        if not self.temperature and (self.top_k or self.top_p < 1 or self.min_p):
            raise ValueError("top_k, top_p and min_p are for temperatures above 0")
        if self.suffix_confidence and not self.suffixes:
            raise ValueError("suffix_confidence is for suffix decoding: set suffixes: true")
        if self.shapes and self.backend != "llama_cpp":
            raise ValueError("trees are for backend llama_cpp")
        if self.shapes and self.priced_by:
            raise ValueError("trees have no predicted times: leave out priced_by")
        widest = max([*self.shapes, self.tree_width * self.tree_depth])
        if self.shapes and widest >= MOST_SEQUENCES:
            raise ValueError(f"a tree of {widest} tokens: llama.cpp can follow fewer than {MOST_SEQUENCES} at once")
        return self


class Row:
    """One request by one contender."""

    request_id: int = column("number among the recorded requests")
    split: str = column("train: requests of the stream; eval: held-out requests")
    contender: str = column(
        "the draft, with _adaptive if the draft length follows the acceptance, _confident if a block ends where the draft is unsure, _tree8 if it is a tree of up to 8 tokens, _cost_aware if it drafts as much as pays, and _parallel if it proposes a block in one call; "
        "lookup: prompt lookup, which drafts nothing where it finds nothing; lookup_first: the last draft takes over there (lookup_first_NAME: the draft of that name); suffix: suffix decoding, which remembers the stream's answers; suffix_first: the last draft takes over where that is unsure; none, none_again: no draft"
    )
    tokens: int = column("tokens of the answer", "tokens")
    seconds: float = timing("time to write the answer, without the prompt")
    blocks: int = column("calls of the target that verified drafted tokens", "calls", timed="adaptive or cost_aware")
    drafted: int = column(f"tokens that were drafted; {PAST_END}", "tokens", timed="adaptive or cost_aware")
    visited: int = column(
        f"drafted tokens that were judged: accepted ones, and the first rejected one after them; {PAST_END}",
        "tokens",
        timed="adaptive or cost_aware",
    )
    accepted: int = column(f"drafted tokens that were accepted; {PAST_END}", "tokens", timed="adaptive or cost_aware")
    draft_seconds: float = timing("draft steps")
    verify_seconds: float = timing("verification")
    steps: int = column("calls of the draft's model", "steps", timed="adaptive or cost_aware", optional=True)
    predicted_steps: float = column(
        "time of the answer predicted from the probed costs", "plain steps", timed=True, optional=True
    )
    same_text: bool = column("whether the answer equals that of plain decoding, as it must at temperature 0")
    dataset: str = column("the dataset of the request")
    draft_len: int = column(
        "tokens drafted per call of the target, unless that number follows the acceptance", "tokens"
    )
    temperature: float = column("temperature at which target and drafts sample; 0: greedy")


class Derived:
    plain_seconds: float = timing("time of the answer with plain decoding, the mean of both measurements")
    plain_calls: float = timing("time that as many plain steps take as the answer has blocks")
    milliseconds: float = column("time of the answer", "ms", timed=True)


MEASURES = {
    "speedup": Measure("plain_seconds", "seconds", "speed-up", "times plain decoding"),
    "verify_steps": Measure("verify_seconds", "plain_calls", "cost of a verifying call", "plain steps"),
    "draft_steps": Measure("draft_seconds", "plain_calls", "cost of drafting a block", "plain steps"),
    "same_text": Measure("same_text", None, "answers that equal plain decoding's", "share"),
    "token_ms": Measure("milliseconds", "tokens", "time per token", "ms"),
    "alpha_accepted": Measure("accepted", "visited", "accepted over visited tokens"),
    "block_efficiency": Measure("tokens", "blocks", "block efficiency", "tokens per target call"),
    "predicted_speedup": Measure("tokens", "predicted_steps", "speed-up predicted from costs", "times plain decoding"),
}


class Inputs(NoInputs):
    """The target, drafts by name, the recorded answers whose requests are decoded, and the table of probed costs, if there is one.

    **Fields:**
    - `target`: the target: the folder of a model or a GGUF file
    - `drafts`: each contender's name, then the folder of its draft
    - `answers`: file of the target's recorded answers to the dataset's held-out requests
    - `remembered`: file of its recorded answers to the stream, if suffix decoding remembers them
    - `costs`: table of the experiment that priced_by names
    """

    same: ClassVar[tuple[str, ...]] = ("pair", "dataset", "contenders", "distilled", "suffixes", "priced_by")
    target: Path
    drafts: dict[str, Path]
    answers: Path
    remembered: Path | None = None
    costs: Path | None = None

    @classmethod
    def locate(cls, variants: Sequence[Any], places: Places) -> Self:
        """The pair's drafts as they are, and the one that another experiment distilled on this dataset."""
        settings = variants[0]
        cell = settings.dataset
        if settings.distilled == "traffic_verdict":
            cell += f".{in_full(settings.temperature)}"
        distilled = places.other_cell(settings.distilled, cell) / "draft"
        stream, held_out = (
            places.recorded(settings.pair) / recorded_name(settings.dataset, split) / "answers.jsonl"
            for split in ("train", "eval")
        )
        drafts = {
            name: distilled if name == DISTILLED else places.model("draft" if name == BEFORE else name, settings.pair)
            for name in settings.contenders
        }
        costs = places.table(settings.priced_by) if settings.priced_by else None
        return cls(
            target=places.model("target", settings.pair),
            drafts=drafts,
            answers=held_out,
            remembered=stream if settings.suffixes else None,
            costs=costs,
        )

    def reads(self, variants: Sequence[Any]) -> Files:
        """The models, the answers and the costs."""
        answers = [self.answers, *([self.remembered] if self.remembered else [])]
        files = {"models": [self.target, *self.drafts.values()], "answers": answers}
        return files | ({"tables": [self.costs]} if self.costs else {})


def run(settings: Settings, inputs: Inputs, bench: Bench) -> tuple[pd.DataFrame, Facts]:
    """Decode some recorded requests with every contender on the engine of the settings."""
    from draftlab.engine.answers import Answer
    from draftlab.files.json_files import read_jsonl
    from draftlab.latency.pair import describe, open_pair
    from draftlab.latency.trees import sequences_for

    requests = list(
        itertools.islice(read_jsonl(inputs.answers, Answer), settings.first, settings.first + settings.requests)
    )
    if not requests:
        what = f"no requests from number {settings.first} on"
        raise UserError(what, file=inputs.answers, remedy="record more answers")
    masks = {name: mask for name, folder in inputs.drafts.items() if (mask := _mask(folder)) is not None}
    check_names(inputs.drafts, settings, masks)
    longest = max(len(request.prompt_ids) for request in requests) + settings.max_new_tokens
    shapes = settings.shapes.values()
    # A call reads one token more than are drafted.
    room = 1 + max([LONGEST, settings.draft_len, *(max(tree.nodes, tree.width * tree.depth) for tree in shapes)])
    opened = open_pair(
        inputs.target,
        *inputs.drafts.values(),
        settings=settings,
        context_length=max(longest, CALIBRATION_CONTEXT) + room,
        sequences=max([1, *map(sequences_for, shapes)]),
        shared=bool(shapes),
    )
    with opened as (target, *drafts):
        named = dict(zip(inputs.drafts, drafts, strict=True))
        most = settings.cost_aware
        prices = {name: priced(target, draft, most) for name, draft in named.items()} if most else {}
        contenders = contenders_of(target, named, settings, prices, _memory(inputs.remembered), masks)
        verified = max(settings.draft_len + 1, LONGEST if settings.adaptive else 0)
        costs = read_costs(inputs.costs, longest, [*inputs.drafts], verified) if inputs.costs else {}
        probes = Probes(target, drafts[-1], settings) if settings.probe_every else None
        rows = measure(target, contenders, requests, settings, costs, probes)
        same = settings.model_dump(include={"dataset", "draft_len", "temperature"})
        facts = describe(target, *drafts) | ({"probes": probes.records} if probes else {})
        facts |= {"prices": {name: asdict(price) for name, price in prices.items()}} if prices else {}
        return rows.assign(**same), facts


def _mask(draft: Path) -> int | None:
    """The token that a draft reads for those not known yet, if it can propose a block in one call."""
    from draftlab.models.config import mask_token_of, read_config

    return mask_token_of(read_config(draft)) if (draft / "config.json").is_file() else None


def _memory(answers: Path | None) -> Memory | None:
    """The answers that suffix decoding remembers, if it decodes."""
    from draftlab.engine.answers import Answer
    from draftlab.files.json_files import read_jsonl
    from draftlab.models.suffixes import Memory

    return Memory(answer.answer_ids for answer in read_jsonl(answers, Answer)) if answers else None


def measure(
    target: LatencyBackend,
    contenders: Mapping[str, Drafter],
    requests: Sequence[Answer],
    settings: Settings,
    costs: Mapping[str, CostModel] | None = None,
    probes: Probes | None = None,
) -> pd.DataFrame:
    """One row per request and contender; a prompt is computed once, outside the measured time.

    A request has as many new tokens as its recorded answer, so that all contenders do the same work; ``same_text`` says
    whether they wrote the same, as they must at temperature 0. The contenders take turns, in reversed order for every other request.
    With ``costs``, by draft, each row has its time by Eq. 1 at these costs, block for block.
    """
    import numpy as np
    import pandas as pd

    from draftlab.latency.drafters import answer_with
    from draftlab.latency.lookup import LookupBackend
    from draftlab.latency.loop import decode

    sampling = settings.sampling(settings.temperature)

    def answer(name: str, number: int, prompt: list[int], length: int) -> tuple[Generation, int]:
        """The answer, and how many steps the draft's model took."""
        rng = np.random.default_rng([settings.seed, settings.first + number])
        if name in (PLAIN, AGAIN):
            return decode(target, prompt, length, sampling=sampling, rng=rng), 0
        return answer_with(contenders[name], target, prompt, length, sampling, rng)

    costs = costs or {}
    priced = {id(one.draft): costs[name] for name, one in contenders.items() if name in costs}
    names = [PLAIN, *contenders, AGAIN]
    rows = []
    with_warm_up = [requests[0], *requests]  # the first request once more
    for number, request in enumerate(progress(with_warm_up, f"{settings.dataset} requests")):
        if probes and number and (number - 1) % settings.probe_every == 0:
            probes.take(number)
        length = min(len(request.answer_ids), settings.max_new_tokens)
        answers = {name: answer(name, number, request.prompt_ids, length) for name in names[:: 1 if number % 2 else -1]}
        for name, (written, steps) in answers.items():
            row = {
                "request_id": settings.first + number - 1,
                "contender": name,
                "tokens": len(written.tokens),
                "seconds": written.seconds,
                "blocks": len(written.blocks),
                "drafted": sum(block.drafted for block in written.blocks),
                "visited": sum(block.judged for block in written.blocks),
                "accepted": sum(block.accepted for block in written.blocks),
                "draft_seconds": sum(block.draft_seconds for block in written.blocks),
                "verify_seconds": sum(block.verify_seconds for block in written.blocks),
                "steps": steps,
                "same_text": written.tokens == answers[PLAIN][0].tokens,
            }
            if costs:
                draft = contenders[name].draft if name in contenders else None
                model = draft.inner if isinstance(draft, LookupBackend) else draft
                row["predicted_steps"] = predict(written, steps, priced.get(id(model), costs[DISTILLED]))
            if number:
                rows.append(row)
    return pd.DataFrame(rows)


def derive(rows: pd.DataFrame) -> pd.DataFrame:
    """Add the times of plain decoding of the same request, in the same cell: columns that no ``Row`` declares are axes of an experiment.

    It is the mean of both measurements of plain decoding. These two themselves are compared with the first.
    """
    import numpy as np
    import pandas as pd

    measured = {*columns_of(Row)} - {"request_id", "dataset", "draft_len", "temperature"}
    keys = [key for key in rows if key not in measured]
    requests, is_plain = pd.MultiIndex.from_frame(rows[keys]), rows["contender"].isin([PLAIN, AGAIN])
    first = rows[rows["contender"] == PLAIN].set_index(keys)["seconds"].reindex(requests).to_numpy()
    both = rows[is_plain].groupby(keys, observed=True, dropna=False)["seconds"].mean().reindex(requests).to_numpy()
    plain_seconds = np.where(is_plain, first, both)
    plain_calls = plain_seconds * rows["blocks"] / rows["tokens"]
    return rows.assign(plain_seconds=plain_seconds, plain_calls=plain_calls, milliseconds=1e3 * rows["seconds"])


STAGE = stage_of(__name__, split="eval", exclusive=True, needs_gpu_build=True)
