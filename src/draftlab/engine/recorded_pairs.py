"""Recorded pairs: the logits of target and draft along sampled answers, which acceptance experiments read instead of models."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from jaxtyping import Float, Float64, Int64
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from draftlab.core.sampling import Sampling, restrict_pair, to_probs
from draftlab.core.settings import SEEDS, Flat
from draftlab.engine import answering
from draftlab.engine.answers import Answer
from draftlab.engine.settings import Answering
from draftlab.errors import UserError
from draftlab.files.atomic import atomic_path
from draftlab.files.cells import digests
from draftlab.files.json_files import write_json
from draftlab.files.seals import seal_file, verify
from draftlab.models import LanguageModel, load_pair, shared_tokenizer
from draftlab.models.config import context_of

SAMPLING = Sampling(1.0, top_k=5)
"""How the target writes the texts along which pairs are recorded (MDSS Table 2)."""

CONTEXTS, VOCAB = 80, 5000  # of the synthetic family

AT_ONCE = 16
"""Texts in one forward pass."""


@dataclass(frozen=True)
class Pairs:
    """Logits at positions of texts; ``token`` is the next token of the text, and ``request`` the number of the text."""

    target_logits: Float[Tensor, "positions vocab"]
    draft_logits: Float[Tensor, "positions vocab"]
    token: Int64[Tensor, " positions"]
    request: Int64[Tensor, " positions"]

    @property
    def is_text(self) -> bool:
        """Whether positions follow one another in texts; otherwise each position is a text by itself."""
        return bool((self.request[1:] == self.request[:-1]).any())

    def first(self, positions: int) -> Pairs:
        """The first ``positions`` positions, or all if there are fewer."""
        return Pairs(**{name: tensor[:positions] for name, tensor in vars(self).items()})

    def distributions(
        self, target: Sampling, draft: Sampling
    ) -> tuple[Float64[Tensor, "positions support"], Float64[Tensor, "positions support"]]:
        """The distributions of target and draft under these samplings, on the tokens that either can produce."""
        return restrict_pair(to_probs(self.target_logits, target), to_probs(self.draft_logits, draft))

    def save(self, out: Path) -> None:
        """Write one safetensors file, whole or not at all."""
        tensors = {name: value.contiguous() for name, value in vars(self).items()}
        with atomic_path(out, sum(tensor.nbytes for tensor in tensors.values())) as temporary:
            save_file(tensors, temporary)
        seal_file(out)


def load_pairs(path: Path) -> Pairs:
    """Read what ``Pairs.save`` wrote; ``UserError`` if the file is missing, damaged or of another kind."""
    try:
        return Pairs(**load_file(verify(path)))
    except (SafetensorError, OSError, TypeError) as error:
        raise UserError(
            f"cannot read recorded pairs: {error}", file=path, remedy="record them: draftlab record-pairs"
        ) from None


def load_all(files: Mapping[str, Path], positions: int, synthetic_seed: int | None) -> dict[str, Pairs]:
    """The first ``positions`` pairs of every file, by its dataset, and of the synthetic family if a seed for it is given."""
    pairs = {name: load_pairs(path) for name, path in files.items()}
    if synthetic_seed is not None:
        pairs["synthetic"] = synthetic(synthetic_seed)
    return {name: recorded.first(positions) for name, recorded in pairs.items()}


def record_file(
    settings: Flat[Answering], *, target: Path, draft: Path, prompts: Path, positions: int, seed: int = 0, out: Path
) -> None:
    """Record target and draft logits along sampled answers (top-k 5, as in MDSS Table 2), and what they were made from.

    **Arguments:**
    - `target`: the folder of the target
    - `draft`: the folder of the draft
    - `prompts`: a file of prompts that draftlab data make wrote
    - `positions`: positions of answers to record
    - `seed`: seed of the sampled answers
    - `out`: the file to write
    """
    if positions < 1:
        raise UserError(f"positions is {positions}", remedy="give 1 or more")
    if not 0 <= seed < SEEDS:
        raise UserError(f"seed is {seed}", remedy=f"give 0 to {SEEDS - 1}")
    shared_tokenizer(target, draft)  # before hours of answers
    # This opens the target and frees it again: two copies do not fit. It answers more prompts than the positions need: with fewer, batches
    # and their draws, and so the texts, would be others.
    context = context_of(draft)  # the draft reads every answer, too
    texts, _ = answering.answer(target, prompts, positions, settings, sampling=SAMPLING, seed=seed, context=context)
    target_model, draft_model, _ = load_pair(target, draft, settings.dtype, settings.device)
    record(target_model, draft_model, texts.answers, positions).save(out)
    write_json(out.with_suffix(".json"), digests(out.parent / "../..", models=[target, draft], data=[prompts]))


@torch.inference_mode()
def record(target: LanguageModel, draft: LanguageModel, texts: Sequence[Answer], positions: int) -> Pairs:
    """Logits of target and draft at the first ``positions`` answer positions, in float32."""
    prompts: list[list[int]] = []
    answers: list[list[int]] = []
    for text in texts:
        if ids := text.answer_ids[: positions - sum(map(len, answers))]:
            prompts.append(text.prompt_ids)
            answers.append(ids)
    parts = [(prompts[i : i + AT_ONCE], answers[i : i + AT_ONCE]) for i in range(0, len(answers), AT_ONCE)]
    of_target, of_draft = (
        torch.cat([model.answer_logits(*part).float().cpu() for part in parts]) for model in (target, draft)
    )
    token = torch.tensor(list(itertools.chain.from_iterable(answers)))
    lengths = torch.tensor([len(answer) for answer in answers])
    return Pairs(of_target, of_draft, token, torch.repeat_interleave(torch.arange(len(answers)), lengths))


def synthetic(seed: int, contexts: int = CONTEXTS, vocab: int = VOCAB) -> Pairs:
    """Logits like a language model's, without a model: noisy power distributions of mixed steepness; the draft is the target with more noise.

    Each context is a text by itself. At top-p 0.95 and K = 2, the schemes compare as in the family of ``docs/theory.md``, section 5: which
    scheme leads depends on how much higher the draft's temperature is.
    """
    generator = torch.Generator().manual_seed(seed)
    ranks = torch.arange(1, vocab + 1).log()
    steepness = 1.2 + 1.3 * torch.rand(contexts, 1, generator=generator)
    noise = torch.randn(2, contexts, vocab, generator=generator)
    target = 0.7 * noise[0] - steepness * ranks
    token = torch.multinomial(target.softmax(-1), 1, generator=generator)[:, 0]
    return Pairs(target, target + 0.7 * noise[1], token, torch.arange(contexts))
