"""Prompt lookup as a draft: it proposes the token that followed the last few tokens where they occurred before (Saxena 2023).

The guess depends only on the text so far. Lookup is therefore a language model whose distribution has one token, and replay and every verifier
treat it like any other model. Where the last tokens are new, all tokens are equally probable: verification stays lossless, and a draft length
that follows the confidence stops. Joined to a draft, lookup leaves these positions to the draft ("lookup first, model else").
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from draftlab.errors import UserError
from draftlab.models import Cache, Decoder, LanguageModel, TokenIds
from draftlab.models.ngrams import Ngrams, guesses_along


class Lookup:
    """Prompt lookup over the vocabulary of ``model``; if ``joined``, the model predicts where lookup has no guess."""

    def __init__(self, model: LanguageModel, *, joined: bool = False) -> None:
        self.vocab_size, self.context_length, self.device = model.vocab_size, model.context_length, model.device
        self.draft = model if joined else None

    def parameters(self) -> Iterator[nn.Parameter]:
        return self.draft.parameters() if self.draft else iter(())

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        return self.draft.named_parameters() if self.draft else iter(())

    def answer_logits(
        self, prompts: TokenIds, answers: TokenIds, where: Int[Tensor, " chosen"] | None = None
    ) -> Float[Tensor, "positions vocab"]:
        pairs = zip(prompts, answers, strict=True)
        guesses = [guess for prompt, answer in pairs for guess in guesses_along(prompt, answer)]
        guesses = guesses if where is None else [guesses[position] for position in where.tolist()]
        return self.overwrite(self.draft.answer_logits(prompts, answers, where) if self.draft else None, guesses)

    def overwrite(
        self, logits: Float[Tensor, "rows vocab"] | None, guesses: Sequence[int | None]
    ) -> Float[Tensor, "rows vocab"]:
        """``logits`` (uniform if None) with all probability on the guess in the rows that have one."""
        if logits is None:
            logits = torch.zeros(len(guesses), self.vocab_size, device=self.device)
        rows = [row for row, guess in enumerate(guesses) if guess is not None]
        certain = torch.full((len(rows), self.vocab_size), -torch.inf, dtype=logits.dtype, device=logits.device)
        tokens = torch.tensor([guesses[row] for row in rows], dtype=torch.long, device=logits.device)
        certain.scatter_(1, tokens[:, None], 0.0)
        return logits.index_copy(0, torch.tensor(rows, dtype=torch.long, device=logits.device), certain)

    def decoder(self) -> LookupDecoder:
        return LookupDecoder(self)

    def save(self, folder: Path | str) -> None:
        raise UserError("prompt lookup has no weights", file=folder, remedy="save the draft that it is joined to")


class LookupDecoder:
    """A ``Lookup`` with the decoder of its draft."""

    def __init__(self, lookup: Lookup) -> None:
        # Its cache does not hold the prompt, as the text of a lookup does.
        if getattr(lookup.draft, "is_encoder_decoder", False):
            what = "prompt lookup cannot decode with an encoder-decoder"
            raise UserError(what, remedy="join it to a decoder-only draft")
        self.lookup = lookup
        self.decoder: Decoder | None = lookup.draft.decoder() if lookup.draft else None

    def prefill(self, prompts: TokenIds, room: int) -> tuple[LookupCache, Int[Tensor, " batch"]]:
        inner = self.decoder.prefill(prompts, room)[0] if self.decoder else None
        last = torch.tensor([prompt[-1] for prompt in prompts], device=self.lookup.device)
        return LookupCache([Ngrams(prompt[:-1]) for prompt in prompts], self.lookup, inner), last


class LookupCache:
    """The text of each row, and the cache of the draft."""

    def __init__(self, texts: list[Ngrams], lookup: Lookup, inner: Cache | None) -> None:
        self.texts, self.lookup, self.inner = texts, lookup, inner

    @property
    def lengths(self) -> list[int]:
        return [len(text.tokens) for text in self.texts]

    def append(self, tokens: Int[Tensor, "batch new"]) -> list[int | None]:
        """Append tokens to every text, without the draft; return the guess after each."""
        return [text.append(token) for text, new in zip(self.texts, tokens.tolist(), strict=True) for token in new]

    def extend(self, tokens: Int[Tensor, "batch new"]) -> Float[Tensor, "batch new vocab"]:
        guesses = self.append(tokens)
        logits = self.inner.extend(tokens).flatten(0, 1) if self.inner else None
        return self.lookup.overwrite(logits, guesses).view(*tokens.shape, -1)

    def crop(self, lengths: Sequence[int]) -> None:
        for text, length in zip(self.texts, lengths, strict=True):
            text.trim(length)
        if self.inner:
            self.inner.crop(lengths)

    def take(self, rows: Sequence[int], since: Sequence[int] | None = None) -> None:
        self.texts = [self.texts[row].copy() for row in rows]
        if self.inner:
            self.inner.take(rows, since)
