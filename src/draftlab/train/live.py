"""Serving by speculative decoding with the target itself.

At temperature 0 it counts and learns exactly what replay does. It serves targets without recorded answers, and checks replay.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np
import pandas as pd
import torch
from jaxtyping import Bool
from numpy.random import Generator
from torch import Tensor

from draftlab.engine.answers import Answer
from draftlab.engine.recording import TargetPass, compact_distribution
from draftlab.engine.speculate import BlockTrace, speculate
from draftlab.models import LanguageModel
from draftlab.train.offline import trace_counts
from draftlab.train.online import Lesson, Server, positions_to_learn
from draftlab.train.settings import Serving
from draftlab.train.traffic import Traffic


def live_server(target: LanguageModel, max_new_tokens: int, eos_ids: Collection[int]) -> Server:
    """A server that decodes the prompts of its requests as one batch and ignores their recorded answers."""

    def server(
        draft: LanguageModel, traffic: Traffic, requests: Sequence[int], settings: Serving, rng: Generator
    ) -> tuple[pd.DataFrame, list[Lesson]]:
        records = [traffic.answers.answers[request] for request in requests]
        logits: list[list[Tensor]] = [[] for _ in requests]
        sampling = traffic.answers.sampling
        traces = speculate(
            target,
            draft,
            [record.prompt_ids for record in records],
            draft_len=settings.draft_len,
            max_new_tokens=max_new_tokens,
            eos_ids=eos_ids,
            sampling=sampling,
            generator=torch.Generator(target.device).manual_seed(int(rng.spawn(1)[0].integers(2**62))),
            observe=lambda request, block_logits: logits[request].append(block_logits),
        ).traces
        kept = target.vocab_size if traffic.answers.ids is None else traffic.answers.ids.shape[1]
        tokens = torch.tensor([token for trace in traces for token in trace.answer_ids], device=target.device)
        every_logits = torch.cat([block for blocks in logits for block in blocks])
        log_probs, ids = compact_distribution(every_logits, tokens, kept)
        answers = [
            Answer(record.id, record.prompt_ids, trace.answer_ids, trace.finished)
            for record, trace in zip(records, traces, strict=True)
        ]
        decoded = TargetPass(answers, sampling, target.vocab_size, log_probs, ids if ids.shape[1] else None, forwards=0)
        chosen = [
            positions_to_learn([len(trace.answer_ids)], *_starts_and_rejections(trace), settings.loss_positions)
            for trace in traces
        ]
        return trace_counts(traces), [Lesson(decoded, row, np.flatnonzero(c)) for row, c in enumerate(chosen)]

    return server


def _starts_and_rejections(trace: BlockTrace) -> tuple[Bool[np.ndarray, " positions"], Bool[np.ndarray, " positions"]]:
    """The answer positions at which a block starts, and at which a drafted token was rejected."""
    starts, rejected = np.zeros((2, len(trace.answer_ids)), bool)
    begins = np.cumsum([0, *trace.emitted[:-1]])
    starts[begins] = True
    has_rejection = np.array(trace.visited) > np.array(trace.accepted)
    rejected[(begins + trace.accepted)[has_rejection]] = True
    return starts, rejected
