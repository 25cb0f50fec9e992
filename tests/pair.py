"""A toy pair of models with recorded answers, laid out as a run's results: what the tests of distillation share."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pandas as pd
import torch

from draftlab.core.sampling import Sampling
from draftlab.engine.recording import load_pass, record
from draftlab.files.json_files import read_object
from draftlab.models import LanguageModel
from draftlab.models.gguf import export
from draftlab.models.llama import Llama, LlamaConfig
from draftlab.models.tokenizer import train_tokenizer
from draftlab.plan.grids import combinations
from draftlab.stages import STAGES, _cell
from draftlab.stages._inputs import Distillation
from draftlab.stages._stage import Variant

VOCAB, ROOM = 320, 12


def small_llama(hidden: int, seed: int, scale: float = 1.0) -> Llama:
    """An untrained Llama; matrices that are ``scale`` times as large sharpen its distributions."""
    # Untied: with one table for reading and writing, random models repeat their last token and agree before any training.
    config = LlamaConfig(VOCAB, hidden, 2 * hidden, 1, 2, 2, 64, tie_word_embeddings=False)
    model = Llama(config).initialise(torch.Generator().manual_seed(seed))
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(scale if weight.ndim == 2 else 1.0)
    return model


def make_results(folder: Path, small: Callable[[int, int], LanguageModel] = small_llama) -> None:
    """A target with sharp, prompt-dependent answers, drafts that know nothing, and passes of datasets ``toy`` and ``other``."""
    target = small(32, 0)
    with torch.no_grad():
        for weight in target.parameters():
            weight.mul_(6.0 if weight.ndim == 2 else 1.0)
    tokenizer = train_tokenizer([f"some text {i * i}" for i in range(400)], VOCAB)
    for name, model in {"target": target, "draft": small(16, 1), "giant": small(64, 2)}.items():
        model.save(folder / "models" / name)
        tokenizer.save(folder / "models" / name)
    for dataset, seed in (("toy", 2), ("other", 3)):
        generator = torch.Generator().manual_seed(seed)
        low = 4 if dataset == "toy" else 100
        prompts = [
            (f"{dataset}/{i}", torch.randint(low, low + 36, (6,), generator=generator).tolist()) for i in range(64)
        ]
        for split, part in (("train", prompts[:48]), ("eval", prompts[48:])):
            record(target, part, max_new_tokens=ROOM, eos_ids={2}).save(folder / "answers" / f"{dataset}.{split}")
            warm = record(
                target, part, max_new_tokens=ROOM, eos_ids={2}, sampling=Sampling(1.0),
                generator=torch.Generator().manual_seed(0),
            )  # fmt: skip
            warm.save(folder / "answers" / f"{dataset}.{split}.t1")


def exported_pair(folder: Path) -> dict[str, Path]:
    """A small target and draft by name: each a folder, with its GGUF file beside it."""
    for name, size, scale in (("target", 32, 4.0), ("draft", 16, 16.0)):
        small_llama(size, size, scale).save(folder / name)
        export(folder / name, folder / f"{name}.gguf", vocabulary=False)
    return {name: folder / name for name in ("target", "draft")}


def keep_held_out(results: Path, count: int) -> None:
    """Keep only the first ``count`` held-out requests of ``toy``."""
    folder = results / "answers/toy.eval"
    whole = load_pass(folder)
    positions = sum(whole.lengths[:count])
    shutil.rmtree(folder)
    dataclasses.replace(whole, answers=whole.answers[:count], log_probs=whole.log_probs[:positions].clone()).save(
        folder
    )


class Killed(BaseException):
    """A process is killed: nothing on the way catches it."""


class Mortal:
    """A function that counts its ``calls``, and is killed in one of them."""

    def __init__(self, function: Callable[..., Any], dies_at: int) -> None:
        self.function, self.dies_at, self.calls = function, dies_at, 0

    def __call__(self, *words: Any, **options: Any) -> Any:
        self.calls += 1
        if self.calls == self.dies_at:
            raise Killed
        return self.function(*words, **options)


def inputs_of(results: Path, kind: type[Distillation] = Distillation, **more: Any) -> Distillation:
    return kind(models=results / "models", answers=results / "answers", max_new_tokens=ROOM, **more)


def run_cell(
    name: str, results: Path, out: Path, settings: dict[str, Any], inner: Mapping[str, Any] | None = None, **inputs: Any
) -> tuple[pd.DataFrame, dict[str, Any]]:
    """The table and the record of a cell: a stage with a variant for each choice of the axes ``inner``."""
    stage = STAGES[name]
    variants = [
        Variant(labels, stage.settings.model_validate(settings | changes))
        for labels, changes in combinations(inner or {})
    ]
    _cell.run(stage, variants, inputs_of(results, stage.inputs, **inputs), out)
    return pd.read_csv(out / "rows.csv"), read_object(out / "run.json")


def alpha(rows: pd.DataFrame) -> float:
    return float(rows["overlap"].sum() / rows["visited"].sum())


def weights(model: LanguageModel) -> torch.Tensor:
    return torch.cat([value.detach().flatten() for _, value in model.named_parameters()])
