"""What a block costs at batch 1, in steps of plain decoding: from probes of this machine, or from a hardware profile."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd
from jaxtyping import Float64

from draftlab.errors import UserError
from draftlab.serving import profiles
from draftlab.serving.profiles import Profile

DRAWS = 1000
"""The number of resamples from which the interval of an estimate is computed."""
LONGEST = 8
"""The number of drafted tokens in the longest block."""


@dataclass(frozen=True)
class BlockCosts:
    """Times over that of a step of plain decoding: one row per draw, of which the first is the estimate.

    * ``step``: a draft step in blocks of 1, 2, ... drafted tokens. Short blocks pay more, because the first step of a block finds the
      processor's caches full of the target. Of a draft that proposes a block in one pass, an equal share of the pass.
    * ``verify``: one call of the target that reads 1, 2, ... tokens.
    * ``catch_up``: the extra cost of a block after one that was accepted whole: the draft has yet to read that block's last token.
    * ``change``: the extra cost of a call that reads another number of tokens than the call before: the engine builds its graph again.
    * ``loop``: the part of a block in which no model runs. ``lookup``: finding tokens in the text so far.

    ``source`` says in words where they come from, ``profile`` is what the simulator of a load uses.
    """

    step: Float64[np.ndarray, "draws lengths"]
    verify: Float64[np.ndarray, "draws tokens"]
    catch_up: Float64[np.ndarray, "draws lengths"]
    change: Float64[np.ndarray, "draws lengths"]
    loop: Float64[np.ndarray, "draws lengths"]
    lookup: Float64[np.ndarray, "draws lengths"]
    source: str
    seconds: float
    """of a step of plain decoding, on this machine only if ``is_here``"""
    profile: Profile
    is_here: bool = True

    def block(self, draft_len: int, whole: float = 0.0) -> float:
        """The cost of a block of ``draft_len`` drafted tokens, in steps; ``whole``: the share of blocks that are accepted whole."""
        column = draft_len - 1
        models = draft_len * self.step[0, column] + self.verify[0, draft_len] + whole * self.catch_up[0, column]
        return float(models + self.loop[0, column])


def from_probes(rows: pd.DataFrame, context: float, *, parallel: bool = False) -> BlockCosts:
    """BlockCosts at batch 1 and the nearest context, from probes of ``latency.cost.calibrate``: medians over resampled blocks.

    Costs drift within minutes. Where they were probed at several moments, each draw takes place at one of them, as future requests will, and
    the estimate is the mean over moments: the medians of all together may combine costs that no moment has. The simulator of a load needs to know
    whether the draft is ``parallel``.
    """
    nearest = min(rows["context"].unique(), key=lambda c: abs(float(c) - context))
    probes = rows[(rows["context"] == nearest) & (rows["batch"] == 1)]
    plain = (probes["plain_before_seconds"] + probes["plain_after_seconds"]) / 2
    relative = pd.DataFrame(
        {
            "step": probes["draft_seconds"],
            "verify": probes["verify_seconds"],
            "catch_up": (probes["verified"] - 1) * (probes["caught_up_seconds"] - probes["draft_seconds"]),
            "change": (probes["turns_seconds"] - probes["verify_seconds"] - plain) / 2,
            "loop": probes["loop_seconds"],
            "lookup": probes["lookup_seconds"],
        }
    ).div(plain, axis=0)
    labelled = relative.assign(moment=probes.get("moment", 0), block=probes["block"], verified=probes["verified"])
    tables = labelled.pivot_table(index=["moment", "block"], columns="verified", values=list(relative))
    if not np.isfinite(relative).all(axis=None) or len(tables) < 2:
        raise UserError(
            "the probes of costs hold NaN, or one block alone", remedy="measure them again, or give --hardware"
        )
    rng = np.random.default_rng(0)
    moments = labelled["moment"].nunique()
    blocks = len(tables) // moments
    starts = rng.integers(0, moments, (DRAWS, 1)) * blocks
    resampled = starts + rng.integers(0, blocks, (DRAWS, moments * blocks))
    lengths = np.arange(1.0, LONGEST + 1)

    def medians(name: str, least: float = -np.inf) -> Float64[np.ndarray, "draws lengths"]:
        """The cost of blocks of each length: a median over blocks, interpolated between the probed lengths."""
        values, probed = tables[name].to_numpy(), np.array(tables[name].columns, dtype=float)
        at_moments = np.median(values.reshape(moments, blocks, -1), axis=1).clip(least)
        drawn = np.median(values[resampled], axis=1).clip(least)
        return np.stack([np.interp(lengths + 1, probed, row) for row in [at_moments.mean(axis=0), *drawn]])

    return BlockCosts(
        step=medians("step"),
        verify=np.pad(medians("verify"), ((0, 0), (1, 0)), constant_values=1.0),
        catch_up=medians("catch_up", 0.0),
        change=medians("change", 0.0),
        loop=medians("loop"),
        lookup=medians("lookup"),
        source=f"measured in llama.cpp on this machine at a context of {nearest}",
        seconds=float(plain.median()),
        profile=_profile(rows[rows["context"] == nearest], parallel),
    )


def _profile(rows: pd.DataFrame, parallel: bool) -> Profile:
    """Build a profile for the simulator from probes at every batch and one context, whose attention is part of what a token costs."""
    verify = 1e3 * rows.groupby(rows["batch"] * rows["verified"])["verify_seconds"].median()
    plain = 1e3 * rows.groupby("batch")["plain_before_seconds"].median()
    in_one = rows["verified"] - 1 if parallel else 1  # tokens of a request that a call of the draft reads
    draft = 1e3 * (rows["draft_seconds"] * in_one).groupby(rows["batch"] * in_one).median()
    return Profile(
        name="this-machine",
        hardware="this machine",
        model="the target",
        engine="llama.cpp",
        source="probes of traffic_cost",
        licence="of its owner",
        target=profiles.Costs.model_validate({"tokens": verify.to_dict() | plain.to_dict()}),
        draft=profiles.Costs.model_validate({"tokens": draft.to_dict()}),
        parallel=parallel,
        kv_tokens=1_000_000,
        max_sequences=8,
    )


def from_profile(
    name: str,
    context: float,
    ratio: float,
    *,
    is_head: bool = False,
    parallel: bool = False,
    longest: int = LONGEST,
) -> BlockCosts:
    """BlockCosts of a hardware profile. Where it has no draft, or ours is a released head, a draft step costs ``ratio`` of the target's.

    A ``parallel`` draft proposes a block of at most ``longest`` tokens in one step of as many.
    """
    profile = profiles.load(name).model_copy(update={"parallel": parallel})
    if profile.draft is None or is_head:
        profile = profile.model_copy(update={"draft": profile.target.scaled(ratio)})
    assert profile.draft is not None
    plain = profile.block_ms(1, context, 0)
    verify = [(profile.overhead + profile.target.step(n, n, 1, context)) / plain for n in range(1, LONGEST + 2)]
    blocks = [profile.drafting_ms(1, 1, n, context) / plain for n in range(1, LONGEST + 1)]
    steps = np.tile(np.divide(blocks, range(1, LONGEST + 1)), (DRAWS + 1, 1))
    free = np.zeros((DRAWS + 1, LONGEST))
    whole = f", for a block of {longest} tokens in one pass {blocks[longest - 1]:.3f}" if parallel else ""
    draft = f"a draft at {blocks[0]:.3f} of its step{whole}"
    return BlockCosts(
        step=steps,
        verify=np.tile(verify, (DRAWS + 1, 1)),
        catch_up=free,
        change=free,
        loop=free + profile.per_block / plain,
        lookup=free,
        source=f"profile {profile.name}: {profile.model} on {profile.hardware}, {draft}",
        seconds=plain / 1e3,
        profile=profile,
        is_here=False,
    )
