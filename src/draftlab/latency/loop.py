"""Plain and speculative decoding of one request on any engine, lossless at every temperature, with the time it took."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from jaxtyping import Float64, Int

from draftlab.core.sampling_numpy import GREEDY, Probs, Sampling, draw, to_probs
from draftlab.core.theory import best_draft_len
from draftlab.engine.loop import DecodingPair, Proposal, Reading, Timed, Verification, agreed, steps
from draftlab.errors import UserError
from draftlab.models.backend import LatencyBackend, Logits, check_pair
from draftlab.models.llama_cpp import BATCH


@dataclass(frozen=True)
class Block:
    """One target call: ``calls`` of the draft proposed ``drafted`` tokens, in a sequence or a tree. Of these, ``judged`` were compared with the
    target's choice: the ``accepted`` ones, and the first rejected one. The accepted ones are kept with one more token, unless the text ends before.
    """

    drafted: int
    calls: int
    judged: int
    accepted: int
    draft_seconds: float
    verify_seconds: float


@dataclass(frozen=True)
class Generation:
    """The new tokens of one request and the time they took; plain decoding has no blocks."""

    tokens: list[int]
    seconds: float
    blocks: list[Block] = field(default_factory=list)


DraftLength = Callable[[Sequence[Block]], int]
"""The next block's draft length, from the blocks so far."""


def fixed(draft_len: int) -> DraftLength:
    """The same draft length for every block."""
    return lambda blocks: draft_len


def adaptive(cost_ratio: float, verify_ratios: dict[int, float]) -> DraftLength:
    """The draft length with the largest predicted speed-up at the acceptance seen so far.

    ``verify_ratios`` maps a draft length to the measured time of verifying it over one step. Two accepted and two rejected
    tokens are counted in advance, so the first blocks decide little.
    """

    def choose(blocks: Sequence[Block]) -> int:
        accepted = sum(block.accepted for block in blocks)
        judged = sum(block.judged for block in blocks)
        return best_draft_len((accepted + 2) / (judged + 4), cost_ratio, verify_ratios)

    return choose


def decode(
    target: LatencyBackend,
    prompt: Sequence[int],
    max_new_tokens: int,
    *,
    sampling: Sampling = GREEDY,
    rng: np.random.Generator | None = None,
    eos: Collection[int] = (),
) -> Generation:
    """Plain decoding: one target call per token. Seconds exclude the prompt."""
    clock, rng = target.clock(), rng or np.random.default_rng(0)
    text = start([target], prompt, max_new_tokens)
    first, started = len(text), clock()
    for _ in range(max_new_tokens):
        if sampling.temperature == 0:
            text.append(int(target.greedy(text[-1:])[-1]))
        else:
            text.append(draw(to_probs(target.extend(text[-1:])[-1], sampling), rng))
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
    sampling: Sampling = GREEDY,
    rng: np.random.Generator | None = None,
    eos: Collection[int] = (),
    min_prob: float = 0.0,
    mask: int | None = None,
) -> Generation:
    """Speculative decoding (Leviathan et al. 2023, Alg. 1): the text is distributed as ``decode``'s, and equals it when greedy.

    A block ends early where the draft's most probable token has a probability below ``min_prob``. That depends on the distribution
    alone, not on the token drawn from it, so the text stays lossless. With a ``mask``, the draft proposes a block in one call
    (``models.parallel_draft``), and reads this token for each token that is not known yet.
    """
    check_pair(target, draft)
    text, rng = start([target, draft], prompt, max_new_tokens), rng or np.random.default_rng(0)
    pair = RequestPair(target, draft, text, draft_len, sampling, rng, min_prob, mask)
    return generate((target, draft), pair, max_new_tokens, eos)


class TextPair(DecodingPair[Proposal, Reading], Protocol):
    """A pair that writes one ``text`` in ``blocks``. Its last proposal has ``drafted`` tokens, from ``calls`` of the draft.

    Its verification names the tokens of the text that it follows, up to the first rejected one or further.
    """

    text: list[int]
    drafted: int
    calls: int
    blocks: list[Block]


def generate(
    models: Sequence[LatencyBackend],
    pair: TextPair[Proposal, Reading],
    max_new_tokens: int,
    eos: Collection[int],
) -> Generation:
    """Run the loop for one request on a target and its drafts, and append its blocks as they end; seconds exclude the prompt."""
    clock, tokens = models[0].clock(), list[int]()
    before, timed, started = len(pair.text), Timed(pair, clock), clock()
    for step in steps(timed, 1, max_new_tokens, eos):
        begun, proposed, _, _, settled = timed.laps[-1]
        accepted, longest = step.verification.accepted[0], len(step.verification.drafted[0])
        judged = min(accepted + 1, longest)
        pair.blocks.append(Block(pair.drafted, pair.calls, judged, accepted, proposed - begun, settled - proposed))
        tokens += step.emitted[0]
    seconds = clock() - started
    crop(models, before + len(tokens) - 1)
    return Generation(tokens, seconds, pair.blocks)


@dataclass
class RequestPair:
    """The pair of the loop (``engine.loop.DecodingPair``) for a single request, on engines that return numpy arrays and choose greedy tokens.

    It exists beside ``engine.batched`` because a process that measures llama.cpp must not load torch: torch tensors between two calls cost
    70 to 100 microseconds a call. Between blocks the target has cached all but the last token. A block is drafted whole unless the draft
    falls below ``min_prob``, since llama.cpp rebuilds its graph when the batch shape changes.
    """

    target: LatencyBackend
    draft: LatencyBackend
    text: list[int]
    draft_len: DraftLength
    sampling: Sampling
    rng: np.random.Generator
    min_prob: float
    mask: int | None = None
    drafted: int = 0
    calls: int = 0
    blocks: list[Block] = field(default_factory=list)

    @property
    def room(self) -> int:
        """How many more tokens fit the contexts of both models."""
        return min(self.target.context_length, self.draft.context_length) - len(self.text)

    def propose(self, left: Sequence[int]) -> tuple[list[int], list[Probs]]:
        """Tokens after the text, and the distributions they were drawn from (none when greedy)."""
        self.calls, tokens, probs = 0, list[int](), list[Probs]()
        pending = unread(self.draft, self.text)
        length = min(self.draft_len(self.blocks), self.room)
        if self.mask is not None and length > 0:
            return self._propose_at_once([*pending, *[self.mask] * (length - 1)], length)
        for _ in range(length):
            self.calls += 1
            if self.sampling.temperature == 0:
                token = self.draft.guess(pending, self.min_prob)
            else:
                probs.append(to_probs(self.draft.extend(pending)[-1], self.sampling))
                token = draw(probs[-1], self.rng) if probs[-1].max() >= self.min_prob else None
            if token is None:
                break
            tokens.append(token)
            pending = [token]
        self.drafted = len(tokens)
        return tokens, probs

    def _propose_at_once(self, pending: Sequence[int], length: int) -> tuple[list[int], list[Probs]]:
        """A block in one call of the draft, which forgets the masks."""
        self.calls, probs = 1, list[Probs]()
        if self.sampling.temperature == 0:
            tokens = self.draft.guesses(pending, length, self.min_prob)
        else:
            every = to_probs(self.draft.extend(pending)[-length:], self.sampling)
            probs = list(itertools.takewhile(lambda one: one.max() >= self.min_prob, every))
            tokens = [draw(one, self.rng) for one in probs]
        self.draft.trim(len(self.text))
        self.drafted = len(tokens)
        return tokens, probs

    def read(self, proposal: tuple[list[int], list[Probs]]) -> Logits | Int[np.ndarray, " tokens"]:
        """The target's greedy token after each token, or its logits where it samples."""
        call = self.target.greedy if self.sampling.temperature == 0 else self.target.extend
        return call([self.text[-1], *proposal[0]])

    def verify(
        self, proposal: tuple[list[int], list[Probs]], reading: Logits | Int[np.ndarray, " tokens"]
    ) -> Verification:
        tokens, draft_probs = proposal
        if self.sampling.temperature == 0:
            accepted = agreed(reading, tokens)
            return Verification([tokens], [0], [accepted], [int(reading[accepted])])
        accepted, token = verify(tokens, draft_probs, to_probs(reading, self.sampling), self.rng)
        return Verification([tokens], [0], [accepted], [token])

    def settle(self, verification: Verification, kept: Sequence[int]) -> None:
        self.text += [*verification.drafted[0][: verification.accepted[0]], verification.token[0]]
        crop((self.target, self.draft), len(self.text) - 1)


def verify(
    tokens: Sequence[int],
    draft_probs: Sequence[Probs],
    target_probs: Float64[np.ndarray, "positions vocab"],
    rng: np.random.Generator,
) -> tuple[int, int]:
    """How many of the drafted ``tokens`` are accepted, and the token after them."""
    for index, token in enumerate(tokens):
        if rng.random() * draft_probs[index][token] >= target_probs[index][token]:
            residual = np.maximum(target_probs[index] - draft_probs[index], 0)
            # Rounding can leave no residual where the two agree: then rejection had probability 0 and the target decides.
            return index, draw(residual if residual.any() else target_probs[index], rng)
    return len(tokens), draw(target_probs[-1], rng)


def crop(models: Sequence[LatencyBackend], length: int) -> None:
    """Let no model cache more than ``length`` tokens."""
    for model in models:
        if len(model.tokens) > length:
            model.trim(length)


def start(models: Sequence[LatencyBackend], prompt: Sequence[int], max_new_tokens: int) -> list[int]:
    """Let each model ``begin`` to answer ``prompt``; return the text that the answer of the target, the first one, continues.

    **Raises:** ``UserError`` if the prompt is empty, or leaves no room for ``max_new_tokens``, of which there must be 1 or more.
    """
    if not prompt:
        raise UserError("the prompt is empty", remedy="give at least one token, such as the start token")
    if max_new_tokens < 1:
        raise UserError(f"max_new_tokens is {max_new_tokens}", remedy="give 1 or more")
    context = min(model.context_length for model in models)
    before = len(prompt) if models[0].decoder_start is None else 1
    if before + max_new_tokens > context:
        raise UserError(
            f"{before} prompt tokens and {max_new_tokens} new ones do not fit the context of {context}",
            remedy="ask for fewer tokens, or set a larger context_length",
        )
    return [begin(model, prompt) for model in reversed(models)][-1]


def begin(backend: LatencyBackend, prompt: Sequence[int]) -> list[int]:
    """Make the cache ready to answer ``prompt``. Return the text that the answer continues; all but its last token are cached.

    For an encoder-decoder this text is the start token alone: its encoder has read the prompt.
    """
    if backend.decoder_start is None:
        resume(backend, prompt[:-1])
        return list(prompt)
    backend.encode(prompt)
    return [backend.decoder_start]


def resume(backend: LatencyBackend, tokens: Sequence[int]) -> None:
    """Make the cache hold exactly ``tokens``, also that of the model behind a lookup: only what follows the common start is computed."""
    common = agreed(backend.tokens, tokens)
    backend.trim(common)
    if common < len(tokens):
        backend.prefill(tokens[common:])
    if inner := getattr(backend, "inner", None):
        resume(inner, tokens)


def unread(backend: LatencyBackend, text: Sequence[int], last: int = 1) -> Sequence[int]:
    """The tokens of ``text`` that the cache does not hold, for one call; of more than fit a call, all but the ``last`` are read first."""
    if len(text) - len(backend.tokens) > BATCH:
        resume(backend, text[:-last])
    return text[len(backend.tokens) :]
