"""Blocks of varying length along recorded greedy answers: drafts from every position, and the blocks that a rule for the length gives.

At temperature 0 it is known in advance what the draft proposes at each position of an answer, how confident it is of each token, and how
many tokens are accepted. A rule gives a length for every position, and the blocks follow.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Float64, Int64
from torch import Tensor

from draftlab.core.sampling import most_probable
from draftlab.engine.loop import agreed
from draftlab.engine.recording import TargetPass
from draftlab.engine.replay import places_in
from draftlab.errors import UserError, called
from draftlab.models import Cache, Decoder, LanguageModel
from draftlab.models.hf import HubModel
from draftlab.models.llama_decoder import LlamaCache
from draftlab.models.lookup import LookupCache

NextLength = Callable[[int, tuple[int, int] | None], int]
"""The length of the block that begins at a position, from the numbers of drafted and accepted tokens of the block before (None: there was none)."""

SHOWN = ("confidence", "entropy", "margin", "found")
"""What is known of each drafted token, by its names in ``Drafted``."""


@dataclass(frozen=True)
class Drafted:
    """What a draft proposes for a block that begins at each answer position, request after request.

    **Arguments:**
    - `lengths`: answer positions of each request.
    - `accepted`: how many drafted tokens are accepted; none beyond the end of an answer. As lengths of blocks, those of an oracle.
    - `confidence`: the draft's probability of each drafted token.
    - `entropy`: that of the draft's distribution.
    - `margin`: how much more probable the token is than the next one.
    - `found`: whether the token was found in a text, without a model.
    - `most`: how many tokens can be drafted, where what was found is all. None: as many as asked for.
    """

    lengths: list[int]
    accepted: Int64[np.ndarray, " positions"]
    confidence: Float64[np.ndarray, "positions depth"]
    entropy: Float64[np.ndarray, "positions depth"]
    margin: Float64[np.ndarray, "positions depth"]
    found: Bool[np.ndarray, "positions depth"]
    most: Int64[np.ndarray, " positions"] | None = None

    @property
    def depth(self) -> int:
        """The longest block."""
        return int(self.confidence.shape[1])

    @property
    def left(self) -> Int64[np.ndarray, " positions"]:
        """How many tokens of the answer are left at each position, including its own."""
        return places_in(np.asarray(self.lengths, dtype=np.int64))[1]

    def upto(self, depth: int) -> Drafted:
        """The same with blocks of at most ``depth``."""
        shown = {name: getattr(self, name)[:, :depth] for name in SHOWN}
        most = None if self.most is None else self.most.clip(max=depth)
        return replace(self, accepted=self.accepted.clip(max=depth), most=most, **shown)

    def fixed(self, draft_len: int) -> Int64[np.ndarray, " positions"]:
        """The same length at each position."""
        return np.full(len(self.accepted), draft_len)

    def confident(self, min_prob: float) -> Int64[np.ndarray, " positions"]:
        """As many tokens in a row as the draft gives probability ``min_prob`` or more."""
        return while_at_least(self.confidence, min_prob)

    def without_model(self) -> Int64[np.ndarray, " positions"]:
        """As many tokens in a row as were found in a text."""
        return np.asarray(self.found.cumprod(1).sum(1))


def while_at_least(scores: Float64[np.ndarray, "positions depth"], threshold: float) -> Int64[np.ndarray, " positions"]:
    """How many tokens of a block come before the first one whose score is below the threshold."""
    return np.asarray((scores >= threshold).cumprod(1).sum(1))


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


Propose = Callable[[list[int], int], list[int]]
"""A way to draft without a model: from the text so far, at most so many tokens that follow it."""


def proposed_everywhere(name: str, propose: Propose, recorded: TargetPass, depth: int) -> Drafted:
    """What a way to draft proposes at every position of every recorded answer. It is sure of its tokens, and knows no others."""
    accepted, found = list[int](), list[int]()
    for record in recorded.answers:
        text = [*record.prompt_ids, *record.answer_ids]
        for place in range(len(record.prompt_ids), len(text)):
            tokens = called(name, propose, text[:place], depth)
            if not isinstance(tokens, list) or len(tokens) > depth:
                returned = f"{len(tokens)} tokens" if isinstance(tokens, list) else type(tokens).__name__
                raise UserError(f"{name} returned {returned}", remedy=f"return a list of at most {depth} token ids")
            accepted.append(agreed(tokens, text[place:]))
            found.append(len(tokens))
    was_found = np.arange(depth) < np.array(found)[:, None]
    even, spread = 1 / recorded.vocab_size, math.log(recorded.vocab_size)
    return Drafted(
        recorded.lengths,
        np.array(accepted, np.int64),
        confidence=np.where(was_found, 1.0, even),
        entropy=np.where(was_found, 0.0, spread),
        margin=was_found.astype(np.float64),
        found=was_found,
    )


@torch.inference_mode()
def draft_everywhere(draft: LanguageModel, recorded: TargetPass, depth: int) -> Drafted:
    """Draft ``depth`` tokens greedily at every position of every recorded answer; ``UserError`` if the answers were sampled."""
    if recorded.sampling.temperature:
        raise UserError("sampled answers have no fixed blocks", remedy="use answers that were decoded at temperature 0")
    decoder, accepted, shown = draft.decoder(), list[np.ndarray](), list[np.ndarray]()
    for record in recorded.answers:
        answer = record.answer_ids
        cache, token = prefill_everywhere(decoder, record.prompt_ids, answer, depth, range(len(answer)))
        guesses = list[Guess]()
        for _ in range(depth):
            guesses.append(guess(cache, token))
            token = guesses[-1].token
        tokens, *signals = (torch.stack(parts, 1).cpu().numpy() for parts in zip(*guesses, strict=True))
        padded = np.array([*answer, *[-1] * depth])  # beyond the end of the answer nothing agrees
        expected = np.lib.stride_tricks.sliding_window_view(padded, depth)[: len(answer)]
        accepted.append((tokens == expected).cumprod(1).sum(1))
        shown.append(np.stack(signals).astype(np.float64))
    confidence, spread, margin = np.concatenate(shown, 1)
    return Drafted(recorded.lengths, np.concatenate(accepted), confidence, spread, margin, found=confidence == 1)


class Guess(NamedTuple):
    """The draft's most probable next token of each row, and what the draft shows of its distribution, as in ``Drafted``."""

    token: Int64[Tensor, " rows"]
    confidence: Float[Tensor, " rows"]
    entropy: Float[Tensor, " rows"]
    margin: Float[Tensor, " rows"]


def guess(cache: Cache, token: Int64[Tensor, " rows"]) -> Guess:
    """Let each row read its token, and guess the next one. Only a token of prompt lookup has a confidence of 1.

    A trimmed head is not spread over the vocabulary, and prompt lookup alone needs no logits: both would take longer than the model.
    """
    if isinstance(cache, LookupCache):
        found = torch.tensor([-1 if at is None else at for at in cache.append(token[:, None])], device=token.device)
        if cache.inner is None:
            flat = torch.ones(token.shape, device=token.device)
            vocab = cache.lookup.vocab_size
            likely = Guess(torch.zeros_like(token), flat / vocab, flat * math.log(vocab), flat * 0)
        else:
            likely = guess(cache.inner, token)
        was_found, certain = found >= 0, (1.0, 0.0, 1.0)
        shown = (part.masked_fill(was_found, value) for part, value in zip(likely[1:], certain, strict=True))
        return Guess(torch.where(was_found, found, likely.token), *shown)
    kept = None
    if isinstance(cache, LlamaCache):
        logits, kept = cache.decoder.head(cache.states(token[:, None])).float(), cache.decoder.kept
    else:
        logits = cache.extend(token[:, None])[:, 0].float()
    column = most_probable(logits)
    log_probs = logits.log_softmax(-1)
    probs = log_probs.exp()
    sure, second = probs.topk(2).values.unbind(-1)
    spread = -(probs * log_probs.clamp(min=torch.finfo(log_probs.dtype).min)).sum(-1)
    return Guess(column if kept is None else kept[column], sure.clamp(max=1 - 1e-7), spread, sure - second)


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


def cut(drafted: Drafted, lengths: Int64[np.ndarray, " positions"] | NextLength, asks: bool = False) -> BlockCounts:
    """Cut the answers into blocks, each of the length that ``lengths`` has, or chooses, where it begins.

    The draft model makes a step for each drafted token that was not found in a text. If the rule ``asks`` for the
    confidence of the next token before it stops, that is one more step. No block is longer than ``drafted.most``.
    """
    steps = (~drafted.found).cumsum(1)
    most = drafted.fixed(drafted.depth) if drafted.most is None else drafted.most
    requests = len(drafted.lengths)
    calls = np.zeros((requests, drafted.depth + 1), dtype=np.int64)
    kept, judged, made, whole, changes = np.zeros((5, requests), dtype=np.int64)
    begin, last = 0, None
    for request, length in enumerate(drafted.lengths):
        place, before = 0, None
        while place < length:
            at = begin + place
            wanted = min(lengths(at, last) if callable(lengths) else int(lengths[at]), int(most[at]))
            accepted = min(wanted, int(drafted.accepted[at]))
            last = wanted, accepted
            looked = min(wanted + asks, int(most[at]))
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
