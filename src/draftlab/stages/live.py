"""Live decoding with several drafted sequences: tokens per target call, tokens per second."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING

from pydantic import Field

from draftlab.core.measure import Measure
from draftlab.core.settings import Count, Distinct, NonNegativeInt, NotNegative
from draftlab.errors import UserError
from draftlab.files.registries import is_own
from draftlab.progress import progress
from draftlab.stages._batches import by_batch
from draftlab.stages._decoding import DecodedRow, Decoding, Inputs
from draftlab.stages._measures import BLOCK_EFFICIENCY
from draftlab.stages._schemes import PATHS, LiveScheme
from draftlab.stages._stage import Bench, Facts, column, stage_of, timing

if TYPE_CHECKING:
    import pandas as pd
    import sacrebleu
    from rouge_score.rouge_scorer import RougeScorer
    from torch import Generator

    from draftlab.core.verify.path import PathVerifier
    from draftlab.core.verify.token import TokenVerifier
    from draftlab.core.verify.tree import TreeVerifier
    from draftlab.engine.held_out import Request, Work
    from draftlab.engine.speculate import Decoded
    from draftlab.models import Tokenizer

PLAIN = "plain"
"""The target alone, one token per call."""


class Contest(Decoding):
    """Every combination of the lists is a contender, unless its linear program has more tokens than its ``alphabet``."""

    schemes: Distinct[LiveScheme] = Field(
        min_length=1,
        description="how drafts are verified; NAME+block: by blocks (or by another verifier of a path) once a single sequence is left; plain: no draft, only live. Each with every combination of the lists below, unless its linear program has more tokens than alphabet",
    )
    num_drafts: Distinct[Count] = Field(min_length=1, description="numbers of drafted sequences")
    draft_temperature: Distinct[NotNegative] = Field(min_length=1, description="temperatures of the drafts")
    first_temperature: NotNegative | None = Field(
        None, description="temperature of the first draft; None: that of the others"
    )
    target_temperature: Distinct[NotNegative] = Field([1.0], min_length=1, description="temperatures of the target")
    top_k: Distinct[NonNegativeInt] = Field(
        [0], min_length=1, description="numbers of most probable tokens that are kept; 0: all"
    )
    lp_threshold: Distinct[Count] = Field(
        [5], min_length=1, description="numbers of tokens in the linear program of importance_truncated"
    )
    alphabet: Distinct[NonNegativeInt] = Field(
        [0], min_length=1, description="numbers of tokens that importance_truncated ranks; 0: all"
    )


class Settings(Contest):
    quality: bool = Field(False, description="also compute ROUGE-L and BLEU of each answer")


class Contested(DecodedRow):
    """A contender at a request."""

    scheme: str = column("how drafts are verified; plain: none")
    num_drafts: int = column("drafted sequences")
    draft_temperature: float = column("temperature of the drafts")
    first_temperature: float = column("temperature of the first draft")
    lp_threshold: int = column("tokens in the linear program; 0: no program")
    alphabet: int = column("tokens that importance sampling ranks; 0: all")
    draft_len: int = column("drafted tokens of a sequence and block")


class Row(Contested):
    """A request, decoded by a contender."""

    drafted: int = column("tokens drafted per sequence", "tokens")
    visited: int = column("drafted tokens that were judged: accepted ones, and the first rejected one", "tokens")
    accepted: int = column("drafted tokens that were accepted", "tokens")
    emitted: int = column("tokens of the answer", "tokens")
    blocks: int = column("target calls")
    draft_seconds: float = timing("share of its batch's time in the draft; CPU time on a CPU")
    target_seconds: float = timing("the same in the target")
    select_seconds: float = timing("the same in verification")
    transform_seconds: float = timing("the same for turning the target's logits into distributions", optional=True)
    rouge_l: float = column("ROUGE-L of the answer, F-measure; empty without a reference", optional=True)
    bleu: float = column("sentence BLEU of the answer, 0 to 1; empty without a reference", optional=True)
    batch: int = column("number of the batch that it was decoded in")


class Derived:
    seconds: float = timing("time of the request")
    identical: bool = column("whether all its drafts have the same temperature")
    metric: str = column("BLEU of translations, else ROUGE-L", optional=True)
    score: float = column("score of the answer by its metric", optional=True)
    size: str = column("tokens in the linear program, in words", optional=True)


MEASURES = {
    "block_efficiency": BLOCK_EFFICIENCY,
    "acceptance": Measure("accepted", "visited", "acceptance at a judged depth", "probability"),
    "token_rate": Measure("emitted", "seconds", "token rate", "tokens per second"),
    "selection": Measure("select_seconds", "blocks", "verification", "seconds per target call"),
    "score": Measure("score", None, "score (ROUGE-L or BLEU, 0 to 1)"),
    "rouge_l": Measure("rouge_l", None, "ROUGE-L"),
    "bleu": Measure("bleu", None, "BLEU"),
}


@dataclass(frozen=True)
class Contender:
    """One way to decode; the fields are columns of the table. ``top_k`` 0 keeps every token."""

    scheme: str
    num_drafts: int
    draft_temperature: float
    first_temperature: float
    target_temperature: float
    top_k: int
    lp_threshold: int
    alphabet: int

    @property
    def draft_temperatures(self) -> list[float]:
        """One per drafted sequence."""
        return [self.first_temperature, *[self.draft_temperature] * (self.num_drafts - 1)]

    @property
    def verifier(self) -> TokenVerifier | TreeVerifier:
        """The verifier of each position, or of a tree; ``single`` where the scheme verifies one path."""
        from draftlab.core.verify.path import PathVerifier
        from draftlab.core.verify.single import single

        return single if isinstance(self._head, PathVerifier) else self._head

    @property
    def tail(self) -> PathVerifier | None:
        """The verifier of the rest of a sequence once it is the only one left, which it is from the start where the scheme verifies one path."""
        from draftlab.core.verify import tail_of
        from draftlab.core.verify.path import PathVerifier

        name = self.scheme.partition("+")[2]
        if not isinstance(self._head, PathVerifier):
            return tail_of(name)
        if name:
            raise UserError(f"{self._head.name} verifies one path, which has no rest", remedy=f"leave +{name} out")
        return self._head

    @property
    def is_path(self) -> bool:
        """Whether the scheme verifies the path of one draft; this runs code of the user's own."""
        return self.scheme in PATHS or (is_own(self.scheme) and self.tail is not None)

    @property
    def _head(self) -> TokenVerifier | PathVerifier | TreeVerifier:
        from draftlab.core.verify import any_verifier

        return any_verifier(self.scheme.partition("+")[0], self.lp_threshold or 5, self.alphabet)


def contenders(settings: Contest, *, runs: bool = True) -> list[Contender]:
    """Every combination of the settings' lists, without duplicates and without a linear program larger than the alphabet that it ranks.

    With ``runs`` code of the user's own is run, which a plan does not: it then takes a verifier of one path for one of several drafts.
    """
    grid = itertools.product(
        settings.schemes,
        settings.num_drafts,
        settings.draft_temperature,
        settings.target_temperature,
        settings.top_k,
        settings.lp_threshold,
        settings.alphabet,
    )
    first = settings.first_temperature
    every = [_normal(Contender(s, k, t, t if first is None else first, *rest), runs) for s, k, t, *rest in grid]  # type: ignore[arg-type]
    return list(dict.fromkeys(one for one in every if not 0 < one.alphabet < one.lp_threshold))


def _normal(contender: Contender, runs: bool) -> Contender:
    """Set the fields that do not matter to a scheme to the same values, so that duplicates become equal."""
    if not contender.scheme.startswith("importance_truncated"):
        contender = replace(contender, lp_threshold=0, alphabet=0)
    if contender.scheme in PATHS or (runs and contender.is_path):
        contender = replace(contender, num_drafts=1, draft_temperature=contender.first_temperature)
    if contender.scheme == PLAIN:
        contender = replace(contender, num_drafts=0, draft_temperature=0.0, first_temperature=0.0)
    return contender


def run(settings: Settings, inputs: Inputs, bench: Bench) -> tuple[pd.DataFrame, Facts]:
    """Decode the held-out requests of each dataset with every contender.

    Contenders take turns on each batch of requests, so a machine that slows down slows all of them.
    """
    import pandas as pd
    import torch

    work = inputs.open(settings)
    eos_ids = work.tokenizer.eos_ids
    every = contenders(settings)
    generators = {contender: torch.Generator(work.target.device).manual_seed(settings.seed) for contender in every}
    decode(every[0], work.batches[0][1][:2], settings, work, eos_ids, generators[every[0]])  # warm-up

    def rows_of_batch(number: int, dataset: str, batch: Sequence[Request]) -> pd.DataFrame:
        frames = []
        shift = number % len(every)
        for contender in progress(every[shift:] + every[:shift], f"{dataset} contenders"):
            decoded = decode(contender, batch, settings, work, eos_ids, generators[contender])
            rows = pd.DataFrame(rows_of(decoded, batch, work.tokenizer if settings.quality else None))
            frames.append(rows.assign(dataset=dataset, batch=number, **vars(contender)))
        return pd.concat(frames, ignore_index=True)

    rows = by_batch(work, bench, list(generators.values()), rows_of_batch)
    return rows.assign(draft_len=settings.draft_len, top_p=settings.top_p, seed=settings.seed), {}


def decode(
    contender: Contender,
    batch: Sequence[Request],
    settings: Contest,
    work: Work,
    eos_ids: Sequence[int],
    generator: Generator,
) -> Decoded:
    """Decode a batch; the seconds of each part leave out the prompts, and are scaled to the process's CPU time on a CPU."""
    from draftlab.engine.generate import generate
    from draftlab.engine.speculate import BlockTrace, Decoded, speculate
    from draftlab.models.clock import clock_of

    target, prompts = work.target, [request.prompt_ids for request in batch]
    room, top_k = settings.max_new_tokens, contender.top_k
    of_target = settings.sampling(contender.target_temperature, top_k)
    wall, cpu = time.perf_counter(), time.process_time()
    if contender.scheme == PLAIN:
        clock, starts = clock_of(target.device, time.perf_counter), list[float]()
        answers = generate(
            target,
            prompts,
            max_new_tokens=room,
            eos_ids=eos_ids,
            sampling=of_target,
            generator=generator,
            begin=lambda: starts.append(clock()),
        )
        seconds = clock() - starts[0]
        decoded = Decoded([BlockTrace.plain(answer) for answer in answers], max(map(len, answers)), 0.0, seconds, 0.0)
    else:
        decoded = speculate(
            target,
            work.draft,
            prompts,
            draft_len=settings.draft_len,
            max_new_tokens=room,
            eos_ids=eos_ids,
            num_drafts=contender.num_drafts,
            verifier=contender.verifier,
            tail=contender.tail,
            sampling=of_target,
            draft_sampling=[settings.sampling(temperature, top_k) for temperature in contender.draft_temperatures],
            generator=generator,
        )
    scale = (time.process_time() - cpu) / (time.perf_counter() - wall) if target.device.type == "cpu" else 1.0
    return replace(decoded, **{name: scale * getattr(decoded, name) for name in PARTS})


def rows_of(decoded: Decoded, batch: Sequence[Request], tokenizer: Tokenizer | None) -> Iterator[dict[str, float]]:
    """The counts and seconds of each request of a decoded batch; with a tokenizer, also the scores of its answer."""
    parts = ("draft_seconds", "target_seconds", "select_seconds", "transform_seconds")
    seconds = {name: getattr(decoded, name) / len(batch) for name in parts}
    for request, trace in zip(batch, decoded.traces, strict=True):
        counts = {name: sum(getattr(trace, name)) for name in ("drafted", "visited", "accepted", "emitted")}
        scores = score(tokenizer.decode(trace.answer_ids), request.reference) if tokenizer else {}
        yield {"request_id": request.number, **counts, "blocks": len(trace.emitted), **seconds, **scores}


def score(text: str, reference: str | None) -> dict[str, float]:
    """``rouge_l``, F-measure of the longest common subsequence of words, and sentence ``bleu``, from 0 to 1; NaN without a reference.

    Sentence BLEU leaves out orders of n-grams that a short answer has none of (``effective_order``).
    """
    if not reference:
        return {"rouge_l": math.nan, "bleu": math.nan}
    rouge, bleu = _scorers()
    return {
        "rouge_l": float(rouge.score(reference, text)["rougeL"].fmeasure),
        "bleu": float(bleu.sentence_score(text, [reference]).score) / 100,
    }


@cache
def _scorers() -> tuple[RougeScorer, sacrebleu.BLEU]:
    import sacrebleu
    from rouge_score.rouge_scorer import RougeScorer

    return RougeScorer(["rougeL"]), sacrebleu.BLEU(effective_order=True)


PARTS = ["draft_seconds", "target_seconds", "transform_seconds", "select_seconds"]


def derive(rows: pd.DataFrame) -> pd.DataFrame:
    """The sum of a request's seconds, and whether its drafts had one temperature."""
    seconds = rows.reindex(columns=PARTS).sum(axis=1)
    return rows.assign(seconds=seconds, identical=rows["first_temperature"] == rows["draft_temperature"])


def quality(rows: pd.DataFrame) -> pd.DataFrame:
    """The score of each answer by the metric of its task: BLEU of translations, else ROUGE-L."""
    translated = rows["dataset"] == "wmt16"
    metric = translated.map({True: "BLEU", False: "ROUGE-L"})
    return rows.assign(metric=metric, score=rows["bleu"].where(translated, rows["rouge_l"]))


def truncation(rows: pd.DataFrame) -> pd.DataFrame:
    """The ``size`` of the linear program as a name."""
    return rows.assign(size=[f"linear program of {size} tokens" if size else "single" for size in rows["lp_threshold"]])


STAGE = stage_of(__name__, split="eval", views={"quality": quality, "truncation": truncation})
