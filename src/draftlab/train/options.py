"""The ways to serve a log, replayed along its recorded answers: counts for every draft length, and the cost of a block in steps."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from jaxtyping import Bool, Float64, Int64
from numpy.random import Generator

from draftlab.core.sampling import Sampling, to_probs
from draftlab.core.verify.bound import optimum_iid
from draftlab.engine.recording import TargetPass
from draftlab.engine.replay import Agreement, Walk, agree_along, walk
from draftlab.engine.replay_lengths import cut, draft_everywhere
from draftlab.models import LanguageModel
from draftlab.models.lookup import Lookup
from draftlab.models.ngrams import Ngrams, guesses_along
from draftlab.train.learning import Effort, train
from draftlab.train.online import Lesson, check_interval, served_by
from draftlab.train.online import serve as serve_stream
from draftlab.train.settings import Options, Serving
from draftlab.train.sources import Scene
from draftlab.train.traffic import Traffic, whole

GREEDY = Sampling(0.0)
BATCH = 4
"""Requests in one forward where whole distributions are compared."""


def lookup(recorded: TargetPass, settings: Options) -> pd.DataFrame:
    """Prompt lookup alone: the guess is a single token, so it is accepted if the text continues with it, at every temperature.

    Where nothing is found, nothing is drafted, and the block ends.
    """
    longest = max(settings.draft_lens)
    finds, hits = [], []
    for answer in recorded.answers:
        text = Ngrams(answer.prompt_ids)
        for token in answer.answer_ids:
            hits.append(text.guess == token)
            finds.append(_count_guesses(text, longest))
            text.append(token)
    flags = np.asarray(hits, dtype=np.float64)
    found = np.asarray(finds, dtype=np.int64)
    agree = Agreement(recorded.lengths, flags, flags, flags)
    frames = []
    for draft_len in settings.draft_lens:
        walked = walk(agree, draft_len)
        rows = _rows(walked, recorded, draft_len, found.clip(max=draft_len), np.zeros(len(found)))
        frames.append(rows.assign(whole=0.0))  # no model has to catch up
    proposals = ["greedy", "probabilistic"] if recorded.sampling.temperature else ["greedy"]
    return pd.concat([frame.assign(option="lookup", proposal=p) for frame in frames for p in proposals])


def _count_guesses(text: Ngrams, longest: int) -> int:
    """How many tokens in a row the lookup can guess after ``text``, at most ``longest``; ``text`` is restored afterwards."""
    end = len(text.tokens)
    while len(text.tokens) < end + longest and text.guess is not None:
        text.append(text.guess)
    count = len(text.tokens) - end
    text.trim(end)
    return count


def model(option: str, draft: LanguageModel, recorded: TargetPass, settings: Options) -> pd.DataFrame:
    """A draft model, with prompt lookup before it in the option ``lookup_first``; each way to propose once."""
    first = option == "lookup_first"
    asked = Lookup(draft, joined=True) if first else draft
    found = _find_matches(recorded) if first else np.zeros(sum(recorded.lengths), dtype=bool)
    frames = []
    for proposal, sampling in proposals_of(recorded).items():
        agree = agree_along(asked, recorded, draft_sampling=sampling, batch_size=BATCH)
        frames.append(lengths(agree, recorded, settings, found).assign(option=option, proposal=proposal))
    rows = pd.concat(frames, ignore_index=True)
    return rows if first or not settings.ceiling else _with_optimum(rows, draft, recorded, settings.ceiling)


def confident(option: str, draft: LanguageModel, recorded: TargetPass, settings: Options) -> pd.DataFrame:
    """Blocks that end where the draft is unsure, for every draft length and threshold; prompt lookup comes first in ``lookup_first_confident``.

    Greedy answers alone: there it is known what the draft would propose after every start of an answer.
    """
    asked = Lookup(draft, joined=True) if option == "lookup_first_confident" else draft
    found = draft_everywhere(asked, recorded, max(settings.draft_lens))
    frames = []
    for draft_len, threshold in itertools.product(settings.draft_lens, settings.thresholds):
        short = found.upto(draft_len)
        blocks = cut(short, short.confident(threshold), asks=True)
        counts = {
            "accepted": blocks.accepted,
            "visited": blocks.judged,
            "overlap": blocks.accepted,
            "blocks": blocks.blocks,
            "emitted": blocks.emitted,
            "drafted": blocks.drafted,
            "empty": blocks.calls[:, 0],
            "steps": blocks.steps,
            "whole": blocks.whole,
            "changes": blocks.changes,
        }
        rows = pd.DataFrame({name: values.astype(float) for name, values in counts.items()})
        frames.append(rows.assign(request_id=range(len(rows)), draft_len=draft_len, threshold=threshold))
    prompts = [len(answer.prompt_ids) for answer in recorded.answers]
    every = pd.concat(frames, ignore_index=True).assign(option=option, proposal="greedy")
    every["prompt_tokens"] = every["request_id"].map(prompts.__getitem__)
    return every.assign(overlap_repo=math.nan, optimum_2=math.nan, optimum_4=math.nan)


def proposals_of(recorded: TargetPass) -> dict[str, Sampling]:
    """How a draft may propose beside this target; greedy text has one way."""
    warm = {"probabilistic": recorded.sampling} if recorded.sampling.temperature else {}
    return warm | {"greedy": GREEDY}


def lengths(
    agree: Agreement, recorded: TargetPass, settings: Options, found: Bool[np.ndarray, " positions"]
) -> pd.DataFrame:
    """The counts of every draft length; where something is ``found`` the model makes no step."""
    frames = []
    for draft_len in settings.draft_lens:
        walked = walk(agree, draft_len)
        padded = np.pad(found, (0, draft_len))
        steps = draft_len - sum(padded[i : i + len(found)].astype(float) for i in range(draft_len))
        frames.append(_rows(walked, recorded, draft_len, np.full(len(found), draft_len), np.asarray(steps)))
    return pd.concat(frames, ignore_index=True)


def _rows(
    walked: Walk,
    recorded: TargetPass,
    draft_len: int,
    drafted: Int64[np.ndarray, " positions"],
    steps: Float64[np.ndarray, " positions"],
) -> pd.DataFrame:
    """One row per request, given ``drafted`` and ``steps`` of the block that would start at each position.

    Where blocks differ in length, it is known where they start.
    """
    request = np.repeat(np.arange(len(recorded.lengths)), recorded.lengths)
    known = np.flatnonzero(walked.starts > 0.5)
    changed = (np.diff(drafted[known]) != 0) & (np.diff(request[known]) == 0)

    def summed(values: Float64[np.ndarray, " positions"]) -> Float64[np.ndarray, " requests"]:
        return np.bincount(request, walked.starts * values, minlength=len(recorded.lengths))

    return pd.DataFrame(
        {
            "request_id": range(len(recorded.lengths)),
            "draft_len": draft_len,
            "threshold": 0.0,
            "accepted": walked.accepted,
            "visited": walked.visited,
            "overlap": walked.overlap,
            "overlap_repo": walked.repo,
            "blocks": walked.blocks,
            "emitted": walked.emitted.astype(float),
            "drafted": summed(drafted.astype(float)),
            "empty": summed((drafted == 0).astype(float)),
            "steps": summed(steps),
            "whole": walked.whole,
            "changes": np.bincount(request[known[1:]], changed.astype(float), minlength=len(recorded.lengths)),
            "prompt_tokens": [len(answer.prompt_ids) for answer in recorded.answers],
            "optimum_2": math.nan,
            "optimum_4": math.nan,
        }
    )


def _find_matches(recorded: TargetPass) -> Bool[np.ndarray, " positions"]:
    texts = [([*a.prompt_ids, *a.answer_ids], len(a.prompt_ids)) for a in recorded.answers]
    return np.array([guess is not None for text, begin in texts for guess in guesses_along(text, begin)])


@torch.inference_mode()
def _with_optimum(rows: pd.DataFrame, draft: LanguageModel, recorded: TargetPass, requests: int) -> pd.DataFrame:
    """What K drafts could accept at most: ``1 + min_H target(H) - draft(H)^K`` where the draft samples (Khisti et al., Theorem 3), else
    whether the target's probability lies on its K most probable tokens."""
    for number, answer in enumerate(recorded.answers[:requests]):
        logits = draft.answer_logits([answer.prompt_ids], [answer.answer_ids])
        tokens = torch.tensor(answer.answer_ids, device=logits.device)
        own = rows["request_id"] == number
        for drafts in (2, 4):
            best = (logits.topk(drafts, -1).indices == tokens[:, None]).any(-1).double().sum()
            rows.loc[own & (rows["proposal"] == "greedy"), f"optimum_{drafts}"] = float(best)
            if recorded.sampling.temperature:
                target = to_probs(recorded.target_logits([number], logits.device), recorded.sampling)
                sums = optimum_iid(target, to_probs(logits, recorded.sampling), drafts).sum()
                rows.loc[own & (rows["proposal"] == "probabilistic"), f"optimum_{drafts}"] = float(sums)
    return rows


def distil(
    draft: LanguageModel, recorded: TargetPass, settings: Options, checkpoint: Path
) -> tuple[Effort, dict[str, float]]:
    """Distil the draft on the whole stream; also returns the cost of doing so."""
    steps = settings.epochs * math.ceil(len(recorded.answers) / settings.batch)
    begun = time.monotonic()
    requests = range(len(recorded.answers))
    effort = train(Scene(draft, None, recorded, 0, ()), requests, steps, settings, checkpoint=checkpoint)
    return effort, {"updates": steps, "seconds": time.monotonic() - begun}


def serve(draft: LanguageModel, recorded: TargetPass, settings: Options) -> tuple[pd.DataFrame, dict[str, float]]:
    """Serve the stream with a draft that learns on the way: counts of every draft length before each update, and what updates took."""
    seen: list[pd.DataFrame] = []
    replayed = 0.0

    def server(
        draft: LanguageModel, traffic: Traffic, requests: Sequence[int], settings_: Serving, rng: Generator
    ) -> tuple[pd.DataFrame, list[Lesson]]:
        nonlocal replayed
        begun = time.monotonic()
        own = traffic.take(list(requests)).answers
        nothing = np.zeros(sum(own.lengths), dtype=bool)
        agrees = {
            proposal: agree_along(draft, own, draft_sampling=sampling, batch_size=BATCH)
            for proposal, sampling in proposals_of(own).items()
        }
        for proposal, agree in agrees.items():
            rows = lengths(agree, own, settings, nothing).assign(option="kept_learning", proposal=proposal)
            seen.append(rows.assign(request_id=rows["request_id"] + requests[0]))
        found = served_by(next(iter(agrees.values())), traffic, requests, settings_, rng)
        replayed += time.monotonic() - begun
        return found

    stream = whole(recorded, settings.dataset)
    check_interval(stream, settings)
    begun = time.monotonic()
    _, effort = serve_stream(draft, stream, settings, server=server)
    seconds = time.monotonic() - begun - replayed
    return pd.concat(seen, ignore_index=True), {"updates": effort.updates, "seconds": seconds}
