"""Speed of the decoding loop beside ``transformers`` and OSD's repository: contenders take turns in one process, on one thread, in CPU
seconds.

    python -m benchmarks.decode --target FOLDER --draft FOLDER --prompts eval.jsonl
    python -m benchmarks.decode --target MODEL_FOLDER --template plain      # draft: all its layers but the last
    python -m benchmarks.decode --target MODEL_FOLDER --dtype bfloat16 --batch 8 32

Every contender decodes the same prompts greedily to the same limits with the same fixed draft length, and its text is compared with the plain
greedy text. In bfloat16 texts may differ from where two tokens are nearly as probable. Tokens are counted the same way for all. ``repository``
is OSD's loop, rewritten on ``transformers``: it samples at temperature 0.01. A draft with a trimmed head is widened for ``transformers``, which
cannot read it.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal

import pandas as pd
import torch

from benchmarks import Turns, hub_network, run, show, take_turns
from benchmarks.online import decode_as_the_repository
from draftlab.core.confident_tree import ConfidentTree
from draftlab.core.settings import Count, Dtype, Flat, Template
from draftlab.core.verify.sampled import ranked
from draftlab.data.prompts import Prompt
from draftlab.engine.generate import generate
from draftlab.engine.recording import record
from draftlab.engine.replay import replay
from draftlab.engine.speculate import speculate
from draftlab.errors import UserError
from draftlab.files.json_files import read_jsonl
from draftlab.latency.comparison import compare
from draftlab.models import check_same_tokenizer, load_model, load_tokenizer
from draftlab.models.config import read_config
from draftlab.models.llama import Llama
from draftlab.models.trimmed import widen
from draftlab.train.designs import prune

TEXTS = (
    "Once upon a time, there was a little girl",
    "How many apples are left in the box?",
    "List the names of all singers who are older than 20.",
    "Write a function that returns the largest number of a list.",
    "The big dog saw a red ball",
    "What is a savings account good for?",
    "One day, Tom and his mother went to the park",
    "Explain in one sentence why the sky is blue.",
)

WIDTH = 8
"""The most texts that a tree extends at each depth."""

Contender = Callable[[], list[list[int]]]


class DecodeBench(Turns):
    """A few requests at a fixed draft length.

    ``dtype`` is that of our weights, ``their_dtype`` that of transformers and of the repository's loop. ``nodes`` is the number of drafted
    tokens of a tree by the draft's confidence; each number is a contender.
    """

    template: Template = "vicuna_v1.1"
    requests: Count = 16
    draft_len: Count = 5
    max_new_tokens: Count = 64
    batch: tuple[Count, ...] = (8,)
    nodes: tuple[Count, ...] = ()
    dtype: Dtype = "float32"
    their_dtype: Literal["float32", "bfloat16"] = "float32"


def bench(
    target: Path,
    draft: Path | None = None,
    prompts: Path | None = None,
    settings: DecodeBench = DecodeBench(),  # noqa: B008 (frozen)
) -> pd.DataFrame:
    """Time every contender ``settings.repeats`` times, in turns; one row per contender.

    Columns: ``contender, tokens, cpu_seconds`` (median), ``tokens_per_cpu_second, same_text`` (of ``requests``: the plain greedy text), and
    ``speedup, low, high``: CPU seconds of assisted generation in transformers over the contender's, paired by turn, with the 99 %
    interval. ``loop, again`` is ``loop`` once more; its ratio to ``loop`` is the noise (``noise, noise_low, noise_high``).
    Replay gives the acceptance that the loop measures, from the recorded pass; its tokens are the ones in the recorded answers.
    """
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as scratch:
        folders = (target, draft or _all_but_the_last_layer(target, Path(scratch)))
        tokenizer = load_tokenizer(target)
        if draft is not None:
            check_same_tokenizer(tokenizer, load_tokenizer(draft))
        asked = list(read_jsonl(prompts, Prompt)) if prompts else [Prompt("", "", "", text) for text in TEXTS]
        inputs = [
            tokenizer.encode_prompt(prompt.messages, settings.template, prompt.tools)
            for prompt in asked[: settings.requests]
        ]
        contenders = _contenders(folders, _untrimmed(folders[1], Path(scratch)), inputs, tokenizer.eos_ids, settings)
        seconds, answers = take_turns(contenders, settings.repeats)
    expected = answers["plain"]
    rows, tokens = [], sum(map(len, expected))
    for name, times in seconds.items():
        median = float(pd.Series(times).median())
        against = compare(seconds["transformers assisted"], times)
        same = sum(a == b for a, b in zip(answers[name], expected, strict=True))
        row: dict[str, Any] = {"contender": name, "tokens": tokens, "cpu_seconds": median}
        row |= {"tokens_per_cpu_second": tokens / median, "same_text": same, "requests": len(expected)}
        row |= {"speedup": against.ratio, "low": against.low, "high": against.high}
        if name == "loop, again":
            noise = compare(seconds["loop"], times)
            row |= {"noise": noise.ratio, "noise_low": noise.low, "noise_high": noise.high}
        rows.append(row)
    return pd.DataFrame(rows)


def table(frame: pd.DataFrame) -> str:
    """The figures for a person: one line per contender, and the noise of the loop against itself."""
    lines = [f"{'contender':24}{'tokens/CPU s':>14}{'same text':>11}{'x assisted':>12}   99 % interval"]
    for row in frame.to_dict("records"):
        lines.append(
            f"{row['contender']:24}{row['tokens_per_cpu_second']:14.0f}{row['same_text']:8}/{row['requests']:<2}"
            f"{row['speedup']:12.2f}   {row['low']:.2f} to {row['high']:.2f}"
        )
        if row["contender"] == "loop, again":
            lines[-1] += f"   (noise: {row['noise']:.3f} of loop, {row['noise_low']:.3f} to {row['noise_high']:.3f})"
    return "\n".join(lines)


def _contenders(
    folders: Sequence[Path],
    their_draft: Path,
    prompts: list[list[int]],
    eos_ids: Sequence[int],
    settings: DecodeBench,
) -> dict[str, Contender]:
    """Each decodes all prompts and returns the answers."""
    draft_len, max_new_tokens = settings.draft_len, settings.max_new_tokens
    target, draft = (load_model(folder, settings.dtype) for folder in folders)
    theirs = (folders[0], their_draft)
    hub_target, hub_draft = (hub_network(folder, settings.their_dtype) for folder in theirs)
    if hub_target.config.is_encoder_decoder:
        raise UserError("an encoder-decoder", file=folders[0], remedy="this benchmark compares decoder-only models")
    limits: dict[str, Any] = {"max_new_tokens": max_new_tokens, "eos_ids": eos_ids}
    target_pass = record(target, [(str(number), prompt) for number, prompt in enumerate(prompts)], **limits)

    def plain(size: int) -> list[list[int]]:
        return generate(target, prompts, batch=size, **limits)

    def loop(size: int) -> list[list[int]]:
        decoded = speculate(target, draft, prompts, draft_len=draft_len, batch=size, **limits)
        return [trace.answer_ids for trace in decoded.traces]

    def trees(nodes: int) -> list[list[int]]:
        shape: dict[str, Any] = {"draft_len": draft_len, "num_drafts": nodes, "verifier": ranked}
        tree = ConfidentTree(nodes, draft_len, width=min(nodes, WIDTH))
        decoded = speculate(target, draft, prompts, batch=1, tree=tree, **shape, **limits)
        return [trace.answer_ids for trace in decoded.traces]

    def transformers(assistant: Any | None) -> list[list[int]]:
        return [_hub_answer(hub_target, assistant, prompt, eos_ids, max_new_tokens) for prompt in prompts]

    def repository() -> list[list[int]]:
        generator = torch.Generator().manual_seed(0)
        texts = [
            decode_as_the_repository(hub_target, hub_draft, prompt, eos_ids, draft_len, max_new_tokens, generator)[0]
            for prompt in prompts
        ]
        return [_cut(text[len(p) :], eos_ids, max_new_tokens) for text, p in zip(texts, prompts, strict=True)]

    def replayed() -> list[list[int]]:
        replay(draft, target_pass, draft_len)
        return [answer.answer_ids for answer in target_pass.answers]

    generation = hub_draft.generation_config
    generation.num_assistant_tokens, generation.num_assistant_tokens_schedule = draft_len, "constant"
    generation.assistant_confidence_threshold = 0.0
    contenders: dict[str, Contender] = {
        "transformers": lambda: transformers(None),
        "transformers assisted": lambda: transformers(hub_draft),
        "repository": repository,
        "plain": lambda: plain(1),
        "loop": lambda: loop(1),
        "loop, again": lambda: loop(1),
    }
    for batch in settings.batch:
        contenders |= {f"plain, batch {batch}": partial(plain, batch), f"loop, batch {batch}": partial(loop, batch)}
    contenders |= {f"trees of {nodes} tokens": partial(trees, nodes) for nodes in settings.nodes}
    return contenders | {"replay": replayed}


def _cut(tokens: list[int], eos_ids: Sequence[int], most: int) -> list[int]:
    """An answer up to its first end-of-text token: the last block may go beyond."""
    end = next((place + 1 for place, token in enumerate(tokens) if token in eos_ids), most)
    return tokens[: min(end, most)]


def _hub_answer(
    network: Any, assistant: Any | None, prompt: list[int], eos_ids: Sequence[int], max_new_tokens: int
) -> list[int]:
    """One greedy answer by ``transformers`` itself; it takes one request at a time when it is assisted."""
    ids = torch.tensor([prompt])
    options = {"do_sample": False, "eos_token_id": list(eos_ids), "pad_token_id": 0, "max_new_tokens": max_new_tokens}
    text = network.generate(ids, attention_mask=torch.ones_like(ids), assistant_model=assistant, **options)
    answer: list[int] = text[0, len(prompt) :].tolist()
    return answer


def _untrimmed(draft: Path, scratch: Path) -> Path:
    """A folder of the same draft that transformers can read: with a trimmed head, the widened draft, whose outputs are the same."""
    if not read_config(draft).get("head_tokens"):
        return draft
    widen(draft, scratch / "widened")
    return scratch / "widened"


def _all_but_the_last_layer(target: Path, scratch: Path) -> Path:
    """A draft made of the target's first layers; its folder."""
    model = load_model(target)
    if not isinstance(model, Llama) or len(model.layers) < 2:
        raise UserError(
            "not a Llama of two layers or more: no first layers to draft with", file=target, remedy="give --draft"
        )
    prune(model, len(model.layers) - 1).save(scratch / "draft")
    return scratch / "draft"


def main(
    settings: Flat[DecodeBench],
    *,
    target: Path,
    draft: Path | None = None,
    prompts: Path | None = None,
    out: Path | None = None,
) -> None:
    """Time the decoding loop and replay beside transformers and OSD's loop, in turns, in CPU seconds on one thread.

    Without --draft the target's layers but the last are the draft; without --prompts a few sentences are the prompts.
    """
    frame = bench(target, draft, prompts, settings)
    show(frame, table(frame), out)


if __name__ == "__main__":
    run(main)
