"""Blocks of varying length along recorded greedy answers: drafts from every position, and the blocks that a rule for the length gives.

At temperature 0 it is known in advance what the draft proposes at each position of an answer, how confident it is of each token, and how
many tokens are accepted. A rule gives a length for every position, and the blocks follow.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from jaxtyping import Float, Float64, Int64
from torch import Tensor

from draftlab.core.sampling import most_probable
from draftlab.engine.recording import TargetPass
from draftlab.errors import UserError
from draftlab.models import Cache, Decoder, LanguageModel
from draftlab.models.hf import HubModel
from draftlab.models.llama_decoder import LlamaCache
from draftlab.models.lookup import LookupCache


@dataclass(frozen=True)
class Drafted:
    """For a block that begins at each answer position, request after request: how many drafted tokens are accepted (``accepted``), and the
    draft's probability of each (``confidence``). Nothing is accepted beyond the end of an answer."""

    lengths: list[int]
    accepted: Int64[np.ndarray, " positions"]
    confidence: Float64[np.ndarray, "positions depth"]

    @property
    def depth(self) -> int:
        """The longest block."""
        return int(self.confidence.shape[1])

    def upto(self, depth: int) -> Drafted:
        """The same with blocks of at most ``depth``."""
        return replace(self, accepted=self.accepted.clip(max=depth), confidence=self.confidence[:, :depth])

    def fixed(self, draft_len: int) -> Int64[np.ndarray, " positions"]:
        """The same length at each position."""
        return np.full(len(self.accepted), draft_len)

    def confident(self, min_prob: float) -> Int64[np.ndarray, " positions"]:
        """As many tokens in a row as the draft gives probability ``min_prob`` or more."""
        return np.asarray((self.confidence >= min_prob).cumprod(1).sum(1))

    def oracle(self) -> Int64[np.ndarray, " positions"]:
        """As many tokens as are accepted, which no real rule can know."""
        return self.accepted


@dataclass(frozen=True)
class BlockCounts:
    """Counts of each request under a rule.

    ``calls``: target calls by the number of drafted tokens that they read (0, 1, ...); ``accepted``, ``judged`` and ``emitted`` tokens;
    ``steps`` of the draft model; ``whole``: blocks of the greatest length whose tokens are all accepted; ``changes``: calls that read another
    number of drafted tokens than the call before.
    """

    calls: Int64[np.ndarray, "requests lengths"]
    accepted: Int64[np.ndarray, " requests"]
    judged: Int64[np.ndarray, " requests"]
    steps: Int64[np.ndarray, " requests"]
    emitted: Int64[np.ndarray, " requests"]
    whole: Int64[np.ndarray, " requests"]
    changes: Int64[np.ndarray, " requests"]

    @property
    def blocks(self) -> Int64[np.ndarray, " requests"]:
        """Target calls."""
        return np.asarray(self.calls.sum(1))

    @property
    def drafted(self) -> Int64[np.ndarray, " requests"]:
        """Drafted tokens."""
        return np.asarray(self.calls @ np.arange(self.calls.shape[1]))


@torch.inference_mode()
def draft_everywhere(draft: LanguageModel, recorded: TargetPass, depth: int) -> Drafted:
    """Draft ``depth`` tokens greedily at every position of every recorded answer; ``UserError`` if the answers were sampled."""
    if recorded.sampling.temperature:
        raise UserError("sampled answers have no fixed blocks", remedy="use answers that were decoded at temperature 0")
    decoder, accepted, confidences = draft.decoder(), list[np.ndarray](), list[np.ndarray]()
    for record in recorded.answers:
        answer = record.answer_ids
        cache, token = prefill_everywhere(decoder, record.prompt_ids, answer, depth, range(len(answer)))
        proposed, confidence = list[Tensor](), list[Tensor]()
        for _ in range(depth):
            token, sure = guess(cache, token)
            confidence.append(sure)
            proposed.append(token)
        padded = np.array([*answer, *[-1] * depth])  # beyond the end of the answer nothing agrees
        expected = np.lib.stride_tricks.sliding_window_view(padded, depth)[: len(answer)]
        agrees = torch.stack(proposed, 1).cpu().numpy() == expected
        accepted.append(agrees.cumprod(1).sum(1))
        confidences.append(torch.stack(confidence, 1).cpu().numpy().astype(np.float64))
    return Drafted(recorded.lengths, np.concatenate(accepted), np.concatenate(confidences))


def guess(cache: Cache, token: Int64[Tensor, " rows"]) -> tuple[Int64[Tensor, " rows"], Float[Tensor, " rows"]]:
    """Let each row read its token; return the most probable next one and its probability, which is 1 only for a token of prompt lookup.

    A trimmed head is not spread over the vocabulary, and prompt lookup alone needs no logits: both would take longer than the model.
    """
    if isinstance(cache, LookupCache):
        found = torch.tensor([-1 if at is None else at for at in cache.append(token[:, None])], device=token.device)
        if cache.inner is None:
            likely, sure = torch.zeros_like(token), torch.full(token.shape, 1 / cache.lookup.vocab_size)
        else:
            likely, sure = guess(cache.inner, token)
        return torch.where(found >= 0, found, likely), sure.to(token.device).masked_fill(found >= 0, 1.0)
    kept = None
    if isinstance(cache, LlamaCache):
        logits, kept = cache.decoder.head(cache.states(token[:, None])).float(), cache.decoder.kept
    else:
        logits = cache.extend(token[:, None])[:, 0].float()
    column = most_probable(logits)
    sure = (logits.gather(-1, column[:, None])[:, 0] - logits.logsumexp(-1)).exp().clamp(max=1 - 1e-7)
    return column if kept is None else kept[column], sure


def prefill_everywhere(
    decoder: Decoder, prompt: Sequence[int], answer: Sequence[int], room: int, places: Sequence[int]
) -> tuple[Cache, Int64[Tensor, " places"]]:
    """A cache with one row for each of these places of an answer, which has read the text before it except the last token; and this token."""
    cache: Cache
    if isinstance(decoder, HubModel) and decoder.is_encoder_decoder:
        # The encoder reads the prompt; the cache holds the answer.
        cache, first = decoder.prefill([prompt], room + len(answer))
        begin, text = 0, [int(first), *answer]
        cache.extend(torch.tensor([text[:-1]], device=first.device))
    else:
        begin, text = len(prompt) - 1, [*prompt, *answer]
        cache, first = decoder.prefill([text], room)
    cache.take([0] * len(places))
    cache.crop([begin + place for place in places])
    return cache, torch.tensor([text[begin + place] for place in places], device=first.device)


def cut(drafted: Drafted, lengths: Int64[np.ndarray, " positions"], asks: bool = False) -> BlockCounts:
    """Cut the answers into blocks, each of the length that ``lengths`` has where it begins.

    The draft model makes a step for each drafted token of a confidence below 1 (prompt lookup needs none). If the rule ``asks`` for the
    confidence of the next token before it stops, that is one more step.
    """
    steps = (drafted.confidence < 1).cumsum(1)
    requests = len(drafted.lengths)
    calls = np.zeros((requests, drafted.depth + 1), dtype=np.int64)
    kept, judged, made, whole, changes = np.zeros((5, requests), dtype=np.int64)
    begin = 0
    for request, length in enumerate(drafted.lengths):
        place, before = 0, None
        while place < length:
            at = begin + place
            wanted = int(lengths[at])
            accepted = min(wanted, int(drafted.accepted[at]))
            looked = min(wanted + asks, drafted.depth)
            calls[request, wanted] += 1
            kept[request] += accepted
            judged[request] += min(accepted + 1, wanted, length - place)
            made[request] += steps[at, looked - 1] if looked else 0
            whole[request] += accepted == drafted.depth
            changes[request] += before not in (None, wanted)
            before = wanted
            place += accepted + 1
        begin += length
    return BlockCounts(calls, kept, judged, made, np.array(drafted.lengths, dtype=np.int64), whole, changes)
