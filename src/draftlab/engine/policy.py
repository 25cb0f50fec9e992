"""How drafts are sampled and verified: a verifier that fits the drafts, and its verdict on a block."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Float64, Int64
from torch import Generator, Tensor

from draftlab.core.sampling import Drafting, Sampling, to_probs
from draftlab.core.tree import Tree
from draftlab.core.verify import PATH_VERIFIERS, VERIFIERS
from draftlab.core.verify.path import PathVerifier
from draftlab.core.verify.sequence import verify_sequences
from draftlab.core.verify.token import TokenVerifier
from draftlab.core.verify.tree import TreeVerifier
from draftlab.engine.loop import Verdict
from draftlab.errors import UserError
from draftlab.models import LanguageModel
from draftlab.models.medusa import Medusa

LARGE_VOCAB = 8192
"""Up to here, finding the tokens that truncated distributions leave takes as long as it saves (K-SEQ takes half the time at 32,000)."""


@dataclass(frozen=True)
class Proposal:
    """Drafted tokens of each sequence of each request, and the distributions they were drawn from (None: all greedy)."""

    tokens: Int64[Tensor, "batch drafts length"]
    distributions: Float64[Tensor, "batch drafts length vocab"] | None


@dataclass(frozen=True)
class Policy:
    """How the loop drafts and verifies; ``is_greedy`` if both sides always take the most probable token.

    ``transform`` turns the target's logits into a distribution; a clock may wrap it.
    """

    sampling: Sampling
    draft_samplings: list[Sampling]
    token_verifier: TokenVerifier | TreeVerifier | None
    path_verifier: PathVerifier
    tail: PathVerifier | None
    generator: Generator | None
    tree: Tree | None
    transform: Callable[[Tensor, Sampling], Tensor] = to_probs

    @property
    def drafting(self) -> Drafting:
        """How the tokens that follow the same text are drafted."""
        return self.token_verifier.drafting if self.token_verifier else "independent"

    @property
    def is_greedy(self) -> bool:
        return all(sampling.temperature == 0 for sampling in (self.sampling, *self.draft_samplings))

    @property
    def is_truncated(self) -> bool:
        """Whether both sides leave few tokens of the vocabulary."""
        return all(s.temperature == 0 or s.top_k or s.top_p < 1 for s in (self.sampling, *self.draft_samplings))

    def of_draft(self, number: int, share: int) -> list[Sampling]:
        """How the sequences of one draft model are sampled, when each writes ``share`` of them."""
        return self.draft_samplings[number * share : (number + 1) * share]


def make_policy(
    verifier: str | TokenVerifier | PathVerifier | TreeVerifier,
    num_drafts: int,
    draft_len: int,
    sampling: Sampling,
    draft_sampling: Sampling | Sequence[Sampling],
    generator: Generator | None,
    tail: PathVerifier | None,
    drafts: Sequence[LanguageModel],
    tree: Tree | None = None,
) -> Policy:
    if draft_len < 1 or num_drafts < 1:
        name, value = ("draft_len", draft_len) if draft_len < 1 else ("num_drafts", num_drafts)
        raise UserError(f"{name} is {value}", remedy="give 1 or more")
    if isinstance(verifier, str):
        if verifier not in VERIFIERS:
            raise UserError(f"unknown verifier {verifier!r}", remedy=f"use one of {', '.join(VERIFIERS)}")
        verifier = VERIFIERS[verifier]
    token_verifier = verifier if isinstance(verifier, TokenVerifier | TreeVerifier) else None
    if token_verifier is None and num_drafts > 1:
        raise UserError(f"{verifier.name} verifies one sequence, not {num_drafts}", remedy="set num_drafts to 1")
    models = len(drafts)
    if models not in (1, num_drafts):
        raise UserError(f"{models} draft models for {num_drafts} drafts", remedy="give one in all, or one per draft")
    samplings = [draft_sampling] * num_drafts if isinstance(draft_sampling, Sampling) else list(draft_sampling)
    if len(samplings) != num_drafts:
        raise UserError(
            f"{len(samplings)} draft samplings for {num_drafts} drafts", remedy="give one in all, or one per draft"
        )
    if token_verifier and token_verifier.drafting != "independent" and (models > 1 or len(set(samplings)) > 1):
        raise UserError(
            f"{verifier.name} needs drafts of one distribution", remedy="give one draft sampling, or use specinfer"
        )
    if models == 1 and num_drafts > 1 and not isinstance(drafts[0], Medusa):
        frozen = sum(own.temperature == 0 for own in samplings)
        if frozen > 1:
            raise UserError(
                f"{frozen} drafts from one model at temperature 0 are the same sequence {frozen} times",
                remedy="give num_drafts 1, a draft temperature above 0, or one model per draft",
            )
    path_verifier = verifier if isinstance(verifier, PathVerifier) else PATH_VERIFIERS["single"]
    if num_drafts == 1 and verifier is VERIFIERS["single"]:
        token_verifier = None  # the same distribution, all positions at once
    policy = Policy(sampling, samplings, token_verifier, tail or path_verifier, tail, generator, tree)
    if tree is not None:
        check_shape(tree, num_drafts, draft_len, policy, models)
    if isinstance(drafts[0], Medusa):
        check_tree(drafts[0], num_drafts, draft_len, policy)
    if generator is None and not policy.is_greedy:
        raise UserError("sampling without a generator", remedy="pass a seeded torch.Generator")
    return policy


def check_shape(tree: Tree, num_drafts: int, draft_len: int, policy: Policy, models: int) -> None:
    if (num_drafts, draft_len) != (tree.leaves, tree.depth):
        what = f"num_drafts is {num_drafts} and draft_len {draft_len}, but the tree has {tree.leaves} leaves of depth {tree.depth}"
        raise UserError(what, remedy="use the tree's numbers")
    if models > 1 or len(set(policy.draft_samplings)) > 1:
        raise UserError("a tree has only one kind of draft", remedy="give one model and one draft sampling")
    if isinstance(policy.token_verifier, TreeVerifier) or policy.tail is not None:
        name = policy.tail.name if policy.tail else "a verifier of whole sequences"
        raise UserError(
            f"{name} does not verify the nodes of a tree", remedy="use a verifier of one position, without a tail"
        )


def check_tree(heads: Medusa, num_drafts: int, draft_len: int, policy: Policy) -> None:
    tree, verifier = heads.tree, policy.token_verifier
    if (num_drafts, draft_len) != (tree.leaves, tree.depth):
        what = f"num_drafts is {num_drafts} and draft_len {draft_len}, but the tree has {tree.leaves} leaves of depth {tree.depth}"
        raise UserError(what, remedy="use the tree's numbers")
    is_distinct = verifier is not None and verifier.drafting in ("without_replacement", "greedy")
    if tree.leaves > 1 and not policy.is_greedy and not is_distinct:
        raise UserError("siblings in a tree are distinct, but this verifier allows repeats", remedy="use rrs or greedy")


def judge(proposal: Proposal, logits: Float[Tensor, "batch drafts positions vocab"], policy: Policy) -> Verdict:
    """What is accepted of the ``proposal``, given the target's ``logits`` after each token of each sequence."""
    tokens, draft_probs = proposal.tokens, proposal.distributions
    if draft_probs is None:  # all greedy: a token is accepted if the target's choice is the same
        path = [0] * len(tokens)
        if tokens.shape[1] > 1:  # several models or a tree: accept the sequence with the longest agreement
            standing = (tokens == logits[:, :, :-1].argmax(-1)).long().cumprod(-1).sum(-1)
            path = standing.argmax(-1).tolist()
            rows = torch.arange(len(tokens), device=tokens.device)
            tokens, logits = tokens[rows, path][:, None], logits[rows, path][:, None]
        both = torch.cat([tokens[:, 0], logits[:, 0].argmax(-1)], -1).tolist()
        length = tokens.shape[-1]
        drafted, best = [row[:length] for row in both], [row[length:] for row in both]
        agrees = [[float(a == b) for a, b in zip(*pair, strict=False)] for pair in zip(drafted, best, strict=True)]
        stands = [flags.index(0.0) if 0.0 in flags else length for flags in agrees]
        token = [row[count] for row, count in zip(best, stands, strict=True)]
        return Verdict(drafted, path, stands, token, agrees, agrees)
    assert policy.generator is not None
    target_probs = policy.transform(logits, policy.sampling)
    verifier = policy.token_verifier
    if verifier is None:
        judged = (target_probs[:, 0], draft_probs[:, 0], tokens[:, 0])
        stands_, token_ = policy.path_verifier.sample(*judged, policy.generator, check=False)
        path_ = torch.zeros_like(token_)
    else:
        if isinstance(verifier, TreeVerifier):
            walked = verifier.sample(target_probs, draft_probs, tokens, policy.generator)
        else:
            walked = verify_sequences(
                verifier,
                target_probs,
                draft_probs,
                tokens,
                policy.generator,
                tail=policy.tail,
                truncated=policy.is_truncated and target_probs.shape[-1] > LARGE_VOCAB,
                tree=policy.tree,
            )
        path_, stands_, token_ = walked.path, walked.length, walked.token
    rows = torch.arange(len(path_), device=path_.device)
    chosen = tokens[rows, path_]
    shared = target_probs[rows, path_, :-1].minimum(draft_probs[rows, path_])
    repo = shared.gather(-1, chosen[..., None])[..., 0]
    parts = (chosen, path_, stands_, token_, shared.sum(-1), repo)
    return Verdict(*(part.tolist() for part in parts))
