"""How drafts are sampled and verified: the checked choices, and the verification of a block."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Float64, Int64
from torch import Generator, Tensor

from draftlab.core.confident_tree import ConfidentTree
from draftlab.core.sampling import DISTINCT, Drafting, Sampling, most_probable, to_probs
from draftlab.core.tree import Tree
from draftlab.core.verify.path import PathVerifier, single_path
from draftlab.core.verify.sequence import verify_sequences
from draftlab.core.verify.single import single
from draftlab.core.verify.token import TokenVerifier
from draftlab.core.verify.tree import TreeVerifier
from draftlab.engine.loop import Verification, agreed
from draftlab.errors import UserError
from draftlab.models import LanguageModel
from draftlab.models.medusa import Medusa
from draftlab.models.on_target import OnTarget
from draftlab.models.places import ByPlace

LARGE_VOCAB = 8192
"""Larger vocabularies are restricted to the tokens that truncated distributions keep (K-SEQ takes half the time at 32,000 tokens); for
smaller ones, finding these tokens takes as long as it saves."""


@dataclass(frozen=True)
class Proposal:
    """Drafted tokens of each sequence of each request, and the distributions they were drawn from (None: all greedy).

    ``tree``: the tree of which the sequences are the leaves' paths, one for all requests or one for each (None: they share nothing).
    """

    tokens: Int64[Tensor, "batch drafts length"]
    distributions: Float64[Tensor, "batch drafts length vocab"] | None
    tree: Tree | None = None


@dataclass(frozen=True)
class Policy:
    """How the loop drafts and verifies. ``transform`` turns the target's logits into a distribution; a clock may wrap it."""

    sampling: Sampling
    draft_samplings: list[Sampling]
    token_verifier: TokenVerifier | TreeVerifier | None
    path_verifier: PathVerifier
    tail: PathVerifier | None
    generator: Generator | None
    tree: Tree | ConfidentTree | None
    transform: Callable[[Tensor, Sampling], Tensor] = to_probs

    @property
    def drafting(self) -> Drafting:
        """How the tokens that follow the same text are drafted."""
        return self.token_verifier.drafting if self.token_verifier else "independent"

    @property
    def is_greedy(self) -> bool:
        """Whether target and drafts always take their most probable token."""
        return all(sampling.temperature == 0 for sampling in (self.sampling, *self.draft_samplings))

    @property
    def is_truncated(self) -> bool:
        """Whether target and drafts all sample from few tokens of the vocabulary."""
        return all(s.temperature == 0 or s.cuts for s in (self.sampling, *self.draft_samplings))

    def of_draft(self, number: int, share: int) -> list[Sampling]:
        """The sampling of each sequence of one draft model, if each model writes ``share`` of them."""
        return self.draft_samplings[number * share : (number + 1) * share]


def make_policy(
    verifier: TokenVerifier | PathVerifier | TreeVerifier,
    num_drafts: int,
    draft_len: int,
    sampling: Sampling,
    draft_sampling: Sampling | Sequence[Sampling],
    generator: Generator | None,
    tail: PathVerifier | None,
    drafts: Sequence[LanguageModel],
    tree: Tree | ConfidentTree | None = None,
) -> Policy:
    """The policy that these make; a ``UserError`` says why verifier, drafts and tree do not fit together."""
    if len(drafts) > 1 and any(isinstance(draft, OnTarget | ByPlace) for draft in drafts):
        what = "a draft that reads its target's states or proposes a block in one pass is not one of several"
        raise UserError(what, remedy="give it alone")
    if isinstance(drafts[0], ByPlace) and (num_drafts > 1 or tree is not None):
        what = "an EAGLE draft, or one that proposes a block in one pass, writes one sequence"
        raise UserError(what, remedy="set num_drafts to 1, and give no tree")
    samplings = [draft_sampling] * num_drafts if isinstance(draft_sampling, Sampling) else list(draft_sampling)
    _check_counts(verifier, num_drafts, draft_len, samplings, len(drafts))
    token_verifier = verifier if isinstance(verifier, TokenVerifier | TreeVerifier) else None
    path_verifier = verifier if isinstance(verifier, PathVerifier) else single_path
    if num_drafts == 1 and verifier is single:
        token_verifier = None  # the same distribution, all positions at once
    policy = Policy(sampling, samplings, token_verifier, tail or path_verifier, tail, generator, tree)
    heads = drafts[0] if isinstance(drafts[0], Medusa) else None
    frozen = sum(draft.temperature == 0 for draft in samplings)
    is_ranked = policy.is_greedy and policy.drafting == "ranked"  # by logits, which have an order at every temperature
    if len(drafts) == 1 and not heads and frozen > 1 and not is_ranked:
        raise UserError(
            f"{frozen} drafts from one model at temperature 0 are the same sequence {frozen} times",
            remedy="give num_drafts 1, a draft temperature above 0, one model per draft, or at target temperature 0 the verifier ranked",
        )
    for shape in (tree, heads.tree if heads else None):
        if shape is not None:
            _check_shape(shape, num_drafts, draft_len)
    _check_drafting(verifier, policy)
    if tree is not None:
        _check_tree(policy, len(drafts))
    if heads:
        _check_heads(heads, policy)
    if generator is None and not policy.is_greedy:
        raise UserError("sampling without a generator", remedy="pass a seeded torch.Generator")
    return policy


def _check_counts(
    verifier: TokenVerifier | PathVerifier | TreeVerifier,
    num_drafts: int,
    draft_len: int,
    samplings: Sequence[Sampling],
    models: int,
) -> None:
    """Check how many drafts, models and samplings there are, and whether the verifier can take them."""
    for name, value in (("draft_len", draft_len), ("num_drafts", num_drafts)):
        if value < 1:
            raise UserError(f"{name} is {value}", remedy="give 1 or more")
    if isinstance(verifier, PathVerifier) and num_drafts > 1:
        raise UserError(f"{verifier.name} verifies one sequence, not {num_drafts}", remedy="give one draft")
    remedy = "give one in all, or one per draft"
    if models not in (1, num_drafts):
        raise UserError(f"{models} draft models for {num_drafts} drafts", remedy=remedy)
    if len(samplings) != num_drafts:
        raise UserError(f"{len(samplings)} draft samplings for {num_drafts} drafts", remedy=remedy)
    is_independent = isinstance(verifier, PathVerifier) or verifier.drafting == "independent"
    if not is_independent and (models > 1 or len(set(samplings)) > 1):
        raise UserError(
            f"{verifier.name} needs drafts of one distribution", remedy="give one draft sampling, or use specinfer"
        )


def _check_shape(shape: Tree | ConfidentTree, num_drafts: int, draft_len: int) -> None:
    """Check that the tree has as many leaves and levels as are drafted."""
    leaves = shape.nodes if isinstance(shape, ConfidentTree) else shape.leaves  # the most that it may have
    if (num_drafts, draft_len) != (leaves, shape.depth):
        what = f"num_drafts is {num_drafts} and draft_len {draft_len}, but the tree has {leaves} leaves of depth {shape.depth}"
        raise UserError(what, remedy="use the tree's numbers")


def _check_drafting(verifier: TokenVerifier | PathVerifier | TreeVerifier, policy: Policy) -> None:
    """Check that the drafts, drawn or the most probable tokens, are what the tree and the tail need."""
    if isinstance(policy.tree, ConfidentTree) and policy.drafting != "ranked":
        what = f"{verifier.name} needs random drafts, but a tree by confidence has the most probable ones"
        raise UserError(what, remedy="verify it with ranked")
    if policy.tail is None:
        return
    if policy.drafting == "ranked":
        what = f"{policy.tail.name} verifies drawn tokens, but {verifier.name} drafts the most probable ones"
        raise UserError(what, remedy="give no tail")
    if isinstance(verifier, TreeVerifier) and policy.tree is None:
        raise UserError(f"{verifier.name} verifies whole sequences", remedy="give no tail")


def _check_tree(policy: Policy, models: int) -> None:
    """Check that what is drafted and verified is the nodes of one tree."""
    if models > 1 or len(set(policy.draft_samplings)) > 1:
        raise UserError("a tree has only one kind of draft", remedy="give one model and one draft sampling")
    if isinstance(policy.token_verifier, TreeVerifier) or policy.tail is not None:
        name = policy.tail.name if policy.tail else "a verifier of whole sequences"
        remedy = "use a verifier of one position, without a tail"
        raise UserError(f"{name} does not verify the nodes of a tree", remedy=remedy)


def _check_heads(heads: Medusa, policy: Policy) -> None:
    """Check that Medusa heads have their own, even tree, and a verifier of siblings that are distinct."""
    if policy.tree is not None:
        raise UserError("Medusa heads guess a tree of their own", remedy="give no tree")
    if heads.tree.nodes != Tree.of_widths(heads.tree.widths).nodes:
        remedy = "give a tree in which all nodes of a depth have as many children (Tree.of_widths)"
        raise UserError("the heads' tree is uneven", remedy=remedy)
    if heads.tree.leaves > 1 and not policy.is_greedy and policy.drafting not in DISTINCT:
        raise UserError("siblings in a tree are distinct, but this verifier allows repeats", remedy="use rrs or greedy")


def verify_block(
    proposal: Proposal, logits: Float[Tensor, "batch drafts positions vocab"], policy: Policy
) -> Verification:
    """Decide what is accepted of the ``proposal``, given the target's ``logits`` after each token of each sequence."""
    if proposal.distributions is None:
        return _verify_greedy(proposal.tokens, logits, proposal.tree)
    assert policy.generator is not None
    tokens, draft_probs = proposal.tokens, proposal.distributions
    target_probs = policy.transform(logits, policy.sampling)
    verifier = policy.token_verifier
    if verifier is None:
        block = (target_probs[:, 0], draft_probs[:, 0], tokens[:, 0])
        accepted, token = policy.path_verifier.sample(*block, policy.generator, check=False)
        path = torch.zeros_like(token)
    else:
        if isinstance(verifier, TreeVerifier):
            walked = verifier.sample(target_probs, draft_probs, tokens, policy.generator, check=False)
        else:
            walked = verify_sequences(
                verifier,
                target_probs,
                draft_probs,
                tokens,
                policy.generator,
                tail=policy.tail,
                truncated=policy.is_truncated and target_probs.shape[-1] > LARGE_VOCAB,
                tree=proposal.tree,
                check=False,
            )
        path, accepted, token = walked.path, walked.length, walked.token
    rows = torch.arange(len(path), device=path.device)
    chosen = tokens[rows, path]
    shared = target_probs[rows, path, :-1].minimum(draft_probs[rows, path])
    overlap_repo = shared.gather(-1, chosen[..., None])[..., 0]
    parts = (chosen, path, accepted, token, shared.sum(-1), overlap_repo)
    verification = Verification(*(part.tolist() for part in parts))
    return _without_padding(verification, proposal.tree)


def _without_padding(verification: Verification, tree: Tree | None) -> Verification:
    """Leave out what was drafted after the end of a tree's shorter sequences."""
    if tree is None:
        return verification
    sizes = tree.exists.sum(-1).expand(len(verification.path), -1).tolist()
    parts = zip(verification.drafted, sizes, verification.path, strict=True)
    return verification._replace(drafted=[tokens[: size[leaf]] for tokens, size, leaf in parts])


def _verify_greedy(
    tokens: Int64[Tensor, "batch drafts length"],
    logits: Float[Tensor, "batch drafts positions vocab"],
    tree: Tree | None,
) -> Verification:
    """Accept each token that is the target's most probable one; of several sequences, the one that agrees longest."""
    path, chosen = [0] * len(tokens), most_probable(logits)
    if tree is not None:
        tokens = tokens.where(tree.exists[..., : tokens.shape[-1]].to(tokens.device), -1)
    if tokens.shape[1] > 1:
        agreement = (tokens == chosen[:, :, :-1]).long().cumprod(-1).sum(-1)
        path = agreement.argmax(-1).tolist()
        rows = torch.arange(len(tokens), device=tokens.device)
        tokens, chosen = tokens[rows, path][:, None], chosen[rows, path][:, None]
    length = tokens.shape[-1]
    both = torch.cat([tokens[:, 0], chosen[:, 0]], -1).tolist()  # one transfer from the device
    drafted, best = [row[:length] for row in both], [row[length:] for row in both]
    pairs = list(zip(drafted, best, strict=True))
    agrees = [[float(a == b) for a, b in zip(*pair, strict=False)] for pair in pairs]
    accepted = [agreed(*pair) for pair in pairs]
    token = [row[count] for row, count in zip(best, accepted, strict=True)]
    return _without_padding(Verification(drafted, path, accepted, token, agrees, agrees), tree)
