"""The target's answers to a dataset's prompts, and its distributions along them: recorded once, stored, and shared by every variant."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Float16, Int, Int32, Int64
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Generator, Tensor

from draftlab.core.sampling import Sampling
from draftlab.data.prompts import Prompt, Rejection
from draftlab.engine.answers import Answer
from draftlab.engine.generate import GREEDY, generate
from draftlab.engine.server import Server
from draftlab.engine.settings import WHOLE_VOCAB, Answers
from draftlab.errors import UserError
from draftlab.files.atomic import atomic_dir, atomic_path
from draftlab.files.digests import code_digest, sha256
from draftlab.files.json_files import read_jsonl, read_object, write_json, write_jsonl
from draftlab.files.parts import open_parts
from draftlab.files.seals import seal, verify
from draftlab.files.weights import is_gguf, weights_digest
from draftlab.models import Decodable, Tokenizer, load_model, load_tokenizer
from draftlab.progress import progress

Part = dict[str, Tensor]
"""A finished batch: the ``lengths`` of its answers, their ``tokens`` and distributions (``log_probs``, ``ids``), one after the other."""


@dataclass(frozen=True)
class TargetPass:
    """The target's answers, and its distribution at every answer position.

    ``log_probs`` are those of softmax(logits) at temperature 1, before top-k and top-p, however the answers were sampled; the losses learn from
    them. They are float16: a probability is off by at most p |log p| / 2048, and a sum of minima by at most 1/4096 of the entropy.
    ``ids`` is None if the whole vocabulary is recorded. Otherwise it holds the kept tokens, always including the emitted one, and the last
    column of ``log_probs`` is the mass of all others. ``engine`` names the engine that answered. ``begins`` is the first position of each
    request, so that other orders of the requests share the tensors; without it they lie one after the other.
    """

    answers: list[Answer]
    sampling: Sampling
    vocab_size: int
    log_probs: Float16[Tensor, "positions columns"]
    ids: Int32[Tensor, "positions kept"] | None
    forwards: int
    engine: dict[str, Any] = dataclasses.field(default_factory=dict)
    begins: Int64[np.ndarray, " requests"] | None = None

    @functools.cached_property
    def lengths(self) -> list[int]:
        """Number of answer positions of each request."""
        return [len(answer.answer_ids) for answer in self.answers]

    @functools.cached_property
    def first_positions(self) -> Int64[np.ndarray, " requests"]:
        """First position of each request."""
        return np.cumsum([0, *self.lengths])[:-1] if self.begins is None else self.begins

    @property
    def tensors(self) -> dict[str, Tensor]:
        """The recorded distribution, by the names that it has on disk."""
        return {"log_probs": self.log_probs} | ({} if self.ids is None else {"ids": self.ids})

    def take(self, requests: Iterable[int]) -> TargetPass:
        """These requests in this order. Nothing is copied: both passes share their tensors."""
        chosen = list(requests)
        return dataclasses.replace(
            self, answers=[self.answers[request] for request in chosen], begins=self.first_positions[chosen]
        )

    def target_logits(
        self, requests: Sequence[int], device: torch.device | str = "cpu"
    ) -> Float[Tensor, "positions vocab"]:
        """Log-probabilities at temperature 1 at the answer positions of ``requests``, one after the other. Tokens that were not kept share the
        remaining mass evenly (sums of minima are then off by at most that mass). They are spread over the vocabulary on ``device``."""
        begins = self.first_positions
        rows = torch.cat([torch.arange(begins[r], begins[r] + self.lengths[r]) for r in requests])
        kept = self.log_probs[rows].to(device).float()
        if self.ids is None:
            return kept
        ids = self.ids[rows].to(device).long()
        rest = kept[:, -1:] - math.log(self.vocab_size - ids.shape[1])
        return rest.repeat(1, self.vocab_size).scatter_(-1, ids, kept[:, :-1])

    def save(self, folder: Path | str) -> None:
        """Write answers.jsonl, distributions.safetensors and pass.json, whole or not at all."""
        if self.begins is not None:
            raise ValueError("a pass in another order shares its tensors: save the one that was recorded")
        with atomic_dir(folder, sum(tensor.nbytes for tensor in self.tensors.values())) as temporary:
            write_jsonl(temporary / "answers.jsonl", self.answers)
            save_file(self.tensors, temporary / "distributions.safetensors")
            settings = {"sampling": dataclasses.asdict(self.sampling), "vocab_size": self.vocab_size}
            write_json(temporary / "pass.json", settings | {"forwards": self.forwards, "engine": self.engine})
            seal(temporary)


def join(passes: Sequence[TargetPass]) -> TargetPass:
    """One pass of the requests of all, one after the other.

    ``UserError`` when the passes were recorded with different sampling or vocabularies.
    """
    first, *others = passes
    if not others:
        return first
    if len({(found.sampling, found.vocab_size, found.log_probs.shape[1]) for found in passes}) > 1:
        raise UserError("passes from different targets or temperatures", remedy="record them again with one target")
    starts = np.cumsum([0, *(len(found.log_probs) for found in passes)])
    return dataclasses.replace(
        first,
        answers=[answer for found in passes for answer in found.answers],
        log_probs=torch.cat([found.log_probs for found in passes]),
        ids=None if first.ids is None else torch.cat([found.ids for found in passes if found.ids is not None]),
        forwards=sum(found.forwards for found in passes),
        begins=np.concatenate([found.first_positions + start for found, start in zip(passes, starts, strict=False)]),
    )


def load_pass(folder: Path | str) -> TargetPass:
    """Read what ``TargetPass.save`` wrote; ``UserError`` when a file is missing, damaged or of another pass."""
    folder = Path(folder)
    settings, answers = read_object(folder / "pass.json"), list(read_jsonl(verify(folder / "answers.jsonl"), Answer))
    try:
        tensors = load_file(verify(folder / "distributions.safetensors"))
    except (SafetensorError, OSError) as error:
        remedy = "record the pass again"
        raise UserError(
            f"damaged or missing: {error}", file=folder / "distributions.safetensors", remedy=remedy
        ) from None
    positions = sum(len(answer.answer_ids) for answer in answers)
    try:
        sampling, vocab_size, forwards = Sampling(**settings["sampling"]), settings["vocab_size"], settings["forwards"]
        log_probs, ids, engine = tensors["log_probs"], tensors.get("ids"), settings.get("engine", {})
        fits = log_probs.shape[1] == (vocab_size if ids is None else ids.shape[1] + 1)
        fits = fits and (ids is None or not ids.numel() or int(ids.max()) < vocab_size)
    except (KeyError, TypeError, IndexError) as error:
        what = f"not a recorded pass: {type(error).__name__} {error}"
        raise UserError(what, file=folder / "pass.json", remedy="record the pass again") from None
    if not fits or len(log_probs) != positions:
        what = f"{len(log_probs)} positions for {positions} answer tokens"
        if not fits:
            what = f"a distribution of {log_probs.shape[1]} columns does not fit a vocabulary of {vocab_size} tokens"
        raise UserError(what, file=folder / "distributions.safetensors", remedy="record the pass again")
    return TargetPass(answers, sampling, vocab_size, log_probs, ids, forwards, engine)


def record(
    target: Decodable,
    requests: Sequence[tuple[str, Sequence[int]]],
    *,
    max_new_tokens: int,
    eos_ids: Collection[int],
    sampling: Sampling = GREEDY,
    generator: Generator | None = None,
    batch_size: int = 64,
    batch_tokens: int = 65536,
    keep: int = 64,
    parts: Path | None = None,
) -> TargetPass:
    """Let the target answer every request (id, prompt ids) once, and keep its distribution at every answer position.

    Prompts of similar length share a batch of at most ``batch_size`` requests and ``batch_tokens`` tokens, including padding and answers. The
    longest come first, so that a lack of memory shows at once (but last for sampled answers, whose draws follow the order). Each finished
    batch is kept in the folder ``parts``. If the vocabulary has more than ``WHOLE_VOCAB`` tokens, only the ``keep`` most probable are kept.
    """
    order = sorted(range(len(requests)), key=lambda number: len(requests[number][1]))
    kept = target.vocab_size if target.vocab_size <= WHOLE_VOCAB else min(keep, target.vocab_size)
    batches = list(_batches(order, [len(prompt) + max_new_tokens for _, prompt in requests], batch_size, batch_tokens))
    if sampling.temperature == 0:
        batches.reverse()

    def answer_batch(batch: list[int]) -> Part:
        return _answer(target, [requests[n][1] for n in batch], kept, max_new_tokens, eos_ids, sampling, generator)

    return collect(
        requests,
        batches,
        answer_batch,
        sampling=sampling,
        eos_ids=eos_ids,
        vocab_size=target.vocab_size,
        parts=parts,
        generator=generator,
    )


def collect(
    requests: Sequence[tuple[str, Sequence[int]]],
    batches: Sequence[list[int]],
    answer_batch: Callable[[list[int]], Part],
    *,
    sampling: Sampling,
    eos_ids: Collection[int],
    vocab_size: int,
    parts: Path | None = None,
    generator: Generator | None = None,
    each: Callable[[Callable[[int], Part], Iterable[int]], Iterable[Part]] = map,
) -> TargetPass:
    """A pass of ``batches`` of the requests, each answered, or read from the folder ``parts``, where it is kept when it is done.

    ``each`` is ``map``, or that of a pool: several batches at a time, which needs draws that do not follow each other.
    """

    if not requests:
        raise ValueError("there is no request to answer")

    def finished(place: int) -> Part:
        file = parts / f"{place}.safetensors" if parts else None
        if file and file.is_file():
            part = load_file(file)
            if generator is not None:
                generator.set_state(part["generator"])
            return part
        part = answer_batch(batches[place])
        if file:
            with atomic_path(file) as temporary:
                save_file(part, temporary)
        return part

    found: dict[int, tuple[list[int], Tensor, Tensor]] = {}
    forwards = 0
    done = zip(batches, each(finished, range(len(batches))), strict=True)
    for batch, part in progress(done, "batches answered", total=len(batches)):
        lengths = part["lengths"].tolist()
        forwards += max(lengths)
        columns = (torch.split(part[name], lengths) for name in ("tokens", "log_probs", "ids"))
        for number, tokens, log_probs, ids in zip(batch, *columns, strict=True):
            found[number] = (tokens.tolist(), log_probs, ids)
    rows = [found[number] for number in range(len(requests))]
    records = [
        Answer(name, list(prompt), answer, answer[-1] in eos_ids)
        for (name, prompt), (answer, _, _) in zip(requests, rows, strict=True)
    ]
    log_probs, ids = torch.cat([row[1] for row in rows]), torch.cat([row[2] for row in rows])
    return TargetPass(records, sampling, vocab_size, log_probs, ids if ids.shape[1] else None, forwards)


def _answer(
    target: Decodable,
    prompts: Sequence[Sequence[int]],
    kept: int,
    max_new_tokens: int,
    eos_ids: Collection[int],
    sampling: Sampling,
    generator: Generator | None,
) -> dict[str, Tensor]:
    """One batch: the ``lengths`` of its answers, their ``tokens`` and distributions (``log_probs``, ``ids``) one after the other, and the
    state of the ``generator`` afterwards."""
    is_part = kept < target.vocab_size
    distributions = torch.empty(len(prompts), max_new_tokens, kept + is_part, dtype=torch.float16)
    ids = torch.empty(len(prompts), max_new_tokens, kept * is_part, dtype=torch.int32)
    answers = generate(
        target,
        prompts,
        max_new_tokens=max_new_tokens,
        eos_ids=eos_ids,
        sampling=sampling,
        generator=generator,
        observe=functools.partial(_keep_distribution, distributions, ids, kept),
    )
    found = {
        "lengths": torch.tensor([len(answer) for answer in answers]),
        "tokens": torch.tensor([token for answer in answers for token in answer]),
    }
    for name, values in (("log_probs", distributions), ("ids", ids)):
        found[name] = torch.cat([row[: len(answer)] for row, answer in zip(values, answers, strict=True)])
    return found if generator is None else found | {"generator": generator.get_state()}


def _batches(order: Sequence[int], lengths: Sequence[int], size: int, tokens: int) -> Iterator[list[int]]:
    """Split requests, in ``order`` from the shortest, into batches of up to ``tokens``; a longer request becomes its own batch."""
    batch: list[int] = []
    for number in order:
        if batch and (len(batch) == size or (len(batch) + 1) * lengths[number] > tokens):
            yield batch
            batch = []
        batch.append(number)
    if batch:
        yield batch


def _keep_distribution(
    distributions: Float16[Tensor, "batch positions columns"],
    ids: Int32[Tensor, "batch positions kept"],
    kept: int,
    rows: list[int],
    position: int,
    logits: Float[Tensor, "rows vocab"],
    tokens: Int64[Tensor, " rows"],
) -> None:
    """Write the distribution of one decoding step into the record of its batch."""
    distributions[rows, position], ids[rows, position] = compact_distribution(logits, tokens, kept)


def compact_distribution(
    logits: Float[Tensor, "rows vocab"], tokens: Int[Tensor, " rows"], kept: int
) -> tuple[Float16[Tensor, "rows columns"], Int32[Tensor, "rows kept_ids"]]:
    """Log-probabilities of the ``kept`` most probable tokens, then of all others together, and the ids of the kept (all kept: neither
    others nor ids); the emitted token is among them.

    The mass of the others is summed, never 1 less the kept: in float16 that difference is noise, or nothing.
    """
    log_probs = logits.float().log_softmax(-1)
    if kept == log_probs.shape[-1]:
        return log_probs.half().cpu(), torch.empty(len(log_probs), 0, dtype=torch.int32)
    top = log_probs.topk(kept).indices
    emitted = tokens[:, None]
    top[:, -1:] = torch.where((top == emitted).any(-1, keepdim=True), top[:, -1:], emitted)
    others = log_probs.scatter(-1, top, -torch.inf).logsumexp(-1, keepdim=True)
    return torch.cat([log_probs.gather(-1, top), others], -1).half().cpu(), top.cpu().int()


def fitting(
    prompts: Path, requests: int, tokenizer: Tokenizer, settings: Answers, context: int
) -> tuple[list[tuple[str, list[int]]], list[Rejection]]:
    """The ids of the first ``requests`` prompts that leave room for answers in ``context`` tokens, and the longer prompts before them."""
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
        raise UserError(
            what, file=prompts, remedy="use a target with a longer context, or lower answers.max_new_tokens"
        )
    return kept, rejected


def answer(
    target: Path,
    prompts: Path,
    requests: int,
    settings: Answers,
    *,
    sampling: Sampling = GREEDY,
    seed: int = 0,
    context: int = 0,
    parts: Path | None = None,
) -> tuple[TargetPass, list[Rejection]]:
    """Let the target answer the first ``requests`` prompts that fit its context, and one of ``context`` tokens (0: any); the others are
    returned with the reason.

    Greedy decoding is lossless, so the greedy answers serve every draft, draft length and variant. Finished batches are kept below
    ``parts``, so that the same command can resume after a kill.
    """
    tokenizer = load_tokenizer(target)
    with _opened(target, settings) as model:
        room = min(model.context_len, context or model.context_len)
        kept, rejected = fitting(prompts, requests, tokenizer, settings, room)
        if isinstance(model, Server):
            model.check_tokenizer(tokenizer)
        if parts:
            weights = sha256(target) if is_gguf(target) else weights_digest(target)
            served = isinstance(model, Server)  # when it was restarted it may listen elsewhere
            how = settings.model_copy(update={"url": "", "batch": 1} if served else {})
            engine = model.description if isinstance(model, Server) else {}
            parts = open_parts(parts, f"{how!r} {engine} {sampling} {seed} {kept} {weights} {code_digest(__name__)}")
        if isinstance(model, Server):
            found = _record_served(model, kept, settings.batch, tokenizer.eos_ids, sampling, seed, parts)
        else:
            found = record(
                model,
                kept,
                max_new_tokens=settings.max_new_tokens,
                eos_ids=tokenizer.eos_ids,
                sampling=sampling,
                generator=torch.Generator("cpu" if settings.engine == "llama_cpp" else settings.device).manual_seed(
                    seed
                ),
                batch_size=settings.batch,
                batch_tokens=settings.batch_tokens,
                keep=settings.keep,
                parts=parts,
            )
        engine = {"name": settings.engine} | getattr(model, "description", {})
    return dataclasses.replace(found, engine=engine), rejected


def _record_served(
    server: Server,
    requests: Sequence[tuple[str, Sequence[int]]],
    together: int,
    eos_ids: Collection[int],
    sampling: Sampling,
    seed: int,
    parts: Path | None,
) -> TargetPass:
    """Record each request separately, ``together`` of them at the same time."""

    def answer_one(batch: list[int]) -> Part:
        return server.answer(requests[batch[0]][1], eos_ids, sampling, seed + batch[0])

    with ThreadPoolExecutor(together) as pool:
        return collect(
            requests,
            [[number] for number in range(len(requests))],
            answer_one,
            sampling=sampling,
            eos_ids=eos_ids,
            vocab_size=server.vocab_size,
            parts=parts,
            each=pool.map,
        )


@contextlib.contextmanager
def _opened(target: Path, settings: Answers) -> Iterator[Decodable | Server]:
    """Open the target on its engine."""
    match settings.engine:
        case "transformers":
            yield load_model(target, settings.dtype, settings.device)
        case "llama_cpp":
            from draftlab.engine.llama_cpp import open_gguf

            with open_gguf(target, settings) as model:
                yield model
        case "openai":
            yield Server(target, settings)


def save(found: TargetPass, rejected: Sequence[Rejection], out: Path) -> None:
    """Write a recorded pass, and the prompts that were too long for it."""
    found.save(out)
    write_jsonl(out / "rejected.jsonl", rejected)
