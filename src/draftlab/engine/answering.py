"""The target answers the prompts of a file, on any engine."""

from __future__ import annotations

import contextlib
import dataclasses
import shutil
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch

from draftlab.core.sampling import GREEDY, Sampling
from draftlab.core.settings import Flat
from draftlab.data.prompts import Rejection
from draftlab.engine.answers import loops
from draftlab.engine.fitting import fitting
from draftlab.engine.recording import Part, TargetPass, collect, is_pass, record
from draftlab.engine.server import Server
from draftlab.engine.settings import Answering, Answers
from draftlab.errors import naming
from draftlab.files.atomic import check_replaceable
from draftlab.files.digests import code_digest, sha256
from draftlab.files.json_files import write_jsonl
from draftlab.files.parts import open_parts
from draftlab.files.weights import is_gguf, weights_digest
from draftlab.models import Decodable, Tokenizer, load_model, load_tokenizer
from draftlab.models.config import read_sizes


def answer(
    target: Path,
    prompts: Path,
    requests: int,
    settings: Answering,
    *,
    sampling: Sampling = GREEDY,
    seed: int = 0,
    context: int = 0,
    parts: Path | None = None,
) -> tuple[TargetPass, list[Rejection]]:
    """Let the target answer the first ``requests`` prompts that fit its context, and a context of ``context`` tokens (0: any).

    Greedy decoding is lossless, so greedy answers serve every draft, draft length and variant. Also returns the prompts that do not fit.
    Finished batches are kept below ``parts``, so that the same command resumes after a kill.
    """
    tokenizer = load_tokenizer(target)
    with _open(target, settings, sampling) as model:
        limit = min(model.context_length, context or model.context_length)
        with naming(target):
            kept, rejected = fitting(prompts, requests, tokenizer, settings, limit)
        if isinstance(model, Server):
            model.check_tokenizer(tokenizer)
        if parts:
            parts = open_parts(
                parts, f"{_identity(model, target, settings)} {tokenizer.eos_ids} {sampling} {seed} {kept}"
            )
        if isinstance(model, Server):
            recorded = _record_served(model, kept, settings.batch, tokenizer, sampling, seed, parts)
        else:
            device = "cpu" if settings.engine == "llama_cpp" else settings.device
            with naming(target):
                recorded = record(
                    model,
                    kept,
                    max_new_tokens=settings.max_new_tokens,
                    eos_ids=tokenizer.eos_ids,
                    sampling=sampling,
                    generator=torch.Generator(device).manual_seed(seed),
                    batch_size=settings.batch,
                    batch_tokens=settings.batch_tokens,
                    keep=settings.keep,
                    parts=parts,
                )
        engine = {"name": settings.engine} | getattr(model, "description", {})
    return dataclasses.replace(recorded, engine=engine), rejected


def _identity(model: Decodable | Server, target: Path, settings: Answering) -> str:
    """Settings, sizes, weights and code; a server may be restarted at another address."""
    engine = {}
    if isinstance(model, Server):
        settings, engine = settings.model_copy(update={"url": "", "batch": 1}), model.description
    weights = sha256(target) if is_gguf(target) else weights_digest(target)
    return f"{settings!r} {engine} {read_sizes(target)} {weights} {code_digest(__name__)}"


def _record_served(
    server: Server,
    requests: Sequence[tuple[str, Sequence[int]]],
    concurrency: int,
    tokenizer: Tokenizer,
    sampling: Sampling,
    seed: int,
    parts: Path | None,
) -> TargetPass:
    """Ask the server for each answer, ``concurrency`` of them at the same time."""

    def answer_batch(batch: list[int]) -> Part:
        (number,) = batch
        return server.answer(requests[number][1], tokenizer.eos_ids, seed + number)

    with ThreadPoolExecutor(concurrency) as pool:
        return collect(
            requests,
            [[number] for number in range(len(requests))],
            answer_batch,
            sampling=sampling,
            eos_ids=tokenizer.eos_ids,
            vocab_size=server.vocab_size,
            parts=parts,
            map_batches=pool.map,
        )


@contextlib.contextmanager
def _open(target: Path, settings: Answering, sampling: Sampling) -> Iterator[Decodable | Server]:
    match settings.engine:
        case "transformers":
            yield load_model(target, settings.dtype, settings.device)
        case "llama_cpp":
            from draftlab.engine.llama_cpp import open_gguf

            with open_gguf(target, settings) as model:
                yield model
        case "openai":
            yield Server(target, settings, sampling)


def save(recorded: TargetPass, rejected: Sequence[Rejection], out: Path) -> None:
    """Write a recorded pass, and the prompts that were too long for it."""
    recorded.save(out)
    write_jsonl(out / "rejected.jsonl", rejected)


def answer_file(
    settings: Flat[Answers],
    *,
    target: Path,
    prompts: Path,
    requests: int,
    temperature: float = 0.0,
    context: int = 0,
    out: Path,
) -> None:
    """Record the target's answers and its distribution at every position, once for all variants.

    **Arguments:**
    - `target`: the folder of the target
    - `prompts`: a file of prompts that draftlab data make wrote
    - `requests`: number of prompts to answer: the first ones that leave room for an answer
    - `temperature`: temperature at which the target samples; 0: greedy
    - `context`: context length of the draft, in tokens; 0: any
    - `out`: the folder for the answers
    """
    out = out.absolute()
    check_replaceable(out, is_pass)  # before hours of answers
    parts = out.parent / f".{out.name}.parts"
    recorded, rejected = answer(
        target, prompts, requests, settings, sampling=settings.sampling(temperature), context=context, parts=parts
    )
    save(recorded, rejected, out)
    shutil.rmtree(parts, ignore_errors=True)  # another process with this command may have removed them
    answers = recorded.answers
    print(
        f"{len(answers)} answers, {sum(recorded.lengths)} tokens in {recorded.forwards} forward passes of the target; "
        f"{sum(not answer.finished for answer in answers)} answers cut off, "
        f"{sum(loops(answer.answer_ids) for answer in answers)} that repeat themselves; {len(rejected)} prompts too long or refused"
    )
