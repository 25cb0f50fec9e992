"""Distillation of a draft from the target's recorded answers: offline over epochs, online while it serves.

Both measure acceptance by replay (``replay``): the target answered once, and never runs again.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float, Int
from torch import Tensor

from draftlab import experiments, training
from draftlab.errors import UserError
from draftlab.experiments import LossPositions
from draftlab.losses import LOSSES
from draftlab.models import LanguageModel, load_model
from draftlab.replay import Agreement, TargetPass, Walk, agree_along, agreement, walk

STATIC_SHARE = 0.1  # of the stream: what the static baseline of OSD Fig. 3 was distilled on
OFFLINE_EPOCHS = 2  # of the offline line in OSD Fig. 3
WARMUP_SHARE = 0.03  # of the steps (OSD's scripts)


# --- offline -----------------------------------------------------------------------------------------------------


def offline(
    settings: experiments.Offline, train: TargetPass, held_out: TargetPass, draft_folder: Path, out: Path
) -> tuple[pd.DataFrame, dict[str, Any]]:
    """Distil the draft in ``draft_folder`` with each seed, and measure it on ``held_out``.

    Rows: ``seed, request, accepted, visited, overlap, overlap_repo, blocks, emitted``. The draft of the first seed is
    saved to ``out/draft``. The record says how many updates ran and how many positions they saw.
    """
    frames, facts = [], {"updates": 0, "positions": 0}
    for seed in settings.seeds:
        draft = load_model(draft_folder)
        if settings.sample_source != "none":
            requests = range(len(train.answers))
            steps = settings.epochs * math.ceil(len(requests) / settings.batch)
            checkpoint = out / f".draft.{seed}.checkpoint.safetensors"
            facts["positions"] += train_on(draft, train, requests, steps, settings, seed=seed, checkpoint=checkpoint)
            facts["updates"] += steps
        if seed == settings.seeds[0]:
            save_draft(draft, draft_folder, out / "draft")
        frames.append(measure(draft, held_out, settings.draft_len).assign(seed=seed))
    return pd.concat(frames, ignore_index=True), facts


def train_on(
    draft: LanguageModel,
    answers: TargetPass,
    requests: Sequence[int],
    steps: int,
    settings: experiments.Training,
    *,
    seed: int,
    checkpoint: Path | None = None,
) -> int:
    """Run ``steps`` updates on recorded answers, each on ``settings.batch`` requests in a seeded order; return the positions seen.

    The loss of a step is the mean over all answer positions of its batch.
    """
    loss_of = LOSSES[settings.loss]
    order = list(_orders(requests, settings.batch, steps, seed))
    seen = 0

    def losses(step: int) -> Iterator[Tensor]:
        nonlocal seen
        draft_logits, target_logits, _ = _logits(draft, answers, order[step])
        seen += len(draft_logits)
        yield loss_of(draft_logits, target_logits).mean()

    training.fit(
        draft,
        losses,
        training.Schedule(settings.learning_rate, steps, warmup=int(WARMUP_SHARE * steps), shape=settings.schedule),
        optimizer=training.adamw(draft),
        clip=settings.clip,
        label=f"{settings.dataset} {settings.loss}",
        checkpoint=checkpoint,
        identity=f"{settings!r} {seed} {len(answers.answers)} {experiments.code_digest(__name__)}",
    )
    return seen


def measure(draft: LanguageModel, answers: TargetPass, draft_len: int) -> pd.DataFrame:
    """Acceptance of a draft along recorded answers: one row per request, numerators and denominators."""
    return _counts(walk(agree_along(draft, answers), draft_len)).assign(request=range(len(answers.answers)))


def save_draft(draft: LanguageModel, original: Path, out: Path) -> None:
    """Write a distilled draft with the tokenizer of the draft that it came from."""
    from draftlab.models import load_tokenizer

    draft.save(out)
    load_tokenizer(original).save(out)


# --- online ------------------------------------------------------------------------------------------------------


def online(
    settings: experiments.Online, stream: TargetPass, held_out: TargetPass, draft_folder: Path
) -> tuple[pd.DataFrame, dict[str, Any]]:
    """Serve the stream in order once with each of ``settings.methods`` (OSD, Fig. 3).

    ``online`` learns while it serves; ``static`` never learns; ``static_10`` was distilled once on the first tenth of the
    stream, ``static_10_fair`` with as many updates as ``online`` makes; ``offline`` was distilled on all of it and is measured on
    ``held_out``. Rows: ``method, seed, record, accepted, visited, overlap, overlap_repo, blocks, emitted``.
    """
    count = len(stream.answers)
    if settings.update_interval > count:
        raise UserError(
            f"update_interval is {settings.update_interval}, the stream has {count} requests",
            remedy="lower update_interval, or lengthen the stream",
        )
    frames, facts = [], {}
    for seed, method in itertools.product(settings.seeds, settings.methods):
        draft = load_model(draft_folder)
        if method == "online":
            rows, seen = serve(draft, stream, settings, seed=seed)
            steps = count // settings.update_interval
        else:
            requests, steps = _static_plan(method, count, settings)
            seen = train_on(draft, stream, requests, steps, settings, seed=seed)
            rows = measure(draft, held_out if method == "offline" else stream, settings.draft_len)
        facts[f"{method}.{seed}"] = {"updates": steps, "positions": seen}
        frames.append(rows.rename(columns={"request": "record"}).assign(method=method, seed=seed))
    return pd.concat(frames, ignore_index=True), facts


def _static_plan(method: str, count: int, settings: experiments.Online) -> tuple[range, int]:
    """Which requests a static draft was distilled on, and with how many updates."""
    tenth = range(math.ceil(STATIC_SHARE * count))
    plans = {
        "static": (range(0), 0),
        "static_10": (tenth, math.ceil(len(tenth) / settings.batch)),
        "static_10_fair": (tenth, count // settings.update_interval),
        "offline": (range(count), OFFLINE_EPOCHS * math.ceil(count / settings.batch)),
    }
    return plans[method]


def serve(
    draft: LanguageModel, stream: TargetPass, settings: experiments.Online, *, seed: int
) -> tuple[pd.DataFrame, int]:
    """Serve requests in order and update the draft every ``update_interval`` of them (OSD, Algorithm 1).

    The acceptance of a request is measured before the update that uses it. Between two updates the draft does not change, so
    the requests of an interval are one batch: one forward gives their acceptance and their loss.
    """
    loss_of = LOSSES[settings.loss]
    optimizer = training.adamw(draft)
    rng = np.random.default_rng(seed)
    frames, seen = [], 0
    interval = settings.update_interval
    starts = range(0, len(stream.answers), interval)
    for number in training.progress(range(len(starts)), f"{settings.dataset} online", total=len(starts)):
        requests = range(starts[number], min(starts[number] + interval, len(stream.answers)))
        draft_logits, target_logits, tokens = _logits(draft, stream, requests)
        lengths = [len(stream.answers[request].answer_ids) for request in requests]
        agree = agreement(draft_logits, target_logits, tokens, lengths, stream.sampling)
        frames.append(_counts(walk(agree, settings.draft_len)).assign(request=list(requests)))
        live = agree.realise(rng)
        chosen = positions_to_learn(live, walk(live, settings.draft_len), settings.loss_positions)
        if len(requests) == interval and len(chosen):
            loss = loss_of(draft_logits[chosen], target_logits[chosen]).mean()
            training.update(optimizer, [loss], settings.learning_rate, settings.clip)
            seen += len(chosen)
    return pd.concat(frames, ignore_index=True), seen


def positions_to_learn(live: Agreement, walked: Walk, which: LossPositions) -> Int[Tensor, " chosen"]:
    """Answer positions that the online loss sees, given accept flags (``Agreement.realise``) and the blocks they make.

    ``rejected``: where the draft's token was refused (OSD, Algorithm 1); ``all``: every position; ``block_end``: the token that the
    target added to each block, bonus tokens too; ``repository``: one position after those, as OSD's repository computes it.
    """
    if which == "all":
        chosen = np.ones(len(live.ratio), bool)
    elif which == "rejected":
        chosen = (walked.reached > 0.5) & (live.ratio < 0.5)
    else:
        # A block ends just before the next one starts, the last block with its answer.
        last = np.zeros(len(live.ratio), bool)
        last[np.cumsum([length for length in live.lengths if length]) - 1] = True
        chosen = last | np.append(walked.starts[1:] > 0.5, True)
        if which == "repository":
            chosen = np.append(False, (chosen & ~last)[:-1])
    return torch.from_numpy(np.flatnonzero(chosen))


# --- shared ------------------------------------------------------------------------------------------------------


def _logits(
    draft: LanguageModel, answers: TargetPass, requests: Sequence[int]
) -> tuple[Float[Tensor, "positions vocab"], Float[Tensor, "positions vocab"], Int[Tensor, " positions"]]:
    """Draft logits (with gradient), recorded target logits, and the emitted tokens of ``requests``."""
    records = [answers.answers[request] for request in requests]
    logits = draft.answer_logits([record.prompt_ids for record in records], [record.answer_ids for record in records])
    tokens = torch.tensor([token for record in records for token in record.answer_ids], device=logits.device)
    return logits, answers.target_logits(requests).to(logits.device), tokens


def _orders(requests: Sequence[int], batch: int, steps: int, seed: int) -> Iterator[list[int]]:
    """``steps`` batches: a fresh permutation per epoch, the last batch of an epoch as short as it is."""
    generator = torch.Generator().manual_seed(seed)
    while steps > 0:
        order = [requests[index] for index in torch.randperm(len(requests), generator=generator).tolist()]
        batches = [order[start : start + batch] for start in range(0, len(order), batch)]
        yield from batches[:steps]
        steps -= len(batches)


def _counts(walked: Walk) -> pd.DataFrame:
    return pd.DataFrame(
        {
            "accepted": walked.accepted,
            "visited": walked.visited,
            "overlap": walked.overlap,
            "overlap_repo": walked.repo,
            "blocks": walked.blocks,
            "emitted": walked.emitted,
        }
    )
