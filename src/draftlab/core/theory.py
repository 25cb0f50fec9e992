"""Closed forms of the cost of speculative decoding.

``alpha`` is the acceptance per drafted token, ``draft_len`` the drafted tokens per block (k, gamma), ``cost_ratio`` the time of
one draft step over one target step (c), ``verify_ratio`` the time to verify a block over one target step (1 in the papers).
"""

from __future__ import annotations

from dataclasses import dataclass

from draftlab.errors import UserError


def _check(alpha: float, draft_len: int) -> None:
    if not 0 <= alpha <= 1:
        raise UserError(f"alpha is {alpha}", remedy="give an acceptance between 0 and 1")
    if draft_len < 0:
        raise UserError(f"draft_len is {draft_len}", remedy="give a draft length of at least 0")


def _positive(**numbers: float) -> None:
    """Refuse numbers that are not above 0, by which a formula divides."""
    for name, number in numbers.items():
        if not number > 0:
            raise UserError(f"{name} is {number}", remedy="give a number above 0")


def expected_block_length(alpha: float, draft_len: int) -> float:
    """Tokens per target call, ``(1 - alpha^(k+1)) / (1 - alpha)`` (Leviathan et al. 2023, Eq. 1), bonus token included.

    **Arguments:**
    - `alpha`: acceptance per drafted token, in [0, 1].
    - `draft_len`: drafted tokens per block (k), 0 or more.

    **Returns:** tokens per target call, from 1 to k + 1.

    >>> expected_block_length(alpha=0.5, draft_len=2)
    1.75
    """
    _check(alpha, draft_len)
    return float(sum(alpha**i for i in range(draft_len + 1)))


def speedup(alpha: float, draft_len: int, cost_ratio: float, verify_ratio: float = 1.0) -> float:
    """Speed-up over plain decoding, ``E[block length] / (k c + v)``; with ``v = 1`` this is OSD's Eq. 1.

    **Arguments:**
    - `alpha`, `draft_len`: as for `expected_block_length`.
    - `cost_ratio`: time of a draft step over a target step (c), 0 or more.
    - `verify_ratio`: time to verify a block over a target step (v), above 0.

    **Returns:** speed relative to plain decoding.

    >>> round(speedup(alpha=0.8, draft_len=4, cost_ratio=0.1), 2)
    2.4
    """
    if cost_ratio < 0 or verify_ratio <= 0:
        raise UserError(
            f"cost_ratio is {cost_ratio} and verify_ratio {verify_ratio}",
            remedy="give a cost ratio >= 0 and a verify ratio > 0",
        )
    return expected_block_length(alpha, draft_len) / (draft_len * cost_ratio + verify_ratio)


def best_draft_len(
    alpha: float, cost_ratio: float, verify_ratios: dict[int, float] | None = None, longest: int = 99
) -> int:
    """The ``draft_len`` in 1..``longest`` with the largest speed-up; ``verify_ratios`` maps a draft length to its measured ``v``.

    **Arguments:**
    - `alpha`, `cost_ratio`: as for `speedup`.
    - `verify_ratios`: draft length -> its measured v; None: 1 for every length.
    - `longest`: largest length to try if there are no `verify_ratios`.

    **Returns:** drafted tokens per block.

    >>> best_draft_len(alpha=0.8, cost_ratio=0.1)
    6
    >>> best_draft_len(alpha=0.8, cost_ratio=0.1, verify_ratios={1: 1.1, 3: 1.3, 7: 2.5})
    3
    """
    lengths = range(1, longest + 1) if verify_ratios is None else sorted(verify_ratios)
    if not lengths:
        raise UserError("no draft length to choose from", remedy="measure one or more, or give longest=1 or more")
    return max(lengths, key=lambda k: speedup(alpha, k, cost_ratio, verify_ratios[k] if verify_ratios else 1.0))


def distillation_speedup(alpha_before: float, alpha_after: float, draft_len: int) -> float:
    """Expected speed-up of OSD over plain speculative decoding at equal cost, ``sum a2^i / sum a1^i`` (OSD, section 4.2.2).

    **Arguments:**
    - `alpha_before`, `alpha_after`: acceptance before and after distillation (a1, a2), in [0, 1].
    - `draft_len`: drafted tokens per block.

    **Returns:** speed relative to plain speculative decoding.

    >>> round(distillation_speedup(alpha_before=0.5, alpha_after=1.0, draft_len=3), 2)
    2.13
    """
    return expected_block_length(alpha_after, draft_len) / expected_block_length(alpha_before, draft_len)


@dataclass(frozen=True)
class ModelSize:
    """Size of one model's weights, and of one token in its cache, in GB."""

    weights: float
    cache: float


def memory_traffic(
    target: ModelSize,
    draft: ModelSize,
    *,
    tokens: int,
    block_length: float,
    online_block_length: float,
    update_interval: int,
) -> dict[str, dict[str, float]]:
    """GB of weights loaded for one request: ``L M``; ``(L/a1) M + L m``; ``(L/a2) M + L m + m L / I`` (OSD, Table 5).

    **Arguments:**
    - `target`, `draft`: GB of each model (M, m).
    - `tokens`: number of tokens in the answer (L).
    - `block_length`, `online_block_length`: tokens per target call without and with updates (a1, a2).
    - `update_interval`: requests per update (I).

    **Returns:** GB by system (`original`, `vsd`, `osd`) and term.

    >>> gb = memory_traffic(ModelSize(14, 0), ModelSize(1, 0), tokens=10, block_length=2, online_block_length=4, update_interval=5)
    >>> gb["osd"]
    {'target_gb': 35.0, 'draft_gb': 10, 'cache_gb': 0.0, 'update_gb': 2.0}
    """
    if min(tokens, target.weights, draft.weights, block_length, online_block_length, update_interval) <= 0:
        raise UserError(
            "memory_traffic needs positive numbers", remedy="check tokens, sizes, block lengths and the interval"
        )
    plain, drafts = tokens * target.weights, tokens * draft.weights
    systems = {
        "original": (plain, 0.0, 0.0),
        "vsd": (plain / block_length, drafts, 0.0),
        "osd": (plain / online_block_length, drafts, drafts / update_interval),
    }
    return {
        system: {"target_gb": target_gb, "draft_gb": draft_gb, "cache_gb": 0.0, "update_gb": update_gb}
        for system, (target_gb, draft_gb, update_gb) in systems.items()
    }


UPDATE_COPIES = 10
"""How often an update of AdamW in float32 moves the bytes of the weights. It reads the weights forward, backward and once more, and writes them;
writes and reads gradients; and reads and writes each of two moments. Activations are not counted."""


def traffic_terms(
    target: ModelSize,
    draft: ModelSize,
    *,
    tokens: int,
    context: float,
    draft_len: int,
    block_length: float,
    batch: int = 1,
    updates_per_request: float = 0.0,
    train_gb: float = 0.0,
) -> dict[str, float]:
    """GB moved for one request, with the terms that OSD's Table 5 leaves out; ``draft_len`` 0 and ``block_length`` 1 mean plain decoding.

    The target is called ``tokens / block_length`` times, each time after ``draft_len`` (k) steps of the draft; Table 5 counts one step per
    emitted token. ``batch`` requests share a load of the weights. Both caches are read at ``context`` tokens, and k + 1 entries are verified
    and written. An update moves ``UPDATE_COPIES`` times ``train_gb``.

    **Arguments:**
    - `target`, `draft`: GB of each model's weights, and of a token in its cache.
    - `tokens`, `context`: number of tokens in the answer, and in the caches.
    - `draft_len`, `block_length`: drafted tokens per block, and tokens per target call.
    - `batch`: requests that share a load of weights.
    - `updates_per_request`, `train_gb`: updates of the draft per request, and GB of its weights in float32.

    **Returns:** GB by term.

    >>> plain = traffic_terms(ModelSize(14, 0.001), ModelSize(1, 0), tokens=10, context=99, draft_len=0, block_length=1)
    >>> plain["target_gb"], round(plain["cache_gb"], 3)
    (140.0, 1.0)
    """
    if min(tokens, block_length, batch) <= 0:
        raise UserError("traffic_terms needs positive numbers", remedy="check tokens, block length and batch")
    calls = tokens / block_length
    return {
        "target_gb": calls * target.weights / batch,
        "draft_gb": calls * draft_len * draft.weights / batch,
        "cache_gb": calls * (target.cache * (context + draft_len + 1) + draft_len * draft.cache * (context + 1)),
        "update_gb": updates_per_request * UPDATE_COPIES * train_gb,
    }


def break_even_block_length(per_block: float, fixed: float, online_fixed: float, block_length: float) -> float:
    """The block length a from which updates pay off: ``per_block / a + online_fixed = per_block / block_length + fixed``; inf: no length does.

    **Arguments:**
    - `per_block`: the cost that is divided by the block length.
    - `fixed`, `online_fixed`: the rest of the cost without and with updates, in the same unit.
    - `block_length`: tokens per target call without updates.

    **Returns:** tokens per target call.

    >>> break_even_block_length(per_block=1.0, fixed=0.0, online_fixed=0.1, block_length=2.0)
    2.5
    """
    _positive(block_length=block_length)
    left = per_block / block_length + fixed - online_fixed
    return per_block / left if left > 0 else float("inf")


def update_flops_ratio(draft_len: int, block_length: float, target_flops: float, draft_flops: float) -> float:
    """FLOPs of the target over FLOPs of the draft with its updates, ``(k+1) F_p / ((k + 3a) F_q)`` (OSD, App. A.4).

    **Arguments:**
    - `draft_len`: drafted tokens per block (k).
    - `block_length`: tokens per target call (a).
    - `target_flops`, `draft_flops`: FLOPs per token of each model (F_p, F_q).

    **Returns:** a ratio.

    >>> update_flops_ratio(draft_len=4, block_length=2.0, target_flops=10.0, draft_flops=1.0)
    5.0
    """
    _check(0, draft_len)
    _positive(block_length=block_length, target_flops=target_flops, draft_flops=draft_flops)
    return (draft_len + 1) * target_flops / ((draft_len + 3 * block_length) * draft_flops)


def load_flops(tokens_per_request: float, requests: float, days: float, flops_per_token: float) -> float:
    """FLOP/s needed to serve a load (OSD, App. A.4).

    **Arguments:**
    - `tokens_per_request`, `requests`, `days`: the load, and the time over which it is spread.
    - `flops_per_token`: FLOPs of the model for one token.

    **Returns:** FLOP/s.

    >>> load_flops(tokens_per_request=100, requests=86_400, days=1, flops_per_token=2e9)
    200000000000.0
    """
    _positive(days=days)
    return tokens_per_request * requests * flops_per_token / (days * 86_400)
