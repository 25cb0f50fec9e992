"""Where the files of a run lie, as the stages look for them."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from draftlab.engine.settings import Answers


@dataclass(frozen=True)
class Places:
    """The folder of a run, and of a cell in it.

    ``architectures``: at scales of random weights, the architecture that each role of the main pair stands for. ``labelled``: classes
    that a classifier finds. ``answers``: how the target of each pair answers. ``datasets``: those that each pair is measured on.
    """

    run: Path
    experiment: str
    cell: str
    answers: Mapping[str, Answers]
    datasets: Mapping[str, list[str]]
    labelled: Collection[str] = ()
    architectures: Mapping[str, str] | None = None

    def model(self, role: str, pair: str = "main") -> Path:
        """The folder of a model, or the name of an architecture."""
        if self.architectures is not None:
            return Path(self.architectures[role])
        return self.run / pair / "models" / role

    def models(self, pair: str = "main") -> Path:
        """The folder of a pair's models."""
        return self.run / pair / "models"

    def recorded(self, pair: str = "main") -> Path:
        """The folder of the recorded answers of a pair's target."""
        return self.run / pair / "answers"

    def distributions(self, pair: str) -> Path:
        """The folder of the recorded logits of target and draft."""
        return self.run / pair / "pairs"

    def prompts(self, dataset: str, split: str = "train", label: str = "") -> Path:
        """The requests of one split, with the classes of ``label`` where a classifier finds them."""
        folder = self.run / "data" / dataset
        return (folder / label if label in self.labelled else folder) / PROMPTS[split]

    @property
    def streams(self) -> Path:
        """The folder of the files that say in which order the requests of this cell arrive."""
        return self.run / "streams" / self.experiment / self.cell

    def table(self, experiment: str) -> Path:
        """The table of another experiment."""
        return self.run / f"{experiment}.csv"

    def other_cell(self, experiment: str, cell: str) -> Path:
        """The folder of a cell of another experiment."""
        return self.run / "cells" / experiment / cell


PROMPTS = {"train": "prompts.jsonl", "eval": "eval.jsonl"}
