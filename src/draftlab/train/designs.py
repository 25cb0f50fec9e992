"""Drafts made from parts of their target, and heads trimmed to the tokens of the traffic."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace

import torch
from torch import Generator

from draftlab.engine.settings import DESIGN, Recipe
from draftlab.errors import UserError, called
from draftlab.files.registries import find
from draftlab.models.llama import Llama, LlamaConfig


def config_of(recipe: Recipe, vocab_size: int) -> LlamaConfig:
    """The configuration of a model with the recipe's sizes."""
    return LlamaConfig(
        vocab_size=vocab_size,
        hidden_size=recipe.hidden,
        intermediate_size=recipe.ffn,
        num_hidden_layers=recipe.layers,
        num_attention_heads=recipe.heads,
        num_key_value_heads=recipe.heads,
        max_position_embeddings=recipe.context,
    )


def prune(target: Llama, layers: int) -> Llama:
    """The target's embedding, first ``layers`` layers, norm and head, copied."""
    if not 0 < layers < len(target.layers):
        raise UserError(
            f"a draft of {layers} layers from a target of {len(target.layers)}",
            remedy="give fewer layers, at least 1",
        )
    draft = Llama(replace(target.config, num_hidden_layers=layers))
    weights = target.state_dict()
    draft.load_state_dict({name: weights[name].clone() for name in draft.state_dict()})
    return draft


@torch.no_grad()
def project(target: Llama, config: LlamaConfig, generator: Generator) -> Llama:
    """A new model with the target's embedding on its first principal components, scaled to the spread of new weights.

    The embedding is E V, where E is the target's embedding minus its mean row, and V the ``hidden_size`` leading eigenvectors of E^T E. Of all
    linear maps to as many channels, V preserves the squared distances between tokens best. The head is the same matrix.
    """
    if config.hidden_size > target.config.hidden_size:
        what = f"{config.hidden_size} components from an embedding of {target.config.hidden_size} channels"
        raise UserError(what, remedy="give at most as many components as channels")
    draft = Llama(config).initialise(generator)
    rows = target.embed.float() - target.embed.float().mean(0)
    _, directions = torch.linalg.eigh(rows.T @ rows)  # in ascending order
    projected = rows @ directions[:, -config.hidden_size :].flip(-1)
    draft.embed.copy_(projected * (draft.embed.std() / projected.std()))
    return draft


Design = Callable[[Llama, Recipe, Generator], Llama]
DESIGNS: dict[str, Design] = {
    "pruned": lambda target, recipe, generator: prune(target, recipe.layers),
    "pca": lambda target, recipe, generator: project(target, config_of(recipe, target.vocab_size), generator),
}
"""What makes a draft from its target."""


def designed(target: Llama, recipe: Recipe, generator: Generator) -> Llama:
    """The draft of a design, perhaps the user's own: a Llama with the tokens of its ``target``."""
    draft = called(f"design {recipe.design}", find(recipe.design, DESIGNS, DESIGN), target, recipe, generator)
    if not isinstance(draft, Llama):
        raise UserError(f"design {recipe.design} returned {type(draft).__name__}", remedy="return a Llama")
    if draft.vocab_size != target.vocab_size or draft.config.head_tokens:
        what = f"design {recipe.design} returned a model of {draft.config.head_tokens or draft.vocab_size} tokens"
        remedy = f"give it the target's {target.vocab_size}; `head` of the recipe trims its head"
        raise UserError(what, remedy=remedy)
    return draft


@torch.no_grad()
def trim_head(draft: Llama, tokens: Sequence[int]) -> Llama:
    """The same model with a head for ``tokens`` alone; the input embedding stays whole."""
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
    """``count`` tokens in ascending order: the ``always`` tokens and the most frequent tokens of ``texts``; and the share of the texts they cover.

    If the texts have too few, the most frequent tokens of the ``prompts`` follow, then ``rest`` in the given order; if there are still too
    few, the head is smaller.
    """
    in_texts = Counter(token for text in texts for token in text)
    in_prompts = Counter(token for text in prompts for token in text)
    if not in_texts:
        raise UserError("no text to choose the head's tokens from", remedy="set head to 0, or give recorded answers")
    by_frequency = sorted({*in_texts, *in_prompts}, key=lambda token: (-in_texts[token], -in_prompts[token], token))
    ranked = [token for token in dict.fromkeys([*by_frequency, *rest]) if token not in always]
    kept = sorted({*always, *ranked[: max(0, count - len(always))]})
    return kept, sum(in_texts[token] for token in kept) / in_texts.total()
