"""The target on an OpenAI-compatible server: its answers, and the most probable tokens at each position, by id.

Prompts are sent as token ids, so the chat template is ours and the server tokenizes nothing. llama.cpp's server and vLLM name tokens by id; a
server that gives only their text is refused, since several ids may have the same text. The log-probabilities are those before temperature, top-k
and top-p, as both servers give them. The mass of the other tokens is 1 minus the sum of the named ones, as exact as the server's float32 softmax.
"""

from __future__ import annotations

import math
import os
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from urllib3 import PoolManager, Retry, Timeout
from urllib3.exceptions import HTTPError

from draftlab.core.sampling import Sampling
from draftlab.engine.settings import API_KEY, Answers
from draftlab.errors import UserError
from draftlab.files.hub import PASSING
from draftlab.models import Tokenizer
from draftlab.models.config import read_sizes

RETRIES = Retry(
    total=9, backoff_factor=0.5, backoff_max=60, status_forcelist=PASSING, allowed_methods=None, raise_on_status=False
)
"""A server that is busy, or gone for two minutes, is asked again; ``Retry-After`` is obeyed."""

TIMEOUT = Timeout(connect=30, read=1800)
"""Seconds; an answer is sent when it is whole, and may have waited for others."""

PROBE = "The quick brown fox (2024-07-26):\n\tdef f(x):  return x ** 31  # naïve café, “quoted”, 東京, Привет 🙂 don't"

LEAST = 2.0**-24
"""Of the mass of the others: what float32 can tell from none."""

LOWEST = -9999.0
"""A log-probability; vLLM's own bound, and float16 has no room for llama.cpp's."""

Step = tuple[int, dict[int, float]]
"""A token, and the log-probabilities of the most probable ones and of itself."""


class Server:
    """One model on one server. ``description`` is what the server says about it."""

    def __init__(self, target: Path, settings: Answers) -> None:
        self._settings, self._url = settings, settings.url.rstrip("/")
        self._key = os.environ.get(API_KEY, "")
        headers = {"Authorization": f"Bearer {self._key}"} if self._key else {}
        self._pool = PoolManager(maxsize=settings.batch, retries=RETRIES, timeout=TIMEOUT, headers=headers)
        config = read_sizes(target)
        self.vocab_size = int(config["vocab_size"])
        self._keep = min(settings.keep, self.vocab_size - 1)
        served = self._chosen(self._ask("/models").get("data", []), settings.served)
        self._name = str(served.get("id"))
        props, root = self._ask("/props", of_api=False, must=False), self._ask("/version", of_api=False, must=False)
        limits = [
            config.get("max_position_embeddings"),
            served.get("max_model_len"),  # vLLM
            props.get("default_generation_settings", {}).get("n_ctx"),  # llama.cpp, of one of its slots
        ]
        self.context_len = min(int(limit) for limit in limits if limit)
        version = root.get("version") or props.get("build_info")
        self.description = {"model": self._name, "server": served.get("owned_by"), "version": version}

    def _chosen(self, models: Sequence[dict[str, Any]], name: str) -> dict[str, Any]:
        found = [model for model in models if not name or model.get("id") == name]
        if len(found) != 1:
            names = ", ".join(str(model.get("id")) for model in models) or "nothing"
            remedy = "set answers.served to the target's name there"
            raise UserError(f"{name or 'one model'} was expected, but it serves {names}", file=self._url, remedy=remedy)
        return found[0]

    def _ask(
        self, path: str, body: Mapping[str, Any] | None = None, *, of_api: bool = True, must: bool = True
    ) -> dict[str, Any]:
        """Return the server's reply at ``path``; nothing if it fails and ``must`` is not set."""
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
        remedy = {
            401: f"put its key into the environment variable {API_KEY}",
            403: f"put its key into the environment variable {API_KEY}",
            404: "check answers.url (it ends in /v1) and answers.served",
        }.get(
            reply.status,
            "check answers.keep (vLLM names 20 tokens unless --max-logprobs allows more) and the server's log",
        )
        raise UserError(f"the server says {reply.status}: {self._public(answer)[:300]}", file=url, remedy=remedy)

    def _public(self, message: object) -> str:
        """An error message of the server or the network, without the API key."""
        return str(message).replace(self._key or "\0", "…")

    def check_tokenizer(self, tokenizer: Tokenizer) -> None:
        """``UserError`` unless the server reads text as the model folder's tokenizer does: ids must mean the same to both."""
        flags = {"add_special": False, "add_special_tokens": False, "parse_special": False}
        words = {"model": self._name, "content": PROBE, "prompt": PROBE}  # llama.cpp's name for the text, and vLLM's
        theirs, ours = self._ask("/tokenize", words | flags, of_api=False).get("tokens"), tokenizer.encode(PROBE)
        if theirs != ours:
            what = f"it reads a text as tokens {str(theirs)[:60]}, but the tokenizer in the target's folder as {str(ours)[:60]}"
            raise UserError(
                what, file=self._url, remedy="serve the model in that folder, or give the folder of the served model"
            )

    def answer(self, prompt: Sequence[int], ends: Collection[int], sampling: Sampling, seed: int) -> dict[str, Tensor]:
        """One answer as a ``recording.Part``."""
        steps: list[Step] = []
        while len(steps) < self._settings.max_new_tokens and not (steps and steps[-1][0] in ends):
            known = [*prompt, *(token for token, _ in steps)]
            found, is_cut = self._steps(known, self._settings.max_new_tokens - len(steps), ends, sampling, seed)
            steps += found
            if not is_cut:
                break
            if not (steps and steps[-1][0] in ends):
                known = [*prompt, *(token for token, _ in steps)]
                steps.append(self._hidden(known, ends, sampling, seed))
        last = next((at for at, (token, _) in enumerate(steps) if token in ends), len(steps))
        return self._compact(steps[: last + 1])

    def _steps(
        self, prompt: Sequence[int], room: int, ends: Collection[int], sampling: Sampling, seed: int, **more: Any
    ) -> tuple[list[Step], bool]:
        """Return at most ``room`` tokens after ``prompt``, and whether the server omitted some; nothing after these is returned."""
        asked = {
            "model": self._name,
            "prompt": list(prompt),
            "max_tokens": room,
            "logprobs": self._keep,
            "return_tokens_as_token_ids": True,  # vLLM
            "stop_token_ids": sorted(ends),  # vLLM
            "seed": seed,
            "temperature": sampling.temperature,
            "top_k": sampling.top_k or 0,
            "top_p": sampling.top_p,
            "min_p": 0.0,
            "repetition_penalty": 1.0,  # vLLM takes it from the model's generation_config.json
            "repeat_penalty": 1.0,
            "samplers": ["temperature", "top_k", "top_p"],  # llama.cpp's own order is another
        }
        reply = self._ask("/completions", asked | more)
        try:
            choice = reply["choices"][0]["logprobs"]
            if choice is None and self.description["server"] == "llamacpp":  # it left out every token
                choice = {"content": []}
            if "content" in choice:
                steps, is_cut = _of_llama_cpp(choice["content"], int(reply["usage"]["completion_tokens"]))
            else:
                steps, is_cut = _of_vllm(choice), False
        except (KeyError, TypeError, ValueError, IndexError):
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

    def _hidden(self, prompt: Sequence[int], ends: Collection[int], sampling: Sampling, seed: int) -> Step:
        """The greedy token after ``prompt``, of which llama.cpp's server says nothing because it ends within a character: another token is
        forced in its place, and the distribution is the one before that."""
        if sampling.temperature:
            what = "llama.cpp's server leaves out sampled tokens that end within a character"
            raise UserError(what, file=self._url, remedy="use engine llama_cpp or transformers for sampled answers")
        steps, _ = self._steps(prompt, 1, ends, sampling, seed, logit_bias={str(min(ends)): 1000.0})
        if not steps:
            what = "its reply has no log-probabilities"
            raise UserError(what, file=self._url, remedy="serve the target alone, without a draft")
        step = steps[0]
        return max(step[1], key=step[1].__getitem__), step[1]

    def _compact(self, steps: Sequence[Step]) -> dict[str, Tensor]:
        """The ``keep`` most probable tokens of each position, always including the emitted one, and the mass of all others."""
        tokens = [token for token, _ in steps]
        ids = [sorted(top, key=top.__getitem__, reverse=True)[: self._keep] for _, top in steps]
        ids = [own if token in own else [*own[:-1], token] for own, token in zip(ids, tokens, strict=True)]
        kept = [[max(top[i], LOWEST) for i in own] for own, (_, top) in zip(ids, steps, strict=True)]
        rows = [[*own, math.log(max(1 - math.fsum(map(math.exp, own)), LEAST))] for own in kept]
        return {
            "lengths": torch.tensor([len(steps)]),
            "tokens": torch.tensor(tokens),
            "log_probs": torch.tensor(rows).half(),
            "ids": torch.tensor(ids, dtype=torch.int32),
        }


def _of_llama_cpp(content: Sequence[Mapping[str, Any]], count: int) -> tuple[list[Step], bool]:
    """Its steps up to the first token that it left out of ``count``: bytes of that one stand before the bytes of the next."""
    steps: list[Step] = []
    for entry in content:
        token, top = int(entry["id"]), {int(own["id"]): float(own["logprob"]) for own in entry["top_logprobs"]}
        piece = next((own["bytes"] for own in entry["top_logprobs"] if own["id"] == token), entry["bytes"])
        if len(content) < count and piece != entry["bytes"]:
            return steps, True
        steps.append((token, top | {token: float(entry["logprob"])}))
    return steps, len(content) < count


def _of_vllm(logprobs: Mapping[str, Any]) -> list[Step]:
    """Parse vLLM's reply, which writes tokens as ``token_id:17``."""

    def number(name: str) -> int:
        return int(name.partition("token_id:")[2])  # a ValueError for any other text

    return [
        (number(token), {number(name): float(value) for name, value in top.items()} | {number(token): float(own)})
        for token, own, top in zip(
            logprobs["tokens"], logprobs["token_logprobs"], logprobs["top_logprobs"], strict=True
        )
    ]
