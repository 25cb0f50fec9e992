"""Checks that the installed llama.cpp decodes batches of tokens, in a separate process.

On processors with AMX, some compilers build a llama.cpp that decodes single tokens but crashes on the first batch of a quantized model
(ggml-org/llama.cpp issue 20824). Plain decoding then works, and the first verification ends the process.
"""

from __future__ import annotations

import functools
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from draftlab.errors import UserError
from draftlab.files.json_files import write_json
from draftlab.files.scratch import scratch
from draftlab.models.checkpoint import expected_shapes
from draftlab.models.gguf import export

CURE = (
    'rebuild it without AMX: CMAKE_ARGS="-DGGML_NATIVE=OFF" pip install --force-reinstall --no-cache-dir '
    "--no-binary llama-cpp-python llama-cpp-python"
)


@functools.cache
def self_check(python: str = sys.executable) -> None:
    """Decode batches of small quantized models in a subprocess; ``UserError`` names the flags that fix a build that crashes."""
    try:
        result = subprocess.run([python, "-m", __name__], capture_output=True, text=True, timeout=120)
    except subprocess.TimeoutExpired:
        raise UserError("the installed llama.cpp hangs on a batch of tokens", remedy=CURE) from None
    if result.returncode < 0:
        name = signal.Signals(-result.returncode).name
        raise UserError(f"the installed llama.cpp dies ({name}) on a batch of tokens of a quantized model", remedy=CURE)
    if result.returncode:
        last = (result.stderr.strip().splitlines() or ["no message"])[-1]
        raise UserError(f"the installed llama.cpp fails its self-check: {last}", remedy=CURE)


def report() -> None:
    """Check that the installed llama.cpp decodes batches of quantized models, and print its build."""
    from draftlab.models.llama_cpp import describe_build

    self_check()
    print(*(f"{name}: {value}" for name, value in describe_build().items()), sep="\n")


def write_toy(folder: Path, *, seed: int = 0, **changes: Any) -> None:
    """Write a Llama with random weights in the Hugging Face layout, without a tokenizer; ``changes`` override its config."""
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


def _decode_batches() -> None:
    """Check for each type of weights that a batch and single steps agree, with models wide enough to use every kernel."""
    from draftlab.models.llama_cpp import LlamaCpp

    tokens = list(range(3, 43))
    with scratch() as folder:
        write_toy(folder / "toy", hidden_size=256, intermediate_size=512, vocab_size=64)
        for weights in ("q8_0", "q4_0", "f16", "bf16"):
            export(folder / "toy", folder / f"{weights}.gguf", weights, vocabulary=False)
            with LlamaCpp(folder / f"{weights}.gguf") as model:
                single = np.concatenate([model.extend([token]).copy() for token in tokens])
                batches = []
                for count in (len(tokens), 9):  # kernels for a prompt, and for a block that is verified
                    model.trim(0)
                    batches.append(model.extend(tokens[:count]).copy())
            if not all(np.allclose(batch, single[: len(batch)], atol=0.1) for batch in batches):
                raise UserError(f"a batch of tokens gives different logits than single steps ({weights})", remedy=CURE)


if __name__ == "__main__":
    _decode_batches()
