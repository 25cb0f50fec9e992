"""The target's answers to prompts, with its distribution at every answer position: recorded once, and shared by every variant."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Float16, Float32, Int, Int32, Int64
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Generator, Tensor

from draftlab.core.sampling import GREEDY, Sampling
from draftlab.engine.answers import Answer
from draftlab.engine.generate import generate
from draftlab.engine.settings import WHOLE_VOCAB
from draftlab.errors import UserError
from draftlab.files.atomic import SEAL, atomic_dir, atomic_path
from draftlab.files.json_files import read_jsonl, read_object, write_json, write_jsonl
from draftlab.files.seals import seal, verify
from draftlab.models import Decodable
from draftlab.models.head import columns_of
from draftlab.progress import progress

Part = dict[str, Tensor]
"""A finished batch: the ``lengths`` of its answers, and all their ``tokens`` and distributions (``log_probs``, ``ids``) in a row."""


@dataclass(frozen=True)
class TargetPass:
    """The target's answers, and its distribution at every answer position, however the answers were sampled.

    **Arguments:**
    - `log_probs`: the log of softmax(logits) at temperature 1, before top-k and top-p. In float16 a probability p is off by at most
      p |log p| / 2048, and a sum of minima by at most 1/4096 of the entropy.
    - `ids`: the tokens that are stored at each position, always including the emitted one; the last column of `log_probs` is then the mass of
      all others. None: the whole vocabulary is stored.
    - `forwards`: forward passes of the target.
    - `engine`: what answered, for `run.json`.
    - `begins`: the first position of each request, so that other orders of the requests share the tensors. None: they follow each other.
    - `others`: the log of the sum over the tokens that are not stored, of their probabilities to the power 1 / temperature. None: the mass of
      all others says it already, or it is not known.
    """

    answers: list[Answer]
    sampling: Sampling
    vocab_size: int
    log_probs: Float16[Tensor, "positions columns"]
    ids: Int32[Tensor, "positions kept"] | None
    forwards: int
    engine: dict[str, Any] = dataclasses.field(default_factory=dict)
    begins: Int64[np.ndarray, " requests"] | None = None
    others: Float32[Tensor, " positions"] | None = None

    @functools.cached_property
    def lengths(self) -> list[int]:
        """Answer positions of each request."""
        return [len(answer.answer_ids) for answer in self.answers]

    @functools.cached_property
    def first_positions(self) -> Int64[np.ndarray, " requests"]:
        """First position of each request."""
        return np.cumsum([0, *self.lengths])[:-1] if self.begins is None else self.begins

    @property
    def tensors(self) -> dict[str, Tensor]:
        """The stored distributions by their names on disk."""
        named = {"log_probs": self.log_probs, "ids": self.ids, "others": self.others}
        return {name: tensor for name, tensor in named.items() if tensor is not None}

    def take(self, requests: Iterable[int]) -> TargetPass:
        """These requests in this order; the tensors are shared, not copied."""
        chosen = list(requests)
        return dataclasses.replace(
            self, answers=[self.answers[request] for request in chosen], begins=self.first_positions[chosen]
        )

    def target_logits(
        self,
        requests: Sequence[int],
        device: torch.device | str = "cpu",
        head: Int[Tensor, " head"] | None = None,
        *,
        to_sample: bool = False,
    ) -> Float[Tensor, "positions columns"]:
        """Log-probabilities at temperature 1 at all answer positions of ``requests``: of every token, or ``on_head`` of the tokens in ``head``.

        Tokens that were not stored share the remaining mass evenly: sums of minima are then off by at most that mass. With ``to_sample`` they
        share what they weigh at the temperature of the answers, so that the stored tokens have their own probabilities there. What top-p or min-p
        leave of those that were not stored is not known: the more of them it is, the fewer tokens replay accepts with top-p, and the more with min-p.
        """
        begins = self.first_positions
        rows = torch.cat([torch.arange(begins[r], begins[r] + self.lengths[r]) for r in requests])
        kept = self.log_probs[rows].to(device).float()
        if self.ids is None:
            return kept if head is None else on_head(kept, head)
        ids = self.ids[rows].to(device).long()
        rest = kept[:, -1:] - math.log(self.vocab_size - ids.shape[1])
        if to_sample and self.others is not None:
            weight = self.others[rows, None].to(device) - math.log(self.vocab_size - ids.shape[1])
            rest = self.sampling.temperature * weight
        if head is None:
            return rest.repeat(1, self.vocab_size).scatter_(-1, ids, kept[:, :-1])
        # The head is a small part of a large vocabulary: nothing is spread over the whole of it.
        columns = rest.repeat(1, len(head) + 1).scatter_(-1, columns_of(ids, head), kept[:, :-1])
        return _with_rest(columns[:, :-1] - kept.logsumexp(-1, keepdim=True))

    def save(self, folder: Path | str) -> None:
        """Write answers.jsonl, distributions.safetensors and pass.json, whole or not at all."""
        if self.begins is not None:
            raise ValueError("a pass in another order shares its tensors: save the one that was recorded")
        with atomic_dir(folder, sum(tensor.nbytes for tensor in self.tensors.values()), is_pass) as temporary:
            write_jsonl(temporary / "answers.jsonl", self.answers)
            save_file(self.tensors, temporary / "distributions.safetensors")
            settings = {"sampling": dataclasses.asdict(self.sampling), "vocab_size": self.vocab_size}
            write_json(temporary / "pass.json", settings | {"forwards": self.forwards, "engine": self.engine})
            seal(temporary)


def is_pass(names: set[str]) -> bool:
    """Whether a folder has the files of a recorded pass alone, which another one may replace."""
    return names <= {"answers.jsonl", "distributions.safetensors", "pass.json", "rejected.jsonl", SEAL}


def on_head(logits: Float[Tensor, "positions vocab"], head: Int[Tensor, " head"]) -> Float[Tensor, "positions columns"]:
    """Log-probabilities of the tokens in ``head``, and in a last column of all other tokens together.

    >>> on_head(torch.tensor([[0.5, 0.25, 0.25]]).log(), torch.tensor([2, 0])).exp()
    tensor([[0.2500, 0.5000, 0.2500]])
    """
    return _with_rest(logits.log_softmax(-1)[:, head])


def _with_rest(inside: Float[Tensor, "positions head"]) -> Float[Tensor, "positions columns"]:
    rest = (1 - inside.exp().sum(-1, keepdim=True)).clamp_min(torch.finfo(inside.dtype).tiny)
    return torch.cat([inside, rest.log()], -1)


def load_pass(folder: Path | str) -> TargetPass:
    """Read what ``TargetPass.save`` wrote; ``UserError`` if a file is missing, damaged or of another pass."""
    folder = Path(folder)
    settings, answers = read_object(folder / "pass.json"), list(read_jsonl(verify(folder / "answers.jsonl"), Answer))
    distributions, remedy = folder / "distributions.safetensors", "record the pass again"
    try:
        tensors = load_file(verify(distributions))
    except (SafetensorError, OSError) as error:
        raise UserError(f"damaged or missing: {error}", file=distributions, remedy=remedy) from None
    try:
        sampling, vocab_size, forwards = Sampling(**settings["sampling"]), settings["vocab_size"], settings["forwards"]
        log_probs, ids, engine = tensors["log_probs"], tensors.get("ids"), settings.get("engine", {})
        others = tensors.get("others")
        fits = log_probs.shape[1] == (vocab_size if ids is None else ids.shape[1] + 1)
        fits = fits and (ids is None or not ids.numel() or int(ids.max()) < vocab_size)
    except (KeyError, TypeError, IndexError) as error:
        what = f"not a recorded pass: {type(error).__name__} {error}"
        raise UserError(what, file=folder / "pass.json", remedy=remedy) from None
    if not fits:
        what = f"a distribution of {log_probs.shape[1]} columns does not fit a vocabulary of {vocab_size} tokens"
        raise UserError(what, file=distributions, remedy=remedy)
    positions = sum(len(answer.answer_ids) for answer in answers)
    if len(log_probs) != positions or (others is not None and len(others) != positions):
        what = f"{len(log_probs)} positions for {positions} answer tokens"
        raise UserError(what, file=distributions, remedy=remedy)
    return TargetPass(answers, sampling, vocab_size, log_probs, ids, forwards, engine, others=others)


def join(passes: Sequence[TargetPass]) -> TargetPass:
    """The requests of all passes, one pass after the other; ``UserError`` if their sampling or vocabularies differ."""
    first, *others = passes
    if not others:
        return first
    if len({(one.sampling, one.vocab_size, one.log_probs.shape[1], one.others is None) for one in passes}) > 1:
        raise UserError("passes from different targets or temperatures", remedy="record them again with one target")
    starts = np.cumsum([0, *(len(one.log_probs) for one in passes)])
    return dataclasses.replace(
        first,
        answers=[answer for one in passes for answer in one.answers],
        log_probs=torch.cat([one.log_probs for one in passes]),
        ids=None if first.ids is None else torch.cat([one.ids for one in passes if one.ids is not None]),
        forwards=sum(one.forwards for one in passes),
        begins=np.concatenate([one.first_positions + start for one, start in zip(passes, starts, strict=False)]),
        others=None if first.others is None else torch.cat([one.others for one in passes if one.others is not None]),
    )


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
    """Let the target answer every request (id, prompt ids), and store its distribution at every answer position.

    Prompts of similar length share a batch of at most ``batch_size`` requests and ``batch_tokens`` tokens, including padding and answers.
    The longest come first, so that a lack of memory shows at once; but last if answers are sampled, whose draws follow the order. A
    vocabulary of more than ``WHOLE_VOCAB`` tokens is stored by the ``keep`` most probable tokens at each position, and by no fewer than are drawn
    from (top-k).
    """
    kept = min(max(keep, sampling.top_k or 0), target.vocab_size)
    kept = target.vocab_size if target.vocab_size <= WHOLE_VOCAB else kept
    is_part = kept < target.vocab_size
    has_others = is_part and sampling.temperature not in (0, 1)
    order = sorted(range(len(requests)), key=lambda number: len(requests[number][1]))
    lengths = [len(prompt) + max_new_tokens for _, prompt in requests]
    batches = list(_batches(order, lengths, batch_size, batch_tokens))
    if sampling.temperature == 0:
        batches.reverse()

    def answer_batch(batch: list[int]) -> Part:
        def room(columns: int, dtype: torch.dtype) -> Tensor:
            return torch.empty(len(batch), max_new_tokens, columns, dtype=dtype)

        stored = {"log_probs": room(kept + is_part, torch.float16), "ids": room(kept * is_part, torch.int32)}
        if has_others:
            stored["others"] = torch.empty(len(batch), max_new_tokens)

        def store(rows: list[int], position: int, logits: Tensor, tokens: Tensor) -> None:
            log_probs, ids = compact_distribution(logits, tokens, kept)
            stored["log_probs"][rows, position], stored["ids"][rows, position] = log_probs, ids
            if has_others:
                stored["others"][rows, position] = weight_of_others(logits, ids, sampling.temperature)

        answers = generate(
            target,
            [requests[number][1] for number in batch],
            max_new_tokens=max_new_tokens,
            eos_ids=eos_ids,
            sampling=sampling,
            generator=generator,
            observe=store,
        )
        lengths = [len(answer) for answer in answers]
        part = {"lengths": torch.tensor(lengths), "tokens": torch.tensor(list(itertools.chain.from_iterable(answers)))}
        for name, values in stored.items():
            part[name] = torch.cat([row[:length] for row, length in zip(values, lengths, strict=True)])
        return part if generator is None else part | {"generator": generator.get_state()}

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
    map_batches: Callable[[Callable[[int], Part], Iterable[int]], Iterable[Part]] = map,
) -> TargetPass:
    """Answer all ``batches`` of the requests, and return them as one pass.

    Each finished batch is kept in the folder ``parts``, and read from there by a later call. ``map_batches`` may be the ``map`` of a pool of
    threads, if the draws of one batch do not depend on another.
    """

    if not requests:
        raise ValueError("there is no request to answer")

    def finish(place: int) -> Part:
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

    by_request: dict[int, dict[str, Tensor]] = {}
    forwards = 0
    finished = zip(batches, map_batches(finish, range(len(batches))), strict=True)
    for batch, part in progress(finished, "batches answered", total=len(batches)):
        lengths = part["lengths"].tolist()
        forwards += max(lengths)
        names = part.keys() - {"lengths", "generator"}
        columns = {name: torch.split(part[name], lengths) for name in names}
        for place, number in enumerate(batch):
            by_request[number] = {name: of_requests[place] for name, of_requests in columns.items()}
    rows = [by_request[number] for number in range(len(requests))]
    answers = []
    for (name, prompt), row in zip(requests, rows, strict=True):
        tokens = row.pop("tokens").tolist()
        answers.append(Answer(name, list(prompt), tokens, tokens[-1] in eos_ids))
    tensors = {name: torch.cat([row[name] for row in rows]) for name in rows[0]}
    ids = tensors["ids"] if tensors["ids"].shape[1] else None
    others = tensors.get("others")
    return TargetPass(answers, sampling, vocab_size, tensors["log_probs"], ids, forwards, others=others)


def _batches(order: Sequence[int], lengths: Sequence[int], size: int, tokens: int) -> Iterator[list[int]]:
    """Cut ``order``, from the shortest request to the longest, into batches of up to ``tokens``; a longer request is a batch by itself."""
    batch: list[int] = []
    for number in order:
        if batch and (len(batch) == size or (len(batch) + 1) * lengths[number] > tokens):
            yield batch
            batch = []
        batch.append(number)
    if batch:
        yield batch


def compact_distribution(
    logits: Float[Tensor, "rows vocab"], tokens: Int[Tensor, " rows"], kept: int
) -> tuple[Float16[Tensor, "rows columns"], Int32[Tensor, "rows kept_ids"]]:
    """Log-probabilities of the ``kept`` most probable tokens, the emitted one among them, and their ids; the last column is the mass of all
    others. If ``kept`` is the whole vocabulary, there are no ids and no last column.

    The mass of the others is a sum, never 1 minus the stored mass: in float16 that difference is noise, or nothing.
    """
    log_probs = logits.float().log_softmax(-1)
    if kept == log_probs.shape[-1]:
        return log_probs.half().cpu(), torch.empty(len(log_probs), 0, dtype=torch.int32)
    top = log_probs.topk(kept).indices
    emitted = tokens[:, None]
    top[:, -1:] = torch.where((top == emitted).any(-1, keepdim=True), top[:, -1:], emitted)
    others = log_probs.scatter(-1, top, -torch.inf).logsumexp(-1, keepdim=True)
    return torch.cat([log_probs.gather(-1, top), others], -1).half().cpu(), top.cpu().int()


def weight_of_others(
    logits: Float[Tensor, "rows vocab"], ids: Int32[Tensor, "rows kept"], temperature: float
) -> Float32[Tensor, " rows"]:
    """The log of the sum, over the tokens that are not in ``ids``, of their probabilities to the power 1 / ``temperature``.

    >>> logits = torch.tensor([[0.7, 0.2, 0.1]]).log()
    >>> weight_of_others(logits, torch.tensor([[0]], dtype=torch.int32), 0.5).exp()  # 0.2 ** 2 + 0.1 ** 2
    tensor([0.0500])
    """
    scaled = logits.float().log_softmax(-1) / temperature
    return scaled.scatter(-1, ids.long().to(logits.device), -torch.inf).logsumexp(-1).cpu()
