"""Time per token in an inference engine at a set acceptance (OSD, Tables 2 and 7)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import TYPE_CHECKING

from pydantic import Field

from draftlab.core import theory
from draftlab.core.measure import Measure
from draftlab.core.settings import Count, Distinct, ShareBelow1
from draftlab.latency.settings import Engine
from draftlab.progress import progress
from draftlab.stages._inputs import TargetAndDraft
from draftlab.stages._stage import Bench, Facts, column, stage_of, timing

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd
    from jaxtyping import Int

    from draftlab.models.backend import LatencyBackend

    Plans = dict[tuple[float, int], Int[np.ndarray, "blocks rounds"]]

PROMPT = 64
BASELINE_STEPS = 4  # on each side of a block
VERIFY_PROBES = 2
DRAFT_PROBES = 6
ATTEMPTS = 3
EQ1 = ("alpha", "draft_len", "cost_ratio")
ALL_COSTS = (*EQ1, "verify_ratio")
"""The columns that determine the speed-up by Eq. 1, and with the measured cost of verification."""
QUIET = 0.10
"""A cell whose block ratios have an interquartile range over this (relative to their median) is marked as not quiet."""
INTERRUPTED = 1.5
"""So is a cell with a block whose ratio is this many times the median, or the median this many times the ratio: something else ran meanwhile."""


class Settings(Engine):
    alpha: Distinct[ShareBelow1] = Field(min_length=1, description="acceptances per drafted token, as set")
    draft_len: Distinct[Count] = Field(min_length=1, description="numbers of tokens drafted for one call of the target")
    blocks: int = Field(gt=0, description="interleaved blocks of each alpha and draft length")
    rounds: int = Field(gt=0, description="speculative rounds of a block: a draft and its verification")

    @property
    def context_length(self) -> int:
        """Tokens that a block needs in the caches."""
        longest = max(self.draft_len)
        return PROMPT + max(self.rounds * (longest + 1) + 2 * longest, DRAFT_PROBES)


class AtAlpha:
    """A block at a set acceptance: speculative rounds between plain steps, within the same moment."""

    alpha: float = column("acceptance per drafted token, as set", "probability")
    draft_len: int = column("tokens drafted for one call of the target", "tokens")
    block: int = column("the block of interleaved work, from 0")
    plain_before_seconds: float = timing("plain steps of the target before the speculative rounds")
    plain_after_seconds: float = timing("plain steps of the target after them")
    plain_steps: int = column("plain steps, before and after together", "steps")
    seconds: float = timing("the speculative rounds as a whole")
    rounds: int = column("speculative rounds: a draft and its verification", "rounds")


class BlockColumns(AtAlpha):
    """A block with its parts, and probes outside the rounds."""

    tokens: int = column("tokens that the speculative rounds wrote", "tokens")
    draft_steps: int = column("draft steps in the speculative rounds", "steps")
    draft_seconds: float = timing("draft steps in the speculative rounds")
    verify_seconds: float = timing("verification in the speculative rounds")
    disagreements: int = column("rounds that would have ended at another token if the target had chosen", "rounds")
    verify_probe_seconds: float = timing("verifications one after the other, outside the rounds")
    verify_probes: int = column("verifications outside the rounds", "calls")
    draft_probe_seconds: float = timing("draft steps one after the other, outside the rounds")
    draft_probes: int = column("draft steps outside the rounds", "steps")


class Row(BlockColumns):
    """One block of a cell (alpha, draft_len)."""

    attempt: int = column("how often the cell had been measured before because its blocks scattered", timed=True)
    weights: str = column("type of the target's weights")


class Derived:
    """Seconds per step and the ratios of each block; the optional columns are those of the view ``best_draft_len``."""

    plain: float = timing("a plain step of the target")
    speculative: float = timing(
        "a token of speculative decoding: a speculative round over the tokens that it writes on average at this acceptance"
    )
    plain_ms: float = column("a plain step of the target", "ms", timed=True)
    speculative_ms: float = column("a token of speculative decoding", "ms", timed=True)
    speedup: float = column("speed-up over plain decoding, measured", "times", timed=True)
    cost_ratio: float = column("a draft step over a plain step, measured outside the rounds", timed=True)
    verify_ratio: float = column("verifying draft_len + 1 tokens over a plain step", timed=True)
    eq1: float = column("speed-up that Eq. 1 (OSD) promises at this cost ratio", "times", timed=True)
    eq1_gap: float = column("speed-up by Eq. 1 minus the measured one", "times", timed=True)
    at: str = column("the acceptance, in words", optional=True)
    way: str = column("how the time per token is known", optional=True)
    token_seconds: float = timing("a token of speculative decoding, known in this way", optional=True)


MEASURES = {
    "speedup": Measure("plain", "speculative", "speed-up", "times plain decoding"),
    "token_ms": Measure("speculative_ms", None, "time per token", "ms"),
    "plain_ms": Measure("plain_ms", None, "time per token of plain decoding", "ms"),
    "speedup_by_way": Measure("plain", "token_seconds", "speed-up", "times plain decoding"),
    "delivered": Measure("speedup", "eq1", "speed-up over that of Eq. 1"),
    "eq1": Measure("eq1", None, "speed-up by Eq. 1", "times plain decoding"),
    "eq1_gap": Measure("eq1_gap", None, "speed-up by Eq. 1 less the measured one", "times plain decoding"),
    "cost_ratio": Measure("cost_ratio", None, "a draft step over a plain step"),
    "verify_ratio": Measure("verify_ratio", None, "verifying a block over a plain step"),
}


def run(settings: Settings, inputs: TargetAndDraft, bench: Bench) -> tuple[pd.DataFrame, Facts]:
    """``measure`` a pair on the chosen engine; the rows name the target's weights."""
    from draftlab.latency.pair import describe, open_pair

    pair = open_pair(inputs.target, inputs.draft, settings=settings, context_length=settings.context_length)
    with pair as (target, draft):
        facts = describe(target, draft)
        return measure(target, draft, settings).assign(weights=facts["target"]["weights"]), facts


def measure(target: LatencyBackend, draft: LatencyBackend, settings: Settings) -> pd.DataFrame:
    """One row per (alpha, draft_len, block): sums of seconds and steps of contenders that ran within the same moment.

    A block runs plain steps, ``rounds`` of speculation, probes of one verification and of draft steps, and plain steps
    again; ratios are taken inside a block, so a machine that slows down for a second slows all of them. The cells' blocks
    are interleaved. A cell whose block ratios scatter (``QUIET``, ``INTERRUPTED``) is measured again, at most ``ATTEMPTS`` times.
    """
    import numpy as np
    import pandas as pd

    rng = np.random.default_rng(settings.seed)
    # All attempts share one plan: the work does not depend on how long it took.
    text, plans = prepare(target, draft, settings, settings.blocks, rng)
    cells = list(plans)
    measured: dict[tuple[float, int], pd.DataFrame] = {}
    for attempt in range(ATTEMPTS):
        blocks = []
        for block in progress(range(settings.blocks), f"blocks, attempt {attempt + 1}"):
            for index in rng.permutation(len(cells)):
                (alpha, draft_len), plan = cells[index], plans[cells[index]][block].tolist()
                cell = {"alpha": alpha, "draft_len": draft_len, "block": block}
                blocks.append(cell | measure_block(target, draft, text, plan, draft_len))
        rows = pd.DataFrame(blocks).assign(attempt=attempt)
        noisy = summarise(rows).query("not quiet")
        measured |= {cell: rows[(rows["alpha"] == cell[0]) & (rows["draft_len"] == cell[1])] for cell in cells}
        cells = list(zip(noisy["alpha"].tolist(), noisy["draft_len"].tolist(), strict=True))
        if not cells:
            break
    return pd.concat(measured.values(), ignore_index=True)


def prepare(
    target: LatencyBackend, draft: LatencyBackend, settings: Settings, blocks: int, rng: np.random.Generator
) -> tuple[list[int], Plans]:
    """Warm up, and return the text that all blocks decode, and the tokens that each round of each block accepts, by (alpha, draft_len)."""
    from draftlab.latency.controlled import continue_text, schedule

    longest, rounds = max(settings.draft_len), settings.rounds
    text = continue_text(target, rng.integers(0, target.vocab_size, PROMPT).tolist(), rounds * (longest + 1) + longest)
    cells = [(alpha, draft_len) for draft_len in settings.draft_len for alpha in settings.alpha]
    plans = {cell: schedule(*cell, blocks * rounds, rng).reshape(blocks, rounds) for cell in cells}
    measure_block(target, draft, text, [longest] * rounds, longest)
    return text, plans


def measure_block(
    target: LatencyBackend, draft: LatencyBackend, text: list[int], plan: list[int], draft_len: int
) -> dict[str, float]:
    """Seconds and steps of one block: plain steps, the speculative rounds of ``plan``, probes, plain steps."""
    from draftlab.latency.controlled import UNTIMED, decode_scheduled, plain_steps
    from draftlab.latency.loop import resume

    clock = target.clock()
    last = text[PROMPT - 1]
    verified = text[PROMPT - 1 : PROMPT + draft_len]
    before = plain_steps(target, text, PROMPT, BASELINE_STEPS)
    resume(target, text[: PROMPT - 1])
    resume(draft, text[: PROMPT - 1])
    replayed = decode_scheduled(target, draft, text, PROMPT, plan, draft_len)
    verify_seconds = 0.0
    for _ in range(VERIFY_PROBES):
        target.trim(PROMPT - 1)
        started = clock()
        target.greedy(verified)
        verify_seconds += clock() - started
    for _ in range(UNTIMED):
        draft.trim(PROMPT - 1)
        draft.greedy([last])
    draft.trim(PROMPT - 1)
    started = clock()
    for _ in range(DRAFT_PROBES):
        draft.greedy([last])
    draft_seconds = clock() - started
    after = plain_steps(target, text, PROMPT, BASELINE_STEPS)
    return {
        "plain_before_seconds": before,
        "plain_after_seconds": after,
        "plain_steps": 2 * BASELINE_STEPS,
        **{name: value for name, value in asdict(replayed).items() if name != "blocks"},
        "rounds": replayed.blocks,
        "verify_probe_seconds": verify_seconds,
        "verify_probes": VERIFY_PROBES,
        "draft_probe_seconds": draft_seconds,
        "draft_probes": DRAFT_PROBES,
    }


def token_seconds(rows: pd.DataFrame) -> tuple[pd.Series[float], pd.Series[float]]:
    """Seconds per token of plain and of speculative decoding: of a round, over the tokens that it writes on average at this acceptance."""
    plain = (rows["plain_before_seconds"] + rows["plain_after_seconds"]) / rows["plain_steps"]
    return plain, rows["seconds"] / rows["rounds"] / _by_row(theory.expected_block_length, rows, "alpha", "draft_len")


def block_ratios(rows: pd.DataFrame) -> pd.DataFrame:
    """``rows`` with seconds per step and the ratios of each block as columns."""
    plain, speculative = token_seconds(rows)
    return rows.assign(
        plain=plain,
        speculative=speculative,
        speedup=plain / speculative,
        cost_ratio=rows["draft_probe_seconds"] / rows["draft_probes"] / plain,
        verify_ratio=rows["verify_probe_seconds"] / rows["verify_probes"] / plain,
    )


def _by_row(function: Callable[..., float], rows: pd.DataFrame, *columns: str) -> pd.Series[float]:
    """A function of some columns, evaluated for each row."""
    import pandas as pd

    return pd.Series([function(*values) for values in rows[[*columns]].itertuples(index=False)], index=rows.index)


def summarise(rows: pd.DataFrame) -> pd.DataFrame:
    """One row per (alpha, draft_len): medians over blocks of ratios taken inside a block.

    ``speedup`` = E plain / round, with E the expected tokens per block at alpha; ``eq1`` = E / (k c + 1) (OSD, Eq. 1);
    ``calibrated`` = E / (k c + v(k+1)) with the measured cost of verifying k+1 tokens; ``quiet``: the blocks hardly scatter.
    """
    cells = block_ratios(rows).groupby(["alpha", "draft_len"])
    medians = cells[["speedup", "cost_ratio", "verify_ratio"]].median()
    speedups, median = cells["speedup"], medians["speedup"]
    spread = (speedups.quantile(0.75) - speedups.quantile(0.25)) / median
    is_even = (speedups.max() <= INTERRUPTED * median) & (median <= INTERRUPTED * speedups.min())
    summary = medians.assign(quiet=(spread <= QUIET) & is_even).reset_index()
    return summary.assign(
        eq1=_by_row(theory.speedup, summary, *EQ1), calibrated=_by_row(theory.speedup, summary, *ALL_COSTS)
    )


def derive(rows: pd.DataFrame) -> pd.DataFrame:
    """Times per token in ms and speed-ups of each block, and the speed-up by Eq. 1 (OSD) minus the measured one."""
    rows = block_ratios(rows)
    eq1 = _by_row(theory.speedup, rows, *EQ1)
    return rows.assign(
        plain_ms=1e3 * rows["plain"],
        speculative_ms=1e3 * rows["speculative"],
        eq1=eq1,
        eq1_gap=eq1 - rows["speedup"],
    )


def best_draft_len(rows: pd.DataFrame) -> pd.DataFrame:
    """Each block once per ``way`` to know its seconds per token: measured, by Eq. 1, and by Eq. 1 with the measured cost of verification."""
    import pandas as pd

    rows = rows.assign(at="alpha = " + rows["alpha"].astype(str))
    refined = _by_row(theory.speedup, rows, *ALL_COSTS)
    ways = {"measured": rows["speculative"], "refined": rows["plain"] / refined, "eq1": rows["plain"] / rows["eq1"]}
    return pd.concat([rows.assign(way=way, token_seconds=seconds) for way, seconds in ways.items()], ignore_index=True)


def weights(rows: pd.DataFrame) -> pd.DataFrame:
    """The blocks, and as draft length 0 the plain steps around each of them."""
    import pandas as pd

    plain = rows.assign(draft_len=0, speculative=rows["plain"], speculative_ms=rows["plain_ms"], speedup=1.0)
    return pd.concat([plain, rows], ignore_index=True)


STAGE = stage_of(
    __name__,
    inputs=TargetAndDraft,
    views={"best_draft_len": best_draft_len, "weights": weights},
    exclusive=True,
    needs_gpu_build=True,
)
