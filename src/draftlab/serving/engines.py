"""What each serving engine reads: draft lengths and acceptance in its format, checked by its own rules. One function for each engine."""

from __future__ import annotations

import itertools
import json
import math
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import yaml

from draftlab.errors import UserError
from draftlab.models.config import CONVERT_HEAD, IN_BLOCKS, Head, head_in, read_config
from draftlab.models.dflash_files import longest_draft
from draftlab.models.eagle3_files import LAYER_IDS, hides_layers, layers_read
from draftlab.models.ngrams import NGRAM
from draftlab.serving.acceptance import EXTRAPOLATED, LONGEST, AcceptanceCurves

Ranges = Sequence[tuple[int, int, int]]
"""(first batch, last batch, draft length), both ends included."""


@dataclass(frozen=True)
class Deployment:
    """A pair, its draft lengths (``draft_len`` at most, ``ranges`` by batch), and its measured acceptance.

    A block ends where the draft's token has a probability below ``confidence``. With ``lookup``, prompt lookup drafts, and the draft only
    where it finds nothing. Without a draft (an empty name) prompt lookup drafts alone, or with ``suffix`` suffix decoding. The draft may be a
    ``head`` on the target's states. A ``parallel`` draft proposes a block in one pass. ``requests`` and ``traffic`` say what was measured.
    """

    target: str
    draft: str
    draft_len: int
    ranges: Ranges = ()
    sampled: bool = True
    acceptance: AcceptanceCurves | None = None
    requests: int = 0
    traffic: str = ""
    confidence: float = 0.0
    lookup: bool = False
    suffix: bool = False
    head: Head = ""
    parallel: bool = False

    def __post_init__(self) -> None:
        if not 0 <= self.confidence < 1:
            raise UserError(f"confidence is {self.confidence}", remedy="give a probability from 0 to less than 1")
        if self.draft_len < 1:
            raise UserError(f"draft_len is {self.draft_len}", remedy="give 1 or more, or serve without a draft")
        if self.draft and self.suffix:
            raise UserError("suffix decoding drafts without a model", remedy="leave out --draft, or --suffix")
        if not self.draft and self.suffix == self.lookup:
            raise UserError("nothing that drafts", remedy="give --draft, or else either --lookup or --suffix")

    def marginals(self) -> list[float]:
        """How often a step accepts at least 1, 2, ... drafted tokens, over all requests."""
        if self.acceptance is None:
            raise UserError("no acceptance to write", remedy="give --acceptance FILE or --alpha")
        if self.draft_len > LONGEST:
            what = f"acceptance is known for up to {LONGEST} drafted tokens, not {self.draft_len}"
            raise UserError(what, remedy="give a shorter --draft-len")
        rates = [round(float(p), 6) for p in self.acceptance.marginals(self.draft_len)]
        return check_marginals(rates, self.draft_len)

    @property
    def changes_length(self) -> bool:
        """Whether the draft length depends on the batch."""
        return len({length for _, _, length in self.ranges}) > 1

    @property
    def extrapolated(self) -> str:
        """From which length on the acceptance was not recorded, in words."""
        recorded = self.acceptance.recorded if self.acceptance else 0
        is_beyond = 0 < recorded < self.draft_len
        return EXTRAPOLATED.format(recorded) if is_beyond else ""


@dataclass(frozen=True)
class EngineFile:
    """A file for an engine, the version it is written for, and the command that uses it."""

    file: str
    version: str
    text: str
    command: str = ""
    note: str = ""


def check_marginals(rates: Sequence[float], draft_len: int) -> list[float]:
    """Apply vLLM's and llama.cpp's rule: one finite rate in [0, 1] for each position, none above the previous one."""
    valid = len(rates) == draft_len and all(math.isfinite(r) and 0 <= r <= 1 for r in rates)
    if not valid or any(b > a for a, b in itertools.pairwise(rates)):
        raise UserError(
            f"acceptance by position {list(rates)}", remedy=f"give {draft_len} rates in [0, 1] that never rise"
        )
    return list(rates)


def as_json(config: Mapping[str, Any]) -> str:
    return json.dumps(config, indent=1) + "\n"


# --- vLLM ------------------------------------------------------------------------------------------------------------


def check_vllm_ranges(ranges: Sequence[Sequence[int]], most: int) -> dict[int, int]:
    """Return the draft length from each batch on, by vLLM's rule for ``num_speculative_tokens_per_batch_size``.

    The first range starts at 1, and none overlaps another or runs backwards. Gaps and the tail keep the length before them. Lengths above
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


HIDDEN_LAYERS = (
    f"vLLM reads {LAYER_IDS} only at the top level of the draft's config.json, where this head has none: "
    "it takes the states before layers 2, n/2 and n - 3 of the target's n layers"
)
"""A note for a head of EAGLE-3 whose config.json names its layers elsewhere."""


VLLM = "vllm @002e77c1"
READS_GGUF = (
    "vLLM reads GGUF files with its package vllm-gguf-plugin; add --tokenizer with the model that the file was made of"
)
"""A note for GGUF files."""


def _vllm_file(file: str, pair: Deployment, options: Mapping[str, Any], note: str = "") -> EngineFile:
    config: dict[str, Any] = {
        "method": pair.head or "draft_model",
        "model": pair.draft,
        "num_speculative_tokens": pair.draft_len,
        **({"parallel_drafting": True} if pair.parallel and pair.head not in IN_BLOCKS else {}),
        **options,
    }
    prefix, notes = "", [note] * bool(note)
    if head_in(pair.draft) and hides_layers(read_config(pair.draft)):
        notes.append(HIDDEN_LAYERS)
    if pair.target.endswith(".gguf") or pair.draft.endswith(".gguf"):
        notes.append(READS_GGUF)
    if pair.ranges:
        lengths = check_vllm_ranges(pair.ranges, pair.draft_len)
        table = [[first, last, lengths[first]] for first, last, _ in pair.ranges]
        config["num_speculative_tokens_per_batch_size"] = table
        prefix = "VLLM_USE_V2_MODEL_RUNNER=0 "
        notes.append("model runner V2 ignores the table for draft models (vllm #51510)")
    command = prefix + shlex.join(["vllm", "serve", pair.target, "--speculative-config", json.dumps(config)])
    return EngineFile(file, f"{VLLM} (table by batch @a6f6bb1d)", as_json(config), command, "; ".join(notes))


def vllm(pair: Deployment) -> EngineFile:
    """``--speculative-config``; without ``draft_sample_method`` vLLM drafts the argmax, so it is always written."""
    return _vllm_file("vllm.json", pair, {"draft_sample_method": "probabilistic" if pair.sampled else "greedy"})


def vllm_synthetic(pair: Deployment) -> EngineFile:
    """Synthetic acceptance by position, to time a server without a good draft."""
    options = {"rejection_sample_method": "synthetic", "synthetic_acceptance_rates": pair.marginals()}
    return _vllm_file("vllm_synthetic.json", pair, options, "for timing only: its text is not the target's")


# --- SGLang, llama.cpp -----------------------------------------------------------------------------------------------

SGLANG = "sglang @015c8726"
ONE_LENGTH = "one length for all batches: the longest of those by batch"
"""A note for engines without a table of lengths by batch."""
ARGMAX = "the draft proposes its most probable token at any temperature, as with --greedy"
"""A note for engines whose drafts do not sample unless they are told to."""
METRICS = {"sglang": "--enable-metrics", "llama.cpp": "--metrics"}
"""The flag that opens /metrics, which ``draftlab monitor`` reads; vLLM's is always open."""


def sglang(pair: Deployment) -> EngineFile:
    """An independent draft or a head of EAGLE-3: a chain (topk 1) of ``draft_len`` steps verifies one token more.

    Heads of DFlash and DSpark have no steps.
    """
    verified = {"--speculative-num-draft-tokens": pair.draft_len + 1}
    chain = {"--speculative-num-steps": pair.draft_len, "--speculative-eagle-topk": 1, **verified}
    own = {"dflash": verified, "dspark": {"--speculative-dspark-block-size": pair.draft_len}}
    flags = {
        "--speculative-algorithm": pair.head.upper() or "STANDALONE",
        "--speculative-draft-model-path": pair.draft,
        **own.get(pair.head, chain),
    }
    launch = ["python", "-m", "sglang.launch_server", "--model-path", pair.target, METRICS["sglang"]]
    command = shlex.join(with_flags(launch, flags))
    samples = f"{ARGMAX}, unless a version that knows it is given --speculative-use-rejection-sampling"
    notes = [ONE_LENGTH] * pair.changes_length + [samples] * pair.sampled
    return EngineFile("sglang.sh", SGLANG, f"{command}\n", command, "; ".join(notes))


def with_flags(words: Sequence[str], flags: Mapping[str, object]) -> list[str]:
    return [*words, *(str(word) for flag in flags.items() for word in flag)]


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


def sglang_adaptive(pair: Deployment) -> EngineFile:
    """One length for each slot of batches: a fixed table, for heads of EAGLE. Other drafts have ``sglang.sh``'s one length (#23519)."""
    if pair.head != "eagle3":
        what = "SGLang reads lengths by batch for heads of EAGLE alone (pull request #23519 is open)"
        raise UserError(what, remedy="name sglang, which gets one length for all batches")
    ranges = pair.ranges or [(1, 1, pair.draft_len)]
    config = {str(first): {"candidate_steps": [length]} for first, _, length in ranges}
    check_sglang_adaptive(config)
    file = "sglang_adaptive.json"
    command = f"{sglang(pair).command} --speculative-adaptive --speculative-adaptive-config {file}"
    return EngineFile(file, SGLANG, as_json(config), command)


def _llama_server(file: str, pair: Deployment, options: Mapping[str, object], note: str) -> EngineFile:
    for model in (pair.target, pair.draft):
        if not model.endswith(".gguf"):
            is_head = pair.head and model == pair.draft
            remedy = f"convert it first: {CONVERT_HEAD}" if is_head else "export it first: draftlab gguf export"
            raise UserError(f"{model} is not a GGUF file", remedy=remedy)
    kind = f"draft-{pair.head or 'simple'}"
    flags: dict[str, object] = {"--model": pair.target, "--spec-draft-model": pair.draft, "--spec-type": kind}
    flags |= {"--spec-draft-n-max": pair.draft_len, **options}
    if pair.lookup:  # the first that drafts something is used
        flags |= {"--spec-type": f"{LOOKUP},{kind}", **llama_cpp_lookup(pair.draft_len)}
    command = shlex.join(with_flags(["llama-server", METRICS["llama.cpp"]], flags))
    first = {"eagle3": "PR #18039", "dflash": "PR #22105", "dspark": "PR #25173"}.get(pair.head, "PR #22964 (May 2026)")
    since = next((version for flag, version in SINCE.items() if flag in flags), first)
    return EngineFile(file, f"llama.cpp since {since}", f"{command}\n", command, note)


SAMPLES = "--spec-draft-sampling"
"""llama.cpp's flag for how drafts are drawn; without it, and in versions that do not know it, they are the most probable tokens."""
SYNTHETIC = "--spec-synth-rates"
SINCE = {SAMPLES: "b11368 (PR #27694)", SYNTHETIC: "PR #27711 (August 2026)"}
"""The version of llama.cpp that brought a flag; without them, the one that named drafts ``draft-simple``. An older one refuses to start."""
LOOKUP = "ngram-simple"
"""llama.cpp's name for prompt lookup."""


def llama_cpp_lookup(draft_len: int) -> dict[str, object]:
    """Options of ``llama-server`` for prompt lookup that matches as many tokens as ours; it drops drafts of fewer tokens than it matches."""
    return {"--spec-ngram-simple-size-n": NGRAM, "--spec-ngram-simple-size-m": max(draft_len, NGRAM)}


def looks_up_more(draft_len: int) -> list[str]:
    """A note if llama.cpp looks up more tokens than are wanted."""
    more = f"prompt lookup drafts {NGRAM} tokens: llama.cpp drops drafts of fewer tokens than it matches"
    return [more] * (draft_len < NGRAM)


def llama_cpp(pair: Deployment) -> EngineFile:
    """``llama-server``: one length for all batches; a block ends below ``p-min`` (by default 0: never)."""
    options: dict[str, object] = {"--spec-draft-n-min": 0, "--spec-draft-p-min": float(pair.confidence)}
    if pair.sampled and not pair.head:
        options[SAMPLES] = "probabilistic"
    notes = (
        [ARGMAX] * (pair.sampled and bool(pair.head))
        + [ONE_LENGTH] * pair.changes_length
        + (looks_up_more(pair.draft_len) if pair.lookup else [])
    )
    return _llama_server("llama_server.sh", pair, options, "; ".join(notes))


def llama_cpp_synthetic(pair: Deployment) -> EngineFile:
    """Synthetic acceptance, to time a server without a good draft."""
    options = {SYNTHETIC: ",".join(f"{rate:g}" for rate in pair.marginals())}
    notes = ["for timing only: its text is not the target's"] + [ONE_LENGTH] * pair.changes_length
    return _llama_server("llama_server_synthetic.sh", pair, options, "; ".join(notes))


# --- TensorRT-LLM, transformers, NVIDIA ------------------------------------------------------------------------------

Meaning = Literal["lower", "upper"]
TENSORRT = {
    "lower": ("TensorRT-LLM before PR #10860", "keys are the smallest batch"),
    "upper": (
        "TensorRT-LLM since PR #10860 (13 March 2026)",
        "keys are the largest batch, beyond the last nothing is drafted",
    ),
}
"""The version for each meaning of a key in ``draft_len_schedule``, and a note."""


def tensorrt_schedule(ranges: Ranges, draft_len: int, meaning: Meaning) -> dict[int, int]:
    """``draft_len_schedule``: from a batch on (before PR #10860; 1 is required), or up to a batch (since; beyond: 0).

    Both versions refuse a schedule whose smallest batch does not have the longest length.
    """
    joined = merged(ranges)
    if joined[0][2] != draft_len:
        raise UserError(
            f"the length at batch 1 is {joined[0][2]}, not the longest, {draft_len}",
            remedy=f"TensorRT-LLM needs the two to be equal: give --draft-len {draft_len} instead of --load",
        )
    if meaning == "upper":
        return {last: length for _, last, length in joined if length or last != joined[-1][1]}
    return {first: length for first, _, length in joined}


def merged(ranges: Ranges) -> list[tuple[int, int, int]]:
    """Join neighbouring ranges of one draft length."""
    groups = (list(group) for _, group in itertools.groupby(ranges, key=lambda r: r[2]))
    return [(group[0][0], group[-1][1], group[0][2]) for group in groups]


TENSORRT_HEADS = {"eagle3": "Eagle3", "dflash": "DFlash"}
"""TensorRT-LLM's names of heads."""


def tensorrt(meaning: Meaning, pair: Deployment) -> EngineFile:
    """TensorRT-LLM's configuration, for one meaning of the keys in its schedule."""
    config: dict[str, Any] = {
        "decoding_type": TENSORRT_HEADS.get(pair.head) or ("PARD" if pair.parallel else "Draft_Target"),
        "max_draft_len": pair.draft_len,
        "speculative_model": pair.draft,
    }
    if (
        pair.head == "eagle3"
        and head_in(pair.draft)
        and (layers := layers_read(read_config(pair.draft), Path(pair.draft)))
    ):
        config["eagle3_layers_to_capture"] = [layer - 1 for layer in layers]  # their output, not the input of the next
    if pair.ranges:
        config["draft_len_schedule"] = tensorrt_schedule(pair.ranges, pair.draft_len, meaning)
    version, keys = TENSORRT[meaning]
    file = f"tensorrt_llm_{meaning}.yaml"
    samples = f"{ARGMAX}, unless a version with PR #15775 is given use_rejection_sampling: true"
    notes = [keys] * bool(pair.ranges) + [samples] * pair.sampled
    command = f"trtllm-serve {shlex.quote(pair.target)} --extra_llm_api_options {file}"
    text = yaml.safe_dump({"speculative_config": config}, sort_keys=False)
    return EngineFile(file, version, text, command, "; ".join(notes))


def transformers(pair: Deployment) -> EngineFile:
    """Values for the draft's generation config: a constant length, and the confidence below which a block ends (0: never)."""
    config = {
        "num_assistant_tokens": pair.draft_len,
        "num_assistant_tokens_schedule": "constant",
        "assistant_confidence_threshold": pair.confidence,
    }
    file = "generation_config.json"
    command = f'draft.generation_config.update(**json.load(open("{file}")))\n'
    command += "target.generate(**inputs, assistant_model=draft)"
    note = "not a whole config: the draft's own file has more, do not replace it"
    if pair.changes_length:
        note += f"; {ONE_LENGTH}"
    if pair.confidence:
        note += "; where scikit-learn is installed, transformers moves the confidence after each block"
    return EngineFile(file, "transformers 5.23", as_json(config), command, note)


def speculation_profile(pair: Deployment) -> EngineFile:
    """NVIDIA's ``speculation_profile.json`` (Model-Optimizer PRs #2247, #2315: open): acceptance by position, without a machine.

    ``marginal[i] = P(at least i + 1 accepted)``, ``conditional[i] = marginal[i] / marginal[i - 1]``, mean length ``1 + sum(marginal)``.
    """
    marginal = pair.marginals()
    mean = round(1 + sum(marginal), 6)
    consistency = {"passed": True, "implied_mean_accept_length": mean, "reported_mean_accept_length": mean}
    profile = {
        "schema_version": "1.0",
        "measured": bool(pair.traffic) and not pair.extrapolated,
        "method": "draft_target",
        "accept_length_model": "chain_analytic",
        "verification_method": "longest_prefix",
        "num_speculative_tokens": pair.draft_len,
        "conditional_accept_rates": [round(b / a, 6) if a else 0.0 for a, b in itertools.pairwise([1.0, *marginal])],
        "marginal_accept_rates": marginal,
        "mean_accept_length": mean,
        "measurement_conditions": {"dataset": pair.traffic, "num_samples": pair.requests},
        "validation": {"mean_consistency": consistency},
    }
    version = "NVIDIA Model-Optimizer PR #2247 (open)"
    return EngineFile("speculation_profile.json", version, as_json(profile), note=pair.extrapolated)


EMITTERS: dict[str, Callable[[Deployment], EngineFile]] = {
    "vllm": vllm,
    "vllm-synthetic": vllm_synthetic,
    "sglang": sglang,
    "sglang-adaptive": sglang_adaptive,
    "llama-cpp": llama_cpp,
    "llama-cpp-synthetic": llama_cpp_synthetic,
    "tensorrt-llm-lower": partial(tensorrt, "lower"),
    "tensorrt-llm-upper": partial(tensorrt, "upper"),
    "transformers": transformers,
    "speculation-profile": speculation_profile,
}
ENDS_EARLY = frozenset({"llama-cpp", "transformers"})
"""Engines whose blocks can end where the draft is unsure."""
LOOKS_UP = frozenset({"llama-cpp"})
"""Engines that can look up the prompt first, and draft where that finds nothing."""
IN_PARALLEL = frozenset({"vllm", "vllm-synthetic", "tensorrt-llm-lower", "tensorrt-llm-upper", "speculation-profile"})
"""Engines whose draft can propose a block in one pass, and a file that no engine reads."""
READ_STATES = frozenset({"vllm", "vllm-synthetic", "sglang", "llama-cpp", "tensorrt-llm-upper"})
"""Engines for which settings of a head are written; ``sglang-adaptive`` for one of EAGLE-3, too."""
PART_OF_BLOCK = "draftlab measured the first {0} tokens of a whole block; an engine may let the head fill in {0} alone"
"""A note for a head of DFlash or DSpark that drafts less than it was trained for."""
ABLE = {"dflash": READ_STATES, "dspark": READ_STATES - {"tensorrt-llm-upper"}}
"""Engines for which settings of a head that fills in a block are written."""
OF_P_EAGLE = frozenset({"vllm", "vllm-synthetic"})
"""Engines for which settings of a head of P-EAGLE are written."""


def settings_for(engine: str, pair: Deployment) -> EngineFile:
    """The file for an engine; a ``UserError`` if there is no such engine, or if it cannot use this pair in this way."""
    if engine not in EMITTERS:
        raise UserError(f"no engine {engine!r}", remedy=f"give one of {', '.join(EMITTERS)}")
    if pair.confidence and engine not in ENDS_EARLY:
        remedy = f"leave out --confidence, or name {' or '.join(sorted(ENDS_EARLY))}"
        raise UserError(f"blocks of {engine} do not end early", remedy=remedy)
    if pair.lookup and engine not in LOOKS_UP:
        remedy = f"leave out --lookup, or name {' or '.join(sorted(LOOKS_UP))}"
        raise UserError(f"{engine} drafts in one way alone", remedy=remedy)
    able = ABLE.get(pair.head, OF_P_EAGLE if pair.head else IN_PARALLEL)
    if pair.parallel and engine not in able:
        what = f"{engine} drafts token after token, and this draft proposes a block in one pass"
        raise UserError(what, remedy="name vllm")
    if engine.startswith("tensorrt") and (pair.target.endswith(".gguf") or pair.draft.endswith(".gguf")):
        raise UserError(f"{engine} does not read a GGUF file", remedy="give model folders, or hub ids")
    if pair.head and engine not in READ_STATES | {"sglang-adaptive"}:
        what = f"no settings of a head are written for {engine}"
        raise UserError(what, remedy=f"name {', '.join(sorted(READ_STATES))}")
    written = EMITTERS[engine](pair)
    if pair.head in IN_BLOCKS and head_in(pair.draft) and pair.draft_len < longest_draft(pair.draft):
        return replace(written, note="; ".join(filter(None, [written.note, PART_OF_BLOCK.format(pair.draft_len)])))
    return written
