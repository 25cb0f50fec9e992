"""Speed-up at a set acceptance against the length of the answer (OSD, Table 8)."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

from pydantic import Field

from draftlab.core.measure import Measure
from draftlab.core.settings import Count, Distinct, ShareBelow1
from draftlab.core.theory import expected_block_length
from draftlab.errors import UserError
from draftlab.latency.settings import Engine
from draftlab.progress import progress
from draftlab.stages._inputs import TargetAndDraft
from draftlab.stages._stage import Bench, Facts, column, columns_of, stage_of, timing
from draftlab.stages.latency_alpha import AtAlpha, token_seconds

if TYPE_CHECKING:
    import pandas as pd

    from draftlab.models.backend import LatencyBackend

STEPS = 4  # plain, on each side of the speculative rounds


class Settings(Engine):
    alpha: Distinct[ShareBelow1] = Field(min_length=1, description="acceptances per drafted token, as set")
    length: Distinct[Count] = Field(min_length=1, description="lengths of the answer, in tokens")
    prefix: int = Field(gt=0, default=512, description="tokens before the answer")
    draft_len: int = Field(gt=0, description="tokens drafted for one call of the target")
    blocks: int = Field(gt=0, description="interleaved blocks of each alpha and length")
    rounds: int = Field(gt=0, description="speculative rounds of a block: a draft and its verification")

    @property
    def room(self) -> int:
        """Most tokens that a block reads or writes after its start."""
        return max(STEPS, self.rounds * (self.draft_len + 1) + self.draft_len)


class Row(AtAlpha):
    """One block in the middle of a segment of the answer."""

    begin: int = column("where the segment begins in the answer", "tokens")
    end: int = column("where it ends", "tokens")


class Derived:
    length: int = column("tokens of the answer", "tokens")
    plain: float = timing("time of the answer with plain decoding")
    speculative: float = timing("time of the answer with speculative decoding")
    speedup: float = column("speed-up over plain decoding", "times", timed=True)


MEASURES = {
    "speedup": Measure("plain", "speculative", "speed-up", "times plain decoding"),
}


def run(settings: Settings, inputs: TargetAndDraft, bench: Bench) -> tuple[pd.DataFrame, Facts]:
    """``measure`` a pair on the chosen engine."""
    from draftlab.latency.pair import describe, open_pair

    context = settings.prefix + max(settings.length) + settings.room
    with open_pair(inputs.target, inputs.draft, settings=settings, context_length=context) as (target, draft):
        return measure(target, draft, settings), describe(target, draft)


def measure(target: LatencyBackend, draft: LatencyBackend, settings: Settings) -> pd.DataFrame:
    """One row per (alpha, segment, block): the cost of plain and of speculative tokens in the middle of a segment.

    The lengths cut the answer into segments; cost grows about linearly with the context, so a segment is measured at its
    middle instead of decoding all of it. The text is random: the tokens do not change the cost.
    """
    import numpy as np
    import pandas as pd

    from draftlab.latency.controlled import decode_scheduled, plain_steps, schedule
    from draftlab.latency.loop import resume

    segments = [*itertools.pairwise([0, *sorted(settings.length)])]
    context = min(target.context_length, draft.context_length)
    needed = settings.prefix + sum(segments[-1]) // 2 + settings.room
    if needed > context:
        what = f"{needed} tokens to the middle of the last segment do not fit the context of {context}"
        raise UserError(what, remedy="ask for shorter answers or a shorter prefix, or use models with a longer context")
    rng = np.random.default_rng(settings.seed)
    text = rng.integers(0, target.vocab_size, context).tolist()
    rows = []
    for begin, end in segments:
        middle = settings.prefix + (begin + end) // 2
        total = (settings.blocks + 1) * settings.rounds
        plans = {a: schedule(a, settings.draft_len, total, rng).reshape(-1, settings.rounds) for a in settings.alpha}
        for block in progress(range(-1, settings.blocks), f"blocks around token {middle}"):
            for alpha in rng.permutation([*plans]).tolist():
                # The decoded tokens lie on both sides of the middle: a long run from there would measure a longer context.
                advance = settings.rounds * expected_block_length(alpha, settings.draft_len)
                start = max(1, middle - round(advance / 2))
                before = plain_steps(target, text, middle, STEPS)
                resume(target, text[: start - 1])
                resume(draft, text[: start - 1])
                replayed = decode_scheduled(target, draft, text, start, plans[alpha][block], settings.draft_len)
                row = {
                    "alpha": alpha,
                    "draft_len": settings.draft_len,
                    "begin": begin,
                    "end": end,
                    "block": block,
                    "plain_before_seconds": before,
                    "plain_after_seconds": plain_steps(target, text, middle, STEPS),
                    "plain_steps": 2 * STEPS,
                    "seconds": replayed.seconds,
                    "rounds": replayed.blocks,
                }
                if block >= 0:  # the first pass warms up
                    rows.append(row)
    return pd.DataFrame(rows)


def derive(rows: pd.DataFrame) -> pd.DataFrame:
    """Per (alpha, length, block): seconds to decode ``length`` tokens plainly and speculatively, and their ratio.

    Columns that no ``Row`` declares are axes of an experiment: the segments of each of their values are added up apart.
    """
    axes = [str(name) for name in rows if name not in columns_of(Row)]
    rows = rows.assign(length=rows["end"]).sort_values("end", kind="stable")
    width, by = rows["end"] - rows["begin"], ["alpha", "draft_len", "block", *axes]
    plain, speculative = token_seconds(rows)
    cells = rows.assign(plain=plain * width, speculative=speculative * width).groupby(by, observed=True, dropna=False)
    rows = rows.assign(plain=cells["plain"].cumsum(), speculative=cells["speculative"].cumsum())
    names = ["alpha", "draft_len", "length", "block", *axes, "plain", "speculative", "speedup"]
    return rows.assign(speedup=rows["plain"] / rows["speculative"])[names].reset_index(drop=True)


STAGE = stage_of(__name__, inputs=TargetAndDraft, exclusive=True, needs_gpu_build=True)
