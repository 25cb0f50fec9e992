"""Prompts that leave room for an answer. Apart from recording, so that a change there does not train the small models again."""

from __future__ import annotations

from pathlib import Path

from draftlab.data.prompts import Prompt, Rejection
from draftlab.engine.settings import Answers
from draftlab.errors import UserError
from draftlab.files.json_files import read_jsonl
from draftlab.models import Tokenizer


def fitting(
    prompts: Path, requests: int, tokenizer: Tokenizer, settings: Answers, context: int
) -> tuple[list[tuple[str, list[int]]], list[Rejection]]:
    """The first ``requests`` prompts (id, token ids) that leave room for an answer in ``context`` tokens, and the longer ones among them."""
    room = context - settings.max_new_tokens
    kept: list[tuple[str, list[int]]] = []
    rejected: list[Rejection] = []
    lengths = []
    for line, prompt in enumerate(read_jsonl(prompts, Prompt), 1):
        if len(kept) == requests:
            break
        ids = tokenizer.encode_prompt(prompt.text, settings.template)
        lengths.append(len(ids))
        if len(ids) <= room:
            kept.append((prompt.id, ids))
        else:
            reason = f"{len(ids)} tokens, but the context has room for {room}"
            rejected.append(Rejection(str(prompts), line, reason, prompt.id))
    if not kept:
        shortest = f", the shortest has {min(lengths)} tokens" if lengths else ""
        what = f"no prompt fits the target's context of {context} tokens, {settings.max_new_tokens} of which are for the answer{shortest}"
        remedy = "use a target with a longer context, or lower answers.max_new_tokens"
        raise UserError(what, file=prompts, remedy=remedy)
    return kept, rejected
