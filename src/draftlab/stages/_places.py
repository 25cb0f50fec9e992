"""Where the files of a run lie, as the stages look for them."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from draftlab.data.classify import Method
from draftlab.data.streams import GroupBy
from draftlab.engine.settings import Answers


@dataclass(frozen=True)
class Places:
    """The folder of a run.

    ``answers``: how the target of each pair answers. ``labelled``: labels (language, topic) that a classifier finds. ``routers``: by label,
    how the class of an arriving request is found; ``classifier`` is the one on the hub. ``architectures``: at scales with random weights,
    the architecture of each role of a pair.
    """

    run: Path
    answers: Mapping[str, Answers]
    labelled: Collection[str] = ()
    routers: Mapping[GroupBy, Method] = field(default_factory=dict)
    classifier: str = ""
    architectures: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

    def model(self, role: str, pair: str = "main") -> Path:
        """The folder of a model, or the name of an architecture."""
        if self.architectures:
            return Path(self.architectures[pair][role])
        return self.models(pair) / role

    def models(self, pair: str) -> Path:
        """The folder of a pair's models."""
        return self.run / pair / "models"

    def recorded(self, pair: str) -> Path:
        """The folder of the recorded answers of a pair's target."""
        return self.run / pair / "answers"

    def distributions(self, pair: str) -> Path:
        """The folder of the recorded logits of target and draft."""
        return self.run / pair / "pairs"

    def prompts(self, dataset: str, split: str = "train", label: str = "") -> Path:
        """The requests of one split, with the classes of ``label`` where a classifier finds them."""
        folder = self.run / "data" / dataset
        return (folder / label if label in self.labelled else folder) / PROMPTS[split]

    def table(self, experiment: str) -> Path:
        """The table of another experiment."""
        return self.run / f"{experiment}.csv"

    def other_cell(self, experiment: str, cell: str) -> Path:
        """The folder of a cell of another experiment."""
        return self.run / "cells" / experiment / cell


PROMPTS = {"train": "prompts.jsonl", "eval": "eval.jsonl"}
