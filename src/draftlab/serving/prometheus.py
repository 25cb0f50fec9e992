"""The counters of a server's /metrics page: what vLLM, SGLang, llama.cpp and TensorRT-LLM count of their speculation."""

from __future__ import annotations

import itertools
import math
from pathlib import Path

from draftlab.errors import UserError
from draftlab.serving.counts import MOST, SpeculationCounts

Counters = dict[tuple[str, frozenset[tuple[str, str]]], float]
"""Values by name (without ``_total``) and labels."""
ALIKE = {"vllm:": "vllm", "llamacpp:": "llama.cpp"}
"""Engines that name their counters alike, by prefix."""
TENSORRT = "trtllm_spec_decode"
SGLANG = ("sglang:spec_verify_calls", "sglang:generation_tokens", "sglang:num_requests")
PREFIXES = (*ALIKE, "sglang:", "trtllm_")
"""How a page of one of these engines begins, if not with a comment."""
NAMES = frozenset(
    [f"{p}spec_decode_num_{w}" for p in ALIKE for w in ("drafts", "draft_tokens", "accepted_tokens")]
    + [f"{p}spec_decode_num_accepted_tokens_per_pos" for p in ALIKE]
    + [f"{TENSORRT}_{w}_tokens" for w in ("drafted", "accepted", "num_draft")]
    + ["vllm:request_success", "trtllm_request_success", *SGLANG]
)
"""The counters that are read."""
MODEL_LABELS = ("model_name", "model")
POSITION_LABELS = ("position", "token_position")
"""The place of a drafted token in its block, from 0 on: in vLLM and llama.cpp, and in TensorRT-LLM."""
COARSEST = 0.01
"""The largest error by rounding, as a share of what was counted."""


CHOOSE = "name one (draftlab monitor: --model), or leave out the others"
"""What to do about several models."""


def read(text: str, page: Path | str, model: str = "") -> Counters:
    """The counters of speculation on a page of ``/metrics``, of one ``model`` if the page has several.

    **Raises:** ``UserError`` for a page that is no Prometheus text, has no such counters, or has those of several models.
    """
    from prometheus_client.parser import text_string_to_metric_families

    found: Counters = {}
    seen = set()
    try:
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                name = sample.name.removesuffix("_total")
                seen.add(name)
                if name in NAMES:
                    key = (name, frozenset(sample.labels.items()))
                    found[key] = found.get(key, 0.0) + sample.value
    except (ValueError, KeyError, IndexError) as error:
        raise UserError(f"not Prometheus text: {error}", file=page, remedy="save the output of /metrics") from None
    missing = [f"{name}_total" for name in SGLANG if name not in seen]
    if missing and any(name.startswith("sglang:spec_") for name in seen):
        raise UserError(
            f"SGLang's counter {', '.join(missing)} is missing, and its gauges describe the last interval alone",
            file=page,
            remedy="serve with a draft and a version of SGLang that has it, or monitor a file of responses with their meta_info",
        )
    return _of_model(found, page, model)


def _of_model(found: Counters, page: Path | str, model: str) -> Counters:
    """The counters of one model; those of a server without names of models are all of it."""
    named = {key: _label(key[1], MODEL_LABELS) for key in found}
    models = sorted({named[key] for key in found if "spec" in key[0]} - {""})
    if model and model not in models:
        what = f"no counters of {model!r}, but of {', '.join(models) or 'a model without a name'}"
        raise UserError(what, file=page, remedy="name a model of this page, or leave out --model")
    if len(models) > 1 and not model:
        what = f"counters of {len(models)} models: {', '.join(models)}"
        raise UserError(what, file=page, remedy=CHOOSE)
    return {key: value for key, value in found.items() if not model or named[key] in ("", model)}


def _label(labels: frozenset[tuple[str, str]], names: tuple[str, ...]) -> str:
    return next((value for name, value in sorted(labels) if name in names), "")


def since(before: Counters, after: Counters, page: Path | str) -> Counters:
    """What was counted between two readings of one page.

    **Raises:** ``UserError`` if any single counter fell or is gone: one of the servers behind the page was restarted. So it is if llama.cpp,
    which prints six digits of a counter, rounded away too much.
    """
    if any(key not in after or after[key] < value for key, value in before.items()):
        raise UserError(
            "the counters fell: a server was restarted, or the address leads to several in turn",
            file=page,
            remedy="run again, at the address of one server",
        )
    counted = {key: value - before.get(key, 0.0) for key, value in after.items()}
    for what in ("drafts", "draft_tokens"):
        key = (f"llamacpp:spec_decode_num_{what}", frozenset[tuple[str, str]]())
        rounded = 10.0 ** (math.floor(math.log10(after[key])) - 5) if after.get(key, 0.0) >= 1e6 else 0.0
        if rounded > COARSEST * counted.get(key, 0.0):
            raise UserError(
                f"llama.cpp prints six digits of a counter: {counted[key]:g} more {what.replace('_', ' ')}, give or take {rounded:g}",
                file=page,
                remedy="give a longer --over, or restart the server",
            )
    return counted


def total(found: Counters, page: Path | str) -> SpeculationCounts:
    """The counters as one record, summed over the engines of a server.

    SGLang counts no accepted tokens. A verification emits one token more than it accepts, and a request's first token comes from its prompt.
    """
    totals: dict[str, float] = {}
    positions: dict[str, dict[int, float]] = {}
    for (name, labels), value in found.items():
        totals[name] = totals.get(name, 0.0) + value
        place = _label(labels, POSITION_LABELS)
        if place or name.endswith("_per_pos"):
            if not place.isdecimal():
                raise UserError(
                    f"not Prometheus text: position {place!r}", file=page, remedy="save the output of /metrics"
                )
            at = positions.setdefault(name, {})
            at[int(place)] = at.get(int(place), 0.0) + value
    return _checked(_total(totals, positions, page), page)


def _total(totals: dict[str, float], positions: dict[str, dict[int, float]], page: Path | str) -> SpeculationCounts:
    for prefix, engine in ALIKE.items():
        names = [f"{prefix}spec_decode_num_{what}" for what in ("drafts", "draft_tokens", "accepted_tokens")]
        if all(name in totals for name in names):
            drafts, drafted, accepted = (totals[name] for name in names)
            by_place = positions.get(f"{names[2]}_per_pos", {})
            if engine == "llama.cpp" and by_place:  # printed with all digits, unlike the tokens that were drafted
                accepted = min(sum(by_place.values()), drafted)
            requests = totals.get(f"{prefix}request_success", math.nan)
            return SpeculationCounts(engine, drafts, drafted, accepted, requests, _histogram(drafts, by_place))
    by_place = positions.get(f"{TENSORRT}_drafted_tokens", {})
    if 0 in by_place:
        taken = positions.get(f"{TENSORRT}_accepted_tokens", {})
        requests = totals.get("trtllm_request_success", math.nan)
        histogram = _histogram(by_place[0], {place: taken.get(place, 0.0) for place in by_place})
        drafted, accepted = sum(by_place.values()), sum(taken.values())
        return SpeculationCounts("tensorrt-llm", by_place[0], drafted, accepted, requests, histogram)
    if all(name in totals for name in SGLANG):
        calls, tokens, requests = (totals[name] for name in SGLANG)
        return SpeculationCounts("sglang", calls, math.nan, max(0.0, tokens - requests - calls), requests)
    if f"{TENSORRT}_num_draft_tokens" in totals or by_place:
        raise UserError(
            "TensorRT-LLM does not say here in how many steps it drafted",
            file=page,
            remedy="serve with return_perf_metrics: true and a version that counts trtllm_spec_decode_drafted_tokens_total by position",
        )
    raise UserError(
        "no counters of speculative decoding", file=page, remedy="serve with a draft, and save /metrics again"
    )


def _histogram(drafts: float, accepted: dict[int, float]) -> tuple[float, ...] | None:
    """How many blocks accepted 0, 1, 2, ... tokens, from how many accepted the token at each place."""
    if not accepted:
        return None
    survival = [drafts, *(accepted[place] for place in sorted(accepted)), 0.0]
    return tuple(max(0.0, a - b) for a, b in itertools.pairwise(survival))  # llama.cpp may have rounded the drafts down


def _checked(found: SpeculationCounts, page: Path | str) -> SpeculationCounts:
    """Refuse numbers that no server can have counted."""
    told = [n for n in (found.drafts, found.accepted, found.drafted, found.requests) if not math.isnan(n)]
    known = not math.isnan(found.drafts + found.accepted)
    if not known or min(told) < 0 or max(told) > MOST or found.accepted > found.drafted:
        raise UserError(
            f"impossible counters: {found.accepted:g} tokens accepted, {found.drafted:g} drafted, in {found.drafts:g} blocks",
            file=page,
            remedy="save /metrics again; if they stay so, report it to the engine's developers",
        )
    return found
