"""Entropic optimal transport instead of the linear program: selection by Sinkhorn's scaling."""

from __future__ import annotations

import torch

from draftlab.core.sampling import Table, Tables, Tokens
from draftlab.core.verify.joint import every_tuple
from draftlab.core.verify.single import select_then_verify, selection_acceptance
from draftlab.core.verify.token import Acceptance, Decision, TokenVerifier


def sinkhorn_verifier(iterations: int, sharpness: float) -> TokenVerifier:
    """Select draft k with probability ``b(x_k) / sum of b over the distinct drafts``, then verify it (Khisti et al. 2025, Theorem 1).

    ``b`` scales the columns of the kernel ``e^(-sharpness [y not drafted])`` between drafted tuples and tokens (Cuturi 2013). The selected
    token's distribution is summed exactly, so the verifier is lossless after any number of iterations; 0 iterations keep ``b = q``.
    """

    def decide(target_probs: Table, draft_probs: Tables, tokens: Tokens) -> Decision:
        weights, selected = _select(iterations, sharpness, target_probs, draft_probs)
        share = weights.gather(-1, tokens) / (tokens[:, :, None] == tokens[:, None, :]).sum(-1)
        return select_then_verify(target_probs, selected, share / share.sum(-1, keepdim=True), tokens)

    def acceptance(target_probs: Table, draft_probs: Tables) -> Acceptance:
        return selection_acceptance(target_probs, _select(iterations, sharpness, target_probs, draft_probs)[1])

    return TokenVerifier("sinkhorn", "independent", decide, acceptance)


def _select(iterations: int, sharpness: float, target_probs: Table, draft_probs: Tables) -> tuple[Table, Table]:
    """The weights ``b`` and the distribution of the selected token."""
    drafts, vocab = draft_probs.shape[1:]
    tuples = every_tuple(vocab, drafts, target_probs.device)
    members = target_probs.new_zeros(len(tuples), vocab).scatter_(-1, tuples, 1.0)
    mass = torch.stack([draft_probs[:, k, tuples[:, k]] for k in range(drafts)]).prod(0)
    outside = target_probs.new_tensor(-sharpness).exp()
    weights = target_probs
    for _ in range(iterations):
        reached = (1 - outside) * (weights @ members.T) + outside * weights.sum(-1, keepdim=True)
        rows = mass / reached.clamp_min(1e-300)
        columns = (1 - outside) * (rows @ members) + outside * rows.sum(-1, keepdim=True)
        weights = target_probs / columns.clamp_min(1e-300)
        weights = weights / weights.amax(-1, keepdim=True)
    # A token that the target never emits is selected only where nothing else was drafted.
    weights = weights.clamp_min(1e-30)
    return weights, weights * ((mass / (weights @ members.T)) @ members)
