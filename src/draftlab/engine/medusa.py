"""The loop's four verbs with Medusa heads: they guess a tree from the target's last state, and the target reads it in one pass."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from draftlab.core.sampling import draft_tokens, most_probable, to_probs
from draftlab.engine.loop import Verification
from draftlab.engine.policy import Policy, Proposal, verify_block
from draftlab.errors import UserError
from draftlab.models import Decoder, TokenIds
from draftlab.models.llama_decoder import LlamaCache
from draftlab.models.medusa import Medusa


class MedusaPair:
    """A target with heads as its draft; the tree's depth and leaves are ``draft_len`` and ``num_drafts``."""

    def __init__(self, heads: Medusa, decoder: Decoder, prompts: TokenIds, max_new_tokens: int, policy: Policy) -> None:
        if min(map(len, prompts)) < 2:
            raise UserError("a prompt of one token", remedy="Medusa heads need 2 or more")
        self.heads, self.tree, self.policy = heads, heads.tree, policy
        room = max_new_tokens + self.tree.depth
        cache, self.unread = decoder.prefill(prompts, room + heads.tree.nodes)
        assert isinstance(cache, LlamaCache)
        self.cache = cache
        self.cache.crop([len(prompt) - 2 for prompt in prompts])
        self.state = self.cache.states(torch.tensor([prompt[-2:-1] for prompt in prompts], device=self.unread.device))

    def propose(self, left: Sequence[int]) -> Proposal:
        """Guess with each head at the last state: its most probable tokens, or tokens drawn as the verifier requires."""
        policy = self.policy
        logits, siblings = self.heads.guess(self.state), self.tree.child_number.to(self.state.device)
        distributions = None
        if policy.is_greedy:
            most_probable(logits)  # refuses NaN, of which ``topk`` makes tokens
        else:
            distributions = to_probs(logits, policy.draft_samplings[0])
        columns = []
        for depth, width in enumerate(self.tree.widths):
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
        """Read the unread token and the tree below it; return the logits along each leaf's sequence."""
        tokens, self.begin = proposal.tokens, self.cache.lengths
        nodes = torch.cat([self.unread[:, None], tokens.flatten(1)[:, self.tree.token_index.to(tokens.device)]], -1)
        states = self.cache.states(nodes, self.tree)
        self.states = states.view(*nodes.shape, -1)
        return self.cache.decoder.project(states).view(*nodes.shape, -1)[:, self.tree.paths.to(nodes.device)]

    def verify(self, proposal: Proposal, reading: Float[Tensor, "batch leaves depth+1 vocab"]) -> Verification:
        return verify_block(proposal, reading, self.policy)

    def settle(self, verification: Verification, kept: Sequence[int]) -> None:
        """Keep the accepted path and its last state, from which the heads guess next."""
        device = self.states.device
        nodes = self.tree.paths.to(device)[torch.tensor(verification.path, device=device)]
        self.cache.keep(self.begin, nodes, verification.accepted)
        rows = torch.arange(len(nodes), device=device)
        self.state = self.states[rows, nodes[rows, torch.tensor(verification.accepted, device=device)]]
        self.unread = torch.tensor(verification.token, device=device)
        if 0 < len(kept) < len(nodes):
            self.cache.take(kept)
            self.state, self.unread = self.state[list(kept)], self.unread[list(kept)]
