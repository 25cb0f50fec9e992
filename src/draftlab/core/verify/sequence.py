"""K drafted sequences of L tokens: those that agree with the emitted token continue together."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float64, Int64
from torch import Generator, Tensor

from draftlab.core.sampling import draw, restrict
from draftlab.core.tree import Tree
from draftlab.core.verify.path import PathVerifier
from draftlab.core.verify.token import TokenVerifier


@dataclass(frozen=True)
class Standing:
    """``length`` tokens of drafted sequence ``path`` are accepted, and ``token`` follows them."""

    path: Int64[Tensor, " batch"]
    length: Int64[Tensor, " batch"]
    token: Int64[Tensor, " batch"]


def _voters(
    verifier: TokenVerifier, active: Bool[Tensor, "batch drafts"], tokens: Int64[Tensor, "batch drafts"]
) -> Bool[Tensor, "batch drafts"]:
    """Which active sequences bring a draft: all of them, or, where drafts are distinct, the first with each token."""
    if verifier.drafting in ("iid", "independent"):
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
) -> Standing:
    """Verify K sequences, position after position: the token verifier sees the drafts of the sequences that still agree.

    Given the emitted prefix, the survivors' next tokens are still independent, so each step, and the whole, is lossless (Miao et al.
    2024; Khisti et al. 2025, section 5). There are at most as many distinct drafts as tokens to draft: a sequence that repeats another adds
    none. A sequence that is accepted to its end is followed by a token of the target. The sequences of a ``tree`` are the paths to its
    leaves; a token that several of them share is one draft. ``tail`` verifies the rest of a sequence once it is the only one left: the rest
    is still a draft given the emitted prefix. Distributions that are ``truncated`` (by top-k or top-p) are verified on the tokens that remain.
    """
    batch, drafts, length = tokens.shape
    active = torch.ones(batch, drafts, dtype=torch.bool, device=tokens.device)
    stands = torch.zeros(batch, dtype=torch.int64, device=tokens.device)
    token = torch.full_like(stands, -1)
    for depth in range(length):
        if tail is not None:
            alone = ((active.sum(-1) == 1) & (token < 0)).nonzero()[:, 0]
            if len(alone):
                last = active[alone].double().argmax(-1)
                rest = (
                    target_probs[alone, last, depth:],
                    draft_probs[alone, last, depth:],
                    tokens[alone, last, depth:],
                )
                more, token[alone] = tail.sample(*rest, generator, check=False)
                stands[alone] += more
        drafted = active if tree is None else active & tree.own[:, depth].to(active.device)
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
                agrees &= tree.exists[:, depth].to(active.device)
            goes_on = agrees.any(-1)
            active[rows[goes_on]] = agrees[goes_on]
            stands[rows[goes_on]] += 1
            token[rows[~goes_on]] = emitted[~goes_on]
    path = active.double().argmax(-1)
    whole = (token < 0).nonzero()[:, 0]
    if len(whole):
        token[whole] = draw(target_probs[whole, path[whole], stands[whole]], 1, generator)[:, 0]
    return Standing(path, stands, token)


def sequences_distribution(
    verifier: TokenVerifier,
    target_probs: Float64[Tensor, "drafts positions vocab"],
    draft_probs: Float64[Tensor, "drafts path vocab"],
    tokens: Int64[Tensor, "drafts path"],
    tree: Tree | None = None,
) -> dict[tuple[int, ...], float]:
    """The exact distribution of the tokens that ``verify_sequences`` emits (the accepted ones and the one after), given the drafted sequences."""
    distribution: dict[tuple[int, ...], float] = {}

    def descend(prefix: tuple[int, ...], active: Bool[Tensor, " drafts"], reached: float) -> None:
        depth, first = len(prefix), int(active.double().argmax())
        voters = torch.zeros_like(active)
        if depth < tokens.shape[1]:
            drafted = active if tree is None else active & tree.own[:, depth]
            voters = _voters(verifier, drafted[None], tokens[None, :, depth])[0]
        emitted = target_probs[first, depth]
        if bool(voters.any()):
            emitted = verifier.distribution(emitted, draft_probs[voters, depth], tokens[voters, depth])
        exists = active if tree is None else active & tree.exists[:, min(depth, tree.depth - 1)]
        for token, chance in enumerate(emitted.tolist()):
            agrees = exists & (tokens[:, depth] == token) if bool(voters.any()) else torch.zeros_like(active)
            if chance > 0 and bool(agrees.any()):
                descend((*prefix, token), agrees, reached * chance)
            elif chance > 0:
                distribution[*prefix, token] = reached * chance

    descend((), torch.ones(len(tokens), dtype=torch.bool), 1.0)
    return distribution
