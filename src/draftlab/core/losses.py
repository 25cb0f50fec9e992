"""Distillation losses: how far the draft's next-token distribution is from the target's, one number per position.

Every loss is ``(draft_logits, target_logits) -> loss per position``; masking and the mean happen once, in ``distill``. Both distributions
are softmaxes at temperature 1 (OSD trains so at every decoding temperature). Gradients flow to the draft only. Logits of
-inf are probability zero: such a token adds nothing on the target's side. On the draft's side it is a token outside a trimmed head, which
no weight of the draft can change: its term of ``forward_kl`` (infinite) and of ``hard_label`` is left out, the others have it as it is.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch
from jaxtyping import Float, Int
from torch import Tensor

Logits = Float[Tensor, "*positions vocab"]
Loss = Callable[[Logits, Logits], Float[Tensor, "*positions"]]


def forward_kl(draft_logits: Logits, target_logits: Logits) -> Float[Tensor, "*positions"]:
    """KL(target || draft) = sum_x target (log target - log draft), in nats (OSD Eq. 3, "forward").

    **Arguments:**
    - `draft_logits`: of the draft, shape `(*positions, vocab)`; gradients flow to them.
    - `target_logits`: of the target, same shape.

    **Returns:** nats at each position, shape `(*positions,)`.

    >>> target, draft = torch.tensor([[0.8, 0.2]]).log(), torch.tensor([[0.5, 0.5]]).log()
    >>> forward_kl(draft, target)
    tensor([0.1927])
    """
    target = target_logits.detach().float().softmax(-1)
    return _cross_entropy(target, draft_logits) + torch.xlogy(target, target).sum(-1)


def reverse_kl(draft_logits: Logits, target_logits: Logits) -> Float[Tensor, "*positions"]:
    """KL(draft || target) = sum_x draft (log draft - log target), in nats (OSD Eq. 3, "reverse").

    Infinite where the draft gives mass to a token of target probability zero.

    **Arguments:**
    - `draft_logits`: of the draft, shape `(*positions, vocab)`; gradients flow to them.
    - `target_logits`: of the target, same shape.

    **Returns:** nats at each position, shape `(*positions,)`.

    >>> target, draft = torch.tensor([[0.8, 0.2]]).log(), torch.tensor([[0.5, 0.5]]).log()
    >>> reverse_kl(draft, target)
    tensor([0.2231])
    """
    log_draft, log_target = (logits.float().log_softmax(-1) for logits in (draft_logits, target_logits.detach()))
    draft = log_draft.exp()
    # What is masked after the product is 0 times inf on the way back.
    return (draft * (log_draft - log_target).masked_fill(draft == 0, 0.0)).sum(-1)


def jsd(draft_logits: Logits, target_logits: Logits, beta: float = 0.5) -> Float[Tensor, "*positions"]:
    """beta KL(target || m) + (1 - beta) KL(draft || m) with m = beta target + (1 - beta) draft, in nats (OSD Eq. 3, JSD[beta]).

    At most the entropy of (beta, 1 - beta), also between disjoint distributions.

    **Arguments:**
    - `draft_logits`: of the draft, shape `(*positions, vocab)`; gradients flow to them.
    - `target_logits`: of the target, same shape.
    - `beta`: weight of the target in the mixture, in (0, 1).

    **Returns:** nats at each position, shape `(*positions,)`.

    >>> target, draft = torch.tensor([[0.8, 0.2]]).log(), torch.tensor([[0.5, 0.5]]).log()
    >>> jsd(draft, target)
    tensor([0.0507])
    """
    target, draft = target_logits.detach().float().softmax(-1), draft_logits.float().softmax(-1)
    mixture = beta * target + (1 - beta) * draft
    return beta * _kl(target, mixture) + (1 - beta) * _kl(draft, mixture)


def tvd(draft_logits: Logits, target_logits: Logits) -> Float[Tensor, "*positions"]:
    """Total variation, 1 - sum_x min(target, draft) = half the sum of |target - draft|: the probability of a rejection.

    **Arguments:**
    - `draft_logits`: of the draft, shape `(*positions, vocab)`; gradients flow to them.
    - `target_logits`: of the target, same shape.

    **Returns:** a probability at each position, shape `(*positions,)`.

    >>> target, draft = torch.tensor([[0.8, 0.2]]).log(), torch.tensor([[0.5, 0.5]]).log()
    >>> tvd(draft, target)
    tensor([0.3000])
    """
    target, draft = target_logits.detach().float().softmax(-1), draft_logits.float().softmax(-1)
    return (target - draft).abs().sum(-1) / 2


def hard_label(draft_logits: Logits, target_logits: Logits) -> Float[Tensor, "*positions"]:
    """-log draft(y), in nats, at the target's most probable token y: fine-tuning on greedy answers (OSD Table 1, FT).

    For answers that were sampled, give ``one_hot_logits(answer_ids, vocab)`` as the target's.

    **Arguments:**
    - `draft_logits`: of the draft, shape `(*positions, vocab)`; gradients flow to them.
    - `target_logits`: of the target, same shape.

    **Returns:** nats at each position, shape `(*positions,)`.

    >>> target, draft = torch.tensor([[0.8, 0.2]]).log(), torch.tensor([[0.5, 0.5]]).log()
    >>> hard_label(draft, target)
    tensor([0.6931])
    """
    best = target_logits.argmax(-1, keepdim=True).expand(*draft_logits.shape[:-1], 1)
    log_draft = draft_logits.float().log_softmax(-1).gather(-1, best)[..., 0]
    return -log_draft.masked_fill(log_draft == -torch.inf, 0.0)


def jeffreys(draft_logits: Logits, target_logits: Logits, beta: float = 0.9) -> Float[Tensor, "*positions"]:
    """beta KL(target || draft) + (1 - beta) KL(draft || target): what OSD's repository runs under the name "jsd".

    **Arguments:**
    - `draft_logits`: of the draft, shape `(*positions, vocab)`; gradients flow to them.
    - `target_logits`: of the target, same shape.
    - `beta`: weight of the forward part, in [0, 1].

    **Returns:** nats at each position, shape `(*positions,)`.

    >>> target, draft = torch.tensor([[0.8, 0.2]]).log(), torch.tensor([[0.5, 0.5]]).log()
    >>> jeffreys(draft, target)
    tensor([0.1958])
    """
    return beta * forward_kl(draft_logits, target_logits) + (1 - beta) * reverse_kl(draft_logits, target_logits)


LOSSES: dict[str, Loss] = {
    "forward_kl": forward_kl,
    "reverse_kl": reverse_kl,
    "jsd_0.5": jsd,
    "jsd_0.1": functools.partial(jsd, beta=0.1),
    "jsd_0.9": functools.partial(jsd, beta=0.9),
    "tvd": tvd,
    "hard_label": hard_label,
    "jeffreys_0.9": jeffreys,
}


def one_hot_logits(tokens: Int[Tensor, "*positions"], vocab: int) -> Float[Tensor, "*positions vocab"]:
    """Logits of the distribution that gives each token probability 1.

    **Arguments:**
    - `tokens`: token ids, shape `(*positions,)`.
    - `vocab`: number of tokens.

    **Returns:** 0 at each token and -inf elsewhere, shape `(*positions, vocab)`.

    >>> one_hot_logits(torch.tensor([2]), 3).softmax(-1)
    tensor([[0., 0., 1.]])
    """
    return torch.full((*tokens.shape, vocab), -torch.inf, device=tokens.device).scatter_(-1, tokens[..., None], 0.0)


def _cross_entropy(probs: Tensor, logits: Logits) -> Float[Tensor, "*positions"]:
    """-sum probs log softmax(logits) over the tokens with a finite logit."""
    log_probs = logits.float().log_softmax(-1)
    return -(probs * log_probs.masked_fill(log_probs == -torch.inf, 0.0)).sum(-1)


def _kl(probs: Tensor, mixture: Tensor) -> Float[Tensor, "*positions"]:
    """KL(probs || mixture) from probabilities; the smallest float stands in for zero inside the logarithm, so gradients are finite."""
    tiny = torch.finfo(probs.dtype).tiny
    return (probs * (probs.clamp_min(tiny).log() - mixture.clamp_min(tiny).log())).sum(-1)
