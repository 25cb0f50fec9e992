"""A small model behind HTTP on localhost, with the API of llama.cpp's server or of vLLM; it fails on request.

Like llama.cpp's server it leaves out tokens that end within a character. Like both, it lists the most probable tokens before sampling.
"""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from typing import Any

import torch
from tokenizers.pre_tokenizers import ByteLevel

from draftlab.core.sampling import Sampling
from draftlab.engine.generate import generate
from draftlab.models import LanguageModel, Tokenizer
from rehearsal.hub import listening

PRINTABLE = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
BYTES = {chr(byte): byte for byte in PRINTABLE} | {
    chr(256 + place): byte for place, byte in enumerate(b for b in range(256) if b not in PRINTABLE)
}
"""GPT-2's letters for bytes."""
assert set(BYTES) == set(ByteLevel.alphabet())


Step = tuple[int, torch.Tensor, list[int]]
"""A token, the log-probabilities of all, and the most probable ones."""


@dataclass
class FakeServer:
    """A server, its log, and its faults: ``fault(number, body)`` is the status of a completion, 0 for a cut connection."""

    model: LanguageModel
    tokenizer: Tokenizer
    dialect: str = "llama.cpp"
    fault: Callable[[int, dict[str, Any]], int] = lambda number, body: 200
    key: str = ""
    change: Callable[[dict[str, Any]], object] = lambda reply: None
    room: int = 64
    shift: int = 0
    stops: bool = True
    url: str = ""
    requests: Counter[tuple[int, ...]] = field(default_factory=Counter)
    hidden: int = 0
    together: int = 0
    now: int = 0
    number: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def get(self, path: str) -> dict[str, Any] | None:
        model: dict[str, Any] = {"id": "toy", "owned_by": "llamacpp" if self.dialect == "llama.cpp" else "vllm"}
        if self.dialect == "llama.cpp":
            props = {"build_info": "b7-abc", "default_generation_settings": {"n_ctx": self.room}}
            return {"/v1/models": {"data": [model]}, "/props": props}.get(path)
        return {"/v1/models": {"data": [model | {"max_model_len": self.room}]}, "/version": {"version": "0.11"}}.get(
            path
        )

    def post(self, path: str, body: dict[str, Any]) -> dict[str, Any] | None:
        if path == "/tokenize":
            text = body["content"] if self.dialect == "llama.cpp" else body["prompt"]
            return {"tokens": [token + self.shift for token in self.tokenizer.encode(text)]}
        return self.complete(body) if path == "/v1/completions" else None

    def complete(self, body: dict[str, Any]) -> dict[str, Any]:
        steps: list[Step] = []

        def observe(rows: list[int], position: int, logits: torch.Tensor, tokens: torch.Tensor) -> None:
            log_probs = logits[0].log_softmax(-1)
            steps.append((int(tokens[0]), log_probs, log_probs.topk(body["logprobs"]).indices.tolist()))

        sampling = Sampling(body["temperature"], max(body["top_k"], 0) or None, body["top_p"], body["min_p"])
        with self.lock:  # torch's own threads are enough
            generate(
                self.model,
                [body["prompt"]],
                max_new_tokens=body["max_tokens"],
                eos_ids=self.tokenizer.eos_ids if self.stops else (),
                sampling=sampling,
                generator=torch.Generator().manual_seed(body["seed"]),
                observe=observe,
            )
        if forced := next(iter(body.get("logit_bias", {})), None):
            steps = [(int(forced), *steps[0][1:])]
        report = self.as_llama_cpp if self.dialect == "llama.cpp" else self.as_vllm
        return {"choices": [{"logprobs": report(steps)}], "usage": {"completion_tokens": len(steps)}}

    def piece(self, token: int) -> bytes:
        if token in self.tokenizer.eos_ids:
            return b""
        text = self.tokenizer.backend.id_to_token(token)
        return bytes(BYTES[c] for c in text) if all(c in BYTES for c in text) else text.encode()

    def as_llama_cpp(self, steps: list[Step]) -> dict[str, Any] | None:
        content, text, sent = [], b"", 0
        for token, log_probs, top in steps:
            text += self.piece(token)
            if is_cut(text):
                self.hidden += 1
                continue
            likely = [{"id": i, "bytes": list(self.piece(i)), "logprob": float(log_probs[i])} for i in top]
            emitted = {"id": token, "bytes": list(text[sent:]), "logprob": float(log_probs[token])}
            content.append(emitted | {"top_logprobs": likely})
            sent = len(text)
        return {"content": content} if content else None

    def as_vllm(self, steps: list[Step]) -> dict[str, Any]:
        return {
            "tokens": [f"token_id:{token}" for token, _, _ in steps],
            "token_logprobs": [float(log_probs[token]) for token, log_probs, _ in steps],
            "top_logprobs": [
                {f"token_id:{i}": float(log_probs[i]) for i in dict.fromkeys([token, *top])}
                for token, log_probs, top in steps
            ],
        }


def is_cut(text: bytes) -> bool:
    """Whether ``text`` ends within a character, by llama.cpp's rule."""
    for back in range(1, min(4, len(text)) + 1):
        for length, mask, lead in ((2, 0xE0, 0xC0), (3, 0xF0, 0xE0), (4, 0xF8, 0xF0)):
            if text[-back] & mask == lead:
                return back < length
    return False


@contextlib.contextmanager
def serve(server: FakeServer) -> Iterator[FakeServer]:
    """Listen on a free port until the block ends."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: object) -> None:
            """Keep quiet."""

        def do_GET(self) -> None:
            self.reply(server.get(self.path))

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            if self.path != "/v1/completions":
                return self.reply(server.post(self.path, body))
            with server.lock:
                server.number += 1
                server.now += 1
                server.together = max(server.together, server.now)
                status = server.fault(server.number, body)
            try:
                if status == 0:
                    self.close_connection = True
                    return None
                if status != 200:
                    message = f"no luck with {self.headers.get('Authorization')}"
                    return self.send(status, {"error": {"message": message}})
                reply = server.post(self.path, body)
                time.sleep(0.005)
                server.change(reply)
                with server.lock:
                    server.requests[tuple(body["prompt"])] += 1
                return self.reply(reply)
            finally:
                with server.lock:
                    server.now -= 1

        def reply(self, answer: dict[str, Any] | None) -> None:
            if server.key and self.headers.get("Authorization") != f"Bearer {server.key}":
                return self.send(401, {"error": {"message": f"wrong key: {self.headers.get('Authorization')}"}})
            return self.send(404 if answer is None else 200, {} if answer is None else answer)

        def send(self, status: int, answer: dict[str, Any]) -> None:
            data = json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            self.send_header("Content-Type", "application/json")
            if status == 429:
                self.send_header("Retry-After", "0")
            self.end_headers()
            self.wfile.write(data)

    with listening(Handler) as address:
        server.url = f"{address}/v1"
        yield server
