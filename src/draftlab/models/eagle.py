"""A draft that also reads its target's states, as EAGLE does (Li et al. 2024, arXiv 2401.15077; EAGLE-3: Li et al. 2025, arXiv 2503.01840).

A state is what the target projects on the vocabulary. The target chose token x_t from its state s_(t-1). The draft adds that state to the
token's embedding (each state is scaled to the size of an embedding), then goes on as before:

    g_t = layers(embed(x_t) + W s_(t-1)),     logits of x_(t+1) = head(g_t).

The target has no state yet for what follows the last token it has read. There the draft continues from its own states, with V g_(t-1) in the place of
W s_(t-1). Its distribution of a token therefore depends on where the block began. For training and replay it makes ``depth`` predictions of
each token: the first from states of the target alone, the d-th with the last d - 1 states its own (EAGLE-3's training-time test).

A ``parallel`` one proposes a block in one pass instead, as P-EAGLE does (arXiv 2602.01469): for each token after the first it reads a learnt
vector, as in ``models.parallel_draft``.

W and V start at 0, so that the draft starts as it was without states.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from draftlab.errors import UserError
from draftlab.models import LanguageModel, TokenIds
from draftlab.models.batching import pad_requests
from draftlab.models.dflash import DFlash, DFlashHead
from draftlab.models.eagle3 import Eagle3, Eagle3Head
from draftlab.models.llama import Llama
from draftlab.models.llama_decoder import LlamaCache
from draftlab.models.on_target import OnTarget, as_llama
from draftlab.models.parallel_draft import ParallelDraft, masked, new_mask
from draftlab.models.places import ByPlace, checked_depth, logits_by_place
from draftlab.models.products import linear


class Eagle(ByPlace, OnTarget[Llama]):
    """A ``draft`` on the states of a target. ``depth``: the tokens of a block that it is trained and replayed for; longer blocks can be decoded."""

    layers = ()
    skipped = 0

    def __init__(self, draft: LanguageModel, target: LanguageModel, depth: int, *, parallel: bool = False) -> None:
        super().__init__(as_llama(target))
        self.draft, self.depth = as_llama(draft), checked_depth(depth)
        width = self.draft.config.hidden_size
        with torch.device(self.device):
            self.from_target = nn.Parameter(torch.zeros(width, self.target.config.hidden_size))
            self.from_own = None if parallel else nn.Parameter(torch.zeros(width, width))
        self.mask = new_mask(self.draft) if parallel else None
        self.size = float(self.draft.embed.detach().float().square().mean().sqrt())

    @property
    def context_length(self) -> int:
        return min(self.draft.context_length, self.target.context_length)

    def inputs(
        self, tokens: Int[Tensor, "batch len"], states: Float[Tensor, "batch len width"], *, own: bool
    ) -> Float[Tensor, "batch len width"]:
        """What the layers read: tokens and the states before them, its ``own`` before the last norm or the target's, each scaled to the size of an
        embedding."""
        if own:
            states = F.rms_norm(states, self.draft.norm.shape, self.draft.norm, self.draft.config.rms_norm_eps)
        scaled = F.rms_norm(states.float(), (states.shape[-1],)) * self.size
        weight = self.from_own if own else self.from_target
        assert weight is not None, "a parallel draft reads no states of its own"
        return F.embedding(tokens, self.draft.embed) + linear(scaled, weight)

    def head_logits(
        self, prompts: TokenIds, answers: TokenIds, where: Int[Tensor, " chosen"] | None = None
    ) -> Float[Tensor, "depth positions head"]:
        padded, positions = pad_requests(prompts, answers, self.context_length, where)
        tokens = padded.to(self.device)
        with torch.no_grad():
            before = F.pad(self.target.states(tokens), (0, 0, 1, 0))[:, :-1]  # no state before the first token

        def from_own(window: Tensor, own: Tensor) -> Tensor:
            return self.inputs(tokens.gather(1, window), own, own=True)

        first, later = self.inputs(tokens, before, own=False), from_own if self.mask is None else masked(self.mask)
        return logits_by_place(self.draft, first, later, self.depth, positions.to(self.device))

    def of_target(self, cache: LlamaCache, states: Float[Tensor, "rows width"]) -> Float[Tensor, "rows width"]:
        """What it reads of the target: the ``states`` that this projects on the vocabulary."""
        return states


def of_blocks(draft: LanguageModel, target: LanguageModel | None, depth: int, *, parallel: bool) -> LanguageModel:
    """The draft on the states of a ``target``, if there is one; one that proposes a block in one pass, if it is ``parallel``."""
    if isinstance(draft, DFlashHead | Eagle3Head):
        assert target is not None, "a head is always on a target"
        if isinstance(draft, DFlashHead):
            return DFlash(draft, target, depth)
        if parallel and draft.form.mask is None:
            raise UserError("this head of EAGLE-3 drafts token after token", remedy="leave parallel out")
        return Eagle3(draft, target, depth)
    if target is not None:
        return Eagle(draft, target, depth, parallel=parallel)
    return ParallelDraft(draft, depth) if parallel else draft
