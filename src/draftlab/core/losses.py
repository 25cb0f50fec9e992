"""Distillation losses: how far the draft's next-token distribution is from the target's, one number per position.

Every loss is ``(draft_logits, target_logits) -> loss per position``; ``train.learning`` and ``train.online`` choose positions and take the
mean. Both distributions are softmaxes at temperature 1 (OSD trains this way at every decoding temperature). Gradients flow only to the draft,
and each loss has its gradient in closed form, which takes half as long as autograd; second derivatives are refused.

A logit of -inf means probability 0, and 0 log 0 is 0. Where the target excludes a token that the draft may propose, ``reverse_kl`` and
``jeffreys`` are infinite and have no gradient. A token that the draft excludes lies outside its trimmed head, where no weight of the draft can
change it: ``forward_kl`` and ``hard_label`` leave out its ``-target log draft``, which would be infinite, and the other losses treat it like
any other token. ``forward_kl`` keeps the target's whole entropy.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, cast

import torch
from jaxtyping import Float, Int
from torch import Tensor

from draftlab.errors import UserError

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
    (target, log_target), (draft, log_draft) = _distribution(target_logits), _distribution(draft_logits)
    entropy = _dot(target, log_target)
    if (draft_logits.detach().amin(-1) == -torch.inf).any():  # comparing every logit takes an eighth of the whole loss
        target = target.masked_fill(draft_logits == -torch.inf, 0.0)
    gradient = draft.mul_(target.sum(-1, keepdim=True)).sub_(target)
    return _with_gradient(draft_logits, entropy - _dot(target, log_draft), gradient)


def reverse_kl(draft_logits: Logits, target_logits: Logits) -> Float[Tensor, "*positions"]:
    """KL(draft || target) = sum_x draft (log draft - log target), in nats (OSD Eq. 3, "reverse").

    Infinite if the draft gives mass to a token with target probability zero, as top-k and top-p leave it; it then has no gradient.

    **Arguments:**
    - `draft_logits`, `target_logits`: as for `forward_kl`.

    **Returns:** nats at each position, shape `(*positions,)`.

    **Raises:** `UserError` if it is infinite and the draft is to learn from it.

    >>> target, draft = torch.tensor([[0.8, 0.2]]).log(), torch.tensor([[0.5, 0.5]]).log()
    >>> reverse_kl(draft, target)
    tensor([0.2231])
    """
    draft, log_draft = _distribution(draft_logits)
    ratio = log_draft.sub_(target_logits.detach().float().log_softmax(-1)).masked_fill_(draft == 0, 0.0)
    value = _dot(draft, ratio)
    if torch.is_grad_enabled() and draft_logits.requires_grad and value.isinf().any():
        what = "reverse KL and Jeffreys are infinite where the target excludes a token (top-k, top-p), and have no gradient"
        raise UserError(what, remedy="choose forward_kl, jsd_0.5 or tvd, or give the target's whole distribution")
    return _with_gradient(draft_logits, value, _through_softmax(draft, ratio, value))


def jsd(draft_logits: Logits, target_logits: Logits, beta: float = 0.5) -> Float[Tensor, "*positions"]:
    """beta KL(target || m) + (1 - beta) KL(draft || m) with m = beta target + (1 - beta) draft, in nats (OSD Eq. 3, JSD[beta]).

    It never exceeds the entropy of (beta, 1 - beta), even between disjoint distributions.

    **Arguments:**
    - `draft_logits`, `target_logits`: as for `forward_kl`.
    - `beta`: weight of the target in the mixture, in (0, 1).

    **Returns:** nats at each position, shape `(*positions,)`.

    >>> target, draft = torch.tensor([[0.8, 0.2]]).log(), torch.tensor([[0.5, 0.5]]).log()
    >>> jsd(draft, target)
    tensor([0.0507])
    """
    (target, log_target), (draft, log_draft) = _distribution(target_logits), _distribution(draft_logits)
    log_mixture = torch.lerp(draft, target, beta).clamp_min_(torch.finfo(draft.dtype).tiny).log_()
    slope = log_draft.sub_(log_mixture)
    mean = _dot(draft, slope)
    value = beta * _dot(target, log_target - log_mixture) + (1 - beta) * mean
    return _with_gradient(draft_logits, value, (1 - beta) * _through_softmax(draft, slope, mean))


def tvd(draft_logits: Logits, target_logits: Logits) -> Float[Tensor, "*positions"]:
    """Total variation, 1 - sum_x min(target, draft) = half the sum of |target - draft|: the probability of a rejection.

    **Arguments:**
    - `draft_logits`, `target_logits`: as for `forward_kl`.

    **Returns:** a probability at each position, shape `(*positions,)`.

    >>> target, draft = torch.tensor([[0.8, 0.2]]).log(), torch.tensor([[0.5, 0.5]]).log()
    >>> tvd(draft, target)
    tensor([0.3000])
    """
    (target, _), (draft, _) = _distribution(target_logits), _distribution(draft_logits)
    gap = draft - target
    slope = gap.sign() / 2
    return _with_gradient(draft_logits, gap.abs_().sum(-1) / 2, _through_softmax(draft, slope, _dot(draft, slope)))


def hard_label(draft_logits: Logits, target_logits: Logits) -> Float[Tensor, "*positions"]:
    """-log draft(y), in nats, at the target's most probable token y: fine-tuning on greedy answers (OSD Table 1, FT).

    For sampled answers, pass ``one_hot_logits(answer_ids, vocab)`` as the target's logits.

    **Arguments:**
    - `draft_logits`, `target_logits`: as for `forward_kl`.

    **Returns:** nats at each position, shape `(*positions,)`.

    >>> target, draft = torch.tensor([[0.8, 0.2]]).log(), torch.tensor([[0.5, 0.5]]).log()
    >>> hard_label(draft, target)
    tensor([0.6931])
    """
    best = target_logits.argmax(-1, keepdim=True).expand(*draft_logits.shape[:-1], 1)
    draft, log_draft = _distribution(draft_logits)
    absent = draft_logits.detach().gather(-1, best) == -torch.inf
    value = -log_draft.gather(-1, best).masked_fill_(absent, 0.0)[..., 0]
    gradient = draft.scatter_add_(-1, best, torch.full_like(best, -1, dtype=draft.dtype))
    return _with_gradient(draft_logits, value, gradient.masked_fill_(absent, 0.0))


def jeffreys(draft_logits: Logits, target_logits: Logits, beta: float = 0.9) -> Float[Tensor, "*positions"]:
    """beta KL(target || draft) + (1 - beta) KL(draft || target), which OSD's repository calls "jsd".

    **Arguments:**
    - `draft_logits`, `target_logits`: as for `forward_kl`.
    - `beta`: weight of the forward part, in [0, 1).

    **Returns:** nats at each position, shape `(*positions,)`.

    **Raises:** `UserError` as `reverse_kl` does.

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


def _distribution(logits: Logits) -> tuple[Logits, Logits]:
    """Probabilities and their logarithms, without gradient; the lowest float stands for log 0, so that 0 log 0 is 0."""
    logits = logits.detach().float()
    return logits.softmax(-1), logits.log_softmax(-1).clamp_min_(torch.finfo(logits.dtype).min)


def _dot(left: Logits, right: Logits) -> Float[Tensor, "*positions"]:
    return cast(Tensor, torch.linalg.vecdot(left, right))


def _through_softmax(draft: Logits, slope: Logits, mean: Float[Tensor, "*positions"]) -> Logits:
    """The gradient to the logits, from the gradient ``slope`` to the draft's probabilities and its ``mean`` under them."""
    return (slope - mean[..., None]).mul_(draft)


def _with_gradient(logits: Logits, value: Float[Tensor, "*positions"], gradient: Logits) -> Float[Tensor, "*positions"]:
    """The ``value`` of a loss, whose ``gradient`` to the logits is known."""
    return cast(Tensor, _KnownGradient.apply(logits, value, gradient))  # type: ignore[no-untyped-call]


class _KnownGradient(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, logits: Tensor, value: Tensor, gradient: Tensor) -> Tensor:
        context.save_for_backward(gradient)
        context.dtype = logits.dtype
        return value

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        if torch.is_grad_enabled():  # with create_graph=True; a second derivative would be 0 without a word
            what = "these losses have a gradient in closed form, and no second derivative"
            raise UserError(what, remedy="leave out create_graph=True, or write the loss in operations of torch")
        (gradient,) = context.saved_tensors
        return (gradient * gradients[0][..., None]).to(context.dtype), None, None
