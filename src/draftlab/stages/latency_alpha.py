"""Time per token in an inference engine at a set acceptance (OSD, Tables 2 and 7)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import Field

from draftlab.core.measure import Measure
from draftlab.core.settings import Count, Under1
from draftlab.latency.settings import Engine
from draftlab.stages._inputs import TargetAndDraft, locate_pair, reads_pair
from draftlab.stages._stage import Bench, Facts, Stage, column, timing

if TYPE_CHECKING:
    import pandas as pd


class Settings(Engine):
    """Measured ms/token of llama.cpp at controlled acceptance (OSD, Tables 2 and 7)."""

    alpha: list[Under1] = Field(min_length=1)
    draft_len: list[Count] = Field(min_length=1)
    blocks: int = Field(gt=0)
    rounds: int = Field(gt=0)


class Row:
    """One row of the table."""

    alpha: float = column("")
    draft_len: int = column("")
    block: int = column("")
    plain_before_seconds: float = timing("")
    plain_after_seconds: float = timing("")
    plain_steps: int = column("")
    tokens: int = column("")
    draft_steps: int = column("")
    draft_seconds: float = timing("")
    verify_seconds: float = timing("")
    seconds: float = timing("")
    disagreements: int = column("")
    rounds: int = column("")
    verify_probe_seconds: float = timing("")
    verify_probes: int = column("")
    draft_probe_seconds: float = timing("")
    draft_probes: int = column("")
    attempt: int = column("", timed=True)
    weights: str = column("")


MEASURES = {
    "speedup": Measure("plain", "speculative", "speed-up", "times plain decoding"),
    "token_ms": Measure("speculative_ms", None, "time per token", "ms"),
    "plain_ms": Measure("plain_ms", None, "time per token of plain decoding", "ms"),
    "speedup_by_way": Measure("plain", "token_seconds", "speed-up", "times plain decoding"),
    "delivered": Measure("speedup", "eq1", "speed-up over that of Eq. 1"),
    "eq1": Measure("eq1", None, "speed-up by Eq. 1", "times plain decoding"),
    "eq1_gap": Measure("eq1_gap", None, "speed-up by Eq. 1 less the measured one", "times plain decoding"),
}


def run(settings: Settings, inputs: TargetAndDraft, bench: Bench) -> tuple[pd.DataFrame, Facts]:
    """One variant."""
    from draftlab.latency.alpha import latency_alpha

    return latency_alpha(settings, inputs.target, inputs.draft)


def derive(rows: pd.DataFrame) -> pd.DataFrame:
    """Times per token in ms and speed-ups of each block, and what Eq. 1 (OSD) promises more than was measured."""

    from draftlab.core import theory
    from draftlab.latency.summary import block_ratios

    rows = block_ratios(rows)
    promised = [
        theory.speedup(*cell) for cell in zip(rows["alpha"], rows["draft_len"], rows["cost_ratio"], strict=True)
    ]
    return rows.assign(
        plain_ms=1e3 * rows["plain"],
        speculative_ms=1e3 * rows["speculative"],
        eq1=promised,
        eq1_gap=promised - rows["speedup"],
    )


def best_draft_len(rows: pd.DataFrame) -> pd.DataFrame:
    """Each block once per ``way`` to know its seconds a token: measured, by Eq. 1, and by Eq. 1 with the measured cost of verifying."""

    import pandas as pd

    from draftlab.core import theory

    rows = rows.assign(at="alpha = " + rows["alpha"].astype(str))
    names = ["alpha", "draft_len", "cost_ratio", "verify_ratio"]
    refined = [theory.speedup(*cell) for cell in rows[names].itertuples(index=False)]
    ways = {"measured": rows["speculative"], "refined": rows["plain"] / refined, "eq1": rows["plain"] / rows["eq1"]}
    return pd.concat([rows.assign(way=way, token_seconds=seconds) for way, seconds in ways.items()], ignore_index=True)


def weights(rows: pd.DataFrame) -> pd.DataFrame:
    """``latency``, and as draft length 0 the plain steps around each block."""

    import pandas as pd

    measured = rows
    plain = measured.assign(
        draft_len=0, speculative=measured["plain"], speculative_ms=measured["plain_ms"], speedup=1.0
    )
    return pd.concat([plain, measured], ignore_index=True)


STAGE = Stage(
    settings=Settings,
    row=Row,
    measures=MEASURES,
    run=run,
    inputs=TargetAndDraft,
    locate=locate_pair,
    reads=reads_pair,
    derive=derive,
    views={"best_draft_len": best_draft_len, "weights": weights},
    exclusive=True,
    needs_gpu_build=True,
)
