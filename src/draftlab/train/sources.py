"""Whose tokens the distillation loss sees: the target's, the draft's, or a mixture of both (OSD, section 4.2; Table 1).

A source writes answers to some requests, and gives the target's logits at each of their positions and the token that fine-tuning would
learn there (``Samples.labels``). The target's answers are recorded. If the draft takes part, the target scores the answers live, and
``Samples.scored`` counts the tokens that it read for this.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import cast

import torch
from jaxtyping import Float, Int
from torch import Generator, Tensor

from draftlab.core.sampling import most_probable
from draftlab.engine.generate import Observer, generate
from draftlab.engine.recording import TargetPass, on_head
from draftlab.errors import UserError
from draftlab.files.registries import is_own
from draftlab.models import Cache, LanguageModel
from draftlab.train.trimmed_head import kept_by

SHARE = 0.5
"""The share of requests (``mix_request``) or tokens (``mix_token``) that the target writes."""
SCORED_AT_ONCE = 16
"""Requests that the target scores in one forward pass; more waste time on padding."""


@dataclass(frozen=True)
class Scene:
    """What a source can draw on: a draft and recorded answers, and what decodes further answers where the target runs again.

    At most ``at_once`` requests are decoded together (None: all).
    """

    draft: LanguageModel
    recorded: TargetPass
    target: LanguageModel | None = None
    max_new_tokens: int = 0
    eos_ids: Collection[int] = ()
    at_once: int | None = None


@dataclass(frozen=True)
class Samples:
    """Answers to some requests. At each answer position, request after request: the target's logits at temperature 1 (``on_head`` if the
    draft's head is trimmed), and the token that the target wrote there, or its most probable one where the draft wrote."""

    prompts: list[list[int]]
    answers: list[list[int]]
    target_logits: Float[Tensor, "positions columns"]
    labels: Int[Tensor, " positions"]
    scored: int = 0

    def cut(self, sizes: Sequence[int]) -> list[Samples]:
        """Consecutive parts with these numbers of requests."""
        ends = list(itertools.accumulate(sizes))
        prompts, answers = (
            [rows[e - n : e] for e, n in zip(ends, sizes, strict=True)] for rows in (self.prompts, self.answers)
        )
        lengths = [sum(map(len, part)) for part in answers]
        distributions, labels = (torch.split(values, lengths) for values in (self.target_logits, self.labels))
        return [Samples(*part) for part in zip(prompts, answers, distributions, labels, strict=True)]


Source = Callable[[Scene, Sequence[int], Generator], Samples]


def teacher(scene: Scene, requests: Sequence[int], generator: Generator) -> Samples:
    """The recorded answers of the target and its recorded distributions."""
    records = [scene.recorded.answers[request] for request in requests]
    prompts, answers = [record.prompt_ids for record in records], [record.answer_ids for record in records]
    labels = torch.tensor([token for answer in answers for token in answer])
    logits = scene.recorded.target_logits(requests, scene.draft.device, kept_by(scene.draft))
    return Samples(prompts, answers, logits, labels)


def student(scene: Scene, requests: Sequence[int], generator: Generator) -> Samples:
    """Answers that the draft writes as it is now, scored by the target (on-policy distillation)."""
    prompts = [scene.recorded.answers[request].prompt_ids for request in requests]
    return _score(scene, prompts, _write(scene, scene.draft, prompts, generator))


def mix_request(scene: Scene, requests: Sequence[int], generator: Generator) -> Samples:
    """A fair coin decides for each whole answer whether it comes from the target or from the draft."""
    coins = _flip_coins(len(requests), generator)
    parts = {own: [r for r, coin in zip(requests, coins, strict=True) if coin == own] for own in (True, False)}
    drawn = {
        by_target: iter((teacher if by_target else student)(scene, part, generator).cut([1] * len(part)))
        for by_target, part in parts.items()
        if part
    }
    chosen = [next(drawn[coin]) for coin in coins]
    return Samples(
        [sample.prompts[0] for sample in chosen],
        [sample.answers[0] for sample in chosen],
        # Recorded logits and labels are on the CPU.
        torch.cat([sample.target_logits.to(scene.draft.device) for sample in chosen]),
        torch.cat([sample.labels.to(scene.draft.device) for sample in chosen]),
        sum(len(sample.answers[0]) for sample, coin in zip(chosen, coins, strict=True) if not coin),
    )


def mix_token(scene: Scene, requests: Sequence[int], generator: Generator) -> Samples:
    """Answers in which a fair coin decides for every token whether the target or the draft writes it; the target reads along, so it scores them too."""
    target = _target(scene)
    prompts = [scene.recorded.answers[request].prompt_ids for request in requests]
    mixture = _Mixture(target, scene.draft, generator)
    seen: dict[tuple[int, int], list[Tensor]] = {}

    def keep(rows: list[int], position: int, logits: Tensor, tokens: Tensor) -> None:
        labels = torch.where(mixture.coins, tokens, most_probable(mixture.target_logits))
        for row, *logits_and_label in zip(rows, mixture.target_logits, labels, strict=True):
            seen[row, position] = logits_and_label

    answers = _write(scene, mixture, prompts, generator, keep)
    at = [seen[row, position] for row, answer in enumerate(answers) for position in range(len(answer))]
    distributions, labels = (torch.stack(values) for values in zip(*at, strict=True))
    return Samples(prompts, answers, _on_head(scene, distributions), labels, sum(map(len, answers)))


SOURCES: dict[str, Source] = {
    "teacher": teacher,
    "student": student,
    "mix_request": mix_request,
    "mix_token": mix_token,
}
LIVE = frozenset({"student", "mix_request", "mix_token"})
"""Sources for which the target runs again."""


def runs_target(source: str) -> bool:
    """Whether the target runs again for a source, as it may for any of the user's own."""
    return source in LIVE or is_own(source)


def _target(scene: Scene) -> LanguageModel:
    """The target, for a source that runs it."""
    if scene.target is None:
        raise UserError("the sample source runs the target", remedy="add its name to LIVE in train/sources.py")
    return scene.target


def _flip_coins(count: int, generator: Generator) -> list[bool]:
    """Draw whether the target writes each token or answer. torch draws only on the device of the generator."""
    return (torch.rand(count, generator=generator, device=generator.device) < SHARE).tolist()


def _write(
    scene: Scene,
    model: LanguageModel | _Mixture,
    prompts: Sequence[Sequence[int]],
    generator: Generator,
    observe: Observer | None = None,
) -> list[list[int]]:
    """Let a model answer with the settings of the recorded answers."""
    return generate(
        cast(LanguageModel, model),
        prompts,
        max_new_tokens=scene.max_new_tokens,
        eos_ids=scene.eos_ids,
        sampling=scene.recorded.sampling,
        generator=generator,
        batch=scene.at_once,
        observe=observe,
    )


@torch.no_grad()
def _score(scene: Scene, prompts: list[list[int]], answers: list[list[int]]) -> Samples:
    """Let the target read the answers; requests of similar length share a forward pass."""
    target = _target(scene)
    order = sorted(range(len(answers)), key=lambda place: len(prompts[place]) + len(answers[place]))
    logits_of: dict[int, Tensor] = {}
    for start in range(0, len(order), SCORED_AT_ONCE):
        batch = order[start : start + SCORED_AT_ONCE]
        logits = target.answer_logits([prompts[p] for p in batch], [answers[p] for p in batch])
        logits_of |= dict(zip(batch, torch.split(logits.float(), [len(answers[p]) for p in batch]), strict=True))
    distributions = torch.cat([logits_of[place] for place in range(len(answers))])
    labels = most_probable(distributions)
    return Samples(prompts, answers, _on_head(scene, distributions), labels, sum(map(len, answers)))


def _on_head(scene: Scene, logits: Float[Tensor, "positions vocab"]) -> Float[Tensor, "positions columns"]:
    """The columns that the loss of this draft compares."""
    head = kept_by(scene.draft)
    return logits if head is None else on_head(logits, head)


class _Mixture:
    """Target and draft as one model for ``generate``: a fair coin decides whose logits each row has."""

    def __init__(self, target: LanguageModel, draft: LanguageModel, generator: Generator) -> None:
        self.models, self.generator = (target, draft), generator
        self.device, self.vocab_size = target.device, target.vocab_size
        self.context_length = min(target.context_length, draft.context_length)
        self.target_logits, self.coins = torch.empty(0), torch.empty(0, dtype=torch.bool)

    def decoder(self) -> _Mixture:
        return self

    def prefill(self, prompts: Sequence[Sequence[int]], room: int) -> tuple[_MixtureCache, Int[Tensor, " batch"]]:
        caches, tokens = zip(*(model.decoder().prefill(prompts, room) for model in self.models), strict=True)
        return _MixtureCache(self, list(caches)), tokens[0]


class _MixtureCache:
    def __init__(self, model: _Mixture, caches: list[Cache]) -> None:
        self.model, self.caches = model, caches

    @property
    def lengths(self) -> list[int]:
        return self.caches[0].lengths

    def extend(self, tokens: Int[Tensor, "batch new"]) -> Float[Tensor, "batch new vocab"]:
        target, draft = (cache.extend(tokens).float() for cache in self.caches)
        self.model.target_logits = target[:, -1].clone()
        self.model.coins = torch.tensor(_flip_coins(len(tokens), self.model.generator), device=target.device)
        return torch.where(self.model.coins[:, None, None], target, draft)

    def crop(self, lengths: Sequence[int]) -> None:
        for cache in self.caches:
            cache.crop(lengths)

    def take(self, rows: Sequence[int], since: Sequence[int] | None = None) -> None:
        for cache in self.caches:
            cache.take(rows, since)
