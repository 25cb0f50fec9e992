"""Prompts that leave room for an answer. Apart from recording, so that a change there does not train the small models again."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from draftlab.data.prompts import Prompt, Rejection
from draftlab.engine.settings import Answering
from draftlab.errors import UserError
from draftlab.files.json_files import read_jsonl
from draftlab.models import Tokenizer


def encoded(prompts: Path, tokenizer: Tokenizer, template: str) -> Iterator[tuple[Prompt, list[int] | str]]:
    """Each prompt with its token ids, or with the reason why it has none, such as a chat template that refuses its conversation."""
    tokenizer.encode_prompt("?", template)  # a template that refuses every prompt is an error
    for prompt in read_jsonl(prompts, Prompt):
        try:
            ids = tokenizer.encode_prompt(prompt.messages, template, prompt.tools, prompt.template_options)
            yield prompt, ids or "no token: the tokenizer or the chat template drops the whole text"
        except UserError as error:
            yield prompt, error.what


def fitting(
    prompts: Path, requests: int, tokenizer: Tokenizer, settings: Answering, context: int
) -> tuple[list[tuple[str, list[int]]], list[Rejection]]:
    """The first ``requests`` prompts (id, token ids) that leave room for an answer in ``context`` tokens, and those among them that do not."""
    if requests < 1:
        raise UserError(f"requests is {requests}", remedy="give 1 or more")
    room = context - settings.max_new_tokens
    kept: list[tuple[str, list[int]]] = []
    rejected: list[Rejection] = []
    lengths = []
    for line, (prompt, ids) in enumerate(encoded(prompts, tokenizer, settings.template), 1):
        if len(kept) == requests:
            break
        if isinstance(ids, str):
            rejected.append(Rejection(str(prompts), line, ids, prompt.id))
            continue
        lengths.append(len(ids))
        if len(ids) <= room:
            kept.append((prompt.id, ids))
        else:
            reason = f"{len(ids)} tokens, but the context has room for {room}"
            rejected.append(Rejection(str(prompts), line, reason, prompt.id))
    if rejected and not lengths:
        raise UserError(f"no prompt can be used: {rejected[0].reason}", file=prompts, remedy="use another template")
    if not kept:
        shortest = f", the shortest has {min(lengths)} tokens" if lengths else ""
        what = f"no prompt fits the target's context of {context} tokens, {settings.max_new_tokens} of which are for the answer{shortest}"
        remedy = "use a target with a longer context, or lower answers.max_new_tokens"
        raise UserError(what, file=prompts, remedy=remedy)
    return kept, rejected
