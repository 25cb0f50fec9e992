"""Updates of a draft on answers: the same loop for every sample source and loss."""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from draftlab.core.losses import LOSSES, one_hot_logits
from draftlab.errors import UserError, called
from draftlab.files.digests import code_digest
from draftlab.files.registries import find, is_own, own_code
from draftlab.models import LanguageModel
from draftlab.models.head import columns_of
from draftlab.models.on_target import OnTarget
from draftlab.train import parallel, training
from draftlab.train.settings import Training
from draftlab.train.sources import SOURCES, Samples, Scene, runs_target
from draftlab.train.trimmed_head import answer_logits, kept_by

WARMUP_SHARE = 0.03
"""The share of the steps in which the learning rate rises (OSD's scripts)."""
NO_SAMPLES = Samples([], [], torch.empty(0, 0), torch.empty(0, dtype=torch.long))
"""The share of a process when there are more processes than requests."""


@dataclass
class Effort:
    """The cost of training: updates, answer positions in the loss, tokens read by the draft and by the target, and CPU time."""

    updates: int = 0
    positions: int = 0
    tokens: int = 0
    target_tokens: int = 0
    milliseconds: int = field(default=0, compare=False)

    def __add__(self, other: Effort) -> Effort:
        pairs = zip(dataclasses.astuple(self), dataclasses.astuple(other), strict=True)
        return Effort(*(left + right for left, right in pairs))


def train(
    scene: Scene,
    requests: Sequence[int],
    steps: int,
    settings: Training,
    source: str = "teacher",
    *,
    sample_batch: int = 1,
    checkpoint: Path | None = None,
    watch: Callable[[int], None] = lambda step: None,
    effort: Effort | None = None,
) -> Effort:
    """Run ``steps`` updates of ``scene.draft``, each on ``settings.batch`` of ``requests`` in a seeded order.

    The loss of a step is the mean over all answer positions of its requests, whatever the micro-batches and processes. If the draft writes
    answers, ``sample_batch`` requests are answered at once. ``watch(step)`` is called before each step and its time is not counted. ``effort`` is
    the cost so far. A killed run resumes from ``checkpoint`` and ends with the same weights.
    """
    order = list(orders(requests, settings.batch, steps, settings.seed))
    ahead = max(1, sample_batch // settings.batch) if runs_target(source) else 1
    effort = effort or Effort()
    effort.updates = steps
    drawn: dict[int, Samples] = {}
    # None, so that the first training of a process does not count what is loaded before its first step.
    since: float | None = None

    def losses(step: int) -> Iterator[Tensor]:
        nonlocal since
        effort.milliseconds += round(1e3 * (time.process_time() - since)) if since is not None else 0
        watch(step)
        since = time.process_time()
        if step % ahead == 0:
            parts = [parallel.my_share(part) for part in order[step : step + ahead]]
            # Each process makes its own draws. On a CPU, torch takes 32 bits of a seed.
            seed = settings.seed * 1_000_003 + step + 1_000_000_007 * parallel.number()
            generator = torch.Generator(scene.draft.device).manual_seed(seed)
            share = list(itertools.chain(*parts))
            samples = samples_of(source, scene, share, generator) if share else NO_SAMPLES
            effort.target_tokens += parallel.total(samples.scored)
            drawn.update(enumerate(samples.cut([len(part) for part in parts]), step))
        yield from _terms(scene.draft, drawn.pop(step), settings, effort)

    training.fit(
        scene.draft,
        losses,
        training.Schedule(settings.learning_rate, steps, warmup=int(WARMUP_SHARE * steps)),
        optimizer=training.adamw(scene.draft),
        clip=settings.clip,
        label=f"{settings.dataset} {source} {settings.loss}",
        checkpoint=checkpoint,
        checkpoint_every=ahead,
        identity=_identity(scene, requests, settings) if checkpoint else "",
        notes=vars(effort),
        reduce=parallel.add_up,
    )
    effort.milliseconds += round(1e3 * (time.process_time() - since)) if since is not None else 0
    return effort


def learn_once(model: training.Trainable, part: Path | None, learn: Callable[[Path | None], Effort]) -> Effort:
    """Let ``learn`` train the ``model``, and return the cost; weights and cost are kept in ``part``, where a killed job finds them again.

    ``learn`` gets the place for a checkpoint.
    """
    notes = dict[str, Any]()
    if part and training.load_checkpoint(part, "", model, None, notes):
        return Effort(**notes)
    effort = learn(part and part.with_suffix(".checkpoint"))
    if part:
        training.save_checkpoint(part, "", model, None, 1, vars(effort))
    return effort


def _identity(scene: Scene, requests: Sequence[int], settings: Training) -> str:
    """The identity of a checkpoint: settings, code, the draft before training, and the target's answers that it learns from."""
    records = [scene.recorded.answers[request] for request in requests]
    text = repr([(record.prompt_ids, record.answer_ids) for record in records])
    start = training.digest(dict(scene.draft.named_parameters()))
    distributions = training.digest_of_recorded(*scene.recorded.tensors.values())
    texts = hashlib.sha256(text.encode()).hexdigest()
    own = own_code(settings.model_dump())
    return f"{settings!r} {own} {scene.max_new_tokens} {code_digest(__name__)} {start} {texts} {distributions}"


def _terms(draft: LanguageModel, samples: Samples, settings: Training, effort: Effort) -> Iterator[Tensor]:
    """Yield the loss of one step by micro-batches, each the sum over its positions divided by all positions of the step."""
    count = parallel.total(len(samples.target_logits))
    effort.positions += count
    tokens = parallel.total(sum(map(len, samples.prompts)) + len(samples.target_logits))
    effort.tokens += tokens
    effort.target_tokens += tokens if isinstance(draft, OnTarget) else 0
    size, requests = settings.micro_batch or len(samples.answers), len(samples.answers)
    for part in samples.cut([min(size, requests - start) for start in range(0, requests, size)]) if requests else ():
        logits = answer_logits(draft, part.prompts, part.answers, settings.autocast)
        yield losses_at(settings.loss, logits, part.target_logits, part.labels, kept_by(draft)).sum() / count


def samples_of(source: str, scene: Scene, requests: Sequence[int], generator: torch.Generator) -> Samples:
    """The answers that a source writes to these requests."""
    write = find(source, SOURCES, ("scene", "requests", "generator"))
    samples = called(f"sample source {source}", write, scene, requests, generator)
    if not isinstance(samples, Samples):
        raise UserError(f"sample source {source} returned {type(samples).__name__}", remedy="return Samples")
    answers, positions = len(samples.answers), sum(map(len, samples.answers))
    if not len(samples.prompts) == answers == len(requests):
        what = f"sample source {source} returned {len(samples.prompts)} prompts and {answers} answers"
        raise UserError(what, remedy=f"return one of each for each of the {len(requests)} requests")
    if not len(samples.target_logits) == len(samples.labels) == positions:
        what = (
            f"sample source {source} returned {len(samples.target_logits)} target_logits, {len(samples.labels)} labels"
        )
        raise UserError(what, remedy=f"return one of each for each of the {positions} tokens of its answers")
    return samples


def losses_at(
    name: str,
    logits: Float[Tensor, "*predictions positions head"],
    target_logits: Float[Tensor, "positions columns"],
    labels: Int[Tensor, " positions"],
    kept: Int[Tensor, " head"] | None = None,
) -> Float[Tensor, " positions"]:
    """The loss at each position; fine-tuning uses the tokens as they were written, sampled or not, and no distribution.

    Medusa heads and EAGLE drafts make several predictions of each token; the loss there is their mean.

    If the head is trimmed to the tokens H (``kept``), ``logits`` are the logits of H and ``target_logits`` come from ``on_head``. All other
    tokens are merged into a single token, with probability ``1 - target(H)`` under the target and 0 under the draft. Every loss then equals
    its value over the whole vocabulary up to a constant: a token x outside H adds 0 to KL(draft || target),
    ``beta target(x) log(1 / beta)`` to the JSD and ``target(x) / 2`` to the total variation. Of KL(target || draft),
    ``-sum over x in H of target(x) log draft(x)`` and a constant remain; the gradient is target(H) times that of the divergence between the
    distributions on H.
    """
    target_logits, labels = target_logits.to(logits.device), labels.to(logits.device)
    if name == "hard_label":
        columns = labels if kept is None else columns_of(labels, kept)
        target_logits = one_hot_logits(columns, logits.shape[-1] + (kept is not None))
    if kept is not None:
        logits = F.pad(logits, (0, 1), value=-torch.inf)
    loss = find(name, LOSSES, ("draft_logits", "target_logits"))
    losses = called(f"loss {name}", loss, logits, target_logits)
    if not isinstance(losses, Tensor) or losses.shape != logits.shape[:-1]:
        returned = f"shape {tuple(losses.shape)}" if isinstance(losses, Tensor) else repr(losses)
        remedy = f"return one number per position: shape {tuple(logits.shape[:-1])}"
        raise UserError(f"loss {name} returned {returned}", remedy=remedy)
    if is_own(name) and losses.isnan().any() and not logits.isnan().any():
        remedy = "a logit may be -inf: leave such a token out, as draftlab.core.losses does"
        raise UserError(f"loss {name} returned nan", remedy=remedy)
    if logits.requires_grad and not losses.requires_grad:
        raise UserError(f"loss {name} has no gradient", remedy="compute it from the draft's logits, not detached")
    return losses if losses.dim() == 1 else losses.flatten(0, -2).mean(0)


def orders(requests: Sequence[int], batch: int, steps: int, seed: int) -> Iterator[list[int]]:
    """``steps`` batches: a fresh permutation per epoch; the last batch of an epoch may be short."""
    generator = torch.Generator().manual_seed(seed)
    while steps > 0:
        order = [requests[index] for index in torch.randperm(len(requests), generator=generator).tolist()]
        batches = [order[start : start + batch] for start in range(0, len(order), batch)]
        yield from batches[:steps]
        steps -= len(batches)
