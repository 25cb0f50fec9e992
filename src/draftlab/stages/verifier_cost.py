"""What a decision of each verifier costs (MDSS, App. G)."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple

from pydantic import Field

from draftlab.core.measure import Measure
from draftlab.core.settings import Count, Distinct, Flat, Seed, TorchDevice
from draftlab.core.settings import Settings as Base
from draftlab.errors import UserError
from draftlab.progress import progress
from draftlab.stages._stage import Bench, Facts, NoInputs, column, stage_of

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd
    from jaxtyping import Float64
    from torch import Generator, Tensor

    from draftlab.core.verify.token import TokenVerifier

Timed = Callable[[], object]


class Filter(NamedTuple):
    """The Zipf exponent of the target's distribution, and how both distributions are cut."""

    slope: float
    top_k: int | None = None
    top_p: float = 1.0


UNCUT = "no truncation"
FILTERS = {
    "top-p .95, sharp": Filter(2.2, top_p=0.95),  # about 10 tokens are left
    "top-p .95, peaked": Filter(1.6, top_p=0.95),  # about 1,500
    UNCUT: Filter(1.05),
    "top-k 10": Filter(1.05, top_k=10),
    "top-k 100": Filter(1.05, top_k=100),
    "top-k 1000": Filter(1.05, top_k=1000),
}
if TYPE_CHECKING:
    FilterName = str
else:
    FilterName = Literal[tuple(FILTERS)]

TURN = 5
"""Decisions in a row on each turn, as after one target pass over 5 drafted tokens: the first one loads its code into the caches."""

ROW_BY_ROW = "importance_truncated s=5, highs"
"""This solver takes one position at a time: a batch costs as much as its rows."""


class Settings(Base):
    vocabs: Distinct[Count] = Field(
        default=[32_000, 128_000], min_length=1, description="sizes of the vocabulary, in tokens"
    )
    num_drafts: Distinct[Count] = Field(
        default=[2, 4], min_length=1, description="numbers of drafted tokens of a position"
    )
    batches: Distinct[Count] = Field(
        default=[1, 8, 32], min_length=1, description="numbers of positions decided at once"
    )
    filters: Distinct[FilterName] = Field(
        default=["top-p .95, sharp", "top-p .95, peaked", UNCUT],
        min_length=1,
        description="how both distributions are cut, and how steep they are",
    )
    rounds: Count = Field(
        40, description="timings of each verifier at batch 1; larger batches have half as many, at least 5"
    )
    device: TorchDevice = "cpu"
    seed: Seed = Field(0, description="seed of the distributions, drafts and orders")


class Row:
    """A contender at one size."""

    vocab: int = column("tokens of the vocabulary")
    filter: str = column("how the distributions are truncated, and how sharp they are")
    support: int = column("tokens that either distribution can produce after the filter")
    num_drafts: int = column("drafted tokens of a position")
    batch: int = column("positions decided at once")
    scheme: str = column(
        "verifier; restrict: finding the support from dense tables; sort: the tokens by q/p; optimum value: the best acceptance alone"
    )
    ms: float = column(
        "median time per position: CPU time of the thread, or on a GPU the time until it has finished", "ms", timed=True
    )
    ms_p90: float = column("the same, 90th percentile", "ms", timed=True)
    ms_low: float = column("lower end of the median's 95 % bootstrap interval over rounds", "ms", timed=True)
    ms_high: float = column("its upper end", "ms", timed=True)
    over_single: float = column("median extra time compared with a single draft in the same round", "ms", timed=True)
    over_single_low: float = column(
        "lower end of its interval; for the single draft itself, the interval should include 0", "ms", timed=True
    )
    over_single_high: float = column("its upper end", "ms", timed=True)


MEASURES = {
    "ms": Measure("ms", None, "time per decision", "ms"),
}


def contenders() -> dict[str, TokenVerifier]:
    """The verifiers that take turns; ``single`` is there twice, to measure the noise."""
    from draftlab.core.verify.greedy import greedy
    from draftlab.core.verify.k_seq import k_seq
    from draftlab.core.verify.optimal import optimal
    from draftlab.core.verify.rrs import rrs
    from draftlab.core.verify.single import single
    from draftlab.core.verify.specinfer import specinfer
    from draftlab.core.verify.truncated import Truncation, truncated

    return {
        "single": single,
        "single (again)": single,
        "specinfer": specinfer,
        "rrs": rrs,
        "greedy": greedy,
        "k_seq": k_seq,
        "optimal": optimal,
        "importance_truncated s=5": truncated(Truncation(5)),
        "importance_truncated s=5, first": truncated(Truncation(5, alphabet=5)),
        ROW_BY_ROW: truncated(Truncation(5, solver="highs")),
    }


def run(settings: Settings, inputs: NoInputs, bench: Bench) -> tuple[pd.DataFrame, Facts]:
    """Measure every size on the chosen device."""
    import torch

    rows = measure(settings)
    return rows, {} if settings.device == "cpu" else {"device": torch.cuda.get_device_name()}


def measure(settings: Settings) -> pd.DataFrame:
    """Median and 90th percentile of the time per decision: CPU time of one thread, or the time until a GPU has finished.

    Contenders have a new random order in each round. Both devices decide on the same distributions; a GPU draws other tokens from them.
    """
    import pandas as pd
    import torch

    if settings.device == "cuda" and not torch.cuda.is_available():
        raise UserError("no GPU for device cuda", remedy="use device cpu, or a machine with a GPU")
    sizes = itertools.product(settings.vocabs, settings.filters, settings.num_drafts, settings.batches)
    # A batch without truncation takes gigabytes at 128k tokens, and nobody serves that.
    if not (cells := [cell for cell in sizes if cell[3] == 1 or cell[1] != UNCUT]):
        what = f"nothing to measure: of {UNCUT}, only a batch of 1 is measured"
        raise UserError(what, remedy="add 1 to batches, or another filter")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with torch.inference_mode():
            return pd.concat([_cell(*cell, settings) for cell in cells], ignore_index=True)
    finally:
        torch.set_num_threads(threads)


def _cell(vocab: int, name: str, drafts: int, batch: int, settings: Settings) -> pd.DataFrame:
    import numpy as np
    import pandas as pd
    import torch

    from draftlab.core.sampling import draft_tokens, restrict
    from draftlab.core.verify.optimum import optimum_iid, ratio_order
    from draftlab.models.clock import clock_of

    seed, device = settings.seed, settings.device
    rng = np.random.default_rng(seed)
    on_cpu = _distributions(vocab, name, batch, torch.Generator().manual_seed(seed))
    target, draft = (distribution.to(device) for distribution in on_cpu)
    generator = torch.Generator(device).manual_seed(seed)
    dense = draft[:, None].expand(-1, drafts, -1)
    tokens = draft_tokens(dense, "iid", generator)
    tasks: dict[str, Callable[[], Timed]] = {}
    if name != UNCUT:
        find_support = partial(restrict, target, dense, tokens)
        tasks["restrict"] = lambda: find_support
        target, dense, tokens, _ = find_support()
    sort, evaluate = partial(ratio_order, target, dense[:, 0]), partial(optimum_iid, target, dense[:, 0], drafts)
    tasks |= {"sort": lambda: sort, "optimum value": lambda: evaluate}
    for scheme, verifier in contenders().items():
        if batch == 1 or scheme != ROW_BY_ROW:
            tasks[scheme] = partial(_decision, verifier, target, dense, generator)
    rounds = settings.rounds if batch == 1 else max(5, settings.rounds // 2)
    spent = _interleaved(tasks, rounds, rng, clock_of(device, time.thread_time))
    rows = []
    for scheme, times in spent.items():
        per_position, over = times / batch, (times - spent["single"]) / batch
        (low, high), (over_low, over_high) = _interval(per_position, rng), _interval(over, rng)
        rows.append(
            {
                "scheme": scheme,
                "ms": np.median(per_position),
                "ms_p90": np.quantile(per_position, 0.9),
                "ms_low": low,
                "ms_high": high,
                "over_single": np.median(over),
                "over_single_low": over_low,
                "over_single_high": over_high,
            }
        )
    size = {"vocab": vocab, "filter": name, "support": target.shape[1], "num_drafts": drafts, "batch": batch}
    return pd.DataFrame([size | row for row in rows])


def _distributions(vocab: int, name: str, batch: int, generator: Generator) -> tuple[Tensor, Tensor]:
    """Target and draft distributions: noisy power laws, the draft's with a higher temperature and more noise."""
    import torch

    from draftlab.core.sampling import Sampling, to_probs

    ranks = torch.arange(1, vocab + 1, dtype=torch.float64).log()
    noise = torch.randn(2, batch, vocab, dtype=torch.float64, generator=generator) / 2
    cut = FILTERS[name]
    logits, sampling = noise[0] - cut.slope * ranks, Sampling(top_k=cut.top_k, top_p=cut.top_p)
    return to_probs(logits, sampling), to_probs(logits / 1.2 + noise[1], sampling)


def _decision(verifier: TokenVerifier, target: Tensor, draft: Tensor, generator: Generator) -> Timed:
    """Draft tokens, and return a decision on them to be timed."""
    from draftlab.core.sampling import draft_tokens

    tokens = draft_tokens(draft, verifier.drafting, generator)
    return partial(verifier.sample, target, draft, tokens, generator, check=False)


def _interval(values: Float64[np.ndarray, " rounds"], rng: np.random.Generator) -> tuple[float, float]:
    """The 95 % bootstrap interval of a median."""
    import numpy as np

    medians = np.median(rng.choice(values, (1000, len(values))), axis=1)
    return float(np.quantile(medians, 0.025)), float(np.quantile(medians, 0.975))


def _interleaved(
    tasks: Mapping[str, Callable[[], Timed]], rounds: int, rng: np.random.Generator, clock: Callable[[], float]
) -> dict[str, Float64[np.ndarray, " rounds"]]:
    """Milliseconds per decision of each task in each round; the first two rounds warm up.

    Each round has a new order, because the task before decides what is in the caches.
    """
    import numpy as np

    names = list(tasks)
    spent: dict[str, list[float]] = {name: [] for name in names}
    for number in progress(range(rounds + 2), "rounds"):
        for place in rng.permutation(len(names)):
            name = names[place]
            decisions = [tasks[name]() for _ in range(TURN)]
            start = clock()
            for decide in decisions:
                decide()
            if number >= 2:
                spent[name].append((clock() - start) * 1e3 / TURN)
    return {name: np.array(times) for name, times in spent.items()}


def bench(settings: Flat[Settings], *, out: Path | None = None) -> None:
    """Print what a decision costs with each verifier, on one thread with the verifiers interleaved.

    **Arguments:**
    - `out`: a CSV file that gets the table too
    """
    from draftlab.files.atomic import write_text

    rows = measure(settings)
    print(as_text(rows))
    if out is not None:
        write_text(out, rows.to_csv(index=False, lineterminator="\n"))


def as_text(rows: pd.DataFrame) -> str:
    """The medians, one block per vocabulary and filter, one column per number of drafts and batch."""
    blocks = []
    for vocab, name in rows[["vocab", "filter"]].drop_duplicates().itertuples(index=False):
        block = rows[(rows["vocab"] == vocab) & (rows["filter"] == name)]
        wide = block.pivot_table(index="scheme", columns=["num_drafts", "batch"], values="ms", sort=False)
        wide.columns = [f"K={drafts} batch {batch}" for drafts, batch in wide.columns]
        support = ", ".join(f"{count:,}" for count in sorted(block["support"].unique()))
        blocks.append(
            f"vocabulary {vocab:,}, {name} (support {support}): ms per position\n{wide.round(4).to_string(na_rep='')}"
        )
    return "\n\n".join(blocks)


STAGE = stage_of(__name__, exclusive=True)
