"""Speculative decoding in torch, with a trace of the blocks of each request."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from jaxtyping import Float
from torch import Generator, Tensor

from draftlab.core.confident_tree import ConfidentTree
from draftlab.core.sampling import GREEDY, Sampling, to_probs
from draftlab.core.tree import Tree
from draftlab.core.verify.path import PathVerifier
from draftlab.core.verify.single import single
from draftlab.core.verify.token import TokenVerifier
from draftlab.core.verify.tree import TreeVerifier
from draftlab.engine.batched import BatchedPair
from draftlab.engine.dflash import DFlashPair
from draftlab.engine.eagle import EaglePair
from draftlab.engine.generate import batches, check_requests
from draftlab.engine.loop import Step, Timed, steps
from draftlab.engine.medusa import MedusaPair
from draftlab.engine.parallel import ParallelPair
from draftlab.engine.policy import Policy, make_policy
from draftlab.errors import UserError
from draftlab.models import Decoder, LanguageModel, TokenIds
from draftlab.models.clock import clock_of
from draftlab.models.dflash import DFlash
from draftlab.models.eagle import Eagle
from draftlab.models.eagle3 import Eagle3
from draftlab.models.llama_decoder import LlamaDecoder
from draftlab.models.medusa import Medusa
from draftlab.models.on_target import OnTarget
from draftlab.models.parallel_draft import ParallelDraft

BlockObserver = Callable[[int, Float[Tensor, "emitted vocab"]], None]
"""Called with a request and the target's logits at the tokens that a block emitted to it."""


@dataclass
class BlockTrace:
    """The answer to one request, and what each of its blocks did.

    Per block: tokens ``drafted`` in each sequence; ``visited``, the accepted tokens and the first rejected one; ``accepted``; tokens
    ``emitted``; ``overlap``, the sum over visited positions of sum_x min(target, draft); ``overlap_repo``, the sum of min(target, draft) at the
    drafted token (OSD's estimator). ``alpha`` = overlap / visited, ``block_efficiency`` = emitted / blocks, sums over sums.
    """

    answer_ids: list[int] = field(default_factory=list)
    finished: bool = False
    drafted: list[int] = field(default_factory=list)
    visited: list[int] = field(default_factory=list)
    accepted: list[int] = field(default_factory=list)
    emitted: list[int] = field(default_factory=list)
    overlap: list[float] = field(default_factory=list)
    overlap_repo: list[float] = field(default_factory=list)

    def add(self, step: Step[Tensor], place: int, eos_ids: Collection[int]) -> None:
        """Append a block of the request at ``place``, counted up to the end of the answer."""
        verification, emitted, left = step.verification, step.emitted[place], step.left[place]
        drafted, accepted = len(verification.drafted[place]), verification.accepted[place]
        visited = min(accepted + (accepted < drafted), len(emitted))
        self.answer_ids += emitted
        self.finished = emitted[-1] in eos_ids
        self.drafted.append(min(drafted, left))
        self.visited.append(visited)
        self.accepted.append(min(accepted, len(emitted)))
        self.emitted.append(len(emitted))
        self.overlap.append(sum(verification.overlap[place][:visited]))
        self.overlap_repo.append(sum(verification.overlap_repo[place][:visited]))

    @classmethod
    def plain(cls, answer: list[int]) -> BlockTrace:
        """The trace of plain decoding: one call per token, nothing drafted."""
        nothing = [0] * len(answer)
        return cls(answer, drafted=nothing, visited=nothing, accepted=nothing, emitted=[1] * len(answer))


@dataclass(frozen=True)
class Decoded:
    """One trace per request, the number of blocks (forward passes of the target), and the seconds in each part of the loop.

    ``transform_seconds``: turning the target's logits into distributions; not part of ``select_seconds``.
    """

    traces: list[BlockTrace]
    blocks: int
    draft_seconds: float
    target_seconds: float
    select_seconds: float
    transform_seconds: float = 0.0


@torch.inference_mode()
def speculate(
    target: LanguageModel,
    draft: LanguageModel | Sequence[LanguageModel],
    prompts: TokenIds,
    *,
    draft_len: int,
    max_new_tokens: int,
    eos_ids: Collection[int],
    num_drafts: int = 1,
    verifier: TokenVerifier | PathVerifier | TreeVerifier = single,
    tail: PathVerifier | None = None,
    sampling: Sampling = GREEDY,
    draft_sampling: Sampling | Sequence[Sampling] | None = None,
    generator: Generator | None = None,
    observe: BlockObserver | None = None,
    batch: int | None = None,
    tree: Tree | ConfidentTree | None = None,
) -> Decoded:
    """Decode prompts by speculative decoding. With a lossless verifier, each text follows the target's distribution.

    An answer ends with its first end-of-text token, or after exactly ``max_new_tokens``.

    **Arguments:**
    - `draft`: one model, or one for each drafted sequence. `Medusa` heads guess a tree of their own; an `Eagle`, an `Eagle3`, a
      `DFlash` or a `ParallelDraft` drafts one sequence.
    - `draft_len`, `num_drafts`: the tokens of a drafted sequence, and the sequences of a block; of a tree, its depth and its leaves.
    - `verifier`: a value of `core.verify.VERIFIERS`. The siblings of `Medusa` heads are distinct, as `rrs` and `greedy` expect.
    - `tail`: verifies the rest of a sequence once it is the only one left.
    - `draft_sampling`: how all sequences are sampled, or each; None: like the target.
    - `observe`: sees the target's logits at the tokens of each block.
    - `batch`: how many prompts are decoded at a time; None: all.
    - `tree`: whose sequences share prefixes; None: they share nothing. A `ConfidentTree` grows anew for each block; `num_drafts` is its
      `nodes`, because it may have as many leaves.

    **Returns:** a trace for each prompt, and the time of each part of the loop.

    **Raises:** `UserError` for a `draft_len` below 1, different vocabularies, a prompt that leaves no room, a verifier that does not fit the
    drafts, or sampling without a generator.
    """
    drafts = list(draft) if isinstance(draft, Sequence) else [draft]
    policy = make_policy(
        verifier, num_drafts, draft_len, sampling, draft_sampling or sampling, generator, tail, drafts, tree
    )
    for model in (target, *drafts):
        if model.vocab_size != target.vocab_size:
            raise UserError(
                f"target and draft have different vocabularies ({target.vocab_size} and {model.vocab_size} tokens)",
                remedy="use two models that share a tokenizer",
            )
        check_requests(model, prompts, max_new_tokens, batch)
    decoder = target.decoder()
    draft_decoders = [] if isinstance(drafts[0], OnTarget) else [model.decoder() for model in drafts]
    traces, laps, transforms = [BlockTrace() for _ in prompts], list[list[float]](), list[float]()
    clock = clock_of(target.device, time.perf_counter)

    def transform(logits: Tensor, sampling: Sampling) -> Tensor:
        begin = clock()
        probs = to_probs(logits, sampling)
        transforms.append(clock() - begin)
        return probs

    policy = replace(policy, transform=transform)
    for rows in batches(len(prompts), batch):
        texts = [prompts[request] for request in rows]
        pair = _open_pair(drafts, decoder, draft_decoders, texts, draft_len, max_new_tokens, policy)
        timed = Timed(pair, clock)
        for step in steps(timed, len(rows), max_new_tokens, eos_ids):
            for place, row in enumerate(step.rows):
                traces[rows[row]].add(step, place, eos_ids)
                if observe is not None:
                    emitted = len(step.emitted[place])
                    observe(rows[row], step.reading[place, step.verification.path[place], :emitted])
        laps += timed.laps
    draft_seconds, target_seconds, *others = np.diff(laps).sum(0).tolist()
    spent = sum(transforms)
    return Decoded(traces, len(laps), draft_seconds, target_seconds, sum(others) - spent, spent)


def _open_pair(
    drafts: Sequence[LanguageModel],
    decoder: Decoder,
    draft_decoders: Sequence[Decoder],
    prompts: TokenIds,
    draft_len: int,
    max_new_tokens: int,
    policy: Policy,
) -> BatchedPair | MedusaPair | EaglePair | DFlashPair:
    """The pair of the loop for this kind of draft, whose caches hold the prompts."""
    match drafts[0]:
        case Medusa() as heads:
            assert isinstance(decoder, LlamaDecoder)
            return MedusaPair(heads, decoder, prompts, max_new_tokens, policy)
        case Eagle() | Eagle3() | DFlash() as draft:
            if not isinstance(decoder, LlamaDecoder):
                what = "a head of EAGLE-3, DFlash or DSpark drafts live only for models of the Llama family"
                raise UserError(what, remedy="replay it on recorded answers: live: false")
            if isinstance(draft, DFlash):
                return DFlashPair(draft, decoder, prompts, draft_len, max_new_tokens, policy)
            return EaglePair(draft, decoder, prompts, draft_len, max_new_tokens, policy)
        case ParallelDraft() as draft:
            return ParallelPair(draft, decoder, prompts, draft_len, max_new_tokens, policy)
    return BatchedPair(decoder, draft_decoders, prompts, draft_len, max_new_tokens, policy)
