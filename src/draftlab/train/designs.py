"""What a draft starts from: parts of its target, and a head trimmed to the tokens in its traffic."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace

import torch
from torch import Generator

from draftlab.errors import UserError
from draftlab.models.llama import Llama, LlamaConfig


def prune(target: Llama, layers: int) -> Llama:
    """The target's embedding, first ``layers`` layers, norm and head, copied."""
    if not 0 < layers < len(target.layers):
        raise UserError(
            f"a draft of {layers} layers from a target of {len(target.layers)}",
            remedy="give fewer layers, at least 1",
        )
    draft = Llama(replace(target.config, num_hidden_layers=layers))
    wanted = draft.state_dict().keys()
    draft.load_state_dict({name: value.clone() for name, value in target.state_dict().items() if name in wanted})
    return draft


@torch.no_grad()
def project(target: Llama, config: LlamaConfig, generator: Generator) -> Llama:
    """A new model whose embedding is the target's on its first principal components, scaled to the spread of new weights.

    The embedding is E V, where E is the target's embedding minus its mean row, and V the ``hidden_size`` leading eigenvectors of E^T E. Of all
    linear maps to as many channels, it preserves the squared distances between tokens best. The head is the same matrix.
    """
    if config.hidden_size > target.config.hidden_size:
        what = f"{config.hidden_size} components from an embedding of {target.config.hidden_size} channels"
        raise UserError(what, remedy="give at most as many components as channels")
    draft = Llama(config).initialise(generator)
    rows = target.embed.float() - target.embed.float().mean(0)
    _, directions = torch.linalg.eigh(rows.T @ rows)  # in ascending order
    found = rows @ directions[:, -config.hidden_size :].flip(-1)
    draft.embed.copy_(found * (draft.embed.std() / found.std()))
    return draft


@torch.no_grad()
def trim_head(draft: Llama, tokens: Sequence[int]) -> Llama:
    """The same model with a head that has rows only for ``tokens``; the embedding for reading stays whole."""
    trimmed = Llama(replace(draft.config, tie_word_embeddings=False, head_tokens=len(tokens)))
    kept = torch.tensor(tokens)
    state = {name: value.clone() for name, value in draft.state_dict().items()}
    trimmed.load_state_dict(state | {"head": draft.vocab_weight[kept].clone(), "kept": kept})
    return trimmed


def frequent_tokens(
    texts: Iterable[Iterable[int]],
    count: int,
    always: Collection[int],
    prompts: Iterable[Iterable[int]] = (),
    rest: Iterable[int] = (),
) -> tuple[list[int], float]:
    """The ``always`` tokens and the most frequent ones of ``texts``, ``count`` together, ascending; and the share of the texts they cover.

    If the texts have fewer, the most frequent tokens of the ``prompts`` follow, then those of ``rest`` in the given order; if these are still too
    few, the head is smaller.
    """
    seen = Counter(token for text in texts for token in text)
    asked = Counter(token for text in prompts for token in text)
    if not seen:
        raise UserError("no text to choose the head's tokens from", remedy="set head to 0, or give recorded answers")
    ranked = sorted({*seen, *asked} - set(always), key=lambda token: (-seen[token], -asked[token], token))
    ranked += [token for token in rest if token not in seen and token not in asked and token not in always]
    kept = sorted({*always, *ranked[: max(0, count - len(always))]})
    return kept, sum(seen[token] for token in kept) / seen.total()
