"""Shapes of drafted trees with equal numbers of drafted tokens, along the target's own texts, computed exactly, without sampling a draft."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from pydantic import Field, model_validator

from draftlab.core.settings import Count, NonNegativeInt
from draftlab.stages._batches import by_batch
from draftlab.stages._decoding import DecodedRow, Decoding, Inputs
from draftlab.stages._measures import BLOCK_EFFICIENCY
from draftlab.stages._stage import Bench, Facts, column, stage_of

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd

    from draftlab.core.sampling import Sampling
    from draftlab.engine.held_out import Request
    from draftlab.engine.replay_drafts import Blocks, Texts
    from draftlab.models import LanguageModel, TokenIds


class Settings(Decoding):
    nodes: list[Count] = Field(
        min_length=1, description="numbers of drafted tokens in a tree, each a multiple of draft_len"
    )
    draft_len: int = Field(gt=1, description="drafted tokens on the longest path of a tree")
    width: Count = Field(8, description="texts that the dynamic rule extends at each depth")
    draft_temperature: float = Field(1.0, gt=0, description="temperature of the draft")
    target_temperature: float = Field(1.0, gt=0, description="temperature of the target")
    top_k: NonNegativeInt = Field(0, description="most probable tokens that are kept; 0: all")
    past_end: bool = Field(False, description="continue texts past their end to max_new_tokens")

    @model_validator(mode="after")
    def _has_whole_sequences(self) -> Settings:
        if short := [nodes for nodes in self.nodes if nodes % self.draft_len]:
            raise ValueError(f"{short[0]} nodes are not a whole number of sequences of {self.draft_len} tokens")
        return self


class Row(DecodedRow):
    """A request drafted with trees of a shape: expected counts, given its text."""

    nodes: int = column("drafted tokens of a block", "tokens")
    shape: str = column(
        "how the tree is drafted; oracle: by the target itself; ceiling: a bound for every verifier of the sequences"
    )
    scheme: str = column("how each node is verified")
    blocks: float = column("target calls")
    emitted: float = column("tokens that these calls emit", "tokens")
    draft_len: int = column("depth of the tree", "tokens")
    draft_temperature: float = column("temperature of the draft")


MEASURES = {
    "block_efficiency": BLOCK_EFFICIENCY,
}


def run(settings: Settings, inputs: Inputs, bench: Bench) -> tuple[pd.DataFrame, Facts]:
    """Let the target write texts, and count the blocks into which trees of each shape cut them."""
    import pandas as pd
    import torch

    from draftlab.engine.held_out import write_texts

    work = inputs.open(settings)
    temperatures = (settings.target_temperature, settings.draft_temperature)
    of_target, of_draft = (settings.sampling(temperature, settings.top_k) for temperature in temperatures)
    generator = torch.Generator(work.target.device).manual_seed(settings.seed)
    eos_ids = [] if settings.past_end else work.tokenizer.eos_ids

    def rows_of_batch(_: int, dataset: str, batch: Sequence[Request]) -> pd.DataFrame:
        frames = []
        texts = write_texts(work, batch, of_target, settings.max_new_tokens, eos_ids, generator)
        prompts = [request.prompt_ids for request in batch]
        for labels, blocks in _count(texts, prompts, settings, (work.target, of_target), (work.draft, of_draft)):
            counts = {"blocks": blocks.stopped.sum(1), "emitted": blocks.emitted.sum(1)}
            rows = pd.DataFrame({"request_id": [request.number for request in batch], **counts})
            frames.append(rows.assign(dataset=dataset, **labels))
        return pd.concat(frames, ignore_index=True)

    names = ("draft_len", "draft_temperature", "target_temperature", "top_k", "top_p", "seed")
    rows = by_batch(work, bench, [generator], rows_of_batch)
    return rows.assign(**{name: getattr(settings, name) for name in names}), {}


def _count(
    texts: Texts,
    prompts: TokenIds,
    settings: Settings,
    target: tuple[LanguageModel, Sampling],
    draft: tuple[LanguageModel, Sampling],
) -> Iterator[tuple[dict[str, str | int], Blocks]]:
    """Count the blocks of each tree shape."""
    import numpy as np

    from draftlab.core.sampling import restrict_pair, to_probs
    from draftlab.core.tree import Tree, optimal_tree
    from draftlab.core.verify.optimal import optimal
    from draftlab.core.verify.optimum import optimum_iid
    from draftlab.core.verify.rrs import rrs
    from draftlab.engine.replay_drafts import blocks, ceiling, count_blocks, survival
    from draftlab.engine.replay_trees import confident_trees, rank_in, ranked_tree

    length, lengths = settings.draft_len, texts.lengths
    tokens = iter(texts.token.tolist())
    answers = [list(itertools.islice(tokens, count)) for count in lengths]
    both = restrict_pair(texts.target_probs, to_probs(texts.draft_logits, draft[1]))
    order = texts.draft_logits.topk(max(settings.nodes), -1).indices
    rank = rank_in(order, texts.token).cpu().numpy()
    likely = texts.target_probs.gather(-1, order).mean(0).tolist()  # how often the target writes the i-th child
    most = max(max(nodes // length, _delayed(nodes, length)[1]) for nodes in settings.nodes)
    (alike,) = survival([optimal], texts, [draft[1]], (most,))
    dynamic, known = (
        confident_trees(model, prompts, answers, sampling, nodes=settings.nodes, depth=length, width=settings.width)
        for model, sampling in (draft, target)
    )

    def certain(survives: np.ndarray) -> Blocks:
        return count_blocks(np.pad(survives, ((0, 0), (0, length + 1 - survives.shape[1]))), np.asarray(lengths))

    for place, nodes in enumerate(settings.nodes):
        drafts, (trunk, branches) = nodes // length, _delayed(nodes, length)
        (distinct,) = survival([rrs], texts, [draft[1]], (drafts,))
        first = (drafts, *[1] * (length - 1))
        best = optimum_iid(*both, drafts).cpu().numpy()
        late = (*[1] * trunk, branches, *[1] * (length - trunk - 1))
        ones = np.ones((len(rank), 1))
        by_shape = {
            ("sequences", "optimal"): blocks(alike, lengths, (drafts,), length),
            ("without replacement", "rrs"): blocks(distinct, lengths, (drafts,), length),
            ("delayed", "optimal"): blocks(alike, lengths, (1,), length, widths=late),
            ("top_k", "sampled"): certain(ranked_tree(Tree.of_widths(first), rank)),
            ("sequoia", "sampled"): certain(ranked_tree(optimal_tree([likely[:nodes]] * length, nodes), rank)),
            ("confidence", "sampled"): certain(np.hstack([ones, dynamic[place]])),
            ("oracle", "sampled"): certain(np.hstack([ones, known[place]])),
            ("ceiling", "none"): ceiling(alike, best, lengths, drafts, length),
        }
        for (shape, scheme), counted in by_shape.items():
            yield {"nodes": nodes, "shape": shape, "scheme": scheme}, counted


def _delayed(nodes: int, length: int) -> tuple[int, int]:
    """The shortest trunk (at least 1 token) after which the remaining ``nodes`` form whole sequences, and how many sequences."""
    trunk = next(trunk for trunk in itertools.count(1) if (nodes - trunk) % (length - trunk) == 0)
    return trunk, (nodes - trunk) // (length - trunk)


STAGE = stage_of(__name__, split="eval")
