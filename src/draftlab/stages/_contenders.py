"""Every way to draft that a served measurement compares, by its name."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

from draftlab.errors import UserError

if TYPE_CHECKING:
    from draftlab.latency.cost import CostModel
    from draftlab.latency.drafters import Drafter
    from draftlab.latency.loop import DraftLength
    from draftlab.latency.trees import LookedUp
    from draftlab.models.backend import LatencyBackend
    from draftlab.models.suffixes import Memory
    from draftlab.stages.latency_requests import Settings

PLAIN, AGAIN = "none", "none_again"
"""No speculation, measured twice: the difference between the two is noise."""
LOOKUP, FIRST = "lookup", "lookup_first"
"""The drafts that every user has already."""
SUFFIX, SUFFIX_FIRST = "suffix", "suffix_first"
"""Drafts that remember earlier answers."""

ADAPTIVE, CONFIDENT, TREE, COST_AWARE, PARALLEL = "_adaptive", "_confident", "_tree", "_cost_aware", "_parallel"
"""Endings of the names of drafts whose length follows the acceptance, whose blocks end where they are unsure, whose blocks are trees of the number
of tokens that follows, which draft as much as pays at the measured costs, and which propose a block in one call."""

BEFORE, DISTILLED = "before", "distilled"
"""The pair's undistilled draft, and the same draft distilled by another experiment."""

LONGEST = 10
CALIBRATION_BLOCKS = 5
CALIBRATION_CONTEXT = 64
CALIBRATED = (2, 3, 4, 5, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192)
"""Tokens in a call that are measured; the costs of others lie between."""


def check_names(drafts: Collection[str], settings: Settings, masks: Collection[str]) -> None:
    """Raise ``UserError`` if a draft has the name of another contender; those with ``masks`` also propose blocks in one call."""
    kinds = [ADAPTIVE] * settings.adaptive + [CONFIDENT] * (max(settings.confidence, settings.suffix_confidence) > 0)
    kinds += [*(f"{TREE}{nodes}" for nodes in settings.trees), *[COST_AWARE] * (settings.cost_aware > 0)]
    searches = (LOOKUP, FIRST, SUFFIX, SUFFIX_FIRST)
    others = [*(name + PARALLEL for name in masks), *searches]
    reserved = {PLAIN, AGAIN, *others, *(name + kind for name in (*drafts, *others) for kind in kinds)}
    if clash := sorted(reserved.intersection(drafts)):
        raise UserError(f"a draft is named {clash[0]!r}, like another contender", remedy="give it another name")


def contenders_of(
    target: LatencyBackend,
    drafts: Mapping[str, LatencyBackend],
    settings: Settings,
    prices: Mapping[str, CostModel],
    memory: Memory | None,
    masks: Mapping[str, int],
) -> dict[str, Drafter]:
    """Every way to draft that the settings ask for, by name; with suffix decoding if there is a ``memory``. Drafts in ``masks`` also propose a
    block in one call, and read that token for those not known yet."""
    from draftlab.latency.cost_aware import AtLeast, CostAware
    from draftlab.latency.drafters import Drafter
    from draftlab.latency.lookup import SURE, LookupBackend
    from draftlab.latency.loop import fixed, speculate
    from draftlab.latency.suffixes import speculate_with_suffixes
    from draftlab.latency.trees import LookedUp, speculate_with_trees

    length, last = fixed(settings.draft_len), list(drafts)[-1]
    least = {"": 0.0} | ({CONFIDENT: settings.confidence} if settings.confidence else {})
    found: dict[str, Drafter] = {}

    def as_it_pays(name: str, lookup: LookedUp | None = None) -> Drafter:
        """The draft of this name, drafted as far as it pays."""
        price, most = prices[name], settings.cost_aware
        rule = CostAware(price.cost_ratio, [0, *(price.verify(tokens) for tokens in range(1, most + 2))])
        how = partial(speculate_with_trees, tree=settings.shapes[most], rule=rule, lookup=lookup)
        return Drafter(drafts[name], how)

    for name, draft in drafts.items():
        for ending, min_prob in least.items():
            found[name + ending] = Drafter(draft, partial(speculate, draft_len=length, min_prob=min_prob))
        for ending, min_prob in least.items() if name in masks else ():
            how = partial(speculate, draft_len=length, min_prob=min_prob, mask=masks[name])
            found[name + PARALLEL + ending] = Drafter(draft, how)
        if settings.adaptive:
            found[name + ADAPTIVE] = Drafter(draft, partial(speculate, draft_len=calibrated_length(target, draft)))
        for nodes in settings.trees:
            rule = AtLeast(settings.tree_confidence)
            how = partial(speculate_with_trees, tree=settings.shapes[nodes], rule=rule)
            found[f"{name}{TREE}{nodes}"] = Drafter(draft, how)
        if settings.cost_aware:
            found[name + COST_AWARE] = as_it_pays(name)
    found[LOOKUP] = Drafter(LookupBackend(target), partial(speculate, draft_len=length, min_prob=SURE))
    for name, draft in drafts.items():
        if name == BEFORE and name != last:
            continue
        joined = FIRST if name == last else f"{FIRST}_{name}"
        for ending, min_prob in least.items():
            how = partial(speculate, draft_len=length, min_prob=min_prob)
            found[joined + ending] = Drafter(LookupBackend(draft, joined=True), how)
        if settings.cost_aware:
            found[joined + COST_AWARE] = as_it_pays(name, LookedUp())
    if memory:
        by_suffix = partial(speculate_with_suffixes, draft_len=length, memory=memory)
        found[SUFFIX] = Drafter(LookupBackend(target), by_suffix)
        if settings.suffix_confidence:
            how = partial(by_suffix, min_prob=settings.suffix_confidence)
            found[SUFFIX + CONFIDENT] = Drafter(LookupBackend(target), how)
        for ending, min_prob in least.items():
            found[SUFFIX_FIRST + ending] = Drafter(drafts[last], partial(by_suffix, joined=True, min_prob=min_prob))
    return found


def calibrated_length(target: LatencyBackend, draft: LatencyBackend) -> DraftLength:
    """A draft length that follows the acceptance, from a short calibration of this pair."""
    from draftlab.latency.loop import adaptive

    model = calibrated(target, draft, range(2, LONGEST + 1))
    return adaptive(model.cost_ratio, model.by_draft_len)


def priced(target: LatencyBackend, draft: LatencyBackend, most: int) -> CostModel:
    """The costs by which ``CostAware`` drafts at most ``most`` tokens: those in turns, because its calls change their shape from block to block."""
    sizes = sorted({size for size in CALIBRATED if size <= most} | {most + 1})
    return calibrated(target, draft, sizes, in_turns=True)


def calibrated(
    target: LatencyBackend, draft: LatencyBackend, verified: Sequence[int], in_turns: bool = False
) -> CostModel:
    """The costs of this pair at these numbers of tokens in a call."""
    from draftlab.latency.cost import calibrate, cost_model

    return cost_model(calibrate(target, draft, [CALIBRATION_CONTEXT], [1], verified, CALIBRATION_BLOCKS), in_turns)
