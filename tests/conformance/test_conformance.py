"""The conformance kit: it catches seeded mistakes, exactly and from samples, and leaves lossless verifiers alone."""

from __future__ import annotations

import dataclasses
import functools
import json
import math
import random
import re
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
import torch
from scipy.stats import binom
from torch import Generator, Tensor

from draftlab import conformance
from draftlab.conformance import (
    Budget,
    check_distribution,
    check_formulas,
    check_sampler,
    check_samples,
    check_sequence_distribution,
    check_sequence_sampler,
    check_verifier,
    command,
)
from draftlab.conformance.command import verify_lossless
from draftlab.conformance.sequential import Evidence, Gamblers, sampler_wealth, samples_needed
from draftlab.conformance.tables import tables
from draftlab.core.sampling import Drafting, draw
from draftlab.core.verify import TREE_VERIFIERS, VERIFIERS
from draftlab.core.verify.block import block
from draftlab.core.verify.greedy import greedy
from draftlab.core.verify.k_seq import k_seq
from draftlab.core.verify.optimal import optimal
from draftlab.core.verify.path import PathDecision, PathVerifier, single_path
from draftlab.core.verify.rrs import rrs
from draftlab.core.verify.sequence import sequences_distribution
from draftlab.core.verify.single import accept_probs, reject_residual, single
from draftlab.core.verify.specinfer import specinfer
from draftlab.core.verify.token import Decision, TokenVerifier
from draftlab.core.verify.traversal import traversal
from draftlab.core.verify.tree import Stop
from draftlab.core.verify.truncated import Truncation, truncated
from draftlab.errors import UserError

Decide = Callable[[Tensor, Tensor, Tensor], Decision]


def smoothed(probs: Tensor) -> Tensor:
    """What the draft's distribution was before a filter cut it: some mass on every token."""
    return 0.8 * probs + 0.2 / probs.shape[-1]


def with_residual(residual: Callable[[Tensor, Tensor], Tensor]) -> Decide:
    """Single-draft verification with another residual."""

    def decide(target: Tensor, draft: Tensor, tokens: Tensor) -> Decision:
        accept = single.decide(target, draft, tokens).accept
        return Decision(accept, lambda rows: residual(target[rows], draft[rows, 0]))

    return decide


def with_chance(chance: Callable[[Tensor, Tensor], Tensor]) -> Decide:
    """Single-draft verification with another chance to accept the first draft."""

    def decide(target: Tensor, draft: Tensor, tokens: Tensor) -> Decision:
        found = chance(target.gather(-1, tokens[:, :1]), draft[:, 0].gather(-1, tokens[:, :1]))
        accept = torch.cat([found, torch.zeros_like(tokens[:, 1:], dtype=torch.float64)], -1)
        return Decision(accept, single.decide(target, draft, tokens).residual)

    return decide


def stale_target(target: Tensor, draft: Tensor, tokens: Tensor) -> Decision:
    """SpecInfer whose later rounds still compare with the first target."""
    chance = accept_probs(target.gather(-1, tokens), draft.gather(-1, tokens[..., None])[..., 0])
    missed = torch.cat([torch.ones_like(chance[:, :1]), (1 - chance).cumprod(-1)[:, :-1]], -1)
    return Decision(chance * missed, lambda rows: reject_residual(target, draft[:, 0])[rows])


def first_residual(target: Tensor, draft: Tensor, tokens: Tensor) -> Decision:
    """SpecInfer that draws its last token from the residual of the first round."""
    accept = specinfer.decide(target, draft, tokens).accept
    return Decision(accept, lambda rows: reject_residual(target, draft[:, 0])[rows])


def no_discount(target: Tensor, draft: Tensor, tokens: Tensor) -> Decision:
    """K-SEQ with rho = 1: every draft as if it were the only one."""
    return Decision(stale_target(target, draft, tokens).accept, k_seq.decide(target, draft, tokens).residual)


def best_of_drafts(target: Tensor, draft: Tensor, tokens: Tensor) -> Decision:
    """Take the draft that the target likes best and verify it as if it had been drawn alone."""
    liked = target.gather(-1, tokens)
    best = torch.nn.functional.one_hot(liked.argmax(-1), tokens.shape[1]).double()
    return Decision(
        best * accept_probs(liked, draft[:, 0].gather(-1, tokens)), single.decide(target, draft, tokens).residual
    )


def overlapping_tails(target: Tensor, draft: Tensor, tokens: Tensor) -> Decision:
    """Selection by one tail rule, the selected distribution by the other."""
    chosen, distribution = (truncated(Truncation(1, alphabet)).decide(target, draft, tokens) for alphabet in (1, None))
    return Decision(chosen.accept, distribution.residual)


def plain_tournament(target: Tensor, draft: Tensor, tokens: Tensor) -> Decision:
    """Selected by the optimal rule, verified against the draft's distribution instead of the selected token's."""
    found = optimal.decide(target, draft, tokens)
    lower = accept_probs(target.gather(-1, tokens), draft[:, 0].gather(-1, tokens))
    return Decision(found.accept * lower, found.residual)


def greedy_unrenormalised(target: Tensor, draft: Tensor, tokens: Tensor) -> Decision:
    """Greedy drafts, the last one verified against the whole distribution instead of the distribution of the rest."""
    found = single.decide(target, draft[:, -1:], tokens[:, -1:])
    return Decision(
        torch.cat([torch.zeros_like(tokens[:, :-1], dtype=torch.float64), found.accept], -1), found.residual
    )


MUTANTS: dict[str, tuple[Drafting, Decide]] = {
    "raw draft probabilities after top-k": ("iid", lambda q, p, x: single.decide(q, smoothed(p), x)),
    "raw target probabilities after top-k": ("iid", lambda q, p, x: single.decide(smoothed(q), p, x)),
    "residual is the target": ("iid", with_residual(lambda q, p: q)),
    "residual the wrong way round": ("iid", with_residual(lambda q, p: (p - q).clamp_min(0))),
    "residual is the absolute difference": ("iid", with_residual(lambda q, p: (q - p).abs())),
    "epsilon on zero residuals": ("iid", with_residual(lambda q, p: (q - p).clamp_min(0) + 1e-4)),
    "residual cut to its most probable token": (
        "iid",
        with_residual(lambda q, p: torch.zeros_like(q).scatter_(-1, (q - p).argmax(-1, keepdim=True), 1.0)),
    ),
    "first draft unverified": ("iid", with_chance(lambda q, p: torch.ones_like(q))),
    "ratio the wrong way round": ("iid", with_chance(lambda q, p: accept_probs(p, q))),
    "accepted with the target's probability": ("iid", with_chance(lambda q, p: q)),
    "target of the next position": ("iid", lambda q, p, x: single.decide(q.roll(1, -1), p, x)),
    "target squared (another temperature)": (
        "iid",
        lambda q, p, x: single.decide(q**2 / (q**2).sum(-1, keepdim=True), p, x),
    ),
    "residual not updated between rounds": ("iid", stale_target),
    "last residual of the first round": ("iid", first_residual),
    "K-SEQ without its discount": ("iid", no_discount),
    "best of the drafts": ("iid", best_of_drafts),
    "verified against the draft, not the selected": ("iid", plain_tournament),
    "tail rules mixed up": ("independent", overlapping_tails),
    "drawn without replacement, verified as iid": ("without_replacement", specinfer.decide),
    "drawn without replacement, verified by K-SEQ": ("without_replacement", k_seq.decide),
    "drawn iid, verified as without replacement": ("iid", rrs.decide),
    "drawn greedily, verified as iid": ("greedy", greedy_unrenormalised),
    "drawn iid, verified as greedy": ("iid", greedy.decide),
    "drafts differ, verified as one distribution": ("independent", k_seq.decide),
}
"""Mistakes seen in public code and in reviews."""


@pytest.mark.parametrize("name", MUTANTS)
def test_mutants_are_caught_exactly(name: str) -> None:
    drafting, decide = MUTANTS[name]
    # Declared for independent drafts, so that the door does not refuse what the tests must find.
    mutant = TokenVerifier(name, "independent", decide)
    assert check_distribution(mutant.distribution, drafting, 2, batched=True).error > 1e-6


def test_a_verifier_that_decides_every_row_as_the_first_is_caught_in_a_batch() -> None:
    def as_the_first(target: Tensor, draft: Tensor, tokens: Tensor) -> Decision:
        right = single.decide(target, draft, tokens)
        return Decision(right.accept[:1].expand_as(right.accept), right.residual)

    mutant = TokenVerifier("mutant", "iid", as_the_first)
    assert check_distribution(mutant.distribution, "iid", 1).lossless
    assert check_distribution(mutant.distribution, "iid", 1, batched=True).error > 1e-3
    assert not check_verifier(mutant, 1, Budget(max_samples=500)).exact["distribution"].lossless


@pytest.mark.parametrize("name", MUTANTS)
def test_mutants_are_caught_from_their_samples(name: str) -> None:
    drafting, decide = MUTANTS[name]
    mutant = TokenVerifier(name, "independent", decide)
    budget = Budget(max_samples=400_000 if "epsilon" in name else 20_000)
    found = check_sampler(lambda *given: mutant.sample(*given, check=False)[0], drafting, 2, budget)
    assert not found.lossless, f"e-value {found.e_value} after {found.samples} samples"


def one_uniform_for_all(target: Tensor, draft: Tensor, tokens: Tensor, generator: Generator) -> Tensor:
    """The same random number for every row of a batch."""
    distribution = single.distribution(target, draft, tokens)
    uniform = torch.rand((), dtype=torch.float64, generator=generator)
    return torch.searchsorted(
        distribution.cumsum(-1), uniform.expand(len(distribution), 1) * distribution.sum(-1, keepdim=True), right=True
    )[:, 0]


def one_uniform_for_both(target: Tensor, draft: Tensor, tokens: Tensor, generator: Generator) -> Tensor:
    """The number that rejected the draft also draws the residual."""
    decision = single.decide(target, draft, tokens)
    uniform = torch.rand(len(tokens), dtype=torch.float64, generator=generator)
    mass = reject_residual(target, draft[:, 0]).cumsum(-1)
    anew = torch.searchsorted(mass, uniform[:, None] * mass[:, -1:], right=True)[:, 0]
    return torch.where(uniform < decision.accept[:, 0], tokens[:, 0], anew)


def coarse_uniform(target: Tensor, draft: Tensor, tokens: Tensor, generator: Generator) -> Tensor:
    """Random numbers of six bits, as a careless half-precision kernel has them."""
    distribution = single.distribution(target, draft, tokens).cumsum(-1)
    uniform = torch.randint(64, (len(distribution), 1), generator=generator) / 64
    return torch.searchsorted(distribution, uniform.double(), right=True)[:, 0]


@pytest.mark.parametrize("mutant", [one_uniform_for_all, one_uniform_for_both, coarse_uniform])
def test_mutants_of_the_random_numbers_are_caught(mutant: Callable[..., Tensor]) -> None:
    assert not check_sampler(mutant, "iid", 1).lossless


def by_text(distribution: Tensor, tokens: Tensor) -> dict[tuple[int, ...], float]:
    """The probability of each emitted text: a prefix of the path and one more token."""
    rows = enumerate(distribution.tolist())
    return {(*tokens[0, :i].tolist(), y): chance for i, row in rows for y, chance in enumerate(row)}


def bonus_from_the_draft(target: Tensor, draft: Tensor, tokens: Tensor) -> dict[tuple[int, ...], float]:
    """A path that stands to its end is followed by a token of the draft."""
    distribution = single_path.distribution(target[0], draft[0], tokens[0])
    distribution[-1] = distribution[-1].sum() * draft[0, -1]
    return by_text(distribution, tokens)


def bonus_of_the_last_position(target: Tensor, draft: Tensor, tokens: Tensor) -> dict[tuple[int, ...], float]:
    """The target's distribution one position too early."""
    return bonus_from_the_draft(target, torch.cat([draft[:, :-1], target[:, -2:-1]], 1), tokens)


def survivors_not_filtered(target: Tensor, draft: Tensor, tokens: Tensor) -> dict[tuple[int, ...], float]:
    """Sequences that left the emitted text still bring their next tokens."""
    same_first = tokens.clone()
    same_first[:, 0] = tokens[0, 0]
    return sequences_distribution(specinfer, target, draft, same_first, check=False)


def block_without_its_residual(target: Tensor, draft: Tensor, tokens: Tensor) -> dict[tuple[int, ...], float]:
    """Block verification that stops as it should and then draws as token verification does."""
    block = VERIFIERS["block"]
    assert isinstance(block, PathVerifier)
    mixed = dataclasses.replace(
        block, decide=lambda *given: dataclasses.replace(block.decide(*given), weight=single_path.decide(*given).weight)
    )
    return by_text(mixed.distribution(target[0], draft[0], tokens[0]), tokens)


def whole_path_by_its_own_ratio(target: Tensor, draft: Tensor, tokens: Tensor) -> dict[tuple[int, ...], float]:
    """HSD (arXiv 2601.05724) as its published simulation judges the last token: by ``Q/P`` of the whole path, the cap left out there."""
    block = VERIFIERS["block"]
    assert isinstance(block, PathVerifier)
    decision = block.decide(target[:1], draft[:1], tokens[:1])
    ratio = target[0, :-1].gather(-1, tokens[0][:, None]) / draft[0].gather(-1, tokens[0][:, None])
    stands = ratio.prod().clamp_max(1)
    earlier = decision.stop[0, :-1] * (1 - stands) / (1 - decision.stop[0, -1]).clamp_min(1e-300)
    mutant = dataclasses.replace(decision, stop=torch.cat([earlier, stands[None]])[None])
    return by_text(
        dataclasses.replace(block, decide=lambda *_: mutant).distribution(target[0], draft[0], tokens[0]), tokens
    )


def spectr_gbv(
    target: Tensor, draft: Tensor, tokens: Tensor, as_published: bool = True
) -> dict[tuple[int, ...], float]:
    """SpecTr-GBV (arXiv 2604.25925) as its public code judges drafts of one token: in turn, each with the chance that it would have on its own."""
    (q, _), (p,), drafts = target[0], draft[0], len(tokens)
    ratio = (p / q).clamp_max(1)
    accept = q * (1 - (1 - ratio) ** drafts) / (1 - (1 - p) ** drafts)
    residual = q * (1 - ratio**drafts if as_published else (1 - ratio) ** drafts)
    chances, rejected = dict[tuple[int, ...], float](), 1.0
    for token in tokens[:, 0].tolist():
        chances[(token,)] = chances.get((token,), 0) + rejected * float(accept[token])
        rejected *= 1 - float(accept[token])
    for token, share in enumerate((residual / residual.sum()).tolist()):
        chances[(token,)] = chances.get((token,), 0) + rejected * share
    return chances


@pytest.mark.parametrize("as_published", [True, False])
def test_the_public_code_of_spectr_gbv_is_not_lossless(as_published: bool) -> None:
    """Nor with the residual of its own formula; with one draft it is plain rejection sampling."""
    rule = functools.partial(spectr_gbv, as_published=as_published)
    assert check_sequence_distribution(rule, "iid", 3, 1, 1).error < 1e-12
    assert check_sequence_distribution(rule, "iid", 3, 1, 2).error > 1e-3


@pytest.mark.parametrize(
    ("mutant", "drafts"),
    [
        (bonus_from_the_draft, 1),
        (bonus_of_the_last_position, 1),
        (block_without_its_residual, 1),
        (whole_path_by_its_own_ratio, 1),
        (survivors_not_filtered, 2),
    ],
)
def test_mutants_of_sequences_are_caught(mutant: Callable[..., dict[tuple[int, ...], float]], drafts: int) -> None:
    assert check_sequence_distribution(mutant, "iid", 3, 2, drafts).error > 1e-3


def test_faults_that_cancel_over_the_drafted_sequences_are_caught() -> None:
    """One drafted token gives too much and another too little, so that the sum over the drafts is the target's."""

    def shifted(target: Tensor, draft: Tensor, tokens: Tensor) -> dict[tuple[int, ...], float]:
        chances = sequences_distribution(specinfer, target, draft, tokens)
        drafted = int(tokens[0, 0])
        if drafted < 2:
            shift = 0.01 / float(draft[0, 0, drafted])
            chances[(2,)] = chances.get((2,), 0) + (shift if drafted else -shift)
        return chances

    assert check_sequence_distribution(shifted, "iid", 3, 1, 1).error > 1e-3


@pytest.mark.parametrize("mutant", [bonus_from_the_draft, bonus_of_the_last_position])
def test_mutants_of_sequences_are_caught_from_their_samples(
    mutant: Callable[..., dict[tuple[int, ...], float]],
) -> None:
    def sample(target: Tensor, draft: Tensor, tokens: Tensor, generator: Generator) -> list[tuple[int, ...]]:
        emitted = []
        for row in range(len(tokens)):
            distribution = mutant(target[row], draft[row], tokens[row])
            chances = torch.tensor(list(distribution.values()), dtype=torch.float64)
            emitted.append(list(distribution)[int(draw(chances, 1, generator))])
        return emitted

    assert not check_sequence_sampler(sample, "iid", 3, 2, 1).lossless


def test_a_tree_whose_drafts_are_judged_in_another_order_is_caught() -> None:
    """Traversal verification that judges drafts a, b, a as a, a, b: with two drafts that is the same."""

    def grouped(target: Tensor, draft: Tensor, tokens: Tensor) -> list[Stop]:
        first = {token: place for place, token in reversed(list(enumerate(tokens[:, 0].tolist())))}
        order = sorted(range(len(tokens)), key=lambda place: first[int(tokens[place, 0])])
        stops = traversal.stops(target[order], draft[order], tokens[order])
        return [dataclasses.replace(stop, path=order[stop.path]) for stop in stops]

    mutant = dataclasses.replace(traversal, stops=grouped)
    budget = Budget(max_samples=500)
    assert check_verifier(mutant, 2, budget).lossless
    assert check_verifier(mutant, 3, budget).exact["wide trees"].error > 1e-3


def test_a_distribution_that_is_none_is_caught() -> None:
    assert check_distribution(lambda q, p, x: q * 2, "iid", 1).error == pytest.approx(1)
    assert check_distribution(lambda q, p, x: q * torch.nan, "iid", 1).error == math.inf
    # It averages to the target, but gives negative probabilities.
    tilted = check_distribution(lambda q, p, x: q + 5 * (torch.nn.functional.one_hot(x[0], 4) - p[0]), "iid", 1)
    assert tilted.error > 0.1
    for wrong in (lambda q, p, x: q[None], lambda q, p, x: q[:1], lambda q, p, x: torch.cat([q, q])):
        with pytest.raises(UserError, match="the distribution has shape"):
            check_distribution(wrong, "iid", 1)


def test_a_path_verifier_that_divides_by_an_empty_residual_is_caught() -> None:
    """Block verification as its paper writes it is NaN where both models agree. No context of the random models excluded a token or agreed."""

    def decide(target: Tensor, draft: Tensor, tokens: Tensor) -> PathDecision:
        weight = block.decide(target, draft, tokens).weight
        excess = (weight[:, :-1, None] * target[:, :-1] - draft).clamp_min(0).sum(-1)
        keep = torch.cat([excess / (excess + 1 - weight[:, :-1]), weight[:, -1:]], -1)
        later = torch.cat([(1 - keep[:, 1:]).flip(-1).cumprod(-1).flip(-1), torch.ones_like(keep[:, :1])], -1)
        return PathDecision(keep * later, weight)

    verdict = check_verifier(PathVerifier("mutant", decide), 1, Budget(max_samples=500))
    assert verdict.exact["sequence distribution"].lossless
    assert verdict.exact["zeros and ties"].error == math.inf


def test_a_formula_of_another_verifier_is_caught(capsys: pytest.CaptureFixture[str]) -> None:
    """Tables would have shown the acceptance of the other one."""
    mine = dataclasses.replace(k_seq, closed_form=specinfer.closed_form, survivors=None)
    with pytest.raises(UserError, match=r"its closed_form is 0.\d+ from what its decisions give \("):
        command._report("mine", conformance.Conformance({}, {}, check_formulas(mine, 2)))
    wrong = dataclasses.replace(k_seq, survivors=specinfer.survivors)
    assert check_formulas(wrong, 2)["survivors"].error > 1e-3
    assert "closed_form           exact           20 tables" in capsys.readouterr().out


@pytest.mark.parametrize("name", [n for n in VERIFIERS if n != "importance"])
def test_the_projects_verifiers_pass(name: str) -> None:
    samples = 500 if name == "gls" or name in TREE_VERIFIERS else 2000  # these compute each row by itself
    verdict = check_verifier(VERIFIERS[name], 2, Budget(max_samples=samples))
    assert verdict.lossless
    assert max(found.error for found in verdict.exact.values()) < 2e-14
    assert all(found.samples >= samples for found in verdict.sampled.values())
    assert set(verdict.formulas) == {
        what for what in ("closed_form", "survivors") if getattr(VERIFIERS[name], what, None)
    }
    assert all(found.error < 1e-11 for found in verdict.formulas.values())


def test_all_tests_together_keep_to_the_rate_of_false_alarms(monkeypatch: pytest.MonkeyPatch) -> None:
    rates = []
    for name in ("check_sampler", "check_sequence_sampler"):
        monkeypatch.setattr(conformance, name, lambda *given: rates.append(given[-1].false_alarm))
    check_verifier(single, 1, Budget(false_alarm=0.02))
    assert len(rates) == 2
    assert sum(rates) == pytest.approx(0.02)
    check_verifier(single_path, 1, Budget(false_alarm=0.02))
    assert rates[2:] == [0.02]


@pytest.mark.parametrize("name", ["greedy", "k_seq"])
def test_many_drafts_are_tested_or_refused(name: str) -> None:
    assert check_verifier(VERIFIERS[name], 4, Budget(max_samples=500)).lossless
    with pytest.raises(UserError, match="7 drafts make 327680 tuples in 20 tables"):
        check_distribution(lambda q, p, x: q, "iid", 7)
    with pytest.raises(UserError, match="6 drafts of 2 tokens out of 3 make 531441 sets"):
        check_sequence_distribution(lambda q, p, x: {}, "iid", 3, 2, 6)


def test_a_bet_is_fair_at_any_distribution_after_any_history() -> None:
    """The mean payoff under the distribution is 1, to rounding: that is what makes wealth a martingale."""
    generator = torch.Generator().manual_seed(4)
    distributions = torch.rand(6, 5, dtype=torch.float64, generator=generator)
    distributions = distributions / distributions.sum(-1, keepdim=True)
    history = torch.randint(40, (6, 5), generator=generator).double()
    mean = torch.zeros(6, dtype=torch.float64)
    payoffs = []
    for outcome in range(5):
        evidence = Evidence(history.clone(), history.flip(-1).clone(), torch.zeros(6, dtype=torch.float64))
        evidence.update(distributions[:, None], torch.full((6, 1), outcome))
        payoffs.append(evidence.log_wealth.exp())
        mean += distributions[:, outcome] * payoffs[-1]
    torch.testing.assert_close(mean, torch.ones_like(mean), rtol=0, atol=1e-12)
    assert float(torch.stack(payoffs).std()) > 0.1


def test_false_alarms_keep_to_their_rate() -> None:
    """1,000 null runs of the whole procedure on tables, watched after every block, at a rate of 5 %."""
    rate, runs = 0.05, 1000
    cases = [
        case for case in tables("iid", 2) if case.name in ("equal distributions", "random 0", "zeros in the draft")
    ]
    highest = torch.zeros(runs, dtype=torch.float64)
    sample = partial(_sampled, single)
    steps = list(sampler_wealth(sample, "iid", cases, Budget(max_samples=400), runs))
    for wealth, _ in steps:
        highest = highest.maximum(wealth)
    assert steps[-1][1] == 400
    alarms = int((highest >= 1 / rate).sum())
    assert alarms <= binom.ppf(0.9999, runs, rate)
    # The bets are real: some run grew rich before it lost, and the mean wealth is that of a fair game.
    assert float(highest.max()) > 5
    assert float(steps[-1][0].mean()) == pytest.approx(1, abs=0.5)


def _sampled(verifier: TokenVerifier, *given: Tensor | Generator) -> Tensor:
    return verifier.sample(*given, check=False)[0]  # type: ignore[arg-type]


def test_false_alarms_keep_to_their_rate_on_changing_distributions() -> None:
    """1,000 null streams whose target distribution changes at every token, as a text's does."""
    rate, streams = 0.05, 1000
    generator = torch.Generator().manual_seed(1)
    gamblers = Gamblers(streams, 8)
    highest = torch.zeros(streams, dtype=torch.float64)
    for _ in range(12):
        probs = (torch.randn(streams, 32, 8, dtype=torch.float64, generator=generator) * 2).softmax(-1)
        gamblers.update(probs, draw(probs, 1, generator)[..., 0])
        highest = highest.maximum(gamblers.wealth())
    assert int((highest >= 1 / rate).sum()) <= binom.ppf(0.9999, streams, rate)
    assert float(highest.max()) > 2


def text(tokens: int, bend: float) -> Iterator[tuple[Tensor, int]]:
    """A stream over 50 tokens whose distributions change; ``bend`` sharpens what is emitted."""
    generator = torch.Generator().manual_seed(2)
    for _ in range(tokens):
        logits = torch.randn(50, dtype=torch.float64, generator=generator) * 2
        yield logits.softmax(-1), int(draw((logits * bend).softmax(-1), 1, generator))


def sample_file(folder: Path, tokens: int) -> Path:
    """A file of samples from a lossless stream."""
    rows = [{"target_probs": probs.tolist(), "token": token} for probs, token in text(tokens, bend=1.0)]
    (folder / "samples.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder / "samples.jsonl"


def test_a_stream_of_samples() -> None:
    assert check_samples(text(3000, bend=1.0)).lossless
    found = check_samples(text(3000, bend=1.3))  # no token is favoured, only high ranks are
    assert not found.lossless
    assert found.samples < 3000, "the test must stop at its alarm"


def test_an_impossible_token_is_proof() -> None:
    distribution = torch.tensor([0.5, 0.5, 0.0], dtype=torch.float64)
    found = check_samples([(distribution, 0), (distribution, 2)])
    assert found.e_value == math.inf
    assert not found.lossless


def test_tokens_that_repeat_each_other_are_caught() -> None:
    """Every token twice: each alone follows its distribution, given the one before it does not."""
    distribution = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64)
    tokens = draw(distribution, 300, torch.Generator().manual_seed(3)).repeat_interleave(2)
    assert not check_samples((distribution, int(token)) for token in tokens).lossless


@pytest.mark.parametrize(
    ("samples", "message"),
    [
        ([(torch.tensor([0.5, 0.5]), 2)], "outside the vocabulary"),
        ([(torch.tensor([0.5, 0.5]), 0), (torch.tensor([1.0]), 0)], "different sizes"),
        ([(torch.tensor([0.5, 0.4]), 0)], "sums to 0.9"),
    ],
)
def test_bad_samples_are_refused(samples: list[tuple[Tensor, int]], message: str) -> None:
    with pytest.raises(UserError, match=message):
        check_samples(samples)


def test_too_many_distinct_drafts_for_the_tables() -> None:
    with pytest.raises(UserError, match="no table has 5 tokens"):
        check_sampler(partial(_sampled, rrs), "without_replacement", 5)


# --- the command -----------------------------------------------------------------------------------------------------


def lossless_distribution(target: Tensor, draft: Tensor, tokens: Tensor) -> Tensor:
    return single.distribution(target, draft, tokens)


def lossy_distribution(target: Tensor, draft: Tensor, tokens: Tensor) -> Tensor:
    return torch.nn.functional.one_hot(tokens[0], len(target)).double()


def nan_distribution(target: Tensor, draft: Tensor, tokens: Tensor) -> Tensor:
    return (target - draft[0]).clamp_min(0) / (target - draft[0]).clamp_min(0).sum()


def writing_distribution(target: Tensor, draft: Tensor, tokens: Tensor) -> Tensor:
    return target.copy_(torch.nn.functional.one_hot(tokens[0], len(target)))


def writing_sampler(target: Tensor, draft: Tensor, tokens: Tensor, generator: Generator) -> Tensor:
    target.copy_(torch.nn.functional.one_hot(tokens[:, 0], target.shape[1]))
    return tokens[:, 0]


def short_distribution(target: Tensor, draft: Tensor, tokens: Tensor) -> Tensor:
    return target[:-1]


def leaving_distribution(target: Tensor, draft: Tensor, tokens: Tensor) -> Tensor:
    raise SystemExit(0)


def sample_one(target: Tensor, draft: Tensor, tokens: Tensor, generator: Generator) -> Tensor:
    return single.sample(target, draft, tokens, generator)[0]


def sample_stream() -> Iterator[tuple[list[float], int]]:
    return (([0.25, 0.75], token) for token in random.Random(0).choices([0, 1], [0.25, 0.75], k=400))


@pytest.mark.parametrize(
    ("spec", "form"),
    [
        ("tests.conformance.test_conformance:lossless_distribution", "distribution"),
        ("tests.conformance.test_conformance:sample_one", "sampler"),
        ("tests.conformance.test_conformance:sample_stream", "samples"),
        ("draftlab.core.verify.single:single", "distribution"),
        ("block", "distribution"),
    ],
)
def test_command_on_verifiers(spec: str, form: command.Form, capsys: pytest.CaptureFixture[str]) -> None:
    command.run(spec, form, "iid", 2, Budget(max_samples=500))
    assert capsys.readouterr().out.endswith(f"{spec}: lossless\n")


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("tests.conformance.test_conformance:lossy_distribution", "is not lossless: distribution failed"),
        ("tests.conformance.test_conformance:nan_distribution", r"distribution failed \(it returned NaN"),
        ("nobody", "no verifier named 'nobody'"),
        ("./mine:law", "no verifier named './mine:law'"),
        ("./mine.py:law", r"no such file: ./mine.py \(give its path from /"),
        (":law", "no verifier named ':law'"),
        ("tests.conformance.test_conformance:absent", "cannot load"),
        ("no_such_module:distribution", "cannot load"),
        ("draftlab:__version__", "is a str"),
    ],
)
def test_command_refuses(spec: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        command.run(spec, "distribution", "iid", 2, Budget())


@pytest.mark.parametrize(
    ("function", "form", "message"),
    [
        ("writing_distribution", "distribution", ".py: {spec}: the verifier wrote into its arguments"),
        ("writing_sampler", "sampler", ".py: {spec}: the verifier wrote into its arguments"),
        ("short_distribution", "distribution", r".py: {spec}: the distribution has shape \(3,\)"),
        ("leaving_distribution", "distribution", r".py:\d+: {spec} raised SystemExit: 0"),
    ],
)
def test_a_function_that_breaks_its_contract_is_named_with_its_file(
    function: str, form: command.Form, message: str
) -> None:
    """The first two passed for lossless: what they wrote was what their output was compared with."""
    spec = f"tests.conformance.test_conformance:{function}"
    with pytest.raises(UserError, match=message.format(spec=spec)):
        command.run(spec, form, "iid", 2, Budget(max_samples=500))


@pytest.mark.parametrize("form", ["distribution", "sampler", "samples"])
@pytest.mark.parametrize("function", ["lossless_distribution", "sample_one", "sample_stream"])
def test_a_function_of_another_form_is_told_how_it_is_called(form: command.Form, function: str) -> None:
    own = {"lossless_distribution": "distribution", "sample_one": "sampler", "sample_stream": "samples"}[function]
    if form != own:
        with pytest.raises(UserError, match=rf"{function}: .*it was called as {form}\("):
            command.run(f"tests.conformance.test_conformance:{function}", form, "iid", 2, Budget())


def test_a_verifier_is_tested_with_at_least_one_draft() -> None:
    with pytest.raises(UserError, match="num_drafts is 0"):
        command.run("single", "distribution", "iid", 0, Budget())


def module_of(text: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of a module of one's own with this text."""
    name = f"mine_{folder.name}_{len(list(folder.iterdir()))}"
    (folder / f"{name}.py").write_text(text)
    monkeypatch.syspath_prepend(folder)
    return name


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "import torch\n\nlaw = torhc.softmax\n",
            r"{file}:3: cannot load '{spec}': NameError: name 'torhc' is not defined",
        ),
        (
            "import no_such_package\n",
            r"{file}:1: cannot load '{spec}': ModuleNotFoundError: No module named 'no_such_package'",
        ),
        ("import sys\nsys.exit(0)\n", r"{file}:2: cannot load '{spec}': SystemExit: 0"),
        ("def law(:\n", r"cannot load '{spec}': SyntaxError: .*{module}\.py, line 1"),
    ],
)
def test_a_module_that_fails_as_it_is_loaded_names_its_line(
    text: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = module_of(text, tmp_path, monkeypatch)
    file, spec = re.escape(f"{tmp_path / module}.py"), f"{module}:law"
    with pytest.raises(UserError, match=message.format(file=file, spec=spec, module=module)):
        command.run(spec, "distribution", "iid", 2, Budget())


def test_an_error_in_one_s_own_verifier_names_its_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "def boom(target_probs, draft_probs, tokens):\n    return 1 / 0\n"
    module = module_of(text, tmp_path, monkeypatch)
    with pytest.raises(UserError, match=r"boom raised ZeroDivisionError: division by zero") as error:
        verify_lossless(verifier=f"{module}:boom")
    assert (error.value.file, error.value.line) == (str(tmp_path / f"{module}.py"), 2)


OWN = """\
import torch
from draftlab.core.verify.path import PathDecision, PathVerifier
from draftlab.core.verify.single import single
from draftlab.core.verify.token import Decision, TokenVerifier
from draftlab.core.verify.traversal import traversal
from draftlab.core.verify.tree import Stop, TreeVerifier

def decide(target_probs, draft_probs, tokens):
    right = single.decide(target_probs, draft_probs, tokens)
    {body}

mine = TokenVerifier("mine", "{drafting}", decide)

def along(target_probs, draft_probs, tokens):
    whole = target_probs[..., 0] * 0 + 1
    {body}

path = PathVerifier("path", along)

def stops(target_probs, draft_probs, tokens):
    right = traversal.stops(target_probs, draft_probs, tokens)
    {body}

tree = TreeVerifier("tree", "{drafting}", stops)

def nothing(target_probs, draft_probs, tokens):
    pass

def samples():
    yield 1

def shares():
    yield [0.5, 0.5], 0.9
"""


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("return 1 / 0", r"py:10: .*mine raised ZeroDivisionError: division by zero"),
        ("return right.accept", r"mine: decide returned torch.float64 of shape \(4, 1\) \(return a Decision"),
        ("return None", "mine: decide returned NoneType"),
        ("return Decision(right.accept.float(), right.residual)", r"accept is torch.float32 .*give torch.float64 of"),
        ("return Decision(right.accept[:, 0], right.residual)", r"accept is torch.float64 of shape \(4,\) .*\(4, 1\)"),
        ("return Decision(right.accept, lambda rows: right.residual(rows)[:, 0])", r"residual is .*\(give .* \(4, 4\)"),
        ("return Decision(right.accept, lambda rows: None)", "residual is NoneType"),
    ],
)
def test_one_s_own_verifier_is_told_what_it_returned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: str, message: str
) -> None:
    with pytest.raises(UserError, match=message):
        verify_lossless(verifier=_own(tmp_path, monkeypatch, body), num_drafts=1)


@pytest.mark.parametrize(
    ("name", "body", "message"),
    [
        ("path", "return None", "decide returned NoneType .return a PathDecision"),
        ("path", "return PathDecision(whole.float(), whole)", r"stop is torch.float32 of .*\(give torch.float64 of"),
        ("path", "return PathDecision(whole, whole[:, 1:])", r"weight is .* shape \(1, 3\) \(give .* \(1, 4\)"),
        ("path", "return PathDecision(whole, 1)", "weight is int"),
        ("tree", "return None", "stops returned NoneType .return a list of Stop"),
        ("tree", "return []", r"stops returned list \(return a list of Stop, with at least one"),
        ("tree", "return [right[0], 1]", "stops returned list of Stop, int"),
        ("tree", "return [Stop(None, 0, 0, right[0].weights)]", "a Stop has chance None, path 0 and length 0"),
        ("tree", "return [Stop(1.0, 2, 0, right[0].weights)]", r"path 2 and length 0 \(give .* path from 0 to 1 and"),
        ("tree", "return [Stop(1.0, 0, 3, right[0].weights)]", "path 0 and length 3 .* length from 0 to 2"),
        ("tree", "return [Stop(1.0, 0, 0, right[0].weights[1:])]", r"weights is .* shape \(2,\) \(give .* \(3,\)"),
        ("tree", "return [Stop(1.0, 0, 0, right[0].weights.float())]", "weights is torch.float32"),
        ("tree", "return [Stop(1.0, 0, 0, 0.5)]", "weights is float"),
    ],
)
def test_one_s_own_verifier_of_a_path_or_a_tree_is_told_what_it_returned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, body: str, message: str
) -> None:
    spec = _own(tmp_path, monkeypatch, body).replace(":mine", f":{name}")
    with pytest.raises(UserError, match=rf"\.py:\d+: {spec}: .*{message}"):
        verify_lossless(verifier=spec)


@pytest.mark.parametrize(("name", "form"), [("nothing", "distribution"), ("samples", "samples"), ("shares", "samples")])
def test_what_cannot_be_used_is_blamed_on_its_object(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, form: command.Form
) -> None:
    spec = _own(tmp_path, monkeypatch, "return right").replace(":mine", f":{name}")
    with pytest.raises(UserError, match=rf"{spec} returned something unusable: \w+Error: "):
        verify_lossless(verifier=spec, form=form)


def test_a_right_verifier_of_one_s_own_passes_and_an_unknown_drafting_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    verify_lossless(verifier=_own(tmp_path, monkeypatch, "return right"), num_drafts=1, max_samples=500)
    with pytest.raises(UserError, match=r"verifier mine: unknown drafting 'idd' \(allowed: iid, independent, "):
        verify_lossless(verifier=_own(tmp_path, monkeypatch, "return right", "idd"))
    with pytest.raises(UserError, match="verifier tree: unknown drafting 'idd'"):
        dataclasses.replace(traversal, name="tree", drafting="idd")  # type: ignore[arg-type]


def _own(folder: Path, monkeypatch: pytest.MonkeyPatch, body: str, drafting: str = "iid") -> str:
    """A module with verifiers of one's own, and the name of one of them."""
    return module_of(OWN.format(body=body, drafting=drafting), folder, monkeypatch) + ":mine"


def test_a_failure_of_a_built_in_verifier_is_not_the_user_s(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(VERIFIERS, "block", dataclasses.replace(VERIFIERS["block"], decide=lambda *given: 1 / 0))
    with pytest.raises(ZeroDivisionError):
        verify_lossless(verifier="block")


def test_a_new_verifier_of_the_registry_is_told_what_it_returned(monkeypatch: pytest.MonkeyPatch) -> None:
    def in_float32(*given: Tensor) -> Decision:
        return Decision(single.decide(*given).accept.float(), single.decide(*given).residual)

    monkeypatch.setitem(VERIFIERS, "mine", dataclasses.replace(single, decide=in_float32))
    with pytest.raises(UserError, match=r"mine: accept is torch.float32 of shape .* \(give torch.float64"):
        verify_lossless(verifier="mine")


def test_errors_of_single_precision_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def in_float32(*given: Tensor) -> list[Stop]:
        return [dataclasses.replace(stop, weights=stop.weights.float().double()) for stop in traversal.stops(*given)]

    monkeypatch.setitem(VERIFIERS, "mine", dataclasses.replace(traversal, stops=in_float32))
    with pytest.raises(UserError, match=r"mine is not lossless: .* \(compute in float64"):
        verify_lossless(verifier="mine", max_samples=500)  # the exact test fails


def test_command_on_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = sample_file(tmp_path, 500)
    command.run_on_file(path, Budget())
    assert "samples               sampled        500 tokens" in capsys.readouterr().out
    path.write_text('{"target_probs": [1.0], "token": 0}\n{"token": 0}\n')
    with pytest.raises(UserError, match=r"samples.jsonl:2: not a sample: KeyError"):
        command.run_on_file(path, Budget())
    for probs in ("0.5", "[[0.5, 0.5]]"):
        path.write_text(f'{{"target_probs": {probs}, "token": 0}}\n')
        with pytest.raises(UserError, match=r"samples.jsonl:1: not a sample: .* not a flat list of numbers"):
            command.run_on_file(path, Budget())
    for token in ("0.9", '"0"'):  # no token id, although both could be read as 0
        path.write_text(f'{{"target_probs": [0.5, 0.5], "token": {token}}}\n')
        with pytest.raises(UserError, match=r"samples.jsonl:1: not a sample: TypeError"):
            command.run_on_file(path, Budget())


def test_the_verb_wants_one_thing_to_test(capsys: pytest.CaptureFixture[str]) -> None:
    for given in ({}, {"verifier": "single", "samples": Path("samples.jsonl")}):
        with pytest.raises(UserError, match="give either --verifier or --samples"):
            verify_lossless(**given)  # type: ignore[arg-type]
    verify_lossless(verifier="single", max_samples=200)
    assert capsys.readouterr().out.endswith("single: lossless\n")


@pytest.mark.parametrize("settings", [{"max_samples": 0}, {"false_alarm": 0.0}, {"false_alarm": 1.0}])
def test_a_budget_that_makes_no_sense(settings: dict[str, float]) -> None:
    with pytest.raises(UserError):
        Budget(**settings)  # type: ignore[arg-type]


@pytest.mark.parametrize("tokens", [0, 1, 40, 140])
def test_too_few_samples_to_see_anything_pass_nothing(tokens: int, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"not enough samples: detecting a deviation of 0.25 needs 145"):
        verify_lossless(samples=sample_file(tmp_path, tokens))


def test_enough_samples_pass_and_say_their_power(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    verify_lossless(samples=sample_file(tmp_path, 400))
    assert "detects deviations of 0.14 or more" in capsys.readouterr().out


@pytest.mark.parametrize("deviation", [0.25, 0.1])
@pytest.mark.parametrize("vocab", [2, 8, 64])
def test_the_stated_power_is_had(deviation: float, vocab: int) -> None:
    """Of 40 streams of as many samples as are said to be needed, in which one token gets as much, most raise the alarm."""
    count = samples_needed(deviation, 1e-3)
    generator = torch.Generator().manual_seed(vocab)
    target = torch.full((vocab,), 1 / vocab, dtype=torch.float64)
    emitted = target - target * deviation / (1 - target)
    emitted[0] = target[0] + deviation
    caught = 0
    for _ in range(40):
        tokens = torch.multinomial(emitted, count, replacement=True, generator=generator).tolist()
        caught += not check_samples((target, token) for token in tokens).lossless
    assert caught >= 20, f"{caught} of 40 caught with {count} samples"


@pytest.mark.parametrize("seed", [-1, 1 << 64])
def test_a_seed_that_torch_does_not_take_is_refused(seed: int) -> None:
    with pytest.raises(UserError, match=rf"seed is {seed} \(give 0 to 4294967295\)"):
        Budget(seed=seed)
