"""Turn logits into probabilities, draw tokens from them, and check the input of verifiers; all in float64."""

from __future__ import annotations

import math
from typing import Literal, get_args

import numpy as np
import torch
from jaxtyping import Float, Float64, Int64
from torch import Generator, Tensor

from draftlab.core.sampling_numpy import GREEDY as GREEDY
from draftlab.core.sampling_numpy import NUCLEUS_ROUNDING, most_to_sort
from draftlab.core.sampling_numpy import Sampling as Sampling
from draftlab.errors import UserError

Drafting = Literal["iid", "independent", "without_replacement", "greedy", "ranked"]
"""How the K tokens of a position are drafted. ``iid``: one distribution, with replacement; ``independent``: one distribution per draft;
``without_replacement``: one distribution, each token once; ``greedy``: the K - 1 most probable tokens, then one draw from the rest;
``ranked``: the K most probable tokens, of which none is drawn."""
DISTINCT: frozenset[Drafting] = frozenset({"without_replacement", "greedy", "ranked"})
"""The ways of drafting in which the drafts of a position are distinct tokens."""

RANKED = Sampling()
"""How greedy drafts are ranked: in the same order at every temperature above 0."""

Table = Float64[Tensor, "batch vocab"]
"""One number for each token, row by row: a distribution, or weights that need not sum to 1."""
Tables = Float64[Tensor, "batch drafts vocab"]
"""The same for each draft."""
Tokens = Int64[Tensor, "batch drafts"]
"""The K drafted tokens of each row."""

SCALED_BELOW = 1e-200
"""Weights that are all smaller are scaled before a draw; products with the smallest floats would be rounded to them."""

SUM_TOLERANCE = {torch.float64: 2e-5, torch.float32: 2e-5, torch.float16: 4e-3, torch.bfloat16: 4e-3}
"""How far the sum of probabilities of a dtype may be from 1: the rounding of a softmax over 128k tokens, with a margin."""


def to_probs(logits: Float[Tensor, "*batch vocab"], sampling: Sampling) -> Float64[Tensor, "*batch vocab"]:
    """Probabilities of the next token: softmax at a temperature, then top-k, top-p and min-p, renormalised, in float64.

    The nucleus is the smallest set of most probable tokens whose mass is at least ``top_p``.

    **Arguments:**
    - `logits`: the scores of the next token, shape `(*batch, vocab)`; -inf is a token that cannot be drawn.
    - `sampling`: the temperature and the filters.

    **Returns:** distributions of the same shape, float64.

    **Raises:** `UserError` for NaN or +inf logits.

    >>> to_probs(torch.tensor([0.0, 0.0, -1.0]), Sampling(temperature=0.5, top_k=2))
    tensor([0.5000, 0.5000, 0.0000], dtype=torch.float64)
    """
    highest, best = logits.max(-1, keepdim=True)
    _refuse_broken(highest)
    if sampling.temperature == 0:
        return torch.zeros(logits.shape, dtype=torch.float64, device=logits.device).scatter_(-1, best, 1.0)
    # Subtract the maximum before the division, so that a tiny temperature does not overflow.
    probs = ((logits.double() - highest.double()) / sampling.temperature).softmax(-1)
    if sampling.top_k is not None or sampling.top_p < 1:
        probs = _truncate(probs, min(sampling.top_k or probs.shape[-1], probs.shape[-1]), sampling.top_p)
    if sampling.min_p:
        least = sampling.min_p * (1 - NUCLEUS_ROUNDING) * probs.amax(-1, keepdim=True)
        probs = probs.where(probs >= least, 0.0)
        probs = probs / probs.sum(-1, keepdim=True)
    return probs


def most_probable(logits: Float[Tensor, "*batch vocab"]) -> Int64[Tensor, "*batch"]:
    """The most probable token; NaN or +inf logits are a ``UserError``, because the maximum would be the place of a NaN."""
    highest, best = logits.max(-1, keepdim=True)
    if not math.isfinite(highest.sum()):  # one number, because a small model decodes in microseconds
        _refuse_broken(highest)
    return best[..., 0]


def _refuse_broken(highest: Float[Tensor, "*batch 1"]) -> None:
    _refuse(~highest.isfinite()[..., 0], "logits", "hold NaN, +inf or no finite value", "check the model and its dtype")


def _truncate(probs: Float64[Tensor, "*batch vocab"], top_k: int, top_p: float) -> Float64[Tensor, "*batch vocab"]:
    vocab = probs.shape[-1]
    count = most_to_sort(top_k, vocab)
    while True:
        values, ids = _largest(probs, count)
        if top_k < vocab:
            values = values / values.sum(-1, keepdim=True)
        mass = values.cumsum(-1)
        if count >= top_k or bool((mass[..., -1] >= top_p * (1 - NUCLEUS_ROUNDING)).all()):
            break
        count = min(4 * count, vocab)
    kept = values * ((mass - values < top_p * (1 - NUCLEUS_ROUNDING)) if top_p < 1 else 1.0)
    return torch.zeros_like(probs).scatter_(-1, ids, kept / kept.sum(-1, keepdim=True))


def _largest(
    probs: Float64[Tensor, "*batch vocab"], count: int
) -> tuple[Float64[Tensor, "*batch count"], Int64[Tensor, "*batch count"]]:
    """The largest probabilities and their tokens; whole rows on a CPU are sorted by numpy, which is six times as fast as torch."""
    if count < probs.shape[-1] or probs.device.type != "cpu":
        return probs.topk(count, -1)
    ids = torch.from_numpy(np.argsort(-probs.detach().numpy(), -1))
    return probs.gather(-1, ids), ids


def draw(weights: Float64[Tensor, "*batch vocab"], num: int, generator: Generator) -> Int64[Tensor, "*batch {num}"]:
    """``num`` tokens with replacement, each with probability proportional to its weight; a weight of 0 is never drawn."""
    mass = weights.cumsum(-1)
    uniform = torch.rand(*weights.shape[:-1], num, dtype=mass.dtype, device=mass.device, generator=generator)
    return torch.searchsorted(mass, uniform * mass[..., -1:], right=True)


def draft_tokens(draft_probs: Tables, drafting: Drafting, generator: Generator) -> Tokens:
    """Draft a token from each of the K distributions.

    Distinct drafts are at most as many as the tokens of positive probability. Further places repeat the first token, which
    ``verify_sequences`` then uses once.

    **Arguments:**
    - `draft_probs`: the distributions, shape `(batch, drafts, vocab)`; pass one for all drafts as `probs[:, None].expand(-1, drafts, -1)`.
    - `drafting`: how tokens are drafted, such as a verifier's `drafting`. All ways but `independent` use the first distribution of a row.
    - `generator`: draws the tokens.

    **Returns:** token ids, shape `(batch, drafts)`.

    **Raises:** `UserError` for another shape, or a way of drafting that does not exist.

    >>> probs = torch.tensor([[0.1, 0.0, 0.9]]).double()
    >>> draft_tokens(probs[:, None].expand(-1, 2, -1), "ranked", torch.Generator())
    tensor([[2, 0]])
    """
    check_drafting(drafting)
    if draft_probs.dim() != 3:
        what = f"draft_probs has shape {tuple(draft_probs.shape)}, not [batch, drafts, vocab]"
        raise UserError(what, remedy="pass one distribution for K drafts as probs[:, None].expand(-1, K, -1)")
    drafts = draft_probs.shape[1]
    if drafting == "independent":
        return draw(draft_probs, 1, generator)[..., 0]
    if drafting == "iid":
        return draw(draft_probs[:, 0], drafts, generator)
    if drafting == "ranked":
        return ranked_tokens(draft_probs, torch.arange(drafts, device=draft_probs.device))
    rest = draft_probs[:, 0].clone()
    tokens = greedy_tokens(rest, drafts - 1 if drafting == "greedy" else 0)
    rest.scatter_(-1, tokens, 0.0)
    while tokens.shape[1] < drafts:
        # What remains is summed again: 1 minus the drawn mass loses all digits on a peaked distribution.
        most = rest.amax(-1, keepdim=True)
        if bool((most < SCALED_BELOW).any()):
            rest = rest / most.where((most > 0) & (most < SCALED_BELOW), 1.0)
        drawn = draw(rest, 1, generator).clamp_max(rest.shape[-1] - 1)
        rest.scatter_(-1, drawn, 0.0)
        tokens = torch.cat([tokens, drawn], -1)
    used_up = torch.arange(drafts, device=tokens.device) >= (draft_probs[:, 0] > 0).sum(-1, keepdim=True)
    return tokens.where(~used_up, tokens[:, :1])


def check_drafting(drafting: str, of: str = "") -> None:
    """Refuse a way of drafting that does not exist."""
    if drafting not in (allowed := get_args(Drafting)):
        raise UserError(f"{of}unknown drafting {drafting!r}", remedy=f"allowed: {', '.join(allowed)}")


def greedy_tokens(draft_probs: Float64[Tensor, "*batch vocab"], num: int) -> Int64[Tensor, "*batch {num}"]:
    """The ``num`` most probable tokens, or all if there are fewer, the most probable first."""
    return draft_probs.topk(min(num, draft_probs.shape[-1]), -1).indices


def ranked_tokens(draft_probs: Tables, rank: Int64[Tensor, " drafts"]) -> Tokens:
    """The token of this rank (0: the most probable) of each distribution; the most probable one where the rank has no token.

    >>> ranked_tokens(torch.tensor([[[0.2, 0.5, 0.3], [0.0, 1.0, 0.0]]]), torch.tensor([1, 1]))
    tensor([[2, 1]])
    """
    probs, order = draft_probs.topk(min(int(rank.max()) + 1, draft_probs.shape[-1]), -1)
    place = rank.clamp_max(order.shape[-1] - 1).expand(order.shape[:2])[..., None]
    exists = (rank < order.shape[-1]) & (probs.gather(-1, place)[..., 0] > 0)
    return order.gather(-1, place)[..., 0].where(exists, order[..., 0])


def check_support(draft_probs: Float64[Tensor, "*batch vocab"], num_drafts: int) -> None:
    """Refuse more drafts without replacement than there are tokens of positive probability."""
    support = (draft_probs > 0).sum(-1)
    problem = f"has {int(support.min())} tokens of positive probability, fewer than num_drafts = {num_drafts}"
    remedy = "lower num_drafts, raise top_k or top_p, or draft with replacement"
    _refuse(support < num_drafts, "draft_probs", problem, remedy)


def check_probs(probs: Float[Tensor, "*batch vocab"], name: str) -> Float64[Tensor, "*batch vocab"]:
    """``probs`` in float64, renormalised, without gradient. NaN, negative entries and sums other than 1 are a ``UserError`` that says where."""
    if probs.dtype not in SUM_TOLERANCE:
        raise UserError(f"{name} has dtype {probs.dtype}", remedy="pass floating-point probabilities")
    if probs.numel() == 0:
        raise UserError(
            f"{name} is empty: shape {tuple(probs.shape)}", remedy="pass at least one token and one position"
        )
    wide = probs.detach().double()
    total = wide.sum(-1)
    bad = ~((total - 1).abs() <= SUM_TOLERANCE[probs.dtype])  # NaN fails every comparison
    if bool(bad.any()):
        value = float(total[bad][0])
        problem = "holds NaN" if value != value else f"sums to {value:.6g}, not 1"
        _refuse(bad, name, problem, "pass probabilities (softmax the logits, renormalise after a filter)")
    _refuse(wide < 0, name, "is negative", "pass probabilities, not logits or differences")
    return wide / total[..., None]


def check_drafted(
    target_probs: Float[Tensor, "*batch vocab"],
    draft_probs: Float[Tensor, "*batch drafts vocab"],
    tokens: Int64[Tensor, "*batch drafts"] | None = None,
    drafting: Drafting = "independent",
) -> tuple[Float64[Tensor, "*batch vocab"], Float64[Tensor, "*batch drafts vocab"]]:
    """Both tables in float64. Bad probabilities, different vocabularies, impossible tokens and repeated distinct drafts are a ``UserError``."""
    if target_probs.shape[-1] != draft_probs.shape[-1]:
        raise UserError(
            f"target_probs has {target_probs.shape[-1]} tokens and draft_probs {draft_probs.shape[-1]}",
            remedy="target and draft must share one vocabulary",
        )
    shapes = [tuple(x.shape) for x in (target_probs, draft_probs, tokens) if x is not None]
    if target_probs.shape[:-1] != draft_probs.shape[:-2] or (
        tokens is not None and tokens.shape != draft_probs.shape[:-1]
    ):
        raise UserError(
            f"shapes do not fit: {shapes}", remedy="pass [batch, vocab], [batch, drafts, vocab] and [batch, drafts]"
        )
    target, draft = check_probs(target_probs, "target_probs"), check_probs(draft_probs, "draft_probs")
    if drafting != "independent" and not torch.equal(draft, draft[..., :1, :].expand_as(draft)):
        raise UserError(
            f"the drafts' distributions differ, but {drafting} drafts come from one distribution",
            remedy="use a verifier for independent drafts: specinfer, importance or importance_truncated",
        )
    if tokens is not None:
        _check_tokens(draft, tokens, distinct=drafting in DISTINCT)
    return target, draft


def _check_tokens(
    draft: Float64[Tensor, "*batch drafts vocab"], tokens: Int64[Tensor, "*batch drafts"], distinct: bool
) -> None:
    if tokens.dtype != torch.int64:
        raise UserError(f"tokens has dtype {tokens.dtype}", remedy="pass token ids as torch.int64")
    outside = (tokens < 0) | (tokens >= draft.shape[-1])
    _refuse(outside, "tokens", "is outside the vocabulary", "pass token ids from 0 to vocab - 1")
    _refuse(
        draft.gather(-1, tokens[..., None])[..., 0] == 0,
        "tokens",
        "was drafted but has draft probability 0",
        "verify with exactly the draft probabilities (after temperature, top-k, top-p) that were sampled from",
    )
    if distinct:
        check_support(draft[..., 0, :], draft.shape[-2])
        ascending = tokens.sort(-1).values
        _refuse(
            (ascending[..., 1:] == ascending[..., :-1]).any(-1),
            "tokens",
            "repeats a token, but these drafts are drawn without replacement",
            "use a verifier for drafts with replacement: specinfer, k_seq or optimal",
        )


def _refuse(bad: Tensor, name: str, problem: str, remedy: str) -> None:
    """Raise ``name[i, j] problem`` for the first index where ``bad`` is true."""
    if bool(bad.any()):
        raise UserError(f"{name}{bad.nonzero()[0].tolist() or ''} {problem}", remedy=remedy)


def restrict(
    target_probs: Table, draft_probs: Tables, tokens: Tokens
) -> tuple[
    Float64[Tensor, "batch support"],
    Float64[Tensor, "batch drafts support"],
    Tokens,
    Int64[Tensor, "batch support"],
]:
    """Keep only the tokens that the target or a draft can produce, which are few after top-p or top-k.

    Returns both tables and the drafted tokens in the new columns, and each column's token id. Rows with a smaller support end in columns of
    probability 0.
    """
    distributions = draft_probs[:, :1] if draft_probs.stride(1) == 0 else draft_probs  # one distribution, expanded
    used = (target_probs > 0) | (distributions > 0).any(1)
    row, token = used.nonzero(as_tuple=True)
    count = torch.bincount(row, minlength=len(used))
    column = torch.arange(len(row), device=row.device) - (count.cumsum(-1) - count)[row]
    # Short rows are filled with an id beyond the vocabulary, so that ids stay sorted for the search of the drafted tokens.
    vocab = target_probs.shape[1]
    ids = torch.full((len(used), int(count.max())), vocab, dtype=torch.int64, device=used.device)
    ids[row, column] = token
    within = ids.clamp_max(vocab - 1)
    filled = ids < vocab
    target = target_probs.gather(-1, within) * filled
    draft = distributions.gather(-1, within[:, None].expand(-1, distributions.shape[1], -1)) * filled[:, None]
    return target, draft.expand(-1, draft_probs.shape[1], -1), torch.searchsorted(ids, tokens.contiguous()), within


def restrict_pair(
    target: Float64[Tensor, "positions vocab"], draft: Float64[Tensor, "positions vocab"]
) -> tuple[Float64[Tensor, "positions support"], Float64[Tensor, "positions support"]]:
    """Both distributions, restricted to the tokens that one of them can produce."""
    tokens = torch.zeros(len(target), 1, dtype=torch.int64, device=target.device)
    target, drafts, _, _ = restrict(target, draft[:, None], tokens)
    return target, drafts[:, 0]
