"""Tests over drafted sequences: the distribution of the first emitted tokens, with models that depend on the context."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache

import torch
from jaxtyping import Float64, Int64
from torch import Generator, Tensor

from draftlab.conformance.exact import LIMIT, Exact
from draftlab.conformance.sequential import BUDGET, Budget, Sampled, check_samples
from draftlab.conformance.tables import reading
from draftlab.core.sampling import DISTINCT, Drafting, draw
from draftlab.core.verify.joint import joint_distribution
from draftlab.errors import UserError

Context = tuple[int, ...]

SequenceDistribution = Callable[[Tensor, Tensor, Tensor], dict[Context, float]]
"""``(target_probs[drafts, positions, vocab], draft_probs[drafts, path, vocab], tokens[drafts, path])`` -> probability of each emitted tuple"""

SequenceSampler = Callable[[Tensor, Tensor, Tensor, Generator], list[Context]]
"""The same with a batch axis and a generator; the emitted tuple of each row"""


def check_sequence_distribution(
    distribution: SequenceDistribution,
    drafting: Drafting,
    vocab: int,
    draft_len: int,
    num_drafts: int,
    seed: int = 0,
    *,
    sparse: bool = False,
) -> Exact:
    """Compare the exact distribution of the first ``draft_len + 1`` emitted tokens with the target's, over every drafted sequence.

    ``distribution(target_probs[drafts, positions, vocab], draft_probs[drafts, path, vocab], tokens[drafts, path])`` gives the probability of each
    tuple of emitted tokens, which the target then continues. For every drafted sequence these must be probabilities, with sum 1.

    With ``sparse``, models exclude tokens, as top-k and low temperatures do, and target and first draft agree after every second context.
    """
    models = _models(drafting, vocab, draft_len, num_drafts, seed, sparse)
    emitted = torch.zeros((vocab,) * (draft_len + 1), dtype=torch.float64)
    count, improper = 0, torch.zeros((), dtype=torch.float64)
    for drafted in _enumerate_drafts(models, drafting, draft_len):
        target, draft = models.along(drafted.tokens)
        chances = reading(distribution)(target, draft, drafted.tokens)
        values = torch.tensor(list(chances.values()), dtype=torch.float64)
        improper = torch.stack([improper, (values.sum() - 1).abs(), *-values]).max()
        for tokens, chance in chances.items():
            emitted[tokens] += drafted.chance * chance * models.continuation(tokens, draft_len + 1 - len(tokens))
        count += 1
    error = (emitted - models.continuation((), draft_len + 1)).abs().max().maximum(improper)
    return Exact(float(error.nan_to_num(math.inf)), f"{vocab} tokens, length {draft_len}, {num_drafts} drafts", count)


@dataclass(frozen=True)
class _Models:
    """A random target and random drafts: for every context, a distribution of the next token."""

    target: dict[Context, Tensor]
    drafts: list[dict[Context, Tensor]]

    def along(self, tokens: Int64[Tensor, "drafts path"]) -> tuple[Float64[Tensor, "drafts positions vocab"], Tensor]:
        """Target and draft distributions along each drafted sequence."""
        paths = [tuple(path) for path in tokens.tolist()]
        target = [torch.stack([self.target[path[:i]] for i in range(len(path) + 1)]) for path in paths]
        draft = [
            torch.stack([model[path[:i]] for i in range(len(path))])
            for model, path in zip(self.drafts, paths, strict=True)
        ]
        return torch.stack(target), torch.stack(draft)

    def continuation(self, context: Context, length: int) -> Tensor:
        """The target's joint distribution of the next ``length`` tokens."""
        if length == 0:
            return torch.ones((), dtype=torch.float64)
        distribution = self.target[context]
        return torch.stack(
            [chance * self.continuation((*context, y), length - 1) for y, chance in enumerate(distribution)]
        )


def _models(
    drafting: Drafting, vocab: int, draft_len: int, num_drafts: int, seed: int, sparse: bool = False
) -> _Models:
    generator = torch.Generator().manual_seed(seed)
    contexts = [
        context for length in range(draft_len + 1) for context in itertools.product(range(vocab), repeat=length)
    ]

    def model() -> dict[Context, Tensor]:
        weights = torch.rand(len(contexts), vocab, dtype=torch.float64, generator=generator) ** 2
        if sparse:
            kept = num_drafts if drafting in DISTINCT else 1  # at least
            weights *= torch.rand(weights.shape, generator=generator).argsort(-1).argsort(-1) < torch.randint(
                kept, vocab + 1, (len(contexts), 1), generator=generator
            )
        return dict(zip(contexts, weights / weights.sum(-1, keepdim=True), strict=True))

    target, draft = model(), model()
    if sparse:
        target |= {context: draft[context] for context in contexts[::2]}
    return _Models(target, [model() if k and drafting == "independent" else draft for k in range(num_drafts)])


@dataclass(frozen=True)
class _Drafted:
    tokens: Int64[Tensor, "drafts path"]
    chance: float


def _enumerate_drafts(models: _Models, drafting: Drafting, draft_len: int) -> Iterator[_Drafted]:
    """Enumerate all sets of drafted sequences: first tokens are drafted jointly, then each sequence continues on its own.

    **Raises:** ``UserError`` if there are too many.
    """
    first = joint_distribution(torch.stack([model[()] for model in models.drafts]), drafting)
    vocab, drafts = len(models.target[()]), len(models.drafts)
    count = len(first.probs) * vocab ** ((draft_len - 1) * drafts)
    if count > LIMIT:
        what = f"{drafts} drafts of {draft_len} tokens out of {vocab} make {count} sets"
        raise UserError(what, remedy=f"at most {LIMIT} are enumerated: lower num_drafts")
    for begin, chance in zip(first.tokens.tolist(), first.probs.tolist(), strict=True):
        for rest in itertools.product(itertools.product(range(vocab), repeat=draft_len - 1), repeat=drafts):
            paths = [(x, *more) for x, more in zip(begin, rest, strict=True)]
            later = [
                float(m[path[:i]][path[i]])
                for m, path in zip(models.drafts, paths, strict=True)
                for i in range(1, draft_len)
            ]
            if all(later):  # else these sequences are never drafted
                yield _Drafted(torch.tensor(paths), chance * math.prod(later))


def check_sequence_sampler(
    sample: SequenceSampler, drafting: Drafting, vocab: int, draft_len: int, num_drafts: int, budget: Budget = BUDGET
) -> Sampled:
    """Draft sequences, verify them, and let the target continue to ``draft_len + 1`` tokens: each result is one draw from their joint distribution."""
    models = _models(drafting, vocab, draft_len, num_drafts, budget.seed)
    generator = torch.Generator().manual_seed(budget.seed)
    drafted = list(_enumerate_drafts(models, drafting, draft_len))
    target, draft = (
        torch.stack(distributions)
        for distributions in zip(*[models.along(each.tokens) for each in drafted], strict=True)
    )
    tokens = torch.stack([each.tokens for each in drafted])
    chances = torch.tensor([each.chance for each in drafted], dtype=torch.float64)
    joint = models.continuation((), draft_len + 1)
    places = torch.arange(joint.numel()).view(joint.shape)

    @cache
    def rest(emitted: Context) -> Tensor:
        return models.continuation(emitted, draft_len + 1 - len(emitted)).flatten()

    def stream() -> Iterator[tuple[Tensor, int]]:
        while True:
            rows = draw(chances, 256, generator)
            for emitted in reading(sample)(target[rows], draft[rows], tokens[rows], generator):
                yield joint.flatten(), int(places[emitted].flatten()[draw(rest(emitted), 1, generator)])

    return check_samples(itertools.islice(stream(), budget.max_samples), budget)
