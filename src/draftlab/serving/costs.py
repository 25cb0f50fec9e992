"""What a block costs at batch 1, in steps of plain decoding: from probes of this machine, or from a hardware profile."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Float64

from draftlab.errors import UserError
from draftlab.serving import profiles
from draftlab.serving.load import block_ms
from draftlab.serving.profiles import Profile

if TYPE_CHECKING:
    import pandas as pd

DRAWS = 1000
"""The number of resamples from which the interval of an estimate is computed."""
LONGEST = 8
"""The number of drafted tokens in the longest block."""


@dataclass(frozen=True)
class BlockCosts:
    """Draws of a draft step in blocks of 1, 2, ... drafted tokens, and of reading 1, 2, ... tokens in one call, over a step of plain
    decoding; the first draw is the estimate. The first step of a block finds the processor's caches full of the target: short blocks pay more.

    ``catch_up`` is what a block of that many tokens costs more after one that was accepted whole, whose last token the draft has yet to read;
    ``change`` is what a call costs more that reads another number of tokens than the one before, as the engine builds its graph again.
    ``loop`` is the time of a block in which no model runs, and ``lookup`` that of finding tokens in the text so far.
    """

    step: Float64[np.ndarray, "draws lengths"]
    verify: Float64[np.ndarray, "draws tokens"]
    catch_up: Float64[np.ndarray, "draws lengths"]
    change: Float64[np.ndarray, "draws lengths"]
    loop: Float64[np.ndarray, "draws lengths"]
    lookup: Float64[np.ndarray, "draws lengths"]
    source: str
    seconds: float | None
    profile: Profile

    def block(self, draft_len: int, whole: float = 0.0) -> float:
        """Of a block of ``draft_len`` drafted tokens, in steps; ``whole``: the share of blocks that are accepted whole."""
        place = draft_len - 1
        models = draft_len * self.step[0, place] + self.verify[0, draft_len] + whole * self.catch_up[0, place]
        return float(models + self.loop[0, place])


def from_probes(rows: pd.DataFrame, context: float, seed: int = 0) -> BlockCosts:
    """BlockCosts at batch 1 and the context that is nearest, from probes of ``latency.cost.calibrate``: medians over blocks drawn again.

    Costs drift within minutes. Where they were probed at several moments, each draw takes place at one of them, as future requests will.
    """
    near = min(rows["context"].unique(), key=lambda c: abs(float(c) - context))
    own = rows[(rows["context"] == near) & (rows["batch"] == 1)]
    plain = (own["plain_before_seconds"] + own["plain_after_seconds"]) / 2
    moment = own.get("moment", 0)
    own = own.assign(
        moment=moment,
        v=own["verify_seconds"] / plain,
        c=own["draft_seconds"] / plain,
        caught_up=(own["verified"] - 1) * (own["caught_up_seconds"] - own["draft_seconds"]) / plain,
        turned=(own["turns_seconds"] - own["verify_seconds"] - plain) / 2 / plain,
        loop=own["loop_seconds"] / plain,
        lookup=own["lookup_seconds"] / plain,
    )
    kinds = ["v", "c", "caught_up", "turned", "loop", "lookup"]
    v, c, caught_up, turned, loop, lookup = (
        own.pivot_table(index=["moment", "block"], columns="verified", values=name) for name in kinds
    )
    if not np.isfinite(own[kinds]).all(axis=None) or len(v) < 2:
        raise UserError(
            "the probes of costs hold NaN, or one block alone", remedy="measure them again, or give --hardware"
        )
    rng = np.random.default_rng(seed)
    moments = own["moment"].nunique()
    blocks = len(v) // moments
    begins = rng.integers(0, moments, (DRAWS, 1)) * blocks
    again = begins + rng.integers(0, blocks, (DRAWS, moments * blocks))
    drawn = np.vstack([np.arange(moments * blocks), again])
    read = np.array(v.columns, dtype=float)

    def medians(values: pd.DataFrame, tokens: Float64[np.ndarray, " tokens"]) -> Float64[np.ndarray, "draws tokens"]:
        found = np.median(values.to_numpy()[drawn], axis=1)
        return np.stack([np.interp(tokens, read, row) for row in found])

    lengths = np.arange(1.0, LONGEST + 1)
    step, verify = medians(c, lengths + 1), np.pad(medians(v, lengths + 1), ((0, 0), (1, 0)), constant_values=1.0)
    seconds = float(plain.median())
    catch_up, change = (medians(values, lengths + 1).clip(0) for values in (caught_up, turned))
    return BlockCosts(
        step,
        verify,
        catch_up,
        change,
        medians(loop, lengths + 1),
        medians(lookup, lengths + 1),
        f"measured in llama.cpp on this machine at a context of {near}",
        seconds,
        _profile(rows),
    )


def _profile(rows: pd.DataFrame) -> Profile:
    """Build a profile for the simulator from probes at every batch; they include the cost of attention at the probed context."""
    near = rows[rows["context"] == rows["context"].min()]
    ms = 1e3 * near.groupby(near["batch"] * near["verified"])["verify_seconds"].median()
    plain = 1e3 * near.groupby("batch")[["plain_before_seconds", "draft_seconds"]].median()
    target = ms.to_dict() | plain["plain_before_seconds"].to_dict()
    return Profile(
        name="this-machine",
        hardware="this machine",
        model="the target",
        engine="llama.cpp",
        source="probes of traffic_cost",
        licence="of its owner",
        target=profiles.Costs(tokens={int(n): float(t) for n, t in target.items()}),
        draft=profiles.Costs(tokens={int(n): float(t) for n, t in plain["draft_seconds"].to_dict().items()}),
        kv_tokens=1_000_000,
        max_sequences=8,
    )


def from_profile(name: str, context: float, ratio: float) -> BlockCosts:
    """BlockCosts of a hardware profile; where it has no draft, one whose steps cost ``ratio`` of the target's."""
    profile = profiles.load(name)
    if profile.draft is None:
        profile = profile.model_copy(update={"draft": profile.target.scaled(ratio)})
    assert profile.draft is not None
    plain = block_ms(profile, 1, context, 0)
    verify = [(profile.overhead + profile.target.step(n, n, 1, context)) / plain for n in range(1, LONGEST + 2)]
    step = profile.draft.step(1, 1, 1, context) / plain
    source = f"profile {profile.name}: {profile.model} on {profile.hardware}, a draft at {step:.3f} of its step"
    steps, free = np.full((DRAWS + 1, LONGEST), step), np.zeros((DRAWS + 1, LONGEST))
    return BlockCosts(steps, np.tile(verify, (DRAWS + 1, 1)), free, free, free, free, source, plain / 1e3, profile)
