"""Typical acceptance: accept a drafted token that the target finds plausible. Not lossless."""

from __future__ import annotations

import torch

from draftlab.core.sampling import Table, Tables, Tokens
from draftlab.core.verify.token import Decision, TokenVerifier

EPSILON, DELTA = 0.09, 0.3
"""The constants of Medusa's code; its paper asks for delta = sqrt(epsilon)."""


def _decide(target_probs: Table, draft_probs: Tables, tokens: Tokens) -> Decision:
    entropy = torch.special.entr(target_probs).sum(-1, keepdim=True)
    probs = target_probs.gather(-1, tokens)
    plausible = probs > (DELTA * (-entropy).exp()).clamp_max(EPSILON)
    best = (probs * plausible).argmax(-1, keepdim=True)
    accept = torch.zeros_like(probs).scatter_(-1, best, plausible.gather(-1, best).double())
    return Decision(accept, lambda rows: target_probs[rows])


typical = TokenVerifier("typical", "greedy", _decide, is_lossless=False)
"""Accept the most probable drafted token with ``q(x) > min(epsilon, delta exp(-H(q)))``, else draw from q (Cai et al. 2024, section 2.3.1).

The emitted text does not follow the target's distribution. Medusa keeps the longest plausible sequence; here each depth takes its best token.
"""
