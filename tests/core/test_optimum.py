"""The best acceptance: formulas against enumeration, against linear programs and against exact rational oracles."""

from __future__ import annotations

from fractions import Fraction
from itertools import combinations

import pytest
import torch
from torch import Tensor

from draftlab.core.verify import TOKEN_VERIFIERS
from draftlab.core.verify.joint import joint_distribution
from draftlab.core.verify.optimum import optimal_coupling, optimum_by_lp, optimum_iid
from draftlab.core.verify.polyhedral import acceptance_cone
from tests.optimum import accepts_always, optimum_by_subsets, optimum_without_replacement
from tests.verify_cases import random_distribution, random_pairs

ORACLES = [  # num_drafts, target, draft, optimum, SpecInfer's acceptance before the residual draw
    (2, "309/500 177/500 7/250", "373/1000 29/50 47/1000", "988871/1000000", "169277/200000"),
    (3, "469/1000 31/250 407/1000", "201/1000 11/40 131/250", "1", "207227133/250000000"),
]


def fractions(text: str) -> list[Fraction]:
    return [Fraction(part) for part in text.split()]


def exact_optimum(target: list[Fraction], draft: list[Fraction], drafts: int) -> Fraction:
    """``min_H 1 + q(H) - p(H)^K`` over all sets, in rational numbers."""
    tokens = range(len(target))
    sets = [inside for size in range(len(target) + 1) for inside in combinations(tokens, size)]
    return min(1 + sum(target[y] for y in h) - sum((draft[y] for y in h), Fraction()) ** drafts for h in sets)


def exact_specinfer(target: list[Fraction], draft: list[Fraction], drafts: int) -> Fraction:
    """``1 - prod_k (1 - sum min(q_{k-1}, p))``, in rational numbers."""
    rejected = Fraction(1)
    for _ in range(drafts):
        rejected *= 1 - sum(min(q, p) for q, p in zip(target, draft, strict=True))
        excess = [max(q - p, Fraction()) for q, p in zip(target, draft, strict=True)]
        target = [x / sum(excess) for x in excess] if sum(excess) else target
    return 1 - rejected


@pytest.mark.parametrize(("drafts", "target", "draft", "optimum", "specinfer"), ORACLES)
def test_exact_rational_oracles(drafts: int, target: str, draft: str, optimum: str, specinfer: str) -> None:
    target_exact, draft_exact = fractions(target), fractions(draft)
    assert exact_optimum(target_exact, draft_exact, drafts) == Fraction(optimum)
    assert exact_specinfer(target_exact, draft_exact, drafts) == Fraction(specinfer)
    q, p = torch.tensor([[float(x) for x in exact] for exact in (target_exact, draft_exact)], dtype=torch.float64)
    for name, expected in (("optimal", optimum), ("specinfer", specinfer)):
        actual = TOKEN_VERIFIERS[name].acceptance(q, p.expand(drafts, -1))
        assert float(actual.proc) == pytest.approx(float(Fraction(expected)), abs=1e-15)


@pytest.mark.parametrize("drafts", [1, 2, 3, 4])
def test_one_sort_is_the_minimum_over_all_sets(drafts: int) -> None:
    for target, draft in random_pairs(150, seed=1, largest=8 if drafts < 4 else 6):
        expected = optimum_by_subsets(target, joint_distribution(draft.expand(drafts, -1), "iid"))
        assert float(optimum_iid(target[None], draft[None], drafts)) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("drafts", [1, 2, 3])
def test_one_sort_holds_without_replacement(drafts: int) -> None:
    seen = 0
    for target, draft in random_pairs(150, seed=2, smallest=3, largest=6):
        if int((draft > 0).sum()) < drafts:
            continue
        expected = optimum_by_subsets(target, joint_distribution(draft.expand(drafts, -1), "without_replacement"))
        actual = optimum_without_replacement(target, draft, drafts)
        assert actual == pytest.approx(expected, abs=1e-12)
        # Distinct drafts are never worse than repeated ones, and RRS is one way to use them.
        assert float(optimum_iid(target[None], draft[None], drafts)) <= actual + 1e-12
        assert float(TOKEN_VERIFIERS["rrs"].acceptance(target, draft.expand(drafts, -1)).proc) <= actual + 1e-9
        seen += 1
    assert seen > 80


def independent(draft: Tensor, drafts: int, generator: torch.Generator) -> Tensor:
    return torch.stack([draft, *(random_distribution(len(draft), generator) for _ in range(drafts - 1))])


@pytest.mark.parametrize("drafting", ["iid", "independent", "without_replacement", "greedy"])
def test_linear_program_is_the_minimum_over_all_sets(drafting: str) -> None:
    generator = torch.Generator().manual_seed(3)
    seen = 0
    for number, (target, draft) in enumerate(random_pairs(40, seed=4, smallest=3)):
        drafts = 2 + number % 2
        if int((draft > 0).sum()) < drafts:
            continue
        distributions = independent(draft, drafts, generator) if drafting == "independent" else draft.expand(drafts, -1)
        joint = joint_distribution(distributions, drafting)
        assert optimum_by_lp(target, joint) == pytest.approx(optimum_by_subsets(target, joint), abs=1e-6)
        coupling = optimal_coupling(target, joint)
        torch.testing.assert_close(coupling.chosen.sum(-1), torch.ones(len(joint.probs), dtype=torch.float64))
        assert float(coupling.selected.sum()) == pytest.approx(1, abs=1e-12)
        seen += 1
    assert seen > 15


def test_theorem_2_says_when_every_draft_set_is_accepted() -> None:
    uniform = torch.full((1, 3), 1 / 3, dtype=torch.float64)
    half = torch.tensor([[1 / 2, 1 / 3, 1 / 6]], dtype=torch.float64)
    assert bool(accepts_always(half, uniform, 2))  # q(H) >= |H|^2 / 9 for every H
    assert not bool(accepts_always(half, uniform, 1))
    for target, draft in random_pairs(200, seed=5):
        best = optimum_by_subsets(target, joint_distribution(draft.expand(2, -1), "iid"))
        assert float(optimum_iid(target[None], draft[None], 2)) == pytest.approx(best, abs=1e-12)
        assert bool(accepts_always(target[None], draft[None], 2)) == (best > 1 - 1e-12)


@pytest.mark.parametrize(
    ("tokens", "drafts"),
    [(2, 2), (3, 2), (4, 2), (5, 2), (6, 2), (2, 3), (3, 3), (4, 3), (5, 3), (3, 4), (4, 4), (5, 4)],
)
def test_the_cone_has_no_facets_but_theorem_2s(tokens: int, drafts: int) -> None:
    cone = acceptance_cone(tokens, drafts)
    assert cone.other == 0
    assert cone.subsets == 2**tokens - 2
    assert cone.nonnegative > 0


def test_a_drafted_set_of_the_smallest_float_is_shared_equally() -> None:
    """Tokens 1 and 2 are drafted together with probability 5e-324, of which half is 0."""
    drafts = torch.tensor([[1, 7e-162, 0], [1, 0, 7e-163]], dtype=torch.float64)
    joint = joint_distribution(drafts, "independent")
    assert float(joint.probs.min()) == 5e-324
    coupling = optimal_coupling(torch.full((3,), 1 / 3, dtype=torch.float64), joint)
    torch.testing.assert_close(coupling.chosen.sum(-1), torch.ones(len(joint.probs), dtype=torch.float64))
    assert float(coupling.selected.sum()) == pytest.approx(1)


def test_nothing_is_accepted_of_disjoint_supports_however_the_draft_sums_up() -> None:
    """A sum of 1 + 1e-15 to the power of 32 is above 1."""
    weights = torch.rand(200, 2, 1500, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) ** 3
    weights[:, 0, :700] = 0
    weights[:, 1, 700:] = 0
    target, draft = (weights / weights.sum(-1, keepdim=True)).unbind(1)
    best = optimum_iid(target, draft, 32)
    assert float(best.min()) == 0
    assert float(best.max()) < 1e-12


def test_distinct_drafts_of_the_smallest_floats_have_probabilities_that_sum_to_1() -> None:
    draft = torch.tensor([1, 1e-323, 5e-324], dtype=torch.float64)
    joint = joint_distribution(draft.expand(3, -1), "without_replacement")
    likely = dict(zip(map(tuple, joint.tokens.tolist()), joint.probs.tolist(), strict=True))
    assert likely[0, 1, 2] == pytest.approx(2 / 3)
    assert float(joint.probs.sum()) == pytest.approx(1)


@pytest.mark.parametrize("drafts", [1, 2, 4])
def test_the_optimum_can_be_a_loss(drafts: int) -> None:
    """It raised "can't call numpy() on a tensor that requires grad". For one draft it is the acceptance of ``single``."""
    target, logits = torch.randn(2, 5, 7, dtype=torch.float64, generator=torch.Generator().manual_seed(drafts))
    target = target.softmax(-1)

    def loss(logits: Tensor) -> Tensor:
        return 1 - optimum_iid(target, logits.softmax(-1), drafts)

    assert torch.autograd.gradcheck(loss, logits.requires_grad_())
    if drafts == 1:
        distance = (target - logits.softmax(-1)).abs().sum(-1) / 2
        torch.testing.assert_close(loss(logits), distance, rtol=0, atol=1e-15)
