"""Plain and speculative decoding of one request by two models on any engine, lossless at every temperature."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field

import numpy as np
from jaxtyping import Float32, Float64, Int

from draftlab.core.theory import best_draft_len
from draftlab.errors import UserError
from draftlab.latency.backend import LatencyBackend, check_pair

Probs = Float64[np.ndarray, " vocab"]


@dataclass(frozen=True)
class Block:
    """One target call: ``drafted`` tokens proposed, the first ``accepted`` of them kept, and one token more."""

    drafted: int
    accepted: int
    draft_seconds: float
    verify_seconds: float


@dataclass(frozen=True)
class Generation:
    """The new tokens of one request and what they took; plain decoding has no blocks."""

    tokens: list[int]
    seconds: float
    blocks: list[Block] = field(default_factory=list)


DraftLength = Callable[[Sequence[Block]], int]
"""The next block's draft length, from the blocks so far."""


@dataclass(frozen=True)
class Sampling:
    """How a token is chosen: greedily, or at ``temperature`` with ``rng``."""

    temperature: float = 0.0
    rng: np.random.Generator = field(default_factory=lambda: np.random.default_rng(0))

    def probabilities(self, logits: Float32[np.ndarray, "*batch vocab"]) -> Float64[np.ndarray, "*batch vocab"]:
        scaled = np.asarray(logits, dtype=np.float64) / self.temperature
        weights = np.exp(scaled - scaled.max(axis=-1, keepdims=True))
        return np.asarray(weights / weights.sum(axis=-1, keepdims=True))

    def draw(self, probs: Probs) -> int:
        cumulative = probs.cumsum()
        index = int(np.searchsorted(cumulative, self.rng.random() * cumulative[-1], side="right"))
        return min(index, int(np.flatnonzero(probs)[-1]))


def fixed(draft_len: int) -> DraftLength:
    """The same draft length for every block."""
    return lambda blocks: draft_len


def adaptive(cost_ratio: float, verify_ratios: dict[int, float]) -> DraftLength:
    """The draft length of the largest predicted speed-up at the acceptance seen so far.

    ``verify_ratios`` maps a draft length to the measured time of verifying it over one step. Two accepted and two rejected
    tokens are counted in advance, so the first blocks decide little.
    """

    def choose(blocks: Sequence[Block]) -> int:
        accepted = sum(block.accepted for block in blocks)
        visited = sum(min(block.accepted + 1, block.drafted) for block in blocks)
        return best_draft_len((accepted + 2) / (visited + 4), cost_ratio, verify_ratios)

    return choose


def resume(backend: LatencyBackend, tokens: Sequence[int]) -> None:
    """Make the cache hold exactly ``tokens``: the longest common start is kept, only the rest is computed."""
    limit = min(len(backend.tokens), len(tokens))
    common = next((i for i in range(limit) if backend.tokens[i] != tokens[i]), limit)
    backend.trim(common)
    if common < len(tokens):
        backend.prefill(tokens[common:])


def begin(backend: LatencyBackend, prompt: Sequence[int]) -> list[int]:
    """Make the cache ready to answer ``prompt``; the text that the answer is appended to, all but its last token cached.

    Of an encoder-decoder that text is the start token alone: its encoder has read the prompt.
    """
    if backend.decoder_start is None:
        resume(backend, prompt[:-1])
        return list(prompt)
    backend.encode(prompt)
    return [backend.decoder_start]


def decode(
    target: LatencyBackend,
    prompt: Sequence[int],
    max_new_tokens: int,
    *,
    sampling: Sampling = Sampling(),
    eos: Collection[int] = (),
) -> Generation:
    """Plain decoding: one target call per token. Seconds exclude the prompt."""
    clock = target.clock()
    _check_request(prompt, max_new_tokens, target)
    text = begin(target, prompt)
    first, started = len(text), clock()
    for _ in range(max_new_tokens):
        text.append(_next(target, text[-1:], sampling))
        if text[-1] in eos:
            break
    return Generation(text[first:], clock() - started)


def speculate(
    target: LatencyBackend,
    draft: LatencyBackend,
    prompt: Sequence[int],
    max_new_tokens: int,
    draft_len: DraftLength,
    *,
    sampling: Sampling = Sampling(),
    eos: Collection[int] = (),
) -> Generation:
    """Speculative decoding (Leviathan et al. 2023, Alg. 1): the text is distributed as ``decode``'s, and equals it when greedy.

    Between blocks the target has cached all but the last token; rejected tokens are trimmed, never recomputed. A block is
    always drafted whole, since llama.cpp rebuilds its graph when the batch shape changes; the text is cut afterwards.
    """
    check_pair(target, draft)
    clock = target.clock()
    _check_request(prompt, max_new_tokens, target, draft)
    begin(draft, prompt)
    text, blocks = begin(target, prompt), list[Block]()
    first, end, started = len(text), len(text) + max_new_tokens, clock()
    while len(text) < end:
        begun = clock()
        room = min(target.context_length, draft.context_length) - len(text)
        proposal, draft_probs = propose(draft, text, min(draft_len(blocks), room), sampling)
        drafted = clock()
        emitted = verify(target, text[-1], proposal, draft_probs, sampling)
        text += emitted
        target.trim(len(text) - 1)
        draft.trim(min(len(draft.tokens), len(text) - 1))
        blocks.append(Block(len(proposal), len(emitted) - 1, drafted - begun, clock() - drafted))
        stop = next((i for i, token in enumerate(emitted) if token in eos), None)
        if stop is not None:
            end = min(end, len(text) - len(emitted) + stop + 1)
    seconds = clock() - started
    target.trim(min(len(target.tokens), end - 1))
    draft.trim(min(len(draft.tokens), end - 1))
    return Generation(text[first:end], seconds, blocks)


def propose(
    draft: LatencyBackend, text: Sequence[int], draft_len: int, sampling: Sampling
) -> tuple[list[int], list[Probs]]:
    """``draft_len`` tokens after ``text`` and the distributions they were drawn from (none when greedy)."""
    proposal, probs = list[int](), list[Probs]()
    pending = text[len(draft.tokens) :]
    for _ in range(draft_len):
        if sampling.temperature == 0:
            proposal.append(int(draft.greedy(pending)[-1]))
        else:
            probs.append(sampling.probabilities(draft.extend(pending)[-1]))
            proposal.append(sampling.draw(probs[-1]))
        pending = proposal[-1:]
    return proposal, probs


def verify(
    target: LatencyBackend, last: int, proposal: Sequence[int], draft_probs: Sequence[Probs], sampling: Sampling
) -> list[int]:
    """The accepted start of ``proposal`` and one token of the target, from one target call over ``last`` and ``proposal``."""
    if sampling.temperature == 0:
        return accepted_greedily(proposal, target.greedy([last, *proposal]))
    target_probs = sampling.probabilities(target.extend([last, *proposal]))
    for index, token in enumerate(proposal):
        if sampling.rng.random() * draft_probs[index][token] >= target_probs[index][token]:
            residual = np.maximum(target_probs[index] - draft_probs[index], 0)
            # Rounding can leave no residual where the two agree: then rejection had probability 0 and the target decides.
            return [*proposal[:index], sampling.draw(residual if residual.any() else target_probs[index])]
    return [*proposal, sampling.draw(target_probs[-1])]


def accepted_greedily(proposal: Sequence[int], choice: Int[np.ndarray, " tokens"]) -> list[int]:
    """The target's greedy ``choice`` as far as ``proposal`` foresaw it, and its first own token."""
    kept = next((i for i, token in enumerate(proposal) if token != choice[i]), len(proposal))
    return [int(token) for token in choice[: kept + 1]]


def _next(target: LatencyBackend, tokens: Sequence[int], sampling: Sampling) -> int:
    if sampling.temperature == 0:
        return int(target.greedy(tokens)[-1])
    return sampling.draw(sampling.probabilities(target.extend(tokens)[-1]))


def _check_request(prompt: Sequence[int], max_new_tokens: int, *backends: LatencyBackend) -> None:
    if not prompt:
        raise UserError("the prompt is empty", remedy="give at least one token, such as the start token")
    context = min(backend.context_length for backend in backends)
    before = len(prompt) if backends[0].decoder_start is None else 1
    if before + max_new_tokens > context:
        raise UserError(
            f"{before} prompt tokens and {max_new_tokens} new ones do not fit the context of {context}",
            remedy="ask for fewer tokens, or set a larger context_length",
        )
