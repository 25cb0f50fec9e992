"""Survivors among K drafts at a position of a text: closed forms against an enumeration of every tuple."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from draftlab.core.sampling import Sampling, to_probs
from draftlab.core.verify import TOKEN_VERIFIERS, joint
from draftlab.core.verify.k_seq import k_seq
from draftlab.core.verify.rrs import rrs
from draftlab.core.verify.survivors import Order, Position, transitions
from draftlab.core.verify.token import Decision, TokenVerifier
from draftlab.core.verify.truncated import Truncation, truncated
from draftlab.core.verify.typical import typical
from draftlab.errors import UserError
from tests.verify_cases import random_pairs

CLOSED = {name: v for name, v in TOKEN_VERIFIERS.items() if v.survivors}
CLOSED |= {
    "truncated s=1": truncated(Truncation(1)),
    "truncated s=2 of 3": truncated(Truncation(2, 3)),
    "truncated s=2 of 2": truncated(Truncation(2, 2)),
}


def check(verifier: TokenVerifier, position: Position, order: Order) -> None:
    """The closed form equals the enumeration at every token that the target can write, and sums to 1."""
    actual = verifier.transitions(position, order)
    at_target = position.at(position.target)
    kept = at_target > 1e-9
    written = Position(position.target[kept], [draft[kept] for draft in position.groups], position.token[kept])
    oracle, chance = verifier.enumerated_survivors(written, order).flatten(1), at_target[kept]
    errors = (actual[kept].view_as(oracle) - oracle / chance[:, None]).abs().amax(1)
    assert (errors <= 1e-11 / chance.sqrt() + 1e-12).all(), errors
    torch.testing.assert_close(actual.flatten(1).sum(-1), torch.ones(len(actual), dtype=torch.float64))


@pytest.mark.parametrize("drafts", [1, 2, 3])
@pytest.mark.parametrize("name", CLOSED)
def test_identical_drafts(name: str, drafts: int) -> None:
    seen = 0
    for target, draft in random_pairs(40, seed=drafts, largest=5 if drafts < 3 else 4):
        vocab = len(target)
        position = Position(target.expand(vocab, -1), [draft.expand(vocab, -1)], torch.arange(vocab))
        check(CLOSED[name], position, (0,) * drafts)
        seen += vocab
    assert seen > 100


@pytest.mark.parametrize("order", [(0, 1), (1, 0), (0, 0, 1), (0, 1, 1), (0, 1, 2)])
@pytest.mark.parametrize("name", [name for name, v in CLOSED.items() if v.drafting == "independent"])
def test_drafts_of_different_distributions(name: str, order: Order) -> None:
    cases = list(random_pairs(40, seed=9, smallest=4, largest=4))
    for (target, one), (two, three) in zip(cases[::2], cases[1::2], strict=True):
        groups = [draft.expand(4, -1) for draft in (one, two, three)]
        position = Position(target.expand(4, -1), groups[: max(order) + 1], torch.arange(4))
        check(CLOSED[name], position, order)


@pytest.mark.parametrize("name", [name for name, v in CLOSED.items() if v.drafting != "iid"])
def test_what_is_left_beside_a_nearly_certain_draft_may_be_subnormal(name: str) -> None:
    """At a temperature of 0.01, logits of 7.2 below the largest have probabilities of 1e-313."""
    draft = to_probs(torch.tensor([7.2, 0.05, 0.0, -0.1]), Sampling(temperature=0.01))
    assert 0 < float(draft[1]) < torch.finfo(torch.float64).tiny
    target = torch.tensor([0.0, 0.5, 0.5, 0.0], dtype=torch.float64)
    check(CLOSED[name], Position(target.expand(4, -1), [draft.expand(4, -1)], torch.arange(4)), (0, 0))


def test_a_token_that_the_target_cannot_write_ends_the_block() -> None:
    distribution = torch.tensor([[0.5, 0.5, 0.0]], dtype=torch.float64)
    position = Position(distribution, [torch.full((1, 3), 1 / 3, dtype=torch.float64)], torch.tensor([2]))
    assert CLOSED["specinfer"].transitions(position, (0, 0)).tolist() == [[1.0, 0.0, 0.0]]


def test_tuples_are_enumerated_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """All tuples of two drafts over a vocabulary of 512 tokens at once would be a table of a GB."""
    target, draft = torch.tensor([[0.5, 0.3, 0.2], [0.1, 0.2, 0.7]], dtype=torch.float64)
    position = Position(target.expand(3, -1), [draft.expand(3, -1)], torch.arange(3))
    whole = k_seq.enumerated_survivors(position, (0, 0))
    sizes = []

    def decide(*given: Tensor) -> Decision:
        sizes.append(len(given[0]))
        return k_seq.decide(*given)

    monkeypatch.setattr(joint, "AT_ONCE", 4 * 2 * 3)
    torch.testing.assert_close(replace(k_seq, decide=decide).enumerated_survivors(position, (0, 0)), whole)
    assert sizes == [4, 4, 1] * 3


def test_a_verifier_that_changes_the_text_is_refused() -> None:
    distribution = torch.tensor([[0.5, 0.5]], dtype=torch.float64)
    with pytest.raises(UserError, match="typical is not lossless"):
        typical.transitions(Position(distribution, [distribution], torch.tensor([0])), (0,))


def test_distinct_drafts_are_enumerated_by_their_orders() -> None:
    """Positions of different supports, up to more drafts than tokens, against every tuple."""
    weights = torch.rand(2, 12, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) ** 3
    weights[1, :4, 3:] = 0
    weights[0, 6:, 0] = 0
    target, draft = weights / weights.sum(-1, keepdim=True)
    position = Position(target, [draft], target.multinomial(1, generator=torch.Generator().manual_seed(1))[:, 0])
    for drafts in (3, 4, 6):
        every = transitions(rrs.enumerated_survivors, position, (0,) * drafts)
        torch.testing.assert_close(rrs.transitions(position, (0,) * drafts), every, rtol=0, atol=1e-13)
