"""Shapes of drafted trees with equal numbers of drafted tokens, along the target's own texts, computed exactly, without sampling a draft."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING

from pydantic import Field, model_validator

from draftlab.core.settings import Count, Distinct, NonNegativeInt
from draftlab.files.registries import choice, find, names
from draftlab.progress import progress
from draftlab.stages._batches import by_batch
from draftlab.stages._decoding import DecodedRow, Decoding, Inputs
from draftlab.stages._measures import BLOCK_EFFICIENCY
from draftlab.stages._stage import Bench, Facts, column, stage_of

EVERY = names("engine.tree_shapes", "SHAPES")

if TYPE_CHECKING:
    import pandas as pd

    from draftlab.engine.held_out import Request

    Shape = str
else:
    Shape = choice(EVERY)


class Settings(Decoding):
    nodes: Distinct[Count] = Field(
        min_length=1, description="numbers of drafted tokens in a tree, each a multiple of draft_len"
    )
    shapes: Distinct[Shape] = Field(list(EVERY), min_length=1, description="shapes of trees")
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
    from draftlab.engine.tree_shapes import SHAPES, RecordedTexts
    from draftlab.engine.tree_shapes import Shape as TreeShape

    work = inputs.open(settings)
    temperatures = (settings.target_temperature, settings.draft_temperature)
    of_target, of_draft = (settings.sampling(temperature, settings.top_k) for temperature in temperatures)
    generator = torch.Generator(work.target.device).manual_seed(settings.seed)
    eos_ids = [] if settings.past_end else work.tokenizer.eos_ids

    def rows_of_batch(_: int, dataset: str, batch: Sequence[Request]) -> pd.DataFrame:
        along = RecordedTexts(
            texts=write_texts(work, batch, of_target, settings.max_new_tokens, eos_ids, generator),
            prompts=[request.prompt_ids for request in batch],
            target=(work.target, of_target),
            draft=(work.draft, of_draft),
            sizes=settings.nodes,
            depth=settings.draft_len,
            width=settings.width,
        )
        frames = []
        every = list(itertools.product(settings.nodes, settings.shapes))
        for nodes, name in progress(every, f"{dataset} trees"):
            shape = find(name, SHAPES, (), TreeShape)
            blocks = shape.blocks(along, nodes)
            counts = {"blocks": blocks.stopped.sum(1), "emitted": blocks.emitted.sum(1)}
            rows = pd.DataFrame({"request_id": [request.number for request in batch], **counts})
            frames.append(rows.assign(dataset=dataset, nodes=nodes, shape=name, scheme=shape.scheme))
        return pd.concat(frames, ignore_index=True)

    rows = by_batch(work, bench, [generator], rows_of_batch)
    fixed = ("draft_len", "draft_temperature", "target_temperature", "top_k", "top_p", "seed")
    return rows.assign(**{name: getattr(settings, name) for name in fixed}), {}


STAGE = stage_of(__name__, split="eval")
