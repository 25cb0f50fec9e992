"""Is a verifier lossless? Exact tests of its distribution, and a sequential test of the tokens that it emits.

Test a distribution (``check_distribution``), a batched sampler (``check_sampler``), any stream of (target distribution, token)
(``check_samples``), or drafted sequences (``check_sequence_distribution``, ``check_sequence_sampler``).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial

from torch import Generator, Tensor

from draftlab.conformance.exact import Exact, check_distribution
from draftlab.conformance.formulas import check_formulas
from draftlab.conformance.sequences import (
    Context,
    SequenceDistribution,
    check_sequence_distribution,
    check_sequence_sampler,
)
from draftlab.conformance.sequential import BUDGET, Budget, Sampled, check_sampler, check_samples
from draftlab.core.sampling import DISTINCT, Drafting
from draftlab.core.verify.path import PathVerifier
from draftlab.core.verify.sequence import Outcome, sequences_distribution, verify_sequences
from draftlab.core.verify.token import TokenVerifier
from draftlab.core.verify.tree import TreeVerifier

__all__ = [
    "Budget",
    "Conformance",
    "Exact",
    "Sampled",
    "check_distribution",
    "check_formulas",
    "check_sampler",
    "check_samples",
    "check_sequence_distribution",
    "check_sequence_sampler",
    "check_verifier",
]


WIDE_TREES = 8
"""Random models with which trees of 3 tokens and depth 1 are tested. With a single one, a verifier may pass by chance."""


@dataclass(frozen=True)
class Conformance:
    """The result of each test, by its name. ``formulas``: how far ``closed_form`` and ``survivors`` are from the enumeration."""

    exact: dict[str, Exact]
    sampled: dict[str, Sampled]
    formulas: dict[str, Exact] = field(default_factory=dict)

    @property
    def lossless(self) -> bool:
        exact = all(result.lossless for result in self.exact.values())
        return exact and all(result.lossless for result in self.sampled.values())


def check_verifier(
    verifier: TokenVerifier | PathVerifier | TreeVerifier, num_drafts: int = 2, budget: Budget = BUDGET
) -> Conformance:
    """Every test: distribution and sampler at one position (token verifiers), distribution and sampler of drafted sequences.

    Tests of samples share the budget's rate of false alarms, so that all of them together keep to it.
    """
    if isinstance(verifier, PathVerifier):
        paths: tuple[Drafting, int, int, int] = ("iid", 3, 3, 1)
        found = _sequences("sequence distribution", partial(_path_distribution, verifier), paths, budget.seed)
        sampled = check_sequence_sampler(partial(_path_sample, verifier), *paths, budget)
        return Conformance(found, {"sequence sampler": sampled})
    drafting = verifier.drafting
    if isinstance(verifier, TreeVerifier):
        trees = (drafting, 3 if num_drafts < 3 else 2, 2, num_drafts)
        results = _sequences("tree distribution", verifier.distribution, trees, budget.seed)
        wide = [
            check_sequence_distribution(verifier.distribution, drafting, 3, 1, num_drafts, seed)
            for seed in range(WIDE_TREES)
        ]
        results["wide trees"] = max(wide, key=lambda result: result.error)
        sampled = check_sequence_sampler(partial(_walk_sample, verifier.sample), *trees, budget)
        return Conformance(results, {"tree sampler": sampled})
    # Distinct drafts need as many tokens; the sets of the others, vocab ** (2 * num_drafts), soon are too many.
    is_distinct = drafting in DISTINCT
    vocab = max(3, num_drafts) if is_distinct or num_drafts < 4 else 2
    half = replace(budget, false_alarm=budget.false_alarm / 2)
    sequences = (drafting, vocab, 2, num_drafts)
    walk = partial(_walk_sample, partial(verify_sequences, verifier))
    return Conformance(
        {
            "distribution": check_distribution(verifier.distribution, drafting, num_drafts, batched=True),
            **_sequences("sequence distribution", partial(sequences_distribution, verifier), sequences, budget.seed),
        },
        {
            "sampler": check_sampler(lambda *given: verifier.sample(*given)[0], drafting, num_drafts, half),
            "sequence sampler": check_sequence_sampler(walk, *sequences, half),
        },
        check_formulas(verifier, num_drafts),
    )


def _sequences(
    name: str, distribution: SequenceDistribution, sizes: tuple[Drafting, int, int, int], seed: int
) -> dict[str, Exact]:
    """The exact test of drafted sequences, and the same with models that exclude tokens and that agree in places."""
    return {
        name: check_sequence_distribution(distribution, *sizes, seed),
        "zeros and ties": check_sequence_distribution(distribution, *sizes, seed, sparse=True),
    }


def _path_distribution(verifier: PathVerifier, target: Tensor, draft: Tensor, tokens: Tensor) -> dict[Context, float]:
    path = tokens[0].tolist()
    rows = verifier.distribution(target[0], draft[0], tokens[0]).tolist()
    return {(*path[:i], y): chance for i, row in enumerate(rows) for y, chance in enumerate(row)}


def _path_sample(
    verifier: PathVerifier, target: Tensor, draft: Tensor, tokens: Tensor, generator: Generator
) -> list[Context]:
    length, token = verifier.sample(target[:, 0], draft[:, 0], tokens[:, 0], generator)
    return [(*path[:i], y) for path, i, y in zip(tokens[:, 0].tolist(), length.tolist(), token.tolist(), strict=True)]


def _walk_sample(
    verify: Callable[[Tensor, Tensor, Tensor, Generator], Outcome],
    target: Tensor,
    draft: Tensor,
    tokens: Tensor,
    generator: Generator,
) -> list[Context]:
    outcome = verify(target, draft, tokens, generator)
    rows = zip(tokens.tolist(), outcome.path.tolist(), outcome.length.tolist(), outcome.token.tolist(), strict=True)
    return [(*paths[path][:length], token) for paths, path, length, token in rows]
