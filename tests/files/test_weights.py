"""How many weights a model has, and how many of them a token reads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from transformers import AutoConfig, AutoModelForCausalLM

from draftlab.files.json_files import write_json
from draftlab.files.weights import active_parameter_count, parameter_count

SHAPES = {"model.embed_tokens.weight": (40, 8), "model.norm.weight": (8,), "lm_head.weight": (40, 8)}


def folder(at: Path, shapes: dict[str, tuple[int, ...]], **config: Any) -> Path:
    at.mkdir()
    write_json(at / "config.json", config)
    save_file({name: torch.zeros(shape) for name, shape in shapes.items()}, at / "model.safetensors")
    return at


@pytest.mark.parametrize(("tied", "all_of_them", "read"), [(True, 328, 328), (False, 648, 328)])
def test_an_embedding_is_read_only_as_the_head(tied: bool, all_of_them: int, read: int, tmp_path: Path) -> None:
    """A copy of a tied one is not counted; of one that is not the head, a token reads one row."""
    made = folder(tmp_path / "model", SHAPES, tie_word_embeddings=tied)
    assert (parameter_count(made), active_parameter_count(made)) == (all_of_them, read)


@pytest.mark.parametrize("own", [True, False])
def test_a_head_of_eagle_3_is_counted_although_it_says_that_it_is_tied(own: bool, tmp_path: Path) -> None:
    shapes = {"fc.weight": (8, 24), "norm.weight": (8,), "lm_head.weight": (10, 8)}
    made = folder(
        tmp_path / "head", shapes | ({"embed_tokens.weight": (40, 8)} if own else {}), tie_word_embeddings=True
    )
    assert (parameter_count(made), active_parameter_count(made)) == (280 + 320 * own, 280)


@pytest.mark.parametrize(
    ("kind", "stated"),
    [
        ("qwen3_moe", {"num_experts": 8, "moe_intermediate_size": 6, "head_dim": 8}),
        ("mixtral", {"num_local_experts": 8}),
    ],
)
def test_a_mixture_reads_the_experts_of_a_token(kind: str, stated: dict[str, int], tmp_path: Path) -> None:
    sizes = {"hidden_size": 16, "intermediate_size": 6, "num_attention_heads": 2, "num_key_value_heads": 2}
    config = AutoConfig.for_model(kind, **sizes, **stated, num_hidden_layers=2, vocab_size=40, num_experts_per_tok=2)
    AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path / "model")
    experts = 2 * 8 * 3 * 6 * 16  # layers, experts, matrices
    unread = experts * 3 // 4 + 40 * 16
    assert active_parameter_count(tmp_path / "model") == parameter_count(tmp_path / "model") - unread
    left_by_three = experts * 27 // 64 + 40 * 16  # each leaves three of four
    assert active_parameter_count(tmp_path / "model", tokens=3) == parameter_count(tmp_path / "model") - left_by_three
