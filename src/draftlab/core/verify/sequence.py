"""K drafted sequences of L tokens, verified token by token: the sequences that agree with the emitted token continue together."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float64, Int64
from torch import Generator, Tensor

from draftlab.core.sampling import Drafting, Table, Tables, Tokens, check_drafted, check_probs, draw, restrict
from draftlab.core.tree import Tree
from draftlab.core.verify.path import PathVerifier
from draftlab.core.verify.token import TokenVerifier
from draftlab.errors import UserError

ALIKE = 0.05
"""By how much two distributions after the same tokens may differ: a model in half precision does not repeat itself exactly."""

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


def check_sequences(
    target_probs: Float64[Tensor, "*batch drafts positions vocab"],
    draft_probs: Float64[Tensor, "*batch drafts path vocab"],
    tokens: Int64[Tensor, "*batch drafts path"],
    drafting: Drafting,
) -> tuple[Float64[Tensor, "*batch drafts positions vocab"], Float64[Tensor, "*batch drafts path vocab"]]:
    """Both tables in float64. Bad probabilities, impossible tokens, and different distributions after the same tokens are a ``UserError``."""
    path = tokens.shape[-1] if tokens.dim() > 1 else 0
    shapes = [tuple(table.shape[:-1]) for table in (target_probs, draft_probs)]
    if not path or shapes != [(*tokens.shape[:-1], path + 1), tuple(tokens.shape)]:
        what = f"shapes do not fit: {[tuple(table.shape) for table in (target_probs, draft_probs, tokens)]}"
        remedy = "pass [drafts, path + 1, vocab], [drafts, path, vocab] and [drafts, path] of 1 or more drafted tokens"
        raise UserError(what, remedy=remedy)
    target = check_probs(target_probs, "target_probs")
    draft = check_drafted(target[..., :-1, :], draft_probs[..., None, :], tokens[..., None])[1][..., 0, :]
    # The sequences with which each one shares its tokens before each position, and the first of them.
    alike = (tokens[..., :, None, :] == tokens[..., None, :, :]).cumprod(-1)
    first = torch.cat([torch.ones_like(alike[..., :1]), alike], -1).argmax(-2)[..., None]
    tables = {"target_probs": target} | ({} if drafting == "independent" else {"draft_probs": draft})
    for name, table in tables.items():
        shared = first[..., : table.shape[-2], :].expand(table.shape)
        differs = ((table.gather(-3, shared) - table).abs() > ALIKE).any(-1)
        if bool(differs.any()):
            what = f"{name}{differs.nonzero()[0].tolist()} is not what another sequence has after the same tokens"
            raise UserError(what, remedy="the models' distributions depend on the tokens before them alone")
    return target, draft


def _voters(
    verifier: TokenVerifier, tree: Tree | None, depth: int, active: Bool[Tensor, "batch drafts"], tokens: Tokens
) -> Bool[Tensor, "batch drafts"]:
    """The active sequences that bring a draft: those that drew their token, or only the first with each token if drafts are distinct."""
    drawn = active if tree is None else active & tree.is_drawn[..., depth].to(active.device)
    if not verifier.is_distinct:
        return drawn
    earlier = torch.ones(tokens.shape[1], tokens.shape[1], dtype=torch.bool, device=tokens.device).tril(-1)
    repeated = (tokens[:, :, None] == tokens[:, None, :]) & drawn[:, None, :] & earlier
    return drawn & ~repeated.any(-1)


def _agreeing(
    verifier: TokenVerifier,
    tree: Tree | None,
    depth: int,
    active: Bool[Tensor, "batch drafts"],
    voters: Bool[Tensor, "batch drafts"],
    tokens: Tokens,
    emitted: Int64[Tensor, " batch"],
) -> Bool[Tensor, "batch drafts"]:
    """The active sequences that have the emitted token. If drafts are distinct, they share the node of the voter that has it: below a sibling
    that repeats its token there is no other draft."""
    agrees = active & (tokens == emitted[:, None])
    if tree is not None:
        agrees &= tree.exists[..., depth].to(active.device)
        if verifier.is_distinct:
            drawn_by = tree.drawn_by[..., depth].to(active.device).expand_as(active)
            agrees &= drawn_by == drawn_by.gather(1, (voters & agrees).int().argmax(-1, keepdim=True))
    return agrees


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
    check: bool = True,
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
    - `check`: if False, or with a tree, whose shorter paths are filled up, the tables and tokens are not checked.

    **Returns:** the accepted tokens of each row, and the token after them.
    """
    if check and tree is None:
        target_probs, draft_probs = check_sequences(target_probs, draft_probs, tokens, verifier.drafting)
    batch, drafts, path_len = tokens.shape
    active = torch.ones(batch, drafts, dtype=torch.bool, device=tokens.device)
    accepted = torch.zeros(batch, dtype=torch.int64, device=tokens.device)
    token = torch.full_like(accepted, -1)  # until verification of the row has stopped
    for depth in range(path_len):
        if tail is not None:
            rows = ((active.sum(-1) == 1) & (token < 0)).nonzero()[:, 0]
            if len(rows):
                alone = active[rows].int().argmax(-1)
                target, draft, rest = (table[rows, alone, depth:] for table in (target_probs, draft_probs, tokens))
                more, token[rows] = tail.sample(target, draft, rest, generator, check=False)
                accepted[rows] += more
        drafted = tokens[..., depth]
        voters = _voters(verifier, tree, depth, active, drafted) & (token < 0)[:, None]
        counts, emitted = voters.sum(-1), torch.full_like(token, -1)
        for count in range(1, drafts + 1):
            rows = (counts == count).nonzero()[:, 0]
            if len(rows):
                paths = voters[rows].nonzero()[:, 1].view(-1, count)
                target, draft = target_probs[rows, paths[:, 0], depth], draft_probs[rows[:, None], paths, depth]
                emitted[rows] = _emit(verifier, target, draft, drafted[rows[:, None], paths], generator, truncated)
        agrees = _agreeing(verifier, tree, depth, active, voters, drafted, emitted)
        goes_on = agrees.any(-1)
        active = agrees.where(goes_on[:, None], active)
        accepted += goes_on
        token = emitted.where((counts > 0) & ~goes_on, token)
    # Of equal siblings, one may end a path early. The path that reaches deepest shows all positions that were judged.
    reach = active if tree is None else active * (1 + tree.exists.sum(-1)).to(active.device)
    path = reach.int().argmax(-1)
    whole = (token < 0).nonzero()[:, 0]
    if len(whole):
        token[whole] = draw(target_probs[whole, path[whole], accepted[whole]], 1, generator)[:, 0]
    return Outcome(path, accepted, token)


def _emit(
    verifier: TokenVerifier, target: Table, draft: Tables, tokens: Tokens, generator: Generator, truncated: bool
) -> Int64[Tensor, " rows"]:
    """The emitted token of each row, which is drawn on few tokens if ``truncated``."""
    if not truncated:
        return verifier.sample(target, draft, tokens, generator, check=False)[0]
    target, draft, tokens, ids = restrict(target, draft, tokens)
    column, _ = verifier.sample(target, draft, tokens, generator, check=False)
    return ids.gather(1, column[:, None])[:, 0]


def sequences_distribution(
    verifier: TokenVerifier,
    target_probs: TargetAlong,
    draft_probs: DraftAlong,
    tokens: Sequences,
    tree: Tree | None = None,
    *,
    check: bool = True,
) -> dict[tuple[int, ...], float]:
    """The exact distribution of the tokens that ``verify_sequences`` emits, given the drafted sequences: emitted tokens -> probability.

    **Arguments:**
    - `verifier`, `tree`, `check`: as for `verify_sequences`.
    - `target_probs`, `draft_probs`, `tokens`: the same without a batch axis.

    **Returns:** tuple of emitted token ids -> its probability.
    """
    if check and tree is None:
        target_probs, draft_probs = check_sequences(target_probs, draft_probs, tokens, verifier.drafting)
    distribution: dict[tuple[int, ...], float] = {}
    drafts, path_len = tokens.shape

    def descend(prefix: tuple[int, ...], active: Bool[Tensor, "1 drafts"], reached: float) -> None:
        depth, path = len(prefix), int(active.int().argmax())
        emitted, after = target_probs[path, depth], torch.zeros(target_probs.shape[-1], drafts, dtype=torch.bool)
        if depth < path_len:
            drafted = tokens[None, :, depth]
            voters = _voters(verifier, tree, depth, active, drafted)
            if bool(voters.any()):
                emitted = verifier.distribution(emitted, draft_probs[voters[0], depth], drafted[voters])
                # One row for each token that may be emitted.
                every = torch.arange(len(emitted))
                agreeing, judged, along = (table.expand(len(every), -1) for table in (active, voters, drafted))
                after = _agreeing(verifier, tree, depth, agreeing, judged, along, every)
        for token, chance in enumerate(emitted.tolist()):
            if chance > 0 and bool(after[token].any()):
                descend((*prefix, token), after[token, None], reached * chance)
            elif chance > 0:
                distribution[*prefix, token] = reached * chance

    descend((), torch.ones(1, drafts, dtype=torch.bool), 1.0)
    return distribution
