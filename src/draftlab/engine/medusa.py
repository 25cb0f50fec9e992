"""The loop's four verbs with Medusa heads: they guess a tree from the target's last state, and the target reads it in one pass."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from draftlab.core.sampling import draft_tokens, most_probable, to_probs
from draftlab.core.tree import Tree
from draftlab.engine.batched import TreeReader
from draftlab.engine.loop import Verification
from draftlab.engine.policy import Policy, Proposal, verify_block
from draftlab.errors import UserError
from draftlab.models import TokenIds
from draftlab.models.llama_decoder import LlamaDecoder
from draftlab.models.medusa import Medusa


class MedusaPair:
    """A target with heads as its draft; the tree's depth and leaves are ``draft_len`` and ``num_drafts``."""

    def __init__(
        self, heads: Medusa, decoder: LlamaDecoder, prompts: TokenIds, max_new_tokens: int, policy: Policy
    ) -> None:
        if min(map(len, prompts)) < 2:
            raise UserError("a prompt of one token", remedy="Medusa heads need 2 or more")
        self.heads, self.policy = heads, policy
        self.tree = Tree(heads.tree.paths.to(heads.device))
        self.reader = TreeReader(decoder, prompts, max_new_tokens + self.tree.depth + self.tree.nodes)
        cache = self.reader.cache
        cache.crop([len(prompt) - 2 for prompt in prompts])
        self.state = cache.states(torch.tensor([prompt[-2:-1] for prompt in prompts], device=heads.device))

    def propose(self, left: Sequence[int]) -> Proposal:
        """Guess with each head at the last state: its most probable tokens, or tokens drawn as the verifier requires."""
        policy = self.policy
        logits, siblings = self.heads.guess(self.state), self.tree.child_number
        distributions = None
        if policy.is_greedy:
            most_probable(logits)  # refuses NaN, of which ``topk`` makes tokens
        else:
            distributions = to_probs(logits, policy.draft_samplings[0])
        columns = []
        for depth, width in enumerate(self.heads.tree.widths):  # on the CPU
            if distributions is None:
                guesses = logits[:, depth].topk(width).indices
            else:
                assert policy.generator is not None
                probs = distributions[:, depth, None].expand(-1, width, -1)
                guesses = draft_tokens(probs, policy.drafting, policy.generator)
            columns.append(guesses[:, siblings[:, depth]])
        tokens = torch.stack(columns, -1)
        if distributions is not None:
            distributions = distributions[:, None].expand(-1, tokens.shape[1], -1, -1)
        return Proposal(tokens, distributions)

    def read(self, proposal: Proposal) -> Float[Tensor, "batch leaves depth+1 vocab"]:
        return self.reader.read(proposal.tokens, self.tree)

    def verify(self, proposal: Proposal, reading: Float[Tensor, "batch leaves depth+1 vocab"]) -> Verification:
        return verify_block(proposal, reading, self.policy)

    def settle(self, verification: Verification, kept: Sequence[int]) -> None:
        """Keep the accepted path and its last state, from which the heads guess next."""
        self.state = self.reader.settle(verification)
        if 0 < len(kept) < len(self.state):
            self.reader.take(kept)
            self.state = self.state[list(kept)]
