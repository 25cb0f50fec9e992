"""Losses against the definitions in float64 by plain sums, at zero probabilities, and their gradients."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from draftlab.core.losses import LOSSES, one_hot_logits
from draftlab.errors import UserError


def kl(first: list[float], second: list[float]) -> float:
    return sum(a * math.log(a / b) if b > 0 else math.inf for a, b in zip(first, second, strict=True) if a > 0)


def mixture_divergence(target: list[float], draft: list[float], beta: float) -> float:
    mixture = [beta * a + (1 - beta) * b for a, b in zip(target, draft, strict=True)]
    return beta * kl(target, mixture) + (1 - beta) * kl(draft, mixture)


DEFINITIONS: dict[str, Callable[[list[float], list[float]], float]] = {
    "forward_kl": kl,
    "reverse_kl": lambda target, draft: kl(draft, target),
    "jsd_0.5": lambda target, draft: mixture_divergence(target, draft, 0.5),
    "jsd_0.1": lambda target, draft: mixture_divergence(target, draft, 0.1),
    "jsd_0.9": lambda target, draft: mixture_divergence(target, draft, 0.9),
    "tvd": lambda target, draft: 1 - sum(map(min, target, draft)),
    "hard_label": lambda target, draft: -math.log(draft[target.index(max(target))]),
    "jeffreys_0.9": lambda target, draft: 0.9 * kl(target, draft) + 0.1 * kl(draft, target),
}
TARGET, DRAFT = [0.6, 0.3, 0.1, 0.0], [0.2, 0.3, 0.25, 0.25]


def logits(*rows: list[float]) -> Tensor:
    """A softmax forgets a constant: the shift makes sure that nothing relies on normalised input."""
    return torch.tensor(rows).log() + 3.0


def test_every_loss_has_a_definition_here() -> None:
    assert DEFINITIONS.keys() == LOSSES.keys()


@pytest.mark.parametrize("name", LOSSES)
def test_values_follow_the_definition(name: str) -> None:
    smooth = [0.5, 0.2, 0.2, 0.1]
    got = LOSSES[name](logits(DRAFT, DRAFT), logits(smooth, DRAFT))
    expected = [DEFINITIONS[name](smooth, DRAFT), DEFINITIONS[name](DRAFT, DRAFT)]
    torch.testing.assert_close(got, torch.tensor(expected), atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("name", LOSSES)
def test_zero_target_probability_is_safe_or_refused(name: str) -> None:
    expected = DEFINITIONS[name](TARGET, DRAFT)
    loss = LOSSES[name](logits(DRAFT), logits(TARGET))
    torch.testing.assert_close(loss, torch.tensor([expected]), atol=1e-6, rtol=1e-5)
    draft = logits(DRAFT).requires_grad_()
    if expected == math.inf:  # the draft gives mass where the target has none; the gradient was NaN
        with pytest.raises(UserError, match="infinite where the target excludes a token"):
            LOSSES[name](draft, logits(TARGET))
        with torch.no_grad():
            assert LOSSES[name](draft, logits(TARGET)).tolist() == [math.inf]
    else:
        LOSSES[name](draft, logits(TARGET)).sum().backward()
        assert draft.grad.isfinite().all()


@pytest.mark.parametrize("name", LOSSES)
def test_zero_probability_on_both_sides_is_safe(name: str) -> None:
    draft = logits([0.2, 0.3, 0.5, 0.0])
    draft[0, 3] = -200.0  # so small a probability that it is 0 in float32
    draft.requires_grad_()
    got = LOSSES[name](draft, logits(TARGET))
    expected = DEFINITIONS[name](TARGET[:3], [0.2, 0.3, 0.5])
    torch.testing.assert_close(got, torch.tensor([expected]), atol=1e-6, rtol=1e-5)
    got.sum().backward()
    assert draft.grad.isfinite().all()


@pytest.mark.parametrize("name", LOSSES)
def test_gradient_is_the_finite_difference(name: str) -> None:
    generator = torch.Generator().manual_seed(3)
    draft, target = (torch.randn(2, 5, generator=generator) for _ in range(2))
    draft.requires_grad_()
    LOSSES[name](draft, target).sum().backward()
    step = 1e-2
    for row in range(2):
        for token in range(5):
            moved = [draft.detach().clone() for _ in range(2)]
            moved[0][row, token] += step
            moved[1][row, token] -= step
            up, down = (LOSSES[name](value, target).sum() for value in moved)
            torch.testing.assert_close(draft.grad[row, token], (up - down) / (2 * step), atol=2e-3, rtol=2e-2)


@pytest.mark.parametrize("name", LOSSES)
def test_gradient_flows_to_the_draft_only(name: str) -> None:
    draft, target = torch.randn(3, 7, requires_grad=True), torch.randn(3, 7, requires_grad=True)
    LOSSES[name](draft, target).sum().backward()
    assert draft.grad is not None
    assert target.grad is None


@pytest.mark.parametrize("name", LOSSES)
def test_half_precision_logits_lose_nothing_but_their_own_digits(name: str) -> None:
    draft, target = torch.randn(3, 50).bfloat16(), torch.randn(3, 50).bfloat16()
    torch.testing.assert_close(LOSSES[name](draft, target), LOSSES[name](draft.float(), target.float()))


@pytest.mark.parametrize("name", LOSSES)
def test_several_predictions_of_a_position_are_each_compared_with_its_target(name: str) -> None:
    """As Medusa heads make them."""
    generator = torch.Generator().manual_seed(0)
    drafts, target = torch.randn(2, 3, 5, generator=generator), torch.randn(3, 5, generator=generator)
    together = LOSSES[name](drafts, target)
    torch.testing.assert_close(together, torch.stack([LOSSES[name](draft, target) for draft in drafts]))


def test_one_hot_target_makes_forward_kl_the_cross_entropy() -> None:
    draft, tokens = torch.randn(4, 9), torch.tensor([3, 0, 8, 3])
    expected = torch.nn.functional.cross_entropy(draft, tokens, reduction="none")
    for name in ("forward_kl", "hard_label"):
        torch.testing.assert_close(LOSSES[name](draft, one_hot_logits(tokens, 9)), expected)


def test_jsd_is_bounded_between_disjoint_distributions() -> None:
    left, right = one_hot_logits(torch.tensor([0]), 4), one_hot_logits(torch.tensor([1]), 4)
    torch.testing.assert_close(LOSSES["jsd_0.5"](left, right), torch.tensor([math.log(2)]))


def test_a_label_outside_a_trimmed_head_teaches_nothing() -> None:
    draft = torch.tensor([[0.0, 1.0, -torch.inf]]).requires_grad_()
    loss = LOSSES["hard_label"](draft, torch.tensor([[0.0, 0.0, 5.0]]))
    loss.sum().backward()
    assert loss.tolist() == [0.0]
    assert draft.grad.tolist() == [[0.0, 0.0, 0.0]]


def test_a_token_outside_a_trimmed_head_adds_only_the_targets_entropy_to_the_forward_divergence() -> None:
    draft, target = torch.tensor([[0.0, 1.0, -torch.inf]]).requires_grad_(), torch.tensor([[0.2, 0.3, 0.5]])
    loss = LOSSES["forward_kl"](draft, target.log())
    loss.sum().backward()
    inside = draft.detach().softmax(-1)
    expected = (target * target.log()).sum() - (target * inside.log())[0, :2].sum()
    torch.testing.assert_close(loss.detach(), expected[None])
    torch.testing.assert_close(draft.grad, torch.tensor([[0.5, 0.5, 0.0]]) * inside - torch.tensor([[0.2, 0.3, 0.0]]))


@pytest.mark.parametrize("name", ["forward_kl", "reverse_kl", "jsd_0.5", "tvd", "hard_label", "jeffreys_0.9"])
def test_a_second_derivative_is_refused(name: str) -> None:
    """A penalty on the gradient was a constant to autograd: it changed no update."""
    draft, target = torch.randn(2, 3, 7, generator=torch.Generator().manual_seed(0))
    draft.requires_grad_()
    with pytest.raises(UserError, match="no second derivative"):
        torch.autograd.grad(LOSSES[name](draft, target).sum(), draft, create_graph=True)
    torch.autograd.grad(LOSSES[name](draft, target).sum(), draft)
