"""Replay a log with every option to serve it: prompt lookup, suffix decoding, a draft, lookup before a draft, and a draft that keeps learning.

Each option gives counts for every draft length, and the steps that the draft model makes.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

import numpy as np
import pandas as pd
import torch
from jaxtyping import Bool, Float64, Int64
from numpy.random import Generator

from draftlab.core.sampling import GREEDY, Sampling, to_probs
from draftlab.core.verify.optimum import optimum_iid
from draftlab.engine.recording import TargetPass
from draftlab.engine.replay import Agreement, Walk, agree_along, ahead, places_in, walk
from draftlab.engine.replay_lengths import BlockCounts, Drafted, cut, draft_everywhere
from draftlab.engine.replay_suffixes import continue_within
from draftlab.models import LanguageModel
from draftlab.models.dflash_files import longest_draft
from draftlab.models.lookup import Lookup
from draftlab.models.ngrams import Ngrams, guesses_along
from draftlab.models.places import ByPlace
from draftlab.train.learning import Effort, train
from draftlab.train.offline import counts
from draftlab.train.online import Lesson, check_interval, served_by
from draftlab.train.online import serve as serve_stream
from draftlab.train.settings import ReplayLog, Serving
from draftlab.train.sources import Scene
from draftlab.train.traffic import Traffic, whole

Log = TypeVar("Log", bound=ReplayLog)

BATCH = 4
"""Requests in one forward pass where whole distributions are compared."""
CURVE = {"distilled_on_eighth": 8, "distilled_on_quarter": 4}
"""Further drafts for the learning curve: distilled on the first eighth and on the first quarter of the stream."""


def within_block(settings: Log, draft: Path) -> Log:
    """The settings without draft lengths that the draft cannot have (``longest_draft``)."""
    longest = longest_draft(draft)
    draft_lens = [length for length in settings.draft_lens if length <= longest] or [int(longest)]
    return settings.model_copy(update={"draft_len": int(min(settings.draft_len, longest)), "draft_lens": draft_lens})


def lookup(recorded: TargetPass, settings: ReplayLog) -> pd.DataFrame:
    """Prompt lookup alone. It guesses one token, which is accepted if the text continues with it, at every temperature.

    If it finds nothing, nothing is drafted or judged, and the block ends.
    """
    longest = max(settings.draft_lens)
    hits, guess_counts = [], []
    for answer in recorded.answers:
        text = Ngrams(answer.prompt_ids)
        for token in answer.answer_ids:
            hits.append(text.guess == token)
            guess_counts.append(_count_guesses(text, longest))
            text.append(token)
    flags, guesses = np.asarray(hits, dtype=np.float64), np.asarray(guess_counts, dtype=np.int64)
    agree = Agreement(recorded.lengths, flags, flags, flags)
    count = len(recorded.lengths)
    request = np.repeat(np.arange(count), recorded.lengths)
    frames = []
    for draft_len in settings.draft_lens:
        walked = walk(agree, draft_len)
        rows = _rows(walked, recorded, draft_len, guesses.clip(max=draft_len), np.zeros(len(guesses)))
        visited = np.bincount(request, walked.reached * (guesses > 0), minlength=count)
        frames.append(rows.assign(visited=visited, whole=0.0))  # no model has to catch up
    return _by_proposal(pd.concat(frames).assign(option="lookup"), recorded)


def _by_proposal(rows: pd.DataFrame, recorded: TargetPass) -> pd.DataFrame:
    """The same rows for every way to propose, which makes no difference to a token that was found in a text."""
    return pd.concat([rows.assign(proposal=proposal) for proposal in reversed(_proposals(recorded))])


def suffixes(recorded: TargetPass, stream: TargetPass, settings: ReplayLog) -> pd.DataFrame:
    """Suffix decoding, which remembers the answers of the ``stream``.

    If it finds nothing, nothing is drafted or judged, as with prompt lookup. In the option ``suffix_confident`` a block ends before
    its tokens together are less probable than a threshold.
    """
    frames = []
    limits = list(itertools.product(settings.draft_lens, (0.0, *settings.thresholds)))
    for (draft_len, threshold), drafted in zip(limits, continue_within(recorded, stream.answers, limits), strict=True):
        blocks = cut(drafted, drafted.without_model())
        rows = _of_blocks(blocks, recorded, draft_len, threshold).assign(whole=0.0)  # no model has to catch up
        frames.append(rows.assign(option="suffix_confident" if threshold else "suffix"))
    return _by_proposal(pd.concat(frames), recorded)


def _count_guesses(text: Ngrams, longest: int) -> int:
    """How many tokens in a row lookup can guess after ``text``, at most ``longest``; leaves ``text`` as it is."""
    end = len(text.tokens)
    while len(text.tokens) < end + longest and text.guess is not None:
        text.append(text.guess)
    count = len(text.tokens) - end
    text.trim(end)
    return count


def fixed_lengths(
    option: str, draft: LanguageModel, recorded: TargetPass, settings: ReplayLog, drafted: Drafted | None = None
) -> pd.DataFrame:
    """A draft model at every draft length and with every way to propose; in the option ``lookup_first`` after prompt lookup.

    ``drafted``: the result of ``after_lookup``, if it is known already.
    """
    lookup_first = option == "lookup_first"
    model, found = draft, None
    if lookup_first:
        model, drafted = Lookup(draft, joined=True), drafted or after_lookup(draft, recorded, settings)
        found = drafted.found if drafted else _found_along(recorded, max(settings.draft_lens))
    frames = []
    for proposal, sampling in _proposals(recorded).items():
        agree = agree_along(model, recorded, draft_sampling=sampling, batch_size=BATCH)
        frames.append(_all_lengths(agree, recorded, settings, found).assign(option=option, proposal=proposal))
    rows = pd.concat(frames, ignore_index=True)
    if lookup_first or not settings.ceiling or isinstance(draft, ByPlace):  # whose distributions differ by place
        return rows
    return _with_optimum(rows, draft, recorded, settings.ceiling)


def confident(
    option: str, draft: LanguageModel, recorded: TargetPass, settings: ReplayLog, drafted: Drafted | None = None
) -> pd.DataFrame:
    """Blocks that end where the draft's confidence is below a threshold, for every draft length and threshold.

    In the option ``lookup_first_confident`` prompt lookup comes first. The answers must be greedy: only then is it known what the draft
    proposes at each position. ``drafted``: as for ``fixed_lengths``.
    """
    if drafted is None:
        model = Lookup(draft, joined=True) if option == "lookup_first_confident" else draft
        drafted = draft_everywhere(model, recorded, max(settings.draft_lens))
    frames = []
    for draft_len, threshold in itertools.product(settings.draft_lens, settings.thresholds):
        short = drafted.upto(draft_len)
        blocks = cut(short, short.confident(threshold), asks=True)
        frames.append(_of_blocks(blocks, recorded, draft_len, threshold))
    return pd.concat(frames, ignore_index=True).assign(option=option, proposal="greedy")


def after_lookup(draft: LanguageModel, recorded: TargetPass, settings: ReplayLog) -> Drafted | None:
    """What is drafted at every position where prompt lookup comes first; None if that is not known.

    After a rejected token a block goes on with the draft's text, not with the answer. What the draft writes there is known if it is greedy, and
    decodes after a lookup, which an encoder-decoder does not.
    """
    if recorded.sampling.temperature or getattr(draft, "is_encoder_decoder", False):
        return None
    return draft_everywhere(Lookup(draft, joined=True), recorded, max(settings.draft_lens))


def _of_blocks(blocks: BlockCounts, recorded: TargetPass, draft_len: int, threshold: float = 0.0) -> pd.DataFrame:
    """One row per request, from the counts of blocks of varying length."""
    names = ("accepted", "blocks", "emitted", "drafted", "steps", "whole", "changes")
    rows = pd.DataFrame({name: getattr(blocks, name) for name in names}).assign(
        visited=blocks.judged, overlap=blocks.accepted, overlap_repo=math.nan, empty=blocks.calls[:, 0]
    )
    return _table(rows, recorded, draft_len, threshold)


def _proposals(recorded: TargetPass) -> dict[str, Sampling]:
    """The ways in which a draft may propose for this target; for greedy text there is only one.

    A draft that samples has the target's temperature, but proposes any token: top-k, top-p and min-p cut the target alone in vLLM and SGLang.
    """
    temperature = recorded.sampling.temperature
    return ({"probabilistic": Sampling(temperature)} if temperature else {}) | {"greedy": GREEDY}


def _all_lengths(
    agree: Agreement,
    recorded: TargetPass,
    settings: ReplayLog,
    found: Bool[np.ndarray, "positions depth"] | None = None,
) -> pd.DataFrame:
    """Counts for every draft length; the model makes no step for a token that is ``found`` in a text."""
    frames = []
    for draft_len in settings.draft_lens:
        drafted = np.full(sum(recorded.lengths), draft_len)
        steps = drafted if found is None else draft_len - found[:, :draft_len].sum(1)
        frames.append(_rows(walk(agree, draft_len), recorded, draft_len, drafted, steps))
    return pd.concat(frames, ignore_index=True)


def _rows(
    walked: Walk,
    recorded: TargetPass,
    draft_len: int,
    drafted: Int64[np.ndarray, " positions"],
    steps: Float64[np.ndarray, " positions"],
) -> pd.DataFrame:
    """One row per request. ``drafted`` and ``steps`` are those of a block that starts at each position."""
    count = len(recorded.lengths)
    request = np.repeat(np.arange(count), recorded.lengths)
    starts = np.flatnonzero(walked.starts > 0.5)  # blocks differ in length only where their starts are certain
    changed = (np.diff(drafted[starts]) != 0) & (np.diff(request[starts]) == 0)

    def summed(values: Float64[np.ndarray, " positions"]) -> Float64[np.ndarray, " requests"]:
        return np.bincount(request, walked.starts * values, minlength=count)

    rows = counts(walked).assign(
        drafted=summed(drafted.astype(float)),
        empty=summed((drafted == 0).astype(float)),
        steps=summed(steps),
        whole=walked.whole,
        changes=np.bincount(request[starts[1:]], changed.astype(float), minlength=count),
    )
    return _table(rows, recorded, draft_len)


def _table(rows: pd.DataFrame, recorded: TargetPass, draft_len: int, threshold: float = 0.0) -> pd.DataFrame:
    """Complete the counts of all requests: floating-point throughout, with the length of the block and of the prompt."""
    rows = rows.astype(float).assign(request_id=range(len(rows)))
    rows.insert(1, "draft_len", draft_len)
    rows.insert(2, "threshold", threshold)
    prompt_tokens = [len(answer.prompt_ids) for answer in recorded.answers]
    return rows.assign(prompt_tokens=prompt_tokens, optimum_2=math.nan, optimum_4=math.nan)


def _found_along(recorded: TargetPass, depth: int) -> Bool[np.ndarray, "positions depth"]:
    """Whether lookup finds each token of a block that begins at each answer position, if the block goes on with the answer; nothing beyond its end."""
    along = (guesses_along(answer.prompt_ids, answer.answer_ids) for answer in recorded.answers)
    looked_up = np.array([guess is not None for guesses in along for guess in guesses])
    _, left = places_in(np.asarray(recorded.lengths, dtype=np.int64))
    return np.stack([ahead(looked_up, i) * (left > i) for i in range(depth)], 1).astype(bool)


@torch.inference_mode()
def _with_optimum(rows: pd.DataFrame, draft: LanguageModel, recorded: TargetPass, requests: int) -> pd.DataFrame:
    """Add the most that K drafts could accept: ``1 + min_H target(H) - draft(H)^K`` where the draft samples (Khisti et al., Theorem 3),
    otherwise whether the emitted token is among the draft's K most probable tokens."""
    for number, answer in enumerate(recorded.answers[:requests]):
        logits = draft.answer_logits([answer.prompt_ids], [answer.answer_ids])
        tokens = torch.tensor(answer.answer_ids, device=logits.device)
        is_request = rows["request_id"] == number
        for drafts in (2, 4):
            best = (logits.topk(drafts, -1).indices == tokens[:, None]).any(-1).double().sum()
            rows.loc[is_request & (rows["proposal"] == "greedy"), f"optimum_{drafts}"] = float(best)
            if recorded.sampling.temperature:
                target = to_probs(recorded.target_logits([number], logits.device, to_sample=True), recorded.sampling)
                proposed = to_probs(logits, _proposals(recorded)["probabilistic"])
                sums = optimum_iid(target, proposed, drafts).sum()
                rows.loc[is_request & (rows["proposal"] == "probabilistic"), f"optimum_{drafts}"] = float(sums)
    return rows


def distil(
    draft: LanguageModel, recorded: TargetPass, settings: ReplayLog, checkpoint: Path
) -> tuple[Effort, dict[str, float]]:
    """Distil the draft on the whole stream; returns the effort, and the updates and seconds that it took.

    Updates before a kill are counted as long as those after it, or by their CPU time if none is left.
    """
    steps = settings.epochs * math.ceil(len(recorded.answers) / settings.batch)
    begin, run = time.monotonic(), list[int]()
    requests = range(len(recorded.answers))
    effort = train(Scene(draft, recorded), requests, steps, settings, checkpoint=checkpoint, watch=run.append)
    seconds = (time.monotonic() - begin) * steps / len(run) if run else effort.milliseconds / 1e3
    return effort, {"updates": steps, "seconds": seconds}


def keep_learning(
    draft: LanguageModel, recorded: TargetPass, settings: ReplayLog
) -> tuple[pd.DataFrame, dict[str, float]]:
    """Serve the stream with a draft that learns on the way: counts for every draft length, before any update on the same request, and the
    updates and seconds of learning."""
    frames: list[pd.DataFrame] = []
    replay_seconds = 0.0

    def server(
        draft: LanguageModel, traffic: Traffic, requests: Sequence[int], settings_: Serving, rng: Generator
    ) -> tuple[pd.DataFrame, list[Lesson]]:
        nonlocal replay_seconds
        begin = time.monotonic()
        served = traffic.take(list(requests)).answers
        agrees = {
            proposal: agree_along(draft, served, draft_sampling=sampling, batch_size=BATCH)
            for proposal, sampling in _proposals(served).items()
        }
        for proposal, agree in agrees.items():
            rows = _all_lengths(agree, served, settings).assign(option="kept_learning", proposal=proposal)
            frames.append(rows.assign(request_id=rows["request_id"] + requests[0]))
        result = served_by(next(iter(agrees.values())), traffic, requests, settings_, rng)
        replay_seconds += time.monotonic() - begin
        return result

    stream = whole(recorded, settings.dataset)
    check_interval(stream, settings)
    begin = time.monotonic()
    _, effort = serve_stream(draft, stream, settings, server=server)
    seconds = time.monotonic() - begin - replay_seconds
    return pd.concat(frames, ignore_index=True), {"updates": effort.updates, "seconds": seconds}
