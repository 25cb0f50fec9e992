"""Settings for serving engines: draft lengths and acceptance in each engine's own format, checked by its own rules before they are written."""

from __future__ import annotations

import itertools
import json
import math
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import tyro

from draftlab.errors import UserError
from draftlab.files.atomic import atomic_dir
from draftlab.files.json_files import read_object
from draftlab.serving import records
from draftlab.serving.acceptance import Acceptance, from_alpha

Ranges = Sequence[tuple[int, int, int]]
"""(first batch, last batch, draft length), both ends included."""


@dataclass(frozen=True)
class Wanted:
    """A pair, its draft lengths (``draft_len`` at most, ``ranges`` by batch), and the measured acceptance; a block ends where the draft's token
    has a probability below ``confidence``."""

    target: str
    draft: str
    draft_len: int
    ranges: Ranges = ()
    sampled: bool = True
    acceptance: Acceptance | None = None
    requests: int = 0
    traffic: str = ""
    confidence: float = 0.0

    def __post_init__(self) -> None:
        if not 0 <= self.confidence < 1:
            raise UserError(f"a confidence of {self.confidence}", remedy="give a probability from 0 to less than 1")
        if self.draft_len < 1:
            raise UserError(f"a draft length of {self.draft_len}", remedy="serve without a draft, or give 1 or more")

    @property
    def marginals(self) -> list[float]:
        """How often at least 1, 2, ... drafted tokens are accepted, over all requests."""
        if self.acceptance is None:
            raise UserError("no acceptance to write", remedy="give --acceptance")
        return [round(float(p), 6) for p in self.acceptance.survival[:, : self.draft_len].mean(axis=0)]


@dataclass(frozen=True)
class Emitted:
    """A file for an engine, the version it is written for, and the command that uses it."""

    file: str
    version: str
    text: str
    command: str = ""
    note: str = ""


# --- vLLM ------------------------------------------------------------------------------------------------------------

VLLM = "vllm @002e77c1 (table by batch @a6f6bb1d)"


def check_vllm_ranges(ranges: Sequence[Sequence[int]], most: int) -> dict[int, int]:
    """The draft length from each batch on, by vLLM's rule for ``num_speculative_tokens_per_batch_size``.

    The first range starts at 1, none overlaps another or runs backwards; gaps and the tail carry the length before them; lengths above
    ``most`` are cut to it.
    """
    if not ranges or ranges[0][0] != 1:
        raise UserError("the first range of batches does not start at 1", remedy="begin with [1, n, length]")
    for first, last, length in ranges:
        if last < first or length < 0:
            raise UserError(f"the range {[first, last, length]}", remedy="give first <= last and a length of 0 or more")
    for (_, end, _), (start, _, _) in itertools.pairwise(ranges):
        if start <= end:
            raise UserError(f"two ranges include batch {start}", remedy="let each start after the one before it ends")
    return {first: min(length, most) for first, _, length in ranges}


def vllm(wanted: Wanted) -> Emitted:
    """``--speculative-config``; without ``draft_sample_method`` vLLM drafts the argmax, so it is always written."""
    config: dict[str, Any] = {
        "method": "draft_model",
        "model": wanted.draft,
        "num_speculative_tokens": wanted.draft_len,
        "draft_sample_method": "probabilistic" if wanted.sampled else "greedy",
    }
    prefix, note = "", ""
    if wanted.ranges:
        check_vllm_ranges(wanted.ranges, wanted.draft_len)
        config["num_speculative_tokens_per_batch_size"] = [list(r) for r in wanted.ranges]
        prefix, note = "VLLM_USE_V2_MODEL_RUNNER=0 ", "model runner V2 ignores the table for draft models (vllm #51510)"
    return _with_config("vllm.json", VLLM, config, lambda text: f"{prefix}vllm serve {shlex.quote(wanted.target)} "
                        f"--speculative-config {shlex.quote(text)}", note)  # fmt: skip


def vllm_synthetic(wanted: Wanted) -> Emitted:
    """Synthetic acceptance, to time a server without a good draft: rates by position, none above the one before it."""
    rates = check_marginals(wanted.marginals, wanted.draft_len)
    config = {
        "method": "draft_model",
        "model": wanted.draft,
        "num_speculative_tokens": wanted.draft_len,
        "rejection_sample_method": "synthetic",
        "synthetic_acceptance_rates": rates,
    }
    return _with_config("vllm_synthetic.json", VLLM, config, lambda text: f"vllm serve {shlex.quote(wanted.target)} "
                        f"--speculative-config {shlex.quote(text)}", "for timing only: its text is not the target's")  # fmt: skip


def check_marginals(rates: Sequence[float], draft_len: int) -> list[float]:
    """vLLM's and llama.cpp's rule: one finite rate in [0, 1] for each position, none above the one before it."""
    good = len(rates) == draft_len and all(math.isfinite(r) and 0 <= r <= 1 for r in rates)
    if not good or any(b > a for a, b in itertools.pairwise(rates)):
        raise UserError(
            f"acceptance by position {list(rates)}", remedy=f"give {draft_len} rates in [0, 1] that never rise"
        )
    return list(rates)


def _with_config(
    file: str, version: str, config: Mapping[str, Any], command: Callable[[str], str], note: str = ""
) -> Emitted:
    return Emitted(file, version, json.dumps(config, indent=1) + "\n", command(json.dumps(config)), note)


# --- SGLang, llama.cpp -----------------------------------------------------------------------------------------------

LLAMA_CPP_REMOVED = {"--draft", "--draft-max", "--draft-min", "--draft-n", "--draft-n-min"}


def sglang(wanted: Wanted) -> Emitted:
    """An independent draft: a chain (topk 1) of ``draft_len`` steps verifies one token more."""
    flags = {
        "--speculative-algorithm": "STANDALONE",
        "--speculative-draft-model-path": wanted.draft,
        "--speculative-num-steps": str(wanted.draft_len),
        "--speculative-eagle-topk": "1",
        "--speculative-num-draft-tokens": str(wanted.draft_len + 1),
    }
    command = shlex.join(["python", "-m", "sglang.launch_server", "--model-path", wanted.target, *_flat(flags)])
    return Emitted("sglang.sh", "sglang @015c8726", f"{command}\n", command)


def check_sglang_adaptive(config: Mapping[str, Any]) -> None:
    """Keys are batch slots, whole numbers as strings that rise; each lists candidates of 0 or more (``throughput_aware``: 1 or more)."""
    slots = [key for key in config if key.isdigit()]
    if not slots or list(map(int, slots)) != sorted({*map(int, slots)}):
        raise UserError("the batch slots are not in ascending order", remedy='give keys such as "1", "8", "64"')
    least = 1 if config.get("strategy") == "throughput_aware" else 0
    for slot in slots:
        steps = config[slot].get("candidate_steps", [])
        if not steps or any(not isinstance(k, int) or k < least for k in steps):
            raise UserError(
                f"the candidates of slot {slot} are {steps}", remedy=f"give whole numbers of {least} or more"
            )


def sglang_adaptive(wanted: Wanted) -> Emitted:
    """One length for each slot of batches: a fixed table. EAGLE only; STANDALONE takes ``sglang.sh``'s one length (#23519)."""
    config = {
        str(first): {"candidate_steps": [length]} for first, _, length in wanted.ranges or [(1, 1, wanted.draft_len)]
    }
    check_sglang_adaptive(config)
    note = "EAGLE and EAGLE3 only: with STANDALONE, SGLang falls back to one length"
    flags = "--speculative-adaptive --speculative-adaptive-config sglang_adaptive.json"
    return Emitted("sglang_adaptive.json", "sglang @015c8726", json.dumps(config, indent=1) + "\n", flags, note)


def llama_cpp(wanted: Wanted) -> Emitted:
    """``llama-server``: one length for all batches; a block ends below ``p-min`` (by default 0: never)."""
    flags = {**_llama_flags(wanted), "--spec-draft-n-min": "0", "--spec-draft-p-min": str(float(wanted.confidence))}
    return _llama_server("llama_server.sh", flags)


def llama_cpp_synthetic(wanted: Wanted) -> Emitted:
    """Synthetic acceptance, to time a server without a good draft."""
    rates = check_marginals(wanted.marginals, wanted.draft_len)
    flags = {**_llama_flags(wanted), "--spec-synth-rates": ",".join(f"{r:g}" for r in rates)}
    return _llama_server(
        "llama_server_synthetic.sh", flags, "for timing only: its text is not the target's (PR #27711)"
    )


def _llama_flags(wanted: Wanted) -> dict[str, str]:
    for model in (wanted.target, wanted.draft):
        if not model.endswith(".gguf"):
            raise UserError(f"{model} is not a GGUF file", remedy="export it first: draftlab gguf export")
    models = {"--model": wanted.target, "--spec-draft-model": wanted.draft}
    return {**models, "--spec-type": "draft-simple", "--spec-draft-n-max": str(wanted.draft_len)}


def _llama_server(file: str, flags: Mapping[str, str], note: str = "") -> Emitted:
    removed = LLAMA_CPP_REMOVED.intersection(flags)
    if removed:
        raise UserError(f"llama.cpp removed {', '.join(removed)}", remedy="use --spec-draft-n-max")
    command = shlex.join(["llama-server", *_flat(flags)])
    return Emitted(file, "llama.cpp after PR #24850", f"{command}\n", command, note)


def _flat(flags: Mapping[str, str]) -> list[str]:
    return list(itertools.chain.from_iterable(flags.items()))


# --- TensorRT-LLM, transformers, NVIDIA ------------------------------------------------------------------------------


def tensorrt_schedule(ranges: Ranges, draft_len: int, meaning: Literal["lower", "upper"]) -> dict[int, int]:
    """``draft_len_schedule``: from a batch on (before PR #10860; 1 is required, and has the longest), or up to a batch (since; beyond: 0)."""
    if meaning == "upper":
        merged = _merged(ranges)
        return {last: length for _, last, length in merged if length or last != merged[-1][1]}
    schedule = {first: length for first, _, length in _merged(ranges)}
    if schedule.get(1) != draft_len:
        raise UserError(
            f"the length at batch 1 is {schedule.get(1)}, not the longest, {draft_len}",
            remedy="TensorRT-LLM before PR #10860 needs the two to be equal: use a newer version",
        )
    return schedule


def _merged(ranges: Ranges) -> list[tuple[int, int, int]]:
    found: list[tuple[int, int, int]] = []
    for first, last, length in ranges:
        if found and found[-1][2] == length:
            found[-1] = (found[-1][0], last, length)
        else:
            found.append((first, last, length))
    return found


def _tensorrt(wanted: Wanted, meaning: Literal["lower", "upper"]) -> Emitted:
    import yaml

    ranges = wanted.ranges or [(1, 1024, wanted.draft_len)]
    config = {
        "speculative_config": {
            "decoding_type": "Draft_Target",
            "max_draft_len": wanted.draft_len,
            "speculative_model": wanted.draft,
            "draft_len_schedule": tensorrt_schedule(ranges, wanted.draft_len, meaning),
        }
    }
    version = {"lower": "TensorRT-LLM before PR #10860", "upper": "TensorRT-LLM since PR #10860 (13 March 2026)"}[
        meaning
    ]
    file = f"tensorrt_llm_{meaning}.yaml"
    note = {
        "lower": "keys are the smallest batch",
        "upper": "keys are the largest batch, beyond the last nothing is drafted",
    }
    command = f"trtllm-serve {shlex.quote(wanted.target)} --extra_llm_api_options {file}"
    return Emitted(file, version, yaml.safe_dump(config, sort_keys=False), command, note[meaning])


def tensorrt_lower(wanted: Wanted) -> Emitted:
    return _tensorrt(wanted, "lower")


def tensorrt_upper(wanted: Wanted) -> Emitted:
    return _tensorrt(wanted, "upper")


def transformers(wanted: Wanted) -> Emitted:
    """The draft's ``generation_config.json``: a constant length, and the confidence below which a block ends (0: never)."""
    config = {
        "num_assistant_tokens": wanted.draft_len,
        "num_assistant_tokens_schedule": "constant",
        "assistant_confidence_threshold": wanted.confidence,
    }
    command = "target.generate(**inputs, assistant_model=draft)"
    return Emitted("generation_config.json", "transformers 5.23", json.dumps(config, indent=1) + "\n", command)


def speculation_profile(wanted: Wanted) -> Emitted:
    """NVIDIA's ``speculation_profile.json`` (Model-Optimizer PRs #2247, #2315: open): acceptance by position, without a machine.

    ``marginal[i] = P(at least i + 1 accepted)``, ``conditional[i] = marginal[i] / marginal[i - 1]``, mean length ``1 + sum(marginal)``.
    """
    marginal = check_marginals(wanted.marginals, wanted.draft_len)
    conditional = [round(b / a, 6) if a else 0.0 for a, b in itertools.pairwise([1.0, *marginal])]
    mean = round(1 + sum(marginal), 6)
    profile = {
        "schema_version": "1.0",
        "measured": wanted.requests > 0,
        "method": "draft_target",
        "accept_length_model": "chain_analytic",
        "verification_method": "longest_prefix",
        "num_speculative_tokens": wanted.draft_len,
        "conditional_accept_rates": conditional,
        "marginal_accept_rates": marginal,
        "mean_accept_length": mean,
        "measurement_conditions": {"dataset": wanted.traffic, "num_samples": wanted.requests},
        "validation": {
            "mean_consistency": {
                "passed": True,
                "implied_mean_accept_length": mean,
                "reported_mean_accept_length": mean,
            }
        },
    }
    version = "NVIDIA Model-Optimizer PR #2247 (open)"
    return Emitted("speculation_profile.json", version, json.dumps(profile, indent=1) + "\n")


EMITTERS: dict[str, Callable[[Wanted], Emitted]] = {
    "vllm": vllm,
    "vllm-synthetic": vllm_synthetic,
    "sglang": sglang,
    "sglang-adaptive": sglang_adaptive,
    "llama-cpp": llama_cpp,
    "llama-cpp-synthetic": llama_cpp_synthetic,
    "tensorrt-llm-lower": tensorrt_lower,
    "tensorrt-llm-upper": tensorrt_upper,
    "transformers": transformers,
    "speculation-profile": speculation_profile,
}
ENDS_EARLY = frozenset({"llama-cpp", "transformers"})
"""Engines whose blocks can end where the draft is unsure."""


def ranges_of(best: Sequence[Mapping[str, Any]], context: int) -> list[tuple[int, int, int]]:
    """Ranges of batches from the best lengths of ``draftlab load`` (``best_by_batch_and_context``) at the context nearest to ``context``.

    A batch between two simulated ones takes the length of the larger.
    """
    if not best:
        raise UserError("no best draft lengths in it", remedy="run draftlab load")
    nearest = min({row["context"] for row in best}, key=lambda c: abs(math.log(c / context)))
    rows = sorted((int(r["batch"]), int(r["best_draft_len"])) for r in best if r["context"] == nearest)
    starts = [1, *(batch + 1 for batch, _ in rows[:-1])]
    return _merged([(start, batch, length) for start, (batch, length) in zip(starts, rows, strict=True)])


def from_load(file: Path, context: int) -> tuple[list[tuple[int, int, int]], int]:
    """The draft lengths by batch that the summary of ``draftlab load`` asks for, and the longest."""
    found = read_object(file)
    if not found.get("known", False):
        raise UserError("the simulation gave no answer", file=file, remedy="simulate 30 requests or more")
    ranges = ranges_of(found["best_by_batch_and_context"], context)
    longest = max(length for _, _, length in ranges)
    if not longest:
        raise UserError("no batch gains from a draft", file=file, remedy="serve without one")
    return ranges, longest


def write(wanted: Wanted, engines: Sequence[str], out: Path) -> list[Emitted]:
    """Write settings for ``engines`` (if none is named, for all that can use this pair) into the folder OUT."""
    found = []
    for name in engines or EMITTERS:
        if name not in EMITTERS:
            raise UserError(f"no engine {name!r}", remedy=f"give one of {', '.join(EMITTERS)}")
        try:
            if wanted.confidence and name not in ENDS_EARLY:
                remedy = f"leave out --confidence, or name {' or '.join(sorted(ENDS_EARLY))}"
                raise UserError(f"blocks of {name} do not end early", remedy=remedy)
            found.append(EMITTERS[name](wanted))
        except UserError:
            if engines:
                raise
    with atomic_dir(out) as folder:
        for emitted in found:
            (folder / emitted.file).write_text(emitted.text, encoding="utf-8")
        sections = [
            f"## {e.file}\n\nfor {e.version}{f': {e.note}' if e.note else ''}\n\n```\n{e.command}\n```\n" for e in found
        ]
        (folder / "README.md").write_text("\n".join(sections), encoding="utf-8")
    return found


def emit(
    engine: tyro.conf.Positional[tuple[str, ...]] = (),
    *,
    load: Path | None = None,
    draft_len: int | None = None,
    target: str,
    draft: str,
    context: int = 1024,
    alpha: float | None = None,
    acceptance: Path | None = None,
    greedy: bool = False,
    confidence: float = 0.0,
    out: Path,
) -> None:
    """Write settings for serving engines into the folder OUT: draft lengths by batch from LOAD (a JSON file of draftlab load), or a single DRAFT_LEN.

    ENGINE: without one, every engine that can use the pair. CONTEXT: the tokens at which lengths are read from LOAD. ALPHA, or ACCEPTANCE
    (records of an engine), is what synthetic acceptance imitates. GREEDY: the draft proposes its most probable token. CONFIDENCE: a block ends
    early where the draft's token has a lower probability.
    """
    if (load is None) == (draft_len is None):
        raise UserError("no draft length, or two", remedy="give either --load or --draft-len")
    shown = records.acceptance(acceptance) if acceptance else from_alpha(alpha) if alpha is not None else None
    requests = len(shown.survival) if shown and acceptance else 0
    ranges, longest = from_load(load, context) if load is not None else ([], draft_len or 0)
    traffic = acceptance.stem if acceptance else ""
    wanted = Wanted(target, draft, longest, ranges, not greedy, shown, requests, traffic, confidence)
    for emitted in write(wanted, engine, out):
        print(f"{emitted.file}: {emitted.version}")
