"""Online distillation: serve a stream in order and learn from what was served (OSD, Algorithm 1).

The requests between two changes of the served draft form one batch. A request is measured, and its positions to learn from are chosen,
before any update that uses it. Serving means replay, or decoding together with the target (``live``).
"""

from __future__ import annotations

import copy
import hashlib
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from jaxtyping import Bool, Float, Int
from numpy.random import Generator
from torch import Tensor

from draftlab.engine.recording import TargetPass
from draftlab.engine.replay import Agreement, agree_along, at_its_depth, walk
from draftlab.errors import UserError
from draftlab.files.digests import code_digest
from draftlab.models import LanguageModel
from draftlab.models.on_target import OnTarget
from draftlab.progress import progress
from draftlab.train import training
from draftlab.train.learning import Effort, losses_at
from draftlab.train.offline import counts
from draftlab.train.settings import LossPositions, Serving, Updates
from draftlab.train.traffic import Traffic
from draftlab.train.trimmed_head import answer_logits, kept_by


@dataclass(frozen=True)
class Lesson:
    """A request to learn from: its text, and the answer positions ``where`` the loss is taken."""

    answers: TargetPass
    request: int
    where: Int[np.ndarray, " chosen"]

    @property
    def length(self) -> int:
        """Tokens that a draft reads to learn from it."""
        record = self.answers.answers[self.request]
        return len(record.prompt_ids) + len(record.answer_ids)

    @property
    def labels(self) -> Int[Tensor, " chosen"]:
        """The target's tokens at the chosen positions."""
        return torch.tensor(self.answers.answers[self.request].answer_ids)[torch.from_numpy(self.where)]

    def target_logits(
        self, device: torch.device | str = "cpu", head: Int[Tensor, " head"] | None = None
    ) -> Float[Tensor, "chosen columns"]:
        """The target's log-probabilities at the chosen positions, of every token or ``on_head``."""
        return self.answers.target_logits([self.request], device, head)[torch.from_numpy(self.where)]


Server = Callable[[LanguageModel, Traffic, Sequence[int], Serving, Generator], tuple[pd.DataFrame, list[Lesson]]]
"""A function that serves requests with a draft, and returns their counts and their lessons."""


def replay_server(
    draft: LanguageModel, traffic: Traffic, requests: Sequence[int], settings: Updates, rng: Generator
) -> tuple[pd.DataFrame, list[Lesson]]:
    """Serve by replay: one forward pass of the draft, none of the target."""
    agree = agree_along(draft, traffic.answers, requests, batch_size=len(requests))
    return served_by(agree, traffic, requests, settings, rng)


def served_by(
    agree: Agreement, traffic: Traffic, requests: Sequence[int], settings: Updates, rng: Generator
) -> tuple[pd.DataFrame, list[Lesson]]:
    """The counts and lessons of ``requests``, given the draft's agreement with the target."""
    walked = walk(agree, settings.draft_len)
    rows = counts(walked)
    if traffic.answers.sampling.temperature:  # at temperature 0 the flags are 0 or 1 already
        agree = agree.realise(rng)
        walked = walk(agree, settings.draft_len)
    rejected = (walked.reached > 0.5) & (at_its_depth(agree.ratio, walked.starts > 0.5) < 0.5)
    chosen = positions_to_learn(agree.lengths, walked.starts > 0.5, rejected, settings.loss_positions)
    cuts = np.split(chosen, np.cumsum(agree.lengths)[:-1])
    return rows, [Lesson(traffic.answers, r, np.flatnonzero(cut)) for r, cut in zip(requests, cuts, strict=True)]


@dataclass(frozen=True)
class Stretch:
    """Requests ``start`` to ``end``, all served by one state of the draft. At its end the draft ``updates``, an earlier update ``arrives``, or
    the draft is probed.
    """

    start: int
    end: int
    updates: bool
    arrives: bool


def stretches(
    trains: Bool[np.ndarray, " requests"], interval: int, lag: int, probes: Collection[int] = ()
) -> Iterator[Stretch]:
    """Cut a stream after every ``interval``-th request that trains, again ``lag`` requests later, and where the draft is probed."""
    marks = np.flatnonzero(trains & (np.cumsum(trains) % interval == 0)) + 1
    updates, arrivals = set(marks.tolist()), set((marks + lag).tolist())
    start = 0
    for end in sorted(point for point in updates | arrivals | {len(trains), *probes} if point <= len(trains)):
        yield Stretch(start, end, end in updates, end in arrivals)
        start = end


@dataclass
class _Progress:
    """What a run has served and learnt so far, without the weights; ``fresh`` lessons wait for the next update, ``past`` lessons are replayed."""

    rng: Generator
    past: deque[Lesson]
    fresh: list[Lesson] = field(default_factory=list)
    frames: list[pd.DataFrame] = field(default_factory=list)
    effort: Effort = field(default_factory=Effort)

    def notes(self) -> dict[str, Any]:
        """The state as a checkpoint keeps it."""
        self.frames = [pd.concat(self.frames, ignore_index=True)]
        lessons = {
            name: [(one.request, one.where.tolist()) for one in getattr(self, name)] for name in ("fresh", "past")
        }
        rows = {name: values.tolist() for name, values in self.frames[0].items()}
        return {"rows": rows, "rng": self.rng.bit_generator.state, "effort": vars(self.effort), **lessons}

    def restore(self, notes: dict[str, Any], answers: TargetPass) -> None:
        """Continue from the ``notes`` of a checkpoint."""
        self.frames, self.effort = [pd.DataFrame(notes["rows"])], Effort(**notes["effort"])
        self.rng.bit_generator.state = notes["rng"]
        for lessons, kept in ((self.fresh, notes["fresh"]), (self.past, notes["past"])):
            lessons.extend(Lesson(answers, request, np.array(where, dtype=int)) for request, where in kept)


def serve(
    draft: LanguageModel,
    traffic: Traffic,
    settings: Serving,
    *,
    server: Server = replay_server,
    probe: Callable[[int], pd.DataFrame] | None = None,
    probes: Collection[int] = (),
    checkpoint: Path | None = None,
) -> tuple[pd.DataFrame, Effort]:
    """Serve ``traffic`` with ``draft``, which learns on the way; one row of counts per request, with the loss of the update after it.

    With a ``lag``, a copy learns, and its weights reach the served draft that many requests later. After each number of requests in
    ``probes``, and an update that is due there, ``probe`` is called with this number, and its rows are appended. A killed replay without a
    ``lag`` resumes from ``checkpoint``.
    """
    learner = copy.deepcopy(draft) if settings.lag else draft
    optimizer = training.adamw(learner, settings.learning_rate)
    run = _Progress(np.random.default_rng(settings.seed), deque(maxlen=settings.buffer or None))
    pending: deque[dict[str, Tensor]] = deque()
    plan = list(stretches(traffic.trains, settings.update_interval, settings.lag, probes))
    first, notes = 0, dict[str, Any]()
    checkpoint = checkpoint if server is replay_server and not settings.lag else None
    identity = _identity(draft, traffic, settings) if checkpoint else ""
    if checkpoint and (first := training.load_checkpoint(checkpoint, identity, learner, optimizer, notes)):
        run.restore(notes, traffic.answers)
    saved = time.monotonic()
    label = f"{settings.dataset or 'stream'} online"
    for number in progress(range(first, len(plan)), label, total=len(plan), initial=first):
        stretch = plan[number]
        requests = range(stretch.start, stretch.end)
        rows, lessons = server(draft, traffic, requests, settings, run.rng)
        run.frames.append(traffic.numbered(rows, requests).assign(updates=0, update_loss=0.0))
        run.fresh += [lesson for request, lesson in zip(requests, lessons, strict=True) if traffic.trains[request]]
        if stretch.updates:
            _update(learner, optimizer, run, settings)
            if settings.lag:
                pending.append({name: value.detach().clone() for name, value in learner.named_parameters()})
        if stretch.arrives and settings.lag:
            arrived = pending.popleft()
            with torch.no_grad():
                for name, value in draft.named_parameters():
                    value.copy_(arrived[name])
        if probe and stretch.end in probes:
            run.frames.append(probe(stretch.end))
        if checkpoint and time.monotonic() - saved > training.CHECKPOINT_SECONDS:
            training.save_checkpoint(checkpoint, identity, learner, optimizer, number + 1, run.notes())
            saved = time.monotonic()
    if checkpoint:
        checkpoint.unlink(missing_ok=True)
    return pd.concat(run.frames, ignore_index=True), run.effort


def _update(learner: LanguageModel, optimizer: torch.optim.Optimizer, run: _Progress, settings: Serving) -> None:
    """Learn from the fresh lessons and a sample of the past ones, and note it in the row of the last request."""
    past = run.past
    older = run.rng.choice(len(past), min(settings.replay, len(past)), replace=False) if past else np.arange(0)
    lessons = [*run.fresh, *(past[int(place)] for place in older)]
    positions, loss = learn(learner, optimizer, lessons, settings)
    rows = run.frames[-1]
    rows.loc[len(rows) - 1, "updates"] = int(positions > 0)
    rows.loc[len(rows) - 1, "update_loss"] = loss
    run.effort.positions += positions
    tokens = sum(lesson.length for lesson in lessons if len(lesson.where))
    run.effort.tokens += tokens
    run.effort.target_tokens += tokens if isinstance(learner, OnTarget) else 0
    run.effort.updates += positions > 0
    if settings.replay:
        past.extend(run.fresh)
    run.fresh = []


def _identity(draft: LanguageModel, traffic: Traffic, settings: Serving) -> str:
    """The identity of a checkpoint: settings, code, the draft before learning, and the stream."""
    texts = [(record.prompt_ids, record.answer_ids) for record in traffic.answers.answers]
    stream = hashlib.sha256(repr([texts, traffic.request.tolist(), traffic.trains.tolist()]).encode()).hexdigest()
    weights = training.digest(dict(draft.named_parameters()))
    distributions = training.digest_of_recorded(*traffic.answers.tensors.values())
    return f"{settings!r} {code_digest(__name__)} {weights} {stream} {distributions}"


def serve_unchanged(draft: LanguageModel, traffic: Traffic, draft_len: int) -> pd.DataFrame:
    """The rows of ``serve`` for a draft that does not change."""
    rows = counts(walk(agree_along(draft, traffic.answers), draft_len))
    return traffic.numbered(rows, range(len(traffic)))


def learn(
    learner: LanguageModel,
    optimizer: torch.optim.Optimizer,
    lessons: Sequence[Lesson],
    settings: Updates,
) -> tuple[int, float]:
    """One update on the mean loss over all positions of the lessons; returns their number and the loss. Without positions nothing happens.

    ``micro_batch`` lessons (0: all) go through one forward pass.
    """
    lessons = [lesson for lesson in lessons if len(lesson.where)]
    if not lessons:
        return 0, 0.0
    count, size = sum(len(lesson.where) for lesson in lessons), settings.micro_batch or len(lessons)
    parts = (lessons[start : start + size] for start in range(0, len(lessons), size))
    losses = (_losses(learner, part, settings).sum() / count for part in parts)
    return count, training.update(optimizer, losses, settings.clip)


def _losses(learner: LanguageModel, lessons: Sequence[Lesson], settings: Updates) -> Float[Tensor, " chosen"]:
    """The loss at each position of the lessons."""
    records = [lesson.answers.answers[lesson.request] for lesson in lessons]
    begins = np.cumsum([0, *(len(record.answer_ids) for record in records[:-1])])
    where = torch.from_numpy(np.concatenate([b + lesson.where for b, lesson in zip(begins, lessons, strict=True)]))
    prompts, texts = [record.prompt_ids for record in records], [record.answer_ids for record in records]
    logits = answer_logits(learner, prompts, texts, settings.autocast, where)
    head = kept_by(learner)
    target_logits = torch.cat([lesson.target_logits(learner.device, head) for lesson in lessons])
    labels = torch.cat([lesson.labels for lesson in lessons])
    return losses_at(settings.loss, logits, target_logits, labels, head)


def check_interval(traffic: Traffic, settings: Serving) -> None:
    """``UserError`` if the requests that are served end before the first update."""
    if settings.update_interval > traffic.trains.sum():
        raise UserError(
            f"update_interval is {settings.update_interval}, but the stream has {int(traffic.trains.sum())} requests",
            remedy="lower update_interval, or lengthen the stream",
        )


def positions_to_learn(
    lengths: Sequence[int],
    starts: Bool[np.ndarray, " positions"],
    rejected: Bool[np.ndarray, " positions"],
    which: LossPositions,
) -> Bool[np.ndarray, " positions"]:
    """Flags of the answer positions to learn from, for answers of these ``lengths``, one after the other.

    ``starts``: a block starts there; ``rejected``: the drafted token was rejected there. ``which`` positions: ``rejected`` (OSD, Algorithm
    1); ``all``; ``block_end``, where the target added a token to a block, bonus tokens too; ``repository``, one position after each
    ``block_end``, as in OSD's repository.
    """
    if which == "all":
        return np.ones(len(starts), bool)
    if which == "rejected":
        return rejected
    # A block ends just before the next one starts, the last block with its answer.
    last = np.zeros(len(starts), bool)
    last[np.cumsum([length for length in lengths if length]) - 1] = True
    chosen = last | np.append(starts[1:], True)
    return np.append(False, (chosen & ~last)[:-1]) if which == "repository" else chosen


def whole_answers(stream: Traffic, first: int, count: int) -> list[Lesson]:
    """Lessons on every position of ``count`` requests from ``first`` on; at its end the stream starts again."""
    requests = [(first + i) % len(stream) for i in range(count)]
    return [Lesson(stream.answers, r, np.arange(stream.answers.lengths[r])) for r in requests]
