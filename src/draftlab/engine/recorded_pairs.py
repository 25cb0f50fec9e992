"""Recorded pairs: the logits of target and draft at the positions of sampled answers, which acceptance experiments read instead of models."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from jaxtyping import Float, Float64, Int64
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from draftlab.core.sampling import Sampling, to_probs
from draftlab.core.settings import Flat
from draftlab.core.verify.exact import on_support
from draftlab.engine import answering
from draftlab.engine.answers import Answer
from draftlab.engine.settings import Answers
from draftlab.errors import UserError
from draftlab.files.atomic import atomic_path
from draftlab.files.cells import digests
from draftlab.files.json_files import write_json
from draftlab.files.seals import seal_file, verify
from draftlab.models import LanguageModel, load_pair

SAMPLING = Sampling(1.0, top_k=5)
"""How the target writes the texts along which pairs are recorded (MDSS Table 2)."""

CONTEXTS, VOCAB = 80, 5000  # of the synthetic family


@dataclass(frozen=True)
class Pairs:
    """Logits at ``positions`` places of texts; ``token`` is the next token of the text, and ``request`` the number of the text."""

    target_logits: Float[Tensor, "positions vocab"]
    draft_logits: Float[Tensor, "positions vocab"]
    token: Int64[Tensor, " positions"]
    request: Int64[Tensor, " positions"]

    @property
    def is_text(self) -> bool:
        """Whether positions follow one another in texts of the target; else each stands alone."""
        return bool((self.request[1:] == self.request[:-1]).any())

    def first(self, positions: int) -> Pairs:
        """The first ``positions`` of them, or all."""
        kept = (self.target_logits, self.draft_logits, self.token, self.request)
        return Pairs(*(tensor[:positions] for tensor in kept))

    def distributions(
        self, target: Sampling, draft: Sampling
    ) -> tuple[Float64[Tensor, "positions support"], Float64[Tensor, "positions support"]]:
        """Those of target and draft, each sampled in its way, on the tokens that either can produce."""
        return on_support(to_probs(self.target_logits, target), to_probs(self.draft_logits, draft))

    def save(self, out: Path) -> None:
        """Write one safetensors file, whole or not at all."""
        tensors = {name: value.contiguous() for name, value in vars(self).items()}
        with atomic_path(out, sum(tensor.nbytes for tensor in tensors.values())) as temporary:
            save_file(tensors, temporary)
        seal_file(out)


def load_pairs(path: Path) -> Pairs:
    """Read what ``Pairs.save`` wrote; a file that is missing, damaged or of another kind is a ``UserError``."""
    try:
        return Pairs(**load_file(verify(path)))
    except (SafetensorError, OSError, TypeError) as error:
        raise UserError(f"cannot read recorded pairs: {error}", file=path, remedy="record them again") from None


def load_all(folder: Path, datasets: Sequence[str], positions: int, synthetic_seed: int | None) -> dict[str, Pairs]:
    """The first ``positions`` pairs of every dataset, and of the synthetic family if a seed for it is given."""
    pairs = {name: load_pairs(folder / f"{name}.safetensors") for name in datasets}
    if synthetic_seed is not None:
        pairs["synthetic"] = synthetic(synthetic_seed)
    return {name: own.first(positions) for name, own in pairs.items()}


def record_file(
    settings: Flat[Answers], *, target: Path, draft: Path, prompts: Path, positions: int, seed: int = 0, out: Path
) -> None:
    """Record target and draft logits along sampled answers (top-k 5, as in MDSS Table 2), and what they were made from."""
    # The target is opened here and let go: two of it do not fit.
    texts, _ = answering.answer(target, prompts, positions, settings, sampling=SAMPLING, seed=seed)
    target_model, draft_model, _ = load_pair(target, draft, settings.dtype, settings.device)
    record(target_model, draft_model, texts.answers, positions).save(out)
    write_json(out.with_suffix(".json"), digests(out.parents[2], models=[target, draft], data=[prompts]))


@torch.inference_mode()
def record(
    target: LanguageModel, draft: LanguageModel, texts: Sequence[Answer], positions: int, batch: int = 16
) -> Pairs:
    """Logits of target and draft at the first ``positions`` answer positions, in float32."""
    kept: list[Answer] = []
    count = 0
    for answer in texts:
        ids = answer.answer_ids[: positions - count]
        count += len(ids)
        if ids:
            kept.append(Answer(answer.id, answer.prompt_ids, ids, answer.finished))
    starts = range(0, len(kept), batch)
    batches = [
        ([a.prompt_ids for a in kept[i : i + batch]], [a.answer_ids for a in kept[i : i + batch]]) for i in starts
    ]
    logits = [torch.cat([model.answer_logits(*part).float().cpu() for part in batches]) for model in (target, draft)]
    lengths = torch.tensor([len(answer.answer_ids) for answer in kept])
    token = torch.tensor(list(itertools.chain.from_iterable(answer.answer_ids for answer in kept)))
    return Pairs(logits[0], logits[1], token, torch.repeat_interleave(torch.arange(len(kept)), lengths))


def synthetic(seed: int, contexts: int = CONTEXTS, vocab: int = VOCAB) -> Pairs:
    """Distributions like those of language models, without a model: noisy power distributions of mixed steepness, the draft a noisier view of the target.

    Each context is a separate text. At top-p 0.95 and K = 2, the schemes compare as in the family of ``docs/theory.md``, section 5: which of
    them leads depends on how much higher the draft's temperature is.
    """
    generator = torch.Generator().manual_seed(seed)
    ranks = torch.arange(1, vocab + 1).log()
    steepness = 1.2 + 1.3 * torch.rand(contexts, 1, generator=generator)
    noise = torch.randn(2, contexts, vocab, generator=generator)
    target = 0.7 * noise[0] - steepness * ranks
    token = torch.multinomial(target.softmax(-1), 1, generator=generator)[:, 0]
    return Pairs(target, target + 0.7 * noise[1], token, torch.arange(contexts))
