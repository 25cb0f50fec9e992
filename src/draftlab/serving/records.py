"""What engines report about their speculation: vLLM, SGLang, llama.cpp and TensorRT-LLM, per request, per run, or as Prometheus text."""

from __future__ import annotations

import itertools
import json
import math
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from draftlab.errors import UserError
from draftlab.files.json_files import read_text
from draftlab.serving import prometheus, traces
from draftlab.serving.acceptance import LONGEST, AcceptanceCurves, from_histograms
from draftlab.serving.counts import MOST, SpeculationCounts


def _vllm_request(row: Mapping[str, Any]) -> SpeculationCounts | None:
    """Read ``metrics.speculative_decoding`` of a response of vLLM (``--per-request-spec-decode-metrics``)."""
    metrics = row.get("metrics")
    metrics = metrics.get("speculative_decoding") if isinstance(metrics, Mapping) else None
    if not isinstance(metrics, Mapping):
        return None
    names = ("num_spec_steps", "num_draft_tokens", "num_accepted_draft_tokens")
    drafts, drafted, accepted = (_number(metrics[name]) for name in names)
    histogram = _histogram(metrics.get("acceptance_histogram"))
    own = dict(metrics.get("acceptance_histogram_by_draft_length") or {}).values()
    by_length = tuple(one for one in map(_histogram, own) if one and len(one) > 1)
    return SpeculationCounts("vllm", drafts, drafted, accepted, histogram=histogram, by_length=by_length)


def _vllm_bench(row: Mapping[str, Any]) -> SpeculationCounts | None:
    """``vllm bench serve --save-result --save-detailed``: totals of a run; rates are percents, per-position ones fractions."""
    if "spec_decode_num_drafts" not in row:
        return None
    names = ("num_drafts", "draft_tokens", "accepted_tokens")
    drafts, drafted, accepted = (_number(row[f"spec_decode_{name}"]) for name in names)
    rates = row.get("spec_decode_per_position_acceptance_rates") or []
    survival = [1.0, *map(_number, rates), 0.0]
    histogram = tuple(max(0.0, drafts * (a - b)) for a, b in itertools.pairwise(survival)) if rates else None
    return SpeculationCounts("vllm", drafts, drafted, accepted, _number(row.get("completed", math.nan)), histogram)


SGLANG_COUNTS = (
    ("spec_num_correct_drafts", "spec_num_proposed_drafts"),
    ("spec_accepted_drafts", "spec_proposed_drafts"),
    ("spec_accept_token_num", "spec_draft_token_num"),
)
"""Accepted and drafted tokens by version, the newest first."""


def _sglang_request(row: Mapping[str, Any]) -> SpeculationCounts | None:
    """``meta_info`` of a response, under the names of all versions; a count that is missing follows from the accepted length.

    ``spec_accept_length = completion_tokens / spec_verify_ct``, the target's own tokens included. The first token comes from the prompt's call.
    """
    meta = row.get("meta_info", row)
    if not isinstance(meta, Mapping) or "spec_verify_ct" not in meta:
        return None
    drafts = _number(meta["spec_verify_ct"])
    accepted, drafted = math.nan, math.nan
    for accepted_name, drafted_name in SGLANG_COUNTS:
        if accepted_name in meta:
            accepted, drafted = _number(meta[accepted_name]), _number(meta.get(drafted_name, math.nan))
            break
    if math.isnan(accepted):
        length = meta.get("spec_accept_length")
        emitted = _number(length) * drafts if length is not None else _number(meta["completion_tokens"])
        accepted = max(0.0, emitted - 1 - drafts)
    counts = meta.get("spec_correct_drafts_histogram", meta.get("spec_accept_histogram"))
    return SpeculationCounts("sglang", drafts, drafted, accepted, histogram=_histogram(counts))


def _llama_cpp(row: Mapping[str, Any]) -> SpeculationCounts | None:
    """``timings`` of a response: a block emits what it accepts and one token more, and the first token comes from the prompt's call.

    There is no count where nothing was drafted.
    """
    timings = row.get("timings", row)
    if not isinstance(timings, Mapping) or "draft_n_accepted" not in timings:
        return None
    accepted = _number(timings["draft_n_accepted"])
    return SpeculationCounts(
        "llama.cpp", _number(timings["predicted_n"]) - 1 - accepted, _number(timings["draft_n"]), accepted
    )


def _tensorrt_choice(row: Mapping[str, Any]) -> SpeculationCounts | None:
    """The one choice of a response of TensorRT-LLM: its ``speculative_decoding`` (PR #19311, open), or else the tokens per iteration.

    ``avg_decoded_tokens_per_iter`` counts all tokens and iterations, that of the prompt and those for which nothing was drafted included.
    """
    choices = row.get("choices")
    choice = choices[0] if isinstance(choices, Sequence) and len(choices) == 1 else None
    if not isinstance(choice, Mapping):
        return None
    if isinstance(counted := choice.get("speculative_decoding"), Mapping):
        names = ("num_spec_steps", "total_draft_tokens", "total_accepted_draft_tokens")
        drafts, drafted, accepted = (_number(counted[name]) for name in names)
        histogram = _histogram(counted.get("acceptance_histogram"))
        return SpeculationCounts("tensorrt-llm", drafts, drafted, accepted, histogram=histogram)
    if choice.get("avg_decoded_tokens_per_iter") is None:
        return None
    tokens = _number(row["usage"]["completion_tokens"])
    iterations = round(tokens / max(_number(choice["avg_decoded_tokens_per_iter"]), 1.0))
    return SpeculationCounts("tensorrt-llm", max(iterations - 1, 0), math.nan, tokens - iterations)


def _tensorrt_request(row: Mapping[str, Any]) -> None:
    """Refuse ``perf_metrics`` of a request of TensorRT-LLM: it counts tokens alone, so that the length of a block is not known."""
    metrics = row.get("perf_metrics")
    counted = metrics.get("speculative_decoding") if isinstance(metrics, Mapping) else None
    if isinstance(counted, Mapping) and "total_draft_tokens" in counted:
        raise UserError(
            "TensorRT-LLM's perf_metrics of requests do not say in how many steps it drafted",
            remedy="give its responses, or its /metrics, served with return_perf_metrics: true",
        )


READERS = (_tensorrt_choice, _tensorrt_request, _vllm_request, _vllm_bench, _sglang_request, _llama_cpp)


def _number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise ValueError("not a number")
    number = float(value)
    if number < 0 or number > MOST:
        raise ValueError("a negative count, or one too large")
    return number


def _histogram(counts: Any) -> tuple[float, ...] | None:
    """Read a histogram: a list, or an object that maps the number of accepted tokens to the count."""
    if isinstance(counts, Mapping):
        if max(map(int, counts), default=-1) > LONGEST:
            raise ValueError("more accepted tokens than any engine drafts")
        counts = [counts.get(str(i), 0) for i in range(max(map(int, counts), default=-1) + 1)]
    return tuple(map(_number, counts)) if isinstance(counts, Sequence) and counts else None


def read_one(row: Any) -> SpeculationCounts | None:
    """The counts in one JSON object, or in its ``response``; ``None`` if it has none, or impossible ones."""
    if not isinstance(row, Mapping):
        return None
    row = traces.unwrapped(row)
    for reader in READERS:
        try:
            counts = reader(row)
        except (KeyError, TypeError, ValueError, OverflowError):
            return None
        if counts is not None:
            possible = not math.isnan(counts.drafts + counts.accepted) and not counts.accepted > counts.drafted
            return counts if possible else None
    return None


def read(path: Path, model: str = "") -> Iterator[SpeculationCounts | None]:
    """The records of a file one by one, ``None`` for a row without counts: JSONL, JSON, or Prometheus text.

    Of a file with the records of several models, those of ``model``.
    """
    with traces.opened(path) as file:
        start = file.peek(4096).decode("utf-8-sig", "replace").lstrip()
        if start.startswith(("#", *prometheus.PREFIXES)):
            page = prometheus.read(file.read().decode("utf-8-sig", "replace"), path, model)
            yield prometheus.total(page, path)
        elif path.suffix.lower() == ".json":
            values = (value if isinstance(value, list) else [value] for value in _values(path))
            yield from _of_model(((None, row) for rows in values for row in rows), path, model)
        else:
            yield from _of_model(traces.rows_of(file, path), path, model)


def _of_model(rows: Iterable[tuple[int | None, Any]], path: Path, model: str) -> Iterator[SpeculationCounts | None]:
    """The counts in each row, apart from rows that name another ``model``."""
    wanted = model
    for line, row in rows:
        counts = read_one(row)
        name = traces.unwrapped(row).get("model") if counts is not None else None
        if isinstance(name, str):
            wanted = wanted or name
            if name != wanted and not model:
                what = f"a record of the model {name}, after records of {wanted}"
                raise UserError(what, file=path, line=line, remedy=prometheus.CHOOSE)
            if name != wanted:
                continue
        yield counts


def _values(path: Path) -> Iterator[Any]:
    """The JSON values in a file: one, or several one after the other, as ``vllm bench serve --append-result`` writes them."""
    text, at, decoder = read_text(path).strip(), 0, json.JSONDecoder()
    while at < len(text):
        try:
            value, at = decoder.raw_decode(text, at)
        except (ValueError, RecursionError) as error:
            raise UserError(f"not JSON: {error}", file=path, remedy="repair the file") from None
        yield value
        while text[at : at + 1].isspace():
            at += 1


def acceptance(path: Path) -> AcceptanceCurves:
    """The acceptance in a file of records, one class for each request with a histogram; where nothing was drafted, nothing is known."""
    recorded = (counts for counts in read(path) if counts is not None and counts.drafted != 0)
    measured = [counts for counts in recorded if sum(counts.histogram or ()) > 0]
    if not measured:
        raise UserError(
            "no histogram of accepted lengths in it",
            file=path,
            remedy="record per-request metrics (vLLM: --per-request-spec-decode-metrics summary), or give --alpha",
        )
    longest = max(2, *(len(counts.histogram or ()) for counts in measured))
    requests = sum(counts.requests for counts in measured)
    short = sum(
        counts.engine in ("vllm", "tensorrt-llm")
        and not counts.by_length
        and counts.drafted < counts.drafts * (len(counts.histogram or ()) - 1)
        for counts in measured
    )
    if short:
        print(
            f"{path}: {short} of {len(measured)} records have blocks of fewer drafted tokens, counted as rejections",
            file=sys.stderr,
        )
    found = from_histograms([_complete(counts, longest) for counts in measured])
    return replace(found, requests=0 if math.isnan(requests) else round(requests))


def _complete(counts: SpeculationCounts, longest: int) -> list[float]:
    """The histogram of a request as if all its blocks had been of its longest draft length, for as many tokens.

    SGLang cuts a histogram at the largest count that the request saw: it is padded up to its draft length, or else to the ``longest`` one.
    With ``by_length``, the chance to accept token j after token j - 1 is that of the blocks that drafted token j.
    """
    if not counts.by_length:
        histogram, drafted = list(counts.histogram or ()), counts.drafted / max(counts.drafts, 1)
        length = min(math.ceil(drafted), LONGEST) + 1 if drafted > 0 else longest
        return histogram + [0.0] * (length - len(histogram))
    survival = [1.0]
    for j in range(1, max(map(len, counts.by_length))):
        drafted_it = [blocks for blocks in counts.by_length if len(blocks) > j]
        reached = sum(sum(blocks[j - 1 :]) for blocks in drafted_it)
        survival.append(survival[-1] * sum(sum(blocks[j:]) for blocks in drafted_it) / max(reached, 1e-12))
    blocks = (counts.drafts + counts.accepted) / sum(survival)
    return [blocks * (a - b) for a, b in itertools.pairwise([*survival, 0.0])]
