"""What each serving engine reads to draft without a model: prompt lookup, or suffix decoding. One function for each engine and method."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Mapping
from typing import Any

import yaml

from draftlab.errors import UserError
from draftlab.files.weights import is_gguf
from draftlab.models import suffixes
from draftlab.models.ngrams import NGRAM
from draftlab.serving.engines import (
    LOOKUP,
    METRICS,
    ONE_LENGTH,
    READS_GGUF,
    SGLANG,
    VLLM,
    Deployment,
    EngineFile,
    as_json,
    llama_cpp_lookup,
    looks_up_more,
    with_flags,
)

TENSORRT = "TensorRT-LLM 1.4.0rc4"
SHORTER = (
    "it also looks up the last token alone, where the last two are new, so it drafts more than the verdict's lookup"
)
"""A note for engines that search shorter patterns too; ours has one length."""
EARLIEST = "it copies what followed the earliest occurrence, the verdict's lookup what followed the latest"


def _note(pair: Deployment, *notes: str) -> str:
    return "; ".join([*notes, *[ONE_LENGTH] * pair.changes_length])


def _vllm(file: str, pair: Deployment, config: Mapping[str, Any], *notes: str) -> EngineFile:
    command = shlex.join(["vllm", "serve", pair.target, "--speculative-config", json.dumps(config)])
    return EngineFile(file, VLLM, as_json(config), command, _note(pair, *notes, *[READS_GGUF] * is_gguf(pair.target)))


def vllm_lookup(pair: Deployment) -> EngineFile:
    """``method: ngram``, with patterns of as many tokens as ours."""
    config = {"method": "ngram", "num_speculative_tokens": pair.draft_len}
    config |= {"prompt_lookup_max": NGRAM, "prompt_lookup_min": NGRAM}
    return _vllm("vllm_ngram.json", pair, config, EARLIEST)


def vllm_suffix(pair: Deployment) -> EngineFile:
    """``method: suffix``; a block ends before its tokens together are less probable than the confidence (0: than ``suffixes.LEAST``)."""
    config: dict[str, object] = {"method": "suffix", "num_speculative_tokens": pair.draft_len}
    config["suffix_decoding_max_tree_depth"] = suffixes.LONGEST
    config["suffix_decoding_min_token_prob"] = max(pair.confidence, suffixes.LEAST)
    return _vllm("vllm_suffix.json", pair, config, "vLLM needs the package arctic-inference for it")


def llama_cpp(pair: Deployment) -> EngineFile:
    """``llama-server`` with prompt lookup alone."""
    if not is_gguf(pair.target):
        raise UserError(
            f"{pair.target} is not a GGUF file", remedy="convert it first, with convert_hf_to_gguf.py of llama.cpp"
        )
    flags: dict[str, object] = {"--model": pair.target, "--spec-type": LOOKUP, **llama_cpp_lookup(pair.draft_len)}
    command = shlex.join(with_flags(["llama-server", METRICS["llama.cpp"]], flags))
    version = "llama.cpp since PR #22964 (May 2026)"
    return EngineFile(
        "llama_server_lookup.sh", version, f"{command}\n", command, _note(pair, *looks_up_more(pair.draft_len))
    )


def sglang_suffix(pair: Deployment) -> EngineFile:
    """``NGRAM``: a chain out of a trie of earlier texts, by frequency."""
    flags = {
        "--speculative-algorithm": "NGRAM",
        "--speculative-num-draft-tokens": pair.draft_len + 1,
        "--speculative-ngram-max-bfs-breadth": 1,
        "--speculative-ngram-match-type": "PROB",
        "--speculative-ngram-max-trie-depth": suffixes.LONGEST,
    }
    launch = ["python", "-m", "sglang.launch_server", "--model-path", pair.target, METRICS["sglang"]]
    command = shlex.join(with_flags(launch, flags))
    other = (
        f"another method with such a memory: every step verifies {pair.draft_len} drafted tokens, also where nothing is found, "
        "so the verdict's promise does not hold; on NVIDIA GPUs only"
    )
    return EngineFile("sglang_ngram.sh", SGLANG, f"{command}\n", command, _note(pair, other))


def _tensorrt(file: str, pair: Deployment, config: Mapping[str, Any], more: Mapping[str, Any], note: str) -> EngineFile:
    command = f"trtllm-serve {shlex.quote(pair.target)} --extra_llm_api_options {file}"
    text = yaml.safe_dump({"speculative_config": dict(config), **more}, sort_keys=False)
    return EngineFile(file, TENSORRT, text, command, _note(pair, note))


def tensorrt_lookup(pair: Deployment) -> EngineFile:
    """``NGram``, with the newest match in the request's own text. It does not run under the overlap scheduler."""
    config = {"decoding_type": "NGram", "max_draft_len": pair.draft_len, "max_matching_ngram_size": NGRAM}
    config |= {"is_keep_all": True, "is_use_oldest": False, "is_public_pool": False}
    return _tensorrt("tensorrt_llm_ngram.yaml", pair, config, {"disable_overlap_scheduler": True}, SHORTER)


def tensorrt_suffix(pair: Deployment) -> EngineFile:
    """``SA``, a suffix automaton of each of the last requests."""
    config = {"decoding_type": "SA", "max_draft_len": pair.draft_len, "enable_global_pool": True}
    other = (
        "another method with such a memory: it drafts what followed the longest match, not the most frequent text, and remembers "
        "the last 64 requests or more, so the verdict's promise does not hold"
    )
    return _tensorrt("tensorrt_llm_sa.yaml", pair, config, {}, other)


def transformers(pair: Deployment) -> EngineFile:
    """Arguments of ``generate``."""
    config = {"prompt_lookup_num_tokens": pair.draft_len, "max_matching_ngram_size": NGRAM}
    file = "prompt_lookup.json"
    command = f'target.generate(**inputs, **json.load(open("{file}")))'
    return EngineFile(file, "transformers 5.23", as_json(config), command, _note(pair, EARLIEST, SHORTER))


METHODS: dict[str, dict[str, Callable[[Deployment], EngineFile]]] = {
    "lookup": {
        "vllm": vllm_lookup,
        "llama-cpp": llama_cpp,
        "tensorrt-llm": tensorrt_lookup,
        "transformers": transformers,
    },
    "suffix": {"vllm": vllm_suffix, "sglang": sglang_suffix, "tensorrt-llm": tensorrt_suffix},
}
"""The engines that draft so without a model, by method."""


def settings_without_draft(engine: str, pair: Deployment) -> EngineFile:
    """The file for an engine; a ``UserError`` if it does not draft in this way, or not from such a target."""
    method = "suffix" if pair.suffix else "lookup"
    if engine not in METHODS[method]:
        what = f"{engine} has no {'suffix decoding' if pair.suffix else 'prompt lookup'}"
        raise UserError(what, remedy=f"name {', '.join(METHODS[method])}")
    if pair.confidence and (engine, method) != ("vllm", "suffix"):
        raise UserError(f"blocks of {engine} do not end early here", remedy="leave out --confidence")
    if engine in ("tensorrt-llm", "sglang", "transformers") and is_gguf(pair.target):
        raise UserError(f"{engine} is given no GGUF file here", remedy="give a model folder, or a hub id")
    return METHODS[method][engine](pair)
