"""K drafted sequences of L tokens, verified token by token: the sequences that agree with the emitted token continue together."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float64, Int64
from torch import Generator, Tensor

from draftlab.core.sampling import DISTINCT, Tokens, draw, restrict
from draftlab.core.tree import Tree
from draftlab.core.verify.path import PathVerifier
from draftlab.core.verify.token import TokenVerifier

TargetAlong = Float64[Tensor, "drafts positions vocab"]
"""The target's distribution at the L + 1 positions of each of K sequences."""
DraftAlong = Float64[Tensor, "drafts path vocab"]
"""The draft's distribution at the L drafted positions."""
Sequences = Int64[Tensor, "drafts path"]
"""The drafted tokens."""


@dataclass(frozen=True)
class Outcome:
    """``length`` tokens of drafted sequence ``path`` are accepted, and ``token`` follows them."""

    path: Int64[Tensor, " batch"]
    length: Int64[Tensor, " batch"]
    token: Int64[Tensor, " batch"]


def _voters(
    verifier: TokenVerifier, active: Bool[Tensor, "batch drafts"], tokens: Tokens
) -> Bool[Tensor, "batch drafts"]:
    """The active sequences that bring a draft: all of them, or the first with each token if drafts are distinct."""
    if not verifier.is_distinct:
        return active
    earlier = torch.ones(tokens.shape[1], tokens.shape[1], dtype=torch.bool, device=tokens.device).tril(-1)
    repeated = (tokens[:, :, None] == tokens[:, None, :]) & active[:, None, :] & earlier
    return active & ~repeated.any(-1)


def verify_sequences(
    verifier: TokenVerifier,
    target_probs: Float64[Tensor, "batch drafts positions vocab"],
    draft_probs: Float64[Tensor, "batch drafts path vocab"],
    tokens: Int64[Tensor, "batch drafts path"],
    generator: Generator,
    *,
    tail: PathVerifier | None = None,
    truncated: bool = False,
    tree: Tree | None = None,
) -> Outcome:
    """Verify K sequences, position after position: the token verifier sees the drafts of the sequences that still agree.

    Given the emitted prefix, the next tokens of these sequences are still independent, so each step is lossless, and so is the whole (Miao
    et al. 2024; Khisti et al. 2025, section 5). A token of the target follows a sequence that is accepted to its end. Distinct drafts are at
    most as many as the tokens that can be drafted; a sequence that repeats another then adds no draft.

    **Arguments:**
    - `verifier`: chooses among the drafts of a position.
    - `target_probs`, `draft_probs`, `tokens`: the sequences, and both distributions along them.
    - `generator`: draws the outcome.
    - `tail`: verifies the rest of a sequence once it is the only one left; the rest is still a draft given the emitted prefix.
    - `truncated`: whether top-k or top-p left few tokens; only these are then given to the verifier.
    - `tree`: one, or one for each row; its paths to the leaves are the sequences, and a token that several of them share is one draft.

    **Returns:** the accepted tokens of each row, and the token after them.
    """
    batch, drafts, length = tokens.shape
    active = torch.ones(batch, drafts, dtype=torch.bool, device=tokens.device)
    accepted = torch.zeros(batch, dtype=torch.int64, device=tokens.device)
    token = torch.full_like(accepted, -1)
    for depth in range(length):
        if tail is not None:
            alone = ((active.sum(-1) == 1) & (token < 0)).nonzero()[:, 0]
            if len(alone):
                last = active[alone].double().argmax(-1)
                target, draft, rest = (table[alone, last, depth:] for table in (target_probs, draft_probs, tokens))
                more, token[alone] = tail.sample(target, draft, rest, generator, check=False)
                accepted[alone] += more
        drafted = active if tree is None else active & tree.is_drawn[..., depth].to(active.device)
        voters = _voters(verifier, drafted, tokens[..., depth]) & (token < 0)[:, None]
        counts = voters.sum(-1)
        for count in range(1, drafts + 1):
            rows = (counts == count).nonzero()[:, 0]
            if not len(rows):
                continue
            paths = voters[rows].nonzero()[:, 1].view(-1, count)
            at = rows[:, None]
            target, draft = target_probs[rows, paths[:, 0], depth], draft_probs[at, paths, depth]
            judged, ids = tokens[at, paths, depth], None
            if truncated:
                target, draft, judged, ids = restrict(target, draft, judged)
            emitted, _ = verifier.sample(target, draft, judged, generator, check=False)
            if ids is not None:
                emitted = ids.gather(1, emitted[:, None])[:, 0]
            agrees = active[rows] & (tokens[rows, :, depth] == emitted[:, None])
            if tree is not None:
                agrees &= tree.exists[..., depth].to(active.device).expand_as(active)[rows]
                if verifier.drafting in DISTINCT:
                    chosen = (voters[rows] & agrees).int().argmax(-1)
                    agrees &= _below(tree.first[..., depth].to(active.device).expand(active.shape)[rows], chosen)
            goes_on = agrees.any(-1)
            active[rows[goes_on]] = agrees[goes_on]
            accepted[rows[goes_on]] += 1
            token[rows[~goes_on]] = emitted[~goes_on]
    # Of equal siblings, one may end a path early. The path that reaches deepest shows all positions that were judged.
    reach = torch.ones(drafts) if tree is None else 1 + tree.exists.sum(-1)
    path = (active * reach.to(active.device)).argmax(-1)
    whole = (token < 0).nonzero()[:, 0]
    if len(whole):
        token[whole] = draw(target_probs[whole, path[whole], accepted[whole]], 1, generator)[:, 0]
    return Outcome(path, accepted, token)


def _below(first: Int64[Tensor, "rows leaves"], leaf: Int64[Tensor, " rows"]) -> Bool[Tensor, "rows leaves"]:
    """Which leaves share the node of ``leaf``: their ``first`` leaf is the same. Below a sibling that repeats its token there is no other draft."""
    return first == first.gather(1, leaf[:, None])


def sequences_distribution(
    verifier: TokenVerifier,
    target_probs: TargetAlong,
    draft_probs: DraftAlong,
    tokens: Sequences,
    tree: Tree | None = None,
) -> dict[tuple[int, ...], float]:
    """The exact distribution of the tokens that ``verify_sequences`` emits, given the drafted sequences: emitted tokens -> probability."""
    distribution: dict[tuple[int, ...], float] = {}

    def descend(prefix: tuple[int, ...], active: Bool[Tensor, " drafts"], reached: float) -> None:
        depth, first = len(prefix), int(active.double().argmax())
        voters = torch.zeros_like(active)
        if depth < tokens.shape[1]:
            drafted = active if tree is None else active & tree.is_drawn[:, depth]
            voters = _voters(verifier, drafted[None], tokens[None, :, depth])[0]
        emitted = target_probs[first, depth]
        if bool(voters.any()):
            emitted = verifier.distribution(emitted, draft_probs[voters, depth], tokens[voters, depth])
        exists = active if tree is None else active & tree.exists[:, min(depth, tree.depth - 1)]
        for token, chance in enumerate(emitted.tolist()):
            agrees = exists & (tokens[:, depth] == token) if bool(voters.any()) else torch.zeros_like(active)
            if tree is not None and verifier.drafting in DISTINCT and bool(agrees.any()):
                agrees &= _below(tree.first[None, :, depth], (voters & agrees)[None].int().argmax(-1))[0]
            if chance > 0 and bool(agrees.any()):
                descend((*prefix, token), agrees, reached * chance)
            elif chance > 0:
                distribution[*prefix, token] = reached * chance

    descend((), torch.ones(len(tokens), dtype=torch.bool), 1.0)
    return distribution
