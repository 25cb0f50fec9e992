"""One odd value in any field of any file of a model folder: one line, no traceback, whichever command reads it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from draftlab.data.prompts import Prompt
from draftlab.engine import answering
from draftlab.engine.settings import Answers
from draftlab.errors import UserError
from draftlab.files.json_files import write_jsonl
from draftlab.models import load_tokenizer
from draftlab.models.config import (
    LLAMAS,
    LlamaFields,
    T5Fields,
    is_llama,
    read_config,
    rope_scaling_of,
    unsupported_settings,
)
from draftlab.models.gguf import export
from draftlab.models.tokenizer import train_tokenizer
from tests.pair import small_llama

ODD: list[Any] = [
    None, 0, -1, 1, 3, 2**31, 2**63, 2**70, 1.5, 1e30, True, False, "", "x", "4", [], [1], [None], ["x"], {}, {"a": 1},
    float("inf"), float("nan"), "\ud800", [[[[]]]],
]  # fmt: skip
SETTINGS = Answers.model_validate(
    {"max_new_tokens": 2, "template": "plain", "batch": 2, "keep": 64, "dtype": "float32", "device": "cpu"}
)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from draftlab.models.hf import new_t5

    folder = tmp_path_factory.mktemp("models")
    tokenizer = train_tokenizer(["some text"], 320)
    small_llama(16, 0).save(folder / "llama")
    import torch

    new_t5(320, 16, 32, 1, 2, torch.Generator().manual_seed(0)).save(folder / "t5")
    for model in ("llama", "t5"):
        tokenizer.save(folder / model)
    write_jsonl(folder / "prompts.jsonl", [Prompt("1", "toy", "train", "count to 2")])
    return folder


def answer(model: Path) -> None:
    answering.answer(model, model.parent / "prompts.jsonl", 1, SETTINGS)


COMMANDS: dict[str, Callable[[Path], object]] = {
    "answer": answer,
    "export": lambda model: export(model, model.parent / "out.gguf"),
    "export without text": lambda model: export(model, model.parent / "out.gguf", vocabulary=False),
    "tokenizer": load_tokenizer,
}


def runs(command: str, model: Path) -> bool:
    """Whether a command ran; False after a ``UserError`` of one line. Any other error is raised."""
    try:
        COMMANDS[command](model)
    except UserError as error:
        message = str(error)
    else:
        return True
    assert "\n" not in message
    return False


def copied(models: Path, tmp_path: Path, kind: str) -> Path:
    shutil.copytree(models, tmp_path / "models")
    return tmp_path / "models" / kind


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("kind", ["llama", "t5"])
def test_one_odd_value_is_an_error_of_one_line(kind: str, command: str, models: Path, tmp_path: Path) -> None:
    model = copied(models, tmp_path, kind)
    file = model / "config.json"
    right = json.loads(file.read_text())
    assert runs(command, model)
    known = {"llama": LlamaFields, "t5": T5Fields}[kind].model_fields
    tried = refused = 0
    for name in dict.fromkeys([*right, *known]):
        for value in [*ODD, ...]:
            wrong = {key: right[key] for key in right if key != name} | ({} if value is ... else {name: value})
            file.write_text(json.dumps(wrong))
            tried += 1
            try:
                refused += not runs(command, model)
            except Exception as error:
                raise AssertionError(f"{name}={value!r}: {error!r}") from error
    assert tried > 400
    assert command == "tokenizer" or refused > 100


BROKEN = {
    "deep": b'{"a": ' * 100_000,
    "deep list": b"[" * 100_000,
    "long integer": b'{"vocab_size": ' + b"9" * 10_000 + b"}",
    "a list": b"[]",
    "empty": b"",
    "latin": b'{"eos_token_id": "\xe9"}',
    "utf-16": '{"eos_token_id": 2}'.encode("utf-16"),
    "zero bytes": b"\0" * 100,
    "infinite": b'{"eos_token_id": 1e999}',
}


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize(
    "name", ["config.json", "generation_config.json", "tokenizer_config.json", "tokenizer.json", "chat_template.jinja"]
)
def test_a_broken_file_is_an_error_of_one_line(name: str, command: str, models: Path, tmp_path: Path) -> None:
    model = copied(models, tmp_path, "llama")
    for value in BROKEN.values():
        (model / name).write_bytes(value)
        runs(command, model)


def test_defaults_are_those_of_transformers(models: Path, tmp_path: Path) -> None:
    from transformers import LlamaConfig

    model = copied(models, tmp_path, "llama")
    raw = json.loads((model / "config.json").read_text())
    for name in ("rms_norm_eps", "max_position_embeddings", "tie_word_embeddings", "hidden_act"):
        (model / "config.json").write_text(json.dumps({key: value for key, value in raw.items() if key != name}))
        assert read_config(model)[name] == getattr(LlamaConfig(), name), name


WINDOW, LLAMA_3 = "sliding_window", {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
PUBLISHED: dict[str, tuple[dict[str, Any], list[str]]] = {
    "Llama-3.1-8B": (
        {"model_type": "llama", "rope_theta": 500000.0, "eos_token_id": [128001, 128009]}
        | {"rope_scaling": {**LLAMA_3, "original_max_position_embeddings": 8192, "rope_type": "llama3"}},
        [],
    ),
    "Llama-2 to 8k": ({"model_type": "llama", "rope_scaling": {"type": "linear", "factor": 2.0}}, ["rope type"]),
    "Mistral-7B-v0.1": ({"model_type": "mistral", WINDOW: 4096}, [WINDOW]),
    "Mistral-7B-v0.3": ({"model_type": "mistral", WINDOW: None}, []),
    "Mistral-Nemo": ({"model_type": "mistral", WINDOW: None, "head_dim": 128, "hidden_size": 5120}, []),
    "Qwen2.5-7B": ({"model_type": "qwen2", WINDOW: 131072, "use_sliding_window": False}, []),
    "Qwen2-7B with a window": ({"model_type": "qwen2", WINDOW: 64, "use_sliding_window": True}, ["use_sliding_window"]),
    "Qwen3-8B": (
        {"model_type": "qwen3", "head_dim": 128, "attention_bias": False, WINDOW: None, "use_sliding_window": False},
        [],
    ),
    "Qwen3-8B to 128k": (
        {"model_type": "qwen3", "head_dim": 128}
        | {"rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}},
        ["rope type"],
    ),
}
"""What matters in ``config.json`` of models on the hub, and by what they depart from the project's Llama."""


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_configs_are_of_the_projects_llama_or_say_why_not(name: str, tmp_path: Path) -> None:
    """As published for transformers 4, and as transformers 5 writes them, with ``rope_parameters``."""
    from transformers import AutoConfig

    fields, departs = PUBLISHED[name]
    widths = {"hidden_size": 4096, "intermediate_size": 14336, "num_attention_heads": 32, "num_key_value_heads": 8}
    sizes = widths | {"num_hidden_layers": 2, "vocab_size": 1000, "max_position_embeddings": 131072}
    raw = sizes | {"architectures": [LLAMAS[fields["model_type"]]], "rope_scaling": None, "hidden_act": "silu"} | fields
    (tmp_path / "config.json").write_text(json.dumps(raw))
    AutoConfig.from_pretrained(tmp_path).save_pretrained(tmp_path / "again")
    for folder in (tmp_path, tmp_path / "again"):
        config = read_config(folder)
        assert (is_llama(config), unsupported_settings(config)) == (not departs, departs), folder
        assert (rope_scaling_of(config) is not None) == name.startswith("Llama-3")


def test_real_configs_are_read(shared: Path) -> None:
    files = sorted(shared.rglob("config.json"))
    if not files:
        pytest.skip("no real model beside this checkout")
    for file in files:
        assert read_config(file.parent)
