"""Logits to probabilities, drafting, and the checks at a verifier's door."""

from __future__ import annotations

import pytest
import torch
from scipy.stats import chisquare
from torch import Tensor

from draftlab.core import sampling, sampling_numpy
from draftlab.core.sampling import (
    Drafting,
    Sampling,
    check_drafted,
    check_probs,
    draft_tokens,
    draw,
    most_probable,
    restrict,
    restrict_pair,
    to_probs,
)
from draftlab.core.sampling_numpy import FIRST_SORT
from draftlab.core.verify import TOKEN_VERIFIERS
from draftlab.core.verify.joint import joint_distribution
from draftlab.errors import UserError


def generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def distribution(*weights: float) -> Tensor:
    return torch.tensor(weights, dtype=torch.float64) / sum(weights)


def test_softmax_in_float64_at_a_temperature() -> None:
    logits = torch.randn(3, 50, generator=generator())
    expected = (logits.double() / 0.7).softmax(-1)
    torch.testing.assert_close(to_probs(logits, Sampling(0.7)), expected, rtol=1e-14, atol=0)


def test_temperature_zero_is_the_first_most_probable_token() -> None:
    probs = to_probs(torch.tensor([[0.0, 3.0, 3.0, 1.0]]), Sampling(0))
    torch.testing.assert_close(probs, torch.tensor([[0.0, 1.0, 0.0, 0.0]], dtype=torch.float64))


def test_tiny_temperature_does_not_overflow() -> None:
    probs = to_probs(torch.tensor([3e38, 2e38, -torch.inf]), Sampling(1e-30))
    torch.testing.assert_close(probs, distribution(1, 0, 0))


@pytest.mark.parametrize("vocab", [7, FIRST_SORT * 5])
@pytest.mark.parametrize("top_p", [0.05, 0.66, 0.95, 0.999])  # of the large one, the second sort holds 0.63
def test_top_p_is_the_smallest_set_that_holds_it(vocab: int, top_p: float) -> None:
    logits = torch.randn(2, vocab, generator=generator())  # flat: the nucleus is larger than the first sort
    probs = logits.double().softmax(-1)
    actual = to_probs(logits, Sampling(top_p=top_p))
    for before, after in zip(probs, actual, strict=True):
        kept = after > 0
        assert float(before[kept].sum()) >= top_p
        assert float(before[kept].sum() - before[kept].min()) < top_p
        assert bool((before[~kept] <= before[kept].min()).all())
        torch.testing.assert_close(after[kept], before[kept] / before[kept].sum(), rtol=1e-12, atol=0)


def test_top_k_comes_before_top_p() -> None:
    logits = distribution(0.4, 0.3, 0.2, 0.1).log()
    torch.testing.assert_close(to_probs(logits, Sampling(top_k=2)), distribution(4, 3, 0, 0))
    # Of the two kept tokens the first holds 4/7 > 0.5, though it holds 0.4 of the whole.
    torch.testing.assert_close(to_probs(logits, Sampling(top_k=2, top_p=0.5)), distribution(1, 0, 0, 0))
    torch.testing.assert_close(to_probs(logits, Sampling(top_k=99)), distribution(4, 3, 2, 1))


def test_min_p_keeps_what_is_probable_enough_beside_the_best() -> None:
    logits = distribution(0.4, 0.3, 0.2, 0.1).log()
    torch.testing.assert_close(to_probs(logits, Sampling(min_p=0.3)), distribution(4, 3, 2, 0))
    torch.testing.assert_close(to_probs(logits, Sampling(min_p=1.0)), distribution(1, 0, 0, 0))
    # The temperature comes first: 0.1 / 0.4 is 1 / 16 at temperature 0.5.
    torch.testing.assert_close(to_probs(logits, Sampling(0.5, min_p=0.2)), distribution(16, 9, 4, 0))
    torch.testing.assert_close(to_probs(logits, Sampling(top_p=0.6, min_p=0.7)), distribution(4, 3, 0, 0))
    # Each row has its own best token and its own sum.
    rows = to_probs(torch.stack([logits, distribution(0, 6, 1, 3).log()]), Sampling(min_p=0.3))
    torch.testing.assert_close(rows, torch.stack([distribution(4, 3, 2, 0), distribution(0, 6, 0, 3)]))
    assert Sampling(min_p=0.3).cuts
    assert not Sampling(0.5).cuts


@pytest.mark.parametrize(("weights", "min_p"), [((2, 1), 0.5), ((5, 4, 1, 3, 1), 0.2), ((4, 0, 2, 1), 0.25)])
def test_min_p_keeps_a_token_at_its_bound(weights: tuple[int, ...], min_p: float) -> None:
    """Rounding must not drop it, nor divide what torch and numpy keep."""
    expected, settings = distribution(*weights), Sampling(min_p=min_p)
    torch.testing.assert_close(to_probs(expected.log(), settings), expected)
    torch.testing.assert_close(torch.from_numpy(sampling_numpy.to_probs(expected.log().numpy(), settings)), expected)


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_bad_logits_say_where(bad: float) -> None:
    logits = torch.zeros(2, 3)
    logits[1, 2] = bad
    with pytest.raises(UserError, match=r"logits\[1\]"):
        to_probs(logits, Sampling())
    with pytest.raises(UserError, match=r"logits\[1\]"):
        most_probable(logits)


@pytest.mark.parametrize(
    "settings", [{"temperature": -1.0}, {"temperature": torch.inf}, {"top_k": 0}, {"top_p": 0.0}, {"min_p": 2.0}]
)
def test_bad_settings_are_refused(settings: dict[str, float]) -> None:
    with pytest.raises(UserError):
        Sampling(**settings)


def test_draws_follow_the_weights_and_never_hit_zero() -> None:
    weights = torch.tensor([0.0, 3.0, 0.0, 1.0, 2.0, 0.0], dtype=torch.float64)
    tokens = draw(weights.expand(100, -1), 300, generator())
    counts = torch.bincount(tokens.flatten(), minlength=6)
    assert counts[weights == 0].sum() == 0
    assert chisquare(counts[weights > 0], (weights / 6 * 30_000)[weights > 0]).pvalue > 1e-4


@pytest.mark.parametrize("drafting", ["iid", "independent", "without_replacement", "greedy"])
def test_drafted_tuples_follow_the_joint_distribution(drafting: Drafting) -> None:
    distributions = distribution(5, 3, 0, 1, 2).expand(3, -1)
    if drafting == "independent":
        distributions = torch.stack(
            [distribution(5, 3, 0, 1, 2), distribution(1, 1, 1, 0, 0), distribution(0, 0, 1, 2, 3)]
        )
    joint = joint_distribution(distributions, drafting)
    assert float(joint.probs.sum()) == pytest.approx(1, abs=1e-14)
    base = torch.tensor([25, 5, 1])
    drafted = draft_tokens(distributions.expand(40_000, -1, -1), drafting, generator())
    counts = torch.bincount(drafted @ base, minlength=125)
    assert counts.sum() == counts[joint.tokens @ base].sum(), "a tuple of probability 0 was drafted"
    assert chisquare(counts[joint.tokens @ base], joint.probs / joint.probs.sum() * 40_000).pvalue > 1e-4


def test_without_replacement_on_a_peaked_distribution() -> None:
    """The remaining mass as "1 - used" is 0 here: all digits are gone."""
    probs = torch.tensor([1.0, 3e-17, 1e-17], dtype=torch.float64)
    drafted = draft_tokens(probs.expand(4000, 3, -1), "without_replacement", generator())
    assert bool((drafted.sort(-1).values == torch.arange(3)).all())
    second = (drafted[drafted[:, 0] == 0, 1] == 1).double().mean()
    assert float(second) == pytest.approx(0.75, abs=0.03)


def test_ranked_drafts_are_the_most_probable_tokens() -> None:
    distributions = distribution(3, 5, 0, 1, 2).expand(1, 3, -1)
    joint = joint_distribution(distributions[0], "ranked")
    assert draft_tokens(distributions, "ranked", generator()).tolist() == joint.tokens.tolist() == [[1, 0, 4]]
    assert joint.probs.tolist() == [1.0]


@pytest.mark.parametrize("drafting", ["without_replacement", "greedy", "ranked"])
def test_there_are_never_more_distinct_drafts_than_tokens(drafting: Drafting) -> None:
    """The first token stands in for drafts that do not exist."""
    one = to_probs(torch.tensor([[[5.0, 0, 0, 0]]]).expand(1, 2, 4), Sampling(top_p=0.9))
    assert draft_tokens(one, drafting, generator()).tolist() == [[0, 0]]
    probs = torch.stack([distribution(3, 2, 1, 0, 0), distribution(3, 0, 1, 0, 0)])[:, None].expand(-1, 4, -1)
    for _ in range(20):
        full, short = draft_tokens(probs, drafting, generator()).tolist()
        assert sorted(full[:3]) == [0, 1, 2]
        assert full[3] == full[0]
        assert sorted(short[:2]) == [0, 2]
        assert short[2:] == [short[0]] * 2


def test_a_way_of_drafting_that_does_not_exist_is_refused() -> None:
    """``draft_tokens`` and ``joint_distribution`` drafted without replacement."""
    probs = torch.full((1, 2, 2), 0.5, dtype=torch.float64)
    for given in (
        lambda: draft_tokens(probs, "multinomial", generator()),
        lambda: joint_distribution(probs[0], "multinomial"),
    ):  # type: ignore[arg-type]
        with pytest.raises(UserError, match=r"unknown drafting 'multinomial' \(allowed: iid, independent, "):
            given()


def test_drafts_without_a_batch_axis_are_refused() -> None:
    """The first token's probability was drawn from, once for each draft."""
    with pytest.raises(UserError, match=r"draft_probs has shape \(3, 4\), not \[batch, drafts, vocab\]"):
        draft_tokens(torch.full((3, 4), 0.25, dtype=torch.float64), "iid", generator())


def test_weights_below_the_smallest_float_are_drawn_like_others() -> None:
    """What remains after the first token of a cold, truncated distribution."""
    probs = torch.zeros(500, 1, 50, dtype=torch.float64)
    probs[..., 0], probs[..., 7], probs[..., 9] = 1.0, 2e-323, 1e-323  # 4 and 2 steps of the smallest float
    drawn = draft_tokens(probs.expand(-1, 2, -1), "without_replacement", torch.Generator().manual_seed(0))
    assert (drawn[:, 0] == 0).all()
    assert set(drawn[:, 1].tolist()) == {7, 9}
    assert (drawn[:, 1] == 7).double().mean() == pytest.approx(2 / 3, abs=0.1)


def test_a_nucleus_that_is_met_exactly_has_no_token_more() -> None:
    kept = to_probs(torch.zeros(1, 10), Sampling(top_p=0.8))
    assert (kept > 0).sum() == 8
    assert to_probs(torch.arange(10.0)[None], Sampling(top_p=1e-13)).argmax() == 9
    assert to_probs(torch.arange(10.0)[None], Sampling(top_p=1e-13)).sum() == 1


def test_logits_with_a_gradient_can_be_filtered() -> None:
    assert to_probs(torch.zeros(1, 10, requires_grad=True), Sampling(top_p=0.5)).sum().item() == pytest.approx(1)


def test_half_precision_is_renormalised_in_float64() -> None:
    exact = torch.randn(4, 1000, generator=generator()).softmax(-1)
    for dtype in (torch.float16, torch.bfloat16, torch.float32):
        actual = check_probs(exact.to(dtype), "target_probs")
        assert actual.dtype == torch.float64
        torch.testing.assert_close(actual.sum(-1), torch.ones(4, dtype=torch.float64), rtol=1e-14, atol=0)


@pytest.mark.parametrize(
    ("probs", "message"),
    [
        (torch.tensor([[0.5, 0.5], [0.5, 0.4]]), r"target_probs\[1\] sums to 0.9, not 1"),
        (torch.tensor([[0.5, 0.5], [torch.nan, 0.5]]), r"target_probs\[1\] holds NaN"),
        (torch.tensor([[1.5, -0.5]]), r"target_probs\[0, 1\] is negative"),
        (torch.tensor([1, 0]), "dtype torch.int64"),
        (torch.ones(0, 3), "is empty"),
    ],
)
def test_bad_probabilities_say_what_and_where(probs: Tensor, message: str) -> None:
    with pytest.raises(UserError, match=message):
        check_probs(probs, "target_probs")


@pytest.mark.parametrize(
    ("draft", "tokens", "drafting", "message"),
    [
        (distribution(1, 1, 1, 1).expand(2, -1), [0, 1], "iid", "target_probs has 3 tokens and draft_probs 4"),
        (distribution(1, 1, 1).expand(2, -1), [0, 1, 2], "iid", "shapes do not fit"),
        (distribution(1, 1, 1).expand(2, -1), [0.0, 1.0], "iid", "tokens has dtype torch.float32"),
        (distribution(1, 1, 1).expand(2, -1), [0, 3], "iid", r"tokens\[1\] is outside the vocabulary"),
        (distribution(1, 1, 0).expand(2, -1), [0, 2], "iid", r"tokens\[1\] was drafted but has draft probability 0"),
        (
            torch.stack([distribution(1, 1, 1), distribution(1, 2, 1)]),
            [0, 1],
            "iid",
            "the drafts' distributions differ, but iid drafts",
        ),
        (distribution(1, 1, 1).expand(3, -1), [1, 0, 1], "without_replacement", "repeats a token"),
        (
            distribution(1, 0, 1).expand(3, -1),
            [2, 0, 2],
            "without_replacement",
            "has 2 tokens of positive probability, fewer than num_drafts = 3",
        ),
    ],
)
def test_drafts_that_do_not_fit_are_refused(draft: Tensor, tokens: list[int], drafting: Drafting, message: str) -> None:
    with pytest.raises(UserError, match=message):
        check_drafted(distribution(1, 1, 1), draft, torch.tensor(tokens), drafting)


@pytest.mark.parametrize("drafting", ["iid", "independent"])
def test_restriction_to_the_support_changes_no_decision(drafting: Drafting) -> None:
    logits = torch.randn(3, 6, 400, generator=generator()) * 4
    target, *drafts = (to_probs(table, Sampling(top_p=0.9)) for table in logits)
    draft = drafts[0][:, None].expand(-1, 2, -1) if drafting == "iid" else torch.stack(drafts, 1)
    tokens = draft_tokens(draft, drafting, generator())
    small_target, small_draft, columns, ids = restrict(target, draft, tokens)
    assert ids.shape[1] < 100
    torch.testing.assert_close(ids.gather(-1, columns), tokens)
    for small in (small_target, small_draft):
        torch.testing.assert_close(small.sum(-1), torch.ones(small.shape[:-1], dtype=torch.float64))
    checked = 0
    for verifier in TOKEN_VERIFIERS.values():
        if verifier.drafting in (drafting, "independent"):
            dense = verifier.distribution(target, draft, tokens)
            sparse = torch.zeros_like(dense).scatter_add_(
                -1, ids, verifier.distribution(small_target, small_draft, columns)
            )
            torch.testing.assert_close(sparse, dense, rtol=0, atol=1e-12)
            checked += 1
    assert checked >= 5


def test_a_pair_is_restricted_where_its_tables_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another default device stands for the CPU beside a GPU's tables."""
    given: list[Tensor] = []

    def watched(*tensors: Tensor) -> tuple[Tensor, ...]:
        given.extend(tensors)
        return restrict(*tensors)

    monkeypatch.setattr(sampling, "restrict", watched)
    target, draft = (torch.stack([distribution(*weights), distribution(0, 0, 1)]) for weights in ((0, 1, 3), (0, 2, 2)))
    with torch.device("meta"):
        found = restrict_pair(target, draft)
    short = distribution(1, 0)  # a row of fewer tokens ends in columns of probability 0
    expected = tuple(torch.stack([distribution(*weights), short]) for weights in ((1, 3), (1, 1)))
    torch.testing.assert_close(found, expected)
    assert {tensor.device.type for tensor in given} == {"cpu"}
