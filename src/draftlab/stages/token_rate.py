"""Tokens per second of several drafts: projected from block efficiency and the costs of a target call, and measured."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from pydantic import Field

from draftlab.core.measure import Measure
from draftlab.core.settings import Distinct
from draftlab.core.settings import Settings as Base
from draftlab.stages._places import Places
from draftlab.stages._stage import Bench, Facts, Files, NoInputs, column, stage_of, timing
from draftlab.stages.live import PARTS

if TYPE_CHECKING:
    import pandas as pd

DRAFT_SHARE = 0.01
"""The cost of a draft step with a hardware profile, as a share of the target's."""


class Settings(Base):
    """Token rate = block efficiency / (draft + v(nodes) + selection), for several pairs, all with the block efficiency of ours.

    Outside our own pair, a step of the draft costs as much for K sequences as for one.
    """

    profiles: Distinct[str] = Field(
        [],
        description="hardware profiles with known costs of the target's steps: names or YAML files, as for draftlab load",
    )
    context: int = Field(256, ge=0, description="tokens before a block with these profiles")


class Row:
    """A request under a scheme, with the costs of a pair."""

    request_id: int = column("line of the request in its dataset's held-out file")
    dataset: str = column("dataset of the request")
    pair: str = column("whose costs: ours in torch, the inflated pair in llama.cpp, or a hardware profile")
    kind: str = column("projected from block efficiency and costs, or live: measured")
    scheme: str = column("how drafts are verified")
    num_drafts: int = column("drafted sequences")
    emitted: float = column("tokens emitted", "tokens")
    seconds: float = timing("time for these tokens")
    plain_seconds: float = timing("time for them with plain decoding; empty for ours, where it was not timed")


MEASURES = {
    "token_rate": Measure("emitted", "seconds", "token rate", "tokens per second"),
    "speedup": Measure("plain_seconds", "seconds", "speed-up over plain decoding"),
}


class Inputs(NoInputs):
    """The tables of ``beyond_verifiers`` (blocks, selection), ``beyond_branches`` (verifying) and ``osd_latency_alpha`` (drafting).

    **Fields:**
    - `verifiers`: table of the experiment beyond_verifiers: tokens of a block, and the time of their selection
    - `branches`: table of beyond_branches: the time of verifying
    - `drafting`: table of osd_latency_alpha: the time of drafting
    """

    verifiers: Path
    branches: Path
    drafting: Path

    @classmethod
    def locate(cls, variants: Sequence[Any], places: Places) -> Self:
        names = {"verifiers": "beyond_verifiers", "branches": "beyond_branches", "drafting": "osd_latency_alpha"}
        return cls(**{key: places.table(name) for key, name in names.items()})

    def reads(self, variants: Sequence[Any]) -> Files:
        """The tables, and the profiles that are files of the user's."""
        named = dict.fromkeys(Path(name) for settings in variants for name in settings.profiles)
        own = [path for path in named if path.suffix in (".yaml", ".yml")]
        return {"tables": [self.verifiers, self.branches, self.drafting, *own]}


def run(settings: Settings, inputs: Inputs, bench: Bench) -> tuple[pd.DataFrame, Facts]:
    """The emitted tokens of each request, and the time that its blocks would take at the costs of each pair."""
    import pandas as pd

    from draftlab.files.tables import read_table

    rows = read_table(inputs.verifiers).query("scheme != 'ceiling'")
    keys = ["scheme", "num_drafts"]
    spent = rows.groupby(keys)[[*PARTS, "timed_blocks"]].sum()
    per_call = spent[PARTS].div(spent["timed_blocks"], axis=0)
    drafts = per_call.index.get_level_values("num_drafts")
    selection = per_call["select_seconds"] + per_call["transform_seconds"]
    timed = rows[rows["timed_blocks"] > 0]
    measured = timed.assign(emitted=timed["timed_emitted"], seconds=timed[PARTS].sum(axis=1))
    length = int(rows["draft_len"].iloc[0])
    frames = [measured.assign(pair="ours", kind="live")]
    costs = {"ours": (per_call.sum(axis=1), float("nan"))}
    for name, plain, draft_step, verify in _pairs(settings, inputs, length, sorted(set(drafts))):
        costs[name] = length * draft_step + drafts.map(verify) + selection, plain
    for name, (call, plain) in costs.items():
        seconds = rows["blocks"] * call.reindex(pd.MultiIndex.from_frame(rows[keys])).to_numpy()
        projected = rows.assign(seconds=seconds, plain_seconds=rows["emitted"] * plain)
        frames.append(projected.assign(pair=name, kind="projected"))
    columns = list(Row.__annotations__)
    return pd.concat(frames, ignore_index=True).reindex(columns=columns), {}


def _pairs(
    settings: Settings, inputs: Inputs, draft_len: int, num_drafts: Sequence[int]
) -> Iterator[tuple[str, float, float, dict[int, float]]]:
    """The name of each pair, and its seconds for a plain step, for a draft step, and for verifying each number of sequences in one call."""
    from draftlab.files.tables import read_table
    from draftlab.serving.profiles import load

    branches, drafting = read_table(inputs.branches), read_table(inputs.drafting)
    verify: dict[int, float] = dict(branches.groupby("num_drafts")["branches_seconds"].mean())
    draft_step = drafting["draft_probe_seconds"].sum() / drafting["draft_probes"].sum()
    if set(num_drafts) <= set(verify):
        yield "inflated", branches["plain_seconds"].mean(), draft_step, verify
    for name in settings.profiles:
        target = load(name).target
        plain, *several = (
            target.step(tokens, tokens, 1, settings.context) / 1000
            for tokens in (1, *(1 + count * draft_len for count in num_drafts))
        )
        yield name, plain, DRAFT_SHARE * plain, dict(zip(num_drafts, several, strict=True))


STAGE = stage_of(__name__, split="eval")
