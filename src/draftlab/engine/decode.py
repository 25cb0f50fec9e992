"""Decoding: the plain loop of one model, and the one speculative loop.

A block of the speculative loop: the draft proposes up to ``draft_len`` tokens in each of ``num_drafts`` sequences, the target reads
them all in one forward, a verifier keeps a prefix of one sequence and adds a token of its own. The text follows the target's distribution
exactly; at temperature 0 it is the target's own greedy text. Caches are cropped to what stands, never recomputed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field

import torch
from jaxtyping import Float, Float64, Int64
from torch import Generator, Tensor

from draftlab.core.sampling import Sampling, draft_tokens, draw, to_probs
from draftlab.core.verify import PATH_VERIFIERS, VERIFIERS
from draftlab.core.verify.path import PathVerifier
from draftlab.core.verify.sequence import verify_sequences
from draftlab.core.verify.token import TokenVerifier
from draftlab.errors import UserError
from draftlab.models import Decoder, LanguageModel
from draftlab.models.batching import check_lengths, pad_rows
from draftlab.models.llama import LlamaCache
from draftlab.models.medusa import Medusa

GREEDY = Sampling(temperature=0.0)
LARGE_VOCAB = 8192
"""Up to here, finding the tokens that truncated distributions leave takes as long as it saves (K-SEQ takes half the time at 32,000)."""

Observer = Callable[[list[int], int, Float[Tensor, "batch vocab"], Int64[Tensor, " batch"]], None]
"""Called with the request of each row, the answer position, the logits there and the tokens chosen from them."""
BlockObserver = Callable[[int, Float[Tensor, "emitted vocab"]], None]
"""Called with a request and the target's logits at the tokens that a block emitted to it."""


@torch.inference_mode()
def generate(
    model: LanguageModel,
    prompts: Sequence[Sequence[int]],
    *,
    max_new_tokens: int,
    eos_ids: Collection[int],
    sampling: Sampling = GREEDY,
    generator: Generator | None = None,
    batch: int | None = None,
    observe: Observer | None = None,
) -> list[list[int]]:
    """Answers of ``model`` alone, one token per forward, ``batch`` prompts at a time (all, unless given).

    An answer ends with its first end-of-text token, and its row leaves the batch. ``UserError`` for a prompt without room for
    ``max_new_tokens``.
    """
    _check_requests(model, prompts, max_new_tokens, batch)
    ends, decoder = frozenset(eos_ids), model.decoder()
    answers: list[list[int]] = [[] for _ in prompts]
    for rows in _batches(len(prompts), batch):
        cache, tokens = decoder.prefill([prompts[request] for request in rows], max_new_tokens)
        for position in range(max_new_tokens):
            logits = cache.extend(tokens[:, None])[:, 0]
            tokens = _choose(logits, sampling, generator)
            if observe is not None:
                observe(rows, position, logits, tokens)
            chosen = tokens.tolist()
            for request, token in zip(rows, chosen, strict=True):
                answers[request].append(token)
            if not ends.isdisjoint(chosen):
                kept = _close_gaps([token not in ends for token in chosen])
                if not kept:
                    break
                rows = [rows[place] for place in kept]
                cache.take(kept)
                tokens = tokens[torch.tensor(kept, device=tokens.device)]
    return answers


@dataclass
class BlockTrace:
    """One request, decoded: its answer, and what each of its blocks did.

    Per block: tokens ``drafted`` per sequence; ``visited`` of them (accepted, or the first rejected one); ``accepted``; tokens ``emitted``;
    ``overlap``, the sum of sum_x min(target, draft) over the visited positions; ``repo``, that of min(target, draft) at the
    drafted token (OSD's estimator). ``alpha`` = overlap / visited, ``block_efficiency`` = emitted / blocks, sums over sums.
    """

    answer_ids: list[int] = field(default_factory=list)
    finished: bool = False
    drafted: list[int] = field(default_factory=list)
    visited: list[int] = field(default_factory=list)
    accepted: list[int] = field(default_factory=list)
    emitted: list[int] = field(default_factory=list)
    overlap: list[float] = field(default_factory=list)
    repo: list[float] = field(default_factory=list)

    @classmethod
    def plain(cls, answer: list[int]) -> BlockTrace:
        """The trace of plain decoding: a call per token, nothing drafted."""
        nothing = [0] * len(answer)
        return cls(answer, drafted=nothing, visited=nothing, accepted=nothing, emitted=[1] * len(answer))


@dataclass(frozen=True)
class Decoded:
    """Prompts, decoded: one trace per request, the number of blocks (target forwards), and the seconds each part of the loop spent."""

    traces: list[BlockTrace]
    blocks: int
    draft_seconds: float
    target_seconds: float
    verify_seconds: float


@torch.inference_mode()
def speculate(
    target: LanguageModel,
    draft: LanguageModel | Sequence[LanguageModel],
    prompts: Sequence[Sequence[int]],
    *,
    draft_len: int,
    max_new_tokens: int,
    eos_ids: Collection[int],
    num_drafts: int = 1,
    verifier: str | TokenVerifier | PathVerifier = "single",
    tail: PathVerifier | None = None,
    sampling: Sampling = GREEDY,
    draft_sampling: Sampling | Sequence[Sampling] | None = None,
    generator: Generator | None = None,
    observe: BlockObserver | None = None,
    batch: int | None = None,
) -> Decoded:
    """Speculative decoding, ``batch`` prompts at a time (all, unless given), with any verifier (or its name in ``VERIFIERS``) and
    ``num_drafts`` sequences per request.

    ``draft`` is one model, or one per sequence. It samples like the target unless ``draft_sampling`` says otherwise, for all
    sequences or for each. ``tail`` verifies what is left of a sequence once it is the only one. An answer ends with its first
    end-of-text token or at exactly ``max_new_tokens``. A ``Medusa`` as the draft guesses a tree: ``draft_len`` and ``num_drafts`` are its
    depth and its leaves, and siblings are distinct, as ``rrs`` and ``greedy`` expect them. ``UserError`` for a ``draft_len`` below 1, different vocabularies, a prompt
    without room, a verifier that does not fit the drafts, or sampling without a generator.
    """
    drafts = list(draft) if isinstance(draft, Sequence) else [draft]
    policy = _policy(verifier, num_drafts, draft_len, sampling, draft_sampling or sampling, generator, tail, drafts)
    for model in (target, *drafts):
        if model.vocab_size != target.vocab_size:
            raise UserError(
                f"target and draft have different vocabularies ({target.vocab_size} and {model.vocab_size} tokens)",
                remedy="use two models that share a tokenizer",
            )
        _check_requests(model, prompts, max_new_tokens, batch)
    traces = [BlockTrace() for _ in prompts]
    heads = drafts[0] if isinstance(drafts[0], Medusa) else None  # they read the target's states
    decoder, *draft_decoders = (model.decoder() for model in (target, *([] if heads else drafts)))
    share, room = num_drafts // len(drafts), max_new_tokens + draft_len
    blocks, clock = 0, _Clock(target.device)
    for rows in _batches(len(prompts), batch):  # the request of each group of num_drafts rows
        texts = [prompts[request] for request in rows]
        reader = _TreeSide(heads, decoder, texts, room) if heads else _Side(decoder, texts, num_drafts, room)
        # A draft of several that did not write the sequence that stands reads up to a whole block of it at once.
        extra = draft_len if len(drafts) > 1 else 0
        writers = [_Side(draft_decoder, texts, share, room + extra) for draft_decoder in draft_decoders]
        while rows:
            left = [max_new_tokens - len(traces[request].answer_ids) for request in rows]
            if isinstance(reader, _TreeSide):
                proposed = [reader.propose(policy)]
            else:
                proposed = [
                    _propose(writer, policy.of_draft(number, share), min(draft_len, max(left)), policy)
                    for number, writer in enumerate(writers)
                ]
            tokens = torch.cat([found[0] for found in proposed], 1)
            distributions = [distribution for _, distribution in proposed if distribution is not None]
            clock.lap("draft")
            logits = reader.read(tokens)
            clock.lap("target")
            verdict = _judge(logits, torch.cat(distributions, 1) if distributions else None, tokens, policy)
            for place, request in enumerate(rows):
                _emit(traces[request], verdict, place, left[place], eos_ids)
                if observe is not None:
                    observe(request, logits[place, verdict.path[place], : traces[request].emitted[-1]])
            reader.settle(verdict)
            for number, writer in enumerate(writers):
                writer.settle(verdict, None if len(writers) == 1 else tokens[:, number].tolist())
            going = [not t.finished and len(t.answer_ids) < max_new_tokens for t in map(traces.__getitem__, rows)]
            if not all(going):
                kept = _close_gaps(going)
                rows = [rows[place] for place in kept]
                for side in (reader, *writers) if rows else ():
                    side.take(kept)
            clock.lap("verify")
            blocks += 1
    return Decoded(traces, blocks, clock.seconds["draft"], clock.seconds["target"], clock.seconds["verify"])


@dataclass(frozen=True)
class _Policy:
    """How the loop drafts and verifies; ``is_greedy`` when both sides only ever take the most probable token."""

    sampling: Sampling
    draft_samplings: list[Sampling]
    token_verifier: TokenVerifier | None
    path_verifier: PathVerifier
    tail: PathVerifier | None
    generator: Generator | None

    @property
    def is_greedy(self) -> bool:
        return all(sampling.temperature == 0 for sampling in (self.sampling, *self.draft_samplings))

    @property
    def is_truncated(self) -> bool:
        """Whether both sides leave few tokens of the vocabulary."""
        return all(s.temperature == 0 or s.top_k or s.top_p < 1 for s in (self.sampling, *self.draft_samplings))

    def of_draft(self, number: int, share: int) -> list[Sampling]:
        """How the sequences of one draft model are sampled, when each writes ``share`` of them."""
        return self.draft_samplings[number * share : (number + 1) * share]


def _policy(
    verifier: str | TokenVerifier | PathVerifier,
    num_drafts: int,
    draft_len: int,
    sampling: Sampling,
    draft_sampling: Sampling | Sequence[Sampling],
    generator: Generator | None,
    tail: PathVerifier | None,
    drafts: Sequence[LanguageModel],
) -> _Policy:
    if draft_len < 1 or num_drafts < 1:
        name, value = ("draft_len", draft_len) if draft_len < 1 else ("num_drafts", num_drafts)
        raise UserError(f"{name} is {value}", remedy="give 1 or more")
    if isinstance(verifier, str):
        if verifier not in VERIFIERS:
            raise UserError(f"unknown verifier {verifier!r}", remedy=f"use one of {', '.join(VERIFIERS)}")
        verifier = VERIFIERS[verifier]
    token_verifier = verifier if isinstance(verifier, TokenVerifier) else None
    if token_verifier is None and num_drafts > 1:
        raise UserError(f"{verifier.name} verifies one sequence, not {num_drafts}", remedy="set num_drafts 1")
    models = len(drafts)
    if models not in (1, num_drafts):
        raise UserError(f"{models} draft models for {num_drafts} drafts", remedy="give one, or one per draft")
    distributions = [draft_sampling] * num_drafts if isinstance(draft_sampling, Sampling) else list(draft_sampling)
    if len(distributions) != num_drafts:
        raise UserError(
            f"{len(distributions)} draft samplings for {num_drafts} drafts", remedy="give one, or one per draft"
        )
    if token_verifier and token_verifier.drafting != "independent" and (models > 1 or len(set(distributions)) > 1):
        raise UserError(
            f"{verifier.name} needs drafts of one distribution", remedy="give one draft sampling, or use specinfer"
        )
    path_verifier = PATH_VERIFIERS["single"] if isinstance(verifier, TokenVerifier) else verifier
    if num_drafts == 1 and verifier is VERIFIERS["single"]:
        token_verifier = None  # the same distribution, all positions at once
    policy = _Policy(sampling, distributions, token_verifier, tail or path_verifier, tail, generator)
    if isinstance(drafts[0], Medusa):
        _check_tree(drafts[0], num_drafts, draft_len, policy)
    if generator is None and not policy.is_greedy:
        raise UserError("sampling without a generator", remedy="pass a seeded torch.Generator")
    return policy


def _check_tree(heads: Medusa, num_drafts: int, draft_len: int, policy: _Policy) -> None:
    tree, verifier = heads.tree, policy.token_verifier
    if (num_drafts, draft_len) != (tree.leaves, tree.depth):
        what = f"num_drafts is {num_drafts} and draft_len {draft_len}, the tree has {tree.leaves} leaves of depth {tree.depth}"
        raise UserError(what, remedy="give the tree's")
    is_distinct = verifier is not None and verifier.drafting in ("without_replacement", "greedy")
    if tree.leaves > 1 and not policy.is_greedy and not is_distinct:
        raise UserError("siblings of a tree are distinct, this verifier expects others", remedy="use rrs or greedy")


class _Side:
    """One of the two models in the loop: its cache, and the tokens of each request that it has not read yet.

    Each request holds ``num_drafts`` rows, equal but for the block under way.
    """

    def __init__(self, decoder: Decoder, prompts: Sequence[Sequence[int]], num_drafts: int, room: int) -> None:
        self.cache, following = decoder.prefill(prompts, room)
        self.num_drafts, self.device = num_drafts, following.device
        if num_drafts > 1:
            self.cache.take([place for place in range(len(prompts)) for _ in range(num_drafts)])
        self.unread = [[token] for token in following.tolist()]
        self.begin = self.cache.lengths

    def read(self, tokens: Int64[Tensor, "batch drafts new"]) -> Float[Tensor, "batch drafts new+1 vocab"]:
        """Read the one unread token and the drafted ones; the logits after each."""
        self.begin = self.cache.lengths
        last = torch.tensor(self.unread, device=self.device)[:, None].expand(-1, self.num_drafts, -1)
        logits = self.cache.extend(torch.cat([last, tokens], -1).flatten(0, 1))
        return logits.view(*tokens.shape[:2], -1, logits.shape[-1])

    def catch_up(self) -> Float[Tensor, "rows vocab"]:
        """Read the unread tokens, one or two by request; the logits after the last of them."""
        self.begin = self.cache.lengths
        counts = [len(tokens) for tokens in self.unread for _ in range(self.num_drafts)]
        tokens = pad_rows(self.unread).to(self.device)
        logits = self.cache.extend(tokens.repeat_interleave(self.num_drafts, 0) if self.num_drafts > 1 else tokens)
        width = tokens.shape[1]
        if min(counts) == width:
            return logits[:, -1]
        self.cache.crop([length - width + count for length, count in zip(self.cache.lengths, counts, strict=True)])
        last = torch.tensor(counts, device=self.device) - 1
        return logits[torch.arange(len(counts), device=self.device), last]

    def settle(self, verdict: _Verdict, own: Sequence[Sequence[int]] | None = None) -> None:
        """Keep what stands of the block in all rows of a request; what was not read of it, and the new token, is unread.

        ``own`` are the tokens that this side read of each request, where they may not be those that stand.
        """
        if self.num_drafts > 1:
            winners = [
                p * self.num_drafts + path for p, path in enumerate(verdict.path) for _ in range(self.num_drafts)
            ]
            self.cache.take(winners, since=self.begin)
        known = [self.begin[place * self.num_drafts] + len(tokens) for place, tokens in enumerate(self.unread)]
        lengths = []
        for place, stands in enumerate(verdict.stands):
            agreed = stands if own is None else _agreed(own[place], verdict.drafted[place][:stands])
            length = min(known[place] + agreed, self.cache.lengths[place * self.num_drafts])
            unread = known[place] + stands - length
            self.unread[place] = [*verdict.drafted[place][stands - unread : stands], verdict.token[place]]
            lengths += [length] * self.num_drafts
        self.cache.crop(lengths)

    def take(self, places: Sequence[int]) -> None:
        """Keep the requests at ``places``, in this order."""
        self.unread = [self.unread[place] for place in places]
        self.cache.take([place * self.num_drafts + draft for place in places for draft in range(self.num_drafts)])


class _TreeSide:
    """The target with Medusa heads, both models of the loop in one: it guesses a tree from its last state, and reads it in one pass."""

    def __init__(self, heads: Medusa, decoder: Decoder, prompts: Sequence[Sequence[int]], room: int) -> None:
        if min(map(len, prompts)) < 2:
            raise UserError("a prompt of one token", remedy="Medusa heads need 2 or more")
        self.heads, self.tree = heads, heads.tree
        cache, self.unread = decoder.prefill(prompts, room + len(heads.tree.depths))
        assert isinstance(cache, LlamaCache)
        self.cache = cache
        self.cache.crop([len(prompt) - 2 for prompt in prompts])
        self.state = self.cache.states(torch.tensor([prompt[-2:-1] for prompt in prompts], device=self.unread.device))

    def propose(
        self, policy: _Policy
    ) -> tuple[Int64[Tensor, "batch leaves depth"], Float64[Tensor, "batch leaves depth vocab"] | None]:
        """The guesses of each head at the last state: its most probable tokens, or as the verifier wants them drawn."""
        logits, siblings = self.heads.guess(self.state), self.tree.siblings.to(self.state.device)
        distributions = None if policy.is_greedy else to_probs(logits, policy.draft_samplings[0])
        columns = []
        for depth, width in enumerate(self.tree.widths):
            if distributions is None:
                guesses = logits[:, depth].topk(width).indices
            else:
                assert policy.generator is not None
                drafting = policy.token_verifier.drafting if policy.token_verifier and width > 1 else "independent"
                guesses = draft_tokens(distributions[:, depth, None].expand(-1, width, -1), drafting, policy.generator)
            columns.append(guesses[:, siblings[:, depth]])
        tokens = torch.stack(columns, -1)
        return tokens, None if distributions is None else distributions[:, None].expand(-1, tokens.shape[1], -1, -1)

    def read(self, tokens: Int64[Tensor, "batch leaves depth"]) -> Float[Tensor, "batch leaves depth+1 vocab"]:
        """Read the unread token and the tree under it; the logits along each leaf's sequence."""
        self.begin = self.cache.lengths
        nodes = torch.cat([self.unread[:, None], tokens.flatten(1)[:, self.tree.places.to(tokens.device)]], -1)
        states = self.cache.states(nodes, self.tree)
        self.states = states.view(*nodes.shape, -1)
        return self.cache.decoder.project(states).view(*nodes.shape, -1)[:, self.tree.paths.to(nodes.device)]

    def settle(self, verdict: _Verdict) -> None:
        """Keep what stands of the block; its last state is what the heads guess from next."""
        device = self.states.device
        nodes = self.tree.paths.to(device)[torch.tensor(verdict.path, device=device)]
        self.cache.gather(self.begin, nodes)
        self.cache.crop([begin + 1 + stands for begin, stands in zip(self.begin, verdict.stands, strict=True)])
        rows = torch.arange(len(nodes), device=device)
        self.state = self.states[rows, nodes[rows, torch.tensor(verdict.stands, device=device)]]
        self.unread = torch.tensor(verdict.token, device=device)

    def take(self, places: Sequence[int]) -> None:
        """Keep the requests at ``places``, in this order."""
        self.cache.take(places)
        self.state, self.unread = self.state[list(places)], self.unread[list(places)]


def _agreed(own: Sequence[int], others: Sequence[int]) -> int:
    """How many tokens two sequences have in common before they part."""
    return next((place for place, (a, b) in enumerate(zip(own, others, strict=False)) if a != b), len(others))


def _propose(
    writer: _Side, samplings: Sequence[Sampling], length: int, policy: _Policy
) -> tuple[Int64[Tensor, "batch drafts length"], Float64[Tensor, "batch drafts length vocab"] | None]:
    """Draft ``length`` tokens per sequence of one model; with their distributions, unless all is greedy."""
    drafts, is_greedy = writer.num_drafts, policy.is_greedy
    logits = writer.catch_up()
    tokens: list[Tensor] = []
    distributions: list[Tensor] = []
    for depth in range(length):
        if depth:
            logits = writer.cache.extend(tokens[-1].view(-1, 1))[:, 0]
        if is_greedy:
            tokens.append(logits.argmax(-1).view(-1, drafts))
            continue
        by_draft = logits.view(-1, drafts, logits.shape[-1])
        if len(set(samplings)) == 1:
            probs = to_probs(by_draft, samplings[0])
        else:
            probs = torch.stack([to_probs(by_draft[:, k], s) for k, s in enumerate(samplings)], 1)
        # Only the first tokens of a block share their past: there the verifier says how they are drawn together.
        drafting = policy.token_verifier.drafting if policy.token_verifier and depth == 0 else "independent"
        assert policy.generator is not None
        tokens.append(draft_tokens(probs, drafting, policy.generator))
        distributions.append(probs)
    return torch.stack(tokens, -1), torch.stack(distributions, 2) if distributions else None


@dataclass(frozen=True)
class _Verdict:
    """By request: the ``drafted`` tokens of the sequence ``path`` that stood longest, how many of them stand, the ``token`` that follows,
    and the terms of alpha at each drafted position of that sequence."""

    drafted: list[list[int]]
    path: list[int]
    stands: list[int]
    token: list[int]
    overlap: list[list[float]]
    repo: list[list[float]]


def _judge(
    logits: Float[Tensor, "batch drafts positions vocab"],
    draft_probs: Float64[Tensor, "batch drafts length vocab"] | None,
    tokens: Int64[Tensor, "batch drafts length"],
    policy: _Policy,
) -> _Verdict:
    if draft_probs is None:  # all greedy: a token stands if the target says the same
        path = [0] * len(tokens)
        if tokens.shape[1] > 1:  # of several models, or of a tree: the longest agreement stands
            standing = (tokens == logits[:, :, :-1].argmax(-1)).long().cumprod(-1).sum(-1)
            path = standing.argmax(-1).tolist()
            rows = torch.arange(len(tokens), device=tokens.device)
            tokens, logits = tokens[rows, path][:, None], logits[rows, path][:, None]
        both = torch.cat([tokens[:, 0], logits[:, 0].argmax(-1)], -1).tolist()
        length = tokens.shape[-1]
        drafted, best = [row[:length] for row in both], [row[length:] for row in both]
        agrees = [[float(a == b) for a, b in zip(*pair, strict=False)] for pair in zip(drafted, best, strict=True)]
        stands = [flags.index(0.0) if 0.0 in flags else length for flags in agrees]
        token = [row[count] for row, count in zip(best, stands, strict=True)]
        return _Verdict(drafted, path, stands, token, agrees, agrees)
    assert policy.generator is not None
    target_probs = to_probs(logits, policy.sampling)
    verifier = policy.token_verifier
    if verifier is None:
        judged = (target_probs[:, 0], draft_probs[:, 0], tokens[:, 0])
        stands_, token_ = policy.path_verifier.sample(*judged, policy.generator, check=False)
        path_ = torch.zeros_like(token_)
    else:
        walked = verify_sequences(
            verifier,
            target_probs,
            draft_probs,
            tokens,
            policy.generator,
            tail=policy.tail,
            truncated=policy.is_truncated and target_probs.shape[-1] > LARGE_VOCAB,
        )
        path_, stands_, token_ = walked.path, walked.length, walked.token
    rows = torch.arange(len(path_), device=path_.device)
    chosen = tokens[rows, path_]
    shared = target_probs[rows, path_, :-1].minimum(draft_probs[rows, path_])
    repo = shared.gather(-1, chosen[..., None])[..., 0]
    parts = (chosen, path_, stands_, token_, shared.sum(-1), repo)
    return _Verdict(*(part.tolist() for part in parts))


def _emit(trace: BlockTrace, verdict: _Verdict, place: int, left: int, eos_ids: Collection[int]) -> None:
    """Append what a block gave to a request, cut at end-of-text and at the ``left`` tokens that may still come."""
    drafted, stands = verdict.drafted[place], verdict.stands[place]
    emitted = [*drafted[:stands], verdict.token[place]][:left]
    for count, token in enumerate(emitted, 1):
        if token in eos_ids:
            emitted, trace.finished = emitted[:count], True
            break
    visited = min(stands + (stands < len(drafted)), len(emitted))
    trace.answer_ids += emitted
    trace.drafted.append(min(len(drafted), left))
    trace.visited.append(visited)
    trace.accepted.append(min(stands, len(emitted)))
    trace.emitted.append(len(emitted))
    trace.overlap.append(sum(verdict.overlap[place][:visited]))
    trace.repo.append(sum(verdict.repo[place][:visited]))


class _Clock:
    """Seconds since the last lap, summed by name; a GPU finishes its work before a lap is read."""

    def __init__(self, device: torch.device) -> None:
        self.seconds = {"draft": 0.0, "target": 0.0, "verify": 0.0}
        self.device, self.last = device, time.perf_counter()

    def lap(self, name: str) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        now = time.perf_counter()
        self.seconds[name] += now - self.last
        self.last = now


def _choose(
    logits: Float[Tensor, "batch vocab"], sampling: Sampling, generator: Generator | None
) -> Int64[Tensor, " batch"]:
    if sampling.temperature == 0:
        return logits.argmax(-1)
    if generator is None:
        raise UserError("sampling without a generator", remedy="pass a seeded torch.Generator")
    return draw(to_probs(logits, sampling), 1, generator)[:, 0]


def _close_gaps(keep: Sequence[bool]) -> list[int]:
    """The places to keep, in an order that moves as few of them as can be: those at the end fill the gaps."""
    count = sum(keep)
    movers = (place for place in range(count, len(keep)) if keep[place])
    return [place if keep[place] else next(movers) for place in range(count)]


def _batches(count: int, size: int | None) -> Iterator[list[int]]:
    """The numbers from 0 to ``count``, ``size`` at a time."""
    size = size or count
    return (list(range(start, min(start + size, count))) for start in range(0, count, size))


def _check_requests(
    model: LanguageModel, prompts: Sequence[Sequence[int]], max_new_tokens: int, batch: int | None
) -> None:
    """``UserError`` unless there are prompts, of tokens of the vocabulary, and every prompt and its whole answer fit the context."""
    if not prompts:
        raise UserError("no prompts", remedy="give one or more")
    for name, value in (("max_new_tokens", max_new_tokens), ("batch", 1 if batch is None else batch)):
        if value < 1:
            raise UserError(f"{name} is {value}", remedy="give 1 or more")
    for number, prompt in enumerate(prompts):
        if outside := [token for token in prompt if not 0 <= token < model.vocab_size]:
            what = f"request {number} has token {outside[0]}, the vocabulary {model.vocab_size} tokens"
            raise UserError(what, remedy="encode it with the tokenizer of the model")
    check_lengths(prompts, [[0] * max_new_tokens] * len(prompts), model.context_len)
