"""Whether the installed llama.cpp survives what speculation asks of it, found out in another process.

On processors with AMX, some compilers build a llama.cpp that decodes one token at a time and dies on the first batch of a
quantized model (ggml-org/llama.cpp issue 20824): a baseline runs, and the first verification takes the process down.
"""

from __future__ import annotations

import functools
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from draftlab.errors import UserError
from draftlab.files.json_files import write_json
from draftlab.models.gguf import expected_shapes, export

CURE = (
    'rebuild it without AMX: CMAKE_ARGS="-DGGML_NATIVE=OFF" pip install --force-reinstall --no-cache-dir '
    "--no-binary llama-cpp-python llama-cpp-python"
)


@functools.cache
def self_check(python: str = sys.executable) -> None:
    """Decode two tokens of a quantized toy in a subprocess; a build that dies is a ``UserError`` with the flags that cure it."""
    try:
        result = subprocess.run([python, "-m", __name__], capture_output=True, text=True, timeout=120)
    except subprocess.TimeoutExpired:
        raise UserError("the installed llama.cpp hangs on a batch of two tokens", remedy=CURE) from None
    if result.returncode < 0:
        name = signal.Signals(-result.returncode).name
        raise UserError(f"the installed llama.cpp dies ({name}) on a batch of two quantized tokens", remedy=CURE)
    if result.returncode:
        last = (result.stderr.strip().splitlines() or ["no message"])[-1]
        raise UserError(f"the installed llama.cpp fails its self-check: {last}", remedy=CURE)


def write_toy(folder: Path, *, seed: int = 0, **changes: Any) -> None:
    """A Llama with random weights in the Hugging Face layout, without a tokenizer; ``changes`` override its config."""
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 1,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "vocab_size": 32,
        "max_position_embeddings": 512,
        "rms_norm_eps": 1e-5,
        "tie_word_embeddings": True,
        "bos_token_id": 1,
        "eos_token_id": 2,
    } | changes
    rng = np.random.default_rng(seed)
    tensors = {
        name: np.ones(shape, dtype=np.float32)
        if len(shape) == 1
        else (rng.standard_normal(shape) / np.sqrt(shape[-1])).astype(np.float32)
        for name, shape in expected_shapes(config, folder).items()
    }
    folder.mkdir(parents=True, exist_ok=True)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    write_json(folder / "config.json", config)


def _decode_two_tokens() -> None:
    from draftlab.models.llama_cpp import LlamaCpp

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_toy(folder / "toy")
        export(folder / "toy", folder / "toy.gguf", "q8_0", vocabulary=False)
        with LlamaCpp(folder / "toy.gguf") as model:
            together = model.extend([1, 3]).copy()
            model.trim(1)
            alone = model.extend([3])
            if not np.allclose(together[-1], alone[-1], atol=0.1):
                raise UserError("a batch of two tokens gives other logits than one by one", remedy=CURE)


if __name__ == "__main__":
    _decode_two_tokens()
