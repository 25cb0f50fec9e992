"""What engines report about their own speculation: vLLM, SGLang and llama.cpp, per request, per run, or as Prometheus text."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from draftlab.errors import UserError
from draftlab.files.json_files import read_json
from draftlab.serving import traces
from draftlab.serving.acceptance import Acceptance, from_histograms


@dataclass(frozen=True)
class Seen:
    """Blocks verified, tokens drafted (NaN: the engine does not say) and accepted, of one request or of ``requests`` together.

    ``histogram`` counts the blocks that accepted 0, 1, 2, ... tokens.
    """

    engine: str
    drafts: float
    drafted: float
    accepted: float
    requests: float = 1
    histogram: tuple[float, ...] | None = None


def _vllm_request(row: Mapping[str, Any]) -> Seen | None:
    """Read ``metrics.speculative_decoding`` of a response of vLLM (``--per-request-spec-decode-metrics``)."""
    metrics = _inside(row, "metrics").get("speculative_decoding")
    if not isinstance(metrics, Mapping):
        return None
    counts = metrics.get("acceptance_histogram")
    return Seen(
        "vllm",
        _number(metrics["num_spec_steps"]),
        _number(metrics["num_draft_tokens"]),
        _number(metrics["num_accepted_draft_tokens"]),
        histogram=_histogram(counts),
    )


def _vllm_bench(row: Mapping[str, Any]) -> Seen | None:
    """``vllm bench serve --save-result --save-detailed``: totals of a run; rates are percents, per-position ones fractions."""
    if "spec_decode_num_drafts" not in row:
        return None
    drafts = _number(row["spec_decode_num_drafts"])
    rates = row.get("spec_decode_per_position_acceptance_rates") or []
    survival = [1.0, *map(_number, rates), 0.0]
    counts = tuple(max(0.0, drafts * (a - b)) for a, b in itertools.pairwise(survival))
    return Seen(
        "vllm",
        drafts,
        _number(row["spec_decode_draft_tokens"]),
        _number(row["spec_decode_accepted_tokens"]),
        _number(row.get("completed", math.nan)),
        counts if rates else None,
    )


SGLANG_COUNTS = (
    ("spec_num_correct_drafts", "spec_num_proposed_drafts"),
    ("spec_accepted_drafts", "spec_proposed_drafts"),
    ("spec_accept_token_num", "spec_draft_token_num"),
)
"""Accepted and drafted tokens by version, the newest first."""


def _sglang_request(row: Mapping[str, Any]) -> Seen | None:
    """``meta_info`` of a response, under the names of all versions; a count that is missing follows from the accepted length.

    ``spec_accept_length = completion_tokens / spec_verify_ct``, the target's own token included.
    """
    meta = row.get("meta_info", row)
    if not isinstance(meta, Mapping) or "spec_verify_ct" not in meta:
        return None
    drafts = _number(meta["spec_verify_ct"])
    counts = meta.get("spec_correct_drafts_histogram", meta.get("spec_accept_histogram"))
    accepted, drafted = math.nan, math.nan
    for good, all_ in SGLANG_COUNTS:
        if good in meta:
            accepted, drafted = _number(meta[good]), _number(meta.get(all_, math.nan))
            break
    if math.isnan(accepted):
        length = meta.get("spec_accept_length")
        emitted = _number(length) * drafts if length is not None else _number(meta["completion_tokens"])
        accepted = max(0.0, emitted - drafts)
    return Seen("sglang", drafts, drafted, accepted, histogram=_histogram(counts))


def _llama_cpp(row: Mapping[str, Any]) -> Seen | None:
    """``timings`` of a response: a block emits what it accepts and one token more; there is no count where nothing was drafted."""
    timings = row.get("timings", row)
    if not isinstance(timings, Mapping) or "draft_n_accepted" not in timings:
        return None
    accepted = _number(timings["draft_n_accepted"])
    return Seen("llama.cpp", _number(timings["predicted_n"]) - accepted, _number(timings["draft_n"]), accepted)


READERS = (_vllm_request, _vllm_bench, _sglang_request, _llama_cpp)


def _inside(row: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    value = row.get(name)
    return value if isinstance(value, Mapping) else {}


def _number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise ValueError("not a number")
    number = float(value)
    if number < 0 or math.isinf(number):
        raise ValueError("a negative or infinite count")
    return number


def _histogram(counts: Any) -> tuple[float, ...] | None:
    """Read a histogram: a list, or an object that maps the number of accepted tokens to the count."""
    if isinstance(counts, Mapping):
        counts = [counts.get(str(i), 0) for i in range(max(map(int, counts), default=-1) + 1)]
    return tuple(map(_number, counts)) if isinstance(counts, Sequence) and len(counts) > 1 else None


def read_one(row: Any) -> Seen | None:
    """What one JSON object reports about speculation; ``None`` if it reports nothing, or something impossible."""
    if not isinstance(row, Mapping):
        return None
    for reader in READERS:
        try:
            seen = reader(row)
        except (KeyError, TypeError, ValueError):
            return None
        if seen is not None:
            possible = not math.isnan(seen.drafts + seen.accepted) and not seen.accepted > seen.drafted
            return seen if possible else None
    return None


def read(path: Path) -> Iterator[Seen | None]:
    """The records of a file one by one, ``None`` for a row without a report: JSONL, one JSON object, or Prometheus text."""
    with _opened(path) as file:
        start = file.read(4096).lstrip()
    if start.startswith(("#", "vllm:", "sglang:", "llamacpp:")):
        yield from from_prometheus(path.read_text(encoding="utf-8"), path)
    elif path.suffix == ".json":
        value = read_json(path)
        yield from map(read_one, value if isinstance(value, list) else [value])
    else:
        yield from (read_one(row) for _, row in traces.rows(path))


def _opened(path: Path) -> Any:
    try:
        return path.open(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        raise UserError("no such file", file=path, remedy="check the path") from None


COUNTERS = {"vllm:": "vllm", "llamacpp:": "llama.cpp"}


def from_prometheus(text: str, name: Path | str) -> Iterator[Seen]:
    """The counters since the server's start, summed over its engines (vLLM, llama.cpp); of SGLang the gauges of the last interval."""
    from prometheus_client.parser import text_string_to_metric_families

    totals: dict[str, float] = {}
    positions: dict[str, float] = {}
    try:
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                plain = sample.name.removesuffix("_total")
                totals[plain] = totals.get(plain, 0.0) + sample.value
                if plain.endswith("accepted_tokens_per_pos"):
                    position = sample.labels["position"]
                    positions[position] = positions.get(position, 0.0) + sample.value
    except (ValueError, KeyError, IndexError) as error:
        raise UserError(f"not Prometheus text: {error}", file=name, remedy="save the output of /metrics") from None
    for prefix, engine in COUNTERS.items():
        counts = [
            totals.get(f"{prefix}spec_decode_num_{what}") for what in ("drafts", "draft_tokens", "accepted_tokens")
        ]
        if counts[0] is not None and counts[1] is not None and counts[2] is not None:
            survival = [counts[0], *(positions[p] for p in sorted(positions, key=int)), 0.0]
            histogram = tuple(a - b for a, b in itertools.pairwise(survival)) if positions else None
            done = totals.get(f"{prefix}request_success", math.nan)
            yield Seen(engine, counts[0], counts[1], counts[2], done, histogram)
            return
    drafts, length = totals.get("sglang:spec_verify_calls"), totals.get("sglang:spec_accept_length")
    if drafts and length and length >= 1:
        rate = totals.get("sglang:spec_accept_rate") or math.nan
        accepted = drafts * (length - 1)
        yield Seen("sglang", drafts, accepted / rate, accepted, totals.get("sglang:num_requests", math.nan))
        return
    raise UserError(
        "no counters of speculative decoding", file=name, remedy="serve with a draft, and save /metrics again"
    )


def acceptance(path: Path) -> Acceptance:
    """The acceptance that a file of records shows, one class for each request that gives a histogram."""
    histograms = [seen.histogram for seen in read(path) if seen is not None and seen.histogram is not None]
    if not histograms:
        raise UserError(
            "no histogram of accepted lengths in it",
            file=path,
            remedy="record per-request metrics (vLLM: --per-request-spec-decode-metrics summary), or give --alpha",
        )
    return from_histograms([h for h in histograms if sum(h) > 0])
