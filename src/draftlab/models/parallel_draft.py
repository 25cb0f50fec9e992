"""A draft that proposes a whole block in one pass (PARD: An et al. 2025, arXiv 2504.18583).

After the text x_1 ... x_t it reads the same learnt vector, the mask, once for each token of the block after the first:

    h = layers(embed(x_1), ..., embed(x_t), mask, mask, ...),     logits of x_(t+d) = head(h_(t+d-1)).

So it does not know which tokens it proposed before, and its distribution of a token depends on where the block began. For training and replay it
makes ``depth`` predictions of each token, as the first, second, ... of a block.

The first token of a block is drafted as the draft did before. The mask starts as the mean embedding.

It is saved as a language model in which the mask is the embedding of one token, ``pard_token`` of ``config.json``, as in PARD's published drafts.
Engines read this token; vLLM does with ``"parallel_drafting": true``.
"""

from __future__ import annotations

import copy
import dataclasses
import itertools
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from draftlab.models import LanguageModel, TokenIds
from draftlab.models.batching import pad_requests
from draftlab.models.llama import Llama
from draftlab.models.llama_decoder import LlamaDecoder
from draftlab.models.on_target import as_llama
from draftlab.models.places import ByPlace, Later, checked_depth, logits_by_place
from draftlab.models.tokenizer import Tokenizer


class ParallelDraft(ByPlace):
    """A ``draft`` with a mask. ``depth``: the tokens of a block that it is trained and replayed for; longer blocks can be decoded.

    ``token``: the token whose embedding is replaced by the mask where the draft is saved.
    """

    def __init__(self, draft: LanguageModel, depth: int) -> None:
        super().__init__()
        self.draft, self.depth = as_llama(draft), checked_depth(depth)
        self.mask, self.token = new_mask(self.draft), self.draft.config.pard_token

    @property
    def context_length(self) -> int:
        return self.draft.context_length

    @property
    def device(self) -> torch.device:
        return self.draft.device

    def head_logits(
        self, prompts: TokenIds, answers: TokenIds, where: Int[Tensor, " chosen"] | None = None
    ) -> Float[Tensor, "depth positions head"]:
        padded, positions = pad_requests(prompts, answers, self.context_length, where)
        text = F.embedding(padded.to(self.device), self.draft.embed)
        return logits_by_place(self.draft, text, masked(self.mask), self.depth, positions.to(self.device))

    def decoder(self) -> LlamaDecoder:
        """The draft, laid out for decoding."""
        return self.draft.decoder()

    def save(self, folder: Path | str) -> None:
        """Write the draft as a language model, whose probability of ``token`` is another one if embedding and head are tied."""
        assert self.token is not None, "choose a token first"
        saved = copy.deepcopy(self.draft)
        saved.config = dataclasses.replace(saved.config, pard_token=self.token)
        with torch.no_grad():
            saved.embed[self.token] = self.mask
        saved.save(folder)


def masked(mask: Float[Tensor, " width"]) -> Later:
    """The mask, wherever a token of the block would be read."""
    return lambda window, _: mask.expand(*window.shape, -1)


def new_mask(draft: Llama) -> nn.Parameter:
    """What a draft reads for a token that is not known yet: the embedding of its ``pard_token``, or at first the mean embedding."""
    token, embed = draft.config.pard_token, draft.embed.detach().float()
    return nn.Parameter(embed.mean(0) if token is None else embed[token].clone())


def spare_token(tokenizer: Tokenizer, texts: Iterable[Sequence[int]]) -> int:
    """The token that occurs least often in these texts; of several, the last special one, or the last one. Never an end of text."""
    counts = Counter(itertools.chain.from_iterable(texts))
    special = {token for token, content in tokenizer.backend.get_added_tokens_decoder().items() if content.special}
    candidates = [token for token in range(tokenizer.vocab_size) if token not in tokenizer.eos_ids]
    return max(candidates, key=lambda token: (-counts[token], token in special, token))
