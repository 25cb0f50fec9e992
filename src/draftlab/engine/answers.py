"""The target's answers to a dataset's prompts, recorded once and shared by every variant."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch

from draftlab import plan
from draftlab.core.sampling import Sampling
from draftlab.engine.decode import GREEDY
from draftlab.engine.replay import TargetPass, record
from draftlab.errors import UserError
from draftlab.files.records import Prompt, Rejection, read_jsonl, write_jsonl
from draftlab.models import load_model, load_tokenizer


def answer(
    target: Path,
    prompts: Path,
    requests: int,
    settings: plan.Answers,
    *,
    sampling: Sampling = GREEDY,
    seed: int = 0,
) -> tuple[TargetPass, list[Rejection]]:
    """Let the target answer the first ``requests`` prompts that fit its context; the others are returned with the reason.

    Near-greedy decoding is lossless, so the greedy answers serve every draft, draft length and variant.
    """
    model = load_model(target, settings.dtype, settings.device)
    tokenizer = load_tokenizer(target)
    room = model.context_len - settings.max_new_tokens
    if room < 1:
        raise UserError(
            f"max_new_tokens is {settings.max_new_tokens}, the target's context {model.context_len}",
            file=target,
            remedy="lower answers.max_new_tokens of this scale",
        )
    kept: list[tuple[str, list[int]]] = []
    rejected: list[Rejection] = []
    for line, prompt in enumerate(read_jsonl(prompts, Prompt), 1):
        if len(kept) == requests:
            break
        ids = tokenizer.encode_prompt(prompt.text, settings.template)
        if len(ids) <= room:
            kept.append((prompt.id, ids))
        else:
            reason = f"{len(ids)} tokens, the context leaves room for {room}"
            rejected.append(Rejection(str(prompts), line, reason, prompt.id))
    if not kept:
        raise UserError(
            "no prompt fits the target's context", file=prompts, remedy="use a target with a longer context"
        )
    found = record(
        model,
        kept,
        max_new_tokens=settings.max_new_tokens,
        eos_ids=tokenizer.eos_ids,
        sampling=sampling,
        generator=torch.Generator(settings.device).manual_seed(seed),
        batch_size=settings.batch,
        keep=settings.keep,
    )
    return found, rejected


def save(found: TargetPass, rejected: Sequence[Rejection], out: Path) -> None:
    """Write a recorded pass, and the prompts that were too long for it."""
    found.save(out)
    write_jsonl(out / "rejected.jsonl", rejected)
