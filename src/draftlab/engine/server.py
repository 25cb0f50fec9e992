"""The target on an OpenAI-compatible server: its answers, and the most probable tokens at each position.

Prompts are sent as token ids, so the chat template is ours and the server tokenizes nothing. llama.cpp's server and vLLM name tokens by id.
A server that gives only the text of a token is refused, since several ids may have the same text. Both servers give log-probabilities before
temperature, top-k, top-p and min-p. The mass of all other tokens is 1 minus the sum of the named tokens, as exact as the server's float32 softmax.
"""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from urllib3 import PoolManager, Retry, Timeout
from urllib3.exceptions import HTTPError

from draftlab.core.sampling import Sampling
from draftlab.engine.settings import API_KEY, Answering
from draftlab.errors import UserError
from draftlab.files.hub import PASSING
from draftlab.models import Tokenizer
from draftlab.models.config import read_sizes

RETRIES = Retry(
    total=9, backoff_factor=0.5, backoff_max=60, status_forcelist=PASSING, allowed_methods=None, raise_on_status=False
)
"""Retries outlast a busy server, or one that is gone for two minutes; ``Retry-After`` is obeyed."""

TIMEOUT = Timeout(connect=30, read=1800)
"""Seconds. An answer is sent when it is complete, and may wait for others."""

PROBE = "The quick brown fox (2024-07-26):\n\tdef f(x):  return x ** 31  # naïve café, “quoted”, 東京, Привет 🙂 don't"

LEAST = 2.0**-24
"""The least mass of all other tokens: what float32 can distinguish from 0."""

LOWEST = -9999.0
"""The least log-probability: vLLM's bound; llama.cpp's does not fit float16."""

Step = tuple[int, dict[int, float]]
"""The emitted token, and log-probabilities by token: the most probable tokens and the emitted one."""


class Server:
    """One model on one server. ``description``: model, server and version as the server reports them."""

    def __init__(self, target: Path, settings: Answering, sampling: Sampling) -> None:
        self._settings, self._sampling, self._url = settings, sampling, settings.url.rstrip("/")
        if sampling.temperature > 1 and not sampling.top_k:  # there, the tokens that it does not name may weigh much
            what = f"temperature {sampling.temperature:g} also draws tokens that it does not name, and their probabilities are not known"
            raise UserError(what, file=self._url, remedy="set top_k, or use another engine")
        self._key = os.environ.get(API_KEY, "")
        headers = {"Authorization": f"Bearer {self._key}"} if self._key else {}
        self._pool = PoolManager(maxsize=settings.batch, retries=RETRIES, timeout=TIMEOUT, headers=headers)
        config = read_sizes(target)
        self.vocab_size = int(config["vocab_size"])
        self._keep = min(max(settings.keep, sampling.top_k or 0), self.vocab_size - 1)  # as ``recording.record``
        served = self._choose(self._ask("/models").get("data", []), settings.served)
        self._name = str(served.get("id"))
        of_llama_cpp, of_vllm = (self._ask(path, of_api=False, must=False) for path in ("/props", "/version"))
        limits = [
            config.get("max_position_embeddings"),
            served.get("max_model_len"),  # vLLM
            of_llama_cpp.get("default_generation_settings", {}).get("n_ctx"),  # of one slot
        ]
        self.context_length = min((int(limit) for limit in limits if limit), default=sys.maxsize)  # none: as for a T5
        version = of_vllm.get("version") or of_llama_cpp.get("build_info")
        self.description = {"model": self._name, "server": served.get("owned_by"), "version": version}

    def _choose(self, models: Sequence[dict[str, Any]], name: str) -> dict[str, Any]:
        """The served model of this name, or the only one."""
        candidates = [model for model in models if not name or model.get("id") == name]
        if len(candidates) != 1:
            names = ", ".join(str(model.get("id")) for model in models) or "nothing"
            remedy = "set answers.served to the target's name there"
            raise UserError(f"{name or 'one model'} was expected, but it serves {names}", file=self._url, remedy=remedy)
        return candidates[0]

    def _ask(
        self, path: str, body: Mapping[str, Any] | None = None, *, of_api: bool = True, must: bool = True
    ) -> dict[str, Any]:
        """The server's reply at ``path``; {} on failure if ``must`` is False."""
        url = (self._url if of_api else self._url.removesuffix("/v1")) + path
        try:
            reply = self._pool.request("GET" if body is None else "POST", url, json=body)
            answer = reply.json() if reply.data[:1] in (b"{", b"[") else reply.data.decode(errors="replace")
        except HTTPError as error:
            remedy = "start it, and run the same command again: finished answers are kept"
            raise UserError(f"the server does not answer: {self._public(error)}", file=url, remedy=remedy) from None
        except ValueError as error:
            raise UserError(f"the reply is not JSON: {error}", file=url, remedy="check answers.url") from None
        if reply.status == 200 and isinstance(answer, dict):
            return answer
        if not must:
            return {}
        if isinstance(answer, dict):
            answer = answer.get("error", answer)
            answer = answer.get("message", answer) if isinstance(answer, dict) else answer
        match reply.status:
            case 401 | 403:
                remedy = f"put its key into the environment variable {API_KEY}"
            case 404:
                remedy = "check answers.url (it ends in /v1) and answers.served"
            case _:
                remedy = (
                    "check answers.keep (vLLM names 20 tokens unless --max-logprobs allows more) and the server's log"
                )
        raise UserError(f"the server says {reply.status}: {self._public(answer)[:300]}", file=url, remedy=remedy)

    def _public(self, message: object) -> str:
        """``message`` without the API key."""
        return str(message).replace(self._key or "\0", "…")

    def check_tokenizer(self, tokenizer: Tokenizer) -> None:
        """``UserError`` unless the server tokenizes a text as ``tokenizer`` does."""
        text = {"content": PROBE, "prompt": PROBE}  # llama.cpp's name for the text, and vLLM's
        flags = {"add_special": False, "add_special_tokens": False, "parse_special": False}
        theirs = self._ask("/tokenize", {"model": self._name} | text | flags, of_api=False).get("tokens")
        ours = tokenizer.encode(PROBE)
        if theirs != ours:
            what = f"it reads a text as tokens {str(theirs)[:60]}, but the tokenizer in the target's folder as {str(ours)[:60]}"
            raise UserError(
                what, file=self._url, remedy="serve the model in that folder, or give the folder of the served model"
            )

    def answer(self, prompt: Sequence[int], ends: Collection[int], seed: int) -> dict[str, Tensor]:
        """One answer as a ``recording.Part``."""
        steps: list[Step] = []
        while len(steps) < self._settings.max_new_tokens and not (steps and steps[-1][0] in ends):
            text = [*prompt, *(token for token, _ in steps)]
            new, is_cut = self._steps(text, self._settings.max_new_tokens - len(steps), ends, seed)
            steps += new
            if not is_cut:
                break
            if not (steps and steps[-1][0] in ends):
                text += [token for token, _ in new]
                steps.append(self._omitted_step(text, ends, seed))
        last = next((at for at, (token, _) in enumerate(steps) if token in ends), len(steps))
        return self._compact(steps[: last + 1])

    def _steps(
        self, prompt: Sequence[int], room: int, ends: Collection[int], seed: int, **more: Any
    ) -> tuple[list[Step], bool]:
        """At most ``room`` steps after ``prompt``, up to the first that the server omitted; and whether it omitted any."""
        sampling = self._sampling
        request = {
            "model": self._name,
            "prompt": list(prompt),
            "max_tokens": room,
            "logprobs": self._keep,
            "return_tokens_as_token_ids": True,  # vLLM
            "stop_token_ids": sorted(ends),  # vLLM
            "seed": seed,
            "temperature": sampling.temperature,
            "top_k": sampling.top_k or -1,  # vLLM before 0.9 refuses 0
            "top_p": sampling.top_p,
            "min_p": sampling.min_p,
            "repetition_penalty": 1.0,  # vLLM takes it from the model's generation_config.json
            "repeat_penalty": 1.0,
            "samplers": ["temperature", "top_k", "top_p", "min_p"],  # the order matters; llama.cpp's default differs
        }
        reply = self._ask("/completions", request | more)
        try:
            choice = reply["choices"][0]["logprobs"]
            if choice is None and self.description["server"] == "llamacpp":  # it omitted every token
                choice = {"content": []}
            if "content" in choice:
                steps, is_cut = _of_llama_cpp(choice["content"], int(reply["usage"]["completion_tokens"]))
            else:
                steps, is_cut = _of_vllm(choice), False
        except (KeyError, TypeError, ValueError, IndexError, AttributeError):
            what = "its reply has no log-probabilities by token id"
            remedy = "use llama.cpp's server or vLLM; other servers name tokens by their text, which is ambiguous"
            raise UserError(what, file=self._url, remedy=remedy) from None
        for _, top in steps:
            if len(top) < self._keep or not 0 <= min(top) <= max(top) < self.vocab_size:
                what = f"it names {len(top)} tokens at a position, but {self._keep} were asked for"
                if len(top) >= self._keep:
                    what = f"it answers with token {max(top)}, but the target has {self.vocab_size} tokens"
                remedy = "lower answers.keep, or check that the server serves the target, and without a draft"
                raise UserError(what, file=self._url, remedy=remedy)
        if not steps and not is_cut:
            raise UserError("an answer without any token", file=self._url, remedy="check the server's log")
        return steps, is_cut

    def _omitted_step(self, prompt: Sequence[int], ends: Collection[int], seed: int) -> Step:
        """The greedy step after ``prompt`` that llama.cpp's server omitted, because its token ends within a character.

        Another token is forced in its place; the reply then has the distribution before the forced token.
        """
        if self._sampling.temperature:
            what = "llama.cpp's server leaves out sampled tokens that end within a character"
            raise UserError(what, file=self._url, remedy="use engine llama_cpp or transformers for sampled answers")
        steps, _ = self._steps(prompt, 1, ends, seed, logit_bias={str(min(ends)): 1000.0})
        if not steps:
            what = "its reply has no log-probabilities"
            raise UserError(what, file=self._url, remedy="serve the target alone, without a draft")
        step = steps[0]
        return max(step[1], key=step[1].__getitem__), step[1]

    def _compact(self, steps: Sequence[Step]) -> dict[str, Tensor]:
        """The ``keep`` most probable tokens of each position, always including the emitted one, and the mass of all others."""
        ids, rows = [], []
        for token, top in steps:
            kept = sorted(top, key=top.__getitem__, reverse=True)[: self._keep]
            if token not in kept:
                kept[-1] = token
            log_probs = [max(top[i], LOWEST) for i in kept]
            ids.append(kept)
            rows.append([*log_probs, math.log(max(1 - math.fsum(map(math.exp, log_probs)), LEAST))])
        return {
            "lengths": torch.tensor([len(steps)]),
            "tokens": torch.tensor([token for token, _ in steps]),
            "log_probs": torch.tensor(rows).half(),
            "ids": torch.tensor(ids, dtype=torch.int32),
        }


def _of_llama_cpp(content: Sequence[Mapping[str, Any]], count: int) -> tuple[list[Step], bool]:
    """Parse llama.cpp's reply, up to the first of ``count`` tokens that it omitted; the next token then also has the bytes of the omitted one."""
    steps: list[Step] = []
    for entry in content:
        token, top = int(entry["id"]), {int(t["id"]): float(t["logprob"]) for t in entry["top_logprobs"]}
        token_bytes = next((t["bytes"] for t in entry["top_logprobs"] if t["id"] == token), entry["bytes"])
        if len(content) < count and token_bytes != entry["bytes"]:
            return steps, True
        steps.append((token, top | {token: float(entry["logprob"])}))
    return steps, len(content) < count


def _of_vllm(logprobs: Mapping[str, Any]) -> list[Step]:
    """Parse vLLM's reply, which writes tokens as ``token_id:17``."""

    def number(name: str) -> int:
        return int(name.partition("token_id:")[2])  # a ValueError for any other text

    emitted = zip(logprobs["tokens"], logprobs["token_logprobs"], logprobs["top_logprobs"], strict=True)
    return [
        (number(token), {number(name): float(value) for name, value in top.items()} | {number(token): float(log_prob)})
        for token, log_prob, top in emitted
    ]
