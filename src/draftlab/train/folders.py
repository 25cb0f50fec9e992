"""The recorded answers, models and tokenizer that the variants of a cell share, each read once."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar, cast

from draftlab.engine.answers import recorded_name
from draftlab.engine.recording import TargetPass, join, load_pass
from draftlab.files.seals import seal
from draftlab.files.weights import check_sizes, parameter_count
from draftlab.models import Dtype, LanguageModel, Tokenizer, load_model, load_tokenizer
from draftlab.models.config import drafts_in_parallel
from draftlab.models.eagle import of_blocks
from draftlab.models.llama import Llama
from draftlab.models.parallel_draft import ParallelDraft, spare_token
from draftlab.models.released_heads import ReleasedHead
from draftlab.train import parallel
from draftlab.train.learning import Effort
from draftlab.train.settings import Training

T = TypeVar("T")


@dataclass(frozen=True)
class Folders:
    """The folders of recorded ``answers`` and of ``models``, what has been read from them (``kept``), and the CPU time at the ``begin``."""

    answers: Path
    models: Path
    kept: dict[object, object] = field(default_factory=dict)
    begin: float = field(default_factory=time.process_time)

    @property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer that target and drafts share."""
        return self.once("tokenizer", lambda: load_tokenizer(self.models / "target"))

    def recorded(self, dataset: str, split: str, temperature: float = 0.0) -> TargetPass:
        """The target's recorded answers to one split of a dataset."""
        name = recorded_name(dataset, split, temperature)
        return self.once(name, lambda: load_pass(self.answers / name))

    def joined(self, datasets: Sequence[str], split: str, temperature: float = 0.0) -> TargetPass:
        """The recorded answers to one split of several datasets, one after the other."""
        key = ("joined", *datasets, split, temperature)
        return self.once(key, lambda: join([self.recorded(name, split, temperature) for name in datasets]))

    def target(self, device: str, dtype: Dtype = "float32") -> LanguageModel:
        """The target itself."""
        return self.once(("target", device), lambda: load_model(self.models / "target", dtype, device))

    def parameters(self, model: str) -> int:
        """The number of weights of a model."""
        return self.once(("parameters", model), lambda: parameter_count(self.models / model))

    def draft(self, settings: Training, name: str = "") -> LanguageModel:
        """A fresh copy of the draft, or of the draft ``name``, to learn as ``settings`` say; ``UserError`` if it is larger than the target."""
        folder = self.models / (name or settings.draft)
        check_sizes(self.models / "target", folder)
        draft = load_model(folder, device=settings.device)
        if settings.keeps_embedding and isinstance(draft, Llama):
            draft.embed.requires_grad_(False)
        return draft

    def draft_of_blocks(self, settings: Training, dtype: Dtype, depth: int) -> LanguageModel:
        """A fresh copy of the draft for blocks of ``depth`` tokens: on the target if it reads its states, as every released head does.

        It proposes a block in one pass if ``settings`` say so; where they do not say, if it was made for it.
        """
        draft = self.draft(settings)
        reads_target = getattr(settings, "reads_target", False) or isinstance(draft, ReleasedHead)
        target = self.target(settings.device, dtype) if reads_target else None
        parallel = getattr(settings, "parallel", drafts_in_parallel(self.models / settings.draft))
        return of_blocks(draft, target, depth, parallel=parallel)

    def save(self, draft: LanguageModel, original: str, out: Path, learnt_from: TargetPass) -> None:
        """Write a distilled draft with the tokenizer of the draft that it was made from.

        A parallel draft's mask takes the place of a token that is rare in what it ``learnt_from``.
        """
        tokenizer = load_tokenizer(self.models / original)
        if isinstance(draft, ParallelDraft) and draft.token is None:
            texts = (text for answer in learnt_from.answers for text in (answer.prompt_ids, answer.answer_ids))
            draft.token = spare_token(tokenizer, texts)
        draft.save(out)
        tokenizer.save(out)
        seal(out)

    def facts(self, effort: Effort) -> dict[str, Any]:
        """The facts for ``run.json``."""
        passes = [kept for name, kept in self.kept.items() if isinstance(kept, TargetPass) and isinstance(name, str)]
        counts = {name: count for name, count in dataclasses.asdict(effort).items() if name != "milliseconds"}
        return counts | {
            "recorded_tokens": sum(sum(recorded.lengths) for recorded in passes),  # they serve all variants
            "processes": parallel.PROCESSES,
            "cpu_seconds": round(time.process_time() - self.begin, 3),
        }

    def once(self, key: object, make: Callable[[], T]) -> T:
        """The result of ``make``, which is called only once for all variants."""
        if key not in self.kept:
            self.kept[key] = make()
        return cast(T, self.kept[key])
