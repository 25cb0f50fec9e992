"""Acceptance of any draft along a recorded target pass: only the draft runs, the target never runs again.

Speculative decoding is lossless: the emitted text follows the target's distribution whatever the draft. So a text that the target wrote
alone serves every draft, and given that text, only its division into blocks is random. At a visited position, token y is emitted with
probability target(y), and drafted and accepted with probability min(target, draft)(y). Hence

    P(accepted | y) = min(1, draft(y) / target(y)),     independently at each position.

``walk`` sums over these accept flags exactly, without sampling. Its counts are conditional expectations given the text: unbiased, with less
variance than live decoding, and equal to the counts of live decoding if the flags are 0 or 1, as at temperature 0. With block
verification, the first i tokens of a block are accepted with probability min over j <= i of prod_{l <= j} draft(y_l)/target(y_l),
capped at 1 (the path weight of Sun et al. 2025, Eq. 4, divided by the probability of the text). Whether the next position is visited then
depends on the token that was drafted, so ``overlap_repo`` is that of a token drafted at random, not the expected count of live decoding.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
import torch
from jaxtyping import Bool, Float, Float64, Int, Int64
from torch import Tensor

from draftlab.core.sampling import Sampling, most_probable, to_probs
from draftlab.core.tree import Tree
from draftlab.engine.recording import TargetPass
from draftlab.errors import UserError
from draftlab.models import LanguageModel
from draftlab.models.medusa import Medusa

SingleVerifier = Literal["single", "block"]


@dataclass(frozen=True)
class Agreement:
    """How well draft and target agree at each answer position of some requests, one request after the other.

    ``ratio`` = draft(y) / target(y) at the emitted token y; ``overlap`` = sum_x min(target, draft); ``overlap_repo`` = sum_x draft min(target, draft),
    the expectation of what OSD's repository adds per drafted token (``alpha_repo``). Medusa heads and EAGLE drafts guess a token from a state of the
    target that is further back the deeper it is in its block, so their arrays have a second axis, the depth.
    """

    lengths: list[int]
    ratio: Float64[np.ndarray, "positions ..."]
    overlap: Float64[np.ndarray, "positions ..."]
    overlap_repo: Float64[np.ndarray, "positions ..."]

    def realise(self, rng: np.random.Generator) -> Agreement:
        """Draw the accept flag of every position, so that ``walk`` gives one run of live decoding instead of the expectation."""
        flags = rng.random(self.ratio.shape) < self.ratio
        return dataclasses.replace(self, ratio=flags.astype(np.float64))


@torch.no_grad()
def agreement(
    draft_logits: Float[Tensor, "positions vocab"],
    target_logits: Float[Tensor, "positions vocab"],
    tokens: Int[Tensor, " positions"],
    lengths: Sequence[int],
    sampling: Sampling,
    draft_sampling: Sampling | None = None,
) -> Agreement:
    """Compare draft and target at the emitted ``tokens``, which the target sampled with ``sampling``; logits are those at temperature 1.

    At temperature 0 the target's distribution is concentrated on y: ``ratio`` and ``overlap`` are draft(y), and ``overlap_repo`` is draft(y)^2. For a
    greedy draft, all three are 0 or 1.

    **Arguments:**
    - `draft_logits`, `target_logits`: at temperature 1, shape `(positions, vocab)`.
    - `tokens`: the emitted ids, shape `(positions,)`.
    - `lengths`: number of positions of each request, one request after the other.
    - `sampling`: how the target wrote the tokens.
    - `draft_sampling`: how the draft samples; None: like the target.

    **Returns:** an `Agreement` of these requests.

    >>> logits = torch.tensor([[0.5, 0.5], [0.9, 0.1]]).log()
    >>> target = torch.tensor([[0.8, 0.2], [0.8, 0.2]]).log()
    >>> agreement(logits, target, torch.tensor([0, 1]), [2], Sampling(temperature=1.0)).ratio.round(3)
    array([0.625, 0.5  ])
    """
    draft_sampling = draft_sampling or sampling
    if sampling.temperature == draft_sampling.temperature == 0:
        flags = (most_probable(draft_logits) == tokens).double().cpu().numpy()
        return Agreement(list(lengths), flags, flags, flags)
    draft = to_probs(draft_logits, draft_sampling)
    if sampling.temperature == 0:
        accepted = draft.gather(-1, tokens[:, None])[:, 0].cpu().numpy()
        return Agreement(list(lengths), accepted, accepted, accepted**2)
    target = to_probs(target_logits, sampling)
    at_draft, at_target = (probs.gather(-1, tokens[:, None])[:, 0] for probs in (draft, target))
    shared = target.minimum(draft)
    # In float16 the emitted token can fall out of a nucleus that it was on the border of. It then counts as rejected.
    ratio = torch.where(at_target > 0, at_draft / at_target, 0.0)
    parts = (ratio, shared.sum(-1), (draft * shared).sum(-1))
    return Agreement(list(lengths), *(part.cpu().numpy() for part in parts))


@torch.no_grad()
def tree_agreement(
    head_logits: Float[Tensor, "heads positions vocab"],
    tokens: Int[Tensor, " positions"],
    lengths: Sequence[int],
    tree: Tree,
) -> Agreement:
    """Whether each emitted token is among a tree's greedy guesses, at every depth that it may have in a block."""
    guessed = [
        (logits.topk(width).indices == tokens[:, None]).any(-1)
        for logits, width in zip(head_logits, tree.widths, strict=True)
    ]
    flags = torch.stack(guessed, -1).double().cpu().numpy()
    return Agreement(list(lengths), flags, flags, flags)


@dataclass(frozen=True)
class Walk:
    """Expected counts of the blocks of each request, given its text; whole numbers at temperature 0.

    ``alpha`` = overlap / visited, ``alpha_accepted`` = accepted / visited, ``alpha_repo`` = overlap_repo / visited,
    ``block_efficiency`` = emitted / blocks; divide sums over requests. ``whole``: blocks of which every drafted token is accepted.
    ``reached`` and ``starts``: the probability that a position is visited, and that a block starts there.
    """

    accepted: Float64[np.ndarray, " requests"]
    visited: Float64[np.ndarray, " requests"]
    overlap: Float64[np.ndarray, " requests"]
    overlap_repo: Float64[np.ndarray, " requests"]
    blocks: Float64[np.ndarray, " requests"]
    whole: Float64[np.ndarray, " requests"]
    emitted: Int64[np.ndarray, " requests"]
    reached: Float64[np.ndarray, " positions"]
    starts: Float64[np.ndarray, " positions"]


def walk(agree: Agreement, draft_len: int, verifier: SingleVerifier = "single") -> Walk:
    """Cut the recorded answers into blocks of up to ``draft_len`` drafted tokens and one token of the target.

    Nothing is drafted beyond the end of an answer, and its last token may be a drafted one.

    **Arguments:**
    - `agree`: the result of `agreement`.
    - `draft_len`: drafted tokens per block, at least 1.
    - `verifier`: `single`, token by token, or `block`.

    **Returns:** expected counts of each request.

    >>> exact = np.array([1.0, 1.0, 0.0, 1.0, 1.0])  # the draft misses the third token
    >>> walked = walk(Agreement([5], exact, exact, exact), draft_len=2)
    >>> walked.blocks, walked.accepted
    (array([2.]), array([4.]))
    """
    if draft_len < 1:
        raise UserError(f"draft_len is {draft_len}", remedy="draft at least 1 token")
    if agree.ratio.ndim > 1 and draft_len > agree.ratio.shape[1]:
        raise UserError(
            f"draft_len is {draft_len}, but the draft guesses {agree.ratio.shape[1]} tokens per block",
            remedy="lower draft_len",
        )
    lengths = np.asarray(agree.lengths, dtype=np.int64)
    request, left = places_in(lengths)
    accepted = prefix_acceptance(agree.ratio, left, draft_len, verifier)
    starts = block_starts(accepted, lengths)
    weighted = starts[:, None] * accepted
    reached, overlap, overlap_repo = np.zeros((3, len(request)))
    for offset in range(draft_len):
        inside = np.flatnonzero(left > offset)
        visits = weighted[inside, offset]
        reached[inside + offset] += visits
        overlap[inside] += visits * ahead(agree.overlap, offset)[inside]
        overlap_repo[inside] += visits * ahead(agree.overlap_repo, offset)[inside]

    def per_request(values: Float64[np.ndarray, " positions"]) -> Float64[np.ndarray, " requests"]:
        return np.bincount(request, values, minlength=len(lengths))

    return Walk(
        accepted=per_request(weighted[:, 1:].sum(1)),
        visited=per_request(reached),
        overlap=per_request(overlap),
        overlap_repo=per_request(overlap_repo),
        blocks=per_request(starts),
        whole=per_request(weighted[:, draft_len]),
        emitted=lengths,
        reached=reached,
        starts=starts,
    )


def places_in(lengths: Int64[np.ndarray, " requests"]) -> tuple[Int64[np.ndarray, " positions"], ...]:
    """The request of each position, and how many of its positions are left, including this position."""
    request = np.repeat(np.arange(len(lengths)), lengths)
    return request, np.cumsum(lengths)[request] - np.arange(len(request))


def ahead(values: Float64[np.ndarray, "positions ..."], offset: int) -> Float64[np.ndarray, " positions"]:
    """The value ``offset`` positions later, at that depth if values have depths; 0 beyond the end."""
    column = values[:, offset] if values.ndim > 1 else values
    return np.pad(column, (0, offset))[offset:]


def at_its_depth(
    values: Float64[np.ndarray, "positions ..."], starts: Bool[np.ndarray, " positions"]
) -> Float64[np.ndarray, " positions"]:
    """The value of each position at the depth that it has in a block, where blocks begin at ``starts``."""
    if values.ndim == 1:
        return values
    place = np.arange(len(values))
    depth = place - np.maximum.accumulate(np.where(starts, place, 0))
    return np.asarray(values[place, depth.clip(max=values.shape[1] - 1)])


def prefix_acceptance(
    ratio: Float64[np.ndarray, "positions ..."],
    left: Int64[np.ndarray, " positions"],
    draft_len: int,
    verifier: str,
) -> Float64[np.ndarray, "positions lengths"]:
    """Entry [t, i]: probability that the first i drafted tokens of a block that starts at t are accepted, given the text.

    **Raises:** `UserError` for a verifier that is not a `SingleVerifier`.
    """
    if verifier not in get_args(SingleVerifier):
        raise UserError(f"replay knows no verifier {verifier!r}", remedy="use single or block, or decode live")
    accepted = np.zeros((len(ratio), draft_len + 1))
    accepted[:, 0] = 1.0
    path = np.ones(len(ratio))
    for i in range(draft_len):
        here = ahead(ratio, i)
        if verifier == "single":
            path = path * np.minimum(here, 1.0)
            accepted[:, i + 1] = path
        else:
            path = path * here
            accepted[:, i + 1] = np.minimum(accepted[:, i], path)
        accepted[left <= i, i + 1] = 0.0
    return accepted


def block_starts(
    accepted: Float64[np.ndarray, "positions lengths"], lengths: Int64[np.ndarray, " requests"]
) -> Float64[np.ndarray, " positions"]:
    """Probability that a block starts at each position, from ``prefix_acceptance``: the block before it ends just before the position."""
    stops = accepted - np.pad(accepted[:, 1:], ((0, 0), (0, 1)))
    longest, steps = int(lengths.max(initial=0)), stops.shape[1]
    place = np.arange(longest) < lengths[:, None]
    by_request = np.zeros((len(lengths), longest, steps))
    by_request[place] = stops
    starts = np.zeros((len(lengths), longest + steps))
    starts[:, 0] = 1.0
    for position in range(longest):
        starts[:, position + 1 : position + 1 + steps] += starts[:, position, None] * by_request[:, position]
    return starts[:, :longest][place]


def agree_along(
    draft: LanguageModel,
    target_pass: TargetPass,
    requests: Sequence[int] | None = None,
    *,
    draft_sampling: Sampling | None = None,
    batch_size: int = 16,
) -> Agreement:
    """Agreement of a draft with a recorded pass, by one teacher-forced forward pass of the draft per batch of requests.

    The result serves every draft length and verifier of ``walk``.

    **Arguments:**
    - `draft`: a model.
    - `target_pass`: recorded answers of a target with its distributions.
    - `requests`: numbers of the requests to use; None: all.
    - `draft_sampling`: how the draft samples; None: like the target.
    - `batch_size`: requests in one forward pass.

    **Returns:** an `Agreement` over these requests, in their order.
    """
    known = range(len(target_pass.answers))
    chosen = known if requests is None else requests
    if outside := [number for number in chosen if number not in known]:
        remedy = f"the pass has {len(known)}: give numbers from 0 to {len(known) - 1}"
        raise UserError(f"no request {outside[0]}", remedy=remedy)
    if draft.vocab_size != target_pass.vocab_size:
        raise UserError(
            f"the draft has {draft.vocab_size} tokens, but the recorded target has {target_pass.vocab_size}",
            remedy="use two models that share a tokenizer",
        )
    if isinstance(draft, Medusa) and target_pass.sampling.temperature:
        raise UserError("heads cannot be replayed along sampled answers", remedy="use greedy answers, or decode live")
    recorded, count = target_pass.take(chosen), len(chosen)
    sizes = [len(answer.prompt_ids) + len(answer.answer_ids) for answer in recorded.answers]
    order = sorted(range(count), key=sizes.__getitem__)
    parts: dict[int, np.ndarray] = {}
    for start in range(0, count, batch_size):
        batch = order[start : start + batch_size]
        agree = _agree_with(draft, recorded.take(batch), draft_sampling)
        values = np.stack([agree.ratio, agree.overlap, agree.overlap_repo])
        parts |= dict(zip(batch, np.split(values, np.cumsum(agree.lengths)[:-1], axis=1), strict=True))
    joined = np.concatenate([parts[number] for number in range(count)] or [np.zeros((3, 0))], axis=1)
    return Agreement(recorded.lengths, *joined)


def _agree_with(draft: LanguageModel, recorded: TargetPass, draft_sampling: Sampling | None) -> Agreement:
    """Agreement of a draft with all answers of a pass, by one forward pass of the draft."""
    prompts, answers = zip(*((answer.prompt_ids, answer.answer_ids) for answer in recorded.answers), strict=True)
    with torch.inference_mode():
        logits = draft.answer_logits(prompts, answers)
    tokens = torch.tensor([token for answer in answers for token in answer], device=logits.device)
    if isinstance(draft, Medusa):
        return tree_agreement(logits, tokens, recorded.lengths, draft.tree)
    target_logits = logits  # greedy answers need none
    if recorded.sampling.temperature:
        target_logits = recorded.target_logits(range(len(answers)), logits.device, to_sample=True)
    by_depth = [
        agreement(one, target_logits, tokens, recorded.lengths, recorded.sampling, draft_sampling)
        for one in (logits if logits.ndim > 2 else [logits])
    ]
    if logits.ndim == 2:
        return by_depth[0]
    columns = [np.stack([getattr(one, name) for one in by_depth], -1) for name in ("ratio", "overlap", "overlap_repo")]
    return Agreement(recorded.lengths, *columns)


def replay(
    draft: LanguageModel,
    target_pass: TargetPass,
    draft_len: int,
    *,
    verifier: SingleVerifier = "single",
    draft_sampling: Sampling | None = None,
) -> Walk:
    """The counts of live decoding of recorded requests with ``draft``, without running the target.

    **Arguments:**
    - `draft`, `target_pass`, `draft_sampling`: as for `agree_along`.
    - `draft_len`, `verifier`: as for `walk`.

    **Returns:** expected counts of each request.
    """
    return walk(agree_along(draft, target_pass, draft_sampling=draft_sampling), draft_len, verifier)
